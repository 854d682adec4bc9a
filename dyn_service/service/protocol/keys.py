"""CURVE key files: the identity of a client, and the public key of its server.

    name = "panda-arm"        # TOML; readable by its owner only
    public = "..."            # every key has 40 characters of Z85
    secret = "..."
    server = "..."            # public key of the server; absent in the server's own file

A process that can read the file can send requests under its name. So the file is created with mode 600, and a file that
other users can read is refused; the error names the `chmod` command that fixes it.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from base64 import b85decode, b85encode
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nacl.bindings import crypto_box_keypair, crypto_scalarmult_base

from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, PermissionDeniedError
from dyn_service.service.protocol.curve import CurveKeys

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Valid names of keys. The name becomes a file name and a word in the list of allowed keys."""

GROUP_AND_OTHERS = stat.S_IRWXG | stat.S_IRWXO
"""Mode bits of the group and of other users."""

_Z85 = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_Z85_DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85_DIGITS = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_Z85 = bytes.maketrans(_B85_DIGITS, _Z85_DIGITS)
# Digits of Base85 that Z85 does not have become blanks, which `b85decode` refuses.
_FROM_Z85 = bytes.maketrans(_B85_DIGITS + _Z85_DIGITS, b" " * 85 + _B85_DIGITS)
_MAX_BYTES = 1 << 20
"""Longest file of keys: about ten thousand keys."""


@dataclass(frozen=True)
class Keys:
    """A key pair. server: public key of the client's server; empty in a server's own keys."""

    name: str
    public: str
    secret: str = field(repr=False)
    server: str = ""

    @property
    def pair(self) -> CurveKeys:
        """The key pair in bytes."""
        return CurveKeys(z85_decode(self.public), z85_decode(self.secret))


KeySource = str | os.PathLike[str] | Keys
"""A client's keys: the path of a key file, or `Keys`."""


def make_keys(name: str, server: str = "") -> Keys:
    """Generates a key pair; raises `InvalidArgumentError` if the name does not match `NAME`."""
    if not NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"the name of a key must be up to 64 letters, digits, '.', '_' and '-', found '{name}'", path="name"
        )
    public, secret = crypto_box_keypair()
    return Keys(name, z85_encode(public), z85_encode(secret), server)


def z85_encode(data: bytes) -> str:
    """Returns the text of a key, in ZeroMQ's alphabet (https://rfc.zeromq.org/spec/32)."""
    return b85encode(data).translate(_TO_Z85).decode("ascii")


def z85_decode(text: str) -> bytes:
    """Returns the bytes of a key; `ValueError` if it is not Z85."""
    # Other characters become backslashes, which are refused without a copy of the text in the error.
    return b85decode(text.encode("ascii", "backslashreplace").translate(_FROM_Z85))


def check_public(text: Any, path: str) -> str:
    """Returns the public key if its format is valid.

    path: the name of the parameter or field that contains it, for the error.

    Raises:
        InvalidArgumentError: It is not 40 characters of Z85.
    """
    if not isinstance(text, str) or not _Z85.fullmatch(text):
        raise InvalidArgumentError(f"{path} must be a public key, 40 characters of Z85, found {text!r}", path=path)
    return text


def write_keys(file: Path, keys: Keys) -> None:
    """Writes a key file with mode 600; raises `FailedPreconditionError` if the file exists."""
    lines = [("name", keys.name), ("public", keys.public), ("secret", keys.secret), ("server", keys.server)]
    text = "# A secret key: a process that can read this file can send requests under its name.\n"
    # Z85 has no single quotes
    text += "".join(f"{name} = '{value}'\n" for name, value in lines if value)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise FailedPreconditionError(f"{file} already exists; keys are never overwritten", path="keys") from None
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as writing:
            os.fchmod(writing.fileno(), 0o600)  # the umask may have removed bits
            writing.write(text)
            writing.flush()
            os.fsync(writing.fileno())
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def read_keys(file: str | os.PathLike[str]) -> Keys:
    """Reads a key file.

    Raises:
        NotFoundError: The file does not exist.
        PermissionDeniedError: Other users can read it, or it belongs to another user.
        InvalidArgumentError: It is not a key file.
    """
    content = read_protected(Path(file), GROUP_AND_OTHERS, "chmod 600")
    try:
        keys = Keys(**tomllib.loads(content.decode()))
        check_public(keys.secret, "secret")
        sound = bool(NAME.fullmatch(keys.name)) and crypto_scalarmult_base(keys.pair.secret) == keys.pair.public
        if keys.server:
            check_public(keys.server, "server")
    except (TypeError, ValueError):  # whose message may contain the secret
        sound = False
    if not sound:
        raise InvalidArgumentError(f"{os.fspath(file)} is not a key file: make one with dyn keys new", path="keys")
    return keys


def read_protected(file: Path, forbidden: int, remedy: str) -> bytes:
    """Returns the content of a file that belongs to this user or root and is protected from other users.

    forbidden: mode bits that must not be set. remedy: the command that clears them, without the path.

    Raises:
        NotFoundError: The file does not exist.
        PermissionDeniedError: It is not protected, or cannot be read.
        InvalidArgumentError: It is not a regular file, or too long.
    """
    try:
        # opening a pipe would block
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {file}", path="keys") from None
    except OSError as fault:
        raise PermissionDeniedError(f"{file} cannot be read: {fault.strerror}", path="keys") from None
    try:
        check_protected(file, os.fstat(descriptor), forbidden, remedy, "keys")
    except BaseException:
        os.close(descriptor)
        raise
    with os.fdopen(descriptor, "rb") as reading:
        content = reading.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise InvalidArgumentError(f"{file} is longer than {_MAX_BYTES} bytes", path="keys")
    return content


def check_protected(file: Path, status: os.stat_result, forbidden: int, remedy: str, path: str) -> None:
    """Checks that a file is regular, belongs to this user or root, and is protected from other users.

    file: its path, for the error. status: of the open file. forbidden, remedy: as for `read_protected`. path: the name
    of the parameter that specifies the file, for the error.

    Raises:
        PermissionDeniedError: It is open to other users, or belongs to one.
        InvalidArgumentError: It is not a regular file.
    """
    if not stat.S_ISREG(status.st_mode):
        raise InvalidArgumentError(f"{file} is not a regular file", path=path)
    check_file_owner(file, status, path)
    if status.st_mode & forbidden:
        mode = stat.S_IMODE(status.st_mode)
        raise PermissionDeniedError(f"{file} has mode {mode:04o}, open to others: {remedy} {file}", path=path)


def check_file_owner(file: Path, status: os.stat_result, path: str) -> None:
    """Raises `PermissionDeniedError` unless a file or folder belongs to this user or root."""
    if hasattr(os, "geteuid") and status.st_uid not in (os.geteuid(), 0):
        raise PermissionDeniedError(f"{file} belongs to user {status.st_uid}, expected {os.geteuid()}", path=path)


def client_keys(keys: KeySource, server_key: str | None = None) -> Keys:
    """Returns a client's keys with the public key of its server.

    keys: the path of the client's key file, or its `Keys`. server_key: the server's public key; None: as in the file.

    Raises:
        InvalidArgumentError: The server's key is missing or invalid, or the file is not a key file.
        NotFoundError: The file does not exist.
        PermissionDeniedError: Other users can read it.
    """
    # an error about a missing file would print the secret key
    if isinstance(keys, str) and "\n" in keys:
        raise InvalidArgumentError("keys must be the path of a key file or `Keys`, found a text of lines", path="keys")
    client = keys if isinstance(keys, Keys) else read_keys(keys)
    server = check_public(server_key, "server_key") if server_key is not None else client.server
    if not server:
        raise InvalidArgumentError(
            f"the key '{client.name}' names no server: specify the server's public key by server_key or --server-key",
            path="server_key",
        )
    return Keys(client.name, client.public, client.secret, server)

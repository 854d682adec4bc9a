"""CURVE keys in files: who a client is, and which server it means.

    name = "panda-arm"        # a key file, TOML; nobody but its owner may read it
    public = "..."            # 40 characters of Z85, as all keys
    secret = "..."
    server = "..."            # the public key of the server that it is for; not in the server's own file

Whoever has the file may ask in its name. So it is made readable to its owner alone from its first byte on, and a file
that others can read is refused with the command that mends it.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq

from dyn_service.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    UnimplementedError,
)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""What a key may be called: it becomes a file name, and a word of a line."""

OTHERS = stat.S_IRWXG | stat.S_IRWXO
"""What a file's mode grants to others than its owner."""

_Z85 = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_MOST_BYTES = 1 << 20
"""Longest file of keys: some ten thousand of them."""


@dataclass(frozen=True)
class Keys:
    """A key pair. server: the public key of the server that a client means; empty in the server's own."""

    name: str
    public: str
    secret: str = field(repr=False)
    server: str = ""


KeySource = str | os.PathLike[str] | Keys
"""Where a client's keys come from: the path of a key file, or what was read from one."""


def make_keys(name: str, server: str = "") -> Keys:
    """A new key pair.

    Raises:
        InvalidArgumentError: The name cannot be one.
        UnimplementedError: This ZeroMQ was built without encryption.
    """
    if not NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"the name of a key must be up to 64 letters, digits, '.', '_' and '-', found '{name}'", path="name"
        )
    if not zmq.has("curve"):
        raise UnimplementedError("this ZeroMQ library was built without CURVE, so there can be no keys")
    public, secret = zmq.curve_keypair()
    return Keys(name, public.decode(), secret.decode(), server)


def check_public(text: Any, path: str) -> str:
    """The public key, if it looks like one.

    Raises:
        InvalidArgumentError: It does not; `path` says where it stands.
    """
    if not isinstance(text, str) or not _Z85.fullmatch(text):
        raise InvalidArgumentError(f"{path} must be a public key, 40 characters of Z85, found {text!r}", path=path)
    return text


def write_keys(file: Path, keys: Keys) -> None:
    """Writes a key file that its owner alone may read.

    Raises:
        FailedPreconditionError: There is such a file already; it is left alone.
    """
    lines = [("name", keys.name), ("public", keys.public), ("secret", keys.secret), ("server", keys.server)]
    text = "# A secret key: whoever can read this file may ask in its name.\n"
    text += "".join(f"{name} = '{value}'\n" for name, value in lines if value)  # Z85 has no quotes of this kind
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise FailedPreconditionError(f"{file} already exists, and a key is never overwritten", path="keys") from None
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as writing:
            os.fchmod(writing.fileno(), 0o600)  # whatever an odd umask took away
            writing.write(text)
            writing.flush()
            os.fsync(writing.fileno())
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def read_keys(file: str | os.PathLike[str]) -> Keys:
    """The keys in a file.

    Raises:
        NotFoundError: There is no such file.
        PermissionDeniedError: Others may read it, or it is another user's.
        InvalidArgumentError: It is no key file.
    """
    content = read_guarded(Path(file), OTHERS, "chmod 600")
    try:
        keys = Keys(**tomllib.loads(content.decode()))
        check_public(keys.secret, "secret")
        sound = bool(NAME.fullmatch(keys.name)) and zmq.curve_public(keys.secret.encode()).decode() == keys.public
        if keys.server:
            check_public(keys.server, "server")
    except (TypeError, ValueError):  # whose message may hold the secret
        sound = False
    if not sound:
        raise InvalidArgumentError(f"{os.fspath(file)} is no key file: make one with dyn keys new", path="keys")
    return keys


def read_guarded(file: Path, forbidden: int, remedy: str) -> bytes:
    """The content of a file that is this user's (or root's), and not open to others.

    Args:
        file: Which.
        forbidden: The bits of its mode that may not be set.
        remedy: The command that takes them away.

    Raises:
        NotFoundError: There is no such file.
        PermissionDeniedError: It is not guarded, or cannot be read.
        InvalidArgumentError: It is no regular file, or too long.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a pipe would wait for its writer
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {file}", path="keys") from None
    except OSError as fault:
        raise PermissionDeniedError(f"{file} cannot be read: {fault.strerror}", path="keys") from None
    try:
        check_guarded(file, os.fstat(descriptor), forbidden, remedy, "keys")
    except BaseException:
        os.close(descriptor)
        raise
    with os.fdopen(descriptor, "rb") as reading:
        content = reading.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise InvalidArgumentError(f"{file} is longer than {_MOST_BYTES} bytes", path="keys")
    return content


def check_guarded(file: Path, status: os.stat_result, forbidden: int, remedy: str, path: str) -> None:
    """Sees to it that a file is a regular one of this user (or root), and not open to others.

    Args:
        file: Which.
        status: Of the open file.
        forbidden: The bits of its mode that may not be set.
        remedy: The command that takes them away.
        path: Which parameter names it.

    Raises:
        PermissionDeniedError: It is open to others, or another user's.
        InvalidArgumentError: It is no regular file.
    """
    if not stat.S_ISREG(status.st_mode):
        raise InvalidArgumentError(f"{file} is no regular file", path=path)
    check_owner(file, status, path)
    if status.st_mode & forbidden:
        mode = stat.S_IMODE(status.st_mode)
        raise PermissionDeniedError(f"{file} has mode {mode:04o}, open to others: {remedy} {file}", path=path)


def check_owner(file: Path, status: os.stat_result, path: str) -> None:
    """Sees to it that a file or folder belongs to this user, or to root.

    Raises:
        PermissionDeniedError: It does not.
    """
    if hasattr(os, "geteuid") and status.st_uid not in (os.geteuid(), 0):
        raise PermissionDeniedError(f"{file} belongs to user {status.st_uid}, expected {os.geteuid()}", path=path)


def client_keys(keys: KeySource, server_key: str | None = None) -> Keys:
    """What a client needs to speak to a server with keys.

    Args:
        keys: The client's key file, or what was read from one.
        server_key: The server's public key; None: it is in the file.

    Raises:
        InvalidArgumentError: Nothing says which server is meant, or the file is no key file.
        NotFoundError: There is no such file.
        PermissionDeniedError: Others may read it.
    """
    found = keys if isinstance(keys, Keys) else read_keys(keys)
    server = check_public(server_key, "server_key") if server_key is not None else found.server
    if not server:
        raise InvalidArgumentError(
            f"the key '{found.name}' does not say which server it is for: give the server's public key, by server_key "
            "or --server-key",
            path="server_key",
        )
    return Keys(found.name, found.public, found.secret, server)


def use_keys(socket: zmq.Socket[Any], keys: Keys) -> None:
    """Has a client's socket prove who it is, and speak to the server with this key alone; before it connects."""
    socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server.encode())
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())

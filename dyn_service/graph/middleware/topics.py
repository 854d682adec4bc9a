"""Names of topics and the endpoints behind them.

A topic such as `joint_states` lies in its node's namespace (`/arm/joint_states`) and may be remapped (`-r a:=b`). Its
publishers listen at sockets of their own, `ipc://FOLDER/arm.joint_states@arm.plant.TOKEN`, and are found by `graph`.
FOLDER is `$DYN_RUNTIME_DIR`, which the launcher sets to a folder of its own that only its user can enter; without a
launcher it is a folder per user. A parameter or remap that is already an endpoint (`tcp://127.0.0.1:7001`) is taken as
it is. A name too long for a socket's path is shortened, in one way by all who use it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import zmq

from dyn_service.errors import InvalidArgumentError, PermissionDeniedError
from dyn_service.service.protocol.sockets import check_port
from dyn_service.support.arguments import full_name

RUNTIME_DIR = "DYN_RUNTIME_DIR"
MAX_IPC_PATH = 103
"""Bytes: what a unix socket's address holds on every system, less its terminator."""
_DIGEST = 12
"""Characters of the digest that ends a shortened name."""


def runtime_dir(environment: Mapping[str, str] | None = None) -> Path:
    """The folder in which topics live; made, for its owner only, where the launcher did not.

    Raises:
        PermissionDeniedError: The folder belongs to someone else or others can write to it, or cannot be made.
    """
    variables = os.environ if environment is None else environment
    given = variables.get(RUNTIME_DIR)
    if given:
        return check_owner(Path(given))
    base = variables.get("XDG_RUNTIME_DIR", "")
    if not os.path.isdir(base):  # a shell got by su, or a container, names one that nobody made
        base = tempfile.gettempdir()
    folder = Path(base) / f"dyn_service-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise PermissionDeniedError(f"folder {str(folder)!r} cannot be made: {error.strerror}") from None
    return check_owner(folder)


def check_owner(folder: Path) -> Path:
    """The folder, if it is this user's and nobody else can write to it.

    Raises:
        PermissionDeniedError: It is not so, or there is no such folder.
    """
    try:
        found = folder.lstat()
    except OSError as error:
        raise PermissionDeniedError(f"folder {str(folder)!r} cannot be used: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionDeniedError(
            f"folder {str(folder)!r} belongs to another user or can be written by others: remove it"
        )
    return folder


def endpoint(topic: str, namespace: str, remaps: Mapping[str, str], folder: Path) -> str:
    """The ZeroMQ endpoint of a topic.

    Raises:
        InvalidArgumentError: The name is empty, the folder's path leaves no room for one, or it is an endpoint that is
            open to every user of this machine.
    """
    name, written = place(topic, namespace, remaps)
    return written or socket_file(name, folder)


def place(topic: str, namespace: str, remaps: Mapping[str, str]) -> tuple[str, str]:
    """The full name of a topic, and the endpoint that is written down for it, or nothing. One that is given as an
    endpoint is called by it.

    Raises:
        InvalidArgumentError: The name is empty, or the endpoint is open to every user of this machine.
    """
    if "://" in topic:
        return topic, _written_out(topic)
    name = _resolve(topic, namespace)
    for source, target in remaps.items():
        if _resolve(source, namespace) == name:
            return (name, _written_out(target)) if "://" in target else (_resolve(target, namespace), "")
    return name, ""


def socket_file(name: str, folder: Path) -> str:
    """The endpoint of a file in the folder; slashes of the name become dots.

    Raises:
        InvalidArgumentError: The folder's path leaves no room for a name.
    """
    return f"ipc://{folder}/{_fitting(name.strip('/').replace('/', '.'), folder)}"


def check_name(what: str, name: str) -> None:
    """Refuses what is no name of a node or a topic: others print it to a terminal, and files are called by it.

    Raises:
        InvalidArgumentError: It is empty, or has characters that cannot be seen.
    """
    if not name.strip("/"):
        raise InvalidArgumentError(f"{what} {name!r} has no name")
    if not name.isprintable():
        raise InvalidArgumentError(f"{what} {name!r}: expected a name of characters that can be seen")


def listen(socket: zmq.Socket[Any], where: str) -> None:
    """Binds the socket; the file of an ipc endpoint is its owner's only, from its first moment on."""
    before = os.umask(0o177)
    try:
        socket.bind(where)
    finally:
        os.umask(before)


def remove_file(where: str) -> None:
    """Removes the file of an ipc endpoint that nobody listens at any more; ZeroMQ may leave it behind."""
    with contextlib.suppress(OSError):
        os.unlink(where.removeprefix("ipc://"))


def _written_out(where: str) -> str:
    if where.startswith("ipc://@"):
        raise InvalidArgumentError(f"{where!r} is open to every user of this machine: name a file, ipc:///path")
    return check_port(where, "topic")


def _fitting(name: str, folder: Path) -> str:
    """The name, cut and ended by its digest where the socket's path would be too long."""
    room = MAX_IPC_PATH - len(os.fsencode(folder)) - 1
    if len(os.fsencode(name)) <= room:
        return name
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:_DIGEST]
    kept = os.fsdecode(os.fsencode(name)[: max(0, room - _DIGEST - 1)])
    if room <= _DIGEST:
        raise InvalidArgumentError(
            f"folder {str(folder)!r}: a socket's path holds {MAX_IPC_PATH} bytes, which leaves no room for a topic"
        )
    return f"{kept}-{digest}"


def _resolve(topic: str, namespace: str) -> str:
    check_name("topic", topic)
    return full_name("/", topic) if topic.startswith("/") else full_name(namespace, topic)

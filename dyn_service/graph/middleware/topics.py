"""Names of topics and their endpoints.

A topic such as `joint_states` is in its node's namespace (`/arm/joint_states`) and may be remapped (`-r a:=b`). Each
publisher binds its own socket, `ipc://FOLDER/arm.joint_states@arm.plant.TOKEN`, which subscribers find by `graph`.
FOLDER is `$DYN_RUNTIME_DIR`, which the launcher sets to a private folder, else a folder per user. A parameter or remap
that is an endpoint (`tcp://127.0.0.1:7001`) is used unchanged. Names too long for a socket's path are shortened
deterministically.
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
from dyn_service.service.protocol.endpoints import check_port
from dyn_service.support.arguments import full_name

RUNTIME_DIR = "DYN_RUNTIME_DIR"
LATCHED = ("robot_description", "tf_static")
"""Topics that late subscribers get as well, by the last part of their names."""
MAX_IPC_PATH = 103
"""Longest path of a unix socket, in bytes, on all systems, without the terminator."""
_DIGEST = 12
"""Length of the digest at the end of a shortened name."""


def runtime_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Returns the folder of the topics' sockets; creates the user's own, for its owner only, if there is no launcher.

    Raises:
        PermissionDeniedError: The folder belongs to another user, others can write to it, or it cannot be created.
    """
    folder_name = environment.get(RUNTIME_DIR)
    if folder_name:
        return check_owner(Path(folder_name))
    base = environment.get("XDG_RUNTIME_DIR", "")
    if not os.path.isdir(base):  # under su or in a container it may not exist
        base = tempfile.gettempdir()
    folder = Path(base) / f"dyn_service-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise PermissionDeniedError(f"folder {str(folder)!r} cannot be made: {error.strerror}") from None
    return check_owner(folder)


def check_owner(folder: Path) -> Path:
    """Returns the folder after checking that it is this user's and only this user can write to it."""
    try:
        status = folder.lstat()
    except OSError as error:
        raise PermissionDeniedError(f"folder {str(folder)!r} cannot be used: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionDeniedError(f"folder {str(folder)!r} is another user's or can be written by others: remove it")
    return folder


def endpoint(topic: str, namespace: str, remaps: Mapping[str, str], folder: Path) -> str:
    """Returns the ZeroMQ endpoint of a topic."""
    name, explicit_endpoint = place(topic, namespace, remaps)
    return explicit_endpoint or socket_file(name, folder)


def place(topic: str, namespace: str, remaps: Mapping[str, str]) -> tuple[str, str]:
    """Returns the full name of a topic, and its given endpoint or an empty string. A topic given as an endpoint has
    that endpoint as its name.

    Raises:
        InvalidArgumentError: The name is empty, or the endpoint is open to every user of this machine.
    """
    if "://" in topic:
        return topic, _checked(topic)
    name = _resolve(topic, namespace)
    for source, target in remaps.items():
        if _resolve(source, namespace) == name:
            return (name, _checked(target)) if "://" in target else (_resolve(target, namespace), "")
    return name, ""


def socket_file(name: str, folder: Path) -> str:
    """Returns the ipc endpoint of a file in the folder; slashes in the name become dots."""
    return f"ipc://{folder}/{_shortened(name.strip('/').replace('/', '.'), folder)}"


def is_latched(topic: str) -> bool:
    """Returns whether late subscribers of a topic get its last message."""
    return topic.rpartition("/")[2] in LATCHED


def check_name(kind: str, name: str) -> None:
    """Checks the name of a node or topic, which is printed to terminals and used in file names."""
    if not name.strip("/"):
        raise InvalidArgumentError(f"{kind} {name!r} has no name")
    if not name.isprintable():
        raise InvalidArgumentError(f"{kind} {name!r}: expected a name of printable characters")


def listen(socket: zmq.Socket[Any], endpoint: str) -> None:
    """Binds the socket; the file of an ipc endpoint is created accessible to its owner only."""
    # a chmod after `bind` would leave a moment in which others can connect
    umask = os.umask(0o177)
    try:
        socket.bind(endpoint)
    finally:
        os.umask(umask)


def remove_file(endpoint: str) -> None:
    """Removes the file of a closed ipc endpoint, which ZeroMQ may leave behind."""
    with contextlib.suppress(OSError):
        os.unlink(endpoint.removeprefix("ipc://"))


def _checked(endpoint: str) -> str:
    if endpoint.startswith("ipc://@"):
        raise InvalidArgumentError(f"{endpoint!r} is open to every user of this machine: name a file, ipc:///path")
    return check_port(endpoint, "topic")


def _shortened(name: str, folder: Path) -> str:
    """Returns the name, shortened and ended by its digest if the socket's path would be too long."""
    room = MAX_IPC_PATH - len(os.fsencode(folder)) - 1
    if len(os.fsencode(name)) <= room:
        return name
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:_DIGEST]
    beginning = os.fsdecode(os.fsencode(name)[: max(0, room - _DIGEST - 1)])
    if room <= _DIGEST:
        raise InvalidArgumentError(
            f"folder {str(folder)!r}: a socket's path holds {MAX_IPC_PATH} bytes, which leaves no room for a topic"
        )
    return f"{beginning}-{digest}"


def _resolve(topic: str, namespace: str) -> str:
    check_name("topic", topic)
    return full_name("/", topic) if topic.startswith("/") else full_name(namespace, topic)

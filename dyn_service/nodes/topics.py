"""Names of topics and the endpoints behind them.

A topic such as `joint_states` lies in its node's namespace (`/arm/joint_states`), may be remapped (`-r a:=b`), and is a
ZeroMQ socket at `ipc://FOLDER/arm.joint_states`. FOLDER is `$DYN_RUNTIME_DIR`, which the launcher sets to a folder of
its own that only its user can enter; without a launcher it is a folder per user. A parameter or remap that is already
an endpoint (`tcp://127.0.0.1:7001`) is taken as it is.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from dyn_service.config.arguments import full_name
from dyn_service.errors import InvalidArgumentError, PermissionDeniedError

RUNTIME_DIR = "DYN_RUNTIME_DIR"
_MAX_IPC_PATH = 103
"""Bytes: what a unix socket's address holds on every system, less its terminator."""


def runtime_dir(environment: Mapping[str, str] | None = None) -> Path:
    """The folder in which topics live; made, for its owner only, where the launcher did not.

    Raises:
        PermissionDeniedError: The folder belongs to someone else or others can write to it.
    """
    variables = os.environ if environment is None else environment
    given = variables.get(RUNTIME_DIR)
    if given:
        return Path(given)
    base = variables.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(base) / f"dyn_service-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionDeniedError(f"folder {str(folder)!r} can be written by others: remove it")
    return folder


def endpoint(topic: str, namespace: str, remaps: Mapping[str, str], folder: Path) -> str:
    """The ZeroMQ endpoint of a topic.

    Raises:
        InvalidArgumentError: The name is empty, or its socket's path is longer than the system allows.
    """
    if "://" in topic:
        return topic
    name = _resolve(topic, namespace)
    for source, target in remaps.items():
        if _resolve(source, namespace) == name:
            if "://" in target:
                return target
            name = _resolve(target, namespace)
            break
    path = str(folder / name.strip("/").replace("/", "."))
    if len(os.fsencode(path)) > _MAX_IPC_PATH:
        raise InvalidArgumentError(f"topic {topic!r}: its socket's path {path!r} is longer than {_MAX_IPC_PATH} bytes")
    return f"ipc://{path}"


def _resolve(topic: str, namespace: str) -> str:
    if not topic.strip("/"):
        raise InvalidArgumentError(f"topic {topic!r} has no name")
    return full_name("/", topic) if topic.startswith("/") else full_name(namespace, topic)

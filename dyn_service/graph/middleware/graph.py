"""The graph of nodes: which nodes exist, what they publish and serve. One file per node, no broker, no configuration.

A node writes `FOLDER/graph/NAME.TOKEN.node` when it starts (FOLDER is `topics.runtime_dir`) and holds an flock on it.
The system releases the lock when the process ends, however it ends: a file with a free lock belongs to a dead node, and
any reader removes it with the sockets left behind. Each change writes a new file and renames it, so that readers never
see half a file and the folder's modification time shows the change.

A launch has its own folder. Its launcher puts a link to it into the user's folder, under `launches`, so that
`dyn topic list` in another terminal finds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from dyn_service.errors import DynError, UnavailableError
from dyn_service.graph.middleware.topics import RUNTIME_DIR, check_owner, runtime_dir

SCHEMA = 1
MAX_BYTES = 1 << 20
"""Size limit of a node's file; a hundred topics need about 12 kB."""
MAX_NODES = 1000
"""Limit of one graph; further files are not read."""
_FOLDER, _LAUNCHES, _SUFFIX = "graph", "launches", ".node"
_NAME_CHARACTERS = 64
"""Characters of a node's name in its file's name; only the content counts."""
_UNSETTLED_NS = 50_000_000
"""A folder changed more recently than this may change again within one tick of the file system's clock."""
_ABANDONED_S = 60.0
"""Age from which a temporary file that was never renamed is removed."""


class End(msgspec.Struct, frozen=True):
    """A node's end of a topic or service.

    name: the full name, `/arm/joint_states`. type: `sensor_msgs/msg/JointState`. endpoint: where it is bound; empty if
    it connects to others.
    """

    name: str
    type: str
    endpoint: str = ""


class NodeEntry(msgspec.Struct, frozen=True):
    """Registration of a node. name: the full name. token: unique to this run. state: of its lifecycle. answers_at:
    endpoints of its dynamics server, if it is one.
    """

    name: str
    pid: int
    token: str
    state: str = "unconfigured"
    publishers: tuple[End, ...] = ()
    subscriptions: tuple[End, ...] = ()
    services: tuple[End, ...] = ()
    v: int = SCHEMA
    answers_at: tuple[str, ...] = ()


_DECODER = msgspec.json.Decoder(NodeEntry)


def new_token() -> str:
    """Returns a token for a new node."""
    return secrets.token_hex(4)


class Registration:
    """A node's file, which exists until `close` or the end of the process."""

    def __init__(self, folder: Path, entry: NodeEntry) -> None:
        self.folder = graph_folder(folder)
        readable = re.sub(r"[^\w.-]", "_", entry.name.replace("/", "."), flags=re.ASCII).strip(".")[:_NAME_CHARACTERS]
        self.path = self.folder / f"{readable or '_'}.{entry.token}{_SUFFIX}"
        self._descriptor = -1
        self.write(entry)

    def write(self, entry: NodeEntry) -> None:
        """Replaces the registered entry."""
        temporary = self.path.with_name(f".{self.path.name}")
        try:
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                # locked before the rename, so that no reader sees the file of a living node unlocked
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                data = msgspec.json.encode(entry)
                while data:
                    data = data[os.write(descriptor, data) :]
                os.rename(temporary, self.path)
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            folder = str(self.folder)
            place = f"node {entry.name!r} cannot be registered in {folder!r}"
            raise UnavailableError(f"{place}: {error.strerror}") from None
        self._release()
        self._descriptor = descriptor

    def close(self) -> None:
        """Takes the node out of the graph."""
        with contextlib.suppress(OSError):  # the launcher may have removed the folder
            self.path.unlink()
        self._release()

    def _release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Graph:
    """The nodes of one folder, read again when they change. Other files, and other users' files, are ignored."""

    def __init__(self, folder: Path) -> None:
        self.runtime = folder
        self.folder = folder / _FOLDER
        self._cache: dict[str, tuple[tuple[int, int, int], NodeEntry | None]] = {}
        self._entries: tuple[NodeEntry, ...] = ()
        self._changed_ns = -1
        self._settled = False

    def changed(self) -> bool:
        """Whether something may have changed since the last call of `nodes`, by the folder's modification time."""
        return not self._settled or self._time_ns() != self._changed_ns

    def nodes(self) -> tuple[NodeEntry, ...]:
        """Returns the living nodes by name, and removes the files and sockets of dead ones."""
        if not self.changed():
            return self._entries
        return self.read()

    def read(self) -> tuple[NodeEntry, ...]:
        """As `nodes`, but always reads: a killed node does not change the folder's modification time."""
        modified_ns = self._time_ns()
        entries, dead = {}, []
        for name in self._names():
            node_file = self._read_file(name)
            if node_file is None:
                continue
            alive, key, entry = node_file
            if alive:
                entries[name] = key, entry
            elif entry is not None:
                dead.append(entry)
        self._cache = entries
        living = [entry for _, entry in entries.values() if entry is not None]
        self._entries = tuple(sorted(living, key=lambda entry: (entry.name, entry.token)))
        self._remove_sockets(dead)
        self._changed_ns = modified_ns
        # the time before reading: a change while it reads must be seen by the next call
        self._settled = time.time_ns() - modified_ns > _UNSETTLED_NS
        return self._entries

    def _time_ns(self) -> int:
        try:
            return os.stat(self.folder).st_mtime_ns
        except OSError:
            return 0

    def _names(self) -> list[str]:
        try:
            names = sorted(name for name in os.listdir(self.folder) if name.endswith(_SUFFIX))
        except OSError:
            return []
        return names[:MAX_NODES]

    def _read_file(self, name: str) -> tuple[bool, tuple[int, int, int], NodeEntry | None] | None:
        """Returns whether the node lives, its file's identity and its entry; None if it is not a node's file."""
        path = self.folder / name
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            status = os.fstat(descriptor)
            # names and endpoints of other users' files would be trusted: subscribers connect to what they say
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
                return None
            is_temporary = name.startswith(".")
            if is_temporary and time.time() - status.st_mtime < _ABANDONED_S:
                return None  # its writer is about to lock it
            # the system releases the lock when the process ends, however it ends; a timeout could not tell a dead node
            # from a slow one
            alive = _is_locked(descriptor)
            if (not alive and not _remove(path, status)) or is_temporary:
                return None
            key = status.st_ino, status.st_mtime_ns, status.st_size
            cached = self._cache.get(name)
            if cached is not None and cached[0] == key:
                return alive, *cached
            return alive, key, _read(descriptor, status.st_size)
        finally:
            os.close(descriptor)

    def _remove_sockets(self, dead: list[NodeEntry]) -> None:
        """Removes sockets of dead nodes in this folder that no living node uses."""
        live_sockets = {path for entry in self._entries for path in _sockets(entry)}
        for path in {path for entry in dead for path in _sockets(entry)} - live_sockets:
            with contextlib.suppress(OSError):
                # an entry is not trusted: only sockets directly in this folder are removed
                if path.parent == self.runtime and stat.S_ISSOCK(path.lstat().st_mode):
                    path.unlink()


def graph_folder(runtime: Path) -> Path:
    """Returns the graph's folder in a runtime folder; creates it for its owner only."""
    folder = runtime / _FOLDER
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UnavailableError(f"folder {str(folder)!r} cannot be made: {error.strerror}") from None
    return check_owner(folder)


def announce_launch(folder: Path, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Links a launch's folder for `runtime_folders`; returns the link, or None if it cannot be made."""
    try:
        home = _user_folder(environment) / _LAUNCHES
        home.mkdir(mode=0o700, exist_ok=True)
        link = check_owner(home) / folder.name
        link.symlink_to(folder, target_is_directory=True)
    except (OSError, DynError):
        return None
    return link


def runtime_folders(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """Returns the runtime folders of this user: only `$DYN_RUNTIME_DIR` if it is set, else the user's own and those of
    running launches. Removes links of ended launches.
    """
    if environment.get(RUNTIME_DIR):
        return [runtime_dir(environment)]
    user_folder = _user_folder(environment)
    return [user_folder, *_launches(user_folder / _LAUNCHES)]


def _user_folder(environment: Mapping[str, str]) -> Path:
    return runtime_dir({name: value for name, value in environment.items() if name != RUNTIME_DIR})


def _launches(home: Path) -> Iterator[Path]:
    try:
        names = sorted(os.listdir(check_owner(home)))
    except (OSError, DynError):
        return
    for name in names[:MAX_NODES]:
        link = home / name
        try:
            folder = home / os.readlink(link)
            yield check_owner(folder)
        except DynError:
            with contextlib.suppress(OSError):
                if not folder.exists():
                    link.unlink()
        except OSError:
            continue  # no link


def _is_locked(descriptor: int) -> bool:
    try:
        # shared: two readers at the same time must not take each other for the node
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _remove(path: Path, status: os.stat_result) -> bool:
    """Removes a dead node's file, unless it was replaced meanwhile; returns whether it was removed."""
    with contextlib.suppress(OSError):
        now = os.lstat(path)
        if (now.st_ino, now.st_dev) == (status.st_ino, status.st_dev):
            path.unlink()
            return True
    return False


def _read(descriptor: int, size: int) -> NodeEntry | None:
    if size > MAX_BYTES:
        return None
    try:
        entry = _DECODER.decode(os.read(descriptor, MAX_BYTES))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return entry if entry.v == SCHEMA and entry.name.startswith("/") else None


def _sockets(entry: NodeEntry) -> set[Path]:
    ends = (*entry.publishers, *entry.subscriptions, *entry.services)
    return {Path(end.endpoint.removeprefix("ipc://")) for end in ends if end.endpoint.startswith("ipc:///")}

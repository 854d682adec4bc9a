"""Which nodes there are, what they publish and answer: one file for each, no broker, no configuration.

A node that begins writes `FOLDER/graph/NAME.TOKEN.node`, FOLDER being where its topics live (`topics.runtime_dir`), and
holds it by an flock. The system lets go of the lock when the process ends, however it ends: a file whose lock is free
is a dead node's, and whoever reads removes it together with the sockets that it left behind. Each change is a new file
that takes the old one's place, so nobody reads half of one, and the folder's time of change tells of it.

A launch has a folder of its own. Its launcher leaves a link to it in the user's own folder, under `launches`, so that
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
"""Of a node's file; one of a hundred topics has some twelve thousand."""
MAX_NODES = 1000
"""Of one graph: files beyond are not read."""
_FOLDER, _LAUNCHES, _SUFFIX = "graph", "launches", ".node"
_KEPT = 64
"""Characters of a node's name in that of its file, for people who look: what counts stands in it."""
_UNSETTLED_NS = 50_000_000
"""A folder changed no longer ago than this may change again within the same tick of its clock."""
_ABANDONED_S = 60.0
"""So old a file that was begun and never put in its place is nobody's."""


class End(msgspec.Struct, frozen=True):
    """What a node has to do with one topic or service.

    name: the full name, `/arm/joint_states`. type: `sensor_msgs/msg/JointState`. endpoint: where it listens; empty for
    what connects to others.
    """

    name: str
    type: str
    endpoint: str = ""


class NodeEntry(msgspec.Struct, frozen=True):
    """What a node says of itself. name: the full name. token: no other run has it. state: see `lifecycle`. answers_at:
    endpoints at which it is a dynamics server, for clients of `docs/protocol.md`.
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
    """A token for a node that begins."""
    return secrets.token_hex(4)


class Registration:
    """A node's own file, there as long as the process lives or until `close`.

    Raises:
        PermissionDeniedError: The folder belongs to another user, or others can write to it.
        UnavailableError: The file cannot be written.
    """

    def __init__(self, folder: Path, entry: NodeEntry) -> None:
        self.folder = graph_folder(folder)
        shown = re.sub(r"[^\w.-]", "_", entry.name.replace("/", "."), flags=re.ASCII).strip(".")[:_KEPT]
        self.path = self.folder / f"{shown or '_'}.{entry.token}{_SUFFIX}"
        self._held = -1
        self.write(entry)

    def write(self, entry: NodeEntry) -> None:
        """Puts what the node says now in the place of what it said.

        Raises:
            UnavailableError: It cannot be written.
        """
        begun = self.path.with_name(f".{self.path.name}")
        try:
            descriptor = os.open(begun, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                data = msgspec.json.encode(entry)
                while data:
                    data = data[os.write(descriptor, data) :]
                os.rename(begun, self.path)
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            where = str(self.folder)
            raise UnavailableError(f"node {entry.name!r} cannot be registered in {where!r}: {error.strerror}") from None
        self._release()
        self._held = descriptor

    def close(self) -> None:
        """Takes the node out of the graph."""
        with contextlib.suppress(OSError):  # the launcher may have removed the folder
            self.path.unlink()
        self._release()

    def _release(self) -> None:
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


class Graph:
    """The nodes of one folder, read again when they change. It takes any file for what it is: one that is no node's,
    another user's, a link or a fifo is passed over.
    """

    def __init__(self, folder: Path) -> None:
        self.runtime = folder
        self.folder = folder / _FOLDER
        self._known: dict[str, tuple[tuple[int, int, int], NodeEntry | None]] = {}
        self._entries: tuple[NodeEntry, ...] = ()
        self._changed_ns = -1
        self._settled = False

    def changed(self) -> bool:
        """Whether something may have changed since `nodes` was last asked: one look at the folder's time of change."""
        return not self._settled or self._time_ns() != self._changed_ns

    def nodes(self) -> tuple[NodeEntry, ...]:
        """The nodes that live, by name. The files and sockets of dead ones are removed."""
        if not self.changed():
            return self._entries
        return self.read()

    def read(self) -> tuple[NodeEntry, ...]:
        """The same, whatever the folder's time says: one that was killed does not change it."""
        before = self._time_ns()
        known, dead = {}, []
        for name in self._names():
            found = self._look_at(name)
            if found is None:
                continue
            alive, key, entry = found
            if alive:
                known[name] = key, entry
            elif entry is not None:
                dead.append(entry)
        self._known = known
        living = [entry for _, entry in known.values() if entry is not None]
        self._entries = tuple(sorted(living, key=lambda entry: (entry.name, entry.token)))
        self._remove_sockets(dead)
        self._changed_ns = before
        self._settled = not dead and time.time_ns() - before > _UNSETTLED_NS
        return self._entries

    def _time_ns(self) -> int:
        try:
            return os.stat(self.folder).st_mtime_ns
        except OSError:
            return 0

    def _names(self) -> list[str]:
        try:
            found = sorted(name for name in os.listdir(self.folder) if name.endswith(_SUFFIX))
        except OSError:
            return []
        return found[:MAX_NODES]

    def _look_at(self, name: str) -> tuple[bool, tuple[int, int, int], NodeEntry | None] | None:
        """Whether the node lives, what its file is, what it says; None for what is no node's file, or gone."""
        path = self.folder / name
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
                return None
            begun = name.startswith(".")
            if begun and time.time() - found.st_mtime < _ABANDONED_S:
                return None  # its writer is about to lock it
            alive = _is_held(descriptor)
            if (not alive and not _remove(path, found)) or begun:
                return None
            key = found.st_ino, found.st_mtime_ns, found.st_size
            known = self._known.get(name)
            return alive, key, known[1] if known is not None and known[0] == key else _read(descriptor, found.st_size)
        finally:
            os.close(descriptor)

    def _remove_sockets(self, dead: list[NodeEntry]) -> None:
        """Removes the sockets of dead nodes, those in this folder that no living one has."""
        used = {path for entry in self._entries for path in _sockets(entry)}
        for path in {path for entry in dead for path in _sockets(entry)} - used:
            with contextlib.suppress(OSError):
                if path.parent == self.runtime and stat.S_ISSOCK(path.lstat().st_mode):
                    path.unlink()


def graph_folder(runtime: Path) -> Path:
    """The folder of the graph in a runtime folder; made, for its owner only.

    Raises:
        PermissionDeniedError: It belongs to another user, or others can write to it.
        UnavailableError: It cannot be made.
    """
    folder = runtime / _FOLDER
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UnavailableError(f"folder {str(folder)!r} cannot be made: {error.strerror}") from None
    return check_owner(folder)


def announce_launch(folder: Path, environment: Mapping[str, str] | None = None) -> Path | None:
    """Leaves a link to a launch's folder where `runtime_folders` looks; None where that cannot be: it is then found
    only by who knows it.
    """
    try:
        home = _own(environment) / _LAUNCHES
        home.mkdir(mode=0o700, exist_ok=True)
        link = check_owner(home) / folder.name
        link.symlink_to(folder, target_is_directory=True)
    except (OSError, DynError):
        return None
    return link


def runtime_folders(environment: Mapping[str, str] | None = None) -> list[Path]:
    """The folders in which this user's nodes are: that of `$DYN_RUNTIME_DIR` alone where it is set; else the user's own
    and those of running launches. Links of launches that are gone are removed.

    Raises:
        PermissionDeniedError: A folder belongs to another user, or others can write to it.
    """
    variables = os.environ if environment is None else environment
    if variables.get(RUNTIME_DIR):
        return [runtime_dir(variables)]
    own = _own(variables)
    return [own, *_launches(own / _LAUNCHES)]


def _own(environment: Mapping[str, str] | None) -> Path:
    variables = os.environ if environment is None else environment
    return runtime_dir({name: value for name, value in variables.items() if name != RUNTIME_DIR})


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


def _is_held(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _remove(path: Path, found: os.stat_result) -> bool:
    """Removes a dead node's file, unless another one has taken its place meanwhile; whether it did."""
    with contextlib.suppress(OSError):
        now = os.lstat(path)
        if (now.st_ino, now.st_dev) == (found.st_ino, found.st_dev):
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

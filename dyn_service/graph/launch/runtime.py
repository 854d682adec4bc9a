"""The private folder of a launch, and the cleanup process that removes it if the launcher is killed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from dyn_service.errors import DynError, UnavailableError
from dyn_service.graph.launch import runtime
from dyn_service.graph.middleware import topics
from dyn_service.graph.middleware.graph import announce_launch
from dyn_service.graph.middleware.stop import LAUNCHER

GRACE_S = 2.0


def main() -> int:
    """Reads until the pipe ends, then ends the remaining processes; returns the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # these signals are for the launcher
    groups: set[int] = set()
    folder = ""
    for line in sys.stdin:
        text = line.rstrip("\n")
        if text.startswith("dir "):
            folder = text[4:]
        elif text.startswith("+"):
            groups.add(int(text[1:]))
        elif text.startswith("-"):
            groups.discard(int(text[1:]))
    end_groups(groups | started_but_untold(folder), GRACE_S)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def started_but_untold(folder: str) -> set[int]:
    """Returns process groups with the launcher's folder in their environment, for a process that was started just
    before the launcher was killed. Empty if the system does not show environments.
    """
    if not folder:
        return set()
    mark = f"DYN_RUNTIME_DIR={folder}".encode()
    found = set()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if mark in entry.read_bytes().split(b"\0"):
                found.add(os.getpgid(int(entry.parent.name)))
    return found - {os.getpgid(0)}


def end_groups(groups: Iterable[int], grace_s: float) -> None:
    """Sends SIGTERM to the process groups, and SIGKILL after `grace_s` to those that remain."""
    left = {group for group in groups if send(group, signal.SIGTERM)}
    deadline = time.monotonic() + grace_s
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = {group for group in left if send(group, 0)}
    for group in left:
        send(group, signal.SIGKILL)


def send(group: int, number: int) -> bool:
    """Sends a signal to a process group; returns whether the group exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


if __name__ == "__main__":
    raise SystemExit(main())


_ROOM = 48
"""Minimum number of bytes for a socket's name in the folder; longer names are shortened (see `topics`)."""
_LAST = "/tmp"
_PREFIX = "dyn-"
_ADDED = len(_PREFIX) + 8
"""Bytes that `mkdtemp` adds to the path, without the slash."""


class Runtime:
    """The launcher's private folder, which the user's tools find, and the cleanup process.

    pipe: inherited by processes; its other end closes with the launcher, by which nodes detect its exit.

    Args:
        name: The name of the launch; the folder's name starts with it, which identifies launches in lists of nodes.
    """

    def __init__(self, name: str = "") -> None:
        self.folder = make_folder(name=name)
        self.pipe, held = os.pipe()
        self._ends = os.fdopen(self.pipe, "rb"), os.fdopen(held, "wb")
        self._link = announce_launch(self.folder)
        self._cleanup = subprocess.Popen(
            [sys.executable, "-I", "-S", runtime.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self._cleanup.stdin is not None
        self._pipe: IO[str] = self._cleanup.stdin
        self._send(f"dir {self.folder}")

    def group(self, group: int, started: bool) -> None:
        """Reports a process group to the cleanup process."""
        self._send(f"{'+' if started else '-'}{group}")

    def variables(self) -> dict[str, str]:
        """Environment variables with the folder and the pipe."""
        return {
            topics.RUNTIME_DIR: str(self.folder),
            LAUNCHER: f"{self.pipe}:{os.fstat(self.pipe).st_ino}:{runtime.__file__}",
        }

    def close(self) -> None:
        """Lets the cleanup process end remaining processes, and removes the folder."""
        with contextlib.suppress(OSError):
            self._pipe.close()
        self._cleanup.wait()
        for end in self._ends:
            end.close()
        if self._link is not None:
            with contextlib.suppress(OSError):
                self._link.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _send(self, line: str) -> None:
        with contextlib.suppress(OSError):
            self._pipe.write(line + "\n")
            self._pipe.flush()


@contextlib.contextmanager
def private_runtime(name: str = "") -> Iterator[Runtime]:
    """Creates a folder and a cleanup process for the duration of a launch."""
    runtime = Runtime(name)
    try:
        yield runtime
    finally:
        runtime.close()


def make_folder(environment: Mapping[str, str] | None = None, name: str = "") -> Path:
    """Creates a folder with mode 0700 under `$XDG_RUNTIME_DIR` if it belongs to the user, else in the temporary folder.

    Candidates whose path is too long for socket names are skipped; `/tmp` is tried last. The folder's name starts with
    as much of the launch's name as fits.

    Raises:
        UnavailableError: No folder can be created.
    """
    variables = os.environ if environment is None else environment
    bases = [variables.get("XDG_RUNTIME_DIR"), variables.get("TMPDIR"), tempfile.gettempdir(), _LAST]
    faults = []
    for base in dict.fromkeys(path for path in bases if path and os.path.isabs(path)):
        room = topics.MAX_IPC_PATH - (len(os.fsencode(base)) + 1 + _ADDED + 1 + _ROOM)
        if room < 0:
            faults.append(f"{base!r}: paths of sockets in it would be too long")
            continue
        try:
            if base == variables.get("XDG_RUNTIME_DIR"):
                topics.check_owner(Path(base))
            shown = re.sub(r"[^A-Za-z0-9_]+", "-", name)[: max(0, room - 1)]
            prefix = f"{_PREFIX}{shown}-" if shown else _PREFIX
            return topics.check_owner(Path(tempfile.mkdtemp(prefix=prefix, dir=base)))
        except OSError as error:
            faults.append(f"{base!r}: {error.strerror}" if not isinstance(error, DynError) else str(error))
    raise UnavailableError(f"cannot create a folder for the launch's sockets: {'; '.join(faults)}")

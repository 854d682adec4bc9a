"""A launch's own folder, which only its user can enter, and the guard that removes it should the launcher be killed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from dyn_service.errors import DynError, UnavailableError
from dyn_service.graph.launch import orphan_cleanup
from dyn_service.graph.middleware import topics
from dyn_service.graph.middleware.graph import announce_launch
from dyn_service.graph.middleware.stop import LAUNCHER

_ROOM = 48
"""Bytes that a socket's name in the folder may have at least; longer ones are shortened (see `topics`)."""
_LAST = "/tmp"
_PREFIX = "dyn-"
_ADDED = len(_PREFIX) + 8
"""Bytes that `mkdtemp` adds to its parent's path, less the slash."""


class Runtime:
    """The launcher's private folder, which the user's own tools find, and the reaper, should the launcher be killed.

    pipe: what processes inherit; its other end closes with the launcher, by which nodes see that it is gone.

    Args:
        name: Of the launch; its folder's name begins so, by which lists of nodes tell launches apart.
    """

    def __init__(self, name: str = "") -> None:
        self.folder = make_folder(name=name)
        self.pipe, held = os.pipe()
        self._ends = os.fdopen(self.pipe, "rb"), os.fdopen(held, "wb")
        self._link = announce_launch(self.folder)
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", orphan_cleanup.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self._reaper.stdin is not None
        self._pipe: IO[str] = self._reaper.stdin
        self._tell(f"dir {self.folder}")

    def group(self, group: int, started: bool) -> None:
        """Tells the reaper of a process group."""
        self._tell(f"{'+' if started else '-'}{group}")

    def variables(self) -> dict[str, str]:
        """By which processes find the folder and the pipe."""
        return {
            topics.RUNTIME_DIR: str(self.folder),
            LAUNCHER: f"{self.pipe}:{os.fstat(self.pipe).st_ino}:{orphan_cleanup.__file__}",
        }

    def close(self) -> None:
        """Lets the reaper end what may be left, and removes the folder."""
        with contextlib.suppress(OSError):
            self._pipe.close()
        self._reaper.wait()
        for end in self._ends:
            end.close()
        if self._link is not None:
            with contextlib.suppress(OSError):
                self._link.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError):
            self._pipe.write(line + "\n")
            self._pipe.flush()


@contextlib.contextmanager
def private_runtime(name: str = "") -> Iterator[Runtime]:
    """A folder and a reaper for the time of a launch of that name."""
    runtime = Runtime(name)
    try:
        yield runtime
    finally:
        runtime.close()


def make_folder(environment: Mapping[str, str] | None = None, name: str = "") -> Path:
    """A new folder with mode 0700: under `$XDG_RUNTIME_DIR` where it is this user's, else in the temporary folder.

    One whose path would leave too little room for the names of sockets is passed over, `/tmp` is tried last. The
    folder's name begins with as much of the launch's name as there is room for.

    Raises:
        UnavailableError: None can be made.
    """
    variables = os.environ if environment is None else environment
    bases = [variables.get("XDG_RUNTIME_DIR"), variables.get("TMPDIR"), tempfile.gettempdir(), _LAST]
    faults = []
    for base in dict.fromkeys(path for path in bases if path and os.path.isabs(path)):
        room = topics.MAX_IPC_PATH - (len(os.fsencode(base)) + 1 + _ADDED + 1 + _ROOM)
        if room < 0:
            faults.append(f"{base!r} is too long for the sockets in it")
            continue
        try:
            if base == variables.get("XDG_RUNTIME_DIR"):
                topics.check_owner(Path(base))
            shown = re.sub(r"[^A-Za-z0-9_]+", "-", name)[: max(0, room - 1)]
            prefix = f"{_PREFIX}{shown}-" if shown else _PREFIX
            return topics.check_owner(Path(tempfile.mkdtemp(prefix=prefix, dir=base)))
        except OSError as error:
            faults.append(f"{base!r}: {error.strerror}" if not isinstance(error, DynError) else str(error))
    raise UnavailableError(f"no folder can be made for the launch's sockets: {'; '.join(faults)}")

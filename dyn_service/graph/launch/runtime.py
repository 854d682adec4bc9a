"""The private folder of a launch, and the cleanup process that removes it if the launcher is killed."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from dyn_service.errors import DynError, UnavailableError
from dyn_service.graph.launch import orphan_cleanup
from dyn_service.graph.middleware import topics
from dyn_service.graph.middleware.graph import announce_launch
from dyn_service.graph.middleware.stop import LAUNCHER

_SOCKET_BYTES = 48
"""Minimum number of bytes for a socket's name in the folder; longer names are shortened (see `topics`)."""
_LAST_RESORT = "/tmp"
_CLEANUP_S = 10.0
"""Longest wait for the cleanup process, which gives processes two seconds to end."""
_LOG = logging.getLogger(__name__)
_PREFIX = "dyn-"
_SUFFIX_BYTES = len(_PREFIX) + 8
"""Bytes that `mkdtemp` adds to the path, without the slash."""


class Runtime:
    """The launcher's private folder, which the user's tools find, and the cleanup process.

    pipe: inherited by processes; its other end closes with the launcher, by which nodes detect its exit.

    name: The name of the launch; the folder's name starts with it, which identifies launches in lists of nodes.
    """

    def __init__(self, name: str = "") -> None:
        self.folder = make_folder(name=name)
        # a pipe, because the system closes it also when the launcher is killed
        self.pipe, write_end = os.pipe()
        self._ends = os.fdopen(self.pipe, "rb"), os.fdopen(write_end, "wb")
        self._link = announce_launch(self.folder)
        self._cleanup = subprocess.Popen(
            # isolated and without site: it must start in milliseconds and import nothing of the user's folder
            [sys.executable, "-I", "-S", orphan_cleanup.__file__],
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
        pipe = f"{self.pipe}:{os.fstat(self.pipe).st_ino}:{orphan_cleanup.__file__}"
        return {topics.RUNTIME_DIR: str(self.folder), LAUNCHER: pipe}

    def close(self) -> None:
        """Lets the cleanup process end remaining processes, and removes the folder.

        A cleanup process that takes longer than `_CLEANUP_S` is killed, with a warning.
        """
        with contextlib.suppress(OSError):
            self._pipe.close()
        try:
            self._cleanup.wait(_CLEANUP_S)
        except subprocess.TimeoutExpired:
            self._cleanup.kill()
            _LOG.warning("the cleanup of %s took over %g s and was killed: processes may run", self.folder, _CLEANUP_S)
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


def make_folder(environment: Mapping[str, str] = os.environ, name: str = "") -> Path:
    """Creates a folder with mode 0700 under `$XDG_RUNTIME_DIR` if it belongs to the user, else in the temporary folder.

    Candidates whose path is too long for socket names are skipped; `/tmp` is tried last. The folder's name starts with
    as much of the launch's name as fits.
    """
    bases = [environment.get("XDG_RUNTIME_DIR"), environment.get("TMPDIR"), tempfile.gettempdir(), _LAST_RESORT]
    faults = []
    for base in dict.fromkeys(path for path in bases if path and os.path.isabs(path)):
        room = topics.MAX_IPC_PATH - (len(os.fsencode(base)) + 1 + _SUFFIX_BYTES + 1 + _SOCKET_BYTES)
        if room < 0:
            faults.append(f"{base!r}: paths of sockets in it would be too long")
            continue
        try:
            if base == environment.get("XDG_RUNTIME_DIR"):
                topics.check_owner(Path(base))
            readable = re.sub(r"[^A-Za-z0-9_]+", "-", name)[: max(0, room - 1)]
            prefix = f"{_PREFIX}{readable}-" if readable else _PREFIX
            return topics.check_owner(Path(tempfile.mkdtemp(prefix=prefix, dir=base)))
        except OSError as error:
            faults.append(f"{base!r}: {error.strerror}" if not isinstance(error, DynError) else str(error))
    raise UnavailableError(f"cannot create a folder for the launch's sockets: {'; '.join(faults)}")

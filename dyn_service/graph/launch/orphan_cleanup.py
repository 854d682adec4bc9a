"""Orphan cleanup: ends the processes of a launcher that was killed.

It is a process in its own session that reads lines from the launcher through a pipe:

    +1234      process group 1234 was started
    -1234      it has ended
    dir PATH   the launcher's private folder

The pipe ends when the launcher exits or is killed. Remaining process groups get SIGTERM, then SIGKILL, and the folder
is removed. This works on every POSIX system, reaches grandchildren, and needs no fork hook. Only the standard library
is imported, so that it starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

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
    # the launcher may have been killed between starting a process and reporting it
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
    groups = set()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if mark in entry.read_bytes().split(b"\0"):
                groups.add(os.getpgid(int(entry.parent.name)))
    return groups - {os.getpgid(0)}


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

"""Ends what a launcher started when the launcher itself is killed.

A process of its own, in its own session, that reads lines from the launcher through a pipe:

    +1234      process group 1234 was started
    -1234      it has ended
    dir PATH   the launcher's private folder

At the end of the pipe the launcher is gone, killed or done. What groups it left are sent SIGTERM, after a moment
SIGKILL, and the folder is removed. It works on every POSIX system, reaches grandchildren, and needs no fork hook.
It imports nothing but the standard library, so that it starts in milliseconds.
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
    """Reads until the pipe ends, then ends what is left; the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # these are meant for the launcher, which says what to do
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
    """Groups of processes with the launcher's folder in their environment: one that the launcher started at the moment
    it was killed, it could not tell of. Empty where the system shows no environments.
    """
    if not folder:
        return set()
    mark = f"DYN_RUNTIME_DIR={folder}".encode()
    found = set()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            if mark in entry.read_bytes().split(b"\0"):
                found.add(os.getpgid(int(entry.parent.name)))
    return found - {os.getpgid(0)}


def end_groups(groups: Iterable[int], grace_s: float) -> None:
    """Sends SIGTERM to the process groups, and SIGKILL to those that are still there after `grace_s`."""
    left = {group for group in groups if send(group, signal.SIGTERM)}
    deadline = time.monotonic() + grace_s
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = {group for group in left if send(group, 0)}
    for group in left:
        send(group, signal.SIGKILL)


def send(group: int, number: int) -> bool:
    """Sends a signal to a process group; whether there is still such a group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


if __name__ == "__main__":
    raise SystemExit(main())

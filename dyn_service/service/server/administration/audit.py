"""The log of changes: who loaded and unloaded what, when, and with what outcome. The logger is `dyn.audit`.

A line is a JSON object, in a file that is only ever added to and that its owner alone may read:

    {"time": "2026-11-21T23:10:05.123+00:00", "who": "key lab", "query": "load_robot", "robot": "panda",
     "fingerprint": "...", "outcome": "ok"}

An outcome other than `ok` is an error's code, and `cause` its message. Of the refusals of one caller there is a line a
second at most, which says how many were `left_out`: nobody fills a disk with them.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from dyn_service.errors import DynError, InternalError, InvalidArgumentError, PermissionDeniedError
from dyn_service.service.protocol.keys import OTHERS, check_guarded
from dyn_service.service.server.administration.access import Caller

AUDIT = logging.getLogger("dyn.audit")
AUDIT.setLevel(logging.INFO)

_REFUSALS_EVERY_S = 1.0
_MOST_TEXT = 200
"""Characters of a text that are written: names come from strangers."""

_MOST_CALLERS = 1000


class _Refusals:
    """Which refusals are told: for each caller one a second."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int]] = {}
        self._turn = threading.Lock()

    def left_out(self, who: str) -> int | None:
        """How many were left out before this one, which is told; None: it is left out too."""
        now = time.monotonic()
        with self._turn:
            told, count = self._last.get(who, (-_REFUSALS_EVERY_S, 0))
            if now - told < _REFUSALS_EVERY_S:
                self._last[who] = (told, count + 1)
                return None
            if len(self._last) >= _MOST_CALLERS:
                self._last.clear()
            self._last[who] = (now, 0)
            return count


_refusals = _Refusals()


class Change(msgspec.Struct):
    """What a caller changed, or was not allowed or not able to.

    who: the caller's name. fingerprint: of the robot that was loaded or unloaded. cause: of a refusal.
    """

    who: str
    query: str
    robot: str | None
    outcome: str
    fingerprint: str | None = None
    cause: str | None = None


def record_done(caller: Caller, query: str, robot: str, fingerprint: str) -> None:
    """Writes that a robot was loaded or unloaded, and by whom."""
    tell(Change(caller.name, query, robot, "ok", fingerprint))


def record_refused(caller: Caller, query: str, robot: Any, fault: Exception) -> None:
    """Writes that a change was asked for in vain.

    Args:
        caller: By whom.
        query: The query.
        robot: The robot's name as it was asked for, if it was.
        fault: Why.
    """
    code, cause = (fault.code, fault.message) if isinstance(fault, DynError) else (InternalError.code, "")
    name = robot[:_MOST_TEXT] if isinstance(robot, str) else None
    tell(Change(caller.name, query, name, code, cause=cause[:_MOST_TEXT]))


def write(change: Change) -> None:
    """Writes a line, but of a caller's refusals one a second."""
    left_out = 0 if change.outcome == "ok" else _refusals.left_out(change.who)
    if left_out is None:
        return
    when = datetime.now(UTC).isoformat(timespec="milliseconds")
    said = {name: value for name, value in msgspec.structs.asdict(change).items() if value is not None}
    AUDIT.info(json.dumps({"time": when, **said, **({"left_out": left_out} if left_out else {})}))


tell: Callable[[Change], None] = write
"""Takes each change. A worker process sends it to the process that serves, which alone knows what was written."""


def open_audit(file: Path) -> logging.Handler:
    """Has changes written to a file from now on.

    Returns:
        What writes, to be closed by `close_audit`.

    Raises:
        PermissionDeniedError: The file cannot be written, or others may read or write it.
        InvalidArgumentError: It is no regular file.
    """
    handler = _AuditFile(file)
    AUDIT.addHandler(handler)
    return handler


def close_audit(handler: logging.Handler) -> None:
    """Ends what `open_audit` began."""
    AUDIT.removeHandler(handler)
    handler.close()


class _AuditFile(logging.Handler):
    """Adds lines to a file, each with one call: what others write to it is never torn apart."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        self._failed = self._torn = False
        self._descriptor = -1
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
            self._descriptor = os.open(file, flags, 0o600)
            status = os.fstat(self._descriptor)
        except OSError as fault:
            raise PermissionDeniedError(f"{file} cannot be written: {fault.strerror}", path="audit") from None
        try:
            check_guarded(file, status, OTHERS, "chmod 600", "audit")
        except (PermissionDeniedError, InvalidArgumentError):
            self.close()
            raise

    def emit(self, record: logging.LogRecord) -> None:
        """Adds a line. A full disk ends neither the server nor the request; it is said once, and when it is over."""
        line = b"\n" * self._torn + (record.getMessage() + "\n").encode()
        try:
            written = os.write(self._descriptor, line)
            failed = self._torn = written != len(line)
            cause = "the disk is full"
        except OSError as fault:
            failed, cause = True, str(fault.strerror)
        if failed and not self._failed:
            print(f"changes are not written to {self._file}: {cause}", file=sys.stderr, flush=True)
        self._failed = failed

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        super().close()

"""The audit log: which client loaded or unloaded which robot, when, and the result. Its logger is `dyn.audit`.

Each line is a JSON object, appended to a file that only its owner may read:

    {"time": "2026-11-21T23:10:05.123+00:00", "who": "key lab", "query": "load_robot", "robot": "panda",
     "fingerprint": "...", "outcome": "ok"}

An outcome other than `ok` is an error code; `cause` is its message. At most one refusal per caller and second is
logged, with the number of those `left_out`, so that no client can fill the disk.
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
from dyn_service.service.protocol.keys import GROUP_AND_OTHERS, check_protected
from dyn_service.service.server.administration.access import Caller

AUDIT = logging.getLogger("dyn.audit")
AUDIT.setLevel(logging.INFO)

_REFUSALS_EVERY_S = 1.0
_MAX_TEXT = 200  # maximum number of characters logged of a text that a client sent

_MAX_CALLERS = 1000


class _Refusals:
    """Limits logged refusals to one per caller and second."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int]] = {}
        self._turn = threading.Lock()

    def skipped(self, caller: str) -> int | None:
        """Returns the number of refusals skipped before this one, or None if this one is skipped too."""
        now = time.monotonic()
        with self._turn:
            logged_s, count = self._last.get(caller, (-_REFUSALS_EVERY_S, 0))
            if now - logged_s < _REFUSALS_EVERY_S:
                self._last[caller] = (logged_s, count + 1)
                return None
            if len(self._last) >= _MAX_CALLERS:
                self._last.clear()
            self._last[caller] = (now, 0)
            return count


_refusals = _Refusals()


class Change(msgspec.Struct):
    """An entry of the audit log.

    who: name of the caller. fingerprint: of the robot that was loaded or unloaded. cause: why the change was refused.
    """

    who: str
    query: str
    robot: str | None
    outcome: str
    fingerprint: str | None = None
    cause: str | None = None


def record_done(caller: Caller, query: str, robot: str, fingerprint: str) -> None:
    """Records that a caller loaded or unloaded a robot."""
    record(Change(caller.name, query, robot, "ok", fingerprint))


def record_refused(caller: Caller, query: str, robot: Any, fault: Exception) -> None:
    """Records a change to a robot of this name, if any, that was refused or failed."""
    code, cause = (fault.code, fault.message) if isinstance(fault, DynError) else (InternalError.code, "")
    name = robot[:_MAX_TEXT] if isinstance(robot, str) else None
    record(Change(caller.name, query, name, code, cause=cause[:_MAX_TEXT]))


def write(change: Change) -> None:
    """Writes an entry, but at most one refusal per caller and second."""
    skipped = 0 if change.outcome == "ok" else _refusals.skipped(change.who)
    if skipped is None:
        return
    time_utc = datetime.now(UTC).isoformat(timespec="milliseconds")
    fields = {name: value for name, value in msgspec.structs.asdict(change).items() if value is not None}
    AUDIT.info(json.dumps({"time": time_utc, **fields, **({"left_out": skipped} if skipped else {})}))


record: Callable[[Change], None] = write
"""Receives each change. In a worker process it sends the change to the server's process, which logs it."""


class AuditFile(logging.Handler):
    """Writes changes to a file until it is closed.

    Raises:
        PermissionDeniedError: The file cannot be written, or other users may read or write it.
        InvalidArgumentError: It is not a regular file.
    """

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
            check_protected(file, status, GROUP_AND_OTHERS, "chmod 600", "audit")
        except (PermissionDeniedError, InvalidArgumentError):
            self.close()
            raise
        AUDIT.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Appends a line. A full disk fails no request; it is reported once on stderr."""
        # in a single write, so that lines of several processes do not mix
        line = b"\n" * self._torn + (record.getMessage() + "\n").encode()
        try:
            count = os.write(self._descriptor, line)
            failed = self._torn = count != len(line)
            cause = "the disk is full"
        except OSError as fault:
            failed, cause = True, str(fault.strerror)
        if failed and not self._failed:
            print(f"changes are not written to {self._file}: {cause}", file=sys.stderr, flush=True)
        self._failed = failed

    def close(self) -> None:
        """Closes the file."""
        AUDIT.removeHandler(self)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        super().close()

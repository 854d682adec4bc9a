"""SIGINT during startup: exit with status 130 instead of the traceback of an import.

Programs call these functions first; the library itself installs no signal handlers.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

_STATUS = 128 + signal.SIGINT
_IMPORTS = "<frozen importlib"


def end_at_once() -> None:
    """Makes SIGINT end the process at once."""
    signal.signal(signal.SIGINT, _end)


def raise_outside_of_imports() -> None:
    """Makes SIGINT raise KeyboardInterrupt, or end the process during an import, which could swallow the exception."""
    signal.signal(signal.SIGINT, _end_or_raise)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(_STATUS)


def _end_or_raise(number: int, frame: FrameType | None) -> None:
    caller = frame
    while caller is not None:
        # Python's import system, or a library that imports in a try block, could swallow the exception.
        if caller.f_code.co_filename.startswith(_IMPORTS):
            os._exit(_STATUS)
        caller = caller.f_back
    raise KeyboardInterrupt

"""SIGINT before there is anything to end in good order: a quiet end with status 130, not the traceback of an import.

A library leaves signals to its program; these are called by what runs as one, first thing.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

_STATUS = 128 + signal.SIGINT
_IMPORTS = "<frozen importlib"


def end_at_once() -> None:
    """From now on SIGINT ends the process at once."""
    signal.signal(signal.SIGINT, _end)


def raise_outside_of_imports() -> None:
    """From now on SIGINT is a KeyboardInterrupt, but within an import, where it may come out as anything, an end."""
    signal.signal(signal.SIGINT, _end_or_raise)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(_STATUS)


def _end_or_raise(number: int, frame: FrameType | None) -> None:
    at = frame
    while at is not None:
        if at.f_code.co_filename.startswith(_IMPORTS):
            os._exit(_STATUS)
        at = at.f_back
    raise KeyboardInterrupt

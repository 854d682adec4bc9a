"""Hardware-in-the-loop tests with pytest: one test for lockstep, real time and hardware. See docs/hil.md.

    from dyn_service.hil import Delay, WrongPayload

Names are loaded when they are first used: pytest imports this package in every run, also where no test asks for it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOMES = {
    "Check": "dyn_service.hil.checks",
    "Record": "dyn_service.hil.signals",
    "Setup": "dyn_service.hil.setup",
    "Fault": "dyn_service.hil.faults",
    "Delay": "dyn_service.hil.faults",
    "Jitter": "dyn_service.hil.faults",
    "Loss": "dyn_service.hil.faults",
    "Reorder": "dyn_service.hil.faults",
    "Killed": "dyn_service.hil.faults",
    "WrongPayload": "dyn_service.hil.faults",
    "Bias": "dyn_service.hil.faults",
    "Noise": "dyn_service.hil.faults",
    "NotANumber": "dyn_service.hil.faults",
    "Saturation": "dyn_service.hil.faults",
    "Stale": "dyn_service.hil.faults",
    "Swapped": "dyn_service.hil.faults",
}

if TYPE_CHECKING:
    from dyn_service.hil.checks import Check
    from dyn_service.hil.faults import (
        Bias,
        Delay,
        Fault,
        Jitter,
        Killed,
        Loss,
        Noise,
        NotANumber,
        Reorder,
        Saturation,
        Stale,
        Swapped,
        WrongPayload,
    )
    from dyn_service.hil.setup import Setup
    from dyn_service.hil.signals import Record

__all__ = [
    "Bias", "Check", "Delay", "Fault", "Jitter", "Killed", "Loss", "Noise", "NotANumber", "Record", "Reorder",
    "Saturation", "Setup", "Stale", "Swapped", "WrongPayload",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)

"""Hardware-in-the-loop tests with pytest: one test for lockstep, real time and hardware. See docs/hil.md.

    from dyn_service.hil import Delay, WrongPayload

Names are loaded when they are first used: pytest imports this package in every run, also where no test asks for it.

plugin     the pytest plug-in: options and markers
fixtures   `run`, `clock`, `plant`, `controller`, `server`, `robot`
setup      server, plant and controller of a launch file, with the test's own parameters
bench      one interface of plant and controller for lockstep, real time and hardware
lockstep   plant and controller in one process, step by step
real_time  processes, with a proxy between them
faults     faults to inject
checks     assertions on a run, and the quantities that they judge
signals    a run as named signals over time, and its messages, from which they are made
reporting  outcomes of tests: JUnit properties, a page, recordings of failures
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dyn_service.hil.bench import RobotCache, open_bench, run_for
    from dyn_service.hil.checks import Check
    from dyn_service.hil.faults import (
        Bias,
        Delay,
        Fault,
        HotMotor,
        Jitter,
        Killed,
        Loss,
        Noise,
        NotANumber,
        Reorder,
        SaggingSupply,
        Saturation,
        Stale,
        Swapped,
        WornGear,
        WrongPayload,
    )
    from dyn_service.hil.setup import Setup
    from dyn_service.hil.signals import Record

__all__ = [
    "Bias",
    "Check",
    "Delay",
    "Fault",
    "HotMotor",
    "Jitter",
    "Killed",
    "Loss",
    "Noise",
    "NotANumber",
    "Record",
    "Reorder",
    "RobotCache",
    "SaggingSupply",
    "Saturation",
    "Setup",
    "Stale",
    "Swapped",
    "WornGear",
    "WrongPayload",
    "open_bench",
    "run_for",
]


_HOMES = {
    "Check": "checks",
    "Record": "signals",
    "RobotCache": "bench",
    "Setup": "setup",
    "open_bench": "bench",
    "run_for": "bench",
}
"""Modules of names that are not faults."""


def __getattr__(name: str) -> Any:
    # without `support.lazy_names`: every run of pytest imports this package
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'faults')}"), name)

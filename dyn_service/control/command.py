"""What a law commands: efforts, positions or velocities, as ros2_control names them.

| interface | the command says | the drive |
|---|---|---|
| `effort` | N m, N | gives it |
| `position` | rad, m, and with which velocity it goes on | goes there; an effort is given beside what it makes |
| `velocity` | rad/s, m/s | goes so fast; an effort is given beside what it makes |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from dyn_service.api.queries import Array

Interface = Literal["effort", "position", "velocity"]
INTERFACES: tuple[Interface, ...] = get_args(Interface)
"""In the order of their numbers in recordings."""
EFFORT_ONLY: tuple[Interface, ...] = ("effort",)


@dataclass(frozen=True, eq=False)
class Command:
    """One command of a law.

    value: (nv,) in the units of the law's interface, for the time of its reference. velocity: (nv,) rad/s | m/s, with
    which a commanded position goes on until the next command; None: it stays. effort: (nv,) N m | N, given beside what
    the drive makes; None: none. Both are for interfaces other than `effort`.
    """

    value: Array
    velocity: Array | None = None
    effort: Array | None = None


@dataclass(frozen=True, eq=False)
class SetPoint:
    """What a drive is to do in the coming cycle; all limits are kept.

    position: (nv,) rad | m, where the joints are to be at its beginning; where velocities are commanded, their
    integral. velocity: (nv,) rad/s | m/s. effort: (nv,) N m | N, beside what the drive makes.
    """

    interface: Interface
    position: Array
    velocity: Array
    effort: Array

"""What a law commands: efforts, positions or velocities, as ros2_control names them.

| interface | the command says | the drive |
|---|---|---|
| `effort` | N m, N | gives it |
| `position` | rad, m, and with which velocity it goes on | goes there; an effort is given beside what it makes |
| `velocity` | rad/s, m/s | goes so fast; an effort is given beside what it makes |


What a `JointCommand` says, by its interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.messages.dyn_service_msgs import JointCommand

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


WITH_ARTICLE: Mapping[str, str] = {"effort": "an effort", "position": "a position", "velocity": "a velocity"}
"""One of them, in a sentence, by interface."""


def interface_values(command: JointCommand) -> Array:
    """What is commanded, in the command's order. Its interface is a known one."""
    given = {"effort": command.effort, "position": command.position, "velocity": command.velocity}
    return np.array(given[command.interface])


def not_finite(command: JointCommand) -> str:
    """Which kind of its numbers has one that is not finite; empty where all are."""
    kinds = (("effort", command.effort), ("position", command.position), ("velocity", command.velocity))
    return next((kind for kind, given in kinds if not np.isfinite(given).all()), "")


def sizes_fit(command: JointCommand, n: int) -> bool:
    """Whether it has one number per joint of what its interface needs, and none of what it does not know."""
    kind, position, velocity = command.interface, len(command.position), len(command.velocity)
    of_velocity = {"effort": (0,), "position": (0, n), "velocity": (n,)}[kind]
    return len(command.effort) == n and position == n * (kind == "position") and velocity in of_velocity


def size_summary(command: JointCommand) -> str:
    """How many numbers of each kind it has, in words."""
    others = ((len(command.position), "positions"), (len(command.velocity), "velocities"))
    return ", ".join([f"{len(command.effort)} efforts", *(f"{size} {what}" for size, what in others if size)])


@lru_cache(maxsize=16)
def joint_order(given: tuple[str, ...], names: tuple[str, ...]) -> list[int] | None:
    """Where in a command each joint of the robot stands; None where its names are not the robot's."""
    return [given.index(name) for name in names] if sorted(given) == sorted(names) else None

"""Commands: efforts, positions or velocities, named as in ros2_control.

| interface | unit | behaviour of the drive |
|---|---|---|
| `effort` | N m, N | applies the effort |
| `position` | rad, m, optionally with a velocity | moves to the position; a given effort is added to its own |
| `velocity` | rad/s, m/s | moves at the velocity; a given effort is added to its own |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
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

    value: (nv,) in the units of the law's interface, at the time of its reference. velocity: (nv,) rad/s | m/s, with
    which a commanded position moves until the next command; None is zero. effort: (nv,) N m | N, added to the drive's;
    None is zero. velocity and effort are for interfaces other than `effort`.
    """

    value: Array
    velocity: Array | None = None
    effort: Array | None = None


@dataclass(frozen=True, eq=False)
class SetPoint:
    """Set point of a drive for the coming cycle, within all limits.

    position: (nv,) rad | m, at the beginning of the cycle; the integral of commanded velocities. velocity: (nv,)
    rad/s | m/s. effort: (nv,) N m | N, added to the drive's.
    """

    interface: Interface
    position: Array
    velocity: Array
    effort: Array


WITH_ARTICLE: Mapping[str, str] = {"effort": "an effort", "position": "a position", "velocity": "a velocity"}
"""Interface names with their articles, for messages."""


def interface_values(command: JointCommand) -> Array:
    """The commanded values, in the order of the command's joints. The interface must be valid."""
    return np.array(getattr(command, command.interface))


def not_finite(command: JointCommand) -> str:
    """The first interface whose numbers are not all finite, or an empty string."""
    for kind in INTERFACES:
        if not all(map(isfinite, getattr(command, kind))):
            return kind
    return ""


def sizes_fit(command: JointCommand, n: int) -> bool:
    """Whether the command has one number per joint where its interface needs them, and no others."""
    kind, position, velocity = command.interface, len(command.position), len(command.velocity)
    of_velocity = {"effort": (0,), "position": (0, n), "velocity": (n,)}[kind]
    return len(command.effort) == n and position == n * (kind == "position") and velocity in of_velocity


def size_summary(command: JointCommand) -> str:
    """The number of values of each kind, for messages."""
    optional = ((len(command.position), "positions"), (len(command.velocity), "velocities"))
    return ", ".join([f"{len(command.effort)} efforts", *(f"{size} {noun}" for size, noun in optional if size)])


JointOrder = list[int] | slice


def joint_order(command_names: tuple[str, ...], names: tuple[str, ...]) -> JointOrder | None:
    """Returns the index that sorts a command's values by the robot's joints; None if their names differ."""
    if command_names == names:
        return slice(None)
    return _permutation(tuple(command_names), names)


@lru_cache(maxsize=16)
def _permutation(command_names: tuple[str, ...], names: tuple[str, ...]) -> list[int] | None:
    return [command_names.index(name) for name in names] if sorted(command_names) == sorted(names) else None

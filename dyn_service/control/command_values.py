"""What a `JointCommand` says, by its interface."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.messages.dyn_service_msgs import JointCommand

A: Mapping[str, str] = {"effort": "an effort", "position": "a position", "velocity": "a velocity"}
"""One of them, in a sentence, by interface."""


def values(command: JointCommand) -> Array:
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


def sizes(command: JointCommand) -> str:
    """How many numbers of each kind it has, in words."""
    others = ((len(command.position), "positions"), (len(command.velocity), "velocities"))
    return ", ".join([f"{len(command.effort)} efforts", *(f"{size} {what}" for size, what in others if size)])


@lru_cache(maxsize=16)
def order_of(given: tuple[str, ...], names: tuple[str, ...]) -> list[int] | None:
    """Where in a command each joint of the robot stands; None where its names are not the robot's."""
    return [given.index(name) for name in names] if sorted(given) == sorted(names) else None

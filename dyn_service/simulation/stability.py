"""Whether steps of a fixed length follow what damping and friction do to a robot's speeds, or run away from it.

Near rest speeds die out as v' = -K v, K = -da/dv. An explicit step of length h multiplies what belongs to an eigenvalue
k of K by a polynomial of h k, which is beyond 1 where h k passes the integrator's limit: the speed then grows from step
to step. Friction bounds what it grows to, and the joint chatters. Light joints under friction or damping have such k:
many files state these without the inertia of the motor behind the gear. Source of the limits: E. Hairer, G. Wanner,
Solving Ordinary Differential Equations II (1996), IV.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from dyn_service.api.queries import Array

LIMITS: Mapping[str, float] = MappingProxyType(
    {"rk4": 2.785293563405282, "semi_implicit_euler": 2.0, "explicit_euler": 2.0}
)
"""The largest h k that does not grow: 1 - x + x^2/2 - x^3/6 + x^4/24 is 1 there, 1 - x is -1."""
_SPEED = 1e-6
"""rad/s | m/s: far below the width of any friction, and far above rounding of an acceleration over it."""


@dataclass(frozen=True)
class Unstable:
    """joints: the entries of v that belong to what grows. rate: 1/s, the largest k. least: how many times shorter steps
    would have to be.
    """

    joints: tuple[int, ...]
    rate: float
    least: int


def unstable(acceleration: Callable[[Array], Array], free: Array, step_s: float, integrator: str) -> Unstable | None:
    """What grows from step to step near rest; None where nothing does.

    Args:
        acceleration: v (nv,) -> a (nv,) in one position.
        free: (nv,) whether an entry of v may be other than 0, and not that of a locked joint.
        step_s: The length of a step, s.
        integrator: Its name, of `LIMITS`.
    """
    entries = np.flatnonzero(free)
    columns = [(acceleration(-v) - acceleration(v)) / (2.0 * _SPEED) for v in _SPEED * np.eye(len(free))[entries]]
    matrix = np.stack(columns, axis=1)[entries] if columns else np.zeros((0, 0))
    if not np.isfinite(matrix).all():
        return None  # a robot of no finite acceleration is told of where it moves
    rates, ways = np.linalg.eig(matrix)
    limit = LIMITS[integrator]
    beyond = np.flatnonzero(rates.real * step_s > limit)
    if not beyond.size:
        return None
    joints = {int(entries[np.argmax(np.abs(ways[:, k]))]) for k in beyond}
    largest = float(rates.real.max())
    return Unstable(tuple(sorted(joints)), largest, math.ceil(largest * step_s / limit))

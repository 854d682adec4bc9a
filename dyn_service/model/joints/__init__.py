"""Joint types: pose, motion subspace and integration of each, one class per type. Other modules know no joint types.

Each class defines, in the axes of the joint frame J, which is fixed to the parent and coincides with the body B at
q = 0:

    R_JB(q), p_JB(q)   the pose, as sums of constant matrices times functions of q
    G                  (6, nv), the motion subspace: V_JB = G v, [angular; linear] at the body's origin in its axes
    q-dot = N(q) v     how positions change; v itself where nq == nv
    integrate          the position after moving with constant v for a time: the exponential map
    difference         the v that moves one position to another in unit time: the inverse

G is constant in body axes for every type here, so what velocities alone add to a body's acceleration is one formula for
all, (5a) with omega_B x v_B: see `dynamics/newton_euler.py`. A joint with one degree of freedom may mimic another: its
position is `ratio` times the leader's, and its G is multiplied by `ratio`. An offset is part of the joint's frame
(`building.py`), because these joints move along one-parameter groups. Conventions are those of Pinocchio and ROS:

| type | q | v |
|---|---|---|
| revolute, continuous | angle, rad | rad/s |
| prismatic | distance, m | m/s |
| screw | angle, rad | rad/s |
| cylindrical | angle, rad, distance, m | rad/s, m/s |
| planar | x, y in m, theta in rad | vx, vy in m/s, omega in rad/s, body axes |
| spherical | qx, qy, qz, qw | angular, rad/s, body axes |
| floating | x, y, z in m, qx, qy, qz, qw | linear m/s, then angular rad/s, body axes |

A quaternion of any length has the rotation of the unit one; `integrate` returns unit ones. The functions take
numbers, arrays of states or symbols alike: an `Arithmetic` says how they are computed with.

axial      types with one degree of freedom
base       the base class, and the arithmetic of all types
multi_dof  types with several degrees of freedom
rotations  rotations about axes, in planes, by quaternions
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dyn_service.model.joints.axial import Continuous, Prismatic, Revolute, Screw
from dyn_service.model.joints.base import FIXED, NUMBERS, SINGLE, Arithmetic, Array, Joint, Terms, summed
from dyn_service.model.joints.multi_dof import Cylindrical, Floating, Planar, Spherical

__all__ = [
    "FIXED", "JOINT_TYPES", "NUMBERS", "SINGLE", "UNKNOWN_TYPE", "Arithmetic", "Joint", "Planar", "Terms", "joint_of",
    "summed",
]  # fmt: skip

JOINT_TYPES: Mapping[str, Callable[[Array, float], Joint]] = {
    "fixed": lambda axis, pitch: FIXED,
    "revolute": lambda axis, pitch: Revolute(axis),
    "continuous": lambda axis, pitch: Continuous(axis),
    "prismatic": lambda axis, pitch: Prismatic(axis),
    "screw": Screw,
    "cylindrical": lambda axis, pitch: Cylindrical(axis),
    "planar": lambda axis, pitch: Planar(axis),
    "spherical": lambda axis, pitch: Spherical(),
    "ball": lambda axis, pitch: Spherical(),
    "floating": lambda axis, pitch: Floating(),
}
"""Constructors by type, from the axis and the pitch in m per turn.

URDF has no spherical joints, which Drake calls ball, no screws and no cylindrical joints; all are read.
"""

UNKNOWN_TYPE = Continuous.type
"""The type of a joint of which no more is known than that it has one position: an angle without limits."""


def joint_of(kind: str, axis: Sequence[float] | None = None, pitch: float | None = None) -> Joint:
    """Returns the joint of a type from plain values, as descriptions and messages have them.

    Args:
        kind: One of `JOINT_TYPES`.
        axis: (3,) unit vector; default: z.
        pitch: m per turn; default: 0.

    Raises:
        KeyError: The type is unknown.
    """
    return JOINT_TYPES[kind](np.array(axis or (0.0, 0.0, 1.0)), pitch or 0.0)

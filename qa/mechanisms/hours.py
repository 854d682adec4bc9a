"""An hour of simulated time of shipped robots with loops: drift of position and energy.

Nothing dissipates, so that the energy is constant. An hour in steps of 1 ms takes a quarter to a whole hour of one core
with rk4, and ten times as long with `implicit_midpoint`. The robots therefore swing slowly, in weak gravity, the delta
robot also on springs at its motors. At full weight the four-bar's hour is of 100 s, and its steps of rk4 of 0.8 ms; the
delta robot's hour is of 200 s, and its steps of 5 ms.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dyn_service import Robot
from dyn_service.support.shipped import find_robot

SECONDS, RECORDS = 3600.0, 3600


@dataclass(frozen=True)
class Swing:
    """A robot, its integrator, and how it swings. dt: s. weight: m/s^2, downwards. stiffness: N m/rad of the driven
    joints. rates: rad/s of the independent joints at the start. offset: rad, from the neutral position, of the first
    joint."""

    robot: str
    integrator: str
    dt: float
    weight: float
    stiffness: float = 0.0
    rates: tuple[float, ...] = ()
    offset: float = 0.0


SWINGS = (
    Swing("four_bar", "rk4", 0.03, 0.0075, offset=-1.0),
    Swing("delta", "rk4", 0.1, 0.03, stiffness=0.05, rates=(0.1, -0.1, 0.12)),
    Swing("four_bar", "implicit_midpoint", 0.24, 0.0075, offset=-1.0),
    Swing("delta", "implicit_midpoint", 0.3, 0.03, stiffness=0.05, rates=(0.1, -0.1, 0.12)),
)


@dataclass(frozen=True)
class Drift:
    """What an hour changed. gap: m and rad. kinetic: J, the largest. energy: J, the largest change and that at the end.
    swings: how often the first joint reversed."""

    swing: Swing
    steps: int
    gap: float
    kinetic: float
    energy: tuple[float, float]
    swings: int


def drift(swing: Swing, seconds: float = SECONDS) -> Drift:
    """Returns the drift of a robot that swings for so long."""
    described = Robot.from_urdf(find_robot(swing.robot)).as_described
    joints = (replace(joint, stiffness=swing.stiffness) if joint.driven else joint for joint in described.joints)
    robot = Robot(replace(described, joints=tuple(joints)))
    q, v, gravity = robot.neutral(), np.zeros(robot.nv), np.array([0.0, 0.0, -swing.weight])
    q[0] += swing.offset
    q = robot.assemble(q, fixed=robot.joint_names[:1])
    if swing.rates:
        v = robot.independent_motion(q, v).jacobian @ np.array(swing.rates)
    steps = round(seconds / swing.dt)
    stride = max(1, steps // RECORDS)
    steps -= steps % stride
    motion = robot.simulate(q, v, dt=swing.dt, steps=steps, every=stride, integrator=swing.integrator, gravity=gravity)
    energy = robot.energy(motion.q, motion.v, gravity=gravity)
    total = energy.kinetic + energy.potential
    changes = total - total[0]
    return Drift(
        swing,
        steps,
        float(np.abs(robot.loop_error(motion.q)).max()),
        float(energy.kinetic.max()),
        (float(np.abs(changes).max()), float(changes[-1])),
        int((np.diff(np.sign(motion.v[1:, 0])) != 0).sum()),
    )

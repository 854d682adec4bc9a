"""Inverse dynamics, forward dynamics and joint loads of a Panda, in process."""

from pathlib import Path

import numpy as np

from dyn_service import Robot, Wrench

robot = Robot.from_urdf(Path(__file__).parent.parent / "urdf" / "panda.urdf")
print(robot, *robot.joint_names, sep="\n  ")

q = np.array([0.0, -0.5, 0.0, -2.0, 0.0, 1.5, 0.8, 0.02])  # the fingers close as one
v = np.zeros(robot.nv)
a = np.full(robot.nv, 0.3)

tau = robot.inverse_dynamics(q, v, a)
print("torques (N m, both fingers N)", np.round(tau, 3))
print("and back to the motion ", np.round(robot.forward_dynamics(q, v, tau), 9))

# A fixed joint carries load too: what would a force sensor in the wrist's flange read?
hold = robot.gravity_forces(q)
loads = robot.constraint_forces(q, v, hold, joints=["panda_hand_joint"], frame="world")
print(
    "at rest the flange exerts on the hand: force",
    np.round(loads.wrench[0, 3:], 3),
    "N, the weight of hand and fingers",
)

# A 2 kg payload between the fingers, as a wrench at a point in a named frame.
payload = Wrench("panda_hand", force=(0.0, 0.0, -2.0 * 9.81), point=(0.0, 0.0, 0.1034), frame="world")
print("torques for the payload", np.round(robot.inverse_dynamics(q, v, v, wrenches=payload) - hold, 3))

# Leading axes broadcast: a hundred thousand states in one call.
batch = np.random.default_rng(0).uniform(-1.0, 1.0, (100_000, robot.nv))
print("gravity torques of a batch", robot.gravity_forces(batch).shape)

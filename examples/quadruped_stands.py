"""A quadruped stands, recovers from a push, falls after a harder one; with its energy balance."""

from pathlib import Path

import numpy as np

from dyn_service import Contact, Robot, Wrench

robot = Robot.from_urdf(Path(__file__).parent.parent / "urdf" / "solo12.urdf", root="floating")
legs = ("FL", "FR", "HL", "HR")
ground = [Contact(f"{leg}_foot", radius=0.016) for leg in legs]  # and, for when it falls, knees and trunk
ground += [Contact(f"{leg}_lower_leg", radius=0.01) for leg in legs]
ground += [Contact("base_link", (x, y, z)) for x in (-0.195, 0.195) for y in (-0.075, 0.075) for z in (-0.025, 0.025)]

crouch = np.tile([0.0, 0.8, -1.6], 4)
q = np.concatenate([[0.0, 0.0, 0.24, 0.0, 0.0, 0.0, 1.0], crouch])


def stand(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Efforts of springs and dampers that hold the legs bent."""
    return np.concatenate([np.zeros(6), 8.0 * (crouch - q[7:]) - 0.25 * v[6:]])


dt, steps = 1e-3, 1300
print("push N  height  upright   work: motors   push   lost: contacts  stops  own steps   E kept   left open, J")
for push in (0.0, 20.0, 45.0):
    sideways = np.zeros((steps, 3))
    sideways[400:500, 1] = push  # for a tenth of a second
    motion = robot.simulate(
        q,
        np.zeros(robot.nv),
        stand,
        dt=dt,
        steps=steps,
        every=10,
        integrator="stick_slip",
        contacts=ground,
        wrenches=Wrench("base_link", force=sideways),
        position_limits=True,
        effort_limits=True,
        velocity_limits=True,
    )
    upright = robot.link_poses(motion.q[-1]).rotation[0, 2, 2]
    stored_energy = robot.energy(motion.q, motion.v).total + motion.stored.sum(axis=-1)
    motors, pushed = motion.work.sum(axis=0)
    joints, stops, contacts, passive_joints = motion.dissipated.sum(axis=0)
    gained = stored_energy[-1] - stored_energy[0]
    left = gained + joints + stops + contacts + passive_joints - motors - pushed
    print(
        f"{push:6.0f} {motion.q[-1, 2]:7.3f} {upright:8.3f} {motors:15.3f} {pushed:6.3f} "
        f"{contacts:16.3f} {stops:6.3f} {passive_joints:10.3f} {gained:8.3f} {left:15.3f}"
    )
    if not push:
        at_rest = motion.contact_forces[-1, :4]
print(
    "at rest its feet carry",
    np.round(at_rest[:, 2], 2),
    "N of",
    round(robot.system_momentum(q, np.zeros(18)).mass[0] * 9.81, 2),
)

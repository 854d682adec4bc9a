"""Random mechanisms with loops, and states of them.

One to four loops of all types of loop joints; every fifth mechanism is planar, every fifth has a joint twice, as a door
with two hinges; every third floats. Some joints are driven, and joints of every second mechanism have damping,
friction, rotors and springs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import qr

from dyn_service import Robot, Wrench
from dyn_service.model.description import Description, Joint
from tests.loops import Array, Mechanism, closed, planar_urdf, random_mechanism

NORMAL = np.array([0.0, -1.0, 0.0])
"""Of the plane of planar mechanisms."""

_BLOCKED_IN_PLANE = {"revolute": 2, "spherical": 2, "prismatic": 2, "cylindrical": 2, "planar": 0, "screw": 3}


@dataclass(frozen=True, eq=False)
class Case:
    """A mechanism at a closed position with a motion, efforts of the drives, wrenches and gravity.

    independent: entries of v that determine all others.
    """

    mechanism: Mechanism
    v: Array
    tau: Array
    wrenches: tuple[Wrench, ...]
    gravity: Array
    independent: tuple[int, ...]

    @property
    def robot(self) -> Robot:
        """The mechanism's robot."""
        return self.mechanism.robot

    @property
    def is_determined(self) -> bool:
        """Whether the driven joints are the independent ones."""
        names, joints = self.robot.configuration.velocity_joints, self.mechanism.description.joints
        return {names[k] for k in self.independent} == {joint.name for joint in joints if joint.driven}


def planar_mechanism(seed: int) -> Mechanism:
    """Bars in a plane with one to four loops; the directions across the plane are redundant."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(5, 10))
    parents = [-1, *(int(rng.integers(-1, k)) for k in range(1, count))]
    text = planar_urdf(rng.uniform(0.2, 0.6, count).tolist(), parents)
    description = Robot.from_urdf(text).evaluator.model.description
    q, free, ends = rng.uniform(-2.0, 2.0, count), count - 1, []
    for k in range(int(rng.integers(1, 5))):
        kind = list(_BLOCKED_IN_PLANE)[(seed // 5 + k) % len(_BLOCKED_IN_PLANE)]
        links = [link.name for link in description.links]
        parent, child = rng.choice(links, 2, replace=False)
        if _BLOCKED_IN_PLANE[kind] <= free:
            ends.append((kind, str(parent), str(child)))
            free -= _BLOCKED_IN_PLANE[kind]
    return Mechanism(Robot(closed(description, q, ends, seed, NORMAL)), q)


def doubled(description: Description) -> Description:
    """Returns the robot with a second joint on the axis of its first loop joint that is no ball."""
    for joint in description.loop_joints:
        if joint.type != "spherical":
            ends = {"parent_xyz": joint.parent_xyz + joint.parent_rotation @ (0.2 * joint.axis)}
            ends["child_xyz"] = joint.child_xyz + joint.child_rotation @ (0.2 * joint.axis)
            second = replace(joint, name="second", **ends)
            return replace(description, loop_joints=(*description.loop_joints, second))
    return description


def independent_entries(mechanism: Mechanism, excluded: str = "") -> list[int] | None:
    """The entries of v that determine all others best, with those of a floating root; None if `without` this joint
    there are too few."""
    robot = mechanism.robot
    rows = robot.evaluator.closed_loops.joints.state(mechanism.q, None).rows
    _, s, Vt = np.linalg.svd(rows)
    N = Vt[int((s > 1e-8).sum()) :]
    weights = np.array([float(name != excluded) for name in robot.configuration.velocity_joints])
    weights[: 6 * (mechanism.description.root == "floating")] = 1e3
    R, order = qr(N * weights, mode="r", pivoting=True)
    if np.abs(np.diag(R)).min(initial=1.0) < 1e-3:
        return None
    return sorted(int(k) for k in order[: len(N)])


def drawn_case(seed: int) -> Case:
    """Returns a random mechanism and a state."""
    rng = np.random.default_rng([seed, 40])
    mechanism = planar_mechanism(seed) if seed % 5 == 0 else random_mechanism(seed)
    if not mechanism.description.loop_joints:  # none of those drawn fits the robot's freedom
        return drawn_case(seed + 1000)
    description = mechanism.description
    if seed % 5 == 1:
        description = doubled(description)
    if seed % 10 == 5 and seed % 3:
        description = replace(description, root="floating")
        pose = np.concatenate([rng.normal(size=3), (x := rng.normal(size=4)) / np.linalg.norm(x)])
        mechanism = replace(mechanism, q=np.concatenate([pose, mechanism.q]))
    passive = seed % 2 == 1
    joints = tuple(_passive(joint, rng) if passive else joint for joint in description.joints)
    mechanism = replace(mechanism, robot=Robot(replace(description, joints=joints)))
    independent = independent_entries(mechanism) or []
    names = [joint.name for joint in joints if joint.moves.nv]
    drives = {mechanism.robot.configuration.velocity_joints[k] for k in independent} & set(names)
    drives |= set(rng.choice(names, seed % 3 * (seed % 4 == 0), replace=False))
    joints = tuple(replace(joint, driven=joint.name in drives) for joint in joints)
    robot = Robot(replace(description, joints=joints))
    mechanism = replace(mechanism, robot=robot)
    drive_mask = np.array([name in drives for name in robot.configuration.velocity_joints])
    first, second = (str(link) for link in rng.choice([link.name for link in description.links[1:]], 2))
    wrenches = tuple(
        Wrench(link, *rng.normal(size=(2, 3)), rng.uniform(-0.3, 0.3, 3), frame)
        for link, frame in ((first, "world"), (second, second))
    )
    return Case(
        mechanism,
        mechanism.motion(seed)[0],
        rng.normal(size=robot.nv) * drive_mask,
        wrenches if seed % 4 else (),
        np.array([0.3, -0.2, -9.81]) if seed % 7 else np.zeros(3),
        tuple(independent),
    )


def _passive(joint: Joint, rng: np.random.Generator) -> Joint:
    """Returns a joint with damping, friction, a rotor and a spring, if it has one degree of freedom."""
    damping, friction, armature, stiffness, rest = rng.uniform(0.0, [1.0, 0.5, 0.1, 5.0, 1.0])
    if joint.moves.nv != 1:
        return joint
    parameters = {"damping": damping, "friction": friction, "armature": armature, "stiffness": stiffness, "rest": rest}
    return replace(joint, friction_width=0.1, **parameters)

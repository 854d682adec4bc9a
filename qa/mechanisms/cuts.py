"""The same mechanism cut elsewhere: answers that have the same meaning must be the same.

A loop joint becomes a joint of the tree and a passive joint of the tree closes the loop instead. Links between the two
turn round: the former child of a joint becomes its parent, its frame moves to the joint's frame on it, and the joint's
axis changes its sign, so that positions, velocities and efforts of all joints but these two keep their meaning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dyn_service import Robot, Wrench
from dyn_service.model.description import Description, Joint, LoopJoint
from qa.mechanisms.drawn import drawn_case, independent_entries
from tests.loops import Array, Mechanism, with_drives
from tests.terms.interpreting import interpreted_robot

Frame = tuple[Array, Array]
"""Rotation and position of a frame in a link's frame."""

SCALES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("da_dq", "da_dv"), ("forward_dynamics",)),
    **dict.fromkeys(("dtau_dq", "dtau_dv"), ("inverse_dynamics",)),
}
"""Answers whose size also counts, for a change by 1 rad, m, rad/s or m/s: the derivatives of mechanisms of which only
slides move, without springs and dampers, are zero."""

IDENTITY: Frame = (np.eye(3), np.zeros(3))


@dataclass(frozen=True, eq=False)
class Pair:
    """A joint between two links, with its frame on each."""

    joint: Joint | LoopJoint
    parent: Frame
    child: Frame

    @classmethod
    def of(cls, joint: Joint | LoopJoint) -> Pair:
        """A joint of the tree or of a loop."""
        if isinstance(joint, LoopJoint):
            parent, child = (joint.parent_rotation, joint.parent_xyz), (joint.child_rotation, joint.child_xyz)
            return cls(joint, parent, child)
        return cls(joint, (joint.rotation, joint.xyz), IDENTITY)


@dataclass(frozen=True, eq=False)
class Cut:
    """A mechanism that is cut elsewhere. frames: of its links in those of the original. reversed_joints: those whose
    child became their parent."""

    mechanism: Mechanism
    frames: dict[str, Frame]
    reversed_joints: frozenset[str]


def zeroed(mechanism: Mechanism, name: str) -> Mechanism:
    """The mechanism with the zero of a loop joint at q."""
    poses = mechanism.robot.link_poses(mechanism.q)
    place = dict(zip(poses.links, zip(poses.rotation, poses.position, strict=True), strict=True))
    joints = []
    for joint in mechanism.description.loop_joints:
        if joint.name == name:
            on_child = times(place[joint.child], (joint.child_rotation, joint.child_xyz))
            rotation, xyz = times(inverse(place[joint.parent]), on_child)
            joint = replace(joint, parent_rotation=rotation, parent_xyz=xyz)
        joints.append(joint)
    return replace(mechanism, robot=Robot(replace(mechanism.description, loop_joints=tuple(joints))))


def slides_zeroed(mechanism: Mechanism, names: frozenset[str]) -> Mechanism:
    """The mechanism with the zeros of these prismatic joints of the tree at q."""
    robot, q, joints = mechanism.robot, mechanism.q.copy(), []
    places = dict(zip(robot.joint_names, robot.configuration.q_slices, strict=True))
    for joint in mechanism.description.joints:
        if joint.name in names and joint.type == "prismatic":
            (position,) = q[places[joint.name]]
            q[places[joint.name]] = 0.0
            rotation, xyz = times((joint.rotation, joint.xyz), joint.moves.pose(np.array([position])))
            joint = replace(joint, rotation=rotation, xyz=xyz, rest=joint.rest - position)
        joints.append(joint)
    return Mechanism(Robot(replace(mechanism.description, joints=tuple(joints))), q)


def is_redundant(mechanism: Mechanism) -> bool:
    """Whether loop joints block some motion twice, so that loads are not unique."""
    rows = mechanism.robot.evaluator.closed_loops.joints.state(mechanism.q, None).rows
    return bool(np.linalg.matrix_rank(rows, tol=1e-8) < len(rows))


def moving_link(mechanism: Mechanism) -> str:
    """The link that moves fastest in one motion."""
    robot, names = mechanism.robot, [joint.child for joint in mechanism.description.joints]
    v = mechanism.motion(0)[0]
    speeds = [np.linalg.norm(robot.point_motion(mechanism.q, v, name).velocity) for name in names]
    return names[int(np.argmax(speeds))]


def times(a: Frame, b: Frame) -> Frame:
    """The frame b of frame a."""
    return a[0] @ b[0], a[1] + a[0] @ b[1]


def inverse(frame: Frame) -> Frame:
    """The frame in which the given one is the link's."""
    return frame[0].T, -frame[0].T @ frame[1]


def recut(mechanism: Mechanism, closing: str, opening: str) -> Cut:
    """The mechanism with a loop joint, at its zero, in the tree, and a joint of the tree closing the loop."""
    description = mechanism.description
    pairs = [Pair.of(joint) for joint in (*description.joints, *description.loop_joints)]
    in_tree = [x for x in pairs if x.joint.name == closing or not isinstance(x.joint, LoopJoint)]
    in_tree = [x for x in in_tree if x.joint.name != opening]
    (root,) = {link.name for link in description.links} - {joint.child for joint in description.joints}
    frames, joints, reversed_joints = {root: IDENTITY}, [], set()
    while in_tree:
        pair = next(x for x in in_tree if (x.joint.parent in frames) != (x.joint.child in frames))
        in_tree.remove(pair)
        joint, (parent_frame, child_frame) = pair.joint, (pair.parent, pair.child)
        ends, axis = (joint.parent, joint.child), joint.axis
        if joint.child in frames:
            (parent_frame, child_frame), ends, axis = (child_frame, parent_frame), ends[::-1], -joint.axis
            reversed_joints.add(joint.name)
        frames[ends[1]] = child_frame
        rotation, xyz = times(inverse(frames[ends[0]]), parent_frame)
        parts: dict[str, Any] = {"parent": ends[0], "child": ends[1], "xyz": xyz, "rotation": rotation, "axis": axis}
        if isinstance(joint, LoopJoint):
            joints.append(Joint(joint.name, joint.type, pitch=joint.pitch, driven=False, **parts))
        else:
            joints.append(replace(joint, **parts))
    loops = []
    for pair in pairs:
        joint = pair.joint
        if joint.name == opening or (isinstance(joint, LoopJoint) and joint.name != closing):
            (R_P, p_P), (R_C, p_C) = (
                times(inverse(frames[link]), frame)
                for link, frame in ((joint.parent, pair.parent), (joint.child, pair.child))
            )
            loops.append(
                LoopJoint(
                    joint.name, joint.type, joint.parent, joint.child, p_P, R_P, p_C, R_C, joint.axis, joint.pitch
                )
            )
    links = tuple(_reframed(link, frames[link.name]) for link in description.links)
    robot = Robot(replace(description, links=links, joints=tuple(joints), loop_joints=tuple(loops)))
    q = robot.neutral()
    old = mechanism.robot
    places = dict(zip(old.joint_names, old.configuration.q_slices, strict=True))
    for name, place in zip(robot.joint_names, robot.configuration.q_slices, strict=True):
        if name in places:
            q[place] = mechanism.q[places[name]]
    return Cut(Mechanism(robot, q), frames, frozenset(reversed_joints))


def _reframed(link: Any, frame: Frame) -> Any:
    """A link whose frame moved to `frame`."""
    if link.inertial is None:
        return link
    R, p = inverse(frame)
    inertial = replace(link.inertial, com=R @ link.inertial.com + p, rotation=R @ link.inertial.rotation)
    return replace(link, inertial=inertial)


def pairs_to_cut(description: Description) -> list[tuple[str, str]]:
    """Loop joints with the passive joints of the tree that their loops contain."""
    inboard = {joint.child: joint for joint in description.joints}

    def chain(link: str) -> list[Joint]:
        joints = []
        while link in inboard:
            joints.append(inboard[link])
            link = inboard[link].parent
        return joints

    pairs = []
    for loop in description.loop_joints:
        chains = [chain(loop.parent), chain(loop.child)]
        for chain_joints, other in (chains, chains[::-1]):
            pairs += [(loop.name, joint.name) for joint in chain_joints if joint not in other and joint.moves.nv == 1]
    return pairs


class Answers:
    """The answers of one cut in a motion. names: joints of the tree in both cuts. independent: those with drives."""

    def __init__(
        self, variant: Cut, original: Mechanism, names: list[str], independent: list[str], wrench: Wrench
    ) -> None:
        self.variant, self.robot, self.q, self.wrench = variant, variant.mechanism.robot, variant.mechanism.q, wrench
        self.original = original
        entries = self.robot.configuration.velocity_joints
        self.common = [k for name in names for k, entry in enumerate(entries) if entry == name]
        self.independent = [k for name in independent for k, entry in enumerate(entries) if entry == name]
        self.names = independent
        self.in_q = [
            k
            for name in names
            for k in range(self.robot.nq)[self.robot.configuration.q_slices[self.robot.joint_names.index(name)]]
        ]

    def all(self, seed: int, description: Description) -> dict[str, Array]:
        """By query, arrays of the same meaning in all cuts."""
        rng, robot, q, common = np.random.default_rng(seed), self.robot, self.q, self.common
        options: dict[str, Any] = {"wrenches": self.wrench}
        motion = robot.independent_motion(q, np.zeros(robot.nv), independent=self.names)
        u, rate, drives = rng.normal(size=(3, len(self.independent)))
        v = motion.jacobian @ u
        moving = robot.independent_motion(q, v, independent=self.names)
        a = moving.jacobian @ rate + moving.bias_accelerations
        tau = np.zeros(robot.nv)
        tau[self.independent] = drives
        floating = description.root == "floating"
        if floating:
            tau[:6] = 0.0
        answers = {
            "independent_motion, G": motion.jacobian[common],
            "independent_motion, G^T M G": moving.mass_matrix,
            "independent_motion, bias": np.concatenate([moving.bias_accelerations[common], moving.bias_forces]),
            "forward_dynamics": robot.forward_dynamics(q, v, tau, **options)[common],
            "constraint_forces": self._loads(v, tau, options),
        }
        energy, momentum = robot.energy(q, v), robot.momentum(q, v)
        of_momentum = robot.hamiltonian(q, momentum)
        answers |= {
            "energy": np.array([energy.kinetic, energy.potential]),
            "hamiltonian": np.array([of_momentum.kinetic, of_momentum.potential]),
            "velocity_from_momentum": robot.velocity_from_momentum(q, momentum)[common],
            "system_momentum": robot.system_momentum(q, v, frame="world").momentum[0],
            "operational_space": self._at_tip("operational_space"),
            "point_motion": self._at_tip("point_motion", v),
        }
        forward = robot.forward_dynamics_derivatives(q, v, tau, **options)
        square = np.ix_(common, common)
        answers |= {f"{name}": getattr(forward, name)[square] for name in ("da_dq", "da_dv", "da_dtau")}
        # Steps end at the nearest closed state in the coordinates of the tree, which differ by the error of rk4: with
        # 1 ms by 1.4e-11, a sixteenth for half the step.
        end = robot.simulate(q, v, tau, dt=2e-4, steps=5, integrator="rk4")
        answers["simulate"] = np.concatenate([end.q[-1][self.in_q], end.v[-1][common]])
        if floating:
            return answers
        answers["inverse_dynamics"] = robot.inverse_dynamics(q, v, a, **options)[common]
        answers["bias_forces"] = robot.bias_forces(q, v)[common]
        answers["gravity_forces"] = robot.gravity_forces(q)[common]
        a_ref, v_ref = np.zeros((2, robot.nv))
        a_ref[self.independent], v_ref[self.independent] = rate, drives
        gains = {"kp": 9.0, "kd": 4.0}
        answers["computed_torque"] = robot.computed_torque(q, v, q, v_ref, a_ref, **gains, **options)[common]
        inverse_of = robot.inverse_dynamics_derivatives(q, v, a, **options)
        answers |= {name: getattr(inverse_of, name)[square] for name in ("dtau_dq", "dtau_dv", "dtau_da")}
        Y = robot.inverse_dynamics_regressor(q, v, a)
        answers["inverse_dynamics_regressor"] = (Y.regressor @ robot.dynamic_parameters().theta)[common]
        return answers

    def _loads(self, v: Array, tau: Array, options: dict[str, Any]) -> Array:
        """What the original's parents exert on children, at the origins of the original's frames, in world axes."""
        loads = self.robot.constraint_forces(self.q, v, tau, frame="world", **options)
        poses = self.original.robot.link_poses(self.original.q)
        origins = {}
        for joint in (*self.original.description.joints, *self.original.description.loop_joints):
            k = poses.links.index(joint.child)
            offset = poses.rotation[k] @ joint.child_xyz if isinstance(joint, LoopJoint) else 0.0
            origins[joint.name] = poses.position[k] + offset
        cut_poses = self.robot.link_poses(self.q)
        rows = []
        description = self.variant.mechanism.description
        for joint in sorted((*description.joints, *description.loop_joints), key=lambda x: x.name):
            if joint.name not in loads.joints:
                continue
            k = cut_poses.links.index(joint.child)
            offset = cut_poses.rotation[k] @ joint.child_xyz if isinstance(joint, LoopJoint) else 0.0
            wrench = loads.wrench[loads.joints.index(joint.name)]
            arm = cut_poses.position[k] + offset - origins[joint.name]
            sign = -1.0 if joint.name in self.variant.reversed_joints else 1.0
            rows.append(sign * np.concatenate([wrench[:3] + np.cross(arm, wrench[3:]), wrench[3:]]))
        return np.array(rows)

    def _at_tip(self, query: str, *motion: Array) -> Array:
        """Of the point and link of the wrench."""
        answer = getattr(self.robot, query)(self.q, *motion, self.wrench.link, point=self.wrench.point)
        return np.asarray(answer.mobility if query == "operational_space" else answer.velocity)


def errors_of(seed: int) -> tuple[str, dict[str, float]]:
    """Returns what was cut, and the difference of each answer, relative to the largest entry of it and of `SCALES`."""
    case = drawn_case(seed)
    rng = np.random.default_rng(seed)
    pairs = pairs_to_cut(case.mechanism.description)
    for k in rng.permutation(len(pairs)):
        closing, opening = pairs[k]
        described = case.mechanism.description
        # A loop joint has no passive forces.
        parameters = {"damping": 0.0, "friction": 0.0, "armature": 0.0, "stiffness": 0.0}
        joints = tuple(replace(x, **parameters) if x.name == opening else x for x in described.joints)
        start = replace(case.mechanism, robot=Robot(replace(described, joints=joints)))
        m = zeroed(start, closing)
        names = [name for name in m.robot.joint_names if name != opening]
        entries = independent_entries(m, excluded=opening)
        if entries is None:
            continue
        independent = list(dict.fromkeys(m.robot.configuration.velocity_joints[i] for i in entries))
        m = replace(m, robot=Robot(with_drives(m.description, independent)))
        other = recut(m, closing, opening)
        if is_redundant(m):
            # The least squares of loads take moments about the frames on child links. A slide's two frames differ, so
            # that they depend on which of its links is the child; at its zero the two are one.
            m = slides_zeroed(m, other.reversed_joints)
            other = recut(m, closing, opening)
        for variant in (m, other.mechanism):
            interpreted_robot(variant.robot)
        first = Cut(m, {link.name: IDENTITY for link in m.description.links}, frozenset())
        link = moving_link(m)
        point, torque, force = np.random.default_rng(seed).uniform(-0.3, 0.3, (3, 3))
        answers = []
        for variant in (first, other):
            R, p = inverse(variant.frames[link])
            wrench = Wrench(link, torque, force, R @ point + p)
            answers.append(Answers(variant, m, names, independent, wrench).all(seed, m.description))
        errors = {}
        for query, x in answers[0].items():
            size = max(np.abs(answers[0][name]).max(initial=0.0) for name in (query, *SCALES.get(query, ())))
            errors[query] = float(np.abs(answers[1][query] - x).max() / (size or 1.0))
        return f"{m.description.root} root, {closing} to {opening}, {len(other.reversed_joints)} turned", errors
    return f"{case.mechanism.description.root} root: no other cut has the same independent joints", {}

"""Mechanisms with closed loops, from a seed, and their equations in fifty digits by other means.

`Exact` shares no code with the package: poses are polynomials of time, cut after the second order, of 4x4 matrices in
fifty digits; forces follow from virtual work, and the constraints are written out for each type of joint.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from mpmath import matrix, mp, mpf
from numpy.typing import NDArray

from dyn_service import Robot
from dyn_service.model.description import Description, LoopJoint
from dyn_service.model.joints import JOINT_TYPES
from tests.random_robots import random_urdf

Array = NDArray[np.float64]

DIGITS = 50


@dataclass(frozen=True, eq=False)
class Mechanism:
    """A robot with loops that are closed at q."""

    robot: Robot
    q: Array

    @property
    def description(self) -> Description:
        return self.robot.evaluator.model.description

    def motion(self, seed: int) -> tuple[Array, Array]:
        """Random v and a that keep the loops closed."""
        rng = np.random.default_rng(seed)
        zeros = np.zeros(self.robot.nv)
        at_rest = self.robot.independent_motion(self.q, zeros)
        v = at_rest.jacobian @ rng.normal(size=at_rest.jacobian.shape[1])
        moving = self.robot.independent_motion(self.q, v)
        return v, moving.jacobian @ rng.normal(size=at_rest.jacobian.shape[1]) + moving.bias_accelerations


def closed(
    description: Description, q: Array, ends: Sequence[tuple[str, str, str]], seed: int, normal: Array | None = None
) -> Description:
    """The robot with loop joints between the `ends`, (type, parent, child), all at a random position at q.

    normal: of the plane in which the links of a planar robot move, which the joints do not leave.
    """
    rng = np.random.default_rng(seed)
    poses = Robot(description).link_poses(q)
    place = dict(zip(poses.links, zip(poses.rotation, poses.position, strict=True), strict=True))
    joints = []
    for k, (kind, parent, child) in enumerate(ends):
        axis = rng.normal(size=3)
        if normal is not None:
            axis = np.cross(normal, axis) if kind == "prismatic" else normal
        axis /= np.linalg.norm(axis)
        moves = JOINT_TYPES[kind](axis, 0.3)
        R_J, p_J = moves.pose(moves.random(rng, np.full(moves.nq, -1.0), np.full(moves.nq, 1.0)))
        (R_P, p_P), (R_C, p_C) = place[parent], place[child]
        R_PJ, p_PJ = _rotation(rng), rng.uniform(-0.3, 0.3, 3)
        if normal is not None:
            R_PJ, _ = JOINT_TYPES["revolute"](normal, 0.0).pose(rng.uniform(-3.0, 3.0, 1))
            p_PJ -= (p_PJ @ normal) * normal
        R, p = R_P @ R_PJ @ R_J, p_P + R_P @ (p_PJ + R_PJ @ p_J)
        joints.append(LoopJoint(f"loop_{k}", kind, parent, child, p_PJ, R_PJ, R_C.T @ (p - p_C), R_C.T @ R, axis, 0.3))
    return replace(description, loop_joints=tuple(joints))


def random_mechanism(seed: int) -> Mechanism:
    """One to four loops between random links, with random joints of enough freedom; every third robot floats."""
    rng = np.random.default_rng(seed)
    movable = int(rng.integers(6, 10))
    types = ("revolute", "revolute", "continuous", "prismatic")
    description = Robot.from_urdf(
        random_urdf(seed, movable=movable, types=types, bushy=0.2)
    ).evaluator.model.description
    if seed % 3 == 0:
        description = replace(description, root="floating")
    # Without limits, so that random positions are closed in many ways.
    joints = tuple(replace(joint, limit=None) for joint in description.joints)
    description = replace(description, joints=joints)
    robot = Robot(description)
    q, free = robot.random_configuration(seed=seed), movable - 1
    links, ends = [link.name for link in description.links], []
    kinds = {"spherical": 3, "revolute": 5, "cylindrical": 4, "planar": 3, "prismatic": 5, "screw": 5, "fixed": 6}
    names = list(kinds)
    for k in range(int(rng.integers(1, 5))):
        kind = names[(seed + k) % len(names)]
        if kinds[kind] <= free:
            pairs = [rng.choice(len(links), 2, replace=False) for _ in range(8)]
            parent, child = max(pairs, key=lambda pair: _distance(description, links[pair[0]], links[pair[1]]))
            ends.append((kind, links[parent], links[child]))
            free -= kinds[kind]
    description = closed(description, q, ends, seed)
    driven = [joint.name for joint in description.joints if joint.moves.nv]
    joints = tuple(replace(joint, driven=joint.name in driven) for joint in description.joints)
    return Mechanism(Robot(replace(description, joints=joints)), q)


def _distance(description: Description, *ends: str) -> int:
    """The number of movable joints between two links."""
    inboard = {joint.child: joint for joint in description.joints}
    chains = []
    for link in ends:
        chain = set()
        while link in inboard:
            chain |= {inboard[link].name} if inboard[link].moves.nv else set()
            link = inboard[link].parent
        chains.append(chain)
    return len(chains[0] ^ chains[1])


def slider_crank(angle: float = np.pi / 3, driven: Sequence[str] = ("crank_joint",)) -> Mechanism:
    """Crank 0.2 m, 1 kg; rod 0.5 m, 0.8 kg; slider 0.5 kg on a horizontal rail; uniform rods. Neutral along x."""
    links = '<link name="rail"/>'
    joints = ""
    for name, mass, length in (("crank", 1.0, 0.2), ("rod", 0.8, 0.5), ("slider", 0.5, 0.0)):
        inertia = mass * length**2 / 12 or 1e-3
        links += (
            f'<link name="{name}"><inertial><origin xyz="{length / 2!r} 0 0"/><mass value="{mass!r}"/>'
            f'<inertia ixx="1e-6" iyy="{inertia!r}" izz="{inertia!r}" ixy="0" ixz="0" iyz="0"/></inertial></link>'
        )
    for name, kind, parent, child, x, axis in (
        ("crank_joint", "continuous", "rail", "crank", 0.0, "0 -1 0"),
        ("pin", "continuous", "crank", "rod", 0.2, "0 -1 0"),
        ("slide", "prismatic", "rail", "slider", 0.0, "1 0 0"),
    ):
        joints += (
            f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/>'
            f'<origin xyz="{x!r} 0 0"/><axis xyz="{axis}"/>'
            '<limit lower="-2" upper="2" effort="9" velocity="9"/></joint>'
        )
    description = Robot.from_urdf(f'<robot name="slider_crank">{links}{joints}</robot>').evaluator.model.description
    wrist = LoopJoint(
        "wrist_pin", "revolute", "rod", "slider", np.array([0.5, 0.0, 0.0]), np.eye(3), np.zeros(3), np.eye(3),
        np.array([0.0, -1.0, 0.0]),
    )  # fmt: skip
    phi = np.arcsin(-0.4 * np.sin(angle))
    q = np.array([angle, phi - angle, 0.2 * np.cos(angle) + 0.5 * np.cos(phi)])
    return Mechanism(Robot(with_drives(replace(description, loop_joints=(wrist,)), driven)), q)


def four_bar(angle: float = 0.7, driven: Sequence[str] = ("pin_0",)) -> Mechanism:
    """Bars of 0.2, 0.5 and 0.4 m; the third turns about a point of the ground at x = 0.6 m."""
    description = Robot.from_urdf(planar_urdf([0.2, 0.5, 0.4], [-1, 0, -1])).evaluator.model.description
    joints = tuple(
        replace(joint, xyz=np.array([0.6, 0.0, 0.0])) if joint.name == "pin_2" else joint
        for joint in description.joints
    )
    pin = LoopJoint(
        "pin_3", "revolute", "bar_1", "bar_2", np.array([0.5, 0.0, 0.0]), np.eye(3), np.array([0.4, 0.0, 0.0]),
        np.eye(3), np.array([0.0, -1.0, 0.0]),
    )  # fmt: skip
    robot = Robot(with_drives(replace(description, joints=joints, loop_joints=(pin,)), driven))
    return Mechanism(robot, robot.assemble(np.array([angle, 0.0, 1.5]), fixed=["pin_0"]))


def with_drives(description: Description, driven: Sequence[str]) -> Description:
    """The robot with motors at these joints only."""
    joints = tuple(replace(joint, driven=joint.name in driven) for joint in description.joints)
    return replace(description, joints=joints)


def planar_urdf(lengths: Sequence[float], parents: Sequence[int]) -> str:
    """Bars in the x-z plane, each along x from its joint, with the axis -y; parent -1: the ground."""
    text = '<link name="ground"/>'
    for k, (length, parent) in enumerate(zip(lengths, parents, strict=True)):
        x = 0.0 if parent < 0 else lengths[parent]
        text += (
            f'<link name="bar_{k}"><inertial><origin xyz="{length / 2!r} 0 0"/><mass value="{1.0 + 0.3 * k!r}"/>'
            f'<inertia ixx="1e-3" iyy="{0.02 + 0.01 * k!r}" izz="0.02" ixy="0" ixz="0" iyz="0"/></inertial></link>'
            f'<joint name="pin_{k}" type="continuous"><parent link="{"ground" if parent < 0 else f"bar_{parent}"}"/>'
            f'<child link="bar_{k}"/><origin xyz="{x!r} 0 0"/><axis xyz="0 -1 0"/></joint>'
        )
    return f'<robot name="bars">{text}</robot>'


def _rotation(rng: np.random.Generator) -> Array:
    Q, R = np.linalg.qr(rng.normal(size=(3, 3)))
    Q = Q * np.sign(np.diagonal(R))
    return np.asarray(Q * np.linalg.det(Q))


class Exact:
    """A mechanism's equations at q in fifty digits. rows, bias: J and J-dot v; M, C: as in (18), of the tree.

    v: all velocities, or those of the entries of independent joints. Positions and velocities may have fifty digits.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        v: Any,
        gravity: Sequence[float] = (0.0, 0.0, -9.81),
        entries: Sequence[int] | None = None,
    ) -> None:
        with mp.workdps(DIGITS):
            self.mechanism, self.gravity = mechanism, matrix([mpf(g) for g in gravity])
            self.nv = mechanism.robot.nv
            units = np.eye(self.nv)
            self._columns = [self._bodies(unit, 0 * unit) for unit in units]
            zero = np.zeros(self.nv)
            first = [self._constraints(poses, 1) for poses, _ in self._columns]
            self.rows = matrix(len(first[0]), self.nv)
            for k, column in enumerate(first):
                for i, entry in enumerate(column):
                    self.rows[i, k] = entry
            self.v = v = list(v) if entries is None else self.solved([0] * self.rows.rows, entries, v)
            self.C = self._efforts(self._bodies(v, zero))
            weight = self._efforts(self._bodies(zero, zero))
            efforts = [self._efforts(self._bodies(zero, unit)) for unit in units]
            self.M = matrix(self.nv, self.nv)
            for k, effort in enumerate(efforts):
                for i in range(self.nv):
                    self.M[i, k] = effort[i] - weight[i]
            self.bias = self._constraints(self._bodies(v, zero)[0], 2)

    def forward(self, tau: Array) -> Array:
        """The accelerations under efforts, from M a - J^T lambda = tau - C, J a = -J-dot v."""
        return np.array([float(x) for x in self.accelerations(tau)])

    def accelerations(self, tau: Any) -> list[Any]:
        """`forward` in fifty digits."""
        with mp.workdps(DIGITS):
            n, rows = self.nv, self._independent()
            size = n + len(rows)
            A, b = mp.zeros(size), matrix(size, 1)
            for i in range(n):
                b[i] = mpf(tau[i]) - self.C[i]
                for k in range(n):
                    A[i, k] = self.M[i, k]
                for j, row in enumerate(rows, start=n):
                    A[i, j], A[j, i] = -self.rows[row, i], self.rows[row, i]
            for j, row in enumerate(rows, start=n):
                b[j] = -self.bias[row]
            return list(mp.lu_solve(A, b))[:n]

    def solved(self, right: Sequence[Any], entries: Sequence[int], u: Sequence[Any]) -> list[Any]:
        """x with J x = right and x = u at these entries, as many as J leaves free."""
        chosen = self._independent()
        A, b = mp.zeros(self.nv), matrix(self.nv, 1)
        for i, row in enumerate(chosen):
            A[i, :], b[i] = self.rows[row, :], right[row]
        for i, (entry, value) in enumerate(zip(entries, u, strict=True), start=len(chosen)):
            A[i, entry], b[i] = 1, mpf(value)
        return list(mp.lu_solve(A, b))

    def drive_efforts(self, a: Sequence[Any], entries: Sequence[int]) -> list[Any]:
        """The efforts of all joints with the least squares that cause accelerations: B^T (B B^T)^-1 G^T (M a + C)."""
        with mp.workdps(DIGITS):
            zeros = [0] * self.rows.rows
            G = [self.solved(zeros, entries, unit) for unit in np.eye(len(entries))]
            driven = {joint.name for joint in self.mechanism.description.joints if joint.driven}
            drives = [float(name in driven) for name in self.mechanism.robot.configuration.velocity_joints]
            h = self.M * matrix(a) + matrix(self.C)
            B = matrix([[x * d for x, d in zip(column, drives, strict=True)] for column in G])
            return list(B.T * mp.lu_solve(B * B.T, matrix(G) * h))

    def near(self, entries: Sequence[int], steps: Sequence[Any]) -> Mechanism:
        """The mechanism closed in fifty digits, with small displacements of the joints at these entries."""
        with mp.workdps(DIGITS):
            motion = self.solved([0] * self.rows.rows, entries, steps)
            q = self._displaced([mpf(float(x)) for x in self.mechanism.q], motion)
            for _ in range(3):  # with the rows at q: each step gains the digits of the displacement
                there = copy(self)
                there.mechanism = replace(self.mechanism, q=q)
                zero = np.zeros(self.nv)
                gap = there._constraints(there._bodies(zero, zero)[0], 0)
                q = self._displaced(q, self.solved([-x for x in gap], entries, [0] * len(entries)))
            return replace(self.mechanism, q=q)

    def _displaced(self, q: list[Any], e: Sequence[Any]) -> list[Any]:
        """q moved by small motions, to their first order: their squares cancel in central differences."""
        configuration, displaced = self.mechanism.robot.configuration, list(q)
        for i, k in zip(configuration.q_slices, configuration.v_slices, strict=True):
            if i.stop - i.start == 1:
                displaced[i.start] += e[k.start]
        if self.mechanism.description.root == "floating":
            R = self._root_pose(np.zeros(self.nv), np.zeros(self.nv))[0][:3, :3]
            shift = R * matrix(e[:3])
            x, y, z, w = q[3:7]
            r = [component / 2 for component in e[3:6]]
            displaced[:7] = [
                *(q[k] + shift[k] for k in range(3)),
                x + w * r[0] + y * r[2] - z * r[1],
                y + w * r[1] + z * r[0] - x * r[2],
                z + w * r[2] + x * r[1] - y * r[0],
                w - x * r[0] - y * r[1] - z * r[2],
            ]
        return displaced

    def _independent(self) -> list[int]:
        """Rows that no others determine. Closed to doubles, dependent rows differ by 1e-16."""
        A, indices = self.rows.copy(), []
        for _ in range(min(A.rows, A.cols)):
            size, i, k = max((abs(A[i, k]), i, k) for i in range(A.rows) for k in range(A.cols))
            if size < mpf("1e-10"):
                break
            indices.append(i)
            for j in range(A.rows):
                if j != i:
                    share = A[j, k] / A[i, k]
                    for c in range(A.cols):
                        A[j, c] -= share * A[i, c]
            for c in range(A.cols):
                A[i, c] = mpf(0)
        return sorted(indices)

    def body_forces(self, v: Array, a: Array) -> dict[str, tuple[Array, Array, Array]]:
        """By link: the position of its centre of mass, the force m (c-ddot - g), and the moment about the centre."""
        with mp.workdps(DIGITS):
            _, forces = self._bodies(v, a)
            return {
                name: tuple(np.array([float(x) for x in part]) for part in (c[0], f, n))  # type: ignore[misc]
                for name, (c, _, f, n) in forces.items()
            }

    def _efforts(self, bodies: Any) -> list[Any]:
        _, forces = bodies
        efforts = []
        for _, motions in self._columns:
            power = mpf(0)
            for name, (_, _, f, n) in forces.items():
                c, omega, _, _ = motions[name]
                power += sum(c[1][i] * f[i] + omega[i] * n[i] for i in range(3))
            efforts.append(power)
        return efforts

    def _bodies(self, v: Array, a: Array) -> tuple[dict[str, list[Any]], dict[str, Any]]:
        """Poses (three coefficients of time) by link; and by link c, omega, force and moment."""
        description, robot = self.mechanism.description, self.mechanism.robot
        poses = {self._root: self._root_pose(v, a)}
        entry = {name: part.start for name, part in zip(robot.joint_names, robot.configuration.v_slices, strict=True)}
        in_q = {name: part.start for name, part in zip(robot.joint_names, robot.configuration.q_slices, strict=True)}
        waiting = list(description.joints)
        while waiting:
            joint = waiting.pop(0)
            if joint.parent not in poses:
                waiting.append(joint)
                continue
            pose = _times(poses[joint.parent], _constant(joint.rotation, joint.xyz))
            if joint.name in entry:
                k = entry[joint.name]
                x = [mpf(y) for y in (self.mechanism.q[in_q[joint.name]], v[k], a[k])]
                pose = _times(pose, _moved(joint.type, joint.axis, x))
            poses[joint.child] = pose
        forces = {}
        for link in description.links:
            if link.inertial is None:
                continue
            m, T = mpf(link.inertial.mass), poses[link.name]
            com = _constant(link.inertial.rotation, link.inertial.com)
            T = _times(T, com)
            c = [[T[k][i, 3] for i in range(3)] for k in range(3)]
            R, R1, R2 = (T[k][:3, :3] for k in range(3))
            omega = _vector(R1 * R.T)
            alpha = _vector(2 * R2 * R.T + R1 * R1.T)
            inertia = R * _matrix(link.inertial.inertia) * R.T
            f = [m * (2 * c[2][i] - self.gravity[i]) for i in range(3)]
            h = inertia * matrix(omega)
            moment = inertia * matrix(alpha) + matrix(_cross(omega, list(h)))
            forces[link.name] = (c, omega, f, list(moment))
        return poses, forces

    @property
    def _root(self) -> str:
        description = self.mechanism.description
        (root,) = {link.name for link in description.links} - {joint.child for joint in description.joints}
        return root

    def _root_pose(self, v: Array, a: Array) -> list[Any]:
        if self.mechanism.description.root == "fixed":
            return _constant(np.eye(3), np.zeros(3))
        x, y, z, w = (mpf(e) for e in self.mechanism.q[3:7])
        n = x * x + y * y + z * z + w * w
        R = matrix(
            [
                [1 - 2 * (y * y + z * z) / n, 2 * (x * y - z * w) / n, 2 * (x * z + y * w) / n],
                [2 * (x * y + z * w) / n, 1 - 2 * (x * x + z * z) / n, 2 * (y * z - x * w) / n],
                [2 * (x * z - y * w) / n, 2 * (y * z + x * w) / n, 1 - 2 * (x * x + y * y) / n],
            ]
        )
        (v0, w0), (a0, alpha) = (([mpf(e) for e in u[:3]], [mpf(e) for e in u[3:6]]) for u in (v, a))
        W = _skew(w0)
        rotations = [R, R * W, R * (_skew(alpha) + W * W) / 2]
        shift = matrix(a0) + W * matrix(v0)
        shifts = [matrix([mpf(e) for e in self.mechanism.q[:3]]), R * matrix(v0), R * shift / 2]
        return [_pose(rotation, p, k == 0) for k, (rotation, p) in enumerate(zip(rotations, shifts, strict=True))]

    def _constraints(self, poses: dict[str, list[Any]], order: int) -> list[Any]:
        """The derivative of that order of all constraints."""
        values = []
        for joint in self.mechanism.description.loop_joints:
            P = _times(poses[joint.parent], _constant(joint.parent_rotation, joint.parent_xyz))
            C = _times(poses[joint.child], _constant(joint.child_rotation, joint.child_xyz))
            values += [(2 if order == 2 else 1) * series[order] for series in _equations(joint, P, C)]
        return values


def _equations(joint: LoopJoint, P: list[Any], C: list[Any]) -> list[list[Any]]:
    """The constraints of a joint on its frames P and C, as series of time."""
    n = [mpf(float(x)) for x in joint.axis]
    normals = [_unit(_cross(n, [mpf(1), mpf(0), mpf(0)])), None]
    normals[1] = _cross(n, normals[0])
    d = [[C[k][i, 3] - P[k][i, 3] for i in range(3)] for k in range(3)]

    def turned(T: list[Any], x: Any) -> list[Any]:
        return [list(T[k][:3, :3] * matrix(x)) for k in range(3)]

    def dot(x: list[Any], y: list[Any]) -> list[Any]:
        return [sum(x[i][c] * y[k - i][c] for i in range(k + 1) for c in range(3)) for k in range(3)]

    axis, e = turned(P, n), [turned(P, x) for x in normals]
    point = [[d[k][i] for k in range(3)] for i in range(3)]
    slide = [dot(d, x) for x in e]
    parallel = [dot(turned(C, n), x) for x in e]
    # The angle about the axis: normals[0] of C against normals[1] of P at the angle of the position, differentiated.
    c, s = dot(turned(C, normals[0]), e[0]), dot(turned(C, normals[0]), e[1])
    angle = [mpf(0), (c[0] * s[1] - s[0] * c[1]), (c[0] * s[2] - s[0] * c[2])]
    r2 = c[0] ** 2 + s[0] ** 2
    # atan2(s, c) to the second order
    first = (c[0] * s[1] - s[0] * c[1]) / r2
    second = (c[0] * s[2] - s[0] * c[2]) / r2 - first * (c[0] * c[1] + s[0] * s[1]) / r2
    angle = [mp.atan2(s[0], c[0]), first, second]
    shift = dot(d, axis)
    screw = [shift[k] - mpf(joint.pitch) / (2 * mp.pi) * angle[k] for k in range(3)]
    return {
        "spherical": point,
        "revolute": point + parallel,
        "cylindrical": slide + parallel,
        "prismatic": slide + parallel + [angle],
        "planar": [shift, *parallel],
        "screw": slide + parallel + [screw],
        "fixed": point + parallel + [angle],
    }[joint.type]


def _moved(kind: str, axis: Array, x: list[Any]) -> list[Any]:
    """The pose of a joint at x0 + x1 t + x2 t^2 / 2."""
    n = [mpf(float(y)) for y in axis]
    length = mp.sqrt(sum(y * y for y in n))
    n = [y / length for y in n]
    if kind == "prismatic":
        shifts = [x[0], x[1], x[2] / 2]
        return [_pose(mp.eye(3) if k == 0 else mp.zeros(3), matrix(n) * s, k == 0) for k, s in enumerate(shifts)]
    K = _skew(n)
    R = mp.eye(3) + mp.sin(x[0]) * K + (1 - mp.cos(x[0])) * K * K
    rotations = [R, R * K * x[1], R * (K * x[2] + K * K * x[1] ** 2) / 2]
    return [_pose(rotation, mp.zeros(3, 1), k == 0) for k, rotation in enumerate(rotations)]


def _times(A: list[Any], B: list[Any]) -> list[Any]:
    return [A[0] * B[0], A[0] * B[1] + A[1] * B[0], A[0] * B[2] + A[1] * B[1] + A[2] * B[0]]


def _constant(R: Array, p: Array) -> list[Any]:
    return [_pose(_matrix(R), matrix([mpf(float(x)) for x in p]), True), mp.zeros(4), mp.zeros(4)]


def _pose(R: Any, p: Any, is_pose: bool) -> Any:
    T = mp.zeros(4)
    for i in range(3):
        T[i, 3] = p[i]
        for k in range(3):
            T[i, k] = R[i, k]
    T[3, 3] = mpf(int(is_pose))
    return T


def _matrix(R: Array) -> Any:
    return matrix([[mpf(float(x)) for x in row] for row in R])


def _skew(x: Any) -> Any:
    return matrix([[0, -x[2], x[1]], [x[2], 0, -x[0]], [-x[1], x[0], 0]])


def _vector(S: Any) -> list[Any]:
    return [(S[2, 1] - S[1, 2]) / 2, (S[0, 2] - S[2, 0]) / 2, (S[1, 0] - S[0, 1]) / 2]


def _cross(x: Any, y: Any) -> list[Any]:
    return [x[1] * y[2] - x[2] * y[1], x[2] * y[0] - x[0] * y[2], x[0] * y[1] - x[1] * y[0]]


def _unit(x: list[Any]) -> list[Any]:
    length = mp.sqrt(sum(y * y for y in x))
    return [y / length for y in x]

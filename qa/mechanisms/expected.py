"""Answers for mechanisms in fifty digits, from `tests.loops.Exact`, and the scales on which errors count.

Added here: external wrenches by virtual work, passive forces, loads of all joints by the balance of forces on the
links, and pseudo-inverses for redundant drives.

    efforts         over sqrt(M_ii), relative to the largest such ratio of efforts, M a + C and passive forces
    accelerations   times sqrt(M_ii), relative to the largest such product; G likewise with both joints
    loads           forces and moments of a joint, relative to the largest loads of the joints on its two links
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from mpmath import matrix, mp, mpf

from dyn_service.model.description import LoopJoint
from qa.mechanisms.drawn import Case
from tests.loops import DIGITS, Array, Exact, _constant, _cross, _times, _unit, _vector

DEPENDENT = mpf("1e-10")
"""Positions are closed to 1e-16, so that dependent rows differ by about as much."""


class Expected(Exact):
    """The answers for one case."""

    def __init__(self, case: Case) -> None:
        super().__init__(case.mechanism, case.v, case.gravity.tolist())
        self.case = case
        robot, configuration = case.robot, case.robot.configuration
        self.names = list(configuration.velocity_joints)
        joints = {joint.name: joint for joint in case.mechanism.description.joints}
        self.drives = [name in joints and bool(joints[name].driven) for name in self.names]
        with mp.workdps(DIGITS):
            zero = np.zeros(self.nv)
            self.at_rest = self._bodies(zero, zero)
            self.pushes = self._pushes()
            self.at_rest_efforts = self._efforts(self.at_rest)  # without the wrenches
            in_q = dict(zip(robot.joint_names, configuration.q_slices, strict=True))
            for i, name in enumerate(self.names):
                joint = joints.get(name)
                spring = mpf(0)
                if joint is not None:
                    v = mpf(self.v[i])
                    spring = mpf(joint.stiffness) * (mpf(case.mechanism.q[in_q[name].start]) - mpf(joint.rest))
                    self.C[i] += mpf(joint.damping) * v + spring
                    if joint.friction:
                        self.C[i] += mpf(joint.friction) * mp.tanh(v / mpf(joint.friction_width))
                    self.M[i, i] += mpf(joint.armature)
                self.at_rest_efforts[i] += spring
            self.C_unpushed = self.C
            self.C = [C - push for C, push in zip(self.C, self.pushes, strict=True)]
        self.d = np.sqrt([float(self.M[i, i]) for i in range(self.nv)])

    def _pushes(self) -> list[Any]:
        """The efforts with the effect of the wrenches, by their power."""
        efforts = [mpf(0)] * self.nv
        for wrench in self.case.wrenches:
            torque, force, point = self._at(wrench)
            R = self.at_rest[0][wrench.link][0][:3, :3]
            for i, (poses, _) in enumerate(self._columns):
                rate = poses[wrench.link][1]
                omega = _vector(rate[:3, :3] * R.T)
                velocity = rate * point
                efforts[i] += sum(torque[k] * omega[k] + force[k] * velocity[k] for k in range(3))
        return efforts

    def _at(self, wrench: Any) -> tuple[Any, Any, Any]:
        """Torque and force in world axes; the point in the link's frame, with a 1."""
        torque, force = (matrix([mpf(float(x)) for x in y]) for y in (wrench.torque, wrench.force))
        if wrench.frame != "world":
            R = self.at_rest[0][wrench.frame][0][:3, :3]
            torque, force = R * torque, R * force
        return torque, force, matrix([*(mpf(float(x)) for x in wrench.point), mpf(1)])

    def inertial(self, a: Sequence[Any], *, pushed: bool = True) -> Any:
        """M a + C, with the wrenches or without them."""
        return self.M * matrix(list(map(mpf, a))) + matrix(self.C if pushed else self.C_unpushed)

    @cached_property
    def motions(self) -> Any:
        """G^T: a row for the motion of each independent entry."""
        entries, zeros = self.case.independent, [0] * self.rows.rows
        return matrix([self.solved(zeros, entries, unit) for unit in np.eye(len(entries))])

    @cached_property
    def bias_accelerations(self) -> Any:
        """The accelerations with none of the independent entries."""
        return matrix(self.solved([-x for x in self.bias], self.case.independent, [0] * len(self.case.independent)))

    def efforts(self, h: Any) -> list[Any]:
        """The least efforts of the drives that have the power of h in all motions that keep the loops closed."""
        with mp.workdps(DIGITS):
            G = self.motions
            B = matrix([[G[i, k] * int(drive) for k, drive in enumerate(self.drives)] for i in range(G.rows)])
            rows = independent_rows(B)
            B, power = matrix([list(B[i, :]) for i in rows]), G * h
            return list(B.T * mp.lu_solve(B * B.T, matrix([power[i] for i in rows])))

    def loads(self, tau: Array, a: Sequence[Any]) -> tuple[dict[str, Array], dict[str, Array]]:
        """By joint: its wrench [moment; force] on the child link, in the axes of its frame there; and its scales."""
        with mp.workdps(DIGITS):
            poses, forces = self._bodies(self.v, a)
            joints = [*self.mechanism.description.joints, *self.mechanism.description.loop_joints]
            frames = {joint.name: self._frame(joint, poses) for joint in joints}
            bases = [_blocked(joint, frames[joint.name]) for joint in self.mechanism.description.loop_joints]
            columns = [(k, wrench) for k, basis in enumerate(bases) for wrench in basis]
            pushes = self._link_forces(poses, forces)
            constant = self._joint_loads(frames, pushes, [])
            parts = [self._joint_loads(frames, {}, [column]) for column in columns]
            K = np.array([np.concatenate([part[joint.name] for joint in joints]) for part in parts]).T
            W = np.concatenate([constant[joint.name] for joint in joints])
            share = self._least(K, W, columns, self.inertial(a) - matrix([mpf(float(x)) for x in tau]))
            W = (W + K @ share).reshape(-1, 2, 3)
            wrenches = {}
            for joint, wrench in zip(joints, W, strict=True):
                R = np.array(frames[joint.name][:3, :3].tolist())
                wrenches[joint.name] = np.array(wrench @ R, dtype=float).reshape(6)
        link_loads = {name: np.array(x, dtype=float) for name, x in pushes.items()}
        return wrenches, _load_scales(joints, wrenches, link_loads)

    def _least(self, K: Any, W: Any, columns: list[Any], missing: Any) -> Any:
        """The forces of the loop joints that balance the efforts, those with the least loads of all joints."""
        work = matrix(self.nv, len(columns))
        for i, (poses, _) in enumerate(self._columns):
            for c, (k, wrench) in enumerate(columns):
                work[i, c] = self._power(self.mechanism.description.loop_joints[k], wrench, poses)
        rows = independent_rows(work)
        m, n = len(columns), len(columns) + len(rows)
        A, b = mp.zeros(n), matrix(n, 1)
        normal, right = K.T @ K, -(K.T @ W)
        for i in range(m):
            b[i] = right[i]
            for k in range(m):
                A[i, k] = normal[i, k]
            for k, row in enumerate(rows, start=m):
                A[i, k] = A[k, i] = work[row, i]
        for k, row in enumerate(rows, start=m):
            b[k] = missing[row]
        return np.array(list(mp.lu_solve(A, b))[:m])

    def _power(self, joint: LoopJoint, wrench: Any, rates: dict[str, Any]) -> Any:
        """The power of a wrench of a loop joint in a motion: of P on C at C's frame, the opposite on P."""
        poses = self.at_rest[0]
        point = self._frame(joint, poses)[:, 3]
        power = mpf(0)
        for link, sign in ((joint.child, 1), (joint.parent, -1)):
            T, rate = poses[link][0], rates[link][1]
            omega = _vector(rate[:3, :3] * T[:3, :3].T)
            R_T, p = T[:3, :3].T, T[:3, 3]
            local = R_T * (point[:3, 0] - p)
            velocity = rate * matrix([*local, 1])
            power += sign * sum(wrench[k] * omega[k] + wrench[3 + k] * velocity[k] for k in range(3))
        return power

    def _frame(self, joint: Any, poses: dict[str, Any]) -> Any:
        """The pose of the joint's frame on its child link."""
        if isinstance(joint, LoopJoint):
            return _times(poses[joint.child], _constant(joint.child_rotation, joint.child_xyz))[0]
        return poses[joint.child][0]

    def _link_forces(self, poses: dict[str, Any], forces: dict[str, Any]) -> dict[str, Any]:
        """By link: moment about the world's origin and force that its joints exert on it."""
        total = {}
        for name, (c, _, f, n) in forces.items():
            total[name] = np.array([*(x + y for x, y in zip(n, _cross(c[0], f), strict=True)), *f])
        for wrench in self.case.wrenches:
            torque, force, point = self._at(wrench)
            place = list(poses[wrench.link][0] * point)[:3]
            moment = [x + y for x, y in zip(torque, _cross(place, list(force)), strict=True)]
            total[wrench.link] = total.get(wrench.link, 0) - np.array([*moment, *force])
        return total

    def _joint_loads(self, frames: dict[str, Any], forces: dict[str, Any], loops: list[Any]) -> dict[str, Any]:
        """By joint: the wrench at its frame's origin in world axes, if links need `forces` and loop joints exert
        `loops`, (index, wrench)."""
        description, link_forces = self.mechanism.description, dict(forces)
        loads = {joint.name: np.array([mpf(0)] * 6) for joint in description.loop_joints}
        for k, wrench in loops:
            joint = description.loop_joints[k]
            loads[joint.name] = np.array(wrench)
            about_world = _moved(np.array(wrench), frames[joint.name], -1)
            link_forces[joint.child] = link_forces.get(joint.child, 0) - about_world
            link_forces[joint.parent] = link_forces.get(joint.parent, 0) + about_world
        inboard = {joint.child: joint for joint in description.joints}
        tree_loads = {joint.name: np.array([mpf(0)] * 6) for joint in description.joints}
        for link, force in link_forces.items():
            place = link
            while place in inboard:
                tree_loads[inboard[place].name] = tree_loads[inboard[place].name] + force
                place = inboard[place].parent
        return loads | {name: _moved(wrench, frames[name], 1) for name, wrench in tree_loads.items()}


def independent_rows(A: Any) -> list[int]:
    """Rows of a matrix that no others determine."""
    A, rows = A.copy(), []
    for _ in range(min(A.rows, A.cols)):
        size, i, k = max((abs(A[i, k]), i, k) for i in range(A.rows) for k in range(A.cols))
        if size < DEPENDENT:
            break
        rows.append(i)
        for j in range(A.rows):
            if j != i and A[j, k]:
                share = A[j, k] / A[i, k]
                for c in range(A.cols):
                    A[j, c] -= share * A[i, c]
        for c in range(A.cols):
            A[i, c] = mpf(0)
    return sorted(rows)


def _moved(wrench: Any, frame: Any, sign: int) -> Any:
    """A wrench about the world's origin, about the origin of a frame; sign -1: the inverse."""
    p = [frame[i, 3] for i in range(3)]
    moment = wrench[:3] - sign * np.array(_cross(p, list(wrench[3:])))
    return np.concatenate([moment, wrench[3:]])


def _blocked(joint: LoopJoint, frame: Any) -> list[list[Any]]:
    """The wrenches that a loop joint transmits, in world axes at its frame: no work in its free motions."""
    n = _unit([mpf(float(x)) for x in joint.axis])
    e = _unit(_cross(n, [mpf(1), mpf(0), mpf(0)]))
    normals, zero = [e, _cross(n, e)], [mpf(0)] * 3
    axis_wrenches = [[*zero, *n]], [[*n, *zero]]  # force, moment
    forces, moments = [[*zero, *x] for x in normals], [[*x, *zero] for x in normals]
    pitch = mpf(joint.pitch) / (2 * mp.pi)
    basis = {
        "spherical": forces + axis_wrenches[0],
        "revolute": forces + axis_wrenches[0] + moments,
        "cylindrical": forces + moments,
        "prismatic": forces + moments + axis_wrenches[1],
        "planar": axis_wrenches[0] + moments,
        "screw": [*forces, *moments, [*(-pitch * x for x in n), *n]],
        "fixed": forces + moments + axis_wrenches[0] + axis_wrenches[1],
    }[joint.type]
    R = frame[:3, :3]
    return [[*(R * matrix(wrench[:3])), *(R * matrix(wrench[3:]))] for wrench in basis]


def _load_scales(joints: Sequence[Any], wrenches: dict[str, Array], link_loads: dict[str, Array]) -> dict[str, Array]:
    """By joint: the largest load, in N m and N, of the joints on its two links and of what else acts on these."""
    largest: dict[str, float] = {}
    for joint in joints:
        for link in (joint.parent, joint.child):
            largest[link] = max(largest.get(link, 0.0), np.abs(wrenches[joint.name]).max())
    for link, wrench in link_loads.items():
        largest[link] = max(largest.get(link, 0.0), np.abs(wrench[3:]).max())
    return {joint.name: max(largest[joint.parent], largest[joint.child]) or 1.0 for joint in joints}

"""Both dynamics, loads and identities of random mechanisms against fifty digits.

Rows that are no query: `forward of inverse` is the acceleration again, `inverse of forward` the power of the difference
of efforts in each motion, relative to the terms of M a + C and tau; `power of loads` is that of all loop joints
together in the motion, relative to the power of the sizes of its terms.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpmath import matrix, mp

from dyn_service.api.results import ConstraintForces
from qa.mechanisms.drawn import Case, drawn_case
from qa.mechanisms.expected import Expected
from tests.loops import DIGITS, Array

Errors = dict[str, float]


class Comparison:
    """A case's answers against the true ones."""

    def __init__(self, case: Case) -> None:
        self.case, self.robot, self.exact = case, case.robot, Expected(case)
        self.q, self.v, self.tau = case.mechanism.q, case.v, case.tau
        self.options: dict[str, Any] = {"gravity": case.gravity, "wrenches": list(case.wrenches) or None}
        self.state = (self.q, self.v)
        d, v = self.exact.d, np.abs(self.v)
        self.velocity_efforts = d * v * (d * v).max()

    def effort_error(self, x: Array, y: Array, *terms: Array) -> float:
        """The error of efforts x. Without weight and drives the efforts of velocities count, which cancel in planes."""
        sizes = (np.abs(term / self.exact.d).max(initial=0.0) for term in (y, *terms, self.velocity_efforts))
        size = float(max(sizes))
        return float(np.abs((x - y) / self.exact.d).max()) / (size or 1.0)

    def motion_error(self, x: Array, y: Array) -> float:
        """The error of accelerations x."""
        return float(np.abs((x - y) * self.exact.d).max() / (np.abs(y * self.exact.d).max() or 1.0))

    def errors(self) -> Errors:
        """The error of each query and identity."""
        robot, exact, tau = self.robot, self.exact, self.tau
        with mp.workdps(DIGITS):
            true_a = exact.accelerations(tau)
            a = robot.forward_dynamics(*self.state, tau, **self.options)
            h = exact.inertial(a)
            true_tau = doubles(exact.efforts(h))
            wrenches, scales = exact.loads(tau, true_a)
        terms = doubles(h), doubles(exact.C), tau
        drive_tau = robot.inverse_dynamics(*self.state, a, **self.options)
        loads = robot.constraint_forces(*self.state, tau, **self.options)
        errors = {
            "forward_dynamics": self.motion_error(a, doubles(true_a)),
            "inverse_dynamics": self.effort_error(drive_tau, true_tau, *terms),
            "constraint_forces": load_error(loads.joints, loads.wrench, wrenches, scales),
        }
        if self.case.is_determined:
            reading = robot.force_torque(*self.state, a, **self.options)
            sensor_loads = np.concatenate([reading.torque, reading.force], axis=-1)
            errors["force_torque"] = load_error(reading.joints, sensor_loads, wrenches, scales)
        errors |= self._independent()
        repeated_a = robot.forward_dynamics(*self.state, drive_tau, **self.options)
        G = doubles(exact.motions).reshape(-1, robot.nv)
        inertial = np.abs(terms[0] - terms[1])
        sizes = np.abs(G) @ (inertial + np.abs(terms[1]) + np.abs(tau))
        return errors | {
            "forward of inverse": self.motion_error(repeated_a, a),
            "inverse of forward": float((np.abs(G @ (drive_tau - tau)) / sizes).max()),
            "power of loads": self._power(loads),
        }

    def _independent(self) -> Errors:
        """The errors of `independent_motion`, `bias_forces` and `gravity_forces`."""
        exact, robot, entries = self.exact, self.robot, list(self.case.independent)
        names = list(dict.fromkeys(robot.configuration.velocity_joints[k] for k in entries))
        arguments = {"gravity": self.case.gravity}
        motion = robot.independent_motion(*self.state, independent=names, **arguments)
        with mp.workdps(DIGITS):
            G, g = exact.motions, exact.bias_accelerations
            true_G, M_u = doubles(G).reshape(len(entries), -1).T, doubles(G * exact.M * G.T)
            h = exact.inertial(g, pushed=False)
            bias = doubles(G * h)
        M_u = M_u.reshape(len(entries), -1)
        d, d_u = exact.d[:, None], np.sqrt(np.diag(M_u))
        columns = np.abs(d * true_G).max(axis=0)
        errors = {
            "independent_motion, G": float((np.abs(d * (motion.jacobian - true_G)) / columns).max()),
            "independent_motion, G^T M G": float((np.abs(motion.mass_matrix - M_u) / np.outer(d_u, d_u)).max()),
        }
        # Zero for motions in which all joints turn or slide at constant rates: then relative to the squares of v.
        size = max(float(np.abs(exact.d * x).max()) for x in (doubles(g), self.v**2)) or 1.0
        g_error = exact.d * (motion.bias_accelerations - doubles(g))
        errors["independent_motion, g"] = float(np.abs(g_error).max()) / size
        terms = doubles(h), doubles(exact.C_unpushed), self.velocity_efforts
        sizes = np.abs(true_G.T) @ np.abs(terms).max(axis=0) / d_u
        errors["independent_motion, bias forces"] = float(np.abs((motion.bias_forces - bias) / d_u).max() / sizes.max())
        if not self.case.is_determined:
            return errors
        with mp.workdps(DIGITS):
            bias_tau = doubles(exact.efforts(h))
            holding_tau = doubles(exact.efforts(matrix(exact.at_rest_efforts)))
            weight = doubles(exact.at_rest_efforts)
        errors["bias_forces"] = self.effort_error(robot.bias_forces(*self.state, **arguments), bias_tau, *terms)
        errors["gravity_forces"] = self.effort_error(robot.gravity_forces(self.q, **arguments), holding_tau, weight)
        return errors

    def _power(self, loads: ConstraintForces) -> float:
        """The power of the loads of loop joints, from the motion of the points of their two links."""
        total, size = 0.0, float(np.abs(self.v) @ np.abs(doubles(self.exact.C)))
        for joint in self.case.mechanism.description.loop_joints:
            wrench = loads.wrench[loads.joints.index(joint.name)]
            child = self.robot.point_motion(*self.state, joint.child, point=joint.child_xyz, frame="world_aligned")
            poses = self.robot.link_poses(self.q)
            place = dict(zip(poses.links, zip(poses.rotation, poses.position, strict=True), strict=True))
            (R_P, p_P), (R_C, p_C) = place[joint.parent], place[joint.child]
            point = R_P.T @ (p_C + R_C @ joint.child_xyz - p_P)
            parent = self.robot.point_motion(*self.state, joint.parent, point=point, frame="world_aligned")
            R = R_C @ joint.child_rotation
            in_world = np.concatenate([R @ wrench[:3], R @ wrench[3:]])
            for motion, sign in ((child, 1.0), (parent, -1.0)):
                power = in_world * np.asarray(motion.velocity)
                total += sign * power.sum()
                size += np.abs(power).sum()
        return float(abs(total) / (size or 1.0))


def doubles(x: Any) -> Array:
    """Numbers in fifty digits, rounded."""
    return np.array([float(y) for y in x])


def load_error(names: Any, answers: Array, wrenches: dict[str, Array], scales: dict[str, float]) -> float:
    """The largest error of the loads of joints."""
    pairs = zip(names, answers, strict=True)
    return max(float(np.abs(load - wrenches[name]).max() / scales[name]) for name, load in pairs if name in wrenches)


def errors_of(seed: int) -> tuple[str, Errors]:
    """Returns what a mechanism is, and the error of each query and identity."""
    case = drawn_case(seed)
    description, free = case.mechanism.description, len(case.independent)
    kinds = ", ".join(joint.type for joint in description.loop_joints)
    return f"{description.root} root, {free} of {case.robot.nv} free, {kinds}", Comparison(case).errors()

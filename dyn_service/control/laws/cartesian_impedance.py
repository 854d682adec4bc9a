"""Cartesian impedance: a point of a link behaves as a spring in the world; a weaker spring holds the
posture.

    e = [log(R_ref R^T); p_ref - p],    F = K e + D (V_ref - V)
    tau = M a_ref + C(q, v_ref) v_ref + g + J^T F + N^T M (w^2 (q_ref - q) + 2 w (v_ref - v))
    Lambda = (J M^-1 J^T)^-1,    D = A (2 d S^1/2) A^T with Lambda = A A^T, K = A S A^T,    N^T = 1 - J^T Lambda J M^-1

e is a rotation vector and a translation in world axes; R_ref, p_ref, V_ref are those of the joints' reference. N^T
projects the posture's spring so that it does not accelerate the point. About a reference at rest, without the posture
spring, the arm is passive. A wrench W at the point moves it by K^-1 W. Near a singularity the directions in which the
point cannot move are excluded: eigenvalues of J M^-1 J^T below `FLOOR` of the largest are raised to it, with rotations
and translations each scaled by their mean mobility.

In closed loops the equations are those of the independent velocities u, v = G u: J G, G^T M G, and the posture of the
independent joints. The reference of the point is at the nearest closed position.

Source: Khatib, A unified approach for motion and force control, IEEE J. Robotics and Automation 3 (1987); D as in
Albu-Schaeffer and others, ICRA 2003.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dyn_service.api.queries import Array, RobotQueries
from dyn_service.control.independent_joints import IndependentJoints
from dyn_service.control.law import Law, RobotState, modal_damping, per_joint
from dyn_service.control.trajectory import Reference
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.support.suggestions import did_you_mean

FLOOR = 1e-5
"""Smallest eigenvalue of a mobility, relative to the largest."""
ROUNDED = 1e-16
"""Mean mobility of rotations or translations, in units of kg, m and s, relative to the other's, that is rounding: loops
may block all of them. A mobility is a product of two Jacobians, each with rounding of 1e-15.
"""


class CartesianImpedance(Law):
    """A spring at a point of a link.

    link: its name. point: (3,) m in the link's axes. stiffness: (6,), N m/rad about and N/m along the world's x, y, z.
    damping_ratio: of each mode. posture_frequency: w, rad/s; 0 leaves the posture free.

    Raises:
        NotFoundError: The robot has no such link.
        InvalidArgumentError: A number is negative or not finite, or a count is wrong.
        FailedPreconditionError: An independent joint of closed loops has no motor.
    """

    name = "cartesian_impedance"
    closed_loops = True

    def __init__(
        self,
        model: RobotQueries,
        link: str,
        point: Sequence[float],
        stiffness: Sequence[float],
        damping_ratio: float,
        posture_frequency: float,
    ) -> None:
        links = model.link_names
        if link not in links:
            raise NotFoundError(f"robot '{model.description.name}' has no link '{link}'{did_you_mean(link, links)}")
        if len(stiffness) != 6 or len(point) != 3:
            form = "stiffness must be 6 numbers, about and along x, y, z, and point 3"
            raise InvalidArgumentError(f"{form}, found {len(stiffness)} and {len(point)}")
        self.model, self.link, self.point = model, link, np.array(point, dtype=np.float64)
        if not np.isfinite(self.point).all():
            raise InvalidArgumentError(f"point is {list(point)}: expected finite numbers, m", path="point")
        self.stiffness = per_joint("stiffness", stiffness, 6)
        self.damping_ratio = float(per_joint("damping_ratio", damping_ratio, 1)[0])
        self.posture = float(per_joint("posture_frequency", posture_frequency, 1)[0])
        self._off = self._wrench = np.zeros(6)
        self._independent = IndependentJoints.driven_ones(model, self.name)
        self._in_v = slice(None) if self._independent is None else self._independent.in_v
        self._closed: tuple[Array, Array] | None = None  # the last reference and its closed position

    def update(self, state: RobotState, reference: Reference, dt: float) -> Array:
        """The efforts. Queries: `point_motion` of robot and reference, `mass_matrix`, `inverse_dynamics`; in closed
        loops those of `IndependentJoints.along` instead, and `assemble` when the reference moves.
        """
        model, w, joints, entries = self.model, self.posture, self._independent, self._in_v
        if joints is None:
            mass, reference_motion = model.mass_matrix(state.q), reference
            # With the reference's velocity: with the measured one its noise would enter the feed-forward efforts.
            effort = np.array(model.inverse_dynamics(state.q, reference.v, reference.a))
        else:
            G, mass, effort = joints.along(model, state.q, reference)
            reference_motion = self._closed_reference(joints, reference)
        # Robot and reference in one call: with a remote model each call is a round trip.
        q, v = np.stack([state.q, reference_motion.q]), np.stack([state.v, reference_motion.v])
        motion = model.point_motion(q, v, self.link, point=self.point)
        J = motion.jacobian[0] if joints is None else motion.jacobian[0] @ G
        shift = motion.position[1] - motion.position[0]
        self._off = np.concatenate([rotation_vector(motion.rotation[1] @ motion.rotation[0].T), shift])
        to_joints = np.linalg.solve(mass, J.T)
        inertia = _inverse(J @ to_joints)
        damping = modal_damping(inertia, np.diag(self.stiffness), self.damping_ratio)
        self._wrench = self.stiffness * self._off + damping @ (motion.velocity[1] - motion.velocity[0])
        posture = w * w * model.configuration.error(state.q, reference.q) + 2.0 * w * (reference.v - state.v)
        null_space = mass @ (posture[entries] - to_joints @ (inertia @ (J @ posture[entries])))
        effort[entries] = effort[entries] + J.T @ self._wrench + null_space
        return np.asarray(effort)

    def _closed_reference(self, joints: IndependentJoints, reference: Reference) -> Reference:
        """Returns the reference of all joints with the loops closed: in it the others have their measured motion."""
        leading = reference.q[joints.in_q]
        if self._closed is None or not np.array_equal(self._closed[0], leading):
            closed = self.model.assemble(reference.q, fixed=joints.configuration.names)
            self._closed = leading, closed
        q = self._closed[1]
        G = self.model.independent_motion(q, np.zeros_like(reference.v)).jacobian
        return Reference(q, G @ reference.v[joints.in_v], reference.a)

    def signals(self) -> Mapping[str, Array | float]:
        """off: e, rad and m. wrench: F, N m and N."""
        return {"off": self._off, "wrench": self._wrench}


def rotation_vector(R: Array) -> Array:
    """log(R): the axis (3,) times the angle in rad, at most pi, of a rotation (3, 3).

    For one rotation three times as fast as `model.rotations`, with an error below 2e-6 rad near half a turn.
    """
    axis = 0.5 * np.array([R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1]])
    sine, cosine = float(np.linalg.norm(axis)), 0.5 * (float(np.trace(R)) - 1.0)
    if sine > 1e-6:
        return axis * (math.atan2(sine, cosine) / sine)
    if cosine > 0.0:
        return axis  # its sine is the angle, to rounding
    column = int(np.argmax(np.diag(R)))  # half a turn: R + 1 is 2 a a^T
    direction = R[:, column] + np.eye(3)[:, column]
    return np.asarray(math.pi * direction / np.linalg.norm(direction))


def _inverse(mobility: Array) -> Array:
    """Inverse of a mobility (6, 6) with its small eigenvalues raised to `FLOOR` of the largest. Rotations and
    translations are first scaled by their mean mobility, because rad and m do not compare.
    """
    means = np.trace(mobility.reshape(2, 3, 2, 3), axis1=1, axis2=3).diagonal() / 3.0
    scale = np.repeat(1.0 / np.sqrt(np.where(means > ROUNDED * means.max(), means, means.max() or 1.0)), 3)
    values, U = np.linalg.eigh(scale[:, None] * mobility * scale)
    U = scale[:, None] * U
    return np.asarray((U / np.maximum(values, FLOOR * values[-1])) @ U.T)

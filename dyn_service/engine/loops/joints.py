"""Gap, velocity rows and acceleration bias of the joints that close loops.

A loop joint connects the links P and C of the tree by a frame on each. G^ spans the directions that it blocks, the
complement of its motion subspace G, Newton-Euler (20). With the velocity of C's frame relative to P, taken at the
origin of C's frame and in its axes,

    V = [R^T (omega_C - omega_P); R^T (v_C - v_P - omega_P x d)] = (J_C - J_P) v        d from P's frame to C's
    rows     J_c = G^^T (J_C - J_P)
    bias     J_c-dot v = G^^T dV/dt at zero joint accelerations

G^ is constant in these axes for all joint types, so its rate adds nothing. Lengths are divided by a length of the
loop, so that rotations and translations are numbers of similar size: the rank of J_c then means the same for a
gripper and for a crane, also for a gripper on a crane. Joints that move both links alike have no part in J_c.

Everything follows from one call of `point_motion` for all links of all loop joints. Cost: O(N) for each loop joint.
Checked by tests/engine/test_loops.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dyn_service.api.queries import Array, Wrench
from dyn_service.api.results import PointMotion
from dyn_service.errors import FailedPreconditionError
from dyn_service.model.description import LoopJoint
from dyn_service.model.inertia import skew
from dyn_service.model.joints import NUMBERS, Joint
from dyn_service.model.loop_tree import UNRELATED
from dyn_service.model.rotations import rotation_vector

_FIT_STEPS, _FITTED = 8, 1e-14
"""Steps in which a loop joint's own position is fitted to the pose of its frames, and the last step's size. Each step
is exact for a closed joint, so two are usual; more are needed only far from closure.
"""

DEPENDENT, SINGULAR = 1e-5, 1e-9
"""Singular values of J_c, as shares of the entries of J_C and J_P. Below the first a row depends on the others: rounded
axes in files and a gap of closed loops leave as much. Rows that are independent in other positions count down to the
second, near singular ones, where seven digits of an answer remain.
"""

CLOSED = 1e-6
"""rad and lengths of the loop, the largest gap of a closed loop: positions written with seven digits are closed, and
the numbers of a query are right to about this share. A measured position has a larger gap, and `assemble` removes it.
"""

TEARING = 1e-6
"""Largest velocity or acceleration across a loop joint, relative to the terms whose difference it is. A gap of `CLOSED`
changes J_c by as much."""

UNSUPPORTED = 1e-8
"""Largest effort that no drive can give, relative to the required one, as in `ground_reactions`."""

PointMotions = Callable[[Array, Array, Sequence[str], Array], PointMotion]
"""q, v with an axis of length 1 for the points, links and points (2 nk, 3) -> their motion in world-aligned axes."""


class LoopState(NamedTuple):
    """Loop joints at states. Rows and their rates in units of rad and lengths of the loops.

    error: (..., nk, 6) rad, m; see `LoopJoints.state`. rows: (..., m, nv) J_c. bias: (..., m) J_c-dot v. rates:
    (..., nk, nv), the sum of the sizes of what each joint rate moves at a loop joint. bias_size: (..., nk), the size of
    the terms in its bias. child_rotation: (..., nk, 3, 3) R_WC of the joint frames. child_in_parent: (..., nk, 3) m,
    the origins of C's frames in the frames of the links P.
    """

    error: Array
    rows: Array
    bias: Array
    rates: Array
    bias_size: Array
    child_rotation: Array
    child_in_parent: Array

    def size(self, unit: Array) -> Array:
        """Returns the size (...) of the entries of J_C and J_P for velocities of size unit; J_c is their difference."""
        return np.asarray(np.maximum((self.rates * unit).max(axis=(-2, -1), initial=0.0), 1e-300))


@dataclass(frozen=True, eq=False)
class LoopJoints:
    """The joints that close the loops of a robot.

    sizes: (nk,) m, the lengths of their loops. paths: (nk, nv) whether an entry of v moves one link of the loop joint
    relative to the other. motions: see `PointMotions`.
    """

    joints: tuple[LoopJoint, ...]
    sizes: Array
    paths: NDArray[np.bool_]
    motions: PointMotions

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the loop joints."""
        return tuple(joint.name for joint in self.joints)

    @cached_property
    def blocked(self) -> list[Array]:
        """(6, m_j) for each loop joint: G^ for velocities [rad/s; lengths/s]."""
        from dyn_service.dynamics.constraint import blocked_directions  # here, because it imports the tracer

        return [
            blocked_directions(lengths[:, None] * joint.moves.subspace)
            for joint, lengths in zip(self.joints, self.lengths, strict=True)
        ]

    @property
    def bases(self) -> list[Array]:
        """(6, m_j) for each loop joint: G^ for wrenches [N m; N], orthonormal, in the axes of its frame on C."""
        from dyn_service.dynamics.constraint import blocked_directions  # here, because it imports the tracer

        return [blocked_directions(joint.moves.subspace) for joint in self.joints]

    @cached_property
    def lengths(self) -> Array:
        """(nk, 6), what converts velocities [rad/s; m/s] to [rad/s; lengths/s], and components of wrenches back."""
        return np.repeat(np.stack([np.ones(len(self.sizes)), 1.0 / self.sizes], axis=-1), 3, axis=-1)

    def unit(self, turns: NDArray[np.bool_]) -> Array:
        """Returns (nv,): 1 rad/s, or 1 length of the largest loop that a joint moves per second.

        turns: (nv,) whether a velocity is angular.
        """
        largest = np.where(self.paths, self.sizes[:, None], 0.0).max(axis=0)
        return np.where(turns, 1.0, np.where(largest > 0.0, largest, self.sizes.max()))

    @cached_property
    def _at_rest(self) -> Array:
        return np.zeros(self.paths.shape[-1])

    @cached_property
    def joint_of_row(self) -> list[int]:
        """The loop joint that each row of J_c belongs to."""
        return [k for k, G_hat in enumerate(self.blocked) for _ in range(G_hat.shape[1])]

    @cached_property
    def _links(self) -> list[str]:
        return [link for joint in self.joints for link in (joint.parent, joint.child)]

    @cached_property
    def _rotations(self) -> tuple[Array, Array]:
        """(nk, 3, 3) each: the rotations of the joint frames on the links P and C."""
        parent = np.array([joint.parent_rotation for joint in self.joints])
        return parent, np.array([joint.child_rotation for joint in self.joints])

    @cached_property
    def _points(self) -> Array:
        return np.array([xyz for joint in self.joints for xyz in (joint.parent_xyz, joint.child_xyz)])

    def state(self, q: Array, v: Array | None, *, closed: bool = False) -> LoopState:
        """Returns the loop joints at states; leading axes of q (..., nq) and v (..., nv) broadcast. None: at rest.
        closed: whether q was closed before, so that the errors are 0.

        The error of a joint is the motion from its nearest allowed pose to that of C's frame, [rotation vector;
        translation], in the axes of that pose; it is zero along the free directions.
        """
        rates = self._at_rest if v is None else v[..., None, :]
        motion = self.motions(q[..., None, :], rates, self._links, self._points)
        parent, child = (_Frames.of(motion, side) for side in (0, 1))
        R_P, R_C = parent.rotation @ self._rotations[0], child.rotation @ self._rotations[1]
        d = child.position - parent.position
        R_CW = np.swapaxes(R_C, -1, -2)
        D = skew(d)
        jacobian = np.concatenate(
            [
                child.jacobian[..., :3, :] - parent.jacobian[..., :3, :],
                child.jacobian[..., 3:, :] - parent.jacobian[..., 3:, :] + D @ parent.jacobian[..., :3, :],
            ],
            axis=-2,
        )
        sizes = np.abs(child.jacobian) + np.abs(parent.jacobian)
        sizes[..., 3:, :] += np.abs(D) @ np.abs(parent.jacobian[..., :3, :])
        jacobian, sizes = jacobian * self.paths[:, None, :], sizes * self.paths[:, None, :]
        bias = np.zeros((*d.shape[:-1], 6)) if v is None else _relative_bias(parent, child, d)
        V = self.lengths[..., None] * np.concatenate(
            [R_CW @ jacobian[..., :3, :], R_CW @ jacobian[..., 3:, :]], axis=-2
        )
        b = self.lengths * np.concatenate([times(R_CW, bias[..., :3]), times(R_CW, bias[..., 3:])], axis=-1)
        # What turns both links alike cancels in the bias, to rounding.
        bias_size = self.lengths * (UNRELATED * (np.abs(child.bias) + np.abs(parent.bias)) + np.abs(bias))
        return LoopState(
            np.zeros((*d.shape[:-1], 6)) if closed else self._errors(R_P, R_C, d),
            np.concatenate([G_hat.T @ V[..., k, :, :] for k, G_hat in enumerate(self.blocked)], axis=-2),
            np.concatenate([times(G_hat.T, b[..., k, :]) for k, G_hat in enumerate(self.blocked)], axis=-1),
            (self.lengths[..., None] * sizes).max(axis=-2),
            bias_size.max(axis=-1),
            R_C,
            times(np.swapaxes(parent.rotation, -1, -2), child.position - parent.origin(self._points[0::2])),
        )

    def blocked_error(self, error: Array) -> Array:
        """Returns the components (..., m) of errors (..., nk, 6) in the rows of J_c."""
        twists = self.lengths * error
        return np.concatenate([times(G_hat.T, twists[..., k, :]) for k, G_hat in enumerate(self.blocked)], axis=-1)

    def wrenches(self, forces: Array) -> Array:
        """Returns the wrenches (..., nk, 6) N m, N of P on C at the origin and in the axes of C's frame, of forces
        (..., m) along the rows of J_c.
        """
        parts, first = [], 0
        for G_hat, lengths in zip(self.blocked, self.lengths, strict=True):
            part = forces[..., first : first + G_hat.shape[1]]
            parts.append(lengths * times(G_hat, part))
            first += G_hat.shape[1]
        return np.stack(parts, axis=-2)

    def on_links(self, state: LoopState, loads: Array) -> list[Wrench]:
        """Returns the wrenches (..., nk, 6) of `wrenches` as external wrenches on both links of each loop joint."""
        wrenches = []
        for k, joint in enumerate(self.joints):
            torque, force = (times(joint.child_rotation, loads[..., k, part]) for part in (slice(3), slice(3, 6)))
            point = state.child_in_parent[..., k, :]
            wrenches += [
                Wrench(joint.child, torque, force, joint.child_xyz, joint.child),
                Wrench(joint.parent, -torque, -force, point, joint.child),
            ]
        return wrenches

    @cached_property
    def _alike(self) -> list[tuple[_Fit, Array, list[int]]]:
        """Joints that allow the same motions, with G^ G^^T and their indices: their errors are computed together."""
        groups: dict[tuple[str, bytes, float], tuple[_Fit, Array, list[int]]] = {}
        for k, (joint, G_hat) in enumerate(zip(self.joints, self.blocked, strict=True)):
            key = (joint.moves.type, joint.moves.subspace.tobytes(), float(self.sizes[k]))
            if key not in groups:
                groups[key] = _Fit.of(joint.moves, self.lengths[k]), G_hat @ G_hat.T, []
            groups[key][2].append(k)
        return list(groups.values())

    def _errors(self, R_P: Array, R_C: Array, d: Array) -> Array:
        """Returns the errors (..., nk, 6) of loop joints with frames R_P, R_C (..., nk, 3, 3), C's at d from P's."""
        R_PT = np.swapaxes(R_P, -1, -2)
        R, p = R_PT @ R_C, times(R_PT, d)
        errors = np.empty((*p.shape[:-1], 6))
        for fit, blocked, places in self._alike:
            error = self.lengths[places] * fit.error(R[..., places, :, :], p[..., places, :])
            errors[..., places, :] = times(blocked, error) / self.lengths[places]
        return errors


class Tangent(NamedTuple):
    """The velocities that keep the loops closed, from J_c diag(unit) = U diag(s) V^T.

    unit: (nv,) 1 rad/s, or lengths of the loop per second. U: (..., m, m). inverse: (..., min(m, nv)) of s, 0 for
    dependent rows. V: (..., nv, nv). free: (..., nv) 1 for the columns of V that keep the loops closed, else 0.
    """

    unit: Array
    U: Array
    inverse: Array
    V: Array
    free: Array

    @classmethod
    def of(cls, state: LoopState, unit: Array, usual_rank: int = 0, free: Array | None = None) -> Tangent:
        """Returns the tangent at states.

        Args:
            state: The loop joints.
            unit: As the field.
            usual_rank: The rank of the robot's J_c where it is not singular.
            free: (..., nv), 0 for joints that stand still; None: all move.
        """
        rows = state.rows if free is None else state.rows * free[..., None, :]
        finite = np.isfinite(rows).all(axis=(-2, -1), keepdims=True)
        U, s, Vt = np.linalg.svd(np.where(finite, rows * unit, 0.0))
        share = s / state.size(unit)[..., None]
        independent = (share > DEPENDENT) | ((share > SINGULAR) & (np.arange(s.shape[-1]) < usual_rank))
        free = np.ones(Vt.shape[:-1])
        free[..., : s.shape[-1]] -= independent
        inverse = np.where(independent, 1.0 / np.where(independent, s, 1.0), 0.0)
        return cls(unit, np.where(finite, U, np.nan), inverse, np.swapaxes(Vt, -1, -2), free)

    @property
    def rank(self) -> Array:
        """(...): the number of independent rows."""
        return np.asarray(self.free.shape[-1] - self.free.sum(axis=-1))

    @property
    def basis(self) -> Array:
        """(..., nv, nv): N, with columns of zeros for the other directions."""
        return np.asarray(self.unit[:, None] * self.V * self.free[..., None, :])

    @property
    def exists(self) -> Array:
        """(...): whether J_c has finite numbers."""
        return np.asarray(np.isfinite(self.U).all(axis=(-2, -1)))

    def drives(self, driven: Array) -> Array:
        """Returns N^T S (..., nv, nv), without the motions that the drives (nv,) cause by rounding only."""
        B = np.swapaxes(self.basis, -1, -2) * driven
        U, s, _ = np.linalg.svd(B / self.unit)
        return np.asarray((U * (s > SINGULAR)[..., None, :]) @ (np.swapaxes(U, -1, -2) @ B))

    def velocities(self, x: Array) -> Array:
        """Returns the least v (..., nv) with J_c v = x (..., m)."""
        k = self.inverse.shape[-1]
        part = self.inverse * times(np.swapaxes(self.U, -1, -2)[..., :k, :], x)
        return np.asarray(self.unit * times(self.V[..., :, :k], part))

    def forces(self, f: Array) -> Array:
        """Returns the least lambda (..., m) with J_c^T lambda = f (..., nv), for f that does no work."""
        k = self.inverse.shape[-1]
        part = self.inverse * times(np.swapaxes(self.V, -1, -2)[..., :k, :], self.unit * f)
        return np.asarray(times(self.U[..., :, :k], part))

    def solve(self, M: Array, f: Array, other: Tangent | None = None) -> Array:
        """Returns N z (..., nv) with N^T M N z = N^T f; with N_o^T M N z = N_o^T f for the tangent at another state."""
        N_T = np.swapaxes((other or self).basis, -1, -2)
        return np.asarray(times(self.basis, self._solution(M, times(N_T, f)[..., None], N_T)[..., 0]))

    def mobility(self, M: Array) -> Array:
        """Returns N (N^T M N)^-1 N^T (..., nv, nv), which maps efforts to accelerations. M: (..., nv, nv).

        Raises:
            FailedPreconditionError: Links without mass move.
        """
        N_T = np.swapaxes(self.basis, -1, -2)
        return np.asarray(self.basis @ self._solution(M, N_T, N_T))

    def _solution(self, M: Array, x: Array, N_T: Array) -> Array:
        """Returns z (..., nv, n) with N_T M N z = x."""
        reduced = N_T @ M @ self.basis + np.eye(M.shape[-1]) * (1.0 - self.free)[..., None, :]
        try:
            return np.asarray(np.linalg.solve(reduced, x))
        except np.linalg.LinAlgError:
            raise FailedPreconditionError(
                "the mass matrix of the motions that keep the loops closed is singular: links without mass move"
            ) from None


class _Frames(NamedTuple):
    """Points on one side of all loop joints. rotation: R_WL of the links; see `PointMotion` for the others."""

    rotation: Array
    position: Array
    velocity: Array
    jacobian: Array
    bias: Array

    @classmethod
    def of(cls, motion: PointMotion, side: int) -> _Frames:
        return cls(
            motion.rotation[..., side::2, :, :],
            motion.position[..., side::2, :],
            motion.velocity[..., side::2, :],
            motion.jacobian[..., side::2, :, :],
            motion.bias[..., side::2, :],
        )

    def origin(self, points: Array) -> Array:
        """Returns the origins of the links in the world. points: (nk, 3), in the links' frames."""
        return np.asarray(self.position - times(self.rotation, points))


def _relative_bias(parent: _Frames, child: _Frames, d: Array) -> Array:
    """Returns R dV/dt (..., nk, 6) at zero joint accelerations, in world axes."""
    omega_P, omega_C = parent.velocity[..., :3], child.velocity[..., :3]
    slip = child.velocity[..., 3:] - parent.velocity[..., 3:]
    turning = child.bias[..., :3] - parent.bias[..., :3] - _cross(omega_C, omega_C - omega_P)
    shifting = (
        child.bias[..., 3:]
        - parent.bias[..., 3:]
        - _cross(parent.bias[..., :3], d)
        - _cross(omega_P, slip)
        - _cross(omega_C, slip - _cross(omega_P, d))
    )
    return np.concatenate([turning, shifting], axis=-1)


class _Fit(NamedTuple):
    """Poses that a loop joint allows. velocities: (nv, 6) of motions. screw: (nv, 3) of translations, or None. neutral:
    R, p of the first pose.
    """

    joint: Joint
    velocities: Array
    screw: Array | None
    neutral: tuple[Array, Array]

    @classmethod
    def of(cls, joint: Joint, lengths: Array) -> _Fit:
        screw = np.linalg.pinv(joint.subspace[3:]) if joint.threaded else None
        velocities = np.linalg.pinv(lengths[:, None] * joint.subspace) * lengths
        return cls(joint, velocities, screw, joint.pose(np.array(joint.neutral, dtype=np.float64)))

    def error(self, R: Array, p: Array) -> Array:
        """Returns the motion (..., 6) from the nearest pose that the joint allows to R (..., 3, 3), p (..., 3)."""
        joint = self.joint
        q = np.broadcast_to(joint.neutral, (*p.shape[:-1], joint.nq))
        if self.screw is not None:  # its translation says in which turn it is
            q = q + times(self.screw, p)
        for k in range(_FIT_STEPS):
            R_J, p_J = self.neutral if k == 0 and self.screw is None else joint.pose(q)
            R_JT = np.swapaxes(R_J, -1, -2)
            error = np.concatenate([rotation_vector(R_JT @ R), times(R_JT, p - p_J)], axis=-1)
            if not joint.nv:
                break
            step = times(self.velocities, error)
            if not (np.abs(step) > _FITTED).any():
                break
            entries = joint.integrate([q[..., k] for k in range(joint.nq)], [*np.moveaxis(step, -1, 0)], NUMBERS)
            q = np.stack(np.broadcast_arrays(*entries), axis=-1)
        return error


def _cross(a: Array, b: Array) -> Array:
    """Returns a x b (..., 3), for few vectors faster than NumPy's."""
    return np.asarray(a[..., _NEXT] * b[..., _AFTER] - a[..., _AFTER] * b[..., _NEXT])


_NEXT, _AFTER = [1, 2, 0], [2, 0, 1]


def times(A: Any, x: Any) -> Any:
    """Returns A x for matrices (..., m, n) and vectors (..., n)."""
    return (A @ x[..., None])[..., 0]


def pseudo_inverse(x: Array) -> Array:
    """Returns pseudo-inverses; NaN for matrices with numbers that are not finite."""
    finite = np.isfinite(x).all(axis=(-2, -1), keepdims=True)
    return np.where(finite, np.linalg.pinv(np.where(finite, x, 0.0), rcond=SINGULAR), np.nan)


def state_text(place: Sequence[int]) -> str:
    """Returns where in a batch a state is, for the end of a clause; "" for a single state."""
    return f" at state {list(place)}" if place else ""


def first_place(mask: Any) -> tuple[int, ...] | None:
    """Returns the first place at which an array is true; None if it is nowhere."""
    places = np.argwhere(mask)
    return tuple(places[0].tolist()) if len(places) else None


def with_common_lead(arrays: Sequence[Array], axes: int) -> list[Array]:
    """Returns the arrays with common leading axes before their last `axes`."""
    lead = np.broadcast_shapes(*(x.shape[: x.ndim - axes] for x in arrays))
    return [np.broadcast_to(x, (*lead, *x.shape[x.ndim - axes :])) for x in arrays]

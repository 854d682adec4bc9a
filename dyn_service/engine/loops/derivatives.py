"""Derivatives, regressor and operational-space inertia of robots with closed loops, by implicit differentiation.

Variations of a closed motion keep the loops closed. With V = J_c v and A = J_c a + J_c-dot v, both zero,

    J_c dq = 0,    J_c dv + V_q dq = 0,    J_c da + A_q dq + A_v dv = 0

so those of the independent joints, S dq, S dv and S da, determine all others. With v = G u, S G = e, and the solution
W x of J_c W x = x, S W x = 0, a unit displacement of independent joint k at constant S v and S a changes

    q by G_k,    v by -W V_q G_k,    a by -W (A_q G_k + A_v dv),    column j of G by -W V_q(v = G_j) G_k

The derivatives of h = M a + C, `inverse_dynamics_derivatives` of the tree, give those of the equations (18) along G:

    G^T (h - tau) = 0:    G^T dtau = G^T dh + dG^T (h - tau)

Inverse dynamics solves it for the efforts of the drives, forward dynamics for S da. Columns of dependent joints are 0,
so the products with any variations that keep the loops closed are right.

V_q, A_q and A_v follow from nu + 1 calls of `point_motion_derivatives` for each loop joint. Cost: O(N^3).
Source: Newton-Euler document, (15), (18), (20). Checked by tests/engine/test_loop_derivatives.py in fifty digits.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dyn_service.api.named import names_of
from dyn_service.api.queries import Array
from dyn_service.api.results import (
    ForwardDynamicsDerivatives,
    InverseDynamicsDerivatives,
    InverseDynamicsRegressor,
    OperationalSpace,
    PointMotionDerivatives,
)
from dyn_service.api.spec import DIRECTIONS
from dyn_service.engine.loops.call import Call
from dyn_service.engine.loops.joints import SINGULAR, pseudo_inverse, state_text, times
from dyn_service.errors import FailedPreconditionError
from dyn_service.model.inertia import skew

_IMMOBILE = 1e-12
"""Smallest mobility of a link in some direction, relative to its rotations or translations, that is no rounding."""


class _Sensitivity(NamedTuple):
    """Derivatives of V = J_c v and A = J_c a + J_c-dot v, the rows of the loop joints, each (..., m, nv)."""

    V_q: Array
    A_q: Array
    A_v: Array


class Variations:
    """Changes of a closed motion with the positions, velocities and accelerations of its independent joints.

    call: a query at q, v. a: (..., nv).

    Raises:
        FailedPreconditionError: The position is singular, or the independent joints do not determine the others.
    """

    def __init__(self, call: Call, a: Array) -> None:
        self.call, self.a = call, a
        self.selection = call.loops.selection(None, call.state)
        finite = np.isfinite(call.state.rows).all(axis=(-2, -1))
        singular = np.argwhere(finite & (call.tangent.rank < call.loops.nv - len(self.selection)))
        if len(singular):
            raise FailedPreconditionError(
                f"{call.row.name} has no answer{state_text(singular[0].tolist())}: J_c is singular at this position, "
                "where motions have no derivatives"
            )
        self.jacobian = call.loops.from_independent(call.tangent, self.selection)

    @cached_property
    def _following(self) -> Array:
        """W (..., nv, m): what keeps the loops closed at constant independent entries."""
        tangent = self.call.tangent
        k = tangent.inverse.shape[-1]
        range_basis = tangent.unit[:, None] * tangent.V[..., :, :k] * tangent.inverse[..., None, :]
        inverse = range_basis @ np.swapaxes(tangent.U, -1, -2)[..., :k, :]
        return np.asarray(inverse - self.jacobian @ (self.selection @ inverse))

    @cached_property
    def _sensitivity(self) -> _Sensitivity:
        return _sensitivity(self.call, self.call.v, self.a)

    @cached_property
    def v_q(self) -> Array:
        """(..., nv, nu): changes of v by displacements of the independent joints."""
        return np.asarray(-self._following @ (self._sensitivity.V_q @ self.jacobian))

    @cached_property
    def a_q(self) -> Array:
        """(..., nv, nu): changes of a by displacements of the independent joints."""
        change = self._sensitivity.A_q @ self.jacobian + self._sensitivity.A_v @ self.v_q
        return np.asarray(-self._following @ change)

    @cached_property
    def a_v(self) -> Array:
        """(..., nv, nu): changes of a by the independent velocities."""
        return np.asarray(-self._following @ (self._sensitivity.A_v @ self.jacobian))

    @cached_property
    def G_q(self) -> Array:
        """(..., nu, nv, nu): changes of column j of G, first, by displacements of the independent joints, last."""
        columns = np.swapaxes(self.jacobian, -1, -2)
        V_q = _sensitivity(self.call, columns, np.zeros(columns.shape[-1]), axes=1).V_q
        return np.asarray(-self._following[..., None, :, :] @ (V_q @ self.jacobian[..., None, :, :]))

    def columns(self, x: Array) -> Array:
        """Returns derivatives (..., nu) by independent joints as those by all joints (..., nv), 0 for the others."""
        return np.asarray(x @ self.selection)


def inverse_dynamics_derivatives(call: Call) -> InverseDynamicsDerivatives:
    """Returns the efforts of the driven joints and their derivatives along motions that keep the loops closed.

    Raises:
        FailedPreconditionError: The position is singular, or the drives do not cause all motions.
    """
    a = call.input("acceleration")
    tau, _ = call.inverse(a)
    variations = Variations(call, a)
    G, G_q = variations.jacobian, variations.G_q
    G_T = np.swapaxes(G, -1, -2)
    h = call.tree("inverse_dynamics_derivatives", call.q, call.v, a)
    h_q = h.dtau_dq @ G + h.dtau_dv @ variations.v_q + h.dtau_da @ variations.a_q
    h_v = h.dtau_dv @ G + h.dtau_da @ variations.a_v
    drives, inverse = _drives(call, G_T)
    required = G_T @ h_q + np.einsum("...jik,...i->...jk", G_q, h.tau - tau)
    # tau has the least squares of all efforts with this motion, so it also stays across those that cause none.
    multipliers = times(np.swapaxes(inverse, -1, -2), tau)
    turning = drives_of(call)[:, None] * np.einsum("...jik,...j->...ik", G_q, multipliers)
    by_q = inverse @ required + turning - inverse @ (drives @ turning)
    by_v, by_a = inverse @ (G_T @ h_v), inverse @ (G_T @ h.dtau_da @ G)
    lead = np.broadcast_shapes(tau.shape[:-1], by_q.shape[:-2])
    tau = np.broadcast_to(tau, (*lead, tau.shape[-1])).copy()
    return InverseDynamicsDerivatives(tau, *_common(lead, [variations.columns(x) for x in (by_q, by_v, by_a)]))


def forward_dynamics_derivatives(call: Call, tau: Array) -> ForwardDynamicsDerivatives:
    """Returns the accelerations and their derivatives along motions that keep the loops closed.

    tau: (..., nv).

    Raises:
        FailedPreconditionError: The position is singular.
    """
    a = call.forward(tau)
    variations = Variations(call, a)
    G = variations.jacobian
    h = call.tree("inverse_dynamics_derivatives", call.q, call.v, a)
    h_q = h.dtau_dq @ G + h.dtau_dv @ variations.v_q + h.dtau_da @ variations.a_q
    h_v = h.dtau_dv @ G + h.dtau_da @ variations.a_v
    # S^T, because G^T S^T = e: G^T of this term is dG^T (h - tau).
    h_q = h_q + variations.selection.T @ np.einsum("...jik,...i->...jk", variations.G_q, h.tau - tau)
    Y = call.tangent.mobility(h.dtau_da)
    by_q, by_v = variations.a_q - Y @ h_q, variations.a_v - Y @ h_v
    derivatives = [variations.columns(by_q), variations.columns(by_v), Y]
    lead = np.broadcast_shapes(a.shape[:-1], *(x.shape[:-2] for x in derivatives))
    return ForwardDynamicsDerivatives(np.broadcast_to(a, (*lead, a.shape[-1])).copy(), *_common(lead, derivatives))


def inverse_dynamics_regressor(call: Call) -> InverseDynamicsRegressor:
    """Returns Y with tau = Y theta for the efforts of `inverse_dynamics`: (N^T S^T)^+ N^T times the tree's.

    Raises:
        FailedPreconditionError: The drives do not cause all motions.
    """
    tree: InverseDynamicsRegressor = call.tree("inverse_dynamics_regressor", call.q, call.v, call.input("acceleration"))
    G = call.loops.from_independent(call.tangent, call.loops.selection(None, call.state))
    G_T = np.swapaxes(G, -1, -2)
    _, inverse = _drives(call, G_T)
    return replace(tree, regressor=inverse @ (G_T @ tree.regressor))


def operational_space(call: Call) -> OperationalSpace:
    """Returns J N (N^T M N)^-1 N^T J^T of a link's point, and its inverse in the selected directions."""
    x = call.arguments
    zeros = np.zeros(call.loops.nv)
    motion = call.tree("point_motion", call.q, zeros, x["link"], point=x["point"])
    J = motion.jacobian
    if x["frame"] == "local":
        R_T = np.swapaxes(motion.rotation, -1, -2)
        J = np.concatenate([R_T @ J[..., :3, :], R_T @ J[..., 3:, :]], axis=-2)
    elif x["frame"] == "world":  # of the link's point at the world's origin
        J = np.concatenate([J[..., :3, :], J[..., 3:, :] + skew(motion.position) @ J[..., :3, :]], axis=-2)
    Omega = J @ call.tangent.mobility(call.tree("mass_matrix", call.q)) @ np.swapaxes(J, -1, -2)
    directions = x["directions"]
    names = DIRECTIONS if directions is None else names_of("directions", directions, "inputs.directions")
    rows = [k for k, name in enumerate(DIRECTIONS) if name in names]
    return OperationalSpace(Omega, _inverse_in(Omega, rows))


def idle_efforts(call: Call, rows: Array, G: Array) -> Array:
    """Returns the projection P (..., nv, nv) on the efforts of the drives that cause no motion, from S_u and G."""
    drives = drives_of(call)
    if np.array_equal(rows.sum(axis=0), drives):  # each drive causes a motion of its own
        return np.zeros((*G.shape[:-2], len(drives), len(drives)))
    B = call.tangent.drives(drives)
    return np.where(call.tangent.exists[..., None, None], np.diag(drives) - pseudo_inverse(B) @ B, np.nan)


def drives_of(call: Call) -> Array:
    """Returns (nv,): 1 for joints with a motor, else 0; 1 for all if the description states it of no joint."""
    driven = call.loops.driven
    return np.ones(call.loops.nv) if driven is None else driven


def _drives(call: Call, G_T: Array) -> tuple[Array, Array]:
    """Returns B (..., nu, nv), what the drives' efforts cause along G, and its right inverse (..., nv, nu).

    Raises:
        FailedPreconditionError: They do not cause all motions.
    """
    B, tangent = G_T * drives_of(call), call.tangent
    # Of the orthonormal N: those of G are relative to independent joints, which may hardly move.
    s = np.linalg.svd(tangent.drives(drives_of(call)) / tangent.unit, compute_uv=False)
    weak = np.argwhere(tangent.exists & ((s > SINGULAR).sum(axis=-1) < G_T.shape[-2]))
    if len(weak):
        raise FailedPreconditionError(
            f"{call.row.name} has no answer{state_text(weak[0].tolist())}: the drives cannot cause all motions of "
            f"robot '{call.loops.name}', so efforts exist for some accelerations only; forward_dynamics needs no drives"
        )
    return B, pseudo_inverse(B)


def _inverse_in(Omega: Array, rows: list[int]) -> Array:
    """Returns the inverse (..., 6, 6) in some rows and columns, 0 in the others; NaN where it does not exist."""
    Lambda = np.zeros(Omega.shape)
    kinds = np.stack([np.trace(Omega[..., k : k + 3, k : k + 3], axis1=-2, axis2=-1) for k in (0, 3)], axis=-1)
    scale = np.sqrt(np.maximum(kinds, 1e-300))[..., [k // 3 for k in rows]]
    part = Omega[..., rows, :][..., rows] / (scale[..., :, None] * scale[..., None, :])
    finite = np.isfinite(part).all(axis=(-2, -1), keepdims=True)
    size, vectors = np.linalg.eigh(np.where(finite, part, 0.0))
    regular = finite & (size[..., :1] > _IMMOBILE)[..., None]
    inverse = (vectors / np.where(regular[..., 0], size, 1.0)[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    inverse = inverse / (scale[..., :, None] * scale[..., None, :])
    Lambda[..., np.array(rows)[:, None], rows] = inverse
    return np.where(regular, Lambda, np.nan)


def _sensitivity(call: Call, v: Array, a: Array, axes: int = 0) -> _Sensitivity:
    """Returns the derivatives at v, a (..., nv), which have `axes` leading axes after those of the call's q."""
    loops, q = call.loops, call.q
    for _ in range(axes):
        q = q[..., None, :]
    joints = loops.joints
    links = [link for joint in joints.joints for link in (joint.parent, joint.child)]
    points = np.array([xyz for joint in joints.joints for xyz in (joint.parent_xyz, joint.child_xyz)])
    motion = joints.motions(q[..., None, :], v[..., None, :], links, points)
    derivatives = loops.motion_derivatives(q[..., None, :], v[..., None, :], a[..., None, :], links, points)
    d = motion.position[..., 1::2, :] - motion.position[..., 0::2, :]
    relative = _RelativeMotion(derivatives, d)
    R = motion.rotation[..., 1::2, :, :] @ np.array([joint.child_rotation for joint in joints.joints])

    def rows(change: Array) -> Array:
        """G^^T times derivatives (..., nk, 6, nv) in world axes."""
        R_T = np.swapaxes(R, -1, -2)
        V = joints.lengths[..., None] * np.concatenate([R_T @ change[..., :3, :], R_T @ change[..., 3:, :]], axis=-2)
        return np.concatenate([G_hat.T @ V[..., k, :, :] for k, G_hat in enumerate(joints.blocked)], axis=-2)

    V_q, A_q = relative.by_position()
    return _Sensitivity(rows(V_q), rows(A_q), rows(relative.by_velocity()))


class _RelativeMotion:
    """The velocity V of loop joints' frames on C relative to P and its rate A, as in `joints`, and derivatives.

    In world axes, so that those by positions have the terms of the turning axes of C. With d from P's frame to C's and
    s = v_C - v_P,

        V = [omega_C - omega_P; s - omega_P x d] = [w; y]
        A = [alpha_C - alpha_P - omega_C x w; a_C - a_P - alpha_P x d - omega_P x s - omega_C x y]

    Each derivative is by the product rule.

    Args:
        motion: Of the points of both links of each joint, P's before C's.
        d: (..., nk, 3) m.
    """

    def __init__(self, motion: PointMotionDerivatives, d: Array) -> None:
        self._motion = motion
        omega_P, v_P, omega_C, v_C = (part[..., 0] for part in _sides(motion.velocity[..., None]))
        alpha_P, a_P, alpha_C, a_C = (part[..., 0] for part in _sides(motion.acceleration[..., None]))
        w, s = omega_C - omega_P, v_C - v_P
        y = s - np.cross(omega_P, d)
        angular = alpha_C - alpha_P - np.cross(omega_C, w)
        linear = a_C - a_P - np.cross(alpha_P, d) - np.cross(omega_P, s) - np.cross(omega_C, y)
        self._d, self._w, self._s, self._y = skew(d), skew(w), skew(s), skew(y)
        self._omega_P, self._omega_C, self._alpha_P = skew(omega_P), skew(omega_C), skew(alpha_P)
        self._angular, self._linear = skew(angular), skew(linear)

    def by_position(self) -> tuple[Array, Array]:
        """Returns the derivatives (..., nk, 6, nv) of V and A in the axes of C with respect to q."""
        _, D_P, T_C, D_C = _sides(self._motion.jacobian)
        V, A = self._changes(self._motion.dvelocity_dq, self._motion.dacceleration_dq, D_C - D_P)
        V = V + np.concatenate(_same_lead([self._w @ T_C, self._y @ T_C]), axis=-2)
        return V, A + np.concatenate(_same_lead([self._angular @ T_C, self._linear @ T_C]), axis=-2)

    def by_velocity(self) -> Array:
        """Returns the derivatives (..., nk, 6, nv) of A with respect to v."""
        J = self._motion.jacobian
        return self._changes(J, self._motion.dacceleration_dv, np.zeros((3, J.shape[-1])))[1]

    def _changes(self, velocity: Array, acceleration: Array, d: Array) -> tuple[Array, Array]:
        """Returns the changes of V and A by those of velocities and accelerations (..., 2 nk, 6, nv), and of d."""
        omega_P, v_P, omega_C, v_C = _sides(velocity)
        alpha_P, a_P, alpha_C, a_C = _sides(acceleration)
        w, s = omega_C - omega_P, v_C - v_P
        y = s + self._d @ omega_P - self._omega_P @ d
        angular = alpha_C - alpha_P + self._w @ omega_C - self._omega_C @ w
        linear = a_C - a_P + self._d @ alpha_P - self._alpha_P @ d + self._s @ omega_P - self._omega_P @ s
        linear = linear + self._y @ omega_C - self._omega_C @ y
        return np.concatenate(_same_lead([w, y]), axis=-2), np.concatenate(_same_lead([angular, linear]), axis=-2)


def _sides(x: Array) -> tuple[Array, Array, Array, Array]:
    """Returns the angular and the linear rows of x (..., 2 nk, 6, n) on P, then on C: (..., nk, 3, n) each."""
    P, C = x[..., 0::2, :, :], x[..., 1::2, :, :]
    return P[..., :3, :], P[..., 3:, :], C[..., :3, :], C[..., 3:, :]


def _same_lead(arrays: list[Array]) -> list[Array]:
    lead = np.broadcast_shapes(*(x.shape[:-2] for x in arrays))
    return [np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in arrays]


def _common(lead: tuple[int, ...], arrays: list[Array]) -> list[Array]:
    """Returns matrices with these leading axes."""
    return [np.broadcast_to(x, (*lead, *x.shape[-2:])).copy() for x in arrays]

"""Segment inverse dynamics for gait: from measured motion and ground reaction to forces and moments at the joints.

A limb is a chain of segments from the ground up: foot, shank, thigh, ... Segment i meets the next one up at its
proximal joint. For each, with S(r) F = r x F, forces in the global basis G and moments in the segment's own basis i,

    F_i - F_{i-1} + m_i g = m_i a_i
    M_i - R_i R_{i-1}^T M_{i-1} + R_i S(r_prox) F_i - R_i S(r_dist) F_{i-1} = I_i omega-dot_i + omega_i x I_i omega_i

where r_prox, r_dist lead from the centre of mass to the joints. Below the foot stands the ground: F_0 = -GRF at the
centre of pressure, and minus its free moment. `method="matrix"` writes all segments as M q-ddot = C + G + Q + E and
solves Q = A [F_1, M_1, F_2, ...] for the unknowns with one block matrix, as the document does; `method="recursion"`
goes up segment by segment. Both take whole recordings: leading axes are frames.

Source: Matrix Formalism document, 3-D gait. Conventions: R_i turns global components into the segment's.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dyn_service.answers import SegmentLoads
from dyn_service.errors import InvalidArgumentError

Array = NDArray[np.float64]


def inverse_dynamics(
    mass: ArrayLike,
    inertia: ArrayLike,
    rotation: ArrayLike,
    acceleration: ArrayLike,
    omega: ArrayLike,
    omega_dot: ArrayLike,
    proximal: ArrayLike,
    distal: ArrayLike,
    ground_force: ArrayLike,
    *,
    ground_moment: ArrayLike = (0.0, 0.0, 0.0),
    gravity: ArrayLike = (0.0, -9.81, 0.0),
    method: Literal["recursion", "matrix"] = "recursion",
) -> SegmentLoads:
    """Forces and moments at the proximal joint of each of n segments, ordered from the ground up.

    Args:
        mass: (n,) kg.
        inertia: (n, 3, 3) kg m^2, about the centre of mass, in the segment's basis.
        rotation: (..., n, 3, 3), global components to segment components.
        acceleration: (..., n, 3) m/s^2, of the centres of mass, global basis.
        omega: (..., n, 3) rad/s, in the segment's basis.
        omega_dot: (..., n, 3) rad/s^2, in the segment's basis.
        proximal: (..., n, 3) m, from the centre of mass to the upper joint, global basis.
        distal: (..., n, 3) m, from the centre of mass to the lower joint, global basis; of the first segment to the
            centre of pressure.
        ground_force: (..., 3) N, ground reaction force on the first segment, global basis.
        ground_moment: (..., 3) N m, free moment of the ground on the first segment, global basis.
        gravity: (3,) m/s^2, global basis. The document's global y axis points up.
        method: `recursion`, O(n), or `matrix`, one block system.

    Raises:
        InvalidArgumentError: An array's last axes do not fit n segments; names it.
    """
    m = _checked("mass", mass, (None,))
    n = len(m)
    I = _checked("inertia", inertia, (n, 3, 3))
    R = _checked("rotation", rotation, (n, 3, 3))
    a, w, wd, up, down = (
        _checked(name, value, (n, 3))
        for name, value in {
            "acceleration": acceleration,
            "omega": omega,
            "omega_dot": omega_dot,
            "proximal": proximal,
            "distal": distal,
        }.items()
    )
    grf, free, g = (
        _checked(name, value, (3,))
        for name, value in {
            "ground_force": ground_force,
            "ground_moment": ground_moment,
            "gravity": gravity,
        }.items()
    )
    net_force = m[:, None] * (a - g)
    spin = np.einsum("nij,...nj->...ni", I, w)
    net_moment = np.einsum("nij,...nj->...ni", I, wd) + np.cross(w, spin)
    solve = {"recursion": _by_recursion, "matrix": _by_matrix}.get(method)
    if solve is None:
        raise InvalidArgumentError(f"method must be 'recursion' or 'matrix', found {method!r}", path="method")
    leads = [R.shape[:-3], *(x.shape[:-2] for x in (a, w, wd, up, down)), grf.shape[:-1], free.shape[:-1]]
    try:
        lead = np.broadcast_shapes(*leads)
    except ValueError:
        raise InvalidArgumentError(f"the frames of the recordings do not broadcast: {leads}") from None

    def full(x: Array, core: tuple[int, ...]) -> Array:
        return np.broadcast_to(x, lead + core)

    return solve(
        full(R, (n, 3, 3)),
        full(net_force, (n, 3)),
        full(net_moment, (n, 3)),
        full(up, (n, 3)),
        full(down, (n, 3)),
        full(grf, (3,)),
        full(free, (3,)),
    )


def _by_recursion(
    R: Array, net_force: Array, net_moment: Array, up: Array, down: Array, grf: Array, free: Array
) -> SegmentLoads:
    force, moment = np.empty_like(net_force), np.empty_like(net_moment)
    below, moment_below = -grf, -free  # what the segment below takes, both in the global basis
    for i in range(force.shape[-2]):
        force[..., i, :] = net_force[..., i, :] + below
        levers = np.cross(up[..., i, :], force[..., i, :]) - np.cross(down[..., i, :], below)
        moment[..., i, :] = net_moment[..., i, :] + _turned(R[..., i, :, :], moment_below - levers)
        below = force[..., i, :]
        moment_below = _turned(np.swapaxes(R[..., i, :, :], -1, -2), moment[..., i, :])
    return SegmentLoads(force, moment)


def _by_matrix(
    R: Array, net_force: Array, net_moment: Array, up: Array, down: Array, grf: Array, free: Array
) -> SegmentLoads:
    lead, n = net_force.shape[:-2], net_force.shape[-2]
    A = np.zeros((*lead, 6 * n, 6 * n))
    known = np.zeros((*lead, 6 * n))
    for i in range(n):
        rows, moments = slice(6 * i, 6 * i + 3), slice(6 * i + 3, 6 * i + 6)
        R_i = R[..., i, :, :]
        A[..., rows, rows] = A[..., moments, moments] = np.eye(3)
        A[..., moments, rows] = R_i @ _skewed(up[..., i, :])
        known[..., rows] = net_force[..., i, :]
        known[..., moments] = net_moment[..., i, :]
        if i == 0:
            known[..., rows] -= grf
            known[..., moments] -= _turned(R_i, np.cross(down[..., 0, :], grf) + free)
        else:
            before, moments_before = slice(6 * i - 6, 6 * i - 3), slice(6 * i - 3, 6 * i)
            A[..., rows, before] = -np.eye(3)
            A[..., moments, before] = -R_i @ _skewed(down[..., i, :])
            A[..., moments, moments_before] = -R_i @ np.swapaxes(R[..., i - 1, :, :], -1, -2)
    unknown = np.linalg.solve(A, known[..., None])[..., 0].reshape(*lead, n, 6)
    return SegmentLoads(unknown[..., :3].copy(), unknown[..., 3:].copy())


def _turned(R: Array, x: Array) -> Array:
    turned: Array = np.einsum("...ij,...j->...i", R, x)
    return turned


def _skewed(r: Array) -> Array:
    """(..., 3, 3): S(r), with S(r) F = r x F."""
    return np.swapaxes(np.cross(r[..., None, :], np.eye(3)), -1, -2)


def _checked(name: str, value: ArrayLike, core: tuple[int | None, ...]) -> Array:
    array = np.asarray(value, dtype=float)
    tail = array.shape[array.ndim - len(core) :]
    if array.ndim < len(core) or any(want is not None and want != has for want, has in zip(core, tail, strict=True)):
        expected = ", ".join("n" if size is None else str(size) for size in core)
        raise InvalidArgumentError(f"{name} has shape {array.shape}, expected (..., {expected})", path=name)
    return array

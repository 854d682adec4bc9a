"""Segment inverse dynamics for gait: from measured motion and outer loads to forces and moments at the joints.

A limb is a chain of segments from the ground up: foot, shank, thigh, ... Segment i meets the next one up at its
proximal joint. For each, with S(r) F = r x F, forces in the global basis G and moments in the segment's own basis i,

    F_i - F_{i-1} + m_i g + F_ext,i = m_i a_i
    M_i - R_i R_{i-1}^T M_{i-1} + R_i S(r_prox) F_i - R_i S(r_dist) F_{i-1} + R_i (S(r_ext) F_ext,i + M_ext,i)
                                    = I_i omega-dot_i + omega_i x I_i omega_i

where r_prox, r_dist, r_ext lead from the centre of mass to the joints and to where the load from outside acts. The
ground is such a load on the first segment, at r_dist, where the centre of pressure is; so F_0 = 0. All segments
together are M q-ddot = C + G + Q + E with Q = A [F_1; M_1; F_2; ...]: `matrices` gives each by name. `method="matrix"`
solves that system, as the document does; `method="recursion"` goes up segment by segment. All take whole recordings:
leading axes are frames, or subjects where they are those of mass and inertia. A chain that hangs is one whose ground
carries nothing, from its free end up.

Source: Matrix Formalism document, 3-D gait, Problem 2. Conventions: R_i turns global components into the segment's.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dyn_service.api.arrays import found, numbers
from dyn_service.api.results import SegmentLoads, SegmentMatrices
from dyn_service.errors import InvalidArgumentError

Array = NDArray[np.float64]

_MOTION = ("acceleration", "omega", "omega_dot", "proximal", "distal")
_LOADS = ("external_force", "external_moment", "external_point")
_OF_ALL = ("ground_force", "ground_moment", "gravity")


def inverse_dynamics(
    mass: ArrayLike,
    inertia: ArrayLike,
    rotation: ArrayLike,
    acceleration: ArrayLike,
    omega: ArrayLike,
    omega_dot: ArrayLike,
    proximal: ArrayLike,
    distal: ArrayLike,
    ground_force: ArrayLike = (0.0, 0.0, 0.0),
    *,
    ground_moment: ArrayLike = (0.0, 0.0, 0.0),
    external_force: ArrayLike = (0.0, 0.0, 0.0),
    external_moment: ArrayLike = (0.0, 0.0, 0.0),
    external_point: ArrayLike = (0.0, 0.0, 0.0),
    gravity: ArrayLike = (0.0, -9.81, 0.0),
    method: Literal["recursion", "matrix"] = "recursion",
) -> SegmentLoads:
    """Forces and moments at the proximal joint of each of n segments, ordered from the ground up.

    Args:
        mass: (..., n) kg.
        inertia: (..., n, 3, 3) kg m^2, about the centre of mass, in the segment's basis.
        rotation: (..., n, 3, 3), global components to segment components.
        acceleration: (..., n, 3) m/s^2, of the centres of mass, global basis.
        omega: (..., n, 3) rad/s, in the segment's basis.
        omega_dot: (..., n, 3) rad/s^2, in the segment's basis.
        proximal: (..., n, 3) m, from the centre of mass to the upper joint, global basis.
        distal: (..., n, 3) m, from the centre of mass to the lower joint, global basis; of the first segment to the
            centre of pressure.
        ground_force: (..., 3) N, ground reaction force on the first segment, global basis.
        ground_moment: (..., 3) N m, free moment of the ground on the first segment, global basis.
        external_force: (..., n, 3) N, another load on each segment, global basis; like the next two, (3,) is the same
            for all. Several loads on one segment add up to one.
        external_moment: (..., n, 3) N m, with it, global basis.
        external_point: (..., n, 3) m, from the centre of mass to where it acts, global basis.
        gravity: (..., 3) m/s^2, global basis. The document's global y axis points up.
        method: `recursion`, O(n), or `matrix`, one block system.

    Raises:
        InvalidArgumentError: An array's last axes do not fit n segments, or the method is neither; names it.
    """
    if method not in ("recursion", "matrix"):
        raise InvalidArgumentError(f"method must be 'recursion' or 'matrix', found {method!r}", path="method")
    chain = _Chain(
        mass=mass, inertia=inertia, rotation=rotation, acceleration=acceleration, omega=omega, omega_dot=omega_dot,
        proximal=proximal, distal=distal, ground_force=ground_force, ground_moment=ground_moment,
        external_force=external_force, external_moment=external_moment, external_point=external_point, gravity=gravity,
    )  # fmt: skip
    if method == "recursion":
        return chain.by_recursion()
    loads = chain.matrices().loads
    rows = loads.reshape(*loads.shape[:-1], -1, 6)
    return SegmentLoads(rows[..., :3].copy(), rows[..., 3:].copy())


def matrices(
    mass: ArrayLike,
    inertia: ArrayLike,
    rotation: ArrayLike,
    acceleration: ArrayLike,
    omega: ArrayLike,
    omega_dot: ArrayLike,
    proximal: ArrayLike,
    distal: ArrayLike,
    ground_force: ArrayLike = (0.0, 0.0, 0.0),
    *,
    ground_moment: ArrayLike = (0.0, 0.0, 0.0),
    external_force: ArrayLike = (0.0, 0.0, 0.0),
    external_moment: ArrayLike = (0.0, 0.0, 0.0),
    external_point: ArrayLike = (0.0, 0.0, 0.0),
    gravity: ArrayLike = (0.0, -9.81, 0.0),
) -> SegmentMatrices:
    """M q-ddot = C + G + Q + E of n segments and Q = A [F_1; M_1; F_2; ...], each by name, and the solution.

    Arguments as for `inverse_dynamics`.

    Raises:
        InvalidArgumentError: An array's last axes do not fit n segments; names it.
    """
    return _Chain(
        mass=mass, inertia=inertia, rotation=rotation, acceleration=acceleration, omega=omega, omega_dot=omega_dot,
        proximal=proximal, distal=distal, ground_force=ground_force, ground_moment=ground_moment,
        external_force=external_force, external_moment=external_moment, external_point=external_point, gravity=gravity,
    ).matrices()  # fmt: skip


class _Chain:
    """The checked inputs, over the same leading axes, and what both ways of solving need of them."""

    def __init__(self, **given: ArrayLike) -> None:
        self.m = _checked("mass", given["mass"], (None,))
        self.n = n = self.m.shape[-1]
        self.I = _checked("inertia", given["inertia"], (n, 3, 3))
        vectors = {name: _checked(name, given[name], (n, 3)) for name in _MOTION}
        vectors |= {name: _checked(name, _for_all(given[name], n), (n, 3)) for name in _LOADS}
        vectors |= {name: _checked(name, given[name], (3,))[..., None, :] for name in _OF_ALL}
        R = _checked("rotation", given["rotation"], (n, 3, 3))
        leads = {"mass": self.m.shape[:-1], "inertia": self.I.shape[:-3], "rotation": R.shape[:-3]}
        leads |= {name: x.shape[:-2] for name, x in vectors.items()}
        try:
            self.lead = lead = np.broadcast_shapes(*leads.values())
        except ValueError:
            listed = ", ".join(f"{name} {shape}" for name, shape in leads.items())
            message = f"the leading axes of the recordings do not broadcast: {listed}"
            raise InvalidArgumentError(message, path="inputs") from None
        self.R = np.broadcast_to(R, (*lead, n, 3, 3))
        self.a, self.w, self.w_dot, self.up, self.down, push, twist, at, grf, free, self.g = (
            np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in vectors.values()
        )
        # All from outside, about the centre of mass in the global basis; the ground acts on the first segment.
        self.push, self.twist = push.copy(), twist + np.cross(at, push)
        self.push[..., :1, :] += grf
        self.twist[..., :1, :] += np.cross(self.down[..., :1, :], grf) + free
        self.spin_load = np.cross(self.w, np.einsum("...nij,...nj->...ni", self.I, self.w))

    def by_recursion(self) -> SegmentLoads:
        """Solves segment by segment, from the ground up."""
        # Each segment's own share, to which the lower ones add.
        force = self.m[..., None] * (self.a - self.g) - self.push
        moment = np.einsum("...nij,...nj->...ni", self.I, self.w_dot) + self.spin_load
        below = moment_below = np.zeros((*self.lead, 3))  # what the segment below takes, both in the global basis
        for i in range(self.n):
            R = self.R[..., i, :, :]
            force[..., i, :] += below
            levers = np.cross(self.up[..., i, :], force[..., i, :]) - np.cross(self.down[..., i, :], below)
            moment[..., i, :] += _turned(R, moment_below - levers - self.twist[..., i, :])
            below, moment_below = force[..., i, :], _turned(np.swapaxes(R, -1, -2), moment[..., i, :])
        return SegmentLoads(force, moment)

    def matrices(self) -> SegmentMatrices:
        """M, q-ddot, C, G, E, Q and A, and A^-1 Q."""
        n, lead, none = self.n, self.lead, np.zeros((*self.lead, self.n, 3))
        bodies = np.broadcast_shapes(self.m.shape[:-1], self.I.shape[:-3])
        M, A = np.zeros((*bodies, 6 * n, 6 * n)), np.zeros((*lead, 6 * n, 6 * n))
        for i in range(n):
            rows, moments = slice(6 * i, 6 * i + 3), slice(6 * i + 3, 6 * i + 6)
            M[..., rows, rows] = self.m[..., i, None, None] * np.eye(3)
            M[..., moments, moments] = self.I[..., i, :, :]
            R = self.R[..., i, :, :]
            A[..., rows, rows] = A[..., moments, moments] = np.eye(3)
            A[..., moments, rows] = R @ _skewed(self.up[..., i, :])
            if i:
                before, moments_before = slice(6 * i - 6, 6 * i - 3), slice(6 * i - 3, 6 * i)
                A[..., rows, before] = -np.eye(3)
                A[..., moments, before] = -R @ _skewed(self.down[..., i, :])
                A[..., moments, moments_before] = -R @ np.swapaxes(self.R[..., i - 1, :, :], -1, -2)
        q_ddot = _stacked(self.a, self.w_dot)
        C, G = _stacked(none, -self.spin_load), _stacked(self.m[..., None] * self.g + none, none)
        E = _stacked(self.push, _turned(self.R, self.twist))
        Q = np.einsum("...ij,...j->...i", M, q_ddot) - C - G - E
        return SegmentMatrices(M, q_ddot, C, G, E, Q, A, np.linalg.solve(A, Q[..., None])[..., 0])


def _stacked(forces: Array, moments: Array) -> Array:
    """(..., 6n): one segment's force and moment after the other, from (..., n, 3) each."""
    return np.concatenate([forces, moments], axis=-1).reshape(*forces.shape[:-2], -1)


def _for_all(value: ArrayLike, n: int) -> ArrayLike:
    """Repeats a single vector n times."""
    array = numbers(value)
    return value if array is None or array.shape != (3,) else np.broadcast_to(array, (n, 3))


def _turned(R: Array, x: Array) -> Array:
    turned: Array = np.einsum("...ij,...j->...i", R, x)
    return turned


def _skewed(r: Array) -> Array:
    """(..., 3, 3): S(r), with S(r) F = r x F."""
    return np.swapaxes(np.cross(r[..., None, :], np.eye(3)), -1, -2)


def _checked(name: str, value: ArrayLike, core: tuple[int | None, ...]) -> Array:
    array = numbers(value)
    if array is None:
        raise InvalidArgumentError(f"{name} must be numbers, found {found(value)}", path=name)
    tail = array.shape[array.ndim - len(core) :] if array.ndim >= len(core) else ()
    if not tail or any(want not in (None, has) for want, has in zip(core, tail, strict=True)):
        expected = ", ".join("n" if size is None else str(size) for size in core)
        raise InvalidArgumentError(f"{name} has shape {array.shape}, expected (..., {expected})", path=name)
    return array

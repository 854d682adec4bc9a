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

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dyn_service.api.arrays import found, numbers
from dyn_service.api.results import SegmentLoads, SegmentMatrices
from dyn_service.errors import InvalidArgumentError

Array = NDArray[np.float64]

__all__ = ["inverse_dynamics", "matrices"]

_MOTION = ("acceleration", "omega", "omega_dot", "proximal", "distal")
_LOADS = ("external_force", "external_moment", "external_point")
_OF_ALL = ("ground_force", "ground_moment", "gravity")


def inverse_dynamics(
    *motion: ArrayLike, method: Literal["recursion", "matrix"] = "recursion", **recording: ArrayLike
) -> SegmentLoads:
    """Forces and moments at the proximal joint of each of n segments.

    method: `recursion`, O(n), or `matrix`, one block system. motion, recording: the fields of `Segments`.

    Raises:
        InvalidArgumentError: An array's last axes do not fit n segments, or the method is neither; names it.
    """
    if method not in ("recursion", "matrix"):
        raise InvalidArgumentError(f"method must be 'recursion' or 'matrix', found {method!r}", path="method")
    segments = Segments(*motion, **recording)
    if method == "recursion":
        return segments.by_recursion()
    loads = segments.matrices().loads
    rows = loads.reshape(*loads.shape[:-1], -1, 6)
    return SegmentLoads(rows[..., :3].copy(), rows[..., 3:].copy())


def matrices(*motion: ArrayLike, **recording: ArrayLike) -> SegmentMatrices:
    """M q-ddot = C + G + Q + E of n segments and Q = A [F_1; M_1; F_2; ...], each by name, and the solution.

    motion, recording: the fields of `Segments`.

    Raises:
        InvalidArgumentError: An array's last axes do not fit n segments; names it.
    """
    return Segments(*motion, **recording).matrices()


@dataclass(eq=False)
class Segments:
    """The recorded motion and loads of n segments, ordered from the ground up.

    Attributes:
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
    """

    mass: ArrayLike
    inertia: ArrayLike
    rotation: ArrayLike
    acceleration: ArrayLike
    omega: ArrayLike
    omega_dot: ArrayLike
    proximal: ArrayLike
    distal: ArrayLike
    ground_force: ArrayLike = (0.0, 0.0, 0.0)
    ground_moment: ArrayLike = (0.0, 0.0, 0.0)
    external_force: ArrayLike = (0.0, 0.0, 0.0)
    external_moment: ArrayLike = (0.0, 0.0, 0.0)
    external_point: ArrayLike = (0.0, 0.0, 0.0)
    gravity: ArrayLike = (0.0, -9.81, 0.0)

    def __post_init__(self) -> None:
        inputs = dict(vars(self))
        self.m = _checked("mass", inputs["mass"], (None,))
        self.n = n = self.m.shape[-1]
        self.I = _checked("inertia", inputs["inertia"], (n, 3, 3))
        vectors = {name: _checked(name, inputs[name], (n, 3)) for name in _MOTION}
        vectors |= {name: _checked(name, _for_all(inputs[name], n), (n, 3)) for name in _LOADS}
        vectors |= {name: _checked(name, inputs[name], (3,))[..., None, :] for name in _OF_ALL}
        R = _checked("rotation", inputs["rotation"], (n, 3, 3))
        leads = {"mass": self.m.shape[:-1], "inertia": self.I.shape[:-3], "rotation": R.shape[:-3]}
        leads |= {name: x.shape[:-2] for name, x in vectors.items()}
        try:
            self.lead = lead = np.broadcast_shapes(*leads.values())
        except ValueError:
            shapes = ", ".join(f"{name} {shape}" for name, shape in leads.items())
            message = f"the leading axes of the recordings do not broadcast: {shapes}"
            raise InvalidArgumentError(message, path="inputs") from None
        self.R = np.broadcast_to(R, (*lead, n, 3, 3))
        self.a, self.w, self.w_dot, self.up, self.down, force, moment, contact_point, grf, free, self.g = (
            np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in vectors.values()
        )
        # External loads about the centre of mass, in the global basis; the ground acts on the first segment.
        self.load_force, self.load_moment = force.copy(), moment + np.cross(contact_point, force)
        self.load_force[..., :1, :] += grf
        self.load_moment[..., :1, :] += np.cross(self.down[..., :1, :], grf) + free
        self.spin_load = np.cross(self.w, np.einsum("...nij,...nj->...ni", self.I, self.w))

    def by_recursion(self) -> SegmentLoads:
        """Solves segment by segment, from the ground up."""
        # Loads of a segment without those of the segment below, which the loop adds.
        force = self.m[..., None] * (self.a - self.g) - self.load_force
        moment = np.einsum("...nij,...nj->...ni", self.I, self.w_dot) + self.spin_load
        force_below = moment_below = np.zeros((*self.lead, 3))  # on the segment below, global basis
        for i in range(self.n):
            R = self.R[..., i, :, :]
            force[..., i, :] += force_below
            levers = np.cross(self.up[..., i, :], force[..., i, :]) - np.cross(self.down[..., i, :], force_below)
            moment[..., i, :] += _rotated(R, moment_below - levers - self.load_moment[..., i, :])
            force_below, moment_below = force[..., i, :], _rotated(np.swapaxes(R, -1, -2), moment[..., i, :])
        return SegmentLoads(force, moment)

    def matrices(self) -> SegmentMatrices:
        """M, q-ddot, C, G, E, Q and A, and A^-1 Q."""
        n, lead, zero = self.n, self.lead, np.zeros((*self.lead, self.n, 3))
        # M depends on masses and inertias only, so it is not repeated for each frame.
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
                rows_before, moment_rows_before = slice(6 * i - 6, 6 * i - 3), slice(6 * i - 3, 6 * i)
                A[..., rows, rows_before] = -np.eye(3)
                A[..., moments, rows_before] = -R @ _skewed(self.down[..., i, :])
                A[..., moments, moment_rows_before] = -R @ np.swapaxes(self.R[..., i - 1, :, :], -1, -2)
        q_ddot = _stacked(self.a, self.w_dot)
        C, G = _stacked(zero, -self.spin_load), _stacked(self.m[..., None] * self.g + zero, zero)
        E = _stacked(self.load_force, _rotated(self.R, self.load_moment))
        Q = np.einsum("...ij,...j->...i", M, q_ddot) - C - G - E
        return SegmentMatrices(M, q_ddot, C, G, E, Q, A, np.linalg.solve(A, Q[..., None])[..., 0])


def _stacked(forces: Array, moments: Array) -> Array:
    """Returns (..., 6n), the force and moment of each segment in turn, from (..., n, 3) each."""
    return np.concatenate([forces, moments], axis=-1).reshape(*forces.shape[:-2], -1)


def _for_all(value: ArrayLike, n: int) -> ArrayLike:
    """Returns a single vector (3,) for all n segments; other values unchanged."""
    array = numbers(value)
    return value if array is None or array.shape != (3,) else np.broadcast_to(array, (n, 3))


def _rotated(R: Array, x: Array) -> Array:
    rotated: Array = np.einsum("...ij,...j->...i", R, x)
    return rotated


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

"""Inverse dynamics with contacts: joint efforts and contact forces of a robot that stands or walks, for a given motion.

    M(q) a + h(q, v) = S^T tau + J^T f          nv equations; f: contact forces
    U (M a + h) = U J^T f                       the equations of undriven joints: the base of a legged robot
    tau = M a + h - J^T f                       the efforts, once f is known

With more than two feet, or flat ones, f is not unique: internal forces can be added. The solution is the f of least
norm, or of least efforts, within the friction cones of contacts that are not rigid:

    minimise |f|^2          or |tau|^2 and then |f|^2, over the driven joints
    subject to U J^T f = U (M a + h)
               |f_t| <= mu f_n at each contact that is not rigid

Without cones, and with cones that contain it, f = A^+ b with A = U J^T (by singular values). Otherwise Clarabel, an
interior-point solver with second-order cones, solves a cone program; cones are round, not pyramids. If the contacts
cannot produce the motion (a foot would have to pull), f minimises the residual, which is an output.

Clarabel comes with the extra `contacts`: a Rust library with wheels and no dependencies beyond NumPy and SciPy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.arguments import Contact, Wrench
from dyn_service.api.arrays import broadcast, vectors
from dyn_service.api.cost import COPIES, Cost, count, given_shape, leading, overlay_lead, wrench_shapes
from dyn_service.api.queries import Array, RobotQueries
from dyn_service.api.results import GroundReactions
from dyn_service.api.spec import Dimensions
from dyn_service.api.whole_body import driven_entries
from dyn_service.errors import FailedPreconditionError
from dyn_service.simulation.contact_points import Points, check_links, listed
from dyn_service.support.optional import load

_TOLERANCES = ((1e-12, 1e-9), (1e-9, 1e-6))
"""Tolerance of the solver for numbers of order 1, that accepted if rounding prevents it, and those tried last."""

_SOFT = 1e-9
"""Weight of forces relative to the residual, if the contacts cannot produce the motion."""

_TIE_WEIGHT = 1e-9
"""Weight of forces relative to efforts, which selects the least of all forces with the same efforts."""


@dataclass(frozen=True)
class Cone:
    """The friction cone |f_t| <= friction f_n of the contact with this index."""

    contact: int
    friction: float

    def distance(self, force: Array, normal: Array) -> float:
        """Returns the distance of a force from the cone, N; 0 inside."""
        normal_force = float(force @ normal)
        tangential_force = float(np.sqrt(np.sum((force - normal_force * normal) ** 2)))
        return max(tangential_force - self.friction * normal_force, -normal_force)


def least_in_cones(
    A: Array, b: Array, normals: Array, cones: Sequence[Cone], efforts: tuple[Array, Array] | None
) -> Array:
    """Returns the forces (n,) of one state in their cones with A f = b that minimise |f|, or the efforts |c - B f|. If
    no forces satisfy A f = b, returns those with the least residual.

    A: (nu, n). b: (nu,). normals: (n / 3, 3), of length 1. cones: of the contacts that are not rigid, at least one.
    efforts: B and c, to minimise efforts.

    Raises:
        FailedPreconditionError: The solver is not installed, or fails.
    """
    size = float(np.sqrt(np.sum(b**2))) or 1.0
    b = b / size
    rows, right = _independent(A, b)
    n = A.shape[1]
    P, linear = np.eye(n), np.zeros(n)
    if efforts is not None:
        B, c = efforts
        gram = B.T @ B
        # The solver's tolerances are absolute, for numbers of order 1.
        weight = float(np.trace(gram))
        # Otherwise no effort depends on the forces, which are minimised then.
        if weight > RANK**2 * np.trace(A.T @ A):
            P = gram / weight + _TIE_WEIGHT * np.eye(n)
            linear = -B.T @ c / (size * weight)
    f = _minimum(P, linear, (rows, right), normals, cones)
    if f is not None:
        # The solver's residual, about 1e-12, is corrected in the forces.
        return (f + rows.T @ (right - rows @ f)) * size
    P = A.T @ A
    f = _minimum(P + _SOFT * max(float(np.trace(P)), 1e-300) * np.eye(n), -A.T @ b, None, normals, cones)
    if f is None:
        raise FailedPreconditionError("ground_reactions: the solver finds no forces within the friction cones")
    return f * size


def _independent(A: Array, b: Array) -> tuple[Array, Array]:
    """Returns the equations without dependent or contradictory rows, with orthonormal rows."""
    U, s, Vt = np.linalg.svd(A, full_matrices=False)
    independent = s > RANK * s.max(initial=0.0)
    return Vt[independent], (U.T @ b)[independent] / s[independent]


def _minimum(
    P: Array, linear: Array, equations: tuple[Array, Array] | None, normals: Array, cones: Sequence[Cone]
) -> Array | None:
    """Returns the minimum of f^T P f / 2 + linear f, or None if the solver fails."""
    from scipy import sparse

    clarabel = load("a contact whose friction cone binds, unlike one with rigid=True,", "clarabel")
    n = len(linear)
    rows, sides, kinds = [], [], []
    if equations is not None and len(equations[1]):
        rows.append(equations[0])
        sides.append(equations[1])
        kinds.append(clarabel.ZeroConeT(len(equations[1])))
    for cone in cones:
        normal = normals[cone.contact]
        tangents = np.linalg.svd(normal[None, :])[2][1:]
        place = slice(3 * cone.contact, 3 * cone.contact + 3)
        if cone.friction > 0.0:
            # a cone, since a pyramid of 8 sides has 6 % less friction along its diagonals
            parts = [(np.vstack([cone.friction * normal, tangents]), clarabel.SecondOrderConeT(3))]
        else:
            parts = [(normal[None, :], clarabel.NonnegativeConeT(1)), (tangents, clarabel.ZeroConeT(2))]
        for block, kind in parts:
            row = np.zeros((len(block), n))
            row[:, place] = -block  # s = 0 - row f
            rows.append(row)
            sides.append(np.zeros(len(block)))
            kinds.append(kind)
    upper = sparse.triu(sparse.csc_matrix(P)).tocsc()
    matrix = sparse.csc_matrix(np.vstack(rows))
    for tolerance, fallback in _TOLERANCES:
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        settings.max_threads = 1
        for name in ("tol_gap_abs", "tol_gap_rel", "tol_feas"):
            setattr(settings, name, tolerance)
            setattr(settings, f"reduced_{name}", fallback)
        solution = clarabel.DefaultSolver(upper, linear, matrix, np.concatenate(sides), kinds, settings).solve()
        status, f = str(solution.status), np.array(solution.x)
        if status in ("Solved", "AlmostSolved") and np.isfinite(f).all():
            return f
        if "Infeasible" in status:
            break
    return None


RANK = 1e-9
"""Singular values below this fraction of the largest count as zero."""

SUPPORTED = 1e-8
"""Residuals below this fraction of the required force are rounding."""

_WITHIN = 1e-12
"""A force within this fraction of the largest force of its cone counts as inside."""

_CALL_S, _STATE_S, _CONTACT_S, _CUBE_S, _ENTRY_S = 5e-4, 1e-5, 2e-6, 5e-11, 2e-8
"""Cost of a call, per state, per contact, per operation of its factorisations, and per entry of its Jacobians."""

_SOLVE_S, _SOLVE_CONTACT_S, _SOLVE_CUBE_S = 1e-3, 1.8e-4, 3.5e-9
"""Cost of the solver per state, per contact, and per cube of the number of unknowns."""


def ground_reactions(
    robot: RobotQueries,
    q: ArrayLike,
    v: ArrayLike,
    a: ArrayLike,
    contacts: Contact | Sequence[Contact],
    *,
    least: str = "forces",
    undriven: Sequence[str] | None = None,
    gravity: ArrayLike | None = None,
    wrenches: Wrench | Sequence[Wrench] | None = None,
) -> GroundReactions:
    """Returns efforts and contact forces that produce the acceleration `a`: `RobotQueries.ground_reactions`.

    Raises:
        InvalidArgumentError: An argument has the wrong shape, type or value; `path` names it.
        NotFoundError: There is no joint or link of a name.
        FailedPreconditionError: An intermediate result overflows, or a cone is active and its solver is not installed.
    """
    touching = listed(contacts, batches=True)
    check_links(robot, touching)
    g = robot.gravity if gravity is None else gravity
    vectors_of = (("q", q, robot.nq), ("v", v, robot.nv), ("a", a, robot.nv), ("gravity", g, 3))
    q, v, a, g = (vectors(name, value, length) for name, value, length in vectors_of)
    actuated = driven_entries(robot.configuration, undriven)
    free = [k for k in range(robot.nv) if k not in actuated]
    required = robot.inverse_dynamics(q, v, a, gravity=g, wrenches=wrenches)
    leads = {"state": required.shape[:-1]}
    for k, contact in enumerate(touching):
        leads |= {f"contacts[{k}].{part}": np.shape(getattr(contact, part))[:-1] for part in ("point", "normal")}
    lead = broadcast(leads)
    points = Points(robot, touching)
    J = points.at(q).J
    required = np.broadcast_to(required, (*lead, robot.nv))
    J = np.broadcast_to(J.reshape(*J.shape[:-3], 3 * len(touching), robot.nv), (*lead, 3 * len(touching), robot.nv))
    if not (np.isfinite(required).all() and np.isfinite(J).all()):
        raise FailedPreconditionError("ground_reactions has no answer: numbers on the way are not finite")
    A, B = np.ascontiguousarray(J[..., free].mT), np.ascontiguousarray(J[..., actuated].mT)
    force, rank = _least_norm(A, required[..., free])
    if least == "efforts":
        force = force + _least_efforts(A, B, required[..., actuated], force)
    cones = [Cone(k, contact.friction or 0.0) for k, contact in enumerate(touching) if not contact.rigid]
    if cones:  # replace the forces of the states with a force outside its cone
        normals = np.broadcast_to(points.normal, (*lead, len(touching), 3))
        for state in np.ndindex(lead):
            f, normal, b = force[state].reshape(-1, 3), normals[state], required[state]
            slack = _WITHIN * max(float(np.abs(f).max(initial=0.0)), 1e-300)
            if any(cone.distance(f[cone.contact], normal[cone.contact]) > slack for cone in cones):
                efforts_of = (B[state], b[actuated]) if least == "efforts" else None
                force[state] = least_in_cones(A[state], b[free], normal, cones, efforts_of)
    tau = required - _times(np.ascontiguousarray(J.mT), force)
    forces = force.reshape(*lead, len(touching), 3)
    size, residue = (np.sqrt(np.sum(x[..., free] ** 2, axis=-1)) for x in (required, tau))
    residual = np.where(size > 0.0, residue / np.where(size > 0.0, size, 1.0), 0.0)
    supported = np.asarray(residual <= SUPPORTED, dtype=float)
    indeterminate = 3.0 * len(touching) - rank
    return GroundReactions(tau, forces, residual[()], supported[()], rank=rank[()], indeterminate=indeterminate[()])


def cost(sizes: Dimensions, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Cost:
    """Returns the predicted cost of a request; see `Computation.cost`."""
    contacts, wrenches = inputs["contacts"], inputs.get("wrenches") or ()
    shapes = [given_shape(inputs.get(name), 1) for name in ("q", "v", "a", "gravity")]
    shapes += [np.shape(part)[:-1] for c in contacts for part in (c.point, c.normal)]
    lead = leading([*shapes, *wrench_shapes(wrenches, 1), overlay_lead(inputs.get("overlay"))])
    states, n, nv = count(lead), 3 * len(contacts), sizes["nv"]
    solved = not all(contact.rigid for contact in contacts)
    work = _STATE_S + len(contacts) * _CONTACT_S + (n + nv) ** 3 * _CUBE_S + sizes["nl"] * nv * _ENTRY_S
    work += _SOLVE_S + len(contacts) * _SOLVE_CONTACT_S + n**3 * _SOLVE_CUBE_S if solved else 0.0
    reply = 8 * states * (nv + n + 4)
    memory = COPIES * reply + 8 * states * (8 * sizes["nl"] * nv + 6 * n * (nv + n))
    return Cost(_CALL_S + states * work, memory, reply, lead, wrenches=len(wrenches), contacts=len(contacts))


def _least_norm(A: Array, b: Array, strongest: Array | None = None) -> tuple[Array, Array]:
    """Returns the least-squares solution of A x = b with least norm, and the rank of A.

    strongest: the scale for `RANK`; None is the largest singular value of A.
    """
    rows, columns = A.shape[-2:]
    if not rows or not columns:
        return np.zeros((*A.shape[:-2], columns)), np.zeros(A.shape[:-2])
    U, s, Vt = np.linalg.svd(A, full_matrices=False)
    independent = s > RANK * (s[..., :1] if strongest is None else strongest[..., None])
    inverse = np.where(independent, 1.0 / np.where(independent, s, 1.0), 0.0)
    x = _times(np.ascontiguousarray(Vt.mT), inverse * _times(np.ascontiguousarray(U.mT), b))
    return x, independent.sum(axis=-1).astype(float)


def _internal_projector(A: Array) -> Array:
    """Returns the projector on the null space of A, the internal forces."""
    rows, columns = A.shape[-2:]
    unit = np.broadcast_to(np.eye(columns), (*A.shape[:-2], columns, columns))
    if not rows or not columns:
        return unit
    _, s, Vt = np.linalg.svd(A, full_matrices=False)
    basis = np.where((s > RANK * s[..., :1])[..., None], Vt, 0.0)
    return unit - _product(np.ascontiguousarray(basis.mT), basis)


def _least_efforts(A: Array, B: Array, required: Array, force: Array) -> Array:
    """Returns the internal forces to add so that the efforts needed - B f are least; of these, the least forces."""
    internal = _internal_projector(A)
    # Internal forces within one link do not change efforts: their B is rounding relative to A and B.
    strongest = np.maximum(*(np.abs(part).max(axis=(-2, -1), initial=0.0) for part in (A, B)))
    combination, _ = _least_norm(_product(B, internal), required - _times(B, force), strongest)
    return _times(internal, combination)


def _times(M: Array, x: Array) -> Array:
    """Returns M x over leading axes. Not by BLAS, which may round differently for one state and for a batch."""
    product: Array = np.sum(M * x[..., None, :], axis=-1)
    return product


def _product(M: Array, N: Array) -> Array:
    """Returns M N over leading axes, each product by the same routine."""
    product: Array = np.matmul(np.ascontiguousarray(M), np.ascontiguousarray(N))
    return product

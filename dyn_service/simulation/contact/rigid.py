"""Points held on planes: constraint forces from J M^-1 J^T.

    M a = tau - b + J^T f,   J a = -J-dot v - (2/T) J v - (gap / T^2) n        f = (J M^-1 J^T)^+ (.. - J a_free)

Where the points are held in more directions than are independent, f is not determined by the motion: the pseudo-inverse
gives the least f of all that bring it about, the rank says how many directions there are. Directions that contradict
each other, as no motion can do them all, are met as nearly as may be in the sense of least squares, and the violation
says by how much they are not. The terms with T bring back points that have drifted off their planes (J. Baumgarte,
1972, critically damped); without them (T = 0) drift stays. Cost: O(N^2 m + m^3) for m directions. Source: R.
Featherstone, Rigid Body Dynamics Algorithms, 2008, 8.3 to 8.5 and 11.4. Checked by tests/oracle/test_contact.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.arrays import broadcast, vectors
from dyn_service.api.queries import Array, Contact, RobotQueries, Wrench
from dyn_service.api.results import ContactDynamics
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.simulation.contact_points import Points, check_links, listed

_DEPENDENT = 1e-10
"""A direction whose part of J M^-1 J^T is below this share of the largest depends on others: rounding is 1e-14."""


class Held(NamedTuple):
    """a: (..., nv). forces: (..., m), along the rows. rank, violation: (...)."""

    a: Array
    forces: Array
    rank: Array
    violation: Array


def contact_dynamics(
    robot: RobotQueries,
    q: ArrayLike,
    v: ArrayLike,
    tau: ArrayLike,
    contacts: Contact | Sequence[Contact],
    *,
    settle: float = 0.0,
    gravity: ArrayLike | None = None,
    wrenches: Wrench | Sequence[Wrench] | None = None,
) -> ContactDynamics:
    """The answer of the row of this name.

    Raises:
        InvalidArgumentError: An argument of the wrong shape or value; `path` names it.
        NotFoundError: A link does not exist.
        FailedPreconditionError: The mass matrix is singular: a massless branch moves.
    """
    at = robot.configuration
    held_ones = listed(contacts)
    check_links(robot, held_ones)
    points = Points(robot, held_ones)
    if not (isinstance(settle, int | float) and 0.0 <= settle < np.inf):
        raise InvalidArgumentError(f"settle must be a time in s, at least 0, found {settle!r}", path="settle")
    given = {"q": vectors("q", q, at.nq), "v": vectors("v", v, at.nv), "tau": vectors("tau", tau, at.nv)}
    free = robot.forward_dynamics(*given.values(), gravity=gravity, wrenches=wrenches)
    lead = broadcast({**{name: x.shape[:-1] for name, x in given.items()}, "a": free.shape[:-1]})
    q, v = given["q"], given["v"]
    gap, J = points.at(q)
    wanted = -points.bias(q, v)
    if settle:
        wanted = wanted - settling(gap, np.einsum("...cin,...n->...ci", J, v), points.normal, settle)
    n = 3 * len(points)
    rows, wanted = J.reshape(*J.shape[:-3], n, at.nv), wanted.reshape(*wanted.shape[:-2], n)
    found = hold(robot.mass_matrix(q), free, rows, wanted)
    a, forces = np.broadcast_to(found.a, (*lead, at.nv)), found.forces
    forces = np.broadcast_to(forces, (*lead, n)).reshape(*lead, len(points), 3)
    return ContactDynamics(a, forces, np.broadcast_to(found.rank, lead), np.broadcast_to(found.violation, lead))


def settling(gap: Array, x: Array, normal: Array, time: float) -> Array:
    """(..., nc, 3) m/s^2, by which points are slowed that are off their planes, or move: (2/T) x + (gap / T^2) n."""
    return (2.0 / time) * x + (gap / time**2)[..., None] * normal


def hold(M: Array, free: Array, J: Array, wanted: Array) -> Held:
    """The accelerations nearest to `free` with J a = wanted, and the forces that make them so.

    Args:
        M: (..., nv, nv).
        free: (..., nv) accelerations without these forces.
        J: (..., m, nv).
        wanted: (..., m).

    Returns:
        NaN in states whose numbers are not finite, as of a motion that diverges; the others are what they are alone.

    Raises:
        FailedPreconditionError: M is singular; of a batch, the first such state is named.
    """
    lead = np.broadcast_shapes(M.shape[:-2], free.shape[:-1], J.shape[:-2], wanted.shape[:-1])
    finite = np.ones(lead, dtype=bool)
    for x, core in ((M, 2), (free, 1), (J, 2), (wanted, 1)):
        finite &= np.isfinite(x).all(axis=tuple(range(-core, 0)))
    M, J = (np.where(finite[..., None, None], x, 0.0) for x in (M, J))
    free, wanted = (np.where(finite[..., None], x, 0.0) for x in (free, wanted))
    X = _solved(np.where(finite[..., None, None], M, np.eye(M.shape[-1])), np.swapaxes(J, -1, -2))
    felt = J @ X
    finite &= np.isfinite(felt).all(axis=(-2, -1))
    missing = wanted - _times(J, free)
    shares, directions = np.linalg.eigh(np.where(finite[..., None, None], felt, 0.0))
    kept = shares > _DEPENDENT * shares.max(axis=-1, keepdims=True, initial=0.0)
    along = _times(np.swapaxes(directions, -1, -2), missing)
    forces = _times(directions, np.where(kept, along / np.where(kept, shares, 1.0), 0.0))
    a = free + _times(X, forces)
    violation = np.abs(_times(J, a) - wanted).max(axis=-1, initial=0.0)
    a, forces = (np.where(finite[..., None], x, np.nan) for x in (a, forces))
    return Held(a, forces, *(np.where(finite, x, np.nan) for x in (kept.sum(axis=-1), violation)))


def _solved(M: Array, Jt: Array) -> Array:
    """M^-1 J^T, as of `hold`."""
    try:
        return np.asarray(np.linalg.solve(M, Jt))
    except np.linalg.LinAlgError:
        where = ""
        for index in np.ndindex(M.shape[:-2]):
            try:
                np.linalg.inv(M[index])
            except np.linalg.LinAlgError:
                where = f" at state {list(index)} of the batch" if index else ""
                break
        raise FailedPreconditionError(f"the mass matrix is singular{where}: a massless branch moves") from None


def _times(A: Any, x: Any) -> Any:
    return (A @ x[..., None])[..., 0]

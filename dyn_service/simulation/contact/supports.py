"""Supports of a simulated robot: joint stops, velocity limits, contacts with planes.

    one-sided   f = (k delta - c x)+    c = min(k d delta, m / 2h)    stops, contacts: x separation velocity, delta
    depth
                f = c (|v| - v_max)+    c = m / T                     velocity limits
    friction    f = -mu f_n X / sqrt(|X|^2 + w^2)                     contacts: X tangential velocity

No support adds energy or pulls; k delta^2 / 2 is stored at depth delta, the rest is dissipated. Defaults follow from
the step and the robot, with T (`stop_time`; if it is 0, five steps, 5 h; for `stick_slip` one step, since it is stable
for any stiffness):

    k = m / T^2,     w = 0.01 m/s,     d = `stop_damping`

so that the support oscillates with 1/T rad/s, which the step resolves. m is the least inertia of a joint, or of a point
in any direction, in eight configurations (neutral, and seven drawn with fixed seeds), shared among coupled points. It
depends on the robot and the contacts only, so that a simulation in parts gives the same motion. Damping is limited to m
/ 2h, also if given by the caller, and friction is smoothed over at least 2 h mu f_n / m, m/s; otherwise explicit steps
would add energy. Below that limit, k delta (1 + d u) is the law of K. H. Hunt and F. R. E. Crossley, 1975: the rebound
velocity is about u (1 - 2/3 d u), for small d u. With k = m / T^2 and T of a few steps, the limit is reached above some
0.25 m/s, and the rebound is a fraction of u; see docs/contacts.md.

`stick_slip` uses the same laws at the end of the step (`steps.py`), with exact Coulomb friction. Checked by
tests/simulation/test_contact.py.

Rigid contacts are constraints:

    M a = tau - b + J^T f,   J a = -J-dot v - (2/T) J v - (gap / T^2) n        f = (J M^-1 J^T)^+ (.. - J a_free)

If constraints are dependent, f is not unique; the pseudo-inverse gives the f of least norm, and the rank is the number
of independent directions. Contradicting constraints are satisfied in the least-squares sense, and the violation is an
output. The terms with T return points that have drifted off their planes (J. Baumgarte, 1972, critically damped); T = 0
omits them.
Cost: O(N^2 m + m^3) for m directions. Source: R. Featherstone, Rigid Body Dynamics Algorithms, 2008, 8.3 to 8.5 and
11.4. Checked by tests/oracle/test_contact.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.arrays import broadcast, vectors
from dyn_service.api.queries import Array, Contact, RobotQueries, Wrench
from dyn_service.api.results import ContactDynamics
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.model.inertia import skew
from dyn_service.model.passive import PRISMATIC_WIDTH
from dyn_service.simulation.contact_points import Placed, Points, check_links, listed
from dyn_service.simulation.task import Task

_STEPS, _STEPS_OF_STICK_SLIP = 5.0, 1.0
"""Steps per default stop time."""

_STIFFEST = {"rk4": 7.0, "semi_implicit_euler": 3.0, "explicit_euler": 3.0}
"""Largest h^2 k / m of stops and contacts with a damping of m / 2h: 4 - 2 / 2 for Euler, and the same edge of RK4's
region of stability, |h w| = 2.7 at a real part of -1/4.
"""

_SEEDS = range(7)
"""Number of random configurations in which the inertia is evaluated, in addition to the neutral one."""

BRAKES = 1e9
"""Inertia of a braked joint relative to its own; its reciprocal is the compliance of the brake."""

_FOLLOWS = 0.5
"""Largest stable damping as a fraction of inertia over step: RK4 is stable up to 2.8, Euler up to 2."""


class Pushing(NamedTuple):
    """One-sided supports in one state: forces (load - damping x)+, x = rows v.

    rows: (..., n, nv). load: (..., n) N | N m. stiffness, damping: (..., n) in its units. depth: (..., n).
    """

    rows: Array
    load: Array
    stiffness: Array
    damping: Array
    depth: Array

    def forces(self, x: Array) -> Array:
        """Returns the forces (..., n) at velocities x (..., n)."""
        return np.maximum(self.load - self.damping * x, 0.0)

    def stored(self, depth: Array) -> Array:
        """Returns the stored energy (..., n) J."""
        return np.asarray(self.stiffness * np.maximum(depth, 0.0) ** 2 / 2.0)


@dataclass(frozen=True, eq=False)
class Supported:
    """The supports at one state.

    pushing: stops and velocity limits, then points. tangents: (..., nc, 2, nv) of the points that are not rigid. held:
    the rigid points.
    """

    pushing: Pushing
    tangents: Array
    held: Placed


class Acting(NamedTuple):
    """The forces of the supports. efforts: (..., nv) in total, stops: (..., nv) of stops. contacts: (..., nc, 3) N.
    lost: (..., 2) W, dissipated by stops and contacts.
    """

    efforts: Array
    stops: Array
    contacts: Array
    lost: Array


class Supports:
    """The supports of a simulation.

    Raises:
        NotFoundError: A contact's link does not exist.
        InvalidArgumentError: No joint moves it.
        FailedPreconditionError: The mass matrix is singular.
    """

    def __init__(self, robot: RobotQueries, task: Task) -> None:
        at, limits = robot.configuration, robot.limits
        self._robot, self._nv, self._contacts = robot, at.nv, task.contacts
        arms = [skew(each.radius * np.asarray(each.normal, dtype=np.float64)) for each in task.contacts]
        self._arms = -np.array(arms).reshape(-1, 3, 3)
        steps = _STEPS_OF_STICK_SLIP if task.integrator == "stick_slip" else _STEPS
        self.time = task.stop_time or steps * task.dt
        self._least_damping_time = task.dt / _FOLLOWS
        check_links(robot, task.contacts)
        soft, rigid = ([c for c in task.contacts if c.rigid is which] for which in (False, True))
        self.order = [task.contacts.index(c) for c in (*soft, *rigid)]
        self.points, self.rigid = Points(robot, soft), Points(robot, rigid)
        self.normal = self.points.normal
        self.tangents = np.array([_tangents(n) for n in self.normal]).reshape(len(soft), 2, 3)
        of_joints, of_points = self._inertias(task)
        for k, contact in enumerate(soft):
            if not np.isfinite(of_points[..., k]).all():
                raise InvalidArgumentError(
                    f"contacts[{task.contacts.index(contact)}]: no joint moves link '{contact.link}'",
                    path=f"contacts[{task.contacts.index(contact)}].link",
                )
        bounded = [
            (in_q.start, in_v.start)
            for joint, in_q, in_v in zip(at.joints, at.q_slices, at.v_slices, strict=True)
            if joint.nq == joint.nv == 1 == robot.free[in_v.start]  # locked joints have no supports
            and np.isfinite([limits.lower[in_q], limits.upper[in_q]]).any()
        ]
        bounded = bounded if task.position_limits else []
        self._in_q, self._in_v = [q for q, _ in bounded], [v for _, v in bounded]
        self._lower, self._upper = limits.lower[self._in_q], limits.upper[self._in_q]
        self._braked = np.flatnonzero(np.isfinite(limits.speeds)).tolist() if task.velocity_limits else []
        self._speeds = limits.speeds[self._braked]
        slowest = 0.0 if task.integrator == "stick_slip" else self._least_damping_time
        self._brake = of_joints[..., self._braked] / max(self.time, slowest)
        self.joints = len(bounded) + len(self._braked)
        inertia = np.concatenate([of_joints[..., self._in_v], of_points], axis=-1)
        self._follows = inertia / self._least_damping_time
        given = [task.stop_damping if c.damping is None else c.damping for c in soft]
        self._damping = np.array([task.stop_damping] * len(bounded) + given)
        stiffness = inertia / self.time**2
        own = np.array([np.nan] * len(bounded) + [np.nan if c.stiffness is None else c.stiffness for c in soft])
        self._stiffness = np.where(np.isnan(own), stiffness, own)
        largest = inertia * _STIFFEST.get(task.integrator, np.inf) / task.dt**2
        too_stiff = self._stiffness > largest
        if too_stiff.any():
            k = int(np.argwhere(too_stiff)[0, -1])
            names = [f"the stop of joint '{at.velocity_joints[entry]}'" for entry in self._in_v]
            names += [f"contacts[{task.contacts.index(c)}] of link '{c.link}'" for c in soft]
            value, limit = (float(np.max(x[..., k])) for x in (self._stiffness, largest))
            raise FailedPreconditionError(
                f"{names[k]} has a stiffness of {value:.3g}, of which steps of {task.dt:g} s of {task.integrator} are "
                f"unstable: at most {limit:.3g}; use integrator='stick_slip', a longer stop_time, or shorter steps"
            )
        self._friction = np.array([c.friction for c in soft])
        self._width = np.array([PRISMATIC_WIDTH if c.width is None else c.width for c in soft])
        self._widening = self._least_damping_time / of_points

    def _inertias(self, task: Task) -> tuple[Array, Array]:
        """Returns m of the joints, (..., nv), and of the points, (..., nc)."""
        robot = self._robot
        drawn = [robot.random_configuration(seed=seed) for seed in _SEEDS]
        q = np.stack([task.at.neutral, *drawn])
        robot.check_inertia("simulate", q)
        q = q.reshape(len(q), *(1,) * (robot.mass_matrix(task.at.neutral).ndim - 2), task.at.nq)
        try:
            inverse = np.linalg.inv(robot.mass_matrix(q))
        except np.linalg.LinAlgError:
            raise FailedPreconditionError(
                "stops and contacts need a mass matrix that is regular: a massless branch moves"
            ) from None
        of_joints = 1.0 / np.einsum("k...ii->k...i", inverse).max(axis=0, initial=0.0) if self._nv else np.zeros(0)
        if not len(self.points):
            return of_joints, np.zeros((*of_joints.shape[:-1], 0))
        J = self.points.at(q).J
        response = np.einsum("k...ain,k...nm,k...bjm->k...abij", J, inverse, J)
        with np.errstate(divide="ignore"):
            return of_joints, 1.0 / np.linalg.norm(response, ord=2, axis=(-2, -1)).sum(axis=-1).max(axis=0)

    def at(self, q: Array, v: Array) -> Supported:
        """Returns the supports at a state."""
        of_q = q[..., self._in_q]
        up = self._upper - of_q < of_q - self._lower
        depth = np.where(up, of_q - self._upper, self._lower - of_q)
        gap, J = self.points.at(q) if len(self.points) else _nowhere(q, self._nv)
        lead = np.broadcast_shapes(q.shape[:-1], v.shape[:-1], gap.shape[:-1])
        away = np.sign(v[..., self._braked])
        rows = _joined(
            lead,
            _signed(np.where(up, -1.0, 1.0), self._in_v, self._nv),
            _signed(-away, self._braked, self._nv),
            np.einsum("ci,...cin->...cn", self.normal, J),
            axis=-2,
        )
        depth = _joined(lead, depth, -gap)
        damping = np.minimum(self._stiffness * self._damping * np.maximum(depth, 0.0), self._follows)
        stops, brakes = len(self._in_v), len(self._braked)
        none = np.zeros(brakes)

        def with_brakes(x: Array, of_brakes: Array) -> Array:
            return _joined(lead, x[..., :stops], of_brakes, x[..., stops:])

        pushing = Pushing(
            rows,
            with_brakes(self._stiffness * depth, -self._brake * self._speeds),
            with_brakes(self._stiffness, none),
            with_brakes(damping, self._brake),
            with_brakes(depth, none),
        )
        tangents = np.einsum("cki,...cin->...ckn", self.tangents, J)
        held = self.rigid.at(q) if len(self.rigid) else Placed(*_nowhere(q, self._nv))
        return Supported(pushing, np.broadcast_to(tangents, (*lead, *tangents.shape[-3:])), held)

    def acting(self, on: Supported, v: Array) -> Acting:
        """Returns the forces of the supports at velocities v."""
        pushing, n = on.pushing, self.joints
        x = _times(pushing.rows, v)
        f = pushing.forces(x)
        X = np.einsum("...ckn,...n->...ck", on.tangents, v)
        bound = self.bound(f)
        width = np.maximum(self._width, bound * self._widening)
        rubbing = -X * (bound / np.sqrt(np.sum(X**2, axis=-1) + width**2))[..., None]
        kept = pushing.stiffness * np.maximum(pushing.depth, 0.0)
        lost = (kept - f) * x
        stops = np.einsum("...mn,...m->...n", pushing.rows[..., :n, :], f[..., :n])
        efforts = np.einsum("...mn,...m->...n", pushing.rows, f)
        efforts = efforts + np.einsum("...ckn,...ck->...n", on.tangents, rubbing)
        of_contacts = lost[..., n:].sum(axis=-1) - np.sum(rubbing * X, axis=(-2, -1))
        return Acting(
            efforts,
            stops,
            self.forces(f[..., n:], rubbing),
            np.stack([lost[..., :n].sum(axis=-1), of_contacts], axis=-1),
        )

    def forces(self, pushing: Array, rubbing: Array) -> Array:
        """Returns forces (..., nc, 3), world axes, from components along normals (..., nc), tangents (..., nc, 2)."""
        across: Array = np.einsum("...ck,cki->...ci", rubbing, self.tangents)
        return pushing[..., None] * self.normal + across

    def bound(self, f: Array) -> Array:
        """Returns the maximum friction (..., nc) of each contact for supporting forces f (..., n), N or N s."""
        return np.asarray(self._friction * f[..., self.joints :])

    def stored(self, on: Supported) -> Array:
        """Returns the stored energies (..., 2) J, of stops and of contacts."""
        kept = on.pushing.stored(on.pushing.depth)
        return np.stack([kept[..., : self.joints].sum(axis=-1), kept[..., self.joints :].sum(axis=-1)], axis=-1)

    def holding(
        self, on: Supported, q: Array, v: Array, free: Array, braked: Array | None = None
    ) -> tuple[Array, Array, Array]:
        """Returns accelerations (..., nv) with rigid contacts, their forces (..., nr, 3), and the power they dissipate,
        W.

        braked: (nv,) accelerations that brakes enforce, NaN for joints without a brake; None: no brake.
        """
        gap, J = on.held
        x = np.einsum("...cin,...n->...ci", J, v)
        wanted = -self.rigid.bias(q, v) - settling(gap, x, self.rigid.normal, self.time)
        n = 3 * len(self.rigid)
        M = self._robot.mass_matrix(q)
        found = hold(
            M if braked is None else M + heavy(M, braked),
            free,
            J.reshape(*J.shape[:-3], n, self._nv),
            wanted.reshape(*wanted.shape[:-2], n),
        )
        forces = found.forces.reshape(*found.forces.shape[:-1], len(self.rigid), 3)
        return found.a, forces, -np.sum(forces * x, axis=(-2, -1))

    def wrenches(self, forces: Array) -> list[Wrench]:
        """Converts forces (nc, 3) of all contacts to wrenches on links; a sphere's acts where it touches the plane."""
        torques = _times(self._arms, forces)
        return [
            Wrench(each.link, torque, force, each.point)
            for each, torque, force in zip(self._contacts, torques, forces, strict=True)
        ]

    def in_brakes(self, q: Array, v: Array) -> list[Wrench]:
        """Returns the contact forces while brakes hold all joints. Rigid ones have none: the brakes carry the load."""
        soft = self.acting(self.at(q, v), v).contacts
        return self.wrenches(self.in_order(soft, np.zeros((*q.shape[:-1], len(self.rigid), 3))))

    def in_order(self, soft: Array, rigid: Array) -> Array:
        """Returns the forces (..., nc, 3) of all contacts in the caller's order."""
        lead = np.broadcast_shapes(soft.shape[:-2], rigid.shape[:-2])
        found = np.empty((*lead, len(self.order), 3))
        found[..., self.order, :] = np.concatenate(
            [np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (soft, rigid)], axis=-2
        )
        return found


class SupportedDynamics:
    """Forward dynamics with supports, for callers that integrate themselves; errors as `Supports`.

    task: its contacts and limits, and the step.
    """

    def __init__(self, robot: RobotQueries, task: Task) -> None:
        self._robot, self.supports = robot, Supports(robot, task)

    def __call__(self, q: Array, v: Array, tau: Array) -> Array:
        """Returns the accelerations (nv,) under the efforts tau (nv,)."""
        return self.moved(q, v, tau)[0]

    def moved(self, q: Array, v: Array, tau: Array, braked: Array | None = None) -> tuple[Array, Array]:
        """Returns accelerations (nv,) and contact forces (nc, 3) N, world axes, in the order of the task.

        braked: as for `Supports.holding`.
        """
        supports, robot = self.supports, self._robot
        on = supports.at(q, v)
        acting = supports.acting(on, v)
        efforts, rigid = tau + acting.efforts, np.zeros((*q.shape[:-1], 0, 3))
        a = robot.forward_dynamics(q, v, efforts) if braked is None else in_brakes(robot, q, v, efforts, braked)
        if len(supports.rigid):
            a, rigid, _ = supports.holding(on, q, v, a, braked)
        return a, supports.in_order(acting.contacts, rigid)


def in_brakes(robot: RobotQueries, q: Array, v: Array, tau: Array, braked: Array) -> Array:
    """Returns the accelerations (nv,) with those of `braked` (nv,) enforced by brakes; NaN for joints without a
    brake.
    """
    free = np.isnan(braked)
    a = np.where(free, 0.0, braked)
    robot.check_inertia("forward_dynamics", q, free.astype(float))
    left = tau - robot.inverse_dynamics(q, v, a)
    a[free] = np.linalg.solve(robot.mass_matrix(q)[np.ix_(free, free)], left[free])
    return a


def heavy(M: Array, braked: Array) -> Array:
    """Returns the inertia (..., nv, nv) to add to M so that braked joints do not react to loads; NaN for joints without
    a brake.
    """
    of_each = np.where(np.isnan(braked), 0.0, BRAKES * np.diagonal(M, axis1=-2, axis2=-1))
    return np.asarray(of_each[..., None] * np.eye(len(braked)))


def _tangents(normal: Array) -> Array:
    """Returns two unit vectors (2, 3) that are orthogonal to the normal and to each other."""
    first = np.cross(normal, np.eye(3)[int(np.argmin(np.abs(normal)))])
    first /= np.linalg.norm(first)
    return np.stack([first, np.cross(normal, first)])


def _signed(sign: Array, places: Sequence[int], nv: int) -> Array:
    """Returns rows (..., n, nv) that select one entry each, with a sign."""
    rows = np.zeros((len(places), nv))
    rows[np.arange(len(places)), places] = 1.0
    return sign[..., None] * rows


def _nowhere(q: Array, nv: int) -> tuple[Array, Array]:
    return np.zeros((*q.shape[:-1], 0)), np.zeros((*q.shape[:-1], 0, 3, nv))


def _joined(lead: tuple[int, ...], *parts: Array, axis: int = -1) -> Array:
    """Concatenates the parts, broadcast to common leading axes."""
    parts = tuple(x for x in parts if x.shape[axis]) or parts[:1]
    spread = [x if x.shape[:axis] == lead else np.broadcast_to(x, (*lead, *x.shape[axis:])) for x in parts]
    return spread[0] if len(spread) == 1 else np.concatenate(spread, axis=axis)


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
    """Returns accelerations and forces with rigid contacts; arguments and errors are those of
    `RobotQueries.contact_dynamics`.
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
    """Returns (2/T) x + (gap / T^2) n, (..., nc, 3) m/s^2, the deceleration of points off their planes."""
    return (2.0 / time) * x + (gap / time**2)[..., None] * normal


def hold(M: Array, free: Array, J: Array, wanted: Array) -> Held:
    """Returns the accelerations nearest to `free` with J a = wanted, and the forces that cause them; NaN in states
    whose numbers are not finite, as of a motion that diverges.

    M: (..., nv, nv). free: (..., nv) accelerations without these forces. J: (..., m, nv). wanted: (..., m).

    Raises:
        FailedPreconditionError: M is singular; names the first such state of a batch.
    """
    lead = np.broadcast_shapes(M.shape[:-2], free.shape[:-1], J.shape[:-2], wanted.shape[:-1])
    finite = np.ones(lead, dtype=bool)
    for x, core in ((M, 2), (free, 1), (J, 2), (wanted, 1)):
        finite &= np.isfinite(x).all(axis=tuple(range(-core, 0)))
    M, J = (np.where(finite[..., None, None], x, 0.0) for x in (M, J))
    free, wanted = (np.where(finite[..., None], x, 0.0) for x in (free, wanted))
    X = _solved(np.where(finite[..., None, None], M, np.eye(M.shape[-1])), np.swapaxes(J, -1, -2))
    response = J @ X
    finite &= np.isfinite(response).all(axis=(-2, -1))
    missing = wanted - _times(J, free)
    shares, directions = np.linalg.eigh(np.where(finite[..., None, None], response, 0.0))
    kept = shares > _DEPENDENT * shares.max(axis=-1, keepdims=True, initial=0.0)
    along = _times(np.swapaxes(directions, -1, -2), missing)
    forces = _times(directions, np.where(kept, along / np.where(kept, shares, 1.0), 0.0))
    a = free + _times(X, forces)
    violation = np.abs(_times(J, a) - wanted).max(axis=-1, initial=0.0)
    a, forces = (np.where(finite[..., None], x, np.nan) for x in (a, forces))
    return Held(a, forces, *(np.where(finite, x, np.nan) for x in (kept.sum(axis=-1), violation)))


def _solved(M: Array, Jt: Array) -> Array:
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

"""Supports of a simulated robot: joint stops, velocity limits, contacts with planes.

    one-sided   f = (k delta - c x)+    c = min(k d delta, m / 2h)    stops, contacts: x separation velocity
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

_HELD = 1e-12
"""Mobility relative to the largest one, below which closed loops hold a joint or a point: their rounding is 1e-15."""

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

    def stored_energy(self, depth: Array) -> Array:
        """Returns the stored energy (..., n) J."""
        return np.asarray(self.stiffness * np.maximum(depth, 0.0) ** 2 / 2.0)


@dataclass(frozen=True, eq=False)
class SupportState:
    """The supports at one state.

    pushing: stops and velocity limits, then points. tangents: (..., nc, 2, nv) of the points that are not rigid. rigid:
    the rigid points.
    """

    pushing: Pushing
    tangents: Array
    rigid: Placed


class SupportForces(NamedTuple):
    """The forces of the supports. efforts: (..., nv) in total, stops: (..., nv) of stops. contacts: (..., nc, 3) N.
    loss: (..., 2) W, dissipated by stops and contacts.
    """

    efforts: Array
    stops: Array
    contacts: Array
    loss: Array


class Supports:
    """The supports of a simulation.

    Raises:
        NotFoundError: A contact's link does not exist.
        InvalidArgumentError: No joint moves it.
        FailedPreconditionError: The mass matrix is singular.
    """

    def __init__(self, robot: RobotQueries, task: Task) -> None:
        configuration, limits = robot.configuration, robot.limits
        self._robot, self._nv, self._contacts = robot, configuration.nv, task.contacts
        arms = [skew(contact.radius * np.asarray(contact.normal, dtype=np.float64)) for contact in task.contacts]
        self._arms = -np.array(arms).reshape(-1, 3, 3)
        steps = _STEPS_OF_STICK_SLIP if task.integrator == "stick_slip" else _STEPS
        self.time = task.stop_time or steps * task.dt
        self._least_damping_time = task.dt / _FOLLOWS
        check_links(robot, task.contacts)
        soft, rigid = ([c for c in task.contacts if c.rigid is rigidity] for rigidity in (False, True))
        self.order = [task.contacts.index(c) for c in (*soft, *rigid)]
        self.points, self.rigid = Points(robot, soft), Points(robot, rigid)
        self.normal = self.points.normal
        self.tangents = np.array([_tangents(n) for n in self.normal]).reshape(len(soft), 2, 3)
        joint_inertia, point_inertia = self._inertias(task)
        for k, contact in enumerate(soft):
            if not np.isfinite(point_inertia[..., k]).all():
                path = f"contacts[{task.contacts.index(contact)}]"
                text = f"{path}: no joint moves link '{contact.link}'"
                raise InvalidArgumentError(text, path=f"{path}.link")
        slices = zip(configuration.joints, configuration.q_slices, configuration.v_slices, strict=True)
        limited = [
            (in_q.start, in_v.start)
            for joint, in_q, in_v in slices
            if joint.nq == joint.nv == 1 == robot.free[in_v.start]  # locked joints have no supports
            and np.isfinite([limits.lower[in_q], limits.upper[in_q]]).any()
        ]
        limited = limited if task.position_limits else []
        self._in_q, self._in_v = [q for q, _ in limited], [v for _, v in limited]
        self._lower, self._upper = limits.lower[self._in_q], limits.upper[self._in_q]
        self._speed_limited = np.flatnonzero(np.isfinite(limits.speeds)).tolist() if task.velocity_limits else []
        self._speeds = limits.speeds[self._speed_limited]
        slowest = 0.0 if task.integrator == "stick_slip" else self._least_damping_time
        self._brake = joint_inertia[..., self._speed_limited] / max(self.time, slowest)
        self.joints = len(limited) + len(self._speed_limited)
        inertia = np.concatenate([joint_inertia[..., self._in_v], point_inertia], axis=-1)
        self._damping_limit = inertia / self._least_damping_time
        damping = [task.stop_damping if c.damping is None else c.damping for c in soft]
        self._damping = np.array([task.stop_damping] * len(limited) + damping)
        # from step and robot, not from the state, so that a motion in parts equals the whole to the last bit
        stiffness = inertia / self.time**2
        chosen_k = np.array([np.nan] * len(limited) + [np.nan if c.stiffness is None else c.stiffness for c in soft])
        self._stiffness = np.where(np.isnan(chosen_k), stiffness, chosen_k)
        largest = inertia * _STIFFEST.get(task.integrator, np.inf) / task.dt**2
        too_stiff = self._stiffness > largest
        if too_stiff.any():
            k = int(np.argwhere(too_stiff)[0, -1])
            names = [f"the stop of joint '{configuration.velocity_joints[entry]}'" for entry in self._in_v]
            names += [f"contacts[{task.contacts.index(c)}] of link '{c.link}'" for c in soft]
            value, limit = (float(np.max(x[..., k])) for x in (self._stiffness, largest))
            raise FailedPreconditionError(
                f"{names[k]} has a stiffness of {value:.3g}, of which steps of {task.dt:g} s of {task.integrator} are "
                f"unstable: at most {limit:.3g}; use integrator='stick_slip', a longer stop_time, or shorter steps"
            )
        self._friction = np.array([c.friction for c in soft])
        self._width = np.array([PRISMATIC_WIDTH if c.width is None else c.width for c in soft])
        self._widening = self._least_damping_time / point_inertia

    def _inertias(self, task: Task) -> tuple[Array, Array]:
        """Returns m of the joints, (..., nv), and of the points, (..., nc)."""
        q, inverse = self._sampled_mobility(task)
        mobility = np.einsum("k...ii->k...i", inverse).max(axis=0, initial=0.0) if self._nv else np.zeros(0)
        if self._robot.closed_motion is not None:
            # A joint that the loops hold needs no stop: any finite inertia serves.
            mobility = np.where(mobility > _HELD * mobility.max(axis=-1, keepdims=True, initial=0.0), mobility, 1.0)
        joint_inertia = 1.0 / mobility
        if not len(self.points):
            return joint_inertia, np.zeros((*joint_inertia.shape[:-1], 0))
        J = self.points.at(q).J
        response = np.einsum("k...ain,k...nm,k...bjm->k...abij", J, inverse, J)
        if self._robot.closed_motion is not None:
            size = (
                np.sum(J**2, axis=(-2, -1))[..., None, None] * np.abs(inverse).max(axis=(-2, -1))[..., None, None, None]
            )
            response = np.where(np.abs(response) > _HELD * size[..., None], response, 0.0)
        with np.errstate(divide="ignore"):
            return joint_inertia, 1.0 / np.linalg.norm(response, ord=2, axis=(-2, -1)).sum(axis=-1).max(axis=0)

    def _sampled_mobility(self, task: Task) -> tuple[Array, Array]:
        """Returns the neutral and random positions, or random closed ones, and M^-1 there, or the mobility."""
        robot, loops = self._robot, self._robot.closed_motion
        if loops is not None:
            q = loops.samples
            lead = (1,) * (robot.mass_matrix(q[0]).ndim - 2)
            q = q.reshape(len(q), *lead, task.configuration.nq)
            return q, loops.mobility(q)
        samples = [robot.random_configuration(seed=seed) for seed in _SEEDS]
        q = np.stack([task.configuration.neutral, *samples])
        robot.check_inertia("simulate", q)
        q = q.reshape(len(q), *(1,) * (robot.mass_matrix(task.configuration.neutral).ndim - 2), task.configuration.nq)
        try:
            return q, np.asarray(np.linalg.inv(robot.mass_matrix(q)))
        except np.linalg.LinAlgError:
            raise FailedPreconditionError("stops and contacts need inertia: a massless branch moves") from None

    def state(self, q: Array, v: Array) -> SupportState:
        """Returns the supports at a state."""
        limited_q = q[..., self._in_q]
        is_upper = self._upper - limited_q < limited_q - self._lower
        depth = np.where(is_upper, limited_q - self._upper, self._lower - limited_q)
        gap, J = self.points.at(q) if len(self.points) else _nowhere(q, self._nv)
        lead = np.broadcast_shapes(q.shape[:-1], v.shape[:-1], gap.shape[:-1])
        direction = np.sign(v[..., self._speed_limited])
        rows = _concatenate(
            lead,
            _signed(np.where(is_upper, -1.0, 1.0), self._in_v, self._nv),
            _signed(-direction, self._speed_limited, self._nv),
            np.einsum("ci,...cin->...cn", self.normal, J),
            axis=-2,
        )
        depth = _concatenate(lead, depth, -gap)
        damping = np.minimum(self._stiffness * self._damping * np.maximum(depth, 0.0), self._damping_limit)
        stop_count, brake_count = len(self._in_v), len(self._speed_limited)
        zeros = np.zeros(brake_count)

        def with_brakes(x: Array, of_brakes: Array) -> Array:
            return _concatenate(lead, x[..., :stop_count], of_brakes, x[..., stop_count:])

        pushing = Pushing(
            rows,
            with_brakes(self._stiffness * depth, -self._brake * self._speeds),
            with_brakes(self._stiffness, zeros),
            with_brakes(damping, self._brake),
            with_brakes(depth, zeros),
        )
        tangents = np.einsum("cki,...cin->...ckn", self.tangents, J)
        rigid = self.rigid.at(q) if len(self.rigid) else Placed(*_nowhere(q, self._nv))
        return SupportState(pushing, np.broadcast_to(tangents, (*lead, *tangents.shape[-3:])), rigid)

    def evaluate(self, support: SupportState, v: Array) -> SupportForces:
        """Returns the forces of the supports at velocities v."""
        pushing, n = support.pushing, self.joints
        x = _times(pushing.rows, v)
        f = pushing.forces(x)
        X = np.einsum("...ckn,...n->...ck", support.tangents, v)
        friction_limit = self.friction_limit(f)
        width = np.maximum(self._width, friction_limit * self._widening)
        rubbing = -X * (friction_limit / np.sqrt(np.sum(X**2, axis=-1) + width**2))[..., None]
        elastic = pushing.stiffness * np.maximum(pushing.depth, 0.0)
        loss = (elastic - f) * x
        stops = np.einsum("...mn,...m->...n", pushing.rows[..., :n, :], f[..., :n])
        efforts = np.einsum("...mn,...m->...n", pushing.rows, f)
        efforts = efforts + np.einsum("...ckn,...ck->...n", support.tangents, rubbing)
        contact_loss = loss[..., n:].sum(axis=-1) - np.sum(rubbing * X, axis=(-2, -1))
        losses = np.stack([loss[..., :n].sum(axis=-1), contact_loss], axis=-1)
        return SupportForces(efforts, stops, self.forces(f[..., n:], rubbing), losses)

    def forces(self, normal: Array, tangential: Array) -> Array:
        """Returns forces (..., nc, 3), world axes, from components along normals (..., nc), tangents (..., nc, 2)."""
        friction: Array = np.einsum("...ck,cki->...ci", tangential, self.tangents)
        return normal[..., None] * self.normal + friction

    def friction_limit(self, f: Array) -> Array:
        """Returns the maximum friction (..., nc) of each contact for supporting forces f (..., n), N or N s."""
        return np.asarray(self._friction * f[..., self.joints :])

    def stored_energy(self, support: SupportState) -> Array:
        """Returns the stored energies (..., 2) J, of stops and of contacts."""
        energy = support.pushing.stored_energy(support.pushing.depth)
        return np.stack([energy[..., : self.joints].sum(axis=-1), energy[..., self.joints :].sum(axis=-1)], axis=-1)

    def with_rigid(
        self, support: SupportState, q: Array, v: Array, free: Array, brakes: Array | None = None
    ) -> tuple[Array, Array, Array]:
        """Returns accelerations (..., nv) with rigid contacts, their forces (..., nr, 3), and the power they dissipate,
        W.

        brakes: (nv,) accelerations that brakes enforce, NaN for joints without a brake; None: no brake.
        """
        gap, J = support.rigid
        x = np.einsum("...cin,...n->...ci", J, v)
        target = -self.rigid.bias(q, v) - settling(gap, x, self.rigid.normal, self.time)
        n, loops = 3 * len(self.rigid), self._robot.closed_motion
        rows, target = J.reshape(*J.shape[:-3], n, self._nv), target.reshape(*target.shape[:-2], n)
        M = self._robot.mass_matrix(q) if loops is None else loops.tree_inertia(q)
        inertia = M if brakes is None else M + heavy(M, brakes)
        solution = hold(inertia, free, rows, target, None if loops is None else loops.mobility(q, inertia))
        forces = solution.forces.reshape(*solution.forces.shape[:-1], len(self.rigid), 3)
        return solution.a, forces, -np.sum(forces * x, axis=(-2, -1))

    def wrenches(self, forces: Array) -> list[Wrench]:
        """Converts forces (nc, 3) of all contacts to wrenches on links; a sphere's acts where it touches the plane."""
        torques = _times(self._arms, forces)
        loads = zip(self._contacts, torques, forces, strict=True)
        return [Wrench(contact.link, torque, force, contact.point) for contact, torque, force in loads]

    def in_brakes(self, q: Array, v: Array) -> list[Wrench]:
        """Returns the contact forces while brakes hold all joints. Rigid ones have none: the brakes carry the load."""
        soft = self.evaluate(self.state(q, v), v).contacts
        return self.wrenches(self.in_order(soft, np.zeros((*q.shape[:-1], len(self.rigid), 3))))

    def in_order(self, soft: Array, rigid: Array) -> Array:
        """Returns the forces (..., nc, 3) of all contacts in the caller's order."""
        lead = np.broadcast_shapes(soft.shape[:-2], rigid.shape[:-2])
        forces = np.empty((*lead, len(self.order), 3))
        parts = [np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (soft, rigid)]
        forces[..., self.order, :] = np.concatenate(parts, axis=-2)
        return forces


class SupportedDynamics:
    """Forward dynamics with supports, for callers that integrate themselves; errors as `Supports`.

    task: its contacts and limits, and the step.
    """

    def __init__(self, robot: RobotQueries, task: Task) -> None:
        self._robot, self.supports = robot, Supports(robot, task)

    def __call__(self, q: Array, v: Array, tau: Array) -> Array:
        """Returns the accelerations (nv,) under the efforts tau (nv,)."""
        return self.solve(q, v, tau)[0]

    def solve(self, q: Array, v: Array, tau: Array, brakes: Array | None = None) -> tuple[Array, Array]:
        """Returns accelerations (nv,) and contact forces (nc, 3) N, world axes, in the order of the task.

        brakes: as for `Supports.with_rigid`.
        """
        supports, robot = self.supports, self._robot
        if robot.closed_motion is not None:
            q, v = robot.closed_motion.closed_state(q, v)
        support = supports.state(q, v)
        forces = supports.evaluate(support, v)
        efforts, rigid = tau + forces.efforts, np.zeros((*q.shape[:-1], 0, 3))
        if robot.closed_motion is not None:
            a = robot.closed_motion.accelerations(q, v, efforts, brakes=brakes)
        else:
            a = robot.forward_dynamics(q, v, efforts) if brakes is None else in_brakes(robot, q, v, efforts, brakes)
        if len(supports.rigid):
            a, rigid, _ = supports.with_rigid(support, q, v, a, brakes)
        return a, supports.in_order(forces.contacts, rigid)


def in_brakes(robot: RobotQueries, q: Array, v: Array, tau: Array, brakes: Array) -> Array:
    """Returns the accelerations (nv,) with those of `brakes` (nv,) enforced by brakes; NaN: joint without a brake."""
    if robot.closed_motion is not None:
        return robot.closed_motion.accelerations(q, v, tau, brakes=brakes)
    free = np.isnan(brakes)
    a = np.where(free, 0.0, brakes)
    robot.check_inertia("forward_dynamics", q, free.astype(float))
    residual = tau - robot.inverse_dynamics(q, v, a)
    a[free] = np.linalg.solve(robot.mass_matrix(q)[np.ix_(free, free)], residual[free])
    return a


def heavy(M: Array, brakes: Array) -> Array:
    """Returns the inertia (..., nv, nv) to add to M so that braked joints do not react to loads; NaN: no brake."""
    joint_inertia = np.where(np.isnan(brakes), 0.0, BRAKES * np.diagonal(M, axis1=-2, axis2=-1))
    return np.asarray(joint_inertia[..., None] * np.eye(len(brakes)))


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


def _concatenate(lead: tuple[int, ...], *parts: Array, axis: int = -1) -> Array:
    """Concatenates the parts, broadcast to common leading axes."""
    parts = tuple(x for x in parts if x.shape[axis]) or parts[:1]
    arrays = [x if x.shape[:axis] == lead else np.broadcast_to(x, (*lead, *x.shape[axis:])) for x in parts]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=axis)


_DEPENDENT = 1e-10
"""A direction whose part of J M^-1 J^T is below this share of the largest depends on others: rounding is 1e-14."""


class ConstrainedMotion(NamedTuple):
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
    """Returns accelerations and contact forces; arguments and errors as in `RobotQueries.contact_dynamics`."""
    rigid, nv = listed(contacts), robot.nv
    check_links(robot, rigid)
    points = Points(robot, rigid)
    if not (isinstance(settle, int | float) and 0.0 <= settle < np.inf):
        raise InvalidArgumentError(f"settle must be a time in s, at least 0, found {settle!r}", path="settle")
    state = {"q": vectors("q", q, robot.nq), "v": vectors("v", v, nv), "tau": vectors("tau", tau, nv)}
    free = robot.forward_dynamics(*state.values(), gravity=gravity, wrenches=wrenches)
    lead = broadcast({**{name: x.shape[:-1] for name, x in state.items()}, "a": free.shape[:-1]})
    q, v = state["q"], state["v"]
    gap, J = points.at(q)
    target = -points.bias(q, v)
    if settle:
        target = target - settling(gap, np.einsum("...cin,...n->...ci", J, v), points.normal, settle)
    n = 3 * len(points)
    rows, target = J.reshape(*J.shape[:-3], n, nv), target.reshape(*target.shape[:-2], n)
    solution = hold(robot.mass_matrix(q), free, rows, target)
    a = np.broadcast_to(solution.a, (*lead, nv))
    forces = np.broadcast_to(solution.forces, (*lead, n)).reshape(*lead, len(points), 3)
    return ContactDynamics(a, forces, np.broadcast_to(solution.rank, lead), np.broadcast_to(solution.violation, lead))


def settling(gap: Array, x: Array, normal: Array, time: float) -> Array:
    """Returns (2/T) x + (gap / T^2) n, (..., nc, 3) m/s^2, the deceleration of points off their planes."""
    return (2.0 / time) * x + (gap / time**2)[..., None] * normal


def hold(M: Array, free: Array, J: Array, target: Array, mobility: Array | None = None) -> ConstrainedMotion:
    """Returns the accelerations nearest to `free` with J a = wanted, and the forces that cause them; NaN in states
    whose numbers are not finite, as of a motion that diverges.

    M: (..., nv, nv). free: (..., nv) accelerations without these forces. J: (..., m, nv). target: (..., m). mobility:
    (..., nv, nv) instead of M^-1, with closed loops.

    Raises:
        FailedPreconditionError: M is singular; names the first such state of a batch.
    """
    lead = np.broadcast_shapes(M.shape[:-2], free.shape[:-1], J.shape[:-2], target.shape[:-1])
    finite = np.ones(lead, dtype=bool)
    for x, core in ((M, 2), (free, 1), (J, 2), (target, 1)):
        finite &= np.isfinite(x).all(axis=tuple(range(-core, 0)))
    M, J = (np.where(finite[..., None, None], x, 0.0) for x in (M, J))
    free, target = (np.where(finite[..., None], x, 0.0) for x in (free, target))
    J_T = np.swapaxes(J, -1, -2)
    if mobility is None:
        X = _solve(np.where(finite[..., None, None], M, np.eye(M.shape[-1])), J_T)
    else:
        X = np.where(finite[..., None, None], mobility, 0.0) @ J_T
    response = J @ X
    finite &= np.isfinite(response).all(axis=(-2, -1))
    missing = target - _times(J, free)
    eigenvalues, directions = np.linalg.eigh(np.where(finite[..., None, None], response, 0.0))
    independent = eigenvalues > _DEPENDENT * eigenvalues.max(axis=-1, keepdims=True, initial=0.0)
    components = _times(np.swapaxes(directions, -1, -2), missing)
    forces = _times(directions, np.where(independent, components / np.where(independent, eigenvalues, 1.0), 0.0))
    a = free + _times(X, forces)
    violation = np.abs(_times(J, a) - target).max(axis=-1, initial=0.0)
    a, forces = (np.where(finite[..., None], x, np.nan) for x in (a, forces))
    return ConstrainedMotion(a, forces, *(np.where(finite, x, np.nan) for x in (independent.sum(axis=-1), violation)))


def _solve(M: Array, Jt: Array) -> Array:
    try:
        return np.asarray(np.linalg.solve(M, Jt))
    except np.linalg.LinAlgError:
        place = ""
        for index in np.ndindex(M.shape[:-2]):
            try:
                np.linalg.inv(M[index])
            except np.linalg.LinAlgError:
                place = f" at state {list(index)} of the batch" if index else ""
                break
        raise FailedPreconditionError(f"the mass matrix is singular{place}: a massless branch moves") from None


def _times(A: Any, x: Any) -> Any:
    return (A @ x[..., None])[..., 0]

"""Steps of a motion with limits and contacts, and their account of forces and energy.

    E' - E + stored' - stored = work - dissipated        of each step, to the order of the step

E is the robot's energy, springs of its joints among it. Explicit steps take the forces of `supports.py` at each of
their stages, and the powers by the same weights, so that the account is as good as the motion: RK4's closes to the
fourth order where no contact begins or ends. A step of `stick_slip` finds velocities and forces together (`cones.py`),
and its own loss, (v' - v)^T M (v' - v) / 2, is an entry of the account. What no step accounts for is how M and the
gaps turn within it: it goes to zero with the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from dyn_service.api.queries import Array, RobotQueries, Wrench
from dyn_service.simulation.contact import cones
from dyn_service.simulation.contact.supports import Pushing, Supported, Supports, heavy
from dyn_service.simulation.divergence import diverged
from dyn_service.simulation.integrators.explicit import INTEGRATORS
from dyn_service.simulation.integrators.stick_slip import Equation, Sticking, moved
from dyn_service.simulation.task import Task

_WEIGHTS: Mapping[str, tuple[float, ...]] = {
    "rk4": (1 / 6, 1 / 3, 1 / 3, 1 / 6),
    "semi_implicit_euler": (1.0,),
    "explicit_euler": (1.0,),
}
"""Of each stage in its step."""

_MOST_PASSES, _SAME_PUSH = 10, 1e-3
"""How often a step of `stick_slip` is solved at most, for friction to be bounded by what the planes push with in it;
and the share of a push within which it is the same as before.
"""


class Share(NamedTuple):
    """What acts in a stage or a step. contacts: (..., nc, 3) N. stops: (..., nv). work: (..., 2), dissipated: (..., 4)
    W in a stage, J in a step; as in `Trajectory`.
    """

    contacts: Array
    stops: Array
    work: Array
    dissipated: Array


class Solved(NamedTuple):
    """A step of `stick_slip`. v: (..., nv) at its end. Impulses: pushed (..., n), rubbed (..., nc, 2), held
    (..., nr, 3).
    """

    equation: Equation
    on: Supported
    v: Array
    pushed: Array
    rubbed: Array
    held: Array


class StickSlipSteps:
    """Steps of `stick_slip` with supports. sticking: what they solve without.

    Raises:
        FailedPreconditionError: The mass matrix is singular.
    """

    def __init__(self, robot: RobotQueries, task: Task, supports: Supports) -> None:
        self._task, self._supports = task, supports
        self.sticking = Sticking(robot, task)

    def solved(
        self,
        k: int,
        q: Array,
        v: Array,
        tau: Array,
        acting: list[Wrench] | None,
        on: Supported | None = None,
        braked: Array | None = None,
    ) -> Solved:
        """Step k of this part. on: the supports there, where they are known. braked: (nv,) velocities that brakes bring
        joints to, NaN where there is no brake; None is none at all.

        Raises:
            FailedPreconditionError: M is singular, or no velocities fit.
        """
        supports, sticking = self._supports, self.sticking
        equation, on = sticking.equation(q, v, tau, acting), supports.at(q, v) if on is None else on
        if braked is not None:
            equation = _braked(equation, braked)
        pushed = np.zeros(on.pushing.load.shape)
        rubbed = np.zeros((*v.shape[:-1], len(supports.points), 2))
        held = np.zeros((*v.shape[:-1], len(supports.rigid), 3))
        if on.pushing.load.shape[-1] + len(supports.rigid) == 0:
            reached = sticking.solved(k, equation)
        else:
            reached = np.empty(v.shape)
            for index in np.ndindex(v.shape[:-1]):
                try:
                    one = self._least(index, equation, v, on)
                except np.linalg.LinAlgError:
                    raise sticking.singular(k) from None
                if one is None:
                    raise sticking.lost(k)
                reached[index], pushed[index], rubbed[index] = one.v, one.pushing, one.rubbing
                held[index] = one.held.reshape(-1, 3)
        if braked is not None:
            reached = np.where(np.isnan(braked), reached, braked)
        return Solved(equation, on, reached, pushed, rubbed, held)

    def forces(self, found: Solved) -> Array:
        """(..., nc, 3) N of the contacts, mean over the step."""
        supports, dt = self._supports, self._task.dt
        soft = supports.forces(found.pushed[..., supports.joints :], found.rubbed)
        return supports.in_order(soft / dt, found.held / dt)

    def _least(self, index: tuple[int, ...], equation: Equation, v: Array, on: Supported) -> cones.Found | None:
        """The velocities of one state, with those of sticking joints exactly zero; None where they are not found.

        What each contact rubs with at most is what it pushes with, and that is found with the velocities: so they are
        found again, each time with the pushes of the time before, until these stay.
        """
        dt, nv, sticking, supports = self._task.dt, self._task.at.nv, self.sticking, self._supports
        friction = np.broadcast_to(sticking.friction, v.shape)[index]
        rubbing = np.flatnonzero(friction)
        pairs = np.zeros((len(rubbing), 2, nv))
        pairs[np.arange(len(rubbing)), 0, rubbing] = 1.0
        rows = np.concatenate([pairs, on.tangents[index]])
        pushing = Pushing(*(x[index] for x in on.pushing))
        pushers = cones.Pushers(pushing.rows, dt * pushing.load, dt * (pushing.damping + dt * pushing.stiffness))
        held = cones.HeldRows(
            on.held.J[index].reshape(3 * len(supports.rigid), nv),
            np.ravel(-on.held.gap[index][:, None] / supports.time * supports.rigid.normal),
        )
        joints, start = len(rubbing), v[index]
        bound = supports.bound(dt * pushing.forces(pushing.rows @ start))
        for _ in range(_MOST_PASSES):
            limits = np.concatenate([dt * friction[rubbing], bound])
            found = cones.velocities(
                equation.A[index], equation.r[index], start, pushers, cones.Rubbing(rows, limits), held
            )
            if found is None:
                return None
            before, bound, start = bound, supports.bound(found.pushing), found.v
            holds = found.sticks[joints:] & (np.sum(found.rubbing[joints:] ** 2, axis=-1) <= bound**2)
            if np.all(holds | (np.abs(bound - before) <= _SAME_PUSH * bound)):
                break
        assert found is not None
        found.v[rubbing[found.sticks[:joints]]] = 0.0
        return found._replace(rubbing=found.rubbing[joints:])


class SupportedSteps:
    """The steps of one motion, from its first state on.

    Raises:
        NotFoundError: A contact's link does not exist.
        InvalidArgumentError: No joint moves it.
        FailedPreconditionError: The mass matrix is singular.
    """

    def __init__(self, robot: RobotQueries, task: Task) -> None:
        self._robot, self._task = robot, task
        self._supports = Supports(robot, task)
        self._formula = INTEGRATORS.get(task.integrator)
        self._held_by = StickSlipSteps(robot, task, self._supports) if self._formula is None else None
        self._most = robot.limits.efforts if task.effort_limits else np.full(task.at.nv, np.inf)
        self._records: list[dict[str, Array]] = []
        self._share: Share | None = None
        self._seen: tuple[Array, Array, Supported] | None = None
        self._begin(task.v)

    def begin(self, q: Array, v: Array, tau: Array, acting: list[Wrench] | None) -> None:
        """Takes down the first record, under what acts in the first step."""
        _, self._share = self._evaluated(q, v, np.clip(tau, -self._most, self._most), acting)
        self.record(-1, q, v)

    def step(self, k: int, q: Array, v: Array, tau: Array, acting: list[Wrench] | None) -> tuple[Array, Array]:
        """The state after step k of this part, under those efforts, cut, and wrenches."""
        cut = np.clip(tau, -self._most, self._most)
        self._clamped += cut != tau
        if self._held_by is None:
            q, v, share = self._explicit(q, v, cut, acting)
        else:
            q, v, share = self._implicit(k, q, v, cut, acting, self._held_by)
        self._work += share.work
        self._dissipated += share.dissipated
        self._share = share
        return q, v

    def record(self, k: int, q: Array, v: Array) -> None:
        """Takes down what acted up to the end of step k, at that state.

        Raises:
            FailedPreconditionError: A force or an energy is no longer finite.
        """
        assert self._share is not None
        stored = self._supports.stored(self._at(q, v))
        found: dict[str, Array] = {
            "contact_forces": self._share.contacts,
            "stop_efforts": np.broadcast_to(self._share.stops, v.shape),
            "clamped": self._clamped,
            "work": self._work,
            "stored": np.broadcast_to(stored, (*v.shape[:-1], 2)),
            "dissipated": self._dissipated,
        }
        for name, array in found.items():
            if not np.isfinite(array).all() and np.isfinite(q).all() and np.isfinite(v).all():
                task = self._task
                end = (task.first_step + k + 1) * task.dt
                raise diverged(task.first_step + k + 1, end, f"{name.replace('_', ' ')} are no longer finite")
        self._records.append(found)
        self._begin(v)

    def account(self) -> dict[str, Array]:
        """The records, as fields of a `Trajectory`."""
        task = self._task
        wanted = {
            "contact_forces": bool(task.contacts),
            "stop_efforts": task.position_limits or task.velocity_limits,
            "clamped": task.effort_limits,
        }
        axes = {"contact_forces": -3}
        return {
            name: np.stack([record[name] for record in self._records], axis=axes.get(name, -2))
            for name in ("contact_forces", "stop_efforts", "clamped", "work", "stored", "dissipated")
            if wanted.get(name, True)
        }

    def _at(self, q: Array, v: Array) -> Supported:
        """Where the supports are; a step begins where a record was."""
        if self._seen is None or self._seen[0] is not q or self._seen[1] is not v:
            self._seen = q, v, self._supports.at(q, v)
        return self._seen[2]

    def _begin(self, v: Array) -> None:
        """A new record."""
        lead = v.shape[:-1]
        self._clamped, self._work, self._dissipated = np.zeros(v.shape), np.zeros((*lead, 2)), np.zeros((*lead, 4))

    def _evaluated(self, q: Array, v: Array, tau: Array, acting: list[Wrench] | None) -> tuple[Array, Share]:
        """Accelerations at a state, and what acts."""
        robot, task, supports = self._robot, self._task, self._supports
        on = self._at(q, v)
        doing = supports.acting(on, v)
        efforts = tau + doing.efforts
        a = robot.forward_dynamics(q, v, efforts, gravity=task.gravity, wrenches=acting, method=task.method)
        taken, rigid = np.zeros(v.shape[:-1]), np.zeros((0, 3))
        if len(supports.rigid):
            a, rigid, taken = supports.holding(on, q, v, a)
        lost = [robot.passive_forces(q, v).dissipated, doing.lost[..., 0], doing.lost[..., 1] + taken, 0.0 * taken]
        share = Share(
            supports.in_order(doing.contacts, rigid),
            doing.stops,
            self._power(q, v, tau, acting),
            np.stack(np.broadcast_arrays(*lost), axis=-1),
        )
        return a, share

    def _power(self, q: Array, v: Array, tau: Array, acting: list[Wrench] | None, at: Array | None = None) -> Array:
        """(..., 2) W of efforts and of external wrenches, at velocities `at`, or v."""
        moved = v if at is None else at
        of_efforts = np.sum(tau * moved, axis=-1)
        if not acting:
            return np.stack([of_efforts, np.zeros_like(of_efforts)], axis=-1)
        gravity, still = self._task.gravity, np.zeros(self._task.at.nv)
        alone = self._robot.inverse_dynamics(q, v, still, gravity=gravity)
        pushed = self._robot.inverse_dynamics(q, v, still, gravity=gravity, wrenches=acting)
        return np.stack(np.broadcast_arrays(of_efforts, np.sum((alone - pushed) * moved, axis=-1)), axis=-1)

    def _explicit(self, q: Array, v: Array, tau: Array, acting: list[Wrench] | None) -> tuple[Array, Array, Share]:
        """A step whose forces are those of its stages."""
        task = self._task
        stages: list[Share] = []

        def acceleration(q: Array, v: Array) -> Array:
            a, share = self._evaluated(q, v, tau, acting)
            stages.append(share)
            return a

        assert self._formula is not None
        q, v = self._formula(acceleration, q, v, task.dt, on=task.at)
        parts = zip(*stages, strict=True)
        weights = _WEIGHTS[task.integrator]
        mean = [sum(w * x for w, x in zip(weights, part, strict=True)) for part in parts]
        contacts, stops, work, dissipated = (np.asarray(x) for x in mean)
        return q, v, Share(contacts, stops, task.dt * work, task.dt * dissipated)

    def _implicit(
        self, k: int, q: Array, v: Array, tau: Array, acting: list[Wrench] | None, steps: StickSlipSteps
    ) -> tuple[Array, Array, Share]:
        """A step whose forces are those of its end."""
        task, dt, sticking, n = self._task, self._task.dt, steps.sticking, self._supports.joints
        found = steps.solved(k, q, v, tau, acting, self._at(q, v))
        equation, on, reached, pushed, rubbed, held = found
        pushing = on.pushing
        x = np.einsum("...mn,...n->...m", pushing.rows, reached)
        gained = pushing.stored(pushing.depth - dt * x) - pushing.stored(pushing.depth)
        lost = -pushed * x - gained
        across = np.einsum("...ckn,...n->...ck", on.tangents, reached)
        drifting = np.einsum("...cin,...n->...ci", on.held.J, reached)
        of_contacts = lost[..., n:].sum(axis=-1) - np.sum(rubbed * across, axis=(-2, -1))
        of_contacts = of_contacts - np.sum(held * drifting, axis=(-2, -1))
        change = reached - v
        dissipated = [
            dt * np.sum(sticking.damping * reached**2 + sticking.friction * np.abs(reached), axis=-1),
            lost[..., :n].sum(axis=-1),
            of_contacts,
            np.sum(change * np.einsum("...ij,...j->...i", equation.M, change), axis=-1) / 2.0,
        ]
        share = Share(
            steps.forces(found),
            np.einsum("...mn,...m->...n", pushing.rows[..., :n, :], pushed[..., :n]) / dt,
            dt * self._power(q, v, tau, acting, at=reached),
            np.stack(dissipated, axis=-1),
        )
        return *moved(task.at, q, reached, dt), share


def _braked(equation: Equation, braked: Array) -> Equation:
    """With brakes as inertia beside which nothing else counts, and which comes to these velocities."""
    more = heavy(equation.M, braked)
    return equation._replace(A=equation.A + more, r=equation.r + more @ np.nan_to_num(braked))

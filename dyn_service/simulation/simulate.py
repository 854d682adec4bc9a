"""The loop of `simulate`: integrates the equations of motion over a grid of times, for a batch at once.

    q-dot = v,      v-dot = a(q, v, tau)         rk4, semi_implicit_euler, explicit_euler, adaptive
    M v' = M v + h (tau - ..) - h p              stick_slip: Coulomb friction, see `stick_slip.py`
    q-dot = dH/dp,  p-dot = -dH/dq + tau         implicit_midpoint: symplectic, so energy errors stay bounded

Fixed steps of the articulated solution run as one kernel per step. With `method="mass_matrix"`, (19a), and for RK4 with
external wrenches, which act on rotated links at later stages, the step's formula calls a kernel for accelerations.
`adaptive` is an extrapolation method of variable order, in place of the documents' ode45. `auto` is rk4, if necessary
in several parts of a step, or stick_slip; explicit steps that are too long for the robot are refused, `stability.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.arrays import all_finite
from dyn_service.api.laws import SimulationLaw
from dyn_service.api.queries import Array, EffortFunction, RobotQueries, Wrench
from dyn_service.api.results import Trajectory
from dyn_service.model.steps import STEPS
from dyn_service.simulation.contact.steps import SupportedSteps
from dyn_service.simulation.divergence import DivergedError, FiniteCheck
from dyn_service.simulation.integrators.adaptive import between
from dyn_service.simulation.integrators.implicit_midpoint import midpoint_step
from dyn_service.simulation.integrators.stick_slip import ExtrapolatedSticking, Sticking
from dyn_service.simulation.laws import LawEfforts, Term
from dyn_service.simulation.stability import MOST_SUBSTEPS, ResolutionCheck, StabilityCheck, chosen
from dyn_service.simulation.task import Acting, Task, checked
from dyn_service.support import buffers


def simulate(
    robot: RobotQueries,
    q0: ArrayLike,
    v0: ArrayLike,
    tau: ArrayLike | EffortFunction | SimulationLaw | None = None,
    *,
    progress: Callable[[float], None] | None = None,
    **arguments: Any,
) -> Trajectory:
    """Simulates a robot, local or remote; arguments and errors are those of `RobotQueries.simulate`, without those that
    change the robot.
    """
    task = checked(robot.configuration, q0, v0, tau, **arguments)
    task.q = task.at.unit(task.q, "q0")
    if isinstance(task.efforts, LawEfforts):
        task.efforts.bind(robot, task.gravity)
    is_default = task.integrator == "auto"
    if is_default:
        task.integrator, task.substeps = chosen(robot, task.dt, 1 if task.supported else MOST_SUBSTEPS)
        task.substeps = 2 if task.integrator == "stick_slip" and not task.supported else task.substeps
    run = _Run(robot, task, progress, compares=is_default and task.integrator == "rk4" and not task.supported)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # divergence raises an error instead
        others = {"adaptive": run.adaptive, "implicit_midpoint": run.implicit_midpoint}
        motion = others.get(task.integrator, run.explicit)()
    return replace(motion, integrator=task.integrator, substeps=task.substeps)


_TELL_EVERY = 64
"""Evaluations of adaptive steps between calls of `progress`: there may be thousands between two times of the grid."""

_MIN_STEPS = 256
"""At least so many steps are computed at a time. Ctrl-C waits for the steps of a few members: tens of milliseconds,
with a large robot tenths of a second.
"""

_TELL_STEPS = 1024
"""At most so many if progress is reported, which waits for them: some 0.1 s, longer for many thousands of members."""

_MAX_STEPS = 8192
"""At most so many if progress is not reported."""

_SEEN = 32
"""Most steps between two states of which a check decides whether their configuration is checked."""

_MAX_NUMBERS = 1 << 18
"""Most numbers in the positions, or in the velocities, of these steps, unless `_MIN_STEPS` have more."""


_MAX_SPREAD = 1 << 26
"""Largest number of bytes of records that one assignment spans. The first assignment to a page maps it, which takes
seconds for several GB, and Ctrl-C waits until the assignment ends.
"""


class _Records:
    """Recorded states, beginning with the first one."""

    def __init__(self, task: Task, *state: Array) -> None:
        self._every = task.every
        count = task.steps // task.every + 1
        self.arrays = [buffers.empty((*x.shape[:-1], count, x.shape[-1])) for x in state]
        self._by_member = [x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:]) for x in self.arrays]
        self._members = max(_MAX_SPREAD // (8 * count * max(1, *(x.shape[-1] for x in state))), 1)
        self.add(0, *state)

    def add(self, k: int, *state: Array) -> bool:
        """Records the state after k steps if it is to be recorded; returns whether it is."""
        due = not k % self._every
        if due:
            for record, x in zip(self._by_member, state, strict=True):
                x = x.reshape(len(record), x.shape[-1])
                for first in range(0, len(record), self._members):
                    some = slice(first, first + self._members)
                    record[some, k // self._every] = x[some]
        return due

    def following(self, k: int, count: int) -> list[Array]:
        """Returns where the `count` records after step k stand, (count, ..., n) each."""
        first = k // self._every + 1
        return [np.moveaxis(record, -2, 0)[first : first + count] for record in self.arrays]


@dataclass(eq=False)
class _Run:
    robot: RobotQueries
    task: Task
    progress: Callable[[float], None] | None
    compares: bool
    """Whether steps are compared with two of half their length."""
    _acted: Acting = field(init=False)
    _stable: StabilityCheck = field(init=False)
    _resolved: ResolutionCheck | None = field(init=False, default=None)

    def _acceleration(self, q: Array, v: Array, tau: Array, acting: list[Wrench] | None) -> Array:
        task = self.task
        return self.robot.forward_dynamics(q, v, tau, gravity=task.gravity, wrenches=acting, method=task.method)

    def _check(self, q: Array, x: Array, velocity: Callable[[Array, Array], Array]) -> FiniteCheck:
        """Returns the check of states that begin at (q, x). velocity: of a state (q, x)."""
        task = self.task

        def motion(k: int, q: Array, x: Array) -> tuple[Array, Array]:
            v = velocity(q, x)
            # With functions each step is checked, so the loads are those of the last step.
            return v, self._acceleration(q, v, *(self._acted if task.by_function else task.acting(k, q, v)))

        return FiniteCheck(task, q, x, motion, self.progress)

    def explicit(self) -> Trajectory:
        """Integrates (q, v) with fixed steps."""
        task = self.task
        q, v = task.q, task.v
        records = _Records(task, q, v)
        check = self._check(q, v, lambda q, v: v)
        self._stable = StabilityCheck(self.robot, task, task.integrator, task.substeps)
        if self.compares:
            self._resolved = self._comparison(task.dt / task.substeps)
        self._check_steps(-1, 1, q[None], v[None])
        supported = SupportedSteps(self.robot, task) if task.supported else None
        step = self._step(task.dt, task.substeps) if supported is None else supported.step
        acted = self._acted = task.acting(0, q, v)
        if supported is not None:
            supported.begin(q, v, *acted)
        several = self._several(records) if supported is None else None
        k = 0
        while k < task.last:
            if k and several is not None:
                reached = several(k, q, v)
                if reached is not None:
                    k, q, v = reached
                    check.reached(k, q, v)
                    continue
                several = None
            if k and not task.steady:
                acted = self._acted = task.acting(k, q, v)
            q, v = step(k, q, v, *acted)
            k += 1
            check.step(k, q, v)
            self._check_steps(k - 1, 1, q[None], v[None])
            if records.add(k, q, v) and supported is not None:
                supported.record(k - 1, q, v)
        q, v = records.arrays
        account: dict[str, Any] = {} if supported is None else supported.account()
        return Trajectory(task.times(), q, v, **account)

    def _check_steps(self, k: int, every: int, q: Array, v: Array) -> None:
        """Checks the length of steps at states (rows, ..., n) after steps k + every, k + 2 every, .. of this part."""
        self._stable.states(k, every, q)
        if self._resolved is not None:
            self._resolved.states(k, every, q, v)

    def _comparison(self, length: float) -> ResolutionCheck:
        whole, halves, still = self._step(length, 1), self._step(length, 2), np.zeros(self.task.at.nv)
        return ResolutionCheck(
            self.task, length, lambda q, v: whole(0, q, v, still, None), lambda q, v: halves(0, q, v, still, None)
        )

    def _step(self, length: float, parts: int) -> Callable[..., tuple[Array, Array]]:
        """Returns a function (k, q, v, tau, wrenches) -> q and v after step k of this part.

        length: of the step, s. parts: in how many it is made.
        """
        robot, task = self.robot, self.task
        integrator, length = task.integrator, length / parts
        formula, duration = STEPS.get(integrator), np.array([length])
        if formula is None:
            return (Sticking if task.substeps == 1 else ExtrapolatedSticking)(robot, task).step
        options: dict[str, Any] = {"gravity": task.gravity, "integrator": integrator}
        has_kernel = task.method == "articulated" and (task.wrenches.none or integrator != "rk4")

        def step(k: int, q: Array, v: Array, tau: Array, acting: list[Wrench] | None) -> tuple[Array, Array]:
            for _ in range(parts):
                if has_kernel:
                    state = robot.step(q, v, tau, duration, wrenches=acting, **options)
                    q, v = state.q, state.v
                else:
                    q, v = formula(lambda q, v: self._acceleration(q, v, tau, acting), q, v, length, on=task.at)
            return q, v

        return step

    def _several(self, records: _Records) -> Callable[[int, Array, Array], tuple[int, Array, Array] | None] | None:
        """Returns a function from a step and the state before it to a later step and the state before that one.

        The function sets the records on the way. It returns None if it could not compute the steps, or if the motion
        diverges in one of them, which is then found one by one. None instead of a function: each step is computed
        alone, because its loads depend on the state other than by a law, or because it takes long anyway.
        """
        robot, task, checked = self.robot, self.task, self._stable.active or self._resolved is not None
        most = min(
            _MAX_STEPS if self.progress is None else _TELL_STEPS,
            max(_MIN_STEPS, _MAX_NUMBERS // max(task.q.size, task.v.size, 1)),
        )
        repeat = getattr(robot, "repeat_steps", None)
        by_kernel = task.method == "articulated" and task.integrator in STEPS and task.wrenches.none
        law = task.efforts if isinstance(task.efforts, LawEfforts) else None
        # A law would be evaluated at each substep, and its efforts are held through the step.
        if repeat is None or not by_kernel or (task.by_function and (law is None or task.substeps > 1)):
            return None

        def several(k: int, q: Array, v: Array) -> tuple[int, Array, Array] | None:
            every, left = task.every, -k % task.every or task.every
            count = 1
            if left == every <= most:
                count, steps = min(most, task.last - k) // every, every
                to = records.following(k, count)
            else:
                steps = min(most, left)
                to = [np.empty((1, *x.shape)) for x in (q, v)]
            # Checks see states at least every `_SEEN` steps, also between records.
            parts = next(n for n in range(1, steps + 1) if steps % n == 0 and (steps <= n * _SEEN or not checked))
            seen = to if parts == 1 else [np.empty((count * parts, *x.shape)) for x in (q, v)]
            terms: list[Term] = []
            tau: Array | str
            if isinstance(task.efforts, LawEfforts):
                terms = task.efforts.terms_from(k, count * steps)
                tau = terms[-1].output
            else:
                tau = task.efforts.samples(k, 1 if task.steady else count * steps)
                tau = tau if task.steady else np.repeat(tau, task.substeps, axis=0)
            state, rows = {"q": q, "v": v}, dict(zip("qv", seen, strict=True))
            inner, length = steps // parts * task.substeps, task.dt / task.substeps
            if not repeat(task.integrator, state, rows, inner, length, task.gravity, tau, terms):
                return None
            self._check_steps(k, steps // parts, *seen)
            for record, x in zip(to, seen, strict=True):
                if record is not x:
                    record[...] = x[parts - 1 :: parts]
            q, v = (x[-1] for x in to)
            if not (all_finite(q) and all_finite(v)):
                return None
            if steps < every:
                records.add(k + steps, q, v)
            return k + count * steps, q, v

        return several

    def implicit_midpoint(self) -> Trajectory:
        """Integrates (q, p) with fixed steps x' = x + dt f((x + x') / 2), solved by iteration to rounding."""
        robot, task = self.robot, self.task

        def velocity(q: Array, p: Array) -> Array:
            return robot.velocity_from_momentum(q, p, method=task.method)

        # The scale of momenta: those of 1 rad/s or 1 m/s in all joints.
        unit = float(np.abs(robot.momentum(task.at.neutral, robot.free)).max(initial=0.0))
        q, v = task.q, task.v
        p = robot.momentum(q, v) if task.p is None else task.p
        records = _Records(task, q, p)
        check = self._check(q, p, velocity)
        for k in range(task.last):
            if k and task.by_function:
                v = velocity(q, p)
            tau, acting = self._acted = task.acting(k, q, v)

            def flow(q: Array, p: Array, tau: Array = tau, acting: list[Wrench] | None = acting) -> tuple[Array, Array]:
                loads: dict[str, Any] = {"gravity": task.gravity, "wrenches": acting}
                found = robot.hamiltonian_flow(q, p, tau, **loads, method=task.method)
                return found.v, found.p_dot

            found = midpoint_step(flow, task.at, q, p, task.dt, unit)
            if found is None:
                raise DivergedError(
                    f"the iteration for the midpoint of step {task.first_step + k + 1} (t = {task.time(k):g} s) "
                    f"does not converge; try a step shorter than dt = {task.dt:g} s"
                )
            q, p = found
            check.step(k + 1, q, p)
            records.add(k + 1, q, p)
        q_all, p_all = records.arrays
        # The axis of records goes before the leading axes of the robot's numbers.
        v_all = np.moveaxis(velocity(np.moveaxis(q_all, -2, 0), np.moveaxis(p_all, -2, 0)), 0, -2)
        v_all[..., 0, :] = task.v if task.p is None else v_all[..., 0, :]
        return Trajectory(task.times(), q_all, v_all, p_all)

    def adaptive(self) -> Trajectory:
        """Integrates with adaptive steps between the times of the grid, at which sampled efforts may jump.

        A batch is one system: all members share the steps that the fastest of them needs.
        """
        task = self.task
        q, v = task.q, task.v
        records = _Records(task, q, v)
        evaluations = 0
        for k in range(task.last):
            stages = between(task, k, q, v)
            try:
                stage = next(stages)
                while True:
                    stage = stages.send(self._acceleration(*stage))
                    evaluations += 1
                    if self.progress is not None and not evaluations % _TELL_EVERY:
                        self.progress(k / task.last)
            except StopIteration as done:
                q, v = done.value
            records.add(k + 1, q, v)
            if self.progress is not None:
                self.progress((k + 1) / task.last)
        q, v = records.arrays
        return Trajectory(task.times(), q, v)

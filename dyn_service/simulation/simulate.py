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
from dyn_service.api.closed_motion import ClosedMotion, LoopsLostError
from dyn_service.api.laws import SimulationLaw
from dyn_service.api.queries import Array, EffortFunction, RobotQueries, Wrench
from dyn_service.api.results import Trajectory
from dyn_service.errors import FailedPreconditionError
from dyn_service.model.steps import STEPS
from dyn_service.simulation.contact.steps import SupportedSteps, closed_sticking
from dyn_service.simulation.divergence import DivergedError, diverged
from dyn_service.simulation.finite_check import FiniteCheck
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
    """Simulates a local or remote robot; arguments and errors of `RobotQueries.simulate`, less changes of the robot."""
    task = checked(robot.configuration, q0, v0, tau, **arguments)
    task.q = task.configuration.unit(task.q, "q0")
    if robot.closed_motion is not None:
        _check_loops(robot, robot.closed_motion, task)
    if isinstance(task.efforts, LawEfforts):
        task.efforts.bind(robot, task.gravity)
    is_default = task.integrator == "auto"
    if is_default:
        # by robot and step alone, so that a motion in parts, or over the wire, has the bits of a whole one
        task.integrator, task.substeps = chosen(robot, task.dt, 1 if task.supported else MOST_SUBSTEPS)
        task.substeps = 2 if task.integrator == "stick_slip" and not task.supported else task.substeps
    run = _Run(robot, task, progress, compares=is_default and task.integrator == "rk4" and not task.supported)
    # Divergence raises an error that names step and joint, instead of warnings.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        solvers = {"adaptive": run.adaptive, "implicit_midpoint": run.implicit_midpoint}
        motion = solvers.get(task.integrator, run.explicit)()
    return replace(motion, integrator=task.integrator, substeps=task.substeps)


def _check_loops(robot: RobotQueries, closed_motion: ClosedMotion, task: Task) -> None:
    """Refuses what has no answer for closed loops."""
    if not robot.free.all():
        raise FailedPreconditionError(
            f"simulate has no answer for robot '{robot.name}': an overlay locks joints of closed loops"
        )
    closed_motion.check_start(task.q, task.v)
    task.closed_state = closed_motion.closed_state


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

_MAX_UNCHECKED = 32
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
        self._stride = task.every
        count = task.steps // task.every + 1
        self.arrays = [buffers.empty((*x.shape[:-1], count, x.shape[-1])) for x in state]
        self._by_member = [x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:]) for x in self.arrays]
        self._members = max(_MAX_SPREAD // (8 * count * max(1, *(x.shape[-1] for x in state))), 1)
        self.add(0, *state)

    def add(self, k: int, *state: Array) -> bool:
        """Records the state after k steps if it is to be recorded; returns whether it is."""
        is_recorded = not k % self._stride
        if is_recorded:
            for record, x in zip(self._by_member, state, strict=True):
                x = x.reshape(len(record), x.shape[-1])
                for first in range(0, len(record), self._members):
                    members = slice(first, first + self._members)
                    record[members, k // self._stride] = x[members]
        return is_recorded

    def following(self, k: int, count: int) -> list[Array]:
        """Returns where the `count` records after step k stand, (count, ..., n) each."""
        first = k // self._stride + 1
        return [np.moveaxis(record, -2, 0)[first : first + count] for record in self.arrays]


@dataclass(eq=False)
class _Run:
    robot: RobotQueries
    task: Task
    progress: Callable[[float], None] | None
    compares: bool
    """Whether steps are compared with two of half their length."""
    _loads: Acting = field(init=False)
    _stability: StabilityCheck = field(init=False)
    _resolution: ResolutionCheck | None = field(init=False, default=None)

    def _acceleration(self, q: Array, v: Array, tau: Array, wrenches: list[Wrench] | None) -> Array:
        task, loops = self.task, self.robot.closed_motion
        if loops is not None:
            loops.check_efforts(tau)
            return loops.accelerations(q, v, tau, gravity=task.gravity, wrenches=wrenches)
        return self.robot.forward_dynamics(q, v, tau, gravity=task.gravity, wrenches=wrenches, method=task.method)

    def _lost(self, k: int, error: LoopsLostError) -> DivergedError:
        """Returns the error for loops that do not close in step k of this part."""
        task, number = self.task, self.task.first_step + k + 1
        return diverged(number, number * task.dt, f"{error.message}; try a step shorter than dt = {task.dt:g} s")

    def _check(self, q: Array, x: Array, velocity: Callable[[Array, Array], Array]) -> FiniteCheck:
        """Returns the check of states that begin at (q, x). velocity: of a state (q, x)."""
        task = self.task

        def motion(k: int, q: Array, x: Array) -> tuple[Array, Array]:
            v = velocity(q, x)
            # With functions each step is checked, so the loads are those of the last step.
            return v, self._acceleration(q, v, *(self._loads if task.by_function else task.loads_at(k, q, v)))

        return FiniteCheck(task, q, x, motion, self.progress)

    def explicit(self) -> Trajectory:
        """Integrates (q, v) with fixed steps."""
        task = self.task
        q, v = task.q, task.v
        records = _Records(task, q, v)
        check = self._check(q, v, lambda q, v: v)
        self._stability = StabilityCheck(self.robot, task, task.integrator, task.substeps)
        if self.compares:
            self._resolution = self._comparison(task.dt / task.substeps)
        self._check_steps(-1, 1, q[None], v[None])
        supported = SupportedSteps(self.robot, task) if task.supported else None
        step = self._step(task.dt, task.substeps) if supported is None else supported.step
        loads = self._loads = task.loads_at(0, q, v)
        if supported is not None:
            supported.begin(q, v, *loads)
        loops = self.robot.closed_motion
        steps_at_once = self._steps_at_once(records) if supported is None and loops is None else None
        k = 0
        while k < task.last:
            if k and steps_at_once is not None:
                later_state = steps_at_once(k, q, v)
                if later_state is not None:
                    k, q, v = later_state
                    check.restart_at(k, q, v)
                    continue
                steps_at_once = None
            if k and not task.steady:
                loads = self._loads = task.loads_at(k, q, v)
            try:
                q, v = step(k, q, v, *loads)
                q, v = (q, v) if loops is None else loops.closed_state(q, v)
            except LoopsLostError as error:
                raise self._lost(k, error) from None
            k += 1
            check.step(k, q, v)
            self._check_steps(k - 1, 1, q[None], v[None])
            if records.add(k, q, v) and supported is not None:
                supported.record(k - 1, q, v)
        q, v = records.arrays
        account: dict[str, Any] = {} if supported is None else supported.account()
        return Trajectory(task.times(), q, v, **account)

    def _check_steps(self, k: int, stride: int, q: Array, v: Array) -> None:
        """Checks the length of steps at states (rows, ..., n) after steps k + every, k + 2 every, .. of this part."""
        self._stability.states(k, stride, q)
        if self._resolution is not None:
            self._resolution.states(k, stride, q, v)

    def _comparison(self, length: float) -> ResolutionCheck:
        whole, halves, tau = self._step(length, 1), self._step(length, 2), np.zeros(self.task.configuration.nv)
        return ResolutionCheck(
            self.task, length, lambda q, v: whole(0, q, v, tau, None), lambda q, v: halves(0, q, v, tau, None)
        )

    def _step(self, length: float, parts: int) -> Callable[..., tuple[Array, Array]]:
        """Returns a function (k, q, v, tau, wrenches) -> q and v after step k of this part.

        length: of the step, s. parts: in how many it is made.
        """
        robot, task = self.robot, self.task
        integrator, length = task.integrator, length / parts
        formula, duration = STEPS.get(integrator), np.array([length])
        if formula is None:
            if robot.closed_motion is not None:
                return closed_sticking(robot, task).step
            return (Sticking if task.substeps == 1 else ExtrapolatedSticking.of)(robot, task).step
        options: dict[str, Any] = {"gravity": task.gravity, "integrator": integrator}
        has_kernel = task.method == "articulated" and (task.wrenches.is_none or integrator != "rk4")
        has_kernel = has_kernel and robot.closed_motion is None

        def step(k: int, q: Array, v: Array, tau: Array, wrenches: list[Wrench] | None) -> tuple[Array, Array]:
            acceleration = lambda q, v: self._acceleration(q, v, tau, wrenches)
            for _ in range(parts):
                if has_kernel:
                    state = robot.step(q, v, tau, duration, wrenches=wrenches, **options)
                    q, v = state.q, state.v
                else:
                    q, v = formula(acceleration, q, v, length, on=task.configuration)
            return q, v

        return step

    def _steps_at_once(
        self, records: _Records
    ) -> Callable[[int, Array, Array], tuple[int, Array, Array] | None] | None:
        """Returns a function from a step and the state before it to a later step and the state before that one.

        The function sets the records on the way. It returns None if it could not compute the steps, or if the motion
        diverges in one of them, which is then found one by one. None instead of a function: each step is computed
        alone, because its loads depend on the state other than by a law, or because it takes long anyway.
        """
        robot, task, checks = self.robot, self.task, self._stability.active or self._resolution is not None
        max_steps = _MAX_STEPS if self.progress is None else _TELL_STEPS
        longest = min(max_steps, max(_MIN_STEPS, _MAX_NUMBERS // max(task.q.size, task.v.size, 1)))
        repeat = getattr(robot, "repeat_steps", None)
        by_kernel = task.method == "articulated" and task.integrator in STEPS and task.wrenches.is_none
        law = task.efforts if isinstance(task.efforts, LawEfforts) else None
        # A law would be evaluated at each substep, and its efforts are held through the step.
        if repeat is None or not by_kernel or (task.by_function and (law is None or task.substeps > 1)):
            return None

        def steps_at_once(k: int, q: Array, v: Array) -> tuple[int, Array, Array] | None:
            stride, to_record = task.every, -k % task.every or task.every
            count = 1
            if to_record == stride <= longest:
                count, steps = min(longest, task.last - k) // stride, stride
                targets = records.following(k, count)
            else:
                steps = min(longest, to_record)
                targets = [np.empty((1, *x.shape)) for x in (q, v)]
            # Checks see states at least every `_MAX_UNCHECKED` steps, also between records.
            possible = (n for n in range(1, steps + 1) if steps % n == 0)
            parts = next(n for n in possible if not checks or steps <= n * _MAX_UNCHECKED)
            states = targets if parts == 1 else [np.empty((count * parts, *x.shape)) for x in (q, v)]
            terms: list[Term] = []
            tau: Array | str
            if isinstance(task.efforts, LawEfforts):
                terms = task.efforts.terms_from(k, count * steps)
                tau = terms[-1].output
            else:
                tau = task.efforts.samples(k, 1 if task.steady else count * steps)
                tau = tau if task.steady else np.repeat(tau, task.substeps, axis=0)
            state, rows = {"q": q, "v": v}, dict(zip("qv", states, strict=True))
            inner, length = steps // parts * task.substeps, task.dt / task.substeps
            if not repeat(task.integrator, state, rows, inner, length, task.gravity, tau, terms):
                return None
            self._check_steps(k, steps // parts, *states)
            for record, x in zip(targets, states, strict=True):
                if record is not x:
                    record[...] = x[parts - 1 :: parts]
            q, v = (x[-1] for x in targets)
            # computed again one by one, so that the error names the step, as for a law that is a function
            if not (all_finite(q) and all_finite(v)):
                return None
            if steps < stride:
                records.add(k + steps, q, v)
            return k + count * steps, q, v

        return steps_at_once

    def implicit_midpoint(self) -> Trajectory:
        """Integrates (q, p) with fixed steps x' = x + dt f((x + x') / 2), solved by iteration to rounding."""
        robot, task = self.robot, self.task

        def velocity(q: Array, p: Array) -> Array:
            return robot.velocity_from_momentum(q, p, method=task.method)

        step, q, v = self._midpoint_step(), task.q, task.v
        p = robot.momentum(q, v) if task.p is None else task.p
        if task.p is not None and robot.closed_motion is not None:
            velocity(q, p)  # refuses momenta that open a loop
        records = _Records(task, q, p)
        check = self._check(q, p, velocity)
        for k in range(task.last):
            if k and task.by_function:
                v = velocity(q, p)
            loads = self._loads = task.loads_at(k, q, v)
            try:
                midpoint = step(q, p, *loads)
            except LoopsLostError as error:
                raise self._lost(k, error) from None
            if midpoint is None:
                place = f"step {task.first_step + k + 1} (t = {task.time(k):g} s)"
                text = f"the iteration for the midpoint of {place} does not converge"
                raise DivergedError(f"{text}; try a step shorter than dt = {task.dt:g} s")
            q, p = midpoint
            check.step(k + 1, q, p)
            records.add(k + 1, q, p)
        q_all, p_all = records.arrays
        # The axis of records goes before the leading axes of the robot's numbers.
        v_all = np.moveaxis(velocity(np.moveaxis(q_all, -2, 0), np.moveaxis(p_all, -2, 0)), 0, -2)
        v_all[..., 0, :] = task.v if task.p is None else v_all[..., 0, :]
        return Trajectory(task.times(), q_all, v_all, p_all)

    def _midpoint_step(self) -> Callable[..., tuple[Array, Array] | None]:
        """Returns a function (q, p, tau, wrenches) -> q and p after a step, None if its iteration does not converge."""
        robot, task, loops = self.robot, self.task, self.robot.closed_motion
        if loops is not None:

            def closed_step(
                q: Array, p: Array, tau: Array, wrenches: list[Wrench] | None
            ) -> tuple[Array, Array] | None:
                loops.check_efforts(tau)
                return loops.momentum_step(q, p, tau, task.dt, gravity=task.gravity, wrenches=wrenches)

            return closed_step
        # The scale of momenta: those of 1 rad/s or 1 m/s in all joints.
        unit = float(np.abs(robot.momentum(task.configuration.neutral, robot.free)).max(initial=0.0))

        def step(q: Array, p: Array, tau: Array, wrenches: list[Wrench] | None) -> tuple[Array, Array] | None:
            loads: dict[str, Any] = {"gravity": task.gravity, "wrenches": wrenches}

            def flow(q: Array, p: Array) -> tuple[Array, Array]:
                flow_here = robot.hamiltonian_flow(q, p, tau, **loads, method=task.method)
                return flow_here.v, flow_here.p_dot

            return midpoint_step(flow, task.configuration, q, p, task.dt, unit)

        return step

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
            except StopIteration as end_of_step:
                q, v = end_of_step.value
            if self.robot.closed_motion is not None:
                try:
                    q, v = self.robot.closed_motion.closed_state(q, v)
                except LoopsLostError as error:
                    raise self._lost(k, error) from None
            records.add(k + 1, q, v)
            if self.progress is not None:
                self.progress((k + 1) / task.last)
        q, v = records.arrays
        return Trajectory(task.times(), q, v)

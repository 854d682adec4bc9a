"""Engines that advance a simulated robot by one step: this package's equations, or another simulator.

(q, v) -> (q, v) after dt, with the efforts held through the step
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dyn_service.api.queries import Array, RobotQueries, Wrench
from dyn_service.api.results import State
from dyn_service.errors import InvalidArgumentError, UnimplementedError
from dyn_service.model.configuration import Configuration
from dyn_service.model.steps import FLAT, STEPS, WEIGHTS, Positions, Step
from dyn_service.simulation.contact.steps import StepSolution, StickSlipSteps
from dyn_service.simulation.contact.supports import SupportedDynamics, Supports
from dyn_service.simulation.integrators.stick_slip import after_step
from dyn_service.simulation.task import Task
from dyn_service.support.suggestions import did_you_mean

ForwardDynamics = Callable[[Array, Array, Array], Array]
"""(q, v, tau) -> a, e.g. `robot.forward_dynamics`."""

StepKernel = Callable[[Array, Array, Array, float], State]
"""(q, v, tau, dt s) -> the state one step later, e.g. `robot.step`."""

EffortsOf = Callable[[Array, Sequence[Wrench]], Array]
"""(q, wrenches) -> (nv,), the joint efforts with the same effect."""


def integrator(name: str) -> Step:
    """Returns an explicit step by name.

    Raises:
        InvalidArgumentError: Unknown name.
    """
    if name not in STEPS:
        hint = did_you_mean(name, STEPS)
        raise InvalidArgumentError(f"unknown integrator {name!r}: expected one of {', '.join(sorted(STEPS))}{hint}")
    return STEPS[name]


def advance(
    step: Step,
    acceleration: Callable[[Array, Array], Array],
    q: Array,
    v: Array,
    dt_s: float,
    substeps: int = 1,
    on: Positions = FLAT,
) -> tuple[Array, Array]:
    """Returns the state q (nq,), v (nv,) after `dt_s`, computed in `substeps` equal steps.

    step: the integration step, such as `integrator("rk4")`. acceleration: (q, v) -> (nv,) rad/s^2 | m/s^2. q: (nq,)
    rad | m. v: (nv,) rad/s | m/s. on: how positions move; by default they add, which quaternions do not.
    """
    for _ in range(substeps):
        q, v = step(acceleration, q, v, dt_s / substeps, on=on)
    return q, v


class Engine(ABC):
    """Advances one robot. substeps: number of internal steps per step."""

    substeps: int

    @abstractmethod
    def step(self, q: Array, v: Array, tau: Array, dt_s: float, braked: Array | None = None) -> tuple[Array, Array]:
        """Returns the state q (nq,), v (nv,) after dt_s, under efforts tau (nv,).

        braked: (nv,) velocities that brakes enforce by the end of the step, at a constant rate; NaN for joints without
        a brake. None: no brake acts.
        """

    @abstractmethod
    def acceleration(self, q: Array, v: Array, tau: Array) -> Array:
        """Returns the acceleration (nv,) in a state under efforts."""

    @abstractmethod
    def push(self, wrenches: Sequence[Wrench]) -> None:
        """Replaces the external wrenches that act from now on."""

    def record_contacts(self) -> None:  # noqa: B027  # engines that always record do nothing
        """Starts to record contact forces, for `contact_wrenches`."""

    def contact_wrenches(self) -> Sequence[Wrench]:
        """Returns the contact wrenches on the links, averaged over the last step; () if they are not known."""
        return ()

    def contact_wrenches_at(self, q: Array, v: Array, a: Array) -> Sequence[Wrench]:
        """Returns the contact wrenches on the links of a braked robot in a state with acceleration a (nv,). Rigid
        contacts have none: the brakes carry the load.
        """
        return ()


@dataclass
class OwnEngine(Engine):
    """This package's equations, in explicit steps.

    forward_dynamics: (q, v, tau) -> a. efforts_of: the joint efforts of wrenches; None if no wrenches can act: `push`
    raises `UnimplementedError` then. in_brakes: (q, v, tau, accelerations enforced by brakes) -> a, for robots with
    joints without brakes. whole_step: the integrator's step as one kernel, equal to the formula on `forward_dynamics`
    up to rounding; used while neither wrenches nor brakes act. closed_state: (q, v, velocities that brakes enforce) ->
    q, v, closes the loops of a robot at the end of a step; None: it has none.
    """

    forward_dynamics: ForwardDynamics
    configuration: Configuration
    integrator: str = "rk4"
    substeps: int = 1
    efforts_of: EffortsOf | None = None
    in_brakes: Callable[[Array, Array, Array, Array], Array] | None = None
    whole_step: StepKernel | None = None
    closed_state: Callable[[Array, Array, Array | None], tuple[Array, Array]] | None = None
    _wrenches: tuple[Wrench, ...] = field(default=(), init=False)
    _forces: list[Array] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._step = integrator(self.integrator)
        self._supported = self.forward_dynamics if isinstance(self.forward_dynamics, SupportedDynamics) else None

    def step(self, q: Array, v: Array, tau: Array, dt_s: float, braked: Array | None = None) -> tuple[Array, Array]:
        if self.whole_step is not None and braked is None and not self._wrenches:
            # one call of a kernel instead of some 30 of NumPy: 7 us instead of 34 us for the Panda, 15 and 90 us cold
            for _ in range(self.substeps):
                state = self.whole_step(q, v, tau, dt_s / self.substeps)
                q, v = state.q, state.v
            return q, v
        self._forces = []
        brake_accelerations = None if braked is None else (braked - v) / dt_s

        def acceleration(q: Array, v: Array) -> Array:
            if self._supported is not None:
                a, forces = self._supported.solve(q, v, self._with_wrenches(q, tau), brake_accelerations)
                self._forces.append(forces)
                return a
            if brake_accelerations is None:
                return self.acceleration(q, v, tau)
            assert self.in_brakes is not None
            return self.in_brakes(q, v, self._with_wrenches(q, tau), brake_accelerations)

        if self.closed_state is None:
            q, v = advance(self._step, acceleration, q, v, dt_s, self.substeps, on=self.configuration)
            return q, v if braked is None else np.where(np.isnan(braked), v, braked)
        v_begin = v
        for k in range(self.substeps):
            braked_speed = None if braked is None else v_begin + (k + 1) / self.substeps * (braked - v_begin)
            q, v = self._step(acceleration, q, v, dt_s / self.substeps, on=self.configuration)
            q, v = self.closed_state(q, v, braked_speed)
        # Brakes at more joints than the loops leave free contradict each other: the loops win.
        return q, v if braked is None else self.closed_state(q, v, None)[1]

    def acceleration(self, q: Array, v: Array, tau: Array) -> Array:
        return self.forward_dynamics(q, v, self._with_wrenches(q, tau))

    def push(self, wrenches: Sequence[Wrench]) -> None:
        if wrenches and self.efforts_of is None:
            raise UnimplementedError("this simulated robot takes no external wrenches")
        self._wrenches = tuple(wrenches)

    def contact_wrenches(self) -> Sequence[Wrench]:
        if self._supported is None or not self._forces:
            return ()
        # Stages have the weights of their accelerations in the step, so that the impulse is exact.
        weights = np.tile(WEIGHTS[self.integrator], self.substeps) / self.substeps
        return self._supported.supports.wrenches(np.tensordot(weights, self._forces, axes=1))

    def contact_wrenches_at(self, q: Array, v: Array, a: Array) -> Sequence[Wrench]:
        return () if self._supported is None else self._supported.supports.in_brakes(q, v)

    def _with_wrenches(self, q: Array, tau: Array) -> Array:
        """Returns the efforts with those of the external wrenches."""
        if not self._wrenches:
            return tau
        assert self.efforts_of is not None
        return tau + self.efforts_of(q, self._wrenches)


class StickSlipEngine(Engine):
    """This package's equations with dry friction of joints and contacts; see `simulation/contact/steps.py`.

    task: contacts, limits and the internal step; the plant's step has `substeps` of them. Accelerations are means over
    an internal step.
    """

    def __init__(self, robot: RobotQueries, task: Task, substeps: int = 1) -> None:
        self.substeps, self._configuration, self._step_s = substeps, robot.configuration, task.dt
        self._supports, self._loops = Supports(robot, task), robot.closed_motion
        self._steps = StickSlipSteps(robot, task, self._supports)
        self._wrenches: list[Wrench] | None = None
        self._solutions: list[StepSolution] = []
        self._step_count = 0

    def step(self, q: Array, v: Array, tau: Array, dt_s: float, braked: Array | None = None) -> tuple[Array, Array]:
        self._solutions = []
        v_begin = v
        for k in range(self.substeps):
            brakes = None if braked is None else v_begin + (k + 1) / self.substeps * (braked - v_begin)
            solution = self._steps.solve(self._step_count, q, v, tau, self._wrenches, brakes=brakes)
            v = solution.v
            if self._loops is not None and brakes is not None:
                v = self._loops.closed_state(q, v, brakes)[1]  # else passive joints creep against the brakes
            q, v = after_step(self._configuration, q, v, self._step_s)
            if self._loops is not None:
                q, v = self._loops.closed_state(q, v, brakes)
            self._solutions.append(solution)
            self._step_count += 1
        if self._loops is not None and braked is not None:
            v = self._loops.closed_state(q, v)[1]  # as in `OwnEngine`
        return q, v

    def acceleration(self, q: Array, v: Array, tau: Array) -> Array:
        mean: Array = (self._steps.solve(self._step_count, q, v, tau, self._wrenches).v - v) / self._step_s
        return mean

    def push(self, wrenches: Sequence[Wrench]) -> None:
        self._wrenches = list(wrenches) or None

    def contact_wrenches(self) -> Sequence[Wrench]:
        forces = [self._steps.forces(solution) for solution in self._solutions]
        return self._supports.wrenches(np.mean(forces, axis=0)) if forces else ()

    def contact_wrenches_at(self, q: Array, v: Array, a: Array) -> Sequence[Wrench]:
        return self._supports.in_brakes(q, v)

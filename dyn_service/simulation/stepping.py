"""What moves a simulated robot on by one step: this package's equations, or another engine in their place.

(q, v) -> (q, v) after dt, the efforts held through it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dyn_service.api.queries import Array, RobotQueries, Wrench
from dyn_service.errors import UnimplementedError
from dyn_service.model.configuration import Configuration
from dyn_service.model.steps import WEIGHTS
from dyn_service.simulation.contact.steps import Solved, StickSlipSteps
from dyn_service.simulation.contact.supports import SupportedDynamics, Supports
from dyn_service.simulation.integrators.explicit import ForwardDynamics, advance, held, integrator
from dyn_service.simulation.integrators.stick_slip import moved
from dyn_service.simulation.task import Task

EffortsOf = Callable[[Array, Sequence[Wrench]], Array]
"""(q, wrenches) -> (nv,), the efforts of the joints that do the same."""


class Engine(Protocol):
    """Moves one robot."""

    @property
    def substeps(self) -> int:
        """How many steps of its own it makes in one."""

    def step(self, q: Array, v: Array, tau: Array, dt_s: float, braked: Array | None = None) -> tuple[Array, Array]:
        """The state q (nq,), v (nv,) after dt_s, under efforts tau (nv,).

        braked: (nv,) velocities that brakes bring joints to in it, at a constant rate, whatever pulls at them; NaN of
        those without a brake, which move on freely. None is open brakes.
        """

    def acceleration(self, q: Array, v: Array, tau: Array) -> Array:
        """(nv,), in that state under these efforts."""

    def push(self, wrenches: Sequence[Wrench]) -> None:
        """From now on these wrenches act, in place of those before."""

    def feel(self) -> None:
        """From now on it keeps what contacts do, for `felt`."""

    def felt(self) -> Sequence[Wrench]:
        """What contacts did to the links in the last step, mean over it."""

    def felt_at(self, q: Array, v: Array, a: Array) -> Sequence[Wrench]:
        """What contacts do to the links of a robot in its brakes, in that state, which moves with a (nv,)."""


@dataclass
class OwnEngine:
    """Our equations, in explicit steps. forward_dynamics: (q, v, tau) -> a. efforts_of: what wrenches do, where any
    shall act. in_brakes: (q, v, tau, accelerations that brakes make) -> a, where joints without brakes are.
    """

    forward_dynamics: ForwardDynamics
    configuration: Configuration
    integrator: str = "rk4"
    substeps: int = 1
    efforts_of: EffortsOf | None = None
    in_brakes: Callable[[Array, Array, Array, Array], Array] | None = None
    _pushes: tuple[Wrench, ...] = field(default=(), init=False)
    _feels: bool = field(default=False, init=False)
    _forces: list[Array] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._step = integrator(self.integrator)
        self._supported = self.forward_dynamics if isinstance(self.forward_dynamics, SupportedDynamics) else None

    def step(self, q: Array, v: Array, tau: Array, dt_s: float, braked: Array | None = None) -> tuple[Array, Array]:
        """As `Engine.step`."""
        supported, forces = self._supported, list[Array]()
        given = None if braked is None else (braked - v) / dt_s

        def acceleration(q: Array, v: Array) -> Array:
            efforts = self._pushed(q, tau)
            if supported is None:
                assert given is not None
                assert self.in_brakes is not None
                return self.in_brakes(q, v, efforts, given)
            a, pushing = supported.moved(q, v, efforts, given)
            forces.append(pushing)
            return a

        plain = given is None and (supported is None or not self._feels)
        of = held(self.acceleration, tau) if plain else acceleration
        self._forces = forces
        q, v = advance(self._step, of, q, v, dt_s, self.substeps, on=self.configuration)
        return q, v if braked is None else np.where(np.isnan(braked), v, braked)

    def acceleration(self, q: Array, v: Array, tau: Array) -> Array:
        """As `Engine.acceleration`."""
        return self.forward_dynamics(q, v, self._pushed(q, tau))

    def push(self, wrenches: Sequence[Wrench]) -> None:
        """As `Engine.push`.

        Raises:
            UnimplementedError: It was not told what wrenches do.
        """
        if wrenches and self.efforts_of is None:
            raise UnimplementedError("this simulated robot takes no external wrenches")
        self._pushes = tuple(wrenches)

    def feel(self) -> None:
        """As `Engine.feel`."""
        self._feels = True

    def felt(self) -> Sequence[Wrench]:
        """As `Engine.felt`: stages weigh in it as their accelerations do in the step, so that no impulse is lost."""
        if self._supported is None or not self._forces:
            return ()
        weights = np.tile(WEIGHTS[self.integrator], self.substeps) / self.substeps
        return self._supported.supports.wrenches(np.tensordot(weights, self._forces, axes=1))

    def felt_at(self, q: Array, v: Array, a: Array) -> Sequence[Wrench]:
        """As `Engine.felt_at`; rigid contacts do nothing, see `Supports.in_brakes`."""
        return () if self._supported is None else self._supported.supports.in_brakes(q, v)

    def _pushed(self, q: Array, tau: Array) -> Array:
        """The efforts, with what pushes."""
        if not self._pushes:
            return tau
        assert self.efforts_of is not None
        return tau + self.efforts_of(q, self._pushes)


class StickSlipEngine:
    """Our equations, in steps of `stick_slip`: friction holds, of joints and of contacts, see
    `simulation/contact/cones.py`.

    task: contacts and limits, and a step, of which one of the plant has `substeps`.
    """

    def __init__(self, robot: RobotQueries, task: Task, substeps: int = 1) -> None:
        self.substeps, self._at, self._inner_s = substeps, robot.configuration, task.dt
        self._supports = Supports(robot, task)
        self._steps = StickSlipSteps(robot, task, self._supports)
        self._pushes: list[Wrench] | None = None
        self._found: list[Solved] = []
        self._made = 0

    def step(self, q: Array, v: Array, tau: Array, dt_s: float, braked: Array | None = None) -> tuple[Array, Array]:
        """As `Engine.step`; dt_s is that of the task, so many times."""
        self._found = []
        begun = v
        for k in range(self.substeps):
            slower = None if braked is None else begun + (k + 1) / self.substeps * (braked - begun)
            found = self._steps.solved(self._made, q, v, tau, self._pushes, braked=slower)
            q, v = moved(self._at, q, found.v, self._inner_s)
            self._found.append(found)
            self._made += 1
        return q, v

    def acceleration(self, q: Array, v: Array, tau: Array) -> Array:
        """As `Engine.acceleration`: mean over a step."""
        found: Array = (self._steps.solved(self._made, q, v, tau, self._pushes).v - v) / self._inner_s
        return found

    def push(self, wrenches: Sequence[Wrench]) -> None:
        """As `Engine.push`."""
        self._pushes = list(wrenches) or None

    def feel(self) -> None:
        """As `Engine.feel`: it always does."""

    def felt(self) -> Sequence[Wrench]:
        """As `Engine.felt`."""
        forces = [self._steps.forces(found) for found in self._found]
        return self._supports.wrenches(np.mean(forces, axis=0)) if forces else ()

    def felt_at(self, q: Array, v: Array, a: Array) -> Sequence[Wrench]:
        """As `Engine.felt_at`; rigid contacts do nothing, see `Supports.in_brakes`."""
        return self._supports.in_brakes(q, v)

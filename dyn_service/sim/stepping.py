"""What moves a simulated robot on by one step: this package's equations, or another engine in their place.

(q, v) -> (q, v) after dt, the efforts held through it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dyn_service.api.queries import Array, Wrench
from dyn_service.errors import UnimplementedError
from dyn_service.model.configuration import Configuration
from dyn_service.model.steps import WEIGHTS
from dyn_service.sim.integrators import ForwardDynamics, advance, held, integrator
from dyn_service.sim.supports import SupportedDynamics

EffortsOf = Callable[[Array, Sequence[Wrench]], Array]
"""(q, wrenches) -> (nv,), the efforts of the joints that do the same."""


class Engine(Protocol):
    """Moves one robot."""

    @property
    def substeps(self) -> int:
        """How many steps of its own it makes in one."""

    def step(self, q: Array, v: Array, tau: Array, dt_s: float) -> tuple[Array, Array]:
        """The state q (nq,), v (nv,) after dt_s, under efforts tau (nv,)."""

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
    """Our equations. forward_dynamics: (q, v, tau) -> a. efforts_of: what wrenches do, where any shall act."""

    forward_dynamics: ForwardDynamics
    configuration: Configuration
    integrator: str = "rk4"
    substeps: int = 1
    efforts_of: EffortsOf | None = None
    _pushes: tuple[Wrench, ...] = field(default=(), init=False)
    _feels: bool = field(default=False, init=False)
    _forces: list[Array] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._step = integrator(self.integrator)
        self._supported = self.forward_dynamics if isinstance(self.forward_dynamics, SupportedDynamics) else None

    def step(self, q: Array, v: Array, tau: Array, dt_s: float) -> tuple[Array, Array]:
        """As `Engine.step`."""
        acceleration = held(self.acceleration, tau)
        supported, forces = self._supported, list[Array]()
        if self._feels and supported is not None:

            def acceleration(q: Array, v: Array) -> Array:
                a, pushing = supported.moved(q, v, self._pushed(q, tau))
                forces.append(pushing)
                return a

        self._forces = forces
        return advance(self._step, acceleration, q, v, dt_s, self.substeps, on=self.configuration)

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
        return self._supported.wrenches(np.tensordot(weights, self._forces, axes=1))

    def felt_at(self, q: Array, v: Array, a: Array) -> Sequence[Wrench]:
        """As `Engine.felt_at`; rigid contacts do nothing, see `SupportedDynamics.braked`."""
        return () if self._supported is None else self._supported.wrenches(self._supported.braked(q, v))

    def _pushed(self, q: Array, tau: Array) -> Array:
        """The efforts, with what pushes."""
        if not self._pushes:
            return tau
        assert self.efforts_of is not None
        return tau + self.efforts_of(q, self._pushes)

"""What moves a simulated robot on by one step: this package's equations, or another engine in their place.

(q, v) -> (q, v) after dt, the efforts held through it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dyn_service.api.queries import Array, Wrench
from dyn_service.errors import UnimplementedError
from dyn_service.model.configuration import Configuration
from dyn_service.sim.integrators import ForwardDynamics, advance, held, integrator

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


@dataclass
class OwnEngine:
    """Our equations. forward_dynamics: (q, v, tau) -> a. efforts_of: what wrenches do, where any shall act."""

    forward_dynamics: ForwardDynamics
    configuration: Configuration
    integrator: str = "rk4"
    substeps: int = 1
    efforts_of: EffortsOf | None = None
    _pushes: tuple[Wrench, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self._step = integrator(self.integrator)

    def step(self, q: Array, v: Array, tau: Array, dt_s: float) -> tuple[Array, Array]:
        """As `Engine.step`."""
        acceleration = held(self.acceleration, tau)
        return advance(self._step, acceleration, q, v, dt_s, self.substeps, on=self.configuration)

    def acceleration(self, q: Array, v: Array, tau: Array) -> Array:
        """As `Engine.acceleration`."""
        return self._pushed(q, v, tau) if self._pushes else self.forward_dynamics(q, v, tau)

    def push(self, wrenches: Sequence[Wrench]) -> None:
        """As `Engine.push`.

        Raises:
            UnimplementedError: It was not told what wrenches do.
        """
        if wrenches and self.efforts_of is None:
            raise UnimplementedError("this simulated robot takes no external wrenches")
        self._pushes = tuple(wrenches)

    def _pushed(self, q: Array, v: Array, tau: Array) -> Array:
        assert self.efforts_of is not None
        return self.forward_dynamics(q, v, tau + self.efforts_of(q, self._pushes))

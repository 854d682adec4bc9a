"""What simulations need to know of a robot with closed loops, as `engine.loops.simulation.ClosedSimulation`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dyn_service.api.arguments import Wrench
from dyn_service.api.results import Array, PassiveForces
from dyn_service.errors import FailedPreconditionError


class LoopsLostError(FailedPreconditionError):
    """The loops do not close near a position that a step has reached."""


class ClosedMotion(Protocol):
    """Motions that keep the loops of a robot closed. Leading axes of q (..., nq), v, tau (..., nv) broadcast."""

    @property
    def driven(self) -> Array | None:
        """(nv,): 1 for joints with a motor, else 0; None if that is not known."""

    @property
    def samples(self) -> Array:
        """(n, nq): random closed positions."""

    def check_start(self, q: Array, v: Array) -> None:
        """Refuses states that open a loop."""

    def check_efforts(self, tau: Array) -> None:
        """Refuses efforts of joints without a motor."""

    def closed_state(self, q: Array, v: Array, brakes: Array | None = None) -> tuple[Array, Array]:
        """Returns the nearest closed position, and v without its part across the loops."""

    def accelerations(
        self,
        q: Array,
        v: Array,
        tau: Array,
        *,
        gravity: Array | None = None,
        wrenches: Sequence[Wrench] | None = None,
        brakes: Array | None = None,
    ) -> Array:
        """Returns the accelerations (..., nv) at the nearest closed state, with those of `brakes` (nv,) enforced."""

    def momentum_step(
        self,
        q: Array,
        p: Array,
        tau: Array,
        dt: float,
        *,
        gravity: Array | None = None,
        wrenches: Sequence[Wrench] | None = None,
    ) -> tuple[Array, Array] | None:
        """Returns q and p after an implicit midpoint step of dt (s), None if its iteration does not converge."""

    def bias(
        self, q: Array, v: Array, a: Array, *, gravity: Array | None = None, wrenches: Sequence[Wrench] | None = None
    ) -> tuple[Array, Array]:
        """Returns `basis`, and the tree's inverse dynamics at the accelerations nearest to a that keep loops closed."""

    def passive_forces(self, q: Array, v: Array) -> PassiveForces:
        """Returns the passive forces of the joints, also where loops are open."""

    def mobility(self, q: Array, inertia: Array | None = None) -> Array:
        """Returns the accelerations by efforts (..., nv, nv) at closed positions, instead of M^-1."""

    def tree_inertia(self, q: Array) -> Array:
        """Returns the tree's M (..., nv, nv)."""

    def drive_inertia(self, q: Array) -> Array:
        """Returns (nv, nv), by which -v becomes efforts of the drives that brake all motions alike."""

    def basis(self, q: Array) -> Array:
        """Returns N (..., nv, nv), whose columns keep the loops closed at a closed position."""

    def efforts_of(self, q: Array, wrenches: Sequence[Wrench]) -> Array:
        """Returns the efforts (..., nv) with the same effect as external wrenches."""

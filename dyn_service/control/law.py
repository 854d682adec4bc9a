"""Control laws: from a robot state and a reference to a command. No process, no socket, no clock.

    class Damper(Law):
        name = "damper"

        def update(self, state, reference, dt):
            return -5.0 * state.v

`dyn_service.graph.nodes.controllers.controller_kind` runs a law as a node: it decides when a command is due, begins the
reference, calls the law and does everything else a controller needs. A law is made once, with the `model`: the robot's
queries, answered by a server or in this process. `reset` is called before the first `update`, and again each time the
plant was not under command.

Also gains per joint from parameters, and the damping that belongs to a stiffness.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from traceback import walk_tb
from typing import Any, ClassVar, TypeVar

import numpy as np

from dyn_service.api.arrays import all_finite
from dyn_service.api.queries import Array
from dyn_service.control.command import Command, Interface
from dyn_service.control.trajectory import Reference, ReferenceTrajectory
from dyn_service.errors import DynError, FailedPreconditionError, InvalidArgumentError, failure, foreign_line

T = TypeVar("T")


class LawError(FailedPreconditionError):
    """Raised if a law fails or returns an invalid command; names the law, the value returned and the expected one."""


@dataclass(frozen=True, eq=False)
class RobotState:
    """State of the robot, in the order of the model's joints.

    t: s, plant time of the state. q: (nq,) rad | m. v: (nv,) rad/s | m/s. effort: (nv,) N m | N, mean since the law's
    last update; at the first update, the effort until then. predicted_from: the measured state, if this one is
    predicted for the middle of the time in which the command will act.
    """

    t: float
    q: Array
    v: Array
    effort: Array
    predicted_from: RobotState | None = None

    @property
    def measured(self) -> RobotState:
        """The measured state, which observers use."""
        return self.predicted_from or self


class Law(ABC):
    """A control law. name: its name in errors and reports. interface: of its commands; constant. closed_loops: whether
    it commands robots with closed loops, of which the reference moves the independent joints alone.
    """

    name: ClassVar[str]
    closed_loops: ClassVar[bool] = False
    interface: Interface = "effort"

    @abstractmethod
    def update(self, state: RobotState, reference: Reference, dt: float) -> Array | Command:
        """Returns the efforts (nv,) N m | N at this state, or positions or velocities, by the law's interface.

        A `Command` specifies velocities and efforts as well.

        Args:
            state: State of the robot.
            reference: Reference at the same time; without a motion, the position at arming, at rest.
            dt: s since the last update that returned a command; one period at the first after a reset.

        Raises:
            DynError: Ends the controller, which releases the plant. If a query fails because the server is late or
                unreachable, only this command is lost.
        """

    def reset(self, state: RobotState) -> None:  # noqa: B027  a law without memory has nothing to clear
        """Clears the law's memory; the controller arms the robot at this state."""

    def exchanged(self, law: Law) -> Law:
        """Returns the law to use after parameters were set: `law`, made with the new parameters, which is reset first;
        or this law, if it can take them over and go on.
        """
        return law

    def motion(self) -> tuple[ReferenceTrajectory, float] | None:
        """Returns the law's own reference and the plant time s at which it began, or None for the controller's."""
        return None

    def notes(self) -> Sequence[str]:
        """Returns events since the last call, one log line each."""
        return ()

    def counters(self) -> Mapping[str, int | str]:
        """Returns what the law has counted since its start, with texts about it, for the report of a launch."""
        return {}

    def signals(self) -> Mapping[str, Array | float]:
        """Returns signals of the last update for recording and report: numbers, or arrays (nv,)."""
        return {}


class EffortLaw(Law):
    """A law that returns plain efforts (nv,), so that another law can add to them."""

    @abstractmethod
    def update(self, state: RobotState, reference: Reference, dt: float) -> Array:
        """As `Law.update`."""


def checked_command(law: Law, state: RobotState, reference: Reference, dt: float, names: Sequence[str]) -> Command:
    """Returns the command of `law.update` after checking its shape and values. names: of the entries of v.

    Raises:
        LawError: The law failed, or did not return one finite number per entry of v.
        DynError: Raised by the law or its model.
    """
    # The law is the user's code: whatever it raises or returns ends the controller with a sentence that names it.
    output = guarded(LawError, f"law '{law.name}' failed in its update", lambda: law.update(state, reference, dt))
    command = output if isinstance(output, Command) else Command(output)
    return Command(
        _numbers(law, command.value, _PLURAL[law.interface], names),
        None if command.velocity is None else _numbers(law, command.velocity, "velocities", names),
        None if command.effort is None else _numbers(law, command.effort, "efforts", names),
    )


_PLURAL: Mapping[Interface, str] = {"effort": "efforts", "position": "positions", "velocity": "velocities"}


def _numbers(law: Law, output: Any, quantity: str, names: Sequence[str]) -> Array:
    try:
        values: Array = np.asarray(output, dtype=np.float64)
    except (TypeError, ValueError):
        raise LawError(f"law '{law.name}' returned {_shown(output)}: expected {len(names)} {quantity}") from None
    if values.shape != (len(names),):
        received = "nothing" if output is None else f"numbers of shape {values.shape}"
        raise LawError(f"law '{law.name}' returned {received}: expected {len(names)} {quantity}, one per entry of v")
    if not all_finite(values):
        k = int(np.argmin(np.isfinite(values)))
        raise LawError(f"law '{law.name}' returned {values[k]} for joint '{names[k]}': expected finite {quantity}")
    return values


def reset_law(law: Law, state: RobotState) -> None:
    """Resets the law.

    Raises:
        LawError: The law failed.
        DynError: Raised by the law or its model.
    """
    guarded(LawError, f"law '{law.name}' failed in its reset", lambda: law.reset(state))


def guarded(fault: type[DynError], context: str, call: Callable[[], T]) -> T:
    """Calls code of others. Its errors become a `fault`, which begins with `context` and ends with file and line; those
    of this package keep their type, and get both as well.
    """
    try:
        return call()
    except DynError as error:
        if line := foreign_line(walk_tb(error.__traceback__)):
            error.message = f"{context}: {error.message} ({line})"
        raise
    except (Exception, SystemExit) as error:  # `exit` in a law would end the process without a cause
        raise fault(f"{context}: {failure(error)}") from error


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def per_joint(name: str, setting: float | Sequence[float], n: int, *, positive: bool = False) -> Array:
    """Returns one number, or n, as an array (n,). name: in errors. positive: whether 0 is invalid.

    Raises:
        InvalidArgumentError: There are neither one nor n numbers, or one is negative, infinite or NaN.
    """
    values = np.atleast_1d(np.array(setting, dtype=np.float64))
    sound = np.isfinite(values) & ((values > 0.0) if positive else (values >= 0.0))
    if values.shape not in ((1,), (n,)) or not sound.all():
        expected = "positive" if positive else "not negative"
        actual = f"{values.size} numbers" if sound.all() else f"{values[~sound][0]:g}"
        raise InvalidArgumentError(f"{name} must be one number or {n}, {expected}, finite, found {actual}", path=name)
    return np.broadcast_to(values, (n,)).copy()


def modal_damping(mass: Array, stiffness: Array, ratio: float) -> Array:
    """The matrix D (n, n) with which every mode of M x-ddot + D x-dot + K x = 0 has this damping ratio.

        M = A A^T,  K = A S A^T  with S diagonal,   D = A (2 ratio S^1/2) A^T

    mass: M (n, n), positive definite. stiffness: K (n, n), symmetric and not negative. ratio: 1 is critical.

    Source: Albu-Schaeffer, Ott, Frese, Hirzinger, Cartesian impedance control of redundant robots, ICRA 2003, "double
    diagonalisation".
    """
    L = np.linalg.cholesky(mass)
    half = np.linalg.solve(L, stiffness)
    squares, U = np.linalg.eigh(np.linalg.solve(L, half.T))
    # A diagonalises both matrices at once, so that each column is a mode and has a damping of its own.
    A = L @ U
    # A stiffness of zero may have eigenvalues of -1e-17, whose root would be NaN.
    return np.asarray((A * (2.0 * ratio * np.sqrt(np.maximum(squares, 0.0)))) @ A.T)

"""What a control law is: from a state and a reference to a command. No process, no socket, no clock.

    class Damper(Law):
        name = "damper"

        def update(self, state, reference, dt):
            return -5.0 * state.v

`dyn_service.graph.nodes.controllers.controller_kind` makes a node of one: it says when a command is due, begins the
reference, asks
the law, and does all else that a controller has to. A law is made once, with the `model`: the robot's queries, whether
they go to a server or are answered in this process. `reset` comes before the first `update`, and anew whenever the
plant was not under command.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.command import Command, Interface
from dyn_service.control.trajectory import Reference, ReferenceTrajectory
from dyn_service.errors import DynError, FailedPreconditionError, failure


class LawError(FailedPreconditionError):
    """A law failed, or returned what is no command: names the law, what came back and what was expected."""


@dataclass(frozen=True, eq=False)
class RobotState:
    """Where the robot is, in the order of the model's joints.

    t: s, the plant's time at which it is there. q: (nq,) rad | m. v: (nv,) rad/s | m/s. effort: (nv,) N m | N, the
    mean of what acted since the law's last update; at its first, what acted until then. predicted_from: the measured
    state, where this one is predicted for the middle of the time in which the command will act.
    """

    t: float
    q: Array
    v: Array
    effort: Array
    predicted_from: RobotState | None = None

    @property
    def measured(self) -> RobotState:
        """The state as it was measured: what an observer looks at."""
        return self.predicted_from or self


class Law(ABC):
    """A control law. name: what errors and reports call it. interface: what its commands are; it stays the same."""

    name: ClassVar[str]
    interface: Interface = "effort"

    @abstractmethod
    def update(self, state: RobotState, reference: Reference, dt: float) -> Array | Command:
        """The efforts (nv,) N m | N at this state, or what else its interface says; a `Command` may say more.

        Args:
            state: Where the robot is.
            reference: Where it is to be at that time; without a motion, where it was taken over, at rest.
            dt: s since the last update that was answered; one period at the first after a reset.

        Raises:
            DynError: It ends the controller, which releases the plant. What a question to the model raises because a
                server is late or away costs this one command only.
        """

    def reset(self, state: RobotState) -> None:  # noqa: B027  a law without a memory has nothing to forget
        """Forgets what was before: the robot is taken over at this state."""

    def exchanged(self, law: Law) -> Law:
        """Which law is asked when parameters were set that make `law` in place of this one: `law`, which is reset
        first; or this one, that goes on with what is other in it.
        """
        return law

    def motion(self) -> tuple[ReferenceTrajectory, float] | None:
        """A reference of the law's own, and the plant's time s at which it began; the frame follows the latest.

        None leaves the reference that the frame has.
        """
        return None

    def notes(self) -> Sequence[str]:
        """What has happened since it was last asked for them, a sentence each: the frame logs them."""
        return ()

    def signals(self) -> Mapping[str, Array | float]:
        """What the law has to show of the last update, for the recording and the report: numbers, or arrays (nv,)."""
        return {}


class EffortLaw(Law):
    """A law whose updates are efforts (nv,) and nothing else, so that another may add to them."""

    @abstractmethod
    def update(self, state: RobotState, reference: Reference, dt: float) -> Array:
        """As `Law.update`."""


def checked_command(law: Law, state: RobotState, reference: Reference, dt: float, names: Sequence[str]) -> Command:
    """The law's command, held against what it must be.

    Args:
        law: The law.
        state: Where the robot is.
        reference: Where it is to be.
        dt: s since the last update.
        names: Of the entries of v.

    Raises:
        LawError: The law failed, or returned anything but a finite number per entry of v.
        DynError: What the law or its model raised.
    """
    found = _guarded(law, "update", lambda: law.update(state, reference, dt))
    if not isinstance(found, Command):
        return Command(_numbers(law, found, _PLURAL[law.interface], names))
    beside = {"velocities": found.velocity, "efforts": found.effort}
    kept = {what: None if given is None else _numbers(law, given, what, names) for what, given in beside.items()}
    return Command(_numbers(law, found.value, _PLURAL[law.interface], names), kept["velocities"], kept["efforts"])


_PLURAL: Mapping[Interface, str] = {"effort": "efforts", "position": "positions", "velocity": "velocities"}


def _numbers(law: Law, found: Any, what: str, names: Sequence[str]) -> Array:
    try:
        values: Array = np.asarray(found, dtype=np.float64)
    except (TypeError, ValueError):
        raise LawError(f"law '{law.name}' returned {_shown(found)}: expected {len(names)} {what}") from None
    if values.shape != (len(names),):
        came = "nothing" if found is None else f"numbers of shape {values.shape}"
        raise LawError(f"law '{law.name}' returned {came}: expected {len(names)} {what}, one per entry of v")
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        k = int(bad[0])
        raise LawError(f"law '{law.name}' returned {values[k]} for joint '{names[k]}': expected finite {what}")
    return values


def reset_law(law: Law, state: RobotState) -> None:
    """Resets the law.

    Raises:
        LawError: The law failed.
        DynError: What the law or its model raised.
    """
    _guarded(law, "reset", lambda: law.reset(state))


def _guarded(law: Law, what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except DynError:
        raise
    except Exception as error:
        raise LawError(f"law '{law.name}' failed in its {what}: {failure(error)}") from error


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

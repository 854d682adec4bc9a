"""Which plant a controller may command, and as what: what it arms, whom it leaves alone, when it gives up.

The controller arms a plant that it finds stopped when it starts: to start it is to say so. One that stops under its
command it arms again only with `rearm`; else that ends the controller, with the cause; so does one that went away under
its command, and is there again, started anew. Without `rearm` one that a
launcher has started again takes over nothing that was under command before, and ends: a launcher is nobody who could
say so. No sockets, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dyn_service.control.command import Command, Interface
from dyn_service.control.plant.safety import RUNNING, STOPPED
from dyn_service.errors import FailedPreconditionError
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState


@dataclass
class TakingOver:
    """What a controller knows of who commands the plant.

    names: of the entries of v, in the order of its commands. fingerprint: of its model. number: no other run of a
    controller has it. rearm: whether it takes over anew what stopped under its command. restarted: whether a launcher
    has started it again. interface: what its commands are.
    """

    names: tuple[str, ...]
    fingerprint: str
    number: int
    rearm: bool
    restarted: bool
    interface: Interface = "effort"

    def __post_init__(self) -> None:
        self._armed = (-1, -1)
        self._went_on = False  # after the command that armed the plant

    def may_command(self, state: PlantState) -> bool:
        """Whether it may answer this state; not where the plant is too fast to be armed, or is another controller's.

        Raises:
            FailedPreconditionError: The plant does not take such commands; or it stopped, and it is not this
                controller's to arm it again.
        """
        if self.interface not in state.interfaces:
            raise FailedPreconditionError(
                f"the controller commands by {self.interface}, the plant is commanded by {', '.join(state.interfaces)}"
            )
        arm = state.mode not in RUNNING
        session, epoch = self._armed
        under_us = session == state.session and epoch != state.epoch
        if state.mode == STOPPED and under_us and not self.rearm:
            alone = state.cause == "missed" and not self._went_on
            hint = " (no second command came in time: control_rate_hz of the plant is to be the controller's rate)"
            raise FailedPreconditionError(
                f"the plant stopped ({state.cause}) at {state.since:g} s, and rearm is off: start the controller anew"
                f"{hint if alone else ''}"
            )
        if arm and session not in (-1, state.session) and not self.rearm:
            raise FailedPreconditionError(
                "the plant was started anew under this controller, and rearm is off: start the controller anew"
            )
        anew = session != state.session and state.cause != "start"
        if arm and anew and self.restarted and not self.rearm:
            raise FailedPreconditionError(
                f"the plant is {state.mode} ({state.cause}), and rearm is off: a controller that the launcher has "
                "started again does not take it over"
            )
        return state.armable if arm else self._armed == (state.session, state.epoch)

    def command(self, state: PlantState, command: Command) -> JointCommand:
        """The answer to a state, which arms the plant where it is not armed."""
        arm = state.mode not in RUNNING
        if arm:
            self._armed = (state.session, state.epoch)
        self._went_on = not arm
        return self._answer(state, command, arm=arm)

    def release(self, state: PlantState | None) -> JointCommand | None:
        """The last word to the plant, by its last state; None where it is not this controller's."""
        if state is None or self._armed != (state.session, state.epoch):
            return None
        return self._answer(state, Command(np.zeros(len(self.names))), release=True)

    def _answer(self, state: PlantState, command: Command, *, arm: bool = False, release: bool = False) -> JointCommand:
        value: list[float] = command.value.tolist()
        effort = [0.0] * len(value) if command.effort is None else command.effort.tolist()
        goes_on = [] if command.velocity is None else command.velocity.tolist()
        return JointCommand(
            state.session,
            state.seq,
            state.epoch,
            self.fingerprint,
            self.number,
            self.names,
            value if self.interface == "effort" else effort,
            arm,
            release,
            self.interface,
            value if self.interface == "position" else [],
            {"effort": [], "position": goes_on, "velocity": value}[self.interface],
        )

"""A controller without its process: from a plant's state to the command that answers it. No sockets, no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dyn_service.control.arming import TakingOver
from dyn_service.control.command import Command
from dyn_service.control.following import Following
from dyn_service.control.law import Law
from dyn_service.errors import FailedPreconditionError
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState

Ask = Callable[[Callable[[], Command]], Command | None]
"""Asks the law, by calling what it is given; None where the answer is lost."""


@dataclass
class Commander:
    """What it follows, the law, and whom it may command."""

    following: Following
    law: Law
    taking_over: TakingOver

    def answer(self, state: PlantState, ask: Ask = lambda question: question()) -> JointCommand | None:
        """The command that answers a state that is due, or None where there is none.

        Raises:
            FailedPreconditionError: The plant does not take the law's commands; or it stopped, and it is not this
                controller's to arm it again.
            LawError: The law failed, or returned what is no command.
            DynError: What the law or its model raised.
        """
        if not self.taking_over.may_command(state):
            return None
        moment = self.following.moment(state)
        command = ask(lambda: self.following.answer(self.law, moment))
        return None if command is None else self.taking_over.command(state, command)

    def exchange(self, law: Law) -> None:
        """Asks this law from now on, which is reset first, or the present one that goes on with what is other in it.
        The reference goes on where it is.

        Raises:
            FailedPreconditionError: Its interface is another one.
        """
        if law.interface != self.law.interface:
            raise FailedPreconditionError(
                f"the controller commands by {self.law.interface}: another interface is for its next start"
            )
        before, self.law = self.law, self.law.exchanged(law)
        if self.law is not before:
            self.following.anew()

"""States of a node, as ROS 2's managed nodes have them.

                 configure              activate
    unconfigured ─────────► inactive ◄──────────► active
                 ◄─────────          deactivate
                  cleanup                            any ── shutdown ─► finalized

Timers run, callbacks are called and publishers publish only while a node is active; its services answer always.
"""

from __future__ import annotations

from typing import NamedTuple

from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.support.suggestions import did_you_mean

UNCONFIGURED, INACTIVE, ACTIVE, FINALIZED = "unconfigured", "inactive", "active", "finalized"


class Transition(NamedTuple):
    """A way from one state to another."""

    before: tuple[str, ...]
    after: str


TRANSITIONS = {
    "configure": Transition((UNCONFIGURED,), INACTIVE),
    "activate": Transition((INACTIVE,), ACTIVE),
    "deactivate": Transition((ACTIVE,), INACTIVE),
    "cleanup": Transition((INACTIVE,), UNCONFIGURED),
    "shutdown": Transition((UNCONFIGURED, INACTIVE, ACTIVE), FINALIZED),
}


def possible(state: str) -> list[str]:
    """The transitions that lead on from a state."""
    return [name for name, transition in TRANSITIONS.items() if state in transition.before]


def checked(name: str, state: str, node: str) -> Transition:
    """The transition of that name.

    Raises:
        InvalidArgumentError: There is none.
        FailedPreconditionError: It does not lead on from the node's state.
    """
    transition = TRANSITIONS.get(name)
    if transition is None:
        near = did_you_mean(name, TRANSITIONS)
        raise InvalidArgumentError(f"there is no transition {name!r}: expected one of {', '.join(TRANSITIONS)}{near}")
    if state not in transition.before:
        ways = ", ".join(possible(state)) or "none"
        raise FailedPreconditionError(f"node {node!r} is {state}: {name!r} is not possible there; possible: {ways}")
    return transition

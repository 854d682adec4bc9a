"""States and transitions of a node, as in ROS 2's managed nodes.

                 configure              activate
    unconfigured ─────────► inactive ◄──────────► active
                 ◄─────────          deactivate
                  cleanup                            any ── shutdown ─► finalized

Timers, callbacks and publishers work only while a node is active; services always do.
"""

from __future__ import annotations

from typing import NamedTuple

from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.support.suggestions import did_you_mean

UNCONFIGURED, INACTIVE, ACTIVE, FINALIZED = "unconfigured", "inactive", "active", "finalized"


class Transition(NamedTuple):
    """A transition between states."""

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
    """Returns the transitions that are possible in a state."""
    return [name for name, transition in TRANSITIONS.items() if state in transition.before]


def checked(name: str, state: str, node: str) -> Transition:
    """Returns the transition with this name.

    Raises:
        InvalidArgumentError: The transition does not exist.
        FailedPreconditionError: It is not possible in the node's state.
    """
    transition = TRANSITIONS.get(name)
    if transition is None:
        near = did_you_mean(name, TRANSITIONS)
        raise InvalidArgumentError(f"there is no transition {name!r}: expected one of {', '.join(TRANSITIONS)}{near}")
    if state not in transition.before:
        ways = ", ".join(possible(state)) or "none"
        raise FailedPreconditionError(f"node {node!r} is {state}: {name!r} is not possible there; possible: {ways}")
    return transition

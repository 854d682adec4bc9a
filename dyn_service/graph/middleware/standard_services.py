"""Services of every node, such as `/arm/plant/get_parameters`: its parameters, its lifecycle, its log level.

Only parameters whose field is marked `settable` can be set while a node runs. The lifecycle is that of ROS 2's managed
nodes:

                 configure              activate
    unconfigured ─────────► inactive ◄──────────► active
                 ◄─────────          deactivate
                  cleanup                            any ── shutdown ─► finalized

Timers, callbacks and publishers work only while a node is active; services always do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.graph.middleware.dyn_service_srvs import (
    ChangeStateRequest,
    DescribeParametersRequest,
    DescribeParametersResponse,
    GetParametersRequest,
    GetParametersResponse,
    GetStateRequest,
    GetStateResponse,
    ListParametersRequest,
    ListParametersResponse,
    SetLogLevelRequest,
    SetParametersRequest,
)
from dyn_service.graph.middleware.services import Empty
from dyn_service.support.parameter_descriptions import described
from dyn_service.support.parameters import converted, not_finite
from dyn_service.support.suggestions import did_you_mean

P = TypeVar("P", bound=msgspec.Struct)


def flat(parameters: msgspec.Struct) -> dict[str, Any]:
    """Returns the values by the names of `described`, as in YAML."""
    values = msgspec.to_builtins(parameters)
    return {found.name: _at(values, found.name) for found in described(type(parameters))}


def with_values(parameters: P, given: Mapping[str, Any], node: str) -> P:
    """Returns the parameters with some values replaced and checked.

    Raises:
        InvalidArgumentError: A parameter does not exist, or a value has a wrong type or is out of range.
        FailedPreconditionError: A parameter is read-only while the node runs.
    """
    kind = type(parameters)
    known = {found.name: found for found in described(kind)}
    values = msgspec.to_builtins(parameters)
    for name, value in given.items():
        found = known.get(name)
        if found is None:
            raise unknown(name, known, node)
        if not found.settable:
            raise FailedPreconditionError(
                f"parameter {name!r} of node {node!r} is read-only while it runs: set it at the start", path=name
            )
        if any(not_finite(value)):
            raise InvalidArgumentError(f"parameter {name!r} is not finite", path=name)
        *above, last = name.split(".")
        table = values
        for step in above:
            table = table[step]
        table[last] = value
    return converted(values, kind)


def unknown(name: str, known: Collection[str], node: str) -> InvalidArgumentError:
    """Returns the error for a parameter that the node does not have."""
    near = did_you_mean(name, known) or (f"; it has {', '.join(known)}" if known else "; it has none")
    return InvalidArgumentError(f"node {node!r} has no parameter {name!r}{near}", path=name)


def _at(values: Any, name: str) -> Any:
    for step in name.split("."):
        values = values[step]
    return values


class ServedNode(Protocol):
    """The part of a node that the standard services use."""

    parameters: Any
    state: str
    managed: bool

    @property
    def name(self) -> str:
        """Its full name."""

    def set_parameters(self, values: Mapping[str, Any]) -> None:
        """Sets all of them, or raises and sets none."""

    def change_state(self, transition: str) -> None:
        """Makes the transition, or raises."""


class StandardServices:
    """The standard services of one node."""

    def __init__(self, node: ServedNode) -> None:
        self._node = node
        kind: type[msgspec.Struct] = type(node.parameters)
        self._described = {found.name: found for found in described(kind)}

    def services(self) -> dict[str, tuple[type[msgspec.Struct], Callable[[Any], msgspec.Struct | None]]]:
        """Returns the type of requests and the handler, by the service's name."""
        return {
            "list_parameters": (ListParametersRequest, self._list),
            "describe_parameters": (DescribeParametersRequest, self._describe),
            "get_parameters": (GetParametersRequest, self._get),
            "set_parameters": (SetParametersRequest, self._set),
            "get_state": (GetStateRequest, self._state),
            "change_state": (ChangeStateRequest, self._change),
            "set_log_level": (SetLogLevelRequest, _set_level),
        }

    def _list(self, request: ListParametersRequest) -> ListParametersResponse:
        return ListParametersResponse(list(self._described))

    def _describe(self, request: DescribeParametersRequest) -> DescribeParametersResponse:
        return DescribeParametersResponse(list(self._chosen(request.names, self._described).values()))

    def _get(self, request: GetParametersRequest) -> GetParametersResponse:
        return GetParametersResponse(self._chosen(request.names, flat(self._node.parameters)))

    def _set(self, request: SetParametersRequest) -> Empty:
        self._node.set_parameters(request.values)
        return Empty()

    def _state(self, request: GetStateRequest) -> GetStateResponse:
        state = self._node.state
        return GetStateResponse(state, possible(state) if self._node.managed else [])

    def _change(self, request: ChangeStateRequest) -> GetStateResponse:
        self._node.change_state(request.transition)
        return self._state(GetStateRequest())

    def _chosen(self, names: list[str], known: dict[str, Any]) -> dict[str, Any]:
        for name in names:
            if name not in known:
                raise unknown(name, known, self._node.name)
        return {name: known[name] for name in names} if names else known


def _set_level(request: SetLogLevelRequest) -> Empty:
    logging.getLogger(request.logger or None).setLevel(request.level.upper())
    return Empty()


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

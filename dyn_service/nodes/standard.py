"""Services that every node has: its parameters, its lifecycle, its log. They are called `/arm/plant/get_parameters`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dyn_service.errors import InvalidArgumentError
from dyn_service.nodes import settables
from dyn_service.nodes.lifecycle import possible
from dyn_service.nodes.services import Empty
from dyn_service.nodes.settables import ParameterDescription
from dyn_service.suggestions import did_you_mean

if TYPE_CHECKING:
    from dyn_service.nodes.node import Node

Level = Literal["debug", "info", "warning", "error"]


class ListParametersRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks for all names of parameters."""


class ListParametersResponse(msgspec.Struct, frozen=True):
    """Names of parameters, those in structs as `struct.name`."""

    names: list[str]


class DescribeParametersRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks how parameters are; of all where none are named."""

    names: list[str] = []


class DescribeParametersResponse(msgspec.Struct, frozen=True):
    """How they are, in the order in which they were asked for."""

    descriptors: list[ParameterDescription]


class GetParametersRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks for values; for all where none are named."""

    names: list[str] = []


class GetParametersResponse(msgspec.Struct, frozen=True):
    """Values by their parameters' names."""

    values: dict[str, Any]


class SetParametersRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sets all of these, or, where one of them is refused, none."""

    values: dict[str, Any]


class GetStateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks for the state."""


class GetStateResponse(msgspec.Struct, frozen=True):
    """The state, and the transitions that lead on from it."""

    state: str
    transitions: list[str] = []


class ChangeStateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks for a transition: configure, activate, deactivate, cleanup, shutdown."""

    transition: str


class SetLogLevelRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is logged from now on, of all loggers or the one that is named."""

    level: Level
    logger: str = ""


class Answers:
    """The answers of one node."""

    def __init__(self, node: Node[Any]) -> None:
        self._node = node

    def services(self) -> dict[str, tuple[type[msgspec.Struct], Callable[[Any], msgspec.Struct | None]]]:
        """The type of the requests, and the handler, by the service's name."""
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
        return ListParametersResponse([found.name for found in settables.describe(type(self._node.parameters))])

    def _describe(self, request: DescribeParametersRequest) -> DescribeParametersResponse:
        known = {found.name: found for found in settables.describe(type(self._node.parameters))}
        return DescribeParametersResponse(list(self._chosen(request.names, known).values()))

    def _get(self, request: GetParametersRequest) -> GetParametersResponse:
        return GetParametersResponse(self._chosen(request.names, settables.flat(self._node.parameters)))

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
                near = did_you_mean(name, known) or (f"; it has {', '.join(known)}" if known else "; it has none")
                raise InvalidArgumentError(f"node {self._node.name!r} has no parameter {name!r}{near}", path=name)
        return {name: known[name] for name in names} if names else known


def _set_level(request: SetLogLevelRequest) -> Empty:
    logging.getLogger(request.logger or None).setLevel(request.level.upper())
    return Empty()

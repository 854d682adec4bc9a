"""Services that every node has: its parameters, its lifecycle, its log. They are called `/arm/plant/get_parameters`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from dyn_service.graph.middleware import settable_parameters
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
from dyn_service.graph.middleware.lifecycle import possible
from dyn_service.graph.middleware.services import Empty
from dyn_service.support.parameter_descriptions import described


class ServedNode(Protocol):
    """What the standard services need of a node."""

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
        return ListParametersResponse(list(self._described))

    def _describe(self, request: DescribeParametersRequest) -> DescribeParametersResponse:
        return DescribeParametersResponse(list(self._chosen(request.names, self._described).values()))

    def _get(self, request: GetParametersRequest) -> GetParametersResponse:
        return GetParametersResponse(self._chosen(request.names, settable_parameters.flat(self._node.parameters)))

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
                raise settable_parameters.unknown(name, known, self._node.name)
        return {name: known[name] for name in names} if names else known


def _set_level(request: SetLogLevelRequest) -> Empty:
    logging.getLogger(request.logger or None).setLevel(request.level.upper())
    return Empty()

"""Requests and responses of the services that every node has; see `standard`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from dyn_service.support.parameter_descriptions import ParameterDescriptor

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

    descriptors: list[ParameterDescriptor]


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

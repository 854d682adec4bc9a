"""Requests and responses of the services of every node. The module's name is part of their types."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from dyn_service.support.parameter_descriptions import ParameterDescriptor

Level = Literal["debug", "info", "warning", "error"]


class ListParametersRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests the names of all parameters."""


class ListParametersResponse(msgspec.Struct, frozen=True):
    """Names of parameters; those in nested structs are `struct.name`."""

    names: list[str]


class DescribeParametersRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests descriptions of parameters; of all if no name is given."""

    names: list[str] = []


class DescribeParametersResponse(msgspec.Struct, frozen=True):
    """Descriptions, in the order of the request."""

    descriptors: list[ParameterDescriptor]


class GetParametersRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests values; all if no name is given."""

    names: list[str] = []


class GetParametersResponse(msgspec.Struct, frozen=True):
    """Values by parameter name."""

    values: dict[str, Any]


class SetParametersRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sets all of these parameters, or none if one is refused."""

    values: dict[str, Any]


class GetStateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests the state."""


class GetStateResponse(msgspec.Struct, frozen=True):
    """The state, and the transitions possible in it."""

    state: str
    transitions: list[str] = []


class ChangeStateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests a transition: configure, activate, deactivate, cleanup, shutdown."""

    transition: str


class SetLogLevelRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sets the log level of all loggers, or of the named one."""

    level: Level
    logger: str = ""

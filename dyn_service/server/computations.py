"""Rows of the table that take long, answered from a request: simulation, verification, segments of gait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from msgspec import UNSET

from dyn_service.api.queries import Computation, RobotQueries
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError
from dyn_service.protocol.arrays import describe_value, pack_output, show_value, unpack_array
from dyn_service.protocol.messages import Request
from dyn_service.protocol.payloads import unpack_payload
from dyn_service.protocol.wrenches import unpack_wrenches
from dyn_service.server.registry import Registry
from dyn_service.suggestions import did_you_mean

_READ: Mapping[str, Callable[[Any, str], Any]] = {"wrenches": unpack_wrenches, "payload": unpack_payload}
"""How inputs are read that are no arrays, by their kind."""


def compute(registry: Registry, row: Computation, request: Request) -> dict[str, Any]:
    """The outputs of one request, packed, by name.

    Args:
        registry: The robots.
        row: What is asked.
        request: By whom, and with what.

    Raises:
        DynError: The request is refused, or its computation fails.
    """
    robot = _robot(registry, request) if row.robot else None
    inputs, options = read_inputs(row, request.inputs or {}), _options(row, request.options or {})
    for name in row.of_kind("position"):
        if robot is not None and name in inputs and inputs[name].shape[-1:] == (robot.nq,):
            robot.configuration.check_unit(inputs[name], name, f"inputs.{name}")
    outputs = _parts(row, robot, inputs, options) if row.part else _whole(row, robot, inputs, options)
    return {name: pack_output(np.asarray(value)) for name, value in outputs.items()}


def read_inputs(row: Computation, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs as arrays, wrenches and payloads; what they must be beyond that is for the computation to say.

    Raises:
        InvalidArgumentError: One is missing, unknown, or not what an input can be.
    """
    found = {}
    for name, value in raw.items():
        if name not in row.inputs:
            known = ", ".join(row.inputs)
            message = f"{row.name} has no input '{name}'; its inputs are {known}{did_you_mean(name, row.inputs)}"
            raise InvalidArgumentError(message, path=f"inputs.{name}")
        if value is not None:
            read: Callable[[Any, str], Any] = _READ.get(row.inputs[name].kind, unpack_array)
            found[name] = read(value, f"inputs.{name}")
    for name in row.required:
        if name not in found:
            raise InvalidArgumentError(f"{row.name} needs the input '{name}'", path=f"inputs.{name}")
    return found


def _robot(registry: Registry, request: Request) -> Any:
    robot = registry.get(request.robot).robot
    if request.model not in (UNSET, None, robot.fingerprint):
        raise FailedPreconditionError(
            f"robot '{robot.name}' has fingerprint {robot.fingerprint}, the request was made for {request.model}",
            path="model",
        )
    return robot


def _options(row: Computation, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, each of its type."""
    found = {}
    for name, value in raw.items():
        option, path = row.options.get(name), f"options.{name}"
        if option is None:
            known = f"its options are {', '.join(row.options)}" if row.options else "it has none"
            known += did_you_mean(name, row.options)
            raise InvalidArgumentError(f"{row.name} has no option '{name}'; {known}", path=path)
        if not option.is_one(value):
            near = did_you_mean(value, option.choices) if isinstance(value, str) else ""
            said = show_value(value) if type(value) in (str, int, float, list) else describe_value(value)
            raise InvalidArgumentError(f"{name} must be {option.takes}, found {said}{near}", path=path)
        if option.most is not None and value > option.most:
            raise ResourceExhaustedError(
                f"{name} must be at most {option.most} in one request, found {value}: go on from the last state",
                path=path,
            )
        found[name] = float(value) if option.type == "number" else value
    for option in row.options.values():
        if option.required and option.name not in found:
            raise InvalidArgumentError(f"{row.name} needs the option '{option.name}'", path=f"options.{option.name}")
    return found


def _parts(row: Computation, robot: Any, inputs: dict[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
    """One request of a motion in parts."""
    for name in row.of_kind("payload"):
        robot = robot.with_payload(inputs.pop(name)) if name in inputs else robot
    outputs: Mapping[str, Any] = row.function("part")(robot, inputs, options)
    return outputs


def _whole(
    row: Computation, robot: RobotQueries | None, inputs: Mapping[str, Any], options: Mapping[str, Any]
) -> Mapping[str, Any]:
    """A computation whose answer is one reply."""
    given = {**inputs, **options}
    arguments = {parameter: given[name] for parameter, name in row.parameters.items() if name in given}
    result = row.function("run")(*([] if robot is None else [robot]), **arguments)
    return result if isinstance(result, dict) else {name: getattr(result, name) for name in row.outputs}

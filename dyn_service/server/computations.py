"""Rows of the table that take long, answered from a request: simulation, verification, segments of gait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import UNSET

from dyn_service.api.inputs import check_names, checked_options
from dyn_service.api.queries import Computation, RobotQueries
from dyn_service.protocol.arrays import pack_output
from dyn_service.protocol.messages import Request
from dyn_service.protocol.values import unpack
from dyn_service.server.registry import Registry, other_model


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
    inputs, options = read_inputs(row, request.inputs or {}), checked_options(row, request.options or {})
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
    check_names(row, raw)
    return {
        name: unpack(row.inputs[name].kind, value, f"inputs.{name}") for name, value in raw.items() if value is not None
    }


def _robot(registry: Registry, request: Request) -> Any:
    robot = registry.get(request.robot).robot
    if request.model not in (UNSET, None, robot.fingerprint):
        raise other_model(robot.name, robot.fingerprint, request.model)
    return robot


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

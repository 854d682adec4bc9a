"""Rows of the table that take long, answered from a request: simulation, verification, segments of gait."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from msgspec import UNSET

from dyn_service.api.arrays import spread
from dyn_service.api.inputs import check_names, checked_options
from dyn_service.api.queries import Computation
from dyn_service.errors import DynError, FailedPreconditionError
from dyn_service.model.order import NAMES, Order
from dyn_service.service.protocol.arrays import pack_output
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.protocol.messages import Request
from dyn_service.service.protocol.values import unpack
from dyn_service.service.server.answering.bounds import foretell, meter, refuse_over
from dyn_service.service.server.answering.registry import Registry, Served, other_model

_NONE: Mapping[str, int] = {}
"""The sizes of no robot."""


def compute(
    registry: Registry, row: Computation, request: Request, limits: RequestLimits, until_ns: float = math.inf
) -> dict[str, Any]:
    """The outputs of one request, packed, by name.

    Args:
        registry: The robots.
        row: What is asked.
        request: By whom, and with what.
        limits: What it may cost.
        until_ns: When the asker gives up, on the clock of `time.perf_counter_ns`.

    Raises:
        DynError: The request is refused, or its computation fails.
    """
    served = _served(registry, request) if row.robot else None
    robot = None if served is None else served.robot
    inputs, order = read_inputs(row, request.inputs or {}, request.options or {}, served)
    options = _options(row, request.options or {})
    refuse_over(row, foretell(row, _NONE if robot is None else robot.sizes, inputs, options), limits)
    for name in row.of_kind("position"):
        if robot is not None and name in inputs and inputs[name].shape[-1:] == (robot.nq,):
            robot.configuration.check_unit(inputs[name], name, f"inputs.{name}")
    look = meter(row, limits, until_ns)
    try:
        outputs = _part(row, robot, inputs, options, look) if row.part else _whole(row, robot, inputs, options)
    except DynError as error:
        error.path = _path_on_wire(row, error.path)
        raise
    except np.linalg.LinAlgError:
        raise FailedPreconditionError(
            f"{row.name} has no answer: a matrix of its equations is singular at a state of the request"
        ) from None
    arrays = {name: np.asarray(value) for name, value in outputs.items()}
    if order is not None:
        arrays = order.outward(row, arrays)
    return {name: pack_output(value) for name, value in arrays.items()}


def read_inputs(
    row: Computation, raw: Mapping[str, Any], options: Mapping[str, Any], served: Served | None
) -> tuple[dict[str, Any], Order | None]:
    """The inputs as arrays, wrenches and payloads, in the robot's order, and that of the request, where it says one.
    What they must be beyond that is for the computation to say.

    Raises:
        InvalidArgumentError: One is missing, unknown, or not what an input can be.
        NotFoundError: It names a joint that is none.
    """
    order = free = None
    if NAMES in raw and served is not None:
        raw, order = served.orders.split(row, raw)
    check_names(row, raw)
    inputs = {
        name: unpack(row.inputs[name].kind, value, f"inputs.{name}") for name, value in raw.items() if value is not None
    }
    if order is not None:
        prescribed = options.get("joints")
        if row.of_kind("motions") and isinstance(prescribed, list):
            free = order.without(prescribed)
        inputs = {name: order.inward(row.inputs[name], value, free) for name, value in inputs.items()}
    return inputs, order


def _served(registry: Registry, request: Request) -> Served:
    served = registry.get(request.robot)
    if request.model not in (UNSET, None, served.robot.fingerprint):
        raise other_model(served.robot.name, served.robot.fingerprint, request.model)
    return served


def _options(row: Computation, raw: Mapping[str, Any]) -> dict[str, Any]:
    """All options; what was sent as nil was left out."""
    return checked_options(row, {name: value for name, value in raw.items() if value is not None})


def _path_on_wire(row: Computation, path: str | None) -> str | None:
    """Where an argument stands in the request, from where the method has it: `q0` is `inputs.q`."""
    head = re.match(r"\w*", path or "")[0]  # type: ignore[index]  # of nothing, it is nothing
    name = row.parameters.get(head)
    if path is None or name is None:
        return path
    if name in row.options:
        return f"options.{name}{path[len(head) :]}"
    return f"inputs.{name}" + ("" if row.inputs[name].kind == "motions" else path[len(head) :])


def _part(
    row: Computation, robot: Any, inputs: dict[str, Any], options: Mapping[str, Any], look: Callable[[float], None]
) -> Mapping[str, Any]:
    """One request of a motion in parts."""
    robot, inputs, options = _asked(row, robot, inputs, options)
    outputs: Mapping[str, Any] = row.function("part")(robot, inputs, options, look)
    return outputs


def _asked(
    row: Computation, robot: Any, inputs: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Who answers, what is left of inputs and options for the computation, and a state for each robot that it is."""
    left = {**inputs, **options}
    robot = robot.asked(row, left)
    for name in row.of_kind("position"):
        left[name] = spread(left[name], robot.lead)
    return robot, *({name: left[name] for name in of if name in left} for of in (inputs, options))


def _whole(row: Computation, robot: Any, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
    """A computation whose answer is one reply."""
    if robot is not None:
        robot, inputs, options = _asked(row, robot, inputs, options)
    given = {**inputs, **options}
    arguments = {parameter: given[name] for parameter, name in row.parameters.items() if name in given}
    result = row.function("run")(*([] if robot is None else [robot]), **arguments)
    return result if isinstance(result, dict) else {name: getattr(result, name) for name in row.outputs}

"""Longer computations that a server does beside the table's queries: motions from efforts, gait from measurements.

Both run on the worker thread, so that no control loop waits for them, and both are bounded: a long simulation comes in
parts, each from the last state of the one before, so that nothing of it stays on the server between two requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import UNSET

from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError
from dyn_service.protocol.arrays import describe_value, pack_output, unpack_array
from dyn_service.protocol.defaults import MAX_STEPS
from dyn_service.protocol.messages import Request
from dyn_service.protocol.payloads import unpack_payload
from dyn_service.protocol.wrenches import unpack_wrenches

if TYPE_CHECKING:
    from dyn_service.server.registry import Registry

_SIMULATION_INPUTS = ("q", "v", "p", "tau", "gravity", "wrenches", "payload")
_SIMULATION_OPTIONS: Mapping[str, type] = {
    "dt": float,
    "steps": int,
    "method": str,
    "integrator": str,
    "every": int,
    "first_step": int,
}
_READ: Mapping[str, Callable[[Any, str], Any]] = {"wrenches": unpack_wrenches, "payload": unpack_payload}
"""How inputs are read that are no arrays."""

_SEGMENT_INPUTS = (
    "mass",
    "inertia",
    "rotation",
    "acceleration",
    "omega",
    "omega_dot",
    "proximal",
    "distal",
    "ground_force",
    "ground_moment",
    "gravity",
)


def simulate(registry: Registry, request: Request) -> dict[str, Any]:
    """The motion of a robot under efforts: `t`, `q`, `v`, and `p` where momenta are integrated; `a` for no steps.

    Raises:
        DynError: The request is refused, or the motion diverges.
    """
    from dyn_service.sim.simulate import simulate as run

    robot = registry.get(request.robot).robot
    if request.model not in (UNSET, None, robot.fingerprint):
        raise FailedPreconditionError(
            f"robot '{robot.name}' has fingerprint {robot.fingerprint}, the request was made for {request.model}",
            path="model",
        )
    inputs = _arrays(request, "simulate", _SIMULATION_INPUTS, required=("q", "v"))
    options = _options(request, "simulate", _SIMULATION_OPTIONS, required=("dt", "steps"))
    if options["steps"] > MAX_STEPS:
        raise ResourceExhaustedError(
            f"steps must be at most {MAX_STEPS} in one request, found {options['steps']}: go on from the last state",
            path="options.steps",
        )
    if "payload" in inputs:
        robot = robot.with_payload(inputs["payload"])
    acting: dict[str, Any] = {name: inputs.get(name) for name in ("gravity", "wrenches")}
    if options["steps"] == 0:  # for a client that does the steps: it asks at every stage of each
        tau = inputs.get("tau", np.zeros(robot.nv))
        method: dict[str, Any] = {name: options[name] for name in ("method",) if name in options}
        return {"a": pack_output(robot.forward_dynamics(inputs["q"], inputs["v"], tau, **acting, **method))}
    motion = run(robot, inputs["q"], inputs["v"], inputs.get("tau"), p0=inputs.get("p"), **acting, **options)
    outputs = {"t": motion.t, "q": motion.q, "v": motion.v} | ({} if motion.p is None else {"p": motion.p})
    return {name: pack_output(array) for name, array in outputs.items()}


def segment_inverse_dynamics(request: Request) -> dict[str, Any]:
    """Forces and moments at the joints of a chain of measured segments: `force`, `moment`.

    Raises:
        DynError: The request is refused.
    """
    from dyn_service.dynamics.segments import inverse_dynamics

    needed = tuple(name for name in _SEGMENT_INPUTS if name not in ("ground_moment", "gravity"))
    inputs = _arrays(request, "segment_inverse_dynamics", _SEGMENT_INPUTS, required=needed)
    options = _options(request, "segment_inverse_dynamics", {"method": str}, required=())
    loads = inverse_dynamics(**inputs, **options)
    return {"force": pack_output(loads.force), "moment": pack_output(loads.moment)}


def _arrays(request: Request, query: str, names: tuple[str, ...], required: tuple[str, ...]) -> dict[str, Any]:
    found = {}
    for name, value in (request.inputs or {}).items():
        if name not in names:
            message = f"{query} has no input '{name}'; its inputs are {', '.join(names)}"
            raise InvalidArgumentError(message, path=f"inputs.{name}")
        if value is not None:
            read: Callable[[Any, str], Any] = _READ.get(name, unpack_array)
            found[name] = read(value, f"inputs.{name}")
    for name in required:
        if name not in found:
            raise InvalidArgumentError(f"{query} needs the input '{name}'", path=f"inputs.{name}")
    return found


def _options(request: Request, query: str, kinds: Mapping[str, type], required: tuple[str, ...]) -> dict[str, Any]:
    found = {}
    for name, value in (request.options or {}).items():
        kind = kinds.get(name)
        if kind is None:
            message = f"{query} has no option '{name}'; its options are {', '.join(kinds)}"
            raise InvalidArgumentError(message, path=f"options.{name}")
        if type(value) is int and kind is float:
            value = float(value)
        if type(value) is not kind:
            expected = {float: "a number", int: "an integer", str: "a text"}[kind]
            raise InvalidArgumentError(
                f"{name} must be {expected}, found {describe_value(value)}", path=f"options.{name}"
            )
        found[name] = value
    for name in required:
        if name not in found:
            raise InvalidArgumentError(f"{query} needs the option '{name}'", path=f"options.{name}")
    return found

"""Longer computations that a server does beside the table's queries: motions from efforts, gait from measurements.

Both run on the worker thread, so that no control loop waits for them, and both are bounded: a long simulation comes in
parts, each from the last state of the one before, so that nothing of it stays on the server between two requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import UNSET

from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError
from dyn_service.protocol.administration import ADMINISTRATION
from dyn_service.protocol.arrays import describe_value, pack_output, unpack_array
from dyn_service.protocol.defaults import MAX_RHEONOMIC_STEPS, MAX_STEPS
from dyn_service.protocol.messages import Request
from dyn_service.protocol.payloads import unpack_payload
from dyn_service.protocol.wrenches import unpack_wrenches
from dyn_service.suggestions import did_you_mean

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

_RHEONOMIC_OPTIONS: Mapping[str, type] = {
    "joints": list,
    "dt": float,
    "steps": int,
    "t0": float,
    "first_step": int,
    "every": int,
}


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
    if inputs["q"].shape[-1:] == (robot.nq,):
        robot.configuration.check_unit(inputs["q"], "q", "inputs.q")
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
        a = robot.forward_dynamics(inputs["q"], inputs["v"], tau, **acting, **method)
        # A stage may overflow: that is for the client to tell, who knows the step and its time.
        finite = np.isfinite(a)
        return {"a": pack_output(np.where(finite, a, 0.0)), "finite": pack_output(finite.astype(np.float64))}
    motion = run(robot, inputs["q"], inputs["v"], inputs.get("tau"), p0=inputs.get("p"), **acting, **options)
    outputs = {"t": motion.t, "q": motion.q, "v": motion.v} | ({} if motion.p is None else {"p": motion.p})
    return {name: pack_output(array) for name, array in outputs.items()}


def segment_inverse_dynamics(request: Request) -> dict[str, Any]:
    """Forces and moments at the joints of a chain of measured segments: `force`, `moment`.

    Raises:
        DynError: The request is refused.
    """
    from dyn_service.reference.segments import inverse_dynamics

    entry = ADMINISTRATION["segment_inverse_dynamics"]
    inputs = _arrays(request, entry.name, tuple(entry.inputs), required=entry.required)
    options = _options(request, "segment_inverse_dynamics", {"method": str}, required=())
    loads = inverse_dynamics(**inputs, **options)
    return {"force": pack_output(loads.force), "moment": pack_output(loads.moment)}


def segment_matrices(request: Request) -> dict[str, Any]:
    """The matrices of the segments' M q-ddot = C + G + A [F; M] + E, and their solution.

    Raises:
        DynError: The request is refused.
    """
    from dyn_service.reference.segments import matrices

    entry = ADMINISTRATION["segment_matrices"]
    inputs = _arrays(request, entry.name, tuple(entry.inputs), required=entry.required)
    _options(request, "segment_matrices", {}, required=())
    return {name: pack_output(array) for name, array in matrices(**inputs)._asdict().items()}


def simulate_rheonomic(registry: Registry, request: Request) -> dict[str, Any]:
    """The motion of a robot of which some joints move as given: `t`, `q`, `v`, `a`, `tau` of all joints.

    Raises:
        DynError: The request is refused, or the motion diverges.
    """
    from dyn_service.sim.sampled import simulate_rheonomic as run

    robot = registry.get(request.robot).robot
    if request.model not in (UNSET, None, robot.fingerprint):
        raise FailedPreconditionError(
            f"robot '{robot.name}' has fingerprint {robot.fingerprint}, the request was made for {request.model}",
            path="model",
        )
    given = dict(request.inputs or {})
    pushes = given.pop("wrenches", None)
    wrenches = None if pushes is None else unpack_wrenches(pushes, "inputs.wrenches")
    inputs = _arrays(
        msgspec.structs.replace(request, inputs=given),
        "simulate_rheonomic",
        ("q", "v", "tau", "prescribed", "gravity"),
        required=("q", "v", "prescribed"),
    )
    options = _options(request, "simulate_rheonomic", _RHEONOMIC_OPTIONS, required=("joints", "dt", "steps"))
    joints, steps, samples = options.pop("joints"), options["steps"], inputs["prescribed"]
    free, *_ = robot.configuration.chosen([name for name in robot.joint_names if name not in joints])
    if inputs["q"].shape[-1:] == (free.nq,):
        free.check_unit(inputs["q"], "q", "inputs.q")
    if not all(type(name) is str for name in joints) or len(set(joints)) < len(joints):
        raise InvalidArgumentError(f"joints must be a list of different names, found {joints!r}", path="options.joints")
    if steps > MAX_RHEONOMIC_STEPS:
        raise ResourceExhaustedError(
            f"steps must be at most {MAX_RHEONOMIC_STEPS} in one request, found {steps}: go on from the last state",
            path="options.steps",
        )
    if samples.ndim < 3 or samples.shape[-2:] != (len(joints), 3):
        raise InvalidArgumentError(
            f"prescribed has shape {samples.shape}, expected (.., rows, {len(joints)}, 3): position, velocity, "
            "acceleration of each joint in `joints`",
            path="inputs.prescribed",
        )
    motion = run(
        robot,
        {name: samples[..., k, :] for k, name in enumerate(joints)},
        inputs["q"],
        inputs["v"],
        inputs.get("tau"),
        gravity=inputs.get("gravity"),
        wrenches=wrenches,
        **options,
    )
    return {name: pack_output(array) for name, array in motion._asdict().items()}


def _arrays(request: Request, query: str, names: tuple[str, ...], required: tuple[str, ...]) -> dict[str, Any]:
    found = {}
    for name, value in (request.inputs or {}).items():
        if name not in names:
            message = f"{query} has no input '{name}'; its inputs are {', '.join(names)}{did_you_mean(name, names)}"
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
            known = f"its options are {', '.join(kinds)}" if kinds else "it has none"
            known += did_you_mean(name, kinds)
            message = f"{query} has no option '{name}'; {known}"
            raise InvalidArgumentError(message, path=f"options.{name}")
        if type(value) is int and kind is float:
            value = float(value)
        if type(value) is not kind:
            expected = {float: "a number", int: "an integer", str: "a text", list: "a list of names"}[kind]
            raise InvalidArgumentError(
                f"{name} must be {expected}, found {describe_value(value)}", path=f"options.{name}"
            )
        found[name] = value
    for name in required:
        if name not in found:
            raise InvalidArgumentError(f"{query} needs the option '{name}'", path=f"options.{name}")
    return found

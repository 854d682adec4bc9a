"""`dyn call`: a query to a server, from the command line to JSON."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from msgspec import UNSET

from dyn_service.api.arrays import numbers
from dyn_service.api.lists import names_queries, row_of
from dyn_service.api.queries import (
    COMPUTATIONS,
    QUERIES,
    Computation,
    GaitQueries,
    Option,
    Query,
    RobotQueries,
    Row,
    Spec,
)
from dyn_service.api.spec import BY_NAME
from dyn_service.cli.console import tell
from dyn_service.errors import InvalidArgumentError, UnimplementedError
from dyn_service.model.order import NAMES, Order
from dyn_service.service.client.flows import (
    Ask,
    pack_inputs,
    pack_options,
    read_description,
    read_joint_file,
    read_outputs,
    read_plain,
    read_residuals,
)
from dyn_service.service.client.retries import OnWait
from dyn_service.service.client.sync import Client, RemoteRobot
from dyn_service.service.protocol.inputs import unpack
from dyn_service.service.protocol.keys import KeySource
from dyn_service.service.protocol.messages import ADMINISTRATION, Administration
from dyn_service.support.suggestions import known_instead

_MAPS = frozenset({"wrenches", "payload", "contacts", "overlay"})
"""Kinds of inputs given as maps, which are read as the server reads them."""

_NAMES_MEAN = "all movable joints, in the order of the arrays"

_LEGEND = """\
name(input, optional?, option=default|other) -> outputs
--robot NAME selects the robot; names=A,B,.. is the order of its joints in the arrays of the request and the answer.
Queries above verify take verify=true, which adds the formulations' residuals.
"""


def read_values(text: str | None, words: Sequence[str]) -> dict[str, Any]:
    """Returns the inputs and options of a command line: a JSON object, overridden by `name=value` arguments.

    A value is JSON, or numbers separated by commas, or a text.

    Raises:
        InvalidArgumentError: The text is not a JSON object, or an argument does not look like `name=value`.
    """
    values: dict[str, Any] = {}
    if text is not None:
        try:
            values = _json(text)
        except ValueError as fault:
            raise InvalidArgumentError(f"--inputs must be a JSON object: {fault}", path="inputs") from None
        if not isinstance(values, dict):
            raise InvalidArgumentError(f"--inputs must be a JSON object, found {text}", path="inputs")
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise InvalidArgumentError(
                f"an input must look like name=value, found '{word}': dyn call QUERY --robot NAME INPUT=VALUE .."
            )
        values[name] = _read_value(name, value)
    return values


Values = Mapping[str, Any]
"""Inputs and options by name."""
QUERY_NAMES = (*QUERIES, *COMPUTATIONS, *ADMINISTRATION)
"""The names of all queries but lists."""


def _entry(query: str) -> Query | Computation | Administration:
    """Returns a query by its name; raises `UnimplementedError` if it does not exist."""
    if query not in QUERY_NAMES and not names_queries(query):
        hint = known_instead(query, QUERY_NAMES, "the queries are")
        raise UnimplementedError(f"there is no query '{query}'{hint}", path="query")
    entries: dict[str, Computation | Administration] = {**COMPUTATIONS, **ADMINISTRATION}
    return entries.get(query) or row_of(query)


def arguments_of(query: str) -> dict[str, Spec | Option | str]:
    """Returns the inputs and options of a query by name; none of an unknown query."""
    with suppress(UnimplementedError):
        entry = _entry(query)
        return {**(_inputs(entry) if isinstance(entry, Row) else entry.inputs), **entry.options}
    return {}


def ask(
    endpoint: str,
    query: str,
    robot: str | None,
    values: Values,
    timeout_s: float,
    compile_wait_s: float,
    on_wait: OnWait,
    keys: KeySource | None = None,
    server_key: str | None = None,
) -> dict[str, Any]:
    """Returns the answer to a query: its outputs by name, as plain values.

    robot: None is the server's only one. values: inputs and options. on_wait: called with a description of what the
    server compiles.

    Raises:
        DynError: The request failed, see `Client`.
    """
    entry = _entry(query)
    with Client(
        endpoint, timeout_s=timeout_s, compile_wait_s=compile_wait_s, on_wait=on_wait, keys=keys, server_key=server_key
    ) as client:
        if isinstance(entry, Administration):
            return _administer(client, entry, robot, values)
        return _answer(client, entry, robot, values)


def list_queries() -> str:
    """Returns all queries as text, with inputs, options and outputs."""
    lines = [_LEGEND]
    for query in QUERY_NAMES:
        lines += _described(query, full=query not in QUERIES)
    return "\n".join(lines)


def query_help(query: str) -> str:
    """Returns a query as text: what it computes, its inputs and options with their shapes and units, its outputs."""
    entry = _entry(query)
    method = getattr(RobotQueries, query, None) or getattr(GaitQueries, query, None)
    notes = (inspect.getdoc(method) or "").partition("Inputs:\n")[0].partition("Args:\n")[0].split("\n")[1:]
    labels = {name: label.text for name, label in entry.labels.items()} if isinstance(entry, Row) else {}
    outputs = {**labels, **{name: str(text) for name, text in entry.outputs.items()}}
    names = [_line(f"{NAMES}?", _NAMES_MEAN)] if NAMES in arguments_of(query) else []
    lines = [_line(name, text) for name, text in outputs.items()]
    return "\n".join([*_described(query, full=True), *names, "    outputs", *lines, *notes]).rstrip()


def _described(query: str, *, full: bool) -> list[str]:
    """Returns a query's signature and summary, and if `full` the meaning of its inputs and options, as lines."""
    entry, arguments = _entry(query), arguments_of(query)
    arguments.pop(NAMES, None)
    required = {*entry.required, *(name for name, x in arguments.items() if isinstance(x, Option) and x.required)}
    marked = {name: name if name in required else f"{name}?" for name in arguments}
    words = [_signature(x) if isinstance(x, Option) else marked[name] for name, x in arguments.items()]
    outputs = (*entry.labels, *entry.outputs) if isinstance(entry, Row) else (*entry.outputs,)
    meanings = {name: _meaning(x) or getattr(x, "allowed", "") for name, x in arguments.items() if full}
    return [
        f"{entry.name}({', '.join(words)}) -> {', '.join(outputs)}",
        f"    {entry.summary}",
        *(_line(marked[name], text) for name, text in meanings.items() if text),
    ]


def _line(name: str, text: str) -> str:
    return f"      {name:<16} {text}"


def _answer(client: Client, row: Query | Computation, robot: str | None, values: Values) -> dict[str, Any]:
    arguments, of_robot = dict(values), isinstance(row, Query) or row.robot
    verify = arguments.pop("verify", False) if isinstance(row, Query) else False
    if not isinstance(verify, bool):
        raise InvalidArgumentError(f"verify must be true or false, found {verify!r}", path="options.verify")
    if not of_robot:
        _refuse_robot(row.name, robot)
    required = (*row.required, *(option.name for option in row.options.values() if option.required))
    _check_names(row.name, arguments, _inputs(row), row.options, required)
    options = _options(row, arguments)
    if isinstance(row, Query):
        options = {**(pack_options(row, options) or {}), **({"verify": True} if verify else {})}
    remote = client.robot(robot or _only_robot(client)) if of_robot else None
    if remote is not None:
        _warn(remote, row, arguments)
    # the robot of this name may be replaced between the two requests
    model = remote.fingerprint if remote is not None and isinstance(row, Query) else UNSET
    request = Ask(row.name, remote.name if remote else UNSET, _packed(row, arguments), options or UNSET, model)
    head = client.ask(request)
    outputs = read_outputs(head, row, request, remote)
    names = row.result_names if isinstance(row, Query) else outputs
    answer = {name: _plain(outputs[name]) for name in names}
    if "substeps" in answer:
        from dyn_service.simulation.parts import steps_of  # slow to import

        answer["integrator"], answer["substeps"] = steps_of(outputs)
    if verify:
        answer["residuals"] = {name: _plain(value) for name, value in read_residuals(head).items()}
    return answer


def _warn(robot: RemoteRobot, row: Row, values: Values) -> None:
    """Warns of positions, velocities and efforts beyond the limits of their joints, of each joint at one state."""
    limits, joints = robot.limits, robot.configuration
    bounds = {
        "position": (limits.lower, limits.upper, joints.position_names),
        "velocity": (-limits.speeds, limits.speeds, joints.velocity_names),
        "effort": (0.0 - limits.efforts, limits.efforts, joints.velocity_names),
    }
    order = None if values.get(NAMES) is None else Order(joints, np.atleast_1d(values[NAMES]).tolist())
    for name, spec in row.inputs.items():
        array = numbers(values[name]) if spec.kind in bounds and values.get(name) is not None else None
        if array is None:
            continue
        lower, upper, names = bounds[spec.kind]
        array = np.atleast_1d(array) if order is None else order.inward(spec, np.atleast_1d(array))
        if array.shape[-1:] != lower.shape:
            continue  # the server reports it
        violations = (array < lower) | (array > upper)
        for k in np.flatnonzero(violations.reshape(-1, len(lower)).any(axis=0)):
            state = np.argwhere(violations[..., k])[0].tolist()
            place = f" at state {state}" if state else ""
            tell(
                f"warning: {name} of joint '{names[k]}'{place} is {array[(*state, k)]:g}, beyond its limits "
                f"{lower[k]:g} to {upper[k]:g} ({spec.unit})"
            )


def _options(row: Row, values: Values) -> dict[str, Any]:
    """Returns the options among these values; one name counts as a list."""
    options = {name: value for name, value in values.items() if name in row.options}
    return {n: [x] if row.options[n].type == "names" and isinstance(x, str) else x for n, x in options.items()}


def _packed(row: Row, values: Values) -> dict[str, Any]:
    """Returns the inputs among these values, for a message."""
    inputs = {name: value for name, value in values.items() if name in row.inputs and value is not None}
    for name, value in inputs.items():
        spec = row.inputs[name]
        if spec.kind in _MAPS:
            inputs[name] = unpack(spec.kind, value, f"inputs.{name}")
        elif spec.kind == "directions" and isinstance(value, str):
            inputs[name] = [value]
        elif isinstance(value, list) and spec.kind not in BY_NAME:
            inputs[name] = [_number(entry) if isinstance(entry, str) else entry for entry in value]
        elif isinstance(value, int | float) and spec.shape and not spec.scalar:
            inputs[name] = [value]  # of a robot with one joint
    names = values.get(NAMES)
    joint_order = {} if names is None else {NAMES: [names] if isinstance(names, str) else names}
    return {**pack_inputs(inputs, row), **joint_order}


def _inputs(row: Row) -> dict[str, Spec | str]:
    """Returns the inputs and options of a row, and `names` if its arrays have an order of joints."""
    return {**row.inputs, **({NAMES: _NAMES_MEAN} if row.has_joint_order else {})}


def _administer(client: Client, entry: Administration, robot: str | None, values: Values) -> dict[str, Any]:
    if not entry.names_robot:
        _refuse_robot(entry.name, robot)
    _check_names(entry.name, values, entry.inputs, entry.options, entry.required)
    readers = {"urdf": read_description, "joints": read_joint_file}
    inputs = {
        name: readers[name](str(values[name])) if name in readers else values[name]
        for name in entry.inputs
        if values.get(name) is not None
    }
    options = {name: values[name] for name in entry.options if values.get(name) is not None}
    robot_name = robot or _only_robot(client) if entry.names_robot else UNSET
    head = client.ask(Ask(entry.name, robot_name, inputs or UNSET, options or UNSET))
    return {name: _plain(value) for name, value in read_plain(head).items()}


def _refuse_robot(query: str, robot: str | None) -> None:
    if robot is not None:
        raise InvalidArgumentError(f"{query} takes no robot: leave out --robot '{robot}'", path="robot")


def _check_names(query: str, values: Values, inputs: Values, options: Values, required: Sequence[str]) -> None:
    for name in values:
        if name not in inputs and name not in options:
            hint = known_instead(name, (*inputs, *options), "it takes")
            raise InvalidArgumentError(f"{query} has no input or option '{name}'{hint}", path=name)
    for name in required:
        if values.get(name) is None:
            kind = "input" if name in inputs else "option"
            means = _meaning((inputs if name in inputs else options)[name])
            means = f": {means}" if means else ""
            raise InvalidArgumentError(f"{query} needs the {kind} '{name}'{means}", path=f"{kind}s.{name}")


def _only_robot(client: Client) -> str:
    robots = client.list_robots()
    if len(robots) != 1:
        raise InvalidArgumentError(f"name a robot with --robot; the robots are {', '.join(robots) or 'none'}")
    return robots[0]


def _read_value(name: str, text: str) -> Any:
    try:
        return _json(text)
    except ValueError as fault:
        if text[:1] in ("[", "{"):
            raise InvalidArgumentError(f"{name} begins like JSON but is invalid: {fault}", path=name) from None
    try:
        return [float(part) for part in text.split(",")] if "," in text else float(text)
    except ValueError:
        return text.split(",") if "," in text else text


def _number(text: str) -> float | str:
    """Returns a number, or a text that is not one, for the error about the entry."""
    with suppress(ValueError):
        return float(text)
    return text


def _json(text: str) -> Any:
    """Returns the value of a JSON text; numbers may begin with a point: [.5, -.5]."""
    return json.loads(re.sub(r'("(?:\\.|[^"\\])*")|(?<![\w.])\.(?=\d)', lambda match: match[1] or "0.", text))


def _meaning(entry: Spec | Option | str) -> str:
    if isinstance(entry, Spec) and entry.kind in ("payload", "overlay"):
        return f"map, {entry.text}"
    if isinstance(entry, Spec) and entry.kind in ("wrenches", "contacts"):
        return f"map or list of maps, {entry.text}"
    if isinstance(entry, Spec) and entry.kind in BY_NAME:
        return entry.text
    if isinstance(entry, Spec):
        core = ", ".join(map(str, entry.shape))
        return f"array (.., {core}), {entry.unit}, {entry.text}"
    return entry.text if isinstance(entry, Option) else entry


def _signature(option: Option) -> str:
    if option.choices:
        return f"{option.name}={'|'.join(option.choices)}"
    return option.name if option.required else f"{option.name}?"


def _plain(value: Any) -> Any:
    """Returns a value of a reply for JSON, with arrays as nested lists."""
    if isinstance(value, dict) and value.keys() == {"dtype", "shape", "data"}:
        return np.frombuffer(value["data"], dtype=value["dtype"]).reshape(value["shape"]).tolist()
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value

"""`dyn call`: one question to a server, from words on a command line to JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dyn_service.client.core import read_description
from dyn_service.client.sync import Client
from dyn_service.errors import InvalidArgumentError, UnimplementedError
from dyn_service.protocol.administration import ADMINISTRATION
from dyn_service.queries import QUERIES, Query, Wrench
from dyn_service.suggestions import did_you_mean


def read_values(text: str | None, words: Sequence[str]) -> dict[str, Any]:
    """The inputs and options that a command line gives: a JSON object, then `name=value` words over it.

    A value is JSON, or numbers divided by commas, or else a text.

    Raises:
        InvalidArgumentError: The text is no JSON object, or a word is no `name=value`.
    """
    values: dict[str, Any] = {}
    if text is not None:
        try:
            values = json.loads(text)
        except ValueError as fault:
            raise InvalidArgumentError(f"--inputs must be a JSON object: {fault}", path="inputs") from None
        if not isinstance(values, dict):
            raise InvalidArgumentError(f"--inputs must be a JSON object, found {text}", path="inputs")
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise InvalidArgumentError(f"an input must look like name=value, found '{word}'")
        values[name] = _read_value(value)
    return values


def ask(endpoint: str, query: str, robot: str | None, values: Mapping[str, Any], timeout_s: float) -> Any:
    """The answer to a query, in plain values.

    Args:
        endpoint: Where the server listens.
        query: A query of the table, or about the server.
        robot: The robot's name; None is the server's only one.
        values: Inputs and options.
        timeout_s: The time limit.

    Raises:
        DynError: What the client raises.
    """
    if query not in QUERIES and query not in ADMINISTRATION:
        known = ", ".join((*QUERIES, *ADMINISTRATION))
        near = did_you_mean(query, (*QUERIES, *ADMINISTRATION))
        raise UnimplementedError(f"there is no query '{query}'; the queries are {known}{near}", path="query")
    with Client(endpoint, timeout_s=timeout_s) as client:
        if query in ADMINISTRATION:
            return _administer(client, query, robot, values)
        row = QUERIES[query]
        unknown = [name for name in values if name not in row.inputs and name not in row.options]
        if unknown:
            known = ", ".join((*row.inputs, *row.options))
            near = did_you_mean(unknown[0], (*row.inputs, *row.options))
            raise InvalidArgumentError(f"{query} has no '{unknown[0]}'; it takes {known}{near}", path=unknown[0])
        missing = [name for name in row.inputs if name not in row.optional and name not in values]
        if missing:
            raise InvalidArgumentError(f"{query} needs the input '{missing[0]}'", path=f"inputs.{missing[0]}")
        given = {**values}
        if given.get("wrenches") is not None:
            given["wrenches"] = _read_wrenches(given["wrenches"])
        answer = getattr(client.robot(robot or _only_robot(client)), query)(**given)
        return _plain(row, answer)


def list_queries() -> str:
    """The table as text."""
    lines = []
    for row in QUERIES.values():
        inputs = [f"{name}{'?' if name in row.optional else ''}" for name in row.inputs]
        options = [f"{o.name}={'|'.join(o.choices)}" if o.choices else f"{o.name}=.." for o in row.options.values()]
        outputs = ", ".join((*row.labels, *row.outputs))
        lines += [f"{row.name}({', '.join(inputs + options)}) -> {outputs}", f"    {row.summary}"]
    for entry in ADMINISTRATION.values():
        takes = ", ".join(entry.inputs)
        lines += [f"{entry.name}({takes}) -> {', '.join(entry.outputs)}", f"    {entry.summary}"]
    return "\n".join(lines)


def _administer(client: Client, query: str, robot: str | None, values: Mapping[str, Any]) -> Any:
    if query == "load_robot":
        if set(values) != {"urdf"}:
            raise InvalidArgumentError("load_robot needs urdf=FILE, and nothing else", path="inputs.urdf")
        return client.load_robot(read_description(str(values["urdf"]))).describe()
    if values:
        raise InvalidArgumentError(f"{query} has no '{next(iter(values))}'; it takes nothing")
    if query == "describe_robot":
        return client.robot(robot or _only_robot(client)).describe()
    if query == "unload_robot":
        client.unload_robot(robot or _only_robot(client))
        return {}
    return getattr(client, query)()


def _only_robot(client: Client) -> str:
    robots = client.list_robots()
    if len(robots) != 1:
        raise InvalidArgumentError(f"name a robot with --robot; the robots are {', '.join(robots) or 'none'}")
    return robots[0]


def _read_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return [float(part) for part in text.split(",")] if "," in text else text
    except ValueError:
        return text.split(",")


def _read_wrenches(value: Any) -> list[Wrench]:
    entries = value if isinstance(value, list) else [value]
    try:
        return [Wrench(**entry) for entry in entries]
    except TypeError:
        example = '{"link": "tool0", "force": [0, 0, 1]}'
        raise InvalidArgumentError(f"wrenches must be maps such as {example}", path="inputs.wrenches") from None


def _plain(row: Query, answer: Any) -> dict[str, Any]:
    if row.result_type is None:
        (name,) = row.outputs
        return {name: np.asarray(answer).tolist()}
    outputs = {name: getattr(answer, name) for name in (*row.labels, *row.outputs)}
    return {name: list(value) if name in row.labels else np.asarray(value).tolist() for name, value in outputs.items()}

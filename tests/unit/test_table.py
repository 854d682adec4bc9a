"""The table is what its methods say: each asks its own row, with its own arguments, here and awaited."""

from __future__ import annotations

import ast
import asyncio
import inspect
from typing import Any

import pytest

from dyn_service.api.queries import COMPUTATIONS, QUERIES, Computation, GaitQueries, Query, RobotQueries
from dyn_service.client.async_queries import AsyncGaitQueries, AsyncRobotQueries
from tools import awaited


class Recorded:
    """What a method asked."""

    def __init__(self, row: str, arguments: dict[str, Any]) -> None:
        self.row, self.arguments = row, arguments


def recording(base: type) -> Any:
    """A robot of that kind which hands back what it is asked."""

    def ask(self: Any, row: str, given: tuple[Any, ...], others: tuple[Any, ...] = ()) -> Recorded:
        inputs, options = QUERIES[row].arguments(given, others)
        return Recorded(row, inputs | options)

    def compute(self: Any, row: str, **arguments: Any) -> Recorded:
        return Recorded(row, arguments)

    async def ask_awaited(self: Any, row: str, given: tuple[Any, ...], others: tuple[Any, ...] = ()) -> Recorded:
        return ask(self, row, given, others)

    async def compute_awaited(self: Any, row: str, **arguments: Any) -> Recorded:
        return compute(self, row, **arguments)

    plain = base in (RobotQueries, GaitQueries)
    asking = (ask, compute) if plain else (ask_awaited, compute_awaited)
    found: Any = type("Recording", (base,), dict(zip(("_ask", "_compute"), asking, strict=True)))
    found.__abstractmethods__ = frozenset()
    return found.__new__(found)


ROWS = [*QUERIES.values(), *COMPUTATIONS.values()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("is_async", [False, True], ids=["here", "awaited"])
def test_each_method_asks_its_own_row(row: Query | Computation, is_async: bool) -> None:
    of_robot = hasattr(RobotQueries, row.name)
    here, there = (RobotQueries, AsyncRobotQueries) if of_robot else (GaitQueries, AsyncGaitQueries)
    method = getattr(recording(there if is_async else here), row.name)
    values = {name: object() for name in inspect.signature(method).parameters}
    asked = asyncio.run(method(**values)) if is_async else method(**values)
    assert asked.row == row.name
    assert asked.arguments == values
    # What is left out gets the default of the table.
    required = {n: values[n] for n, p in inspect.signature(method).parameters.items() if p.default is p.empty}
    asked = asyncio.run(method(**required)) if is_async else method(**required)
    if isinstance(row, Query):
        assert tuple(asked.arguments.get(n) for n in row.parameters if n not in required) == row.defaults


def test_awaited_methods_are_written_from_the_table() -> None:
    written = ast.dump(ast.parse(awaited.PATH.read_text(encoding="utf-8")))
    assert ast.dump(ast.parse(awaited.render())) == written, "python -m tools.awaited brings it up to date"


@pytest.mark.parametrize("row", COMPUTATIONS.values(), ids=lambda row: row.name)
def test_computations_name_functions_that_take_their_arguments(row: Computation) -> None:
    taken = inspect.signature(row.function("run")).parameters
    settled = {*row.of_kind("payload"), *row.of_kind("overlay")}  # with these it is settled before who answers
    assert set(row.parameters) - settled - {row.leaves_out} <= set(taken)
    if row.parts is not None:
        parts = inspect.signature(row.function("parts")).parameters
        keywords = any(p.kind is p.VAR_KEYWORD for p in parts.values())
        assert keywords or set(row.parameters) <= set(parts)
        assert callable(row.function("part"))

"""Each method sends its own row's query with its own arguments, blocking and awaited; `help` and `repr` show units."""

from __future__ import annotations

import ast
import asyncio
import inspect
import pydoc
import re
import textwrap
import typing
from typing import Any

import numpy as np
import pytest

from docs.pages import ROOT
from dyn_service.api.queries import COMPUTATIONS, QUERIES, Computation, GaitQueries, Query, RobotQueries, TheoryQueries
from dyn_service.api.results import ConstraintForces, Energy, SegmentLoads, Trajectory
from dyn_service.dynamics import table_function
from dyn_service.engine.computations import functions_of
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError
from dyn_service.service.client.async_queries import AsyncGaitQueries, AsyncRobotQueries
from dyn_service.simulation.parts import DIVISIONS
from tests.tables import assert_complete


class Recorded:
    """The row and arguments that a method asked for."""

    def __init__(self, row: str, arguments: dict[str, Any]) -> None:
        self.row, self.arguments = row, arguments


def recording(base: type) -> Any:
    """Returns a robot whose methods return the query that they would send."""

    def ask(
        self: Any,
        query: str,
        required: tuple[Any, ...],
        optional: tuple[Any, ...],
        out: Any = None,
        workers: Any = None,
    ) -> Recorded:
        inputs, options = QUERIES[query].arguments(required, optional)
        further = {name: x for name, x in (("out", out), ("workers", workers)) if x is not None}
        return Recorded(query, inputs | options | further)

    def compute(self: Any, row: str, **arguments: Any) -> Recorded:
        return Recorded(row, arguments)

    async def ask_awaited(self: Any, *arguments: Any) -> Recorded:
        return ask(self, *arguments)

    async def compute_awaited(self: Any, row: str, **arguments: Any) -> Recorded:
        return compute(self, row, **arguments)

    is_blocking = base in (RobotQueries, GaitQueries)
    functions = (ask, compute) if is_blocking else (ask_awaited, compute_awaited)
    kind: Any = type("Recording", (base,), dict(zip(("_ask", "_compute"), functions, strict=True)))
    kind.__abstractmethods__ = frozenset()
    return kind.__new__(kind)


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
    # Omitted arguments get the table's defaults.
    required = {n: values[n] for n, p in inspect.signature(method).parameters.items() if p.default is p.empty}
    asked = asyncio.run(method(**required)) if is_async else method(**required)
    if isinstance(row, Query):
        sent = [name for name, on_wire in row.parameters.items() if on_wire and name not in required]
        assert tuple(asked.arguments.get(n) for n in sent) == row.argument_defaults


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_method_is_source_that_a_debugger_shows(row: Query | Computation) -> None:
    """The body is the text below the method's name: one call with the arguments in the order of the table."""
    method = getattr(RobotQueries if hasattr(RobotQueries, row.name) else GaitQueries, row.name)
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(method))).body
    assert isinstance(function, ast.FunctionDef)
    if isinstance(row, Query):
        required, optional = (
            f"({', '.join(names)}{',' * (len(names) == 1)})" for names in (row.required, row.optional_arguments)
        )
        local = [name for name in ("out", "workers") if name in row.parameters]
        expected = f"self._ask({', '.join([repr(row.name), required, optional, *local])})"
    else:
        expected = f"self._compute({row.name!r}, {', '.join(f'{name}={name}' for name in row.parameters)})"
    body = ast.unparse(function.body[-1])
    assert body == f"return {expected}", f"the body of {row.name} in api/queries.py must be `return {expected}`"
    last = max(line for *_, line in method.__code__.co_lines() if line) - method.__code__.co_firstlineno + 1
    assert function.body[-1].lineno <= last <= (function.end_lineno or 0)


@pytest.mark.parametrize("row", QUERIES.values(), ids=lambda row: row.name)
def test_queries_name_functions_that_take_a_tree_and_their_inputs(row: Query) -> None:
    inputs = {name for name, spec in row.inputs.items() if spec.kind != "overlay"}  # its numbers are in the tree
    for function in row.kernels.values():
        tree, *taken = inspect.signature(table_function(function)).parameters
        assert tree == "tree"
        assert set(taken) == (inputs if row.inputs else {*row.options} - {row.rows_option})


@pytest.mark.parametrize("row", COMPUTATIONS.values(), ids=lambda row: row.name)
def test_computations_name_functions_that_take_their_arguments(row: Computation) -> None:
    run, cost, part = functions_of(row)
    assert callable(cost)
    taken = dict(inspect.signature(run).parameters)
    if "arguments" in taken:  # passed to the function that checks them, and to the struct that it makes
        checked = inspect.getmodule(run).checked  # type: ignore[union-attr]
        taken |= inspect.signature(checked).parameters
        taken |= inspect.signature(typing.get_type_hints(checked)["return"]).parameters
    if "recording" in taken:  # passed to the class that checks them
        taken |= inspect.signature(inspect.getmodule(run).Segments).parameters  # type: ignore[union-attr]
    settled = {
        *row.of_kind("payload"),
        *row.of_kind("overlay"),
    }  # these are applied to the robot before the computation
    assert set(row.parameters) - settled - {row.passive_option} <= set(taken)
    assert row.divided == (part is not None) == (row.name in DIVISIONS)
    if row.divided:
        parameters = inspect.signature(DIVISIONS[row.name]).parameters
        keywords = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        assert keywords or set(row.parameters) <= set(parameters)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_help_shows_shapes_and_units(row: Query | Computation) -> None:
    """For each input and output, under the method's name for it: local, remote and awaited."""
    of_robot = hasattr(RobotQueries, row.name)
    for kind in (RobotQueries, AsyncRobotQueries) if of_robot else (GaitQueries, AsyncGaitQueries):
        text = inspect.getdoc(getattr(kind, row.name)) or ""
        taken, _, given = text.partition("\nOutputs:\n")
        declared = [(taken, name, row.inputs[key]) for name, key in row.parameters.items() if key in row.inputs]
        declared += [(given, name, spec) for name, spec in row.outputs.items()]
        for part, name, spec in declared:
            lines = part.partition("\nInputs:\n")[2] if part is taken else part
            (line,) = [line for line in lines.splitlines() if line.startswith(f"    {name}: ")]
            assert spec.unit in line
            assert spec.text in line
            named = spec.kind in ("wrenches", "payload", "contacts", "overlay", "link", "directions")
            assert named or f"({', '.join(map(str, ('...', *spec.shape)))})" in line
        assert all(f"    {name}: {label.text}" in given.splitlines() for name, label in row.labels.items())


def test_repr_of_a_result_gives_shapes_units_and_first_entries() -> None:
    """The text has a bounded size; outputs that are None are omitted."""
    wrench = np.arange(48_000.0).reshape(1000, 8, 6)
    names = tuple(f"j{k}" for k in range(8))
    assert repr(ConstraintForces(names, wrench, wrench[..., 0], wrench)).splitlines() == [
        "ConstraintForces(",
        "    joints: 8 names, ('j0', 'j1', 'j2', 'j3', 'j4', 'j5', ...)",
        "    wrench: (1000, 8, 6) N m, N: 0, 1, 2, 3, ...",
        "    actuation: (1000, 8) N m | N: 0, 6, 12, 18, ...",
        "    constraint: (1000, 8, 6) N m, N: 0, 1, 2, 3, ...)",
    ]
    trajectory = Trajectory(
        np.array([0.0, 0.5]), np.full((2, 1), np.pi), np.zeros((2, 0)), integrator="rk4", substeps=3
    )
    assert repr(trajectory) == (
        "Trajectory(\n    t: (2,) s: 0, 0.5\n    q: (2, 1) rad | m: 3.142, 3.142\n    v: (2, 0) rad/s | m/s: \n"
        "    integrator: rk4\n    substeps: 3)"
    )
    forces = np.zeros((3, 2, 3))  # a named tuple unpacks as before
    assert repr(SegmentLoads(forces, forces)).startswith("SegmentLoads(\n    force: (3, 2, 3) N: 0, 0, 0, 0, ...")
    assert "total: 2 J" in repr(Energy(*map(np.float64, (1.0, 1.0, 2.0, 0.0))))


def test_queries_of_theory_have_sections_of_their_own() -> None:
    """In the reference and in `help(Robot)`: those whose rows say so, and no other ones."""
    theory = {row.name for row in ROWS if row.theory}
    assert {"influence_operators", "branch_inertias", "segment_matrices"} <= theory
    assert not {"inverse_dynamics", "mass_matrix", "simulate"} & theory
    page = (ROOT / "docs" / "queries.md").read_text(encoding="utf-8")
    sections = {
        part.partition("\n")[0]: set(re.findall(r"^### `(\w+)`$", part, re.MULTILINE)) for part in page.split("\n## ")
    }
    robot_queries = {row.name for row in QUERIES.values() if not row.theory}
    command = "run `python -m tools.protocol_reference docs/queries.md`"
    assert_complete(sections["Queries of theory"], theory, "docs/queries.md, queries of theory,", command)
    assert_complete(sections["Queries on a robot"], robot_queries, "docs/queries.md, queries on a robot,", command)
    help_sections: dict[str, set[str]] = {}
    for part in pydoc.plain(pydoc.render_doc(Robot)).split("Methods inherited from ")[1:]:
        names = re.findall(r"^ \|  (\w+)\(", part, re.MULTILINE)
        help_sections[part.partition(":")[0].rpartition(".")[2]] = set(names)
    of_robot = {row.name for row in ROWS if hasattr(RobotQueries, row.name)}
    assert help_sections["TheoryQueries"] == theory & of_robot
    assert help_sections["RobotQueries"] & of_robot == of_robot - theory - set(vars(Robot))
    assert vars(TheoryQueries).keys() >= theory & of_robot


@pytest.mark.parametrize("name", [n for n, row in {**QUERIES, **COMPUTATIONS}.items() if row.result_type is not None])
def test_results_of_two_or_three_arrays_unpack(name: str) -> None:
    """To the arrays in the order of the fields; the others say what they have instead."""
    row = {**QUERIES, **COMPUTATIONS}[name]
    arrays = {output: np.full(2, float(k)) for k, output in enumerate(row.outputs)}
    result = row.result({**dict.fromkeys(row.labels, ("a", "b")), **arrays})
    if len(arrays) in (2, 3) or isinstance(result, tuple):
        assert all(x is y for x, y in zip(result, arrays.values(), strict=True))
    else:
        with pytest.raises(InvalidArgumentError, match=f"does not unpack: its attributes are .*{next(iter(arrays))}"):
            _, _ = result

"""One nasty robot through every query: the form its certificate chose, and how wrong that is beside the tree as given.

`of_graphs` interprets the kernels' graphs, which is quick; `of_kernels` takes the machine code of a `Robot`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dyn_service.kernels.certify import certified, rounded_at_random
from dyn_service.queries import QUERIES
from dyn_service.robot import Robot
from tests.nasty.measure import Expected, states
from tests.nasty.reference import ExactRobot
from tests.oracle.interpreting import interpreted

QUICK = tuple(row.name for row in QUERIES.values() if hasattr(Expected, row.name) and not row.links)
"""The queries whose kernels are made in frames of our choice."""

LINKS = tuple(row.name for row in QUERIES.values() if hasattr(Expected, row.name) and row.links)
"""The queries on the tree as given, whose kernels can only be compiled wrongly."""


class Finding(NamedTuple):
    """error: of the kernel that is used. given: the largest of the same sweep on the tree as given, rounded in sixteen
    ways: one way may be lucky. refused: the certificate's figure for a form that was not used, or None.
    """

    query: str
    method: str
    error: float
    given: float
    refused: float | None

    @property
    def ratio(self) -> float:
        """How much worse than as given, where that is worse than some roundings."""
        return self.error / max(self.given, 1e-15)


def of_graphs(xml: str, seed: int, queries: Iterable[str] = QUICK) -> list[Finding]:
    """Findings of the queries in every method."""
    robot, exact = Robot.from_urdf(xml), ExactRobot(xml)
    given = states(exact, seed)
    expected = [Expected(exact, state) for state in given]
    found = []
    for query in queries:
        row = QUERIES[query]
        for method in row.kernels:
            signature = robot.signature(row, method)
            kernel, certificate, as_given = certified(robot.tree, signature, interpreted)
            inputs = [np.array([state[operand.name] for state in given]) for operand in signature.inputs]
            names = [operand.name for operand in signature.outputs]
            answers = kernel(*inputs)
            answers = answers if isinstance(answers, tuple) else (answers,)
            runs = rounded_at_random(as_given.function, inputs)
            error = _worst(expected, query, method, names, answers)
            ways = [_worst(expected, query, method, names, [r[..., k] for r in runs]) for k in range(runs[0].shape[-1])]
            found.append(Finding(query, method, error, max(ways), certificate.refused))
    return found


def of_kernels(xml: str, seed: int, queries: Iterable[str]) -> dict[tuple[str, str], float]:
    """Errors of the machine code, by query and method, without external wrenches."""
    robot, exact = Robot.from_urdf(xml), ExactRobot(xml)
    found: dict[tuple[str, str], float] = {}
    for state in states(exact, seed):
        expected = Expected(exact, state)
        for query in queries:
            row = QUERIES[query]
            inputs = {name: state[name] for name in row.inputs if name != "wrenches"}
            for method in row.kernels:
                answers = robot.evaluate(query, inputs, {row.selector: method} if row.selector else {})
                error = expected.error(query, method, answers)
                found[query, method] = max(error, found.get((query, method), 0.0))
    return found


def _worst(
    expected: Sequence[Expected], query: str, method: str, names: Sequence[str], answers: Sequence[Any]
) -> float:
    """answers: per output (states, ...)."""
    return max(
        at.error(query, method, {name: array[k] for name, array in zip(names, answers, strict=True)})
        for k, at in enumerate(expected)
    )

"""One nasty robot through every query: the form its certificate chose, and its error compared with the tree as given.

`of_graphs` interprets the kernels' graphs, which is quick; `of_kernels` takes the machine code of a `Robot`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dyn_service.api.named import one_hot
from dyn_service.api.queries import QUERIES
from dyn_service.api.spec import BY_NAME, Variant
from dyn_service.engine.robot import Robot
from dyn_service.engine.wrenches import link_wrenches, on_bodies, on_links
from dyn_service.kernels.certify import certified, rounded_at_random
from dyn_service.kernels.frames import kernel_tree, kernel_trees, welded
from dyn_service.kernels.graph import trace
from dyn_service.kernels.signature import Operand
from qa.nasty.measure import Expected, states
from qa.nasty.reference import Array, ExactRobot
from tests.terms.interpreting import interpreted

QUICK = tuple(row.name for row in QUERIES.values() if hasattr(Expected, row.name) and row.bodies == "chosen")
"""The queries whose kernels are made in frames of our choice."""

LINKS = tuple(row.name for row in QUERIES.values() if hasattr(Expected, row.name) and row.bodies != "chosen")
"""The queries on the tree as given, whose kernels can only be compiled wrongly."""

Asked = tuple[str, bool]
"""A query, and whether external wrenches act: with them it has kernels of its own."""


def _with_wrenches(queries: Sequence[str]) -> tuple[Asked, ...]:
    """The queries without wrenches, then those that take some with them."""
    return (*((q, False) for q in queries), *((q, True) for q in queries if "wrenches" in QUERIES[q].inputs))


IN_FRAMES = _with_wrenches(QUICK)
"""All that is asked in frames of our choice."""

ON_LINKS = _with_wrenches(LINKS)
"""All that is asked of the tree as given."""

NOT_MEASURED = (
    "constraint_bases",  # no kernel: numbers of the file alone, orthonormal to rounding (tests of the constraints)
    "dynamic_parameters",  # no kernel: numbers of the file alone (tests of the regressors)
    "neutral",  # no kernel: zeros and ones
    "random_configuration",  # no kernel: random numbers
    "topology",  # no kernel: names and whole numbers
)
"""The rows of the table without a reference: their answers depend on no state and are not compiled."""


class Finding(NamedTuple):
    """error: of the kernel that is used. error_as_given: the largest of the same sweep on the tree as given, rounded in
    sixteen ways: one way may be lucky. refused_figure: the certificate's figure for a form that was not used, or None.
    acted: with external wrenches.
    """

    query: str
    method: str
    error: float
    error_as_given: float
    refused_figure: float | None
    acted: bool = False

    @property
    def ratio(self) -> float:
        """The error relative to that of the tree as given, or to 1e-15 if the latter is smaller.

        1 if neither has a finite answer in some state, as where Newton's method does not find a step in doubles.
        """
        return 1.0 if self.error == self.error_as_given == np.inf else self.error / max(self.error_as_given, 1e-15)


class Case(NamedTuple):
    """A robot at several states, with the true answers."""

    robot: Robot
    exact: ExactRobot
    states: list[dict[str, Any]]
    expected: list[Expected]
    acted: list[Expected]


@lru_cache(maxsize=1)
def case(xml: str, seed: int) -> Case:
    """The last one is kept with what was computed for it."""
    exact = ExactRobot(xml)
    drawn_states = states(exact, seed)
    expected, acted = ([Expected(exact, state, acted=acted) for state in drawn_states] for acted in (False, True))
    return Case(Robot.from_urdf(xml), exact, drawn_states, expected, acted)


def of_graphs(xml: str, seed: int, queries: Iterable[Asked] = IN_FRAMES) -> list[Finding]:
    """Findings of the queries in every method."""
    return [finding for query, wrenches in queries for finding in _of_graphs(case(xml, seed), query, wrenches)]


def _of_graphs(graph_case: Case, query: str, wrenches: bool) -> Iterator[Finding]:
    row = QUERIES[query]
    expected = graph_case.acted if wrenches else graph_case.expected
    for method in row.kernels:
        signature = graph_case.robot.signature(row, method, Variant(wrenches))
        if row.bodies != "chosen":  # one form, and its graph is the function as given
            as_given = trace(kernel_tree(graph_case.robot.tree, row.bodies), signature)
            kernel, refused_figure = interpreted(as_given), None
        else:
            as_given = trace(kernel_trees(graph_case.robot.tree, signature, welded(graph_case.robot.tree)), signature)
            kernel, certificate = certified(graph_case.robot.tree, signature, interpreted)
            refused_figure = certificate.refused
        inputs = [
            _pushed(graph_case, row.links)
            if operand.name == "wrenches"
            else np.array([_as_taken(graph_case.robot, operand, state[operand.name]) for state in graph_case.states])
            for operand in signature.inputs
        ]
        names = [operand.name for operand in signature.outputs]
        answers = kernel(*inputs)
        answers = answers if isinstance(answers, tuple) else (answers,)
        runs = rounded_at_random(as_given.program, inputs)
        error = _worst(expected, query, method, names, answers)
        # Sixteen, because one rounding may be lucky, and the kernel would be held to that luck.
        ways = [_worst(expected, query, method, names, [r[..., k] for r in runs]) for k in range(runs[0].shape[-1])]
        yield Finding(query, method, error, max(ways), refused_figure, wrenches)


def _as_taken(robot: Robot, operand: Operand, value: Any) -> Any:
    """What a kernel takes for what is given by name."""
    return one_hot(operand.kind, value, robot.link_names, "", "") if operand.kind in BY_NAME else value


def _pushed(case: Case, links: bool) -> Array:
    """The states' wrenches as kernels take them, (states, links or bodies, 6)."""
    robot = case.robot
    pushed = []
    for state in case.states:
        rotation = robot.link_poses(state["q"]).rotation
        external = link_wrenches(state["wrenches"], lambda name, _: robot.link_names.index(name), lambda R=rotation: R)
        pushed.append(on_links(external, robot.tree) if links else on_bodies(external, robot.bodies))
    return np.array(pushed)


def of_kernels(xml: str, seed: int, queries: Iterable[Asked]) -> dict[tuple[str, str, bool], float]:
    """Errors of the machine code by query, method and whether external wrenches act, asked for as users ask.

    Every kernel has a certificate, and it holds.
    """
    kernel_case = case(xml, seed)
    errors: dict[tuple[str, str, bool], float] = {}
    for query, wrenches in queries:
        row = QUERIES[query]
        for state, expected in zip(
            kernel_case.states, kernel_case.acted if wrenches else kernel_case.expected, strict=True
        ):
            inputs = {name: state[name] for name in row.inputs if name in state and (wrenches or name != "wrenches")}
            for method in row.kernels:
                answers = kernel_case.robot.evaluate(
                    query, inputs, {row.kernel_option: method} if row.kernel_option else {}
                )
                error = expected.error(query, method, answers)
                errors[query, method, wrenches] = max(error, errors.get((query, method, wrenches), 0.0))
        for method in row.kernels:
            certificate = kernel_case.robot.certificates[
                kernel_case.robot.signature(row, method, Variant(wrenches)).name
            ]
            assert certificate.holds, (seed, certificate)
    return errors


def _worst(
    expected: Sequence[Expected], query: str, method: str, names: Sequence[str], answers: Sequence[Any]
) -> float:
    """answers: per output (states, ...)."""
    return max(
        state_answers.error(query, method, {name: array[k] for name, array in zip(names, answers, strict=True)})
        for k, state_answers in enumerate(expected)
    )

"""The survey of certificates: its judge tells a wrong kernel from a right one, and its file can be resumed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from dyn_service.api.queries import QUERIES
from dyn_service.api.spec import Variant
from dyn_service.engine.robot import Robot
from dyn_service.kernels import certify, frames
from dyn_service.kernels.graph import trace
from tests.conftest import ROBOTS, URDF
from tests.oracle.certificates import KERNELS, SHIPPED, Case, _against_fifty_digits, cases, read, record_of, tables
from tests.oracle.example_robots import SUPPORTED
from tests.oracle.fifty_digits import exactly
from tests.terms.interpreting import interpreted


def test_every_part_of_every_robot_is_in_the_survey() -> None:
    """Rotation leaves nothing out, and one round meets every robot with parts of its own."""
    surveyed = list(cases(SHIPPED))
    assert len(set(surveyed)) == len(surveyed) == len(ROBOTS) * 2 * len(KERNELS)
    first = surveyed[: 2 * len(ROBOTS)]
    assert len({case[:3] for case in first}) == len({case.part for case in first}) == len(first)
    assert len({case[:3] for case in cases("example-robot-data")}) == 2 * len(SUPPORTED)
    assert {part.row for part in KERNELS} == {name for name, row in QUERIES.items() if not row.constant}


def test_the_judge_finds_who_is_wrong() -> None:
    """By fifty digits: a kernel with one wrong entry is further off than the bound; the same graph is not."""
    robot = Robot.from_urdf(URDF / "scara.urdf", root="floating")
    signature = robot.signature(QUERIES["equation_terms"], "", Variant(wrenches=True))
    graph = trace(frames.welded(robot.tree), signature)
    kernel = interpreted(graph)
    inputs, _ = certify.drawn_states(signature, robot.tree)
    for exact, answer in zip(exactly(graph.program, inputs), kernel(*inputs), strict=True):
        # A kernel's rounding over a dozen bodies, against fifty digits.
        np.testing.assert_allclose(answer.reshape(exact.shape), exact, rtol=0, atol=1e-13 * np.abs(exact).max())
    right = _against_fifty_digits(kernel, graph, robot.tree)
    assert right["kernel"] < 1.0
    assert right["reference"] < 1.0

    def spoiled(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        M, *other_outputs = kernel(*arrays)
        return M * (1.0 + 1e-12), *other_outputs

    wrong = _against_fifty_digits(spoiled, graph, robot.tree)
    assert wrong["kernel"] > 1.0
    assert wrong["output"] == "mass_matrix"
    assert wrong["reference"] == right["reference"]


def test_records_are_read_again(tmp_path: Path) -> None:
    """Certificates made by other code are computed again."""
    case = Case(SHIPPED, "pendulum", "fixed", next(part for part in KERNELS if part.row == "link_poses"))
    record = record_of(case)
    assert record["outcome"] == "made"
    assert record["error"] <= 1.0
    out = tmp_path / "records.jsonl"
    out.write_text(json.dumps(record) + "\n")
    assert read(out) == {case: record}
    assert any("link_poses" in line and "pendulum, fixed" in line for line in tables(read(out)))
    out.write_text(json.dumps({**record, "version": "older"}) + "\n")
    assert read(out) == {}


def test_a_question_without_an_answer_is_no_kernel() -> None:
    part = next(part for part in KERNELS if part.row == "forward_dynamics")
    assert record_of(Case(SHIPPED, "cart_pendulum", "floating", part))["outcome"] == "none"

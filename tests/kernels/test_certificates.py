"""Certificates: kernels as exact as the tree as given pass, others are refused; clients receive the result."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyn_service import Client
from dyn_service.api.queries import DEFAULT_GRAVITY, QUERIES
from dyn_service.api.spec import Variant
from dyn_service.dynamics import expressions as ex
from dyn_service.engine.robot import Robot
from dyn_service.kernels import certify, frames
from dyn_service.kernels.certificate import Certificate
from dyn_service.kernels.graph import trace
from dyn_service.service.server.app import Server
from qa.nasty.robots import nasty_urdf, pair_urdf
from tests.conftest import ROBOTS, URDF
from tests.random_robots import random_urdf
from tests.terms.interpreting import interpreted, interpreting
from tests.wide import wide

REFUSED = 1
"""Seed of a robot whose mass matrix loses two digits in chosen frames: a thin rod rotated out of its axes."""


def certified_error(robot: Robot, query: str, change: Callable[[Any], Any]) -> float:
    """Returns the certified error of the function as given with changed inputs or results."""
    signature = robot.signature(QUERIES[query], next(iter(QUERIES[query].kernels)))
    graph = trace(frames.welded(robot.tree), signature)
    kernel = interpreted(graph)

    def changed(*inputs: Any) -> Any:
        answers = kernel(*inputs)
        return change(answers if isinstance(answers, tuple) else (answers,))

    difference = certify.difference(changed, graph, robot.tree)
    assert difference.states == len(certify.POSITIONS)
    return difference.error


def test_an_error_at_rest_is_detected() -> None:
    """There only gravity acts, straight down: the states in which nearly vertical axes have their smallest efforts."""
    robot = Robot.from_urdf(random_urdf(3, movable=4))
    signature = robot.signature(QUERIES["inverse_dynamics"], "")
    graph = trace(frames.welded(robot.tree), signature)
    kernel = interpreted(graph)

    def spoiled(q: np.ndarray, v: np.ndarray, a: np.ndarray, gravity: np.ndarray) -> Any:
        at_rest = (gravity == DEFAULT_GRAVITY).all(axis=-1) & ~v.any(axis=-1) & ~a.any(axis=-1)
        return kernel(q, v, a, gravity) * (1.0 + 1e-9 * at_rest[:, None])

    assert certify.difference(spoiled, graph, robot.tree).error > 1.0


@pytest.mark.parametrize("path", ROBOTS, ids=lambda path: path.stem)
def test_repository_robots_are_compiled_in_chosen_frames(path: Path) -> None:
    # The machine code of large robots takes long to make, and has no part in the choice.
    large = path.stem in ("solo12", "ten_body_tree", "upper_body")
    robot = interpreting(path, certifying=True) if large else Robot.from_urdf(path)
    robot.prepare()
    assert set(robot.certificates) == {
        robot.signature(row, method).name for row in QUERIES.values() if row.control for method in row.kernels
    }
    for name, certificate in robot.certificates.items():
        assert certificate.holds, name
        assert certificate.refused is None, name
        assert (certificate.form == "link frames") == (QUERIES[name.partition("-")[0]].bodies != "chosen")


@pytest.mark.parametrize("path", wide(ROBOTS, lambda path: path.stem == "solo12"), ids=lambda path: path.stem)
def test_parametric_kernels_are_within_the_rounding_bound(path: Path) -> None:
    """Sums are computed in the graph's order: reassociation lost three digits for solo12 and one for the Panda."""
    robot = Robot.from_urdf(path)
    row = QUERIES["forward_dynamics"]
    for method in row.kernels:
        robot.evaluator.library.kernel(robot.signature(row, method, Variant(wrenches=True, overlay=True)))
    assert len(robot.certificates) >= 2
    assert all(certificate.error < 0.5 for certificate in robot.certificates.values()), robot.certificates


@pytest.mark.parametrize("query", ["inverse_dynamics", "forward_dynamics", "mass_matrix", "momentum", "step"])
def test_an_error_in_a_single_joint_is_detected(query: str) -> None:
    """An error of 1e-12 of each joint's own value, in turn, is not hidden by the values of other joints."""
    robot = Robot.from_urdf(random_urdf(3, movable=4))
    assert certified_error(robot, query, lambda answers: answers) == 0.0
    for joint in range(4):

        def spoiled(answers: Any, joint: int = joint) -> Any:
            first = answers[0].copy()
            first[:, joint] *= 1.0 + 1e-12
            return (first, *answers[1:])

        assert certified_error(robot, query, spoiled) > 1.0


def test_different_rounding_passes() -> None:
    """The same function with each operation rounded in another way passes: forms of a kernel differ by as much."""
    queries = ("inverse_dynamics", "forward_dynamics", "mass_matrix", "equation_terms")
    for seed in range(4):
        robot = Robot.from_urdf(random_urdf(seed, movable=6))
        for query in queries[seed % 2 :: 2]:
            signature = robot.signature(QUERIES[query], next(iter(QUERIES[query].kernels)))
            graph = trace(frames.welded(robot.tree), signature)
            inputs, _ = certify.drawn_states(signature, robot.tree)
            run = certify.rounded_at_random(graph.program, inputs)
            for k in (1, 8, 15):
                answers = tuple(
                    array[..., k].reshape(-1, *operand.shape)
                    for array, operand in zip(run, signature.outputs, strict=True)
                )
                assert certify.difference(lambda *_, answers=answers: answers, graph, robot.tree)[0] < 1.0


def test_random_rounding_is_within_the_size_of_rounding() -> None:
    """The first run is rounded to nearest; the others differ from it only by rounding."""
    robot = Robot.from_urdf(URDF / "ten_body_tree.urdf")
    signature = robot.signature(QUERIES["inverse_dynamics"], "")
    graph = trace(frames.welded(robot.tree), signature)
    inputs, _ = certify.drawn_states(signature, robot.tree)
    (tau,) = certify.rounded_at_random(graph.program, inputs)
    np.testing.assert_allclose(tau[..., 0], interpreted(graph)(*inputs), rtol=1e-12, atol=0)
    largest = np.abs(tau).max(axis=1, keepdims=True)
    change = (tau - tau[..., :1]) / np.maximum(largest, 1e-300)
    assert 1e-17 < np.abs(change).max() < 1e-13
    # Errors are of both signs, so that those of a sum do not grow with the number of its terms: 3,000 changes here.
    assert 0.4 < np.mean(change[change != 0.0] > 0.0) < 0.6


def test_an_inexact_kernel_is_compiled_in_link_frames() -> None:
    robot = Robot.from_urdf(nasty_urdf(REFUSED, max_joints=10))
    robot.mass_matrix(np.zeros(robot.nv))
    certificate = robot.certificates["mass_matrix"]
    assert certificate.form == "link frames"
    assert certificate.holds
    assert certificate.refused is not None
    assert certificate.refused > 1.0
    (note,) = [note for note in robot.receipt.notes if note.element == "kernel mass_matrix"]
    assert note.kind == "changed"
    assert note.text.startswith("made in link frames: in chosen frames its error is ")
    assert "1 made from the tree as given" in robot.receipt.render()
    assert robot.receipt.to_dict()["certificates"]["mass_matrix"]["refused"] == certificate.refused


def test_frames_without_a_bound_on_distance_fail_certification(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates detect frames at the common normal of nearly parallel axes."""
    monkeypatch.setattr(frames, "_MAX_OFFSET", 10**12)
    monkeypatch.setenv("DYN_SERVICE_CACHE", "")
    robot = Robot.from_urdf(pair_urdf(2e-7))
    robot.prepare(["inverse_dynamics", "forward_dynamics", "mass_matrix"])
    refusal_errors = {
        name: certificate.refused for name, certificate in robot.certificates.items() if certificate.refused
    }
    assert "inverse_dynamics" in refusal_errors
    assert max(refusal_errors.values()) > 1e3
    assert all(certificate.holds for certificate in robot.certificates.values())


@pytest.mark.parametrize("name", ["cart_pendulum", "double_pendulum"])
def test_a_massless_base_gives_no_warning(name: str) -> None:
    """Forward dynamics is refused for this robot, so its kernels are not made."""
    robot = Robot.from_urdf(URDF / f"{name}.urdf", root="floating")
    robot.prepare()
    assert robot.massless_joint == "root_joint"
    assert "inverse_dynamics" in robot.certificates
    assert not [note for note in robot.receipt.notes if note.kind == "warning" and note.element.startswith("kernel")]


@pytest.mark.parametrize("query", ["forward_dynamics", "constraint_forces", "hamiltonian_flow"])
def test_a_massless_base_may_get_inertia_from_an_overlay(query: str) -> None:
    """Such a kernel is called only with overlays that make M regular, and is compared with such numbers."""
    robot = Robot.from_urdf(URDF / "cart_pendulum.urdf", root="floating")
    for method in QUERIES[query].kernels:
        signature = robot.signature(QUERIES[query], method, Variant(overlay=True))
        _, certificate = certify.certified(robot.tree, signature, interpreted)
        assert certificate.states == len(certify.POSITIONS)
        assert certificate.holds, certificate


def test_a_kernel_that_fails_in_both_forms_is_reported() -> None:
    (note,) = Certificate("step-rk4", "link frames", 40.0, 20, "v", 3e-11).notes()
    assert (note.kind, note.rule) == ("warning", "inexact-kernel")
    assert note.text.startswith("'v' is off by up to 3e-11 of its largest entry, 40 times the rounding bound: check it")


def test_a_certificate_contains_output_and_error() -> None:
    robot = Robot.from_urdf(URDF / "panda.urdf")
    signature = robot.signature(QUERIES["hamiltonian_flow"], "articulated")
    graph = trace(frames.welded(robot.tree), signature)
    kernel, last_output = interpreted(graph), [operand.name for operand in signature.outputs][-1]
    difference = certify.difference(lambda *x: (*kernel(*x)[:-1], kernel(*x)[-1] * (1.0 + 2e-9)), graph, robot.tree)
    assert difference.output == last_output
    np.testing.assert_allclose(difference.relative, 2e-9, rtol=1e-3)  # up to the rounding of the product
    assert difference.error > 1e3


def test_a_kernel_without_finite_results_is_reported() -> None:
    """A kernel that was not compared does not hold."""
    robot = Robot.from_urdf(random_urdf(3, movable=6))
    signature = robot.signature(QUERIES["velocity_from_momentum"], "articulated")
    graph = trace(frames.welded(robot.tree), signature)
    nan_graph = dataclasses.replace(graph, program=_not_a_number(graph.program))
    certificate = Certificate(
        signature.name, "link frames", *certify.difference(interpreted(nan_graph), nan_graph, robot.tree)
    )
    assert (certificate.error, certificate.states, certificate.holds) == (0.0, 0, False)
    (note,) = certificate.notes()
    assert note.rule == "uncompared-kernel"
    assert note.text.startswith("not compared with its equations, which have no finite answer at the test states")


def _not_a_number(program: ex.Program) -> ex.Program:
    outputs = [ex.full(size, 1, math.nan) for size in program.outputs]
    return ex.Program.of([ex.sym("x", size) for size in program.inputs], outputs)


def test_certificates_are_stored_with_the_code(tmp_path: Path) -> None:
    """A start from the store loads certificates without the tracer."""
    code = (
        "import sys; from dyn_service import Robot\n"
        "robot = Robot.from_urdf(sys.argv[1]); robot.prepare(['mass_matrix'])\n"
        "print(robot.certificates['mass_matrix'], 'dyn_service.dynamics.expressions' in sys.modules)"
    )
    outputs = []
    for _ in range(2):
        command = [sys.executable, "-c", code, str(URDF / "scara.urdf")]
        environment = {"DYN_SERVICE_CACHE": str(tmp_path), "PATH": "", "PYTHONPATH": str(URDF.parent)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=True)
        outputs.append(done.stdout.rpartition(" "))
    assert outputs[0][0] == outputs[1][0]
    assert [has_tracer.strip() for _, _, has_tracer in outputs] == ["True", "False"]


def test_clients_receive_certificates(ipc_endpoint: str) -> None:
    with Server(endpoints=[ipc_endpoint]), Client(ipc_endpoint, timeout_s=240.0) as client:
        loaded = client.load_robot(nasty_urdf(REFUSED, max_joints=10))
        certificates = loaded.description.to_dict()["certificates"]
        assert set(certificates) == {"inverse_dynamics", "forward_dynamics-articulated", "forward_dynamics-mass_matrix"}
        for certificate in certificates.values():
            assert certificate["form"] in ("chosen frames", "link frames")
            assert 0.0 <= certificate["error"] <= 1.0
        loaded.mass_matrix(np.zeros(loaded.nv))
        certificates = client.robot(loaded.name).description.to_dict()["certificates"]
        assert certificates["mass_matrix"]["form"] == "link frames"
        assert certificates["mass_matrix"]["refused"] > 1.0

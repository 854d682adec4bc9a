"""Certificates: what is as exact as the tree as given passes, what is not is refused, and whoever asks is told."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import casadi as ca
import numpy as np
import pytest

from dyn_service import Client
from dyn_service.api.queries import QUERIES
from dyn_service.api.spec import Variant
from dyn_service.engine.robot import Robot
from dyn_service.kernels import certify, frames
from dyn_service.kernels.certificate import Certificate
from dyn_service.kernels.graph import trace
from dyn_service.service.server.app import Server
from qa.nasty.robots import nasty_urdf, pair_urdf
from tests.conftest import ROBOTS, URDF
from tests.random_robots import random_urdf
from tests.terms.interpreting import interpreted
from tests.wide import wide

REFUSED = 1
"""A nasty robot whose mass matrix loses two digits in frames of our choice: a thin rod turned out of its axes."""


def held(robot: Robot, query: str, change: Callable[[Any], Any]) -> float:
    """The certificate's figure for the function as given, its inputs or answers changed."""
    signature = robot.signature(QUERIES[query], next(iter(QUERIES[query].kernels)))
    given = trace(frames.welded(robot.tree), signature)
    kernel = interpreted(given)

    def changed(*inputs: Any) -> Any:
        answers = kernel(*inputs)
        return change(answers if isinstance(answers, tuple) else (answers,))

    found = certify.difference(changed, given, robot.tree)
    assert found.states == len(certify.POSITIONS)
    return found.error


@pytest.mark.parametrize("path", ROBOTS, ids=lambda path: path.stem)
def test_our_robots_keep_their_frames(path: Path) -> None:
    robot = Robot.from_urdf(path)
    robot.prepare()
    assert set(robot.certificates) == {
        robot.signature(row, method).name for row in QUERIES.values() if row.control for method in row.kernels
    }
    for name, certificate in robot.certificates.items():
        assert certificate.holds, name
        assert certificate.refused is None, name
        assert (certificate.form == "link frames") == (QUERIES[name.partition("-")[0]].bodies != "chosen")


@pytest.mark.parametrize(
    "path", wide(ROBOTS, lambda path: path.stem in ("panda", "solo12")), ids=lambda path: path.stem
)
def test_kernels_with_overlays_keep_their_digits(path: Path) -> None:
    """The code generator adds in the graph's order: reassociated sums lost three digits of solo12's, one of Panda's."""
    robot = Robot.from_urdf(path)
    row = QUERIES["forward_dynamics"]
    for method in row.kernels:
        robot._library.kernel(robot.signature(row, method, Variant(wrenches=True, overlay=True)))
    assert len(robot.certificates) >= 2
    assert all(certificate.error < 0.5 for certificate in robot.certificates.values()), robot.certificates


@pytest.mark.parametrize("query", ["inverse_dynamics", "forward_dynamics", "mass_matrix", "momentum", "step"])
def test_an_error_of_one_joint_is_seen(query: str) -> None:
    """Of each joint in turn, 1e-12 of its own: no other joint's size hides it."""
    robot = Robot.from_urdf(random_urdf(3, movable=6))
    assert held(robot, query, lambda answers: answers) == 0.0
    for joint in range(6):

        def spoiled(answers: Any, joint: int = joint) -> Any:
            first = answers[0].copy()
            first[:, joint] *= 1.0 + 1e-12
            return (first, *answers[1:])

        assert held(robot, query, spoiled) > 1.0


def test_rounding_is_no_error() -> None:
    """The same function, each operation rounded in another way, passes: forms differ by no less."""
    for seed in range(4):
        robot = Robot.from_urdf(random_urdf(seed, movable=6))
        for query in ("inverse_dynamics", "forward_dynamics", "mass_matrix", "equation_terms"):
            signature = robot.signature(QUERIES[query], next(iter(QUERIES[query].kernels)))
            given = trace(frames.welded(robot.tree), signature)
            inputs, _ = certify.drawn_states(signature, robot.tree)
            run = certify.rounded_at_random(given.function, inputs)
            for k in (1, 8, 15):
                answers = tuple(
                    array[..., k].reshape(-1, *operand.shape)
                    for array, operand in zip(run, signature.outputs, strict=True)
                )
                assert certify.difference(lambda *_, answers=answers: answers, given, robot.tree)[0] < 1.0


def test_random_rounding_is_rounding() -> None:
    """The first run is rounded to nearest, the others differ by roundings and by no more."""
    robot = Robot.from_urdf(URDF / "ten_body_tree.urdf")
    signature = robot.signature(QUERIES["inverse_dynamics"], "")
    given = trace(frames.welded(robot.tree), signature)
    inputs, _ = certify.drawn_states(signature, robot.tree)
    (tau,) = certify.rounded_at_random(given.function, inputs)
    np.testing.assert_allclose(tau[..., 0], interpreted(given)(*inputs), rtol=1e-12, atol=0)
    largest = np.abs(tau).max(axis=1, keepdims=True)
    apart = np.abs(tau - tau[..., :1]) / np.maximum(largest, 1e-300)
    assert 1e-17 < apart.max() < 1e-13


def test_what_is_not_as_exact_is_made_from_the_tree_as_given() -> None:
    robot = Robot.from_urdf(nasty_urdf(REFUSED, most=10))
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


def test_unbounded_slides_would_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that certificates are for, put back: frames at the common normal of nearly parallel axes."""
    monkeypatch.setattr(frames, "_SLIDE", 10**12)
    monkeypatch.setenv("DYN_SERVICE_CACHE", "")
    robot = Robot.from_urdf(pair_urdf(2e-7))
    robot.prepare()
    refused = {name: certificate.refused for name, certificate in robot.certificates.items() if certificate.refused}
    assert "inverse_dynamics" in refused
    assert max(refused.values()) > 1e3
    assert all(certificate.holds for certificate in robot.certificates.values())


@pytest.mark.parametrize("name", ["cart_pendulum", "double_pendulum"])
def test_a_massless_base_is_no_doubt(name: str) -> None:
    """Forward dynamics has no answer there and is refused: its kernels, which nobody can call, are not made."""
    robot = Robot.from_urdf(URDF / f"{name}.urdf", root="floating")
    robot.prepare()
    assert robot.massless_joint == "root_joint"
    assert "inverse_dynamics" in robot.certificates
    assert not [note for note in robot.receipt.notes if note.kind == "doubted" and note.element.startswith("kernel")]


@pytest.mark.parametrize("query", ["forward_dynamics", "constraint_forces", "hamiltonian_flow"])
def test_overlays_may_give_a_base_its_inertia(query: str) -> None:
    """Such a kernel is asked only with overlays that make M regular, and is held at such numbers."""
    robot = Robot.from_urdf(URDF / "cart_pendulum.urdf", root="floating")
    for method in QUERIES[query].kernels:
        signature = robot.signature(QUERIES[query], method, Variant(overlay=True))
        _, certificate, _ = certify.certified(robot.tree, signature, interpreted)
        assert certificate.states == len(certify.POSITIONS)
        assert certificate.holds, certificate


def test_a_kernel_that_never_holds_is_doubted() -> None:
    (note,) = Certificate("step-rk4", "link frames", 40.0, 20, "v", 3e-11).notes()
    assert note.kind == "doubted"
    assert note.text.startswith("'v' is off by up to 3e-11 of its largest entry, 40 times the rounding bound: check it")


def test_a_certificate_says_where_and_by_how_much_a_kernel_is_off() -> None:
    robot = Robot.from_urdf(URDF / "panda.urdf")
    signature = robot.signature(QUERIES["hamiltonian_flow"], "articulated")
    given = trace(frames.welded(robot.tree), signature)
    kernel, changed = interpreted(given), [operand.name for operand in signature.outputs][-1]
    found = certify.difference(lambda *x: (*kernel(*x)[:-1], kernel(*x)[-1] * (1.0 + 2e-9)), given, robot.tree)
    assert found.output == changed
    np.testing.assert_allclose(found.relative, 2e-9, rtol=1e-3)  # other than by the rounding of the product
    assert found.error > 1e3


def test_a_kernel_without_answers_is_doubted() -> None:
    """Nothing was compared, which is not the same as no difference."""
    robot = Robot.from_urdf(random_urdf(3, movable=6))
    signature = robot.signature(QUERIES["velocity_from_momentum"], "articulated")
    given = trace(frames.welded(robot.tree), signature)
    nothing = dataclasses.replace(given, function=_not_a_number(given.function))
    certificate = Certificate(
        signature.name, "link frames", *certify.difference(interpreted(nothing), nothing, robot.tree)
    )
    assert (certificate.error, certificate.states, certificate.holds) == (0.0, 0, False)
    (note,) = certificate.notes()
    assert note.text.startswith("not compared with its equations, which have no finite answer at the test states")


def _not_a_number(function: Any) -> Any:
    inputs = function.sx_in()
    return ca.Function("nothing", inputs, [(x - x) / (x - x) for x in function.call(inputs)])


def test_certificates_are_kept_with_the_code(tmp_path: Path) -> None:
    """A start from the cache has them, and needs no tracer for them."""
    code = (
        "import sys; from dyn_service import Robot\n"
        "robot = Robot.from_urdf(sys.argv[1]); robot.prepare(['mass_matrix'])\n"
        "print(robot.certificates['mass_matrix'], 'casadi' in sys.modules)"
    )
    found = []
    for _ in range(2):
        command = [sys.executable, "-c", code, str(URDF / "scara.urdf")]
        environment = {"DYN_SERVICE_CACHE": str(tmp_path), "PATH": "", "PYTHONPATH": str(URDF.parent)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=True)
        found.append(done.stdout.rpartition(" "))
    assert found[0][0] == found[1][0]
    assert [traced.strip() for _, _, traced in found] == ["True", "False"]


def test_clients_are_told() -> None:
    with Server(endpoints=["inproc://certificates"]) as server, Client(server.endpoints[0], timeout_s=240.0) as client:
        loaded = client.load_robot(nasty_urdf(REFUSED, most=10))
        told = loaded.description.to_dict()["certificates"]
        assert set(told) == {"inverse_dynamics", "forward_dynamics-articulated", "forward_dynamics-mass_matrix"}
        for certificate in told.values():
            assert certificate["form"] in ("chosen frames", "link frames")
            assert 0.0 <= certificate["error"] <= 1.0
        loaded.mass_matrix(np.zeros(loaded.nv))
        told = client.robot(loaded.name).description.to_dict()["certificates"]
        assert told["mass_matrix"]["form"] == "link frames"
        assert told["mass_matrix"]["refused"] > 1.0

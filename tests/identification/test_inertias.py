"""Physically consistent parameters, verified from outside: the conditions of a minimum, eigenvalues, known truths."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.errors import DynError, InvalidArgumentError
from dyn_service.formulations.identifiability import base_parameters
from dyn_service.identification.inertias import MARGIN, inertial_parameters, physical_parameters, pseudo_inertia
from tests.conftest import URDF
from tests.phrases import naming
from tests.random_robots import random_urdf
from tests.wide import wide

ROBOTS = ("panda", "solo12 floating", *(f"random {seed}" for seed in range(6)))
"""With fixed links and mimic joints (panda), a moving root, spherical and prismatic joints (random)."""


@lru_cache
def _robot(name: str) -> tuple[Robot, np.ndarray, np.ndarray]:
    """A robot, the matrix of its base parameters, and its parameters with passive ones."""
    kind, _, number = name.partition(" ")
    if kind == "random":
        text = random_urdf(int(number), movable=3, types=("revolute", "prismatic", "spherical", "planar"))
        robot = Robot.from_text(text)
    else:
        joints = URDF.parent / "config/panda_joints.yaml" if kind == "panda" else None
        robot = Robot.from_file(URDF / f"{kind}.urdf", root=number or "fixed", joints=joints)
    return robot, base_parameters(robot).combinations, np.array(robot.dynamic_parameters().theta)


def _links(robot: Robot, theta: np.ndarray) -> np.ndarray:
    return pseudo_inertia(theta[: 10 * len(robot.link_names)].reshape(-1, 10))


def _truth(robot: Robot, theta: np.ndarray, size: float) -> np.ndarray:
    """Parameters of other possible links: each pseudo-inertia P = S S^T becomes S W W^T S^T."""
    rng = np.random.default_rng(0)
    truth = theta.copy()
    for i, P in enumerate(_links(robot, theta)):
        if P[3, 3] > 0.0:
            S, W = np.linalg.cholesky(P), np.eye(4) + size * rng.uniform(-1.0, 1.0, (4, 4))
            truth[10 * i : 10 * i + 10] = inertial_parameters(S @ W @ W.T @ S.T)
    return truth


def _reference(theta: np.ndarray) -> np.ndarray:
    """R of the module's docstring, by its definition: no extent below a tenth of the largest."""
    m, c = theta[0], theta[1:4] / theta[0]
    values, axes = np.linalg.eigh(pseudo_inertia(theta)[:3, :3] - m * np.outer(c, c))
    thick = axes @ np.diag(np.maximum(values, 0.01 * max(values[-1], 1e-6 * m))) @ axes.T
    return np.block([[thick + m * np.outer(c, c), m * c[:, None]], [m * c[None, :], np.full((1, 1), m)]])


def _gradient(A: np.ndarray, C1: np.ndarray, b: np.ndarray, theta: np.ndarray, file: np.ndarray, i: int) -> np.ndarray:
    """The gradient (4, 4) of the objective in the pseudo-inertia of link i."""
    block = slice(10 * i, 10 * i + 10)
    of_data = 2.0 * A[:, block].T @ C1 @ (A @ theta - b)
    gradient = np.zeros((4, 4))
    for j in range(4):
        for k in range(4):
            E = np.zeros((4, 4))
            E[j, k] += 0.5
            E[k, j] += 0.5
            gradient[j, k] = of_data @ inertial_parameters(E)
    inverse = np.linalg.inv(_reference(file[block]))
    return gradient + 2.0 * inverse @ (pseudo_inertia(theta[block]) - pseudo_inertia(file[block])) @ inverse


def _assert_minimum(
    robot: Robot, A: np.ndarray, C1: np.ndarray, b: np.ndarray, theta: np.ndarray, file: np.ndarray
) -> None:
    """Karush, Kuhn and Tucker: with R_i = S S^T, the gradient in X_i is a matrix Z >= 0 with tr Z (X_i - margin) = 0.

    A convex problem has its minimum where they hold.
    """
    for i, P in enumerate(_links(robot, theta)):
        if not file[10 * i] or not A[:, 10 * i : 10 * i + 10].any():
            assert np.array_equal(theta[10 * i : 10 * i + 10], file[10 * i : 10 * i + 10])
            continue
        S = np.linalg.cholesky(_reference(file[10 * i : 10 * i + 10]))
        X = np.linalg.solve(S, np.linalg.solve(S, P).T)
        Z = S.T @ _gradient(A, C1, b, theta, file, i) @ S
        # an error of X of 1e-10, the solver's tolerance, times the curvature of the data
        columns = [A[:, 10 * i : 10 * i + 10] @ inertial_parameters(S @ E @ S.T) for E in np.eye(16).reshape(-1, 4, 4)]
        curvature = max(x @ C1 @ x for x in columns)
        size = 1.0 + np.linalg.norm(Z) + 1e-6 * curvature
        flattest = np.linalg.eigvalsh(np.linalg.solve(S, np.linalg.solve(S, _links(robot, file)[i]).T))[0]
        margin = np.clip(flattest, 0.01 * MARGIN, MARGIN)
        assert np.linalg.eigvalsh(X)[0] > 0.99 * margin
        assert np.linalg.eigvalsh(Z)[0] > -1e-4 * size
        assert abs(np.trace(Z @ (X - margin * np.eye(4)))) < 1e-4 * size


@pytest.mark.parametrize("name", wide(ROBOTS, {"panda", "random 0", "random 3"}.__contains__))
def test_a_possible_truth_is_recovered(name: str) -> None:
    robot, A, file = _robot(name)
    truth = _truth(robot, file, 0.3)
    error = 1e-5 * np.maximum(np.abs(A @ truth), 1e-3)
    C1 = np.diag(error**-2)
    result = physical_parameters(robot, A, A @ truth, C1)
    # the file's pull, relative to the data's: some 1e-5, times what the truth differs from the file
    assert np.abs(result.values - A @ truth).max() < 0.01 * error.max()
    np.testing.assert_allclose(A @ result.theta, result.values, rtol=1e-12, atol=1e-12)
    _assert_minimum(robot, A, C1, A @ truth, result.theta, file)
    assert np.linalg.eigvalsh(_links(robot, result.theta)[file[: 10 * len(robot.link_names) : 10] > 0.0]).min() > 0.0


@pytest.mark.parametrize("name", wide(ROBOTS, {"panda", "random 1"}.__contains__))
def test_an_impossible_estimate_is_repaired_to_the_nearest(name: str) -> None:
    robot, A, file = _robot(name)
    rng = np.random.default_rng(1)
    b = A @ file
    error = 0.05 * np.maximum(np.abs(b), 0.01)
    b = b + 40.0 * error * rng.standard_normal(len(b))
    C1 = np.diag(error**-2)
    result = physical_parameters(robot, A, b, C1)
    assert result.bounded
    assert result.misfit > 1.0
    assert result.gap < 1e-6
    assert (result.theta[10 * len(robot.link_names) :] >= 0.0).all()
    _assert_minimum(robot, A, C1, b, result.theta, file)


def test_what_the_data_leave_open_is_the_files() -> None:
    robot, A, file = _robot("panda")
    result = physical_parameters(robot, A, A @ file, np.zeros((len(A), len(A))))
    assert result.bounded == ()
    np.testing.assert_allclose(result.theta, file, atol=1e-7)
    heavier = A @ file + A[:, robot.link_names.index("panda_link7") * 10] * 0.5
    result = physical_parameters(robot, A, heavier, np.diag(np.full(len(A), 1e8)))
    change = _links(robot, result.theta) - _links(robot, file)
    # the mass of a payload is known; the links before it need not change, and the base cannot
    assert result.change[robot.link_names.index("panda_link0")] == 0.0
    assert A @ result.theta == pytest.approx(heavier, abs=1e-4)
    assert change[1:, 3, 3].sum() > 0.1


def test_an_armature_that_acts_like_links_is_moved_only_if_the_file_has_it() -> None:
    robot, A, file = _robot("panda")
    first = robot.dynamic_parameters().parameters.index("panda_joint1.armature")
    bare_file = file.copy()
    bare_file[first] = 0.0
    payload = np.zeros(len(A))
    payload[0] = 0.3  # panda_link1.Izz and this armature
    for prior in (file, bare_file):
        result = physical_parameters(robot, A, A @ prior + payload, np.diag(np.full(len(A), 1e6)), theta=prior)
        np.testing.assert_allclose(A @ result.theta, A @ prior + payload, atol=0.01)
        assert bool(result.theta[first] > prior[first]) is bool(prior[first])


def test_an_armature_without_data_stays_small() -> None:
    """Nothing is known of the fingers: their armature is in no effort, except for rounding."""
    robot, A, file = _robot("panda")
    names = robot.dynamic_parameters().parameters
    information = np.diag(np.full(len(A), 1e6))
    row = int(np.flatnonzero(A[:, names.index("panda_finger_joint1.armature")])[0])
    information[row, row] = 1e-12
    b = A @ file
    b[row] = 140.0
    result = physical_parameters(robot, A, b, information)
    # the tolerance of the solver; 140 kg without the pull of the file
    assert result.theta[names.index("panda_finger_joint1.armature")] < 1e-4


def test_the_pull_depends_neither_on_units_nor_on_frames() -> None:
    theta = np.array([2.0, 0.2, -0.1, 0.4, 0.3, 0.01, -0.02, 0.25, 0.03, 0.2])
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = np.linalg.qr(np.random.default_rng(2).standard_normal((3, 3)))[0], (0.3, -0.2, 0.5)
    in_other_frame = inertial_parameters(T @ pseudo_inertia(theta) @ T.T)
    np.testing.assert_allclose(T @ _reference(theta) @ T.T, _reference(in_other_frame), atol=1e-12)
    np.testing.assert_allclose(inertial_parameters(pseudo_inertia(theta)), theta, atol=1e-15)


def test_other_terms_are_free_and_correlated() -> None:
    robot, A, file = _robot("random 0")
    rng = np.random.default_rng(3)
    n = len(A) + 2
    root = rng.standard_normal((n, n)) + 3.0 * np.eye(n)
    b = np.concatenate([A @ file, [-1.0, 2.0]]) + 0.5 * rng.standard_normal(n)
    C1 = root.T @ root
    result = physical_parameters(robot, A, b, C1)
    gradient = C1 @ (result.values - b)
    assert np.abs(gradient[-2:]).max() < 1e-5 * np.abs(C1).max()
    assert np.abs(result.values[-2:] - b[-2:]).max() > 1e-3  # they follow what the constraints change


@pytest.mark.parametrize(
    ("change", "path", "value"),
    [
        ({"matrix": np.zeros((3, 4))}, "matrix", "(3, 4)"),
        ({"information": np.eye(2)}, "information", "(2, 2)"),
        ({"values": lambda b: b * np.nan}, "values", "finite"),
        ({"information": lambda C1: -C1}, "information", "semidefinite"),
        ({"file_error": 0.0}, "file_error", "0.0"),
        ({"margin": 1.0}, "margin", "1.0"),
        ({"theta": np.zeros(3)}, "theta", "(3,)"),
    ],
)
def test_refusals(change: dict[str, Any], path: str, value: str) -> None:
    robot, A, file = _robot("random 0")
    arguments: dict[str, Any] = {"matrix": A, "values": A @ file, "information": np.eye(len(A))}
    arguments |= {key: new(arguments[key]) if callable(new) else new for key, new in change.items()}
    with pytest.raises(InvalidArgumentError, match=naming(value)) as refusal:
        physical_parameters(robot, **arguments)
    assert refusal.value.path == path


def test_a_robot_without_masses_and_a_missing_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        '<robot name="bare"><link name="a"/><link name="b"/><joint name="j" type="continuous"><parent link="a"/>'
        '<child link="b"/></joint></robot>'
    )
    bare = Robot.from_text(text)
    A = np.zeros((1, len(bare.dynamic_parameters().theta)))
    A[0, 10] = 1.0
    with pytest.raises(DynError, match=naming("bare")):
        physical_parameters(bare, A, np.ones(1), np.eye(1))
    robot, A, file = _robot("random 0")
    monkeypatch.setitem(sys.modules, "clarabel", None)
    with pytest.raises(DynError, match=naming("'dyn_service[contacts]'")):
        physical_parameters(robot, A, A @ file, np.eye(len(A)))

"""An identification as a robot that can exist: its files give its efforts, its page shows its numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dyn_service import Robot, Server, connect
from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.report.identification import identification_page
from dyn_service.identification import Recording, identify, physical
from dyn_service.identification.inertias import pseudo_inertia
from dyn_service.identification.physical_robot import PhysicalIdentification
from dyn_service.identification.robot_files import write_robot
from tests.conftest import URDF
from tests.identification.simulated import Experiment, multi_sine


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return Experiment.of(Robot.from_file(URDF / "scara.urdf"), seed=1, duration_s=8.0, rate_hz=250.0)


@pytest.fixture(scope="module")
def result(experiment: Experiment) -> PhysicalIdentification:
    return physical(identify(experiment.robot, experiment.recording(0)))


def test_it_is_possible_and_better_than_the_file(result: PhysicalIdentification) -> None:
    robot = result.identification.robot
    links = np.reshape(result.parameters.theta[: 10 * len(robot.link_names)], (-1, 10))
    assert np.linalg.eigvalsh(pseudo_inertia(links[links[:, 0] > 0.0])).min() > 0.0
    assert result.improves
    errors = result.errors("check")
    # the noise of the recording, 2 % of the efforts before filters, is far below the file's error
    assert (errors["physical"] < 0.3 * errors["file"]).all()
    assert (errors["physical"] < 1.5 * errors["least squares"]).all()


def test_an_exact_recording_of_the_file_is_physical() -> None:
    """Without noise the information spans 16 powers of ten unless rounding bounds it, and the solver does not end."""
    robot = Robot.from_file(URDF / "scara.urdf")
    t = np.arange(0.0, 8.0, 0.004)
    q, v, a = multi_sine(robot, np.random.default_rng(3))(t)
    exact = Recording(t, q, robot.inverse_dynamics(q, v, a), robot.joint_names)
    result = physical(identify(robot, exact, delay_s=0.0, friction=["viscous"]))
    # Filters of an exact recording leave a millionth of the efforts.
    size = np.abs(result.comparison.measurement).max(axis=0)
    assert (result.errors("check")["physical"] < 1e-4 * np.maximum(size, 1e-2 * size.max())).all()


def test_the_truth_is_within_the_standard_errors(experiment: Experiment, result: PhysicalIdentification) -> None:
    values = result.parameters.values[: len(experiment.truth)]
    ratio = (values - experiment.truth) / result.identification.standard_errors
    # a share that by chance is exceeded once in 10^4 draws, if the standard errors are right
    assert np.abs(ratio).max() < 6.0


def test_the_files_give_the_identified_efforts(result: PhysicalIdentification, tmp_path: Path) -> None:
    identification = result.identification
    robot = identification.robot
    assert isinstance(robot, Robot)
    files, _ = write_robot(
        robot,
        result.parameters.theta,
        tmp_path / "scara.urdf",
        recording="draw 0",
        friction_widths=result.friction_widths,
    )
    identified_robot = Robot.from_file(files[0], joints=files[1])
    rng = np.random.default_rng(0)
    q = np.stack([robot.random_configuration(seed=k) for k in range(5)])
    v, a = rng.standard_normal((2, 5, robot.nv))
    expected = identification.model.effort_columns(q, v, a) @ result.parameters.values[: len(identification.names)]
    parameters = dict(zip(robot.dynamic_parameters().parameters, result.parameters.theta, strict=True))
    for k, joint in enumerate(identification.joints):
        width = result.friction_widths.get(joint, 1.0)
        expected[:, k] += parameters[f"{joint}.damping"] * v[:, k] + parameters[f"{joint}.friction"] * np.tanh(
            v[:, k] / width
        )
    np.testing.assert_allclose(identified_robot.inverse_dynamics(q, v, a), expected, rtol=0.0, atol=1e-9)


def test_terms_without_a_place_are_named(experiment: Experiment) -> None:
    recording = experiment.recording(0)
    shifted = replace(recording, effort=recording.effort + np.array([2.0, 0.0, 0.0, 0.0]))
    result = physical(identify(experiment.robot, shifted))
    joint = result.identification.joints[0]
    assert result.other_terms[f"{joint}.offset"] == pytest.approx(2.0, abs=0.2)
    assert any(f"{joint}.offset" in line for line in result.warnings)
    errors = result.errors("check")
    # 2 N m, which the files lack and all terms have
    assert errors["new files"][0] == pytest.approx(2.0, abs=0.3)
    assert errors["physical"][0] < 0.5


def test_without_a_check_nothing_is_claimed(experiment: Experiment) -> None:
    result = physical(identify(experiment.robot, experiment.recording(0), check=0.0))
    assert result.improves is None
    assert any("no part of the motion" in line for line in result.warnings)
    assert "not checked" in identification_page(result, "draw 0", [])


def test_a_robot_of_a_server_is_refused(result: PhysicalIdentification, experiment: Experiment) -> None:
    with (
        Server([experiment.robot], endpoints=["tcp://127.0.0.1:0"]) as server,
        connect(f"{server.endpoints[0]}/scara") as remote,
        pytest.raises(InvalidArgumentError) as refusal,
    ):
        physical(replace(result.identification, robot=remote))
    assert refusal.value.path == "robot"


def test_the_page_shows_the_numbers(result: PhysicalIdentification) -> None:
    page = identification_page(result, "draw <0>.npz", [])
    text = re.sub(r"<[^>]+>", " ", page)
    assert "draw &lt;0&gt;.npz" in page
    assert "better than the file" in text
    for joint, error in zip(result.identification.joints, result.errors("check")["physical"], strict=True):
        assert re.search(rf"{joint}\s[\s\S]*?{re.escape(f'{error:.3g}')}", text)
    for name in result.identification.names:
        assert name in text
    for link, change in zip(result.identification.robot.link_names, result.parameters.change, strict=True):
        assert not change or link in text
    assert page.count('class="chart') >= 2 * len(result.identification.joints)
    assert "data:image/svg+xml" in page

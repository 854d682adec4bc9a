"""`dyn identify`: what it prints and writes, what it refuses, what an interruption leaves."""

from __future__ import annotations

import html
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dyn_service import JointNumbers, Overlay, Robot
from tests.cli.test_command_line import DYN, here
from tests.conftest import ROOT, URDF
from tests.identification.simulated import Experiment, multi_sine

SCARA = URDF / "scara.urdf"
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recording of a SCARA whose numbers are not its file's, and one that its file explains better."""
    path = tmp_path_factory.mktemp("recordings")
    robot = Robot.from_file(SCARA)
    recording = Experiment.of(robot, seed=1, duration_s=8.0, rate_hz=250.0).recording(0)
    arrays = {"t": recording.t, "q": recording.q, "tau": recording.effort}
    np.savez(path / "motion.npz", **arrays)
    # efforts of the first half say nothing about the second
    arrays["tau"] = np.where(recording.t[:, None] < 4.0, -3.0, 1.0) * recording.effort
    np.savez(path / "broken.npz", **arrays)
    return path


@pytest.fixture
def identify(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return lambda *arguments: here(monkeypatch, capsys, "identify", *map(str, arguments))


def test_what_it_prints_and_writes(identify: Command, folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "new.urdf"
    status, out, err = identify(folder / "motion.npz", "scara", "-o", target)
    assert status == 0, err
    for text in (
        "cut-off",
        "delay of efforts",
        "rms error of efforts, check, not fitted:",
        "standard error",
        "friction",
    ):
        assert text in out
    assert "reading" in err
    assert "identifying 4 joints" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.html", "new.joints.yaml", "new.urdf"]
    robot = Robot.from_file(target, joints=tmp_path / "new.joints.yaml")
    assert robot.joint_names == Robot.from_file(SCARA).joint_names
    assert "identified from motion.npz" in target.read_text()
    assert "joint file: new.joints.yaml\n" in target.read_text()
    status, _, err = identify(folder / "motion.npz", "scara", "-o", target)
    assert (status, "already exists" in err) == (1, True)


def test_json_has_the_same_numbers(identify: Command, folder: Path) -> None:
    status, out, _ = identify(folder / "motion.npz", "scara", "--json", "--check", "0.25")
    content: dict[str, Any] = json.loads(out)
    assert status == 0
    assert set(content["rms"]["check"]) == {"file", "least squares", "physical", "new files"}
    assert content["base_parameters"][0].keys() == {"name", "file", "least_squares", "standard_error", "physical"}
    assert content["files"] == []


CONTINUOUS = """<robot name="wheel"><link name="base"/><link name="rim"><inertial><mass value="2"/>
<origin xyz="0.2 0 0"/><inertia ixx="0.05" ixy="0" ixz="0" iyy="0.05" iyz="0" izz="0.08"/></inertial></link>
<!-- a comment, which is lost --><joint name="axle" type="continuous"><parent link="base"/><child link="rim"/>
<axis xyz="0 1 0"/><limit velocity="20" effort="50"/></joint></robot>"""


@pytest.mark.parametrize("output", [True, False], ids=["with files", "printed only"])
def test_each_note_is_printed_and_on_the_page_and_in_the_json(identify: Command, tmp_path: Path, output: bool) -> None:
    """Of the recording, of another one that checks, and of what the new files lack."""
    (tmp_path / "wheel.urdf").write_text(CONTINUOUS)
    robot, t = Robot.from_file(tmp_path / "wheel.urdf"), np.arange(0.0, 10.0, 0.004)
    q = (3.0 * t + np.sin(5.0 * t))[:, None]
    v, a = (3.0 + 5.0 * np.cos(5.0 * t))[:, None], -25.0 * np.sin(5.0 * t)[:, None]
    noise = 0.01 * np.random.default_rng(0).standard_normal(q.shape)
    tau = 1.2 * robot.inverse_dynamics(q, v, a) + noise
    for name, angle in (("once", np.mod(q, 2.0 * np.pi)), ("again", np.mod(q + np.pi, 2.0 * np.pi) - np.pi)):
        np.savez(tmp_path / f"{name}.npz", t=t, q=angle, tau=tau)
    arguments = [tmp_path / "once.npz", tmp_path / "wheel.urdf", "--check", tmp_path / "again.npz", "--force"]
    arguments += ["-o", tmp_path / "new.urdf"] if output else []
    status, out, err = identify(*arguments)
    assert status == 0, err
    content = json.loads(identify(*arguments, "--json")[1])
    texts = [note["text"] for note in content["notes"]]
    assert [text.startswith("check: ") for text in texts if "jump by a turn" in text] == [False, True]
    assert any("comments" in text for text in texts) == output
    page = html.unescape((tmp_path / "new.html").read_text()) if output else None
    for text in texts:
        assert out.count(text) >= 1
        assert page is None or text in page


def test_another_recording_checks(identify: Command, folder: Path) -> None:
    status, out, err = identify(
        folder / "motion.npz", "scara", "--check", folder / "motion.npz", "--friction", "coulomb"
    )
    assert status == 0, err
    assert "viscous" not in out


def test_a_robot_that_is_no_better_is_not_written(identify: Command, folder: Path, tmp_path: Path) -> None:
    arguments = (folder / "motion.npz", "scara", "--check", folder / "broken.npz", "-o", tmp_path / "new.urdf")
    status, out, err = identify(*arguments)
    if "no better" not in err:
        pytest.fail(out + err)
    assert status == 1
    assert [path.name for path in tmp_path.iterdir()] == ["new.html"]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["nowhere.npz", "scara"], 1, "nowhere.npz"),
        (["{motion}", "scara", "-o", "new.stl"], 1, "new.stl"),
        (["{motion}", "scara", "-o", "nowhere/new.urdf"], 1, "nowhere is not a folder"),
        (["{motion}", "scara", "--still", "wrist"], 2, "wrist"),
        (["{motion}", "scara", "--still", "wrist:=far"], 2, "far"),
        (["{motion}", "scara", "--check", "0.7"], 1, "0.7"),
        (["{motion}", "scara", "--margin", "2"], 1, "margin"),
        (["{motion}", "scara", "--file-error", "0"], 1, "file_error"),
        (["{motion}", "panda"], 1, "joints"),
    ],
)
def test_refusals(identify: Command, folder: Path, arguments: list[str], status: int, words: str) -> None:
    exit_status, _, err = identify(*(text.format(motion=folder / "motion.npz") for text in arguments))
    assert (exit_status, words in err) == (status, True), err


@pytest.mark.slow
def test_an_interruption_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    command = [*DYN, "identify", folder / "motion.npz", "scara", "-o", tmp_path / "new.urdf"]
    with subprocess.Popen(list(map(str, command)), cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "identifying" in line:
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
    assert process.returncode == 130, rest
    assert list(tmp_path.iterdir()) == []


def test_gains_of_currents_and_the_joint_file_that_converts_them(
    identify: Command, folder: Path, tmp_path: Path
) -> None:
    robot = Robot.from_file(SCARA)
    q, v, a = multi_sine(robot, np.random.default_rng(0))(t := np.arange(0.0, 12.0, 0.004))
    gains = np.array([5.0, 2.0, -30.0, 1.2])
    true = {
        name: JointNumbers(damping=2.0, armature=0.3 if name == "outer_joint" else 0.0) for name in robot.joint_names
    }
    true["quill_joint"] = JointNumbers(damping=2.0, armature=0.5)
    currents = robot.inverse_dynamics(q, v, a, overlay=Overlay(joints=true)) / gains
    currents[:, 3] += np.random.default_rng(1).standard_normal(len(t))  # hides what the light last link takes
    np.savez(tmp_path / "currents.npz", t=t, q=q, tau=currents)
    # the rotor of the outer joint is identified; that of a vertical slide, which carries the same weight, cannot be
    joint_file = tmp_path / "scara.joints.yaml"
    joint_file.write_text("robot: scara\njoints: {quill_joint: {armature: 0.5}}")
    arguments = (tmp_path / "currents.npz", "scara", "--gains")
    status, out, _ = identify(*arguments)
    assert "quill_joint  not known" in out
    status, out, _ = identify(*arguments, "--joints", joint_file)
    assert status == 0
    assert "roll_joint   not known" in out
    document = yaml.safe_load(out[out.index("# a joint file") :])
    motors = document["motors"]
    products = [motor["gear_ratio"] * motor["torque_constant"] for motor in motors.values()]
    np.testing.assert_allclose(products, gains[:3], rtol=1e-3)  # what the filters leave without noise
    _, out, _ = identify(*arguments, "--json", "--joints", joint_file)
    assert json.loads(out)["gains"]["roll_joint"] is None
    joint_file.write_text(yaml.safe_dump(document))
    arguments = (tmp_path / "currents.npz", "scara", "--currents", "--joints", joint_file)
    status, _, err = identify(*arguments)
    assert (status != 0, "'roll_joint' of the recording has no gain" in err) == (True, True)
    motors["roll_joint"] = {"gear_ratio": 1, "torque_constant": 1.2}
    joint_file.write_text(yaml.safe_dump(document))
    status, out, _ = identify(*arguments, "--json")
    errors = json.loads(out)["rms"]["fit"]["least squares"]
    efforts = np.std(currents * gains, axis=0)
    assert (status, errors["inner_joint"] < 1e-3 * efforts[0], errors["quill_joint"] < 1e-3 * efforts[2]) == (
        0, True, True,
    )  # fmt: skip


@pytest.mark.parametrize("other", [["--currents"], ["--payload", "quill"], ["-o", "new.urdf"]])
def test_gains_are_identified_alone(identify: Command, folder: Path, other: list[str]) -> None:
    status, _, err = identify(folder / "motion.npz", "scara", "--gains", *other)
    assert (status, "--gains prints gains" in err) == (2, True)

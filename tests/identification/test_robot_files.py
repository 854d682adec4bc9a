"""Files of an identified robot: read again, they give the identified efforts, and all else is as in the first file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.errors import InvalidArgumentError
from dyn_service.identification.robot_files import with_parameters, write_robot
from tests.conftest import URDF
from tests.phrases import naming
from tests.random_robots import random_urdf

CONFIG = URDF.parent / "config"


def _changed(robot: Robot) -> np.ndarray:
    """Other parameters: 20 % more inertia, and passive ones where there were none, the same for all of a joint."""
    theta: np.ndarray = 1.2 * robot.dynamic_parameters().theta
    is_driven = np.array([joint.nv == 1 for joint in robot.tree.inboard for _ in range(joint.nv)])
    theta[10 * len(robot.link_names) :] += np.outer([0.1, 0.3, 0.02, 0.0], is_driven).ravel()
    return theta


@pytest.mark.parametrize(
    ("name", "options", "suffix", "loss_words"),
    [
        ("panda", {"joints": CONFIG / "panda_joints.yaml"}, ".urdf", ["comments"]),
        ("solo12", {"joints": CONFIG / "solo12_joints.yaml", "root": "floating"}, ".sdf", ["comments"]),
        ("linkage_gripper", {}, ".urdf", ["comments", "transmission"]),
        ("four_bar", {}, ".xml", ["comments", "limit", "transmission"]),
        ("random 1", {}, ".urdf", []),
    ],
)
def test_files_read_again(
    name: str, options: dict[str, Any], suffix: str, loss_words: list[str], tmp_path: Path
) -> None:
    """loss_words: words of the notes, on things that the format lacks."""
    kind, _, seed = name.partition(" ")
    if seed:
        robot = Robot.from_text(random_urdf(int(seed), movable=3, types=("revolute", "prismatic", "spherical")))
    else:
        robot = Robot.from_file(URDF / f"{kind}.urdf", **options)
    theta, joint = (
        _changed(robot),
        robot.tree.joints[next(i for i in robot.tree.movable if robot.tree.inboard[i].nv == 1)],
    )
    widths = {joint: 0.05}
    files, notes = write_robot(robot, theta, tmp_path / f"new{suffix}", recording="a--b.mcap", friction_widths=widths)
    assert [path.name for path in files] == [f"new{suffix}", "new.joints.yaml"]
    for path in files:
        assert "identified from a-" in path.read_text()[:200]
    identified_robot = Robot.from_file(files[0], joints=files[1], root=options.get("root", "fixed"))
    names = robot.dynamic_parameters().parameters
    read = dict(
        zip(identified_robot.dynamic_parameters().parameters, identified_robot.dynamic_parameters().theta, strict=True)
    )
    # links that do not move may be the world in other formats
    np.testing.assert_allclose(
        [read.get(name, value) for name, value in zip(names, theta, strict=True)], theta, rtol=1e-11, atol=1e-13
    )
    assert len(read) >= len(names) - 10
    old_description, new_description = robot.as_described, identified_robot.as_described
    old, new = ({joint.name: joint for joint in x.joints} for x in (old_description, new_description))
    assert new[joint].friction_width == 0.05
    if suffix == ".urdf":
        assert [len(link.shapes) for link in new_description.links] == [
            len(link.shapes) for link in old_description.links
        ]
        assert [joint.name for joint in new_description.loop_joints] == [
            joint.name for joint in old_description.loop_joints
        ]
        assert {k: (j.limit, j.mimic, j.driven) for k, j in new.items() if j.moves.nv} == {
            k: (j.limit, j.mimic, j.driven) for k, j in old.items() if j.moves.nv
        }
    for word in loss_words:
        assert any(word in note.text for note in notes), notes
    assert not [note for note in notes if note.kind == "dropped" and not any(word in note.text for word in loss_words)]


def test_efforts_are_the_identified_ones(tmp_path: Path) -> None:
    robot = Robot.from_file(URDF / "panda.urdf", joints=CONFIG / "panda_joints.yaml")
    theta = _changed(robot)
    files, _ = write_robot(robot, theta, tmp_path / "panda.urdf", recording="a.mcap")
    identified_robot = Robot.from_file(files[0], joints=files[1])
    q = robot.random_configuration(seed=1)
    v, a = np.random.default_rng(0).standard_normal((2, robot.nv))
    identified = robot.inverse_dynamics_regressor(q, v, a).regressor @ theta
    np.testing.assert_allclose(identified_robot.inverse_dynamics(q, v, a), identified, rtol=0.0, atol=1e-9)


def test_meshes_are_found_from_another_folder(tmp_path: Path) -> None:
    text = (
        '<robot name="m"><link name="a"><inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" '
        'iyz="0"/></inertial><visual><geometry><mesh filename="a.stl"/></geometry></visual></link></robot>'
    )
    (tmp_path / "m.urdf").write_text(text)
    (tmp_path / "a.stl").write_text("solid")
    (tmp_path / "out").mkdir()
    robot = Robot.from_file(tmp_path / "m.urdf")
    theta = robot.dynamic_parameters().theta
    files, _ = write_robot(robot, theta, tmp_path / "out/m.urdf", recording="r")
    (shape,) = Robot.from_file(files[0]).evaluator.model.description.links[0].shapes
    assert (files[0].parent / shape.mesh).resolve() == tmp_path / "a.stl"
    _, notes = write_robot(Robot.from_text(text), theta, tmp_path / "out/n.urdf", recording="r")
    assert "read from a text" in notes[0].text


def test_refusals(tmp_path: Path) -> None:
    robot = Robot.from_text(random_urdf(1, movable=3, types=("spherical",)))
    description, theta = robot.as_described, robot.dynamic_parameters().theta.copy()
    with pytest.raises(InvalidArgumentError, match=naming(f"{len(theta)}")):
        with_parameters(description, theta[1:])
    with pytest.raises(InvalidArgumentError, match=naming("elbow")):
        with_parameters(description, theta, {"elbow": 1.0})
    (tmp_path / "r.joints.yaml").write_text("mine")
    with pytest.raises(InvalidArgumentError, match=naming("r.joints.yaml")):
        write_robot(robot, theta, tmp_path / "r.urdf", recording="r")
    assert [path.name for path in tmp_path.iterdir()] == ["r.joints.yaml"]  # nothing is written by halves
    theta[10 * len(robot.link_names)] = 1.0  # the damping about one of three axes
    with pytest.raises(InvalidArgumentError, match="joint_") as refusal:
        with_parameters(description, theta)
    assert refusal.value.path == "theta"

"""Targets as tasks of pink and mink: both reach them, and positions are converted there and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from dyn_service.model.description import RootType
from dyn_service.parsing.conversion import written
from dyn_service.simulation.inverse_kinematics import Target
from dyn_service.simulation.peer_tasks import from_pinocchio, from_qpos, mink_task, pink_task, to_pinocchio, to_qpos
from dyn_service.support.optional import MissingLibraryError
from tests.conftest import URDF

pin = pytest.importorskip("pinocchio")
mujoco = pytest.importorskip("mujoco")

ARM = URDF / "ur5e.urdf"
LINK = "wrist_3_link"
STEP_S = 0.1
LINKS = "".join(
    f'''<link name="{name}"><inertial><origin xyz="0.1 0.2 -0.1"/><mass value="1.5"/>
    <inertia ixx="1" iyy="1.2" izz="0.9" ixy="0.1" ixz="0" iyz="-0.1"/></inertial></link>'''
    for name in ("base", "arm")
)
TURNING = f"""<robot name="turning">{LINKS}<joint name="j" type="continuous"><parent link="base"/>
    <child link="arm"/><axis xyz="0 0 1"/><origin xyz="0 0.1 0.3"/></joint></robot>"""


def library(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed: pip install 'dyn_service[tasks]'")


def mujoco_model(robot: Robot) -> Any:
    return mujoco.MjModel.from_xml_string(written(robot.as_described, "mjcf")[0])


@pytest.fixture(scope="module")
def arm() -> Robot:
    return Robot.from_urdf(ARM)


def goal(robot: Robot, q: np.ndarray, **options: Any) -> Target:
    poses = robot.link_poses(q)
    k = robot.link_names.index(LINK)
    point = np.array(options.get("point", (0.0, 0.0, 0.0)))
    return Target(
        link=LINK, position=poses.position[k] + poses.rotation[k] @ point, rotation=poses.rotation[k], **options
    )


def test_pink_reaches_a_target(arm: Robot) -> None:
    pink, solver = library("pink"), library("daqp") and "daqp"
    model = pin.buildModelFromUrdf(str(ARM))
    q = arm.random_configuration(seed=1)
    target = goal(arm, q, point=(0.1, 0.0, 0.2), position_weight=2.0)
    task = pink_task(target)
    assert task.cost.tolist() == [2.0] * 3 + [1.0] * 3
    pink_configuration = pink.Configuration(model, model.createData(), to_pinocchio(arm.configuration, q + 0.1, model))
    for _ in range(40):
        pink_configuration.integrate_inplace(
            pink.solve_ik(pink_configuration, [task], STEP_S, solver=solver, limits=[]), STEP_S
        )
    poses = arm.link_poses(from_pinocchio(arm.configuration, pink_configuration.q, model))
    expected, k = arm.link_poses(q), arm.link_names.index(LINK)
    np.testing.assert_allclose(poses.position[k], expected.position[k], atol=1e-9)
    np.testing.assert_allclose(poses.rotation[k], expected.rotation[k], atol=1e-9)


def test_mink_reaches_targets(arm: Robot) -> None:
    mink = library("mink")
    model = mujoco_model(arm)
    q = arm.random_configuration(seed=2)
    target, k = goal(arm, q), arm.link_names.index(LINK)
    R = np.array(target.rotation)
    points = Target(link=LINK, position=target.position)
    for tasks in ([mink_task(target)], [mink_task(points), mink_task(Target(link=LINK, direction=R[:, 2]))]):
        mink_configuration = mink.Configuration(model, to_qpos(arm.configuration, q + 0.1, model))
        for _ in range(60):
            mink_configuration.integrate_inplace(
                mink.solve_ik(mink_configuration, tasks, STEP_S, "daqp", limits=[]), STEP_S
            )
        poses = arm.link_poses(from_qpos(arm.configuration, mink_configuration.q, model))
        np.testing.assert_allclose(poses.position[k], target.position, atol=1e-6)
        np.testing.assert_allclose(poses.rotation[k][:, 2], R[:, 2], atol=1e-6)


@pytest.mark.parametrize("root", ["fixed", "floating", "planar"])
def test_positions_there_and_back(root: RootType) -> None:
    """Pinocchio writes the angle of a continuous joint as cosine and sine."""
    robot = Robot.from_urdf(TURNING, root=root)
    roots = {"floating": pin.JointModelFreeFlyer(), "planar": pin.JointModelPlanar()}
    model = pin.buildModelFromXML(TURNING, *([roots[root]] if root in roots else []))
    configuration = robot.configuration
    q = np.array([robot.random_configuration(seed=k) for k in range(4)])
    np.testing.assert_allclose(
        from_pinocchio(configuration, to_pinocchio(configuration, q, model), model), q, atol=1e-15
    )
    data, link = model.createData(), robot.link_names[-1]
    pin.framesForwardKinematics(model, data, to_pinocchio(configuration, q[0], model))
    placement = data.oMf[model.getFrameId(link)]
    np.testing.assert_allclose(placement.translation, robot.link_poses(q[0]).position[-1], atol=1e-14)
    mj_model = mujoco_model(robot)
    np.testing.assert_allclose(from_qpos(configuration, to_qpos(configuration, q, mj_model), mj_model), q, atol=1e-15)


def test_models_of_other_robots(arm: Robot) -> None:
    model = pin.buildModelFromUrdf(str(URDF / "panda.urdf"))
    with pytest.raises(NotFoundError, match="Pinocchio's model has no joint 'shoulder_pan_joint'; its joints are univ"):
        to_pinocchio(arm.configuration, np.zeros(6), model)
    other = mujoco_model(Robot.from_urdf(URDF / "scara.urdf"))
    with pytest.raises(NotFoundError, match="MuJoCo's model has no joint 'shoulder_pan_joint'"):
        to_qpos(arm.configuration, np.zeros(6), other)


def test_targets_that_they_have_no_tasks_for() -> None:
    library("pink")
    with pytest.raises(UnimplementedError, match="pink has no task for a direction"):
        pink_task(Target(link=LINK, direction=(0, 0, 1)))
    with pytest.raises(UnimplementedError, match="a target with a point needs a rotation"):
        pink_task(Target(link=LINK, position=(0, 0, 1), point=(0, 0, 1)))
    library("mink")
    with pytest.raises(UnimplementedError, match="use a target for each"):
        mink_task(Target(link=LINK, position=(0, 0, 1), direction=(0, 0, 1)))


@pytest.mark.parametrize("name", ["pink", "mink"])
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({}, "target needs a position, a rotation or a direction"),
        ({"position": np.zeros((2, 3))}, r"target must be of one problem, found leading axes \(2,\)"),
        ({"position": (0.0, np.nan, 0.0)}, "target.position"),
        ({"rotation": 2.0 * np.eye(3)}, r"target.rotation must be a rotation matrix: R R\^T is not 1"),
        ({"rotation": np.eye(3), "direction": (0, 0, 1)}, "target has both rotation and direction"),
        ({"position": (0, 0, 1), "position_weight": -1.0}, "target.position_weight must be a number between"),
    ],
)
def test_wrong_targets(name: str, target: dict[str, Any], message: str) -> None:
    library(name)
    with pytest.raises(InvalidArgumentError, match=message):
        {"pink": pink_task, "mink": mink_task}[name](Target(link=LINK, **target))


@pytest.mark.parametrize("q", [np.zeros(7), np.zeros(5), 0.0, ["a"] * 6, None, np.zeros(6, bool), np.zeros(6, complex)])
def test_wrong_positions(arm: Robot, q: Any) -> None:
    configuration, model, other = arm.configuration, pin.buildModelFromUrdf(str(ARM)), mujoco_model(arm)
    for convert in (to_pinocchio, from_pinocchio, to_qpos, from_qpos):
        with pytest.raises(InvalidArgumentError, match=r"q.* must be \(\.\.\., 6\) numbers, found"):
            convert(configuration, q, model if "pinocchio" in convert.__name__ else other)


def test_missing_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dyn_service.support.optional.find_spec", lambda name: None)
    for task, name in ((pink_task, "pin-pink"), (mink_task, "mink")):
        with pytest.raises(MissingLibraryError, match=rf"needs '{name}'.*pip install 'dyn_service\[tasks\]'"):
            task(Target(link=LINK, position=(0, 0, 1)))

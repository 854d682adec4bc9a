"""What ideal sensors read, against MuJoCo's own sensors and Pinocchio, on real robots, standing and flying.

MuJoCo: a site on every body, mounted askew, with `force`, `torque`, `accelerometer`, `gyro`. Pinocchio: `data.f`, and
classical accelerations and velocities of frames mounted there.
"""

from __future__ import annotations

from itertools import islice

import mujoco
import numpy as np
import pinocchio as pin
import pytest

from dyn_service.engine.robot import Robot
from dyn_service.model.conventions import to_mujoco
from dyn_service.model.description import RootType
from dyn_service.model.tree import Tree
from tests.comparing import assert_close
from tests.oracle.example_robots import ALL_CASES, ONE_PER_FAMILY, path_of
from tests.oracle.many_types import ManyTypes
from tests.oracle.test_many_types import WALKING, mjcf, states
from tests.random_robots import MANY_TYPES, random_urdf
from tests.terms.interpreting import interpreting
from tests.wide import one_in, wide

TOLERANCE = 1e-10
MOUNTED = {"xyz": (0.03, -0.2, 0.11), "rpy": (0.4, -1.1, 2.3)}
GRAVITY = np.array([0.7, -0.4, -9.5])
ROOTS: tuple[RootType, ...] = ("fixed", "floating")


def rotation(rpy: tuple[float, float, float]) -> np.ndarray:
    """As Pinocchio reads `rpy`, which is as URDF means it."""
    return np.array(pin.rpy.rpyToMatrix(*rpy))


Terms = dict[str, tuple[np.ndarray, np.ndarray]]
"""Our readings and the reference by term, each (states, sensors, 3)."""


def assert_readings(terms: Terms, robot: Robot, seed: int) -> None:
    """Errors are relative to the largest number of all states, at least 1."""
    for term, (ours, reference) in terms.items():
        scale = max(np.abs(reference).max(initial=0.0), 1.0)
        assert_close(term, ours, reference, TOLERANCE, robot, *states(robot, seed), min_scale=scale)


def sensed(tree: Tree) -> str:
    """The tree in MuJoCo, each body with a site and its four sensors, called after the joint by which it hangs."""
    quaternion = np.roll(pin.Quaternion(rotation(MOUNTED["rpy"])).coeffs(), 1)
    place = f'pos="{" ".join(map(repr, MOUNTED["xyz"]))}" quat="{" ".join(repr(float(x)) for x in quaternion)}"'
    xml, sensors = mjcf(tree), ""
    for name in tree.joints:
        head, joint_tag, tail = xml.partition(f'<joint name="{name}"')
        element, closing, rest = tail.partition("/>")
        xml = f'{head}{joint_tag}{element}{closing}<site name="{name}" {place}/>{rest}'
        for kind in ("force", "torque", "accelerometer", "gyro"):
            sensors += f'<{kind} name="{kind}.{name}" site="{name}"/>'
    return xml.replace("</worldbody>", f"</worldbody><sensor>{sensors}</sensor>")


def modelled(robot: Robot) -> mujoco.MjModel | None:
    """The robot in MuJoCo; None where nothing moves, or it does not take the bodies' inertias."""
    try:
        return mujoco.MjModel.from_xml_string(sensed(robot.bodies.tree)) if robot.nv else None
    except ValueError as fault:
        if "inertia" not in str(fault) and "mass" not in str(fault):
            raise
        return None


def against_mujoco(robot: Robot, model: mujoco.MjModel, seed: int) -> Terms:
    """Force/torque of joints and IMUs."""
    tree = robot.bodies.tree
    data, configuration = mujoco.MjData(model), robot.configuration
    model.opt.gravity[:] = GRAVITY
    order_q, order_v = (
        np.concatenate(
            [
                start[model.joint(n).id] + np.arange(size(j))
                for n, j in zip(configuration.names, configuration.joints, strict=True)
            ]
        )
        for start, size in ((model.jnt_qposadr, lambda j: j.nq), (model.jnt_dofadr, lambda j: j.nv))
    )
    q, v, a = states(robot, seed)
    loads = robot.force_torque(q, v, a, joints=configuration.names, **MOUNTED, gravity=GRAVITY)
    links = [tree.links[tree.joints.index(name)] for name in configuration.names]
    readings = robot.imu(q, v, a, links=links, **MOUNTED, gravity=GRAVITY)
    mujoco_readings = {
        kind: np.empty((len(q), len(configuration.names), 3)) for kind in ("force", "torque", "accelerometer", "gyro")
    }
    for k in range(len(q)):
        state = to_mujoco(configuration, q[k], v[k], a[k])
        data.qpos[order_q], data.qvel[order_v], data.qacc[order_v] = state.qpos, state.qvel, state.qacc
        mujoco.mj_inverse(model, data)  # evaluates no sensors: they are asked for below, at these accelerations
        mujoco.mj_sensorVel(model, data)
        mujoco.mj_sensorAcc(model, data)
        for kind, rows in mujoco_readings.items():
            rows[k] = [data.sensor(f"{kind}.{name}").data for name in configuration.names]
    return {
        "force_torque.force": (loads.force, mujoco_readings["force"]),
        "force_torque.torque": (loads.torque, mujoco_readings["torque"]),
        "imu.specific_force": (readings.specific_force, mujoco_readings["accelerometer"]),
        "imu.angular_velocity": (readings.angular_velocity, mujoco_readings["gyro"]),
    }


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("name", ALL_CASES)
def test_mujocos_sensors(name: str, root: RootType) -> None:
    robot = interpreting(path_of(name), root=root, mimic=False).without_passive
    model = modelled(robot)
    if model is None:
        pytest.skip("nothing moves, or MuJoCo does not take its inertias")
    assert_readings(against_mujoco(robot, model, 3), robot, 3)


def against_pinocchio(robot: Robot, seed: int) -> Terms:
    """Force/torque at movable joints, and IMUs on all links, fixed ones too."""
    oracle, tree = ManyTypes(robot.tree), robot.tree
    oracle.model.gravity.linear = GRAVITY
    mounted = pin.SE3(rotation(MOUNTED["rpy"]), np.array(MOUNTED["xyz"]))
    q, v, a = states(robot, seed)
    loads = robot.force_torque(q, v, a, joints=robot.joint_names, **MOUNTED, gravity=GRAVITY)
    readings = robot.imu(q, v, a, **MOUNTED, gravity=GRAVITY)
    for i, (carrier, pose) in enumerate(oracle.frames):
        oracle.model.addFrame(pin.Frame(f"sensor {i}", carrier, 0, pose * mounted, pin.FrameType.SENSOR))
    data = oracle.model.createData()
    wrench, acceleration, omega = (
        np.empty(x.shape)
        for x in (np.concatenate([loads.force, loads.torque], -1), readings.specific_force, readings.angular_velocity)
    )
    for k in range(len(q)):
        pinocchio_q = oracle.position(q[k])
        pin.rnea(oracle.model, data, pinocchio_q, v[k], a[k])
        for row, name in enumerate(robot.joint_names):
            carrier, pose = oracle.frames[tree.joints.index(name)]
            force = (pose * mounted).actInv(data.f[carrier])
            wrench[k, row] = np.concatenate([force.linear, force.angular])
        pin.forwardKinematics(oracle.model, data, pinocchio_q, v[k], a[k])
        pin.updateFramePlacements(oracle.model, data)
        for i in range(len(tree)):
            frame = oracle.model.getFrameId(f"sensor {i}")
            motion = pin.getFrameClassicalAcceleration(oracle.model, data, frame, pin.ReferenceFrame.LOCAL)
            acceleration[k, i] = motion.linear - data.oMf[frame].rotation.T @ GRAVITY
            omega[k, i] = pin.getFrameVelocity(oracle.model, data, frame, pin.ReferenceFrame.LOCAL).angular
    return {
        "force_torque.force": (loads.force, wrench[..., :3]),
        "force_torque.torque": (loads.torque, wrench[..., 3:]),
        "imu.specific_force": (readings.specific_force, acceleration),
        "imu.angular_velocity": (readings.angular_velocity, omega),
    }


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("name", ALL_CASES)
def test_pinocchio(name: str, root: RootType) -> None:
    robot = interpreting(path_of(name), root=root, mimic=False).without_passive
    if not robot.nv:
        pytest.skip("nothing moves")
    assert_readings(against_pinocchio(robot, 5), robot, 5)


@pytest.mark.parametrize("seed", wide(range(0, 30, 3), one_in(6)))
def test_joints_of_every_type(seed: int) -> None:
    robot = interpreting(random_urdf(seed, movable=1 + seed % 7, types=MANY_TYPES))
    assert_readings(against_pinocchio(robot, 5), robot, 5)


def test_machine_code() -> None:
    for name in WALKING[:1]:
        robot = Robot.from_urdf(path_of(name), root="floating", mimic=False).without_passive
        assert_readings(against_pinocchio(robot, 5), robot, 5)


def test_on_enough_robots() -> None:
    """The promise is twenty, standing and flying, against both."""
    for root in ROOTS:
        robots = (Robot.from_urdf(path_of(name), root=root, mimic=False).without_passive for name in ONE_PER_FAMILY)
        assert len(list(islice((robot for robot in robots if modelled(robot) is not None), 20))) == 20

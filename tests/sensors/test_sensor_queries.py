"""Ideal sensors by identities: at rest they read weight, their signs are opposite, their places count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dyn_service import Client, Robot, Server
from dyn_service.api.queries import QUERIES, Payload, Wrench
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.model.description import RootType
from dyn_service.parsing.quantities import rotation_of_rpy
from dyn_service.sensors import Sensors
from tests.conftest import URDF
from tests.passive import restless
from tests.phrases import naming
from tests.terms.interpreting import interpreted_robot, interpreting

XYZ, RPY = (0.03, -0.2, 0.11), (0.4, -1.1, 2.3)
R_JS = rotation_of_rpy(np.array(RPY))


@pytest.fixture(scope="module")
def flying() -> Robot:
    return Robot.from_urdf(URDF / "ur5e.urdf", root="floating")


def motion(robot: Robot, seed: int = 0, lead: tuple[int, ...] = ()) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    q = robot.integrate(robot.random_configuration(seed=seed), rng.normal(size=(*lead, robot.nv)), 1.0)
    return q, *rng.normal(size=(2, *lead, robot.nv))


@pytest.mark.parametrize("root", ["fixed", "floating"])
@pytest.mark.parametrize("name", ["panda", "ur5e", "scara"])
def test_at_rest_a_sensor_reads_the_weight_of_what_hangs_on_it(name: str, root: RootType) -> None:
    robot = interpreting(URDF / f"{name}.urdf", root=root)
    q, rest = robot.random_configuration(seed=2), np.zeros(robot.nv)
    poses, branch = robot.link_poses(q), robot.system_momentum(q, rest, frame="world")
    weight = np.array([0.0, 0.0, -9.81])
    read = robot.force_torque(q, rest, rest, direction="child_on_parent")
    parent_on_child = robot.force_torque(q, rest, rest)
    for row, joint in enumerate(read.joints):
        link = robot.tree.joints.index(joint)
        R = poses.rotation[link].T
        pull = branch.mass[link] * weight
        assert read.force[row] == pytest.approx(R @ pull, abs=1e-11)
        assert read.torque[row] == pytest.approx(R @ np.cross(branch.centre[link], pull), abs=1e-11)
    assert np.array_equal(parent_on_child.force, -read.force)
    assert np.array_equal(parent_on_child.torque, -read.torque)
    motion_of_links = robot.imu(q, rest, rest)
    assert motion_of_links.links == robot.link_names
    assert motion_of_links.specific_force == pytest.approx(-weight @ poses.rotation, abs=1e-13)
    assert not motion_of_links.angular_velocity.any()


def test_what_falls_freely_feels_nothing(flying: Robot) -> None:
    q, v, _ = motion(flying)
    rest = np.zeros(flying.nv)
    falling = flying.forward_dynamics(q, rest, rest)
    assert np.abs(flying.imu(q, rest, falling, xyz=XYZ).specific_force).max() < 1e-10
    assert np.abs(flying.force_torque(q, rest, falling, xyz=XYZ).force).max() < 1e-9
    floor = flying.force_torque(q, v, flying.forward_dynamics(q, v, rest), joints=["root_joint"])
    assert np.abs(np.concatenate([floor.force, floor.torque])).max() < 1e-9  # nothing carries the root


def test_a_sensors_place_and_axes(panda: Robot) -> None:
    q, v, a = motion(panda)
    at_sensor, at_joint = panda.force_torque(q, v, a, xyz=XYZ, rpy=RPY), panda.force_torque(q, v, a)
    assert at_sensor.force == pytest.approx(at_joint.force @ R_JS, abs=1e-12)
    assert at_sensor.torque == pytest.approx((at_joint.torque - np.cross(XYZ, at_joint.force)) @ R_JS, abs=1e-12)
    at_sensor, at_origin = panda.imu(q, v, a, xyz=XYZ, rpy=RPY), panda.imu(q, v, a)
    moving = panda.body_recursion(q, v, a)
    spin = np.cross(moving.omega_dot, XYZ) + np.cross(moving.omega, np.cross(moving.omega, XYZ))
    assert at_sensor.specific_force == pytest.approx((at_origin.specific_force + spin) @ R_JS, abs=1e-12)
    assert at_sensor.angular_velocity == pytest.approx(moving.omega @ R_JS, abs=1e-13)


def test_at_the_joint_it_is_the_joints_load() -> None:
    """With wrenches, and joints that do something by themselves: the sensor carries what passes, whatever makes it."""
    robot = interpreted_robot(restless(URDF / "panda.urdf", 1))
    q, v, tau = motion(robot)
    push = [
        Wrench("panda_hand", (1.0, 2.0, 3.0), (4.0, -5.0, 6.0), (0.1, 0.0, 0.2)),
        Wrench("panda_link3", force=(9, 8, 7)),
    ]
    a = robot.forward_dynamics(q, v, tau, wrenches=push)
    load = robot.constraint_forces(q, v, tau, wrenches=push).wrench
    read = robot.force_torque(q, v, a, wrenches=push)
    assert np.concatenate([read.torque, read.force], axis=-1) == pytest.approx(load, abs=1e-9)


def test_what_pushes_behind_it_is_read_and_what_pushes_before_it_is_not(panda: Robot) -> None:
    q, rest = panda.random_configuration(seed=1), np.zeros(panda.nv)
    read = lambda *pushes: panda.force_torque(
        q, rest, rest, joints=["panda_joint5"], direction="child_on_parent", wrenches=list(pushes)
    )
    R = panda.link_poses(q).rotation[panda.link_names.index("panda_link5")]
    push_before, push_behind = Wrench("panda_link4", force=(1.0, 2.0, 3.0)), Wrench("panda_hand", force=(1.0, 2.0, 3.0))
    unpushed = read()
    assert read(push_before).force == pytest.approx(unpushed.force, abs=1e-12)
    assert (read(push_behind).force - unpushed.force)[0] == pytest.approx(np.array([1.0, 2.0, 3.0]) @ R, abs=1e-12)


def test_a_payload_weighs(panda: Robot) -> None:
    q, rest = panda.random_configuration(seed=1), np.zeros(panda.nv)
    loaded = panda.with_payload(Payload("panda_hand", 2.0, (0.0, 0.0, 0.1)))
    read = lambda robot: robot.force_torque(q, rest, rest, joints=["panda_hand_joint"]).force[0]
    assert np.linalg.norm(read(loaded)) - np.linalg.norm(read(panda)) == pytest.approx(2.0 * 9.81)


def test_rows_by_name_in_order_and_each_as_often_as_named(panda: Robot) -> None:
    q, v, a = motion(panda, lead=(3,))
    all_links, names = panda.imu(q, v, a), ["panda_hand", "panda_link0", "panda_hand"]
    selection = panda.imu(q, v, a, links=names)
    assert selection.links == tuple(names)
    rows = [panda.link_names.index(name) for name in names]
    assert np.array_equal(selection.specific_force, all_links.specific_force[:, rows])
    assert np.array_equal(selection.angular_velocity, all_links.angular_velocity[:, rows])
    with pytest.raises(NotFoundError, match=naming("'panda_link'", "did you mean")) as error:
        panda.imu(q, v, a, links=["panda_hand", "panda_link"])
    assert error.value.path == "options.links[1]"
    with pytest.raises(NotFoundError, match="has no joint 'panda_hand'"):
        panda.force_torque(q, v, a, joints=["panda_hand"])


def test_places_broadcast_like_any_input(panda: Robot) -> None:
    q, v, a = motion(panda)
    places = np.random.default_rng(0).normal(size=(4, 3))
    batch = panda.imu(q, v, a, xyz=places).specific_force
    assert np.array_equal(batch, [panda.imu(q, v, a, xyz=place).specific_force for place in places])
    with pytest.raises(InvalidArgumentError, match=naming("xyz", "(2,)", "(..., 3)")):
        panda.imu(q, v, a, xyz=(1.0, 2.0))


def test_left_out_is_at_the_joint_by_every_way(panda: Robot) -> None:
    """The fast path, without optional arguments, and the general path."""
    for row, options in ((QUERIES["force_torque"], {}), (QUERIES["imu"], {})):
        ask, state = getattr(panda, row.name), motion(panda)
        ask(*state)  # later calls take the fast path
        explicit = ask(*state, xyz=np.zeros(3), rpy=np.zeros(3), gravity=(0.0, 0.0, -9.81), **options)
        for name in row.outputs:
            assert np.array_equal(getattr(ask(*state), name), getattr(explicit, name))


def test_sensors_read_the_same_bits_over_a_socket(flying: Robot, tmp_path: Path) -> None:
    """Queries and what devices make of them, one state at a time and a motion at once."""
    local_robot = Robot.from_urdf(URDF / "ur5e.urdf")
    q, v, a = motion(local_robot, lead=(20,))
    t = np.arange(20) * 1e-3
    local_sensors = Sensors.from_file(local_robot, URDF.parent / "config" / "ur5e_sensors.yaml")
    record = local_sensors.record(t, q, v, a)
    with (
        Server([local_robot], endpoints=["tcp://127.0.0.1:0"]) as server,
        Client(server.endpoints[0], timeout_s=240.0) as client,
    ):
        remote_robot = client.robot("ur5e")
        push = Wrench("tool0", force=(1.0, 2.0, 3.0))
        for options in ({}, {"xyz": XYZ}, {"xyz": XYZ, "rpy": RPY, "wrenches": push, "direction": "child_on_parent"}):
            local, remote = (robot.force_torque(q, v, a, **options) for robot in (local_robot, remote_robot))  # type: ignore[arg-type]
            assert np.array_equal(local.force, remote.force)
            assert np.array_equal(local.torque, remote.torque)
        remote_sensors = Sensors.from_file(remote_robot, URDF.parent / "config" / "ur5e_sensors.yaml")
        for name, readings in remote_sensors.record(t, q, v, a).items():
            assert readings.value.tobytes() == record[name].value.tobytes()
        for sensors in (local_sensors, remote_sensors):
            sensors.reset(9)
        for k in range(20):
            local, remote = (
                sensors.read(t[k], q[k], v[k], a[k], wrenches=push) for sensors in (local_sensors, remote_sensors)
            )
            assert local.keys() == remote.keys()
            for name in local:
                assert local[name].value.tobytes() == remote[name].value.tobytes()
        assert "wrist" in local

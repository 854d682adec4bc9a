"""What planes push with, worked out from a recorded state: what the plant's own simulation has, and statics by hand."""

import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.service.protocol.inputs import unpack_contacts
from dyn_service.simulation.contact.supports import SupportedDynamics
from dyn_service.simulation.task import checked
from dyn_service.view.scene import Ground, Scene

TABLE = """<robot name="table"><link name="top"><inertial><mass value="4"/>
<inertia ixx="0.1" ixy="0" ixz="0" iyy="0.1" iyz="0" izz="0.2"/></inertial></link>
<link name="weight"><inertial><mass value="1"/>
<inertia ixx="0.01" ixy="0" ixz="0" iyy="0.01" iyz="0" izz="0.01"/></inertial></link>
<joint name="on" type="fixed"><origin xyz="0 0 0.1"/><parent link="top"/><child link="weight"/></joint></robot>"""
FEET = [[x, y, -0.5] for x in (0.3, -0.3) for y in (0.2, -0.2)]
G = 9.81


@pytest.fixture(scope="module")
def robot() -> Robot:
    return Robot.from_text(TABLE, root="floating")


def parameters(**other: object) -> dict:
    feet = [{"link": "top", "point": point, "radius": 0.05, "friction": 0.7, **other} for point in FEET]
    return {"contacts": feet, "rate_hz": 500.0, "substeps": 2}


def test_forces_are_those_of_the_simulation(robot: Robot) -> None:
    """The robot's acceleration under them is the one that the plant integrates."""
    plant_parameters = parameters()
    ground = Ground(robot, plant_parameters)
    q = np.array([0.0, 0.0, 0.548, 0.01, 0.0, 0.0, np.sqrt(1.0 - 1e-4)])
    v = np.array([0.05, -0.02, -0.01, 0.1, 0.0, 0.2])
    contacts = unpack_contacts(plant_parameters["contacts"], "contacts")
    task = checked(robot.configuration, q, v, None, dt=1e-3, steps=1, contacts=contacts)
    forces = ground.forces(q, v, np.zeros(6))
    assert (forces[:, 2] > 0.0).any()
    assert np.abs(forces[:, :2]).max() > 0.0  # it slides
    poses = robot.link_poses(q)
    points = ground.points(poses.rotation, poses.position)
    wrenches = ground.wrenches(points, poses.rotation, poses.position, forces)
    a = robot.forward_dynamics(q, v, np.zeros(6), wrenches=wrenches)
    expected = SupportedDynamics(robot, task)(q, v, np.zeros(6))
    np.testing.assert_allclose(a, expected, rtol=1e-9, atol=1e-9)  # two ways to the same sums


def test_a_table_at_rest(robot: Robot) -> None:
    """On rigid feet each bears a quarter of the weight, and the joint carries the weight that lies on the top."""
    scene = Scene(robot, Ground(robot, parameters(rigid=True)))
    q = np.array([0.0, 0.0, 0.55, 0.0, 0.0, 0.0, 1.0])
    shot = scene.moving(q, np.zeros(6), np.zeros(6))
    np.testing.assert_allclose(shot.contact_force, [5.0 * G / 4.0] * 4, rtol=1e-9)
    np.testing.assert_allclose(shot.contacts[:, 0], np.array(FEET) + np.array([0.0, 0.0, 0.5]), atol=1e-12)
    arrows = shot.contacts[:, 1] - shot.contacts[:, 0]
    assert (arrows[:, 2] > 0.0).all()
    np.testing.assert_allclose(arrows[:, :2], 0.0, atol=1e-9)
    assert dict(zip(shot.joints, shot.force, strict=True))["on"] == pytest.approx(G, rel=1e-9)
    assert len(scene.still(q).contacts) == 0


def test_the_floor_is_the_lowest_plane(robot: Robot) -> None:
    assert Ground(robot, parameters()).height == 0.0
    plant_parameters = parameters(plane=[1.0, 2.0, -0.34])
    plant_parameters["contacts"][0]["plane"] = [0.0, 0.0, 0.2]
    assert Ground(robot, plant_parameters).height == -0.34

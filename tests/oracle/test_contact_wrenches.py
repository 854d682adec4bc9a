"""Force/torque sensors of a plant whose robot touches something: by Newton and Euler by hand, and MuJoCo's own sensors.

The sensor carries what is beyond it: its weight, its inertia, and what planes push it with.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dyn_service.api.queries import Payload, Wrench
from dyn_service.control.plant.simulated import SimulatedRobot
from dyn_service.engine.robot import Robot
from dyn_service.graph.nodes.plant.factory import PlantParameters, make_plant
from dyn_service.graph.nodes.plant.node import PlantChanges
from dyn_service.model.conventions import from_mujoco, to_mujoco
from dyn_service.simulation.mujoco import MujocoEngine

G = 9.81
DT = 1e-3
CART, TRUNK, SHANK, FOOT = 0.5, 3.0, 0.7, 0.4
ANKLE, RADIUS = 0.1, 0.05  # m: the foot's middle below the sensor; of the foot, a ball


def body(name: str, mass: float) -> str:
    inertia = f'<inertia ixx="{0.1 * mass}" ixy="0" ixz="0" iyy="{0.1 * mass}" iyz="0" izz="{0.1 * mass}"/>'
    place = f'<origin xyz="0 0 {-ANKLE}"/>' if name == "foot" else ""
    return f'<link name="{name}"><inertial>{place}<mass value="{mass}"/>{inertia}</inertial></link>'


def joint(name: str, kind: str, parent: str, child: str, axis: str, xyz: str = "0 0 0") -> str:
    shape = f'<axis xyz="{axis}"/><limit lower="-9" upper="9" effort="1000" velocity="1000"/>' if axis else ""
    ends = f'<parent link="{parent}"/><child link="{child}"/>'
    return f'<joint name="{name}" type="{kind}">{ends}<origin xyz="{xyz}"/>{shape}</joint>'


HOPPER = (
    f'<robot name="hopper"><link name="world"/>{body("cart", CART)}{body("trunk", TRUNK)}{body("shank", SHANK)}'
    f"{body('foot', FOOT)}{joint('along', 'prismatic', 'world', 'cart', '1 0 0')}"
    f"{joint('up', 'prismatic', 'cart', 'trunk', '0 0 1')}{joint('leg', 'prismatic', 'trunk', 'shank', '0 0 1')}"
    f"{joint('ankle', 'fixed', 'shank', 'foot', '', '0 0 -0.3')}</robot>"
)
"""A leg of slides on a cart that runs along x; its foot is a ball, and touches the ground at up + leg = 0.45 m."""
STANDS = 0.3 + ANKLE + RADIUS
SENSOR = "robot: hopper\nforce_torque: {sole: {joint: ankle, rate_hz: 1000}}\n"
TOUCHES = {"link": "foot", "point": [0.0, 0.0, -ANKLE], "radius": RADIUS, "friction": 0.4}


@pytest.fixture(scope="module")
def hopper() -> Robot:
    return Robot.from_urdf(HOPPER)


def standing_robot(robot: Robot, tmp_path: Path, up: float, **changes: object) -> SimulatedRobot:
    sensors = tmp_path / "sole.yaml"
    sensors.write_text(SENSOR)
    contact = {**TOUCHES, **changes.pop("contact", {})}  # type: ignore[dict-item]
    p = PlantParameters(robot="-", sensors=str(sensors), contacts=[contact], initial_position=[0.0, up, 0.0], **changes)
    plant = make_plant(robot, p, session=1)
    assert isinstance(plant.robot, SimulatedRobot)
    return plant.robot


def read(robot: SimulatedRobot) -> np.ndarray:
    assert robot.measuring is not None
    return robot.measuring.readings["sole"].value


@pytest.mark.parametrize(("integrator", "substeps"), [("rk4", 1), ("rk4", 3), ("semi_implicit_euler", 1)])
def test_what_is_above_the_sensor_gets_its_impulse_from_it(
    hopper: Robot, tmp_path: Path, integrator: str, substeps: int
) -> None:
    """Newton: the foot strikes the ground and slides; what the sensor reads, summed over time, is what cart, trunk and
    shank have less of momentum, in every single step, through the impact too. Euler: its torque is that of the same
    forces about its origin.
    """
    robot = standing_robot(hopper, tmp_path, STANDS + 2e-3, integrator=integrator, substeps=substeps)
    robot.set_state(robot.q, np.array([0.4, -1.0, 0.0]))
    effort = np.array([0.0, 0.0, 2.0])
    largest = 0.0
    for _ in range(30):
        v_before = robot.v
        robot.write(effort, brakes=False)
        a_x, a_z, leg = (robot.v - v_before) / DT
        force, torque = read(robot)[:3], read(robot)[3:]
        x = -(CART + TRUNK + SHANK) * a_x
        z = -TRUNK * (a_z + G) - SHANK * (a_z + leg + G)
        scale = max(1.0, abs(z))
        np.testing.assert_allclose(force / scale, [x / scale, 0.0, z / scale], atol=1e-10)  # a thousand roundings
        inertial = FOOT * np.array([a_x, 0.0, a_z + leg + G])
        pushed = inertial - force
        moment = np.cross([0, 0, -ANKLE], inertial) - np.cross([0, 0, -ANKLE - RADIUS], pushed)
        np.testing.assert_allclose(torque / scale, moment / scale, atol=1e-10)
        largest = max(largest, float(pushed[2]))
        assert abs(pushed[0]) <= 0.4 * pushed[2] + 1e-9 * scale  # friction
    assert largest > 200.0  # it did strike


def test_a_foot_at_rest_carries_the_weight_above_it(hopper: Robot, tmp_path: Path) -> None:
    robot = standing_robot(hopper, tmp_path, STANDS)
    for _ in range(250):
        servo = -TRUNK * G - 4000.0 * robot.q[2] - 200.0 * robot.v[2]
        robot.write(np.array([0.0, 0.0, servo]), brakes=False)
    assert np.abs(robot.v).max() < 1e-5
    # what is left dies out in some ten milliseconds: 1e-3 m/s^2 of 4 kg
    np.testing.assert_allclose(read(robot), [0, 0, -(TRUNK + SHANK) * G, 0, 0, 0], atol=4e-3)


def test_in_its_brakes_the_plane_pushes_by_its_depth(hopper: Robot, tmp_path: Path) -> None:
    """By Hooke: k delta, from the first reading on; a payload that is set changes the engine, and not that."""
    robot = standing_robot(hopper, tmp_path, STANDS - 1e-3, contact={"stiffness": 5e4})
    expected = FOOT * G - 50.0
    assert read(robot)[2] == pytest.approx(expected, abs=1e-9)
    robot.write(np.zeros(3), brakes=True)
    assert read(robot)[2] == pytest.approx(expected, abs=1e-9)
    robot.velocity_limit = np.array([np.inf, 1e-9, np.inf])  # it is passed at once: the drive brakes
    robot.write(np.zeros(3), brakes=False)
    assert robot.read().fault == "velocity"
    assert read(robot)[2] == pytest.approx(expected, abs=1e-9)


def test_rigid_contacts_are_felt_but_in_the_brakes(hopper: Robot, tmp_path: Path) -> None:
    robot = standing_robot(hopper, tmp_path, STANDS, contact={"rigid": True}, integrator="rk4")
    assert read(robot)[2] == pytest.approx(FOOT * G, abs=1e-9)  # the brakes hold it all
    robot.write(np.array([0.0, 0.0, -TRUNK * G]), brakes=False)
    np.testing.assert_allclose(read(robot)[:3], [0.0, 0.0, -(TRUNK + SHANK) * G], atol=1e-9)


def test_wrenches_and_payloads_come_beside_contacts(hopper: Robot, tmp_path: Path) -> None:
    sensors = tmp_path / "sole.yaml"
    sensors.write_text(SENSOR)
    contact = {**TOUCHES, "stiffness": 5e4}
    p = PlantParameters(robot="-", sensors=str(sensors), contacts=[contact], initial_position=[0.0, STANDS - 1e-3, 0.0])
    plant = make_plant(hopper, p, session=1)
    changes = PlantChanges(plant, hopper, p)
    changes.set_payload(Payload("foot", 0.2))
    changes.push(Wrench("foot", force=(1.0, 2.0, 3.0)), 0.01)
    plant.advance(1)
    np.testing.assert_allclose(read(plant.robot)[:3], [-1.0, -2.0, 0.6 * G - 50.0 - 3.0], atol=1e-9)
    plant.robot.write(np.zeros(3), brakes=False)  # Newton of what is above: it was at rest before
    a_x, a_z, leg = plant.robot.v / DT
    expected_force = [-(CART + TRUNK + SHANK) * a_x, -2.0, -TRUNK * (a_z + G) - SHANK * (a_z + leg + G)]
    np.testing.assert_allclose(read(plant.robot)[:3], expected_force, atol=1e-7)  # of some 1e3 N


WALKER = """<mujoco model="walker"><compiler angle="radian"/><option timestep="0.001"/>
  <default><geom solref="0.01 1" friction="0.6 0.02 0.001" condim="4"/></default><worldbody>
  <geom name="floor" type="plane" size="3 3 0.1"/>
  <body name="loose" pos="1 0 0.05"><freejoint name="of_loose"/>
    <geom type="box" size="0.05 0.05 0.05" mass="0.3"/></body>
  <body name="trunk" pos="0 0 0.5"><freejoint name="root_joint"/><geom type="box" size="0.2 0.1 0.04" mass="2.0"/>
    <body name="left" pos="0.05 0.08 -0.05"><joint name="left_hip" axis="0 1 0" stiffness="80" damping="1"/>
      <geom type="capsule" fromto="0 0 0 0 0 -0.2" size="0.02" mass="0.3"/>
      <body name="left_sole" pos="0.02 0 -0.22"><geom type="box" size="0.1 0.04 0.01" mass="0.1"/></body>
      <site name="left"/></body>
    <body name="right" pos="-0.05 -0.08 -0.05"><joint name="right_hip" axis="0 1 0" stiffness="80" damping="1"/>
      <geom type="capsule" fromto="0 0 0 0 0 -0.2" size="0.02" mass="0.3"/>
      <body name="right_sole" pos="-0.02 0 -0.22"><geom type="box" size="0.1 0.04 0.01" mass="0.1"/></body>
      <site name="right"/></body></body></worldbody>
  <sensor><force name="force.left" site="left"/><torque name="torque.left" site="left"/>
    <force name="force.right" site="right"/><torque name="torque.right" site="right"/></sensor></mujoco>"""
"""Two legs with soles, and a box on the floor that is none of the robot's."""
ROBOT = WALKER.replace(WALKER[WALKER.index('<body name="loose"') : WALKER.index('<body name="trunk"')], "")
LEGS = ("left", "right")


@pytest.fixture(scope="module")
def walker(tmp_path_factory: pytest.TempPathFactory) -> tuple[Robot, Path]:
    """The robot, from a file without the box; the file with it."""
    folder = tmp_path_factory.mktemp("walker")
    robot_file, world_file = folder / "alone.xml", folder / "whole.xml"
    robot_file.write_text(ROBOT)
    # bodies of other names than the links: one is known by its joint, the others are parts of what they are fixed to
    world_file.write_text(WALKER.replace('body name="right"', 'body name="leg"').replace("_sole", "_shoe"))
    return Robot.from_file(robot_file), world_file


def walking(walker: tuple[Robot, Path], tmp_path: Path, **changes: object) -> SimulatedRobot:
    robot, file = walker
    sensors = tmp_path / "hips.yaml"
    hips = "".join(f"  {leg}: {{joint: {leg}_hip, rate_hz: 1000}}\n" for leg in LEGS)
    sensors.write_text(f"robot: walker\nforce_torque:\n{hips}")
    p = PlantParameters(robot="-", engine="mujoco", mjcf=str(file), sensors=str(sensors), **changes)
    plant = make_plant(robot, p, session=1)
    assert isinstance(plant.robot, SimulatedRobot)
    tilted = np.array([0.0, 0.0, 0.3, 0.05, 0.03, 0.1])
    tilted = np.append(tilted, np.sqrt(1.0 - tilted[3:] @ tilted[3:]))
    places = dict(zip(robot.configuration.names, robot.configuration.q_slices, strict=True))
    q, v = robot.configuration.neutral.copy(), np.zeros(robot.nv)
    q[places["root_joint"]] = tilted
    v[2], v[0] = -0.8, 0.3
    plant.robot.set_state(q, v)
    return plant.robot


def test_mujocos_own_sensors_read_the_same(walker: tuple[Robot, Path], tmp_path: Path) -> None:
    """In the state from which each of Euler's steps is made, at its acceleration, while it falls on its soles."""
    robot, configuration = walker[0], walker[0].configuration
    plant = walking(walker, tmp_path, integrator="semi_implicit_euler")
    engine = plant.engine
    assert isinstance(engine, MujocoEngine)
    touched = 0
    for _ in range(70):
        q, v = plant.q, plant.v
        plant.write(np.zeros(robot.nv), brakes=False)
        data, began = engine.data, to_mujoco(configuration, q, v)
        a = from_mujoco(configuration, began.qpos, began.qvel, data.qacc[engine._in_v]).a
        loads = robot.force_torque(q, v, a, joints=["left_hip", "right_hip"], wrenches=list(engine.contact_wrenches()))
        mujoco_loads = np.array([[data.sensor(f"{kind}.{leg}").data for kind in ("force", "torque")] for leg in LEGS])
        ours = np.stack([loads.force, loads.torque], axis=1)
        np.testing.assert_allclose(
            ours, mujoco_loads, atol=1e-9 * max(1.0, float(np.abs(mujoco_loads).max()))
        )  # roundings
        touched += data.ncon > 4  # four are the box's
    assert touched > 10


@pytest.mark.parametrize(("integrator", "substeps"), [("semi_implicit_euler", 2), ("rk4", 1)])
def test_the_impulse_of_a_fall_on_mujoco(
    walker: tuple[Robot, Path], tmp_path: Path, integrator: str, substeps: int
) -> None:
    """The two hips together, and the trunk's own weight: the trunk's momentum, along the world's axes. The axes turn by
    less than a thousandth in a step, and so much of the forces is lost. With the forces of RK4's last stage alone it
    would be 8 %.
    """
    robot = walker[0]
    plant = walking(walker, tmp_path, integrator=integrator, substeps=substeps)
    assert plant.measuring is not None
    trunk, *legs = (robot.link_names.index(name) for name in ("trunk", *LEGS))

    def velocity() -> np.ndarray:
        return robot.link_poses(plant.q).rotation[trunk] @ plant.v[:3]  # the free joint comes first

    began, impulse, largest = velocity(), np.zeros(3), 0.0
    for _ in range(70):
        plant.write(np.zeros(robot.nv), brakes=False)
        rotation = robot.link_poses(plant.q).rotation
        readings = plant.measuring.readings
        pulled = -sum(rotation[k] @ readings[leg].value[:3] for k, leg in zip(legs, LEGS, strict=True))
        impulse += DT * (pulled - [0.0, 0.0, 2.0 * G])
        largest = max(largest, float(np.abs(pulled).max()))
    assert largest > 150.0  # it did strike
    np.testing.assert_allclose(impulse, 2.0 * (velocity() - began), atol=1e-3 * float(np.abs(impulse).max()))


def test_brakes_leave_a_robot_that_rests_on_mujocos_ground_as_it_is(walker: tuple[Robot, Path], tmp_path: Path) -> None:
    """It stands: both hips carry the trunk's weight; in its brakes they read what they read before."""
    robot = walker[0]
    plant = walking(walker, tmp_path, integrator="semi_implicit_euler")
    q = plant.q.copy()
    q[:7] = [0.0, 0.0, 0.2799, 0.0, 0.0, 0.0, 1.0]
    plant.set_state(q, np.zeros(robot.nv))
    for _ in range(300):
        plant.write(np.zeros(robot.nv), brakes=False)
    assert plant.measuring is not None
    free = np.array([plant.measuring.readings[leg].value for leg in LEGS])
    assert np.abs(plant.v).max() < 1e-5
    assert free[:, 2].sum() == pytest.approx(-2.0 * G, abs=1e-3)  # what is left dies out: 1e-3 m/s^2 and less
    plant.write(np.zeros(robot.nv), brakes=True)
    np.testing.assert_allclose([plant.measuring.readings[leg].value for leg in LEGS], free, atol=1e-3)

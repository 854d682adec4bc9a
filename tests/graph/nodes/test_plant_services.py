"""Services of a simulated plant: set_state, pushes, payloads, steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dyn_service.api.queries import Overlay, Payload, Wrench
from dyn_service.control.joint_states import JointStates
from dyn_service.engine.robot import Robot
from dyn_service.errors import DynError, FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError
from dyn_service.graph.nodes.plant.factory import PlantParameters, make_plant
from dyn_service.graph.nodes.plant.node import MAX_PUSHES, PlantChanges, PlantLoop, PlantTopics, create_services
from dyn_service.graph.nodes.plant.srvs import PlantTimeResponse
from dyn_service.messages.geometry_msgs import WrenchStamped
from dyn_service.messages.sensor_msgs import Imu
from tests.control.test_plant_truth import drive, plant_of
from tests.graph.in_process import Nodes
from tests.phrases import naming

G = 9.81
"""m/s^2"""
EFFORT = [0.3, -0.2]
"""N m; the arm hangs where a plant begins, and moves by them."""


class Plant:
    """A plant's node and a client node, which spin in turns."""

    def __init__(self, nodes: Nodes, robot: Robot, **changes) -> None:
        p = PlantParameters(robot="-", **changes)
        self.nodes, self.node, self.asks = nodes, nodes.make("/arm/plant", p), nodes.make("/asks")
        self.of = make_plant(robot, p, session=1)
        self.changes = PlantChanges(self.of, robot, p)
        create_services(
            self.node, PlantLoop(self.node, self.of, PlantTopics(self.node, p, JointStates.of(robot))), self.changes
        )

    def call(self, name: str, **request):
        pending = self.asks.create_client(f"/arm/plant/{name}", PlantTimeResponse).begin(request, 30.0)
        self.nodes.until(lambda: pending.done)
        return pending.result()


def test_another_state_is_where_the_plant_is_at_once(nodes: Nodes, arm: Robot) -> None:
    plant = Plant(nodes, arm)
    plant.of.advance(3)
    response = plant.call("set_state", position={"joint_2": 0.5}, velocity={"joint_1": 0.2})
    assert response == PlantTimeResponse(0.003, "braked")
    state = plant.of.state()
    assert (state.position, state.velocity) == ([plant.of.limits.lower[0] + 100.0, 0.5], [0.2, 0.0])
    plant.call("set_state", position=[0.1, 0.2])
    assert plant.of.state().position == [0.1, 0.2]
    assert plant.of.state().velocity == [0.0, 0.0]
    plant.call("reset")
    assert plant.of.state().position == make_plant(arm, PlantParameters(robot="-"), session=1).state().position


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"position": {"joint_9": 0.0}}, "position: no joint 'joint_9'; the joints are joint_1, joint_2"),
        ({"position": [0.0]}, "position has 1 numbers, the robot 2 positions"),
        ({"velocity": [0.0]}, "velocity has 1 numbers, the robot 2 velocities"),
        ({"position": {"joint_1": 101.0}}, "position of 'joint_1' is 101: expected a number, -100 to 100"),
        ({"velocity": {"joint_2": -51.0}}, "velocity of 'joint_2' is -51: expected a number, -50 to 50"),
        ({"position": {"joint_1": float("nan")}}, "position of 'joint_1' is nan: expected a number, -100 to 100"),
        ({"postion": {}}, "unknown key 'postion'"),
    ],
)
def test_states_that_are_refused_change_nothing(nodes: Nodes, arm: Robot, request_: dict, message: str) -> None:
    plant = Plant(nodes, arm)
    state_before = plant.of.state()
    with pytest.raises(DynError) as excinfo:
        plant.call("set_state", **request_)
    assert message in str(excinfo.value)
    assert plant.of.state() == state_before


def test_a_joint_without_limits_is_put_at_no_infinity(nodes: Nodes) -> None:
    wheel = Robot.from_urdf(
        '<robot name="wheel"><link name="base"/><link name="rim"><inertial><mass value="1"/>'
        '<inertia ixx="0.1" ixy="0" ixz="0" iyy="0.1" iyz="0" izz="0.1"/></inertial></link><joint name="axle" '
        'type="continuous"><parent link="base"/><child link="rim"/></joint></robot>'
    )
    plant = Plant(nodes, wheel)
    for field in ("position", "velocity"):
        with pytest.raises(DynError, match=naming(field, "'axle'", "inf", "-inf")):
            plant.call("set_state", **{field: {"axle": float("inf")}})


@pytest.mark.parametrize("service", ["set_state", "reset"])
def test_a_robot_under_command_is_not_put_elsewhere(nodes: Nodes, arm: Robot, service: str) -> None:
    plant = Plant(nodes, arm)
    drive(plant.of, [0.0, 0.0], 3)
    state_before = plant.of.state()
    with pytest.raises(FailedPreconditionError, match=naming(service, "(active)")):
        plant.call(service)
    assert plant.of.state() == state_before


def test_a_push_acts_under_command_for_its_time(nodes: Nodes, arm: Robot) -> None:
    plant, plain = Plant(nodes, arm), drive(plant_of(arm), [0.0, 0.0], 35)
    drive(plant.of, [0.0, 0.0], 5)
    q, v = plant.of.q, plant.of.v
    push = {"link": "lower_bar", "force": [0.0, 0.0, 5.0], "point": [0.1, 0.0, 0.0]}
    assert plant.call("push", **push, duration=0.02).mode == "active"
    drive(plant.of, [0.0, 0.0], 30)
    pushed = arm.simulate(q, v, dt=1e-3, steps=20, wrenches=[Wrench(**push)])
    last = arm.simulate(pushed.q[-1], pushed.v[-1], dt=1e-3, steps=10)
    np.testing.assert_allclose(plant.of.q, last.q[-1], atol=1e-10)  # roundings of 30 steps
    assert np.abs(plant.of.q - plain.q).max() > 1e-4


def test_a_payload_is_carried_from_now_on_and_put_down_again(nodes: Nodes, arm: Robot) -> None:
    """The payloads of the parameters and of other links stay; the fingerprint stays."""
    overlay = {"payloads": [{"link": "upper_bar", "mass": 0.3, "com": [0.0, 0.0, -0.2]}]}
    plant = Plant(nodes, arm, overlay={**overlay, "joints": {"joint_1": {"damping": 0.1}}})
    damped = {"joint_1": plant.changes._overlay.joints["joint_1"]}
    payload_requests = [
        {"link": "lower_bar", "mass": 0.5, "com": (0.0, 0.0, -0.2)},
        {"link": "upper_bar", "mass": 0.4, "com": (0.0, 0.1, -0.1)},
    ]
    parts = [Payload("upper_bar", 0.3, com=(0.0, 0.0, -0.2)), *(Payload(**request) for request in payload_requests)]

    def moves_with(payloads: list[Payload]) -> None:
        real, q, v = arm.overlaid(Overlay(payloads=payloads, joints=damped)), plant.of.q, plant.of.v
        motion = real.simulate(q, v, EFFORT, dt=1e-3, steps=10)
        drive(plant.of, EFFORT, 10)
        assert np.abs(plant.of.q - q).max() > 1e-6  # it does move: at rest a payload would not be seen
        np.testing.assert_allclose(plant.of.q, motion.q[-1], atol=1e-11)

    drive(plant.of, EFFORT, 50)
    for count, request in enumerate(payload_requests):
        plant.call("set_payload", **request)
        moves_with(parts[: 2 + count])
    assert plant.of.state().fingerprint == arm.fingerprint
    plant.call("set_payload", link="lower_bar", mass=0.0)
    moves_with([parts[0], parts[2]])


def test_sensors_weigh_a_payload_that_was_set(nodes: Nodes, arm: Robot, tmp_path: Path) -> None:
    """In its brakes: the wrist bears it from the next sample on, and no longer when it is put down."""
    path = tmp_path / "sensors.yaml"
    path.write_text("robot: double_pendulum\nforce_torque: {wrist: {joint: joint_2, rate_hz: 1000}}\n", "utf-8")
    plant, forces = Plant(nodes, arm, sensors=str(path)), []
    for mass in (0.0, 0.5, 0.0):
        plant.call("set_payload", link="lower_bar", mass=mass)
        plant.of.advance(2)
        forces.append(np.linalg.norm(plant.of.robot.measuring.readings["wrist"].value[:3]))
    # the parent holds the child up with its weight, along one direction: lengths of forces add
    np.testing.assert_allclose(np.diff(forces), [0.5 * G, -0.5 * G], rtol=1e-9)  # differences of two such numbers


def test_a_reset_puts_the_payload_down(nodes: Nodes, arm: Robot) -> None:
    plant = Plant(nodes, arm)
    plant.call("set_payload", link="lower_bar", mass=0.5)
    plant.call("reset")
    drive(plant.of, [0.3, 0.0], 10)
    assert np.array_equal(plant.of.q, drive(plant_of(arm), [0.3, 0.0], 10).q)


def test_mujoco_carries_and_is_pushed_as_well(nodes: Nodes, arm: Robot) -> None:
    """Equal to our engine, except that a push is held through a step: a difference of first order in it."""
    ends = []
    for engine in ("own", "mujoco"):
        plant = Plant(nodes, arm, engine=engine)
        drive(plant.of, [0.0, 0.0], 2)
        plant.call("push", link="lower_bar", torque=[0.0, 0.3, 0.0], duration=0.01)
        plant.call("set_payload", link="lower_bar", mass=0.5, com=[0.0, 0.0, -0.2])
        drive(plant.of, [0.0, 0.0], 20)
        ends.append(np.concatenate([plant.of.q, plant.of.v]))
        for node in (plant.node, plant.asks):
            nodes.end(node)
    np.testing.assert_allclose(ends[0], ends[1], atol=1e-9)  # a torque in the plane of motion has no arm: roundings
    assert np.abs(ends[0] - drive(plant_of(arm), [0.0, 0.0], 22).q.repeat(2)).max() > 1e-3


@pytest.mark.parametrize(
    ("name", "request_", "message"),
    [
        ("push", {"link": "bar", "duration": 0.1}, "link 'bar'"),
        ("push", {"link": "lower_bar", "duration": 0.1, "frame": "wrld"}, "wrld"),
        ("push", {"link": "lower_bar", "duration": 61.0}, "duration"),
        ("push", {"link": "lower_bar", "duration": 0.1, "force": [0.0, float("inf"), 0.0]}, "force is"),
        ("push", {"link": "lower_bar", "duration": 0.1, "force": [0.0]}, "force"),
        ("set_payload", {"link": "lower_bar", "mass": -1.0}, "mass"),
        ("set_payload", {"link": "bar", "mass": 1.0}, "has no link 'bar'"),
        ("set_payload", {"link": "lower_bar", "mass": 1.0, "inertia": [[1, 0, 0], [0, 1, 0], [0, 0, 9]]}, "principal"),
        ("step", {"steps": 1}, "step: only a plant with clock: lockstep is stepped"),
        ("step", {"steps": 0}, "steps"),
    ],
)
def test_invalid_requests_are_refused(nodes: Nodes, arm: Robot, name: str, request_: dict, message: str) -> None:
    plant = Plant(nodes, arm)
    with pytest.raises(DynError) as excinfo:
        plant.call(name, **request_)
    assert message in str(excinfo.value)
    assert plant.of.robot.pushes == []
    assert plant.changes.payloads == {}


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda changes: changes.push(Wrench("lower_bar"), np.inf),
            "duration is inf: expected more than 0 and at most 60 s",
        ),
        (lambda changes: changes.push(Wrench("lower_bar"), np.nan), "duration is nan"),
        (lambda changes: changes.push(Wrench("lower_bar"), 0.0), "duration is 0"),
        (
            lambda changes: changes.push(Wrench("lower_bar", force=np.ones((2, 3))), 0.1),
            "force is .*: expected 3 finite numbers",
        ),
        (
            lambda changes: changes.set_payload(Payload("lower_bar", np.ones(2))),
            r"of the shapes \(2,\), \(3,\), \(3, 3\)",
        ),
        (
            lambda changes: changes.set_payload(Payload("lower_bar", 1.0, com=np.ones((2, 3)))),
            "expected those of one payload",
        ),
    ],
)
def test_in_process_it_is_refused_as_by_a_request(arm: Robot, ask, message: str) -> None:
    """Nor is there one state of a plant that many wrenches or payloads act on."""
    p = PlantParameters(robot="-")
    changes = PlantChanges(make_plant(arm, p, session=1), arm, p)
    with pytest.raises(InvalidArgumentError, match=message):
        ask(changes)
    assert (changes.plant.robot.pushes, changes.payloads) == ([], {})


def test_wrenches_that_act_at_once_are_bounded(nodes: Nodes, arm: Robot) -> None:
    plant = Plant(nodes, arm)
    push = Wrench("lower_bar", force=(0.0, 0.0, 0.01))
    for _ in range(MAX_PUSHES):
        plant.changes.push(push, 1.0)
    with pytest.raises(ResourceExhaustedError, match="32 pushes act already"):
        plant.changes.push(push, 1.0)
    plant.changes.reset()
    assert plant.of.robot.pushes == []


def test_steps_in_lockstep_count_as_steps_without_command(nodes: Nodes, arm: Robot) -> None:
    plant = Plant(nodes, arm, clock="lockstep")
    assert plant.call("step", steps=5).time == pytest.approx(0.005)
    assert plant.call("step").time == pytest.approx(0.006)
    assert plant.of.safety.mode == "braked"


def test_readings_are_published_as_ros_has_them(nodes: Nodes, arm: Robot, tmp_path: Path) -> None:
    """What the weight behind a wrist is, and gravity in an IMU; each reading once, with the time of its sample."""
    path = tmp_path / "sensors.yaml"
    path.write_text(
        "robot: double_pendulum\nforce_torque: {wrist: {joint: joint_2, rate_hz: 500, latency_s: 0.002}}\n"
        "imus: {tip: {link: lower_bar, rate_hz: 1000}}\nencoders: {joint_1: {step: 0.001, rate_hz: 1000}}\n"
    )
    p = PlantParameters(robot="-", sensors=str(path), initial_position=[0.0, 0.0])
    plant, node, other = make_plant(arm, p, session=1), nodes.make("/arm/plant", p), nodes.make("/asks")
    topics = PlantTopics(node, p, JointStates.of(arm), plant)
    wrenches, readings = list[WrenchStamped](), list[Imu]()
    other.create_subscription(WrenchStamped, "/arm/wrist/wrench", wrenches.append, queue=100)
    other.create_subscription(Imu, "/arm/tip/imu", readings.append, queue=100)

    def step() -> None:
        plant.advance(2)
        topics.send(plant.publish())
        topics.send(plant.publish())

    nodes.until(lambda: step() or (wrenches and readings))  # both are connected
    begin_ns = plant.counters.steps * 1_000_000
    came = [lambda: readings[-1].header.stamp, lambda: wrenches[-1].header.stamp]
    nodes.until(lambda: [stamp().nanoseconds() - begin_ns for stamp in came] == [0, -2_000_000])  # nothing is under way
    wrenches.clear()
    readings.clear()
    for _ in range(10):
        step()
    nodes.until(lambda: len(readings) >= 10 and len(wrenches) >= 10)
    assert [reading.header.stamp.nanoseconds() - begin_ns for reading in readings] == [
        k * 2_000_000 for k in range(1, 11)
    ]
    assert [wrench.header.stamp.nanoseconds() - begin_ns for wrench in wrenches] == [k * 2_000_000 for k in range(10)]
    assert (readings[0].header.frame_id, wrenches[0].header.frame_id) == ("tip", "wrist")
    assert readings[0].linear_acceleration.z == pytest.approx(9.81)
    assert readings[0].orientation_covariance[0] == -1.0  # sensor_msgs/Imu: it has no orientation
    weight = arm.force_torque([0.0, 0.0], np.zeros(2), np.zeros(2), joints=["joint_2"])
    assert wrenches[0].wrench.force.z == pytest.approx(weight.force[0, 2])
    assert np.abs(weight.torque).max() < 1e-9

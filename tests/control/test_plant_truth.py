"""A plant that is not its model: overlays, motors, encoders and other sensors, in process and in simulated time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import zmq

from dyn_service.api.queries import Overlay, Payload, Wrench
from dyn_service.control.plant.safety import RUNNING
from dyn_service.control.plant.simulated import Actuators, RobotSensors, SimulatedRobot
from dyn_service.engine.robot import Robot
from dyn_service.errors import DynError, InvalidArgumentError
from dyn_service.graph.bags.motions import recording as load_recording
from dyn_service.graph.middleware.telemetry import NodeTelemetry, Telemetry, TelemetryStore, decode
from dyn_service.graph.nodes.plant.factory import ActuatorParameters, PlantParameters, make_plant
from dyn_service.graph.nodes.plant.report import PlantRecording
from dyn_service.messages.dyn_service_msgs import JointCommand
from dyn_service.sensors import Sensors
from tests.phrases import naming, unnamed

CARRIED = {"payloads": [{"link": "lower_bar", "mass": 0.4, "com": [0.0, 0.0, 0.1]}]}


def plant_of(robot: Robot, **changes):
    return make_plant(robot, PlantParameters(robot="-", **changes), session=1)


def command_to(plant, efforts) -> JointCommand:
    """A command that answers the present state, and arms the plant."""
    state = plant.publish()
    return JointCommand(
        state.session, state.seq, state.epoch, state.fingerprint, 1, state.name, list(efforts),
        arm=state.mode not in RUNNING,
    )  # fmt: skip


def drive(plant, efforts, steps: int):
    """The plant after so many steps, each under a command of these efforts."""
    for _ in range(steps):
        assert plant.offer(command_to(plant, efforts))
        plant.advance(1)
    return plant


def test_an_overlay_moves_otherwise_under_the_fingerprint_of_the_model(arm: Robot) -> None:
    """The motion is that of the robot that carries; what is published is the model's."""
    plant = drive(plant_of(arm, overlay=CARRIED, effort_ramp_s=1e-6), [0.3, -0.2], 50)
    assert plant.state().fingerprint == arm.fingerprint
    real = arm.overlaid(Overlay(payloads=Payload("lower_bar", 0.4, com=(0.0, 0.0, 0.1))))
    start = plant_of(arm).q
    for robot, same in ((real, True), (arm, False)):
        motion = robot.simulate(start, np.zeros(2), [0.3, -0.2], dt=1e-3, steps=50)
        difference = np.abs(np.concatenate([motion.q[-1] - plant.q, motion.v[-1] - plant.v])).max()
        assert bool(difference < 1e-12) is same  # the same steps of the same numbers: roundings


@pytest.mark.parametrize(
    ("overlay", "values", "path"),
    [
        ({"payload": []}, ["overlay", "'payload'", "'payloads'"], "overlay"),
        ({"payloads": [{"link": "link_9", "mass": 1.0}]}, ["'double_pendulum'", "'link_9'"], None),
        ({"gravity": [[0, 0, -9.0], [0, 0, -8.0]]}, ["overlay", "batch", "robots"], "overlay"),
        ({"links": {"upper_bar": {"mass": [1.0, 2.0]}}}, ["overlay", "batch", "robots"], "overlay"),
        (
            {"joints": {"joint_1": {"damping": -1.0}}},
            ["must be at least 0, found -1"],
            "overlay.joints.joint_1.damping",
        ),
    ],
)
def test_overlays_that_are_none_are_refused(arm: Robot, overlay: dict, values: list[str], path: str | None) -> None:
    with pytest.raises(DynError) as excinfo:
        plant_of(arm, overlay=overlay)
    assert unnamed(excinfo.value, *values) == []
    assert path is None or excinfo.value.path == path


def test_a_jammed_joint_stands_still_whatever_its_motor_does(arm: Robot) -> None:
    plant = drive(plant_of(arm, overlay={"locked": ["joint_2"]}), [0.5, 0.5], 100)
    assert plant.v[1] == 0.0
    assert plant.q[1] == plant_of(arm).q[1]
    assert abs(plant.v[0]) > 1e-3


def test_motors_lag_by_the_formula_and_lose_no_impulse() -> None:
    """x = u (1 - exp(-t / T)); what acts in a step is its mean, so that the sum over steps is the integral."""
    dt, lag, u = 0.001, np.array([0.004, 0.0]), np.array([2.0, 3.0])
    motors = Actuators(dt, np.full(2, np.inf), 0, lag)
    acted = np.array([motors.act(u) for _ in range(20)])
    t = dt * np.arange(1, 21)
    integral = u[0] * (t - lag[0] * (1.0 - np.exp(-t / lag[0])))
    np.testing.assert_allclose(np.cumsum(acted[:, 0]) * dt, integral, rtol=1e-12)  # twenty roundings
    assert (acted[:, 1] == 3.0).all()


def test_motors_come_late_and_end_at_their_limit() -> None:
    motors = Actuators(0.001, np.array([1.0]), 3, np.zeros(1))
    acted = [float(motors.act(np.array([effort]))[0]) for effort in (0.5, 2.0, -3.0, 0.1, 0.2, 0.3, 0.4)]
    assert acted == [0.0, 0.0, 0.0, 0.5, 1.0, -1.0, 0.1]
    assert motors.saturated.tolist() == [2]
    motors.reset()
    assert [float(motors.act(np.array([0.7]))[0]) for _ in range(4)] == [0.0, 0.0, 0.0, 0.7]


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"effort_limit": [1.0]}, ["actuators.effort_limit", "1", "2"]),
        ({"effort_limit": [1.0, -1.0]}, ["numbers", "negative"]),
        ({"lag_s": [0.1]}, ["0", "number", "effort"]),
        ({"lag_s": -0.1}, ["0", "times", "least"]),
        ({"lag_s": [0.0, np.inf]}, ["0", "times", "least"]),
        ({"lag_s": [0.0, np.nan]}, ["'actuators.lag_s[1]'", "nan"]),
        ({"delay_steps": 10_001}, ["actuators.delay_steps", "10000", "10001"]),
        ({"delay_steps": -1}, ["actuators.delay_steps", "0", "-1"]),
    ],
)
def test_motors_that_there_cannot_be(arm: Robot, settings: dict, values: list[str]) -> None:
    with pytest.raises(InvalidArgumentError, match=naming(*values)):
        plant_of(arm, actuators=ActuatorParameters(**settings))


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"delay_steps": -1}, ["actuators.delay_steps", "-1", "0", "10000"]),
        ({"delay_steps": 10_001}, ["actuators.delay_steps", "10001"]),
        ({"delay_steps": 1.5}, ["actuators.delay_steps", "1.5"]),
        ({"delay_steps": True}, ["actuators.delay_steps", "True"]),
        ({"dt_s": 0.0}, ["dt_s", "0"]),
        ({"dt_s": np.nan}, ["dt_s", "nan"]),
        ({"lag_s": 0.1}, ["0", "number", "effort"]),
        ({"effort_limit": 1.0}, ["actuators.effort_limit", "1.0"]),
    ],
)
def test_motors_made_in_python_are_held_to_the_same(settings: dict, values: list[str]) -> None:
    good = {"dt_s": 0.001, "effort_limit": np.full(2, 3.0), "delay_steps": np.int64(1), "lag_s": np.zeros(2)}
    assert Actuators(**good).act(np.ones(2)).tolist() == [0.0, 0.0]
    with pytest.raises(InvalidArgumentError, match=naming(*values)):
        Actuators(**{**good, **settings})


@pytest.mark.parametrize("brake_s", [np.inf, np.nan, 0.0])
def test_brakes_that_never_shut_are_none(arm: Robot, brake_s: float) -> None:
    robot = plant_of(arm).robot
    with pytest.raises(InvalidArgumentError, match=naming("brake_s")):
        SimulatedRobot(robot.engine, arm.configuration, robot.q, 1e-3, brake_s, np.full(2, np.inf))


def test_a_plant_moves_by_what_its_motors_give_and_says_so(arm: Robot) -> None:
    """Two steps late, then cut to a tenth: as the plain plant under the effort that acts."""
    motors = ActuatorParameters(effort_limit=[0.1, np.inf], delay_steps=2)
    plant = plant_of(arm, actuators=motors, effort_ramp_s=1e-6)
    efforts = [drive(plant, [0.5, 0.0], 1).state().effort[0] for _ in range(5)]
    assert efforts == [0.0, 0.0, 0.1, 0.1, 0.1]
    other = plant_of(arm, effort_ramp_s=1e-6)
    for effort in efforts:
        drive(other, [effort, 0.0], 1)
    assert np.array_equal(plant.q, other.q)


def test_damping_of_a_stop_is_by_the_inertia_where_it_stops(arm: Robot) -> None:
    """Not where it began: stretched it is twice as heavy about its first joint as folded."""
    plant = plant_of(arm, safe_stop="damping", damping_s=0.05)
    for elbow in (0.0, 3.0):
        plant.robot.set_state(np.array([0.2, elbow]), np.zeros(2))
        plant.look()
        np.testing.assert_allclose(plant.safety.damping(), arm.mass_matrix([0.2, elbow]) / 0.05, rtol=1e-12)


SENSORS = """\
robot: double_pendulum
seed: 3
encoders:
  joint_1: {counts_per_turn: 1000, gear_ratio: 10, rate_hz: 1000, offset: 0.01, latency_s: 0.002}
force_torque:
  wrist: {joint: joint_2, rate_hz: 500, force: {bias: 1.0}}
imus:
  tip: {link: lower_bar, rate_hz: 1000}
"""


@pytest.fixture
def sensors(tmp_path):
    path = tmp_path / "sensors.yaml"
    path.write_text(SENSORS)
    return str(path)


def test_what_is_published_is_what_the_encoders_say(arm: Robot, sensors: str) -> None:
    """Counts, an offset and two steps of latency; the joint without an encoder is measured as it is."""
    plant, plain = plant_of(arm, sensors=sensors), plant_of(arm)
    positions = [plain.q[0]]
    step = 2.0 * np.pi / 10_000
    for k in range(30):
        drive(plant, [0.4, 0.0], 1)
        drive(plain, [0.4, 0.0], 1)
        positions.append(plain.q[0])
        state = plant.state()
        seen = positions[max(0, k - 1)] if k >= 1 else None
        if seen is not None:
            assert state.position[0] == pytest.approx(np.rint((seen + 0.01) / step) * step, abs=1e-12)
        assert state.position[1] == plain.q[1]
    assert np.array_equal(plant.motion.q, plain.q)


def test_velocities_are_differences_unless_a_tachometer_measures_them(arm: Robot, sensors: str) -> None:
    by_difference, by_tachometer = plant_of(arm, sensors=sensors), plant_of(arm, sensors=sensors, velocities="measured")
    for plant in (by_difference, by_tachometer):
        drive(plant, [0.4, 0.0], 40)
    assert by_tachometer.v[0] == by_tachometer.motion.v[0]
    counts = by_difference.v[0] / (2.0 * np.pi / 10_000 * 1000.0)
    assert counts == pytest.approx(round(counts), abs=1e-6)
    assert by_difference.v[0] != by_difference.motion.v[0]


def test_the_same_seed_measures_the_same(arm: Robot, tmp_path) -> None:
    path = tmp_path / "noisy.yaml"
    path.write_text(
        "robot: double_pendulum\nencoders: {joint_1: {step: 1.0e-6, rate_hz: 1000, noise: 0.001}}\nseed: 1\n"
    )
    runs = [
        drive(plant_of(arm, sensors=str(path), sensor_seed=seed), [0.1, 0.0], 10).q[0] for seed in (5, 5, 6, None, 1)
    ]
    assert runs[0] == runs[1] != runs[2]
    assert runs[3] == runs[4] != runs[0]


def test_a_wrist_and_an_imu_feel_what_the_robot_does(arm: Robot, sensors: str) -> None:
    """At rest in its brakes the wrist bears the weight behind it, with its bias; pushed, the push as well."""
    plant = plant_of(arm, sensors=sensors, overlay=CARRIED)
    plant.advance(2)
    zero = np.zeros(2)
    real = arm.overlaid(Overlay(payloads=Payload("lower_bar", 0.4, com=(0.0, 0.0, 0.1))))
    q = plant.motion.q
    weight = real.force_torque(q, zero, zero, joints=["joint_2"])
    read = plant.robot.measuring.readings
    np.testing.assert_allclose(read["wrist"].value[:3], weight.force[0] + 1.0, atol=1e-9)
    imu = real.imu(q, zero, zero, links=["lower_bar"])
    np.testing.assert_allclose(read["tip"].value[:3], imu.specific_force[0], atol=1e-9)
    push = Wrench("lower_bar", force=(0.0, 3.0, 1.0))
    plant.robot.push(push, 4)
    plant.advance(2)
    pushed = real.force_torque(q, zero, zero, joints=["joint_2"], wrenches=push)
    np.testing.assert_allclose(plant.robot.measuring.readings["wrist"].value[:3], pushed.force[0] + 1.0, atol=1e-9)


def test_what_is_felt_in_motion_is_that_of_the_steps_own_acceleration(arm: Robot, sensors: str) -> None:
    plant = drive(plant_of(arm, sensors=sensors, velocities="measured", effort_ramp_s=1e-6), [2.0, -1.0], 20)
    v_before = plant.motion.v
    drive(plant, [2.0, -1.0], 1)
    q, v = plant.motion
    a = (v - v_before) / 1e-3
    assert np.abs(a).min() > 0.5
    moving, resting = (
        arm.imu(q, v, acceleration, links=["lower_bar"]).specific_force[0] for acceleration in (a, np.zeros(2))
    )
    np.testing.assert_allclose(plant.robot.measuring.readings["tip"].value[:3], moving, atol=1e-9)
    assert np.abs(moving - resting).max() > 0.1


def test_a_push_moves_the_robot_for_its_time(arm: Robot) -> None:
    plant, push = plant_of(arm, overlay=CARRIED, effort_ramp_s=1e-6), Wrench("lower_bar", force=(3.0, 0.0, 1.0))
    drive(plant, [0.0, 0.0], 1)
    q, v = plant.q, plant.v
    plant.robot.push(push, 30)
    drive(plant, [0.0, 0.0], 40)
    real = arm.overlaid(Overlay(payloads=Payload("lower_bar", 0.4, com=(0.0, 0.0, 0.1))))
    pushed = real.simulate(q, v, dt=1e-3, steps=30, wrenches=[push])
    coasting = real.simulate(pushed.q[-1], pushed.v[-1], dt=1e-3, steps=10)
    np.testing.assert_allclose(plant.q, coasting.q[-1], atol=1e-10)  # as a load of the joints here, as a wrench there
    assert plant.robot.pushes == []


def test_each_push_ends_in_its_own_time(arm: Robot) -> None:
    plant = drive(plant_of(arm, effort_ramp_s=1e-6), [0.0, 0.0], 1)
    short, long = Wrench("lower_bar", force=(3.0, 0.0, 1.0)), Wrench("lower_bar", force=(0.0, 0.0, 1.0))
    plant.robot.push(short, 2)
    plant.robot.push(long, 4)
    is_short = []
    for _ in range(5):
        drive(plant, [0.0, 0.0], 1)
        is_short.append([push is short for push in plant.robot.pushes])
    assert is_short == [[True, False], [True, False], [False], [False], []]


def test_counts_by_joint(arm: Robot) -> None:
    """Ten N m more than joint_1 may: cut in every cycle under command; the other joint never."""
    plant = drive(plant_of(arm, effort_ramp_s=1e-6), [arm.limits.efforts[0] + 10.0, 0.0], 5)
    assert plant.safety.saturated.tolist() == [5, 0]
    drive(plant, [0.0, 0.0], 3)
    assert plant.safety.saturated.tolist() == [5, 0]


def test_until_its_first_reading_an_encoder_says_where_it_was_switched_on(arm: Robot, sensors: str) -> None:
    measuring = RobotSensors(Sensors.from_file(arm, sensors), arm.configuration)
    start, q_moved = np.array([0.2, 0.3]), np.array([0.7, 0.8])
    q, v = measuring.measured(q_moved, np.ones(2))  # before it is switched on, nothing is known of it
    assert (q.tolist(), v.tolist(), measuring.readings) == ([0.7, 0.8], [1.0, 1.0], {})
    for t, q in ((0.0, start), (0.001, q_moved)):  # two steps of latency
        measuring.sample(t, q, np.ones(2), np.zeros(2))
    q, v = measuring.measured(q_moved, np.ones(2))
    assert (q.tolist(), v.tolist()) == ([0.2, 0.8], [0.0, 1.0])


def test_a_robot_that_is_put_elsewhere_has_forgotten_what_its_motors_were_told(arm: Robot) -> None:
    plant = drive(plant_of(arm, actuators=ActuatorParameters(delay_steps=5), effort_ramp_s=1e-6), [5.0, 0.0], 6)
    plant.robot.set_state(plant.q, np.zeros(2))
    assert drive(plant, [0.0, 0.0], 1).state().effort == [0.0, 0.0]


def test_brakes_of_a_robot_that_is_put_elsewhere_take_their_time_anew(arm: Robot) -> None:
    """Braked from a slow motion, then put into a fast one: at the deceleration of the first it would go on long."""
    robot = plant_of(arm, brake_s=0.02).robot
    for speed in (0.01, 1.0):
        robot.set_state(robot.q, np.full(2, speed))
        for step in range(20):
            assert robot.v.all(), step
            robot.write(np.zeros(2), brakes=True)
            if speed < 1.0 and step == 9:
                break
    np.testing.assert_allclose(robot.v, 0.0, atol=1e-15)  # twenty roundings


def test_positions_out_of_range_are_those_of_the_robot_and_not_of_its_encoders(arm: Robot, tmp_path: Path) -> None:
    path = tmp_path / "far.yaml"
    path.write_text("robot: double_pendulum\nencoders: {joint_1: {step: 0.001, rate_hz: 1000, offset: 500.0}}\n")
    plant = plant_of(arm, sensors=str(path))
    plant.advance(3)
    assert plant.q[0] > plant.limits.upper[0]
    assert (plant.counters.out_of_range_steps, plant.out_of_range.tolist()) == (0, [0, 0])


def test_a_recording_holds_the_motion_beside_what_was_measured(arm: Robot, sensors: str) -> None:
    context: zmq.Context = zmq.Context()
    pull = context.socket(zmq.PULL)
    pull.bind("inproc://launcher")
    telemetry, store = Telemetry("plant", context, "inproc://launcher"), TelemetryStore()
    plant = plant_of(arm, sensors=sensors)
    recording = PlantRecording(telemetry, plant)
    for _ in range(20):
        drive(plant, [0.4, 0.0], 1)
        recording.row()
    recording.flush()
    while pull.poll(1000 if "sensor.tip" not in store.nodes.get("plant", NodeTelemetry()).recordings else 0):
        store.take(decode(pull.recv()))
    telemetry.close()
    context.destroy(linger=0)
    recordings = store.nodes["plant"].recordings
    assert set(recordings) == {"plant", "measured", "commanded", "sensor.wrist", "sensor.tip"}
    assert (
        recordings["commanded"].table[:, 1:].tolist() == [[plant.safety.session, 0.0, 0.4, 0.0]] * 20
    )  # of each command
    assert recordings["plant"].group("q")[1][-1].tolist() == plant.motion.q.tolist()
    assert recordings["measured"].group("q")[1][-1].tolist() == plant.q.tolist() != plant.motion.q.tolist()
    assert [len(recordings[f"sensor.{name}"].table) for name in ("wrist", "tip")] == [11, 20]  # each reading once


def recorded(plant, efforts) -> tuple[tuple[str, ...], np.ndarray]:
    """Columns and rows that a launch records while the plant acts under these commands, one for each cycle."""
    context: zmq.Context = zmq.Context()
    pull = context.socket(zmq.PULL)
    pull.bind("inproc://launcher")
    telemetry, store = Telemetry("plant", context, "inproc://launcher"), TelemetryStore()
    recording = PlantRecording(telemetry, plant)
    for effort in efforts:
        drive(plant, effort, 1)
        recording.row()
    recording.flush()
    while "plant" not in store.nodes or len(store.nodes["plant"].recordings["plant"].table) < len(efforts):
        assert pull.poll(10_000)
        store.take(decode(pull.recv()))
    telemetry.close()
    context.destroy(linger=0)
    table = store.nodes["plant"].recordings["plant"]
    return table.columns, table.table


def test_tau_of_a_recorded_row_was_held_from_the_previous_row_on(
    arm: Robot, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One step of 1 ms from row k - 1 with tau of row k ends at row k. The loader returns tau at the row's time."""
    efforts = np.random.default_rng(0).normal(size=(40, 2))
    columns, table = recorded(plant_of(arm, effort_ramp_s=1e-6), efforts)
    assert columns == (
        "t", "session", "mode", "q.joint_1", "q.joint_2", "v.joint_1", "v.joint_2", "tau.joint_1", "tau.joint_2"
    )  # fmt: skip
    t, q, v, tau = table[:, 0], table[:, 3:5], table[:, 5:7], table[:, 7:9]
    np.testing.assert_allclose(t, 1e-3 * np.arange(1, 41), rtol=1e-12)
    assert np.array_equal(tau[1:], efforts[1:])
    for shift, same in ((1, True), (0, False)):
        state = arm.step(q[:-1], v[:-1], tau[shift : len(tau) - 1 + shift], dt=1e-3)
        error = np.abs(np.concatenate([state.q - q[1:], state.v - v[1:]])).max()
        assert bool(error < 1e-12) is same, error  # the same steps of the same numbers: roundings
    np.savez(tmp_path / "recording.npz", **{"plant.plant": table, "plant.plant.columns": np.array(columns)})
    report = {"processes": [{"name": "plant", "parameters": {}}], "robot": {"fingerprint": arm.fingerprint}}
    (tmp_path / "report.json").write_text(json.dumps(report), encoding="utf-8")
    for path in (tmp_path, tmp_path / "recording.npz"):
        motion = load_recording(arm, path)
        rows = np.flatnonzero(table[:, 2] == 1.0)
        assert len(rows) >= 38  # all but the first one or two, in which the robot is armed
        assert np.array_equal(motion["q"], q[rows])
        assert np.array_equal(motion["v"], v[rows])
        assert np.array_equal(motion["tau"][1:-1], (tau[rows[1:-1]] + tau[rows[2:]]) / 2)
        central = (v[rows[2:]] - v[rows[:-2]]) / 2e-3
        np.testing.assert_allclose(motion["a"][1:-1], central, rtol=1e-9, atol=1e-9)  # times are rounded
    assert not caplog.records
    load_recording(arm.with_payload(Payload("lower_bar", 1.0)), tmp_path)
    assert arm.fingerprint in caplog.text  # a robot with other numbers explains another motion
    # All are those at t: accelerations by these efforts are the central differences, within the jumps of tau.
    a = arm.forward_dynamics(motion["q"], motion["v"], motion["tau"])
    assert np.abs(a - motion["a"])[1:-1].max() < 1e-2 * np.abs(a).max()

"""The simulated plant without sockets or clocks: steps, brakes, stops, catching up. Its safety: `test_safety.py`."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from dyn_service.control.plant.plant import Plant
from dyn_service.control.plant.safety import SafetySettings, SafetySupervisor
from dyn_service.control.plant.simulated import SimulatedRobot
from dyn_service.engine.robot import Robot
from dyn_service.errors import DynError, FailedPreconditionError, InvalidArgumentError
from dyn_service.graph.nodes.plant.factory import (
    ActuatorParameters,
    PlantParameters,
    initial_position,
    make_plant,
    safety_settings,
)
from dyn_service.messages import decode, encode
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.model.configuration import Limits
from dyn_service.simulation.engines import OwnEngine
from tests.conftest import URDF
from tests.phrases import naming, unnamed
from tests.service.conftest import floating
from tests.trees import configuration
from tests.wide import wide

NAMES = ("a", "b")
JOINTS = configuration(NAMES, ["revolute", "revolute"])
LIMITS = Limits(np.array([-1.0, -np.inf]), np.array([1.0, np.inf]), np.full(2, np.inf), np.array([10.0, np.inf]))


def unit_masses(dt_s: float = 0.001, integrator: str = "rk4", substeps: int = 1, **changes) -> Plant:
    """Two unit masses; efforts may change at any rate."""
    settings = {
        "cycle_s": dt_s, "hold_s": 10 * dt_s, "effort_limit": LIMITS.effort, "effort_rate": np.full(2, np.inf),
        "velocity_limit": LIMITS.velocity, "rearm_velocity": np.full(2, 0.1), "stop": "brake", "beyond_limits": "clip",
    }  # fmt: skip
    damping = lambda: 20.0 * np.eye(2)
    safety = SafetySupervisor(SafetySettings(**{**settings, **changes}), NAMES, 7, "f00", damping)
    engine = OwnEngine(lambda q, v, tau: tau, JOINTS, integrator, substeps)
    robot = SimulatedRobot(engine, JOINTS, np.zeros(2), dt_s, 0.01, safety.settings.velocity_limit)
    return Plant(robot, LIMITS, safety, dt_s)


def command(plant: Plant, efforts, **changes) -> JointCommand:
    """Answers the plant's present state, and arms it."""
    state = plant.publish()
    fields = {
        "session": state.session, "state_seq": state.seq, "epoch": state.epoch, "fingerprint": state.fingerprint,
        "controller": 1, "name": state.name, "effort": list(efforts), "arm": True,
    }  # fmt: skip
    return JointCommand(**{**fields, **changes})


def mode(plant: Plant) -> str:
    return plant.safety.mode


def test_stands_still_until_the_first_command_then_moves() -> None:
    plant = unit_masses()
    plant.advance(100)
    assert (mode(plant), plant.time_s, plant.q.tolist()) == ("braked", 0.1, [0.0, 0.0])
    assert plant.offer(command(plant, [2.0, 4.0]))
    plant.advance(5)
    assert mode(plant) == "active"
    np.testing.assert_allclose(plant.v, [0.01, 0.02], rtol=1e-12)
    np.testing.assert_allclose(plant.q, [0.5 * 2.0 * 0.005**2, 0.5 * 4.0 * 0.005**2], rtol=1e-9)


def test_catching_up_is_the_same_motion() -> None:
    plant, other = unit_masses(), unit_masses()
    for started in (plant, other):
        assert started.offer(command(started, [2.0, 4.0]))
    plant.advance(7)
    for _ in range(7):
        other.advance(1)
    assert plant.state() == other.state()


def test_positions_out_of_range_are_counted() -> None:
    plant = unit_masses()
    plant.robot.q = np.array([1.5, 100.0])
    assert plant.offer(command(plant, [0.0, 0.0]))
    plant.advance(4)
    assert plant.counters.out_of_range_steps == 4


def test_divergence_names_the_joint_and_the_step() -> None:
    """Joint b runs away and takes a with it: after some steps of a catch-up both are not numbers."""
    plant = unit_masses(hold_s=1.0, control_s=1.0)
    plant.robot.engine.forward_dynamics = lambda q, v, tau: np.array([1.0 + 0.0 * v[1] ** 2, 1e6 * (1.0 + v[1] ** 2)])
    assert plant.offer(command(plant, [0.0, 0.0]))
    stepped = unit_masses(hold_s=1.0, control_s=1.0)
    stepped.robot.engine.forward_dynamics = plant.robot.engine.forward_dynamics
    assert stepped.offer(command(stepped, [0.0, 0.0]))
    with np.errstate(over="ignore", invalid="ignore"):
        while np.isfinite(stepped.v).all():  # step by step, to the first step that is not finite
            try:
                stepped.advance(1)
            except FailedPreconditionError:
                break
        with pytest.raises(FailedPreconditionError) as excinfo:
            plant.advance(40)
    step = stepped.counters.steps
    assert 1 < step < 40
    assert unnamed(excinfo.value, f"step {step}", f"t = {step * 0.001:g} s", "'b'", "dt = 0.001 s") == []


@pytest.mark.parametrize("name", ["rk4", "explicit_euler"])
def test_a_joint_that_diverges_alone_is_no_joint_too_fast(name: str) -> None:
    """By the second in its velocity first."""
    plant = unit_masses(integrator=name)
    plant.robot.engine.forward_dynamics = lambda q, v, tau: np.array([0.0, np.inf])
    assert plant.offer(command(plant, [0.0, 0.0]))
    with pytest.raises(FailedPreconditionError, match=naming("joint 'b'", "finite")):
        plant.advance(1)


def test_large_numbers_are_no_divergence() -> None:
    plant = unit_masses()
    plant.robot.engine.forward_dynamics = lambda q, v, tau: np.zeros(2)
    plant.robot.q = np.array([1e308, 1e308])
    assert plant.offer(command(plant, [0.0, 0.0]))
    with np.errstate(over="ignore"):
        plant.advance(1)
    assert plant.q.tolist() == [1e308, 1e308]


@pytest.mark.parametrize("substeps", [1, 2])
@pytest.mark.parametrize("name", ["rk4", "semi_implicit_euler", "explicit_euler"])
def test_the_plant_does_the_step_it_was_told(name: str, substeps: int) -> None:
    """A mass on a spring with a constant push: against the formulas by hand."""
    plant = unit_masses(integrator=name, dt_s=0.1, substeps=substeps, hold_s=10.0, control_s=1.0)
    plant.robot.engine.forward_dynamics = lambda q, v, tau: tau - q
    plant.robot.q = np.array([1.0, -1.0])
    assert plant.offer(command(plant, [0.5, 2.0]))
    plant.advance(3)
    q, v, h = np.array([1.0, -1.0]), np.zeros(2), 0.1 / substeps
    for _ in range(3 * substeps):
        a = np.array([0.5, 2.0]) - q
        if name == "rk4":  # of a linear system, the Taylor series to the fourth order
            q, v = (
                q + h * v + h**2 / 2 * a - h**3 / 6 * v - h**4 / 24 * a,
                v + h * a - h**2 / 2 * v - h**3 / 6 * a + h**4 / 24 * v,
            )
        elif name == "explicit_euler":
            q, v = q + h * v, v + h * a
        else:
            v = v + h * a
            q = q + h * v
    np.testing.assert_allclose([plant.q, plant.v], [q, v], rtol=1e-14)  # some dozen roundings


def test_messages_survive_the_wire() -> None:
    plant = unit_masses()
    assert decode(PlantState, encode(plant.state())) == plant.state()
    message = command(plant, [0.1, -0.2])
    assert decode(JointCommand, encode(message)) == message
    for frame in (b"", b"\xc1", encode(message), b"\x81\xa1v\x01"):
        with pytest.raises(InvalidArgumentError, match="not a dyn_service_msgs/msg/PlantState"):
            decode(PlantState, frame)


def test_initial_position() -> None:
    assert initial_position([], JOINTS, LIMITS).tolist() == [0.0, 0.0]
    limits = Limits(np.array([1.0, 2.0]), np.array([3.0, np.inf]), LIMITS.velocity, LIMITS.effort)
    assert initial_position([], JOINTS, limits).tolist() == [2.0, 2.0]
    assert initial_position({"b": 3.0}, JOINTS, limits).tolist() == [2.0, 3.0]
    assert initial_position([1.0, 8.0], JOINTS, limits).tolist() == [1.0, 8.0]
    with pytest.raises(InvalidArgumentError, match=naming("'a'", "20", "1", "3")):
        initial_position({"a": 20.0}, JOINTS, limits)
    with pytest.raises(InvalidArgumentError, match=r"'a' is 0\.9, beyond its limits"):
        initial_position([0.9, 2.0], JOINTS, limits)
    with pytest.raises(InvalidArgumentError, match="no joint 'c'; the joints are a, b"):
        initial_position({"c": 1.0}, JOINTS, limits)
    with pytest.raises(InvalidArgumentError, match=naming("initial_position", "1", "2")):
        initial_position([1.0], JOINTS, limits)


def falling(**changes) -> Plant:
    """Unit masses that fall at 10 m/s^2 when nothing holds them."""
    plant = unit_masses(**changes)
    plant.robot.engine.forward_dynamics = lambda q, v, tau: tau - 10.0
    return plant


def test_before_the_first_command() -> None:
    plant = falling()
    plant.advance(20)
    state = plant.state()
    assert (state.command_seq, state.command_delay, state.mode, state.cause) == (-1, 0.0, "braked", "start")
    assert (state.position, state.velocity, state.effort) == ([0.0, 0.0], [0.0, 0.0], [0.0, 0.0])
    assert (plant.counters.steps, plant.counters.stopped_steps, plant.counters.out_of_range_steps) == (20, 0, 0)


def test_every_command_taken_is_counted_once() -> None:
    plant = unit_masses()
    for number in (1, 2, 3):
        assert plant.offer(command(plant, [1.0, 1.0]))
        plant.advance(2)
        assert (plant.safety.counters.commands, plant.counters.steps) == (number, 2 * number)
        assert plant.state().command_seq == 2 * (number - 1)
    assert not any(plant.safety.counters.refused.values())


def test_delay_of_a_command_is_reported() -> None:
    plant = unit_masses()
    sent_command = command(plant, [0.0, 0.0])
    plant.advance(2)
    assert plant.offer(sent_command)
    plant.advance(1)
    state = plant.state()
    assert (state.command_seq, state.command_delay) == (0, pytest.approx(0.002))


def test_a_command_that_answers_an_old_state_is_refused() -> None:
    plant = unit_masses()
    plant.advance(1000)
    sent_command = command(plant, [0.0, 0.0])
    plant.advance(11)
    assert not plant.offer(sent_command)
    assert plant.safety.counters.refused["stale"] == 1


def stopped(policy: str, push: float = 1.0) -> Plant:
    """Held up for 10 steps, pushed to a speed of 0.01 by then, and then left alone."""
    plant = falling(stop=policy)
    assert plant.offer(command(plant, [10.0, 10.0 + push]))
    plant.advance(10)
    assert mode(plant) == "active"
    np.testing.assert_allclose(plant.v, [0.0, 0.01 * push], atol=1e-15)
    plant.advance(1)
    assert (mode(plant), plant.counters.stopped_steps) == ("stopped", 1)
    return plant


@pytest.mark.parametrize("push", [1.0, -1.0])
def test_brakes_take_their_time_and_then_hold_whatever_pulls(push: float) -> None:
    """From 0.01 in 0.01 s: ten equal steps, and a way of half the speed times the time."""
    plant = stopped("brake", push)
    q_stopped = plant.q[1]
    speeds = [0.01 * push]
    for _ in range(10):
        speeds.append(plant.v[1])
        plant.advance(1)
    np.testing.assert_allclose(np.diff(speeds), -0.001 * push, rtol=1e-9)
    plant.advance(1000)
    assert plant.v.tolist() == [0.0, 0.0]
    # one of the ten steps was done before
    np.testing.assert_allclose(plant.q[1] - q_stopped, 0.5 * push * 0.009 * 0.009, rtol=1e-9)


def test_brakes_that_opened_while_it_was_still_slowing_down_take_their_time_anew() -> None:
    plant = stopped("brake")
    assert plant.offer(command(plant, [10.0, 1010.0]))
    plant.advance(10)
    assert mode(plant) == "active"
    np.testing.assert_allclose(plant.v, [0.0, 10.009], atol=1e-12)
    plant.advance(1)
    np.testing.assert_allclose(plant.v, [0.0, 0.9 * 10.009], rtol=1e-12)
    plant.advance(10)
    assert (mode(plant), plant.v.tolist()) == ("stopped", [0.0, 0.0])


def test_damping_lets_it_sink_no_faster_than_weight_over_damping() -> None:
    """D = 20 per s and 10 m/s^2: 0.5 m/s in the end, held by the weight's own effort."""
    plant = stopped("damping")
    plant.advance(1000)
    np.testing.assert_allclose(plant.v, -0.5, rtol=1e-6)
    np.testing.assert_allclose(plant.safety.effort, 10.0, rtol=1e-6)
    assert mode(plant) == "stopped"


def test_without_brakes_and_efforts_it_falls() -> None:
    plant = stopped("zero")
    assert plant.safety.effort.tolist() == [0.0, 0.0]
    plant.advance(4)
    np.testing.assert_allclose(plant.v, [-0.05, -0.04], rtol=1e-12)


@pytest.mark.parametrize("policy", ["brake", "damping", "zero"])
def test_a_joint_at_its_velocity_limit_shuts_the_brakes_whatever_the_policy(policy: str) -> None:
    plant = falling(stop=policy, velocity_limit=np.full(2, 0.3))
    assert plant.offer(command(plant, [10.0, 10.0]))
    fastest = 0.0
    for _ in range(300):
        plant.advance(1)
        fastest = max(fastest, float(np.abs(plant.v).max()))
    assert fastest <= 0.3
    assert (mode(plant), plant.safety.cause) == ("stopped", "missed")
    assert plant.v.tolist() == [0.0, 0.0]


def test_a_step_that_would_pass_a_velocity_limit_is_braked_from_its_beginning() -> None:
    """0.2 after a step, 1.2 after the next one, were it not for the limit of 0.5."""
    plant = unit_masses(velocity_limit=np.full(2, 0.5))
    assert plant.offer(command(plant, [0.0, 200.0]))
    plant.advance(1)
    assert plant.offer(command(plant, [0.0, 1000.0]))
    plant.advance(1)
    assert (mode(plant), plant.safety.cause) == ("stopped", "velocity")
    np.testing.assert_allclose(plant.v, [0.0, 0.18], rtol=1e-12)
    np.testing.assert_allclose(plant.q[1], 0.5 * 0.2 * 0.001 + 0.19 * 0.001, rtol=1e-12)


def test_release_brakes() -> None:
    plant = unit_masses()
    assert plant.offer(command(plant, [1.0, 1.0]))
    plant.advance(5)
    assert plant.offer(command(plant, [9.0, 9.0], release=True))
    plant.advance(1)
    assert (mode(plant), plant.safety.cause, plant.safety.effort.tolist()) == ("braked", "released", [0.0, 0.0])
    plant.advance(10)
    assert plant.v.tolist() == [0.0, 0.0]
    assert sum(plant.safety.counters.stops.values()) == 0


def test_a_plant_without_parameters_is_a_safe_one() -> None:
    """Twenty cycles, brakes, and rates that take the URDF's efforts 50 ms: what is not said is not left open."""
    robot = Robot.from_urdf(URDF / "panda.urdf")
    settings = make_plant(robot, PlantParameters(robot="panda.urdf"), session=1).safety.settings
    assert (settings.cycle_s, settings.hold_s, settings.stop, settings.beyond_limits) == (0.001, 0.02, "brake", "clip")
    np.testing.assert_allclose(settings.effort_rate, robot.limits.effort / 0.05)
    np.testing.assert_allclose(settings.rearm_velocity, robot.limits.velocity / 10.0)
    assert np.isfinite(settings.effort_rate).all()


@pytest.mark.parametrize("control_rate_hz", [0.0, 250.0])
def test_missed_cycles_are_those_of_the_controller(control_rate_hz: float) -> None:
    robot = Robot.from_urdf(URDF / "pendulum.urdf")
    parameters = PlantParameters(robot="-", missed_cycles=5, control_rate_hz=control_rate_hz)
    hold_s = make_plant(robot, parameters, session=1).safety.settings.hold_s
    assert hold_s == pytest.approx(5 / (control_rate_hz or 1000.0), rel=1e-15)


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"safe_stop": "damping", "damping_s": 0.001}, ["damping_s", "0.001", "0.002"]),
        ({"brake_s": 0.0}, ["'brake_s'", "0"]),
        ({"effort_ramp_s": -1.0}, ["'effort_ramp_s'", "0", "-1"]),
        ({"missed_cycles": 0}, ["'missed_cycles'", "1", "0"]),
        ({"missed_cycles": 21}, ["'missed_cycles'", "20", "21"]),
        ({"control_rate_hz": 0.001}, ["control_rate_hz", "0.001", "1"]),
        ({"rate_hz": 0.5}, ["rate_hz", "0.5", "1", "20"]),
        ({"initial_position": [np.nan]}, ["'initial_position[0]'", "nan"]),
        ({"substeps": 1001}, ["'substeps'", "1000", "1001"]),
        ({"control_rate_hz": 2000.0}, ["control_rate_hz", "2000", "rate_hz", "1000"]),
        ({"state_rate_hz": 1001.0}, ["state_rate_hz", "1001", "rate_hz", "1000"]),
        ({"rearm_share": 1.5}, ["'rearm_share'", "1", "1.5"]),
        ({"speed": 0.0}, ["'speed'", "0"]),
        ({"lockstep_timeout_s": -1.0}, ["'lockstep_timeout_s'", "0", "-1"]),
        ({"actuators": ActuatorParameters(delay_steps=-1)}, ["'actuators.delay_steps'", "parameter", "whole"]),
        ({"effort_rate": [1.0, 2.0]}, ["effort_rate", "[1. 2.]"]),
    ],
)
def test_parameters_out_of_their_range(changes: dict, values: list[str]) -> None:
    robot = Robot.from_urdf(URDF / "pendulum.urdf")
    with pytest.raises(InvalidArgumentError, match=naming(*values)):
        make_plant(robot, PlantParameters(robot="-", **changes), session=1)


def test_a_velocity_limit_of_zero_counts_as_none() -> None:
    """Exporters write it for none; an effort limit of zero is a joint without a motor."""
    text = (URDF / "pendulum.urdf").read_text("utf-8")
    limits = Robot.from_urdf(text).limits
    zero = Limits(limits.lower, limits.upper, np.zeros(1), np.zeros(1))
    settings = safety_settings(PlantParameters(robot="-"), zero)
    assert (settings.velocity_limit.tolist(), settings.rearm_velocity.tolist()) == ([np.inf], [0.3])
    assert (settings.effort_limit.tolist(), settings.effort_rate.tolist()) == ([0.0], [0.0])


BRICK = """<robot name="brick"><link name="body"><inertial><mass value="2"/>
<inertia ixx="0.01" ixy="0" ixz="0" iyy="0.01" iyz="0" izz="0.01"/></inertial></link></robot>"""


def test_a_plant_with_contacts_comes_to_rest_on_the_ground() -> None:
    robot = Robot.from_urdf(BRICK, root="floating")
    corners = [{"link": "body", "point": [x, y, -0.05]} for x in (-0.1, 0.1) for y in (-0.1, 0.1)]
    parameters = PlantParameters(
        robot="-",
        rate_hz=500.0,
        contacts=corners,
        safe_stop="zero",
        initial_position=[0.0, 0.0, 0.06, 0.0, 0.0, 0.0, 1.0],
    )
    plant = make_plant(robot, parameters, session=1)
    assert plant.offer(command(plant, [0.0] * 6))
    plant.advance(400)
    assert 0.044 < plant.q[2] < 0.05  # four points that feel each other share the inertia behind their stiffness
    assert np.abs(plant.v).max() < 1e-6


def test_a_plant_with_stops_is_held_by_them() -> None:
    text = """<robot name="stopped"><link name="a"/><link name="b"><inertial><origin xyz="0.3 0 0"/><mass value="1.5"/>
    <inertia ixx="0.01" ixy="0" ixz="0" iyy="0.02" iyz="0" izz="0.02"/></inertial></link>
    <joint name="j" type="revolute"><parent link="a"/><child link="b"/><axis xyz="0 1 0"/>
    <limit lower="-1" upper="0.4" effort="9" velocity="90"/></joint></robot>"""
    robot = Robot.from_urdf(text)
    for stops in (False, True):
        parameters = PlantParameters(robot="-", position_limits=stops, safe_stop="zero")
        plant = make_plant(robot, parameters, session=1)
        assert plant.offer(command(plant, [0.0]))
        plant.advance(600)
        assert (plant.q[0] > 0.5) == (not stops)
    assert plant.q[0] == pytest.approx(0.4, abs=1e-3)


@pytest.mark.parametrize(
    ("contacts", "path"),
    [([{"link": "foot"}], "contacts[0].link"), ([{"lnik": "body"}], "contacts[0]"), ([{}], "contacts[0].link")],
)
def test_what_is_wrong_with_contacts_is_named(contacts: list, path: str) -> None:
    robot = Robot.from_urdf(BRICK, root="floating")
    with pytest.raises(DynError) as excinfo:
        make_plant(robot, PlantParameters(robot="-", contacts=contacts), session=1)
    assert excinfo.value.path == path


def hanging(robot: Robot, seconds: float, **changes) -> tuple[Plant, float]:
    """Thrown by efforts at their limits, then left alone for so many s. The plant, and its largest share of a limit."""
    plant = make_plant(robot, PlantParameters(robot="-", **changes), session=1)
    fastest, limit = 0.0, np.where(np.isfinite(robot.limits.velocity), robot.limits.velocity, np.inf)
    for step in range(round(1000 * seconds)):
        if step < 100:
            plant.offer(command(plant, robot.limits.effort))
        plant.advance(1)
        fastest = max(fastest, float((np.abs(plant.v) / limit).max()))
    return plant, fastest


@pytest.mark.parametrize(
    ("name", "policy"),
    wide(
        itertools.product(("ur5e", "panda"), ("brake", "damping", "zero")),
        lambda case: case[0] == "ur5e" or case[1] == "brake",
    ),
)
def test_a_controller_that_goes_wild_and_then_hangs_for_three_seconds(name: str, policy: str) -> None:
    """It was 92 rad/s once. Brakes: no limit is passed. Damping: it sinks slowly. Nothing: brakes at the limit."""
    robot = Robot.from_urdf(URDF / f"{name}.urdf")
    plant, fastest = hanging(robot, 3.0, safe_stop=policy)
    assert mode(plant) == "stopped"
    assert fastest <= 1.0
    if policy == "brake":
        assert not plant.v.any()
    assert np.abs(plant.v).max() < 0.5


@pytest.mark.parametrize(
    ("q", "steps_outside"), [([-1.0, 0.0], 0), ([1.0, 0.0], 0), ([0.0, -1e9], 0), ([-1.1, 0.0], 1), ([1.1, 0.0], 1)]
)
def test_range_of_positions_at_both_ends(q: list[float], steps_outside: int) -> None:
    """A limit belongs to the range."""
    plant = unit_masses()
    plant.robot.q = np.array(q)
    assert plant.offer(command(plant, [0.0, 0.0]))
    plant.advance(3)
    assert plant.counters.out_of_range_steps == 3 * steps_outside
    assert plant.out_of_range.sum() == 3 * steps_outside


@pytest.mark.parametrize(("q", "v"), [([0.0, np.nan], [0.0, 0.0]), ([0.0, 0.0], [0.0, np.inf])])
def test_divergence_of_either_position_or_velocity_names_its_joint(q: list[float], v: list[float]) -> None:
    plant = unit_masses()
    assert plant.offer(command(plant, [0.0, 0.0]))
    plant.robot.q, plant.robot.v = np.array(q), np.array(v)
    with np.errstate(invalid="ignore"), pytest.raises(FailedPreconditionError, match="'b'"):
        plant.advance(1)


def test_a_floating_robot_moves_along_its_rotations() -> None:
    """The plant's steps are the robot's: a quaternion stays one, and goes where `simulate` takes it."""
    robot = floating()
    limits = robot.limits
    q0, effort = robot.random_configuration(seed=3), np.linspace(-0.3, 0.4, robot.nv)
    parameters = PlantParameters(
        robot="-", initial_position=q0.tolist(), control_rate_hz=20.0, effort_ramp_s=1e-6, undriven=[]
    )
    plant = make_plant(robot, parameters, session=7)
    plant.safety.settings = replace(plant.safety.settings, velocity_limit=np.full(robot.nv, np.inf))
    plant.robot.velocity_limit = plant.safety.settings.velocity_limit
    assert plant.names == robot.configuration.velocity_names
    assert plant.offer(command(plant, effort))
    plant.advance(20)
    motion = robot.simulate(q0, np.zeros(robot.nv), effort, dt=0.001, steps=20)
    np.testing.assert_allclose(plant.q, motion.q[-1], atol=1e-14)
    np.testing.assert_allclose(plant.v, motion.v[-1], atol=1e-12)
    assert abs(np.linalg.norm(plant.q[3:7]) - 1.0) < 1e-15
    first = robot.joint_names[1]
    assert initial_position({first: 0.5}, robot.configuration, limits)[6:8].tolist() == [1.0, 0.5]


def test_initial_position_of_joints_with_several_parts() -> None:
    """`joint.part`, or a map of parts, which is what parameters with dots in their names become."""
    joints = configuration(["base", "lift"], ["planar", "prismatic"])
    limits = Limits(*np.full((2, 4), np.inf) * np.array([[-1.0], [1.0]]), *np.full((2, 4), np.inf))
    for positions in ({"base.theta": 0.5, "lift": 0.1}, {"base": {"theta": 0.5}, "lift": 0.1}):
        assert initial_position(positions, joints, limits).tolist() == [0.0, 0.0, 0.5, 0.1]
    with pytest.raises(InvalidArgumentError, match=naming("'base.z'", "base.x, base.y, base.theta, lift")):
        initial_position({"base": {"z": 1.0}}, joints, limits)


def test_initial_position_has_unit_quaternions() -> None:
    joints = configuration(["root_joint"], ["floating"])
    limits = Limits(np.full(7, -np.inf), np.full(7, np.inf), *np.full((2, 6), np.inf))
    with pytest.raises(InvalidArgumentError, match=naming("initial_position", "'root_joint'", "quaternion", "0")):
        initial_position({"root_joint.qw": 0.0}, joints, limits)


@pytest.mark.parametrize("substeps", [1, 4])
def test_divergence_names_the_length_of_the_steps_that_were_made(substeps: int) -> None:
    plant = unit_masses(dt_s=0.1, substeps=substeps, hold_s=10.0, control_s=1.0)
    plant.robot.engine.forward_dynamics = lambda q, v, tau: np.full_like(q, np.inf)
    assert plant.offer(command(plant, [0.5, 2.0]))
    with pytest.raises(FailedPreconditionError, match=naming(f"{0.1 / substeps:g} s")):
        plant.advance(1)


def test_a_robot_without_joints_is_no_plant() -> None:
    rock = Robot.from_urdf('<robot name="rock"><link name="stone"/></robot>')
    with pytest.raises(InvalidArgumentError, match="robot 'rock' has no movable joint"):
        make_plant(rock, PlantParameters(robot="-"), session=1)


@pytest.mark.parametrize(("rate", "integrator", "substeps"), [(4000.0, "rk4", 2), (1e4, "stick_slip", 1)])
def test_joints_that_steps_do_not_follow_get_others(
    pendulum: Robot, rate: float, integrator: str, substeps: int
) -> None:
    """A damping that stops the pendulum within 0.25 ms or 0.1 ms: `auto` follows it, and one step of rk4 is refused."""
    inertia = float(pendulum.mass_matrix([0.0])[0, 0])
    wild = {"robot": "-", "overlay": {"joints": {"hinge": {"damping": rate * inertia}}}}
    engine = make_plant(pendulum, PlantParameters(**wild), session=7).robot.engine
    assert (getattr(engine, "integrator", "stick_slip"), engine.substeps) == (integrator, substeps)
    with pytest.raises(FailedPreconditionError, match=r"steps of 0.001 s of rk4 are unstable: joint 'hinge'"):
        make_plant(pendulum, PlantParameters(**wild, integrator="rk4"), session=7)
    enough = math.ceil(rate * 1e-3 / 2.785)
    make_plant(pendulum, PlantParameters(**wild, integrator="rk4", substeps=enough), session=7)
    assert make_plant(pendulum, PlantParameters(robot="-"), session=7).robot.engine.substeps == 1

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


def plant(dt_s: float = 0.001, integrator: str = "rk4", substeps: int = 1, **changes) -> Plant:
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


def command(of: Plant, efforts, **changes) -> JointCommand:
    """Answers the plant's present state, and arms it."""
    state = of.publish()
    fields = {
        "session": state.session, "state_seq": state.seq, "epoch": state.epoch, "fingerprint": state.fingerprint,
        "controller": 1, "name": state.name, "effort": list(efforts), "arm": True,
    }  # fmt: skip
    return JointCommand(**{**fields, **changes})


def mode(of: Plant) -> str:
    return of.safety.mode


def test_stands_still_until_the_first_command_then_moves() -> None:
    one = plant()
    one.advance(100)
    assert (mode(one), one.time_s, one.q.tolist()) == ("braked", 0.1, [0.0, 0.0])
    assert one.offer(command(one, [2.0, 4.0]))
    one.advance(5)
    assert mode(one) == "active"
    np.testing.assert_allclose(one.v, [0.01, 0.02], rtol=1e-12)
    np.testing.assert_allclose(one.q, [0.5 * 2.0 * 0.005**2, 0.5 * 4.0 * 0.005**2], rtol=1e-9)


def test_catching_up_is_the_same_motion() -> None:
    one, other = plant(), plant()
    for each in (one, other):
        assert each.offer(command(each, [2.0, 4.0]))
    one.advance(7)
    for _ in range(7):
        other.advance(1)
    assert one.state() == other.state()


def test_positions_out_of_range_are_counted() -> None:
    one = plant()
    one.robot.q = np.array([1.5, 100.0])
    assert one.offer(command(one, [0.0, 0.0]))
    one.advance(4)
    assert one.counters.out_of_range_steps == 4


def test_divergence_names_the_joint_and_the_step() -> None:
    """Joint b runs away and takes a with it: after some steps of a catch-up both are not numbers."""
    one = plant(hold_s=1.0, control_s=1.0)
    one.robot.engine.forward_dynamics = lambda q, v, tau: np.array([1.0 + 0.0 * v[1] ** 2, 1e6 * (1.0 + v[1] ** 2)])
    assert one.offer(command(one, [0.0, 0.0]))
    two = plant(hold_s=1.0, control_s=1.0)
    two.robot.engine.forward_dynamics = one.robot.engine.forward_dynamics
    assert two.offer(command(two, [0.0, 0.0]))
    with np.errstate(over="ignore", invalid="ignore"):
        while np.isfinite(two.v).all():  # step by step, to the first step that is not finite
            try:
                two.advance(1)
            except FailedPreconditionError:
                break
        with pytest.raises(FailedPreconditionError) as caught:
            one.advance(40)
    step = two.counters.steps
    assert 1 < step < 40
    assert unnamed(caught.value, f"step {step}", f"t = {step * 0.001:g} s", "'b'", "dt = 0.001 s") == []


@pytest.mark.parametrize("name", ["rk4", "explicit_euler"])
def test_a_joint_that_diverges_alone_is_no_joint_too_fast(name: str) -> None:
    """By the second in its velocity first."""
    one = plant(integrator=name)
    one.robot.engine.forward_dynamics = lambda q, v, tau: np.array([0.0, np.inf])
    assert one.offer(command(one, [0.0, 0.0]))
    with pytest.raises(FailedPreconditionError, match=naming("joint 'b'", "finite")):
        one.advance(1)


def test_large_numbers_are_no_divergence() -> None:
    one = plant()
    one.robot.engine.forward_dynamics = lambda q, v, tau: np.zeros(2)
    one.robot.q = np.array([1e308, 1e308])
    assert one.offer(command(one, [0.0, 0.0]))
    with np.errstate(over="ignore"):
        one.advance(1)
    assert one.q.tolist() == [1e308, 1e308]


@pytest.mark.parametrize("substeps", [1, 2])
@pytest.mark.parametrize("name", ["rk4", "semi_implicit_euler", "explicit_euler"])
def test_the_plant_does_the_step_it_was_told(name: str, substeps: int) -> None:
    """A mass on a spring with a constant push: against the formulas by hand."""
    one = plant(integrator=name, dt_s=0.1, substeps=substeps, hold_s=10.0, control_s=1.0)
    one.robot.engine.forward_dynamics = lambda q, v, tau: tau - q
    one.robot.q = np.array([1.0, -1.0])
    assert one.offer(command(one, [0.5, 2.0]))
    one.advance(3)
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
    np.testing.assert_allclose([one.q, one.v], [q, v], rtol=1e-14)  # some dozen roundings


def test_messages_survive_the_wire() -> None:
    one = plant()
    assert decode(PlantState, encode(one.state())) == one.state()
    given = command(one, [0.1, -0.2])
    assert decode(JointCommand, encode(given)) == given
    for frame in (b"", b"\xc1", encode(given), b"\x81\xa1v\x01"):
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
    one = plant(**changes)
    one.robot.engine.forward_dynamics = lambda q, v, tau: tau - 10.0
    return one


def test_before_the_first_command() -> None:
    one = falling()
    one.advance(20)
    state = one.state()
    assert (state.command_seq, state.command_delay, state.mode, state.cause) == (-1, 0.0, "braked", "start")
    assert (state.position, state.velocity, state.effort) == ([0.0, 0.0], [0.0, 0.0], [0.0, 0.0])
    assert (one.counters.steps, one.counters.stopped_steps, one.counters.out_of_range_steps) == (20, 0, 0)


def test_every_command_taken_is_counted_once() -> None:
    one = plant()
    for number in (1, 2, 3):
        assert one.offer(command(one, [1.0, 1.0]))
        one.advance(2)
        assert (one.safety.counters.commands, one.counters.steps) == (number, 2 * number)
        assert one.state().command_seq == 2 * (number - 1)
    assert not any(one.safety.counters.refused.values())


def test_delay_of_a_command_is_reported() -> None:
    one = plant()
    given = command(one, [0.0, 0.0])
    one.advance(2)
    assert one.offer(given)
    one.advance(1)
    state = one.state()
    assert (state.command_seq, state.command_delay) == (0, pytest.approx(0.002))


def test_a_command_that_answers_an_old_state_is_refused() -> None:
    one = plant()
    one.advance(1000)
    given = command(one, [0.0, 0.0])
    one.advance(11)
    assert not one.offer(given)
    assert one.safety.counters.refused["stale"] == 1


def stopped(policy: str, push: float = 1.0) -> Plant:
    """Held up for 10 steps, pushed to a speed of 0.01 by then, and then left alone."""
    one = falling(stop=policy)
    assert one.offer(command(one, [10.0, 10.0 + push]))
    one.advance(10)
    assert mode(one) == "active"
    np.testing.assert_allclose(one.v, [0.0, 0.01 * push], atol=1e-15)
    one.advance(1)
    assert (mode(one), one.counters.stopped_steps) == ("stopped", 1)
    return one


@pytest.mark.parametrize("push", [1.0, -1.0])
def test_brakes_take_their_time_and_then_hold_whatever_pulls(push: float) -> None:
    """From 0.01 in 0.01 s: ten equal steps, and a way of half the speed times the time."""
    one = stopped("brake", push)
    before = one.q[1]
    speeds = [0.01 * push]
    for _ in range(10):
        speeds.append(one.v[1])
        one.advance(1)
    np.testing.assert_allclose(np.diff(speeds), -0.001 * push, rtol=1e-9)
    one.advance(1000)
    assert one.v.tolist() == [0.0, 0.0]
    # one of the ten steps was done before
    np.testing.assert_allclose(one.q[1] - before, 0.5 * push * 0.009 * 0.009, rtol=1e-9)


def test_brakes_that_opened_while_it_was_still_slowing_down_take_their_time_anew() -> None:
    one = stopped("brake")
    assert one.offer(command(one, [10.0, 1010.0]))
    one.advance(10)
    assert mode(one) == "active"
    np.testing.assert_allclose(one.v, [0.0, 10.009], atol=1e-12)
    one.advance(1)
    np.testing.assert_allclose(one.v, [0.0, 0.9 * 10.009], rtol=1e-12)
    one.advance(10)
    assert (mode(one), one.v.tolist()) == ("stopped", [0.0, 0.0])


def test_damping_lets_it_sink_no_faster_than_weight_over_damping() -> None:
    """D = 20 per s and 10 m/s^2: 0.5 m/s in the end, held by the weight's own effort."""
    one = stopped("damping")
    one.advance(1000)
    np.testing.assert_allclose(one.v, -0.5, rtol=1e-6)
    np.testing.assert_allclose(one.safety.effort, 10.0, rtol=1e-6)
    assert mode(one) == "stopped"


def test_without_brakes_and_efforts_it_falls() -> None:
    one = stopped("zero")
    assert one.safety.effort.tolist() == [0.0, 0.0]
    one.advance(4)
    np.testing.assert_allclose(one.v, [-0.05, -0.04], rtol=1e-12)


@pytest.mark.parametrize("policy", ["brake", "damping", "zero"])
def test_a_joint_at_its_velocity_limit_shuts_the_brakes_whatever_the_policy(policy: str) -> None:
    one = falling(stop=policy, velocity_limit=np.full(2, 0.3))
    assert one.offer(command(one, [10.0, 10.0]))
    fastest = 0.0
    for _ in range(300):
        one.advance(1)
        fastest = max(fastest, float(np.abs(one.v).max()))
    assert fastest <= 0.3
    assert (mode(one), one.safety.cause) == ("stopped", "missed")
    assert one.v.tolist() == [0.0, 0.0]


def test_a_step_that_would_pass_a_velocity_limit_is_braked_from_its_beginning() -> None:
    """0.2 after a step, 1.2 after the next one, were it not for the limit of 0.5."""
    one = plant(velocity_limit=np.full(2, 0.5))
    assert one.offer(command(one, [0.0, 200.0]))
    one.advance(1)
    assert one.offer(command(one, [0.0, 1000.0]))
    one.advance(1)
    assert (mode(one), one.safety.cause) == ("stopped", "velocity")
    np.testing.assert_allclose(one.v, [0.0, 0.18], rtol=1e-12)
    np.testing.assert_allclose(one.q[1], 0.5 * 0.2 * 0.001 + 0.19 * 0.001, rtol=1e-12)


def test_release_brakes() -> None:
    one = plant()
    assert one.offer(command(one, [1.0, 1.0]))
    one.advance(5)
    assert one.offer(command(one, [9.0, 9.0], release=True))
    one.advance(1)
    assert (mode(one), one.safety.cause, one.safety.effort.tolist()) == ("braked", "released", [0.0, 0.0])
    one.advance(10)
    assert one.v.tolist() == [0.0, 0.0]
    assert sum(one.safety.counters.stops.values()) == 0


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
        (
            {"control_rate_hz": 0.001},
            ["control_rate_hz", "0.001", "1"],
        ),
        (
            {"rate_hz": 0.5},
            ["rate_hz", "0.5", "1", "20"],
        ),
        ({"initial_position": [np.nan]}, ["'initial_position[0]'", "nan"]),
        ({"substeps": 1001}, ["'substeps'", "1000", "1001"]),
        ({"control_rate_hz": 2000.0}, ["control_rate_hz", "2000", "rate_hz", "1000"]),
        ({"state_rate_hz": 1001.0}, ["state_rate_hz", "1001", "rate_hz", "1000"]),
        ({"rearm_share": 1.5}, ["'rearm_share'", "1", "1.5"]),
        ({"speed": 0.0}, ["'speed'", "0"]),
        ({"lockstep_timeout_s": -1.0}, ["'lockstep_timeout_s'", "0", "-1"]),
        ({"actuators": ActuatorParameters(delay_steps=-1)}, ["'actuators.delay_steps'", "parameter", "whole"]),
        (
            {"effort_rate": [1.0, 2.0]},
            ["effort_rate", "[1. 2.]"],
        ),
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
    one = make_plant(robot, parameters, session=1)
    assert one.offer(command(one, [0.0] * 6))
    one.advance(400)
    assert 0.044 < one.q[2] < 0.05  # four points that feel each other share the inertia behind their stiffness
    assert np.abs(one.v).max() < 1e-6


def test_a_plant_with_stops_is_held_by_them() -> None:
    text = """<robot name="stopped"><link name="a"/><link name="b"><inertial><origin xyz="0.3 0 0"/><mass value="1.5"/>
    <inertia ixx="0.01" ixy="0" ixz="0" iyy="0.02" iyz="0" izz="0.02"/></inertial></link>
    <joint name="j" type="revolute"><parent link="a"/><child link="b"/><axis xyz="0 1 0"/>
    <limit lower="-1" upper="0.4" effort="9" velocity="90"/></joint></robot>"""
    robot = Robot.from_urdf(text)
    for stops in (False, True):
        parameters = PlantParameters(robot="-", position_limits=stops, safe_stop="zero")
        one = make_plant(robot, parameters, session=1)
        assert one.offer(command(one, [0.0]))
        one.advance(600)
        assert (one.q[0] > 0.5) == (not stops)
    assert one.q[0] == pytest.approx(0.4, abs=1e-3)


@pytest.mark.parametrize(
    ("contacts", "path"),
    [([{"link": "foot"}], "contacts[0].link"), ([{"lnik": "body"}], "contacts[0]"), ([{}], "contacts[0].link")],
)
def test_what_is_wrong_with_contacts_is_named(contacts: list, path: str) -> None:
    robot = Robot.from_urdf(BRICK, root="floating")
    with pytest.raises(DynError) as caught:
        make_plant(robot, PlantParameters(robot="-", contacts=contacts), session=1)
    assert caught.value.path == path


def hung(robot: Robot, seconds: float, **changes) -> tuple[Plant, float]:
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
    plant, fastest = hung(robot, 3.0, safe_stop=policy)
    assert mode(plant) == "stopped"
    assert fastest <= 1.0
    if policy == "brake":
        assert not plant.v.any()
    assert np.abs(plant.v).max() < 0.5


@pytest.mark.parametrize(
    ("q", "counted"),
    [([-1.0, 0.0], 0), ([1.0, 0.0], 0), ([0.0, -1e9], 0), ([-1.1, 0.0], 1), ([1.1, 0.0], 1)],
)
def test_range_of_positions_at_both_ends(q: list[float], counted: int) -> None:
    """A limit belongs to the range."""
    one = plant()
    one.robot.q = np.array(q)
    assert one.offer(command(one, [0.0, 0.0]))
    one.advance(3)
    assert one.counters.out_of_range_steps == 3 * counted
    assert one.out_of_range.sum() == 3 * counted


@pytest.mark.parametrize(("q", "v"), [([0.0, np.nan], [0.0, 0.0]), ([0.0, 0.0], [0.0, np.inf])])
def test_divergence_of_either_position_or_velocity_names_its_joint(q: list[float], v: list[float]) -> None:
    one = plant()
    assert one.offer(command(one, [0.0, 0.0]))
    one.robot.q, one.robot.v = np.array(q), np.array(v)
    with np.errstate(invalid="ignore"), pytest.raises(FailedPreconditionError, match="'b'"):
        one.advance(1)


def test_a_floating_robot_moves_along_its_rotations() -> None:
    """The plant's steps are the robot's: a quaternion stays one, and goes where `simulate` takes it."""
    robot = floating()
    limits = robot.limits
    q0, effort = robot.random_configuration(seed=3), np.linspace(-0.3, 0.4, robot.nv)
    parameters = PlantParameters(
        robot="-", initial_position=q0.tolist(), control_rate_hz=20.0, effort_ramp_s=1e-6, undriven=[]
    )
    one = make_plant(robot, parameters, session=7)
    one.safety.settings = replace(one.safety.settings, velocity_limit=np.full(robot.nv, np.inf))
    one.robot.velocity_limit = one.safety.settings.velocity_limit
    assert one.names == robot.configuration.velocity_names
    assert one.offer(command(one, effort))
    one.advance(20)
    motion = robot.simulate(q0, np.zeros(robot.nv), effort, dt=0.001, steps=20)
    np.testing.assert_allclose(one.q, motion.q[-1], atol=1e-14)
    np.testing.assert_allclose(one.v, motion.v[-1], atol=1e-12)
    assert abs(np.linalg.norm(one.q[3:7]) - 1.0) < 1e-15
    first = robot.joint_names[1]
    assert initial_position({first: 0.5}, robot.configuration, limits)[6:8].tolist() == [1.0, 0.5]


def test_initial_position_of_joints_with_several_parts() -> None:
    """`joint.part`, or a map of parts, which is what parameters with dots in their names become."""
    at = configuration(["base", "lift"], ["planar", "prismatic"])
    limits = Limits(*np.full((2, 4), np.inf) * np.array([[-1.0], [1.0]]), *np.full((2, 4), np.inf))
    for given in ({"base.theta": 0.5, "lift": 0.1}, {"base": {"theta": 0.5}, "lift": 0.1}):
        assert initial_position(given, at, limits).tolist() == [0.0, 0.0, 0.5, 0.1]
    with pytest.raises(InvalidArgumentError, match=naming("'base.z'", "base.x, base.y, base.theta, lift")):
        initial_position({"base": {"z": 1.0}}, at, limits)


def test_initial_position_has_unit_quaternions() -> None:
    at = configuration(["root_joint"], ["floating"])
    limits = Limits(np.full(7, -np.inf), np.full(7, np.inf), *np.full((2, 6), np.inf))
    with pytest.raises(InvalidArgumentError, match=naming("initial_position", "'root_joint'", "quaternion", "0")):
        initial_position({"root_joint.qw": 0.0}, at, limits)


@pytest.mark.parametrize("substeps", [1, 4])
def test_divergence_names_the_length_of_the_steps_that_were_made(substeps: int) -> None:
    one = plant(dt_s=0.1, substeps=substeps, hold_s=10.0, control_s=1.0)
    one.robot.engine.forward_dynamics = lambda q, v, tau: np.full_like(q, np.inf)
    assert one.offer(command(one, [0.5, 2.0]))
    with pytest.raises(FailedPreconditionError, match=naming(f"{0.1 / substeps:g} s")):
        one.advance(1)


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

"""Positions and velocities as commands: what theory says of the drives, limits, stops, refusals, a driver with drives.

The robot slides, turns without end, and has a finger that another follows; its plant is stepped in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dyn_service.control.command import INTERFACES, Command, SetPoint
from dyn_service.control.dry_runs import ClosedLoop, dry_run
from dyn_service.control.law import Law
from dyn_service.control.plant.drives import BRAKING, SHARE, Drive, SetPoints
from dyn_service.control.plant.plant import Driver, DriverError, Plant
from dyn_service.control.plant.safety import RUNNING
from dyn_service.engine.robot import Robot
from dyn_service.errors import DynError, FailedPreconditionError, InvalidArgumentError
from dyn_service.graph.middleware.telemetry import Recording
from dyn_service.graph.nodes.controllers.controller_kind import commander
from dyn_service.graph.nodes.controllers.trajectory_following import NODE, TrajectoryFollowingParameters
from dyn_service.graph.nodes.plant.factory import DriveParameters, PlantParameters, approach, interfaces_of, make_plant
from dyn_service.graph.nodes.plant.report import commanded_at
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from tests.conftest import ROOT, URDF
from tests.phrases import naming, unnamed

ODD = """<robot name="odd">
  <link name="base"><inertial><mass value="5"/>
    <inertia ixx="0.1" iyy="0.1" izz="0.1" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <link name="carriage"><inertial><mass value="3"/><origin xyz="0 0.05 0"/>
    <inertia ixx="0.02" iyy="0.03" izz="0.04" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <link name="wheel"><inertial><mass value="2"/><origin xyz="0.1 0 0.02"/>
    <inertia ixx="0.01" iyy="0.02" izz="0.02" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <link name="thumb"><inertial><mass value="0.2"/><origin xyz="0.05 0 0"/>
    <inertia ixx="1e-4" iyy="2e-4" izz="2e-4" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <link name="finger"><inertial><mass value="0.2"/><origin xyz="0.05 0 0"/>
    <inertia ixx="1e-4" iyy="2e-4" izz="2e-4" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <joint name="lift" type="prismatic"><parent link="base"/><child link="carriage"/><axis xyz="0.6 0 0.8"/>
    <limit lower="-0.4" upper="0.4" effort="400" velocity="2"/></joint>
  <joint name="turn" type="continuous"><parent link="carriage"/><child link="wheel"/><axis xyz="0 1 0"/>
    <limit effort="60" velocity="20"/></joint>
  <joint name="grip" type="revolute"><parent link="wheel"/><child link="thumb"/><origin xyz="0.2 0.05 0"/>
    <axis xyz="0 1 0"/><limit lower="-1" upper="1" effort="20" velocity="10"/></joint>
  <joint name="follow" type="revolute"><parent link="wheel"/><child link="finger"/><origin xyz="0.2 -0.05 0"/>
    <axis xyz="0 1 0"/><limit lower="-2" upper="2" effort="20" velocity="20"/>
    <mimic joint="grip" multiplier="-1.5" offset="0.1"/></joint>
</robot>"""
START = [0.1, 7.0, 0.2]  # the wheel has turned once before
W, T = 20.0, 1e-3
LIFT, TURN, GRIP = range(3)


@pytest.fixture(scope="module")
def odd() -> Robot:
    return Robot.from_urdf(ODD)


def plant_of(robot: Robot, **changes) -> Plant:
    settings = {"robot": "-", "initial_position": START, "drive": DriveParameters(natural_frequency=W)}
    return make_plant(robot, PlantParameters(**{**settings, **changes}), session=1)


def answering(interface: str, fields_at: Callable[[float], dict]) -> Callable[[PlantState], JointCommand]:
    """Answers each state by what is wanted at that time: lists by the fields of the command."""

    def answer(state: PlantState) -> JointCommand:
        arm = state.mode not in RUNNING and state.cause == "start"
        fields = {"effort": [0.0] * len(state.name), **fields_at(state.stamp)}
        return JointCommand(
            state.session,
            state.seq,
            state.epoch,
            state.fingerprint,
            1,
            state.name,
            arm=arm,
            interface=interface,
            **fields,
        )

    return answer


def run(
    plant: Plant, seconds: float, interface: str, fields_at: Callable[[float], dict]
) -> tuple[np.ndarray, np.ndarray]:
    """q and v at each step."""
    rows: list[tuple] = []
    ClosedLoop(plant, answering(interface, fields_at)).run(seconds, lambda plant, _: rows.append((plant.q, plant.v)))
    q, v = (np.array(column) for column in zip(*rows, strict=True))
    return q, v


def opened(plant: Plant, interface: str, value: list[float]) -> float:
    """Arms it; the time at which its brakes are open."""
    loop = ClosedLoop(plant, answering(interface, lambda t: {interface: value}))
    while plant.safety.mode != "active":
        loop.cycle()
    return plant.time_s


def test_it_says_by_what_it_is_commanded(odd: Robot) -> None:
    assert plant_of(odd).state().interfaces == INTERFACES
    assert plant_of(odd, command_interfaces=["position", "effort"]).state().interfaces == ("effort", "position")


@pytest.mark.parametrize("gains", [None, ([4e4, 300.0, 30.0], [900.0, 12.0, 1.0])])
@pytest.mark.parametrize("interface", ["position", "velocity"])
def test_at_rest_the_error_is_what_the_drive_does_not_know(odd: Robot, gains, interface: str) -> None:
    """K e = what is missing: M w^2 e = g' - g with a model, K e = g' without one; g' is of what really moves."""
    overlay = {"payloads": [{"link": "finger", "mass": 0.3, "com": [0.05, 0.0, 0.02]}]}
    drive = {"natural_frequency": W} if gains is None else {"stiffness": gains[0], "damping": gains[1]}
    plant = plant_of(odd, overlay=overlay, drive=DriveParameters(**drive), brake_s=0.01)
    value = START if interface == "position" else [0.0] * 3
    q, _ = run(plant, 1.5, interface, lambda t: {interface: value})
    real, zero, q_rest = make_real(odd, overlay), np.zeros(3), q[-1]
    weight, model_weight = real.inverse_dynamics(q_rest, zero, zero), odd.inverse_dynamics(q_rest, zero, zero)
    expected = (
        np.linalg.solve(odd.mass_matrix(q_rest), weight - model_weight) / W**2 if gains is None else weight / gains[0]
    )
    np.testing.assert_allclose(START - q_rest, expected, rtol=1e-5, atol=1e-9)  # exp(-20 * 1.4) of it is left, times t
    assert np.abs(expected).max() > 1e-3
    assert plant.safety.mode == "active"


def make_real(robot: Robot, overlay: dict) -> Robot:
    from dyn_service.service.protocol.inputs import unpack_overlay

    return robot.overlaid(unpack_overlay(overlay, "overlay"))


def test_a_step_is_answered_as_theory_says(odd: Robot) -> None:
    """q_d - q = s (1 + w t) exp(-w t) in all joints at once, for efforts are held through 1 ms: to w T s."""
    plant = plant_of(odd)
    begin_s = opened(plant, "position", START)
    step = np.array([0.001, 0.01, -0.005])  # less than a joint may go in one cycle: none is slowed down
    q, _ = run(plant, 0.4, "position", lambda t: {"position": (START + step).tolist()})
    t = np.arange(1, len(q) + 1) * T
    expected = START + step - np.outer((1.0 + W * t) * np.exp(-W * t), step)
    assert begin_s > 0.0
    assert (np.abs(q - expected) < W * T * np.abs(step)).all()
    assert np.abs(expected[0] - q[-1]).max() > 0.004  # and it did move


@pytest.mark.parametrize("size", [0.03, 1.0])
def test_a_position_that_is_far_is_gone_to_as_the_motors_can(panda: Robot, size: float) -> None:
    """Each joint away at once: none overshoots, is too fast, or asks more than there is; the accelerations are those
    that a quarter of the efforts gives, or 0.2 s to the limit of velocity. All at once would saturate the motors, and
    what was asked of one joint would move the others.
    """
    plant = make_plant(panda, PlantParameters(robot="-"), session=1)
    begin, limits = plant.q, panda.limits
    offsets = np.array([size] * 7 + [0.0])
    offsets[3] = -size  # from the middle of its limits as well as to the other side
    target = begin + offsets
    opened(plant, "position", begin.tolist())
    points: list[np.ndarray] = []
    loop = ClosedLoop(plant, answering("position", lambda t: {"position": target.tolist()}))
    rows: list[tuple[np.ndarray, np.ndarray]] = []

    def seen(plant: Plant, _: object) -> None:
        rows.append((plant.q, plant.v))
        points.append(plant.safety.set_point.position)  # type: ignore[union-attr]

    loop.run(1.0 if size < 0.1 else 2.0, seen)
    q, v = (np.array(column) for column in zip(*rows, strict=True))
    assert plant.safety.mode == "active"
    assert plant.safety.saturated.sum() == 0
    np.testing.assert_allclose(q[-1], target, atol=1e-6)
    progress = (q - begin) * np.sign(offsets)
    assert (progress.max(axis=0)[:7] <= size * (1.0 + 1e-3)).all()
    assert (np.abs(v).max(axis=0) <= SHARE * limits.speeds * (1.0 + 1e-3)).all()
    bends = np.abs(np.diff(np.array(points), 2, axis=0)).max(axis=0) / T**2
    acceleration = approach(panda, PlantParameters(robot="-"))
    # it is there where a cycle at s and a change c = a T more would reach it: s^2 = 1.6 c (s + c), so s + c = 3.3 c
    assert (bends <= 3.3 * acceleration + 1e-3).all()
    assert (bends[:7] >= 0.99 * acceleration[:7]).all()
    assert (acceleration <= limits.speeds / 0.2 * (1.0 + 1e-12)).all()


def test_what_is_streamed_is_where_the_set_point_stands() -> None:
    """A position each fifth cycle, a little below the limit; then one that is far, and back while on its way."""
    free = np.full(1, np.inf)
    points = SetPoints(T, -free, free, np.array([2.0]))
    points.approach_by(np.array([5.0]))
    points.begin(np.zeros(1))
    zero, unsaturated = np.zeros(1), np.zeros(1, dtype=np.bool_)
    for k in range(60):
        if k % 5 == 0:
            points.take("position", np.array([1.7e-3 * (k + 1)]), zero, zero)
        position = points.advance(zero, unsaturated, moves=True).position
        assert points.held_back[0] == (k >= 5 and k % 5 < 4)  # at the most speed: five for five
    assert position[0] == pytest.approx(1.7e-3 * 56)
    for target in (1.0, -0.2):
        points.take("position", np.array([target]), zero, zero)
        way = [points.advance(zero, unsaturated, moves=True).position[0] for _ in range(60 if target > 0.0 else 1500)]
        speeds = np.diff(way) / T
        assert np.abs(speeds).max() <= SHARE * 2.0 + 1e-9
        assert np.abs(np.diff(speeds)).max() <= 3.3 * 5.0 * T + 1e-9
    assert way[-1] == -0.2
    assert max(way) > way[0]  # it came to rest before it turned


def test_a_set_point_that_turns_stays_within_the_limits() -> None:
    """Streamed at 1.8 rad/s to 50 mrad before its limit; to come to rest by its acceleration would take 0.3 rad."""
    points = SetPoints(T, np.array([-1.0]), np.array([0.2]), np.array([2.0]))
    points.approach_by(np.array([5.0]))
    points.begin(np.zeros(1))
    zero, unsaturated = np.zeros(1), np.zeros(1, dtype=np.bool_)
    way = []
    for target in [*np.arange(0.0, 0.15, 1.8e-3), *[-0.5] * 200]:
        points.take("position", np.array([target]), zero, zero)
        way.append(points.advance(zero, unsaturated, moves=True).position[0])
    assert max(way) == 0.2
    assert way[-1] < 0.15


def test_a_ramp_is_followed_without_error(odd: Robot) -> None:
    """With the position's velocity, and a command every fourth cycle: the set point moves on in between."""
    plant = plant_of(odd, control_rate_hz=250.0)
    rate = np.array([0.1, -3.0, 0.3])
    begin_s = opened(plant, "position", START)

    def fields_at(t: float) -> dict:
        return {"position": (START + (t - begin_s) * rate).tolist(), "velocity": rate.tolist()}

    errors: list[np.ndarray] = []
    loop = ClosedLoop(plant, answering("position", fields_at), every=4)
    loop.run(1.0, lambda plant, _: errors.append(START + (plant.time_s - begin_s) * rate - plant.q))
    # from rest the error is v t exp(-w t); after 0.8 s there is what efforts held through a cycle miss of a weight that
    # changes, m g l v T / 2 / (M w^2), some 2e-4 rad of the wheel
    assert np.abs(errors[12]).max() > 0.01
    assert np.abs(errors[200:]).max() < 5e-4
    assert plant.safety.too_far.sum() == 0


def test_a_velocity_is_reached_without_overshoot_and_stops_at_limits(odd: Robot) -> None:
    """v = V (1 - exp(-w t)); the lift comes to its upper limit, 0.4 m, and never beyond."""
    plant = plant_of(odd, effort_ramp_s=T)  # efforts are there at once
    opened(plant, "velocity", [0.0] * 3)
    velocity = np.array([0.5, -6.0, 0.2])
    q, v = run(plant, 1.2, "velocity", lambda t: {"velocity": velocity.tolist()})
    t = np.arange(1, len(v) + 1) * T
    early = t < 0.4
    expected = np.outer(1.0 - np.exp(-W * t), velocity)
    assert (np.abs(v - expected) < W * T * np.abs(velocity))[early].all()
    np.testing.assert_allclose(v[-1, TURN], velocity[TURN], rtol=1e-3)  # of the weight that changes in a cycle
    # it lags by v / w before it, of which efforts held through a cycle leave less than the share w T
    assert q[:, LIFT].max() < 0.4 + velocity[LIFT] / W * (W * T)
    assert q[-1, LIFT] == pytest.approx(0.4, abs=1e-4)  # the wheel, which turns on, shakes it


def test_commands_beyond_limits_are_cut_and_counted(odd: Robot) -> None:
    drive = DriveParameters(natural_frequency=W, acceleration=100.0)
    plant = plant_of(odd, drive=drive)
    run(plant, 0.8, "position", lambda t: {"position": [3.0, START[TURN], START[GRIP]]})
    assert plant.safety.mode == "active"
    assert plant.q[LIFT] <= 0.4 + 1e-9
    assert plant.q[LIFT] == pytest.approx(0.4, abs=1e-3)
    # it was on its way at a share of its velocity limit, 0.3 m in 1.8 m/s, and began and ended at 100 and 80 m/s^2
    speed = SHARE * 2.0
    expected = 0.3 / speed + 0.5 * speed / 100.0 + 0.5 * speed / (BRAKING * 100.0)
    assert plant.safety.too_far[LIFT] * T == pytest.approx(expected, abs=0.005)
    assert plant.safety.counters.clipped == plant.safety.counters.commands
    assert (plant.safety.beyond > 0).tolist() == [True, False, False]
    plant = plant_of(odd)
    _, v = run(plant, 0.5, "velocity", lambda t: {"velocity": [0.0, 1e3, 0.0]})
    assert v[-1, TURN] == pytest.approx(SHARE * 20.0, rel=1e-3)
    assert plant.safety.beyond[TURN] > 0


@pytest.mark.parametrize(
    ("interface", "value", "words"),
    [
        ("position", [0.5, 7.0, 0.2], "a position is beyond its limit"),
        ("position", [0.1, 7.5, 0.2], "a position is beyond its rate"),
        ("velocity", [0.0, 20.5, 0.0], "a velocity is beyond its limit"),
    ],
)
def test_where_limits_stop_they_do(odd: Robot, interface: str, value: list[float], words: str) -> None:
    plant = plant_of(odd, beyond_limits="stop")
    opened(plant, interface, START if interface == "position" else [0.0] * 3)
    run(plant, 0.01, interface, lambda t: {interface: value})
    assert (plant.safety.mode, plant.safety.cause) == ("stopped", "beyond_limits")
    assert plant.safety.counters.refused["beyond_limits"] == 1
    assert plant.safety.brakes


@pytest.mark.parametrize("interface", INTERFACES)
def test_who_falls_silent_is_stopped(odd: Robot, interface: str) -> None:
    """The set point goes on for the twenty cycles that are borne, and no further; then the brakes."""
    plant = plant_of(odd, brake_s=0.01)
    rate = [0.0, 2.0, 0.0]

    def wanted(t: float) -> dict:
        if interface == "effort":
            return {"effort": odd.gravity_forces(plant.q).tolist()}
        return {"velocity": rate} | ({"position": plant.q.tolist()} if interface == "position" else {})

    run(plant, 0.3, interface, wanted)
    assert plant.safety.mode == "active"
    plant.advance(19)  # and one in which the last command came
    assert plant.safety.mode == "active"
    plant.advance(1)
    assert (plant.safety.mode, plant.safety.cause, plant.safety.brakes) == ("stopped", "missed", True)
    plant.advance(50)
    assert not plant.v.any()
    assert plant.safety.set_point is None


def test_a_set_point_waits_for_motors_at_their_limits_and_goes_slowly_to_what_is_far() -> None:
    free, unsaturated = np.full(2, np.inf), np.zeros(2, dtype=np.bool_)
    points = SetPoints(T, -free, free, np.array([1.0, 1.0]))
    points.begin(np.zeros(2))
    points.take("velocity", np.array([0.5, 0.5]), np.zeros(2), np.zeros(2))
    set_point = points.advance(np.zeros(2), np.array([True, False]), moves=True)
    assert set_point.position.tolist() == [0.0, 0.5 * T]
    points.begin(np.zeros(2))
    points.take("position", np.array([0.1, 0.0]), np.array([0.3, 0.3]), np.zeros(2))
    set_point = points.advance(np.zeros(2), unsaturated, moves=True)
    assert set_point.position.tolist() == [SHARE * T, 0.0]
    assert set_point.velocity.tolist() == [0.0, 0.3]  # on its way no velocity but its own: a servo would pass the limit
    assert points.held_back.tolist() == [True, False]


def test_a_velocity_neither_passes_a_limit_nor_jumps_back_to_one() -> None:
    """Armed beyond a limit, as after a stop: the set point stays there, and may move back as commanded."""
    unsaturated, zero = np.zeros(3, dtype=np.bool_), np.zeros(3)
    points = SetPoints(T, -np.ones(3), np.ones(3), np.full(3, 2.0))
    begin = np.array([1.3, -1.3, 1.0])
    for rate, rates in ((0.0, [0.0, 0.0, 0.0]), (0.5, [0.0, 0.5, 0.0]), (-0.5, [-0.5, 0.0, -0.5])):
        points.begin(begin)
        points.take("velocity", np.full(3, rate), zero, zero)
        set_point = points.advance(begin, unsaturated, moves=True)
        assert set_point.position.tolist() == (begin + T * np.array(rates)).tolist()
        assert set_point.velocity.tolist() == rates


def test_taken_over_with_open_brakes_the_set_point_begins_at_the_robot(odd: Robot) -> None:
    """Where a stop leaves the brakes open, and the robot was elsewhere before."""
    plant = plant_of(odd, safe_stop="zero", overlay={"gravity": [0.0, 0.0, 0.0]})
    run(plant, 0.1, "position", lambda t: {"position": START})
    plant.advance(60)
    assert (plant.safety.mode, plant.safety.brakes) == ("stopped", False)
    q_other = np.array([-0.2, 5.0, -0.3])
    plant.robot.set_state(q_other, np.zeros(3))
    plant.look()
    answer = answering("position", lambda t: {"position": START})
    loop = ClosedLoop(plant, lambda state: msgspec.structs.replace(answer(state), arm=True))
    loop.cycle()
    assert plant.safety.mode in RUNNING
    assert plant.safety.set_point is not None
    assert (np.abs(plant.safety.set_point.position - q_other) <= [2.0 * T, 20.0 * T, 10.0 * T]).all()


REFUSED = [
    ("position", {}, "names"),
    ("position", {"position": START, "velocity": [0.0]}, "names"),
    ("velocity", {"velocity": [0.0] * 3, "position": START}, "names"),
    ("effort", {"position": START}, "names"),
    ("position", {"position": [0.1, np.nan, 0.2]}, "not_finite"),
    ("position", {"position": START, "velocity": [np.inf, 0.0, 0.0]}, "not_finite"),
    ("velocity", {"velocity": [0.0, np.nan, 0.0]}, "not_finite"),
    ("velocity", {"velocity": [0.0] * 3, "effort": [np.nan, 0.0, 0.0]}, "not_finite"),
    ("torque", {}, "interface"),
]


@pytest.mark.parametrize(("interface", "fields", "reason"), REFUSED)
def test_what_is_no_command_of_its_interface_is_refused(odd: Robot, interface: str, fields: dict, reason: str) -> None:
    plant = plant_of(odd)
    run(plant, 0.002, interface, lambda t: fields)
    assert {name: n for name, n in plant.safety.counters.refused.items() if n} == {reason: 2}
    assert plant.safety.mode == "braked"


def test_another_interface_is_for_after_a_stop(odd: Robot) -> None:
    plant = plant_of(odd)
    opened(plant, "position", START)
    run(plant, 0.002, "velocity", lambda t: {"velocity": [0.0] * 3})
    assert plant.safety.refusal is not None
    assert unnamed(plant.safety.refusal.sentence, "'velocity'", "'position'") == []
    assert plant.safety.mode == "active"


def test_a_controller_of_another_interface_ends_at_the_first_state(odd: Robot) -> None:
    plant = plant_of(odd, command_interfaces=["effort"])
    controller = commander(
        NODE.spec, TrajectoryFollowingParameters(command_interface="position"), odd, number=1, restarted=False
    )
    with pytest.raises(FailedPreconditionError) as excinfo:
        ClosedLoop(plant, controller.answer).run(0.1)
    assert unnamed(excinfo.value, "controller", "position", "effort") == []
    assert plant.safety.mode == "braked"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"drive": DriveParameters(natural_frequency=300.0)}, "their product at most 250 rad/s"),
        ({"drive": DriveParameters(natural_frequency=150.0, damping_ratio=2.0)}, "their product at most 250 rad/s"),
        ({"drive": DriveParameters(stiffness=10.0)}, "drive: expected stiffness and damping, or neither"),
        ({"drive": DriveParameters(stiffness=10.0, damping=-1.0)}, "drive.damping must be one number or 3, positive"),
        ({"drive": DriveParameters(stiffness=1.0, damping=1.0, damping_ratio=2.0)}, "expected one pair"),
    ],
)
def test_drives_that_cannot_be_are_refused(odd: Robot, changes: dict, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        plant_of(odd, **changes)


def test_joints_with_several_ways_to_move_are_commanded_by_effort(odd: Robot) -> None:
    configuration, body = Robot.from_urdf(ODD, root="floating").configuration, plant_of(odd).robot
    assert interfaces_of(PlantParameters(robot="-"), configuration, body) == ("effort",)
    with pytest.raises(InvalidArgumentError, match=naming("velocity", "effort")):
        interfaces_of(PlantParameters(robot="-", command_interfaces=["velocity"]), configuration, body)


class WithDrives:
    """A robot whose drives are its own, of position alone: what its driver writes goes to them."""

    interfaces = ("position",)
    simulated = False

    def __init__(self, robot: Robot) -> None:
        self.body = plant_of(robot).robot
        self.configuration = self.body.configuration
        self.drive = Drive.of_model(robot.inverse_dynamics, W, 1.0, robot.nv, T)
        self.written: list[SetPoint | None] = []

    def __getattr__(self, name: str):
        return getattr(self.body, name)  # opens, reads and closes as the simulated one

    def write(self, effort: np.ndarray, *, brakes: bool) -> None:
        self.written.append(None)
        self.body.write(effort, brakes=brakes)

    def write_set_point(self, set_point: SetPoint, *, brakes: bool) -> None:
        self.written.append(set_point)
        self.body.write(self.drive.effort(set_point, self.body.q, self.body.v), brakes=brakes)


def test_a_driver_with_drives_gets_set_points(odd: Robot) -> None:
    """Within limits and never in a jump; in a stop it gets efforts, and brakes."""
    simulated = plant_of(odd)
    driver = WithDrives(odd)
    simulated.robot = Driver(driver)  # type: ignore[arg-type]
    simulated.safety.servo, simulated.safety.interfaces = None, simulated.robot.interfaces
    assert simulated.state().interfaces == ("position",)
    run(simulated, 0.8, "position", lambda t: {"position": [3.0, 7.5, 0.2], "effort": [0.0, 1.0, 0.0]})
    assert simulated.safety.mode == "active"
    points = np.array([set_point.position for set_point in driver.written if set_point is not None])
    assert np.abs(np.diff(points, axis=0)).max(axis=0)[LIFT] <= SHARE * 2.0 * T * (1 + 1e-9)
    assert points[-1].tolist() == [0.4, 7.5, 0.2]
    assert driver.written[-1] is not None
    assert driver.written[-1].effort.tolist() == [0.0, 1.0, 0.0]
    offset = np.linalg.solve(odd.mass_matrix(simulated.q), [0.0, 1.0, 0.0]) / W**2
    np.testing.assert_allclose(
        simulated.q, np.array([0.4, 7.5, 0.2]) + offset, atol=1e-3
    )  # it is on its last millimetre
    simulated.advance(21)
    assert driver.written[-1] is None
    with pytest.raises(DriverError, match="accepts efforts only"):
        Driver(plant_of(odd).robot).write_set_point(
            driver.written[-30] or SetPoint("position", *[np.zeros(3)] * 3), brakes=True
        )


def test_what_was_commanded_stands_beside_what_it_did() -> None:
    """Of two runs of a plant, the second by another interface: held until the next command, and none while stopped."""
    recording = Recording(["t", "session", "interface", "command.a", "command.b"])
    recording.extend(np.array([[0.1, 7, 0, 1, 2], [0.3, 7, 0, 3, 4], [0.1, 8, 1, 5, 6]], dtype=np.float64))
    t, session = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.0, 0.2]), np.array([7.0] * 5 + [8.0] * 2)
    running = np.array([True] * 4 + [False] + [True] * 2)
    commands = commanded_at(recording, t, session, running)
    missing = [np.nan, np.nan]
    np.testing.assert_array_equal(commands["effort"], [missing, [1, 2], [1, 2], [3, 4], missing, missing, missing])
    np.testing.assert_array_equal(commands["position"], [missing] * 6 + [[5, 6]])
    assert set(commands) == {"effort", "position"}
    assert commanded_at(None, t, session, running) == {}


class Positions(Law):
    """Returns the given command."""

    name = "positions"
    interface = "position"

    def __init__(self, output: object) -> None:
        self.output = output

    def update(self, state, reference, dt):
        return self.output


def test_laws_of_positions_are_held_to_their_word(odd: Robot) -> None:
    from dyn_service.control.law import RobotState, checked_command
    from dyn_service.control.trajectory import Reference

    state, names = RobotState(0.0, *[np.zeros(3)] * 3), odd.configuration.velocity_names
    reference = Reference(*[np.zeros(3)] * 3)
    command = checked_command(Positions([1, 2, 3]), state, reference, 0.002, names)
    assert (command.value.tolist(), command.velocity, command.effort) == ([1.0, 2.0, 3.0], None, None)
    bad: Iterator[tuple[object, str]] = iter(
        [
            (None, "returned nothing: expected 3 positions"),
            (Command(np.zeros(2)), r"shape \(2,\): expected 3 positions"),
            (Command(np.zeros(3), velocity=np.full(3, np.nan)), "nan for joint 'lift': expected finite velocities"),
            (Command(np.zeros(3), effort=np.zeros(1)), "expected 3 efforts"),
        ]
    )
    for output, words in bad:
        with pytest.raises(DynError, match=words):
            checked_command(Positions(output), state, reference, 0.002, names)
    with pytest.raises(InvalidArgumentError, match=naming("'positions'", "position", "ClosedLoop")):
        dry_run(Positions([0, 0, 0]), odd, 0.1)


A_MAX, PANDA_W, GAIN = 5.0, 60.0, 10.0
BOUNDS = {
    ("effort", "none"): 5e-5,  # efforts held through 2 ms, a reference whose jerk is 50 / s^3
    ("position", "none"): 1.1 * A_MAX / PANDA_W**2,  # a / w^2, and a tenth for jerk
    ("position", "acceleration"): 0.2 * A_MAX / PANDA_W**2,
    ("velocity", "none"): A_MAX / (GAIN * PANDA_W),  # a / (k w)
}


@pytest.fixture(scope="module")
def panda() -> Robot:
    return Robot.from_urdf(URDF / "panda.urdf")


@pytest.mark.parametrize(
    ("interface", "feed_forward", "engine"),
    [*((*key, "own") for key in BOUNDS), ("position", "none", "mujoco"), ("velocity", "none", "mujoco")],
)
def test_the_panda_follows_goals_by_each(panda: Robot, interface: str, feed_forward: str, engine: str) -> None:
    if engine == "mujoco":
        pytest.importorskip("mujoco")
    p = PlantParameters(
        robot="-", engine=engine, control_rate_hz=500.0, initial_position={"panda_joint4": -1.2, "panda_joint6": 1.6}
    )
    plant = make_plant(panda, p, session=1)
    parameters = TrajectoryFollowingParameters(
        goals=str(Path(ROOT / "config" / "panda_goals.yaml")), command_interface=interface, feed_forward=feed_forward
    )
    controller = commander(NODE.spec, parameters, panda, number=1, restarted=False)
    ClosedLoop(plant, controller.answer, every=2).run(0.6)
    assert plant.safety.mode == "active"
    assert sum(plant.safety.counters.refused.values()) == 0
    tolerance = BOUNDS[interface, feed_forward]
    largest = controller.following.tracking.maximum
    assert largest < tolerance
    if feed_forward == "none" and interface != "effort":
        assert largest > 0.5 * tolerance  # the error is what theory says, and no less


def test_after_a_pause_a_position_is_as_far_as_ten_milliseconds_ago() -> None:
    """50 cycles without a command: 0.02 rad is further than a joint goes in 10 ms, at 0.9 of 1 rad/s, so that the set
    point begins with its acceleration, 2 rad/s^2, not at full speed.
    """
    free = np.array([np.inf])
    for way, first in ((0.02, 2.0 * T * T), (0.0089, SHARE * T)):
        points = SetPoints(T, -free, free, np.array([1.0]))
        points.approach_by(np.array([2.0]))
        points.begin(np.zeros(1))
        points.take("position", np.zeros(1), np.zeros(1), np.zeros(1))
        for _ in range(50):
            points.advance(np.zeros(1), np.zeros(1, dtype=bool), moves=True)
        points.take("position", np.array([way]), np.zeros(1), np.zeros(1))
        set_point = points.advance(np.zeros(1), np.zeros(1, dtype=bool), moves=True)
        assert set_point.position[0] == pytest.approx(first, rel=1e-9), way

"""What a driver may give and raise, and what then becomes of the robot. No process, no socket."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from dyn_service.control.plant.plant import Driver, DriverError, Motion, Plant, Reading
from dyn_service.control.plant.safety import RUNNING, SafetySupervisor
from dyn_service.engine.robot import Robot
from dyn_service.graph.nodes.plant.factory import PlantParameters, safety_settings
from dyn_service.messages.dyn_service_msgs import JointCommand
from tests.conftest import URDF
from tests.phrases import naming, unnamed

ROBOT = Robot.from_urdf(URDF / "ur5e.urdf")
AT = ROBOT.configuration
STILL = np.zeros(6)
NAN = np.array([0.0, 0.0, np.nan, 0.0, 0.0, 0.0])


class Scripted:
    """A robot whose readings are the given ones from the fifth on."""

    simulated = False
    configuration = AT

    def __init__(self, read, first=lambda: Reading(STILL, STILL)) -> None:
        self.script, self.first, self.readings = read, first, 0
        self.written: list[bool] = []

    def open(self) -> Reading:
        return self.first()

    def write(self, effort: np.ndarray, *, brakes: bool) -> None:
        self.written.append(brakes)

    def read(self) -> Reading:
        self.readings += 1
        return self.script() if self.readings > 4 else Reading(STILL, STILL)

    def close(self) -> None:
        raise OSError("it is gone")


def under_command(robot: Scripted, cycles: int = 8, *, stale_cycles: int = 0, **changes) -> Plant:
    """The plant after so many cycles under a controller that armed it once."""
    settings = safety_settings(PlantParameters(robot="-", **changes), ROBOT.limits)
    safety = SafetySupervisor(settings, AT.velocity_names, 1, ROBOT.fingerprint, lambda: np.eye(6))
    plant = Plant(Driver(robot), ROBOT.limits, safety, 1e-3, stale_cycles)
    for _ in range(cycles):
        state = plant.publish()
        arm = state.mode not in RUNNING and state.cause == "start"
        answer = (1, state.seq, state.epoch, state.fingerprint, 1, state.name, [0.0] * 6)
        plant.offer(JointCommand(*answer, arm=arm))
        plant.advance(1)
    return plant


def test_a_reading_holds_the_true_motion_where_it_is_known_and_else_the_measured_one() -> None:
    q, v = np.arange(6.0), np.arange(6.0, 12.0)
    measured_motion, true_motion = Reading(q, v).motion, Reading(q, v, truth=Motion(v, q)).motion
    np.testing.assert_array_equal([*measured_motion, *true_motion], [q, v, v, q])


def test_a_sound_driver_is_let_through() -> None:
    """Lists and whole numbers are numbers; what a driver writes into its own arrays later changes nothing."""
    buffer = np.ones(6)
    robot = Scripted(lambda: Reading([1] * 6, buffer, np.full(6, 2.0)))
    plant = under_command(robot)
    buffer[:] = np.nan
    assert (plant.safety.mode, robot.written[-1]) == ("active", False)
    assert (plant.q.tolist(), plant.v.tolist(), plant.effort.tolist()) == ([1.0] * 6, [1.0] * 6, [2.0] * 6)


@pytest.mark.parametrize(
    "reading", [Reading(NAN, STILL), Reading(STILL, NAN), Reading(STILL, STILL, NAN), Reading(STILL + np.inf, STILL)]
)
def test_what_is_no_number_stops_the_robot_and_is_given_to_nobody(
    reading: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    robot = Scripted(lambda: reading)
    with caplog.at_level(logging.WARNING):
        plant = under_command(robot)
    assert (plant.safety.mode, plant.safety.cause) == ("stopped", "driver")
    assert robot.written[-1] is True
    state = plant.state()
    assert np.isfinite([*state.position, *state.velocity, *state.effort]).all()
    assert plant.counters.stale_readings == 4
    assert [record.message for record in caplog.records] == [
        "the driver read numbers that are not finite: the robot stops",
        "the robot is stopped: driver at 0.004 s: it read numbers that are not finite",
    ]


def test_no_number_right_after_the_first_reading_leaves_that_one_standing() -> None:
    stands = Reading(np.full(6, 0.25), STILL)
    robot = Scripted(lambda: Reading(NAN, STILL), first=lambda: stands)
    robot.readings = 4
    plant = under_command(robot)
    assert (plant.q.tolist(), plant.safety.cause) == ([0.25] * 6, "driver")


@pytest.mark.parametrize("policy", ["brake", "damping", "zero"])
def test_a_robot_that_is_no_longer_seen_is_stopped_by_its_brakes_under_any_policy(policy: str) -> None:
    """Without a measured speed there are no efforts -D v; the stop is counted once."""
    robot = Scripted(lambda: Reading(STILL, STILL, fresh=False))
    plant = under_command(robot, 12, stale_cycles=3, safe_stop=policy)
    assert (plant.safety.mode, plant.safety.cause, plant.safety.counters.stops["driver"]) == ("stopped", "driver", 1)
    assert robot.written == 8 * [False] + 4 * [True]


@pytest.mark.parametrize(
    ("script", "values"),
    [
        (lambda: Reading(STILL[:5], STILL), ["(5,)", "6"]),
        (lambda: Reading(STILL, STILL[:1]), ["(1,)", "6"]),
        (lambda: Reading(STILL, STILL[None]), ["(1, 6)", "6"]),
        (lambda: Reading(STILL, STILL, 0.0), ["()", "6"]),
        (lambda: Reading(["a"] * 6, STILL), ["6", "no numbers", "q"]),
        (lambda: Reading(STILL, STILL, fault="hot"), ["'hot'", "'velocity'", "'driver'"]),
        (lambda: None, ["NoneType", "read", "gave"]),
        (lambda: 1 / 0, ["ZeroDivisionError", "test_driver.py"]),
    ],
)
def test_what_is_no_reading_ends_the_loop_in_one_sentence(script, values: list[str]) -> None:
    with pytest.raises(DriverError) as excinfo:
        under_command(Scripted(script))
    assert unnamed(excinfo.value, *values) == []


def test_a_driver_that_begins_with_no_numbers_is_not_begun_with(caplog: pytest.LogCaptureFixture) -> None:
    """Nor does what its `close` raises hide why."""
    with pytest.raises(DriverError, match=naming("first reading", "finite")):
        under_command(Scripted(lambda: None, first=lambda: Reading(NAN, STILL)))
    assert "the driver failed in its close" in caplog.text


def test_each_new_reading_allows_the_tolerated_cycles_without_one_again() -> None:
    """Two of three readings are not new, where two in a row are tolerated."""
    count = iter(range(100))
    robot = Scripted(lambda: Reading(STILL, STILL, fresh=next(count) % 3 == 0))
    plant = under_command(robot, 30, stale_cycles=2)
    assert plant.safety.mode == "active"
    assert plant.counters.stale_readings == 17  # of 26
    plant = under_command(Scripted(lambda: Reading(STILL, STILL, fresh=False)), stale_cycles=2)
    assert plant.safety.reason == "the driver had no new reading for 3 cycles"


def test_steps_that_passed_while_it_was_stopped_count_each() -> None:
    """After an overrun of five periods a real robot is written once; five steps have passed."""
    plant = under_command(Scripted(lambda: Reading(STILL, STILL, fault="driver", reason="no current in drive 3")))
    assert (plant.safety.mode, plant.state().reason) == ("stopped", "no current in drive 3")
    steps, stopped = plant.counters.steps, plant.counters.stopped_steps
    plant.advance(5)
    assert (plant.counters.steps, plant.counters.stopped_steps) == (steps + 5, stopped + 5)

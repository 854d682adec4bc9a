"""A plant and its controller in one process, in lockstep: equal to the bit, and what a missing answer does."""

from __future__ import annotations

import hashlib
import re

import numpy as np
import pytest

from dyn_service.control.dry_runs import ClosedLoop, dry_run
from dyn_service.control.laws.computed_torque import GravityCompensation
from dyn_service.control.plant.safety import RUNNING
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.nodes.controllers import collision_stop
from dyn_service.graph.nodes.controllers.collision_stop import CollisionStopParameters
from dyn_service.graph.nodes.controllers.controller_kind import commander
from dyn_service.graph.nodes.plant.factory import ActuatorParameters, PlantParameters, make_plant
from dyn_service.messages import encode
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from tests.phrases import naming

SENSORS = """\
robot: double_pendulum
seed: 11
encoders:
  joint_1: &one {counts_per_turn: 4096, gear_ratio: 50, rate_hz: 1000, noise: 1.0e-4}
  joint_2: *one
imus: {tip: {link: lower_bar, rate_hz: 500, gyroscope: {noise_density: 0.01}}}
"""


def answering(robot: Robot, silent=()):
    """Holds the arm up where it is, with a sine on top; says nothing to the states of these times (from, to)."""

    def answer(state: PlantState) -> JointCommand | None:
        if any(begin <= state.stamp < end for begin, end in silent):
            return None
        extra_effort = 0.1 * np.sin(8.0 * state.stamp) - 2.0 * np.array(state.velocity)
        effort = robot.gravity_forces(np.array(state.position)) + extra_effort
        arm = state.mode not in RUNNING
        return JointCommand(
            state.session, state.seq, state.epoch, state.fingerprint, 1, state.name, effort.tolist(), arm=arm
        )

    return answer


def run(robot: Robot, parameters: PlantParameters, seconds: float = 0.5, silent=(), **loop):
    """The plant after so many s, and a digest of all its states."""
    plant, digest = make_plant(robot, parameters, session=1), hashlib.sha256()
    ClosedLoop(plant, answering(robot, silent), **loop).run(seconds, lambda _, state: digest.update(encode(state)))
    return plant, digest.hexdigest()


def test_five_runs_are_equal_to_the_bit(arm: Robot, tmp_path) -> None:
    """With noisy sensors, late motors and another robot than the model."""
    path = tmp_path / "sensors.yaml"
    path.write_text(SENSORS)
    parameters = PlantParameters(
        robot="-",
        sensors=str(path),
        actuators=ActuatorParameters(delay_steps=2, lag_s=0.003),
        overlay={"payloads": [{"link": "lower_bar", "mass": 0.2}]},
    )
    digests = {run(arm, parameters, 0.25)[1] for _ in range(5)}
    assert len(digests) == 1
    parameters.sensor_seed = 12
    assert run(arm, parameters, 0.25)[1] not in digests


def test_a_command_acts_in_the_very_step_that_follows_its_state(arm: Robot) -> None:
    plant, _ = run(arm, PlantParameters(robot="-"), 0.1)
    assert (plant.safety.mode, plant.safety.command_delay_s, plant.counters.steps) == ("active", 0.0, 100)
    delayed, _ = run(arm, PlantParameters(robot="-"), 0.1, delay_steps=3)
    assert delayed.safety.command_delay_s == pytest.approx(0.003)


def test_states_that_are_not_answered_are_missed_cycles(arm: Robot) -> None:
    """Nineteen of them are borne; of more, the watchdog says so at the same step in every run."""
    borne, _ = run(arm, PlantParameters(robot="-"), 0.3, silent=[(0.1, 0.1185)])
    assert sum(borne.safety.counters.stops.values()) == 0
    stopped, _ = run(arm, PlantParameters(robot="-"), 0.3, silent=[(0.1, 0.9)])
    assert (stopped.safety.mode, stopped.safety.cause) == ("stopped", "missed")
    assert stopped.safety.since_s == pytest.approx(0.099 + 0.02)


def test_states_are_sent_out_as_often_as_said(arm: Robot) -> None:
    plant, seen = make_plant(arm, PlantParameters(robot="-"), session=1), []
    ClosedLoop(plant, answering(arm), every=4).run(0.05, lambda _, state: seen.append(state.seq))
    assert seen == list(range(0, 50, 4))
    assert plant.counters.steps == 52  # whole cycles


@pytest.mark.parametrize("changes", [{"every": 0}, {"delay_steps": -1}, {"every": 1.5}, {"delay_steps": 0.5}])
def test_steps_that_there_cannot_be(arm: Robot, changes: dict) -> None:
    with pytest.raises(InvalidArgumentError, match=naming("whole numbers", "1", "0")):
        ClosedLoop(make_plant(arm, PlantParameters(robot="-"), session=1), answering(arm), **changes)


@pytest.mark.parametrize("seconds", [-1.0, np.nan, np.inf])
def test_times_that_there_cannot_be(arm: Robot, seconds: float) -> None:
    """In the words of this package, of who tries a law of their own."""
    loop = ClosedLoop(make_plant(arm, PlantParameters(robot="-"), session=1), answering(arm))
    with pytest.raises(InvalidArgumentError, match=naming("seconds", f"{seconds:g}", "negative")):
        loop.run(seconds)
    law = GravityCompensation(arm, 1.0)
    with pytest.raises(InvalidArgumentError, match=naming("seconds", f"{seconds:g}", "plant_rate_hz")):
        dry_run(law, arm, seconds)
    with pytest.raises(InvalidArgumentError, match=r"push .*\(3,\): expected 2 "):
        dry_run(law, arm, 0.01, push=lambda t, q, v: [1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"q": [0.0] * 3}, "q must have shape (2,), found (3,)"),
        ({"v": 1.0}, "v must have shape (2,), found ()"),
        ({"rate_hz": 2000.0}, "rate_hz must be positive and at most plant_rate_hz, 1000, found 2000"),
    ],
)
def test_a_dry_run_names_the_argument_that_is_wrong(arm: Robot, arguments: dict, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(sentence)):
        dry_run(GravityCompensation(arm, 1.0), arm, 0.01, **arguments)


def test_an_observer_hears_the_efforts_of_every_state(arm: Robot) -> None:
    """In a loop that asks about each state without `due`: efforts that hold the arm up are no push."""
    parameters = CollisionStopParameters(rate_hz=500.0, trajectory="hold")
    start_position = {"joint_1": 0.5, "joint_2": 0.3}
    plant = make_plant(
        arm, PlantParameters(robot="-", control_rate_hz=500.0, initial_position=start_position), session=1
    )
    control = commander(collision_stop.NODE.spec, parameters, arm, number=1, restarted=False)
    ClosedLoop(plant, control.answer, every=round(0.002 / plant.dt_s)).run(0.3)
    assert plant.safety.mode == "active"
    assert np.abs(plant.effort).max() > 1.0  # N m
    assert np.abs(control.law.signals()["residual"]).max() < 1e-6

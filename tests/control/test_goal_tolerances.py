"""Tolerances of goals: which hold, which a goal says itself, what becomes of one that breaks them; how they are set."""

from __future__ import annotations

import re

import msgspec
import numpy as np
import pytest

from dyn_service.control.dry_runs import ClosedLoop, dry_run
from dyn_service.control.joint_goals import GoalError, GoalTolerances, JointTolerance, Tolerances
from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.graph.nodes.controllers.controller_kind import commander
from dyn_service.graph.nodes.controllers.trajectory_following import (
    NODE,
    FollowJointTrajectoryRequest,
    TrajectoryFollowingParameters,
    follow,
    make_law,
)
from dyn_service.graph.nodes.plant.factory import PlantParameters, make_plant
from dyn_service.messages.builtin_interfaces import Duration
from dyn_service.messages.dyn_service_msgs import GoalStatus
from dyn_service.support.arguments import parse_arguments
from dyn_service.support.parameter_descriptions import described
from tests.control.test_joint_goals import following, goal
from tests.phrases import naming, unnamed

OWN = Tolerances(np.array([0.1, 0.2]), np.array([0.01, 0.02]), 0.5, goal_velocity=np.array([0.3, np.inf]))


def tolerance_of(name: str, **values: float) -> list[JointTolerance]:
    return [JointTolerance(name, **values)]


def test_a_goals_own_tolerances_take_the_place_of_those_that_it_says(arm: Robot) -> None:
    """0 says nothing, a negative number is any: as in ROS."""
    first, second = arm.joint_names
    assert OWN.of_goal(GoalTolerances(), arm.configuration) is not OWN
    same = OWN.of_goal(GoalTolerances(tolerance_of(first), tolerance_of(second), Duration()), arm.configuration)
    for name in ("path", "goal", "goal_time_s", "goal_velocity"):
        assert np.array_equal(getattr(same, name), getattr(OWN, name))
    overrides = GoalTolerances(
        [JointTolerance(second, position=0.5, velocity=2.0), JointTolerance(first, position=-1.0)],
        tolerance_of(first, position=0.3, velocity=-1.0, acceleration=-1.0),
        Duration.from_seconds(1.5),
    )
    tolerances = OWN.of_goal(overrides, arm.configuration)
    assert tolerances.path.tolist() == [np.inf, 0.5]
    assert tolerances.path_velocity.tolist() == [np.inf, 2.0]
    assert tolerances.goal.tolist() == [0.3, 0.02]
    assert tolerances.goal_velocity.tolist() == [np.inf, np.inf]
    assert tolerances.goal_time_s == 1.5
    assert OWN.of_goal(GoalTolerances(time=Duration.from_seconds(-1.0)), arm.configuration).goal_time_s == np.inf
    assert OWN.path.tolist() == [0.1, 0.2]


@pytest.mark.parametrize(
    ("overrides", "values"),
    [
        ([JointTolerance("x", 0.1)], ["path_tolerance", "{joints}", "'x'"]),
        ([JointTolerance("{first}", 0.1)] * 2,
         ["path_tolerance", "{joints}", "'{first}'"]),
        ([JointTolerance("{first}", np.nan)], ["path_tolerance", "'{first}'", "negative"]),
        ([JointTolerance("{first}", velocity=np.inf)],
         ["path_tolerance", "'{first}'", "negative"]),
        ([JointTolerance("{first}", acceleration=1.0)],
         ["path_tolerance", "'{first}'", "0"]),
    ],
)  # fmt: skip
def test_tolerances_that_are_refused(arm: Robot, overrides: list[JointTolerance], values: list[str]) -> None:
    texts = {"first": arm.joint_names[0], "joints": ", ".join(arm.joint_names)}
    overrides = [msgspec.structs.replace(entry, name=entry.name.format(**texts)) for entry in overrides]
    law = following(arm, goal(arm.joint_names, [[0.3, 0.0]], (0.5,)))
    dry_run(law, arm, 0.1)
    law.events()
    with pytest.raises(GoalError) as excinfo:
        law.offer(goal(arm.joint_names, [[0.1, 0.0]], (0.5,)), GoalTolerances(overrides))
    assert unnamed(excinfo.value, *(value.format(**texts) for value in values)) == []
    assert [(entry.number, entry.state, entry.error_code) for entry in law.events()] == [
        (0, "rejected", GoalStatus.INVALID_GOAL)
    ]
    assert law.goals[0].state == "following"


@pytest.mark.parametrize(
    ("over_s", "errors", "rate", "words"),
    [
        (-0.1, [0.099, -0.199], [9.0, 9.0], ""),
        (-0.1, [0.05, -0.25], [0.0, 0.0], "joint '{second}' is 0.25 off on the way, the tolerance is 0.2"),
        (0.0, [0.009, -0.019], [0.29, 9.0], ""),
        (0.2, [0.02, 0.0], [0.0, 0.0], "joint '{first}' is 0.02 off 0.2 s after its end, the tolerance is 0.01"),
        (0.2, [0.0, 0.0], [-0.4, 9.0], "joint '{first}' is 0.4/s off 0.2 s after its end, the tolerance is 0.3/s"),
        (-0.1, [np.nan, 0.0], [0.0, 0.0], "joint '{first}' is nan off on the way, the tolerance is 0.1"),
    ],
)
def test_what_breaks_them_is_named(arm: Robot, over_s: float, errors: list, rate: list, words: str) -> None:
    first, second = arm.joint_names
    message = OWN.broken(np.array(errors), np.array(rate), over_s, arm.joint_names)
    assert message == words.format(first=first, second=second)


@pytest.mark.parametrize(
    ("tolerances", "push", "state", "code", "words"),
    [
        # what pushes is 40 N m for 0.1 s on the way; or 1 N m all the time, which leaves 0.003 rad
        (GoalTolerances(), "way", "aborted", GoalStatus.PATH_TOLERANCE_VIOLATED, r"off on the way, .* is 0\.05$"),
        (GoalTolerances(path=tolerance_of("all", position=-1.0)), "way", "succeeded", GoalStatus.SUCCESSFUL, "^$"),
        (GoalTolerances(path=tolerance_of("all", velocity=0.1)), "way", "aborted", GoalStatus.PATH_TOLERANCE_VIOLATED,
         r"/s off on the way, the tolerance is 0\.1/s$"),
        (GoalTolerances(), "end", "succeeded", GoalStatus.SUCCESSFUL, "^$"),
        (GoalTolerances(goal=tolerance_of("all", position=1e-4)), "end", "aborted",
         GoalStatus.GOAL_TOLERANCE_VIOLATED, r"off 0\.2\d* s after its end, the tolerance is 0\.0001$"),
        (GoalTolerances(goal=tolerance_of("all", position=1e-4), time=Duration.from_seconds(-1.0)), "end", "following",
         GoalStatus.SUCCESSFUL, "^$"),
        (GoalTolerances(goal=tolerance_of("all", position=1e-4), time=Duration.from_seconds(0.4)), "end", "aborted",
         GoalStatus.GOAL_TOLERANCE_VIOLATED, r"off 0\.4\d* s after"),
    ],
)  # fmt: skip
def test_a_goal_ends_by_the_tolerances_that_it_says(arm: Robot, tolerances, push, state, code, words) -> None:
    by_joint = {
        side: [
            msgspec.structs.replace(tolerance, name=name)
            for tolerance in getattr(tolerances, side)
            for name in arm.joint_names
        ]
        for side in ("path", "goal")
    }
    tolerances = msgspec.structs.replace(tolerances, **by_joint)
    law = following(arm)
    dry_run(law, arm, 0.01)

    class Given(type(law)):
        def reset(self, state_now) -> None:
            super().reset(state_now)
            self.offer(goal(arm.joint_names, [[0.2, -0.15]], (0.4,)), tolerances)

    law.__class__ = Given
    pushes = {"way": lambda t, q, v: [40.0 * (0.15 < t < 0.25), 0.0], "end": lambda t, q, v: [1.0, 0.0]}
    dry_run(law, arm, 0.9, push=pushes[push])
    last = law.events()[-1]
    assert (law.goals[-1].state, last.error_code) == (state, code)
    assert re.search(words, last.error_string), last.error_string


def test_a_goal_is_reached_when_its_joints_are_slow_enough(arm: Robot) -> None:
    """They swing through the place at its end: there, and not at rest."""
    names = arm.joint_names
    ends = {}
    for slow in (np.inf, 0.05):
        law = following(arm, goal(names, [[0.2, -0.15]], (0.4,)), path=np.inf, end=0.1, late_s=2.0)
        law.tolerances = law._goal_tolerances = Tolerances(np.full(2, np.inf), np.full(2, 0.1), 2.0, goal_velocity=slow)
        run = dry_run(law, arm, 1.0, push=lambda t, q, v: [30.0 * (0.25 < t < 0.4), 0.0])
        successes = [event for event in law.events() if event.state == "succeeded"]
        ends[slow] = successes[-1].header.stamp.seconds()
        speeds = np.abs(run.v[np.searchsorted(run.t, ends[slow] - 1e-9)])
        assert bool(speeds.max() < 0.05) == (slow == 0.05)
    assert ends[0.05] > ends[np.inf] + 0.05


@pytest.fixture(scope="module")
def parameters() -> TrajectoryFollowingParameters:
    return TrajectoryFollowingParameters(stopped_velocity_tolerance=0.2, velocity_share=1.0)


def test_tolerances_and_gains_are_set_while_a_goal_is_followed(arm: Robot, parameters) -> None:
    """The goal goes on; the next ones begin under the tolerances that were set."""
    plant = make_plant(arm, PlantParameters(robot="-", control_rate_hz=500.0), session=1)
    controller = commander(NODE.spec, parameters, arm, number=1, restarted=False)
    loop = ClosedLoop(plant, controller.answer, every=2)
    loop.run(0.05)
    law = controller.law
    first = law.offer(goal(arm.joint_names, [[0.2, -0.1]], (0.4,)))
    loop.run(0.2)
    new_parameters = msgspec.structs.replace(parameters, path_tolerance=1e-9, natural_frequency=35.0, goal_time_s=1.0)
    controller.exchange(make_law(new_parameters, arm))
    assert controller.law is law
    assert law.tolerances.goal_time_s == 1.0
    assert law.law.kp.tolist() == [35.0**2] * 2
    loop.run(0.3)
    assert (first.state, first.reason) == ("succeeded", "")
    second = law.offer(goal(arm.joint_names, [[0.0, 0.0]], (0.4,)))
    loop.run(0.1)
    assert second.state == "aborted"
    assert second.reason.endswith("off on the way, the tolerance is 1e-09")
    assert plant.safety.mode == "active"
    with pytest.raises(FailedPreconditionError, match=r"commands by effort: .* interface"):
        controller.exchange(make_law(msgspec.structs.replace(parameters, command_interface="position"), arm))


@pytest.mark.parametrize(
    ("late_s", "ends_after_s"), [({}, 10.0), ({"goal_time_s": 0.0}, 0.0), ({"goal_time_s": -1.0}, np.inf)]
)
def test_the_time_of_a_goal_means_what_it_does_in_ros2_controllers(arm: Robot, late_s, ends_after_s) -> None:
    """Pull request 2592 of ros2_controllers: 10 s by default, none with 0, unlimited if negative."""
    strict = TrajectoryFollowingParameters(goal_tolerance=1e-15, path_tolerance=0.0, **late_s)  # never within 0.2 s
    plant = make_plant(arm, PlantParameters(robot="-", control_rate_hz=500.0), session=1)
    controller = commander(NODE.spec, strict, arm, number=1, restarted=False)
    loop = ClosedLoop(plant, controller.answer, every=2)
    loop.run(0.05)
    assert controller.law.tolerances.goal_time_s == ends_after_s
    pending = controller.law.offer(goal(arm.joint_names, [[0.2, -0.15]], (0.4,)))
    loop.run(0.6)
    assert pending.state == ("aborted" if ends_after_s == 0.0 else "following")


def test_a_time_of_a_goal_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="goal_time_s"):
        parse_arguments(["goal_time_s:=.nan"], default_name="n").parameters.to(TrajectoryFollowingParameters)


def test_which_parameters_can_be_set_is_said() -> None:
    settable = {parameter.name for parameter in described(TrajectoryFollowingParameters) if parameter.settable}
    assert settable == {
        "velocity_share", "max_acceleration", "max_jerk", "path_tolerance", "goal_tolerance",
        "stopped_velocity_tolerance", "goal_time_s", "natural_frequency", "damping_ratio", "position_gain",
    }  # fmt: skip


def test_the_service_takes_a_goal_as_rosbridge_or_a_terminal_writes_it(arm: Robot, parameters) -> None:
    first, second = arm.joint_names
    law = make_law(parameters, arm)
    dry_run(law, arm, 0.1)
    request = msgspec.convert(
        {
            "trajectory": {
                "joint_names": [first, second],
                "points": [{"positions": [0.1, 0.2], "time_from_start": {"sec": 1}}],
            },
            "goal_tolerance": [{"name": second, "position": 0.003}],
            "goal_time_tolerance": {"sec": 2},
        },
        FollowJointTrajectoryRequest,
    )
    answer = follow(law, request)
    assert answer.number == law.goals[-1].number == 1
    assert law.goals[-1].tolerances == GoalTolerances([], tolerance_of(second, position=0.003), Duration(2))
    with pytest.raises(GoalError, match=naming("path_tolerance")):
        follow(law, msgspec.structs.replace(request, path_tolerance=tolerance_of("elsewhere")))

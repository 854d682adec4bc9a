"""The computed-torque law against a simulated robot in simulated time: no sockets, no waiting."""

from collections import deque

import numpy as np
import pytest

from dyn_service.control.computed_torque import ComputedTorque
from dyn_service.control.plant_core import Plant, PlantSettings
from dyn_service.control.trajectory import Bounds, MultiSineDesign, design_multi_sine
from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError
from dyn_service.nodes.controller import ControllerParameters, gains
from dyn_service.protocol.topic_messages import JointCommand
from tests.conftest import URDF


@pytest.fixture(scope="module")
def robot() -> Robot:
    return Robot.from_urdf(URDF / "panda.urdf")


def track(robot: Robot, seconds: float, *, delay_steps: int = 1, compensate: bool = True, order=None, pause=()):
    """Closes the loop at 500 Hz on a plant at 1 kHz; commands act `delay_steps` later. The law and the plant."""
    limits = robot.limits
    plant = Plant(
        robot.forward_dynamics,
        robot.configuration,
        limits,
        0.5 * (limits.lower + limits.upper),
        PlantSettings(0.001, command_timeout_s=0.05, stale_policy="brake"),
        session=1,
    )
    bounds = Bounds(limits.lower, limits.upper, limits.velocity)
    law = ComputedTorque(
        robot.joint_names, lambda q, v: design_multi_sine(MultiSineDesign(), bounds, q, v), 500.0, compensate
    )
    kp, kd = gains(ControllerParameters(), robot.nv)
    under_way: deque[tuple[int, JointCommand]] = deque()
    for step in range(round(1000 * seconds)):
        while under_way and under_way[0][0] <= step:
            plant.offer(under_way.popleft()[1])
        state = plant.state()
        if not any(begin <= state.stamp < end for begin, end in pause) and law.due(state):
            x = law.question(state)
            tau = robot.computed_torque(x.q, x.v, x.q_ref, x.v_ref, x.a_ref, kp=kp, kd=kd)
            names = [robot.joint_names[k] for k in order] if order else robot.joint_names
            efforts = tau[order] if order else tau
            under_way.append(
                (step + delay_steps, JointCommand(1, state.seq, state.stamp, tuple(names), efforts.tolist()))
            )
        plant.advance(1)
    return law, plant


@pytest.mark.parametrize("delay_steps", [1, 2, 4])
def test_tracks_whatever_the_delay(robot: Robot, delay_steps: int) -> None:
    law, plant = track(robot, 4.0, delay_steps=delay_steps)
    # what is left is the effort that is held through 2 ms, second order in it: 1e-7 rad here; a tenth of the goal
    assert law.tracking.rms < 3e-5
    assert plant.counters.stale_events == plant.counters.refused == 0
    assert law.skipped == 0


def test_compensation_is_what_makes_it_precise(robot: Robot) -> None:
    with_it, _ = track(robot, 3.0)
    without, _ = track(robot, 3.0, compensate=False)
    assert with_it.tracking.rms < 0.05 * without.tracking.rms
    assert without.tracking.rms < 1e-3


def test_order_of_joints_in_a_command_does_not_matter(robot: Robot) -> None:
    plain, plant = track(robot, 0.5)
    turned, other = track(robot, 0.5, order=list(range(robot.nv))[::-1])
    assert plant.state() == other.state() or np.array_equal(plant.q, other.q)
    assert plain.tracking.rms == turned.tracking.rms


def test_after_an_outage_the_reference_begins_anew(robot: Robot) -> None:
    law, plant = track(robot, 4.0, pause=[(2.0, 2.5)])
    assert plant.counters.stale_events == 1
    assert law.restarts == 1
    assert plant.mode == "active"
    assert law.begin_s == pytest.approx(2.5, abs=0.003)
    state = plant.state()
    reference = law.trajectory.sample(state.stamp - law.begin_s)
    assert np.abs(reference.q - plant.q).max() < 1e-4
    # periods without a state: those of the pause
    assert law.skipped == pytest.approx(250, abs=2)


def test_another_robot_is_refused(robot: Robot) -> None:
    law, plant = track(robot, 0.01)
    plant.names = ("x", *plant.names[1:])
    plant.session = 2
    with pytest.raises(
        FailedPreconditionError, match=r"the plant's joints are x, panda_joint2.*, the server's panda_joint1"
    ):
        law.due(plant.state())

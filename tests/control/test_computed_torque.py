"""The computed-torque law against a simulated robot in simulated time: no sockets, no waiting."""

import itertools
from collections import deque

import msgspec
import numpy as np
import pytest

from dyn_service.control.controller import Moment, ReferenceTracker
from dyn_service.control.laws.computed_torque import ComputedTorque, gains
from dyn_service.control.plant.plant import Plant
from dyn_service.control.plant.safety import ACTIVE, RUNNING
from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.graph.nodes.controllers.computed_torque import ControllerParameters
from dyn_service.graph.nodes.controllers.parameters import PointToPointParameters, trajectory_maker
from dyn_service.graph.nodes.plant.factory import PlantParameters, initial_position, make_plant
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from tests.conftest import URDF
from tests.graph.many_ways import MANY_WAYS
from tests.phrases import naming, unnamed
from tests.wide import wide


@pytest.fixture(scope="module")
def robot() -> Robot:
    return Robot.from_urdf(URDF / "panda.urdf")


def initial(robot: Robot) -> np.ndarray:
    return initial_position([], robot.configuration, robot.limits)


def answer_to(state: PlantState, **changes) -> JointCommand:
    """A command of controller 5 in answer to the state."""
    fields = {
        "session": state.session, "state_seq": state.seq, "epoch": state.epoch, "fingerprint": state.fingerprint,
        "controller": 5, "name": state.name,
    }  # fmt: skip
    return JointCommand(**{**fields, **changes})


def track(
    robot: Robot,
    seconds: float,
    *,
    delay_steps: int = 1,
    compensate: bool = True,
    order=None,
    pause=(),
    parameters=None,
    safe_stop="brake",
    rearm_share=0.1,
    push=None,
):
    """Closes the loop at 500 Hz on a plant at 1 kHz; commands act `delay_steps` later. What follows, and the plant.

    pause: (from, to) s without commands. push: (at s, difference (nv,) by which the plant is moved at once).
    """
    settings = PlantParameters(
        robot="-", control_rate_hz=400.0, safe_stop=safe_stop, rearm_share=rearm_share, undriven=[]
    )
    plant = make_plant(robot, settings, session=1)
    parameters = ControllerParameters() if parameters is None else parameters
    make = trajectory_maker(parameters, robot.configuration, robot.limits)
    following = ReferenceTracker(robot.configuration, robot.fingerprint, make, 500.0, compensate)
    law = ComputedTorque(robot, *gains(parameters.natural_frequency, parameters.damping_ratio, robot.nv))
    under_way: deque[tuple[int, JointCommand]] = deque()
    for step in range(round(1000 * seconds)):
        while under_way and under_way[0][0] <= step:
            plant.offer(under_way.popleft()[1])
        state = plant.publish()
        if not any(begin <= state.stamp < end for begin, end in pause) and following.due(state):
            tau = following.answer(law, following.moment(state)).value
            entries = robot.configuration.velocity_names
            names = [entries[k] for k in order] if order else entries
            efforts = tau[order] if order else tau
            answer = answer_to(state, name=tuple(names), effort=efforts.tolist(), arm=state.mode not in RUNNING)
            under_way.append((step + delay_steps, answer))
        plant.advance(1)
        if push is not None and step == round(1000 * push[0]):
            plant.robot.q = robot.configuration.integrate(plant.q, push[1])
    return following, plant


def stops(plant: Plant) -> int:
    return sum(plant.safety.counters.stops.values())


def refusals(plant: Plant) -> dict[str, int]:
    return {reason: count for reason, count in plant.safety.counters.refused.items() if count}


@pytest.fixture(scope="module")
def tracked(robot: Robot) -> tuple[ReferenceTracker, Plant]:
    return track(robot, 1.2)


@pytest.mark.parametrize("delay_steps", [1, 2, 4])
def test_tracks_whatever_the_delay(robot: Robot, tracked: tuple[ReferenceTracker, Plant], delay_steps: int) -> None:
    law, plant = tracked if delay_steps == 1 else track(robot, 1.2, delay_steps=delay_steps)
    # what is left is the effort that is held through 2 ms, second order in it: 1e-7 rad here; a tenth of the goal
    assert law.tracking.rms < 3e-5
    assert (stops(plant), refusals(plant), law.skipped) == (0, {}, 0)


def test_compensation_is_what_makes_it_precise(robot: Robot, tracked: tuple[ReferenceTracker, Plant]) -> None:
    compensated, _ = tracked
    uncompensated, _ = track(robot, 1.2, compensate=False)
    assert compensated.tracking.rms < 0.05 * uncompensated.tracking.rms
    assert uncompensated.tracking.rms < 1e-3


def test_the_state_is_foretold_under_the_mean_acceleration_of_the_reference(robot: Robot) -> None:
    """From where it was measured to the middle of the time in which the command will act."""
    configuration = robot.configuration
    make = trajectory_maker(ControllerParameters(), configuration, robot.limits)
    following = ReferenceTracker(configuration, robot.fingerprint, make, 100.0)
    state = make_plant(robot, PlantParameters(robot="-", control_rate_hz=100.0), session=1).publish()
    following.due(state)
    following.moment(state)
    motion, v = following.trajectory, np.linspace(-0.3, 0.4, robot.nv)
    assert motion is not None
    moving = msgspec.structs.replace(state, seq=700, stamp=0.7, mode=ACTIVE, velocity=v.tolist())
    moment = following.moment(moving)
    horizon = moment.horizon_s
    assert horizon == 0.01  # half a period until a delay is known, and half a one more
    reference = motion.sample(np.array([0.7, 0.71]))
    assert np.abs(reference.a[1] - reference.a[0]).max() > 0.01  # so that their mean is neither
    mean = reference.a.mean(axis=0)
    # sums of three numbers of some units: roundings
    np.testing.assert_allclose(moment.state.v, v + horizon * mean, rtol=0.0, atol=1e-14)
    np.testing.assert_allclose(
        moment.state.q, np.array(state.position) + horizon * v + horizon**2 * mean / 2.0, rtol=0.0, atol=1e-14
    )
    assert (moment.state.t, moment.state.measured.t) == (0.7 + horizon, 0.7)
    np.testing.assert_array_equal(moment.reference.a, reference.a[1])


def test_order_of_joints_in_a_command_does_not_matter(robot: Robot) -> None:
    plain, plant = track(robot, 0.5)
    reversed_order, other = track(robot, 0.5, order=list(range(robot.nv))[::-1])
    assert plant.state() == other.state() or np.array_equal(plant.q, other.q)
    assert plain.tracking.rms == reversed_order.tracking.rms


def test_after_an_outage_the_reference_begins_anew(robot: Robot) -> None:
    law, plant = track(robot, 1.6, pause=[(0.6, 1.1)])
    assert plant.safety.counters.stops["missed"] == stops(plant) == 1
    assert law.restarts == 1
    assert plant.safety.mode == "active"
    # the efforts grow against the brakes first: up to 50 ms for all of them
    assert 1.1 < law.begin_s < 1.15
    state = plant.state()
    reference = law.trajectory.sample(state.stamp - law.begin_s)
    assert np.abs(reference.q - plant.q).max() < 1e-4
    # periods without a state: those of the pause
    assert law.skipped == pytest.approx(250, abs=2)


def test_another_robot_is_refused(robot: Robot) -> None:
    law, plant = track(robot, 0.01)
    plant.names = ("x", *plant.names[1:])
    plant.safety.session = 2
    with pytest.raises(FailedPreconditionError, match=naming("x, panda_joint2", "panda_joint1")):
        law.due(plant.state())


def test_another_model_is_refused_by_both_fingerprints(robot: Robot) -> None:
    """The same joints, another mass: only the fingerprint tells."""
    law, plant = track(robot, 0.01)
    plant.safety.fingerprint, plant.safety.session = "f00", 2
    with pytest.raises(FailedPreconditionError) as excinfo:
        law.due(plant.state())
    assert unnamed(excinfo.value, "f00", robot.fingerprint, "fingerprint") == []


@pytest.fixture(scope="module")
def many_ways() -> Robot:
    """A floating root, a planar joint, a ball, a revolute and a prismatic joint."""
    return Robot.from_urdf(MANY_WAYS, root="floating")


def waypoints(robot: Robot) -> ControllerParameters:
    rng, limits = np.random.default_rng(0), robot.limits
    points = [robot.configuration.random(rng, limits.lower, limits.upper).tolist() for _ in range(2)]
    moves = PointToPointParameters(points=points, move_s=1.0, dwell_s=0.2)
    return ControllerParameters(trajectory="point_to_point", point_to_point=moves)


@pytest.fixture(scope="module")
def tracked_many(many_ways: Robot) -> tuple[ReferenceTracker, Plant]:
    return track(many_ways, 0.8)


@pytest.mark.parametrize(
    ("motion", "delay_steps"),
    wide(
        itertools.product(("multi_sine", "point_to_point"), (1, 4)),
        {("multi_sine", 1), ("point_to_point", 4)}.__contains__,
    ),
)
def test_tracks_joints_with_several_ways_to_move(
    many_ways: Robot, tracked_many: tuple[ReferenceTracker, Plant], motion: str, delay_steps: int
) -> None:
    if (motion, delay_steps) == ("multi_sine", 1):
        law, plant = tracked_many
    else:
        parameters = ControllerParameters() if motion == "multi_sine" else waypoints(many_ways)
        law, plant = track(many_ways, 1.8, delay_steps=delay_steps, parameters=parameters)
    # as the flat ones above: 1e-6 here for sines; turns of up to pi rad in 1 s cost up to 7e-6
    assert law.tracking.rms < 3e-5
    assert (law.tracking.squares.shape, stops(plant), refusals(plant)) == ((14,), 0, {})
    displacement = many_ways.configuration.difference(law.trajectory.q0, plant.q)
    assert (np.abs(displacement) > 1e-3).all()


def test_compensation_predicts_on_the_manifold(many_ways: Robot, tracked_many: tuple[ReferenceTracker, Plant]) -> None:
    rms_compensated, rms_uncompensated = (
        tracked_many[0].tracking.rms,
        track(many_ways, 0.8, compensate=False)[0].tracking.rms,
    )
    assert rms_compensated < 0.05 * rms_uncompensated < 0.05 * 3e-3


def test_an_error_dies_out_as_the_gains_say(many_ways: Robot) -> None:
    """Pushed off its reference, every joint comes back: e-ddot + kd e-dot + kp e = 0 to first order."""
    hold = PointToPointParameters(points=[initial(many_ways).tolist()], move_s=1.0, dwell_s=0.0)
    parameters = ControllerParameters(trajectory="point_to_point", point_to_point=hold, natural_frequency=20.0)
    push = 0.02 * np.where(np.arange(many_ways.nv) % 2, 1.0, -1.0)
    _, plant = track(many_ways, 0.3, parameters=parameters, push=(0.1, push))
    e = many_ways.configuration.difference(plant.q, initial(many_ways))
    wt = 20.0 * (0.3 - 0.1)
    # an answer comes some 5 ms after the push, at a slope of 1.5/s; terms of second order are a sixth of that here
    np.testing.assert_allclose(e / -push, (1.0 + wt) * np.exp(-wt), atol=0.02)


def test_takes_over_a_plant_that_drifts(many_ways: Robot) -> None:
    """After an outage without brakes every joint moves: the reference begins with that motion and comes to rest."""
    law, plant = track(
        many_ways, 1.6, pause=[(0.5, 0.62)], safe_stop="zero", rearm_share=1.0, parameters=waypoints(many_ways)
    )
    assert stops(plant) == law.restarts == 1
    assert (np.abs(law.trajectory.v0) > 1e-3).all()
    assert law.tracking.maximum < 1e-3
    state = plant.state()
    reference = law.trajectory.sample(state.stamp - law.begin_s)
    assert np.abs(many_ways.configuration.difference(plant.q, reference.q)).max() < 1e-4


def numbers_of(moment: Moment) -> list:
    state, measured_state = moment.state, moment.state.measured
    motion = [*moment.reference, moment.error, moment.dt, moment.horizon_s]
    return [state.t, state.q, state.v, state.effort, measured_state.t, measured_state.q, measured_state.v, *motion]


def test_joints_of_the_plant_in_another_order(many_ways: Robot) -> None:
    """The same questions, whatever order the plant has its joints in."""
    configuration, parameters = many_ways.configuration, waypoints(many_ways)
    other, in_q, in_v = configuration.chosen(["ball", "hoist", "root_joint", "rails", "swing"])
    laws = [
        ReferenceTracker(configuration, "f00", trajectory_maker(parameters, configuration, many_ways.limits), 500.0)
        for _ in range(2)
    ]
    rng = np.random.default_rng(3)
    q, v, tau = initial(many_ways), rng.normal(size=configuration.nv), rng.normal(size=configuration.nv)
    for stamp in (0.0, 0.002, 0.004):
        q = configuration.integrate(q, 0.002 * v)
        end = ("active", "", 0.0, 0, False, -1, 0.001, "f00")
        state = PlantState(1, 0, stamp, configuration.velocity_names, q.tolist(), v.tolist(), tau.tolist(), *end)
        permuted = [q[in_q].tolist(), v[in_v].tolist(), tau[in_v].tolist()]
        states = state, PlantState(1, 0, stamp, other.velocity_names, *permuted, *end)
        assert all(law.due(plant_state) for law, plant_state in zip(laws, states, strict=True))
        plain, permuted_moment = (law.moment(plant_state) for law, plant_state in zip(laws, states, strict=True))
        assert all(np.array_equal(a, b) for a, b in zip(numbers_of(plain), numbers_of(permuted_moment), strict=True))
        assert all(np.array_equal(a, b) for a, b in zip(laws[1].measured(states[1]), (q, v, tau), strict=True))
    mixed = (*other.velocity_names[1:], other.velocity_names[0])
    with pytest.raises(FailedPreconditionError, match=naming("ball.wy", "root_joint.vx")):
        laws[0].due(PlantState(2, 0, 0.0, mixed, *permuted, *end))


@pytest.mark.parametrize("natural_frequency", [30.0, [30.0] * 14])
def test_gains_are_one_number_or_one_per_velocity(many_ways: Robot, natural_frequency: float | list[float]) -> None:
    kp, kd = gains(natural_frequency, 1.0, many_ways.nv)
    assert (kp.tolist(), kd.tolist()) == ([900.0] * 14, [60.0] * 14)
    with pytest.raises(InvalidArgumentError, match=naming("natural_frequency", "14")):
        gains([30.0] * 16, 1.0, many_ways.nv)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([[0.0] * 14], "point_to_point needs points of 16 numbers"),
        ([[0.0] * 16], "a point of joint 'root_joint' has a quaternion of length 0, expected 1 within 1e-06"),
        ([[0.0] * 6 + [1.0] + [0.0] * 6 + [1.0, 3.0, 0.0]], "point_to_point: a point is outside of the joints' limits"),
    ],
)
def test_waypoints_that_do_not_fit(many_ways: Robot, points: list[list[float]], message: str) -> None:
    parameters = ControllerParameters(trajectory="point_to_point", point_to_point=PointToPointParameters(points=points))
    with pytest.raises(InvalidArgumentError) as excinfo:
        trajectory_maker(parameters, many_ways.configuration, many_ways.limits)
    assert str(excinfo.value) == message

"""The laws that come along, each in a closed loop with a simulated robot: what its page says of it is what it does."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dyn_service.api.queries import Payload
from dyn_service.control.dry_runs import dry_run
from dyn_service.control.law import Law, RobotState, modal_damping, per_joint
from dyn_service.control.laws.admittance import Admittance
from dyn_service.control.laws.collision_stop import CollisionError, CollisionStop, thresholds
from dyn_service.control.laws.computed_torque import ComputedTorque, GravityCompensation, gains
from dyn_service.control.laws.joint_impedance import JointImpedance
from dyn_service.control.laws.momentum_observer import MomentumObserver
from dyn_service.control.trajectory import MultiSine, Reference
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError
from tests.conftest import URDF
from tests.phrases import naming, unnamed

ONE_WHEEL = """<robot name="wheel"><link name="base"/>
  <link name="wheel"><inertial><mass value="2"/>
  <inertia ixx="1" iyy="1" izz="2" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <joint name="axle" type="continuous"><parent link="base"/><child link="wheel"/><axis xyz="0 0 1"/></joint></robot>"""


@pytest.fixture(scope="module")
def arm() -> Robot:
    """Two links that swing in a plane: coupled, and Coriolis forces act."""
    return Robot.from_urdf(URDF / "double_pendulum.urdf")


@pytest.fixture(scope="module")
def sine() -> MultiSine:
    """0.4 rad at some 1 Hz, the second joint half a turn of phase away."""
    amplitude, zero = np.array([[0.4, 0.4]]), np.zeros(2)
    return MultiSine(zero, zero, zero, amplitude, np.array([6.0]), np.array([[0.0, 1.5]]), 0.4)


def test_gravity_compensation_floats_and_slows_down_as_it_says(arm: Robot) -> None:
    """Kinetic energy falls as exp(-2 c t) whatever the motion: weight, inertia and speed are each in it."""
    law, c = GravityCompensation(arm, 1.5), 1.5
    run = dry_run(law, arm, 0.6, q=[0.9, -1.3], v=[1.2, -2.0])
    energy = arm.energy(run.q, run.v).kinetic
    # the state is predicted for 2 ms as if nothing accelerated, and the arm does, at some 10 rad/s^2
    np.testing.assert_allclose(energy[::50], energy[0] * np.exp(-2.0 * c * run.t[::50]), rtol=1.5e-2)
    assert np.abs(run.q[-1] - run.q[0]).max() > 0.3
    resting_run = dry_run(GravityCompensation(arm, 0.0), arm, 0.2, q=[0.9, -1.3])
    assert np.abs(resting_run.q - resting_run.q[0]).max() < 1e-9  # rounding, integrated twice


def test_modes_have_the_damping_ratio_they_should(arm: Robot) -> None:
    mass, stiffness = arm.mass_matrix([0.3, 0.8]), np.diag([40.0, 9.0])
    damping = modal_damping(mass, stiffness, 0.6)
    np.testing.assert_allclose(damping, damping.T, rtol=1e-12)
    system = np.block(
        [[np.zeros((2, 2)), np.eye(2)], [-np.linalg.solve(mass, stiffness), -np.linalg.solve(mass, damping)]]
    )
    poles = np.linalg.eigvals(system)
    np.testing.assert_allclose(-poles.real / np.abs(poles), 0.6, rtol=1e-9)


def test_joint_impedance_is_the_spring_that_was_asked_for(arm: Robot) -> None:
    law = JointImpedance(arm, [120.0, 48.0], 1.0)
    run = dry_run(law, arm, 1.5, q=[0.9, -0.4], push=lambda t, q, v: [1.5, -0.6])
    # the slower mode is at some 8/s and critical: 1e-4 of the way is left
    np.testing.assert_allclose(-run.error[-1], [1.5 / 120.0, -0.6 / 48.0], rtol=2e-4)
    np.testing.assert_allclose(run.signals["spring"][-1], [-1.5, 0.6], rtol=2e-4)


def test_joint_impedance_comes_back_critically_damped(arm: Robot) -> None:
    """Let go off its place by little, each mode goes as (1 + w t) exp(-w t)."""
    stiffness, q_rest = np.array([30.0, 12.0]), np.array([0.9, -0.4])
    offset = np.array([1e-4, -1e-4])
    place = MultiSine(q_rest, 0.0 * q_rest, q_rest, np.zeros((1, 2)), np.ones(1), np.zeros((1, 2)), 1.0)
    run = dry_run(JointImpedance(arm, stiffness, 1.0), arm, 0.5, q=q_rest + offset, motion=place)
    squares, modes = np.linalg.eig(np.linalg.solve(arm.mass_matrix(q_rest), np.diag(stiffness)))
    w = np.sqrt(squares)
    expected = [modes @ ((1.0 + w * t) * np.exp(-w * t) * np.linalg.solve(modes, offset)) for t in run.t[::100]]
    # predicted as if at the reference's acceleration, it is some ms late: of the faster mode's 30/s a percent
    np.testing.assert_allclose(-run.error[::100], expected, atol=1.5e-2 * 1e-4)


def test_joint_impedance_tracks_without_error(arm: Robot, sine: MultiSine) -> None:
    """Inertia, Coriolis forces, weight and the reference's speed: without one of them it is off by 1e-2 and more."""
    run = dry_run(JointImpedance(arm, [30.0, 12.0], 1.0), arm, 1.5, q=[0.0, 0.0], motion=sine)
    # efforts held through 2 ms, second order in it; soft springs let more of it through than a stiff loop
    assert np.abs(run.error).max() < 5e-5


@pytest.mark.parametrize(
    ("stiffness", "values"),
    [
        ([1.0, 2.0, 3.0], ["stiffness", "2", "3"]),
        ([1.0, -2.0], ["stiffness", "2", "-2"]),
        (float("nan"), ["stiffness", "2", "nan"]),
    ],
)
def test_numbers_of_a_law_that_are_none(stiffness, values: list[str]) -> None:
    with pytest.raises(InvalidArgumentError) as excinfo:
        per_joint("stiffness", stiffness, 2)
    assert unnamed(excinfo.value, *values) == []


PUSH = np.array([0.8, -0.5])


def tracking(robot: Robot) -> ComputedTorque:
    return ComputedTorque(robot, *gains(40.0, 1.0, robot.nv))


class Watched(Law):
    """Another law, with the observer's residual shown."""

    name = "watched"

    def __init__(self, law: Law, observer: MomentumObserver) -> None:
        self.law, self.observer = law, observer

    def reset(self, state: RobotState) -> None:
        self.observer.reset(state)

    def update(self, state, reference, dt):
        self.observer.update(state, dt)
        return self.law.update(state, reference, dt)

    def signals(self):
        return {"residual": self.observer.residual}


def test_the_residual_is_the_push_through_a_filter(arm: Robot, sine: MultiSine) -> None:
    """While it moves: inertia, Coriolis forces, weight and efforts are all in it, and the filter's time constant."""
    push = lambda t, q, v: PUSH if t >= 0.4 else 0.0 * PUSH
    run = dry_run(Watched(tracking(arm), MomentumObserver(arm, 25.0)), arm, 0.8, q=[0.0, 0.0], motion=sine, push=push)
    t, residual = run.t[run.updated], run.signals["residual"]
    # trapezes over 2 ms of efforts that are held: second order, where efforts of some N m change within 0.1 s
    assert np.abs(residual[t < 0.4]).max() < 5e-4
    expected = PUSH * (1.0 - np.exp(-25.0 * np.maximum(t - 0.4, 0.0)))[:, None]
    np.testing.assert_allclose(residual, expected, atol=0.02 * 0.8)


@pytest.mark.parametrize("rate_hz", [1000.0, 500.0, 250.0])
def test_a_step_of_the_effort_leaves_no_residual(rate_hz: float) -> None:
    """A joint that nothing bends turns under 50 N m from one step to the next: C^T v and g are zero, tau alone acts."""
    wheel = Robot.from_urdf(ONE_WHEEL)

    class Step(Law):
        name = "step"

        def update(self, state, reference, dt):
            return np.array([50.0 if state.t > 0.02 else 0.0])

    run = dry_run(Watched(Step(), MomentumObserver(wheel, 50.0)), wheel, 0.06, rate_hz=rate_hz)
    assert np.abs(run.v[-1]).max() > 0.1
    assert np.abs(run.signals["residual"]).max() < 1e-9  # rounding of p / dt; trapezes of samples show up to 1.25 N m


def test_the_residual_does_not_see_what_the_model_has(arm: Robot) -> None:
    """A payload that the model lacks shows as its weight; one that it has, or damping that it has, does not."""
    heavy = arm.with_payload(Payload(arm.link_names[-1], 0.5, (0.0, 0.0, -0.5)))
    law = GravityCompensation(heavy, 1.0)
    lacking = dry_run(Watched(law, MomentumObserver(arm, 25.0)), arm, 0.5, q=[0.6, 0.2], plant=heavy)
    knowing = dry_run(Watched(law, MomentumObserver(heavy, 25.0)), heavy, 0.5, q=[0.6, 0.2])
    weight = arm.gravity_forces([0.6, 0.2]) - heavy.gravity_forces([0.6, 0.2])
    # 12 time constants, and it stands
    np.testing.assert_allclose(lacking.signals["residual"][-1], weight, rtol=1e-3)
    assert np.abs(knowing.signals["residual"]).max() < 1e-9


def test_the_observer_is_stable_whatever_its_gain_and_begins_in_motion(arm: Robot) -> None:
    law = Watched(GravityCompensation(arm, 0.5), MomentumObserver(arm, 2000.0))
    run = dry_run(law, arm, 0.1, q=[0.6, 0.2], v=[1.0, -1.5], push=lambda t, q, v: PUSH)
    # K dt = 4: from one update to the next (1 - 2) / (1 + 2) of a deviation is left, of either sign
    np.testing.assert_allclose(run.signals["residual"][20:], np.tile(PUSH, (31, 1)), atol=0.02)
    free = dry_run(Watched(law.law, MomentumObserver(arm, 25.0)), arm, 0.1, q=[0.6, 0.2], v=[1.0, -1.5])
    assert np.abs(free.signals["residual"]).max() < 0.01  # 1e-4 of K p, which it would begin with


def watched(arm: Robot, reaction: Law | None, gain: float = 25.0) -> CollisionStop:
    return CollisionStop(tracking(arm), MomentumObserver(arm, gain), np.array([0.4, 0.3]), reaction)


def test_tracking_by_itself_is_no_collision(arm: Robot, sine: MultiSine) -> None:
    run = dry_run(watched(arm, None), arm, 1.2, q=[0.0, 0.0], motion=sine)
    assert not run.signals["collision"].any()
    assert np.abs(run.error).max() < 1e-3


@pytest.mark.parametrize("way", [1.0, -1.0])
def test_a_collision_is_noticed_when_it_should_be_and_said(arm: Robot, sine: MultiSine, way: float) -> None:
    push = lambda t, q, v: way * PUSH if t >= 0.4 else 0.0 * PUSH
    with pytest.raises(CollisionError) as excinfo:
        dry_run(watched(arm, None), arm, 0.8, q=[0.0, 0.0], motion=sine, push=push)
    match = re.fullmatch(
        r"collision at ([0-9.]+) s: joint '(\w+)': external torque (-?[0-9.]+), the threshold is (0.[34]); "
        r"link 'lower_bar' was touched: force .* N, torque .* N m, the least of those with the 2 components that .*",
        str(excinfo.value),
    )
    assert match is not None, str(excinfo.value)
    # the first joint's half of 0.8 N m is passed after ln 2 / 25 s, the second's three fifths of 0.5 after ln 2.5 / 25
    assert match[2] == arm.joint_names[0]
    assert float(match[3]) * way > 0.4
    assert float(match[1]) == pytest.approx(0.4 + np.log(2.0) / 25.0, abs=0.0035)  # a period, and the filter's 2 %


def test_a_residual_that_is_no_number_is_no_quiet(arm: Robot) -> None:
    """It is beyond no threshold: what watches nothing any more has to say so."""
    law = watched(arm, None)
    zero, bad = np.zeros(2), np.array([0.4, np.nan])
    law.reset(RobotState(0.0, zero, zero, zero))
    rest = Reference(zero, zero, zero)
    law.update(RobotState(0.0, zero, zero, zero), rest, 0.1)
    with pytest.raises(CollisionError, match="external torque nan"), np.errstate(all="ignore"):
        law.update(RobotState(0.1, bad, zero, zero), rest, 0.1)


@pytest.mark.parametrize("action", ["hold", "float"])
def test_what_is_done_after_a_collision(arm: Robot, sine: MultiSine, action: str) -> None:
    reaction = JointImpedance(arm, [320.0, 120.0], 1.0) if action == "hold" else GravityCompensation(arm, 8.0)
    push = lambda t, q, v: PUSH * (0.4 <= t < 0.5)
    run = dry_run(watched(arm, reaction), arm, 1.8, q=[0.0, 0.0], motion=sine, push=push)
    t, collision = run.t[run.updated], run.signals["collision"]
    first = int(np.argmax(collision))
    assert t[first] == pytest.approx(0.4 + np.log(2.0) / 25.0, abs=0.0035)
    assert collision[first:].all()
    # the slowest of it is critical at 8/s, or dies out with 8/s, for 1.3 s
    assert np.abs(run.v[-1]).max() < 1e-3
    distance = np.abs(run.q[-1] - run.q[run.updated[first]]).max()
    assert distance < 1e-3 if action == "hold" else distance > 0.05


@pytest.mark.parametrize(
    ("absolute", "efforts", "values"),
    [
        ([1.0], [10.0, 10.0], ["threshold", "2", "[1.0]"]),
        ([1.0, 0.0], [10.0, 10.0], ["threshold", "2", "[1.0", "0.0"]),
        ([1.0, np.inf], [10.0, 10.0], ["threshold", "2", "[1.0", "inf"]),
        ([], [10.0, 0.0], ["threshold", "2", "'b'", "threshold_share", "0.1"]),
        ([], [10.0, np.inf], ["threshold", "2", "'b'", "threshold_share", "0.1"]),
    ],
)
def test_thresholds_that_are_none(absolute, efforts, values: list[str]) -> None:
    with pytest.raises(InvalidArgumentError) as excinfo:
        thresholds(absolute, 0.1, np.array(efforts), ("a", "b"))
    assert unnamed(excinfo.value, *values) == []
    assert thresholds([], 0.1, np.array([10.0, 20.0]), ("a", "b")).tolist() == [1.0, 2.0]
    with pytest.raises(InvalidArgumentError, match=naming("threshold_share", "0")):
        thresholds([], 0.0, np.array([10.0, 20.0]), ("a", "b"))


def test_admittance_gives_way_as_the_mass_that_was_asked_for(arm: Robot) -> None:
    inertia, damping, stiffness = np.array([0.8, 0.5]), np.array([4.0, 2.0]), np.array([10.0, 8.0])
    law = Admittance(
        ComputedTorque(arm, *gains(80.0, 1.0, 2)), MomentumObserver(arm, 60.0), inertia, damping, stiffness
    )
    run = dry_run(law, arm, 1.2, q=[0.9, -0.4], rate_hz=1000.0, push=lambda t, q, v: PUSH)
    for k in range(2):
        # x'' = (r - D x' - K x) / M and r' = 60 (push - r), from rest
        M, D, K = inertia[k], damping[k], stiffness[k]
        system = np.array([[0.0, 1.0, 0.0], [-K / M, -D / M, 1.0 / M], [0.0, 0.0, -60.0]])
        poles, modes = np.linalg.eig(system)
        rest = np.linalg.solve(system, -np.array([0.0, 0.0, 60.0 * PUSH[k]]))
        expected = [(rest + modes @ (np.exp(poles * t) * np.linalg.solve(modes, -rest))).real[0] for t in run.t[::60]]
        # implicit Euler is of first order in 1 ms compared with 0.2 s; the push's effect on the inner law is added
        np.testing.assert_allclose(-run.error[::60, k], expected, atol=0.02 * abs(rest[0]))
    np.testing.assert_allclose(run.signals["given_way"][-1], -run.error[-1], atol=0.005)


class Noting(GravityCompensation):
    """Notes where it begins."""

    def reset(self, state: RobotState) -> None:
        self.begin_state = state


def test_what_follows_a_collision_begins_at_the_place_of_it(arm: Robot, sine: MultiSine) -> None:
    reaction = Noting(arm, 5.0)
    run = dry_run(watched(arm, reaction), arm, 0.6, q=[0.0, 0.0], motion=sine, push=lambda t, q, v: PUSH * (t >= 0.4))
    first = run.updated[int(np.argmax(run.signals["collision"]))]
    assert reaction.begin_state.t == run.t[first]
    assert np.array_equal(reaction.begin_state.q, run.q[first])
    law = Noting(arm, 5.0)
    dry_run(CollisionStop(law, MomentumObserver(arm, 25.0), np.ones(2), None), arm, 0.01, q=[0.3, 0.0])
    assert law.begin_state.q.tolist() == [0.3, 0.0]


@pytest.mark.parametrize("name", ["collision_stop", "admittance", "joint_impedance"])
def test_a_law_that_is_reset_knows_nothing_of_before(arm: Robot, sine: MultiSine, name: str) -> None:
    unit = np.ones(2)
    laws = {
        "collision_stop": lambda: watched(arm, GravityCompensation(arm, 5.0)),
        "admittance": lambda: Admittance(tracking(arm), MomentumObserver(arm, 25.0), unit, 5.0 * unit, 0.0 * unit),
        "joint_impedance": lambda: JointImpedance(arm, 20.0, 1.0),
    }
    reused_law, new_law = laws[name](), laws[name]()
    dry_run(reused_law, arm, 0.1, q=[0.5, 0.0], motion=sine, push=lambda t, q, v: 3.0 * PUSH)
    first, second = (dry_run(law, arm, 0.1, q=[0.0, 0.0], motion=sine) for law in (reused_law, new_law))
    assert np.array_equal(first.q, second.q)
    assert all(np.array_equal(value, second.signals[name]) for name, value in first.signals.items())


class Seen(ComputedTorque):
    """Keeps the references that it was given."""

    def reset(self, state: RobotState) -> None:
        self.references = []

    def update(self, state, reference, dt):
        self.references.append(reference)
        return super().update(state, reference, dt)


def test_the_reference_that_gives_way_is_one_motion(arm: Robot) -> None:
    """Its velocity and acceleration are those of its positions, by the steps backwards that they come from."""
    inner_law, unit = Seen(arm, *gains(40.0, 1.0, 2)), np.ones(2)
    law = Admittance(inner_law, MomentumObserver(arm, 25.0), unit, 2.0 * unit, 5.0 * unit)
    dry_run(law, arm, 0.1, q=[0.4, 0.1], push=lambda t, q, v: PUSH)
    q, v, a = (np.array(column) for column in zip(*inner_law.references, strict=True))
    np.testing.assert_allclose(np.diff(q, axis=0), 0.002 * v[1:], atol=1e-12)
    np.testing.assert_allclose(np.diff(v, axis=0), 0.002 * a[1:], atol=1e-12)
    assert np.abs(a).max() > 0.1

"""The simulated plant without sockets or clocks: commands, staleness, limits, catching up."""

import numpy as np
import pytest

from dyn_service.control import plant_core
from dyn_service.control.plant_core import Plant, PlantSettings
from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.model.configuration import Limits
from dyn_service.nodes.plant import PlantParameters, initial_position
from dyn_service.protocol.topic_messages import JointCommand, decode_command, decode_state, encode
from tests.conftest import URDF
from tests.trees import configuration

NAMES = ("a", "b")
JOINTS = configuration(NAMES, ["revolute", "revolute"])
LIMITS = Limits(np.array([-1.0, -np.inf]), np.array([1.0, np.inf]), np.full(2, np.inf), np.array([10.0, np.inf]))


def plant(**settings) -> Plant:
    """Two unit masses."""
    settings = PlantSettings(**{"dt_s": 0.001, "command_timeout_s": 0.01, **settings})
    return Plant(
        lambda q, v, tau: tau,
        JOINTS,
        LIMITS,
        np.zeros(2),
        settings,
        session=7,
    )


def command(of: Plant, efforts, **changes) -> JointCommand:
    state = of.state()
    fields = {"session": 7, "state_seq": state.seq, "stamp": state.stamp, "name": NAMES, "effort": list(efforts)}
    return JointCommand(**{**fields, **changes})


def test_stands_still_until_the_first_command_then_moves() -> None:
    one = plant()
    one.advance(100)
    assert (one.mode, one.time_s, one.q.tolist()) == ("braked", 0.1, [0.0, 0.0])
    assert one.offer(command(one, [2.0, 4.0]))
    one.advance(5)
    assert one.mode == "active"
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


@pytest.mark.parametrize(
    ("policy", "effort", "velocity"), [("zero", 0.0, 0.011), ("hold", 1.0, 0.03), ("brake", 0.0, 0.0)]
)
def test_stale_policies(policy: str, effort: float, velocity: float) -> None:
    one = plant(stale_policy=policy)
    assert one.offer(command(one, [1.0, 1.0]))
    one.advance(11)
    assert one.mode == "active"  # 10 ms are over only now: the command acted in 11 steps
    one.advance(19)
    assert one.mode == "stale"
    assert one.effort[0] == effort
    assert one.v[0] == pytest.approx(velocity, rel=1e-9)
    assert (one.counters.stale_events, one.counters.stale_steps) == (1, 19)
    assert one.offer(command(one, [1.0, 1.0]))
    assert one.mode == "active"


def test_refused_commands() -> None:
    one = plant()
    one.advance(50)
    good = command(one, [1.0, 1.0])
    for changes in (
        {"session": 8},
        {"stamp": one.time_s - 0.0101},
        {"stamp": one.time_s + 0.001},
        {"name": ("a", "c")},
        {"name": ("a",), "effort": [1.0]},
        {"effort": [1.0]},
        {"effort": [1.0, float("nan")]},
        {"effort": [1.0, float("inf")]},
    ):
        assert not one.offer(command(one, [1.0, 1.0], **changes)), changes
    assert (one.counters.refused, one.mode) == (8, "braked")
    assert one.offer(good)
    assert not one.offer(command(one, [1.0, 1.0], state_seq=good.state_seq - 1)), "older than the one in force"


def test_joints_go_by_name() -> None:
    one = plant()
    assert one.offer(command(one, [3.0, 1.0], name=("b", "a")))
    assert one.effort.tolist() == [1.0, 3.0]


@pytest.mark.parametrize(("clamp", "acts"), [(True, 10.0), (False, 25.0)])
def test_effort_limits(clamp: bool, acts: float) -> None:
    one = plant(clamp_effort=clamp)
    assert one.offer(command(one, [25.0, 1e6]))
    one.advance(3)
    assert one.effort.tolist() == [acts, 1e6]
    assert (one.counters.over_effort_steps, one.counters.clamped_steps) == (3, 3 * clamp)


def test_positions_out_of_range_are_counted() -> None:
    one = plant()
    one.q = np.array([1.5, 100.0])
    assert one.offer(command(one, [0.0, 0.0]))
    one.advance(4)
    assert one.counters.out_of_range_steps == 4


def test_release_brakes() -> None:
    one = plant()
    assert one.offer(command(one, [1.0, 1.0]))
    one.advance(5)
    assert one.offer(command(one, [9.0, 9.0], release=True))
    one.advance(5)
    assert (one.mode, one.v.tolist(), one.effort.tolist()) == ("braked", [0.0, 0.0], [0.0, 0.0])


def test_divergence_names_the_joint_and_the_step() -> None:
    """Joint b runs away and takes a with it: after some steps of a catch-up both are not numbers."""
    one = plant(command_timeout_s=1.0)
    one.forward_dynamics = lambda q, v, tau: np.array([1.0 + 0.0 * v[1] ** 2, 1e6 * (1.0 + v[1] ** 2)])
    assert one.offer(command(one, [0.0, 0.0]))
    two = plant(command_timeout_s=1.0)
    two.forward_dynamics = one.forward_dynamics
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
    assert str(caught.value) == (
        f"the simulation diverged in step {step} (t = {step * 0.001:g} s): the state of joint 'b' is no longer finite; "
        "try a step shorter than dt = 0.001 s"
    )


def test_large_numbers_are_no_divergence() -> None:
    one = plant()
    one.forward_dynamics = lambda q, v, tau: np.zeros(2)
    one.q = np.array([1e308, 1e308])
    assert one.offer(command(one, [0.0, 0.0]))
    with np.errstate(over="ignore"):
        one.advance(1)
    assert one.q.tolist() == [1e308, 1e308]


@pytest.mark.parametrize("substeps", [1, 2])
@pytest.mark.parametrize("name", ["rk4", "semi_implicit_euler", "explicit_euler"])
def test_the_plant_does_the_step_it_was_told(name: str, substeps: int) -> None:
    """A mass on a spring with a constant push: against the formulas by hand."""
    one = plant(integrator=name, dt_s=0.1, substeps=substeps, command_timeout_s=10.0)
    one.forward_dynamics = lambda q, v, tau: tau - q
    one.q = np.array([1.0, -1.0])
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


def test_delay_of_a_command_is_reported() -> None:
    one = plant()
    given = command(one, [0.0, 0.0])
    one.advance(2)
    assert one.offer(given)
    one.advance(1)
    state = one.state()
    assert (state.command_seq, state.command_delay) == (0, pytest.approx(0.002))


def test_messages_survive_the_wire() -> None:
    one = plant()
    assert decode_state(encode(one.state())) == one.state()
    given = command(one, [0.1, -0.2])
    assert decode_command(encode(given)) == given
    for frame in (b"", b"\xc1", encode(given), b"\x81\xa1v\x01"):
        with pytest.raises(InvalidArgumentError, match="not a joint state"):
            decode_state(frame)


def test_initial_position() -> None:
    assert initial_position([], JOINTS, LIMITS).tolist() == [0.0, 0.0]
    limits = Limits(np.array([1.0, 2.0]), np.array([3.0, np.inf]), LIMITS.velocity, LIMITS.effort)
    assert initial_position([], JOINTS, limits).tolist() == [2.0, 2.0]
    assert initial_position({"b": 5.0}, JOINTS, limits).tolist() == [2.0, 5.0]
    assert initial_position([7.0, 8.0], JOINTS, limits).tolist() == [7.0, 8.0]
    with pytest.raises(InvalidArgumentError, match="no joint 'c'; the joints are a, b"):
        initial_position({"c": 1.0}, JOINTS, limits)
    with pytest.raises(InvalidArgumentError, match="initial_position has 1 numbers, the robot 2 positions"):
        initial_position([1.0], JOINTS, limits)


def falling(**settings) -> Plant:
    """Unit masses that fall at 10 m/s^2 when nothing holds them."""
    one = plant(**settings)
    one.forward_dynamics = lambda q, v, tau: tau - 10.0
    return one


def test_before_the_first_command() -> None:
    state = plant().state()
    assert (state.command_seq, state.command_delay, state.mode) == (-1, 0.0, "braked")
    assert (state.velocity, state.effort) == ([0.0, 0.0], [0.0, 0.0])
    assert plant().counters == type(plant().counters)(0, 0, 0, 0, 0, 0, 0, 0)


def test_every_command_taken_is_counted_once() -> None:
    one = plant()
    for number in (1, 2, 3):
        assert one.offer(command(one, [1.0, 1.0]))
        one.advance(2)
        assert (one.counters.commands, one.counters.steps) == (number, 2 * number)
        assert one.state().command_seq == 2 * (number - 1)
    assert (one.counters.refused, one.counters.over_effort_steps, one.counters.clamped_steps) == (0, 0, 0)


@pytest.mark.parametrize("policy", ["braked", "stale"])
def test_brakes_hold_against_weight(policy: str) -> None:
    one = falling(stale_policy="brake")
    if policy == "stale":
        assert one.offer(command(one, [10.0, 10.0]))
        one.advance(12)
        assert one.mode == "stale"
    one.advance(20)
    assert (one.q.tolist(), one.v.tolist()) == ([0.0, 0.0], [0.0, 0.0])


def test_without_brakes_a_stale_plant_falls() -> None:
    one = falling(stale_policy="zero")
    assert one.offer(command(one, [10.0, 10.0]))
    one.advance(11)
    assert one.v.tolist() == [0.0, 0.0]
    one.advance(5)
    np.testing.assert_allclose(one.v, -0.05, rtol=1e-12)


@pytest.mark.parametrize("dt_s", [0.001, 0.003, 0.0007])
def test_a_command_acts_for_its_time_to_the_step_whenever_it_came(dt_s: float) -> None:
    """Times are sums of steps that no double holds exactly: the count of steps must not depend on their rounding."""
    one = plant(dt_s=dt_s, command_timeout_s=10 * dt_s)
    for _ in range(60):
        assert one.offer(command(one, [0.0, 0.0]))
        one.advance(11)
        assert one.mode == "active"
        one.advance(1)
        assert one.mode == "stale"


@pytest.mark.parametrize(
    ("q", "counted"),
    [([-1.0, 0.0], 0), ([1.0, 0.0], 0), ([0.0, -1e9], 0), ([-1.1, 0.0], 1), ([1.1, 0.0], 1)],
)
def test_range_of_positions_at_both_ends(q: list[float], counted: int) -> None:
    """A limit belongs to the range."""
    one = plant()
    one.q = np.array(q)
    assert one.offer(command(one, [0.0, 0.0]))
    one.advance(1)
    assert one.counters.out_of_range_steps == counted


@pytest.mark.parametrize(("age_s", "taken"), [(0.0, True), (0.01, True), (0.0101, False), (-0.0005, False)])
def test_age_of_a_command_at_its_ends(age_s: float, taken: bool) -> None:
    one = plant()
    one.advance(50)
    assert one.offer(command(one, [0.0, 0.0], stamp=one.time_s - age_s)) is taken


def test_a_command_within_limits_ends_the_counting_of_one_beyond() -> None:
    one = plant()
    for effort, counts in ((25.0, 2), (-25.0, 4), (5.0, 4), (-10.0, 4)):
        assert one.offer(command(one, [effort, 0.0]))
        one.advance(2)
        assert (one.counters.over_effort_steps, one.counters.clamped_steps) == (counts, counts)
        assert one.effort[0] == np.clip(effort, -10.0, 10.0)


@pytest.mark.parametrize("policy", ["zero", "brake"])
def test_efforts_that_no_longer_act_are_not_counted_as_too_large(policy: str) -> None:
    one = plant(stale_policy=policy)
    assert one.offer(command(one, [25.0, 0.0]))
    one.advance(30)
    assert one.mode == "stale"
    assert (one.counters.over_effort_steps, one.counters.clamped_steps) == (11, 11)
    assert one.offer(command(one, [25.0, 0.0], release=True))
    one.advance(5)
    assert one.counters.over_effort_steps == 11


def test_an_effort_held_while_stale_still_counts() -> None:
    one = plant(stale_policy="hold")
    assert one.offer(command(one, [25.0, 0.0]))
    one.advance(30)
    assert one.counters.over_effort_steps == 30


def test_strangers_joint_names_do_not_fill_the_memory() -> None:
    one = plant()
    for number in range(40):
        assert not one.offer(command(one, [0.0, 0.0], name=(f"a{number}", "b")))
    assert plant_core._order.cache_info().currsize == 16
    assert one.offer(command(one, [0.0, 0.0]))


@pytest.mark.parametrize(("q", "v"), [([0.0, np.nan], [0.0, 0.0]), ([0.0, 0.0], [0.0, np.inf])])
def test_divergence_of_either_position_or_velocity_names_its_joint(q: list[float], v: list[float]) -> None:
    one = plant()
    assert one.offer(command(one, [0.0, 0.0]))
    one.q, one.v = np.array(q), np.array(v)
    with pytest.raises(FailedPreconditionError, match="'b'"):
        one.advance(1)


def test_a_floating_robot_moves_along_its_rotations() -> None:
    """The plant's steps are the robot's: a quaternion stays one, and goes where `simulate` takes it."""
    robot = Robot.from_urdf(URDF / "ur5e.urdf", root="floating")
    limits = robot.limits
    q0, effort = robot.random_configuration(seed=3), np.linspace(-0.3, 0.4, robot.nv)
    one = Plant(robot.forward_dynamics, robot.configuration, limits, q0, PlantSettings(0.001, command_timeout_s=1.0), 7)
    assert one.names == robot.configuration.velocity_names
    assert one.offer(command(one, effort, name=one.names))
    one.advance(20)
    motion = robot.simulate(q0, np.zeros(robot.nv), effort, dt=0.001, steps=20)
    np.testing.assert_allclose(one.q, motion.q[-1], atol=1e-14)
    np.testing.assert_allclose(one.v, motion.v[-1], atol=1e-12)
    assert abs(np.linalg.norm(one.q[3:7]) - 1.0) < 1e-15
    first = robot.joint_names[1]
    assert initial_position({first: 0.5}, robot.configuration, limits)[6:8].tolist() == [1.0, 0.5]


def test_many_wrong_names_do_not_keep_right_ones_out() -> None:
    one = plant()
    for k in range(40):
        assert not one.offer(command(one, [1.0, 2.0], name=("a", f"b{k}")))
    assert one.offer(command(one, [1.0, 2.0], name=("b", "a")))
    assert one.effort.tolist() == [2.0, 1.0]
    assert not one.offer(command(one, [1.0, 2.0], name=("a", "a")))


def test_settings_that_are_left_out_are_those_of_the_parameters() -> None:
    parameters = PlantParameters(robot="arm.urdf")
    settings = PlantSettings(1.0 / parameters.rate_hz)
    for name in ("integrator", "substeps", "command_timeout_s", "stale_policy", "clamp_effort"):
        assert getattr(settings, name) == getattr(parameters, name)


def test_initial_position_of_joints_with_several_parts() -> None:
    """`joint.part`, or a map of parts, which is what parameters with dots in their names become."""
    at = configuration(["base", "lift"], ["planar", "prismatic"])
    limits = Limits(*np.full((2, 4), np.inf) * np.array([[-1.0], [1.0]]), *np.full((2, 4), np.inf))
    for given in ({"base.theta": 0.5, "lift": 0.1}, {"base": {"theta": 0.5}, "lift": 0.1}):
        assert initial_position(given, at, limits).tolist() == [0.0, 0.0, 0.5, 0.1]
    with pytest.raises(
        InvalidArgumentError, match=r"no joint 'base.z'; the joints are base.x, base.y, base.theta, lift"
    ):
        initial_position({"base": {"z": 1.0}}, at, limits)


def test_initial_position_has_unit_quaternions() -> None:
    at = configuration(["root_joint"], ["floating"])
    limits = Limits(np.full(7, -np.inf), np.full(7, np.inf), *np.full((2, 6), np.inf))
    with pytest.raises(
        InvalidArgumentError, match="initial_position of joint 'root_joint' has a quaternion of length 0"
    ):
        initial_position({"root_joint.qw": 0.0}, at, limits)


@pytest.mark.parametrize("substeps", [1, 4])
def test_divergence_names_the_length_of_the_steps_that_were_made(substeps: int) -> None:
    one = plant(dt_s=0.1, substeps=substeps, command_timeout_s=10.0)
    one.forward_dynamics = lambda q, v, tau: np.full_like(q, np.inf)
    assert one.offer(command(one, [0.5, 2.0]))
    with pytest.raises(FailedPreconditionError, match=f"shorter than dt = {0.1 / substeps:g} s"):
        one.advance(1)

"""Reference motions: exact derivatives, limits, starts from any state, the way over the wire."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from dyn_service.control.trajectory import (
    MultiSine,
    MultiSineDesign,
    PointToPoint,
    ReferenceTrajectory,
    design_multi_sine,
    from_wire,
    powers,
    quintic,
)
from dyn_service.errors import InvalidArgumentError
from dyn_service.model.configuration import Configuration, Limits
from dyn_service.model.joints import joint_of
from tests.phrases import naming
from tests.random_robots import MANY_TYPES as TYPES
from tests.trees import configuration

BOUNDS = Limits(
    np.array([-2.0, -1.0, 0.0, -np.inf]),
    np.array([2.0, 3.0, 0.04, np.inf]),
    np.array([2.0, 2.5, 0.05, 3.0]),
    np.ones(4),
)
Q0, V0 = np.array([0.3, 0.2, 0.01, 5.0]), np.array([0.4, -0.1, 0.0, 1.0])


def motions(v0: np.ndarray) -> list[ReferenceTrajectory]:
    points = np.array([[1.0, 0.5, 0.02, 4.0], [-1.0, 0.0, 0.01, 6.0], [0.0, 1.0, 0.03, 5.0]])
    return [
        design_multi_sine(MultiSineDesign(), BOUNDS, Q0, v0),
        design_multi_sine(MultiSineDesign(harmonics=1, ramp_s=0.5), BOUNDS, Q0, v0),
        PointToPoint(Q0, v0, points, move_s=1.5, dwell_s=0.3),
    ]


@pytest.mark.parametrize("motion", motions(V0), ids=["three sines", "one sine", "point to point"])
def test_derivatives_by_central_differences(motion: ReferenceTrajectory) -> None:
    # h = 1e-5 s: the differences' own error is h^2/6 of the next derivative (1e-10 times up to 1e3) plus rounding
    # of 1e-16 / h; the joints of a point-to-point motion have jumps of jerk, which cost h times the jump there.
    h = 1e-5
    t = np.linspace(0.001, 9.0, 2003)
    now, left, right = motion.sample(t), motion.sample(t - h), motion.sample(t + h)
    np.testing.assert_allclose((right.q - left.q) / (2.0 * h), now.v, atol=1e-7)
    np.testing.assert_allclose((right.v - left.v) / (2.0 * h), now.a, atol=2e-3 if "Point" in repr(motion) else 1e-6)


@pytest.mark.parametrize("motion", motions(V0), ids=["three sines", "one sine", "point to point"])
def test_begins_at_the_measured_state(motion: ReferenceTrajectory) -> None:
    begin = motion.sample(0.0)
    np.testing.assert_allclose(begin.q, Q0, rtol=0.0, atol=1e-15)
    np.testing.assert_allclose(begin.v, V0, rtol=0.0, atol=1e-15)
    np.testing.assert_allclose(begin.a, 0.0, atol=1e-12)


@pytest.mark.parametrize("motion", motions(0.0 * V0), ids=["three sines", "one sine", "point to point"])
def test_keeps_to_the_limits_from_rest(motion: ReferenceTrajectory) -> None:
    reference = motion.sample(np.linspace(0.0, 30.0, 20001))
    assert np.all(reference.q >= BOUNDS.lower - 1e-12)
    assert np.all(reference.q <= BOUNDS.upper + 1e-12)
    if not isinstance(motion, PointToPoint):
        bounded = np.isfinite(BOUNDS.lower)
        travel = np.ptp(reference.q, axis=0)
        assert np.all(travel[bounded] > 0.05 * (BOUNDS.upper - BOUNDS.lower)[bounded])
        running = motion.sample(np.linspace(motion.ramp_s, 30.0, 20001))
        assert np.all(np.abs(running.v) <= 0.5 * BOUNDS.velocity)


@pytest.mark.parametrize("motion", motions(V0), ids=["three sines", "one sine", "point to point"])
def test_survives_the_wire_to_the_last_bit(motion: ReferenceTrajectory) -> None:
    t = np.linspace(0.0, 9.0, 101)
    copy = from_wire(motion.to_wire()).sample(t)
    assert all(np.array_equal(original, other) for original, other in zip(motion.sample(t), copy, strict=True))


def test_times_broadcast() -> None:
    motion = motions(V0)[0]
    samples = motion.sample(np.array([[0.1, 0.2], [0.3, 5.0]]))
    assert samples.q.shape == (2, 2, 4)
    assert np.array_equal(samples.a[1, 1], motion.sample(5.0).a)


def test_waypoints_are_reached_and_rested_at() -> None:
    motion = motions(V0)[2]
    for leg, point in enumerate([[1.0, 0.5, 0.02, 4.0], [-1.0, 0.0, 0.01, 6.0], [0.0, 1.0, 0.03, 5.0]] * 2):
        rest = motion.sample(leg * 1.8 + np.array([1.5, 1.65, 1.799]))
        np.testing.assert_allclose(rest.q, np.tile(point, (3, 1)), atol=1e-12)
        np.testing.assert_allclose(rest.v, 0.0, atol=1e-10)


def test_min_jerk_ends() -> None:
    times = np.array([-1.0, 0.0, 0.5, 1.0, 2.0])[:, None]
    value, slope, curve = quintic(np.zeros(1), np.zeros(1), np.ones(1), 1.0, powers(times, 1.0))
    assert np.array_equal(value[:, 0], [0.0, 0.0, 0.5, 1.0, 1.0])
    assert np.array_equal(slope[:, 0], [0.0, 0.0, 1.875, 0.0, 0.0])
    assert np.array_equal(curve[:, 0], [0.0, 0.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("design", "message"),
    [
        (MultiSineDesign(ramp_s=0.0), "period_s, ramp_s and harmonics of a multi-sine must be positive"),
        (MultiSineDesign(centre=[1.0]), "centre has 1 numbers, the robot 4 positions"),
        (MultiSineDesign(centre=[0.0, 0.0, 0.1, 0.0]), "the centre of joint 2 is outside of its limits"),
    ],
)
def test_design_faults(design: MultiSineDesign, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as excinfo:
        design_multi_sine(design, BOUNDS, Q0, V0)
    assert str(excinfo.value) == message


@pytest.mark.parametrize(
    "wire",
    [
        {"kind": "spiral"},
        {"kind": "multi_sine", "q0": [1.0]},
        {},
        {"kind": "point_to_point", "joints": [{"name": "a", "type": "worm"}]},
        {"kind": "point_to_point", "joints": [{"type": "revolute"}]},
    ],
)
def test_wire_faults(wire: dict) -> None:
    with pytest.raises(InvalidArgumentError, match="trajectory"):
        from_wire(wire)


def test_where_positions_add_up_nothing_has_changed() -> None:
    """Up to rounding the sums of the module's page, and the values of the first release."""
    sines, points = motions(V0)[0], motions(V0)[2]
    assert isinstance(sines, MultiSine)
    t = np.linspace(0.0, 9.0, 401)[:, None]
    x = np.clip(t / sines.ramp_s, 0.0, 1.0)
    way, rest, T = sines.centre - Q0, 1.0 - x, sines.ramp_s
    fade = x**3 * (10.0 - 15.0 * x + 6.0 * x * x)
    rise, bend = 30.0 * x * x * rest * rest / T, 60.0 * x * rest * (1.0 - 2.0 * x) / T**2
    angle = t[..., None] * sines.frequency[:, None] + sines.phase
    sine, cosine = sines.amplitude * np.sin(angle), sines.amplitude * np.cos(angle)
    w = sines.frequency[:, None]
    q, v, a = sine.sum(axis=-2), (w * cosine).sum(axis=-2), -(w * w * sine).sum(axis=-2)
    samples = sines.sample(t[:, 0])
    coast = V0 * T * (x * rest**3 * (1.0 + 3.0 * x))
    rounding = {"rtol": 0.0, "atol": 1e-13}  # of coefficients up to 180, times ways up to 5
    np.testing.assert_allclose(samples.q, Q0 + way * fade + coast + fade * q, **rounding)
    coast = V0 * (rest * rest * (1.0 + x * (2.0 - 15.0 * x)))
    np.testing.assert_allclose(samples.v, way * rise + coast + rise * q + fade * v, **rounding)
    coast = V0 * (-12.0 * x * rest * (3.0 - 5.0 * x)) / T
    np.testing.assert_allclose(samples.a, way * bend + coast + bend * q + 2.0 * rise * v + fade * a, **rounding)
    expected_sines = [
        [0.35900700225427074, 0.35098650799268516, 0.01310861259321237, 5.446639901066886],
        [-0.3890166964081785, 0.6115395602631071, 0.010711884021186589, 0.17559396084521445],
        [-1.4972595811153981, 0.6941034627163367, 0.01573609302630117, -0.9501572339105236],
    ]
    np.testing.assert_allclose(np.stack(sines.sample(0.7)), expected_sines, rtol=1e-13)
    expected_points = [
        [-0.5623150617283953, 0.4376849382716047, 0.018753698765432092, 5.562315061728396],
        [1.2389135802469133, 1.2389135802469133, 0.02477827160493826, -1.2389135802469133],
        [0.44246913580247116, 0.44246913580247116, 0.008849382716049422, -0.44246913580247116],
    ]
    np.testing.assert_allclose(np.stack(points.sample(4.3)), expected_points, rtol=1e-13)


SEVERAL = tuple(kind for kind in TYPES if not joint_of(kind).single_dof)
MIXED = ("floating", "revolute", "planar", "spherical", "cylindrical", "prismatic", "screw")


def free(joints: Configuration) -> Limits:
    return Limits(np.full(joints.nq, -np.inf), np.full(joints.nq, np.inf), *np.full((2, joints.nv), np.inf))


def of_joints(kinds: tuple[str, ...], seed: int, moving: bool = True) -> dict[str, ReferenceTrajectory]:
    """Motions of joints of these types from a random state, or from rest."""
    joints, rng = configuration([f"j{k}" for k in range(len(kinds))], kinds), np.random.default_rng(seed)
    bounds = free(joints)
    start, centre, *points = (joints.random(rng, bounds.lower, bounds.upper) for _ in range(5))
    speed = moving * rng.normal(size=joints.nv)
    centred_design = MultiSineDesign(centre=centre.tolist(), harmonics=2)
    return {
        "where it stands": design_multi_sine(MultiSineDesign(), bounds, start, speed, joints),
        "about a centre": design_multi_sine(centred_design, bounds, start, speed, joints),
        "point to point": PointToPoint(start, speed, np.array(points), 1.5, 0.3, joints),
    }


KINDS = [pytest.param((kind,), id=kind) for kind in TYPES] + [pytest.param(MIXED, id="all")]


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("name", ["where it stands", "about a centre", "point to point"])
def test_velocity_and_acceleration_are_those_of_the_motion_of_the_body(kinds: tuple[str, ...], name: str) -> None:
    """By central differences on the manifold, from a state that moves: while it coasts, fades in and after."""
    h, t = 1e-5, np.linspace(0.001, 6.0, 1203)
    for seed in range(3):
        motion = of_joints(kinds, seed)[name]
        now, left, right = motion.sample(t), motion.sample(t - h), motion.sample(t + h)
        np.testing.assert_allclose(motion.configuration.difference(left.q, right.q) / (2.0 * h), now.v, atol=1e-7)
        jerky = name == "point to point"
        np.testing.assert_allclose((right.v - left.v) / (2.0 * h), now.a, atol=2e-3 if jerky else 1e-6)
        np.testing.assert_allclose(motion.configuration.normalised(now.q), now.q, rtol=0.0, atol=1e-15)


@pytest.mark.parametrize("kinds", KINDS)
def test_takes_over_without_a_jump_whatever_the_joints_do(kinds: tuple[str, ...]) -> None:
    for motion in of_joints(kinds, 5).values():
        begin = motion.sample(np.array([-0.1, 0.0]))
        np.testing.assert_allclose(motion.configuration.difference(motion.q0, begin.q), 0.0, atol=1e-15)
        np.testing.assert_allclose(begin.v, np.stack([motion.v0] * 2), rtol=0.0, atol=1e-15)
        np.testing.assert_allclose(begin.a, 0.0, atol=1e-12)


def test_waypoints_of_joints_with_several_ways_to_move_are_reached_and_rested_at() -> None:
    motion = of_joints(MIXED, 2)["point to point"]
    assert isinstance(motion, PointToPoint)
    for leg in range(6):
        rest = motion.sample(leg * 1.8 + np.array([1.5, 1.65, 1.799]))
        np.testing.assert_allclose(motion.configuration.difference(motion.points[leg % 3], rest.q), 0.0, atol=1e-13)
        np.testing.assert_allclose(rest.v, 0.0, atol=1e-12)


@pytest.mark.parametrize("kind", SEVERAL)
def test_a_leg_goes_one_way_in_the_bodys_axes(kind: str) -> None:
    motion = of_joints((kind,), 4, moving=False)["point to point"]
    v = motion.sample(np.linspace(0.1, 1.4, 20)).v
    direction = motion.configuration.difference(motion.q0, motion.points[0])
    np.testing.assert_allclose(v - np.outer(v @ direction, direction) / (direction @ direction), 0.0, atol=1e-14)
    assert (v @ direction > 0.0).all()


def test_a_multi_sine_keeps_to_the_limits_beside_joints_that_have_none() -> None:
    joints = configuration(["base", "lift", "ball"], ["planar", "prismatic", "spherical"])
    bounds = free(joints)
    bounds.lower[3], bounds.upper[3] = -0.1, 0.3
    bounds.velocity[:] = [1.0, 1.0, 0.5, 0.4, 2.0, 2.0, 2.0]
    start = joints.integrate(joints.neutral, np.array([1.0, 2.0, 0.5, 0.25, 0.3, 0.4, -0.2]))
    motion = design_multi_sine(MultiSineDesign(), bounds, start, np.zeros(7), joints)
    samples = motion.sample(np.linspace(0.0, 30.0, 20001))
    assert (samples.q[:, 3] >= -0.1).all()
    assert (samples.q[:, 3] <= 0.3).all()
    assert np.ptp(samples.q[:, 3]) > 0.1
    assert (np.abs(motion.sample(np.linspace(2.0, 30.0, 20001)).v) <= 0.5 * bounds.velocity).all()
    reach = np.abs(joints.difference(start, samples.q))
    assert (reach[:, [0, 1, 2, 4, 5, 6]] <= 0.6 * 1.0001).all()
    assert (np.ptp(joints.difference(start, samples.q), axis=0) > 0.05).all()


@pytest.mark.parametrize("moving", [True, False])
def test_joints_that_do_not_add_up_survive_the_wire_to_the_last_bit(moving: bool) -> None:
    t = np.linspace(0.0, 9.0, 101)
    for motion in of_joints(MIXED, 3, moving).values():
        wire = msgspec.msgpack.decode(msgspec.msgpack.encode(motion.to_wire()))
        copy = from_wire(wire)
        assert all(
            np.array_equal(original, other) for original, other in zip(motion.sample(t), copy.sample(t), strict=True)
        )
        assert [joint["type"] for joint in wire["joints"]] == list(MIXED)


@pytest.mark.parametrize("entry", ["phase", "amplitude"])
def test_sines_that_go_several_ways_at_once_are_refused(entry: str) -> None:
    motion = of_joints(MIXED, 1)["where it stands"]
    assert isinstance(motion, MultiSine)
    other = getattr(motion, entry).copy()
    other[1, 6] += 0.1  # the revolute joint's
    replace(motion, **{entry: other})
    other[1, 8] += 0.1
    with pytest.raises(InvalidArgumentError, match=naming("sines", "joint 'j2'")):
        replace(motion, **{entry: other})


def test_faults_of_a_design_name_the_joint() -> None:
    joints = configuration(["ball", "lift"], ["spherical", "prismatic"])
    bounds = free(joints)
    bounds.lower[4], bounds.upper[4] = 0.0, 0.1
    start, zero = joints.neutral, np.zeros(4)
    for centre, message in (
        ([0.0, 0.0, 0.0, 1.0, 0.2], "the centre of joint 'lift' is outside of its limits"),
        (
            [0.0, 0.0, 0.0, 2.0, 0.05],
            "the centre of joint 'ball' has a quaternion of length 2, expected 1 within 1e-06",
        ),
        ([0.0] * 4, "centre has 4 numbers, the robot 5 positions"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"^{message}$"):
            design_multi_sine(MultiSineDesign(centre=centre), bounds, start, zero, joints)
    with pytest.raises(InvalidArgumentError, match=naming("5 positions", "4 velocities", "4 and 4")):
        design_multi_sine(MultiSineDesign(), bounds, zero, zero)
    with pytest.raises(InvalidArgumentError, match=naming("lower", "upper")):
        design_multi_sine(MultiSineDesign(), Limits(*map(np.zeros, (2, 3, 2, 2))), np.zeros(2), np.zeros(2))

"""Reference motions: exact derivatives, limits, starts from any state, the way over the wire."""

import numpy as np
import pytest

from dyn_service.control.trajectory import (
    Bounds,
    MultiSineDesign,
    PointToPoint,
    ReferenceTrajectory,
    design_multi_sine,
    from_wire,
    min_jerk,
)
from dyn_service.errors import InvalidArgumentError

BOUNDS = Bounds(
    np.array([-2.0, -1.0, 0.0, -np.inf]), np.array([2.0, 3.0, 0.04, np.inf]), np.array([2.0, 2.5, 0.05, 3.0])
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
    here, before, after = motion.sample(t), motion.sample(t - h), motion.sample(t + h)
    np.testing.assert_allclose((after.q - before.q) / (2.0 * h), here.v, atol=1e-7)
    np.testing.assert_allclose((after.v - before.v) / (2.0 * h), here.a, atol=2e-3 if "Point" in repr(motion) else 1e-6)


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
        moved = np.ptp(reference.q, axis=0)
        assert np.all(moved[bounded] > 0.05 * (BOUNDS.upper - BOUNDS.lower)[bounded])
        after = motion.sample(np.linspace(motion.ramp_s, 30.0, 20001))
        assert np.all(np.abs(after.v) <= 0.5 * BOUNDS.velocity)


@pytest.mark.parametrize("motion", motions(V0), ids=["three sines", "one sine", "point to point"])
def test_survives_the_wire_to_the_last_bit(motion: ReferenceTrajectory) -> None:
    t = np.linspace(0.0, 9.0, 101)
    again = from_wire(motion.to_wire()).sample(t)
    assert all(np.array_equal(one, other) for one, other in zip(motion.sample(t), again, strict=True))


def test_times_broadcast() -> None:
    motion = motions(V0)[0]
    many = motion.sample(np.array([[0.1, 0.2], [0.3, 5.0]]))
    assert many.q.shape == (2, 2, 4)
    assert np.array_equal(many.a[1, 1], motion.sample(5.0).a)


def test_waypoints_are_reached_and_rested_at() -> None:
    motion = motions(V0)[2]
    for leg, point in enumerate([[1.0, 0.5, 0.02, 4.0], [-1.0, 0.0, 0.01, 6.0], [0.0, 1.0, 0.03, 5.0]] * 2):
        rest = motion.sample(leg * 1.8 + np.array([1.5, 1.65, 1.799]))
        np.testing.assert_allclose(rest.q, np.tile(point, (3, 1)), atol=1e-12)
        np.testing.assert_allclose(rest.v, 0.0, atol=1e-10)


def test_min_jerk_ends() -> None:
    value, slope, curve = min_jerk(np.array([-1.0, 0.0, 0.5, 1.0, 2.0]))
    assert np.array_equal(value, [0.0, 0.0, 0.5, 1.0, 1.0])
    assert np.array_equal(slope, [0.0, 0.0, 1.875, 0.0, 0.0])
    assert np.array_equal(curve, [0.0, 0.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("design", "message"),
    [
        (MultiSineDesign(ramp_s=0.0), "period_s, ramp_s and harmonics of a multi-sine must be positive"),
        (MultiSineDesign(centre=[1.0]), "centre has 1 numbers, the robot 4 joints"),
        (MultiSineDesign(centre=[0.0, 0.0, 0.1, 0.0]), "the centre of joint 2 is outside of its limits"),
    ],
)
def test_design_faults(design: MultiSineDesign, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        design_multi_sine(design, BOUNDS, Q0, V0)
    assert str(caught.value) == message


@pytest.mark.parametrize("wire", [{"kind": "spiral"}, {"kind": "multi_sine", "q0": [1.0]}, {}])
def test_wire_faults(wire: dict) -> None:
    with pytest.raises(InvalidArgumentError, match="trajectory"):
        from_wire(wire)

"""The adaptive steps by themselves: columns, lengths, order and what ends them, on joints without a robot."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.simulation.integrators import adaptive
from dyn_service.simulation.integrators.adaptive import StepLostError, extrapolated
from tests.trees import configuration

SLIDE = configuration(["slide"], ["prismatic"])
HELD = np.zeros(1)
Acceleration = Callable[[float, np.ndarray, np.ndarray], Any]


def free(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
    return 0.0 * v


def driven(
    acceleration: Acceleration,
    q: Any = HELD,
    v: Any = HELD,
    *,
    t: float = 0.0,
    dt: float = 1.0,
    configuration: Any = SLIDE,
) -> tuple[np.ndarray, np.ndarray]:
    """The state dt after t."""
    integration = extrapolated(configuration, np.asarray(q, dtype=float), np.asarray(v, dtype=float), t, dt)
    stage = next(integration)
    while True:
        try:
            stage = integration.send(np.asarray(acceleration(*stage), dtype=float))
        except StopIteration as done:
            state: tuple[np.ndarray, np.ndarray] = done.value
            return state


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float, int]]:
    """(t, length, substeps) of each column that is made."""
    attempts: list[tuple[float, float, int]] = []
    column = adaptive._midpoints

    def watched(
        configuration: Any, x: Any, rates: Any, t: float, length: float, count: int
    ) -> Generator[Any, Any, Any]:
        attempts.append((t, length, count))
        return (yield from column(configuration, x, rates, t, length, count))

    monkeypatch.setattr(adaptive, "_midpoints", watched)
    return attempts


def script(monkeypatch: pytest.MonkeyPatch, errors: Sequence[float]) -> None:
    """Replaces the estimated errors by these, in units of the tolerance, then by zero. Each row is judged alone."""
    remaining = iter(errors)
    monkeypatch.setattr(adaptive, "NEAR", np.inf)
    monkeypatch.setattr(adaptive, "_error", lambda *_: next(remaining, 0.0))


def columns(tries: list[tuple[float, float, int]]) -> list[list[int]]:
    """The substeps of each try, by try."""
    counts: list[list[int]] = []
    for _, _, count in tries:
        if count == 2:
            counts.append([])
        counts[-1].append(count)
    return counts


def lengths(tries: list[tuple[float, float, int]]) -> np.ndarray:
    return np.array([length for _, length, count in tries if count == 2])


def test_a_step_ends_with_the_column_that_is_good_enough(tries: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two columns are never trusted: what they differ by tells the error of the first alone."""
    script(monkeypatch, [0.5, 1.0])
    driven(free)
    assert columns(tries) == [[2, 4, 6]]


def test_a_table_that_converges_slowly_gets_all_its_columns(tries: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, [900.0, 800.0, 700.0, 600.0, 500.0, 400.0, 300.0])
    driven(free)
    assert columns(tries)[0] == [2, 4, 6, 8, 10, 12, 14, 16]
    script(monkeypatch, [900.0, 800.0, 700.0, 600.0, 500.0, 400.0, 1.0])
    tries.clear()
    driven(free)
    assert columns(tries) == [[2, 4, 6, 8, 10, 12, 14, 16]]


def test_a_table_that_no_longer_converges_is_left(tries: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the fifth column on: before, an error may grow once."""
    script(monkeypatch, [7.0, 8.0, 9.0, 10.0])
    driven(free)
    assert columns(tries)[0] == [2, 4, 6, 8, 10]


def test_what_is_not_finite_is_left_at_once_and_begun_again_with_a_tenth(
    tries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, [np.inf, np.nan])
    driven(free)
    assert columns(tries)[:3] == [[2, 4], [2, 4], [2, 4, 6]]
    assert lengths(tries)[:3] == pytest.approx([1.0, 0.1, 0.01], rel=1e-12)
    assert [t for t, _, count in tries if count == 2][:3] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("error", [0.02, 0.5, 1.0])
@pytest.mark.parametrize("last", [2, 3, 7])
def test_the_next_step_is_as_long_as_its_error_allows(
    tries: Any, monkeypatch: pytest.MonkeyPatch, error: float, last: int
) -> None:
    """The estimate goes with the length to the power 2 j + 1; a tenth of the length is kept in reserve."""
    first = [100.0 / k for k in range(1, last)]
    # The first try is refused, so that the step in question does not end at dt.
    script(monkeypatch, [np.inf, *first, error])
    driven(free)
    _, step, next_step = lengths(tries)[:3]
    assert columns(tries)[1] == [2, 4, 6, 8, 10, 12, 14, 16][: last + 1]
    assert error * (next_step / step) ** (2 * last + 1) == pytest.approx(0.9 ** (2 * last + 1), rel=1e-9)


@pytest.mark.parametrize(
    ("errors", "ratio"),
    [
        ([9.0, 1e-9], 4.0),  # far better than allowed: still no more than four times
        ([9.0, 0.0], 4.0),
        ([9e31, 8e31, 7e31, 6e31, 5e31, 4e31, 3e31], 0.05),  # far worse: no less than a twentieth
        ([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0], 0.5),  # what is begun again is half as long at most
    ],
)
def test_a_step_grows_and_shrinks_within_bounds(
    tries: Any, monkeypatch: pytest.MonkeyPatch, errors: list[float], ratio: float
) -> None:
    script(monkeypatch, [np.inf, *errors])
    driven(free)
    _, step, next_step = lengths(tries)[:3]
    assert next_step / step == pytest.approx(ratio, rel=1e-12)


def test_a_step_that_is_begun_again_shrinks_as_its_error_asks(tries: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [9e9, 8e9, 7e9, 6e9, 5e9, 4e9, 1e9]
    script(monkeypatch, errors)
    driven(free)
    first, second = lengths(tries)[:2]
    assert errors[-1] * (second / first) ** 15 == pytest.approx(0.9**15, rel=1e-9)


def test_steps_go_on_from_each_other_and_end_at_the_end(tries: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, [np.inf])
    _, v = driven(lambda t, q, v: [1.0], t=3.0)
    begins = np.array([t for t, _, count in tries if count == 2])[1:]
    step_lengths = lengths(tries)[1:]
    np.testing.assert_allclose(begins, 3.0 + np.cumsum([0.0, *step_lengths[:-1]]), rtol=0, atol=1e-15)
    assert begins[-1] + step_lengths[-1] == pytest.approx(4.0, abs=1e-15)
    assert v == pytest.approx([1.0], abs=1e-15)


@pytest.mark.parametrize(("last", "degree"), [(2, 5), (3, 7), (4, 9)])
def test_a_table_of_so_many_columns_is_exact_for_polynomials(
    monkeypatch: pytest.MonkeyPatch, last: int, degree: int
) -> None:
    """Each column takes one more even power of the substep away; an acceleration of the next degree is not exact."""
    script(monkeypatch, [9.0] * (last - 1) + [0.0])
    _, v = driven(lambda t, q, v: [(degree + 1) * t**degree])
    assert v == pytest.approx([1.0], abs=1e-14)  # some roundings of ten sums
    script(monkeypatch, [9.0] * (last - 1) + [0.0])
    _, v = driven(lambda t, q, v: [(degree + 2) * t ** (degree + 1)])
    assert abs(v[0] - 1.0) > 1e-10


def test_one_component_at_zero_is_no_obstacle() -> None:
    """From rest at zero, and through it: a harmonic motion and its exact solution."""
    two = configuration(["a", "b"], ["revolute", "prismatic"])
    q, v = driven(lambda t, q, v: -9.0 * q + [1.0, 0.0], [0.0, 0.0], [0.0, 0.0], configuration=two)
    # The tolerance is 1e-12 a step; there are two or three.
    np.testing.assert_allclose(q, [(1 - np.cos(3.0)) / 9.0, 0.0], rtol=0, atol=1e-11)
    np.testing.assert_allclose(v, [np.sin(3.0) / 3.0, 0.0], rtol=0, atol=1e-11)


@pytest.mark.parametrize(("t", "dt"), [(0.0, 1.0), (0.0, 1e-3), (1e3, 1.0), (-1e3, 1.0)])
def test_a_step_is_lost_in_the_rounding_of_time(tries: Any, t: float, dt: float) -> None:
    """A tenth each time, down to 1e-13 of the time or of the whole, whichever is larger: a dozen tries."""
    with pytest.raises(StepLostError, match="no step is short enough") as refusal:
        driven(lambda t, q, v: [np.nan], [0.5], [2.0], t=t, dt=dt)
    shortest = lengths(tries)[-1] / max(abs(t), dt)
    assert 0.9e-13 < shortest < 1.1e-12
    assert (refusal.value.q, refusal.value.v) == ([0.5], [2.0])
    assert np.isnan(refusal.value.a).all()


def test_members_share_the_steps_of_the_fastest(tries: Any) -> None:
    """The error is the largest of all members: a slow member takes the steps of a fast one."""

    def harmonic(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
        return -np.array([[1.0], [400.0]]) * q

    q, _ = driven(harmonic, [[1.0], [1.0]], [[0.0], [0.0]])
    batch_lengths = lengths(tries)
    np.testing.assert_allclose(q[:, 0], np.cos([1.0, 20.0]), rtol=0, atol=1e-10)  # a dozen steps of 1e-12, and 20 rad
    tries.clear()
    driven(lambda t, q, v: -q, [1.0], [0.0])
    assert len(lengths(tries)) < len(batch_lengths)


def test_the_error_is_in_units_of_what_is_allowed_each_entry_by_its_own_size() -> None:
    """1e-12 of the larger of an entry's sizes before and after the step, and 1e-14: root mean square of the entries, of
    the worst member.
    """
    x, better = np.array([4.0, -4.0, 0.0, 2.0]), np.array([-1.0, 1.0, 0.0, -8.0])
    tolerance = np.array([4e-12, 4e-12, 0.0, 8e-12]) + 1e-14
    for k in range(4):
        worse = better + 3.0 * tolerance * np.eye(4)[k]
        # What is added to 8 is rounded to 1e-15 or 1e-16, of 1e-11.
        assert adaptive._error(x, better, worse) == pytest.approx(3.0 / 2.0, rel=1e-3)
    worse = better + tolerance * [3.0, -4.0, 0.0, 5.0]
    assert adaptive._error(x, better, worse) == pytest.approx(np.sqrt(50.0 / 4.0), rel=1e-3)
    batch = np.stack([better, worse, better])
    assert adaptive._error(np.stack([x] * 3), np.stack([better] * 3), batch) == adaptive._error(x, better, worse)
    assert adaptive._error(x, better, better) == 0.0
    assert adaptive._error(x, better, np.full(4, np.inf)) == np.inf


def test_an_acceleration_that_all_members_share_is_that_of_each() -> None:
    q, v = driven(lambda t, q, v: [2.0], [[0.0], [1.0], [2.0]], [[0.0], [0.0], [1.0]])
    np.testing.assert_allclose(q, [[1.0], [2.0], [4.0]], rtol=0, atol=1e-14)
    np.testing.assert_allclose(v, [[2.0], [2.0], [3.0]], rtol=0, atol=1e-14)


def test_quaternions_come_back_to_unit_length() -> None:
    ball = configuration(["b"], ["spherical"])
    q, v = driven(lambda t, q, v: 0.0 * v, ball.neutral, [0.0, 0.0, 3.0], configuration=ball)
    assert abs(np.linalg.norm(q) - 1.0) < 1e-15
    np.testing.assert_allclose(q, [0.0, 0.0, np.sin(1.5), np.cos(1.5)], rtol=0, atol=1e-11)
    assert v.tolist() == [0.0, 0.0, 3.0]


def test_nothing_that_moves_is_no_obstacle() -> None:
    without_joints = configuration([], [])
    for lead in ((), (3,), (0,)):
        q, v = driven(lambda t, q, v: v, np.zeros((*lead, 0)), np.zeros((*lead, 0)), configuration=without_joints)
        assert (q.shape, v.shape) == ((*lead, 0), (*lead, 0))


RATIOS = sorted({*np.arange(2.0, 40.0, 0.13).tolist(), *map(float, range(2, 41)), *(6.0 + 1e-13, 8.0 - 1e-12)})


@pytest.mark.parametrize("members", [1, 40])
def test_no_ratio_of_damping_and_step_is_accepted_by_coincidence(members: int) -> None:
    """v' = -9.81 - k v from rest, k times the step from 2 to 40: the last two columns agree by chance at 4, 6, .. 16.
    Alone, and as one system of joints whose ratios are spread over the whole range.
    """
    for first in range(0, len(RATIOS), members):
        k = np.array(RATIOS[first::7][:members] if members > 1 else RATIOS[first : first + 1])
        slides = configuration([f"j{n}" for n in range(len(k))], ["prismatic"] * len(k))
        rest = np.zeros(len(k))
        for dt in (1.0, 1e-3):
            _, v = driven(lambda t, q, v, rate=k / dt: -9.81 - rate * v, rest, rest, dt=dt, configuration=slides)
            # 1e-12 a step, of some hundred steps, and what grows unnoticed: 2e-7 at most.
            np.testing.assert_allclose(v, 9.81 * dt * np.expm1(-k) / k, rtol=1e-6, atol=0)


def test_a_slide_with_damping_of_six_to_sixteen_steps() -> None:
    """Robots, over many times of the grid: speeds were 1e300 where 1e-3 is right."""
    for ratio in (6.0, 8.0, 10.0, 12.0, 14.0, 16.0):
        robot = Robot.from_text(
            '<robot name="s"><link name="w"/><link name="m"><inertial><mass value="0.5"/><inertia ixx="1" iyy="1" '
            'izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link><joint name="j" type="prismatic"><parent link="w"/>'
            '<child link="m"/><axis xyz="0 0 1"/><limit effort="9" velocity="9" lower="-1" upper="1"/>'
            f'<dynamics damping="{ratio * 0.5 / 1e-3}"/></joint></robot>'
        )
        motion = robot.simulate([0.0], [0.0], dt=1e-3, steps=30, integrator="adaptive")
        expected = 9.81 * 1e-3 / ratio * np.expm1(-ratio * np.arange(31))
        np.testing.assert_allclose(motion.v[:, 0], expected, rtol=1e-6, atol=0)


def test_a_row_is_accepted_only_after_one_that_is_near(tries: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No difference at all, after one of 101 tolerances: one more row."""
    for previous_error, rows in ((101.0, [2, 4, 6, 8]), (99.0, [2, 4, 6])):
        script(monkeypatch, [previous_error])
        monkeypatch.setattr(adaptive, "NEAR", 1e2)
        tries.clear()
        driven(free)
        assert columns(tries) == [rows]

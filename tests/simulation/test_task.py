"""What a simulation is asked for, by itself: arguments checked and spread, efforts and wrenches step by step."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from dyn_service.api.queries import Wrench
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.model.configuration import Configuration
from dyn_service.simulation.integrators.adaptive import Stage, between
from dyn_service.simulation.loads import HeldEfforts, Loads, as_samples
from dyn_service.simulation.task import Grid, Task, checked
from tests.phrases import naming, unnamed
from tests.trees import configuration

TWO = configuration(["hinge", "slide"], ["revolute", "prismatic"])
FLOATING = configuration(["root", "slide"], ["floating", "prismatic"])
Q, V = np.array([0.1, 0.2]), np.array([0.3, 0.4])
SAMPLES = np.arange(12.0).reshape(6, 2)
FORCES = np.arange(18.0).reshape(6, 3)


def task(q: Any = Q, v: Any = V, tau: Any = None, *, configuration: Configuration = TWO, **options: Any) -> Task:
    return checked(configuration, q, v, tau, **{"dt": 0.5, "steps": 6, **options})


def push(force: Any = (1.0, 2.0, 3.0), **other: Any) -> Wrench:
    return Wrench("hand", force=force, **other)


class TestTimes:
    def test_times_of_records_and_of_steps(self) -> None:
        motion_task = task(steps=7, every=3, first_step=10)
        np.testing.assert_array_equal(motion_task.times(), [5.0, 6.5, 8.0])
        assert (motion_task.last, motion_task.time(0), motion_task.time(3)) == (6, 5.0, 6.5)

    def test_defaults_record_every_step_from_the_first_on(self) -> None:
        motion_task = task(steps=2)
        np.testing.assert_array_equal(motion_task.times(), [0.0, 0.5, 1.0])
        assert (motion_task.last, motion_task.every, motion_task.first_step) == (2, 1, 0)
        assert (motion_task.method, motion_task.integrator, motion_task.gravity, motion_task.p) == (
            "articulated",
            "auto",
            None,
            None,
        )

    def test_numbers_of_numpy_become_plain_ones(self) -> None:
        """Of any width: what goes over a wire, and what times are computed from."""
        options = {"dt": np.float32(0.5), "steps": np.int64(4), "every": np.uint8(2), "first_step": np.int32(3)}
        motion_task = task(**options)
        values = [motion_task.dt, motion_task.steps, motion_task.every, motion_task.first_step, motion_task.t0]
        assert values == [0.5, 4, 2, 3, 0.0]
        assert [type(value) for value in values] == [float, int, int, int, float]
        grid = Grid(dt=Fraction(1, 4), steps=1, t0=np.float64(2.0))
        assert vars(grid) == {"dt": 0.25, "steps": 1, "every": 1, "first_step": 0, "t0": 2.0}
        assert type(Grid(dt=1, steps=1).dt) is float

    @pytest.mark.parametrize("t0", [np.nan, np.inf, "a", None, True, 10**400], ids=str)
    def test_a_first_time_that_is_none(self, t0: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="t0 must be a finite time in s, found") as refusal:
            Grid(dt=0.5, steps=6, t0=t0)
        assert refusal.value.path == "t0"

    @pytest.mark.parametrize(
        ("tau", "wrenches", "by_function", "steady"),
        [
            (None, None, False, True),
            (SAMPLES[0], push(), False, True),
            (SAMPLES[:1], push(), False, True),
            (SAMPLES, push(), False, False),
            (None, push(FORCES), False, False),
            (lambda t, q, v: SAMPLES[0], push(), True, False),
            (None, lambda t, q, v: push(), True, False),
        ],
    )
    def test_what_is_the_same_in_every_step(self, tau: Any, wrenches: Any, by_function: bool, steady: bool) -> None:
        motion_task = task(tau=tau, wrenches=wrenches)
        assert (motion_task.by_function, motion_task.steady) == (by_function, steady)


class TestLeadingAxes:
    """The state has those of everything: states, efforts, wrenches and gravity."""

    def test_of_each_argument_alone(self) -> None:
        assert task().q.shape == (2,)
        assert task(np.ones((3, 2))).v.shape == (3, 2)
        assert task(v=np.ones((3, 2))).q.shape == (3, 2)
        assert task(tau=np.ones((3, 6, 2))).q.shape == (3, 2)
        assert task(tau=np.ones((6, 2))).q.shape == (2,)
        assert task(wrenches=push(np.ones((3, 6, 3)))).q.shape == (3, 2)
        assert task(wrenches=push(np.ones((6, 3)))).q.shape == (2,)
        assert task(gravity=np.ones((3, 3))).q.shape == (3, 2)
        assert task(gravity=np.ones(3)).q.shape == (2,)
        assert task(tau=lambda t, q, v: np.ones((3, 2))).q.shape == (3, 2)
        assert task(wrenches=lambda t, q, v: push(np.ones((3, 3)))).q.shape == (3, 2)
        motion_task = task(p0=np.ones((3, 2)), integrator="implicit_midpoint")
        assert motion_task.p is not None
        assert (motion_task.q.shape, motion_task.v.shape, motion_task.p.shape) == ((3, 2), (3, 2), (3, 2))

    def test_together(self) -> None:
        motion_task = task(np.ones((4, 1, 2)), tau=np.ones((3, 6, 2)), gravity=np.ones((5, 1, 1, 3)))
        assert (motion_task.q.shape, motion_task.v.shape) == ((5, 4, 3, 2), (5, 4, 3, 2))
        with pytest.raises(InvalidArgumentError, match=naming("q0 (4,)", "tau (3,)")):
            task(np.ones((4, 2)), tau=np.ones((3, 6, 2)))
        with pytest.raises(InvalidArgumentError, match=r"gravity \(3,\) do not broadcast"):
            task(np.ones((4, 2)), gravity=np.ones((3, 3)))

    def test_of_wrenches_those_are_named_that_have_any(self) -> None:
        wrong = push(np.ones((3, 3)), point=(1.0, 0.0, 0.0))
        for load in (lambda t, q, v: wrong, replace(wrong, force=np.ones((3, 6, 3)))):
            with pytest.raises(InvalidArgumentError) as refusal:
                task(np.ones((4, 2)), np.ones((4, 2)), wrenches=load)
            assert "wrenches[0].force (3,) do not broadcast" in str(refusal.value)
            assert "torque" not in str(refusal.value)
            assert "point" not in str(refusal.value)

    def test_positions_and_velocities_of_other_lengths(self) -> None:
        motion_task = task(np.ones(8), np.ones(7), configuration=FLOATING)
        assert (motion_task.q.shape, motion_task.v.shape) == ((8,), (7,))
        with pytest.raises(InvalidArgumentError, match=r"q0 must be \(..., 8\) numbers"):
            task(np.ones(7), np.ones(7), configuration=FLOATING)
        with pytest.raises(InvalidArgumentError, match=r"v0 must be \(..., 7\) numbers"):
            task(np.ones(8), np.ones(8), configuration=FLOATING)
        with pytest.raises(InvalidArgumentError, match=r"p0 must be \(..., 7\) numbers"):
            task(np.ones(8), np.ones(7), configuration=FLOATING, p0=np.ones(8), integrator="implicit_midpoint")


REFUSED: list[tuple[str, dict[str, Any], list[str]]] = [
    ("dt", {"dt": True}, ["dt", "True"]),
    ("dt", {"dt": "1"}, ["dt", "'1'"]),
    ("dt", {"dt": -1.0}, ["dt", "-1.0"]),
    ("dt", {"dt": np.inf}, ["dt", "inf"]),
    ("dt", {"dt": np.bool_(True)}, ["dt", "np.True_"]),
    ("dt", {"dt": 0.5 + 0j}, ["dt", "(0.5+0j)"]),
    ("dt", {"dt": np.array([0.5])}, ["dt", "[0.5])"]),
    ("steps", {"steps": True}, ["steps", "1", "True"]),
    ("steps", {"steps": np.float64(6.0)}, ["steps", "1", "np.float64(6.0)"]),
    ("every", {"every": 0}, ["every", "1", "0"]),
    ("every", {"every": 1.0}, ["every", "1", "1.0"]),
    ("first_step", {"first_step": -1}, ["first_step", "0", "-1"]),
    ("first_step", {"first_step": 1.0}, ["first_step", "0", "1.0"]),
    (
        "integrator",
        {"integrator": "adaptiv"},
        [
            "integrator",
            "rk4, semi_implicit_euler, explicit_euler, implicit_midpoint, adaptive, stick_slip",
            "'adaptiv'",
            "'adaptive'",
        ],
    ),
    ("method", {"method": "mass_matrx"}, ["method", "articulated, mass_matrix", "'mass_matrx'", "'mass_matrix'"]),
    ("q0", {"q": 3.0}, ["q0", "(..., 2)", "3.0"]),
    ("v0", {"v": [[0.0, np.nan]]}, ["v0", "nan", "[0, 1]"]),
    ("gravity", {"gravity": [0, 0, np.inf]}, ["gravity", "inf", "[2]"]),
    ("tau", {"tau": SAMPLES[:2]}, ["tau", "(2, 2)", "(2,)", "(..., 6, 2)"]),
    ("tau", {"tau": np.ones((6, 3))}, ["tau", "(6, 3)", "(2,)", "(..., 6, 2)"]),
    ("tau", {"tau": [[1.0], [1.0, 2.0]]}, ["tau", "row 1 has length 2, row 0 has length 1", "(2,)", "(..., 6, 2)"]),
    ("tau", {"tau": lambda t, q, v: 3.0}, ["(..., 2)", "3.0"]),
    ("tau", {"tau": lambda t, q, v: "up"}, ["(..., 2)", "'up'"]),
    ("wrenches", {"wrenches": 3}, ["wrenches", "3"]),
    ("wrenches", {"wrenches": lambda t, q, v: 3}, ["wrenches", "3"]),
    ("wrenches[0].point", {"wrenches": push(point=np.ones((2, 5, 3)))},
     ["wrenches[0].point", "(2, 5, 3)", "(3,)", "(..., 6, 3)"]),
]  # fmt: skip


@pytest.mark.parametrize(("path", "changes", "values"), REFUSED, ids=range(len(REFUSED)))
def test_refusals(path: str, changes: dict[str, Any], values: list[str]) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        task(**changes)
    assert (refusal.value.path, unnamed(refusal.value, *values)) == (path, [])


class TestEfforts:
    def test_samples_act_one_step_each_and_a_constant_in_all(self) -> None:
        sampled, steady, single = (HeldEfforts(TWO.names, tau, 6) for tau in (SAMPLES, SAMPLES[2], SAMPLES[2:3]))
        for k in range(6):
            np.testing.assert_array_equal(sampled.at(k, k + 1, 0.5 * k, Q, V), SAMPLES[k])
            np.testing.assert_array_equal(steady.at(k, k + 1, 0.5 * k, Q, V), SAMPLES[2])
            np.testing.assert_array_equal(single.at(k, k + 1, 0.5 * k, Q, V), SAMPLES[2])
        np.testing.assert_array_equal(HeldEfforts(TWO.names, None, 6).at(3, 4, 1.5, Q, V), [0.0, 0.0])

    def test_a_part_is_what_acts_there(self) -> None:
        """As an argument of its own, so what is constant stays as it was given, and nothing stays nothing."""
        np.testing.assert_array_equal(HeldEfforts(TWO.names, SAMPLES, 6).part(2, 3), SAMPLES[2:5])
        batch = np.stack([SAMPLES, SAMPLES + 1.0])
        np.testing.assert_array_equal(HeldEfforts(TWO.names, batch, 6).part(4, 2), batch[:, 4:6])
        np.testing.assert_array_equal(HeldEfforts(TWO.names, SAMPLES[0], 6).part(2, 3), SAMPLES[0])
        np.testing.assert_array_equal(HeldEfforts(TWO.names, SAMPLES[:1], 6).part(2, 3), SAMPLES[:1])
        assert HeldEfforts(TWO.names, None, 6).part(0, 6) is None

    def test_a_function_is_asked_once_for_the_first_step(self) -> None:
        calls: list[float] = []

        def tau(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
            calls.append(t)
            return np.array([t, 1.0])

        motion_task = task(tau=tau, first_step=4)
        assert calls == [2.0]
        np.testing.assert_array_equal(motion_task.efforts.at(0, 5, 2.0, motion_task.q, motion_task.v), [2.0, 1.0])
        assert calls == [2.0]
        np.testing.assert_array_equal(motion_task.efforts.at(1, 6, 2.5, motion_task.q, motion_task.v), [2.5, 1.0])
        assert calls == [2.0, 2.5]

    def test_a_function_keeps_the_leading_axes_that_it_began_with(self) -> None:
        shapes = iter([(3, 2), (2,), (3, 2), (2, 2)])
        motion_task = task(tau=lambda t, q, v: np.ones(next(shapes)))
        for k in range(3):
            assert (
                motion_task.efforts.at(k, k + 1, 0.0, motion_task.q, motion_task.v).shape == [(3, 2), (2,), (3, 2)][k]
            )
        with pytest.raises(InvalidArgumentError, match=naming("(3,)", "tau(t, q, v) (2,)")):
            motion_task.efforts.at(3, 4, 0.0, motion_task.q, motion_task.v)

    @pytest.mark.parametrize(
        ("value", "joint"),
        [([0.0, np.nan], "slide"), ([np.inf, np.nan], "hinge"), ([[0.0, 1.0], [0.0, np.nan]], "slide")],
    )
    def test_a_value_that_is_not_finite_is_told_with_step_time_and_joint(self, value: Any, joint: str) -> None:
        with pytest.raises(FailedPreconditionError) as refusal:
            task(tau=lambda t, q, v: value, first_step=4)
        assert unnamed(refusal.value, "step 5", "t = 2 s", "effort", f"'{joint}'") == []


class TestLoads:
    def test_samples_act_one_step_each_and_the_rest_in_all(self) -> None:
        sampled = Loads([push(FORCES, point=(7.0, 8.0, 9.0)), push()], 6)
        for k in range(6):
            first, second = sampled.at(k, k + 1, 0.0, Q, V) or []
            np.testing.assert_array_equal(first.force, FORCES[k])
            np.testing.assert_array_equal(first.point, [7.0, 8.0, 9.0])
            np.testing.assert_array_equal(second.force, [1.0, 2.0, 3.0])
            assert (first.link, first.frame) == ("hand", "world")
        (steady,) = Loads(push(frame="hand"), 6).at(3, 4, 0.0, Q, V) or []
        assert (list(steady.force), steady.frame) == ([1.0, 2.0, 3.0], "hand")
        assert Loads(None, 6).at(0, 1, 0.0, Q, V) is None
        assert Loads([], 6).at(0, 1, 0.0, Q, V) == []

    def test_a_part_is_what_acts_there(self) -> None:
        assert Loads(None, 6).part(0, 6) is None
        (wrench,) = Loads(push(FORCES, torque=FORCES[:1]), 6).part(2, 3) or []
        np.testing.assert_array_equal(wrench.force, FORCES[2:5])
        np.testing.assert_array_equal(wrench.torque, FORCES[:1])
        np.testing.assert_array_equal(wrench.point, np.zeros(3))
        (batch,) = Loads(push(np.stack([FORCES, -FORCES])), 6).part(4, 2) or []
        np.testing.assert_array_equal(batch.force, np.stack([FORCES[4:], -FORCES[4:]]))

    def test_a_function_is_asked_once_for_the_first_step(self) -> None:
        calls: list[float] = []

        def wrenches(t: float, q: np.ndarray, v: np.ndarray) -> Wrench | None:
            calls.append(t)
            return None if t > 2.0 else push([t, 0.0, 0.0])

        motion_task = task(wrenches=wrenches, first_step=4)
        assert calls == [2.0]
        (first,) = motion_task.wrenches.at(0, 5, 2.0, motion_task.q, motion_task.v) or []
        assert list(first.force) == [2.0, 0.0, 0.0]
        assert calls == [2.0]
        assert motion_task.wrenches.at(1, 6, 2.5, motion_task.q, motion_task.v) == []
        assert calls == [2.0, 2.5]

    def test_a_function_keeps_the_leading_axes_that_it_began_with(self) -> None:
        forces = iter([np.ones(3), np.ones((2, 3))])
        motion_task = task(wrenches=lambda t, q, v: push(next(forces)))
        motion_task.wrenches.at(0, 1, 0.0, motion_task.q, motion_task.v)
        with pytest.raises(InvalidArgumentError) as refusal:
            motion_task.wrenches.at(1, 2, 0.5, motion_task.q, motion_task.v)
        assert unnamed(refusal.value, "wrenches[0].force", "(2,)", "()") == []
        assert refusal.value.path == "wrenches"

    def test_a_value_that_is_not_finite_is_told_with_step_and_time(self) -> None:
        with pytest.raises(FailedPreconditionError) as refusal:
            task(wrenches=lambda t, q, v: [push(), push(torque=[0.0, np.nan, 0.0])], first_step=4)
        message = "the simulation diverged in step 5 (t = 2 s): wrenches[1].torque is not finite"
        assert str(refusal.value) == message


def test_what_acts_at_one_moment_is_a_simulation_of_one_step() -> None:
    """Leading axes stay before the axis of steps; what has none needs none."""
    assert as_samples(None) is None
    assert as_samples(np.ones((3, 2))).shape == (3, 1, 2)
    wrenches = as_samples([push(np.ones((4, 3)), torque=np.zeros(3), point=np.zeros(3))])
    assert np.shape(wrenches[0].force) == (4, 1, 3)
    assert np.shape(wrenches[0].point) == (3,)
    assert (as_samples(np.ones(2)).shape, as_samples([])) == ((2,), [])


def moved(motion_task: Task, k: int = 0, mass: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """From the grid's time k to the next by adaptive steps, free masses on which only what is given acts."""
    stages = between(motion_task, k, motion_task.q, motion_task.v)
    try:
        stage: Stage = next(stages)
        while True:
            assert np.isfinite(stage.q).all()
            pushed = 0.0 if not stage.wrenches else np.asarray(stage.wrenches[0].force)[..., :2]
            stage = stages.send((stage.tau + pushed) / mass)
    except StopIteration as done:
        state: tuple[np.ndarray, np.ndarray] = done.value
        return state


class TestBetween:
    """Adaptive steps from one time of the grid to the next; those of a polynomial are exact up to rounding."""

    def test_from_rest_at_zero(self) -> None:
        q, v = moved(task([0.0, 0.0], [0.0, 0.0], [2.0, 0.0]))
        np.testing.assert_allclose(q, [0.25, 0.0], rtol=0, atol=1e-15)
        np.testing.assert_allclose(v, [1.0, 0.0], rtol=0, atol=1e-15)

    def test_samples_and_functions_of_time_act_where_they_should(self) -> None:
        q, v = moved(task([0.0, 0.0], [0.0, 0.0], SAMPLES, wrenches=push(FORCES)), k=2)
        np.testing.assert_allclose(v, 0.5 * (SAMPLES[2] + FORCES[2, :2]), rtol=1e-15)
        np.testing.assert_allclose(q, 0.125 * (SAMPLES[2] + FORCES[2, :2]), rtol=1e-15)
        # Of step 7 in the whole, which begins at 3 s: its integral is (3.5^2 - 3^2) / 2.
        motion_task = task([0.0, 0.0], [0.0, 0.0], lambda t, q, v: np.array([t, 0.0]), first_step=5)
        _, v = moved(motion_task, k=1)
        np.testing.assert_allclose(v, [0.5 * (3.5**2 - 3.0**2), 0.0], rtol=1e-14)

    def test_efforts_that_end_the_motion_are_named(self) -> None:
        def tau(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
            return np.array([0.0, np.nan if t > 2.6 else 0.0])

        motion_task = task(tau=tau, first_step=4)
        moved(motion_task, k=0)
        with pytest.raises(FailedPreconditionError, match=naming("step 6", "effort", "'slide'")):
            moved(motion_task, k=1)

    @pytest.mark.parametrize(("push", "dt"), [(1.5e308, 1.0), (0.0, 100.0)])
    def test_functions_see_no_state_of_which_a_part_is_not_finite(self, push: float, dt: float) -> None:
        """The slide overflows, in velocity or in position first, while the hinge is at rest."""

        def tau(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
            assert np.isfinite(q).all()
            assert np.isfinite(v).all()
            return np.array([0.0, push])

        motion_task = task([0.0, 0.0], [0.0, 1e308], tau, dt=dt)
        with np.errstate(all="ignore"), pytest.raises(FailedPreconditionError, match="the state of joint 'slide' is"):
            moved(motion_task)

    def test_accelerations_that_are_none_end_it_in_words(self) -> None:
        """The joint that is fastest as the step begins, and the end of that step of the whole motion."""
        motion_task = task(v=[3.0, -4.0], first_step=4)
        with pytest.raises(FailedPreconditionError) as refusal:
            moved(motion_task, k=1, mass=np.nan)
        assert unnamed(refusal.value, "step 6", "t = 3 s", "'slide'", "dt = 0.5 s") == []

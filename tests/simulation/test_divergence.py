"""Motions that leave the finite numbers, by themselves: when they are looked at, and which step and joint is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dyn_service.api.arrays import all_finite
from dyn_service.errors import FailedPreconditionError
from dyn_service.model.configuration import Configuration
from dyn_service.simulation.divergence import diverged, no_longer_finite
from dyn_service.simulation.finite_check import FiniteCheck
from dyn_service.simulation.task import checked
from tests.phrases import unnamed
from tests.trees import configuration

TWO = configuration(["hinge", "slide"], ["revolute", "prismatic"])
FLOATING = configuration(["root", "slide"], ["floating", "prismatic"])
FINE = np.ones(2)


def told(finite: Any, v: Any, a: Any, *, configuration: Configuration = TWO, dt: float = 0.5) -> str:
    last_finite = (np.zeros(configuration.nq), np.asarray(v, dtype=float), np.asarray(a, dtype=float))
    return str(no_longer_finite(configuration, 7, 3.5, dt, last_finite, np.array(finite)))


def test_a_motion_that_diverged_is_told_with_step_and_time() -> None:
    error = diverged(12, 0.25, "it flew away")
    assert str(error) == "the simulation diverged in step 12 (t = 0.25 s): it flew away"
    assert error.code == "FAILED_PRECONDITION"


class TestWhichJoint:
    def test_the_whole_sentence(self) -> None:
        assert unnamed(told([False, True], [0, 0], [0, 0]), "step 7", "t = 3.5 s", "'hinge'", "dt = 0.5 s") == []

    @pytest.mark.parametrize(
        ("finite", "v", "a", "joint"),
        [
            ([False, False], [1, -2], [0, 0], "slide"),
            ([False, False], [-3, 2], [0, 0], "hinge"),
            ([False, True], [1, -2], [0, 0], "hinge"),  # what is still finite is not to blame
            ([True, False], [3, 0], [0, 0], "slide"),
            ([False, False], [3, 2], [0, -4], "slide"),  # 2 + 0.5 * 4: what it gains in the step counts
            ([False, False], [3, 2], [0, 1.5], "hinge"),  # 2 + 0.5 * 1.5
            ([False, False], [3, 2], [0, np.nan], "hinge"),  # what it gains is not known
            ([False, False], [2, 3], [np.inf, 0], "slide"),
        ],
    )
    def test_it_is_the_fastest_of_those_that_are_not_finite(self, finite: Any, v: Any, a: Any, joint: str) -> None:
        assert f"the state of joint '{joint}' is no longer" in told(finite, v, a)

    def test_a_joint_of_several_entries_is_one_joint(self) -> None:
        wild = [False] * 6 + [True]
        assert "of joint 'root' is" in told(wild, np.ones(7), np.zeros(7), configuration=FLOATING)

    def test_of_a_batch_the_first_member_that_is_not_finite(self) -> None:
        """By its own speeds; velocities that all members share are those of each."""
        finite = np.ones((2, 3, 2), dtype=bool)
        finite[1, 0] = finite[1, 2] = False
        v, a = np.zeros((2, 3, 2)), np.zeros((2, 3, 2))
        v[0, 0, 0] = v[1, 2, 0] = 9.0
        v[1, 0, 1] = 1.0
        assert unnamed(told(finite, v, a), "'slide'", "[1, 0]") == []
        assert unnamed(told(finite, [2.0, 1.0], [0.0, 0.0]), "'hinge'", "[1, 0]") == []


class Watched:
    """A watch, and what it asks for: the step and the state it began with."""

    def __init__(self, last: int, *, size: int = 4, every_step: bool = False, first_step: int = 0) -> None:
        self.asked: list[tuple[int, list[float], list[float]]] = []
        self.shares: list[float] = []
        start = np.zeros((size // 2, 2) if size > 2 else 2)
        tau = (lambda t, q, v: np.zeros(2)) if every_step else None
        task = checked(TWO, start, start, tau, dt=0.5, steps=last, first_step=first_step)
        self.check = FiniteCheck(task, self.state(0), self.state(0), self.motion, self.shares.append)

    def motion(self, k: int, q: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.asked.append((k, q.tolist(), x.tolist()))
        return np.array([1.0, 2.0]), np.array([4.0, 0.0])

    @staticmethod
    def state(k: int) -> np.ndarray:
        return np.full(2, float(k))

    def run(self, last: int, *, wild: int | None = None, of_q: bool = True) -> int | None:
        """The step at which it tells; from `wild` on the state is not finite."""
        for k in range(1, last + 1):
            bad = np.full(2, np.nan) if wild is not None and k >= wild else self.state(k)
            try:
                self.check.step(k, *((bad, self.state(k)) if of_q else (self.state(k), bad)))
            except FailedPreconditionError as error:
                self.error = str(error)
                return k
        return None


class TestWhen:
    def test_a_small_state_is_looked_at_now_and_then_and_at_the_end(self) -> None:
        watcher = Watched(100)
        assert watcher.run(100) is None
        assert watcher.shares == [0.32, 0.64, 0.96, 1.0]
        assert watcher.asked == []

    @pytest.mark.parametrize(("size", "every_step"), [(4, True), (4098, False)])
    def test_a_large_one_and_one_that_a_function_sees_at_every_step(self, size: int, every_step: bool) -> None:
        watcher = Watched(5, size=size, every_step=every_step)
        assert watcher.run(5) is None
        assert watcher.shares == [0.2, 0.4, 0.6, 0.8, 1.0]
        assert Watched(5, size=size, every_step=every_step).run(5, wild=2) == 2

    def test_states_before_the_last_look_are_not_kept(self) -> None:
        """However long the motion: what is kept is the state at the last look, and those since."""
        watcher = Watched(1000)
        for k in range(1, 1001):
            watcher.check.step(k, FINE, FINE)
            assert len(watcher.check._states) == (k % 32 + 1 if k < 1000 else 1)

    def test_up_to_4096_numbers_are_small(self) -> None:
        watcher = Watched(5, size=4096)
        watcher.run(5)
        assert watcher.shares == [1.0]

    def test_nobody_needs_to_be_told(self) -> None:
        task = checked(TWO, FINE, FINE, None, dt=0.5, steps=1)
        check = FiniteCheck(task, FINE, FINE, lambda k, q, x: (q, x), None)
        check.step(1, FINE, FINE)
        with pytest.raises(FailedPreconditionError):
            check.step(1, FINE * np.nan, FINE)


class TestWhichStep:
    @pytest.mark.parametrize("of_q", [True, False])
    @pytest.mark.parametrize(
        ("wild", "noticed"), [(1, 32), (2, 32), (31, 32), (32, 32), (33, 64), (40, 64), (97, 100), (100, 100)]
    )
    def test_the_first_one_is_found_among_those_since_the_last_look(self, wild: int, noticed: int, of_q: bool) -> None:
        watcher = Watched(100, first_step=500)
        assert watcher.run(100, wild=wild, of_q=of_q) == noticed
        number = 500 + wild
        # 1 + 0.5 * 4 is more than 2: the hinge is the fastest.
        assert unnamed(watcher.error, f"step {number}", f"t = {0.5 * number:g} s", "'hinge'", "dt = 0.5 s") == []
        state_before = watcher.state(wild - 1).tolist()
        assert watcher.asked == [(wild - 1, state_before, state_before)], "the motion as that step began"


@pytest.mark.parametrize("size", [3, 40])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_is_found_in_any_array(size: int, value: float) -> None:
    """Small vectors are checked in another way than large ones; squares and sums of 1e200 would overflow."""
    for shape in ((size,), (2, size)):
        array = np.full(shape, 1e200)
        assert all_finite(array)
        array[..., -1] = value
        assert not all_finite(array)
    assert all_finite(np.empty((0, size)))

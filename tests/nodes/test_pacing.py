"""The paced clock, on a clock of its own: no test here depends on how busy the machine is."""

import pytest

from dyn_service.errors import InvalidArgumentError
from dyn_service.nodes.pacing import Pacer


class FakeClock:
    """A clock that only sleeping moves on, and a sleep that may come back early."""

    def __init__(self, *, early_ns: int = 0) -> None:
        self.ns = 5_000
        self.sleeps = 0
        self._early_ns = early_ns

    def now(self) -> int:
        return self.ns

    def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        self.ns += max(1, round(seconds * 1e9) - self._early_ns)
        self._early_ns = 0


def pacer(clock: FakeClock) -> Pacer:
    return Pacer(0.001, clock.now, clock.sleep)


def test_deadlines_are_absolute() -> None:
    clock = FakeClock()
    pace = pacer(clock)
    for k in range(1, 6):
        clock.ns += 300_000 * (k % 3)  # work of 0, 0.3 or 0.6 ms
        assert pace.wait() == 1
        assert clock.ns == 5_000 + k * 1_000_000
        assert pace.late_s == 0.0
    assert (pace.overruns, pace.skipped) == (0, 0)


def test_an_overrun_skips_periods_and_comes_back_into_step() -> None:
    clock = FakeClock()
    pace = pacer(clock)
    assert pace.wait() == 1
    clock.ns += 3_400_000
    assert pace.wait() == 3  # at 4.4 ms: the deadlines at 2, 3 and 4 ms have passed
    assert pace.late_s == pytest.approx(2.4e-3)
    assert (pace.overruns, pace.skipped) == (1, 2)
    assert pace.wait() == 1  # no burst: the next deadline is the one ahead
    assert clock.ns == 5_000 + 5_000_000


def test_a_sleep_that_ends_early_is_continued() -> None:
    clock = FakeClock(early_ns=400_000)
    pace = pacer(clock)
    assert pace.wait() == 1
    assert clock.sleeps == 2
    assert clock.ns == 5_000 + 1_000_000


def test_period_must_be_positive() -> None:
    with pytest.raises(InvalidArgumentError, match=r"period_s is 0\.0: expected a positive number of seconds"):
        Pacer(0.0)

"""The paced clock, on a clock of its own: no test here depends on how busy the machine is."""

import numpy as np
import pytest
import zmq

from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.middleware.pacing import Lateness, Pacer, readable
from tests.phrases import naming


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
    with pytest.raises(InvalidArgumentError, match=naming("period_s", "0.0")):
        Pacer(0.0)


def test_lateness_of_a_whole_run_within_its_bins() -> None:
    late_us = np.random.default_rng(0).lognormal(np.log(40.0), 1.0, 20_000)
    lateness = Lateness()
    for count, late in enumerate(late_us):
        lateness.add(1e-6 * late)
        if count % 500 == 0:  # folded now and then, as the plant's statistics are
            lateness.microseconds()
    microseconds = lateness.microseconds()
    for name, percent in (("late_p50_us", 50), ("late_p99_us", 99), ("late_p99_9_us", 99.9)):
        true = np.percentile(late_us, percent, method="inverted_cdf")
        assert (
            true * (1 - 1e-9) <= microseconds[name] <= 1.02 * true
        )  # the upper edge of its bin, and those are 2 % apart
    assert microseconds["late_max_us"] == pytest.approx(late_us.max(), rel=1e-12)  # s and back
    assert lateness.microseconds() == microseconds  # a second look changes nothing


def test_lateness_of_no_period_and_of_endless_ones() -> None:
    lateness = Lateness()
    assert set(lateness.microseconds().values()) == {0.0}
    lateness.add(0.0)
    assert set(lateness.microseconds().values()) == {0.0}
    lateness.add(3600.0)
    assert lateness.microseconds()["late_max_us"] == 3.6e9
    assert lateness.microseconds()["late_p99_us"] == pytest.approx(1e7)  # beyond 10 s they are counted, not told apart


@pytest.mark.parametrize("busy_poll_s", [0.0, 0.01])
def test_a_message_is_there_or_not_however_it_is_waited_for(busy_poll_s: float) -> None:
    with zmq.Context() as context, context.socket(zmq.PAIR) as sender, context.socket(zmq.PAIR) as other:
        sender.bind("inproc://one")
        other.connect("inproc://one")
        assert not readable(sender, 0, busy_poll_s)
        other.send(b"x")
        assert readable(sender, 0, busy_poll_s)  # on inproc what was sent is there
        assert readable(sender, 0, 1e9)  # and nobody waits for longer than it takes

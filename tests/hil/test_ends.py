"""Nodes that end or never answer: no assertion holds, and the cause is in its message."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dyn_service.cli.new import new_package
from dyn_service.errors import DeadlineExceededError, InvalidArgumentError
from dyn_service.hil import Delay, Killed, Loss
from dyn_service.hil.bench import PlantHandle, RobotCache, Run, Setup, open_bench, run_for
from dyn_service.hil.checks import Check
from dyn_service.hil.faults import Fault
from dyn_service.hil.signals import Change, End, Record
from tests.hil.records import BEGUN, record
from tests.hil.test_checks import refused
from tests.hil.test_planted_bugs import CHECKS, LAW
from tests.phrases import unnamed

NAME = "ending"
WAITS = """        import sys, time
        while state.t > 0.1 and not getattr(sys, "over", False):
            try:
                time.sleep(0.01)
            except Exception:
                pass
"""


@pytest.fixture(scope="module")
def cache() -> RobotCache:
    return RobotCache()


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Callable[..., Setup]]:
    """(lines, rearm) -> a controller with these lines before the last of its update."""
    new_package("controller", NAME, tmp_path, "double_pendulum")
    top = tmp_path / NAME / NAME
    source = (top / "controller.py").read_text("utf-8")

    def make(lines: str, *, rearm: bool = True) -> Setup:
        (top / "controller.py").write_text(source.replace(LAW, lines + LAW), "utf-8")
        return Setup(
            str(top / "launch" / f"{NAME}.launch.yaml"), {"rearm": str(rearm).lower()}, {}, {"state_timeout_s": 0.1}
        )

    yield make
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]


def run(setup: Setup, cache: RobotCache, seconds: float, *faults: Fault, mode: str = "lockstep") -> Run:
    return run_for(open_bench(mode, setup, cache, faults, 0, wall_limit_s=120.0), seconds, mode, 0, faults)


def test_a_law_that_fails_at_once_passes_no_assertion(setup: Callable[..., Setup], cache: RobotCache) -> None:
    done = run(setup("        undefined\n"), cache, 0.5)
    for name, assertion in CHECKS.items():
        if name.startswith("overshoot"):  # of a joint of another robot
            continue
        with pytest.raises((AssertionError, InvalidArgumentError)) as error:
            assertion(done.check)
        if not name.startswith("commanded"):  # nothing was commanded: that is no measure
            assert "NameError: name 'undefined' is not defined (controller.py, line 48), at 0 s" in str(error.value)
            assert "ask for less" not in str(error.value)  # which would not help
    assert "judged on 0 of 0.5 s only: the plant was never under command" in refused(
        done.check.velocity().within_limits
    )
    assert done.check.notes.ended == [f"{done.ended}, at 0 s"]


def test_an_end_that_the_test_expects(setup: Callable[..., Setup], cache: RobotCache) -> None:
    done = run(setup("        if state.t > 0.2:\n            raise ValueError('over')\n"), cache, 0.5)
    text = refused(done.check.ends, "KeyError")
    assert unnamed(text, "ValueError: over (controller.py, line 49)", "expected 'KeyError'") == []
    refused(done.check.effort().within_limits)
    done.check.ends("ValueError: over")
    done.check.effort().within_limits()  # until it ended
    done.check.stops().at_most(0)
    assert done.check.notes.ended == []
    fine = run(setup(""), cache, 0.2)
    assert "no node ended by itself; expected 'over'" in refused(fine.check.ends, "over")


@pytest.mark.parametrize(
    ("faults", "lines", "ended_count"),
    [
        ([Loss(1.0, from_s=0.2)], "", 0),  # the plant is stopped, and the controller may not arm it again
        ([Loss(1.0, from_s=0.2, channel="states")], "", 0),
        ([Killed(from_s=0.2)], "", 0),
        ([Delay(0.001, from_s=0.1)], "        if state.t > 0.3:\n            1 / 0\n", 1),  # a fault explains no error
        ([Loss(1.0, from_s=0.4)], "        if state.t > 0.3:\n            raise SystemExit\n", 1),
    ],
)
def test_an_injected_fault_explains_what_it_causes_and_no_error_of_the_law(
    setup: Callable[..., Setup], cache: RobotCache, faults: list[Fault], lines: str, ended_count: int
) -> None:
    done = run(setup(lines, rearm=False), cache, 0.9, *faults)
    assert done.ended
    assert len(done.check.notes.ended) == ended_count
    assert "judged on" in refused(done.check.velocity().within_limits)  # stopped for most of the time
    if not ended_count:
        done.check.velocity(until_s=0.2).within_limits()
        done.check.covering(0.1).velocity().within_limits()
    else:
        text = refused(done.check.covering(0.0).velocity().within_limits)
        assert unnamed(text, "SystemExit" if "Exit" in lines else "ZeroDivisionError", "(controller.py, line 49)") == []


def test_a_fault_that_has_not_begun_explains_nothing(setup: Callable[..., Setup], cache: RobotCache) -> None:
    runaway = "        if state.t > 0.2:\n            pull = pull + 1e4\n"
    done = run(setup(runaway, rearm=False), cache, 0.6, Loss(0.1, from_s=0.5))
    assert (
        unnamed(
            done.check.notes.ended,
            "the plant stopped (velocity: joint_2 would reach",
            "98 % of its limit, 50",
            "rearm is off",
        )
        == []
    )


def test_a_law_that_never_returns_fails_its_test_with_its_line(setup: Callable[..., Setup], cache: RobotCache) -> None:
    """It catches every exception: no exception could end it."""
    run(setup(WAITS), cache, 0.05)  # compiles: the limit is for what follows
    bench = open_bench("lockstep", setup(WAITS), cache, [], 0, wall_limit_s=2.0)
    handle = PlantHandle(bench)
    try:
        with pytest.raises(DeadlineExceededError) as error:
            bench.run_until(0.5)
    finally:
        sys.over = True
    try:
        text = str(error.value)
        assert (
            unnamed(text, "after 2 s", re.compile(r"the plant's time is 0\.(09|1)"), "not 0.5 s", "--hil-wall-limit")
            == []
        )
        assert "the law is at controller.py, line 51" in text
        # the run does not go on when the law returns later
        assert "judged on" in refused(handle.check.stops().at_most, 0)
    finally:
        del sys.over


def test_a_law_that_is_slow_within_the_wall_limit_passes(setup: Callable[..., Setup], cache: RobotCache) -> None:
    done = run(setup("        __import__('time').sleep(0.001)\n"), cache, 0.2)
    done.check.stops().at_most(0)


def test_time_that_was_asked_for_and_is_not_in_the_record() -> None:
    """A record of 1 s of a run that was to take 2 s."""
    short = replace(record(), asked_s=2.0)
    assert "judged on 0.801 of 1.8 s only: the record ends at 1.001 s" in refused(Check(short).effort().below, 1.0)
    Check(short).effort(until_s=1.0).below(1.0)
    Check(short).covering(0.44).effort().below(1.0)
    refused(Check(short).covering(0.46).effort().below, 1.0)
    for share in (-0.1, 1.1, np.nan):
        with pytest.raises(InvalidArgumentError, match="expected a share, 0 to 1"):
            Check(short).covering(share)


def test_time_under_command_by_windows() -> None:
    stopped = (
        *BEGUN,
        Change(0.6, "stopped", "missed", "no command"),
        Change(0.7, "arming", ""),
        Change(0.7, "active", ""),
    )
    check = Check(record(changes=stopped))
    text = refused(check.velocity().below, 1.0)
    assert "velocity: judged on 0.701 of 0.801 s only: from 0.6 s the plant is stopped (missed): no command" in text
    check.velocity(until_s=0.6).below(1.0)
    check.velocity(from_s=0.7).below(1.0)
    check.covering(0.85).velocity().below(1.0)
    refused(check.covering(0.9).velocity().below, 1.0)
    assert "first under command at 0.2 s" in refused(check.velocity(from_s=0.05, until_s=0.5).below, 1.0)
    fast = Check(record(changes=stopped, velocity=lambda t: np.where((t > 0.62) & (t < 0.65), 9.0, 0.0)))
    fast.covering(0.8).velocity().below(1.0)  # while it is under command
    assert "velocity 9 rad/s" in refused(fast.velocity().below, 1.0)


def test_ends_and_reasons_are_kept(tmp_path: Path) -> None:
    changes = (*BEGUN, Change(0.6, "stopped", "velocity", "elbow reaches 3 rad/s, its limit is 2 rad/s"))
    ends = (End(0.6, "controller: over"), End(0.7, "server: gone", True))
    full = replace(record(changes=changes), ends=ends, asked_s=1.5)
    full.save(tmp_path / "a.npz")
    read = Record.load(tmp_path / "a.npz")
    assert (read.changes, read.ends, read.asked_s) == (changes, ends, 1.5)
    text = refused(Check(read).tracking().below, 1.0)
    assert (
        unnamed(text, "controller: over, at 0.6 s", "stopped (velocity): elbow reaches 3 rad/s", "0.4 of 1.3 s") == []
    )
    assert "server" not in text


def test_a_failed_assertion_repeats_what_the_nodes_warned_of() -> None:
    slow, stop = (
        "arm: WARNING an update of the law takes 31 ms of its 5 ms",
        "plant: WARNING the robot is stopped: missed",
    )
    notes = ((0.3, slow), (0.4, stop), (0.5, slow), (0.6, "arm is ready again"))
    check = Check(replace(record(), notes=notes))
    assert refused(check.delay().below, 1e-9).endswith(f"; judged on 0.801 of 0.801 s; {slow}")
    check.effort().below(1.0)
    assert "WARNING" not in check.verdicts[-1].sentence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("undefined", r"ending exited with status 1: ERROR /ending: law .* \(controller.py, line 50\)"),
        ("__import__('os')._exit(0)", "ending exited with status 0"),
        ("__import__('os').kill(__import__('os').getpid(), 9)", "ending was killed by SIGKILL"),
    ],
)
def test_a_process_that_ends_is_no_green_run(setup: Callable[..., Setup], line: str, why: str) -> None:
    lines = f"        self.count = getattr(self, 'count', 0) + 1\n        if self.count > 100:\n            {line}\n"
    done = run(setup(lines), RobotCache(), 3.0, mode="real_time")
    assert len(done.check.notes.ended) == 1
    assert done.record.t[-1] < 3.0
    for assertion in (done.check.stops().at_most, done.check.covering(0.0).velocity().below):
        with pytest.raises(AssertionError, match=why):
            assertion(1e9)

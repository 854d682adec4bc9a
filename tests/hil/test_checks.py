"""Every assertion on signals, held and broken, by value: when, by how much, in which words."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from dyn_service.api import arrays
from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.report.verdicts import PlantBounds
from dyn_service.hil.checks import Check, Notes, format_number
from dyn_service.hil.signals import Change, Record, Signal
from tests.hil.records import BEGUN, record
from tests.phrases import naming, unnamed


def refused(assertion, *args, **kwargs) -> str:
    """What the assertion says, which has to fail."""
    with pytest.raises(AssertionError) as failure:
        assertion(*args, **kwargs)
    return str(failure.value)


def bump(t: np.ndarray) -> np.ndarray:
    """A triangle of height 4e-3 at 0.6 s, 0.1 s to each side."""
    return 4e-3 * np.clip(1.0 - np.abs(t - 0.6) / 0.1, 0.0, None)


def test_tracking_says_when_and_by_how_much() -> None:
    check = Check(record(error=bump))
    check.tracking().below(4.001e-3)
    check.tracking("elbow").below(1e-9)
    assert (
        unnamed(
            refused(check.tracking("shoulder").below, 0.001),
            "shoulder",
            "tracking error 4e-3 rad",
            "0.6 s",
            "1e-3 rad",
            "0.525 s",
            "18.7 %",
        )
        == []
    )
    assert [verdict.passed for verdict in check.verdicts] == [True, True, False]
    worst = check.verdicts[-1]
    assert (worst.subject, worst.unit, worst.upper, worst.lower) == ("shoulder", "rad", 1e-3, -1e-3)
    assert worst.value == pytest.approx(4e-3)


def test_negative_errors_count_as_much() -> None:
    check = Check(record(error=lambda t: -bump(t)))
    check.tracking().at_most(4.001e-3)
    assert "tracking error 4e-3 rad at 0.6 s" in refused(check.tracking().at_most, 1e-3)


def test_below_leaves_the_limit_out_and_at_most_takes_it_in() -> None:
    check = Check(record(effort=lambda t: np.full_like(t, 2.0)))
    check.effort("shoulder").at_most(2.0)
    refused(check.effort("shoulder").below, 2.0)


def test_a_number_just_beyond_its_limit_does_not_read_as_the_limit() -> None:
    effort = Check(record(effort=lambda t: np.full_like(t, 2.0000001))).effort("shoulder")
    assert unnamed(refused(effort.at_most, 2.0), "effort 2.0000001 N m", "0 s", "2 N m") == []
    assert "rms of effort 2.0000001 N m, allowed" in refused(effort.rms.at_most, 2.0)
    at_it = Check(record(effort=lambda t: np.full_like(t, 2.0))).effort("shoulder")
    assert "effort 2 N m at 0 s, allowed below 2 N m" in refused(at_it.below, 2.0)


def test_windows() -> None:
    check = Check(record(error=bump))
    check.tracking(until_s=0.5).below(1e-9)
    check.tracking(from_s=0.71).below(1e-9)
    refused(check.tracking(from_s=0.5, until_s=0.61).below, 3.9e-3)
    assert "nothing was recorded" in refused(check.tracking(from_s=5.0).below, 1.0)


def test_all_joints_that_fail_are_named() -> None:
    errors = np.stack([bump(np.arange(1001) * 1e-3), 2.0 * bump(np.arange(1001) * 1e-3)], axis=1)
    text = refused(Check(record(error=errors)).tracking().below, 1e-3)
    assert text.startswith("elbow: tracking error 8e-3 rad at 0.6 s")
    assert text.endswith("; so is shoulder; judged on 0.801 of 0.801 s")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_never_passes(bad: float) -> None:
    def one_bad(t: np.ndarray) -> np.ndarray:
        values = np.zeros_like(t)
        values[700] = bad
        return values

    check = Check(record(error=one_bad, position=one_bad, velocity=one_bad, effort=one_bad))
    assert "tracking error is no number at 0.7 s (1 of 801 samples)" in refused(check.tracking().below, 1e9)
    refused(check.tracking().rms.below, 1e9)
    refused(check.tracking().percentile(50.0).below, 1e9)
    refused(check.position().within_limits)
    refused(check.velocity().at_most, np.inf)
    refused(check.effort().rate.below, 1e9)
    refused(check.power().below, 1e9)
    refused(check.energy().at_most, 1e9)
    refused(check.frozen().below, 1e9)
    refused(check.overshoot("shoulder", to=np.copysign(1.0, bad)).below, 1e9)
    refused(check.tracking().below, np.nan)


def test_what_is_empty_never_passes() -> None:
    no_values = np.empty((0, 2))
    kinds = ("position", "velocity", "effort", "reference", "reference_velocity", "error")
    empty = record(count=0, answers=(np.empty(0), np.empty(0)), **dict.fromkeys(kinds, no_values))
    check = Check(empty)
    for measure in (
        check.tracking(), check.position(), check.velocity(), check.effort(), check.power(), check.delay(),
        check.jitter(), check.tracking().rms, check.energy(), check.settling(band=1.0), check.overshoot("elbow"),
        check.deadlines(), check.safe_stop(0.0), check.under_command(), check.stops(), check.frozen(),
        check.effort().rate, check.delay().percentile(99.0),
    ):  # fmt: skip
        refused(measure.at_most, 1e9)
    assert not any(verdict.passed for verdict in check.verdicts)


def test_a_plant_that_stops_tracks_nothing() -> None:
    def until_it_stops(t: np.ndarray) -> np.ndarray:
        return np.where((t > 0.2) & (t < 0.6), 0.0, np.nan)

    stopped = (*BEGUN, Change(0.6, "stopped", "missed"))
    check = Check(record(error=until_it_stops, changes=stopped))
    text = refused(check.tracking("shoulder", from_s=0.3).below, 1.0)
    assert unnamed(text, "shoulder", "tracking error", "no number", "0.6 s", "401 of 701", "missed", "1 rad") == []
    assert "not at 0.6 s: the plant is stopped (missed)" in refused(check.tracking("shoulder", from_s=0.3).rms.below, 1)
    braked_only = Check(record(changes=(Change(0.0, "braked", "start"),)))
    assert "nothing was recorded" in refused(braked_only.tracking().below, 1.0)


def test_rms_and_percentiles() -> None:
    check = Check(record(error=lambda t: 3.0 * np.sin(20.0 * np.pi * (t - 0.2))))
    rms = check.tracking("shoulder").rms
    assert rms.value == pytest.approx(3.0 / np.sqrt(2.0), rel=1e-3)  # eight periods without the last sample
    rms.below(2.13)
    assert unnamed(refused(rms.below, 2.0), "shoulder", "rms of tracking error 2.12 rad", "2 rad") == []
    delays = np.arange(1.0, 101.0) * 1e-3
    check = Check(record(answers=(delays + 0.3, delays)))
    check.delay().percentile(50.0).at_most(0.0506)
    assert refused(check.delay().percentile(99.0).below, 0.09).startswith("p99 of delay of a command 0.099 s")
    with pytest.raises(AssertionError, match=naming("delay of a command", "0.1 s", "0.4 s", "0.05 s")):
        check.delay().below(0.05)


def test_limits_of_the_robot() -> None:
    check = Check(record(position=lambda t: 3.0 * t, velocity=lambda t: -1.4 * t, effort=lambda t: t))
    check.position("shoulder").within_limits()
    check.position().within_limits()  # the elbow has none
    assert (
        unnamed(refused(check.position().within_limits, 0.1), "position 3 rad", "1 s", "-1.9 to 2.9 rad", "0.967 s")
        == []
    )
    check.velocity().within_limits(share=0.95)
    assert (
        unnamed(refused(check.velocity().within_limits, share=0.9), "velocity -1.4 rad/s", "1 s", "-1.35 to 1.35 rad/s")
        == []
    )
    assert "elbow: no limit in the robot's file" in refused(check.position("elbow").within_limits)
    assert "no limit in the robot's file" in refused(check.effort().within_limits)
    with pytest.raises(InvalidArgumentError, match=naming("tracking error", "`below`", "`at_most`")):
        check.tracking().within_limits()


def test_effort_its_rate_power_and_energy() -> None:
    check = Check(record(effort=lambda t: 10.0 * t, velocity=lambda t: np.full_like(t, -0.5)))
    check.effort("shoulder").below(10.1)
    check.effort("shoulder").rate.at_most(10.001)
    assert refused(check.effort("shoulder").rate.at_most, 9.0).startswith("shoulder: rate of effort 10 N m/s at ")
    check.power("shoulder").below(5.01)
    check.power(total=True).below(5.01)
    assert refused(check.power(total=True).below, 4.0).startswith("power 5 W at 1 s, allowed below 4 W")
    energy = check.energy("shoulder")
    assert energy.value == pytest.approx(2.5)  # 0.5 x 10 t integrated to 1 s
    energy.below(2.51)
    assert refused(energy.below, 2.0) == "shoulder: energy 2.5 J, allowed below 2 J; judged on 0.801 of 0.801 s"


def test_power_of_all_is_the_sum_with_its_signs_and_energy_is_of_each() -> None:
    """One joint drives with 6 W, the other brakes with 2 W."""
    tiled = lambda a, b: np.tile([a, b], (1001, 1))
    check = Check(record(effort=tiled(3.0, -4.0), velocity=tiled(2.0, 0.5)))
    check.power(total=True).at_most(4.0 + 1e-12)
    refused(check.power(total=True).at_most, 3.999)
    check.power("elbow").at_most(2.0)
    refused(check.power().at_most, 5.0)  # of each, where it is not said otherwise
    assert refused(check.power().at_most, 1.0).startswith("shoulder: power 6 W at 0 s, allowed at most 1 W")
    check.power("elbow").at_most(2.0)
    assert [(value.name, value.value) for value in check.energy().values] == [
        ("shoulder", pytest.approx(6.0)), ("elbow", pytest.approx(2.0)),
    ]  # fmt: skip
    assert check.energy("elbow").value == pytest.approx(2.0)


def test_settling() -> None:
    check = Check(record(position=lambda t: 1.0 - np.exp(-t / 0.1), error=lambda t: np.exp(-t / 0.1)))
    settling = check.settling("shoulder", to=1.0, band=0.05)
    assert settling.value == pytest.approx(0.3, abs=1e-3)  # e^-3 = 0.0498
    assert check.settling("shoulder", band=0.05).value == pytest.approx(0.3, abs=1e-3)
    assert check.settling("shoulder", to=1.0, band=0.05, from_s=0.2).value == pytest.approx(0.1, abs=1e-3)
    assert check.settling("elbow", band=0.05).value == 0.0
    settling.below(0.31)
    assert refused(settling.below, 0.25) == (
        "shoulder: settling time 0.3 s, allowed below 0.25 s; judged on 0.801 of 0.801 s"
    )
    # it swings out again at the very end
    late = Check(record(position=lambda t: np.where(t > 0.995, 0.5, 1.0)))
    assert (
        unnamed(
            refused(late.settling("shoulder", to=1.0, band=0.05).below, 5.0),
            "shoulder",
            "settling time inf s",
            "0.5 rad",
            "0.05",
            "5 s",
        )
        == []
    )


def test_settling_at_the_edges_of_the_band_and_of_the_run() -> None:
    steps = lambda t: np.where(t < 0.4, 1.0, np.where(t < 0.7, 0.25, 0.0))
    check = Check(record(position=steps))
    assert check.settling("shoulder", to=0.0, band=0.25).value == pytest.approx(0.4)  # the band's edge is inside
    assert check.settling("shoulder", to=0.0, band=0.24).value == pytest.approx(0.7)
    last = Check(record(position=lambda t: np.where(t < 0.9995, 0.0, 1.0)))  # the very last sample is outside
    assert last.settling("shoulder", to=0.0, band=0.5).value == math.inf
    last_outside = Check(record(position=lambda t: np.where(np.abs(t - 0.999) < 1e-9, 1.0, 0.0)))  # the one before it
    assert last_outside.settling("shoulder", to=0.0, band=0.5).value == pytest.approx(1.0)
    first = Check(record(position=lambda t: np.where(t < 0.0005, 1.0, 0.0)))  # the first alone
    assert first.settling("shoulder", to=0.0, band=0.5).value == pytest.approx(0.001)
    assert first.settling("shoulder", to=0.0, band=0.5, from_s=0.2005).value == 0.0  # inside all the time, from then on
    (empty,) = check.settling("shoulder", band=0.5, from_s=2.0).values
    assert (empty.name, empty.unit, empty.detail) == ("shoulder", "s", "nothing was recorded")
    assert math.isnan(empty.value)


def test_energy_needs_two_samples() -> None:
    two = {"effort": lambda t: 3.0 + 0.0 * t, "velocity": lambda t: 2.0 + 0.0 * t}
    assert Check(record(count=2, **two)).energy("shoulder").value == pytest.approx(0.006)
    assert math.isnan(Check(record(count=1, **two)).energy("shoulder").value)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_overshoot(sign: float) -> None:
    swing = lambda t: sign * (1.0 - np.exp(-5.0 * t) * np.cos(20.0 * t))
    check = Check(record(position=swing, reference=lambda t: np.full_like(t, sign)))
    t = np.linspace(0.0, 1.0, 1001)
    expected = float((-np.exp(-5.0 * t) * np.cos(20.0 * t)).max())
    for overshoot in (check.overshoot("shoulder"), check.overshoot("shoulder", to=sign)):
        assert overshoot.value == pytest.approx(expected)
        overshoot.below(0.5)
        assert unnamed(refused(overshoot.below, 0.4), "shoulder", "overshoot 0.47 rad", "0.145 s") == []
    check.overshoot("shoulder", to=1.6 * sign).at_most(0.0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_who_is_there_already_overshoots_either_way(sign: float) -> None:
    """A reference that comes back to where it began, to rounding: no side of it is the far one."""
    pushed = Check(record(position=lambda t: sign * 0.1 * np.sin(np.pi * t), reference=lambda t: 1e-16 * t))
    assert pushed.overshoot("shoulder").value == pytest.approx(0.1)
    assert pushed.overshoot("shoulder", to=0.0).value == pytest.approx(0.1)


@pytest.mark.parametrize("deadline_s", [np.nan, np.inf, 0.0, -1.0])
def test_a_deadline_by_which_nothing_is_late(deadline_s: float) -> None:
    with pytest.raises(InvalidArgumentError, match=naming("deadline_s", f"{deadline_s:g}")):
        Check(record()).deadlines(deadline_s)
    with pytest.raises(InvalidArgumentError, match=r"percentile\(101\): expected 0 to 100"):
        Check(record()).effort().percentile(101.0)


def test_overshoot_is_beyond_the_last_reference_from_where_the_joint_was_then() -> None:
    """A reference that ramps to 1 rad by 0.5 s; the joint goes to 1.3 and back, and before all dips to -0.2."""
    ramp = lambda t: np.minimum(2.0 * t, 1.0)
    way = lambda t: np.interp(t, [0.0, 0.1, 0.6, 0.8, 1.0], [0.0, -0.2, 1.3, 0.9, 1.0])
    check = Check(record(position=way, reference=ramp))
    overshoot = check.overshoot("shoulder")
    assert overshoot.value == pytest.approx(0.3)
    assert overshoot.values[0].detail == "at 0.6 s, beyond 1"
    # seen from 1.3 rad at 0.6 s the target lies below: by 0.1 rad beyond it at 0.8 s
    overshoot_later = check.overshoot("shoulder", from_s=0.6)
    assert overshoot_later.value == pytest.approx(0.1)
    assert overshoot_later.values[0].detail == "at 0.8 s, beyond 1"
    assert check.overshoot("shoulder", to=-0.1).value == pytest.approx(0.1)
    assert check.overshoot("shoulder", to=1.3).value == 0.0
    assert math.isnan(check.overshoot("shoulder", from_s=2.0).value)


def test_deadlines_count_late_and_missing_commands() -> None:
    times = 0.2 + 0.002 * np.arange(400)
    delays = np.full(400, 0.001)
    Check(record(answers=(times, delays))).deadlines().at_most(0)
    delays[[100, 200]] = 0.0025
    check = Check(record(answers=(times + delays, delays)))
    check.deadlines().at_most(2)
    check.deadlines(0.003).at_most(0)
    assert (
        unnamed(
            refused(check.deadlines().at_most, 1), "missed deadlines 2", "0.4025 s", "2e-3 s", "2.5e-3 s", "at most 1"
        )
        == []
    )
    answered_indices = np.r_[0:50, 55:400]  # five of them never came
    check = Check(record(answers=(times[answered_indices], np.full(395, 0.001))))
    assert refused(check.deadlines().at_most, 0).startswith("missed deadlines 5 (the first at 0.31 s")
    silent = Check(record(answers=(times[:300], np.full(300, 0.001))))  # and none comes any more, until 1 s
    assert refused(silent.deadlines().at_most, 0).startswith("missed deadlines 100 ")


def test_answers_that_take_one_step_or_two_are_all_in_time() -> None:
    """Between two that took effect are then up to 3 ms, though every state of the 2 ms was answered."""
    times = 0.2 + 0.002 * np.arange(400)
    delays = np.where(np.arange(400) % 3 == 0, 0.001, 0.002)
    check = Check(record(answers=(times + delays, delays)))
    check.deadlines().at_most(0)
    check.jitter().at_most(0.001 + 1e-12)
    without_one = np.arange(400) != 100
    assert Check(record(answers=((times + delays)[without_one], delays[without_one]))).deadlines().value == 1.0
    without_last = np.arange(400) != 399  # the last, where another may still be under way
    Check(record(answers=((times + delays)[without_last], delays[without_last]), count=1000)).deadlines().at_most(0)


def test_a_state_may_come_half_a_period_late_and_no_more() -> None:
    """Answered states 3 ms apart at 2 ms are all there were, to rounding; of 3.1 ms one was missed."""
    for gap, missed_count in ((0.003, 0.0), (0.003 + 1e-10, 0.0), (0.0031, 1.0), (0.005, 1.0), (0.0051, 2.0)):
        times = np.concatenate([[0.2], 0.2 + gap + 0.002 * np.arange(300), [0.9985]])
        times = np.r_[times[:-1], np.arange(times[-2] + 0.002, 1.0, 0.002)]
        check = Check(record(answers=(times + 0.001, np.full(len(times), 0.001))))
        assert check.deadlines().value == missed_count, gap


def test_a_plant_that_gets_nothing_any_more_has_a_last_gap() -> None:
    times = 0.2 + 0.002 * np.arange(100)  # to 0.398 s, and the record to 1 s
    check = Check(record(answers=(times, np.full(100, 0.001))))
    assert unnamed(refused(check.jitter().below, 0.1), "jitter", "0.6 s", "at 1 s", "0.1 s", "1 %") == []
    # one that was stopped by then was silent up to the stop alone
    stopped = (*BEGUN, Change(0.42, "stopped", "missed"))
    check = Check(record(answers=(times, np.full(100, 0.001)), changes=stopped))
    assert refused(check.jitter().below, 0.01).startswith("jitter of the commands 0.02 s at 0.42 s")
    assert check.deadlines().value == 10.0
    # taken over again: what lies between is no gap
    changes = (*stopped, Change(0.8, "arming", ""), Change(0.81, "active", ""))
    more_times = np.r_[times, 0.8 + 0.002 * np.arange(100)]
    check = Check(record(answers=(more_times, np.full(200, 0.001)), changes=changes))
    assert check.deadlines().value == 10.0
    assert check.record.running == [(0.1, 0.42), (0.8, math.inf)]


def test_jitter() -> None:
    times = 0.2 + 0.002 * np.arange(400)
    times[100] += 0.0005
    check = Check(record(answers=(times, np.full(400, 0.001))))
    check.jitter().below(6e-4)
    check.jitter().percentile(99.0).below(1e-9)
    assert refused(check.jitter().below, 4e-4).startswith("jitter of the commands 5e-4 s at 0.4")


def test_safe_stop() -> None:
    falls = lambda t: np.clip(1.0 - (t - 0.5) / 0.1, 0.0, 1.0)
    stopped = (*BEGUN, Change(0.52, "stopped", "missed"))
    check = Check(record(velocity=falls, changes=stopped))
    time = check.safe_stop(0.5)
    assert time.value == pytest.approx(0.1, abs=2e-3)  # 1e-3 rad/s is reached 0.1 ms before rest
    time.below(0.11)
    assert unnamed(refused(time.below, 0.05), "safe stop 0.1 s", "stopped (missed)", "0.05 s") == []
    assert check.safe_stop(0.52).value == pytest.approx(0.08, abs=2e-3)  # its own time is no earlier stop
    # what had stopped long before says nothing of a fault at 0.7 s
    assert "is no number (the plant had stopped before: stopped (missed))" in refused(check.safe_stop(0.7).below, 1e9)
    latched_late = Check(record(velocity=falls, changes=(*BEGUN, Change(0.8, "stopped", "missed"))))
    assert latched_late.safe_stop(0.5).value == pytest.approx(0.3)
    moving = Check(record(velocity=falls))
    assert "inf s (at the end the plant is active), allowed" in refused(moving.safe_stop(0.5).below, 1e9)
    moves = Check(record(velocity=lambda t: np.full_like(t, 0.2), changes=stopped))
    assert unnamed(refused(moves.safe_stop(0.5).below, 1e9), "stopped (missed)", "shoulder", "0.2 rad/s") == []


def test_every_joint_has_to_stand_for_a_safe_stop_to_the_very_end() -> None:
    t = 1e-3 * np.arange(1001)
    stopped = (*BEGUN, Change(0.5, "stopped", "missed"))
    speeds = np.zeros((1001, 2))
    speeds[t < 0.6, 0], speeds[t < 0.7, 1] = 0.5, -0.5
    check = Check(record(velocity=speeds, changes=stopped))
    assert check.safe_stop(0.5).value == pytest.approx(0.2)
    assert check.safe_stop(0.5, at_rest=0.5).value == pytest.approx(0.0)  # the bound itself stands
    assert check.safe_stop(0.5, at_rest=0.49).value == pytest.approx(0.2)
    speeds[-1, 1] = 0.1  # it moves again at the end
    safe_stop = Check(record(velocity=speeds, changes=stopped)).safe_stop(0.5)
    assert safe_stop.value == math.inf
    notes = Notes()
    refused(Check(record(velocity=speeds, changes=stopped), notes).safe_stop(0.5).below, 1.0)
    whole = [signal.name for signal in notes.verdicts[0].signals]
    assert whole == ["shoulder", "elbow"]  # a number of the run is of all of them
    assert unnamed(safe_stop.values[0].detail, "stopped (missed)", "elbow", "0.1 rad/s") == []
    speeds[-1], speeds[800, 0] = 0.0, 0.1  # or in between: from then on
    assert Check(record(velocity=speeds, changes=stopped)).safe_stop(0.5).value == pytest.approx(0.301)
    # what is armed again at the end has not stopped
    armed = (*stopped, Change(1.0, "active", ""))
    assert Check(record(changes=armed)).safe_stop(0.5).value == math.inf


def test_a_run_is_clean_by_the_bounds_of_a_launch() -> None:
    check = Check(record(error=bump))
    check.clean()
    assert [verdict.what for verdict in check.verdicts] == [
        "safe stops", "share under command, while not released", "tracking error", "tracking error",
    ]  # fmt: skip
    large_error = Check(record(error=lambda t: 15.0 * bump(t)))
    assert unnamed(refused(large_error.clean), "tracking error 0.06 rad", "0.6 s", "0.05 rad") == []
    small = Check(record(error=lambda t: 4.0 * bump(t), reference=lambda t: 0.02 * np.sin(9.0 * t)))
    assert "allowed at most 1e-2 rad" in refused(small.clean)  # a quarter of the way
    large_error.clean(PlantBounds(error_rad=0.07))
    stopped = Check(record(changes=(*BEGUN, Change(0.6, "stopped", "missed"))))
    assert refused(stopped.clean).startswith("safe stops 1 (missed at 0.6 s), allowed at most 0")
    assert refused(stopped.clean, PlantBounds(safe_stops=1)).startswith("share under command, while not released 0.499")
    braked_only = Check(record(changes=(Change(0.0, "braked", "start"),)))
    assert unnamed(refused(braked_only.clean), "share under command", re.compile("released 0,"), "0.99") == []


def test_stops_and_time_under_command() -> None:
    stopped = (*BEGUN, Change(0.6, "stopped", "missed"))
    good, bad = Check(record()), Check(record(changes=stopped))
    good.stops().at_most(0)
    assert refused(bad.stops().at_most, 0) == (
        "safe stops 1 (missed at 0.6 s), allowed at most 0; judged on 0.4 of 0.801 s only: from 0.6 s the plant is "
        "stopped (missed)"
    )
    good.under_command().at_least(0.79)
    assert bad.under_command().value == pytest.approx(0.4, abs=1e-3)
    assert (
        unnamed(refused(bad.under_command().at_least, 0.5), "share under command 0.4", "stopped (missed)", "0.5") == []
    )


def test_counts() -> None:
    check = Check(record(counts={"refused": 3}))
    check.count("refused").at_most(3)
    assert refused(check.count("refused").at_most, 2) == (
        "count of refused 3, allowed at most 2; judged on 0.801 of 0.801 s"
    )
    assert "is no number (counted are refused)" in refused(check.count("refuse").at_most, 100)


def test_a_frozen_encoder() -> None:
    way = lambda t: np.sin(3.0 * t)
    frozen = lambda t: np.where((t > 0.5) & (t < 0.6), np.sin(1.5), np.sin(3.0 * t))
    zeros = np.zeros((1001, 2))
    Check(record(measured=way, reference=way)).frozen("shoulder").below(1e-9)
    Check(record(measured=zeros, reference=zeros)).frozen().below(1e-9)  # a joint that is to stand still may
    check = Check(record(measured=frozen, reference=way))
    expected = float(np.abs(np.diff(way(1e-3 * np.arange(500, 600)))).sum())
    assert check.frozen("shoulder").value == pytest.approx(expected)
    assert (
        unnamed(
            refused(check.frozen().below, 0.01),
            "shoulder",
            "way of the reference",
            f"{expected:.3g} rad",
            "0.5 s to 0.599 s",
            "0.01 rad",
        )
        == []
    )
    whole = Check(record(position=zeros, reference=way)).frozen("shoulder")  # where nobody knows what was measured
    assert whole.value == pytest.approx(np.abs(np.diff(way(1e-3 * np.arange(1001)))).sum())
    assert whole.values[0].detail == "from 0 s to 1 s"


def test_names_that_there_are_not() -> None:
    check = Check(record())
    with pytest.raises(InvalidArgumentError, match=naming("'sholder'", "shoulder, elbow")):
        check.tracking("sholder")
    with pytest.raises(InvalidArgumentError, match=naming("'measured'", "position, velocity")):
        check.record.signals("measured")
    with pytest.raises(InvalidArgumentError, match=naming("times", "(3,)", "(2,)")):
        Signal("x", "m", np.zeros(3), np.zeros(2))


def test_a_record_comes_back_from_its_file(tmp_path, monkeypatch) -> None:
    saved = record(error=bump, changes=(*BEGUN, Change(0.6, "stopped", "missed")), counts={"refused": 3, "stops": 1})
    saved = replace(saved, notes=((0.25, "pushed"),), deadline_s=0.003)
    saved.save(tmp_path / "run.npz")
    read = Record.load(tmp_path / "run.npz")
    assert saved.same_as(read) is None
    assert (read.changes, read.counts, read.control_s, read.title) == (
        saved.changes, saved.counts, saved.control_s, saved.title,
    )  # fmt: skip
    for name, value in vars(saved.bounds).items():
        assert np.array_equal(getattr(read.bounds, name), value), name
    assert (read.notes, read.deadline_s) == (saved.notes, saved.deadline_s) == (((0.25, "pushed"),), 0.003)
    assert (read.answers.name, read.answers.unit) == (saved.answers.name, saved.answers.unit)
    assert [(group.names, group.units) for group in read.groups.values()] == [
        (group.names, group.units) for group in saved.groups.values()
    ]
    for bad in ("none.npz", "bad.npz"):
        (tmp_path / "bad.npz").write_bytes(b"PK no zip")
        with pytest.raises(InvalidArgumentError, match=f"{bad}' (cannot be read: No such file|is no record of a run)"):
            Record.load(tmp_path / bad)
    monkeypatch.setattr(arrays, "MAX_NPZ_BYTES", 1000)
    with pytest.raises(InvalidArgumentError, match=naming(re.compile(r"\d+ bytes"), "1000")):
        Record.load(tmp_path / "run.npz")


def test_the_first_bit_that_differs_is_named() -> None:
    def one_bit(t: np.ndarray) -> np.ndarray:
        values = np.ones_like(t)
        values[400:] = np.nextafter(1.0, 2.0)
        return values

    reference, one_bit_off = record(velocity=lambda t: np.ones_like(t)), record(velocity=one_bit)
    assert unnamed(reference.same_as(one_bit_off), "shoulder", "velocity", "1.0", "1.0000000000000002", "0.4 s") == []
    assert reference.same_as(record(velocity=lambda t: np.ones_like(t))) is None
    negative = record(velocity=lambda t: -0.0 * t)
    assert "0.0 here and -0.0 there" in record(velocity=lambda t: 0.0 * t).same_as(negative)
    assert reference.same_as(record(count=500)).startswith("the times differ")


@pytest.mark.parametrize(
    ("x", "text"),
    [(0.0, "0"), (0.25, "0.25"), (1e-3, "1e-3"), (4.1e-3, "4.1e-3"), (-2.5e-7, "-2.5e-7"), (87.0, "87"),
     (12345.6, "12346"), (1e6, "1e6"), (np.inf, "inf"), (0.012345, "0.0123")],
)  # fmt: skip
def test_numbers_are_written_as_one_writes_them(x: float, text: str) -> None:
    assert format_number(x) == text

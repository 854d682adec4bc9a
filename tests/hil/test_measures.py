"""What verdicts hold, number by number: the subject, the worst of several, the bands; each bound at its very value."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from dyn_service.errors import InvalidArgumentError
from dyn_service.hil.checks import Check, Notes, Numbers, OverTime, Value, Verdict, format_number
from dyn_service.hil.signals import Signal
from dyn_service.model.configuration import Limits
from tests.hil.records import record
from tests.phrases import unnamed

T = np.array([0.0, 0.5, 1.0])


def numbers(*values: float, unit: str = "s") -> tuple[Numbers, list[Verdict]]:
    """Of joints a, b, .., each with its signal; and where verdicts are noted."""
    notes = Notes()
    names = "abcdefgh"[: len(values)]
    signals = [Signal(name, unit, T, np.zeros(3)) for name in names]
    values_by_joint = [Value(name, value, unit) for name, value in zip(names, values, strict=True)]
    return Numbers(notes, "lag", values_by_joint, signals), notes.verdicts


def over_time(*rows: list[float], size: bool = True, limits=()) -> tuple[OverTime, list[Verdict]]:
    notes = Notes()
    signals = [Signal(name, "m", T[: len(row)], np.array(row)) for name, row in zip("abcdefgh", rows, strict=False)]
    return OverTime(notes, "way", signals, size=size, limits=limits), notes.verdicts


def refused(assertion, *args, **kwargs) -> str:
    with pytest.raises(AssertionError) as failure:
        assertion(*args, **kwargs)
    return str(failure.value)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_passes_nothing(bad: float) -> None:
    for assertion in ("below", "at_most", "at_least"):
        for limit in (0.0, 1e300, -1e300, math.inf, -math.inf):
            measure, verdicts = numbers(bad)
            refused(getattr(measure, assertion), limit)
            assert not verdicts[0].passed


def test_each_bound_at_its_very_value() -> None:
    for assertion, passes in (("below", False), ("at_most", True), ("at_least", True)):
        measure, verdicts = numbers(0.5)
        if passes:
            getattr(measure, assertion)(0.5)
        else:
            refused(getattr(measure, assertion), 0.5)
        assert [verdict.passed for verdict in verdicts] == [passes]
    over_time([0.5, -0.5, 0.1])[0].at_most(0.5)
    refused(over_time([0.5, -0.5, 0.1])[0].below, 0.5)
    over_time([-1.0, 2.0, 0.0], limits=[(-1.0, 2.0)])[0].within_limits()
    for row in ([np.nextafter(-1.0, -2.0), 0.0, 0.0], [0.0, np.nextafter(2.0, 3.0), 0.0]):
        refused(over_time(row, limits=[(-1.0, 2.0)])[0].within_limits)


def test_of_several_numbers_the_one_farthest_beyond_is_named_first() -> None:
    measure, verdicts = numbers(0.4, 0.1, 0.3, 0.9)
    assert unnamed(refused(measure.at_least, 0.5), "b: lag 0.1 s", "at least 0.5 s", "a, c") == []
    worst = verdicts[0]
    assert (worst.what, worst.subject, worst.value, worst.unit, worst.allowed) == (
        "lag",
        "b",
        0.1,
        "s",
        "at least 0.5 s",
    )
    assert [signal.name for signal in worst.signals] == ["a", "b", "c"]  # those that fail
    assert (worst.lower, worst.upper) == (-math.inf, math.inf)  # no band over time
    assert refused(numbers(1.0, 2.0)[0].below, 1.5) == "b: lag 2 s, allowed below 1.5 s"
    assert refused(numbers(3.0, math.nan)[0].below, 1.5).startswith("b: lag is no number, allowed below 1.5 s; so is a")
    text = refused(numbers(*np.arange(1.0, 7.0))[0].at_most, 0.5)
    assert unnamed(text, "f: lag 6 s", "at most 0.5 s", "a, b, c", "2 more") == []


def test_of_numbers_of_which_one_alone_is_none_that_one_is_named() -> None:
    assert refused(numbers(0.1, -math.inf)[0].below, 0.5) == "b: lag -inf s, allowed below 0.5 s"
    assert refused(numbers(0.1, math.inf, 0.2)[0].below, math.inf) == "b: lag inf s, allowed below inf s"


def test_a_number_just_below_what_it_has_to_be_does_not_read_as_it() -> None:
    assert unnamed(refused(numbers(0.49999999)[0].at_least, 0.5), "a: lag 0.49999999 s", "at least 0.5 s") == []
    assert refused(numbers(2.0000001, unit="")[0].at_most, 2.0) == "a: lag 2.0000001, allowed at most 2"


def test_what_has_no_unit_ends_without_a_blank() -> None:
    notes = Notes()
    OverTime(notes, "part", [Signal("a", "", T, np.zeros(3))]).below(0.5)
    Numbers(notes, "stops", [Value("", 0.0, "")]).at_most(0)
    assert [verdict.sentence for verdict in notes.verdicts] == [
        "a: part 0 at 0 s, allowed below 0.5", "stops 0, allowed at most 0",
    ]  # fmt: skip
    assert [verdict.allowed for verdict in notes.verdicts] == ["below 0.5", "at most 0"]


def test_of_numbers_that_pass_the_one_that_is_closest_is_shown() -> None:
    measure, verdicts = numbers(0.4, 0.1, 0.3)
    measure.below(0.5)
    measure.at_least(0.05)
    assert [(entry.subject, entry.value, entry.sentence) for entry in verdicts] == [
        ("a", 0.4, "a: lag 0.4 s, allowed below 0.5 s"),
        ("b", 0.1, "b: lag 0.1 s, allowed at least 0.05 s"),
    ]
    assert [entry.name for entry in verdicts[0].signals] == ["a", "b", "c"]
    assert measure.value == 0.4
    assert math.isnan(numbers()[0].value)
    assert math.isnan(numbers(1.0, math.nan)[0].value)


def test_what_was_not_measured_is_a_verdict_too() -> None:
    for measure, verdicts in (numbers(), over_time(), over_time([]), over_time([0.0, 0.0, 0.0], [])):
        refused(measure.at_most, 1.0)
        [verdict] = verdicts
        assert math.isnan(verdict.value)
        assert (verdict.subject, verdict.unit, verdict.allowed, verdict.passed) == ("", "", "", False)
        assert verdict.sentence == f"{verdict.what}: nothing was recorded that could be judged"
        assert verdict.what in ("lag", "way")


def test_a_signal_is_judged_by_its_size_and_its_band_goes_both_ways() -> None:
    measure, verdicts = over_time([0.1, -0.4, 0.2], [0.3, 0.0, 0.0])
    measure.below(0.5)
    assert (verdicts[0].subject, verdicts[0].value, verdicts[0].lower, verdicts[0].upper) == ("a", 0.4, -0.5, 0.5)
    assert unnamed(verdicts[0].sentence, "a: way 0.4 m", "at 0.5 s", "below 0.5 m") == []
    assert [signal.name for signal in verdicts[0].signals] == ["a", "b"]
    assert (
        unnamed(refused(measure.at_most, 0.25), "a: way 0.4 m", "0.5 s", "at most 0.25 m", "33.3 %", re.compile("b$"))
        == []
    )
    assert "first exceeded at 0.5 s" in verdicts[1].sentence
    assert [signal.name for signal in verdicts[1].signals] == ["a", "b"]
    assert refused(measure.at_most, 0.35).endswith("33.3 % of the run)")
    assert [signal.name for signal in verdicts[2].signals] == ["a"]


def test_a_share_of_the_limits_is_about_their_middle_where_both_are_there() -> None:
    """-2 to 4: 0.9 of it is -1.7 to 3.7. Of one end alone the share is of that end."""
    edge = lambda lower, upper, row: over_time(row, limits=[(lower, upper)])
    measure, verdicts = edge(-2.0, 4.0, [-1.69, 3.69, 0.0])
    measure.within_limits(share=0.9)
    assert (verdicts[0].lower, verdicts[0].upper) == pytest.approx((-1.7, 3.7))
    for row in ([-1.71, 0.0, 0.0], [0.0, 3.71, 0.0]):
        refused(edge(-2.0, 4.0, row)[0].within_limits, share=0.9)
    for row, passes in (([-1.79, 1e9, 0.0], True), ([-1.81, 0.0, 0.0], False)):
        measure, verdicts = edge(-2.0, math.inf, row)
        if passes:
            measure.within_limits(share=0.9)
        else:
            refused(measure.within_limits, share=0.9)
        assert verdicts[0].lower == pytest.approx(-1.8)
    refused(edge(-math.inf, 4.0, [-1e9, 3.61, 0.0])[0].within_limits, share=0.9)
    edge(-math.inf, 4.0, [-1e9, 3.59, 0.0])[0].within_limits(share=0.9)
    # the margin is taken off both ends, after the share
    edge(-2.0, 4.0, [-1.59, 3.59, 0.0])[0].within_limits(0.1, share=0.9)
    for row in ([-1.61, 0.0, 0.0], [0.0, 3.61, 0.0]):
        refused(edge(-2.0, 4.0, row)[0].within_limits, 0.1, share=0.9)


def test_of_joints_with_different_limits_the_one_farthest_beyond_its_own_is_named() -> None:
    """Not the one whose value is largest; and of those within theirs, the one that is closest."""
    limits = [(-9.0, 9.0), (-1.0, 2.0), (-5.0, 5.0)]
    measure, verdicts = over_time([9.1, 0.0, 0.0], [0.0, -3.0, 0.0], [4.0, -4.0, 0.0], limits=limits)
    assert (
        unnamed(refused(measure.within_limits), "b: way -3 m", "at 0.5 s", "-1 to 2 m", "33.3 %", re.compile("a$"))
        == []
    )
    assert [signal.name for signal in verdicts[0].signals] == ["a", "b"]
    measure, verdicts = over_time([8.0, 0.0, 0.0], [0.0, -0.9, 0.0], [4.0, -4.0, 0.0], limits=limits)
    measure.within_limits()
    assert (verdicts[0].subject, verdicts[0].value, verdicts[0].lower, verdicts[0].upper) == ("b", -0.9, -1.0, 2.0)
    measure, verdicts = over_time([8.0, 0.0, 0.0], [0.0, 1.9, 0.0], [4.0, -4.0, 0.0], limits=limits)
    measure.within_limits()
    assert (verdicts[0].subject, verdicts[0].value) == ("b", 1.9)
    # what is no number is worse than any
    spoilt, _ = over_time([99.0, 0.0, 0.0], [0.0, math.nan, 0.0])
    assert refused(spoilt.below, 0.5).startswith(
        "b: way is no number at 0.5 s (1 of 3 samples), allowed below 0.5 m; so is a"
    )


def test_percentiles_are_of_sizes_and_of_0_to_100() -> None:
    measure, _ = over_time([-3.0, 1.0, 2.0])
    assert [measure.percentile(q).value for q in (0.0, 0.5, 50.0, 100.0)] == pytest.approx([1.0, 1.01, 2.0, 3.0])
    for q in (-0.1, 100.1, math.nan):
        with pytest.raises(InvalidArgumentError, match="expected 0 to 100"):
            measure.percentile(q)
    assert measure.rms.value == pytest.approx(math.sqrt(14.0 / 3.0))
    empty = over_time([])[0].rms.values[0]
    assert (empty.name, empty.unit, empty.detail) == ("a", "m", "nothing was recorded")


def test_why_there_is_no_number_is_said_of_limits_too() -> None:
    notes = Notes()
    signal = Signal("a", "m", T, np.array([0.0, math.nan, 0.0]))
    measure = OverTime(notes, "way", [signal], limits=[(-1.0, 1.0)], why_not=lambda t: f": it slept at {t:g}")
    expected = "a: way is no number at 0.5 s (1 of 3 samples): it slept at 0.5, allowed -1 to 1 m"
    assert refused(measure.within_limits) == expected


def test_limits_are_of_their_own_joint() -> None:
    """The second of two alone has limits, and both ends of them hold."""
    bounds = Limits(
        np.array([-np.inf, -1.0]), np.array([np.inf, 2.0]), np.array([np.inf, 3.0]), np.array([np.inf, 4.0])
    )
    doubled = lambda x: np.stack([9.0 * np.ones(1001), x * np.ones(1001)], axis=1)

    def check(x: float) -> Check:
        return Check(replace(record(position=doubled(x), velocity=doubled(x), effort=doubled(x)), bounds=bounds))

    for kind, lower, upper in (("position", -1.0, 2.0), ("velocity", -3.0, 3.0), ("effort", -4.0, 4.0)):
        for x, passes in ((lower, True), (upper, True), (lower - 0.01, False), (upper + 0.01, False)):
            measure = getattr(check(x), kind)
            if passes:
                measure().within_limits()
                measure("elbow").within_limits()
            else:
                assert refused(measure().within_limits).startswith(f"elbow: {kind} ")
                refused(measure("elbow").within_limits)
        assert "shoulder: no limit in the robot's file" in refused(getattr(check(0.0), kind)("shoulder").within_limits)


@pytest.mark.parametrize(
    ("x", "text"), [(999.0, "999"), (1000.0, "1000"), (0.01, "0.01"), (1e5, "1e5"), (math.nan, "nan")]
)
def test_numbers_at_the_edges_of_how_they_are_written(x: float, text: str) -> None:
    assert format_number(x) == text

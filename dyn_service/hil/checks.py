"""Assertions on a run, and the quantities that they judge.

    check.tracking("panda_joint3").below(1e-3)

    AssertionError: panda_joint3: tracking error 4.1e-3 rad at 1.37 s, allowed below 1e-3 rad (first exceeded at 0.82 s;
    12 % of the run)

Every assertion, passed or not, is noted as a `Verdict`, for reports.

An assertion is about the time from when the plant was first under command until the end of the run, or about the span
that it names. It says on how much of that time the plant was under command, and fails if it was less than was asked:
all of it, or the share given to `Check.covering`. It also fails if a node ended that no injected fault ended, unless
`Check.ends` expects that.

A measure is one value per time (`OverTime`), or one per joint or run (`Numbers`); its methods compare it with a bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dyn_service.control.plant.safety import ACTIVE, RUNNING, STOPPED
from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.report.verdicts import PlantBounds, format_number, share_under_command, sized, sized_beside
from dyn_service.hil.signals import COMMANDED, Array, Change, Record, Signal
from dyn_service.support.suggestions import listing

ROUNDING = 1e-9
"""rad | m: a joint within this distance of a position has reached it."""
AT_REST = 1e-3
"""rad/s | m/s: below this speed a joint is at rest; the brakes of the simulated plant stop joints at exactly 0."""


class Check:
    """Assertions on one run. `from_s`, `until_s`: s, times of the plant, which limit the part of the run. Without
    `joint`, a measure has one signal or number for each joint. verdicts: in the order of the assertions.
    """

    def __init__(self, record: Record, notes: Notes | None = None, share: float = 1.0) -> None:
        """notes: where verdicts are recorded, shared with other checks; None: new `Notes`. share: as in `covering`."""
        self.record = record
        self.notes = Notes() if notes is None else notes
        self.notes.record = record
        self.verdicts = self.notes.verdicts
        self._share = share

    def covering(self, share: float) -> Check:
        """Returns the same assertions for a plant that is under command for at least this share of their time, 0 to 1.
        Positions, velocities, efforts, powers and tracking errors are judged while it is under command only.
        """
        if not 0.0 <= share <= 1.0:
            raise InvalidArgumentError(f"covering({share:g}): expected a share, 0 to 1")
        return Check(self.record, self.notes, share)

    def ends(self, reason: str) -> None:
        """Asserts that the controller, or another node, ended by itself with this reason, a part of its message. Other
        assertions are then about the time until it ended.
        """
        __tracebackhide__ = True
        ends = self.record.ends
        matches = any(reason in end.why for end in ends)
        self.notes.ends_expected |= matches
        why = "; ".join(f"{end.why}, at {end.t:.4g} s" for end in ends) or "no node ended by itself"
        verdict = Verdict("end", "", math.nan, "", repr(reason), matches, f"end: {why}; expected {reason!r}")
        self.verdicts.append(verdict)
        if not matches:
            raise AssertionError(verdict.sentence)

    def _judge(self, from_s: float = 0.0, until_s: float = math.inf, *, stopped: bool = False) -> _Judge:
        """What judges the time between these two. stopped: whether the time counts without command."""
        return _Judge(self.notes, self.record, self._share, from_s, until_s, stopped)

    def _signals(self, kind: str, joint: str | None) -> list[Signal]:
        signals = self.record.signals(kind, joint)
        if self._share == 1.0 or not len(self.record.t):
            return signals
        active = self.record.under(ACTIVE)
        return [Signal(signal.name, signal.unit, signal.t[active], signal.values[active]) for signal in signals]

    def tracking(self, joint: str | None = None, *, from_s: float | None = None, until_s: float = math.inf) -> OverTime:
        """Returns the difference from the position to the reference, rad | m, by default from when the plant was first
        under command. If the plant stops, there is no tracking error, and an assertion on it fails.
        """
        begin_s = self.record.begun_s if from_s is None else from_s
        signals = [signal.between(begin_s, until_s) for signal in self._signals("error", joint)]
        return OverTime(self._judge(from_s or 0.0, until_s), "tracking error", signals, why_not=self._mode_words)

    def position(self, joint: str | None = None, *, from_s: float = 0.0, until_s: float = math.inf) -> OverTime:
        """Returns the positions, rad | m."""
        return self._bounded("position", joint, from_s, until_s)

    def velocity(self, joint: str | None = None, *, from_s: float = 0.0, until_s: float = math.inf) -> OverTime:
        """Returns the velocities, rad/s | m/s."""
        return self._bounded("velocity", joint, from_s, until_s)

    def effort(self, joint: str | None = None, *, from_s: float = 0.0, until_s: float = math.inf) -> OverTime:
        """Returns the efforts that acted, N m | N."""
        return self._bounded("effort", joint, from_s, until_s)

    def commanded(
        self, joint: str | None = None, *, from_s: float | None = None, until_s: float = math.inf
    ) -> OverTime:
        """Returns the commanded efforts (N m | N), positions (rad | m) or velocities (rad/s | m/s), as received from
        the controller, by default from when the plant was first under command.

        Raises:
            InvalidArgumentError: Nothing was commanded, or by several interfaces, one after the other.
        """
        kinds = [kind for kind in self.record.groups if kind.startswith(COMMANDED)]
        if len(kinds) != 1:
            interfaces = " and ".join(kind.removeprefix(COMMANDED) for kind in kinds) or "nothing"
            raise InvalidArgumentError(f"commanded: expected one of effort, position and velocity, found {interfaces}")
        return self._bounded(kinds[0], joint, self.record.begun_s if from_s is None else from_s, until_s)

    def power(self, joint: str | None = None, *, total: bool = False) -> OverTime:
        """Returns the power of the joints' efforts, tau v, in W; `total`: one signal, of all together."""
        powers = self._powers(joint)
        if total:
            powers = [Signal("", "W", powers[0].t, np.sum([power.values for power in powers], axis=0))]
        return OverTime(self._judge(), "power", powers)

    def energy(self, joint: str | None = None) -> Numbers:
        """Returns the integral of |tau v| over the run, in J: the energy of motors without recuperation."""
        powers = self._powers(joint)
        values = []
        for power in powers:
            total = float(np.trapezoid(np.abs(power.values), power.t)) if len(power.t) > 1 else math.nan
            values.append(Value(power.name, total, "J"))
        return Numbers(self._judge(), "energy", values, powers, "power")

    def settling(
        self, joint: str | None = None, *, band: float, to: float | None = None, from_s: float = 0.0
    ) -> Numbers:
        """Returns the time, s from `from_s`, after which a joint stays within `band` of `to` until the end of the run;
        infinite for a joint that is outside at the end.

        band: rad | m. to: rad | m; None is the reference, also while it moves.
        """
        values = []
        signals = self.record.signals("error" if to is None else "position", joint)
        for signal in (signal.between(from_s, math.inf) for signal in signals):
            deviation = np.abs(signal.values if to is None else signal.values - to)
            # Negated, so that a NaN is outside the band.
            off_band = np.flatnonzero(~(deviation <= band))
            if not len(deviation):
                values.append(Value(signal.name, math.nan, "s", "nothing was recorded"))
            elif len(deviation) - 1 in off_band:
                detail = f"{sized(deviation[-1], signal.unit)} off at the end, the band is {format_number(band)}"
                values.append(Value(signal.name, math.inf, "s", detail))
            else:
                settling_s = float(signal.t[off_band[-1] + 1]) - from_s if len(off_band) else 0.0
                values.append(Value(signal.name, settling_s, "s"))
        return Numbers(self._judge(from_s), "settling time", values, signals, "error" if to is None else "position")

    def overshoot(self, joint: str, *, to: float | None = None, from_s: float = 0.0) -> Numbers:
        """By how much a joint goes beyond `to` after `from_s`, seen from where it was then; 0 where it does not. One
        that was there already goes beyond it either way.

        to: rad | m; None is the reference's last value.
        """
        signal = self.record.signal("position", joint).between(from_s, math.inf)
        if not len(signal.t):
            return Numbers(self._judge(from_s), "overshoot", [])
        target = self.record.signal("reference", joint).values[-1] if to is None else to
        way = target - signal.values[0]
        deviation = signal.values - target
        excess = np.abs(deviation) if abs(way) <= ROUNDING else math.copysign(1.0, way) * deviation
        # NaN counts as largest, so that a position that is no number fails.
        peak = int(np.argmax(excess))
        value = math.nan if math.isnan(target) else float(np.maximum(excess[peak], 0.0))
        detail = f"at {signal.t[peak]:.4g} s, beyond {format_number(float(target))}"
        values = [Value(joint, value, signal.unit, detail)]
        return Numbers(self._judge(from_s), "overshoot", values, [signal], "position")

    def delay(self) -> OverTime:
        """From the state that a command answers to its effect, s; one value per command that was taken."""
        answers = replace(self.record.answers, name="")
        return OverTime(self._judge(), "delay of a command", [answers])

    def jitter(self) -> OverTime:
        """How much the time between two commands that took effect differs from the controller's period, s."""
        gaps, t = self._gaps()
        return OverTime(self._judge(), "jitter of the commands", [Signal("", "s", t, gaps - self.record.control_s)])

    def deadlines(self, deadline_s: float | None = None) -> Numbers:
        """How often no command took effect in time: one that came later than `deadline_s`, by default the controller's
        own, after its state, and each period of an armed plant of which no state was answered.

        Raises:
            InvalidArgumentError: The deadline is no positive time: nothing would be late by it.
        """
        limit = self.record.deadline_s if deadline_s is None else deadline_s
        if not 0.0 < limit < math.inf:
            raise InvalidArgumentError(f"deadline_s is {limit:g}: expected a positive, finite number of seconds")
        answers = replace(self.record.answers, name="")
        if not len(answers.t):
            return Numbers(self._judge(), "missed deadlines", [])
        # Times are sums of steps: their rounding is no delay.
        late = answers.values > limit + 1e-9
        gaps, t = self._gaps(between_states=True)
        # from one answered state to the next, whatever either answer took; a state may come half a period late
        skipped = np.maximum(np.ceil(gaps / self.record.control_s - 0.5 - 1e-6) - 1.0, 0.0)
        count = float(np.count_nonzero(late) + skipped.sum())
        whens = [*answers.t[late], *t[skipped > 0.0]]
        detail = f"the first at {min(whens):.4g} s, the deadline is {format_number(limit)} s" if whens else ""
        if late.any():
            detail += f", the latest took {sized(float(answers.values.max()), 's')}"
        value = math.nan if np.isnan(answers.values).any() else count
        return Numbers(self._judge(), "missed deadlines", [Value("", value, "", detail)], [answers], "delay")

    def safe_stop(self, after_s: float, *, at_rest: float = AT_REST) -> Numbers:
        """The time from `after_s` until the plant is stopped and every joint stands still, to the end of the run.

        Infinite where that does not come about; no number, which does not pass, where it had stopped before: not for
        what happened then. Until `after_s` the plant must be under command. at_rest: rad/s | m/s, what counts as
        standing.
        """
        speeds = [velocity.between(after_s, math.inf) for velocity in self.record.signals("velocity")]
        values = []
        if len(speeds[0].t):
            values = [Value("", *self._time_to_stop(speeds, after_s, at_rest))]
        return Numbers(self._judge(until_s=after_s), "time to safe stop", values, speeds, "velocity")

    def _time_to_stop(self, speeds: Sequence[Signal], after_s: float, at_rest: float) -> tuple[float, str, str]:
        t, earlier = speeds[0].t, self.record.t < after_s
        if earlier.any() and self.record.under(STOPPED)[earlier][-1]:
            stop_words = self.record.at(float(self.record.t[earlier][-1])).words
            return math.nan, "s", f"the plant had stopped before: {stop_words}"
        at_standstill = np.all([np.abs(velocity.values) <= at_rest for velocity in speeds], axis=0)
        safe = at_standstill & self.record.under(STOPPED)[~earlier]
        if safe[-1]:
            first = len(safe) - int(np.argmin(safe[::-1])) if not safe.all() else 0
            return float(t[first]) - after_s, "s", self.record.at(float(t[first])).words
        detail = f"at the end the plant is {self.record.at(float(t[-1])).words}"
        moving = [velocity for velocity in speeds if not abs(velocity.values[-1]) <= at_rest]
        if moving:
            detail += f" and {moving[0].name} moves at {sized(float(moving[0].values[-1]), moving[0].unit)}"
        return math.inf, "s", detail

    def stops(self) -> Numbers:
        """Number of safe stops."""
        if not len(self.record.t):
            return Numbers(self._judge(), "safe stops", [])
        stops = [change for change in self.record.changes if change.mode == STOPPED]
        detail = ", ".join(f"{change.cause} at {change.t:.4g} s" for change in stops[:_MAX_LISTED])
        detail += ", .." if len(stops) > _MAX_LISTED else ""
        return Numbers(self._judge(), "safe stops", [Value("", float(len(stops)), "", detail)])

    def under_command(self) -> Numbers:
        """The share of the run, from 0 to 1, in which the plant was under command."""
        if not len(self.record.t):
            return Numbers(self._judge(stopped=True), "share under command", [])
        active = float(np.mean(self.record.under(ACTIVE)))
        detail = f"at the end {self.record.changes[-1].words}"
        return Numbers(self._judge(stopped=True), "share under command", [Value("", active, "", detail)])

    def clean(self, bounds: PlantBounds | None = None) -> None:
        """Asserts the bounds by which a launch is clean that are about its motion; by default `PlantBounds()`."""
        __tracebackhide__ = True
        bounds, record = bounds or PlantBounds(), self.record
        self.covering(0.0).stops().at_most(bounds.safe_stops)
        share = share_under_command(*(int(np.count_nonzero(record.under(mode))) for mode in (ACTIVE, STOPPED)))
        measure = Numbers(self._judge(stopped=True), "share under command, while not released", [Value("", share, "")])
        measure.at_least(bounds.under_command)
        names, values = record.groups["reference"].names, record.groups["reference"].values[record.under(ACTIVE)]
        # A quaternion has other entries than its error: those count as going any way.
        for error in record.signals("error"):
            ways = values[:, [names.index(error.name)] if error.name in names else []]
            way = float(np.ptp(ways)) if ways.size and np.isfinite(ways).all() else math.inf
            limit = float(bounds.errors(error.unit == "rad", np.array(way)))
            self.covering(bounds.under_command).tracking(error.name).at_most(limit)

    def count(self, name: str) -> Numbers:
        """A counter of the plant or the controller, such as `refused`; an unknown name does not pass."""
        counts = self.record.counts
        value = float(counts[name]) if name in counts else math.nan
        detail = "" if name in counts else f"counted are {', '.join(counts) or 'none'}"
        return Numbers(self._judge(), f"count of {name}", [Value("", value, "", detail)])

    def frozen(self, joint: str | None = None) -> Numbers:
        """How far the reference went, at most, while a joint's measured position did not change by one bit, rad | m.

        An encoder that has frozen shows so before the joint itself runs away; one that counts does not, as long as
        a count is small compared with the bound.
        """
        kind = "measured" if "measured" in self.record.groups else "position"
        followed = self.record.groups["reference"].names
        signals = [signal for signal in self.record.signals(kind, joint) if joint or signal.name in followed]
        values = [_frozen(signal, self.record.signal("reference", signal.name).values) for signal in signals]
        curve = "position" if kind == "position" else "measured position"
        return Numbers(self._judge(), "way of the reference while the encoder stood still", values, signals, curve)

    def _bounded(self, kind: str, joint: str | None, from_s: float, until_s: float) -> OverTime:
        signals = [signal.between(from_s, until_s) for signal in self._signals(kind, joint)]
        names, bounds = self.record.groups[kind].names, self.record.bounds
        quantity = kind.removeprefix(COMMANDED)
        if quantity == "position":
            lower, upper = bounds.lower, bounds.upper
        else:
            upper = bounds.velocity if quantity == "velocity" else bounds.effort
            lower = -upper
        limits = [(float(lower[k]), float(upper[k])) for k in (names.index(signal.name) for signal in signals)]
        why_not = self._mode_words if kind.startswith(COMMANDED) else None
        judge, text = self._judge(from_s, until_s), kind.replace("_", " ")
        return OverTime(judge, text, signals, limits=limits, why_not=why_not)

    def _powers(self, joint: str | None) -> list[Signal]:
        speeds, efforts = (self._signals(kind, joint) for kind in ("velocity", "effort"))
        pairs = zip(speeds, efforts, strict=True)
        return [Signal(v.name, "W", v.t, v.values * tau.values) for v, tau in pairs]

    def _gaps(self, *, between_states: bool = False) -> tuple[Array, Array]:
        """Times between commands that took effect while the plant stayed armed, and when each ended.

        between_states: between the states that they answered instead.
        """
        gaps: list[float] = []
        ends: list[float] = []
        for begin, end_of_span in self.record.running if len(self.record.t) else ():
            answers = self.record.answers.between(begin, end_of_span)
            times = answers.t - answers.values if between_states else answers.t
            last_s = min(end_of_span, float(self.record.t[-1]))
            arrivals = answers.t
            silent_s = last_s - arrivals[-1] if len(arrivals) else 0.0
            # A plant that is still armed at the end, but got nothing any more, has a last gap.
            if silent_s > self.record.control_s:
                times, arrivals = np.append(times, times[-1] + silent_s), np.append(arrivals, last_s)
            gaps += np.diff(times).tolist()
            ends += arrivals[1:].tolist()
        return np.array(gaps), np.array(ends)

    def _mode_words(self, t: float) -> str:
        change = self.record.at(t)
        return "" if change.mode in RUNNING else f": the plant is {change.words}"


def _frozen(signal: Signal, reference: Array) -> Value:
    """The longest way of the reference in a stretch of equal values; where there is no reference none counts."""
    if not len(signal.t) or not np.isfinite(signal.values).all():
        return Value(signal.name, math.nan, signal.unit, "not all positions are numbers")
    # by the reference's way, because the tracking error shows a frozen encoder later, and for other joints
    steps = np.abs(np.diff(reference))
    is_known = np.isfinite(steps)
    if not is_known.any():
        return Value(signal.name, math.nan, signal.unit, "there was no reference")
    is_frozen = is_known & (np.diff(signal.values) == 0.0)
    way = np.cumsum(np.where(is_frozen, steps, 0.0))
    way = way - np.maximum.accumulate(np.where(is_frozen, 0.0, way))  # since it last changed
    worst = int(np.argmax(way))
    first = worst + 1 - int(np.argmin(is_frozen[worst::-1])) if not is_frozen[: worst + 1].all() else 0
    detail = f"from {signal.t[first]:.4g} s to {signal.t[worst + 1]:.4g} s" if way[worst] > 0.0 else ""
    return Value(signal.name, float(way[worst]), signal.unit, detail)


_MAX_LISTED = 5
"""Stops that are listed in a message."""
_MAX_NAMED = 3
"""Failing joints named in a message, in addition to the worst."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """One assertion. subject: the joint that came closest to, or farthest beyond, what is allowed; value: how close, in
    `unit`. allowed: the bound as text. sentence: the message, passed or failed. signals: what was judged; lower, upper:
    what is allowed of each, where that is a band over time. shown: the quantity that the signals are, `velocity` for a
    time to safe stop.
    """

    what: str
    subject: str
    value: float
    unit: str
    allowed: str
    passed: bool
    sentence: str
    signals: tuple[Signal, ...] = ()
    lower: float = -math.inf
    upper: float = math.inf
    shown: str = ""


class _Band(NamedTuple):
    """What is allowed of a signal: lower <= value <= upper; `strictly` without the ends. words: the band as text."""

    lower: float
    upper: float
    words: str
    strictly: bool = False

    def holds(self, values: Array) -> NDArray[np.bool_]:
        """Whether each value is within the band; False for NaN and infinite values."""
        # no number fails, since a plant that stopped has no tracking error
        finite = np.isfinite(values)
        if self.strictly:
            return finite & (values > self.lower) & (values < self.upper)
        return finite & (values >= self.lower) & (values <= self.upper)

    def excess(self, values: Array) -> Array:
        """How far each value is outside the band; negative inside."""
        with np.errstate(invalid="ignore"):
            return np.maximum(values - self.upper, self.lower - values)


class Notes:
    """Notes of a run. verdicts: its assertions. unjudged: measures that were neither asserted nor read yet. record: the
    newest. ends_expected: whether the test expects that a node ended.
    """

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []
        self.unjudged: list[_Measure] = []
        self.record: Record | None = None
        self.ends_expected = False

    @property
    def ended(self) -> list[str]:
        """Nodes that ended, neither by an injected fault nor expected by the test."""
        ends = () if self.record is None or self.ends_expected else self.record.ends
        return [f"{end.why}, at {end.t:.4g} s" for end in ends if not end.injected]

    @property
    def changes(self) -> Sequence[Change]:
        """Changes of the plant's mode."""
        return () if self.record is None else self.record.changes

    def complete(self, verdict: Verdict) -> Verdict:
        """Returns the verdict to record."""
        return verdict


class _Judge(Notes):
    """How much of the time an assertion judges: s under command of the s that it is about, from `from_s` to `until_s`.

    share: how much of it is asked. idle: whether time without command counts as well. enough: whether the plant was
    under command for that share.
    """

    record: Record

    def __init__(self, notes: Notes, record: Record, share: float, from_s: float, until_s: float, idle: bool) -> None:
        self.verdicts, self.unjudged, self.record = notes.verdicts, notes.unjudged, record
        self._notes = notes
        t, self._begun_s = record.t, record.begun_s
        self._from_s = from_s if from_s > 0.0 or idle or math.isinf(self._begun_s) else self._begun_s
        step_s = float(np.median(np.diff(t))) if len(t) > 1 else record.control_s
        self._last_s = float(t[-1]) + step_s if len(t) else 0.0
        end_s = self._last_s if math.isnan(record.asked_s) else record.asked_s
        if notes.ends_expected:
            end_s = min(end_s, record.ends[0].t)
        self._until_s = min(until_s, end_s)
        self.asked_s = max(0.0, self._until_s - self._from_s)
        spans = [(0.0, math.inf)] if idle else record.running if math.isfinite(self._begun_s) else []
        parts = [min(end, self._until_s, self._last_s) - max(begin, self._from_s) for begin, end in spans]
        self.covered_s = sum(part for part in parts if part > 0.0)
        # Less a period and a step, by which the spans of command and of states may differ from the time asked.
        self.enough = self.covered_s >= share * self.asked_s - record.control_s - step_s

    def _words(self, sentence: str) -> str:
        """`judged on 1.2 of 2 s`, and why on no more, unless the sentence contains that."""
        text = f"judged on {self.covered_s:.4g} of {self.asked_s:.4g} s"
        if self.enough:
            return text
        gap = f"the record ends at {self._last_s:.4g} s"
        if math.isinf(self._begun_s):
            gap = "the plant was never under command"
        elif self._begun_s > self._from_s:
            gap = f"the plant was first under command at {self._begun_s:.4g} s"
        for change in self.changes:
            if change.mode not in RUNNING and self._begun_s < change.t < self._until_s:
                gap = f"from {change.t:.4g} s the plant is {change.words}"
                return f"{text} only" if change.words in sentence else f"{text} only: {gap}"
        return f"{text} only: {gap}"

    def complete(self, verdict: Verdict) -> Verdict:
        """Returns the verdict with the time that was judged; if it failed, or has to fail, also with the cause."""
        ended_nodes, parts = self._notes.ended, [self._words(verdict.sentence)]
        is_passed = verdict.passed and self.enough and not ended_nodes
        if not is_passed:
            parts += _causes(self.record, f"{verdict.sentence}{parts}", ended_nodes)
        if verdict.passed and not self.enough and not ended_nodes:
            parts.append("ask for less with `until_s`, or with `covering` of `check`")
        separator = "; " if is_passed or not verdict.passed else ": "
        start = verdict.sentence if separator == "; " else verdict.what
        return replace(verdict, passed=is_passed, sentence=f"{start}{separator}{'; '.join(parts)}")


_AGAINST = -0.5
"""Correlation of the changes of effort and error below which it drives the joint away; of a spring it is near 1."""
_CHATTER = 0.5
"""Share of samples at which the effort changes its direction, from which the loop oscillates at its own rate."""

_SWINGS, _WIDER = 6, 2.0
"""Changes of the error's sign, and growth from its first to its last third, from which the loop swings ever wider. A
wrong sign gives no swings, and the error of a stable loop on a periodic reference does not grow.
"""


def _causes(record: Record, sentence: str, ended_nodes: Sequence[str]) -> list[str]:
    """Returns the causes that the sentence does not contain yet. ended_nodes: nodes that ended by themselves."""
    first = next((change for change in record.changes if change.mode == STOPPED), None)
    stopped = [] if first is None or first.reason in sentence else [f"at {first.t:.4g} s the plant is {first.words}"]
    warnings = [text for _, text in record.notes if "WARNING" in text and STOPPED not in text]
    return [*ended_nodes, *stopped, *dict.fromkeys(warnings), *(_hints(record, first) if first else [])]


def _hints(record: Record, stop: Change) -> list[str]:
    """Hints at a wrong sign, or a gain too large, of the joint that stopped the plant.

    A law's effort, such as K (q_ref - q), grows with the error q_ref - q, however wrong in size. With a wrong sign, or
    on another joint than it is meant for, it grows against it. With K far too large it oscillates: at the rate of the
    loop, or, if the damping is in the right unit, more slowly and ever wider.
    """
    for error in record.signals("error"):
        effort = record.signal("effort", error.name)
        name, e, tau = error.name, np.diff(error.values), np.diff(effort.values)
        finite = np.isfinite(e) & np.isfinite(tau)
        e, tau = e[finite], tau[finite]
        if not stop.reason.startswith(f"{name} ") or len(e) < 2:
            continue
        if np.mean(np.diff(np.sign(tau)) != 0.0) > _CHATTER:
            return [f"hint: the effort of {name} changes its direction all the time: a unit, or a gain too large?"]
        if e @ tau < _AGAINST * np.linalg.norm(e) * np.linalg.norm(tau):
            return [f"hint: the effort of {name} grows against its error: a wrong sign, or order of joints?"]
        values = error.values[np.isfinite(error.values) & (error.t < stop.t)]
        swings, third = np.count_nonzero(np.diff(np.sign(values))), len(values) // 3
        if swings >= _SWINGS and np.abs(values[-third:]).max() > _WIDER * np.abs(values[:third]).max():
            return [f"hint: the error of {name} swings ever wider: a unit (degrees?), or a gain too large?"]
    return []


class _Measure:
    """Base of all measures. notes: where verdicts are recorded. quantity: the name of what is measured."""

    def __init__(self, notes: Notes, quantity: str, curve: str = "") -> None:
        self._notes, self.quantity, self.curve = notes, quantity, curve or quantity
        notes.unjudged.append(self)

    def below(self, limit: float) -> None:
        """Every value is below the limit."""
        __tracebackhide__ = True
        self._hold(_Band(-math.inf, limit, f"below {format_number(limit)}", strictly=True))

    def at_most(self, limit: float) -> None:
        """No value is above the limit."""
        __tracebackhide__ = True
        self._hold(_Band(-math.inf, limit, f"at most {format_number(limit)}"))

    def _hold(self, band: _Band) -> None:
        raise NotImplementedError

    def _mark_judged(self) -> None:
        if self in self._notes.unjudged:
            self._notes.unjudged.remove(self)

    def _record_verdict(self, verdict: Verdict) -> None:
        __tracebackhide__ = True
        self._mark_judged()
        verdict = self._notes.complete(replace(verdict, shown=self.curve))
        self._notes.verdicts.append(verdict)
        if not verdict.passed:
            raise AssertionError(verdict.sentence)

    def _fail(self, why: str) -> None:
        __tracebackhide__ = True
        self._record_verdict(Verdict(self.quantity, "", math.nan, "", "", False, f"{self.quantity}: {why}"))


class OverTime(_Measure):
    """One or several signals; each value is judged. An assertion raises `AssertionError` if a value violates the bound
    or is not finite, or if there are no values.
    """

    def __init__(
        self,
        notes: Notes,
        quantity: str,
        signals: Sequence[Signal],
        *,
        size: bool = True,
        limits: Sequence[tuple[float, float]] = (),
        why_not: Callable[[float], str] | None = None,
    ) -> None:
        """size: whether values are judged by their magnitude. limits: of each signal, what the robot's file allows.
        why_not: says of a time why there is no number.
        """
        super().__init__(notes, quantity)
        self._signals = tuple(signals)
        self._size, self._limits, self._why_not = size, limits, why_not

    @property
    def signals(self) -> tuple[Signal, ...]:
        """The signals, for assertions that have no method here."""
        self._mark_judged()
        return self._signals

    def within_limits(self, margin: float = 0.0, *, share: float = 1.0) -> None:
        """No value is beyond the share of what the robot's file allows, less a margin in the signal's unit.

        Raises:
            AssertionError: One is, is not a number, or no joint has such a limit.
        """
        __tracebackhide__ = True
        if not self._limits:
            raise InvalidArgumentError(f"the robot's file has no limits of {self.quantity}: say `below` or `at_most`")
        # A copy below is judged, with the signs of its values.
        self._mark_judged()
        bands = []
        for lower, upper in self._limits:
            middle = 0.5 * (lower + upper) if math.isfinite(lower) and math.isfinite(upper) else 0.0
            low, high = middle + share * (lower - middle) + margin, middle + share * (upper - middle) - margin
            bands.append(_Band(low, high, f"{format_number(low)} to {format_number(high)}"))
        limited = [k for k, band in enumerate(bands) if math.isfinite(band.lower) or math.isfinite(band.upper)]
        if not limited:
            self._fail(f"{', '.join(signal.name for signal in self._signals)}: no limit in the robot's file")
        signals = [self._signals[k] for k in limited]
        signed = OverTime(self._notes, self.quantity, signals, size=False, why_not=self._why_not)
        signed._hold_each([bands[k] for k in limited])

    @property
    def rms(self) -> Numbers:
        """The root of the mean square over time, of each signal."""
        return self._reduce("rms", lambda x: math.sqrt(float(np.mean(x * x))))

    def percentile(self, q: float) -> Numbers:
        """The percentile q (0 to 100) over time, of each signal's magnitude."""
        if not 0.0 <= q <= 100.0:
            raise InvalidArgumentError(f"percentile({q:g}): expected 0 to 100")
        return self._reduce(f"p{q:g}", lambda x: float(np.percentile(np.abs(x), q)))

    @property
    def rate(self) -> OverTime:
        """The rate of change of each signal."""
        self._mark_judged()
        return OverTime(self._notes, f"rate of {self.quantity}", [signal.rate() for signal in self._signals])

    def _reduce(self, name: str, fold: Callable[[Array], float]) -> Numbers:
        self._mark_judged()
        values = [self._number(signal, fold) for signal in self._signals]
        return Numbers(self._notes, f"{name} of {self.quantity}", values, self._signals)

    def _number(self, signal: Signal, fold: Callable[[Array], float]) -> Value:
        if not len(signal.t):
            return Value(signal.name, math.nan, signal.unit, "nothing was recorded")
        bad = np.flatnonzero(~np.isfinite(signal.values))
        detail = f"not at {signal.t[bad[0]]:.4g} s{self._why(float(signal.t[bad[0]]))}" if len(bad) else ""
        return Value(signal.name, math.nan if len(bad) else fold(signal.values), signal.unit, detail)

    def _why(self, t: float) -> str:
        return self._why_not(t) if self._why_not is not None else ""

    def _hold(self, band: _Band) -> None:
        __tracebackhide__ = True
        self._hold_each([band] * len(self._signals))

    def _hold_each(self, bands: Sequence[_Band]) -> None:
        __tracebackhide__ = True
        judged = [(signal, band) for signal, band in zip(self._signals, bands, strict=True) if len(signal.t)]
        if len(judged) < len(self._signals) or not judged:
            self._fail("nothing was recorded that could be judged")
        verdicts = [self._verdict_on(signal, band) for signal, band in judged]
        failed = [verdict for verdict in verdicts if not verdict.passed]
        signals = tuple(signal for verdict in failed or verdicts for signal in verdict.signals)
        if not failed:
            self._record_verdict(replace(max(verdicts, key=_excess), signals=signals))
            return
        # where the plant is stopped no joint has an error: the joint that stopped it comes first
        reasons = [change.reason for change in self._notes.changes if change.mode == STOPPED]

        def order(verdict: Verdict) -> tuple[float, bool]:
            return _excess(verdict), any(reason.startswith(f"{verdict.subject} ") for reason in reasons)

        worst = max(failed, key=order)
        peers = [verdict.subject for verdict in failed if verdict is not worst]
        self._record_verdict(replace(worst, signals=signals, sentence=worst.sentence + _other_joints(peers)))

    def _verdict_on(self, signal: Signal, band: _Band) -> Verdict:
        values, quantity = np.abs(signal.values) if self._size else signal.values, self.quantity
        holds = band.holds(values)
        numbers = np.isfinite(values)
        # Of values with a NaN it is the first NaN: it is used only if all are numbers.
        worst = int(np.argmax(band.excess(values)))
        limit = f"{band.words} {signal.unit}".rstrip()
        prefix = f"{signal.name}: " if signal.name else ""
        value, passes = float(values[worst]), bool(holds.all())
        if passes:
            size = sized(value, signal.unit)
            sentence = f"{prefix}{quantity} {size} at {signal.t[worst]:.4g} s, allowed {limit}"
        elif not numbers.all():
            value, t = math.nan, float(signal.t[np.argmin(numbers)])
            count = f"{np.count_nonzero(~numbers)} of {len(values)} samples"
            sentence = f"{prefix}{quantity} is no number at {t:.4g} s ({count}){self._why(t)}, allowed {limit}"
        else:
            share = format_number(100.0 * float(np.mean(~holds)))
            size = sized_beside(value, signal.unit, band.lower, band.upper)
            excess = f"first exceeded at {signal.t[np.argmin(holds)]:.4g} s; {share} % of the run"
            sentence = f"{prefix}{quantity} {size} at {signal.t[worst]:.4g} s, allowed {limit} ({excess})"
        lower = -band.upper if self._size else band.lower
        signals = (signal,)
        return Verdict(quantity, signal.name, value, signal.unit, limit, passes, sentence, signals, lower, band.upper)


def _excess(verdict: Verdict) -> float:
    """By how much its value is outside of what is allowed; negative inside, infinite where it is no number."""
    return math.inf if math.isnan(verdict.value) else max(verdict.value - verdict.upper, verdict.lower - verdict.value)


class Value(NamedTuple):
    """One number of a joint, or of the run where `name` is empty. detail: additional text for messages."""

    name: str
    value: float
    unit: str
    detail: str = ""


class Numbers(_Measure):
    """One number per joint, or one of the run. Assertions raise as those of `OverTime`."""

    def __init__(
        self, notes: Notes, quantity: str, values: Sequence[Value], signals: Sequence[Signal] = (), curve: str = ""
    ) -> None:
        """curve: the quantity that the signals are, where it is not `quantity`."""
        super().__init__(notes, quantity, curve)
        self._values = tuple(values)
        self._signals = tuple(signals)

    @property
    def values(self) -> tuple[Value, ...]:
        """All values."""
        self._mark_judged()
        return self._values

    @property
    def value(self) -> float:
        """The largest value; NaN if one is NaN, or if there are no values."""
        self._mark_judged()
        return float(np.max([value.value for value in self._values])) if self._values else math.nan

    def at_least(self, limit: float) -> None:
        """No value is below the limit."""
        __tracebackhide__ = True
        self._hold(_Band(limit, math.inf, f"at least {format_number(limit)}"))

    def _hold(self, band: _Band) -> None:
        __tracebackhide__ = True
        if not self._values:
            self._fail("nothing was recorded that could be judged")
        values = np.array([value.value for value in self._values])
        excess = np.where(np.isnan(values), math.inf, band.excess(values))
        bad = np.flatnonzero(~band.holds(values)).tolist()
        k = max(bad or range(len(values)), key=lambda n: excess[n])
        name, value, unit, detail = self._values[k]
        allowed = f"{band.words} {unit}".rstrip()
        size = "is no number" if math.isnan(value) else sized_beside(value, unit, band.lower, band.upper)
        failing = [self._values[n].name for n in bad if n != k]
        text = f"{self.quantity} {size}{f' ({detail})' if detail else ''}, allowed {allowed}{_other_joints(failing)}"
        sentence = f"{name}: {text}" if name else text
        names = {self._values[n].name for n in bad}
        signals = tuple(signal for signal in self._signals if not bad or "" in names or signal.name in names)
        self._record_verdict(Verdict(self.quantity, name, value, unit, allowed, not bad, sentence, signals))


def _other_joints(joints: Sequence[str]) -> str:
    return f"; so {'are' if len(joints) > 1 else 'is'} {listing(joints, _MAX_NAMED)}" if joints else ""

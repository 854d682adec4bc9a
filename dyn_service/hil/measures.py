"""Measures of a run, their bounds, and messages that name the time and the excess.

A measure is either one value per time (`OverTime`) or one per joint or run (`Numbers`); its methods hold it against
what is allowed. What is not a number fails, and so does what is empty: nothing was seen then, which is no good news.

Every assertion, passed or not, is noted as a `Verdict`, for reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.report.verdicts import said, sized
from dyn_service.hil.signals import Array, Signal

_NAMED = 3
"""Failing joints named in a message, in addition to the worst."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """One assertion. subject: the joint that came closest to, or farthest beyond, what is allowed; value: how close, in
    `unit`. allowed: the bound as text. sentence: the message, passed or failed. signals: what was judged; lower, upper:
    what is allowed of each, where that is a band over time. broken_s: when it was first left. shown: the quantity that
    the signals are, `velocity` for a time to safe stop.
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
    broken_s: float | None = None
    shown: str = ""


class _Band(NamedTuple):
    """What is allowed of a signal: lower <= value <= upper; `strictly` without the ends. words: as one would say it."""

    lower: float
    upper: float
    words: str
    strictly: bool = False

    def holds(self, values: Array) -> NDArray[np.bool_]:
        """Whether each value is within the band; False for NaN and infinite values."""
        finite = np.isfinite(values)
        if self.strictly:
            return finite & (values > self.lower) & (values < self.upper)
        return finite & (values >= self.lower) & (values <= self.upper)

    def excess(self, values: Array) -> Array:
        """How far each value is outside the band; negative inside."""
        with np.errstate(invalid="ignore"):
            return np.maximum(values - self.upper, self.lower - values)


class Notes:
    """Notes of a run. verdicts: its assertions. unjudged: measures that were neither asserted nor read yet."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []
        self.unjudged: list[_Measure] = []


class _Measure:
    """Base of all measures. notes: where verdicts are recorded; what: the quantity."""

    def __init__(self, notes: Notes, what: str, shown: str = "") -> None:
        self._notes, self.what, self.shown = notes, what, shown or what
        notes.unjudged.append(self)

    def _used(self) -> None:
        if self in self._notes.unjudged:
            self._notes.unjudged.remove(self)

    def _judged(self, verdict: Verdict) -> None:
        __tracebackhide__ = True
        self._used()
        self._notes.verdicts.append(replace(verdict, shown=self.shown))
        if not verdict.passed:
            raise AssertionError(verdict.sentence)

    def _nothing(self, why: str) -> None:
        __tracebackhide__ = True
        self._judged(Verdict(self.what, "", math.nan, "", "", False, f"{self.what}: {why}"))


class OverTime(_Measure):
    """One or several signals; each value is judged."""

    def __init__(
        self,
        notes: Notes,
        what: str,
        signals: Sequence[Signal],
        *,
        size: bool = True,
        limits: Sequence[tuple[float, float]] = (),
        why_not: Callable[[float], str] | None = None,
    ) -> None:
        """size: whether values are judged by their magnitude. limits: of each signal, what the robot's file allows.
        why_not: says of a time why there is no number.
        """
        super().__init__(notes, what)
        self._signals = tuple(signals)
        self._size, self._limits, self._why_not = size, limits, why_not

    @property
    def signals(self) -> tuple[Signal, ...]:
        """The signals, for assertions that have no method here."""
        self._used()
        return self._signals

    def below(self, limit: float) -> None:
        """Every value is below the limit.

        Raises:
            AssertionError: A value violates the bound or is not finite, or there are no values.
        """
        __tracebackhide__ = True
        self._hold([_Band(-math.inf, limit, f"below {said(limit)}", strictly=True)] * len(self._signals))

    def at_most(self, limit: float) -> None:
        """No value is above the limit.

        Raises:
            AssertionError: A value violates the bound or is not finite, or there are no values.
        """
        __tracebackhide__ = True
        self._hold([_Band(-math.inf, limit, f"at most {said(limit)}")] * len(self._signals))

    def within_limits(self, margin: float = 0.0, *, share: float = 1.0) -> None:
        """No value is beyond the share of what the robot's file allows, less a margin in the signal's unit.

        Raises:
            AssertionError: One is, is not a number, or no joint has such a limit.
        """
        __tracebackhide__ = True
        if not self._limits:
            raise InvalidArgumentError(f"the robot's file has no limits of {self.what}: say `below` or `at_most`")
        self._used()  # judged with its sign, by another
        bands = []
        for lower, upper in self._limits:
            middle = 0.5 * (lower + upper) if math.isfinite(lower) and math.isfinite(upper) else 0.0
            low, high = middle + share * (lower - middle) + margin, middle + share * (upper - middle) - margin
            bands.append(_Band(low, high, f"{said(low)} to {said(high)}"))
        limited = [k for k, band in enumerate(bands) if math.isfinite(band.lower) or math.isfinite(band.upper)]
        if not limited:
            self._nothing(f"{', '.join(one.name for one in self._signals)}: no limit in the robot's file to judge by")
        signed = OverTime(
            self._notes, self.what, [self._signals[k] for k in limited], size=False, why_not=self._why_not
        )
        signed._hold([bands[k] for k in limited])

    @property
    def rms(self) -> Numbers:
        """The root of the mean square over time, of each signal."""
        return self._folded("rms", lambda x: math.sqrt(float(np.mean(x * x))))

    def percentile(self, q: float) -> Numbers:
        """The percentile q (0 to 100) over time, of each signal's magnitude.

        Raises:
            InvalidArgumentError: q is not from 0 to 100.
        """
        if not 0.0 <= q <= 100.0:
            raise InvalidArgumentError(f"percentile({q:g}): expected 0 to 100")
        return self._folded(f"p{q:g}", lambda x: float(np.percentile(np.abs(x), q)))

    @property
    def rate(self) -> OverTime:
        """The rate of change of each signal."""
        self._used()
        return OverTime(self._notes, f"rate of {self.what}", [one.rate() for one in self._signals])

    def _folded(self, how: str, fold: Callable[[Array], float]) -> Numbers:
        self._used()
        return Numbers(
            self._notes,
            f"{how} of {self.what}",
            [self._number(one, fold) for one in self._signals],
            self._signals,
        )

    def _number(self, signal: Signal, fold: Callable[[Array], float]) -> Value:
        if not len(signal.t):
            return Value(signal.name, math.nan, signal.unit, "nothing was recorded")
        bad = np.flatnonzero(~np.isfinite(signal.values))
        detail = f"not at {signal.t[bad[0]]:.4g} s{self._why(float(signal.t[bad[0]]))}" if len(bad) else ""
        return Value(signal.name, math.nan if len(bad) else fold(signal.values), signal.unit, detail)

    def _why(self, t: float) -> str:
        return self._why_not(t) if self._why_not is not None else ""

    def _hold(self, bands: Sequence[_Band]) -> None:
        __tracebackhide__ = True
        seen = [(one, band) for one, band in zip(self._signals, bands, strict=True) if len(one.t)]
        if len(seen) < len(self._signals) or not seen:
            self._nothing("nothing was recorded that could be judged")
        found = [self._one(signal, band) for signal, band in seen]
        failed = [one for one in found if not one.passed]
        if not failed:
            nearest = max(found, key=_excess)
            self._judged(_with(nearest, [one for each in found for one in each.signals]))
            return
        worst = max(failed, key=_excess)
        others = [one.subject for one in failed if one is not worst]
        self._judged(_with(worst, [one for each in failed for one in each.signals], worst.sentence + _also(others)))

    def _one(self, signal: Signal, band: _Band) -> Verdict:
        values = np.abs(signal.values) if self._size else signal.values
        holds = band.holds(values)
        numbers = np.isfinite(values)
        worst = int(np.argmax(band.excess(values)))  # asked for where all are numbers alone
        allowed = f"{band.words} {signal.unit}".rstrip()
        first = int(np.argmin(holds))
        who = f"{signal.name}: " if signal.name else ""
        if holds.all():
            at = f"{who}{self.what} {sized(values[worst], signal.unit)} at {signal.t[worst]:.4g} s"
            sentence, value = f"{at}, allowed {allowed}", float(values[worst])
        elif not numbers.all():
            when = int(np.argmin(numbers))
            why = self._why(float(signal.t[when]))
            count = f"{np.count_nonzero(~numbers)} of {len(values)} samples"
            sentence = f"{who}{self.what} is no number at {signal.t[when]:.4g} s ({count}){why}, allowed {allowed}"
            value, first = math.nan, when
        else:
            share = said(100.0 * float(np.mean(~holds)))
            found = _beside(values[worst], band, signal.unit)
            sentence = (
                f"{who}{self.what} {found} at {signal.t[worst]:.4g} s, allowed {allowed} "
                f"(first exceeded at {signal.t[first]:.4g} s; {share} % of the run)"
            )
            value = float(values[worst])
        passed = bool(holds.all())
        lower = -band.upper if self._size else band.lower
        broken = None if passed else float(signal.t[first])
        return Verdict(
            self.what, signal.name, value, signal.unit, allowed, passed, sentence, (signal,), lower, band.upper, broken
        )


def _excess(one: Verdict) -> float:
    """By how much its value is outside of what is allowed; negative inside, infinite where it is no number."""
    return math.inf if math.isnan(one.value) else max(one.value - one.upper, one.lower - one.value)


class Value(NamedTuple):
    """One number of a joint, or of the run where `name` is empty. detail: additional text for messages."""

    name: str
    value: float
    unit: str
    detail: str = ""


class Numbers(_Measure):
    """One number per joint, or one of the run."""

    def __init__(
        self, notes: Notes, what: str, values: Sequence[Value], signals: Sequence[Signal] = (), shown: str = ""
    ) -> None:
        """shown: the quantity that the signals are, where it is not `what`."""
        super().__init__(notes, what, shown)
        self._values = tuple(values)
        self._signals = tuple(signals)

    @property
    def values(self) -> tuple[Value, ...]:
        """All values."""
        self._used()
        return self._values

    @property
    def value(self) -> float:
        """The largest value; NaN if one is NaN, or if there are no values."""
        self._used()
        return float(np.max([one.value for one in self._values])) if self._values else math.nan

    def below(self, limit: float) -> None:
        """Each is below the limit.

        Raises:
            AssertionError: A value violates the bound or is not finite, or there are no values.
        """
        __tracebackhide__ = True
        self._hold(_Band(-math.inf, limit, f"below {said(limit)}", strictly=True))

    def at_most(self, limit: float) -> None:
        """None is above the limit.

        Raises:
            AssertionError: A value violates the bound or is not finite, or there are no values.
        """
        __tracebackhide__ = True
        self._hold(_Band(-math.inf, limit, f"at most {said(limit)}"))

    def at_least(self, limit: float) -> None:
        """None is below the limit.

        Raises:
            AssertionError: A value violates the bound or is not finite, or there are no values.
        """
        __tracebackhide__ = True
        self._hold(_Band(limit, math.inf, f"at least {said(limit)}"))

    def _hold(self, band: _Band) -> None:
        __tracebackhide__ = True
        if not self._values:
            self._nothing("nothing was recorded that could be judged")
        holds = [bool(band.holds(np.array(one.value))) for one in self._values]
        excess = [
            math.inf if math.isnan(one.value) else float(band.excess(np.array(one.value))) for one in self._values
        ]
        bad = [k for k, good in enumerate(holds) if not good]
        k = max(bad or range(len(holds)), key=lambda n: excess[n])
        one, what = self._values[k], self.what
        who = f"{one.name}: " if one.name else ""
        allowed = f"{band.words} {one.unit}".rstrip()
        found = "is no number" if math.isnan(one.value) else _beside(one.value, band, one.unit)
        detail = f" ({one.detail})" if one.detail else ""
        others = [self._values[n].name for n in bad if n != k]
        sentence = f"{who}{what} {found}{detail}, allowed {allowed}{_also(others)}"
        broken = {self._values[n].name for n in bad}
        shown = [signal for signal in self._signals if not bad or "" in broken or signal.name in broken]
        self._judged(Verdict(what, one.name, one.value, one.unit, allowed, not bad, sentence, tuple(shown)))


def _also(others: Sequence[str]) -> str:
    """Which other joints fail."""
    named = ", ".join(others[:_NAMED]) + (f" and {len(others) - _NAMED} more" if len(others) > _NAMED else "")
    return f"; so {'are' if len(others) > 1 else 'is'} {named}" if others else ""


def _beside(x: float, band: _Band, unit: str) -> str:
    """A number with its unit, with more digits where it would read as a bound that it is beyond."""
    near = said(float(x)) in (said(band.lower), said(band.upper)) and float(x) not in (band.lower, band.upper)
    return f"{float(x)!r} {unit}".rstrip() if near else sized(x, unit)


def _with(verdict: Verdict, signals: Sequence[Signal], sentence: str | None = None) -> Verdict:
    return replace(verdict, signals=tuple(signals), sentence=sentence or verdict.sentence)

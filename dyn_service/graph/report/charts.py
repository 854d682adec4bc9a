"""Data of a page's charts: lines with units, findings, and series reduced to what a chart shows.

Charts are drawn in the browser, without a plotting library. Those over time share one time axis: zooming in one shows
the same span in all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from dyn_service.api.queries import Array

Role = Literal["measured", "reference", "error", "effort", "limit", "second", "third", "fourth"]
"""Meaning of a line or mark; a page has a colour for each, in light and dark mode."""
ENTRIES: tuple[Role, ...] = ("measured", "second", "effort", "fourth")
"""Roles of a joint's entries, such as x, y, z and w; a joint with one entry has the first."""
Span = tuple[float, float]
"""Begin and end, s."""
MICRO = "\N{MICRO SIGN}"
ROUNDING = 1e-12
"""Rad, m, N or N m below which values are rounding errors, drawn as a flat line."""
_PREFIXES = ((1.0, ""), (1e3, "m"), (1e6, MICRO), (1e9, "n"))


@dataclass(frozen=True)
class Line:
    """A line of a chart. values: (k,), at the chart's x; NaN breaks the line."""

    label: str
    values: Array
    role: Role = "measured"


@dataclass(frozen=True)
class Mark:
    """A straight line at `at` across a chart. label: may be empty. along: the axis of `at`."""

    at: float
    label: str = ""
    along: Literal["x", "y"] = "y"
    role: Role = "limit"


@dataclass(frozen=True)
class Chart:
    """Lines over one x.

    x: (k,), not falling. lines: at least one. label: of the y axis, with its unit. x_label: of the x axis. kind: how
    the lines are drawn. log: which axes are logarithmic. marks: the axes are stretched to include them. bands: spans
    shaded in grey, such as those without command. alarms: spans shaded in red, such as those beyond a limit.
    from_zero: whether the y axis begins at 0. least: the y axis spans at least this, so that rounding errors do not
    fill it. height: px. timed: whether x is the run's time.
    """

    x: Array
    lines: Sequence[Line]
    label: str
    x_label: str = "time [s]"
    kind: Literal["line", "points", "bars"] = "line"
    log: Literal["", "x", "y", "xy"] = ""
    marks: Sequence[Mark] = ()
    bands: Sequence[Span] = ()
    alarms: Sequence[Span] = ()
    from_zero: bool = False
    least: float = 0.0
    height: int = 150
    timed: bool = True


@dataclass(frozen=True)
class Card:
    """Charts of one subject, such as a joint, one below the other. wide: whether they fill the row."""

    title: str
    charts: Sequence[Chart]
    note: str = ""
    wide: bool = False


@dataclass(frozen=True)
class Finding:
    """A finding about a run. text: one sentence with the joint and the amount. spans: its times, if known.

    grave: whether it changed the run, as a safe stop or a dropped command does.
    """

    text: str
    spans: Sequence[Span] = ()
    grave: bool = False


def prefix(size: float) -> tuple[float, str]:
    """Returns the unit prefix for which a size is at least 1, with its factor; no prefix for rounding errors."""
    if size < ROUNDING:
        return _PREFIXES[0]
    return next((prefix for prefix in _PREFIXES if size * prefix[0] >= 1.0), _PREFIXES[-1])


def scaled(values: Array, unit: str) -> tuple[Array, str]:
    """Returns values in a unit for which the largest is at least 1, and that unit."""
    factor, letter = prefix(float(np.abs(values[np.isfinite(values)]).max(initial=0.0)))
    return factor * values, f"{letter}{unit}"


def spans_of(t: Array, holds: np.ndarray[tuple[int], np.dtype[np.bool_]], *, join_s: float = 0.0) -> list[Span]:
    """Returns the spans of the times t (k,) at which a condition holds (k,); spans at most join_s apart are merged.

    A span ends at the last time at which the condition holds; a single time is a span of length 0.
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], holds, [False]]).astype(np.int8)))
    spans: list[Span] = []
    for begin, end in zip(edges[::2], edges[1::2] - 1, strict=True):
        if spans and t[begin] - spans[-1][1] <= join_s:
            spans[-1] = (spans[-1][0], float(t[end]))
        else:
            spans.append((float(t[begin]), float(t[end])))
    return spans


def histogram(values: Array, bins: int = 90) -> tuple[Array, Array]:
    """Returns a histogram with logarithmic bins: their middles (bins,) and counts (bins,)."""
    low, high = math.log10(max(float(values.min()), 1.0)), math.log10(max(float(values.max()), 10.0))
    edges = np.logspace(low - 0.02, high + 0.02, bins + 1)
    count, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
    return np.sqrt(edges[:-1] * edges[1:]), count.astype(np.float64)


_GAP_STEPS, _GAP_S = 3.5, 0.06
"""Rows further apart than this number of median steps and this time are not joined by a line."""


def quantiles(values: Array) -> dict[str, float | int | None]:
    """Returns count, mean, p50, p99, p99.9 and maximum."""
    names = ("mean", "p50", "p99", "p99_9", "max")
    if not values.size:
        return {"count": 0, **dict.fromkeys(names)}
    figures = (values.mean(), *np.percentile(values, (50.0, 99.0, 99.9)), values.max())
    return {"count": int(values.size), **dict(zip(names, map(float, figures), strict=True))}


def resumptions(t: Array) -> Array:
    """Returns the times that follow missing ones."""
    if len(t) < 3:
        return t[:0]
    step = np.diff(t)
    return t[1:][step > max(_GAP_STEPS * float(np.median(step)), _GAP_S)]


def with_gaps(t: Array, values: Array, times: Array) -> tuple[Array, Array]:
    """Returns times and values with NaN inserted before these times, which breaks the line."""
    breaks = np.unique(np.searchsorted(t, times))
    return np.insert(t, breaks, np.nan), np.insert(values, breaks, np.nan, axis=0)


def envelope(t: Array, values: Array, points: int) -> tuple[Array, Array]:
    """Returns some `points` points of lines (k,) or (k, n) that keep the minimum and maximum of each line per interval.

    All lines keep the same times; NaN stays NaN.
    """
    if len(t) <= points:
        return t, values
    lines = values.reshape(len(t), -1)
    intervals = max(1, points // (2 * lines.shape[1]))
    edges = np.linspace(0, len(t), intervals + 1).astype(int)
    low, high = np.where(np.isnan(lines), np.inf, lines), np.where(np.isnan(lines), -np.inf, lines)
    rows_kept: set[int] = set()
    for begin, end in pairwise(edges.tolist()):
        extremes = low[begin:end].argmin(axis=0), high[begin:end].argmax(axis=0)
        rows_kept.update((begin + np.concatenate(extremes)).tolist())
    rows = sorted(rows_kept)
    return t[rows], values[rows]


def running_time(time: Array) -> Array:
    """Returns the times of several runs, each of which begins at 0, as one increasing time."""
    step = np.diff(time, prepend=0.0)
    return np.cumsum(np.where(step < 0.0, 0.0, step))

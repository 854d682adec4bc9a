"""Series of numbers to what a report shows of them. Arrays in, arrays and maps out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from dyn_service.api.queries import Array

_GAP_STEPS, _GAP_S = 3.5, 0.06
"""Rows further apart than this many typical steps and this time are not joined by a line."""


def quantiles(values: Array) -> dict[str, float | int | None]:
    """Count, mean, p50, p99, p99.9 and maximum."""
    if not values.size:
        return {"count": 0, "mean": None, "p50": None, "p99": None, "p99_9": None, "max": None}
    p50, p99, p999 = np.percentile(values, (50.0, 99.0, 99.9))
    return {
        "count": int(values.size),
        "mean": float(values.mean()),
        "p50": float(p50),
        "p99": float(p99),
        "p99_9": float(p999),
        "max": float(values.max()),
    }


def with_gaps(t: Array, values: Array) -> tuple[Array, Array]:
    """The lines of a plot, broken where times are missing."""
    if len(t) < 3:
        return t, values
    step = np.diff(t)
    breaks = np.flatnonzero(step > max(_GAP_STEPS * float(np.median(step)), _GAP_S)) + 1
    return np.insert(t, breaks, np.nan), np.insert(values, breaks, np.nan, axis=0)


def envelope(t: Array, values: Array, points: int) -> tuple[Array, Array]:
    """At most about `points` points of lines (k,) or (k, n), at the same times, that keep least and largest values.

    They do so in each interval, for every line; a line that is NaN somewhere is so there in what is kept.
    """
    if len(t) <= points:
        return t, values
    lines = values.reshape(len(t), -1)
    intervals = max(1, points // (2 * lines.shape[1]))
    edges = np.linspace(0, len(t), intervals + 1).astype(int)
    low, high = np.where(np.isnan(lines), np.inf, lines), np.where(np.isnan(lines), -np.inf, lines)
    chosen: set[int] = set()
    for begin, end in pairwise(edges.tolist()):
        chosen.update(
            (begin + low[begin:end].argmin(axis=0)).tolist(), (begin + high[begin:end].argmax(axis=0)).tolist()
        )
    rows = sorted(chosen)
    return t[rows], values[rows]


def running_time(time: Array) -> Array:
    """Times of several runs, each from 0, one after the other; the first run's are its own."""
    step = np.diff(time, prepend=0.0)
    return np.cumsum(np.where(step < 0.0, 0.0, step))

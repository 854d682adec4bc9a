"""Causes of a failed assertion that the record of the run knows: nodes that ended, stops, warnings, a wrong sign."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dyn_service.control.plant.safety import ACTIVE, STOPPED
from dyn_service.graph.report.verdicts import sized
from dyn_service.hil.signals import Record

_SAMPLES = 10
"""A sign is judged by at least this many samples."""
_GROWN = 1e-2
"""rad | m: an error below this may be that of a law which works."""
_AGAINST = -0.8
"""Correlation of effort and error below which the effort drives the joint away; of a spring it is near 1."""


def causes(record: Record, sentence: str, lost: Sequence[str]) -> list[str]:
    """Returns the causes that the sentence does not contain yet. lost: nodes that ended by themselves."""
    first = next((change for change in record.changes if change.mode == STOPPED), None)
    stopped = [] if first is None or first.reason in sentence else [f"at {first.t:.4g} s the plant is {first.words}"]
    warnings = [text for _, text in record.notes if "WARNING" in text]
    return [*lost, *stopped, *dict.fromkeys(warnings), *pushed_away(record)]


def pushed_away(record: Record) -> list[str]:
    """Hints at joints whose effort grows against the error, from when the plant is under command to the largest error.

    A law's effort e.g. K (q_ref - q) grows with the error q_ref - q, be it ever so wrong in size. With a wrong sign, or
    on another joint than it is meant for, it grows against it, and the error grows.
    """
    if not (len(record.t) and np.isfinite(record.begun_s)):
        return []
    active = record.under(ACTIVE)
    first = int(np.argmax(active))
    count = int(np.argmin(active[first:])) or len(active) - first
    hints = []
    for error, effort in zip(record.signals("error"), record.signals("effort"), strict=True):
        e, tau = (one.values[first : first + count] for one in (error, effort))
        if not np.isfinite(e).all() or not np.isfinite(tau).all():
            continue
        last = int(np.argmax(np.abs(e))) + 1
        e, tau = e[:last], tau[:last]
        if last < _SAMPLES or abs(e[-1]) < _GROWN or not np.ptp(tau) > 0.0:
            continue
        if np.corrcoef(e, tau)[0, 1] < _AGAINST:
            moved = f"{sized(tau[-1] - tau[0], effort.unit)} at an error of {sized(e[-1], error.unit)}"
            hints.append(
                f"hint: the effort of {error.name} changes by {moved}, away from the reference: is its sign right, and "
                "the order of the joints?"
            )
    return hints

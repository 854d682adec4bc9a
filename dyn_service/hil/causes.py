"""Causes of a failed assertion that the record of the run knows: nodes that ended, stops, warnings, a wrong sign."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dyn_service.control.plant.safety import STOPPED
from dyn_service.hil.signals import Change, Record

_AGAINST = -0.5
"""Correlation of the changes of effort and error below which it drives the joint away; of a spring it is near 1."""
_CHATTER = 0.5
"""Share of samples at which the effort changes its direction, from which the loop oscillates at its own rate."""

_SWINGS, _WIDER = 6, 2.0
"""Changes of the error's sign, and growth from its first to its last third, from which the loop swings ever wider. A
wrong sign gives no swings, and the error of a stable loop on a periodic reference does not grow.
"""


def causes(record: Record, sentence: str, ended: Sequence[str]) -> list[str]:
    """Returns the causes that the sentence does not contain yet. ended: nodes that ended by themselves."""
    first = next((change for change in record.changes if change.mode == STOPPED), None)
    stopped = [] if first is None or first.reason in sentence else [f"at {first.t:.4g} s the plant is {first.words}"]
    warnings = [text for _, text in record.notes if "WARNING" in text and STOPPED not in text]
    return [*ended, *stopped, *dict.fromkeys(warnings), *(_hints(record, first) if first else [])]


def _hints(record: Record, stop: Change) -> list[str]:
    """Hints at a wrong sign, or a gain too large, of the joint that stopped the plant.

    A law's effort, such as K (q_ref - q), grows with the error q_ref - q, however wrong in size. With a wrong sign, or
    on another joint than it is meant for, it grows against it. With K far too large it oscillates: at the rate of the
    loop, or, if the damping is in the right unit, more slowly and ever wider.
    """
    for error, effort in zip(record.signals("error"), record.signals("effort"), strict=True):
        e, tau = np.diff(error.values), np.diff(effort.values)
        finite = np.isfinite(e) & np.isfinite(tau)
        e, tau = e[finite], tau[finite]
        if not stop.reason.startswith(f"{error.name} ") or len(e) < 2:
            continue
        if np.mean(np.diff(np.sign(tau)) != 0.0) > _CHATTER:
            return [
                f"hint: the effort of {error.name} changes its direction all the time: a unit, or a gain too large?"
            ]
        if e @ tau < _AGAINST * np.linalg.norm(e) * np.linalg.norm(tau):
            return [f"hint: the effort of {error.name} grows against its error: a wrong sign, or order of joints?"]
        values = error.values[np.isfinite(error.values) & (error.t < stop.t)]
        swings, third = np.count_nonzero(np.diff(np.sign(values))), len(values) // 3
        if swings >= _SWINGS and np.abs(values[-third:]).max() > _WIDER * np.abs(values[:third]).max():
            return [f"hint: the error of {error.name} swings ever wider: a unit (degrees?), or a gain too large?"]
    return []

"""Records of runs that never were, for tests that know every number in them."""

from __future__ import annotations

import numpy as np

from dyn_service.hil.signals import Change, Group, Record, Signal
from dyn_service.model.configuration import Limits

NAMES = ("shoulder", "elbow")
BEGUN = (Change(0.0, "braked", "start"), Change(0.1, "arming", ""), Change(0.2, "active", ""))


def record(
    *,
    count: int = 1001,
    dt: float = 0.001,
    changes: tuple[Change, ...] = BEGUN,
    answers: tuple[np.ndarray, np.ndarray] | None = None,
    counts: dict[str, int] | None = None,
    **groups: object,
) -> Record:
    """A record of 1 s of two joints at rest at 0, at 1 kHz; arguments replace groups by name.

    A group is (count, 2) numbers, or a function of the times that returns one joint's, for `shoulder`.
    """
    t = dt * np.arange(count)
    units = {"velocity": "/s", "reference_velocity": "/s"}
    kinds = ["position", "velocity", "effort", "reference", "reference_velocity", "error", *groups]
    groups_made = {}
    for kind in dict.fromkeys(kinds):
        values = np.zeros((count, 2))
        source = groups.get(kind)
        if callable(source):
            values[:, 0] = source(t)
        elif source is not None:
            values[:] = source
        unit = "N m" if kind == "effort" else "rad" + units.get(kind, "")
        groups_made[kind] = Group(NAMES, (unit, unit), values)
    answer_times, delays = answers if answers is not None else (t[200::2], np.full(len(t[200::2]), 0.001))
    inf = np.array([np.inf, np.inf])
    bounds = Limits(np.array([-2.0, -np.inf]), np.array([3.0, np.inf]), np.array([1.5, np.inf]), inf)
    signal = Signal("answers", "s", answer_times, delays)
    return Record(
        t, groups_made, changes, signal, bounds, 0.002, 0.002, {"refused": 0} if counts is None else counts, "arm"
    )

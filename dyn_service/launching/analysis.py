"""From recordings to figures: the tracking error, round trips, rates. Arrays in, arrays and maps out.

The tracking error is not what the controller says of itself: the plant's own recording, every step that was kept, is
held against the reference motion evaluated again at the plant's times. Only times at which the plant was under
command count; how large that share is is stated with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from dyn_service.launching.board import Board, NodeBoard, Recording
from dyn_service.nodes.plant_core import ACTIVE, MODES
from dyn_service.nodes.trajectory import from_wire
from dyn_service.queries import Array

_GAP_STEPS, _GAP_S = 3.5, 0.06
"""Rows further apart than this many typical steps and this time are not joined by a line."""


@dataclass
class Motion:
    """What the plant did, in the order of its joints. Rows of all runs of the plant, one after the other.

    t (k,) s since the first row, pauses between runs left out; q, v, effort, reference, error (k, n); active (k,)
    whether the plant was under command and a reference is known. stride: rows of the node per row that is kept.
    """

    joints: tuple[str, ...]
    units: tuple[str, ...]
    t: Array
    q: Array
    v: Array
    effort: Array
    reference: Array
    error: Array
    active: np.ndarray[Any, np.dtype[np.bool_]]
    stride: int
    effort_limit: Array
    lower: Array
    upper: Array


@dataclass
class Loads:
    """Magnitudes of the constraint force (k, j) N and torque (k, j) N m at each joint, at the times t (k,) s."""

    joints: tuple[str, ...]
    t: Array
    force: Array
    torque: Array


@dataclass
class Figures:
    """All that a report shows of a run; None where the launch had no such node."""

    plant: NodeBoard | None
    controller: NodeBoard | None
    motion: Motion | None
    loads: Loads | None
    round_trips: Recording | None
    summary: dict[str, Any] = field(default_factory=dict)


def figures_of(board: Board) -> Figures:
    """The figures of a run."""
    plant, controller = board.with_role("plant"), board.with_role("controller")
    motion = None if plant is None else motion_of(plant, controller)
    loads = None if controller is None else loads_of(controller)
    requests = None if controller is None else controller.recordings.get("requests")
    figures = Figures(plant, controller, motion, loads, requests)
    if plant is not None:
        figures.summary["plant"] = _plant_summary(plant)
    if controller is not None:
        figures.summary["requests"] = _request_summary(controller, requests)
    if motion is not None:
        figures.summary["tracking"] = tracking_summary(motion)
    if loads is not None:
        figures.summary["loads"] = _loads_summary(loads)
    return figures


def motion_of(plant: NodeBoard, controller: NodeBoard | None) -> Motion | None:
    """The plant's recording beside the reference, or None where nothing was recorded."""
    recording = plant.recordings.get("plant")
    if recording is None or not len(recording.table):
        return None
    joints, q = recording.group("q")
    _, v = recording.group("v")
    _, effort = recording.group("tau")
    time, session = recording.column("t"), recording.column("session")
    reference = np.full_like(q, np.nan)
    known = [] if controller is None else [facts["reference"] for facts in controller.facts if "reference" in facts]
    for k, one in enumerate(known):
        begin = float(one["begin_s"])
        later = [float(o["begin_s"]) for o in known[k + 1 :] if o["session"] == one["session"]]
        rows = (session == one["session"]) & (time >= begin) & (time < min(later, default=math.inf))
        order = [list(one["joints"]).index(name) for name in joints]
        reference[rows] = from_wire(one["motion"]).sample(time[rows] - begin).q[:, order]
    active = (recording.column("mode") == MODES.index(ACTIVE)) & np.isfinite(reference).all(axis=1)

    def fact(name: str, default: float) -> Array:
        value = plant.fact(name)
        return np.array(value, dtype=np.float64) if value is not None else np.full(len(joints), default)

    return Motion(
        joints=joints,
        units=tuple(plant.fact("units") or ["rad"] * len(joints)),
        t=_running_time(time),
        q=q,
        v=v,
        effort=effort,
        reference=reference,
        error=reference - q,
        active=active,
        stride=recording.stride,
        effort_limit=fact("effort_limit", math.inf),
        lower=fact("lower", -math.inf),
        upper=fact("upper", math.inf),
    )


def tracking_summary(motion: Motion) -> dict[str, Any]:
    """Root mean square and maximum of the tracking error, per joint and over all joints."""
    error = motion.error[motion.active]
    share = float(motion.active.mean())
    base = {"samples": len(error), "stride": motion.stride, "share_under_command": share}
    if not len(error):
        return {**base, "rms": None, "max": None, "rms_by_unit": {}, "joints": []}
    rms = np.sqrt((error**2).mean(axis=0))
    worst = np.abs(error).max(axis=0)
    return {
        **base,
        "rms": float(np.sqrt((error**2).mean())),
        "max": float(worst.max()),
        "rms_by_unit": {
            unit: float(np.sqrt((error[:, [u == unit for u in motion.units]] ** 2).mean()))
            for unit in sorted(set(motion.units))
        },
        "joints": [
            {"name": name, "unit": unit, "rms": float(r), "max": float(m)}
            for name, unit, r, m in zip(motion.joints, motion.units, rms, worst, strict=True)
        ],
    }


def loads_of(controller: NodeBoard) -> Loads | None:
    """The joint loads, or None where none were recorded."""
    recording = controller.recordings.get("loads")
    if recording is None or not len(recording.table):
        return None
    joints, force = recording.group("force")
    _, torque = recording.group("torque")
    return Loads(joints, _running_time(recording.column("t")), force, torque)


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
    """At most about `points` points of a line (k,) that keep each interval's least and largest value."""
    if len(t) <= points:
        return t, values
    edges = np.linspace(0, len(t), points // 2 + 1).astype(int)
    chosen: list[int] = []
    for begin, end in pairwise(edges.tolist()):
        part = values[begin:end]
        chosen += sorted({begin + int(np.argmin(part)), begin + int(np.argmax(part))})
    return t[chosen], values[chosen]


def _running_time(time: Array) -> Array:
    """Times of several runs, each from 0, one after the other; the first row is at 0."""
    step = np.diff(time, prepend=time[0])
    return np.cumsum(np.where(step < 0.0, 0.0, step))


def _plant_summary(plant: NodeBoard) -> dict[str, Any]:
    counters: Sequence[str] = (
        "steps", "published", "commands", "refused", "malformed", "overruns", "caught_up", "slipped", "stale_events",
        "stale_steps", "clamped_steps", "over_effort_steps", "out_of_range_steps", "telemetry_dropped",
    )  # fmt: skip
    stats = plant.stats
    names = ("rate_hz", "integrator", "substeps", "stale_policy", "command_timeout_s")
    return {
        **{name: plant.fact(name) for name in names},
        "measured_rate_hz": stats.get("step_rate_hz"),
        "late_p50_us": stats.get("late_p50_us"),
        **{name: plant.total(name) for name in counters},
    }


def _request_summary(controller: NodeBoard, requests: Recording | None) -> dict[str, Any]:
    counters = (
        "sent", "answered", "lost", "deadline_misses", "skipped", "commands", "command_drops", "reference_restarts",
        "telemetry_dropped",
    )  # fmt: skip
    summary: dict[str, Any] = {
        **{name: controller.fact(name) for name in ("endpoint", "rate_hz", "deadline_s", "natural_frequency")},
        **{name: controller.total(name) for name in counters},
        "measured_rate_hz": controller.stats.get("mean_rate_hz"),
    }
    if requests is not None and len(requests.table):
        took, kind = requests.column("round_trip_us"), requests.column("kind")
        summary["computed_torque_us"] = quantiles(took[kind == 0])
        summary["constraint_forces_us"] = quantiles(took[kind == 1])
        summary["stride"] = requests.stride
    return summary


def _loads_summary(loads: Loads) -> dict[str, Any]:
    return {
        "samples": len(loads.t),
        "joints": [
            {"name": name, "force_max_n": float(force), "torque_max_nm": float(torque)}
            for name, force, torque in zip(loads.joints, loads.force.max(axis=0), loads.torque.max(axis=0), strict=True)
        ],
    }

"""Charts of a plant's motion, and what there is to look at in it.

A joint with several ways to move has a card for its translation and one for its rotation. Spans in which the plant was
not under command are shaded, in charts of efforts those in which an effort was at its limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.plant.safety import ACTIVE, MODES, RUNNING, STOPPED
from dyn_service.graph.middleware.telemetry_store import Recording
from dyn_service.graph.nodes.plant.limit_shares import percent
from dyn_service.graph.nodes.plant.motion import Motion, Part, parts_of
from dyn_service.graph.report.charts import (
    ENTRIES,
    ROUNDING,
    Card,
    Chart,
    Finding,
    Line,
    Mark,
    Role,
    Span,
    prefix,
    spans_of,
)
from dyn_service.graph.report.series import running_time

_NEAR = 0.55
"""An effort above this share of its limit is drawn together with the limit."""
_AT_LIMIT = 1.0 - 1e-6
"""From this share of a limit on a value is at it: what cuts efforts may leave a rounding error."""
_JOIN_S = 0.05
"""Spans closer together than this are told as one: efforts chatter about a limit."""


def tracking_cards(motion: Motion) -> list[Card]:
    """Reference and measured position of every joint, what was commanded beside what it did, the error below."""
    idle = spans_of(motion.t, ~motion.active)
    cards = []
    for part in parts_of(motion.configuration):
        q, reference = motion.q[:, part.in_q], _where(motion.active, motion.reference[:, part.in_q])
        error = _where(motion.active, motion.error[:, part.in_v])
        errors = motion.error[motion.active][:, part.in_v]
        size, small = prefix(float(np.abs(errors).max(initial=0.0)))
        rms = size * math.sqrt(float((errors**2).mean())) if len(errors) else math.nan
        several = len(part.in_q) > 1
        lines = []
        for k, (name, role) in enumerate(zip(part.positions, ENTRIES, strict=False)):
            suffix = f" {name}" if several else ""
            if len(errors):
                lines.append(Line(f"reference{suffix}", reference[:, k], "reference"))
            lines.append(Line(f"measured{suffix}", q[:, k], role))
        if "position" in motion.commanded:
            lines.append(Line("commanded", motion.commanded["position"][:, part.in_v[0]], "second"))
        charts = [Chart(motion.t, lines, part.position, bands=idle, least=ROUNDING)]
        if "velocity" in motion.commanded:
            n = part.in_v[0]
            speeds = [Line("commanded", motion.commanded["velocity"][:, n], "second"), Line("measured", motion.v[:, n])]
            charts.append(Chart(motion.t, speeds, f"velocity [{part.error_unit}/s]", bands=idle, height=110))
        if len(errors):
            errors_of = _entries(part, size * error, "error", "error")
            label = f"error [{small}{part.error_unit}]"
            charts.append(Chart(motion.t, errors_of, label, bands=idle, height=110, least=ROUNDING))
        note = f"error rms {rms:.3g} {small}{part.error_unit}" if len(errors) else "never under command"
        cards.append(Card(part.title, charts, note))
    return cards


def effort_cards(motion: Motion) -> list[Card]:
    """Efforts of every joint that acted, beside those commanded, with their limits where they are near, else named."""
    cards = []
    for part in parts_of(motion.configuration):
        efforts, limits = motion.effort[:, part.in_v], motion.effort_limit[list(part.in_v)]
        note = f"peak {np.abs(efforts).max(initial=0.0):.3g} {part.effort_unit}"
        limit = float(limits.min())
        marks: list[Mark] = []
        alarms: list[Span] = []
        if math.isfinite(limit):
            note += f", limit \N{PLUS-MINUS SIGN}{limit:g} {part.effort_unit}"
            sides = (("limit", limit, efforts.max(initial=0.0)), ("-limit", -limit, -efforts.min(initial=0.0)))
            # a limit is drawn where it does not flatten the line
            marks = [Mark(at, label) for label, at, reached in sides if reached > _NEAR * limit]
            for n in part.in_v:
                alarms += _saturated(motion, n)
        lines = _entries(part, efforts, "effort", "effort")
        if "effort" in motion.commanded and len(part.in_v) == 1:
            asked = motion.commanded["effort"][:, part.in_v[0]]
            lines.insert(0, Line("commanded", asked, "second"))
        label = f"effort [{part.effort_unit}]"
        cards.append(
            Card(part.title, [Chart(motion.t, lines, label, marks=marks, alarms=alarms, least=ROUNDING)], note)
        )
    return cards


def motion_findings(motion: Motion, at_limits: float) -> list[Finding]:
    """Efforts at their limits, and joints at the limits of their positions and speeds: which, how much of the time.

    at_limits: the share of the time under command from which on that is grave.
    """
    at, t = motion.configuration, motion.t
    found: list[Finding] = []
    active = motion.mode == MODES.index(ACTIVE)
    for n, (name, turns) in enumerate(zip(at.velocity_names, at.turns, strict=True)):
        unit, speed_unit = ("N m", "rad/s") if turns else ("N", "m/s")
        spans = _saturated(motion, n)
        if spans:
            share = float((_at_effort_limit(motion, n) & active).sum() / max(1, int(active.sum())))
            text = (
                f"{name}: its effort was at its limit, \N{PLUS-MINUS SIGN}{motion.effort_limit[n]:g} {unit}, for "
                f"{percent(share)} of the time under command"
            )
            found.append(Finding(text, spans, grave=share > at_limits))
        limit = float(motion.velocity_limit[n])
        if math.isfinite(limit) and limit > 0.0:
            fast = np.abs(motion.v[:, n]) >= _AT_LIMIT * limit
            if fast.any():
                most = float(np.abs(motion.v[:, n]).max())
                text = f"{name}: it was faster than its limit, {limit:g} {speed_unit}: {most:.3g} at most"
                found.append(Finding(text, spans_of(t, fast, join_s=_JOIN_S), grave=True))
    for n, name in enumerate(at.position_names):
        for side, limit, beyond in (
            ("lower", motion.lower[n], motion.lower[n] - motion.q[:, n]),
            ("upper", motion.upper[n], motion.q[:, n] - motion.upper[n]),
        ):
            if math.isfinite(limit) and (beyond > 0.0).any():
                text = f"{name}: it was beyond its {side} limit, {limit:g}, by {float(beyond.max()):.3g} at most"
                found.append(Finding(text, spans_of(t, beyond > 0.0, join_s=_JOIN_S), grave=True))
    return found


def stop_spans(recording: Recording | None) -> list[Span]:
    """When the plant was stopped safely, from what it recorded."""
    if recording is None:
        return []
    return spans_of(running_time(recording.column("t")), recording.column("mode") == MODES.index(STOPPED))


def _saturated(motion: Motion, n: int) -> list[Span]:
    return spans_of(motion.t, _at_effort_limit(motion, n), join_s=_JOIN_S)


def _at_effort_limit(motion: Motion, n: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    limit = float(motion.effort_limit[n])
    if not math.isfinite(limit) or limit <= 0.0:  # one of 0 is no limit that is reached, but a joint without a motor
        return np.zeros(len(motion.t), dtype=np.bool_)
    reached: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.abs(motion.effort[:, n]) >= _AT_LIMIT * limit
    return reached & _running(motion)


def _running(motion: Motion) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.isin(motion.mode, [MODES.index(mode) for mode in RUNNING])


def _entries(part: Part, values: Array, label: str, single: Role) -> list[Line]:
    """A line for each entry of v of a part."""
    several = len(part.in_v) > 1
    roles: Sequence[Role] = ENTRIES if several else (single,)
    # an error of x, an effort along x: of a velocity's name, vx or wx, the axis
    names = [f"{label} {name[-1] if len(name) == 2 else name}" if several else label for name in part.velocities]
    return [Line(name, values[:, k], role) for k, (name, role) in enumerate(zip(names, roles, strict=False))]


def _where(active: np.ndarray[tuple[int], np.dtype[np.bool_]], values: Array) -> Array:
    return np.where(active[:, None], values, np.nan)

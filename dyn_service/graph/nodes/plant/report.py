"""What a report shows of a plant: what it counted, and its motion beside the reference.

The tracking error is not what the controller says of itself: the plant's own recording, every step that was kept, is
held against the reference motion evaluated again at the plant's times. Any node may tell of a reference, by the fact
`reference`. Only times at which the plant was under command count; their share, `share_under_command`, is stated.

The error is `Configuration.error` from the measured position to the reference: by entry of v, in m and rad.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from dyn_service.control.plant.safety import ACTIVE, CAUSES, MODES, REFUSALS, STOPPED
from dyn_service.graph.middleware.node_kind import Column, Panel, Section, Stats, number, rate
from dyn_service.graph.middleware.pacing import LATE
from dyn_service.graph.middleware.telemetry_store import Board, NodeBoard, Recording
from dyn_service.graph.nodes.plant import limit_shares
from dyn_service.graph.nodes.plant.charts import effort_cards, motion_findings, stop_spans, tracking_cards
from dyn_service.graph.nodes.plant.motion import Motion, motion_of
from dyn_service.graph.report.charts import Card, Finding
from dyn_service.graph.report.verdicts import PlantBounds, Verdict, share_under_command, sized

_TRACKING = "tracking error"
_JUDGED = ("saturated", "beyond", "motor_saturated", "out_of_range")
"""Limits that a joint should not be at. Efforts are held back by their rate whenever the plant is taken over, and far
positions are approached as they are meant to be.
"""


def plant_section(plant: NodeBoard, board: Board) -> Section:
    """What the plant counted."""
    content = _plant_summary(plant)
    lines = [*_late_lines(content), *_difference_lines(content), *_stop_lines(content)]
    lines += limit_shares.lines(content["by_joint"])
    findings = _findings(content, plant.recordings.get("plant"))
    return Section(content, lines, findings=findings, verdicts=_verdicts(content, plant, board))


def tracking_section(plant: NodeBoard, board: Board) -> Section | None:
    """The tracking error, with charts of it and of the efforts, or None where nothing was recorded."""
    motion, bounds = motion_of(plant, board), bounds_of(plant)
    if motion is None:
        return None
    content = tracking_summary(motion)
    charts: dict[str, Sequence[Card]] = {"Tracking": tracking_cards(motion), "Efforts that acted": effort_cards(motion)}
    columns = ["t", *(f"q.{name}" for name in motion.configuration.position_names)]
    reference = np.where(motion.active[:, None], motion.reference, np.nan)
    tables = {"reference": (columns, np.column_stack([motion.t, reference]))} if motion.active.any() else {}
    findings, verdicts = motion_findings(motion, bounds.at_limits), [_tracking_verdict(motion, bounds)]
    return Section(content, _lines(content), charts=charts, findings=findings, tables=tables, verdicts=verdicts)


def bounds_of(plant: NodeBoard) -> PlantBounds:
    """The bounds that are parameters of the plant."""
    return msgspec.convert(plant.fact("bounds") or {}, PlantBounds)


def tracking_summary(motion: Motion) -> dict[str, Any]:
    """Root mean square and maximum of the tracking error, by entry of v and over all of them."""
    error = motion.error[motion.active]
    active, stopped = (int((motion.mode == MODES.index(mode)).sum()) for mode in (ACTIVE, STOPPED))
    share = share_under_command(active, stopped)
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
            for name, unit, r, m in zip(motion.configuration.velocity_names, motion.units, rms, worst, strict=True)
        ],
    }


def _tracking_verdict(motion: Motion, bounds: PlantBounds) -> Verdict:
    """The error that is largest beside what is allowed of its joint."""
    turns, active = motion.configuration.turns, motion.active
    if not active.any():
        return Verdict(_TRACKING, None, bounds.error_rad, "rad", "no reference was followed")
    way = motion.configuration.difference(motion.reference[active][0], motion.reference[active])
    allowed = bounds.errors(turns, way.max(axis=0) - way.min(axis=0))
    error = np.abs(motion.error[active])
    with np.errstate(divide="ignore", invalid="ignore"):
        row, k = np.unravel_index(np.argmax(np.nan_to_num(error / allowed, nan=0.0, posinf=np.inf)), error.shape)
    where = f"{motion.configuration.velocity_names[k]} at {motion.t[active][row]:.2f} s"
    return Verdict(_TRACKING, float(error[row, k]), float(allowed[k]), motion.units[k], where)


def _verdicts(content: Mapping[str, Any], plant: NodeBoard, board: Board) -> list[Verdict]:
    """What the plant counted, held against its bounds."""
    bounds, causes = bounds_of(plant), ", ".join(f"{count} {name}" for name, count in content["causes"].items())
    steps, slipped = content["steps"], content["slipped"]
    untimed = "in lockstep nothing comes late" if plant.fact("clock") == "lockstep" else ""
    p99_9, longest = (1e-3 * (plant.fact("speed") or 1.0) * float(content[name] or 0.0) for name in LATE[2:])
    late, lost = (None, None) if untimed else (p99_9, 100.0 * slipped / max(1, slipped + steps))
    how_late = untimed or f"99.9 % of the periods; the latest {sized(longest, 'ms')}"
    asked = bool(content["armed"] or content["refused"] or board.with_fact("law"))
    under = 100.0 * content["share_under_command"] if asked else None
    nobody = "" if asked else "nothing commanded the plant"
    shares = [(100.0 * share, joint) for kind in _JUDGED for joint, share in content["by_joint"].get(kind, {}).items()]
    most, joint = max(shares, default=(0.0, ""))
    found = [
        Verdict("safe stops", content["stops"], bounds.safe_stops, "", causes),
        Verdict("time under command", under, 100.0 * bounds.under_command, "%", nobody, least=True),
        Verdict("lateness", late, 1e3 * bounds.late_s, "ms", how_late),
        Verdict("time lost", lost, 100.0 * bounds.slipped, "%", untimed),
        Verdict("time at limits", most, 100.0 * bounds.at_limits, "%", joint),
    ]
    if "plant" not in plant.recordings:
        found.append(Verdict(_TRACKING, None, bounds.error_rad, "rad", "the plant's motion was not recorded"))
    return found


def _plant_summary(plant: NodeBoard) -> dict[str, Any]:
    counters: Sequence[str] = (
        "steps", "published", "commands", "refused", "malformed", "overruns", "caught_up", "slipped", "armed",
        "stops", "stopped_steps", "active_steps", "clipped", "slowed", "out_of_range_steps", "telemetry_dropped",
    )  # fmt: skip
    stats = plant.stats
    names = ("rate_hz", "integrator", "substeps", "safe_stop", "hold_s")
    return {
        **{name: plant.fact(name) for name in names},
        "measured_rate_hz": stats.get("step_rate_hz"),
        **{name: stats.get(name) for name in LATE},
        **{name: plant.total(name) for name in counters},
        "share_under_command": share_under_command(plant.total("active_steps"), plant.total("stopped_steps")),
        "refusals": {name: count for name in REFUSALS if (count := plant.total(f"refused_{name}"))},
        "last_refusal": stats.get("last_refusal", ""),
        "causes": {name: count for name in CAUSES if (count := plant.total(f"stops_{name}"))},
        "by_joint": limit_shares.shares(plant),
        "differences": plant.fact("differences") or {},
    }


def _late_lines(plant: Mapping[str, Any]) -> list[str]:
    late = [plant[name] for name in LATE]
    if not plant["steps"] or not all(late):  # in lockstep nothing can be late
        return []
    return ["plant's periods came late by: p50 {:.0f} us, p99 {:.0f} us, p99.9 {:.0f} us, max {:.0f} us".format(*late)]


def _difference_lines(plant: Mapping[str, Any]) -> list[str]:
    said = plant["differences"]
    return [f"the plant is not the model: {', '.join(said)} (report.json, plant.differences)"] if said else []


def _stop_lines(plant: Mapping[str, Any]) -> list[str]:
    lines = []
    if plant["stops"]:
        causes = ", ".join(f"{count} {name}" for name, count in plant["causes"].items())
        lines.append(f"safe stops: {plant['stops']} ({causes}), armed {plant['armed']} times")
        if _too_slow(plant):
            lines.append(
                f"commands came further apart than the plant holds one, {plant['hold_s']:g} s: its control_rate_hz is "
                "to be the controller's rate"
            )
    if plant["refused"]:
        reasons = ", ".join(f"{count} {name}" for name, count in plant["refusals"].items())
        lines.append(f"refused commands: {plant['refused']} ({reasons})")
    return lines


def _too_slow(plant: Mapping[str, Any]) -> bool:
    """Whether commands never came one after the other in time: then it is no fault that stops it, but their rate."""
    missed = plant["causes"].get("missed", 0)
    return bool(missed > 1 and plant["hold_s"] and plant["commands"] <= 2 * plant["armed"])


def _findings(plant: Mapping[str, Any], recording: Recording | None) -> list[Finding]:
    """What the plant's counters have to look at."""
    found: list[Finding] = []
    for line in _stop_lines(plant):
        if line.startswith("safe stops"):
            found.append(Finding(line, stop_spans(recording), grave=True))
        elif line.startswith("refused") and plant["last_refusal"]:
            found.append(Finding(f"{line}; the last: {plant['last_refusal']}"))
        else:
            found.append(Finding(line))
    # where there is a recording, positions beyond limits are found in it, with their times
    by_joint = {kind: of for kind, of in plant["by_joint"].items() if recording is None or kind != "out_of_range"}
    found += [Finding(line) for line in limit_shares.lines(by_joint)]
    if plant["slipped"]:
        found.append(Finding(f"the plant came too late and fell behind wall time, steps: {plant['slipped']}"))
    if plant["malformed"]:
        found.append(Finding(f"commands that could not be read: {plant['malformed']}", grave=True))
    return found


def _lines(tracking: Mapping[str, Any]) -> list[str]:
    if tracking["rms"] is None:
        return []
    worst = max(tracking["joints"], key=lambda joint: joint["max"])
    share = 100.0 * tracking["share_under_command"]
    return [
        f"tracking error: rms {tracking['rms']:.2e}, max {tracking['max']:.2e} ({worst['name']}, {worst['unit']}), "
        f"under command {share:.1f} % of the time"
    ]


def _notes(stats: Stats) -> str:
    """What is not as it should be."""
    labels = (("overruns", "overruns"), ("slipped", "slipped"), ("stops", "stops"), ("refused_stale", "stale commands"))
    notes = limit_shares.briefly(stats)
    notes += [f"{stats[name]} {label}" for name, label in labels if number(stats, name)]
    if stats.get("mode") not in (None, ACTIVE):
        cause = stats.get("cause")
        notes.append(f"{stats['mode']} ({cause})" if cause else str(stats["mode"]))
    return ", ".join(notes)


def at_end(plant: NodeBoard) -> str:
    """Its safe stops, what its motors and joints came up against, late commands; nothing of what there was not."""
    content = _plant_summary(plant)
    said = _stop_lines(content)[: 1 + _too_slow(content)] if content["stops"] else []
    said += limit_shares.lines(content["by_joint"])
    stale = content["refusals"].get("stale")
    return "; ".join([*said, f"{stale} commands were too late"] if stale else said)


PANELS = (Panel("plant", plant_section), Panel("tracking", tracking_section))
COLUMNS = (rate("step_rate_hz"), Column("notes", _notes))

"""What a report shows of a plant: what it counted, and its motion beside the reference.

The tracking error is not what the controller says of itself: the plant's own recording, every step that was kept, is
held against the reference motion evaluated again at the plant's times. Any node may tell of a reference, by the fact
`reference`. Only times at which the plant was under command count; how large that share is is stated with it.

The error is the `difference` from the measured position to the reference: by entry of v, in m and rad. A joint with
several ways to move has panels of its translation and its rotation in the plots.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.safety import ACTIVE, CAUSES, MODES, REFUSALS
from dyn_service.control.trajectory import from_wire
from dyn_service.model.configuration import Configuration
from dyn_service.nodes import strain
from dyn_service.nodes.board import Board, NodeBoard
from dyn_service.nodes.kinds import Column, Panel, Section, Stats, number, rate
from dyn_service.nodes.series import envelope, running_time, thinned, with_gaps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NEAR = 0.55
"""An effort above this share of its limit is drawn together with the limit."""


@dataclass
class Motion:
    """What the plant did, in the order of its joints. Rows of all runs of the plant, one after the other.

    t (k,) s since the first row, pauses between runs left out; q, reference (k, nq); v, effort, error (k, nv); active
    (k,) whether the plant was under command and a reference is known. stride: rows of the node per row that is kept.
    effort_limit (nv,) N m | N; lower, upper (nq,) rad | m.
    """

    configuration: Configuration
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

    @property
    def units(self) -> tuple[str, ...]:
        """Of each entry of the error: `rad` or `m`."""
        return tuple("rad" if turns else "m" for turns in self.configuration.turns)


@dataclass(frozen=True)
class Part:
    """What one panel shows of a joint: its translation or its rotation.

    title: of the panel. position: what its positions are, with their unit. error_unit, effort_unit: of its errors and
    efforts. in_q, in_v: where its entries stand. positions, velocities: what these are called within the joint.
    """

    title: str
    position: str
    error_unit: str
    effort_unit: str
    in_q: tuple[int, ...]
    in_v: tuple[int, ...]
    positions: tuple[str, ...]
    velocities: tuple[str, ...]


def parts_of(at: Configuration) -> list[Part]:
    """The panels of a plot of all joints."""
    parts: list[Part] = []
    for name, joint, in_q, in_v in zip(at.names, at.joints, at.q_slices, at.v_slices, strict=True):
        for turns in (False, True):
            of_q = [k for k in range(joint.nq) if joint.shifts[k] != turns]
            of_v = [k for k in range(joint.nv) if at.turns[in_v][k] == turns]
            if not of_v:
                continue
            unit = "rad" if turns else "m"
            parts.append(
                Part(
                    title=name if joint.nv == 1 else f"{name}, {'rotation' if turns else 'translation'}",
                    position="quaternion" if len(of_q) > len(of_v) else f"position [{unit}]",
                    error_unit=unit,
                    effort_unit="N m" if turns else "N",
                    in_q=tuple(in_q.start + k for k in of_q),
                    in_v=tuple(in_v.start + k for k in of_v),
                    positions=tuple(joint.positions[k] for k in of_q),
                    velocities=tuple(joint.velocities[k] for k in of_v),
                )
            )
    return parts


def plant_section(plant: NodeBoard, board: Board) -> Section:
    """What the plant counted."""
    content = _plant_summary(plant)
    return Section(content, [*_difference_lines(content), *_stop_lines(content), *strain.lines(content["by_joint"])])


def tracking_section(plant: NodeBoard, board: Board) -> Section | None:
    """The tracking error, with plots of it and of the efforts, or None where nothing was recorded."""
    motion = motion_of(plant, board.with_fact("reference"))
    if motion is None:
        return None
    content = tracking_summary(motion)
    plots = {"efforts": lambda title: efforts_plot(motion, title)}
    if motion.active.any():
        plots["tracking"] = lambda title: tracking_plot(motion, title)
    return Section(content, _lines(content), plots)


def motion_of(plant: NodeBoard, controller: NodeBoard | None) -> Motion | None:
    """The plant's recording beside the reference, or None where nothing was recorded."""
    recording = plant.recordings.get("plant")
    if recording is None or not len(recording.table):
        return None
    entries, q = recording.group("q")
    _, v = recording.group("v")
    _, effort = recording.group("tau")
    told = plant.fact("configuration") or [{"name": name, "type": "continuous"} for name in entries]
    at = Configuration.from_wire(told)
    time, session = recording.column("t"), recording.column("session")
    reference = np.full_like(q, np.nan)
    known = [] if controller is None else [facts["reference"] for facts in controller.facts if "reference" in facts]
    for k, one in enumerate(known):
        begin = float(one["begin_s"])
        later = [float(o["begin_s"]) for o in known[k + 1 :] if o["session"] == one["session"]]
        rows = (session == one["session"]) & (time >= begin) & (time < min(later, default=math.inf))
        _, in_q, _ = at.chosen(list(one["joints"]))
        reference[np.ix_(rows, in_q)] = from_wire(one["motion"]).sample(time[rows] - begin).q
    active = (recording.column("mode") == MODES.index(ACTIVE)) & np.isfinite(reference).all(axis=1)
    error = at.difference(q, reference)
    if not at.flat:
        # A quaternion's sign and full turns say nothing: of the reference's those that are nearest the measured ones.
        reference = at.integrate(q, error)

    def fact(name: str, default: float, size: int) -> Array:
        value = plant.fact(name)
        return np.array(value, dtype=np.float64) if value is not None else np.full(size, default)

    return Motion(
        configuration=at,
        t=running_time(time),
        q=q,
        v=v,
        effort=effort,
        reference=reference,
        error=error,
        active=active,
        stride=recording.stride,
        effort_limit=fact("effort_limit", math.inf, at.nv),
        lower=fact("lower", -math.inf, at.nq),
        upper=fact("upper", math.inf, at.nq),
    )


def tracking_summary(motion: Motion) -> dict[str, Any]:
    """Root mean square and maximum of the tracking error, by entry of v and over all of them."""
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
            for name, unit, r, m in zip(motion.configuration.velocity_names, motion.units, rms, worst, strict=True)
        ],
    }


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
        "late_p50_us": stats.get("late_p50_us"),
        **{name: plant.total(name) for name in counters},
        "refusals": {name: count for name in REFUSALS if (count := plant.total(f"refused_{name}"))},
        "last_refusal": stats.get("last_refusal", ""),
        "causes": {name: count for name in CAUSES if (count := plant.total(f"stops_{name}"))},
        "by_joint": strain.shares(plant),
        "differences": plant.fact("differences") or {},
    }


def _difference_lines(plant: Mapping[str, Any]) -> list[str]:
    said = plant["differences"]
    return [f"the plant is not the model: {', '.join(said)} (report.json, plant.differences)"] if said else []


def _stop_lines(plant: Mapping[str, Any]) -> list[str]:
    lines = []
    if plant["stops"]:
        causes = ", ".join(f"{count} {name}" for name, count in plant["causes"].items())
        lines.append(f"safe stops: {plant['stops']} ({causes}), armed {plant['armed']} times")
    if plant["refused"]:
        reasons = ", ".join(f"{count} {name}" for name, count in plant["refusals"].items())
        lines.append(f"refused commands: {plant['refused']} ({reasons})")
    return lines


def _lines(tracking: Mapping[str, Any]) -> list[str]:
    if tracking["rms"] is None:
        return []
    worst = max(tracking["joints"], key=lambda joint: joint["max"])
    share = 100.0 * tracking["share_under_command"]
    return [
        f"tracking error: rms {tracking['rms']:.2e}, max {tracking['max']:.2e} ({worst['name']}, {worst['unit']}), "
        f"under command {share:.1f} % of the time"
    ]


def tracking_plot(motion: Motion, title: str) -> Figure:
    """Reference and measured position of every joint, the error below."""
    from matplotlib.ticker import MaxNLocator

    from dyn_service.nodes import drawing

    error = motion.error[motion.active]
    total = math.sqrt(float((error**2).mean()))
    heading = f"{title}: tracking, error {total:.1e} rms over all joints, {np.abs(error).max():.1e} max"
    parts = parts_of(motion.configuration)
    figure, panels = drawing.grid(len(parts), heading, panel_height=300)
    t = motion.t[motion.active]
    for k, (part, panel) in enumerate(zip(parts, panels, strict=True)):
        upper, lower = panel.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [2.2, 1.0], "hspace": 0.0})
        reference, measured = motion.reference[motion.active], motion.q[motion.active]
        for n in part.in_q:
            line = with_gaps(*thinned(t, reference[:, n], drawing.POINTS))
            upper.plot(*line, color=drawing.REFERENCE, lw=3.2, label="reference")
        for n, colour in zip(part.in_q, drawing.ENTRIES, strict=False):
            line = with_gaps(*thinned(t, measured[:, n], drawing.POINTS))
            upper.plot(*line, color=colour, lw=1.0, label="measured")
        errors = error[:, part.in_v]
        size, prefix = drawing.prefix(float(np.abs(errors).max()))
        colours = drawing.ENTRIES if len(part.in_v) > 1 else (drawing.ERROR,)
        for values, colour in zip(errors.T, colours, strict=False):
            lower.plot(*with_gaps(*envelope(t, size * values, drawing.POINTS)), color=colour, lw=0.8)
        lower.axhline(0.0, color="#888888", lw=0.6)
        rms = size * math.sqrt(float((errors**2).mean()))
        upper.set_title(f"{part.title}   error rms {rms:.3g} {prefix}{part.error_unit}", loc="left")
        upper.set_ylabel(part.position)
        lower.set_ylabel(f"error [{prefix}{part.error_unit}]")
        upper.tick_params(labelbottom=False)
        lower.yaxis.set_major_locator(MaxNLocator(3))
        drawing.name_entries(upper, part.positions)
        drawing.name_entries(lower, part.velocities)
        drawing.time_label(lower, k, panels)
    drawing.legend(figure, panels[0])
    return figure


def efforts_plot(motion: Motion, title: str) -> Figure:
    """Efforts of every joint, with their limits where they are near, else named."""
    from dyn_service.nodes import drawing

    parts = parts_of(motion.configuration)
    figure, panels = drawing.grid(len(parts), f"{title}: joint efforts that acted", panel_height=240)
    shown = motion.active if motion.active.any() else np.ones_like(motion.active)
    t = motion.t[shown]
    for k, (part, panel) in enumerate(zip(parts, panels, strict=True)):
        axes = panel.subplots()
        unit = part.effort_unit
        efforts, limits = motion.effort[shown][:, part.in_v], motion.effort_limit[list(part.in_v)]
        for values, colour in zip(efforts.T, drawing.ENTRIES, strict=False):
            axes.plot(*with_gaps(*envelope(t, values, drawing.POINTS)), color=colour, lw=1.0, label="effort")
        note = f"peak {np.abs(efforts).max(initial=0.0):.3g} {unit}"
        limit = float(limits.min())
        if math.isfinite(limit):
            note += f", limit \N{PLUS-MINUS SIGN}{limit:g} {unit}"
            for side in (efforts.max(), -efforts.min()):  # a limit is drawn where it does not flatten the line
                if side > _NEAR * limit:
                    where = limit if side == efforts.max() else -limit
                    axes.axhline(where, color=drawing.LIMIT, lw=1.2, ls=(0, (6, 3)), label="limit")
        axes.set_title(f"{part.title}   {note}", loc="left")
        axes.set_ylabel(f"effort [{unit}]")
        axes.margins(y=0.08)
        drawing.name_entries(axes, part.velocities)
        drawing.time_label(axes, k, panels)
    drawing.legend(figure, *panels)
    return figure


def _notes(stats: Stats) -> str:
    """What is not as it should be."""
    labels = (("overruns", "overruns"), ("slipped", "slipped"), ("stops", "stops"), ("refused_stale", "stale commands"))
    notes = strain.briefly(stats)
    notes += [f"{stats[name]} {label}" for name, label in labels if number(stats, name)]
    if stats.get("mode") not in (None, ACTIVE):
        cause = stats.get("cause")
        notes.append(f"{stats['mode']} ({cause})" if cause else str(stats["mode"]))
    return " ".join(notes)


def at_end(plant: NodeBoard) -> str:
    """Its safe stops and how long it was under command, what its motors and joints came up against, late commands;
    nothing of what there was not.
    """
    content = _plant_summary(plant)
    said = strain.lines(content["by_joint"])
    if stale := content["refusals"].get("stale"):
        said.append(f"{stale} commands were too late")
    if content["stops"]:
        share = 100.0 * content["active_steps"] / max(1, content["steps"])
        said.insert(0, f"{_stop_lines(content)[0]}, under command {share:.1f} % of the time")
    return "; ".join(said)


PANELS = (Panel("plant", plant_section), Panel("tracking", tracking_section))
COLUMNS = (rate("step_rate_hz"), Column("notes", _notes))

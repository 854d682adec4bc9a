"""A plant's recordings and counters, and its part of a report: shares of time at limits, tracking error, charts,
verdicts.

The tracking error is computed from the plant's own recording and the reference motion, evaluated again at the plant's
times; it is not the controller's figure. Any node may report a reference, by the fact `reference`. Only times under
command count. The error is `Configuration.error` from the measured position to
the reference, by entry of v, in m and rad.

A joint with several degrees of freedom has one card for its translation and one for its rotation. Times without command
are shaded; in charts of efforts, times at the effort limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from dyn_service.api.queries import Array
from dyn_service.control.command import INTERFACES, Interface
from dyn_service.control.plant.plant import Plant
from dyn_service.control.plant.safety import ACTIVE, CAUSES, MODES, REFUSALS, RUNNING, STOPPED
from dyn_service.control.plant.simulated import SimulatedRobot
from dyn_service.control.trajectory import ReferenceTrajectory, from_wire
from dyn_service.graph.middleware.node_kind import Column, Panel, Section, Stats, number, rate
from dyn_service.graph.middleware.pacing import LATE
from dyn_service.graph.middleware.telemetry import NodeTelemetry, Recorder, Recording, Telemetry, TelemetryStore
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
    running_time,
    spans_of,
)
from dyn_service.graph.report.verdicts import PlantBounds, Subject, Verdict, share_under_command, sized
from dyn_service.model.configuration import Configuration
from dyn_service.model.joints import UNKNOWN_TYPE


class _Limit(NamedTuple):
    """A kind of limit that a joint can reach. words, brief: for reports, and for the live table. commanded: whether its
    steps are compared with those under command, else with all. judged: whether it counts for the verdict; rates limit
    efforts whenever the plant is armed, and far positions are approached as specified.
    """

    words: str
    brief: str
    commanded: bool = True
    judged: bool = False


LIMITS = {
    "saturated": _Limit("commands cut to the effort limit", "cut", judged=True),
    "held_back": _Limit("efforts held back by their rate", "held back"),
    "beyond": _Limit("commands cut to the limits of position or velocity", "beyond", judged=True),
    "too_far": _Limit("commanded positions too far away", "too far"),
    "motor_saturated": _Limit("motors at their own limit", "motor at its limit", commanded=False, judged=True),
    "current_limited": _Limit("motors at their limit of current", "motor's current", commanded=False, judged=True),
    "voltage_limited": _Limit("motors at their limit of voltage", "motor's voltage", commanded=False, judged=True),
    "heat_limited": _Limit("motors at their limit of heat", "motor's heat", commanded=False, judged=True),
    "out_of_range": _Limit("positions beyond their limits", "out", commanded=False, judged=True),
}
"""Counts of steps by joint that are not 0 are in the plant's stats, for example as `saturated.elbow`."""
_NAMED = 4
"""Number of joints that are named, the worst first."""


def _shares(counts: Mapping[str, Any], active: float, steps: float) -> dict[str, dict[str, float]]:
    """Returns the share of steps at a limit by kind and joint, without zeros, the worst joint first."""
    shares: dict[str, dict[str, float]] = {}
    for kind, limit in LIMITS.items():
        total, start = max(1, active if limit.commanded else steps), f"{kind}."
        joints = {name.removeprefix(start): n / total for name, n in counts.items() if name.startswith(start) and n}
        if joints:
            shares[kind] = dict(sorted(joints.items(), key=lambda entry: (-entry[1], entry[0])))
    return shares


def limit_lines(shares: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Returns one line per kind of limit reached, with the joints."""
    lines = []
    for kind, joints in shares.items():
        reference = "of the time under command" if LIMITS[kind].commanded else "of the time"
        joint_texts = [f"{name} {percent(share)}" for name, share in list(joints.items())[:_NAMED]]
        rest = f" and {len(joints) - _NAMED} more" if len(joints) > _NAMED else ""
        lines.append(f"{LIMITS[kind].words}: {', '.join(joint_texts)}{rest} {reference}")
    return lines


def gear_lines(differences: Mapping[str, Any]) -> list[str]:
    """Returns a line with the natural frequencies of elastic gears; none without any."""
    gears = differences.get("gears")
    if gears is None:
        return []
    frequencies = (f"{name} {free:.3g} ({locked:.3g})" for name, (free, locked) in gears["frequency_hz"].items())
    return [
        f"natural frequencies of elastic gears at the first position, Hz, in brackets with the rotor held: "
        f"{', '.join(frequencies)}; parts of a step: {gears['parts']}; encoders at the {gears['encoder_side']}"
    ]


def percent(share: float) -> str:
    """Formats a share in percent."""
    return "under 0.1 %" if share < 1e-3 else f"{100.0 * share:.1f} %"


_NEAR = 0.55
"""An effort above this share of its limit is drawn together with the limit."""
_AT_LIMIT = 1.0 - 1e-6
"""Share of a limit from which a value counts as at the limit; clipping may leave a rounding error."""
_JOIN_S = 0.05
"""Spans closer together than this are merged, because efforts chatter at a limit."""


def tracking_cards(motion: Motion) -> list[Card]:
    """Cards with reference, measured and commanded positions of every joint, and the error below."""
    idle, is_active = spans_of(motion.t, ~motion.active), motion.active[:, None]
    cards = []
    for part in parts_of(motion.configuration):
        q, reference = motion.q[:, part.in_q], np.where(is_active, motion.reference[:, part.in_q], np.nan)
        error = np.where(is_active, motion.error[:, part.in_v], np.nan)
        errors = motion.error[motion.active][:, part.in_v]
        size, small = prefix(float(np.abs(errors).max(initial=0.0)))
        rms = size * math.sqrt(float((errors**2).mean())) if len(errors) else math.nan
        is_multi_dof = len(part.in_q) > 1
        lines = []
        for k, (name, role) in enumerate(zip(part.positions, ENTRIES, strict=False)):
            suffix = f" {name}" if is_multi_dof else ""
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
    """Cards with acting and commanded efforts of every joint, with limits that are near; others are in the note."""
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
            # a distant limit is not drawn, because it would flatten the line
            marks = [Mark(value, label) for label, value, largest in sides if largest > _NEAR * limit]
            for n in part.in_v:
                alarms += _saturated(motion, n)
        lines = _entries(part, efforts, "effort", "effort")
        if "effort" in motion.commanded and len(part.in_v) == 1:
            commanded = motion.commanded["effort"][:, part.in_v[0]]
            lines.insert(0, Line("commanded", commanded, "second"))
        label = f"effort [{part.effort_unit}]"
        chart = Chart(motion.t, lines, label, marks=marks, alarms=alarms, least=ROUNDING)
        cards.append(Card(part.title, [chart], note))
    return cards


def motion_findings(motion: Motion, at_limits: float) -> list[Finding]:
    """Findings on efforts at their limits and joints beyond the limits of position and velocity.

    at_limits: share of the time under command above which efforts at a limit are grave.
    """
    configuration, t = motion.configuration, motion.t
    findings: list[Finding] = []
    active = motion.mode == MODES.index(ACTIVE)
    for n, (name, turns) in enumerate(zip(configuration.velocity_names, configuration.turns, strict=True)):
        unit, speed_unit = ("N m", "rad/s") if turns else ("N", "m/s")
        spans = _saturated(motion, n)
        if spans:
            share = float((_at_effort_limit(motion, n) & active).sum() / max(1, int(active.sum())))
            text = (
                f"{name}: its effort was at its limit, \N{PLUS-MINUS SIGN}{motion.effort_limit[n]:g} {unit}, for "
                f"{percent(share)} of the time under command"
            )
            findings.append(Finding(text, spans, grave=share > at_limits))
        limit = float(motion.velocity_limit[n])
        if math.isfinite(limit) and limit > 0.0:
            fast = np.abs(motion.v[:, n]) >= _AT_LIMIT * limit
            if fast.any():
                fastest = float(np.abs(motion.v[:, n]).max())
                text = f"{name}: it was faster than its limit, {limit:g} {speed_unit}: {fastest:.3g} at most"
                findings.append(Finding(text, spans_of(t, fast, join_s=_JOIN_S), grave=True))
    for n, name in enumerate(configuration.position_names):
        for side, limit, excess in (
            ("lower", motion.lower[n], motion.lower[n] - motion.q[:, n]),
            ("upper", motion.upper[n], motion.q[:, n] - motion.upper[n]),
        ):
            if math.isfinite(limit) and (excess > 0.0).any():
                text = f"{name}: it was beyond its {side} limit, {limit:g}, by {float(excess.max()):.3g} at most"
                findings.append(Finding(text, spans_of(t, excess > 0.0, join_s=_JOIN_S), grave=True))
    return findings


def _saturated(motion: Motion, n: int) -> list[Span]:
    return spans_of(motion.t, _at_effort_limit(motion, n), join_s=_JOIN_S)


def _at_effort_limit(motion: Motion, n: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    limit = float(motion.effort_limit[n])
    # a limit of 0 belongs to a joint without a motor
    if not math.isfinite(limit) or limit <= 0.0:
        return np.zeros(len(motion.t), dtype=np.bool_)
    is_at_limit: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.abs(motion.effort[:, n]) >= _AT_LIMIT * limit
    return is_at_limit & np.isin(motion.mode, [MODES.index(mode) for mode in RUNNING])


def _entries(part: Part, values: Array, label: str, single: Role) -> list[Line]:
    is_multi_dof = len(part.in_v) > 1
    roles: Sequence[Role] = ENTRIES if is_multi_dof else (single,)
    # the axis, from the name of the velocity, vx or wx
    names = [f"{label} {name[-1] if len(name) == 2 else name}" if is_multi_dof else label for name in part.velocities]
    return [Line(name, values[:, k], role) for k, (name, role) in enumerate(zip(names, roles, strict=False))]


_TRACKING = "tracking error"


def plant_section(plant: NodeTelemetry, store: TelemetryStore) -> Section:
    """Returns the section of the plant's counters."""
    content, lines = _plant_summary(plant), []
    late = [content[name] for name in LATE]
    if content["steps"] and all(late):  # in lockstep nothing can be late
        figures = "p50 {:.0f} us, p99 {:.0f} us, p99.9 {:.0f} us, max {:.0f} us".format(*late)
        lines.append(f"lateness of the plant's periods: {figures}")
    if content["differences"]:
        names = ", ".join(content["differences"])
        lines.append(f"the plant is not the model: {names} (report.json, plant.differences)")
        lines += gear_lines(content["differences"])
    texts = (_stop_text(content), _rate_text(content), _refusal_text(content))
    lines += [*filter(None, texts), *limit_lines(content["by_joint"])]
    findings = _findings(content, plant.recordings.get("plant"))
    return Section(content, lines, findings=findings, verdicts=_verdicts(content, plant, store))


def tracking_section(plant: NodeTelemetry, store: TelemetryStore) -> Section | None:
    """Returns the section of tracking error and efforts, or None if nothing was recorded."""
    motion, bounds = motion_of(plant, store), bounds_of(plant)
    if motion is None:
        return None
    content = tracking_summary(motion)
    charts: dict[str, Sequence[Card]] = {"Tracking": tracking_cards(motion), "Efforts that acted": effort_cards(motion)}
    columns = ["t", *(f"q.{name}" for name in motion.configuration.position_names)]
    reference = np.where(motion.active[:, None], motion.reference, np.nan)
    tables = {"reference": (columns, np.column_stack([motion.t, reference]))} if motion.active.any() else {}
    findings, verdicts = motion_findings(motion, bounds.at_limits), [_tracking_verdict(motion, bounds)]
    return Section(content, _lines(content), charts=charts, findings=findings, tables=tables, verdicts=verdicts)


def bounds_of(plant: NodeTelemetry) -> PlantBounds:
    """Returns the bounds from the plant's parameters."""
    return msgspec.convert(plant.fact("bounds") or {}, PlantBounds)


def tracking_summary(motion: Motion) -> dict[str, Any]:
    """Returns root mean square and maximum of the tracking error, per entry of v and over all."""
    error = motion.error[motion.active][:, motion.referenced]
    base = {"samples": len(error), "stride": motion.stride}
    if not len(error):
        return {**base, "rms": None, "max": None, "rms_by_unit": {}, "joints": []}
    rms = np.sqrt((error**2).mean(axis=0))
    worst = np.abs(error).max(axis=0)
    names, units = (
        np.array(entries)[motion.referenced].tolist() for entries in (motion.configuration.velocity_names, motion.units)
    )
    return {
        **base,
        "rms": float(np.sqrt((error**2).mean())),
        "max": float(worst.max()),
        "rms_by_unit": {
            unit: float(np.sqrt((error[:, [u == unit for u in units]] ** 2).mean())) for unit in sorted(set(units))
        },
        "joints": [
            {"name": name, "unit": unit, "rms": float(r), "max": float(m)}
            for name, unit, r, m in zip(names, units, rms, worst, strict=True)
        ],
    }


def _tracking_verdict(motion: Motion, bounds: PlantBounds) -> Verdict:
    """Verdict on the largest error relative to its joint's bound."""
    turns, active = motion.configuration.turns, motion.active
    if not active.any():
        return Verdict(_TRACKING, None, bounds.error_rad, "rad", "no reference was followed")
    travel = motion.configuration.difference(motion.reference[active][0], motion.reference[active])
    max_error = bounds.errors(turns, travel.max(axis=0) - travel.min(axis=0))
    error = np.abs(motion.error[active])
    with np.errstate(divide="ignore", invalid="ignore"):
        row, k = np.unravel_index(np.argmax(np.nan_to_num(error / max_error, nan=0.0, posinf=np.inf)), error.shape)
    place = f"{motion.configuration.velocity_names[k]} at {motion.t[active][row]:.2f} s"
    return Verdict(_TRACKING, float(error[row, k]), float(max_error[k]), motion.units[k], place)


def _verdicts(content: Mapping[str, Any], plant: NodeTelemetry, store: TelemetryStore) -> list[Verdict]:
    bounds, causes = bounds_of(plant), ", ".join(f"{count} {name}" for name, count in content["causes"].items())
    stops = "; the last: ".join(filter(None, (causes, content["last_stop"])))
    steps, slipped = content["steps"], content["slipped"]
    untimed = "nothing is late in lockstep" if plant.fact("clock") == "lockstep" else ""
    p99_9, longest = (1e-3 * (plant.fact("speed") or 1.0) * float(content[name] or 0.0) for name in LATE[2:])
    late, time_lost = (None, None) if untimed else (p99_9, 100.0 * slipped / max(1, slipped + steps))
    how_late = untimed or f"99.9 % of the periods; the latest {sized(longest, 'ms')}"
    is_commanded = bool(content["armed"] or content["refused"] or store.with_fact("law"))
    least = 100.0 * bounds.under_command
    commanded = 100.0 * content["share_under_command"] if is_commanded else None
    no_command = "" if is_commanded else "nothing commanded the plant"
    judged = [joint_shares for kind, joint_shares in content["by_joint"].items() if LIMITS[kind].judged]
    shares = [(100.0 * share, joint) for joint_shares in judged for joint, share in joint_shares.items()]
    largest, joint = max(shares, default=(0.0, ""))
    # stops for commands that did not come in time, and no other stop: the robot did nothing wrong
    subject: Subject = "timing" if set(content["causes"]) == {"missed"} and not untimed else "robot"
    verdicts = [
        Verdict("safe stops", content["stops"], bounds.safe_stops, "", stops, subject=subject),
        Verdict("time under command", commanded, least, "%", no_command, least=True, subject=subject),
        Verdict("lateness", late, 1e3 * bounds.late_s, "ms", how_late, subject="timing"),
        Verdict("time lost", time_lost, 100.0 * bounds.slipped, "%", untimed, subject="timing"),
        Verdict("time at limits", largest, 100.0 * bounds.at_limits, "%", joint),
    ]
    if "plant" not in plant.recordings:
        verdicts.append(Verdict(_TRACKING, None, bounds.error_rad, "rad", "the plant's motion was not recorded"))
    return verdicts


def _plant_summary(plant: NodeTelemetry) -> dict[str, Any]:
    counters: Sequence[str] = (
        "steps", "published", "commands", "refused", "malformed", "overruns", "caught_up", "slipped", "armed",
        "stops", "stopped_steps", "active_steps", "clipped", "slowed", "out_of_range_steps", "telemetry_dropped",
    )  # fmt: skip
    stats = plant.stats
    by_joint = {name: plant.total(name) for life in plant.lives.values() for name in life if "." in name}
    names = ("rate_hz", "integrator", "substeps", "safe_stop", "hold_s")
    return {
        **{name: plant.fact(name) for name in names},
        "measured_rate_hz": stats.get("step_rate_hz"),
        **{name: stats.get(name) for name in LATE},
        **{name: plant.total(name) for name in counters},
        "share_under_command": share_under_command(plant.total("active_steps"), plant.total("stopped_steps")),
        "refusals": {name: count for name in REFUSALS if (count := plant.total(f"refused_{name}"))},
        "last_refusal": stats.get("last_refusal", ""),
        "last_stop": stats.get("last_stop", ""),
        "causes": {name: count for name in CAUSES if (count := plant.total(f"stops_{name}"))},
        "by_joint": _shares(by_joint, plant.total("active_steps"), plant.total("steps")),
        "differences": plant.fact("differences") or {},
    }


def _stop_text(plant: Mapping[str, Any]) -> str:
    """Returns the number of safe stops with their causes; empty without any."""
    causes = ", ".join(f"{count} {name}" for name, count in plant["causes"].items())
    last = f"; the last: {plant['last_stop']}" if plant["last_stop"] else ""
    return f"safe stops: {plant['stops']} ({causes}), armed {plant['armed']} times{last}" if plant["stops"] else ""


def _rate_text(plant: Mapping[str, Any]) -> str:
    """Returns advice if every second command was late: then their rate is the cause of the stops, not a fault."""
    missed_stops = plant["causes"].get("missed", 0)
    if not (missed_stops > 1 and plant["hold_s"] and plant["commands"] <= 2 * plant["armed"]):
        return ""
    hold = f"the time between commands exceeded the plant's hold time, {plant['hold_s']:g} s"
    return f"{hold}: set its control_rate_hz to the controller's rate"


def _refusal_text(plant: Mapping[str, Any]) -> str:
    """Returns the number of refused commands with the reasons; empty without any."""
    reasons = ", ".join(f"{count} {REFUSALS[name]}" for name, count in plant["refusals"].items())
    return f"refused commands: {plant['refused']} ({reasons})" if plant["refused"] else ""


def _findings(plant: Mapping[str, Any], recording: Recording | None) -> list[Finding]:
    findings: list[Finding] = []
    if stops := _stop_text(plant):
        spans: list[Span] = []
        if recording is not None:
            stopped = recording.column("mode") == MODES.index(STOPPED)
            spans = spans_of(running_time(recording.column("t")), stopped)
        findings.append(Finding(stops, spans, grave=True))
    if rate_text := _rate_text(plant):
        findings.append(Finding(rate_text))
    if refusals := _refusal_text(plant):
        last = f"; the last: {plant['last_refusal']}" if plant["last_refusal"] else ""
        findings.append(Finding(refusals + last))
    # with a recording, positions beyond limits are found there, with their times
    by_joint = dict(plant["by_joint"])
    if recording is not None:
        by_joint.pop("out_of_range", None)
    findings += [Finding(line) for line in limit_lines(by_joint)]
    if plant["slipped"]:
        findings.append(Finding(f"steps by which the plant fell behind wall time: {plant['slipped']}"))
    if plant["malformed"]:
        findings.append(Finding(f"commands that could not be read: {plant['malformed']}", grave=True))
    return findings


def _lines(tracking: Mapping[str, Any]) -> list[str]:
    if tracking["rms"] is None:
        return []
    worst = max(tracking["joints"], key=lambda joint: joint["max"])
    return [f"tracking error: rms {tracking['rms']:.2e}, max {tracking['max']:.2e} ({worst['name']}, {worst['unit']})"]


def _notes(stats: Stats) -> str:
    labels = (("overruns", "overruns"), ("slipped", "slipped"), ("stops", "stops"), ("refused_stale", "stale commands"))
    counts = {name: int(number(stats, name) or 0) for name in stats if "." in name}
    shares = _shares(counts, number(stats, "active_steps") or 0, number(stats, "steps") or 0)
    notes = []
    for kind, joints in shares.items():  # the worst joint of each kind
        name, share = next(iter(joints.items()))
        rest = f" +{len(joints) - 1}" if len(joints) > 1 else ""
        notes.append(f"{name} {LIMITS[kind].brief} {percent(share)}{rest}")
    notes += [f"{stats[name]} {label}" for name, label in labels if number(stats, name)]
    if stats.get("mode") not in (None, ACTIVE):
        cause = stats.get("cause")
        notes.append(f"{stats['mode']} ({cause})" if cause else str(stats["mode"]))
    return ", ".join(notes)


def at_end(plant: NodeTelemetry) -> str:
    """Returns a summary of safe stops, limits reached and late commands; empty without any."""
    content = _plant_summary(plant)
    stale = content["refusals"].get("stale")
    late = f"{stale} commands were too late" if stale else ""
    return "; ".join(filter(None, (_stop_text(content), _rate_text(content), *limit_lines(content["by_joint"]), late)))


PANELS = (Panel("plant", plant_section), Panel("tracking", tracking_section))
COLUMNS = (rate("step_rate_hz"), Column("notes", _notes))


CHANNEL, MEASURED, SENSOR, COMMANDED, MOTORS = "plant", "measured", "sensor.", "commanded", "motors"
GEARS = "gears"
"""Channels: the true motion; the encoders' measurements, if any; the readings of each other sensor, by its name; the
accepted commands, unclipped; currents (A) and winding temperatures (degrees Celsius) of the robot's motors; of their
elastic gears deflection (rad | m), rotor velocity (rad/s | m/s) and effort (N m | N)."""

_AXES = {"force_torque": ("fx", "fy", "fz", "tx", "ty", "tz"), "imus": ("ax", "ay", "az", "wx", "wy", "wz")}


class PlantRecording:
    """Records one plant: its true motion, its measurements, its commands."""

    def __init__(self, telemetry: Telemetry, plant: Plant) -> None:
        configuration = plant.configuration
        self._plant, self._nq, self._nv = plant, configuration.nq, configuration.nv
        positions = [f"q.{name}" for name in configuration.position_names]
        velocities, efforts = ([f"{kind}.{name}" for name in configuration.velocity_names] for kind in ("v", "tau"))
        self._motion = Recorder(telemetry, CHANNEL, ["t", "session", "mode", *positions, *velocities, *efforts])
        self._measuring = plant.robot.measuring if isinstance(plant.robot, SimulatedRobot) else None
        self._motors = plant.robot.motors if isinstance(plant.robot, SimulatedRobot) else None
        self._windings: Recorder | None = None
        if self._motors is not None:
            windings = [f"{kind}.{name}" for kind in ("current", "celsius") for name in configuration.velocity_names]
            self._windings = Recorder(telemetry, MOTORS, ["t", *windings])
        self._gears = plant.robot.gears if isinstance(plant.robot, SimulatedRobot) else None
        self._deflections: Recorder | None = None
        if self._gears is not None:
            names = [configuration.velocity_names[k] for k in self._gears.entries]
            columns = [f"{kind}.{name}" for kind in ("deflection", "speed", "effort") for name in names]
            self._deflections = Recorder(telemetry, GEARS, ["t", *columns])
        self._measured: Recorder | None = None
        commands = [f"command.{name}" for name in configuration.velocity_names]
        self._commanded = Recorder(telemetry, COMMANDED, ["t", "session", "interface", *commands])
        self._answered = -1
        self._sensors: dict[str, tuple[Recorder, int]] = {}
        if self._measuring is not None:
            settings = self._measuring.sensors.settings
            for kind, axes in _AXES.items():
                for name in getattr(settings, kind):
                    self._sensors[name] = Recorder(telemetry, f"{SENSOR}{name}", ["t", "stamp", *axes]), -1
        has_encoders = self._measuring is not None and bool(self._measuring.sensors.settings.encoders)
        if has_encoders or (self._gears is not None and self._gears.encoder_side == "motor"):
            self._measured = Recorder(telemetry, MEASURED, ["t", *positions, *velocities])

    def row(self) -> None:
        """Records the present state."""
        plant, nq, nv = self._plant, self._nq, self._nv
        safety, motion, time_s = plant.safety, plant.reading.motion, plant.time_s
        row = self._motion.row()
        row[0], row[1], row[2] = time_s, safety.session, MODES.index(safety.mode)
        row[3 : 3 + nq], row[3 + nq : 3 + nq + nv], row[3 + nq + nv :] = motion.q, motion.v, plant.effort
        # only new commands: between them the last one is in force
        if safety.command_seq != self._answered:
            self._answered = safety.command_seq
            row = self._commanded.row()
            row[0], row[1], row[2] = time_s, safety.session, INTERFACES.index(safety.interface)
            row[3:] = safety.value
        if self._measured is not None:
            row = self._measured.row()
            row[0], row[1 : 1 + nq], row[1 + nq :] = time_s, plant.q, plant.v
        if self._windings is not None and self._motors is not None:
            row = self._windings.row()
            row[0], row[1 : 1 + nv], row[1 + nv :] = time_s, self._motors.current, self._motors.celsius
        if self._deflections is not None and self._gears is not None:
            self._deflections.row()[:] = (time_s, *np.concatenate(self._gears.state))
        for name, (recorder, last) in self._sensors.items():
            assert self._measuring is not None
            reading = self._measuring.readings.get(name)
            if reading is not None and reading.seq != last:
                self._sensors[name] = recorder, reading.seq
                recorder.row()[:] = (plant.time_s, reading.stamp, *reading.value)

    def flush(self) -> None:
        """Sends the rows kept so far."""
        sensors = [recorder for recorder, _ in self._sensors.values()]
        channels = self._motion, self._commanded, self._measured, self._windings, self._deflections, *sensors
        for recorder in filter(None, channels):
            recorder.flush()


def counts(plant: Plant) -> dict[str, float | int | str]:
    """Returns the plant's counters, for its stats."""
    safety = plant.safety
    counters = asdict(safety.counters)
    refusals, stops = counters.pop("refused"), counters.pop("stops")
    return {
        **asdict(plant.counters),
        **counters,
        "refused": sum(refusals.values()),
        "last_refusal": safety.refusal.sentence if safety.refusal else "",
        **{f"refused_{reason}": count for reason, count in refusals.items()},
        "stops": sum(stops.values()),
        "last_stop": safety.last_stop,
        **{f"stops_{cause}": count for cause, count in stops.items()},
        **_by_joint(plant),
    }


def _by_joint(plant: Plant) -> dict[str, int]:
    names = plant.configuration.velocity_names
    tables: dict[str, tuple[Iterable[str], Any]] = {
        kind: (names, getattr(plant.safety, kind)) for kind in ("saturated", "held_back", "beyond", "too_far")
    }
    if isinstance(plant.robot, SimulatedRobot) and plant.robot.actuators is not None:
        tables["motor_saturated"] = names, plant.robot.actuators.saturated
    if isinstance(plant.robot, SimulatedRobot) and plant.robot.motors is not None:
        kinds = ("current_limited", "voltage_limited", "heat_limited")
        tables |= {kind: (names, getattr(plant.robot.motors, kind)) for kind in kinds}
    tables["out_of_range"] = plant.configuration.position_names, plant.out_of_range
    return {f"{kind}.{name}": int(n) for kind, table in tables.items() for name, n in zip(*table, strict=True) if n}


class Followed(NamedTuple):
    """A reference that a controller began: run and time (s) of the plant, joints and motion."""

    session: int
    begin_s: float
    joints: tuple[str, ...]
    motion: ReferenceTrajectory

    @classmethod
    def of_fact(cls, fact: Mapping[str, Any]) -> Self:
        """Reads the fact `reference` of a controller."""
        return cls(fact["session"], float(fact["begin_s"]), tuple(fact["joints"]), from_wire(fact["motion"]))


@dataclass
class Motion:
    """Motion of a plant in the order of its joints, with the rows of all its runs in sequence.

    t: (k,) s since the first row, without pauses between runs. q, reference: (k, nq). v, effort, error: (k, nv).
    referenced: (nv,) whether a reference moved the joint. active: (k,) whether the plant was under command and its
    reference is known. mode: (k,) index of its mode in
    `MODES`. stride: rows of the node per recorded row. commanded: (k, nv) the commands in force, unclipped, by
    interface; NaN without a command. effort_limit: (nv,) N m | N. velocity_limit: (nv,) rad/s | m/s. lower, upper:
    (nq,) rad | m.
    """

    configuration: Configuration
    t: Array
    q: Array
    v: Array
    effort: Array
    reference: Array
    error: Array
    referenced: NDArray[np.bool_]
    active: np.ndarray[Any, np.dtype[np.bool_]]
    mode: Array
    stride: int
    commanded: dict[Interface, Array]
    effort_limit: Array
    velocity_limit: Array
    lower: Array
    upper: Array

    @property
    def units(self) -> tuple[str, ...]:
        """Unit of each entry of the error: `rad` or `m`."""
        return tuple("rad" if turns else "m" for turns in self.configuration.turns)


@dataclass(frozen=True)
class Part:
    """A joint's translation or rotation, shown in one panel.

    title: of the panel. position: label of its positions, with their unit. error_unit, effort_unit: of its errors and
    efforts. in_q, in_v: indices of its entries. positions, velocities: names of the entries within the joint.
    """

    title: str
    position: str
    error_unit: str
    effort_unit: str
    in_q: tuple[int, ...]
    in_v: tuple[int, ...]
    positions: tuple[str, ...]
    velocities: tuple[str, ...]


def parts_of(configuration: Configuration) -> list[Part]:
    """Returns the panels of all joints."""
    parts: list[Part] = []
    for name, joint, in_q, in_v in zip(
        configuration.names, configuration.joints, configuration.q_slices, configuration.v_slices, strict=True
    ):
        for turns in (False, True):
            of_q = [k for k in range(joint.nq) if joint.shifts[k] != turns]
            of_v = [k for k in range(joint.nv) if configuration.turns[in_v][k] == turns]
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


def followed_at(
    configuration: Configuration, t: Array, session: Array, followed: Sequence[Followed]
) -> tuple[Array, Array]:
    """Returns the reference's positions (k, nq) and velocities (k, nv) at the plant's times t (k,) s of its runs
    session (k,), or NaN where no reference was followed. Within a run each reference lasts until the next begins.
    """
    q, v = np.full((len(t), configuration.nq), np.nan), np.full((len(t), configuration.nv), np.nan)
    for k, reference in enumerate(followed):
        next_begins = [other.begin_s for other in followed[k + 1 :] if other.session == reference.session]
        rows = (session == reference.session) & (t >= reference.begin_s) & (t < min(next_begins, default=math.inf))
        sample = reference.motion.sample(t[rows] - reference.begin_s)
        _, in_q, in_v = configuration.chosen(list(reference.joints))
        q[np.ix_(rows, in_q)], v[np.ix_(rows, in_v)] = sample.q, sample.v
    return q, v


def commanded_at(
    recording: Recording | None, t: Array, session: Array, running: NDArray[np.bool_]
) -> dict[Interface, Array]:
    """Returns the commands in force at the plant's times t (k,) s, for each interface that was used.

    recording: Of the accepted commands, or None. t: Not decreasing within a run. session: The run of each time, (k,).
    running: (k,) whether the plant was under command.
    """
    commands: dict[Interface, Array] = {}
    if recording is None or not len(recording.table):
        return commands
    names, values = recording.group("command")
    # each command is a row when it was accepted, and is in force until the next one of its run
    times, runs, kinds = (recording.column(name) for name in ("t", "session", "interface"))
    for run in dict.fromkeys(runs.tolist()):
        rows_of_run, rows = np.flatnonzero(runs == run), np.flatnonzero((session == run) & running)
        last = np.searchsorted(times[rows_of_run], t[rows], side="right") - 1
        rows, last = rows[last >= 0], rows_of_run[last[last >= 0]]
        for k, kind in enumerate(INTERFACES):
            is_of_kind = kinds[last] == k
            if is_of_kind.any():
                table = commands.setdefault(kind, np.full((len(t), len(names)), np.nan))
                table[rows[is_of_kind]] = values[last[is_of_kind]]
    return commands


def motion_of(plant: NodeTelemetry, store: TelemetryStore) -> Motion | None:
    """Returns the plant's recording with its reference, or None if nothing was recorded.

    Any node may report a reference by a fact; those with this plant's session count.
    """
    recording = plant.recording("plant")
    if recording is None:
        return None
    entries, q = recording.group("q")
    _, v = recording.group("v")
    _, effort = recording.group("tau")
    joints = plant.fact("configuration") or [{"name": name, "type": UNKNOWN_TYPE} for name in entries]
    configuration = Configuration.from_wire(joints)
    time, session = recording.column("t"), recording.column("session")
    sessions = set(session.tolist())
    # every reference of the run, not the last fact: a restarted controller begins a new one
    references = (facts["reference"] for node in store.nodes.values() for facts in node.facts if "reference" in facts)
    followed = [Followed.of_fact(fact) for fact in references if fact["session"] in sessions]
    reference, _ = followed_at(configuration, time, session, followed)
    mode = recording.column("mode")
    joints_of_v = configuration.velocity_joints
    # Joints that the loops of a robot move have no reference: they are shown without an error.
    referenced: NDArray[np.bool_] = np.asarray(np.isfinite(reference).any(axis=0))
    reference = np.where(referenced, reference, q)
    active = (mode == MODES.index(ACTIVE)) & np.isfinite(reference).all(axis=1) & referenced.any()
    error = configuration.error(q, reference)
    if not configuration.flat or configuration.wraps.size:
        # removes full turns and quaternion signs: the reference nearest to the measured position
        reference = configuration.integrate(q, error)

    def fact(name: str, default: float, size: int) -> Array:
        value = plant.fact(name)
        return np.array(value, dtype=np.float64) if value is not None else np.full(size, default)

    return Motion(
        configuration=configuration,
        t=running_time(time),
        q=q,
        v=v,
        effort=effort,
        reference=reference,
        error=error,
        referenced=referenced[[configuration.q_slices[configuration.names.index(n)].start for n in joints_of_v]],
        active=active,
        mode=mode,
        stride=recording.stride,
        commanded=commanded_at(
            plant.recordings.get("commanded"),
            time,
            session,
            np.isin(mode, [MODES.index(mode_name) for mode_name in RUNNING]),
        ),
        effort_limit=fact("effort_limit", math.inf, configuration.nv),
        velocity_limit=fact("velocity_limit", math.inf, configuration.nv),
        lower=fact("lower", -math.inf, configuration.nq),
        upper=fact("upper", math.inf, configuration.nq),
    )

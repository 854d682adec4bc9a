"""What a report shows of a controller: its law, its updates with their round trips, and the loads it asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.nodes import law_report
from dyn_service.nodes.asking import LOADS, UPDATE
from dyn_service.nodes.board import Board, NodeBoard, Recording
from dyn_service.nodes.kinds import Column, Panel, Section, Stats, number, rate
from dyn_service.nodes.series import envelope, quantiles, running_time, with_gaps

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass
class Loads:
    """Magnitudes of the constraint force (k, j) N and torque (k, j) N m at each joint, at the times t (k,) s."""

    joints: tuple[str, ...]
    t: Array
    force: Array
    torque: Array


def requests_section(controller: NodeBoard, board: Board) -> Section:
    """Requests and round trips, with their plot."""
    requests = controller.recordings.get("requests")
    content = _request_summary(controller, requests)
    if requests is None or not len(requests.table):
        return Section(content, _lines(content))
    deadline = controller.fact("deadline_s")
    return Section(content, _lines(content), {"round_trip": lambda title: round_trips_plot(requests, deadline, title)})


def loads_section(controller: NodeBoard, board: Board) -> Section | None:
    """The joint loads with their plot, or None where none were recorded."""
    loads = loads_of(controller)
    if loads is None:
        return None
    return Section(_loads_summary(loads), plots={"loads": lambda title: loads_plot(loads, title)})


def loads_of(controller: NodeBoard) -> Loads | None:
    """The joint loads, or None where none were recorded."""
    recording = controller.recordings.get("loads")
    if recording is None or not len(recording.table):
        return None
    joints, force = recording.group("force")
    _, torque = recording.group("torque")
    return Loads(joints, running_time(recording.column("t")), force, torque)


def _request_summary(controller: NodeBoard, requests: Recording | None) -> dict[str, Any]:
    counters = (
        "sent", "answered", "lost", "deadline_misses", "skipped", "commands", "command_drops", "reference_restarts",
        "telemetry_dropped",
    )  # fmt: skip
    summary: dict[str, Any] = {
        **{name: controller.fact(name) for name in ("endpoint", "rate_hz", "deadline_s")},
        **{name: controller.total(name) for name in counters},
        "measured_rate_hz": controller.stats.get("mean_rate_hz"),
    }
    if requests is not None and len(requests.table):
        took, kind = requests.column("round_trip_us"), requests.column("kind")
        summary["update_us"] = quantiles(took[kind == UPDATE])
        summary["constraint_forces_us"] = quantiles(took[kind == LOADS])
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


def _lines(requests: Mapping[str, Any]) -> list[str]:
    lines = [
        f"requests: {requests['sent']} sent, {requests['answered']} answered, {requests['lost']} lost, "
        f"{requests['deadline_misses']} later than {1e3 * (requests['deadline_s'] or 0.0):g} ms"
    ]
    trips = requests.get("update_us")
    if trips and trips["count"]:
        lines.append(
            f"round trips: p50 {trips['p50']:.0f} us, p99 {trips['p99']:.0f} us, "
            f"p99.9 {trips['p99_9']:.0f} us, max {trips['max']:.0f} us"
        )
    return lines


def loads_plot(found: Loads, title: str) -> Figure:
    """Magnitudes of the constraint force and torque of every joint, fixed ones too."""
    from matplotlib.ticker import MaxNLocator

    from dyn_service.nodes import drawing

    heading = f"{title}: load that each joint carries (magnitude of the constraint force and torque at the joint)"
    figure, panels = drawing.grid(len(found.joints), heading, panel_height=260)
    for k, panel in enumerate(panels):
        upper, lower = panel.subplots(2, 1, sharex=True, gridspec_kw={"hspace": 0.0})
        for axes, values, colour, label, unit in (
            (upper, found.force[:, k], drawing.MEASURED, "force", "N"),
            (lower, found.torque[:, k], drawing.TORQUE, "torque", "N m"),
        ):
            top = float(values.max())
            size, prefix = drawing.prefix(top) if top > 1e-9 else (1.0, "")
            axes.plot(*with_gaps(*envelope(found.t, size * values, drawing.POINTS)), color=colour, lw=1.1)
            axes.set_ylabel(f"{label} [{prefix}{unit}]")
            axes.set_ylim(0.0, 1.12 * size * top if top > 1e-9 else 1.0)
            axes.yaxis.set_major_locator(MaxNLocator(4))
        most = f"max {found.force[:, k].max():.3g} N, {found.torque[:, k].max():.3g} N m"
        upper.set_title(f"{found.joints[k]}   {most}", loc="left")
        upper.tick_params(labelbottom=False)
        drawing.time_label(lower, k, panels)
    return figure


def round_trips_plot(recording: Recording, deadline_s: float | None, title: str) -> Figure:
    """Histogram of the round trips with its percentiles, and the round trips over time."""
    from matplotlib.figure import Figure

    from dyn_service.nodes import drawing

    kind, took, t = (recording.column(name) for name in ("kind", "round_trip_us", "t"))
    t, took = t[kind == UPDATE], took[kind == UPDATE]
    marks = quantiles(took)
    figure = Figure(figsize=(16.0, 10.0), dpi=drawing.DPI, layout="constrained")
    figure.suptitle(f"{title}: round trips of the law's updates, {took.size} of them", x=0.01, ha="left", fontsize=13.0)
    upper, lower = figure.subplots(2, 1, gridspec_kw={"height_ratios": [1.6, 1.0]})
    low, high = math.log10(max(took.min(), 1.0)), math.log10(max(took.max(), 10.0))
    upper.hist(took, bins=list(np.logspace(low - 0.02, high + 0.02, 90)), color="#5d8aa8")
    upper.set(xscale="log", yscale="log", xlabel=f"round trip [{drawing.PREFIXES[2][1]}s]", ylabel="requests per bin")
    upper.set_ylim(0.7, None)
    top = upper.get_ylim()[1]
    upper.set_ylim(0.7, top * 30.0)  # room for the labels above the bars
    for row, (label, name) in enumerate((("p50", "p50"), ("p99", "p99"), ("p99.9", "p99_9"), ("max", "max"))):
        value = float(marks[name] or 0.0)
        drawing.mark(
            upper, value, f"{label}  {value:.0f} {drawing.PREFIXES[2][1]}s", 0.97 - 0.07 * row, drawing.MEASURED
        )
    if deadline_s:
        limit = 1e6 * deadline_s
        drawing.mark(upper, limit, f"deadline  {limit:.0f} {drawing.PREFIXES[2][1]}s", 0.97 - 0.07 * 4, drawing.LIMIT)
    lower.plot(t, took, ".", ms=2.0, color="#5d8aa8", rasterized=True)
    drawing.plain_decades(upper.xaxis)
    lower.set(yscale="log", xlabel="plant time [s]", ylabel=f"round trip [{drawing.PREFIXES[2][1]}s]")
    drawing.plain_decades(lower.yaxis)
    if deadline_s:
        lower.axhline(1e6 * deadline_s, color=drawing.LIMIT, lw=1.2, ls=(0, (6, 3)))
    return figure


def _counter(label: str, name: str) -> Column:
    def text(stats: Stats) -> str:
        count = number(stats, name)
        return "" if count is None else f"{count:.0f}"

    return Column(label, text)


def _round_trip(stats: Stats) -> str:
    p50, p99 = number(stats, "round_trip_p50_us"), number(stats, "round_trip_p99_us")
    return "" if p50 is None or p99 is None else f"{p50:.0f}/{p99:.0f} us"


def _error(stats: Stats) -> str:
    rms, worst = number(stats, "error_rms"), number(stats, "error_max")
    return "" if rms is None or worst is None else f"{rms:.1e}/{worst:.1e}"


PANELS = (Panel("requests", requests_section), *law_report.PANELS, Panel("loads", loads_section))
COLUMNS = (
    rate(),
    Column("round trip p50/p99", _round_trip),
    _counter("missed", "deadline_misses"),
    _counter("lost", "lost"),
    Column("error rms/max", _error),
)

"""Plots of a run, as PNG files of at least 1600 x 1000 pixels. Nothing here needs a screen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, ScalarFormatter

from dyn_service.launching.analysis import Figures, Loads, Motion, envelope, quantiles, with_gaps
from dyn_service.launching.board import Recording
from dyn_service.queries import Array

DPI = 100
POINTS = 1500
"""Points of a line at most: what a panel has in pixels, and some."""
_STYLE: Any = {
    "font.size": 10.0,
    "axes.titlesize": 10.5,
    "axes.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "legend.frameon": False,
    "figure.facecolor": "white",
}
_REFERENCE, _MEASURED, _ERROR, _LIMIT, _TORQUE = "#f5b041", "#1b4f72", "#922b21", "#b03a2e", "#117864"
_COLUMNS = 3
_NEAR = 0.55
"""An effort above this share of its limit is drawn together with the limit."""
_PREFIXES = ((1.0, ""), (1e3, "m"), (1e6, "\N{MICRO SIGN}"), (1e9, "n"))


def write_plots(folder: Path, figures: Figures, *, title: str) -> list[Path]:
    """Writes the plots of what was recorded; their paths."""
    written: list[Path] = []
    with mpl.rc_context(_STYLE):
        if figures.motion is not None:
            if figures.motion.active.any():
                written.append(_save(tracking(figures.motion, title), folder / "tracking.png"))
            written.append(_save(efforts(figures.motion, title), folder / "efforts.png"))
        if figures.loads is not None:
            written.append(_save(loads(figures.loads, title), folder / "loads.png"))
        if figures.round_trips is not None and len(figures.round_trips.table):
            deadline = figures.controller.fact("deadline_s") if figures.controller is not None else None
            written.append(_save(round_trips(figures.round_trips, deadline, title), folder / "round_trip.png"))
    return written


def tracking(motion: Motion, title: str) -> Figure:
    """Reference and measured position of every joint, the error below."""
    error = motion.error[motion.active]
    total = math.sqrt(float((error**2).mean()))
    heading = f"{title}: tracking, error {total:.1e} rms over all joints, {np.abs(error).max():.1e} max"
    figure, panels = _grid(len(motion.joints), heading, panel_height=300)
    t = motion.t[motion.active]
    for k, panel in enumerate(panels):
        unit = motion.units[k]
        upper, lower = panel.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [2.2, 1.0], "hspace": 0.0})
        for values, colour, width, label in (
            (motion.reference, _REFERENCE, 3.2, "reference"),
            (motion.q, _MEASURED, 1.0, "measured"),
        ):
            upper.plot(*with_gaps(*_thinned(t, values[motion.active, k])), color=colour, lw=width, label=label)
        size, prefix = _prefix(float(np.abs(error[:, k]).max()))
        lower.plot(*with_gaps(*envelope(t, size * error[:, k], POINTS)), color=_ERROR, lw=0.8)
        lower.axhline(0.0, color="#888888", lw=0.6)
        rms = size * math.sqrt(float((error[:, k] ** 2).mean()))
        upper.set_title(f"{motion.joints[k]}   error rms {rms:.3g} {prefix}{unit}", loc="left")
        upper.set_ylabel(f"position [{unit}]")
        lower.set_ylabel(f"error [{prefix}{unit}]")
        upper.tick_params(labelbottom=False)
        lower.yaxis.set_major_locator(MaxNLocator(3))
        _time_label(lower, k, panels)
    _legend(figure, panels[0])
    return figure


def efforts(motion: Motion, title: str) -> Figure:
    """Effort of every joint, with its limits where they are near, else named."""
    figure, panels = _grid(len(motion.joints), f"{title}: joint efforts that acted", panel_height=240)
    shown = motion.active if motion.active.any() else np.ones_like(motion.active)
    for k, panel in enumerate(panels):
        axes = panel.subplots()
        unit = "N" if motion.units[k] == "m" else "N m"
        values, limit = motion.effort[shown, k], float(motion.effort_limit[k])
        axes.plot(*with_gaps(*envelope(motion.t[shown], values, POINTS)), color=_MEASURED, lw=1.0, label="effort")
        peak = float(np.abs(values).max(initial=0.0))
        note = f"peak {peak:.3g} {unit}"
        if math.isfinite(limit):
            note += f", limit \N{PLUS-MINUS SIGN}{limit:g} {unit}"
            for side in (values.max(), -values.min()):  # a limit is drawn where it does not flatten the line
                if side > _NEAR * limit:
                    where = limit if side == values.max() else -limit
                    axes.axhline(where, color=_LIMIT, lw=1.2, ls=(0, (6, 3)), label="limit")
        axes.set_title(f"{motion.joints[k]}   {note}", loc="left")
        axes.set_ylabel(f"effort [{unit}]")
        axes.margins(y=0.08)
        _time_label(axes, k, panels)
    _legend(figure, *panels)
    return figure


def loads(found: Loads, title: str) -> Figure:
    """Magnitudes of the constraint force and torque of every joint, fixed ones too."""
    heading = f"{title}: load that each joint carries (magnitude of the constraint force and torque at the joint)"
    figure, panels = _grid(len(found.joints), heading, panel_height=260)
    for k, panel in enumerate(panels):
        upper, lower = panel.subplots(2, 1, sharex=True, gridspec_kw={"hspace": 0.0})
        for axes, values, colour, label, unit in (
            (upper, found.force[:, k], _MEASURED, "force", "N"),
            (lower, found.torque[:, k], _TORQUE, "torque", "N m"),
        ):
            top = float(values.max())
            size, prefix = _prefix(top) if top > 1e-9 else (1.0, "")
            axes.plot(*with_gaps(*envelope(found.t, size * values, POINTS)), color=colour, lw=1.1)
            axes.set_ylabel(f"{label} [{prefix}{unit}]")
            axes.set_ylim(0.0, 1.12 * size * top if top > 1e-9 else 1.0)
            axes.yaxis.set_major_locator(MaxNLocator(4))
        most = f"max {found.force[:, k].max():.3g} N, {found.torque[:, k].max():.3g} N m"
        upper.set_title(f"{found.joints[k]}   {most}", loc="left")
        upper.tick_params(labelbottom=False)
        _time_label(lower, k, panels)
    return figure


def round_trips(recording: Recording, deadline_s: float | None, title: str) -> Figure:
    """Histogram of the round trips with its percentiles, and the round trips over time."""
    kind, took, t = (recording.column(name) for name in ("kind", "round_trip_us", "t"))
    t, took = t[kind == 0], took[kind == 0]
    marks = quantiles(took)
    figure = Figure(figsize=(16.0, 10.0), dpi=DPI, layout="constrained")
    figure.suptitle(f"{title}: round trips of computed_torque, {took.size} requests", x=0.01, ha="left", fontsize=13.0)
    upper, lower = figure.subplots(2, 1, gridspec_kw={"height_ratios": [1.6, 1.0]})
    low, high = math.log10(max(took.min(), 1.0)), math.log10(max(took.max(), 10.0))
    upper.hist(took, bins=list(np.logspace(low - 0.02, high + 0.02, 90)), color="#5d8aa8")
    upper.set(xscale="log", yscale="log", xlabel=f"round trip [{_PREFIXES[2][1]}s]", ylabel="requests per bin")
    upper.set_ylim(0.7, None)
    top = upper.get_ylim()[1]
    upper.set_ylim(0.7, top * 30.0)  # room for the labels above the bars
    for row, (label, name) in enumerate((("p50", "p50"), ("p99", "p99"), ("p99.9", "p99_9"), ("max", "max"))):
        value = float(marks[name] or 0.0)
        _mark(upper, value, f"{label}  {value:.0f} {_PREFIXES[2][1]}s", 0.97 - 0.07 * row, _MEASURED)
    if deadline_s:
        limit = 1e6 * deadline_s
        _mark(upper, limit, f"deadline  {limit:.0f} {_PREFIXES[2][1]}s", 0.97 - 0.07 * 4, _LIMIT)
    lower.plot(t, took, ".", ms=2.0, color="#5d8aa8", rasterized=True)
    _plain_decades(upper.xaxis)
    lower.set(yscale="log", xlabel="plant time [s]", ylabel=f"round trip [{_PREFIXES[2][1]}s]")
    _plain_decades(lower.yaxis)
    if deadline_s:
        lower.axhline(1e6 * deadline_s, color=_LIMIT, lw=1.2, ls=(0, (6, 3)))
    return figure


def _plain_decades(axis: Axis) -> None:
    """Labels a logarithmic axis 100, 200, 500, 1000, ..."""
    axis.set_major_locator(LogLocator(10.0, subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(ScalarFormatter())
    axis.set_minor_formatter(NullFormatter())


def _mark(axes: Axes, x: float, text: str, height: float, colour: str) -> None:
    """A vertical line with its label to its right, or to its left near the right end."""
    axes.axvline(x, color=colour, lw=1.1, ls=(0, (6, 3)))
    low, high = (math.log10(value) for value in axes.get_xlim())
    right = (math.log10(x) - low) / (high - low) < 0.8
    axes.annotate(
        text,
        (x, height),
        xycoords=("data", "axes fraction"),
        xytext=(5 if right else -5, 0),
        textcoords="offset points",
        ha="left" if right else "right",
        va="center",
        color=colour,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
    )


def _grid(count: int, heading: str, *, panel_height: int) -> tuple[Figure, list[SubFigure]]:
    """A figure with a panel per joint, three in a row, at least 1600 x 1000 pixels."""
    columns = min(count, _COLUMNS)
    rows = math.ceil(count / columns)
    height = max(1000, rows * panel_height + 70)
    figure = Figure(figsize=(16.0, height / DPI), dpi=DPI, layout="constrained")
    figure.suptitle(heading, x=0.01, ha="left", fontsize=13.0)
    cells = np.atleast_1d(figure.subfigures(rows, columns, squeeze=False)).ravel()
    return figure, list(cells[:count])


def _time_label(axes: Axes, k: int, panels: Sequence[SubFigure]) -> None:
    columns = min(len(panels), _COLUMNS)
    if k + columns >= len(panels):
        axes.set_xlabel("time [s]")


def _legend(figure: Figure, *panels: SubFigure) -> None:
    """One legend in the upper right corner of the figure, beside the heading."""
    found: dict[str, Any] = {}
    for axes in _axes(panels):
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(list(found.values()), list(found), loc="upper right", ncols=len(found), bbox_to_anchor=(0.995, 1.0))


def _axes(panels: Sequence[SubFigure]) -> Iterator[Axes]:
    for panel in panels:
        yield from panel.axes


def _prefix(size: float) -> tuple[float, str]:
    """The factor and prefix in which a size reads as a number of at least 1."""
    return next(((factor, name) for factor, name in _PREFIXES if size * factor >= 1.0), _PREFIXES[-1])


def _thinned(t: Array, values: Array) -> tuple[Array, Array]:
    step = max(1, len(t) // POINTS)
    return t[::step], values[::step]


def _save(figure: Figure, path: Path) -> Path:
    FigureCanvasAgg(figure)
    figure.savefig(path)
    return path

"""What a report shows of a control law: its name, its parameters, and its signals with a plot of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.nodes.board import Board, NodeBoard, Recording
from dyn_service.nodes.kinds import Panel, Section
from dyn_service.nodes.law_signals import CHANNEL
from dyn_service.nodes.series import envelope, running_time, with_gaps

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def law_section(controller: NodeBoard, board: Board) -> Section | None:
    """The law's name, parameters and signals, or None where the controller tells of no law."""
    name = controller.fact("law")
    if name is None:
        return None
    recording = controller.recordings.get(CHANNEL)
    signals = {} if recording is None or not len(recording.table) else signals_of(recording)
    content = {
        "name": name,
        "parameters": controller.fact("law_parameters") or {},
        "signals": {signal: _summary(*found) for signal, found in signals.items()},
    }
    if recording is None or not signals:
        return Section(content, [f"law: {name}"])
    t = running_time(recording.column("t"))
    plots = {f"law_{signal}": _plot(name, signal, t, *found) for signal, found in signals.items()}
    return Section(content, [f"law: {name}, with {', '.join(signals)}"], plots)


def signals_of(recording: Recording) -> dict[str, tuple[tuple[str, ...], Array]]:
    """Each signal's entries, and their values (k, entries)."""
    names = dict.fromkeys(column.partition(".")[0] for column in recording.columns[1:])
    return {name: recording.group(name) for name in names}


def signal_plot(title: str, signal: str, t: Array, entries: tuple[str, ...], values: Array) -> Figure:
    """A panel per entry of the signal (k, entries) over the plant's time (k,) s."""
    from dyn_service.nodes import drawing

    figure, panels = drawing.grid(len(entries), f"{title}: {signal}", panel_height=220)
    for k, panel in enumerate(panels):
        axes = panel.subplots()
        axes.plot(*with_gaps(*envelope(t, values[:, k], drawing.POINTS)), color=drawing.MEASURED, lw=1.1)
        axes.set_title(f"{entries[k]}   max {np.abs(values[:, k]).max():.3g}", loc="left")
        axes.axhline(0.0, color="#888888", lw=0.7)
        drawing.time_label(axes, k, panels)
    return figure


def _plot(law: str, signal: str, t: Array, entries: tuple[str, ...], values: Array) -> Callable[[str], Figure]:
    return lambda title: signal_plot(f"{title}: {law}", signal, t, entries, values)


def _summary(entries: tuple[str, ...], values: Array) -> list[dict[str, Any]]:
    rms, largest = np.sqrt(np.mean(values * values, axis=0)), np.abs(values).max(axis=0)
    return [{"name": name, "rms": float(r), "max": float(m)} for name, r, m in zip(entries, rms, largest, strict=True)]


PANELS = (Panel("law", law_section),)

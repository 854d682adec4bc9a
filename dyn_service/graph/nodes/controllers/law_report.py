"""What a report shows of a control law: its name, its parameters, and its signals with charts of each."""

from __future__ import annotations

from typing import Any

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.graph.middleware.node_kind import Panel, Section
from dyn_service.graph.middleware.telemetry_store import Board, NodeBoard, Recording
from dyn_service.graph.nodes.controllers.law_signals import CHANNEL
from dyn_service.graph.report.charts import Card, Chart, Line
from dyn_service.graph.report.series import running_time


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
    charts = {f"{name}: {signal}": signal_cards(t, *found) for signal, found in signals.items()}
    return Section(content, [f"law: {name}, with {', '.join(signals)}"], charts=charts)


def signals_of(recording: Recording) -> dict[str, tuple[tuple[str, ...], Array]]:
    """Each signal's entries, and their values (k, entries)."""
    names = dict.fromkeys(column.partition(".")[0] for column in recording.columns[1:])
    return {name: recording.group(name) for name in names}


def signal_cards(t: Array, entries: tuple[str, ...], values: Array) -> list[Card]:
    """A card per entry of the signal (k, entries) over the plant's time (k,) s."""
    return [
        Card(name, [Chart(t, [Line(name, values[:, k])], name)], f"max {np.abs(values[:, k]).max():.3g}")
        for k, name in enumerate(entries)
    ]


def _summary(entries: tuple[str, ...], values: Array) -> list[dict[str, Any]]:
    rms, largest = np.sqrt(np.mean(values * values, axis=0)), np.abs(values).max(axis=0)
    return [{"name": name, "rms": float(r), "max": float(m)} for name, r, m in zip(entries, rms, largest, strict=True)]


PANELS = (Panel("law", law_section),)

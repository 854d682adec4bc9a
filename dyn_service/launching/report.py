"""The report of a launch: `report.json`, plots, the recordings themselves.

    report.json        what ran, how it ended, what was measured; see docs/launch.md for every field
    recording.npz      the recordings as arrays, `<node>.<channel>` with `<node>.<channel>.columns`
    tracking.png efforts.png loads.png round_trip.png
    logs/              what the processes wrote

Every number in `report.json` comes from what the nodes sent; what JSON cannot say, an infinity, is null.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from dyn_service import __version__
from dyn_service.launching import plots
from dyn_service.launching.analysis import Figures, figures_of
from dyn_service.launching.board import Board
from dyn_service.launching.plan import LaunchPlan
from dyn_service.launching.supervisor import Outcome

SCHEMA = "dyn_service.launch_report/1"
_PACKAGES = ("numpy", "pyzmq", "msgpack", "msgspec", "casadi", "llvmlite", "matplotlib", "rich")


def write_report(folder: Path, plan: LaunchPlan, board: Board, outcome: Outcome) -> list[str]:
    """Writes the report into the folder; a few lines that sum it up."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = figures_of(board)
    content = report_of(plan, board, outcome, figures)
    _write(folder / "report.json", json.dumps(finite(content), indent=2, allow_nan=False) + "\n")
    _write_recordings(folder / "recording.npz", board)
    plots.write_plots(folder, figures, title=f"{content['robot']['name'] or plan.file.stem}")
    return summary_lines(content)


def report_of(plan: LaunchPlan, board: Board, outcome: Outcome, figures: Figures) -> dict[str, Any]:
    """The report as a map."""
    source = figures.plant or figures.controller
    return {
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "launch": {"file": plan.file.name, "arguments": dict(plan.arguments)},
        "robot": {
            "name": source.fact("robot") if source is not None else None,
            "fingerprint": source.fact("fingerprint") if source is not None else None,
            "joints": source.fact("joints") if source is not None else None,
        },
        "duration_s": outcome.running_s,
        "outcome": {
            "exit_code": outcome.exit_code,
            "clean": not outcome.faults,
            "reason": outcome.reason,
            "faults": list(outcome.faults),
        },
        "processes": [
            {
                "name": process.plan.name,
                "state": process.state.value,
                "restarts": process.restarts,
                "exits": list(process.exits),
                "clean": process.clean and process.stopped_well(),
                "parameters": dict(process.plan.parameters),
                "faults": board.nodes[process.plan.name].faults if process.plan.name in board.nodes else [],
            }
            for process in outcome.processes
        ],
        **figures.summary,
        "versions": versions(),
    }


def summary_lines(content: dict[str, Any]) -> list[str]:
    """The report in a few lines."""
    lines = []
    requests, tracking = content.get("requests"), content.get("tracking")
    if requests is not None:
        lines.append(
            f"requests: {requests['sent']} sent, {requests['answered']} answered, {requests['lost']} lost, "
            f"{requests['deadline_misses']} later than {1e3 * (requests['deadline_s'] or 0.0):g} ms"
        )
        trips = requests.get("computed_torque_us")
        if trips and trips["count"]:
            lines.append(
                f"round trips: p50 {trips['p50']:.0f} us, p99 {trips['p99']:.0f} us, "
                f"p99.9 {trips['p99_9']:.0f} us, max {trips['max']:.0f} us"
            )
    if tracking is not None and tracking["rms"] is not None:
        worst = max(tracking["joints"], key=lambda joint: joint["max"])
        share = 100.0 * tracking["share_under_command"]
        lines.append(
            f"tracking error: rms {tracking['rms']:.2e}, max {tracking['max']:.2e} ({worst['name']}, {worst['unit']}), "
            f"under command {share:.1f} % of the time"
        )
    return lines


def versions() -> dict[str, str]:
    """Versions of what took part."""
    found = {"dyn_service": __version__, "python": platform.python_version(), "system": platform.platform(terse=True)}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def finite(value: Any) -> Any:
    """The value with what JSON cannot say, infinities and NaN, as null."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _write_recordings(path: Path, board: Board) -> None:
    arrays: dict[str, Any] = {}
    for name, node in board.nodes.items():
        for channel, recording in node.recordings.items():
            key = f"{name}.{channel}".replace("/", ".")
            arrays[key] = recording.table
            arrays[f"{key}.columns"] = np.array(recording.columns)
    if arrays:
        np.savez(path, **arrays)


def _write(path: Path, text: str) -> None:
    partial = path.with_suffix(path.suffix + ".part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)

"""The report of a launch: `report.json`, plots, the recordings themselves.

    report.json        what ran, how it ended, what was measured; see docs/launch.md for every field
    recording.npz      the recordings as arrays, `<node>.<channel>` with `<node>.<channel>.columns`
    *.png              the plots of the nodes' panels
    logs/              what the processes wrote

What nodes have to show they declare themselves, as panels: see `nodes/kinds.py`. Every number in `report.json` comes
from what the nodes sent; what JSON cannot say, an infinity, is null.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import math
import os
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg

from dyn_service import __version__
from dyn_service.launching.planned import LaunchPlan
from dyn_service.launching.supervisor import Outcome
from dyn_service.nodes import drawing
from dyn_service.nodes.board import Board, NodeBoard
from dyn_service.nodes.kinds import Section
from dyn_service.nodes.registry import Kind

SCHEMA = "dyn_service.launch_report/1"
MAIN_FILE = "report.json"
RECORDING = "recording.npz"
_PACKAGES = ("numpy", "pyzmq", "msgpack", "msgspec", "casadi", "llvmlite", "matplotlib", "rich")
_ROBOT = {"name": "robot", "fingerprint": "fingerprint", "joints": "joints"}
"""Keys of the report's `robot`, and the facts that they are."""


def write_report(folder: Path, plan: LaunchPlan, board: Board, outcome: Outcome) -> list[str]:
    """Writes the report into the folder; a few lines that sum it up.

    Each file is written whole or is not there. One that cannot be written is a fault of the outcome and costs no other.
    """
    sections, lines = sections_of(plan, board)
    title = str(report_of(plan, board, outcome, {})["robot"]["name"] or plan.file.stem)

    def main_file() -> list[str]:
        content = json.dumps(finite(report_of(plan, board, outcome, sections)), indent=2, allow_nan=False) + "\n"
        return _keep(folder / MAIN_FILE, lambda file: file.write(content.encode()))

    outcome.faults += main_file()  # first, for it is small and says most
    arrays = _recordings(board)
    lacking = _keep(folder / RECORDING, lambda file: np.savez(file, **arrays)) if arrays else []
    lines += _write_plots(folder, sections, title, lacking)
    outcome.faults += lacking
    if lacking:
        main_file()  # anew, with what is lacking; if that cannot be, the first one stays
    return lines


def clear_report(folder: Path) -> None:
    """Removes the report of an earlier launch, so that no part of it is taken for this one's."""
    for path in (folder / MAIN_FILE, folder / RECORDING, *folder.glob("*.png")):
        with suppress(OSError):
            path.unlink()


def sections_of(plan: LaunchPlan, board: Board) -> tuple[dict[str, Section], list[str]]:
    """What the panels of all nodes show, by the sections' names, and the lines that sum it up.

    The nodes that were started last, which ask the others, come first. Of several nodes of a kind the first is shown.
    """
    planned = {process.name: process.kind for process in plan.processes}
    found: dict[int, tuple[Kind, NodeBoard]] = {}
    for name, node in board.nodes.items():
        kind = plan.registry.kind_of(planned.get(name), node)
        if kind is not None:
            found.setdefault(id(kind), (kind, node))
    sections: dict[str, Section] = {}
    lines: list[str] = []
    for kind, node in reversed(found.values()):
        for panel in kind.panels:
            try:
                section = panel.make(node, board)
                if section is not None:
                    json.dumps(finite(dict(section.content)))  # what JSON cannot say shows here
            except Exception as error:  # noqa: BLE001  a panel, of whatever package, shall not cost the report
                lines.append(_failed(panel.section, error))
                continue
            if section is not None:
                sections[panel.section] = section
                lines += section.lines
    return sections, lines


def report_of(plan: LaunchPlan, board: Board, outcome: Outcome, sections: Mapping[str, Section]) -> dict[str, Any]:
    """The report as a map."""
    source = board.with_fact("joints") or board.with_fact("robot")
    return {
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "launch": {"file": plan.file.name, "arguments": dict(plan.arguments)},
        "robot": {name: None if source is None else source.fact(key) for name, key in _ROBOT.items()},
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
                "causes": list(process.causes),
                "clean": process.clean and process.stopped_well(),
                "parameters": dict(process.plan.parameters),
                "faults": board.nodes[process.plan.name].faults if process.plan.name in board.nodes else [],
            }
            for process in outcome.processes
        ],
        **{name: dict(section.content) for name, section in sections.items()},
        "versions": versions(),
    }


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


def _recordings(board: Board) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    for name, node in board.nodes.items():
        for channel, recording in node.recordings.items():
            key = f"{name}.{channel}".replace("/", ".")
            arrays[key] = recording.table
            arrays[f"{key}.columns"] = np.array(recording.columns)
    return arrays


def _write_plots(folder: Path, sections: Mapping[str, Section], title: str, lacking: list[str]) -> list[str]:
    """Writes the plots; a line for each that cannot be drawn. Adds one to `lacking` for each that cannot be written."""
    lines: list[str] = []
    owners: dict[str, str] = {}
    with mpl.rc_context(drawing.STYLE):
        for name, section in sections.items():
            for stem, draw in section.plots.items():
                owner = owners.setdefault(stem, name)
                if owner != name:
                    lines.append(f"panel {name!r} failed: {stem}.png is a plot of panel {owner!r}")
                    continue
                try:
                    picture = io.BytesIO()
                    figure = draw(title)
                    FigureCanvasAgg(figure)
                    figure.savefig(picture, format="png")
                except Exception as error:  # noqa: BLE001  as above
                    lines.append(_failed(name, error))
                else:
                    lacking += _keep(folder / f"{stem}.png", partial(_copy, picture.getvalue()))
    return lines


def _copy(content: bytes, file: IO[bytes]) -> None:
    file.write(content)


def _failed(section: str, error: Exception) -> str:
    return f"panel {section!r} failed: {type(error).__name__}: {error}"


def _keep(path: Path, write: Callable[[IO[bytes]], Any]) -> list[str]:
    """Writes a file beside its place, then moves it there; a line where that fails, and no part of it is left."""
    beside = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())  # a disk may say only now that it is full
        beside.replace(path)
        return []
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        return [f"{path.name} could not be written: {error.strerror or error}"]

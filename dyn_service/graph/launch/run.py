"""Runs a launch file from beginning to end.

**The report** of a launch:

    index.html         the page: see `page.py`
    report.json        what ran, how it ended, what was measured; see docs/launch.md for every field
    recording.npz      the recordings as arrays, `<node>.<channel>` with `<node>.<channel>.columns`
    logs/              what the processes wrote

Nodes declare their panels: see `graph/middleware/node_kind.py`. All numbers in `report.json` were sent by nodes;
infinities and NaN are null.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import math
import os
import platform
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import numpy as np
from rich.console import Console

from dyn_service import __version__
from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.launch.display import Display, Logs, showing
from dyn_service.graph.launch.page import Shown, make_page
from dyn_service.graph.launch.planner import LaunchPlan, ProcessPlan, make_plan
from dyn_service.graph.launch.runtime import Runtime
from dyn_service.graph.launch.schema import read_launch_file
from dyn_service.graph.launch.supervisor import BUSY, Listener, Outcome, Supervisor
from dyn_service.graph.middleware.node_kind import Section
from dyn_service.graph.middleware.telemetry import NodeTelemetry, TelemetryStore
from dyn_service.graph.report.verdicts import Verdict
from dyn_service.support.logs import FORMAT, LEVEL, Format, Level

_TAIL = 20
"""Number of last lines of a failed process, if its output is not on the screen."""


def launch_file(
    path: Path | str,
    arguments: Mapping[str, str] | None = None,
    *,
    duration_s: float | None = None,
    report_dir: Path | None = None,
    console: Console | None = None,
    log_format: Format = "text",
    log_level: Level = "info",
    check: bool = False,
) -> int:
    """Runs a launch file; returns the exit status.

    Args:
        path: The launch file.
        arguments: Its arguments, `name:=value` on the command line.
        duration_s: Seconds to run after all processes are ready; None: until Ctrl-C or SIGTERM.
        report_dir: The folder for the report, its plots, the recording and the logs; created if necessary.
        console: The console for progress; standard output by default. If it cannot be written, the launch goes on.
        log_format: `json`: one object per line, also from the nodes.
        log_level: The log level of nodes without one in their parameters; `debug` also shows their commands.
        check: Whether the status depends on whether the run was clean.

    Returns:
        0 if no process died, was restarted or had to be killed, and all files were written; else 1. With `check`, 3 if
        the run ended well and is not clean: a bound was not met, or no bound could be judged.

    Raises:
        NotFoundError: The file does not exist.
        ConfigurationError: The launch file or a parameter file is malformed: file, line, place, cause.
        InvalidArgumentError: An argument is unknown, missing or not allowed.
    """
    if duration_s is not None and not duration_s > 0.0:
        raise InvalidArgumentError(f"duration is {duration_s}: expected a positive number of seconds")
    launch = read_launch_file(Path(path))
    if report_dir is not None:
        try:
            report_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidArgumentError(f"report folder {str(report_dir)!r} cannot be made: {error.strerror}") from None
    # faults of the file are reported before anything is started or created
    with ExitStack() as stack:
        runtime = stack.enter_context(closing(Runtime(launch.path.name.partition(".")[0])))
        plan = make_plan(launch, dict(arguments or {}), folder=runtime.folder)
        console = console if console is not None else Console()
        screen = stack.enter_context(showing(console))
        display = Display(console, launch.path.name, log_format)
        logs = Logs(None if report_dir is None else report_dir / "logs", display.notice)
        if report_dir is not None:
            clear_report(report_dir)
        logs.begin(["launch", *(planned.name for planned in plan.processes)])

        def output(process: ProcessPlan, line: str) -> None:
            display.output(process, line)
            logs.write(process.name, line)

        def notice(line: str) -> None:
            display.notice(line)
            logs.write("launch", line)

        with display:
            if log_level == "debug":
                for planned in plan.processes:
                    notice(f"{planned.name}: {shlex.join(planned.command)}")
            listener = Listener(output, notice, display.tick)
            supervisor, outcome = asyncio.run(
                _supervise(plan, runtime, listener, {FORMAT: log_format, LEVEL: log_level}, duration_s)
            )
        for process in outcome.processes:
            if process.fault is not None and process.plan.output == "log":
                for line in list(process.tail)[-_TAIL:]:
                    display.line(process.plan.name, line)
        logs.write("launch", f"stopped: {outcome.reason}")
        if outcome.reason not in outcome.faults:  # else the last line of the launch reports it
            display.notice(f"stopped: {outcome.reason}")
        outcome.check = check
        outcome.faults += logs.close()
        fault = screen.settle()
        if fault is not None:
            outcome.faults.append(fault)
        if report_dir is not None:
            display.notice(f"writing the report to {report_dir / PAGE}")
            for line in write_report(report_dir, plan, supervisor.store, outcome):
                display.notice(line)
        else:
            sections_of(plan, supervisor.store, outcome)
        for line in _summary(plan, supervisor.store, outcome):
            display.notice(line)
    return outcome.exit_code if screen.fault is None else 1


def _summary(plan: LaunchPlan, store: TelemetryStore, outcome: Outcome) -> list[str]:
    """Returns the last lines of a launch: what was not clean or not judged; then one line with the verdict and nodes'
    summaries.
    """
    lines = [f"not clean: {line}" for line in outcome.faults if line != outcome.reason]
    ended = outcome.reason if not lines or outcome.reason in outcome.faults else f"not clean, {outcome.reason}"
    lines += [f"not clean: {line}" for line in outcome.broken]
    lines += [line for line in (busy(store, outcome),) if line]
    unjudged = [f"{node}: {one.sentence}" for node, one in outcome.verdicts if one.passed is None]
    lines += [", ".join(unjudged)] if unjudged and not outcome.faults else []
    word = ended if outcome.faults else outcome.verdict
    last = [f"status {outcome.exit_code}: {word}"] if outcome.exit_code else [word] if outcome.verdicts else []
    last += _at_end(plan, store)
    return [*lines, "; ".join(last)] if last else lines


def _at_end(plan: LaunchPlan, store: TelemetryStore) -> list[str]:
    said = []
    for name, node in store.nodes.items():
        kind = plan.kind_of(name, node)
        try:
            words = kind.at_end(node) if kind is not None else ""
        except Exception as error:  # noqa: BLE001  a kind, possibly of another package, must not prevent the others' summaries
            words = f"{type(error).__name__}: {error}"
        if words:
            said.append(f"{name}: {words}")
    return said


async def _supervise(
    plan: LaunchPlan, runtime: Runtime, listener: Listener, variables: Mapping[str, str], duration_s: float | None
) -> tuple[Supervisor, Outcome]:
    supervisor = Supervisor(plan, runtime, listener, variables)
    return supervisor, await supervisor.run(duration_s)


SCHEMA = "dyn_service.launch_report/1"
MAIN_FILE = "report.json"
PAGE = "index.html"
RECORDING = "recording.npz"
_PACKAGES = ("numpy", "pyzmq", "msgpack", "msgspec", "casadi", "llvmlite", "matplotlib", "rich")
_ROBOT = {"name": "robot", "fingerprint": "fingerprint", "joints": "joints"}
"""Keys of the report's `robot`, and their facts."""


def write_report(folder: Path, plan: LaunchPlan, store: TelemetryStore, outcome: Outcome) -> list[str]:
    """Writes the report to the folder; returns a summary of a few lines.

    Each file is written completely or not at all. A file that cannot be written is a fault of the outcome; others are
    written.
    """
    parts, lines = sections_of(plan, store, outcome)

    def main_file() -> list[str]:
        content = json.dumps(finite(report_of(plan, store, outcome, parts)), indent=2, allow_nan=False) + "\n"
        return _keep(folder / MAIN_FILE, lambda file: file.write(content.encode()))

    outcome.faults += main_file()  # first, because it is small and the most important
    known, arrays = len(outcome.faults), _recordings(store, parts)
    if arrays:
        outcome.faults += _keep(folder / RECORDING, lambda file: np.savez(file, **arrays))
    outcome.faults += _write_page(folder, plan, store, outcome, parts, lines)
    if len(outcome.faults) > known:
        main_file()  # again, with the faults of the other files; if that fails, the first one remains
    return lines


def clear_report(folder: Path) -> None:
    """Removes the report of an earlier launch."""
    for path in (folder / PAGE, folder / MAIN_FILE, folder / RECORDING):
        with suppress(OSError):
            path.unlink()


def sections_of(plan: LaunchPlan, store: TelemetryStore, outcome: Outcome) -> tuple[list[Shown], list[str]]:
    """Returns the sections of all nodes' panels and summary lines; adds their verdicts to the outcome.

    Nodes that were started last, the clients of the others, come first.
    """
    made: list[tuple[str, str, Section]] = []
    lines: list[str] = []
    outcome.verdicts = []
    for name, node in reversed(store.nodes.items()):
        kind = plan.kind_of(name, node)
        for panel in () if kind is None else kind.panels:
            try:
                section = panel.make(node, store)
                if section is not None:
                    json.dumps(finite(dict(section.content)))  # raises for values that JSON cannot represent
            except Exception as error:  # noqa: BLE001  a failing panel must not prevent the report
                lines.append(_failed(panel.section, error))
                outcome.verdicts.append((name, Verdict(panel.section, math.nan, 0.0, "", "its panel failed")))
                continue
            if section is not None:
                outcome.verdicts += [(name, verdict) for verdict in section.verdicts]
                made.append((name, panel.section, section))
    count = Counter(panel for _, panel, _ in made)
    parts = [Shown(node, panel, section, alone=count[panel] == 1) for node, panel, section in made]
    for part in parts:
        lines += part.section.lines if part.alone else [f"{part.node}: {line}" for line in part.section.lines]
    return parts, lines


def report_of(plan: LaunchPlan, store: TelemetryStore, outcome: Outcome, parts: Sequence[Shown]) -> dict[str, Any]:
    """Returns the report as a map. Sections with the same name of several nodes are under `nodes`, by node name."""
    nodes: dict[str, dict[str, Any]] = {}
    for part in parts:
        if not part.alone:
            nodes.setdefault(part.node, {})[part.name] = dict(part.section.content)
    source = store.with_fact("joints") or store.with_fact("robot")
    return {
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "launch": {"file": plan.file.name, "arguments": dict(plan.arguments)},
        "robot": {name: None if source is None else source.fact(key) for name, key in _ROBOT.items()},
        "duration_s": outcome.running_s,
        "outcome": {
            "exit_code": outcome.exit_code,
            "clean": outcome.clean,
            "verdict": outcome.verdict,
            "reason": outcome.reason,
            "faults": list(outcome.faults),
            "verdicts": [
                {"node": node, "passed": verdict.passed, "sentence": verdict.sentence, **asdict(verdict)}
                for node, verdict in outcome.verdicts
            ],
            "waiting_per_core": sum(outcome.waiting) / len(outcome.waiting) if outcome.waiting else None,
            "busy": busy(store, outcome),
        },
        "processes": [
            {
                "name": process.plan.name,
                "state": process.state.value,
                "restarts": process.restarts,
                **_cpu(store.nodes.get(process.plan.name)),
                "exits": list(process.exits),
                "causes": list(process.causes),
                "clean": process.clean and process.stopped_well(),
                "parameters": dict(process.plan.parameters),
                "faults": store.nodes[process.plan.name].faults if process.plan.name in store.nodes else [],
            }
            for process in outcome.processes
        ],
        **{part.name: dict(part.section.content) for part in parts if part.alone},
        **({"nodes": nodes} if nodes else {}),
        "versions": versions(),
    }


def busy(store: TelemetryStore, outcome: Outcome) -> str | None:
    """Returns a note that the machine was busy during a run that broke its bounds, with advice; else None."""
    plants = [node for node in store.nodes.values() if node.fact("clock") not in (None, "lockstep")]
    waiting = sum(outcome.waiting) / max(1, len(outcome.waiting))
    if not plants or not outcome.broken or waiting < BUSY:
        return None
    late_ms = 1e-3 * max(float(plant.stats.get("late_max_us") or 0.0) for plant in plants)
    return (
        f"the machine was busy: the plant was {late_ms:.0f} ms late; {waiting:.1f} other processes per core were "
        "waiting. A plant with the parameter clock: lockstep is independent of that"
    )


def _cpu(node: NodeTelemetry | None) -> dict[str, float | None]:
    """Returns the CPU time of a node's runs that did not end by a signal, and the share of one core; None if
    unknown.
    """
    known = [life for life in (node.lives.values() if node is not None else ()) if "cpu_s" in life]
    cpu_s, lived_s = (sum(float(life[name]) for life in known) for name in ("cpu_s", "lived_s"))
    return {"cpu_s": cpu_s, "cpu_share": cpu_s / lived_s} if known else {"cpu_s": None, "cpu_share": None}


def versions() -> dict[str, str]:
    """Returns the versions of Python and libraries."""
    found = {"dyn_service": __version__, "python": platform.python_version(), "system": platform.platform(terse=True)}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def finite(value: Any) -> Any:
    """Returns the value with infinities and NaN as None."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _recordings(store: TelemetryStore, parts: Sequence[Shown]) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    tables: list[tuple[str, str, Sequence[str], Any]] = [
        (name, channel, recording.columns, recording.table)
        for name, node in store.nodes.items()
        for channel, recording in node.recordings.items()
    ]
    tables += [(part.node, channel, *made) for part in parts for channel, made in part.section.tables.items()]
    for name, channel, columns, table in tables:
        key = f"{name}.{channel}".replace("/", ".")
        arrays[key], arrays[f"{key}.columns"] = table, np.array(columns)
    return arrays


def _write_page(
    folder: Path, plan: LaunchPlan, store: TelemetryStore, outcome: Outcome, parts: Sequence[Shown], lines: list[str]
) -> list[str]:
    """Writes the page; returns a line if that fails."""
    report = report_of(plan, store, outcome, parts)
    robots = dict.fromkeys(str(node.fact("robot")) for node in store.nodes.values() if node.fact("robot"))
    title = ", ".join(robots) or plan.file.stem
    columns: dict[str, dict[str, str]] = {}
    for process in plan.processes:
        node = store.nodes.get(process.name)
        kind = plan.kind_of(process.name, node)
        if kind is not None and node is not None:
            columns[process.name] = {column.label: column.cell(node.stats) for column in kind.columns}
    links = [name for name in (MAIN_FILE, RECORDING) if (folder / name).exists()]
    links += [f"logs/{path.name}" for path in sorted((folder / "logs").glob("*.log"))]
    tails = {p.plan.name: list(p.tail)[-_TAIL:] for p in outcome.processes if p.fault is not None and p.tail}

    def failed(name: str, error: Exception) -> None:
        lines.append(_failed(name, error))

    text = make_page(title, report, parts, columns, tails, links, failed)
    return _keep(folder / PAGE, lambda file: file.write(text.encode()))


def _failed(section: str, error: Exception) -> str:
    return f"panel {section!r} failed: {type(error).__name__}: {error}"


def _keep(path: Path, write: Callable[[IO[bytes]], Any]) -> list[str]:
    """Writes a file to a temporary name and renames it; returns a line if that fails, and leaves nothing behind."""
    temporary = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())  # a full disk may be reported only now
        temporary.replace(path)
        return []
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        return [f"{path.name} could not be written: {error.strerror or error}"]

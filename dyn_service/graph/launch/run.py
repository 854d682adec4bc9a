"""Runs a launch file from beginning to end."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

from rich.console import Console

from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.launch.display import Display, Logs, Screen, showing
from dyn_service.graph.launch.planner import LaunchPlan, ProcessPlan, make_plan
from dyn_service.graph.launch.report import PAGE, TAIL, cause, clear_report, sections_of, write_report
from dyn_service.graph.launch.runtime import Runtime
from dyn_service.graph.launch.schema import read_launch_file
from dyn_service.graph.launch.supervisor import Listener, Outcome, Supervisor
from dyn_service.graph.middleware.telemetry import DURATION, TelemetryStore
from dyn_service.support.logs import FORMAT, LEVEL, LEVELS, Format, Level


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
        duration_s: Seconds to run after all processes are ready, in lockstep seconds of the plants' time; None: until
            Ctrl-C or SIGTERM.
        report_dir: The folder for the report, its plots, the recording and the logs; created if necessary.
        console: The console for progress; standard output by default. If it cannot be written, the launch goes on.
        log_format: `json`: one object per line, also from the nodes.
        log_level: The log level of nodes without one in their parameters; `debug` also shows their commands.
        check: Whether the status depends on whether the run was clean.

    Returns:
        0 if no process died, was restarted or had to be killed, and all files were written; else 1. With `check`, if
        the run ended well: 3 if the robot did not meet its bounds, or none could be judged; 4 if only bounds on the
        timing were not met.

    Raises:
        NotFoundError: The file does not exist.
        ConfigurationError: The launch file or a parameter file is malformed: file, line, place, cause.
        InvalidArgumentError: An argument is unknown, missing or not allowed.
    """
    if duration_s is not None and not duration_s > 0.0:
        raise InvalidArgumentError(f"duration is {duration_s}: expected a positive number of seconds")
    launch = read_launch_file(Path(path))
    if report_dir is not None:
        _make_folder(report_dir)
    variables: dict[str, str] = {FORMAT: log_format, LEVEL: log_level}
    variables |= {DURATION: repr(duration_s)} if duration_s is not None else {}
    console = console or Console()
    with closing(Runtime(launch.path.name.partition(".")[0])) as runtime, showing(console) as screen:
        # first, so that faults of the file are reported before anything is started or created
        plan = make_plan(launch, dict(arguments or {}), folder=runtime.folder)
        display = Display(console, launch.path.name, log_format)
        logs = Logs(None if report_dir is None else report_dir / "logs", display.notice)
        if report_dir is not None:
            clear_report(report_dir)
        logs.begin(["launch", *(process.name for process in plan.processes)])
        listener = _listener(display, logs)
        supervisor = Supervisor(plan, runtime, listener, variables)
        with display:
            for line in _first_notices(plan, log_level):
                listener.notice(line)
            outcome = asyncio.run(supervisor.run(duration_s))
        outcome.check = check
        _finish(outcome, display, logs, screen)
        _report(report_dir, plan, supervisor.store, outcome, display)
    return outcome.exit_code if screen.fault is None else 1


def _make_folder(report_dir: Path) -> None:
    try:
        report_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(f"report folder {str(report_dir)!r} cannot be made: {error.strerror}") from None


def _report(folder: Path | None, plan: LaunchPlan, store: TelemetryStore, outcome: Outcome, display: Display) -> None:
    """Judges the run, writes the report if there is a folder for it, and shows the last lines."""
    if folder is not None:
        display.notice(f"writing the report to {folder / PAGE}")
        for line in write_report(folder, plan, store, outcome):
            display.notice(line)
    else:
        # without a report too: the verdicts decide about the exit status
        sections_of(plan, store, outcome)
    for line in _summary(plan, store, outcome):
        display.notice(line)


def _finish(outcome: Outcome, display: Display, logs: Logs, screen: Screen) -> None:
    """Shows the last lines of failed processes and why the launch stopped; adds faults of logs and screen."""
    for process in outcome.processes:
        if process.fault is not None and process.plan.output == "log":
            for line in list(process.tail)[-TAIL:]:
                display.line(process.plan.name, line)
    logs.write("launch", f"stopped: {outcome.reason}")
    # else the last line of the launch reports it
    if outcome.reason not in outcome.faults:
        display.notice(f"stopped: {outcome.reason}")
    outcome.faults += logs.close()
    if (fault := screen.settle()) is not None:
        outcome.faults.append(fault)


def _listener(display: Display, logs: Logs) -> Listener:
    """Returns callbacks that show each line and write it to a log."""

    def output(process: ProcessPlan, line: str) -> None:
        display.output(process, line)
        logs.write(process.name, line)

    def notice(line: str) -> None:
        display.notice(line)
        logs.write("launch", line)

    return Listener(output, notice, display.tick)


def _first_notices(plan: LaunchPlan, log_level: Level) -> Iterator[str]:
    """Yields the messages of the launch file and, with `debug`, the nodes' commands."""
    for level, message in plan.messages:
        if LEVELS.index(level) >= LEVELS.index(log_level):
            yield message if level == "info" else f"{level}: {message}"
    if log_level == "debug":
        for process in plan.processes:
            yield f"{process.name}: {shlex.join(process.command)}"


def _summary(plan: LaunchPlan, store: TelemetryStore, outcome: Outcome) -> list[str]:
    """Returns the last lines of a launch: faults, what was not judged; then the verdict and nodes' summaries."""
    lines = [f"not clean: {line}" for line in outcome.faults if line != outcome.reason]
    ending = outcome.reason if not lines or outcome.reason in outcome.faults else f"not clean, {outcome.reason}"
    lines += [f"not clean: {line}" for line in outcome.broken("robot")]
    lines += [f"late: {line}" for line in outcome.broken("timing")]
    lines += [line for line in (cause(plan, outcome),) if line]
    unjudged = [f"{node}: {verdict.sentence}" for node, verdict in outcome.verdicts if verdict.passed is None]
    lines += [", ".join(unjudged)] if unjudged and not outcome.faults else []
    word = ending if outcome.faults else outcome.verdict
    last = [f"status {outcome.exit_code}: {word}"] if outcome.exit_code else [word] if outcome.verdicts else []
    time = f"simulated {outcome.simulated_s:g} s in lockstep" if outcome.simulated_s is not None else ""
    last += [words for words in ("" if outcome.faults else outcome.timing, time) if words]
    last += _at_end(plan, store)
    return [*lines, "; ".join(last)] if last else lines


def _at_end(plan: LaunchPlan, store: TelemetryStore) -> list[str]:
    summaries = []
    for name, node in store.nodes.items():
        kind = plan.kind_of(name, node)
        try:
            words = kind.at_end(node) if kind is not None else ""
        except Exception as error:  # noqa: BLE001  a kind, possibly of another package, must not prevent the others' summaries
            words = f"{type(error).__name__}: {error}"
        if words:
            summaries.append(f"{name}: {words}")
    return summaries

"""Runs a launch file from beginning to end."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.launch.display import Display, showing
from dyn_service.graph.launch.logs import Logs
from dyn_service.graph.launch.plan import LaunchPlan, ProcessPlan
from dyn_service.graph.launch.planner import make_plan
from dyn_service.graph.launch.report import PAGE, busy, clear_report, sections_of, write_report
from dyn_service.graph.launch.runtime import Runtime, private_runtime
from dyn_service.graph.launch.schema import read_launch_file
from dyn_service.graph.launch.supervisor import Listener, Outcome, Supervisor
from dyn_service.graph.middleware.telemetry import TelemetryStore
from dyn_service.support.logs import FORMAT, LEVEL, Format, Level

_TAIL = 20
"""Last lines of a process that failed, where its output is not on the screen."""


class _Lines:
    """Where the lines of a launch go: to the display and into the logs."""

    def __init__(self, display: Display, logs: Logs) -> None:
        self._display, self._logs = display, logs

    def output(self, process: ProcessPlan, line: str) -> None:
        """A line that a process wrote."""
        self._display.output(process, line)
        self._logs.write(process.name, line)

    def notice(self, line: str) -> None:
        """A line about the launch."""
        self._display.notice(line)
        self._logs.write("launch", line)

    def stopped(self, outcome: Outcome) -> None:
        """Why the launch stopped; what failed and was not shown so far."""
        for process in outcome.processes:
            if process.fault is not None and process.plan.output == "log":
                for line in list(process.tail)[-_TAIL:]:
                    self._display.line(process.plan.name, line)
        if outcome.reason in outcome.faults:  # the launch's last line says it
            self._logs.write("launch", f"stopped: {outcome.reason}")
        else:
            self.notice(f"stopped: {outcome.reason}")


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
    """Starts what a launch file describes, keeps it running, and stops it; the exit status.

    Args:
        path: The launch file.
        arguments: Its arguments, `name:=value` on the command line.
        duration_s: Stop after this many seconds from when all is ready; None is until Ctrl-C or SIGTERM.
        report_dir: Where the report, its plots, the recording and the processes' logs go; made if need be.
        console: Where to show progress; standard output by default. Where it cannot be written, it is given up, and the
            launch goes on.
        log_format: `json` shows one object a line, and lets the nodes write so.
        log_level: The least that nodes write, where their parameters do not say; `debug` shows their commands as well.
        check: Whether the status says if the run was clean.

    Returns:
        0 if everything ended well: nothing died, nothing was restarted, nothing had to be killed, and all that was to
        be written is. Else 1. With `check` 3 if the run ended well and is not clean: a bound was not met, or none could
        be judged.

    Raises:
        NotFoundError: There is no such file.
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
    # what is wrong with the file shows before anything is started or made
    with ExitStack() as stack:
        runtime = stack.enter_context(private_runtime(launch.path.name.partition(".")[0]))
        plan = make_plan(launch, dict(arguments or {}), folder=runtime.folder)
        console = console if console is not None else Console()
        screen = stack.enter_context(showing(console))
        display = Display(console, launch.path.name, log_format)
        logs = Logs(None if report_dir is None else report_dir / "logs", display.notice)
        if report_dir is not None:
            clear_report(report_dir)

        lines = _Lines(display, logs)
        logs.begin(["launch", *(planned.name for planned in plan.processes)])
        with display:
            if log_level == "debug":
                for planned in plan.processes:
                    lines.notice(f"{planned.name}: {shlex.join(planned.command)}")
            listener = Listener(lines.output, lines.notice, display.tick)
            supervisor, outcome = asyncio.run(
                _supervise(plan, runtime, listener, {FORMAT: log_format, LEVEL: log_level}, duration_s)
            )
        lines.stopped(outcome)
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
    """The last lines of a launch: what was not clean or not judged; then, in one, the verdict and the nodes' words."""
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
    """What the nodes' kinds have to say of them at the end."""
    said = []
    for name, node in store.nodes.items():
        kind = plan.kind_of(name, node)
        try:
            words = kind.at_end(node) if kind is not None else ""
        except Exception as error:  # noqa: BLE001  a kind, of whatever package, shall not cost the others their words
            words = f"{type(error).__name__}: {error}"
        if words:
            said.append(f"{name}: {words}")
    return said


async def _supervise(
    plan: LaunchPlan, runtime: Runtime, listener: Listener, variables: Mapping[str, str], duration_s: float | None
) -> tuple[Supervisor, Outcome]:
    supervisor = Supervisor(plan, runtime, listener, variables)
    return supervisor, await supervisor.run(duration_s)

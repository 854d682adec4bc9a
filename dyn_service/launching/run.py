"""Runs a launch file from beginning to end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from rich.console import Console

from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.launching.display import Display
from dyn_service.launching.plan import LaunchPlan, ProcessPlan, make_plan
from dyn_service.launching.schema import read_launch_file
from dyn_service.launching.supervisor import Listener, Outcome, Runtime, Supervisor, private_runtime
from dyn_service.nodes.board import Board


def launch_file(
    path: Path | str,
    arguments: Mapping[str, str] | None = None,
    *,
    duration_s: float | None = None,
    report_dir: Path | None = None,
    console: Console | None = None,
) -> int:
    """Starts what a launch file describes, keeps it running, and stops it; the exit status.

    Args:
        path: The launch file.
        arguments: Its arguments, `name:=value` on the command line.
        duration_s: Stop after this many seconds from when all is ready; None is until Ctrl-C or SIGTERM.
        report_dir: Where the report, its plots, the recording and the processes' logs go; made if need be.
        console: Where to show progress; standard output by default.

    Returns:
        0 if everything was clean: nothing died, nothing was restarted, nothing had to be killed. Else 1.

    Raises:
        NotFoundError: There is no such file.
        ConfigurationError: The launch file or a parameter file is malformed: file, line, place, cause.
        InvalidArgumentError: An argument is unknown, missing or not allowed.
    """
    if duration_s is not None and not duration_s > 0.0:
        raise InvalidArgumentError(f"duration is {duration_s}: expected a positive number of seconds")
    launch = read_launch_file(Path(path))
    screen = console if console is not None else Console()
    write_report = _report_writer(report_dir) if report_dir is not None else None
    # what is wrong with the file shows before anything is started or made
    with private_runtime() as runtime:
        plan = make_plan(launch, dict(arguments or {}), scratch=runtime.folder)
        with ExitStack() as stack:
            display = stack.enter_context(Display(screen, launch.path.name))
            logs = _Logs(None if report_dir is None else report_dir / "logs", stack)

            def output(process: ProcessPlan, line: str) -> None:
                display.output(process, line)
                logs.write(process, line)

            listener = Listener(output, display.notice, display.tick)
            supervisor, outcome = asyncio.run(_supervise(plan, runtime, listener, duration_s))
        for process in outcome.processes:
            if process.fault is not None and process.plan.output == "log":
                for line in list(process.tail)[-20:]:
                    screen.print(f"[{process.plan.name}] {line}", markup=False, highlight=False, soft_wrap=True)
        screen.print(f"[launch] stopped: {outcome.reason}", markup=False, highlight=False)
        for fault in outcome.faults:
            screen.print(f"[launch] not clean: {fault}", markup=False, highlight=False, soft_wrap=True)
    if report_dir is not None and write_report is not None:
        screen.print(f"[launch] writing the report to {report_dir}", markup=False, highlight=False, soft_wrap=True)
        summary = write_report(report_dir, plan, supervisor.board, outcome)
        for line in summary:
            screen.print(f"[launch] {line}", markup=False, highlight=False, soft_wrap=True)
    return outcome.exit_code


def _report_writer(folder: Path) -> Callable[[Path, LaunchPlan, Board, Outcome], list[str]]:
    """What writes the report, found before anything is started: its folder must be there, and its libraries.

    Raises:
        InvalidArgumentError: The folder cannot be made.
        FailedPreconditionError: matplotlib is not installed.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(f"report folder {str(folder)!r} cannot be made: {error.strerror}") from None
    try:
        from dyn_service.launching.report import write_report
    except ImportError as error:
        raise FailedPreconditionError(f"a report needs {error.name}, which is not installed") from None
    return write_report


async def _supervise(
    plan: LaunchPlan, runtime: Runtime, listener: Listener, duration_s: float | None
) -> tuple[Supervisor, Outcome]:
    supervisor = Supervisor(plan, runtime, listener)
    return supervisor, await supervisor.run(duration_s)


class _Logs:
    """One file per process, where a folder is given."""

    def __init__(self, folder: Path | None, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._files: dict[str, IO[str]] = {}

    def write(self, process: ProcessPlan, line: str) -> None:
        """Adds a line to the log of a process."""
        if self._folder is None:
            return
        file = self._files.get(process.name)
        if file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"{process.name.replace('/', '.')}.log"
            file = self._files[process.name] = self._stack.enter_context(path.open("w", encoding="utf-8"))
        file.write(line + "\n")

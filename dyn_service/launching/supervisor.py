"""Starts the processes of a plan one after the other, keeps them as the plan says, and stops them in reverse order.

    for each process, in the order of the file: start, wait until it is ready
    then, until the time is up, a signal comes, or a process fails for good: watch
    then, in reverse order: SIGINT, SIGTERM after a grace, SIGKILL

"Ready" is said by the node itself once it does its work. An executable is ready when it runs. A launcher that is
killed leaves nothing behind either: see `reaper.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import zmq
import zmq.asyncio

from dyn_service.errors import InvalidArgumentError
from dyn_service.launching import reaper
from dyn_service.launching.plan import LaunchPlan, ProcessPlan
from dyn_service.launching.process import ENDED, Hooks, ManagedProcess, ProcessState, exit_text, launch_environment
from dyn_service.nodes import telemetry
from dyn_service.nodes.board import Board
from dyn_service.nodes.telemetry import Ready

READY_TIMEOUT_S = 120.0
DRAIN_S = 0.2


@dataclass
class Outcome:
    """How a launch ended. faults: what was not clean, one line each; none means exit status 0."""

    reason: str = ""
    faults: list[str] = field(default_factory=list)
    processes: list[ManagedProcess] = field(default_factory=list)
    running_s: float = 0.0

    @property
    def exit_code(self) -> int:
        """0 if everything was clean, else 1."""
        return 1 if self.faults else 0


@dataclass
class Listener:
    """Who watches a launch: lines that processes write, notices of the supervisor, and a call a few times a second."""

    output: Callable[[ProcessPlan, str], None]
    notice: Callable[[str], None]
    tick: Callable[[Supervisor], None]
    period_s: float = 0.5


class Runtime:
    """The launcher's private folder, and the reaper that removes it when the launcher is killed."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dyn-"))
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", reaper.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self._reaper.stdin is not None
        self._pipe: IO[str] = self._reaper.stdin
        self._tell(f"dir {self.folder}")

    def group(self, group: int, started: bool) -> None:
        """Tells the reaper of a process group."""
        self._tell(f"{'+' if started else '-'}{group}")

    def close(self) -> None:
        """Lets the reaper end what may be left, and removes the folder."""
        with contextlib.suppress(OSError):
            self._pipe.close()
        self._reaper.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError):
            self._pipe.write(line + "\n")
            self._pipe.flush()


@contextlib.contextmanager
def private_runtime() -> Iterator[Runtime]:
    """A folder and a reaper for the time of a launch."""
    runtime = Runtime()
    try:
        yield runtime
    finally:
        runtime.close()


class Supervisor:
    """The processes of one launch."""

    def __init__(self, plan: LaunchPlan, runtime: Runtime, listener: Listener) -> None:
        self.plan = plan
        self.board = Board()
        self.outcome = Outcome()
        self.ready_s: float | None = None
        self._runtime = runtime
        self._listener = listener
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._changed = asyncio.Event()
        self.endpoint = f"ipc://{runtime.folder / 'launcher'}"
        environment = launch_environment(str(runtime.folder), self.endpoint)
        hooks = Hooks(listener.output, listener.notice, runtime.group, self._changed.set)
        self.processes = [
            ManagedProcess(one, {**environment, telemetry.NODE: one.name}, hooks) for one in plan.processes
        ]
        self.outcome.processes = self.processes

    @property
    def running_s(self) -> float:
        """Seconds since all processes were ready."""
        return 0.0 if self.ready_s is None else time.monotonic() - self.ready_s

    def request_stop(self, reason: str) -> None:
        """Stops the launch; asked a second time it does so at once, by SIGKILL."""
        if self._stop.is_set():
            self._hurry.set()
        else:
            self.outcome.reason = reason
            self._stop.set()

    async def run(self, duration_s: float | None) -> Outcome:
        """Runs the launch to its end."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        with contextlib.suppress(ValueError, RuntimeError):  # signals are for the main thread only
            for number in numbers:
                loop.add_signal_handler(number, self.request_stop, f"{number.name} came")
        context = zmq.asyncio.Context()
        pull = context.socket(zmq.PULL)
        pull.setsockopt(zmq.RCVHWM, 0)
        pull.bind(self.endpoint)
        listening = asyncio.create_task(self._listen(pull))
        ticking = asyncio.create_task(self._tick())
        runs: list[asyncio.Task[None]] = []
        try:
            await self._start(runs)
            await self._watch(duration_s)
        finally:
            self.outcome.running_s = self.running_s
            await self._shut_down(runs)
            await asyncio.sleep(DRAIN_S)
            for task in (listening, ticking):
                task.cancel()
            await asyncio.gather(listening, ticking, return_exceptions=True)
            context.destroy(linger=0)
            for number in numbers:
                loop.remove_signal_handler(number)
        self._judge()
        return self.outcome

    async def _start(self, runs: list[asyncio.Task[None]]) -> None:
        for process in self.processes:
            if self._stop.is_set():
                return
            runs.append(asyncio.create_task(process.run()))
            deadline = time.monotonic() + READY_TIMEOUT_S
            while not process.ready.is_set() and not self._stop.is_set():
                self._look_for_failures()
                left = deadline - time.monotonic()
                if left <= 0.0:
                    process.fault = f"not ready after {READY_TIMEOUT_S:.0f} s"
                    self.request_stop(f"{process.plan.name} was not ready in time")
                elif process.state is ProcessState.DONE:
                    break
                else:
                    await self._wait_for_change(min(left, 0.5))
        self.ready_s = time.monotonic()
        if not self._stop.is_set():
            self._listener.notice(f"ready: {len(self.processes)} processes")

    async def _watch(self, duration_s: float | None) -> None:
        while not self._stop.is_set():
            self._look_for_failures()
            if all(process.state in ENDED for process in self.processes):
                self.request_stop("every process is done")
                return
            left = float("inf") if duration_s is None else duration_s - self.running_s
            if left <= 0.0:
                self.request_stop(f"{duration_s:g} s are over")
                return
            await self._wait_for_change(min(left, 1.0))

    def _look_for_failures(self) -> None:
        for process in self.processes:
            if self._stop.is_set():
                return
            if process.state is ProcessState.FAILED:
                self.request_stop(f"{process.plan.name} {process.fault}")
                self._listener.notice(f"{process.plan.name}: {process.fault} ({process.plan.where})")
            elif process.state is ProcessState.DONE and process.plan.on_exit_shutdown:
                self.request_stop(f"{process.plan.name} is done")

    async def _wait_for_change(self, timeout_s: float) -> None:
        """Waits until a process changes its state or a stop is asked for."""
        waits = [asyncio.ensure_future(self._changed.wait()), asyncio.ensure_future(self._stop.wait())]
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        self._changed.clear()

    async def _shut_down(self, runs: list[asyncio.Task[None]]) -> None:
        self._stop.set()
        for process in self.processes:
            process.let_end()
        for process in reversed(self.processes[: len(runs)]):
            await process.stop(self._hurry)
        await asyncio.gather(*runs)

    async def _listen(self, pull: zmq.asyncio.Socket) -> None:
        while True:
            frame = await pull.recv()
            try:
                message = telemetry.decode(frame)
            except InvalidArgumentError:
                self.board.malformed += 1
                continue
            self.board.take(message)
            if isinstance(message, Ready):
                for process in self.processes:
                    if process.plan.name == message.node:
                        process.mark_ready(message.pid)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._listener.period_s)
            self._listener.tick(self)

    def _judge(self) -> None:
        for process in self.processes:
            name, faults = process.plan.name, self.outcome.faults
            if process.fault is not None:
                faults.append(f"{name} {process.fault}")
            if process.restarts:
                deaths = ", ".join(exit_text(status) for status in process.exits[: process.restarts])
                faults.append(f"{name} was restarted {process.restarts} times: it {deaths}")
            if process.forced:
                faults.append(f"{name} did not stop until it was killed")
            elif not process.stopped_well():
                faults.append(f"{name} {exit_text(process.exits[-1])} when it was told to stop")

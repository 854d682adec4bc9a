"""Starts the processes of a plan one after the other, supervises them, and stops them in reverse order.

    for each process, in the order of the file: start, wait until it is ready
    then, until the duration ends, a signal is received, or a process fails: watch
    then, in reverse order: SIGINT, SIGTERM after a timeout, SIGKILL after another

A node reports that it is ready; an executable is ready when it runs. A node that hangs is killed: see `process.py`. The
processes of a launcher that was killed are ended by `orphan_cleanup.py`.

The order is reversed, also when a process failed, so that the plant outlives its controllers: a controller's last
message releases the plant, which applies its brakes; if that message is missing, the plant stops by its policy for
stale commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import zmq
import zmq.asyncio

from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.launch.plan import LaunchPlan, ProcessPlan
from dyn_service.graph.launch.process import (
    ENDED,
    Hooks,
    ManagedProcess,
    ProcessState,
    exit_text,
    first_of,
    launch_environment,
)
from dyn_service.graph.launch.runtime import Runtime
from dyn_service.graph.middleware import telemetry, topics
from dyn_service.graph.middleware.telemetry import Beat, Ready, TelemetryStore
from dyn_service.graph.report.verdicts import Verdict

DRAIN_S = 0.2
NOT_CLEAN = 3
"""Exit status, with `--check`, of a run that ended well and did not meet its bounds."""
WATCH_PERIOD_S = 0.1

BUSY = 0.5
"""Waiting processes per core from which on the machine is reported as busy."""


def waiting_per_core(loadavg: Path = Path("/proc/loadavg")) -> float | None:
    """Returns the number of processes of the whole machine that are ready and wait for a core, per core; None if the
    system does not report it.
    """
    try:
        ready = int(loadavg.read_text("ascii").split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return None
    cores = os.cpu_count() or 1
    return max(0, ready - cores) / cores


@dataclass
class Outcome:
    """How a launch ended.

    faults: one line each; without faults the exit status is 0. verdicts: with the names of their nodes. check: whether
    the exit status depends on the bounds. waiting: waiting processes per core, sampled every `WATCH_PERIOD_S`.
    """

    reason: str = ""
    faults: list[str] = field(default_factory=list)
    processes: list[ManagedProcess] = field(default_factory=list)
    running_s: float = 0.0
    verdicts: list[tuple[str, Verdict]] = field(default_factory=list)
    check: bool = False
    waiting: array[float] = field(default_factory=lambda: array("d"))

    @property
    def broken(self) -> list[str]:
        """A sentence for each bound that was not met."""
        return [f"{node}: {verdict.sentence}" for node, verdict in self.verdicts if verdict.passed is False]

    @property
    def clean(self) -> bool | None:
        """Whether there was no fault and every bound was met; None if no bound could be judged."""
        if self.faults or self.broken:
            return False
        return True if any(verdict.passed for _, verdict in self.verdicts) else None

    @property
    def exit_code(self) -> int:
        """1 with faults; `NOT_CLEAN` with `check` for a run that is not clean; else 0."""
        return 1 if self.faults else NOT_CLEAN if self.check and not self.clean else 0

    @property
    def verdict(self) -> str:
        """The verdict as text: `clean, 7 bounds met`."""
        judged = sum(verdict.passed is not None for _, verdict in self.verdicts)
        if self.broken:
            return f"not clean, {len(self.broken)} of {judged} bounds broken"
        if self.clean is None:
            return "nothing judged"
        return "not clean" if self.faults else f"clean, {judged} bound{'s' if judged > 1 else ''} met"


@dataclass
class Listener:
    """Callbacks of a supervisor: a line that a process wrote, a line about the launch, and a call every `period_s`."""

    output: Callable[[ProcessPlan, str], None]
    notice: Callable[[str], None]
    tick: Callable[[Supervisor], None]
    period_s: float = 0.5


class Supervisor:
    """The processes of one launch."""

    def __init__(
        self, plan: LaunchPlan, runtime: Runtime, listener: Listener, variables: Mapping[str, str] | None = None
    ) -> None:
        self.plan = plan
        self.store = TelemetryStore()
        self.outcome = Outcome()
        self.ready_s: float | None = None
        self._runtime = runtime
        self._listener = listener
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._changed = asyncio.Event()
        self.endpoint = f"ipc://{runtime.folder}/.launcher"
        environment = launch_environment(self.endpoint) | runtime.variables() | dict(variables or {})
        hooks = Hooks(listener.output, listener.notice, runtime.group, self._changed.set, (runtime.pipe,))
        self.processes = [
            ManagedProcess(one, {**environment, telemetry.NODE: one.name}, hooks) for one in plan.processes
        ]
        self.outcome.processes = self.processes

    @property
    def running_s(self) -> float:
        """Seconds since all processes were ready."""
        return 0.0 if self.ready_s is None else time.monotonic() - self.ready_s

    def request_stop(self, reason: str) -> None:
        """Stops the launch; the second call kills the processes at once."""
        if self._stop.is_set():
            self._hurry.set()
        else:
            self.outcome.reason = reason
            self._stop.set()

    async def run(self, duration_s: float | None) -> Outcome:
        """Runs the launch and returns its outcome."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        with contextlib.suppress(ValueError, RuntimeError):  # only the main thread can handle signals
            for number in numbers:
                loop.add_signal_handler(number, self.request_stop, f"received {number.name}")
        context = zmq.asyncio.Context()
        pull = context.socket(zmq.PULL)
        pull.setsockopt(zmq.RCVHWM, 0)
        topics.listen(pull, self.endpoint)
        listening = asyncio.create_task(self._listen(pull))
        others = [asyncio.create_task(self._tick()), asyncio.create_task(self._look_for_silence())]
        runs: list[asyncio.Task[None]] = []
        try:
            await self._start(runs)
            await self._watch(duration_s)
        finally:
            self.outcome.running_s = self.running_s
            await self._shut_down(runs)
            await asyncio.sleep(DRAIN_S)
            for task in (listening, *others):
                task.cancel()
            await asyncio.gather(listening, *others, return_exceptions=True)
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
            while not process.ready.is_set() and not self._stop.is_set():
                self._look_for_failures()
                if process.state is ProcessState.DONE:
                    break
                await self._wait_for_change(0.5)
        self.ready_s = time.monotonic()
        if not self._stop.is_set():
            self._listener.notice(f"ready: {len(self.processes)} processes")
            for name, node in self.store.nodes.items():
                endpoints = node.fact("endpoints")
                if isinstance(endpoints, list | tuple):
                    self._listener.notice(f"{name} answers at {', '.join(map(str, endpoints))}")

    async def _watch(self, duration_s: float | None) -> None:
        while not self._stop.is_set():
            self._look_for_failures()
            if all(process.state in ENDED for process in self.processes):
                self.request_stop("every process has exited")
                return
            left = float("inf") if duration_s is None else duration_s - self.running_s
            if left <= 0.0:
                self.request_stop(f"the duration of {duration_s:g} s has passed")
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
                self.request_stop(f"{process.plan.name} has exited")

    async def _wait_for_change(self, timeout_s: float) -> None:
        """Waits until the state of a process changes or a stop is requested."""
        await first_of(self._changed, self._stop, timeout_s=timeout_s)
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
                self.store.malformed += 1
                continue
            self.store.take(message)
            for process in self.processes:
                if process.plan.name != message.node:
                    continue
                if isinstance(message, Ready):
                    process.mark_ready(message.pid)
                elif isinstance(message, Beat):
                    process.beat(message.pid, message.busy_s)

    async def _look_for_silence(self) -> None:
        """Counts the time without heartbeats; time in which the launcher itself did not run is not counted."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(WATCH_PERIOD_S)
            if self.ready_s is not None and (waiting := waiting_per_core()) is not None:
                self.outcome.waiting.append(waiting)
            now = time.monotonic()
            elapsed, last = min(now - last, 3.0 * WATCH_PERIOD_S), now
            for process in self.processes:
                process.watch(elapsed)

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
                deaths = ", ".join(process.causes[: process.restarts])
                faults.append(f"{name} was restarted {process.restarts} times: it {deaths}")
            if process.forced:
                faults.append(f"{name} did not stop and was killed")
            elif not process.stopped_well():
                faults.append(f"{name} {exit_text(process.exits[-1])} when it was stopped")

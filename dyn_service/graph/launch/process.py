"""One supervised process: starts, restarts and stops it.

    waiting -> starting -> ready -> (died -> delay -> starting)... -> stopped | done | failed

A node without heartbeats, or not ready in time, is killed, and then handled like any other process that died. Each
process leads its own process group: signals reach its children, and a terminal's Ctrl-C reaches the launcher only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from dyn_service.graph.launch.orphan_cleanup import send
from dyn_service.graph.launch.plan import ProcessPlan
from dyn_service.graph.middleware.telemetry import ENDPOINT, RESTARTS

QUICK_DEATH_S = 5.0
"""Processes that work for a shorter time than this are restarted with a longer delay each time."""
MOST_QUICK_DEATHS = 10
MOST_FAILED_STARTS = 3
"""A process that was never ready is not started more often than this."""
WRONG_STATUS = 2
"""Exit status of a node whose arguments are invalid; it is not restarted."""
MAX_DELAY_S = 30.0
TAIL_LINES = 200


class ProcessState(Enum):
    """State of a process; the values are shown to users."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    DELAY = "restarting"
    STOPPING = "stopping"
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"


ENDED = (ProcessState.STOPPED, ProcessState.DONE, ProcessState.FAILED)


@dataclass
class Hooks:
    """Callbacks of a process.

    output: a line that the process wrote. notice: a line about it. group: its process group, and whether it started or
    ended. changed: its state changed. inherited: file descriptors that the process inherits.
    """

    output: Callable[[ProcessPlan, str], None]
    notice: Callable[[str], None]
    group: Callable[[int, bool], None]
    changed: Callable[[], None]
    inherited: tuple[int, ...] = ()


@dataclass
class ManagedProcess:
    """A planned process and its state."""

    plan: ProcessPlan
    environment: Mapping[str, str]
    hooks: Hooks
    state: ProcessState = ProcessState.WAITING
    pid: int | None = None
    restarts: int = 0
    exits: list[int] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    forced: bool = False
    fault: str | None = None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    _process: asyncio.subprocess.Process | None = None
    _sent: set[int] = field(default_factory=set)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _ready_s: float | None = None
    _silent_s: float = 0.0
    _timeout_s: float | None = None
    _killed_for: str | None = None
    _quick_deaths: int = 0
    _ever_ready: bool = False

    async def run(self) -> None:
        """Runs the process until it is stopped, is done, or fails for good."""
        try:
            while not self._stop.is_set():
                status = await self._run_once()
                if status is None or self._stop.is_set():
                    self.fault = self.fault or self._killed_for  # it hung while the launch was stopping
                    break
                if not self._after_death(status):
                    return
                delay = self._delay_s()
                self._enter(ProcessState.DELAY)
                self.hooks.notice(f"{self.plan.name}: {self.causes[-1]}; restart {self.restarts} in {delay:.1f} s")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), delay)
            if self.state not in ENDED:
                self._enter(ProcessState.STOPPED)
        finally:
            self.ended.set()

    def mark_ready(self, pid: int) -> None:
        """Handles the message "ready" of the process with this id."""
        if self.state is ProcessState.STARTING and self._is_ours(pid):
            if self._ever_ready:
                self.hooks.notice(f"{self.plan.name} is ready again")
            self._ever_ready = True
            self._ready_s = time.monotonic()
            self._wait_for(None)
            self._enter(ProcessState.READY)
            self.ready.set()

    def beat(self, pid: int, busy_s: float) -> None:
        """Handles a heartbeat of the process with this id; from the first one on, missing heartbeats are detected."""
        if self.state is ProcessState.READY and self.plan.heartbeat_timeout_s > 0.0 and self._is_ours(pid):
            self._wait_for(self.plan.heartbeat_timeout_s + max(0.0, busy_s))

    def watch(self, elapsed_s: float) -> None:
        """Adds to the time without a message; kills the process if that exceeds the timeout."""
        if self._timeout_s is None or self._killed_for is not None:
            return
        if self.state is ProcessState.STARTING:
            what = f"was not ready after {self._timeout_s:.0f} s"
        elif self.state is ProcessState.READY:
            what = f"hung, without a heartbeat for {self._timeout_s:.1f} s"
        else:
            return
        self._silent_s += elapsed_s
        if self._silent_s > self._timeout_s:
            self._killed_for = f"{what}, and was killed"
            self._signal(signal.SIGKILL)

    def let_end(self) -> None:
        """Disables restarts."""
        self._stop.set()

    async def stop(self, hurry: asyncio.Event) -> None:
        """Stops it: SIGINT, after `sigterm_timeout_s` SIGTERM, after `sigkill_timeout_s` SIGKILL; with `hurry` SIGKILL
        at once.
        """
        self._stop.set()
        if self._process is not None and self._process.returncode is None:
            self._enter(ProcessState.STOPPING)
            for number, grace in (
                (signal.SIGINT, self.plan.sigterm_timeout_s),
                (signal.SIGTERM, self.plan.sigkill_timeout_s),
            ):
                if hurry.is_set():
                    break
                self._signal(number)
                await first_of(self.ended, hurry, timeout_s=grace)
                if self.ended.is_set():
                    break
                name = signal.Signals(number).name
                since = f"after {name}; it is killed now" if hurry.is_set() else f"{grace:.1f} s after {name}"
                self.hooks.notice(f"{self.plan.name}: still running {since}")
            if not self.ended.is_set():
                self.forced = True
                self._signal(signal.SIGKILL)
        await self.ended.wait()

    @property
    def clean(self) -> bool:
        """Whether it never exited by itself, and stopped without SIGKILL."""
        return self.state in (ProcessState.STOPPED, ProcessState.DONE) and not (
            self.restarts or self.forced or self.fault
        )

    async def _run_once(self) -> int | None:
        """Starts it and waits for its exit; returns the status, or None if it could not be started."""
        self.ready.clear()
        self._sent.clear()
        self._ready_s = self._killed_for = None
        # asyncio's own pipe would make `wait` wait for every process that holds its other end, also a grandchild
        source, sink = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *self.plan.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=asyncio.subprocess.STDOUT,
                env={**self.environment, RESTARTS: str(self.restarts), **self.plan.env},
                cwd=self.plan.cwd,
                start_new_session=True,
                pass_fds=self.hooks.inherited,
            )
        except OSError as error:
            os.close(source)
            self.fault = f"cannot start {self.plan.command[0]!r}: {error.strerror}"
            self._enter(ProcessState.FAILED)
            return None
        finally:
            os.close(sink)
        self._process, self.pid = process, process.pid
        self._wait_for(self.plan.ready_timeout_s)
        self.hooks.group(process.pid, True)
        self._enter(ProcessState.STARTING)
        reader = asyncio.create_task(self._read(source))
        if not self.plan.reports:
            self.mark_ready(process.pid)
        try:
            status = await process.wait()
        finally:
            await self._end_group(process.pid)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader, 1.0)
        self.exits.append(status)
        self.causes.append(self._killed_for or exit_text(status))
        self.pid = None
        return status

    def _after_death(self, status: int) -> bool:
        """Sets the state after an unrequested exit; returns whether to restart."""
        plan, cause = self.plan, self.causes[-1]
        if plan.reports and status == WRONG_STATUS and not self._ever_ready:
            self.fault = f"{cause} before it was ready"
            self._enter(ProcessState.FAILED)
            return False
        if not plan.respawn:
            service = plan.reports and not plan.on_exit_shutdown
            if status == 0 and not service:
                self._enter(ProcessState.DONE)
            else:
                self.fault = cause
                self._enter(ProcessState.FAILED)
            return False
        # starting and hanging do not count as work
        worked_s = 0.0 if self._ready_s is None else time.monotonic() - self._ready_s - self._silent_s
        self._quick_deaths = self._quick_deaths + 1 if worked_s < QUICK_DEATH_S else 0
        if 0 <= plan.respawn_max_retries <= self.restarts:
            self.fault = f"{cause} after {self.restarts} restarts, the maximum"
        elif not self._ever_ready and (self._killed_for is not None or len(self.exits) >= MOST_FAILED_STARTS):
            self.fault = f"{cause}; started {len(self.exits)} times, it was never ready"
        elif plan.respawn_max_retries < 0 and self._quick_deaths > MOST_QUICK_DEATHS:
            self.fault = f"{cause}; {self._quick_deaths} times in a row within {QUICK_DEATH_S:.0f} s"
        if self.fault is not None:
            self._enter(ProcessState.FAILED)
            return False
        self.restarts += 1
        return True

    def _wait_for(self, timeout_s: float | None) -> None:
        """Restarts the time without a message, with this timeout; None: no timeout."""
        self._silent_s, self._timeout_s = 0.0, timeout_s

    def _is_ours(self, pid: int) -> bool:
        """Returns whether the id is that of this process, or of one in its group (behind a launch-prefix)."""
        try:
            return self.pid is not None and (pid == self.pid or os.getpgid(pid) == self.pid)
        except ProcessLookupError:
            return False

    def _delay_s(self) -> float:
        base = self.plan.respawn_delay_s
        if self._quick_deaths > 1:
            base = max(base, 0.1) * 2.0 ** (self._quick_deaths - 1)
        return max(self.plan.respawn_delay_s, min(base, MAX_DELAY_S))

    async def _read(self, source: int) -> None:
        stream = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(source, "rb", buffering=0)
        )
        pending = b""
        try:
            while chunk := await stream.read(65536):
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    self._line(line)
                if len(pending) > 65536:
                    self._line(pending)
                    pending = b""
        finally:
            transport.close()
            if pending:
                self._line(pending)

    def _line(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip("\r")
        self.tail.append(text)
        self.hooks.output(self.plan, text)

    async def _end_group(self, group: int) -> None:
        """Ends the remaining processes of the group."""
        if send(group, signal.SIGTERM):
            for _ in range(25):
                await asyncio.sleep(0.02)
                if not send(group, 0):
                    break
            else:
                send(group, signal.SIGKILL)
        self.hooks.group(group, False)

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            self._sent.add(int(number))
            send(self.pid, number)

    def _enter(self, state: ProcessState) -> None:
        self.state = state
        self.hooks.changed()

    def stopped_well(self) -> bool:
        """Returns whether the last exit had status 0 or was caused by a signal that was sent to it."""
        if not self.exits or self.state is not ProcessState.STOPPED:
            return True
        status = self.exits[-1]
        return status == 0 or -status in self._sent or status - 128 in self._sent


async def first_of(*events: asyncio.Event, timeout_s: float) -> None:
    """Waits until one of the events is set, or for `timeout_s`."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def exit_text(status: int) -> str:
    """Returns the cause of an exit: `exited with status 3`, `was killed by SIGKILL`."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def launch_environment(endpoint: str) -> dict[str, str]:
    """Returns the environment of the processes: the launcher's, with its socket and unbuffered output."""
    return {
        **os.environ,
        **python_path(os.environ),
        ENDPOINT: endpoint,
        "PYTHONUNBUFFERED": "1",
        # one thread per process: the matrices are small, and thread pools would take time from the loops
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS", "1"),
    }


def python_path(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns `PYTHONPATH` without empty parts, which would mean the working directory, and with absolute paths."""
    given = environment.get("PYTHONPATH")
    if given is None:
        return {}
    return {"PYTHONPATH": os.pathsep.join(os.path.abspath(part) for part in given.split(os.pathsep) if part)}

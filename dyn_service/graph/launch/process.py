"""One supervised process: started, restarted as its plan says, and stopped step by step.

    waiting -> starting -> ready -> (died -> delay -> starting)... -> stopped | done | failed

A node that hangs, which shows by heartbeats that are missing, and one that does not get ready in time are killed; what
comes after is as after any death. A process leads a group of its own, so that signals reach its children and a
terminal's Ctrl-C only the launcher.
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
"""A process that does its work for less than this makes the next delay longer."""
MOST_QUICK_DEATHS = 10
MOST_FAILED_STARTS = 3
"""So often in a row may a process end without having been ready before; what is wrong with it will not pass."""
WRONG_STATUS = 2
"""With it a node ends that was told what cannot be; to start it again would mend nothing."""
MAX_DELAY_S = 30.0
TAIL_LINES = 200


class ProcessState(Enum):
    """Where a process stands."""

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
    """What a process tells its supervisor: a line it wrote, a line about it, its group's start and end, a change.

    inherited: files that the process has from its launcher.
    """

    output: Callable[[ProcessPlan, str], None]
    notice: Callable[[str], None]
    group: Callable[[int, bool], None]
    changed: Callable[[], None]
    inherited: tuple[int, ...] = ()


@dataclass
class ManagedProcess:
    """A process as planned and as it is."""

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
    _patience_s: float | None = None
    _killed_for: str | None = None
    _quick_deaths: int = 0
    _ever_ready: bool = False

    async def run(self) -> None:
        """Runs the process until it is stopped, is done, or fails for good."""
        try:
            while not self._stop.is_set():
                status = await self._run_once()
                if status is None or self._stop.is_set():
                    self.fault = self.fault or self._killed_for  # it hung while all was told to stop
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
        """Takes note that the process with this id says it is ready."""
        if self.state is ProcessState.STARTING and self._is_ours(pid):
            if self._ever_ready:
                self.hooks.notice(f"{self.plan.name} is ready again")
            self._ever_ready = True
            self._ready_s = time.monotonic()
            self._wait_for(None)
            self._enter(ProcessState.READY)
            self.ready.set()

    def beat(self, pid: int, busy_s: float) -> None:
        """Takes note of a heartbeat of the process with this id: it is watched from now on."""
        if self.state is ProcessState.READY and self.plan.heartbeat_timeout_s > 0.0 and self._is_ours(pid):
            self._wait_for(self.plan.heartbeat_timeout_s + max(0.0, busy_s))

    def watch(self, elapsed_s: float) -> None:
        """Counts the time of silence on, and kills the process if it has been silent for too long."""
        if self._patience_s is None or self._killed_for is not None:
            return
        if self.state is ProcessState.STARTING:
            what = f"was not ready after {self._patience_s:.0f} s"
        elif self.state is ProcessState.READY:
            what = f"hung, without a heartbeat for {self._patience_s:.1f} s"
        else:
            return
        self._silent_s += elapsed_s
        if self._silent_s > self._patience_s:
            self._killed_for = f"{what}, and was killed"
            self._signal(signal.SIGKILL)

    def let_end(self) -> None:
        """From now on it is not started again."""
        self._stop.set()

    async def stop(self, hurry: asyncio.Event) -> None:
        """Stops it: SIGINT, after `sigterm_timeout_s` SIGTERM, after `sigkill_timeout_s` SIGKILL; hurry goes there."""
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
                since = f"after {name}, not waited for any longer" if hurry.is_set() else f"{grace:.1f} s after {name}"
                self.hooks.notice(f"{self.plan.name}: still there {since}")
            if not self.ended.is_set():
                self.forced = True
                self._signal(signal.SIGKILL)
        await self.ended.wait()

    @property
    def clean(self) -> bool:
        """Whether it never died by itself, and ended when and as it was told to."""
        return self.state in (ProcessState.STOPPED, ProcessState.DONE) and not (
            self.restarts or self.forced or self.fault
        )

    async def _run_once(self) -> int | None:
        """Starts it and waits for its end; its status, None where it could not be started."""
        self.ready.clear()
        self._sent.clear()
        self._ready_s = self._killed_for = None
        # A pipe of our own: asyncio's would let us wait for anyone who holds its other end, also a grandchild.
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
        """What an end that nobody asked for means; whether to start again."""
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
        # neither getting ready nor hanging is work
        worked_s = 0.0 if self._ready_s is None else time.monotonic() - self._ready_s - self._silent_s
        self._quick_deaths = self._quick_deaths + 1 if worked_s < QUICK_DEATH_S else 0
        if 0 <= plan.respawn_max_retries <= self.restarts:
            self.fault = f"{cause} after {self.restarts} restarts, the most that are allowed"
        elif not self._ever_ready and (self._killed_for is not None or len(self.exits) >= MOST_FAILED_STARTS):
            self.fault = f"{cause}; started {len(self.exits)} times, it was never ready"
        elif plan.respawn_max_retries < 0 and self._quick_deaths > MOST_QUICK_DEATHS:
            self.fault = f"{cause}; {self._quick_deaths} times in a row within {QUICK_DEATH_S:.0f} s"
        if self.fault is not None:
            self._enter(ProcessState.FAILED)
            return False
        self.restarts += 1
        return True

    def _wait_for(self, patience_s: float | None) -> None:
        """Lets the silence count anew, up to `patience_s`; None is for ever."""
        self._silent_s, self._patience_s = 0.0, patience_s

    def _is_ours(self, pid: int) -> bool:
        """Whether the id is that of this process or of one in its group (behind a launch-prefix)."""
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
        """Ends what the process left in its group."""
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
        """Whether the last exit was with status 0 or by the very signal it was sent."""
        if not self.exits or self.state is not ProcessState.STOPPED:
            return True
        status = self.exits[-1]
        return status == 0 or -status in self._sent or status - 128 in self._sent


async def first_of(*events: asyncio.Event, timeout_s: float) -> None:
    """Waits until one of them is set, at most so long."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def exit_text(status: int) -> str:
    """`exited with status 3`, `was killed by SIGKILL`."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def launch_environment(endpoint: str) -> dict[str, str]:
    """The environment of the processes: the launcher's own, its socket, and unbuffered output."""
    return {
        **os.environ,
        **python_path(os.environ),
        ENDPOINT: endpoint,
        "PYTHONUNBUFFERED": "1",
        # one thread per process: the matrices are small, and idle pools would only take time from the loops
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS", "1"),
    }


def python_path(environment: Mapping[str, str]) -> dict[str, str]:
    """`PYTHONPATH` as it is meant: an empty part, which a stray colon leaves, would be the working directory."""
    given = environment.get("PYTHONPATH")
    if given is None:
        return {}
    return {"PYTHONPATH": os.pathsep.join(os.path.abspath(part) for part in given.split(os.pathsep) if part)}

"""Supervision of processes: starts those of a plan one after the other, restarts them, and stops them in reverse order.

    for each process, in the order of the file: start, wait until it is ready
    then, until the duration ends, a signal is received, or a process fails: watch
    then, in reverse order: SIGINT, SIGTERM after a timeout, SIGKILL after another

One process (`ManagedProcess`):

    waiting -> starting -> ready -> (died -> delay -> starting)... -> stopped | done | failed

A node reports that it is ready; an executable is ready when it runs. A node without heartbeats, or not ready in time,
is killed, and then handled like any other process that died. Each process leads its own process group: signals reach
its children, and a terminal's Ctrl-C reaches the launcher only. `orphan_cleanup.py` ends the processes of a launcher
that was killed.

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
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

import zmq
import zmq.asyncio

from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.launch.cpu_time import Ticks, cpu_shares, cpu_ticks
from dyn_service.graph.launch.orphan_cleanup import send
from dyn_service.graph.launch.planner import LaunchPlan, ProcessPlan
from dyn_service.graph.launch.runtime import Runtime
from dyn_service.graph.middleware import telemetry, topics
from dyn_service.graph.middleware.telemetry import ENDPOINT, RESTARTS, Beat, Ready, TelemetryStore
from dyn_service.graph.middleware.zmq_sockets import close_context
from dyn_service.graph.report.verdicts import Subject, Verdict

DRAIN_S = 0.2
NOT_CLEAN, LATE = 3, 4
"""Exit statuses, with `--check`, of runs that ended well: the robot did not meet its bounds, or nothing was judged; the
robot met its bounds, and the timing did not.
"""
WATCH_PERIOD_S = 0.1
STALLED_S = 60.0
"""Wall time after which a launch in lockstep with a duration ends, if its plants' time stands still."""
ARMED_TIMEOUT_S = 5.0
"""Maximum time to wait, once all processes are ready, until the controllers have armed the plants."""


@dataclass
class Outcome:
    """How a launch ended.

    faults: one line each; without faults the exit status is 0. verdicts: with the names of their nodes. check: whether
    the exit status depends on the bounds. cpu: see `cpu_shares`, while all processes were ready. simulated_s: s of the
    plants' time in lockstep, else None.
    """

    reason: str = ""
    faults: list[str] = field(default_factory=list)
    processes: list[ManagedProcess] = field(default_factory=list)
    running_s: float = 0.0
    simulated_s: float | None = None
    verdicts: list[tuple[str, Verdict]] = field(default_factory=list)
    check: bool = False
    cpu: Mapping[str, float] = field(default_factory=dict)

    def broken(self, subject: Subject) -> list[str]:
        """Returns a sentence for each bound on the robot, or on the timing, that was not met."""
        return [f"{node}: {v.sentence}" for node, v in self._verdicts_on(subject) if v.passed is False]

    @property
    def clean(self) -> bool | None:
        """Whether there was no fault and the robot met every bound; None if none of them could be judged."""
        return False if self.faults else self._all_met("robot")

    @property
    def on_time(self) -> bool | None:
        """Whether every bound on the timing was met; None if none of them could be judged, as in lockstep."""
        return self._all_met("timing")

    @property
    def exit_code(self) -> int:
        """1 with faults; with `check`, `NOT_CLEAN` if not clean, `LATE` if only the timing broke a bound; else 0."""
        if self.faults:
            return 1
        return 0 if not self.check else NOT_CLEAN if not self.clean else LATE if self.on_time is False else 0

    @property
    def verdict(self) -> str:
        """The verdict on the robot as text: `clean, 4 bounds met`."""
        if self.faults and not self.broken("robot"):
            return "not clean"
        return self._words("robot", "clean", "not clean") or "nothing judged"

    @property
    def timing(self) -> str:
        """The verdict on the timing as text: `on time, 3 bounds met`; empty if none could be judged."""
        return self._words("timing", "on time", "late")

    def _judged(self, subject: Subject) -> int:
        return sum(verdict.passed is not None for _, verdict in self._verdicts_on(subject))

    def _verdicts_on(self, subject: Subject) -> list[tuple[str, Verdict]]:
        return [(node, verdict) for node, verdict in self.verdicts if verdict.subject == subject]

    def _all_met(self, subject: Subject) -> bool | None:
        return not self.broken(subject) if self._judged(subject) else None

    def _words(self, subject: Subject, good: str, bad: str) -> str:
        judged, broken = self._judged(subject), len(self.broken(subject))
        bounds = f"{judged} bound{'' if judged == 1 else 's'}"
        return f"{bad}, {broken} of {bounds} broken" if broken else f"{good}, {bounds} met" if judged else ""


@dataclass
class Listener:
    """Callbacks of a supervisor: a line that a process wrote, a line about the launch, and a call every `period_s`."""

    output: Callable[[ProcessPlan, str], None]
    notice: Callable[[str], None]
    tick: Callable[[Supervisor], None]
    period_s: float = 0.5


def unarmed(store: TelemetryStore) -> bool:
    """Returns whether a plant of a launch with a controller has never been armed."""
    plants = [node for node in store.nodes.values() if node.fact("clock") is not None]
    return store.with_fact("law") is not None and not all(node.total("armed") for node in plants)


class Supervisor:
    """The processes of one launch."""

    def __init__(
        self, plan: LaunchPlan, runtime: Runtime, listener: Listener, variables: Mapping[str, str] | None = None
    ) -> None:
        self.plan = plan
        self.store = TelemetryStore()
        self.outcome = Outcome()
        self.ready_s: float | None = None
        self._cpu_begin: Ticks | None = None
        self._runtime = runtime
        self._listener = listener
        self._stop = asyncio.Event()
        self._kill = asyncio.Event()
        self._changed = asyncio.Event()
        self.endpoint = f"ipc://{runtime.folder}/.launcher"
        environment = launch_environment(self.endpoint) | runtime.variables() | dict(variables or {})
        hooks = Hooks(listener.output, listener.notice, runtime.group, self._changed.set, (runtime.pipe,))
        self.processes = [
            ManagedProcess(process_plan, {**environment, telemetry.NODE: process_plan.name}, hooks)
            for process_plan in plan.processes
        ]
        self.outcome.processes = self.processes

    @property
    def running_s(self) -> float:
        """Seconds since all processes were ready."""
        return 0.0 if self.ready_s is None else time.monotonic() - self.ready_s

    def request_stop(self, reason: str) -> None:
        """Stops the launch; the second call kills the processes at once."""
        if self._stop.is_set():
            self._kill.set()
        else:
            self.outcome.reason = reason
            self._stop.set()

    async def run(self, duration_s: float | None) -> Outcome:
        """Runs the launch and returns its outcome."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        # only the main thread can handle signals
        with contextlib.suppress(ValueError, RuntimeError):
            for number in numbers:
                loop.add_signal_handler(number, self.request_stop, f"received {number.name}")
        context = zmq.asyncio.Context()
        pull = context.socket(zmq.PULL)
        try:
            pull.setsockopt(zmq.LINGER, 0)
            # without a limit: nodes drop telemetry that is not received, and a report without its rows is worth little
            pull.setsockopt(zmq.RCVHWM, 0)
            topics.listen(pull, self.endpoint)
            await self._run(pull, duration_s)
        finally:
            pull.close()  # in its event loop
            close_context(context)
            for number in numbers:
                loop.remove_signal_handler(number)
        self.outcome.simulated_s = self.store.simulated_s
        self._judge()
        return self.outcome

    async def _run(self, pull: zmq.asyncio.Socket, duration_s: float | None) -> None:
        listening = asyncio.create_task(self._listen(pull))
        watchers = [asyncio.create_task(self._tick()), asyncio.create_task(self._look_for_silence())]
        runs: list[asyncio.Task[None]] = []
        try:
            await self._start(runs)
            await self._watch(duration_s)
        finally:
            self.outcome.running_s = self.running_s
            self.outcome.cpu = cpu_shares(self._cpu_begin, cpu_ticks())
            await self._shut_down(runs)
            # the last stats and faults of the nodes may still be on their way
            await asyncio.sleep(DRAIN_S)
            for task in (listening, *watchers):
                task.cancel()
            await asyncio.gather(listening, *watchers, return_exceptions=True)

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
        waited_s = 0.0
        while unarmed(self.store) and waited_s < ARMED_TIMEOUT_S and not self._stop.is_set():
            self._look_for_failures()
            await self._wait_for_change(WATCH_PERIOD_S)
            waited_s += WATCH_PERIOD_S
        self._cpu_begin = cpu_ticks()
        self.ready_s = time.monotonic()
        if not self._stop.is_set():
            self._listener.notice(f"ready: {len(self.processes)} processes")
            for name, node in self.store.nodes.items():
                endpoints = node.fact("endpoints")
                if isinstance(endpoints, list | tuple):
                    self._listener.notice(f"{name} answers at {', '.join(map(str, endpoints))}")

    async def _watch(self, duration_s: float | None) -> None:
        newest, moved_s = 0.0, self.running_s
        while not self._stop.is_set():
            self._look_for_failures()
            if all(process.state in ENDED for process in self.processes):
                self.request_stop("every process has exited")
                return
            left, simulated_s = float("inf"), self.store.simulated_s
            if duration_s is not None and simulated_s is None:
                left = duration_s - self.running_s
            elif duration_s is not None and simulated_s is not None:
                left = 0.0 if duration_s - simulated_s <= telemetry.ROUNDING_S else WATCH_PERIOD_S
                if simulated_s != newest:
                    newest, moved_s = simulated_s, self.running_s
                elif left and self.running_s - moved_s > STALLED_S:
                    reason = (
                        f"the plant's time has stood still at {simulated_s:g} of {duration_s:g} s for {STALLED_S:g} s"
                    )
                    self.outcome.faults.append(reason)
                    self.request_stop(reason)
                    return
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
                self._listener.notice(f"{process.plan.name}: {process.fault} ({process.plan.origin})")
            elif process.state is ProcessState.DONE and process.plan.on_exit_shutdown:
                self.request_stop(f"{process.plan.name} has exited")

    async def _wait_for_change(self, timeout_s: float) -> None:
        """Waits until the state of a process changes or a stop is requested."""
        await first_of(self._changed, self._stop, timeout_s=timeout_s)
        self._changed.clear()

    async def _shut_down(self, runs: list[asyncio.Task[None]]) -> None:
        self._stop.set()
        for process in self.processes:
            process.stopping.set()  # no more restarts
        started = list(zip(self.processes, runs, strict=False))
        # controllers were started last and end first, so that they release the plant while it runs
        for process, _ in reversed(started):
            await process.stop(self._kill)
        await asyncio.gather(*(run for process, run in started if process.exited.is_set()))

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
            now = time.monotonic()
            # bounded, so that nodes are not taken for hung after the machine or the launcher was suspended
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
                brief, node = f"{name} {process.fault}", self.store.nodes.get(name)
                # a process that was killed reported nothing about its end
                has_reported = node is not None and process.exits[-1:] > [0]
                errors = node.faults[-1:] if node is not None and has_reported else []
                sentence = ": ".join([brief, *errors])
                faults.append(sentence)
                if self.outcome.reason == brief:
                    self.outcome.reason = sentence
            if process.restarts:
                deaths = ", ".join(process.causes[: process.restarts])
                faults.append(f"{name} was restarted {process.restarts} times: it {deaths}")
            if process.forced:
                faults.append(f"{name} did not stop and was killed")
            elif not process.stopped_well():
                faults.append(f"{name} {exit_text(process.exits[-1])} when it was stopped")


QUICK_DEATH_S = 5.0
"""Processes that work for a shorter time than this are restarted with a longer delay each time."""
MAX_QUICK_DEATHS = 10
MAX_FAILED_STARTS = 3
"""A process that was never ready is not started more often than this."""
WRONG_STATUS = 2
"""Exit status of a node whose arguments are invalid; it is not restarted."""
MAX_DELAY_S = 30.0
KILL_S = 10.0
"""A process that SIGKILL does not end, for example one in a stuck system call, is given up after this time."""
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
    ended. state_changed: its state changed. inherited: file descriptors that the process inherits.
    """

    output: Callable[[ProcessPlan, str], None]
    notice: Callable[[str], None]
    group: Callable[[int, bool], None]
    state_changed: Callable[[], None]
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
    exited: asyncio.Event = field(default_factory=asyncio.Event)
    _process: asyncio.subprocess.Process | None = None
    _sent_signals: set[int] = field(default_factory=set)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _ready_s: float | None = None
    _silent_s: float = 0.0
    _timeout_s: float | None = None
    _kill_cause: str | None = None
    _quick_deaths: int = 0
    _was_ready: bool = False

    async def run(self) -> None:
        """Runs the process until it is stopped, is done, or fails for good."""
        try:
            while not self.stopping.is_set():
                status = await self._run_once()
                if status is None or self.stopping.is_set():
                    # it hung while the launch was stopping
                    self.fault = self.fault or self._kill_cause
                    break
                if not self._after_death(status):
                    return
                delay = self._delay_s()
                self._enter(ProcessState.DELAY)
                self.hooks.notice(f"{self.plan.name}: {self.causes[-1]}; restart {self.restarts} in {delay:.1f} s")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.stopping.wait(), delay)
            if self.state not in ENDED:
                self._enter(ProcessState.STOPPED)
        finally:
            self.exited.set()

    def mark_ready(self, pid: int) -> None:
        """Handles the message "ready" of the process with this id."""
        if self.state is ProcessState.STARTING and self._is_ours(pid):
            if self._was_ready:
                self.hooks.notice(f"{self.plan.name} is ready again")
            self._was_ready = True
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
        if self._timeout_s is None or self._kill_cause is not None:
            return
        if self.state is ProcessState.STARTING:
            cause = f"was not ready after {self._timeout_s:.0f} s"
        elif self.state is ProcessState.READY:
            cause = f"hung, without a heartbeat for {self._timeout_s:.1f} s"
        else:
            return
        self._silent_s += elapsed_s
        if self._silent_s > self._timeout_s:
            self._kill_cause = f"{cause}, and was killed"
            self._signal(signal.SIGKILL)

    async def stop(self, hurry: asyncio.Event) -> None:
        """Stops it: SIGINT, after `sigterm_timeout_s` SIGTERM, after `sigkill_timeout_s` SIGKILL; with `hurry` SIGKILL
        at once. A process that still runs `KILL_S` later has a `fault`, and is not waited for.
        """
        self.stopping.set()
        if not self.exited.is_set():
            self._enter(ProcessState.STOPPING)
            plan = self.plan
            for number, grace in ((signal.SIGINT, plan.sigterm_timeout_s), (signal.SIGTERM, plan.sigkill_timeout_s)):
                if hurry.is_set():
                    break
                self._signal(number)
                await first_of(self.exited, hurry, timeout_s=grace)
                if self.exited.is_set():
                    break
                name = signal.Signals(number).name
                waited = f"after {name}; it is killed now" if hurry.is_set() else f"{grace:.1f} s after {name}"
                self.hooks.notice(f"{self.plan.name}: still running {waited}")
            if not self.exited.is_set():
                self.forced = True
                self._signal(signal.SIGKILL)
                await first_of(self.exited, timeout_s=KILL_S)
            if not self.exited.is_set():
                self.fault = f"still runs {KILL_S:g} s after SIGKILL"
                self.hooks.notice(f"{self.plan.name}: {self.fault}")

    @property
    def clean(self) -> bool:
        """Whether it never exited by itself, and stopped without SIGKILL."""
        has_ended = self.state in (ProcessState.STOPPED, ProcessState.DONE)
        return has_ended and not (self.restarts or self.forced or self.fault)

    async def _run_once(self) -> int | None:
        """Starts it and waits for its exit; returns the status, or None if it could not be started."""
        self.ready.clear()
        self._sent_signals.clear()
        self._ready_s = self._kill_cause = None
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
        if self.stopping.is_set():  # `stop` had no process to signal
            self._signal(signal.SIGINT)
        reader = asyncio.create_task(self._read(source))
        if not self.plan.reports:
            self.mark_ready(process.pid)
        try:
            status = await process.wait()
        finally:
            # children of a launch-prefix or a shell outlive it otherwise
            await self._end_group(process.pid)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader, 1.0)
        self.exits.append(status)
        self.causes.append(self._kill_cause or exit_text(status))
        self.pid = None
        return status

    def _after_death(self, status: int) -> bool:
        """Sets the state after an unrequested exit; returns whether to restart."""
        plan, cause = self.plan, self.causes[-1]
        if status == 0 and not plan.respawn and (plan.on_exit_shutdown or not plan.reports):
            self._enter(ProcessState.DONE)
            return False
        # starting and hanging do not count as work
        worked_s = 0.0 if self._ready_s is None else time.monotonic() - self._ready_s - self._silent_s
        self._quick_deaths = self._quick_deaths + 1 if worked_s < QUICK_DEATH_S else 0
        # the same arguments would fail again
        if plan.reports and status == WRONG_STATUS and not self._was_ready:
            self.fault = f"{cause} before it was ready"
        elif not plan.respawn:
            self.fault = cause
        elif 0 <= plan.respawn_max_retries <= self.restarts:
            self.fault = f"{cause} after {self.restarts} restarts, the maximum"
        elif not self._was_ready and (self._kill_cause is not None or len(self.exits) >= MAX_FAILED_STARTS):
            self.fault = f"{cause}; started {len(self.exits)} times, it was never ready"
        elif plan.respawn_max_retries < 0 and self._quick_deaths > MAX_QUICK_DEATHS:
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
            self._sent_signals.add(int(number))
            send(self.pid, number)

    def _enter(self, state: ProcessState) -> None:
        self.state = state
        self.hooks.state_changed()

    def stopped_well(self) -> bool:
        """Returns whether the last exit had status 0 or was caused by a signal that was sent to it."""
        if not self.exits or self.state is not ProcessState.STOPPED:
            return True
        status = self.exits[-1]
        return status == 0 or -status in self._sent_signals or status - 128 in self._sent_signals


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
    python_path = environment.get("PYTHONPATH")
    if python_path is None:
        return {}
    return {"PYTHONPATH": os.pathsep.join(os.path.abspath(part) for part in python_path.split(os.pathsep) if part)}

"""Worker processes: slow requests are done beside the process that serves, in others that may be killed.

    Pool        the requests that wait, the workers, who does what
    Nursery     the process that makes workers (`worker_process`)

A request that is worked on is stopped, by ending its worker, when its deadline has passed, when its asker is gone, or
when it has taken `max_worker_s`. A kernel that is being made is let be until that last limit: it will be there for the
next one who asks. All but one of the workers may be at work that takes long, so that a batch never waits for those.
"""

from __future__ import annotations

import logging
import os
import pickle
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import msgspec

import dyn_service
from dyn_service.api.queries import QUERIES
from dyn_service.errors import DynError, ResourceExhaustedError, UnavailableError
from dyn_service.protocol.limits import RequestLimits
from dyn_service.server.access import local_caller
from dyn_service.server.administration import CERTIFIED
from dyn_service.server.audit import AUDIT, tell_refused
from dyn_service.server.compiling import CompileClock
from dyn_service.server.deadlines import given_up, not_begun, stopped
from dyn_service.server.pipes import ORDER, Pipe, PipeClosedError, Words, pair
from dyn_service.server.registry import Registry
from dyn_service.server.service import is_query
from dyn_service.server.task import Task

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot
    from dyn_service.server.metrics import Metrics

_LOG = logging.getLogger(__name__)

_MS = 1_000_000

_AGAIN_NS = 1_000_000_000
"""After a worker that ended before it was there, the next is made so much later."""

_MOST_REFUSED = 1000
_REFUSED_NS = 600_000_000_000
"""A kernel that took too long is not tried again for so long: it may have been the machine."""

_TRIES = 2
"""So many workers may be lost to one request."""

_START_S = 60.0
"""How long the first worker may take to come."""


class Nursery:
    """The process that makes workers; made anew should it end."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._end: socket.socket | None = None
        self._count = 0

    def start(self) -> None:
        """Starts the process; it is ready some tenths of a second later, and what it is asked meanwhile waits."""
        mine, theirs = socket.socketpair()
        # Not from the folder the user stands in: a file there might be called as a module of ours.
        paths = [str(Path(dyn_service.__file__).parent.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dyn_service.server.worker_process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        self._end = mine

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process is None or self._process.poll() is not None

    def make(self) -> tuple[socket.socket, int]:
        """A worker's pipe, and its number. Does not wait: what is written to the pipe is read once the worker is there.

        A worker that never comes to be closes its pipe.
        """
        if self.ended or self._end is None:
            self.close()
            self.start()
        assert self._end is not None
        mine, theirs = pair()
        self._count += 1
        with theirs, suppress(OSError):
            socket.send_fds(self._end, [ORDER.pack(self._count)], [theirs.fileno()])
        return mine, self._count

    def kill(self, number: int) -> None:
        """Ends a worker at once."""
        if self._end is not None:
            with suppress(OSError):
                self._end.send(ORDER.pack(number))

    def close(self) -> None:
        """Ends the nursery, and with it all workers."""
        if self._end is not None:
            self._end.close()
            self._end = None
        if self._process is not None:
            try:
                self._process.wait(2.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


class _Hand:
    """One worker, as the pool sees it.

    task: what it is at, since begun_ns. making: the kernel that it makes meanwhile. known: the robots it has, by name,
    with their fingerprints. robot: one that it was told to load, as bytes. ready: it is there. leaving: it ends
    by itself, having grown. audit: what the log of changes is to say, once it is so. excused_ns: what of the task's
    time went into kernels. fate: why it was killed, to tell its asker.
    """

    def __init__(self, end: socket.socket, number: int) -> None:
        self.end, self.number = end, number
        self.pipe = Pipe(end, waits=False)
        self.task: Task | None = None
        self.begun_ns = 0
        self.making: str | None = None
        self.known: dict[str, str] = {}
        self.robot: memoryview | None = None
        self.audit: list[str] = []
        self.excused_ns = 0.0
        self.making_ns = 0
        self.fate: DynError | None = None
        self.ready = self.leaving = False
        self.is_watched_for_writing = False


def _is_long(hand: _Hand) -> bool:
    return hand.task is not None and (hand.task.long or hand.making is not None)


def _is_idle(hand: _Hand) -> bool:
    return hand.task is None and not hand.leaving and hand.fate is None


class Pool:
    """The workers, and the requests that wait for them. All calls come from the thread that serves.

    Args:
        registry: The robots; those that workers load are added.
        clock: Hears when kernels are made.
        metrics: Where answers are counted.
        limits: What a request may take.
        workers: How many there are.
        epoch: What replies say of the server's life.
        allow_load: Whether requests may load robots.
        selector: Watches the pipes; what it finds ready is called as `key.data(events)`.
        ring: Wakes the thread that serves, from another.
    """

    def __init__(
        self,
        registry: Registry,
        clock: CompileClock,
        metrics: Metrics,
        limits: RequestLimits,
        workers: int,
        *,
        epoch: int,
        allow_load: bool,
        selector: selectors.BaseSelector,
        ring: Callable[[], None],
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._metrics = metrics
        self._limits = limits
        self._count = workers
        self._begin_words = {
            "do": "begin",
            "limits": msgspec.structs.asdict(limits),
            "allow_load": allow_load,
            "epoch": epoch,
        }
        self._selector = selector
        self._ring = ring
        self._nursery = Nursery()
        self._hands: list[_Hand] = []
        self._waiting: deque[Task] = deque()
        self._done: deque[tuple[Task, bytes | memoryview]] = deque()
        self._refused: dict[tuple[Any, ...] | None, tuple[DynError, int]] = {}
        self._begun: dict[Any, int] = {}  # the turn in which each peer last had a task begun
        self._turns = 0
        self._ending = False
        self._no_more_before_ns = 0
        self._loads: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        metrics.gauges |= {
            "workers": lambda: len(self._hands),
            "workers_busy": lambda: sum(hand.task is not None for hand in self._hands),
            "compiling": lambda: sum(hand.making is not None for hand in self._hands),
        }
        self._loader = threading.Thread(target=self._load, name="dyn-loader", daemon=True)

    @property
    def ready(self) -> bool:
        """Whether a worker is there."""
        return any(hand.ready for hand in self._hands)

    def start(self) -> None:
        """Starts the workers, and waits for the first of them.

        Raises:
            UnavailableError: None came.
        """
        self._nursery.start()
        self._loader.start()
        for served in self._registry.served.values():
            _ = served.pickled  # takes milliseconds, which later a control loop would wait
        self._fill_up(perf_counter_ns())
        until = time.monotonic() + _START_S
        while not self.ready:
            if self._nursery.ended or time.monotonic() > until:
                raise UnavailableError("the server's worker processes do not start; what they wrote says why")
            for key, events in self._selector.select(0.1):
                key.data(events)

    # what waits

    def offer(self, task: Task) -> None:
        """Takes the task."""
        if (known := self._known_fate(task)) is not None:
            self._done.append((task, task.refuse(known)))
            return
        self._waiting.append(task)
        self._assign()

    def collect(self) -> Iterator[tuple[Task, bytes | memoryview]]:
        """The tasks that were done since, with their replies; each is handed out once."""
        while self._done:
            yield self._done.popleft()

    def abandon(self) -> list[Task]:
        """Takes back the tasks that were not begun; no more are begun."""
        self._ending = True
        left = [*self._waiting]
        self._waiting.clear()
        return left

    def cancel(self, is_meant: Callable[[Task], bool]) -> list[Task]:
        """Drops tasks that nobody waits for, and stops those that are worked on; says which were dropped."""
        dropped = [task for task in self._waiting if is_meant(task)]
        for task in dropped:
            self._waiting.remove(task)
        for hand in self._hands:
            if hand.task is not None and hand.making is None and is_meant(hand.task):
                self._stop(hand, given_up())
        return dropped

    def _fill_up(self, now_ns: int) -> None:
        """Makes the workers that are missing."""
        while len(self._hands) < self._count and now_ns >= self._no_more_before_ns and not self._ending:
            try:
                self._hands.append(self._make_hand())
            except OSError as fault:  # no more processes or open files for now
                _LOG.error("no worker can be made: %s", fault)  # said in one line
                self._no_more_before_ns = now_ns + _AGAIN_NS

    def tick(self, now_ns: int) -> None:
        """Stops what has taken too long, and refuses what has waited too long."""
        if len(self._hands) < self._count:
            self._fill_up(now_ns)
            self._assign()
        for late in [task for task in self._waiting if self._is_due(task, now_ns, self._excused_ns(task, now_ns))]:
            self._waiting.remove(late)
            self._done.append((late, late.refuse(not_begun(late.head(), now_ns - late.received_ns))))
        for hand in self._hands:
            if hand.task is None or hand.fate is not None:
                continue
            task, most_s = hand.task, self._limits.max_worker_s
            if now_ns - hand.begun_ns > most_s * 1e9:
                at = f"{hand.making} is being made" if hand.making else f"{task.head().query} is worked on"
                fate = ResourceExhaustedError(f"{at} for more than {most_s:g} s, which is the limit")
                if hand.making:
                    self._remember(task, fate, now_ns)
                self._stop(hand, fate)
            elif hand.making is None and self._is_due(task, now_ns, hand.excused_ns):
                self._stop(hand, stopped(task.head(), now_ns - task.received_ns))

    @staticmethod
    def _is_due(task: Task, now_ns: int, excused_ns: float) -> bool:
        """Whether the deadline has passed, kernels that were waited for left aside as far as the asker allows."""
        head = task.head()
        if not head.deadline_ms:
            return False
        allowed_ns = (head.compile_wait_ms or 0.0) * _MS
        return now_ns - task.received_ns - min(excused_ns, allowed_ns) > head.deadline_ms * _MS

    def _excused_ns(self, task: Task, now_ns: int) -> float:
        """What of a waiting task's time went into kernels: any, since it may be them that keep the workers from it."""
        return self._clock.within_ns(task.received_ns, now_ns) if task.head().compile_wait_ms else 0.0

    # what is not tried again

    def _kind(self, task: Task) -> tuple[Any, ...] | None:
        """What a refusal holds for, whatever the inputs: robot, query and kernel; None: for nothing else."""
        head = task.head()
        served = self._registry.served.get(head.robot) if type(head.robot) is str else None
        if served is None or (task.kernel is None and head.query in QUERIES):
            return None
        return served.robot.fingerprint, head.query, task.kernel

    def _remember(self, task: Task, fate: DynError, now_ns: int) -> None:
        kind = self._kind(task)
        if kind is not None:
            while len(self._refused) >= _MOST_REFUSED:
                del self._refused[next(iter(self._refused))]
            self._refused[kind] = (fate, now_ns + _REFUSED_NS)

    def _known_fate(self, task: Task) -> DynError | None:
        fate, until_ns = self._refused.get(self._kind(task), (None, 0))
        return fate if perf_counter_ns() < until_ns else None

    # who does it

    def _assign(self) -> None:
        """Gives waiting tasks to workers that have none, of each peer one in turn.

        One worker is left for what does not take long.
        """
        most_long = max(1, self._count - 1)
        while self._waiting and (hand := next(filter(_is_idle, self._hands), None)) is not None:
            long, begun = sum(map(_is_long, self._hands)), self._begun.get
            allowed = (task for task in self._waiting if not task.long or long < most_long)
            task = min(allowed, key=lambda task: begun(task.envelope[0], 0), default=None)
            if task is None:
                return
            self._waiting.remove(task)
            self._turns += 1
            self._begun[task.envelope[0]] = self._turns
            self._begin(hand, task)
        if not self._waiting:
            self._begun.clear()

    def _begin(self, hand: _Hand, task: Task) -> None:
        now = perf_counter_ns()
        hand.excused_ns = self._excused_ns(task, now)
        name, served = task.head().robot, self._registry.served
        needed = [served[name]] if name in served else [] if type(name) is str else [*served.values()]
        caller = None if task.caller is None else [task.caller.name, int(task.caller.role), task.caller.may_load]
        words = {"do": "task", "received_ns": task.received_ns, "excused_ns": hand.excused_ns, "caller": caller}
        try:
            for each in needed:  # of a request that nobody could read that far, all
                if hand.known.get(each.robot.name) != each.robot.fingerprint:
                    hand.pipe.send({"do": "robot"}, each.pickled)
                    hand.known[each.robot.name] = each.robot.fingerprint
            for gone in hand.known.keys() - served.keys():
                hand.pipe.send({"do": "drop", "name": gone})
                del hand.known[gone]
            hand.pipe.send(words, task.payload)
        except (PipeClosedError, OSError):  # it was gone already: no fault of the task
            self._waiting.appendleft(task)
            self._lost(hand)
            return
        hand.task, hand.begun_ns, task.waits_for_kernel = task, now, False
        self._watch(hand)

    def _make_hand(self) -> _Hand:
        end, number = self._nursery.make()
        hand = _Hand(end, number)
        with suppress(PipeClosedError):
            hand.pipe.send(self._begin_words)
        self._selector.register(end, selectors.EVENT_READ, lambda events: self._heard(hand, events))
        return hand

    def _watch(self, hand: _Hand) -> None:
        if hand.pipe.writing != hand.is_watched_for_writing:
            hand.is_watched_for_writing = hand.pipe.writing
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if hand.pipe.writing else 0)
            self._selector.modify(hand.end, events, lambda events: self._heard(hand, events))

    def _heard(self, hand: _Hand, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                hand.pipe.write()
                self._watch(hand)
            if events & selectors.EVENT_READ:
                for words, body in hand.pipe.read():
                    self._take(hand, words, body)
        except PipeClosedError:
            self._lost(hand)

    def _take(self, hand: _Hand, words: Words, body: memoryview) -> None:
        match words["is"]:
            case "ready":
                hand.ready = True
            case "making":
                hand.making, hand.making_ns = words["kernel"], perf_counter_ns()
                self._clock.begun(words["kernel"], hand.number)
            case "made":
                hand.making = None
                hand.excused_ns += perf_counter_ns() - hand.making_ns
                self._clock.ended(hand.number)
            case "audit":
                hand.audit.append(words["line"])
            case "robot":
                hand.robot = body
                hand.known[words["name"]] = words["fingerprint"]
        if hand.task is not None:
            hand.task.waits_for_kernel = hand.making is not None
        if words["is"] == "reply":
            self._answered(hand, words, body)

    def _answered(self, hand: _Hand, words: Words, reply: memoryview) -> None:
        task, loaded, lines = hand.task, hand.robot, hand.audit
        assert task is not None
        hand.task, hand.robot, hand.audit = None, None, []
        hand.leaving = words["last"]
        if loaded is not None:
            self._loads.put(lambda: self._add(task, loaded, lines, words, reply))
        else:
            self._tell(task, lines, words["query"], words["code"])
            self._done.append((task, reply))
            if words["kernel"] is not None and words["code"] is None:
                self._want_here(words["kernel"])
        self._assign()

    def _tell(self, task: Task, lines: list[str], query: str, code: str | None) -> None:
        """Counts the answer, and writes down what it changed."""
        for line in lines:
            AUDIT.info(line)
        if code is None:
            self._metrics.answered(query, perf_counter_ns() - task.received_ns)
        else:
            self._metrics.refused(query if is_query(query) else None, code)

    def _stop(self, hand: _Hand, fate: DynError) -> None:
        hand.fate = fate
        self._nursery.kill(hand.number)

    def _lost(self, hand: _Hand) -> None:
        """A worker has ended: another takes its place, and its asker is told."""
        if hand not in self._hands:
            return
        self._hands.remove(hand)
        self._selector.unregister(hand.end)
        hand.pipe.close()
        self._clock.ended(hand.number)
        if hand.task is not None:
            self._is_lost(hand.task, hand.fate)
        if not hand.ready:  # what keeps one from coming may keep the next
            self._no_more_before_ns = perf_counter_ns() + _AGAIN_NS
        self._fill_up(perf_counter_ns())
        self._assign()

    def _is_lost(self, task: Task, fate: DynError | None) -> None:
        """A task's worker has ended: by the pool, which tells the asker why, or by itself, and another may try."""
        if fate is None:
            self._metrics.traffic.workers_lost += 1
            _LOG.error("a worker ended while it was at %s", task.head().query)
            task.tries += 1
            if task.tries < _TRIES and not self._ending:
                self._waiting.appendleft(task)
                return
            found = f"{task.tries} workers ended while they were at {task.head().query}"
            fate = ResourceExhaustedError(f"{found}: it takes too much memory, or they were killed")
        self._done.append((task, task.refuse(fate)))

    # what is fetched from the store, by a thread of its own

    def _want_here(self, kernel: list[Any]) -> None:
        name, query, method, wrenches, passive = kernel
        served, row = self._registry.served.get(name), QUERIES[query]
        if served is None or served.robot.has_kernel(row, method, wrenches=wrenches, passive=passive):
            return

        def fetch() -> None:
            with suppress(ResourceExhaustedError):  # it is known to take too much: whoever asks is told
                if served.robot.load_kernel(row, method, wrenches=wrenches, passive=passive):
                    served.plans[query].refresh()

        self._loads.put(fetch)

    def _add(self, task: Task, loaded: memoryview, lines: list[str], words: Words, reply: bytes | memoryview) -> None:
        """Serves the robot that a worker was told to load, with the kernels that it made."""
        query, code = words["query"], words["code"]
        try:
            robot: Robot = pickle.loads(loaded)  # from a worker, not from a client
            self._registry.add(robot)
        except DynError as error:
            caller = task.caller or local_caller("a local process", allow_load=True)
            tell_refused(caller, query, task.head().robot, error)
            self._done.append((task, task.refuse(error)))
            return
        served = self._registry.get(robot.name)
        _ = served.pickled
        for name in CERTIFIED:
            with suppress(ResourceExhaustedError):
                served.robot.load_kernel(QUERIES[name], next(iter(QUERIES[name].kernels)))
        served.refresh()
        self._tell(task, lines, query, code)
        self._done.append((task, reply))

    def _load(self) -> None:
        while (job := self._loads.get()) is not None:
            try:
                job()
            except Exception:  # noqa: BLE001  # a defect; the kernels stay with the workers
                _LOG.exception("a kernel or a robot could not be fetched")
            self._ring()

    def close(self) -> None:
        """Ends all workers."""
        self._ending = True
        self._loads.put(None)
        for hand in self._hands:
            self._selector.unregister(hand.end)
            hand.pipe.close()
        self._hands.clear()
        self._nursery.close()
        if self._loader.is_alive():
            self._loader.join(2.0)

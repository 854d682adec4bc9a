"""Real-time settings of a process: the `realtime:` block of a parameter file.

    plant:
      ros__parameters:
        realtime: {policy: fifo, priority: 50, affinity: [1], lock_memory: true, freeze_collector: true}

Each part is off unless given. A part that the system does not allow is an error with the system's reason, or, with
`required: false`, a warning.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from dyn_service.errors import InvalidArgumentError, PermissionDeniedError

_POLICIES = {"fifo": "SCHED_FIFO", "rr": "SCHED_RR", "other": "SCHED_OTHER"}
MAX_BUSY_POLL_US = 100_000.0
_MCL_CURRENT_AND_FUTURE = 3
_CAP_IPC_LOCK = 14


class Realtime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Real-time settings of a process.

    policy: the scheduling class of its threads; None leaves it. priority: 1 to 99 in the classes `fifo` and `rr`.
    affinity: the processors it may run on; empty leaves it. lock_memory: whether its memory stays in RAM.
    freeze_collector: whether Python's garbage collector is disabled: reference cycles made later are not freed.
    busy_poll_us: how long a loop polls instead of sleeping before a deadline or for a message. required: whether a
    part that the system refuses is an error.
    """

    policy: Literal["fifo", "rr", "other"] | None = None
    priority: int = 0
    affinity: list[int] = []
    lock_memory: bool = False
    freeze_collector: bool = False
    busy_poll_us: float = 0.0
    required: bool = True

    def __post_init__(self) -> None:
        urgent = self.policy in ("fifo", "rr")
        rules = {
            "priority": (
                1 <= self.priority <= 99 if urgent else not self.priority,
                f"policy {self.policy} takes 1 to 99" if urgent else "only the policies fifo and rr have one",
            ),
            "affinity": (all(cpu >= 0 for cpu in self.affinity), "processors count from 0"),
            "busy_poll_us": (0.0 <= self.busy_poll_us <= MAX_BUSY_POLL_US, f"expected 0 to {MAX_BUSY_POLL_US:g}"),
        }
        for name, (holds, rule) in rules.items():
            if not holds:
                value = getattr(self, name)
                text = f"{value:g}" if isinstance(value, float) else value
                raise InvalidArgumentError(f"realtime.{name} is {text}: {rule}", path=f"realtime.{name}")


def apply(settings: Realtime, warn: Callable[[str], None], *, polls: bool) -> str:
    """Applies the settings to all current threads of this process; returns what was done, in one line.

    Call it after slow initialisation such as compiling. Later threads and processes are in the ordinary scheduling
    class, but keep the affinity. The line is empty if no setting was given.

    warn: takes a line for each part that the system refuses and that is not required. polls: whether this process has a
    loop that polls as `busy_poll_us` says.

    Raises:
        PermissionDeniedError: The system refuses a part that is required; names the part and the system's reason.
    """
    done = []
    for name, _, part in _parts(settings, polls):
        try:
            done.append(part())
        except (OSError, AttributeError) as error:
            if settings.required:
                raise _refused(name, error) from None
            warn(f"{_refusal(name, error)}; it goes on without it")
    return f"realtime: {', '.join(done)}" if done else ""


def check(settings: Realtime, *, polls: bool) -> None:
    """Checks in advance what `apply` would refuse; this process is not changed.

    polls: whether this process has, or may have, a loop that polls.

    Raises:
        PermissionDeniedError: As `apply`.
    """
    for name, trial, _ in _parts(settings, polls) if settings.required else ():
        try:
            trial()
        except (OSError, AttributeError) as error:
            raise _refused(name, error) from None


def _refused(name: str, error: OSError | AttributeError) -> PermissionDeniedError:
    message = f"{_refusal(name, error)}; allow it, or go on without it by realtime.required: false"
    return PermissionDeniedError(message, path=f"realtime.{name}")


def _refusal(name: str, error: OSError | AttributeError) -> str:
    cause = "this system has no such thing" if isinstance(error, AttributeError) else error.strerror or error
    return f"realtime.{name} is refused: {cause}"


def _parts(settings: Realtime, polls: bool) -> Iterator[tuple[str, Callable[[], object], Callable[[], str]]]:
    """Yields for each setting its name, its check and its action. The scheduling class comes last, after slow steps."""
    if settings.affinity:
        cpus = settings.affinity
        yield "affinity", lambda: _check_affinity(set(cpus)), lambda: _set_affinity(cpus)
    if settings.freeze_collector:
        yield "freeze_collector", gc.isenabled, _freeze_collector
    if settings.lock_memory:
        yield "lock_memory", _check_lock, _lock_memory
    if settings.busy_poll_us > 0.0:
        poll = partial(_poll_busily, settings.busy_poll_us, polls)
        yield "busy_poll_us", poll, poll
    if settings.policy is not None:
        policy, priority = str(settings.policy), settings.priority
        yield "policy", lambda: _try_policy(policy, priority), lambda: _set_policy(policy, priority)


def _check_affinity(cpus: set[int]) -> None:
    allowed_cpus = os.sched_getaffinity(0)
    if not cpus <= allowed_cpus:
        missing, have = ", ".join(map(str, sorted(cpus - allowed_cpus))), ", ".join(map(str, sorted(allowed_cpus)))
        raise OSError(0, f"processor {missing} is not among those this process may use ({have})")


def _set_affinity(cpus: list[int]) -> str:
    cpu_set = set(cpus)
    _check_affinity(cpu_set)
    _of_all_threads(lambda thread: os.sched_setaffinity(thread, cpu_set))
    return f"on cpu {', '.join(map(str, sorted(cpu_set)))}"


def _try_policy(policy: str, priority: int) -> None:
    """Tries the scheduling class in a temporary thread."""
    faults: list[OSError | AttributeError] = []

    def enter() -> None:
        try:
            os.sched_setscheduler(0, getattr(os, _POLICIES[policy]), os.sched_param(priority))
        except (OSError, AttributeError) as fault:
            faults.append(fault)

    # In a thread of its own, which ends: the class of this process does not change.
    trial = threading.Thread(target=enter)
    trial.start()
    trial.join()
    if faults:
        raise faults[0]


def _set_policy(policy: str, priority: int) -> str:
    number = getattr(os, _POLICIES[policy])
    # Threads and processes that start later, as compilers and workers, are in the ordinary class.
    reset = os.SCHED_RESET_ON_FORK if policy != "other" else 0

    def change(thread: int) -> None:
        # Not for the transport's threads: a starting thread reads its class with the flag and sets it again, which
        # the system refuses, and then ends the process.
        os.sched_setscheduler(thread, number | (0 if thread else reset), os.sched_param(priority))

    _of_all_threads(change)
    return f"{policy} {priority}" if priority else policy


def _of_all_threads(change: Callable[[int], None]) -> None:
    """Changes all threads of this process, this one last; the transport's threads are as urgent as the loop."""
    own_id, thread_ids = threading.get_native_id(), []
    with suppress(OSError):  # not on Linux: this thread only
        thread_ids = [int(entry.name) for entry in Path("/proc/self/task").iterdir()]
    for thread in thread_ids:
        if thread != own_id:
            with suppress(ProcessLookupError):  # the thread has ended
                change(thread)
    change(0)


def _freeze_collector() -> str:
    # Collected before it is frozen: frozen garbage would never be freed.
    gc.collect()
    gc.freeze()
    gc.disable()
    return "collector frozen"


def _poll_busily(time_us: float, polls: bool) -> str:
    if not polls:
        raise OSError(0, "this process has no loop that polls")
    return f"busy polling {time_us:g} us"


def _check_lock() -> int:
    """The hard limit of locked memory, if it lets this process grow."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if not _may_lock_all() and hard != resource.RLIM_INFINITY:
        raise OSError(0, f"the limit of locked memory is {hard} bytes and growing beyond it would fail later")
    return hard


def _lock_memory() -> str:
    import resource

    hard = _check_lock()
    if not _may_lock_all():
        # With MCL_FUTURE later memory counts too, so the soft limit has to be out of its way.
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    library = ctypes.CDLL(None, use_errno=True)
    if library.mlockall(_MCL_CURRENT_AND_FUTURE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return "memory locked"


def _may_lock_all() -> bool:
    """Whether this process has the capability to lock memory without a limit."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text("utf-8", "replace").splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_IPC_LOCK & 1)
    return os.geteuid() == 0

"""Limits and statistics of a server's process."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# longest time that another thread may hold the interpreter lock while the server's thread waits
_SWITCH_S = 1e-4
_MAX_FILES = 65536  # soft limit of open files to set; each connection takes one
_KEPT_FILES = 64  # open files reserved for purposes other than connections and their messages


def files_allowed() -> int | None:
    """Returns how many open files connections and their messages may use; None: unlimited."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            return max(0, soft - _KEPT_FILES)
    return None


def resident_bytes() -> int:
    """Returns the resident memory of this process; 0 if unknown."""
    with suppress(OSError, ValueError), open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def starved_ns(process: int) -> int:
    """Returns how long a process was runnable without a CPU; 0 if unknown."""
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{process}/schedstat") as file:
        return int(file.read().split()[1])
    return 0


def is_stopped(process: int) -> bool:
    """Returns whether a signal such as SIGSTOP has stopped a process (proc_pid_stat(5)); False if unknown."""
    with suppress(OSError, IndexError), open(f"/proc/{process}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] in ("T", "t")
    return False


@contextmanager
def blocked(*numbers: signal.Signals) -> Iterator[None]:
    """Blocks signals meanwhile. Processes started in this context never receive them, this one does afterwards."""
    former_mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former_mask)


def settle_process() -> None:
    """Sets up a process that only serves: exempts loaded modules from garbage collection, raises the file limit."""
    sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()  # shortens pauses of the collector
    with suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
        if soft != resource.RLIM_INFINITY and soft < limit:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))

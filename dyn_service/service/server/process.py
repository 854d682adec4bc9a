"""Settings of a process that does nothing but serve."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress

_SWITCH_S = 1e-4
"""How long another thread may keep the interpreter from the one that serves."""

_MOST_FILES = 65536
"""PlainTransport each take an open file."""

_KEPT_FILES = 64
"""So many open files are left to everything but connections and their messages."""


def files_allowed() -> int | None:
    """How many open files the system allows for connections and what they send; None: any number."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            return max(0, soft - _KEPT_FILES)
    return None


def resident_bytes() -> int:
    """What this process has in memory; 0 where the system does not say."""
    with suppress(OSError, ValueError), open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def starved_ns(process: int) -> int:
    """How long a process was ready to run and had no processor; 0 where the system does not say."""
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{process}/schedstat") as file:
        return int(file.read().split()[1])
    return 0


def is_stopped(process: int) -> bool:
    """Whether a signal, such as SIGSTOP, keeps a process from running (proc_pid_stat(5)); False if unknown."""
    with suppress(OSError, IndexError), open(f"/proc/{process}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] in ("T", "t")
    return False


def settle_process() -> None:
    """Takes what is loaded out of the garbage collector's sight, and allows as many connections as the system does."""
    sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()  # the collector need not walk through the libraries while a control loop waits
    with suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))

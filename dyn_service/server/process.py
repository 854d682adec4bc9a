"""Settings of a process that does nothing but serve."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress

_SWITCH_S = 1e-4
"""How long another thread may keep the interpreter from the one that serves."""

_MOST_FILES = 65536
"""Connections each take an open file."""


_KEPT_FILES = 64
"""So many open files are left to everything but connections."""


def most_connections(limit: int, files_each: int) -> int:
    """How many connections there may be: the limit, or fewer where the system allows fewer open files."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            return min(limit, max(8, (soft - _KEPT_FILES) // files_each))
    return limit


def resident_bytes() -> int:
    """What this process has in memory; 0 where the system does not say."""
    with suppress(OSError, ValueError), open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


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

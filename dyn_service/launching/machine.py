"""How busy the machine is, from `/proc/loadavg`: its fourth field counts what runs or waits now, in a container too."""

from __future__ import annotations

import os
from pathlib import Path

BUSY = 0.5
"""Waiting processes per core from which on the machine is called busy: each second time slice is another's."""


def waiting_per_core(loadavg: Path = Path("/proc/loadavg")) -> float | None:
    """Processes per core that are ready to run and wait, at this moment; None where the system does not tell."""
    try:
        ready = int(loadavg.read_text("ascii").split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return None
    cores = os.cpu_count() or 1
    return max(0, ready - cores) / cores

"""Shares of the machine's CPU time during a run, from Linux's /proc: which processes kept a launch waiting."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

CROWDED = 0.1
"""Share of the CPU time from which on other processes, or the host, are named as a cause of delays."""


@dataclass(frozen=True)
class CpuShares:
    """Shares of the CPU time of all cores: of the launch, of other processes, and of the host of a virtual machine."""

    launch: float
    others: float
    host: float

    @property
    def cause(self) -> str:
        """The shares as the probable cause of delays, in one sentence."""
        others, launch, host = (f"{100.0 * share:.0f} %" for share in (self.others, self.launch, self.host))
        sentence = f"other processes took {others} of the CPU time, this launch {launch}"
        if self.host >= 0.01:
            sentence += f", the host of this virtual machine {host}"
        if self.others + self.host >= CROWDED:
            return sentence
        return f"{sentence}: the launch itself, or a limit on its CPU time, is the cause"


@dataclass(frozen=True)
class CpuTime:
    """CPU time since boot in clock ticks: of all cores with idle time, of all processes, of the host, of the launch."""

    total: int
    busy: int
    stolen: int
    launch: int

    @classmethod
    def now(cls, proc: Path = Path("/proc"), launcher: int | None = None) -> Self | None:
        """Returns the present times; None if the system does not report them. launcher: by default this process; its
        descendants belong to the launch.
        """
        try:
            first = (proc / "stat").read_text("ascii").splitlines()[0].split()
            user, nice, system, idle, iowait, irq, softirq, stolen = map(int, first[1:9])
        except (OSError, ValueError, IndexError):
            return None
        busy = user + nice + system + irq + softirq
        used: dict[int, tuple[int, int]] = {}  # parent, and ticks with those of children that have ended
        for path in proc.glob("[0-9]*/stat"):
            try:
                words = path.read_text("utf-8", "replace").rpartition(")")[2].split()
                used[int(path.parent.name)] = int(words[1]), sum(map(int, words[11:15]))
            except (OSError, ValueError, IndexError):
                continue  # the process has ended
        launch = {os.getpid() if launcher is None else launcher}
        while more := {pid for pid, (parent, _) in used.items() if parent in launch} - launch:
            launch |= more
        own = sum(ticks for pid, (_, ticks) in used.items() if pid in launch)
        return cls(busy + idle + iowait + stolen, busy, stolen, own)

    def since(self, begin: CpuTime) -> CpuShares | None:
        """Returns the shares from `begin` until this time; None if no time has passed."""
        total = self.total - begin.total
        if total <= 0:
            return None
        launch = max(0, self.launch - begin.launch)
        others = max(0, self.busy - begin.busy - launch)
        return CpuShares(launch / total, others / total, (self.stolen - begin.stolen) / total)

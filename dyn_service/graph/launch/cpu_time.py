"""Shares of the CPU time during a run, from Linux's /proc: of the launch, of other processes, of the host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

Ticks = Mapping[str, int]
CROWDED = 0.1
"""Least share of the CPU time at which other processes, or the host, are reported as the cause of delays."""


def cpu_ticks(proc: Path = Path("/proc"), launcher: int | None = None) -> Ticks | None:
    """Returns the CPU time of all cores since boot, in clock ticks: of the `launch`, of `others`, of the `host` of a
    virtual machine, and `idle`; None if the system does not report it. launcher: by default this process; its
    descendants belong to the launch.
    """
    # by process: its parent, and its ticks with those of children that have ended
    processes: dict[int, tuple[int, int]] = {}
    try:
        first = (proc / "stat").read_text("ascii").splitlines()[0].split()
        user, nice, system, idle, iowait, irq, softirq, stolen = map(int, first[1:9])
    except (OSError, ValueError, IndexError):
        return None
    for path in proc.glob("[0-9]*/stat"):
        try:
            words = path.read_text("utf-8", "replace").rpartition(")")[2].split()
            processes[int(path.parent.name)] = int(words[1]), sum(map(int, words[11:15]))
        except (OSError, ValueError, IndexError):
            continue  # the process has ended
    family = {os.getpid() if launcher is None else launcher}
    # by parents, not by groups: each node leads a group of its own
    while children := {pid for pid, (parent, _) in processes.items() if parent in family} - family:
        family |= children
    launch = sum(ticks for pid, (_, ticks) in processes.items() if pid in family)
    busy = user + nice + system + irq + softirq
    return {"launch": launch, "others": busy - launch, "host": stolen, "idle": idle + iowait}


def cpu_shares(begin: Ticks | None, end: Ticks | None) -> dict[str, float]:
    """Returns the shares of the CPU time between two times; empty if they are unknown."""
    ticks = {name: max(0, end[name] - begin[name]) for name in begin} if begin and end else {}
    return {name: count / total for name, count in ticks.items()} if (total := sum(ticks.values())) else {}


def cause_of_delays(shares: Mapping[str, float]) -> str:
    """Returns the probable cause of delays in one sentence."""
    if not shares:
        return "the system reports no CPU times"
    percent = {name: f"{100.0 * share:.0f} %" for name, share in shares.items()}
    sentence = f"other processes took {percent['others']} of the CPU time, this launch {percent['launch']}"
    if shares["host"] >= 0.01:
        sentence += f", the host of this virtual machine {percent['host']}"
    if shares["others"] + shares["host"] < CROWDED:
        sentence += ": the launch itself, or a limit on its CPU time, is the cause"
    return sentence

"""python -m qa.load.period_cost [--seconds S] [--top N]: what the nodes of the README's launch do per period.

Launches `launch/panda_computed_torque.launch.yaml` three times, because each instrument slows what the others measure:

    /proc      CPU time and voluntary context switches, of the node's main thread and of its other threads
    strace     system calls and bytes, if strace is installed and may attach
    profile    calls of Python and of C functions in the main thread, by `sys.setprofile`

A period is one of the plant (1 ms), or one of the controller (2 ms), also for the server, which answers one request in
it. CPU time is that at the loop's own rate, with cold caches, which a benchmark in a tight loop does not show.
`--top` lists the functions that are called most.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "launch" / "panda_computed_torque.launch.yaml"
NODES = ("plant", "controller", "server")
SETTLING_S = 2.0
"""Time from the first status line of the launch to the measurement: by then the plant is under command."""
START_S = 60.0
START = "start"
"""File that begins the count of the profiled nodes, for all of them at once."""
PERIOD = {"plant": "_period", "controller": "_control"}
"""The function that a node calls once a period."""


@dataclass
class Cost:
    """What one node did per period. None: not measured. top: the most frequent calls, by name."""

    cpu_us: float = 0.0
    cpu_other_us: float = 0.0
    wake_ups: float = 0.0
    wake_ups_other: float = 0.0
    system_calls: float | None = None
    bytes: float | None = None
    python_calls: float = 0.0
    c_calls: float = 0.0
    top: dict[str, float] = field(default_factory=dict)


def main() -> int:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (default: 5)")
    parser.add_argument("--top", type=int, default=0, help="number of frequent calls to list per node (default: 0)")
    parser.add_argument("--inside", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        profile_node(arguments.inside[0], arguments.seconds, arguments.inside[1:])
        return 0
    costs = measure(arguments.seconds, arguments.top)
    print(table(costs))
    for name, cost in costs.items() if arguments.top else ():
        print(f"\n{name}:", *(f"  {count:6.2f}  {call}" for call, count in cost.top.items()), sep="\n")
    return 0


def measure(seconds: float, top: int = 0) -> dict[str, Cost]:
    """Returns the costs of the three nodes, by name."""
    costs = {name: Cost() for name in NODES}
    with launched() as launch:
        first = {name: usage(pid) for name, pid in launch.nodes.items()}
        start_s = time.monotonic()
        time.sleep(seconds)
        elapsed_s = time.monotonic() - start_s
        last = {name: usage(pid) for name, pid in launch.nodes.items()}
    for name, cost in costs.items():
        cost.cpu_us, cost.cpu_other_us, cost.wake_ups, cost.wake_ups_other = (
            (stop - start) / (launch.rates_hz[name] * elapsed_s)
            for stop, start in zip(last[name], first[name], strict=True)
        )
    # In a launch of its own: ptrace slows each system call, which would be in the CPU times.
    if shutil.which("strace"):
        with launched() as launch:
            traces = {name: system_calls_of(pid, seconds) for name, pid in launch.nodes.items()}
        for name, (calls, size, elapsed_s) in traces.items():
            if calls:
                periods = launch.rates_hz[name] * elapsed_s
                costs[name].system_calls, costs[name].bytes = calls / periods, size / periods
    with tempfile.TemporaryDirectory() as folder:
        prefix = [sys.executable, "-m", "qa.load.period_cost", "--seconds", str(seconds), "--inside", folder]
        with launched(shlex.join(prefix)):
            (Path(folder) / START).touch()
            time.sleep(seconds + 2.0)
            profiles = {name: json.loads((Path(folder) / name).read_text()) for name in NODES}
    commands = profiles["controller"]["periods"]
    for name, profile in profiles.items():
        periods = profile["periods"] or commands
        cost = costs[name]
        cost.python_calls, cost.c_calls = profile["call"] / periods, profile["c_call"] / periods
        cost.top = {call: count / periods for call, count in list(profile["calls"].items())[:top]}
    return costs


@dataclass
class Launch:
    """A running launch. nodes: the process of each node. rates_hz: periods per second, once it has ended."""

    nodes: dict[str, int]
    rates_hz: dict[str, float] = field(default_factory=dict)


@contextmanager
def launched(prefix: str = "") -> Iterator[Launch]:
    """Runs the launch, and yields it `SETTLING_S` after all of its nodes are ready."""
    text = LAUNCH.read_text().replace("$(dirname)", str(LAUNCH.parent))
    if prefix:
        text = re.sub(r"( +)exec: .*\n", lambda match: f"{match[0]}{match[1]}launch-prefix: {prefix}\n", text)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "panda.launch.yaml"
        file.write_text(text)
        report = Path(folder) / "report"
        launcher = subprocess.Popen(
            [sys.executable, "-m", "dyn_service", "launch", str(file), "--report", str(report)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
        )  # fmt: skip
        assert launcher.stdout is not None
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(launcher.stdout or ()), daemon=True)
        reader.start()
        try:
            end = time.monotonic() + START_S
            while not any("controller ready" in line for line in lines):
                if time.monotonic() > end or launcher.poll() is not None:
                    raise SystemExit(f"the launch was not ready within {START_S:g} s; its output:\n{''.join(lines)}")
                time.sleep(0.2)
            time.sleep(SETTLING_S)
            launch = Launch(processes(launcher.pid))
            yield launch
        finally:
            launcher.send_signal(signal.SIGINT)
            try:
                launcher.wait(30.0)
            finally:
                launcher.kill()
                reader.join(5.0)
        content = json.loads((report / "report.json").read_text())
        plant, commands_hz = content["plant"], content["requests"]["measured_rate_hz"]
        steps_hz = plant["rate_hz"] * (1.0 - plant["caught_up"] / plant["steps"])  # several steps after an overrun
        launch.rates_hz |= {"plant": steps_hz, "controller": commands_hz, "server": commands_hz}


def processes(launcher: int) -> dict[str, int]:
    """Returns the processes of a launch's nodes, by name."""
    nodes: dict[str, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # Behind the last bracket, since the name of a process may contain spaces and brackets.
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            words = (folder / "cmdline").read_bytes().decode().split("\0")
        except OSError:  # it has ended
            continue
        if parent == launcher and (name := next((w for w in words if w.startswith("__node:=")), "")):
            nodes[name.removeprefix("__node:=")] = int(folder.name)
    return nodes


def usage(pid: int) -> tuple[float, float, float, float]:
    """Returns CPU time in us and voluntary context switches: of the main thread, and of all others."""
    cpu_us, switches = {True: 0.0, False: 0.0}, {True: 0.0, False: 0.0}
    for task in Path(f"/proc/{pid}/task").iterdir():
        is_main = task.name == str(pid)
        cpu_us[is_main] += int((task / "schedstat").read_text().split()[0]) * 1e-3
        status = (task / "status").read_text()
        match = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status, re.MULTILINE)
        assert match is not None
        switches[is_main] += int(match[1])
    return cpu_us[True], cpu_us[False], switches[True], switches[False]


TRANSFERS = ("read", "write", "send", "recv")


def system_calls_of(pid: int, seconds: float) -> tuple[int, int, float]:
    """Returns the system calls of all threads of a process, the bytes that they read and wrote, and the time in s."""
    with tempfile.NamedTemporaryFile("r") as output:
        tracer = subprocess.Popen(
            ["strace", "-f", "-q", "-s", "0", "-p", str(pid), "-o", output.name], stderr=subprocess.DEVNULL
        )
        start_s = time.monotonic()
        time.sleep(seconds)
        tracer.send_signal(signal.SIGINT)
        elapsed_s = time.monotonic() - start_s
        tracer.wait(10.0)
        return *calls_and_bytes(output), elapsed_s


def calls_and_bytes(lines: Iterable[str]) -> tuple[int, int]:
    """Returns the number of system calls in strace's lines, and the bytes read and written.

    A call that another thread interrupts has two lines; the one with its result counts.
    """
    calls = size = 0
    for line in lines:
        call = line.strip().partition(" ")[2].strip()  # behind the thread's number
        if "<unfinished" in call or call.startswith(("---", "+++")):
            continue
        calls += 1
        result = call.rpartition(" = ")[2].split()
        if call.removeprefix("<... ").startswith(TRANSFERS) and result and result[0].isdigit():
            size += int(result[0])
    return calls, size


def profile_node(folder: str, seconds: float, command: list[str]) -> None:
    """Runs a node's command in this process, and counts the calls of its main thread for `seconds`."""
    words = command[command.index("-m") + 1 :]
    name = next(word for word in words if word.startswith("__node:=")).removeprefix("__node:=")
    counts: collections.Counter[tuple[str, Any]] = collections.Counter()

    def count(frame: FrameType, event: str, function: Any) -> None:
        if event == "call":
            counts[event, frame.f_code] += 1
        elif event == "c_call":
            counts[event, getattr(function, "__qualname__", None) or repr(function)] += 1

    def write() -> None:
        while not (Path(folder) / START).exists():
            time.sleep(0.1)
        # `dict` copies within one call of C, so that the profiled thread adds nothing meanwhile.
        first = collections.Counter(dict(counts))
        time.sleep(seconds)
        calls = collections.Counter(dict(counts)) - first
        totals = {event: sum(n for (kind, _), n in calls.items() if kind == event) for event in ("call", "c_call")}
        periods = sum(n for (_, code), n in calls.items() if getattr(code, "co_name", "") == PERIOD.get(name, "-"))
        counts_by_label = {label(code): n for (_, code), n in calls.most_common()}
        file = Path(folder) / name
        file.with_suffix(".part").write_text(json.dumps({"periods": periods, "calls": counts_by_label, **totals}))
        # The parent reads the file as soon as it exists.
        file.with_suffix(".part").rename(file)

    threading.Thread(target=write, daemon=True).start()
    sys.argv = words
    # Of this thread only, which is the node's main thread: others are measured by their CPU time.
    sys.setprofile(count)
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def label(code: Any) -> str:
    """Returns the name of a function of Python, with its file, or of C."""
    if isinstance(code, str):
        return code
    return f"{'/'.join(Path(code.co_filename).parts[-2:])}:{code.co_qualname}"


def table(costs: dict[str, Cost]) -> str:
    """Returns a row for each figure, and a column for each node."""
    rows = {
        "calls of Python functions": "python_calls", "calls of C functions": "c_calls", "system calls": "system_calls",
        "bytes read and written": "bytes", "wake-ups": "wake_ups", "wake-ups of other threads": "wake_ups_other",
        "CPU time, us": "cpu_us", "CPU time of other threads, us": "cpu_other_us",
    }  # fmt: skip
    lines = ["| per period | " + " | ".join(costs) + " |", "|---|" + "---|" * len(costs)]
    for title, name in rows.items():
        values = [getattr(cost, name) for cost in costs.values()]
        lines.append(f"| {title} | " + " | ".join("-" if x is None else f"{x:.1f}" for x in values) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

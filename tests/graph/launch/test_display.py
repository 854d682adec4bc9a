"""The launcher's table has the columns that the nodes' kinds declare."""

import io
import os
import queue
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from dyn_service.graph.launch import display
from dyn_service.graph.launch.display import Screen, _table, plain_line
from dyn_service.graph.launch.planner import LaunchPlan, ProcessPlan
from dyn_service.graph.launch.supervisor import ProcessState
from dyn_service.graph.middleware.node_kind import Column, NodeKind
from dyn_service.graph.middleware.telemetry import Facts, Stats, TelemetryStore
from dyn_service.graph.nodes.registry import Registry

STATS = {
    "server": {"answered": 9, "refused": 0, "rate_hz": 502.4},
    "plant": {"step_rate_hz": 999.9, "mode": "stopped", "cause": "missed", "overruns": 3, "slipped": 0, "stops": 1},
    "controller": {"rate_hz": 499.6, "deadline_misses": 2, "lost": 0, "error_rms": 1.2e-6, "error_max": 3e-6,
                   "round_trip_p50_us": 150.2, "round_trip_p99_us": 300.7},
}  # fmt: skip


@pytest.fixture
def supervisor() -> SimpleNamespace:
    """A launch of our nodes, each as a launcher planned it."""
    registry, store = Registry(), TelemetryStore()
    processes = []
    for name, values in STATS.items():
        plan = ProcessPlan(name, (), "", kind=registry.find("dyn_service", name))
        processes.append(
            SimpleNamespace(plan=plan, state=ProcessState.READY, restarts=int(name == "controller"), pid=7)
        )
        store.take(Stats(name, 1, values))
    supervisor = SimpleNamespace(processes=processes, store=store, running_s=12.3, plan=None)
    plan_anew(supervisor)
    return supervisor


def plan_anew(supervisor: SimpleNamespace) -> None:
    """Makes the launch's plan from its processes."""
    supervisor.plan = LaunchPlan(Path("x"), {}, tuple(process.plan for process in supervisor.processes))


LINE = (
    "12 s | server ready, rate 502 Hz | plant ready, rate 1000 Hz, 3 overruns, 1 stops, stopped (missed) | "
    "controller ready, rate 500 Hz, round trip p50/p99 150/301 us, missed 2, lost 0, error rms/max 1.2e-06/3.0e-06, "
    "restarts 1"
)


def test_plain_line(supervisor: SimpleNamespace) -> None:
    assert plain_line(supervisor) == LINE
    supervisor.store.take(Facts("plant", 1, {"clock": "lockstep"}))  # where nothing is late
    assert plain_line(supervisor) == LINE.replace("missed 2, ", "")


def shown(supervisor: SimpleNamespace, width: int) -> list[str]:
    """Returns the lines of the table on a screen of that width."""
    screen = io.StringIO()
    console = Console(file=screen, width=width)
    console.print(_table("panda_computed_torque.launch.yaml", supervisor, console))
    lines = [line.rstrip() for line in screen.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    return [line for line in lines if line]


def test_columns_of_the_table(supervisor: SimpleNamespace) -> None:
    lines = shown(supervisor, 120)
    assert lines[0] == "panda_computed_torque.launch.yaml  12 s"
    labels = ["node", "state", "pid", "rate", "round trip p50/p99", "missed", "lost", "error rms/max", "restarts"]
    assert lines[1].split() == " ".join(labels).split()


@pytest.mark.parametrize("width", [120, 100, 80, 60, 40])
def test_nothing_that_matters_is_cut(supervisor: SimpleNamespace, width: int) -> None:
    for process in supervisor.processes:
        if process.plan.name == "controller":
            process.plan = ProcessPlan("left/controller_of_the_arm", (), "", kind=process.plan.kind)
            supervisor.store.take(Stats(process.plan.name, 1, STATS["controller"]))
    plan_anew(supervisor)
    lines = shown(supervisor, width)
    text = " ".join(" ".join(lines).split())
    for excerpt in (
        "left/controller_of_the_arm",
        "150/301 us",
        "1.2e-06/3.0e-06",
        "plant: 3 overruns, 1 stops, stopped",
    ):
        assert excerpt in text
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert text.count("ready") == 3


def test_a_table_wider_than_the_screen_becomes_paragraphs(supervisor: SimpleNamespace) -> None:
    lines = shown(supervisor, 78)
    assert "pid" not in lines[1].split()
    assert lines[-1] == "plant: 3 overruns, 1 stops, stopped (missed)"
    lines = shown(supervisor, 50)
    assert "server ready  rate 502 Hz" in lines
    assert lines[-1] == "plant: 3 overruns, 1 stops, stopped (missed)"


def test_shipped_nodes_started_as_executables_are_recognized_by_their_role(supervisor: SimpleNamespace) -> None:
    for process in supervisor.processes:
        process.plan = ProcessPlan(process.plan.name, (), "")
        supervisor.store.take(Facts(process.plan.name, 1, {"role": process.plan.name}))
    plan_anew(supervisor)
    assert plain_line(supervisor) == LINE


def test_columns_of_other_nodes(supervisor: SimpleNamespace) -> None:
    columns = (Column("level", lambda stats: f"{stats['level']} m"), Column("bad", lambda stats: str(stats["none"])))
    kind = NodeKind("tank", object, lambda node: None, columns=columns)
    plans = [ProcessPlan("tank", (), "", kind=kind), ProcessPlan("unknown", (), "")]
    supervisor.processes = [SimpleNamespace(plan=plan, state=ProcessState.READY, restarts=0, pid=7) for plan in plans]
    plan_anew(supervisor)
    supervisor.store.take(Stats("tank", 1, {"level": 4}))
    supervisor.store.take(Stats("unknown", 1, {"rate_hz": 5.0, "lost": 3}))
    assert plain_line(supervisor) == "12 s | tank ready, level 4 m, bad ? | unknown ready, rate 5 Hz"


def test_the_end_of_a_launch_does_not_wait_for_a_text_that_the_writer_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer can take the last text after the queue was seen not to be empty."""

    class TakenMeanwhile(queue.SimpleQueue):
        def empty(self) -> bool:
            return False

    monkeypatch.setattr(display, "DRAIN_TIMEOUT_S", 0.1)
    source, sink = os.pipe()
    with os.fdopen(source, "rb") as reader, os.fdopen(sink, "w") as stream:
        screen = Screen(stream)
        screen.write("x" * display.WAITING_CHARACTERS)  # more than a pipe holds: the writer waits
        reader.read(1)
        screen._texts = TakenMeanwhile()
        end = threading.Thread(target=screen.drain, daemon=True)
        end.start()
        end.join(50.0)
        assert not end.is_alive()
        screen._texts.put(None)
        reader.read(display.WAITING_CHARACTERS - 1)
        screen._writer.join(50.0)
        assert not screen._writer.is_alive()

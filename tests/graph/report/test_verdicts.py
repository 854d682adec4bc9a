"""A run is clean if it met its bounds: report.json, the page, the last line and the exit status agree."""

from __future__ import annotations

import io
import json
import math
import re
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console

from dyn_service.control.plant.safety import ACTIVE, BRAKED, MODES
from dyn_service.control.trajectory import PointToPoint
from dyn_service.graph.launch import launch_file
from dyn_service.graph.launch.cpu_time import cpu_shares, cpu_ticks
from dyn_service.graph.launch.planner import LaunchPlan, ProcessPlan
from dyn_service.graph.launch.report import write_report
from dyn_service.graph.launch.run import _summary
from dyn_service.graph.launch.supervisor import LATE, NOT_CLEAN, Outcome, unarmed
from dyn_service.graph.middleware.node_kind import NodeKind, Panel
from dyn_service.graph.middleware.telemetry import Facts, Ready, Rows, Stats, TelemetryStore
from dyn_service.graph.nodes.plant.factory import PlantParameters
from dyn_service.graph.nodes.registry import Registry
from dyn_service.graph.report.verdicts import PlantBounds, Verdict
from tests.graph.launches import Launched, pendulum
from tests.trees import configuration

JOINTS = ["lift", "turn"]
QUIET = {"steps": 3000, "active_steps": 2000, "stopped_steps": 0, "stops": 0, "armed": 1, "slipped": 0,
         "late_p50_us": 30.0, "late_p99_us": 60.0, "late_p99_9_us": 200.0, "late_max_us": 900.0}  # fmt: skip
ASKED = {"sent": 1000, "answered": 1000, "lost": 0, "deadline_misses": 0}


def run(
    *,
    error: tuple[float, float] = (0.0, 0.0),
    way: tuple[float, float] = (1.0, -2.0),
    plant: dict | None = None,
    counters: dict | None = None,
    bounds: dict | None = None,
    clock: str = "real_time",
    recorded: bool = True,
    controller: bool = True,
) -> TelemetryStore:
    """3 s of a plant: braked for 1 s, then on a reference that goes the way (m, rad), off it by half of the error (m,
    rad), at 2 s by all of it.
    """
    joints, store = configuration(JOINTS, ["prismatic", "revolute"]), TelemetryStore()
    facts = {"role": "plant", "joints": JOINTS, "session": 9, "configuration": joints.to_wire(), "clock": clock}
    store.take(Ready("plant", 1))
    store.take(Facts("plant", 1, {**facts, **({"bounds": bounds} if bounds else {})}))
    store.take(Stats("plant", 1, {**QUIET, **(plant or {})}))
    motion = PointToPoint(np.zeros(2), np.zeros(2), np.array([way]), move_s=1.0, dwell_s=1.0)
    t = np.arange(3000) / 1000.0
    q = motion.sample(t - 1.0).q - np.outer(np.where(t == 2.0, 1.0, 0.5), error)
    mode = np.where(t < 1.0, MODES.index(BRAKED), MODES.index(ACTIVE))
    table = np.column_stack([t, np.full_like(t, 9.0), mode, q, np.zeros((3000, 4))])
    columns = ["t", "session", "mode", *(f"{kind}.{name}" for kind in ("q", "v", "tau") for name in JOINTS)]
    if recorded:
        store.take(Rows("plant", 1, "plant", columns, np.ascontiguousarray(table, "<f8").tobytes()))
    if controller:
        reference = {"session": 9, "begin_s": 1.0, "joints": JOINTS, "motion": motion.to_wire()}
        controller_facts = {
            "role": "controller",
            "deadline_s": 0.002,
            "law": "l",
            "late_share": 0.01,
            "reference": reference,
        }
        store.take(Facts("controller", 2, controller_facts))
        store.take(Stats("controller", 2, {**ASKED, **(counters or {})}))
    return store


def judged(folder: Path, store: TelemetryStore, **outcome: object) -> tuple[dict, str, str]:
    """Returns the outcome in report.json, the page, and the last line of the launch."""
    arguments = {"clock": "real_time"}
    plan, outcome_of_run = LaunchPlan(folder / "c.launch.yaml", arguments, ()), Outcome("3 s are over", **outcome)  # type: ignore[arg-type]
    write_report(folder, plan, store, outcome_of_run)
    outcome_content = json.loads((folder / "report.json").read_text("utf-8"))["outcome"]
    page = (folder / "index.html").read_text("utf-8")
    for verdict in outcome_content["verdicts"]:
        assert verdict["sentence"].replace("'", "&#x27;") in page
    (colour, robot), *timing = re.findall(r'<span class="badge (\w*)">([^<]+)<', page)
    assert robot.startswith(outcome_content["verdict"])
    assert colour in {True: ("good", "warn"), False: ("bad",), None: ("warn",)}[outcome_content["clean"]]
    expected = {True: "good", False: "warn"}
    assert timing == (
        []
        if outcome_content["on_time"] is None
        else [(expected[outcome_content["on_time"]], outcome_content["timing"])]
    )
    lines = _summary(plan, store, outcome_of_run)
    assert all(f"not clean: {sentence}" in lines for sentence in outcome_of_run.broken("robot"))
    assert all(f"late: {sentence}" in lines for sentence in outcome_of_run.broken("timing"))
    return outcome_content, page, lines[-1] if lines else ""


def broken(outcome: dict) -> list[str]:
    return [verdict["sentence"] for verdict in outcome["verdicts"] if verdict["passed"] is False]


def test_a_run_within_its_bounds_is_clean(tmp_path: Path) -> None:
    outcome, page, last = judged(tmp_path, run(error=(0.0, 1e-3)), check=True)
    assert outcome["clean"] is True
    assert outcome["exit_code"] == 0
    assert last.startswith("clean, 4 bounds met; on time, 3 bounds met")
    assert page.count("under command") == 1  # in the verdict, and nowhere by another count
    assert {verdict["what"]: (verdict["subject"], verdict["bound"]) for verdict in outcome["verdicts"]} == {
        "late answers": ("timing", 1.0), "safe stops": ("robot", 0.0), "time under command": ("robot", 99.0),
        "lateness": ("timing", 10.0), "time lost": ("timing", 1.0), "time at limits": ("robot", 1.0),
        "tracking error": ("robot", 0.05),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"error": (0.0, 1.15)}, "tracking error 1.15 rad (turn at 2.00 s), allowed at most 0.05 rad"),
        ({"error": (6e-3, 0.0)}, "tracking error 6e-3 m (lift at 2.00 s), allowed at most 5e-3 m"),
        ({"plant": {"stops": 1, "stops_velocity": 1}}, "safe stops 1 (1 velocity), allowed at most 0"),
        ({"plant": {"stops": 3, "stops_velocity": 1, "stops_missed": 2}},
         "safe stops 3 (2 missed, 1 velocity), allowed at most 0"),
        (
            {"plant": {"stops": 2, "stops_velocity": 2, "last_stop": "velocity at 3 s: turn reaches 2 rad/s, .."}},
            "safe stops 2 (2 velocity; the last: velocity at 3 s: turn reaches 2 rad/s, ..), allowed at most 0",
        ),
        ({"plant": {"stopped_steps": 500}}, "time under command 80 %, allowed at least 99 %"),
        ({"plant": {"armed": 0, "active_steps": 0}}, "time under command 0 %, allowed at least 99 %"),
        ({"plant": {"saturated.turn": 200, "saturated.lift": 2}}, "time at limits 10 % (turn), allowed at most 1 %"),
        ({"plant": {"out_of_range.lift": 60}}, "time at limits 2 % (lift), allowed at most 1 %"),
    ],
)  # fmt: skip
def test_each_bound_on_the_robot_alone_makes_it_not_clean(tmp_path: Path, change: dict, sentence: str) -> None:
    outcome, _, last = judged(tmp_path, run(**change))
    assert (outcome["clean"], outcome["exit_code"]) == (False, 0)  # the status is as it was, unless it is asked for
    assert broken(outcome) == [sentence]
    assert last.startswith("not clean, 1 of 4 bounds broken; on time, 3 bounds met")
    outcome, _, last = judged(tmp_path, run(**change), check=True)
    assert outcome["exit_code"] == NOT_CLEAN == 3
    assert last.startswith("status 3: not clean, 1 of 4 bounds broken; on time, 3 bounds met")


@pytest.mark.parametrize(
    ("change", "sentences", "judged_robot"),
    [
        (
            {"plant": {"late_p99_9_us": 2e4, "late_max_us": 67e3}},
            ["lateness 20 ms (99.9 % of the periods; the latest 67 ms), allowed at most 10 ms"],
            4,
        ),
        (  # a bound that was barely broken does not read as its value
            {"plant": {"late_p99_9_us": 10000.5, "late_max_us": 67e3}},
            ["lateness 10.0005 ms (99.9 % of the periods; the latest 67 ms), allowed at most 10 ms"],
            4,
        ),
        ({"plant": {"slipped": 1000}}, ["time lost 25 %, allowed at most 1 %"], 4),
        ({"counters": {"deadline_misses": 10, "lost": 1}}, ["late answers 1.1 %, allowed at most 1 %"], 4),
        # the robot stopped because no command came in time, and for nothing else
        (
            {"plant": {"stops": 17, "stops_missed": 17, "stopped_steps": 500}},
            ["safe stops 17 (17 missed), allowed at most 0", "time under command 80 %, allowed at least 99 %"],
            2,
        ),
    ],
)
def test_bounds_on_the_timing_make_it_late_and_leave_the_robot_clean(
    tmp_path: Path, change: dict, sentences: list[str], judged_robot: int
) -> None:
    outcome, _, last = judged(tmp_path, run(**change))
    assert (outcome["clean"], outcome["on_time"], outcome["exit_code"]) == (True, False, 0)
    assert broken(outcome) == sentences
    text = f"clean, {judged_robot} bounds met; late, {len(sentences)} of {7 - judged_robot} bounds broken"
    assert last.startswith(text)
    outcome, _, last = judged(tmp_path, run(**change), check=True)
    assert outcome["exit_code"] == LATE == 4
    assert last.startswith(f"status 4: {text}")
    outcome, _, _ = judged(tmp_path, run(**change, error=(0.0, 1.15)), check=True)  # the robot's verdict comes first
    assert (outcome["clean"], outcome["on_time"], outcome["exit_code"]) == (False, False, NOT_CLEAN)


def test_stops_in_lockstep_are_the_robot_s(tmp_path: Path) -> None:
    """There no time passes while a command is awaited, unless a controller gives no answer at all."""
    outcome, _, _ = judged(tmp_path, run(clock="lockstep", plant={"stops": 1, "stops_missed": 1}))
    assert (outcome["clean"], outcome["on_time"]) == (False, None)


def test_a_robot_that_stands_still_under_a_small_motion_is_not_clean(tmp_path: Path) -> None:
    """An error of 0.03 rad is within 3 degrees; it is 100 % of a motion of 0.03 rad, and little of one of 2 rad."""
    for way, max_error in ((2.0, 0.05), (0.1, 0.025), (0.03, 7.5e-3), (0.0, 0.05)):
        outcome, _, _ = judged(tmp_path, run(way=(0.0, way), error=(0.0, 0.03)))
        (tracking,) = [verdict for verdict in outcome["verdicts"] if verdict["what"] == "tracking error"]
        assert tracking["bound"] == pytest.approx(max_error, rel=1e-3)
        assert tracking["passed"] is (max_error == 0.05)


def test_bounds_are_parameters(tmp_path: Path) -> None:
    facts = {"bounds": {"safe_stops": 20, "error_rad": 2.0, "error_share": 1.0}}
    bounds = msgspec.to_builtins(msgspec.convert({"robot": "r", **facts}, PlantParameters).bounds)
    store = run(error=(0.0, 1.15), plant={"stops": 17}, bounds=bounds)
    outcome, _, last = judged(tmp_path, store, check=True)
    assert (outcome["clean"], outcome["exit_code"]) == (True, 0)
    assert last.startswith("clean, 4 bounds met; on time, 3 bounds met")
    with pytest.raises(msgspec.ValidationError, match=r"bounds\.under_command"):
        msgspec.convert({"robot": "r", "bounds": {"under_command": 1.5}}, PlantParameters)
    boundless = dict.fromkeys(("error_rad", "error_m", "error_share"), math.inf)
    outcome, _, last = judged(tmp_path, run(error=(0.0, 1.15), bounds=boundless))
    assert [verdict["sentence"] for verdict in outcome["verdicts"] if verdict["passed"] is None] == [
        "tracking error not judged (no bound)"
    ]
    assert last.startswith("clean, 3 bounds met; on time, 3 bounds met")


def test_bounds_that_were_not_judged_are_listed(tmp_path: Path) -> None:
    def unjudged(store: TelemetryStore) -> tuple[bool | None, list[str]]:
        outcome, _, _ = judged(tmp_path, store)
        return outcome["clean"], [verdict["sentence"] for verdict in outcome["verdicts"] if verdict["passed"] is None]

    late = "nothing is late in lockstep"
    assert unjudged(run(clock="lockstep", plant={"late_p99_9_us": 9e9}, counters={"deadline_misses": 900})) == (
        True,
        [f"late answers not judged ({late})", f"lateness not judged ({late})", f"time lost not judged ({late})"],
    )
    assert unjudged(run(controller=False, plant={"armed": 0, "active_steps": 0})) == (
        True,
        ["time under command not judged (nothing commanded the plant)",
         "tracking error not judged (no reference was followed)"],
    )  # fmt: skip
    assert unjudged(run(recorded=False)) == (True, ["tracking error not judged (the plant's motion was not recorded)"])


def test_in_lockstep_no_answer_is_late(tmp_path: Path) -> None:
    """Neither a finding, nor a line, nor a dot in the colour of a bound that was met."""
    client_stats = {"deadline_misses": 125}
    for clock, count in (("real_time", 1), ("lockstep", 0)):
        store = run(clock=clock, counters=client_stats)
        # The last is a query for joint loads, which is never late.
        request_rows = np.array([[0.0, 0.0, 9e3, 1.0], [0.1, 0.0, 1e3, 0.0], [0.2, 1.0, 2e4, 0.0]])
        columns = ["t", "kind", "round_trip_us", "missed"]
        store.take(Rows("controller", 2, "requests", columns, np.ascontiguousarray(request_rows, "<f8").tobytes()))
        _, page, _ = judged(tmp_path, store)
        assert page.count("answers later than 2 ms: 125, 12.5 % of all; the slowest took 9.0 ms") == count
        assert page.count("125 later than 2 ms") == count
        assert page.count('"label":"deadline 2000"') == 2 * count
        assert page.count('<td class="state open">not judged</td>') == 3 * (1 - count)
    assert page.count('<td class="state">met</td>') == 4


def test_where_nothing_was_judged_nothing_is_clean(tmp_path: Path) -> None:
    outcome, page, _ = judged(tmp_path, TelemetryStore())
    assert (outcome["clean"], outcome["exit_code"], outcome["verdict"]) == (None, 0, "nothing judged")
    assert "Nothing was judged: no node of this launch has bounds." in page
    assert judged(tmp_path, TelemetryStore(), check=True)[0]["exit_code"] == NOT_CLEAN


def test_a_panel_that_failed_judged_nothing_and_is_not_clean(tmp_path: Path) -> None:
    def broken_panel(node, store):
        raise KeyError("speed")

    kind = NodeKind("n", object, lambda node: None, panels=(Panel("speed", broken_panel),))
    plan = LaunchPlan(tmp_path / "x.launch.yaml", {}, (ProcessPlan("n", (), "", kind=kind),), Registry())
    store, outcome = TelemetryStore(), Outcome("done")
    store.take(Ready("n", 1))
    write_report(tmp_path, plan, store, outcome)
    assert outcome.clean is False
    assert outcome.broken("robot") == ["n: speed is no number (its panel failed), allowed at most 0"]


def test_a_fault_is_not_clean_whatever_was_measured(tmp_path: Path) -> None:
    outcome, _, last = judged(tmp_path, run(), faults=["plant died"], check=True)
    assert (outcome["clean"], outcome["exit_code"], outcome["verdict"]) == (False, 1, "not clean")
    assert last.startswith("status 1: not clean, ")
    assert "3 s" in last


def shared(launch: float, other_processes: float, host: float) -> dict[str, float]:
    """Shares of the CPU time."""
    return {"launch": launch, "others": other_processes, "host": host, "idle": 1.0 - launch - other_processes - host}


def test_a_late_run_is_reported_with_its_cause_and_advice(tmp_path: Path) -> None:
    late = {"late_p99_9_us": 2e4, "late_max_us": 67e3}
    for shares, cause in (
        (shared(0.31, 0.48, 0.0), "other processes took 48 % of the CPU time, this launch 31 %"),
        (shared(0.31, 0.04, 0.2),
         "other processes took 4 % of the CPU time, this launch 31 %, the host of this virtual machine 20 %"),
        (shared(0.9, 0.04, 0.0),
         "other processes took 4 % of the CPU time, this launch 90 %: the launch itself, or a limit on its CPU time, "
         "is the cause"),
        ({}, "the system reports no CPU times"),
    ):  # fmt: skip
        outcome, page, _ = judged(tmp_path, run(plant=late), cpu=shares)
        assert outcome["cause"] == f"late: {cause}. For a run that does not depend on the machine, add clock:=lockstep"
        assert outcome["cause"] in page
        assert outcome["cpu"] == shares
        assert _summary(*planned(tmp_path, run(plant=late), {"clock": "real_time"}, shares))[-2] == outcome["cause"]
    lines = _summary(*planned(tmp_path, run(plant=late), {}, {}))  # a launch file without such an argument
    assert lines[-2].endswith("set the plant's parameter clock: lockstep")
    for store in (run(), run(plant={"stops": 1}, clock="lockstep"), run(error=(0.0, 1.15))):
        outcome, _, _ = judged(tmp_path, store, cpu=shared(0.31, 0.48, 0.0))
        assert outcome["cause"] is None


def planned(
    folder: Path, store: TelemetryStore, arguments: dict[str, str], cpu: dict[str, float]
) -> tuple[LaunchPlan, TelemetryStore, Outcome]:
    """The arguments of `_summary` after a run."""
    plan, outcome = LaunchPlan(folder / "c.launch.yaml", arguments, ()), Outcome("3 s are over", cpu=cpu)
    write_report(folder, plan, store, outcome)
    return plan, store, outcome


def test_cpu_time_is_divided_between_the_launch_others_and_the_host(tmp_path: Path) -> None:
    def machine(cpu: str, **processes: str) -> dict[str, int]:
        (tmp_path / "stat").write_text(f"cpu  {cpu} 7 7\ncpu0 1 1\n", "ascii")
        for name, stat in processes.items():
            (tmp_path / name[1:]).mkdir(exist_ok=True)
            (tmp_path / name[1:] / "stat").write_text(stat, "utf-8")
        return dict(cpu_ticks(tmp_path, launcher=10) or {})

    def process(pid: int, parent: int, *ticks: int) -> str:
        """Its line in /proc: user and system time, its own and that of its ended children."""
        return f"{pid} (a) (b c) S {parent} 1 1 0 -1 4194304 1 1 1 1 {' '.join(map(str, ticks))} 20 0 1 0 1 1"

    begin = machine("100 10 50 1000 40 5 5 10", _10=process(10, 1, 5, 5, 0, 0), _11=process(11, 10, 20, 10, 0, 0),
                    _12=process(12, 11, 1, 1, 0, 0), _20=process(20, 1, 70, 0, 0, 0))  # fmt: skip
    end = machine("180 20 60 1050 50 10 5 45", _10=process(10, 1, 10, 5, 0, 3), _11=process(11, 10, 30, 15, 2, 0),
                  _12=process(12, 11, 11, 1, 0, 0), _20=process(20, 1, 130, 9, 0, 0))  # fmt: skip
    # busy 80 + 10 + 10 + 5, idle 50 + 10, stolen 35; of the launch 5 + 3, 10 + 5 + 2 and 10
    assert cpu_shares(begin, end) == {"launch": 35 / 200, "others": 70 / 200, "host": 35 / 200, "idle": 60 / 200}
    assert cpu_shares(begin, begin) == cpu_shares(None, end) == cpu_shares(begin, None) == {}
    for text in ("", "cpu 1 2", "cpu a b c d e f g h"):
        (tmp_path / "stat").write_text(text, "ascii")
        assert cpu_ticks(tmp_path) is None
    assert cpu_ticks(tmp_path / "none") is None


@pytest.mark.skipif(cpu_ticks() is None, reason="this system reports no CPU times")
def test_cpu_time_of_this_process_is_the_launch_s() -> None:
    begin, end_s = cpu_ticks(), time.process_time() + 0.3
    while time.process_time() < end_s:
        pass
    end = cpu_ticks()
    assert begin is not None
    assert end is not None
    assert end["launch"] - begin["launch"] >= 25  # of 30 ticks of 10 ms, each rounded down


def test_a_launch_is_ready_when_its_plants_are_armed() -> None:
    store = TelemetryStore()
    assert not unarmed(store)
    store.take(Facts("plant", 1, {"clock": "real_time"}))
    store.take(Stats("plant", 1, {"armed": 0}))
    assert not unarmed(store)  # nothing here commands it
    store.take(Facts("controller", 2, {"law": "l"}))
    assert unarmed(store)
    store.take(Stats("plant", 1, {"armed": 1}))
    assert not unarmed(store)
    store.take(Facts("other", 3, {"clock": "lockstep"}))
    assert unarmed(store)


def test_a_value_that_is_no_number_breaks_its_bound() -> None:
    for is_minimum in (False, True):
        verdict = Verdict("speed", math.nan, 1.0, "m/s", least=is_minimum)
        assert verdict.passed is False
        assert verdict.sentence.startswith("speed is no number, allowed at ")


def test_check_is_for_launches_without_nodes_too(tmp_path: Path) -> None:
    file, screen = tmp_path / "a.launch.yaml", io.StringIO()
    file.write_text("launch: [{executable: {name: done, cmd: 'true'}}]", "utf-8")
    assert launch_file(file, console=Console(file=screen, width=200)) == 0
    assert launch_file(file, console=Console(file=screen, width=200), check=True) == NOT_CLEAN
    assert screen.getvalue().splitlines()[-1] == "[launch] status 3: nothing judged"


@pytest.mark.slow
def test_the_command_says_whether_the_run_was_clean(tmp_path: Path) -> None:
    """A pendulum, in lockstep, and one with 20 kg at its end of which its controller knows nothing."""
    calm = pendulum().replace("{name: control_rate_hz", "{name: clock, value: lockstep}, {name: control_rate_hz")
    assert calm != pendulum()
    payload = "[{link: pendulum, mass: 20.0, com: [0.0, 0.0, -1.0]}]"
    heavy = calm.replace("{name: clock", f"{{name: overlay, value: {{payloads: {payload}}}}}, {{name: clock")
    for text, status in ((calm, 0), (heavy, NOT_CLEAN)):
        file = tmp_path / "a.launch.yaml"
        file.write_text(text, "utf-8")
        with Launched(file, "--duration", "2", "--check", "--report", str(tmp_path / "report")) as launch:
            assert launch.wait() == status, launch.text
        outcome = json.loads((tmp_path / "report" / "report.json").read_text("utf-8"))["outcome"]
        assert (outcome["exit_code"], outcome["clean"]) == (status, status == 0)
        assert outcome["verdict"] in launch.lines[-1]
        if status:
            assert any(sentence.startswith("tracking error ") for sentence in broken(outcome)), launch.text


def test_default_bounds() -> None:
    error_bounds = PlantBounds().errors(np.array([True, False]), np.array([1.0, 1.0]))
    assert error_bounds.tolist() == [0.05, 0.005]
    # a fifth of the bound is no motion: beyond it, the error is judged by its share of the motion
    error_bounds = PlantBounds().errors(np.array([True, True]), np.array([0.0099, 0.0101]))
    assert error_bounds.tolist() == [0.05, pytest.approx(0.25 * 0.0101)]

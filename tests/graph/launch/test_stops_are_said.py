"""The launch's last line reports the plant's stops, and a launcher does not undo them."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from pathlib import Path

import pytest

from dyn_service.graph.launch.planner import make_plan
from dyn_service.graph.launch.run import _at_end
from dyn_service.graph.launch.schema import read_launch_file
from dyn_service.graph.middleware.discovery import Discovery
from dyn_service.graph.middleware.stop import Stop
from dyn_service.graph.middleware.telemetry import Facts, Stats, TelemetryStore
from dyn_service.graph.middleware.topic_tools import listening
from dyn_service.graph.nodes.plant import report as plant_report
from dyn_service.messages import decode as decode_message
from dyn_service.messages import ros_type
from dyn_service.messages.dyn_service_msgs import PlantState
from tests.graph.launches import Launched, pendulum, wait_for

ONE_PLANT = "launch: [{node: {pkg: dyn_service, exec: plant, name: arm, param: [{name: robot, value: panda}]}}]"
STOPPED = {
    "stops": 39,
    "stops_missed": 38,
    "stops_velocity": 1,
    "armed": 40,
    "steps": 1000,
    "active_steps": 910,
    "commands": 800,
}


@pytest.mark.parametrize(
    ("stats", "sentences"),
    [
        (STOPPED, ["arm: safe stops: 39 (38 missed, 1 velocity), armed 40 times"]),
        (
            {**STOPPED, "commands": 41},
            [
                "arm: safe stops: 39 (38 missed, 1 velocity), armed 40 times; "
                "the time between commands exceeded the plant's hold time, 0.02 s: set its control_rate_hz to the "
                "controller's rate"
            ],
        ),
        (
            {**STOPPED, "last_stop": "velocity at 3 s: a reaches 2 rad/s, its limit is 1 rad/s"},
            [
                "arm: safe stops: 39 (38 missed, 1 velocity), armed 40 times; the last: velocity at 3 s: a reaches "
                "2 rad/s, its limit is 1 rad/s"
            ],
        ),
        (  # one stop after its first commands: a fault, not a rate
            {**STOPPED, "stops": 1, "stops_missed": 1, "stops_velocity": 0, "armed": 1, "commands": 2},
            ["arm: safe stops: 1 (1 missed), armed 1 times"],
        ),
        ({**STOPPED, "stops": 0}, []),
        (
            {"steps": 1000, "active_steps": 500, "saturated.a": 465, "saturated.b.x": 100, "refused_stale": 3},
            [
                "arm: commands cut to the effort limit: a 93.0 %, b.x 20.0 % of the time under command; "
                "3 commands were too late"
            ],
        ),
        (
            {
                "steps": 10000,
                "active_steps": 10,
                **{f"out_of_range.j{k}": k for k in range(7)},
                "held_back.j2": 10,
                "motor_saturated.j1": 2000,
            },
            [
                "arm: efforts held back by their rate: j2 100.0 % of the time under command; "
                "motors at their own limit: j1 20.0 % of the time; "
                "positions beyond their limits: j6 under 0.1 %, j5 under 0.1 %, j4 under 0.1 %, j3 under 0.1 % "
                "and 2 more of the time"
            ],
        ),
        ({}, []),
    ],
)
def test_what_the_last_line_says(tmp_path: Path, stats: dict[str, float | int | str], sentences: list[str]) -> None:
    file = tmp_path / "a.launch.yaml"
    file.write_text(ONE_PLANT, "utf-8")
    plan = make_plan(read_launch_file(file), {}, folder=tmp_path)
    store = TelemetryStore()
    store.take(Facts("arm", 1, {"hold_s": 0.02}))
    store.take(Stats("arm", 1, stats))
    assert _at_end(plan, store) == sentences


@pytest.mark.slow
def test_a_launch_whose_plant_stopped_says_so_last(tmp_path: Path) -> None:
    """Though nothing died, and its status is 0. What the plant does is heard on its topic: the launcher says it every
    five seconds. The controller has no reference, from which a busy machine could make it deviate.
    """
    file = tmp_path / "a.launch.yaml"
    text = pendulum(controller="name: controller, heartbeat_timeout: 0,")
    file.write_text(text.replace("exec: controller", "exec: gravity_compensation"), "utf-8")
    with tempfile.TemporaryDirectory() as runtime, Launched(file, env={"XDG_RUNTIME_DIR": runtime}) as launch:
        launch.wait_line("ready: 3 processes")
        discovery, newest = Discovery({"XDG_RUNTIME_DIR": runtime}), ("", "")
        with listening("/plant_state", ros_type(PlantState), discovery, pytest.fail) as subscription:

            def state() -> tuple[str, str]:
                nonlocal newest
                while (frame := subscription.take_frame()) is not None:
                    state = decode_message(PlantState, frame)
                    newest = state.mode, state.cause
                return newest

            wait_for(lambda: state()[0] == "active", launch.text)
            controller = launch.nodes()["controller"]
            os.kill(controller, signal.SIGSTOP)
            wait_for(lambda: state() == ("stopped", "missed"), launch.text)
            os.kill(controller, signal.SIGCONT)
            wait_for(lambda: state()[0] == "active", launch.text)
        assert launch.stop() == 0, launch.text
    assert re.match(
        r"\[launch\] clean, 1 bound met; late, [1-5] of 5 bounds broken; plant: safe stops: ", launch.lines[-1]
    )
    assert any(re.match(r"\[launch\] late: plant: safe stops \d+ \(", line) for line in launch.lines)
    assert "missed" in launch.lines[-1]


@pytest.mark.slow
def test_a_controller_that_was_started_again_takes_over_only_with_rearm(tmp_path: Path) -> None:
    file = tmp_path / "a.launch.yaml"
    text = pendulum(controller="respawn_max_retries: 1,").replace(
        "{name: rearm, value: true}", "{name: rearm, value: false}"
    )
    file.write_text(text, "utf-8")
    with Launched(file) as launch:
        launch.wait_line("server ready")
        os.kill(launch.nodes()["controller"], signal.SIGKILL)
        assert launch.wait() == 1
    refusal = "the plant is stopped (missed), and rearm is off: a controller that the launcher has restarted"
    assert any(refusal in line for line in launch.lines), launch.text
    assert "armed 1 times" in launch.lines[-1]


def test_what_the_live_table_says_of_a_strained_plant() -> None:
    """The notes begin with the worst joint of each kind, because the table may be narrow."""
    stats = {"steps": 100, "active_steps": 50, "saturated.a": 5, "saturated.b": 40, "overruns": 2, "refused_stale": 1}
    notes = plant_report.COLUMNS[-1].text({**stats, "mode": "active"})
    assert notes == "b cut 80.0 % +1, 2 overruns, 1 stale commands"


def test_a_node_that_fails_while_it_prepares_reports_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within `at_once` a stop ends the process; after an exception in it, a stop requested by the node does not."""
    exit_codes: list[int] = []
    monkeypatch.setattr("dyn_service.graph.middleware.stop.os._exit", exit_codes.append)
    stop = Stop()
    with pytest.raises(ValueError, match="no file"), stop.at_once():
        raise ValueError("no file")
    stop.request()
    assert (stop.requested, exit_codes) == (True, [])
    with stop.at_once():
        stop.request(signal.SIGINT)
    assert exit_codes == [128 + signal.SIGTERM, 128 + signal.SIGINT]

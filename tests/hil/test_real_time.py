"""The same runs with real processes: start order, faults, killed processes, and a plant on another machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dyn_service.errors import InvalidArgumentError, UnavailableError
from dyn_service.hil import Bias, Killed, WrongPayload
from dyn_service.hil.bench import RobotCache, Run, Setup, merged, open_bench, run_for
from dyn_service.hil.faults import Fault
from tests.conftest import ROOT
from tests.phrases import naming

ROBOT = str(ROOT / "urdf" / "double_pendulum.urdf")
# slow enough for a machine that does other things: efforts are held for 20 of these periods
SETUP = Setup(
    str(ROOT / "launch" / "ur5e_computed_torque.launch.yaml"),
    {"robot": ROBOT},
    {"control_rate_hz": 50.0, "rate_hz": 500.0},
    {"rate_hz": 50.0},
)


def run(mode: str, seconds: float, *faults: Fault, endpoints=(), **setup) -> Run:
    bench = open_bench(mode, merged(SETUP, setup), RobotCache(), faults, 0, endpoints)
    return run_for(bench, seconds, mode, 0, faults)


@pytest.mark.slow
def test_a_run_of_processes() -> None:
    """A bias that only the controller sees, and a controller that is killed at 1.4 s for good, when it has long armed.

    The bias begins between two steps of a millisecond, because the times of steps are rounded.
    """
    bias = Bias(0.01, channel="states", joints=["joint_2"], from_s=0.2995)
    done = run("real_time", 2.2, bias, Killed(from_s=1.4))
    record = done.record
    assert 0.0 <= record.t[0] < 0.1  # it begins when all are ready, not when the plant began
    assert (np.diff(record.t) > 0.0).all()
    assert [change.mode for change in record.changes][:3] == ["braked", "arming", "active"]
    assert (record.changes[-1].mode, record.changes[-1].cause) == ("stopped", "missed")
    assert any("was killed by SIGKILL" in text for _, text in record.notes)
    off = {round(seen.state.stamp, 6): seen.state.position[1] for seen in done.log.seen}
    sent = {round(state.stamp, 6): state.position[1] for state in done.log.states}
    late = [(t, off[t] - sent[t]) for t in off if t in sent]
    assert {round(by, 9) for t, by in late if t >= 0.2995} == {0.01}
    assert {round(by, 9) for t, by in late if t < 0.2995} == {0.0}
    assert len(record.answers.t) > 3
    error = record.signal("error", "joint_1").values
    assert np.isfinite(error[record.under("active")]).mean() > 0.9  # the controller told its reference
    done.check.safe_stop(record.changes[-1].t).below(0.2)  # the brakes take 0.1 s


@pytest.mark.slow
def test_a_server_that_is_killed_stops_the_plant_in_time() -> None:
    """The controller's questions are not answered any more: the plant holds for 20 periods of 20 ms, then brakes."""
    done = run("real_time", 1.8, Killed(node="server", from_s=0.6))
    record = done.record
    assert any("server: was killed by SIGKILL" in text for _, text in record.notes), record.notes
    assert (record.changes[-1].mode, record.changes[-1].cause) == ("stopped", "missed")
    # the brakes take 0.1 s; how late after 0.6 s the process is killed is the machine's
    done.check.safe_stop(0.6).below(0.4 + 0.1 + 0.4)


@pytest.mark.slow
def test_a_plant_that_is_elsewhere() -> None:
    """As a driver on another machine would be: its topics are endpoints, and the launch starts no plant."""
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    where = {
        name: f"tcp://127.0.0.1:{port}" for name, port in zip(("plant_state", "joint_commands"), ports, strict=True)
    }
    values = {**SETUP.plant, "robot": ROBOT, "stale_cycles": 500, **where}  # 1 s: other tests take the processors
    words = [word for name, value in values.items() for word in ("-p", f"{name}:={value}")]
    program = [sys.executable, "-P", "-m", "dyn_service.graph.nodes.plant.node", "--ros-args", *words]
    plant = subprocess.Popen(program, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        done = run("hardware", 0.5, endpoints=[f"{name}={place}" for name, place in where.items()])
    finally:
        plant.send_signal(signal.SIGINT)
        plant.wait(240)
    assert done.record.changes[-1].mode == "active"
    done.check.stops().at_most(0)
    assert done.check.count("steps").value != done.check.count("steps").value  # nobody here knows them: no number


@pytest.mark.slow
def test_a_robot_behind_its_driver_over_udp(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--hil hardware` with a plant whose driver speaks to a robot in another process, which has its own 1 kHz: it
    follows its commands, the loss of a controller is detected, and the robot's own brakes bring it to rest.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    # its launch file says python3, that of the environment that is active
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    setup = Setup(
        str(ROOT / "examples" / "udp_robot" / "udp_robot.launch.yaml"),
        {"port": port},
        {"control_rate_hz": 50.0, "rate_hz": 500.0, "stale_cycles": 250},
        {"rate_hz": 50.0, "rearm": False},
    )
    faults = [Killed(from_s=1.2)]
    done = run_for(open_bench("hardware", setup, RobotCache(), faults, 0), 2.0, "hardware", 0, faults)
    record = done.record
    assert [change.mode for change in record.changes] == ["braked", "arming", "active", "stopped"]
    assert record.changes[-1].cause == "missed"
    moved = record.signal("position", "hinge").between(0.0, 1.2).values
    assert moved.max() - moved.min() > 0.01  # rad: the sines have begun
    assert np.isfinite(record.signal("error", "hinge").values[record.under("active")]).mean() > 0.9  # what it follows
    done.check.safe_stop(1.2).below(0.4 + 0.2)  # 20 periods of 20 ms to miss it; the brakes take 0.1 s


@pytest.mark.slow
def test_a_robot_with_drives_of_its_own_is_commanded_by_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The robot is a process behind UDP: its commands, its motion, and the efforts that it measured."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    setup = Setup(
        str(ROOT / "examples" / "udp_robot" / "udp_robot.launch.yaml"),
        {"port": port, "controller": "trajectory_following"},
        {"control_rate_hz": 50.0, "rate_hz": 500.0, "stale_cycles": 250},
        {"rate_hz": 50.0},
    )
    record = run_for(open_bench("hardware", setup, RobotCache(), [], 0), 2.0, "hardware", 0, []).record
    assert [kind for kind in record.groups if kind.startswith("commanded_")] == ["commanded_position"]
    said, there = (record.signal(kind, "hinge").values for kind in ("commanded_position", "position"))
    known = np.isfinite(said)
    assert known.mean() > 0.5
    moving = np.ptp(said[known])
    assert moving > 0.1  # rad: up to 0.6 in a second
    # a late command acts later, and a busy machine stops it: it is at the commanded position most of the time
    assert np.median(np.abs(said - there)[known]) < 0.2 * moving
    assert np.abs(record.signal("effort", "hinge").values[known]).max() > 0.1  # N m: it is held up


@pytest.mark.slow
def test_what_ends_before_it_is_ready_says_why() -> None:
    with pytest.raises(UnavailableError, match=naming("controller", "127.0.0.1:1")):
        run("real_time", 0.1, controller={"endpoint": "tcp://127.0.0.1:1", "connect_timeout_s": 0.3})


@pytest.mark.parametrize(
    ("mode", "faults", "endpoints", "sentence"),
    [
        ("hardware", [], [], "--hil=hardware needs a robot: a plant with a driver in the launch file, or"),
        (
            "hardware",
            [WrongPayload("lower_bar", 1.0)],
            [],
            "WrongPayload: only a simulated plant can carry it, found --hil=hardware",
        ),
        ("hardware", [], ["plant_state=tcp://a:1"], "--hil-endpoint: found plant_state=tcp://a:1; expected, with"),
        ("real_time", [], ["plant_state=tcp://a:1", "joint_commands=tcp://a:2"], "--hil-endpoint: found plant_state"),
        ("hardware", [], ["plant_state=a", "joint_commands=b"], "--hil-endpoint: found plant_state=a, joint_commands"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_starts(mode, faults, endpoints, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        run(mode, 0.1, *faults, endpoints=endpoints)
    assert str(caught.value).startswith(sentence)


def test_real_time_refuses_a_plant_in_lockstep() -> None:
    with pytest.raises(InvalidArgumentError, match="needs a plant paced by wall time, found clock: lockstep; pass"):
        run("real_time", 0.1, plant={"clock": "lockstep"})

"""The same runs with real processes: start order, faults, killed processes, and a plant on another machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyn_service.errors import InvalidArgumentError, PermissionDeniedError, UnavailableError
from dyn_service.hil import Bias, Killed, WrongPayload
from dyn_service.hil.bench import RobotCache, Run, Setup, merged, open_bench, run_for
from dyn_service.hil.checks import AT_REST, Check
from dyn_service.hil.faults import Fault
from tests.conftest import ROOT
from tests.phrases import naming

ROBOT = str(ROOT / "urdf" / "double_pendulum.urdf")
# slow enough for a machine that does other things: efforts are held for 20 of these periods, and feedback that is late
# by some of them does not diverge
SETUP = Setup(
    str(ROOT / "launch" / "ur5e_computed_torque.launch.yaml"),
    {"robot": ROBOT},
    {"control_rate_hz": 50.0, "rate_hz": 500.0},
    {"rate_hz": 50.0, "natural_frequency": 1.0},
)
GENTLE = {"natural_frequency": 1.0, "rearm": False}
CYCLE_S, HOLD_S = 1 / 500, 20 / 50
"""Of the plant; 20 periods of the controller."""


def run(mode: str, seconds: float, *faults: Fault, endpoints=(), **setup) -> Run:
    bench = open_bench(mode, merged(SETUP, setup), RobotCache(), faults, 0, endpoints)
    return run_for(bench, seconds, mode, 0, faults)


def run_until(mode: str, setup: Setup, is_over: Callable[[Any], bool], *faults: Fault) -> Run:
    """A run that ends when something has come about, however late that is in wall time."""
    bench = open_bench(mode, setup, RobotCache(), faults, 0)
    try:
        while not bench.now_s or not is_over(bench):
            assert bench.now_s < 20.0, (bench.state, bench.log.notes)
            bench.run_until(bench.now_s + 0.02)
    finally:
        bench.close()
    record = bench.record()
    return Run(record, Check(record), bench.ended, bench.log, mode, 0, faults)


def is_at_rest(bench: Any) -> bool:
    """Whether a process was killed, and the plant has stopped and stands still."""
    was_killed = any("was killed by SIGKILL" in text for _, text in bench.log.notes)
    return was_killed and bench.state.mode == "stopped" and np.abs(bench.state.velocity).max() <= AT_REST


def seconds_without_command(done: Run) -> tuple[float, float]:
    """How long the last command had acted, in the plant's cycles: when it stopped, and in the cycle before."""
    states = done.log.states
    stopped = next(k for k in range(len(states) - 1, 0, -1) if states[k - 1].mode != "stopped")
    stop, previous = states[stopped], states[stopped - 1]
    assert (stop.mode, stop.cause) == ("stopped", "missed")
    taken_s = stop.stamp + (stop.command_seq - stop.seq) * CYCLE_S + stop.command_delay
    return stop.since - taken_s, previous.stamp - CYCLE_S - taken_s


@pytest.mark.slow
def test_a_run_of_processes() -> None:
    """A bias that only the controller sees, and a controller that is killed at 1.4 s for good, when it has long armed.

    The bias begins between two steps of a millisecond, because the times of steps are rounded.
    """
    bias = Bias(0.01, channel="states", joints=["joint_2"], from_s=0.2995)
    done = run_until("real_time", SETUP, is_at_rest, bias, Killed(from_s=1.4))
    record = done.record
    assert record.t[0] == 0.0  # it begins when all are ready, not when the plant began
    assert (np.diff(record.t) > 0.0).all()
    assert [change.mode for change in record.changes][:3] == ["braked", "arming", "active"]
    assert seconds_without_command(done)[0] == pytest.approx(HOLD_S)
    assert any("was killed by SIGKILL" in text for _, text in record.notes)
    position_received = {round(seen.state.stamp, 6): seen.state.position[1] for seen in done.log.received}
    position_sent = {round(state.stamp, 6): state.position[1] for state in done.log.states}
    late = [(t, position_received[t] - position_sent[t]) for t in position_received if t in position_sent]
    assert {round(offset, 9) for t, offset in late if t >= 0.2995} == {0.01}
    assert {round(offset, 9) for t, offset in late if t < 0.2995} == {0.0}
    assert len(record.answers.t) > 3
    error = record.signal("error", "joint_1").values
    assert np.isfinite(error[record.under("active")]).mean() > 0.9  # the controller told its reference
    done.check.safe_stop(record.changes[-1].t).below(0.2)  # the brakes take 0.1 s


@pytest.mark.slow
def test_a_server_that_is_killed_stops_the_plant_in_time() -> None:
    """The controller's questions are not answered any more: the plant holds for 20 periods of 20 ms, then brakes.

    In the plant's time: how late the process is killed, and when its last answer was, is the machine's.
    """
    done = run_until("real_time", SETUP, is_at_rest, Killed(node="server", from_s=0.6))
    record = done.record
    assert any("server: was killed by SIGKILL" in text for _, text in record.notes), record.notes
    assert seconds_without_command(done)[0] == pytest.approx(HOLD_S)
    done.check.safe_stop(record.changes[-1].t).below(0.2)  # the brakes take 0.1 s


@pytest.mark.slow
def test_a_plant_that_is_elsewhere() -> None:
    """As a driver on another machine would be: its topics are endpoints, and the launch starts no plant. Its time
    passes with the commands, so that none is late.
    """
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    endpoints = {
        name: f"tcp://127.0.0.1:{port}" for name, port in zip(("plant_state", "joint_commands"), ports, strict=True)
    }
    values = {**SETUP.plant, "robot": ROBOT, "clock": "lockstep", **endpoints}
    words = [word for name, value in values.items() for word in ("-p", f"{name}:={value}")]
    program = [sys.executable, "-P", "-m", "dyn_service.graph.nodes.plant.node", "--ros-args", *words]
    plant = subprocess.Popen(program, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        done = run("hardware", 0.5, endpoints=[f"{name}={place}" for name, place in endpoints.items()])
    finally:
        plant.send_signal(signal.SIGINT)
        plant.wait(240)
    modes = [change.mode for change in done.record.changes]
    assert modes[:2] == ["braked", "active"]
    assert modes[2:] in ([], ["braked"])  # the controller's release at its end may still arrive in time
    assert len(done.record.answers.t) >= 24  # each of the states in 0.5 s
    done.check.stops().at_most(0)
    assert done.check.count("steps").value != done.check.count("steps").value  # nobody here knows them: no number


@pytest.fixture
def udp_setup(monkeypatch: pytest.MonkeyPatch) -> Setup:
    """The example of a robot behind UDP, at a port that is free now."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    # its launch file says python3, that of the environment that is active
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return Setup(
        str(ROOT / "examples" / "udp_robot" / "udp_robot.launch.yaml"),
        {"port": port},
        {"control_rate_hz": 50.0, "rate_hz": 500.0, "stale_cycles": 250},
        {"rate_hz": 50.0},
    )


@pytest.mark.slow
def test_a_robot_behind_its_driver_over_udp(udp_setup: Setup) -> None:
    """`--hil hardware` with a plant whose driver speaks to a robot in another process, which has its own 1 kHz: it
    follows its commands, the loss of a controller is detected, and the robot's own brakes bring it to rest.

    The loss is judged in the plant's cycles and the braking in the robot's, of which each reading is one at least.
    """
    done = run_until("hardware", merged(udp_setup, {"controller": GENTLE}), is_at_rest, Killed(from_s=1.2))
    record = done.record
    assert [change.mode for change in record.changes] == ["braked", "arming", "active", "stopped"]
    stop_age_s, previous_age_s = seconds_without_command(done)
    assert previous_age_s < HOLD_S - 0.5 * CYCLE_S < stop_age_s  # in the first cycle that the machine let it have
    positions = record.signal("position", "hinge").between(0.0, 1.2).values
    assert positions.max() - positions.min() > 0.01  # rad: the sines have begun
    assert np.isfinite(record.signal("error", "hinge").values[record.under("active")]).mean() > 0.9  # what it follows
    braking = [state for state in done.log.states if state.mode == "stopped"]
    readings = [(state.position, state.velocity) for state in braking]
    assert sum(previous != reading for previous, reading in pairwise(readings)) <= 100  # of 1 ms; the brakes take 0.1 s


@pytest.mark.slow
def test_a_robot_with_drives_of_its_own_is_commanded_by_positions(udp_setup: Setup) -> None:
    """The robot is a process behind UDP: its commands, its motion, and the efforts that it measured."""
    setup = merged(udp_setup, {"arguments": {"controller": "trajectory_following"}})
    commanded_states = lambda bench: sum(state.mode == "active" for state in bench.log.states)
    record = run_until("hardware", setup, lambda bench: commanded_states(bench) > 750).record  # for 1.5 s
    assert [kind for kind in record.groups if kind.startswith("commanded_")] == ["commanded_position"]
    commanded, positions = (record.signal(kind, "hinge").values for kind in ("commanded_position", "position"))
    is_known = np.isfinite(commanded)
    assert is_known.sum() > 500  # states, a second
    moving = np.ptp(commanded[is_known])
    assert moving > 0.1  # rad: up to 0.6 in a second
    # a late command acts later, and a busy machine stops it: it is at the commanded position most of the time
    assert np.median(np.abs(commanded - positions)[is_known]) < 0.2 * moving
    assert np.abs(record.signal("effort", "hinge").values[is_known]).max() > 0.1  # N m: it is held up


@pytest.mark.slow
def test_what_ends_before_it_is_ready_says_why() -> None:
    with pytest.raises(UnavailableError, match=naming("controller", "127.0.0.1:1")):
        run("real_time", 0.1, controller={"endpoint": "tcp://127.0.0.1:1", "connect_timeout_s": 0.3})


def test_a_launch_that_cannot_listen_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run waited for processes that nothing would start."""

    def refuse(socket: object, endpoint: str) -> None:
        raise PermissionDeniedError("the folder was removed")

    monkeypatch.setattr("dyn_service.graph.launch.supervisor.topics.listen", refuse)
    with pytest.raises(UnavailableError, match="before all were ready: PermissionDeniedError: the folder was removed"):
        run("real_time", 0.1)


@pytest.mark.parametrize(
    ("mode", "faults", "endpoints", "sentence"),
    [
        ("hardware", [], [], "--hil=hardware needs a robot: a plant with a driver in the launch file, or"),
        (
            "hardware",
            [WrongPayload("lower_bar", 1.0)],
            [],
            "WrongPayload: only a simulated plant can have it, found --hil=hardware",
        ),
        ("hardware", [], ["plant_state=tcp://a:1"], "--hil-endpoint: found plant_state=tcp://a:1; expected, with"),
        ("real_time", [], ["plant_state=tcp://a:1", "joint_commands=tcp://a:2"], "--hil-endpoint: found plant_state"),
        ("hardware", [], ["plant_state=a", "joint_commands=b"], "--hil-endpoint: found plant_state=a, joint_commands"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_starts(mode, faults, endpoints, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        run(mode, 0.1, *faults, endpoints=endpoints)
    assert str(refusal.value).startswith(sentence)


def test_real_time_refuses_a_plant_in_lockstep() -> None:
    with pytest.raises(InvalidArgumentError, match="needs a plant paced by wall time, found clock: lockstep; pass"):
        run("real_time", 0.1, plant={"clock": "lockstep"})

"""Hardware-in-the-loop tests of a four-bar: each check holds, and a planted fault turns it red."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.bags import recording
from dyn_service.hil import Bias, Delay, Jitter, Killed, Loss, Noise, NotANumber, Stale, WrongPayload
from dyn_service.hil.bench import RobotCache, Run, Setup, open_bench, run_for
from dyn_service.hil.checks import Check
from dyn_service.hil.faults import Fault
from dyn_service.hil.reporting import keep
from tests.conftest import ROOT, URDF

CRANK = "crank_joint"
SINES = {"period_s": 1.0, "harmonics": 2, "ramp_s": 0.3, "max_amplitude": 0.3}
SECONDS = 0.4


@pytest.fixture(scope="module")
def cache() -> RobotCache:
    return RobotCache()


def go(
    cache: RobotCache,
    *faults: Fault,
    plant: dict[str, Any] | None = None,
    arguments: dict[str, str] | None = None,
    **controller: Any,
) -> Run:
    setup = Setup(
        str(ROOT / "launch" / "robot.launch.yaml"),
        {"robot": str(URDF / "four_bar.urdf"), "rate_hz": "250.0", **(arguments or {})},
        {"rate_hz": 500.0, "initial_position": {CRANK: 0.5}, "missed_cycles": 5, **(plant or {})},
        {"multi_sine": SINES, "rearm": False, **controller},
    )
    return run_for(open_bench("lockstep", setup, cache, faults, 0), SECONDS, "lockstep", 0, faults)


@pytest.fixture(scope="module")
def right(cache: RobotCache) -> Run:
    """The run without a fault."""
    return go(cache)


BIAS = Bias(0.05, joints=[CRANK], from_s=0.1)
PAYLOAD = WrongPayload("coupler", mass=0.2, com=(0.12, 0.0, 0.0))
CHECKS: dict[str, tuple[Callable[[Check], object], Fault]] = {
    "tracking": (lambda check: check.tracking().below(1e-2), PAYLOAD),
    "velocity": (lambda check: check.velocity(CRANK).below(4.0), BIAS),
    "position": (lambda check: check.position(CRANK).below(0.9), BIAS),
    "effort": (lambda check: check.effort(CRANK).below(0.05), BIAS),
    "commanded": (lambda check: check.commanded().within_limits(), Bias(6.0, joints=[CRANK], from_s=0.3)),
    "power": (lambda check: check.power().below(0.05), BIAS),
    "energy": (lambda check: check.energy().below(0.01), BIAS),
    "delay": (lambda check: check.delay().below(5e-3), Delay(8e-3, from_s=0.1)),
    "jitter": (lambda check: check.jitter().below(1e-3), Jitter(8e-3, from_s=0.1)),
    "deadlines": (lambda check: check.deadlines(5e-3).at_most(0), Delay(8e-3, from_s=0.1)),
    "stops": (lambda check: check.stops().at_most(0), Loss(1.0, from_s=0.2)),
    "under command": (lambda check: check.under_command().at_least(0.95), Killed(from_s=0.2)),
    "refused": (lambda check: check.count("refused").at_most(0), NotANumber(joints=[CRANK], from_s=0.3)),
    "frozen": (lambda check: check.frozen(CRANK).below(5e-3), Stale(joints=[CRANK], from_s=0.1)),
    "clean": (lambda check: check.clean(), PAYLOAD),
    "settling": (lambda check: check.settling(CRANK, band=1e-2, from_s=0.1).below(0.1), PAYLOAD),
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_fault_turns_the_check_red(right: Run, cache: RobotCache, name: str) -> None:
    """With `assemble`, so that encoders with faults are no open loops."""
    assertion, fault = CHECKS[name]
    assertion(right.check)
    wrong = go(cache, fault, assemble=True)
    with pytest.raises(AssertionError):
        assertion(wrong.check)


def test_a_late_controller_is_stopped_in_time(cache: RobotCache) -> None:
    late = Delay(0.5, from_s=0.1)
    go(cache, late).check.safe_stop(after_s=0.1).below(0.12)
    with pytest.raises(AssertionError, match="stop"):
        go(cache, late, plant={"brake_s": 0.25}).check.safe_stop(after_s=0.1).below(0.12)


def test_overshoot_of_a_step(cache: RobotCache) -> None:
    points = {"points": [[0.6]], "move_s": 0.2, "dwell_s": 1.0}
    step = {"trajectory": "point_to_point", "point_to_point": points}
    go(cache, **step).check.overshoot(CRANK, to=0.6).below(0.01)
    with pytest.raises(AssertionError, match="beyond"):
        go(cache, BIAS, **step).check.overshoot(CRANK, to=0.6).below(0.01)


def test_joints_that_loops_move_have_no_reference(right: Run) -> None:
    assert right.record.groups["error"].names == (CRANK,)
    with pytest.raises(InvalidArgumentError, match="no joint 'rocker_joint'"):
        right.check.tracking("rocker_joint")
    right.check.position("rocker_joint").below(1.0)


def test_noisy_encoders(cache: RobotCache) -> None:
    """They open the loop: the controller ends with the reason, unless it assembles."""
    noise = Noise(1e-5, 1e-3, channel="states")
    assert "leaves the loop of joint 'pin' open" in go(cache, noise).ended
    closed = go(cache, noise, assemble=True)
    closed.check.tracking().below(1e-2)
    assert np.ptp(closed.record.groups["position"].values[:, 0]) > 0.1


def test_an_observer_sees_a_push(cache: RobotCache) -> None:
    """A payload that the model lacks is an external torque: the observer ends the controller."""
    settings = {"trajectory": "hold", "threshold": [5e-4]}
    arguments = {"controller": "collision_stop"}
    go(cache, arguments=arguments, **settings).check.under_command().at_least(0.95)
    reason = go(cache, PAYLOAD, arguments=arguments, **settings).ended
    assert "collision" in reason
    assert CRANK in reason


def test_a_bag_of_a_run(right: Run, tmp_path: Path) -> None:
    """Recorded positions keep the loop closed; efforts and speeds are those of the run."""
    pytest.importorskip("mcap", reason="the extra `bags` is not installed")
    _, bag = keep(right, tmp_path, "run", "test_a_bag_of_a_run")
    robot = Robot.from_file(URDF / "four_bar.urdf")
    motion = recording(robot, bag)
    assert np.abs(robot.loop_error(motion["q"])).max() < 1e-9
    rows = np.flatnonzero(right.record.under("active"))[: len(motion["t"])]
    np.testing.assert_array_equal(motion["v"], right.record.groups["velocity"].values[rows])
    # Central differences of 4 ms: some T^2 / 6 of the jerk's rate.
    a = robot.forward_dynamics(motion["q"], motion["v"], motion["tau"])
    assert np.abs(motion["a"] - a)[2:-2].max() < 0.05 * np.abs(a).max()


def test_a_delta_robot(cache: RobotCache) -> None:
    setup = Setup("delta_computed_torque", {"rate_hz": "250.0", "plant_rate_hz": "250.0"})
    run = run_for(open_bench("lockstep", setup, cache, [], 0), 0.2, "lockstep", 0, [])
    assert run.record.groups["error"].names == ("motor_1", "motor_2", "motor_3")
    run.check.tracking().below(1e-3)
    run.check.clean()

"""A robot that is commanded by positions or velocities: what is asserted of it, and where a wrong payload shows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError
from dyn_service.hil import WrongPayload
from dyn_service.hil.bench import RobotCache, Run, Setup, merged, open_bench, run_for
from dyn_service.hil.checks import Check
from dyn_service.hil.faults import Fault
from dyn_service.hil.signals import Record
from tests.conftest import ROOT
from tests.hil.records import record
from tests.phrases import naming

W, GAIN = 60.0, 10.0
"""rad/s of the drives and 1/s of the velocities' loop, as they are by default."""
SECONDS, QUILL = 0.7, "quill_joint"
"""The quill moves up and down, and carries what the hand carries."""
AWAY = {"inner_joint": 0.04, "outer_joint": -0.05, QUILL: 0.01, "roll_joint": 0.2}


def minimum_jerk() -> list[dict]:
    """A move of 0.5 s, with the velocities and accelerations of 10 s^3 - 15 s^4 + 6 s^5, from the middle of a SCARA."""
    robot = Robot.from_urdf(ROOT / "urdf" / "scara.urdf")
    q0 = dict(zip(robot.joint_names, robot.limits.middle(otherwise=robot.configuration.neutral), strict=True))
    points = []
    for s in np.linspace(0.1, 1.0, 10):
        shape = (
            10 * s**3 - 15 * s**4 + 6 * s**5,
            30 * s**2 * (1 - s) ** 2 / 0.5,
            60 * s * (1 - s) * (1 - 2 * s) / 0.25,
        )
        q, v, a = ([distance * shape[k] for distance in AWAY.values()] for k in range(3))
        ns = round(5e8 * s)
        positions = [q0[name] + distance for name, distance in zip(AWAY, q, strict=True)]
        points.append({"positions": positions, "velocities": v, "accelerations": a, "time_from_start": {"nanosec": ns}})
    points[-1]["velocities"] = [0.0] * 4
    return [{"joint_names": list(AWAY), "points": points}]


MOST = 10.0 / 3.0**0.5 / 0.25
"""Largest acceleration of such a move per way: 5.77 / T^2."""


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    goals = tmp_path_factory.mktemp("goals") / "goals.yaml"
    goals.write_text(json.dumps(minimum_jerk()), "utf-8")
    robot = Robot.from_urdf(ROOT / "urdf" / "scara.urdf")
    middle = robot.limits.middle(otherwise=robot.configuration.neutral).tolist()
    arguments = {"robot": str(ROOT / "urdf" / "scara.urdf"), "controller": "trajectory_following"}
    controller = {"goals": str(goals), "velocity_share": 1.0}
    return Setup(str(ROOT / "launch" / "robot.launch.yaml"), arguments, {"initial_position": middle}, controller)


@pytest.fixture(scope="module")
def cache() -> RobotCache:
    return RobotCache()


def run(setup: Setup, cache: RobotCache, interface: str, *faults: Fault) -> Run:
    setup_of_run = merged(setup, {"controller": {**setup.controller, "command_interface": interface}})
    return run_for(open_bench("lockstep", setup_of_run, cache, faults, 0), SECONDS, "lockstep", 0, faults)


def test_by_positions_it_lags_as_its_drives_do_and_says_what_was_commanded(setup: Setup, cache: RobotCache) -> None:
    check = run(setup, cache, "position").check
    assert [kind for kind in check.record.groups if kind.startswith("commanded_")] == ["commanded_position"]
    check.commanded().within_limits()
    check.stops().at_most(0)
    check.deadlines().at_most(0)
    for joint, distance in AWAY.items():
        lag = abs(distance) * MOST / W**2  # a / w^2
        check.tracking(joint).below(1.05 * lag)  # the acceleration has a curve: what the formula leaves out
        with pytest.raises(AssertionError, match=f"^{joint}: tracking error"):
            check.tracking(joint).below(0.7 * lag)
        commanded, reference = (check.record.signal(kind, joint) for kind in ("commanded_position", "reference"))
        assert commanded.unit == reference.unit
        finite = np.isfinite(commanded.values) & np.isfinite(reference.values)
        assert finite.mean() > 0.95
        # a command is of the time when it comes to act, and acts for 2 ms: so far may the reference be by then
        fastest = abs(distance) * 1.875 / 0.5
        assert np.abs(commanded.values - reference.values)[finite].max() < 4e-3 * fastest


def test_by_velocities_it_lags_as_the_loop_around_its_drives(setup: Setup, cache: RobotCache) -> None:
    check = run(setup, cache, "velocity").check
    check.commanded().within_limits(share=0.9)  # the plant takes no faster ones
    check.stops().at_most(0)
    for joint, distance in AWAY.items():
        lag = abs(distance) * MOST / (GAIN * W)  # a / (k w)
        check.tracking(joint).below(lag)
        with pytest.raises(AssertionError, match=f"^{joint}: tracking error"):
            check.tracking(joint).below(0.2 * lag)
        assert check.record.signal("commanded_velocity", joint).unit in ("rad/s", "m/s")


def test_a_wrong_payload_hides_in_the_positions_and_shows_in_the_efforts(setup: Setup, cache: RobotCache) -> None:
    """2 kg more weigh 19.6 N on the quill: its stiff drives give way by m g / (M w^2), and carry the rest."""
    mass, g = 2.0, 9.81
    clean, heavy = (run(setup, cache, "position", *faults).check for faults in ((), (WrongPayload("tool0", mass),)))
    at_rest = {"from_s": SECONDS - 0.05}
    effort_difference = (
        heavy.record.signal("effort", QUILL).values[-1] - clean.record.signal("effort", QUILL).values[-1]
    )
    assert abs(effort_difference) == pytest.approx(mass * g, rel=1e-3)
    by_effort = [float(np.abs(finished.record.signal("error", QUILL).values[-1])) for finished in (clean, heavy)]
    scara = Robot.from_urdf(ROOT / "urdf" / "scara.urdf")
    inertia = scara.mass_matrix(scara.configuration.neutral)[scara.joint_names.index(QUILL)].max()
    assert by_effort[1] == pytest.approx(mass * g / (inertia * W**2), rel=0.05)  # of the model, which is all they know
    hold = abs(clean.record.signal("effort", QUILL).values[-1])
    heavy.tracking().below(5e-3)
    clean.effort(QUILL, **at_rest).below(hold + 1.0)
    with pytest.raises(AssertionError, match=f"^{QUILL}: effort"):
        heavy.effort(QUILL, **at_rest).below(hold + 1.0)


def test_what_was_not_commanded_is_not_asserted(tmp_path: Path) -> None:
    uncommanded = record()
    with pytest.raises(InvalidArgumentError, match=naming("effort, position and velocity", "nothing")):
        Check(uncommanded).commanded()
    two_interfaces = record(commanded_effort=1.0, commanded_velocity=1.0)
    with pytest.raises(InvalidArgumentError, match="found effort and velocity"):
        Check(two_interfaces).commanded()
    velocities = record(commanded_velocity=lambda t: np.where(t < 0.2, np.nan, 1.4))
    velocities.save(tmp_path / "one.npz")
    check = Check(Record.load(tmp_path / "one.npz"))
    check.commanded("shoulder").within_limits()
    with pytest.raises(AssertionError, match="commanded velocity"):
        check.commanded("shoulder").within_limits(share=0.9)  # of 1.5

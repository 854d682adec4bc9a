"""Excitation: the limits at other times than those of the optimisation, its derivatives, its predictions by draws, the
goals that a controller follows, and refusals.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.interpolate import BPoly
from typer.testing import CliRunner

from dyn_service import Robot
from dyn_service.cli.main import app
from dyn_service.control.joint_goals import motion_limits, plan
from dyn_service.control.trajectory import Reference
from dyn_service.errors import DynError, FailedPreconditionError, InvalidArgumentError
from dyn_service.graph.nodes.controllers.trajectory_following import goals_of
from dyn_service.identification import excitation as module
from dyn_service.identification.excitation import (
    GRID,
    Excitation,
    ExcitationDesign,
    FourierMotion,
    KeepOut,
    design_excitation,
)
from tests.conftest import URDF
from tests.phrases import naming

WALL = KeepOut(link="tool0", point=(0.05, 0.0, 0.0), lower=(0.35, -1.0, -1.0), upper=(1.5, 1.0, 1.0))
"""A wall that the arm, straight along x at the start otherwise, may not enter."""
DESIGN: dict[str, Any] = {
    "period_s": 4.0,
    "harmonics": 3,
    "restarts": 1,
    "iterations": 60,
    "keep_out": (WALL,),
    "start": {"inner_joint": 1.5, "outer_joint": 0.5},
    "acceleration": {"outer_joint": 12.0},
    "effort": {"inner_joint": 15.0},
}

JERK = {"roll_joint": 20.0}


@lru_cache
def _robot(name: str) -> Robot:
    return Robot.from_file(URDF / f"{name}.urdf")


@lru_cache
def _excitation() -> Excitation:
    return design_excitation(_robot("scara"), ExcitationDesign(**DESIGN))


def _problem(**numbers: Any) -> module._Problem:
    return module._Problem(_robot("scara"), ExcitationDesign(**{**DESIGN, **numbers}))


def test_all_limits_hold_on_a_grid_ten_times_as_fine() -> None:
    robot, motion = _robot("scara"), _excitation().motion
    limits, design = robot.limits, ExcitationDesign()
    q, v, a = motion.sample(motion.times(10 * GRID))
    middle, half = 0.5 * (limits.upper + limits.lower), 0.5 * (limits.upper - limits.lower)
    acceleration, effort = np.array([np.inf, 12.0, np.inf, np.inf]), design.effort_share * limits.effort
    effort[0] = 15.0
    shares = {
        "position": np.abs(q - middle) / (design.position_share * half),
        "velocity": np.abs(v) / (design.velocity_share * limits.velocity),
        "acceleration": np.abs(a) / acceleration,
        "effort": np.abs(robot.inverse_dynamics(q, v, a)) / effort,
    }
    poses = robot.link_poses(q)
    tool = poses.links.index("tool0")
    point = poses.position[:, tool] + poses.rotation[:, tool] @ np.array(WALL.point)
    outside = np.maximum(WALL.lower - point, point - WALL.upper).max(axis=1)
    shares["keep-out"] = 1.0 - outside[:, None]
    peaks = {(peak.limit, peak.name): peak.share for peak in _excitation().peaks}
    for kind, share in shares.items():
        for k, largest in enumerate(share.max(axis=0)):
            name = "tool0" if kind == "keep-out" else robot.joint_names[k]
            assert largest <= min(1.0, peaks.get((kind, name), 0.0) + 1e-12), (kind, name)  # rounding
    # Each kind of limit is nearly used up somewhere, so that a limit that is left out is missed.
    near = {peak.limit for peak in _excitation().peaks if peak.share > 0.9}
    assert near == set(shares)


def _largest(motion: FourierMotion, order: int, joint: int) -> float:
    """The largest magnitude of a derivative of q at any time: at the roots of its own derivative, a polynomial in z =
    exp(i w t).
    """
    count = len(motion.sine)
    rate = 2.0 * np.pi / motion.period_s * np.arange(1, count + 1)
    # A sin + B cos is the real part of (B - i A) z^k, whose derivative to time is i k w times it.
    series = (motion.cosine[:, joint] - 1j * motion.sine[:, joint]) * (1j * rate) ** order
    slope = series * 1j * rate
    roots = np.roots([*slope[::-1], 0.0, *slope.conj()])
    on_circle = roots[np.abs(np.abs(roots) - 1.0) < 1e-6]
    powers = on_circle[:, None] ** np.arange(1, count + 1)
    return float(np.abs((powers @ series).real).max())


def test_rates_are_within_their_limits_at_all_times() -> None:
    """By the extremes of Fourier series, not on a grid; the jerk of the quintics between points of the goals, too."""
    robot, design = _robot("scara"), ExcitationDesign(**{**DESIGN, "jerk": JERK, "keep_out": (), "iterations": 12})
    plan = design_excitation(robot, design)
    motion, velocity = plan.motion, design.velocity_share * robot.limits.velocity
    assert all(_largest(motion, 1, k) <= velocity[k] for k in range(robot.nv))
    assert _largest(motion, 2, 1) <= 12.0
    assert 0.9 * JERK["roll_joint"] < _largest(motion, 3, 3) <= JERK["roll_joint"]
    assert {peak.name for peak in plan.peaks if peak.limit == "jerk"} == {"roll_joint"}
    t = np.linspace(0.1, 3.9, 7)
    rate = (motion.sample(t + 1e-5).a - motion.sample(t - 1e-5).a) / 2e-5
    np.testing.assert_allclose(motion.jerk(t), rate, atol=1e-5 * np.abs(rate).max())
    for goal in plan.goals():
        points = [(p.positions, p.velocities, p.accelerations) for p in goal.points]
        start = ([6.0] * 4, *points[-1][1:]) if len(points) == 1 else points[-1]  # far from the start
        times = [0.0, *(p.time_from_start.sec + 1e-9 * p.time_from_start.nanosec for p in goal.points)]
        values = np.array([start, *points])[..., 3]
        jerk = BPoly.from_derivatives(times, values).derivative(3)(np.linspace(0.0, times[-1], 20_001))
        # 20 points per period of the highest harmonic: h^3 / 60 times the sixth derivative, 5e-4 of the jerk.
        assert np.abs(jerk).max() <= 1.001 * JERK["roll_joint"]


def test_a_jerk_for_all_joints_and_that_of_the_file() -> None:
    text = (URDF / "scara.urdf").read_text()
    velocity = ExcitationDesign(**{**DESIGN, "jerk": 9.0})
    assert module._rate_limits(_robot("scara"), velocity)[2].tolist() == [9.0] * 4
    robot = Robot.from_text(text.replace("<limit ", '<limit jerk="30" ').replace("<robot ", '<robot version="1.2" '))
    assert module._rate_limits(robot, ExcitationDesign(jerk=JERK))[2].tolist() == [30.0, 30.0, 30.0, 20.0]
    with pytest.raises(InvalidArgumentError, match=r"jerk of joint 'inner_joint' must be .* at most 30, found 31"):
        module._rate_limits(robot, ExcitationDesign(**{**DESIGN, "jerk": 31.0}))


def test_it_starts_and_ends_at_rest() -> None:
    motion = _excitation().motion
    q, v, a = motion.sample(np.array([0.0, motion.period_s]))
    assert np.allclose(q, motion.start, atol=1e-12)  # rounding of sines
    assert np.abs(v).max() < 1e-12
    assert np.abs(a).max() < 1e-11
    assert motion.start[:2].tolist() == [1.5, 0.5]


def test_random_motions_within_the_same_limits_make_less_known() -> None:
    plan = _excitation()
    assert plan.random is not None
    # The geometric mean of the axes of the confidence ellipsoid is half as long, up to what 60 iterations leave.
    assert plan.log_determinant > plan.random.log_determinant + 2.0 * len(plan.parameters) * np.log(1.6)
    assert max(peak.share for peak in plan.random.peaks) <= 1.0


def test_the_condition_number_is_an_objective_too() -> None:
    plan = design_excitation(
        _robot("scara"), ExcitationDesign(**{**DESIGN, "objective": "condition", "iterations": 30})
    )
    assert plan.random is not None
    assert plan.condition < min(plan.random.condition, _excitation().condition)


def test_errors_of_draws_are_those_predicted() -> None:
    """Efforts of the inverse dynamics, not of the columns, with noise; each parameter has its own error."""
    plan, robot = _excitation(), _robot("scara")
    assert plan.dependent == ("quill_joint.offset",)
    motion, rng = plan.motion, np.random.default_rng(0)
    states = motion.sample(motion.times(plan.samples // plan.periods))
    Y = (plan.rows(states) / plan.noise[:, None]).reshape(-1, len(plan.parameters))
    effort = robot.inverse_dynamics(*states) / plan.noise
    noise = rng.normal(size=(100, plan.periods, *effort.shape)).mean(axis=1)
    estimates = np.linalg.lstsq(Y, (effort + noise).reshape(100, -1).T, rcond=None)[0].T
    ratio = (estimates - plan.values) / plan.standard_errors
    # 100 draws: a standard deviation is known to 7 %, the largest of 22 within 4 of these; a mean to 0.1.
    assert np.abs(ratio.std(axis=0) - 1.0).max() < 0.28
    assert abs(ratio.std() - 1.0) < 0.04
    assert np.abs(ratio.mean(axis=0)).max() < 0.4


@pytest.mark.parametrize("objective", ["determinant", "condition"])
def test_the_gradient_is_that_of_differences(objective: str) -> None:
    # Asymmetric friction and no width below 1e-5, so that the difference is exact enough for 1e-5.
    problem = _problem(objective=objective, friction=("viscous", "coulomb", "asymmetric"))
    rng = np.random.default_rng(1)
    x = problem.coefficients(problem.random_motion(rng))
    gradient = np.einsum("ktr,ktj->rj", problem.basis[:3], problem.objective(x)[1])
    for _ in range(3):
        direction, step = rng.normal(size=x.shape), 1e-8
        after, before = (problem.objective(x + sign * step * direction)[0] for sign in (1.0, -1.0))
        expected = float(np.sum(gradient * direction))
        scale = float(np.linalg.norm(gradient) * np.linalg.norm(direction))
        assert abs((after - before) / (2.0 * step) - expected) < 1e-5 * scale


def test_slopes_of_limits_are_those_of_differences() -> None:
    problem, step = _problem(jerk=50.0), 1e-6
    motion, t = problem.motion(problem.coefficients(_excitation().motion)), np.linspace(0.3, 3.7, 5)
    states = np.array([*motion.sample(t), motion.jerk(t)])
    slopes = problem.limits(Reference(*states[:3]), states[3])[1]
    for k in range(4):
        for j in range(4):
            change = np.zeros((4, 1, 4))
            change[k, 0, j] = step
            sides = [states + sign * change for sign in (1.0, -1.0)]
            high, low = (problem.limits(Reference(*x[:3]), x[3])[0] for x in sides)
            # second differences of efforts, and rounding
            assert np.allclose((high - low) / (2.0 * step), slopes[:, :, k, j], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "numbers", "error", "values"),
    [
        ("four_bar", {}, FailedPreconditionError, ("four_bar", "closed loops")),
        ("scara", {"start": {"inner_joint": 0.0, "outer_joint": 0.0}}, FailedPreconditionError, ("tool0", "keep-out")),
        ("scara", {"effort": {"quill_joint": 5.0}}, FailedPreconditionError, ("quill_joint", "effort", "start")),
        ("scara", {"start": {"inner_join": 0.0}}, InvalidArgumentError, ("inner_join", "inner_joint")),
        ("scara", {"friction": ("stribeck",)}, InvalidArgumentError, ("stribeck", "coulomb")),
        ("scara", {"velocity": {"inner_joint": 9.0}}, InvalidArgumentError, ("inner_joint", "velocity", 9, "6.73697")),
        ("scara", {"harmonics": 1}, InvalidArgumentError, ("harmonics", 1)),
        ("scara", {"velocity_share": 1.5}, InvalidArgumentError, ("velocity_share", 1.5)),
        ("scara", {"noise": {"roll_joint": -1.0}}, InvalidArgumentError, ("roll_joint", "noise", -1)),
    ],
)
def test_refusals(name: str, numbers: dict[str, Any], error: type[DynError], values: tuple[Any, ...]) -> None:
    design = {} if name != "scara" else {**DESIGN, **numbers}
    with pytest.raises(error, match=naming(*values)):
        design_excitation(_robot(name), ExcitationDesign(**design))


def test_a_joint_without_a_motor_is_refused() -> None:
    text = (URDF / "pendulum.urdf").read_text().replace('effort="20"', 'effort="0"')
    with pytest.raises(FailedPreconditionError, match=naming("hinge", "motor")):
        design_excitation(Robot.from_text(text))


def test_a_floating_robot_is_refused() -> None:
    with pytest.raises(FailedPreconditionError, match=naming("floating")):
        design_excitation(Robot.from_file(URDF / "scara.urdf", root="floating"))


def _arguments(folder: Path) -> list[str]:
    design = folder / "design.yaml"
    design.write_text("{period_s: 4, harmonics: 3, restarts: 5, periods: 2, iterations: 30}")
    return ["excite", "scara", "--design", str(design), "--restarts", "1", "-o", str(folder / "motion.yaml")]


def test_the_command_writes_goals_that_are_the_motion(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*_arguments(tmp_path), "--json", "--noise", "0.1"], catch_exceptions=False)
    robot = _robot("scara")
    goals = goals_of(tmp_path / "motion.yaml", robot.configuration)
    assert len(goals) == 3
    parameters = yaml.safe_load((tmp_path / "motion.params.yaml").read_text())["controller"]["ros__parameters"]
    assert (parameters["path_tolerance"], parameters["goal_tolerance"]) == (0.0, 0.0)
    design = ExcitationDesign(period_s=4.0, harmonics=3, restarts=1, periods=2, iterations=30, noise=0.1)
    expected = design_excitation(robot, design)
    document = json.loads(result.stdout)
    assert document["noise"] == [0.1] * 4
    assert document["duration_s"] == 8.0
    assert [row["standard_error"] for row in document["parameters"]] == expected.standard_errors.tolist()
    huge = np.full(4, 1e9)
    limits = motion_limits(robot.configuration, robot.limits, 1.0, huge, huge)
    zero = np.zeros(4)
    followed = plan(goals[1], Reference(expected.motion.start, zero, zero), robot.configuration, limits)
    times = np.linspace(0.0, 4.0, 997)
    for x, y in zip(followed.sample(times), expected.motion.sample(times), strict=True):
        # quintics between 20 points per harmonic: (2 pi / 20)^4 / 1920 of accelerations
        assert np.abs(x - y).max() < 1e-5 * max(1.0, np.abs(y).max())


@pytest.mark.slow
def test_goals_are_not_aborted_on_a_robot_that_differs_from_its_file(tmp_path: Path) -> None:
    """With 6.5 kg more at the outer link, it strays by 0.12 rad, more than the default tolerances of goals."""
    numbers = ["--period", "4", "--harmonics", "3", "--restarts", "1", "--periods", "2"]
    output = ["-o", str(tmp_path / "motion.yaml")]
    CliRunner().invoke(app, ["excite", "scara", *numbers, *output], catch_exceptions=False)
    parameters = yaml.safe_load((tmp_path / "motion.params.yaml").read_text())
    payload = {"link": "outer_link", "mass": 6.5, "com": [0.1, 0.0, 0.0]}
    parameters["plant"]["ros__parameters"]["overlay"] = {"payloads": [payload]}
    (tmp_path / "motion.params.yaml").write_text(yaml.safe_dump(parameters))
    words = ["robot:=scara", "controller:=trajectory_following", "params:=motion.params.yaml", "clock:=lockstep"]
    command = [sys.executable, "-m", "dyn_service", "launch", "robot", *words, "--duration", "14", "--report", "report"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=400, check=False)  # the error is not clean
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    goals = report["goals"]
    assert report["tracking"]["max"] > 0.05  # the default path_tolerance
    assert (goals["aborted"], goals["succeeded"]) == (0, 3)


@pytest.mark.slow
def test_a_launch_follows_and_records_it(tmp_path: Path) -> None:
    from dyn_service.graph.bags import recording

    def dyn(*words: str) -> None:
        command = [sys.executable, "-m", "dyn_service", *words]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=400)

    dyn(*_arguments(tmp_path))
    words = ["robot:=scara", "controller:=trajectory_following", "params:=motion.params.yaml", "clock:=lockstep"]
    dyn("launch", "robot", *words, "--duration", "12", "--report", "report", "--check")
    robot = _robot("scara")
    motion = recording(robot, tmp_path / "report")
    expected = design_excitation(
        robot, ExcitationDesign(period_s=4.0, harmonics=3, restarts=1, periods=2, iterations=30)
    ).motion
    begin = motion["t"][np.flatnonzero(np.abs(motion["v"]).max(axis=1) > 1e-3)[0]]
    t = motion["t"][(motion["t"] > begin) & (motion["t"] < begin + 3.9)]
    recorded = np.column_stack([np.interp(t, motion["t"], q) for q in motion["q"].T])
    # The begin of the motion is searched in steps of 1 ms, in which joints move by up to 0.01 (10 per s).
    errors = [np.abs(recorded - expected.sample(t - begin + shift).q).max() for shift in np.linspace(0.0, 0.2, 201)]
    assert min(errors) < 0.01

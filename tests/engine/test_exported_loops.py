"""Exported functions and FMUs of robots with closed loops against `Robot`, at closed and at other states."""

from __future__ import annotations

import ctypes
import re
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyn_service import Robot, Wrench
from dyn_service.errors import FailedPreconditionError, UnimplementedError
from tests.conftest import URDF
from tests.engine.test_fmu import Unit
from tests.kernels.test_export import needs_compiler, self_test
from tests.loops import Array, four_bar, random_mechanism, with_drives

QUERIES = (
    "forward_dynamics",
    "constraint_forces",
    "inverse_dynamics",
    "bias_forces",
    "gravity_forces",
    "computed_torque",
    "energy",
)
STEPS = ("step:semi_implicit_euler", "step:explicit_euler", "step")


class Functions:
    """The functions of a folder, called by ctypes."""

    def __init__(self, folder: Path, robot: Robot) -> None:
        self._library = ctypes.CDLL(str(next(folder.glob("lib*"))))
        self._header, self._prefix = next(folder.glob("*.h")).read_text("utf-8"), robot.name

    def __call__(self, function: str, *inputs: Array | None, sizes: tuple[int, ...]) -> list[Array]:
        name = f"{self._prefix}_{function}"
        size = re.search(rf"define {name.upper()}_W (\d+)", self._header)
        assert size is not None
        outputs = [np.full(n, 7.0) for n in sizes]
        arrays = [None if x is None else np.ascontiguousarray(x, dtype=float) for x in inputs]
        arrays += [*outputs, np.empty(int(size[1]))]
        pointers = [None if x is None else ctypes.c_void_p(x.ctypes.data) for x in arrays]
        assert self._library[f"{name}_eval"](*pointers) == 0
        return outputs


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Robot, Path]:
    robot, folder = Robot.from_file(URDF / "four_bar.urdf"), tmp_path_factory.mktemp("four_bar")
    robot.export([*QUERIES, *STEPS], folder, wrenches=["coupler"])
    return robot, folder


@needs_compiler
def test_golden_numbers_are_those_of_the_robot(exported: tuple[Robot, Path]) -> None:
    robot, folder = exported
    done = subprocess.run([self_test(folder, robot.name, linked=["-lm"])], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("4 states, good") == len(QUERIES) + len(STEPS)
    assert "3 pin" in (folder / "four_bar.h").read_text("utf-8")
    assert "results are NaN where a loop is open" in (folder / "four_bar.h").read_text("utf-8")


def test_states_beyond_the_golden_ones(exported: tuple[Robot, Path]) -> None:
    """Dynamics and steps under a wrench; the answers are those of `Robot` at each state, and steps end closed."""
    robot, call = exported[0], Functions(exported[1], exported[0])
    rng = np.random.default_rng(3)
    for seed in range(4):
        q = robot.assemble(robot.random_configuration(seed=seed))
        v = robot.independent_motion(q, np.zeros(3)).jacobian[:, 0] * rng.normal()
        tau, W = np.array([rng.normal(), 0.0, 0.0]), rng.normal(size=(1, 6))
        wrench = Wrench("coupler", W[0, :3], W[0, 3:], frame="coupler")
        (a,) = call("forward_dynamics", q, v, tau, W, None, sizes=(3,))
        # of another order of operations
        np.testing.assert_allclose(a, robot.forward_dynamics(q, v, tau, wrenches=wrench), rtol=1e-10)
        (effort,) = call("inverse_dynamics", q, v, a, W, None, sizes=(3,))
        np.testing.assert_allclose(effort, tau, rtol=0, atol=1e-10 * np.abs(tau).max())
        wrench_rows, actuation, _ = call("constraint_forces", q, v, tau, W, None, sizes=(24, 4, 24))
        loads = robot.constraint_forces(q, v, tau, wrenches=wrench)
        # the pin in a plane blocks three directions that the other hinges block: loads of least squares
        assert np.abs(wrench_rows.reshape(4, 6) - loads.wrench).max() < 1e-10 * np.abs(loads.wrench).max()
        np.testing.assert_allclose(actuation, loads.actuation, rtol=0, atol=1e-10)
        for step in ("explicit_euler", "semi_implicit_euler", "rk4"):
            name = "step" if step == "rk4" else f"step_{step}"
            q_next, v_next = call(name, q, v, tau, np.array([1e-3]), W, None, sizes=(3, 3))
            state = robot.step(q, v, tau, 1e-3, integrator=step, wrenches=wrench)
            np.testing.assert_allclose(q_next, state.q, rtol=0, atol=1e-12)
            np.testing.assert_allclose(v_next, state.v, rtol=1e-10)
            assert np.abs(robot.loop_error(q_next)).max() < 1e-14


def test_states_without_an_answer_are_nan(exported: tuple[Robot, Path]) -> None:
    robot, call = exported[0], Functions(exported[1], exported[0])
    q, zeros = robot.assemble(robot.neutral()), np.zeros(3)
    step = np.array([1e-3])
    tau = np.array([0.1, 0.0, 0.0])
    G = robot.independent_motion(q, zeros).jacobian[:, 0]
    cases = {
        "answered": (q, G, tau, True),
        "open": (q + np.array([0.0, 0.0, 1e-3]), G, tau, False),
        "torn": (q, G + np.array([0.0, 0.0, 1e-3]), tau, False),
        "passive": (q, G, np.array([0.1, 0.0, 1e-9]), False),
        "signed zero": (q, G, np.array([0.1, 0.0, -0.0]), True),
    }
    for name, (position, v, effort, counts) in cases.items():
        results = call("forward_dynamics", position, v, effort, None, None, sizes=(3,))
        for function in ("step", "step_semi_implicit_euler"):
            results += call(function, position, v, effort, step, None, None, sizes=(3, 3))
        if name != "passive":
            results += call("bias_forces", position, v, None, sizes=(3,))
            results += call("energy", position, v, None, sizes=(1, 1, 1, 1))
        for result in results:
            assert (np.isfinite(result) if counts else np.isnan(result)).all(), name


@pytest.mark.parametrize(
    "seed",
    [
        3,
        pytest.param(0, marks=pytest.mark.wide),
        pytest.param(8, marks=pytest.mark.wide),
        pytest.param(10, marks=pytest.mark.wide),
    ],
)
def test_random_mechanisms(seed: int, tmp_path: Path) -> None:
    """Spatial loops, several loops, floating bases: forward dynamics, loads, and a step."""
    m = random_mechanism(seed)
    robot, rng = m.robot, np.random.default_rng(seed)
    robot.export(["forward_dynamics", "constraint_forces", "step:semi_implicit_euler"], tmp_path)
    call = Functions(tmp_path, robot)
    motion = robot.independent_motion(m.q, np.zeros(robot.nv))
    v = motion.jacobian @ rng.normal(size=motion.jacobian.shape[1])
    drives = robot.evaluator.closed_loops.driven  # type: ignore[union-attr]
    tau = rng.normal(size=robot.nv) * (1.0 if drives is None else drives)
    (a,) = call("forward_dynamics", m.q, v, tau, None, sizes=(robot.nv,))
    expected = robot.forward_dynamics(m.q, v, tau)
    assert np.abs(a - expected).max() < 1e-9 * np.abs(expected).max()
    count, loads = len(robot.all_joint_names), robot.constraint_forces(m.q, v, tau)
    rows, *_ = call("constraint_forces", m.q, v, tau, None, sizes=(6 * count, count, 6 * count))
    assert np.abs(rows.reshape(count, 6) - loads.wrench).max() < 1e-9 * np.abs(loads.wrench).max()
    q_next, v_next = call("step_semi_implicit_euler", m.q, v, tau, np.array([1e-3]), None, sizes=(robot.nq, robot.nv))
    state = robot.step(m.q, v, tau, 1e-3, integrator="semi_implicit_euler")
    # Newton's steps by another formula of the gap end at a closed position that differs by the square of the gap.
    assert np.abs(q_next - state.q).max() < 1e-9
    assert np.abs(v_next - state.v).max() < 1e-8 * np.abs(state.v).max()
    gap = robot.evaluator.closed_loops.gaps(robot.evaluator.closed_loops.joints.state(q_next, None))  # type: ignore[union-attr]
    assert gap.max() < 1e-12


def test_what_is_not_exported(tmp_path: Path) -> None:
    robot = Robot.from_file(URDF / "four_bar.urdf")
    for query in ("link_motion", "operational_space", "inverse_dynamics_regressor", "energy+momentum"):
        with pytest.raises(UnimplementedError, match="which has closed loops, is not exported"):
            robot.export([query], tmp_path / "refused")
    for options in ({"payload": ["coupler"]}, {"friction": True}):
        with pytest.raises(UnimplementedError, match=r"no payload and no friction: export robot\.with_payload"):
            robot.export(["forward_dynamics"], tmp_path / "refused", **options)  # type: ignore[arg-type]
    with pytest.raises(FailedPreconditionError, match="step_derivatives has no answer"):
        robot.export([], tmp_path / "refused", acados="rk4")
    m = four_bar()
    other = Robot(with_drives(m.description, m.robot.joint_names[1:2]))
    if not other.evaluator.closed_loops.drives_determine_motion:  # type: ignore[union-attr]
        with pytest.raises(FailedPreconditionError, match="not its independent ones"):
            other.export(["inverse_dynamics"], tmp_path / "refused")
    undriven = Robot(replace(m.description, joints=tuple(replace(j, driven=None) for j in m.description.joints)))
    with pytest.raises(FailedPreconditionError, match=r"forward_dynamics is exported"):
        undriven.export(["inverse_dynamics"], tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


@needs_compiler
@pytest.mark.parametrize("version", [2, 3])
def test_fmu_moves_as_simulate(version: int, tmp_path: Path) -> None:
    """Its start is assembled; it ends with an error where the loops are open; efforts of passive joints are bounded."""
    robot = Robot.from_file(URDF / "four_bar.urdf")
    q, tau = robot.assemble(robot.neutral()), np.array([0.002, 0.0, 0.0])
    motion = robot.simulate(q, np.zeros(3), tau, dt=1e-3, steps=60, integrator="rk4")
    zipfile.ZipFile(robot.export_fmu(tmp_path / "four_bar.fmu", version=version)).extractall(tmp_path)
    text = (tmp_path / "modelDescription.xml").read_text("utf-8")
    assert re.search(r'name="effort.rocker_joint"[^<]*(<Real )?[^<]*min="0.0" max="0.0"', text)
    unit = Unit(tmp_path)
    np.testing.assert_array_equal(unit.get("initial_position"), q)
    unit.begin(q, np.zeros(3), tau)
    for k in range(60):
        assert unit.step(k * 1e-3, 1e-3) == 0
        np.testing.assert_allclose(unit.get("position"), motion.q[k + 1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(unit.get("velocity"), motion.v[-1], rtol=0, atol=1e-10)
    for values in ({"position": q + 0.01, "effort": tau}, {"position": q, "effort": tau[::-1]}):
        other = Unit(tmp_path)
        other.begin(values["position"], np.zeros(3), values["effort"])
        assert other.step(0.0, 1e-3) == 3
        assert "is not finite after t = 0 s: a loop is open or opens, a joint without a drive" in other.messages[0]
        assert other.messages[0].endswith("begin at a closed state")
    options: dict[str, Any]
    for options in ({"payload": "coupler"}, {"friction": True}):
        with pytest.raises(UnimplementedError, match="no parameters of payload and friction"):
            robot.export_fmu(tmp_path / "refused.fmu", **options)


@needs_compiler
def test_fmu_checks_the_damping_of_its_step(tmp_path: Path) -> None:
    """One freedom: the rate of the crank's damping d is d / (G^T M G), and rk4 is stable up to 2.785 of it."""
    name = '<joint name="crank_joint" type="continuous">'
    text = (URDF / "four_bar.urdf").read_text("utf-8").replace(name, f'{name}<dynamics damping="1"/>')
    robot = Robot.from_urdf(text)
    q, rest = robot.assemble(robot.neutral()), np.zeros(3)
    longest = 2.785 * float(robot.independent_motion(q, rest).mass_matrix[0, 0])
    zipfile.ZipFile(robot.export_fmu(tmp_path / "damped.fmu", dt=1e-5)).extractall(tmp_path)
    for share, status in ((0.99, 0), (1.02, 3)):
        unit = Unit(tmp_path)
        unit.begin(q, rest, rest, dt=share * longest)
        assert unit.step(0.0, share * longest) == status, unit.messages
    assert "is unstable at t = 0 s" in unit.messages[0]

"""Simulation of robots with closed loops: order, energy, drift, friction, stops, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from dyn_service import Client, Contact, Inertial, Overlay, Robot, Server, Wrench
from dyn_service.api.results import Trajectory
from dyn_service.errors import DynError, FailedPreconditionError, InvalidArgumentError, UnimplementedError
from tests.conftest import URDF

ROUNDED = 1e-12
"""rad | m, gaps of loops in the files' lengths: Newton's method ends below 1e-14 of the robot's length."""


@pytest.fixture(scope="module")
def four_bar() -> Robot:
    return Robot.from_file(URDF / "four_bar.urdf")


@pytest.fixture(scope="module")
def rubbing() -> Robot:
    """A four-bar with damping and friction in its three joints."""
    text = (URDF / "four_bar.urdf").read_text("utf-8")
    return Robot.from_text(
        text.replace('type="continuous">', 'type="continuous"><dynamics damping="5e-4" friction="3e-4"/>')
    )


def start(robot: Robot) -> tuple[Any, Any]:
    return robot.assemble(robot.configuration.neutral), np.zeros(robot.nv)


def energies(robot: Robot, motion: Trajectory) -> Any:
    energy = robot.energy(motion.q, motion.v)
    return np.asarray(energy.kinetic) + np.asarray(energy.potential)


@pytest.mark.parametrize(("name", "dt"), [("four_bar", 4e-3), ("delta", 8e-3)])
def test_rk4_keeps_its_order_and_the_loops(name: str, dt: float) -> None:
    """Half of the step leaves 1/16 of the energy error; loops are as closed after the last step as after the first."""
    robot, errors = Robot.from_file(URDF / f"{name}.urdf"), []
    for parts in (1, 2):
        motion = robot.simulate(*start(robot), dt=dt / parts, steps=round(0.2 / dt) * parts, integrator="rk4")
        energy = energies(robot, motion)
        errors.append(np.abs(energy - energy[0]).max())
        assert np.abs(robot.loop_error(motion.q[1:])).max() < ROUNDED
    kinetic = np.max(robot.energy(motion.q, motion.v).kinetic)
    assert errors[0] < 1e-4 * kinetic
    assert 12.0 < errors[0] / errors[1] < 20.0


@pytest.mark.parametrize(("name", "dt"), [("four_bar", 1e-2), ("delta", 8e-3)])
def test_implicit_midpoint_is_symmetric_and_bounds_the_energy(name: str, dt: float) -> None:
    """Order 2 against rk4; the step from the end with -v leads back to the start; the energy's error does not grow."""
    robot, errors = Robot.from_file(URDF / f"{name}.urdf"), []
    q, v = start(robot)
    exact = robot.simulate(q, v, dt=1e-3, steps=160, integrator="rk4")
    for parts in (1, 2):
        motion = robot.simulate(q, v, dt=dt / parts, steps=round(0.16 / dt) * parts, integrator="implicit_midpoint")
        errors.append(np.abs(robot.difference(exact.q[-1], motion.q[-1])).max())
        assert np.abs(robot.loop_error(motion.q[1:])).max() < ROUNDED
    assert 3.5 < errors[0] / errors[1] < 4.5
    back = robot.simulate(
        motion.q[-1], -motion.v[-1], dt=dt / 2, steps=len(motion.q) - 1, integrator="implicit_midpoint"
    )
    # each step solves its equation to rounding, some 1e-14, which 40 steps of a falling linkage magnify
    assert np.abs(robot.difference(q, back.q[-1])).max() < 1e-10
    if name == "four_bar":
        motion = robot.simulate(q, v, dt=dt, steps=300, integrator="implicit_midpoint")
        energy = np.abs(energies(robot, motion) - energies(robot, motion)[0])
        assert energy[-100:].max() < 1.2 * energy[:100].max()  # rk4 loses in every swing
        assert energy.max() < 0.02 * np.max(robot.energy(motion.q, motion.v).kinetic)


def test_implicit_midpoint_turns_a_floating_linkage() -> None:
    """The momentum of a joint with several degrees of freedom turns with it: order 2, without the term 1."""
    robot, errors = Robot.from_file(URDF / "four_bar.urdf", root="floating"), []
    q, _ = start(robot)
    v = np.array([2.0, -1.0, 1.5, 0.3, 0.2, -0.1, 0.0, 0.0, 0.0])
    exact = robot.simulate(q, v, dt=1e-3, steps=40, integrator="rk4")
    for dt in (4e-3, 2e-3):
        motion = robot.simulate(q, v, dt=dt, steps=round(0.04 / dt), integrator="implicit_midpoint")
        errors.append(np.abs(robot.difference(exact.q[-1], motion.q[-1])).max())
    assert 3.5 < errors[0] / errors[1] < 4.5


def test_implicit_midpoint_has_the_loads_of_the_loops(rubbing: Robot) -> None:
    """Efforts, a wrench, damping and friction: the motion tends to that of rk4, alone, in a batch, and in parts."""
    q, _ = start(rubbing)
    v = rubbing.independent_motion(q, np.zeros(3)).jacobian[:, 0] * 4.0
    loads: dict[str, Any] = {"wrenches": [Wrench("coupler", force=np.array([0.02, 0.0, 0.01]))]}
    exact = rubbing.simulate(q, v, [0.006, 0.0, 0.0], dt=5e-4, steps=80, integrator="rk4", **loads)
    motion, errors = exact, []
    for dt in (4e-3, 2e-3):
        motion = rubbing.simulate(
            [q, q], [v, 0.5 * v], [0.006, 0.0, 0.0], dt=dt, steps=round(0.04 / dt), integrator="implicit_midpoint",
            **loads,
        )  # fmt: skip
        errors.append(np.abs(motion.v[0, -1] - exact.v[-1]).max())
    assert 3.0 < errors[0] / errors[1] < 5.0
    assert motion.p is not None
    rest = rubbing.simulate(
        motion.q[0, 8], motion.v[0, 8], [0.006, 0.0, 0.0], p0=motion.p[0, 8], dt=2e-3, steps=12, first_step=8,
        integrator="implicit_midpoint", **loads,
    )  # fmt: skip
    np.testing.assert_array_equal(rest.q[-1], motion.q[0, -1])


def test_step_is_that_of_simulate(rubbing: Robot) -> None:
    """All formulas, batches, wrenches, overlays; its end is closed, and open states are refused."""
    q, _ = start(rubbing)
    G, tau = rubbing.independent_motion(q, np.zeros(3)).jacobian[:, 0], np.array([0.004, 0.0, 0.0])
    v = np.stack([2.0 * G, -G])
    loads: dict[str, Any] = {"wrenches": [Wrench("coupler", force=np.array([0.02, 0.0, 0.01]))]}
    heavy = Overlay(links={"coupler": Inertial(mass=0.3)})
    for integrator in ("rk4", "semi_implicit_euler", "explicit_euler"):
        for robot, overlay in ((rubbing, None), (rubbing.overlaid(heavy), heavy)):
            state = rubbing.step(q, v, tau, 2e-3, integrator=integrator, overlay=overlay, **loads)
            motion = robot.simulate(q, v, tau, dt=2e-3, steps=1, integrator=integrator, **loads)
            np.testing.assert_array_equal(state.q, motion.q[:, -1])
            np.testing.assert_array_equal(state.v, motion.v[:, -1])
            assert np.abs(rubbing.loop_error(state.q)).max() < ROUNDED
    with pytest.raises(InvalidArgumentError, match="loop of joint 'pin' open"):
        rubbing.step(q + 0.1, v, tau, 2e-3)
    with pytest.raises(InvalidArgumentError, match="'rocker_joint', which has no drive"):
        rubbing.step(q, v, tau[::-1], 2e-3)


def test_motion_is_that_of_the_independent_velocity(four_bar: Robot) -> None:
    """SciPy integrates the one equation of the crank, with positions from `assemble`; batches and parts agree."""
    q0, _ = start(four_bar)
    tau, speed = np.array([0.004, 0.0, 0.0]), 3.0
    v0 = four_bar.independent_motion(q0, np.zeros(3)).jacobian[:, 0] * speed

    def rates(t: float, x: Any) -> list[float]:
        guess = q0 + np.array([x[0] - q0[0], 0.0, 0.0])
        q = four_bar.assemble(guess, fixed=["crank_joint"])
        G = four_bar.independent_motion(q, np.zeros(3)).jacobian
        motion = four_bar.independent_motion(q, G[:, 0] * x[1])
        return [x[1], float((motion.jacobian.T @ tau - motion.bias_forces)[0] / motion.mass_matrix[0, 0])]

    reference = solve_ivp(rates, (0.0, 0.1), [q0[0], speed], rtol=1e-9, atol=1e-11).y[:, -1]
    q, v = np.stack([q0, q0]), np.stack([v0, np.zeros(3)])
    motions = {name: four_bar.simulate(q, v, tau, dt=2e-3, steps=50, integrator=name) for name in ("rk4", "auto")}

    def function(t: float, q: Any, v: Any) -> Any:
        four_bar.gravity_forces(q)  # functions get closed states at all stages
        return tau

    motions["adaptive"] = four_bar.simulate(q, v, function, dt=5e-2, steps=2, integrator="adaptive")
    for name, motion in motions.items():
        tolerance = 1e-8 if name == "adaptive" else 2e-6  # the error of 50 steps of rk4, 9e-7
        np.testing.assert_allclose([motion.q[0, -1, 0], motion.v[0, -1, 0]], reference, rtol=0, atol=tolerance)
    whole, half = motions["rk4"], four_bar.simulate(q, v, tau, dt=2e-3, steps=25, integrator="rk4")
    rest = four_bar.simulate(half.q[:, -1], half.v[:, -1], tau, dt=2e-3, steps=25, integrator="rk4", first_step=25)
    np.testing.assert_array_equal(rest.q[:, -1], whole.q[:, -1])


@pytest.mark.parametrize(("integrator", "tolerance"), [("rk4", 1e-7), ("stick_slip", 2e-2)])
def test_power_balance(rubbing: Robot, integrator: Any, tolerance: float) -> None:
    """E' - E + stored = work - dissipated, under efforts, wrenches, damping, friction and a stop."""
    wrench = Wrench("coupler", force=np.array([0.02, 0.0, 0.01]))
    motion = rubbing.simulate(
        *start(rubbing), [-0.006, 0.0, 0.0], wrenches=[wrench], dt=1e-3, steps=120, integrator=integrator,
        velocity_limits=True,
    )  # fmt: skip
    assert motion.work is not None
    assert motion.stored is not None
    assert motion.dissipated is not None
    changes = np.diff(energies(rubbing, motion) + motion.stored.sum(axis=-1))
    powers = (motion.work.sum(axis=-1) - motion.dissipated.sum(axis=-1))[1:]
    assert np.abs(np.sum(changes - powers)) < tolerance * np.abs(motion.work).sum()
    assert np.abs(rubbing.loop_error(motion.q[1:])).max() < ROUNDED


def test_stick_slip_converges_and_sticks(four_bar: Robot, rubbing: Robot) -> None:
    """Without friction it tends to rk4 with its order; with friction the linkage comes to rest, to the last bit."""
    exact = four_bar.simulate(*start(four_bar), dt=1e-3, steps=100, integrator="rk4")
    errors = []
    for dt in (2e-3, 1e-3):
        motion = four_bar.simulate(*start(four_bar), dt=dt, steps=round(0.1 / dt), integrator="stick_slip")
        errors.append(np.abs(motion.q[-1] - exact.q[-1]).max())
    assert 1.8 < errors[0] / errors[1] < 2.2
    motion = rubbing.simulate(*start(rubbing), dt=5e-3, steps=300, every=30, integrator="stick_slip")
    assert np.abs(motion.v).max() > 1.0
    assert not motion.v[-2:].any()
    np.testing.assert_array_equal(motion.q[-1], motion.q[-2])
    assert np.abs(rubbing.loop_error(motion.q[1:])).max() < ROUNDED


@pytest.mark.parametrize("integrator", ["rk4", "stick_slip"])
def test_a_stop_of_a_passive_joint_holds_the_mechanism(integrator: Any) -> None:
    text = (URDF / "four_bar.urdf").read_text("utf-8")
    text = text.replace('<joint name="rocker_joint" type="continuous">', '<joint name="rocker_joint" type="revolute">')
    head, _, tail = text.rpartition('<limit effort="0" velocity="100"/>')
    robot = Robot.from_text(f'{head}<limit lower="-2" upper="0.3" effort="0" velocity="100"/>{tail}')
    motion = robot.simulate(*start(robot), dt=1e-3, steps=300, every=10, integrator=integrator, position_limits=True)
    rocker = motion.q[:, 2]
    assert 0.29 < rocker.max() < 0.35
    assert motion.stop_efforts is not None
    assert motion.stop_efforts[:, 2].min() < 0.0
    assert np.abs(robot.loop_error(motion.q[1:])).max() < ROUNDED


@pytest.mark.parametrize("integrator", ["rk4", "stick_slip"])
def test_a_contact_carries_the_weight_of_the_mechanism(four_bar: Robot, integrator: Any) -> None:
    """By virtual work, the force along the motion of the crank's tip is the motor's holding effort over its length."""
    q = four_bar.assemble([0.5, -0.7, -0.1], fixed=["crank_joint"])
    contact = Contact("crank", point=[0.04, 0.0, 0.0], plane=[0.0, 0.0, 0.04 * np.sin(0.5)], rigid=True)
    motion = four_bar.simulate(q, np.zeros(3), dt=1e-3, steps=20, integrator=integrator, contacts=[contact])
    assert motion.contact_forces is not None
    force = motion.contact_forces[-1, 0] @ [-np.sin(0.5), 0.0, np.cos(0.5)]
    assert force == pytest.approx(four_bar.gravity_forces(q)[0] / 0.04, rel=1e-5)  # stick_slip yields by 1e-6
    assert np.abs(motion.q - q).max() < 1e-7


def test_a_server_simulates_the_same(four_bar: Robot) -> None:
    """Functions of the state, parts and laws: equal bits; adaptive steps with functions are refused."""
    q, v = start(four_bar)
    steps: dict[str, Any] = {"dt": 2e-3, "steps": 12, "integrator": "rk4"}
    with (
        Server([four_bar], endpoints=["tcp://127.0.0.1:0"], workers=0) as server,
        Client(server.endpoints[0], timeout_s=50.0) as client,
    ):
        remote = client.robot("four_bar")
        for tau in (None, lambda t, q, v: np.array([-0.01 * v[0], 0.0, 0.0])):
            local_motion, remote_motion = (robot.simulate(q, v, tau, **steps) for robot in (four_bar, remote))
            np.testing.assert_array_equal(local_motion.q, remote_motion.q)
        for query in ("rk4", "semi_implicit_euler"):
            states = (
                robot.step([q, q], v, [0.01, 0.0, 0.0], [[2e-3], [1e-3]], integrator=query)
                for robot in (four_bar, remote)
            )
            np.testing.assert_array_equal(*(state.v for state in states))
        with pytest.raises(UnimplementedError, match="that a server's robot with closed loops refuses"):
            remote.simulate(q, v, lambda t, q, v: 0.0 * v, **{**steps, "integrator": "adaptive"})
        with pytest.raises(InvalidArgumentError, match="loop of joint 'pin' open"):
            remote.simulate(q + 0.1, v, **steps)


def test_what_is_refused(four_bar: Robot) -> None:
    q, v = start(four_bar)
    fast = 2e4 * four_bar.independent_motion(q, v).jacobian[:, 0]
    cases: list[tuple[type[DynError], str, dict[str, Any]]] = [
        (InvalidArgumentError, "loop of joint 'pin' open", {"q0": q + 0.1}),
        (InvalidArgumentError, "v opens the loop", {"v0": v + 1.0}),
        (InvalidArgumentError, "'rocker_joint', which has no drive", {"tau": [0.0, 0.0, 1.0]}),
        (InvalidArgumentError, "p is not M", {"integrator": "implicit_midpoint", "p0": [1.0, 0.0, 0.0]}),
        (
            FailedPreconditionError,
            "midpoint of step 1 .* does not converge|does not close near",
            {"integrator": "implicit_midpoint", "v0": fast, "dt": 0.05},
        ),
        (
            FailedPreconditionError,
            r"in step \d+ .*joint 'pin' does not close near",
            {"v0": fast, "dt": 0.05, "integrator": "explicit_euler"},
        ),
    ]
    for error, words, arguments in cases:
        with pytest.raises(error, match=words):
            four_bar.simulate(**{"q0": q, "v0": v, "dt": 1e-3, "steps": 20, **arguments})

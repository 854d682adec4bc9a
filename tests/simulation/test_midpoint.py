"""The implicit midpoint rule: its solution to rounding from every start; divergence is reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest

from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError
from dyn_service.simulation.integrators import implicit_midpoint
from dyn_service.simulation.integrators.implicit_midpoint import midpoint_step
from tests.conftest import URDF
from tests.passive import small
from tests.trees import configuration

Method = Literal["articulated", "mass_matrix"]
METHODS: list[Method] = ["articulated", "mass_matrix"]
ROUNDING = np.finfo(np.float64).eps
SLIDE = configuration(["slide"], ["prismatic"])


@pytest.fixture(scope="module")
def panda() -> Robot:
    return Robot.from_urdf(URDF / "panda.urdf", mimic=False)


@pytest.fixture(scope="module")
def pendulum() -> Robot:
    return Robot.from_urdf(URDF / "double_pendulum.urdf")


def linear(matrix: np.ndarray) -> Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """The flow of x-dot = A x, x = (q, p), over leading axes."""
    n = len(matrix) // 2

    def flow(q: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rates = np.einsum("ij,...j->...i", matrix, np.concatenate([q, p], axis=-1))
        return rates[..., :n], rates[..., n:]

    return flow


def oscillator(stiffness: float, mass: float = 1.0) -> np.ndarray:
    return np.array([[0.0, 1.0 / mass], [-stiffness, 0.0]])


@pytest.mark.parametrize("method", METHODS)
def test_panda_moves_from_every_start(panda: Robot, method: Method) -> None:
    """500 steps of 1 ms, each start apart from the others; the energy of a free motion stays near what it was."""
    q, v = np.random.default_rng(0).normal(size=(2, 10, 9))
    motion = panda.simulate(q, v, dt=1e-3, steps=500, integrator="implicit_midpoint", method=method, every=50)
    energy = panda.energy(motion.q, motion.v).total
    # Order 2: the wrist turns with up to 100 rad/s, which is (dt w)^2 / 12 = 1e-3 of the energy, about 100 J.
    assert np.abs(energy - energy[:, :1]).max() < 0.2


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("name", "dt", "steps"), [("panda", 1e-3, 20), ("panda", 5e-3, 40), ("ten_body_tree", 2e-3, 10)]
)
def test_each_step_solves_its_equation_to_rounding(name: str, dt: float, steps: int, method: Method) -> None:
    """x' - x = dt f((x + x') / 2). At 5 ms the Panda's iteration meets the rounding of the flow itself."""
    robot = Robot.from_urdf(URDF / f"{name}.urdf")
    q, v = np.random.default_rng(1).normal(size=(2, 6, robot.nv))
    tau = np.random.default_rng(2).normal(size=(steps, robot.nv))
    motion = robot.simulate(q, v, tau, dt=dt, steps=steps, integrator="implicit_midpoint", method=method)
    assert motion.p is not None
    for x, name in ((motion.q, "v"), (motion.p, "p_dot")):
        middle = [(y[:, 1:] + y[:, :-1]) / 2 for y in (motion.q, motion.p)]
        rates = getattr(robot.hamiltonian_flow(*middle, tau, method=method), name)
        size = np.abs(x).max(axis=-1) + dt * np.abs(rates).max(axis=(-2, -1))[:, None] + 1.0
        left = np.abs(np.diff(x, axis=1) - dt * rates).max(axis=-1) / size[:, 1:]
        # Some roundings of the state, and those of the flow under the mass matrix's condition, up to 1e4 here.
        assert left.max() < 2e4 * ROUNDING * dt + 8 * ROUNDING


@pytest.mark.parametrize("method", METHODS)
def test_the_step_is_symmetric(pendulum: Robot, method: Method) -> None:
    """Back with the velocities turned about, the way is the same to rounding: what a step that ends early is not."""
    start = np.array([0.6, 0.9]), np.array([0.5, -1.0])
    forth = pendulum.simulate(*start, dt=0.01, steps=300, integrator="implicit_midpoint", method=method)
    back = pendulum.simulate(
        forth.q[-1], -forth.v[-1], dt=0.01, steps=300, integrator="implicit_midpoint", method=method
    )
    # Some 1e-16 a step, magnified along the way by less than 100.
    np.testing.assert_allclose(back.q[::-1], forth.q, rtol=0, atol=1e-11)


def test_area_is_kept_to_rounding() -> None:
    """Symplectic: the step's matrix of a linear system has determinant 1, and is Cayley's."""
    A = oscillator(30.0, 0.5)
    dt = 0.02
    columns = [np.concatenate(midpoint_step(linear(A), SLIDE, e[:1], e[1:], dt, 1.0) or ()) for e in np.eye(2)]
    step = np.stack(columns, axis=-1)
    half = dt / 2 * A
    np.testing.assert_allclose(step, np.linalg.solve(np.eye(2) - half, np.eye(2) + half), rtol=0, atol=8 * ROUNDING)
    assert np.linalg.det(step) == pytest.approx(1.0, abs=8 * ROUNDING)


def test_a_step_ends_as_soon_as_its_contraction_tells(panda: Robot) -> None:
    """At 1 ms the Panda's takes six flows; to wait until the changes vanish would take nine."""
    q, v = np.random.default_rng(3).normal(size=(2, 9))
    p = panda.momentum(q, 0.3 * v)
    count = 0

    def flow(q: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nonlocal count
        count += 1
        state_rates = panda.hamiltonian_flow(q, p, np.zeros(9))
        return state_rates.v, state_rates.p_dot

    assert midpoint_step(flow, panda.configuration, q, p, 1e-3, float(np.abs(p).max())) is not None
    assert count <= 6


@pytest.mark.parametrize("size", [1.0, 1e-8, 1e-13])
def test_what_does_not_contract_is_not_found(size: float) -> None:
    """dt w / 2 = 1.1: the iterates grow, however small the state is from which they do."""
    x = np.array([size])
    assert midpoint_step(linear(oscillator(4 * 1.1**2)), SLIDE, x, x, 1.0, 1.0) is None


@pytest.mark.parametrize("wild", [0, 1])
@pytest.mark.parametrize("of_v", [True, False])
def test_a_flow_that_leaves_the_numbers_is_a_motion_that_does(wild: int, of_v: bool) -> None:
    """In one entry is enough: that is divergence, and not an iteration that does not converge."""
    two = configuration(["a", "b"], ["prismatic", "prismatic"])

    def flow(q: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        endless = np.where(np.arange(2) == wild, np.inf, 1.0)
        return (endless, 0.0 * p) if of_v else (0.0 * q, endless)

    with np.errstate(invalid="ignore"):
        solution = midpoint_step(flow, two, np.zeros(2), np.zeros(2), 1e-3, 1.0)
    assert solution is not None
    assert np.isinf(solution[0 if of_v else 1][wild])
    assert np.isfinite(solution[0 if of_v else 1][1 - wild])
    # Two oscillators of which one does not converge: all is finite, and there is no midpoint.
    stiff = np.zeros((4, 4))
    stiff[:2, 2:], stiff[2:, :2] = np.eye(2), -np.diag([4.0, 4.0 * 1.1**2] if wild else [4.0 * 1.1**2, 4.0])
    assert midpoint_step(linear(0.9 * stiff), two, np.ones(2), np.ones(2), 1.0, 1.0) is None


def test_slow_contraction_is_found_or_told() -> None:
    """dt w / 2 = 0.6 takes some seventy iterations; 0.95 would take seven hundred."""
    x = np.array([1.0])
    solution = midpoint_step(linear(oscillator(4 * 0.6**2)), SLIDE, x, x, 1.0, 1.0)
    half = 0.5 * oscillator(4 * 0.6**2)
    exact = np.linalg.solve(np.eye(2) - half, (np.eye(2) + half) @ [1.0, 1.0])
    assert solution is not None
    np.testing.assert_allclose(np.concatenate(solution), exact, rtol=0, atol=16 * ROUNDING)
    assert midpoint_step(linear(oscillator(4 * 0.95**2)), SLIDE, x, x, 1.0, 1.0) is None


def test_positions_and_momenta_that_contract_in_turn() -> None:
    """A stiff spring and a light mass: every second change is no smaller, until both are."""
    A = oscillator(1e4, 1e-2)
    dt = 4e-4
    solution = midpoint_step(linear(A), SLIDE, np.array([1e-3]), np.array([0.0]), dt, 1e-2)
    half = dt / 2 * A
    exact = np.linalg.solve(np.eye(2) - half, (np.eye(2) + half) @ [1e-3, 0.0])
    assert solution is not None
    np.testing.assert_allclose(np.concatenate(solution), exact, rtol=0, atol=8 * ROUNDING)


def test_a_flow_with_large_roundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A billion times those of its numbers: no iterate is nearer than these, which are measured and accepted."""
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    M = turn @ np.diag([1.0, 1.0, 1.0, 1e-3]) @ turn.T

    def flow(q: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.linalg.solve(M * (1.0 + 1e-9 * np.sin(1e18 * q.sum())), p), np.zeros(4)

    four = configuration(list("abcd"), ["revolute"] * 4)
    calls = []
    original = implicit_midpoint._effect_of_rounding

    def counted(*arguments: Any) -> Any:
        calls.append(original(*arguments))
        return calls[-1]

    monkeypatch.setattr(implicit_midpoint, "_effect_of_rounding", counted)
    p = M @ np.ones(4)
    solution = midpoint_step(flow, four, np.zeros(4), p, 1e-3, 1.0)
    assert solution is not None
    assert calls, "the flow's own rounding ends this step"
    np.testing.assert_allclose(solution[0], 1e-3 * np.ones(4), rtol=1e-8)  # some of those roundings


def test_one_contraction_may_be_luck() -> None:
    """A change that is much smaller than the previous one does not end a step: the next may be large again."""
    rates = iter([0.0, 1.0, 1.0 + ROUNDING, 2.0, 2.0])

    def flow(q: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.full(1, next(rates)), np.zeros(1)

    solution = midpoint_step(flow, SLIDE, np.zeros(1), np.zeros(1), 1.0, 1.0)
    assert solution is not None
    assert solution[0].tolist() == [2.0]


def test_rounding_is_measured_entry_by_entry_beside_one() -> None:
    """A position is rounded as one is where it is smaller, a momentum as it is; what they make of the flow adds up."""
    A = np.array([[0.0, 0.0, 2.0, 0.0], [0.0, 0.0, 0.0, 4.0], [8.0, 0.0, 0.0, 0.0], [0.0, -16.0, 0.0, 0.0]])
    flow = linear(A)
    q, p = np.array([[0.0, -4.0], [0.5, 0.0]]), np.array([[0.0, 0.0], [2.0, -1.0]])
    q_size, p_size = np.array([1.0, 8.0]), np.array([0.5, 2.0])
    effect = implicit_midpoint._effect_of_rounding(flow, q, p, flow(q, p), q_size, p_size)
    of_q = (8.0 * np.array([1.0, 1.0]) + 16.0 * np.array([4.0, 1.0])) / p_size
    of_p = (2.0 * np.array([0.0, 2.0]) + 4.0 * np.array([0.0, 1.0])) / q_size
    np.testing.assert_allclose(effect, ROUNDING * (of_q + of_p), rtol=1e-15)


def test_members_of_a_batch_end_by_themselves(panda: Robot) -> None:
    """A slow member among fast ones: each has the bits of a simulation alone."""
    rng = np.random.default_rng(3)
    q, v = rng.normal(size=(2, 2, 3, 9)) * np.array([0.0, 0.1, 3.0])[:, None]
    options: dict[str, Any] = {"dt": 3e-3, "steps": 40, "integrator": "implicit_midpoint"}
    batch = panda.simulate(q, v, **options)
    for index in np.ndindex(2, 3):
        single = panda.simulate(q[index], v[index], **options)
        for name in ("q", "v", "p"):
            np.testing.assert_array_equal(getattr(batch, name)[index], getattr(single, name))


def test_rest_is_rest(pendulum: Robot) -> None:
    """At rest below the pivot nothing moves; there every change is rounding from the first iteration on."""
    motion = pendulum.simulate([0.0, 0.0], [0.0, 0.0], dt=0.05, steps=50, integrator="implicit_midpoint")
    np.testing.assert_allclose(motion.q, 0.0, rtol=0, atol=1e-15)  # weight at rest is zero to rounding, 1e-15 N m
    motion = pendulum.simulate(
        [0.7, -0.3], [0.0, 0.0], pendulum.gravity_forces([0.7, -0.3]), dt=0.02, steps=50, integrator="implicit_midpoint"
    )
    np.testing.assert_allclose(motion.q, np.broadcast_to([0.7, -0.3], motion.q.shape), rtol=0, atol=1e-13)


@pytest.mark.parametrize("first_step", [0, 700])
def test_what_is_not_found_names_the_step(first_step: int) -> None:
    """A pendulum of 1 m, dt w / 2 = 0.9, from rest: the iterates go round and round."""
    pendulum = Robot.from_urdf(URDF / "pendulum.urdf")
    with pytest.raises(FailedPreconditionError) as refusal:
        pendulum.simulate([0.6], [0.0], dt=0.5, steps=3, integrator="implicit_midpoint", first_step=first_step)
    for part in (f"step {first_step + 1} (t = {first_step * 0.5:g} s)", "dt = 0.5 s"):
        assert part in str(refusal.value)


@pytest.mark.parametrize("method", METHODS)
def test_momenta_become_velocities_by_the_method_asked_for(panda: Robot, method: Method) -> None:
    q, v = np.random.default_rng(5).normal(size=(2, 9))
    motion = panda.simulate(q, v, dt=1e-3, steps=200, integrator="implicit_midpoint", method=method)
    assert motion.p is not None
    np.testing.assert_array_equal(motion.v[0], v)
    velocities = {m: panda.velocity_from_momentum(motion.q, motion.p, method=m) for m in METHODS}
    np.testing.assert_array_equal(motion.v[1:], velocities[method][1:])
    assert (velocities["articulated"] != velocities["mass_matrix"]).any(), "otherwise the two cannot be distinguished"
    other = panda.simulate(
        q, v, dt=1e-3, steps=200, integrator="implicit_midpoint", method=METHODS[method == "articulated"]
    )
    assert (other.q != motion.q).any(), "the steps too go by the method"
    np.testing.assert_allclose(other.q, motion.q, rtol=0, atol=1e-9)  # roundings under a condition of 1e4


def test_a_body_that_turns_slowly_keeps_its_momentum_in_the_world() -> None:
    """Free floating bodies, 200 steps each. Taken over from step to step as it is rounded, the momentum on the body
    would drift to one side, by 8 roundings of its size (root mean square of all entries) in so many steps.
    """
    body = configuration(["body"], ["floating"])
    inertia, size = np.array([1.0, 1.0, 1.0, 1.0, 2.0, 3.0]), 0.01

    def flow(q: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return p / inertia, -body.turning(p / inertia, p)

    q, p = np.tile(body.neutral, (50, 1)), size * np.random.default_rng(0).normal(size=(50, 6))
    momentum_at_start = p.copy()  # at neutral, body and world have the same axes
    for _ in range(200):
        solution = midpoint_step(flow, body, q, p, 1e-2, size)
        assert solution is not None
        q, p = solution
    drift = body.momentum_on_parent(q, p) - momentum_at_start
    # Measured 0.8: a rounding now and then of each of two hundred sums, to either side.
    assert np.sqrt(np.mean(drift**2)) < 2.0 * ROUNDING * size


@pytest.mark.parametrize("seed", range(12))
def test_a_midpoint_that_was_not_found_is_no_answer(seed: int) -> None:
    """Steps far too long for the motion: a divergent iteration is reported, and not taken for rounding."""
    robot = Robot.from_urdf(URDF / "panda.urdf", mimic=False)
    q, v = robot.random_configuration(seed=seed), np.array([1.0] * 7 + [0.0] * 2)
    try:
        motion = robot.simulate(q, v, dt=0.25, steps=1, integrator="implicit_midpoint")
    except FailedPreconditionError:
        return
    assert np.isfinite(motion.v).all()
    assert np.abs(motion.q[1] - motion.q[0]).max() < 10.0  # some rad/s for a quarter of a second


def test_the_kernel_with_derivatives_makes_the_same_step() -> None:
    """Within rounding; A and B are in `tests/terms`."""
    robot = small()
    q, v, tau = np.random.default_rng(0).normal(size=(3, 5, robot.nv))
    step = robot.step_derivatives(q, v, tau, 0.02, integrator="implicit_midpoint")
    for k in range(len(q)):
        motion = robot.simulate(q[k], v[k], tau[k], dt=0.02, steps=1, integrator="implicit_midpoint")
        np.testing.assert_allclose(step.q[k], motion.q[-1], rtol=0, atol=1e-14)
        np.testing.assert_allclose(step.v[k], motion.v[-1], rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("q", "v", "dt"),
    [([0.6, -1.0], [-5.1, -1.9], 0.12), ([-1.8, 2.7], [4.4, -1.8], 0.19), ([2.0, 1.6], [5.5, -4.8], 0.12)],
)
def test_fast_steps_take_all_iterations_of_the_kernel(q: list[float], v: list[float], dt: float) -> None:
    """After four of its five steps of Newton's method the residual would be too large, and the results no numbers."""
    robot = Robot.from_urdf(URDF / "double_pendulum.urdf")
    derivatives = robot.step_derivatives(q, v, np.zeros(2), dt, integrator="implicit_midpoint")
    motion = robot.simulate(q, v, dt=dt, steps=1, integrator="implicit_midpoint")
    np.testing.assert_allclose(derivatives.v, motion.v[-1], rtol=0, atol=1e-12)  # some roundings of 10 rad/s


def test_a_step_that_is_not_found_has_no_derivatives(pendulum: Robot) -> None:
    q, v, tau = np.array([0.3, 0.4]), np.array([[0.1, 0.2], [1.0, 30.0]]), np.zeros(2)
    step = pendulum.step_derivatives(q, v, tau, 0.5, integrator="implicit_midpoint", gravity=np.zeros(3))
    for x in (step.q, step.v, step.dx_dx, step.dx_dtau):
        assert np.isfinite(x[0]).all()
        assert np.isnan(x[1]).all()
    with pytest.raises(FailedPreconditionError, match="try a step shorter"):
        pendulum.simulate(q, v[1], dt=0.5, steps=1, integrator="implicit_midpoint", gravity=np.zeros(3))

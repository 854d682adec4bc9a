"""The loops of `simulate` by themselves, on masses and springs whose steps can be written down: no kernel is made."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from dyn_service.api.queries import RobotQueries, Wrench
from dyn_service.api.results import Trajectory
from dyn_service.errors import FailedPreconditionError
from dyn_service.model.configuration import Configuration
from dyn_service.model.steps import STEPS
from dyn_service.simulation.simulate import simulate
from tests.phrases import naming, unnamed
from tests.trees import configuration

FIXED = ["rk4", "semi_implicit_euler", "explicit_euler", "implicit_midpoint"]
ALL = [*FIXED, "adaptive"]
METHODS = ["articulated", "mass_matrix"]
DT = 0.125
TWO = configuration(["hinge", "slide"], ["revolute", "prismatic"])
BALL = configuration(["ball"], ["spherical"])


class Springs:
    """M a = tau - k q of each joint; what was asked of it, by method."""

    def __init__(self, k: Any = (4.0, 9.0), M: Any = ((2.0, 0.5), (0.5, 1.0)), joints: Configuration = TWO) -> None:
        self.configuration, self.free = joints, np.ones(joints.nv)
        self.description = SimpleNamespace(passive=())  # they are loads
        self.closed_motion = None
        self.k, self.M = np.asarray(k), np.asarray(M)
        self.asked: list[tuple[str, str]] = []

    def forward_dynamics(
        self, q: Any, v: Any, tau: Any, *, gravity: Any = None, wrenches: Any = None, method: str = "articulated"
    ) -> np.ndarray:
        self.asked.append(("forward_dynamics", method))
        return np.asarray(np.linalg.solve(self.M, (tau - self._pull(q))[..., None])[..., 0])

    def step(
        self, q: Any, v: Any, tau: Any, dt: Any, *, gravity: Any, wrenches: Any, integrator: str
    ) -> SimpleNamespace:
        self.asked.append(("step", "articulated"))

        def a(q: Any, v: Any) -> Any:
            return np.linalg.solve(self.M, (tau - self._pull(q))[..., None])[..., 0]

        q, v = STEPS[integrator](a, q, v, float(dt[0]), on=self.configuration)
        return SimpleNamespace(q=q, v=v)

    def momentum(self, q: Any, v: Any) -> np.ndarray:
        return np.asarray(v @ self.M)

    def velocity_from_momentum(self, q: Any, p: Any, *, method: str) -> np.ndarray:
        self.asked.append(("velocity_from_momentum", method))
        return np.asarray(np.linalg.solve(self.M, p[..., None])[..., 0])

    def hamiltonian_flow(
        self, q: Any, p: Any, tau: Any, *, gravity: Any, wrenches: Any, method: str
    ) -> SimpleNamespace:
        self.asked.append(("hamiltonian_flow", method))
        return SimpleNamespace(v=np.linalg.solve(self.M, p[..., None])[..., 0], p_dot=tau - self._pull(q))

    def _pull(self, q: np.ndarray) -> np.ndarray:
        return self.k * q[..., : len(self.k)]


def run(springs: Springs, q0: Any, v0: Any, tau: Any = None, **options: Any) -> Trajectory:
    return simulate(cast(RobotQueries, springs), q0, v0, tau, **{"dt": DT, "steps": 5, **options})


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    """Divergence is reported by an error message only."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


Q, V = np.array([0.3, -0.2]), np.array([-1.0, 2.0])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("integrator", ALL)
def test_records_are_those_of_every_step_thinned_out(integrator: str, method: str) -> None:
    options = {"integrator": integrator, "method": method, "first_step": 16}
    tau = np.arange(14.0).reshape(7, 2)
    full = run(Springs(), Q, V, tau, steps=7, **options)
    assert (full.q.shape, full.v.shape) == ((8, 2), (8, 2))
    np.testing.assert_array_equal(full.t, DT * np.arange(16, 24))
    np.testing.assert_array_equal(full.q[0], Q)
    np.testing.assert_array_equal(full.v[0], V)
    assert (np.abs(np.diff(full.q, axis=0)).min(axis=1) > 0).all(), "else records of two steps are one"
    assert (full.p is not None) == (integrator == "implicit_midpoint")
    for stride, records in ((2, slice(0, 7, 2)), (3, slice(0, 7, 3)), (7, slice(0, 8, 7)), (8, slice(0, 1))):
        thin = run(Springs(), Q, V, tau, steps=7, every=stride, **options)
        for name in ("t", "q", "v", "p")[: 4 if full.p is not None else 3]:
            np.testing.assert_array_equal(getattr(thin, name), getattr(full, name)[records])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("integrator", ALL)
def test_a_batch_has_its_axes_before_those_of_records(integrator: str, method: str) -> None:
    q = np.stack([Q, 2 * Q, 0 * Q])
    batch = run(Springs(), q, V, every=2, integrator=integrator, method=method)
    assert (batch.q.shape, batch.v.shape) == ((3, 3, 2), (3, 3, 2))
    for member in range(3):
        single = run(Springs(), q[member], V, every=2, integrator=integrator, method=method)
        # The adaptive steps are shared: their tolerance. The others are solved alone or together.
        np.testing.assert_allclose(batch.q[member], single.q, rtol=0, atol=1e-11 if integrator == "adaptive" else 1e-15)
        np.testing.assert_allclose(batch.v[member], single.v, rtol=0, atol=1e-11 if integrator == "adaptive" else 2e-15)


def test_steps_of_the_midpoint_solve_its_equation() -> None:
    """x' = (e - h A/2)^-1 (e + h A/2) x of the linear system, step by step; for light masses as for heavy ones."""
    for size in (1e-9, 1.0, 1e6):
        springs = Springs(k=size * np.array([4.0, 9.0]), M=size * np.array([[2.0, 0.5], [0.5, 1.0]]))
        A = np.block([[np.zeros((2, 2)), np.linalg.inv(springs.M)], [-np.diag(springs.k), np.zeros((2, 2))]])
        half = DT / 2 * A
        x, states = np.concatenate([Q, np.zeros(2)]), []
        for _ in range(5):
            x = np.linalg.solve(np.eye(4) - half, (np.eye(4) + half) @ x)
            states.append(x)
        motion = run(springs, Q, [0.0, 0.0], integrator="implicit_midpoint")
        assert motion.p is not None
        # To rounding of the state; momenta by those of 1 rad/s, which have the size of the masses.
        np.testing.assert_allclose(motion.q[1:], np.array(states)[:, :2], rtol=0, atol=2e-15)
        np.testing.assert_allclose(motion.p[1:], np.array(states)[:, 2:], rtol=0, atol=1e-14 * size)
        np.testing.assert_allclose(motion.v[1:] @ springs.M, motion.p[1:], rtol=0, atol=1e-14 * size)


def test_momenta_may_be_given_in_place_of_velocities() -> None:
    springs = Springs()
    by_v = run(springs, Q, V, integrator="implicit_midpoint")
    by_p = run(springs, Q, 100 * V, p0=V @ springs.M, integrator="implicit_midpoint")
    assert by_v.p is not None
    assert by_p.p is not None
    np.testing.assert_array_equal(by_p.q, by_v.q)
    np.testing.assert_array_equal(by_p.p, by_v.p)
    np.testing.assert_array_equal(by_p.v[1:], by_v.v[1:])
    np.testing.assert_allclose(by_p.v[0], V, rtol=1e-15)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("integrator", FIXED)
def test_functions_see_the_state_at_each_step_and_are_asked_once(integrator: str, method: str) -> None:
    seen: list[tuple[float, Any, Any]] = []

    def tau(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
        seen.append((t, q.tolist(), v.tolist()))
        return -v

    motion = run(Springs(), Q, V, tau, integrator=integrator, method=method, first_step=2)
    assert [t for t, _, _ in seen] == motion.t[:-1].tolist()
    np.testing.assert_array_equal([q for _, q, _ in seen], motion.q[:-1])
    np.testing.assert_array_equal([v for _, _, v in seen], motion.v[:-1])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("integrator", ["rk4", "semi_implicit_euler", "explicit_euler"])
def test_quaternions_stay_of_unit_length(integrator: str, method: str) -> None:
    """Without springs a ball turns on: by steps along the exponential map exactly, by RK4 to its fourth order."""
    ball = Springs(k=np.zeros(3), M=np.eye(3), joints=BALL)
    motion = run(ball, BALL.neutral, [0.0, 0.0, 0.5], integrator=integrator, method=method)
    np.testing.assert_allclose(np.linalg.norm(motion.q, axis=1), 1.0, rtol=0, atol=1e-15)
    angle = 0.5 * motion.t / 2
    # (0.03)^5 / 120 a step.
    np.testing.assert_allclose(motion.q[:, 2:], np.stack([np.sin(angle), np.cos(angle)], axis=1), rtol=0, atol=2e-9)


@pytest.mark.parametrize("integrator", FIXED)
@pytest.mark.parametrize("form", ["none", "samples", "function"])
def test_divergence_is_told_by_step_and_joint_and_nothing_else(integrator: str, form: str) -> None:
    """A spring with negative stiffness pushes the slide away; the hinge is not coupled to it and does not move."""
    # The midpoint of so stiff a spring would not be found: there the slide is pushed by an effort.
    k, push = ([0.0, 0.0], [0.0, 1e308]) if integrator == "implicit_midpoint" else ([0.0, -1e200], [0.0, 0.0])
    tau: Any = {"none": push, "samples": np.tile(push, (40, 1)), "function": lambda t, q, v: np.array(push)}[form]
    springs = Springs(k=k, M=np.eye(2))
    options: dict[str, Any] = {"integrator": integrator, "first_step": 100, "dt": 8.0}
    steps = 1
    while True:  # the first step that is not finite
        try:
            run(springs, [0.0, 1.0], [0.0, 0.0], tau if form != "samples" else tau[:steps], steps=steps, **options)
        except FailedPreconditionError:
            break
        steps += 1
    assert steps < 32
    with pytest.raises(FailedPreconditionError) as refusal:
        run(springs, [0.0, 1.0], [0.0, 0.0], tau, steps=40, **options)
    number = 100 + steps
    assert unnamed(refusal.value, f"step {number}", f"t = {8.0 * number:g} s", "'slide'", "dt = 8 s") == []


@pytest.mark.parametrize("pushed", [False, True])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("integrator", ["rk4", "semi_implicit_euler", "explicit_euler"])
def test_a_fixed_step_is_one_kernel_where_it_can_be(integrator: str, method: str, pushed: bool) -> None:
    """RK4 asks for accelerations under a wrench, whose link turns from stage to stage; so does the other solution."""
    springs = Springs()
    run(
        springs, Q, V, integrator=integrator, method=method, wrenches=Wrench("arm", (1.0, 0.0, 0.0)) if pushed else None
    )
    one_kernel = method == "articulated" and not (pushed and integrator == "rk4")
    calls = (
        [("step", method)] * 5 if one_kernel else [("forward_dynamics", method)] * (20 if integrator == "rk4" else 5)
    )
    assert springs.asked == calls


def test_momenta_of_a_ball_that_is_pushed() -> None:
    """About one axis from rest, p = tau t, and the midpoint rule is exact for an angle of tau t^2 / 2."""
    ball = Springs(k=np.zeros(3), M=np.eye(3), joints=BALL)
    motion = run(ball, BALL.neutral, [0.0, 0.0, 0.0], [0.0, 0.0, 2.0], integrator="implicit_midpoint")
    assert motion.p is not None
    np.testing.assert_allclose(motion.p[:, 2], 2.0 * motion.t, rtol=0, atol=1e-15)
    np.testing.assert_allclose(motion.v[:, 2], 2.0 * motion.t, rtol=0, atol=1e-15)
    half = motion.t**2 / 2
    np.testing.assert_allclose(motion.q[:, 2:], np.stack([np.sin(half), np.cos(half)], axis=1), rtol=0, atol=1e-15)


def test_a_ball_that_diverges_is_told_too() -> None:
    ball = Springs(k=np.zeros(3), M=np.eye(3), joints=BALL)
    with pytest.raises(FailedPreconditionError, match=naming("step 1", "t = 8 s", "'ball'")):
        run(ball, BALL.neutral, [0.0, 0.0, 0.0], [0.0, 0.0, 1e308], integrator="implicit_midpoint", dt=8.0)


def test_momenta_are_measured_by_those_of_the_heaviest_joint() -> None:
    """From rest there are no momenta to compare with; a step converges as fast as with equal masses."""
    flow_counts = []
    for light in (1.0, 1e-12):
        springs = Springs(k=[4.0, 4.0 * light], M=np.diag([1.0, light]))
        run(springs, [0.3, 0.2], [0.0, 0.0], steps=1, integrator="implicit_midpoint")
        flow_counts.append(sum(name == "hamiltonian_flow" for name, _ in springs.asked))
    assert flow_counts[1] <= flow_counts[0]


@pytest.mark.parametrize("integrator", ALL)
def test_progress_ends_with_the_last_step_that_is_recorded(integrator: str) -> None:
    shares: list[float] = []
    run(Springs(), Q, V, steps=70, every=16, integrator=integrator, progress=shares.append, dt=1e-3)
    if integrator == "adaptive":  # progress by steps, and within a long step
        assert shares == sorted(shares)
        assert {k / 64 for k in range(1, 65)} <= set(shares)
    else:
        assert shares == [0.5, 1.0]
    assert shares[-1] == 1.0


@pytest.mark.parametrize("integrator", ALL)
def test_a_robot_without_joints_does_nothing(integrator: str) -> None:
    without_joints = Springs(k=np.zeros(0), M=np.zeros((0, 0)), joints=configuration([], []))
    motion = run(without_joints, np.zeros(0), np.zeros(0), integrator=integrator)
    assert (motion.q.shape, motion.v.shape, len(motion.t)) == ((6, 0), (6, 0), 6)

"""Multi Body Dynamics document, 5.2 and 5.6: rheonomic systems whose given motion comes as samples."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dyn_service.api.queries import Wrench
from dyn_service.api.results import RheonomicTrajectory
from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.simulation.parts import simulate_rheonomic as simulate_in_parts
from dyn_service.simulation.rheonomic import RheonomicRobot, on_half_grid, sampled
from dyn_service.simulation.task import Grid
from tests.conftest import URDF
from tests.phrases import naming
from tests.random_robots import random_urdf
from tests.terms.interpreting import interpreting
from tests.theory.test_newton_euler import GRAVITY, same

ARM = (0.3, 0.2, 0.1)
"""Where forces act, off the axis of the hinge."""


@pytest.fixture(scope="module")
def cart() -> Robot:
    return Robot.from_urdf(URDF / "cart_pendulum.urdf")


def shaken(t: float) -> tuple[float, float, float]:
    """x(t) of the base, with its derivatives."""
    return 0.2 * np.sin(3 * t) + t, 0.6 * np.cos(3 * t) + 1, -1.8 * np.sin(3 * t)


def rows(dt: float, steps: int, t0: float = 0.0, per_step: int = 2) -> np.ndarray:
    return np.array([shaken(t0 + j * dt / per_step) for j in range(per_step * steps + 1)])


class TestMidpoints:
    """The quintic through position, velocity and acceleration at both ends of a step, in its middle."""

    @pytest.mark.parametrize("degree", range(6))
    def test_exact_for_polynomials_up_to_the_fifth_degree(self, degree: int) -> None:
        x = np.polynomial.Polynomial(np.random.default_rng(degree).normal(size=degree + 1))
        t = 0.3 + 0.7 * np.arange(5)
        on_grid = np.stack([x(t), x.deriv()(t), x.deriv(2)(t)], axis=-1)
        half = 0.3 + 0.35 * np.arange(9)
        same(on_half_grid(on_grid, 0.7), np.stack([x(half), x.deriv()(half), x.deriv(2)(half)], axis=-1), 1e-11)

    def test_orders(self) -> None:
        """Halving the step divides the errors by 2^6, 2^6 and 2^4, those of the module's text."""
        errors = []
        for dt in (0.2, 0.1):
            interpolated = on_half_grid(rows(dt, 10, per_step=1)[::1], dt)[1::2]
            errors.append(np.abs(interpolated - rows(dt, 10)[1::2]).max(axis=0))
        orders = np.log2(errors[0] / errors[1])
        np.testing.assert_allclose(orders, [6.0, 6.0, 4.0], atol=0.25)  # the next order's share at these steps


class TestSamples:
    def test_functions_and_their_samples_are_one_motion(self, cart: Robot) -> None:
        """To the last bit: a function is sampled on the half grid, at the grid's own times."""
        by_function = cart.simulate_rheonomic({"cart_slide": shaken}, [0.5], [0.1], dt=0.01, steps=50, t0=0.3)
        _, samples = sampled({"cart_slide": shaken}, Grid(dt=0.01, steps=50, t0=0.3))
        by_rows = cart.simulate_rheonomic({"cart_slide": samples[:, 0]}, [0.5], [0.1], dt=0.01, steps=50, t0=0.3)
        for by_function_field, other in zip(by_function, by_rows, strict=True):
            np.testing.assert_array_equal(by_function_field, other)
        np.testing.assert_array_equal(by_function.q[:, 0], samples[::2, 0, 0])
        np.testing.assert_array_equal(by_function.a[:, 0], samples[::2, 0, 2])

    def test_5_6_motion_is_that_of_the_given_functions(self, cart: Robot) -> None:
        """RK4 on the functions themselves: the same formula, whose sums may be rounded in another order, and fourth
        stages at t + dt, where the samples have the next step's time; some 1e-16 a step, growing with the motion."""
        expected = RheonomicRobot(cart, {"cart_slide": shaken}).simulate([0.5], [0.1], 0.3, dt=0.01, steps=200, t0=0.3)
        simulated = cart.simulate_rheonomic({"cart_slide": shaken}, [0.5], [0.1], [0.3], dt=0.01, steps=200, t0=0.3)
        for name in ("t", "q", "v", "a", "tau"):
            np.testing.assert_allclose(getattr(simulated, name), getattr(expected, name), rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("per_step", [1, 2])
    def test_fourth_order(self, cart: Robot, per_step: int) -> None:
        """A wrong row at any stage costs orders, so do midpoints worse than the quintic's."""

        def end(steps: int) -> np.ndarray:
            samples = rows(2.0 / steps, steps, per_step=per_step)
            return cart.simulate_rheonomic({"cart_slide": samples}, [0.5], [0.0], dt=2.0 / steps, steps=steps).q[-1, 1]

        exact = end(800)
        errors = [abs(end(steps) - exact) for steps in (50, 100, 200)]
        for coarse, fine in itertools.pairwise(errors):
            assert 3.5 < np.log2(coarse / fine) < 4.6  # 4, and what the next order adds at these steps

    @pytest.mark.parametrize("seed", range(4))
    def test_5_5_partition_of_any_tree(self, seed: int) -> None:
        """Every row satisfies M a + b = tau with wrench and gravity, the free efforts as given, the given motion as it
        was."""
        robot = interpreting(random_urdf(200 + seed, movable=6))
        rng = np.random.default_rng(seed)
        names = [robot.joint_names[k] for k in (4, 1)]
        steps, dt = 6, 1e-3
        samples = {name: rng.normal(size=(2 * steps + 1, 3)) for name in names}
        tau, push = rng.normal(size=(steps, 4)), Wrench(robot.link_names[-1], force=(1.0, 2.0, 3.0))
        motion = robot.simulate_rheonomic(
            samples, *rng.normal(size=(2, 4)), tau, dt=dt, steps=steps, gravity=GRAVITY, wrenches=push
        )
        expected = robot.inverse_dynamics(motion.q, motion.v, motion.a, gravity=GRAVITY, wrenches=push)
        same(expected, motion.tau, 1e-10)
        same(motion.tau[:, [0, 2, 3, 5]], tau[[0, 1, 2, 3, 4, 5, 5]])
        for name in names:
            k = robot.joint_names.index(name)
            np.testing.assert_array_equal(np.stack([motion.q, motion.v, motion.a])[..., k].T, samples[name][::2])

    def test_records_and_times(self, cart: Robot) -> None:
        options = {"dt": 0.01, "t0": 2.0, "first_step": 30}
        every_one = cart.simulate_rheonomic({"cart_slide": rows(0.01, 20)}, [0.5], [0.0], steps=20, **options)
        every_third = cart.simulate_rheonomic(
            {"cart_slide": rows(0.01, 20)}, [0.5], [0.0], steps=20, every=3, **options
        )
        assert len(every_third.t) == 7
        for every_field, third in zip(every_one, every_third, strict=True):
            np.testing.assert_array_equal(every_field[::3], third)
        same(every_one.t, 2.3 + 0.01 * np.arange(21))

    def test_efforts_may_follow_time_and_state(self, cart: Robot) -> None:
        seen = []

        def damping(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
            seen.append((t, *q, *v))
            return -0.4 * v

        simulated = cart.simulate_rheonomic({"cart_slide": shaken}, [0.5], [1.0], damping, dt=0.01, steps=5, t0=1.0)
        np.testing.assert_array_equal(np.array(seen)[:, 1:], np.stack([simulated.q, simulated.v], axis=-1)[:5, 1])
        same(np.array(seen)[:, 0], simulated.t[:5])
        same(simulated.tau[:5, 1], -0.4 * simulated.v[:5, 1])

    def test_batches(self, cart: Robot) -> None:
        """Starts, efforts and given motions side by side."""
        samples = np.stack([rows(0.01, 20), 0.5 * rows(0.01, 20)])
        batch = cart.simulate_rheonomic(
            {"cart_slide": samples}, [[[0.5]], [[1.0]], [[0.2]]], [0.0], np.array([[0.3]]), dt=0.01, steps=20
        )
        single = cart.simulate_rheonomic({"cart_slide": samples[1]}, [1.0], [0.0], [0.3], dt=0.01, steps=20)
        assert batch.q.shape == (3, 2, 21, 2)
        same(batch.q[1, 1], single.q)
        same(batch.tau[1, 1], single.tau, 1e-11)

    @pytest.mark.parametrize("form", ["gravity", "wrenches"])
    def test_a_batch_of_loads_alone(self, cart: Robot, form: str) -> None:
        """Each member is the motion under its own load."""
        loads = np.array([[0.0, 0.0, -9.81], [1.0, 2.0, -3.0], [0.5, 0.0, 4.0]])

        def moved(load: np.ndarray) -> RheonomicTrajectory:
            loads = {"gravity": load} if form == "gravity" else {"wrenches": Wrench("pendulum", force=load, point=ARM)}
            return cart.simulate_rheonomic({"cart_slide": shaken}, [0.4], [0.1], dt=0.01, steps=3, **loads)

        batch = moved(loads)
        for name in ("q", "v", "a", "tau"):
            assert getattr(batch, name).shape == (3, 4, 2)
            for k, load in enumerate(loads):
                same(getattr(batch, name)[k], getattr(moved(load), name), 1e-12)
        assert np.abs(batch.v[0, -1, 1] - batch.v[1, -1, 1]) > 1e-3

    @pytest.mark.parametrize("form", ["gravity", "wrenches"])
    def test_a_batch_of_loads_alone_on_functions_of_time(self, cart: Robot, form: str) -> None:
        loads = np.array([[0.0, 0.0, -9.81], [1.0, 2.0, -3.0]])
        loads = {"gravity": loads} if form == "gravity" else {"wrenches": Wrench("pendulum", force=loads, point=ARM)}
        moving = RheonomicRobot(cart, {"cart_slide": shaken})
        simulated = moving.simulate([0.4], [0.1], dt=0.01, steps=3, **loads)
        expected = cart.simulate_rheonomic({"cart_slide": shaken}, [0.4], [0.1], dt=0.01, steps=3, **loads)
        for name in ("q", "v", "a", "tau"):
            same(getattr(simulated, name), getattr(expected, name), 1e-12)

    def test_all_or_none_prescribed(self, cart: Robot) -> None:
        """None: `simulate` itself, whose step is compiled as one kernel; its rounding is its own."""
        start = np.array([0.1, 0.5]), np.array([0.0, 1.0])
        none_prescribed = cart.simulate_rheonomic({}, *start, [0.2, 0.1], dt=0.01, steps=20)
        plain = cart.simulate(*start, [0.2, 0.1], dt=0.01, steps=20)
        same(none_prescribed.q, plain.q, 1e-12)
        all_prescribed = {"cart_slide": shaken, "hinge": shaken}
        simulated = cart.simulate_rheonomic(all_prescribed, [], [], dt=0.01, steps=3)
        same(simulated.tau, cart.inverse_dynamics(simulated.q, simulated.v, simulated.a), 1e-12)


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "path", "values"),
        [
            ({"dt": 0.0}, "dt", ["dt", "0.0"]),
            ({"dt": True}, "dt", ["dt must be"]),
            ({"steps": 0}, "steps", ["steps", "1", "0"]),
            ({"every": 0}, "every", ["every", "1", "0"]),
            ({"prescribed": {"cart_slide": np.zeros((7, 3))}}, "prescribed.cart_slide", ["has shape (7, 3), expected"]),
            ({"prescribed": {"cart_slide": np.zeros((9, 2))}}, "prescribed.cart_slide", ["has shape (9, 2), expected"]),
            ({"prescribed": {"cart_slide": "fast"}}, "prescribed.cart_slide", ["must be numbers of shape"]),
            ({"dt": np.nan}, "dt", ["dt", "nan"]),
            ({"dt": "a"}, "dt", ["dt", "'a'"]),
            ({"first_step": -3}, "first_step", ["first_step", "0", "-3"]),
            ({"first_step": 1.5}, "first_step", ["first_step", "0", "1.5"]),
            ({"t0": np.nan}, "t0", ["t0", "nan"]),
            ({"t0": "a"}, "t0", ["t0", "'a'"]),
            ({"prescribed": ["cart_slide"]}, "prescribed", ["prescribed", "motions"]),
            ({"prescribed": {"cart_slide": lambda t: (0.0, np.nan, 0.0)}}, "prescribed.cart_slide", ["nan", "[0, 1]"]),
            ({"q0": [np.nan]}, "q0", ["q0", "nan", "[0]"]),
            ({"v0": [np.inf]}, "v0", ["v0", "inf", "[0]"]),
            ({"v0": "fast"}, "v0", ["v0", "str", "'fast'", "(..., 1)"]),
            ({"tau": [np.nan]}, "tau", ["tau", "nan", "[0]"]),
            ({"tau": "up"}, "tau", ["tau", "'up'", "(1,)"]),
            ({"tau": lambda t, q, v: None}, "tau", ["(..., 1)", "NoneType", "None"]),
            ({"tau": lambda t, q, v: [0.0, 0.0]}, "tau", ["(..., 1)", "list"]),
            ({"gravity": [0.0, np.nan, 0.0]}, "gravity", ["gravity", "nan", "[1]"]),
            ({"gravity": [0.0, 9.81]}, "gravity", ["gravity", "list", "(..., 3)"]),
            ({"wrenches": "push"}, "wrenches", ["wrenches", "must"]),
            ({"wrenches": Wrench("pendulum", force=(0.0, np.inf, 0.0))}, "wrenches[0].force",
             ["wrenches[0].force", "inf", "[1]"]),
            ({"q0": [0.0, 0.0]}, "q0", ["q0", "(2,)", "(..., 1)"]),
            ({"tau": np.zeros((3, 1))}, "tau", ["tau", "(3, 1)", "(1,)", "(..., 4, 1)"]),
        ],
    )  # fmt: skip
    def test_arguments(self, cart: Robot, change: dict, path: str, values: list[str]) -> None:
        """By the loop itself, and by the client's part of it before anything is sent."""
        arguments = {"prescribed": {"cart_slide": shaken}, "q0": [0.0], "v0": [0.0], "dt": 0.1, "steps": 4} | change
        with pytest.raises(InvalidArgumentError, match=naming(*values)) as refusal:
            cart.simulate_rheonomic(**arguments)
        assert refusal.value.path == path
        with pytest.raises(InvalidArgumentError, match=naming(*values)) as at_client:
            next(simulate_in_parts(cart.configuration, **{"tau": None, **arguments}))
        assert str(at_client.value) == str(refusal.value)

    def test_batches_that_do_not_fit(self, cart: Robot) -> None:
        samples = {"cart_slide": np.zeros((2, 5, 3))}
        with pytest.raises(InvalidArgumentError, match=naming("v0 (3,)", "prescribed (2,)")):
            cart.simulate_rheonomic(samples, [0.0], np.zeros((3, 1)), dt=0.1, steps=2)
        with pytest.raises(InvalidArgumentError, match=naming("prescribed (2,)", "gravity (3,)")):
            cart.simulate_rheonomic(samples, [0.0], [0.0], dt=0.1, steps=2, gravity=np.zeros((3, 3)))
        push = Wrench("pendulum", force=np.zeros((3, 3)))
        with pytest.raises(InvalidArgumentError, match=naming("prescribed (2,)", "wrenches[0].force (3,)")):
            cart.simulate_rheonomic(samples, [0.0], [0.0], dt=0.1, steps=2, wrenches=push)
        with pytest.raises(InvalidArgumentError, match=naming("prescribed (2,)", "tau (3,)")):
            cart.simulate_rheonomic(samples, [0.0], [0.0], np.zeros((3, 1, 1)), dt=0.1, steps=2)

    def test_a_function_that_stops_giving_numbers(self, cart: Robot) -> None:
        def tau(t: float, q: np.ndarray, v: np.ndarray) -> list[float]:
            return [np.nan if t > 0.15 else 0.0]

        message = r"diverged in step 3 \(t = 0.2 s\): the effort of joint 'hinge' is not finite"
        with pytest.raises(FailedPreconditionError, match=message):
            cart.simulate_rheonomic({"cart_slide": shaken}, [0.0], [0.0], tau, dt=0.1, steps=4)

    def test_names_and_leading_axes(self, cart: Robot) -> None:
        with pytest.raises(NotFoundError, match="no movable joint 'wheel'"):
            cart.simulate_rheonomic({"wheel": shaken}, [0.0], [0.0], dt=0.1, steps=1)
        two = {"cart_slide": np.zeros((2, 3, 3)), "hinge": np.zeros((4, 3, 3))}
        with pytest.raises(InvalidArgumentError, match=naming("cart_slide (2,)", "hinge (4,)")):
            cart.simulate_rheonomic(two, [], [], dt=0.1, steps=1)

    def test_divergence_names_the_true_step_and_time(self, cart: Robot) -> None:
        with pytest.raises(FailedPreconditionError, match=r"diverged before step 41 \(t = 46 s\)"):
            cart.simulate_rheonomic({"cart_slide": shaken}, [0.0], [1e200], dt=1.0, steps=50, t0=5.0, first_step=40)


def test_free_joints_with_more_positions_than_velocities() -> None:
    """An arm on a base that floats, its quill driven: the motion of the functions themselves, to roundings."""
    floating = Robot.from_urdf(URDF / "scara.urdf", root="floating")
    q0 = np.concatenate([floating.neutral()[:7], [0.4, -0.3, 0.2]])
    v0 = np.array([0.1, 0.2, 0.3, 0.5, -0.6, 0.7, -1.0, 0.5, 0.3])
    prescribed = {"quill_joint": shaken}
    expected = RheonomicRobot(floating, prescribed).simulate(q0, v0, 0.5, dt=0.01, steps=10, t0=0.3)
    tau = np.full(9, 0.5)
    simulated = floating.simulate_rheonomic(prescribed, q0, v0, tau, dt=0.01, steps=10, t0=0.3)
    for name in ("t", "q", "v"):
        np.testing.assert_allclose(getattr(simulated, name), getattr(expected, name), rtol=1e-10, atol=1e-10)
    names_text = "those of the free joints (root_joint, inner_joint, outer_joint, roll_joint)"
    cases = (("q0", (q0[1:], v0), "(9,)", 10), ("v0", (q0, q0), "(10,)", 9), ("q0", (0.0, v0), "()", 10))
    for name, start, shape, length in cases:
        with pytest.raises(InvalidArgumentError) as refusal:
            floating.simulate_rheonomic(prescribed, *start, tau, dt=0.01, steps=10, t0=0.3)
        assert str(refusal.value) == f"{name} has shape {shape}, expected (..., {length}): {names_text}"


@pytest.mark.parametrize("batched", ["gravity", "wrenches", "prescribed", "tau"])
def test_leading_axes_of_what_acts_spread(cart: Robot, batched: str) -> None:
    """States side by side under each of two gravities, wrenches, given motions, efforts: each as if alone."""
    g, push = np.array([[0.0, 0.0, -9.81], [0.5, 0.0, -1.6]]), np.array([[1.0, 2.0, 3.0], [-3.0, 0.0, 1.0]])
    samples, tau = np.stack([rows(0.01, 5), 0.5 * rows(0.01, 5)]), np.array([[[0.3]], [[-0.2]]])

    def motion(k: int | slice, q: float | list[list[float]]) -> tuple[np.ndarray, ...]:
        index = {name: k if batched == name else 0 for name in ("gravity", "wrenches", "prescribed", "tau")}
        return cart.simulate_rheonomic(
            {"cart_slide": samples[index["prescribed"]]},
            np.array(q)[..., None],
            [0.1],
            tau[index["tau"]],
            dt=0.01,
            steps=5,
            every=2,
            gravity=g[index["gravity"]],
            wrenches=Wrench("pendulum", force=push[index["wrenches"]], point=(0.0, 0.0, -0.2)),
        )[1:]

    batch = motion(slice(None), [[0.3], [0.5], [0.7]])
    for member, q in enumerate((0.3, 0.5, 0.7)):
        for k in range(2):
            for batch_field, field_alone in zip(batch, motion(k, q), strict=True):
                assert batch_field.shape == (3, 2, 3, 2)
                same(batch_field[member, k], field_alone, 1e-11)


def test_the_first_stage_of_a_step_is_what_was_recorded(cart: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not asked again: four evaluations a step, and one for the last record."""
    calls = []
    ask = cart.mass_matrix
    monkeypatch.setattr(cart, "mass_matrix", lambda q, **options: calls.append(q) or ask(q, **options))
    cart.simulate_rheonomic({"cart_slide": shaken}, [0.3], [0.1], dt=0.01, steps=5)
    assert len(calls) == 5 * 4 + 1


def test_progress_is_told_step_by_step(cart: Robot) -> None:
    shares: list[float] = []
    cart.simulate_rheonomic({"cart_slide": shaken}, [0.3], [0.1], dt=0.01, steps=4, every=3, progress=shares.append)
    assert shares == [0.25, 0.5, 0.75, 1.0]

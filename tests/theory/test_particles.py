"""Multi Body Dynamics document: systems of constrained particles, 5.2, 5.3, and rheonomic systems, 5.2, 5.6."""

from __future__ import annotations

from collections.abc import Callable

import casadi as ca
import numpy as np
import pytest

from dyn_service.api.queries import Wrench
from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.formulations.systems import ParticleSystem
from dyn_service.simulation.rheonomic import RheonomicRobot, forward_dynamics
from tests.conftest import URDF
from tests.phrases import naming
from tests.random_robots import random_urdf
from tests.terms.interpreting import interpreting
from tests.theory.test_newton_euler import GRAVITY, same

M1, M2, L1, L2, G = 1.3, 0.7, 0.9, 0.6, 9.81


def pendulum_40(q: ca.SX, t: ca.SX) -> list[ca.SX]:
    """Problem 40's two particles, y up."""
    x, y = L1 * ca.sin(q[0]), -L1 * ca.cos(q[0])
    return [x, y, x + L2 * ca.sin(q[0] + q[1]), y - L2 * ca.cos(q[0] + q[1])]


def on_a_driven_ring(q: ca.SX, t: ca.SX) -> ca.SX:
    """Three particles in space, every term of sigma alive: d2f/dq2, d2f/dq dt, d2f/dt2."""
    spin, height = 0.7 * t + 0.2 * t**2, 0.3 * ca.sin(2 * t)
    radius = 1 + 0.2 * ca.sin(q[0] + t)
    a = ca.vertcat(radius * ca.cos(spin + q[1]), radius * ca.sin(spin + q[1]), height + q[0] * q[1])
    b = a + ca.vertcat(ca.sin(q[2]), 0, -ca.cos(q[2] * (1 + 0.1 * t)))
    return ca.vertcat(a, b, ca.vertcat(q[0] * t, q[1] * q[2], q[2] ** 2 * ca.cos(t)))


@pytest.fixture(scope="module")
def ring() -> ParticleSystem:
    return ParticleSystem([0.5, 1.5, 2.0], on_a_driven_ring, 3, gravity=GRAVITY)


@pytest.fixture(params=range(5))
def drawn_state(request: pytest.FixtureRequest) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    q, v, a = np.random.default_rng(request.param).normal(size=(3, 3))
    return q, v, a, 0.3 + request.param / 4


def rate(function: Callable[[float], np.ndarray], h: float = 1e-3) -> np.ndarray:
    return (8 * (function(h) - function(-h)) - (function(2 * h) - function(-2 * h))) / (12 * h)


class TestKinematics:
    """5.2: x = f_c(q, t), x-dot = J_f q-dot + df/dt, x-ddot = J_f q-ddot + sigma."""

    def test_5_2_jacobian_and_drift(self, ring: ParticleSystem, drawn_state: tuple) -> None:
        q, v, _, t = drawn_state
        terms = ring.terms(q, v, t)
        columns = [rate(lambda s, e=e: ring.terms(q + s * e, v, t).position) for e in np.eye(3)]
        # `rate` is of fourth order at h = 1e-3: truncation 1e-12 times a fifth derivative, rounding eps / h.
        same(terms.jacobian, np.stack(columns, axis=-1), 1e-9)
        same(terms.drift, rate(lambda s: ring.terms(q, v, t + s).position), 1e-9)
        same(terms.velocity, terms.jacobian @ v + terms.drift)

    def test_5_2_velocity_and_acceleration_along_a_path(self, ring: ParticleSystem, drawn_state: tuple) -> None:
        q, v, a, t = drawn_state

        def path(s: float) -> tuple[np.ndarray, np.ndarray, float]:
            return q + s * v + s * s / 2 * a, v + s * a, t + s

        same(ring.terms(q, v, t).velocity, rate(lambda s: ring.terms(*path(s)).position), 1e-9)
        same(ring.accelerations(q, v, a, t), rate(lambda s: ring.terms(*path(s)).velocity), 1e-9)

    def test_5_2_bias_has_all_three_parts(self, ring: ParticleSystem, drawn_state: tuple) -> None:
        """sigma = f_qq q-dot q-dot + 2 f_qt q-dot + f_tt, each by differences of the others' parts."""
        q, v, _, t = drawn_state
        J = lambda q, t: ring.terms(q, v, t).jacobian
        quadratic = rate(lambda s: J(q + s * v, t)) @ v
        mixed = 2 * rate(lambda s: J(q, t + s)) @ v
        explicit = rate(lambda s: ring.terms(q, v, t + s).drift)
        # Each part is a difference of a derivative, and the three have to cancel in places.
        same(ring.terms(q, v, t).bias, quadratic + mixed + explicit, 1e-8)
        for part in (quadratic, mixed, explicit):
            assert np.abs(part).max() > 1e-2


class TestEquationOfMotion:
    def test_5_3_m_f_g_are_sums_over_particles(self, ring: ParticleSystem, drawn_state: tuple) -> None:
        q, v, _, t = drawn_state
        terms = ring.terms(q, v, t)
        rows = list(zip(ring.masses, terms.jacobian, terms.bias, strict=True))
        same(terms.mass_matrix, sum(J.T @ (m * J) for m, J, _ in rows))
        same(terms.velocity_forces, -sum(J.T @ (m * sigma) for m, J, sigma in rows))
        same(terms.gravity_forces, sum(J.T @ (m * GRAVITY) for m, J, _ in rows))

    def test_5_3_lagrange(self, ring: ParticleSystem, drawn_state: tuple) -> None:
        """tau = d/dt dT/dq-dot - dT/dq + dV/dq, with T and V derived independently."""
        position, rates, time = ca.SX.sym("q", 3), ca.SX.sym("v", 3), ca.SX.sym("t")
        acceleration = ca.SX.sym("a", 3)
        x = on_a_driven_ring(position, time)
        velocity = ca.jtimes(x, position, rates) + ca.jtimes(x, time, ca.SX(1))
        m = ca.DM(np.repeat(ring.masses, 3))
        T = ca.dot(m * velocity, velocity) / 2
        V = -ca.dot(m * x, ca.DM(np.tile(GRAVITY, 3)))
        p = ca.gradient(T, rates)
        p_dot = ca.jtimes(p, ca.vertcat(position, rates, time), ca.vertcat(rates, acceleration, 1))
        tau = ca.Function("tau", [position, rates, acceleration, time], [p_dot - ca.gradient(T - V, position)])
        q, v, a, t = drawn_state
        same(ring.inverse_dynamics(q, v, a, t), np.array(tau(q, v, a, t)).ravel(), 1e-11)

    def test_5_5_forward_and_inverse(self, ring: ParticleSystem, drawn_state: tuple) -> None:
        q, v, a, t = drawn_state
        tau = ring.inverse_dynamics(q, v, a, t)
        terms = ring.terms(q, v, t)
        same(terms.mass_matrix @ a - terms.velocity_forces - terms.gravity_forces, tau)
        same(terms.mass_matrix @ ring.forward_dynamics(q, v, tau, t), terms.mass_matrix @ a, 1e-10)

    def test_5_3_constraints_have_no_virtual_power(self, ring: ParticleSystem, drawn_state: tuple) -> None:
        q, v, _, t = drawn_state
        a = ring.forward_dynamics(q, v, 0.0, t)
        F_c, J = ring.constraint_forces(q, v, a, t), ring.terms(q, v, t).jacobian
        on_each = np.einsum("nda,nd->na", J, F_c)
        scale = np.abs(on_each).max()
        assert scale > 1.0  # each particle's constraint does push
        assert np.abs(on_each.sum(axis=0)).max() < 1e-11 * scale
        tau = np.array([0.4, -1.0, 0.3])
        pushed = ring.constraint_forces(q, v, ring.forward_dynamics(q, v, tau, t), t)
        same(np.einsum("nda,nd->a", J, pushed), tau, 1e-10)

    def test_5_3_driven_constraints_do_real_work(self, ring: ParticleSystem, drawn_state: tuple) -> None:
        """d/dt (T + V) = sum of F_c . df/dt: nothing where f_c knows no time."""
        q, v, _, t = drawn_state
        a = ring.forward_dynamics(q, v, 0.0, t)

        def energy(s: float) -> np.ndarray:
            x = ring.terms(q + s * v + s * s / 2 * a, v + s * a, t + s)
            kinetic = np.sum(ring.masses[:, None] * x.velocity**2) / 2
            return kinetic - np.sum(ring.masses[:, None] * x.position * GRAVITY)

        work = np.sum(ring.constraint_forces(q, v, a, t) * ring.terms(q, v, t).drift)
        # The ring does push: without its work the comparison would be of zeros.
        assert abs(work) > 1e-3
        assert float(rate(energy)) == pytest.approx(work, rel=1e-7, abs=1e-7)

    def test_batches(self, ring: ParticleSystem) -> None:
        q, v, a = np.random.default_rng(1).normal(size=(3, 4, 5, 3))
        t = np.linspace(0.0, 1.0, 5)
        rows = ring.terms(q, v, t)
        assert rows.mass_matrix.shape == (4, 5, 3, 3)
        single = ring.terms(q[2, 3], v[2, 3], t[3])
        for name in ("mass_matrix", "velocity_forces", "gravity_forces", "jacobian", "drift", "bias", "velocity"):
            same(getattr(rows, name)[2, 3], getattr(single, name))
        same(ring.constraint_forces(q, v, a, t)[2, 3], ring.constraint_forces(q[2, 3], v[2, 3], a[2, 3], t[3]))
        same(ring.forward_dynamics(q, v, a, t)[2, 3], ring.forward_dynamics(q[2, 3], v[2, 3], a[2, 3], t[3]), 1e-10)


class TestProblem40:
    """The printed terms from the two particles themselves."""

    @pytest.mark.parametrize("seed", range(10))
    def test_problem_40_m_f_g(self, seed: int) -> None:
        system = ParticleSystem([M1, M2], pendulum_40, 2, dimension=2)
        q, v = np.random.default_rng(seed).normal(size=(2, 2)) * 2.0
        terms = system.terms(q, v)
        coupling = M2 * L2 * (L2 + L1 * np.cos(q[1]))
        first = M1 * L1**2 + M2 * (L1**2 + 2 * L1 * L2 * np.cos(q[1]) + L2**2)
        outer_moment = M2 * L2 * np.sin(q[0] + q[1])
        same(terms.mass_matrix, [[first, coupling], [coupling, M2 * L2**2]])
        same(terms.velocity_forces, M2 * L1 * L2 * np.sin(q[1]) * np.array([v[1] * (2 * v[0] + v[1]), -(v[0] ** 2)]))
        same(terms.gravity_forces, -G * np.array([(M1 + M2) * L1 * np.sin(q[0]) + outer_moment, outer_moment]))
        assert not terms.drift.any()

    def test_5_1_printed_jacobian(self) -> None:
        """5.1's second J_f: a slide q_1 along y that carries a rod l_2, turned to q_2 = 135 degrees. Its third rows are
        the angles r_1, r_2 of the first example, not z_1, z_2."""
        system = ParticleSystem(
            [1.0, 1.0], lambda q, t: [0, q[0], 0, L2 * ca.cos(q[1]), q[0] + L2 * ca.sin(q[1]), q[1]], 2
        )
        h = np.sqrt(0.5)
        jacobian = system.terms([0.3, 3 * np.pi / 4], [0.0, 0.0]).jacobian.reshape(6, 2)
        same(jacobian, [[0, 0], [1, 0], [0, 0], [0, -L2 * h], [1, -L2 * h], [0, 1]])


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "path"),
        [
            (([1.0, 0.0], pendulum_40, 2), "masses"),
            (([[1.0]], pendulum_40, 2), "masses"),
            (([1.0, 2.0], pendulum_40, 2), "positions"),  # 4 coordinates, not 6
            (([1.0], lambda q, t: [q[0], ca.SX.sym("z"), 0], 1), "positions"),
            (([1.0], lambda q, t: [q[0], 0, 0], 0), "nq"),
        ],
    )
    def test_construction(self, arguments: tuple, path: str) -> None:
        with pytest.raises(InvalidArgumentError) as error:
            ParticleSystem(*arguments)
        assert error.value.path == path

    def test_dimension_and_gravity(self) -> None:
        with pytest.raises(InvalidArgumentError, match="dimension must be 2 or 3"):
            ParticleSystem([1.0], lambda q, t: [q[0]], 1, dimension=1)
        with pytest.raises(InvalidArgumentError, match="gravity has shape"):
            ParticleSystem([1.0], lambda q, t: [q[0], 0], 1, dimension=2, gravity=[0, 0, -9.81])

    def test_shapes(self, ring: ParticleSystem) -> None:
        with pytest.raises(InvalidArgumentError, match=r"q_dot has shape \(2,\)"):
            ring.terms(np.zeros(3), np.zeros(2))
        with pytest.raises(InvalidArgumentError, match="do not broadcast"):
            ring.terms(np.zeros((2, 3)), np.zeros((4, 3)))

    def test_singular(self) -> None:
        system = ParticleSystem([1.0], lambda q, t: [q[0], 0, 0], 2)
        with pytest.raises(FailedPreconditionError, match="singular"):
            system.forward_dynamics([0.0, 0.0], [0.0, 0.0])


@pytest.fixture(scope="module")
def cart() -> Robot:
    return Robot.from_urdf(URDF / "cart_pendulum.urdf")


def shaken(t: float) -> tuple[float, float, float]:
    """x(t) of the base, with its derivatives."""
    return 0.2 * np.sin(3 * t) + t, 0.6 * np.cos(3 * t) + 1, -1.8 * np.sin(3 * t)


class TestRheonomicTrees:
    @staticmethod
    def numbers(cart: Robot) -> tuple[float, float, float, float]:
        base, bob = cart.bodies.tree.inertia
        axis = cart.bodies.tree.inboard[1].axis
        return base.mass, bob.mass, float(np.linalg.norm(bob.com)), float(axis @ bob.about_com @ axis)

    @pytest.mark.parametrize("t", [0.0, 0.4, 1.7])
    def test_n4_with_prescribed_x(self, cart: Robot, t: float) -> None:
        """(N4): its second row gives theta-ddot from x-ddot, its first row the force f that moves the base so."""
        m1, m2, L, I = self.numbers(cart)
        theta, theta_dot = 0.7 - t, 1.3
        moving = RheonomicRobot(cart, {"cart_slide": shaken})
        assert moving.free_joints == ("hinge",)
        solution = moving.forward_dynamics(t, [theta], [theta_dot])
        x_ddot = shaken(t)[2]
        theta_ddot = (-m2 * 9.81 * L * np.sin(theta) - m2 * L * np.cos(theta) * x_ddot) / (I + m2 * L**2)
        f = (m1 + m2) * x_ddot + m2 * L * np.cos(theta) * theta_ddot - m2 * L * np.sin(theta) * theta_dot**2
        same(solution.a, [x_ddot, theta_ddot])
        same(solution.tau, [f, 0.0])

    def test_5_2_equals_particles_with_explicit_time(self, cart: Robot) -> None:
        """The driven pendulum as particles x = f_c(q, t): two masses that make up its bar."""
        _, m2, L, I = self.numbers(cart)
        arm = np.sqrt(I / m2)  # two halves of the mass at L - arm and L + arm have the bar's moments

        def places(q: ca.SX, t: ca.SX) -> list[ca.SX]:
            x = 0.2 * ca.sin(3 * t) + t
            return [c for l in (L - arm, L + arm) for c in (x + l * ca.sin(q), -l * ca.cos(q))]

        system = ParticleSystem([m2 / 2, m2 / 2], places, 1, dimension=2)
        moving = RheonomicRobot(cart, {"cart_slide": shaken})
        for t in (0.0, 0.4, 1.7):
            expected = moving.forward_dynamics(t, [0.7 - t], [1.3]).a[1:]
            same(system.forward_dynamics([0.7 - t], [1.3], 0.0, t), expected)

    def test_5_6_motion_equals_the_undriven_one_under_the_found_efforts(self, cart: Robot) -> None:
        """Simulated with x prescribed, then freely under the force that was found: the same motion."""
        moving = RheonomicRobot(cart, {"cart_slide": shaken})
        motion = moving.simulate([0.5], [0.0], dt=1e-3, steps=400)
        x, v, _ = np.transpose([shaken(t) for t in motion.t])
        np.testing.assert_allclose(motion.q[:, 0], x, atol=1e-14)

        def force(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
            return moving.forward_dynamics(t, q[1:], v[1:]).tau

        free = cart.simulate(motion.q[0], motion.v[0], force, dt=0.1, steps=4, integrator="adaptive")
        np.testing.assert_allclose(free.q, motion.q[::100], atol=1e-8)
        np.testing.assert_allclose(free.v, motion.v[::100], atol=1e-7)
        np.testing.assert_allclose(motion.v[:, 0], v, atol=1e-14)

    def test_work_of_the_drive_is_the_change_of_energy(self, cart: Robot) -> None:
        motion = RheonomicRobot(cart, {"cart_slide": shaken}).simulate([0.5], [0.0], dt=1e-3, steps=1000)
        power = motion.tau[:, 0] * motion.v[:, 0]
        work = np.sum(power[:-2:2] + 4 * power[1:-1:2] + power[2::2]) * 1e-3 / 3  # Simpson
        energy = cart.energy(motion.q, motion.v).total
        assert abs(work) > 0.1
        assert energy[-1] - energy[0] == pytest.approx(work, rel=1e-8)

    @pytest.mark.parametrize("seed", range(4))
    def test_partition_of_any_tree(self, seed: int) -> None:
        """M a + b = tau holds for all joints, with what was prescribed as it was."""
        robot = interpreting(random_urdf(200 + seed, movable=6))
        rng = np.random.default_rng(seed)
        q, v, tau = rng.normal(size=(3, 2, 5, 6))
        push = Wrench(robot.link_names[-1], force=(1.0, 2.0, 3.0))
        names = [robot.joint_names[k] for k in (4, 1)]
        prescribed = dict(zip(names, rng.normal(size=(2, 5)), strict=True))
        solution = forward_dynamics(robot, q, v, tau, prescribed, gravity=GRAVITY, wrenches=push)
        same(robot.inverse_dynamics(q, v, solution.a, gravity=GRAVITY, wrenches=push), solution.tau, 1e-10)
        free = [0, 2, 3, 5]
        same(solution.tau[..., free], tau[..., free])
        same(solution.a[..., [4, 1]], np.broadcast_to(np.stack([prescribed[n] for n in names], axis=-1), (2, 5, 2)))

    def test_all_or_none_prescribed(self, cart: Robot) -> None:
        q, v, tau = np.random.default_rng(5).normal(size=(3, 2))
        fully_prescribed = forward_dynamics(cart, q, v, tau, {"hinge": 0.3, "cart_slide": -0.2})
        same(fully_prescribed.tau, cart.inverse_dynamics(q, v, [-0.2, 0.3]))
        same(forward_dynamics(cart, q, v, tau, {}).a, cart.forward_dynamics(q, v, tau))

    def test_a_base_that_moves_in_two_ways(self) -> None:
        """A pendulum on a base that slides and turns as given: against the same pendulum's particles."""
        text = (URDF / "pendulum.urdf").read_text()
        base = (
            '<link name="ground"/><link name="slider"/>'
            '<joint name="x" type="prismatic"><parent link="ground"/><child link="slider"/><axis xyz="1 0 0"/>'
            '<limit lower="-9" upper="9" effort="9" velocity="9"/></joint>'
            '<joint name="tilt" type="continuous"><parent link="slider"/><child link="base"/>'
            '<axis xyz="1 0 0"/></joint>'
        )
        robot = Robot.from_urdf(text.replace("</robot>", base + "</robot>"))
        tilting = lambda t: (0.4 * np.sin(2 * t), 0.8 * np.cos(2 * t), -1.6 * np.sin(2 * t))
        moving = RheonomicRobot(robot, {"x": shaken, "tilt": tilting})
        body = robot.tree.inertia[robot.link_names.index("pendulum")]
        L, m = -float(body.com[2]), body.mass
        # Six particles with the bar's mass, centre and moments: a pair along each of its principal axes.
        second = np.trace(body.about_com) / 2 - np.diag(body.about_com)
        points = [
            np.array([0, 0, -L]) + sign * np.sqrt(3 * second[k] / m) * e
            for k, e in enumerate(np.eye(3))
            for sign in (1, -1)
        ]

        def places(q: ca.SX, t: ca.SX) -> ca.SX:
            angle = 0.4 * ca.sin(2 * t)
            tilt = ca.vertcat(
                ca.horzcat(1, 0, 0),
                ca.horzcat(0, ca.cos(angle), -ca.sin(angle)),
                ca.horzcat(0, ca.sin(angle), ca.cos(angle)),
            )
            swing = ca.vertcat(  # about -y
                ca.horzcat(ca.cos(q), 0, -ca.sin(q)), ca.horzcat(0, 1, 0), ca.horzcat(ca.sin(q), 0, ca.cos(q))
            )
            x = ca.vertcat(0.2 * ca.sin(3 * t) + t, 0, 0)
            return ca.vertcat(*(x + tilt @ swing @ ca.DM(p) for p in points))

        system = ParticleSystem(np.full(6, m / 6), places, 1)
        for t, q, v in ((0.0, 0.3, 0.0), (0.5, -1.0, 2.0), (1.1, 2.0, -1.0)):
            expected = system.forward_dynamics([q], [v], 0.0, t)
            hinge = robot.joint_names.index("hinge")
            same(moving.forward_dynamics(t, [q], [v]).a[[hinge]], expected, 1e-11)

    def test_batches_of_motions(self, cart: Robot) -> None:
        moving = RheonomicRobot(cart, {"cart_slide": shaken})
        batch = moving.simulate([[0.5], [1.0]], [0.0], np.array([[[0.0]], [[0.3]], [[0.5]]]), dt=0.01, steps=20)
        single = moving.simulate([1.0], [0.0], 0.3, dt=0.01, steps=20)
        assert batch.q.shape == (3, 2, 21, 2)
        same(batch.q[1, 1], single.q)
        same(batch.tau[1, 1], single.tau, 1e-11)

    def test_refusals(self, cart: Robot) -> None:
        with pytest.raises(NotFoundError, match=naming("'wheel'", "cart_slide, hinge")):
            RheonomicRobot(cart, {"wheel": shaken})
        with pytest.raises(NotFoundError, match="wheel"):
            forward_dynamics(cart, [0, 0], [0, 0], [0, 0], {"wheel": 1.0})
        moving = RheonomicRobot(cart, {"cart_slide": shaken})
        with pytest.raises(InvalidArgumentError, match=naming("q", "(2,)", "(hinge)")):
            moving.forward_dynamics(0.0, [0.0, 0.0], [0.0])
        with pytest.raises(InvalidArgumentError, match=r"tau must be \(..., 2\) numbers, found list"):
            forward_dynamics(cart, [0, 0], [0, 0], [0, 0, 0], {"hinge": 1.0})
        with pytest.raises(InvalidArgumentError, match="do not broadcast"):
            forward_dynamics(cart, np.zeros((2, 2)), [0, 0], [0, 0], {"hinge": np.zeros(3)})
        for options in ({"dt": 0.0, "steps": 1}, {"dt": 0.1, "steps": 0}):
            with pytest.raises(InvalidArgumentError):
                moving.simulate([0.0], [0.0], **options)
        with (
            np.errstate(over="ignore", invalid="ignore"),
            pytest.raises(FailedPreconditionError, match="diverged before step"),
        ):
            moving.simulate([0.0], [1e200], dt=1.0, steps=50)


def test_time_may_have_the_leading_axes() -> None:
    """One state at many times, as many states at one time."""
    particle = ParticleSystem([2.0], lambda q, t: [q[0] * ca.cos(t), q[0] * ca.sin(t)], 1, dimension=2)
    times = np.linspace(0.0, 1.0, 5)
    batch = particle.terms([0.3], [0.1], times)
    assert batch.velocity_forces.shape == (5, 1)
    assert batch.position.shape == (5, 1, 2)
    for k, t in enumerate(times):
        single = particle.terms([0.3], [0.1], t)
        np.testing.assert_array_equal(batch.position[k], single.position)
        np.testing.assert_array_equal(batch.gravity_forces[k], single.gravity_forces)
    with pytest.raises(InvalidArgumentError, match=r"axes of q \(2,\) and t \(5,\) do not broadcast"):
        particle.terms([[0.3], [0.4]], [0.1], times)

"""Coulomb friction without a width: joints that stick stand still to the last bit, joints that slide lose what they
must."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dyn_service import Client, Robot, Server
from dyn_service.errors import FailedPreconditionError
from dyn_service.parsing.urdf.reader import read_text
from dyn_service.simulation.integrators.stick_slip import velocities
from tests.conftest import URDF
from tests.oracle.example_robots import path_of
from tests.passive import restless
from tests.random_robots import MANY_TYPES, random_urdf
from tests.uncertified import uncertified
from tests.wide import one_in, wide

BLOCK = """<robot name="block"><link name="a"/><link name="b"><inertial><mass value="2"/>
<inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/></inertial></link><joint name="j" type="prismatic">
<parent link="a"/><child link="b"/><axis xyz="0 0 1"/></joint></robot>"""
MASS, FRICTION = 2.0, 8.0


def block(friction: float = FRICTION, **fields: Any) -> Robot:
    """A block on a slope that pulls it by m g along its slide."""
    described = read_text(BLOCK)
    return Robot(replace(described, joints=(replace(described.joints[0], friction=friction, **fields),)))


def slope(pull: float) -> tuple[float, float, float]:
    return (0.0, 0.0, -pull / MASS)


def test_below_its_friction_a_block_stands_to_the_last_bit() -> None:
    """Smoothed friction lets it creep."""
    motion = block().simulate([0.1], [0.0], dt=1e-3, steps=500, integrator="stick_slip", gravity=slope(0.99 * FRICTION))
    assert np.all(motion.q == 0.1)
    assert np.all(motion.v == 0.0)
    creeping = block().simulate([0.1], [0.0], dt=1e-3, steps=500, gravity=slope(0.99 * FRICTION))
    assert creeping.q[-1, 0] < 0.1 - 0.002


def test_above_it_it_slides_with_what_is_left() -> None:
    pull, dt, steps = 1.5 * FRICTION, 1e-3, 500
    motion = block().simulate([0.0], [0.0], dt=dt, steps=steps, integrator="stick_slip", gravity=slope(pull))
    assert np.allclose(motion.v[:, 0], -(pull - FRICTION) / MASS * motion.t, rtol=1e-12, atol=0)


def test_a_block_that_slides_comes_to_rest_where_its_energy_ends() -> None:
    """m v^2 / 2 = f x, and then it stands."""
    dt = 1e-3
    motion = block().simulate([0.0], [3.0], dt=dt, steps=1200, integrator="stick_slip", gravity=slope(0.0))
    stops = MASS * 3.0 / FRICTION
    assert np.all(motion.v[motion.t > stops + 2 * dt] == 0.0)
    assert np.all(motion.v[motion.t < stops - 2 * dt] > 0.0)
    assert motion.q[-1, 0] == pytest.approx(MASS * 9.0 / 2 / FRICTION, abs=2 * 3.0 * dt)


def test_a_spring_pulls_it_to_and_fro_until_it_sticks_off_its_rest() -> None:
    """Each swing is shorter by 4 f / k, and what is left below f / k is held: the closed solution."""
    k, friction = 100.0, 4.0
    robot = block(friction, stiffness=k, rest=0.0)
    motion = robot.simulate([0.5], [0.0], dt=1e-3, steps=3000, integrator="stick_slip", gravity=slope(0.0))
    turns = motion.q[1:-1, 0][
        (motion.v[1:-1, 0] * motion.v[2:, 0] < 0) | (motion.v[2:, 0] == 0) & (motion.v[1:-1, 0] != 0)
    ]
    expected = [-0.42, 0.34, -0.26, 0.18, -0.10, 0.02]
    assert np.allclose(turns, expected, rtol=0, atol=2e-3)
    assert np.all(motion.q[-100:, 0] == motion.q[-1, 0])
    assert abs(motion.q[-1, 0]) < friction / k


@pytest.mark.parametrize("seed", wide(range(200), one_in(4)))
def test_conditions_hold_for_any_matrix(seed: int) -> None:
    """Each joint either stands and is held by no more than its friction, or moves against all of it; and no other
    velocities do: the energy that this minimises is convex.
    """
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 25))
    root = rng.normal(size=(n, n)) * 10.0 ** rng.uniform(-2, 2, n)
    M = root @ root.T + 1e-6 * np.diag(np.diag(root @ root.T))
    limit = np.where(rng.random(n) < 0.7, 10.0 ** rng.uniform(-3, 3, n), 0.0)
    r = rng.normal(size=n) * 10.0 ** rng.uniform(-3, 3)
    v = velocities(M, r, limit)
    assert v is not None
    p = r - M @ v
    size = 1e-9 * np.abs(r).max()
    assert np.all(np.abs(p) <= limit + size)
    assert np.all(np.abs(p - limit * np.sign(v))[(v != 0.0)] <= size)

    def energy(x: np.ndarray) -> float:
        return float(x @ M @ x / 2 - r @ x + limit @ np.abs(x))

    energy_at_v = energy(v)
    for _ in range(20):
        perturbed = v + rng.normal(size=n) * 10.0 ** rng.uniform(-6, 0) * max(np.abs(v).max(), 1e-3)
        assert energy(perturbed) >= energy_at_v - 1e-12 * max(abs(energy_at_v), abs(energy(perturbed)))


@pytest.mark.parametrize("seed", [33, 138, 175, 187, 309])
def test_tries_that_would_go_round_end(seed: int) -> None:
    """Joints so much in each other's way that to change all that are wrong at once returns to where it was."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 7))
    B = rng.normal(size=(n, int(rng.integers(1, n + 1))))
    M = B @ B.T + 10.0 ** rng.uniform(-4, -1) * np.eye(n)
    r, limit = rng.normal(size=n), rng.uniform(0, 1, n)
    v = velocities(M, r, limit)
    assert v is not None
    p = r - M @ v
    assert (np.abs(p) <= limit + 1e-9).all()
    assert np.allclose(p[v != 0.0], (limit * np.sign(v))[v != 0.0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("power", [-200, -40, 40, 200])
@pytest.mark.parametrize("seed", range(10))
def test_units_do_not_matter(seed: int, power: int) -> None:
    """Grams or tonnes, microns or miles a second: by powers of two to the last bit."""
    rng = np.random.default_rng(seed)
    n, unit = 12, 2.0**power
    root = rng.normal(size=(n, n))
    M, r, limit = root @ root.T, rng.normal(size=n), rng.uniform(0.0, 2.0, n)
    v = velocities(M, r, limit)
    assert v is not None
    assert 0 < np.count_nonzero(v) < n
    assert np.array_equal(velocities(unit * M, unit * r, unit * limit), v)
    assert np.array_equal(velocities(M, unit * r, unit * limit), unit * v)


def test_matrices_and_efforts_broadcast_and_what_is_not_finite_stays_so() -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 5, 5))
    M, r, limit = root @ root.mT, rng.normal(size=(3, 5)), rng.uniform(0.0, 1.0, 5)
    singles = [velocities(M[k], r[j], limit) for k, j in ((0, 0), (1, 1), (2, 2), (0, 1), (1, 0))]
    assert np.array_equal(velocities(M, r, limit), singles[:3])
    assert np.array_equal(velocities(M[0], r[:2], limit), [singles[0], singles[3]])
    assert np.array_equal(velocities(M[:2], r[0], limit), [singles[0], singles[4]])
    for bad in (np.nan, np.inf):
        pushed, heavy = r.copy(), M.copy()
        pushed[1, 2] = heavy[2, 3, 3] = bad
        batch = velocities(heavy, pushed, limit)
        assert np.array_equal(batch[0], singles[0])
        assert np.isnan(batch[1:]).all()


def test_without_friction_it_is_semi_implicit_euler() -> None:
    robot = restless(URDF / "panda.urdf", 2, {"armature", "springs"})
    q, v = np.full((2, 3, robot.nv), 0.2) * np.arange(1, 4)[:, None]
    options: dict[str, Any] = {"dt": 1e-3, "steps": 50}
    sticking = robot.simulate(q, v, integrator="stick_slip", **options)
    euler = robot.simulate(q, v, integrator="semi_implicit_euler", **options)
    # Both are of first order; springs, half way to the end, are lighter by h^2 k / 2 m, here at most 1e-3.
    assert np.allclose(sticking.q, euler.q, rtol=0, atol=1e-3 * np.abs(euler.q - q[..., None, :]).max())
    loose = restless(URDF / "panda.urdf", 2, {"armature"})
    sticking, euler = (
        loose.simulate(q, v, integrator=integrator, **options) for integrator in ("stick_slip", "semi_implicit_euler")
    )
    assert np.allclose(sticking.q, euler.q, rtol=0, atol=1e-9)
    assert np.allclose(sticking.v, euler.v, rtol=0, atol=1e-7)


def test_narrow_smoothed_friction_comes_near_it() -> None:
    """A Panda thrown and left to its friction: with a width of 1e-3 rad/s and a thousandth of the step, the same."""
    robot = restless(URDF / "double_pendulum.urdf", 4, {"friction"})
    narrow = Robot(
        replace(
            robot.evaluator.model.description,
            joints=tuple(replace(joint, friction_width=1e-4) for joint in robot.evaluator.model.description.joints),
        )
    )
    ours = robot.simulate([0.3, 0.2], [1.0, -2.0], dt=1e-4, steps=2000, integrator="stick_slip", every=100)
    smoothed = narrow.simulate([0.3, 0.2], [1.0, -2.0], dt=2e-6, steps=100_000, every=5000)
    assert np.abs(ours.q - smoothed.q).max() < 2e-3
    assert np.abs(ours.v - smoothed.v).max() < 2e-2


@pytest.mark.parametrize(
    "name", wide(["xarm_description/urdf/xarm7.urdf", "z1_description/urdf/z1.urdf"], lambda name: "z1" in name)
)
def test_joints_too_stiff_for_others(name: str) -> None:
    """Real files whose damping, over the inertia it brakes, asks of RK4 steps of some microseconds: here 1 ms does."""
    robot = Robot.from_urdf(path_of(name))
    assert {"damping", "friction"} <= robot.tree.passive.acts
    q, v = robot.configuration.neutral, np.full(robot.nv, 0.5)
    options: dict[str, Any] = {"dt": 1e-3, "steps": 300, "gravity": (0.0, 0.0, 0.0)}
    with pytest.raises(FailedPreconditionError, match=r"steps of 0.001 s of semi_implicit_euler are .* in step 1 "):
        robot.simulate(q, v, integrator="semi_implicit_euler", **options)
    motion = robot.simulate(q, v, integrator="stick_slip", **options)
    kinetic = robot.energy(motion.q, motion.v, gravity=(0.0, 0.0, 0.0)).kinetic
    assert np.all(np.diff(kinetic) <= 1e-12 * kinetic[0])
    assert np.all(motion.v[-1] == 0.0)  # and friction holds it


@pytest.mark.parametrize("root", ["fixed", "floating"])
def test_joints_of_every_type_alone_and_in_a_batch(root: Any) -> None:
    """To the last bit; and energy only falls where nothing but friction acts."""
    robot = uncertified(restless(random_urdf(3, movable=6, types=MANY_TYPES), 3, {"friction"}, root=root))
    rng = np.random.default_rng(0)
    lower, upper = robot.limits.lower, robot.limits.upper
    q = np.array([robot.configuration.random(rng, lower, upper) for _ in range(3)])
    v = rng.normal(size=(3, robot.nv))
    options: dict[str, Any] = {"dt": 1e-4, "steps": 60, "integrator": "stick_slip", "gravity": (0.0, 0.0, 0.0)}
    batch = robot.simulate(q, v, **options)
    for k in range(3):
        single = robot.simulate(q[k], v[k], **options)
        assert np.array_equal(single.q, batch.q[k])
        assert np.array_equal(single.v, batch.v[k])
    kinetic = robot.energy(batch.q, batch.v, gravity=(0.0, 0.0, 0.0)).kinetic
    assert np.all(kinetic[:, -1] < kinetic[:, 0])


def test_over_the_wire_and_for_the_bare_tree(ipc_endpoint: str) -> None:
    robot = block()
    with Server([robot], endpoints=[ipc_endpoint]), Client(ipc_endpoint, timeout_s=240.0) as client:
        remote = client.robot("block")
        for options in ({"gravity": slope(4.0)}, {"gravity": slope(4.0), "passive": False}, {"tau": [9.0]}):
            arguments: dict[str, Any] = {"dt": 1e-3, "steps": 150, "integrator": "stick_slip", **options}
            local_motion, remote_motion = (
                simulator.simulate([0.0], [0.1], **arguments) for simulator in (robot, remote)
            )
            assert np.array_equal(local_motion.q, remote_motion.q)
    falling = robot.simulate(
        [0.0], [0.0], dt=1e-3, steps=100, integrator="stick_slip", passive=False, gravity=slope(4.0)
    )
    assert np.allclose(falling.v[:, 0], -2.0 * falling.t, rtol=1e-12)


def test_a_motion_that_diverges_says_so() -> None:
    with pytest.raises(FailedPreconditionError, match="diverged"):
        block(damping=-1e6).simulate([0.0], [1.0], dt=1e-1, steps=2000, integrator="stick_slip")


def test_the_energy_of_springs_is_balanced_to_rounding() -> None:
    """A block on a stiff spring: what the steps lose is that of their springs too."""
    robot = block(0.5, stiffness=3e4, rest=0.1)
    motion = robot.simulate([0.3], [1.0], dt=1e-2, steps=60, integrator="stick_slip", position_limits=True)
    assert motion.work is not None
    assert motion.dissipated is not None
    energy = robot.energy(motion.q, motion.v)
    change = np.diff(energy.kinetic + energy.potential)
    np.testing.assert_allclose(change, -motion.dissipated[1:].sum(axis=-1), rtol=0, atol=1e-10 * 600.0)  # of 600 J
    assert np.abs(change).max() > 1.0

"""What joints do by themselves, held by identities: one query undoes another, energy accounts for every joule."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from dyn_service.api.queries import QUERIES, Query, Wrench
from dyn_service.api.spec import PASSIVE_PARTS, PassivePart
from dyn_service.dynamics import expressions as ex
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError
from dyn_service.kernels.frames import kernel_tree
from dyn_service.kernels.graph import trace
from dyn_service.model.mimic import without_mimics
from dyn_service.parsing.urdf.reader import read
from dyn_service.simulation import rheonomic
from tests.comparing import assert_formulations_agree
from tests.conftest import URDF
from tests.oracle.example_robots import path_of
from tests.passive import restless
from tests.random_robots import EVERY_TYPE, MANY_TYPES, random_urdf
from tests.terms.interpreting import interpreted_robot
from tests.uncertified import uncertified
from tests.wide import wide

REAL = (
    "a1_description/urdf/a1.urdf",
    "allegro_hand_description/urdf/allegro_left_hand.urdf",
    "anymal_c_simple_description/urdf/anymal.urdf",
    "b1_description/urdf/b1-z1.urdf",
    "baxter_description/urdf/baxter.urdf",
    "bolt_description/robots/bolt.urdf",
    "centauro_description/urdf/centauro.urdf",
    "g1_description/urdf/g1_29dof_rev_1_0.urdf",
    "go1_description/urdf/go1.urdf",
    "hyq_description/robots/hyq_no_sensors.urdf",
    "kinova_description/robots/kinova.urdf",
    "laikago_description/urdf/laikago.urdf",
    "panda_description/urdf/panda.urdf",
    "pr2_description/urdf/pr2.urdf",
    "romeo_description/urdf/romeo_small.urdf",
    "simple_humanoid_description/urdf/simple_humanoid.urdf",
    "so_arm_description/urdf/so101.urdf",
    "solo_description/robots/solo12.urdf",
    "talos_data/robots/talos_reduced.urdf",
    "tiago_description/robots/tiago_no_hand.urdf",
    "ur_description/urdf/ur5_robot.urdf",
    "xarm_description/urdf/xarm7.urdf",
    "z1_description/urdf/z1.urdf",
)
STATES = 20
METHODS: tuple[Any, ...] = ("articulated", "mass_matrix")


def states(robot: Robot, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    lower, upper = robot.limits.lower, robot.limits.upper
    q = np.array([robot.configuration.random(rng, lower, upper) for _ in range(STATES)])
    v, a = rng.normal(size=(2, STATES, robot.nv))
    v *= 10.0 ** rng.uniform(-4.0, 0.5, (STATES, 1))  # within the widths of friction, and far beyond them
    return q, v, a


def assert_undone(robot: Robot, seed: int) -> None:
    """Fails unless forward dynamics undoes inverse dynamics, in both methods: as efforts, over the efforts that each
    solution subtracts, so that a light joint's acceleration does not magnify the rounding.
    """
    q, v, a = states(robot, seed)
    push = Wrench(robot.link_names[-1], force=(3.0, -2.0, 1.0), frame="world")
    tau = robot.inverse_dynamics(q, v, a, wrenches=push)
    bias = robot.inverse_dynamics(q, v, 0 * a, wrenches=push)
    M = robot.mass_matrix(q)
    size = np.maximum(np.abs(tau).max(axis=-1), np.abs(bias).max(axis=-1))
    for method in METHODS:
        solved = robot.forward_dynamics(q, v, tau, wrenches=push, method=method)
        errors = np.abs(np.einsum("sij,sj->si", M, solved - a)) / size[:, None]
        state, entry = np.unravel_index(int(errors.argmax()), errors.shape)
        joint = robot.configuration.velocity_names[entry]
        assert errors.max() < 1e-12, f"forward_dynamics, {method}, of '{robot.name}', state {state}, joint '{joint}'"


@pytest.mark.parametrize("name", wide(REAL, REAL[5::8].__contains__))
def test_forward_undoes_inverse(name: str) -> None:
    """On real robots, with every part at every joint."""
    robot = interpreted_robot(restless(path_of(name), 3))
    assert robot.tree.passive.acts == set(PASSIVE_PARTS)
    assert_undone(robot, 4)


@pytest.mark.parametrize("root", ["fixed", "floating"])
@pytest.mark.parametrize("seed", wide([EVERY_TYPE, 0, 1, 2], EVERY_TYPE.__eq__))
def test_forward_undoes_inverse_on_joints_of_every_type(seed: int, root: Any) -> None:
    robot = interpreted_robot(restless(random_urdf(seed, movable=len(MANY_TYPES), types=MANY_TYPES), seed, root=root))
    assert_undone(robot, seed)


def test_on_twenty_real_robots() -> None:
    assert len(set(REAL)) >= 20


@pytest.fixture(scope="module")
def panda() -> Robot:
    """Compiled, every part at every joint."""
    return restless(URDF / "panda.urdf", 1)


@pytest.mark.parametrize("compiled", wide([False, True], (False).__eq__))
def test_all_formulations_agree_and_certificates_hold(compiled: bool) -> None:
    every_type = restless(random_urdf(8, movable=5, types=MANY_TYPES), 2, root="floating")
    robots = [restless(URDF / "scara.urdf", 1), every_type]
    if not compiled:
        robots = [interpreted_robot(robot, certifying=True) for robot in robots]
    for robot in robots:
        assert len(assert_formulations_agree(robot, 1e-11, 5)["residuals"]) == 14
        assert all(certificate.holds for certificate in robot.certificates.values())


@pytest.mark.parametrize("compiled", wide([False, True], (False).__eq__))
def test_verification_asks_who_answers(compiled: bool) -> None:
    robot = restless(URDF / "scara.urdf", 1)
    robot = robot if compiled else interpreted_robot(robot)
    q, v, a = states(robot, 0)
    assert max(float(x.max()) for x in robot.verify(q, v, a, passive=False).values()) < 1e-11


QUESTIONS = [
    pytest.param(row, method, id=f"{row.name} {method}".strip())
    for row in QUERIES.values()
    for method in row.kernels
    if not row.constant
]


@cache
def acted(part: PassivePart) -> Robot:
    return restless(URDF / "double_pendulum.urdf", 5, {part})


@cache
def answer(part: PassivePart | None, query: str, method: str) -> np.ndarray:
    """Of the robot whose joints have that part, or none."""
    row = QUERIES[query]
    robot = acted(PASSIVE_PARTS[0]).without_passive if part is None else acted(part)
    signature = robot.signature(row, method)
    rng = np.random.default_rng(0)
    inputs = [rng.uniform(0.1, 1.0, operand.size) for operand in signature.inputs]
    return np.concatenate(trace(kernel_tree(robot.tree, row.bodies), signature).program(inputs))


@pytest.mark.parametrize("part", PASSIVE_PARTS)
@pytest.mark.parametrize(("row", "method"), QUESTIONS)
def test_rows_say_what_they_depend_on(row: Query, method: str, part: PassivePart) -> None:
    """An answer changes with a part exactly where its row says so: else `passive=False` would be asked in vain."""
    assert acted(part).tree.passive.acts == {part}
    assert acted(part).without_passive.fingerprint == acted(PASSIVE_PARTS[0]).without_passive.fingerprint
    differs = not np.array_equal(answer(part, row.name, method), answer(None, row.name, method), equal_nan=True)
    assert differs == (part in row.passive[method] or (row.name == "passive_forces" and part != "armature"))
    assert (row.passive_option is not None) == any(row.passive.values())


@pytest.fixture(scope="module")
def idle_and_busy() -> tuple[Robot, Robot]:
    """The same robot with no part at any joint, and with every part at every joint."""
    return Robot.from_urdf(URDF / "scara.urdf"), restless(URDF / "scara.urdf", 1)


@pytest.mark.parametrize(("row", "method"), QUESTIONS)
def test_what_does_nothing_costs_nothing(idle_and_busy: tuple[Robot, Robot], row: Query, method: str) -> None:
    """A robot whose joints do nothing has one kernel for both choices; each part of another costs its own operations
    and no more. What kernels of the former cost is held in tests/kernels/test_kernels.py.
    """
    idle, busy = idle_and_busy
    assert idle.without_passive is idle
    assert idle.acting(row, method, False) is idle
    if row.name.startswith("step") or row.name == "passive_forces" or row.name.endswith("_regressor"):
        return  # regressors contain the rest positions of springs, whose stiffness is a parameter
    signature = idle.signature(row, method)
    assert signature == busy.signature(row, method)

    def operations(robot: Robot) -> int:
        return trace(kernel_tree(robot.tree, row.bodies), signature).operations

    base = operations(idle)
    added_operations = operations(busy) - base
    # Of each joint damping 2, friction 4, springs 3, armature 2; and in (19b) armature leaves in J^ what vanished else.
    assert (0 <= added_operations <= 15 * idle.nv + 0.25 * base) if row.passive[method] else added_operations == 0


def test_kernels_without_passive_forces_are_made_on_demand(panda: Robot) -> None:
    robot, idle = restless(URDF / "double_pendulum.urdf", 1), Robot.from_urdf(URDF / "double_pendulum.urdf")
    q, v, a = np.full((3, 2), 0.3)
    robot.inverse_dynamics(q, v, a)
    assert set(robot.certificates) == {"inverse_dynamics"}
    row = QUERIES["inverse_dynamics"]
    assert not robot.evaluator.has_kernel(row, passive=False)
    assert np.array_equal(robot.inverse_dynamics(q, v, a, passive=False), idle.inverse_dynamics(q, v, a))
    assert set(robot.certificates) == {"inverse_dynamics", "inverse_dynamics (without passive forces)"}
    assert robot.evaluator.has_kernel(row, passive=False)
    assert robot.evaluator.load_kernel(row, passive=False)
    assert "inverse_dynamics (without passive forces)" in robot.receipt.certificates
    assert not robot.evaluator.has_kernel(QUERIES["mass_matrix"])
    # Damping alone: the mass matrix is the same without it, and so is its kernel.
    damped = restless(URDF / "double_pendulum.urdf", 1, {"damping"})
    damped.mass_matrix(q, passive=False)
    assert set(damped.certificates) == {"mass_matrix"}


def test_alone_and_in_a_batch_to_the_last_bit(panda: Robot) -> None:
    q, v, a = states(panda, 2)
    for passive in (True, False):
        batch = panda.inverse_dynamics(q, v, a, passive=passive)
        assert np.array_equal(
            batch, [panda.inverse_dynamics(*state, passive=passive) for state in zip(q, v, a, strict=True)]
        )


def test_a_wrong_choice_is_refused(panda: Robot) -> None:
    q = v = np.zeros(panda.nv)
    calls = (
        lambda: panda.mass_matrix(q, passive="yes"),  # type: ignore[arg-type]
        lambda: panda.verify(q, v, v, passive="no"),  # type: ignore[arg-type]
        lambda: panda.simulate(q, v, dt=1e-3, steps=1, passive=None),  # type: ignore[arg-type]
    )
    for ask, path in zip(calls, ("options.passive", "passive", "passive"), strict=True):
        with pytest.raises(InvalidArgumentError, match="passive must be true or false, found") as error:
            ask()
        assert error.value.path == path


def test_energy_accounts_for_every_joule(panda: Robot) -> None:
    """Kinetic and potential energy, with the rotors' and the springs', change by the efforts' work less what damping
    and friction take, also those of the finger that follows the other. The work is summed over the steps by
    Simpson's rule.
    """
    rng = np.random.default_rng(0)
    q, v, tau = panda.configuration.neutral + 0.3, rng.normal(size=panda.nv), rng.normal(size=panda.nv)
    motion = panda.simulate(q, v, tau, dt=2e-4, steps=1000)
    energy = panda.energy(motion.q, motion.v).total
    power = motion.v @ tau - panda.passive_forces(motion.q, motion.v).dissipated
    work = (power[:-2:2] + 4 * power[1:-1:2] + power[2::2]) * 2e-4 / 3
    accounted = energy[0] + np.concatenate([[0.0], np.cumsum(work)])
    size = np.abs(energy).max()
    assert np.abs(energy - energy[0]).max() > 5e-3 * size  # there is something to account for
    assert np.abs(energy[::2] - accounted).max() < 1e-8 * size


def test_hamilton_moves_as_newton_does(panda: Robot) -> None:
    """p-dot along the motion that forward dynamics gives, and the same motion from momenta."""
    q, v, _ = states(panda, 6)
    rng = np.random.default_rng(1)
    tau = rng.normal(size=v.shape)
    p = panda.momentum(q, v)
    flow = panda.hamiltonian_flow(q, p, tau)
    a = panda.forward_dynamics(q, v, tau)
    size = np.abs(p).max()
    # M^-1 M v: rounding times the condition number of M.
    assert np.abs(flow.v - v).max() < 1e-12 * np.abs(v).max()
    assert np.abs(flow.p_dot - panda.momentum_derivative(q, v, a)).max() < 1e-11 * max(size, np.abs(tau).max(), 50.0)
    energy, energies = panda.energy(q, v), panda.hamiltonian(q, p)
    assert np.allclose(energies.hamiltonian, energy.total, rtol=1e-12, atol=1e-12 * np.abs(energy.total).max())
    # dH/dt = v . (tau - damping - friction)
    rate = np.einsum("si,si->s", flow.v, tau) - panda.passive_forces(q, v).dissipated
    h = 1e-6
    energy_ahead, earlier = (
        panda.hamiltonian(q + s * h * flow.v, p + s * h * flow.p_dot).hamiltonian for s in (1.0, -1.0)
    )
    # Central differences at h = 1e-6 of an energy that is far larger than its rate: eps / h.
    assert np.allclose((energy_ahead - earlier) / (2 * h), rate, rtol=1e-6, atol=1e-5 * np.abs(rate).max())


def test_springs_and_rotors_keep_energy() -> None:
    """Without damping and friction: a hundred steps of the symplectic integrator on springs, behind gears."""
    robot = restless(URDF / "double_pendulum.urdf", 3, {"springs", "armature"})
    motion = robot.simulate([0.4, -0.2], [1.0, 2.0], dt=1e-3, steps=500, integrator="implicit_midpoint")
    energy = robot.energy(motion.q, motion.v)
    assert np.ptp(energy.potential) > 0.01
    assert np.ptp(energy.total) < 1e-5 * np.ptp(energy.potential)


@pytest.mark.parametrize("types", [("revolute", "prismatic"), MANY_TYPES])
def test_nothing_outside_keeps_the_momentum_of_all(types: Any) -> None:
    """Linear and angular, in the world, of a robot that flies: springs and rotors act between its bodies only."""
    robot = uncertified(restless(random_urdf(5, movable=6, types=types), 1, {"springs", "armature"}, root="floating"))
    assert np.count_nonzero(robot.tree.passive.armature) >= 3
    start = robot.random_configuration(seed=2), 0.5 * np.random.default_rng(3).normal(size=robot.nv)
    motion = robot.simulate(*start, dt=1e-3, steps=300, every=50, gravity=(0.0, 0.0, 0.0))
    base = robot.link_poses(motion.q).rotation[:, 0]
    linear, angular = np.moveaxis(robot.momentum(motion.q, motion.v)[:, :6].reshape(-1, 2, 3), 1, 0)
    linear, angular = (np.einsum("sij,sj->si", base, p) for p in (linear, angular))
    angular += np.cross(motion.q[:, :3], linear)
    assert np.abs(motion.v[-1] - motion.v[0]).max() > 0.1
    for momentum in (linear, angular):  # RK4's own error at these rates is 1e-10
        assert np.ptp(momentum, axis=0).max() < 1e-7 * np.abs(momentum).max()


@pytest.mark.parametrize(
    "integrator", ["rk4", "semi_implicit_euler", "explicit_euler", "adaptive", "implicit_midpoint"]
)
def test_a_damped_oscillator(integrator: Any) -> None:
    """A slide on a spring that hangs on nothing, against the closed solution: every integrator sees damping, spring and
    armature.
    """
    text = (
        '<robot name="r"><link name="a"/><link name="b"><inertial><mass value="1.5"/>'
        '<inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/></inertial></link>'
        '<joint name="j" type="prismatic"><parent link="a"/><child link="b"/><axis xyz="1 0 0"/></joint></robot>'
    )
    robot = restless(text, 0, {"damping", "armature", "springs"})
    passive, mass = robot.tree.passive, 1.5
    m, d, k, rest = mass + passive.armature[0], passive.damping[0], passive.stiffness[0], passive.rest[0]
    dt, steps = 1e-3, 400
    motion = robot.simulate([0.3], [0.7], dt=dt, steps=steps, integrator=integrator)
    decay = d / (2 * m)
    frequency = np.sqrt(complex(k / m - decay**2))
    x, t = 0.3 - rest, motion.t
    exact = np.exp(-decay * t) * (x * np.cos(frequency * t) + (0.7 + decay * x) / frequency * np.sin(frequency * t))
    order = {"rk4": 1e-10, "adaptive": 1e-11, "implicit_midpoint": 1e-4}.get(integrator, 3e-2)
    assert np.abs(motion.q[:, 0] - rest - exact.real).max() < order
    bare = robot.simulate([0.3], [0.7], dt=dt, steps=steps, integrator=integrator, passive=False)
    assert np.abs(bare.q[:, 0] - 0.3 - 0.7 * t).max() < 1e-12


def test_free_joints_beside_prescribed_ones(panda: Robot) -> None:
    """The efforts that are found make all joints move as they did; with the bare tree, bare ones."""
    q, v, a = (x[0] for x in states(panda, 9))
    tau = np.zeros(panda.nv)
    prescribed = {name: a[k] for k, name in enumerate(panda.joint_names) if k < 3}
    for robot, passive in ((panda, True), (panda.without_passive, False)):
        solution = rheonomic.forward_dynamics(panda, q, v, tau, prescribed, passive=passive)
        efforts = robot.inverse_dynamics(q, v, solution.a)
        assert np.allclose(efforts, solution.tau, rtol=0, atol=1e-11 * np.abs(efforts).max())
        assert np.array_equal(solution.a[:3], a[:3])
    rows = np.zeros((9, 3))
    rows[:, 0] = 0.2
    prescribed_motion = {panda.joint_names[0]: rows}
    rest = panda.configuration.neutral[1:]
    ours = panda.simulate_rheonomic(prescribed_motion, rest, 0 * rest, dt=1e-3, steps=4, passive=False)
    reference = panda.without_passive.simulate_rheonomic(prescribed_motion, rest, 0 * rest, dt=1e-3, steps=4)
    assert np.array_equal(ours.q, reference.q)
    assert not np.array_equal(ours.q, panda.simulate_rheonomic(prescribed_motion, rest, 0 * rest, dt=1e-3, steps=4).q)


def test_friction_by_its_identity() -> None:
    """Odd, none at rest, 76 % at its width, all of it far beyond; and it never drives."""
    panda = restless(without_mimics(read(URDF / "panda.urdf")), 1)  # each width is that of an entry of v
    passive = panda.tree.passive
    q = panda.configuration.neutral
    for share, expected in ((0.0, 0.0), (1.0, 0.7615941559557649), (-1.0, -0.7615941559557649), (50.0, 1.0)):
        friction = panda.passive_forces(q, share * passive.width).friction
        # tanh of the kernel against that of a table of sixteen digits.
        assert np.allclose(friction, expected * passive.friction, rtol=1e-14, atol=0)
    _, v, _ = states(panda, 3)
    forces = panda.passive_forces(q, v)
    assert np.all(forces.friction * v >= 0.0)
    assert np.all(forces.dissipated > 0.0)


def test_no_state_gives_a_number_that_is_none(panda: Robot) -> None:
    """Sizes from 1e-12 to 1e8, where friction is far within its width and far beyond it."""
    rng = np.random.default_rng(0)
    for _ in range(5):
        q = rng.normal(size=(4000, panda.nv)) * 10.0 ** rng.uniform(-12, 6, (4000, 1))
        v, x = rng.normal(size=(2, 4000, panda.nv)) * 10.0 ** rng.uniform(-12, 8, (2, 4000, 1))
        for answer in (panda.inverse_dynamics(q, v, x), *(panda.forward_dynamics(q, v, x, method=m) for m in METHODS)):
            assert np.isfinite(answer).all()


def test_armature_gives_a_massless_branch_an_answer() -> None:
    """A rotor is inertia enough: forward dynamics answers, and the bare tree says why it does not."""
    text = (
        '<robot name="r"><link name="a"/><link name="b"/>'
        '<joint name="j" type="continuous"><parent link="a"/><child link="b"/></joint></robot>'
    )
    robot = restless(text, 0, {"armature"})
    assert robot.massless_joint is None
    assert robot.without_passive.massless_joint == "j"
    a = robot.forward_dynamics([0.1], [0.2], [3.0])
    assert np.allclose(a, 3.0 / robot.tree.passive.armature)
    with pytest.raises(Exception, match="no answer for robot 'r'"):
        robot.forward_dynamics([0.1], [0.2], [3.0], passive=False)


def test_a_payload_leaves_joints_as_they_are(panda: Robot) -> None:
    from dyn_service.api.queries import Payload

    loaded = panda.with_payload(Payload("panda_hand", 2.0))
    assert all(
        np.array_equal(loaded_numbers, numbers)
        for loaded_numbers, numbers in zip(loaded.tree.passive.arrays, panda.tree.passive.arrays, strict=True)
    )


def test_kernels_keep_zeros_out(panda: Robot) -> None:
    """A joint that does nothing among others that do is no operation."""
    tree = restless(URDF / "double_pendulum.urdf", 1).tree
    assert ex.diag(ex.sparsify([0.0, tree.passive.armature[0]])).nnz() == 1

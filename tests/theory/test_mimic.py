"""Joints that follow others: every row of the table is the one of the robot whose joints move by themselves, tied by S.

The relations, and S, are those of tests/mimics.py. With everything that joints do by themselves at each of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from dyn_service.api.queries import COMPUTATIONS, QUERIES, Contact, Wrench
from dyn_service.api.spec import DIRECTIONS, PASSIVE_PARTS
from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError
from dyn_service.formulations.verification import WorldEquations, survey
from dyn_service.model.description import RootType
from dyn_service.parsing.urdf.reader import read
from dyn_service.simulation import rheonomic
from tests.conftest import URDF
from tests.mimics import Pair, drawn, pair
from tests.oracle.example_robots import path_of
from tests.oracle.test_mimic import DRAWN, OWN
from tests.passive import restless
from tests.phrases import naming
from tests.random_robots import EVERY_TYPE, MANY_TYPES, random_urdf
from tests.terms.interpreting import interpreted_robot
from tests.theory.test_passive import undone
from tests.wide import wide

GRAVITY = np.array([0.7, -1.3, -9.81])
METHODS: tuple[Any, ...] = ("articulated", "mass_matrix")


def tied(source: Any, seed: int, root: RootType = "fixed", draws: bool = False) -> Pair:
    """A pair whose joints do all that joints can do by themselves."""
    described = read(source)
    described = drawn(described, seed, share=0.6) if draws else described
    made = pair(restless(described, seed)._description, root)
    for robot in (made.led, made.free):
        interpreted_robot(robot)
    return made


class Asked:
    """One state of both robots, and what the others say of it."""

    def __init__(self, tied: Pair) -> None:
        self.tied, led = tied, tied.led
        rng = np.random.default_rng(1)
        self.q = led.random_configuration(seed=3)
        self.v, self.a = rng.uniform(-1.5, 1.5, (2, led.nv))
        self.on = {"gravity": GRAVITY}
        link = next(name for name in tied.relations)  # the one of a follower, whose load reaches its leader
        child = next(joint.child for joint in led.description.joints if joint.name == link)
        self.child, self.leader = child, tied.of(link)[0]
        push = Wrench(child, force=(3.0, -2.0, 1.0), torque=(0.5, 0.2, -0.1), frame="world")
        self.pushed = {**self.on, "wrenches": push}
        self.all = (tied.positions(self.q), tied.rates(self.v), tied.rates(self.a))
        self.tau_all = tied.free.inverse_dynamics(*self.all, **self.pushed)
        self.tau = tied.onto(self.tau_all)
        self.M = tied.S.T @ tied.free.mass_matrix(self.all[0]) @ tied.S
        self.p = self.M @ self.v

    def fields(self, one: Any, other: Any, **changed: Callable[[np.ndarray], np.ndarray]) -> list[Any]:
        """The fields of two results, those of the free robot's changed as named."""
        found = []
        for name in vars(other):
            theirs = getattr(other, name)
            if isinstance(theirs, np.ndarray | float):
                theirs = changed[name](np.asarray(theirs)) if name in changed else theirs
                found.append((getattr(one, name), theirs))
            else:
                assert getattr(one, name) == theirs
        return found


def rows(s: Asked) -> dict[str, Callable[[], list[tuple[Any, Any]]]]:
    """By row: the robot's results, and those of the robot without mimic joints with its joints coupled."""
    t, led, free, S = s.tied, s.tied.led, s.tied.free, s.tied.S
    q, v, a, (Q, V, A) = s.q, s.v, s.a, s.all
    onto, both = t.onto, lambda M: S.T @ M @ S
    kp, kd = np.full((2, led.nv), (3.0,) * led.nv)
    still = free.equation_terms(Q, V, s.tau_all, **s.pushed)
    held = dict.fromkeys(("velocity_forces", "gravity_forces", "efforts", "external_forces", "passive_forces"), onto)
    derivative = onto(free.momentum_derivative(Q, V, A))
    energy = free.energy(Q, V, **s.on)
    scale = np.array([led.tree.inboard[i].ratio for i in led.tree.movable for _ in range(led.tree.inboard[i].nv)])
    passive = dict.fromkeys(("damping", "friction", "springs"), onto)
    squares = dict.fromkeys(("dtau_dq", "dtau_dv", "dtau_da", "dp_dq", "dp_dv"), both)
    columns = ("jacobian", "dmomentum_dq", "dmomentum_dv", "drate_dq", "drate_dv")
    wide = dict.fromkeys((*columns, "dvelocity_dq", "dacceleration_dq", "dacceleration_dv"), lambda J: J @ S)
    slopes = free.inverse_dynamics_derivatives(*s.all, **s.pushed)
    bent = free.inverse_dynamics_hessian(*s.all, t.rates(kp), **s.pushed)

    def second(x: str) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
        gradient = {f"gradient_{z}": onto for z in ("q", "v", x)}
        return {**gradient, **{f"hessian_{z}": both for z in ("qq", "qv", "vv", f"q{x}")}}

    solved = [-np.linalg.solve(s.M, both(x)) for x in (slopes.dtau_dq, slopes.dtau_dv)]

    placed = {"xyz": (0.1, -0.2, 0.3), "rpy": (0.4, 0.5, -0.6)}

    def stepped() -> list[tuple[Any, Any]]:
        h = 1e-3
        found = led.step(q, v, s.tau, [h], integrator="explicit_euler", **s.pushed)
        return [(found.q, led.integrate(q, v, h)), (found.v, v + h * a)]

    def operational() -> list[tuple[Any, Any]]:
        J = free.point_motion(Q, V, s.child).jacobian @ S
        mobility = J @ np.linalg.solve(s.M, J.T)
        # the drawn one's point moves to and fro alone: of x and y there is no inertia
        asked_for = slice(3, 5) if np.linalg.matrix_rank(mobility[3:5, 3:5]) == 2 else slice(4, 5)
        found = led.operational_space(q, s.child, directions=list(DIRECTIONS[asked_for]))
        inertia = np.zeros((6, 6))
        inertia[asked_for, asked_for] = np.linalg.inv(mobility[asked_for, asked_for])
        return [(found.mobility, mobility), (found.inertia, inertia)]

    return {
        "inverse_dynamics": lambda: [(led.inverse_dynamics(q, v, a, **s.pushed), s.tau)],
        "forward_dynamics": lambda: [(led.forward_dynamics(q, v, s.tau, method=m, **s.pushed), a) for m in METHODS],
        "mass_matrix": lambda: [(led.mass_matrix(q), s.M)],
        "coriolis_matrix": lambda: s.fields(
            led.coriolis_matrix(q, v), free.coriolis_matrix(Q, V), matrix=both, forces=onto, transposed_forces=onto
        ),
        "dynamic_parameters": lambda: s.fields(led.dynamic_parameters(), free.dynamic_parameters()),
        "inverse_dynamics_regressor": lambda: s.fields(
            led.inverse_dynamics_regressor(q, v, a, **s.on),
            free.inverse_dynamics_regressor(Q, V, A, **s.on),
            regressor=lambda Y: S.T @ Y,
        ),
        "joint_wrench_regressor": lambda: s.fields(
            led.joint_wrench_regressor(q, v, a, **s.on), free.joint_wrench_regressor(Q, V, A, **s.on)
        ),
        "momentum_regressor": lambda: s.fields(
            led.momentum_regressor(q, v), free.momentum_regressor(Q, V), regressor=lambda Y: S.T @ Y
        ),
        "energy_regressor": lambda: s.fields(led.energy_regressor(q, v, **s.on), free.energy_regressor(Q, V, **s.on)),
        "bias_forces": lambda: [(led.bias_forces(q, v, **s.on), onto(free.bias_forces(Q, V, **s.on)))],
        "gravity_forces": lambda: [(led.gravity_forces(q, **s.on), onto(free.gravity_forces(Q, **s.on)))],
        "constraint_forces": lambda: s.fields(
            led.constraint_forces(q, v, s.tau, **s.pushed), free.constraint_forces(Q, V, s.tau_all, **s.pushed)
        ),
        "force_torque": lambda: s.fields(
            led.force_torque(q, v, a, **placed, **s.pushed), free.force_torque(Q, V, A, **placed, **s.pushed)
        ),
        "imu": lambda: s.fields(led.imu(q, v, a, **placed, **s.on), free.imu(Q, V, A, **placed, **s.on)),
        "constraint_bases": lambda: s.fields(led.constraint_bases(), free.constraint_bases()),
        "computed_torque": lambda: [
            (led.computed_torque(q, v, q, v - 0.1, a + 0.1 * kd, kp=kp, kd=kd, **s.pushed), s.tau)
        ],
        "link_poses": lambda: s.fields(led.link_poses(q), free.link_poses(Q)),
        "link_motion": lambda: s.fields(led.link_motion(q, v, a, **s.pushed), free.link_motion(Q, V, A, **s.pushed)),
        "point_motion": lambda: s.fields(
            led.point_motion(q, v, s.child, point=(0.1, -0.2, 0.3)),
            free.point_motion(Q, V, s.child, point=(0.1, -0.2, 0.3)),
            jacobian=lambda J: J @ S,
        ),
        "operational_space": operational,
        "topology": lambda: s.fields(led.topology(), free.topology()),
        "influence_operators": lambda: s.fields(
            led.influence_operators(q, frame="world"), free.influence_operators(Q, frame="world")
        ),
        "newton_euler_blocks": lambda: s.fields(
            led.newton_euler_blocks(q, v, frame="world"),
            free.newton_euler_blocks(Q, V, frame="world"),
            free_axis=lambda G: G * scale[:, None],
        ),
        "mass_matrix_steps": lambda: s.fields(
            led.mass_matrix_steps(q),
            free.mass_matrix_steps(Q),
            jacobian=lambda J: J @ S,
            momenta=lambda J: J @ S,
            mass_matrix=both,
        ),
        "passive_forces": lambda: s.fields(led.passive_forces(q, v), free.passive_forces(Q, V), **passive),
        "momentum": lambda: [(led.momentum(q, v), onto(free.momentum(Q, V)))],
        "velocity_from_momentum": lambda: [(led.velocity_from_momentum(q, s.p, method=m), v) for m in METHODS],
        "momentum_rate": lambda: [(led.momentum_rate(q, s.p, s.tau, **s.pushed), derivative)],
        "momentum_derivative": lambda: [(led.momentum_derivative(q, v, a), derivative)],
        "system_momentum": lambda: s.fields(led.system_momentum(q, v), free.system_momentum(Q, V)),
        "system_momentum_rate": lambda: s.fields(
            led.system_momentum_rate(q, v, a, **s.pushed), free.system_momentum_rate(Q, V, A, **s.pushed)
        ),
        "energy": lambda: s.fields(led.energy(q, v, **s.on), energy),
        "hamiltonian": lambda: [
            (led.hamiltonian(q, s.p, **s.on).kinetic, energy.kinetic),
            (led.hamiltonian(q, s.p, **s.on).hamiltonian, energy.total),
        ],
        "equation_terms": lambda: s.fields(
            led.equation_terms(q, v, s.tau, **s.pushed), still, mass_matrix=both, **held
        ),
        "jacobians": lambda: s.fields(
            led.jacobians(q), free.jacobians(Q), translation=lambda J: J @ S, rotation=lambda J: J @ S
        ),
        "bias_accelerations": lambda: s.fields(led.bias_accelerations(q, v), free.bias_accelerations(Q, V)),
        "body_recursion": lambda: s.fields(
            led.body_recursion(q, v, a, **s.pushed), free.body_recursion(Q, V, A, **s.pushed), tau=onto
        ),
        "hamiltonian_flow": lambda: [
            pair
            for m in METHODS
            for found in [led.hamiltonian_flow(q, s.p, s.tau, method=m, **s.pushed)]
            for pair in ((found.v, v), (found.p_dot, derivative))
        ],
        "integrate": lambda: [(t.positions(led.integrate(q, v, 0.3)), free.integrate(Q, V, 0.3))],
        "difference": lambda: [
            (t.rates(led.difference(q, led.neutral())), free.difference(Q, t.positions(led.neutral())))
        ],
        "neutral": lambda: [(led.neutral(), led.configuration.neutral)],
        "random_configuration": lambda: [(led.random_configuration(seed=3), q)],
        "step": stepped,
        "inverse_dynamics_derivatives": lambda: s.fields(
            led.inverse_dynamics_derivatives(q, v, a, **s.pushed), slopes, tau=onto, **squares
        ),
        "forward_dynamics_derivatives": lambda: [
            pair
            for found in [led.forward_dynamics_derivatives(q, v, s.tau, **s.pushed)]
            for pair in zip((found.a, found.da_dq, found.da_dv), (a, *solved), strict=True)
        ],
        "joint_wrench_derivatives": lambda: s.fields(
            led.joint_wrench_derivatives(q, v, a, **s.pushed),
            free.joint_wrench_derivatives(Q, V, A, **s.pushed),
            **dict.fromkeys(("dwrench_dq", "dwrench_dv", "dwrench_da"), lambda J: J @ S),
        ),
        "inverse_dynamics_hessian": lambda: s.fields(
            led.inverse_dynamics_hessian(q, v, a, kp, **s.pushed), bent, **second("a")
        ),
        "forward_dynamics_hessian": lambda: [
            pair
            for found in [led.forward_dynamics_hessian(q, v, s.tau, s.M @ kp, **s.pushed)]
            for pair in (
                (found.gradient_q, -onto(bent.gradient_q)),
                (found.gradient_v, -onto(bent.gradient_v)),
                (found.gradient_tau, kp),
                (found.hessian_vv, -both(bent.hessian_vv)),
                (found.hessian_qtau, -np.linalg.solve(s.M, both(bent.hessian_qa).T).T),
                (found.hessian_qv, -both(bent.hessian_qv) - both(bent.hessian_qa) @ solved[1]),
            )
        ],
        "step_derivatives": lambda: [
            pair
            for found in [led.step_derivatives(q, v, s.tau, [1e-3], integrator="explicit_euler", **s.pushed)]
            for pair in (
                (found.v, v + 1e-3 * a),
                (found.dx_dx[1, :, 0], 1e-3 * solved[0]),
                (found.dx_dx[1, :, 1], np.eye(led.nv) + 1e-3 * solved[1]),
            )
        ],
        "momentum_derivatives": lambda: s.fields(
            led.momentum_derivatives(q, v), free.momentum_derivatives(Q, V), p=onto, **squares
        ),
        "energy_derivatives": lambda: s.fields(
            led.energy_derivatives(q, v, **s.on),
            free.energy_derivatives(Q, V, **s.on),
            **dict.fromkeys(("dkinetic_dq", "dkinetic_dv", "dpotential_dq"), onto),
        ),
        "centroidal_derivatives": lambda: s.fields(
            led.centroidal_derivatives(q, v, a), free.centroidal_derivatives(Q, V, A), **wide
        ),
        "point_motion_derivatives": lambda: s.fields(
            led.point_motion_derivatives(q, v, a, s.child, point=(0.1, -0.2, 0.3)),
            free.point_motion_derivatives(Q, V, A, s.child, point=(0.1, -0.2, 0.3)),
            **wide,
        ),
    }


def computed(s: Asked) -> dict[str, Callable[[], list[tuple[Any, Any]]]]:
    """By computation: the robot's results, and the same computed by queries of the other robot."""
    led, free, S = s.tied.led, s.tied.free, s.tied.S
    q, v, a, (Q, V, A) = s.q, s.v, s.a, s.all
    point = (0.1, -0.2, 0.3)
    R = free.link_poses(Q).rotation[free.link_names.index(s.child)]
    entry = led.configuration.velocity_joints.index(s.leader)
    none = {"gravity": np.zeros(3), "passive": False}
    unit = [Wrench(s.child, force=force, point=point) for force in np.eye(3)]
    J = np.array([-free.inverse_dynamics(Q, 0 * V, 0 * V, wrenches=one, **none) @ S for one in unit])

    def pushed_at(forces: np.ndarray) -> dict[str, Any]:
        return {**s.on, "wrenches": [s.pushed["wrenches"], Wrench(s.child, force=forces[0], point=point)]}

    def held() -> list[tuple[Any, Any]]:
        """The point is held as well as its joints can (of the drawn one in two directions), by the least force."""
        found = led.contact_dynamics(q, v, s.tau, Contact(s.child, point), **s.pushed)
        assert found.rank == np.linalg.matrix_rank(J)
        moved = s.tied.rates(found.a)
        still = free.imu(Q, V, moved, links=[s.child], xyz=point, **s.on).specific_force[0]
        needed = free.inverse_dynamics(Q, V, moved, **pushed_at(found.forces))
        left = J.T @ (R @ still + GRAVITY)
        return [
            (1.0 + left, np.ones(led.nv)),
            (found.forces[0], J @ np.linalg.pinv(J) @ found.forces[0]),
            (s.tied.onto(needed), s.tau),
        ]

    def reactions() -> list[tuple[Any, Any]]:
        """What nothing drives is a leader; its efforts are its followers' too."""
        found = led.ground_reactions(q, v, a, Contact(s.child, point, rigid=True), undriven=[s.leader], **s.pushed)
        least = np.linalg.pinv(J[:, [entry]].T) @ s.tau[[entry]]
        needed = free.inverse_dynamics(Q, V, A, **pushed_at(found.forces))
        assert found.supported
        return [(found.forces[0], least), (found.tau, s.tied.onto(needed)), (1.0 + found.tau[entry], 1.0)]

    return {"contact_dynamics": held, "ground_reactions": reactions}


ELSEWHERE = {"verify", "simulate", "simulate_rheonomic"}
"""Computations that have tests of their own, below."""

REFUSED = ("branch_inertias",)
"""What (19b) is made of, where each joint yields by itself."""

PAIRS = {
    "panda": lambda: tied(URDF / "panda.urdf", 1),
    "pr2": lambda: tied(path_of("pr2_description/urdf/pr2.urdf"), 2, "planar"),
    "drawn": lambda: tied(random_urdf(21, movable=9), 3, draws=True),
    "scara": lambda: tied(URDF / "scara.urdf", 9, "planar", draws=True),
    "every type": lambda: tied(random_urdf(EVERY_TYPE, movable=7, types=MANY_TYPES), 5, draws=True),
}

SMALL = ("drawn", "scara", "every type")
"""The others have no kind of joint that these lack. In oracle/test_mimic.py relations are those of files."""


@cache
def asked(name: str) -> Asked:
    return Asked(PAIRS[name]())


@cache
def rows_of(name: str) -> dict[str, Callable[[], list[tuple[Any, Any]]]]:
    return rows(asked(name))


@pytest.mark.parametrize("row", [name for name in QUERIES if name not in REFUSED])
@pytest.mark.parametrize("name", wide(PAIRS, SMALL[1:].__contains__))
def test_every_row(name: str, row: str) -> None:
    for ours, theirs in rows_of(name)[row]():
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max(initial=0.0) <= 1e-9 * max(np.abs(theirs).max(initial=0.0), 1e-3)


@pytest.mark.parametrize("row", ["contact_dynamics", "ground_reactions"])
@pytest.mark.parametrize("name", wide(PAIRS, SMALL.__contains__))
def test_every_computation(name: str, row: str) -> None:
    for ours, theirs in computed(asked(name))[row]():
        assert np.shape(ours) == np.shape(theirs)
        assert np.abs(ours - theirs).max() <= 1e-9 * max(np.abs(theirs).max(), 1e-3)


def test_no_row_is_left_out() -> None:
    assert set(rows(asked("scara"))) | set(REFUSED) == set(QUERIES)
    assert set(computed(asked("scara"))) | ELSEWHERE == {name for name, row in COMPUTATIONS.items() if row.robot}


@pytest.mark.parametrize("name", wide(PAIRS, SMALL.__contains__))
def test_what_has_each_joint_yield_by_itself_is_refused(name: str) -> None:
    of = asked(name)
    led, free = of.tied.led, of.tied.free
    for ask in (lambda r, q: r.branch_inertias(q), lambda r, q: r.influence_operators(q, operator="beta")):
        with pytest.raises(FailedPreconditionError, match=naming(re.compile("robot '.+'.* joint '.+' follows '.+'"))):
            ask(led, of.q)
        ask(free, of.all[0])
    row = QUERIES["branch_inertias"]
    assert led.has_kernel(row)  # none is waited for
    assert led.load_kernel(row)
    led.prepare(["branch_inertias"])
    assert "branch_inertias" not in led.certificates


@pytest.mark.parametrize("name", wide([*OWN, *DRAWN], {*OWN[:2], *DRAWN[::12]}.__contains__))
def test_forward_undoes_inverse(name: str) -> None:
    """On real robots, with every part at every joint, pushed."""
    described = read(path_of(name))
    described = described if name in OWN else drawn(described, DRAWN.index(name))
    robot = restless(described, 3)
    if not robot.tree.has_mimics:
        pytest.skip("one joint has none to follow")
    assert robot.tree.passive.acts == set(PASSIVE_PARTS)
    assert undone(interpreted_robot(robot), 4) < 1e-12


@pytest.mark.parametrize("root", ["fixed", "floating"])
@pytest.mark.parametrize("seed", wide([EVERY_TYPE, 0, 1, 2], EVERY_TYPE.__eq__))
def test_forward_undoes_inverse_on_joints_of_every_type(seed: int, root: RootType) -> None:
    described = drawn(read(random_urdf(seed, movable=7, types=MANY_TYPES)), seed, share=0.6)
    assert undone(interpreted_robot(restless(described, seed, root=root)), seed) < 1e-12


@pytest.mark.parametrize("compiled", wide([False, True], False.__eq__), ids=["interpreted", "compiled"])
@pytest.mark.parametrize("name", wide(["scara", "panda", "every type"], "scara".__eq__))
def test_all_formulations_agree_and_certificates_hold(name: str, compiled: bool) -> None:
    if name == "panda":
        robot = restless(URDF / "panda.urdf", 1)
    elif name == "scara":
        robot = restless(drawn(read(URDF / "scara.urdf"), 9, share=0.6), 1)
    else:
        several = drawn(read(random_urdf(8, movable=6, types=MANY_TYPES)), 1, share=0.6)
        robot = restless(several, 2, root="floating")
    assert robot.tree.has_mimics
    robot = robot if compiled else interpreted_robot(robot, certifying=True)
    for asked in (robot, robot.without_passive):
        found = survey(asked, states=5)
        assert len(found["residuals"]) == 14
        assert found["worst"] < 1e-11
    assert robot.certificates
    assert all(certificate.holds for certificate in robot.certificates.values())


def test_alone_and_in_a_batch_to_the_last_bit() -> None:
    robot = Robot.from_urdf(URDF / "panda.urdf")
    rng = np.random.default_rng(0)
    q, v, a = rng.normal(size=(3, 33, robot.nv))
    for ask in (robot.inverse_dynamics, robot.forward_dynamics):
        batch = ask(q, v, a)
        assert np.array_equal(batch, [ask(*one) for one in zip(q, v, a, strict=True)])


@pytest.mark.parametrize("integrator", ["implicit_midpoint", "adaptive", "semi_implicit_euler"])
def test_every_way_to_step(integrator: Any) -> None:
    """Without losses energy stays, as well as the way to step keeps it."""
    robot = restless(drawn(read(URDF / "double_pendulum.urdf"), 1), 3, {"springs", "armature"})
    assert (robot.nv, robot.tree.nr) == (1, 2)
    motion = robot.simulate([0.4], [1.0], dt=1e-3, steps=300, integrator=integrator)
    energy = robot.energy(motion.q, motion.v)
    assert np.ptp(energy.potential) > 0.01
    allowed = {"implicit_midpoint": 1e-5, "adaptive": 1e-11, "semi_implicit_euler": 1e-1}[integrator]
    assert np.ptp(energy.total) < allowed * np.ptp(energy.potential)


def test_sticking_fingers() -> None:
    """Coulomb friction of both fingers holds them: f of the leader and |m| f of the follower, to the last bit."""
    robot = restless(URDF / "panda.urdf", 2, {"friction"})
    own = robot.tree.passive.friction
    k = robot.joint_names.index("panda_finger_joint1")
    q, v = robot.neutral(), np.zeros(robot.nv)
    hold = robot.inverse_dynamics(q, v, v, passive=False)
    for share, sticks in ((0.99, True), (1.01, False)):
        tau = hold.copy()
        tau[k] += share * (own[-1] + own[-2])
        motion = robot.simulate(q, v, tau, dt=1e-3, steps=1, integrator="stick_slip")
        assert (motion.v[-1, k] == 0.0) == sticks


def test_given_motion_of_a_leader_moves_its_followers() -> None:
    """Rheonomic: the fingers close as given, and the efforts of both are what closes them."""
    robot = Robot.from_urdf(URDF / "panda.urdf")
    rng = np.random.default_rng(0)
    q, v, tau = robot.random_configuration(seed=1), *rng.normal(size=(2, robot.nv))
    found = rheonomic.forward_dynamics(robot, q, v, tau, {"panda_finger_joint1": 0.7})
    assert found.a[-1] == 0.7
    assert np.allclose(robot.inverse_dynamics(q, v, found.a), found.tau, atol=1e-9)


def test_the_fingers_close_as_one() -> None:
    robot = Robot.from_urdf(URDF / "panda.urdf")
    at = np.zeros(robot.nq)
    at[-1] = 0.03
    poses = robot.link_poses(at)
    hand, left, right = (poses.links.index(f"panda_{name}") for name in ("hand", "leftfinger", "rightfinger"))
    apart = poses.position[left] - poses.position[right]
    assert np.isclose(np.linalg.norm(apart), 0.06)
    middle = (poses.position[left] + poses.position[right]) / 2 - poses.position[hand]
    assert np.isclose(np.linalg.norm(middle), 0.0584)


def test_a_turning_joint_follows_a_sliding_one() -> None:
    """A rack and its pinion, whose multiplier is in rad/m: M and weight by hand."""
    robot = Robot.from_urdf(
        """<robot name="rack"><link name="base"/>
        <link name="rack"><inertial><mass value="2"/>
        <inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
        <link name="pinion"><inertial><origin xyz="0.1 0 0"/><mass value="3"/>
        <inertia ixx="1" iyy="1" izz="0.4" ixy="0" ixz="0" iyz="0"/></inertial></link>
        <joint name="slide" type="prismatic"><parent link="base"/><child link="rack"/><axis xyz="0 0 1"/>
        <limit lower="-1" upper="1" effort="9" velocity="9"/></joint>
        <joint name="turn" type="continuous"><parent link="base"/><child link="pinion"/><axis xyz="0 0 1"/>
        <mimic joint="slide" multiplier="5" offset="0.5"/></joint></robot>"""
    )
    assert robot.joint_names == ("slide",)
    assert np.allclose(robot.mass_matrix([0.2]), [[2.0 + 25.0 * (0.4 + 3 * 0.01)]], rtol=1e-14)
    aside = robot.gravity_forces([0.2], gravity=[9.0, 0.0, 0.0])
    assert np.allclose(aside, [5.0 * 3 * 9.0 * 0.1 * np.sin(0.2 * 5 + 0.5)], rtol=1e-14)


def test_the_explicit_equations_solve_with_ties() -> None:
    """`WorldEquations`: all joints by themselves, and multipliers; where followers alone have no inertia too."""
    text = """<robot name="light"><link name="base"/>
      <link name="a"><inertial><mass value="1"/>
      <inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
      <link name="b"/>
      <joint name="lead" type="revolute"><parent link="base"/><child link="a"/><axis xyz="0 0 1"/></joint>
      <joint name="follow" type="revolute"><parent link="a"/><child link="b"/><axis xyz="0 1 0"/>
      <mimic joint="lead" multiplier="-2"/></joint></robot>"""
    robot = Robot.from_urdf(text)
    assert robot.massless_joint is None
    assert Robot.from_urdf(text, mimic=False).massless_joint == "follow"
    world = WorldEquations(robot.tree, np.array([0.3]), np.array([0.2]), GRAVITY)
    assert np.allclose(world.forward_dynamics(np.array([2.0])), [2.0], rtol=1e-13)
    assert np.allclose(robot.forward_dynamics([0.3], [0.2], [2.0]), [2.0], rtol=1e-13)
    assert survey(interpreted_robot(robot), states=3)["worst"] < 1e-12
    nothing = text.replace('<mass value="1"/>', '<mass value="0"/>').replace(
        'ixx="1" iyy="1" izz="1"', 'ixx="0" iyy="0" izz="0"'
    )
    assert Robot.from_urdf(nothing).massless_joint == "lead"
    with pytest.raises(FailedPreconditionError, match="joint 'lead' has no inertia along it"):
        Robot.from_urdf(nothing).forward_dynamics([0.3], [0.2], [2.0])

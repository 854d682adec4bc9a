"""Joints that follow others: every row of the table is the one of the robot whose joints move by themselves, tied by S.

The relations, and S, are those of tests/mimics.py. With everything that joints do by themselves at each of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from dyn_service.api.queries import COMPUTATIONS, QUERIES, Contact, Wrench
from dyn_service.api.spec import DIRECTIONS, PASSIVE_PARTS
from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError
from dyn_service.formulations.world_equations import WorldEquations
from dyn_service.model.description import RootType
from dyn_service.parsing.urdf.reader import read
from dyn_service.simulation import rheonomic
from tests.comparing import assert_close, assert_formulations_agree
from tests.conftest import URDF
from tests.mimics import Pair, drawn, pair
from tests.oracle.example_robots import path_of
from tests.oracle.test_mimic import WITH_MIMICS, WITHOUT_MIMICS
from tests.passive import restless
from tests.phrases import naming
from tests.random_robots import EVERY_TYPE, MANY_TYPES, random_urdf
from tests.tables import assert_complete, entry
from tests.terms.interpreting import interpreted_robot
from tests.theory.test_passive import assert_undone
from tests.wide import wide

GRAVITY = np.array([0.7, -1.3, -9.81])
METHODS: tuple[Any, ...] = ("articulated", "mass_matrix")

Change = Callable[[np.ndarray], np.ndarray]
Rows = dict[str, Callable[[], list[tuple[Any, Any]]]]


def tied(source: Any, seed: int, root: RootType = "fixed", draws: bool = False) -> Pair:
    """A pair whose joints do all that joints can do by themselves."""
    described = read(source)
    described = drawn(described, seed, share=0.6) if draws else described
    robots = pair(restless(described, seed).evaluator.model.description, root)
    for robot in (robots.coupled, robots.free):
        interpreted_robot(robot)
    return robots


class Case:
    """One state of both robots, and what the others say of it."""

    def __init__(self, tied: Pair) -> None:
        self.tied, coupled = tied, tied.coupled
        rng = np.random.default_rng(1)
        self.q = coupled.random_configuration(seed=3)
        self.v, self.a = rng.uniform(-1.5, 1.5, (2, coupled.nv))
        self.gravity_options = {"gravity": GRAVITY}
        link = next(name for name in tied.relations)  # the one of a follower, whose load reaches its leader
        child = next(joint.child for joint in coupled.description.joints if joint.name == link)
        self.child, self.leader = child, tied.relation(link)[0]
        push = Wrench(child, force=(3.0, -2.0, 1.0), torque=(0.5, 0.2, -0.1), frame="world")
        self.pushed = {**self.gravity_options, "wrenches": push}
        self.all = (tied.positions(self.q), tied.rates(self.v), tied.rates(self.a))
        tau_all = tied.free.inverse_dynamics(*self.all, **self.pushed)
        self.tau = tied.reduced(tau_all)
        self.M = self.reduced_matrix(tied.free.mass_matrix(self.all[0]))
        self.p = self.M @ self.v
        self.p_dot = tied.reduced(tied.free.momentum_derivative(*self.all))
        self.weights = np.full(coupled.nv, 3.0)
        self.coupled_inputs = {"q": self.q, "v": self.v, "a": self.a, "tau": self.tau, "weights": self.weights}
        self.free_inputs = {**dict(zip("qva", self.all, strict=True)), "tau": tau_all}
        self.free_inputs["weights"] = tied.rates(self.weights)

    def reduced_matrix(self, M: np.ndarray) -> np.ndarray:
        return self.tied.S.T @ M @ self.tied.S

    def compared(self, query: str, inputs: str, changes: Change | dict[str, Change], **options: Any) -> list[Any]:
        """The outputs of a query on both robots, those of the free robot changed.

        inputs: names of `coupled_inputs`. changes: of the only output, or by name; others are to be equal.
        """
        names = inputs.split()
        answer = getattr(self.tied.coupled, query)(*(self.coupled_inputs[name] for name in names), **options)
        free_answer = getattr(self.tied.free, query)(*(self.free_inputs[name] for name in names), **options)
        if callable(changes):
            return [(answer, changes(free_answer))]
        pairs = []
        for name in vars(free_answer):
            reference = getattr(free_answer, name)
            if isinstance(reference, np.ndarray | float):
                reference = changes[name](np.asarray(reference)) if name in changes else reference
                pairs.append((getattr(answer, name), reference))
            else:
                assert getattr(answer, name) == reference
        return pairs


def rows(s: Case) -> Rows:
    """By row: the robot's results, and those of the robot without mimic joints with its joints coupled."""
    return {**reduced_rows(s), **reduced_derivatives(s), **inverse_rows(s), **inverse_derivatives(s)}


def reduced_rows(s: Case) -> Rows:
    """Queries whose outputs are the free robot's, some reduced by S."""
    tau, M, gravity, pushed = s.tied.reduced, s.reduced_matrix, s.gravity_options, s.pushed
    columns, regressor = (lambda J: J @ s.tied.S), {"regressor": lambda Y: s.tied.S.T @ Y}
    tree = s.tied.coupled.tree
    ratios = np.array([tree.inboard[i].ratio for i in tree.movable for _ in range(tree.inboard[i].nv)])
    terms = ("velocity_forces", "gravity_forces", "efforts", "external_forces", "passive_forces")
    mounting = {"xyz": (0.1, -0.2, 0.3), "rpy": (0.4, 0.5, -0.6)}
    point = {"link": s.child, "point": (0.1, -0.2, 0.3)}
    world = {"frame": "world"}
    table: list[tuple[str, str, Change | dict[str, Change], dict[str, Any]]] = [
        ("inverse_dynamics", "q v a", tau, pushed),
        ("mass_matrix", "q", M, {}),
        ("coriolis_matrix", "q v", {"matrix": M, "forces": tau, "transposed_forces": tau}, {}),
        ("dynamic_parameters", "", {}, {}),
        ("inverse_dynamics_regressor", "q v a", regressor, gravity),
        ("joint_wrench_regressor", "q v a", {}, gravity),
        ("momentum_regressor", "q v", regressor, {}),
        ("energy_regressor", "q v", {}, gravity),
        ("bias_forces", "q v", tau, gravity),
        ("gravity_forces", "q", tau, gravity),
        ("constraint_forces", "q v tau", {}, pushed),
        ("force_torque", "q v a", {}, {**mounting, **pushed}),
        ("imu", "q v a", {}, {**mounting, **gravity}),
        ("constraint_bases", "", {}, {}),
        ("link_poses", "q", {}, {}),
        ("link_motion", "q v a", {}, pushed),
        ("point_motion", "q v", {"jacobian": columns}, point),
        ("topology", "", {}, {}),
        ("influence_operators", "q", {}, world),
        ("newton_euler_blocks", "q v", {"free_axis": lambda G: G * ratios[:, None]}, world),
        ("mass_matrix_steps", "q", {"jacobian": columns, "momenta": columns, "mass_matrix": M}, {}),
        ("passive_forces", "q v", dict.fromkeys(("damping", "friction", "springs"), tau), {}),
        ("momentum", "q v", tau, {}),
        ("momentum_derivative", "q v a", tau, {}),
        ("system_momentum", "q v", {}, {}),
        ("system_momentum_rate", "q v a", {}, pushed),
        ("energy", "q v", {}, gravity),
        ("equation_terms", "q v tau", {"mass_matrix": M, **dict.fromkeys(terms, tau)}, pushed),
        ("jacobians", "q", {"translation": columns, "rotation": columns}, {}),
        ("bias_accelerations", "q v", {}, {}),
        ("body_recursion", "q v a", {"tau": tau}, pushed),
    ]
    return {query: partial(s.compared, query, inputs, changes, **options) for query, inputs, changes, options in table}


def reduced_derivatives(s: Case) -> Rows:
    """Queries for derivatives, whose outputs are the free robot's, reduced by S."""
    tau, M, columns = s.tied.reduced, s.reduced_matrix, lambda J: J @ s.tied.S
    squares: dict[str, Change] = dict.fromkeys(("dtau_dq", "dtau_dv", "dtau_da", "dp_dq", "dp_dv"), M)
    motions = ("jacobian", "dmomentum_dq", "dmomentum_dv", "drate_dq", "drate_dv")
    wide = dict.fromkeys((*motions, "dvelocity_dq", "dacceleration_dq", "dacceleration_dv"), columns)
    gradients = dict.fromkeys(("gradient_q", "gradient_v", "gradient_a"), tau)
    hessians = dict.fromkeys(("hessian_qq", "hessian_qv", "hessian_vv", "hessian_qa"), M)
    wrenches = dict.fromkeys(("dwrench_dq", "dwrench_dv", "dwrench_da"), columns)
    energies = dict.fromkeys(("dkinetic_dq", "dkinetic_dv", "dpotential_dq"), tau)
    point = {"link": s.child, "point": (0.1, -0.2, 0.3)}
    table: list[tuple[str, str, dict[str, Change], dict[str, Any]]] = [
        ("inverse_dynamics_derivatives", "q v a", {"tau": tau, **squares}, s.pushed),
        ("joint_wrench_derivatives", "q v a", wrenches, s.pushed),
        ("inverse_dynamics_hessian", "q v a weights", {**gradients, **hessians}, s.pushed),
        ("momentum_derivatives", "q v", {"p": tau, **squares}, {}),
        ("energy_derivatives", "q v", energies, s.gravity_options),
        ("centroidal_derivatives", "q v a", wide, {}),
        ("point_motion_derivatives", "q v a", wide, point),
    ]
    return {query: partial(s.compared, query, inputs, changes, **options) for query, inputs, changes, options in table}


def inverse_rows(s: Case) -> Rows:
    """Queries that give back the inputs of others, such as the accelerations of the efforts of inverse dynamics."""
    t, coupled, free, q, v, a = s.tied, s.tied.coupled, s.tied.free, s.q, s.v, s.a
    gains = {"kp": s.weights, "kd": s.weights}

    def stepped() -> list[tuple[Any, Any]]:
        h = 1e-3
        stepped_state = coupled.step(q, v, s.tau, [h], integrator="explicit_euler", **s.pushed)
        return [(stepped_state.q, coupled.integrate(q, v, h)), (stepped_state.v, v + h * a)]

    def operational() -> list[tuple[Any, Any]]:
        J = free.point_motion(*s.all[:2], s.child).jacobian @ t.S
        mobility = J @ np.linalg.solve(s.M, J.T)
        # the drawn one's point moves to and fro alone: of x and y there is no inertia
        asked_for = slice(3, 5) if np.linalg.matrix_rank(mobility[3:5, 3:5]) == 2 else slice(4, 5)
        answer = coupled.operational_space(q, s.child, directions=list(DIRECTIONS[asked_for]))
        inertia = np.zeros((6, 6))
        inertia[asked_for, asked_for] = np.linalg.inv(mobility[asked_for, asked_for])
        return [(answer.mobility, mobility), (answer.inertia, inertia)]

    def energies() -> list[tuple[Any, Any]]:
        hamiltonian = coupled.hamiltonian(q, s.p, **s.gravity_options)
        energy = free.energy(*s.all[:2], **s.gravity_options)
        return [(hamiltonian.kinetic, energy.kinetic), (hamiltonian.hamiltonian, energy.total)]

    return {
        "forward_dynamics": lambda: [(coupled.forward_dynamics(q, v, s.tau, method=m, **s.pushed), a) for m in METHODS],
        "computed_torque": lambda: [
            (coupled.computed_torque(q, v, q, v - 0.1, a + 0.1 * s.weights, **gains, **s.pushed), s.tau)
        ],
        "operational_space": operational,
        "velocity_from_momentum": lambda: [(coupled.velocity_from_momentum(q, s.p, method=m), v) for m in METHODS],
        "momentum_rate": lambda: [(coupled.momentum_rate(q, s.p, s.tau, **s.pushed), s.p_dot)],
        "hamiltonian": energies,
        "hamiltonian_flow": lambda: [
            pair
            for m in METHODS
            for flow in [coupled.hamiltonian_flow(q, s.p, s.tau, method=m, **s.pushed)]
            for pair in ((flow.v, v), (flow.p_dot, s.p_dot))
        ],
        "integrate": lambda: [(t.positions(coupled.integrate(q, v, 0.3)), free.integrate(*s.all[:2], 0.3))],
        "difference": lambda: [
            (
                t.rates(coupled.difference(q, coupled.neutral())),
                free.difference(s.all[0], t.positions(coupled.neutral())),
            )
        ],
        "neutral": lambda: [(coupled.neutral(), coupled.configuration.neutral)],
        "random_configuration": lambda: [(coupled.random_configuration(seed=3), q)],
        "step": stepped,
    }


def inverse_derivatives(s: Case) -> Rows:
    """Derivatives of forward dynamics and of a step by those of the free robot's inverse dynamics: M da = -dtau."""
    coupled, q, v, a, h = s.tied.coupled, s.q, s.v, s.a, 1e-3
    tau, M = s.tied.reduced, s.reduced_matrix
    slopes = s.tied.free.inverse_dynamics_derivatives(*s.all, **s.pushed)
    da_dq, da_dv = (-np.linalg.solve(s.M, M(slope)) for slope in (slopes.dtau_dq, slopes.dtau_dv))

    def of_accelerations() -> list[tuple[Any, Any]]:
        derivatives = coupled.forward_dynamics_derivatives(q, v, s.tau, **s.pushed)
        return [(derivatives.a, a), (derivatives.da_dq, da_dq), (derivatives.da_dv, da_dv)]

    def second() -> list[tuple[Any, Any]]:
        inverse = s.tied.free.inverse_dynamics_hessian(*s.all, s.free_inputs["weights"], **s.pushed)
        hessian = coupled.forward_dynamics_hessian(q, v, s.tau, s.M @ s.weights, **s.pushed)
        return [
            (hessian.gradient_q, -tau(inverse.gradient_q)),
            (hessian.gradient_v, -tau(inverse.gradient_v)),
            (hessian.gradient_tau, s.weights),
            (hessian.hessian_vv, -M(inverse.hessian_vv)),
            (hessian.hessian_qtau, -np.linalg.solve(s.M, M(inverse.hessian_qa).T).T),
            (hessian.hessian_qv, -M(inverse.hessian_qv) - M(inverse.hessian_qa) @ da_dv),
        ]

    def of_step() -> list[tuple[Any, Any]]:
        derivatives = coupled.step_derivatives(q, v, s.tau, [h], integrator="explicit_euler", **s.pushed)
        return [
            (derivatives.v, v + h * a),
            (derivatives.dx_dx[1, :, 0], h * da_dq),
            (derivatives.dx_dx[1, :, 1], np.eye(coupled.nv) + h * da_dv),
        ]

    return {
        "forward_dynamics_derivatives": of_accelerations,
        "forward_dynamics_hessian": second,
        "step_derivatives": of_step,
    }


def computations(s: Case) -> Rows:
    """By computation: the robot's results, and the same computed by queries of the other robot."""
    coupled, free, S = s.tied.coupled, s.tied.free, s.tied.S
    q, v, a, (Q, V, A) = s.q, s.v, s.a, s.all
    point = (0.1, -0.2, 0.3)
    R = free.link_poses(Q).rotation[free.link_names.index(s.child)]
    entry = coupled.configuration.velocity_joints.index(s.leader)
    unloaded = {"gravity": np.zeros(3), "passive": False}
    unit = [Wrench(s.child, force=force, point=point) for force in np.eye(3)]
    J = np.array([-free.inverse_dynamics(Q, 0 * V, 0 * V, wrenches=force, **unloaded) @ S for force in unit])

    def pushed_at(forces: np.ndarray) -> dict[str, Any]:
        return {**s.gravity_options, "wrenches": [s.pushed["wrenches"], Wrench(s.child, force=forces[0], point=point)]}

    def held_point() -> list[tuple[Any, Any]]:
        """The point is held as well as its joints can (of the drawn one in two directions), by the least force."""
        answer = coupled.contact_dynamics(q, v, s.tau, Contact(s.child, point), **s.pushed)
        assert answer.rank == np.linalg.matrix_rank(J)
        free_a = s.tied.rates(answer.a)
        specific_force = free.imu(Q, V, free_a, links=[s.child], xyz=point, **s.gravity_options).specific_force[0]
        free_efforts = free.inverse_dynamics(Q, V, free_a, **pushed_at(answer.forces))
        left = J.T @ (R @ specific_force + GRAVITY)
        return [
            (1.0 + left, np.ones(coupled.nv)),
            (answer.forces[0], J @ np.linalg.pinv(J) @ answer.forces[0]),
            (s.tied.reduced(free_efforts), s.tau),
        ]

    def reactions() -> list[tuple[Any, Any]]:
        """What nothing drives is a leader; its efforts are its followers' too."""
        answer = coupled.ground_reactions(q, v, a, Contact(s.child, point, rigid=True), undriven=[s.leader], **s.pushed)
        least_force = np.linalg.pinv(J[:, [entry]].T) @ s.tau[[entry]]
        free_efforts = free.inverse_dynamics(Q, V, A, **pushed_at(answer.forces))
        assert answer.supported
        return [
            (answer.forces[0], least_force),
            (answer.tau, s.tied.reduced(free_efforts)),
            (1.0 + answer.tau[entry], 1.0),
        ]

    def causes() -> list[tuple[Any, Any]]:
        """They sum to the loads, which another row compares; those of a motor and of a wrench are loads alone."""
        answer = coupled.constraint_force_causes(q, v, s.tau, **s.pushed)
        one_axis = (answer.motors, answer.passive, answer.weights, answer.external)
        summed = sum(x.sum(axis=-1) for x in one_axis) + answer.rates.sum(axis=(-2, -1))
        at_rest = coupled.passive_forces(q, 0 * v).springs
        driven = coupled.constraint_forces(q, 0 * v, at_rest + s.tau, gravity=np.zeros(3)).wrench
        wrench = coupled.constraint_forces(q, 0 * v, at_rest, gravity=np.zeros(3), wrenches=s.pushed["wrenches"]).wrench
        return [
            (1.0 + summed, 1.0 + coupled.constraint_forces(q, v, s.tau, **s.pushed).wrench),
            (1.0 + answer.motors.sum(axis=-1), 1.0 + driven),
            (1.0 + answer.external.sum(axis=-1), 1.0 + wrench),
        ]

    return {"contact_dynamics": held_point, "ground_reactions": reactions, "constraint_force_causes": causes}


ELSEWHERE = {"verify", "simulate", "simulate_rheonomic", "loop_error", "assemble", "independent_motion"}
"""Computations that have tests of their own, below; those of closed loops in tests/engine/test_loops.py."""

TABLE = "`reduced_rows` in tests/theory/test_mimic.py"
WHAT = "a line for it: the names of its inputs, what S makes of the free robot's outputs, and its options"

REFUSED = ("branch_inertias",)
"""What (19b) is made of, where each joint yields by itself."""

PAIRS = {
    "panda": lambda: tied(URDF / "panda.urdf", 1),
    "pr2": lambda: tied(path_of("pr2_description/urdf/pr2.urdf"), 2, "planar"),
    "drawn": lambda: tied(random_urdf(21, movable=9), 3, draws=True),
    "scara": lambda: tied(URDF / "scara.urdf", 9, "planar", draws=True),
    "every type": lambda: tied(random_urdf(EVERY_TYPE, movable=len(MANY_TYPES), types=MANY_TYPES), 5, draws=True),
}

SMALL = ("drawn", "scara", "every type")
"""The others have no kind of joint that these lack. In oracle/test_mimic.py relations are those of files."""


@cache
def case_of(name: str) -> Case:
    return Case(PAIRS[name]())


@cache
def rows_of(name: str) -> Rows:
    return rows(case_of(name))


@pytest.mark.parametrize("row", [name for name in QUERIES if name not in REFUSED])
@pytest.mark.parametrize("name", wide(PAIRS, SMALL[1:].__contains__))
def test_every_row(name: str, row: str) -> None:
    pairs = entry(rows_of(name), row, TABLE, WHAT)
    case = case_of(name)
    for number, (ours, reference) in enumerate(pairs()):
        state = (case.tied.coupled, case.q, case.v, case.a)
        assert_close(f"{row}, pair {number}", ours, reference, 1e-9, *state, min_scale=1e-3)


@pytest.mark.parametrize("row", ["contact_dynamics", "ground_reactions", "constraint_force_causes"])
@pytest.mark.parametrize("name", wide(PAIRS, SMALL.__contains__))
def test_every_computation(name: str, row: str) -> None:
    case = case_of(name)
    for number, (ours, reference) in enumerate(computations(case)[row]()):
        state = (case.tied.coupled, case.q, case.v, case.a)
        assert_close(f"{row}, pair {number}", ours, reference, 1e-9, *state, min_scale=1e-3)


def test_no_row_is_left_out() -> None:
    row_names = {*rows(case_of("scara")), *REFUSED}
    assert_complete(row_names, QUERIES, TABLE, f"add {WHAT}")
    of_robots = {name for name, row in COMPUTATIONS.items() if row.robot}
    place, instruction = "`computations` in tests/theory/test_mimic.py", "add a comparison, or the name to ELSEWHERE"
    assert_complete({*computations(case_of("scara")), *ELSEWHERE}, of_robots, place, instruction)


@pytest.mark.parametrize("name", wide(PAIRS, SMALL.__contains__))
def test_what_has_each_joint_yield_by_itself_is_refused(name: str) -> None:
    pushed_pair = case_of(name)
    coupled, free = pushed_pair.tied.coupled, pushed_pair.tied.free
    for ask in (lambda r, q: r.branch_inertias(q), lambda r, q: r.influence_operators(q, operator="beta")):
        with pytest.raises(FailedPreconditionError, match=naming(re.compile("robot '.+'.* joint '.+' follows '.+'"))):
            ask(coupled, pushed_pair.q)
        ask(free, pushed_pair.all[0])
    row = QUERIES["branch_inertias"]
    assert coupled.evaluator.has_kernel(row)  # none is waited for
    assert coupled.evaluator.load_kernel(row)
    coupled.prepare(["branch_inertias"])
    assert "branch_inertias" not in coupled.certificates


@pytest.mark.parametrize(
    "name", wide([*WITH_MIMICS, *WITHOUT_MIMICS], {*WITH_MIMICS[:2], *WITHOUT_MIMICS[::12]}.__contains__)
)
def test_forward_undoes_inverse(name: str) -> None:
    """On real robots, with every part at every joint, pushed."""
    described = read(path_of(name))
    described = described if name in WITH_MIMICS else drawn(described, WITHOUT_MIMICS.index(name))
    robot = restless(described, 3)
    if not robot.tree.has_mimics:
        pytest.skip("one joint has none to follow")
    assert robot.tree.passive.acts == set(PASSIVE_PARTS)
    assert_undone(interpreted_robot(robot), 4)


@pytest.mark.parametrize("root", ["fixed", "floating"])
@pytest.mark.parametrize("seed", wide([EVERY_TYPE, 0, 1, 2], EVERY_TYPE.__eq__))
def test_forward_undoes_inverse_on_joints_of_every_type(seed: int, root: RootType) -> None:
    described = drawn(read(random_urdf(seed, movable=len(MANY_TYPES), types=MANY_TYPES)), seed, share=0.6)
    assert_undone(interpreted_robot(restless(described, seed, root=root)), seed)


@pytest.mark.parametrize("compiled", wide([False, True], False.__eq__), ids=["interpreted", "compiled"])
@pytest.mark.parametrize("name", wide(["scara", "panda", "every type"], "scara".__eq__))
def test_all_formulations_agree_and_certificates_hold(name: str, compiled: bool) -> None:
    if name == "panda":
        robot = restless(URDF / "panda.urdf", 1)
    elif name == "scara":
        robot = restless(drawn(read(URDF / "scara.urdf"), 9, share=0.6), 1)
    else:
        description = drawn(read(random_urdf(8, movable=6, types=MANY_TYPES)), 1, share=0.6)
        robot = restless(description, 2, root="floating")
    assert robot.tree.has_mimics
    robot = robot if compiled else interpreted_robot(robot, certifying=True)
    for surveyed in (robot, robot.without_passive):
        assert len(assert_formulations_agree(surveyed, 1e-11, 5)["residuals"]) == 14
    assert robot.certificates
    assert all(certificate.holds for certificate in robot.certificates.values())


def test_alone_and_in_a_batch_to_the_last_bit() -> None:
    robot = Robot.from_urdf(URDF / "panda.urdf")
    rng = np.random.default_rng(0)
    q, v, a = rng.normal(size=(3, 33, robot.nv))
    for ask in (robot.inverse_dynamics, robot.forward_dynamics):
        batch = ask(q, v, a)
        assert np.array_equal(batch, [ask(*state) for state in zip(q, v, a, strict=True)])


@pytest.mark.parametrize("integrator", ["implicit_midpoint", "adaptive", "semi_implicit_euler"])
def test_every_way_to_step(integrator: Any) -> None:
    """Without losses energy stays, as well as the way to step keeps it."""
    robot = restless(drawn(read(URDF / "double_pendulum.urdf"), 1), 3, {"springs", "armature"})
    assert (robot.nv, robot.tree.nr) == (1, 2)
    motion = robot.simulate([0.4], [1.0], dt=1e-3, steps=300, integrator=integrator)
    energy = robot.energy(motion.q, motion.v)
    assert np.ptp(energy.potential) > 0.01
    tolerance = {"implicit_midpoint": 1e-5, "adaptive": 1e-11, "semi_implicit_euler": 1e-1}[integrator]
    assert np.ptp(energy.total) < tolerance * np.ptp(energy.potential)


def test_sticking_fingers() -> None:
    """Coulomb friction of both fingers holds them: f of the leader and |m| f of the follower, to the last bit."""
    robot = restless(URDF / "panda.urdf", 2, {"friction"})
    friction = robot.tree.passive.friction
    k = robot.joint_names.index("panda_finger_joint1")
    q, v = robot.neutral(), np.zeros(robot.nv)
    hold = robot.inverse_dynamics(q, v, v, passive=False)
    for share, sticks in ((0.99, True), (1.01, False)):
        tau = hold.copy()
        tau[k] += share * (friction[-1] + friction[-2])
        motion = robot.simulate(q, v, tau, dt=1e-3, steps=1, integrator="stick_slip")
        assert (motion.v[-1, k] == 0.0) == sticks


def test_given_motion_of_a_leader_moves_its_followers() -> None:
    """Rheonomic: the fingers close as given, and the efforts of both are what closes them."""
    robot = Robot.from_urdf(URDF / "panda.urdf")
    rng = np.random.default_rng(0)
    q, v, tau = robot.random_configuration(seed=1), *rng.normal(size=(2, robot.nv))
    motion = rheonomic.forward_dynamics(robot, q, v, tau, {"panda_finger_joint1": 0.7})
    assert motion.a[-1] == 0.7
    assert np.allclose(robot.inverse_dynamics(q, v, motion.a), motion.tau, atol=1e-9)


def test_the_fingers_close_as_one() -> None:
    robot = Robot.from_urdf(URDF / "panda.urdf")
    q = np.zeros(robot.nq)
    q[-1] = 0.03
    poses = robot.link_poses(q)
    hand, left, right = (poses.links.index(f"panda_{name}") for name in ("hand", "leftfinger", "rightfinger"))
    finger_distance = poses.position[left] - poses.position[right]
    assert np.isclose(np.linalg.norm(finger_distance), 0.06)
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
    sideways_efforts = robot.gravity_forces([0.2], gravity=[9.0, 0.0, 0.0])
    assert np.allclose(sideways_efforts, [5.0 * 3 * 9.0 * 0.1 * np.sin(0.2 * 5 + 0.5)], rtol=1e-14)


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
    assert_formulations_agree(interpreted_robot(robot), 1e-12, 3)
    massless = text.replace('<mass value="1"/>', '<mass value="0"/>').replace(
        'ixx="1" iyy="1" izz="1"', 'ixx="0" iyy="0" izz="0"'
    )
    assert Robot.from_urdf(massless).massless_joint == "lead"
    with pytest.raises(FailedPreconditionError, match="joint 'lead' has no inertia along it"):
        Robot.from_urdf(massless).forward_dynamics([0.3], [0.2], [2.0])

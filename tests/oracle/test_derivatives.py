"""Derivatives by sweeps against Pinocchio's, and against automatic differentiation of the equations themselves.

Pinocchio knows neither mimic joints nor all passive forces; there the derivatives of our own inverse dynamics, which
other tests hold, are taken by CasADi. All are along small motions of the joints in body axes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pinocchio as pin
import pytest

from dyn_service.api.queries import QUERIES
from dyn_service.dynamics import (
    articulated,
    derivatives,
    hamilton,
    hessians,
    integration,
    motion_derivatives,
    newton_euler,
    task_space,
)
from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics.kinematics import integrate, position_rates
from dyn_service.dynamics.sweeps import PerBody
from dyn_service.engine.robot import Robot
from dyn_service.kernels import frames
from tests.comparing import assert_close
from tests.conftest import URDF
from tests.oracle.example_robots import path_of
from tests.oracle.many_types import ManyTypes
from tests.oracle.test_many_types import WALKING, many_types_urdf, states
from tests.oracle.test_pinocchio import ROUNDING_OF_A_SOLUTION, TOLERANCE
from tests.passive import restless
from tests.terms.interpreting import interpreted_robot, interpreting
from tests.terms.steps_in_numbers import GRAVITY, TREES
from tests.wide import one_in, wide


def assert_agrees(robot: Robot) -> None:
    """Pinocchio's derivatives in some states."""
    oracle, (q, v, a) = ManyTypes(robot.tree), states(robot, 0)
    inverse, tau = robot.inverse_dynamics_derivatives(q, v, a), robot.inverse_dynamics(q, v, a)
    forward = robot.forward_dynamics_derivatives(q, v, tau)
    reference: dict[str, list[np.ndarray]] = {}
    for k in range(len(q)):
        pinocchio_q = oracle.position(q[k])
        of_tau = pin.computeRNEADerivatives(oracle.model, oracle.data, pinocchio_q, v[k], a[k])
        of_a = pin.computeABADerivatives(oracle.model, oracle.data, pinocchio_q, v[k], tau[k])
        names = ("dtau_dq", "dtau_dv", "dtau_da", "da_dq", "da_dv", "da_dtau")
        for name, x in zip(names, (*of_tau, *of_a), strict=True):
            symmetric = name in ("dtau_da", "da_dtau")
            reference.setdefault(name, []).append(np.triu(x) + np.triu(x, 1).T if symmetric else x.copy())
    tolerance_of_solution = max(TOLERANCE, ROUNDING_OF_A_SOLUTION * float(np.linalg.cond(inverse.dtau_da).max()))
    for name, x in reference.items():
        of_tau, expected = name.startswith("dtau"), np.array(x)
        answer, query = (inverse, "inverse") if of_tau else (forward, "forward")
        tolerance = TOLERANCE if of_tau else tolerance_of_solution
        # Of one joint alone some are zero, and Pinocchio's are rounding: the scale is that of all states, at least 1.
        scale = max(1.0, np.abs(expected).max())
        term = f"{query}_dynamics_derivatives.{name}"
        assert_close(term, getattr(answer, name), expected, tolerance, robot, q, v, a, min_scale=scale)
    assert_close("inverse_dynamics_derivatives.tau", inverse.tau, tau, TOLERANCE, robot, q, v, a)
    assert_close("forward_dynamics_derivatives.a", forward.a, a, tolerance_of_solution, robot, q, v, a)
    M = robot.mass_matrix(q)
    momentum = robot.momentum_derivatives(q, v)
    for term, derivative in (
        ("inverse_dynamics_derivatives.dtau_da", inverse.dtau_da),
        ("momentum_derivatives.dp_dv", momentum.dp_dv),
    ):
        assert_close(term, derivative, M, TOLERANCE, robot, q, v, a)
        assert np.array_equal(derivative, derivative.mT), term


@pytest.mark.parametrize("seed", wide(range(100), one_in(20)))
def test_random_trees(seed: int) -> None:
    assert_agrees(interpreting(many_types_urdf(seed)))


@pytest.mark.parametrize("name", wide(WALKING, {WALKING[2]}.__contains__))
def test_walking_robots(name: str) -> None:
    assert_agrees(interpreting(path_of(name), root="floating", mimic=False).without_passive)


def jacobians(f: ex.Matrix, tangent: ex.Matrix, *variables: ex.Matrix) -> list[ex.Matrix]:
    """Derivatives of f at tangent = 0."""
    matrices = [f, *(ex.jacobian(f, x) for x in (tangent, *variables))]
    return ex.substitute(matrices, [tangent], [ex.zeros(*tangent.shape)])


@pytest.mark.parametrize("name", TREES)
def test_automatic_differentiation(name: str) -> None:
    """With external wrenches and oblique gravity; of steps, the changes of the entries of q."""
    tree, rng = TREES[name](), np.random.default_rng(0)
    symbols = q, v, x, h, e = [ex.sym("x", n) for n in (tree.nq, tree.nv, tree.nv, 1, tree.nv)]
    W = PerBody(ex.matrix(w) for w in rng.uniform(-5.0, 5.0, (len(tree), 6)))
    q_near, loads = integrate(tree, q, e, ex.matrix(1.0)), (GRAVITY, W)
    pairs: dict[str, tuple[list[Any], list[Any]]] = {}
    for inverse, direction in ((newton_euler.inverse_dynamics, "inverse"), (articulated.forward_dynamics, "forward")):
        answer = getattr(derivatives, f"of_{direction}_dynamics")(tree, q, v, x, *loads)
        pairs[direction] = (
            [answer.f, answer.q, answer.v, answer.x],
            jacobians(inverse(tree, q_near, v, x, *loads), e, v, x),
        )
    steps = ("explicit_euler", "semi_implicit_euler", "rk4")
    for step in steps if name == next(iter(TREES)) else steps[1:2]:
        step_graph = getattr(derivatives, step)(tree, q, v, x, h, *loads)
        stepped = getattr(integration, step)(tree, q_near, v, x, h, *loads)
        (N,) = ex.substitute([ex.jacobian(position_rates(tree, q, v), v)], [q], [step_graph["q"]])
        n = tree.nv
        ours = [ex.reshape(step_graph["dx_dx"], 2 * n, 2 * n).T, ex.reshape(step_graph["dx_dtau"], n, 2 * n).T]
        combined = ex.diagcat(N, ex.eye(n)) @ ex.horzcat(*ours)
        state, *state_jacobians = jacobians(ex.vertcat(stepped["q"], stepped["v"]), e, v, x)
        pairs[step] = [ex.vertcat(step_graph["q"], step_graph["v"]), combined], [state, ex.horzcat(*state_jacobians)]
    state_values = [tree.configuration.normalised(rng.normal(size=tree.nq)), *rng.normal(size=(2, tree.nv)), [0.01]]
    assert_equal(pairs, symbols[:4], state_values)


@pytest.mark.parametrize("name", TREES)
def test_hessians_by_automatic_differentiation(name: str) -> None:
    """Gradient and Hessian of weighted efforts and accelerations at integrate(q, e, 1), e = 0, under wrenches.

    Entries of locked joints are zero.
    """
    tree, rng = TREES[name](), np.random.default_rng(0)
    n = tree.nv
    symbols = q, v, x, w, e = [ex.sym("x", k) for k in (tree.nq, n, n, n, n)]
    W = PerBody(ex.matrix(w) for w in rng.uniform(-5.0, 5.0, (len(tree), 6)))
    q_near, loads = integrate(tree, q, e, ex.matrix(1.0)), (GRAVITY, W)
    free = np.ones(n) if tree.free is None else np.asarray(tree.free)
    free_pairs = ex.matrix(np.outer(free, free))
    pairs: dict[str, tuple[list[Any], list[Any]]] = {}
    for f, direction in ((newton_euler.inverse_dynamics, "inverse"), (articulated.forward_dynamics, "forward")):
        answer = getattr(hessians, f"of_{direction}_dynamics")(tree, q, v, x, w, *loads)
        value = ex.dot(free * w, f(tree, q_near, v, x, *loads))
        by_e, by_v, by_x = (ex.jacobian(value, z).T for z in (e, v, x))
        blocks = [
            ex.jacobian(*expression_and_variable)
            for expression_and_variable in ((by_e, e), (by_e, v), (by_v, v), (by_e, x))
        ]
        expected = [*(free * z for z in (by_e, by_v, by_x)), *(free_pairs * block for block in blocks)]
        reference = ex.substitute(expected, [e], [ex.zeros(n, 1)])
        pairs[direction] = [answer.q, answer.v, answer.x, answer.qq, answer.qv, answer.vv, answer.qx], reference
    state_values = [tree.configuration.normalised(rng.normal(size=tree.nq)), *rng.normal(size=(3, n))]
    assert_equal(pairs, symbols[:4], state_values)


def test_the_walk_of_a_hessian_has_the_first_derivatives() -> None:
    """The same bits as those by a walk of their own, on a chain whose bodies carry others that carry others."""
    tree, rng = restless(URDF / "ur5e.urdf").tree, np.random.default_rng(0)
    symbols = q, v, x, w = [ex.sym("x", tree.nv) for _ in range(4)]
    second_order = hessians.of_inverse_dynamics(tree, q, v, x, w, GRAVITY, None, with_efforts=True)
    first_order = derivatives.of_inverse_dynamics(tree, q, v, x, GRAVITY, None)
    matrices = ex.substitute(
        [*second_order.efforts, first_order.q, first_order.v], symbols, list(rng.normal(size=(4, tree.nv)))
    )
    for from_second_order, from_first_order in zip(matrices[:2], matrices[2:], strict=True):
        assert np.array_equal(from_second_order.array(), from_first_order.array())


def assert_equal(pairs: dict[str, tuple[list[Any], list[Any]]], symbols: list[Any], state_values: list[Any]) -> None:
    for case, sides in pairs.items():
        ours, references = ([x.array() for x in ex.substitute(side, symbols, state_values)] for side in sides)
        for answer, reference in zip(ours, references, strict=True):
            error = np.abs(answer - reference).max() / (1 + np.abs(reference).max())
            # Two graphs of one function, one of them with thousands of operations: rounding of their cancelling sums.
            assert error < 1e-10, (case, error)


def differentiated(outputs: dict[str, ex.Matrix], e: ex.Matrix, v: ex.Matrix) -> list[ex.Matrix]:
    """Values, then derivatives with respect to e and v."""
    return jacobians(ex.vertcat(*outputs.values()), e, v)


@pytest.mark.parametrize("name", list(TREES)[:2])
def test_motions_by_automatic_differentiation(name: str) -> None:
    """Points in all axes, momenta, energies, and the momentum about the centre of mass and its rate."""
    tree, rng = TREES[name](), np.random.default_rng(0)
    n, nl = tree.nv, len(tree)
    symbols = q, v, a, e = [ex.sym("x", k) for k in (tree.nq, n, n, n)]
    q_near = integrate(tree, q, e, ex.matrix(1.0))
    pairs: dict[str, tuple[list[Any], list[Any]]] = {}

    def shaped(x: ex.Matrix) -> ex.Matrix:
        return ex.reshape(x, n, -1).T

    answer = motion_derivatives.momentum_derivatives(tree, q, v)
    pairs["momentum"] = (
        [answer["p"], *map(shaped, (answer["dp_dq"], answer["dp_dv"]))],
        differentiated({"p": hamilton.momentum(tree, q_near, v)}, e, v),
    )
    answer = motion_derivatives.energy_derivatives(tree, q, v, GRAVITY)
    rows = (
        ex.horzcat(answer["dkinetic_dq"], answer["dpotential_dq"]).T,
        ex.horzcat(answer["dkinetic_dv"], ex.zeros(n, 1)).T,
    )
    energies = {part: hamilton.energy(tree, q_near, v, GRAVITY)[part] for part in ("kinetic", "potential")}
    pairs["energy"] = [ex.vertcat(answer["kinetic"], answer["potential"]), *rows], differentiated(energies, e, v)
    # Of the whole robot: body 0 of these trees is the world.
    at_q, at_v = ex.sym("q", tree.nq), ex.sym("v", n)
    whole = hamilton.system_momentum(tree, at_q, at_v)
    H, P, centre = whole["momentum"][:3], whole["momentum"][3:6], whole["centre"][:3]
    centroidal_momentum = ex.vertcat(H - ex.cross(centre, P), P)
    rate = ex.jtimes(centroidal_momentum, ex.vertcat(at_q, at_v), ex.vertcat(position_rates(tree, at_q, at_v), a))
    seen = ex.substitute([centre, centroidal_momentum, rate], [at_q, at_v], [q_near, v])
    answer = motion_derivatives.centroidal_derivatives(tree, q, v, a)
    values = ex.vertcat(answer["centre"], answer["momentum"], answer["rate"])
    by_q = ex.vertcat(*(shaped(answer[part]) for part in ("jacobian", "dmomentum_dq", "drate_dq")))
    by_v = ex.vertcat(ex.zeros(3, n), *(shaped(answer[part]) for part in ("dmomentum_dv", "drate_dv")))
    pairs["centroidal"] = [values, by_q, by_v], differentiated(dict(zip("cKF", seen, strict=True)), e, v)
    ways = [sum(tree.inboard[j].nv for j in tree.ancestors(i)) for i in range(nl)]
    link, point = np.eye(nl)[int(np.argmax(ways))], ex.matrix([0.1, -0.2, 0.3])  # that most joints move
    for frame in ("", "_local", "_world"):
        answer = getattr(motion_derivatives, f"point_motion{frame}")(tree, q, v, a, ex.matrix(link), point)
        motion = getattr(task_space, f"point_motion{frame}")(tree, q_near, v, ex.matrix(link), point)
        motions = {"V": motion["velocity"], "A": shaped(motion["jacobian"]) @ a + motion["bias"]}
        by_q = ex.vertcat(shaped(answer["dvelocity_dq"]), shaped(answer["dacceleration_dq"]))
        by_v = ex.vertcat(shaped(answer["jacobian"]), shaped(answer["dacceleration_dv"]))
        pairs[f"point{frame}"] = (
            [ex.vertcat(answer["velocity"], answer["acceleration"]), by_q, by_v],
            differentiated(motions, e, v),
        )
    state_values = [tree.configuration.normalised(rng.normal(size=tree.nq)), *rng.normal(size=(2, n))]
    assert_equal(pairs, symbols[:3], state_values)


def test_the_centre_of_a_light_robot_has_all_its_digits() -> None:
    """The centre of one link of a picogram is its own, within the rounding of a product of rotations."""
    text = (
        "<robot name='light'><link name='base'/><link name='arm'><inertial><origin xyz='0.3 0 0'/><mass value='1e-15'/>"
        "<inertia ixx='1e-15' iyy='1e-15' izz='1e-15' ixy='0' ixz='0' iyz='0'/></inertial></link><joint name='joint' "
        "type='continuous'><parent link='base'/><child link='arm'/><axis xyz='0 0 1'/></joint></robot>"
    )
    centre = Robot.from_text(text).centroidal_derivatives([0.5], [0.0], [0.0]).centre
    np.testing.assert_allclose(centre, [0.3 * np.cos(0.5), 0.3 * np.sin(0.5), 0.0], rtol=1e-15, atol=1e-16)


def test_a_robot_without_mass_has_its_centre_at_the_origin() -> None:
    text = (
        "<robot name='massless'><link name='base'/><link name='arm'/><joint name='joint' type='continuous'>"
        "<parent link='base'/><child link='arm'/><origin xyz='1 2 3'/></joint></robot>"
    )
    derivatives = interpreted_robot(Robot.from_text(text)).centroidal_derivatives(np.ones(1), np.ones(1), np.ones(1))
    for name in QUERIES["centroidal_derivatives"].outputs:
        np.testing.assert_array_equal(getattr(derivatives, name), 0.0, err_msg=name)


@pytest.mark.parametrize("turn", [0.0, 1e-12, 1e-3, 0.499, 0.501, 3.0, 30.0])
def test_small_and_large_turns_of_a_step(turn: float) -> None:
    """How a step of a floating joint changes with its velocity, against the mean of exp(-X) in a long series."""
    robot = Robot.from_urdf(URDF / "solo12.urdf", root="floating")
    tree, rng = robot.tree.without_passive, np.random.default_rng(0)
    step = np.concatenate([rng.normal(size=3), turn * np.array([0.6, 0.0, 0.8]), np.zeros(tree.nv - 6)])
    dq_dq, dq_dv = (x.array()[:6, :6] for x in derivatives.integrate_derivatives(tree, ex.matrix(step)))
    u, w = pin.skew(step[:3]), pin.skew(step[3:6])
    X = np.block([[w, u], [np.zeros((3, 3)), w]])
    parts = 64  # the mean over the whole is that over its 64th, carried on
    exponential, small, power = np.eye(6), np.eye(6), np.eye(6)
    for k in range(1, 16):
        power = power @ (-X / parts) / k
        exponential, small = exponential + power, small + power / (k + 1)
    mean, transport = np.zeros((6, 6)), np.eye(6)
    for _ in range(parts):
        mean, transport = mean + transport @ small / parts, transport @ exponential
    # The series has 64 parts of 15 terms, each good to the last bit.
    assert np.abs(dq_dv - mean).max() < 1e-13 * max(1.0, turn)
    assert np.abs(dq_dq - transport).max() < 1e-13 * max(1.0, turn)


def operations(*outputs: Any) -> int:
    """Of a graph whose common terms are shared."""
    symbols = ex.column(ex.symvar(ex.column([x for output in outputs for x in output.elements()])))
    program = ex.Program.of([symbols], outputs)
    return len(program.instructions) - len(symbols.data) - sum(program.outputs)


@pytest.mark.parametrize(("name", "share"), [("panda", 0.5)])
def test_cost_is_some_sweeps(name: str, share: float) -> None:
    """Value and all derivatives of inverse dynamics in some times the operations of its value, and of what AD takes."""
    tree = frames.cheapest_frames(Robot.from_urdf(URDF / f"{name}.urdf").tree).tree
    q, v, a, g = (ex.sym("x", n) for n in (tree.nq, tree.nv, tree.nv, 3))
    derivative_graphs = derivatives.of_inverse_dynamics(tree, q, v, a, g, None)
    tau = newton_euler.inverse_dynamics(tree, q, v, a, g)
    ours, value = (
        operations(derivative_graphs.f, derivative_graphs.q, derivative_graphs.v, derivative_graphs.x),
        operations(tau),
    )
    automatic = operations(tau, *(ex.jacobian(tau, x) for x in (q, v, a)))
    assert ours < 5.2 * value
    assert ours < share * automatic

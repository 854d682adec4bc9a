"""(M4) and (N4) of the Newton-Euler document, letter by letter; and robots whose equations nobody derives by hand."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import sympy

from dyn_service.api.arguments import JointNumbers, Overlay
from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics import symbolic
from dyn_service.dynamics.symbolic import SymbolicEquations, equations_of_motion
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError
from tests.conftest import ROOT, URDF
from tests.phrases import naming
from tests.random_robots import random_urdf
from tests.terms.interpreting import interpreting
from tests.trees import motions
from tests.wide import wide

L, g = sympy.symbols("L g", positive=True)


def derived(name: str) -> SymbolicEquations:
    return equations_of_motion(Robot.from_urdf(URDF / f"{name}.urdf").bodies.tree)


def letters(equations: SymbolicEquations, body: int) -> dict[sympy.Symbol, sympy.Expr]:
    """Our symbols for gravity and the bar's centre, s = (0, 0, -L), in the document's letters."""
    ours = {str(symbol): symbol for symbol in equations.parameters}
    return {ours["g"]: g, ours[f"s_{body}z"]: -L}


def assert_equal(expression: sympy.Expr, expected: sympy.Expr) -> None:
    """In sines and cosines of single angles, with cosines to the first power: this form of a function is unique."""
    rest = sympy.expand(expression - expected, trig=True)
    for wave in rest.atoms(sympy.cos):
        rest = sympy.expand(rest.subs(wave**2, 1 - sympy.sin(*wave.args) ** 2))
    assert rest == 0, f"{expression} is not {expected}"


def test_m4() -> None:
    """(I_1^zz + m_1 L^2) theta-ddot = tau - m_1 g L sin(theta); the document's z is our -y."""
    equations = derived("pendulum")
    (theta,), (acceleration,), (tau,) = equations.q, equations.a, equations.tau
    m, I = (next(s for s in equations.parameters if str(s) == name) for name in ("m_1", "I_1yy"))
    (equation,) = (equation.subs(letters(equations, 1)) for equation in equations.equations())
    assert_equal(equation.lhs - equation.rhs, (I + m * L**2) * acceleration - (tau - m * g * L * sympy.sin(theta)))
    assert equation.lhs.free_symbols == {theta, acceleration, m, I, L, g}  # no velocity, no other inertia


def test_n4() -> None:
    """The system matrix of (N4) and its right side, f and the hinge's effort being the joints' efforts."""
    equations = derived("cart_pendulum")
    parameters = {str(symbol): symbol for symbol in equations.parameters}
    m1, m2, I = parameters["m_1"], parameters["m_2"], parameters["I_2yy"]
    (_, theta), (_, rate) = equations.q, equations.v
    M, C = (x.subs(letters(equations, 2)) for x in (equations.mass_matrix, equations.bias))
    coupling = m2 * L * sympy.cos(theta)
    expected = sympy.Matrix([[m1 + m2, coupling], [coupling, I + m2 * L**2]])
    right = sympy.Matrix([m2 * L * sympy.sin(theta) * rate**2, -m2 * g * L * sympy.sin(theta)])
    assert sympy.simplify(M - expected) == sympy.zeros(2, 2)
    assert sympy.simplify(C + right) == sympy.zeros(2, 1)


def test_double_pendulum_is_the_textbooks() -> None:
    """Lagrange's equations, differentiated here from kinetic and potential energy, are what the sweeps give."""
    equations = derived("double_pendulum")
    parameters = {str(symbol): symbol for symbol in equations.parameters}
    (q1, q2), (v1, v2), (a1, a2) = equations.q, equations.v, equations.a
    s1, s2, d2 = parameters["s_1z"], parameters["s_2z"], parameters["d_2z"]

    def point_at(r1: sympy.Expr, r2: sympy.Expr) -> sympy.Matrix:
        """A point r1 along the upper bar and r2 along the lower; hanging is r < 0."""
        return sympy.Matrix(
            [-r1 * sympy.sin(q1) - r2 * sympy.sin(q1 + q2), r1 * sympy.cos(q1) + r2 * sympy.cos(q1 + q2)]
        )

    state, rates = sympy.Matrix([q1, q2]), sympy.Matrix([v1, v2])
    lagrangian = 0
    for mass, point, inertia, spin in (
        (parameters["m_1"], point_at(s1, 0), parameters["I_1yy"], v1),
        (parameters["m_2"], point_at(d2, s2), parameters["I_2yy"], v1 + v2),
    ):
        velocity = point.jacobian(state) * rates
        lagrangian += mass * velocity.dot(velocity) / 2 + inertia * spin**2 / 2 - mass * parameters["g"] * point[1]
    for k, equation in enumerate(equations.equations()):
        p = lagrangian.diff(rates[k])
        p_dot = p.diff(q1) * v1 + p.diff(q2) * v2 + p.diff(v1) * a1 + p.diff(v2) * a2
        assert_equal(equation.lhs, p_dot - lagrangian.diff(state[k]))


SEEDS = (904, 906, 907)
"""Trees of the suite; those of the other seeds have pairs of joints and branches that these have too."""


def test_sliders_hang_on_turning_bodies() -> None:
    """Or else nothing would see how a prismatic joint's place moves and what turning adds to its acceleration."""
    trees = [interpreting(random_urdf(seed, movable=3, bushy=0.6)).bodies.tree for seed in SEEDS]
    pairs = {(motions(tree)[p], motions(tree)[i]) for tree in trees for i, p in enumerate(tree.parent) if p >= 0}
    assert pairs >= {("revolute", "prismatic"), ("prismatic", "revolute"), ("revolute", "revolute")}


@pytest.mark.parametrize("seed", wide(range(904, 910), SEEDS.__contains__))
def test_with_numbers_it_is_the_kernel(seed: int) -> None:
    """Skew axes, prismatic joints, full inertias, branches, gravity in any direction: every parameter counts."""
    gravity = (1.0, -2.0, 3.0)
    robot = interpreting(random_urdf(seed, movable=3, bushy=0.6))
    equations = equations_of_motion(robot.bodies.tree, gravity=gravity, simplify=False)
    q, v = np.random.default_rng(seed).normal(size=(2, robot.nv))
    symbols = [*equations.q, *equations.v, *equations.parameters]
    in_numbers = sympy.lambdify(symbols, [equations.mass_matrix, equations.bias], cse=True)
    M, C = in_numbers(*q, *v, *equations.parameters.values())
    # The parameters pass through the centre of mass and back: some roundings of the largest entry.
    np.testing.assert_allclose(M, robot.mass_matrix(q), rtol=0, atol=1e-12 * np.abs(M).max())
    np.testing.assert_allclose(C[:, 0], robot.bias_forces(q, v, gravity=gravity), rtol=0, atol=1e-12 * np.abs(C).max())
    assert equations.joints == robot.joint_names


@pytest.mark.parametrize("passive", [True, False])
def test_what_joints_do_by_themselves_is_in_the_equations(passive: bool) -> None:
    part = {"damping": 0.5, "friction": 0.3, "friction_width": 0.05, "rest": 0.1, "armature": 0.07, "stiffness": 2.0}
    robot = interpreting((URDF / "pendulum.urdf").read_text())
    (joint,) = robot.joint_names
    robot = robot.overlaid(Overlay(joints={joint: JointNumbers(**part)}))
    equations = equations_of_motion(robot.bodies.tree, passive=passive).with_numbers()
    q, v = np.array([0.4]), np.array([-0.02])
    M, C = sympy.lambdify([*equations.q, *equations.v], [equations.mass_matrix, equations.bias])(*q, *v)
    np.testing.assert_allclose(M, robot.mass_matrix(q, passive=passive), rtol=1e-12)
    np.testing.assert_allclose(C[:, 0], robot.bias_forces(q, v, passive=passive), rtol=1e-12)


def test_with_numbers() -> None:
    equations = derived("pendulum").with_numbers()
    assert not equations.parameters
    # The file's decimals pass through the centre of mass and back.
    assert float(equations.mass_matrix[0]) == pytest.approx(0.10025 + 1.2 * 0.25, rel=1e-14)
    assert_equal(
        sympy.nsimplify(equations.bias[0], rational=True), sympy.Rational(5886, 1000) * sympy.sin(equations.q[0])
    )


def test_every_operation_has_its_symbol() -> None:
    """Expressions that have operations of their own."""
    x, y = sympy.symbols("x y")
    symbols = ex.sym("given", 2)
    a, b = symbols[0], symbols[1]
    of_ours = ex.vertcat(a + b, a - b, a * b, a / b, -a, a * a, a + a, 1 / a, ex.sin(a), ex.cos(b), 3.0, 0.25 * a)
    of_sympy = [x + y, x - y, x * y, x / y, -x, x**2, 2 * x, 1 / x, sympy.sin(x), sympy.cos(y), 3, x / 4]
    assert symbolic._to_sympy(of_ours, symbols, [x, y]) == of_sympy
    assert symbolic._to_sympy(0.1 * a, symbols, [x, y]) == [sympy.Float(0.1) * x]  # a measured number stays one


def test_no_gravity_has_no_symbol() -> None:
    equations = equations_of_motion(Robot.from_urdf(URDF / "pendulum.urdf").bodies.tree, gravity=(0, 0, 0))
    assert equations.bias == sympy.zeros(1, 1)
    assert "g" not in map(str, equations.parameters)


def test_gravity_of_two_numbers_is_refused() -> None:
    tree = Robot.from_urdf(URDF / "pendulum.urdf").bodies.tree
    with pytest.raises(InvalidArgumentError, match=naming("gravity", "3", "(0, 1)")):
        equations_of_motion(tree, gravity=(0, 1))
    with pytest.raises(InvalidArgumentError, match="gravity must be 3 finite numbers"):
        equations_of_motion(tree, gravity=(0, 0, np.nan))


def test_without_sympy_it_says_what_to_install() -> None:
    code = """
import sys
sys.modules["sympy"] = None
try:
    import dyn_service.dynamics.symbolic
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout.strip().endswith("pip install 'dyn_service[symbolic]'")

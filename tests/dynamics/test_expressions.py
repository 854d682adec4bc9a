"""Expressions against CasADi: the same operations on the same operands in the same order, the same structural zeros."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import casadi as ca
import numpy as np
import pytest

from dyn_service.dynamics import expressions as ex
from tests.conftest import URDF

_CASADI_CODES = {
    ex.NAMES.index(ours): getattr(ca, f"OP_{casadi_name}")
    for ours, casadi_name in (
        *((name, name.upper()) for name in ("add", "sub", "mul", "div", "neg", "twice", "sqrt", "sin", "cos", "tanh")),
        *((name, name.upper()) for name in ("atan2", "fabs", "copysign", "not", "if_else_zero", "fmin", "fmax")),
        *(("square", "SQ"), ("inverse", "INV"), ("less", "LT")),
    )
}


def alike(ours: Any, casadi_entry: ca.SX) -> bool:
    """Whether both are the same operations; of a division of numbers by zero ours keeps the sign, and NaN."""
    if not isinstance(ours, ex.Node):
        ours = 0.0 if ours is None else ours
        if not casadi_entry.is_constant():
            return False
        return float(casadi_entry) == ours or not (math.isfinite(ours) or math.isfinite(float(casadi_entry)))
    if casadi_entry.is_constant() or casadi_entry.is_symbolic() or ours.op == ex.SYMBOL:
        return ours.op == ex.SYMBOL and casadi_entry.is_symbolic() and casadi_entry.name() == ours.name
    operands = [ours.a] if ours.b is None else [ours.a, ours.b]
    return casadi_entry.op() == _CASADI_CODES[ours.op] and all(
        alike(x, casadi_entry.dep(k)) for k, x in enumerate(operands)
    )


UNARY: tuple[Callable[[Any, Any], Any], ...] = (
    lambda m, x: -x,
    lambda m, x: x**2,
    lambda m, x: x**3,
    lambda m, x: m.sqrt(x),
    lambda m, x: m.sin(x),
    lambda m, x: m.cos(x),
    lambda m, x: m.tanh(x),
    lambda m, x: m.fabs(x),
    lambda m, x: m.logic_not(x),
    lambda m, x: 1 / x,
    lambda m, x: 2 * x,
    lambda m, x: x / 2,
    lambda m, x: 0.5 * x,
    lambda m, x: x * 3,
    lambda m, x: 3 - x,
    lambda m, x: x + 3,
    lambda m, x: x / 3,
    lambda m, x: -1 * x,
)
BINARY: tuple[Callable[[Any, Any, Any], Any], ...] = (
    # As often as in a robot's equations: sums and products meet each other, where the simplifications are.
    *[lambda m, x, y: x + y] * 6,
    *[lambda m, x, y: x - y] * 6,
    *[lambda m, x, y: x * y] * 6,
    *[lambda m, x, y: x / y] * 3,
    *[lambda m, x, y: m.if_else(x, y, 0)] * 2,
    lambda m, x, y: m.if_else(x < y, x, y),
    lambda m, x, y: m.atan2(x, y),
    lambda m, x, y: m.copysign(x, y),
    lambda m, x, y: m.fmin(x, y),
    lambda m, x, y: m.fmax(x, y),
)


@pytest.mark.parametrize("seed", range(60))
def test_scalars(seed: int) -> None:
    """Random expressions of few symbols, so that operands are often equal; CasADi gets one object for these."""
    rng = np.random.default_rng(seed)
    with ex.graph():
        pool: list[tuple[ex.Matrix, ca.SX]] = [(ex.sym(name), ca.SX.sym(name)) for name in "xyz"[: 1 + seed % 3]]
        pool += [(ex.matrix(value), ca.SX(value)) for value in (0.5, 2.0, 0.1) if rng.random() < 0.3]
        casadi_of = {id(ours.data[0]): casadi_symbol for ours, casadi_symbol in pool}
        for _ in range(20):
            if rng.random() < 0.4:
                operation: Any = UNARY[rng.integers(len(UNARY))]
                operands = [pool[rng.integers(len(pool))]]
            else:
                operation = BINARY[rng.integers(len(BINARY))]
                operands = [pool[rng.integers(len(pool))] for _ in range(2)]
            ours, casadi_result = operation(ex, *(x for x, _ in operands)), operation(ca, *(x for _, x in operands))
            (entry,) = ours.data
            if isinstance(entry, ex.Node):
                assert alike(entry, casadi_result), (entry, casadi_result)
                pool.append((ours, casadi_of.setdefault(id(entry), casadi_result)))
            else:
                assert alike(entry, casadi_result), (entry, casadi_result)


def _random_matrices(rng: np.random.Generator, name: str, shape: tuple[int, int]) -> tuple[ex.Matrix, ca.SX]:
    """Symbols, numbers and structural zeros at random places."""
    ours, casadi_matrix = ex.sym(name, *shape), ca.SX.sym(name, *shape)
    other = ca.SX(*shape)
    data: list[Any] = []
    for k, x in enumerate(ours.data):
        # Whole numbers: 0, 1, -1 and 2 are those that simplifications treat in a special way.
        kind, value = rng.integers(5), float(rng.integers(-2, 3))
        data.append(None if kind == 0 else value if kind == 1 else x)
        if kind:
            other[k] = value if kind == 1 else casadi_matrix[k]
    return ex.Matrix(*shape, data), other


def _equal(ours: ex.Matrix, casadi_matrix: Any) -> None:
    casadi_matrix = ca.SX(casadi_matrix)
    assert ours.shape == casadi_matrix.shape
    rows = ours.shape[0]
    nonzero = [casadi_matrix.sparsity().has_nz(k % rows, k // rows) for k in range(len(ours.data))]
    assert [x is not None for x in ours.data] == nonzero
    for k in ours.places:
        assert alike(ours.data[k], casadi_matrix[k]), (ours.data[k], casadi_matrix[k])


MATRICES: dict[str, Callable[..., Any]] = {
    "sum": lambda m, A, B, v, w, s: A + B,
    "difference": lambda m, A, B, v, w, s: A - B,
    "products of entries": lambda m, A, B, v, w, s: A * B,
    "quotients": lambda m, A, B, v, w, s: A / (B * B + 1),
    "with a scalar": lambda m, A, B, v, w, s: (s + A) - (B * s),
    "scalar below": lambda m, A, B, v, w, s: 3 / (s * s + 1) * A / 2,
    "each column": lambda m, A, B, v, w, s: v * A,
    "product": lambda m, A, B, v, w, s: A @ B,
    "of a vector": lambda m, A, B, v, w, s: A.T @ v,
    "row by column": lambda m, A, B, v, w, s: v.T @ w,
    "column by row": lambda m, A, B, v, w, s: v @ w.T,
    "negative": lambda m, A, B, v, w, s: -A,
    "power": lambda m, A, B, v, w, s: A**2,
    "cosines": lambda m, A, B, v, w, s: m.cos(A),
    "sines": lambda m, A, B, v, w, s: m.sin(A),
    "not": lambda m, A, B, v, w, s: m.logic_not(A),
    "less": lambda m, A, B, v, w, s: v < s,
    "larger": lambda m, A, B, v, w, s: m.fmax(v, w),
    "chosen": lambda m, A, B, v, w, s: m.if_else(s, A, B),
    "skew": lambda m, A, B, v, w, s: m.skew(v),
    "cross": lambda m, A, B, v, w, s: m.cross(v, w),
    "dot": lambda m, A, B, v, w, s: m.dot(v, w),
    "sum of columns": lambda m, A, B, v, w, s: m.sum1(A),
    "squares": lambda m, A, B, v, w, s: m.sumsqr(A),
    "length": lambda m, A, B, v, w, s: m.norm_2(v),
    "trace": lambda m, A, B, v, w, s: m.trace(A),
    "symmetric": lambda m, A, B, v, w, s: m.triu2symm(m.triu(A)),
    "diagonal": lambda m, A, B, v, w, s: m.diag(v) @ m.diag(m.diag(A)) @ m.diag(w.T),
    "stacked": lambda m, A, B, v, w, s: m.vertcat(A, w.T, m.horzcat(v, B)[:, :3]),
    "blocks": lambda m, A, B, v, w, s: m.blockcat([[A, v], [w.T, s]]),
    "along the diagonal": lambda m, A, B, v, w, s: m.diagcat(A, s, v),
    "split": lambda m, A, B, v, w, s: m.vertcat(*m.horzsplit(A), *m.vertsplit(v)),
    "reshaped": lambda m, A, B, v, w, s: m.reshape(m.vec(m.horzcat(A, v)), 6, -1),
    "parts": lambda m, A, B, v, w, s: m.vertcat(A[1:, 0], A[0, :].T, v[-1], A[2, 1], v[:2]),
    "zeros": lambda m, A, B, v, w, s: m.horzcat(m.densify(A), m.sparsify(B)),
    "angle": lambda m, A, B, v, w, s: m.atan2(v, w),
    "identity": lambda m, A, B, v, w, s: (A * 0 + 1) @ B,
}


@pytest.mark.parametrize("case", MATRICES)
def test_matrices(case: str) -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        with ex.graph():
            operands = [
                _random_matrices(rng, name, (3, columns)) for name, columns in (("A", 3), ("B", 3), ("v", 1), ("w", 1))
            ]
            operands.append((ex.sym("s"), ca.SX.sym("s")))
            _equal(MATRICES[case](ex, *(x for x, _ in operands)), MATRICES[case](ca, *(x for _, x in operands)))


def test_entries_are_set() -> None:
    """One entry that is set to a structural zero is a number afterwards; of larger parts they stay structural."""
    for zeros, sym in ((ex.zeros, ex.sym), (ca.SX, ca.SX.sym)):
        A = zeros(3, 3)
        A[0, 1] = A[2, 2] = sym("x")
        A[1, 1] = zeros(1, 1)
        A[1:, :2] += sym("y", 2, 2)
        A[2, :] = zeros(1, 3)
        if zeros is ex.zeros:
            ours = A
    _equal(ours, A)


def _formulas(m: Any, x: Any) -> Any:
    a, b, c = x[0], x[1], x[2]
    small = a * a + b * b
    return m.vertcat(
        *(a * b * m.sin(c), a / b, b**2 + m.sqrt(c), m.cos(a) * m.tanh(b), m.atan2(a, c), 1 / (b + c), 2 * a - b / 3),
        *(m.if_else(small < c, m.sin(a) * b, a - c), -(a * c) / (b * c + 3), 4.0 * c),
    )


def test_derivatives_and_substitution() -> None:
    with ex.graph():
        x, d, y, e = ex.sym("x", 3), ex.sym("d", 3), ca.SX.sym("x", 3), ca.SX.sym("d", 3)
        ours, casadi_value = _formulas(ex, x), _formulas(ca, y)
        _equal(ex.jtimes(ours, x, d), ca.jtimes(casadi_value, y, e))
        jacobian, expected = ex.jacobian(ours, x), ca.densify(ca.jacobian(casadi_value, y))
        assert all(alike(a, expected[k]) for k, a in enumerate(jacobian.data))
        substituted = ex.substitute([ours, jacobian], [x], [ex.vertcat(d[1] + d[2], 2.0, d[0])])
        _equal(substituted[0], ca.substitute(casadi_value, y, ca.vertcat(e[1] + e[2], 2.0, e[0])))
        numbers = ex.substitute(substituted, [d], [[0.3, -0.7, 1.9]])
        numbers_of_x = [1.2, 2.0, 0.3]
        values, slopes = ca.Function("f", [y], [casadi_value, expected])(numbers_of_x)
        # CasADi evaluates the same operations; its sums of several terms may have another order.
        np.testing.assert_allclose(numbers[0].array(), np.array(values), rtol=1e-15)
        np.testing.assert_allclose(numbers[1].array(), np.array(slopes), rtol=1e-14, atol=1e-15)
        program = ex.Program.of([x], [ours, ex.densify(jacobian)])
        results = program([np.array(numbers_of_x)])
        np.testing.assert_allclose(results[0], np.array(values).ravel(), rtol=1e-15)
        (reapplied, _), (directly, direct_jacobian) = program.on([d]), ex.substitute([ours, jacobian], [x], [d])
        assert ex.is_equal(reapplied, directly)
        assert not ex.is_equal(reapplied, directly + 1)
        assert direct_jacobian.shape == (10, 3)


def test_instructions_stand_in_the_order_of_casadi() -> None:
    """Operands before operations, from the first output on."""
    x, y = ex.sym("x", 3), ca.SX.sym("x", 3)
    program = ex.Program.of([x], [_formulas(ex, x)])
    function = ca.Function("f", [y], [ca.cse(_formulas(ca, y))])
    casadi_operations = [function.instruction_id(k) for k in range(function.n_instructions())]
    special = {ex.CONSTANT: ca.OP_CONST, ex.INPUT: ca.OP_INPUT, ex.OUTPUT: ca.OP_OUTPUT}
    assert [special.get(op) or _CASADI_CODES[op] for op, *_ in program.instructions] == casadi_operations


def test_equal_expressions_are_one() -> None:
    x, y = ex.sym("x"), ex.sym("y")
    assert (ex.sin(x * y) + x).data[0] is (ex.sin(x * y) + x).data[0]
    assert ex.symvar(y * x + 2 * y) == [*y.data, *x.data]
    with pytest.raises(ValueError, match="depends on the symbol 'y'"):
        ex.Program.of([x], [x * y])
    with pytest.raises(ValueError, match="add of matrices of shapes"):
        ex.sym("a", 2) + ex.sym("b", 3)


def test_a_compiled_robot_does_not_import_casadi() -> None:
    """It is needed only for the equations that users write, in `formulations/systems.py`."""
    code = (
        "import sys, numpy as np; from dyn_service import Robot\n"
        "robot = Robot.from_urdf(sys.argv[1]); robot.mass_matrix(np.zeros(robot.nq))\n"
        "import dyn_service.kernels.rolled, dyn_service.kernels.staged, dyn_service.dynamics.regressors\n"
        "assert 'casadi' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(URDF / "pendulum.urdf")], check=True, timeout=120)


@pytest.mark.parametrize(
    ("build", "number"),
    [
        (
            lambda x, y, z: x * ex.sin(z) ** 2 + y * ex.cos(z) ** 2,
            lambda x, y, z: x * np.sin(z) ** 2 + y * np.cos(z) ** 2,
        ),
        (lambda x, y, z: ex.sin(x) ** 2 + ex.cos(y) ** 2, lambda x, y, z: np.sin(x) ** 2 + np.cos(y) ** 2),
        (lambda x, y, z: (x - y) - (y - x), lambda x, y, z: 2 * (x - y)),
        (lambda x, y, z: (x - y) + (y - x) * z, lambda x, y, z: (x - y) * (1 - z)),
        (lambda x, y, z: x / y - y / x, lambda x, y, z: x / y - y / x),
        (lambda x, y, z: (x / y) / (y / x), lambda x, y, z: x * x / (y * y)),
        (lambda x, y, z: ex.atan2(x, y) - ex.atan2(y, x), lambda x, y, z: np.arctan2(x, y) - np.arctan2(y, x)),
        (lambda x, y, z: ex.if_else(-1.0, x, y), lambda x, y, z: x),
        (lambda x, y, z: ex.if_else(0.0, x, y), lambda x, y, z: y),
        (lambda x, y, z: ex.jacobian(ex.copysign(x, y), x), lambda x, y, z: np.sign(x) * np.sign(y)),
        (lambda x, y, z: ex.copysign(x, 0.0) + ex.copysign(x, -0.0), lambda x, y, z: 2 * abs(x)),
    ],
)
def test_simplified_expressions_have_the_value_of_the_plain_ones(build: Any, number: Any) -> None:
    """Simplifications that hold only for equal or ordered operands."""
    rng = np.random.default_rng(0)
    with ex.graph():
        symbols = [ex.sym(name) for name in "xyz"]
        expression = build(*symbols)
        for _ in range(5):
            numbers = rng.normal(size=3).tolist()
            (value,) = ex.substitute([expression], symbols, numbers)
            # The simplified expression has fewer operations than NumPy's, so that both round differently.
            assert value.elements() == pytest.approx([number(*numbers)], rel=1e-14)


def test_structural_zeros_of_symbols_are_not_replaced() -> None:
    with ex.graph():
        x = ex.sym("x")
        w = ex.symbols_like("w", ex.vertcat(x, ex.zeros(1)))
        (result,) = ex.substitute([ex.vertcat(w[0], ex.zeros(1))], [w], [ex.vertcat(1.0, 2.0)])
        assert result.data == [1.0, None]


def test_numbers_are_never_negative_zeros_and_keep_nan() -> None:
    assert [math.copysign(1.0, x) for x in ex.matrix(np.array([-0.0, 0.0])).elements()] == [1.0, 1.0]
    for matrix in (ex.matrix(math.nan) / 0.0, ex.sin(ex.matrix(math.inf)), ex.cos(ex.matrix(-math.inf))):
        assert all(map(math.isnan, matrix.elements()))


def test_a_graph_leaves_the_garbage_collector_alone() -> None:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with ex.graph():
            ex.sym("x")
        assert not gc.isenabled()
    finally:
        if was_enabled:
            gc.enable()

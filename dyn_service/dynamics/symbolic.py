"""A robot's equations of motion as symbolic expressions, traced from the sweeps.

    M(q) a + C(q, v) = tau                                                (18), (18b), (18c)

The same sweeps that make the kernels run over symbols, with the bodies' masses, centres, inertias and places of the
joints as symbols too, and what comes out is handed to SymPy. Of Examples 1 and 2 of the Newton-Euler document come out
(M4) and (N4). Symbols carry the document's letters and the body's number, from 1, parent first:

    q_i, v_i, a_i, tau_i   joint position, velocity, acceleration, effort       g   magnitude of gravity
    m_i   mass   s_ix ..   centre of mass from joint i   I_ixx ..   inertia about it   d_ix ..   joint i in its parent

A parameter that is exactly zero on this robot stays zero, which keeps the equations readable; turns of
joint frames stay numbers, and so do damping, friction, springs and armature (`dynamics.passive`). Expressions grow
fast: up to some three joints they are for reading, beyond for computing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics.kinematics import influences, joint_vector, motion_subspaces
from dyn_service.dynamics.newton_euler import loads_through
from dyn_service.dynamics.passive import armature, efforts
from dyn_service.dynamics.spatial import Inertia, Mat, RigidTransform, constant, skew
from dyn_service.dynamics.sweeps import PerBody
from dyn_service.errors import InvalidArgumentError
from dyn_service.model.arrays import Vector
from dyn_service.model.tree import Tree
from dyn_service.support.optional import missing

try:
    import sympy
except ModuleNotFoundError as fault:
    # Only this module needs SymPy, which has its own extra.
    raise ModuleNotFoundError(missing("an equation in symbols", "sympy"), name="sympy") from fault

_AXES = ("x", "y", "z")
_DYADIC = 1 << 10
"""Doubles with a denominator up to this are meant as fractions: the 2 of an equation, not a measured number."""


@dataclass(frozen=True, eq=False)
class SymbolicEquations:
    """M a + C = tau of one robot in SymPy's symbols.

    joints: names, in row order. q, v, a, tau: the symbols of each joint. mass_matrix: (nv, nv). bias: (nv, 1), C, the
    efforts at zero acceleration, weight included. parameters: this robot's number for each symbol of one, SI units.
    """

    joints: tuple[str, ...]
    q: tuple[Any, ...]
    v: tuple[Any, ...]
    a: tuple[Any, ...]
    tau: tuple[Any, ...]
    mass_matrix: Any
    bias: Any
    parameters: Mapping[Any, float]

    def equations(self) -> tuple[Any, ...]:
        """One `sympy.Eq` per joint: row i of M a + C = tau."""
        left = self.mass_matrix * sympy.Matrix(self.a) + self.bias
        return tuple(sympy.Eq(row, effort) for row, effort in zip(left, self.tau, strict=True))

    def with_numbers(self) -> SymbolicEquations:
        """The same with this robot's numbers in place of the parameters' symbols."""
        M, C = (x.subs(self.parameters) for x in (self.mass_matrix, self.bias))
        return replace(self, mass_matrix=M, bias=C, parameters={})


@ex.graph()
def equations_of_motion(
    tree: Tree,
    *,
    gravity: Vector | tuple[float, ...] = (0.0, 0.0, -9.81),
    passive: bool = True,
    simplify: bool = True,
) -> SymbolicEquations:
    """The equations of motion of a tree in symbols, (18).

    Args:
        tree: Usually `Robot.bodies.tree`, one body per movable joint; with `Robot.tree` each link has its own symbols.
        gravity: (3,) m/s^2 in world axes: its direction stays, its magnitude becomes the symbol g.
        passive: Whether the joints' damping, friction, springs and armature are included, as numbers.
        simplify: Whether to expand and gather what sines and cosines allow, entry by entry: seconds for two joints,
            minutes for four.

    Raises:
        InvalidArgumentError: `gravity` is not three finite numbers.
    """
    direction = np.asarray(gravity, dtype=float)
    if direction.shape != (3,) or not np.isfinite(direction).all():
        raise InvalidArgumentError(f"gravity must be 3 finite numbers, found {gravity!r}", path="gravity")
    strength = float(np.linalg.norm(direction))
    parameters = _Parameters()
    pull = constant(direction / strength) * parameters.symbol("g", strength) if strength else ex.zeros(3, 1)
    M = PerBody(_inertia(parameters, i, body) for i, body in enumerate(tree.inertia, start=1))
    q, v, a = (ex.sym(name, tree.nv) for name in ("q", "v", "a"))
    D = PerBody(
        RigidTransform(D_i.rotation, D_i.offset - constant(origin) + parameters.vector(f"d_{i}", origin))
        for i, (D_i, origin) in enumerate(zip(influences(tree, q), tree.origin, strict=True), start=1)
    )
    G = motion_subspaces(tree)
    F = loads_through(tree, D, G, M, v, a, pull)
    tau = joint_vector(tree, G.T @ F)
    if passive:
        tau += efforts(tree, q, v) + armature(tree) * a
    (bias,) = ex.substitute([tau], [a], [ex.zeros(tree.nv)])
    symbols = {name: [sympy.Symbol(f"{name}_{k + 1}", real=True) for k in range(tree.nv)] for name in "qva"}
    sympy_symbols = [*symbols["q"], *symbols["v"], *(sympy.Symbol(name, real=True) for name in parameters.names)]
    symbols_column = ex.vertcat(q, v, *parameters.symbols)
    entries = _to_sympy(ex.vertcat(ex.vec(ex.jacobian(tau, a)), bias), symbols_column, sympy_symbols)
    if simplify:
        entries = [sympy.trigsimp(sympy.expand(entry)) for entry in entries]
    square = tree.nv * tree.nv
    return SymbolicEquations(
        joints=tree.movable_joints,
        q=tuple(symbols["q"]),
        v=tuple(symbols["v"]),
        a=tuple(symbols["a"]),
        tau=tuple(sympy.Symbol(f"tau_{k + 1}", real=True) for k in range(tree.nv)),
        # `vec` goes by columns and SymPy by rows, which is the same for a symmetric matrix.
        mass_matrix=sympy.Matrix(tree.nv, tree.nv, entries[:square]),
        bias=sympy.Matrix(tree.nv, 1, entries[square:]),
        parameters=dict(zip(sympy_symbols[2 * tree.nv :], parameters.values, strict=True)),
    )


class _Parameters:
    """The symbols given out so far, and the robot's number for each."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.symbols: list[Mat] = []
        self.values: list[float] = []

    def symbol(self, name: str, value: float) -> Mat:
        """A symbol, or zero where the number is zero."""
        if value == 0.0:
            return ex.zeros(1)
        self.names.append(name)
        self.symbols.append(ex.sym(name))
        self.values.append(float(value))
        return self.symbols[-1]

    def vector(self, name: str, values: Vector) -> Mat:
        """(3, 1)."""
        return ex.vertcat(*(self.symbol(name + axis, value) for axis, value in zip(_AXES, values, strict=True)))


def _inertia(parameters: _Parameters, i: int, body: Any) -> Inertia:
    """M_i, (16), in symbols."""
    mass, s = parameters.symbol(f"m_{i}", body.mass), parameters.vector(f"s_{i}", body.com)
    about_com = ex.zeros(3, 3)
    as_typed = body.centre is not None and not np.any(body.centre[1] % 1.0)
    rounding = 0.0 if as_typed else 1e-14 * float(np.abs(body.about_com).max())
    for row in range(3):
        for column in range(row, 3):
            # What is left of turning the inertia, or moving it to the centre of mass and back, is no parameter.
            value = float(body.about_com[row, column])
            value = value if abs(value) > rounding else 0.0
            about_com[row, column] = about_com[column, row] = parameters.symbol(
                f"I_{i}{_AXES[row]}{_AXES[column]}", value
            )
    return Inertia(ex.sparsify(about_com) - mass * skew(s) @ skew(s), mass * skew(s), mass * ex.eye(3))


_OPERATIONS: dict[int, Callable[..., Any]] = {
    ex.ADD: lambda x, y: x + y,
    ex.SUB: lambda x, y: x - y,
    ex.MUL: lambda x, y: x * y,
    ex.DIV: lambda x, y: x / y,
    ex.NEG: lambda x: -x,
    ex.SQUARE: lambda x: x**2,
    ex.TWICE: lambda x: 2 * x,
    ex.INVERSE: lambda x: 1 / x,
    ex.SIN: sympy.sin,
    ex.COS: sympy.cos,
    ex.TANH: sympy.tanh,
}


def _to_sympy(expression: Mat, symbols_column: Mat, sympy_symbols: list[Any]) -> list[Any]:
    """The entries of a column, with `named` in place of the entries of `given`."""
    work: list[Any] = []
    entries: list[Any] = []
    for operation, a, b in ex.Program.of([symbols_column], [expression]).instructions:
        if operation == ex.CONSTANT:
            work.append(_number(a))
        elif operation == ex.INPUT:
            work.append(sympy_symbols[b])
        elif operation == ex.OUTPUT:
            entries.append(work[b])
            work.append(None)
        else:
            work.append(_OPERATIONS[operation](*(work[k] for k in (a, b) if k is not None)))
    return entries


def _number(value: float) -> Any:
    numerator, denominator = value.as_integer_ratio()
    return sympy.Rational(numerator, denominator) if denominator <= _DYADIC else sympy.Float(value)

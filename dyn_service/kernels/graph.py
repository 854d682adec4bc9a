"""Traces a query on a tree into a scalar expression graph.

The function of `dynamics/` named in the table (`dynamics.table_function`) runs once, on symbols of
`dynamics/expressions.py`, with the tree's numbers as constants. The graph is straight-line arithmetic with constants
folded, known zeros removed and common subexpressions shared.

For kernels with overlays, `in_symbols` replaces inertias, passive joint properties and the set of locked joints by
inputs (`model/parameters.py`); positions and axes of joints stay numbers. Structural zeros stay zeros: joints with
several degrees of freedom have no springs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics import table_function
from dyn_service.dynamics.spatial import constant
from dyn_service.dynamics.sweeps import PerBody
from dyn_service.kernels.frames import KernelTree, KernelTrees
from dyn_service.kernels.signature import Signature
from dyn_service.model.parameters import COLUMNS, OF_BODY, OF_RATE, ROWS
from dyn_service.model.passive import Passive
from dyn_service.model.tree import Tree


@dataclass(frozen=True, eq=False)
class Graph:
    """An expression graph. program: flat inputs to flat outputs, in the order of the signature's operands."""

    program: ex.Program
    signature: Signature

    is_rolled = False

    workspace = 0
    """Number of scalars per state that it stores besides its outputs: none."""

    @property
    def operations(self) -> int:
        """Number of instructions except inputs, outputs and constants."""
        return self.program.operations


def trace(model: KernelTree | KernelTrees, signature: Signature) -> Graph:
    """Returns the graph of one kernel. The queries of a list are traced in one graph and share equal expressions.

    Args:
        model: The tree, or trees, that `signature.bodies` asks for: one body per link or per moving body.
        signature: The function to run, and the shapes of its operands.
    """
    with ex.graph():
        symbols = {operand.name: ex.sym(operand.name, operand.size) for operand in signature.inputs}
        outputs = [
            outputs[operand.name]
            for part in signature.parts or (signature,)
            for outputs in [outputs_of(model.of(part.bodies), part, symbols)]
            for operand in part.outputs
        ]
        flat = [ex.densify(ex.vec(ex.matrix(x).T)) for x in outputs]
        return Graph(ex.Program.of(list(symbols.values()), flat), signature)


def outputs_of(model: KernelTree, signature: Signature, symbols: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the outputs of a function by name. symbols: the inputs by name."""
    arguments = {operand.name: symbols[operand.name] for operand in signature.inputs}
    arguments |= {name: ex.zeros(0, 1) for name in signature.padded}
    numbers = [arguments.pop(operand.name) for operand in signature.inputs if operand.kind == "overlay"]
    for operand in signature.inputs:
        if operand.kind == "wrenches":  # the equations take one per body, in the chosen frames
            on_bodies = enumerate(ex.vertsplit(symbols[operand.name], 6))
            arguments[operand.name] = PerBody(model.wrench(i, W) for i, W in on_bodies)
    tree = in_symbols(model.tree, *numbers) if numbers else model.tree
    answer = table_function(signature.function)(tree, **arguments)
    return answer if isinstance(answer, dict) else {signature.outputs[0].name: answer}


Symbols = Any
"""An `expressions.Matrix`."""


@dataclass(frozen=True, eq=False)
class SymbolicInertia:
    """The attributes of `BodyInertia` used by the equations. mass: (1, 1). com: (3, 1). about_com: (3, 3)."""

    mass: Symbols
    com: Symbols
    about_com: Symbols
    centre: None = None

    @property
    def moment(self) -> Symbols:
        """m s."""
        return self.mass * self.com

    @property
    def about_origin(self) -> Symbols:
        """I - m s~ s~."""
        s = ex.skew(self.com)
        return ex.triu2symm(ex.triu(self.about_com - self.mass * s @ s))


def in_symbols(tree: Tree, bodies: Symbols, joints: Symbols, free: Symbols) -> Tree:
    """Returns the tree with symbols for its numbers, which are in the order of `model/parameters.py`.

    Args:
        tree: The tree with numbers.
        bodies: (10 nb, 1).
        joints: (6 nr, 1).
        free: (nv, 1).
    """
    of_body: Symbols = ex.reshape(bodies, OF_BODY, len(tree))
    of_rate: Symbols = ex.reshape(joints, OF_RATE, tree.nr)
    passive = {field.name: of_rate[k, :].T for k, field in enumerate(fields(Passive))}
    # A spring of several degrees of freedom has no single rest position, so its stiffness is a structural zero.
    sprung = [float(joint.nv == 1) for joint in tree.inboard for _ in range(joint.nv)]
    passive["stiffness"] = constant(np.reshape(sprung, (-1, 1))) * passive["stiffness"]
    inertia: tuple[Any, ...] = tuple(inertia_in_symbols(of_body[:, i]) for i in range(len(tree)))
    return replace(tree, inertia=inertia, passive=Passive(**passive), free=free)


def inertia_in_symbols(numbers: Symbols) -> SymbolicInertia:
    """Returns the inertia of a body from its numbers, (10, 1): mass, centre of mass, six entries of the inertia."""
    about_com = ex.zeros(3, 3)
    for k, (row, column) in enumerate(zip(ROWS, COLUMNS, strict=True)):
        about_com[row, column] = about_com[column, row] = numbers[4 + k]
    return SymbolicInertia(numbers[0], numbers[1:4], about_com)

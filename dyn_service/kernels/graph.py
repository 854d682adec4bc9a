"""Traces a query on a tree into a scalar expression graph.

The function of `dynamics/` named in the table runs once, on CasADi symbols, with the tree's numbers as constants. The
graph is straight-line arithmetic with constants folded, known zeros removed and common subexpressions shared.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import casadi as ca

from dyn_service.dynamics.sweeps import PerBody
from dyn_service.kernels.frames import KernelTree
from dyn_service.kernels.signature import Operand, Signature
from dyn_service.kernels.symbols import in_symbols


@dataclass(frozen=True, eq=False)
class Graph:
    """An expression graph. function: flat inputs to flat outputs, in the order of the signature's operands."""

    function: Any
    signature: Signature

    @property
    def operations(self) -> int:
        """Number of instructions except inputs, outputs and constants."""
        skipped = (ca.OP_INPUT, ca.OP_OUTPUT, ca.OP_CONST)
        f = self.function
        return sum(f.instruction_id(k) not in skipped for k in range(f.n_instructions()))


def trace(model: KernelTree, signature: Signature, *, shared: bool = True) -> Graph:
    """Returns the graph of one kernel.

    Args:
        model: The tree in the frames chosen for it: one body per link or per moving body, by `signature.bodies`.
        signature: The function to run, and the shapes of its operands.
        shared: Whether to share common subexpressions; this takes longer than evaluating a small graph once.
    """
    module, _, name = signature.function.partition(".")
    function = getattr(importlib.import_module(f"dyn_service.dynamics.{module}"), name)
    symbols = {operand.name: ca.SX.sym(operand.name, operand.size) for operand in signature.inputs}
    given = {operand.name: _entered(model, operand, symbols[operand.name]) for operand in signature.inputs}
    given |= {name: ca.DM(0, 1) for name in signature.padded}
    numbers = [given.pop(operand.name) for operand in signature.inputs if operand.kind == "overlay"]
    answer = function(in_symbols(model.tree, *numbers) if numbers else model.tree, **given)
    outputs = answer if isinstance(answer, dict) else {signature.outputs[0].name: answer}
    flat = [ca.densify(ca.vec(ca.SX(outputs[operand.name]).T)) for operand in signature.outputs]
    return Graph(ca.Function("kernel", list(symbols.values()), ca.cse(flat) if shared else flat), signature)


def _entered(model: KernelTree, operand: Operand, symbol: Any) -> Any:
    """Returns an input in the form that the equations take: wrenches per body, in the chosen frames."""
    if operand.kind == "wrenches":
        return PerBody(model.wrench(i, W) for i, W in enumerate(ca.vertsplit(symbol, 6)))
    return symbol

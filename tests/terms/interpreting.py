"""A robot whose kernels walk their graphs instead of being compiled: the same equations and frames.

Compiling is most of what a test of the equations on hundreds of robots takes, and machine code does not depend on
which robot it is for: some are compiled in the gate, all by `python -m tests.oracle`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from dyn_service.engine.robot import Robot
from dyn_service.kernels.certificate import Certificate
from dyn_service.kernels.certify import certified
from dyn_service.kernels.direct import Arguments
from dyn_service.kernels.frames import kernel_tree
from dyn_service.kernels.graph import Graph, trace
from dyn_service.kernels.library import KernelLibrary, LibraryKernel
from dyn_service.kernels.row_selection import Selected
from dyn_service.kernels.signature import Signature
from dyn_service.kernels.wrenches import WrenchConversion
from dyn_service.model.description import RootType


def interpreted(graph: Graph) -> Callable[..., Any]:
    """A kernel that walks the graph, with leading axes as a gufunc has them."""
    operands = graph.signature.inputs

    def kernel(*inputs: Any) -> Any:
        arrays = [np.asarray(x, dtype=float) for x in inputs]
        pairs = list(zip(arrays, operands, strict=True))
        lead = np.broadcast_shapes(*(x.shape[: x.ndim - len(operand.shape)] for x, operand in pairs))
        rows = [np.broadcast_to(x, lead + operand.shape).reshape(-1, operand.size) for x, operand in pairs]
        states = len(rows[0]) if rows else 1
        # Python's operators on numbers take a fifth of the time of NumPy's on arrays of one entry: the same bits.
        flat = [x[0].tolist() if states == 1 else np.ascontiguousarray(x.T) for x in rows]
        shaped = []
        for entries, operand in zip(graph.program(flat), graph.signature.outputs, strict=True):
            outputs = np.empty((len(entries), states))
            for k, entry in enumerate(entries):
                outputs[k] = entry  # a number or one for each state
            shaped.append(outputs.T.reshape(lead + operand.shape))
        return shaped[0] if len(shaped) == 1 else tuple(shaped)

    return kernel


class _Library(KernelLibrary):
    certifying = True

    def _load(self, signature: Signature) -> None:
        return None

    def direct_call(
        self,
        signature: Signature,
        arguments: Arguments,
        conversion: WrenchConversion | None = None,
        selection: Selected | None = None,
    ) -> None:
        return None  # there is no machine code to go into

    def _make(self, signature: Signature) -> LibraryKernel:
        if self.certifying:
            kernel, certificate = certified(self.links, signature, interpreted)
            return LibraryKernel(kernel, certificate, None)
        graph = trace(kernel_tree(self.links, signature.bodies), signature)
        return LibraryKernel(interpreted(graph), Certificate(signature.name, "chosen frames", 0.0, 0), None)


def interpreting(
    source: str | os.PathLike[str], *, certifying: bool = False, root: RootType = "fixed", mimic: bool = True
) -> Robot:
    """`Robot.from_urdf`, its kernels interpreted, and held against the tree as given or not."""
    return interpreted_robot(Robot.from_urdf(source, root=root, mimic=mimic), certifying=certifying)


def interpreted_robot(robot: Robot, *, certifying: bool = False) -> Robot:
    """The robot, its kernels and those of its bare tree interpreted."""
    for variant in {robot, robot.without_passive}:
        variant.evaluator.library = library = _Library(variant.tree)
        library.certifying = certifying
    return robot

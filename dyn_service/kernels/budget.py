"""Predicts the size of a kernel, so that one beyond the limit is refused within seconds.

A kernel's operations are known once it is traced, and tracing takes some microseconds an operation: for hundreds of
joints, and answers that grow with the cube of them, minutes and gigabytes. But the first bodies of a tree are a tree
themselves, all that is computed for them is computed for the whole robot too, and parents precede children. So
first a few bodies are traced, then as many as will show that it is too much, or all.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dyn_service.errors import ResourceExhaustedError
from dyn_service.kernels.frames import KernelTree
from dyn_service.kernels.graph import Graph, trace
from dyn_service.kernels.signature import Operand, Signature
from dyn_service.model.tree import Tree

MOST_OPERATIONS = 200_000
"""Operations of one kernel as traced, before common ones are shared: some forty seconds of compiling, in 0.9 GB."""

_FEW, _MORE = 16, 24
"""Bodies that are traced to see how the operations grow with them."""

_STEEPEST = 4.0
"""Operations grow at most with this power of the bodies; measured growth is up to the third."""


def refuse_if_large(model: KernelTree, signature: Signature) -> None:
    """Traces as few bodies as tell whether the kernel may be made, and hardly more operations than are allowed.

    Args:
        model: The tree that the kernel is to be traced on.
        signature: The kernel's.

    Raises:
        ResourceExhaustedError: The kernel is too large.
    """
    whole = len(model.tree)
    if whole <= _FEW:
        return  # no query of so few comes near
    counts: list[tuple[int, int]] = []
    bodies = _FEW
    while True:
        operations = _operations(model, signature, bodies)
        if operations > MOST_OPERATIONS:
            raise too_large(model.tree, signature)
        counts.append((bodies, operations))
        if len(counts) == 1:
            bodies = min(_MORE, whole)
            continue
        growth = _growth(counts)
        if bodies == whole or operations * (whole / bodies) ** growth < MOST_OPERATIONS / 2:
            return
        # As many as will show that it is too much, if growth goes on as it did.
        enough = math.ceil(bodies * (1.1 * MOST_OPERATIONS / operations) ** (1.0 / growth))
        bodies = min(max(enough, bodies + 1), whole)


def refuse_large(graph: Graph, tree: Tree) -> None:
    """Refuses a kernel by the number of operations of its graph, for kernels from the tree as given, which have no
    prediction.

    Raises:
        ResourceExhaustedError: The kernel is too large.
    """
    if graph.operations > MOST_OPERATIONS:
        raise too_large(tree, graph.signature)


def too_large(tree: Tree, signature: Signature) -> ResourceExhaustedError:
    """The refusal of a kernel."""
    return ResourceExhaustedError(
        f"{signature.name} of robot '{tree.name}' takes more than the {MOST_OPERATIONS} operations that are compiled: "
        f"its {len(tree)} bodies are too many for this query"
    )


def _operations(model: KernelTree, signature: Signature, bodies: int) -> int:
    first = model.first(bodies)
    sizes = {"nq": first.tree.nq, "nv": first.tree.nv, "nr": first.tree.nr, "nb": bodies, "nl": bodies}

    def resized(operand: Operand) -> Operand:
        return replace(operand, shape=tuple(size if isinstance(size, int) else sizes[size] for size in operand.dims))

    inputs = tuple(map(resized, signature.inputs))
    function = trace(first, replace(signature, inputs=inputs), shared=False).function
    return int(function.n_instructions() - function.nnz_in() - function.nnz_out())  # and some constants


def _growth(counts: list[tuple[int, int]]) -> float:
    """With which power of the bodies the operations grow, by the last two counts."""
    (fewer, before), (bodies, now) = counts[-2:]
    power = math.log(max(now, 1) / max(before, 1)) / math.log(bodies / fewer)
    return min(max(power, 1.0), _STEEPEST)

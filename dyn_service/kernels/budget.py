"""Predicts the size of a kernel, so that one beyond the limit is refused within seconds.

The number of operations is known after tracing, which takes some microseconds per operation: minutes and gigabytes for
hundreds of joints and a result that grows with their cube. Parents precede children, so the first bodies of a tree are
a tree themselves, and its operations are part of the whole robot's. A few bodies are traced first, then as many as
are needed to exceed the limit, or all.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dyn_service.dynamics.rolled_tree import NotRolledError
from dyn_service.errors import ResourceExhaustedError
from dyn_service.kernels.frames import KernelTree
from dyn_service.kernels.graph import Graph, trace
from dyn_service.kernels.rolled import Rolled, roll
from dyn_service.kernels.signature import Operand, Signature
from dyn_service.kernels.staged import Staged
from dyn_service.model.tree import Tree

MAX_OPERATIONS = 200_000
"""Operations of one kernel as traced, common subexpressions counted once: some 40 s of compiling, in 0.9 GB."""

_FEW, _MORE = 16, 24
"""Numbers of bodies traced to measure the growth of the operations."""

_STEEPEST = 4.0
"""Operations grow at most with this power of the number of bodies; the largest measured power is 3."""


MAX_UNROLLED = 16_000
"""Instructions that a kernel as loops executes, above which it is used: then the straight-line code takes more than 1 s
to compile, and is little faster (docs/adr/0043).
"""


SOLVING = 3
"""Factor of `MAX_UNROLLED` for kernels that factor the mass matrix: of some 30 joints their loops take twice as
long as straight-line code, which leaves out all zeros.
"""


def as_loops(model: KernelTree, signature: Signature) -> Rolled | None:
    """Returns a kernel as loops over the bodies; None if it is compiled as straight-line code.

    Raises:
        ResourceExhaustedError: It is neither possible as loops nor small enough for straight-line code.
    """
    if len(model.tree) <= _FEW:
        return None  # no query on so few bodies comes near the limit
    try:
        rolled = roll(model, signature)
    except NotRolledError:
        refuse_if_large(model, signature)
        return None
    return rolled if rolled.operations > MAX_UNROLLED * (SOLVING if rolled.equations else 1) else None


def refuse_if_large(model: KernelTree, signature: Signature) -> None:
    """Refuses a kernel that is too large, after tracing only slightly more operations than are allowed.

    Args:
        model: The tree of the kernel.
        signature: The signature of the kernel.

    Raises:
        ResourceExhaustedError: The kernel is too large.
    """
    whole = len(model.tree)
    counts: list[tuple[int, int]] = []
    bodies = _FEW
    while True:
        operations = _operations(model, signature, bodies)
        if operations > MAX_OPERATIONS:
            raise too_large(model.tree, signature)
        counts.append((bodies, operations))
        growth = _growth(counts)
        if bodies == whole or operations * (whole / bodies) ** growth < MAX_OPERATIONS / 2:
            return
        if len(counts) == 1:
            bodies = min(_MORE, whole)
            continue
        # The number of bodies that exceeds the limit if the growth continues.
        enough = math.ceil(bodies * (1.1 * MAX_OPERATIONS / operations) ** (1.0 / growth))
        bodies = min(max(enough, bodies + 1), whole)


def refuse_large(graph: Graph | Rolled | Staged, tree: Tree) -> None:
    """Refuses a kernel by the number of operations of its graph.

    For kernels of the tree as given, whose size is not predicted.

    Raises:
        ResourceExhaustedError: The kernel is too large.
    """
    if graph.operations > MAX_OPERATIONS:
        raise too_large(tree, graph.signature)


MAX_BYTES = 4 << 30
"""Memory of a kernel during a call, and while it is certified."""


def fitting(rolled: Graph | Rolled | Staged, lanes: int) -> tuple[int, int] | None:
    """Returns the number of states that a kernel as loops computes at a time, and of those in which it is compared.

    Both as large as its memory allows: at most `lanes`, and two. None if it needs more than `MAX_BYTES` for one state.

    Args:
        rolled: The kernel.
        lanes: States per vector of the processor.
    """
    results = sum(operand.size for operand in rolled.signature.outputs)
    inputs = sum(operand.size for operand in rolled.signature.inputs)
    for states in (2, 1):
        at_once = lanes
        while at_once:
            # In a call its buffer and its result; besides these the result to compare, and two arrays of rounding.
            call = at_once * (inputs + results + rolled.workspace) + at_once * results
            if 8 * (call + 3 * states * results) <= MAX_BYTES:
                return at_once, states
            at_once //= 2
    return None


def refuse_memory(rolled: Graph | Rolled | Staged, tree: Tree, lanes: int) -> None:
    """Refuses a kernel as loops by the memory that it needs.

    Raises:
        ResourceExhaustedError: The kernel needs more than `MAX_BYTES`.
    """
    if fitting(rolled, lanes) is None:
        operands = (*rolled.signature.inputs, *rolled.signature.outputs, *rolled.signature.outputs * 4)
        needed = 8 * (sum(operand.size for operand in operands) + rolled.workspace)
        raise ResourceExhaustedError(
            f"{rolled.signature.name} of robot '{tree.name}' needs {needed / 1e9:.1f} GB of memory, "
            f"at most {MAX_BYTES / 1e9:.1f} GB are allowed: its {len(tree)} bodies are too many for this query"
        )


def too_large(tree: Tree, signature: Signature) -> ResourceExhaustedError:
    """Returns the error of a kernel that is too large."""
    return ResourceExhaustedError(
        f"{signature.name} of robot '{tree.name}' takes more than the {MAX_OPERATIONS} operations that are compiled: "
        f"its {len(tree)} bodies are too many for this query"
    )


def _operations(model: KernelTree, signature: Signature, bodies: int) -> int:
    first = model.first(bodies)
    sizes = {"nq": first.tree.nq, "nv": first.tree.nv, "nr": first.tree.nr, "nb": bodies, "nl": bodies}

    def resized(operand: Operand) -> Operand:
        return replace(operand, shape=tuple(size if isinstance(size, int) else sizes[size] for size in operand.dims))

    inputs = tuple(map(resized, signature.inputs))
    return trace(first, replace(signature, inputs=inputs)).operations


def _growth(counts: list[tuple[int, int]]) -> float:
    """Returns the power of the number of bodies with which the operations grow, from the last two counts."""
    if len(counts) == 1:
        return _STEEPEST
    (fewer, before), (bodies, now) = counts[-2:]
    power = math.log(max(now, 1) / max(before, 1)) / math.log(bodies / fewer)
    return min(max(power, 1.0), _STEEPEST)

"""Chooses the form of a kernel, straight-line code or loops, and limits its size.

The number of operations of straight-line code is known after tracing, which takes some microseconds per operation:
minutes and gigabytes for hundreds of joints and a result that grows with their cube. So it is predicted, and a kernel
beyond the limit is refused within seconds. Parents precede children, so the first bodies of a tree are a tree
themselves, and its operations are part of the whole robot's. A few bodies are traced first, then as many as are needed
to exceed the limit, or all.
"""

from __future__ import annotations

import math

from dyn_service.dynamics.rolled_tree import NotRolledError
from dyn_service.errors import ResourceExhaustedError
from dyn_service.kernels.frames import KernelTree
from dyn_service.kernels.graph import Graph, trace
from dyn_service.kernels.rolled import FEW_KINDS, MAX_KINDS, Rolled, roll
from dyn_service.kernels.signature import Signature, sizes_of, total_size
from dyn_service.kernels.staged import Staged
from dyn_service.model.tree import Tree

MAX_OPERATIONS = 200_000
"""Operations of one kernel as traced, common subexpressions counted once: some 40 s of compiling, in 0.9 GB."""

FIRST_PROBE, SECOND_PROBE = 16, 24
"""Numbers of bodies of the two smallest trees that are traced to measure how the operations grow."""

_MAX_EXPONENT = 4.0
"""Largest power of the number of bodies with which operations are assumed to grow; the largest measured one is 3."""

MAX_UNROLLED = 16_000
"""Instructions executed by a kernel above which it is compiled as loops: straight-line code would take more than 1 s to
compile, and is little faster (docs/adr/0043).
"""

MASS_MATRIX_FACTOR = 3
"""Factor of `MAX_UNROLLED` for kernels that factor the mass matrix: with 30 joints their loops take twice as long as
straight-line code, which omits all zeros.
"""

SOLVED_MATRICES_FACTOR = 7
"""The same for kernels that solve for whole matrices, which are zero between the branches of a humanoid. It does not
apply to kernels that also multiply these matrices: with 17 bodies, their straight-line code takes 0.7 of the time of
loops, but nine times as long to compile.
"""


def rolled_if_large(model: KernelTree, signature: Signature) -> Rolled | None:
    """Returns a kernel as loops over the bodies; None if it is to be compiled as straight-line code.

    Raises:
        ResourceExhaustedError: It cannot be compiled as loops, and is too large for straight-line code.
    """
    # Robot and query decide the form, never a measured time, so that a robot has the same bits in every run.
    if len(model.tree) <= FIRST_PROBE:
        return None  # no query on so few bodies is near the limit
    try:
        rolled = roll(model, signature, MAX_KINDS)
    except NotRolledError:
        check_predicted_operations(model, signature)
        return None
    factor = MASS_MATRIX_FACTOR if rolled.equations else 1
    factor = SOLVED_MATRICES_FACTOR if rolled.solved and not rolled.products else factor
    if rolled.operations <= MAX_UNROLLED * factor:
        return None
    # Each kind is compiled, so few kinds; the form is chosen with many, which count the operations that zeros save.
    return rolled if max(rolled.kind) < FEW_KINDS else roll(model, signature)


def check_predicted_operations(model: KernelTree, signature: Signature) -> None:
    """Checks the number of operations of a kernel before it is traced.

    If there are too many, only slightly more than `MAX_OPERATIONS` are traced.

    Args:
        model: The tree of the kernel.
        signature: The signature of the kernel.

    Raises:
        ResourceExhaustedError: The kernel is too large.
    """
    whole = len(model.tree)
    counts: list[tuple[int, int]] = []
    bodies = FIRST_PROBE
    while True:
        operations = operation_count(model, signature, bodies)
        if operations > MAX_OPERATIONS:
            raise _too_large_error(model.tree, signature)
        counts.append((bodies, operations))
        exponent = _exponent(counts)
        if bodies == whole or operations * (whole / bodies) ** exponent < MAX_OPERATIONS / 2:
            return
        if len(counts) == 1:
            bodies = min(SECOND_PROBE, whole)
            continue
        # The number of bodies that exceeds the limit if operations grow with this exponent.
        enough = math.ceil(bodies * (1.1 * MAX_OPERATIONS / operations) ** (1.0 / exponent))
        bodies = min(max(enough, bodies + 1), whole)


MAX_BYTES = 4 << 30
"""Largest memory of a kernel, in a call and while it is certified."""

MAX_CACHED_BYTES = 4 << 20
"""Bytes of results of one state above which a vector has two states only, since memory limits the speed. The mass
matrix of a chain of 1,024 bodies takes as long with 2 states per vector as with 8, and a call of one state a quarter of
the time.
"""


DRAWN_STATES = 40
"""States whose inputs are in memory while a kernel is certified: all test states, and those that are compared."""


def batch_sizes(rolled: Graph | Rolled | Staged, lanes: int) -> tuple[int, int] | None:
    """Returns the states per vector of a kernel as loops, and the least number of states that certify it.

    The first is `lanes`, or 2 for results of more than `MAX_CACHED_BYTES`; it is halved until a call and its comparison
    in 2 states, or else in 1, fit in `MAX_BYTES`. None if they do not even fit for one state.

    Args:
        rolled: The kernel.
        lanes: States per vector of the processor.
    """
    results = total_size(rolled.signature.outputs)
    inputs = total_size(rolled.signature.inputs)
    if 8 * results > MAX_CACHED_BYTES:
        lanes = min(lanes, 2)
    for states in (2, 1):
        at_once = lanes
        while at_once:
            # A call needs its buffers and its result; a comparison also the result as given and two arrays of rounding.
            call = at_once * (inputs + results + rolled.workspace) + at_once * results
            if 8 * (call + 3 * states * results + DRAWN_STATES * inputs) <= MAX_BYTES:
                return at_once, states
            at_once //= 2
    return None


def check_size(graph: Graph | Rolled | Staged, tree: Tree, lanes: int) -> None:
    """Checks the number of operations of straight-line code, and the memory of loops.

    Raises:
        ResourceExhaustedError: There are more operations than `MAX_OPERATIONS`, or more bytes than `MAX_BYTES`.
    """
    if not graph.is_rolled:
        if graph.operations > MAX_OPERATIONS:
            raise _too_large_error(tree, graph.signature)
    elif batch_sizes(graph, lanes) is None:
        operands = (*graph.signature.inputs * (1 + DRAWN_STATES), *graph.signature.outputs * 5)
        size_bytes = 8 * (total_size(operands) + graph.workspace)
        raise ResourceExhaustedError(
            f"{graph.signature.name} of robot '{tree.name}' needs {size_bytes / 1e9:.1f} GB of memory, "
            f"at most {MAX_BYTES / 1e9:.1f} GB are allowed: its {len(tree)} bodies are too many for this query"
        )


def _too_large_error(tree: Tree, signature: Signature) -> ResourceExhaustedError:
    return ResourceExhaustedError(
        f"{signature.name} of robot '{tree.name}' takes more than the {MAX_OPERATIONS} operations that are compiled: "
        f"its {len(tree)} bodies are too many for this query"
    )


def operation_count(model: KernelTree, signature: Signature, bodies: int) -> int:
    """Returns the operations of a kernel for the first bodies of a tree."""
    first = model.first(bodies)
    return trace(first, signature.resized(sizes_of(first.tree, first.tree))).operations


def _exponent(counts: list[tuple[int, int]]) -> float:
    """Returns the power of the number of bodies with which operations grow, from the last two (bodies, operations)."""
    if len(counts) == 1:
        return _MAX_EXPONENT
    (previous_bodies, previous_operations), (bodies, operations) = counts[-2:]
    power = math.log(max(operations, 1) / max(previous_operations, 1)) / math.log(bodies / previous_bodies)
    return min(max(power, 1.0), _MAX_EXPONENT)

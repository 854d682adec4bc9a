"""A kernel held against its equations on the tree as given, before it is kept.

Frames, lumps, regrouped sums and fused products are exact on paper. Whether a robot's numbers leave them exact enough
is seen here: at several states, large and small, the kernel's answers are compared with those of the same function of
`dynamics/` traced on the tree as given. A difference that rounding explains is none:

    |kernel - given| <= 8 spread + 16 eps scale        for each entry of each output

spread: how far an entry of the answer as given moves when each of its operations is rounded at random instead of to
nearest, the largest of fifteen runs: this very sweep's own rounding at this very state, however ill the state.
scale: an entry's own size over all the states, times how large the answer is in this state beside its size over all:
an error of a finger is not hidden behind a shoulder, and what is zero by cancellation may be its rounding.

Cost: one more trace, and some microseconds an operation; nothing when a kernel comes from the store. Source: random
rounding is Monte Carlo arithmetic (D. S. Parker, 1997).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from dyn_service.kernels.graph import Graph
from dyn_service.kernels.signature import Operand, Signature

Array = NDArray[np.float64]

RUNS = 15
SPREADS = 8.0
ROUNDINGS = 16.0
"""Of the double's epsilon. With SPREADS the bound of the module's docstring: sums of a few hundred terms in another
order differ by so much, and a form that is ten times worse than the tree as given does not pass.
"""

SIZES = (
    (3.0, 1.0),
    (3.0, 1.0),
    (1.0, 0.0),
    (1e-4, 1e-3),
    (1e-9, 1.0),
    (1e-2, 1e-6),
    (30.0, 100.0),
)
"""Of the positions, and of everything else, state by state: at random, at rest, small, tiny, and large."""

_STEP_S = 1e-3


def drawn_states(signature: Signature, joint_inertia: Array) -> tuple[Array, ...]:
    """One array per operand, (states, ...), at which a kernel is held.

    Args:
        signature: Of the kernel.
        joint_inertia: (nv,) kg m^2 | kg, roughly: what makes efforts of a finger a finger's.
    """
    rng = np.random.default_rng(0)
    return tuple(_drawn(operand, rng, joint_inertia) for operand in signature.inputs)


def _drawn(operand: Operand, rng: np.random.Generator, joint_inertia: Array) -> Array:
    drawn: Array = rng.normal(size=(len(SIZES), *operand.shape))
    sizes = np.array([q if operand.kind == "position" else other for q, other in SIZES])
    if operand.kind == "duration":
        return np.full_like(drawn, _STEP_S)
    if operand.name == "gravity":
        sizes = np.full_like(sizes, 9.81)
    if operand.kind == "effort":
        drawn *= np.sqrt(joint_inertia)
    return drawn * sizes.reshape(-1, *(1,) * len(operand.shape))


def difference(kernel: Callable[..., Any], given: Graph, joint_inertia: Array) -> float:
    """The kernel's largest difference from the function as given, as a share of what rounding explains.

    States at which the answer as given is not finite say nothing, and do not count.
    """
    signature = given.signature
    inputs = drawn_states(signature, joint_inertia)
    with np.errstate(all="ignore"):
        answers = kernel(*inputs)
        answers = answers if isinstance(answers, tuple) else (answers,)
        runs = rounded_at_random(given.function, inputs)
        worst = 0.0
        for answer, outputs in zip(answers, runs, strict=True):
            worst = max(worst, _share(answer.reshape(len(SIZES), -1), outputs))
    return worst


def _share(answer: Array, runs: Array) -> float:
    """runs: (states, entries, 1 + RUNS), the first rounded to nearest."""
    given = runs[..., 0]
    finite = np.isfinite(runs).all(axis=(-2, -1))
    if not finite.any():
        return 0.0
    answer, given, runs = answer[finite], given[finite], runs[finite]
    spread = np.abs(runs - given[..., None]).max(axis=-1)
    own = np.abs(given).max(axis=0)
    size = np.divide(np.abs(given), own, out=np.zeros_like(given), where=own > 0.0).max(axis=-1, initial=0.0)
    explained = SPREADS * spread + ROUNDINGS * np.finfo(np.float64).eps * own * size[:, None]
    apart = np.abs(answer - given)
    share = np.divide(apart, explained, out=np.full_like(apart, np.inf), where=explained > 0.0)
    return float(np.max(np.where(apart == 0.0, 0.0, share), initial=0.0))


_OPERATIONS: Mapping[int, Callable[..., Any]] = {
    ca.OP_ADD: np.add,
    ca.OP_SUB: np.subtract,
    ca.OP_MUL: np.multiply,
    ca.OP_DIV: np.divide,
    ca.OP_SQ: np.square,
    ca.OP_INV: np.reciprocal,
    ca.OP_SQRT: np.sqrt,
    ca.OP_SIN: np.sin,
    ca.OP_COS: np.cos,
}
_EXACT: Mapping[int, Callable[..., Any]] = {ca.OP_NEG: np.negative, ca.OP_TWICE: lambda x: x + x, ca.OP_ASSIGN: np.array}


def rounded_at_random(function: Any, inputs: Sequence[Array]) -> list[Array]:
    """The function's outputs, (states, entries, 1 + RUNS) each: rounded to nearest once, then RUNS times at random."""
    lanes = len(inputs[0]) * (1 + RUNS)
    flat = [np.repeat(x.reshape(len(x), -1), 1 + RUNS, axis=0).T for x in inputs]
    errors = 1.0 + np.finfo(np.float64).eps / 2 * np.random.default_rng(1).uniform(-1.0, 1.0, (256, lanes))
    errors[:, :: 1 + RUNS] = 1.0
    outputs = [np.zeros((function.size1_out(k), lanes)) for k in range(function.n_out())]
    work: dict[int, Any] = {}
    for k in range(function.n_instructions()):
        operation = function.instruction_id(k)
        target = function.instruction_output(k)
        if operation == ca.OP_CONST:
            work[target[0]] = np.full(lanes, function.instruction_constant(k))
        elif operation == ca.OP_INPUT:
            operand, entry = function.instruction_input(k)
            work[target[0]] = flat[operand][entry]
        elif operation == ca.OP_OUTPUT:
            operand, entry = target
            outputs[operand][entry] = work[function.instruction_input(k)[0]]
        else:
            values = [work[index] for index in function.instruction_input(k)]
            exact = _EXACT.get(operation)
            work[target[0]] = exact(*values) if exact else _OPERATIONS[operation](*values) * errors[k % 256]
    return [array.T.reshape(len(inputs[0]), 1 + RUNS, -1).swapaxes(1, 2) for array in outputs]

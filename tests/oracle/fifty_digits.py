"""A kernel's graph in fifty digits: its inputs and the robot's numbers are taken as the doubles they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import casadi as ca
import numpy as np
from mpmath import mp, mpf
from numpy.typing import NDArray

Array = NDArray[np.float64]

DIGITS = 50

_MEANS: dict[int, Callable[..., Any]] = {
    ca.OP_ASSIGN: lambda x: x,
    ca.OP_ADD: lambda x, y: x + y,
    ca.OP_SUB: lambda x, y: x - y,
    ca.OP_MUL: lambda x, y: x * y,
    ca.OP_DIV: lambda x, y: x / y if y else mpf("nan"),
    ca.OP_SQ: lambda x: x * x,
    ca.OP_INV: lambda x: 1 / x if x else mpf("nan"),
    ca.OP_NEG: lambda x: -x,
    ca.OP_TWICE: lambda x: 2 * x,
    ca.OP_SQRT: lambda x: mp.sqrt(x) if x >= 0 else mpf("nan"),
    ca.OP_SIN: lambda x: mp.sin(x),
    ca.OP_COS: lambda x: mp.cos(x),
    ca.OP_TANH: lambda x: mp.tanh(x),
    ca.OP_ATAN2: lambda y, x: mp.atan2(y, x),
    ca.OP_FABS: lambda x: abs(x),
    ca.OP_COPYSIGN: lambda x, y: -abs(x) if y < 0 else abs(x),
    ca.OP_LT: lambda x, y: mpf(x < y),
    ca.OP_NOT: lambda x: mpf(x == 0),
    ca.OP_IF_ELSE_ZERO: lambda x, y: y if x != 0 else mpf(0),
}


def exactly(function: Any, inputs: Sequence[Array]) -> list[Array]:
    """The function's outputs, (states, entries) each, computed in fifty digits and rounded once."""
    states = len(inputs[0])
    flat = [x.reshape(states, -1) for x in inputs]
    outputs = [np.zeros((states, function.size1_out(k))) for k in range(function.n_out())]
    steps = [
        (function.instruction_id(k), function.instruction_input(k), function.instruction_output(k), k)
        for k in range(function.n_instructions())
    ]
    with mp.workdps(DIGITS):
        for state in range(states):
            work: dict[int, Any] = {}
            for operation, sources, target, k in steps:
                if operation == ca.OP_CONST:
                    work[target[0]] = mpf(function.instruction_constant(k))
                elif operation == ca.OP_INPUT:
                    work[target[0]] = mpf(float(flat[sources[0]][state, sources[1]]))
                elif operation == ca.OP_OUTPUT:
                    outputs[target[0]][state, target[1]] = float(work[sources[0]])
                else:
                    work[target[0]] = _MEANS[operation](*(work[source] for source in sources))
    return outputs

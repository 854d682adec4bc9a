"""A kernel's graph in fifty digits: its inputs and the robot's numbers are taken as the doubles they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpmath import mp, mpf
from numpy.typing import NDArray

from dyn_service.dynamics import expressions as ex

Array = NDArray[np.float64]

DIGITS = 50

_MEANS: dict[int, Callable[..., Any]] = {
    ex.ADD: lambda x, y: x + y,
    ex.SUB: lambda x, y: x - y,
    ex.MUL: lambda x, y: x * y,
    ex.DIV: lambda x, y: x / y if y else mpf("nan"),
    ex.SQUARE: lambda x: x * x,
    ex.INVERSE: lambda x: 1 / x if x else mpf("nan"),
    ex.NEG: lambda x: -x,
    ex.TWICE: lambda x: 2 * x,
    ex.SQRT: lambda x: mp.sqrt(x) if x >= 0 else mpf("nan"),
    ex.SIN: lambda x: mp.sin(x),
    ex.COS: lambda x: mp.cos(x),
    ex.TANH: lambda x: mp.tanh(x),
    ex.ATAN2: lambda y, x: mp.atan2(y, x),
    ex.FABS: lambda x: abs(x),
    ex.COPYSIGN: lambda x, y: -abs(x) if y < 0 else abs(x),
    ex.LESS: lambda x, y: mpf(x < y),
    ex.NOT: lambda x: mpf(x == 0),
    ex.IF_ELSE_ZERO: lambda x, y: y if x != 0 else mpf(0),
}


def exactly(program: ex.Program, inputs: Sequence[Array]) -> list[Array]:
    """The program's outputs, (states, entries) each, computed in fifty digits and rounded once."""
    states = len(inputs[0])
    flat = [x.reshape(states, -1) for x in inputs]
    outputs = [np.zeros((states, size)) for size in program.outputs]
    with mp.workdps(DIGITS):
        for state in range(states):
            work: list[Any] = []
            for operation, a, b in program.instructions:
                result = None
                if operation == ex.CONSTANT:
                    result = mpf(a)
                elif operation == ex.INPUT:
                    result = mpf(float(flat[a][state, b]))
                elif operation == ex.OUTPUT:
                    outputs[a[0]][state, a[1]] = float(work[b])
                else:
                    result = _MEANS[operation](*(work[k] for k in (a, b) if k is not None))
                work.append(result)
    return outputs

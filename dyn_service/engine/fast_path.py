"""The fast path for the common call, without special options.

For one state at a time, as in control loops, the slow path of `Robot` costs more than the kernel. Arguments that the
kernel cannot take directly return None, and take the slow path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dyn_service.api.arrays import kernel_input
from dyn_service.api.queries import Array, Query

Call = Callable[[tuple[Any, ...], tuple[Any, ...]], Any]
"""A row's required and optional arguments -> the answer, or None for the slow path."""


def common_call(
    row: Query,
    kernel: np.ufunc | None,
    single: Callable[..., Any] | None,
    push: Callable[..., Any] | None,
    left_out: Sequence[Array],
    labels: Mapping[str, tuple[str, ...]],
    named: Mapping[int, Mapping[str, Array]],
) -> Call:
    """Returns the fast path of a row.

    Args:
        row: Of the table.
        kernel: Of batches and of all that NumPy makes an array of; None: it is not there, and neither is `single`.
        single: Of one state, in arrays.
        push: Of one state with external wrenches; None: it is not there.
        left_out: What the inputs are that the common call leaves out.
        labels: Names of the answer's rows.
        named: Which of the required arguments are one name, and what the kernel takes for each.
    """
    defaults = row.defaults
    if row.result_type is None:
        result: Callable[[Any], Any] | None = None
    else:
        result = lambda arrays: row.result({**labels, **dict(zip(row.outputs, arrays, strict=True))})

    def call(given: tuple[Any, ...], others: tuple[Any, ...]) -> Any:
        try:
            if named:
                given = tuple(named[k][x] if k in named else x for k, x in enumerate(given))
            if others != defaults:  # an array among them has no one truth
                if push is None:
                    return None
                answer = push(given, others)
                if answer is None:  # lists, perhaps
                    answer = push((*map(kernel_input, given),), others)
                    if answer is None:
                        return None
            else:
                answer = None if single is None else single(*given, *left_out)
                if answer is None:  # not one state, or not as the kernel takes it: NumPy knows more
                    if kernel is None:
                        return None
                    answer = kernel(*map(kernel_input, given), *left_out)
        except (KeyError, TypeError, ValueError):
            return None
        return answer if result is None else result(answer)

    return call

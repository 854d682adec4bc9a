"""The fast path for calls with default options.

For one state at a time, as in control loops, the slow path of `Robot` costs more than the kernel. The fast path returns
None for arguments that the kernel does not accept directly; these take the slow path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dyn_service.api.arrays import kernel_input
from dyn_service.api.queries import Array, Query

Call = Callable[[tuple[Any, ...], tuple[Any, ...]], Any]
"""A row's required and optional arguments -> the result, or None for the slow path."""


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
        row: The row of the table.
        kernel: The gufunc, for batches and for everything that NumPy converts to an array; None if it is not loaded.
        single: The call for one state in arrays, if it exists.
        push: The call for one state with external wrenches, if it exists.
        left_out: The default values of the optional inputs.
        labels: The names of the result's rows.
        named: By index, the required arguments that are names, and the kernel's input for each name.
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
            if others != defaults:  # an array among them raises ValueError
                if push is None:
                    return None
                answer = push(given, others)
                if answer is None:  # lists, for example
                    answer = push((*map(kernel_input, given),), others)
                    if answer is None:
                        return None
            else:
                answer = None if single is None else single(*given, *left_out)
                if answer is None:  # a batch, or arguments that NumPy has to convert
                    if kernel is None:
                        return None
                    answer = kernel(*map(kernel_input, given), *left_out)
        except (KeyError, TypeError, ValueError):
            return None
        return answer if result is None else result(answer)

    return call

"""The arguments `out` and `workers`, which every query of the table has.

`out` is where the result is written, as in NumPy's functions: an array, or for a result with several outputs a tuple
with an array, or None, for each, in the order of the result's fields; or a result of an earlier call. The arrays are
of float64, writable, with the shape of the output, and any strides. They may overlap the inputs, which are then copied
first. The result consists of these arrays. A remote robot copies its answer into them.

`workers` is the largest number of threads for a large batch, see `Robot.workers`. A remote robot checks and ignores
it, because its server has its own threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from dyn_service.api.arrays import found
from dyn_service.api.results import Array
from dyn_service.api.spec import Query
from dyn_service.errors import InvalidArgumentError

MAX_WORKERS = 256
"""Largest number of threads of a robot."""

_DOUBLE = np.dtype(np.float64)


def checked_workers(count: Any) -> int:
    """Returns a number of threads.

    Raises:
        InvalidArgumentError: It is not a whole number from 1 to `MAX_WORKERS`.
    """
    # True is an Integral, and `workers=True` reads like a switch.
    if isinstance(count, bool) or not isinstance(count, Integral) or not 1 <= int(count) <= MAX_WORKERS:
        raise InvalidArgumentError(
            f"workers must be a whole number from 1 to {MAX_WORKERS}, found {count!r}", path="workers"
        )
    return int(count)


def output_arrays(row: Query, out: Any) -> tuple[Array | None, ...]:
    """Returns the array of each output of a row, None where `out` has none.

    Raises:
        InvalidArgumentError: `out` has another form, or contains anything but writable arrays of float64.
    """
    if out is None:
        return (None,) * len(row.outputs)
    # A result of an earlier call may be given as it is, so that a loop needs no names of outputs.
    if row.result_type is not None and isinstance(out, row.result_type):
        arrays: tuple[Any, ...] = tuple(getattr(out, name) for name in row.outputs)
    else:
        # Not by `len`: an array is no tuple of outputs, and its length is the number of states.
        arrays = (out,) if isinstance(out, np.ndarray) else tuple(out) if isinstance(out, Sequence) else ()
        if len(arrays) != len(row.outputs):
            names = ", ".join(row.outputs)
            expected = "an array" if row.result_type is None else f"a {row.result_type.__name__} or a tuple of arrays"
            raise InvalidArgumentError(
                f"out of {row.name} must be {expected} ({names}), found {found(out)}", path="out"
            )
    for k, array in enumerate(arrays):
        if array is not None and (
            not isinstance(array, np.ndarray) or array.dtype != _DOUBLE or not array.flags.writeable
        ):
            is_read_only = isinstance(array, np.ndarray) and array.dtype == _DOUBLE
            kind = "a read-only array" if is_read_only else found(array)
            raise InvalidArgumentError(
                f"{_path(row, k)} must be a writable array of float64, found {kind}", path=_path(row, k)
            )
    return arrays


def check_shapes(row: Query, arrays: Sequence[Array | None], shapes: Sequence[tuple[int, ...]]) -> None:
    """Raises InvalidArgumentError for an array that has another shape than its output."""
    for k, (name, array, shape) in enumerate(zip(row.outputs, arrays, shapes, strict=True)):
        if array is not None and array.shape != shape:
            raise InvalidArgumentError(
                f"{_path(row, k)} has shape {array.shape}, expected {shape}, the shape of {name}", path=_path(row, k)
            )


def fill(row: Query, result: Any, arrays: Sequence[Array | None]) -> Any:
    """Copies the outputs of a result into arrays, and returns the result with these.

    Args:
        row: The row of the table.
        result: A result of its method.
        arrays: The array of each output, or None.

    Raises:
        InvalidArgumentError: An array has another shape than its output; nothing is copied then.
    """
    answers = row.outputs_of(result)
    # All shapes first, so that an error leaves every array as it was.
    check_shapes(row, arrays, [np.shape(answers[name]) for name in row.outputs])
    for name, array in zip(row.outputs, arrays, strict=True):
        if array is not None:
            array[...] = answers[name]
            answers[name] = array
    return row.result(answers)


def _path(row: Query, k: int) -> str:
    return "out" if row.result_type is None else f"out[{k}]"

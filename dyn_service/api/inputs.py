"""Arguments against the table: the right names, options, types and shapes, or one clear sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dyn_service.api.queries import QUERIES, Array, Query, Row
from dyn_service.errors import InvalidArgumentError, ResourceExhaustedError, UnimplementedError
from dyn_service.suggestions import did_you_mean


def row_of(name: str) -> Query:
    """The row of that name."""
    row = QUERIES.get(name)
    if row is None:
        raise UnimplementedError(
            f"there is no query '{name}'; the queries are {', '.join(QUERIES)}{did_you_mean(name, QUERIES)}",
            path="query",
        )
    return row


def check_names(row: Row, given: Mapping[str, Any]) -> None:
    """Refuses inputs that a row has not, and the lack of those that it needs; None is left out.

    Raises:
        InvalidArgumentError: `path` names the input.
    """
    for name in given:
        if name not in row.inputs:
            known = f"its inputs are {', '.join(row.inputs)}" if row.inputs else "it has none"
            known += did_you_mean(name, row.inputs)
            raise InvalidArgumentError(f"{row.name} has no input '{name}'; {known}", path=f"inputs.{name}")
    for name in row.required:
        if given.get(name) is None:
            raise needed(row, name)


def needed(row: Row, name: str) -> InvalidArgumentError:
    """What to raise where an input is missing."""
    return InvalidArgumentError(f"{row.name} needs the input '{name}'", path=f"inputs.{name}")


def checked_options(row: Row, options: Mapping[str, Any]) -> dict[str, Any]:
    """Each option of the row with its value, its default where none is given; numbers as floats.

    Raises:
        InvalidArgumentError: There is no such option, it is needed, or its value is none; `path` names it.
        ResourceExhaustedError: It asks for too much.
    """
    chosen = {name: option.default for name, option in row.options.items() if not option.required}
    for name, value in options.items():
        option, path = row.options.get(name), f"options.{name}"
        if option is None:
            known = f"its options are {', '.join(row.options)}" if row.options else "it has none"
            raise InvalidArgumentError(
                f"{row.name} has no option '{name}'; {known}{did_you_mean(name, row.options)}", path=path
            )
        if not option.is_one(value):
            said = repr(value) + did_you_mean(value, option.choices) if option.choices else found(value)
            raise InvalidArgumentError(f"{name} must be {option.takes}, found {said}", path=path)
        if option.most is not None and value > option.most:
            raise ResourceExhaustedError(
                f"{name} must be at most {option.most} in one request, found {value}: go on from the last state",
                path=path,
            )
        chosen[name] = _PLAIN.get(option.type, _same)(value)
    for name in row.options:
        if name not in chosen:
            raise InvalidArgumentError(f"{row.name} needs the option '{name}'", path=f"options.{name}")
    return chosen


_PLAIN: Mapping[str, Callable[[Any], Any]] = {"number": float, "whole": int}
"""What numbers of any library become."""


def _same(value: Any) -> Any:
    return value


def numbers(value: Any) -> Array | None:
    """The value as an array of doubles; None if it is not made of real numbers."""
    try:
        array = np.asarray(value)
    except ValueError:  # nested lists of unequal lengths
        return None
    return array.astype(np.float64, copy=False) if array.dtype.kind in "fiub" or not array.size else None


def vector(value: Any, path: str) -> Array:
    """(..., 3) doubles."""
    array = numbers(value)
    if array is None or array.ndim < 1 or array.shape[-1] != 3:
        raise InvalidArgumentError(f"{path} must be numbers of shape (..., 3), found {found(value)}", path=path)
    return array


def broadcast(leads: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The leading axes that inputs with these leading axes have together."""
    try:
        return np.broadcast_shapes(*leads.values())
    except ValueError:
        *most, last = [f"{name} {shape}" for name, shape in leads.items()]
        raise InvalidArgumentError(
            f"the leading axes of {', '.join(most)} and {last} do not broadcast against each other", path="inputs"
        ) from None


def found(value: Any) -> str:
    """What a value is, in a few words."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"shape {tuple(shape)} of {getattr(value, 'dtype', type(value).__name__)}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"

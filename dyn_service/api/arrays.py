"""Numbers that come in from outside: as arrays of doubles, or one clear sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dyn_service.errors import InvalidArgumentError

Array = NDArray[np.float64]


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


def vectors(name: str, value: Any, length: int) -> Array:
    """(..., length) doubles."""
    array = numbers(value)
    if array is None or array.ndim < 1 or array.shape[-1] != length:
        raise InvalidArgumentError(f"{name} must be (..., {length}) numbers, found {found(value)}", path=name)
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


def spread(value: Any, lead: tuple[int, ...]) -> Any:
    """Vectors with these leading axes beside their own; what is no array of numbers stays as it is."""
    array = numbers(value)
    if array is None or not array.ndim:
        return value
    try:
        return np.broadcast_to(array, (*np.broadcast_shapes(lead, array.shape[:-1]), array.shape[-1]))
    except ValueError:
        return value  # whoever takes it says what is wrong


def found(value: Any) -> str:
    """What a value is, in a few words."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"shape {tuple(shape)} of {getattr(value, 'dtype', type(value).__name__)}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"

"""Arrays in a message: `{"dtype": "<f8", "shape": [..], "data": bin}`, or nested lists of numbers.

The bytes are in C order, little-endian. A reader turns every accepted type into float64; a writer only writes `<f8`.
NaN and infinity are refused here, once, so that no kernel and no robot ever acts on one that came over a socket.
"""

from __future__ import annotations

from math import isfinite, prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dyn_service.errors import InvalidArgumentError, ResourceExhaustedError
from dyn_service.protocol.limits import MAX_DIMENSIONS, MAX_MESSAGE_BYTES
from dyn_service.queries import Array

DTYPES = ("<f8", "<f4", "<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1")
"""The element types a reader takes, in NumPy's spelling."""

_DTYPES = {name: np.dtype(name) for name in DTYPES}
_F8 = _DTYPES["<f8"]
_FEW = 64
"""Up to so many numbers, adding them up in Python beats starting a NumPy loop."""


class WireArray(msgspec.Struct, frozen=True, gc=False):
    """An array as it stands in a message."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | bytearray


def pack_array(value: ArrayLike, path: str) -> WireArray:
    """The value as a message carries it.

    Args:
        value: Anything NumPy reads as an array of real numbers.
        path: Where it stands in the request, for the error.

    Raises:
        InvalidArgumentError: The value is no array of real numbers.
    """
    array = value if type(value) is np.ndarray and value.dtype is _F8 else _real_array(value, path)
    return WireArray("<f8", array.shape, array.tobytes())


def unpack_array(value: Any, path: str) -> Array:
    """The array that a message holds: float64, finite, read-only.

    Args:
        value: A map with `dtype`, `shape` and `data`, a list of numbers or of such lists, or one number.
        path: Where it stands in the request, for the error.

    Raises:
        InvalidArgumentError: Not an array, of an unknown type, of a wrong length, or not finite.
        ResourceExhaustedError: Too many dimensions.
    """
    array = _from_binary(value, path) if type(value) is dict else _from_lists(value, path)
    if array.size <= _FEW and isfinite(sum(array.data if array.ndim == 1 else array.ravel().data)):
        return array
    # A sum of finite numbers may overflow: only an entry that is not finite is a fault.
    if not np.isfinite(array).all():
        index = np.argwhere(~np.isfinite(array))[0].tolist()
        place = "".join(f"[{i}]" for i in index)
        raise InvalidArgumentError(
            f"{_name(path)}{place} is {array[tuple(index)]}, expected a finite number", path=path
        )
    return array


def describe_value(value: Any) -> str:
    """What a decoded value is, in the words of MessagePack, for error messages."""
    names = {bool: "a truth value", int: "an integer", float: "a float", str: "a text", bytes: "binary data"}
    return "nil" if value is None else names.get(type(value), "a map" if type(value) is dict else "a list")


def show_value(value: Any) -> str:
    """A decoded value as text, cut short, for error messages."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _real_array(value: Any, path: str) -> Array:
    try:
        array = np.asarray(value)
    except ValueError as fault:
        raise _fault(path, f"is not an array: {fault}") from None
    if array.dtype.kind not in "fiu":
        raise _fault(path, f"holds {array.dtype.name} values, expected real numbers")
    return array.astype(np.float64)


def _from_binary(value: dict[Any, Any], path: str) -> Array:
    dtype, shape, data = value.get("dtype"), value.get("shape"), value.get("data")
    if (
        dtype == "<f8"
        and type(data) is bytes
        and type(shape) is list
        and len(shape) == 1
        and type(shape[0]) is int
        and shape[0] * 8 == len(data)
    ):  # one state, as clients write it
        return np.frombuffer(data, _F8)
    for key, part in (("dtype", dtype), ("shape", shape), ("data", data)):
        if part is None:
            raise _fault(path, f"is a map without {key!r}, expected dtype, shape and data")
    if type(dtype) is not str or dtype not in _DTYPES:
        raise _fault(path, f"has the dtype {show_value(dtype)}, expected one of {', '.join(DTYPES)}")
    if type(shape) is not list or not all(type(size) is int and size >= 0 for size in shape):
        raise _fault(path, f"has the shape {show_value(shape)}, expected a list of lengths")
    _check_dimensions(len(shape), path)
    if type(data) is not bytes:
        raise _fault(path, f"has {describe_value(data)} as data, expected binary data")
    kind = _DTYPES[dtype]
    expected = prod(shape) * kind.itemsize  # Python integers: no overflow
    if expected != len(data):
        raise _fault(path, f"has {len(data)} bytes of data, the shape {show_value(shape)} of {dtype} takes {expected}")
    if prod(size for size in shape if size) > MAX_MESSAGE_BYTES:  # no entries, yet too large to be an array
        raise _fault(path, f"has the shape {show_value(shape)}, too large for an array")
    array: NDArray[Any] = np.frombuffer(data, kind).reshape(shape)
    return array if kind is _F8 else array.astype(np.float64)


def _from_lists(value: Any, path: str) -> Array:
    shape: list[int] = []
    level = value
    while type(level) is list:
        shape.append(len(level))
        _check_dimensions(len(shape), path)
        if not level:
            break
        level = level[0]
    flat = [value]
    for size in shape:
        for part in flat:
            if type(part) is not list or len(part) != size:
                found = f"a list of {len(part)}" if type(part) is list else describe_value(part)
                raise _fault(path, f"is not rectangular: it holds {found} beside a list of {size}")
        flat = [entry for part in flat for entry in part]
    for entry in flat:
        if type(entry) is not float and type(entry) is not int:
            raise _fault(path, f"{'holds' if shape else 'is'} {describe_value(entry)}, expected numbers")
    return np.array(flat, dtype=np.float64).reshape(shape)


def _check_dimensions(count: int, path: str) -> None:
    if count > MAX_DIMENSIONS:
        message = f"{_name(path)} has {count} dimensions or more, the limit is {MAX_DIMENSIONS}"
        raise ResourceExhaustedError(message, path=path)


def _fault(path: str, found: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{_name(path)} {found}", path=path)


def _name(path: str) -> str:
    return path.removeprefix("inputs.")

"""Arrays in a message: `{"dtype": "<f8", "shape": [..], "data": bin}`, or nested lists of numbers.

The bytes are little-endian, in C order. A reader converts every accepted type to float64; a writer writes `<f8` only.
`unpack_array` rejects NaN and infinity, so that no kernel receives one from a socket.
"""

from __future__ import annotations

import struct
from math import isfinite, prod
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dyn_service.api.arrays import found, numbers
from dyn_service.api.queries import Array
from dyn_service.errors import InvalidArgumentError, ResourceExhaustedError
from dyn_service.service.protocol.limits import MAX_DIMENSIONS, MAX_LIST, MAX_MESSAGE_BYTES

DTYPES = ("<f8", "<f4", "<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1")
"""Accepted element types, in NumPy's notation."""

_DTYPES = {name: np.dtype(name) for name in DTYPES}
_F8 = _DTYPES["<f8"]
_FLOATS = frozenset({float})
_MAX_PYTHON_SUM = 64
"""Largest number of entries that Python's `sum` adds faster than NumPy."""

_MAX_COPIED_BYTES = 4096
"""Largest array for which a copy of the bytes is faster than a view."""


class WireArray(msgspec.Struct, frozen=True, gc=False):
    """An array in a message."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | bytearray | memoryview


class ReplyArray(msgspec.Struct, gc=False):
    """An array in a reply. Its bytes are writable, so the array that `value` returns is writable too."""

    dtype: Literal["<f8"]
    shape: tuple[int, ...]
    data: bytearray

    def value(self) -> Any:
        """Returns the array, or a number if the shape is empty; `ValueError` if shape and bytes do not match."""
        array = np.frombuffer(self.data)
        if array.shape == self.shape:
            return array
        if self.shape and min(self.shape) < 0:  # NumPy would infer this axis
            raise ValueError(f"its shape is {self.shape}")
        return array.reshape(self.shape)[()]


def pack_array(value: ArrayLike, path: str) -> WireArray | float:
    """Encodes an array; a float is returned unchanged.

    path: of the value in the request, for the error.

    Raises:
        InvalidArgumentError: The value is not an array of real numbers.
    """
    array_like: Any = value
    if array_like.__class__ is float:
        return array_like
    if array_like.__class__ is list and _FLOATS.issuperset(map(type, array_like)):
        return WireArray("<f8", (len(array_like),), struct.pack(f"<{len(array_like)}d", *array_like))
    if array_like.__class__ is np.ndarray and array_like.dtype.kind in "fiu":
        array: Array = array_like.astype(_F8, copy=False)
    else:
        array = _real_array(value, path)
    return WireArray("<f8", array.shape, array.tobytes())


def unpack_array(value: Any, path: str) -> Array:
    """Decodes an array to float64, finite and read-only.

    value: a map with `dtype`, `shape` and `data`, nested lists of numbers, or one number. path: of the value in the
    request, for the error.

    Raises:
        InvalidArgumentError: The value is not an array, its type is unknown, its length is wrong, or an entry is not
            finite.
        ResourceExhaustedError: The array has too many dimensions or entries.
    """
    if type(value) is dict:
        array = _from_binary(value, path)
    elif type(value) is float and isfinite(value):
        return np.float64(value)  # type: ignore[return-value]  # has the attributes of an array without axes
    else:
        array = _from_lists(value, path)
    if not is_finite(array):
        index = index_of_non_finite(array)
        place = f" at {list(index)}" if index else ""
        raise invalid_argument(path, f"must be finite, found {array[index]}{place}")
    return array


def index_of_non_finite(array: Array) -> tuple[int, ...]:
    """Returns the index of the first entry that is not finite. The array must have such an entry."""
    return tuple(int(k) for k in np.unravel_index(np.argmin(np.isfinite(array)), array.shape))


def is_finite(array: Array) -> bool:
    """Whether all entries are finite numbers."""
    if array.size <= _MAX_PYTHON_SUM and isfinite(sum(array.data if array.ndim == 1 else array.ravel().data)):
        return True
    # A sum of finite numbers may overflow, so an infinite sum is not yet an error.
    return bool(np.isfinite(array).all())


def may_be_infinite(data: bytes | bytearray) -> bool:
    """Whether `<f8` data may contain a number that is not finite. A fast test: False is certain, True is not.

    The highest byte of infinity, NaN and finite numbers of magnitude 5e303 and more is 0x7F or 0xFF.
    """
    high = data[7::8]
    return 0x7F in high or 0xFF in high


def pack_output(value: Any) -> Any:
    """Encodes an output of a robot; a tuple of names is returned unchanged."""
    if isinstance(value, tuple):
        return value
    if value.nbytes <= _MAX_COPIED_BYTES:
        return WireArray("<f8", value.shape, value.tobytes())
    return WireArray("<f8", value.shape, np.ascontiguousarray(value, _F8).data)


def describe_value(value: Any) -> str:
    """Returns the MessagePack type of a decoded value, for error messages."""
    names: dict[type, str] = {bool: "a boolean", int: "an integer", float: "a float", str: "a string"}
    names |= {bytes: "binary data", dict: "a map", list: "a list", type(None): "nil"}
    return names.get(type(value), "an extension type")


def show_value(value: Any) -> str:
    """Returns the `repr` of a decoded value, at most 60 characters, for error messages."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def invalid_argument(path: str, fault: str) -> InvalidArgumentError:
    """Returns the error for the value at a path of the request."""
    return InvalidArgumentError(f"{_name(path)} {fault}", path=path)


def _real_array(value: Any, path: str) -> Array:
    array = numbers(value)
    if array is None:
        raise invalid_argument(path, f"must be real numbers, found {found(value)}")
    return array


def _from_binary(value: dict[Any, Any], path: str) -> Array:
    dtype, shape, data = value.get("dtype"), value.get("shape"), value.get("data")
    if (
        dtype == "<f8"
        and type(data) is bytes
        and type(shape) is list
        and len(shape) == 1
        and type(shape[0]) is int
        and shape[0] * 8 == len(data)
    ):  # fast path: one state, as the clients of this package write it
        return np.frombuffer(data, _F8)
    for key, part in (("dtype", dtype), ("shape", shape), ("data", data)):
        if part is None:
            raise invalid_argument(path, f"must have dtype, shape and data, found no {key!r}")
    if type(dtype) is not str or dtype not in _DTYPES:
        raise invalid_argument(path, f"must have a dtype of {', '.join(DTYPES)}, found {show_value(dtype)}")
    if type(shape) is not list or not all(type(size) is int and size >= 0 for size in shape):
        raise invalid_argument(path, f"must have a list of lengths as shape, found {show_value(shape)}")
    _check_dimensions(len(shape), path)
    if type(data) is not bytes:
        raise invalid_argument(path, f"must have binary data, found {describe_value(data)}")
    kind = _DTYPES[dtype]
    expected = prod(shape) * kind.itemsize  # Python integers: no overflow
    if expected != len(data):
        shape_text = f"shape {show_value(shape)} of {dtype}"
        raise invalid_argument(path, f"must have {expected} bytes of data for {shape_text}, found {len(data)}")
    # empty, but NumPy cannot represent the shape
    if prod(size for size in shape if size) > MAX_MESSAGE_BYTES:
        shape_text = show_value(shape)
        raise invalid_argument(path, f"must have a shape of at most {MAX_MESSAGE_BYTES} entries, found {shape_text}")
    if prod(shape) * _F8.itemsize > MAX_MESSAGE_BYTES:  # smaller types grow when converted
        message = f"{_name(path)} takes {prod(shape) * _F8.itemsize} bytes as doubles, the limit is {MAX_MESSAGE_BYTES}"
        raise ResourceExhaustedError(message, path=path)
    array: NDArray[Any] = np.frombuffer(data, kind).reshape(shape)
    return array if kind is _F8 else array.astype(np.float64)


def _from_lists(value: Any, path: str) -> Array:
    shape: list[int] = []
    level = value
    while type(level) is list:
        if len(level) > MAX_LIST:
            text = f"{_name(path)} has a list of {len(level)} entries, the limit is {MAX_LIST}"
            raise ResourceExhaustedError(f"{text}: send it as binary data", path=path)
        shape.append(len(level))
        _check_dimensions(len(shape), path)
        if not level:
            break
        level = level[0]
    flat = [value]
    for size in shape:
        for part in flat:
            if type(part) is not list or len(part) != size:
                kind = f"a list of {len(part)}" if type(part) is list else describe_value(part)
                raise invalid_argument(path, f"must be rectangular, found {kind} next to a list of {size}")
        flat = [entry for part in flat for entry in part]
    for entry in flat:
        if type(entry) is not float and type(entry) is not int:
            raise invalid_argument(path, f"must be real numbers, found {describe_value(entry)}")
    return np.array(flat, dtype=np.float64).reshape(shape)


def _check_dimensions(count: int, path: str) -> None:
    if count > MAX_DIMENSIONS:
        message = f"{_name(path)} must have at most {MAX_DIMENSIONS} dimensions, found {count} or more"
        raise ResourceExhaustedError(message, path=path)


def _name(path: str) -> str:
    return path.removeprefix("inputs.")

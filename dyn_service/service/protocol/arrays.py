"""Arrays in a message: `{"dtype": "<f8", "shape": [..], "data": bin}`, or nested lists of numbers.

The bytes are in C order, little-endian. A reader turns every accepted type into float64; a writer only writes `<f8`.
NaN and infinity are refused here, once, so that no kernel and no robot ever acts on one that came over a socket.
"""

from __future__ import annotations

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
"""The element types a reader takes, in NumPy's spelling."""

_DTYPES = {name: np.dtype(name) for name in DTYPES}
_F8 = _DTYPES["<f8"]
_FEW = 64
"""Up to so many numbers, adding them up in Python beats starting a NumPy loop."""

_SHORT = 4096
"""Up to so many bytes, copying is faster than lending."""


class WireArray(msgspec.Struct, frozen=True, gc=False):
    """An array as it stands in a message."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | bytearray | memoryview


class ReplyArray(msgspec.Struct, gc=False):
    """An array in a reply as a client reads it: its bytes stay writable, and so does the array that is made of them."""

    dtype: Literal["<f8"]
    shape: tuple[int, ...]
    data: bytearray

    def value(self) -> Any:
        """The array, or the number where it has no axes.

        Raises:
            ValueError: The bytes are not those of the shape.
        """
        array = np.frombuffer(self.data)
        if array.shape == self.shape:
            return array
        if self.shape and min(self.shape) < 0:  # NumPy would choose it
            raise ValueError(f"its shape is {self.shape}")
        return array.reshape(self.shape)[()]


def pack_array(value: ArrayLike, path: str) -> WireArray | float:
    """The value as a message carries it; a number stays a number.

    Args:
        value: Anything NumPy reads as an array of real numbers.
        path: Where it stands in the request, for the error.

    Raises:
        InvalidArgumentError: The value is no array of real numbers.
    """
    if type(value) is float:
        return value
    array = value if type(value) is np.ndarray and value.dtype is _F8 else _real_array(value, path)
    return WireArray("<f8", array.shape, array.tobytes())


def unpack_array(value: Any, path: str) -> Array:
    """The array that a message holds: float64, finite, read-only.

    Args:
        value: A map with `dtype`, `shape` and `data`, a list of numbers or of such lists, or one number.
        path: Where it stands in the request, for the error.

    Raises:
        InvalidArgumentError: Not an array, of an unknown type, of a wrong length, or not finite.
        ResourceExhaustedError: Too many dimensions, or entries.
    """
    if type(value) is dict:
        array = _from_binary(value, path)
    elif type(value) is float and isfinite(value):
        return np.float64(value)  # type: ignore[return-value]  # has what is used of an array without axes
    else:
        array = _from_lists(value, path)
    if not is_finite(array):
        index = not_finite_at(array)
        place = f" at {list(index)}" if index else ""
        raise InvalidArgumentError(f"{_name(path)} must be finite, found {array[index]}{place}", path=path)
    return array


def not_finite_at(array: Array) -> tuple[int, ...]:
    """The place of the first entry that is not finite, where there is one."""
    return tuple(int(k) for k in np.unravel_index(np.argmin(np.isfinite(array)), array.shape))


def is_finite(array: Array) -> bool:
    """Whether all entries are finite numbers."""
    if array.size <= _FEW and isfinite(sum(array.data if array.ndim == 1 else array.ravel().data)):
        return True
    # A sum of finite numbers may overflow: only an entry that is not finite is a fault.
    return bool(np.isfinite(array).all())


def may_be_infinite(data: bytes | bytearray) -> bool:
    """Whether numbers, as `<f8`, may hold one that is not finite: quick, and never wrong where it says no.

    Infinity, NaN, and finite numbers from 5e303 on have this byte in front, up to their sign.
    """
    high = data[7::8]
    return 0x7F in high or 0xFF in high


def pack_output(value: Any) -> Any:
    """An output of a robot as a message carries it: an array, or a tuple of names as it is."""
    if isinstance(value, tuple):
        return value
    if value.nbytes <= _SHORT:
        return WireArray("<f8", value.shape, value.tobytes())
    return WireArray("<f8", value.shape, np.ascontiguousarray(value, _F8).data)


def describe_value(value: Any) -> str:
    """What a decoded value is, in the words of MessagePack, for error messages."""
    names: dict[type, str] = {
        bool: "a truth value",
        int: "an integer",
        float: "a float",
        str: "a text",
        bytes: "binary data",
    }
    names |= {dict: "a map", list: "a list", type(None): "nil"}
    return names.get(type(value), "an extension type")


def show_value(value: Any) -> str:
    """A decoded value as text, cut short, for error messages."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _real_array(value: Any, path: str) -> Array:
    array = numbers(value)
    if array is None:
        raise _fault(path, f"must be real numbers, found {found(value)}")
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
    ):  # one state, as clients write it
        return np.frombuffer(data, _F8)
    for key, part in (("dtype", dtype), ("shape", shape), ("data", data)):
        if part is None:
            raise _fault(path, f"must have dtype, shape and data, found no {key!r}")
    if type(dtype) is not str or dtype not in _DTYPES:
        raise _fault(path, f"must have a dtype of {', '.join(DTYPES)}, found {show_value(dtype)}")
    if type(shape) is not list or not all(type(size) is int and size >= 0 for size in shape):
        raise _fault(path, f"must have a list of lengths as shape, found {show_value(shape)}")
    _check_dimensions(len(shape), path)
    if type(data) is not bytes:
        raise _fault(path, f"must have binary data, found {describe_value(data)}")
    kind = _DTYPES[dtype]
    expected = prod(shape) * kind.itemsize  # Python integers: no overflow
    if expected != len(data):
        raise _fault(
            path, f"must have {expected} bytes of data for shape {show_value(shape)} of {dtype}, found {len(data)}"
        )
    if prod(size for size in shape if size) > MAX_MESSAGE_BYTES:  # no entries, yet too large to be an array
        raise _fault(path, f"must have a shape of at most {MAX_MESSAGE_BYTES} entries, found {show_value(shape)}")
    if prod(shape) * _F8.itemsize > MAX_MESSAGE_BYTES:  # small integers grow
        message = f"{_name(path)} takes {prod(shape) * _F8.itemsize} bytes as doubles, the limit is {MAX_MESSAGE_BYTES}"
        raise ResourceExhaustedError(message, path=path)
    array: NDArray[Any] = np.frombuffer(data, kind).reshape(shape)
    return array if kind is _F8 else array.astype(np.float64)


def _from_lists(value: Any, path: str) -> Array:
    shape: list[int] = []
    level = value
    while type(level) is list:
        if len(level) > MAX_LIST:
            message = (
                f"{_name(path)} has a list of {len(level)} entries, the limit is {MAX_LIST}: send it as binary data"
            )
            raise ResourceExhaustedError(message, path=path)
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
                raise _fault(path, f"must be rectangular, found {found} beside a list of {size}")
        flat = [entry for part in flat for entry in part]
    for entry in flat:
        if type(entry) is not float and type(entry) is not int:
            raise _fault(path, f"must be real numbers, found {describe_value(entry)}")
    return np.array(flat, dtype=np.float64).reshape(shape)


def _check_dimensions(count: int, path: str) -> None:
    if count > MAX_DIMENSIONS:
        message = f"{_name(path)} must have at most {MAX_DIMENSIONS} dimensions, found {count} or more"
        raise ResourceExhaustedError(message, path=path)


def _fault(path: str, found: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{_name(path)} {found}", path=path)


def _name(path: str) -> str:
    return path.removeprefix("inputs.")

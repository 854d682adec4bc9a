"""Conversion of external numbers to arrays of doubles, with errors for anything else."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from numbers import Number
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from dyn_service.errors import InvalidArgumentError

Array = NDArray[np.float64]
"""An array of floats. Docstrings give its shape and units."""

MAX_NPZ_BYTES = 4 << 30
"""Bytes of all arrays of a recording: an hour of a quadruped at 1 kHz is 2 GiB."""


def read_npz(path: Path) -> dict[str, Any]:
    """Returns the arrays of a file of `numpy.savez`.

    Raises:
        OSError: It cannot be read.
        ValueError, EOFError, BadZipFile, MemoryError: It is no such file.
        InvalidArgumentError: Its arrays are larger than `MAX_NPZ_BYTES`.
    """
    with path.open("rb") as file:
        with ZipFile(file) as packed:
            size = sum(entry.file_size for entry in packed.infolist())
        # Before NumPy reads it, because a small file may expand to any size.
        if size > MAX_NPZ_BYTES:
            raise InvalidArgumentError(f"{str(path)!r} expands to {size} bytes, at most {MAX_NPZ_BYTES} are read")
        # The same open file, so that what was measured is what is read.
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}


def numbers(value: Any) -> Array | None:
    """Returns the value as an array of doubles; None if it has other entries than real numbers, or masked ones."""
    if value.__class__ is not np.ndarray and (_is_masked(value) or holds_labelled(value)):
        return None
    try:
        array = np.asarray(value)
    except ValueError:  # nested lists of unequal lengths
        return None
    # Not bool, in which True would become 1, and not complex, whose imaginary part would be dropped.
    return array.astype(np.float64, copy=False) if array.dtype.kind in "fiu" else None


_SMALL = 32
"""Entries of a vector that Python checks faster than NumPy."""


def all_finite(array: Array) -> bool:
    """Returns whether all numbers are finite; for a small vector in a third of the time of NumPy's functions."""
    if array.ndim == 1 and array.size <= _SMALL:
        return all(map(isfinite, array.tolist()))
    return bool(np.isfinite(array).all())


def kernel_input(value: Any) -> Array:
    """As `numbers`; raises TypeError where that returns None."""
    array = numbers(value)
    if array is None:
        raise TypeError
    return array


_PLAIN = frozenset({float, int, bool, str, type(None), np.ndarray})
_LABELLED = frozenset({"xarray", "dask"})


def _is_masked(value: Any) -> bool:
    """Returns whether an entry of an array, or of nested lists of arrays and numbers, is masked."""
    masks = sys.modules.get("numpy.ma")  # slow to import; without it no array has a mask
    if masks is not None and isinstance(value, list | tuple):
        return not _PLAIN.issuperset(map(type, value)) and any(map(_is_masked, value))
    return masks is not None and bool(masks.is_masked(value))


def is_labelled(value: Any) -> bool:
    """Returns whether a value is an array of xarray or dask, which NumPy would convert, and load, silently."""
    return type(value).__module__.partition(".")[0] in _LABELLED


def holds_labelled(value: Any) -> bool:
    """Returns whether an array of xarray or dask is a value, or in its lists, maps and fields."""
    kind = value.__class__
    # Without the import of its library no such array exists; most processes never import it.
    if kind in _PLAIN or sys.modules.keys().isdisjoint(_LABELLED):
        return False
    if isinstance(value, list | tuple):
        return not _PLAIN.issuperset(map(type, value)) and any(map(holds_labelled, value))
    if isinstance(value, Mapping):
        return any(map(holds_labelled, value.values()))
    if is_labelled(value):
        return True
    names: Iterable[str] = getattr(value, "__struct_fields__", ()) or getattr(value, "__dataclass_fields__", ())
    return any(holds_labelled(getattr(value, name, None)) for name in names)


def vector(value: Any, path: str) -> Array:
    """(..., 3) doubles."""
    array = numbers(value)
    if array is None or array.ndim < 1 or array.shape[-1] != 3:
        raise InvalidArgumentError(f"{path} must be numbers of shape (..., 3), found {found(value)}", path=path)
    return array


GRAVITY_UNIT = " in m/s^2, such as (0, 0, -9.81)"
"""Unit and example, after the expected shape of gravity in errors."""


_DOUBLE = np.dtype(np.float64)


def vectors(name: str, value: Any, length: int) -> Array:
    """(..., length) doubles."""
    is_double = value.__class__ is np.ndarray and value.dtype is _DOUBLE  # as in control loops, which skip a call
    array: Array | None = value if is_double else numbers(value)
    if array is None or array.ndim < 1 or array.shape[-1] != length:
        unit = GRAVITY_UNIT if name == "gravity" else ""
        raise InvalidArgumentError(f"{name} must be (..., {length}) numbers{unit}, found {found(value)}", path=name)
    return array


def finite(name: str, array: Array) -> Array:
    """Returns the array if all its numbers are finite.

    Raises:
        InvalidArgumentError: A number is not finite; names the number and its index.
    """
    if not np.isfinite(array).all():
        index = np.argwhere(~np.isfinite(array))[0].tolist()
        place = f" at {index}" if index else ""
        raise InvalidArgumentError(f"{name} must be finite, found {array[tuple(index)]}{place}", path=name)
    return array


def broadcast(leads: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Returns the broadcast leading axes."""
    try:
        return np.broadcast_shapes(*leads.values())
    except ValueError:
        *first, last = [f"{name} {shape}" for name, shape in leads.items() if shape]
        raise InvalidArgumentError(
            f"the leading axes of {', '.join(first)} and {last} do not broadcast against each other", path="inputs"
        ) from None


def with_leading_axes(value: Any, lead: tuple[int, ...]) -> Any:
    """Adds leading axes to vectors; values that are not arrays of numbers are returned unchanged."""
    array = numbers(value)
    if array is None or not array.ndim:
        return value
    try:
        return np.broadcast_to(array, (*np.broadcast_shapes(lead, array.shape[:-1]), array.shape[-1]))
    except ValueError:
        return value  # the consumer reports the error


class Placeholder:
    """Base class of objects that represent an array of xarray or dask until its numbers replace them."""


def is_deferred(value: Any) -> bool:
    """Returns whether a value is or represents arrays of xarray or dask: its numbers are checked when they are used."""
    return isinstance(value, Placeholder) or holds_labelled(value)


def found_instead(kind: str, value: Any) -> str:
    """Returns `found` for a value that must be an object of a class; for a mapping also how to make one."""
    return found(value) + (f"; use {kind}(**..)" if isinstance(value, Mapping) else "")


def _odd_entry(values: Sequence[Any]) -> str:
    """Returns the first entry that is no number, and its index, of lists of mostly numbers; else ""."""
    if holds_labelled(values):  # NumPy would load lazy arrays
        return ""
    with suppress(ValueError):  # arrays of different shapes
        entries = np.array(values, dtype=object)
        odd = [k for k, x in np.ndenumerate(entries) if not isinstance(x, Number) or isinstance(x, complex)]
        if 0 < 2 * len(odd) < entries.size:
            return f"{found(entries[odd[0]])} at {list(odd[0])}"
    return ""


def found(value: Any) -> str:
    """Returns a short description of a value for errors; for masked and boolean arrays also how to convert them."""
    if _is_masked(value):
        return "masked entries: fill them (`filled`) or leave them out"
    if is_labelled(value):
        library = type(value).__module__.partition(".")[0]
        how = "convert it with `.to_numpy()`" if library == "xarray" else "load it with `.compute()`"
        return f"an array of {library} ({type(value).__name__}): {how}"
    if getattr(value, "dtype", None) == np.bool_:
        return f"shape {value.shape} of bool: convert it with `astype(float)`"
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"shape {tuple(shape)} of {getattr(value, 'dtype', type(value).__name__)}"
    if isinstance(value, list | tuple) and (entry := _odd_entry(value)):
        return entry
    # NumPy's own message about ragged lists names neither row nor length.
    lengths = [len(row) for row in value if isinstance(row, list | tuple)] if isinstance(value, list | tuple) else []
    for k, length in enumerate(lengths):
        if length != lengths[0] and len(lengths) == len(value):
            return f"lists of different lengths: row {k} has length {length}, row 0 has length {lengths[0]}"
    value = dict(value) if isinstance(value, MappingProxyType) else value  # a copy of a caller's map
    text, kind = repr(value), type(value).__name__
    text = text if len(text) <= 60 else text[:57] + "..."
    return text if text.startswith(f"{kind}(") else f"{kind} {text}"

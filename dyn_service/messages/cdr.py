"""Messages as CDR, ROS 2's own bytes, by rosbags: its types are made here from the definitions of ours."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, TypeVar, cast, get_origin, get_type_hints

import msgspec
import numpy as np
from rosbags.serde import SerdeError
from rosbags.typesys import Stores, TypesysError, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from dyn_service.errors import InvalidArgumentError
from dyn_service.messages import Message, fields_of, ros_type, schema

M = TypeVar("M", bound=Message)

# Empty, not that of a ROS distribution: each type comes from our definition, which a test compares with two of them.
_STORE = get_typestore(Stores.EMPTY)


def to_cdr(message: Message) -> bytes:
    """The message as CDR, little endian, with its encapsulation header.

    Raises:
        InvalidArgumentError: A value does not fit its field.
    """
    kind = type(message)
    name = _registered(kind)
    try:
        return bytes(_STORE.serialize_cdr(_with_arrays(kind)(message), name, little_endian=True))
    # rosbags checks no values: NumPy, struct and its own assertions raise what they find.
    except (TypeError, ValueError, AttributeError, OverflowError, AssertionError, struct.error, SerdeError):
        raise InvalidArgumentError(f"a {name} has a value that does not fit its field") from None


def from_cdr(kind: type[M], data: bytes | memoryview) -> M:
    """Returns the message of this type from its CDR bytes.

    Raises:
        InvalidArgumentError: The bytes are not such a message.
    """
    _registered(kind)
    return _read(kind, _STORE, None, data)


def _read(kind: type[M], store: Typestore, field_count: int | None, data: bytes | memoryview) -> M:
    """Returns the message of which the bytes have the first `field_count` fields; None: all."""
    name = ros_type(kind)
    try:
        return cast(M, _with_lists(kind, field_count)(store.deserialize_cdr(data, name)))
    except (SerdeError, IndexError, MemoryError, ValueError, struct.error):
        raise InvalidArgumentError(f"not the bytes of a {name}: {len(data)} of them") from None


def rihs01(kind: type[Message]) -> str:
    """The hash by which ROS 2 identifies a type."""
    return _STORE.hash_rihs01(_registered(kind))


def reader_of(kind: type[M], text: str) -> Callable[[bytes | memoryview], M] | None:
    """Returns the function that reads CDR bytes of a schema of `ros2msg` as messages of our type, or None.

    The schema, without comments, is our type's, or an earlier one without its last fields, which get their defaults.
    """
    name = ros_type(kind)
    try:
        foreign_types = get_types_from_msg(text, name)
    except TypesysError:
        return None
    own_types = get_types_from_msg(schema(kind), name)
    fields, own_fields = foreign_types[name][1], own_types.pop(name)[1]
    has_own_parts = all(part in foreign_types and foreign_types[part][1] == x for part, (_, x) in own_types.items())
    if not fields or fields != own_fields[: len(fields)] or not has_own_parts:
        return None
    store = get_typestore(Stores.EMPTY)
    store.register(foreign_types)
    return partial(_read, kind, store, len(fields))


@lru_cache(maxsize=256)
def _registered(kind: type[Message]) -> str:
    name = ros_type(kind)
    types = get_types_from_msg(schema(kind), name)
    # rosbags refuses to register a type twice, and messages share types such as Header.
    _STORE.register({kind: fields for kind, fields in types.items() if kind not in _STORE.fielddefs})
    return name


@lru_cache(maxsize=256)
def _with_arrays(kind: type[Message]) -> Callable[[Any], Any]:
    """Returns the function that replaces lists of numbers by arrays, as rosbags expects."""
    changes: list[tuple[str, Callable[[Any], Any]]] = []
    for field in fields_of(kind):
        if isinstance(field.kind, str):
            if field.length is not None and field.kind != "string":
                changes.append((field.name, _array("u1" if field.kind == "byte" else field.kind, field.length)))
            # rosbags takes a byte as a signed number.
            elif field.kind == "byte":
                changes.append((field.name, lambda value: value - 256 if 128 <= value < 256 else value))
        elif not _plain(field.kind):
            inner = _with_arrays(field.kind)
            changes.append((field.name, inner if field.length is None else _for_each(inner)))
    if not changes:
        return lambda message: message
    return lambda message: msgspec.structs.replace(
        message, **{name: change(getattr(message, name)) for name, change in changes}
    )


@lru_cache(maxsize=256)
def _with_lists(kind: type[Message], field_count: int | None = None) -> Callable[[Any], Message]:
    """Returns the function that converts a message of rosbags to ours, by its first `field_count` fields."""
    hints = get_type_hints(kind)
    parts: list[tuple[str, Callable[[Any], Any] | None]] = []
    for field in fields_of(kind)[:field_count]:
        change: Callable[[Any], Any] | None = None
        if not isinstance(field.kind, str):
            inner = _with_lists(field.kind)
            change = inner if field.length is None else _for_each(inner)
        elif field.kind == "byte" and field.length is None:
            # The way back: rosbags returns a byte as a signed number.
            change = lambda value: value & 255
        elif field.length is not None:
            change = _BACK[get_origin(hints[field.name]) or hints[field.name]]
            if field.kind == "string":
                change = tuple if get_origin(hints[field.name]) is tuple else list
        parts.append((field.name, change))

    def converted(source: Any) -> Message:
        values = ((name, change, getattr(source, name)) for name, change in parts)
        return kind(**{name: x if change is None else change(x) for name, change, x in values})

    return converted


_BACK: dict[Any, Callable[[Any], Any]] = {
    list: lambda array: array.tolist(),
    tuple: lambda array: tuple(array.tolist()),
    bytes: lambda array: array.tobytes(),
}


def _plain(kind: type[Message]) -> bool:
    """Whether rosbags accepts a message of this type unchanged: it contains no list of numbers."""
    return all(
        _plain(field.kind)
        if not isinstance(field.kind, str)
        else field.kind == "string" or (field.length is None and field.kind != "byte")
        for field in fields_of(kind)
    )


def _array(dtype: Any, length: int) -> Callable[[Any], Any]:
    def change(values: Any) -> Any:
        array = np.frombuffer(values, dtype) if isinstance(values, bytes) else np.asarray(values, dtype)
        if array.ndim != 1 or (length and len(array) != length):
            raise ValueError
        return array

    return change


def _for_each(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: [change(value) for value in values]

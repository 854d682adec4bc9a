"""ROS messages as msgspec structs, defined by their annotations.

    class JointState(Message, frozen=True):
        header: Header = Header()
        name: list[str] = []

The module is named like the ROS package, so the one above, in `sensor_msgs.py`, is `sensor_msgs/msg/JointState`. A
field is `str`, `bool`, `float`, `bytes`, one of the numbers below, another message, or a list of these, which may have
a fixed length. Its default is ROS's: zero, empty, False. Constants of a message are its `ClassVar`s.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

_ROS = "ros"

Int8 = Annotated[int, Meta(ge=-(2**7), le=2**7 - 1, extra={_ROS: "int8"})]
UInt8 = Annotated[int, Meta(ge=0, le=2**8 - 1, extra={_ROS: "uint8"})]
Byte = Annotated[int, Meta(ge=0, le=2**8 - 1, extra={_ROS: "byte"})]
Int16 = Annotated[int, Meta(ge=-(2**15), le=2**15 - 1, extra={_ROS: "int16"})]
UInt16 = Annotated[int, Meta(ge=0, le=2**16 - 1, extra={_ROS: "uint16"})]
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1, extra={_ROS: "int32"})]
UInt32 = Annotated[int, Meta(ge=0, le=2**32 - 1, extra={_ROS: "uint32"})]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1, extra={_ROS: "int64"})]
Float32 = Annotated[float, Meta(extra={_ROS: "float32"})]

_PLAIN = {float: "float64", str: "string", bool: "bool"}
_NAME = re.compile(r"[a-z](_?[a-z0-9]+)*")


# Unknown fields are refused: all fields have defaults, so a message of another type would be read as an empty one.
# No garbage collection: messages have no reference cycles, and a run of the collector would visit thousands of them.
class Message(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A message with the name, the fields and the order that ROS 2 gives it.

    Keys that a frame lacks have their defaults; keys that the type lacks are an error.
    """

    VERSION: ClassVar[int | None] = None
    """Required value of the field `v`, for types that have one."""


@dataclass(frozen=True)
class Field:
    """A field of a message: its name, its ROS type without array marks (`float64`, or a message class), and how many.

    length: None for one, 0 for a list of any length, else the length that a list must have.
    """

    name: str
    kind: str | type[Message]
    length: int | None

    @property
    def text(self) -> str:
        """The type as written in a `.msg` file, `geometry_msgs/Point[]`."""
        kind = self.kind if isinstance(self.kind, str) else ros_type(self.kind).replace("/msg/", "/")
        return kind + ("" if self.length is None else f"[{self.length or ''}]")


def ros_type(message: Message | type[Message]) -> str:
    """The type's name in ROS 2: `sensor_msgs/msg/JointState`."""
    kind = message if isinstance(message, type) else type(message)
    return f"{kind.__module__.rpartition('.')[2]}/msg/{kind.__name__}"


@lru_cache(maxsize=256)
def fields_of(kind: type[Message]) -> tuple[Field, ...]:
    """The fields of a message type, in order.

    Raises:
        TypeError: ROS has no such name or type for a field. A fault in the program that declares it.
    """
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = []
    for name in kind.__struct_fields__:
        if not _NAME.fullmatch(name):
            raise TypeError(f"{kind.__name__}.{name}: a field of a ROS message is named in small letters, digits and _")
        fields.append(_field(f"{kind.__name__}.{name}", name, hints[name]))
    return tuple(fields)


def nested(kind: type[Message], seen: set[type[Message]] | None = None) -> Iterator[type[Message]]:
    """The message types within a type, each once, depth first; not the type itself."""
    seen_types = {kind} if seen is None else seen
    for field in fields_of(kind):
        if not isinstance(field.kind, str) and field.kind not in seen_types:
            seen_types.add(field.kind)
            yield field.kind
            yield from nested(field.kind, seen_types)


def definition(kind: type[Message]) -> str:
    """The message type as its `.msg` file has it, without comments."""
    hints = typing.get_type_hints(kind, include_extras=True)
    # VERSION is a constant of this package, not of the ROS message.
    constants = [
        name for name in kind.__annotations__ if typing.get_origin(hints[name]) is ClassVar and name != "VERSION"
    ]
    lines = [f"{_scalar(typing.get_args(hints[name])[0])} {name}={getattr(kind, name)}" for name in constants]
    lines += [f"{field.text} {field.name}" for field in fields_of(kind)]
    return "".join(f"{line}\n" for line in lines)


def schema(kind: type[Message]) -> str:
    """The definition with those of all types within it, as MCAP files hold it under `ros2msg`."""
    text = definition(kind)
    for inner in nested(kind):
        text += f"{'=' * 80}\nMSG: {ros_type(inner).replace('/msg/', '/')}\n{definition(inner)}"
    return text


def _field(place: str, name: str, hint: Any) -> Field:
    length: int | None = None
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated and typing.get_origin(arguments[0]) in (list, tuple):
        meta = arguments[1]
        length = meta.max_length or 0
        if length and meta.min_length != length:
            raise TypeError(f"{place}: a list has any length, or one length")
        hint = arguments[0]
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (list, tuple):
        length = length or 0
        hint = arguments[0]
    if hint is bytes:
        return Field(name, "uint8", 0)
    kind = _scalar(hint)
    if kind is None:
        raise TypeError(f"{place}: ROS has no type for {hint}")
    return Field(name, kind, length)


def _scalar(hint: Any) -> str | type[Message] | None:
    if typing.get_origin(hint) is Annotated:
        for meta in typing.get_args(hint)[1:]:
            if isinstance(meta, Meta) and meta.extra and _ROS in meta.extra:
                return str(meta.extra[_ROS])
        return None
    if isinstance(hint, type) and issubclass(hint, Message):
        return hint
    return _PLAIN.get(hint)

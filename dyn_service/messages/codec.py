"""Messages as frames of topics: one MessagePack map each, whose keys are the names of the fields.

**Types by name**, as in ROS. Other packages declare theirs in the entry points
`dyn_service.messages`:

    [project.entry-points."dyn_service.messages"]
    my_robot_msgs = "my_robot.my_robot_msgs"

The module is named like the ROS package and holds its messages, each a `Message`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, TypeVar

import msgspec
import numpy as np

from dyn_service.errors import InvalidArgumentError, NotFoundError, ResourceExhaustedError
from dyn_service.messages.fields import Message, ros_type
from dyn_service.support.suggestions import did_you_mean
from dyn_service.support.validation import dotted, explain

M = TypeVar("M", bound=Message)

MAX_BYTES = 1 << 20
"""Of a message: a state of a thousand joints has some fifty thousand, the description of a large robot half of this."""
_MALFORMED = re.compile(r"MessagePack data is malformed: (.*) \(byte (\d+)\)")


def _numpy_as_plain(value: Any) -> Any:
    """Arrays and numbers of NumPy as lists and numbers."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    # Without text, because `encode` replaces it by the name of the field.
    raise TypeError


# MessagePack, not CDR: a joint state takes 0.4 us instead of 8 us in Python, and controllers run at 1 kHz.
_ENCODER = msgspec.msgpack.Encoder(enc_hook=_numpy_as_plain)


def encode(message: Message) -> bytes:
    """The message as one frame; lists may be arrays of NumPy.

    Raises:
        InvalidArgumentError: A field has a value that a message cannot contain.
        ResourceExhaustedError: It has more than `MAX_BYTES` bytes.
    """
    try:
        frame = _ENCODER.encode(message)
    except (TypeError, OverflowError, UnicodeEncodeError, RecursionError):
        raise InvalidArgumentError(_unwritable_field(message)) from None
    if len(frame) > MAX_BYTES:
        raise ResourceExhaustedError(f"a {ros_type(message)} of {len(frame)} bytes: at most {MAX_BYTES} are sent")
    return frame


def decode(kind: type[M], frame: bytes | memoryview) -> M:
    """The frame as a message of this type.

    Raises:
        InvalidArgumentError: The frame is not such a message; names the field, the value found and what was expected.
    """
    # Before decoding, since a large frame would take memory and time.
    if len(frame) > MAX_BYTES:
        raise _decode_error(kind, f"it has {len(frame)} bytes, at most {MAX_BYTES} are read")
    try:
        message: M = _decoder(kind).decode(frame)
    except msgspec.ValidationError as error:
        raise _decode_error(kind, _cause_with_place(error, kind, None)) from None
    except msgspec.DecodeError as error:
        malformed = _MALFORMED.fullmatch(str(error))
        # msgspec names a byte only if one is wrong; a short frame has none.
        cause = f"it is not MessagePack from byte {malformed[2]} on" if malformed else "its end is missing"
        raise _decode_error(kind, cause) from None
    except (UnicodeDecodeError, RecursionError):
        raise _decode_error(kind, "a text in it is not UTF-8") from None
    if kind.VERSION is not None and (version := getattr(message, "v", None)) != kind.VERSION:
        raise _decode_error(kind, f"its version is {version}, expected {kind.VERSION}")
    return message


def from_builtins(kind: type[M], values: Any) -> M:
    """The message that has these values by name, as YAML and JSON have them; missing fields are zero or empty.

    Raises:
        InvalidArgumentError: It names the field, what was found and what was expected.
    """
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise _decode_error(kind, _cause_with_place(error, kind, values)) from None


@lru_cache(maxsize=256)
def _decoder(kind: type[M]) -> msgspec.msgpack.Decoder[M]:
    return msgspec.msgpack.Decoder(kind)


def _cause_with_place(error: msgspec.ValidationError, kind: type[Message], values: Any) -> str:
    message, place = explain(error, kind, values)
    return f"{dotted(place)}: {message}" if place else message


def _decode_error(kind: type[Message], cause: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"not a {ros_type(kind)}: {cause}")


def _unwritable_field(message: Message) -> str:
    """The field of the message that cannot be written."""
    for name in message.__struct_fields__:
        value = getattr(message, name)
        try:
            _ENCODER.encode(value)
        except (TypeError, OverflowError, UnicodeEncodeError, RecursionError):
            if isinstance(value, Message):
                return f"{ros_type(message)}.{name}: {_unwritable_field(value)}"
            return f"{ros_type(message)}: {name} is no value of a message, found {type(value).__name__}"
    return f"a {ros_type(message)} that cannot be written"


GROUP = "dyn_service.messages"
OURS = (
    "builtin_interfaces",
    "std_msgs",
    "geometry_msgs",
    "sensor_msgs",
    "nav_msgs",
    "trajectory_msgs",
    "control_msgs",
    "tf2_msgs",
    "rosgraph_msgs",
    "diagnostic_msgs",
    "rcl_interfaces",
    "dyn_service_msgs",
)
"""ROS packages of which this one has messages."""


@lru_cache(maxsize=256)
def by_type(name: str) -> type[Message]:
    """The message type called `name`, `sensor_msgs/msg/JointState` or `sensor_msgs/JointState`.

    Raises:
        NotFoundError: There is no such type, here or among those that installed packages declare.
    """
    package, _, rest = name.partition("/")
    kind = rest.removeprefix("msg/")
    for module in _modules(package):
        for message_type in _messages(module):
            if message_type.__name__ == kind:
                return message_type
    type_names = [ros_type(message_type) for message_type in all_types()]
    hint = did_you_mean(f"{package}/msg/{kind}", type_names)
    raise NotFoundError(f"there is no message type {name!r}{hint}")


def all_types() -> Iterator[type[Message]]:
    """Every message type, those of other packages too."""
    for module in _modules():
        yield from _messages(module)


def _modules(package: str | None = None) -> Iterator[ModuleType]:
    """The modules of a ROS package, ours first; those of all packages without one."""
    for name in OURS:
        if package in (None, name):
            yield importlib.import_module(f"dyn_service.messages.{name}")
    # Modules of other packages are imported when a type of theirs is needed, not when this package is.
    for entry in entry_points(group=GROUP):
        if package in (None, entry.name):
            yield _declared(entry.name, entry.load())


def _declared(name: str, module: object) -> ModuleType:
    if not isinstance(module, ModuleType) or module.__name__.rpartition(".")[2] != name:
        raise NotFoundError(f"entry point {name!r} of {GROUP} must name a module called {name}, as the ROS package is")
    return module


def _messages(module: ModuleType) -> Iterator[type[Message]]:
    """The public ones of the module itself, in its order."""
    for name, member in vars(module).items():
        is_message = isinstance(member, type) and issubclass(member, Message) and member.__module__ == module.__name__
        if is_message and not name.startswith("_"):
            yield member

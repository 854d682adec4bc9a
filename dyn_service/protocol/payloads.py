"""A payload in a message: one map with the fields of `Payload`.

    {"link": text, "mass": array, "com": array?, "inertia": array?}

A key that is none of these is refused: ignoring a misspelt `inertia` would change the answer in silence.
"""

from __future__ import annotations

from typing import Any

from dyn_service.api.queries import Payload
from dyn_service.errors import InvalidArgumentError
from dyn_service.protocol.arrays import describe_value, pack_array, show_value, unpack_array

_ARRAYS = ("mass", "com", "inertia")
_KEYS = ("link", *_ARRAYS)


def pack_payload(value: Any, path: str) -> dict[str, Any]:
    """The payload as a message carries it.

    Args:
        value: A `Payload`.
        path: Where it stands in the request, for the error.

    Raises:
        InvalidArgumentError: Something else than a `Payload`, or a field that is no array of numbers.
    """
    if not isinstance(value, Payload):
        raise InvalidArgumentError(f"{_name(path)} must be a Payload, found {type(value).__name__}", path=path)
    arrays = {name: pack_array(getattr(value, name), f"{path}.{name}") for name in _ARRAYS}
    return {"link": value.link, **arrays}


def unpack_payload(value: Any, path: str) -> Payload:
    """The payload that a message holds; what its numbers may be is for the robot to say.

    Raises:
        InvalidArgumentError: A field that is missing, unknown or of the wrong type, or an array that is not finite.
    """
    name = _name(path)
    if type(value) is not dict:
        raise InvalidArgumentError(f"{name} must be a map with link and mass, found {describe_value(value)}", path=path)
    for key in value:
        if key not in _KEYS:
            message = f"{name} has no {show_value(key)}; its keys are {', '.join(_KEYS)}"
            raise InvalidArgumentError(message, path=path)
    if type(value.get("link")) is not str:
        message = f"{name}.link must be a name, found {describe_value(value.get('link'))}"
        raise InvalidArgumentError(message, path=f"{path}.link")
    if value.get("mass") is None:
        raise InvalidArgumentError(f"{name}.mass must be numbers, found nil", path=f"{path}.mass")
    arrays: dict[str, Any] = {
        part: unpack_array(value[part], f"{path}.{part}") for part in _ARRAYS if value.get(part) is not None
    }
    return Payload(value["link"], **arrays)


def _name(path: str) -> str:
    return path.removeprefix("inputs.")

"""External wrenches in a message: one map, or a list of maps, with the fields of `Wrench`.

    {"link": text, "torque": array?, "force": array?, "point": array?, "frame": text?}

A key that is none of these is refused: ignoring a misspelt `torque` would change the answer in silence.
"""

from __future__ import annotations

from typing import Any

from dyn_service.api.queries import Wrench
from dyn_service.errors import InvalidArgumentError
from dyn_service.protocol.arrays import describe_value, pack_array, show_value, unpack_array
from dyn_service.suggestions import did_you_mean

_VECTORS = ("torque", "force", "point")
_KEYS = ("link", *_VECTORS, "frame")
_ZEROS = Wrench("").torque
"""What a vector is that was left out."""
_PACKED_ZEROS = pack_array(_ZEROS, "")


def pack_wrenches(value: Any, path: str) -> list[dict[str, Any]]:
    """The wrenches as a message carries them.

    Args:
        value: A `Wrench` or a sequence of them.
        path: Where it stands in the request, for the error.

    Raises:
        InvalidArgumentError: Something else than a `Wrench`, or a field that is no array of numbers.
    """
    wrenches = [value] if isinstance(value, Wrench) else value
    if not isinstance(wrenches, (list, tuple)):
        message = f"wrenches must be a Wrench or a list of them, found {type(value).__name__}"
        raise InvalidArgumentError(message, path=path)
    packed = []
    for index, wrench in enumerate(wrenches):
        place = f"{path}[{index}]"
        if not isinstance(wrench, Wrench):
            message = f"wrenches[{index}] must be a Wrench, found {type(wrench).__name__}"
            raise InvalidArgumentError(message, path=place)
        fields: dict[str, Any] = {"link": wrench.link, "frame": wrench.frame}
        for name, text in fields.items():
            if not isinstance(text, str):
                message = f"wrenches[{index}].{name} must be a name, found {type(text).__name__}"
                raise InvalidArgumentError(message, path=f"{place}.{name}")
        for name in _VECTORS:
            value = getattr(wrench, name)
            fields[name] = _PACKED_ZEROS if value is _ZEROS else pack_array(value, f"{place}.{name}")
        packed.append(fields)
    return packed


def unpack_wrenches(value: Any, path: str) -> list[Wrench]:
    """The wrenches that a message holds.

    Raises:
        InvalidArgumentError: A field that is missing, unknown or of the wrong type, or an array that is not finite.
    """
    if type(value) is list:
        return [_unpack_wrench(entry, f"{path}[{index}]") for index, entry in enumerate(value)]
    return [_unpack_wrench(value, path)]


def _unpack_wrench(value: Any, path: str) -> Wrench:
    place = path.removeprefix("inputs.")
    if type(value) is not dict:
        found = describe_value(value)
        raise InvalidArgumentError(f"{place} must be a map with link, torque and force, found {found}", path=path)
    for key in value:
        if key not in _KEYS:
            message = f"{place} has no {show_value(key)}; its keys are {', '.join(_KEYS)}{did_you_mean(key, _KEYS)}"
            raise InvalidArgumentError(message, path=path)
    if value.get("link") is None:
        raise InvalidArgumentError(f"{place} needs the link it acts on", path=path)
    names = {name: value[name] for name in ("link", "frame") if value.get(name) is not None}
    for name, text in names.items():
        if type(text) is not str:
            message = f"{place}.{name} must be a name, found {describe_value(text)}"
            raise InvalidArgumentError(message, path=f"{path}.{name}")
    vectors: dict[str, Any] = {
        name: unpack_array(value[name], f"{path}.{name}") for name in _VECTORS if value.get(name) is not None
    }
    return Wrench(**names, **vectors)

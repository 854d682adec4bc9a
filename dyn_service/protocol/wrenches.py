"""External wrenches in a message: one map, or a list of maps, with the fields of `Wrench`.

    {"link": text, "torque": array?, "force": array?, "point": array?, "frame": text?}

A key that is none of these is refused: ignoring a misspelt `torque` would change the answer in silence.
"""

from __future__ import annotations

from typing import Any

from dyn_service.errors import InvalidArgumentError
from dyn_service.protocol.arrays import describe_value, pack_array, show_value, unpack_array
from dyn_service.queries import Wrench

_VECTORS = ("torque", "force", "point")
_KEYS = ("link", *_VECTORS, "frame")


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
        kind = type(value).__name__
        raise InvalidArgumentError(f"{path} is a {kind}, expected a Wrench or a list of them", path=path)
    packed = []
    for index, wrench in enumerate(wrenches):
        place = f"{path}[{index}]"
        if not isinstance(wrench, Wrench):
            raise InvalidArgumentError(f"{place} is a {type(wrench).__name__}, expected a Wrench", path=place)
        fields: dict[str, Any] = {"link": wrench.link, "frame": wrench.frame}
        for name, text in fields.items():
            if not isinstance(text, str):
                kind = type(text).__name__
                raise InvalidArgumentError(f"{place}.{name} is a {kind}, expected a name", path=f"{place}.{name}")
        fields |= {name: pack_array(getattr(wrench, name), f"{place}.{name}") for name in _VECTORS}
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
    if type(value) is not dict:
        raise InvalidArgumentError(f"{path} is {describe_value(value)}, expected a map with link and force", path=path)
    for key in value:
        if key not in _KEYS:
            message = f"{path} has the key {show_value(key)}, expected {', '.join(_KEYS)}"
            raise InvalidArgumentError(message, path=path)
    if "link" not in value:
        raise InvalidArgumentError(f"{path} is a map without 'link', expected the link it acts on", path=path)
    for name in ("link", "frame"):
        if type(value.get(name, "")) is not str:
            found = describe_value(value[name])
            raise InvalidArgumentError(f"{path}.{name} is {found}, expected a name", path=f"{path}.{name}")
    names = {name: value[name] for name in ("link", "frame") if name in value}
    return Wrench(**names, **{name: unpack_array(value[name], f"{path}.{name}") for name in _VECTORS if name in value})

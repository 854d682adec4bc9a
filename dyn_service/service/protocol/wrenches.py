"""External wrenches in a message: one map, or a list of maps, with the fields of `Wrench`.

{"link": text, "torque": array?, "force": array?, "point": array?, "frame": text?}
"""

from __future__ import annotations

from typing import Any

from dyn_service.api.queries import Wrench
from dyn_service.service.protocol.arrays import pack_array, unpack_array
from dyn_service.service.protocol.maps import check_name, each_of, entries, fault, read_map

_VECTORS = ("torque", "force", "point")
_KEYS = ("link", *_VECTORS, "frame")
_ZEROS = Wrench("").torque
"""Default of the vectors."""
_PACKED_ZEROS = pack_array(_ZEROS, "")


def pack_wrenches(value: Any, path: str) -> list[dict[str, Any]]:
    """Encodes external wrenches.

    Args:
        value: A `Wrench` or a sequence of them.
        path: Path of the value in the request, for the error.

    Raises:
        InvalidArgumentError: An entry is not a `Wrench`, or a field is not an array of numbers.
    """
    packed = []
    for wrench, place in each_of(value, Wrench, path):
        fields: dict[str, Any] = {"link": wrench.link, "frame": wrench.frame}
        for name, text in fields.items():
            if not isinstance(text, str):
                raise fault(f"{place}.{name}", f"must be a name, found {type(text).__name__}")
        for name in _VECTORS:
            value = getattr(wrench, name)
            fields[name] = _PACKED_ZEROS if value is _ZEROS else pack_array(value, f"{place}.{name}")
        packed.append(fields)
    return packed


def unpack_wrenches(value: Any, path: str) -> list[Wrench]:
    """Decodes external wrenches.

    Raises:
        InvalidArgumentError: A field is missing, unknown or of the wrong type, or an array is not finite.
    """
    return [_unpack_wrench(entry, place) for entry, place in entries(value, path)]


def _unpack_wrench(value: Any, path: str) -> Wrench:
    given = read_map(value, path, _KEYS, "a map with link, torque and force")
    if "link" not in given:
        raise fault(path, "needs the link it acts on")
    for name in ("link", "frame"):
        if name in given:
            check_name(given, name, path)
    for name in _VECTORS:
        if name in given:
            given[name] = unpack_array(given[name], f"{path}.{name}")
    return Wrench(**given)

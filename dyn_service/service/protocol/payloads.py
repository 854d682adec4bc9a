"""A payload in a message: one map with the fields of `Payload`.

{"link": text, "mass": array, "com": array?, "inertia": array?}
"""

from __future__ import annotations

from typing import Any

from dyn_service.api.queries import Payload
from dyn_service.service.protocol.arrays import pack_array, unpack_array
from dyn_service.service.protocol.maps import check_name, fault, read_map

_ARRAYS = ("mass", "com", "inertia")
_KEYS = ("link", *_ARRAYS)


def pack_payload(value: Any, path: str) -> dict[str, Any]:
    """Encodes a payload.

    Args:
        value: A `Payload`.
        path: Path of the value in the request, for the error.

    Raises:
        InvalidArgumentError: The value is not a `Payload`, or a field is not an array of numbers.
    """
    if not isinstance(value, Payload):
        raise fault(path, f"must be a Payload, found {type(value).__name__}")
    arrays = {name: pack_array(getattr(value, name), f"{path}.{name}") for name in _ARRAYS}
    return {"link": value.link, **arrays}


def unpack_payload(value: Any, path: str) -> Payload:
    """Decodes a payload. The robot validates its numbers.

    Raises:
        InvalidArgumentError: A field is missing, unknown or of the wrong type, or an array is not finite.
    """
    given = read_map(value, path, _KEYS, "a map with link and mass")
    check_name(given, "link", path)
    if "mass" not in given:
        raise fault(f"{path}.mass", "must be numbers, found nil")
    arrays: dict[str, Any] = {part: unpack_array(given[part], f"{path}.{part}") for part in _ARRAYS if part in given}
    return Payload(given["link"], **arrays)

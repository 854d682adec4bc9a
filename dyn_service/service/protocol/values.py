"""Encoding and decoding of a query's inputs: arrays, external wrenches, payloads, overlays, contacts, names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dyn_service.api.named import names_of
from dyn_service.api.spec import BY_NAME, Kind
from dyn_service.service.protocol.arrays import pack_array, unpack_array
from dyn_service.service.protocol.contacts import pack_contacts, unpack_contacts
from dyn_service.service.protocol.overlays import pack_overlay, unpack_overlay
from dyn_service.service.protocol.payloads import pack_payload, unpack_payload
from dyn_service.service.protocol.wrenches import pack_wrenches, unpack_wrenches

_Codec = Callable[[Any, str], Any]

_FORMS: Mapping[str, tuple[_Codec, _Codec]] = {
    "wrenches": (pack_wrenches, unpack_wrenches),
    "payload": (pack_payload, unpack_payload),
    "overlay": (pack_overlay, unpack_overlay),
    "contacts": (pack_contacts, unpack_contacts),
    **{kind: (partial(names_of, kind), partial(names_of, kind)) for kind in BY_NAME},
}
"""Encoder and decoder of each kind of input that is not an array."""


def pack(kind: Kind, value: Any, path: str) -> Any:
    """Encodes an input.

    Args:
        kind: Kind of the input, from the table of queries.
        value: The argument of the method.
        path: Path of the input in the request, for the error.

    Raises:
        InvalidArgumentError: The value is not of this kind.
    """
    return _FORMS[kind][0](value, path) if kind in _FORMS else pack_array(value, path)


def unpack(kind: Kind, value: Any, path: str) -> Any:
    """Decodes an input; the inverse of `pack`.

    Raises:
        InvalidArgumentError: The value is not of this kind, or not finite.
        ResourceExhaustedError: An array has too many dimensions.
    """
    return _FORMS[kind][1](value, path) if kind in _FORMS else unpack_array(value, path)

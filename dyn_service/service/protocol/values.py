"""Inputs in a message, by their kind: arrays, external wrenches, payloads, overlays, contacts, names."""

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
"""How inputs are written and read that are no arrays."""


def pack(kind: Kind, value: Any, path: str) -> Any:
    """An input of that kind as a message carries it.

    Args:
        kind: What the table says of it.
        value: As the method took it.
        path: Where it stands in the request, for the error.

    Raises:
        InvalidArgumentError: It is no such input.
    """
    return _FORMS[kind][0](value, path) if kind in _FORMS else pack_array(value, path)


def unpack(kind: Kind, value: Any, path: str) -> Any:
    """An input of that kind as it is in a message; the inverse of `pack`.

    Raises:
        InvalidArgumentError: It is no such input, or not finite.
        ResourceExhaustedError: Too many dimensions.
    """
    return _FORMS[kind][1](value, path) if kind in _FORMS else unpack_array(value, path)

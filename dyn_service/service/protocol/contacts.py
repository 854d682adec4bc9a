"""Contacts in a message: one map, or a list of maps, with the fields of `Contact`.

{"link": text, "point": array?, "radius": number?, "plane": array?, "normal": array?, "friction": number?,
"stiffness": number?, "damping": number?, "width": number?, "rigid": bool?}
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from dyn_service.api.queries import Contact
from dyn_service.service.protocol.arrays import pack_array, unpack_array
from dyn_service.service.protocol.maps import check_name, each_of, entries, read_map

_VECTORS = ("point", "plane", "normal")
_KEYS = tuple(each.name for each in fields(Contact))
_DEFAULTS = {each.name: each.default for each in fields(Contact) if each.default is not MISSING}


def pack_contacts(value: Any, path: str) -> list[dict[str, Any]]:
    """Encodes contacts, without the fields that have their default value.

    Args:
        value: A `Contact` or a sequence of them.
        path: Path of the value in the request, for the error.

    Raises:
        InvalidArgumentError: An entry is not a `Contact`, or a field cannot be encoded.
    """
    packed = []
    for contact, place in each_of(value, Contact, path):
        entry = {name: getattr(contact, name) for name in _KEYS}
        given = {name: x for name, x in entry.items() if x is not _DEFAULTS.get(name, MISSING)}
        packed.append({n: pack_array(x, f"{place}.{n}") if n in _VECTORS else _plain(x) for n, x in given.items()})
    return packed


def _plain(value: Any) -> Any:
    """Converts a NumPy number to a Python number. The server validates all other values."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def unpack_contacts(value: Any, path: str) -> list[Contact]:
    """Decodes contacts. The simulation validates their numbers.

    Raises:
        InvalidArgumentError: A field is missing, unknown or of the wrong type, or an array is not finite.
    """
    return [_unpack_contact(entry, place) for entry, place in entries(value, path)]


def _unpack_contact(value: Any, path: str) -> Contact:
    given = read_map(value, path, _KEYS, "a map with link")
    check_name(given, "link", path)
    for name in _VECTORS:
        if name in given:
            given[name] = unpack_array(given[name], f"{path}.{name}")
    return Contact(**given)

"""Contacts in a message: one map, or a list of maps, with the fields of `Contact`.

    {"link": text, "point": array?, "radius": number?, "plane": array?, "normal": array?, "friction": number?,
     "stiffness": number?, "damping": number?, "width": number?, "rigid": bool?}

A key that is none of these is refused: ignoring a misspelt `friction` would change the answer in silence.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from dyn_service.api.queries import Contact
from dyn_service.errors import InvalidArgumentError
from dyn_service.protocol.arrays import describe_value, pack_array, show_value, unpack_array
from dyn_service.suggestions import did_you_mean

_VECTORS = ("point", "plane", "normal")
_KEYS = tuple(each.name for each in fields(Contact))
_DEFAULTS = {each.name: each.default for each in fields(Contact) if each.default is not MISSING}


def pack_contacts(value: Any, path: str) -> list[dict[str, Any]]:
    """The contacts as a message carries them, without what stands at its default.

    Args:
        value: A `Contact` or a sequence of them.
        path: Where they stand in the request, for the error.

    Raises:
        InvalidArgumentError: Something else than a `Contact`, or a field that no message can carry.
    """
    contacts = [value] if isinstance(value, Contact) else value
    if not isinstance(contacts, (list, tuple)):
        message = f"contacts must be a Contact or a list of them, found {type(value).__name__}"
        raise InvalidArgumentError(message, path=path)
    packed = []
    for index, contact in enumerate(contacts):
        place = f"{path}[{index}]"
        if not isinstance(contact, Contact):
            message = f"contacts[{index}] must be a Contact, found {type(contact).__name__}"
            raise InvalidArgumentError(message, path=place)
        entry = {name: getattr(contact, name) for name in _KEYS}
        said = {name: x for name, x in entry.items() if x is not _DEFAULTS.get(name, MISSING)}
        packed.append({n: pack_array(x, f"{place}.{n}") if n in _VECTORS else _plain(x) for n, x in said.items()})
    return packed


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's. What else it may be is for the server to refuse."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def unpack_contacts(value: Any, path: str) -> list[Contact]:
    """The contacts that a message holds; what their numbers may be is for the motion to say.

    Raises:
        InvalidArgumentError: A field that is missing, unknown or of the wrong type, or an array that is not finite.
    """
    if type(value) is list:
        return [_unpack_contact(entry, f"{path}[{index}]") for index, entry in enumerate(value)]
    return [_unpack_contact(value, path)]


def _unpack_contact(value: Any, path: str) -> Contact:
    place = path.removeprefix("inputs.")
    if type(value) is not dict:
        raise InvalidArgumentError(f"{place} must be a map with link, found {describe_value(value)}", path=path)
    for key in value:
        if key not in _KEYS:
            message = f"{place} has no {show_value(key)}; its keys are {', '.join(_KEYS)}{did_you_mean(key, _KEYS)}"
            raise InvalidArgumentError(message, path=path)
    if type(value.get("link")) is not str:
        message = f"{place}.link must be a name, found {describe_value(value.get('link'))}"
        raise InvalidArgumentError(message, path=f"{path}.link")
    given: dict[str, Any] = {name: x for name, x in value.items() if x is not None}
    for name, x in given.items():
        if name in _VECTORS:
            given[name] = unpack_array(x, f"{path}.{name}")
    return Contact(**given)

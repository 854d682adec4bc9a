"""Contacts in a message: one map, or a list of maps, with the fields of `Contact`.

    {"link": text, "point": array?, "normal": array?, "friction": number?}

A key that is none of these is refused: ignoring a misspelt `friction` would change the answer in silence.
"""

from __future__ import annotations

from typing import Any

from dyn_service.api.queries import Contact
from dyn_service.errors import InvalidArgumentError
from dyn_service.protocol.arrays import describe_value, pack_array, show_value, unpack_array
from dyn_service.suggestions import did_you_mean

_VECTORS = ("point", "normal")
_KEYS = ("link", *_VECTORS, "friction")


def pack_contacts(value: Any, path: str) -> list[dict[str, Any]]:
    """The contacts as a message carries them.

    Args:
        value: A `Contact` or a sequence of them.
        path: Where it stands in the request, for the error.

    Raises:
        InvalidArgumentError: Something else than a `Contact`, or a field that is no array of numbers.
    """
    contacts = [value] if isinstance(value, Contact) else value
    if not isinstance(contacts, list | tuple):
        message = f"contacts must be a Contact or a list of them, found {type(value).__name__}"
        raise InvalidArgumentError(message, path=path)
    packed = []
    for k, contact in enumerate(contacts):
        place = f"{path}[{k}]"
        if not isinstance(contact, Contact):
            message = f"contacts[{k}] must be a Contact, found {type(contact).__name__}"
            raise InvalidArgumentError(message, path=place)
        if not isinstance(contact.link, str):
            message = f"contacts[{k}].link must be a name, found {type(contact.link).__name__}"
            raise InvalidArgumentError(message, path=f"{place}.link")
        fields: dict[str, Any] = {"link": contact.link}
        fields |= {name: pack_array(getattr(contact, name), f"{place}.{name}") for name in _VECTORS}
        if contact.friction is not None:
            fields["friction"] = pack_array(contact.friction, f"{place}.friction")
        packed.append(fields)
    return packed


def unpack_contacts(value: Any, path: str) -> list[Contact]:
    """The contacts that a message holds; what their numbers may be is for the robot to say.

    Raises:
        InvalidArgumentError: A field that is missing, unknown or of the wrong type, or an array that is not finite.
    """
    if type(value) is list:
        return [_unpack(entry, f"{path}[{k}]") for k, entry in enumerate(value)]
    return [_unpack(value, path)]


def _unpack(value: Any, path: str) -> Contact:
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
    vectors: dict[str, Any] = {
        name: unpack_array(value[name], f"{path}.{name}") for name in _VECTORS if value.get(name) is not None
    }
    friction = value.get("friction")
    if friction is not None:
        if type(friction) not in (int, float):
            message = f"{place}.friction must be a number, found {describe_value(friction)}"
            raise InvalidArgumentError(message, path=f"{path}.friction")
        friction = float(unpack_array(friction, f"{path}.friction"))
    return Contact(value["link"], **vectors, friction=friction)

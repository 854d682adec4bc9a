"""Encoding and decoding of a query's inputs by their kind; `pack` and `unpack` choose the functions.

Arrays are in `arrays.py`; docs/protocol.md lists the keys of wrenches, contacts, payloads and overlays. Names are a
string, or nested lists of strings.

Unknown keys are an error: ignoring a misspelled `torque` would change the answer silently. A key that is nil counts as
absent. Decoding checks types and finiteness; the robot or the simulation checks names and numbers.

All functions take the path of the value in the request, for the error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import partial
from typing import Any, TypeVar

import numpy as np
from msgspec import Raw

from dyn_service.api.arguments import NO_VECTOR
from dyn_service.api.cost import overlay_lead
from dyn_service.api.named import names_of
from dyn_service.api.queries import Contact, Inertial, JointNumbers, Overlay, Payload, Wrench
from dyn_service.api.spec import BY_NAME, Kind
from dyn_service.errors import InvalidArgumentError
from dyn_service.service.protocol.arrays import (
    WireArray,
    describe_value,
    invalid_argument,
    pack_array,
    show_value,
    unpack_array,
)
from dyn_service.service.protocol.messages import encode
from dyn_service.support.suggestions import known_instead

MAX_ENCODINGS = 64
"""Encodings of wrenches and overlays that a process keeps."""

_encodings: dict[Hashable, tuple[object, Raw]] = {}
"""Encodings by identity, with what they encode, so that nothing else has its number."""

_F8 = np.dtype("<f8")
_pack_three = struct.Struct("<3d").pack

_T = TypeVar("_T")
_Codec = Callable[[Any, str], Any]

_WRENCH_VECTORS = ("torque", "force", "point")
_WRENCH_KEYS = ("link", *_WRENCH_VECTORS, "frame")
_PACKED_ZEROS = pack_array(NO_VECTOR, "")
_CONTACT_VECTORS = ("point", "plane", "normal")
_CONTACT_KEYS = tuple(field.name for field in fields(Contact))
_CONTACT_DEFAULTS = {field.name: field.default for field in fields(Contact) if field.default is not MISSING}
_PAYLOAD_ARRAYS = ("mass", "com", "inertia")
_OVERLAY_KEYS = tuple(field.name for field in fields(Overlay))


def pack(kind: Kind, value: Any, path: str) -> Any:
    """Encodes an input; raises `InvalidArgumentError` if it is not of this kind, or cannot be encoded."""
    return _CODECS[kind][0](value, path) if kind in _CODECS else pack_array(value, path)


def pack_state(kind: Kind, value: Any, path: str) -> Raw | None:
    """Returns the encoding of external wrenches or an overlay of one state; None for all other values.

    Fields with defaults are left out of wrenches. Encodings of values that cannot change are kept by identity, because
    finding them by content takes as long as encoding them.

    Raises:
        InvalidArgumentError: As `pack`.
    """
    try:
        if kind == "wrenches":
            wrenches = tuple(value) if value.__class__ is list or value.__class__ is tuple else (value,)
            encoding = _encodings.get((*map(id, wrenches),))
            return _state_wrenches(wrenches) if encoding is None else encoding[1]
        if kind == "overlay":
            encoding = _encodings.get(id(value))
            return _state_overlay(value, path) if encoding is None else encoding[1]
    except (TypeError, ValueError, OverflowError):  # vectors of other lengths; text that the request cannot hold either
        pass
    return None


def _state_wrenches(wrenches: tuple[Any, ...]) -> Raw | None:
    packed, fixed = [], True
    for wrench in wrenches:
        if wrench.__class__ is not Wrench or wrench.link.__class__ is not str or wrench.frame.__class__ is not str:
            return None
        entry: dict[str, Any] = {"link": wrench.link}
        vectors: tuple[Any, ...] = wrench.torque, wrench.force, wrench.point
        for name, vector in zip(_WRENCH_VECTORS, vectors, strict=True):
            if vector is not NO_VECTOR:
                fixed = fixed and vector.__class__ is tuple
                if vector.__class__ is np.ndarray and vector.dtype is _F8 and vector.shape == (3,):
                    data = vector.tobytes()
                elif (vector.__class__ is tuple or vector.__class__ is list) and _are_floats(*vector):
                    data = _pack_three(*vector)
                else:
                    return None
                entry[name] = WireArray("<f8", (3,), data)
        if wrench.frame != "world":
            entry["frame"] = wrench.frame
        packed.append(entry)
    encoded = Raw(encode(packed))
    return _keep_encoding((*map(id, wrenches),), wrenches, encoded) if fixed else encoded


def _are_floats(x: Any, y: Any, z: Any) -> bool:
    return x.__class__ is y.__class__ is z.__class__ is float


def _state_overlay(value: Any, path: str) -> Raw | None:
    packed = pack_overlay(value, path)
    hash(value.content)  # raises TypeError for an overlay that may change
    return None if overlay_lead(value) else _keep_encoding(id(value), value, Raw(encode(packed)))


def _keep_encoding(key: Hashable, value: object, encoded: Raw) -> Raw:
    if len(_encodings) >= MAX_ENCODINGS:
        _encodings.clear()
    _encodings[key] = value, encoded
    return encoded


def unpack(kind: Kind, value: Any, path: str) -> Any:
    """Decodes an input; the inverse of `pack`.

    Raises:
        InvalidArgumentError: The value is not of this kind, a field is missing, unknown or of the wrong type, or a
            number is not finite.
        ResourceExhaustedError: An array has too many dimensions or entries.
    """
    return _CODECS[kind][1](value, path) if kind in _CODECS else unpack_array(value, path)


def pack_wrenches(value: Any, path: str) -> list[dict[str, Any]]:
    """Encodes a `Wrench` or a sequence of them; errors as in `pack`."""
    packed = []
    for wrench, place in _structs(value, Wrench, path):
        entry: dict[str, Any] = {"link": wrench.link, "frame": wrench.frame}
        for name in _WRENCH_VECTORS:
            vector = getattr(wrench, name)
            entry[name] = _PACKED_ZEROS if vector is NO_VECTOR else pack_array(vector, f"{place}.{name}")
        packed.append(entry)
    return packed


def unpack_wrenches(value: Any, path: str) -> list[Wrench]:
    """Decodes external wrenches; errors as in `unpack`."""
    return [_unpack_wrench(entry, place) for entry, place in _entries(value, path)]


def _unpack_wrench(value: Any, path: str) -> Wrench:
    entries = _read_map(value, path, _WRENCH_KEYS, "a map with link, torque and force")
    if "link" not in entries:
        raise invalid_argument(path, "needs the link it acts on")
    for name in ("link", "frame"):
        if name in entries:
            _check_name(entries, name, path)
    return _checked_struct(Wrench, _unpack_arrays(entries, _WRENCH_VECTORS, path), path)


def _checked_struct(kind: type[_T], values: dict[str, Any], path: str) -> _T:
    """Returns an object of a class that checks its fields; errors contain the path."""
    try:
        return kind(**values)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path.removeprefix('inputs.')}.{error}", path=f"{path}.{error.path}") from None


def pack_contacts(value: Any, path: str) -> list[dict[str, Any]]:
    """Encodes a `Contact` or a sequence of them, without fields that have their default; errors as in `pack`."""
    packed = []
    for contact, place in _structs(value, Contact, path):
        entry = {name: getattr(contact, name) for name in _CONTACT_KEYS}
        changed_fields = {name: x for name, x in entry.items() if x is not _CONTACT_DEFAULTS.get(name, MISSING)}
        packed.append(
            {
                name: pack_array(x, f"{place}.{name}") if name in _CONTACT_VECTORS else _plain(x)
                for name, x in changed_fields.items()
            }
        )
    return packed


def _plain(value: Any) -> Any:
    """Converts a NumPy number to a Python number. The server validates all other values."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def unpack_contacts(value: Any, path: str) -> list[Contact]:
    """Decodes contacts; errors as in `unpack`."""
    return [_unpack_contact(entry, place) for entry, place in _entries(value, path)]


def _unpack_contact(value: Any, path: str) -> Contact:
    entries = _read_map(value, path, _CONTACT_KEYS, "a map with link")
    _check_name(entries, "link", path)
    return Contact(**_unpack_arrays(entries, _CONTACT_VECTORS, path))


def pack_payload(value: Any, path: str) -> dict[str, Any]:
    """Encodes a `Payload`; errors as in `pack`."""
    if not isinstance(value, Payload):
        raise invalid_argument(path, f"must be a Payload, found {type(value).__name__}")
    arrays = {name: pack_array(getattr(value, name), f"{path}.{name}") for name in _PAYLOAD_ARRAYS}
    return {"link": value.link, **arrays}


def unpack_payload(value: Any, path: str) -> Payload:
    """Decodes a payload; errors as in `unpack`."""
    entries = _read_map(value, path, ("link", *_PAYLOAD_ARRAYS), "a map with link and mass")
    _check_name(entries, "link", path)
    if "mass" not in entries:
        raise invalid_argument(f"{path}.mass", "must be numbers, found nil")
    return _checked_struct(Payload, _unpack_arrays(entries, _PAYLOAD_ARRAYS, path), path)


def pack_overlay(value: Any, path: str) -> dict[str, Any]:
    """Encodes an `Overlay` without its empty fields; errors as in `pack`."""
    if not isinstance(value, Overlay):
        use = "; use Overlay(payloads=..)" if isinstance(value, Payload) else ""
        raise invalid_argument(path, f"must be an Overlay, found {type(value).__name__}{use}")
    packed: dict[str, Any] = {}
    places = _structs(value.payloads, Payload, f"{path}.payloads")
    payloads = [pack_payload(payload, place) for payload, place in places]
    if payloads:
        packed["payloads"] = payloads
    for part in ("links", "joints"):
        for name, entry in getattr(value, part).items():
            numbers = {field.name: getattr(entry, field.name) for field in fields(entry)}
            packed.setdefault(part, {})[name] = {
                key: pack_array(x, f"{path}.{part}.{name}.{key}") for key, x in numbers.items() if x is not None
            }
    if value.locked:
        packed["locked"] = list(value.locked)
    if value.gravity is not None:
        packed["gravity"] = pack_array(value.gravity, f"{path}.gravity")
    return packed


def unpack_overlay(value: Any, path: str) -> Overlay:
    """Decodes an overlay; errors as in `unpack`."""
    entries = _read_map(value, path, _OVERLAY_KEYS)
    payloads = [unpack_payload(*entry) for entry in _entries(entries.get("payloads", []), f"{path}.payloads")]
    locked = entries.get("locked", [])
    if type(locked) is not list or not all(type(name) is str for name in locked):
        raise invalid_argument(f"{path}.locked", f"must be a list of joints' names, found {show_value(locked)}")
    gravity = entries.get("gravity")
    parts = {
        "payloads": payloads,
        "links": _unpack_changes(entries.get("links", {}), f"{path}.links", Inertial),
        "joints": _unpack_changes(entries.get("joints", {}), f"{path}.joints", JointNumbers),
        "locked": locked,
        "gravity": None if gravity is None else unpack_array(gravity, f"{path}.gravity"),
    }
    return _checked_struct(Overlay, parts, path)


_Change = TypeVar("_Change", Inertial, JointNumbers)


def _unpack_changes(value: Any, path: str, kind: type[_Change]) -> dict[str, _Change]:
    if type(value) is not dict:
        raise invalid_argument(path, f"must be a map from names, found {describe_value(value)}")
    keys = tuple(field.name for field in fields(kind))
    changes = {}
    for name, entry in value.items():
        if type(name) is not str:
            raise invalid_argument(path, f"must be a map from names, found the key {show_value(name)}")
        entries = _read_map(entry, f"{path}.{name}", keys)
        changes[name] = _checked_struct(kind, _unpack_arrays(entries, keys, f"{path}.{name}"), f"{path}.{name}")
    return changes


_CODECS: Mapping[str, tuple[_Codec, _Codec]] = {
    "wrenches": (pack_wrenches, unpack_wrenches),
    "payload": (pack_payload, unpack_payload),
    "overlay": (pack_overlay, unpack_overlay),
    "contacts": (pack_contacts, unpack_contacts),
    **{kind: (partial(names_of, kind), partial(names_of, kind)) for kind in BY_NAME},
}
"""Encoder and decoder of each kind of input that is not an array."""


def _structs(value: Any, kind: type[_T], path: str) -> Iterator[tuple[_T, str]]:
    """Yields each struct of a value, one struct or a sequence of them, with its path."""
    entries = [value] if isinstance(value, kind) else value
    if isinstance(entries, str) or not isinstance(entries, Sequence):
        use = f"; use {kind.__name__}(**..)" if isinstance(value, Mapping) else ""
        raise invalid_argument(path, f"must be a {kind.__name__} or a list of them, found {type(value).__name__}{use}")
    for index, entry in enumerate(entries):
        place = f"{path}[{index}]"
        if not isinstance(entry, kind):
            use = f"; use {kind.__name__}(**..)" if isinstance(entry, Mapping) else ""
            raise invalid_argument(place, f"must be a {kind.__name__}, found {type(entry).__name__}{use}")
        yield entry, place


def _entries(value: Any, path: str) -> Iterator[tuple[Any, str]]:
    """Yields each entry of a decoded value, one map or a list of them, with its path."""
    if type(value) is list:
        for index, entry in enumerate(value):
            yield entry, f"{path}[{index}]"
    else:
        yield value, path


def _read_map(value: Any, path: str, keys: Sequence[str], expected: str = "a map") -> dict[str, Any]:
    """Returns a map's entries except those that are nil."""
    if type(value) is not dict:
        raise invalid_argument(path, f"must be {expected}, found {describe_value(value)}")
    for key in value:
        if key not in keys:
            raise invalid_argument(path, f"has no {show_value(key)}{known_instead(key, keys, 'its keys are')}")
    return {key: entry for key, entry in value.items() if entry is not None}


def _unpack_arrays(entries: dict[str, Any], arrays: Sequence[str], path: str) -> dict[str, Any]:
    """Decodes the arrays of a map in place and returns the map."""
    for name in arrays:
        if name in entries:
            entries[name] = unpack_array(entries[name], f"{path}.{name}")
    return entries


def _check_name(entries: dict[str, Any], key: str, path: str) -> None:
    if type(entries.get(key)) is not str:
        raise invalid_argument(f"{path}.{key}", f"must be a name, found {describe_value(entries.get(key))}")

"""An overlay in a message: one map with the fields of `Overlay`, all optional.

{"payloads": payload or list of them, see `payloads.py`,
"links": {link: {"mass": array?, "com": array?, "inertia": array?}},
"joints": {joint: {"damping": array?, "friction": array?, "friction_width": array?, "armature": array?,
"stiffness": array?, "rest": array?}},
"locked": [joint, ..],
"gravity": array}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from dyn_service.api.queries import Inertial, JointNumbers, Overlay, Payload
from dyn_service.service.protocol.arrays import describe_value, pack_array, show_value, unpack_array
from dyn_service.service.protocol.maps import each_of, entries, fault, read_map
from dyn_service.service.protocol.payloads import pack_payload, unpack_payload

_KEYS = tuple(each.name for each in fields(Overlay))

_E = TypeVar("_E", Inertial, JointNumbers)


def pack_overlay(value: Any, path: str) -> dict[str, Any]:
    """Encodes an overlay, without its empty fields.

    Args:
        value: An `Overlay`.
        path: Path of the value in the request, for the error.

    Raises:
        InvalidArgumentError: The value is not an `Overlay`, or a field cannot be encoded.
    """
    if not isinstance(value, Overlay):
        raise fault(path, f"must be an Overlay, found {type(value).__name__}")
    packed: dict[str, Any] = {}
    carried = [pack_payload(each, place) for each, place in each_of(value.payloads, Payload, f"{path}.payloads")]
    if carried:
        packed["payloads"] = carried
    for part, kind in (("links", Inertial), ("joints", JointNumbers)):
        changes = getattr(value, part)
        if not isinstance(changes, Mapping):
            raise fault(f"{path}.{part}", f"must be a map from names, found {type(changes).__name__}")
        for name, entry in changes.items():
            if not isinstance(entry, kind):
                raise fault(f"{path}.{part}.{name}", f"must be {kind.__name__}, found {type(entry).__name__}")
            given = {each.name: getattr(entry, each.name) for each in fields(kind)}
            packed.setdefault(part, {})[name] = {
                key: pack_array(x, f"{path}.{part}.{name}.{key}") for key, x in given.items() if x is not None
            }
    if isinstance(value.locked, str) or not isinstance(value.locked, Sequence):
        raise fault(f"{path}.locked", f"must be a list of joints' names, found {type(value.locked).__name__}")
    if value.locked:
        packed["locked"] = list(value.locked)
    if value.gravity is not None:
        packed["gravity"] = pack_array(value.gravity, f"{path}.gravity")
    return packed


def unpack_overlay(value: Any, path: str) -> Overlay:
    """Decodes an overlay. The robot validates its names and numbers.

    Raises:
        InvalidArgumentError: A field is unknown or of the wrong type, or an array is not finite.
    """
    given = read_map(value, path, _KEYS)
    carried = [unpack_payload(*each) for each in entries(given.get("payloads", []), f"{path}.payloads")]
    locked = given.get("locked", [])
    if type(locked) is not list or not all(type(name) is str for name in locked):
        raise fault(f"{path}.locked", f"must be a list of joints' names, found {show_value(locked)}")
    gravity = given.get("gravity")
    return Overlay(
        carried,
        _entries(given.get("links", {}), f"{path}.links", Inertial),
        _entries(given.get("joints", {}), f"{path}.joints", JointNumbers),
        locked,
        None if gravity is None else unpack_array(gravity, f"{path}.gravity"),
    )


def _entries(value: Any, path: str, kind: type[_E]) -> dict[str, _E]:
    if type(value) is not dict:
        raise fault(path, f"must be a map from names, found {describe_value(value)}")
    known = tuple(each.name for each in fields(kind))
    found = {}
    for name, changes in value.items():
        if type(name) is not str:
            raise fault(path, f"must be a map from names, found the key {show_value(name)}")
        entry = read_map(changes, f"{path}.{name}", known)
        found[name] = kind(**{key: unpack_array(x, f"{path}.{name}.{key}") for key, x in entry.items()})
    return found

"""Faults in values that were held against typed structs: what is wrong and where, in the words of their files.

plant.ros__parameters.rate_hz: expected a number, found text
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable
from typing import Any

import msgspec

from dyn_service.suggestions import did_you_mean

Place = tuple[str | int, ...]
"""A path from the root of a document: keys and list indices."""

_PATH_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_MISSING_FIELD = re.compile(r"Object missing required field `(.*)`")
_MISSING = re.compile(r"missing key '(.*)'")
_TYPES = re.compile(r"`([^`]*)`")
_WORDS = {
    "object": "a map",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
}
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.+)`")


def dotted(place: Iterable[str | int]) -> str:
    """The place as text: `launch[2].node.param[0].from`."""
    text = ""
    for step in place:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` where a known name is close, else the list of the known names."""
    names = sorted(known)
    return did_you_mean(name, names) or (f"; known here: {', '.join(names)}" if names else "; none are known here")


def explain(error: msgspec.ValidationError, kind: Any) -> tuple[str, Place]:
    """What is wrong with a value that should be `kind`, in our words, and where in it."""
    message, _, path = str(error).partition(" - at `$")
    steps: list[str | int] = []
    for key, index in _PATH_STEP.findall(path.removesuffix("`")):
        steps.append(key or (int(index) if index != "..." else "*"))
    unknown = _UNKNOWN_FIELD.fullmatch(message)
    if unknown:
        name = unknown.group(1)
        struct = _struct_at(kind, steps)
        known = [field.encode_name for field in msgspec.structs.fields(struct)] if struct else []
        return f"unknown key {name!r}{suggestion(name, known)}", (*steps, name)
    return _in_words(message), tuple(steps)


def missing_key(message: str) -> str | None:
    """The name of the key that a message of `explain` says is missing; None where it says something else."""
    found = _MISSING.fullmatch(message)
    return found.group(1) if found else None


def _in_words(message: str) -> str:
    """A message of msgspec's without the names that Python and it have for types."""
    missing = _MISSING_FIELD.fullmatch(message)
    if missing:
        return f"missing key {missing.group(1)!r}"
    named = _TYPES.sub(lambda types: " or ".join(_WORDS.get(t, t) for t in types.group(1).split(" | ")), message)
    named = named.replace(", got ", ", found ")
    return named[:1].lower() + named[1:]


def _struct_at(kind: Any, steps: list[str | int]) -> type[msgspec.Struct] | None:
    """The struct type that stands at `steps` below the type `kind`, or None."""
    candidates = [kind]
    while candidates:
        found = candidates.pop()
        origin = typing.get_origin(found)
        arguments = typing.get_args(found)
        if isinstance(found, type) and issubclass(found, msgspec.Struct):
            if not steps:
                return found
            hints = typing.get_type_hints(found)
            for field in msgspec.structs.fields(found):
                if field.encode_name == steps[0]:
                    return _struct_at(hints[field.name], steps[1:])
        elif origin in (list, tuple) and steps:
            return _struct_at(arguments[0], steps[1:])
        elif origin is dict and steps:
            return _struct_at(arguments[1], steps[1:])
        elif arguments and origin not in (list, tuple, dict):
            candidates.extend(reversed(arguments))
    return None

"""Checks values of files against typed structs. Errors name the path: `plant.rate_hz: expected a number`."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from dyn_service.support.suggestions import did_you_mean, known_instead

Place = tuple[str | int, ...]
"""A path from the root of a document: keys and list indices."""

_PATH_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_AT = re.compile(r" - at (`key` in )?`\$(.*)`$")
_MISSING_FIELD = re.compile(r"Object missing required field `(.*)`")
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.+)`")
_NO_CHOICE = re.compile(r"Invalid enum value (.+)")
_MISSING = re.compile(r"missing key '(.*)'")
_TYPES = re.compile(r"`([^`]*)`")
_WORDS = {
    "object": "a map",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "bytes": "binary data",
    "null": "nothing",
    "None": "nothing",
}

_PHRASES = [
    (re.compile(pattern), words)
    for pattern, words in (
        (r"a list of length >= (\d+)", r"a list of \1 entries or more"),
        (r"a list of length <= (\d+)", r"a list of \1 entries or fewer"),
        (r"a list of length (\d+)", r"a list of \1 entries"),
        (r"a map of length >= (\d+)", r"a map of \1 keys or more"),
        (r"a map of length <= (\d+)", r"a map of \1 keys or fewer"),
        (r"text of length >= (\d+)", r"text of \1 characters or more"),
        (r"text of length <= (\d+)", r"text of \1 characters or fewer"),
        (r" >= (\S+)", r" of at least \1"),
        (r" <= (\S+)", r" of at most \1"),
        (r" > (\S+)", r" above \1"),
        (r" < (\S+)", r" below \1"),
        (r"that's a multiple of", "divisible by"),
        (r"text matching regex", "text of the form"),
        (r"[Ii]nvalid base64 encoded string", "expected binary data in base64"),
        (r"a whole number, found a number$", "a whole number, found a number with a point or exponent"),
        (r"(\d)\.0(?=$|,)", r"\1"),
    )
]

_ABSENT = object()

T = TypeVar("T")


class MismatchError(Exception):
    """A value is not of its type. message: what is wrong; place: where in the value. The caller adds the file."""

    def __init__(self, message: str, place: Place) -> None:
        super().__init__(message)
        self.message, self.place = message, place


def convert(value: Any, kind: type[T]) -> T:
    """Returns the plain value as the type `kind`, such as a struct; raises `MismatchError` for other values."""
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        raise MismatchError(*explain(error, kind, value)) from None


_LONGEST_FOUND = 64


def dotted(place: Iterable[str | int]) -> str:
    """The place as text: `launch[2].node.param[0].from`."""
    text = ""
    for step in place:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def suggestion(name: str, known_names: Iterable[str]) -> str:
    """`; did you mean 'x'?` where a known name is close, else the list of the known names."""
    return known_instead(name, sorted(known_names), "known here:")


def explain(error: msgspec.ValidationError, kind: Any, value: Any = _ABSENT) -> tuple[str, Place]:
    """Returns msgspec's error about a value of type `kind` as a plain message, and the place in the value.

    With `value`, messages about ranges and lengths include the number found.
    """
    place = _AT.search(str(error))
    message = str(error)[: place.start()] if place else str(error)
    steps: list[str | int] = []
    for key, index in _PATH_STEP.findall(place.group(2)) if place else ():
        steps.append(key or (int(index) if index != "..." else "*"))
    unknown, no_choice = _UNKNOWN_FIELD.fullmatch(message), _NO_CHOICE.fullmatch(message)
    if unknown:
        name = unknown.group(1)
        structs = [hint for hint in _types_at(kind, steps) if _is_struct(hint)]
        field_names = [field.encode_name for struct in structs[:1] for field in msgspec.structs.fields(struct)]
        return f"unknown key {name!r}{suggestion(name, field_names)}", (*steps, name)
    if no_choice:
        literals = (hint for hint in _types_at(kind, steps) if typing.get_origin(hint) is typing.Literal)
        choices = [str(choice) for hint in literals for choice in typing.get_args(hint)]
        hint = did_you_mean(no_choice.group(1).strip("'"), choices)
        return f"expected one of {', '.join(choices)}, found {no_choice.group(1)}{hint}", tuple(steps)
    text = _plain(message)
    if ", found " not in text and text.startswith("expected"):
        text += _value_found(value, steps)
    return (f"a key of it: {text}" if place and place.group(1) else text), tuple(steps)


def missing_key(message: str) -> str | None:
    """The name of the key that a message of `explain` says is missing; None for other messages."""
    missing = _MISSING.fullmatch(message)
    return missing.group(1) if missing else None


def _value_found(value: Any, steps: list[str | int]) -> str:
    """`, found X` for the value at `steps`, to end a message with; empty if it has no short form."""
    for step in steps:
        try:
            value = value[step]
        except (TypeError, LookupError):
            return ""
    if isinstance(value, list | dict):
        return f", found {len(value)}"
    if isinstance(value, float):
        return f", found {value:g}"
    return f", found {value!r}" if isinstance(value, int | str) and len(str(value)) <= _LONGEST_FOUND else ""


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _types_at(kind: Any, steps: list[str | int]) -> list[Any]:
    """The types that a value at `steps` below the type `kind` may have, without unions and annotations."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _types_at(arguments[0], steps)
    if origin in (typing.Union, types.UnionType):
        return [hint for argument in arguments for hint in _types_at(argument, steps)]
    if not steps:
        return [kind]
    if _is_struct(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        fields = [field.name for field in msgspec.structs.fields(kind) if field.encode_name == steps[0]]
        return [hint for name in fields for hint in _types_at(hints[name], steps[1:])]
    if origin in (list, tuple) and arguments:
        return _types_at(arguments[0], steps[1:])
    return _types_at(arguments[1], steps[1:]) if origin is dict else []


def _plain(message: str) -> str:
    """A message of msgspec's with YAML's names of types instead of Python's."""
    missing = _MISSING_FIELD.fullmatch(message)
    if missing:
        return f"missing key {missing.group(1)!r}"
    plain = _TYPES.sub(lambda types: " or ".join(_WORDS.get(t, t) for t in types.group(1).split(" | ")), message)
    plain = plain.replace(", got ", ", found ")
    for pattern, words in _PHRASES:
        plain = pattern.sub(words, plain)
    return plain[:1].lower() + plain[1:]

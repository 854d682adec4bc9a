"""Descriptions of a struct's parameters: name, type, default, range, a sentence, and whether it is settable.

    class ThermometerParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
        rate_hz: Annotated[float, Meta(gt=0, le=1000)] = 50.0
        ambient_c: Annotated[float, Meta(ge=-50, le=60), settable] = 20.0

A field without the mark is read-only while the node runs. A struct with the mark is settable with all that is in it.
The sentences are in the docstrings of the struct and its bases: `rate_hz: commands per second.` describes the field
`rate_hz`, `integrator, substeps: ..` both fields, up to the next described field. Source and `--help` share this text.
Types and ranges come from the annotations.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import textwrap
import typing
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec

from dyn_service.support.parameters import file_sort

_WORDS = {float: "number", int: "whole number", bool: "true or false", str: "text", dict: "map", type(None): "nothing"}
_BOUNDS = (("gt", "above {:g}"), ("ge", "at least {:g}"), ("lt", "below {:g}"), ("le", "at most {:g}"))
_TOPIC, _SETTABLE = "topic", "settable"
MAX_WIDTH = 120

settable = msgspec.Meta(extra={_SETTABLE: True})
"""The mark of a parameter that may be set while the node runs."""


class ParameterDescriptor(msgspec.Struct, frozen=True):
    """A parameter. name: with dots where it is in a struct. type: as text. default: as in YAML; None if it must be
    given. range: as text, empty without bounds. about: its sentence, empty if the struct has none. topic: for a topic's
    name the direction and the message type, `publishes sensor_msgs/msg/JointState`; else empty.
    settable: whether it may be set while the node runs.
    """

    name: str
    type: str
    default: str | None
    range: str = ""
    about: str = ""
    topic: str = ""
    settable: bool = False


def on_topic(does: Literal["publishes", "subscribes"], ros_type: str) -> msgspec.Meta:
    """The mark of a parameter that names a topic."""
    return msgspec.Meta(extra={_TOPIC: f"{does} {ros_type}"})


@functools.cache  # takes 3 ms, and nodes answer requests while their loops run
def described(kind: type[msgspec.Struct]) -> tuple[ParameterDescriptor, ...]:
    """The parameters of a struct in order, those of structs in it as `struct.name`."""
    return tuple(_described(kind, "", False))


def sentences(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Returns the sentence of each field from the docstrings of the struct and its bases; the most derived one wins."""
    sentence_of: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if isinstance(base, type) and issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            names = [field.encode_name for field in msgspec.structs.fields(base)]
            sentence_of |= _docstring_sentences(base.__doc__ or "", names)
    return sentence_of


def type_in_words(hint: Any, *, plural: bool = False) -> str:
    """Describes a type by the YAML that it accepts: `list of numbers`, `one of rk4, euler`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        if file_sort(hint):
            return "paths" if plural else "path"
        return type_in_words(arguments[0], plural=plural)
    if origin in (list, tuple):
        inner = type_in_words(arguments[0], plural=True) if arguments else "values"
        return f"list{'s' if plural else ''} of {inner}"
    if origin is dict or hint is dict or (isinstance(hint, type) and issubclass(hint, msgspec.Struct)):
        return "maps" if plural else "map"
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if arguments:
        return " or ".join(type_in_words(kind, plural=plural) for kind in arguments if kind is not type(None))
    word = _WORDS.get(hint, "any value")
    return f"{word}s" if plural and word in ("number", "whole number", "text") else word


def terminal_width() -> int:
    """Width of this terminal in columns, at most `MAX_WIDTH`."""
    return min(shutil.get_terminal_size().columns, MAX_WIDTH)


def table(parameters: Sequence[ParameterDescriptor], width: int) -> list[str]:
    """The parameters as lines of `width` columns."""
    lines = []
    for parameter in parameters:
        value = "must be given" if parameter.default is None else f"default {parameter.default}"
        facts = [parameter.type, parameter.range, value]
        facts.append("settable" if parameter.settable else "")
        lines.append(f"  {parameter.name}  ({'; '.join(filter(None, facts))})")
        lines += textwrap.wrap(parameter.about, max(width, 40), initial_indent=" " * 6, subsequent_indent=" " * 6)
    return lines


def _described(kind: type[msgspec.Struct], prefix: str, settable_above: bool) -> Iterator[ParameterDescriptor]:
    hints, sentence_of = typing.get_type_hints(kind, include_extras=True), sentences(kind)
    for field in msgspec.structs.fields(kind):
        hint, name = hints[field.name], prefix + field.encode_name
        metas = [meta for meta in getattr(hint, "__metadata__", ()) if isinstance(meta, msgspec.Meta)]
        marks = {key: value for meta in metas for key, value in (meta.extra or {}).items()}
        marked = settable_above or _SETTABLE in marks
        bare = hint.__origin__ if typing.get_origin(hint) is Annotated else hint
        if isinstance(bare, type) and issubclass(bare, msgspec.Struct):
            yield from _described(bare, f"{name}.", marked)
            continue
        sentence, topic = sentence_of.get(field.encode_name, ""), marks.get(_TOPIC, "")
        yield ParameterDescriptor(name, type_in_words(hint), _default(field), _range(metas), sentence, topic, marked)


def _range(metas: list[msgspec.Meta]) -> str:
    bounds = (text.format(x) for meta in metas for key, text in _BOUNDS if (x := getattr(meta, key)) is not None)
    return ", ".join(bounds)


def _default(field: msgspec.structs.FieldInfo) -> str | None:
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    elif field.default is not msgspec.NODEFAULT:
        value = field.default
    else:
        return None
    if value is None or value in ("", [], {}):
        return "none"
    return value if isinstance(value, str) else json.dumps(msgspec.to_builtins(value))


def _docstring_sentences(text: str, names: list[str]) -> dict[str, str]:
    sentence_of: dict[str, str] = {}
    if not names:
        return sentence_of
    field_name = rf"(?:{'|'.join(sorted(map(re.escape, names), key=len, reverse=True))})(?: \([^)]*\))?"
    description = re.compile(rf"(?:^|(?<=\s))({field_name}(?:, {field_name})*):\s")
    for paragraph in re.split(r"\n\s*\n", text):
        flat = " ".join(paragraph.split())
        marks = list(description.finditer(flat))
        ends = [mark.start() for mark in marks[1:]] + [len(flat)]
        for mark, end in zip(marks, ends, strict=False):
            sentence = flat[mark.end() : end].strip().rstrip(";,.").replace("`", "")
            for name, remark in re.findall(r"(\w+)(?: \(([^)]*)\))?(?:, |$)", mark.group(1)):
                sentence_of[name] = f"{sentence}, {remark}" if remark else sentence
    return sentence_of

"""Parameters that can be set while a node runs: which, within what range, and how a set is checked before it counts.

    class ThermometerParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
        rate_hz: Annotated[float, Meta(gt=0, le=1000)] = 50.0
        ambient_c: Annotated[float, Meta(ge=-50, le=60), settable] = 20.0

A field without the mark is read-only while the node runs. A struct with the mark is settable with all that is in it.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from dyn_service.config.wording import dotted, explain
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.suggestions import did_you_mean

P = TypeVar("P", bound=msgspec.Struct)

settable = msgspec.Meta(extra={"settable": True})
"""The mark of a parameter that may be set while the node runs."""

_WORDS = {float: "number", int: "whole number", bool: "true or false", str: "text", type(None): "nothing"}
_BOUNDS = (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))


class ParameterDescription(msgspec.Struct, frozen=True):
    """A parameter: its name with dots, its type in words, what else holds of its value, whether it can be set."""

    name: str
    type: str
    range: str = ""
    settable: bool = False


def describe(kind: type[msgspec.Struct]) -> list[ParameterDescription]:
    """The parameters of a node, those of structs in it under `struct.name`."""
    return list(_described(kind, "", False))


def flat(parameters: msgspec.Struct) -> dict[str, Any]:
    """Values by the names that `describe` gives, as YAML has them."""
    values = msgspec.to_builtins(parameters)
    return {found.name: _at(values, found.name) for found in describe(type(parameters))}


def with_values(parameters: P, given: Mapping[str, Any], node: str) -> P:
    """The parameters with other values in place of some, all of which are checked.

    Raises:
        InvalidArgumentError: There is no parameter of a name, or a value has another type or is out of its range.
        FailedPreconditionError: One of them is read-only while the node runs.
    """
    kind = type(parameters)
    known = {found.name: found for found in describe(kind)}
    values = msgspec.to_builtins(parameters)
    for name, value in given.items():
        found = known.get(name)
        if found is None:
            near = did_you_mean(name, known) or (f"; it has {', '.join(known)}" if known else "; it has none")
            raise InvalidArgumentError(f"node {node!r} has no parameter {name!r}{near}", path=name)
        if not found.settable:
            raise FailedPreconditionError(
                f"parameter {name!r} of node {node!r} is read-only while it runs: say it at the start", path=name
            )
        if not _is_finite(value):
            raise InvalidArgumentError(f"parameter {name!r} is not finite", path=name)
        *above, last = name.split(".")
        table = values
        for step in above:
            table = table[step]
        table[last] = value
    try:
        return msgspec.convert(values, kind, strict=True)
    except msgspec.ValidationError as error:
        message, place = explain(error, kind, values)
        raise InvalidArgumentError(f"parameter {dotted(place)!r}: {message}", path=dotted(place)) from None


def _described(kind: type[msgspec.Struct], above: str, mark: bool) -> Iterator[ParameterDescription]:
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        hint, metas = hints[field.name], []
        if typing.get_origin(hint) is Annotated:
            hint, *more = typing.get_args(hint)
            metas = [meta for meta in more if isinstance(meta, msgspec.Meta)]
        marked = mark or any((meta.extra or {}).get("settable") for meta in metas)
        name = above + field.encode_name
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield from _described(hint, f"{name}.", marked)
        else:
            yield ParameterDescription(name, _in_words(hint), _range(metas), marked)


def _in_words(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _in_words(arguments[0])
    if origin in (list, tuple):
        return f"list of {_in_words(arguments[0])}"
    if origin is dict:
        return "map"
    if origin is typing.Literal:
        return "one of " + ", ".join(map(str, arguments))
    if arguments:
        return " or ".join(map(_in_words, arguments))
    return _WORDS.get(hint, getattr(hint, "__name__", str(hint)))


def _range(metas: list[msgspec.Meta]) -> str:
    parts = [
        f"{sign} {bound:g}" for meta in metas for key, sign in _BOUNDS if (bound := getattr(meta, key)) is not None
    ]
    return ", ".join(parts)


def _at(values: Any, name: str) -> Any:
    for step in name.split("."):
        values = values[step]
    return values


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, list | tuple) or all(map(_is_finite, value))

"""Errors of values that are validated against structs, with our messages instead of the library's."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from dyn_service.support.validation import dotted, explain
from tests.phrases import in_our_words, unnamed


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    x: int


class Everything(msgspec.Struct, forbid_unknown_fields=True):
    choice: Literal["metre", "radian"] = "metre"
    number: Annotated[float, Meta(gt=0, le=5)] = 1.0
    fractions: list[Annotated[float, Meta(ge=-1, lt=1)]] | None = None
    three: Annotated[list[float], Meta(min_length=3, max_length=3)] = msgspec.field(default_factory=lambda: [0.0] * 3)
    pair: tuple[float, float] = (0.0, 0.0)
    maybe: str | None = None
    counts: dict[str, int] = {}
    keyed: dict[int, int] = {}
    inner: Inner | None = None
    inners: list[Inner] = []
    mixed: int | list[float] = 1
    shape: Annotated[str, Meta(pattern="^a", min_length=2)] = "ab"
    data: bytes = b""
    even: Annotated[int, Meta(multiple_of=2)] = 0
    single_key: Annotated[dict[str, int], Meta(max_length=1)] = {}
    picks: list[Literal["a", "b"]] = []


@pytest.mark.parametrize(
    ("value", "values"),
    [
        ({"choice": "metr"}, ["choice", "metre, radian", "'metr'", "'metre'"]),
        ({"choice": 1}, ["choice", "whole", "number"]),
        ({"picks": ["a", "c"]}, ["picks[1]", "a, b", "'c'"]),
        ({"number": -1.5}, ["number", "0", "-1.5"]),
        ({"number": 9}, ["number", "5", "9"]),
        ({"number": "9"}, ["number", re.compile("^number.*found text$")]),
        ({"number": None}, ["number", re.compile("^number.*found nothing$")]),
        ({"fractions": [0.5, 1.5]}, ["fractions[1]", "1", "1.5"]),
        ({"three": [1.0]}, ["three", "3", "1"]),
        ({"pair": [1.0]}, ["pair", "2", "1"]),
        ({"maybe": 3}, ["maybe", "nothing", "number"]),
        ({"counts": {"x": 1.5}}, ["counts.*", "number", "exponent"]),
        ({"counts": []}, ["counts", "list"]),
        ({"keyed": {"a": 1}}, ["keyed", "whole", "number"]),
        ({"inner": {}}, ["inner", "'x'"]),
        ({"inner": {"x": 1, "xx": 2}}, ["inner.xx", "'xx'"]),
        ({"inners": [{"x": 1}, {}]}, ["inners[1]", "'x'"]),
        ({"mixed": "x"}, ["mixed", "whole", "number"]),
        ({"shape": "bb"}, ["shape", "'^a'", "'bb'"]),
        ({"shape": "a"}, ["shape", "2", "'a'"]),
        ({"data": "?"}, ["data", "'?'"]),
        ({"even": 3}, ["even", "2", "3"]),
        ({"single_key": {"a": 1, "b": 2}}, ["single_key", "1", "2"]),
        ([], ["list", "map"]),
        (5, ["whole", "number", "map"]),
    ],
    ids=str,
)
def test_every_fault_is_in_our_words(value: Any, values: list[str]) -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.convert(value, Everything, strict=True)
    message, place = explain(error.value, Everything, value)
    text = f"{dotted(place)}: {message}" if place else message
    assert unnamed(text.replace("[*]", ".*"), *values) == []
    assert in_our_words(text)
    assert not in_our_words(str(error.value))  # else the phrases let everything through
    assert in_our_words(explain(error.value, Everything)[0])


def test_what_comes_as_messagepack_too() -> None:
    for value in ({"number": None}, {"data": "x"}, {"inners": [1]}, {"choice": b"x"}):
        with pytest.raises(msgspec.ValidationError) as error:
            msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=Everything)
        assert in_our_words(explain(error.value, Everything)[0])

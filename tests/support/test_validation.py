"""Faults of values that are held against structs: in our words, whatever the library says."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from dyn_service.support.validation import dotted, explain
from tests.phrases import in_our_words


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    x: int


class Everything(msgspec.Struct, forbid_unknown_fields=True):
    choice: Literal["metre", "radian"] = "metre"
    number: Annotated[float, Meta(gt=0, le=5)] = 1.0
    few: list[Annotated[float, Meta(ge=-1, lt=1)]] | None = None
    three: Annotated[list[float], Meta(min_length=3, max_length=3)] = msgspec.field(default_factory=lambda: [0.0] * 3)
    pair: tuple[float, float] = (0.0, 0.0)
    maybe: str | None = None
    counts: dict[str, int] = {}
    keyed: dict[int, int] = {}
    inner: Inner | None = None
    many: list[Inner] = []
    mixed: int | list[float] = 1
    shape: Annotated[str, Meta(pattern="^a", min_length=2)] = "ab"
    data: bytes = b""
    even: Annotated[int, Meta(multiple_of=2)] = 0
    one: Annotated[dict[str, int], Meta(max_length=1)] = {}
    picks: list[Literal["a", "b"]] = []


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"choice": "metr"}, "choice: expected one of metre, radian, found 'metr'; did you mean 'metre'?"),
        ({"choice": 1}, "choice: expected text, found a whole number"),
        ({"picks": ["a", "c"]}, "picks[1]: expected one of a, b, found 'c'"),
        ({"number": -1.5}, "number: expected a number above 0, found -1.5"),
        ({"number": 9}, "number: expected a number of at most 5, found 9"),
        ({"number": "9"}, "number: expected a number, found text"),
        ({"number": None}, "number: expected a number, found nothing"),
        ({"few": [0.5, 1.5]}, "few[1]: expected a number below 1, found 1.5"),
        ({"three": [1.0]}, "three: expected a list of 3 entries or more, found 1"),
        ({"pair": [1.0]}, "pair: expected a list of 2 entries, found 1"),
        ({"maybe": 3}, "maybe: expected text or nothing, found a whole number"),
        ({"counts": {"x": 1.5}}, "counts.*: expected a whole number, found a fraction"),
        ({"counts": []}, "counts: expected a map, found a list"),
        ({"keyed": {"a": 1}}, "keyed: a key of it: expected a whole number, found text"),
        ({"inner": {}}, "inner: missing key 'x'"),
        ({"inner": {"x": 1, "xx": 2}}, "inner.xx: unknown key 'xx'; known here: x"),
        ({"many": [{"x": 1}, {}]}, "many[1]: missing key 'x'"),
        ({"mixed": "x"}, "mixed: expected a whole number or a list, found text"),
        ({"shape": "bb"}, "shape: expected text of the form '^a', found 'bb'"),
        ({"shape": "a"}, "shape: expected text of 2 characters or more, found 'a'"),
        ({"data": "?"}, "data: expected binary data in base64, found '?'"),
        ({"even": 3}, "even: expected a whole number divisible by 2, found 3"),
        ({"one": {"a": 1, "b": 2}}, "one: expected a map of 1 keys or fewer, found 2"),
        ([], "expected a map, found a list"),
        (5, "expected a map, found a whole number"),
    ],
    ids=str,
)
def test_every_fault_is_in_our_words(value: Any, said: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, Everything, strict=True)
    message, place = explain(caught.value, Everything, value)
    found = f"{dotted(place)}: {message}" if place else message
    assert found.replace("[*]", ".*") == said
    assert in_our_words(found)
    assert not in_our_words(str(caught.value))  # else the phrases let everything through
    assert in_our_words(explain(caught.value, Everything)[0])


def test_what_comes_as_messagepack_too() -> None:
    for value in ({"number": None}, {"data": "x"}, {"many": [1]}, {"choice": b"x"}):
        with pytest.raises(msgspec.ValidationError) as caught:
            msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=Everything)
        assert in_our_words(explain(caught.value, Everything)[0])

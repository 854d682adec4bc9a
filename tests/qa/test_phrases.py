"""The patterns with which other tests look for what a sentence names."""

from __future__ import annotations

import re

import pytest

from tests.phrases import naming, unnamed

SENTENCE = "<text>:4: joint 'j1': v must be finite (2 movable joints), found -0.25 of [0, 1]\nat options.v2"


@pytest.mark.parametrize(
    "value", ["<text>:4", "joint 'j1'", "v", "(2 movable joints)", -0.25, 2, "[0, 1]", "options.v2"]
)
def test_what_is_there(value: object) -> None:
    assert unnamed(SENTENCE, value) == []
    assert re.search(naming(value, "finite"), SENTENCE)


@pytest.mark.parametrize("value", [0.25, 25, "0.2", "-0", "j", "'j'", "joint 'j2'", "(2)", "options.v", "movab", "[0]"])
def test_no_part_of_a_longer_word_or_number(value: object) -> None:
    assert unnamed(SENTENCE, "finite", value) == [value]
    assert not re.search(naming("finite", value), SENTENCE)


def test_the_order_does_not_matter_and_each_must_be_there() -> None:
    assert re.search(naming("options.v2", "joint 'j1'", 4), SENTENCE)
    assert not re.search(naming("options.v2", "joint 'j1'", 5), SENTENCE)
    assert unnamed(ValueError(SENTENCE), 5, 4, "x") == [5, "x"]


def test_a_pattern_is_searched_for() -> None:
    assert unnamed(SENTENCE, re.compile(r"found -?[\d.]+ of"), re.compile(r"^\w+$")) == [re.compile(r"^\w+$")]
    assert re.search(naming(re.compile("joint 'j[12]'")), SENTENCE)

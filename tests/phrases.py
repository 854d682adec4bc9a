"""What a sentence names, for tests that do not depend on its words; and the words of libraries, which no fault has."""

from __future__ import annotations

import re
from typing import Any

LIBRARY = re.compile(
    r"msgspec|missing required field|contains unknown field|enum value|base64 encoded|[Oo]bject (missing|contains)"
    r"|`(str|int|float|bool|null|object|array|bytes)\b|\bgot (`|str|int|float|array|object)"
    r"|\b(str|bin|array|map|ext)(8|16|32)\b|of length [<>]|NoneType|<class|has no attribute|object is not|unhashable"
    r"|Errno|yaml\.|<unicode string>|could not convert string"
)
"""Phrases of msgspec, msgpack, PyYAML and Python itself."""


def in_our_words(text: str) -> bool:
    """Whether none of them is in the text of a fault."""
    return LIBRARY.search(text) is None


def naming(*values: Any) -> str:
    """Returns the pattern of a text that names each of these values, in any order: for `pytest.raises(match=...)`.

    A number or a word is not found within a longer one: 2 is not in -2, 0.2 or `v2`. A value may be a compiled pattern.
    """
    return "(?s)^" + "".join(f"(?=.*{_whole(value)})" for value in values)


def unnamed(text: object, *values: Any) -> list[Any]:
    """Returns those of the values that a text, or an error's text, does not name."""
    return [value for value in values if not re.search(_whole(value), str(text), re.DOTALL)]


def _whole(value: Any) -> str:
    if isinstance(value, re.Pattern):
        return f"(?:{value.pattern})"
    text = str(value)
    left_border = r"(?<![\w.+-])" if text[0].isdigit() else r"(?<!\w)" if re.match(r"\w", text) else ""
    right_border = r"(?!\w|\.\d)" if re.search(r"\w$", text) else ""
    return left_border + re.escape(text) + right_border

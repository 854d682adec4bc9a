"""Words of libraries that no fault of ours is told in."""

from __future__ import annotations

import re

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

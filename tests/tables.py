"""Look-ups in tables that have an entry for each query, method or kind: a missing one says what to add."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import pytest

Value = TypeVar("Value")


def entry(table: Mapping[str, Value], name: str, place: str, addition: str) -> Value:
    """Returns `table[name]`; fails with what to add and where if it has none.

    place: the table's name and file. addition: the line to add, or what its value is.
    """
    if name not in table:
        pytest.fail(f"{place} has no entry for {name!r}: add {addition}", pytrace=False)
    return table[name]


def assert_complete(names: Iterable[str], required: Iterable[str], place: str, instruction: str) -> None:
    """Fails unless the names in a list are those that are needed; says what to do about each that is not.

    place: the list's name and file. instruction: what to add or to do for a name that is missing.
    """
    missing, surplus = sorted(set(required) - set(names)), sorted(set(names) - set(required))
    if missing:
        pytest.fail(f"{place} lacks {', '.join(missing)}: {instruction}", pytrace=False)
    if surplus:
        pytest.fail(f"{place} has {', '.join(surplus)}, which is not needed: remove it", pytrace=False)

"""Errors, warnings and notes in full, compared with sentences.txt.

After a rewording: `python -m tests.golden --write`, and review the diff of that file.
"""

from __future__ import annotations

import difflib

import pytest

from tests.golden.collecting import FILE, read, written
from tests.golden.everything import PARTS, provoked

COMMITTED = read(FILE.read_text("utf-8"))


@pytest.mark.parametrize("part", PARTS)
def test_every_sentence_is_as_committed(part: str) -> None:
    found = provoked(part)
    expected = {name: text for name, text in COMMITTED.items() if name.startswith(f"{part}: ")}
    changes = difflib.unified_diff(written(expected).splitlines(), written(found).splitlines(), "committed", "found")
    assert found == expected, "\n".join([*changes, "", "after a rewording: python -m tests.golden --write"])


def test_the_file_is_broad() -> None:
    """Each part has many cases, and errors of every kind that a request or a file can have are among them."""
    for part in PARTS:
        assert sum(name.startswith(f"{part}: ") for name in COMMITTED) >= 30, part
    kinds = {text.split("\n")[0].split(" at ")[0] for text in COMMITTED.values()}
    assert kinds >= {
        "InvalidArgumentError", "UrdfError", "ConfigurationError", "GoalError", "LawError", "DriverError",
        "NotFoundError", "UnimplementedError", "ResourceExhaustedError", "FailedPreconditionError",
        "PermissionDeniedError", "UnavailableError", "note: warning", "note: dropped", "status 1", "status 2",
    }  # fmt: skip


def test_the_file_is_read_as_it_is_written() -> None:
    assert written(COMMITTED) == FILE.read_text("utf-8")

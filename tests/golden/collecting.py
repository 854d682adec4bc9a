"""A case as it is in the file: what it is called, the error's class, its path and its sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import ROOT

FILE = Path(__file__).with_name("sentences.txt")
LONGEST_NAME = 120
AROUND = re.compile(
    r'<sdf version="1.11"><model name="m">|</model></sdf>|<mujoco model="m">\n|</?worldbody>|\n</mujoco>'
)


class Case(NamedTuple):
    """kind: the error's class, or what the sentences are: a note, a line of the command line."""

    name: str
    kind: str
    path: str | None
    sentence: str


def raised(name: str, call: Callable[..., Any], *given: Any, **named: Any) -> Case:
    """Returns the error that the call raises. Anything that is not an error of the package ends the run."""
    with pytest.raises(Exception) as caught:
        call(*given, **named)
    return of_error(name, caught.value)


def of_error(name: str, error: Exception) -> Case:
    if not type(error).__module__.startswith("dyn_service."):
        raise error
    return Case(name, type(error).__name__, getattr(error, "path", None), str(error))


def of_notes(name: str, notes: Iterable[Any]) -> Iterator[Case]:
    """Yields one case for each note of a description."""
    for note in notes:
        place = note.element if note.line is None else f"{note.element}, line {note.line}"
        yield Case(name, f"note: {note.kind}", place, note.text)


def rows(test: Any) -> Iterator[tuple[Any, ...]]:
    """Yields the rows of a test's table, without names."""
    (table,) = (mark for mark in test.pytestmark if mark.name == "parametrize")
    for row in table.args[1]:
        yield getattr(row, "values", row)


def brief(text: str) -> str:
    """Returns a text on one line without the elements around a robot, and of a long one its begin and end."""
    line = " ".join(AROUND.sub("", text).split())
    half = LONGEST_NAME // 2
    return line if len(line) <= LONGEST_NAME else f"{line[:half]} .. {line[-half:]}"


def made_of(cases: Iterable[Case], folder: Path) -> dict[str, str]:
    """Returns the text of each case under its name, without what differs from run to run.

    A name that is already taken gets a number.
    """
    texts: dict[str, str] = {}
    for case in cases:
        first = name = brief(same_everywhere(case.name, folder))
        number = 1
        while name in texts:
            number += 1
            name = f"{first} ({number})"
        head = case.kind if case.path is None else f"{case.kind} at {case.path}"
        texts[name] = same_everywhere("\n".join([head, *case.sentence.splitlines()]), folder)
    return texts


def same_everywhere(text: str, folder: Path) -> str:
    """Returns a text with placeholders for folders of the run and lines of tests, without addresses in memory.

    Characters that cannot be printed are escaped, so that the file is text for git too.
    """
    text = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
    text = text.replace(str(folder), "FOLDER").replace(str(ROOT), "REPOSITORY")
    return re.sub(r"(\.py, line) \d+", r"\1 N", re.sub(r" at 0x[0-9a-f]+", "", text))


def written(texts: Mapping[str, str]) -> str:
    """Returns the text of the file: names at the margin, their texts indented."""
    blocks = (name + "".join(f"\n    {line}" for line in text.split("\n")) for name, text in texts.items())
    return "\n\n".join(blocks) + "\n"


def read(text: str) -> dict[str, str]:
    """Returns what `written` wrote."""
    found: dict[str, str] = {}
    for block in text.removesuffix("\n").split("\n\n"):
        name, *lines = block.split("\n")
        found[name] = "\n".join(line.removeprefix("    ") for line in lines)
    return found

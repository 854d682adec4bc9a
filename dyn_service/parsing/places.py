"""Where in a source something stands, so that every fault and every note can say it the same way.

A `Place` is a file (or what else the robot came from), an element such as `joint 'elbow' axis`, and a line. Faults are
raised from a place, notes are written at one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from dyn_service.errors import UrdfError
from dyn_service.model.description import Note

NoteKind = Literal["defaulted", "changed", "dropped", "doubted", "reported", "acting", "following", "merged"]

LONGEST_QUOTE = 60
"""Characters of the source that a message repeats; the source is not ours, and a message is one line."""


@dataclass(frozen=True)
class Place:
    """A place in a robot description.

    file: the path as given, `<text>`, or the kind of object. element: `robot 'panda'`, `link 'hand' inertial mass`, or
    None for the source as a whole. line: 1-based, 0 where the source has no lines.
    """

    file: str
    element: str | None = None
    line: int = 0

    def inside(self, what: str, line: int | None = None) -> Place:
        """The place of `what` inside this element; on this element's line where no other is given."""
        element = what if self.element is None else f"{self.element} {what}"
        return replace(self, element=element, line=self.line if line is None else line)

    def fault(self, message: str) -> UrdfError:
        """The error that says `message` of this place."""
        return UrdfError(message, file=self.file, line=self.line or None, element=self.element)

    def note(self, kind: NoteKind, text: str) -> Note:
        """The note that says `text` of this place."""
        return Note(kind, self.element or self.file, text, self.line)


MOST_FAULTS = 20
"""Faults that one error lists: the search for a misspelt name costs time for each."""


class Faults:
    """The faults of elements that are read independently of each other, raised as one error that lists all.

    The error is the first fault (its place and message); each further fault follows on a line of its own.
    """

    def __init__(self) -> None:
        self._found: list[UrdfError] = []

    @contextmanager
    def kept(self, explained: Callable[[UrdfError], UrdfError] = lambda fault: fault) -> Iterator[None]:
        """Keeps the fault that reading an element raises, `explained`, and lets the caller go on with the next."""
        try:
            yield
        except UrdfError as fault:
            self._found.append(explained(fault))
            if len(self._found) == MOST_FAULTS:
                self.check()

    def check(self) -> None:
        """Raises what was kept, if anything."""
        if self._found:
            first, *others = self._found
            if len(self._found) == MOST_FAULTS:
                others.append(UrdfError(f"further faults after these {MOST_FAULTS} are not looked for"))
            first.message = "\n".join([first.message, *map(str, others)])
            raise first from None


def named(what: str, name: str) -> str:
    """The element's name in messages: `link 'hand'`."""
    return f"{what} {quoted(name)}"


def quoted(text: str) -> str:
    """`text` between quotes, shortened, control characters escaped: a message must not carry a terminal sequence."""
    return repr(text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 3] + "...")


def listed(names: list[str], most: int = 6) -> str:
    """`'a', 'b', 'c' and 4 more`."""
    shown = ", ".join(quoted(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def counted(number: int, noun: str) -> str:
    """`1 link`, `2 links`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def unused(number: int, noun: str, where: str) -> str:
    """`2 <gazebo> elements in <robot> are not used`: one wording for all that importers drop."""
    return f"{counted(number, noun)} {where} {'is' if number == 1 else 'are'} not used"


def shown_path(path: str | os.PathLike[str]) -> str:
    """The path as its user wrote it, as text that can always be encoded; file names may be any bytes."""
    return os.fsdecode(path).encode(errors="backslashreplace").decode()

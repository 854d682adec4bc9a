"""Locations in a robot description, for errors and notes.

A `Place` is a file (or other source), an element such as `joint 'elbow' axis`, and a line.
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
"""Maximum number of characters of the source that a message quotes."""


@dataclass(frozen=True)
class Place:
    """A place in a robot description.

    file: the path as given, `<text>`, or the kind of object. element: `robot 'panda'`, `link 'hand' inertial mass`, or
    None for the whole source. line: 1-based, 0 if the source has no lines.
    """

    file: str
    element: str | None = None
    line: int = 0

    def inside(self, what: str, line: int | None = None) -> Place:
        """Returns the place of `what` inside this element; `line` defaults to this element's line."""
        element = what if self.element is None else f"{self.element} {what}"
        return replace(self, element=element, line=self.line if line is None else line)

    def fault(self, message: str) -> UrdfError:
        """Returns an error at this place."""
        return UrdfError(message, file=self.file, line=self.line or None, element=self.element)

    def note(self, kind: NoteKind, text: str) -> Note:
        """Returns a note on this place."""
        return Note(kind, self.element or self.file, text, self.line)


MOST_FAULTS = 20
"""Maximum number of faults that one error lists; each takes time, because similar names are searched."""


class Faults:
    """Collects the faults of independent elements and raises them as one error.

    The error is the first fault (its place and message); each further fault is on a line of its own.
    """

    def __init__(self) -> None:
        self._found: list[UrdfError] = []

    @contextmanager
    def kept(self, explained: Callable[[UrdfError], UrdfError] = lambda fault: fault) -> Iterator[None]:
        """Keeps the fault raised in the block, so that the caller continues with the next element."""
        try:
            yield
        except UrdfError as fault:
            self._found.append(explained(fault))
            if len(self._found) == MOST_FAULTS:
                self.check()

    def check(self) -> None:
        """Raises the collected faults, if there are any."""
        if self._found:
            first, *others = self._found
            if len(self._found) == MOST_FAULTS:
                others.append(UrdfError(f"further faults after these {MOST_FAULTS} are not looked for"))
            first.message = "\n".join([first.message, *map(str, others)])
            raise first from None


def named(what: str, name: str) -> str:
    """Returns the name of an element for messages: `link 'hand'`."""
    return f"{what} {quoted(name)}"


def quoted(text: str) -> str:
    """Returns `text` in quotes, shortened, with control characters escaped."""
    return repr(text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 3] + "...")


def listed(names: list[str], most: int = 6) -> str:
    """Returns, for example, `'a', 'b', 'c' and 4 more`."""
    shown = ", ".join(quoted(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def counted(number: int, noun: str) -> str:
    """Returns, for example, `1 link` or `2 links`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def unused(number: int, noun: str, where: str) -> str:
    """Returns, for example, `2 <gazebo> elements in <robot> are not used`."""
    return f"{counted(number, noun)} {where} {'is' if number == 1 else 'are'} not used"


def shown_path(path: str | os.PathLike[str]) -> str:
    """Returns the path as text that can be encoded; file names may contain any bytes."""
    return os.fsdecode(path).encode(errors="backslashreplace").decode()

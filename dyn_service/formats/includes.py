"""XML that is spread over several files: one tree of elements, each with the file and the line it stands in.

Only a robot that came as a file may have parts in other files, which are looked for beside it and are read as it is:
regular files of UTF-8 without entities, within the limits, which hold for all of them together. Text opens no file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from dyn_service.errors import NotFoundError, ResourceExhaustedError
from dyn_service.model.description import Note
from dyn_service.urdf.markup import Element, ReadLimits, load, parse
from dyn_service.urdf.places import NoteKind, Place, quoted, shown_path

MOST_FILES = 100
"""Of one robot; real ones have up to ten."""


@dataclass(frozen=True)
class Elsewhere(Place):
    """A place in a file that another one includes: a note says so, since lines are those of the robot's own file."""

    def note(self, kind: NoteKind, text: str) -> Note:
        """The note that says `text` of this place."""
        return Note(kind, f"{self.file}:{self.line}: {self.element}", text)


def place_of(element: Element, what: str, main: str) -> Place:
    """The place of an element that is called `what`, of a robot whose own file is called `main`."""
    return (Place if element.file == main else Elsewhere)(element.file, what, element.line)


MOST_ELEMENTS = 50_000
"""Of one robot; the largest real ones known have 5000, and each costs up to 50 us here, where a shape may be a mass."""


class Files:
    """The files of one robot.

    Args:
        main: The file that it was asked for by; None where it came as text.
        limits: For all of its files together.
    """

    def __init__(self, main: str | os.PathLike[str] | None, limits: ReadLimits) -> None:
        self.main = None if main is None else Path(main)
        self.read: list[Path] = []
        self._left = replace(limits, elements=min(limits.elements, MOST_ELEMENTS))

    def root(self, text: str, name: str) -> Element:
        """The root element of the robot's text, which `name` stands for in faults."""
        if self.main is not None:
            self.read.append(self.main.resolve())
        return self._counted(text, name)

    def included(self, path: Path, place: Place) -> Element:
        """The root element of another file.

        Args:
            path: The file.
            place: Of what asks for it.

        Raises:
            UrdfError: It is asked for by text, or a second time, or is not there, or is malformed.
            ResourceExhaustedError: There are too many, or too much is in them.
        """
        if path.resolve() in self.read:
            raise place.fault(f"the file {quoted(path.name)} is included a second time, expected once")
        if len(self.read) >= MOST_FILES:
            raise ResourceExhaustedError(f"{place.file}:{place.line}: the robot has more than {MOST_FILES} files")
        self.read.append(path.resolve())
        try:
            text = load(path, self._left)
        except NotFoundError:
            raise place.fault(f"there is no file {quoted(path.name)} to include") from None
        return self._counted(text, shown_path(path))

    def _counted(self, text: str, name: str) -> Element:
        left = self._left
        document = parse(text, name, left)
        count, pending = len(document.comments), [document.root]
        while pending:
            count += 1
            pending += pending.pop().children
        self._left = replace(left, size=left.size - len(text), elements=max(left.elements - count, 0))
        return document.root


def spliced(
    root: Element, tag: str, find: Callable[[Element], Element], depth: int, dissolve: Callable[[Element], bool]
) -> None:
    """Puts what other files hold in the place of the elements that name them.

    Args:
        root: The tree, which is changed.
        tag: Of the elements that name a file.
        find: Such an element -> the root of that file.
        depth: How deep elements may be nested in the end.
        dissolve: Whether a file's root gives way to its children.

    Raises:
        ResourceExhaustedError: Nested deeper.
    """
    pending = [(root, 1)]
    while pending:
        element, level = pending.pop()
        if level > depth:
            raise ResourceExhaustedError(
                f"{element.file}:{element.line}: the robot description has elements nested more than {depth} deep, the "
                "most that is read"
            )
        waiting = element.children[::-1]
        kept: list[Element] = []
        while waiting:
            child = waiting.pop()
            if child.tag == tag:
                found = find(child)
                waiting += found.children[::-1] if dissolve(found) else [found]
            else:
                kept.append(child)
        element.children = kept
        pending += [(child, level + 1) for child in kept]

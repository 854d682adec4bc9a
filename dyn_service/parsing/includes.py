"""XML that is spread over several files: one tree of elements, each with the file and the line it stands in.

Only a robot that came as a file may have parts in other files, which are looked for beside it and are read as it is:
regular files of UTF-8 without entities, within the limits, which hold for all of them together. Text opens no file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from dyn_service.errors import (
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UrdfError,
)
from dyn_service.model.description import Note
from dyn_service.parsing.places import NoteKind, Place, quoted, shown_path
from dyn_service.parsing.xml_elements import Element, ReadLimits, load, parse

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
        repeated: Whether a file may be included several times, as long as it is not by way of itself.

    Attributes:
        notes: What was changed to read them.
        roots: The root element of each file by its name in errors.
    """

    def __init__(self, main: str | os.PathLike[str] | None, limits: ReadLimits, *, repeated: bool = False) -> None:
        self.main = None if main is None else Path(main)
        self._repeated = repeated
        self.notes: list[Note] = []
        self.roots: dict[str, Element] = {}
        self._paths: dict[str, str] = {}  # of files that were read: which one, by what faults call it
        self._above: dict[str, set[str]] = {}  # those that one is included by, directly or not
        self._count = 0
        self._left = replace(limits, elements=min(limits.elements, MOST_ELEMENTS))

    def root(self, text: str, name: str) -> Element:
        """The root element of the robot's text, which `name` stands for in faults."""
        self._own = name
        if self.main is not None:
            self._paths[name] = os.path.realpath(self.main)
            self._above[self._paths[name]] = set()
        return self._counted(text, name)

    def included(self, path: Path, place: Place) -> Element:
        """The root element of another file.

        Args:
            path: The file.
            place: Of what asks for it.

        Raises:
            UrdfError: It is asked for a second time, or is not there, is no file or may not be read, or is malformed.
            ResourceExhaustedError: There are too many, or too much is in them.
        """
        try:
            real = os.path.realpath(path)
            text = load(path, self._left)
        except NotFoundError:
            raise place.fault(f"there is no file {quoted(path.name)} to include") from None
        except UrdfError:
            raise  # of what is in it
        except (InvalidArgumentError, PermissionDeniedError, ValueError) as fault:
            raise place.fault(f"cannot include {quoted(path.name)}: {fault}") from None
        by = self._paths[place.file]
        above = self._above[by] | {by}
        if real in self._above and not self._repeated:
            raise place.fault(f"the file {quoted(path.name)} is included a second time, expected once")
        if real in above:
            raise place.fault(f"the file {quoted(path.name)} is included in itself, expected in others")
        self._count += 1
        if self._count >= MOST_FILES:
            raise ResourceExhaustedError(f"{place.file}:{place.line}: the robot has more than {MOST_FILES} files")
        name = shown_path(path)
        self._paths[name] = real
        self._above.setdefault(real, set()).update(above)
        return self._counted(text, name)

    def _counted(self, text: str, name: str) -> Element:
        left = self._left
        document = parse(text, name, left)
        self.roots[name] = document.root
        self.notes += document.notes(place_of(document.root, "", self._own))
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

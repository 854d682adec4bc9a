"""XML files that include others: one tree of elements, each with its file and line.

Only a robot read from a file may include files, which are found relative to it and read under the same rules: regular
files of UTF-8 without entities. The limits apply to all files together. Text opens no file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dyn_service.errors import (
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UrdfError,
)
from dyn_service.model.description import Note
from dyn_service.parsing.quantities import Place, quoted, shown_path
from dyn_service.parsing.xml_elements import Element, ReadLimits, load, parse

MOST_FILES = 100
"""Maximum number of files of a robot; real ones have up to ten."""


MOST_ELEMENTS = 50_000
"""Maximum number of elements of a robot; the largest known robots have 5000. Each takes up to 50 us."""


class Files:
    """The files of one robot.

    Args:
        main: The main file; None for text.
        limits: Limits for all files together.
        repeated: Whether a file may be included several times, but not by itself.

    Attributes:
        notes: Notes on changes that were needed to read the files.
        roots: The root element of each file by its name in errors.
    """

    def __init__(self, main: str | os.PathLike[str] | None, limits: ReadLimits, *, repeated: bool = False) -> None:
        self.main = None if main is None else Path(main)
        self._repeated = repeated
        self.notes: list[Note] = []
        self.roots: dict[str, Element] = {}
        self._paths: dict[str, str] = {}  # real path by name, of files that were read
        self._above: dict[str, set[str]] = {}  # the files that include a file, directly or indirectly
        self._count = 0
        self._left = replace(limits, elements=min(limits.elements, MOST_ELEMENTS))

    def root(self, text: str, name: str) -> Element:
        """Returns the root element of the main text; `name` is its name in errors."""
        self._own = name
        if self.main is not None:
            self._paths[name] = os.path.realpath(self.main)
            self._above[self._paths[name]] = set()
        return self._counted(text, name)

    def included(self, path: Path, place: Place) -> Element:
        """Returns the root element of an included file.

        Args:
            path: The file.
            place: The place of the include.

        Raises:
            UrdfError: The file is included twice, does not exist, cannot be read, or is malformed.
            ResourceExhaustedError: There are too many files or elements.
        """
        try:
            real = os.path.realpath(path)
            text = load(path, self._left)
        except NotFoundError:
            raise place.fault(f"there is no file {quoted(path.name)} to include") from None
        except UrdfError:
            raise  # an error in the included file
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
        self.notes += document.notes(document.root.at("", self._own))
        count, pending = len(document.comments), [document.root]
        while pending:
            count += 1
            pending += pending.pop().children
        self._left = replace(left, size=left.size - len(text), elements=max(left.elements - count, 0))
        return document.root


def spliced(
    root: Element, tag: str, find: Callable[[Element], Element], depth: int, dissolve: Callable[[Element], bool]
) -> None:
    """Replaces include elements by the content of their files.

    Args:
        root: The tree, changed in place.
        tag: The tag of include elements.
        find: Returns the root of the file that an include element names.
        depth: Maximum depth of nested elements.
        dissolve: Whether the children of a file's root are inserted instead of the root.

    Raises:
        ResourceExhaustedError: Elements are nested deeper.
    """
    pending = [(root, 1)]
    while pending:
        element, level = pending.pop()
        if level > depth:
            raise ResourceExhaustedError(
                f"{element.file}:{element.line}: the robot description has elements nested more than {depth} deep, the "
                "maximum"
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

"""What a reader of URDF does not read: counted by kind, and remembered where it may be why something else is missing.

Simulator extensions, safety controllers and the like are dropped, which is no news. Two sorts are doubted, for part of
the robot may have gone with them: names that are nearly those of something that is read (`<intertial>`), and what xacro
left unexpanded. Both are suspects: a fault in the same element, or in how links and joints fit together, names them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from dyn_service.model.description import Note
from dyn_service.parsing.places import NoteKind, Place, quoted, unused
from dyn_service.parsing.transmissions import TAG as TRANSMISSION
from dyn_service.parsing.xml_elements import Element
from dyn_service.support.suggestions import LIKENESS, closest

MOST_KINDS = 40
"""Kinds of unread things that have a note of their own; real robots have up to ten."""
MOST_COMPARED = 2000
"""Names that are compared with those that are read, a fifth of a second; real robots have some tens."""
ALIKE = 0.75
"""Likeness from which a tag is a misspelt one: `axes` is, `collision_checking` is an extension and no <collision>."""
LONGEST_TAG = 60
"""Characters of a tag that a note repeats."""
GEOMETRY = ("visual", "collision", "material")
"""Elements of URDF whose absence changes no motion, so that nothing is taken for a misspelt one of them; nor of
`<transmission>`, which simulators have of their own."""
XACRO = "xacro:"
DEFINITIONS = ("xacro:property", "xacro:arg", "xacro:macro")
"""Elements of xacro that by themselves stand for nothing."""


class _Kind(NamedTuple):
    """A kind of unread thing: the kind of its note, its noun, where it stands, and what may have been meant."""

    kind: NoteKind
    noun: str
    where: str
    hint: str = ""


class Unread:
    """What was not read so far.

    suspects: unread things of the present element that may be why something is missing, each as a clause.
    """

    def __init__(self) -> None:
        self.suspects: list[str] = []
        self._lines: dict[_Kind, list[int]] = {}
        self._compared: dict[tuple[str, tuple[str, ...], float], str | None] = {}

    def keep(self, element: Element, children: Collection[str], attributes: Collection[str]) -> None:
        """Notes what an element has beyond the children and attributes that its reader knows."""
        read = [tag for tag in children if tag not in (*GEOMETRY, TRANSMISSION)]
        for child in element.children:
            if child.tag not in children:
                self._add(self._unread_child(child, element, read), child.line)
        absent = [name for name in attributes if name not in element.attributes]
        for name in element.attributes:
            if name not in attributes and not name.startswith("xmlns"):
                # A name that is given as well cannot be the one that was meant: exporters write iyx beside ixy.
                meant = self._closest(name, absent)
                where = f"{quoted(name)} of <{element.tag}>"
                hint = f"; did you mean '{meant}'?" if meant else ""
                self._add(_Kind("doubted" if meant else "dropped", "attribute", where, hint), element.line)

    def notes(self, robot: Place) -> Iterator[Note]:
        """One note per kind, on the line of the first of its kind."""
        for (kind, noun, where, hint), lines in self._lines.items():
            yield Place(robot.file, robot.element, lines[0]).note(kind, unused(len(lines), noun, where) + hint)

    def _add(self, kind: _Kind, line: int) -> None:
        if kind.kind == "doubted":
            self.suspects.append(f"line {line}: {kind.noun} {kind.where} is not used{kind.hint}")
        if kind not in self._lines and len(self._lines) >= MOST_KINDS:
            kind = _Kind(kind.kind, "further item", "of other kinds")
        self._lines.setdefault(kind, []).append(line)

    def _unread_child(self, child: Element, parent: Element, read: Collection[str]) -> _Kind:
        noun, where = f"<{child.tag[:LONGEST_TAG]}> element", f"in <{parent.tag}>"
        if child.tag in DEFINITIONS:
            return _Kind("dropped", noun, where, "; xacro left it")
        if child.tag.startswith(XACRO):
            return _Kind("doubted", noun, where, "; what xacro makes of it is missing: run xacro first if it matters")
        meant = self._closest(child.tag, read, ALIKE)
        if meant is not None:
            return _Kind("doubted", noun, where, f"; did you mean <{meant}>?")
        return _Kind("dropped", noun, where)

    def _closest(self, name: str, known: Collection[str], likeness: float = LIKENESS) -> str | None:
        """As `closest`, once for each question; None for what comes after many of them."""
        key = (name, tuple(known), likeness)
        if key not in self._compared and len(self._compared) < MOST_COMPARED:
            self._compared[key] = closest(name, known, likeness)
        return self._compared.get(key)

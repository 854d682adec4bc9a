"""Writes unambiguous repairs into a robot's file: `dyn check --fix`.

Only the digits of the repaired numbers change: a power of ten moves the decimal point, so that all digits stay, and
layout and comments are untouched. The repaired text is read and checked before it replaces the file, in one step: a
repair that leaves its finding, or causes another one, is an error and nothing is written.

An edit is only of numbers that are each implausible: one wrong moment or mass of several leaves the right ones.
Nor are a joint's limits written if other numbers of it (velocity, soft limits, offset) may have the same unit.

An element is found by its name, in the robot's main file alone. A number that is not written at the element (a default
of MJCF, an included file) is left, and its finding is returned.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any
from xml.parsers import expat

from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, PermissionDeniedError
from dyn_service.model.description import Edit, Note
from dyn_service.parsing import xacro
from dyn_service.parsing.files import read_text, source_text
from dyn_service.parsing.linter import findings
from dyn_service.parsing.quantities import TURN, named, shown_path
from dyn_service.parsing.xml_elements import without_dashes
from dyn_service.support.files import replacement

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_ATTRIBUTE = re.compile(rb"""\s([^\s=]+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")
_MOMENTS = ("ixx", "ixy", "ixz", "iyy", "iyz", "izz")


@dataclass(frozen=True)
class _Target:
    """Where a quantity is: the path of tags from the link or joint, an attribute, or None for the element's text.

    index: of one of several numbers.
    """

    path: tuple[str, ...]
    attribute: str | None
    index: int | None = None


_IN_URDF = {
    "mass": [_Target(("inertial", "mass"), "value")],
    **{name: [_Target(("inertial", "inertia"), name)] for name in _MOMENTS},
    "inertia": [_Target(("inertial", "inertia"), name) for name in _MOMENTS],
    "range": [_Target(("limit",), "lower"), _Target(("limit",), "upper")],
    "other units": [
        _Target(("limit",), "velocity"),
        _Target(("mimic",), "offset"),
        *(_Target(("safety_controller",), f"soft_{bound}_limit") for bound in ("lower", "upper")),
    ],
    "rpy": [_Target(("origin",), "rpy")],
}
_IN_SDF = {
    "mass": [_Target(("inertial", "mass"), None)],
    **{name: [_Target(("inertial", "inertia", name), None)] for name in _MOMENTS},
    "inertia": [_Target(("inertial", "inertia", name), None) for name in _MOMENTS],
    "range": [_Target(("axis", "limit", "lower"), None), _Target(("axis", "limit", "upper"), None)],
    "other units": [
        _Target(("axis", "limit", "velocity"), None),
        *(_Target(("axis", "mimic", name), None) for name in ("offset", "reference")),
    ],
}
_IN_MJCF = {
    "mass": [_Target(("inertial",), "mass")],
    "inertia": [_Target(("inertial",), "diaginertia"), _Target(("inertial",), "fullinertia")],
    **{
        name: [_Target(("inertial",), "diaginertia", k), _Target(("inertial",), "fullinertia", k)]
        for k, name in enumerate(("ixx", "iyy", "izz"))
    },
    "range": [_Target((), "range")],
    "other units": [_Target((), "ref"), _Target((), "springref")],
}
_FORMATS = {
    "robot": (_IN_URDF, ("robot",), {"link": "link", "joint": "joint"}),
    "sdf": (_IN_SDF, ("model",), {"link": "link", "joint": "joint"}),
    "mujoco": (_IN_MJCF, ("body", "worldbody"), {"link": "body", "joint": "joint"}),
}
"""By root element: places of quantities, tags of the parents of links and joints, tags of links and joints."""


@dataclass
class _Node:
    """An element with the bytes of its start tag, and of its text up to the first child."""

    tag: str
    name: str
    start: int
    parent: _Node | None
    children: list[_Node] = field(default_factory=list)
    text_end: int = 0


@dataclass(frozen=True)
class Change:
    """Numbers that change: their line, element and rule, the attribute or tag, the old and the new text."""

    line: int
    element: str
    rule: str
    label: str
    old: str
    new: str


@dataclass(frozen=True)
class _Span:
    """Bytes of the file with their text, the link or joint, and the attribute or tag whose value they are."""

    start: int
    end: int
    text: str
    element: str
    label: str


def fix(path: Path, passes: Callable[[Note], bool] = lambda note: True) -> tuple[list[Change], list[Note]]:
    """Writes the repairs of a file's findings; returns the changes, by line, and the findings whose repair is known and
    cannot be written. passes: the filter of findings.

    Raises:
        InvalidArgumentError: It is a xacro file.
        FailedPreconditionError: A repair leaves its finding or causes another one.
        PermissionDeniedError: The file cannot be read, or is read-only.
        UrdfError, NotFoundError: The file cannot be read.
        OSError: The file cannot be written.
    """
    if path.suffix == xacro.SUFFIX:
        text = "--fix writes no xacro file, because its numbers are computed: repair the macro"
        raise InvalidArgumentError(f"{shown_path(path)}: {text}", path="fix")
    path = path.resolve()  # a link to the file stays a link
    source_text(path)  # refuses what is not a regular file of text
    mode = path.stat().st_mode & 0o7777
    if not mode & 0o222 or not os.access(path, os.W_OK):  # a rename needs no write permission of the file
        raise PermissionDeniedError(f"{shown_path(path)} is read-only: nothing is written")
    data = path.read_bytes()
    notes = [note for note in _checked(data, path) if note.edits and passes(note)]
    document, changes, unwritten = _Document(data), [], []
    spans: dict[_Span, str] = {}
    for note in notes:
        edits = document.edits(note.edits)
        if edits is None or spans.keys() & edits.keys():
            unwritten.append(note)
            continue
        spans |= edits
        for span, new in edits.items():
            line = data.count(b"\n", 0, span.start) + 1
            changes.append(Change(line, span.element, note.rule, span.label, span.text, new))
    if not spans:
        return [], unwritten
    for span in sorted(spans, key=lambda span: span.start, reverse=True):
        data = data[: span.start] + spans[span].encode() + data[span.end :]
    _verify(path, data, notes, unwritten)
    with replacement(path, mode) as file:
        file.write(data)
    return sorted(changes, key=lambda change: change.line), unwritten


def _checked(data: bytes, path: Path) -> list[Note]:
    description = read_text(data, source=shown_path(path), file=path)
    return findings(description.notes, description, path.parent)


def _verify(path: Path, data: bytes, notes: Sequence[Note], unwritten: Sequence[Note]) -> None:
    old = {(note.rule, note.element) for note in _checked(path.read_bytes(), path)}
    new = {(note.rule, note.element): note for note in _checked(data, path)}
    repaired = [note for note in notes if note not in unwritten]
    keys = {(note.rule, note.element) for note in repaired}
    # Units of the whole robot hide findings on single links, which count as new ones.
    remaining = [note for key, note in new.items() if key in keys or (note.rule and key not in old)]
    if remaining:
        first = f"{remaining[0].element}: {remaining[0].text}"
        text = f"the repaired file would have {len(remaining)} of these findings or new ones, the first {first}"
        raise FailedPreconditionError(f"{shown_path(path)}: {text}; nothing is written")


class _Document:
    """The elements of a file's bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._nodes: list[_Node] = []
        open_nodes: list[_Node] = []
        parser = expat.ParserCreate("utf-8")  # the readers ignore the declared encoding too

        def start(tag: str, attributes: dict[str, str]) -> None:
            parent = open_nodes[-1] if open_nodes else None
            node = _Node(tag, attributes.get("name", ""), parser.CurrentByteIndex + skipped, parent)
            if parent is not None:
                parent.children.append(node)
                parent.text_end = parent.text_end or node.start
            self._nodes.append(node)
            open_nodes.append(node)

        def end(_tag: str) -> None:
            node = open_nodes.pop()
            node.text_end = node.text_end or parser.CurrentByteIndex + skipped

        handlers: Any = parser
        handlers.StartElementHandler, handlers.EndElementHandler = start, end
        skipped = data.find(b"<")
        # The readers accept `--` inside comments; the replaced text has as many bytes.
        parser.Parse(without_dashes(data[skipped:].decode())[0].encode(), True)
        self._quantities, self._parents, self._tags = _FORMATS.get(self._nodes[0].tag, ({}, (), {}))

    def edits(self, edits: Iterable[Edit]) -> dict[_Span, str] | None:
        """Returns the new text of each span; None if one of the edits has no place in the file, or a number is not
        plain: with a comment or character reference inside.
        """
        changes: dict[_Span, str] = {}
        for edit in edits:
            spans = self._spans(edit)
            if not spans:
                return None
            for span, index in spans:
                if not all(map(_NUMBER.fullmatch, span.text.split())):
                    return None
                new = scaled(span.text, edit.factor, index)
                changes |= {span: new} if new != span.text else {}
        return changes or None

    def _spans(self, edit: Edit) -> list[tuple[_Span, int | None]]:
        tag, name = self._tags.get(edit.kind), edit.name.rpartition("::")[2]
        owners = [
            node
            for node in self._nodes
            if node.tag == tag and node.name == name and node.parent is not None and node.parent.tag in self._parents
        ]
        if len(owners) != 1:
            return []
        element = named(edit.kind, edit.name)
        companions = self._targets(owners[0], "other units", element) if edit.quantity == "range" else []
        if any(not _is_plausible(span) for span, _ in companions):
            return []
        return self._targets(owners[0], edit.quantity, element)

    def _targets(self, owner: _Node, quantity: str, element: str) -> list[tuple[_Span, int | None]]:
        spans = []
        for target in self._quantities.get(quantity, ()):
            nodes = [owner]
            for step in target.path:
                nodes = [child for node in nodes for child in node.children if child.tag == step]
            span = self._span(nodes[0], target.attribute, element) if len(nodes) == 1 else None
            if span is not None:
                spans.append((span, target.index))
        return spans

    def _span(self, node: _Node, attribute: str | None, element: str) -> _Span | None:
        # A `>` may be inside the quotes of an attribute.
        tag = re.compile(rb"""<(?:[^"'>]|"[^"]*"|'[^']*')*>""").match(self._data, node.start)
        assert tag is not None  # expat has read it
        if attribute is None:
            start, end = tag.end(), node.text_end
        else:
            values = {value[1]: value for value in _ATTRIBUTE.finditer(self._data, node.start, tag.end())}
            value = values.get(attribute.encode())
            if value is None:
                return None
            start, end = value.span(value.lastindex or 0)
        label = node.tag if attribute in (None, "value") else attribute
        return _Span(start, end, self._data[start:end].decode(), element, label)


def _is_plausible(span: _Span) -> bool:
    """Whether a number that has the unit of the joint's range is plausible in rad and m: 0, or less than a turn/s."""
    number = float(span.text) if _NUMBER.fullmatch(span.text.strip()) else math.inf
    return abs(number) < TURN if span.label == "velocity" else number == 0.0


def scaled(text: str, factor: float, index: int | None = None) -> str:
    """Returns a text with its numbers, or the one of an index, times `factor`. For a power of ten all digits stay."""
    items = re.split(r"(\s+)", text)
    numbers = [k for k, item in enumerate(items) if item.strip()]
    for k in numbers if index is None else numbers[index : index + 1]:
        items[k] = _scaled_number(items[k], factor)
    return "".join(items)


def _scaled_number(text: str, factor: float) -> str:
    number, exponent = Decimal(text), round(math.log10(factor))
    if not number:
        return text
    if not math.isclose(factor, 10.0**exponent, rel_tol=1e-12):
        return f"{float(number) * factor:.10g}"
    mantissa, letter, power = text.replace("E", "e").partition("e")
    return f"{mantissa}e{int(power) + exponent}" if letter else f"{number.scaleb(exponent):f}"


__all__ = ["Change", "fix", "scaled"]

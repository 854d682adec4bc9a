"""Parses XML text to elements with line numbers. No network, no other files, no entities, no error recovery.

The parser is expat with defusedxml's guards. Document type declarations are refused, and with them all entities.
Processing instructions are skipped, the start of an element's text is kept, for SDFormat. Comments are kept, for notes
on content that is commented out. Prefixes are part of names and need no declaration.

`IgnoredContent` collects what a reader of URDF ignores. Simulator extensions and the like are dropped with a note.
Names that resemble known ones (`<intertial>`), and what xacro left unexpanded, are warnings. A later error in the same
element mentions them.

**Files that include others** become one tree of elements, each with its file and line. Only a robot read from a file
may include files, which are found relative to it and read under the same rules. Limits apply to all files together.

Cost: one pass, time and memory linear in the text, both bounded by `ReadLimits`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple
from xml.sax import SAXParseException
from xml.sax.handler import ContentHandler, LexicalHandler, property_lexical_handler
from xml.sax.xmlreader import AttributesImpl

import numpy as np
from defusedxml.common import DefusedXmlException  # type: ignore[import-untyped, unused-ignore]
from defusedxml.expatreader import create_parser  # type: ignore[import-untyped, unused-ignore]

from dyn_service.errors import (
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UrdfError,
)
from dyn_service.model.arrays import Vector
from dyn_service.model.description import Note, NoteKind
from dyn_service.parsing import quantities
from dyn_service.parsing.quantities import Elsewhere, Place, quoted, shown_path, unused
from dyn_service.support import shipped
from dyn_service.support.suggestions import LIKENESS, closest

BEFORE_XML = "\ufeff \t\r\n"
"""A byte order mark and whitespace, allowed before the first `<`."""


@dataclass(frozen=True)
class ReadLimits:
    """Limits of a description. The largest known robots have 0.2 MB, 4000 elements, 130 links.

    size: bytes of text. elements: total number, with comments. depth: of nested elements. attributes: per element.
    links, joints: of the robot.
    """

    size: int = 16 * 2**20
    elements: int = 200_000
    depth: int = 64
    attributes: int = 64
    links: int = 10_000
    joints: int = 10_000

    def check(self, kind: Literal["links", "joints"], count: int, source: str) -> None:
        """Checks the number of links or joints of a robot."""
        maximum = self.links if kind == "links" else self.joints
        if count > maximum:
            raise ResourceExhaustedError(f"{source}: the robot has more than the {maximum} {kind} allowed")


LONGEST_TEXT = 200
"""Maximum number of characters of an element's text that are kept: numbers, flags and names fit."""


@dataclass(slots=True)
class Element:
    """An XML element: its tag as written (with prefix), attributes, 1-based line, children in order, the start of its
    text, and its file. The methods that read numbers and words raise `UrdfError` with the element's place.

    place: for errors and notes; set when a reader comes to the element, by `at` or by its parent's `child`.
    """

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)
    text: str = ""
    file: str = ""
    place: Place = field(default=Place(""), compare=False)

    def at(self, label: str, main: str) -> Place:
        """Sets the place to this line, with the description `label`; `main` is the name of the robot's main file."""
        self.place = (Place if self.file == main else Elsewhere)(self.file, label, self.line)
        return self.place

    def all(self, tag: str) -> list[Element]:
        """Returns the children with a tag."""
        return [child for child in self.children if child.tag == tag]

    def child(self, tag: str, notes: list[Note] | None = None) -> Element | None:
        """Returns the only child with a tag, with its place inside this element, or None.

        Raises `UrdfError` for several children, unless all are equal and `notes` is given; then it adds a note.
        """
        children = self.all(tag)
        if not children:
            return None
        first, *repeats = children
        if repeats:
            repeat_place = Place(repeats[0].file, self.place.element, repeats[0].line)
            count_text = f"there are {len(children)} <{tag}> elements"
            if notes is None or any(other.content != first.content for other in repeats):
                raise repeat_place.fault(f"{count_text}, the first on line {first.line}, expected one")
            text = f"{count_text} with the same content, the first on line {first.line}"
            notes.append(repeat_place.note("dropped", text))
        first.place = self.place.inside(tag, first.line)
        return first

    @property
    def content(self) -> tuple[object, ...]:
        """The attributes independent of their notation: `1.0` equals `1`. Children are compared by identity."""
        values = {name: quantities.reading(text) for name, text in self.attributes.items()}
        return (values, [id(child) for child in self.children])

    def attribute(self, name: str) -> str:
        """Returns an attribute, which must exist."""
        if name not in self.attributes:
            raise self.place.fault(f"the attribute '{name}' is missing")
        return self.attributes[name]

    def name(self, attribute: str = "name") -> str:
        """Returns an attribute that is a name."""
        return quantities.name(self.attribute(attribute), self.place)

    def numbers(self, name: str, count: int) -> Vector:
        """Returns the numbers of an attribute, (count,)."""
        return quantities.decimals(self.attribute(name), count, name, self.place)

    def number(self, name: str, default: float | None = None) -> float:
        """Returns the number of an attribute, or the default; without a default the attribute must exist."""
        if default is not None and name not in self.attributes:
            return default
        return float(self.numbers(name, 1)[0])

    def word(self, tag: str = "", default: str = "") -> str:
        """Returns the text of the child with a tag, or the default; for no tag, that of the element itself."""
        element = self.child(tag) if tag else self
        if element is None:
            return default
        if len(element.text) >= LONGEST_TEXT:
            text = f"<{element.tag}> has {LONGEST_TEXT} characters or more, expected numbers or a word"
            raise element.place.fault(text)
        return element.text.strip()

    def flag(self, tag: str, default: bool) -> bool:
        """Returns the boolean in a child's text: true, false, 1 or 0."""
        word = self.word(tag, str(default)).lower()
        if word not in ("true", "false", "1", "0"):
            raise self.place.fault(f"<{tag}>: expected true or false, found {quoted(word)}")
        return word in ("true", "1")

    def inner_numbers(self, tag: str, default: Sequence[float]) -> Vector:
        """Returns the numbers in a child's text, as many as the default has."""
        element = self.child(tag)
        if element is None:
            return np.array(default, dtype=np.float64)
        return quantities.decimals(element.word(), len(default), tag, element.place)

    def inner_number(self, tag: str, default: float) -> float:
        """Returns the number in a child's text."""
        return float(self.inner_numbers(tag, (default,))[0])


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment: its text and first line."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed text: its root element, and its comments in order. dashes: the line of the first comment with `--` in
    it, which XML does not allow and other parsers accept; 0 if no comment has it.
    """

    root: Element
    comments: tuple[Comment, ...]
    dashes: int = 0

    def notes(self, place: Place) -> list[Note]:
        """Returns notes on changes that were needed to read it; `place`: its root element."""
        text = "'--' inside a comment, which XML does not allow: read as if it were blanks"
        return [replace(place, element="comment", line=self.dashes).note("changed", text)] if self.dashes else []


def load(path: str | os.PathLike[str], limits: ReadLimits) -> str:
    """Returns the text of a regular file within the size limit, without a byte order mark.

    Raises:
        NotFoundError: The file does not exist.
        InvalidArgumentError: It is a directory or a device, or its path is malformed.
        PermissionDeniedError: It cannot be read.
        ResourceExhaustedError: It is too large.
        UrdfError: It is empty or not UTF-8.
    """
    name = shown_path(path)
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise InvalidArgumentError(f"{name} is a directory; expected a robot's file")
        # Opening a pipe or device may block, and reading one may never end.
        if not stat.S_ISREG(status.st_mode):
            raise InvalidArgumentError(f"{name} is not a regular file; expected a robot's file")
        _hold_size(status.st_size, name, limits)
        with Path(path).open("rb") as file:
            # One byte more than allowed shows a file that has grown since `stat`.
            data = file.read(limits.size + 1)
    except FileNotFoundError:
        raise NotFoundError(f"the file {name} does not exist{shipped.how_to_find(name)}") from None
    except PermissionError:
        raise PermissionDeniedError(f"the file {name} may not be read: permission denied") from None
    except (OSError, ValueError) as fault:
        if isinstance(fault, InvalidArgumentError):
            raise
        reason = fault.strerror if isinstance(fault, OSError) else str(fault)
        raise InvalidArgumentError(f"the file {name[:200]!r} cannot be opened: {reason}") from None
    return decode(data, name, limits)


def decode(data: bytes, file: str, limits: ReadLimits) -> str:
    """Decodes bytes as UTF-8, independent of the encoding in the XML declaration."""
    _hold_size(len(data), file, limits)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        line = data.count(b"\n", 0, fault.start) + 1
        hint = ", the text looks like UTF-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        message = f"expected UTF-8 text, found the byte 0x{data[fault.start]:02x}{hint}"
        raise Place(file, line=line).fault(message) from None


def parse(text: str, file: str, limits: ReadLimits) -> Document:
    """Parses an XML text. Whitespace before it is skipped, because text in triple quotes starts with a newline.

    Raises:
        UrdfError: Empty, malformed, or with a document type declaration; `line` is where it was detected.
        ResourceExhaustedError: A limit is exceeded.
    """
    body = text.lstrip(BEFORE_XML)
    skipped = text[: len(text) - len(body)].count("\n")
    if not body:
        raise Place(file).fault("there is no text, expected an XML document")
    # Before encoding too, which would copy a text that is refused anyway.
    _hold_size(len(text), file, limits)
    try:
        _hold_size(len(text.encode()), file, limits)
    except UnicodeEncodeError as fault:
        line = text.count("\n", 0, fault.start) + 1
        message = f"expected text, found the lone surrogate U+{ord(text[fault.start]):04X}"
        raise Place(file, line=line).fault(message) from None

    # A few lines of entities expand to gigabytes, and external ones read files of this machine.
    parser = create_parser(forbid_dtd=True, forbid_entities=True, forbid_external=True)
    builder = _Builder(file, lambda: int(parser.getLineNumber()) + skipped, limits)
    parser.setContentHandler(builder)
    parser.setProperty(property_lexical_handler, builder)
    try:
        parser.feed(body)
        parser.close()
    except SAXParseException as fault:
        repaired, first = without_dashes(body)
        if first:
            return replace(parse(text[: len(text) - len(body)] + repaired, file, limits), dashes=first + skipped)
        line = (fault.getLineNumber() or 1) + skipped
        column = (fault.getColumnNumber() or 0) + 1
        open_tag = ""
        if builder.open:
            open_tag = f"; <{builder.open[-1].tag[:40]}> of line {builder.open[-1].line} is still open"
        # expat's message for a text that ends too early would read as if it were empty.
        cause = "the text ends early" if builder.open and "no element" in fault.getMessage() else fault.getMessage()
        raise Place(file, line=line).fault(f"malformed XML: {cause}, column {column}{open_tag}") from None
    except DefusedXmlException:
        text = "found a document type declaration (<!DOCTYPE>), expected none"
        raise Place(file, line=builder.line()).fault(text) from None
    if builder.root is None:
        raise Place(file).fault("malformed XML: no element found")
    return Document(builder.root, tuple(builder.comments))


def without_dashes(text: str) -> tuple[str, int]:
    """Returns the text with blanks for `--` inside comments, and the line of the first such comment, or 0."""
    parts, first, position = [], 0, 0
    while (start := text.find("<!--", position)) >= 0 and (end := text.find("-->", start + 4)) >= 0:
        content = text[start + 4 : end]
        if "--" in content or content.endswith("-"):
            first = first or text.count("\n", 0, start) + 1
            # As many characters as before, so that the columns of later errors stay right.
            content = content.replace("--", "  ").removesuffix("-").ljust(len(content))
        parts += [text[position : start + 4], content]
        position = end
    return "".join([*parts, text[position:]]), first


class _Builder(ContentHandler, LexicalHandler):
    """Collects the elements and comments that the parser reports."""

    def __init__(self, file: str, line: Callable[[], int], limits: ReadLimits) -> None:
        super().__init__()
        self.root: Element | None = None
        self.open: list[Element] = []
        self.comments: list[Comment] = []
        self.line = line
        self._file = file
        self._limits = limits
        self._count = 0

    def startElement(self, name: str, attrs: AttributesImpl) -> None:
        line = self._counted()
        if len(self.open) >= self._limits.depth:
            raise _too_much(f"{self._file}:{line}", f"elements nested more than {self._limits.depth} deep")
        if len(attrs) > self._limits.attributes:
            raise _too_much(f"{self._file}:{line}", f"an element of more than {self._limits.attributes} attributes")
        element = Element(name, dict(attrs), line, file=self._file)
        if self.open:
            self.open[-1].children.append(element)
        else:
            self.root = element
        self.open.append(element)

    def endElement(self, name: str) -> None:
        self.open.pop()

    def characters(self, content: str) -> None:
        if self.open and len(self.open[-1].text) < LONGEST_TEXT:
            self.open[-1].text += content[:LONGEST_TEXT]

    def comment(self, content: str) -> None:
        line = self._counted()
        self.comments.append(Comment(content, line))

    def _counted(self) -> int:
        """Counts an element or comment and returns its line."""
        line = self.line()
        self._count += 1
        if self._count > self._limits.elements:
            raise _too_much(f"{self._file}:{line}", f"more than {self._limits.elements} elements")
        return line


def _hold_size(size: int, file: str, limits: ReadLimits) -> None:
    if size > limits.size:
        raise _too_much(file, f"more than {limits.size} bytes of text")


def _too_much(place: str, excess: str) -> ResourceExhaustedError:
    return ResourceExhaustedError(f"{place}: the robot description has {excess}, the maximum")


MAX_KINDS = 40
"""Maximum number of kinds of ignored content with a note; real robots have up to ten."""
MAX_COMPARED = 2000
"""Maximum number of names that are compared with known ones (0.2 s); real robots have some tens."""
ALIKE = 0.75
"""Similarity from which a tag counts as misspelt: `axes` does, `collision_checking` does not."""
LONGEST_TAG = 60
"""Maximum number of characters of a tag in a note."""
GEOMETRY = ("visual", "collision", "material")
"""Elements without influence on motion; other tags are not taken for misspelt ones of these, nor of `<transmission>`,
which simulators also use."""
BALL = "drake:ball_constraint"
CONSTRAINTS = (BALL, "drake:tendon_constraint", "loop_joint", "constraint")
"""Elements by which simulators close loops of links."""
IGNORED = "closes a loop: it is ignored"
XACRO = "xacro:"
DEFINITIONS = ("xacro:property", "xacro:arg", "xacro:macro")
"""xacro elements that produce nothing by themselves."""


class _Kind(NamedTuple):
    kind: NoteKind
    noun: str
    location: str
    hint: str = ""


def constraints(robot: Element) -> list[Element]:
    """Returns the elements in a robot that close loops, and the joints between links that a URDF's `<gazebo>` adds."""
    joints = [joint for gazebo in robot.all("gazebo") for joint in gazebo.all("joint")]
    between_links = (joint for joint in joints if joint.word("parent") not in ("", "world"))
    return [*(child for child in robot.children if child.tag in CONSTRAINTS), *between_links]


class IgnoredContent:
    """Content ignored so far.

    suspects: ignored content of the current element that may explain a missing value, each as a clause.
    """

    def __init__(self) -> None:
        self.suspects: list[str] = []
        self._lines: dict[_Kind, list[int]] = {}
        self._compared: dict[tuple[str, tuple[str, ...], float], str | None] = {}

    def keep(self, element: Element, children: Collection[str], attributes: Collection[str]) -> None:
        """Records children and attributes of an element that its reader does not know."""
        read = [tag for tag in children if tag not in (*GEOMETRY, "transmission")]
        for child in element.children:
            if child.tag not in children:
                self._add(self._ignored_child(child, element, read), child.line)
        absent = [name for name in attributes if name not in element.attributes]
        for name in element.attributes:
            if name not in attributes and not name.startswith("xmlns"):
                # A name that is also present cannot have been meant: exporters write iyx next to ixy.
                # A prefix marks an extension, such as `drake:acceleration`, not a misspelt name.
                similar = None if ":" in name else self._closest(name, absent)
                location = f"{quoted(name)} of <{element.tag}>"
                hint = f"; did you mean '{similar}'?" if similar else ""
                self._add(_Kind("warning" if similar else "dropped", "attribute", location, hint), element.line)

    def notes(self, robot: Place) -> Iterator[Note]:
        """Returns one note per kind, on the line of its first occurrence."""
        for (kind, noun, location, hint), lines in self._lines.items():
            place, text = Place(robot.file, robot.element, lines[0]), unused(len(lines), noun, location) + hint
            rule = "unexpanded-xacro" if noun.startswith(f"<{XACRO}") else "misspelt-name"
            yield place.warning(rule, text) if kind == "warning" else place.note(kind, text)

    def _add(self, kind: _Kind, line: int) -> None:
        if kind.kind == "warning":
            self.suspects.append(f"line {line}: {kind.noun} {kind.location} is not used{kind.hint}")
        # Anybody can send a file with thousands of tags, and every note is a line of a report.
        if kind not in self._lines and len(self._lines) >= MAX_KINDS:
            kind = _Kind(kind.kind, "further item", "of other kinds")
        self._lines.setdefault(kind, []).append(line)

    def _ignored_child(self, child: Element, parent: Element, read: Collection[str]) -> _Kind:
        noun, location = f"<{child.tag[:LONGEST_TAG]}> element", f"in <{parent.tag}>"
        if child.tag in DEFINITIONS:
            return _Kind("dropped", noun, location, "; left over from xacro")
        if child.tag.startswith(XACRO):
            return _Kind("warning", noun, location, "; it is not expanded: run xacro first if the robot needs it")
        similar = self._closest(child.tag, read, ALIKE)
        if similar is not None:
            return _Kind("warning", noun, location, f"; did you mean <{similar}>?")
        return _Kind("dropped", noun, location)

    def _closest(self, name: str, candidates: Collection[str], likeness: float = LIKENESS) -> str | None:
        """As `closest`, with a cache; None after too many names."""
        key = (name, tuple(candidates), likeness)
        if key not in self._compared and len(self._compared) < MAX_COMPARED:
            self._compared[key] = closest(name, candidates, likeness)
        return self._compared.get(key)


MAX_FILES = 100
"""Maximum number of files of a robot; real ones have up to ten."""

MAX_ELEMENTS = 50_000
"""Maximum number of elements of a robot; the largest known robots have 5000. Each takes up to 50 us."""


class Files:
    """The files of one robot; `main` is None for text, `limits` are for all files together. `repeated` allows a file to
    be included several times; a file that includes itself is always an error.

    notes: on changes that were needed to read the files. roots: the root element of each file by its name in errors.
    """

    def __init__(self, main: str | os.PathLike[str] | None, limits: ReadLimits, *, repeated: bool = False) -> None:
        self.main = None if main is None else Path(main)
        self._repeated = repeated
        self.notes: list[Note] = []
        self.roots: dict[str, Element] = {}
        self._paths: dict[str, str] = {}  # real path by name, of files that were read
        self._ancestors: dict[str, set[str]] = {}  # the files that include a file, directly or indirectly
        self._count = 0
        self._remaining = replace(limits, elements=min(limits.elements, MAX_ELEMENTS))

    def root(self, text: str, name: str) -> Element:
        """Returns the root element of the main text; `name` is its name in errors."""
        self._own = name
        if self.main is not None:
            self._paths[name] = os.path.realpath(self.main)
            self._ancestors[self._paths[name]] = set()
        return self._counted(text, name)

    def check_main(self, target: str, place: Place) -> None:
        """Checks that there is a main file; `target`: what the element at `place` includes."""
        if self.main is None:
            remedy = "read the robot from its file, or convert it with dyn convert"
            raise place.fault(f"includes {target}, but a robot given as text cannot open files: {remedy}")

    def included(self, path: Path, place: Place) -> Element:
        """Returns the root element of an included file.

        Raises:
            UrdfError: The file is included twice, does not exist, cannot be read, or is malformed.
            ResourceExhaustedError: There are too many files or elements.
        """
        try:
            real = os.path.realpath(path)
            text = load(path, self._remaining)
        except NotFoundError:
            raise place.fault(f"there is no file {quoted(path.name)} to include") from None
        except UrdfError:
            raise  # an error in the included file
        except (InvalidArgumentError, PermissionDeniedError, ValueError) as fault:
            raise place.fault(f"cannot include {quoted(path.name)}: {fault}") from None
        includer = self._paths[place.file]
        ancestors = self._ancestors[includer] | {includer}
        if real in self._ancestors and not self._repeated:
            raise place.fault(f"the file {quoted(path.name)} is included a second time, expected once")
        if real in ancestors:
            raise place.fault(f"the file {quoted(path.name)} is included in itself, expected in others")
        self._count += 1
        if self._count >= MAX_FILES:
            raise ResourceExhaustedError(f"{place.file}:{place.line}: the robot has more than {MAX_FILES} files")
        name = shown_path(path)
        self._paths[name] = real
        self._ancestors.setdefault(real, set()).update(ancestors)
        return self._counted(text, name)

    def _counted(self, text: str, name: str) -> Element:
        left = self._remaining
        document = parse(text, name, left)
        self.roots[name] = document.root
        self.notes += document.notes(document.root.at("", self._own))
        count, pending = len(document.comments), [document.root]
        while pending:
            count += 1
            pending += pending.pop().children
        self._remaining = replace(left, size=left.size - len(text), elements=max(left.elements - count, 0))
        return document.root


def spliced(
    root: Element, tag: str, find: Callable[[Element], Element], depth: int, dissolve: Callable[[Element], bool]
) -> None:
    """Replaces the elements `tag` of a tree, in place, by what `find` returns for them: the root of another file, or
    its children if `dissolve` says so. `depth`: of nested elements at most.

    Raises:
        ResourceExhaustedError: Elements are nested deeper.
    """
    pending = [(root, 1)]
    while pending:
        element, level = pending.pop()
        if level > depth:
            raise _too_much(f"{element.file}:{element.line}", f"elements nested more than {depth} deep")
        waiting = element.children[::-1]
        children: list[Element] = []
        while waiting:
            child = waiting.pop()
            if child.tag == tag:
                included = find(child)
                # Onto the stack again, because an included file may include further ones.
                waiting += included.children[::-1] if dissolve(included) else [included]
            else:
                children.append(child)
        element.children = children
        pending += [(child, level + 1) for child in children]

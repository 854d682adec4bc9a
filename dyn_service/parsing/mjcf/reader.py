"""MJCF -> `Description`: the tree of `<worldbody>`, with the numbers of MuJoCo's own compiler.

    link `world`          the root, without mass; bodies are links, their frames MuJoCo's body frames
    several joints        of one body are joints one after the other, with links without mass between them
    positions, velocities as MuJoCo has them, `ref` included, except where `conventions.to_mujoco` turns around
    names                 of what has none: `body_3`, `joint_2`, by MuJoCo's own numbers

What is read and does not act (tendons, most equalities, actuators, gravity compensation, ..) has a note each,
`reported`; what changes no motion (looks, contacts, sensors, ..) is counted as `dropped`. What would make further
bodies or joints and is not read (`<attach>`, `<composite>`, `<flexcomp>`) is refused.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dyn_service.errors import DynError, ResourceExhaustedError
from dyn_service.model.arrays import Vector
from dyn_service.model.description import Description, Inertial, Joint, Link, Note, Shape
from dyn_service.parsing import quantities
from dyn_service.parsing.joint_chains import Names, check_finite, hung
from dyn_service.parsing.mjcf import inertials
from dyn_service.parsing.mjcf.joints import Joints, Rest
from dyn_service.parsing.mjcf.values import ORIENTATIONS, Classes, Settings, Values
from dyn_service.parsing.pose import Pose
from dyn_service.parsing.quantities import Faults, Place, counted, named, quoted
from dyn_service.parsing.shapes import Mesh, Meshes
from dyn_service.parsing.structure import WORLD, assemble
from dyn_service.parsing.writing.text import numbers
from dyn_service.parsing.xml_elements import MAX_ELEMENTS, Element, Files, ReadLimits, Unread, spliced

REPLICATE = "replicate"
ROOTS = ("mujoco", "mujocoinclude")
NO_NAME = "MuJoCo Model"
"""MuJoCo's name of a model without a name."""

DEPTH = 1000
"""Maximum nesting of elements: bodies are nested, and chains are long."""

SECTIONS = (
    "compiler", "option", "size", "statistic", "visual", "default", "custom", "extension", "asset", "worldbody",
    "deformable", "contact", "tendon", "equality", "actuator", "sensor", "keyframe",
)  # fmt: skip

_MAKING = ("attach", "composite", "flexcomp")

_BODY = ("name", "childclass", "mocap", "pos", *ORIENTATIONS, "gravcomp", "sleep", "simple", "fuse", "user")
_INSIDE = (
    "inertial", "joint", "freejoint", "geom", "site", "camera", "light", "body", "frame", "plugin", REPLICATE,
    *_MAKING,
)  # fmt: skip
_COMPILER = (
    "autolimits", "boundmass", "boundinertia", "settotalmass", "balanceinertia", "strippath", "coordinate", "angle",
    "fitaabb", "eulerseq", "meshdir", "texturedir", "assetdir", "discardvisual", "usethread", "fusestatic",
    "inertiafromgeom", "alignfree", "inertiagrouprange", "saveinertial", "savecompiled", "savecanonical", "conflict",
    "passthrough", "exactmeshinertia", "convexhull",
)  # fmt: skip


@dataclass
class _Body:
    """A body with the shapes and joints of its frames, each with its class.

    at: on its parent. moves: whether it or one it hangs on has a joint. pos: as written.
    """

    name: str
    place: Place
    parent: str
    at: Pose
    moves: bool
    line: int = 0
    inertial: tuple[Element, Pose] | None = None
    pos: Vector = field(default_factory=lambda: np.zeros(3))
    geoms: list[tuple[Element, str | None, Pose]] = field(default_factory=list)
    joints: list[tuple[Element, str | None, Pose]] = field(default_factory=list)


class _Pending(NamedTuple):
    """A body that is still to be read: where its frame stands, on what, with which class around it."""

    element: Element
    parent: str
    frame: Pose
    childclass: str | None
    moves: bool


def read(text: str, source: str, file: Path | None, limits: ReadLimits) -> Description:
    """Reads a robot from a file or a text of MJCF.

    source: its name in errors. file: the file of the text, for relative paths of includes; None: there is no file.

    Raises:
        UrdfError: It is malformed, or has what cannot be carried; names file, line and element.
        ResourceExhaustedError: It is larger than the limits.

    Checked by:
        tests/parsing/test_mjcf.py, tests/parsing/test_mjcf_faults.py
    """
    deep = replace(limits, depth=max(limits.depth, DEPTH))
    files = Files(file, deep)
    root = files.root(text, source)
    spliced(root, "include", lambda element: _include(element, files), deep.depth, lambda found: found.tag in ROOTS)
    return _Reader(root, source, limits, files).robot()


def _include(element: Element, files: Files) -> Element:
    place = element.at("include", element.file)
    name = element.attributes.get("file", "")
    if not name:
        raise place.fault("the attribute 'file' is missing")
    files.check_main(f"the file {quoted(name)}", place)
    assert files.main is not None
    # MuJoCo looks from the main file's folder; nested ones, from their own first.
    folders = dict.fromkeys((Path(element.file).parent, files.main.parent))
    paths = [folder / name for folder in folders]
    found = files.included(next(filter(os.path.isfile, paths), paths[-1]), place)
    if found.tag not in ROOTS:
        raise Place(found.file, line=found.line).fault(f"the root element is {quoted(found.tag)}, expected <mujoco>")
    return found


class _Reader:
    """Reads one robot; holds its notes."""

    def __init__(self, root: Element, source: str, limits: ReadLimits, files: Files) -> None:
        self._root, self._source, self._limits, self._notes = root, source, limits, files.notes
        self._folder = None if files.main is None else files.main.parent
        self._unread = Unread()
        self._classes = Classes([], Settings())
        self._bodies: list[_Body] = []
        self._names = Names(())
        self._faults = Faults()

    def robot(self) -> Description:
        root = self._root
        place = Place(self._source, "mujoco", root.line)
        self._unread.keep(root, SECTIONS, ("model",))
        text = root.attributes.get("model", "")
        if not text.strip():
            self._notes.append(place.note("defaulted", f"no name: {quoted(NO_NAME)} is used"))
        name = quantities.name(text if text.strip() else NO_NAME, place)
        place = Place(self._source, named("robot", name), root.line)
        self._classes = Classes(root.all("default"), self._compiler(place))
        _expand(root, self._classes, self._source, min(self._limits.elements, MAX_ELEMENTS))
        self._meshes = self._assets()
        if not root.all("worldbody"):
            raise place.fault("there is no <worldbody>, expected one")
        with np.errstate(all="ignore"):  # what that leaves is refused below
            self._gather()
            reads = Joints(self._classes, self._unread, self._notes, self._source)
            links, joints = self._tree(place, reads)
            rest = Rest(root, self._classes, self._source, reads.zeros)
            joints = rest.applied(joints)
            self._notes += rest.notes(place)
        check_finite(links, joints, self._source)
        self._notes += self._unread.notes(place)
        return replace(assemble(name, links, joints, self._notes, place), gravity=rest.gravity)

    # What is written, body by body.

    def _gather(self) -> None:
        """Reads each body with its elements, in MuJoCo's order, from 1."""
        self._bodies = [_Body(WORLD, Place(self._source, "worldbody"), "", Pose(), moves=False)]
        self._names = Names(self._given("body"))
        for section in self._root.all("worldbody"):
            self._unread.keep(section, _INSIDE, ())
            stack = self._contents(_Pending(section, "", Pose(), None, False), self._bodies[0])[::-1]
            while stack:
                pending = stack.pop()
                with self._faults.kept():
                    body = self._body(pending)
                    stack += self._contents(pending._replace(parent=body.name, moves=body.moves), body)[::-1]
                    self._bodies.append(body)
                self._limits.check("links", len(self._bodies), self._source)
        self._faults.check()

    def _body(self, pending: _Pending) -> _Body:
        element = pending.element
        number = len(self._bodies)
        place = self._place(element, "body")
        self._unread.suspects = []
        self._unread.keep(element, _INSIDE, _BODY)
        name = quantities.name(element.attributes.get("name", "") or self._names.new(f"body_{number}"), place)
        place = self._place(element, named("link", name))
        values = self._classes.plain(element)
        moves = pending.moves or any(child.tag in ("joint", "freejoint") for child in _all_of(element))
        if values.flag("mocap", False):
            self._notes.append(place.note("reported", "a mocap body: read as one that does not move"))
        if values.number("gravcomp", 0.0):
            text = f"gravcomp {values.number('gravcomp', 0.0):g}: ignored; full gravity acts on the body"
            self._notes.append(place.note("reported", text))
        at = values.pose()
        return _Body(name, place, pending.parent, pending.frame @ at, moves, element.line, pos=at.origin)

    def _contents(self, pending: _Pending, body: _Body) -> list[_Pending]:
        """Adds the elements of a body and its frames to `body`; returns the nested bodies."""
        inner: list[_Pending] = []
        around = self._childclass(pending.element, pending.childclass, body.place)
        stack = [(iter(pending.element.children), Pose(), around)]
        while stack:
            children, frame, around = stack[-1]
            child = next(children, None)
            if child is None:
                stack.pop()
                continue
            place = self._place(child, f"{body.place.element} {child.tag}")
            if child.tag == "frame":
                self._unread.keep(child, _INSIDE, ("name", "childclass", "pos", *ORIENTATIONS, "scale"))
                values = self._classes.plain(child)
                scale = values.numbers("scale", 1, 3)
                if scale is not None and (scale != 1.0).any():
                    raise place.fault("attribute 'scale' is not supported, expected a frame without it")
                stack.append((iter(child.children), frame @ values.pose(), self._childclass(child, around, place)))
            elif child.tag == "body":
                inner.append(_Pending(child, body.name, frame, around, body.moves))
            elif child.tag in _MAKING:
                raise place.fault(
                    f"<{child.tag}> generates bodies or joints, which is not supported: save the compiled model with "
                    "MuJoCo and read that file"
                )
            elif child.tag == "inertial" and body.parent:
                if body.inertial is not None:
                    raise place.fault(f"a second <inertial>, the first on line {body.inertial[0].line}, expected one")
                body.inertial = (child, frame)
            elif child.tag == "geom":
                body.geoms.append((child, around, frame))
            elif child.tag in ("joint", "freejoint", "inertial"):
                if not body.parent:
                    raise place.fault(f"<{child.tag}> in <worldbody>, expected it in a <body>")
                body.joints.append((child, around, frame))
            elif child.tag == "plugin":
                self._notes.append(place.note("reported", "ignored: plugins are not supported"))
        return inner

    def _given(self, *tags: str) -> Iterator[str]:
        pending = self._root.all("worldbody")
        while pending:
            element = pending.pop()
            if element.tag in tags and "name" in element.attributes:
                yield element.attributes["name"]
            pending += element.children

    def _childclass(self, element: Element, around: str | None, place: Place) -> str | None:
        name = element.attributes.get("childclass", around)
        return None if name is None else self._classes.check(name, place)

    # Links and joints.

    def _tree(self, robot: Place, reads: Joints) -> tuple[list[Link], list[Joint]]:
        weights = self._weights(robot)
        links, joints = [Link(WORLD, shapes=tuple(self._shapes(self._bodies[0])))], []
        link_names = Names(body.name for body in self._bodies)
        joint_names = Names(self._given("joint", "freejoint"))
        count = 0
        for body in self._bodies[1:]:
            hinges = []
            for element, around, frame in body.joints:
                unnamed = "" if element.attributes.get("name") else joint_names.new(f"joint_{count}")
                with self._faults.kept():
                    hinges.append(reads.read(element, around, frame, unnamed, body.name))
                count += 1
            if any(joint.type == "floating" for joint, _, _ in hinges):
                with self._faults.kept():
                    body.at = self._freed(body, hinges)
            link = Link(body.name, weights[body.name], body.place.main_line, shapes=tuple(self._shapes(body)))
            made, found = hung(link, body.parent, body.at, hinges, link_names, joint_names)
            links += made
            joints += found
            self._limits.check("joints", len(joints), self._source)
        self._faults.check()
        return links, joints

    def _freed(self, body: _Body, hinges: list[tuple[Joint, Vector, float]]) -> Pose:
        """Returns the frame of a free body's position, which is the world's."""
        if body.parent != WORLD or len(hinges) > 1:
            where = "on a child of the world without other joints"
            raise body.place.fault(f"a free joint on a body with a parent body or other joints, expected one {where}")
        if body.at.is_turned or body.at.origin.any():
            text = "a free body: its pose in the file is an initial position, which is not kept"
            self._notes.append(body.place.note("dropped", text))
        return Pose()

    def _weights(self, robot: Place) -> dict[str, Inertial | None]:
        found: dict[str, Inertial | None] = {WORLD: None}
        shapes = 0
        for body in self._bodies[1:]:
            found[body.name] = None
            with self._faults.kept():
                found[body.name], of_shapes = self._weight(body)
                shapes += of_shapes
        if shapes:
            text = f"masses of {counted(shapes, 'body').replace('bodys', 'bodies')} are computed from their shapes"
            self._notes.append(robot.note("defaulted", text))
        self._notes += inertials.scaled(found, self._classes.settings.total_mass, robot)
        return found

    def _weight(self, body: _Body) -> tuple[Inertial | None, bool]:
        """Returns the inertia of a body, and whether it is computed from its shapes."""
        settings, place = self._classes.settings, body.place.inside("inertial")
        inertial: Inertial | None = None
        notes: list[Note] = []
        if settings.inertia_from_geoms == "true" or (settings.inertia_from_geoms == "auto" and body.inertial is None):
            geoms = ((self._geom(body, element, around), frame) for element, around, frame in body.geoms)
            inertial, notes = inertials.of_shapes(geoms, self._meshes, body.moves)
        of_shapes = inertial is not None
        if inertial is None and body.inertial is not None:  # where no shape counts it holds all the same
            element, frame = body.inertial
            place = self._place(element, place.element or "")
            self._unread.keep(element, (), ("pos", "mass", "diaginertia", "fullinertia", *ORIENTATIONS))
            inertial = inertials.written(self._classes.plain(element), frame, place)
        inertial, corrections = inertials.corrected(inertial, settings, place, body.pos)
        self._notes += [*notes, *corrections]
        return inertial, of_shapes

    def _geom(self, body: _Body, element: Element, around: str | None) -> Values:
        self._place(element, f"{body.place.element} geom")
        return self._classes.values(element, around)

    def _shapes(self, body: _Body) -> Iterator[Shape]:
        for element, around, frame in body.geoms:
            try:
                yield inertials.shape_of(self._geom(body, element, around), frame, self._meshes, self._colours)
            except DynError as error:
                yield Shape(unread=str(error))

    # The file as a whole.

    def _compiler(self, robot: Place) -> Settings:
        given: dict[str, str] = {}
        place = robot.inside("compiler")
        for element in self._root.all("compiler"):
            self._unread.keep(element, ("lengthrange",), _COMPILER)
            given |= element.attributes
            place = self._place(element, place.element or "")
        values = Values(given, {}, place)
        if values.choice("coordinate", ("local", "global"), "local") == "global":
            raise place.fault("coordinate is 'global', which MuJoCo no longer supports, expected 'local'")
        sequence = given.get("eulerseq", "xyz")
        if len(sequence) != 3 or not set(sequence.lower()) <= set("xyz"):
            raise place.fault(f"attribute 'eulerseq': expected three of x, y, z, X, Y, Z, found {quoted(sequence)}")
        first, last = values.vector("inertiagrouprange", (0.0, 5.0))
        return Settings(
            degrees=values.choice("angle", ("radian", "degree"), "degree") == "degree",
            eulerseq=sequence,
            autolimits=values.flag("autolimits", True),
            inertia_from_geoms=values.choice("inertiafromgeom", ("true", "false", "auto"), "auto"),
            groups=(float(first), float(last)),
            least_mass=values.number("boundmass", 0.0),
            least_inertia=values.number("boundinertia", 0.0),
            balance=values.flag("balanceinertia", False),
            total_mass=values.number("settotalmass", -1.0),
            aligned=values.flag("alignfree", False),
        )

    def _assets(self) -> Meshes:
        """Returns the meshes; their files are in `meshdir`, else in `assetdir`."""
        given = {name: text for each in self._root.all("compiler") for name, text in each.attributes.items()}
        inside = given.get("meshdir", given.get("assetdir", ""))
        assets: dict[str, Mesh] = {}
        for element in (mesh for section in self._root.all("asset") for mesh in section.all("mesh")):
            name = element.attributes.get("name", Path(element.attributes.get("file", "")).stem)
            place = self._place(element, named("mesh", name))
            values = self._classes.values(element)
            assets[name] = Mesh(
                values.text("file") or "",
                place,
                values.choice("inertia", ("legacy", "exact", "convex", "shell"), "legacy"),
                values.vector("scale", (1.0, 1.0, 1.0)),
                values.vector("refpos", (0.0, 0.0, 0.0)),
                Values({"quat": values.text("refquat") or "1 0 0 0"}, {}, place).pose().rotation,
                values.number("maxhullvert", -1.0) >= 0.0,
            )
        materials = (each.attributes for section in self._root.all("asset") for each in section.all("material"))
        self._colours = {given.get("name", ""): given["rgba"] for given in materials if "rgba" in given}
        return Meshes(assets, self._folder, inside)

    def _place(self, element: Element, what: str) -> Place:
        return element.at(what, self._source)


def _all_of(element: Element) -> Iterator[Element]:
    pending = [element]
    while pending:
        for child in pending.pop().children:
            yield child
            if child.tag == "frame":
                pending.append(child)


_REFERRING = ("joint", "joint1", "joint2")


def _expand(root: Element, classes: Classes, source: str, most: int) -> None:
    """Replaces all `<replicate>` elements by frames with copies, in place; there may be at most `most` elements then.

    Raises:
        UrdfError: A count is not a whole number of at least 1.
        ResourceExhaustedError: The maximum would be exceeded; raised before copying.
    """
    holders = [holder for holder in _within(root) if any(child.tag == REPLICATE for child in holder.children)]
    count = len(_within(root)) if holders else 0
    for holder in reversed(holders):  # inner ones first
        children: list[Element] = []
        for child in holder.children:
            if child.tag != REPLICATE:
                children.append(child)
                continue
            place = child.at(f"<{REPLICATE}>", source)
            values = classes.plain(child)
            number = values.number("count", 0.0)
            if number < 1.0 or number % 1.0:
                raise place.fault(f"attribute 'count': expected a whole number of at least 1, found {number:g}")
            within = _within(child)
            count += int(number) * len(within)
            if count > most:
                raise ResourceExhaustedError(f"{place.file}:{place.line}: the robot has more than {most} elements")
            digits, separator = len(str(int(number))), child.attributes.get("sep", "")
            ends = [f"{separator}{k:0{digits}d}" for k in range(int(number))]
            children += _copies(child, values, ends)
            joints = {each.attributes.get("name", "") for each in within if each.tag in ("joint", "freejoint")}
            for section in (*root.all("actuator"), *root.all("equality")):
                section.children = [copy for each in section.children for copy in _referring(each, joints, ends)]
                count += len(section.children)
                if count > most:
                    raise ResourceExhaustedError(f"{place.file}:{place.line}: the robot has more than {most} elements")
        holder.children = children


def _copies(element: Element, values: Values, ends: list[str]) -> list[Element]:
    offset, angles = (values.vector(name, (0.0, 0.0, 0.0)) for name in ("offset", "euler"))
    around = {key: text for key, text in element.attributes.items() if key == "childclass"}
    copies, origin = [], np.zeros(3)
    for k, end in enumerate(ends):
        said = {"pos": numbers(origin), "euler": numbers(k * angles)}
        inside = [_named(child, end) for child in element.children]
        copies.append(replace(element, tag="frame", attributes={**around, **said}, children=inside))
        origin = origin + replace(values, own=said).pose().rotation @ offset
    return copies


def _named(element: Element, end: str) -> Element:
    """Returns a copy with the suffix added to its name and to those of its descendants."""
    made = replace(element, children=[element])
    pending = [made]
    while pending:
        holder = pending.pop()
        holder.children = [replace(each, attributes=_ending(each, ("name",), end)) for each in holder.children]
        pending += holder.children
    return made.children[0]


def _referring(element: Element, joints: Collection[str], ends: list[str]) -> list[Element]:
    """Returns an actuator or equality per copy of its joints; MuJoCo drops it if one of them is not copied."""
    named = [key for key in _REFERRING if key in element.attributes]
    copied = [element.attributes[key] in joints for key in named]
    if not any(copied):
        return [element]
    ends = ends if all(copied) else []
    return [replace(element, attributes=_ending(element, ("name", *named), end)) for end in ends]


def _ending(element: Element, which: Collection[str], end: str) -> dict[str, str]:
    return {key: text + end if key in which else text for key, text in element.attributes.items()}


def _within(element: Element) -> list[Element]:
    found = [element]
    for each in found:
        found += each.children
    return found

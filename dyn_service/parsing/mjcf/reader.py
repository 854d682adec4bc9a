"""MJCF -> `Description`: the tree of `<worldbody>`, with the numbers of MuJoCo's own compiler.

    link `world`          the root, without mass; bodies are links, their frames MuJoCo's body frames
    several joints        of one body are joints one after the other, with links without mass between them
    positions, velocities as MuJoCo has them, `ref` included, except where `conventions.to_mujoco` turns around
    names                 of what has none: `body_3`, `joint_2`, by MuJoCo's own numbers
    equalities            `connect` and `weld` close loops, linear ones of joints are mimics

What is read and does not act (tendons, other equalities, actuators, gravity compensation, ..) has a note each,
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
from dyn_service.parsing.joint_chains import Names, check_finite, joint_chain
from dyn_service.parsing.mjcf import inertials
from dyn_service.parsing.mjcf.joints import Joints, OtherSections
from dyn_service.parsing.mjcf.loops import Bodies
from dyn_service.parsing.mjcf.values import ORIENTATIONS, Classes, Settings, Values
from dyn_service.parsing.pose import Pose
from dyn_service.parsing.quantities import Faults, Place, counted, named, quoted
from dyn_service.parsing.shapes import Mesh, Meshes
from dyn_service.parsing.structure import WORLD, assemble
from dyn_service.parsing.writing.text import numbers
from dyn_service.parsing.xml_elements import MAX_ELEMENTS, Element, Files, IgnoredContent, ReadLimits, spliced

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
    """A body with the shapes, joints and sites of its frames, each with its class.

    pose: on its parent. moves: whether it or one it hangs on has a joint. pos: as written.
    """

    name: str
    place: Place
    parent: str
    pose: Pose
    moves: bool
    line: int = 0
    inertial: tuple[Element, Pose] | None = None
    pos: Vector = field(default_factory=lambda: np.zeros(3))
    geoms: list[tuple[Element, str | None, Pose]] = field(default_factory=list)
    joints: list[tuple[Element, str | None, Pose]] = field(default_factory=list)
    sites: list[tuple[Element, str | None, Pose]] = field(default_factory=list)


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
    # Bodies are nested in each other, so a file is as deep as the robot's longest chain.
    deep = replace(limits, depth=max(limits.depth, DEPTH))
    files = Files(file, deep)
    root = files.root(text, source)
    spliced(
        root, "include", lambda element: _include(element, files), deep.depth, lambda included: included.tag in ROOTS
    )
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
    included = files.included(next(filter(os.path.isfile, paths), paths[-1]), place)
    if included.tag not in ROOTS:
        raise Place(included.file, line=included.line).fault(
            f"the root element is {quoted(included.tag)}, expected <mujoco>"
        )
    return included


class _Reader:
    """Reads one robot; holds its notes."""

    def __init__(self, root: Element, source: str, limits: ReadLimits, files: Files) -> None:
        self._root, self._source, self._limits, self._notes = root, source, limits, files.notes
        self._folder = None if files.main is None else files.main.parent
        self._ignored = IgnoredContent()
        self._classes = Classes([], Settings())
        self._bodies: list[_Body] = []
        self._names = Names(())
        self._faults = Faults()

    def robot(self) -> Description:
        root = self._root
        place = Place(self._source, "mujoco", root.line)
        self._ignored.keep(root, SECTIONS, ("model",))
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
            bodies = self._at_rest()
            joint_reader = Joints(self._classes, self._ignored, self._notes, self._source)
            links, joints = self._tree(place, joint_reader)
            sections = OtherSections(root, self._classes, self._source, joint_reader.zeros, bodies)
            joints = sections.applied(joints)
            self._notes += sections.notes(place)
        check_finite(links, joints, self._source)
        self._notes += self._ignored.notes(place)
        described = assemble(name, links, joints, self._notes, place, sections.loop_joints)
        return replace(described, gravity=sections.gravity)

    # What is written, body by body.

    def _gather(self) -> None:
        """Reads each body with its elements, in MuJoCo's order, from 1."""
        self._bodies = [_Body(WORLD, Place(self._source, "worldbody"), "", Pose(), moves=False)]
        self._names = Names(self._given("body"))
        for section in self._root.all("worldbody"):
            self._ignored.keep(section, _INSIDE, ())
            # Reversed, because the stack returns the last first and MuJoCo numbers bodies depth first.
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
        self._ignored.suspects = []
        self._ignored.keep(element, _INSIDE, _BODY)
        name = quantities.name(element.attributes.get("name", "") or self._names.new(f"body_{number}"), place)
        place = self._place(element, named("link", name))
        values = self._classes.plain(element)
        moves = pending.moves or any(child.tag in ("joint", "freejoint") for child in _all_of(element))
        if values.flag("mocap", False):
            self._notes.append(place.note("reported", "a mocap body: read as one that does not move"))
        if values.number("gravcomp", 0.0):
            text = f"gravcomp {values.number('gravcomp', 0.0):g}: ignored; full gravity acts on the body"
            self._notes.append(place.note("reported", text))
        pose = values.pose()
        return _Body(name, place, pending.parent, pending.frame @ pose, moves, element.line, pos=pose.origin)

    def _contents(self, pending: _Pending, body: _Body) -> list[_Pending]:
        """Adds the elements of a body and its frames to `body`; returns the nested bodies."""
        inner: list[_Pending] = []
        childclass = self._childclass(pending.element, pending.childclass, body.place)
        # A stack instead of recursion, because frames may be nested hundreds deep.
        stack = [(iter(pending.element.children), Pose(), childclass)]
        while stack:
            children, frame, childclass = stack[-1]
            child = next(children, None)
            if child is None:
                stack.pop()
                continue
            place = self._place(child, f"{body.place.element} {child.tag}")
            if child.tag == "frame":
                self._ignored.keep(child, _INSIDE, ("name", "childclass", "pos", *ORIENTATIONS, "scale"))
                values = self._classes.plain(child)
                scale = values.numbers("scale", 1, 3)
                if scale is not None and (scale != 1.0).any():
                    raise place.fault("attribute 'scale' is not supported, expected a frame without it")
                stack.append((iter(child.children), frame @ values.pose(), self._childclass(child, childclass, place)))
            elif child.tag == "body":
                inner.append(_Pending(child, body.name, frame, childclass, body.moves))
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
                body.geoms.append((child, childclass, frame))
            elif child.tag == "site":
                body.sites.append((child, childclass, frame))
            elif child.tag in ("joint", "freejoint", "inertial"):
                if not body.parent:
                    raise place.fault(f"<{child.tag}> in <worldbody>, expected it in a <body>")
                body.joints.append((child, childclass, frame))
            elif child.tag == "plugin":
                self._notes.append(place.note("reported", "ignored: plugins are not supported"))
        return inner

    def _at_rest(self) -> Bodies:
        """Returns the bodies as they are at MuJoCo's qpos0, with the sites that equalities name."""
        equalities = (element for section in self._root.all("equality") for element in section.children)
        site_names = {element.attributes.get(key) for element in equalities for key in ("site1", "site2")}
        sites: dict[str, tuple[str, Pose]] = {}
        for body in self._bodies:
            for element, childclass, frame in body.sites:
                if (name := element.attributes.get("name")) in site_names and name is not None:
                    self._place(element, f"{body.place.element} site {quoted(name)}")
                    pose = inertials.pose_of_ends(self._classes.values(element, childclass))
                    sites.setdefault(name, (body.name, frame @ pose))
        return Bodies({body.name: (body.parent, body.pose) for body in self._bodies[:0:-1]}, sites)

    def _given(self, *tags: str) -> Iterator[str]:
        pending = self._root.all("worldbody")
        while pending:
            element = pending.pop()
            if element.tag in tags and "name" in element.attributes:
                yield element.attributes["name"]
            pending += element.children

    def _childclass(self, element: Element, outer: str | None, place: Place) -> str | None:
        name = element.attributes.get("childclass", outer)
        return None if name is None else self._classes.check(name, place)

    # Links and joints.

    def _tree(self, robot: Place, joint_reader: Joints) -> tuple[list[Link], list[Joint]]:
        weights = self._weights(robot)
        links, joints = [Link(WORLD, shapes=tuple(self._shapes(self._bodies[0])))], []
        link_names = Names(body.name for body in self._bodies)
        joint_names = Names(self._given("joint", "freejoint"))
        count = 0
        for body in self._bodies[1:]:
            hinges = []
            for element, childclass, frame in body.joints:
                unnamed = "" if element.attributes.get("name") else joint_names.new(f"joint_{count}")
                with self._faults.kept():
                    hinges.append(joint_reader.read(element, childclass, frame, unnamed, body.name))
                count += 1
            if any(joint.moves.free for joint, _, _ in hinges):
                with self._faults.kept():
                    body.pose = self._free_body_pose(body, hinges)
            link = Link(body.name, weights[body.name], body.place.main_line, shapes=tuple(self._shapes(body)))
            chain_links, chain_joints = joint_chain(link, body.parent, body.pose, hinges, link_names, joint_names)
            links += chain_links
            joints += chain_joints
            self._limits.check("joints", len(joints), self._source)
        self._faults.check()
        return links, joints

    def _free_body_pose(self, body: _Body, hinges: list[tuple[Joint, Vector, float]]) -> Pose:
        """Returns the frame of a free body's position, which is the world's."""
        if body.parent != WORLD or len(hinges) > 1:
            raise body.place.fault(
                "a free joint on a body with a parent body or other joints, expected one on a child of the world "
                "without other joints"
            )
        if body.pose.is_turned or body.pose.origin.any():
            text = "a free body: its pose in the file is an initial position, which is not kept"
            self._notes.append(body.place.note("dropped", text))
        return Pose()

    def _weights(self, robot: Place) -> dict[str, Inertial | None]:
        weights: dict[str, Inertial | None] = {WORLD: None}
        shapes = 0
        for body in self._bodies[1:]:
            weights[body.name] = None
            with self._faults.kept():
                weights[body.name], of_shapes = self._weight(body)
                shapes += of_shapes
        if shapes:
            text = f"masses of {counted(shapes, 'body').replace('bodys', 'bodies')} are computed from their shapes"
            self._notes.append(robot.note("defaulted", text))
        self._notes += inertials.scaled(weights, self._classes.settings.total_mass, robot)
        return weights

    def _weight(self, body: _Body) -> tuple[Inertial | None, bool]:
        """Returns the inertia of a body, and whether it is computed from its shapes."""
        settings, place = self._classes.settings, body.place.inside("inertial")
        inertial: Inertial | None = None
        notes: list[Note] = []
        if settings.inertia_from_geoms == "true" or (settings.inertia_from_geoms == "auto" and body.inertial is None):
            geoms = ((self._geom(body, element, childclass), frame) for element, childclass, frame in body.geoms)
            inertial, notes = inertials.of_shapes(geoms, self._meshes, body.moves)
        of_shapes = inertial is not None
        if inertial is None and body.inertial is not None:  # where no shape counts it holds all the same
            element, frame = body.inertial
            place = self._place(element, place.element or "")
            self._ignored.keep(element, (), ("pos", "mass", "diaginertia", "fullinertia", *ORIENTATIONS))
            inertial = inertials.written(self._classes.plain(element), frame, place, bool(body.joints))
        inertial, corrections = inertials.corrected(inertial, settings, place, body.pos)
        self._notes += [*notes, *corrections]
        return inertial, of_shapes

    def _geom(self, body: _Body, element: Element, childclass: str | None) -> Values:
        self._place(element, f"{body.place.element} geom")
        return self._classes.values(element, childclass)

    def _shapes(self, body: _Body) -> Iterator[Shape]:
        for element, childclass, frame in body.geoms:
            try:
                yield inertials.shape_of(self._geom(body, element, childclass), frame, self._meshes, self._colours)
            except DynError as error:
                yield Shape(unread=str(error))

    # The file as a whole.

    def _compiler(self, robot: Place) -> Settings:
        attributes: dict[str, str] = {}
        place = robot.inside("compiler")
        for element in self._root.all("compiler"):
            self._ignored.keep(element, ("lengthrange",), _COMPILER)
            attributes |= element.attributes
            place = self._place(element, place.element or "")
        values = Values(attributes, {}, place)
        if values.choice("coordinate", ("local", "global"), "local") == "global":
            raise place.fault("coordinate is 'global', which MuJoCo no longer supports, expected 'local'")
        sequence = attributes.get("eulerseq", "xyz")
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
        attributes = {name: text for element in self._root.all("compiler") for name, text in element.attributes.items()}
        mesh_folder = attributes.get("meshdir", attributes.get("assetdir", ""))
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
        materials = (element.attributes for section in self._root.all("asset") for element in section.all("material"))
        self._colours = {
            attributes.get("name", ""): attributes["rgba"] for attributes in materials if "rgba" in attributes
        }
        return Meshes(assets, self._folder, mesh_folder)

    def _place(self, element: Element, label: str) -> Place:
        return element.at(label, self._source)


def _all_of(element: Element) -> Iterator[Element]:
    pending = [element]
    while pending:
        for child in pending.pop().children:
            yield child
            if child.tag == "frame":
                pending.append(child)


_REFERRING = {
    "joint": "joint", "joint1": "joint", "joint2": "joint", "body1": "body", "body2": "body", "site1": "site",
    "site2": "site",
}  # fmt: skip
"""Attributes of actuators and equalities that name an element of a body, with its kind."""

_KINDS = {"joint": "joint", "freejoint": "joint", "body": "body", "site": "site"}


def _expand(root: Element, classes: Classes, source: str, max_elements: int) -> None:
    """Replaces all `<replicate>` elements by frames with copies, in place; there may be at most `max_elements` then.

    Raises:
        UrdfError: A count is not a whole number of at least 1.
        ResourceExhaustedError: The maximum would be exceeded; raised before copying.
    """
    # Found before any is expanded: a copy is never expanded twice.
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
            copied = _within(child)
            count += int(number) * len(copied)
            if count > max_elements:
                raise ResourceExhaustedError(
                    f"{place.file}:{place.line}: the robot has more than {max_elements} elements"
                )
            digits, separator = len(str(int(number))), child.attributes.get("sep", "")
            ends = [f"{separator}{k:0{digits}d}" for k in range(int(number))]
            children += _copies(child, values, ends)
            names = {(_KINDS.get(element.tag), element.attributes.get("name", "")) for element in copied}
            for section in (*root.all("actuator"), *root.all("equality")):
                section.children = [copy for element in section.children for copy in _referring(element, names, ends)]
                count += len(section.children)
                if count > max_elements:
                    raise ResourceExhaustedError(
                        f"{place.file}:{place.line}: the robot has more than {max_elements} elements"
                    )
        holder.children = children


def _copies(element: Element, values: Values, ends: list[str]) -> list[Element]:
    offset, angles = (values.vector(name, (0.0, 0.0, 0.0)) for name in ("offset", "euler"))
    frame_class = {key: text for key, text in element.attributes.items() if key == "childclass"}
    copies, origin = [], np.zeros(3)
    for k, end in enumerate(ends):
        pose_attributes = {"pos": numbers(origin), "euler": numbers(k * angles)}
        children = [_named(child, end) for child in element.children]
        copies.append(replace(element, tag="frame", attributes={**frame_class, **pose_attributes}, children=children))
        origin = origin + replace(values, attributes=pose_attributes).pose().rotation @ offset
    return copies


def _named(element: Element, end: str) -> Element:
    """Returns a copy with the suffix added to its name and to those of its descendants."""
    renamed_root = replace(element, children=[element])
    pending = [renamed_root]
    while pending:
        holder = pending.pop()
        holder.children = [replace(child, attributes=_ending(child, ("name",), end)) for child in holder.children]
        pending += holder.children
    return renamed_root.children[0]


def _referring(element: Element, names: Collection[tuple[str | None, str]], ends: list[str]) -> list[Element]:
    """Returns an actuator or equality per copy of the elements that it names; MuJoCo drops it if one of them is not
    copied.
    """
    reference_keys = [key for key in _REFERRING if key in element.attributes]
    copied = [(_REFERRING[key], element.attributes[key]) in names for key in reference_keys]
    if not any(copied):
        return [element]
    ends = ends if all(copied) else []
    return [replace(element, attributes=_ending(element, ("name", *reference_keys), end)) for end in ends]


def _ending(element: Element, keys: Collection[str], end: str) -> dict[str, str]:
    return {key: text + end if key in keys else text for key, text in element.attributes.items()}


def _within(element: Element) -> list[Element]:
    elements = [element]
    for parent in elements:
        elements += parent.children
    return elements

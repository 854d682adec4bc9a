"""Reads URDF to a `Description`: links and joints as written; errors name file, line and element.

The reader is strict where a guess would change torques (numbers, names, structure, contradicting elements), and lenient
for content without influence on dynamics (geometry, simulator extensions) and for unambiguous mistakes (the same axis
twice). Ignored content and defaults have notes. Only the given file is opened: no meshes, no `package://`, no includes.

    read        a path, the XML text, or a loaded object
    read_text   text only; opens no file, for text from untrusted sources
    read_file   a path only

Format: http://wiki.ros.org/urdf/XML, with `quat_xyzw` of version 1.1.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields, replace
from itertools import islice

import numpy as np

from dyn_service.errors import InvalidArgumentError, ResourceExhaustedError, UrdfError
from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.description import (
    FIXED_ROOT,
    UNUSED_SHAPES,
    Description,
    Inertial,
    Joint,
    Limit,
    Link,
    Mimic,
    Note,
)
from dyn_service.model.joints import Joint as Moves
from dyn_service.parsing import quantities
from dyn_service.parsing.quantities import Faults, Place, counted, named, quoted, shown_path, unused
from dyn_service.parsing.shapes import rgba_of, shapes_of
from dyn_service.parsing.structure import WORLD, assemble, with_drives
from dyn_service.parsing.transmissions import CONTROL, driven_joints, with_transmissions
from dyn_service.parsing.transmissions import TAG as TRANSMISSION
from dyn_service.parsing.urdf import loaded
from dyn_service.parsing.urdf.loops import loop_joints
from dyn_service.parsing.xml_elements import (
    BEFORE_XML,
    CONSTRAINTS,
    GEOMETRY,
    Comment,
    Element,
    IgnoredContent,
    ReadLimits,
    constraints,
    decode,
    load,
    parse,
)
from dyn_service.support.suggestions import did_you_mean

JOINTS = ("joint", "drake:joint")
"""Drake's tag for joints of types that URDF lacks."""

PITCH = "drake:screw_thread_pitch"
"""Drake's tag for the pitch of a screw joint."""

TEXT = "<text>"
"""The file name in errors for a robot given as text."""

KNOWN_VERSIONS = ("1.0", "1.1", "1.2")
QUATERNIONS_SINCE = (1, 1)
"""The URDF version from which `quat_xyzw` is read; ROS's parser ignores it in earlier versions."""

# Between two angle brackets, so that the search is linear.
_FLOATING = re.compile(r"""<joint\b([^<>]*\btype\s*=\s*["']floating["'][^<>]*)>""")
_MAX_FLOATING = 8
"""Maximum number of notes on floating joints in comments; finding the line of each costs the comment's length."""

_NAME = re.compile(r"""\bname\s*=\s*["']([^"'<>]*)["']""")

MOMENTS = ("ixx", "ixy", "ixz", "iyy", "iyz", "izz")
OTHER_FORMATS = {"sdf": "SDFormat", "world": "SDFormat", "mujoco": "MuJoCo's MJCF", "mujocoinclude": "MuJoCo's MJCF"}


def read(source: str | os.PathLike[str] | bytes | object, *, limits: ReadLimits | None = None) -> Description:
    """Reads a robot from a path, text or a loaded object.

    Args:
        source: A path; the XML as text (a str that starts with `<`) or bytes; or a URDF object of urdfpy, urchin or
            yourdfpy.
        limits: The largest description to read, for files and text.

    Returns:
        The description, with notes on everything defaulted, changed, dropped, warned about or reported.

    Raises:
        UrdfError: The robot is malformed; names file, line and element.
        NotFoundError: The file does not exist.
        InvalidArgumentError: `source` has another type.
        ResourceExhaustedError: The robot is larger than `limits`.

    Checked by:
        tests/parsing/urdf/test_reading.py, tests/parsing/urdf/test_faults.py
    """
    if isinstance(source, (bytes, bytearray)):
        return read_text(bytes(source), limits=limits)
    if isinstance(source, str):
        start = source.lstrip(BEFORE_XML)[:1]
        if start == "<":
            return read_text(source, limits=limits)
        if not start:
            raise InvalidArgumentError("source is an empty text; expected the path of a URDF file, or its XML text")
        return read_file(source, limits=limits)
    if isinstance(source, os.PathLike):
        return read_file(source, limits=limits)
    return loaded.read(source)


def read_file(path: str | os.PathLike[str], *, limits: ReadLimits | None = None) -> Description:
    """Reads a robot from a URDF file. Arguments and errors as for `read`."""
    limits = limits or ReadLimits()
    return _Reader(shown_path(path), limits).robot(load(path, limits))


def read_text(text: str | bytes, *, source: str = TEXT, limits: ReadLimits | None = None) -> Description:
    """Reads a robot from XML text. Opens no file. `source` is its name in errors; the rest as for `read`."""
    limits = limits or ReadLimits()
    if isinstance(text, bytes):
        text = decode(text, source, limits)
    return _Reader(source, limits).robot(text)


class _Reader:
    """Reads one robot; collects its notes and ignored content."""

    def __init__(self, file: str, limits: ReadLimits) -> None:
        self._file = file
        self._limits = limits
        self._notes: list[Note] = []
        self._ignored = IgnoredContent()
        self._quaternions = False
        self._palette: dict[str, tuple[float, ...]] = {}

    def robot(self, text: str) -> Description:
        document = parse(text, self._file, self._limits)
        self._notes += document.notes(Place(self._file))
        try:
            return self._robot(document.root, document.comments)
        except UrdfError as fault:
            raise self._explained(fault) from None

    def _explained(self, fault: UrdfError) -> UrdfError:
        """Adds the probable cause to a fault: a missing link may be a misspelt one."""
        suspects, self._ignored.suspects = self._ignored.suspects, []
        if not suspects or "xacro" in fault.message:
            return fault
        message = f"{fault.message}; {suspects[0]}"
        return UrdfError(message, file=fault.file, line=fault.line, element=fault.element)

    def _robot(self, root: Element, comments: Iterable[Comment]) -> Description:
        place = root.at("robot", self._file)
        _refuse_other_formats(root)
        tags = ["link", *JOINTS, TRANSMISSION, CONTROL, *GEOMETRY, *CONSTRAINTS]
        closing = constraints(root)
        if {id(child) for gazebo in root.all("gazebo") for child in gazebo.children} <= set(map(id, closing)):
            tags.append("gazebo")
        self._ignored.keep(root, tags, ("name", "version"))
        of_robot = self._ignored.suspects
        links, joints = root.all("link"), [joint for tag in JOINTS for joint in root.all(tag)]
        for noun, elements, max_count in (
            ("links", links, self._limits.links),
            ("joints", joints, self._limits.joints),
        ):
            if len(elements) > max_count:
                raise ResourceExhaustedError(
                    f"{self._file}: the robot has {len(elements)} {noun}, the maximum is {max_count}"
                )
        if not links:
            raise place.fault("there are no <link> elements, expected at least one")
        name = root.name()
        place = root.at(named("robot", name), self._file)
        self._version(root)
        for element in root.all("material"):
            if rgba := rgba_of(element, place):
                self._palette[element.attributes.get("name", "")] = rgba
        faults, read_links, read_joints = Faults(), list[Link](), list[Joint]()
        for element in links:
            with faults.kept(self._explained):
                read_links.append(self._link(element))
        for element in joints:
            with faults.kept(self._explained):
                read_joints.append(self._joint(element))
        faults.check()
        read_joints, transmission_notes = with_transmissions(root, read_joints, place)
        read_joints = with_drives(read_joints, driven_joints(root))
        self._notes += transmission_notes
        self._ignored.suspects = of_robot
        self._note_geometry(root, place)
        self._note_floating(comments, place)
        self._notes += _unknown_references(root, read_links, read_joints, closing, place)
        self._notes += self._ignored.notes(place)
        described = assemble(name, read_links, read_joints, self._notes, place)
        if closing:  # read when the links are known to form a tree
            read_loop_joints = loop_joints(closing, described, self._notes, self._ignored)
            described = assemble(name, read_links, read_joints, self._notes, place, read_loop_joints)
        return described

    def _start(self, element: Element, kind: str, children: Collection[str], attributes: Collection[str]) -> str:
        """Starts to read a link or a joint: sets its place, and returns its name."""
        self._ignored.suspects = []
        self._ignored.keep(element, children, attributes)
        element.at(kind, self._file)
        name = element.name()
        element.at(named(kind, name), self._file)
        return name

    def _child(self, parent: Element, tag: str, attributes: Collection[str]) -> Element | None:
        """Returns the child with a tag, or None. Of a joint it may be there twice with the same content.

        (Two equal inertials could mean their sum.)
        """
        element = parent.child(tag, self._notes if parent.tag in JOINTS else None)
        if element is not None:
            self._ignored.keep(element, (), attributes)
        return element

    def _required_child(self, parent: Element, tag: str, attributes: Collection[str], purpose: str = "") -> Element:
        element = self._child(parent, tag, attributes)
        if element is None:
            raise parent.place.fault(f"there is no <{tag}> element, expected one{purpose}")
        return element

    def _link(self, element: Element) -> Link:
        name = self._start(element, "link", ("inertial", *GEOMETRY), ("name",))
        inertial = element.child("inertial")
        weight = None if inertial is None else self._inertial(inertial)
        return Link(name, weight, element.line, shapes=shapes_of(element, self._file, self._palette))

    def _inertial(self, element: Element) -> Inertial:
        self._ignored.keep(element, ("origin", "mass", "inertia"), ())
        com, rotation = self._origin(element, quantities.NO_INERTIAL_ORIGIN)
        weight = self._required_child(element, "mass", ("value",))
        mass = quantities.mass(weight.number("value"), weight.place)
        moments = self._child(element, "inertia", MOMENTS)
        if moments is None:
            self._notes.append(element.place.note("defaulted", quantities.NO_INERTIA))
            return Inertial(mass, com, rotation, np.zeros((3, 3)))
        return Inertial(mass, com, rotation, quantities.inertia_of_moments(list(map(moments.number, MOMENTS))))

    def _joint(self, element: Element) -> Joint:
        children = ("parent", "child", "origin", "axis", "limit", "dynamics", "mimic", PITCH)
        name = self._start(element, "joint", children, ("name", "type"))
        kind = quantities.joint_type(element.attribute("type"), element.place)
        moves = quantities.movement(kind)
        parent, child = (self._required_child(element, end, ("link",)).name("link") for end in ("parent", "child"))
        xyz, rotation = self._origin(element, quantities.NO_JOINT_ORIGIN)
        axis = self._axis(element, moves)
        limit = quantities.checked_limit(moves, self._limit(element), element.place, self._notes)
        dynamics = self._child(element, "dynamics", ("damping", "friction"))
        damping, friction = (dynamics.number(key, 0.0) if dynamics else 0.0 for key in ("damping", "friction"))
        mimic = self._mimic(element)
        pitch = 0.0
        if moves.threaded:
            pitch = self._required_child(element, PITCH, ("value",), ": the thread's pitch in m per turn").number(
                "value"
            )
        line = element.line
        return Joint(name, kind, parent, child, xyz, rotation, axis, limit, damping, friction, mimic, line, pitch)

    def _axis(self, joint: Element, moves: Moves) -> Vector:
        element = self._child(joint, "axis", ("xyz",))
        default = np.array(quantities.X_AXIS)
        if element is None:
            if "axis" in moves.parameters:
                self._notes.append(joint.place.note("defaulted", quantities.NO_AXIS))
            return default
        if not moves.nv and not element.attributes.get("xyz", "").strip():
            self._notes.append(element.place.note("dropped", "an empty <axis>, which a fixed joint does not need"))
            return default
        values = element.numbers("xyz", 3)
        # Exporters write a zero axis for fixed joints, where it has no meaning.
        return quantities.unit_axis(values, element.place, self._notes) if moves.nv else default

    def _limit(self, joint: Element) -> Limit | None:
        names = tuple(field.name for field in fields(Limit))
        element = self._child(joint, "limit", names)
        if element is None:
            return None
        return Limit(*(element.number(name) if name in element.attributes else None for name in names))

    def _mimic(self, joint: Element) -> Mimic | None:
        element = self._child(joint, "mimic", ("joint", "multiplier", "offset"))
        if element is None:
            return None
        return Mimic(element.name("joint"), element.number("multiplier", 1.0), element.number("offset", 0.0))

    def _origin(self, parent: Element, default: str) -> tuple[Vector, Matrix]:
        element = self._child(parent, "origin", ("xyz", "rpy", "quat_xyzw"))
        if element is None:
            self._notes.append(parent.place.note("defaulted", default))
            return np.zeros(3), np.eye(3)
        attributes, place = element.attributes, element.place
        xyz = element.numbers("xyz", 3) if "xyz" in attributes else np.zeros(3)
        if "quat_xyzw" in attributes:
            # Ignoring it silently would rotate the frame differently than the author meant.
            if not self._quaternions:
                raise place.fault("attribute 'quat_xyzw' is of URDF 1.1, expected rpy, or <robot version=\"1.1\">")
            if "rpy" in attributes:
                raise place.fault("there are both rpy and quat_xyzw, expected one of them")
            return xyz, quantities.rotation_of_quaternion(element.numbers("quat_xyzw", 4), place, self._notes)
        rpy = element.numbers("rpy", 3) if "rpy" in attributes else np.zeros(3)
        joint = parent.attributes["name"] if parent.tag in JOINTS else ""
        self._notes += quantities.degree_note(rpy, place, joint)
        return xyz, quantities.rotation_of_rpy(rpy)

    def _version(self, root: Element) -> None:
        version = root.attributes.get("version", "1.0")
        numbers = re.fullmatch(r"([0-9]{1,4})\.([0-9]{1,4})", version)
        if numbers:
            self._quaternions = (int(numbers[1]), int(numbers[2])) >= QUATERNIONS_SINCE
        if version not in KNOWN_VERSIONS:
            versions = ", ".join(KNOWN_VERSIONS)
            text = f"URDF version {quoted(version)} is unknown; known versions: {versions}"
            self._notes.append(root.place.note("reported", text))

    def _note_geometry(self, root: Element, place: Place) -> None:
        links = [{child.tag for child in link.children} for link in root.all("link")]
        shaped = sum(bool(tags & {"visual", "collision"}) for tags in links)
        materials = len(root.all("material"))
        if shaped:
            self._notes.append(place.note("dropped", f"geometry of {counted(shaped, 'link')} {UNUSED_SHAPES}"))
        elif materials:
            self._notes.append(place.note("dropped", unused(materials, "<material> element", "in <robot>")))

    def _note_floating(self, comments: Iterable[Comment], place: Place) -> None:
        """Adds a warning for each floating joint in a comment: many files of legged robots have their base there."""
        floating_joints = ((comment, joint) for comment in comments for joint in _FLOATING.finditer(comment.text))
        for comment, joint in islice(floating_joints, _MAX_FLOATING):
            name = _NAME.search(joint[1])
            subject = f"joint {quoted(name[1])}" if name else "a joint"
            line = comment.line + comment.text.count("\n", 0, joint.start())
            text = (
                f"{subject} of type floating is commented out, so the robot's root {FIXED_ROOT}; if it moves freely, "
                'read the robot with root="floating"'
            )
            self._notes.append(Place(self._file, place.element, line).warning("commented-floating-joint", text))


def _unknown_references(
    root: Element, links: Iterable[Link], joints: Iterable[Joint], closing: Iterable[Element], robot: Place
) -> Iterator[Note]:
    """Yields a warning for each joint or link that a simulator or ros2_control is told of and the robot lacks."""
    joint_names = [*(joint.name for joint in joints), *(element.attributes.get("name", "") for element in closing)]
    names = [*joint_names, *(link.name for link in links), WORLD]
    holders = [*root.all(TRANSMISSION), *root.all(CONTROL)]
    references = [(joint, "joint", "name", joint_names) for holder in holders for joint in holder.all("joint")]
    references += [(gazebo, "link or joint", "reference", names) for gazebo in root.all("gazebo")]
    for element, noun, attribute, known in references:
        name = element.attributes.get(attribute, "")
        if name and name not in known:
            text = f"<{element.tag}> names {quoted(name)}, which is no {noun} of the robot{did_you_mean(name, known)}"
            yield replace(robot, line=element.line).warning("unknown-reference", text)


def _refuse_other_formats(root: Element) -> None:
    text = f"the root element is {quoted(root.tag)}, expected <robot>"
    if root.tag in OTHER_FORMATS:
        text = (
            f"the root element is <{root.tag}>: this is {OTHER_FORMATS[root.tag]}, which Robot.from_file reads; "
            "expected URDF with the root <robot>"
        )
    if root.tag != "robot":
        raise Place(root.file, line=root.line).fault(text)


__all__ = ["ReadLimits", "read", "read_file", "read_text"]

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
from collections.abc import Iterable
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
from dyn_service.parsing.structure import assemble
from dyn_service.parsing.transmissions import TAG as TRANSMISSION
from dyn_service.parsing.transmissions import with_transmissions
from dyn_service.parsing.urdf import loaded
from dyn_service.parsing.xml_elements import (
    BEFORE_XML,
    GEOMETRY,
    Comment,
    Element,
    ReadLimits,
    Unread,
    decode,
    load,
    parse,
)

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
_MOST_FLOATING = 8
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
        The description, with notes on everything defaulted, changed, dropped, doubted or reported.

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
        self._unread = Unread()
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
        suspects, self._unread.suspects = self._unread.suspects, []
        if not suspects or "xacro" in fault.message:
            return fault
        message = f"{fault.message}; {suspects[0]}"
        return UrdfError(message, file=fault.file, line=fault.line, element=fault.element)

    def _robot(self, root: Element, comments: Iterable[Comment]) -> Description:
        place = Place(self._file, "robot", root.line)
        _refuse_other_formats(root, place)
        self._unread.keep(root, ("link", *JOINTS, TRANSMISSION, *GEOMETRY), ("name", "version"))
        of_robot = self._unread.suspects
        links, joints = root.all("link"), [joint for tag in JOINTS for joint in root.all(tag)]
        for what, found, most in (("links", links, self._limits.links), ("joints", joints, self._limits.joints)):
            if len(found) > most:
                raise ResourceExhaustedError(f"{self._file}: the robot has {len(found)} {what}, the maximum is {most}")
        if not links:
            raise place.fault("there are no <link> elements, expected at least one")
        name = self._name(root, place)
        place = Place(self._file, named("robot", name), root.line)
        self._version(root, place)
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
        read_joints, said = with_transmissions(root, read_joints, place)
        self._notes += said
        self._unread.suspects = of_robot
        self._note_geometry(root, place)
        self._note_floating(comments, place)
        self._notes += self._unread.notes(place)
        return assemble(name, read_links, read_joints, self._notes, place)

    def _link(self, element: Element) -> Link:
        self._unread.suspects = []
        self._unread.keep(element, ("inertial", *GEOMETRY), ("name",))
        name = self._name(element, Place(self._file, "link", element.line))
        place = Place(self._file, named("link", name), element.line)
        inertial = self._one(element, "inertial", place)
        weight = None if inertial is None else self._inertial(inertial, place)
        return Link(name, weight, element.line, shapes=shapes_of(element, self._file, self._palette))

    def _inertial(self, element: Element, link: Place) -> Inertial:
        place = link.inside("inertial", element.line)
        self._unread.keep(element, ("origin", "mass", "inertia"), ())
        com, rotation = self._origin(element, place, quantities.NO_INERTIAL_ORIGIN)
        mass_element = self._one(element, "mass", place)
        if mass_element is None:
            raise place.fault("there is no <mass> element, expected one")
        self._unread.keep(mass_element, (), ("value",))
        inside = place.inside("mass", mass_element.line)
        mass = quantities.mass(self._number(mass_element, "value", inside), inside)
        inertia = np.zeros((3, 3))
        moments = self._one(element, "inertia", place)
        if moments is None:
            self._notes.append(place.note("defaulted", quantities.NO_INERTIA))
        else:
            self._unread.keep(moments, (), MOMENTS)
            inside = place.inside("inertia", moments.line)
            inertia = quantities.inertia_of_moments([self._number(moments, name, inside) for name in MOMENTS])
        return Inertial(mass, com, rotation, inertia)

    def _joint(self, element: Element) -> Joint:
        self._unread.suspects = []
        self._unread.keep(
            element, ("parent", "child", "origin", "axis", "limit", "dynamics", "mimic", PITCH), ("name", "type")
        )
        name = self._name(element, Place(self._file, "joint", element.line))
        place = Place(self._file, named("joint", name), element.line)
        kind = quantities.joint_type(self._attribute(element, "type", place), place)
        moves = quantities.movement(kind)
        parent, child = (self._end(element, end, place) for end in ("parent", "child"))
        xyz, rotation = self._origin(element, place, quantities.NO_JOINT_ORIGIN)
        axis = self._axis(element, place, moves)
        limit = self._limit(element, place)
        self._notes += quantities.limit_notes(moves, limit, place)
        damping, friction = self._dynamics(element, place)
        mimic = self._mimic(element, place)
        pitch = self._pitch(element, place) if moves.threaded else 0.0
        line = element.line
        return Joint(name, kind, parent, child, xyz, rotation, axis, limit, damping, friction, mimic, line, pitch)

    def _pitch(self, joint: Element, place: Place) -> float:
        element = self._one(joint, PITCH, place)
        if element is None:
            raise place.fault(f"there is no <{PITCH}> element, expected one: the thread's pitch in m per turn")
        self._unread.keep(element, (), ("value",))
        return self._number(element, "value", place.inside(PITCH, element.line))

    def _end(self, joint: Element, tag: str, place: Place) -> str:
        element = self._one(joint, tag, place)
        if element is None:
            raise place.fault(f"there is no <{tag}> element, expected one")
        self._unread.keep(element, (), ("link",))
        inside = place.inside(tag, element.line)
        return quantities.name(self._attribute(element, "link", inside), inside)

    def _axis(self, joint: Element, place: Place, moves: Moves) -> Vector:
        element = self._one(joint, "axis", place)
        default = np.array(quantities.X_AXIS)
        if element is None:
            if "axis" in moves.figures:
                self._notes.append(place.note("defaulted", quantities.NO_AXIS))
            return default
        self._unread.keep(element, (), ("xyz",))
        inside = place.inside("axis", element.line)
        if not moves.nv and not element.attributes.get("xyz", "").strip():
            self._notes.append(inside.note("dropped", "an empty <axis>, which a fixed joint does not need"))
            return default
        values = self._numbers(element, "xyz", 3, inside)
        # Exporters write a zero axis for fixed joints, where it has no meaning.
        return quantities.unit_axis(values, inside, self._notes) if moves.nv else default

    def _limit(self, joint: Element, place: Place) -> Limit | None:
        element = self._one(joint, "limit", place)
        if element is None:
            return None
        names = ("lower", "upper", "effort", "velocity")
        self._unread.keep(element, (), names)
        inside = place.inside("limit", element.line)
        return Limit(*(self._number(element, name, inside) if name in element.attributes else None for name in names))

    def _dynamics(self, joint: Element, place: Place) -> tuple[float, float]:
        element = self._one(joint, "dynamics", place)
        if element is None:
            return 0.0, 0.0
        self._unread.keep(element, (), ("damping", "friction"))
        inside = place.inside("dynamics", element.line)
        damping, friction = (
            self._number(element, name, inside) if name in element.attributes else 0.0
            for name in ("damping", "friction")
        )
        return damping, friction

    def _mimic(self, joint: Element, place: Place) -> Mimic | None:
        element = self._one(joint, "mimic", place)
        if element is None:
            return None
        self._unread.keep(element, (), ("joint", "multiplier", "offset"))
        inside = place.inside("mimic", element.line)
        leader = quantities.name(self._attribute(element, "joint", inside), inside)
        multiplier, offset = (
            self._number(element, name, inside) if name in element.attributes else default
            for name, default in (("multiplier", 1.0), ("offset", 0.0))
        )
        return Mimic(leader, multiplier, offset)

    def _origin(self, parent: Element, place: Place, default: str) -> tuple[Vector, Matrix]:
        element = self._one(parent, "origin", place)
        if element is None:
            self._notes.append(place.note("defaulted", default))
            return np.zeros(3), np.eye(3)
        self._unread.keep(element, (), ("xyz", "rpy", "quat_xyzw"))
        inside = place.inside("origin", element.line)
        xyz = self._numbers(element, "xyz", 3, inside) if "xyz" in element.attributes else np.zeros(3)
        if "quat_xyzw" in element.attributes:
            # Ignoring it silently would rotate the frame differently than the author meant.
            if not self._quaternions:
                raise inside.fault("attribute 'quat_xyzw' is of URDF 1.1, expected rpy, or <robot version=\"1.1\">")
            if "rpy" in element.attributes:
                raise inside.fault("there are both rpy and quat_xyzw, expected one of them")
            values = self._numbers(element, "quat_xyzw", 4, inside)
            return xyz, quantities.rotation_of_quaternion(values, inside, self._notes)
        rpy = self._numbers(element, "rpy", 3, inside) if "rpy" in element.attributes else np.zeros(3)
        self._notes += quantities.degree_note(rpy, inside)
        return xyz, quantities.rotation_of_rpy(rpy)

    def _version(self, root: Element, place: Place) -> None:
        version = root.attributes.get("version", "1.0")
        numbers = re.fullmatch(r"([0-9]{1,4})\.([0-9]{1,4})", version)
        if numbers:
            self._quaternions = (int(numbers[1]), int(numbers[2])) >= QUATERNIONS_SINCE
        if version not in KNOWN_VERSIONS:
            known = ", ".join(KNOWN_VERSIONS)
            self._notes.append(
                place.note("reported", f"URDF version {quoted(version)} is unknown; known versions: {known}")
            )

    def _note_geometry(self, root: Element, place: Place) -> None:
        links = [{child.tag for child in link.children} for link in root.all("link")]
        shaped = sum(bool(tags & {"visual", "collision"}) for tags in links)
        materials = len(root.all("material"))
        if shaped:
            self._notes.append(place.note("dropped", f"geometry of {counted(shaped, 'link')} {UNUSED_SHAPES}"))
        elif materials:
            self._notes.append(place.note("dropped", unused(materials, "<material> element", "in <robot>")))

    def _note_floating(self, comments: Iterable[Comment], place: Place) -> None:
        found = ((comment, joint) for comment in comments for joint in _FLOATING.finditer(comment.text))
        for comment, joint in islice(found, _MOST_FLOATING):
            name = _NAME.search(joint[1])
            which = f"joint {quoted(name[1])}" if name else "a joint"
            line = comment.line + comment.text.count("\n", 0, joint.start())
            text = (
                f"{which} of type floating is commented out, so the robot's root {FIXED_ROOT}; if it moves freely, "
                'read the robot with root="floating"'
            )
            self._notes.append(Place(self._file, place.element, line).note("doubted", text))

    def _one(self, parent: Element, tag: str, place: Place) -> Element | None:
        """Returns the child with a tag, or None.

        Two are a fault, unless they are equal children of a joint. (Two equal inertials could mean their sum.)
        """
        found = parent.all(tag)
        if len(found) > 1:
            again = Place(self._file, place.element, found[1].line)
            if parent.tag not in JOINTS or any(_says(one) != _says(found[0]) for one in found[1:]):
                raise again.fault(
                    f"there are {len(found)} <{tag}> elements, the first on line {found[0].line}, expected one"
                )
            text = f"there are {len(found)} <{tag}> elements with the same content, the first on line {found[0].line}"
            self._notes.append(again.note("dropped", text))
        return found[0] if found else None

    def _name(self, element: Element, place: Place) -> str:
        return quantities.name(self._attribute(element, "name", place), place)

    def _attribute(self, element: Element, name: str, place: Place) -> str:
        if name not in element.attributes:
            raise place.fault(f"the attribute '{name}' is missing")
        return element.attributes[name]

    def _numbers(self, element: Element, name: str, count: int, place: Place) -> Vector:
        return quantities.decimals(self._attribute(element, name, place), count, name, place)

    def _number(self, element: Element, name: str, place: Place) -> float:
        return float(self._numbers(element, name, 1, place)[0])


def _says(element: Element) -> tuple[object, ...]:
    """Returns the content of an element independent of notation: `1.0` equals `1`. Children are not compared."""
    values = {name: quantities.reading(text) for name, text in element.attributes.items()}
    return (values, [id(child) for child in element.children])


def _refuse_other_formats(root: Element, place: Place) -> None:
    if root.tag in OTHER_FORMATS:
        raise Place(place.file, line=root.line).fault(
            f"the root element is <{root.tag}>: this is {OTHER_FORMATS[root.tag]}, which Robot.from_file reads; "
            f"expected URDF with "
            "the root <robot>"
        )
    if root.tag != "robot":
        raise Place(place.file, line=root.line).fault(f"the root element is {quoted(root.tag)}, expected <robot>")


__all__ = ["ReadLimits", "read", "read_file", "read_text"]

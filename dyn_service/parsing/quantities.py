"""Checked numbers of a robot description: converts text and loaded objects to arrays.

Used by all readers, so that the same robot gives the same numbers and errors in each form. rpy are rotations about
fixed axes x, then y, then z:

    R = Rz(yaw) Ry(pitch) Rx(roll)

All returned arrays are finite, float64, of the stated shape, and without -0.0. What is not as stated here raises
`UrdfError` at the given place.

A `Place` is a location for errors and notes: a file or other source, an element such as `joint 'elbow' axis`, a line.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from dyn_service.errors import UrdfError
from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.building import snapped
from dyn_service.model.description import Edit, JointType, Limit, Note, NoteKind
from dyn_service.model.joints import JOINT_TYPES, Joint
from dyn_service.support.suggestions import did_you_mean, listing

X_AXIS = (1.0, 0.0, 0.0)
NO_AXIS = "no <axis>: the x axis (1, 0, 0) is used"
NO_JOINT_ORIGIN = "no <origin>: the child link's frame is the parent link's"
NO_INERTIAL_ORIGIN = "no <origin>: the centre of mass is the link's origin"
NO_INERTIA = "no <inertia>: zero is used"
SHORTEST_AXIS = 1e-9
"""An axis shorter than this has no direction."""
UNIT = 1e-6
"""An axis or quaternion this close to unit length counts as normalised: files have six digits or more."""
ORTHONORMAL = 1e-6
"""Tolerance for the orthonormality of a loaded object's rotation matrix."""
SYMMETRIC = 1e-9
"""Tolerance for the symmetry of a loaded object's inertia matrix, relative to its largest entry."""
TURN = 2.0 * math.pi + 0.01
"""rad; a whole turn, rounded up as in files."""
LONGEST_NAME = 256
"""Maximum length of a name; real ones have up to 60 characters."""
LONGEST_NUMBERS = 1000
"""Maximum length of an attribute with a few numbers."""

# float() also accepts nan, inf, 1_000 and digits of other scripts, which are not numbers of a URDF.
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_BLANKS = re.compile(r"[ \t\r\n]+")


def name(text: str, place: Place) -> str:
    """Checks that a name is not blank, not too long, printable, and not a xacro expression."""
    if not text.strip():
        raise place.fault(f"the name is {quoted(text)}, expected one that is not blank")
    if len(text) > LONGEST_NAME:
        raise place.fault(f"the name has {len(text)} characters, expected at most {LONGEST_NAME}")
    if not text.isprintable():  # names are printed in messages, lists and logs
        hidden = next(character for character in text if not character.isprintable())
        raise place.fault(f"the name {quoted(text)} has the character U+{ord(hidden):04X}, expected printable ones")
    _refuse_xacro(text, "name", place)
    return text


def decimals(text: str, count: int, attribute: str, place: Place) -> Vector:
    """Returns the (count,) finite decimal numbers of a text, separated by whitespace; `attribute` is its name."""
    expected = "a number" if count == 1 else f"{count} numbers"
    _refuse_xacro(text, attribute, place)
    if len(text) > LONGEST_NUMBERS:
        raise place.fault(f"attribute '{attribute}': expected {expected}, found {len(text)} characters")
    items = [item for item in _BLANKS.split(text) if item]
    if not items or not all(map(_DECIMAL.fullmatch, items)):
        form = "a plain decimal number" if count == 1 else f"{count} plain decimal numbers"
        raise place.fault(f"attribute '{attribute}': expected {form}, found {quoted(text)}")
    if len(items) != count:
        raise place.fault(f"attribute '{attribute}': expected {expected}, found {len(items)} in {quoted(text)}")
    values = [float(item) for item in items]
    for item, value in zip(items, values, strict=True):
        if math.isinf(value):
            raise place.fault(f"attribute '{attribute}': the number {quoted(item)} is too large for a double")
    # + 0.0 turns -0.0 into 0.0, so that the notation of a zero does not change bits.
    return np.array(values) + 0.0


def reading(text: str) -> tuple[float | str, ...]:
    """Returns the items of an attribute with numbers parsed, to compare values independently of their notation."""
    items = [item for item in _BLANKS.split(text) if item]
    return tuple(float(item) if _DECIMAL.fullmatch(item) else item for item in items)


def array(value: Any, shape: tuple[int, ...], attribute: str, place: Place) -> Matrix:
    """Returns a loaded object's value as a finite array of the given shape."""
    try:
        result = np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise place.fault(f"attribute '{attribute}': expected {_shape(shape)}, found {quoted(_repr(value))}") from None
    if result.shape != shape:
        raise place.fault(f"attribute '{attribute}': expected {_shape(shape)}, found {_shape(result.shape)}")
    if not np.isfinite(result).all():
        raise place.fault(f"attribute '{attribute}': expected finite numbers, found {quoted(_repr(value))}")
    return result + 0.0


def scalar(value: Any, attribute: str, place: Place) -> float:
    """Returns a loaded object's value as a finite number; text follows the rules of `decimals`."""
    if isinstance(value, str):
        return float(decimals(value, 1, attribute, place)[0])
    if isinstance(value, bool):
        raise place.fault(f"attribute '{attribute}': expected a number, found {value}")
    return float(array(value, (), attribute, place))


def joint_type(kind: Any, place: Place) -> JointType:
    """Checks a joint type."""
    if kind in JOINT_TYPES:
        return str(kind)
    *types, last_type = JOINT_TYPES
    expected = ", ".join(types) + " or " + last_type
    suggestion = did_you_mean(kind, tuple(JOINT_TYPES))
    raise place.fault(f"the type {quoted(str(kind))} is unknown, expected {expected}{suggestion}")


def movement(kind: JointType) -> Joint:
    """Returns the joint class of a type, without axis and pitch."""
    return JOINT_TYPES[kind](np.array(X_AXIS), 0.0)


def types_by_word(format: Literal["mujoco", "sdf"]) -> dict[str, JointType]:
    """Returns the joint types by their names in a format, the first of those with the same name."""
    types: dict[str, JointType] = {}
    for kind in JOINT_TYPES:
        word = getattr(movement(kind), format)
        if word and " " not in word:
            types.setdefault(word, kind)
    return types


def type_with_limit(moves: Joint, limit: Limit | None) -> JointType:
    """Returns the type of a joint, in formats without a type of its own for joints without limits."""
    # A joint without limits turns freely, and only `continuous` ones may be wrapped by control laws.
    return moves.unranged_type if limit is None or (limit.lower is None and limit.upper is None) else moves.type


def unit_axis(values: Vector, place: Place, notes: list[Note]) -> Vector:
    """Returns an axis (3,), normalised; it must not be zero. `notes` receives a note if the length was not one."""
    length = math.hypot(*values)
    if length < SHORTEST_AXIS:
        raise place.fault(f"the axis is ({_numbers(values)}), expected a direction: its length is zero")
    if abs(length - 1.0) > UNIT:
        notes.append(place.note("changed", f"({_numbers(values)}) has length {length:.6g}; normalized"))
    return snapped(_unit(values))


def rotation_of_rpy(rpy: Vector) -> Matrix:
    """Returns R = Rz(yaw) Ry(pitch) Rx(roll), (3, 3), of rpy (3,) rad.

    Entries within `building.SNAP` of 0 or +-1 are rounded to it: with 16 digits, the cosine of pi/2 is 6e-17 instead of
    zero, and exact zeros make kernels shorter.
    """
    cr, cp, cy = (math.cos(angle) for angle in rpy)
    sr, sp, sy = (math.sin(angle) for angle in rpy)
    rows = [
        [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
        [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
        [-sp, cp * sr, cp * cr],
    ]
    return snapped(np.array(rows))


def rotation_of_quaternion(xyzw: Vector, place: Place, notes: list[Note]) -> Matrix:
    """Returns the rotation matrix of a quaternion (x, y, z, w), normalised."""
    length = math.hypot(*xyzw)
    if length < SHORTEST_AXIS:
        raise place.fault(f"attribute 'quat_xyzw': ({_numbers(xyzw)}) is zero, expected a rotation")
    if abs(length - 1.0) > UNIT:
        notes.append(place.note("changed", f"quaternion of length {length:.6g}; normalized"))
    x, y, z, w = _unit(xyzw)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return snapped(np.array(rows))


def pose_of_matrix(value: Any, place: Place) -> tuple[Vector, Matrix]:
    """Returns position and rotation of a loaded object's 4 x 4 pose; the identity for None."""
    if value is None:
        return np.zeros(3), np.eye(3)
    pose = array(value, (4, 4), "origin", place)
    rotation = pose[:3, :3]
    # Larger entries are no rotation, and their products could overflow.
    defect = np.abs(rotation @ rotation.T - np.eye(3)).max() if np.abs(rotation).max() < 2.0 else np.inf
    if defect > ORTHONORMAL or np.linalg.det(rotation) < 0.0 or not np.array_equal(pose[3], (0.0, 0.0, 0.0, 1.0)):
        raise place.fault("the pose is not a rigid motion, expected a rotation matrix above the row 0 0 0 1")
    return pose[:3, 3], snapped(rotation)


def mass(value: float, place: Place) -> float:
    """Checks that a mass, kg, is not negative."""
    if value < 0.0:
        raise place.fault(f"the mass is {value:g} kg, expected zero or more")
    return value


def inertia_of_moments(moments: Sequence[float]) -> Matrix:
    """Returns the inertia (3, 3) of ixx, ixy, ixz, iyy, iyz, izz; `structure.py` warns if no body has it."""
    xx, xy, xz, yy, yz, zz = moments
    return np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])


def inertia_of_matrix(value: Any, place: Place) -> Matrix:
    """Returns the inertia (3, 3) of a loaded object's symmetric matrix."""
    matrix = array(value, (3, 3), "inertia", place)
    if np.abs(matrix / 2 - matrix.T / 2).max() > SYMMETRIC * np.abs(matrix).max():
        raise place.fault("the inertia is not symmetric, expected a symmetric matrix")
    return matrix / 2 + matrix.T / 2


def checked_limit(joint: Joint, limit: Limit | None, place: Place, notes: list[Note]) -> Limit | None:
    """Returns the limit of a URDF joint, see `ranged_limit`.

    `notes` receives notes on missing limits that URDF requires; they are no errors, because no torque depends on them.
    """
    missing = [name for name in ("lower", "upper") if getattr(limit, name, None) is None]
    if joint.ranged and missing:
        text = f"the <limit> has no {' and no '.join(missing)}: unlimited there"
        text = "no <limit>, which URDF requires: the joint is unlimited" if limit is None else text
        notes.append(place.note("defaulted", text))
    return ranged_limit(joint, limit, place, notes)


def ranged_limit(joint: Joint, limit: Limit | None, place: Place, notes: list[Note]) -> Limit | None:
    """Returns the limit of a joint; without lower and upper, and with a note, if the joint's position has no range."""
    if limit is None or joint.ranged or not joint.nv or (limit.lower is None and limit.upper is None):
        return limit
    text = f"lower and upper of its <limit>: the position of a {joint.type} joint has no range"
    notes.append(place.note("dropped", text))
    return replace(limit, lower=None, upper=None)


def degree_note(rpy: Vector, origin: Place, joint: str = "") -> list[Note]:
    """Warns about rpy of more than a turn: it is probably in degrees, such as 90. joint: whose origin it is, if any."""
    if float(np.abs(rpy).max()) <= TURN:
        return []
    text, repair = f"rpy ({_numbers(rpy)}) is probably in degrees, expected rad", _numbers(np.radians(rpy))
    # An angle of 1 or -3 beside 90 may be in rad already.
    in_degrees = joint and ((rpy == np.round(rpy)) & ((rpy == 0.0) | (np.abs(rpy) > TURN))).all()
    edits = [Edit("joint", joint, "rpy", math.radians(1.0))] if in_degrees else []
    return [origin.warning("rpy-in-degrees", text, f"write {repair}", edits)]


def _unit(values: Vector) -> Vector:
    # Divided by the largest entry first: the length of (1e308, 1e308, 0) overflows.
    values = values / np.abs(values).max()
    return values / math.hypot(*values)


def _refuse_xacro(text: str, attribute: str, place: Place) -> None:
    if "${" in text or "$(" in text:
        message = f"attribute '{attribute}': {quoted(text)} is a xacro expression, expected URDF: run xacro first"
        raise place.fault(message)


def _numbers(values: Vector) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _shape(shape: tuple[int, ...]) -> str:
    return f"an array of {' x '.join(map(str, shape))} numbers" if shape else "a number"


def _repr(value: Any) -> str:
    return " ".join(repr(value).split())


LONGEST_QUOTE = 60
"""Maximum number of characters of the source that a message quotes."""


@dataclass(frozen=True)
class Place:
    """A place in a robot description.

    file: the path as given, `<text>`, or the kind of object. element: `robot 'panda'`, `link 'hand' inertial mass`, or
    None for the whole source. line: 1-based, 0 if the source has no lines.
    """

    file: str
    element: str | None = None
    line: int = 0

    def inside(self, label: str, line: int | None = None) -> Place:
        """Returns the place of `label` inside this element; `line` defaults to this element's line."""
        element = label if self.element is None else f"{self.element} {label}"
        return replace(self, element=element, line=self.line if line is None else line)

    def fault(self, message: str) -> UrdfError:
        """Returns an error at this place."""
        return UrdfError(message, file=self.file, line=self.line or None, element=self.element)

    def note(self, kind: NoteKind, text: str) -> Note:
        """Returns a note on this place."""
        return Note(kind, self.element or self.file, text, self.line)

    def warning(self, rule: str, text: str, repair: str = "", edits: Sequence[Edit] = ()) -> Note:
        """Returns a warning on this place; `rule`: its name in `parsing/rules.py`."""
        return replace(self.note("warning", text), rule=rule, repair=repair, edits=tuple(edits))

    @property
    def main_line(self) -> int:
        """The line in the robot's main file; 0 in an included one."""
        return self.line


@dataclass(frozen=True)
class Elsewhere(Place):
    """A place in an included file. Notes name the file, because their lines refer to the main file."""

    def note(self, kind: NoteKind, text: str) -> Note:
        """Returns a note on this place."""
        return Note(kind, f"{self.file}:{self.line}: {self.element}", text)

    @property
    def main_line(self) -> int:
        """0."""
        return 0


MAX_FAULTS = 20
"""Maximum number of faults that one error lists; each takes time, because similar names are searched."""


class Faults:
    """Collects the faults of independent elements and raises them as one error.

    The error is the first fault (its place and message); each further fault is on a line of its own.
    """

    def __init__(self) -> None:
        self._faults: list[UrdfError] = []

    @contextmanager
    def kept(self, explained: Callable[[UrdfError], UrdfError] = lambda fault: fault) -> Iterator[None]:
        """Keeps the fault raised in the block, so that the caller continues with the next element."""
        try:
            yield
        except UrdfError as fault:
            self._faults.append(explained(fault))
            if len(self._faults) == MAX_FAULTS:
                self.check()

    def check(self) -> None:
        """Raises the collected faults, if there are any."""
        if self._faults:
            first, *remaining = self._faults
            if len(self._faults) == MAX_FAULTS:
                remaining.append(UrdfError(f"further faults after these {MAX_FAULTS} are not looked for"))
            # Extended and not replaced, because place and line of the error are those of the first fault.
            first.message = "\n".join([first.message, *map(str, remaining)])
            raise first from None


def named(kind: str, name: str) -> str:
    """Returns the name of an element for messages: `link 'hand'`."""
    return f"{kind} {quoted(name)}"


def quoted(text: str) -> str:
    """Returns `text` in quotes, shortened, with control characters escaped."""
    return repr(text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 3] + "...")


def listed(names: list[str], max_count: int = 6) -> str:
    """Returns, for example, `'a', 'b', 'c' and 4 more`."""
    return listing([quoted(name) for name in names], max_count)


def counted(number: int, noun: str) -> str:
    """Returns, for example, `1 link` or `2 links`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def unused(number: int, noun: str, location: str) -> str:
    """Returns, for example, `2 <gazebo> elements in <robot> are not used`."""
    return f"{counted(number, noun)} {location} {'is' if number == 1 else 'are'} not used"


def shown_path(path: str | os.PathLike[str]) -> str:
    """Returns the path as text that can be encoded; file names may contain any bytes."""
    return os.fsdecode(path).encode(errors="backslashreplace").decode()

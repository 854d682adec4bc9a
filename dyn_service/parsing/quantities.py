"""Numbers of a robot description, checked: the one place where text or foreign objects become arrays.

Both importers (`urdf.py` from text, `loaded.py` from objects) end here, so that the same robot gives the same numbers
and the same fault whichever way it came. Conventions: rpy turns about fixed axes x, then y, then z,

    R = Rz(yaw) Ry(pitch) Rx(roll)

and every array that leaves this module is finite, float64, of the shape it says, and without -0.0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.building import snapped
from dyn_service.model.description import JointType, Limit, Note
from dyn_service.model.joints import JOINT_TYPES, Joint
from dyn_service.parsing.places import Place, quoted
from dyn_service.support.suggestions import did_you_mean

X_AXIS = (1.0, 0.0, 0.0)
NO_AXIS = "no <axis>: the x axis (1, 0, 0) is taken"
NO_JOINT_ORIGIN = "no <origin>: the child link's frame is the parent link's"
NO_INERTIAL_ORIGIN = "no <origin>: the centre of mass is the link's origin"
NO_INERTIA = "no <inertia>: zero is taken"
SHORTEST_AXIS = 1e-9
"""Below this length an axis is a zero with rounding errors, not a direction."""
UNIT = 1e-6
"""An axis or quaternion within this of unit length was meant so: files print six digits or more."""
ORTHONORMAL = 1e-6
"""A rotation matrix of a loaded object may be this far from orthonormal."""
SYMMETRIC = 1e-9
"""An inertia matrix of a loaded object may be this far from symmetric, as a share of its largest entry."""
TURN = 2.0 * math.pi + 0.01
"""rad; a whole turn, as files round it up."""
LONGEST_NAME = 256
"""Characters of a name; real ones have up to 60, and every message, topic and log repeats them."""
LONGEST_NUMBERS = 1000
"""Characters in which a few numbers must fit."""

# What float() takes beyond this is not a number of a URDF: nan, inf, 1_000, digits of other scripts.
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_BLANKS = re.compile(r"[ \t\r\n]+")


def name(text: str, place: Place) -> str:
    """The name, if it can be one.

    Raises:
        UrdfError: Empty or blank, very long, with a character that cannot be shown, or with a xacro expression in it.
    """
    if not text.strip():
        raise place.fault(f"the name is {quoted(text)}, expected one that is not blank")
    if len(text) > LONGEST_NAME:
        raise place.fault(f"the name has {len(text)} characters, expected at most {LONGEST_NAME}")
    if not text.isprintable():  # names stand in messages, lists and logs of everybody
        hidden = next(character for character in text if not character.isprintable())
        raise place.fault(f"the name {quoted(text)} has the character U+{ord(hidden):04X}, expected printable ones")
    _refuse_xacro(text, "name", place)
    return text


def decimals(text: str, count: int, attribute: str, place: Place) -> Vector:
    """Plain decimal numbers separated by blanks.

    Args:
        text: The attribute's value.
        count: How many are expected.
        attribute: Its name, for faults.
        place: Where it stands.

    Returns:
        (count,) finite numbers.

    Raises:
        UrdfError: A wrong count, something that is no plain decimal number, one that overflows, a xacro expression.
    """
    expected = "a number" if count == 1 else f"{count} numbers"
    _refuse_xacro(text, attribute, place)
    if len(text) > LONGEST_NUMBERS:
        raise place.fault(f"attribute '{attribute}': expected {expected}, found {len(text)} characters")
    words = [word for word in _BLANKS.split(text) if word]
    if not words or not all(map(_DECIMAL.fullmatch, words)):
        form = "a plain decimal number" if count == 1 else f"{count} plain decimal numbers"
        raise place.fault(f"attribute '{attribute}': expected {form}, found {quoted(text)}")
    if len(words) != count:
        raise place.fault(f"attribute '{attribute}': expected {expected}, found {len(words)} in {quoted(text)}")
    values = [float(word) for word in words]
    for word, value in zip(words, values, strict=True):
        if math.isinf(value):
            raise place.fault(f"attribute '{attribute}': the number {quoted(word)} is too large for a double")
    return np.array(values) + 0.0


def reading(text: str) -> tuple[float | str, ...]:
    """The words of an attribute, numbers as such: what it says, however it is written."""
    words = [word for word in _BLANKS.split(text) if word]
    return tuple(float(word) if _DECIMAL.fullmatch(word) else word for word in words)


def array(value: Any, shape: tuple[int, ...], what: str, place: Place) -> Matrix:
    """The value of a loaded object as a finite array of that shape.

    Raises:
        UrdfError: Not numbers, another shape, or not finite.
    """
    try:
        result = np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise place.fault(f"attribute '{what}': expected {_shape(shape)}, found {quoted(_repr(value))}") from None
    if result.shape != shape:
        raise place.fault(f"attribute '{what}': expected {_shape(shape)}, found {_shape(result.shape)}")
    if not np.isfinite(result).all():
        raise place.fault(f"attribute '{what}': expected finite numbers, found {quoted(_repr(value))}")
    return result + 0.0


def scalar(value: Any, what: str, place: Place) -> float:
    """The value of a loaded object as a finite number; text is held to the rules of `decimals`.

    Raises:
        UrdfError: Not a number, or not finite.
    """
    if isinstance(value, str):
        return float(decimals(value, 1, what, place)[0])
    if isinstance(value, bool):
        raise place.fault(f"attribute '{what}': expected a number, found {value}")
    return float(array(value, (), what, place))


def joint_type(kind: Any, place: Place) -> JointType:
    """The joint's type, if it is one of this version's.

    Raises:
        UrdfError: Any other.
    """
    if kind in JOINT_TYPES:
        return str(kind)
    *most, last = JOINT_TYPES
    expected = ", ".join(most) + " or " + last
    near = did_you_mean(kind, tuple(JOINT_TYPES))
    raise place.fault(f"the type {quoted(str(kind))} is unknown, expected {expected}{near}")


def movement(kind: JointType) -> Joint:
    """How joints of a type move, but for their axis and pitch."""
    return JOINT_TYPES[kind](np.array(X_AXIS), 0.0)


def unit_axis(values: Vector, place: Place, notes: list[Note]) -> Vector:
    """The axis at unit length.

    Args:
        values: (3,) finite, as written.
        place: The axis.
        notes: Gets a `changed` note where the length was not one.

    Raises:
        UrdfError: The axis is zero, so it has no direction.
    """
    length = math.hypot(*values)
    if length < SHORTEST_AXIS:
        raise place.fault(f"the axis is ({_numbers(values)}), expected a direction: its length is zero")
    if abs(length - 1.0) > UNIT:
        notes.append(place.note("changed", f"({_numbers(values)}) has length {length:.6g}; brought to unit length"))
    # By the largest entry first: the length of (1e308, 1e308, 0) is not a double.
    values = values / np.abs(values).max()
    return snapped(values / math.hypot(*values))


def rotation_of_rpy(rpy: Vector) -> Matrix:
    """R = Rz(yaw) Ry(pitch) Rx(roll), (3, 3), of rpy (3,) rad.

    Entries within `building.SNAP` of 0 or +-1 become exactly that. Multiples of pi/2 cannot be written exactly: with 16
    digits the cosine of pi/2 comes out as 6e-17, which means zero; an exact zero makes the kernels shorter.
    """
    cr, cp, cy = (math.cos(angle) for angle in rpy)
    sr, sp, sy = (math.sin(angle) for angle in rpy)
    return snapped(
        np.array(
            [
                [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
                [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
                [-sp, cp * sr, cp * cr],
            ]
        )
    )


def rotation_of_quaternion(xyzw: Vector, place: Place, notes: list[Note]) -> Matrix:
    """The rotation matrix of a quaternion (x, y, z, w), brought to unit length.

    Raises:
        UrdfError: The quaternion is zero.
    """
    length = math.hypot(*xyzw)
    if length < SHORTEST_AXIS:
        raise place.fault(f"attribute 'quat_xyzw': ({_numbers(xyzw)}) is zero, expected a rotation")
    if abs(length - 1.0) > UNIT:
        notes.append(place.note("changed", f"quaternion of length {length:.6g}; brought to unit length"))
    xyzw = xyzw / np.abs(xyzw).max()
    x, y, z, w = xyzw / math.hypot(*xyzw)
    return snapped(
        np.array(
            [
                [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
                [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
                [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
            ]
        )
    )


def pose_of_matrix(value: Any, place: Place) -> tuple[Vector, Matrix]:
    """Position and rotation of a loaded object's 4 x 4 pose; identity where it is None.

    Raises:
        UrdfError: Not a finite 4 x 4 matrix, or one that is no rigid motion.
    """
    if value is None:
        return np.zeros(3), np.eye(3)
    pose = array(value, (4, 4), "origin", place)
    rotation = pose[:3, :3]
    defect = np.abs(rotation @ rotation.T - np.eye(3)).max() if np.abs(rotation).max() < 2.0 else np.inf
    if defect > ORTHONORMAL or np.linalg.det(rotation) < 0.0 or not np.array_equal(pose[3], (0.0, 0.0, 0.0, 1.0)):
        raise place.fault("the pose is no rigid motion, expected a rotation matrix above the row 0 0 0 1")
    return pose[:3, 3], snapped(rotation)


def mass(value: float, place: Place) -> float:
    """The mass in kg, if it is one.

    Raises:
        UrdfError: Negative.
    """
    if value < 0.0:
        raise place.fault(f"the mass is {value:g} kg, expected zero or more")
    return value


def inertia_of_moments(moments: Sequence[float]) -> Matrix:
    """(3, 3) inertia of ixx, ixy, ixz, iyy, iyz, izz. Whether a body can have it is left to `doubts`."""
    xx, xy, xz, yy, yz, zz = moments
    return np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])


def inertia_of_matrix(value: Any, place: Place) -> Matrix:
    """(3, 3) inertia of a loaded object's matrix.

    Raises:
        UrdfError: Not 3 x 3 finite numbers, or not symmetric.
    """
    matrix = array(value, (3, 3), "inertia", place)
    if np.abs(matrix / 2 - matrix.T / 2).max() > SYMMETRIC * np.abs(matrix).max():
        raise place.fault("the inertia is not symmetric, expected a symmetric matrix")
    return matrix / 2 + matrix.T / 2


def limit_notes(joint: Joint, limit: Limit | None, place: Place) -> list[Note]:
    """Notes on limits that URDF asks for and the robot does not give. No torque depends on them, so none is refused."""
    if not joint.ranged:
        return []
    if limit is None:
        return [place.note("defaulted", "no <limit>, which URDF asks for: the joint is taken as unlimited")]
    missing = [name for name in ("lower", "upper") if getattr(limit, name) is None]
    if not missing:
        return []
    return [place.note("defaulted", f"the <limit> has no {' and no '.join(missing)}: unlimited there")]


def degree_note(rpy: Vector, origin: Place) -> list[Note]:
    """Doubts roll, pitch and yaw of more than a turn: nobody turns a frame round and round, but 90 is a right angle."""
    if float(np.abs(rpy).max()) <= TURN:
        return []
    return [origin.note("doubted", f"rpy ({_numbers(rpy)}) reads like degrees; angles are in rad")]


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

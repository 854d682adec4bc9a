"""Converts URDF objects of other packages to a `Description`, by their attributes; no package is imported.

Supported are urdfpy and its maintained fork urchin (`links`, `joints`, poses as 4 x 4 matrices) and yourdfpy (the same
under `.robot`). Changes that these packages make while reading can be undone only in part:

    urdfpy, urchin   replace a missing `<inertial>` by 1 kg and unit inertia, which is read as no inertia; normalise
                     axes, and replace a zero axis by x
    yourdfpy         keeps axes as written (normalised here) and damping and friction as text (read as numbers);
                     replaces a missing diagonal moment of inertia by 1; returns part of a robot for broken XML; drops
                     what closes loops, so that the robot is the tree that is left

Reading the file itself (`read_file`) avoids this and gives line numbers. All values are checked as for text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from dyn_service.errors import InvalidArgumentError
from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.description import UNUSED_SHAPES, Description, Inertial, Joint, Limit, Link, Mimic, Note
from dyn_service.model.joints import Joint as Moves
from dyn_service.parsing import quantities
from dyn_service.parsing.quantities import Faults, Place, counted, named, unused
from dyn_service.parsing.structure import assemble, is_stand_in, with_drives
from dyn_service.parsing.transmissions import not_used
from dyn_service.parsing.urdf.loops import loop_joints
from dyn_service.parsing.xml_elements import IgnoredContent, ReadLimits, constraints, decode, parse

ACCEPTED = "the path of a URDF file, its XML text, or a URDF object of urdfpy, urchin or yourdfpy"

INVENTING = ("urdfpy", "urchin")
"""Packages that give a link without `<inertial>` 1 kg and unit inertia at the link's origin."""

_NOTHING = object()

Default = TypeVar("Default", float, None)


def read(source: object) -> Description:
    """Reads a robot from a loaded URDF object.

    source: a `URDF` of urdfpy, urchin or yourdfpy.

    Returns:
        The description; its `source` names package and class. Numbers are those of the object, which may differ from
        the file's.

    Raises:
        InvalidArgumentError: The object has another type.
        UrdfError: The robot is malformed; names the element.

    Checked by:
        tests/parsing/urdf/test_loaded_objects.py
    """
    kind = type(source)
    holder = source
    if not _is_robot(holder):
        holder = getattr(source, "robot", None)
    if not _is_robot(holder):
        raise InvalidArgumentError(f"source is of type {kind.__module__}.{kind.__qualname__}; expected {ACCEPTED}")
    label = f"<{kind.__module__.partition('.')[0]} {kind.__name__}>"
    robot = Place(label, "robot")
    name = _name(holder, "name", robot)
    robot = Place(label, named("robot", name))
    elements: tuple[list[Any], list[Any]] = (list(_get(holder, "links", robot)), list(_get(holder, "joints", robot)))
    notes: list[Note] = []
    faults, links, joints = Faults(), list[Link](), list[Joint]()
    for link in elements[0]:
        with faults.kept():
            links.append(_link(link, label, notes))
    for joint in elements[1]:
        with faults.kept():
            joints.append(_joint(joint, label, notes))
    faults.check()
    notes += _ignored_notes(holder, *elements, robot)
    joints = with_drives(joints, _driven(holder))
    described = assemble(name, links, joints, notes, robot)
    # urdfpy and urchin keep elements that they do not know as text
    unknown = getattr(holder, "other_xml", None)
    if not unknown:
        return described
    limits = ReadLimits()
    root = parse(decode(unknown, label, limits) if isinstance(unknown, bytes) else unknown, label, limits).root
    closing = constraints(root)
    if not closing:
        return described
    closing_joints = [replace(joint, line=0) for joint in loop_joints(closing, described, notes, IgnoredContent())]
    return assemble(name, links, joints, notes, robot, closing_joints)


def _is_robot(source: object) -> bool:
    return all(isinstance(getattr(source, name, None), Sequence) for name in ("links", "joints"))


def _driven(holder: object) -> set[str]:
    """Returns the names of the joints of transmissions with an actuator."""
    transmissions = getattr(holder, "transmissions", None) or getattr(holder, "transmission", None) or ()
    return {joint.name for x in transmissions if getattr(x, "actuators", None) for joint in x.joints or ()}


def _link(link: object, label: str, notes: list[Note]) -> Link:
    name = _name(link, "name", Place(label, "link"))
    place = Place(label, named("link", name)).inside("inertial")
    inertial = _get(link, "inertial", place)
    if inertial is None:
        return Link(name)
    com, rotation = _pose(inertial, quantities.NO_INERTIAL_ORIGIN, place, notes)
    mass_place = place.inside("mass")
    value = _get(inertial, "mass", place)
    if value is None:
        raise mass_place.fault("the mass is None, expected a number")
    mass = quantities.mass(quantities.scalar(value, "mass", mass_place), mass_place)
    value = _get(inertial, "inertia", place)
    if value is None:
        notes.append(place.note("defaulted", quantities.NO_INERTIA))
        return Link(name, Inertial(mass, com, rotation, np.zeros((3, 3))))
    weight = Inertial(mass, com, rotation, quantities.inertia_of_matrix(value, place.inside("inertia")))
    package = type(link).__module__.partition(".")[0]
    # The packages' own inertia has the exact identity as its pose; one read from rpy="0 0 0" has a sine of -0.0.
    if package in INVENTING and is_stand_in(weight) and not np.signbit(np.asarray(inertial.origin, float)).any():
        text = (
            f"1 kg and unit inertia at the link's origin, which {package} gives a link without <inertial>: read as no "
            "inertia; if the file itself has these numbers, read the file"
        )
        notes.append(place.note("changed", text))
        return Link(name)
    return Link(name, weight)


def _joint(joint: object, label: str, notes: list[Note]) -> Joint:
    name = _name(joint, "name", Place(label, "joint"))
    place = Place(label, named("joint", name))
    # urdfpy and urchin call it joint_type, yourdfpy type.
    joint_kind = getattr(joint, "joint_type", None)
    kind = quantities.joint_type(_get(joint, "type", place) if joint_kind is None else joint_kind, place)
    moves = quantities.movement(kind)
    if moves.threaded:
        raise place.fault(f"the type is '{kind}', and loaded objects do not have its pitch: pass the file or its text")
    parent, child = _name(joint, "parent", place.inside("parent")), _name(joint, "child", place.inside("child"))
    xyz, rotation = _pose(joint, quantities.NO_JOINT_ORIGIN, place, notes)
    axis = _axis(joint, place, notes, moves)
    limit = quantities.checked_limit(moves, _limit(joint, place), place, notes)
    dynamics = _get(joint, "dynamics", place)
    dynamics_place = place.inside("dynamics")
    damping, friction = (_number(dynamics, parameter, 0.0, dynamics_place) for parameter in ("damping", "friction"))
    mimic = _mimic(joint, place)
    return Joint(name, kind, parent, child, xyz, rotation, axis, limit, damping, friction, mimic)


def _axis(joint: object, place: Place, notes: list[Note], moves: Moves) -> Vector:
    value = _get(joint, "axis", place)
    if value is None or not moves.nv:
        if "axis" in moves.parameters:
            notes.append(place.note("defaulted", quantities.NO_AXIS))
        return np.array(quantities.X_AXIS)
    axis_place = place.inside("axis")
    return quantities.unit_axis(quantities.array(value, (3,), "axis", axis_place), axis_place, notes)


def _limit(joint: object, place: Place) -> Limit | None:
    limit = _get(joint, "limit", place)
    if limit is None:
        return None
    limit_place = place.inside("limit")
    return Limit(
        *(_number(limit, parameter, None, limit_place) for parameter in ("lower", "upper", "effort", "velocity"))
    )


def _mimic(joint: object, place: Place) -> Mimic | None:
    mimic = _get(joint, "mimic", place)
    if mimic is None:
        return None
    mimic_place = place.inside("mimic")
    multiplier, offset = _number(mimic, "multiplier", 1.0, mimic_place), _number(mimic, "offset", 0.0, mimic_place)
    return Mimic(_name(mimic, "joint", mimic_place), multiplier, offset)


def _pose(holder: object, default: str, place: Place, notes: list[Note]) -> tuple[Vector, Matrix]:
    value = _get(holder, "origin", place)
    if value is None:
        notes.append(place.note("defaulted", default))
        return np.zeros(3), np.eye(3)
    return quantities.pose_of_matrix(value, place.inside("origin"))


def _ignored_notes(holder: object, links: list[Any], joints: list[Any], robot: Place) -> Iterator[Note]:
    """Returns notes on ignored content of the object, with the texts of the URDF reader."""
    shaped = sum(bool(getattr(link, "visuals", None) or getattr(link, "collisions", None)) for link in links)
    if shaped:
        yield robot.note("dropped", f"geometry of {counted(shaped, 'link')} {UNUSED_SHAPES}")
    number = len(getattr(holder, "transmissions", None) or getattr(holder, "transmission", None) or ())
    if number:
        yield robot.note("dropped", not_used(number))
    counts: dict[tuple[str, str], int] = {}
    for tag in ("safety_controller", "calibration"):
        counts[tag, "joint"] = sum(getattr(joint, tag, None) is not None for joint in joints)
    for (tag, parent_tag), count in counts.items():
        if count:
            yield robot.note("dropped", unused(count, f"<{tag}> element", f"in <{parent_tag}>"))


def _get(holder: object, name: str, place: Place) -> Any:
    value = getattr(holder, name, _NOTHING)
    if value is _NOTHING:
        raise place.fault(f"the {type(holder).__name__} object has no attribute '{name}', expected {ACCEPTED}")
    return value


def _name(holder: object, attribute: str, place: Place) -> str:
    value = _get(holder, attribute, place)
    if not isinstance(value, str):
        raise place.fault(f"the {attribute} is of type {type(value).__name__}, expected text")
    return quantities.name(value, place)


def _number(holder: object, name: str, default: Default, place: Place) -> float | Default:
    value = None if holder is None else _get(holder, name, place)
    return default if value is None else quantities.scalar(value, name, place)

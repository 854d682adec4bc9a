"""Joint files: passive parameters of joints that the robot file does not contain.

    robot: panda
    joints:
      panda_joint1:
        damping: 0.5            # N m s/rad | N s/m
        friction: 0.27          # N m | N, Coulomb's
        friction_width: 0.4     # rad/s | m/s, over which it is smoothed
        armature: 0.6           # kg m^2 | kg; or the rotor's inertia and the turns of the motor for one of the joint:
        # rotor_inertia: 6.0e-5 # kg m^2
        # gear_ratio: 100       # rad/rad | rad/m; left out: the reduction of the joint's <transmission>
        stiffness: 3.0          # N m/rad | N/m, of a spring
        rest: 0.5               # rad | m, where it pulls to

Values that are left out are those of the robot file. Example, with the sources of its figures:
`config/panda_joints.yaml`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from dyn_service.model.description import Description, Joint, Note
from dyn_service.model.passive import MIN_WIDTH, reflected
from dyn_service.support.documents import Document, read_document
from dyn_service.support.suggestions import did_you_mean


class JointEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The passive parameters of a joint; None: not given. Names and units as in the module's docstring."""

    damping: float | None = None
    friction: float | None = None
    friction_width: float | None = None
    armature: float | None = None
    rotor_inertia: float | None = None
    gear_ratio: float | None = None
    stiffness: float | None = None
    rest: float | None = None


class JointFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """robot: name of the robot. joints: a `JointEntry` by joint name."""

    robot: str
    joints: dict[str, Any]


_PLAIN = ("damping", "friction", "friction_width", "armature", "stiffness", "rest")
_ANY_SIGN = ("rest", "gear_ratio")


def robot_of(path: str | os.PathLike[str]) -> str:
    """Returns the name of the robot of a joint file.

    Raises:
        NotFoundError: The file does not exist.
        ConfigurationError: It is not a joint file; names file, line and key.
    """
    return _read(path)[0].robot


def with_joint_file(description: Description, path: str | os.PathLike[str]) -> Description:
    """Returns the robot with the parameters of a joint file, with a note on each joint.

    Raises:
        NotFoundError: The file does not exist.
        ConfigurationError: It is not a joint file, is for another robot, names a joint that the robot does not have, or
            has an invalid number; names file, line and key.
    """
    file, document = _read(path)
    if file.robot != description.name:
        message = f"the file is for robot '{file.robot}', the robot is '{description.name}'"
        raise document.fault(message, ("robot",))
    joints = {joint.name: joint for joint in description.joints}
    notes: list[Note] = []
    for name, said in file.joints.items():
        entry = document.convert(said, JointEntry, ("joints", name))  # one by one, so that an error names the joint
        given = [field for field in entry.__struct_fields__ if getattr(entry, field) is not None]
        joints[name] = _changed(joints, name, entry, given, document)
        line = document.lines[("joints", name)]
        text = f"{', '.join(given) or 'nothing'} as {document.file}:{line} says"
        notes.append(Note("changed", f"joint '{name}'", text, joints[name].line))
    return replace(description, joints=tuple(joints.values()), notes=(*description.notes, *notes))


def _read(path: str | os.PathLike[str]) -> tuple[JointFile, Document]:
    document = read_document(Path(path))
    return document.convert(document.value, JointFile), document


def _changed(joints: dict[str, Joint], name: str, entry: JointEntry, given: Sequence[str], document: Document) -> Joint:
    place = ("joints", name)
    joint = joints.get(name)
    if joint is None:
        known = [each for each, one in joints.items() if one.moves.nv]
        raise document.fault(f"the robot has no joint '{name}'{did_you_mean(name, known)}", place)
    if not joint.moves.nv:
        raise document.fault(f"joint '{name}' is fixed, expected one that moves", place)
    for field in given:
        value = getattr(entry, field)
        if not math.isfinite(value) or (field not in _ANY_SIGN and value < 0.0):
            least = "a finite number" if field in _ANY_SIGN else "a finite number, at least 0"
            raise document.fault(f"expected {least}, found {value:g}", (*place, field))
    if entry.friction_width is not None and entry.friction_width < MIN_WIDTH:
        message = f"expected a width of at least {MIN_WIDTH:g}, found {entry.friction_width:g}"
        raise document.fault(message, (*place, "friction_width"))
    for field, part in (("stiffness", "stiffness"), ("armature", "armature"), ("rotor_inertia", "armature")):
        why = joint.moves.refused(part) if getattr(entry, field) else None
        if why is not None:
            raise document.fault(why, (*place, field))
    joint = replace(joint, **{field: getattr(entry, field) for field in given if field in _PLAIN})
    ratio = joint.reduction if entry.gear_ratio is None else entry.gear_ratio
    if entry.rotor_inertia is None:
        if entry.gear_ratio is not None:
            raise document.fault("expected a rotor_inertia with the gear_ratio, found none", (*place, "gear_ratio"))
        return joint
    if entry.armature is not None:
        raise document.fault("expected an armature or a rotor_inertia, found both", (*place, "rotor_inertia"))
    if ratio is None:
        message = "expected a gear_ratio, found none here and none in a <transmission> of the robot's file"
        raise document.fault(message, (*place, "rotor_inertia"))
    armature = reflected(entry.rotor_inertia, ratio)
    if not math.isfinite(armature):
        message = f"with gear ratio {ratio:g} the armature is {armature:g}, expected a finite number"
        raise document.fault(message, (*place, "rotor_inertia"))
    return replace(joint, armature=armature, reduction=ratio)

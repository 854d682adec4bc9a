"""Joint files: passive parameters of joints, motors and loop joints that the robot file lacks.

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
        rest: 0.5               # rad | m, position without force of the spring
        driven: true            # a motor moves it; joints without this key are passive then
    motors:
      panda_joint1:             # fields of `model.motors.Motor`; torque_constant is needed if the robot file has no
                                # motor for the joint, a missing gear_ratio is the reduction of its <transmission>
        gear_ratio: 100
        torque_constant: 0.1    # N m/A of the rotor
        rotor_inertia: 6.0e-5   # kg m^2: sets the joint's armature
        resistance: 0.5         # ohm
        current_limit: 10       # A
        voltage_limit: 48       # V, needs the resistance
        thermal_resistance: 2.0         # K/W; this and the next together, with the resistance
        thermal_time_constant_s: 30
        temperature_limit_celsius: 100
        ambient_celsius: 25
        gear_stiffness: 2.0e+4  # N m/rad | N/m at the joint; without it the gear is rigid
        gear_damping: 20        # N m s/rad | N s/m at the joint
        backlash: 1.0e-3        # rad | m at the joint, full width of the gap
    loops:
      pin:                      # a joint that closes a loop; no other joint has its name
        type: revolute          # any type of joint; fixed: a weld
        parent: coupler         # links of the robot
        child: rocker
        parent_origin: {xyz: [0.5, 0, 0], rpy: [0, 0, 0]}   # m, rad: the joint frame in the parent link's frame
        child_origin: {xyz: [0.3, 0, 0]}                    # and in the child link's; both zero by default
        axis: [0, 0, 1]         # in the joint frame, for types with an axis
        # pitch: 0.01           # m per turn, of a screw

Values that are left out are those of the robot file. `driven: true` of any joint replaces all motors of the robot file;
`driven: false` alone makes single joints passive. Example, with the sources of its figures:
`config/panda_joints.yaml`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import yaml

from dyn_service.errors import UrdfError
from dyn_service.model.arrays import Vector
from dyn_service.model.description import Description, Joint, LoopJoint, Note
from dyn_service.model.joints import JOINT_TYPES
from dyn_service.model.motors import Motor
from dyn_service.model.passive import MIN_WIDTH, reflected
from dyn_service.parsing import quantities
from dyn_service.parsing.pose import Pose, rpy_of
from dyn_service.parsing.structure import follower_notes, loop_fault, with_drives
from dyn_service.support.documents import Document, read_document
from dyn_service.support.suggestions import did_you_mean

LOOPS_SUFFIX = ".loops.yaml"
"""Suffix of the joint file with the loops of a robot that is written as URDF."""

JOINTS_SUFFIX = ".joints.yaml"
"""Suffix of the joint file with the passive parameters of a robot that is written with them."""


class JointEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of a joint; None: not given. Names and units as in the module's docstring."""

    damping: float | None = None
    friction: float | None = None
    friction_width: float | None = None
    armature: float | None = None
    rotor_inertia: float | None = None
    gear_ratio: float | None = None
    stiffness: float | None = None
    rest: float | None = None
    driven: bool | None = None


class OriginEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frame in a link's frame, as in URDF. xyz: m. rpy: rad."""

    xyz: tuple[float, float, float] = (0.0, 0.0, 0.0)
    rpy: tuple[float, float, float] = (0.0, 0.0, 0.0)


class LoopEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A joint that closes a loop. Names and units as in the module's docstring."""

    type: str
    parent: str
    child: str
    parent_origin: OriginEntry = OriginEntry()
    child_origin: OriginEntry = OriginEntry()
    axis: tuple[float, float, float] | None = None
    pitch: float | None = None


class JointFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """robot: name of the robot. By joint name: joints: a `JointEntry`. motors: a `Motor`. loops: a `LoopEntry`."""

    robot: str
    joints: dict[str, Any] = {}
    motors: dict[str, Any] = {}
    loops: dict[str, Any] = {}


_PLAIN = ("damping", "friction", "friction_width", "armature", "stiffness", "rest", "driven")
_ANY_SIGN = ("rest", "gear_ratio")


def robot_of(path: str | os.PathLike[str]) -> str:
    """Returns the name of the robot of a joint file.

    Raises:
        NotFoundError: The file does not exist.
        ConfigurationError: It is not a joint file; names file, line and key.
    """
    document = read_document(Path(path))
    return document.convert(document.value, JointFile).robot


def with_joint_file(description: Description, source: str | os.PathLike[str] | Document) -> Description:
    """Returns the robot with the parameters of a joint file, a path or its content, with a note on each joint.

    Raises:
        NotFoundError: The file does not exist.
        ConfigurationError: It is not a joint file, is for another robot, names a joint that the robot does not have, or
            has an invalid number; names file, line and key.
    """
    document = source if isinstance(source, Document) else read_document(Path(source))
    file = document.convert(document.value, JointFile)
    if file.robot != description.name:
        message = f"the file is for robot '{file.robot}', the robot is '{description.name}'"
        raise document.fault(message, ("robot",))
    joints = {joint.name: joint for joint in description.joints}
    entries: dict[str, JointEntry] = {}
    notes: list[Note] = []
    for name, parameters in file.joints.items():
        # One by one, so that an error names the joint.
        entries[name] = entry = document.convert(parameters, JointEntry, ("joints", name))
        field_names = [field for field in entry.__struct_fields__ if getattr(entry, field) is not None]
        joints[name] = _with_entry(joints, name, entry, field_names, document)
        line = document.lines[("joints", name)]
        text = f"{', '.join(field_names) or 'nothing'} of {document.file}:{line}"
        notes.append(Note("changed", f"joint '{name}'", text, joints[name].line))
    for name, parameters in file.motors.items():
        text = f"motor of {document.file}:{document.lines['motors', name]}"
        file_motor = joints[name].motor if name in joints else None
        if file_motor is not None and isinstance(parameters, Mapping):
            parameters = {**msgspec.to_builtins(file_motor), **parameters}
            text = f"{text}, and of the robot's file ({file_motor})"
        motor = document.convert(parameters, Motor, ("motors", name))
        joints[name] = _with_motor(joints, name, motor, entries.get(name, JointEntry()), document)
        notes.append(Note("changed", f"joint '{name}'", f"{text}: {joints[name].motor}", joints[name].line))
    driven_joints = {name for name, entry in entries.items() if entry.driven}
    described = replace(description, joints=tuple(with_drives(joints.values(), driven_joints)))
    for name in file.loops:
        loop_joint = _loop_joint(described, name, file, document)
        described = replace(described, loop_joints=(*described.loop_joints, loop_joint))
    if file.loops:
        notes += follower_notes(described)
    return replace(described, notes=(*description.notes, *notes))


def written(description: Description, *, passive: bool = False) -> str:
    """Returns the text of a joint file with the loop joints, driven joints and motors of a robot.

    passive: also with the passive parameters of its joints that have an effect.
    """
    loops: dict[str, Any] = {}
    for joint in description.loop_joints:
        entry: dict[str, Any] = {"type": joint.type, "parent": joint.parent, "child": joint.child}
        for end, xyz, rotation in joint.frames:
            is_turned = not np.array_equal(rotation, np.eye(3))
            rpy = {"rpy": (rpy_of(rotation) + 0.0).tolist()} if is_turned else {}
            entry[f"{end}_origin"] = {"xyz": (xyz + 0.0).tolist(), **rpy}
        if "axis" in joint.moves.parameters:
            entry["axis"] = (joint.axis + 0.0).tolist()
        loops[joint.name] = {**entry, **({"pitch": joint.pitch} if joint.moves.threaded else {})}
    joints = {}
    for described in description.joints:
        fields = _passive_fields(described) if passive else {}
        if described.driven is not None:
            fields["driven"] = described.driven
        if fields:
            joints[described.name] = fields
    # the rotor is in the joint's armature
    motors = {
        joint.name: msgspec.to_builtins(msgspec.structs.replace(joint.motor, rotor_inertia=None))
        for joint in description.joints
        if joint.motor is not None
    }
    document = {
        "robot": description.name,
        **({"loops": loops} if loops else {}),
        **({"joints": joints} if joints else {}),
        **({"motors": motors} if motors else {}),
    }
    return str(yaml.safe_dump(document, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120))


def _passive_fields(joint: Joint) -> dict[str, Any]:
    """Returns the passive parameters of a joint that have an effect, by their keys."""
    fields: dict[str, Any] = {}
    for parameter, partner in (
        ("damping", ""),
        ("friction", "friction_width"),
        ("armature", ""),
        ("stiffness", "rest"),
    ):
        if getattr(joint, parameter):
            fields |= {
                key: float(getattr(joint, key)) for key in (parameter, partner) if getattr(joint, key, None) is not None
            }
    return fields


def _loop_joint(description: Description, name: str, file: JointFile, document: Document) -> LoopJoint:
    place = ("loops", name)
    entry = document.convert(file.loops[name], LoopEntry, place)
    try:
        quantities.name(name, quantities.Place(document.file))
    except UrdfError as fault:
        raise document.fault(fault.message, place) from None
    if entry.type not in JOINT_TYPES:
        # One without blocked directions closes no loop, see `loop_fault`.
        types = [name for name, kind in JOINT_TYPES.items() if not kind(np.array(quantities.X_AXIS), 0.0).free]
        suggestion = did_you_mean(entry.type, types)
        expected = f"expected one of {', '.join(types)}"
        raise document.fault(f"the type '{entry.type}' is unknown, {expected}{suggestion}", (*place, "type"))
    axis = _axis(entry, (*place, "axis"), document)
    moves = JOINT_TYPES[entry.type](axis, 0.0)
    if (entry.pitch is not None) != moves.threaded or not math.isfinite(entry.pitch or 0.0):
        expected = "a finite number, m per turn" if moves.threaded else f"none: a {entry.type} joint has no pitch"
        value = "nothing" if entry.pitch is None else f"{entry.pitch:g}"
        raise document.fault(f"expected {expected}, found {value}", (*place, "pitch"))
    parent, child = (_origin(getattr(entry, key), (*place, key), document) for key in ("parent_origin", "child_origin"))
    joint = LoopJoint(
        name, entry.type, entry.parent, entry.child, parent.origin, parent.rotation, child.origin, child.rotation,
        axis, entry.pitch or 0.0,
    )  # fmt: skip
    if message := loop_fault(description, joint):
        raise document.fault(message, place)
    return joint


def _axis(entry: LoopEntry, place: tuple[str, ...], document: Document) -> Vector:
    default = np.array(quantities.X_AXIS)
    has_axis = "axis" in JOINT_TYPES[entry.type](default, 0.0).parameters
    if has_axis != (entry.axis is not None):
        expected = "three numbers, a direction in the joint frame" if has_axis else "none"
        value = "nothing" if entry.axis is None else f"{list(entry.axis)}"
        raise document.fault(f"a {entry.type} joint: expected {expected}, found {value}", place)
    if entry.axis is None:
        return default
    values = _finite(entry.axis, place, document)
    try:
        return quantities.unit_axis(values, quantities.Place(document.file), [])
    except UrdfError as fault:
        raise document.fault(fault.message, place) from None


def _origin(entry: OriginEntry, place: tuple[str, ...], document: Document) -> Pose:
    xyz, rpy = (_finite(getattr(entry, key), (*place, key), document) for key in ("xyz", "rpy"))
    return Pose(quantities.rotation_of_rpy(rpy), xyz)


def _finite(values: tuple[float, ...], place: tuple[str, ...], document: Document) -> Vector:
    if not all(map(math.isfinite, values)):
        raise document.fault(f"expected finite numbers, found {list(values)}", place)
    return np.array(values, dtype=np.float64) + 0.0


def _moving_joint(joints: Mapping[str, Joint], name: str, place: tuple[str, ...], document: Document) -> Joint:
    joint = joints.get(name)
    if joint is None:
        movable = [other for other, candidate in joints.items() if candidate.moves.nv]
        raise document.fault(f"the robot has no joint '{name}'{did_you_mean(name, movable)}", place)
    if not joint.moves.nv:
        raise document.fault(f"joint '{name}' is fixed, expected one that moves", place)
    return joint


def _with_motor(joints: Mapping[str, Joint], name: str, motor: Motor, entry: JointEntry, document: Document) -> Joint:
    """Returns the joint with the motor; entry: of the same joint in the same file."""
    place = ("motors", name)
    joint = _moving_joint(joints, name, place, document)
    field, message = motor.fault()
    if field:
        raise document.fault(message, (*place, field) if getattr(motor, field) is not None else place)
    if not joint.moves.single_dof:
        raise document.fault("expected a joint with one degree of freedom", place)
    ratio = joint.reduction if motor.gear_ratio is None else motor.gear_ratio
    if ratio is None:
        message = "expected a gear_ratio, found none here and none in a <transmission> of the robot's file"
        raise document.fault(message, place)
    joint = replace(joint, motor=msgspec.structs.replace(motor, gear_ratio=ratio))
    if motor.rotor_inertia is None:
        if motor.gear_stiffness is not None and not joint.armature:
            message = "expected a rotor_inertia with the gear_stiffness, or an armature of the joint, found none"
            raise document.fault(f"{message}: the rotor moves by itself behind its gear", (*place, "gear_stiffness"))
        return joint
    if entry.armature is not None or entry.rotor_inertia is not None:
        message = "expected the rotor of one place, found another under joints"
        raise document.fault(message, (*place, "rotor_inertia"))
    return _with_rotor(joint, motor.rotor_inertia, ratio, (*place, "rotor_inertia"), document)


def _with_rotor(joint: Joint, inertia: float, ratio: float, place: tuple[str, ...], document: Document) -> Joint:
    armature = reflected(inertia, ratio)
    if not math.isfinite(armature):
        message = f"with gear ratio {ratio:g} the armature is {armature:g}, expected a finite number"
        raise document.fault(message, place)
    return replace(joint, armature=armature, reduction=ratio)


def _with_entry(
    joints: dict[str, Joint], name: str, entry: JointEntry, field_names: Sequence[str], document: Document
) -> Joint:
    place = ("joints", name)
    joint = _moving_joint(joints, name, place, document)
    for field in field_names:
        value = getattr(entry, field)
        if field == "driven":
            continue
        if not math.isfinite(value) or (field not in _ANY_SIGN and value < 0.0):
            expected = "a finite number" if field in _ANY_SIGN else "a finite number, at least 0"
            raise document.fault(f"expected {expected}, found {value:g}", (*place, field))
    if entry.friction_width is not None and entry.friction_width < MIN_WIDTH:
        message = f"expected a width of at least {MIN_WIDTH:g}, found {entry.friction_width:g}"
        raise document.fault(message, (*place, "friction_width"))
    for field, part in (("stiffness", "stiffness"), ("armature", "armature"), ("rotor_inertia", "armature")):
        cause = joint.moves.refused(part) if getattr(entry, field) else None
        if cause is not None:
            raise document.fault(cause, (*place, field))
    joint = replace(joint, **{field: getattr(entry, field) for field in field_names if field in _PLAIN})
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
    return _with_rotor(joint, entry.rotor_inertia, ratio, (*place, "rotor_inertia"), document)

"""`<transmission>` elements: the gear ratio of a joint, the torque constant of its motor, the inertia of its rotor.

    armature = rotor inertia * reduction^2

    <transmission name="t"><joint name="elbow"/>
      <actuator name="m"><mechanicalReduction>100</mechanicalReduction>          in the joint or above, too
        <drake:rotor_inertia value="1e-5"/><drake:gear_ratio value="100"/>       as Drake writes it, counts first
        <motorTorqueConstant>0.06</motorTorqueConstant>        N m/A of the rotor, in the transmission, too
      </actuator></transmission>
    <ros2_control name="s" type="system">
      <joint name="elbow"><param name="torque_constant">0.06</param><param name="gear_ratio">100</param></joint>
      <transmission name="t"><joint name="elbow"><mechanical_reduction>100</mechanical_reduction></joint></transmission>
    </ros2_control>

A `motorTorqueConstant` of 1 is not used: the templates of PR2's transmissions have it for every motor.

URDF itself has no rotor inertia, so few files give one. A reduction without it is kept for joint files that give the
rotor (`joint_files.py`). Efforts are joint efforts, independent of the reduction. Invalid transmissions, and those that
couple several joints, are ignored with a note: no file is refused for a transmission.

Joints of transmissions are driven, and so are joints with a command interface:

    <ros2_control name="s" type="system"><joint name="elbow"><command_interface name="effort"/></joint></ros2_control>
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dyn_service.errors import UrdfError
from dyn_service.model.description import Joint, Note
from dyn_service.model.motors import Motor
from dyn_service.model.passive import reflected
from dyn_service.parsing import quantities
from dyn_service.parsing.quantities import Place, counted, named, quoted
from dyn_service.parsing.xml_elements import Element

TAG = "transmission"
CONTROL = "ros2_control"
_REDUCTION, _CONTROL_REDUCTION = "mechanicalReduction", "mechanical_reduction"
_CONSTANT, _PLACEHOLDER = "motorTorqueConstant", 1.0
_NO_MOTOR = "its torque constant is not used"
RATIO, ROTOR = "drake:gear_ratio", "drake:rotor_inertia"


def with_transmissions(root: Element, joints: Sequence[Joint], robot: Place) -> tuple[list[Joint], list[Note]]:
    """Returns the joints with reductions and armatures from transmissions, and notes on what was not used."""
    updated = list(joints)
    index_of = {joint.name: k for k, joint in enumerate(updated)}
    notes: list[Note] = []
    idle: list[Element] = []
    for element in root.all(TAG):
        place = Place(robot.file, named(TAG, element.attributes.get("name", "")), element.line)
        try:
            reduction, rotor = _gear(element, place)
        except UrdfError as fault:
            notes.append(place.warning("unused-rotor", f"{fault.message}: not used"))
            continue
        joint_names = [joint.attributes.get("name", "") for joint in element.all("joint")]
        k = index_of.get(joint_names[0]) if len(joint_names) == 1 and len(element.all("actuator")) == 1 else None
        if k is None or not updated[k].moves.nv:
            if rotor is None:
                idle.append(element)
                continue
            cause = f"it drives {', '.join(map(quoted, joint_names)) or 'nothing'}, expected one joint that moves"
            notes.append(place.warning("unused-rotor", f"{cause}, by one actuator: its rotor inertia is not used"))
            continue
        joint = updated[k]
        if reduction is not None:
            if joint.reduction not in (None, reduction):
                text = f"a gear of {reduction:g} at joint '{joint.name}', which has one of {joint.reduction:g} already"
                notes.append(place.warning("unused-rotor", f"{text}: the last is kept"))
            updated[k] = joint = replace(joint, reduction=reduction)
        constant = _torque_constant(element, place, notes)
        if constant is not None:
            updated[k] = joint = _with_motor(joint, constant, place, notes)
        notes += _offsets(element, place)
        if rotor is None:
            idle.append(element)
        elif (refusal := joint.moves.refused("armature")) is not None:
            notes.append(place.warning("unused-rotor", f"{refusal}: its rotor inertia is not used"))
        else:
            ratio = 1.0 if reduction is None else reduction
            armature = reflected(rotor, ratio)
            text = f"rotor inertia {rotor:g} kg m^2 behind a gear of {ratio:g}: armature {armature:g}"
            if math.isfinite(joint.armature + armature):
                updated[k] = replace(joint, armature=joint.armature + armature)
                notes.append(place.note("changed", text))
            else:
                notes.append(place.warning("unused-rotor", f"{text}, expected a finite one: not used"))
    if idle:
        first = Place(robot.file, robot.element, idle[0].line)
        notes.append(first.note("dropped", not_used(len(idle))))
    for system in root.all(CONTROL):
        for element in [*system.all(TAG), *system.all("joint")]:
            notes += _controlled(element, updated, index_of, robot)
    return updated, notes


def _controlled(element: Element, joints: list[Joint], index_of: Mapping[str, int], robot: Place) -> list[Note]:
    """Adds the reduction of a transmission, or the motor of a joint, of <ros2_control> to its joint; returns notes."""
    name = element.attributes.get("name", "")
    place = Place(robot.file, named(f"{CONTROL} {element.tag}", name), element.line)
    ends = element.all("joint") if element.tag == TAG else [element]
    k = index_of.get(ends[0].attributes.get("name", "")) if len(ends) == 1 else None
    if k is None or not joints[k].moves.nv or len(element.all("actuator")) > 1:
        return []
    try:
        if element.tag == TAG:
            ratios = [_number(inner.text, inner, place) for inner in ends[0].all(_CONTROL_REDUCTION)]
            joints[k] = _with_reduction(joints[k], ratios)
            return _offsets(element, place)
        parameters = {inner.attributes.get("name", ""): inner for inner in element.all("param")}
        inner = parameters.get("torque_constant")
        if inner is None:
            return []
        constant, notes = _number(inner.text, inner, place), list[Note]()
        gear = parameters.get("gear_ratio")
        joint = _with_reduction(joints[k], [] if gear is None else [_number(gear.text, gear, place)])
        joints[k] = _with_motor(joint, constant, place, notes)
    except UrdfError as fault:
        return [place.note("reported", f"{fault.message}: not used")]
    return notes


def _with_reduction(joint: Joint, ratios: Sequence[float]) -> Joint:
    """Returns the joint with the first ratio, unless it has a reduction."""
    return replace(joint, reduction=ratios[0]) if ratios and joint.reduction is None else joint


def _with_motor(joint: Joint, constant: float, place: Place, notes: list[Note]) -> Joint:
    """Returns the joint with a motor of this torque constant, behind the joint's reduction or without a gear."""
    motor = Motor(torque_constant=constant, gear_ratio=1.0 if joint.reduction is None else joint.reduction)
    field, message = motor.fault()
    if field:
        cause = f"{field}: {message}"
    elif not joint.moves.single_dof:
        cause = "expected a joint with one degree of freedom"
    elif joint.mimic is not None:
        cause = f"joint '{joint.name}' follows '{joint.mimic.joint}'"
    elif joint.motor is not None:
        cause = f"joint '{joint.name}' has a motor already"
    else:
        notes.append(place.note("changed", f"motor of joint '{joint.name}': {motor}"))
        return replace(joint, motor=motor)
    notes.append(place.note("reported", f"{cause}: {_NO_MOTOR}"))
    return joint


def _offsets(element: Element, place: Place) -> list[Note]:
    """Returns a note on offsets between actuator and joint; positions are those of the joint."""
    holders = (*element.all("joint"), *element.all("actuator"), element)
    texts = [inner.text.strip() for holder in holders for inner in holder.all("offset")]
    return [
        place.note("reported", f"offset {quoted(text)}: ignored, positions are those of the joint") for text in texts
    ]


def driven_joints(root: Element) -> set[str]:
    """Returns the names of the joints of transmissions, and of those with a command interface."""
    holders = [element for element in root.all(TAG) if element.all("actuator")]
    joints = [joint for holder in holders for joint in holder.all("joint")]
    controlled = (joint for system in root.all(CONTROL) for joint in system.all("joint"))
    joints += [joint for joint in controlled if joint.all("command_interface")]
    return {joint.attributes.get("name", "") for joint in joints}


def not_used(number: int) -> str:
    """Returns the note on transmissions without a rotor inertia, of which only `driven_joints` are used."""
    return f"of {counted(number, f'<{TAG}> element')} in <robot> only the joints with motors are used: no rotor inertia"


def _torque_constant(element: Element, place: Place, notes: list[Note]) -> float | None:
    """Returns the torque constant, N m/A; None, with a note, if it is no number or the placeholder."""
    holders = [*element.all("actuator"), *element.all("joint"), element]
    for inner in (inner for holder in holders for inner in holder.all(_CONSTANT)):
        try:
            constant = _number(inner.text, inner, place)
        except UrdfError as fault:
            notes.append(place.note("reported", f"{fault.message}: {_NO_MOTOR}"))
            return None
        if constant != _PLACEHOLDER:
            return constant
        notes.append(place.note("dropped", f"{_CONSTANT} 1: not used, because templates have it for every motor"))
    return None


def _gear(element: Element, place: Place) -> tuple[float | None, float | None]:
    """Returns reduction and rotor inertia, kg m^2, None if not given."""
    actuators = element.all("actuator")
    holders = [*actuators, *element.all("joint"), element]
    elements = [inner for holder in actuators for inner in holder.all(RATIO)]
    ratios = [_number(inner.attributes.get("value", ""), inner, place) for inner in elements]
    ratios += [_number(inner.text, inner, place) for holder in holders for inner in holder.all(_REDUCTION)]
    elements = [inner for holder in actuators for inner in holder.all(ROTOR)]
    rotors = [_number(inner.attributes.get("value", ""), inner, place) for inner in elements]
    if any(rotor < 0.0 for rotor in rotors):
        raise place.fault(f"the rotor inertia is {min(rotors):g} kg m^2, expected zero or more")
    return (ratios[0] if ratios else None), (rotors[0] if rotors else None)


def _number(text: str, element: Element, place: Place) -> float:
    try:
        return float(quantities.decimals(text, 1, element.tag, place)[0])
    except UrdfError as fault:
        raise place.fault(fault.message.replace(f"attribute '{element.tag}'", f"<{element.tag}>")) from None

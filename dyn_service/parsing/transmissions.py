"""`<transmission>` elements: the gear ratio of a joint and the inertia of its rotor.

    armature = rotor inertia * reduction^2

    <transmission name="t"><joint name="elbow"/>
      <actuator name="m"><mechanicalReduction>100</mechanicalReduction>          in the joint or above, too
        <drake:rotor_inertia value="1e-5"/><drake:gear_ratio value="100"/>       as Drake writes it, counts first
      </actuator></transmission>

URDF itself has no rotor inertia, so few files give one. A reduction without it is kept for joint files that give the
rotor (`joint_files.py`). Efforts are joint efforts, independent of the reduction. Invalid transmissions, and those that
couple several joints, are ignored with a note: no file is refused for a transmission.

Joints of transmissions are driven, and so are joints with a command interface:

    <ros2_control name="s" type="system"><joint name="elbow"><command_interface name="effort"/></joint></ros2_control>
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from dyn_service.errors import UrdfError
from dyn_service.model.description import Joint, Note
from dyn_service.model.passive import reflected
from dyn_service.parsing import quantities
from dyn_service.parsing.quantities import Place, counted, named, quoted
from dyn_service.parsing.xml_elements import Element

TAG = "transmission"
CONTROL = "ros2_control"
_REDUCTION = "mechanicalReduction"
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
    return updated, notes


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

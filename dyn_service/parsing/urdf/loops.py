"""Elements of URDF that close loops. The format has none; these forms of simulators and proposals are read:

    <constraint name="c" type="revolute">               proposed in pull request 108 of ros/urdfdom_headers
      <parent link="a"/><parent_origin xyz="0 0 0" rpy="0 0 0"/><parent_axis xyz="0 0 1"/>
      <child link="b"/><child_origin xyz="0 0 0" rpy="0 0 0"/><child_axis xyz="0 0 1"/></constraint>
    <loop_joint name="c" type="spherical">              of Isaac Sim and of earlier versions of Drake
      <link1 link="a" xyz="0 0 0" rpy="0 0 0"/><link2 link="b" xyz="0 0 0" rpy="0 0 0"/><axis xyz="0 0 1"/></loop_joint>
    <drake:ball_constraint>                             of Drake
      <drake:ball_constraint_body_A name="a"/><drake:ball_constraint_p_AP value="0 0 0"/>
      <drake:ball_constraint_body_B name="b"/><drake:ball_constraint_p_BQ value="0 0 0"/></drake:ball_constraint>
    <gazebo><joint name="c" type="revolute"> .. </joint></gazebo>       a joint between links, as in SDFormat

Origins are zero and axes x by default. Axes are in the frames of their origins. Elements of another form, or of a type
that no loop joint has, keep their notes of kind `loop`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dyn_service.model.description import Description, LoopJoint, Note
from dyn_service.parsing import quantities
from dyn_service.parsing.joint_chains import Names
from dyn_service.parsing.pose import Pose
from dyn_service.parsing.quantities import Faults, Place, named, quoted
from dyn_service.parsing.sdf.frames import MODEL, Frame, Frames, pose
from dyn_service.parsing.sdf.reader import TYPES, Joined, Joints
from dyn_service.parsing.structure import WORLD, ball_joint
from dyn_service.parsing.xml_elements import BALL, IGNORED, Element, IgnoredContent

GAZEBO = (1, 7)
"""The version of SDFormat of joints in `<gazebo>`, which do not state one."""

_ENDS = {"constraint": ("parent", "child"), "loop_joint": ("link1", "link2"), "joint": ("parent", "child")}
_ORIGINS = {"constraint": ("parent_origin", "child_origin"), "loop_joint": ("link1", "link2")}
_AXES = {"constraint": ("parent_axis", "child_axis"), "loop_joint": ("axis",)}
_BALL = tuple(f"{BALL}_{part}" for part in ("body_A", "body_B", "p_AP", "p_BQ"))


def loop_joints(
    elements: list[Element], description: Description, notes: list[Note], ignored: IgnoredContent
) -> list[LoopJoint]:
    """Returns the loop joints of the elements that close loops of a robot; adds a note on each other one."""
    names = Names(joint.name for joint in description.joints)
    gazebo = _GazeboJoints(description, notes, ignored) if any(x.tag == "joint" for x in elements) else None
    faults, joints = Faults(), list[LoopJoint]()
    for element in elements:
        place = element.at(f"<{element.tag}>", description.source)
        with faults.kept():
            if element.tag == BALL and all(element.all(tag) for tag in _BALL):
                joints.append(_ball(element, names))
            elif element.tag in _ENDS and all(element.all(end) for end in _ENDS[element.tag]):
                element.at(named(element.tag, element.name()), description.source)
                joints += gazebo.read(element) if gazebo and element.tag == "joint" else _joint(element, notes)
            else:
                notes.append(place.note("loop", IGNORED))
    faults.check()
    return joints


def _ball(element: Element, names: Names) -> LoopJoint:
    parts = [part for tag in _BALL if (part := element.child(tag)) is not None]
    parent, child = (part.name() for part in parts[:2])
    points = [part.numbers("value", 3) for part in parts[2:]]
    return ball_joint(names.new(BALL.partition(":")[2]), parent, child, points, element.place)


def _joint(element: Element, notes: list[Note]) -> Iterator[LoopJoint]:
    place = element.place
    word = element.attribute("type").lower()
    parent, child_link = (_only(element, end).name("link") for end in _ENDS[element.tag])
    frames = [_origin(element.child(tag), notes) for tag in _ORIGINS[element.tag]]
    axis_elements = [child for tag in _AXES[element.tag] if (child := element.child(tag))]
    axes = [quantities.unit_axis(child.numbers("xyz", 3), child.place, notes) for child in axis_elements]
    if word in ("universal", "link"):
        notes.append(place.note("loop", f"{IGNORED}, because its type is {quoted(word)}"))
        return
    kind = quantities.joint_type(word, place)
    moves = quantities.movement(kind)
    if moves.threaded:
        notes.append(place.note("loop", f"{IGNORED}, because it has no pitch"))
        return
    if len(axes) > 1 and np.abs(axes[0] - axes[1]).max() > quantities.UNIT:
        notes.append(place.note("loop", f"{IGNORED}, because its two axes differ: expected the same in both frames"))
        return
    if not axes and "axis" in moves.parameters:
        notes.append(place.note("defaulted", quantities.NO_AXIS.replace("<axis>", f"<{_AXES[element.tag][0]}>")))
    axis = axes[0] if axes and "axis" in moves.parameters else np.array(quantities.X_AXIS)
    (parent_xyz, parent_rotation), (child_xyz, child_rotation) = ((frame.origin, frame.rotation) for frame in frames)
    yield LoopJoint(
        element.name(), kind, parent, child_link, parent_xyz, parent_rotation, child_xyz, child_rotation, axis,
        line=place.main_line,
    )  # fmt: skip


def _only(element: Element, tag: str) -> Element:
    child = element.child(tag)
    assert child is not None
    return child


def _origin(element: Element | None, notes: list[Note]) -> Pose:
    if element is None:
        return Pose()
    xyz, rpy = (element.numbers(key, 3) if key in element.attributes else np.zeros(3) for key in ("xyz", "rpy"))
    notes += quantities.degree_note(rpy, element.place)
    return Pose(quantities.rotation_of_rpy(rpy), xyz)


class _GazeboJoints:
    """Reads the joints in `<gazebo>` by the rules of SDFormat: their poses and axes are in the child's frame."""

    def __init__(self, description: Description, notes: list[Note], ignored: IgnoredContent) -> None:
        self._source, self._notes = description.source, notes
        self._links = [link.name for link in description.links]
        self._frames = Frames()
        inboard = {joint.child: joint for joint in description.joints}
        place = Place(self._source)
        self._frames.add(WORLD, Frame("", Pose(), "", place))
        self._frames.add(MODEL, Frame(WORLD, Pose(), WORLD, place))
        for name in self._links:
            joint = inboard.get(name)
            if name != WORLD:
                parent, offset = (MODEL, Pose()) if joint is None else (joint.parent, Pose(joint.rotation, joint.xyz))
                self._frames.add(name, Frame(parent, offset, name, place))
        self._reader = Joints(self._frames, lambda element: GAZEBO, ignored, notes, {})

    def read(self, element: Element) -> list[LoopJoint]:
        place, kind = element.place, element.attributes.get("type", "")
        parent, child = (element.word(end) for end in _ENDS["joint"])
        if kind in ("", "gearbox") or (child == WORLD and WORLD not in self._links):
            self._notes.append(place.note("loop", IGNORED))
            return []
        if kind not in TYPES:
            raise place.fault(f"the type {quoted(kind)} is unknown, expected {', '.join(TYPES)}")
        for end in (parent, child):
            self._frames.named(end, "", place)
        frame = f"joint {element.name()}"  # no link has its name after a tag
        self._frames.add(frame, Frame(child, pose(element, self._notes), child, place))
        return self._reader.loop_joint(Joined(element.name(), frame, parent, child, element, ""))

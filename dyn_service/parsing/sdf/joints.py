"""Joints of SDFormat, in the axes of their child links."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.description import Joint, Limit, Mimic, Note
from dyn_service.model.passive import reflected
from dyn_service.parsing import quantities
from dyn_service.parsing.joint_chains import Names
from dyn_service.parsing.places import Place
from dyn_service.parsing.sdf.frames import MODEL, Frames
from dyn_service.parsing.sdf.values import bound, flag, number, numbers, one
from dyn_service.parsing.transmissions import RATIO, ROTOR
from dyn_service.parsing.xml_elements import Element, Unread

Version = Callable[[Element], tuple[int, int]]

AXES_IN_MODEL = (1, 5)
"""Before this version, axes are in the model's frame."""

TYPES = {
    "fixed": "fixed", "revolute": "revolute", "continuous": "continuous", "prismatic": "prismatic", "ball": "spherical",
    "screw": "screw", "universal": "revolute", "revolute2": "revolute",
}  # fmt: skip
_TWO = ("universal", "revolute2")
_DYNAMICS = ("damping", "friction", "spring_reference", "spring_stiffness")
_LIMIT = ("lower", "upper", "effort", "velocity", "stiffness", "dissipation")
_MIMIC = ("multiplier", "offset", "reference")
_AXIS = ("xyz", "use_parent_model_frame", "initial_position", "limit", "dynamics", "mimic")


@dataclass(frozen=True, eq=False)
class Joined:
    """A joint as written: full names of the joint and its frame, its links, its element."""

    name: str
    frame: str
    parent: str
    child: str
    element: Element
    place: Place
    scope: str


class Joints:
    """Reads joints.

    Args:
        frames: All frames of the robot.
        version: Returns the version of the format that an element's file has.
        unread: Collects content that is not read.
        notes: Collects notes on changed and dropped content.
        source: The name of the file, for errors.
    """

    def __init__(self, frames: Frames, version: Version, unread: Unread, notes: list[Note], source: str) -> None:
        self._frames, self._version, self._source = frames, version, source
        self._unread, self._notes = unread, notes

    def ways(self, joint: Joined, names: Names) -> list[tuple[Joint, Vector, float]]:
        """Returns one joint per axis, with its origin in the child link's frame and its zero."""
        kind = joint.element.attributes["type"]
        if kind == "fixed":
            return []
        on_child = self._frames.between(joint.child, joint.frame)
        tags = ("axis", "axis2") if kind in _TWO else ("axis",)
        ways = []
        for tag in tags:
            name = joint.name if tag == "axis" else names.new(f"{joint.name}_{tag}")
            ways.append((self._way(joint, TYPES[kind], tag, name), on_child.origin, 0.0))
        return ways

    def _way(self, joint: Joined, kind: str, tag: str, name: str) -> Joint:
        place, moves = joint.place, quantities.movement(kind)
        element = one(joint.element, tag, place)
        made = Joint(
            name,
            kind,
            joint.parent,
            joint.child,
            np.zeros(3),
            np.eye(3),
            np.array(quantities.X_AXIS),
            line=place.line if place.file == self._source else 0,
        )
        if "axis" not in moves.figures:
            if element is not None:
                self._notes.append(place.note("dropped", f"an <{tag}>, which a ball joint does not have"))
            return made
        if element is None:
            raise place.fault(f"there is no <{tag}> element, expected one")
        place = place.inside(tag, element.line)
        self._unread.keep(element, _AXIS, ())
        axis = quantities.unit_axis(numbers(element, "xyz", (0.0, 0.0, 1.0), place), place, self._notes)
        axis = self._axis_in(joint, element, place) @ axis
        limit = self._limit(element, place)
        if kind == "revolute" and (limit is None or (limit.lower is None and limit.upper is None)):
            kind = "continuous"
        dynamics = one(element, "dynamics", place)
        if dynamics is not None:
            self._unread.keep(dynamics, _DYNAMICS, ())
        stiffness = number(dynamics, "spring_stiffness", 0.0, place)
        return replace(
            made,
            type=kind,
            axis=axis,
            limit=limit,
            damping=number(dynamics, "damping", 0.0, place),
            friction=number(dynamics, "friction", 0.0, place),
            armature=self._armature(joint, limit) if tag == "axis" else 0.0,
            stiffness=stiffness,
            rest=number(dynamics, "spring_reference", 0.0, place) if stiffness else 0.0,
            mimic=self._mimic(element, joint, place),
            pitch=self._pitch(joint) if moves.threaded else 0.0,
        )

    def _axis_in(self, joint: Joined, axis: Element, place: Place) -> Matrix:
        """Returns the rotation from the frame of the axis to the child link's frame."""
        xyz = one(axis, "xyz", place)
        within = "" if xyz is None else xyz.attributes.get("expressed_in", "")
        if self._version(axis) < AXES_IN_MODEL or flag(axis, "use_parent_model_frame", False, place):
            within = within or MODEL
        frame = self._frames.named(within, joint.scope, place) if within else joint.frame
        return self._frames.between(joint.child, frame).rotation

    def _limit(self, axis: Element, place: Place) -> Limit | None:
        element = one(axis, "limit", place)
        if element is None:
            return None
        place = place.inside("limit", element.line)
        self._unread.keep(element, _LIMIT, ())
        efforts = [bound(element, tag, place) for tag in ("effort", "velocity")]
        # Negative values mean no limit.
        effort, velocity = (None if value is not None and value < 0.0 else value for value in efforts)
        return Limit(bound(element, "lower", place), bound(element, "upper", place), effort, velocity)

    def _mimic(self, axis: Element, joint: Joined, place: Place) -> Mimic | None:
        element = one(axis, "mimic", place)
        if element is None:
            return None
        place = place.inside("mimic", element.line)
        self._unread.keep(element, _MIMIC, ("joint", "axis"))
        leader = joint.scope + quantities.name(element.attributes.get("joint", ""), place)
        if element.attributes.get("axis", "axis") == "axis2":
            leader = f"{leader}_axis2"
        multiplier = number(element, "multiplier", 1.0, place)
        offset = number(element, "offset", 0.0, place) - multiplier * number(element, "reference", 0.0, place)
        return Mimic(leader, multiplier, offset)

    def _armature(self, joint: Joined, limit: Limit | None) -> float:
        """Returns the reflected inertia of a rotor, kg m^2 | kg, in Drake's elements; 0 if the effort limit is 0, as in
        Drake.
        """
        rotor, ratio = (number(joint.element, tag, none, joint.place) for tag, none in ((ROTOR, 0.0), (RATIO, 1.0)))
        if rotor < 0.0:
            raise joint.place.fault(f"the {ROTOR} is {rotor:g}, expected zero or more")
        return 0.0 if limit is not None and limit.effort == 0.0 else reflected(rotor, ratio)

    def _pitch(self, joint: Joined) -> float:
        """m per turn: `screw_thread_pitch`; `thread_pitch` is rad per m, of a left-handed thread."""
        element, place = joint.element, joint.place
        if element.all("screw_thread_pitch"):
            return number(element, "screw_thread_pitch", 1.0, place)
        turns = number(element, "thread_pitch", 0.0, place)
        if turns == 0.0:
            raise place.fault(
                "there is no <screw_thread_pitch> element, expected one: the thread's pitch in m per turn"
            )
        return -2.0 * np.pi / turns

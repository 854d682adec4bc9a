"""Joints of MJCF: how each moves and what it does by itself, with a note on what of it does not act here."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

import numpy as np

from dyn_service.model.arrays import Vector
from dyn_service.model.description import Joint, Limit, Note
from dyn_service.parsing import quantities
from dyn_service.parsing.includes import place_of
from dyn_service.parsing.mjcf.values import Classes, Settings, Values
from dyn_service.parsing.places import Place, named
from dyn_service.parsing.pose import Pose
from dyn_service.parsing.unread import Unread
from dyn_service.parsing.xml_elements import Element

_TYPES = {"hinge": "revolute", "slide": "prismatic", "ball": "spherical", "free": "floating"}

_JOINT = (
    "name", "class", "type", "group", "pos", "axis", "springdamper", "solreflimit", "solimplimit", "solreffriction",
    "solimpfriction", "stiffness", "range", "limited", "actuatorfrcrange", "actuatorfrclimited", "actuatorgravcomp",
    "margin", "ref", "springref", "springyield", "armature", "damping", "frictionloss", "user",
)  # fmt: skip


class Joints:
    """Reads joints.

    Args:
        classes: The file's defaults.
        settings: Of its compiler.
        unread: Gets what is not read of them.
        notes: Gets what is changed, and what does not act.
        source: What the file is called.

    Attributes:
        zeros: Where each stands, rad | m, when its body is where the file draws it.
    """

    def __init__(self, classes: Classes, settings: Settings, unread: Unread, notes: list[Note], source: str) -> None:
        self._classes, self._settings, self._source = classes, settings, source
        self._unread, self._notes = unread, notes
        self.zeros: dict[str, float] = {}

    def read(
        self, element: Element, around: str | None, frame: Pose, unnamed: str, body: str
    ) -> tuple[Joint, Vector, float]:
        """A joint with its axis, its place (3,) m and its zero, rad | m, in the body's frame.

        Args:
            element: A `<joint>` or `<freejoint>`.
            around: The class around it.
            frame: Where the frame it is given in stands in the body's.
            unnamed: What it is called where it has no name.
            body: The link that it moves.
        """
        place = place_of(element, "joint", self._source)
        name = quantities.name(element.attributes.get("name", "") or unnamed, place)
        place = place_of(element, named("joint", name), self._source)
        self._unread.suspects = []
        if element.tag == "freejoint":
            self._unread.keep(element, (), ("name", "group", "align"))
            values = Values({"type": "free"}, {}, place, self._settings)
            aligned = element.attributes.get("align", "auto")
        else:
            self._unread.keep(element, (), _JOINT)
            values = Values(element.attributes, self._classes.of(element, around, place), place, self._settings)
            aligned = "auto"
        kind = _TYPES[values.choice("type", tuple(_TYPES), "hinge")]
        if kind == "floating" and (aligned == "true" or (aligned == "auto" and self._settings.aligned)):
            text = "align: MuJoCo turns the body's frame into that of its inertia; here it stays as it is written"
            self._notes.append(place.note("reported", text))
        moves = quantities.movement(kind)
        single = moves.nv == 1
        axis = np.array(quantities.X_AXIS)
        if single:
            inside = place.inside("axis")
            axis = quantities.unit_axis(values.vector("axis", (0.0, 0.0, 1.0)), inside, self._notes)
            axis = frame.rotation @ axis
        scale = self._settings.angle if kind == "revolute" else float
        limit = self._limit(values, kind, place)
        if kind == "revolute" and (limit is None or (limit.lower is None and limit.upper is None)):
            kind = "continuous"
        joint = Joint(
            name, kind, "", body, np.zeros(3), np.eye(3), axis, limit,
            damping=self._polynomial(values, "damping"),
            friction=values.least("frictionloss"),
            armature=values.least("armature"),
            stiffness=self._polynomial(values, "stiffness"),
            rest=scale(values.number("springref", 0.0)) if single else 0.0,
            line=place.line if place.file == self._source else 0,
        )  # fmt: skip
        joint = self._sprung(joint, values, place)
        anchor = np.zeros(3) if kind == "floating" else values.vector("pos", (0.0, 0.0, 0.0))
        zero = scale(values.number("ref", 0.0)) if single else 0.0
        self.zeros[name] = zero
        return joint, (frame @ Pose(origin=anchor)).origin, zero

    def _sprung(self, joint: Joint, values: Values, place: Place) -> Joint:
        """Without what does not act here, with a note on each."""
        if joint.stiffness and joint.moves.refused("stiffness"):
            text = (
                f"a spring of {joint.stiffness:g} N m/rad does not act: here springs are of joints with one way to move"
            )
            self._notes.append(place.note("reported", text))
            joint = replace(joint, stiffness=0.0)
        if joint.armature and joint.moves.refused("armature"):
            # There it resists accelerations in the world's axes, and is no mass: nothing here does the same.
            self._notes.append(place.note("reported", f"armature {joint.armature:g} of a free joint does not act"))
            joint = replace(joint, armature=0.0)
        if (values.vector("springdamper", (0.0, 0.0)) > 0.0).all():
            text = (
                "springdamper: what MuJoCo makes of it depends on the robot's inertia; neither spring nor damping acts"
            )
            self._notes.append(place.note("reported", text))
            joint = replace(joint, stiffness=0.0, damping=0.0)
        if values.number("springyield", 0.0):
            self._notes.append(place.note("reported", "springyield: the spring does not yield here"))
        return joint if joint.stiffness else replace(joint, rest=0.0)

    def _polynomial(self, values: Values, name: str) -> float:
        numbers = values.numbers(name, 1, 3)
        if numbers is None:
            return 0.0
        if numbers[1:].any():
            text = f"{name}: its quadratic and cubic parts do not act, the linear one does"
            self._notes.append(values.place.note("reported", text))
        return values.least(name)

    def _limit(self, values: Values, kind: str, place: Place) -> Limit | None:
        turns = kind == "spherical" and values.choice("limited", ("true", "false", "auto"), "auto") != "false"
        if turns and values.vector("range", (0.0, 0.0)).any():
            self._notes.append(place.note("reported", "the range of a ball joint's turn"))
        if kind not in ("revolute", "prismatic"):
            return None
        bounds, efforts = values.limited("range", "limited"), values.limited("actuatorfrcrange", "actuatorfrclimited")
        effort = None
        if efforts is not None:
            effort = float(efforts[1]) if isfinite(efforts[1]) else None
            if efforts[0] != -efforts[1]:
                effort = None
                text = f"the range of efforts {efforts[0]:g} to {efforts[1]:g}: only one limit both ways is read"
                self._notes.append(place.note("reported", text))
        if bounds is None:
            return None if effort is None else Limit(effort=effort)
        ends = (self._settings.angle(value) if kind == "revolute" else float(value) for value in bounds)
        lower, upper = (value if isfinite(value) else None for value in ends)
        return Limit(lower, upper, effort)

"""Joints of MJCF: motions and passive properties, with notes on properties that are ignored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite
from typing import Any

import numpy as np

from dyn_service.api.queries import DEFAULT_GRAVITY
from dyn_service.model.arrays import Vector
from dyn_service.model.description import Joint, Limit, LoopJoint, Mimic, Note
from dyn_service.model.passive import reflected
from dyn_service.parsing import quantities
from dyn_service.parsing.joint_chains import Names, Roots
from dyn_service.parsing.mjcf import motors
from dyn_service.parsing.mjcf.loops import Bodies, loop_joint, with_hinges
from dyn_service.parsing.mjcf.values import ACTUATOR, Classes, Values
from dyn_service.parsing.pose import Pose
from dyn_service.parsing.quantities import Place, named, quoted, unused
from dyn_service.parsing.structure import with_drives
from dyn_service.parsing.xml_elements import Element, IgnoredContent
from dyn_service.support.suggestions import did_you_mean

_TYPES = quantities.types_by_word("mujoco")

_JOINT = (
    "name", "class", "type", "group", "pos", "axis", "springdamper", "solreflimit", "solimplimit", "solreffriction",
    "solimpfriction", "stiffness", "range", "limited", "actuatorfrcrange", "actuatorfrclimited", "actuatorgravcomp",
    "margin", "ref", "springref", "springyield", "armature", "damping", "frictionloss", "user",
)  # fmt: skip


class Joints:
    """Reads joints.

    zeros: the position of each joint, rad | m, in the configuration that the file describes.
    """

    def __init__(self, classes: Classes, ignored: IgnoredContent, notes: list[Note], source: str) -> None:
        self._classes, self._settings, self._source = classes, classes.settings, source
        self._ignored, self._notes = ignored, notes
        self.zeros: dict[str, float] = {}

    def read(
        self, element: Element, childclass: str | None, frame: Pose, unnamed: str, body: str
    ) -> tuple[Joint, Vector, float]:
        """Returns a joint with its axis, its origin (3,) m and its zero, rad | m, in the body's frame.

        `childclass` is the one in effect, `frame` the pose of its frame in the body, `unnamed` the name of a joint
        to which the file gives none, `body` the link that it moves.
        """
        place = element.at("joint", self._source)
        name = quantities.name(element.attributes.get("name", "") or unnamed, place)
        place = element.at(named("joint", name), self._source)
        self._ignored.suspects = []
        if element.tag == "freejoint":
            self._ignored.keep(element, (), ("name", "group", "align"))
            values = self._classes.plain(element, {"type": "free"})
            aligned = element.attributes.get("align", "auto")
        else:
            self._ignored.keep(element, (), _JOINT)
            values = self._classes.values(element, childclass)
            aligned = "auto"
        word = values.choice("type", tuple(_TYPES), "hinge")
        if word == "free" and (aligned == "true" or (aligned == "auto" and self._settings.aligned)):
            text = "align: ignored; MuJoCo would align the body's frame with its principal axes of inertia"
            self._notes.append(place.note("reported", text))
        moves = quantities.movement(_TYPES[word])
        single = moves.single_dof
        axis = np.array(quantities.X_AXIS)
        if single:
            axis_place = place.inside("axis")
            axis = quantities.unit_axis(values.vector("axis", (0.0, 0.0, 1.0)), axis_place, self._notes)
            axis = frame.rotation @ axis
        scale = self._settings.angle if word == "hinge" else float
        limit = self._limit(values, word, place)
        joint = Joint(
            name, quantities.type_with_limit(moves, limit), "", body, np.zeros(3), np.eye(3), axis, limit,
            damping=self._polynomial(values, "damping"),
            friction=values.non_negative("frictionloss"),
            armature=values.non_negative("armature"),
            stiffness=self._polynomial(values, "stiffness"),
            rest=scale(values.number("springref", 0.0)) if single else 0.0,
            line=place.main_line,
        )  # fmt: skip
        joint = self._with_supported_forces(joint, values, place)
        anchor = np.zeros(3) if word == "free" else values.vector("pos", (0.0, 0.0, 0.0))
        zero = scale(values.number("ref", 0.0)) if single else 0.0
        self.zeros[name] = zero
        return joint, (frame @ Pose(origin=anchor)).origin, zero

    def _with_supported_forces(self, joint: Joint, values: Values, place: Place) -> Joint:
        """Returns the joint without unsupported forces, with a note on each."""
        if joint.stiffness and joint.moves.refused("stiffness"):
            text = f"stiffness {joint.stiffness:g} N m/rad is ignored: springs need a joint with one degree of freedom"
            self._notes.append(place.note("reported", text))
            joint = replace(joint, stiffness=0.0)
        if joint.armature and joint.moves.refused("armature"):
            # There it resists accelerations in the world's axes, and is no mass: nothing here does the same.
            text = f"armature {joint.armature:g} is ignored: not supported on free joints"
            self._notes.append(place.note("reported", text))
            joint = replace(joint, armature=0.0)
        if values.vector("springdamper", (0.0, 0.0)).any():
            text = "springdamper: ignored, with the joint's stiffness and damping; MuJoCo derives both from inertia"
            self._notes.append(place.note("reported", text))
            joint = replace(joint, stiffness=0.0, damping=0.0)
        if values.number("springyield", 0.0):
            self._notes.append(place.note("reported", "springyield: ignored; the spring does not yield"))
        return joint if joint.stiffness else replace(joint, rest=0.0)

    def _polynomial(self, values: Values, name: str) -> float:
        numbers = values.numbers(name, 1, 3)
        if numbers is None:
            return 0.0
        if numbers[1:].any():
            text = f"{name}: the quadratic and cubic terms are ignored; the linear term is used"
            self._notes.append(values.place.note("reported", text))
        return values.non_negative(name)

    def _limit(self, values: Values, word: str, place: Place) -> Limit | None:
        limited_ball = word == "ball" and values.choice("limited", ("true", "false", "auto"), "auto") != "false"
        if limited_ball and values.vector("range", (0.0, 0.0)).any():
            self._notes.append(place.note("reported", "range: ignored on ball joints"))
        if word not in ("hinge", "slide"):
            return None
        bounds, efforts = values.limited("range", "limited"), values.limited("actuatorfrcrange", "actuatorfrclimited")
        effort = None
        if efforts is not None:
            # A symmetric range is an effort limit; one that is not has no place in the description.
            effort = float(efforts[1]) if isfinite(efforts[1]) else None
            if efforts[0] != -efforts[1]:
                effort, bounds_text = None, f"{efforts[0]:g} to {efforts[1]:g}"
                text = f"actuatorfrcrange {bounds_text}: ignored; only symmetric ranges are supported"
                self._notes.append(place.note("reported", text))
        if bounds is None:
            return None if effort is None else Limit(effort=effort)
        ends = (self._settings.angle(value) if word == "hinge" else float(value) for value in bounds)
        lower, upper = (value if isfinite(value) else None for value in ends)
        return Limit(lower, upper, effort)


ASSETS = "looks and shapes"
DROPPED = {
    "size": "", "statistic": "", "visual": "", "custom": "", "asset": ASSETS, "contact": "", "sensor": "",
    "keyframe": "",
}  # fmt: skip

MAX_NOTES = 1000
"""Maximum number of notes on elements outside bodies; real robots have some tens."""

_FORCING = {"wind": (0.0, 0.0, 0.0), "density": (0.0,), "viscosity": (0.0,)}
_FLAGS = ("spring", "damper", "frictionloss", "equality", "limit", "contact", "actuation", "passive")
_DRIVEN = ("jointinparent", "tendon", "site", "body", "slidersite")
_DEFORMABLE = ("flex", "flexvert", "flexstrain")
_COUPLINGS = ("connect", "weld", "joint", "tendon", *_DEFORMABLE)
_ENDS = ("body1", "body2", "site1", "site2", "tendon1", "tendon2")


class OtherSections:
    """The elements outside bodies: equalities, actuators, tendons, options.

    gravity: m/s^2, world axes, and loop_joints, once `applied` has run.
    """

    def __init__(
        self, root: Element, classes: Classes, source: str, zeros: Mapping[str, float], bodies: Bodies
    ) -> None:
        self._root, self._classes, self._source, self._zeros = root, classes, source, zeros
        self._bodies, self._names = bodies, Names(())
        self.loop_joints: list[LoopJoint] = []
        self._notes: list[Note] = []
        self._roots = Roots()
        self._actuators: Counter[str | None] = Counter()
        self.gravity, self._weightless = DEFAULT_GRAVITY, False

    def applied(self, joints: Sequence[Joint]) -> list[Joint]:
        """Returns the joints with equalities and the armature and damping of actuators applied."""
        # Of joints with the same name, which is reported later, the first.
        first_joints = {joint.name: joint for joint in reversed(joints)}
        updated = dict(first_joints)
        equality_names = (element.attributes.get("name", "") for element in self._inside("equality"))
        self._names = Names((*first_joints, *equality_names))
        for element in self._inside("equality"):
            self._equality(element, updated)
        self.loop_joints = with_hinges(self.loop_joints)
        self._actuators = Counter(_joint_of(element) for element in self._inside("actuator"))
        for element in self._inside("actuator"):
            self._actuator(element, updated)
        for tag in ("tendon", "deformable", "extension"):
            for element in self._inside(tag):
                place = self._place(element, tag)
                if "name" in element.attributes:
                    place = self._place(element, named(tag, element.attributes["name"]))
                self._notes.append(place.note("reported", f"<{element.tag}>: not supported; its forces are ignored"))
        for element in self._root.all("option"):
            self._option(element)
        if self._weightless:
            self.gravity = (0.0, 0.0, 0.0)
        equipped = (updated[joint.name] if first_joints[joint.name] is joint else joint for joint in joints)
        return with_drives(equipped, self._driven())

    def _driven(self) -> set[str]:
        """Returns the names of the joints of actuators, by themselves or in a tendon that is a sum of positions."""
        tendons = {tendon.attributes.get("name", ""): tendon for tendon in self._inside("tendon")}
        names = set()
        for element in self._inside("actuator"):
            if joint_name := _joint_of(element):
                names.add(joint_name)
            tendon = tendons.get(element.attributes.get("tendon", ""))
            if tendon is not None and tendon.tag == "fixed":
                names |= {joint.attributes.get("joint", "") for joint in tendon.all("joint")}
        return names

    def notes(self, robot: Place) -> Iterator[Note]:
        """Returns the notes on these elements."""
        yield from self._notes[:MAX_NOTES]
        if len(self._notes) > MAX_NOTES:
            text = f"{len(self._notes) - MAX_NOTES} further notes on elements outside the bodies are not listed"
            yield robot.note("reported", text)
        for tag, noun in DROPPED.items():
            sections = self._root.all(tag)
            if sections:
                number = sum(len(section.children) or 1 for section in sections)
                text = unused(number, f"{noun} element" if noun else f"<{tag}> element", "in <mujoco>")
                yield self._place(sections[0], robot.element or "").note("dropped", text)

    def _equality(self, element: Element, joints: dict[str, Joint]) -> None:
        place = self._place(element, f"equality <{element.tag}>")
        is_known = element.tag in _COUPLINGS
        values = self._classes.values(element, None, "equality") if is_known else self._classes.plain(element)
        if not values.flag("active", True):
            self._notes.append(place.note("dropped", "ignored: not active"))
            return
        if element.tag in ("connect", "weld"):
            self._close(element, values, joints)
            return
        if element.tag != "joint":
            ends = ", ".join(quoted(element.attributes[name]) for name in _ENDS if name in element.attributes)
            text = f"ignored: not supported{f'; it joins {ends}' if ends else ''}"
            self._notes.append(place.note("reported" if element.tag in _DEFORMABLE else "loop", text))
            return
        first, second = (element.attributes.get(name) for name in ("joint1", "joint2"))
        coefficients = values.numbers("polycoef", 1, 5)
        polynomial = [0.0, 1.0, 0.0, 0.0, 0.0]
        if coefficients is not None:
            polynomial[: len(coefficients)] = coefficients.tolist()
        for name in (first, second):
            if name is not None and name not in joints:
                raise place.fault(f"there is no joint {quoted(name)}{did_you_mean(name, joints)}")
        if first is None:
            raise place.fault("the attribute 'joint1' is missing")
        joint = joints[first]
        cause = ""
        if second is None:
            cause = f"it locks joint {quoted(first)}"
        elif any(polynomial[2:]):
            cause = f"joint {quoted(first)} follows {quoted(second)} by a nonlinear polycoef"
        elif joint.mimic is not None:
            cause = f"joint {quoted(first)} already follows {quoted(joint.mimic.joint)}"
        elif not self._roots.join(first, second):
            cause = f"joint {quoted(first)} cannot follow {quoted(second)}: they would form a loop"
        if cause or second is None:
            self._notes.append(place.note("loop", f"ignored: {cause}"))
            return
        # y - y0 = a0 + a1 (x - x0)
        zeros = [self._zeros.get(name, 0.0) for name in (first, second)]
        mimic = Mimic(second, polynomial[1], zeros[0] + polynomial[0] - polynomial[1] * zeros[1])
        joints[first] = replace(joint, mimic=mimic)
        rule = f"{mimic.multiplier:g} * {quoted(second)} + {mimic.offset:g}"
        text = f"joint {quoted(first)} mimics {rule} exactly; in MuJoCo it is a soft constraint"
        self._notes.append(place.note("changed", text))

    def _close(self, element: Element, values: Values, joints: Collection[str]) -> None:
        name, place = element.attributes.get("name", ""), values.place
        if not name or name in joints:
            new_name = self._names.new(name or element.tag)
            if name:
                text = f"is renamed to {quoted(new_name)}: a joint has the name {quoted(name)}"
                self._notes.append(place.note("changed", text))
            name = new_name
        joint = loop_joint(element.tag, values, quantities.name(name, place), self._bodies)
        self.loop_joints.append(joint)
        text = f"joint {quoted(name)} closes a loop exactly; in MuJoCo it is a soft constraint"
        self._notes.append(place.note("changed", text))

    def _actuator(self, element: Element, joints: dict[str, Joint]) -> None:
        name = element.attributes.get("name", "")
        place = self._place(element, named("actuator", name) if name else f"actuator <{element.tag}>")
        values = self._classes.values(element, None, ACTUATOR)
        joint_name = element.attributes.get("joint")
        other_targets = (
            f"{target_kind} {quoted(element.attributes[target_kind])}"
            for target_kind in _DRIVEN
            if target_kind in element.attributes
        )
        target = f"joint {quoted(joint_name)}" if joint_name else ", ".join(other_targets)
        gear = values.numbers("gear", 1, 6)
        ratio = 1.0 if gear is None else float(gear[0])
        text = (
            f"<{element.tag}> on {target or 'nothing'}, gear {ratio:g}: its force is not applied; "
            "efforts are joint efforts"
        )
        self._notes.append(place.note("reported", text))
        if (named_joint := _joint_of(element)) is not None and named_joint not in joints:
            text = f"<{element.tag}> names {quoted(named_joint)}, which is no joint of the robot"
            self._notes.append(place.warning("unknown-reference", text + did_you_mean(named_joint, joints)))
        self._rotor(values, place, ratio, joint_name, joints)
        self._motor(element, values, place, ratio, joints)

    def _rotor(
        self, values: Values, place: Place, ratio: float, joint_name: str | None, joints: dict[str, Joint]
    ) -> None:
        """Adds armature and damping of an actuator to its joint."""
        rotor_numbers = {part: values.numbers(part, 1, 3) for part in ("armature", "damping")}
        # Rotor properties act through the gear on the joint, hence with the ratio squared.
        additions = {
            part: reflected(float(numbers[0]), ratio)
            for part, numbers in rotor_numbers.items()
            if numbers is not None and numbers.any()
        }
        if not additions:
            return
        curved = any(numbers is not None and numbers[1:].any() for numbers in rotor_numbers.values())
        joint = joints.get(joint_name or "")
        sums: dict[str, Any] = {part: getattr(joint, part, 0.0) + addition for part, addition in additions.items()}
        if joint is None or curved or not joint.moves.single_dof or not all(map(isfinite, sums.values())):
            parameters = ", ".join(additions)
            text = f"its {parameters} is ignored: expected one finite number and one joint with one degree of freedom"
            self._notes.append(place.note("reported", text))
            return
        joints[joint.name] = replace(joint, **sums)
        parameters = ", ".join(f"{part} {addition:g}" for part, addition in additions.items())
        self._notes.append(
            place.note("changed", f"adds {parameters} to joint {quoted(joint.name)}, gear ratio squared")
        )

    def _motor(self, element: Element, values: Values, place: Place, ratio: float, joints: dict[str, Joint]) -> None:
        """Adds the effort limit of an actuator to its joint, and the motor of a `<dcmotor>`."""
        joint = joints.get(_joint_of(element) or "")
        if joint is None or not joint.moves.single_dof:
            return
        motor = None
        if element.tag == motors.TAG:
            motor, texts = motors.dc_motor(values, ratio)
            limit = inf if motor is None else abs(motor.gain) * motor.current_limit
        else:
            limit, texts = motors.effort_limit(values, element.tag, ratio)
        cause = ""
        if self._actuators[joint.name] > 1:
            cause = f"joint {quoted(joint.name)} has {self._actuators[joint.name]} actuators"
        elif joint.mimic is not None:
            cause = f"joint {quoted(joint.name)} follows {quoted(joint.mimic.joint)}"
        if cause:
            parts = [*(["its motor"] if motor else []), *(["its effort limit"] if isfinite(limit) else [])]
            texts = [f"{' and '.join(parts)}: ignored, because {cause}"] if parts else []
            motor, limit = None, inf
        self._notes += [place.note("reported", text) for text in texts]
        if motor is not None:
            joint = replace(joint, motor=motor, reduction=ratio)
            self._notes.append(place.note("changed", f"motor of joint {quoted(joint.name)}: {motor}"))
        bounds = joint.limit or Limit()
        if limit < (inf if bounds.effort is None else bounds.effort):
            joint = replace(joint, limit=replace(bounds, effort=limit))
            self._notes.append(place.note("changed", f"effort limit of joint {quoted(joint.name)}: {limit:g}"))
        joints[joint.name] = joint

    def _option(self, element: Element) -> None:
        place = self._place(element, "option")
        values = self._classes.plain(element)
        if "gravity" in element.attributes:
            x, y, z = values.vector("gravity", DEFAULT_GRAVITY).tolist()
            self.gravity = (x, y, z)
        for name, default in _FORCING.items():
            if values.vector(name, default).any():
                self._notes.append(place.note("reported", f"{name}: ignored; fluid forces are not supported"))
        for flags in element.all("flag"):
            self._weightless = flags.attributes.get("gravity", "disable" if self._weightless else "") == "disable"
            disabled = [name for name in _FLAGS if flags.attributes.get(name) == "disable"]
            if disabled:
                text = f"{', '.join(disabled)} disabled: ignored; use the options of each call"
                self._notes.append(self._place(flags, "option flag").note("reported", text))
        handled = ("gravity", *_FORCING)
        solver_options = [name for name in element.attributes if name not in handled]
        if solver_options:
            self._notes.append(place.note("dropped", f"{', '.join(solver_options)}: solver options are not used"))

    def _inside(self, tag: str) -> list[Element]:
        return [child for section in self._root.all(tag) for child in section.children]

    def _place(self, element: Element, label: str) -> Place:
        return element.at(label, self._source)


def _joint_of(actuator: Element) -> str | None:
    return actuator.attributes.get("joint") or actuator.attributes.get("jointinparent")

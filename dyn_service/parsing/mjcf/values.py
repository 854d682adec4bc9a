"""Values of MJCF elements with the defaults of their classes: numbers, choices, orientations.

Defaults are classes of attributes for each sort of element; a class inherits those of the enclosing class.
An element's class is its own `class`, or the `childclass` of the nearest body or frame around it, or the outermost one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dyn_service.errors import ResourceExhaustedError
from dyn_service.model.arrays import Matrix, Vector
from dyn_service.parsing import quantities
from dyn_service.parsing.pose import Pose, about, of_quaternion, turning_z_to
from dyn_service.parsing.quantities import Place, quoted
from dyn_service.parsing.xml_elements import Element
from dyn_service.support.suggestions import did_you_mean

MAIN = "main"
"""The default name of the outermost class."""

ORIENTATIONS = ("quat", "axisangle", "xyaxes", "zaxis", "euler")

ACTUATOR = "general"
_ACTUATORS = (
    ACTUATOR, "motor", "position", "velocity", "intvelocity", "damper", "cylinder", "muscle", "adhesion", "pid",
    "dcmotor", "plugin",
)  # fmt: skip
CLASSED = {tag: tag for tag in ("joint", "geom", "mesh", "equality", "site")} | dict.fromkeys(_ACTUATORS, ACTUATOR)
"""Elements whose defaults are read, with the name of the defaults: all actuators have the same, as in MuJoCo."""

MAX_CLASSES = 2000
"""Maximum number of classes; real robots have some tens."""

PARTIAL = ("size", "stiffness", "damping", "gear")
"""Attributes whose numbers, if fewer than those of the class, replace the first of them."""


_INFINITE = re.compile(r"\A([+-]?)inf(?:inity)?\Z", re.IGNORECASE)


@dataclass(frozen=True)
class Settings:
    """Settings of `<compiler>` that affect numbers, with MuJoCo's defaults."""

    degrees: bool = True
    eulerseq: str = "xyz"
    autolimits: bool = True
    inertia_from_geoms: str = "auto"
    groups: tuple[float, float] = (0, 5)
    least_mass: float = 0.0
    least_inertia: float = 0.0
    balance: bool = False
    total_mass: float = -1.0
    aligned: bool = False

    def angle(self, value: float) -> float:
        """Returns an angle in rad."""
        return math.radians(value) if self.degrees else value


@dataclass(frozen=True, eq=False)
class Values:
    """The attributes of one element. What is not as stated here raises `UrdfError`.

    attributes: written on the element. inherited: of its class. place: for errors. settings: of the file.
    """

    attributes: Mapping[str, str]
    inherited: Mapping[str, str]
    place: Place
    settings: Settings = field(default_factory=Settings)

    def text(self, name: str) -> str | None:
        """Returns the text of an attribute, or None."""
        text, inherited = self.attributes.get(name), self.inherited.get(name)
        if name in PARTIAL and text is not None and inherited is not None:
            return _completed(text, inherited)
        return inherited if text is None else text

    def numbers(self, name: str, min_count: int, max_count: int | None = None) -> Vector | None:
        """Returns the numbers of an attribute, between `min_count` and `max_count` of them; None if it is absent."""
        text = self.text(name)
        if text is None:
            return None
        count = len(text.split()) if len(text) <= quantities.LONGEST_NUMBERS else min_count
        max_count = min_count if max_count is None else max_count
        return quantities.decimals(text, min(max(count, min_count), max_count), name, self.place)

    def vector(self, name: str, default: tuple[float, ...]) -> Vector:
        """Returns as many numbers as the default has."""
        numbers = self.numbers(name, len(default))
        return np.array(default) if numbers is None else numbers

    def number(self, name: str, default: float) -> float:
        """Returns one number."""
        return float(self.vector(name, (default,))[0])

    def non_negative(self, name: str) -> float:
        """Returns the first number, not negative, 0 by default."""
        numbers = self.numbers(name, 1, 3)
        if numbers is None:
            return 0.0
        if numbers[0] < 0.0:
            raise self.place.fault(f"the {name} is {numbers[0]:g}, expected zero or more")
        return float(numbers[0])

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """Returns a word, which must be one of `choices`."""
        text = self.text(name)
        if text is None:
            return default
        if text not in choices:
            actual = f"{quoted(text)}{did_you_mean(text, choices)}"
            raise self.place.fault(f"attribute '{name}': expected {', '.join(choices)}, found {actual}")
        return text

    def flag(self, name: str, default: bool) -> bool:
        """`true` or `false`."""
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def pose(self) -> Pose:
        """Returns the pose: `pos` and at most one of the orientation attributes."""
        orientations = [name for name in ORIENTATIONS if name in self.attributes]
        if len(orientations) > 1:
            raise self.place.fault(f"there are {' and '.join(orientations)}, expected one orientation")
        inherited = [name for name in ORIENTATIONS if name in self.inherited]
        # An orientation on the element replaces that of its class, even in another notation.
        orientation = next(iter([*orientations, *inherited]), "quat")
        return Pose(getattr(self, f"_of_{orientation}")(), self.vector("pos", (0.0, 0.0, 0.0)))

    def limited(self, name: str, flag: str) -> Vector | None:
        """Returns the range if it is in force: `flag` is true, or it is "auto" and there is a range. Ends may be
        infinite.
        """
        # `decimals` accepts no infinity; numbers of this size become infinite again below.
        ends = [_INFINITE.sub(r"\g<1>1e308", word) for word in (self.text(name) or "").split()]
        bounds = None if self.text(name) is None else quantities.decimals(" ".join(ends), 2, name, self.place)
        if bounds is not None:
            bounds[np.abs(bounds) >= 1e308] *= np.inf
        flag_value = self.choice(flag, ("true", "false", "auto"), "auto")
        if flag_value == "auto" and bounds is not None and bounds.any() and not self.settings.autolimits:
            raise self.place.fault(f'there is a {name} and no {flag}, which <compiler autolimits="false"> requires')
        if flag_value == "false" or bounds is None or (flag_value == "auto" and not bounds[0] < bounds[1]):
            if flag_value == "true":
                raise self.place.fault(f"{flag} is true and there is no {name}, expected one")
            return None
        return bounds

    def _of_quat(self) -> Matrix:
        return of_quaternion(self.vector("quat", (1.0, 0.0, 0.0, 0.0)), "quat", self.place)

    def _of_axisangle(self) -> Matrix:
        numbers = self.vector("axisangle", (0.0, 0.0, 1.0, 0.0))
        axis = quantities.unit_axis(numbers[:3], self.place.inside("axisangle"), [])
        return about(axis, self.settings.angle(numbers[3]))

    def _of_euler(self) -> Matrix:
        angles, R = self.vector("euler", (0.0, 0.0, 0.0)), np.eye(3)
        for letter, angle in zip(self.settings.eulerseq, angles, strict=True):
            turn = about(np.eye(3)["xyz".index(letter.lower())], self.settings.angle(angle))
            R = R @ turn if letter.islower() else turn @ R  # with the frame, or about axes that stay
        return R

    def _of_xyaxes(self) -> Matrix:
        numbers = self.vector("xyaxes", (1.0, 0.0, 0.0, 0.0, 1.0, 0.0))
        place = self.place.inside("xyaxes")
        x = quantities.unit_axis(numbers[:3], place, [])
        # Scaled first: the product with a y of 1e308 would overflow.
        y = numbers[3:] / max(float(np.abs(numbers[3:]).max()), 1e-300)
        y = quantities.unit_axis(y - x * (x @ y), place, [])
        return np.column_stack([x, y, np.cross(x, y)])

    def _of_zaxis(self) -> Matrix:
        return turning_z_to(quantities.unit_axis(self.vector("zaxis", (0.0, 0.0, 1.0)), self.place.inside("zaxis"), []))


def _completed(text: str, inherited: str) -> str:
    if len(text) + len(inherited) > quantities.LONGEST_NUMBERS:
        return text  # no numbers that are read
    words = text.split()
    return " ".join([*words, *inherited.split()[len(words) :]])


def _merged(attributes: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    has_orientation = any(name in attributes for name in ORIENTATIONS)
    defaults = {name: text for name, text in inherited.items() if not (has_orientation and name in ORIENTATIONS)}
    partial = {
        name: _completed(attributes[name], defaults[name])
        for name in PARTIAL
        if name in attributes and name in defaults
    }
    return {**defaults, **attributes, **partial}


class Classes:
    """The defaults of a file.

    elements: its outermost `<default>` elements. settings: those of its `<compiler>`.
    """

    def __init__(self, elements: list[Element], settings: Settings) -> None:
        self.settings = settings
        self._defaults: dict[str, dict[str, dict[str, str]]] = {MAIN: {}}
        self._main = MAIN
        for element in elements:
            name = element.attributes.get("class", MAIN)
            # The outermost class may have any name, and is then the one of elements without a class.
            if name != MAIN and self._main == MAIN and not self._defaults[MAIN]:
                self._defaults[name] = self._defaults[MAIN]
                self._main = name
            elif name not in self._defaults:
                text = f"the outermost class is {quoted(name)} and {quoted(self._main)}, expected one"
                raise element.at("default", element.file).fault(text)
            pending = [(element, name)]
            while pending:
                outer, class_name = pending.pop()
                for child in outer.children:
                    if kind := CLASSED.get(child.tag):
                        self._defaults[class_name][kind] = _merged(
                            child.attributes, self._defaults[class_name].get(kind, {})
                        )
                # After the outer class is complete, because a nested one begins as its copy.
                pending += [(child, self._nested(child, class_name)) for child in outer.all("default")]

    def _nested(self, element: Element, outer: str) -> str:
        place = element.at("default", element.file)
        name = element.attributes.get("class", "")
        if not name:
            raise place.fault("there is no class, expected one for nested defaults")
        if name in self._defaults:
            raise place.fault(f"the class {quoted(name)} is already defined, expected unique names")
        if len(self._defaults) >= MAX_CLASSES:
            text = f"there are more than {MAX_CLASSES} default classes"
            raise ResourceExhaustedError(f"{place.file}:{place.line}: {text}")
        self._defaults[name] = dict(self._defaults[outer])
        return name

    def check(self, name: str, place: Place) -> str:
        """Returns the name of a class, which must exist."""
        if name not in self._defaults:
            raise place.fault(f"there is no default class {quoted(name)}{did_you_mean(name, self._defaults)}")
        return name

    def plain(self, element: Element, attributes: Mapping[str, str] | None = None) -> Values:
        """Returns the values of an element without defaults; `attributes` replaces its own."""
        return Values(element.attributes if attributes is None else attributes, {}, element.place, self.settings)

    def values(self, element: Element, childclass: str | None = None, kind: str | None = None) -> Values:
        """Returns the values of an element with the defaults of its class.

        childclass: in effect. kind: the name of the defaults, by default that of its own tag.
        """
        of_class = self._defaults[self.check(element.attributes.get("class", childclass or self._main), element.place)]
        inherited = of_class.get(kind or element.tag, {})
        return Values(element.attributes, inherited, element.place, self.settings)

"""Frames of SDFormat: links, joints, models and frames, each with a pose relative to another one, in any order.

The pose of a frame is relative to the frame of `relative_to`. The defaults are: the model for links and models, the
child for joints, the attached frame for frames. The pose between two frames is computed through their nearest common
frame, so that a link placed relative to its parent keeps the numbers in the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dyn_service.errors import ResourceExhaustedError
from dyn_service.model.description import Note
from dyn_service.parsing import quantities
from dyn_service.parsing.pose import Pose
from dyn_service.parsing.quantities import Place, quoted
from dyn_service.parsing.structure import WORLD, loop_of
from dyn_service.parsing.xml_elements import Element
from dyn_service.support.suggestions import did_you_mean

MODEL = "__model__"
SCOPE = "::"
MAX_STEPS = 200_000
"""Maximum number of steps between frames in all queries; a robot of 100 links takes 400."""

LONGEST_LOOP = 8
"""Maximum number of frames of a loop that a message names."""


@dataclass(frozen=True, eq=False)
class Frame:
    """A frame of SDFormat.

    parent: the frame that its pose is relative to; "" for the world. link: the link's own name for a link, otherwise
    the link or frame that it moves with. place: for errors.
    """

    parent: str
    pose: Pose
    link: str
    place: Place


class Frames:
    """All frames of a robot by full name, such as `arm::hand` for a nested model. Faults are `UrdfError`."""

    def __init__(self) -> None:
        self._of: dict[str, Frame] = {}
        self._links: dict[str, str] = {}
        self._steps = 0

    def add(self, name: str, frame: Frame) -> None:
        """Adds a frame with a name that is neither used nor reserved."""
        own = name.rpartition(SCOPE)[2]
        if self._of and (own == WORLD or (own == MODEL and name in self._of)):
            raise frame.place.fault(f"the name {quoted(own)} is reserved in SDFormat, expected another")
        if name in self._of:
            first = self._of[name].place
            raise frame.place.fault(
                f"the name is already used by {first.element} on line {first.line}, expected another"
            )
        self._of[name] = frame

    def __contains__(self, name: str) -> bool:
        return name in self._of

    def named(self, name: str, scope: str, place: Place) -> str:
        """Returns the full name of the frame `name` of a model, which must exist."""
        whole = name if name == WORLD else scope + name
        if whole not in self._of:
            near = did_you_mean(whole, self._of)
            raise place.fault(f"there is no link, joint, frame or model {quoted(name)}{near}")
        return whole

    def link_of(self, name: str) -> str:
        """Returns the link that a frame moves with, `world` if it does not move."""
        walked = []
        while name not in self._links:
            walked.append(name)
            name = self._of[name].link
        for each in walked:
            self._links[each] = self._links[name]
        return self._links[name]

    def check(self) -> None:
        """Checks that the parents and links of all frames exist, without loops."""
        for frame in self._of.values():
            for other in (frame.parent, frame.link):
                if other and other not in self._of:
                    near = did_you_mean(other, self._of)
                    raise frame.place.fault(f"there is no link, joint, frame or model {quoted(other)}{near}")
        self._refuse_loops(lambda name: self._of[name].parent, "are relative to each other")
        self._refuse_loops(lambda name: self._of[name].link, "are attached to each other")
        self._links = {name: name for name, frame in self._of.items() if frame.link in ("", name)}

    def moved(self, name: str, pose: Pose) -> None:
        """Changes the pose of a frame relative to its parent."""
        self._of[name] = replace(self._of[name], pose=pose)

    def pose(self, name: str) -> Pose:
        """Returns the pose of a frame relative to its parent."""
        return self._of[name].pose

    def between(self, outer: str, inner: str) -> Pose:
        """Returns the pose of the frame `inner` in the frame `outer`, after `check`.

        Raises:
            ResourceExhaustedError: The chain of frames is too long.
        """
        # Both ways up, step by step, until one is met by the other.
        ways = [[outer], [inner]]
        met = [{outer: 0}, {inner: 0}]
        while not (
            shared := next((way[-1] for way, others in zip(ways, met[::-1], strict=True) if way[-1] in others), "")
        ):
            for way, seen in zip(ways, met, strict=True):
                above = self._of[way[-1]].parent
                if above:
                    seen[above] = len(way)
                    way.append(above)
            self._steps += 1
            if self._steps > MAX_STEPS:
                place = self._of[inner].place
                raise ResourceExhaustedError(f"{place.file}:{place.line}: the robot's chains of frames are too long")
        up, down = (way[: seen[shared]] for way, seen in zip(ways, met, strict=True))
        return self._product(up).inverse @ self._product(down)

    def _product(self, way: list[str]) -> Pose:
        pose = Pose()
        for name in way:
            pose = self._of[name].pose @ pose
        return pose

    def _refuse_loops(self, step: Callable[[str], str], what: str) -> None:
        found = loop_of(self._of, lambda name: after if (after := step(name)) not in ("", name) else None)
        if found:
            loop = " -> ".join(map(quoted, [*found[:LONGEST_LOOP], found[0]]))
            raise self._of[found[0]].place.fault(f"the frames {what} in a loop, {loop}, expected none")


INFINITE = 1e16
"""Limits from this value on mean no limit; the format's default is 1e16."""


def bound(parent: Element, tag: str) -> float | None:
    """Returns a limit; None if it is missing or infinite."""
    if parent.word(tag, "inf").lower().lstrip("+-") in ("inf", "infinity"):
        return None
    value = parent.inner_number(tag, math.inf)
    return value if abs(value) < INFINITE else None


def pose(parent: Element, notes: list[Note]) -> Pose:
    """Returns the `<pose>` of an element in the frame that it names."""
    element = parent.child("pose")
    if element is None:
        return Pose()
    place, text = element.place, element.word()
    if not text:
        return Pose()
    way = element.attributes.get("rotation_format", "euler_rpy")
    if way == "quat_xyzw":
        values = quantities.decimals(text, 7, "pose", place)
        return Pose(quantities.rotation_of_quaternion(values[3:], place, notes), values[:3])
    if way != "euler_rpy":
        raise place.fault(f"attribute 'rotation_format': expected euler_rpy or quat_xyzw, found {quoted(way)}")
    values = quantities.decimals(text, 6, "pose", place)
    if element.attributes.get("degrees", "false") in ("true", "1"):
        return Pose(quantities.rotation_of_rpy(np.radians(values[3:])), values[:3])
    notes += quantities.degree_note(values[3:], place)
    return Pose(quantities.rotation_of_rpy(values[3:]), values[:3])


def said_in(parent: Element) -> str:
    """Returns the frame that the `<pose>` of an element is relative to, "" if it names none."""
    element = parent.child("pose")
    return "" if element is None else element.attributes.get("relative_to", element.attributes.get("frame", ""))

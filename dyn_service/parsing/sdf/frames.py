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
        self._frames: dict[str, Frame] = {}
        self._links: dict[str, str] = {}
        self._steps = 0

    def add(self, name: str, frame: Frame) -> None:
        """Adds a frame with a name that is neither used nor reserved."""
        local_name = name.rpartition(SCOPE)[2]
        if self._frames and (local_name == WORLD or (local_name == MODEL and name in self._frames)):
            raise frame.place.fault(f"the name {quoted(local_name)} is reserved in SDFormat, expected another")
        if name in self._frames:
            first = self._frames[name].place
            raise frame.place.fault(
                f"the name is already used by {first.element} on line {first.line}, expected another"
            )
        self._frames[name] = frame

    def __contains__(self, name: str) -> bool:
        return name in self._frames

    def named(self, name: str, scope: str, place: Place) -> str:
        """Returns the full name of the frame `name` of a model, which must exist."""
        full_name = name if name == WORLD else scope + name
        if full_name not in self._frames:
            suggestion = did_you_mean(full_name, self._frames)
            raise place.fault(f"there is no link, joint, frame or model {quoted(name)}{suggestion}")
        return full_name

    def link_of(self, name: str) -> str:
        """Returns the link that a frame moves with, `world` if it does not move."""
        walked = []
        while name not in self._links:
            walked.append(name)
            name = self._frames[name].link
        # All frames on the way move with this link, and need not be walked again.
        for frame_name in walked:
            self._links[frame_name] = self._links[name]
        return self._links[name]

    def check(self) -> None:
        """Checks that the parents and links of all frames exist, without loops."""
        for frame in self._frames.values():
            for other in (frame.parent, frame.link):
                if other and other not in self._frames:
                    suggestion = did_you_mean(other, self._frames)
                    raise frame.place.fault(f"there is no link, joint, frame or model {quoted(other)}{suggestion}")
        self._refuse_loops(lambda name: self._frames[name].parent, "are relative to each other")
        self._refuse_loops(lambda name: self._frames[name].link, "are attached to each other")
        self._links = {name: name for name, frame in self._frames.items() if frame.link in ("", name)}

    def moved(self, name: str, pose: Pose) -> None:
        """Changes the pose of a frame relative to its parent."""
        self._frames[name] = replace(self._frames[name], pose=pose)

    def pose(self, name: str) -> Pose:
        """Returns the pose of a frame relative to its parent."""
        return self._frames[name].pose

    def between(self, outer: str, inner: str) -> Pose:
        """Returns the pose of the frame `inner` in the frame `outer`, after `check`.

        Raises:
            ResourceExhaustedError: The chain of frames is too long.
        """
        # Both ways up, step by step, until one is met by the other.
        paths = [[outer], [inner]]
        depths = [{outer: 0}, {inner: 0}]
        while not (
            common := next((path[-1] for path, other in zip(paths, depths[::-1], strict=True) if path[-1] in other), "")
        ):
            for path, seen in zip(paths, depths, strict=True):
                parent = self._frames[path[-1]].parent
                if parent:
                    seen[parent] = len(path)
                    path.append(parent)
            self._steps += 1
            if self._steps > MAX_STEPS:
                place = self._frames[inner].place
                raise ResourceExhaustedError(f"{place.file}:{place.line}: the robot's chains of frames are too long")
        outer_chain, inner_chain = (path[: seen[common]] for path, seen in zip(paths, depths, strict=True))
        return self._product(outer_chain).inverse @ self._product(inner_chain)

    def _product(self, way: list[str]) -> Pose:
        pose = Pose()
        for name in way:
            pose = self._frames[name].pose @ pose
        return pose

    def _refuse_loops(self, step: Callable[[str], str], relation: str) -> None:
        names = loop_of(self._frames, lambda name: next_name if (next_name := step(name)) not in ("", name) else None)
        if names:
            loop = " -> ".join(map(quoted, [*names[:LONGEST_LOOP], names[0]]))
            raise self._frames[names[0]].place.fault(f"the frames {relation} in a loop, {loop}, expected none")


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


def reference_frame(parent: Element) -> str:
    """Returns the frame that the `<pose>` of an element is relative to, "" if it names none."""
    element = parent.child("pose")
    return "" if element is None else element.attributes.get("relative_to", element.attributes.get("frame", ""))

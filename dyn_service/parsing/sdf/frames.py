"""Frames of SDFormat: each stands in another one, links, joints and models as well, and they may be named in any order.

A frame stands where its pose says, in the frame that `relative_to` names, or else: links and models in their model,
joints on their child, frames on what they are attached to. Two frames are seen from each other by way of the nearest
one that both stand in, so that a link which is placed on its parent has the very numbers that are written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dyn_service.errors import ResourceExhaustedError
from dyn_service.parsing.places import Place, quoted
from dyn_service.parsing.pose import Pose
from dyn_service.parsing.structure import WORLD
from dyn_service.support.suggestions import did_you_mean

MODEL = "__model__"
SCOPE = "::"
MOST_STEPS = 200_000
"""From frame to frame, over all that is asked; a robot of 100 links takes 400."""

LONGEST_LOOP = 8
"""Frames of a loop that a message names."""


@dataclass(frozen=True, eq=False)
class Frame:
    """parent: the frame it stands in, "" of the world. link: of a link its own name, of a joint, frame or model that
    of what it moves with, which may be another frame. place: for faults.
    """

    parent: str
    pose: Pose
    link: str
    place: Place


class Frames:
    """All frames of a robot, by their whole names: `arm::hand` is that of a model in a model."""

    def __init__(self) -> None:
        self._of: dict[str, Frame] = {}
        self._links: dict[str, str] = {}
        self._steps = 0

    def add(self, name: str, frame: Frame) -> None:
        """One more frame.

        Raises:
            UrdfError: There is one of that name, or the name is reserved.
        """
        own = name.rpartition(SCOPE)[2]
        if self._of and (own == WORLD or (own == MODEL and name in self._of)):
            raise frame.place.fault(f"the name {quoted(own)} is reserved in SDFormat, expected another")
        if name in self._of:
            first = self._of[name].place
            raise frame.place.fault(
                f"the name is already that of {first.element} on line {first.line}, expected another"
            )
        self._of[name] = frame

    def __contains__(self, name: str) -> bool:
        return name in self._of

    def named(self, name: str, scope: str, place: Place) -> str:
        """The whole name of what `name` means in a model.

        Raises:
            UrdfError: There is no such frame.
        """
        whole = name if name == WORLD else scope + name
        if whole not in self._of:
            near = did_you_mean(whole, self._of)
            raise place.fault(f"there is no link, joint, frame or model {quoted(name)}{near}")
        return whole

    def link_of(self, name: str) -> str:
        """The link that a frame moves with, `world` for one that stands still."""
        walked = []
        while name not in self._links:
            walked.append(name)
            name = self._of[name].link
        for each in walked:
            self._links[each] = self._links[name]
        return self._links[name]

    def check(self) -> None:
        """Every frame stands in one that there is, and moves with one, and none does so by way of itself.

        Raises:
            UrdfError: One does not.
        """
        for frame in self._of.values():
            for other in (frame.parent, frame.link):
                if other and other not in self._of:
                    near = did_you_mean(other, self._of)
                    raise frame.place.fault(f"there is no link, joint, frame or model {quoted(other)}{near}")
        self._refuse_loops(lambda name: self._of[name].parent, "stand in each other")
        self._refuse_loops(lambda name: self._of[name].link, "are attached to each other")
        self._links = {name: name for name, frame in self._of.items() if frame.link in ("", name)}

    def moved(self, name: str, pose: Pose) -> None:
        """Puts a frame at another pose in the frame that it stands in."""
        self._of[name] = replace(self._of[name], pose=pose)

    def pose(self, name: str) -> Pose:
        """Where a frame stands in the frame that it stands in."""
        return self._of[name].pose

    def between(self, outer: str, inner: str) -> Pose:
        """Where the frame `inner` stands in the frame `outer`; `check` was called before.

        Raises:
            ResourceExhaustedError: The frames stand in each other by too many others.
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
            if self._steps > MOST_STEPS:
                place = self._of[inner].place
                raise ResourceExhaustedError(
                    f"{place.file}:{place.line}: the robot's frames stand too far from each other"
                )
        up, down = (way[: seen[shared]] for way, seen in zip(ways, met, strict=True))
        return self._product(up).inverse @ self._product(down)

    def _product(self, way: list[str]) -> Pose:
        pose = Pose()
        for name in way:
            pose = self._of[name].pose @ pose
        return pose

    def _refuse_loops(self, step: Callable[[str], str], what: str) -> None:
        safe: set[str] = set()
        for name in self._of:
            walked: dict[str, None] = {}
            while name not in safe:
                if name in walked:
                    names = list(walked)[list(walked).index(name) :][:LONGEST_LOOP]
                    loop = " -> ".join(map(quoted, [*names, name]))
                    raise self._of[name].place.fault(f"the frames {what} in a loop, {loop}, expected none")
                walked[name] = None
                following = step(name)
                if following in ("", name):
                    break
                name = following
            safe.update(walked)

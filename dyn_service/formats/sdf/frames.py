"""Frames of SDFormat: each stands in another one, links, joints and models as well, and they may be named in any order.

A frame stands where its pose says, in the frame that `relative_to` names, or else: links and models in their model, joints on
their child, frames on what they are attached to. Two frames are seen from each other by way of the nearest one that both
stand in, so that a link which is placed on its parent has the very numbers that are written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dyn_service.formats.pose import Pose
from dyn_service.suggestions import did_you_mean
from dyn_service.urdf.places import Place, quoted

MODEL = "__model__"
SCOPE = "::"
LONGEST_LOOP = 8
"""Frames of a loop that a message names."""


@dataclass(frozen=True, eq=False)
class Frame:
    """parent: the frame it stands in, "" of the world. link: of a link its own name, of a joint, frame or model that of what it
    moves with, which may be another frame. place: for faults.
    """

    parent: str
    pose: Pose
    link: str
    place: Place


class Frames:
    """All frames of a robot, by their whole names: `arm::hand` is that of a model in a model."""

    def __init__(self) -> None:
        self._of: dict[str, Frame] = {}
        self._chains: dict[str, tuple[str, ...]] = {}

    def add(self, name: str, frame: Frame) -> None:
        """One more frame.

        Raises:
            UrdfError: There is one of that name.
        """
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
        whole = name if name == "world" else scope + name
        if whole not in self._of:
            near = did_you_mean(whole, self._of)
            raise place.fault(f"there is no link, joint, frame or model {quoted(name)}{near}")
        return whole

    def link_of(self, name: str) -> str:
        """The link that a frame moves with, `world` for one that stands still.

        Raises:
            UrdfError: It is attached to itself by way of others.
        """
        chain = self._followed(name, lambda frame: frame.link, "are attached to each other")
        return chain[-1]

    def check(self) -> None:
        """Every frame stands in one that there is, and moves with one.

        Raises:
            UrdfError: One does not.
        """
        for frame in self._of.values():
            for other in (frame.parent, frame.link):
                if other and other not in self._of:
                    near = did_you_mean(other, self._of)
                    raise frame.place.fault(f"there is no link, joint, frame or model {quoted(other)}{near}")

    def moved(self, name: str, pose: Pose) -> None:
        """Puts a frame at another pose in the frame that it stands in."""
        self._of[name] = replace(self._of[name], pose=pose)

    def pose(self, name: str) -> Pose:
        """Where a frame stands in the frame that it stands in."""
        return self._of[name].pose

    def between(self, outer: str, inner: str) -> Pose:
        """Where the frame `inner` stands in the frame `outer`.

        Raises:
            UrdfError: A frame stands in itself by way of others.
        """
        above, below = self._chain(outer), self._chain(inner)
        shared = next(name for name in below if name in set(above))
        return self._within(above, shared).inverse @ self._within(below, shared)

    def _within(self, chain: tuple[str, ...], end: str) -> Pose:
        pose = Pose()
        for name in chain[: chain.index(end)]:
            pose = self._of[name].pose @ pose
        return pose

    def _chain(self, name: str) -> tuple[str, ...]:
        if name not in self._chains:
            self._chains[name] = self._followed(name, lambda frame: frame.parent, "stand in each other")
        return self._chains[name]

    def _followed(self, name: str, step: Callable[[Frame], str], what: str) -> tuple[str, ...]:
        """The frame, and what follows from it, to the one that leads to itself or nowhere."""
        walked = {name: None}
        while (following := step(self._of[name])) not in ("", name):
            if following in walked:
                names = list(walked)[list(walked).index(following) :][:LONGEST_LOOP]
                loop = " -> ".join(map(quoted, [*names, following]))
                raise self._of[following].place.fault(f"the frames {what} in a loop, {loop}, expected none")
            walked[following] = None
            name = following
        return tuple(walked)

"""Bodies with several joints, or with a joint that is not at the body's origin, as URDF links and joints.

As in URDF, a joint's frame is its child's frame. Consecutive joints are separated by links without mass, and a body
whose last joint is not at its origin is fixed to such a link. They cost nothing in kernels: fixed joints are welded,
and a massless body costs only the operations of its frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from dyn_service.model.arrays import Vector
from dyn_service.model.description import Joint, Link
from dyn_service.parsing.pose import Pose, about
from dyn_service.parsing.quantities import X_AXIS, Place, named


class Names:
    """A set of used names that creates new ones."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def new(self, wanted: str) -> str:
        """Returns `wanted`, with a number appended if it is used, and marks it as used."""
        name, number = wanted, 2
        while name in self._taken:
            name, number = f"{wanted}_{number}", number + 1
        self._taken.add(name)
        return name


def check_finite(links: Sequence[Link], joints: Sequence[Joint], source: str) -> None:
    """Checks that products of large numbers did not overflow; each number of the file is finite."""
    for link in links:
        own = link.inertial
        if own is not None and not all(np.isfinite(x).all() for x in (own.mass, own.com, own.rotation, own.inertia)):
            place = Place(source, f"{named('link', link.name)} inertial", link.line)
            raise place.fault("its mass, centre of mass or inertia is too large for a double")
    for joint in joints:
        numbers = (joint.xyz, joint.rotation, joint.axis, joint.damping, joint.armature, joint.stiffness, joint.pitch)
        if not all(np.isfinite(x).all() for x in numbers):
            place = Place(source, named("joint", joint.name), joint.line)
            raise place.fault("its pose or a passive parameter is too large for a double")


class Roots:
    """A forest of names (union-find): finds the root of a name."""

    def __init__(self) -> None:
        self._on: dict[str, str] = {}

    def of(self, name: str) -> str:
        """Returns the root of a name, as far as it is known."""
        while (above := self._on.get(name)) is not None:
            if (further := self._on.get(above)) is not None:
                self._on[name] = further  # path compression
            name = above
        return name

    def join(self, name: str, above: str) -> bool:
        """Attaches a root to another name; returns False if that would close a loop, or if it is not a root."""
        if name in self._on or self.of(above) == name:
            return False
        self._on[name] = above
        return True


def placed(joint: Joint, at: Pose, zero: float = 0.0) -> Joint:
    """Returns the joint with its frame at `at` on its parent; its body is at `at` for the position `zero`, rad | m."""
    if joint.moves.shifts == (True,):
        at = Pose(at.rotation, at.origin - at.rotation @ joint.axis * zero) if zero else at
    elif zero:
        at = Pose(at.rotation @ about(joint.axis, -zero), at.origin)
    return replace(joint, xyz=at.origin + 0.0, rotation=at.rotation + 0.0)


def hung(
    body: Link, parent: str, at: Pose, joints: Sequence[tuple[Joint, Vector, float]], links: Names, names: Names
) -> tuple[list[Link], list[Joint]]:
    """Returns the links, the body last, and the joints between it and its parent; without joints the body is fixed.

    `at` is the pose of the body's frame on the parent, with the joints at zero. The joints come outermost last, each
    with axis and position (3,) m in the body's axes, and its joint position, rad | m, for which the body is at `at`;
    parent, child and pose are set here. `links` and `names` are those of links and joints.
    """
    made: list[Link] = []
    found: list[Joint] = []
    here = np.zeros(3)  # the pose of the last frame relative to the body
    for k, (joint, anchor, zero) in enumerate(joints):
        # The position of a sliding axis does not matter.
        there = anchor if joint.moves.subspace[:3].any() else np.zeros(3)
        frame = placed(joint, Pose(at.rotation, at.origin + at.rotation @ (there - here)), zero)
        last = k == len(joints) - 1 and not there.any()
        child = body if last else Link(links.new(f"{joint.name}_link"), line=body.line, added=True)
        found.append(replace(frame, parent=parent, child=child.name))
        if not last:
            made.append(child)
        parent, at, here = child.name, Pose(), there
    if parent != body.name:
        end = Pose(at.rotation, at.origin - at.rotation @ here) if joints else at
        name = names.new(f"{body.name}_fixed")
        fixed = Joint(name, "fixed", parent, body.name, end.origin, end.rotation, np.array(X_AXIS), line=body.line)
        found.append(fixed)
    return [*made, body], found

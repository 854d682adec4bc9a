"""A body that hangs by several joints, or by one whose place is not the body's origin: as URDF's links and joints.

Here, as in URDF, a joint's frame is its child's. So between joints that act one after the other stand links without
mass, and where the last one's place is not the body's origin the body is fixed to one. In kernels they vanish: fixed
joints are welded, and a massless body costs its frame's operations and no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from dyn_service.model.arrays import Vector
from dyn_service.model.description import Joint, Link
from dyn_service.parsing.places import Place, named
from dyn_service.parsing.pose import Pose, about
from dyn_service.parsing.quantities import X_AXIS


class Names:
    """Names that are taken, and new ones beside them."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def new(self, wanted: str) -> str:
        """`wanted`, or with a number behind it, whichever is free; it is taken then."""
        name, number = wanted, 2
        while name in self._taken:
            name, number = f"{wanted}_{number}", number + 1
        self._taken.add(name)
        return name


def check_finite(links: Sequence[Link], joints: Sequence[Joint], source: str) -> None:
    """Refuses what products of huge numbers have left without a value; each number of the file by itself is finite.

    Raises:
        UrdfError: There is such a number; names the link or the joint.
    """
    for link in links:
        own = link.inertial
        if own is not None and not all(np.isfinite(x).all() for x in (own.mass, own.com, own.rotation, own.inertia)):
            place = Place(source, named("link", link.name), link.line).inside("inertial")
            raise place.fault("its mass, centre of mass or inertia is too large for a double")
    for joint in joints:
        numbers = (joint.xyz, joint.rotation, joint.axis, joint.damping, joint.armature, joint.stiffness, joint.pitch)
        if not all(np.isfinite(x).all() for x in numbers):
            place = Place(source, named("joint", joint.name), joint.line)
            raise place.fault("where it stands, or what it does by itself, is too large for a double")


class Roots:
    """Trees that grow together: which one's root a name hangs on."""

    def __init__(self) -> None:
        self._on: dict[str, str] = {}

    def of(self, name: str) -> str:
        """The root, as far as it is known."""
        while (above := self._on.get(name)) is not None:
            if (further := self._on.get(above)) is not None:
                self._on[name] = further  # the way is shorter next time
            name = above
        return name

    def join(self, name: str, above: str) -> bool:
        """Hangs a root on another name; False: that would close a loop, or it is no root."""
        if name in self._on or self.of(above) == name:
            return False
        self._on[name] = above
        return True


def placed(joint: Joint, at: Pose, zero: float = 0.0) -> Joint:
    """The joint with its frame at `at` on its parent, standing at `zero`, rad | m, where its body is at `at`."""
    if joint.moves.shifts == (True,):
        at = Pose(at.rotation, at.origin - at.rotation @ joint.axis * zero) if zero else at
    elif zero:
        at = Pose(at.rotation @ about(joint.axis, -zero), at.origin)
    return replace(joint, xyz=at.origin + 0.0, rotation=at.rotation + 0.0)


def hung(
    body: Link,
    parent: str,
    at: Pose,
    joints: Sequence[tuple[Joint, Vector, float]],
    links: Names,
    names: Names,
) -> tuple[list[Link], list[Joint]]:
    """The links, the body last, and the joints by which it hangs, as far as there are any; else it is fixed.

    Args:
        body: The link.
        parent: The link it hangs on.
        at: Where its frame stands on that one, the joints being at their zeros.
        joints: Outermost last: each with axis and place (3,) m in the body's axes at its origin, and where it stands,
            rad | m, when the body is at `at`. Parent, child and place are put in here.
        links: Names of links.
        names: Names of joints.
    """
    made: list[Link] = []
    found: list[Joint] = []
    here = np.zeros(3)  # of the body, where the frame reached so far stands
    for k, (joint, anchor, zero) in enumerate(joints):
        there = anchor if joint.moves.subspace[:3].any() else np.zeros(3)  # where one slides along is all the same
        frame = placed(joint, Pose(at.rotation, at.origin + at.rotation @ (there - here)), zero)
        last = k == len(joints) - 1 and not there.any()
        child = body if last else Link(links.new(f"{joint.name}_link"), line=body.line, between=True)
        found.append(replace(frame, parent=parent, child=child.name))
        if not last:
            made.append(child)
        parent, at, here = child.name, Pose(), there
    if parent != body.name:
        end = Pose(at.rotation, at.origin - at.rotation @ here) if joints else at
        fixed = Joint(
            names.new(f"{body.name}_fixed"), "fixed", parent, body.name, end.origin, end.rotation, np.array(X_AXIS)
        )
        found.append(replace(fixed, line=body.line))
    return [*made, body], found

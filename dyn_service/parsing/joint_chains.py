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
from dyn_service.model.joints import FIXED
from dyn_service.parsing.pose import Pose, about
from dyn_service.parsing.quantities import X_AXIS, Place, named


class Names:
    """A set of used names that creates new ones."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = set(names)

    def new(self, base: str) -> str:
        """Returns `base`, with a number appended if it is used, and marks it as used."""
        name, number = base, 2
        while name in self._names:
            name, number = f"{base}_{number}", number + 1
        self._names.add(name)
        return name


def check_finite(links: Sequence[Link], joints: Sequence[Joint], source: str) -> None:
    """Checks that products of large numbers did not overflow; each number of the file is finite."""
    for link in links:
        inertial = link.inertial
        if inertial is not None and not all(
            np.isfinite(x).all() for x in (inertial.mass, inertial.com, inertial.rotation, inertial.inertia)
        ):
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
        self._parents: dict[str, str] = {}

    def of(self, name: str) -> str:
        """Returns the root of a name, as far as it is known."""
        while (parent := self._parents.get(name)) is not None:
            if (grandparent := self._parents.get(parent)) is not None:
                self._parents[name] = grandparent  # path compression
            name = parent
        return name

    def join(self, name: str, parent: str) -> bool:
        """Attaches a root to another name; returns False if that would close a loop, or if it is not a root."""
        if name in self._parents or self.of(parent) == name:
            return False
        self._parents[name] = parent
        return True


def with_frame(joint: Joint, pose: Pose, zero: float = 0.0) -> Joint:
    """Returns the joint with its frame at `pose` on its parent, where its body is for the position `zero`, rad | m."""
    if joint.moves.shifts == (True,):
        pose = Pose(pose.rotation, pose.origin - pose.rotation @ joint.axis * zero) if zero else pose
    elif zero:
        pose = Pose(pose.rotation @ about(joint.axis, -zero), pose.origin)
    # + 0.0 turns -0.0 into 0.0, so that equal frames have equal bits.
    return replace(joint, xyz=pose.origin + 0.0, rotation=pose.rotation + 0.0)


def joint_chain(
    body: Link, parent: str, pose: Pose, joints: Sequence[tuple[Joint, Vector, float]], links: Names, names: Names
) -> tuple[list[Link], list[Joint]]:
    """Returns the links, the body last, and the joints between it and its parent; without joints the body is fixed.

    `pose` is that of the body's frame on the parent, with the joints at zero. The joints come outermost last, each
    with axis and position (3,) m in the body's axes, and its joint position, rad | m, for which the body is at `pose`;
    parent, child and pose are set here. `links` and `names` are those of links and joints.
    """
    chain_links: list[Link] = []
    chain_joints: list[Joint] = []
    last_anchor = np.zeros(3)  # the pose of the last frame relative to the body
    for k, (joint, anchor, zero) in enumerate(joints):
        # The position of a sliding axis does not matter.
        next_anchor = anchor if joint.moves.subspace[:3].any() else np.zeros(3)
        frame = with_frame(joint, Pose(pose.rotation, pose.origin + pose.rotation @ (next_anchor - last_anchor)), zero)
        last = k == len(joints) - 1 and not next_anchor.any()
        # A link without mass per further joint: welding removes what only fixed joints separate.
        child = body if last else Link(links.new(f"{joint.name}_link"), line=body.line, added=True)
        chain_joints.append(replace(frame, parent=parent, child=child.name))
        if not last:
            chain_links.append(child)
        parent, pose, last_anchor = child.name, Pose(), next_anchor
    if parent != body.name:
        end = Pose(pose.rotation, pose.origin - pose.rotation @ last_anchor) if joints else pose
        name = names.new(f"{body.name}_fixed")
        fixed = Joint(name, FIXED.type, parent, body.name, end.origin, end.rotation, np.array(X_AXIS), line=body.line)
        chain_joints.append(fixed)
    return [*chain_links, body], chain_joints

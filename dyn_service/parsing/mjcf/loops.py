"""Equalities of MJCF that close loops of bodies: `connect` is a ball joint, `weld` a fixed one.

    connect   body1, anchor       the anchor in body1's frame; in body2's, where it is at qpos0
    weld      body1, relpose      the pose in body1 of the anchor's frame in body2; by default, that at qpos0
    both      site1, site2        the sites' frames; they need not coincide at qpos0
    body2     the world by default
    hinge     two connects NAME and NAME_axis of the same bodies: a revolute joint through both anchors

These are the rules of MuJoCo's compiler, except the hinge, which `parsing/writing/mjcf.py` writes so: two balls leave
the same motions free, but share its load. A weld with torquescale 0 holds positions only, so it is a ball joint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dyn_service.errors import ResourceExhaustedError
from dyn_service.model.description import LoopJoint
from dyn_service.model.joints import FIXED
from dyn_service.model.joints.axial import Revolute
from dyn_service.model.joints.multi_dof import Spherical
from dyn_service.parsing import quantities
from dyn_service.parsing.mjcf.values import Values
from dyn_service.parsing.pose import Pose, of_quaternion
from dyn_service.parsing.quantities import Place, quoted
from dyn_service.parsing.structure import WORLD
from dyn_service.parsing.writing.mjcf import HINGE_SUFFIX
from dyn_service.support.suggestions import did_you_mean

_SAME = 1e-6
"""Largest difference, relative to their distance, between the anchors' positions on one body and on the other."""

MAX_STEPS = 200_000
"""Maximum number of steps from body to body for all equalities of a robot."""


class Bodies:
    """Bodies and sites at qpos0.

    frames: by name of a body, its parent's name and its pose on the parent; without the world. sites: by name of a
    site, its body's name and its pose in the body.
    """

    def __init__(self, frames: Mapping[str, tuple[str, Pose]], sites: Mapping[str, tuple[str, Pose]]) -> None:
        self._frames, self._sites = frames, sites
        self._steps = 0

    def site(self, name: str, place: Place) -> tuple[str, Pose]:
        """Returns the body of a site, which must exist, and the site's pose in the body's frame."""
        if name not in self._sites:
            raise place.fault(f"there is no site {quoted(name)}{did_you_mean(name, self._sites)}")
        return self._sites[name]

    def body(self, name: str, place: Place) -> str:
        """Returns the name of a body, which must exist."""
        if name != WORLD and name not in self._frames:
            raise place.fault(f"there is no body {quoted(name)}{did_you_mean(name, (WORLD, *self._frames))}")
        return name

    def relative_pose(self, outer: str, inner: str, place: Place) -> Pose:
        """Returns the pose of the body `inner` in the body `outer`, through the nearest body that carries both.

        Raises:
            ResourceExhaustedError: The chains of bodies are too long for the number of equalities.
        """
        outer_chain, inner_chain = self._chain(outer), self._chain(inner)
        self._steps += len(outer_chain) + len(inner_chain)
        if self._steps > MAX_STEPS:
            raise ResourceExhaustedError(f"{place.file}:{place.line}: the chains of the equalities are too long")
        carriers = {name for name, _ in outer_chain}
        common = next(name for name, _ in inner_chain if name in carriers)
        return self._product(outer_chain, common).inverse @ self._product(inner_chain, common)

    def _chain(self, name: str) -> list[tuple[str, Pose]]:
        """Returns the bodies from one to the world, each with its pose on its parent."""
        chain = []
        while name != WORLD:
            parent, pose = self._frames[name]
            chain.append((name, pose))
            name = parent
        return [*chain, (WORLD, Pose())]

    def _product(self, chain: list[tuple[str, Pose]], end: str) -> Pose:
        """Returns the pose of a chain's first body in the body `end` of the chain."""
        product = Pose()
        for name, pose in chain:
            if name == end:
                break
            product = pose @ product
        return product


def loop_joint(tag: str, values: Values, name: str, bodies: Bodies) -> LoopJoint:
    """Returns the loop joint of a `connect` or `weld` with the `values` of its element."""
    attributes, place = values.attributes, values.place
    site_keys = [key for key in ("site1", "site2") if key in attributes]
    body_keys = [key for key in ("body1", "body2", "anchor", "relpose") if key in attributes]
    required = ("body1", "anchor") if tag == "connect" else ("body1",)
    if (site_keys and body_keys) or (len(site_keys) < 2 and not set(required) <= set(body_keys)):
        keys = ", ".join([*site_keys, *body_keys]) or "none of them"
        raise place.fault(f"expected {' and '.join(required)}, or site1 and site2, found {keys}")
    if site_keys:
        (parent, parent_frame), (child, child_frame) = (bodies.site(attributes[key], place) for key in site_keys)
    else:
        parent, child = bodies.body(attributes["body1"], place), bodies.body(attributes.get("body2", WORLD), place)
        anchor = Pose(origin=values.vector("anchor", (0.0, 0.0, 0.0)))
        relative = bodies.relative_pose(parent, child, place)
        parent_frame, child_frame = anchor, relative.inverse @ anchor
        if tag == "weld":
            relpose = values.vector("relpose", (0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0))
            parent_frame, child_frame = relative @ anchor, anchor
            if relpose[3:].any():
                parent_frame = Pose(of_quaternion(relpose[3:], "relpose", place), relpose[:3])
    kind = FIXED.type if tag == "weld" and values.number("torquescale", 1.0) else Spherical.type
    ends = (parent_frame.origin, parent_frame.rotation, child_frame.origin, child_frame.rotation)
    return LoopJoint(name, kind, parent, child, *ends, np.array(quantities.X_AXIS), line=place.main_line)


def with_hinges(joints: Sequence[LoopJoint]) -> list[LoopJoint]:
    """Returns the loop joints, with one hinge in place of two `connect` that `HINGE_SUFFIX` tells apart."""
    balls = {joint.name: joint for joint in joints if joint.type == Spherical.type}
    hinges: dict[str, LoopJoint] = {}
    for name, ball in balls.items():
        second = balls.get(name + HINGE_SUFFIX)
        if second is not None and (hinge := _hinge(ball, second)) is not None:
            hinges[name] = hinge
    seconds = {name + HINGE_SUFFIX for name in hinges}
    return [hinges.get(joint.name, joint) for joint in joints if joint.name not in seconds]


def _hinge(first: LoopJoint, second: LoopJoint) -> LoopJoint | None:
    """Returns the hinge through the anchors of two ball joints; None if their anchors are those of no hinge."""
    if (first.parent, first.child) != (second.parent, second.child):
        return None
    on_parent = first.parent_rotation.T @ (second.parent_xyz - first.parent_xyz)
    on_child = first.child_rotation.T @ (second.child_xyz - first.child_xyz)
    distance = float(np.linalg.norm(on_parent))
    if not distance > 0.0 or np.abs(on_child - on_parent).max() > _SAME * distance:
        return None
    return replace(first, type=Revolute.type, axis=on_parent / distance)

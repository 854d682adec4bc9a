"""Builds the tree of links from a description.

Entries of rotations that differ from 0 or +-1 by rounding are set to 0 or +-1, so that kernels can omit the terms.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dyn_service.errors import UrdfError
from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.configuration import Limits
from dyn_service.model.description import ROOT_JOINT, Description, Link, Mimic, RootType
from dyn_service.model.description import Joint as DescribedJoint
from dyn_service.model.inertia import ZERO_INERTIA, BodyInertia
from dyn_service.model.joints import FIXED, JOINT_TYPES, Joint
from dyn_service.model.mimic import followers_by_leader, moved_by_a_turn, narrowed_limits, resolved_mimics
from dyn_service.model.passive import Passive, widths
from dyn_service.model.tree import Tree

# With 1e-12, efforts of robots whose files write pi with 12 digits would be off by more than 1e-10.
SNAP = 1e-15
"""Entries of rotations and positions (m) that are this close to 0 or +-1 are roundings of `rpy` in multiples of
pi/2."""

_Following = Mapping[str, list[tuple[DescribedJoint, Mimic]]]
"""The followers of each leader, with their rules."""

MAX_INERTIA = 1e100
"""kg m^2; with larger inertias, products of inertias and lengths overflow."""


def tree_of(description: Description) -> Tree:
    """Returns the tree of a description, one body per link. The importer has checked that it has one root and no loops.

    Raises:
        UrdfError: A joint has a spring or a rotor that its type cannot have, or numbers overflow; names the file.
    """
    try:
        return _tree_of(description)
    except UrdfError as fault:
        fault.file = fault.file or description.source
        raise


def _tree_of(description: Description) -> Tree:
    links = {link.name: link for link in description.links}
    outboard: dict[str, list[DescribedJoint]] = {name: [] for name in links}
    for joint in description.joints:
        outboard[joint.parent].append(joint)
    (root,) = set(links) - {joint.child for joint in description.joints}

    order: list[tuple[Link, DescribedJoint | None, int]] = []
    stack: list[tuple[str, DescribedJoint | None, int]] = [(root, _root_joint(description.root, root), -1)]
    while stack:
        name, inboard, parent = stack.pop()
        index = len(order)
        order.append((links[name], inboard, parent))
        # By name, since the order of elements in a file is layout; reversed, since the last one pushed is visited
        # first.
        siblings = sorted(outboard[name], key=lambda joint: joint.name, reverse=True)
        stack += [(joint.child, joint, index) for joint in siblings]

    mimics = resolved_mimics(description.joints)
    following = followers_by_leader(description.joints, mimics)
    inboards = tuple(_inboard(joint, mimics, following) for _, joint, _ in order)
    places = [_place(joint, mimics) for _, joint, _ in order]
    pairs = zip((described for _, described, _ in order), inboards, strict=True)
    movable = [(described, joint) for described, joint in pairs if described is not None and joint.nv]
    return Tree(
        name=description.name,
        links=tuple(link.name for link, _, _ in order),
        joints=tuple("" if joint is None else joint.name for _, joint, _ in order),
        parent=tuple(parent for _, _, parent in order),
        inboard=inboards,
        rotation=tuple(R for R, _ in places),
        origin=tuple(p for _, p in places),
        inertia=tuple(_inertia(link) for link, _, _ in order),
        limits=_limits(movable, following),
        passive=_passive(movable, mimics),
        mimic=tuple(mimics.get(joint.name) for joint, _ in movable),
    )


def snapped(array: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rounds entries within SNAP of 0 or +-1. Kernels omit terms with exact zeros."""
    nearest = np.round(array)
    return np.where((np.abs(array - nearest) < SNAP) & (np.abs(nearest) <= 1.0), nearest, array) + 0.0


def _root_joint(root: RootType, link: str) -> DescribedJoint | None:
    if root == FIXED.type:
        return None
    upright = np.array([0.0, 0.0, 1.0])
    return DescribedJoint(ROOT_JOINT, root, "", link, np.zeros(3), np.eye(3), upright)


def _inboard(joint: DescribedJoint | None, mimics: Mapping[str, Mimic], following: _Following) -> Joint:
    if joint is None:
        return FIXED
    inboard = JOINT_TYPES[joint.type](snapped(joint.axis), joint.pitch)
    if moved_by_a_turn(joint, following.get(joint.name, ())):
        inboard = inboard.without_wrapping
    return inboard.follower(mimics[joint.name].multiplier) if joint.name in mimics else inboard


def _place(joint: DescribedJoint | None, mimics: Mapping[str, Mimic]) -> tuple[Matrix, Vector]:
    """Returns R_PJ and p_PJ, the pose of the body with its joint (or the joint it mimics) at zero."""
    if joint is None:
        return np.eye(3), np.zeros(3)
    R = snapped(joint.rotation)
    # Part of the frame, so that sweeps read only the entry of q of the mimicked joint.
    offset = mimics[joint.name].offset if joint.name in mimics else 0.0
    if not offset:
        return R, joint.xyz
    offset_rotation, offset_translation = _inboard(joint, {}, {}).pose(np.array([offset]))
    return snapped(R @ offset_rotation), joint.xyz + R @ offset_translation


def _passive(movable: list[tuple[DescribedJoint, Joint]], mimics: Mapping[str, Mimic]) -> Passive:
    """Returns the passive parameters of the joints. The rest position of a follower's spring is measured from its
    position with the mimicked joint at zero.
    """
    for described, joint in movable:
        for part in ("stiffness", "armature"):
            why = joint.refused(part) if getattr(described, part) else None
            if why is not None:
                raise UrdfError(why, line=described.line or None, element=f"joint '{described.name}'")
    dof_counts = [joint.nv for _, joint in movable]

    def column(name: str) -> Vector:
        return np.repeat([getattr(described, name) for described, _ in movable], dof_counts).astype(np.float64)

    friction_widths = [(described.friction_width, widths(joint.without_mimic)) for described, joint in movable]
    width = [default if value is None else value for value, defaults in friction_widths for default in defaults]
    offset = [mimics[described.name].offset if described.name in mimics else 0.0 for described, _ in movable]
    return Passive(
        column("damping"),
        column("friction"),
        np.array(width, dtype=np.float64),
        column("armature"),
        column("stiffness"),
        column("rest") - np.repeat(np.array(offset), dof_counts),
    )


def _inertia(link: Link) -> BodyInertia:
    if link.inertial is None:
        return ZERO_INERTIA
    R = link.inertial.rotation
    with np.errstate(over="ignore", invalid="ignore"):
        body = BodyInertia.from_com(link.inertial.mass, link.inertial.com, link.inertial.inertia, R)
    if large := too_large(body):
        raise UrdfError(large, line=link.line or None, element=f"link '{link.name}' inertial")
    return body


def too_large(body: BodyInertia) -> str:
    """Describes the inertial numbers of a link that are too large; empty if none are."""
    for quantity, array, unit in (("inertia", body.about_origin, "kg m^2"), ("first moment", body.moment, "kg m")):
        size = float(np.abs(array).max(initial=0.0))
        if not size < MAX_INERTIA:
            return f"the {quantity} about the link's origin is {size:g} {unit}, expected less than {MAX_INERTIA:g}"
    return ""


def _limits(movable: list[tuple[DescribedJoint, Joint]], following: _Following) -> Limits:
    """Returns limits of joints with one degree of freedom; a file's single range does not apply to others, nor to
    followers.
    """
    mimics = {joint.name for group in following.values() for joint, _ in group}
    joint_bounds = [
        (joint, narrowed_limits(described, following.get(described.name, ())).bounds)
        for described, joint in movable
        if described.name not in mimics
    ]

    def column(entries: str, name: str) -> Vector:
        repeated = (getattr(bounds, name) for joint, bounds in joint_bounds for _ in range(getattr(joint, entries)))
        return np.array([*repeated], dtype=np.float64)

    rates = (column("nv", name) for name in ("velocity", "effort", "acceleration", "jerk"))
    return Limits(column("nq", "lower"), column("nq", "upper"), *rates)

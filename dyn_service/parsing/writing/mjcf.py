"""Writes MJCF for MuJoCo's compiler: links are bodies; joints separated by massless links are joints of one body.

Damping, armature, springs and frames have the same meaning. MJCF's friction has no width, and it has no velocity
limits.

Loop joints are equalities between sites, which hold in any configuration: `connect` for balls, `weld` for fixed ones.
Two `connect` on the axis of a hinge, `HINGE` apart, block what it blocks; one of their six rows depends on the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from dyn_service.api.arguments import DEFAULT_GRAVITY
from dyn_service.errors import UnimplementedError
from dyn_service.model.description import ROOT_JOINT, Description, Inertial, Joint, Link, LoopJoint, Note, outward
from dyn_service.model.joints import FIXED
from dyn_service.parsing.joint_chains import Names
from dyn_service.parsing.pose import Pose, quaternion_of
from dyn_service.parsing.shapes import FIRST_HIDDEN, stretched
from dyn_service.parsing.structure import WORLD
from dyn_service.parsing.writing.text import Tag, document, lost_limits, number, numbers, refusal

HINGE = 0.1
"""m, between the two points by which a hinge closes a loop."""
HINGE_SUFFIX = "_axis"
"""Suffix of the name of a hinge's second `connect`, by which a reader knows it."""


@dataclass(frozen=True, eq=False)
class _Body:
    """A MuJoCo body: its link, its pose on its parent, its joints with their frames in the body's frame."""

    link: Link
    pose: Pose
    joints: list[tuple[Joint, Pose]]


def write(description: Description) -> tuple[str, list[Note]]:
    """Returns the text, and a note on each thing that MJCF cannot express.

    Raises:
        UnimplementedError: MuJoCo lacks a joint type (screw; for loops also prismatic and others), or the parent of a
            floating joint moves.
    """
    return _Writer(description).text()


class _Writer:
    def __init__(self, description: Description) -> None:
        self._description = description
        self._links = {link.name: link for link in description.links}
        self._outboard: dict[str, list[Joint]] = {name: [] for name in self._links}
        for joint in description.joints:
            self._outboard[joint.parent].append(joint)
        self._notes: list[Note] = []
        self._meshes: dict[tuple[str, tuple[float, ...]], str] = {}
        self._sites: dict[str, list[Tag]] = {name: [] for name in self._links}
        self._closing = [tag for joint in description.loop_joints for tag in self._equalities(joint)]
        fixed = description.root == FIXED.type
        # Names of bodies that may move.
        self._moving = {joint.child for joint in description.joints} if fixed else set(self._links)
        self._at_rest = self._poses_at_rest() if fixed else {}

    def _poses_at_rest(self) -> dict[str, Pose]:
        """Returns the poses in the world of the links that no joint moves, of a robot with a fixed root."""
        names = outward(self._description)
        poses = {names[0]: Pose()}
        for name in names:
            for joint in self._outboard[name] if name in poses else ():
                if not joint.moves.nv:
                    poses[joint.child] = poses[name] @ Pose(joint.rotation, joint.xyz)
        return poses

    def text(self) -> tuple[str, list[Note]]:
        description = self._description
        root = Tag("mujoco", {"model": description.name})
        from_shapes = "false" if any(link.shapes for link in description.links) else None  # they add no mass
        root.add("compiler", angle="radian", autolimits="true", inertiafromgeom=from_shapes)
        if description.gravity != DEFAULT_GRAVITY:
            root.add("option", gravity=numbers(description.gravity))
        world = root.add("worldbody")
        (first,) = set(self._links) - {joint.child for joint in description.joints}
        pending = [(self._root(world, first), first)]
        while pending:
            tag, name = pending.pop()
            for joint in self._outboard[name]:
                body = self._body(joint)
                holder = world if joint.moves.free else tag  # the only body that free bodies may have as parent
                pending.append((self._written(holder, body), body.link.name))
        single = {joint.name for joint in description.joints if joint.moves.single_dof}
        followers = []
        for joint in description.joints:
            if joint.mimic is not None and {joint.name, joint.mimic.joint} <= single:
                followers.append(joint)
            elif joint.mimic is not None:
                text = f"follows '{joint.mimic.joint}', which does not have one degree of freedom"
                self._note("dropped", joint, text)
        if followers or self._closing:
            couplings = root.add("equality")
            couplings.children += self._closing
            for joint in followers:
                assert joint.mimic is not None
                steps = numbers([joint.mimic.offset, joint.mimic.multiplier, 0, 0, 0])
                couplings.add("joint", joint1=joint.name, joint2=joint.mimic.joint, polycoef=steps)
                self._note("changed", joint, "is a soft constraint in MuJoCo")
        motorized = [joint for joint in description.joints if joint.driven and joint.moves.single_dof]
        if motorized and self._closing:
            # Without loops the drives change no answer; with loops efforts are those of driven joints.
            motors = root.add("actuator")
            for joint in motorized:
                motors.add("motor", name=f"{joint.name}_motor", joint=joint.name)
        if self._meshes:
            assets = root.add("asset")
            for (file, scale), name in self._meshes.items():
                # Meshes carry no mass here, and only as shells may they be open.
                assets.add("mesh", name=name, file=file, scale=numbers(scale), inertia="shell")
        return document(root), self._notes

    def _equalities(self, joint: LoopJoint) -> list[Tag]:
        """Returns the equalities of a loop joint, and adds their sites."""
        if joint.moves.mujoco not in ("", "hinge", "ball"):
            raise UnimplementedError(
                f"joint '{joint.name}': MuJoCo closes no loop by a joint of type {joint.type}, expected one of fixed, "
                "revolute, continuous, spherical"
            )
        kind = "connect" if joint.moves.nv else "weld"
        steps = (0.0, HINGE) if joint.moves.single_dof else (0.0,)
        self._note(
            "changed", joint, f"is {'two soft constraints' if len(steps) > 1 else 'a soft constraint'} in MuJoCo"
        )
        joints: tuple[Joint | LoopJoint, ...] = (*self._description.joints, *self._description.loop_joints)
        names = Names(other.name for other in joints)
        tags = []
        for step in steps:
            name = names.new(joint.name + HINGE_SUFFIX) if step else joint.name
            for (end, xyz, rotation), link in zip(joint.frames, (joint.parent, joint.child), strict=True):
                attributes = {"name": f"{name}_{end}", "pos": numbers(xyz + rotation @ joint.axis * step)}
                self._sites[link].append(Tag("site", {**attributes, "quat": numbers(quaternion_of(rotation))}))
            tags.append(Tag(kind, {"name": name, "site1": f"{name}_parent", "site2": f"{name}_child"}))
        return tags

    def _root(self, world: Tag, name: str) -> Tag:
        link, upright = self._links[name], np.array([0.0, 0.0, 1.0])
        joint = Joint(ROOT_JOINT, self._description.root, "", name, np.zeros(3), np.eye(3), upright)
        if not joint.moves.nv and name == WORLD and link.inertial is None:
            world.children += self._geoms(link)
            return world
        body = self._written(world, _Body(link, Pose(), []))
        if joint.moves.free:
            body.children.insert(0, Tag("freejoint", {"name": ROOT_JOINT}))
        elif joint.moves.nv:
            body.children[:0] = self._as_single_joints(joint, Pose())
        return body

    def _body(self, joint: Joint) -> _Body:
        """Returns the body that a joint moves, with the following joints that only massless links separate."""
        frames = [(joint, Pose(joint.rotation, joint.xyz))]
        while (following := self._next_in_body(frames[-1][0], len(frames) > 1)) is not None:
            joint = following
            frames.append((joint, frames[-1][1] @ Pose(joint.rotation, joint.xyz)))
        pose = frames[-1][1]
        last = self._links[joint.child]
        moving = [(mover, pose.inverse @ frame) for mover, frame in frames if mover.moves.nv]
        return _Body(last, pose, moving)

    def _next_in_body(self, joint: Joint, began: bool) -> Joint | None:
        """Returns the joint after a link that only separates joints."""
        link = self._links[joint.child]
        next_joints = self._outboard[link.name]
        if link.inertial is not None or len(next_joints) != 1 or self._sites[link.name]:
            return None
        single = joint.moves.single_dof or (began and not joint.moves.nv)
        if not single or next_joints[0].moves.nv not in ((0, 1) if link.added else (1,)):
            return None
        if not link.added:
            text = f"link '{link.name}' is not a body in MJCF: it has no mass and separates joints"
            self._note("dropped", joint, text)
            if link.shapes:
                self._note("dropped", joint, f"the shapes of link '{link.name}' are not written")
        return next_joints[0]

    def _written(self, holder: Tag, body: _Body) -> Tag:
        link, pose = body.link, body.pose
        for joint, _ in body.joints:
            if joint.moves.free:
                pose = self._initial_pose(joint)
        quat = numbers(quaternion_of(pose.rotation)) if pose.is_turned else None
        name = link.name
        if name == WORLD:
            name = Names(self._links).new(f"{WORLD}_link")
            text = f"is renamed to '{name}': 'world' is the world itself in MuJoCo"
            self._notes.append(Note("changed", f"link '{WORLD}'", text))
        tag = holder.add("body", name=name, pos=numbers(pose.origin) if pose.origin.any() else None, quat=quat)
        for joint, frame in body.joints:
            if len(joint.moves.mujoco_types) > 1:
                tag.children += self._as_single_joints(joint, frame)
            else:
                tag.children.append(self._joint(joint, frame))
        tag.children += self._geoms(link)
        inertial, element = link.inertial, f"link '{link.name}'"
        if body.joints and (inertial is None or inertial.mass <= 0.0):
            self._notes.append(Note("warning", element, "moves and has no mass: MuJoCo rejects it"))
        if inertial is not None:
            # As MuJoCo diagonalises it, where rounding may turn a moment of zero negative.
            a, b, c = np.linalg.eigvalsh(inertial.inertia)
            if a + b < c or (a < 1e-14 and np.count_nonzero(inertial.inertia - np.diag(np.diag(inertial.inertia)))):
                text = f"no body has the principal moments {a:.4g}, {b:.4g}, {c:.4g} kg m^2: "
                is_fixed = link.name not in self._moving
                if is_fixed:
                    end = "the inertia is not written, because the body does not move"
                    self._notes.append(Note("dropped", element, text + end))
                    inertial = None
                else:
                    self._notes.append(Note("warning", element, f"{text}MuJoCo rejects them"))
        if inertial is not None:
            tag.children.append(_inertial(inertial))
        return tag

    def _geoms(self, link: Link) -> Iterator[Tag]:
        """Returns the sites of loop joints, and the geoms. Visual shapes are in group 2 and do not collide; hidden
        shapes are in group 3.
        """
        yield from self._sites[link.name]
        for shape in link.shapes:
            attributes: dict[str, str | None] = {"type": shape.kind, "pos": numbers(shape.xyz)}
            attributes["quat"] = numbers(quaternion_of(shape.rotation))
            if shape.kind == "mesh":
                attributes["mesh"] = self._meshes.setdefault((shape.mesh, shape.size), f"mesh_{len(self._meshes)}")
            else:
                attributes["size"] = numbers(stretched(shape.kind, shape.size, 0.5) or (0.0, 0.0, 1.0))
            attributes["rgba"] = numbers(shape.rgba) if shape.rgba is not None else None
            if not shape.collision:
                attributes |= {"contype": "0", "conaffinity": "0", "group": str(FIRST_HIDDEN - 1)}
            elif not shape.visual:
                attributes["group"] = str(FIRST_HIDDEN)
            if shape.kind == "plane" and link.name in self._moving:
                text = "a plane is not written: MuJoCo allows planes only on bodies that do not move"
                self._notes.append(Note("dropped", f"link '{link.name}'", text))
            else:
                yield Tag("geom", attributes)

    def _initial_pose(self, joint: Joint) -> Pose:
        """Returns the pose in the world of a floating joint's frame, at which its link is at `qpos0`."""
        if joint.parent not in self._at_rest:
            raise UnimplementedError(
                f"joint '{joint.name}': its link floats relative to link '{joint.parent}', which moves, and in MuJoCo "
                "bodies float in the world only: make a link that does not move the parent of the joint"
            )
        pose = self._at_rest[joint.parent] @ Pose(joint.rotation, joint.xyz)
        if pose.is_turned or pose.origin.any():
            text = f"its positions are those of link '{joint.child}' in the world, not in link '{joint.parent}'"
            self._note("changed", joint, text)
        return pose

    def _joint(self, joint: Joint, frame: Pose) -> Tag:
        kind = joint.moves.mujoco
        if kind is None:
            raise refusal(joint, "MuJoCo", "mujoco")
        attributes: dict[str, str | None] = {"name": joint.name, "type": kind}
        if joint.moves.single_dof:
            attributes["axis"] = numbers(frame.rotation @ joint.axis)
        if frame.origin.any() and kind in ("hinge", "ball"):
            attributes["pos"] = numbers(frame.origin)
        attributes |= self._passive_attributes(joint)
        attributes |= self._limits(joint)
        return Tag("joint", attributes)

    def _as_single_joints(self, joint: Joint, frame: Pose) -> list[Tag]:
        """Writes a joint as slides and hinges of one body; its passive forces act along them."""
        kinds, names = joint.moves.mujoco_types, joint.moves.mujoco_names(joint.name)
        self._note("changed", joint, f"is {len(kinds)} joints of one body in MJCF: {', '.join(kinds)}")
        anchor = numbers(frame.origin) if frame.origin.any() else None
        tags = []
        for name, kind, G in zip(names, kinds, joint.moves.subspace.T, strict=True):
            axis = G[:3] if kind == "hinge" else G[3:]
            position = anchor if kind == "hinge" else None
            attributes = {"name": name, "type": kind, "axis": numbers(frame.rotation @ axis), "pos": position}
            tags.append(Tag("joint", {**attributes, **self._passive_attributes(joint)}))
        return tags

    def _passive_attributes(self, joint: Joint) -> Mapping[str, str]:
        parameters = {
            "damping": joint.damping,
            "frictionloss": joint.friction,
            "armature": joint.armature,
            "stiffness": joint.stiffness,
            "springref": joint.rest if joint.stiffness else 0.0,
        }
        if joint.friction:
            self._note("changed", joint, "its friction width is dropped: MuJoCo's solver has exact Coulomb friction")
        return {name: number(value) for name, value in parameters.items() if value}

    def _limits(self, joint: Joint) -> Mapping[str, str]:
        limit = joint.limit
        attributes: dict[str, str] = {}
        if limit is None or not joint.moves.single_dof:
            return attributes
        if joint.moves.ranged and limit.lower is not None and limit.upper is not None:
            if limit.lower < limit.upper:
                attributes["range"] = numbers([limit.lower, limit.upper])
            else:
                self._note(
                    "dropped",
                    joint,
                    f"its limits from {limit.lower:g} to {limit.upper:g}, an empty range, are not written",
                )
        elif joint.moves.ranged and (limit.lower is not None or limit.upper is not None):
            self._note("dropped", joint, "its one-sided limit is not written: MuJoCo's limits have both sides")
        if limit.effort is not None and limit.effort > 0.0:
            attributes["actuatorfrcrange"] = numbers([-limit.effort, limit.effort])
        elif limit.effort is not None:
            self._note("dropped", joint, f"its effort limit {limit.effort:g} is not written")
        if limit.velocity is not None:
            self._note("dropped", joint, f"its velocity limit {limit.velocity:g} is not written")
        for text in lost_limits(joint):
            self._note("dropped", joint, f"{text} is not written")
        return attributes

    def _note(self, kind: str, joint: Joint | LoopJoint, text: str) -> None:
        self._notes.append(Note(kind, f"joint '{joint.name}'", text))  # type: ignore[arg-type]


def _inertial(inertial: Inertial) -> Tag:
    attributes = {"pos": numbers(inertial.com), "mass": number(inertial.mass)}
    I = inertial.inertia
    if np.array_equal(I, np.diag(np.diag(I))):
        is_turned = not np.array_equal(inertial.rotation, np.eye(3))
        quat = numbers(quaternion_of(inertial.rotation)) if is_turned else None
        return Tag("inertial", {**attributes, "quat": quat, "diaginertia": numbers(np.diag(I))})
    I_link = inertial.rotation @ I @ inertial.rotation.T
    six = [I_link[0, 0], I_link[1, 1], I_link[2, 2], I_link[0, 1], I_link[0, 2], I_link[1, 2]]
    return Tag("inertial", {**attributes, "fullinertia": numbers(six)})

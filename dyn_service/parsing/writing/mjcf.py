"""Writes MJCF for MuJoCo's compiler: links are bodies; joints separated by massless links are joints of one body.

Damping, armature, springs and frames have the same meaning. MJCF's friction has no width, and it has no velocity
limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from dyn_service.api.arguments import DEFAULT_GRAVITY
from dyn_service.errors import UnimplementedError
from dyn_service.model.description import ROOT_JOINT, Description, Inertial, Joint, Link, Note
from dyn_service.parsing.joint_chains import Names
from dyn_service.parsing.pose import Pose, quaternion_of
from dyn_service.parsing.shapes import FIRST_HIDDEN, stretched
from dyn_service.parsing.structure import WORLD
from dyn_service.parsing.writing.text import Tag, document, lost_limits, number, numbers

_TYPES = {
    "revolute": "hinge", "continuous": "hinge", "prismatic": "slide", "spherical": "ball", "ball": "ball",
    "floating": "free",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Body:
    """A MuJoCo body: its link, its pose on its parent, its joints with their frames in the body's frame."""

    link: Link
    at: Pose
    joints: list[tuple[Joint, Pose]]


def write(description: Description) -> tuple[str, list[Note]]:
    """Returns the text, and a note on each thing that MJCF cannot express.

    Raises:
        UnimplementedError: MuJoCo lacks a joint type (screw), or a floating joint is not at the root.
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
        fixed = description.root == "fixed"  # of bodies that may move
        self._moving = {joint.child for joint in description.joints} if fixed else set(self._links)

    def text(self) -> tuple[str, list[Note]]:
        description = self._description
        root = Tag("mujoco", {"model": description.name})
        shaped = "false" if any(link.shapes for link in description.links) else None  # shapes add no mass
        root.add("compiler", angle="radian", autolimits="true", inertiafromgeom=shaped)
        if description.gravity != DEFAULT_GRAVITY:
            root.add("option", gravity=numbers(description.gravity))
        world = root.add("worldbody")
        (first,) = set(self._links) - {joint.child for joint in description.joints}
        pending = [(self._root(world, first), first)]
        while pending:
            tag, name = pending.pop()
            for joint in self._outboard[name]:
                body = self._body(joint)
                pending.append((self._written(tag, body, at_top=tag is world), body.link.name))
        single = {joint.name for joint in description.joints if joint.moves.nv == 1}
        followers = []
        for joint in description.joints:
            if joint.mimic is not None and {joint.name, joint.mimic.joint} <= single:
                followers.append(joint)
            elif joint.mimic is not None:
                text = f"follows '{joint.mimic.joint}', which does not have one degree of freedom"
                self._tell("dropped", joint, text)
        if followers:
            couplings = root.add("equality")
            for joint in followers:
                assert joint.mimic is not None
                steps = numbers([joint.mimic.offset, joint.mimic.multiplier, 0, 0, 0])
                couplings.add("joint", joint1=joint.name, joint2=joint.mimic.joint, polycoef=steps)
                self._tell("changed", joint, "is a soft constraint in MuJoCo")
        if self._meshes:
            assets = root.add("asset")
            for (file, scale), name in self._meshes.items():
                assets.add("mesh", name=name, file=file, scale=numbers(scale), inertia="shell")
        return document(root), self._notes

    def _root(self, world: Tag, name: str) -> Tag:
        link, moves = self._links[name], self._description.root
        if moves == "fixed" and name == WORLD and link.inertial is None:
            world.children += self._geoms(link)
            return world
        body = self._written(world, _Body(link, Pose(), []), at_top=True)
        if moves == "floating":
            body.children.insert(0, Tag("freejoint", {"name": ROOT_JOINT}))
        elif moves == "planar":
            joint = Joint(ROOT_JOINT, "planar", "", name, np.zeros(3), np.eye(3), np.array([0.0, 0.0, 1.0]))
            body.children[:0] = self._planar(joint, Pose())
        return body

    def _body(self, joint: Joint) -> _Body:
        """Returns the body that a joint moves, with the following joints that only massless links separate."""
        frames = [(joint, Pose(joint.rotation, joint.xyz))]
        while (following := self._only_beyond(frames[-1][0], len(frames) > 1)) is not None:
            joint = following
            frames.append((joint, frames[-1][1] @ Pose(joint.rotation, joint.xyz)))
        at = frames[-1][1]
        last = self._links[joint.child]
        moving = [(each, at.inverse @ frame) for each, frame in frames if each.moves.nv]
        return _Body(last, at, moving)

    def _only_beyond(self, joint: Joint, began: bool) -> Joint | None:
        """Returns the joint after a link that only separates joints."""
        link = self._links[joint.child]
        beyond = self._outboard[link.name]
        if link.inertial is not None or len(beyond) != 1:
            return None
        single = joint.moves.nv == 1 or (began and not joint.moves.nv)
        if not single or beyond[0].moves.nv not in ((0, 1) if link.added else (1,)):
            return None
        if not link.added:
            text = f"link '{link.name}' is not a body in MJCF: it has no mass and separates joints"
            self._tell("dropped", joint, text)
            if link.shapes:
                self._tell("dropped", joint, f"the shapes of link '{link.name}'")
        return beyond[0]

    def _written(self, holder: Tag, body: _Body, *, at_top: bool) -> Tag:
        link, at = body.link, body.at
        if any(joint.type == "floating" for joint, _ in body.joints):
            at = Pose()  # its position is sufficient
        turned = numbers(quaternion_of(at.rotation)) if at.is_turned else None
        name = link.name
        if name == WORLD:
            name = Names(self._links).new(f"{WORLD}_link")
            text = f"is renamed to '{name}': 'world' is the world itself in MuJoCo"
            self._notes.append(Note("changed", f"link '{WORLD}'", text))
        tag = holder.add("body", name=name, pos=numbers(at.origin) if at.origin.any() else None, quat=turned)
        for joint, frame in body.joints:
            if joint.type == "planar":
                tag.children += self._planar(joint, frame)
            else:
                tag.children.append(self._joint(joint, frame, at_top=at_top))
        tag.children += self._geoms(link)
        own, said = link.inertial, f"link '{link.name}'"
        if body.joints and (own is None or own.mass <= 0.0):
            self._notes.append(Note("warning", said, "moves and has no mass: MuJoCo rejects it"))
        if own is not None:
            a, b, c = np.linalg.eigvalsh(own.inertia)
            if a + b < c or (a < 1e-14 and np.count_nonzero(own.inertia - np.diag(np.diag(own.inertia)))):
                text = f"no body has the principal moments {a:.4g}, {b:.4g}, {c:.4g} kg m^2: "
                is_fixed = link.name not in self._moving
                if is_fixed:
                    end = "the inertia is not written, because the body does not move"
                    self._notes.append(Note("dropped", said, text + end))
                    own = None
                else:
                    self._notes.append(Note("warning", said, f"{text}MuJoCo rejects them"))
        if own is not None:
            tag.children.append(_inertial(own))
        return tag

    def _geoms(self, link: Link) -> Iterator[Tag]:
        """Returns the geoms. Visual shapes are in group 2 and do not collide; hidden shapes are in group 3."""
        for shape in link.shapes:
            said: dict[str, str | None] = {"type": shape.kind, "pos": numbers(shape.xyz)}
            said["quat"] = numbers(quaternion_of(shape.rotation))
            if shape.kind == "mesh":
                said["mesh"] = self._meshes.setdefault((shape.mesh, shape.size), f"mesh_{len(self._meshes)}")
            else:
                said["size"] = numbers(stretched(shape.kind, shape.size, 0.5) or (0.0, 0.0, 1.0))
            said["rgba"] = numbers(shape.rgba) if shape.rgba is not None else None
            if not shape.collision:
                said |= {"contype": "0", "conaffinity": "0", "group": str(FIRST_HIDDEN - 1)}
            elif not shape.visual:
                said["group"] = str(FIRST_HIDDEN)
            if shape.kind == "plane" and link.name in self._moving:
                text = "a plane: MuJoCo allows planes only on bodies that do not move"
                self._notes.append(Note("dropped", f"link '{link.name}'", text))
            else:
                yield Tag("geom", said)

    def _joint(self, joint: Joint, frame: Pose, *, at_top: bool) -> Tag:
        kind = _TYPES.get(joint.type)
        if kind is None:
            raise UnimplementedError(
                f"joint '{joint.name}': MuJoCo has no joints of type {joint.type}, expected one of {', '.join(_TYPES)}"
            )
        if kind == "free" and not (at_top and np.array_equal(joint.rotation, np.eye(3)) and not joint.xyz.any()):
            raise UnimplementedError(f"joint '{joint.name}': in MuJoCo only children of the world can float")
        said: dict[str, str | None] = {"name": joint.name, "type": kind}
        if joint.moves.nv == 1:
            said["axis"] = numbers(frame.rotation @ joint.axis)
        if frame.origin.any() and kind in ("hinge", "ball"):
            said["pos"] = numbers(frame.origin)
        said |= self._does(joint)
        said |= self._limits(joint)
        return Tag("joint", said)

    def _planar(self, joint: Joint, frame: Pose) -> list[Tag]:
        """Writes a planar joint as two slides and a hinge; its passive forces act along them."""
        self._tell("changed", joint, "is two slides and a hinge in MJCF")
        G, names = joint.moves.subspace, joint.moves.mujoco_names(joint.name)
        anchor = numbers(frame.origin) if frame.origin.any() else None
        tags = []
        for name, kind, axis in zip(names, ("slide", "slide", "hinge"), (G[3:, 0], G[3:, 1], G[:3, 2]), strict=True):
            said = {"name": name, "type": kind, "axis": numbers(frame.rotation @ axis)}
            tags.append(Tag("joint", {**said, "pos": anchor if kind == "hinge" else None, **self._does(joint)}))
        return tags

    def _does(self, joint: Joint) -> Mapping[str, str]:
        given = {
            "damping": joint.damping,
            "frictionloss": joint.friction,
            "armature": joint.armature,
            "stiffness": joint.stiffness,
            "springref": joint.rest if joint.stiffness else 0.0,
        }
        if joint.friction:
            self._tell("changed", joint, "its friction width is dropped: MuJoCo's solver has exact Coulomb friction")
        return {name: number(value) for name, value in given.items() if value}

    def _limits(self, joint: Joint) -> Mapping[str, str]:
        limit = joint.limit
        said: dict[str, str] = {}
        if limit is None or joint.moves.nv != 1:
            return said
        if joint.moves.ranged and limit.lower is not None and limit.upper is not None:
            if limit.lower < limit.upper:
                said["range"] = numbers([limit.lower, limit.upper])
            else:
                self._tell("dropped", joint, f"limits from {limit.lower:g} to {limit.upper:g}, an empty range")
        elif joint.moves.ranged and (limit.lower is not None or limit.upper is not None):
            self._tell("dropped", joint, "a one-sided limit: MuJoCo's limits have both sides")
        if limit.effort is not None and limit.effort > 0.0:
            said["actuatorfrcrange"] = numbers([-limit.effort, limit.effort])
        elif limit.effort is not None:
            self._tell("dropped", joint, f"its effort limit {limit.effort:g}")
        if limit.velocity is not None:
            self._tell("dropped", joint, f"its velocity limit {limit.velocity:g}")
        for text in lost_limits(joint):
            self._tell("dropped", joint, text)
        return said

    def _tell(self, kind: str, joint: Joint, text: str) -> None:
        self._notes.append(Note(kind, f"joint '{joint.name}'", text))  # type: ignore[arg-type]


def _inertial(inertial: Inertial) -> Tag:
    said = {"pos": numbers(inertial.com), "mass": number(inertial.mass)}
    I = inertial.inertia
    if np.array_equal(I, np.diag(np.diag(I))):
        turned = not np.array_equal(inertial.rotation, np.eye(3))
        quat = numbers(quaternion_of(inertial.rotation)) if turned else None
        return Tag("inertial", {**said, "quat": quat, "diaginertia": numbers(np.diag(I))})
    about = inertial.rotation @ I @ inertial.rotation.T
    six = [about[0, 0], about[1, 1], about[2, 2], about[0, 1], about[0, 2], about[1, 2]]
    return Tag("inertial", {**said, "fullinertia": numbers(six)})

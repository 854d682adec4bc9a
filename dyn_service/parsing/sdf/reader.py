"""SDFormat -> `Description`: one model with its links, joints and nested models.

    frames           `relative_to`, `attached_to`, `expressed_in`, nested models: frames.py
    joint frame      the child link's, as in URDF; a joint elsewhere gets a link without mass between
    two axes         universal and revolute2 joints become two joints: `NAME` and `NAME_axis2`
    loops            are closed by the joints that would give a link a second parent, and by Drake's ball constraints
    root             fixed at its pose in the world, unless the robot is read with root="floating"
    motors           joints of Gazebo's joint controllers; joints with an effort limit of 0 have none, as in Drake

Missing values are the format's defaults: 1 kg and unit inertia for links, no limits.

Joints are converted to the axes of their child links.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

import numpy as np

from dyn_service.api.arguments import DEFAULT_GRAVITY
from dyn_service.errors import DynError
from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.description import (
    FIXED_ROOT,
    UNUSED_SHAPES,
    Description,
    Inertial,
    Joint,
    Limit,
    Link,
    LoopJoint,
    Mimic,
    Note,
    Shape,
)
from dyn_service.model.joints import FIXED
from dyn_service.model.passive import reflected
from dyn_service.parsing import quantities
from dyn_service.parsing.joint_chains import Names, Roots, check_finite, joint_chain
from dyn_service.parsing.pose import Pose, turning_z_to
from dyn_service.parsing.quantities import Faults, Place, counted, named, quoted
from dyn_service.parsing.sdf.frames import MODEL, SCOPE, Frame, Frames, bound, pose, reference_frame
from dyn_service.parsing.shapes import SOLIDS, Mesh, Meshes, Solid, combined, stretched
from dyn_service.parsing.structure import WORLD, assemble, ball_joint, with_drives
from dyn_service.parsing.transmissions import RATIO, ROTOR
from dyn_service.parsing.xml_elements import (
    BALL,
    CONSTRAINTS,
    IGNORED,
    Element,
    Files,
    IgnoredContent,
    ReadLimits,
    constraints,
    load,
    parse,
    spliced,
)
from dyn_service.support.suggestions import did_you_mean

ROOTS = ("sdf", "world")

MERGED = "merge "
"""Attribute of a model that was included with `merge`. XML cannot contain it, because of the space."""

MODEL_SCHEME = "model://"
SEARCHED = ("GZ_SIM_RESOURCE_PATH", "SDF_PATH", "IGN_GAZEBO_RESOURCE_PATH", "GAZEBO_MODEL_PATH")
"""Environment variables with folders of models."""

SCENERY = ("model://sun", "model://ground_plane")
"""Models of Gazebo's library in nearly every world: a light and a plane."""

_CONTROLLER = re.compile(r"Joint(Position|Trajectory)?Controller\Z")
"""End of the names of Gazebo's plugins that move joints."""

WORLD_GRAVITY = (0.0, 0.0, -9.8)
"""m/s^2, the format's default gravity in a `<world>`."""

_MODEL = (
    "pose", "link", "joint", "frame", "model", "static", "self_collide", "allow_auto_disable", "enable_wind", "plugin",
)  # fmt: skip
_LINK = (
    "pose", "inertial", "visual", "collision", "gravity", "kinematic", "self_collide", "must_be_base_link",
    "velocity_decay", "enable_wind", "sensor", "light",
)  # fmt: skip
_JOINT = (
    "pose", "parent", "child", "axis", "axis2", "thread_pitch", "screw_thread_pitch", "gearbox_ratio",
    "gearbox_reference_body", "physics", "sensor", ROTOR, RATIO,
)  # fmt: skip


def read(text: str, source: str, file: Path | None, limits: ReadLimits) -> Description:
    """Reads a robot from a file or a text of SDFormat; arguments and errors as for `mjcf.reader.read`.

    Checked by:
        tests/parsing/test_sdf.py, tests/parsing/test_sdf_faults.py
    """
    files = Files(file, limits, repeated=True)
    root = files.root(text, source)
    spliced(root, "include", lambda element: _include(element, files), limits.depth, lambda included: False)
    return _Reader(root, source, limits, files).robot()


def _include(element: Element, files: Files) -> Element:
    """Returns the model of another file, with the name and pose of the include."""
    place = element.at("include", element.file)
    uri = element.word("uri")
    files.check_main(quoted(uri), place)
    if uri in SCENERY:
        files.notes.append(place.note("dropped", f"{uri}, which is not a robot"))
        # An include must yield an element; readers ignore lights.
        return Element("light", {}, element.line, file=element.file)
    target = _located(uri, element.file, place)
    included = files.included(_sdf_in(target) if os.path.isdir(target) else target, place)
    models = _models(included)
    if len(models) != 1:
        text = f"found {counted(len(models), 'model')}, expected one in a file that is included"
        raise included.at(included.tag, included.file).fault(text)
    (model,) = models
    overrides = {tag: element.all(tag) for tag in ("pose", "static")}
    model.children = [
        *(child for child in model.children if not overrides.get(child.tag)),
        *(child for of_tag in overrides.values() for child in of_tag),
    ]
    words = {key: element.word(key) for key in ("name", "placement_frame")}
    model.attributes = {**model.attributes, **{key: text for key, text in words.items() if text}}
    if element.attributes.get("merge", "false") in ("true", "1"):
        model.attributes[MERGED] = ""
    return model


def _located(uri: str, file: str, place: Place) -> Path:
    """Returns the path of a model or mesh that `file` refers to."""
    path = re.sub(r"^file://", "", uri)
    parts = Path(unquote(path.removeprefix(MODEL_SCHEME))).parts
    if not parts or "://" in path.removeprefix(MODEL_SCHEME):
        raise place.fault(f"{quoted(uri)} is not supported, expected a path relative to this file, or model://")
    if path.startswith(MODEL_SCHEME):
        # The URI may come from somebody else: it names a model, and must not reach files outside the search path.
        if ".." in parts or Path(*parts).is_absolute():
            raise place.fault(f"{quoted(uri)} is absolute or has '..' in it, expected the name of a model")
        folders = [Path(entry) for name in SEARCHED for entry in os.environ.get(name, "").split(os.pathsep) if entry]
        folders += Path(os.path.abspath(file)).parents
        candidates = (folder.joinpath(*parts) for folder in folders)
        target = next((entry for entry in candidates if any(map(os.path.isfile, (entry, _sdf_in(entry))))), None)
        if target is None:
            folders_of = ", ".join(SEARCHED)
            raise place.fault(
                f"there is no model {quoted(uri)} in the folders of {folders_of}, nor in one above the file"
            )
        return target
    return Path(file).parent.joinpath(*parts)


def _sdf_in(folder: Path) -> Path:
    """Returns the SDFormat file of a model's folder: the newest version that its model.config lists."""
    try:
        document = parse(load(folder / "model.config", ReadLimits()), "model.config", ReadLimits())
    except DynError:
        return folder / "model.sdf"
    named_in = [(entry.attributes.get("version", ""), entry.text.strip()) for entry in document.root.all("sdf")]
    plain = [(version, name) for version, name in named_in if name and Path(name).name == name]
    newest = max(plain, key=lambda entry: [int(part) for part in re.findall(r"[0-9]{1,4}", entry[0])], default=("", ""))
    return folder / (newest[1] or "model.sdf")


def _models(root: Element) -> list[Element]:
    worlds = [] if root.tag == "world" else root.all("world")
    return [model for holder in (root, *worlds) for model in holder.all("model")]


class _Reader:
    """Reads one robot; holds its notes."""

    def __init__(self, root: Element, source: str, limits: ReadLimits, files: Files) -> None:
        self._root, self._source, self._limits, self._notes = root, source, limits, files.notes
        self._roots = files.roots
        self._from_file = files.main is not None
        self._assets: dict[str, Mesh] = {}
        self._meshes = Meshes(self._assets, None if files.main is None else Path())
        self._ignored = IgnoredContent()
        self._frames = Frames()
        self._links: dict[str, Element] = {}
        self._joints: list[tuple[str, Element, str]] = []
        self._placements: list[tuple[str, str, Place]] = []
        self._driven: set[str] = set()
        self._balls: list[tuple[Element, str]] = []
        self._loop_joints: list[LoopJoint] = []
        self._faults = Faults()

    def robot(self) -> Description:
        root = self._root
        place = Place(self._source, root.tag, root.line)
        self._version(root)
        models = _models(root)
        for model in models:
            self._place(model, "model")
        moving = [model for model in models if not model.flag("static", False)]
        if len(models) > 1 and len(moving) == 1:
            text = f"{counted(len(models) - 1, 'other static model')} {'is' if len(models) == 2 else 'are'} not read"
            self._notes.append(moving[0].place.note("dropped", text))
            models = moving
        if len(models) != 1:
            names = ", ".join(quoted(model.attributes.get("name", "")) for model in models[:6])
            raise place.fault(f"found {counted(len(models), 'model')}{f' ({names})' if names else ''}, expected one")
        (model,) = models
        if MERGED in model.attributes:
            raise model.place.fault("merge is read in an <include> that is in a <model>, not elsewhere")
        name = quantities.name(model.attributes.get("name", ""), model.place)
        place = self._place(model, named("robot", name))
        for world in (root, *root.all("world")):
            self._ignored.keep(world, ("world", "model", "gravity"), ("name", "version"))
        self._frames.add(WORLD, Frame("", Pose(), "", place))
        with np.errstate(all="ignore"):  # what that leaves is refused below
            self._model(model, "", WORLD)
            self._faults.check()
            links, joints = self._tree(place)
        joints = with_drives(joints, self._driven or _unlimited(joints))
        check_finite(links, joints, self._source)
        if not any(joint.parent == WORLD for joint in joints):
            links, joints = self._with_world_pose(links, joints, place)
            if not model.flag("static", False):
                text = f"no joint holds it to the world, so in SDFormat it floats, but its root {FIXED_ROOT}"
                text = f'{text}; to let it float, read it with root="floating"'
                self._notes.append(place.warning("unheld-root", text))
        shaped = sum(bool(element.all("visual") or element.all("collision")) for element in self._links.values())
        if shaped:
            self._notes.append(place.note("dropped", f"geometry of {counted(shaped, 'link')} {UNUSED_SHAPES}"))
        self._notes += self._ignored.notes(place)
        described = assemble(name, links, joints, self._notes, place, self._loop_joints)
        return replace(described, gravity=self._gravity(model))

    def _version(self, element: Element) -> tuple[int, int]:
        root = self._roots[element.file]
        match = re.fullmatch(r"([0-9]{1,4})\.([0-9]{1,4})", root.attributes.get("version", "1.0"))
        if match is None and root.tag == "sdf":
            raise self._place(root, root.tag).fault("attribute 'version': expected one such as 1.9")
        return (int(match[1]), int(match[2])) if match else (1, 0)

    def _gravity(self, model: Element) -> tuple[float, float, float]:
        for world in (self._root, *self._root.all("world")):
            if world.tag == "world" and any(candidate is model for candidate in world.all("model")):
                self._place(world, world.tag)
                x, y, z = world.inner_numbers("gravity", WORLD_GRAVITY).tolist()
                return x, y, z
        return DEFAULT_GRAVITY

    def _with_world_pose(self, links: list[Link], joints: list[Joint], robot: Place) -> tuple[list[Link], list[Joint]]:
        """Places the root in the world as the file does, by a link `world` and a fixed joint."""
        children = {joint.child for joint in joints}
        roots = [link.name for link in links if link.name not in children]
        root_pose = self._frames.between(WORLD, roots[0]) if len(roots) == 1 else Pose()
        if not (root_pose.is_turned or root_pose.origin.any()):
            return links, joints
        (root,) = roots
        name = Names(joint.name for joint in joints).new(f"{root}_fixed")
        x, y, z = root_pose.origin
        text = (
            f"its root {FIXED_ROOT} as its <pose> says, at ({x:g}, {y:g}, {z:g}) m, by the joint {quoted(name)} of a "
            f"link {quoted(WORLD)} that is added"
        )
        self._notes.append(robot.note("changed", text))
        fixed = Joint(name, FIXED.type, WORLD, root, root_pose.origin, root_pose.rotation, np.array(quantities.X_AXIS))
        return [Link(WORLD, added=True), *links], [fixed, *joints]

    # What is written, model by model.

    def _model(self, model: Element, scope: str, outer: str) -> None:
        """Reads frames, links and joints of a model and its nested models; `outer`: the default frame of its pose."""
        self._ignored.suspects = []
        self._ignored.keep(model, (*_MODEL, *CONSTRAINTS), ("name", "canonical_link", "placement_frame"))
        controllers = (x for x in model.all("plugin") if _CONTROLLER.search(x.attributes.get("name", "")))
        self._driven |= {scope + name.text.strip() for plugin in controllers for name in plugin.all("joint_name")}
        closing = [(self._place(child, f"<{child.tag}>"), child) for child in constraints(model)]
        self._balls += [(child, scope) for _, child in closing if child.tag == BALL]
        self._notes += [place.note("loop", IGNORED) for place, child in closing if child.tag != BALL]
        while inner := [child for child in model.all("model") if MERGED in child.attributes]:
            self._merge(model, inner[0], scope)
        place, links = model.place, model.all("link")
        model_frame = scope + MODEL
        canonical = model.attributes.get("canonical_link", links[0].attributes.get("name", "") if links else "")
        inner = model.all("model")
        if canonical:
            canonical_frame = scope + canonical
        else:  # that of the first model in it
            canonical_frame = scope + inner[0].attributes.get("name", "") + SCOPE + MODEL if inner else model_frame
        reference, model_pose = reference_frame(model), pose(model, self._notes)
        if reference and scope:
            outer = scope.removesuffix(SCOPE).rpartition(SCOPE)[0]
            outer = f"{outer}{SCOPE}{reference}" if outer else reference
        elif reference not in ("", WORLD):
            raise place.fault(f"its pose is relative to {quoted(reference)}, expected 'world'")
        self._frames.add(model_frame, Frame(outer, model_pose, canonical_frame, place))
        if scope:
            self._frames.add(scope.removesuffix(SCOPE), Frame(model_frame, Pose(), model_frame, place))
        reads = ((self._link, links), (self._frame, model.all("frame")), (self._joint, model.all("joint")))
        for read, elements in reads:
            for element in elements:
                with self._faults.kept():
                    read(element, scope)
        for element in inner:
            self._model(element, f"{scope}{self._named(element, 'model', '')}{SCOPE}", model_frame)
        if plugins := model.all("plugin"):
            first = self._place(plugins[0], place.element or "")
            self._notes.append(first.note("reported", f"{counted(len(plugins), 'plugin')}: ignored, not supported"))
        placement = model.attributes.get("placement_frame", "")
        if placement:  # the model's pose is that of this frame
            # Applied when all frames are known, because the one it names may be in a nested model.
            self._placements.append((model_frame, scope + placement, place))

    def _merge(self, model: Element, inner: Element, scope: str) -> None:
        """Adds the elements of a merged model to the model, with a frame in place of its own, as libsdformat does."""
        place = self._place(inner, "model")
        # The name that libsdformat gives it, which files may refer to.
        proxy = f"_merged__{quantities.name(inner.attributes.get('name', ''), place)}__model__"
        pose_element = inner.child("pose") or Element("pose", {}, inner.line, file=inner.file)
        pose_element.attributes = {"relative_to": MODEL, **pose_element.attributes}
        first = next(
            (element.attributes.get("name", "") for element in (*inner.all("link"), *inner.all("model"))), MODEL
        )
        canonical = inner.attributes.get("canonical_link", first)
        parts = [child for child in inner.children if child.tag not in ("pose", "static")]
        for part in parts:
            with_model = self._version(part) < AXES_IN_MODEL
            for axis in (*part.all("axis"), *part.all("axis2")):
                axis.place = place
                if with_model or axis.flag("use_parent_model_frame", False):
                    for xyz in axis.all("xyz"):
                        xyz.attributes = {"expressed_in": MODEL, **xyz.attributes}
            if part.tag in ("link", "model"):
                part.children += [] if part.all("pose") else [Element("pose", {}, part.line, file=part.file)]
                for pose_of in part.all("pose"):
                    pose_of.attributes = {"relative_to": MODEL, **pose_of.attributes}
            if part.tag == "frame":
                part.attributes = {"attached_to": MODEL, **part.attributes}
            pending = [part]
            while pending:
                element = pending.pop()
                element.attributes = {key: proxy if text == MODEL else text for key, text in element.attributes.items()}
                element.text = proxy if element.text.strip() == MODEL else element.text
                pending += element.all("pose") if element.tag == "model" else element.children
        frame = Element("frame", {"name": proxy, "attached_to": canonical}, inner.line, [pose_element], file=inner.file)
        index = next(k for k, element in enumerate(model.children) if element is inner)
        model.children[index : index + 1] = [frame, *parts]
        placement = inner.attributes.get("placement_frame", "")
        if placement:
            self._placements.append((scope + proxy, scope + (proxy if placement == MODEL else placement), place))

    def _link(self, element: Element, scope: str) -> None:
        name = self._named(element, "link", scope)
        self._ignored.suspects = []
        self._ignored.keep(element, _LINK, ("name",))
        self._limits.check("links", len(self._links) + 1, self._source)
        self._frames.add(name, self._frame_of(element, scope, MODEL, name))
        self._links[name] = element
        if not element.flag("gravity", True):
            self._notes.append(element.place.note("reported", "gravity is false: ignored; gravity acts on the link"))
        if element.all("velocity_decay"):
            self._notes.append(element.place.note("reported", "velocity_decay: ignored"))

    def _frame(self, element: Element, scope: str) -> None:
        name = self._named(element, "frame", scope)
        attached_to = element.attributes.get("attached_to", "") or MODEL
        self._frames.add(name, self._frame_of(element, scope, attached_to, scope + attached_to))

    def _joint(self, element: Element, scope: str) -> None:
        name = self._named(element, "joint", scope)
        self._ignored.suspects = []
        self._ignored.keep(element, _JOINT, ("name", "type"))
        self._limits.check("joints", len(self._joints) + 1, self._source)
        child = element.word("child")
        if not child or not element.word("parent"):
            raise element.place.fault("there is no <parent> or no <child>, expected both")
        frame = self._frame_of(element, scope, child, scope + child)
        if name in self._links and self._version(element) < (1, 7):  # they may share a name there
            name = f"{name}{SCOPE}joint"
        self._frames.add(name, frame)
        self._joints.append((name, element, scope))

    def _frame_of(self, element: Element, scope: str, default: str, link: str) -> Frame:
        """Returns the frame of an element; `default` is the one that its pose is relative to unless it names one."""
        name = reference_frame(element)
        if name and self._version(element) < (1, 7):
            text = (
                f"its pose is in the frame {quoted(name)}, read by the rules of SDFormat 1.7, the first version that "
                "defines it"
            )
            self._notes.append(element.place.note("changed", text))
        parent = name if name == WORLD else scope + (name or default)
        return Frame(parent, pose(element, self._notes), link, element.place)

    # Links and joints.

    def _weighed(self, mesh: Element) -> tuple[float, Pose, Vector]:
        place = mesh.place
        if mesh.all("submesh"):
            raise place.fault("the mass of a <submesh> is not supported: add an <inertial> with numbers to its link")
        uri, scale = mesh.word("uri"), mesh.inner_numbers("scale", (1.0, 1.0, 1.0))
        path = str(_located(uri, mesh.file, place)) if self._from_file else uri
        key = f"{path} {scale.tolist()}"
        self._assets.setdefault(key, Mesh(path, place, "exact", scale))
        return self._meshes.mass_properties(key, place)

    def _tree(self, robot: Place) -> tuple[list[Link], list[Joint]]:
        frames = self._frames
        frames.check()
        for model, frame, place in self._placements:
            placement = frames.between(model, frames.named(frame, "", place))
            frames.moved(model, frames.pose(model) @ placement.inverse)
        file_joints = list(self._joined())
        inboard: dict[str, Joined] = {}
        closing: list[Joined] = []
        roots = Roots()
        for joint in file_joints:
            if joint.child == WORLD or not roots.join(joint.child, joint.parent):
                closing.append(joint)
            else:
                inboard[joint.child] = joint
        is_held = any(joint.parent == WORLD for joint in inboard.values())
        bodies: dict[str, Link] = {}
        for name, element in self._links.items():
            with self._faults.kept():
                weight = inertial(element, self._notes, self._ignored, self._weighed)
                bodies[name] = Link(name, weight, element.place.main_line, shapes=tuple(self._shapes(name, element)))
        self._faults.check()
        if is_held:
            # First, because the order of links is that of the tree, and it is the root.
            bodies = {WORLD: Link(WORLD), **bodies}
        link_names, joint_names = Names(bodies), Names(joint.name for joint in file_joints)
        two_axis = [joint.name for joint in file_joints if joint.element.attributes.get("type") in _TWO]
        axis2_names = {name: joint_names.new(f"{name}_axis2") for name in two_axis}
        joint_reader = Joints(frames, self._version, self._ignored, self._notes, axis2_names)
        for joint in closing:
            with self._faults.kept():
                # Without another joint to the world, it is the joint that holds the robot there.
                is_loop = is_held or WORLD not in (joint.parent, joint.child)
                self._loop_joints += joint_reader.loop_joint(joint) if is_loop else joint_reader.unread(joint)
        self._loop_joints += self._ball_constraints(joint_names, {*bodies})
        self._faults.check()
        links: list[Link] = []
        joints: list[Joint] = []
        for name, body in bodies.items():
            if name not in inboard:
                links.append(body)
                continue
            joint = inboard[name]
            hinges = joint_reader.axis_joints(joint)
            child_pose = frames.between(joint.parent, joint.child)
            chain_links, chain_joints = joint_chain(body, joint.parent, child_pose, hinges, link_names, joint_names)
            if not hinges:
                chain_joints = [replace(chain_joints[0], name=joint.name, line=joint.element.place.main_line)]
            links += chain_links
            joints += chain_joints
        return links, joints

    def _ball_constraints(self, names: Names, links: Collection[str]) -> Iterator[LoopJoint]:
        for element, scope in self._balls:
            with self._faults.kept():
                place = self._place(element, f"<{element.tag}>")
                words = [element.word(f"{BALL}_body_{body}") for body in "AB"]
                parent, child = (self._frames.named(word, scope, place) for word in words)
                points = [element.inner_numbers(f"{BALL}_{point}", (0.0, 0.0, 0.0)) for point in ("p_AP", "p_BQ")]
                if WORLD in (parent, child) and WORLD not in links:  # the root is not fixed in the world by a joint
                    self._notes.append(place.note("loop", IGNORED))
                    continue
                yield ball_joint(names.new(scope + BALL.partition(":")[2]), parent, child, points, place)

    def _joined(self) -> Iterator[Joined]:
        for frame, element, scope in self._joints:
            place, kind = element.place, element.attributes.get("type", "")
            if kind == "gearbox":
                self._notes.append(place.note("loop", "gearbox: ignored, the two joints move independently"))
                continue
            if kind not in TYPES:
                types = ", ".join(TYPES)
                raise place.fault(f"the type {quoted(kind)} is unknown, expected {types}{did_you_mean(kind, TYPES)}")
            ends = []
            for end in ("parent", "child"):
                end_place = place.inside(end)
                link = self._frames.link_of(self._frames.named(element.word(end), scope, end_place))
                if link != WORLD and link not in self._links:
                    raise end_place.fault(f"{quoted(link)} is not attached to a link")
                ends.append(link)
            name = (scope + element.attributes["name"]) if frame.endswith(f"{SCOPE}joint") else frame
            if ends[0] == ends[1]:
                raise place.fault(f"the parent and the child are the same link {quoted(ends[0])}, expected two links")
            yield Joined(name, frame, ends[0], ends[1], element, scope)

    def _shapes(self, link: str, element: Element) -> Iterator[Shape]:
        scope = link.removesuffix(element.attributes["name"])
        for child in element.children:
            if child.tag in ("visual", "collision"):
                child.place = element.place.inside(child.tag, child.line)
                try:
                    shape_pose, frame = pose(child, []), reference_frame(child)
                    if frame:
                        shape_pose = (
                            self._frames.between(link, self._frames.named(frame, scope, child.place)) @ shape_pose
                        )
                    shape = shape_of(child, shape_pose, included="" if child.file == self._source else child.file)
                except DynError as error:
                    shape = Shape(unread=str(error))
                yield replace(shape, visual=child.tag == "visual", collision=child.tag == "collision")

    def _place(self, element: Element, label: str) -> Place:
        return element.at(label, self._source)

    def _named(self, element: Element, kind: str, scope: str) -> str:
        """Returns the full name of an element and puts it into the element's place."""
        name = scope + quantities.name(element.attributes.get("name", ""), self._place(element, kind))
        self._place(element, named(kind, name))
        return name


def _unlimited(joints: Sequence[Joint]) -> set[str]:
    """Returns the names of the joints that Drake drives, if it does not drive some: those whose effort limit is 0."""
    idle = {joint.name for joint in joints if joint.limit is not None and joint.limit.effort == 0.0}
    return {joint.name for joint in joints if joint.moves.single_dof and joint.name not in idle} if idle else set()


MOMENTS = {"ixx": 1.0, "ixy": 0.0, "ixz": 0.0, "iyy": 1.0, "iyz": 0.0, "izz": 1.0}
"""The format's default moments and products of inertia, kg m^2."""

_WATERS = "fluid_added_mass"
_INERTIAL = ("pose", "mass", "inertia", "density", "auto_inertia_params", _WATERS)

MASS = 1.0
"""The format's default mass, kg."""

WATER = 1000.0
"""The format's default density, kg/m^3."""


Weigh = Callable[[Element], tuple[float, Pose, Vector]]
"""Returns the volume of a `<mesh>`, m^3, the frame of its principal axes, and the moments of one kilogram."""


def inertial(link: Element, notes: list[Note], ignored: IgnoredContent, weigh: Weigh) -> Inertial:
    """Returns the inertia of a `<link>`; adds defaults to `notes`, and unknown elements to `ignored`."""
    element = link.child("inertial")
    if element is None:
        text = "no <inertial>: 1 kg and unit inertia are used, the format's defaults"
        notes.append(link.place.note("defaulted", text))
        return Inertial(MASS, np.zeros(3), np.eye(3), np.eye(3))
    place = element.place
    ignored.keep(element, _INERTIAL, ("auto",))
    if element.all(_WATERS):
        notes.append(place.note("reported", f"<{_WATERS}>: ignored; added mass of fluids is not supported"))
    if element.attributes.get("auto", "false") in ("true", "1"):
        return _of_collisions(link, element, notes, weigh)
    inertial_pose = pose(element, notes)
    if not element.all("mass"):
        notes.append(place.note("defaulted", f"no <mass>: {MASS:g} kg is used, the format's default"))
    mass = quantities.mass(element.inner_number("mass", MASS), place)
    moments = element.child("inertia") or Element("inertia", {}, element.line)
    ignored.keep(moments, tuple(MOMENTS), ())
    missing = [name for name, value in MOMENTS.items() if value and not moments.all(name)]
    if missing:
        text = f"no {', '.join(missing)}: 1 kg m^2 is used, the format's default"
        notes.append(place.note("defaulted", text))
    values = [moments.inner_number(name, default) for name, default in MOMENTS.items()]
    return Inertial(mass, inertial_pose.origin, inertial_pose.rotation, quantities.inertia_of_moments(values))


def _of_collisions(link: Element, element: Element, notes: list[Note], weigh: Weigh) -> Inertial:
    place, density = element.place, element.inner_number("density", WATER)
    parts: list[tuple[float, Pose, Vector]] = []
    for collision in link.all("collision"):
        collision_place = collision.place = place.inside("collision", collision.line)
        geometry, shape_pose = _geometry(collision), pose(collision, notes)
        mesh = geometry.child("mesh")
        if mesh is None:
            size, moments = _solid(geometry)
        else:
            mesh.place = collision_place
            size, principal, moments = weigh(mesh)
            shape_pose = shape_pose @ principal
        mass = collision.inner_number("density", density) * size
        parts.append((mass, shape_pose, mass * moments))
    whole = combined(parts)
    if whole is None or not whole.mass > 0.0:
        raise place.fault('auto="true" computes the inertia from the collisions, but their mass is 0')
    text = f"computed from {len(parts)} collisions, because auto is true: {whole.mass:g} kg"
    notes.append(place.note("defaulted", text))
    return whole


def _geometry(element: Element) -> Element:
    """Returns the `<geometry>` of a shape, or an empty one; for errors, it and its shapes are at the shape's place."""
    geometry = element.child("geometry") or Element("geometry", {}, element.line)
    for part in (geometry, *geometry.children):
        part.place = element.place
    return geometry


def _solid(geometry: Element) -> Solid:
    shapes = [child for child in geometry.children if child.tag in SOLIDS]
    if len(shapes) != 1:
        kinds = ", ".join((*SOLIDS, "mesh"))
        raise geometry.place.fault(f"the inertia cannot be computed from this shape, expected one of {kinds}")
    (shape,) = shapes
    sizes = _sizes(shape)
    if not all(size > 0.0 for size in sizes):
        raise geometry.place.fault(f"<{shape.tag}>: expected positive sizes")
    return SOLIDS[shape.tag](*sizes)


def _sizes(shape: Element) -> Sequence[float]:
    if shape.tag == "box":
        return [float(side) / 2.0 for side in shape.inner_numbers("size", (1.0, 1.0, 1.0))]
    if shape.tag == "ellipsoid":
        return shape.inner_numbers("radii", (1.0, 1.0, 1.0)).tolist()  # type: ignore[no-any-return]
    radius = shape.inner_number("radius", 1.0)
    return [radius] if shape.tag == "sphere" else [radius, shape.inner_number("length", 1.0) / 2.0]


def shape_of(element: Element, shape_pose: Pose, included: str) -> Shape:
    """Returns the shape of a `<visual>` or `<collision>` at `shape_pose` in the link's frame, without its roles.

    `included` is the file to which paths of meshes are relative, "" for the robot's own file.
    """
    geometry, material, rgba = _geometry(element), element.child("material"), None
    if material is not None:
        material.place = element.place
        rgba = tuple(material.inner_numbers("diffuse", (1.0, 1.0, 1.0, 1.0)).tolist())
    for child in geometry.children:
        if child.tag in SOLIDS:
            size = stretched(child.tag, _sizes(child), 2.0)
            return Shape(child.tag, size, shape_pose.origin, shape_pose.rotation, rgba=rgba)  # type: ignore[arg-type]  # is in SOLIDS
        if child.tag == "plane":
            normal = quantities.unit_axis(child.inner_numbers("normal", (0.0, 0.0, 1.0)), child.place, [])
            return Shape("plane", (), shape_pose.origin, shape_pose.rotation @ turning_z_to(normal), rgba=rgba)
        if child.tag == "mesh" and not child.all("submesh"):
            uri = child.word("uri")
            if included and "://" not in uri:
                uri = os.path.join(os.path.dirname(os.path.abspath(included)), uri)
            scale = tuple(child.inner_numbers("scale", (1.0, 1.0, 1.0)).tolist())
            return Shape("mesh", scale, shape_pose.origin, shape_pose.rotation, rgba=rgba, mesh=uri)
    kinds = ", ".join(f"<{child.tag}>" for child in geometry.children) if element.all("geometry") else "nothing"
    return Shape(unread=f"its geometry is {kinds}, expected one of {', '.join(SOLIDS)}, plane, mesh without submesh")


Version = Callable[[Element], tuple[int, int]]

AXES_IN_MODEL = (1, 5)
"""Before this version, axes are in the model's frame."""

_TWO = ("universal", "revolute2")
_WORDS = quantities.types_by_word("sdf")
TYPES = {**_WORDS, **dict.fromkeys(_TWO, _WORDS["revolute"])}
_DYNAMICS = ("damping", "friction", "spring_reference", "spring_stiffness")
_LIMIT = ("lower", "upper", "effort", "velocity", "stiffness", "dissipation")
_MIMIC = ("multiplier", "offset", "reference")
_AXIS = ("xyz", "use_parent_model_frame", "initial_position", "limit", "dynamics", "mimic")


@dataclass(frozen=True, eq=False)
class Joined:
    """A joint as written: full names of the joint and its frame, its links, its element."""

    name: str
    frame: str
    parent: str
    child: str
    element: Element
    scope: str


class Joints:
    """Reads joints; `version` returns the version of the format that an element's file has. axis2_names: by the
    name of a joint with two axes, that of the joint about the second.
    """

    def __init__(
        self,
        frames: Frames,
        version: Version,
        ignored: IgnoredContent,
        notes: list[Note],
        axis2_names: Mapping[str, str],
    ) -> None:
        self._frames, self._version, self._ignored, self._notes = frames, version, ignored, notes
        self._axis2_names = axis2_names

    def axis_joints(self, joint: Joined) -> list[tuple[Joint, Vector, float]]:
        """Returns one joint per axis, with its origin in the child link's frame and its zero."""
        kind = joint.element.attributes["type"]
        if not quantities.movement(TYPES[kind]).nv:
            return []
        on_child = self._frames.between(joint.child, joint.frame)
        tags = ("axis", "axis2") if kind in _TWO else ("axis",)
        axis_joints = []
        for tag in tags:
            name = joint.name if tag == "axis" else self._axis2_names[joint.name]
            axis_joints.append((self._axis_joint(joint, TYPES[kind], tag, name), on_child.origin, 0.0))
        return axis_joints

    def loop_joint(self, joint: Joined) -> list[LoopJoint]:
        """Returns the joint as one that closes a loop; [] and a note if no loop joint is equivalent."""
        kind, place = TYPES[joint.element.attributes["type"]], joint.element.place
        axis = np.array(quantities.X_AXIS)
        read = Joint(joint.name, kind, joint.parent, joint.child, np.zeros(3), np.eye(3), axis)
        if joint.element.attributes["type"] in _TWO:
            return self.unread(joint, f", because it is a {joint.element.attributes['type']} joint")
        if quantities.movement(kind).nv:
            # The axis is in the frame of the child, which is the joint's own here.
            read = self._axis_joint(replace(joint, child=joint.frame), kind, "axis", joint.name)
        if read.mimic is not None:
            return self.unread(joint, f", because it mimics {quoted(read.mimic.joint)}")
        if read.stiffness:  # without its spring, the robot would move freely where it does not
            return self.unread(joint, ", because it has a spring")
        ends = (None, None) if read.limit is None else (read.limit.lower, read.limit.upper)
        parts = ["limits"] if any(end is not None for end in ends) else []
        parts += [part for part in ("damping", "friction", "armature") if getattr(read, part)]
        if parts:
            self._notes.append(place.note("reported", f"{', '.join(parts)}: ignored at a joint that closes a loop"))
        parent, child = (self._frames.between(link, joint.frame) for link in (joint.parent, joint.child))
        frames = (parent.origin, parent.rotation, child.origin, child.rotation)
        return [
            LoopJoint(joint.name, read.type, joint.parent, joint.child, *frames, read.axis, read.pitch, place.main_line)
        ]

    def unread(self, joint: Joined, cause: str = "") -> list[LoopJoint]:
        """Adds a note on a joint that closes a loop and is no loop joint, and returns []."""
        text = f"closes a loop of links, from {quoted(joint.parent)} to {quoted(joint.child)}: it is ignored{cause}"
        self._notes.append(joint.element.place.note("loop", text))
        return []

    def _axis_joint(self, joint: Joined, kind: str, tag: str, name: str) -> Joint:
        place, moves = joint.element.place, quantities.movement(kind)
        element = joint.element.child(tag)
        x_axis = np.array(quantities.X_AXIS)
        base = Joint(name, kind, joint.parent, joint.child, np.zeros(3), np.eye(3), x_axis, line=place.main_line)
        if "axis" not in moves.parameters:
            if element is not None:
                self._notes.append(place.note("dropped", f"an <{tag}>, which a ball joint does not have"))
            return base
        if element is None:
            raise place.fault(f"there is no <{tag}> element, expected one")
        self._ignored.keep(element, _AXIS, ())
        axis = quantities.unit_axis(element.inner_numbers("xyz", (0.0, 0.0, 1.0)), element.place, self._notes)
        axis = self._axis_in(joint, element) @ axis
        limit = quantities.ranged_limit(moves, self._limit(element), place, self._notes)
        dynamics = element.child("dynamics") or Element("dynamics", {}, element.line)
        dynamics.place = element.place
        self._ignored.keep(dynamics, _DYNAMICS, ())
        stiffness = dynamics.inner_number("spring_stiffness", 0.0)
        return replace(
            base,
            type=quantities.type_with_limit(moves, limit),
            axis=axis,
            limit=limit,
            damping=dynamics.inner_number("damping", 0.0),
            friction=dynamics.inner_number("friction", 0.0),
            # Drake's rotor drives the first axis only.
            armature=self._armature(joint, limit) if tag == "axis" else 0.0,
            stiffness=stiffness,
            rest=dynamics.inner_number("spring_reference", 0.0) if stiffness else 0.0,
            mimic=self._mimic(element, joint),
            pitch=self._pitch(joint) if moves.threaded else 0.0,
        )

    def _axis_in(self, joint: Joined, axis: Element) -> Matrix:
        """Returns the rotation from the frame of the axis to the child link's frame."""
        xyz = axis.child("xyz")
        frame_name = "" if xyz is None else xyz.attributes.get("expressed_in", "")
        if self._version(axis) < AXES_IN_MODEL or axis.flag("use_parent_model_frame", False):
            frame_name = frame_name or MODEL
        frame = self._frames.named(frame_name, joint.scope, axis.place) if frame_name else joint.frame
        return self._frames.between(joint.child, frame).rotation

    def _limit(self, axis: Element) -> Limit | None:
        element = axis.child("limit")
        if element is None:
            return None
        self._ignored.keep(element, _LIMIT, ())
        efforts = [bound(element, tag) for tag in ("effort", "velocity")]
        # Negative values mean no limit.
        effort, velocity = (None if value is not None and value < 0.0 else value for value in efforts)
        return Limit(bound(element, "lower"), bound(element, "upper"), effort, velocity)

    def _mimic(self, axis: Element, joint: Joined) -> Mimic | None:
        element = axis.child("mimic")
        if element is None:
            return None
        self._ignored.keep(element, _MIMIC, ("joint", "axis"))
        leader = joint.scope + quantities.name(element.attributes.get("joint", ""), element.place)
        if element.attributes.get("axis", "axis") == "axis2":
            leader = self._axis2_names.get(leader, f"{leader}_axis2")
        multiplier = element.inner_number("multiplier", 1.0)
        offset = element.inner_number("offset", 0.0) - multiplier * element.inner_number("reference", 0.0)
        return Mimic(leader, multiplier, offset)

    def _armature(self, joint: Joined, limit: Limit | None) -> float:
        """Returns the reflected inertia of a rotor, kg m^2 | kg, in Drake's elements; 0 if the effort limit is 0, as in
        Drake.
        """
        rotor, ratio = (joint.element.inner_number(tag, default) for tag, default in ((ROTOR, 0.0), (RATIO, 1.0)))
        if rotor < 0.0:
            raise joint.element.place.fault(f"the {ROTOR} is {rotor:g}, expected zero or more")
        return 0.0 if limit is not None and limit.effort == 0.0 else reflected(rotor, ratio)

    def _pitch(self, joint: Joined) -> float:
        """m per turn: `screw_thread_pitch`; `thread_pitch` is rad per m, of a left-handed thread."""
        element = joint.element
        if element.all("screw_thread_pitch"):
            return element.inner_number("screw_thread_pitch", 1.0)
        turns = element.inner_number("thread_pitch", 0.0)
        if turns == 0.0:
            text = "there is no <screw_thread_pitch> element, expected one: the thread's pitch in m per turn"
            raise element.place.fault(text)
        return -2.0 * np.pi / turns

"""Poses, colours and arrows of a robot's state: links, centre of mass, joint loads, contact forces. NumPy only.

X_WL        robot.link_poses
c           robot.system_momentum, the row of the first link, which is that of the whole robot
F_j         robot.constraint_forces in world axes: the force that a joint carries, without its effort
tau_j       the effort; |tau_j| / limit_j is the colour

**Shapes** of links for display: visual shapes, else collision shapes, else placeholders from joints and
inertias.

A shape that cannot be shown has a note, and its link gets a placeholder: rods from its origin to its joints, and the
ellipsoid of uniform density with its mass and inertia, m/5 (b^2 + c^2) about the first axis. Meshes are read by
trimesh, with vertices, triangles and plain colours, without textures; see `parsing.shapes.mesh_parts`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dyn_service.api.queries import Array, RobotQueries, Wrench
from dyn_service.errors import FailedPreconditionError, UnimplementedError
from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.description import Description, Inertial
from dyn_service.model.description import Shape as Written
from dyn_service.parsing.pose import quaternion_of
from dyn_service.parsing.shapes import MESHES, mesh_file, mesh_parts, without_capsules
from dyn_service.service.protocol.inputs import unpack_contacts
from dyn_service.simulation.contact.supports import SupportedDynamics
from dyn_service.simulation.task import checked
from dyn_service.support.optional import require

Kind = Literal["box", "cylinder", "sphere", "ellipsoid", "mesh"]

PLAIN: Colour = (176, 184, 196)
"""Default colour."""
ROD: Colour = (120, 132, 150)
BODY: Colour = (150, 170, 205)
_ROD_SHARE = 0.03
"""A rod's radius relative to its length, and its maximum relative to the longest rod."""
_MIN_ROD = 1e-3
"""m: joints closer together than this are drawn as one point."""


@dataclass(frozen=True, eq=False)
class Shape:
    """A shape on a link.

    size: m; box: edges; cylinder: radius and length, along z; sphere: radius; ellipsoid: semi-axes; mesh: scales.
    xyz (3,) m, rotation (3, 3): where it is, in the link's frame. mesh: the file, of that kind.
    """

    kind: Kind
    size: tuple[float, ...]
    xyz: Vector
    rotation: Matrix
    colour: Colour = PLAIN
    mesh: Path | None = None


@dataclass(frozen=True)
class Looks:
    """Shapes by link. notes: what is not shown as in the file, and why. with_shapes: links with shapes of their own."""

    shapes: Mapping[str, Sequence[Shape]]
    notes: Sequence[str] = ()
    with_shapes: frozenset[str] = field(default=frozenset())


def looks_of(description: Description, folder: Path) -> Looks:
    """Returns the shapes of a robot, with placeholders for links whose shapes cannot be shown, or for all if none can.

    folder: The folder of its file; paths of meshes are relative to it.
    """
    shapes: dict[str, list[Shape]] = {}
    notes: list[str] = []
    lacking: set[str] = set()
    for link in description.links:
        visible = [shape for shape in link.shapes if shape.visual or shape.unread] or list(link.shapes)
        for shape in (part for whole in visible for part in without_capsules(whole)):
            drawable = _drawable_shape(shape, folder)
            if isinstance(drawable, str):
                notes.append(f"link {link.name!r} is not shown as it is: {drawable}")
                lacking.add(link.name)
            else:
                shapes.setdefault(link.name, []).append(drawable)
    drawn_links = frozenset(shapes)
    stand_ins = placeholders(description)
    if drawn_links:
        stand_ins = {name: parts for name, parts in stand_ins.items() if name in lacking - drawn_links}
    return Looks({**shapes, **stand_ins}, tuple(notes), drawn_links)


def _drawable_shape(shape: Written, folder: Path) -> Shape | str:
    """Returns the shape to draw, or why it cannot be drawn."""
    file = mesh_file(shape.mesh, folder) if shape.kind == "mesh" else None
    if shape.unread or shape.kind == "plane":
        return shape.unread or "a plane is infinite"
    if shape.kind == "mesh" and file is None:
        return f"the mesh {shape.mesh} is not there, or not of {', '.join(MESHES)}"
    if file is not None and not meshes_of(file):
        return f"the mesh {shape.mesh} cannot be read, or has more than {MAX_BYTES >> 20} MB"
    red, green, blue = (round(255 * share) for share in shape.rgba[:3]) if shape.rgba else PLAIN
    assert shape.kind != "capsule"  # is divided into parts
    return Shape(shape.kind, shape.size, shape.xyz, shape.rotation, (red, green, blue), file)


def placeholders(description: Description) -> dict[str, list[Shape]]:
    """Returns rods and ellipsoids for all links with joints or mass."""
    shapes: dict[str, list[Shape]] = {}
    arms = [(joint.parent, np.asarray(joint.xyz, dtype=np.float64)) for joint in description.joints]
    longest = max((float(np.linalg.norm(arm)) for _, arm in arms), default=1.0) or 1.0
    for parent, arm in arms:
        if float(np.linalg.norm(arm)) > _MIN_ROD:
            shapes.setdefault(parent, []).append(rod(arm, _ROD_SHARE * longest))
    for link in description.links:
        if link.inertial is not None and link.inertial.mass > 0.0:
            shape = ellipsoid(link.inertial, longest)
            if shape is not None:
                shapes.setdefault(link.name, []).append(shape)
    return shapes


def rod(arm: Vector, radius: float) -> Shape:
    """Returns a cylinder from the link's origin to `arm` (3,) m."""
    length = float(np.linalg.norm(arm))
    z = arm / length
    x = np.cross(np.eye(3)[int(np.argmin(np.abs(z)))], z)
    x /= np.linalg.norm(x)
    size, rotation = (min(radius, 0.3 * length), length), np.column_stack([x, np.cross(z, x), z])
    return Shape("cylinder", size, 0.5 * arm, rotation, ROD)


def ellipsoid(inertial: Inertial, largest: float) -> Shape | None:
    """Returns the ellipsoid of uniform density with this mass and inertia; None for a point. Semi-axes are limited to
    `largest` m, because inertias in files are not always physical.
    """
    moments, axes = np.linalg.eigh(inertial.inertia)
    # I_1 = m/5 (b^2 + c^2), so a^2 = 5/(2 m) (I_2 + I_3 - I_1), negative for an inertia that no body can have.
    squares = 2.5 / inertial.mass * (moments.sum() - 2.0 * moments)
    # Inertias in files are not always physical.
    semi = np.minimum(np.sqrt(np.maximum(squares, 0.0)), 0.5 * largest)
    if float(semi.max()) < _MIN_ROD:
        return None
    semi = np.maximum(semi, 0.05 * semi.max())
    # eigh may return a reflection, which has no quaternion.
    if np.linalg.det(axes) < 0.0:
        axes = axes * np.array([1.0, 1.0, -1.0])
    return Shape("ellipsoid", tuple(semi.tolist()), inertial.com, inertial.rotation @ axes, BODY)


MAX_BYTES = 64 << 20
"""Bytes; larger meshes are not shown."""

Colour = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Mesh:
    """vertices (k, 3) m, faces (n, 3). colour: where the file says one."""

    vertices: NDArray[np.float32]
    faces: NDArray[np.uint32]
    colour: Colour | None = None


def meshes_of(file: Path, scale: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Sequence[Mesh]:
    """Returns the content of a mesh file, scaled: one mesh per colour; empty if it cannot be read."""
    factors = np.array(scale)
    return [Mesh((mesh.vertices * factors).astype(np.float32), mesh.faces, mesh.colour) for mesh in _read(file)]


@lru_cache(maxsize=256)
def _read(file: Path) -> tuple[Mesh, ...]:
    require("the content of a mesh", "trimesh")
    parts: dict[Colour | None, list[Any]] = {}
    try:
        if file.stat().st_size > MAX_BYTES:
            return ()
        for part in mesh_parts(file, with_materials=True):
            parts.setdefault(_colour(part.visual), []).append(part)
        meshes = tuple(_joined(colour_parts, colour) for colour, colour_parts in parts.items())
    except Exception:  # noqa: BLE001  trimesh's readers may raise anything for an invalid file
        return ()
    return meshes if all(np.isfinite(mesh.vertices).all() for mesh in meshes) else ()


def _joined(parts: Sequence[Any], colour: Colour | None) -> Mesh:
    offsets = np.cumsum([0, *(len(part.vertices) for part in parts[:-1])])
    vertices = np.concatenate([np.asarray(part.vertices) for part in parts])
    faces = np.concatenate([np.asarray(part.faces) + first for part, first in zip(parts, offsets, strict=True)])
    return Mesh(vertices.astype(np.float32), faces.astype(np.uint32), colour)


def _colour(visual: Any) -> Colour | None:
    """Returns the single colour of a part; None for textures or without colour."""
    if not visual.defined:
        return None
    material = getattr(visual, "material", None)
    for picture in ("image", "baseColorTexture"):
        if getattr(material, picture, None) is not None:
            return None
    red, green, blue = np.asarray(visual.main_color if material is None else material.main_color)[:3].tolist()
    return red, green, blue


Colours = NDArray[np.uint8]

UNKNOWN = (128, 134, 145)
"""Colour of a joint without an effort limit or without a motor."""
_SCALE = np.array([[46, 160, 67], [230, 190, 40], [214, 48, 49]], dtype=np.float64)
"""Colours of the shares 0, 1/2 and 1."""
FORCE_LENGTH = 0.35
"""Length of the arrow of the largest joint force, relative to the robot's size."""
_STARTS = 24
"""Starts from which closed positions are searched."""
_MIN_FORCE = 0.03
"""Smallest force with an arrow, relative to the largest."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A robot in one state.

    rotation (nl, 3, 3), position (nl, 3) m: poses of links, X_WL. centre (3,) m: centre of mass. tau, share (nv,):
    efforts, and efforts divided by limits, NaN without a limit. loads (k, 2, 3) m: ends of the arrows of joint forces,
    force (k,) N, colours (k, 3), joints: their joints. contacts (nc, 2, 3) m, contact_force (nc,) N: the same for
    contact forces.
    """

    rotation: Array
    position: Array
    centre: Array
    tau: Array
    share: Array
    loads: Array
    force: Array
    colours: Colours
    joints: tuple[str, ...]
    contacts: Array
    contact_force: Array


class Scene:
    """A robot for display, with the planes it can touch. links: of `Snapshot.position`. stands: has contacts."""

    def __init__(self, robot: RobotQueries, ground: Ground | None = None) -> None:
        self.robot, self._ground, self.stands = robot, ground, ground is not None
        self.configuration = robot.configuration
        description = robot.description
        self.links = description.link_names
        self._joints = description.all_joint_names
        children = (joint.child for joints in (description.joints, description.loop_joints) for joint in joints)
        self._child = np.array([self.links.index(child) for child in children], dtype=np.intp)
        # A joint of the tree is at its child's origin, a loop joint anywhere on its child.
        self._offset = np.zeros((len(self._child), 3))
        for k, loop in enumerate(description.loop_joints, start=len(description.joints)):
            self._offset[k] = loop.child_xyz
        # Only joints with a motor have an effort limit, whose share gives the colour of their arrow.
        entries = dict(zip(self.configuration.names, self.configuration.v_slices, strict=True))
        self._entry = [entries.get(name) for name in self._joints]

    @cached_property
    def size(self) -> float:
        """Largest distance of link origins from their centre at the neutral position, m; at least 0.1."""
        position = self.robot.link_poses(self._closed(self.configuration.neutral)).position
        return max(0.1, float(np.linalg.norm(position - position.mean(axis=0), axis=1).max()))

    @cached_property
    def floor(self) -> float:
        """Height of the floor, m: 0, or below the lowest link."""
        return min(0.0, float(self.robot.link_poses(self.first).position[:, 2].min()))

    @cached_property
    def limits(self) -> Array:
        """Effort limits (nv,) N m | N, NaN if absent or 0."""
        efforts = self.robot.limits.efforts
        return np.where(np.isfinite(efforts) & (efforts > 0.0), efforts, np.nan)

    def still(self, q: Array) -> Snapshot:
        """Returns the robot at rest at q (nq,), with loops at the nearest closed position, without contacts.

        Efforts balance gravity. They are NaN if they are unknown: the robot's files name no motors of its loops, or
        none can hold it.
        """
        if self._has_loops:
            q = np.asarray(self.robot.assemble(q))
        try:
            tau = np.asarray(self.robot.gravity_forces(q))
        except (FailedPreconditionError, UnimplementedError):
            tau = np.full(self.configuration.nv, np.nan)
        return self._snapshot(q, np.zeros(self.configuration.nv), tau, None)

    def moving(self, q: Array, v: Array, tau: Array) -> Snapshot:
        """Returns the robot at q (nq,), v (nv,) under efforts tau (nv,) and contact forces.

        Measured positions and velocities leave loops open: they are shown at the nearest closed position, with the
        velocities that the independent ones cause.
        """
        if self._has_loops:
            q = np.asarray(self.robot.assemble(q))
            motion = self.robot.independent_motion(q, np.zeros(self.configuration.nv))
            v = motion.jacobian @ (motion.selection @ v)
        return self._snapshot(q, v, tau, self._ground)

    def _snapshot(self, q: Array, v: Array, tau: Array, ground: Ground | None) -> Snapshot:
        poses = self.robot.link_poses(q)
        points = pushes = np.zeros((0, 3))
        wrenches = None
        if ground is not None:
            points, pushes = ground.points(poses.rotation, poses.position), ground.forces(q, v, tau)
            wrenches = ground.wrenches(points, poses.rotation, poses.position, pushes)
        branch = self.robot.system_momentum(q, v, frame="world")
        share = np.abs(tau) / self.limits
        forces = self._joint_forces(q, v, tau, wrenches)
        size = np.linalg.norm(forces, axis=1)
        largest = float(size.max(initial=0.0))
        visible: list[int] = np.flatnonzero((size > _MIN_FORCE * largest) & np.isfinite(size)).tolist()
        child = self._child[visible]
        begin = poses.position[child] + (poses.rotation[child] @ self._offset[visible][..., None])[..., 0]
        contact_force = np.linalg.norm(pushes, axis=1)
        largest = max(largest, float(contact_force.max(initial=0.0)), 1e-12)
        per_newton = FORCE_LENGTH * self.size / largest
        arrows = per_newton * forces[visible]
        return Snapshot(
            rotation=poses.rotation,
            position=poses.position,
            centre=poses.position[0] + branch.centre[0],
            tau=tau,
            share=share,
            loads=np.stack([begin, begin + arrows], axis=1).reshape(-1, 2, 3),
            force=size[visible],
            colours=colours([self._share(share, k) for k in visible]),
            joints=tuple(self._joints[k] for k in visible),
            contacts=np.stack([points, points + per_newton * pushes], axis=1),
            contact_force=contact_force,
        )

    def _joint_forces(self, q: Array, v: Array, tau: Array, wrenches: list[Wrench] | None) -> Array:
        """Returns joint forces (nj, 3) N, world axes; NaN if the mass matrix is singular or tau is NaN."""
        if not np.isfinite(tau).all():
            return np.full((len(self._joints), 3), np.nan)
        try:
            forces: Array = self.robot.constraint_forces(q, v, tau, frame="world", wrenches=wrenches).constraint[:, 3:]
        except FailedPreconditionError:
            forces = np.full((len(self._joints), 3), np.nan)
        return forces

    def position_of(self, offsets: Array) -> Array:
        """Returns q (nq,) from a number per velocity (nv,): positions; of joints with several, shifts from neutral."""
        q: Array = self.configuration.integrate(self.configuration.neutral, offsets)
        return q

    @cached_property
    def first(self) -> Array:
        """Initial q (nq,): that of `start`, with loops closed."""
        return self._closed(self.position_of(self.start()))

    def _closed(self, q: Array) -> Array:
        """Returns q (nq,), of a robot with loops a closed position: the nearest, or that nearest to another start.

        Raises:
            FailedPreconditionError: No closed position was found.
        """
        if not self._has_loops:
            return q
        for seed in range(_STARTS):
            try:
                return np.asarray(self.robot.assemble(q))
            except FailedPreconditionError:  # middles of limits may be far from all closed positions
                q = self.configuration.neutral if seed == 0 else self.robot.random_configuration(seed=seed)
        return np.asarray(self.robot.assemble(q))

    @cached_property
    def independent(self) -> list[int]:
        """Entries of v that determine the position: all, of a robot with loops those that its loops leave free."""
        if not self._has_loops:
            return list(range(self.configuration.nv))
        motion = self.robot.independent_motion(self.first, np.zeros(self.configuration.nv))
        return [int(k) for k in np.flatnonzero(np.asarray(motion.selection).any(axis=0))]

    def numbers_of(self, q: Array) -> Array:
        """Returns the numbers (nv,) of which `position_of` makes q (nq,)."""
        numbers: Array = self.configuration.difference(self.configuration.neutral, q)
        return numbers

    def moved(self, q: Array, values: Array) -> Array:
        """Returns the position at which the entries `independent` of the numbers of q (nq,) are `values`.

        Of a robot with loops it is the nearest closed one, or q if the loops cannot be closed there.
        """
        numbers = self.numbers_of(q)
        numbers[self.independent] = values
        target = self.position_of(numbers)
        if not self._has_loops:
            return target
        slices = zip(self.configuration.names, self.configuration.v_slices, strict=True)
        fixed = [name for name, part in slices if set(range(part.start, part.stop)) <= set(self.independent)]
        try:
            return np.asarray(self.robot.assemble(target, fixed=fixed))
        except FailedPreconditionError:
            return q

    @property
    def _has_loops(self) -> bool:
        return bool(self.robot.description.loop_joints)

    def ranges(self) -> tuple[Array, Array]:
        """Ranges (nv,) of the numbers of `position_of`: position limits, or a turn, or the robot's size."""
        free = np.where(self.configuration.turns, math.pi, self.size)
        lower, upper = -free, free.copy()
        for in_q, in_v in zip(self.configuration.q_slices, self.configuration.v_slices, strict=True):
            if in_v.stop - in_v.start == 1:
                low, high = self.robot.limits.lower[in_q.start], self.robot.limits.upper[in_q.start]
                lower[in_v] = low if math.isfinite(low) else lower[in_v]
                upper[in_v] = high if math.isfinite(high) else upper[in_v]
        return lower, np.maximum(upper, lower + 1e-6)

    def start(self) -> Array:
        """Initial numbers of `position_of` (nv,): the middle of the limits, or 0."""
        lower, upper = self.ranges()
        middle: Array = 0.5 * (lower + upper)
        return middle

    def _share(self, share: Array, row: int) -> float:
        entry = self._entry[row]
        joint_share = share[entry] if entry is not None else np.array([np.nan])
        return float(np.nanmax(joint_share)) if np.isfinite(joint_share).any() else math.nan


def colours(shares: list[float]) -> Colours:
    """Returns colours (k, 3), green through yellow to red for 0 to 1 and above; grey for NaN."""
    values = np.array(shares, dtype=np.float64)
    mixed = np.stack([np.interp(np.nan_to_num(values), (0.0, 0.5, 1.0), channel) for channel in _SCALE.T], axis=-1)
    return np.where(np.isnan(values)[:, None], UNKNOWN, mixed).round().astype(np.uint8)


def quaternions(rotation: Array) -> Array:
    """Returns unit quaternions (k, 4), w x y z, of rotations (k, 3, 3)."""
    return np.array([quaternion_of(R) for R in rotation])


class Ground:
    """The contacts of a recorded plant; their forces are recomputed from its states.

    parameters: The plant's parameters, with `contacts`.

    Raises:
        NotFoundError: A contact's link does not exist.
        InvalidArgumentError: A contact is invalid.
        FailedPreconditionError: The mass matrix is singular.
    """

    def __init__(self, robot: RobotQueries, parameters: Mapping[str, Any]) -> None:
        self.contacts = unpack_contacts(parameters["contacts"], "contacts")
        dt = 1.0 / (float(parameters.get("rate_hz", 1000.0)) * int(parameters.get("substeps", 1)))
        configuration = robot.configuration
        integrator = parameters.get("integrator", "rk4")
        task = checked(
            configuration,
            configuration.neutral,
            np.zeros(configuration.nv),
            None,
            dt=dt,
            steps=1,
            integrator=integrator,
            contacts=self.contacts,
        )
        self._dynamics = SupportedDynamics(robot, task)
        self._links = [robot.link_names.index(contact.link) for contact in self.contacts]
        self._points = np.array([contact.point for contact in self.contacts], dtype=np.float64)
        self._radii = np.array([[contact.radius] for contact in self.contacts])
        normal = np.array([contact.normal for contact in self.contacts], dtype=np.float64)
        self._normal = normal / np.linalg.norm(normal, axis=1, keepdims=True)

    @property
    def height(self) -> float:
        """Height of the lowest plane's point, m."""
        return min(float(np.asarray(contact.plane, dtype=np.float64)[2]) for contact in self.contacts)

    def forces(self, q: Array, v: Array, tau: Array) -> Array:
        """Returns contact forces on the robot (nc, 3) N, world axes, at q (nq,), v (nv,) under efforts tau (nv,)."""
        return self._dynamics.solve(q, v, tau)[1]

    def points(self, rotation: Array, position: Array) -> Array:
        """Returns contact points (nc, 3) m for links at rotation (nl, 3, 3), position (nl, 3)."""
        offset_W = (rotation[self._links] @ self._points[..., None])[..., 0]
        points: Array = position[self._links] + offset_W - self._radii * self._normal
        return points

    def wrenches(self, points: Array, rotation: Array, position: Array, forces: Array) -> list[Wrench]:
        """Returns contact forces as wrenches on links."""
        return [
            Wrench(link=contact.link, force=force, point=rotation[k].T @ (point - position[k]), frame="world")
            for contact, k, point, force in zip(self.contacts, self._links, points, forces, strict=True)
        ]

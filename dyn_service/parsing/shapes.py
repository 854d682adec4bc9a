"""Visual and collision shapes of links, and paths of their meshes. No mesh is opened here.

A shape that cannot be read is kept with the reason: no number of the dynamics depends on it.

Moments of meshes are computed from their triangles, as MuJoCo does; trimesh reads the files when they are needed.

**Solids and shells**: volumes and moments of inertia, for files that give a shape with a density
or a mass.

Moments are about the centre of mass, per kilogram, along the axes of the shape; the axis of cylinders, capsules and
cones is z. Shells have uniform surface density.
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np

from dyn_service.errors import DynError
from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.description import Inertial, Shape
from dyn_service.parsing.pose import Pose
from dyn_service.parsing.quantities import (
    Elsewhere,
    Place,
    decimals,
    named,
    quoted,
    rotation_of_quaternion,
    rotation_of_rpy,
)
from dyn_service.parsing.xml_elements import Element
from dyn_service.support.optional import load

MESHES = (".stl", ".dae", ".obj", ".ply", ".glb", ".gltf")

_SIZES = {"box": ("size",), "cylinder": ("radius", "length"), "capsule": ("radius", "length"), "sphere": ("radius",)}


def shapes_of(link: Element, file: str, palette: Mapping[str, tuple[float, ...]]) -> tuple[Shape, ...]:
    """Returns the `<visual>` and `<collision>` shapes of a URDF link; `palette`: RGBA of the materials by name."""
    shapes = []
    for element in link.children:
        if element.tag in ("visual", "collision"):
            place = Place(file, named("link", link.attributes.get("name", "")), element.line)
            try:
                shape = _shape(element, place, palette)
            except DynError as error:
                shape = Shape(unread=str(error))
            shapes.append(replace(shape, visual=element.tag == "visual", collision=element.tag == "collision"))
    return tuple(shapes)


def _shape(element: Element, place: Place, palette: Mapping[str, tuple[float, ...]]) -> Shape:
    xyz, rotation, rgba = np.zeros(3), np.eye(3), None
    for origin in element.all("origin")[:1]:
        attributes = origin.attributes
        xyz = decimals(attributes.get("xyz", "0 0 0"), 3, "xyz", place)
        rotation = rotation_of_rpy(decimals(attributes.get("rpy", "0 0 0"), 3, "rpy", place))
        if "quat_xyzw" in attributes:
            rotation = rotation_of_quaternion(decimals(attributes["quat_xyzw"], 4, "quat_xyzw", place), place, [])
    for material in element.all("material")[:1]:
        rgba = rgba_of(material, place) or palette.get(material.attributes.get("name", ""))
    for child in (child for geometry in element.all("geometry")[:1] for child in geometry.children):
        attributes = child.attributes
        if child.tag == "mesh":
            scale = decimals(attributes.get("scale", "1 1 1"), 3, "scale", place)
            return Shape("mesh", tuple(scale.tolist()), xyz, rotation, rgba=rgba, mesh=attributes.get("filename", ""))
        if child.tag in _SIZES:
            counts = ((name, 3 if name == "size" else 1) for name in _SIZES[child.tag])
            size = [x for name, n in counts for x in decimals(attributes.get(name, ""), n, name, place).tolist()]
            return Shape(child.tag, tuple(size), xyz, rotation, rgba=rgba)  # type: ignore[arg-type]  # is in _SIZES
    return Shape(unread=f"its geometry is not supported, expected one of {', '.join(_SIZES)}, mesh")


def rgba_of(material: Element, place: Place) -> tuple[float, ...] | None:
    """Returns the colour of a URDF `<material>`; None if it is missing or malformed."""
    for colour in material.all("color")[:1]:
        try:
            return tuple(decimals(colour.attributes.get("rgba", ""), 4, "rgba", place).clip(0.0, 1.0).tolist())
        except DynError:
            return None
    return None


def without_capsules(shape: Shape) -> list[Shape]:
    """Returns a capsule as a cylinder and two spheres; any other shape unchanged."""
    if shape.kind != "capsule":
        return [shape]
    radius, length = shape.size
    ends = [shape.xyz + side * length / 2.0 * shape.rotation[:, 2] for side in (-1.0, 1.0)]
    return [replace(shape, kind="cylinder"), *(replace(shape, kind="sphere", size=(radius,), xyz=end) for end in ends)]


def mesh_file(address: str, folder: Path) -> Path | None:
    """Returns the file of a mesh URI, or None if it does not exist.

    `package://NAME/..` is searched in folders called NAME above the robot's file, in `ROS_PACKAGE_PATH`, in `share`
    below `AMENT_PREFIX_PATH`, and in the Python package NAME; nothing is downloaded.
    """
    candidates = mesh_candidates(address, folder)
    return next((path for path in candidates if path.suffix.lower() in MESHES and os.path.isfile(path)), None)


def mesh_candidates(address: str, folder: Path) -> Iterator[Path]:
    """Yields the paths at which the file of a mesh URI may be, in order."""
    scheme, is_uri, rest = address.partition("://")
    name, _, relative_path = rest.partition("/")
    if scheme in ("package", "model"):
        yield from (home / unquote(relative_path).lstrip("/") for home in _packages(name, folder))
    elif scheme == "file":
        yield Path("/", unquote(relative_path))
    elif not is_uri:
        yield folder / address


def mesh_parts(path: Path, *, with_materials: bool = False) -> list[Any]:
    """Returns the `trimesh.Trimesh` objects of a mesh file, m, each with the transforms of the file's scene.

    As in RViz and Gazebo, the unit of a Collada file applies, and its up axis does not; trimesh applies neither. Raises
    whatever trimesh's readers raise.

    with_materials: Whether materials and textures in other files are read too, and equal vertices merged.
    """
    trimesh: Any = load("the content of a mesh", "trimesh")
    ending = path.suffix[1:].lower()
    if with_materials:
        scene = trimesh.load_scene(path)
    else:
        scene = trimesh.load_scene(io.BytesIO(path.read_bytes()), file_type=ending, process=False)
    parts = [part for part in scene.dump() if len(getattr(part, "faces", ()))]
    for part in parts:
        if ending == "dae":
            part.convert_units("meters")
    return parts


def _packages(name: str, folder: Path) -> Iterator[Path]:
    for parent in (folder, *folder.parents):
        if parent.name == name:
            yield parent
        if (parent / name).is_dir():
            yield parent / name
    for root in os.environ.get("ROS_PACKAGE_PATH", "").split(os.pathsep):
        if root:
            yield from (Path(root) / name, Path(root)) if Path(root).name == name else (Path(root) / name,)
    for root in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep):
        if root:
            yield Path(root) / "share" / name
    # Not for dotted names, whose parent packages `find_spec` would import and run.
    spec = find_spec(name) if name.isidentifier() else None
    for home in spec.submodule_search_locations or () if spec is not None else ():
        yield Path(home)


MAX_BYTES = 256 << 20  # of all mesh files of a robot
FORMATS = (".stl", ".obj")  # MuJoCo reads both, and trimesh opens no other file for them
_POLYGON = re.compile(rb"^f(?:[ \t]+[0-9/-]+){5}", re.MULTILINE)


@dataclass(frozen=True, eq=False)
class Mesh:
    """A mesh of a robot file; `mode`, `position` and `rotation` are MJCF's `inertia`, `refpos` and `refquat`.

    file: "" for a mesh without a file. capped: whether the number of vertices of its convex hull is limited.
    """

    file: str
    place: Place
    mode: str
    scale: Vector
    position: Vector = field(default_factory=lambda: np.zeros(3))
    rotation: Matrix = field(default_factory=lambda: np.eye(3))
    capped: bool = False


class Meshes:
    """The meshes of a robot, by name.

    folder: the folder of the robot's file; None: no file is opened. mesh_folder: relative to it.
    """

    def __init__(self, assets: Mapping[str, Mesh], folder: Path | None, mesh_folder: str = "") -> None:
        self._mesh_folder = mesh_folder
        self._assets, self._folder, self._bytes_left = assets, folder, MAX_BYTES
        self._mesh_masses: dict[str, tuple[float, Pose, Vector]] = {}

    def file(self, name: str, place: Place) -> tuple[str, Pose, tuple[float, ...]]:
        """Returns the path of a mesh relative to the robot's file, the pose of its frame in the geom's, its scales."""
        asset = self._assets.get(name)
        if asset is None or not asset.file:
            raise place.fault(f"the mesh {quoted(name)} has no file in <asset>")
        rotation, scale = asset.rotation, asset.scale
        if (scale != scale[0]).any() and not np.array_equal(rotation, np.eye(3)):
            raise asset.place.fault("a refquat with different scales along the axes is not supported")
        frame_pose = Pose(rotation.T, -rotation.T @ asset.position * scale)
        return self._relative(asset.file, asset.place), frame_pose, tuple(scale.tolist())

    def _relative(self, file: str, place: Place) -> str:
        """Returns the path from the robot's file. Last, MuJoCo looks in the folder of the file that has the asset."""
        path = os.path.join(self._mesh_folder, file)
        if self._folder is None or not isinstance(place, Elsewhere) or (self._folder / path).is_file():
            return path
        return os.path.join(os.path.relpath(Path(place.file).parent, self._folder), file)

    def mass_properties(self, name: str, place: Place) -> tuple[float, Pose, Vector]:
        """Returns volume, m^3 (area, m^2, for a shell), the frame of the principal axes, and moments per kilogram.

        Raises:
            UrdfError: There is no such mesh or file, or it has no volume.
            MissingLibraryError: trimesh is not installed.
        """
        if name not in self._assets:
            raise place.fault(f"there is no mesh {quoted(name)} in <asset>")
        if name in self._mesh_masses:
            return self._mesh_masses[name]
        asset = self._assets[name]
        mode = asset.mode
        if mode == "convex" and asset.capped:
            raise asset.place.fault("maxhullvert is not supported: add an <inertial> to its body")
        mesh = self._mesh(asset.file, asset.place, mode)
        corners = ((mesh.vertices - asset.position) @ asset.rotation * asset.scale)[mesh.faces]
        areas = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1) / 2.0
        # A mesh without area is refused below with a message, not by a division by zero.
        com, count = areas @ corners.mean(axis=1) / max(areas.sum(), 1e-300), 3.0 if mode == "shell" else 4.0
        for is_second_pass in (False, True):  # from the centre of mass again: volumes of the legacy way differ
            sides = corners - com
            sizes = areas if mode == "shell" else np.linalg.det(sides) / 6.0
            sizes = np.abs(sizes) if mode == "legacy" else sizes * np.sign(sizes.sum())
            size, sums = float(sizes.sum()), sides.sum(axis=1)
            if not size > 0.0:
                raise asset.place.fault("the mesh has no volume: add an <inertial> to its body, or use a mass of 0")
            com = com if is_second_pass else com + sizes @ sums / count / size
        squares = np.einsum("n,nki,nkj->ij", sizes, sides, sides) + np.einsum("n,ni,nj->ij", sizes, sums, sums)
        squares /= count * (count + 1.0) * size
        moments, axes = np.linalg.eigh(np.trace(squares) * np.eye(3) - squares)
        # The eigenvectors may form a reflection, which is no pose.
        axes[:, 2] *= np.linalg.det(axes)
        return self._mesh_masses.setdefault(name, (size, Pose(axes, com), moments))

    def _mesh(self, file: str, place: Place, mode: str) -> Any:
        """The `trimesh.Trimesh` of a file."""
        if self._folder is None or "://" in file or Path(file).suffix.lower() not in FORMATS:
            expected = "a .stl or .obj file and a robot read from a file (not from text), or an <inertial>"
            raise place.fault(f"a mass depends on the mesh {quoted(file)}: expected {expected}")
        trimesh, path = load("the mass of a mesh", "trimesh"), self._folder / self._relative(file, place)
        if not path.is_file() or path.stat().st_size > self._bytes_left:
            text = f"there is no file {quoted(file)} in the mesh folder, or it has over {self._bytes_left} bytes"
            raise place.fault(text)
        self._bytes_left -= path.stat().st_size
        try:
            data = path.read_bytes()
            mesh = trimesh.load(io.BytesIO(data), file_type=path.suffix[1:].lower(), force="mesh", process=False)
            mesh.vertices = np.asarray(mesh.vertices, dtype=np.float32).astype(np.float64)  # as MuJoCo keeps them
            mesh = mesh.convex_hull if mode == "convex" else mesh
        except Exception as fault:  # noqa: BLE001  files are not ours, and trimesh's readers raise what they like
            raise place.fault(f"the mesh {quoted(file)} cannot be read: {quoted(str(fault))}") from None
        if mode in ("legacy", "shell") and path.suffix.lower() == ".obj" and _POLYGON.search(data):
            text = "has faces of more than four corners, which MuJoCo triangulates differently: save it with triangles"
            raise place.fault(f"the mesh {quoted(file)} {text}")
        return mesh


class Solid(NamedTuple):
    """size: m^3, or m^2 for a shell. moments: (3,) m^2, the moments of inertia per kilogram."""

    size: float
    moments: Vector


# Half lengths or semi-axes a, b, c, m; radius r, m; half length h, m.


def _box(a: float, b: float, c: float) -> Solid:
    return Solid(8.0 * a * b * c, np.array([b * b + c * c, a * a + c * c, a * a + b * b]) / 3.0)


def _ellipsoid(a: float, b: float, c: float) -> Solid:
    return Solid(4.0 / 3.0 * math.pi * a * b * c, np.array([b * b + c * c, a * a + c * c, a * a + b * b]) / 5.0)


def _sphere(r: float) -> Solid:
    return _ellipsoid(r, r, r)


def _cylinder(r: float, h: float) -> Solid:
    transverse = r * r / 4.0 + h * h / 3.0
    return Solid(2.0 * math.pi * r * r * h, np.array([transverse, transverse, r * r / 2.0]))


def _capsule(r: float, h: float) -> Solid:
    rod, ball = _cylinder(r, h), _sphere(r)
    size = rod.size + ball.size
    # The centre of mass of a half ball is 3 r / 8 from its flat side, which is h from the middle.
    ends = np.array([1.0, 1.0, 0.0]) * (h * h + 3.0 / 4.0 * h * r)
    return Solid(size, (rod.size * rod.moments + ball.size * (ball.moments + ends)) / size)


def _box_shell(a: float, b: float, c: float) -> Solid:
    x, y, z = b * c, a * c, a * b  # areas of the three pairs, divided by 8
    total = x + y + z
    u, v, w = np.array([x + (y + z) / 3.0, y + (x + z) / 3.0, z + (x + y) / 3.0]) * np.array([a * a, b * b, c * c])
    return Solid(8.0 * total, np.array([v + w, u + w, u + v]) / total)


def _sphere_shell(r: float) -> Solid:
    return Solid(4.0 * math.pi * r * r, np.full(3, 2.0 / 3.0 * r * r))


def _cylinder_shell(r: float, h: float) -> Solid:
    tube, lids = 4.0 * math.pi * r * h, 2.0 * math.pi * r * r
    of_tube = np.array([r * r / 2.0 + h * h / 3.0] * 2 + [r * r])
    of_lids = np.array([r * r / 4.0 + h * h] * 2 + [r * r / 2.0])
    return Solid(tube + lids, (tube * of_tube + lids * of_lids) / (tube + lids))


def _capsule_shell(r: float, h: float) -> Solid:
    tube, ball = 4.0 * math.pi * r * h, 4.0 * math.pi * r * r
    of_tube = np.array([r * r / 2.0 + h * h / 3.0] * 2 + [r * r])
    # The centre of mass of a thin half ball is r / 2 from its open side.
    of_ball = np.full(3, 2.0 / 3.0 * r * r) + np.array([1.0, 1.0, 0.0]) * (h * h + h * r)
    return Solid(tube + ball, (tube * of_tube + ball * of_ball) / (tube + ball))


def _ellipsoid_shell(a: float, b: float, c: float) -> Solid:
    """A thin ellipsoid as MuJoCo has it: 1e-6 m thick along each axis, its area by Thomsen's formula."""
    p, thick = 1.6075, 1e-6
    area = 4.0 * math.pi * (((a * b) ** p + (a * c) ** p + (b * c) ** p) / 3.0) ** (1.0 / p)
    outer, inner = _ellipsoid(a + thick, b + thick, c + thick), _ellipsoid(a, b, c)
    return Solid(area, (outer.size * outer.moments - inner.size * inner.moments) / (outer.size - inner.size))


SOLIDS: Mapping[str, Callable[..., Solid]] = {
    "sphere": _sphere, "capsule": _capsule, "ellipsoid": _ellipsoid, "cylinder": _cylinder, "box": _box,
}  # fmt: skip
"""Solids by the names of MuJoCo and SDFormat; `SIZES` is the number of sizes of each."""

SHELLS: Mapping[str, Callable[..., Solid]] = {
    "sphere": _sphere_shell, "capsule": _capsule_shell, "ellipsoid": _ellipsoid_shell, "cylinder": _cylinder_shell,
    "box": _box_shell,
}  # fmt: skip

FIRST_HIDDEN = 3
"""The first geom group that MuJoCo's viewer hides by default."""

SIZES = {"sphere": 1, "capsule": 2, "ellipsoid": 3, "cylinder": 2, "box": 3}


def stretched(kind: str, sizes: Sequence[float], factor: float) -> tuple[float, ...]:
    """Scales the lengths of boxes, cylinders and capsules: `factor` = 2 converts half lengths to those of `Shape`."""
    radii = {"box": 0, "cylinder": 1, "capsule": 1}.get(kind, 3)
    return (*sizes[:radii], *(factor * size for size in sizes[radii:]))


def filled(shapes: Iterable[Shape]) -> Inertial | None:
    """Returns the inertia of boxes, cylinders, .. of density 1 kg/m^3 in the link's frame, or None."""
    parts = []
    for shape in shapes:
        if shape.kind in SOLIDS and not shape.unread:
            volume, moments = SOLIDS[shape.kind](*stretched(shape.kind, shape.size, 0.5))
            if volume > 0.0:
                parts.append((volume, Pose(shape.rotation, shape.xyz), volume * moments))
    return combined(parts)


def combined(parts: Sequence[tuple[float, Pose, Vector]]) -> Inertial | None:
    """Combines bodies, each with mass, kg, pose and moments (3,) kg m^2; returns None for an empty list."""
    if not parts:
        return None
    if len(parts) == 1:
        mass, pose, moments = parts[0]
        return Inertial(mass, pose.origin, pose.rotation, np.diag(moments))
    total = sum(mass for mass, _, _ in parts)
    com = np.sum([mass * pose.origin for mass, pose, _ in parts], axis=0) / total
    inertia = np.zeros((3, 3))
    for mass, pose, moments in parts:
        offset = pose.origin - com
        inertia += pose.rotation @ np.diag(moments) @ pose.rotation.T
        inertia += mass * (offset @ offset * np.eye(3) - np.outer(offset, offset))
    # Rounding makes the two halves differ, and a description must have symmetric inertias.
    return Inertial(total, com, np.eye(3), (inertia + inertia.T) / 2.0)

"""What links look like: the `<visual>` of a URDF, else its `<collision>`, else shapes made from its joints and masses.

A reader of its own, beside the importer of `urdf/`, which opens no mesh and needs no looks. It is as forgiving as that
one is strict: what cannot be shown is left out, with a note, and the link gets a stand-in.

Stand-ins of a link: rods from its origin to the joints that it carries, and the ellipsoid of even density that has its
mass and inertia, m/5 (b^2 + c^2) about the first axis.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

import numpy as np

from dyn_service.errors import DynError
from dyn_service.formats import xacro
from dyn_service.formats.reading import root_of
from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.description import Description, Inertial
from dyn_service.urdf.markup import Element, ReadLimits, load, parse
from dyn_service.urdf.places import Place
from dyn_service.urdf.quantities import decimals, rotation_of_rpy
from dyn_service.view.meshes import MAX_BYTES, Colour, meshes_of

Kind = Literal["box", "cylinder", "sphere", "ellipsoid", "mesh"]

PLAIN: Colour = (176, 184, 196)
"""Of what has no colour of its own."""
ROD: Colour = (120, 132, 150)
BODY: Colour = (150, 170, 205)
MESHES = (".stl", ".dae", ".obj", ".ply", ".glb", ".gltf")
_ROD_SHARE = 0.03
"""A rod's radius, as a share of its length; at most that of the whole robot's largest one."""
_LEAST_ROD = 1e-3
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
    """Shapes by link. notes: what is not shown as the file has it, and why. drawn: the links that have own shapes."""

    shapes: Mapping[str, Sequence[Shape]]
    notes: Sequence[str] = ()
    drawn: frozenset[str] = field(default=frozenset())


def looks_of(description: Description, file: Path | None, arguments: Mapping[str, str] | None = None) -> Looks:
    """The looks of a robot: as its file has them, with stand-ins for links whose looks cannot be shown, and for all
    where it has none.

    Args:
        description: The robot.
        file: Where it was read from; None where that is not known. Of files other than URDF and xacro no looks are
            read, so all links have stand-ins.
        arguments: Of a xacro file.
    """
    if file is None:
        return _looks(description, (), [])
    limits, notes = ReadLimits(), list[str]()
    text = xacro.expanded(file, arguments or {}) if file.name.endswith(xacro.SUFFIX) else load(file, limits)
    return _looks(description, _own(text, file.name, file.parent, notes), notes)


def looks_of_text(description: Description, text: str, called: str, beside: Path) -> Looks:
    """The same of a robot whose URDF is a text; meshes are looked for from the folder `beside` on."""
    notes: list[str] = []
    return _looks(description, _own(text, called, beside, notes), notes)


def _looks(description: Description, own: Iterable[tuple[str, Shape | None]], notes: list[str]) -> Looks:
    shapes: dict[str, list[Shape]] = {}
    lacking: set[str] = set()
    for name, shape in own:
        if shape is None:
            lacking.add(name)
        else:
            shapes.setdefault(name, []).append(shape)
    drawn = frozenset(shapes)
    wanted = lacking - drawn if drawn else None
    made = {name: found for name, found in stand_ins(description).items() if wanted is None or name in wanted}
    return Looks({**shapes, **made}, tuple(notes), drawn)


def stand_ins(description: Description) -> dict[str, list[Shape]]:
    """Rods and ellipsoids for every link that carries joints or has mass."""
    made: dict[str, list[Shape]] = {}
    arms = [(joint.parent, np.asarray(joint.xyz, dtype=np.float64)) for joint in description.joints]
    longest = max((float(np.linalg.norm(arm)) for _, arm in arms), default=1.0) or 1.0
    for parent, arm in arms:
        if float(np.linalg.norm(arm)) > _LEAST_ROD:
            made.setdefault(parent, []).append(rod(arm, _ROD_SHARE * longest))
    for link in description.links:
        if link.inertial is not None and link.inertial.mass > 0.0:
            shape = ellipsoid(link.inertial, longest)
            if shape is not None:
                made.setdefault(link.name, []).append(shape)
    return made


def rod(arm: Vector, radius: float) -> Shape:
    """A cylinder from the link's origin to `arm` (3,) m."""
    length = float(np.linalg.norm(arm))
    z = arm / length
    x = np.cross(np.eye(3)[int(np.argmin(np.abs(z)))], z)
    x /= np.linalg.norm(x)
    return Shape(
        "cylinder", (min(radius, 0.3 * length), length), 0.5 * arm, np.column_stack([x, np.cross(z, x), z]), ROD
    )


def ellipsoid(inertial: Inertial, largest: float) -> Shape | None:
    """The ellipsoid of even density with this mass and inertia; None where that would be a point. No semi-axis is
    longer than `largest` m: inertias in files are not always those of bodies.
    """
    moments, axes = np.linalg.eigh(inertial.inertia)
    # I_1 = m/5 (b^2 + c^2), so a^2 = 5/(2 m) (I_2 + I_3 - I_1); an inertia no body can have makes one of them negative
    squares = 2.5 / inertial.mass * (moments.sum() - 2.0 * moments)
    semi = np.minimum(np.sqrt(np.maximum(squares, 0.0)), 0.5 * largest)
    if float(semi.max()) < _LEAST_ROD:
        return None
    semi = np.maximum(semi, 0.05 * semi.max())
    if np.linalg.det(axes) < 0.0:
        axes = axes * np.array([1.0, 1.0, -1.0])
    return Shape("ellipsoid", tuple(semi.tolist()), inertial.com, inertial.rotation @ axes, BODY)


def mesh_file(address: str, beside: Path) -> Path | None:
    """The file that a mesh's address names, or None where there is no such file.

    `package://NAME/..` is looked for in folders called NAME above the robot's file, in those of `ROS_PACKAGE_PATH`, of
    `share` below `AMENT_PREFIX_PATH`, and in the Python package NAME; nothing is fetched.
    """
    split = urlsplit(address)
    if split.scheme in ("package", "model"):
        inside = Path(unquote(split.path).lstrip("/"))
        candidates = [home / inside for home in _packages(split.netloc, beside)]
    elif split.scheme == "file":
        candidates = [Path(unquote(split.path))]
    elif split.scheme and len(split.scheme) > 1:
        return None
    else:
        candidates = [beside / address]
    return next((path for path in candidates if path.suffix.lower() in MESHES and path.is_file()), None)


def _packages(name: str, beside: Path) -> Iterator[Path]:
    for folder in (beside, *beside.parents):
        if folder.name == name:
            yield folder
        if (folder / name).is_dir():
            yield folder / name
    for root in os.environ.get("ROS_PACKAGE_PATH", "").split(os.pathsep):
        if root:
            yield from (Path(root) / name, Path(root)) if Path(root).name == name else (Path(root) / name,)
    for root in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep):
        if root:
            yield Path(root) / "share" / name
    spec = find_spec(name) if name.isidentifier() else None
    for home in spec.submodule_search_locations or () if spec is not None else ():
        yield Path(home)


def _own(text: str, called: str, beside: Path, notes: list[str]) -> Iterator[tuple[str, Shape | None]]:
    """The shapes that a URDF gives: of each link its visuals, or its collisions where it has no visual; None for one
    that cannot be shown.
    """
    if root_of(text) != "robot":
        notes.append(f"{called}: looks are read from URDF and xacro only; stand-ins are shown")
        return
    root = parse(text, called, ReadLimits()).root
    palette = {one.attributes.get("name", ""): colour for one in root.all("material") if (colour := _rgba(one))}
    for link in root.all("link"):
        name = link.attributes.get("name", "")
        for element in link.all("visual") or link.all("collision"):
            place = Place(called, f"link {name!r}", element.line)
            try:
                shape = _shape(element, place, beside, palette)
            except DynError as error:
                shape = str(error)
            if isinstance(shape, str):
                notes.append(f"link {name!r} is not shown as it is: {shape}")
            yield name, None if isinstance(shape, str) else shape


def _shape(element: Element, place: Place, beside: Path, palette: Mapping[str, Colour]) -> Shape | str:
    """The shape of a visual, or why there is none.

    Raises:
        UrdfError: A number of it is none.
    """
    xyz, rotation = np.zeros(3), np.eye(3)
    for origin in element.all("origin")[:1]:
        xyz = decimals(origin.attributes.get("xyz", "0 0 0"), 3, "xyz", place)
        rotation = rotation_of_rpy(decimals(origin.attributes.get("rpy", "0 0 0"), 3, "rpy", place))
    shape = _geometry(element, place, beside)
    if isinstance(shape, str):
        return shape
    colour = PLAIN
    for material in element.all("material")[:1]:
        colour = _rgba(material) or palette.get(material.attributes.get("name", ""), PLAIN)
    return replace(shape, xyz=xyz, rotation=rotation, colour=colour)


def _geometry(element: Element, place: Place, beside: Path) -> Shape | str:
    for geometry in element.all("geometry")[:1]:
        for child in geometry.children:
            given = child.attributes

            def numbers(
                name: str, count: int, default: str = "", given: Mapping[str, str] = given
            ) -> tuple[float, ...]:
                return tuple(decimals(given.get(name, default), count, name, place).tolist())

            at = np.zeros(3), np.eye(3)
            if child.tag == "box":
                return Shape("box", numbers("size", 3), *at)
            if child.tag == "cylinder":
                return Shape("cylinder", (*numbers("radius", 1), *numbers("length", 1)), *at)
            if child.tag == "sphere":
                return Shape("sphere", numbers("radius", 1), *at)
            if child.tag == "mesh":
                address = given.get("filename", "")
                found = mesh_file(address, beside)
                if found is None:
                    return f"the mesh {address} is not there, or not of {', '.join(MESHES)}"
                scale = numbers("scale", 3, "1 1 1")
                if not meshes_of(found):
                    return f"the mesh {address} cannot be read, or has more than {MAX_BYTES >> 20} MB"
                return Shape("mesh", scale, *at, mesh=found)
    return "its geometry is none of box, cylinder, sphere, mesh"


def _rgba(material: Element) -> Colour | None:
    for colour in material.all("color")[:1]:
        words = colour.attributes.get("rgba", "").split()
        try:
            red, green, blue = (round(255 * min(1.0, max(0.0, float(word)))) for word in words[:3])
        except ValueError:
            return None
        return red, green, blue
    return None

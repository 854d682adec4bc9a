"""Shapes of links for display: visual shapes, else collision shapes, else placeholders from joints and inertias.

A shape that cannot be shown has a note, and its link gets a placeholder: rods from its origin to its joints, and the
ellipsoid of uniform density with its mass and inertia, m/5 (b^2 + c^2) about the first axis. Meshes are read by
trimesh, with vertices, triangles and plain colours, without textures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.description import Description, Inertial
from dyn_service.model.description import Shape as Written
from dyn_service.parsing.shapes import MESHES, mesh_file, without_capsules

Kind = Literal["box", "cylinder", "sphere", "ellipsoid", "mesh"]

PLAIN: Colour = (176, 184, 196)
"""Default colour."""
ROD: Colour = (120, 132, 150)
BODY: Colour = (150, 170, 205)
_ROD_SHARE = 0.03
"""A rod's radius relative to its length, and its maximum relative to the longest rod."""
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
    """Shapes by link. notes: what is not shown as in the file, and why. drawn: the links with shapes of their own."""

    shapes: Mapping[str, Sequence[Shape]]
    notes: Sequence[str] = ()
    drawn: frozenset[str] = field(default=frozenset())


def looks_of(description: Description, folder: Path) -> Looks:
    """Returns the shapes of a robot, with placeholders for links whose shapes cannot be shown, or for all if none can.

    Args:
        description: The robot.
        folder: The folder of its file; paths of meshes are relative to it.
    """
    shapes: dict[str, list[Shape]] = {}
    notes: list[str] = []
    lacking: set[str] = set()
    for link in description.links:
        chosen = [shape for shape in link.shapes if shape.visual or shape.unread] or list(link.shapes)
        for shape in (part for whole in chosen for part in without_capsules(whole)):
            shown = _shown(shape, folder)
            if isinstance(shown, str):
                notes.append(f"link {link.name!r} is not shown as it is: {shown}")
                lacking.add(link.name)
            else:
                shapes.setdefault(link.name, []).append(shown)
    drawn = frozenset(shapes)
    wanted = lacking - drawn if drawn else None
    made = {name: found for name, found in stand_ins(description).items() if wanted is None or name in wanted}
    return Looks({**shapes, **made}, tuple(notes), drawn)


def _shown(shape: Written, folder: Path) -> Shape | str:
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


def stand_ins(description: Description) -> dict[str, list[Shape]]:
    """Returns rods and ellipsoids for all links with joints or mass."""
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
    """Returns a cylinder from the link's origin to `arm` (3,) m."""
    length = float(np.linalg.norm(arm))
    z = arm / length
    x = np.cross(np.eye(3)[int(np.argmin(np.abs(z)))], z)
    x /= np.linalg.norm(x)
    return Shape(
        "cylinder", (min(radius, 0.3 * length), length), 0.5 * arm, np.column_stack([x, np.cross(z, x), z]), ROD
    )


def ellipsoid(inertial: Inertial, largest: float) -> Shape | None:
    """Returns the ellipsoid of uniform density with this mass and inertia; None for a point. Semi-axes are limited to
    `largest` m, because inertias in files are not always physical.
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
    along = np.array(scale)
    return [Mesh((one.vertices * along).astype(np.float32), one.faces, one.colour) for one in _read(file)]


@lru_cache(maxsize=256)
def _read(file: Path) -> tuple[Mesh, ...]:
    import trimesh

    parts: dict[Colour | None, list[Any]] = {}
    try:
        if file.stat().st_size > MAX_BYTES:
            return ()
        scene: Any = trimesh.load_scene(file)
        for part in scene.dump():  # with the transforms of the file's scene graph
            if len(getattr(part, "faces", ())):
                parts.setdefault(_colour(part.visual), []).append(part)
        found = tuple(_joined(some, colour) for colour, some in parts.items())
    except Exception:  # noqa: BLE001  trimesh's readers may raise anything for an invalid file
        return ()
    return found if all(np.isfinite(one.vertices).all() for one in found) else ()


def _joined(parts: Sequence[Any], colour: Colour | None) -> Mesh:
    before = np.cumsum([0, *(len(part.vertices) for part in parts[:-1])])
    vertices = np.concatenate([np.asarray(part.vertices) for part in parts])
    faces = np.concatenate([np.asarray(part.faces) + first for part, first in zip(parts, before, strict=True)])
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

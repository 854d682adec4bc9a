"""What links look like: their visual shapes, else their collision shapes, else stand-ins made from joints and masses.

A shape that cannot be shown has a note, and its link gets a stand-in: rods from its origin to the joints that it
carries, and the ellipsoid of even density that has its mass and inertia, m/5 (b^2 + c^2) about the first axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.description import Description, Inertial
from dyn_service.model.description import Shape as Written
from dyn_service.parsing.shapes import MESHES, mesh_file, without_capsules
from dyn_service.view.meshes import MAX_BYTES, Colour, meshes_of

Kind = Literal["box", "cylinder", "sphere", "ellipsoid", "mesh"]

PLAIN: Colour = (176, 184, 196)
"""Of what has no colour of its own."""
ROD: Colour = (120, 132, 150)
BODY: Colour = (150, 170, 205)
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


def looks_of(description: Description, beside: Path) -> Looks:
    """The looks of a robot: its shapes, and stand-ins for links whose shapes cannot be shown, or for all links if none
    can.

    Args:
        description: The robot.
        beside: The folder of its file, from which paths of meshes are relative.
    """
    shapes: dict[str, list[Shape]] = {}
    notes: list[str] = []
    lacking: set[str] = set()
    for link in description.links:
        chosen = [shape for shape in link.shapes if shape.visual or shape.unread] or list(link.shapes)
        for shape in (part for whole in chosen for part in without_capsules(whole)):
            shown = _shown(shape, beside)
            if isinstance(shown, str):
                notes.append(f"link {link.name!r} is not shown as it is: {shown}")
                lacking.add(link.name)
            else:
                shapes.setdefault(link.name, []).append(shown)
    drawn = frozenset(shapes)
    wanted = lacking - drawn if drawn else None
    made = {name: found for name, found in stand_ins(description).items() if wanted is None or name in wanted}
    return Looks({**shapes, **made}, tuple(notes), drawn)


def _shown(shape: Written, beside: Path) -> Shape | str:
    """The shape as it is drawn, or why it is not."""
    file = mesh_file(shape.mesh, beside) if shape.kind == "mesh" else None
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

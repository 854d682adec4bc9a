"""Inertias of MJCF bodies, as written or from their shapes.

    inertiafromgeom   auto: of the shapes where there is no <inertial>; true: always of the shapes; false: never
    shapes            those whose group is in `inertiagrouprange`; each has its mass, or volume times density
    afterwards        boundmass, boundinertia, balanceinertia body by body, settotalmass over all of them

Mesh files are opened only for a body that has no other mass (`parsing/shapes.py`). A body that does not move is read
without mass if its mesh cannot be read: no motion depends on it, only loads, the centre of mass and parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from dyn_service.errors import DynError
from dyn_service.model.arrays import Vector
from dyn_service.model.description import Inertial, Note, Shape
from dyn_service.parsing import quantities
from dyn_service.parsing.mjcf.values import Settings, Values
from dyn_service.parsing.pose import Pose, turning_z_to
from dyn_service.parsing.quantities import Place
from dyn_service.parsing.shapes import FIRST_HIDDEN, SHELLS, SIZES, SOLIDS, Meshes, combined, stretched

LEAST = 1e-15
"""MuJoCo's mjMINVAL, kg: shapes with less mass are ignored."""

_WEIGHTLESS = ("plane", "hfield")
_UNKNOWN = ("mesh", "sdf")
_SHAPES = (*_WEIGHTLESS, *SOLIDS, *_UNKNOWN)


def written(values: Values, frame: Pose, place: Place, jointed: bool) -> Inertial:
    """Returns the inertia of an `<inertial>` element in a `<frame>` or a body.

    jointed: whether the body has a joint; if not, it may be a point mass without moments, as in MuJoCo.
    """
    for name in ("pos", "mass"):
        if name not in values.attributes:
            raise place.fault(f"the attribute '{name}' is missing")
    local_pose = values.pose()
    pose = frame @ local_pose
    mass = quantities.mass(values.number("mass", 0.0), place)
    full, diagonal = values.numbers("fullinertia", 6), values.numbers("diaginertia", 3)
    if full is not None:
        if local_pose.is_turned or diagonal is not None:
            other = "a diaginertia" if diagonal is not None else "an orientation"
            raise place.fault(f"there are both a fullinertia and {other}, expected one of them")
        # The diagonal first, as MuJoCo writes it; URDF's order is by rows.
        xx, yy, zz, xy, xz, yz = full
        return Inertial(mass, pose.origin, pose.rotation, quantities.inertia_of_moments([xx, xy, xz, yy, yz, zz]))
    if diagonal is None and jointed:
        raise place.fault("there is no diaginertia and no fullinertia, expected one of them")
    return Inertial(mass, pose.origin, pose.rotation, np.diag(np.zeros(3) if diagonal is None else diagonal))


def of_shapes(shapes: Iterable[tuple[Values, Pose]], meshes: Meshes, moves: bool) -> tuple[Inertial | None, list[Note]]:
    """Returns the inertia of the shapes of a body, each with the pose of its frame in the body.

    moves: whether the body moves; if not, a mesh that cannot be read has a note instead of an error.
    """
    parts: list[tuple[float, Pose, Vector]] = []
    for values, frame in shapes:
        weight = _shape(values, meshes, moves)
        if isinstance(weight, DynError):
            text = (
                f"read without mass, because the body does not move and {weight.message}; loads of fixed joints, "
                "centre of mass and parameters lack it: add an <inertial> to its body"
            )
            return None, [values.place.note("changed", text)]
        mass, pose, moments = weight
        if mass > LEAST:
            parts.append((mass, frame @ pose, moments))
    return combined(parts), []


def _shape(values: Values, meshes: Meshes, moves: bool) -> tuple[float, Pose, Vector] | DynError:
    """Returns mass, kg, pose in its frame, moments (3,) kg m^2; the error for an unread mesh of a still body."""
    settings, massless = values.settings, (0.0, Pose(), np.zeros(3))
    first, last = settings.groups
    if not first <= values.number("group", 0.0) <= last:
        return massless
    kind = values.choice("type", _SHAPES, "mesh" if values.text("mesh") else "sphere")
    mass_numbers = values.numbers("mass", 1)
    density = values.number("density", 1000.0)
    specified_mass = float(mass_numbers[0]) if mass_numbers is not None else None
    for quantity, number in (("mass", specified_mass or 0.0), ("density", density)):
        if number < 0.0:
            raise values.place.fault(f"the {quantity} is {number:g}, expected zero or more")
    if specified_mass == 0.0 or (specified_mass is None and density == 0.0) or kind in _WEIGHTLESS:
        return massless
    if kind in _UNKNOWN or values.text("mesh"):
        try:
            if kind != "mesh":
                text = f"the mass of a {kind} with a mesh is not supported: add an <inertial> to its body"
                raise values.place.fault(text)
            size, principal, moments = meshes.mass_properties(values.text("mesh") or "", values.place)
        except DynError as fault:
            if moves:
                raise
            return fault
        pose = values.pose() @ principal
    else:
        pose, sizes = _pose_and_sizes(values, kind)
        size, moments = (SHELLS if values.flag("shellinertia", False) else SOLIDS)[kind](*sizes)
    mass = density * size if specified_mass is None else specified_mass
    return mass, pose, mass * moments


def shape_of(values: Values, frame: Pose, meshes: Meshes, colours: Mapping[str, str]) -> Shape:
    """Returns the shape of a `<geom>`: visual if it collides with nothing, or is drawn by default (group 0 to 2)."""
    kind = values.choice("type", _SHAPES, "mesh" if values.text("mesh") else "sphere")
    if kind in ("hfield", "sdf") or (values.text("mesh") and kind != "mesh"):
        return Shape(unread=f"a {kind}{' fitted to a mesh' if values.text('mesh') else ''}, which is not read")
    size: tuple[float, ...] = ()
    mesh = ""
    if kind == "mesh":
        mesh, mesh_pose, size = meshes.file(values.text("mesh") or "", values.place)
        pose = values.pose() @ mesh_pose
    elif kind == "plane":
        pose = values.pose()
    else:
        pose, sizes = _pose_and_sizes(values, kind)
        size = stretched(kind, sizes, 2.0)
    # One of the two bits is enough: MuJoCo compares contype with the other geom's conaffinity, and the reverse.
    collides = bool(values.number("contype", 1.0) or values.number("conaffinity", 1.0))
    colour = values.text("rgba") or colours.get(values.text("material") or "")
    rgba = None if colour is None else tuple(quantities.decimals(colour, 4, "rgba", values.place).tolist())
    pose, is_visual = frame @ pose, not collides or values.number("group", 0.0) < FIRST_HIDDEN
    return Shape(kind, size, pose.origin, pose.rotation, is_visual, collides, rgba, mesh)  # type: ignore[arg-type]  # _SHAPES


def pose_of_ends(values: Values) -> Pose:
    """Returns the pose of a shape or site, by the two points of `fromto` if it has them."""
    ends = values.numbers("fromto", 6)
    if ends is None:
        return values.pose()
    axis = ends[:3] - ends[3:]
    length = float(np.linalg.norm(axis))
    if length < quantities.SHORTEST_AXIS:
        raise values.place.fault("attribute 'fromto': the two points are the same, expected different points")
    return Pose(turning_z_to(axis / length), (ends[:3] + ends[3:]) / 2.0)


def _pose_and_sizes(values: Values, kind: str) -> tuple[Pose, list[float]]:
    count = SIZES[kind]
    ends = values.numbers("fromto", 6)
    sizes = values.numbers("size", 1, 3)
    size_numbers = [] if sizes is None else sizes.tolist()
    if ends is None or kind == "sphere":
        pose = values.pose()
    else:
        pose = pose_of_ends(values)
        # The two points replace the last size, which is half the length.
        size_numbers = [*size_numbers[:1] * (count - 1), float(np.linalg.norm(ends[:3] - ends[3:])) / 2.0]
    shape_sizes = size_numbers[:count]
    if len(shape_sizes) < count or not all(size > 0.0 for size in shape_sizes):
        actual = " ".join(f"{size:g}" for size in size_numbers) or "none"
        raise values.place.fault(f"attribute 'size': a {kind} needs {count} positive numbers, found {actual}")
    return pose, shape_sizes


def corrected(
    inertial: Inertial | None, settings: Settings, place: Place, pos: Vector
) -> tuple[Inertial | None, list[Note]]:
    """Applies `boundmass`, `boundinertia` and `balanceinertia` of `<compiler>`, with a note on each change. The mass of
    a body without inertia is at the body's `pos`, m, taken in its own frame, as in MuJoCo 4.
    """
    if not (settings.least_mass or settings.least_inertia or settings.balance):
        return inertial, []
    inertial = inertial or Inertial(0.0, pos, np.eye(3), np.zeros((3, 3)))
    notes: list[Note] = []
    mass = inertial.mass
    if mass < settings.least_mass:
        notes.append(place.note("changed", f"mass {mass:g} raised to {settings.least_mass:g} kg by boundmass"))
        mass = settings.least_mass
    # Bounds are for principal moments; the entries of a matrix may be small in any other axes.
    moments, axes = np.linalg.eigh(inertial.inertia)
    if moments[0] < settings.least_inertia:
        text = f"moments of inertia raised to {settings.least_inertia:g} kg m^2 by boundinertia"
        notes.append(place.note("changed", text))
        moments = np.maximum(moments, settings.least_inertia)
    if settings.balance and moments[0] + moments[1] < moments[2]:
        text = f"moments of inertia made equal, {moments.mean():g} kg m^2, by balanceinertia"
        notes.append(place.note("changed", text))
        moments = np.full(3, moments.mean())
    # Unchanged if nothing was raised: an inertia from its eigenvectors has other last bits.
    if not notes:
        return inertial, []
    return Inertial(mass, inertial.com, inertial.rotation @ axes, np.diag(moments)), notes


def scaled(inertials: dict[str, Inertial | None], total: float, place: Place) -> list[Note]:
    """Scales all masses and inertias to a total mass of `total` kg (`settotalmass`)."""
    mass = sum(inertial.mass for inertial in inertials.values() if inertial is not None)
    if total <= 0.0 or mass <= 0.0:
        return []
    factor = total / mass
    for name, inertial in inertials.items():
        if inertial is not None:
            inertials[name] = Inertial(
                inertial.mass * factor, inertial.com, inertial.rotation, inertial.inertia * factor
            )
    return [place.note("changed", f"masses and inertias times {factor:g}: settotalmass is {total:g} kg")]

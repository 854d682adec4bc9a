"""What links of SDFormat weigh: as written, 1 kg and unit inertia where nothing is, or of their collisions where they
ask.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np

from dyn_service.model.arrays import Vector
from dyn_service.model.description import Inertial, Note, Shape
from dyn_service.parsing import quantities
from dyn_service.parsing.mjcf.values import turning_z_to
from dyn_service.parsing.places import Place
from dyn_service.parsing.pose import Pose
from dyn_service.parsing.sdf.values import number, numbers, one, pose, word
from dyn_service.parsing.solids import SOLIDS, Solid, stretched, together
from dyn_service.parsing.unread import Unread
from dyn_service.parsing.xml_elements import Element

MOMENTS = {"ixx": 1.0, "ixy": 0.0, "ixz": 0.0, "iyy": 1.0, "iyz": 0.0, "izz": 1.0}
"""With what the format says where nobody does, kg m^2."""

_WATERS = "fluid_added_mass"
_INERTIAL = ("pose", "mass", "inertia", "density", "auto_inertia_params", _WATERS)

MASS = 1.0
"""kg, likewise."""

WATER = 1000.0
"""kg/m^3, the density of what asks for its inertia and names none."""


Weigh = Callable[[Element, Place], tuple[float, Pose, Vector]]
"""Returns the volume of a `<mesh>`, m^3, the frame of its principal axes, and the moments of one kilogram."""


def inertial(link: Element, place: Place, notes: list[Note], unread: Unread, weigh: Weigh) -> Inertial:
    """Of a `<link>`; `notes` gets what was defaulted, `unread` what is not read.

    Raises:
        UrdfError: The mass is negative, or would be that of a shape which is not read.
    """
    element = one(link, "inertial", place)
    if element is None:
        notes.append(place.note("defaulted", "no <inertial>: 1 kg and unit inertia are taken, as the format says"))
        return Inertial(MASS, np.zeros(3), np.eye(3), np.eye(3))
    place = place.inside("inertial", element.line)
    unread.keep(element, _INERTIAL, ("auto",))
    if element.all(_WATERS):
        notes.append(place.note("reported", f"<{_WATERS}>: what moves with it of a fluid does not act here"))
    if element.attributes.get("auto", "false") in ("true", "1"):
        return _of_collisions(link, element, place, notes, weigh)
    at = pose(element, place, notes)
    if not element.all("mass"):
        notes.append(place.note("defaulted", f"no <mass>: {MASS:g} kg is taken, as the format says"))
    mass = quantities.mass(number(element, "mass", MASS, place), place)
    moments = one(element, "inertia", place)
    if moments is not None:
        unread.keep(moments, tuple(MOMENTS), ())
    missing = [name for name, value in MOMENTS.items() if value and not (moments and moments.all(name))]
    if missing:
        text = f"no {', '.join(missing)}: 1 kg m^2 is taken, as the format says"
        notes.append(place.note("defaulted", text))
    values = [number(moments, name, default, place.inside("inertia")) for name, default in MOMENTS.items()]
    return Inertial(mass, at.origin, at.rotation, quantities.inertia_of_moments(values))


def _of_collisions(link: Element, element: Element, place: Place, notes: list[Note], weigh: Weigh) -> Inertial:
    density = number(element, "density", WATER, place)
    parts: list[tuple[float, Pose, Vector]] = []
    for collision in link.all("collision"):
        inside = place.inside("collision", collision.line)
        geometry, at = one(collision, "geometry", inside), pose(collision, inside, notes)
        mesh = None if geometry is None else one(geometry, "mesh", inside)
        if mesh is None:
            size, moments = _solid(geometry, inside)
        else:
            size, principal, moments = weigh(mesh, inside)
            at = at @ principal
        mass = number(collision, "density", density, inside) * size
        parts.append((mass, at, mass * moments))
    whole = together(parts)
    if whole is None or not whole.mass > 0.0:
        raise place.fault("its inertia is to be that of its collisions, and they weigh nothing")
    text = f"of {len(parts)} collisions, as auto asks: {whole.mass:g} kg"
    notes.append(place.note("defaulted", text))
    return whole


def _solid(geometry: Element | None, place: Place) -> Solid:
    shapes = [] if geometry is None else [child for child in geometry.children if child.tag in SOLIDS]
    if len(shapes) != 1:
        known = ", ".join((*SOLIDS, "mesh"))
        raise place.fault(f"its inertia is asked of a shape that is not read, expected one of {known}")
    (shape,) = shapes
    sizes = _sizes(shape, place)
    if not all(size > 0.0 for size in sizes):
        raise place.fault(f"<{shape.tag}>: expected sizes that are more than 0")
    return SOLIDS[shape.tag](*sizes)


def _sizes(shape: Element, place: Place) -> Sequence[float]:
    if shape.tag == "box":
        return [float(side) / 2.0 for side in numbers(shape, "size", (1.0, 1.0, 1.0), place)]
    if shape.tag == "ellipsoid":
        return numbers(shape, "radii", (1.0, 1.0, 1.0), place).tolist()  # type: ignore[no-any-return]
    radius = number(shape, "radius", 1.0, place)
    return [radius] if shape.tag == "sphere" else [radius, number(shape, "length", 1.0, place) / 2.0]


def shape_of(element: Element, at: Pose, place: Place, beside: str) -> Shape:
    """The shape of a `<visual>` or `<collision>`; its roles are put in by the caller.

    Args:
        element: The element.
        at: Its pose in the link's frame.
        place: For faults.
        beside: The included file that it is in, from which paths of meshes are relative; "": the robot's own file.
    """
    geometry, material = one(element, "geometry", place), one(element, "material", place)
    rgba = None if material is None else tuple(numbers(material, "diffuse", (1.0, 1.0, 1.0, 1.0), place).tolist())
    for child in geometry.children if geometry is not None else ():
        if child.tag in SOLIDS:
            size = stretched(child.tag, _sizes(child, place), 2.0)
            return Shape(child.tag, size, at.origin, at.rotation, rgba=rgba)  # type: ignore[arg-type]  # is in SOLIDS
        if child.tag == "plane":
            normal = quantities.unit_axis(numbers(child, "normal", (0.0, 0.0, 1.0), place), place, [])
            return Shape("plane", (), at.origin, at.rotation @ turning_z_to(normal), rgba=rgba)
        if child.tag == "mesh" and not child.all("submesh"):
            uri = word(child, "uri", "", place)
            if beside and "://" not in uri:
                uri = os.path.join(os.path.dirname(os.path.abspath(beside)), uri)
            scale = tuple(numbers(child, "scale", (1.0, 1.0, 1.0), place).tolist())
            return Shape("mesh", scale, at.origin, at.rotation, rgba=rgba, mesh=uri)
    found = ", ".join(f"<{child.tag}>" for child in geometry.children) if geometry is not None else "nothing"
    return Shape(unread=f"its geometry is {found}, expected one of {', '.join(SOLIDS)}, plane, mesh without submesh")

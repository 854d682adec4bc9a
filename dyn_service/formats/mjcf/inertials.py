"""What bodies of MJCF weigh: as written, or of the shapes that are attached to them.

    inertiafromgeom   auto: of the shapes where there is no <inertial>; true: always of the shapes; false: never
    shapes            those whose group is in `inertiagrouprange`; each has its mass, or volume times density
    afterwards        boundmass, boundinertia, balanceinertia body by body, settotalmass over all of them

Meshes are not read, so what a body has of them cannot be known: it is refused, unless it never moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dyn_service.formats.mjcf.values import Settings, Values, turning_z_to
from dyn_service.formats.pose import Pose
from dyn_service.formats.solids import SHELLS, SIZES, SOLIDS
from dyn_service.model.arrays import Vector
from dyn_service.model.description import Inertial, Note
from dyn_service.urdf import quantities
from dyn_service.urdf.places import Place

LEAST = 1e-15
"""MuJoCo's mjMINVAL, kg: shapes of less mass count for nothing."""

_WEIGHTLESS = ("plane", "hfield")
_UNKNOWN = ("mesh", "sdf")
_SHAPES = (*_WEIGHTLESS, *SOLIDS, *_UNKNOWN)


def written(values: Values, frame: Pose, place: Place) -> Inertial:
    """Of an `<inertial>` element that stands in a `<frame>`, or in the body itself.

    Raises:
        UrdfError: A mass or the moments are missing, or negative; or full moments and an orientation are given.
    """
    for name in ("pos", "mass"):
        if name not in values.own:
            raise place.fault(f"the attribute '{name}' is missing")
    own = values.pose()
    pose = frame @ own
    mass = quantities.mass(values.number("mass", 0.0), place)
    full, diagonal = values.numbers("fullinertia", 6), values.numbers("diaginertia", 3)
    if full is not None:
        if own.is_turned or diagonal is not None:
            other = "a diaginertia" if diagonal is not None else "an orientation"
            raise place.fault(f"there are both a fullinertia and {other}, expected one of them")
        xx, yy, zz, xy, xz, yz = full
        return Inertial(mass, pose.origin, pose.rotation, quantities.inertia_of_moments([xx, xy, xz, yy, yz, zz]))
    if diagonal is None:
        raise place.fault("there is no diaginertia and no fullinertia, expected one of them")
    return Inertial(mass, pose.origin, pose.rotation, np.diag(diagonal))


def of_shapes(shapes: Iterable[tuple[Values, Pose]], *, moves: bool) -> tuple[Inertial | None, list[Note]]:
    """Of the shapes of a body, each with where the frame that it is given in stands in the body's.

    Args:
        shapes: Its `<geom>` elements.
        moves: Whether anything depends on it.

    Raises:
        UrdfError: It moves, and a shape's mass cannot be known.
    """
    parts: list[tuple[float, Pose, Vector]] = []
    for values, frame in shapes:
        found = _shape(values)
        if found is None:
            if moves:
                raise values.place.fault(
                    "its mass is not known, being that of a mesh or of a thin ellipsoid: give its body an "
                    "<inertial>, or it the mass 0"
                )
            text = "its mass is not known, being that of a mesh or of a thin ellipsoid; the body does not move"
            return None, [values.place.note("reported", text)]
        mass, pose, moments = found
        if mass > LEAST:
            parts.append((mass, frame @ pose, moments))
    return _together(parts), []


def _shape(values: Values) -> tuple[float, Pose, Vector] | None:
    """Mass, kg, pose in its frame, moments (3,) kg m^2; None where they cannot be known."""
    settings, nothing = values.settings, (0.0, Pose(), np.zeros(3))
    first, last = settings.groups
    if not first <= values.number("group", 0.0) <= last:
        return nothing
    kind = values.choice("type", _SHAPES, "mesh" if values.text("mesh") else "sphere")
    given = values.numbers("mass", 1)
    density = values.number("density", 1000.0)
    weighs = float(given[0]) if given is not None else None
    for what, number in (("mass", weighs or 0.0), ("density", density)):
        if number < 0.0:
            raise values.place.fault(f"the {what} is {number:g}, expected zero or more")
    if weighs == 0.0 or (weighs is None and density == 0.0) or kind in _WEIGHTLESS:
        return nothing
    if kind in _UNKNOWN or values.text("mesh"):
        return None
    pose, sizes = _placed(values, kind)
    shell = values.flag("shellinertia", False)
    if shell and kind not in SHELLS:
        return None
    solid = (SHELLS if shell else SOLIDS)[kind](*sizes)
    mass = density * solid.size if weighs is None else weighs
    return mass, pose, mass * solid.moments


def _placed(values: Values, kind: str) -> tuple[Pose, list[float]]:
    """Where a shape stands in its frame, and its sizes."""
    count = SIZES[kind]
    ends = values.numbers("fromto", 6)
    sizes = values.numbers("size", 1, 3)
    given = [] if sizes is None else sizes.tolist()
    if ends is None or kind == "sphere":
        pose = values.pose()
    else:
        along = ends[:3] - ends[3:]
        length = float(np.linalg.norm(along))
        if length < quantities.SHORTEST_AXIS:
            raise values.place.fault("attribute 'fromto': the two points are the same, expected two")
        pose = Pose(turning_z_to(along / length), (ends[:3] + ends[3:]) / 2.0)
        given = [*given[:1] * (count - 1), length / 2.0]
    sizes_of = given[:count]
    if len(sizes_of) < count or not all(size > 0.0 for size in sizes_of):
        found = " ".join(f"{size:g}" for size in given) or "none"
        raise values.place.fault(f"attribute 'size': a {kind} has {count} that are more than 0, found {found}")
    return pose, sizes_of


def _together(parts: Sequence[tuple[float, Pose, Vector]]) -> Inertial | None:
    if not parts:
        return None
    if len(parts) == 1:
        mass, pose, moments = parts[0]
        return Inertial(mass, pose.origin, pose.rotation, np.diag(moments))
    total = sum(mass for mass, _, _ in parts)
    com = np.sum([mass * pose.origin for mass, pose, _ in parts], axis=0) / total
    about = np.zeros((3, 3))
    for mass, pose, moments in parts:
        away = pose.origin - com
        about += pose.rotation @ np.diag(moments) @ pose.rotation.T
        about += mass * (away @ away * np.eye(3) - np.outer(away, away))
    return Inertial(total, com, np.eye(3), (about + about.T) / 2.0)


def corrected(inertial: Inertial | None, settings: Settings, place: Place) -> tuple[Inertial | None, list[Note]]:
    """As `boundmass`, `boundinertia` and `balanceinertia` of `<compiler>` have it, with a note on each that did
    something.
    """
    if not (settings.least_mass or settings.least_inertia or settings.balance):
        return inertial, []
    inertial = inertial or Inertial(0.0, np.zeros(3), np.eye(3), np.zeros((3, 3)))
    notes: list[Note] = []
    mass = inertial.mass
    if mass < settings.least_mass:
        notes.append(place.note("changed", f"mass {mass:g} raised to {settings.least_mass:g} kg by boundmass"))
        mass = settings.least_mass
    moments, axes = np.linalg.eigh(inertial.inertia)
    if moments[0] < settings.least_inertia:
        text = f"moments of inertia raised to {settings.least_inertia:g} kg m^2 by boundinertia"
        notes.append(place.note("changed", text))
        moments = np.maximum(moments, settings.least_inertia)
    if settings.balance and moments[0] + moments[1] < moments[2]:
        notes.append(
            place.note("changed", f"moments of inertia made equal, {moments.mean():g} kg m^2, by balanceinertia")
        )
        moments = np.full(3, moments.mean())
    if not notes:
        return inertial, []
    return Inertial(mass, inertial.com, inertial.rotation @ axes, np.diag(moments)), notes


def scaled(inertials: dict[str, Inertial | None], total: float, place: Place) -> list[Note]:
    """Changes all so that they weigh `total` kg together, as `settotalmass` has it."""
    mass = sum(each.mass for each in inertials.values() if each is not None)
    if total <= 0.0 or mass <= 0.0:
        return []
    by = total / mass
    for name, each in inertials.items():
        if each is not None:
            inertials[name] = Inertial(each.mass * by, each.com, each.rotation, each.inertia * by)
    return [place.note("changed", f"masses and inertias times {by:g}: settotalmass is {total:g} kg")]

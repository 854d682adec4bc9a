"""Findings of `dyn check` that need more than the description: shapes and mesh files, controllers, a claimed mass.

A body of mass m and inertia I about its centre of mass has the mean squared radius

    k^2 = tr I / (2 m)

which for a box a, b, c filled evenly is (a^2 + b^2 + c^2) / 12, and for any body is at most the squared distance from
the centre of mass to the farthest corner of a box that contains it. The box here is that of all visual and collision
shapes of the link and of the links welded to it.

A lost decimal point or a wrong unit is a power of ten. The repair is unambiguous if one power of ten of `SLIPS`, and no
other, turns k^2 into one that fits the box.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from dyn_service.model.arrays import Vector
from dyn_service.model.description import Description, Edit, Inertial, Link, Note, Shape, outward
from dyn_service.model.inertia import principal_moments
from dyn_service.parsing.quantities import Elsewhere, Place, listed, named, quoted
from dyn_service.parsing.rules import RULES
from dyn_service.parsing.shapes import MAX_BYTES, MESHES, mesh_candidates, mesh_parts, stretched
from dyn_service.parsing.structure import (
    CENTRED,
    FAINT_SHARE,
    LIGHT_SHARE,
    LONG_M,
    OSMIUM_KG_M3,
    SMALLEST_M,
    STEEL_KG_M3,
    Doubt,
    is_left,
    is_stand_in,
    other_side,
)
from dyn_service.support.documents import Document
from dyn_service.support.optional import missing
from dyn_service.support.suggestions import closest, known_instead

BEYOND, BELOW = 5.0, 0.05
"""k^2 relative to the largest possible one, above which a link has too much inertia: inertias identified from motions,
such as the Panda's, are up to 3.4 times as large, because motions show sums only; other links have up to 0.5. k^2
relative to that of the filled box, below which it has too little: of 251 links with meshes the least has 0.23."""
FITTING = (0.3, 1.7)
"""k^2 of correct links relative to that of the filled box: 97 % of the same links."""
SLIPS = (-9, -6, -3, 3, 4, 6, 7, 9)
"""Powers of ten of lost decimal points and of moments in kg cm^2 (4), kg mm^2 (6), g cm^2 (7), g mm^2 (9)."""
UNIT_SLIPS = (4, 7)
"""Those that only a unit causes; they are a single power of ten from another one."""
OUTSIDE = 0.5
"""Distance of a centre of mass from its box, relative to the box's diagonal, from which it is doubted; of the same
links the largest is 0.2."""
HYDROGEN_KG_M3 = 0.08
"""kg/m^3 in the box, below which a mass is doubted; balloons of a simulator have 0.082. The same links have 105 to
4222."""
UNEQUAL = 5.0
"""Ratio of masses, or of k^2, of links on two sides from which they are doubted."""
FEWEST_PAIRS = 4
"""Least number of pairs of links that show whether a robot is symmetric: fewer may be alike by chance."""
MIRRORED, UNMIRRORED = (0.1, 1.02), (0.5, 1.1)
"""Distance from the mirror image relative to the radius of gyration, and ratio of masses: up to the first a pair is
symmetric, from the second on it is doubted. In most humanoids and quadrupeds nine pairs of ten are within the first."""
SYMMETRIC = 2.0 / 3.0
"""Share of symmetric pairs from which a robot is meant to be symmetric."""
LONGER = 100.0
"""Length of a mesh relative to the robot's longest distance from which it is in millimetres."""
CLAIM = 0.05
"""Relative difference of masses that payload adapters and cables explain."""
NEAR = 0.8
"""Likeness from which a mesh file is proposed; their names share an ending."""
EQUAL = 0.02
"""Relative difference of moments of inertia that are the same number, rounded."""
_CORNERS = np.array([[x, y, z] for x in (-1.0, 1.0) for y in (-1.0, 1.0) for z in (-1.0, 1.0)])
_REFINED = ("too-much-inertia", "too-little-inertia", "inertia-beyond-shapes")
_BY_SHAPES = (*_REFINED, "inertia-below-shapes")
_DIAGONAL = ("ixx", "iyy", "izz")


@dataclass(frozen=True)
class Box:
    """The box around points, (3,) m each; None in `boxes` if one of the shapes is not known."""

    lower: Vector
    upper: Vector

    @property
    def size(self) -> Vector:
        """Its edges, (3,) m."""
        return self.upper - self.lower

    @property
    def centre(self) -> Vector:
        """Its middle, (3,) m."""
        return (self.lower + self.upper) / 2.0

    @property
    def squared_radius(self) -> float:
        """k^2 of the filled box, m^2."""
        return float(self.size @ self.size) / 12.0

    def largest_squared_radius(self, com: Vector) -> float:
        """Returns the largest k^2 of a body within the box, m^2: a coordinate between l and u with mean c has at most
        the variance (u - c)(c - l) (Bhatia and Davis 2000).
        """
        return float((self.upper - com) @ (com - self.lower))

    def farthest(self, point: Vector) -> float:
        """Returns the squared distance to the farthest corner, m^2."""
        reach = np.maximum(np.abs(point - self.lower), np.abs(self.upper - point))
        return float(reach @ reach)

    def distance(self, point: Vector) -> float:
        """Returns the distance of a point outside, m; 0 inside."""
        return float(np.linalg.norm(np.maximum(np.maximum(self.lower - point, point - self.upper), 0.0)))


@dataclass
class Vertices:
    """Vertices of mesh files, by path; at most `MAX_BYTES` are read for a robot."""

    remaining: int = MAX_BYTES
    by_path: dict[Path, Vector | None] = field(default_factory=dict)
    library: str = "" if find_spec("trimesh") else missing("comparing inertias with meshes", "trimesh")
    """Why no mesh is opened, or ""."""

    def read(self, path: Path) -> Vector | None:
        """Returns the vertices (N, 3) of a file; None if it cannot be read."""
        if path not in self.by_path:
            self.by_path[path] = self._read(path)
        return self.by_path[path]

    def _read(self, path: Path) -> Vector | None:
        if self.library or path.stat().st_size > self.remaining:
            return None
        logger = logging.getLogger("trimesh")  # it reports textures, which are not opened
        self.remaining -= path.stat().st_size
        try:
            logger.disabled = True
            vertices = np.concatenate([np.asarray(part.vertices, dtype=np.float64) for part in mesh_parts(path)])
        except Exception:  # noqa: BLE001  trimesh's readers raise what they like
            return None
        finally:
            logger.disabled = False
        return vertices if len(vertices) and np.isfinite(vertices).all() else None


def findings(notes: Iterable[Note], description: Description, folder: Path | None) -> list[Note]:
    """Returns the notes, with repairs that shapes show, and further findings. folder: of the robot's file; None: no
    mesh is opened.
    """
    vertices = Vertices()
    with np.errstate(all="ignore"):
        own_boxes = {link.name: _box(_points(link.shapes, folder, vertices)) for link in description.links}
        # Next to a mesh, other shapes are for contacts, and may be those of a neighbour.
        mesh_boxes = {link.name: _box(_points(_body(link), folder, vertices)) for link in description.links}
        longest = max((float(np.linalg.norm(joint.xyz)) for joint in description.joints), default=0.0)
        doubts = {link.name: _mesh_doubts(link, longest, folder, own_boxes) for link in description.links}
        boxes = _welded_boxes(description, own_boxes)
        total = sum(link.inertial.mass for link in description.links if link.inertial)
        links = {link.name: link for link in description.links}
        boxes = {name: box if _shows_size(links[name], box, total) else None for name, box in boxes.items()}
        by_element = {named("link", name): link for name, link in links.items()}
        with_links = [(note, by_element.get(note.element) if note.rule else None) for note in notes]
        refined = [_refined(note, x, links, boxes) for note, x in with_links if not _fits_shapes(note, x, boxes)]
        # One mistake is one finding.
        doubtful = {note.element for note in refined if note.rule in RULES and RULES[note.rule].number < "DYN111"}
        for name, link in links.items():
            box, element = boxes[name], named("link", name)
            if link.inertial is not None and link.inertial.mass > FAINT_SHARE * total and element not in doubtful:
                if box is not None:
                    doubts[name] += _shape_doubts(name, link.inertial, box, own_boxes[name] and mesh_boxes[name])
                doubts[name] += _asymmetries(link, links, total)
        for name, doubt in _unmirrored(description, links, total):
            doubts[name] += [] if any(x.rule == "asymmetric-mass" for x in doubts[name]) else [doubt]
    place = Place(description.source)
    if vertices.library and vertices.by_path:
        refined.append(replace(place, element=named("robot", description.name)).note("reported", vertices.library))
    refined += [
        replace(place, element=named("link", name), line=links[name].line).warning(*doubt)
        for name, link_doubts in doubts.items()
        for doubt in link_doubts
    ]
    return _agreeing(refined, sum(link.inertial is not None for link in description.links))


def _agreeing(notes: Sequence[Note], inertials: int) -> list[Note]:
    """Returns the notes without edits of moments that other links contradict: a link whose correct inertia is far from
    that of its box (the calf of Unitree's A1: 5.5 times) has another power of ten than the others.

    Kept is the most frequent power, if it is that of most findings on moments; those of units, which are next to
    another one, only if they are that of most links.
    """
    factors = Counter(edit.factor for note in notes if note.rule in _BY_SHAPES for edit in note.edits)
    (factor, count), (_, second_count) = [*factors.most_common(2), (1.0, 0), (1.0, 0)][:2]
    is_unit = -round(math.log10(factor)) in UNIT_SLIPS
    doubted = sum(note.rule in _BY_SHAPES and note.kind == "warning" for note in notes)
    agreed = count > second_count and 2 * count >= doubted and (not is_unit or 2 * count > inertials)

    def contradicted(note: Note) -> bool:
        return note.rule in _BY_SHAPES and not (agreed and all(edit.factor == factor for edit in note.edits))

    return [replace(note, edits=()) if note.edits and contradicted(note) else note for note in notes]


def _shows_size(link: Link, box: Box | None, total: float) -> bool:
    """Whether a link's shapes show its size; boxes and spheres of light links often only show where a frame is."""
    if box is None or link.inertial is None or float(np.linalg.norm(box.size)) < SMALLEST_M:
        return False
    return link.inertial.mass > LIGHT_SHARE * total or any(shape.kind == "mesh" for shape in link.shapes)


def _body(link: Link) -> Sequence[Shape]:
    """Returns the meshes of a link, or all shapes if it has none."""
    return [shape for shape in link.shapes if shape.kind == "mesh"] or link.shapes


def _points(shapes: Sequence[Shape], folder: Path | None, vertices: Vertices) -> Vector | None:
    """Returns points (N, 3), m, in the link's frame, whose box contains the shapes; None if one is unknown."""
    parts = [np.zeros((0, 3))]
    for shape in shapes:
        if shape.unread or shape.kind == "plane":
            return None
        if shape.kind == "mesh":
            files = [] if folder is None else [path for path in mesh_candidates(shape.mesh, folder) if path.is_file()]
            mesh = vertices.read(files[0]) if files and files[0].suffix.lower() in MESHES else None
            if mesh is None:
                return None
            points = mesh * np.array(shape.size)
        else:
            a, *lengths = stretched(shape.kind, shape.size, 0.5)
            half_edges = {"sphere": (a, a, a), "cylinder": (a, a, *lengths), "capsule": (a, a, a + sum(lengths))}
            points = _CORNERS * np.array(half_edges.get(shape.kind, (a, *lengths)))
        parts.append(points @ shape.rotation.T + shape.xyz)
    return np.concatenate(parts)


def _box(points: Vector | None) -> Box | None:
    return None if points is None or not len(points) else Box(points.min(axis=0), points.max(axis=0))


def _welded_boxes(description: Description, link_boxes: Mapping[str, Box | None]) -> dict[str, Box | None]:
    """Returns the box of each link with the links that fixed joints weld to it and that have no inertial of their own,
    whose mass it has; None if shapes are unknown or there are no shapes.
    """
    links = {link.name: link for link in description.links}
    inboard = {joint.child: joint for joint in description.joints}
    boxes = dict(link_boxes)
    for name in reversed(outward(description)):
        joint = inboard.get(name)
        if joint is None or joint.moves.nv or links[name].inertial is not None or not links[name].shapes:
            continue
        child, parent = boxes[name], boxes[joint.parent]
        if child is None or parent is None:
            boxes[joint.parent] = None if links[joint.parent].shapes or child is None else child
            continue
        corners = _CORNERS * child.size / 2.0 + child.centre
        points = corners @ joint.rotation.T + joint.xyz
        boxes[joint.parent] = _box(np.vstack([points, parent.lower, parent.upper]))
    return boxes


def _filled(mass: float, box: Box) -> str:
    x, y, z = box.size**2
    return ", ".join(f"{mass * moment / 12.0:.3g}" for moment in sorted((x + y, y + z, z + x)))


def _squared_radius(inertial: Inertial) -> float:
    return float(np.trace(inertial.inertia)) / (2.0 * inertial.mass)


def _slip(ratio: float) -> int:
    """Returns the power of ten by which k^2 is too large, from its ratio to that of the box; 0 if none of `SLIPS`."""
    # At most one fits: the limits of `FITTING` are less than a power of ten apart.
    return next((n for n in SLIPS if FITTING[0] <= ratio * 10.0**-n <= FITTING[1]), 0)


def _is_placeholder(inertial: Inertial) -> bool:
    """Whether the moments are 0 or one number of one digit, such as 0.001, 0.03 or 1: they have no digits to keep."""
    moments = np.unique(np.diag(inertial.inertia)[np.diag(inertial.inertia) > 0.0])
    return len(moments) == 1 and float(f"{moments[0]:.0e}") == float(f"{moments[0]:.9e}")


def _inertia_repair(name: str, inertial: Inertial, box: Box) -> tuple[str, tuple[Edit, ...]]:
    moments = f"principal moments near {_filled(inertial.mass, box)} kg m^2 fit the box of its shapes"
    dense = inertial.mass > OSMIUM_KG_M3 * float(box.size.prod())
    slip = 0 if dense or _is_placeholder(inertial) else _slip(_squared_radius(inertial) / box.squared_radius)
    if not slip or not _share_slip(inertial, box, slip):
        return moments, ()
    return f"multiply its moments by {10.0**-slip:g}: {moments}", (Edit("link", name, "inertia", 10.0**-slip),)


def _share_slip(inertial: Inertial, box: Box, slip: int) -> bool:
    """Whether each principal moment is implausible in the box by itself: a repair of all spoils a correct one."""
    moments = principal_moments(inertial.inertia)
    if slip > 0:
        reach = np.maximum(np.abs(inertial.com - box.lower), np.abs(inertial.com - box.upper)) ** 2
        return bool((moments > BEYOND * inertial.mass * np.sort(reach.sum() - reach)).all())
    evenly = inertial.mass * np.sort(box.size @ box.size - box.size**2) / 12.0
    return bool((moments < BELOW * evenly).all())


def _fits_shapes(note: Note, link: Link | None, boxes: Mapping[str, Box | None]) -> bool:
    """Whether a link's shapes contradict a note: moments too large for its boxes, cylinders, .. are possible within its
    meshes, or a mass too large for distances between joints is possible within its shapes.
    """
    box = None if link is None else boxes[link.name]
    if link is None or link.inertial is None or box is None:
        return False
    if note.rule == "masses-in-grams":
        return link.inertial.mass < STEEL_KG_M3 * float(box.size.prod())
    if note.rule != "inertia-beyond-shapes" or _body(link) == link.shapes:
        return False
    return _squared_radius(link.inertial) <= box.largest_squared_radius(link.inertial.com)


def _refined(note: Note, link: Link | None, links: Mapping[str, Link], boxes: Mapping[str, Box | None]) -> Note:
    """Returns a note on the inertia of a link with the repair that its shapes or the other side show."""
    if link is None or link.inertial is None or link.inertial.mass <= 0.0:
        return note
    if note.rule == "impossible-inertia":
        twin = links.get(other_side(link.name))
        return _repaired_moment(note, link.name, link.inertial, twin.inertial if twin else None)
    box = boxes[link.name]
    if note.rule not in _REFINED or box is None or not box.squared_radius > 0.0:
        return note
    repair, edits = _inertia_repair(link.name, link.inertial, box)
    return replace(note, repair=repair, edits=edits)


def _repaired_moment(note: Note, name: str, inertial: Inertial, twin: Inertial | None) -> Note:
    """Returns the note with the repair of one moment that is a power of ten off that of the link on the other side."""
    if twin is None or twin is inertial or abs(twin.mass - inertial.mass) > EQUAL * inertial.mass:
        return note
    moments, twin_moments = np.diag(inertial.inertia), np.diag(twin.inertia)
    wrong = [k for k in range(3) if abs(moments[k] - twin_moments[k]) > EQUAL * abs(twin_moments[k])]
    if len(wrong) != 1 or not moments[wrong[0]] > 0.0 or not twin_moments[wrong[0]] > 0.0:
        return note
    slip = math.log10(moments[wrong[0]] / twin_moments[wrong[0]])
    if not round(slip) or abs(slip - round(slip)) > EQUAL:
        return note
    quantity, factor = _DIAGONAL[wrong[0]], 10.0 ** -round(slip)
    repair = f"multiply {quantity} by {factor:g}: the link on the other side has {twin_moments[wrong[0]]:.4g} kg m^2"
    return replace(note, repair=repair, edits=(Edit("link", name, quantity, factor),))


def _shape_doubts(name: str, inertial: Inertial, box: Box, own_box: Box | None) -> Iterator[Doubt]:
    mass, radius = inertial.mass, _squared_radius(inertial)
    size = " x ".join(f"{edge:.3g}" for edge in box.size)
    volume = float(box.size.prod())
    density = mass / volume if volume > 0.0 else STEEL_KG_M3
    if not HYDROGEN_KG_M3 < density < OSMIUM_KG_M3:
        comparison = "denser than any matter" if density > STEEL_KG_M3 else "thinner than hydrogen"
        text = f"{mass:g} kg in a box of {size} m, that of its shapes, has {density:.3g} kg/m^3: {comparison}"
        yield Doubt("mass-beyond-shapes", text, f"water in this box has {1e3 * volume:.3g} kg")
    distance = box.distance(inertial.com)
    if distance > OUTSIDE * float(np.linalg.norm(box.size)):
        centre = ", ".join(f"{x:.3g}" for x in box.centre)
        text = f"the centre of mass is {distance:.3g} m outside the box of its shapes, {size} m"
        yield Doubt("centre-outside-shapes", text, f"the middle of the box is ({centre}) m")
        return
    if is_stand_in(inertial) or not radius > 0.0 or not box.squared_radius > 0.0:
        return
    trace = f"its moments have a trace of {2.0 * mass * radius:.3g} kg m^2"
    # Moments about a centre far from that of the shapes may be identified from motions, which show sums only.
    centred = float(np.linalg.norm(inertial.com - box.centre)) < CENTRED * math.sqrt(box.squared_radius)
    largest = box.largest_squared_radius(inertial.com) if centred else box.farthest(inertial.com)
    if radius > (1.0 if centred else BEYOND) * largest:
        text = f"{trace}, and {mass:g} kg within its shapes, {size} m, have at most {2.0 * mass * largest:.3g} kg m^2"
        yield Doubt("inertia-beyond-shapes", text, *_inertia_repair(name, inertial, box))
    elif own_box is not None and radius < BELOW * own_box.squared_radius:
        filled_trace = 2.0 * mass * own_box.squared_radius
        text = f"{trace}, and {mass:g} kg that fill its shapes, {size} m, have {filled_trace:.3g} kg m^2"
        yield Doubt("inertia-below-shapes", text, *_inertia_repair(name, inertial, own_box))


def _asymmetries(link: Link, links: Mapping[str, Link], total: float) -> Iterator[Doubt]:
    """Yields a doubt if the link is the lighter one of two sides by a factor, or has far less inertia."""
    twin = links.get(other_side(link.name))
    if twin is None or twin is link or link.inertial is None or twin.inertial is None:
        return
    mass, twin_mass = link.inertial.mass, twin.inertial.mass
    if mass * UNEQUAL < twin_mass and twin_mass > LIGHT_SHARE * total:
        text = f"mass {mass:g} kg, and {quoted(twin.name)} has {twin_mass:g} kg"
        yield Doubt("asymmetric-mass", text, f"one of them is probably wrong by a factor {twin_mass / mass:.3g}")
    elif mass > LIGHT_SHARE * total:
        radius, twin_radius = _squared_radius(link.inertial), _squared_radius(twin.inertial)
        if 0.0 < radius * UNEQUAL < twin_radius:
            pair = [principal_moments(x.inertia).tolist() for x in (link.inertial, twin.inertial)]
            moments, twin_moments = (", ".join(f"{x:.3g}" for x in side) for side in pair)
            text = f"principal moments {moments} kg m^2, and {quoted(twin.name)} has {twin_moments} kg m^2"
            yield Doubt("asymmetric-mass", text, "one of them is probably wrong")


def _offsets(description: Description) -> dict[str, Vector]:
    """Returns three vectors (3, 3), m, of each link, in the root's axes with all joints at zero: from the parent's
    origin to its own, from its own to its centre of mass, and from the root's to its centre of mass.
    """
    links = {link.name: link for link in description.links}
    inboard = {joint.child: joint for joint in description.joints}
    frames: dict[str, tuple[Vector, Vector]] = {}
    offsets = {}
    for name in outward(description):
        joint, inertial = inboard.get(name), links[name].inertial
        rotation, origin = (np.eye(3), np.zeros(3)) if joint is None else frames[joint.parent]
        step = np.zeros(3) if joint is None else rotation @ joint.xyz
        rotation = rotation if joint is None else rotation @ joint.rotation
        centre = np.zeros(3) if inertial is None else rotation @ inertial.com
        frames[name] = rotation, origin + step
        offsets[name] = np.stack([step, centre, origin + step + centre])
    return offsets


def _same_part(left: Link, right: Link) -> bool:
    """Whether two links are one part that is used on both sides, such as the arms of TALOS: meshes and inertial are the
    same.
    """
    meshes, twin_meshes = ({shape.mesh for shape in link.shapes if shape.mesh} for link in (left, right))
    if not meshes or meshes != twin_meshes or left.inertial is None or right.inertial is None:
        return False
    return left.inertial.mass == right.inertial.mass and np.array_equal(left.inertial.com, right.inertial.com)


def _unmirrored(description: Description, links: Mapping[str, Link], total: float) -> Iterator[tuple[str, Doubt]]:
    """Yields links that are no mirror image of the link on the other side, if most others are."""
    twins = ((link, links.get(other_side(name), link)) for name, link in links.items() if is_left(name))
    bodies = [
        (left, right, left.inertial, right.inertial)
        for left, right in twins
        if left is not right and left.inertial and right.inertial and not _same_part(left, right)
        if min(left.inertial.mass, right.inertial.mass) > LIGHT_SHARE * total
    ]
    if len(bodies) < FEWEST_PAIRS:
        return
    offsets = _offsets(description)
    left_offsets = np.array([offsets[left.name] for left, *_ in bodies])
    right_offsets = np.array([offsets[right.name] for _, right, *_ in bodies])
    radii = np.array([math.sqrt(max(_squared_radius(x), _squared_radius(y))) for *_, x, y in bodies])
    ratios = np.array([max(x.mass, y.mass) / min(x.mass, y.mass) for *_, x, y in bodies])

    def distances(axis: int) -> Vector:
        """Returns those from the mirror images, (bodies,), of the worse of origin and centre of mass. Frames on two
        sides may differ, and a wrong link moves the outboard ones: mirrored are those whose centre in the root's frame
        is, or that are mirrored relative to their parent.
        """
        differences = left_offsets - right_offsets * (1.0 - 2.0 * np.eye(3)[axis])
        differences[:, 2, axis] -= np.median(differences[:, 2, axis])  # the root's origin may be next to the plane
        errors: Vector = np.linalg.norm(differences, axis=2)
        nearest: Vector = np.minimum(errors[:, 2], errors[:, :2].max(axis=1))
        return nearest

    distance = min((distances(axis) / radii for axis in range(3)), key=lambda x: float((x > MIRRORED[0]).sum()))
    symmetric = (distance < MIRRORED[0]) & (ratios < MIRRORED[1])
    if symmetric.mean() < SYMMETRIC:
        return
    context = f"{symmetric.sum()} of {len(bodies)} pairs of links are mirror images"
    for k in np.flatnonzero((distance > UNMIRRORED[0]) | (ratios > UNMIRRORED[1])):
        left, right, inertial, twin = bodies[k]
        difference = f"its centre of mass is {distance[k] * radii[k]:.3g} m from the mirror image of that of"
        if ratios[k] > UNMIRRORED[1]:
            difference = f"mass {inertial.mass:g} kg, {twin.mass:g} kg in"
        yield left.name, Doubt("unmirrored-link", f"{difference} {quoted(right.name)}: {context}")


def _mesh_doubts(link: Link, longest: float, folder: Path | None, boxes: dict[str, Box | None]) -> list[Doubt]:
    """Returns doubts about the meshes of a link. The box of a link with a mesh in millimetres becomes unknown. longest:
    distance of a joint from its parent's origin, m.
    """
    doubts: list[Doubt] = []
    box = boxes[link.name]
    has_mesh = any(shape.kind == "mesh" for shape in link.shapes)
    if (
        box is not None
        and has_mesh
        and float(np.linalg.norm(box.size)) > max(LONG_M, LONGER * longest)
        and longest > 0.0
    ):
        boxes[link.name] = None
        length = float(np.linalg.norm(box.size))
        text = f"its meshes are {length:.4g} m long, and no joint is more than {longest:.3g} m from its parent's origin"
        doubts.append(Doubt("mesh-in-millimetres", text))
    meshes = {shape.mesh for shape in link.shapes if shape.kind == "mesh" and not shape.unread and folder is not None}
    for mesh in sorted(meshes):
        candidates = [path for path in mesh_candidates(mesh, folder or Path()) if path.parent.is_dir()]
        if candidates and not any(path.is_file() for path in candidates):
            path = candidates[0]
            names = [entry.name for entry in path.parent.iterdir()]
            same_stem = (name for name in names if Path(name).stem.lower() == path.stem.lower())
            nearest = next(same_stem, None) or closest(path.name, names, NEAR)
            repair = f"the folder has {quoted(nearest)}" if nearest else ""
            doubts.append(Doubt("missing-mesh", f"the mesh {quoted(mesh)} does not exist", repair))
    return doubts


def claimed_mass(description: Description, mass: float) -> list[Note]:
    """Returns a finding if the robot's mass is not `mass`, kg."""
    total = sum(link.inertial.mass for link in description.links if link.inertial)
    if abs(total - mass) <= CLAIM * mass:
        return []
    place = Place(description.source, named("robot", description.name))
    massless_links = [link.name for link in description.links if link.inertial is None and link.shapes]
    repair = f"links with shapes and without mass: {listed(massless_links, 8)}" if massless_links else ""
    text = f"the masses of its links add up to {total:.4g} kg, and it is said to have {mass:g} kg"
    return [place.warning("claimed-mass", text, repair)]


_JOINT_KEYS = ("joint", "joints", "joint_names", "joint_name")


def controller_findings(document: Document, description: Description) -> list[Note]:
    """Returns findings on joints that a controllers' YAML names and the robot does not have."""
    joint_names = [*(joint.name for joint in description.joints), *(joint.name for joint in description.loop_joints)]
    notes: list[Note] = []

    def walk(value: Any, path: tuple[Any, ...]) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(inner, (*path, key))
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                walk(inner, (*path, index))
        elif isinstance(value, str) and value not in joint_names and _names_joint(path):
            line = next((document.lines[path[:k]] for k in range(len(path), 0, -1) if path[:k] in document.lines), 0)
            place = Elsewhere(document.file, ".".join(str(key) for key in path if isinstance(key, str)), line)
            hint = known_instead(value, joint_names, "the joints are")
            text = f"{quoted(value)} is no joint of robot {quoted(description.name)}{hint}"
            notes.append(place.warning("unknown-controller-joint", text))

    walk(document.value, ())
    return notes


def _names_joint(path: tuple[Any, ...]) -> bool:
    key = next((entry for entry in reversed(path) if isinstance(entry, str)), "")
    return key in _JOINT_KEYS or key.endswith(("_joint", "_joints", "_joint_name", "_joint_names", "wheel_names"))

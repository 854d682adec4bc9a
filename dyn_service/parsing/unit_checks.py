"""Numbers that read like other units: degrees, millimetres, grams, moments of inertia by the square millimetre.

URDF is in m, kg, rad throughout; CAD programs are not. A slip of units is a factor of 57 (degrees), 1e3 (millimetres,
grams) or 1e3 to 1e9 (moments), so it can be told from a strange robot by what bodies can be at all:

    density      A body of mass m has no smaller trace of inertia than a ball of the densest matter, osmium:
                 tr I = 6/5 m r^2 with m = rho 4/3 pi r^3.
    lengths      A link with joints or centres of mass d apart is about d long. If most of a robot's mass is in links
                 that would be a hundredth as dense as air in cubes of that size, d is in millimetres; if most is in
                 links that would outweigh solid steel, masses are in grams.
    gyration     A link's radius of gyration k = sqrt(largest moment / mass) is at most about half its length. Of real
                 robots at hand it is up to 3 times the largest distance between the joints and centres of mass of the
                 body it is part of; a slip in the unit of moments makes k at least 31 times what it is.

Limits were set between what sane robots have and what a slip makes of them, and tried on the robots of
example-robot-data as they are and with each slip put in. Cost: linear in links.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.description import Description, Inertial, Joint, Link, Note, outward
from dyn_service.parsing.places import Place, named

TWO_TURNS = 4.0 * math.pi
"""rad; joints with stops turn at most this far either way: a robot's wrist +-2 pi, with a cable drum twice that."""
WHOLE_TURNS = 5e-3
"""rad; a limit this near to a multiple of pi was given in rad, however large. Of whole degrees only 355 is so near."""
MOST_DEGREES = 720.0
"""Beyond two turns, read as degrees, limits are stand-ins for none at all (1e3, 1e16)."""
LONG_M = 10.0
"""A distance that lengths in millimetres exceed in any machine and lengths in m in few."""
FAR_TRAVEL = 10.0
"""Travel over the robot's longest distance: a slide of a few lengths of its links is a machine's, not a slip's 1e3."""
FARTHEST_TRAVEL_M = 1e4
"""Travel from which a limit is a stand-in for none."""
THIN_KG_M3 = 1e-2
"""A hundredth of air. Real links have 1 to 1e4 in cubes of their length; in millimetres and kg 1e-9 of that, in
millimetres and grams 1e-6. A crane's boom of 40 m and 1 t has 0.016."""
HEAVY_KG = 100.0
HEAVIEST_KG = 1e8
"""Between these, in grams, are robots of 0.1 kg to 100 t."""
STEEL_KG_M3 = 7850.0
OSMIUM_KG_M3 = 22590.0
BALL = 1.6
"""Radius of a ball over its radius of gyration about any axis, sqrt(5/2)."""
WIDE = 5.0
"""Radii of gyration over distances: the geometric middle of 2.5, sane, and 10, a third of the least slip of 31."""
WIDEST_GYRATION_M = 10.0
"""Beyond this, moments were given in other units than kg m^2, whatever the distances: see `doubts`."""
SMALLEST_SHARE = 0.1
"""Of the robot's largest distance: what is smaller says nothing of a body's size, such as a rotor 0.1 mm off."""
FAINT_GYRATION_M = 1e-6
"""Below this, moments are dust: a point mass."""
FAINT_SHARE = 1e-6
"""Of the robot's mass: links that weigh less were given some mass or other, for a parser's sake."""


@dataclass
class _Body:
    """Links that fixed joints weld: its distance to the body it hangs on; joints, centres of mass in its frame."""

    inboard: float
    joints: list[Vector]
    centres: list[Vector] = field(default_factory=list)

    def apart(self) -> float:
        """The longest distance that joints alone tell of."""
        return max(self.inboard, _spread(self.joints))

    def extent(self) -> float:
        """The same of joints and centres of mass."""
        return max(self.inboard, _spread([np.zeros(3), *self.joints, *self.centres]))


@dataclass(frozen=True)
class Sizes:
    """What the distances of a robot say of its size, in m.

    own: per link with mass, the longest distance among its frame, its joints and its centre of mass. longest: of these.
    body: per link, the extent of the body it is part of. apart: the longest distance between two joints.
    """

    own: dict[str, float]
    body: dict[str, float]
    longest: float
    apart: float


def unit_notes(description: Description, sizes: Sizes) -> list[Note]:
    """Doubts about the units of a robot as a whole: lengths, then masses."""
    return [*_lengths(description, sizes), *_masses(description, sizes)]


def size_notes(description: Description, sizes: Sizes) -> list[Note]:
    """Doubts about each link's moments of inertia."""
    return list(_gyrations(description, sizes))


def limit_notes(description: Description, sizes: Sizes) -> list[Note]:
    """Doubts about the units of each joint's limits."""
    return list(_limits(description, sizes))


def measure(description: Description) -> Sizes:
    """The distances of a robot."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _measure(description)


def _measure(description: Description) -> Sizes:
    inboard = {joint.child: joint for joint in description.joints}
    outboard: dict[str, list[Joint]] = {link.name: [] for link in description.links}
    for joint in description.joints:
        outboard[joint.parent].append(joint)
    links = {link.name: link for link in description.links}
    own: dict[str, float] = {}
    placed: dict[str, tuple[_Body, Matrix, Vector]] = {}
    for name in outward(description):
        inbound = inboard.get(name)
        if inbound is None:
            body, rotation, origin = _Body(0.0, []), np.eye(3), np.zeros(3)
        elif not inbound.moves.nv:
            body, R, p = placed[inbound.parent]
            rotation, origin = R @ inbound.rotation, p + R @ inbound.xyz
        else:
            # How far from a world without mass a robot was put says nothing of its size.
            placing = inbound.parent not in inboard and inbound.parent not in own
            distance = 0.0 if placing else _length(inbound.xyz)
            body, rotation, origin = _Body(distance, [np.zeros(3)]), np.eye(3), np.zeros(3)
        placed[name] = (body, rotation, origin)
        points = [joint.xyz for joint in outboard[name]]
        body.joints += [origin + rotation @ joint.xyz for joint in outboard[name] if joint.moves.nv]
        inertial = links[name].inertial
        if inertial is not None and inertial.mass > 0.0:
            body.centres.append(origin + rotation @ inertial.com)
            own[name] = max(map(_length, [*points, inertial.com]))
    bodies = {name: body.extent() for name, (body, _, _) in placed.items()}
    apart = max(body.apart() for body, _, _ in placed.values())
    return Sizes(own, bodies, max(own.values(), default=0.0), apart)


def _lengths(description: Description, sizes: Sizes) -> Iterator[Note]:
    """Lengths in millimetres."""
    if not LONG_M < sizes.apart < math.inf:
        return
    massive = list(_massive(description))
    total = sum(inertial.mass for _, inertial in massive)
    thin = sum(inertial.mass for link, inertial in massive if inertial.mass < THIN_KG_M3 * _cube(link, inertial, sizes))
    if thin > total / 2.0:
        link, _ = max(massive, key=lambda one: sizes.own[one[0].name])
        text = (
            f"its joints or centre of mass are up to {sizes.own[link.name]:g} m away, which reads like millimetres: at "
            f"such lengths most of the robot's {total:g} kg would be thinner than air"
        )
        yield _link(description, link).note("doubted", text)


def _masses(description: Description, sizes: Sizes) -> Iterator[Note]:
    """Masses in grams."""
    massive = list(_massive(description))
    total = sum(inertial.mass for _, inertial in massive)
    dense = sum(
        inertial.mass for link, inertial in massive if inertial.mass > STEEL_KG_M3 * _cube(link, inertial, sizes)
    )
    if HEAVY_KG <= total <= HEAVIEST_KG and dense > total / 2.0:
        link, inertial = max(massive, key=lambda one: one[1].mass)
        text = (
            f"mass {inertial.mass:g} kg reads like grams: most of the robot's {total:g} kg is in links that would be "
            "denser than solid steel"
        )
        yield _link(description, link).note("doubted", text)


def _gyrations(description: Description, sizes: Sizes) -> Iterator[Note]:
    """Moments of inertia that no body of that mass has, or none of that size."""
    total = sum(inertial.mass for _, inertial in _massive(description))
    for link, inertial in _massive(description):
        k = _gyration(inertial)
        size = max(sizes.body[link.name], SMALLEST_SHARE * (sizes.longest or sizes.apart))
        # A centre of mass may lie near its link's frame in any body: without joints apart nothing tells a size.
        known = sizes.apart > 0.0
        if k < FAINT_GYRATION_M or inertial.mass < FAINT_SHARE * total or is_stand_in(inertial):
            continue
        if known and WIDE * size < k <= WIDEST_GYRATION_M:
            text = (
                f"the radius of gyration is {k:.3g} m, {k / size:.3g} times the {size:.3g} m between the joints and "
                f"centres of mass about it: too much inertia for {inertial.mass:g} kg"
            )
            yield _link(description, link).note("doubted", text)
        density = _least_density(inertial)
        if density > OSMIUM_KG_M3:
            text = (
                f"too little inertia for {inertial.mass:g} kg: even a ball would need {density:.3g} kg/m^3, and the "
                f"densest matter has {OSMIUM_KG_M3:g}"
            )
            yield _link(description, link).note("doubted", text)


def _limits(description: Description, sizes: Sizes) -> Iterator[Note]:
    carried = _carried(description)
    total = sum(inertial.mass for _, inertial in _massive(description))
    for joint in description.joints:
        bounds = [] if joint.limit is None else [x for x in (joint.limit.lower, joint.limit.upper) if x is not None]
        place = Place(description.source, named("joint", joint.name), joint.line)
        stops = joint.moves.ranged
        if stops and all(joint.moves.angles) and any(map(_reads_like_degrees, bounds)):
            turns = max(map(abs, bounds)) / (2.0 * math.pi)
            shown = " and ".join(f"{bound:g}" for bound in bounds)
            text = f"limits {shown} rad read" if len(bounds) > 1 else f"limit {shown} rad reads"
            yield place.note("doubted", f"{text} like degrees: {turns:.3g} turns")
        if stops and all(joint.moves.shifts) and bounds and sizes.longest > 0.0:
            travel = max(map(abs, bounds))
            # A base that slides carries most of the robot and may go far; what a robot carries may not.
            slides = carried[joint.child] < total / 2.0
            if slides and LONG_M < travel < FARTHEST_TRAVEL_M and travel > FAR_TRAVEL * sizes.longest:
                text = (
                    f"travels up to {travel:g} m, which reads like millimetres: no distance within a link is more than "
                    f"{sizes.longest:.3g} m"
                )
                yield place.note("doubted", text)


def _reads_like_degrees(bound: float) -> bool:
    size = abs(bound)
    if not TWO_TURNS * 1.001 < size <= MOST_DEGREES:
        return False
    # 100 is what people write for no limit.
    return size != 100.0 and abs(size - math.pi * round(size / math.pi)) > WHOLE_TURNS


def _carried(description: Description) -> dict[str, float]:
    """Mass of each link and all that hangs on it, kg."""
    inboard = {joint.child: joint for joint in description.joints}
    mass = {link.name: link.inertial.mass if link.inertial else 0.0 for link in description.links}
    for name in reversed(outward(description)):
        if name in inboard:
            mass[inboard[name].parent] += mass[name]
    return mass


def _massive(description: Description) -> Iterator[tuple[Link, Inertial]]:
    for link in description.links:
        if link.inertial is not None and link.inertial.mass > 0.0:
            yield link, link.inertial


def _cube(link: Link, inertial: Inertial, sizes: Sizes) -> float:
    """Volume of a cube as long as the link, m^3."""
    length = max(sizes.own[link.name], BALL * _gyration(inertial))
    return length * length * length


def is_stand_in(inertial: Inertial) -> bool:
    """Whether it is what urdfpy and urchin put where a file has no `<inertial>`."""
    return (
        inertial.mass == 1.0
        and not inertial.com.any()
        and np.array_equal(inertial.inertia, np.eye(3))
        and np.array_equal(inertial.rotation, np.eye(3))
    )


def _gyration(inertial: Inertial) -> float:
    """Radius of gyration about the axis of the largest moment, m; by its entries, which is within a factor of 3."""
    return math.sqrt(float(np.abs(inertial.inertia).max())) / math.sqrt(inertial.mass)


def _least_density(inertial: Inertial) -> float:
    """Density of the ball with that mass and trace of inertia, kg/m^3: any other body of them is denser somewhere."""
    trace = sum(np.diag(inertial.inertia).tolist())
    if trace <= 0.0:
        return 0.0
    radius = math.sqrt(trace / 1.2) / math.sqrt(inertial.mass)
    volume = 4.0 / 3.0 * math.pi * radius * radius * radius
    return inertial.mass / volume if volume > 0.0 else math.inf


def _spread(points: list[Vector]) -> float:
    """The diagonal of the box about the points, m."""
    return _length(np.ptp(np.array(points), axis=0)) if points else 0.0


def _length(vector: Vector) -> float:
    return math.hypot(*vector)


def _link(description: Description, link: Link) -> Place:
    return Place(description.source, named("link", link.name), link.line)

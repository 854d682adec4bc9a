"""Link frames and inertia transfers of least cost, without loss of accuracy.

Efforts, accelerations and the mass matrix of the moving bodies do not depend on the frame chosen in each body, nor on
the split of the inertia shared by two neighbours. Both are chosen here so that many numbers are zero, and with them
the operations that use these numbers.

Frames. The z axis is along the free axis; the origin is the point on it nearest to the parent's axis; x points along
the common normal to the axis of the heaviest child. Then R_PC(0) has at most two rotations, of which the last is about
z and is added to the joint's own, and p_PC loses a component. (The convention of Denavit and Hartenberg, on a tree.)

Inertia transfers. The part of a body's inertia that does not load its own joint moves to the parent: of a body that
rotates about z, mass, moment along z and the inertia of a rod across z, which are the same for the parent at every q;
of a body that slides, the whole inertia about the origin. Seven or four of the ten numbers of a body remain. (Base
parameters: Gautier and Khalil, Direct calculation of minimum set of inertial parameters of serial robots, IEEE T-RA
6(3), 1990.)

Accuracy. All this is computed in decimals of fifty digits and rounded once, so each number of the result is the double
nearest to the exact value for the numbers of the file, in spite of cancellation. The distance of a frame from its link
is bounded (`_MAX_OFFSET`), and a light body takes no heavy inertia (`_MAX_TRANSFER`). The certificate of a kernel
reports any further loss. docs/adr/0009 has the error analysis.

Joint loads depend on both choices, so kernels with these outputs use link frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal, localcontext
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dyn_service.api.spec import Bodies
from dyn_service.dynamics.spatial import Mat, RigidTransform, constant
from dyn_service.kernels.signature import Signature
from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.composite import weld
from dyn_service.model.description import Mimic
from dyn_service.model.inertia import BodyInertia
from dyn_service.model.tree import Tree

_DIGITS = 50
"""Digits of the decimals: three times those of doubles, so that the cancellation of two numbers loses no digit."""

_MAX_OFFSET = 2
"""Largest distance of a frame from its link's origin, as a multiple of the body's reach. The common normal of nearly
parallel axes is at offset / tilt, perhaps kilometres away, and an inertia about such a point has no digits left.
"""

_MAX_TRANSFER = 30
"""A body takes at most this multiple of its own mass from its child. With a mass of kilograms moved to a link of grams,
large terms would cancel in a folded arm.
"""

_PARALLEL = Decimal("1e-8")
"""Sine of the angle between axes below which x points at the child, not along the common normal: more zeros remain."""

_STRUCTURAL = Decimal("1e-30")
"""Entries below this share of their terms are zero: they are the rounding of the decimals."""

Exact = Any
"""An array of decimals."""

_decimal: Callable[[Any], Exact] = np.frompyfunc(Decimal, 1, 1)
_ZERO: Exact = np.array([Decimal(0)] * 3)


@dataclass(frozen=True, eq=False)
class KernelTree:
    """The tree that a kernel is traced on.

    tree: in the chosen frames, with the inertia transfers. rotation, origin: R_NL, p_NL, per body the link frame L in
    the chosen frame N.
    """

    tree: Tree
    rotation: tuple[Matrix, ...]
    origin: tuple[Vector, ...]

    def wrench(self, i: int, W: Mat) -> Mat:
        """Returns a wrench on body i, at the link's origin in its axes, at the chosen frame's origin in its axes."""
        return RigidTransform(constant(self.rotation[i].T), constant(self.origin[i])).T @ W

    def first(self, bodies: int) -> KernelTree:
        """Returns the tree of the first bodies."""
        return KernelTree(part_of(self.tree, range(bodies)), self.rotation[:bodies], self.origin[:bodies])

    def of(self, bodies: Bodies) -> KernelTree:
        """Returns the tree of a kernel with these bodies: this one."""
        return self


class KernelTrees(NamedTuple):
    """The trees of a list whose queries need different bodies. links: one body per link. moving: the moving bodies."""

    links: Tree
    moving: KernelTree

    def of(self, bodies: Bodies) -> KernelTree:
        """Returns the tree of a part with these bodies."""
        return self.moving if bodies == "chosen" else kernel_tree(self.links, bodies)


def part_of(tree: Tree, bodies: Sequence[int]) -> Tree:
    """Returns the tree of some bodies, each on its nearest ancestor among them, or on the ground.

    No joint of it is locked, and its limits, which no kernel reads, are those of the tree.
    """
    index, followed = {i: n for n, i in enumerate(bodies)}, dict[int, int]()
    for group in tree.driven_bodies:  # if the mimicked joint is not among them, the first mimic joint replaces it
        members = [i for i in group if i in index]
        followed |= dict.fromkeys(members, next(iter(members), -1))
    fields = ("links", "joints", "inboard", "rotation", "origin", "inertia")
    entries: dict[str, Any] = {field: tuple(getattr(tree, field)[i] for i in bodies) for field in fields}
    rates = [n for i in bodies for n in range(tree.in_rates[i].start, tree.in_rates[i].stop)]
    return replace(
        tree,
        parent=tuple(next((index[j] for j in tree.ancestors(i)[1:] if j in index), -1) for i in bodies),
        passive=tree.passive.at(rates),
        mimic=tuple(None if followed[i] == i else Mimic(tree.joints[followed[i]]) for i in bodies if i in followed),
        free=None,
        **entries,
    )


def as_given(tree: Tree) -> KernelTree:
    """Returns the tree as given: link frames, no inertia transfers."""
    return KernelTree(tree, (np.eye(3),) * len(tree), (np.zeros(3),) * len(tree))


def kernel_tree(links: Tree, bodies: Bodies) -> KernelTree:
    """Returns the tree that a kernel is traced on, from the tree with one body per link."""
    if bodies == "links":
        return as_given(links)
    return welded(links) if bodies == "moving" else cheapest_frames(links)


def kernel_trees(links: Tree, signature: Signature, moving: KernelTree) -> KernelTree | KernelTrees:
    """Returns the tree, or trees, that a kernel is traced on. moving: that of kernels in chosen frames."""
    if len({part.bodies for part in signature.parts}) > 1:
        return KernelTrees(links, moving)
    return moving if signature.bodies == "chosen" else kernel_tree(links, signature.bodies)


@lru_cache(maxsize=4)
def welded(links: Tree) -> KernelTree:
    """Returns the tree of the moving bodies in their link frames, each with the inertia of all links welded to it."""
    with localcontext(Context(_DIGITS)):
        tree = _moving(links)
        return as_given(_rounded(tree, tree.inertia, map(_length, tree.origin)))


@lru_cache(maxsize=4)
def cheapest_frames(links: Tree) -> KernelTree:
    """Returns the tree of the moving bodies in the frames and with the inertia transfers of the module's docstring."""
    with localcontext(Context(_DIGITS)):
        return _along_axes(_moving(links))


@lru_cache(maxsize=1)
def _moving(links: Tree) -> Tree:
    """Returns the tree of the moving bodies in decimals."""
    return weld(_exact(links)).tree


def _exact(tree: Tree) -> Tree:
    """Returns the tree in decimals, with orthonormal rotations and unit axes, which rounded doubles are not."""

    def inertia(body: BodyInertia) -> BodyInertia:
        mass: Exact = Decimal(body.mass)
        if body.centre is not None:
            com, axes, about_com = map(_decimal, body.centre)
            exact = BodyInertia.from_com(mass, com, about_com, _orthonormal(axes))
            return BodyInertia(mass, exact.moment, exact.about_origin)
        return BodyInertia(mass, _decimal(body.moment), _decimal(body.about_origin))

    def unit(vector: Any) -> Exact:
        return _decimal(vector) / _length(_decimal(vector))

    return replace(
        tree,
        inboard=tuple(joint.mapped(unit) for joint in tree.inboard),
        rotation=tuple(_orthonormal(_decimal(R)) for R in tree.rotation),
        origin=tuple(_decimal(p) for p in tree.origin),
        inertia=tuple(map(inertia, tree.inertia)),
    )


def _orthonormal(R: Exact) -> Exact:
    """Returns the rotation nearest to R, by Newton's iteration. Small entries keep their digits, so a tilt remains."""
    three = 3 * np.eye(3, dtype=object)
    for _ in range(8):  # the defect is squared each time: 1e-16, 1e-32, 1e-64
        defect = R.T @ R - np.eye(3, dtype=object)
        if max(map(abs, defect.flat)) < _STRUCTURAL:
            break
        # Rounded rotations and axes are off by 1e-16, which would stay as numbers where exact ones are 0.
        R = R @ (three - R.T @ R) / 2
    return R


def _along_axes(tree: Tree) -> KernelTree:
    lines = [joint.line for joint in tree.inboard]
    offsets: list[Decimal] = []
    for i in range(len(tree)):
        offsets.append(_axis_offset(tree, i, lines, offsets))
    origins = [_ZERO if line is None else line * offset for line, offset in zip(lines, offsets, strict=True)]
    sizes = _sizes(tree)
    frames = [
        (np.column_stack(_axes(tree, i, lines, origins, sizes)), origins[i]) for i in range(len(tree))
    ]  # R_LN, p_LN

    rotation, origin, inboard, inertia, lengths = [], [], [], [], []
    for i, parent in enumerate(tree.parent):
        R_LN, p_LN = frames[i]
        ground = np.eye(3, dtype=object), _ZERO
        R_PN, p_PN = ground if parent < 0 else frames[parent]
        R = R_PN.T @ tree.rotation[i] @ R_LN
        c, s = _last_turn(R) if tree.inboard[i].accepts_rotation else (Decimal(1), Decimal(0))
        rotation.append(R @ np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]]))
        inboard.append(tree.inboard[i].along_z(np.array([c, s])))
        origin.append(R_PN.T @ (tree.origin[i] + tree.rotation[i] @ p_LN - p_PN))
        lengths.append(_length(tree.origin[i]) + _length(p_LN) + _length(p_PN))
        inertia.append(tree.inertia[i].transformed(R_LN.T, -R_LN.T @ p_LN))
    framed = replace(
        tree,
        inboard=tuple(inboard),
        rotation=tuple(rotation),
        origin=tuple(origin),
        inertia=tuple(inertia),
    )
    inertia_kept, whole = _transferred(framed)
    return KernelTree(
        _rounded(replace(framed, inertia=tuple(inertia_kept)), whole, lengths),
        tuple(_double(R.T) for R, _ in frames),
        tuple(_double(-R.T @ p, _length(p)) for R, p in frames),
    )


def _sizes(tree: Tree) -> list[int]:
    """Returns per body the number of bodies of its branch."""
    sizes = [1] * len(tree)
    for i in range(len(tree) - 1, -1, -1):
        if tree.parent[i] >= 0:
            sizes[tree.parent[i]] += sizes[i]
    return sizes


def _axis_offset(tree: Tree, i: int, lines: Sequence[Exact | None], offsets: list[Decimal]) -> Decimal:
    """Returns the offset of body i's frame along its axis.

    It is the first of these within reach: nearest to the parent's axis, level with the parent's origin, 0.

    Args:
        tree: In decimals.
        i: The body.
        lines: Per body, the axis along which its frame may be moved and about which it may be rotated, or None.
        offsets: The offsets of the bodies before it.
    """
    parent, axis = tree.parent[i], lines[i]
    if parent < 0 or axis is None:
        return Decimal(0)  # the world does not rotate, so the offset of a root joint saves nothing
    R: Exact = tree.rotation[i]
    inherited = lines[parent]
    point = R.T @ (_ZERO if inherited is None else inherited * offsets[parent]) - R.T @ tree.origin[i]

    body = tree.inertia[i]
    ends = [_length(body.com), *(_length(tree.origin[k]) for k in tree.children[i])]
    gyration = (abs(Decimal(np.trace(body.about_com)) / Decimal(body.mass))).sqrt() if body.mass else Decimal(0)
    reach = [gyration, *ends]
    level = axis @ point
    other = axis if inherited is None else R.T @ inherited
    sine = _length(_cross(axis, other))
    if sine > _STRUCTURAL:
        nearest = (level - (axis @ other) * (other @ point)) / (sine * sine)
        if abs(nearest) <= _MAX_OFFSET * max(reach):
            return Decimal(nearest)
    return Decimal(level) if abs(level) <= _MAX_OFFSET * max(reach) else Decimal(0)


def _axes(
    tree: Tree, i: int, lines: Sequence[Exact | None], origins: list[Exact], sizes: list[int]
) -> tuple[Exact, Exact, Exact]:
    """Returns x, y, z of the chosen frame of body i, in link axes; the link axes if its joint has no free axis."""
    z = lines[i]
    if z is None:
        x, y, z = np.eye(3, dtype=object)
        return x, y, z
    if tree.children[i]:
        child = max(tree.children[i], key=lambda k: (sizes[k], -k))
        other = lines[child]
        x = 0 * z if other is None else _cross(z, tree.rotation[child] @ other)
        if _length(x) <= _PARALLEL:
            x = _across(tree.origin[child] + tree.rotation[child] @ origins[child] - origins[i], z)
    else:
        x = _across(tree.inertia[i].com, z)
    if not any(x):
        x = _across(np.eye(3, dtype=object)[min(range(3), key=lambda k: abs(z[k]))], z)
    x = x / _length(x)
    return x, _cross(z, x), z


def _across(vector: Exact, z: Exact) -> Exact:
    """Returns the component of a vector perpendicular to z; zero if it is rounding of the decimals."""
    x = vector - (vector @ z) * z
    return x if _length(x) > _STRUCTURAL * _length(vector) else 0 * x


def _cross(a: Exact, b: Exact) -> Exact:
    """Returns a x b; numpy.cross takes ten times as long for one pair."""
    (a0, a1, a2), (b0, b1, b2) = a, b
    return np.array([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], dtype=object)


def _last_turn(R: Exact) -> tuple[Decimal, Decimal]:
    """Returns cosine and sine of the t for which entry (3, 1) of R Rz(-t) is 0; of R's whole angle if R is about z."""
    c, s = (R[2, 1], R[2, 0]) if R[2, 0] ** 2 + R[2, 1] ** 2 > _PARALLEL**2 else (R[0, 0], R[1, 0])
    length = (c * c + s * s).sqrt()
    return c / length, s / length


def _transferred(tree: Tree) -> tuple[list[BodyInertia], list[BodyInertia]]:
    """Returns the inertia of each body after all transfers, and after those from its children only.

    The second is the scale of rounding. The joints' axes are along z.
    """
    whole = list(tree.inertia)
    remaining = list(tree.inertia)
    for i in range(len(tree) - 1, -1, -1):
        body, parent = whole[i], tree.parent[i]
        transfer = tree.inboard[i].transferable_inertia(body)
        if transfer is None or (parent >= 0 and body.mass > _MAX_TRANSFER * tree.inertia[parent].mass):
            remaining[i] = body
            continue
        remaining[i] = body - transfer
        if parent >= 0:
            # The last rotation is the joint's own, and does not change the inertia of a body of revolution.
            whole[parent] = whole[parent] + transfer.transformed(tree.rotation[i], tree.origin[i])
    return remaining, whole


def _rounded(tree: Tree, whole: Iterable[BodyInertia], lengths: Iterable[Decimal]) -> Tree:
    """Returns the tree in doubles, each number rounded once.

    Args:
        tree: In decimals.
        whole: Per body, its inertia before the transfer to its parent, which gives the scale of rounding.
        lengths: Per body, m, the sum of the lengths that its position was computed from.
    """

    def inertia(body: BodyInertia, scale: BodyInertia) -> BodyInertia:
        turning = Decimal(np.abs(np.diag(scale.about_origin)).sum())
        moment = (turning * abs(Decimal(scale.mass))).sqrt()
        about_com = _double(body.about_com, np.abs(np.diag(body.about_com)).sum())
        centre = (_double(body.com, _length(body.com)), np.eye(3), about_com)
        return BodyInertia(float(body.mass), _double(body.moment, moment), _double(body.about_origin, turning), centre)

    return replace(
        tree,
        inboard=tuple(joint.mapped(_double) for joint in tree.inboard),
        rotation=tuple(map(_double, tree.rotation)),
        origin=tuple(_double(p, length) for p, length in zip(tree.origin, lengths, strict=True)),
        inertia=tuple(inertia(body, scale) for body, scale in zip(tree.inertia, whole, strict=True)),
    )


def _double(array: Exact, size: Decimal = Decimal(1)) -> Vector:
    """Returns the doubles nearest to decimals that were computed from numbers of that size; -0.0 becomes 0.0."""
    return np.where(abs(array) <= _STRUCTURAL * size, 0, array).astype(np.float64) + 0.0


def _length(vector: Exact) -> Decimal:
    return Decimal(vector @ vector).sqrt()

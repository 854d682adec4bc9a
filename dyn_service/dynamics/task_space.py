"""Motion, Jacobian and operational-space inertia of a point fixed to one link.

The link is an input like q: w_i is 1 at the link's body and 0 at all others. A property of the link is the sum of w_i
times that of each body, and an inward sweep marks the joints that move it. So one kernel serves every link of a robot,
in O(N):

    on = Psi_e^T w                                       1 at every body that carries the link, itself included
    d  = Psi_e^T (w R point + Phi_e^T (on R p))          vector to the point from each of their origins, world axes
    J_i = on_i [R_i g_i; R_i u_i + R_i g_i x d_i]        G_i = [g_i; u_i]: columns of J = Psi_D G at the point

    Omega_i = beta_i Omega_ip beta_i^T + G_i R_i^-1 G_i^T     diagonal blocks of Psi_beta G R^-1 G^T Psi_beta^T, (19b)
    Lambda  = Omega^-1                                        Omega = J M^-1 J^T at the link

The axes of the result are given by one influence D = (R, d) of the link's motion, in its axes at its origin:

    local          R = e       d = point          at the point, in the link's axes
    world_aligned  R = R_WL    d = point          at the point, in world axes
    world          R = R_WL    d = -R^T p_WL      at the world's origin, in world axes

J-dot v is D of the link's spatial acceleration [omega-dot; v-dot - omega x v] at q-ddot = 0; in world-aligned axes
omega x v of the point is added, which gives the acceleration of the point itself.

With mimic joints, Omega is J M^-1 J^T with M factored, (19a), in O(N^3).
Source: Newton-Euler document, (4)-(7), (19b). The recursion for Omega: G. Rodriguez, A. Jain, K. Kreutz-Delgado,
'Spatial Operator Algebra for Manipulator Modeling and Control', 1991; there from the base outward as here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics import mass_matrix
from dyn_service.dynamics.articulated import branches
from dyn_service.dynamics.kinematics import along, in_world, influences, joint_columns, motion_subspaces
from dyn_service.dynamics.newton_euler import inertias, velocities, velocity_products
from dyn_service.dynamics.spatial import (
    Inertia,
    Mat,
    RigidTransform,
    angular,
    cross,
    inverse,
    join,
    linear,
    row_by_row,
    skew,
)
from dyn_service.dynamics.sweeps import from_children, outward
from dyn_service.model.tree import Tree

MOBILITY_ROUNDING = 2.0**-40
"""Bound on 1 / Lambda_kk, the mobility in a direction with all others held, relative to the mobility of its kind
(rotation or translation). Below it the mobility is rounding: of 52 bits of the subtracted terms about 12 remain.
"""


@dataclass(frozen=True, eq=False)
class _LinkPoint:
    """A link and a point on it. link: w, per body. rotations: R_WB. steps: to each body from its parent, world axes."""

    tree: Tree
    link: list[Mat]
    point: Mat
    rotations: list[Mat]
    steps: list[Mat]

    @classmethod
    def of(cls, tree: Tree, q: Mat, link: Mat, point: Mat) -> _LinkPoint:
        return cls(tree, ex.vertsplit(link), point, *in_world(tree, q))

    def chosen(self, x: Sequence[Mat]) -> Mat:
        """Returns the link's value of values per body."""
        return self.tree.total([(w * x_i,) for w, x_i in zip(self.link, x, strict=True)], ex.zeros(*x[0].shape))

    @property
    def rotation(self) -> Mat:
        """R_WL."""
        return self.chosen(self.rotations)

    def origin(self, tree: Tree) -> Mat:
        """p_WL."""
        return self.chosen(along(tree, self.steps))

    def carrying(self, tree: Tree) -> list[Mat]:
        """1 for every body that carries the link, the link's body included."""
        return tree.inward(self.link, lambda _, carries: carries)

    def levers(self, tree: Tree) -> list[Mat]:
        """The vector to the point from the origin of each body that carries the link, world axes; 0 for others."""
        carries = self.carrying(tree)
        ways_on = [w * (R @ self.point) for w, R in zip(self.link, self.rotations, strict=True)]
        return tree.inward(from_children(tree, carries, self.steps, start=ways_on), lambda _, way: way)


@dataclass(frozen=True, eq=False)
class _View:
    """The frame of an answer. of_link: D from the link's origin to the frame. of_world: rotation from world axes to the
    frame's. levers: vectors from each body's origin to the frame's, world axes. carried: whether the origin moves with
    the point while the axes stay aligned with the world.
    """

    of_link: RigidTransform
    of_world: Mat
    levers: list[Mat]
    carried: bool = False


_Seen = Callable[[Tree, _LinkPoint], _View]
_SAME, _NO_WAY = ex.eye(3), ex.zeros(3, 1)


def _aligned(tree: Tree, link_point: _LinkPoint) -> _View:
    """At the point, in world axes."""
    return _View(RigidTransform(link_point.rotation, link_point.point), _SAME, link_point.levers(tree), carried=True)


def _local(tree: Tree, link_point: _LinkPoint) -> _View:
    """At the point, in the link's axes."""
    return _View(RigidTransform(_SAME, link_point.point), link_point.rotation.T, link_point.levers(tree))


def _world(tree: Tree, link_point: _LinkPoint) -> _View:
    """At the world's origin, in world axes."""
    R = link_point.rotation
    return _View(
        RigidTransform(R, -(R.T @ link_point.origin(tree))), _SAME, [-p for p in along(tree, link_point.steps)]
    )


def _motion(seen: _Seen, tree: Tree, q: Mat, v: Mat, link: Mat, point: Mat) -> dict[str, Mat]:
    """rotation (3, 3), position (3,), and seen from there velocity (6,), jacobian (6, nv), bias (6,).

    tree: one body per link. link: w, (nl,). point: in the link's axes, from its origin.
    """
    link_point = _LinkPoint.of(tree, q, link, point)
    view = seen(tree, link_point)
    D, G = influences(tree, q), motion_subspaces(tree)
    V = velocities(tree, D, G, v)
    V_L, rates = link_point.chosen(V), link_point.chosen(outward(tree, D, velocity_products(tree, D, G, V, v)))
    spatial = rates - join(_NO_WAY, cross(angular(V_L), linear(V_L)))
    velocity, bias = view.of_link @ V_L, view.of_link @ spatial
    if view.carried:
        bias = bias + join(_NO_WAY, cross(angular(velocity), linear(velocity)))
    return {
        "rotation": row_by_row(link_point.rotation),
        "position": link_point.origin(tree) + link_point.rotation @ link_point.point,
        "velocity": velocity,
        "jacobian": row_by_row(columns_seen(tree, link_point, view, G)),
        "bias": bias,
    }


point_motion = partial(_motion, _aligned)
point_motion_local = partial(_motion, _local)
point_motion_world = partial(_motion, _world)


def columns_seen(tree: Tree, link_point: _LinkPoint, view: _View, motions: Sequence[Mat]) -> Mat:
    """Motions (6, nv_i) of the bodies that carry the link, seen there, (6, nv). Those of G are J."""
    columns = []
    for carries, R_WB, lever, motion in zip(
        link_point.carrying(tree), link_point.rotations, view.levers, motions, strict=True
    ):
        R = view.of_world @ R_WB
        turns, shifts = R @ motion[:3, :], R @ motion[3:, :]
        columns.append(carries * ex.vertcat(turns, shifts - skew(view.of_world @ lever) @ turns))
    return joint_columns(tree, columns)


def _inertia(seen: _Seen, tree: Tree, q: Mat, link: Mat, point: Mat, directions: Mat) -> dict[str, Mat]:
    """mobility and inertia, (6, 6) each. directions: (6,), 1 for each direction that counts, 0 for the others."""
    link_point = _LinkPoint.of(tree, q, link, point)
    view = seen(tree, link_point)
    # The outward recursion of Omega needs the factors of (19b), which mimic joints do not have.
    if tree.has_mimics:
        J = columns_seen(tree, link_point, view, motion_subspaces(tree))
        Omega = mass_matrix.mobility(tree, mass_matrix.entries(tree, q), J)
    else:
        of_bodies = _mobilities(tree, q)
        parts = (link_point.chosen([getattr(S, part) for S in of_bodies]) for part in ("I", "H", "m"))
        S = _transformed(view.of_link, Inertia(*parts))
        Omega = ex.blockcat([[S.m, S.H.T], [S.H, S.I]])
    return {"mobility": row_by_row(Omega), "inertia": row_by_row(_inverse_in(Omega, directions))}


operational_space = partial(_inertia, _aligned)
operational_space_local = partial(_inertia, _local)
operational_space_world = partial(_inertia, _world)


def _mobilities(tree: Tree, q: Mat) -> list[Inertia]:
    """Omega of every body, at its origin in its axes.

    Where the linear part stands first, a mobility is changed by D as an inertia is by D^T: it is kept as one, its
    blocks [I, H; H^T, m] those of [shifts; turns].
    """
    D, G = influences(tree, q), motion_subspaces(tree)
    branch = branches(tree, D, G, inertias(tree))
    zero = ex.zeros(3, 3)

    def step(i: int, inherited: Inertia | None) -> Inertia:
        S = Inertia(zero, zero, zero) if inherited is None else _transformed(D[i], inherited)
        if tree.inboard[i].nv:
            G_i, K = _linear_first(G[i]), _linear_first(branch.K[i])
            # (e - G K^T) S (e - G K^T)^T + G R^-1 G^T = S - G Z^T - Z G^T
            Z = S @ K
            # Half of the symmetric term in each of the two products, so that one outer product computes both.
            Z = Z - G_i @ (0.5 * (K.T @ Z + branch.R_inverse[i]))
            S = S.minus_outer(ex.horzcat(G_i, Z), ex.horzcat(Z, G_i))
        return S

    return tree.outward(step)


def _transformed(D: RigidTransform, S: Inertia) -> Inertia:
    """D Omega D^T."""
    return S.moved(-D.offset).turned(D.rotation.T)


def _linear_first(X: Mat) -> Mat:
    return ex.vertcat(X[3:, :], X[:3, :])


def _inverse_in(Omega: Mat, directions: Mat) -> Mat:
    """Lambda: the inverse in the selected directions, 0 in the others; NaN where no inverse exists."""
    counts, singular = directions @ directions.T, []

    def adjusted(k: int, pivot: Mat) -> Mat:
        is_regular = ex.if_else(_positive(pivot), 1, 0)
        singular.append(directions[k] * (1 - is_regular))
        return ex.if_else(is_regular, pivot, 1)

    part = counts * Omega
    for k in range(6):  # chosen, not added and taken away: sums are compiled in any order
        part[k, k] = ex.if_else(directions[k], Omega[k, k], 1)
    Lambda = inverse(part, adjusted)
    for k, kind in enumerate([ex.trace(Omega[:3, :3])] * 3 + [ex.trace(Omega[3:, 3:])] * 3):
        # Relative to the mobility of its kind: light links have small mobilities that are no rounding.
        share = _positive(MOBILITY_ROUNDING * kind * Lambda[k, k])
        singular.append(directions[k] * (1 - ex.if_else(share < 1, 1, 0)))
    return ex.if_else(sum(singular, ex.zeros(1, 1)), ex.full(6, 6, math.nan), counts * Lambda)


def _positive(x: Mat) -> Mat:
    """x, or 0 where it is negative: numbers that a compiled `<` takes for what they are."""
    return ex.fabs(x + ex.fabs(x)) / 2

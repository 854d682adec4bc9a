"""Forward dynamics in O(N): the factored inverse of the mass matrix, applied by sweeps.

    a = [e - K^T Phi_D Psi_beta G] R^-1 [e - G^T Psi_beta^T Phi_D^T K] (tau - C)          (19b)

with, from the leaves inward, the branch inertias J_i = M_i + sum over children of D_k^T J^_k D_k, where

    R_i = G_i^T J_i G_i + I_r,   K_i = J_i G_i R_i^-1,   J^_i = J_i - K_i R_i K_i^T,   beta_i = (e - G_i K_i^T) D_i

I_r is the armature of joint i, and tau is reduced by the passive efforts p: `passive.py`.
C itself is G^T Psi_D^T (M Psi_D A + B - W). Pushing it through the same factors merges its two sweeps with those of
(19b), so that motion is swept outward once, load inward once, acceleration outward once:

    z     = Psi_beta^T (J A + B - W + Phi_D^T K tau)      load that is left when the joints of the branch yield
    e_i   = R_i^-1 (tau_i - G_i^T z_i)
    V-dot = Psi_beta (G e + A)                            from the ground's upward acceleration -gravity
    a_i   = e_i - K_i^T D_i V-dot_ip

All this assumes independent joints. With mimic joints, bodies of different branches move together, and the factors of
(19b) do not exist: M is factored instead, (19a).

Cost: O(N). Source: Newton-Euler document, (19b) and its refs. [1], [2].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics import mass_matrix, passive
from dyn_service.dynamics.kinematics import influences, joint_values, joint_vector, motion_subspaces
from dyn_service.dynamics.newton_euler import (
    inertias,
    velocities,
    velocity_loads,
    velocity_products,
    world_acceleration,
)
from dyn_service.dynamics.rolled_tree import RolledTree, Walk
from dyn_service.dynamics.spatial import (
    Inertia,
    Mat,
    RigidTransform,
    _Transposed,
    column_by_column,
    constant,
    inverse,
    row_by_row,
)
from dyn_service.dynamics.sweeps import PerBody, from_children, inward, kept, outward
from dyn_service.model.tree import Tree


@dataclass(frozen=True, eq=False)
class ArticulatedTransform:
    """beta_i = (e - G_i K_i^T) D_i: the influence of a parent on a child whose joint yields freely."""

    D: RigidTransform
    G: Mat
    K: Mat

    @column_by_column
    def __matmul__(self, V: Mat) -> Mat:
        V_in_body = self.D @ V
        return V_in_body - self.G @ (self.K.T @ V_in_body)

    @property
    def T(self) -> Any:
        """beta_i^T."""
        return _Transposed(self)

    @column_by_column
    def transposed_matmul(self, F: Mat) -> Mat:
        """beta_i^T F."""
        return self.D.T @ (F - self.K @ (self.G.T @ F))


@dataclass(frozen=True, eq=False)
class ArticulatedInertias:
    """What (19b) needs of the configuration: J_i, R_i^-1, K_i, beta_i per body; a fixed joint has no R and no K."""

    J: list[Inertia]
    R_inverse: PerBody
    K: PerBody
    beta: PerBody


def branches(tree: Tree, D: PerBody, G: PerBody, M: PerBody) -> ArticulatedInertias:
    """The inward recursion for the branch inertias, a) and b) after (19b), for robots without mimic joints."""
    # A mimic joint couples branches, so that (19b) has no solution branch by branch.
    assert not tree.has_mimics
    R_inverse: list[Mat] = [ex.zeros(0, 0)] * len(tree)
    K: list[Mat] = [ex.zeros(6, 0)] * len(tree)
    rotor, free = passive.armatures(tree), _free(tree)

    def eliminate(i: int, J: Inertia) -> Inertia:
        """Returns J^_i; sets K_i and R_i^-1."""
        if not tree.inboard[i].nv:
            return J
        U = J @ G[i]
        R = G[i].T @ U + rotor[i]
        # Masked, not left out: which joints are locked is an input of kernels with overlays.
        R_inverse[i] = inverse(R) if tree.free is None else free[i] * inverse(_invertible(R, free[i]))
        K[i] = U @ R_inverse[i]
        return J.minus_outer(K[i], U)

    J = tree.inward(M, lambda i, J_i: D[i].congruence(eliminate(i, J_i)))
    # The sweep passes a body to its parent, so it eliminates no root.
    for i, parent in enumerate(tree.parent):
        if parent < 0:
            eliminate(i, J[i])
    # Stored in loops, because the passes of both solution sweeps read them.
    gains, beta = kept(tree, K), []
    for i, gain in enumerate(gains):
        beta.append(ArticulatedTransform(D[i], G[i], gain))
    return ArticulatedInertias(J, kept(tree, R_inverse), gains, PerBody(beta))


def _free(tree: Tree) -> list[Mat]:
    """Per body, 1 if its joint is not locked, else 0; the same for all its degrees of freedom."""
    free = constant(np.ones(tree.nv) if tree.free is None else tree.free)
    return [free[part.start] if part.stop > part.start else ex.matrix(0.0) for part in tree.in_v]


def _invertible(R: Mat, free: Mat) -> Mat:
    """R of a free joint; R + e of a locked one, which has an inverse and whose value is not used."""
    return R + (1 - free) * ex.eye(R.shape[0])


def forward_dynamics(tree: Tree, q: Mat, v: Mat, tau: Mat, gravity: Mat, wrenches: PerBody | None = None) -> Mat:
    """a, (19b). wrenches: [torque; force] on each body, at its origin in its axes."""
    if tree.has_mimics:
        return mass_matrix.forward_dynamics(tree, q, v, tau, gravity, wrenches)
    D, G, M = influences(tree, q), motion_subspaces(tree), inertias(tree)
    V = velocities(tree, D, G, v)
    A = velocity_products(tree, D, G, V, v)
    branch = branches(tree, D, G, M)
    load = PerBody(J @ A_i for J, A_i in zip(branch.J, A, strict=True)) + velocity_loads(M, V)
    if wrenches is not None:
        load = load - wrenches
    driving = joint_values(tree, tau - passive.efforts(tree, q, v))
    return articulated_solve(tree, D, G, branch, driving, load, A, world_acceleration(gravity))


def articulated_solve(
    tree: Tree,
    D: PerBody,
    G: PerBody,
    branch: ArticulatedInertias,
    effort: PerBody,
    load: PerBody | None = None,
    A: PerBody | None = None,
    ground: Mat | None = None,
) -> Mat:
    """M^-1 effort by the factors of (19b); with loads, velocity products and a moving ground, (19b) itself."""
    child_loads = from_children(tree, D, branch.K @ effort)
    z = inward(tree, branch.beta, child_loads if load is None else load + child_loads)
    yielded = kept(tree, branch.R_inverse @ (effort - G.T @ z))
    motion = outward(tree, branch.beta, G @ yielded if A is None else G @ yielded + A, world=ground)
    inherited = tree.of_parent(motion, ex.zeros(6, 1) if ground is None else ground)
    return joint_vector(tree, yielded - branch.K.T @ (D @ inherited))


def branch_inertias(tree: Tree, q: Mat) -> dict[str, Mat]:
    """J_i (nm, 6, 6), R (nv, nv), K (nv, 6), beta_i (nm, 6, 6) of a tree of moving bodies, in their own axes."""
    D, G, M = influences(tree, q), motion_subspaces(tree), inertias(tree)
    branch = branches(tree, D, G, M)
    # The document has D_1 = 0: no influence comes from the ground.
    beta = [ex.zeros(6, 6) if p < 0 else branch.beta[i] @ ex.eye(6) for i, p in enumerate(tree.parent)]
    J = [ex.vertcat(ex.horzcat(b.I, b.H), ex.horzcat(b.H.T, b.m)) for b in branch.J]
    rotor = passive.armatures(tree)
    R = [G[i].T @ (branch.J[i] @ G[i]) + rotor[i] for i in range(len(tree))]
    return {
        "inertia": ex.vertcat(*map(row_by_row, J)),
        "resistance": _block_diagonal(tree, R),
        "gain": ex.vertcat(*(row_by_row(K_i.T) for K_i in branch.K)),
        "influence": ex.vertcat(*map(row_by_row, beta)),
    }


@singledispatch
def _block_diagonal(tree: Tree, R: Sequence[Mat]) -> Mat:
    """Returns the matrix (nv, nv) with these blocks, row by row."""
    return row_by_row(ex.diagcat(*R))


@_block_diagonal.register(RolledTree)
def _block_diagonal_in_loops(tree: RolledTree, R: Sequence[Mat]) -> Walk:
    return tree.walk(lambda i: (R[i], None), lambda i, state: (state, None), outward=True)

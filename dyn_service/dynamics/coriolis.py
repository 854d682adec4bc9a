"""The Coriolis matrix, with M-dot - 2 C skew-symmetric.

    C(q, v) v = b(q, v) without gravity and passive forces,    C + C^T = M-dot

In spatial notation, with the inertia I of a body, its velocity V, [V x] and [V x*] the cross products with motions and
loads, and (h) xbar* the matrix with ((h) xbar*) V = V x* h, its load is I A + V x* I V. The matrix B (6, 6), in body
axes at the body's origin, maps a motion to a load:

    B = ([V x*] I - I [V x] + (I V) xbar*) / 2 = [ b       0 ]      f = m v - s m x omega: its linear momentum
                                                 [ -f~     0 ]

satisfies B V = V x* I V and makes I-dot - 2 B skew-symmetric along the motion. Sums over branch k, its joints rigid,
are B_k and the composite inertia J_k; with the columns S = G and S-dot = V x G of the joints,

    C_jk = S_j^T D_..^T (J_k S-dot_k + B_k S_k)                          j an ancestor of k, or k
    C_kj = S-dot_j^T D_..^T J_k S_k + S_j^T D_..^T B_k^T S_k

Cost: O(N d) with d the depth. Source: S. Echeandia, P. M. Wensing, 'Numerical Methods to Compute the Coriolis Matrix
and Christoffel Symbols for Rigid-Body Systems', 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics.kinematics import free_selector, influences, motion_subspaces
from dyn_service.dynamics.newton_euler import inertias, velocities
from dyn_service.dynamics.rolled_tree import NotRolledError, RolledTree
from dyn_service.dynamics.spatial import Inertia, Mat, RigidTransform, angular, cross, join, linear, skew
from dyn_service.dynamics.sweeps import inward_recursion
from dyn_service.model.tree import Tree


@dataclass(frozen=True, eq=False)
class _VelocityLoad:
    """B = [b, 0; -f~, 0]. b: (3, 3). f: (3, 1)."""

    b: Mat
    f: Mat

    @classmethod
    def of(cls, inertia: Inertia, V: Mat) -> _VelocityLoad:
        """B of one body."""
        w, momentum = angular(V), inertia @ V
        turned = skew(w) @ inertia.I - inertia.I @ skew(w)
        shifted = skew(linear(V)) @ inertia.H.T - inertia.H @ skew(linear(V))
        return cls((turned + shifted - skew(angular(momentum))) / 2, linear(momentum))

    def __add__(self, other: _VelocityLoad) -> _VelocityLoad:
        return _VelocityLoad(self.b + other.b, self.f + other.f)

    def __matmul__(self, S: Mat) -> Mat:
        """B S, S (6, k)."""
        return join(self.b @ S[:3, :], -skew(self.f) @ S[:3, :])

    def transposed_matmul(self, S: Mat) -> Mat:
        """B^T S."""
        return join(self.b.T @ S[:3, :] + skew(self.f) @ S[3:, :], ex.zeros(3, S.shape[1]))

    def in_parent(self, D: RigidTransform) -> _VelocityLoad:
        """D^T B D: B in the parent's axes at the parent's origin."""
        R = D.rotation
        f = R.T @ self.f
        return _VelocityLoad(R.T @ self.b @ R - skew(D.offset) @ skew(f), f)


def coriolis_matrix(tree: Tree, q: Mat, v: Mat) -> dict[str, Mat]:
    """C (nv, nv), C v and C^T v."""
    C = _matrix(tree, q, v)
    return {"matrix": C, "forces": C @ v, "transposed_forces": C.T @ v}


def _matrix(tree: Tree, q: Mat, v: Mat) -> Mat:
    if isinstance(tree, RolledTree):
        raise NotRolledError("the entries of pairs of bodies differ by which is the ancestor")
    D, G, M = influences(tree, q), motion_subspaces(tree), inertias(tree)
    V = velocities(tree, D, G, v)
    rates = [_cross(V_i, G_i) for V_i, G_i in zip(V, G, strict=True)]
    composite = inward_recursion(tree, M, lambda i, C_i: D[i].congruence(C_i))
    loads = [_VelocityLoad.of(M_i, V_i) for M_i, V_i in zip(M, V, strict=True)]
    B = inward_recursion(tree, loads, lambda i, B_i: B_i.in_parent(D[i]))
    C = ex.zeros(tree.nv, tree.nv)
    for k in range(len(tree)):
        if not tree.inboard[k].nv:
            continue
        own = composite[k] @ G[k]
        right, mass, load = composite[k] @ rates[k] + B[k] @ G[k], own, B[k].transposed_matmul(G[k])
        for j in tree.ancestors(k):
            if tree.inboard[j].nv:
                C[tree.in_v[j], tree.in_v[k]] += G[j].T @ right
                if j != k:
                    C[tree.in_v[k], tree.in_v[j]] += (rates[j].T @ mass + G[j].T @ load).T
            right, mass, load = D[j].T @ right, D[j].T @ mass, D[j].T @ load
    return free_selector(tree) @ C @ free_selector(tree)


def _cross(V: Mat, S: Mat) -> Mat:
    """V x S, of each column."""
    columns = [
        join(cross(angular(V), angular(s)), cross(angular(V), linear(s)) + cross(linear(V), angular(s)))
        for s in ex.horzsplit(S)
    ]
    return ex.horzcat(*columns) if columns else ex.zeros(6, 0)

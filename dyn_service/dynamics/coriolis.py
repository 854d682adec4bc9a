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
from typing import Any

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics.derivatives import assembled
from dyn_service.dynamics.kinematics import influences, joint_values, joint_vector, motion_subspaces, zero_locked
from dyn_service.dynamics.newton_euler import inertias, velocities
from dyn_service.dynamics.spatial import Inertia, Mat, RigidTransform, angular, cross, join, linear, skew
from dyn_service.dynamics.sweeps import PerBody, inward, outward, walk
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
        rotational = skew(w) @ inertia.I - inertia.I @ skew(w)
        translational = skew(linear(V)) @ inertia.H.T - inertia.H @ skew(linear(V))
        return cls((rotational + translational - skew(angular(momentum))) / 2, linear(momentum))

    @property
    def column(self) -> Mat:
        """All numbers."""
        return ex.vertcat(ex.vec(ex.matrix(self.b)), self.f)

    @classmethod
    def of_column(cls, x: Mat) -> _VelocityLoad:
        """The inverse of `column`."""
        return cls(ex.reshape(x[:9], 3, 3), x[9:])

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


def coriolis_matrix(tree: Tree, q: Mat, v: Mat) -> dict[str, Any]:
    """C (nv, nv), C v and C^T v."""
    D, G, M = influences(tree, q), motion_subspaces(tree), inertias(tree)
    V = velocities(tree, D, G, v)
    rates = PerBody(_cross(V_i, G_i) for V_i, G_i in zip(V, G, strict=True))
    loads = PerBody(_VelocityLoad.of(M_i, V_i) for M_i, V_i in zip(M, V, strict=True))
    C = _matrix(tree, D, G, M, rates, loads)
    if isinstance(C, ex.Matrix):
        return {"matrix": C, "forces": C @ v, "transposed_forces": C.T @ v}
    # Columns of locked joints are 0 in C, so their rates must be 0 in C v.
    if tree.free is not None:
        v = zero_locked(tree, v)
        V = velocities(tree, D, G, v)
    forces = inward(tree, D, M @ outward(tree, D, rates @ joint_values(tree, v)) + loads @ V)
    momenta = inward(tree, D, M @ V)
    transposed_forces = inward(
        tree, D, PerBody(load.transposed_matmul(V_i) for load, V_i in zip(loads, V, strict=True))
    )
    return {
        "matrix": C,
        "forces": joint_vector(tree, G.T @ forces),
        "transposed_forces": joint_vector(tree, rates.T @ momenta + G.T @ transposed_forces),
    }


def _matrix(tree: Tree, D: PerBody, G: PerBody, M: PerBody, rates: PerBody, loads: PerBody) -> Any:
    composite = tree.inward(M, lambda i, C_i: D[i].congruence(C_i))
    columns = [load.column for load in loads]
    B_columns = tree.inward(columns, lambda i, x: _VelocityLoad.of_column(x).in_parent(D[i]).column)
    B = [_VelocityLoad.of_column(column) for column in B_columns]

    def start(k: int) -> tuple[Mat, Mat | None]:
        right, mass = composite[k] @ rates[k] + B[k] @ G[k], composite[k] @ G[k]
        passed_on = tree.inboard[k].nv and not tree.parent[k] < 0
        return G[k].T @ right, carried(k, right, mass, B[k].transposed_matmul(G[k])) if passed_on else None

    def step(j: int, state: Mat) -> tuple[Mat, Mat | None]:
        right, mass, load = state[:6, :], state[6:12, :], state[12:, :]
        block = ex.vertcat(G[j].T @ right, rates[j].T @ mass + G[j].T @ load)
        return block, None if tree.parent[j] < 0 else carried(j, right, mass, load)

    def carried(i: int, *loads: Mat) -> Mat:
        return ex.vertcat(*(D[i].T @ load for load in loads))

    return assembled(tree, walk(tree, start, step, outward=False), 1, columns=True)[0]


def _cross(V: Mat, S: Mat) -> Mat:
    """V x S, of each column."""
    columns = [
        join(cross(angular(V), angular(s)), cross(angular(V), linear(s)) + cross(linear(V), angular(s)))
        for s in ex.horzsplit(S)
    ]
    return ex.horzcat(*columns) if columns else ex.zeros(6, 0)

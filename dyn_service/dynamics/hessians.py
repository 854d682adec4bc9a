"""Weighted second derivatives: the Hessians of lambda . tau over (q, v, a) and of lambda . a over (q, v, tau).

lambda is constant, one weight per entry of v. A second derivative with respect to q is that with respect to e at e = 0
of the function at integrate(q, e, 1): it is symmetric, for joints with several degrees of freedom too. The rate of the
gradient of `derivatives.py` along the joint's axes would not be: the motions g of the same joint do not commute.

lambda . tau is the power of all loads when the joints move with the rates lambda (virtual power). With the velocities
W = Psi_D G lambda of that motion, w of a particle, and those of `derivatives.py`, branch j has the sums

    N_j = [H; P] of W: its momentum             y_j = 2 sum of m v x w            J_j = the rate of I, I-dot, of W

with F_j, C_j and B_j, carried to the parent like these: y turns with it. A change of q_j gives the ground of the
branch the velocity Xi_j = (D W_p) x G_j of this motion, besides Psi, Omega, Gamma of V, so that the gradient is

    d/dq_j = Xi_j . F_j + Omega_j . N_j + psi_j . y_j      d/dv_j = Gamma_j . N_j + g_j . y_j      d/da_j = G_j . N_j

Of these only the sums change with the joints i of branch j, seen from body j:

           of q_i                                                                   of v_i                  of a_i
    dF     B_i psi_i + C_i Omega_i + G_i x* F_i                                     B_i g_i + C_i Gamma_i   C_i G_i
    dN     C_i Xi_i + G_i x* N_i                                                    0                       0
    dy     B_i^T Xi_i - J_i psi_i - H_i x psi_i - 2 P_i x U_i + g_i x y_i           - J_i g_i - H_i x g_i   0
                                                                                      - 2 P_i x u_i

where H, P are those of N_i and Psi_i = [psi_i; U_i]. Each pair of joints, i in branch j or i = j, has the entries

    qq = Xi_j . dF_q + Omega_j . dN_q + psi_j . dy_q       qv = Xi_j . dF_v + psi_j . dy_v       qa = Xi_j . dF_a
    vq = Gamma_j . dN_q + g_j . dy_q                       vv = g_j . dy_v                       aq = G_j . dN_q

(for i = j of qq and vv the symmetric part, and vq is the transposed qv); all others are 0. Smooth Coulomb friction
adds to the diagonal of vv; all passive efforts add to the gradient.

Of a = M^-1 (tau - b), with mu = M^-1 lambda and X = (qa of mu) M^-1, at this a,

    d/dq = - (d/dq of mu . tau)          qq = - (qq of mu) + X dtau/dq + (X dtau/dq)^T        qtau = - X
    d/dv = - (d/dv of mu . tau)          qv = - (qv of mu) + X dtau/dv                        vv = - (vv of mu)

and d/dtau = mu. Cost: O(N d), d the depth; of a O(N^2 d), at most O(N^3), for products of a dense matrix and one with
the zeros of the tree. Source: derived here. The tensors that are not weighted: S. Singh, R. Russo, P. Wensing, 'On
second-order derivatives of rigid-body dynamics: theory and implementation', 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dyn_service.dynamics import derivatives, mass_matrix, passive
from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics.derivatives import Ground, Motion, assembled, ground_of, loaded
from dyn_service.dynamics.kinematics import (
    free_selector,
    joint_values,
    joint_vector,
    zero_locked,
)
from dyn_service.dynamics.newton_euler import inertias
from dyn_service.dynamics.rolled_tree import LessProduct, Solved, Walk
from dyn_service.dynamics.spatial import (
    Mat,
    angular,
    cross,
    linear,
    moment_rate,
    of_upper_triangle,
    skew,
    upper_triangle,
)
from dyn_service.dynamics.sweeps import PerBody, walk
from dyn_service.model.tree import Tree


@dataclass(frozen=True, eq=False)
class _Weighted:
    """N (6,), J (3, 3) and y (3,) of a branch; see the module."""

    N: Mat
    J: Mat
    y: Mat

    @property
    def column(self) -> Mat:
        """All numbers; of J the upper triangle."""
        return ex.vertcat(self.N, upper_triangle(self.J), self.y)

    @classmethod
    def of(cls, x: Mat) -> _Weighted:
        """The inverse of `column`."""
        return cls(x[:6], of_upper_triangle(x[6:12]), x[12:])

    def carried(self, D: Mat) -> _Weighted:
        """As the parent sees it."""
        R, N = D.rotation, D.T @ self.N
        return _Weighted(N, R.T @ (self.J @ R) + moment_rate(D.offset, linear(N)), R.T @ self.y)

    def moved(self, X: Mat) -> Mat:
        """dy of a velocity X of the ground, (3, k)."""
        turns, shifts = X[:3, :], X[3:, :]
        return -(self.J @ turns) - skew(angular(self.N)) @ turns - 2 * (skew(linear(self.N)) @ shifts)


def _velocities(tree: Tree, D: PerBody, G: PerBody, weights: Mat) -> tuple[PerBody, PerBody]:
    """W of each body, and Xi."""
    rates = G @ joint_values(tree, weights)

    def step(i: int, parent_column: Mat | None) -> Mat:
        W_p = ex.zeros(6, 1) if parent_column is None else D[i] @ parent_column[:6]
        return ex.vertcat(W_p + rates[i], W_p)

    columns = tree.outward(step)
    Xi = []
    for x, G_i in zip(columns, G, strict=True):
        omega, u = skew(x[6:9]), skew(x[9:])
        Xi.append(ex.vertcat(omega @ G_i[:3, :], omega @ G_i[3:, :] + u @ G_i[:3, :]))
    return PerBody(x[:6] for x in columns), PerBody(Xi)


def _branches(tree: Tree, D: PerBody, body_motion: Motion, weighted: PerBody) -> list[_Weighted]:
    columns = []
    for M, V, W in zip(inertias(tree), body_motion.V, weighted, strict=True):
        omega, Omega, h = angular(V), angular(W), ex.vertcat(M.H[2, 1], M.H[0, 2], M.H[1, 0])
        Omega_I, squares = skew(Omega) @ M.I, ex.trace(M.I) * ex.eye(3) - 2 * M.I
        y = 2 * (cross(linear(M @ V), linear(W)) + cross(linear(V), cross(Omega, h))) + squares @ cross(omega, Omega)
        columns.append(_Weighted(M @ W, Omega_I + Omega_I.T + moment_rate(linear(W), h), y).column)
    branch_columns = tree.inward(columns, lambda i, x: _Weighted.of(x).carried(D[i]).column)
    return [_Weighted.of(x) for x in branch_columns]


@dataclass(frozen=True, eq=False)
class Hessian:
    """Gradient (nv,) and blocks (nv, nv) of the Hessian over q, v, and x: a or tau. vx and xx are 0.

    efforts: dtau/dq and dtau/dv, if the same walk computes them.
    """

    q: Mat
    v: Mat
    x: Mat
    qq: Any
    qv: Any
    vv: Any
    qx: Any
    efforts: tuple[Any, ...] = ()


def of_inverse_dynamics(
    tree: Tree,
    q: Mat,
    v: Mat,
    a: Mat,
    weights: Mat,
    gravity: Mat,
    wrenches: PerBody | None,
    same_qv: derivatives.Swept | None = None,
    *,
    with_efforts: bool = False,
) -> Hessian:
    """That of weights . tau, (18a), over q, v and a.

    same_qv: see `derivatives.swept`. with_efforts: whether it has the derivatives of tau.
    """
    weights = zero_locked(tree, weights)
    sweeps = derivatives.swept(tree, q, v, a, gravity, wrenches, same_qv)
    D, G, body_motion, branch = sweeps.D, sweeps.G, sweeps.motion, sweeps.branch
    motions = zip(G, body_motion.V, body_motion.V_p, body_motion.A_p, strict=True)
    ground = [ground_of(*motions_i) for motions_i in motions]
    W, Xi = _velocities(tree, D, G, weights)
    weighted = _branches(tree, D, body_motion, W)
    qq, qv, qa, *efforts, vv = _matrices(tree, sweeps, ground, Xi, weighted, with_efforts=with_efforts)
    passives = (passive.stiffness(tree), passive.resistance(tree, v))
    bodies = list(zip(branch, ground, weighted, Xi, G, strict=True))
    of_q = [
        Xi_i.T @ branch_i.F + ground_i.Omega.T @ weighted_i.N + ground_i.psi.T @ weighted_i.y
        for branch_i, ground_i, weighted_i, Xi_i, _ in bodies
    ]
    of_v = [ground_i.Gamma.T @ weighted_i.N + G_i[:3, :].T @ weighted_i.y for _, ground_i, weighted_i, _, G_i in bodies]
    of_a = [G_i.T @ weighted_i.N for _, _, weighted_i, _, G_i in bodies]
    return Hessian(
        joint_vector(tree, PerBody(of_q)) + passive.stiffness(tree) * weights,
        joint_vector(tree, PerBody(of_v)) + passive.resistance(tree, v) * weights,
        joint_vector(tree, PerBody(of_a)) + passive.armature(tree) * weights,
        qq,
        qv,
        derivatives.plus_diagonal(tree, vv, passive.curvature(tree, v, weights)),
        qa,
        tuple(derivatives.plus_diagonal(tree, X, d) for X, d in zip(efforts, passives, strict=False)),
    )


def _matrices(
    tree: Tree,
    sweeps: derivatives.Swept,
    ground: Sequence[Ground],
    Xi: PerBody,
    weighted: Sequence[_Weighted],
    *,
    with_efforts: bool,
) -> list[Any]:
    """The blocks qq, qv, qa, then dtau/dq and dtau/dv if `with_efforts`, and vv, by one walk to the ancestors."""
    D, G, branch = sweeps.D, sweeps.G, sweeps.branch
    count = 6 if with_efforts else 4

    def blocks(j: int, state: Mat) -> list[Mat]:
        F_q, F_v, F_a, N_q = (state[k : k + 6, :] for k in (0, 6, 12, 18))
        y_q, y_v, r, ground_i, g = state[24:27, :], state[27:30, :], state[30:, :], ground[j], G[j][:3, :]
        qq = Xi[j].T @ F_q + ground_i.Omega.T @ N_q + ground_i.psi.T @ y_q
        qv = Xi[j].T @ F_v + ground_i.psi.T @ y_v
        vq = ground_i.Gamma.T @ N_q + g.T @ y_q
        matrices, transposed = [qq, qv, Xi[j].T @ F_a], [qq, vq, G[j].T @ N_q]
        if with_efforts:
            matrices += [G[j].T @ F_q, G[j].T @ F_v]
            transposed += [ground_i.psi.T @ r + ground_i.Omega.T @ F_a, g.T @ r + ground_i.Gamma.T @ F_a]
        return [*matrices, g.T @ y_v, *transposed]

    def carried(j: int, state: Mat) -> Mat | None:
        if tree.parent[j] < 0:
            return None
        loads = (D[j].T @ state[k : k + 6, :] for k in (0, 6, 12, 18))
        return ex.vertcat(*loads, *(D[j].rotation.T @ state[k : k + 3, :] for k in range(24, state.shape[0], 3)))

    def start(i: int) -> tuple[Mat, Mat | None]:
        branch_i, ground_i, weighted_i, g = branch[i], ground[i], weighted[i], G[i][:3, :]
        load = branch_i.coriolis(ground_i.psi) + branch_i.inertia(ground_i.Omega)
        state = ex.vertcat(
            load + loaded(G[i], branch_i.F),
            branch_i.coriolis(g) + branch_i.inertia(ground_i.Gamma),
            branch_i.inertia(G[i]),
            branch_i.inertia(Xi[i]) + loaded(G[i], weighted_i.N),
            branch_i.coriolis_transposed(Xi[i]) + weighted_i.moved(ground_i.Psi) - skew(weighted_i.y) @ g,
            weighted_i.moved(G[i]),
            *([branch_i.coriolis_transposed(G[i])] if with_efforts else []),
        )
        qq, qv, qa, *of_v, vv = blocks(i, state)[:count]
        efforts = [G[i].T @ load, of_v[1]] if with_efforts else []
        # Symmetric, as the Hessian along `integrate`: the rate of the gradient along rotations of one joint is not.
        block = ex.vertcat((qq + qq.T) / 2, qv, qa, *efforts, (vv + vv.T) / 2)
        return block, carried(i, state) if tree.inboard[i].nv else None

    def step(j: int, state: Mat) -> tuple[Mat, Mat | None]:
        return ex.vertcat(*blocks(j, state)), carried(j, state)

    return assembled(tree, walk(tree, start, step, outward=False), count, columns=True)


def of_forward_dynamics(
    tree: Tree, q: Mat, v: Mat, tau: Mat, weights: Mat, gravity: Mat, wrenches: PerBody | None
) -> Hessian:
    """That of weights . a, (19a), over q, v and tau."""
    net, M, sweeps = derivatives.net_efforts(tree, q, v, tau, gravity, wrenches)
    solutions = mass_matrix.solve(tree, M, ex.horzcat(net, zero_locked(tree, weights)))
    a, mu = solutions[:, 0], solutions[:, 1]
    hessian = of_inverse_dynamics(tree, q, v, a, mu, gravity, wrenches, sweeps, with_efforts=True)
    of_q, of_v = hessian.efforts
    if isinstance(M, Walk):
        Z = Solved(M, -hessian.qx.T)
        qq, qv = LessProduct(-hessian.qq, Z, of_q, twice=True), LessProduct(-hessian.qv, Z, of_v)
        return Hessian(-hessian.q, -hessian.v, mu, qq, qv, -hessian.vv, replace(Z, transposed=True))
    X = mass_matrix.solve(tree, M, hessian.qx.T).T @ free_selector(tree)
    X_q, X_v = X @ of_q, X @ of_v
    return Hessian(-hessian.q, -hessian.v, mu, X_q + X_q.T - hessian.qq, X_v - hessian.qv, -hessian.vv, -X)


def inverse_dynamics_hessian(
    tree: Tree, q: Mat, v: Mat, a: Mat, weights: Mat, gravity: Mat, wrenches: PerBody | None = None
) -> dict[str, Mat]:
    """Gradient and Hessian of weights . tau, (18a), over q, v and a."""
    return _named(of_inverse_dynamics(tree, q, v, a, weights, gravity, wrenches), "a")


def forward_dynamics_hessian(
    tree: Tree, q: Mat, v: Mat, tau: Mat, weights: Mat, gravity: Mat, wrenches: PerBody | None = None
) -> dict[str, Mat]:
    """Gradient and Hessian of weights . a, (19a), over q, v and tau."""
    return _named(of_forward_dynamics(tree, q, v, tau, weights, gravity, wrenches), "tau")


def _named(hessian: Hessian, x: str) -> dict[str, Mat]:
    gradient = {"gradient_q": hessian.q, "gradient_v": hessian.v, f"gradient_{x}": hessian.x}
    blocks = {"qq": hessian.qq, "qv": hessian.qv, "vv": hessian.vv, f"q{x}": hessian.qx}
    return gradient | {f"hessian_{name}": derivatives.by_row(part) for name, part in blocks.items()}

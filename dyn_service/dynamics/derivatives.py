"""First derivatives of inverse dynamics and of forward dynamics by one outward and one inward sweep.

A derivative with respect to q is with respect to a small motion e of the joints, q + e = integrate(q, e, 1): in the
tangent space, in body axes, as `integrate` and `difference` have it.

G_j e moves all bodies of branch j as one, and each of them keeps its motion relative to body j. What they feel is
another motion of the ground on which the branch stands. With V_p = [omega; v] and V-dot_p of the parent, carried to
the origin of body j in its axes, and G = [g; u], columns per degree of freedom:

    psi   = omega x g                                          the ground's angular velocity
    Omega = [omega-dot x g + omega x psi                       .. acceleration
             omega-dot x u + omega x (omega x u) + v-dot x g - 2 psi x v]
    Gamma = (D V_p + V_j) x G                                  .. acceleration, of a change of v_j (its angular
                                                               velocity is then g)

Constant velocity of the ground has no effect; an angular velocity w gives each particle of the branch the Coriolis
acceleration 2 w x v. With the sums over the particles of branch i about the origin of body i,

    C_i = [I, h~; -h~, m],   K_i = [H; P]                      composite inertia (18c), momentum Hamilton (P.1), (P.2)
    B_i w = [I-dot w + w x H; 2 w x P]                         load per angular velocity of the ground, B is (6, 3)

and I-dot = sum m (2 r . v - r v^T - v r^T) the rate of I, all seen about a point that stands still:

    I_ip    += R I R^T + [d, h] + m (d . d - d d^T)            [a, b] = 2 a . b - a b^T - b a^T
    I-dot_ip += R I-dot R^T + [d, P]

Then, with F_i the load at joint i, (13), and j a body that carries i, all seen from body j:

    dtau_i/dq_j = G_i^T (B_i psi_j + C_i Omega_j)         dtau_j/dq_i = G_j^T (B_i psi_i + C_i Omega_i + G_i x* F_i)
    dtau_i/dv_j = G_i^T (B_i g_j + C_i Gamma_j)           dtau_j/dv_i = G_j^T (B_i g_i + C_i Gamma_i)
    dtau_i/da_j = G_i^T C_i G_j                           dtau_i/dq_i = G_i^T (B_i psi_i + C_i Omega_i)

and the passive efforts, `passive.py`. External wrenches are constant in body axes. With mimic joints, an entry is the
sum over all pairs of bodies that its two velocities drive. Velocities of origins are relative to that of the tree's
first body: a velocity common to all bodies has no effect, and would cost digits.

Of a = M^-1 (tau - b): da = -M^-1 dtau at this a, with M factored as L^T D L, (19a).

Cost: O(N d), d the depth; forward dynamics O(N d^2). Sources: J. Carpentier, N. Mansard, 'Analytical derivatives of
rigid body dynamics algorithms', 2018; S. Singh, R. Russo, P. Wensing, 'Efficient analytical derivatives of rigid-body
dynamics using spatial vector algebra', 2022.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import factorial
from typing import Any

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics import mass_matrix, passive
from dyn_service.dynamics.kinematics import (
    free_selector,
    influences,
    integrate,
    joint_values,
    joint_vector,
    locked_diagonal,
    motion_subspaces,
    normalised,
    position_rates,
    zero_locked,
)
from dyn_service.dynamics.newton_euler import inertias, world_acceleration
from dyn_service.dynamics.rolled_tree import PairMatrix, Solved, Walk, known_of_first
from dyn_service.dynamics.spatial import (
    Mat,
    angular,
    constant,
    cross,
    join,
    linear,
    mirrored,
    moment_rate,
    of_upper_triangle,
    row_by_row,
    skew,
    upper_triangle,
)
from dyn_service.dynamics.sweeps import PerBody, inward, walk
from dyn_service.model.joints.rotations import SMALL, series
from dyn_service.model.steps import Step, explicit_euler_step, rk4_step, semi_implicit_euler_step
from dyn_service.model.tree import Tree

_NONE, _STILL = ex.zeros(3, 1), ex.zeros(6, 1)


@dataclass(frozen=True, eq=False)
class Motion:
    """Per body, V and V-dot, and those of its parent carried to its origin; all in its own axes.

    V_parent: V of the parent in the parent's axes.
    """

    V: PerBody
    A: PerBody
    V_p: PerBody
    A_p: PerBody
    V_parent: PerBody


def motion(
    tree: Tree,
    D: PerBody,
    G: PerBody,
    v: Mat,
    a: Mat,
    gravity: Mat | None = None,
    *,
    relative: bool = False,
    same_v: Motion | None = None,
) -> Motion:
    """The outward sweep.

    relative: linear velocities are those relative to the origin of the tree's first body. same_v: a motion with the
    same velocities, which are not computed again.
    """
    rates, accelerations = G @ joint_values(tree, v), G @ joint_values(tree, a)
    ground = _STILL if gravity is None else world_acceleration(gravity)

    def carried(i: int, V: Mat | None) -> Mat:
        if V is None:
            # Relative to the first body, since a fast base would cost digits.
            return join(_NONE, -linear(rates[i]) if relative else _NONE)
        return D[i] @ V

    if same_v is None:
        V = PerBody(tree.outward(lambda i, V: carried(i, V) + rates[i]))
        V_parent = PerBody(tree.of_parent(V, _STILL))
        V_p = PerBody(carried(i, None if parent < 0 else V_parent[i]) for i, parent in enumerate(tree.parent))
    else:
        V, V_parent, V_p = same_v.V, same_v.V_parent, same_v.V_p

    def accelerated(i: int, A: Mat | None) -> Mat:
        if A is None:
            return D[i] @ ground
        # The velocities relative to the first body suffice here: only omega enters.
        omega = angular(V_parent[i])
        return D[i] @ A + join(_NONE, D[i].rotation @ cross(omega, cross(omega, D[i].offset)))

    def step(i: int, A: Mat | None) -> Mat:
        w, u, omega = angular(rates[i]), linear(rates[i]), angular(V_p[i])
        return accelerated(i, A) + accelerations[i] + join(cross(omega, w), 2 * cross(omega, u) + cross(w, u))

    A = PerBody(tree.outward(step))
    A_above = tree.of_parent(A, _STILL)
    A_p = (accelerated(i, None if parent < 0 else A_above[i]) for i, parent in enumerate(tree.parent))
    return Motion(V, A, V_p, PerBody(A_p), V_parent)


@dataclass(frozen=True, eq=False)
class Branch:
    """The sums over the particles of a branch, and the load F at its joint; see the module."""

    m: Mat
    h: Mat
    I: Mat
    rate: Mat
    K: Mat
    F: Mat

    @property
    def column(self) -> Mat:
        """All numbers but F; of symmetric matrices the upper triangle."""
        return ex.vertcat(self.m, self.h, upper_triangle(self.I), upper_triangle(self.rate), self.K)

    @classmethod
    def of(cls, x: Mat, F: Mat) -> Branch:
        """The branch with this `column` and F."""
        return cls(x[0], x[1:4], of_upper_triangle(x[4:10]), of_upper_triangle(x[10:16]), x[16:], F)

    def carried(self, D: Mat) -> Branch:
        """As the parent sees it."""
        R, d, K = D.rotation, D.offset, self.K
        h, P = R.T @ self.h, R.T @ linear(K)
        I = R.T @ (self.I @ R) + moment_rate(d, h + (self.m / 2) * d)
        rate = R.T @ (self.rate @ R) + moment_rate(d, P)
        return Branch(self.m, h + self.m * d, I, rate, join(R.T @ angular(K) + cross(d, P), P), D.T @ self.F)

    def inertia(self, X: Mat) -> Mat:
        """C X, (6, k)."""
        turns, shifts, h = X[:3, :], X[3:, :], skew(self.h)
        return ex.vertcat(self.I @ turns + h @ shifts, self.m * shifts - h @ turns)

    def coriolis(self, w: Mat) -> Mat:
        """B w, (6, k)."""
        return ex.vertcat(self.rate @ w - skew(angular(self.K)) @ w, -2 * (skew(linear(self.K)) @ w))

    def coriolis_transposed(self, X: Mat) -> Mat:
        """B^T X, (3, k)."""
        turns, shifts = X[:3, :], X[3:, :]
        return self.rate @ turns + skew(angular(self.K)) @ turns + 2 * (skew(linear(self.K)) @ shifts)


def branches(
    tree: Tree, D: PerBody, body_motion: Motion, wrenches: PerBody | None, same_v: Sequence[Branch] | None = None
) -> list[Branch]:
    """The inward sweep. same_v: the branches of a motion with the same velocities: only F is computed."""
    bodies, loads = [], []
    for i, (M, V, A) in enumerate(zip(inertias(tree), body_motion.V, body_motion.A, strict=True)):
        omega, K, h = angular(V), M @ V, ex.vertcat(M.H[2, 1], M.H[0, 2], M.H[1, 0])
        F = M @ A + join(cross(omega, M.I @ omega), cross(omega, cross(omega, h)))
        loads.append(F if wrenches is None else F - wrenches[i])
        omega_I = skew(omega) @ M.I
        bodies.append(Branch(M.m[0, 0], h, M.I, omega_I + omega_I.T + moment_rate(linear(V), h), K, F))
    F = inward(tree, D, loads)
    # All sums but F depend on positions and velocities alone.
    if same_v is not None:
        return [replace(branch, F=F_i) for branch, F_i in zip(same_v, F, strict=True)]
    columns = tree.inward([branch.column for branch in bodies], lambda i, x: Branch.of(x, _STILL).carried(D[i]).column)
    return [Branch.of(x, F_i) for x, F_i in zip(columns, F, strict=True)]


@dataclass(frozen=True, eq=False)
class Ground:
    """What a change of a joint's position and velocity does to the ground of its branch; see the module. Psi is its
    velocity: psi and the linear part.
    """

    psi: Mat
    Omega: Mat
    Gamma: Mat
    Psi: Mat


def ground_of(G: Mat, V: Mat, V_p: Mat, A_p: Mat) -> Ground:
    """psi (3, k), Omega, Gamma and Psi (6, k)."""
    g, u = G[:3, :], G[3:, :]
    omega, v, alpha, a_p = skew(angular(V_p)), linear(V_p), skew(angular(A_p)), skew(linear(A_p))
    psi = omega @ g
    shifted = alpha @ u + omega @ (omega @ u) + a_p @ g + 2 * skew(v) @ psi
    V_sum = V_p + V
    w = skew(angular(V_sum))
    return Ground(
        psi,
        ex.vertcat(alpha @ g + omega @ psi, shifted),
        ex.vertcat(w @ g, w @ u + skew(linear(V_sum)) @ g),
        ex.vertcat(psi, omega @ u + skew(v) @ g),
    )


def loaded(G: Mat, F: Mat) -> Mat:
    """G x* F, (6, k)."""
    torque, force = skew(angular(F)), skew(linear(F))
    return -ex.vertcat(torque @ G[:3, :] + force @ G[3:, :], force @ G[:3, :])


@dataclass(frozen=True, eq=False)
class Derivatives:
    """f (nv,), and its derivatives (nv, nv) with respect to q, v, and a or tau.

    In a kernel as loops, matrices are of pairs of bodies.
    """

    f: Mat
    q: Any
    v: Any
    x: Any


@dataclass(frozen=True, eq=False)
class Swept:
    """What both sweeps compute: D, G, the motion and the branches."""

    D: PerBody
    G: PerBody
    motion: Motion
    branch: list[Branch]


def swept(
    tree: Tree, q: Mat, v: Mat, a: Mat, gravity: Mat, wrenches: PerBody | None, same_qv: Swept | None = None
) -> Swept:
    """Both sweeps. same_qv: those of the same q and v."""
    if same_qv is not None:
        body_motion = motion(tree, same_qv.D, same_qv.G, v, a, gravity, relative=True, same_v=same_qv.motion)
        return Swept(
            same_qv.D, same_qv.G, body_motion, branches(tree, same_qv.D, body_motion, wrenches, same_qv.branch)
        )
    D, G = influences(tree, q), motion_subspaces(tree)
    body_motion = motion(tree, D, G, v, a, gravity, relative=True)
    return Swept(D, G, body_motion, branches(tree, D, body_motion, wrenches))


def of_inverse_dynamics(
    tree: Tree, q: Mat, v: Mat, a: Mat, gravity: Mat, wrenches: PerBody | None, same_qv: Swept | None = None
) -> Derivatives:
    """tau, (18a), and its derivatives with respect to q, v and a. same_qv: see `swept`."""
    sweeps, rotor = swept(tree, q, v, a, gravity, wrenches, same_qv), passive.armatures(tree)
    D, G, body_motion, branch = sweeps.D, sweeps.G, sweeps.motion, sweeps.branch
    motions = zip(G, body_motion.V, body_motion.V_p, body_motion.A_p, strict=True)
    ground = [ground_of(*motions_i) for motions_i in motions]

    def start(i: int) -> tuple[Mat, Mat | None]:
        branch_i, ground_i = branch[i], ground[i]
        Q = branch_i.coriolis(ground_i.psi) + branch_i.inertia(ground_i.Omega)
        W = branch_i.coriolis(G[i][:3, :]) + branch_i.inertia(ground_i.Gamma)
        K, r = branch_i.inertia(G[i]), branch_i.coriolis_transposed(G[i])
        # dtau/da is M: one half is computed and mirrored.
        block = ex.vertcat(G[i].T @ Q, G[i].T @ W, mirrored(G[i].T @ K) + rotor[i])
        if not tree.inboard[i].nv or tree.parent[i] < 0:
            return block, None
        return block, _carried(D[i], ex.vertcat(Q + loaded(G[i], branch_i.F), W, K, r))

    def step(j: int, state: Mat) -> tuple[Mat, Mat | None]:
        K, r = state[12:18, :], state[18:, :]
        columns = [G[j].T @ state[k : k + 6, :] for k in (0, 6, 12)]
        rows = (ground[j].psi.T @ r + ground[j].Omega.T @ K, G[j][:3, :].T @ r + ground[j].Gamma.T @ K)
        return ex.vertcat(*columns, *rows), None if tree.parent[j] < 0 else _carried(D[j], state)

    dq, dv, da = assembled(tree, walk(tree, start, step, outward=False), 3)
    tau = joint_vector(tree, PerBody(G_i.T @ branch_i.F for G_i, branch_i in zip(G, branch, strict=True)))
    return Derivatives(
        tau + passive.armature(tree) * a + passive.efforts(tree, q, v),
        plus_diagonal(tree, dq, passive.stiffness(tree)),
        plus_diagonal(tree, dv, passive.resistance(tree, v)),
        da,
    )


def assembled(tree: Tree, blocks: dict[tuple[int, int], Mat] | Walk, count: int, *, columns: bool = False) -> list[Any]:
    """`count` matrices (nv, nv) of blocks for each body i and its ancestors j; rows of locked joints are 0.

    Blocks: above each other, of each matrix (j, i), (nv_j, nv_i); then, if j is not i, of each the transposed (i, j),
    of the last only if it is not symmetric. columns: whether columns of locked joints are 0, too.
    """
    if isinstance(blocks, Walk):
        return _recorded(tree, blocks, count, columns=columns)
    matrices = [ex.zeros(tree.nv, tree.nv) for _ in range(count)]
    for (i, j), block in blocks.items():
        if not block.numel():
            continue
        of_i, of_j = tree.in_v[i], tree.in_v[j]
        parts = ex.vertsplit(block, tree.inboard[j].nv)
        for matrix, part in zip(matrices, parts[:count], strict=True):
            matrix[of_j, of_i] += part
        if i != j:
            for matrix, part in zip(matrices, (*parts[count:], parts[count - 1])[:count], strict=True):
                matrix[of_i, of_j] += part.T
    if tree.free is None:
        return matrices
    return [free_selector(tree) @ X @ (free_selector(tree) if columns else ex.eye(tree.nv)) for X in matrices]


def _recorded(tree: Tree, walk: Walk, count: int, *, columns: bool) -> list[Any]:
    """The matrices of `assembled` in a kernel as loops."""
    kinds, free = range(len(tree)), None
    if tree.free is not None:
        free = joint_values(tree, constant(tree.free))
        free_of_first = known_of_first(walk, free)
    matrices = [PairMatrix(walk, [ex.zeros(0, 0)] * len(tree)) for _ in range(count)]

    def of_free(part: Mat, rows: Mat | None, columns: Mat | None) -> Mat:
        part = part if rows is None else ex.diag(rows) @ part
        return part if columns is None else part @ ex.diag(columns)

    for a in kinds:
        if tree.inboard[a].nv:
            parts = ex.vertsplit(walk.first[a][0], tree.inboard[a].nv)
            for matrix, part in zip(matrices, parts, strict=True):
                matrix.first[a] = of_free(part, free and free[a], free[a] if free and columns else None)
    for (a, b), (block, _) in walk.others.items():
        if block.numel():
            parts = ex.vertsplit(block, tree.inboard[b].nv)
            of_b, of_a = (free[b], free_of_first[a, b]) if free else (None, None)
            for matrix, part in zip(matrices, parts[:count], strict=True):
                matrix.across[a, b] = of_free(part, of_b, of_a if columns else None)
            for matrix, part in zip(matrices, (*parts[count:], parts[count - 1])[:count], strict=True):
                matrix.along[a, b] = of_free(part, of_b if columns else None, of_a)
    return matrices


def plus_diagonal(tree: Tree, X: Any, d: Mat) -> Any:
    """X + diag(d), of matrices of pairs, too."""
    if isinstance(X, ex.Matrix):
        return X + ex.diag(d)
    entries = zip(joint_values(tree, d), tree.follows, strict=True)
    return X.plus_diagonal(
        [ex.diag(x * float(not follower)) if x.numel() else ex.zeros(0, 0) for x, follower in entries]
    )


def by_row(X: Any) -> Any:
    """The entries of a matrix (nv, nv) row by row; matrices of a kernel as loops are stored so."""
    return row_by_row(X) if isinstance(X, ex.Matrix) else X


def _carried(D: Mat, state: Mat) -> Mat:
    """Loads (18, k) and r (3, k), as the parent sees them."""
    return ex.vertcat(carried_loads(D, state[:18, :]), D.rotation.T @ state[18:, :])


def carried_loads(D: Mat, loads: Mat) -> Mat:
    """Loads (6 n, k), as the parent sees them."""
    return ex.vertcat(*(D.T @ loads[k : k + 6, :] for k in range(0, loads.shape[0], 6)))


def mass_entries(tree: Tree, D: PerBody, G: PerBody, branch: list[Branch]) -> mass_matrix.Entries | Walk:
    """The entries of M from these composite inertias, as `mass_matrix.entries`."""
    rotor = passive.armatures(tree)

    def start(i: int) -> tuple[Mat, Mat | None]:
        K = branch[i].inertia(G[i])
        return G[i].T @ K + rotor[i], D[i].T @ K if tree.inboard[i].nv and tree.parent[i] >= 0 else None

    def step(j: int, K: Mat) -> tuple[Mat, Mat | None]:
        return G[j].T @ K, None if tree.parent[j] < 0 else D[j].T @ K

    blocks = mass_matrix.free_blocks(tree, start, step)
    if isinstance(blocks, Walk):
        return blocks
    return entries_of(tree, assembled(tree, blocks, 1)[0])


def entries_of(tree: Tree, M: Mat) -> mass_matrix.Entries:
    """The entries of a mass matrix of `assembled`, with those of the identity for locked joints."""
    M = M if tree.free is None else M @ free_selector(tree) + locked_diagonal(tree)
    return {(i, j): M[i, j] for i in range(tree.nv) for j in range(i + 1) if i == j or M[i, j].nnz()}


def net_efforts(
    tree: Tree, q: Mat, v: Mat, tau: Mat, gravity: Mat, wrenches: PerBody | None
) -> tuple[Mat, mass_matrix.Entries | Walk, Swept]:
    """M a of (19a), (nv,), the entries of M, (nv, nv), by the sweeps of the derivatives, and these, without a."""
    sweeps = swept(tree, q, v, ex.zeros(tree.nv, 1), gravity, wrenches)
    bias = joint_vector(
        tree, PerBody(G_i.T @ branch_i.F for G_i, branch_i in zip(sweeps.G, sweeps.branch, strict=True))
    )
    M = mass_entries(tree, sweeps.D, sweeps.G, sweeps.branch)
    return zero_locked(tree, tau) - bias - passive.efforts(tree, q, v), M, sweeps


def of_forward_dynamics(tree: Tree, q: Mat, v: Mat, tau: Mat, gravity: Mat, wrenches: PerBody | None) -> Derivatives:
    """a, (19a), and its derivatives with respect to q, v and tau."""
    net, M, sweeps = net_efforts(tree, q, v, tau, gravity, wrenches)
    a = mass_matrix.solve(tree, M, net)
    of_tau = of_inverse_dynamics(tree, q, v, a, gravity, wrenches, sweeps)
    if isinstance(M, Walk):
        zero = PairMatrix(of_tau.q.walk, [ex.zeros(*X.shape) for X in of_tau.q.first])
        inverse = Solved(M, plus_diagonal(tree, zero, zero_locked(tree, ex.full(tree.nv, 1, 1.0))), symmetric=True)
        return Derivatives(a, Solved(M, -of_tau.q), Solved(M, -of_tau.v), inverse)
    solutions = mass_matrix.solve(tree, M, ex.horzcat(-of_tau.q, -of_tau.v, free_selector(tree)))
    parts: list[Mat] = ex.horzsplit(solutions, tree.nv) if tree.nv else [solutions] * 3
    da_dq, da_dv, inverse = parts
    # Of the symmetric inverse, the half that the back substitution finds first.
    position = {entry: k for k, entry in enumerate(tree.parent_first_entries)}
    da_dtau = ex.zeros(tree.nv, tree.nv)
    for i in range(tree.nv):
        for j in range(tree.nv):
            da_dtau[i, j] = inverse[i, j] if position[i] <= position[j] else inverse[j, i]
    return Derivatives(a, da_dq, da_dv, da_dtau)


def inverse_dynamics_derivatives(
    tree: Tree, q: Mat, v: Mat, a: Mat, gravity: Mat, wrenches: PerBody | None = None
) -> dict[str, Mat]:
    """tau, (18a), and its derivatives with respect to q, v and a."""
    return _named(of_inverse_dynamics(tree, q, v, a, gravity, wrenches), "tau", "a")


def forward_dynamics_derivatives(
    tree: Tree, q: Mat, v: Mat, tau: Mat, gravity: Mat, wrenches: PerBody | None = None
) -> dict[str, Mat]:
    """a, (19a), and its derivatives with respect to q, v and tau."""
    return _named(of_forward_dynamics(tree, q, v, tau, gravity, wrenches), "a", "tau")


@dataclass(frozen=True, eq=False)
class _Changing:
    """A value and its changes, one column each, in the formulas of `model/steps.py`. change: None for a constant."""

    x: Mat
    change: Any = None

    def __add__(self, other: _Changing) -> _Changing:
        return _Changing(self.x + other.x, self.change + other.change)

    def __truediv__(self, n: float) -> _Changing:
        return _Changing(self.x / n)

    def __mul__(self, other: _Changing) -> _Changing:
        return _Changing(self.x * other.x, self.x * other.change)

    def __rmul__(self, n: float) -> _Changing:
        return _Changing(n * self.x, n * self.change)


class _Positions:
    """The positions of a tree's joints. Changes are in the tangent space, those of stages are of the entries of q, N e
    of a small motion e, since stages add rates to these.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree, self._flat = tree, tree.configuration.flat
        if not self._flat:
            q, v = self._at = ex.sym("q", tree.nq), ex.sym("v", tree.nv)
            rate = position_rates(tree, q, v)
            N = ex.jacobian(rate, v)
            self._parts = [rate, N, ex.jacobian(rate, q), ex.diag(1 / ex.sum1(N**2)) @ N.T]

    def _of(self, q: Mat, v: Mat | None = None) -> list[Mat]:
        """q-dot, N, the derivative of q-dot with respect to q, and the inverse of N; v for the first and third."""
        v = ex.zeros(self._tree.nv, 1) if v is None else v
        return ex.substitute(self._parts, self._at, [ex.densify(q), ex.densify(v)])

    def entries(self, q: Mat, motions: Mat) -> Mat:
        """Returns the changes of the entries of q."""
        return motions if self._flat else self._of(q)[1] @ motions

    def motions(self, q: _Changing) -> Mat:
        """Returns the small motions of changes of the entries of q, which need not be unit quaternions."""
        return q.change if self._flat else self._of(q.x)[3] @ q.change

    def rate(self, q: _Changing, v: _Changing) -> _Changing:
        """q-dot, and the changes of its entries."""
        if self._flat:
            return v
        rate, N, rate_q, _ = self._of(q.x, v.x)
        return _Changing(rate, rate_q @ q.change + N @ v.change)

    def normalised(self, q: _Changing) -> _Changing:
        """The position with quaternions of unit length, and its small motions."""
        return _Changing(normalised(self._tree, q.x), self.motions(q))

    def integrate(self, q: _Changing, v: _Changing, dt: _Changing) -> _Changing:
        """The position after dt with constant v, and its small motions."""
        of_position, of_motion = integrate_derivatives(self._tree, dt.x * v.x)
        x = integrate(self._tree, q.x, v.x, dt.x)
        return _Changing(x, of_position @ q.change + dt.x * (of_motion @ v.change))


_Acceleration = Callable[[_Changing, _Changing], _Changing]


def _step(
    step: Step, tree: Tree, acceleration: _Acceleration, q: Mat, v: Mat, dt: Mat, dq: Mat, dv: Mat
) -> tuple[_Changing, _Changing]:
    """Returns the state after dt. acceleration: of a state, changes of its position are small motions."""
    positions = _Positions(tree)
    stage_acceleration = acceleration
    if step is rk4_step:
        dq, stage_acceleration = (
            positions.entries(q, dq),
            lambda q, v: acceleration(_Changing(q.x, positions.motions(q)), v),
        )
    return step(stage_acceleration, _Changing(q, dq), _Changing(v, dv), _Changing(dt), on=positions)


def _changes(
    step: Step,
    tree: Tree,
    q: Mat,
    v: Mat,
    tau: Mat,
    dt: Mat,
    gravity: Mat,
    wrenches: PerBody | None = None,
    **changes: Mat,
) -> dict[str, Mat]:
    """The changes dq1, dv1 .. of the states of the stages of a step, and dq, dv of its result.

    They are linear in the change of the state before, dq and dv, and those of the accelerations a1 .., da1 ...
    """
    states: dict[str, Mat] = {}

    def stage(q: _Changing, v: _Changing) -> _Changing:
        # Two entries, dq and dv, for each earlier stage.
        k = 1 + len(states) // 2
        states[f"dq{k}"], states[f"dv{k}"] = q.change, v.change
        return _Changing(changes[f"a{k}"], changes[f"da{k}"])

    q_next, v_next = _step(step, tree, stage, q, v, dt, changes["dq"], changes["dv"])
    return {**states, "dq": q_next.change, "dv": v_next.change}


def _of_step(
    step: Step, tree: Tree, q: Mat, v: Mat, tau: Mat, dt: Mat, gravity: Mat, wrenches: PerBody | None = None
) -> dict[str, Mat]:
    """The state after dt, and its derivatives with respect to the state before and tau.

    Raises NotRolledError on a rolled tree: its kernels are in stages, since the matrices are multiplied.
    """
    tree.need_bodies("the derivatives of a step are products of matrices")
    n, has_stages = tree.nv, step is rk4_step
    q_symbols, v_symbols = (ex.sym("q", tree.nq), ex.sym("v", n)) if has_stages else (q, v)
    derivatives = of_forward_dynamics(tree, q_symbols, v_symbols, tau, gravity, wrenches)
    expressions = [derivatives.f, derivatives.q, derivatives.v, derivatives.x]

    def stage(q: _Changing, v: _Changing) -> _Changing:
        # RK4 enters the same expressions at each stage, because tracing them again would take most of the time.
        a, a_q, a_v, a_tau = (
            ex.substitute(expressions, [q_symbols, v_symbols], [ex.densify(q.x), ex.densify(v.x)])
            if has_stages
            else expressions
        )
        return _Changing(a, a_q @ q.change + a_v @ v.change + ex.horzcat(ex.zeros(n, 2 * n), a_tau))

    zero, identity = ex.zeros(n, n), ex.eye(n)
    q_next, v_next = _step(
        step, tree, stage, q, v, dt, ex.horzcat(identity, zero, zero), ex.horzcat(zero, identity, zero)
    )
    return step_outputs(q_next.x, v_next.x, q_next.change, v_next.change)


explicit_euler = partial(_of_step, explicit_euler_step)
semi_implicit_euler = partial(_of_step, semi_implicit_euler_step)
rk4 = partial(_of_step, rk4_step)
explicit_euler_changes = partial(_changes, explicit_euler_step)
semi_implicit_euler_changes = partial(_changes, semi_implicit_euler_step)
rk4_changes = partial(_changes, rk4_step)


def step_outputs(q: Mat, v: Mat, of_q: Mat, of_v: Mat) -> dict[str, Mat]:
    """Outputs of a step. of_q, of_v: changes with q, v and tau, (nv, 3 nv)."""
    dx: Mat = ex.vertcat(of_q, of_v)
    n = v.shape[0]
    return {"q": q, "v": v, "dx_dx": row_by_row(dx[:, : 2 * n]), "dx_dtau": row_by_row(dx[:, 2 * n :])}


def integrate_derivatives(tree: Tree, step: Mat) -> tuple[Mat, Mat]:
    """How integrate(q, step, 1) changes with q and with step, (nv, nv) each, in tangent spaces.

    Of X = ad_step, [w x, 0; u x, w x] on the joint's own velocities: e^-X, and its mean from 0 to step,
    e - X / 2 + X^2 / 6 - ..., a polynomial in X, since X^5 = -2 w^2 X^3 - w^4 X.
    """
    by_position, by_step = ex.eye(tree.nv), ex.eye(tree.nv)
    for i in tree.independent_bodies:
        joint, in_v = tree.inboard[i], tree.in_v[i]
        # Its motions commute, so carrying them changes nothing.
        if joint.rate_is_velocity:
            continue
        G = constant(joint.subspace)
        w, u = skew((G @ step[in_v])[:3]), skew((G @ step[in_v])[3:])
        square = ex.sumsqr((G @ step[in_v])[:3])

        def turned(Y: Mat, w: Mat = w, u: Mat = u) -> Mat:
            return ex.vertcat(w @ Y[:3, :], u @ Y[:3, :] + w @ Y[3:, :])

        total = ex.zeros(6, joint.nv)
        # By Horner's rule: powers of X would be matrices.
        for factor in reversed(_means(square)):
            total = turned(factor * G + total)
        by_step[in_v, in_v] = G.T @ (G - total)
        by_position[in_v, in_v] = G.T @ (G - turned(G - total))
    return by_position, by_step


def _means(square: Mat) -> list[Mat]:
    """c_1 .. c_4 of e - c_1 X - c_2 X^2 - c_3 X^3 - c_4 X^4, the mean of e^-X; square: |w|^2.

    J. Sola, J. Deray, D. Atchuthan, 'A micro Lie theory', 2018; closed forms, and below `SMALL` their series.
    """
    small = square < SMALL
    # Both branches are computed: the closed form must be finite where the series is selected.
    wide = ex.sqrt(ex.if_else(small, SMALL, square))
    sin, cos = ex.sin(wide), ex.cos(wide)
    closed = (
        (4 - wide * sin - 4 * cos) / (2 * wide**2),
        -(4 * wide - 5 * sin + wide * cos) / (2 * wide**3),
        (2 - wide * sin - 2 * cos) / (2 * wide**4),
        -(2 * wide - 3 * sin + wide * cos) / (2 * wide**5),
    )
    return [
        ex.if_else(small, series(square, coefficients), direct)
        for coefficients, direct in zip(_SERIES, closed, strict=True)
    ]


def _series(terms: int) -> tuple[tuple[float, ...], ...]:
    """The series of `_means` in powers of |w|^2, by X^5 = -2 w^2 X^3 - w^4 X."""
    # Fractions, so that the sums are exact. power: X^n by its coefficients of X^k w^(2 m).
    power = {(1, 0): Fraction(1)}
    coefficients: dict[tuple[int, int], Fraction] = {}
    for n in range(1, 2 * terms + 4):
        for key, factor in power.items():
            coefficients[key] = coefficients.get(key, Fraction(0)) - (-1) ** n * factor / factorial(n + 1)
        raised: dict[tuple[int, int], Fraction] = {}
        for (k, m), factor in power.items():
            for term, multiple in (((k + 1, m), 1),) if k < 4 else (((3, m + 1), -2), ((1, m + 2), -1)):
                raised[term] = raised.get(term, Fraction(0)) + multiple * factor
        power = raised
    return tuple(tuple(float(coefficients.get((k, m), 0)) for m in range(terms)) for k in (1, 2, 3, 4))


_SERIES = _series(9)


def _named(derivatives: Derivatives, f: str, x: str) -> dict[str, Mat]:
    parts = {"q": derivatives.q, "v": derivatives.v, x: derivatives.x}
    return {f: derivatives.f} | {f"d{f}_d{name}": by_row(part) for name, part in parts.items()}

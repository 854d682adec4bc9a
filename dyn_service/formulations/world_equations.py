"""The influence operators as explicit matrices, and the equations of the Newton-Euler document written with them.

    Phi_A   block (i, j) is A_i if j is the parent of i, else 0                 Def. 1; Phi_A^T is Def. 2
    Psi_A = (e - Phi_A)^-1 = e + Phi_A + ... + Phi_A^(m-1),  Phi_A^m = 0        (P3), (P4)

`WorldEquations` computes them in numbers, in world axes, with gravity as a force at each centre of mass:

    v-bar = S Psi_D G v                     (V.5)        v-dot = Psi_D (G a + A)                        (7)
    F = Psi_D^T M Psi_D G a + Psi_D^T (M Psi_D A + B - Y^T F-bar)                                       (15)
    M = G^T Psi_D^T M Psi_D G + I_r         (18c)        C = G^T Psi_D^T (M Psi_D A + B - Y^T F-bar)    (18b)
    a = [e - K^T Phi_D Psi_beta G] R^-1 [e - G^T Psi_beta^T Phi_D^T K] (tau - C)                        (19b)

With mimic joints, G is that of all joints times S, `model/tree.py`. I_r and p are armature and passive efforts as in
`dynamics/passive.py`, implemented a second time, because this class checks the kernels. Cost: O(N^2).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dyn_service.api.queries import Array
from dyn_service.model import composite
from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.inertia import skew
from dyn_service.model.tree import Tree

Blocks = Sequence[Matrix] | NDArray[np.float64]


def relative(x: Array, y: Array, scale: Array | None = None) -> Array:
    """The largest difference over the largest entry of either, or of the scale, per state."""
    sizes = [np.abs(x), np.abs(y)] + ([] if scale is None else [scale])
    size = np.max([s.max(axis=-1, initial=0.0) for s in np.broadcast_arrays(*sizes)], axis=0)
    difference = np.abs(x - y).max(axis=-1, initial=0.0)
    # Only where there is nothing to compare is the residual zero: a NaN on either side must come out as one.
    return np.asarray(np.divide(difference, size, out=np.zeros_like(difference), where=~(size == 0.0)))


def phi(tree: Tree, A: Blocks) -> sparse.csr_array:
    """Phi_A, (kN, kN), for blocks A_i (k, k). The blocks of root bodies are not used: the document's A_1 = 0."""
    return _assembled(tree, [(i, parent, A[i]) for i, parent in enumerate(tree.parent) if parent >= 0], A)


def psi(tree: Tree, A: Blocks) -> sparse.csr_array:
    """Psi_A, (kN, kN): block (i, j) is A_i A_ip ... down to the child of j, for every j <= i; e on the diagonal."""
    entries = []
    for i in range(len(tree)):
        product = np.eye(len(A[0]))
        for j in tree.ancestors(i):
            entries.append((i, j, product))
            product = product @ A[j]
    return _assembled(tree, entries, A)


def _assembled(tree: Tree, entries: list[tuple[int, int, Matrix]], A: Blocks) -> sparse.csr_array:
    k = len(A[0])
    size = k * len(tree)
    if not entries:
        return sparse.csr_array((size, size))
    within_row, within_column = np.divmod(np.arange(k * k), k)
    rows = np.concatenate([i * k + within_row for i, _, _ in entries])
    columns = np.concatenate([j * k + within_column for _, j, _ in entries])
    values = np.concatenate([np.asarray(block, dtype=float).ravel() for _, _, block in entries])
    return sparse.csr_array((values, (rows, columns)), shape=(size, size))


class WorldEquations:
    """A tree at one state, in world axes, under the document's names. Stacked six-vectors are (N, 6).

    Args:
        tree: One body per link, or `Robot.bodies.tree`.
        q: (nv,) positions.
        v: (nv,) velocities.
        gravity: (3,) m/s^2.
        wrenches: (N, 6) [torque; force] on each body at its joint, in world axes: Y^T F-bar, less weight.
    """

    def __init__(self, tree: Tree, q: Vector, v: Vector, gravity: Vector, wrenches: Matrix | None = None) -> None:
        self.tree, self.q, self.v = tree, np.asarray(q, dtype=float), np.asarray(v, dtype=float)
        self.rates = tree.coupling_matrix @ self.v
        """(nr,): S v, the rate of each joint, followers included."""
        self.gravity = np.asarray(gravity, dtype=float)
        self.wrenches = np.zeros((len(tree), 6)) if wrenches is None else np.asarray(wrenches, dtype=float)
        self.rotation, self.eta = _poses(tree, self.q)
        """R_WB (N, 3, 3), and the joints' places (N, 3)."""

    @cached_property
    def d(self) -> Matrix:
        """(N, 3): joint i from its parent's joint."""
        return np.array([self.eta[i] - (self.eta[p] if p >= 0 else 0.0) for i, p in enumerate(self.tree.parent)])

    @cached_property
    def s(self) -> Matrix:
        """(N, 3): centre of mass from the joint."""
        return np.array([R @ body.com for R, body in zip(self.rotation, self.tree.inertia, strict=True)])

    @cached_property
    def D(self) -> Matrix:
        """(N, 6, 6), (4)."""
        return np.array([_lever(d) for d in self.d])

    @cached_property
    def S(self) -> Matrix:
        """(N, 6, 6), (1)."""
        return np.array([_lever(s) for s in self.s])

    @cached_property
    def axes(self) -> list[Matrix]:
        """(6, nv_i): G_i of each body, its joint moving by itself."""
        joints = zip(self.rotation, self.tree.without_mimics.inboard, strict=True)
        return [np.kron(np.eye(2), R) @ joint.subspace for R, joint in joints]

    @cached_property
    def G_all(self) -> sparse.csr_array:
        """(6N, nr), block diagonal over the joints that move, each by itself."""
        return self._columns(self.axes)

    @cached_property
    def G(self) -> sparse.csr_array:
        """(6N, nv): times S, which couples followers to the joints they mimic; 0 for those that are locked."""
        return self.G_all @ sparse.csr_array(self.tree.coupling_matrix * self.free)

    @cached_property
    def free(self) -> Vector:
        """(nv,): 0 where a joint is locked, else 1."""
        return np.ones(self.tree.nv) if self.tree.free is None else np.asarray(self.tree.free)

    def _columns(self, blocks: Sequence[Matrix]) -> sparse.csr_array:
        """(6N, nr): of each body its block (6, nv_i) in its joint's columns."""
        columns = sparse.lil_array((6 * len(self.tree), self.tree.nr))
        for i in self.tree.movable:
            columns[6 * i : 6 * i + 6, self.tree.in_rates[i]] = blocks[i]
        return columns.tocsr()

    @cached_property
    def Phi(self) -> sparse.csr_array:
        """Phi_D."""
        return phi(self.tree, self.D)

    @cached_property
    def Psi(self) -> sparse.csr_array:
        """Psi_D."""
        return psi(self.tree, self.D)

    @cached_property
    def velocity(self) -> Matrix:
        """V_i = [omega_i; eta-dot_i], (V.4)."""
        return np.asarray(self.Psi @ (self.G @ self.v)).reshape(-1, 6)

    @cached_property
    def A(self) -> Matrix:
        """(5a), with what joints add that shift."""
        rows = np.zeros((len(self.tree), 6))
        for i, parent in enumerate(self.tree.parent):
            omega = self.velocity[parent, :3] if parent >= 0 else np.zeros(3)
            rate = self.axes[i] @ self.rates[self.tree.in_rates[i]]
            rows[i, :3] = np.cross(omega, rate[:3])
            rows[i, 3:] = np.cross(omega, np.cross(omega, self.d[i]) * (parent >= 0)) + 2 * np.cross(omega, rate[3:])
            rows[i, 3:] += np.cross(rate[:3], rate[3:])
        return rows

    @cached_property
    def inertia_about_com(self) -> Matrix:
        """I_i (N, 3, 3) in world axes."""
        return np.array([R @ b.about_com @ R.T for R, b in zip(self.rotation, self.tree.inertia, strict=True)])

    @cached_property
    def M_bar(self) -> Matrix:
        """(N, 6, 6), centred at the centres of mass, (11)."""
        blocks = np.zeros((len(self.tree), 6, 6))
        for block, I, body in zip(blocks, self.inertia_about_com, self.tree.inertia, strict=True):
            block[:3, :3], block[3:, 3:] = I, body.mass * np.eye(3)
        return blocks

    @cached_property
    def M(self) -> Matrix:
        """(N, 6, 6) = S^T M-bar S, (16)."""
        return np.swapaxes(self.S, 1, 2) @ self.M_bar @ self.S

    @cached_property
    def B(self) -> Matrix:
        """(N, 6) = S^T M-bar A-bar + B-bar, (17)."""
        rows = np.zeros((len(self.tree), 6))
        for i in range(len(self.tree)):
            omega, I = self.velocity[i, :3], self.inertia_about_com[i]
            A_bar = np.concatenate([np.zeros(3), np.cross(omega, np.cross(omega, self.s[i]))])
            B_bar = np.concatenate([np.cross(omega, I @ omega), np.zeros(3)])
            rows[i] = self.S[i].T @ (self.M_bar[i] @ A_bar) + B_bar
        return rows

    @cached_property
    def applied(self) -> Matrix:
        """Y^T F-bar (N, 6): weight at the centres of mass, and the given wrenches."""
        weight = np.zeros((len(self.tree), 6))
        for i, body in enumerate(self.tree.inertia):
            weight[i, 3:] = body.mass * self.gravity
            weight[i, :3] = np.cross(self.s[i], weight[i, 3:])
        return weight + self.wrenches

    def acceleration(self, a: Vector) -> Matrix:
        """v-dot_i (N, 6), (7)."""
        return np.asarray(self.Psi @ (self.G @ np.asarray(a) + self.A.ravel())).reshape(-1, 6)

    def centre_acceleration(self, a: Vector) -> Matrix:
        """v-bar-dot_i (N, 6) of the centres of mass, (8)."""
        acceleration_rows = np.asarray(np.einsum("nij,nj->ni", self.S, self.acceleration(a)))
        omega = self.velocity[:, :3]
        acceleration_rows[:, 3:] += np.cross(omega, np.cross(omega, self.s))
        return acceleration_rows

    def forces(self, a: Vector) -> Matrix:
        """F_i = [tau_i; f_i] (N, 6): load that the parent exerts at joint i, (13), (15)."""
        load = np.einsum("nij,nj->ni", self.M, self.acceleration(a)) + self.B - self.applied
        return np.asarray(self.Psi.T @ load.ravel()).reshape(-1, 6)

    @cached_property
    def C(self) -> Vector:
        """(nv,), (18b)."""
        return np.asarray(self.G.T @ self.forces(np.zeros(self.tree.nv)).ravel())

    @cached_property
    def p(self) -> Vector:
        """(nv,): the efforts that actuators add because of the joints' damping, friction and springs."""
        return np.asarray(self.tree.coupling_matrix.T @ self.p_all)

    @cached_property
    def p_all(self) -> Vector:
        """(nr,): the same at each joint that moves, followers included."""
        passive, efforts = self.tree.passive, np.zeros(self.tree.nr)
        for i in self.tree.movable:
            for k, entry in enumerate(range(self.tree.in_rates[i].start, self.tree.in_rates[i].stop)):
                efforts[entry] += passive.damping[entry] * self.rates[entry]
                efforts[entry] += passive.friction[entry] * np.tanh(self.rates[entry] / passive.width[entry])
                if passive.stiffness[entry]:
                    position = self.tree.inboard[i].ratio * self.q[self.tree.in_q[i]][k]
                    efforts[entry] += passive.stiffness[entry] * (position - passive.rest[entry])
        return efforts

    @cached_property
    def mass_matrix(self) -> Matrix:
        """(nv, nv), (18c), by the document's three steps: J = Psi_D G, Q = M J, J^T Q."""
        S = self.tree.coupling_matrix
        rotor = S.T @ np.diag(self.tree.passive.armature) @ S
        return self._bodies_mass_matrix(self.G) + rotor + np.diag(1.0 - self.free)

    def _bodies_mass_matrix(self, G: sparse.csr_array) -> Matrix:
        J = self.Psi @ G
        Q = sparse.block_diag(list(self.M), format="csr") @ J
        return np.asarray((J.T @ Q).toarray())

    @cached_property
    def branches(self) -> tuple[Matrix, Matrix, list[Matrix], Matrix]:
        """J_i (N, 6, 6), R (nr, nr) block diagonal, K_i (6, nv_i), beta (N, 6, 6) of (19b), each joint by itself."""
        J, beta = self.M.copy(), self.D.copy()
        # (19b) has no answer where an R_i has no inverse.
        K = [np.full((6, joint.nv), np.nan) for joint in self.tree.inboard]
        R = np.zeros((self.tree.nr, self.tree.nr))
        for i in range(len(self.tree) - 1, -1, -1):
            G, hat = self.axes[i], J[i]
            if self.tree.inboard[i].nv and not self.free[self.tree.in_v[i]].any():
                in_rates = self.tree.in_rates[i]
                K[i], R[in_rates, in_rates] = np.zeros(K[i].shape), np.eye(self.tree.inboard[i].nv)
            elif self.tree.inboard[i].nv:
                in_rates = self.tree.in_rates[i]
                R_i = R[in_rates, in_rates] = G.T @ J[i] @ G + np.diag(self.tree.passive.armature[in_rates])
                with suppress(np.linalg.LinAlgError):
                    K[i] = J[i] @ G @ np.linalg.inv(R_i)
                hat = J[i] - K[i] @ R_i @ K[i].T
                beta[i] = (np.eye(6) - G @ K[i].T) @ self.D[i]
            if self.tree.parent[i] >= 0:
                J[self.tree.parent[i]] += self.D[i].T @ hat @ self.D[i]
        return J, R, K, beta

    def forward_dynamics(self, tau: Vector) -> Vector:
        """(nv,), (19b) with tau less p, operator by operator from right to left; where joints follow, `_tied`."""
        if self.tree.has_mimics:
            return self._tied(tau)
        _, R, K_blocks, beta = self.branches
        K, Psi_beta = self._columns(K_blocks), psi(self.tree, beta)
        f = self.free * np.asarray(tau) - self.p - self.C
        left = f - self.G.T @ (Psi_beta.T @ (self.Phi.T @ (K @ f)))
        left = np.linalg.solve(R, left)
        return np.asarray(left - K.T @ (self.Phi @ (Psi_beta @ (self.G @ left))))

    def _tied(self, tau: Vector) -> Vector:
        """(nv,) from the equations of all joints, each by itself, with the efforts l of what ties them as unknowns:

        M_all a + C_all + p_all = tau_all + T^T l,   T a = 0: what followers are off m times their leader, and
                                                     what those that are locked move
        """
        tree = self.tree
        slices = (tree.in_rates[i] for i in tree.independent_bodies)
        T_led = np.concatenate([np.arange(part.start, part.stop) for part in slices])
        following = np.setdiff1d(np.arange(tree.nr), T_led)
        T = np.eye(tree.nr)[following]
        T[:, T_led] = -tree.coupling_matrix[following]
        T = np.concatenate([T, np.eye(tree.nr)[T_led[self.free == 0.0]]])
        M = self._bodies_mass_matrix(self.G_all) + np.diag(tree.passive.armature)
        C = np.asarray(self.G_all.T @ self.forces(np.zeros(tree.nv)).ravel())
        driving = -C - self.p_all
        driving[T_led] += np.asarray(tau)
        zero = np.zeros((len(T), len(T)))
        solved = np.linalg.solve(np.block([[M, T.T], [T, zero]]), np.concatenate([driving, np.zeros(len(T))]))
        return np.asarray(solved[T_led])


def _poses(tree: Tree, q: Vector) -> tuple[Matrix, Matrix]:
    rotations, origins = np.zeros((len(tree), 3, 3)), np.zeros((len(tree), 3))
    for i, parent in enumerate(tree.parent):
        R, p = composite.pose(tree, i, q)
        if parent >= 0:
            R, p = rotations[parent] @ R, origins[parent] + rotations[parent] @ p
        rotations[i], origins[i] = R, p
    return rotations, origins


def _lever(d: Vector) -> Matrix:
    """[e 0; -d~ e]."""
    lever = np.eye(6)
    lever[3:, :3] = -skew(d)
    return lever

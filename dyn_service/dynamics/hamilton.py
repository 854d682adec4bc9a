"""Hamilton's equations: motion in positions q and generalised momenta p.

    K      = Psi_D^T M V                                 system momentum, K_i = [H_i; P_i]        (P.1a, b), (P.2)
    p      = G^T K + I_r v = M(q) v                      generalised momenta                      (9), (P.3a), (P.4)
    v      = [e - K^T Phi_D Psi_beta G] R^-1 [e - G^T Psi_beta^T Phi_D^T K] p                     (P.5b)
    p-dot  = tau - p(q, v) + G^T (Psi_D^T W - V x* K)    W: weight and external wrenches          (P.3b)
    H      = p^T v / 2 + V(q)                            the Hamiltonian                          (3), (11)

where I_r and p(q, v) are armature and passive efforts, `passive.py`; V has the energy of their springs,
with V x* K = [omega x H + eta-dot x P; omega x P]. Its first half is (P.3b), for revolute joints; the second half is
what prismatic joints need. Both follow from p_i = G_i^T K_i, since G_i is fixed in body i and turns with it:

    p-dot_i = G_i^T K-dot_i + (omega_i x G_i)^T K_i,   K-dot_i = F_i + (Psi_D^T W)_i - [eta-dot_i x P_i; 0]

where (omega x G)^T K = -G^T [omega x H; omega x P], and the term in eta-dot comes from H_i being taken about a point
that moves, (P.1g). Cost: O(N). Source: Hamilton document.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, singledispatch
from typing import Any

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics import passive
from dyn_service.dynamics.articulated import articulated_solve, branches
from dyn_service.dynamics.kinematics import (
    along,
    dot,
    in_world,
    influences,
    joint_values,
    joint_vector,
    motion_subspaces,
    position_rates,
    zero_locked,
)
from dyn_service.dynamics.mass_matrix import entries, solve
from dyn_service.dynamics.newton_euler import inertias, joint_loads, lifts, velocities
from dyn_service.dynamics.rolled_tree import RolledTree
from dyn_service.dynamics.spatial import Mat, angular, cross, dense, join, linear
from dyn_service.dynamics.sweeps import PerBody, inward
from dyn_service.model.tree import Tree


def system_momentum(tree: Tree, q: Mat, v: Mat) -> dict[str, Mat]:
    """K_i = [H_i; P_i] of each branch, its mass and centre of mass c_i from joint i, body axes, (P.1a-c), (P.2)."""
    D, G, M = influences(tree, q), motion_subspaces(tree), inertias(tree)
    K = inward(tree, D, M @ velocities(tree, D, G, v))
    masses, centres = _centres(tree, D, M)
    return {
        "momentum": ex.vertcat(*map(ex.densify, K)),
        "mass": ex.vertcat(*masses),
        "centre": ex.vertcat(*map(ex.densify, centres)),
    }


def _centres(tree: Tree, D: PerBody, M: PerBody) -> tuple[list[Any], list[Mat]]:
    """Mass and c_i of each branch, (P.1c); c_i is 0 where there is no mass."""
    composite = tree.inward(M, lambda i, C: D[i].congruence(C))
    masses = tree.branch_sums([body.mass for body in tree.inertia])
    # H = m c~: its entries (3, 2), (1, 3), (2, 1) are m c.
    moments = [ex.vertcat(C.H[2, 1], C.H[0, 2], C.H[1, 0]) for C in composite]
    return masses, [_where_mass(m, _per_mass(h, m)) for h, m in zip(moments, masses, strict=True)]


def _per_mass(x: Mat, m: Any) -> Mat:
    """x / m of a branch; x itself where it has no mass."""
    # The quotient is computed even where it is not selected, so its divisor must not be zero.
    return x / (m + ex.logic_not(m)) if isinstance(m, ex.Matrix) else x / (m or 1.0)


def _where_mass(m: Any, x: Mat) -> Mat:
    """x of a branch of mass m, (3, 1); 0 where it has none."""
    # The mass is a symbol in kernels with overlays or loops, else a number that decides here.
    return ex.if_else(m, x, ex.zeros(3, 1)) if isinstance(m, ex.Matrix) else x if m else ex.zeros(3, 1)


def system_momentum_rate(
    tree: Tree, q: Mat, v: Mat, a: Mat, gravity: Mat, wrenches: PerBody | None = None
) -> dict[str, Mat]:
    """Newton's and Euler's laws of every branch, each side of them, (P.1d)-(P.1g); body axes.

        P-dot   = f + sum of f-bar                                      (P.1e)
        H-dot   = - eta-dot x P + tau + sum of moments about joint i    (P.1g)
        H^c-dot = tau - c x f + sum of moments about c                  (P.1f)
        c-dot   = P / m - eta-dot                                       (P.1d)

    tau, f are what the parent exerts at joint i, (13); what acts from outside is weight and wrenches.
    """
    D, G, M = influences(tree, q), motion_subspaces(tree), inertias(tree)
    V = velocities(tree, D, G, v)
    K = inward(tree, D, M @ V)
    F, _ = joint_loads(tree, q, v, a, gravity, wrenches)
    E = inward(tree, D, _applied(tree, D, M, gravity, wrenches))
    masses, centres = _centres(tree, D, M)
    zero = ex.zeros(3, 1)
    outputs: dict[str, list[Mat]] = {name: [] for name in ("rate", "centre_rate", "central_momentum", "central_rate")}
    for V_i, K_i, W, m, c in zip(V, K, F + E, masses, centres, strict=True):
        eta_dot, P = linear(V_i), linear(K_i)
        outputs["rate"].append(W - join(cross(eta_dot, P), zero))
        outputs["centre_rate"].append(_where_mass(m, _per_mass(P, m) - eta_dot))
        outputs["central_momentum"].append(angular(K_i) - cross(c, P))
        outputs["central_rate"].append(angular(W) - cross(c, linear(W)))
    return {name: ex.vertcat(*map(ex.densify, rows)) for name, rows in {**outputs, "load": F, "external": E}.items()}


def _applied(tree: Tree, D: PerBody, M: PerBody, gravity: Mat, wrenches: PerBody | None) -> PerBody:
    """Y^T F-bar: weight, and the given wrenches, on each body at its joint in its axes."""
    weight = PerBody(-(M_i @ lift) for M_i, lift in zip(M, lifts(tree, D, gravity), strict=True))
    return weight if wrenches is None else weight + wrenches


def momentum(tree: Tree, q: Mat, v: Mat) -> Mat:
    """p, (P.3a)."""
    D, G, M = influences(tree, q), motion_subspaces(tree), inertias(tree)
    K = inward(tree, D, M @ velocities(tree, D, G, v))
    return joint_vector(tree, G.T @ K) + passive.armature(tree) * v


def velocity_from_momentum(tree: Tree, q: Mat, p: Mat) -> Mat:
    """v, (P.5b), O(N); with mimic joints by (P.5a)."""
    # (P.5b) needs independent branches, as (19b) does.
    if tree.has_mimics:
        return velocity_through_mass_matrix(tree, q, p)
    D, G, M = influences(tree, q), motion_subspaces(tree), inertias(tree)
    return articulated_solve(tree, D, G, branches(tree, D, G, M), joint_values(tree, p))


def velocity_through_mass_matrix(tree: Tree, q: Mat, p: Mat) -> Mat:
    """v, (P.5a), O(N^3)."""
    return solve(tree, entries(tree, q), zero_locked(tree, p))


def _flow(
    velocity: Callable[[Tree, Mat, Mat], Mat],
    tree: Tree,
    q: Mat,
    p: Mat,
    tau: Mat,
    gravity: Mat,
    wrenches: PerBody | None = None,
) -> dict[str, Mat]:
    """v by `velocity`, and p-dot by (P.3b)."""
    v = velocity(tree, q, p)
    D, G, M = influences(tree, q), motion_subspaces(tree), inertias(tree)
    V = velocities(tree, D, G, v)
    load = _applied(tree, D, M, gravity, wrenches)
    K = inward(tree, D, M @ V)
    turning = PerBody(
        join(
            cross(angular(V_i), angular(K_i)) + cross(linear(V_i), linear(K_i)),
            cross(angular(V_i), linear(K_i)),
        )
        for V_i, K_i in zip(V, K, strict=True)
    )
    driving = zero_locked(tree, tau - passive.efforts(tree, q, v))
    return {"v": v, "p_dot": driving + joint_vector(tree, G.T @ (inward(tree, D, load) - turning))}


flow = partial(_flow, velocity_from_momentum)
flow_through_mass_matrix = partial(_flow, velocity_through_mass_matrix)


def momentum_rate(tree: Tree, q: Mat, p: Mat, tau: Mat, gravity: Mat, wrenches: PerBody | None = None) -> Mat:
    """p-dot, (P.3b)."""
    return flow(tree, q, p, tau, gravity, wrenches)["p_dot"]


@singledispatch
def momentum_derivative(tree: Tree, q: Mat, v: Mat, a: Mat) -> Mat:
    """d/dt (M v) at q-dot = N v, v-dot = a, by differentiating the expression of p: independent of (P.3b)."""
    position, velocity = ex.sym("position", tree.nq), ex.sym("velocity", tree.nv)
    rates = ex.vertcat(position_rates(tree, q, v), a)
    rate = ex.jtimes(momentum(tree, position, velocity), ex.vertcat(position, velocity), rates)
    return ex.substitute([rate], [position, velocity], [q, v])[0]


@momentum_derivative.register(RolledTree)
def _momentum_derivative_in_loops(tree: RolledTree, q: Mat, v: Mat, a: Mat) -> Mat:
    rates = ex.vertcat(position_rates(tree, q, v), a)
    return tree.loops.rate(momentum(tree, q, v), ex.vertcat(q, v), rates)


def energy(tree: Tree, q: Mat, v: Mat, gravity: Mat) -> dict[str, Mat]:
    """Kinetic energy (6), (7), potential energy, their sum and L (4). Potential is zero with all mass at the origin and
    all springs at rest.
    """
    D, G, M = influences(tree, q), motion_subspaces(tree), inertias(tree)
    V = velocities(tree, D, G, v)
    kinetic = tree.total([(ex.dot(V_i, M_i @ V_i) / 2,) for V_i, M_i in zip(V, M, strict=True)], ex.matrix(0.0))
    kinetic = kinetic + passive.kinetic_energy(tree, v)
    potential = potential_energy(tree, q, gravity)
    return {
        "kinetic": kinetic,
        "potential": potential,
        "total": kinetic + potential,
        "lagrangian": kinetic - potential,
    }


def hamiltonian(tree: Tree, q: Mat, p: Mat, gravity: Mat) -> dict[str, Mat]:
    """Kinetic energy (11), potential energy and their sum (3). Potential is zero as in `energy`."""
    kinetic = dot(tree, p, velocity_from_momentum(tree, q, p)) / 2
    potential = potential_energy(tree, q, gravity)
    return {"kinetic": kinetic, "potential": potential, "hamiltonian": kinetic + potential}


def potential_energy(tree: Tree, q: Mat, gravity: Mat) -> Mat:
    """V = - sum of m_i g . r_i, and what the springs keep."""
    rotations, steps = in_world(tree, q)
    moments = [
        (body.mass * x, R @ dense(body.moment))
        for body, x, R in zip(tree.inertia, along(tree, steps), rotations, strict=True)
    ]
    return passive.spring_energy(tree, q) - ex.dot(gravity, tree.total(moments, ex.zeros(3, 1)))

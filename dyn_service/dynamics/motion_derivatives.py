"""First derivatives of points, momenta, energies and joint loads, by the operators of `derivatives.py`.

A small motion G_j e of joint j changes the velocity of the ground of its branch by Psi e and its acceleration by
Omega e, and turns and moves the branch by G_j e; a change of v_j gives it the velocity G_j and the acceleration Gamma.

Momenta and energies, of branch j as one body with the composite inertia C_j, K_j = [H; P], F_j without weight:

    dT/dq_j = K_j . Psi_j                       dT/dv = p
    dp_i/dq_j = G_i^T C_i Psi_j                 dp_j/dq_i = G_j^T (C_i Psi_i + G_i x* K_i)
    dK/dq_j = C_j Psi_j + G_j x* K_j            dF/dq_j = B_j psi_j + C_j Omega_j + G_j x* F_j
    dK/dv_j = C_j G_j                           dF/dv_j = B_j g_j + C_j Gamma_j,   dF/da_j = C_j G_j

The rate s of p in the axes of the parents, (P.3b), with F and Omega of weight and wrenches at rest:

    s_j = tau_j - p_j(q, v) + Psi_j^T K_j - G_j^T F_j                             ds/dv = (dp/dq)^T
    ds_j/dq_i = Psi_j^T (C_i Psi_i + G_i x* K_i) - G_j^T (C_i Omega_i + G_i x* F_i)
    ds_i/dq_j = (C_i Psi_i + G_i x* K_i)^T Psi_j - (C_i G_i)^T Omega_j

Loads at joints, (13), of body i on the branch of joint j; psi_j .. G_j seen from body i:

    dF_i/dq_j = B_i psi_j + C_i Omega_j         dF_j/dq_i = D^T (B_i psi_i + C_i Omega_i + G_i x* F_i), i not j
    dF_i/dv_j = B_i g_j + C_i Gamma_j           dF_j/dv_i = D^T (B_i g_i + C_i Gamma_i)
    dF_i/da_j = C_i G_j                         dF_j/da_i = D^T C_i G_i

Points of a link, columns carried to the point with J those of G, V = [omega; v] and A = [omega-dot; v-dot] there:

    local            dV/dq = Psi               dA/dq = Omega - V x Psi             dA/dv = Gamma - V x J
    world            dV/dq = Psi + J x V       dA/dq = Omega - V x Psi + J x A     dA/dv = Gamma - V x J
    world_aligned    dV/dq = Psi + J_w x V     dA/dq = Omega + [psi x omega; 2 psi x v] + J_w x A
                                               dA/dv = Gamma + [J_w x omega; 2 J_w x v]

where A is the spatial acceleration in `local` and `world`, [omega-dot; acceleration of the point] in `world_aligned`,
and J_w, the rotation of the link, turns both halves. Cost: O(N); of p and of loads O(N d).
Source: Carpentier, Mansard, 2018 (kinematics); S. Echeandia, P. Wensing, 'Numerical methods to compute the Coriolis
matrix and Christoffel symbols for rigid-body systems', 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics import passive
from dyn_service.dynamics.derivatives import (
    Branch,
    Ground,
    Motion,
    assembled,
    branches,
    by_row,
    carried_loads,
    ground_of,
    loaded,
    motion,
)
from dyn_service.dynamics.hamilton import energy, momentum
from dyn_service.dynamics.kinematics import along, in_world, influences, joint_columns, joint_vector, motion_subspaces
from dyn_service.dynamics.newton_euler import gravity_forces
from dyn_service.dynamics.rolled_tree import PairMatrix, Walk
from dyn_service.dynamics.spatial import Mat, angular, cross, dense, join, linear, mirrored, row_by_row, skew
from dyn_service.dynamics.sweeps import PerBody, walk
from dyn_service.dynamics.task_space import _aligned, _LinkPoint, _local, _Seen, _world, columns_seen
from dyn_service.model.tree import Tree

_NONE = ex.zeros(3, 1)
_NO_ROWS = ex.zeros(0, 0)


def _swept(
    tree: Tree, q: Mat, v: Mat, a: Mat, gravity: Mat | None = None, wrenches: PerBody | None = None
) -> tuple[PerBody, PerBody, Motion, list[Branch], list[Ground]]:
    """D, G, the motion, and of each body its branch and its ground. With gravity, linear velocities are relative."""
    D, G = influences(tree, q), motion_subspaces(tree)
    body_motion = motion(tree, D, G, v, a, gravity, relative=gravity is not None)
    motions = zip(G, body_motion.V, body_motion.V_p, body_motion.A_p, strict=True)
    ground = [ground_of(*motions_i) for motions_i in motions]
    return D, G, body_motion, branches(tree, D, body_motion, wrenches), ground


def slopes(tree: Tree, q: Mat, v: Mat, gravity: Mat | None = None, wrenches: PerBody | None = None) -> tuple[Any, ...]:
    """G, Psi, the branches in motion and at rest; dp/dq, with gravity ds/dq without passive efforts, M; (nv, nv)."""
    zero, rotor = ex.zeros(tree.nv, 1), passive.armatures(tree)
    D, G, _, branch, ground = _swept(tree, q, v, zero)
    *_, resting_branch, resting_ground = (
        (branch, ground) if gravity is None else _swept(tree, q, zero, zero, gravity, wrenches)
    )
    Psi, Omega = [ground_i.Psi for ground_i in ground], [ground_i.Omega for ground_i in resting_ground]

    def start(i: int) -> tuple[Mat, Mat | None]:
        Q, K, W = (branch[i].inertia(X) for X in (Psi[i], G[i], Omega[i]))
        momentum_columns, rate = Q + loaded(G[i], branch[i].K), []
        state = [momentum_columns, K]
        if gravity is not None:
            rate, state = [momentum_columns.T @ Psi[i] - G[i].T @ W], [*state, W + loaded(G[i], resting_branch[i].F)]
        passed_on = tree.inboard[i].nv and not tree.parent[i] < 0
        block = ex.vertcat(G[i].T @ Q, *rate, mirrored(G[i].T @ K) + rotor[i])
        return block, carried_loads(D[i], ex.vertcat(*state)) if passed_on else None

    def step(j: int, state: Mat) -> tuple[Mat, Mat | None]:
        Q, K, W = state[:6, :], state[6:12, :], state[12:, :]
        rates = [] if gravity is None else [Psi[j].T @ Q - G[j].T @ W, Psi[j].T @ Q - Omega[j].T @ K]
        block = ex.vertcat(G[j].T @ Q, *rates[:1], G[j].T @ K, Psi[j].T @ K, *rates[1:])
        return block, None if tree.parent[j] < 0 else carried_loads(D[j], state)

    blocks = walk(tree, start, step, outward=False)
    return G, Psi, branch, resting_branch, assembled(tree, blocks, 2 if gravity is None else 3)


def momentum_derivatives(tree: Tree, q: Mat, v: Mat) -> dict[str, Mat]:
    """p, (P.3a), and its derivatives with respect to q and v."""
    *_, (dq, dv) = slopes(tree, q, v)
    return {"p": momentum(tree, q, v), "dp_dq": by_row(dq), "dp_dv": by_row(dv)}


def joint_wrench_derivatives(
    tree: Tree, q: Mat, v: Mat, a: Mat, gravity: Mat, wrenches: PerBody | None = None
) -> dict[str, Any]:
    """F, (13), of every named joint, (nj, 6), in the child link's axes, and its derivatives with respect to q, v, a."""
    D, G, _, branch, ground = _swept(tree, q, v, a, gravity, wrenches)

    def load(i: int, seen: Mat) -> Mat:
        """The changes of F_i with q, v and a of a joint, (18, k), from its psi, Omega, Gamma and G seen from body i."""
        branch_i, Omega, Gamma, G_seen = branch[i], seen[3:9, :], seen[9:15, :], seen[15:, :]
        Q = branch_i.coriolis(seen[:3, :]) + branch_i.inertia(Omega)
        return ex.vertcat(Q, branch_i.coriolis(G_seen[:3, :]) + branch_i.inertia(Gamma), branch_i.inertia(G_seen))

    def start(j: int) -> tuple[Mat, Mat | None]:
        ground_j = ground[j]
        seen = ex.vertcat(ground_j.psi, ground_j.Omega, ground_j.Gamma, G[j])
        return load(j, seen), seen if tree.inboard[j].nv else None

    def step(i: int, seen: Mat) -> tuple[Mat, Mat | None]:
        seen = ex.vertcat(D[i].rotation @ seen[:3, :], *(D[i] @ seen[k : k + 6, :] for k in (3, 9, 15)))
        return load(i, seen), seen

    def start_inward(i: int) -> tuple[Mat, Mat | None]:
        block, _ = start(i)
        loads = ex.vertcat(block[:6, :] + loaded(G[i], branch[i].F), block[6:, :])
        return _NO_ROWS, carried_loads(D[i], loads) if tree.inboard[i].nv and not tree.parent[i] < 0 else None

    def step_inward(j: int, loads: Mat) -> tuple[Mat, Mat | None]:
        return loads if tree.joints[j] else _NO_ROWS, None if tree.parent[j] < 0 else carried_loads(D[j], loads)

    # Two walks: motions of the ground go outward, loads inward.
    walks = walk(tree, start, step, outward=True), walk(tree, start_inward, step_inward, outward=False)
    rows = [i for i, joint in enumerate(tree.joints) if joint]
    dq, dv, da = _by_rows(tree, rows, walks)
    wrench = ex.vertcat(*(ex.densify(branch[i].F) for i in rows))
    return {"wrench": wrench, "dwrench_dq": dq, "dwrench_dv": dv, "dwrench_da": da}


def _by_rows(tree: Tree, rows: Sequence[int], walks: Sequence[dict[tuple[int, int], Mat] | Walk]) -> list[Any]:
    """Three matrices (6 len(rows), nv), row by row, from blocks (18, nv_a) of pairs (a, b): rows of b, columns of a.

    Of recorded walks, the matrices of pairs of all walks.
    """
    recorded = [walk for walk in walks if isinstance(walk, Walk)]
    if recorded:
        return [tuple(_pairs(walk, slice(k, k + 6)) for walk in recorded) for k in (0, 6, 12)]
    matrices = [ex.zeros(6 * len(rows), tree.nv) for _ in range(3)]
    blocks = [pair for walk in walks if not isinstance(walk, Walk) for pair in walk.items() if pair[1].numel()]
    for (a, b), block in blocks:
        first = 6 * rows.index(b)
        for matrix, part in zip(matrices, ex.vertsplit(block, 6), strict=True):
            matrix[first : first + 6, tree.in_v[a]] += part
    return [row_by_row(X) for X in matrices]


def _pairs(walk: Walk, part: slice) -> PairMatrix:
    """Some rows of the blocks of a recorded walk."""
    across_blocks = {pair: block[part, :] for pair, (block, _) in walk.others.items() if block.numel()}
    return PairMatrix(walk, [block[part, :] if block.numel() else block for block, _ in walk.first], across_blocks)


def energy_derivatives(tree: Tree, q: Mat, v: Mat, gravity: Mat) -> dict[str, Mat]:
    """T and V, (6), (7), and their derivatives with respect to q and v."""
    _, _, _, branch, ground = _swept(tree, q, v, ex.zeros(tree.nv, 1))
    energies = energy(tree, q, v, gravity)
    kinetic_slope = joint_vector(
        tree, PerBody(ground_i.Psi.T @ branch_i.K for branch_i, ground_i in zip(branch, ground, strict=True))
    )
    return {
        "kinetic": energies["kinetic"],
        "potential": energies["potential"],
        "dkinetic_dq": kinetic_slope,
        "dkinetic_dv": momentum(tree, q, v),
        "dpotential_dq": gravity_forces(tree, q, gravity),
    }


def centroidal_derivatives(tree: Tree, q: Mat, v: Mat, a: Mat) -> dict[str, Mat]:
    """Centre of mass c, momentum about it and its rate in world axes, and their derivatives with respect to q, v, a."""
    _, G, _, branch, ground = _swept(tree, q, v, a)
    rotations, steps = in_world(tree, q)
    places = along(tree, steps)
    bodies = [
        (body.mass * p, R @ dense(body.moment)) for body, p, R in zip(tree.inertia, places, rotations, strict=True)
    ]
    mass = tree.total([(ex.matrix(1.0) * body.mass,) for body in tree.inertia], ex.zeros(1, 1))
    has_mass = ex.if_else(mass, 1, 0)  # a robot without mass has its centre at the origin
    share = has_mass / (mass + (1 - has_mass))  # exact: 1 - has_mass is 0 or 1
    centre = share * tree.total(bodies, ex.zeros(3, 1))

    def about_centre(loads: list[Mat]) -> list[Mat]:
        """Loads or momenta, (6, k) of each body, in world axes about c."""
        carried_loads = []
        for R, p, X in zip(rotations, places, loads, strict=True):
            force = R @ X[3:, :]
            carried_loads.append(ex.vertcat(R @ X[:3, :] + skew(p - centre) @ force, force))
        return carried_loads

    def summed(loads: list[Mat]) -> Mat:
        """Of all trees together: that of the bodies on the ground."""
        parts = zip(about_centre(loads), tree.parent, strict=True)
        return tree.total([(X * float(parent < 0),) for X, parent in parts], ex.zeros(6, 1))

    def columns(loads: list[Mat]) -> Mat:
        """(6, nv)."""
        return joint_columns(tree, about_centre(loads))

    K, F = summed([branch_i.K for branch_i in branch]), summed([branch_i.F for branch_i in branch])
    pairs = list(zip(branch, ground, G, strict=True))
    matrix = columns([branch_i.inertia(G_i) for branch_i, _, G_i in pairs])
    dK = columns([branch_i.inertia(ground_i.Psi) + loaded(G_i, branch_i.K) for branch_i, ground_i, G_i in pairs])
    dF = columns(
        [
            branch_i.coriolis(ground_i.psi) + branch_i.inertia(ground_i.Omega) + loaded(G_i, branch_i.F)
            for branch_i, ground_i, G_i in pairs
        ]
    )
    dF_dv = columns(
        [branch_i.coriolis(G_i[:3, :]) + branch_i.inertia(ground_i.Gamma) for branch_i, ground_i, G_i in pairs]
    )
    jacobian = share * matrix[3:, :]

    def moved(moment: Mat) -> Mat:
        """The change of a moment about c as c moves."""
        return ex.vertcat(skew(linear(moment)) @ jacobian, ex.zeros(3, tree.nv))

    outputs = {
        "centre": centre,
        "momentum": K,
        "rate": F,
        "jacobian": row_by_row(jacobian),
        "dmomentum_dq": row_by_row(dK + moved(K)),
        "dmomentum_dv": row_by_row(matrix),
        "drate_dq": row_by_row(dF + moved(F)),
        "drate_dv": row_by_row(dF_dv),
    }
    return outputs


def _of_point(seen: _Seen, tree: Tree, q: Mat, v: Mat, a: Mat, link: Mat, point: Mat) -> dict[str, Mat]:
    """Velocity and acceleration of a point, (6,), spatial where it is not carried along; their derivatives, (6, nv)."""
    link_point = _LinkPoint.of(tree, q, link, point)
    D, G, view = influences(tree, q), motion_subspaces(tree), seen(tree, link_point)
    body_motion = motion(tree, D, G, v, a)
    motions = zip(G, body_motion.V, body_motion.V_p, body_motion.A_p, strict=True)
    ground = [ground_of(*motions_i) for motions_i in motions]
    V_L, A_L = link_point.chosen(body_motion.V), link_point.chosen(body_motion.A)
    A_L = A_L - join(_NONE, cross(angular(V_L), linear(V_L)))
    V, A = view.of_link @ V_L, view.of_link @ A_L
    blocks = (G, *(PerBody(getattr(ground_i, name) for ground_i in ground) for name in ("Psi", "Omega", "Gamma")))
    J, Psi, Omega, Gamma = (columns_seen(tree, link_point, view, X) for X in blocks)
    omega, u, turns = skew(angular(V)), skew(linear(V)), J[:3, :]
    if view.carried:
        A = A + join(_NONE, cross(angular(V), linear(V)))
        rotation_terms = [ex.vertcat(*(-skew(half) @ turns for half in (X[:3], X[3:]))) for X in (V, A)]
        velocity_terms = [ex.vertcat(omega @ X[:3, :], 2 * u @ X[:3, :]) for X in (Psi, J)]
    else:
        zero = ex.zeros(6, tree.nv)
        rotation_terms = [zero, zero] if seen is _local else [-_crossed(X, J) for X in (V, A)]
        velocity_terms = [_crossed(V, X) for X in (Psi, J)]
    return {
        "velocity": V,
        "acceleration": A,
        "jacobian": row_by_row(J),
        "dvelocity_dq": row_by_row(Psi + rotation_terms[0]),
        "dacceleration_dq": row_by_row(Omega - velocity_terms[0] + rotation_terms[1]),
        "dacceleration_dv": row_by_row(Gamma - velocity_terms[1]),
    }


point_motion = partial(_of_point, _aligned)
point_motion_local = partial(_of_point, _local)
point_motion_world = partial(_of_point, _world)


def _crossed(V: Mat, X: Mat) -> Mat:
    """V x X of motions, X (6, k)."""
    omega, u = skew(angular(V)), skew(linear(V))
    return ex.vertcat(omega @ X[:3, :], u @ X[:3, :] + omega @ X[3:, :])

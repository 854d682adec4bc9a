"""Inverse dynamics by the recursion in body frames, link by link, with its intermediate results.

Outward, from link i to link i + 1, with R = {i+1}R{i} and p the place of frame i + 1 in frame i:

    revolute    omega' = R omega + theta-dot z        omega-dot' = R omega-dot + R omega x theta-dot z + theta-ddot z
                v-dot' = R (v-dot + omega-dot x p + omega x (omega x p))
    prismatic   omega' = R omega                      omega-dot' = R omega-dot
                v-dot' = R (v-dot + d-ddot x + 2 omega x d-dot x + omega-dot x p + omega x (omega x p))
    any other   the terms of both, and what the shift's axes turn with the body, theta-dot z x d-dot x

Inward, with the centre of mass at p_cm and F = m v-dot_cm, N = M omega-dot + omega x M omega about it:

    f_i   = F_i + sum of R^T f_{i+1}
    eta_i = N_i + sum of R^T eta_{i+1} + p_cm x F_i + sum of p x R^T f_{i+1}

The document writes a chain; here the sums run over all children. It leaves gravity out; here F_i = m (v-dot_cm - g).
Its p of a prismatic joint is d x alone; here a constant offset too. Cost: O(N). Source: Newton/Euler Equations
document.
"""

from __future__ import annotations

from functools import singledispatch

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics import passive
from dyn_service.dynamics.kinematics import joint_vector, motion_subspaces, placements
from dyn_service.dynamics.rolled_tree import RolledTree
from dyn_service.dynamics.spatial import Mat, constant, cross, dense
from dyn_service.dynamics.sweeps import PerBody
from dyn_service.model.tree import Tree


def recursion(tree: Tree, q: Mat, v: Mat, a: Mat, gravity: Mat, wrenches: PerBody | None = None) -> dict[str, Mat]:
    """omega, omega_dot, v_dot, f, eta of every body, (N, 3) each, in its own axes at its own origin; v_dot_cm, F and N
    at its centre of mass; and tau (nv,), with armature and passive efforts.
    """
    poses, subspaces = placements(tree, q), motion_subspaces(tree)

    def outward(i: int, inherited: Mat | None) -> Mat:
        """omega, omega_dot, v_dot and the gravity, (12,)."""
        (R_PC, p), part, zero = poses[i], tree.in_v[i], ex.zeros(3, 1)
        w, wd, vd, g = (zero, zero, zero, gravity) if inherited is None else ex.vertsplit(inherited, 3)
        R = R_PC.T
        vd = vd + cross(wd, p) + cross(w, cross(w, p))
        w, wd, vd = R @ w, R @ wd, R @ vd
        if tree.inboard[i].nv:
            turning, shifting = subspaces[i][:3, :], subspaces[i][3:, :]
            turn, shift = turning @ v[part], shifting @ v[part]
            vd = vd + shifting @ a[part] + 2 * cross(w, shift) + cross(turn, shift)
            wd = wd + cross(w, turn) + turning @ a[part]
            w = w + turn
        return ex.vertcat(w, wd, vd, R @ g)

    motions = tree.outward(outward)
    omega, omega_dot, v_dot, weight = map(list, zip(*(ex.vertsplit(x, 3) for x in motions), strict=True))

    at_centre: list[list[Mat]] = [[], [], []]  # v_dot_cm, F, N
    f: list[Mat] = []
    eta: list[Mat] = []
    for i, body in enumerate(tree.inertia):
        p_cm, I = dense(body.com), constant(body.about_com)
        v_dot_cm = v_dot[i] + cross(omega_dot[i], p_cm) + cross(omega[i], cross(omega[i], p_cm))
        F = body.mass * (v_dot_cm - weight[i])
        N = I @ omega_dot[i] + cross(omega[i], I @ omega[i])
        for rows, x in zip(at_centre, (v_dot_cm, F, N), strict=True):
            rows.append(x)
        f.append(F if wrenches is None else F - wrenches[i][3:])
        eta.append(N + cross(p_cm, F) - (0 if wrenches is None else wrenches[i][:3]))
    f, eta = _with_children(tree, poses, f, eta)
    tau = PerBody(G[:3, :].T @ eta_i + G[3:, :].T @ f_i for G, eta_i, f_i in zip(subspaces, eta, f, strict=True))
    efforts = joint_vector(tree, tau) + passive.armature(tree) * a + passive.efforts(tree, q, v)
    stacked = {"omega": omega, "omega_dot": omega_dot, "v_dot": v_dot, "force": f, "moment": eta}
    stacked |= zip(("centre_acceleration", "centre_force", "centre_moment"), at_centre, strict=True)
    return {name: ex.vertcat(*map(ex.densify, rows)) for name, rows in stacked.items()} | {"tau": efforts}


@singledispatch
def _with_children(
    tree: Tree, poses: list[tuple[Mat, Mat]], f: list[Mat], eta: list[Mat]
) -> tuple[list[Mat], list[Mat]]:
    """f and eta of the bodies plus those of their children, from the leaves to the roots."""
    f, eta = list(f), list(eta)
    for i in range(len(tree) - 1, -1, -1):
        parent = tree.parent[i]
        if parent >= 0:
            R_PC, p = poses[i]
            f[parent] = f[parent] + R_PC @ f[i]
            eta[parent] = eta[parent] + R_PC @ eta[i] + cross(p, R_PC @ f[i])
    return f, eta


@_with_children.register(RolledTree)
def _with_children_in_loops(
    tree: RolledTree, poses: list[tuple[Mat, Mat]], f: list[Mat], eta: list[Mat]
) -> tuple[list[Mat], list[Mat]]:
    """One recursion, which sums the loads of the children first."""

    def carry(i: int, load: Mat) -> Mat:
        (R_PC, p), force = poses[i], poses[i][0] @ load[:3]
        return ex.vertcat(force, R_PC @ load[3:] + cross(p, force))

    loads = tree.inward([ex.vertcat(*pair) for pair in zip(f, eta, strict=True)], carry)
    return [load[:3] for load in loads], [load[3:] for load in loads]

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

import casadi as ca

from dyn_service.dynamics import passive
from dyn_service.dynamics.kinematics import joint_vector, placements
from dyn_service.dynamics.spatial import Mat, constant, cross, dense
from dyn_service.dynamics.sweeps import PerBody
from dyn_service.model.tree import Tree


def recursion(tree: Tree, q: Mat, v: Mat, a: Mat, gravity: Mat, wrenches: PerBody | None = None) -> dict[str, Mat]:
    """omega, omega_dot, v_dot, f, eta of every body, (N, 3) each, in its own axes at its own origin; v_dot_cm, F and N
    at its centre of mass; and tau (nv,), with what joints take by themselves.
    """
    omega: list[Mat] = []
    omega_dot: list[Mat] = []
    v_dot: list[Mat] = []
    weight: list[Mat] = []
    poses = placements(tree, q)
    for i, (R_PC, p) in enumerate(poses):
        parent, joint, part = tree.parent[i], tree.inboard[i], tree.in_v[i]
        still = ca.DM(3, 1)
        w, wd, vd, g = (still, still, still, gravity)
        if parent >= 0:
            w, wd, vd, g = omega[parent], omega_dot[parent], v_dot[parent], weight[parent]
        R = R_PC.T
        vd = vd + cross(wd, p) + cross(w, cross(w, p))
        w, wd, vd = R @ w, R @ wd, R @ vd
        if joint.nv:
            turning, shifting = constant(joint.subspace[:3]), constant(joint.subspace[3:])
            turn, shift = turning @ v[part], shifting @ v[part]
            vd = vd + shifting @ a[part] + 2 * cross(w, shift) + cross(turn, shift)
            wd = wd + cross(w, turn) + turning @ a[part]
            w = w + turn
        omega.append(w)
        omega_dot.append(wd)
        v_dot.append(vd)
        weight.append(R @ g)

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
    for i in range(len(tree) - 1, -1, -1):
        parent = tree.parent[i]
        if parent >= 0:
            R_PC, p = poses[i]
            f[parent] = f[parent] + R_PC @ f[i]
            eta[parent] = eta[parent] + R_PC @ eta[i] + cross(p, R_PC @ f[i])

    tau = PerBody(
        constant(joint.subspace[:3].T) @ eta_i + constant(joint.subspace[3:].T) @ f_i
        for joint, eta_i, f_i in zip(tree.inboard, eta, f, strict=True)
    )
    efforts = joint_vector(tree, tau) + passive.armature(tree) * a + passive.efforts(tree, q, v)
    stacked = {"omega": omega, "omega_dot": omega_dot, "v_dot": v_dot, "force": f, "moment": eta}
    stacked |= zip(("centre_acceleration", "centre_force", "centre_moment"), at_centre, strict=True)
    return {name: ca.vertcat(*map(ca.densify, rows)) for name, rows in stacked.items()} | {"tau": efforts}

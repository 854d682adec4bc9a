"""Projected Newton-Euler: each body's equations, projected on the joint axes by its Jacobians and summed.

    M(q) a - f(q, v) - g(q) = tau - p(q, v)
    M = sum of J_S^T m J_S + J_R^T I J_R + I_r
    f = - sum of J_S^T m sigma_S + J_R^T (I sigma_R + Omega~ I Omega)
    g = sum of J_S^T F_A + J_R^T M_A

J_S, J_R take v to the velocity of a body's centre of mass and to its angular velocity; sigma_S, sigma_R are the
accelerations at a = 0; I_r and p are armature and passive efforts, `passive.py`. All in body axes, all with
respect to the centre of mass. No load is propagated between bodies: constraint forces do no work, so the projection
removes them. Cost: O(N^2 d) over depth d. Source: Multi Body Dynamics document, 5.3 to 5.6 (which writes Omega~ I
Omega~ for the last term of f).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics import mass_matrix, passive
from dyn_service.dynamics.kinematics import (
    free_selector,
    influences,
    joint_vector,
    locked_diagonal,
    motion_subspaces,
    placements,
    zero_locked,
)
from dyn_service.dynamics.rolled_tree import RolledTree
from dyn_service.dynamics.spatial import Mat, constant, cross, dense, join, row_by_row, skew
from dyn_service.dynamics.sweeps import PerBody, inward, walk
from dyn_service.model.tree import Tree


@dataclass(frozen=True, eq=False)
class BodyMotion:
    """Of one body, in its axes: Jacobians (3, nv) of its origin and rotation, biases (3,) of both, rotation R_WB."""

    J_O: Mat
    J_R: Mat
    sigma_O: Mat
    sigma_R: Mat
    omega: Mat
    rotation: Mat


def body_motions(tree: Tree, q: Mat, v: Mat) -> list[BodyMotion]:
    """The recursion from parent to child, for joints of any type."""
    motions: list[BodyMotion] = []
    columns, subspaces, poses = free_selector(tree), motion_subspaces(tree), placements(tree, q)
    for i, biases in enumerate(_biases(tree, q, v)):
        J_O, J_R, R_WP = ex.zeros(3, tree.nv), ex.zeros(3, tree.nv), ex.eye(3)
        if tree.parent[i] >= 0:
            parent = motions[tree.parent[i]]
            J_O, J_R, R_WP = parent.J_O, parent.J_R, parent.rotation
        J_O, J_R = _carried(poses[i], J_O, J_R)
        if tree.inboard[i].nv:
            joint_columns = columns[tree.in_v[i], :]
            J_R, J_O = J_R + subspaces[i][:3, :] @ joint_columns, J_O + subspaces[i][3:, :] @ joint_columns
        motions.append(BodyMotion(J_O, J_R, biases[:3], biases[3:6], biases[6:], R_WP @ poses[i][0]))
    return motions


def _biases(tree: Tree, q: Mat, v: Mat) -> list[Mat]:
    """[sigma_O; sigma_R; omega] of every body, (9,)."""
    subspaces, poses = motion_subspaces(tree), placements(tree, q)

    def step(i: int, parent: Mat | None) -> Mat:
        (R_PC, p_PC), part = poses[i], tree.in_v[i]
        sigma_O, sigma_R, omega = (ex.zeros(3, 1),) * 3 if parent is None else (parent[:3], parent[3:6], parent[6:])
        sigma_at_origin = sigma_O + cross(sigma_R, p_PC) + cross(omega, cross(omega, p_PC))
        omega, sigma_R, sigma_O = R_PC.T @ omega, R_PC.T @ sigma_R, R_PC.T @ sigma_at_origin
        if tree.inboard[i].nv:
            w, u = subspaces[i][:3, :] @ v[part], subspaces[i][3:, :] @ v[part]
            sigma_R, sigma_O = sigma_R + cross(omega, w), sigma_O + 2 * cross(omega, u) + cross(w, u)
            omega = omega + w
        return ex.vertcat(sigma_O, sigma_R, omega)

    return tree.outward(step)


@singledispatch
def jacobians(tree: Tree, q: Mat) -> dict[str, Mat]:
    """J_S and J_R of every link, (N, 3, nv) each, in link axes; J_S at the link's centre of mass."""
    centres = [dense(body.com) for body in tree.inertia]
    motions = body_motions(tree, q, ex.zeros(tree.nv, 1))
    return {
        "translation": ex.vertcat(
            *(row_by_row(m.J_O - skew(s) @ m.J_R) for m, s in zip(motions, centres, strict=True))
        ),
        "rotation": ex.vertcat(*(row_by_row(m.J_R) for m in motions)),
    }


@jacobians.register(RolledTree)
def _jacobians_in_loops(tree: RolledTree, q: Mat) -> dict[str, Any]:
    centres = [dense(body.com) for body in tree.inertia]
    return {
        "translation": _columns(tree, q, lambda i, J_O, J_R: J_O - skew(centres[i]) @ J_R),
        "rotation": _columns(tree, q, lambda i, J_O, J_R: J_R),
    }


def _columns(tree: RolledTree, q: Mat, f: Callable[[int, Mat, Mat], Mat]) -> Any:
    """f of J_O and J_R of each body, for the columns of one joint at a time, carried from this joint outward."""
    poses, subspaces, columns = placements(tree, q), motion_subspaces(tree), free_selector(tree)

    def start(a: int) -> tuple[Mat, Mat | None]:
        G = subspaces[a] @ columns[tree.in_v[a], tree.in_v[a]]
        return f(a, G[3:, :], G[:3, :]), ex.vertcat(G[3:, :], G[:3, :]) if tree.inboard[a].nv else None

    def step(b: int, J: Mat) -> tuple[Mat, Mat | None]:
        J_O, J_R = _carried(poses[b], J[:3, :], J[3:, :])
        return f(b, J_O, J_R), ex.vertcat(J_O, J_R)

    return walk(tree, start, step, outward=True)


def _carried(pose: tuple[Mat, Mat], J_O: Mat, J_R: Mat) -> tuple[Mat, Mat]:
    """The parent's Jacobians at the body's origin, in its axes."""
    R_PC, p_PC = pose
    return R_PC.T @ (J_O - skew(p_PC) @ J_R), R_PC.T @ J_R


def bias_accelerations(tree: Tree, q: Mat, v: Mat) -> dict[str, Mat]:
    """sigma_S and sigma_R of every link, (N, 3) each, in link axes; sigma_S at the link's centre of mass."""
    biases, centres = _biases(tree, q, v), [dense(body.com) for body in tree.inertia]
    return {
        "translation": ex.vertcat(*(ex.densify(_centre_bias(b, s)) for b, s in zip(biases, centres, strict=True))),
        "rotation": ex.vertcat(*(ex.densify(b[3:6]) for b in biases)),
    }


def _centre_bias(biases: Mat, s: Mat) -> Mat:
    sigma_O, sigma_R, omega = biases[:3], biases[3:6], biases[6:]
    return sigma_O + cross(sigma_R, s) + cross(omega, cross(omega, s))


@singledispatch
def terms(tree: Tree, q: Mat, v: Mat, tau: Mat, gravity: Mat, wrenches: PerBody | None = None) -> dict[str, Mat]:
    """M (nv, nv); f, g as the document signs them, tau, the external wrenches' part, and -p, (nv,) each.

    These are M, C, G, Q, E of the Matrix Formalism document, M q-ddot = C + G + Q + E, and the passive efforts P.
    """
    # Locked joints have zero columns in J: their rows of M are those of the identity.
    M = ex.diag(passive.armature(tree)) + locked_diagonal(tree)
    f = g = E = ex.zeros(tree.nv, 1)
    for i, m in enumerate(body_motions(tree, q, v)):
        body = tree.inertia[i]
        # With h = m s the formulas hold for lumped inertia too, which has moments but no mass.
        h, about_origin = dense(body.moment), constant(body.about_origin)
        turning = cross(m.omega, about_origin @ m.omega)
        bias = m.sigma_O * body.mass + cross(m.sigma_R, h) + cross(m.omega, cross(m.omega, h))
        weight = m.rotation.T @ gravity
        coupling = m.J_R.T @ skew(h) @ m.J_O
        M = M + body.mass * (m.J_O.T @ m.J_O) + coupling + coupling.T + m.J_R.T @ (about_origin @ m.J_R)
        f = f - m.J_O.T @ bias - m.J_R.T @ (about_origin @ m.sigma_R + turning + cross(h, m.sigma_O))
        g = g + m.J_O.T @ (body.mass * weight) + m.J_R.T @ cross(h, weight)
        if wrenches is not None:
            E = E + m.J_R.T @ wrenches[i][:3] + m.J_O.T @ wrenches[i][3:]
    return {
        "mass_matrix": M,
        "velocity_forces": f,
        "gravity_forces": g,
        "efforts": zero_locked(tree, tau),
        "external_forces": E,
        "passive_forces": -passive.efforts(tree, q, v),
    }


@terms.register(RolledTree)
def _terms_in_loops(
    tree: RolledTree, q: Mat, v: Mat, tau: Mat, gravity: Mat, wrenches: PerBody | None = None
) -> dict[str, Mat]:
    """The same in a kernel as loops: J_O^T and J_R^T of all bodies of a branch by an inward sweep of their loads."""
    D, G, poses = influences(tree, q), motion_subspaces(tree), placements(tree, q)
    weights = tree.outward(lambda i, g: poses[i][0].T @ (gravity if g is None else g))
    inertial_loads, gravity_loads = [], []
    for body, biases, weight in zip(tree.inertia, _biases(tree, q, v), weights, strict=True):
        sigma_O, sigma_R, omega = biases[:3], biases[3:6], biases[6:]
        h, about_origin = dense(body.moment), constant(body.about_origin)
        turning = about_origin @ sigma_R + cross(omega, about_origin @ omega) + cross(h, sigma_O)
        shifting = sigma_O * body.mass + cross(sigma_R, h) + cross(omega, cross(omega, h))
        inertial_loads.append(-join(turning, shifting))
        gravity_loads.append(join(cross(h, weight), body.mass * weight))

    def projected(loads: Sequence[Mat]) -> Mat:
        return joint_vector(tree, G.T @ inward(tree, D, loads))

    return {
        "mass_matrix": mass_matrix.mass_matrix(tree, q),
        "velocity_forces": projected(inertial_loads),
        "gravity_forces": projected(gravity_loads),
        "efforts": zero_locked(tree, tau),
        "external_forces": ex.zeros(tree.nv, 1) if wrenches is None else projected(wrenches),
        "passive_forces": -passive.efforts(tree, q, v),
    }


def inverse_dynamics(tree: Tree, q: Mat, v: Mat, a: Mat, gravity: Mat, wrenches: PerBody | None = None) -> Mat:
    """tau = M a - f - g - E - P."""
    equation_terms = terms(tree, q, v, ex.zeros(tree.nv, 1), gravity, wrenches)
    parts = ("velocity_forces", "gravity_forces", "external_forces", "passive_forces")
    right = sum((equation_terms[part] for part in parts), ex.zeros(tree.nv, 1))
    return equation_terms["mass_matrix"] @ a - right

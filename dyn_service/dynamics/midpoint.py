"""One implicit midpoint step of Hamilton's equations as a kernel, with its derivatives by the implicit function.

The step of `simulation/integrators/implicit_midpoint.py`. With h = dt / 2, q_m = integrate(q, v_m, h), E the map of
momenta from body axes to those after a further motion h v_m, and s the rate of p = M v in the parents' axes,

    r(v_m) = p_m - E p - h s_m = 0      p' = E (E p + dt s_m)      q' = integrate(q, v_m, dt)      v' = M(q')^-1 p'

Five steps of Newton's method solve r = 0. With c and m, the derivatives of q_m with respect to q and h v_m, and
X x = x x* E p, J = dr/dv_m is

    J = M + h (dp/dq + X - h ds/dq) m - h ds/dv,    J dv_m = E dp - (dp/dq - h ds/dq) c dq + h dtau

`motion_derivatives.py` has those of p and s. Cost: O(N^3). Source: Hairer, Lubich, Wanner, Geometric Numerical
Integration, VIII.6; Hamilton document.
"""

from __future__ import annotations

from functools import reduce
from math import nan
from typing import NamedTuple

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics import mass_matrix, passive
from dyn_service.dynamics.derivatives import entries_of, integrate_derivatives, step_outputs
from dyn_service.dynamics.kinematics import free_selector, integrate, joint_vector, locked_diagonal, zero_locked
from dyn_service.dynamics.motion_derivatives import slopes
from dyn_service.dynamics.spatial import Mat
from dyn_service.dynamics.sweeps import PerBody
from dyn_service.model.tree import Tree

TOLERANCE = 1e-10
"""Largest residual r, relative to the largest momentum or impulse of the step; beyond it the results are NaN."""


class _Momenta(NamedTuple):
    """p and s without tau, (nv,), and dp/dq, dp/dv = M, ds/dq and ds/dv, (nv, nv)."""

    p: Mat
    s: Mat
    p_q: Mat
    M: Mat
    s_q: Mat
    s_v: Mat


def implicit_midpoint(
    tree: Tree, q: Mat, v: Mat, tau: Mat, dt: Mat, gravity: Mat, wrenches: PerBody | None = None
) -> dict[str, Mat]:
    """The state after dt, and its derivatives with respect to the state before and tau."""
    tree.need_bodies("the derivatives of a step are products of matrices")
    half, n, locked = dt / 2, tree.nv, locked_diagonal(tree)
    q_symbols, v_symbols = ex.sym("q", tree.nq), ex.sym("v", n)
    expressions = _momenta(tree, q_symbols, v_symbols, gravity, wrenches)

    def momenta_at(q: Mat, v: Mat) -> _Momenta:
        return _Momenta(*ex.substitute(expressions, [q_symbols, v_symbols], [ex.densify(q), ex.densify(v)]))

    def middle(v_m: Mat) -> tuple[_Momenta, Mat, Mat, Mat]:
        """At the midpoint: its momenta, E, the impulse h (s + tau), r."""
        at_middle, E = momenta_at(integrate(tree, q, v_m, half), v_m), integrate_derivatives(tree, -half * v_m)[0].T
        impulse = half * (at_middle.s + zero_locked(tree, tau))
        return at_middle, E, impulse, at_middle.p - E @ at_start.p - impulse

    def matrix(v_m: Mat) -> Mat:
        """J."""
        at_middle, E, *_ = middle(v_m)
        slope = at_middle.p_q + _turning(tree, E @ at_start.p) - half * at_middle.s_q
        return at_middle.M + locked + half * (slope @ integrate_derivatives(tree, half * v_m)[1] - at_middle.s_v)

    at_start, v_m = momenta_at(q, v), v
    # A fixed number of steps of Newton's method: a kernel has no loop that ends on a condition.
    for _ in range(5):
        v_m = v_m - _solved(tree, matrix(v_m), middle(v_m)[3])
    at_middle, E, impulse, residual = middle(v_m)
    sizes = (ex.vertsplit(ex.fabs(x)) for x in (ex.vertcat(at_middle.p, impulse), residual))
    largest, left = (reduce(ex.fmax, of_x, ex.matrix(0.0)) for of_x in sizes)
    # NaN instead of a state without convergence, which servers report.
    unknown = ex.if_else(TOLERANCE * largest < left, nan, 0.0)
    h, free, zero = half + unknown, free_selector(tree), ex.zeros(n, n)
    by_position, by_step = integrate_derivatives(tree, half * v_m)
    start, step = ex.horzcat(by_position, zero, zero), h * by_step  # dq_m = start + step dv_m
    of_efforts = ex.horzcat(zero, zero, h * free)
    right_side = (
        ex.horzcat(E @ at_start.p_q, E @ at_start.M, zero) - (at_middle.p_q - half * at_middle.s_q) @ start + of_efforts
    )
    dv_m = _solved(tree, matrix(v_m), right_side)
    p = E @ (E @ at_start.p + (2 * impulse + unknown))
    q_next = integrate(tree, q, v_m, 2 * h)
    entries = entries_of(tree, momenta_at(q_next, v_symbols).M)
    v_next = mass_matrix.solve(tree, entries, p)
    # dq and dp - dp/dq dq at the end, the part of the start and that of dv_m: products of small blocks first.
    p_q, slope, before_q, by_v_m = (
        momenta_at(q_next, v_next).p_q,
        at_middle.p_q + half * at_middle.s_q,
        by_position @ start,
        by_position @ step + step,
    )
    left = E @ (slope @ start + of_efforts) - p_q @ before_q
    right = E @ (slope @ step + at_middle.M + half * at_middle.s_v) - _turning(tree, p) @ step - p_q @ by_v_m
    return step_outputs(q_next, v_next, before_q + by_v_m @ dv_m, mass_matrix.solve(tree, entries, left + right @ dv_m))


def _momenta(tree: Tree, q: Mat, v: Mat, gravity: Mat, wrenches: PerBody | None) -> _Momenta:
    G, Psi, branch, resting_branch, (p_q, s_q, M) = slopes(tree, q, v, gravity, wrenches)
    bodies = list(zip(G, Psi, branch, resting_branch, strict=True))
    p = joint_vector(tree, PerBody(G_i.T @ branch_i.K for G_i, _, branch_i, _ in bodies)) + passive.armature(tree) * v
    s = joint_vector(
        tree, PerBody(psi.T @ branch_i.K - G_i.T @ resting_i.F for G_i, psi, branch_i, resting_i in bodies)
    )
    return _Momenta(
        p,
        s - passive.efforts(tree, q, v),
        p_q,
        M,
        s_q - ex.diag(passive.stiffness(tree)),
        free_selector(tree) @ p_q.T - ex.diag(passive.resistance(tree, v)),
    )


def _turning(tree: Tree, p: Mat) -> Mat:
    """The matrix of x -> x x* p of all joints, (nv, nv)."""
    matrix = ex.zeros(tree.nv, tree.nv)
    for i in tree.independent_bodies:
        joint, in_v = tree.inboard[i], tree.in_v[i]
        if not joint.rate_is_velocity:
            axes = map(ex.vertsplit, ex.horzsplit(ex.eye(joint.nv)))
            matrix[in_v, in_v] = ex.horzcat(*(ex.vertcat(*joint.turning(axis, ex.vertsplit(p[in_v]))) for axis in axes))
    return matrix


def _solved(tree: Tree, J: Mat, x: Mat) -> Mat:
    """J^-1 x by elimination without pivoting, leaves before roots: J is near the mass matrix, and has its zeros."""
    n, order = tree.nv, tree.parent_first_entries
    rows = [ex.horzcat(J, x)[k, :] for k in range(n)]
    for last in range(n - 1, 0, -1):
        k = order[last]
        for i in order[:last]:
            # Structural zeros between branches stay zero in this order.
            if rows[i][k].nnz():
                rows[i] = rows[i] - (rows[i][k] / rows[k][k]) * rows[k]
    solution: dict[int, Mat] = {}
    for k in order:
        eliminated = sum((rows[k][j] * solution[j] for j in solution), ex.zeros(1, x.shape[1]))
        solution[k] = (rows[k][n:] - eliminated) / rows[k][k]
    return ex.vertcat(*(solution[k] for k in range(n)))

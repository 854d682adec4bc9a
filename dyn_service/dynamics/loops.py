"""Motions of a robot with closed loops in its independent velocities, by elimination of the dependent ones.

With the rows J_c of the loop joints (`engine/loops/joints.py`) and independent entries u of v,

    v = G v_u,   a = a_p + G z,     J_c G = 0,   G_u = e,   J_c a_p + J_c-dot v = 0

follow from Gaussian elimination in J_c with a fixed order of pivots, in which zeros cost nothing: a loop joint moves
with the joints of its loop only. Where the order is bad, at singular positions, quotients are large; they are returned.

    inverse dynamics     tau_u = G^T h                                  h = M a + C of the tree
    forward dynamics     a = a_p + G z,   G^T M G z = G^T f             f = tau - M a_p - C
    closing              J_c dq = -e,     J_c dv = -J_c v               e: errors of the loop joints

Cost: O(N + loops x depth) and the elimination. Checked by tests/engine/test_loop_kernels.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics.kinematics import along, in_world, joint_columns, motion_subspaces
from dyn_service.dynamics.newton_euler import motion
from dyn_service.dynamics.spatial import Mat, angular, constant, cross, join, linear, pivots, row_by_row
from dyn_service.dynamics.sweeps import PerBody
from dyn_service.model.arrays import Matrix
from dyn_service.model.loop_tree import UNRELATED, LoopFrames, LoopTree
from dyn_service.model.tree import Tree

_NO_MOTION = 1e-300
"""Added to divisors that are zero at rest, where the dividend is zero too."""


class _State(NamedTuple):
    """The bodies at a state. rotations, origins: R_WB and p_WB. V, V_dot: as of `newton_euler.motion`."""

    tree: LoopTree
    rotations: list[Mat]
    origins: list[Mat]
    V: PerBody
    V_dot: PerBody


class _LoopMotion(NamedTuple):
    """A loop joint. gap: (1, 1), at least its largest gap in rad or lengths. error: (m, 1), the motion from the nearest
    allowed pose, to first order. rows: (m, nv) of J_c. velocity: (m, 1) J_c v. acceleration: (m, 1), J_c a + J_c-dot v.
    Lengths are those of the loop.
    """

    gap: Mat
    error: Mat
    rows: Mat
    velocity: Mat
    acceleration: Mat


class _Loops(NamedTuple):
    """All loop joints. rows: (m, nv), J_c diag(unit). error, velocity, acceleration: (m, 1). shares: (3, 1), see
    `efforts`.
    """

    rows: Mat
    error: Mat
    velocity: Mat
    acceleration: Mat
    shares: Mat


def efforts(tree: LoopTree, q: Mat, v: Mat, a: Mat, h: Mat) -> dict[str, Mat]:
    """tau (nv,), 0 at dependent joints, and `shares` (4,), which are small if the state is closed and regular.

    h: (nv,) M a + C. shares: the gap of the loops in rad and lengths; the velocity and the acceleration across loop
    joints, each relative to the largest entry of J_c times the largest of v and a in the loop; the largest quotient
    of the elimination. The first three are sums over the loop joints, so NaN remains.
    """
    loops = _loops(tree, q, v, a)
    G, _, quotient = _eliminated(tree, loops.rows, loops.acceleration)
    tau = ex.zeros(tree.nv, 1)
    for entry, effort in zip(tree.independent, ex.vertsplit(G.T @ h), strict=True):
        tau[entry] = effort
    return {"tau": tau, "shares": ex.vertcat(loops.shares, quotient)}


def independent_motion(tree: LoopTree, q: Mat, v: Mat) -> dict[str, Mat]:
    """G (nv, nu), the least a_p (nv,), and `shares` (4,) as of `efforts`; that of the acceleration has no meaning."""
    loops = _loops(tree, q, v, ex.zeros(tree.nv, 1))
    G, a_p, quotient = _eliminated(tree, loops.rows, loops.acceleration)
    # With accelerations of the dependent joints alone, large efforts would cancel in f.
    return {
        "jacobian": row_by_row(G),
        "acceleration": _least(tree, G, a_p),
        "shares": ex.vertcat(loops.shares[:2], ex.zeros(1, 1), quotient),
    }


def closing(tree: LoopTree, q: Mat, v: Mat) -> dict[str, Mat]:
    """The least changes `dq` (nv,), a small motion, and `dv` (nv,) by which q and v close the loops, to first order;
    `gap` (1,), the largest error in rad or lengths; and the largest `quotient` (1,) of the elimination.
    """
    loops = _loops(tree, q, v, ex.zeros(tree.nv, 1))
    G, dq, quotient = _eliminated(tree, loops.rows, loops.error)
    _, dv, _ = _eliminated(tree, loops.rows, loops.velocity)
    return {
        "dq": _least(tree, G, dq),
        "dv": _least(tree, G, dv),
        "gap": _largest(loops.error),
        "quotient": quotient,
    }


def _least(tree: LoopTree, G: Mat, x: Mat) -> Mat:
    """x (nv, 1) without the part along G that makes it larger, in units of `LoopTree.unit`."""
    W = 1.0 / tree.unit**2
    return x - G @ _solution(G.T @ (constant(np.diag(W)) @ G), G.T @ (constant(W[:, None]) * x))[0]


def unit_rows(tree: LoopTree, q: Mat) -> Mat:
    """J_c diag(unit) (m, nv)."""
    rest = ex.zeros(tree.nv, 1)
    rows = [loop.rows for loop in _motions(tree, q, rest, rest)]
    return ex.vertcat(*rows) @ ex.diag(constant(tree.unit[:, None]))


def row_forces(tree: LoopTree, rows: Mat, f: Mat) -> tuple[Mat, Mat]:
    """lambda (m, 1) with J_c^T lambda = f (nv, 1) for f without work, 0 in rows without a pivot, and an idle basis.

    The idle basis (m, m - rank) has the lambda that cause no effort, J_c^T lambda = 0. rows: (m, nv), J_c diag(unit).
    """
    # Pivot rows are L U, the others K U, with U triangular in the entries of the pivots.
    steps, factors, _ = _elimination(tree, rows, ex.zeros(rows.shape[0], 1))
    efforts_in_units, solution = constant(tree.unit[:, None]) * f, dict[int, Mat]()
    for r, c, _, _, pivot in steps:
        effect = sum((row[c] * solution[k] for k, _, row, *_ in steps[: len(solution)]), 0.0)
        solution[r] = (efforts_in_units[c] - effect) / pivot

    def unreduced(forces: dict[int, Mat], solution: dict[int, Mat]) -> Mat:
        for r, *_ in reversed(steps):
            effect = sum((factors[k][r] * x for k, x in forces.items() if r in factors[k]), ex.zeros(1, 1))
            forces[r] = solution.get(r, ex.zeros(1, 1)) - effect
        return ex.vertcat(*(forces.get(r, ex.zeros(1, 1)) for r in range(rows.shape[0])))

    idle = [unreduced({r: ex.matrix(1.0)}, {}) for r in factors if r not in solution]
    return unreduced({}, solution), ex.horzcat(*idle) if idle else ex.zeros(rows.shape[0], 0)


def wrenches_of(tree: LoopTree, q: Mat, forces: Mat) -> tuple[list[Mat], PerBody]:
    """Wrenches (6, 1) of forces (m, 1) along the rows of J_c.

    Of each loop joint on its child, as `LoopJoints.wrenches`, and on all bodies, at their origins in their axes.
    """
    rotations, steps = in_world(tree, q)
    origins, first, loads = along(tree, steps), 0, []
    on_bodies = [ex.zeros(6, 1) for _ in range(len(tree))]
    for loop in tree.loops:
        lengths = np.repeat([1.0, 1.0 / loop.length], 3)[:, None]
        load = constant(lengths * loop.blocked) @ forces[first : first + loop.blocked.shape[1]]
        first += loop.blocked.shape[1]
        loads.append(load)
        p_C, R_PL = constant(loop.child_xyz), rotations[loop.parent].T
        p_P = R_PL @ (origins[loop.child] + rotations[loop.child] @ p_C - origins[loop.parent])
        R_CJ = constant(loop.child_rotation)
        for body, R, p, sign in (
            (loop.child, R_CJ, p_C, 1.0),
            (loop.parent, R_PL @ rotations[loop.child] @ R_CJ, p_P, -1.0),
        ):
            torque, force = R @ angular(load), R @ linear(load)
            on_bodies[body] = on_bodies[body] + sign * join(torque + cross(p, force), force)
    return loads, PerBody(on_bodies)


def least_squares(A: Mat, b: Mat) -> tuple[Mat, Mat]:
    """x (n, 1) with the least |A x + b|, and the largest quotient of a diagonal entry of A^T A by its pivot."""
    return _solution(A.T @ A, -(A.T @ b))


def accelerations(tree: Tree, M: Mat, jacobian: Mat, a_p: Mat, f: Mat) -> dict[str, Mat]:
    """a (nv,) = a_p + G z, and the largest `quotient` (1,) of a diagonal entry of G^T M G by its pivot.

    M: (nv^2,) row by row. jacobian: (nv nu,), G row by row. a_p, f: (nv,).
    """
    nv = tree.nv
    return accelerations_of(tree, ex.reshape(M, nv, nv), ex.reshape(jacobian, -1, nv).T, a_p, f)


def accelerations_of(tree: Tree, M: Mat, G: Mat, a_p: Mat, f: Mat) -> dict[str, Mat]:
    """As `accelerations`, of the matrices M (nv, nv) and G (nv, nu)."""
    z, quotient = _solution(G.T @ (M @ G), G.T @ f)
    return {"a": a_p + G @ z, "quotient": quotient}


def _solution(S: Mat, f: Mat) -> tuple[Mat, Mat]:
    """Returns z (n, 1) of S z = f, and the largest quotient of a diagonal entry of S by its pivot. S is symmetric."""
    L, D = pivots(S)
    z, quotient = ex.vertsplit(f), ex.zeros(1, 1)
    for i, pivot in enumerate(D):
        for j in range(i):
            z[i] = z[i] - L[i][j] * z[j]
        quotient = ex.fmax(ex.fabs(S[i, i] / pivot), quotient)
    z = [x / pivot for x, pivot in zip(z, D, strict=True)]
    for i in reversed(range(len(D))):
        for j in range(i):
            z[j] = z[j] - L[i][j] * z[i]
    return ex.vertcat(*z), quotient


def _motions(tree: LoopTree, q: Mat, v: Mat, a: Mat) -> list[_LoopMotion]:
    rotations, steps = in_world(tree, q)
    state = _State(tree, rotations, along(tree, steps), *motion(tree, q, v, a))
    return [_loop_motion(state, loop) for loop in tree.loops]


def _loops(tree: LoopTree, q: Mat, v: Mat, a: Mat) -> _Loops:
    motions = _motions(tree, q, v, a)
    unit = constant(tree.unit[:, None])
    speeds, rates = (ex.vertsplit(x / unit) for x in (v, a))
    speed, rate = (_largest(x / unit) for x in (v, a))
    rows = [loop.rows @ ex.diag(unit) for loop in motions]
    gap = opening = tearing = ex.zeros(1, 1)
    for loop, loop_rows in zip(motions, rows, strict=True):
        size, entries = _largest(loop_rows), [k for k in range(tree.nv) if loop_rows[:, k].nnz]
        near_speed, near_rate = (_largest(ex.vertcat(*(x[k] for k in entries))) for x in (speeds, rates))
        gap = gap + loop.gap
        opening = opening + ex.norm_2(loop.velocity) / (size * (near_speed + UNRELATED * speed) + _NO_MOTION)
        scale = size * (near_rate + UNRELATED * rate) + size**2 * (near_speed**2 + UNRELATED * speed**2)
        tearing = tearing + ex.norm_2(loop.acceleration) / (scale + _NO_MOTION)
    error, velocity, acceleration = (
        ex.vertcat(*parts)
        for parts in zip(*((loop.error, loop.velocity, loop.acceleration) for loop in motions), strict=True)
    )
    return _Loops(ex.vertcat(*rows), error, velocity, acceleration, ex.vertcat(gap, opening, tearing))


def _elimination(
    tree: LoopTree, rows: Mat, bias: Mat
) -> tuple[list[tuple[int, int, Mat, Mat, Mat]], dict[int, dict[int, Mat]], Mat]:
    """Returns steps, factors, and the largest quotient of an entry by a pivot that it is eliminated with.

    rows: (m, nv), J_c diag(unit). bias: (m, 1). steps: index of the pivot's row and of its column; the row when it was
    chosen, without the pivot, and its bias; the pivot. factors: of each row, by the pivot's row that was subtracted.
    """
    left = {r: (rows[r, :], bias[r]) for r in range(rows.shape[0])}
    factors: dict[int, dict[int, Mat]] = {r: {} for r in left}
    largest, quotient, steps = _largest(rows), ex.zeros(1, 1), []
    for c, r in tree.pivots:
        row, b = left.pop(r)
        pivot, size = row[c], ex.fmax(_largest(row), largest)
        for k, (other, b_k) in left.items():
            if other[c].nnz:
                factor = factors[k][r] = other[c] / pivot
                size = ex.fmax(ex.fabs(other[c]), size)
                remaining = other - factor * row
                remaining[c] = ex.zeros(1, 1)
                left[k] = ex.sparsify(remaining), b_k - factor * b
        quotient = ex.fmax(size / ex.fabs(pivot), quotient)
        row[c] = ex.zeros(1, 1)
        steps.append((r, c, ex.sparsify(row), b, pivot))
    return steps, factors, quotient


def _eliminated(tree: LoopTree, rows: Mat, bias: Mat) -> tuple[Mat, Mat, Mat]:
    """Returns G (nv, nu), a_p (nv, 1), and the quotient of `_elimination`."""
    steps, _, quotient = _elimination(tree, rows, bias)
    G, a_p = ex.zeros(tree.nv, len(tree.independent)), ex.zeros(tree.nv, 1)
    for column, u in enumerate(tree.independent):
        G[u, column] = 1.0
    for _, c, row, b, pivot in reversed(steps):
        G[c, :] = -(row @ G) / pivot
        a_p[c] = -(row @ a_p + b) / pivot
    unit = tree.unit
    G = constant(np.diag(unit)) @ G @ constant(np.diag(1.0 / unit[list(tree.independent)]))
    return G, constant(unit[:, None]) * a_p, quotient


def _largest(x: Mat) -> Mat:
    """The largest size of all entries; NaN is ignored."""
    size = ex.zeros(1, 1)
    for entry in x.nonzeros():
        size = ex.fmax(size, ex.fabs(entry))
    return size


def _loop_motion(state: _State, loop: LoopFrames) -> _LoopMotion:
    """The motion of the frame on the child relative to that on the parent, in its axes at its origin."""
    parent, child = loop.parent, loop.child
    E, p_C, p_P = constant(loop.child_rotation), constant(loop.child_xyz), constant(loop.parent_xyz)
    R_WC = state.rotations[child] @ E
    R_CP = R_WC.T @ state.rotations[parent]
    d = R_WC.T @ (
        state.origins[child] + state.rotations[child] @ p_C - state.origins[parent] - state.rotations[parent] @ p_P
    )
    V_C, A_C = _of_point(E.T, p_C, state.V[child], state.V_dot[child])
    V_P, A_P = _of_point(R_CP, p_P, state.V[parent], state.V_dot[parent])
    omega_C, omega_P, slip = angular(V_C), angular(V_P), linear(V_C) - linear(V_P)
    relative = slip - cross(omega_P, d)
    V = join(omega_C - omega_P, relative)
    A = join(
        angular(A_C) - angular(A_P) - cross(omega_C, omega_C - omega_P),
        linear(A_C) - linear(A_P) - cross(angular(A_P), d) - cross(omega_P, slip) - cross(omega_C, relative),
    )
    columns = _columns(state, loop, R_WC, R_CP, E)
    lengths = np.repeat([1.0, 1.0 / loop.length], 3)[:, None]
    blocked = constant((loop.blocked * lengths).T)
    gap = _turn(loop, R_CP) + ex.norm_2(constant((loop.blocked * lengths)[3:].T) @ d)
    turn = _rotation_error(loop, R_CP)
    # In the axes of the allowed pose, in which free translations of the child are no error.
    error = blocked @ join(turn, d + cross(turn, d))
    return _LoopMotion(gap, error, blocked @ columns, blocked @ V, blocked @ A)


def _of_point(R: Mat, p: Mat, V: Mat, V_dot: Mat) -> tuple[Mat, Mat]:
    """Velocity and acceleration (6, 1) of a point p of a body, in axes that R turns to."""
    omega, alpha = angular(V), angular(V_dot)
    swing = cross(omega, p)
    return (
        join(R @ omega, R @ (linear(V) + swing)),
        join(R @ alpha, R @ (linear(V_dot) + cross(alpha, p) + cross(omega, swing))),
    )


def _columns(state: _State, loop: LoopFrames, R_WC: Mat, R_CP: Mat, E: Mat) -> Mat:
    """J_C - J_P, (6, nv)."""
    tree = state.tree
    paths = [set(tree.ancestors(loop.child)), set(tree.ancestors(loop.parent))]
    end = state.origins[loop.child] + state.rotations[loop.child] @ constant(loop.child_xyz)
    blocks = []
    for i, G in enumerate(motion_subspaces(tree)):
        sides = [i in path for path in paths]
        if sides[0] == sides[1] or not G.shape[1]:
            blocks.append(ex.zeros(6, G.shape[1]))
            continue
        # Of the child itself both are constant, which leaves more zeros.
        R, lever = E.T, E.T @ constant(loop.child_xyz)
        if i != loop.child:
            R = R_CP if i == loop.parent else R_WC.T @ state.rotations[i]
            lever = R_WC.T @ (end - state.origins[i])
        turns, shifts = R @ G[:3, :], R @ G[3:, :]
        swings = [cross(turns[:, k], lever) for k in range(G.shape[1])]
        block = ex.vertcat(turns, shifts + ex.horzcat(*swings))
        blocks.append(block if sides[0] else -block)
    return joint_columns(tree, blocks)


def _turn(loop: LoopFrames, R_CP: Mat) -> Mat:
    """(1, 1): at least 0.9 of the angle from the nearest rotation that the joint allows."""
    R, axis = R_CP @ constant(loop.parent_rotation), _free_turns(loop)
    if axis.shape[1] == 3:
        return ex.zeros(1, 1)
    if axis.shape[1] == 0:
        return ex.norm_2(ex.vec(R - ex.eye(3)))
    return ex.norm_2(R @ constant(axis) - constant(axis))


def _rotation_error(loop: LoopFrames, R_CP: Mat) -> Mat:
    """(3, 1): the turn from the nearest rotation that the joint allows, to first order, in axes of C's frame."""
    R, axis = R_CP @ constant(loop.parent_rotation), _free_turns(loop)
    if axis.shape[1] == 3:
        return ex.zeros(3, 1)
    if axis.shape[1] == 0:
        return 0.5 * ex.vertcat(R[1, 2] - R[2, 1], R[2, 0] - R[0, 2], R[0, 1] - R[1, 0])
    unit_axis = constant(axis / np.linalg.norm(axis))
    return cross(R @ unit_axis, unit_axis)


def _free_turns(loop: LoopFrames) -> Matrix:
    """(3, n): the directions about which the joint turns: none, one or all."""
    return loop.subspace[:3, np.abs(loop.subspace[:3]).max(axis=0, initial=0.0) > 0.0]

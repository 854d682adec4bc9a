"""Matrices that map the dynamic parameters of a robot to its efforts, loads, momenta and energy.

    tau = Y(q, v, a) theta,    p = Y_p(q, v) theta,    T = y_T(q, v) theta,    V = y_V(q) theta

theta contains for each link, in its axes and about its origin,

    m,  h = m c = (h_x, h_y, h_z),  I = (I_xx, I_xy, I_xz, I_yy, I_yz, I_zz)

and then the passive parameters of the joints, part by part: damping, friction, armature and stiffness of each rate.
Widths of friction and rest positions of springs are numbers of the robot, not in theta, because efforts are not linear
in them. With L(x) such that I x = L(x) theta_I, the load of a link (16), (17) and its momentum are

    force  = m v-dot + (omega-dot~ + omega~ omega~) h        P = m v + omega~ h
    torque = h x v-dot + (L(omega-dot) + omega~ L(omega)) I  H = h x v + L(omega) I

in which v-dot contains gravity as an upward acceleration of the world. A column of Y is that of the link's load,
carried to the root by D^T and projected on each joint, (18a). Cost: O(N d) with d the depth. Source: Newton-Euler
document; linear in theta: Atkeson, An, Hollerbach, 'Estimation of Inertial Parameters of Manipulator Loads and Links',
1986.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics.kinematics import along, in_world, influences, joint_values, motion_subspaces
from dyn_service.dynamics.newton_euler import motion, velocities, world_acceleration
from dyn_service.dynamics.rolled_tree import Walk
from dyn_service.dynamics.spatial import Mat, angular, constant, dense, linear, skew
from dyn_service.dynamics.sweeps import PerBody, walk
from dyn_service.model.parameters import COLUMNS, INERTIAL, LINEAR, ROWS
from dyn_service.model.tree import Tree


def parameters(tree: Tree) -> dict[str, np.ndarray]:
    """theta, (nt,)."""
    of_links = [[body.mass, *body.moment, *body.about_origin[ROWS, COLUMNS]] for body in tree.inertia]
    of_rates = [getattr(tree.passive, part) for part in LINEAR]
    return {"theta": np.concatenate([np.ravel(of_links), *of_rates])}


def inverse_dynamics(tree: Tree, q: Mat, v: Mat, a: Mat, gravity: Mat) -> Mat | Walk:
    """Y, (nv, nt)."""
    w = _rates(tree, v)
    of_rates = (w, ex.tanh(w / dense(tree.passive.width)), _rates(tree, a), _from_rest(tree, q))
    return _at_joints(tree, q, _loads(tree, q, v, a, gravity), of_rates)


def momentum(tree: Tree, q: Mat, v: Mat) -> Mat | Walk:
    """Y_p, (nv, nt)."""
    zero = ex.zeros(tree.nr, 1)
    momenta = [_momentum(V) for V in _velocities(tree, q, v)]
    return _at_joints(tree, q, momenta, (zero, zero, _rates(tree, v), zero))


def energy(tree: Tree, q: Mat, v: Mat, gravity: Mat) -> dict[str, Mat]:
    """y_T and y_V, (nt,) each."""
    rotations, steps = in_world(tree, q)
    kinetic = [(V.T @ _momentum(V)).T / 2 for V in _velocities(tree, q, v)]
    potential = [
        -ex.vertcat(gravity.T @ p, R.T @ gravity, ex.zeros(6, 1))
        for R, p in zip(rotations, along(tree, steps), strict=True)
    ]
    w, stretched, zero = _rates(tree, v), _from_rest(tree, q), ex.zeros(tree.nr, 1)
    return {
        "kinetic": ex.vertcat(*kinetic, zero, zero, w * w / 2, zero),
        "potential": ex.vertcat(*potential, zero, zero, zero, stretched * stretched / 2),
    }


def joint_wrench(tree: Tree, q: Mat, v: Mat, a: Mat, gravity: Mat) -> Mat | Walk:
    """(6 nj, 10 nl): of every named joint the load F, (13), of the inertial parameters of the links."""
    loads, zero = _loads(tree, q, v, a, gravity), ex.zeros(6, len(INERTIAL))

    def of_named(j: int, load: Mat) -> Mat:
        return load if tree.joints[j] else ex.zeros(0, len(INERTIAL))

    blocks = _carried(tree, q, loads, lambda i: of_named(i, loads[i]), of_named)
    if isinstance(blocks, Walk):
        return blocks
    rows = [[blocks.get((i, j), zero) for i in range(len(tree))] for j, joint in enumerate(tree.joints) if joint]
    return ex.blockcat(rows) if rows else ex.zeros(0, len(INERTIAL) * len(tree))


def _carried(
    tree: Tree, q: Mat, loads: Sequence[Mat], own_block: Callable[[int], Mat], block: Callable[[int, Mat], Mat]
) -> dict[tuple[int, int], Mat] | Walk:
    """Returns {(i, j): block(j, D_.^T .. D_i^T load_i)} for each ancestor j of i, and own_block(i) where j = i.

    The load (6, 10) of body i is carried to the origin and axes of j.
    """
    D = influences(tree, q)

    def passed(i: int, load: Mat) -> Mat | None:
        return None if tree.parent[i] < 0 else D[i].T @ load

    return walk(
        tree,
        lambda i: (own_block(i), passed(i, loads[i])),
        lambda j, load: (block(j, load), passed(j, load)),
        outward=False,
    )


def _at_joints(tree: Tree, q: Mat, loads: Sequence[Mat], of_rates: Sequence[Mat]) -> Mat | Walk:
    """G^T Psi_D^T of the loads of the bodies, each in its own columns; then for each of `of_rates`, (nr,), a column for
    each rate, in the rows of its joint. Rows of locked joints are 0.
    """
    G, width = motion_subspaces(tree), len(INERTIAL)
    free = None if tree.free is None else joint_values(tree, constant(tree.free))

    def rows(j: int, X: Mat) -> Mat:
        return X if free is None else ex.diag(free[j]) @ X

    def own_block(i: int) -> Mat:
        in_rates, joint = tree.in_rates[i], tree.inboard[i]
        rate_columns = (joint.ratio * x[in_rates] if joint.nv else ex.zeros(0, 1) for x in of_rates)
        return rows(i, ex.horzcat(G[i].T @ loads[i], *rate_columns))

    blocks = _carried(tree, q, loads, own_block, lambda j, load: rows(j, G[j].T @ load))
    if isinstance(blocks, Walk):
        return blocks
    first = width * len(tree)
    Y = ex.zeros(tree.nv, first + len(of_rates) * tree.nr)
    for (i, j), block in blocks.items():
        if not tree.inboard[j].nv:
            continue
        Y[tree.in_v[j], width * i : width * (i + 1)] += block[:, :width]
        for k in range(width, block.shape[1]):
            start = first + (k - width) * tree.nr
            in_rates = tree.in_rates[i]
            Y[tree.in_v[j], start + in_rates.start : start + in_rates.stop] += ex.diag(block[:, k])
    return Y


def _rates(tree: Tree, x: Mat) -> Mat:
    """Each joint's own rates, (nr,), from a vector over the velocities."""
    rates = [joint.ratio * rate for joint, rate in zip(tree.inboard, joint_values(tree, x), strict=True) if joint.nv]
    return ex.vertcat(*rates) if rates else ex.zeros(0, 1)


def _from_rest(tree: Tree, q: Mat) -> Mat:
    """q - q_0 of each rate, (nr,), whether it has a spring or not; 0 for joints with several degrees of freedom."""
    deflections = [
        joint.ratio * q[in_q] - dense(tree.passive.rest)[part] if joint.nv == 1 else ex.zeros(joint.nv, 1)
        for joint, in_q, part in zip(tree.inboard, tree.in_q, tree.in_rates, strict=True)
    ]
    return ex.vertcat(*deflections) if deflections else ex.zeros(0, 1)


def _loads(tree: Tree, q: Mat, v: Mat, a: Mat, gravity: Mat) -> list[Mat]:
    """The columns (6, 10) of each body's load M V-dot + B, (16), (17)."""
    V, V_dot = motion(tree, q, v, a, world_acceleration(gravity))
    loads = []
    for V_i, V_dot_i in zip(V, V_dot, strict=True):
        w, w_dot, v_dot = angular(V_i), angular(V_dot_i), linear(V_dot_i)
        torque = ex.horzcat(ex.zeros(3, 1), -skew(v_dot), _times_inertia(w_dot) + skew(w) @ _times_inertia(w))
        force = ex.horzcat(v_dot, skew(w_dot) + skew(w) @ skew(w), ex.zeros(3, 6))
        loads.append(ex.vertcat(torque, force))
    return loads


def _momentum(V: Mat) -> Mat:
    """The columns (6, 10) of a body's momentum M V."""
    w, u = angular(V), linear(V)
    return ex.vertcat(
        ex.horzcat(ex.zeros(3, 1), -skew(u), _times_inertia(w)),
        ex.horzcat(u, skew(w), ex.zeros(3, 6)),
    )


def _times_inertia(x: Mat) -> Mat:
    """L(x), (3, 6)."""
    zero = ex.zeros(1, 1)
    return ex.vertcat(
        ex.horzcat(x[0], x[1], x[2], zero, zero, zero),
        ex.horzcat(zero, x[0], zero, x[1], x[2], zero),
        ex.horzcat(zero, zero, x[0], zero, x[1], x[2]),
    )


def _velocities(tree: Tree, q: Mat, v: Mat) -> PerBody:
    return velocities(tree, influences(tree, q), motion_subspaces(tree), v)

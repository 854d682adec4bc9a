"""Inverse dynamics by the Newton-Euler equations with influence operators, and control laws.

    V      = Psi_D G v                                  velocities                      Hamilton (V.4)
    A_i    = [omega_p x w;  omega_p x (omega_p x d)]    what velocity alone adds        (5a)
           + [0; 2 omega_p x u + w x u]                 ... where [w; u] = G v has a linear part
    V-dot  = Psi_D (G a + A)                            accelerations                   (7)
    F      = Psi_D^T (M V-dot + B - W)                  loads at the joints             (13), (16), (17)
    tau    = G^T F + I_r a + p(q, v)                    their part along the free axes  (18a)

with armature I_r and passive efforts p, `passive.py`. The outward sweep carries motion, the inward sweep load.
Gravity enters as an upward acceleration of the world, so that every body's weight comes with its inertia. V-dot is the
acceleration of the body's origin itself, not a spatial one: only angular velocity enters A and B, and linear velocity
is never computed. Cost: O(N).

Body axes throughout; in them (5a) reads R_CP applied to its world form, with omega_p and d in the parent's axes.

Control laws have the errors e-dot = v_ref - v and e = q_ref - q, `Configuration.error`: the velocity that leads from q
to q_ref in 1 s, for continuous joints the shorter way round.

    computed torque   tau(q, v, a_ref + kp e + kd e-dot)            linearises the closed loop
    joint by joint    tau + kp e + kd e-dot
    of the state      tau + Kq e + Kv e-dot = tau - K (x - x_ref)   K = [Kq, Kv]
"""

from __future__ import annotations

from functools import singledispatch

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics import passive
from dyn_service.dynamics.kinematics import (
    error,
    independent_values,
    influences,
    joint_values,
    joint_vector,
    motion_subspaces,
    zero_locked,
)
from dyn_service.dynamics.rolled_tree import RolledTree
from dyn_service.dynamics.spatial import Inertia, Mat, angular, cross, join, linear
from dyn_service.dynamics.sweeps import PerBody, inward, kept, outward
from dyn_service.model.tree import Tree

_STILL = ex.zeros(6, 1)


def velocities(tree: Tree, D: PerBody, G: PerBody, v: Mat) -> PerBody:
    """V = Psi_D G v, (6, 1) per body: [angular; linear] velocity of the body's origin relative to the world, in body
    axes, rad/s and m/s. Hamilton (V.4).
    """
    return outward(tree, D, G @ joint_values(tree, v))


def velocity_products(tree: Tree, D: PerBody, G: PerBody, V: PerBody, v: Mat) -> PerBody:
    """A, (6, 1) per body: the part of the [angular; linear] acceleration of the body's origin that velocities alone add
    to its parent's, in body axes, rad/s^2 and m/s^2. (5a).
    """
    rates = G @ joint_values(tree, v)
    products = []
    for i, (parent, V_p) in enumerate(zip(tree.parent, tree.of_parent(V, _STILL), strict=True)):
        # v_JB is given in the body's axes, which turn against the joint frame with w.
        w_cross_u = join(ex.zeros(3, 1), cross(angular(rates[i]), linear(rates[i])))
        if parent < 0:
            # The ground does not rotate: all other terms are zero.
            products.append(w_cross_u)
            continue
        omega, d = angular(V_p), D[i].offset
        omega_P = D[i].rotation @ omega
        centripetal = D[i].rotation @ cross(omega, cross(omega, d))
        products.append(
            join(cross(omega_P, angular(rates[i])), centripetal + 2 * cross(omega_P, linear(rates[i]))) + w_cross_u
        )
    return kept(tree, products)


def inertias(tree: Tree) -> PerBody:
    """M, (16): one constant joint-centred inertia per body."""
    return PerBody(Inertia.of(body) for body in tree.inertia)


def velocity_loads(M: PerBody, V: PerBody) -> PerBody:
    """B = [omega x I omega; m omega x (omega x s)], (6, 1) per body: [torque; force] that velocities alone require, at
    the body's origin in its axes, N m and N. (17), read off M = [I, m s~; -m s~, m].
    """
    loads = []
    for M_i, V_i in zip(M, V, strict=True):
        omega = angular(V_i)
        # H = m s~, so H^T omega = -m s x omega = omega x m s.
        loads.append(join(cross(omega, M_i.I @ omega), cross(omega, M_i.H.T @ omega)))
    return PerBody(loads)


def world_acceleration(gravity: Mat) -> Mat:
    """[0; -gravity], (6, 1): the acceleration of the ground, world axes, that acts on all bodies like gravity."""
    return join(ex.zeros(3, 1), -gravity)


def lifts(tree: Tree, D: PerBody, gravity: Mat) -> PerBody:
    """The ground's upward acceleration in each body's axes: what weight is the reaction to."""
    return outward(tree, D, [ex.zeros(6, 1)] * len(tree), world=world_acceleration(gravity))


def joint_loads(
    tree: Tree, q: Mat, v: Mat, a: Mat, gravity: Mat, wrenches: PerBody | None = None
) -> tuple[PerBody, PerBody]:
    """F, (13), and G. F, (6, 1) per body: the [torque; force] that the parent exerts on the body at the joint's origin,
    in body axes, N m and N. gravity: (3,) m/s^2, world axes. wrenches: as of `inverse_dynamics`.
    """
    D, G, M = influences(tree, q), motion_subspaces(tree), inertias(tree)
    return loads_through(tree, D, G, M, v, a, gravity, wrenches), G


def loads_through(
    tree: Tree, D: PerBody, G: PerBody, M: PerBody, v: Mat, a: Mat, gravity: Mat, wrenches: PerBody | None = None
) -> PerBody:
    """F, (13), with the operators given: their entries may be numbers or symbols."""
    V = velocities(tree, D, G, v)
    relative = G @ joint_values(tree, a) + velocity_products(tree, D, G, V, v)
    acceleration = outward(tree, D, relative, world=world_acceleration(gravity))
    load = M @ acceleration + velocity_loads(M, V)
    return inward(tree, D, load if wrenches is None else load - wrenches)


def motion(tree: Tree, q: Mat, v: Mat, a: Mat, world: Mat | None = None) -> tuple[PerBody, PerBody]:
    """V, Hamilton (V.4), and V-dot, (7), (6, 1) per body: [angular; linear] velocity and acceleration of the body's
    origin relative to the world, in body axes. world: (6, 1), the acceleration of the ground in world axes.
    """
    D, G = influences(tree, q), motion_subspaces(tree)
    V = velocities(tree, D, G, v)
    return V, outward(tree, D, G @ joint_values(tree, a) + velocity_products(tree, D, G, V, v), world=world)


def inverse_dynamics(tree: Tree, q: Mat, v: Mat, a: Mat, gravity: Mat, wrenches: PerBody | None = None) -> Mat:
    """tau = G^T F + I_r a + p, (18a). wrenches: (6, 1) per body: [torque; force], at its origin in its axes."""
    F, G = joint_loads(tree, q, v, a, gravity, wrenches)
    return joint_vector(tree, G.T @ F) + passive.armature(tree) * a + passive.efforts(tree, q, v)


def bias_forces(tree: Tree, q: Mat, v: Mat, gravity: Mat) -> Mat:
    """C, (18b): the efforts at zero acceleration."""
    return inverse_dynamics(tree, q, v, ex.zeros(tree.nv, 1), gravity)


def gravity_forces(tree: Tree, q: Mat, gravity: Mat) -> Mat:
    """(18b) at rest."""
    return bias_forces(tree, q, ex.zeros(tree.nv, 1), gravity)


def computed_torque(
    tree: Tree,
    q: Mat,
    v: Mat,
    q_ref: Mat,
    v_ref: Mat,
    a_ref: Mat,
    kp: Mat,
    kd: Mat,
    gravity: Mat,
    wrenches: PerBody | None = None,
) -> Mat:
    """Inverse dynamics of a = a_ref + kd e-dot + kp e."""
    a = zero_locked(tree, a_ref + kd * (v_ref - v) + kp * error(tree, q, q_ref))
    return inverse_dynamics(tree, q, v, a, gravity, wrenches)


def joint_feedback(tree: Tree, q: Mat, v: Mat, q_ref: Mat, v_ref: Mat, kp: Mat, kd: Mat, tau: Mat) -> Mat:
    """tau + kp e + kd e-dot (nv,): a spring and a damper at each joint. kp, kd, tau: (nv,)."""
    return tau + kp * error(tree, q, q_ref) + kd * (v_ref - v)


@singledispatch
def state_feedback(
    tree: Tree, q: Mat, v: Mat, q_ref: Mat, v_ref: Mat, position_gain: Mat, velocity_gain: Mat, tau: Mat
) -> Mat:
    """tau + Kq e + Kv e-dot (nv,).

    position_gain, velocity_gain: Kq and Kv, row by row, (nv^2,); in a kernel as loops one symbol for each matrix.
    """
    for K, x in ((position_gain, error(tree, q, q_ref)), (velocity_gain, v_ref - v)):
        tau = tau + ex.reshape(K, tree.nv, tree.nv).T @ x
    return tau


@state_feedback.register(RolledTree)
def _state_feedback_in_loops(
    tree: RolledTree, q: Mat, v: Mat, q_ref: Mat, v_ref: Mat, position_gain: Mat, velocity_gain: Mat, tau: Mat
) -> Mat:
    factors = (position_gain, error(tree, q, q_ref)), (velocity_gain, v_ref - v)
    columns = [(K, independent_values(tree, x)) for K, x in factors]
    return ex.vertcat(*tree.loops.plus_products(independent_values(tree, tau), columns))


def limited(tree: Tree, tau: Mat, added: Mat, limit: Mat, free: Mat) -> Mat:
    """tau + added, clipped to +-limit, and 0 where `free` is 0; all (nv,). NaN stays NaN, since fmin and fmax of
    kernels return a first operand that is NaN.
    """
    return free * ex.fmin(ex.fmax(tau + added, -limit), limit)


def link_motion(tree: Tree, q: Mat, v: Mat, a: Mat, gravity: Mat, wrenches: PerBody | None = None) -> dict[str, Mat]:
    """velocity, acceleration and load of every body, (N, 6) each, in its own axes at its own joint, (4), (7), (13)."""
    V, V_dot = motion(tree, q, v, a)
    F, _ = joint_loads(tree, q, v, a, gravity, wrenches)
    stacked = {"velocity": V, "acceleration": V_dot, "load": F}
    return {name: ex.vertcat(*map(ex.densify, rows)) for name, rows in stacked.items()}

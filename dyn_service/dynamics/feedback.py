"""Control laws that are linear in the error, with the errors of `Configuration.error`.

    e = q_ref - q,    e-dot = v_ref - v
    joint by joint    tau + kp e + kd e-dot
    of the state      tau + Kq e + Kv e-dot = tau - K (x - x_ref),  K = [Kq, Kv]

e is the velocity that leads from q to q_ref in 1 s, for continuous joints the shorter way round.
"""

from __future__ import annotations

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics.kinematics import error
from dyn_service.dynamics.rolled_tree import NotRolledError, RolledTree
from dyn_service.dynamics.spatial import Mat
from dyn_service.model.tree import Tree


def joint_feedback(tree: Tree, q: Mat, v: Mat, q_ref: Mat, v_ref: Mat, kp: Mat, kd: Mat, tau: Mat) -> Mat:
    """The efforts of a spring and a damper at each joint, and tau."""
    return tau + kp * error(tree, q, q_ref) + kd * (v_ref - v)


def state_feedback(
    tree: Tree, q: Mat, v: Mat, q_ref: Mat, v_ref: Mat, position_gain: Mat, velocity_gain: Mat, tau: Mat
) -> Mat:
    """tau + Kq e + Kv e-dot. position_gain, velocity_gain: Kq and Kv, row by row."""
    if isinstance(tree, RolledTree):
        raise NotRolledError("the gains relate all joints")
    Kq, Kv = (ex.reshape(K, tree.nv, tree.nv).T for K in (position_gain, velocity_gain))
    return tau + Kq @ error(tree, q, q_ref) + Kv @ (v_ref - v)


def limited(tree: Tree, tau: Mat, added: Mat, limit: Mat, free: Mat) -> Mat:
    """tau + added, clipped to +-limit, and 0 where `free` is 0. NaN stays NaN: kernels keep the first operand then."""
    return free * ex.fmin(ex.fmax(tau + added, -limit), limit)

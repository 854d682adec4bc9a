"""Readings of ideal sensors on a robot: force/torque sensors in joints, inertial measurement units on links.

With the sensor S at p = xyz, R = R_BS(rpy) in the frame of body B, F and V-dot from Newton-Euler (13) and (7), in which
gravity is an upward acceleration of the world:

    force            = R^T f                                               F = [torque; f], on B from its parent
    torque           = R^T (torque - p x f)                                about the sensor's origin
    specific force   = R^T (v-dot + omega-dot x p + omega x (omega x p))   V-dot = [omega-dot; v-dot]
    angular velocity = R^T omega

What real devices make of these numbers, noise and all, is in `dyn_service.sensors`. Cost: O(N) over links.
"""

from __future__ import annotations

from collections.abc import Iterable

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics.newton_euler import joint_loads, motion, world_acceleration
from dyn_service.dynamics.spatial import Mat, angular, cross, linear
from dyn_service.dynamics.sweeps import PerBody
from dyn_service.model.tree import Tree


def force_torque(
    tree: Tree, q: Mat, v: Mat, a: Mat, xyz: Mat, rpy: Mat, gravity: Mat, wrenches: PerBody | None = None
) -> dict[str, Mat]:
    """force, torque (nj, 3) of the parent on the child at every named joint, in the sensor's axes at its origin."""
    F, _ = joint_loads(tree, q, v, a, gravity, wrenches)
    R = rotation_of_rpy(rpy)
    loads = [F[i] for i, joint in enumerate(tree.joints) if joint]
    return {
        "force": _rows(R.T @ linear(load) for load in loads),
        "torque": _rows(R.T @ (angular(load) - cross(xyz, linear(load))) for load in loads),
    }


def reaction(
    tree: Tree, q: Mat, v: Mat, a: Mat, xyz: Mat, rpy: Mat, gravity: Mat, wrenches: PerBody | None = None
) -> dict[str, Mat]:
    """The same of the child on the parent."""
    return {name: -load for name, load in force_torque(tree, q, v, a, xyz, rpy, gravity, wrenches).items()}


def imu(tree: Tree, q: Mat, v: Mat, a: Mat, xyz: Mat, rpy: Mat, gravity: Mat) -> dict[str, Mat]:
    """specific_force, angular_velocity (nl, 3) of every link, in the sensor's axes."""
    V, V_dot = motion(tree, q, v, a, world_acceleration(gravity))
    R = rotation_of_rpy(rpy)
    specific = []
    for V_i, V_dot_i in zip(V, V_dot, strict=True):
        omega = angular(V_i)
        # V-dot contains gravity as an upward acceleration of the world, so this is the specific force.
        specific.append(R.T @ (linear(V_dot_i) + cross(angular(V_dot_i), xyz) + cross(omega, cross(omega, xyz))))
    return {"specific_force": _rows(specific), "angular_velocity": _rows(R.T @ angular(V_i) for V_i in V)}


def rotation_of_rpy(rpy: Mat) -> Mat:
    """R = Rz(yaw) Ry(pitch) Rx(roll), as URDF means it; `parsing.quantities` computes it in numbers."""
    (cr, cp, cy), (sr, sp, sy) = ex.vertsplit(ex.cos(rpy)), ex.vertsplit(ex.sin(rpy))
    return ex.vertcat(
        ex.horzcat(cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr),
        ex.horzcat(sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr),
        ex.horzcat(-sp, cp * sr, cp * cr),
    )


def _rows(vectors: Iterable[Mat]) -> Mat:
    return ex.vertcat(*(ex.densify(x) for x in vectors))

"""Newton's and Euler's equations of one body in its own axes, and the sum of virtual powers over all bodies.

    v-dot_Q = p-ddot + 2 omega x p-dot + omega-dot x p + omega x (omega x p) + v-dot      a point of a moving frame
    [N; F]  = [M 0; 0 m e] [omega-dot; v-dot] + [omega x M omega; omega x m v]            the wrench form
    sum of J_S^T (F - p-dot) + J_R^T (M - L-dot) = 0                                      virtual power, 5.4
    Y_i = [e 0; -y~ e], F-bar_i = [tau-bar; f-bar]                                        external loads, (11)

All but the last take NumPy arrays with leading axes. Source: Newton/Euler Equations document; Multi Body Dynamics
document, 5.4; Newton-Euler document, (11). Checked by tests/theory/test_bodies.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.queries import Array, Wrench

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot


def point_acceleration(
    p: ArrayLike, p_dot: ArrayLike, p_ddot: ArrayLike, omega: ArrayLike, omega_dot: ArrayLike, v_dot: ArrayLike
) -> Array:
    """Acceleration of a point that moves in a moving frame, (..., 3) m/s^2, in the axes of the frame.

    Args:
        p: (..., 3) m, the point in the frame; all are components in the frame's axes.
        p_dot: (..., 3) m/s, how these components change.
        p_ddot: (..., 3) m/s^2.
        omega: (..., 3) rad/s, of the frame.
        omega_dot: (..., 3) rad/s^2.
        v_dot: (..., 3) m/s^2, acceleration of the frame's origin.
    """
    relative = np.asarray(p_ddot) + 2.0 * _cross(omega, p_dot)
    return np.asarray(relative + _cross(omega_dot, p) + _cross(omega, _cross(omega, p)) + np.asarray(v_dot))


def wrench(
    mass: ArrayLike, inertia: ArrayLike, omega: ArrayLike, omega_dot: ArrayLike, v: ArrayLike, v_dot: ArrayLike
) -> Array:
    """Net load W = [N; F] on a body at its centre of mass, (..., 6) N m, N, in the axes of the body.

    Args:
        mass: (...) kg.
        inertia: (..., 3, 3) kg m^2, M about the centre of mass; all are components in the body's axes.
        omega: (..., 3) rad/s.
        omega_dot: (..., 3) rad/s^2.
        v: (..., 3) m/s, velocity of the centre of mass.
        v_dot: (..., 3) m/s^2, how these components change: the acceleration is v_dot + omega x v.
    """
    M, m = np.asarray(inertia), np.asarray(mass)[..., None]
    N = _times(M, omega_dot) + _cross(omega, _times(M, omega))
    F = m * np.asarray(v_dot) + _cross(omega, m * np.asarray(v))
    return np.concatenate(np.broadcast_arrays(N, F), axis=-1)


def virtual_power(
    robot: Robot, q: ArrayLike, v: ArrayLike, a: ArrayLike, *, gravity: ArrayLike | None = None, loads: ArrayLike = 0.0
) -> Array:
    """Each link's term in the sum of virtual powers, per unit of each rate: (..., nl, nv) N m | N.

    Row i is J_S^T (F - p-dot) + J_R^T (M - L-dot) of link i. Constraint forces have no part in the sum over the links,
    which is therefore minus the efforts of the joints.

    Args:
        robot: The robot.
        q: (..., nq) positions.
        v: (..., nv) velocities.
        a: (..., nv) accelerations.
        gravity: (..., 3) m/s^2, world axes; None is the robot's.
        loads: (..., nl, 6) [M; F] on each link at its centre of mass, link axes, in addition to weight.
    """
    J, sigma, R = robot.jacobians(q), robot.bias_accelerations(q, v), robot.link_poses(q).rotation
    mass = np.array([body.mass for body in robot.tree.inertia])
    inertia = np.array([body.about_com for body in robot.tree.inertia])
    v, a = np.asarray(v)[..., None, :], np.asarray(a)[..., None, :]
    omega_dot, acceleration = _times(J.rotation, a) + sigma.rotation, _times(J.translation, a) + sigma.translation
    rates = wrench(mass, inertia, _times(J.rotation, v), omega_dot, 0.0 * acceleration, acceleration)
    g = np.asarray(robot.gravity if gravity is None else gravity)[..., None, :]
    weight = mass[:, None] * _times(np.swapaxes(R, -1, -2), g)
    left = np.asarray(loads) - rates + np.concatenate([0.0 * weight, weight], axis=-1)
    J_R, J_S = np.swapaxes(J.rotation, -1, -2), np.swapaxes(J.translation, -1, -2)
    return _times(J_R, left[..., :3]) + _times(J_S, left[..., 3:])


class ExternalLoads(NamedTuple):
    """Wrenches as in (11), world axes. body: (nw,) rows of `newton_euler_blocks`, -1 for links that do not move.
    lever: (nw, 6, 6), Y to the point of each wrench. load: (nw, 6) N m, N, F-bar at this point.
    """

    body: Array
    lever: Array
    load: Array


def external_loads(robot: Robot, q: ArrayLike, wrenches: Sequence[Wrench]) -> ExternalLoads:
    """Returns each wrench with its own lever Y; q: (nq,).

    The sum of Y^T F-bar, with weight by the levers S, is that of `newton_euler_blocks` with these wrenches.
    """
    poses, links = robot.link_poses(q), robot.link_names
    # dtype, because an array of no wrenches would contain floats, which index nothing.
    body = np.array([robot.bodies.body[links.index(wrench.link)] for wrench in wrenches], dtype=int)
    lever, load = np.tile(np.eye(6), (len(body), 1, 1)), np.zeros((len(body), 6))
    for k, wrench in enumerate(wrenches):
        link = links.index(wrench.link)
        turn = np.eye(3) if wrench.frame == "world" else poses.rotation[links.index(wrench.frame)]
        load[k] = [*turn @ np.asarray(wrench.torque), *turn @ np.asarray(wrench.force)]
        if body[k] >= 0:
            joint = poses.position[links.index(robot.bodies.tree.links[body[k]])]
            y = poses.position[link] + poses.rotation[link] @ np.asarray(wrench.point) - joint
            # Row by row, which gives the transpose of y~, -y~.
            lever[k, 3:, :3] = _cross(y, np.eye(3))
    return ExternalLoads(body, lever, load)


def _cross(x: ArrayLike, y: ArrayLike) -> Array:
    return np.asarray(np.cross(np.asarray(x), np.asarray(y)))


def _times(M: ArrayLike, x: ArrayLike) -> Array:
    return np.asarray(np.einsum("...ij,...j->...i", np.asarray(M), np.asarray(x)))

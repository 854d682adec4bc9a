"""Residuals between the answers for robots with closed loops and dense equations in world axes.

The mass matrix and the bias are those of `WorldEquations`; the rows of the loop joints follow from its
velocities and accelerations of links, with blocked directions from singular values. With independent rows J of all
rows J_c, J v = 0, J a + J-dot v = 0:

    [M  -J^T] [a     ]   [tau - C   ]
    [J   0  ] [lambda] = [-J-dot v  ]                          forward dynamics
    N^T S^T tau_S = N^T (M a + C),   J N = 0                   inverse dynamics of the drives S, least |tau_S|

| name | compares |
|---|---|
| `inverse_dynamics` | its efforts with those of the second equation |
| `bias_forces` | the same at the accelerations of `independent_motion` |
| `forward_dynamics` | its accelerations with those of the first equation, as efforts M (a' - a) |
| `constraint_forces` | the loads of loop joints, times the velocities of their frames, with M a + C - tau |
| `independent_motion` | G^T M G; and J G with zero |
| `closed` | J v, and J a + J-dot v, with zero |
| `momentum` | G^T K, (P.3a), with M v |
| `energy` | T of all links, (6), with v . M v / 2 |

Each is relative as in `verification`. Where the drives cannot cause the motion, as of a floating base, or are not
known, the first two are missing, and the others are at the accelerations of no effort. The answers come from compiled
kernels or singular values of `engine.loops`, which share no code with these equations. Cost: O(N^3).

Source: R. Featherstone, Rigid Body Dynamics Algorithms, 2008, 8.3 to 8.5. Checked by
tests/theory/test_loop_verification.py.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.errors import FailedPreconditionError
from dyn_service.formulations.local_robot import LocalRobot
from dyn_service.formulations.world_equations import WorldEquations, relative
from dyn_service.model.description import LoopJoint
from dyn_service.model.inertia import skew
from dyn_service.model.tree import Tree

_DEPENDENT = 1e-5
"""Singular value of J_c, relative to the largest, of rows that depend on the others: axes in files are rounded."""


class _Frame(NamedTuple):
    """Motion of the frame of a loop joint on its child relative to its parent link, in its axes.

    J: (6, nv). bias: (6,), its acceleration at a = 0. blocked: (6, m).
    """

    J: Array
    bias: Array
    blocked: Array


def loop_residuals(robot: LocalRobot, q: Array, v: Array, a: Array, g: Array) -> dict[str, Array]:
    """Relative residuals by name, (...,) each, of the table of this module.

    q: (..., nq), v, a: (..., nv), which keep the loops closed. g: (..., 3) m/s^2. Leading axes are equal.

    Raises:
        InvalidArgumentError: A loop is open, or v or a open it.
        FailedPreconditionError: The state is singular.
    """
    efforts = None
    with suppress(FailedPreconditionError):
        efforts = robot.inverse_dynamics(q, v, a, gravity=g), robot.bias_forces(q, v, gravity=g)
    tau = np.zeros_like(v) if efforts is None else efforts[0]
    solved = robot.forward_dynamics(q, v, tau, gravity=g)
    motion = robot.independent_motion(q, v, gravity=g)
    names = [joint.name for joint in robot.description.loop_joints]
    loads = robot.constraint_forces(q, v, tau, gravity=g, joints=names).wrench
    momentum, kinetic = robot.momentum(q, v), robot.energy(q, v, gravity=g).kinetic
    residuals: dict[str, Array] = {}
    for k in np.ndindex(q.shape[:-1]):
        dense = _Dense(robot, robot.tree.robot_at(k), q[k], v[k], g[k])
        M, G, acceleration = dense.M, motion.jacobian[k], dense.accelerations(tau[k])
        scale = np.abs(dense.C) + np.abs(M) @ np.maximum(np.abs(a[k]), np.abs(acceleration))
        scale = np.maximum(scale, np.abs(M).max(initial=0.0))  # at rest without load: the effort of a unit acceleration
        pairs = list(zip(dense.frames, loads[k], strict=True))
        link_efforts = sum((frame.J.T @ load for frame, load in pairs), np.zeros(robot.nv))
        # The loads of a loop may be larger than what they balance.
        sizes = sum((np.abs(frame.J.T) @ np.abs(load) for frame, load in pairs), scale)
        p, G_T_M_G = M @ v[k], G.T @ M @ G
        of_state = {
            "forward_dynamics": relative(M @ solved[k], M @ acceleration, scale),
            "constraint_forces": relative(link_efforts, M @ acceleration + dense.C - tau[k], sizes),
            "independent_motion": np.maximum(
                relative(motion.mass_matrix[k].ravel(), G_T_M_G.ravel()), dense.opening(G)
            ),
            "closed": np.maximum(dense.opening(v[k]), dense.opening(a[k], dense.bias)),
            "momentum": relative(momentum[k], p),
            "energy": relative(kinetic[k][None], np.array([v[k] @ p / 2])),
        }
        if efforts is not None:
            for name, answer, x in (
                ("inverse_dynamics", tau[k], a[k]), ("bias_forces", efforts[1][k], motion.bias_accelerations[k]),
            ):  # fmt: skip
                of_state[name] = relative(answer, dense.efforts(M @ x + dense.C), scale)
        for name, residual in of_state.items():
            residuals.setdefault(name, np.zeros(q.shape[:-1]))[k] = residual
    return {name: residual[()] for name, residual in residuals.items()}


class _Dense:
    """The equations at one state. M: (nv, nv). C: (nv,), with passive efforts. frames: of the loop joints."""

    def __init__(self, robot: LocalRobot, tree: Tree, q: Array, v: Array, g: Array) -> None:
        world = WorldEquations(tree, q, v, g)
        self.M, self.C = world.mass_matrix, world.C + world.p
        index = {link: i for i, link in enumerate(tree.links)}
        self.frames = [_frame(world, joint, index[joint.parent], index[joint.child]) for joint in robot.loop_joints]
        motors = {joint.name for joint in robot.description.joints if joint.driven}
        self.driven = np.array([float(name in motors) for name in robot.configuration.velocity_joints])
        self.rows = np.concatenate([frame.blocked.T @ frame.J for frame in self.frames])
        self.bias = np.concatenate([frame.blocked.T @ frame.bias for frame in self.frames])
        U, s, _ = np.linalg.svd(self.rows)
        independent = U[:, : int((s > _DEPENDENT * s.max(initial=0.0)).sum())]
        self.J, self.J_dot_v = independent.T @ self.rows, independent.T @ self.bias

    def opening(self, x: Array, bias: Array | float = 0.0) -> float:
        """Returns the largest entry of J_c x + bias relative to its terms."""
        size = np.abs(self.rows).max(initial=0.0) * np.abs(x).max(initial=0.0) + np.abs(bias).max(initial=0.0)
        opening = np.abs(self.rows @ x + bias).max(initial=0.0)
        return float(opening / size) if size else 0.0

    def accelerations(self, tau: Array) -> Array:
        """Returns a (nv,) under efforts (nv,)."""
        m = len(self.J)
        matrix = np.block([[self.M, -self.J.T], [self.J, np.zeros((m, m))]])
        right = np.concatenate([tau - self.C, -self.J_dot_v])
        return np.asarray(np.linalg.solve(matrix, right)[: len(tau)])

    def efforts(self, h: Array) -> Array:
        """Returns the least efforts (nv,) of the drives in place of the efforts h (nv,) of all joints."""
        N = _null_space(self.J)
        return np.asarray(self.driven * (np.linalg.pinv(N.T * self.driven) @ (N.T @ h)))


def _frame(world: WorldEquations, joint: LoopJoint, parent: int, child: int) -> _Frame:
    jacobian = np.asarray((world.Psi @ world.G).toarray()).reshape(-1, 6, world.tree.nv)
    at_rest = world.acceleration(np.zeros(world.tree.nv))
    omega_P, omega_C = world.velocity[parent, :3], world.velocity[child, :3]
    (J_P, p_P, v_P, a_P), (J_C, p_C, v_C, a_C) = (
        _of_point(world, i, jacobian[i], at_rest[i], xyz)
        for i, xyz in ((parent, joint.parent_xyz), (child, joint.child_xyz))
    )
    R, d = (world.rotation[child] @ joint.child_rotation).T, p_C - p_P
    alpha_P, alpha_C = at_rest[parent, :3], at_rest[child, :3]
    J = np.concatenate([R @ (J_C[:3] - J_P[:3]), R @ (J_C[3:] - J_P[3:] + skew(d) @ J_P[:3])])
    turning, moving = omega_C - omega_P, v_C - v_P - np.cross(omega_P, d)
    turning_rate = alpha_C - alpha_P - np.cross(omega_C, turning)
    moving_rate = a_C - a_P - np.cross(alpha_P, d) - np.cross(omega_P, v_C - v_P) - np.cross(omega_C, moving)
    bias = np.concatenate([R @ turning_rate, R @ moving_rate])
    return _Frame(J, bias, _null_space(joint.moves.subspace.T) if joint.moves.nv else np.eye(6))


def _of_point(
    world: WorldEquations, i: int, jacobian: Array, at_rest: Array, xyz: Array
) -> tuple[Array, Array, Array, Array]:
    """Returns the Jacobian (6, nv), place, velocity and acceleration at a = 0 (3,) of a point of body i."""
    r, omega = world.rotation[i] @ xyz, world.velocity[i, :3]
    J = np.concatenate([jacobian[:3], jacobian[3:] - skew(r) @ jacobian[:3]])
    velocity = world.velocity[i, 3:] + np.cross(omega, r)
    acceleration = at_rest[3:] + np.cross(at_rest[:3], r) + np.cross(omega, np.cross(omega, r))
    return J, world.eta[i] + r, velocity, acceleration


def _null_space(A: Array) -> Array:
    """An orthonormal basis (n, n - rank) of the x with A x = 0, for A (m, n)."""
    from scipy.linalg import null_space  # maps 40 MB, which each worker of a server would have

    return np.asarray(null_space(A))

"""A motion of the Panda between two poses within half of its torque limits, by ipopt with exported functions.

The same problem is solved with a recursive Newton-Euler algorithm as CasADi's own expressions, for comparison. Needs
the extra `symbolic` and a linker (cc, ld or ld.lld).
"""

import sys
import tempfile
from pathlib import Path

import casadi as ca
import numpy as np
from planning import compare, solved

from dyn_service import Robot

KNOTS, TIME_S = 25, 0.6
step = TIME_S / KNOTS
robot = Robot.from_urdf(Path(__file__).parent.parent / "urdf" / "panda.urdf", mimic=False)
n = robot.nv
start = np.array([0.0, -0.8, 0.0, -2.3, 0.0, 1.5, 0.8, 0.02, 0.02])
goal = start + np.array([1.4, 0.9, 0.3, 0.8, -0.4, 0.3, 0.5, 0.0, 0.0])


def optimal_motion(efforts):
    """Returns what `solved` does for the inverse dynamics `efforts(q, v, a)`."""
    q, v, a = (ca.MX.sym(name, n, KNOTS + 1) for name in "qva")
    tau = efforts.map(KNOTS + 1)(q, v, a)
    gaps = [x[:, 1:] - x[:, :-1] - 0.5 * step * (y[:, 1:] + y[:, :-1]) for x, y in ((q, v), (v, a))]  # trapezoidal rule
    ends = ca.veccat(q[:, 0] - start, q[:, -1] - goal, v[:, 0], v[:, -1])
    x = ca.veccat(q, v, a)
    residual = np.sqrt(step) * ca.veccat(tau / ca.repmat(ca.DM(max_effort), 1, KNOTS + 1), 0.05 * x)
    constraint_bound = np.concatenate([np.zeros(2 * n * KNOTS + 4 * n), np.tile(max_effort, KNOTS + 1)])
    upper = np.concatenate([np.tile(robot.limits.upper, KNOTS + 1), np.full(2 * n * (KNOTS + 1), np.inf)])
    lower = np.concatenate([np.tile(robot.limits.lower, KNOTS + 1), np.full(2 * n * (KNOTS + 1), -np.inf)])
    t = np.linspace(0.0, 1.0, KNOTS + 1)[:, None]  # starts from a smooth motion that ignores the limits
    shares = (
        t**3 * (10 - 15 * t + 6 * t**2),
        30 * t**2 * (1 - t) ** 2 / TIME_S,
        (60 * t - 180 * t**2 + 120 * t**3) / TIME_S**2,
    )
    smooth = np.concatenate([np.ravel(share * (goal - start) + (k == 0) * start) for k, share in enumerate(shares)])
    limits = {"lbx": lower, "ubx": upper, "lbg": -constraint_bound, "ubg": constraint_bound}
    return solved("panda_motion", x, residual, ca.veccat(*gaps, ends, tau), smooth, **limits)


def newton_euler():
    """Inverse dynamics as CasADi's expressions: motions outwards, forces inwards, (7), (13), (18a)."""
    tree, (q, v, a) = robot.bodies.tree, (ca.SX.sym(name, n) for name in "qva")
    motions, forces, turns = [], [], []
    for i, parent in enumerate(tree.parent):
        axis = ca.DM(tree.inboard[i].subspace)
        u, slide = ca.skew(axis[:3]), axis[3:] * q[i]
        turn = ca.DM(tree.rotation[i]) @ (ca.SX.eye(3) + ca.sin(q[i]) * u + (1 - ca.cos(q[i])) * (u @ u))
        offset = ca.DM(tree.origin[i]) + ca.DM(tree.rotation[i]) @ slide
        D = ca.blockcat([[turn.T, ca.SX(3, 3)], [-turn.T @ ca.skew(offset), turn.T]])
        V, A = motions[parent] if parent >= 0 else (ca.SX(6, 1), ca.DM([0, 0, 0, *-robot.gravity]))
        V = D @ V + axis * v[i]
        cross = ca.blockcat([[ca.skew(V[:3]), ca.SX(3, 3)], [ca.skew(V[3:]), ca.skew(V[:3])]])
        A, M = D @ A + axis * a[i] + cross @ axis * v[i], ca.DM(tree.inertia[i].matrix)
        motions.append((V, A))
        forces.append(M @ A - cross.T @ M @ V)
        turns.append(D)
    tau = ca.SX(n, 1)
    for i in reversed(range(n)):
        tau[i] = ca.dot(ca.DM(tree.inboard[i].subspace), forces[i])
        if tree.parent[i] >= 0:
            forces[tree.parent[i]] += turns[i].T @ forces[i]
    return ca.Function("newton_euler", [q, v, a], [tau])


max_effort = 0.5 * robot.limits.efforts
with tempfile.TemporaryDirectory() as folder:
    files = robot.export(["inverse_dynamics", "inverse_dynamics_derivatives"], folder)
    library = [file for file in files if file.name.startswith("lib")]
    if not library:
        sys.exit("no linker is installed: the example needs a shared library")
    exported = ca.external("panda_inverse_dynamics", str(library[0]))
    compare({"exported": optimal_motion(exported), "CasADi's own": optimal_motion(newton_euler())})

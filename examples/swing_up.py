"""Swing up the cart-pendulum by CasADi and ipopt, with an exported function of its accelerations and their Jacobian.

The same problem is solved with the document's equations as CasADi's own expressions, (N4) of "EOM with Newton-Euler
Equations", for comparison. Needs the extra `symbolic` and a linker (cc, ld or ld.lld).
"""

import sys
import tempfile
from pathlib import Path

import casadi as ca
import numpy as np
from planning import compare, solved

from dyn_service import Robot

ROOT = Path(__file__).parent.parent
KNOTS, TIME_S = 40, 2.0
step = TIME_S / KNOTS


def optimal_motion(accelerations):
    """Returns what `solved` does; the first 4 (KNOTS + 1) entries of the solution are the states."""
    x, f = ca.MX.sym("x", 4, KNOTS + 1), ca.MX.sym("f", 1, KNOTS + 1)  # cart, angle and rates; force on the cart
    q, v = x[:2, :], x[2:, :]
    rates = [ca.vertcat(v[:, k], accelerations(q[:, k], v[:, k], ca.vertcat(f[k], 0))) for k in range(KNOTS + 1)]
    gaps = [x[:, k + 1] - x[:, k] - 0.5 * step * (rates[k] + rates[k + 1]) for k in range(KNOTS)]  # trapezoidal rule
    ends = [x[:, 0], x[:, KNOTS] - np.array([0.0, np.pi, 0.0, 0.0])]  # hangs, then stands
    problem = ca.veccat(x, f), np.sqrt(step) * f.T, ca.veccat(*gaps, *ends)
    line = np.linspace([0.0, 0.0, 0.0, 0.0], [0.0, np.pi, 0.0, 0.0], KNOTS + 1)
    unbounded, rail = np.inf, 2.0
    bounds = np.concatenate([np.tile([rail, unbounded, unbounded, unbounded], KNOTS + 1), np.full(KNOTS + 1, 60.0)])
    start = np.concatenate([line.ravel(), np.zeros(KNOTS + 1)])
    options = {"gauss_newton": False, "lbx": -bounds, "ubx": bounds, "lbg": 0, "ubg": 0}
    return solved("swing_up", *problem, start, **options)


def by_the_document(q, v, tau):
    """(N4) with the numbers of urdf/cart_pendulum.urdf."""
    m1, m2, L, inertia, g = 2.0, 1.2, 0.5, 1.2 * (1.0 + 0.05**2) / 12.0, 9.81
    M = ca.vertcat(ca.horzcat(m1 + m2, m2 * L * ca.cos(q[1])), ca.horzcat(m2 * L * ca.cos(q[1]), inertia + m2 * L**2))
    return ca.solve(M, ca.vertcat(tau[0] + m2 * L * ca.sin(q[1]) * v[1] ** 2, tau[1] - m2 * g * L * ca.sin(q[1])))


robot = Robot.from_urdf(ROOT / "urdf" / "cart_pendulum.urdf")
with tempfile.TemporaryDirectory() as folder:
    files = robot.export(["forward_dynamics", "forward_dynamics_derivatives"], folder)
    library = [file for file in files if file.name.startswith("lib")]
    if not library:
        sys.exit("no linker is installed: the example needs a shared library")
    exported = ca.external("cart_pendulum_forward_dynamics", str(library[0]))
    q, v, tau = (ca.SX.sym(name, 2) for name in ("q", "v", "tau"))
    casadi_dynamics = ca.Function("own", [q, v, tau], [by_the_document(q, v, tau)])
    compare({"exported": optimal_motion(exported), "CasADi's own": optimal_motion(casadi_dynamics)})

"""A motion of the Panda within its torque limits, planned by acados with exported dynamics and their derivatives.

acados integrates the accelerations, which CasADi calls; with `--generic` it calls the exported steps without CasADi.
Needs acados with its Python interface acados_template (see docs/export.md), the extra `symbolic` and a C compiler. It
writes into the current folder.
"""

import os
import shutil
import sys
from pathlib import Path

import casadi as ca
import numpy as np

from dyn_service import Robot

try:
    from acados_template import AcadosModel, AcadosOcp, AcadosOcpSolver
except ImportError:
    print("acados is not installed: see docs/export.md")
    sys.exit(0)

KNOTS, TIME_S, GENERIC = 20, 0.5, "--generic" in sys.argv
robot = Robot.from_urdf(Path(__file__).parent.parent / "urdf" / "panda.urdf")
n, folder = robot.nv, Path("panda_c").resolve()
files = robot.export(["forward_dynamics", "forward_dynamics_derivatives"], folder, acados="rk4", force=True)
library = [file for file in files if file.name.startswith("lib")]
if not library:
    sys.exit("no linker is installed: the example needs a shared library")

q, v, tau = (ca.MX.sym(name, n) for name in ("q", "v", "tau"))
model = AcadosModel()
model.name, model.x, model.u, model.xdot = "panda_motion", ca.vertcat(q, v), tau, ca.MX.sym("xdot", 2 * n)
if GENERIC:
    shutil.copy(folder / "panda_acados.c", ".")  # acados compiles a file in the current folder
    model.dyn_ext_fun_type, model.dyn_generic_source = "generic", "panda_acados.c"
    model.dyn_disc_fun, model.dyn_disc_fun_jac, model.p = "panda_disc_fun", "panda_disc_fun_jac", ca.MX.sym("dt")
else:
    accelerations = ca.external("panda_forward_dynamics", str(library[0]))
    model.f_expl_expr = ca.vertcat(v, accelerations(q, v, tau))
    model.f_impl_expr = model.xdot - model.f_expl_expr

start = robot.neutral()
start[3], start[5] = -1.5, 1.5
goal = start + np.array([0.5, 0.4, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
hold, max_effort = robot.gravity_forces(goal), robot.limits.efforts
ocp = AcadosOcp()
ocp.model, ocp.dims.N = model, KNOTS
ocp.acados_include_path, ocp.acados_lib_path = (f"{os.environ['ACADOS_SOURCE_DIR']}/{x}" for x in ("include", "lib"))
cost, limits, options = ocp.cost, ocp.constraints, ocp.solver_options
cost.cost_type = cost.cost_type_e = "LINEAR_LS"
cost.W, cost.W_e = np.diag([10.0] * n + [1.0] * n + [1e-4] * n), np.diag([1e4] * n + [100.0] * n)
cost.Vx, cost.Vu, cost.Vx_e = np.eye(3 * n, 2 * n), np.eye(3 * n, n, -2 * n), np.eye(2 * n)
cost.yref_e = np.concatenate([goal, np.zeros(n)])
cost.yref = np.concatenate([cost.yref_e, hold])
limits.lbu, limits.ubu, limits.idxbu = -max_effort, max_effort, np.arange(n)
limits.x0 = rest = np.concatenate([start, np.zeros(n)])
options.tf, options.nlp_solver_type = TIME_S, "SQP"
options.integrator_type = "DISCRETE" if GENERIC else "ERK"  # RK4, one step between knots
ocp.parameter_values = np.array([TIME_S / KNOTS] if GENERIC else [])
options.hessian_approx, options.qp_solver = "GAUSS_NEWTON", "PARTIAL_CONDENSING_HPIPM"
# The library of acados' code is linked with that of the robot, and finds it there.
options.model_external_shared_lib_dir, options.model_external_shared_lib_name = str(folder), "panda"
os.environ["LDFLAGS"] = f"-Wl,-rpath,{folder}"

solver = AcadosOcpSolver(ocp, json_file="panda_motion.json")
for k in range(KNOTS):
    solver.set(k, "x", rest)
    solver.set(k, "u", hold)
solver.set(KNOTS, "x", rest)
status = solver.solve()
assert status == 0, f"acados ends with status {status}"

x = np.array([solver.get(k, "x") for k in range(KNOTS + 1)])
u = np.array([solver.get(k, "u") for k in range(KNOTS)])
rk4_states = robot.step(x[:-1, :n], x[:-1, n:], u, TIME_S / KNOTS, integrator="rk4")
difference = np.abs(x[1:] - np.concatenate([rk4_states.q, rk4_states.v], axis=-1)).max()
assert difference < 1e-6, f"acados' states and steps of Robot differ by {difference:.1e}"
assert (np.abs(u) <= max_effort + 1e-6).all()
iterations, seconds = (np.max(solver.get_stats(name)) for name in ("sqp_iter", "time_tot"))
print(
    f"{iterations} SQP iterations in {1e3 * seconds:.1f} ms, ends"
    f" {np.abs(x[-1, :n] - goal).max():.4f} rad from the goal, {difference:.1e} from the steps of Robot"
)

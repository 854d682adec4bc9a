"""acados solves an optimal control problem with exported functions, which it or CasADi's code calls.

Needs acados and its Python interface, as `import acados_template`, with ACADOS_SOURCE_DIR; see docs/export.md.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from tests.conftest import ROOT, URDF

ACADOS = Path(os.environ.get("ACADOS_SOURCE_DIR", ""))
needs_acados = pytest.mark.skipif(
    find_spec("acados_template") is None or "ACADOS_SOURCE_DIR" not in os.environ,
    reason="acados and acados_template are not installed",
)

PLAN = """
import runpy, sys
import numpy as np
sys.argv = sys.argv[1:]
found = runpy.run_path(sys.argv[0])
np.save("plan", np.concatenate([found["x"][:-1], found["u"]], axis=1))
"""

CALLS = """
#include <stdio.h>
#include "acados/utils/external_function_generic.h"
#include "blasfeo_d_aux.h"
#include "blasfeo_d_aux_ext_dep.h"

enum { N = 4, M = 3 }; /* joints; first row, column or entry of an argument */

int scara_disc_fun(void **in, void **out, void *p), scara_disc_fun_jac(void **in, void **out, void *p);

int main(void)
{
    double ux[] = {UX}, p[] = {P};
    struct blasfeo_dvec given, next;
    struct blasfeo_dmat jacobian;
    blasfeo_allocate_dvec(3 * N, &given);
    blasfeo_allocate_dvec(2 * N + M, &next);
    blasfeo_allocate_dmat(3 * N + M, 2 * N + M, &jacobian);
    blasfeo_pack_dvec(3 * N, ux, 1, &given, 0);
    struct blasfeo_dvec_args u = {&given, 0}, x = {&given, N}, f = {&next, M};
    struct blasfeo_dmat_args J = {&jacobian, M, M};
    void *in[] = {&x, &u}, *out[] = {&f, &J};
    for (int k = 0; k < 2; k++) {
        if ((k == 0 ? scara_disc_fun : scara_disc_fun_jac)(in, out, p))
            return 1;
        for (int i = 0; i < 2 * N; i++)
            printf("%a ", blasfeo_dvecex1(&next, M + i));
    }
    for (int i = 0; i < 3 * N; i++)
        for (int j = 0; j < 2 * N; j++)
            printf("%a ", blasfeo_dgeex1(&jacobian, M + i, M + j));
    return 0;
}
"""


@needs_acados
def test_acados_plans_a_motion_of_the_panda(tmp_path: Path) -> None:
    """In another process, since acados works in the current folder and ends the process after an error."""
    plans = []
    for option in ([], ["--generic"]):
        command = [sys.executable, "-c", PLAN, str(ROOT / "examples" / "acados_panda.py"), *option]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "SQP iterations" in done.stdout
        plans.append(np.load(tmp_path / "plan.npy"))
    np.testing.assert_allclose(plans[0], plans[1], rtol=0, atol=1e-9)


@needs_acados
def test_discrete_dynamics_have_the_bits_of_robot(tmp_path: Path) -> None:
    """x_next and its Jacobian, transposed, in BLASFEO's vectors and matrices, behind their first entries."""
    robot = Robot.from_urdf(URDF / "scara.urdf")
    robot.export([], tmp_path, acados="rk4")
    rng = np.random.default_rng(0)
    (tau, q, v), dt = rng.normal(size=(3, robot.nv)), 0.01
    text = CALLS.replace("UX", ", ".join(x.hex() for x in np.concatenate([tau, q, v]).tolist()))
    (tmp_path / "main.c").write_text(text.replace("{P}", f"{{{dt}}}"))
    include = [f"-I{ACADOS / 'include' / name}" for name in ("", "acados", "blasfeo/include")]
    sources = [tmp_path / name for name in ("main.c", "scara_acados.c", "scara.o")]
    library = ["-L", ACADOS / "lib", f"-Wl,-rpath,{ACADOS / 'lib'}", "-lblasfeo", "-lm"]
    warnings = ["-std=c99", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *warnings, *include, *sources, *library, "-o", tmp_path / "main"], check=True)
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True)
    x = robot.step(q, v, tau, dt)
    d = robot.step_derivatives(q, v, tau, dt, integrator="rk4")
    parts = (x.q, x.v, d.q, d.v, d.B.T, d.A.T)
    assert [*map(float.fromhex, done.stdout.split())] == np.concatenate([part.ravel() for part in parts]).tolist()


def test_c_source_has_sizes_names_and_parameters(tmp_path: Path) -> None:
    robot = Robot.from_urdf(URDF / "scara.urdf")
    last = robot.link_names[-1]
    files = robot.export(
        ["step:rk4"], tmp_path, acados="semi_implicit_euler", payload=last, wrenches=[last, "inner_link"], name="s"
    )
    source = next(file for file in files if file.name == "s_acados.c").read_text()
    header = next(file for file in files if file.name == "s.h").read_text()
    macros = dict(re.findall(r"#define (\w+) (.*)", source))
    assert macros["NV"] == "4"
    assert macros["INPUTS"] == "q, v, tau, p + 0, p + 1, p + 13, NULL"  # dt, wrenches, payload, gravity
    assert (macros["DISC_FUN"], macros["DISC_FUN_JAC"]) == ("s_disc_fun", "s_disc_fun_jac")
    assert macros["STEP"] == "s_step_semi_implicit_euler_eval"
    for macro in ("STEP", "DERIVATIVES"):
        name = macros[macro].removesuffix("_eval")
        assert f"#define {name.upper()}_W {macros[f'{macro}_W']}\n" in header
        (prototype,) = re.findall(rf"^int {name}_eval\(.*?\);$", header, re.MULTILINE)
        assert prototype in source
    assert header.count("s_step_eval(") == 1, "the other query"


def test_acados_needs_positions_whose_rates_are_the_velocities(tmp_path: Path) -> None:
    floating = Robot.from_urdf(URDF / "pendulum.urdf", root="floating")
    with pytest.raises(FailedPreconditionError, match=r"the 8 entries of q, .* along the 7 entries of v$"):
        floating.export([], tmp_path, acados="rk4")
    planar = Robot.from_urdf(URDF / "pendulum.urdf", root="planar")  # nq == nv, but q-dot is not v
    with pytest.raises(FailedPreconditionError, match=r"the 4 entries of q, .* along the 4 entries of v$"):
        planar.export([], tmp_path, acados="rk4")
    with pytest.raises(InvalidArgumentError, match="its choices of integrator are rk4, semi_implicit_euler, explicit"):
        Robot.from_urdf(URDF / "pendulum.urdf").export([], tmp_path, acados="implicit_midpoint")
    assert not [*tmp_path.iterdir()]

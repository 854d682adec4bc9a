"""Kernels as loops of robots with mimic joints against straight-line code: real robots, and random trees.

Straight-line code has no kinds of bodies, passes and shared sums, so it cannot have a fault of the loops. Both forms
differ by rounding only, so the bound is that of certificates. The other tests of this folder compare straight-line
code with Pinocchio and MuJoCo.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from dyn_service.api.queries import QUERIES
from dyn_service.api.spec import WITHOUT_WRENCHES
from dyn_service.engine.robot import Robot
from dyn_service.kernels import certify, frames
from dyn_service.kernels.certificate import Certificate
from dyn_service.kernels.compiling import compiled
from dyn_service.kernels.graph import trace
from dyn_service.kernels.rolled import roll
from dyn_service.model.description import RootType, rooted
from dyn_service.parsing.urdf.reader import read
from tests.mimics import drawn
from tests.oracle.example_robots import path_of
from tests.oracle.test_mimic import WITH_MIMICS
from tests.random_robots import random_urdf
from tests.wide import wide

RANDOM = tuple(range(4))
"""Seeds of trees of 24 moving joints, more than any robot whose kernels are always straight-line code."""

ROWS = [
    (row.name, method)
    for row in QUERIES.values()
    for method in row.kernels
    if not row.constant and method not in row.rejects_mimic and row.name not in ("step", "step_derivatives")
]
"""Steps repeat the kernels of forward dynamics and its derivatives."""

CHEAP = ("centroidal_derivatives", "point_motion", "point_motion_derivatives", "energy_derivatives")
"""Rows with a matrix over the velocities that no walk computes."""

CASES = [(source, *case) for source in (*WITH_MIMICS, *RANDOM) for case in ROWS]


def in_the_suite(case: tuple[str | int, str, str]) -> bool:
    """One frame of each robot: frames share their loops, and `tests/kernels/test_rolled.py` has all of a small one."""
    source, row, method = case
    return row in CHEAP and method in {RANDOM[0]: ("", "local"), WITH_MIMICS[2]: ("", "world")}.get(source, ())


@cache
def _robot(source: str | int, root: RootType) -> Robot:
    if isinstance(source, int):
        text = random_urdf(source + 300, movable=24, types=("revolute", "prismatic"))
        return Robot(rooted(drawn(read(text), source), root))
    return Robot(rooted(read(path_of(source)), root))


def assert_loops_agree(robot: Robot, row: str, method: str) -> Certificate:
    signature = robot.signature(QUERIES[row], method, WITHOUT_WRENCHES)
    model = frames.kernel_tree(robot.tree, signature.bodies)
    loops = roll(model, signature)
    kernel = compiled(loops, optimised=False)[0]
    straight: Any = trace(model, signature)

    def rounded(inputs: Any) -> list[np.ndarray]:
        return certify.rounded_in_code(loops, inputs)

    figures = certify.difference(kernel, straight, robot.tree, rounded)
    certificate = Certificate(signature.name, "link frames", *figures)
    assert certificate.holds, certificate
    return certificate


@pytest.mark.parametrize("root", wide(("fixed", "floating"), lambda root: root == "fixed"))
@pytest.mark.parametrize(("source", "row", "method"), wide(CASES, in_the_suite), ids=str)
def test_loops_of_robots_with_mimic_joints(source: str | int, root: RootType, row: str, method: str) -> None:
    robot = _robot(source, root)
    assert robot.tree.has_mimics
    if method in QUERIES[row].inverts_mass_matrix and robot.massless_joint is not None:
        pytest.skip("forward dynamics has no answer")
    assert_loops_agree(robot, row, method)


@pytest.mark.parametrize("source", wide((*WITH_MIMICS, *RANDOM), {RANDOM[1]}.__contains__))
def test_jacobians_give_the_velocities(source: str | int) -> None:
    """J v = velocity, which no form of a kernel shares with J; and the Jacobian of the centre, the momentum's."""
    robot = _robot(source, "fixed")
    rng = np.random.default_rng(1)
    q, (v, a) = robot.random_configuration(seed=1), rng.normal(size=(2, robot.nv))
    for link in (robot.link_names[-1], robot.link_names[len(robot.link_names) // 2]):
        motion = robot.point_motion_derivatives(q, v, a, link)
        # 1e-13: the sums of some fifty columns, each with an error of 1e-16
        np.testing.assert_allclose(motion.jacobian @ v, motion.velocity, rtol=0, atol=1e-13 * np.abs(v).max() * 50)
    whole = robot.centroidal_derivatives(q, v, a)
    np.testing.assert_allclose(
        whole.dmomentum_dv @ v, whole.momentum, rtol=0, atol=1e-13 * np.abs(whole.momentum).max()
    )
    h = 1e-6
    ends = [robot.centroidal_derivatives(robot.integrate(q, v, dt), v, a).centre for dt in (h, -h)]
    # 1e-8: two centres with errors of 1e-15 divided by 2 h, and the third derivative times h^2
    np.testing.assert_allclose(whole.jacobian @ v, (ends[0] - ends[1]) / (2 * h), rtol=0, atol=1e-8)

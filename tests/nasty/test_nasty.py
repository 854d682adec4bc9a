"""Robots as people make them: every query is as exact as its equations on the tree as given, on each joint's own scale.

The long run over thousands of them is `python -m tests.nasty`; its last result stands in docs/nasty.md.
"""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from dyn_service.queries import QUERIES
from dyn_service.robot import Robot
from tests.nasty.measure import Expected, states
from tests.nasty.reference import ExactRobot, double
from tests.nasty.robots import nasty_urdf, pair_urdf
from tests.nasty.survey import LINKS, QUICK, of_graphs, of_kernels
from tests.oracle.pinocchio_oracle import Oracle

TREES = 200
GROUPS = 25
"""Trees are tested some at a time, so that each worker of a parallel run has whole groups."""

UNCANCELLED = ("mass_matrix", "momentum")
"""Queries that neither solve with the mass matrix, whose condition reaches 1e14 here, nor balance weight: whatever the
tree as given says, they have digits.
"""


@pytest.mark.parametrize("group", range(GROUPS))
def test_no_query_loses_digits(group: int) -> None:
    """At most ten times the error of the same sweep on the tree as given; of a few roundings where that has none."""
    for seed in range(group, TREES, GROUPS):
        # One in eight trees goes through all queries, the others through three of them in turn: the gate's time.
        chosen = QUICK if not seed % 8 else [QUICK[(seed + k) % len(QUICK)] for k in (0, 3, 7)]
        for finding in of_graphs(nasty_urdf(seed, most=24), seed, chosen):
            assert finding.ratio <= 10.0, (seed, finding)
            if finding.query in UNCANCELLED:
                # Sums of thirty bodies' terms. A slender rod may have 1e-4 of their size left along its own axis.
                assert finding.error < 1e-11, (seed, finding)


@pytest.mark.parametrize("seed", range(0, TREES, 8))
def test_machine_code(seed: int) -> None:
    """The compiled kernels, of two queries in turn for each tree, links' queries among them."""
    xml = nasty_urdf(seed, most=10)
    quick, links = QUICK[seed // 8 % len(QUICK)], LINKS[seed // 8 % len(LINKS)]
    interpreted = {(f.query, f.method): f for f in of_graphs(xml, seed, [quick])}
    for (query, method), error in of_kernels(xml, seed, [quick, links]).items():
        if query == quick:
            finding = interpreted[query, method]
            assert error <= 10.0 * max(finding.given, 1e-15), (seed, query, method, error, finding)
        else:
            # Against the largest vector of its kind; where a solution is behind it, M's condition is, too.
            assert error < (1e-6 if QUERIES[query].inverts else 1e-11), (seed, query, error)


@pytest.mark.parametrize("group", range(5))
def test_reference_and_pinocchio_agree(group: int) -> None:
    """The fifty digits are the right ones: another engine, in doubles, gives their beginning."""
    for seed in range(group, TREES, 5):
        xml = nasty_urdf(seed, most=24)
        exact, oracle = ExactRobot(xml), Oracle(xml)
        assert list(oracle.joint_names) == [joint for joint, k in zip(exact.joints, exact.dof, strict=True) if k >= 0]
        for state in states(exact, seed)[:3]:
            oracle.model.gravity.linear = state["gravity"]
            expected = Expected(exact, state)
            q, v, a, tau = (state[name] for name in ("q", "v", "a", "tau"))
            # Pinocchio's own rounding, of the same kind as ours: spatial accelerations carry lever arms of kilometres.
            assert expected.error("mass_matrix", "", {"mass_matrix": oracle.mass_matrix(q)}) < 1e-9
            assert expected.error("inverse_dynamics", "", {"tau": oracle.inverse_dynamics(q, v, a)}) < 1e-8
            scaled = expected.M / np.outer(expected.d, expected.d)
            if np.linalg.cond(scaled) < 1e6:
                assert expected.error("forward_dynamics", "", {"a": oracle.forward_dynamics(q, v, tau)}) < 1e-7


def test_reference_and_mujoco_agree() -> None:
    """A third engine. It refuses bodies lighter than its smallest number, and thin ones by a rounding: not compared."""
    compared = 0
    for seed in range(60):
        xml = nasty_urdf(seed, most=12)
        settings = '<mujoco><compiler fusestatic="false" discardvisual="true" balanceinertia="false"/></mujoco>'
        try:
            model = mujoco.MjModel.from_xml_string(xml.replace("</robot>", settings + "</robot>"))
        except ValueError:
            continue
        exact, data = ExactRobot(xml), mujoco.MjData(model)
        names = [joint for joint, k in zip(exact.joints, exact.dof, strict=True) if k >= 0]
        order = [model.joint(name).dofadr[0] for name in names]
        for state in states(exact, seed)[:3]:
            expected = Expected(exact, state)
            model.opt.gravity[:] = state["gravity"]
            model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
            data.qpos[order], data.qvel[order], data.qacc[order] = state["q"], state["v"], state["a"]
            mujoco.mj_inverse(model, data)
            # MuJoCo takes inertias apart into principal ones and turns them by quaternions: some digits of thin ones.
            assert expected.error("inverse_dynamics", "", {"tau": data.qfrc_inverse[order]}) < 1e-6, seed
        compared += 1
    assert compared > 20


TILTS = [10.0 ** (k / 2) for k in range(-24, -1)]


@pytest.mark.parametrize("tilt", TILTS, ids=lambda tilt: f"{tilt:.0e}")
def test_nearly_parallel_axes(tilt: float) -> None:
    """The smallest robot whose frames used to slide to offset / tilt, and whose inertias cancelled there."""
    robot, exact = Robot.from_urdf(pair_urdf(tilt)), ExactRobot(pair_urdf(tilt))
    assert robot.mass_matrix(np.zeros(3))[2, 2] == pytest.approx(0.14, rel=1e-12)
    for error in of_kernels(pair_urdf(tilt), 0, (*QUICK, *LINKS)).values():
        assert error < 1e-12
    assert np.linalg.cond(double(exact.at(np.full(3, 0.3)).mass_matrix)) < 100.0

"""Robots as people make them: every query is as exact as its equations on the tree as given, on each joint's own scale.

The long run over thousands of them is `python -m qa.nasty`; its last result is in docs/nasty.md.
"""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from dyn_service.api.queries import QUERIES
from dyn_service.engine.robot import Robot
from qa.nasty.measure import Expected, states
from qa.nasty.reference import ExactRobot, double
from qa.nasty.robots import nasty_urdf, pair_urdf
from qa.nasty.survey import IN_FRAMES, LINKS, NOT_MEASURED, ON_LINKS, QUICK, of_graphs, of_kernels
from tests.oracle.pinocchio_oracle import Oracle
from tests.tables import assert_complete
from tests.wide import one_in, wide

TREES = 200
ALL_OF, FIRST = 40, 20
"""Every so manyth tree goes through all queries, from this one."""

MAX_JOINTS = (24, 8, 4)
"""Most joints of a tree; few where queries are large, Hessians and derivatives of steps: their tests take seconds."""

UNCANCELLED = ("mass_matrix", "momentum")
"""Queries that neither solve with the mass matrix, whose condition reaches 1e14 here, nor balance weight: whatever the
tree as given says, they have digits.
"""


BALANCED = {
    "branch_inertias": 1e-6,  # J yields: where joints are nearly parallel, the mass matrix's condition stands behind it
    "influence_operators": 1e-6,
    "constraint_forces": 1e-6,
    "hamiltonian": 1e-6,
    "operational_space": 1e-6,
    "point_motion": 1e-9,  # about the world's origin: for a joint close to it, the difference is small
    "point_motion_derivatives": 1e-9,
    "centroidal_derivatives": 1e-9,
    "energy_derivatives": 1e-6,  # of balanced weight
    "body_recursion": 1e-6,  # efforts that are small compared with balanced weight
    "newton_euler_blocks": 1e-5,  # omega x I omega about the axis of a thin body
    "system_momentum_rate": 1e-5,  # eta-dot x P is nearly all of the sum where a body is far and small
}
"""Bounds of the errors of links' queries that solve or balance; 1e-11 is that of the others."""


def test_every_query_is_measured() -> None:
    """A new row of the table gets a true answer for each of its outputs, or a word why it has none."""
    instruction = "add a method of that name to Expected in qa/nasty/measure.py, with the true answer and its scale"
    assert_complete((*QUICK, *LINKS, *NOT_MEASURED), QUERIES, "qa/nasty", instruction)
    assert all(QUERIES[name].constant for name in NOT_MEASURED)
    exact = ExactRobot(nasty_urdf(3, max_joints=3))
    state = states(exact, 0)[0]
    for acted in (False, True):
        expected = Expected(exact, state, acted=acted)
        for query in (*QUICK, *LINKS):
            for method in QUERIES[query].kernels:
                answers = expected.answers(query, method)
                assert set(answers) == set(QUERIES[query].outputs), query
                # Every output has a scale, so that a wrong one is found.
                for name, (kind, value, scale) in answers.items():
                    size = sum(part[1].size for row in value for part in row) if kind == "parts" else value.size
                    assert expected._error((kind, value, scale), np.full(size, np.inf)) == np.inf, (query, name)


def queries_of(seed: int, max_joints: int) -> list[tuple[str, bool]]:
    """The queries that a tree of one size goes through, and whether pushed by wrenches.

    Some trees go through all queries, without external wrenches and with them, the others through two of them in turn.
    """
    in_turn = [IN_FRAMES[(seed + k) % len(IN_FRAMES)] for k in (0, 5)]
    queries = IN_FRAMES if seed % ALL_OF == FIRST else in_turn
    size_of = {name: 8 if name.endswith("_hessian") else 4 if name == "step_derivatives" else 24 for name, _ in queries}
    return [query for query in queries if size_of[query[0]] == max_joints]


TREES_BY_SIZE = [(seed, size) for seed in range(TREES) for size in MAX_JOINTS if queries_of(seed, size)]


@pytest.mark.parametrize(("seed", "max_joints"), wide(TREES_BY_SIZE, lambda tree: tree[0] % 25 == 0))
def test_no_query_loses_digits(seed: int, max_joints: int) -> None:
    """At most ten times the error of the same sweep on the tree as given; of a few roundings where that has none."""
    for finding in of_graphs(nasty_urdf(seed, max_joints=max_joints), seed, queries_of(seed, max_joints)):
        assert finding.ratio <= 10.0, (seed, finding)
        if finding.query in UNCANCELLED:
            # Sums of thirty bodies' terms. A slender rod may have 1e-4 of their size left along its own axis.
            assert finding.error < 1e-11, (seed, finding)


def test_weights_of_light_joints() -> None:
    """A certificate with weights of one size saw no error of a joint that is lighter than others: it was 120 times."""
    (finding,) = of_graphs(nasty_urdf(1), 1, [("inverse_dynamics_hessian", False)])
    assert finding.refused_figure is not None
    assert finding.ratio <= 10.0


def test_short_and_long_steps() -> None:
    """A certificate of steps of 1 ms saw errors of accelerations on the scale of velocities only: one was 24 times."""
    for finding in of_graphs(nasty_urdf(73, max_joints=8), 73, [("step", False)]):
        assert finding.refused_figure is not None
        assert finding.ratio <= 10.0


@pytest.mark.parametrize("seed", wide(range(0, TREES, 8), one_in(3)))
def test_machine_code(seed: int) -> None:
    """The compiled kernels, of two queries in turn for each tree, one of them on links, as exact as their graphs."""
    xml = nasty_urdf(seed, max_joints=6)
    queries = [IN_FRAMES[seed // 8 % len(IN_FRAMES)], ON_LINKS[seed // 8 % len(ON_LINKS)]]
    interpreted = {(f.query, f.method, f.acted): f for f in of_graphs(xml, seed, queries)}
    for key, error in of_kernels(xml, seed, queries).items():
        finding = interpreted[key]
        assert error <= 10.0 * max(finding.error_as_given, 1e-15), (seed, error, finding)
        if finding.query in LINKS:
            # Against the largest vector of its kind; where a solution is behind it, M's condition is, too.
            assert error < BALANCED.get(finding.query, 1e-11), (seed, error, finding)


@pytest.mark.parametrize("group", wide(range(10), {0}.__contains__))
def test_reference_and_pinocchio_agree(group: int) -> None:
    """The fifty digits are the right ones: another engine, in doubles, gives their beginning."""
    for seed in range(group, TREES, 10):
        xml = nasty_urdf(seed, max_joints=24)
        exact, oracle = ExactRobot(xml), Oracle(xml)
        assert list(oracle.joint_names) == [joint for joint, k in zip(exact.joints, exact.dof, strict=True) if k >= 0]
        for state in states(exact, seed)[:3]:
            oracle.model.gravity.linear = state["gravity"]
            expected = Expected(exact, state)
            q, v, a, tau = (state[name] for name in ("q", "v", "a", "tau"))
            # Pinocchio's own rounding, of the same kind as ours: spatial accelerations carry lever arms of kilometres.
            assert expected.error("mass_matrix", "", {"mass_matrix": oracle.mass_matrix(q)}) < 1e-9
            assert expected.error("inverse_dynamics", "", {"tau": oracle.inverse_dynamics(q, v, a)}) < 1e-8
            M_balanced = expected.M / np.outer(expected.d, expected.d)
            if np.linalg.cond(M_balanced) < 1e6:
                assert expected.error("forward_dynamics", "", {"a": oracle.forward_dynamics(q, v, tau)}) < 1e-7


def test_reference_and_mujoco_agree() -> None:
    """A third engine. It refuses bodies lighter than its smallest number, and thin ones by a rounding: not compared."""
    compared = 0
    for seed in range(30):
        xml = nasty_urdf(seed, max_joints=12)
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
    assert compared > 10


TURNS = 12
TILTS = [10.0 ** (k / 2) for k in range(-24, -1)]


@pytest.mark.parametrize("tilt", wide(TILTS, TILTS[::6].__contains__), ids=lambda tilt: f"{tilt:.0e}")
def test_nearly_parallel_axes(tilt: float) -> None:
    """The smallest robot whose frames used to slide to offset / tilt, and whose inertias cancelled there."""
    robot, exact = Robot.from_urdf(pair_urdf(tilt)), ExactRobot(pair_urdf(tilt))
    assert robot.mass_matrix(np.zeros(3))[2, 2] == pytest.approx(0.14, rel=1e-12)
    # The first three at every tilt, the rest in turn: the gate's time.
    turn = (*IN_FRAMES[3:], *ON_LINKS)[TILTS.index(tilt) % TURNS :: TURNS]
    for key, error in of_kernels(pair_urdf(tilt), 0, (*IN_FRAMES[:3], *turn)).items():
        assert error < 1e-12, key
    assert np.linalg.cond(double(exact.at(np.full(3, 0.3)).mass_matrix)) < 100.0

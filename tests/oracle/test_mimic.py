"""Joints that follow others against Pinocchio and MuJoCo: real robots, the relations of their files or drawn ones.

Pinocchio's model of all joints, each by itself, and the matrix S of tests/mimics.py: tau = S^T rnea(S q + o, S v, S a)
and M = S^T crba S; and its own mimic joints, where it takes them. Its `aba` refuses them, so accelerations are solved
for here.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import mujoco
import numpy as np
import pinocchio as pin
import pytest

from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError
from dyn_service.model.description import RootType
from dyn_service.parsing.urdf.reader import read
from tests.comparing import assert_close
from tests.conftest import URDF
from tests.mimics import Pair, drawn, pair
from tests.oracle.example_robots import ONE_PER_FAMILY, path_of
from tests.oracle.many_types import ManyTypes
from tests.oracle.test_many_types import mjcf
from tests.oracle.test_pinocchio import ROUNDING_OF_A_SOLUTION, TOLERANCE
from tests.passive import restless
from tests.random_robots import MANY_TYPES, random_urdf
from tests.terms.interpreting import interpreted_robot
from tests.wide import wide

STATES = 10

WITH_MIMICS = (
    "baxter_description/urdf/baxter.urdf",
    "panda_description/urdf/panda.urdf",
    "pr2_description/urdf/pr2.urdf",
    "romeo_description/urdf/romeo.urdf",
    "talos_data/robots/talos_full_v2.urdf",
    "talos_data/robots/talos_full_v2_box.urdf",
    "tiago_pro_description/robots/tiago_pro.urdf",
)
"""Robots whose files have joints that follow others."""

DEFAULT_CASES = ((WITH_MIMICS[0], "fixed"), (WITH_MIMICS[1], "floating"), (WITH_MIMICS[3], "fixed"))
"""Small ones, and Romeo, of whose fingers some have no inertia."""

WITHOUT_MIMICS = sorted(set(ONE_PER_FAMILY) - set(WITH_MIMICS))
"""The first of each other family: relations are drawn for its joints."""


class Model:
    """Pinocchio's answers for a robot whose joints move by themselves, tied by S."""

    def __init__(self, tied: Pair, model: pin.Model) -> None:
        self.tied, self.model, self.data = tied, model, model.createData()
        assert tuple(model.names)[1:] == tied.free.joint_names

    def position(self, q: np.ndarray) -> np.ndarray:
        """One (coupled nq,) as Pinocchio's model of all joints takes it."""
        full = self.tied.positions(q)
        configuration, entries = self.tied.free.configuration, []
        for joint, part, other in zip(configuration.joints, configuration.q_slices, self.model.joints[1:], strict=True):
            joint_q = full[part].tolist()
            entries += [np.cos(joint_q[0]), np.sin(joint_q[0])] if joint.nq < other.nq else joint_q
        return np.array(entries)

    def inverse_dynamics(self, q: np.ndarray, v: np.ndarray, a: np.ndarray) -> np.ndarray:
        rates = (self.tied.rates(x) for x in (v, a))
        return self.tied.reduced(pin.rnea(self.model, self.data, self.position(q), *rates).copy())

    def mass_matrix(self, q: np.ndarray) -> np.ndarray:
        # crba fills the upper triangle only.
        upper = np.triu(pin.crba(self.model, self.data, self.position(q)))
        return self.tied.S.T @ (upper + np.triu(upper, 1).T) @ self.tied.S


def assert_agrees(tied: Pair, model: Model, seed: int) -> None:
    robot = interpreted_robot(tied.coupled)
    rng = np.random.default_rng(seed)
    q = np.array([robot.random_configuration(seed=k) for k in range(STATES)])
    v, a = rng.uniform(-2.0, 2.0, (2, STATES, robot.nv))
    state_indices = range(STATES)
    tau = np.array([model.inverse_dynamics(q[k], v[k], a[k]) for k in state_indices])
    zero_rates = np.zeros(robot.nv)
    masses = np.array([model.mass_matrix(q[k]) for k in state_indices])
    bias = np.array([model.inverse_dynamics(q[k], v[k], zero_rates) for k in state_indices])
    weight = [model.inverse_dynamics(q[k], zero_rates, zero_rates) for k in state_indices]
    for term, ours, expected in (
        ("inverse_dynamics", robot.inverse_dynamics(q, v, a, passive=False), tau),
        ("mass_matrix", robot.mass_matrix(q, passive=False), masses),
        ("bias_forces", robot.bias_forces(q, v, passive=False), bias),
        ("gravity_forces", robot.gravity_forces(q, passive=False), weight),
    ):
        assert_close(term, ours, expected, TOLERANCE, robot, q, v, a)
    try:
        solved = {m: robot.forward_dynamics(q, v, tau, method=m, passive=False) for m in ("articulated", "mass_matrix")}
    except FailedPreconditionError:
        # A refusal is right only where no solver could do better: the matrix is singular within rounding.
        assert all(np.linalg.eigvalsh(M)[0] < 1e-13 * np.linalg.eigvalsh(M)[-1] for M in masses)
        return
    accelerations = np.linalg.solve(masses, (tau - bias)[..., None])[..., 0]
    tolerance_of_solution = np.maximum(TOLERANCE, ROUNDING_OF_A_SOLUTION * np.linalg.cond(masses))
    for method, ours in solved.items():
        assert_close(f"forward_dynamics, {method}", ours, accelerations, tolerance_of_solution, robot, q, v, a)


def of_file(name: str, tied: Pair, root: RootType) -> Model:
    xml = path_of(name).read_text()
    pinocchio_model = (
        pin.buildModelFromXML(xml) if root == "fixed" else pin.buildModelFromXML(xml, pin.JointModelFreeFlyer())
    )
    return Model(tied, pinocchio_model)


@pytest.mark.parametrize(
    ("name", "root"), wide(product(WITH_MIMICS, ("fixed", "floating")), DEFAULT_CASES.__contains__)
)
def test_robots_that_mimic(name: str, root: RootType) -> None:
    tied = pair(read(path_of(name)), root)
    assert tied.coupled.nv < tied.free.nv
    assert_agrees(tied, of_file(name, tied, root), 1)


@pytest.mark.parametrize("name", wide(WITHOUT_MIMICS, WITHOUT_MIMICS[3::9].__contains__))
def test_drawn_relations(name: str) -> None:
    root: RootType = "floating" if WITHOUT_MIMICS.index(name) % 2 else "fixed"
    tied = pair(drawn(read(path_of(name)), WITHOUT_MIMICS.index(name)), root)
    if not tied.relations:
        pytest.skip("one joint has none to follow")
    assert_agrees(tied, of_file(name, tied, root), 2)


def test_on_enough_robots() -> None:
    """The promise is twenty real robots."""
    assert len(WITH_MIMICS) + len(WITHOUT_MIMICS) >= 20


@pytest.mark.parametrize("seed", wide(range(20), {0, 3, 15, 18}.__contains__))
def test_trees_with_joints_of_every_type(seed: int) -> None:
    """Balls and joints of six ways among those that lead and follow."""
    text = random_urdf(seed + 100, movable=8, types=MANY_TYPES)
    tied = pair(drawn(read(text), seed, share=0.7), "floating" if seed % 2 else "fixed")
    oracle = ManyTypes(tied.free.tree)
    assert_agrees(tied, _OfTree(tied, oracle), seed)


class _OfTree(Model):
    def __init__(self, tied: Pair, oracle: ManyTypes) -> None:
        self.oracle = oracle
        super().__init__(tied, oracle.model)

    def position(self, q: np.ndarray) -> np.ndarray:
        return self.oracle.position(self.tied.positions(q))


LEADERS_FIRST = [name for name in WITH_MIMICS if name.split("_")[0] in ("baxter", "panda", "pr2", "tiago")]
"""Pinocchio accepts no mimic joint before the joint that it mimics."""


@pytest.mark.parametrize("name", wide(LEADERS_FIRST, LEADERS_FIRST[:2].__contains__))
def test_pinocchios_own_mimic_joints(name: str) -> None:
    robot = interpreted_robot(Robot.from_urdf(path_of(name)))
    model = pin.buildModelFromXML(path_of(name).read_text(), True)
    data = model.createData()
    assert model.nv == robot.nv
    pinocchio_joints = [model.joints[model.getJointId(joint)] for joint in robot.joint_names]
    order = np.array([joint.idx_v for joint in pinocchio_joints])
    rng = np.random.default_rng(3)
    for k in range(STATES):
        q, (v, a) = robot.random_configuration(seed=k), rng.uniform(-2.0, 2.0, (2, robot.nv))
        position, rate, acceleration = np.zeros(model.nq), np.zeros(model.nv), np.zeros(model.nv)
        rate[order], acceleration[order] = v, a
        for joint, value in zip(pinocchio_joints, q, strict=True):
            # The angle of a joint without limits is a cosine and a sine in Pinocchio.
            entries = [value] if joint.nq == 1 else [np.cos(value), np.sin(value)]
            position[joint.idx_q : joint.idx_q + joint.nq] = entries
        tau = pin.rnea(model, data, position, rate, acceleration)[order]
        upper = np.triu(pin.crba(model, data, position))
        masses = (upper + np.triu(upper, 1).T)[np.ix_(order, order)]
        bias = pin.nle(model, data, position, rate)[order]
        for term, ours, pinocchio_answer in (
            ("inverse_dynamics", robot.inverse_dynamics(q, v, a, passive=False), tau),
            ("mass_matrix", robot.mass_matrix(q, passive=False), masses),
            ("bias_forces", robot.bias_forces(q, v, passive=False), bias),
        ):
            assert_close(term, ours, pinocchio_answer, TOLERANCE, robot, q, v, a)


MUJOCO = (URDF / "panda.urdf", *(path_of(name) for name in WITH_MIMICS if "romeo" not in name))
"""All but Romeo, of whose fingers some have no inertia, which MuJoCo refuses."""


@pytest.mark.parametrize("path", wide(MUJOCO, {MUJOCO[0], MUJOCO[2]}.__contains__), ids=lambda path: path.stem)
def test_mujoco_with_damping_armature_and_springs(path: Path) -> None:
    """MuJoCo's model of all joints with what they do by themselves, tied by S."""
    with_mimics = restless(read(path), 4, ("damping", "armature", "springs"))
    tied = pair(with_mimics.evaluator.model.description)
    robot = interpreted_robot(tied.coupled)
    model = mujoco.MjModel.from_xml_string(mjcf(tied.free.bodies.tree))
    data, full = mujoco.MjData(model), np.zeros((model.nv, model.nv))
    dofs = np.array([model.joint(joint).dofadr[0] for joint in tied.free.joint_names])
    rng = np.random.default_rng(5)
    for k in range(STATES):
        q, (v, a) = robot.random_configuration(seed=k), rng.uniform(-2.0, 2.0, (2, robot.nv))
        data.qpos[dofs], data.qvel[dofs], data.qacc[dofs] = tied.positions(q), tied.rates(v), tied.rates(a)
        mujoco.mj_inverse(model, data)
        mujoco.mj_fullM(model, data, full)
        mujoco.mj_energyVel(model, data)
        tau = tied.reduced(data.qfrc_inverse[dofs])
        masses = tied.S.T @ full[np.ix_(dofs, dofs)] @ tied.S
        for term, ours, mujoco_answer in (
            ("inverse_dynamics", robot.inverse_dynamics(q, v, a), tau),
            ("mass_matrix", robot.mass_matrix(q), masses),
            ("energy.kinetic", robot.energy(q, v).kinetic, data.energy[1]),
        ):
            assert_close(term, ours, mujoco_answer, TOLERANCE, robot, q, v, a)
        tolerance_of_solution = max(TOLERANCE, ROUNDING_OF_A_SOLUTION * np.linalg.cond(masses))
        assert_close("forward_dynamics", robot.forward_dynamics(q, v, tau), a, tolerance_of_solution, robot, q, v, a)


def equal_joints(tied: Pair, d: float) -> mujoco.MjModel:
    """MuJoCo's model of all joints, an equality constraint for each that follows; d: its `solimp`, which yields by the
    share (1 - d) / d, and is at most 0.9999.
    """
    ties = "".join(
        f'<joint joint1="{name}" joint2="{leader}" polycoef="{offset!r} {multiplier!r} 0 0 0" '
        f'solimp="{d} {d} 0.001 0.5 2"/>'
        for name, (leader, multiplier, offset) in ((name, tied.relation(name)) for name in tied.relations)
    )
    xml = mjcf(tied.free.bodies.tree).replace("</mujoco>", f"<equality>{ties}</equality></mujoco>")
    model = mujoco.MjModel.from_xml_string(xml)
    # MuJoCo's solver stops at 1e-8 by default, which would hide what its softness does.
    model.opt.tolerance, model.opt.iterations = 1e-15, 200
    return model


@pytest.mark.parametrize("seed", range(6))
def test_mujocos_equality_constraint(seed: int) -> None:
    """Its solver holds followers by forces of its own, which yield: so do its accelerations, in proportion, and where
    they would not they are ours.
    """
    tied = pair(drawn(read(random_urdf(seed + 40, movable=7, types=("revolute", "prismatic"))), seed))
    robot, names = interpreted_robot(tied.coupled), tied.free.joint_names
    shares = (0.999, 0.9999)
    models = [equal_joints(tied, d) for d in shares]
    dofs = np.array([models[0].joint(joint).dofadr[0] for joint in names])
    leaders = dofs[[names.index(name) for name in robot.joint_names]]
    rng = np.random.default_rng(seed)
    for k in range(STATES):
        q, (v, a) = robot.random_configuration(seed=k), rng.uniform(-1.0, 1.0, (2, robot.nv))
        tau = robot.inverse_dynamics(q, v, a)
        accelerations = []
        for model in models:
            data = mujoco.MjData(model)
            data.qpos[dofs], data.qvel[dofs], data.qfrc_applied[leaders] = tied.positions(q), tied.rates(v), tau
            mujoco.mj_forward(model, data)
            accelerations.append(data.qacc[leaders])
        softness_of_first, softness_of_second = ((1.0 - d) / d for d in shares)
        unyielding = (softness_of_first * accelerations[1] - softness_of_second * accelerations[0]) / (
            softness_of_first - softness_of_second
        )
        effort_error = robot.mass_matrix(q) @ (unyielding - robot.forward_dynamics(q, v, tau))
        joint = robot.configuration.velocity_names[int(np.argmax(np.abs(effort_error)))]
        assert np.abs(effort_error).max() < 2e-4 * np.abs(tau).max(), f"forward_dynamics, effort of joint '{joint}'"


def test_the_root_moves_too() -> None:
    """In the plane, as a mobile manipulator's; the floating one is among the robots above."""
    tied = pair(drawn(read(URDF / "upper_body.urdf"), 8), "planar")
    assert tied.coupled.joint_names[0] == "root_joint"
    assert_agrees(tied, _OfTree(tied, ManyTypes(tied.free.tree)), 8)

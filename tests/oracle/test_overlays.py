"""Overlays against Pinocchio: thousands of edited files against one call, locked joints against reduced models."""

from __future__ import annotations

from functools import cache

import numpy as np
import pinocchio as pin
import pytest
from defusedxml import ElementTree

from dyn_service.api.queries import Inertial, JointNumbers, Overlay
from dyn_service.engine.robot import Robot
from dyn_service.model.parameters import parameters_of
from tests.conftest import URDF
from tests.oracle.example_robots import path_of
from tests.oracle.pinocchio_oracle import Oracle
from tests.overlays import apart, body
from tests.terms.interpreting import interpreted_robot, interpreting
from tests.theory.test_passive import REAL
from tests.wide import wide

READ = 4
LINKS = (*(f"panda_link{k}" for k in range(1, 8)), "panda_hand")
JOINTS = tuple(f"panda_joint{k}" for k in range(1, 8))


UNREDUCED = ("anymal_c_simple_description", "b1_description", "z1_description")
"""Pinocchio reduces no model in which a link and a joint have one name."""

REDUCED = (
    *(name for name in REAL if not name.startswith(UNREDUCED)),
    "anymal_b_simple_description/robots/anymal.urdf",
    "ur_description/urdf/ur10_robot.urdf",
    "finger_edu_description/robots/finger_edu.urdf",
)


@cache
def edited(count: int) -> tuple[list[str], Overlay]:
    """Pandas with random masses, centres of mass, inertias and dampings, as URDF texts and as one overlay."""
    rng = np.random.default_rng(0)
    mass = rng.uniform(0.3, 6.0, (len(LINKS), count))
    com = rng.uniform(-0.1, 0.1, (len(LINKS), count, 3))
    inertia = np.array([[body(rng, m) for m in of_link] for of_link in mass])
    damping = rng.uniform(0.0, 2.0, (len(JOINTS), count))
    tree = ElementTree.parse(URDF / "panda.urdf")
    root = tree.getroot()
    for link in root.findall("link"):
        for shape in (*link.findall("visual"), *link.findall("collision")):
            link.remove(shape)
    bodies = [next(x for x in root.findall("link") if x.get("name") == name).find("inertial") for name in LINKS]
    dynamics = []
    for name in JOINTS:
        joint = next(x for x in root.findall("joint") if x.get("name") == name)
        dynamics.append(joint.makeelement("dynamics", {}))
        joint.append(dynamics[-1])
    texts = []
    for k in range(count):
        for i, inertial in enumerate(bodies):
            inertial.find("origin").set("xyz", " ".join(map(repr, com[i, k].tolist())))
            inertial.find("mass").set("value", repr(float(mass[i, k])))
            for entry, row, column in (
                ("ixx", 0, 0),
                ("ixy", 0, 1),
                ("ixz", 0, 2),
                ("iyy", 1, 1),
                ("iyz", 1, 2),
                ("izz", 2, 2),
            ):
                inertial.find("inertia").set(entry, repr(float(inertia[i, k, row, column])))
        for element, d in zip(dynamics, damping[:, k].tolist(), strict=True):
            element.set("damping", repr(d))
        texts.append(ElementTree.tostring(root, encoding="unicode"))
    links = {name: Inertial(m, c, I) for name, m, c, I in zip(LINKS, mass, com, inertia, strict=True)}
    joints = {name: JointNumbers(damping=d) for name, d in zip(JOINTS, damping, strict=True)}
    return texts, Overlay(links=links, joints=joints)


def states(robot: Robot, count: int) -> np.ndarray:
    return np.random.default_rng(1).uniform(-1.5, 1.5, (3, count, robot.nv))


@pytest.mark.parametrize("count", wide([64, 4096], (64).__eq__))
def test_thousands_of_edited_files_are_one_call(count: int) -> None:
    """Robot by robot the answers of Pinocchio on the very texts; what damping takes, which it leaves out, is d v."""
    texts, overlay = edited(count)
    robot = Robot.from_urdf(URDF / "panda.urdf", mimic=False)
    q, v, a = states(robot, count)
    tau = robot.inverse_dynamics(q, v, a, overlay=overlay)
    forward = robot.forward_dynamics(q, v, a, overlay=overlay)
    M = robot.mass_matrix(q, overlay=overlay)
    damping = np.array([np.zeros(count)] * robot.nv)
    for name, said in overlay.joints.items():
        damping[robot.joint_names.index(name)] = said.damping
    taken = damping.T * v
    worst = np.zeros(3)
    for k, text in enumerate(texts):
        oracle = Oracle(text)
        theirs = oracle.inverse_dynamics(q[k], v[k], a[k]) + taken[k]
        of_M = oracle.mass_matrix(q[k])
        needed = M[k] @ (forward[k] - oracle.forward_dynamics(q[k], v[k], a[k] - taken[k]))
        size = max(np.abs(theirs).max(), np.abs(a[k]).max())
        found = (np.abs(tau[k] - theirs).max() / size, apart(M[k], of_M), np.abs(needed).max() / size)
        worst = np.maximum(worst, found)
    # Sums of a hundred terms in another order; forward dynamics is held as the efforts that its difference needs.
    assert (worst < (1e-13, 1e-13, 1e-12)).all(), worst


def test_some_of_them_read_by_ourselves() -> None:
    """The numbers to the last bits, and the answers; fingers that close as one, too."""
    texts, overlay = edited(READ)
    panda = interpreted_robot(Robot.from_urdf(URDF / "panda.urdf"))
    many = panda.overlaid(overlay)
    given = parameters_of(many.bodies.tree)
    q, v, a = states(panda, READ)
    for k in range(READ):
        one = interpreted_robot(Robot.from_urdf(texts[k]))
        own = parameters_of(one.bodies.tree)
        for name, array in given.items():
            numbers = array[k] if array.ndim > own[name].ndim else array
            np.testing.assert_allclose(numbers, own[name], rtol=1e-15, atol=1e-17)
        with_all = panda.inverse_dynamics(q[k], v[k], a[k], overlay=overlay)[k]
        assert apart(with_all, one.inverse_dynamics(q[k], v[k], a[k])) < 1e-13
    read = [Robot.from_urdf(text) for text in texts]
    said = panda.overlay_of(read)
    assert set(said.links) == set(LINKS)
    assert set(said.joints) == set(JOINTS)
    again = panda.inverse_dynamics(q, v, a, overlay=said)
    expected = panda.inverse_dynamics(q, v, a, overlay=overlay)
    assert apart(again, expected) < 1e-15


@pytest.mark.parametrize("name", wide(REDUCED, REDUCED[::7].__contains__))
def test_locked_joints_are_those_of_a_reduced_model(name: str) -> None:
    """Forward and inverse, every third joint locked, of real robots."""
    path = path_of(name)
    robot = interpreting(path, mimic=False)
    model = pin.buildModelFromUrdf(str(path))
    locked = [joint for joint in robot.joint_names[1::3] if model.existJointName(joint)]
    assert locked
    overlay = Overlay(locked=locked)
    rng = np.random.default_rng(2)
    q = robot.random_configuration(seed=3)
    free = np.array([joint not in locked for joint in robot.joint_names])
    v, a, tau = rng.normal(size=(3, robot.nv)) * (free, free, np.ones(robot.nv))
    at = Oracle.of_model(model).position(q)
    reduced = Oracle.of_model(pin.buildReducedModel(model, [model.getJointId(joint) for joint in locked], at))
    rest = q[free]
    ours = robot.inverse_dynamics(q, v, a, overlay=overlay, passive=False)
    assert (ours[~free] == 0.0).all()
    assert apart(ours[free], reduced.inverse_dynamics(rest, v[free], a[free])) < 1e-12
    M = robot.mass_matrix(q, overlay=overlay, passive=False)
    assert apart(M[np.ix_(free, free)], reduced.mass_matrix(rest)) < 1e-12
    if robot.massless_joint is None:
        for method in ("articulated", "mass_matrix"):
            found = robot.forward_dynamics(q, v, tau, overlay=overlay, passive=False, method=method)  # type: ignore[arg-type]
            assert (found[~free] == 0.0).all()
            needed = M[np.ix_(free, free)] @ (found[free] - reduced.forward_dynamics(rest, v[free], tau[free]))
            assert np.abs(needed).max() < 1e-11 * max(np.abs(ours).max(), 1.0)

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
    for name, joint_changes in overlay.joints.items():
        damping[robot.joint_names.index(name)] = joint_changes.damping
    damping_efforts = damping.T * v
    errors_of_state = np.zeros((len(texts), 3))
    for k, text in enumerate(texts):
        oracle = Oracle(text)
        tau_pinocchio = oracle.inverse_dynamics(q[k], v[k], a[k]) + damping_efforts[k]
        of_M = oracle.mass_matrix(q[k])
        effort_error = M[k] @ (forward[k] - oracle.forward_dynamics(q[k], v[k], a[k] - damping_efforts[k]))
        size = max(np.abs(tau_pinocchio).max(), np.abs(a[k]).max())
        tau_error = np.abs(tau[k] - tau_pinocchio).max() / size
        errors_of_state[k] = (tau_error, apart(M[k], of_M), np.abs(effort_error).max() / size)
    # Sums of a hundred terms in another order; forward dynamics is held as the efforts that its difference needs.
    terms = zip(("inverse_dynamics", "mass_matrix", "forward_dynamics"), (1e-13, 1e-13, 1e-12), strict=True)
    for (term, tolerance), errors in zip(terms, errors_of_state.T, strict=True):
        state = int(errors.argmax())
        assert errors[state] < tolerance, f"{term} of '{robot.name}', state and overlay {state}: {errors[state]:.2g}"


def test_some_of_them_read_by_ourselves() -> None:
    """The numbers to the last bits, and the answers; fingers that close as one, too."""
    texts, overlay = edited(READ)
    panda = interpreted_robot(Robot.from_urdf(URDF / "panda.urdf"))
    overlaid = panda.overlaid(overlay)
    parameters = parameters_of(overlaid.bodies.tree)
    q, v, a = states(panda, READ)
    for k in range(READ):
        edited_robot = interpreted_robot(Robot.from_urdf(texts[k]))
        edited_parameters = parameters_of(edited_robot.bodies.tree)
        for name, array in parameters.items():
            numbers = array[k] if array.ndim > edited_parameters[name].ndim else array
            np.testing.assert_allclose(numbers, edited_parameters[name], rtol=1e-15, atol=1e-17)
        with_all = panda.inverse_dynamics(q[k], v[k], a[k], overlay=overlay)[k]
        assert apart(with_all, edited_robot.inverse_dynamics(q[k], v[k], a[k])) < 1e-13, f"state and overlay {k}"
    read = [Robot.from_urdf(text) for text in texts]
    read_overlay = panda.overlay_of(read)
    assert set(read_overlay.links) == set(LINKS)
    assert set(read_overlay.joints) == set(JOINTS)
    tau_read = panda.inverse_dynamics(q, v, a, overlay=read_overlay)
    expected = panda.inverse_dynamics(q, v, a, overlay=overlay)
    assert apart(tau_read, expected) < 1e-15, "inverse_dynamics with the overlay of the files"


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
    pinocchio_q = Oracle.of_model(model).position(q)
    reduced = Oracle.of_model(pin.buildReducedModel(model, [model.getJointId(joint) for joint in locked], pinocchio_q))
    rest = q[free]
    ours = robot.inverse_dynamics(q, v, a, overlay=overlay, passive=False)
    assert (ours[~free] == 0.0).all()
    # Pinocchio adds the locked bodies to their carriers first: sums in another order.
    assert apart(ours[free], reduced.inverse_dynamics(rest, v[free], a[free])) < 1e-12, "inverse_dynamics"
    M = robot.mass_matrix(q, overlay=overlay, passive=False)
    assert apart(M[np.ix_(free, free)], reduced.mass_matrix(rest)) < 1e-12, "mass_matrix"
    if robot.massless_joint is None:
        for method in ("articulated", "mass_matrix"):
            a_found = robot.forward_dynamics(q, v, tau, overlay=overlay, passive=False, method=method)  # type: ignore[arg-type]
            assert (a_found[~free] == 0.0).all()
            effort_error = M[np.ix_(free, free)] @ (a_found[free] - reduced.forward_dynamics(rest, v[free], tau[free]))
            # As the efforts that the difference needs, since some branches are nearly without inertia.
            assert np.abs(effort_error).max() < 1e-11 * max(np.abs(ours).max(), 1.0), f"forward_dynamics, {method}"

"""`Robot`: its errors, refused queries, use by several threads, pickling, and robots without joints."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyn_service.api.queries import QUERIES, RobotQueries, Wrench
from dyn_service.engine.robot import Robot
from dyn_service.errors import (
    DynError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnimplementedError,
)
from tests.conftest import ROBOTS, URDF
from tests.phrases import unnamed

INERTIA = '<inertia ixx="0.1" iyy="0.1" izz="0.1" ixy="0" ixz="0" iyz="0"/>'


def chain(*bodies: str, axis: str = "0 0 1", kind: str = "continuous") -> Robot:
    """Returns a chain of links b0, b1, ... with these inertials, connected by joints j1, j2, ... 0.1 m apart."""
    text = '<robot name="chain"><link name="b0"/>'
    for k, body in enumerate(bodies, start=1):
        text += f'<link name="b{k}">{body}</link><joint name="j{k}" type="{kind}"><origin xyz="0 0 0.1"/>'
        text += f'<parent link="b{k - 1}"/><child link="b{k}"/><axis xyz="{axis}"/>'
        text += '<limit lower="-1" upper="1" effort="1" velocity="1"/></joint>'
    return Robot.from_urdf(text + "</robot>")


SOLID = f'<inertial><mass value="2"/>{INERTIA}</inertial>'
ON_AXIS_POINT = (
    '<inertial><origin xyz="0 0 0.2"/><mass value="2"/>'
    '<inertia ixx="0" iyy="0" izz="0" ixy="0" ixz="0" iyz="0"/></inertial>'
)


@pytest.fixture(scope="module")
def double_pendulum() -> Robot:
    return Robot.from_urdf(URDF / "double_pendulum.urdf")


Q = np.zeros(2)
ERRORS: list[tuple[str, Callable[[Robot], Any], type[DynError], list[str], str | None]] = [
    ("wrong length", lambda r: r.inverse_dynamics(np.zeros(3), Q, Q), InvalidArgumentError,
     ["q", "(3,)", "(..., 2)", "(2 movable joints)"], "inputs.q"),
    ("scalar", lambda r: r.forward_dynamics(Q, Q, 1.0), InvalidArgumentError,
     ["tau", "()", "(..., 2)", "(2 movable joints)"], "inputs.tau"),
    ("text", lambda r: r.mass_matrix("zero"), InvalidArgumentError, ["q", "(..., 2)", "'zero'"], "inputs.q"),
    ("complex", lambda r: r.gravity_forces(np.zeros(2, dtype=complex)), InvalidArgumentError, ["q", "(..., 2)", "(2,)"],
     "inputs.q"),
    ("ragged", lambda r: r.gravity_forces([[1.0, 2.0], [3.0]]), InvalidArgumentError,
     ["q", "(..., 2)", "row 1 has length 1, row 0 has length 2"], "inputs.q"),
    ("gravity", lambda r: r.gravity_forces(Q, gravity=-9.81), InvalidArgumentError, ["gravity", "()", "(..., 3)"],
     "inputs.gravity"),
    ("batches that do not broadcast", lambda r: r.bias_forces(np.zeros((3, 2)), np.zeros((4, 2))), InvalidArgumentError,
     ["q (3,) and v (4,)"], "inputs"),
    ("gain", lambda r: r.computed_torque(Q, Q, Q, Q, Q, kp=np.ones(3), kd=1.0), InvalidArgumentError,
     ["kp", "(3,)", "(..., 2)", "(2 movable joints)"], "inputs.kp"),
    ("method", lambda r: r.forward_dynamics(Q, Q, Q, method="magic"), InvalidArgumentError,
     ["method", "'articulated'", "'mass_matrix'", "'magic'"], "options.method"),
    ("frame", lambda r: r.constraint_forces(Q, Q, Q, frame="link"), InvalidArgumentError,
     ["frame", "'joint'", "'world'", "'link'"], "options.frame"),
    ("joints as text", lambda r: r.constraint_forces(Q, Q, Q, joints="elbow"), InvalidArgumentError,
     ["joints", "'elbow'"], "options.joints"),
    ("unknown joint", lambda r: r.constraint_forces(Q, Q, Q, joints=["nose"]), NotFoundError,
     ["'double_pendulum'", "'nose'", "{joints}"], "options.joints[0]"),
    ("unknown link", lambda r: r.inverse_dynamics(Q, Q, Q, wrenches=[Wrench("nose")]), NotFoundError,
     ["'double_pendulum'", "'nose'", "{links}"], "inputs.wrenches[0].link"),
    ("unknown frame", lambda r: r.inverse_dynamics(Q, Q, Q, wrenches=Wrench(r.link_names[-1], frame="nose")),
     NotFoundError, ["'double_pendulum'", "'nose'", "{links}"], "inputs.wrenches[0].frame"),
    ("wrench of another kind", lambda r: r.inverse_dynamics(Q, Q, Q, wrenches=[(1, 2, 3)]), InvalidArgumentError,
     ["wrenches[0]", "tuple (1, 2, 3)"], "inputs.wrenches[0]"),
    ("force in the plane", lambda r: Wrench(r.link_names[-1], force=(1, 2)), InvalidArgumentError,
     ["force", "(..., 3)", "tuple (1, 2)"], "force"),
    ("unknown query", lambda r: r.evaluate("dance", {}), UnimplementedError,
     ["'dance'", "the queries are inverse_dynamics", "more"], "query"),
    ("unknown input", lambda r: r.evaluate("mass_matrix", {"q": Q, "v": Q}), InvalidArgumentError,
     ["mass_matrix", "'v'"], "inputs.v"),
    ("missing input", lambda r: r.evaluate("bias_forces", {"q": Q}), InvalidArgumentError, ["bias_forces", "'v'"],
     "inputs.v"),
    ("unknown option", lambda r: r.evaluate("mass_matrix", {"q": Q}, {"method": "articulated"}), InvalidArgumentError,
     ["mass_matrix", "'method'"], "options.method"),
]  # fmt: skip


@pytest.mark.parametrize(("ask", "kind", "values", "path"), [pytest.param(*e[1:], id=e[0]) for e in ERRORS])
def test_errors(
    double_pendulum: Robot, ask: Callable[[Robot], Any], kind: type[DynError], values: list[str], path: str | None
) -> None:
    with pytest.raises(kind) as error:
        ask(double_pendulum)
    names = {"joints": ", ".join(double_pendulum.all_joint_names), "links": ", ".join(double_pendulum.link_names)}
    assert type(error.value) is kind
    assert unnamed(error.value, *(value.format(**names) for value in values)) == []
    assert error.value.path == path


@pytest.mark.parametrize(
    ("bodies", "joint"),
    [
        ((SOLID, ""), "j2"),  # a massless leaf
        ((SOLID, ON_AXIS_POINT), "j2"),  # all its mass on the axis
        (("", SOLID), "j1"),  # two joints about one axis and nothing between them
    ],
    ids=["massless leaf", "point on the axis", "massless between coaxial joints"],
)
def test_motion_without_inertia_is_refused(bodies: tuple[str, ...], joint: str) -> None:
    robot = chain(*bodies)
    zero = np.zeros(2)
    for method in ("articulated", "mass_matrix"):
        with pytest.raises(FailedPreconditionError) as error:
            robot.forward_dynamics(zero, zero, zero, method=method)
        assert unnamed(error.value, "forward_dynamics", "'chain'", f"joint '{joint}'", "inertia") == []
    with pytest.raises(FailedPreconditionError, match="constraint_forces has no answer"):
        robot.constraint_forces(zero, zero, zero)
    assert np.isfinite(robot.inverse_dynamics(zero, zero, zero + 1.0)).all()
    assert np.isfinite(robot.mass_matrix(zero)).all()


def test_massless_link_between_crossed_joints_is_fine() -> None:
    text = (
        '<robot name="cardan"><link name="base"/><link name="cross"/>'
        f'<link name="arm">{SOLID}</link>'
        '<joint name="a" type="continuous"><parent link="base"/><child link="cross"/><axis xyz="1 0 0"/></joint>'
        '<joint name="b" type="continuous"><parent link="cross"/><child link="arm"/><axis xyz="0 1 0"/></joint></robot>'
    )
    robot = Robot.from_urdf(text)
    q, v, a = np.array([[0.3, 0.4], [0.1, -2.0], [1.0, 2.0]])
    # A solution and its reverse: rounding times the condition number of a small M.
    np.testing.assert_allclose(robot.forward_dynamics(q, v, robot.inverse_dynamics(q, v, a)), a, rtol=1e-12)


def test_a_wrench_on_a_fixed_link_is_ignored(double_pendulum: Robot) -> None:
    wrench = Wrench(double_pendulum.link_names[0], force=(1.0, 2.0, 3.0))
    np.testing.assert_array_equal(
        double_pendulum.inverse_dynamics(Q, Q, Q, wrenches=wrench), double_pendulum.inverse_dynamics(Q, Q, Q)
    )


def test_pickled_robot_gives_equal_bits(double_pendulum: Robot) -> None:
    copy = pickle.loads(pickle.dumps(double_pendulum))
    assert copy.fingerprint == double_pendulum.fingerprint
    state = np.array([0.1, 0.2])
    np.testing.assert_array_equal(
        copy.inverse_dynamics(state, state, state), double_pendulum.inverse_dynamics(state, state, state)
    )


def test_threads_share_a_robot() -> None:
    robot = Robot.from_urdf(URDF / "scara.urdf")
    q = np.random.default_rng(0).normal(size=(8, 200, robot.nv))
    answers: dict[int, np.ndarray] = {}

    def work(k: int) -> None:
        answers[k] = robot.forward_dynamics(q[k], q[k], q[k])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(8):
        np.testing.assert_array_equal(answers[k], robot.forward_dynamics(q[k], q[k], q[k]))


def test_prepare_makes_the_kernels_of_control_loops() -> None:
    robot = Robot.from_urdf(URDF / "pendulum.urdf")
    names: list[str] = []
    robot.prepare(progress=lambda name, seconds: names.append(name))
    assert names == [
        "-".join(part for part in (row.name, method) if part)
        for row in QUERIES.values()
        if row.control
        for method in row.kernels
    ]


@pytest.mark.parametrize("path", ROBOTS, ids=lambda path: path.stem)
def test_descriptions_are_plain_values(path: Any) -> None:
    import msgpack

    robot = Robot.from_urdf(path)
    assert msgpack.unpackb(msgpack.packb(robot.description.to_dict())) == robot.description.to_dict()
    assert robot.name == path.stem
    assert robot.receipt.to_dict()["fingerprint"] == robot.fingerprint


def test_robot_is_the_interface() -> None:
    assert issubclass(Robot, RobotQueries)
    assert isinstance(Robot.from_urdf(URDF / "pendulum.urdf"), RobotQueries)


@pytest.mark.parametrize("source", ["panda.urdf", URDF / "panda.urdf", None])
def test_a_file_is_read_by_another_name(source: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"found .*: Robot\.from_file\(path\) reads a file"):
        Robot(source)


def test_robot_that_cannot_move() -> None:
    brick = Robot.from_urdf(
        f'<robot name="brick"><link name="a">{SOLID}</link><link name="b">{SOLID}</link>'
        '<joint name="j" type="fixed"><parent link="a"/><child link="b"/></joint></robot>'
    )
    empty = np.zeros((5, 0))
    assert brick.inverse_dynamics(empty, empty, empty).shape == (5, 0)
    assert brick.mass_matrix([]).shape == (0, 0)
    assert brick.link_poses(empty).position.shape == (5, 2, 3)
    np.testing.assert_allclose(brick.constraint_forces([], [], []).wrench, [[0, 0, 0, 0, 0, 2 * 9.81]])
    push = Wrench("b", force=(1.0, 0.0, 0.0), point=(0.0, 0.0, 1.0))
    assert brick.inverse_dynamics(empty, empty, empty, wrenches=push).shape == (5, 0)
    np.testing.assert_allclose(brick.constraint_forces([], [], [], wrenches=push).wrench, [[0, -1, 0, -1, 0, 2 * 9.81]])


def test_repr_counts_mimic_joints_among_the_movable_ones(panda_path: Path) -> None:
    assert repr(Robot.from_urdf(panda_path)) == "<Robot 'panda': 13 links, 9 movable joints, 1 mimic>"


def test_a_robot_without_moving_joints_has_all_results_that_have_entries() -> None:
    """Its Jacobians and joint efforts have none."""
    body = '<inertial><mass value="2"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>'
    robot = Robot.from_text(
        f'<robot name="stand"><link name="foot">{body}</link><link name="head">{body}</link>'
        '<joint name="j" type="fixed"><parent link="foot"/><child link="head"/><origin xyz="1 2 3"/></joint></robot>'
    )
    empty = np.zeros(0)
    motion = robot.point_motion(np.zeros((4, 0)), empty, "head", point=(0.0, 0.0, 1.0))
    assert motion.position.tolist() == [[1.0, 2.0, 4.0]] * 4
    assert motion.rotation.tolist() == [np.eye(3).tolist()] * 4
    assert motion.jacobian.shape == (4, 6, 0)
    weight = 2.0 * 9.81
    np.testing.assert_allclose(
        robot.body_recursion(empty, empty, empty).force[:, 2], [2.0 * weight, weight], rtol=1e-15
    )
    assert robot.energy_derivatives(empty, empty).potential == robot.energy(empty, empty).potential == 3.0 * weight
    assert robot.centroidal_derivatives(empty, empty, empty).centre.tolist() == [0.5, 1.0, 1.5]
    derivatives = robot.point_motion_derivatives(empty, empty, empty, robot.link_names[-1])
    assert derivatives.velocity.tolist() == [0.0] * 6
    assert derivatives.dvelocity_dq.shape == (6, 0)
    row = QUERIES["link_motion"]
    assert not robot.evaluator.has_kernel(row)
    robot.prepare(["link_motion"])
    assert robot.evaluator.has_kernel(row)
    assert robot.evaluator.has_kernel(QUERIES["mass_matrix"])  # there is nothing to compute
    results = robot.evaluate(["mass_matrix", "energy"], q=np.zeros((2, 0)), v=empty)
    assert results["mass_matrix"].shape == (2, 0, 0)
    assert results["energy"].potential.tolist() == [3.0 * weight] * 2

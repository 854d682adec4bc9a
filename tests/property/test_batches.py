"""A state's answer does not depend on its company, to the last bit: alone, in a batch, in any memory layout."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from dyn_service.api.arguments import mapped
from dyn_service.api.queries import QUERIES, JointNumbers, Overlay, Payload, Wrench
from dyn_service.engine.robot import Robot
from tests.conftest import URDF
from tests.passive import small
from tests.random_robots import random_urdf
from tests.wide import wide

WAYS = ("wrenches", "overlay")
"""Inputs with kernels of their own."""

SAID_ONCE = ("directions",)
"""Inputs that are the same for a whole batch."""

ALWAYS = ("small", "pendulum")
"""Each has kernels of its own to compile, and lanes know nothing of joints. Other tests compile most of these too."""

NAMES = (*ALWAYS, "scara", "random", "panda")

COUNT = 37
"""Not a multiple of any vector width, so the last block is a short one."""


@pytest.fixture(scope="module", params=wide(NAMES, ALWAYS.__contains__))
def robot(request: pytest.FixtureRequest) -> Robot:
    """Each joint by itself, so that every row has an answer; those that follow others are in theory/test_mimic.py."""
    if request.param == "small":
        return small()
    source = random_urdf(1003, movable=4) if request.param == "random" else URDF / f"{request.param}.urdf"
    return Robot.from_urdf(source, mimic=False)


def inputs_of(robot: Robot, query: str, rng: np.random.Generator) -> dict[str, Any]:
    """A batch of COUNT states for any row of the table, gravity, wrenches and as many different robots included."""
    inputs: dict[str, Any] = {}
    for name in QUERIES[query].inputs:
        if name == "gravity":
            inputs[name] = rng.normal(size=(COUNT, 3))
        elif name == "wrenches":
            inputs[name] = Wrench(robot.link_names[-1], *rng.normal(size=(3, COUNT, 3)), frame="world")
        elif name == "overlay":
            payload = Payload(robot.link_names[-1], rng.uniform(0.1, 5.0, COUNT), rng.normal(size=(COUNT, 3)))
            joints = {robot.joint_names[0]: JointNumbers(damping=rng.uniform(0.0, 5.0, COUNT))}
            inputs[name] = Overlay(payload, joints=joints)
        elif name == "link":
            inputs[name] = rng.choice(robot.link_names, COUNT)
        elif name == "directions":
            inputs[name] = ["x", "rz"]
        else:
            inputs[name] = rng.normal(size=(COUNT, *QUERIES[query].inputs[name].dims({"nq": robot.nq, "nv": robot.nv})))
    return inputs


def selected_states(inputs: dict[str, Any], index: Any) -> dict[str, Any]:
    """The inputs of some of the states."""
    selected = {name: value[index] for name, value in inputs.items() if name not in (*WAYS, *SAID_ONCE)}
    selected |= {name: inputs[name] for name in SAID_ONCE if name in inputs}
    if "wrenches" in inputs:
        w = inputs["wrenches"]
        selected["wrenches"] = Wrench(w.link, w.torque[index], w.force[index], w.point[index], w.frame)
    if "overlay" in inputs:
        selected["overlay"] = mapped(
            inputs["overlay"], lambda array, rank, path: array if np.ndim(array) == rank else np.asarray(array)[index]
        )
    return selected


def assert_same(outputs: dict[str, Any], expected: dict[str, Any], index: Any) -> None:
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(outputs[name], value[index])
        else:
            assert outputs[name] == value


FREE = [(query, "") for query, row in QUERIES.items() if not row.constant]
MORE = [(query, way) for query, row in QUERIES.items() for way in WAYS if way in row.inputs]


CASES = [(name, *case) for name in NAMES for case in FREE + MORE]


def in_the_suite(case: tuple[str, str, str]) -> bool:
    """Of the ways with kernels of their own every other one, of one robot."""
    return case[0] in ALWAYS and (case[1:] in FREE or (case[0] == ALWAYS[0] and case[1:] in MORE[::2]))


@pytest.mark.parametrize(("robot", "query", "way"), wide(CASES, in_the_suite), indirect=["robot"])
def test_alone_and_in_batches(robot: Robot, query: str, way: str) -> None:
    inputs = inputs_of(robot, query, np.random.default_rng(1))
    for other in {*WAYS} - {way}:
        inputs.pop(other, None)
    whole = robot.evaluate(query, inputs)
    for index in (0, 7, 8, COUNT - 1):
        assert_same(robot.evaluate(query, selected_states(inputs, index)), whole, index)
    for part in (slice(3, 20), slice(None, None, -1), slice(None, None, 3)):
        assert_same(robot.evaluate(query, selected_states(inputs, part)), whole, part)


@pytest.mark.parametrize("query", QUERIES)
def test_methods_and_evaluate_agree(robot: Robot, query: str) -> None:
    """The shortcut of the common call and the general path are one answer."""
    inputs = inputs_of(robot, query, np.random.default_rng(2))
    for name in (*WAYS, "gravity"):
        inputs.pop(name, None)
    result = getattr(robot, query)(**inputs)
    outputs = robot.evaluate(query, inputs)
    if QUERIES[query].result_type is None:
        result = {next(iter(outputs)): result}
    else:
        result = {name: getattr(result, name) for name in outputs}
    assert_same(result, outputs, slice(None))


@pytest.mark.parametrize("layout", ["fortran", "strided", "reversed", "float32", "integer", "list"])
def test_memory_layout(robot: Robot, layout: str) -> None:
    rng = np.random.default_rng(3)
    plain = np.round(rng.normal(size=(3, COUNT, robot.nv)) * 3)  # exact in every type
    wide = np.zeros((COUNT, 2 * robot.nv))

    def laid(x: np.ndarray) -> Any:
        if layout == "fortran":
            return np.asfortranarray(x)
        if layout == "strided":
            padded = wide.copy()
            padded[:, ::2] = x
            return padded[:, ::2]
        if layout == "reversed":
            return np.ascontiguousarray(x[:, ::-1])[:, ::-1]
        if layout == "float32":
            return x.astype(np.float32)
        return x.astype(int) if layout == "integer" else x.tolist()

    tau = robot.inverse_dynamics(*(laid(x) for x in plain))
    np.testing.assert_array_equal(tau, robot.inverse_dynamics(*plain))


def test_broadcasting_over_grids(robot: Robot) -> None:
    rng = np.random.default_rng(4)
    q = rng.normal(size=(5, 1, robot.nv))
    v = rng.normal(size=(1, 7, robot.nv))
    a = rng.normal(size=robot.nv)
    grid = robot.inverse_dynamics(q, v, a)
    assert grid.shape == (5, 7, robot.nv)
    np.testing.assert_array_equal(grid[3, 4], robot.inverse_dynamics(q[3, 0], v[0, 4], a))
    assert robot.mass_matrix(q).shape == (5, 1, robot.nv, robot.nv)


def test_empty_batch(robot: Robot) -> None:
    empty = np.zeros((0, robot.nv))
    assert robot.inverse_dynamics(empty, empty, empty).shape == (0, robot.nv)
    assert robot.constraint_forces(empty, empty, empty).wrench.shape == (0, len(robot.all_joint_names), 6)


def test_nan_stays_nan_and_stays_where_it_is(robot: Robot) -> None:
    rng = np.random.default_rng(5)
    q, v, a = rng.normal(size=(3, COUNT, robot.nv))
    clean = robot.inverse_dynamics(q, v, a)
    a[11, -1] = np.nan
    q[20, 0] = np.nan
    tau = robot.inverse_dynamics(q, v, a)
    assert np.isnan(tau[11]).any()
    assert np.isnan(tau[20]).any()
    clean_rows = np.delete(np.arange(COUNT), [11, 20])
    np.testing.assert_array_equal(tau[clean_rows], clean[clean_rows])


@pytest.mark.parametrize("query", QUERIES)
def test_shortcuts_keep_the_signature_of_the_table(robot: Robot, query: str) -> None:
    def shape(function: Any) -> list[tuple[str, Any, Any]]:
        return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]

    assert shape(getattr(robot, query)) == shape(getattr(type(robot), query))[1:]

"""No answer leaves the server with NaN or infinity; the error names the cause. On every path."""

from __future__ import annotations

import re
from collections.abc import Iterator
from time import perf_counter_ns
from typing import Any

import msgpack
import numpy as np
import pytest

from dyn_service import QUERIES, Client, FailedPreconditionError, InvalidArgumentError, Robot, Server
from dyn_service.api.spec import BY_NAME
from dyn_service.parsing.urdf.reader import read
from dyn_service.service.server.answering.finite import NotFinite, defect, first_not_finite
from dyn_service.service.server.answering.service import Service
from qa.soak.finite import survey
from tests.mimics import drawn
from tests.passive import restless
from tests.phrases import naming, unnamed
from tests.random_robots import random_urdf
from tests.service.conftest import array, request, sample
from tests.wide import wide

GIMBAL = """<robot name="gimbal">
  <link name="base"/><link name="outer"/><link name="inner"/>
  <link name="top"><inertial><origin xyz="0 0 0.5"/><mass value="1"/>
    <inertia ixx="0.5" iyy="0.5" izz="0.5" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <joint name="yaw" type="continuous"><parent link="base"/><child link="outer"/><axis xyz="0 0 1"/></joint>
  <joint name="tilt" type="continuous"><parent link="outer"/><child link="inner"/><axis xyz="0 1 0"/></joint>
  <joint name="roll" type="continuous"><parent link="inner"/><child link="top"/><axis xyz="0 0 1"/></joint>
</robot>"""
"""At tilt = 0, yaw and roll turn about one axis, and the link between has no inertia, so that M is singular. Exactly so
in queries on links too, which keep the frames of the file: all its numbers are sums of powers of two.
"""

SLIDER = """<robot name="slider">
  <link name="rail"/>
  <link name="cart"><inertial><mass value="{mass}"/>
    <inertia ixx="{mass}" iyy="{mass}" izz="{mass}" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <link name="arm"><inertial><origin xyz="0.3 0 0"/><mass value="{mass}"/>
    <inertia ixx="{mass}" iyy="{mass}" izz="{mass}" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <joint name="slide" type="prismatic"><parent link="rail"/><child link="cart"/><axis xyz="1 0 0"/>
    <limit lower="-1" upper="1" effort="1" velocity="1"/></joint>
  <joint name="swing" type="continuous"><parent link="cart"/><child link="arm"/><axis xyz="0 1 0"/>
    <origin xyz="0 {length} 0.1"/></joint>
</robot>"""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """As in the server's threads, where overflows raise no warnings."""
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(scope="module")
def gimbal() -> Robot:
    return Robot.from_urdf(GIMBAL)


@pytest.fixture(scope="module")
def service(pendulum: Robot, gimbal: Robot, cart: Robot) -> Service:
    return Service([pendulum, gimbal, cart])


def replies(service: Service, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the reply on the slow path, then on the fast path if it is open."""
    payload = msgpack.packb(message)
    yield msgpack.unpackb(service.handle(payload, perf_counter_ns()))
    short = service.answer_single_state(payload, perf_counter_ns())
    if short is not None:
        yield msgpack.unpackb(short)


def holds_what_is_not_finite(value: Any) -> bool:
    """Returns whether a reply contains such a number, decoded independently of the server."""
    if isinstance(value, dict) and value.keys() == {"dtype", "shape", "data"}:
        return not np.isfinite(np.frombuffer(value["data"])).all()
    if isinstance(value, dict | list):
        return any(map(holds_what_is_not_finite, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and not np.isfinite(value)


def attacks(robot: Robot, query: str) -> Iterator[dict[str, Any]]:
    """Yields requests with one input, or all, of a size that overflows intermediate values."""
    row = QUERIES[query]
    for lead in ((), (2,)):
        vectors, numbers = sample(robot, query, lead)
        plain = {name: array(value) for name, value in vectors.items()} | numbers
        for size in (0.0, 1e14, 1e154, 1e200, 1e305):
            grown = {name: array(value * size) for name, value in vectors.items()}
            name_inputs = {name for name, spec in row.inputs.items() if spec.kind in BY_NAME}
            grown |= {name: value if name in name_inputs else value * size for name, value in numbers.items()}
            if "gravity" in row.inputs:
                grown["gravity"] = array([0.0, size, -size])
            if "wrenches" in row.inputs:
                parts = {part: [size, 0.5 * size, size] for part in ("torque", "force", "point")}
                grown["wrenches"] = {"link": robot.link_names[-1], **parts}
            verified = size in (0.0, 1e200) and not lead
            for inputs in (grown, *({**plain, name: value} for name, value in grown.items())):
                yield request(query, robot.name, inputs=inputs)
                if verified and (inputs is grown or query == "inverse_dynamics"):  # all queries verify a state alike
                    yield request(query, robot.name, inputs=inputs, options={"verify": True})


OF_STATES = [name for name, row in QUERIES.items() if row.inputs]
ATTACKED = [
    *((name, query) for name in ("pendulum", "cart_pendulum") for query in OF_STATES),
    *wide((("gimbal", query) for query in OF_STATES), lambda case: bool(QUERIES[case[1]].inverts_mass_matrix)),
]
"""Where no matrix is inverted, the gimbal is a robot like others."""


@pytest.mark.parametrize(("name", "query"), ATTACKED)
def test_every_query_under_attack(service: Service, name: str, query: str) -> None:
    refusal_count = 0
    for message in attacks(service.robots[name], query):
        for reply in replies(service, message):
            assert not holds_what_is_not_finite(reply)
            if not reply["ok"]:
                refusal_count += 1
                assert reply["error"]["code"] in ("INVALID_ARGUMENT", "FAILED_PRECONDITION"), reply
                assert re.search(r" = -?(nan|inf)\b", reply["error"]["message"]), reply
                assert re.search(r"(joint|link) '\w+'|largest input is", reply["error"]["message"]), reply
    assert refusal_count


def test_both_ways_refuse_alike(service: Service) -> None:
    """The fast path leaves the explanation to the slow path."""
    state = {name: array([0.5]) for name in ("q", "a")}
    plain = request("inverse_dynamics", inputs={**state, "v": array([0.5])})
    assert len(list(replies(service, plain))) == 2
    huge = msgpack.packb(request("bias_forces", inputs={"q": array([0.5]), "v": array([1e200])}))
    warm = msgpack.packb(request("bias_forces", inputs={"q": array([0.5]), "v": array([0.5])}))
    service.handle(warm, perf_counter_ns())
    assert service.answer_single_state(warm, perf_counter_ns()) is not None
    reply = service.answer_single_state(huge, perf_counter_ns())
    assert reply is None or not holds_what_is_not_finite(msgpack.unpackb(reply))


def test_fast_path_leaves_nonfinite_answers_to_the_slow_path(service: Service) -> None:
    for query in ("energy", "link_motion"):  # a short answer, and one with several arrays
        inputs = {name: array([0.5, 0.5]) for name in QUERIES[query].inputs if name in ("q", "v", "a")}
        assert len(list(replies(service, request(query, "cart_pendulum", inputs=inputs)))) == 2
        huge = request(query, "cart_pendulum", inputs={**inputs, "v": array([1e300, 1e300])})
        (reply,) = replies(service, huge)
        assert reply["error"]["code"] == "INVALID_ARGUMENT"


def test_huge_numbers_that_are_finite_pass(service: Service, cart: Robot) -> None:
    """On the slow path: the fast path cannot distinguish 1e305 from infinity."""
    a = np.array([1e305, 0.0])
    zeros = np.zeros(2)
    inputs = {"q": array(zeros), "v": array(zeros), "a": array(a)}
    (reply,) = replies(service, request("inverse_dynamics", "cart_pendulum", inputs=inputs))
    assert reply["outputs"]["tau"]["data"] == cart.inverse_dynamics(zeros, zeros, a).tobytes()
    assert np.frombuffer(reply["outputs"]["tau"]["data"])[0] > 1e305


def refusal(service: Service, query: str, robot: str, inputs: dict[str, Any], **fields: Any) -> tuple[str, str, Any]:
    *_, reply = replies(service, request(query, robot, inputs=inputs, **fields))
    assert not reply["ok"], reply
    error = reply["error"]
    return error["code"], error["message"], error.get("path")


def test_an_angle_without_digits(service: Service) -> None:
    q = np.full((2, 3, 2), 0.5)
    q[1, 2] = [1e14, 2.0**46]  # large lengths are allowed
    code, message, path = refusal(service, "gravity_forces", "cart_pendulum", {"q": array(q)})
    assert (code, path) == ("INVALID_ARGUMENT", "inputs.q")
    assert message.startswith("gravity_forces gives forces of joint 'hinge' = nan at state [1, 2] of the batch: ")
    assert re.search(r"q of joint 'hinge' is 7\.03687e\+13 rad.* 2\^45 rad, about 3\.5e13$", message)


@pytest.mark.parametrize("query", ["hamiltonian", "constraint_forces", "branch_inertias"])
def test_a_singular_state(service: Service, query: str) -> None:
    names = [name for name in QUERIES[query].inputs if name in ("q", "v", "tau", "p")]
    code, message, _ = refusal(service, query, "gimbal", {name: array([0.0, 0.0, 0.0]) for name in names})
    assert code == "FAILED_PRECONDITION"
    assert re.search("mass matrix is singular at this state.*joint 'yaw' .*no inertia", message)
    regular = {name: array([0.0, 0.5, 0.0]) for name in names}
    assert next(replies(service, request(query, "gimbal", inputs=regular)))["ok"]


def test_the_state_of_a_batch_is_named_in_the_batchs_own_axes(service: Service) -> None:
    """q broadcasts over the first axis of the efforts: the whole second column is singular."""
    q = np.array([[0.1, 0.2, 0.3], [0.3, 0.0, 0.1]])
    inputs = {"q": array(q), "v": array(np.zeros(3)), "tau": array(np.ones((4, 1, 3)))}
    _, message, _ = refusal(service, "constraint_forces", "gimbal", inputs)
    assert unnamed(message, "[0, 1]", "mass matrix", "singular") == []


def test_inputs_that_overflow(service: Service) -> None:
    v = np.full((3, 2), 0.5)
    v[2, 1] = -1e200
    code, message, path = refusal(service, "energy", "cart_pendulum", {"q": array(np.zeros(2)), "v": array(v)})
    assert (code, path) == ("INVALID_ARGUMENT", "inputs.v")
    assert message.startswith("energy gives kinetic = inf at state [2] of the batch: ")
    assert message.endswith("the largest input is v of joint 'hinge' = -1e+200")


def test_a_wrench_that_overflows(service: Service) -> None:
    state = {name: array(np.zeros(2)) for name in ("q", "v", "a")}
    push = {"link": "pendulum", "force": [0.0, 1.0, 0.0]}
    wrench = {"link": "pendulum", "force": [0.0, 0.0, 1e200], "point": [1e201, 0.0, 0.0]}
    code, message, path = refusal(service, "inverse_dynamics", "cart_pendulum", {**state, "wrenches": [push, wrench]})
    assert (code, path) == ("INVALID_ARGUMENT", "inputs.wrenches[1].point")
    assert message.endswith("the largest input is wrenches[1].point on link 'pendulum' = 1e+201")


def test_a_step_that_overflows(service: Service) -> None:
    inputs = {name: array(np.ones(2)) for name in ("q", "v", "tau")}
    code, message, path = refusal(service, "step", "cart_pendulum", {**inputs, "dt": 1e300})
    assert (code, path) == ("INVALID_ARGUMENT", "inputs.dt")
    assert message.endswith("the largest input is dt = 1e+300")


def test_a_midpoint_that_is_not_found(service: Service) -> None:
    inputs = {"q": array([0.3, 0.4]), "v": array([1.0, 30.0]), "tau": array(np.zeros(2)), "dt": 0.5}
    options = {"integrator": "implicit_midpoint"}
    code, message, _ = refusal(service, "step_derivatives", "cart_pendulum", inputs, options=options)
    assert code == "FAILED_PRECONDITION"
    assert message.endswith("the midpoint does not converge; try a step shorter than dt = 0.5 s")


@pytest.mark.parametrize("numbers", [{"mass": "1e95", "length": "1e260"}, {"mass": "1e-309", "length": "1"}])
def test_a_robot_whose_own_numbers_overflow(numbers: dict[str, str]) -> None:
    """Each number is in range, products are not: no input is the cause."""
    service = Service([Robot.from_urdf(SLIDER.format(**numbers))])
    inputs = {name: array([0.3, 0.4]) for name in ("q", "p", "tau")}
    codes = set()
    for query in ("hamiltonian_flow", "momentum_rate", "mass_matrix", "energy", "link_motion"):
        state = {name: inputs.get(name, array([0.3, 0.4])) for name in QUERIES[query].inputs if name in "q v a p tau"}
        for reply in replies(service, request(query, "slider", inputs=state)):
            assert not holds_what_is_not_finite(reply)
            if not reply["ok"]:
                codes.add(reply["error"]["code"])
                assert "with inputs of ordinary size" in reply["error"]["message"], reply
    assert codes == {"FAILED_PRECONDITION"}


def test_verification(service: Service) -> None:
    options = {"verify": True}
    q = np.array([[0.3, 0.4, 0.5], [0.3, 0.0, 0.5]])
    code, message, _ = refusal(service, "gravity_forces", "gimbal", {"q": array(q)}, options=options)
    assert code == "FAILED_PRECONDITION"
    assert message.startswith("verify of gravity_forces gives residuals")
    assert unnamed(message, "= nan", "[1]", "mass matrix", "singular") == []
    inputs = {"q": array([0.1, 0.2]), "v": array([0.1, 1e160])}
    code, message, path = refusal(service, "momentum", "cart_pendulum", inputs, options=options)
    assert (code, path) == ("INVALID_ARGUMENT", "inputs.v")
    assert unnamed(message, "v of joint 'hinge' = 1e+160") == []
    # Without verification it is finite.
    assert next(replies(service, request("momentum", "cart_pendulum", inputs=inputs)))["ok"]


def test_times_of_a_simulation(service: Service) -> None:
    """At rest without gravity the state does not diverge, but the times overflow."""
    inputs = {"q": array([0.0]), "v": array([0.0]), "gravity": array([0.0, 0.0, 0.0])}
    options = {"dt": 1e307, "steps": 32}
    code, message, path = refusal(service, "simulate", "pendulum", inputs, options=options)
    assert (code, path) == ("INVALID_ARGUMENT", "options.dt")
    assert message.startswith("simulate gives t [18] = inf: ")
    assert message.endswith("the largest input is dt = 1e+307")


@pytest.mark.parametrize("integrator", ["rk4", "semi_implicit_euler", "implicit_midpoint", "adaptive"])
@pytest.mark.parametrize(
    "change",
    [
        {"tau": array([1e300])},
        {"v": array([1e200])},
        {"q": array([1e200])},
        {"gravity": array([1e305, 0.0, 1e305])},
        {},
    ],
    ids=["tau", "v", "q", "gravity", "dt"],
)
def test_simulations_under_attack(service: Service, integrator: str, change: dict[str, Any]) -> None:
    inputs = {"q": array([0.5]), "v": array([0.5]), **change}
    options = {"dt": 0.01 if change else 1e200, "steps": 3, "integrator": integrator}
    code, message, _ = refusal(service, "simulate", "pendulum", inputs, options=options)
    assert code in ("FAILED_PRECONDITION", "INVALID_ARGUMENT")
    assert "joint 'hinge'" in message or "the midpoint of step" in message or "needs more than" in message


@pytest.mark.parametrize("method", ["recursion", "matrix"])
def test_segments_under_attack(service: Service, method: str) -> None:
    n = 2
    inputs: dict[str, Any] = {"mass": array(np.ones(n)), "inertia": array(np.tile(np.eye(3), (n, 1, 1)))}
    inputs["rotation"] = array(np.tile(np.eye(3), (4, n, 1, 1)))
    inputs["ground_force"] = array(np.ones((4, 3)))
    for name in ("acceleration", "omega", "omega_dot", "proximal", "distal"):
        inputs[name] = array(np.ones((4, n, 3)))
    omega = np.ones((4, n, 3))
    omega[3, 1, 2] = 1e200
    omega[3, 1, 1] = 1e199
    fast = {**inputs, "omega": array(omega), "inertia": array(np.tile(np.diag([1.0, 2.0, 3.0]), (n, 1, 1)))}
    options = {"method": method}
    code, message, path = refusal(service, "segment_inverse_dynamics", ..., fast, options=options)
    assert (code, path) == ("INVALID_ARGUMENT", "inputs.omega")
    assert re.match(r"segment_inverse_dynamics gives \w+ \[\d, 0\] = (inf|nan) at state \[3\] of the batch: ", message)
    assert message.endswith("the largest input is omega [1, 2] = 1e+200")
    for name, size in (("ground_force", 1e200), ("acceleration", 1e308), ("proximal", 1e305), ("mass", 1e308)):
        segment_inputs = {
            **inputs,
            name: array(size * np.frombuffer(inputs[name]["data"]).reshape(inputs[name]["shape"])),
        }
        for reply in replies(service, request("segment_inverse_dynamics", ..., inputs=segment_inputs, options=options)):
            assert not holds_what_is_not_finite(reply)


def test_absent_limits_are_nil(service: Service) -> None:
    loading = Service(allow_load=True)
    absurd = SLIDER.format(mass="1e95", length="1e90")
    for message in (
        {"v": 1, "id": 1, "query": "load_robot", "inputs": {"urdf": absurd}},
        {"v": 1, "id": 1, "query": "describe_robot", "robot": "slider"},
    ):
        (reply,) = replies(loading, message)
        assert reply["ok"]
        assert not holds_what_is_not_finite(reply)
        assert reply["outputs"]["limits"]["upper"] == [1.0, None]


def test_over_a_socket(pendulum: Robot, gimbal: Robot, ipc_endpoint: str) -> None:
    """The worker explains the error, also if the server's loop found it; the server continues."""
    zeros = np.zeros(3)
    with Server([pendulum, gimbal], endpoints=[ipc_endpoint]), Client(ipc_endpoint, timeout_s=240.0) as client:
        robot = client.robot("gimbal")
        robot.hamiltonian(zeros + 0.5, zeros)
        for _ in range(2):
            with pytest.raises(FailedPreconditionError, match=naming("kinetic = nan", "'yaw'", "inertia")):
                robot.hamiltonian(zeros, zeros)
        with pytest.raises(InvalidArgumentError, match=naming("v of joint 'hinge'", "1e+305")):
            client.robot("pendulum").energy(np.array([0.5]), np.array([1e305]))
        assert np.isfinite(robot.hamiltonian(zeros + 0.5, zeros).kinetic)


def test_in_this_process_nothing_is_refused(gimbal: Robot) -> None:
    zeros = np.zeros(3)
    assert np.isnan(gimbal.hamiltonian(zeros, zeros).kinetic)
    assert np.isnan(gimbal.inverse_dynamics(np.full(3, np.nan), zeros, zeros)).any()


@pytest.mark.parametrize(
    ("outputs", "place"),
    [
        ({"a": 1.0, "b": {"c": [1.0, "x", [2.0, float("nan")]]}}, ("b.c[2][1]", ())),
        ({"a": np.array([[1.0, 2.0], [np.inf, np.nan]])}, ("a", (1, 0))),
        ({"a": np.float64("-inf")}, ("a", ())),
        ({"a": 1e308, "b": ("x", "y"), "c": np.full(100, 1e308), "d": None, "e": 2**64, "f": np.zeros((0, 3))}, None),
    ],
)
def test_the_first_that_is_not_finite(outputs: dict[str, Any], place: Any) -> None:
    first = first_not_finite(outputs)
    assert place == (None if first is None else (first.output, first.index))


def test_a_defect_is_reported_as_internal() -> None:
    """No input can be the cause."""
    error = defect("stats", NotFinite("uptime_s", (), float("nan")))
    assert error.code == "INTERNAL"
    assert unnamed(error, "stats", "uptime_s = nan") == []


@pytest.mark.wide
def test_states_of_every_size() -> None:
    """A robot with passive forces and mimic joints; a million states: `python -m qa.soak.finite`."""
    robot = restless(drawn(read(random_urdf(5, movable=2)), 2), 1)
    assert robot.tree.has_mimics
    answer_count, refusal_count, wrong = survey(robot, 1)
    assert not wrong
    assert answer_count > 10_000
    assert refusal_count

"""The cost of a request: predicted, checked against limits, and metered where it cannot be predicted."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter_ns, thread_time
from typing import Any

import msgpack
import numpy as np
import pytest

from dyn_service import Client, Robot, Server
from dyn_service.api.cost import Cost, leading
from dyn_service.api.inputs import checked_options
from dyn_service.api.queries import COMPUTATIONS, QUERIES, Contact, Integrator, Row
from dyn_service.errors import DeadlineExceededError, ResourceExhaustedError
from dyn_service.service.protocol.inputs import unpack
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.server.answering.bounds import check_cost, meter, predict_cost
from dyn_service.service.server.answering.jobs import Job, cancelled_error
from dyn_service.service.server.answering.service import Service
from dyn_service.service.server.settings import read_settings
from dyn_service.simulation import parts
from tests.conftest import URDF
from tests.phrases import naming
from tests.service.conftest import Bare, array, request
from tests.service.server import bad_inputs

EXHAUSTED = "RESOURCE_EXHAUSTED"
EVERY_ROW = {**QUERIES, **COMPUTATIONS}
WITH_STATES = [name for name, row in EVERY_ROW.items() if row.inputs]
INTEGRATORS: tuple[Integrator, ...] = ("rk4", "semi_implicit_euler", "explicit_euler", "implicit_midpoint", "adaptive")


@pytest.fixture(scope="module")
def service(scara: Robot, panda: Robot, cart: Robot) -> Service:
    return Service([scara, panda, cart], allow_load=True)


def ask(service: Service, message: Mapping[str, Any]) -> dict[str, Any]:
    with np.errstate(all="ignore"):  # as in the server's thread
        reply: dict[str, Any] = msgpack.unpackb(service.handle(msgpack.packb(message), perf_counter_ns()))
    return reply


def states(*lead: int, n: int = 9) -> dict[str, Any]:
    return array(np.zeros((*lead, n)))


def chain(n: int, frames: int = 1) -> dict[str, Any]:
    eye = np.broadcast_to(np.eye(3), (n, 3, 3))
    rows = ("acceleration", "omega", "omega_dot", "proximal", "distal")
    vectors = {name: array(np.ones((frames, n, 3))) for name in rows}
    return {"mass": array(np.ones(n)), "inertia": array(eye), "rotation": array(eye), **vectors}


SPREAD = {"q": states(200, 1), "v": states(1, 200)}
"""A few kilobytes that broadcast to 40000 states."""

# Small requests that once took minutes or gigabytes.
SEEN: dict[str, tuple[dict[str, Any], str]] = {
    "simulate, 200 x 200 states and 20000 steps": (
        request("simulate", "panda", inputs=SPREAD, options={"dt": 1e-3, "steps": 20000}),
        "simulate asks for 200 x 200 states and 20000 steps",
    ),
    "the same, one record": (
        request(
            "simulate",
            "panda",
            inputs=SPREAD,
            options={"dt": 1e-3, "steps": 20000, "every": 20000},
        ),
        "s of one core, the limit is 10.0 s: at most ",
    ),
    "simulate, 1024 recorded states": (
        request("simulate", "panda", inputs={"q": states(1024), "v": states()}, options={"dt": 1e-3, "steps": 20000}),
        "the answer takes ",
    ),
    "verify, 20000 states": (
        request("verify", "panda", inputs={"q": states(20000), "v": states(), "a": states()}),
        "verify asks for 20000 states",
    ),
    "verify as an option": (
        request("gravity_forces", "panda", inputs={"q": states(20000)}, options={"verify": True}),
        "gravity_forces asks for 20000 states: that takes about ",
    ),
    "the gait matrix of 1500 segments": (
        request("segment_matrices", ..., inputs=chain(1500)),  # type: ignore[arg-type]
        "segment_matrices asks for 1500 segments and 1 frames; the limit is 256 segments in one request",
    ),
    "the gait matrix as a method": (
        request("segment_inverse_dynamics", ..., inputs=chain(200, 1000), options={"method": "matrix"}),  # type: ignore[arg-type]
        "segment_inverse_dynamics asks for 200 segments and 1000 frames: ",
    ),
    "rheonomic, 200 x 200 states": (
        request(
            "simulate_rheonomic",
            "panda",
            inputs={
                "q": states(200, 1, n=8),
                "v": states(1, 200, n=8),
                "prescribed": array(np.zeros((2001, 1, 3))),
            },
            options={"dt": 1e-3, "steps": 1000, "every": 1000, "joints": ["panda_joint1"]},
        ),
        "simulate_rheonomic asks for 200 x 200 states and 1000 steps",
    ),
    "two axes of wrenches": (
        request(
            "inverse_dynamics",
            "panda",
            inputs={
                **dict.fromkeys(("q", "v", "a"), states()),
                "wrenches": {
                    "link": "panda_link7",
                    "force": array(np.zeros((3000, 1, 3))),
                    "torque": array(np.zeros((3000, 3))),
                },
            },
        ),
        "inverse_dynamics asks for 3000 x 3000 states",
    ),
}


@pytest.mark.parametrize("name", SEEN)
def test_expensive_requests_are_refused_before_computing(service: Service, name: str) -> None:
    message, text = SEEN[name]
    payload = msgpack.packb(message)
    tracemalloc.start()
    reply = msgpack.unpackb(service.handle(payload, perf_counter_ns()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reply["error"]["code"] == EXHAUSTED
    assert text in reply["error"]["message"]
    assert reply["error"]["path"] in ("options.steps", "inputs", "inputs.mass")
    assert peak < 8 * len(payload) + (1 << 20)  # the decoded arrays only


def test_what_a_refusal_suggests_fits(service: Service) -> None:
    for name in ("the same, one record", "verify, 20000 states", "verify as an option"):
        message, _ = SEEN[name]
        text = ask(service, message)["error"]["message"]
        fitting = int(text.split("at most ")[1].split()[0])
        row = EVERY_ROW[message["query"]]
        inputs = {key: unpack(row.inputs[key].kind, value, key) for key, value in message["inputs"].items()}
        options = checked_options(row, {k: v for k, v in message.get("options", {}).items() if k != "verify"})
        robot = service.robots["panda"]
        if "steps" in options:
            assert fitting > 0
            fits, exceeding = ({**options, "steps": n, "every": n} for n in (fitting, 2 * fitting))
            check_cost(row, predict_cost(row, robot.sizes, inputs, fits), service.limits)
            with pytest.raises(ResourceExhaustedError):
                check_cost(row, predict_cost(row, robot.sizes, inputs, exceeding), service.limits)
        elif row.name == "verify":
            fitting_inputs = {**inputs, "q": inputs["q"][:fitting]}
            check_cost(row, predict_cost(row, robot.sizes, fitting_inputs, options), service.limits)


def predicted(
    robot: Robot, row: Row, lead: tuple[int, ...], **overrides: Any
) -> tuple[Cost, dict[str, Any], dict[str, Any]]:
    """Returns the predicted cost of a row for a batch, and the request's inputs and options."""
    inputs, options = bad_inputs.good(row)
    for name, spec in row.inputs.items():
        if name in row.required and not spec.scalar and name not in ("mass", "inertia"):
            inputs[name] = bad_inputs.good_value(spec, lead)
    read = {name: unpack(row.inputs[name].kind, value, name) for name, value in inputs.items()}
    options |= overrides
    return predict_cost(row, robot.sizes, read, checked_options(row, options)), inputs, options


@pytest.mark.parametrize("name", WITH_STATES)
def test_cost_grows_with_the_batch(cart: Robot, name: str) -> None:
    row = EVERY_ROW[name]
    small, large = (predicted(cart, row, (states,))[0] for states in (1000, 100_000))
    assert small.lead == (1000,)
    assert large.states == 100_000
    for grown in ("work_s", "bytes", "reply_bytes"):
        assert 30 * getattr(small, grown) < getattr(large, grown) < 101 * getattr(small, grown), grown


@pytest.mark.parametrize("name", WITH_STATES)
def test_predicted_cost_is_actual_cost(service: Service, cart: Robot, name: str) -> None:
    """Within a factor, because machines differ and other work runs. Predicted memory must suffice."""
    row = EVERY_ROW[name]
    cost, inputs, options = predicted(cart, row, (4 if name == "verify" else 500,))
    payload = bad_inputs.asked(row, inputs, options)
    assert msgpack.unpackb(service.handle(payload, perf_counter_ns()))["ok"]  # compiles its kernels
    durations_s = []
    for _ in range(3):
        began = thread_time()
        service.handle(payload, perf_counter_ns())
        durations_s.append(thread_time() - began)
    tracemalloc.start()
    service.handle(payload, perf_counter_ns())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert min(durations_s) < 20 * cost.work_s + 0.02
    assert cost.work_s < 50 * min(durations_s) + 0.02
    assert peak < 1.5 * cost.bytes + len(payload) + (1 << 20)


@pytest.mark.parametrize("name", [name for name, row in QUERIES.items() if row.axes_option is not None])
@pytest.mark.parametrize("states", [1, 300])
def test_cost_of_world_axes_is_predicted(service: Service, cart: Robot, name: str, states: int) -> None:
    """It takes many times as long as the kernel."""
    row = EVERY_ROW[name]
    cost, inputs, options = predicted(cart, row, (states,), **{str(row.axes_option): "world"})
    payload = bad_inputs.asked(row, inputs, options)
    assert msgpack.unpackb(service.handle(payload, perf_counter_ns()))["ok"]
    durations_s = []
    for _ in range(5):
        began = thread_time()
        service.handle(payload, perf_counter_ns())
        durations_s.append(thread_time() - began)
    assert cost.work_s / 50 < min(durations_s) < 10 * cost.work_s


@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("method", ["articulated", "mass_matrix"])
def test_predicted_cost_of_a_motion_is_actual_cost(
    service: Service, cart: Robot, integrator: Integrator, method: str
) -> None:
    row = COMPUTATIONS["simulate"]
    options = {"integrator": integrator, "method": method, "steps": 20, "dt": 1e-4}
    cost, inputs, options = predicted(cart, row, (), **options)
    payload = bad_inputs.asked(row, inputs, options)
    assert msgpack.unpackb(service.handle(payload, perf_counter_ns()))["ok"]
    durations_s = []
    for _ in range(5):  # the least is without a garbage collection of other tests' objects
        began = thread_time()
        service.handle(payload, perf_counter_ns())
        durations_s.append(thread_time() - began)
    assert min(durations_s) < 20 * cost.work_s + 0.02


ONE = {"q": states(n=4), "v": states(n=4)}
MOVES = {"dt": 1e-3, "steps": 10}
OVER: dict[str, tuple[int | float, dict[str, Any], str | None]] = {
    "max_states": (99, request("gravity_forces", "scara", inputs={"q": states(100, n=4)}), "inputs"),
    "max_steps": (9, request("simulate", "scara", inputs=ONE, options=MOVES), "options.steps"),
    "max_work_s": (1e-5, request("simulate", "scara", inputs=ONE, options=MOVES), "options.steps"),
    "max_memory_bytes": (1000, request("gravity_forces", "scara", inputs={"q": states(100, n=4)}), "inputs"),
    "max_reply_bytes": (3000, request("gravity_forces", "scara", inputs={"q": states(100, n=4)}), "inputs"),
    "max_wrenches": (
        2,
        request(
            "inverse_dynamics",
            "scara",
            inputs={**ONE, "a": states(n=4), "wrenches": [{"link": "tool0"}] * 3},
        ),
        "inputs.wrenches",
    ),
    "max_contacts": (
        2,
        request("simulate", "scara", inputs={**ONE, "contacts": [{"link": "tool0"}] * 3}, options=MOVES),
        "inputs.contacts",
    ),
    "max_segments": (1, request("segment_matrices", ..., inputs=chain(2)), "inputs.mass"),  # type: ignore[arg-type]
    "max_entries": (50, request("gravity_forces", "scara", inputs={"q": [[0.0] * 4] * 20}), None),
    "max_nesting": (2, request("gravity_forces", "scara", inputs={"q": [[[0.0] * 4]]}), None),
}
ROBOT = (
    "<robot name='two'><!-- of two --><link name='a'/><link name='b'/><joint name='j' type='fixed'><parent link='a'/>"
    "<child link='b'/></joint></robot>"
)
LOAD = {"v": 1, "id": 7, "query": "load_robot", "inputs": {"urdf": ROBOT}}
OVER |= {
    name: (maximum, LOAD, "inputs.urdf")
    for name, maximum in (
        ("max_links", 1),
        ("max_urdf_bytes", 100),
        ("max_xml_elements", 6),
        ("max_xml_nesting", 2),
    )
}
OVER["max_joints"] = (
    1,
    {**LOAD, "inputs": {"urdf": ROBOT.replace("</robot>", "<link name='c'/><joint name='k' type='fixed'>"
    "<parent link='b'/><child link='c'/></joint></robot>")}},
    "inputs.urdf",
)  # fmt: skip


def test_every_limit_of_a_request_is_tried() -> None:
    page = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
    table = page.split("| `limits` | | default |")[1].split("\n\n")[0]
    assert set(OVER) == set(re.findall(r"`(max_\w+)`", table))


def test_the_example_of_a_configuration_has_the_defaults() -> None:
    settings = read_settings(Path(__file__).parents[3] / "config" / "server.yaml")
    assert settings.limits == RequestLimits()


@pytest.mark.parametrize("name", OVER)
def test_each_limit_alone_refuses(scara: Robot, name: str) -> None:
    limit, message, path = OVER[name]
    free = Service([scara], allow_load=True)
    assert ask(free, message)["ok"]
    error = ask(Service([scara], limits=RequestLimits(**{name: limit}), allow_load=True), message)["error"]
    assert (error["code"], error.get("path")) == (EXHAUSTED, path)
    assert str(limit) in error["message"]


def test_limits_beyond_what_the_wire_takes_are_refused() -> None:
    for name in ("max_entries", "max_nesting", "max_urdf_bytes"):
        with pytest.raises(ValueError, match=naming(name, getattr(RequestLimits(), name) + 1)):
            RequestLimits(**{name: getattr(RequestLimits(), name) + 1})
    with pytest.raises(ValueError, match=naming("max_work_s", "nan")):
        RequestLimits(max_work_s=float("nan"))


def test_in_process_nothing_is_limited(scara: Robot) -> None:
    motion = scara.simulate(np.zeros(4), np.zeros(4), dt=1e-6, steps=RequestLimits().max_steps + 1, every=20_001)
    assert motion.q.shape == (2, 4)


@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("batch", [(), (64,), (4096,), (20_000,)], ids=str)
@pytest.mark.parametrize("every", [1, 50, 20_000])
def test_requests_of_clients_are_far_within_the_limits(
    panda: Robot, integrator: Integrator, batch: tuple[int, ...], every: int
) -> None:
    """Clients split a motion, whatever its batch and records."""
    row, zeros = COMPUTATIONS["simulate"], np.zeros((*batch, panda.nv))
    asking = parts.simulate(
        panda.configuration, zeros, zeros, None, dt=1e-3, steps=40_000, every=every, integrator=integrator
    )
    inputs, options = next(asking)
    cost = predict_cost(row, panda.sizes, inputs, checked_options(row, options))
    check_cost(row, cost, RequestLimits())
    assert cost.work_s < 0.5 * RequestLimits().max_work_s
    assert options["steps"] * max(zeros.size, 1) <= max(parts.PART_MOVES, zeros.size)


@pytest.mark.parametrize("contacts", [0, 4])
@pytest.mark.parametrize("rigid", [False, True])
@pytest.mark.parametrize("integrator", ["rk4", "semi_implicit_euler", "stick_slip"])
@pytest.mark.parametrize("name", ["pendulum", "ur5e", "solo12"])
def test_a_client_splits_a_motion_into_requests_within_the_limits(
    name: str, integrator: str, rigid: bool, contacts: int
) -> None:
    """`stick_slip` took 200 steps of 1000 states in one request: 20 s without contacts, 221 s with contacts."""
    robot = Robot.from_urdf(URDF / f"{name}.urdf")
    points = [Contact(robot.link_names[-1], rigid=rigid)] * contacts
    q = np.broadcast_to(robot.configuration.neutral, (1000, robot.nq))
    motion = parts.simulate(
        robot.configuration, q, np.zeros(robot.nv), None, dt=1e-3, steps=MOST, every=MOST, integrator=integrator,
        contacts=points,
    )  # fmt: skip
    inputs, options = next(motion)
    row = COMPUTATIONS["simulate"]
    cost = predict_cost(row, robot.sizes, inputs, checked_options(row, options))
    check_cost(row, cost, RequestLimits())
    assert cost.work_s < 0.5 * RequestLimits().max_work_s


@pytest.mark.parametrize("batch", [(), (64,), (4096,)], ids=str)
def test_rheonomic_requests_of_clients_are_within_the_limits(panda: Robot, batch: tuple[int, ...]) -> None:
    row, zeros = COMPUTATIONS["simulate_rheonomic"], np.zeros((*batch, panda.nv - 1))
    prescribed = {panda.joint_names[0]: lambda t: (t, 1.0, 0.0)}
    asking = parts.simulate_rheonomic(panda.configuration, prescribed, zeros, zeros, None, dt=1e-3, steps=1000)
    inputs, options = next(asking)
    cost = predict_cost(row, panda.sizes, inputs, checked_options(row, options))
    check_cost(row, cost, RequestLimits())
    assert cost.work_s < 0.5 * RequestLimits().max_work_s


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_parts_that_end_between_records_are_the_whole(
    scara: Robot, integrator: Integrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request with few steps ends before the next record; the motion is the same to the last bit."""
    monkeypatch.setattr(parts, "PART_MOVES", 7 * 2 * scara.nv)
    q, v = 0.2 * np.random.default_rng(0).normal(size=(2, 2, scara.nv))
    tau = np.random.default_rng(1).normal(size=(43, scara.nv))
    arguments: dict[str, Any] = {"dt": 1e-3, "steps": 43, "every": 10, "integrator": integrator}
    asking = parts.simulate(scara.configuration, q, v, tau, **arguments)
    request_count, row = 0, COMPUTATIONS["simulate"]
    inputs, options = next(asking)
    try:
        while True:
            request_count += 1
            assert options["steps"] <= 7
            part_inputs = {name: value for name, value in inputs.items() if value is not None}
            part_options = checked_options(row, options)
            assert part_options.pop("passive") is True
            inputs, options = asking.send(parts.simulated(scara, part_inputs, part_options))
    except StopIteration as done:
        motion = done.value
    local = scara.simulate(q, v, tau, **arguments)
    assert request_count == 8  # 7 + 3 for each of four records; the three steps after the last are skipped
    np.testing.assert_array_equal(motion.q, local.q)
    np.testing.assert_array_equal(motion.v, local.v)


def ticking(*ticks_s: float) -> Callable[[], int]:
    """Returns a clock that advances by these steps."""
    times = iter(np.cumsum(ticks_s))
    return lambda: int(next(times) * 1e9)


def test_a_meter_counts_from_its_first_call() -> None:
    row, limits = COMPUTATIONS["simulate"], RequestLimits(max_work_s=2.0)
    check = meter(row, limits, clock=ticking(50.0, 0.0, 1.0, 0.9, 0.2))  # the first call reads it twice
    for share in (0.1, 0.2, 0.3):
        check(share)
    with pytest.raises(ResourceExhaustedError, match=naming("simulate", "2 s", "40%")):
        check(0.4)


def test_a_meter_stops_when_no_client_waits() -> None:
    def gone() -> None:
        raise cancelled_error()

    with pytest.raises(DeadlineExceededError, match="cancelled by its client, 50% done"):
        meter(COMPUTATIONS["simulate"], RequestLimits(), gone)(0.5)


MOST = RequestLimits().max_steps
STEPS: dict[str, dict[str, Any]] = {
    "adaptive": {"dt": 10.0, "steps": 5000},
    "implicit_midpoint": {"dt": 1e-5, "steps": MOST},
    "rk4": {"dt": 1e-5, "steps": MOST, "every": MOST},
}
MANY = {"q": states(2000, n=4), "v": states(2000, n=4)}
WILD = {"q": states(n=4), "v": array([0.0, 1e7, 0.0, 0.0])}


@pytest.mark.parametrize("integrator", ["adaptive", "implicit_midpoint", "rk4"])
def test_running_work_ends_at_its_deadline(service: Service, integrator: str) -> None:
    """The first request compiles the kernels; the second would take most of 1 s."""
    options = {"integrator": integrator, **STEPS[integrator]}
    inputs = {"adaptive": WILD, "implicit_midpoint": ONE, "rk4": MANY}[integrator]
    ask(service, request("simulate", "scara", inputs=ONE, options={**options, "steps": 1, "every": 1, "dt": 1e-3}))
    error = ask(service, request("simulate", "scara", inputs=inputs, options=options, deadline_ms=100.0))["error"]
    assert (error["code"], error["path"]) == ("DEADLINE_EXCEEDED", "deadline_ms")
    assert "% done" in error["message"]


def test_steps_that_choose_their_own_number_are_metered(scara: Robot) -> None:
    metered = Service([scara], limits=RequestLimits(max_work_s=0.1))
    options = {"dt": 10.0, "steps": 20, "integrator": "adaptive"}
    error = ask(metered, request("simulate", "scara", inputs=WILD, options=options))["error"]
    assert (error["code"], error["path"]) == (EXHAUSTED, "options.steps")
    assert error["message"].startswith("simulate has worked for 0.1 s, the limit, and is 0% done")


class Counting(Robot):
    """A robot that records the number of states of each call."""

    state_counts: list[int]

    def forward_dynamics(self, q: Any, *arguments: Any, **options: Any) -> Any:
        self.state_counts.append(int(np.prod(np.shape(q)[:-1])))
        return super().forward_dynamics(q, *arguments, **options)


def test_the_cause_is_found_from_one_state() -> None:
    """The batch is not computed again for the explanation."""
    robot = Counting.from_urdf(URDF / "scara.urdf")
    robot.state_counts = []
    tau = np.zeros((1000, 4))
    tau[707, 1] = 1.7e308
    inputs = {"q": states(1000, n=4), "v": array(np.full((1000, 4), 1e200)), "tau": array(tau)}
    service, payload = Service([robot]), msgpack.packb(request("forward_dynamics", "scara", inputs=inputs))
    with np.errstate(all="ignore"):
        job = service.accept(payload, perf_counter_ns())
        assert isinstance(job, Job)
        assert service.answer_at_once(job) is None  # then a worker finds the cause
        error = msgpack.unpackb(service.answer(job))["error"]
    assert error["code"] == "INVALID_ARGUMENT"
    assert "at state [0] of the batch" in error["message"]
    assert sorted(robot.state_counts, reverse=True) in ([1000, 1], [1000])


def test_axes_of_nothing_hide_no_product() -> None:
    assert leading([(0, 5, 1), (1, 1, 7)]) == (0, 5, 7)
    assert Cost(0.0, 0, 0, (0, 5, 7)).states == 35
    assert leading([(2,), (3,)]) == (3,)


def test_a_long_chain_is_read_in_linear_time() -> None:
    """A chain of thousands has millions of pairs of bodies; loading makes none of them."""
    links = "".join(f"<link name='l{k}'/>" for k in range(1000))
    joints = "".join(
        f"<joint name='j{k}' type='revolute'><parent link='l{k}'/><child link='l{k + 1}'/>"
        "<limit effort='1' velocity='1'/></joint>"
        for k in range(999)
    )
    robot = Robot.from_urdf(f"<robot name='long'>{links}{joints}</robot>")
    assert robot.sizes.na == 999 * 1000 // 2
    assert "_pairs" not in vars(robot.evaluator.model.rows)


def robot_of(content: str) -> str:
    return f"<robot name='a'><link name='b'/>{content}</robot>"


HOSTILE: dict[str, Callable[[], str]] = {
    "a hundred thousand links": lambda: robot_of("".join(f"<link name='l{k}'/>" for k in range(100_000))),
    "a link more than may be": lambda: robot_of("".join(f"<link name='l{k}'/>" for k in range(1000))),
    "elements inside each other": lambda: "<robot name='a'>" + "<x>" * 200_000,
    "megabytes of a name": lambda: f"<robot name='{'x' * (7 << 20)}'><link name='b'/></robot>",
    "megabytes of a tag": lambda: f"<{'a' * (7 << 20)}/>",
    "megabytes of a type": lambda: robot_of(f"<joint name='j' type='{'x' * (7 << 20)}'/>"),
    "megabytes of numbers": lambda: robot_of(
        "<link name='c'/><joint name='j' type='fixed'><parent link='b'/><child link='c'/>"
        f"<origin xyz='{'1 ' * (3 << 20)}'/></joint>"
    ),
    "a million comments": lambda: robot_of("<!---->" * 1_000_000),
    "shapes of one body": lambda: f"<mujoco><worldbody><body>{'<geom/>' * 190_000}</body></worldbody></mujoco>",
    "bodies inside each other": lambda: f"<mujoco><worldbody>{'<body>' * 100_000}",
    "classes inside each other": lambda: "<mujoco>" + "<default class='a'>" * 100_000,
    "a class each": lambda: (
        "<mujoco><default>"
        + "".join(f"<default class='c{k}'><joint/></default>" for k in range(20_000))
        + "</default></mujoco>"
    ),
    "megabytes of sizes": lambda: (
        f"<mujoco><default><geom size='{'1 ' * (3 << 20)}'/></default><worldbody><body><joint/>{'<geom/>' * 40_000}"
        "</body></worldbody></mujoco>"
    ),
    "frames far from each other": lambda: (
        "<sdf version='1.9'><model name='m'><link name='l0'/><frame name='f30000' attached_to='l0'/>"
        + "".join(f"<frame name='f{k}' attached_to='f{k + 1}'/>" for k in range(30_000))
        + "".join(
            f"<link name='l{k}'><pose relative_to='f{29_999 if k % 2 else 1}'/></link><joint name='j{k}' type='fixed'>"
            f"<parent>l{k - 1}</parent><child>l{k}</child></joint>"
            for k in range(1, 400)
        )
        + "</model></sdf>"
    ),
    "names that are nearly read": lambda: robot_of("".join(f"<jont{k} y='1'/>" for k in range(100_000))),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_descriptions_are_refused_in_bounded_time(service: Service, name: str) -> None:
    cpu_before_s = thread_time()
    reply = ask(service, {**LOAD, "inputs": {"urdf": HOSTILE[name]()}})
    assert thread_time() - cpu_before_s < 5.0  # takes tenths of a second
    assert reply["id"] == 7
    assert reply["error"]["code"] in (EXHAUSTED, "INVALID_ARGUMENT")
    assert reply["error"].get("path") == "inputs.urdf" or reply["error"]["line"] == 1
    assert len(reply["error"]["message"]) < 10_000


def test_a_comment_with_many_joints_is_read_in_linear_time() -> None:
    """It once took an hour, because each joint's line was counted from the start of the comment."""
    cpu_before_s = thread_time()
    robot = Robot.from_urdf(
        "<robot name='a'><link name='b'/><!--" + "<joint type='floating'>\n" * 300_000 + "--></robot>"
    )
    assert thread_time() - cpu_before_s < 5.0
    doubts = [note for note in robot.receipt.to_dict()["notes"] if "floating is commented out" in str(note)]
    assert 1 <= len(doubts) <= 8


def test_refusals_repeat_no_megabytes(service: Service) -> None:
    long = "x" * (5 << 20)
    for message in (
        request(long, "scara"),
        request("gravity_forces", long),
        request("gravity_forces", "scara", inputs={long: 1.0}),
        request("gravity_forces", "scara", inputs=ONE | {"q": long}),
        request("forward_dynamics", "scara", inputs={**ONE, "tau": states(n=4)}, options={"method": long}),
    ):
        payload = service.handle(msgpack.packb(message), perf_counter_ns())
        assert len(payload) < 20_000
        assert msgpack.unpackb(payload)["error"]["code"] != "INTERNAL"


def test_a_client_gets_the_refusal_of_a_long_robot_at_once(tcp_server: Server) -> None:
    """Once the refusal was lost, and the client waited until its time limit."""
    with Client(tcp_server.endpoints[0], timeout_s=240.0) as client:
        with pytest.raises(ResourceExhaustedError, match=f"is over the limit of {8 << 20}"):
            client.load_robot(robot_of(" " * (9 << 20)))
        assert client.robot("pendulum").nq == 1


def test_a_refusal_names_what_would_fit(tcp_server: Server) -> None:
    """A client that requests a whole motion at once."""
    bare = Bare(tcp_server.endpoints[0])
    inputs = {"q": states(100, 1, n=1), "v": states(1, 100, n=1)}
    try:
        error = bare.ask(request("simulate", inputs=inputs, options={"dt": 1e-3, "steps": 20_000, "every": 20_000}))
        assert error["error"]["code"] == EXHAUSTED
        fitting = int(error["error"]["message"].split("at most ")[1].split()[0])
        assert 100 < fitting < 20_000
        assert "the last state in the next" in error["error"]["message"]
        few_steps = {"dt": 1e-3, "steps": 10, "every": 10}
        assert bare.ask(request("simulate", inputs=inputs, options=few_steps))["ok"]
    finally:
        bare.close()


@pytest.mark.parametrize("dtype", ["|i1", "<f8"])
def test_errors_in_large_arrays_take_little_memory(service: Service, dtype: str) -> None:
    """Small integers expand by a factor of eight, indices of entries that are not finite by sixteen."""
    count = (8 << 20) + 8 if dtype == "|i1" else 1 << 20
    data = bytes(count) if dtype == "|i1" else np.full(count, np.nan).tobytes()
    shape = [1] * 14 + [count // 4, 4]
    payload = msgpack.packb(
        request("gravity_forces", "scara", inputs={"q": {"dtype": dtype, "shape": shape, "data": data}})
    )
    tracemalloc.start()
    reply = msgpack.unpackb(service.handle(payload, perf_counter_ns()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (reply["error"]["code"], reply["error"]["path"]) == (
        EXHAUSTED if dtype == "|i1" else "INVALID_ARGUMENT",
        "inputs.q",
    )
    assert peak < 3 * len(payload)

"""Overlays over the wire: the bits of the robot in process, robots that are served otherwise, and that expire."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import msgpack
import numpy as np
import pytest

from dyn_service import AsyncClient, Client, Robot, Server
from dyn_service.api.cost import overlay_lead
from dyn_service.api.queries import QUERIES, Inertial, JointNumbers, Overlay, Payload
from dyn_service.cli import calling
from dyn_service.errors import (
    DynError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnimplementedError,
)
from dyn_service.service.protocol.inputs import pack_overlay, unpack_overlay
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.server.administration.access import Caller
from dyn_service.service.server.administration.metrics import Metrics
from dyn_service.service.server.answering.registry import Registry, Served
from dyn_service.service.server.answering.service import Service
from dyn_service.service.server.dispatcher import Dispatcher
from dyn_service.service.server.workers.pool import ThreadWorker
from tests.conftest import URDF
from tests.overlays import State, drawn, numbers
from tests.phrases import unnamed
from tests.service.conftest import request

NAME = "double_pendulum"


@pytest.fixture(scope="module")
def robot() -> Robot:
    return Robot.from_urdf(URDF / f"{NAME}.urdf")


@pytest.fixture(scope="module")
def edit(robot: Robot) -> Overlay:
    return drawn(robot, 3).overlay


def state(robot: Robot) -> tuple[Any, ...]:
    return tuple(np.random.default_rng(0).normal(size=(3, robot.nv)))


@pytest.fixture(scope="module", params=[0, 1], ids=["thread", "worker process"])
def server(request: pytest.FixtureRequest, robot: Robot) -> Iterator[Server]:
    with Server([robot], endpoints=["tcp://127.0.0.1:0"], allow_load=True, workers=request.param) as serving:
        yield serving


def same(actual: Any, expected: Any) -> None:
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array)


@pytest.mark.parametrize("query", ["inverse_dynamics", "constraint_forces", "jacobians"])
def test_the_same_bits_from_both_clients(server: Server, robot: Robot, edit: Overlay, query: str) -> None:
    row, state = QUERIES[query], State(robot, 1)
    arguments = state.inputs(row)
    ours = numbers(robot.evaluate(query, {**arguments, "overlay": edit}), row)
    with Client(server.endpoints[0], timeout_s=120.0) as client:
        answer = getattr(client.robot(NAME), query)(**arguments, overlay=edit)
        same({name: answer if row.output else getattr(answer, name) for name in ours}, ours)

    async def awaited() -> Any:
        async with AsyncClient(server.endpoints[0], timeout_s=120.0) as other:
            return await getattr(await other.robot(NAME), query)(**arguments, overlay=edit)

    answer = asyncio.run(awaited())
    same({name: answer if row.output else getattr(answer, name) for name in ours}, ours)


def test_remote_robots_with_an_overlay(server: Server, robot: Robot, edit: Overlay) -> None:
    q, v, a = state(robot)
    link, joint = robot.link_names[-1], robot.joint_names[1]
    batch_overlay = Overlay(Payload(link, [0.5, 1.0]), gravity=(0.0, 0.0, -1.6))
    with Client(server.endpoints[0], timeout_s=120.0) as client:
        for overlay in (edit, batch_overlay):
            remote, local = client.robot(NAME).with_timeout(60.0).overlaid(overlay), robot.overlaid(overlay)
            same(
                vars(remote.constraint_forces(q, v, a)),
                numbers(local.evaluate("constraint_forces", {"q": q, "v": v, "tau": a}), QUERIES["constraint_forces"]),
            )
            np.testing.assert_array_equal(
                remote.with_timeout(50.0).imu(q, v, a).specific_force, local.imu(q, v, a).specific_force
            )
            np.testing.assert_array_equal(remote.gravity, local.gravity)
            motion, expected = (overlaid.simulate(q, v, dt=1e-3, steps=7, every=2) for overlaid in (remote, local))
            np.testing.assert_array_equal(motion.q, expected.q)
        answers = remote.evaluate(["mass_matrix", "energy"], q=q, v=v)
        np.testing.assert_array_equal(
            answers["mass_matrix"], local.evaluate(["mass_matrix", "energy"], q=q, v=v)["mass_matrix"]
        )
        assert client.robot(NAME).overlaid(Overlay(locked=[joint])).free.tolist() == [1.0, 0.0]
        remote.close()
        assert client.health()["status"] == "ok"
        with pytest.raises(InvalidArgumentError, match="the robot has an overlay already: omit it"):
            remote.mass_matrix(q, overlay=edit)
        with pytest.raises(InvalidArgumentError, match="put all numbers into one"):
            remote.overlaid(edit)
        with pytest.raises(InvalidArgumentError, match=r"must be an Overlay, found dict .*; use Overlay\(\*\*"):
            remote.overlaid({"gravity": [0, 0, 0]})  # type: ignore[arg-type]
        with pytest.raises(UnimplementedError, match="dynamic_parameters takes no overlay"):
            remote.dynamic_parameters()

    async def awaited() -> Any:
        async with AsyncClient(server.endpoints[0], timeout_s=120.0) as other:
            return await (await other.robot(NAME)).overlaid(edit).inverse_dynamics(q, v, a)

    np.testing.assert_array_equal(asyncio.run(awaited()), robot.inverse_dynamics(q, v, a, overlay=edit))


def test_batches_and_motions_and_verification(server: Server, robot: Robot) -> None:
    q, v, a = state(robot)
    link = robot.link_names[-1]
    batch_overlay = Overlay(
        Payload(link, [0.5, 1.0, 2.0]), joints={robot.joint_names[0]: JointNumbers(damping=[[1.0], [2.0]])}
    )
    with Client(server.endpoints[0], timeout_s=120.0) as client:
        remote = client.robot(NAME)
        tau = remote.inverse_dynamics(q, v, a, overlay=batch_overlay)
        assert tau.shape == (2, 3, 2)
        np.testing.assert_array_equal(tau, robot.inverse_dynamics(q, v, a, overlay=batch_overlay))
        local, from_server = (
            asked_robot.simulate(q, v, dt=1e-3, steps=7, every=2, overlay=batch_overlay)
            for asked_robot in (robot, remote)
        )
        assert local.q.shape == (2, 3, 4, 2)
        np.testing.assert_array_equal(from_server.q, local.q)
        by_function = [
            asked_robot.simulate(q, v, lambda t, q, v: -v, dt=1e-3, steps=3, overlay=batch_overlay)
            for asked_robot in (robot, remote)
        ]
        np.testing.assert_array_equal(by_function[1].q, by_function[0].q)
        residuals = remote.verify(q, v, a, overlay=batch_overlay)
        assert max(float(x.max()) for x in residuals.values()) < 1e-11


FAULTS: list[tuple[Overlay, type[DynError], str]] = [
    (Overlay(links={"hand": Inertial(1.0)}), NotFoundError, "inputs.overlay.links.hand"),
    (Overlay(Payload("hand", 1.0)), NotFoundError, "inputs.overlay.payloads[0].link"),
    (Overlay(locked=["elbow"]), NotFoundError, "inputs.overlay.locked[0]"),
    (Overlay(joints={"elbow": JointNumbers(1.0)}), NotFoundError, "inputs.overlay.joints.elbow"),
]


@pytest.mark.parametrize(("overlay", "kind", "path"), FAULTS, ids=[path for _, _, path in FAULTS])
def test_faults_name_their_place(
    server: Server, robot: Robot, overlay: Overlay, kind: type[DynError], path: str
) -> None:
    q, v, a = state(robot)
    with Client(server.endpoints[0], timeout_s=240.0) as client:
        remote = client.robot(NAME)
        for ask in (
            lambda: remote.inverse_dynamics(q, v, a, overlay=overlay),
            lambda: remote.simulate(q, v, dt=1e-3, steps=1, overlay=overlay),
            lambda: client.overlay_robot(NAME, overlay, name="other"),
        ):
            with pytest.raises(kind) as excinfo:
                ask()
            assert excinfo.value.path == path


def test_what_is_packed_is_unpacked() -> None:
    rng = np.random.default_rng(0)
    whole = Overlay(
        [Payload("a", rng.uniform(1, 2, 3), rng.normal(size=(2, 1, 3)))],
        {"b": Inertial(mass=1.0, inertia=np.eye(3)), "c": Inertial(com=[0, 0, 1])},
        {"j": JointNumbers(damping=1, rest=-0.5, friction_width=np.float64(0.1))},
        ("k",),
        (0, 0, -1),
    )
    for overlay in (whole, Overlay()):
        packed = msgpack.unpackb(msgpack.packb(json_of(pack_overlay(overlay, "inputs.overlay"))))
        unpacked = unpack_overlay(packed, "inputs.overlay")
        assert unpacked.locked == overlay.locked
        assert set(unpacked.links) == set(overlay.links)
        assert overlay_lead(unpacked) == overlay_lead(overlay)
        packed_twice = pack_overlay(unpacked, "inputs.overlay")
        assert json_of(packed_twice) == json_of(pack_overlay(overlay, "inputs.overlay"))


def json_of(value: Any) -> Any:
    """A packed value in plain ones, numbers without axes as arrays have them."""
    if isinstance(value, dict):
        return {key: json_of(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [json_of(entry) for entry in value]
    if isinstance(value, float):
        value = np.array(value)
    if isinstance(value, np.ndarray):
        return {"dtype": "<f8", "shape": list(value.shape), "data": value.tobytes()}
    if hasattr(value, "dtype"):
        return {"dtype": value.dtype, "shape": list(value.shape), "data": bytes(value.data)}
    return value


def test_cost_is_foretold_of_all_robots(robot: Robot) -> None:
    """So many robots are as many states, whatever the state's own axes."""
    service = Service([robot], limits=RequestLimits(max_states=100))
    q, v, a = (x.tolist() for x in state(robot))
    for query, query_inputs in (("inverse_dynamics", {"a": a}), ("verify", {"a": a})):
        batch_overlay = {"payloads": [{"link": robot.link_names[-1], "mass": [1.0] * 101}]}
        message = request(query, NAME, inputs={"q": q, "v": v, **query_inputs, "overlay": batch_overlay})
        reply = msgpack.unpackb(service.handle(msgpack.packb(message), perf_counter_ns()))
        assert reply["error"]["code"] == "RESOURCE_EXHAUSTED"
        assert "101 states" in reply["error"]["message"]


def test_never_a_nan_in_an_answer(robot: Robot) -> None:
    """Numbers of the largest size: an answer that is not finite is an error that says so."""
    service = Service([robot])
    q, v, a = (x.tolist() for x in state(robot))
    for mass, inertia in ((1e300, None), (1e-300, None), (1.0, 1e308), (1e200, 1e-200)):
        link: dict[str, Any] = {
            "mass": mass,
            **({} if inertia is None else {"inertia": (np.eye(3) * inertia).tolist()}),
        }
        overlay = {"links": {robot.link_names[-1]: link}, "joints": {robot.joint_names[0]: {"armature": 1e300}}}
        for query, third in (("inverse_dynamics", "a"), ("forward_dynamics", "tau"), ("energy", None)):
            inputs = {"q": q, "v": v, "overlay": overlay, **({third: a} if third else {})}
            reply = msgpack.unpackb(
                service.handle(msgpack.packb(request(query, NAME, inputs=inputs)), perf_counter_ns())
            )
            if reply["ok"]:
                for value in reply["outputs"].values():
                    assert np.isfinite(np.frombuffer(value["data"])).all()
            else:
                assert reply["error"]["code"] in ("FAILED_PRECONDITION", "INVALID_ARGUMENT")


@pytest.mark.parametrize(
    ("query", "joint"),
    [("energy", {"stiffness": 1e308, "rest": 1e308}), ("forward_dynamics", {"stiffness": 1e308, "rest": 1e10})],
)
def test_numbers_of_an_overlay_that_overflow_are_said_to_be_its_own(robot: Robot, query: str, joint: Any) -> None:
    """Not the robot's, which it cannot help; where the robot has no answer without it either, it is the robot."""
    service = Service([robot])
    q, v, tau = (x.tolist() for x in state(robot))
    inputs = {"q": q, "v": v, **({"tau": tau} if query == "forward_dynamics" else {})}
    overlay_map = {"joints": {robot.joint_names[0]: joint}}
    with np.errstate(all="ignore"):
        error = ask(service, msgpack.packb(request(query, NAME, inputs={**inputs, "overlay": overlay_map})))["error"]
    assert (error["code"], error["path"]) == ("INVALID_ARGUMENT", "inputs.overlay")
    assert unnamed(error["message"], "overlay", "numbers") == []
    heavy = Service([robot.overlaid(Overlay(joints={robot.joint_names[0]: JointNumbers(**joint)}))])
    light = {"payloads": [{"link": robot.link_names[-1], "mass": 1.0}]}
    with np.errstate(all="ignore"):
        error = ask(heavy, msgpack.packb(request(query, NAME, inputs={**inputs, "overlay": light})))["error"]
    assert (error["code"], error.get("path")) == ("FAILED_PRECONDITION", None)


def test_a_robot_is_served_once_more(server: Server, robot: Robot, edit: Overlay) -> None:
    q, v, a = state(robot)
    with Client(server.endpoints[0], timeout_s=120.0) as client:
        other = client.overlay_robot(NAME, edit, name="other")
        assert client.list_robots() == [NAME, "other"]
        view = robot.overlaid(edit, name="other")
        assert other.fingerprint == view.fingerprint != robot.fingerprint
        assert client.robot("other").description.passive == view.description.passive
        assert other.joint_names == robot.joint_names
        for _ in range(2):
            assert (other.inverse_dynamics(q, v, a) == view.inverse_dynamics(q, v, a)).all()
        motion = other.simulate(q, v, dt=1e-3, steps=3)
        assert np.array_equal(motion.q, view.simulate(q, v, dt=1e-3, steps=3).q)
        second = client.overlay_robot(NAME, edit, name="other")
        assert second.fingerprint == other.fingerprint
        with pytest.raises(FailedPreconditionError, match="unload the other first"):
            client.overlay_robot(NAME, Overlay(), name="other")
        heavier = client.overlay_robot("other", Overlay(Payload(robot.link_names[-1], 1.0)), name="more")
        expected = view.with_payload(Payload(robot.link_names[-1], 1.0)).gravity_forces(q)
        assert (heavier.gravity_forces(q) == expected).all()
        served = server.service.registry.served
        assert (
            served["more"].robot.evaluator.library
            is served["other"].robot.evaluator.library
            is served[NAME].robot.evaluator.library
        )
        for name in ("other", "more"):
            client.unload_robot(name)
        with pytest.raises(NotFoundError, match="there is no robot 'other'"):
            client.robot("other")

    async def awaited() -> tuple[str, ...]:
        async with AsyncClient(server.endpoints[0], timeout_s=240.0) as client:
            third = await client.overlay_robot(NAME, edit, name="third", expires_s=100.0)
            await client.unload_robot("third")
            return third.name, third.fingerprint

    assert asyncio.run(awaited()) == ("third", robot.overlaid(edit, name="third").fingerprint)


def overlaying(overlay: Any, name: Any = "other", **options: Any) -> bytes:
    packed: bytes = msgpack.packb(
        request("overlay_robot", NAME, inputs={"overlay": overlay, "name": name}, options=options or ...)
    )
    return packed


def ask(service: Service, payload: bytes) -> Any:
    return msgpack.unpackb(service.handle(payload, perf_counter_ns()))


class Clock:
    """Time that stands until it is moved."""

    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> int:
        return int(self.s * 1e9)


def test_who_is_unused_expires(robot: Robot, caplog: pytest.LogCaptureFixture) -> None:
    """On a clock that the test moves: any use keeps the overlay, also on the fast path; the audit log has its end."""
    service, clock = Service([robot], allow_load=True), Clock()
    service.registry._clock = clock
    light = {"payloads": [{"link": robot.link_names[-1], "mass": 1.0}]}
    assert ask(service, overlaying(light, expires_s=10.0))["ok"]
    assert ask(service, overlaying(light, "stays"))["ok"]
    q = np.zeros(robot.nv)
    message = msgpack.packb(request("gravity_forces", "other", inputs={"q": q.tolist()}))
    for _ in range(3):
        clock.s += 9.0
        service.expire(clock())
        assert ask(service, message)["ok"]
    plan = service.registry.served["other"].plans["gravity_forces"]
    assert plan.fast_path is not None
    clock.s += 9.0
    plan.fast_path.used_ns = clock()  # as the fast path does
    clock.s += 9.0
    service.expire(clock())
    assert "other" in service.registry.served
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="dyn.audit"):
        clock.s += 1.5
        service.expire(clock())
    assert set(service.registry.served) == {NAME, "stays"}
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name.endswith("audit")]
    assert [(line["query"], line["robot"], line["outcome"]) for line in lines] == [("unload_robot", "other", "ok")]
    error = ask(service, message)["error"]
    assert error["code"] == "NOT_FOUND"
    assert unnamed(error["message"], "'other'", "expired", "10 s") == []
    assert ask(service, overlaying(light))["ok"]
    assert ask(service, message)["ok"]
    clock.s += 1e6
    service.expire(clock())
    assert "other" in service.registry.served  # loading it again keeps it


def test_who_expires_is_looked_for_when_one_may() -> None:
    """A turn of the server costs nothing for robots that may not have expired yet, however many there are."""
    robot, clock = Robot.from_urdf(URDF / f"{NAME}.urdf"), Clock()
    registry = Registry([robot], 64, Metrics(), clock)
    lookups: list[str] = []

    class Counted(Served):
        @property
        def expires_ns(self) -> float:
            lookups.append(self.robot.name)
            return super().expires_ns

    for k, expires_s in enumerate((10.0, 20.0)):
        registry.add(robot.overlaid(Overlay(), name=str(k)), expires_s)
        registry.served[str(k)].__class__ = Counted
    for _ in range(5):
        clock.s += 1.0
        assert registry.expire(clock()) == []
    first = len(lookups)
    assert first <= 4
    clock.s += 6.0
    assert [served.robot.name for served in registry.expire(clock())] == ["0"]
    lookup_count = len(lookups)
    for _ in range(5):
        clock.s += 1.0
        registry.get("1")
        assert registry.expire(clock()) == []
    assert len(lookups) == lookup_count
    registry.add(robot.overlaid(Overlay(), name="2"), 1e-3)
    clock.s += 1.0
    assert [served.robot.name for served in registry.expire(clock())] == ["2"]
    clock.s += 25.0
    assert [served.robot.name for served in registry.expire(clock())] == ["1"]


def test_who_is_worked_on_is_used(robot: Robot) -> None:
    """A motion takes longer than an unused robot stays: it stays through it, and as long again from its end."""
    service, clock = Service([robot], allow_load=True), Clock()
    service.registry._clock = clock
    assert ask(service, overlaying({}, expires_s=10.0))["ok"]
    worker = ThreadWorker(lambda: None, service)
    dispatcher = Dispatcher(service, worker)
    q = np.zeros(robot.nv).tolist()
    motion = request("simulate", "other", inputs={"q": q, "v": q}, options={"dt": 1e-3, "steps": 1})
    assert dispatcher.answer(((None, "peer"), False), msgpack.packb(motion), perf_counter_ns()) is None
    for _ in range(3):
        clock.s += 9.0
        service.expire(clock(), dispatcher.robots_in_use)
    assert "other" in service.registry.served
    assert worker.work_one()
    clock.s += 9.0
    (done,) = dispatcher.finished()
    assert msgpack.unpackb(done[1])["ok"]
    clock.s += 9.0
    service.expire(clock(), dispatcher.robots_in_use)
    assert "other" in service.registry.served
    clock.s += 2.0
    service.expire(clock(), dispatcher.robots_in_use)
    assert "other" not in service.registry.served


def test_a_computation_in_a_worker_is_a_use(server: Server, robot: Robot) -> None:
    """The serving process has not read it, and notes whose it was."""
    q, v, _ = state(robot)
    with Client(server.endpoints[0], timeout_s=120.0) as client:
        other = client.overlay_robot(NAME, Overlay(), name="moved", expires_s=1e5)
        served = server.service.registry.served["moved"]
        for ask_it in (
            lambda: other.simulate(q, v, dt=1e-3, steps=1),
            lambda: other.gravity_forces(np.zeros((4096, robot.nv))),
        ):
            served.used_ns = used_before_ns = served.used_ns - 10**9
            ask_it()
            assert served.used_ns > used_before_ns
        client.unload_robot("moved")


def test_asked_for_again_it_stays_as_long_as_was_said_last(server: Server) -> None:
    """A worker that knows it already says so as one that makes it."""
    with Client(server.endpoints[0], timeout_s=120.0) as client:
        for expires_s in (1e5, None, 2e5):
            client.overlay_robot(NAME, Overlay(), name="again", expires_s=expires_s)
            assert server.service.registry.served["again"].expires_s == expires_s
        client.unload_robot("again")


def test_the_short_way_is_a_use(robot: Robot) -> None:
    service = Service([robot], allow_load=True)
    assert ask(service, overlaying({}, expires_s=1e3))["ok"]
    with_arrays = {"dtype": "<f8", "shape": [robot.nv], "data": np.zeros(robot.nv).tobytes()}
    message = msgpack.packb(request("gravity_forces", "other", inputs={"q": with_arrays}))
    assert ask(service, message)["ok"]
    plan = service.registry.served["other"].plans["gravity_forces"]
    time_before_ns = perf_counter_ns()
    assert service.answer_single_state(message, perf_counter_ns()) is not None
    assert plan.used_ns >= time_before_ns


@pytest.mark.parametrize(
    ("payload", "code", "path"),
    [
        (overlaying([]), "INVALID_ARGUMENT", "inputs.overlay"),
        (overlaying({"link": {}}), "INVALID_ARGUMENT", "inputs.overlay"),
        (overlaying({"payloads": [{"link": "tip", "mass": [1.0, 2.0]}]}), "INVALID_ARGUMENT", "inputs.overlay"),
        (overlaying({"locked": ["elbow"]}), "NOT_FOUND", "inputs.overlay.locked[0]"),
        (overlaying({}, 3), "INVALID_ARGUMENT", "inputs.name"),
        (overlaying({}, ""), "INVALID_ARGUMENT", "inputs.name"),
        (overlaying({}, "n" * 257), "INVALID_ARGUMENT", "inputs.name"),
        (overlaying({}, expires_s=0), "INVALID_ARGUMENT", "options.expires_s"),
        (overlaying({}, expires_s="1"), "INVALID_ARGUMENT", "options.expires_s"),
        (overlaying({}, NAME), "FAILED_PRECONDITION", None),
    ],
)
def test_what_is_wrong_is_refused(robot: Robot, payload: bytes, code: str, path: str | None) -> None:
    service = Service([robot], allow_load=True)
    error = ask(service, payload)["error"]
    assert (error["code"], error.get("path")) == (code, path)


def test_limits_and_rights(robot: Robot) -> None:
    """Overlays count among the robots; a caller that may not load may not overlay."""
    service = Service([robot], allow_load=True, limits=RequestLimits(max_robots=2))
    assert ask(service, overlaying({}, "a"))["ok"]
    assert ask(service, overlaying({}, "b"))["error"]["code"] == ResourceExhaustedError.code
    assert ask(Service([robot]), overlaying({}))["error"]["code"] == PermissionDeniedError.code
    from dyn_service.service.protocol.messages import Role

    reply = service.handle(overlaying({}, "c"), perf_counter_ns(), Caller("key reader", Role.QUERY))
    assert msgpack.unpackb(reply)["error"]["code"] == PermissionDeniedError.code


def test_on_the_command_line(server: Server, robot: Robot, tmp_path: Path) -> None:
    """`dyn call` takes overlays as JSON."""
    q = [0.3, -0.2]
    overlay = {"payloads": [{"link": robot.link_names[-1], "mass": 2.0}]}
    values = calling.read_values(json.dumps({"q": q, "overlay": overlay}), [])
    with Client(server.endpoints[0], timeout_s=120.0) as client:
        answer = calling._answer(client, QUERIES["gravity_forces"], NAME, values)
    assert answer["forces"] == robot.with_payload(Payload(robot.link_names[-1], 2.0)).gravity_forces(q).tolist()


def test_a_payload_in_place_of_an_overlay_is_refused_with_the_way_to_pass_it(server: Server, robot: Robot) -> None:
    q, v, a = state(robot)
    payload: Any = Payload(robot.link_names[-1], 1.0)
    with pytest.raises(InvalidArgumentError, match=r"an Overlay, found Payload\(.*; use Overlay\(payloads=\.\.\)$"):
        robot.inverse_dynamics(q, v, a, overlay=payload)
    with (
        Client(server.endpoints[0]) as client,
        pytest.raises(InvalidArgumentError, match=r"an Overlay, found Payload; use Overlay\(payloads=\.\.\)$"),
    ):
        client.robot(NAME).inverse_dynamics(q, v, a, overlay=payload)

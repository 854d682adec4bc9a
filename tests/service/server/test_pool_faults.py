"""Workers under faults, and clients that leave: waiting requests are answered, and no work is wasted."""

from __future__ import annotations

import errno
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import msgpack
import numpy as np
import pytest

from dyn_service import QUERIES, Client, Robot, Server
from dyn_service.engine.evaluator import Evaluator
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.server.answering.jobs import CompileClock
from dyn_service.service.server.workers.pipes import map_received
from tests.conftest import ROOT, URDF
from tests.service.conftest import WAIT_S, Bare, array, eventually, request
from tests.service.server.pools import handles_of, pool_of, serving, simulate, workers_of
from tests.service.server.raw_peers import gauges

BATCH = request("mass_matrix", inputs={"q": array(np.zeros((12_000, 1)))})


def load(name: str, number: int = 1, **fields: Any) -> dict[str, Any]:
    text = (URDF / "pendulum.urdf").read_text().replace('name="pendulum"', f'name="{name}"', 1)
    return {"v": 1, "id": number, "query": "load_robot", "inputs": {"urdf": text}, **fields}


# waiting requests do not slow down control loops


def test_answers_take_the_same_time_with_many_waiting(bare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts how many of 127 waiting requests are examined while 200 single states are answered."""
    lookups, within_ns = [0], CompileClock.within_ns

    def counted(clock: CompileClock, begin_ns: int, end_ns: int) -> int:
        lookups[0] += 1
        return within_ns(clock, begin_ns, end_ns)

    limits = RequestLimits(max_work_s=1000.0, max_worker_s=600.0)
    with serving(limits, workers=2) as server:
        quick, busy = bare(server.endpoints[0]), bare(server.endpoints[0])
        assert quick.ask(request())["ok"]
        eventually(lambda: server.service.registry.served["pendulum"].plans["gravity_forces"].fast_path is not None)
        for number in range(128):
            busy.send(simulate(number, steps=20_000, states=500, compile_wait_ms=6e4, deadline_ms=6e5))
        eventually(lambda: gauges(server)["waiting"] == 128)
        monkeypatch.setattr(CompileClock, "within_ns", counted)
        for _ in range(200):
            assert quick.ask(request())["ok"]
        assert lookups[0] <= 10  # those started meanwhile


# loaded robots


@pytest.mark.parametrize("name", ["add", "load_kernel"])
def test_a_failed_load_is_answered_and_frees_its_place(name: str, bare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    with serving(RequestLimits(max_waiting=2), workers=1) as server:
        peer: Bare = bare(server.endpoints[0])
        with monkeypatch.context() as patch:
            patch.setattr(server.service.registry if name == "add" else Evaluator, name, fail)
            for number in range(4):
                reply = peer.ask(load(f"another{number}", number))
                assert reply["id"] == number
                if name == "add":
                    assert reply["error"]["code"] == "INTERNAL"
                else:  # the workers have it
                    assert reply["ok"]
        eventually(lambda: not gauges(server)["waiting"])
        assert peer.ask(load("another0"))["ok"]


def test_a_robot_that_is_unloaded_while_it_is_added_was_loaded(
    single: Server, bare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = single.service.registry
    add = registry.add

    def add_and_remove(robot: Robot, expires_s: float | None) -> None:
        add(robot, expires_s)
        registry.remove(robot.name)

    monkeypatch.setattr(registry, "add", add_and_remove)
    peer: Bare = bare(single.endpoints[0])
    for number in range(3):
        reply = peer.ask(load("another0", number))
        assert (reply["id"], reply["ok"]) == (number, True)


def test_a_load_keeps_its_deadline_and_is_answered_once(
    single: Server, bare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_entered, gate = threading.Event(), threading.Event()
    registry = single.service.registry
    add = registry.add

    def add_later(robot: Robot, expires_s: float | None) -> None:
        is_entered.set()
        assert gate.wait(WAIT_S)
        add(robot, expires_s)

    monkeypatch.setattr(registry, "add", add_later)
    peer: Bare = bare(single.endpoints[0])
    peer.send(load("another0", 1, deadline_ms=6e4))
    assert is_entered.wait(WAIT_S)
    with monkeypatch.context() as patch:  # two minutes later
        patch.setattr("dyn_service.service.server.app.perf_counter_ns", lambda: perf_counter_ns() + 120 * 10**9)
        error = peer.receive()["error"]
    assert (error["code"], error["path"]) == ("DEADLINE_EXCEEDED", "deadline_ms")
    assert not gauges(single)["waiting"]
    gate.set()
    eventually(lambda: "another0" in registry.served)
    reply = peer.ask(BATCH | {"id": 2})  # no second reply to the first arrives before it
    assert (reply["id"], reply["ok"]) == (2, True)


# clients that leave


@pytest.mark.slow
def test_work_stops_after_a_compilation_if_its_client_left(
    bare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYN_SERVICE_CACHE", str(tmp_path))  # nothing is there
    with serving(RequestLimits(max_work_s=1000.0), workers=1, name="ur5e") as server:
        eventually(lambda: len(workers_of(server)) == 1)
        (worker_before,) = workers_of(server)
        leaver: Bare = bare(server.endpoints[0])
        state = array(np.zeros((2000, 6)))
        options = {"dt": 1e-6, "steps": 20_000, "every": 20_000}
        leaver.send(request("simulate", "ur5e", inputs={"q": state, "v": state}, options=options))
        kernels: list[str] = []
        eventually(lambda: kernels.extend(worker.making for worker in handles_of(server) if worker.making) or kernels)
        leaver.close()
        eventually(lambda: not gauges(server)["connections"])
        eventually(lambda: not gauges(server)["waiting"])
        eventually(lambda: handles_of(server)[0].is_idle)
        assert workers_of(server) == [worker_before]  # it gave up
        assert server.service.metrics.traffic.workers_lost == 0
        query, _, method = kernels[0].partition(" ")[0].partition("-")
        fresh, row = Robot.from_urdf(URDF / "ur5e.urdf"), QUERIES[query]
        assert fresh.evaluator.load_kernel(row, method or next(iter(row.kernels)))  # for the next client


# limits of time and memory


@pytest.mark.slow
def test_a_deadline_is_kept_while_a_compilation_continues(
    bare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYN_SERVICE_CACHE", str(tmp_path))  # nothing is there
    monkeypatch.setattr("dyn_service.service.server.workers.pool._STOPPED_CHECKS", math.inf)
    with serving(workers=1, name="ur5e") as server:
        peer = bare(server.endpoints[0])
        eventually(lambda: len(workers_of(server)) == 1)
        (worker,), (process,) = handles_of(server), workers_of(server)
        zeros = dict.fromkeys(("q", "v", "tau"), array(np.zeros(6)))
        peer.send(request("forward_dynamics", "ur5e", inputs=zeros, deadline_ms=6e4))
        eventually(lambda: worker.making)
        os.kill(process, signal.SIGSTOP)  # so that it never finishes
        with monkeypatch.context() as patch:  # a minute later
            patch.setattr("dyn_service.service.server.app.perf_counter_ns", lambda: perf_counter_ns() + 61 * 10**9)
            error = peer.receive()["error"]
        assert (error["code"], error["path"]) == ("DEADLINE_EXCEEDED", "deadline_ms")
        assert not gauges(server)["waiting"]
        assert worker.making
        assert worker in handles_of(server)
        os.kill(process, signal.SIGCONT)
        eventually(lambda: worker.is_idle)
        fresh = Robot.from_urdf(URDF / "ur5e.urdf")
        assert fresh.evaluator.load_kernel(QUERIES["forward_dynamics"], "articulated")
        reply = peer.ask(request("forward_dynamics", "ur5e", id=2, inputs=zeros))  # one reply each
        assert (reply["id"], reply["ok"]) == (2, True)
        assert server.service.metrics.traffic.workers_lost == 0


@pytest.mark.slow
def test_requests_that_wait_less_than_a_worker_needs_to_begin_get_their_kernel(
    bare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that asks with short deadlines, on a machine too busy for the worker to begin within them."""
    monkeypatch.setenv("DYN_SERVICE_CACHE", str(tmp_path))  # nothing is there
    monkeypatch.setattr("dyn_service.service.server.workers.pool._STOPPED_CHECKS", math.inf)
    with serving(workers=1) as server:
        peer = bare(server.endpoints[0])
        eventually(lambda: len(workers_of(server)) == 1)
        (worker,), (process,) = handles_of(server), workers_of(server)
        plan = server.service.registry.served["pendulum"].plans["mass_matrix"]
        os.kill(process, signal.SIGSTOP)  # it runs again when the deadline is past
        while worker.task is None:  # on a busy machine the request may be refused before it is given to the worker
            error = peer.ask(request("mass_matrix", inputs={"q": array(np.zeros(1))}, deadline_ms=100.0))["error"]
            assert (error["code"], error["path"]) == ("DEADLINE_EXCEEDED", "deadline_ms")
        assert "was stopped" in error["message"]
        assert not gauges(server)["waiting"]
        os.kill(process, signal.SIGCONT)
        eventually(lambda: plan.has_kernel({}, {}))  # no further request is needed
        eventually(lambda: worker.is_idle)  # its answer is dropped
        assert server.service.metrics.traffic.workers_lost == 0
        assert peer.ask(request("mass_matrix", id=2, inputs={"q": array(np.zeros(1))}))["id"] == 2  # one reply each


def test_a_request_refused_for_its_deadline_and_by_its_worker_is_answered_once(
    bare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its robot was unloaded, and its deadline passed, before the worker read it."""
    monkeypatch.setenv("DYN_SERVICE_CACHE", str(tmp_path))  # nothing is there
    monkeypatch.setattr("dyn_service.service.server.workers.pool._STOPPED_CHECKS", math.inf)
    with serving(workers=1) as server:
        peer = bare(server.endpoints[0])
        eventually(lambda: len(workers_of(server)) == 1)
        (worker,), (process,) = handles_of(server), workers_of(server)
        eventually(lambda: worker.is_idle)
        os.kill(process, signal.SIGSTOP)
        unloaded = server.service.registry.served["pendulum"]
        send_task = worker.send_task

        def send(task: Any, served: dict[str, Any]) -> None:
            server.service.registry.remove("pendulum")
            send_task(task, {})

        monkeypatch.setattr(worker, "send_task", send)
        peer.send(request("mass_matrix", inputs={"q": array(np.zeros(1))}, deadline_ms=6e4))
        eventually(lambda: worker.task is not None)
        with monkeypatch.context() as patch:  # a minute later
            patch.setattr("dyn_service.service.server.app.perf_counter_ns", lambda: perf_counter_ns() + 61 * 10**9)
            assert peer.receive()["error"]["code"] == "DEADLINE_EXCEEDED"
        os.kill(process, signal.SIGCONT)
        eventually(lambda: worker.is_idle)
        server.service.registry.add(unloaded.robot)
        assert peer.ask(request("mass_matrix", id=2, inputs={"q": array(np.zeros(1))}))["id"] == 2
        assert server.service.metrics.traffic.workers_lost == server.service.metrics.traffic.defects == 0


def test_a_query_with_a_long_name_costs_no_worker(bare: Any) -> None:
    with serving(workers=1) as server:
        error = bare(server.endpoints[0]).ask(request("x" * 300_000))["error"]
        assert error["code"] == "UNIMPLEMENTED"
        assert server.service.metrics.traffic.workers_lost == 0


def test_a_kernel_that_took_too_long_is_not_compiled_again(
    bare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYN_SERVICE_CACHE", str(tmp_path))  # nothing is there
    monkeypatch.setattr("dyn_service.service.server.workers.pool._STOPPED_CHECKS", math.inf)
    with serving(workers=1, name="ur5e") as server:
        pool, peer = pool_of(server), bare(server.endpoints[0])
        (worker,) = handles_of(server)
        zeros = dict.fromkeys(("q", "v", "tau"), array(np.zeros(6)))
        peer.send(request("forward_dynamics", "ur5e", inputs=zeros))
        eventually(lambda: worker.making)
        os.kill(workers_of(server)[0], signal.SIGSTOP)  # so that it never finishes
        with monkeypatch.context() as patch:  # later
            patch.setattr("dyn_service.service.server.app.perf_counter_ns", lambda: perf_counter_ns() + 121 * 10**9)
            error = peer.receive()["error"]
        assert error["code"] == "RESOURCE_EXHAUSTED"
        assert error["message"].endswith("took more than 120 s, which is the limit")
        workers = [worker]

        def replaced() -> bool:
            workers[:] = handles_of(server)
            return pool.ready and workers != [worker]

        eventually(replaced)
        second_reply = peer.ask(request("forward_dynamics", "ur5e", inputs=zeros | {"tau": array(np.ones(6))}))
        assert second_reply["error"]["message"] == error["message"]
        assert workers[0].begun_ns == 0  # no worker was given the task
        assert peer.ask(request("gravity_forces", "ur5e", inputs={"q": array(np.zeros(6))}))[
            "ok"
        ]  # other kernels are compiled
        assert workers[0].begun_ns != 0


@pytest.mark.slow
def test_a_worker_that_uses_much_memory_is_replaced(bare: Any) -> None:
    # A worker maps some 130 MiB of data at the start; 80, more than half of the limit, are resident with a kernel.
    with serving(RequestLimits(max_worker_bytes=150 << 20), workers=1) as server:
        peer: Bare = bare(server.endpoints[0])
        for number in range(3):
            eventually(lambda: len(workers_of(server)) == 1)
            workers_before = workers_of(server)
            assert peer.ask(BATCH | {"id": number})["ok"]
            eventually(lambda workers_before=workers_before: not {*workers_before} & {*workers_of(server)})
        assert server.service.metrics.traffic.workers_lost == 0


# no open files


def test_a_reply_that_cannot_be_read_is_computed_again(
    single: Server, bare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 1

    def fails(descriptor: int, size: int) -> memoryview:
        nonlocal failures
        if failures:
            failures -= 1
            os.close(descriptor)
            raise OSError(errno.EMFILE, "Too many open files")
        return map_received(descriptor, size)

    peer: Bare = bare(single.endpoints[0])
    expected = peer.ask(BATCH)["outputs"]
    monkeypatch.setattr("dyn_service.service.server.workers.pipes.map_received", fails)
    for count, losses in ((1, 1), (0, 1), (1, 2)):
        failures = count
        assert peer.ask(BATCH)["outputs"] == expected
        assert single.service.metrics.traffic.workers_lost == losses
    failures = 2
    error = peer.ask(BATCH)["error"]
    assert error["code"] == "RESOURCE_EXHAUSTED"
    assert error["message"].startswith("2 workers were lost during mass_matrix: ")
    assert error["message"].endswith("[Errno 24] Too many open files")
    assert peer.ask(BATCH)["outputs"] == expected


def test_a_request_that_cannot_be_sent_costs_no_worker(
    single: Server, bare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(name: str) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    peer: Bare = bare(single.endpoints[0])
    assert peer.ask(BATCH)["ok"]
    workers_before = workers_of(single)
    with monkeypatch.context() as patch:
        patch.setattr("dyn_service.service.server.workers.pipes.os.memfd_create", fails)
        error = peer.ask(BATCH)["error"]
    assert error["code"] == "RESOURCE_EXHAUSTED"
    assert error["message"].endswith("[Errno 24] Too many open files")
    assert peer.ask(BATCH)["ok"]
    assert workers_of(single) == workers_before


LIMITED = """
import resource, sys
from dyn_service.cli.main import main
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
sys.argv = ["dyn", "serve", "urdf/pendulum.urdf", "--bind", sys.argv[1]]
main()
"""


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A server process limited to 256 open files: its endpoint, and the process."""
    endpoint = f"ipc://{tmp_path}/s"
    with (tmp_path / "log").open("w+") as log:
        process = subprocess.Popen([sys.executable, "-c", LIMITED, endpoint], cwd=ROOT, stdout=log, stderr=log)
        try:
            eventually(lambda: "ready:" in (tmp_path / "log").read_text() or process.poll() is not None)
            assert process.poll() is None, (tmp_path / "log").read_text()
            yield endpoint, process.pid
        finally:
            process.terminate()
            process.wait(WAIT_S)


@pytest.mark.slow
def test_long_requests_that_wait_take_no_open_files_from_others(limited: tuple[str, int], bare: Any) -> None:
    endpoint, process = limited
    good: Bare = bare(endpoint)
    expected = good.ask(BATCH)["outputs"]
    files_before = len(os.listdir(f"/proc/{process}/fd"))
    hoarders = [bare(endpoint) for _ in range(2)]
    long = msgpack.packb(simulate(1, steps=2000, states=5000, deadline_ms=6e4))
    for _ in range(100):
        for hoarder in hoarders:
            hoarder.send(long)
    with Client(endpoint, timeout_s=WAIT_S) as client:
        eventually(lambda: client.stats()["gauges"]["waiting"] >= 190)
        assert len(os.listdir(f"/proc/{process}/fd")) - files_before < 128
        for _ in range(5):
            assert good.ask(BATCH)["outputs"] == expected
        for _ in range(5):
            assert bare(endpoint).ask(request())["ok"]
        counters = client.stats()["counters"]
    assert (counters["workers_lost"], counters["cut_off"], counters["refused_busy"]) == (0, 0, 0)

"""Slow requests in worker processes: their answers, what stops them, what happens when workers exit."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import pytest

from dyn_service import QUERIES, Client, Overlay, Robot, Server, Wrench
from dyn_service.api.spec import WITH_WRENCHES
from dyn_service.errors import FailedPreconditionError, PermissionDeniedError, UnavailableError
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.protocol.messages import RequestHead
from dyn_service.service.server.administration.metrics import Metrics
from dyn_service.service.server.answering.jobs import Task
from dyn_service.service.server.answering.registry import Registry
from dyn_service.service.server.workers.pipes import AddRobot, Pipe, RemoveRobot, ToWorker, Work, pair
from dyn_service.service.server.workers.pool import WorkerHandle
from tests.conftest import URDF
from tests.phrases import naming, unnamed
from tests.service.conftest import WAIT_MS, WAIT_S, Bare, array, eventually, request
from tests.service.server.pools import (
    are_idle,
    fork_server_of,
    forks_of,
    handles_of,
    kill,
    pool_of,
    serving,
    simulate,
    unread,
    workers_of,
)
from tests.service.server.raw_peers import gauges


@pytest.fixture(scope="module")
def one_pool(cart: Robot, pendulum: Robot) -> Iterator[Server]:
    with Server([cart, pendulum], endpoints=["tcp://127.0.0.1:0"], workers=2) as server:
        yield server


@pytest.fixture
def pooled(one_pool: Server) -> Server:
    """A server of the cart and the pendulum with two idle workers, which has lost none since a test began."""
    eventually(lambda: not gauges(one_pool)["waiting"] and are_idle(one_pool, 2))
    one_pool.service.metrics.traffic.workers_lost = 0
    return one_pool


def test_answers_are_those_of_this_process(pooled: Server, cart: Robot) -> None:
    q = np.random.default_rng(0).uniform(-1.0, 1.0, (3000, cart.nv))
    with Client(pooled.endpoints[0], timeout_s=WAIT_S) as client:
        robot = client.robot("cart_pendulum")
        assert robot.inverse_dynamics(q, q, q).tobytes() == cart.inverse_dynamics(q, q, q).tobytes()
        local, remote = (asked_robot.verify(q[0], q[1], q[2]) for asked_robot in (cart, robot))
        assert {name: value.tobytes() for name, value in local.items()} == {
            name: value.tobytes() for name, value in remote.items()
        }
        motions = [asked_robot.simulate(q[0], q[1], dt=1e-3, steps=300) for asked_robot in (cart, robot)]
        assert motions[0].q.tobytes() == motions[1].q.tobytes()


def test_a_kernel_compiled_by_a_worker_is_loaded_by_the_server() -> None:
    with serving() as server, Client(server.endpoints[0], timeout_s=WAIT_S) as client:
        robot, plan = client.robot("pendulum"), server.service.registry.served["pendulum"].plans["mass_matrix"]
        assert plan.fast_path is None
        expected = robot.mass_matrix([0.5])
        eventually(lambda: plan.fast_path is not None)
        assert robot.mass_matrix([0.5]).tobytes() == expected.tobytes()
        short = server.service.metrics.fast_path("mass_matrix")
        assert sum(short.buckets) == 1  # the second of the two, by the server's thread


def test_a_prepared_robot_is_answered_while_every_worker_is_busy(single: Server, bare: Any) -> None:
    single.service.robots["pendulum"].prepare(["gravity_forces"])
    busy, quick = bare(single.endpoints[0]), bare(single.endpoints[0])
    busy.send(simulate(1))
    eventually(lambda: gauges(single)["waiting"])
    for number in range(20):
        assert quick.ask(request(id=number))["ok"]
    assert gauges(single)["waiting"]  # the simulation is still on


def test_robots_come_and_go(pooled: Server) -> None:
    text = (URDF / "scara.urdf").read_text()
    local = Robot.from_urdf(URDF / "scara.urdf")
    q = np.full((1000, local.nv), 0.25)
    with Client(pooled.endpoints[0], timeout_s=WAIT_S) as client:
        for _ in range(3):
            robot = client.load_robot(text)
            assert robot.gravity_forces(q[0]).tobytes() == local.gravity_forces(q[0]).tobytes()
            assert robot.mass_matrix(q).tobytes() == local.mass_matrix(q).tobytes()
            client.unload_robot(robot.name)
            assert client.list_robots() == ["cart_pendulum", "pendulum"]
        other = text.replace('<robot name="scara"', '<robot name="cart_pendulum"')
        with pytest.raises(FailedPreconditionError, match=naming("'cart_pendulum'", "fingerprint")):
            client.load_robot(other)
        assert client.robot("cart_pendulum").nv == 2


def test_workers_check_permissions_too() -> None:
    text = (URDF / "panda.urdf").read_text() + " " * (1 << 14)  # too long for the server's thread
    with serving(allow_load=False) as server, Client(server.endpoints[0], timeout_s=WAIT_S) as client:
        with pytest.raises(PermissionDeniedError):
            client.load_robot(text)
        assert client.list_robots() == ["pendulum"]


def test_work_stops_at_its_deadline(single: Server, bare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    peer: Bare = bare(single.endpoints[0])
    peer.ask(request("forward_dynamics", inputs=dict.fromkeys(("q", "v", "tau"), array([0.5]))))
    peer.send(simulate(1, deadline_ms=6e4))
    eventually(lambda: any(worker.task is not None and not unread(worker) for worker in handles_of(single)))
    with monkeypatch.context() as patch:  # a minute later
        patch.setattr("dyn_service.service.server.app.perf_counter_ns", lambda: perf_counter_ns() + 61 * 10**9)
        error = peer.receive()["error"]
    assert (error["code"], error["path"]) == ("DEADLINE_EXCEEDED", "deadline_ms")
    assert "was stopped" in error["message"]
    assert peer.ask(request("mass_matrix", inputs={"q": array(np.zeros((3000, 1)))}))["ok"]  # by the next worker


def test_work_stops_at_the_limit(bare: Any) -> None:
    with serving(RequestLimits(max_worker_s=0.2), workers=1) as server:
        error = bare(server.endpoints[0]).ask(simulate(1))["error"]
        assert error["code"] == "RESOURCE_EXHAUSTED"
        assert error["message"].endswith("more than 0.2 s, which is the limit")


def test_work_stops_when_its_client_leaves(single: Server, bare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # on a busy machine a worker may not have a core within the time after which it is killed instead
    monkeypatch.setattr("dyn_service.service.server.workers.pool._GIVE_UP_NS", 30 * 10**9)
    leaver, waiting = bare(single.endpoints[0]), bare(single.endpoints[0])
    eventually(lambda: len(workers_of(single)) == 1)
    (worker_before,) = workers_of(single)
    for number in (1, 2, 3):
        leaver.send(simulate(number))
    eventually(lambda: gauges(single)["waiting"] == 3)
    leaver.close()
    assert waiting.ask(request("mass_matrix", inputs={"q": array(np.zeros((3000, 1)))}))["ok"]
    assert not gauges(single)["waiting"]
    assert workers_of(single) == [worker_before]  # it gave up the simulation


def state_of(process: int) -> str:
    """Returns the state of a process, see proc_pid_stat(5)."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def stop_workers(server: Server) -> None:
    """Stops all workers by a signal, once they run."""
    eventually(lambda: are_idle(server, 2))
    for worker in workers_of(server):
        os.kill(worker, signal.SIGSTOP)
        eventually(lambda number=worker: state_of(number) == "T")  # otherwise it may read the request before it stops


def kill_the_one_at_work(server: Server, *, has_read: bool = True) -> None:
    """Kills the busy worker, from outside the pool, after it has read its request."""
    at_work: list[int] = []
    eventually(
        lambda: (
            at_work.extend(
                h.number for h in handles_of(server) if h.task is not None and has_read is not bool(unread(h))
            )
            or at_work
        )
    )
    kill(server, at_work[0])


def test_a_killed_worker_loses_no_answer(pooled: Server, bare: Any) -> None:
    peer: Bare = bare(pooled.endpoints[0])
    for number in range(3):
        peer.send(simulate(number, steps=40, states=20_000))
        kill_the_one_at_work(pooled)
        reply = peer.receive()
        assert (reply["id"], reply["ok"]) == (number, True)
    assert pooled.service.metrics.traffic.workers_lost == 3


def test_a_request_that_two_workers_exit_during_is_refused(pooled: Server, bare: Any) -> None:
    peer: Bare = bare(pooled.endpoints[0])
    peer.send(simulate(1))
    for count in (1, 2):
        kill_the_one_at_work(pooled)
        eventually(lambda count=count: pooled.service.metrics.traffic.workers_lost == count)
    error = peer.receive()["error"]
    assert error["code"] == "RESOURCE_EXHAUSTED"
    assert error["message"].startswith("2 workers were lost during simulate")
    assert peer.ask(request("mass_matrix", inputs={"q": array(np.zeros((3000, 1)))}))["ok"]


@pytest.mark.slow
def test_a_worker_that_a_signal_stopped_is_replaced_before_the_deadline(pooled: Server, bare: Any) -> None:
    peer: Bare = bare(pooled.endpoints[0])
    batch = request("mass_matrix", inputs={"q": array(np.zeros((3000, 1)))})
    assert peer.ask(batch)["ok"]
    stop_workers(pooled)
    assert peer.ask({**batch, "deadline_ms": 6e4})["ok"]  # by a new worker, after the first two
    assert pooled.service.metrics.traffic.workers_lost == 2


def test_workers_that_exit_before_reading_do_not_count(
    pooled: Server, bare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while idle: they had exited when the request was sent."""
    monkeypatch.setattr("dyn_service.service.server.workers.pool._STOPPED_CHECKS", math.inf)
    peer: Bare = bare(pooled.endpoints[0])
    batch = request("mass_matrix", inputs={"q": array(np.zeros((3000, 1)))})
    assert peer.ask(batch)["ok"]
    stop_workers(pooled)
    peer.send(batch)
    for count in (1, 2):
        kill_the_one_at_work(pooled, has_read=False)
        eventually(lambda count=count: pooled.service.metrics.traffic.workers_lost == count)
    assert peer.receive()["ok"]


def test_workers_that_never_read_are_not_restarted_forever(
    pooled: Server, bare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a robot that is sent first took too much memory."""
    monkeypatch.setattr("dyn_service.service.server.workers.pool._MAX_UNREAD", 2)
    monkeypatch.setattr("dyn_service.service.server.workers.pool._STOPPED_CHECKS", math.inf)
    peer: Bare = bare(pooled.endpoints[0])
    stop_workers(pooled)
    peer.send(simulate(1))
    for count in (1, 2):
        kill_the_one_at_work(pooled, has_read=False)
        eventually(lambda count=count: pooled.service.metrics.traffic.workers_lost == count)
    error = peer.receive()["error"]
    assert error["code"] == "RESOURCE_EXHAUSTED"
    assert error["message"].startswith("2 workers were lost")
    assert error["message"].endswith("simulate")
    for process in workers_of(pooled):  # one may still be stopped, and one that was killed may go just now
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)


def test_memory_of_a_worker_is_bounded(bare: Any) -> None:
    """Python may raise MemoryError, or the worker may be killed: the client gets an error."""
    with serving(RequestLimits(max_worker_bytes=250 << 20), workers=1) as server:
        peer: Bare = bare(server.endpoints[0])
        big = np.zeros((500_000, 1))
        reply = peer.ask(request("verify", inputs=dict.fromkeys(("q", "v", "a"), array(big))))
        assert reply["error"]["code"] in ("RESOURCE_EXHAUSTED", "UNAVAILABLE")
        assert peer.ask(request("mass_matrix", inputs={"q": array(np.zeros((3000, 1)))}))["ok"]


def test_a_batch_does_not_wait_for_long_work(pooled: Server, bare: Any) -> None:
    busy, quick = bare(pooled.endpoints[0]), bare(pooled.endpoints[0])
    batch = request("mass_matrix", inputs={"q": array(np.zeros((3000, 1)))})
    assert quick.ask(batch)["ok"]
    for number in range(4):
        busy.send(simulate(number))
    for _ in range(10):
        assert quick.ask(batch)["ok"]
    assert gauges(pooled)["waiting"] == 4


def test_started_and_cancelled_work_leaves_a_worker_for_batches(
    pooled: Server, bare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cancel may kill a worker. Long work takes neither the last live one nor the oldest, which has kernels."""
    pool = pool_of(pooled)
    eventually(lambda: all(worker.is_idle for worker in handles_of(pooled)))
    oldest = handles_of(pooled)[0]
    starts: list[tuple[int, int]] = []  # ids of started requests, and how many workers were left for batches
    begin = pool._begin

    def noted(worker: WorkerHandle, task: Task) -> None:
        left = sum(
            other_worker is not worker and other_worker.is_ready and not other_worker.is_long
            for other_worker in handles_of(pooled)
        )
        begin(worker, task)
        starts.append((task.head.id or 0, left))

    monkeypatch.setattr(pool, "_begin", noted)
    peers = [bare(pooled.endpoints[0]) for _ in range(3)]
    for number, peer in enumerate(peers):
        peer.send(simulate(number))
    eventually(lambda: gauges(pooled)["waiting"] == 3)
    for count in range(1, 13):
        eventually(lambda count=count: len(starts) == count)
        at_work = starts[-1][0]
        peer = peers[at_work % 3]
        peer.send({"v": 1, "id": at_work, "query": "cancel"})
        peer.send(simulate(at_work + 3))
    assert [left for _, left in starts[:12]] == [1] * 12
    assert Counter(number % 3 for number, _ in starts[:12]) == {0: 4, 1: 4, 2: 4}
    assert handles_of(pooled)[0] is oldest
    assert oldest.is_idle


def test_notices_report_compilation_in_workers(bare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_SERVICE_CACHE", str(tmp_path))  # an empty store
    with serving(workers=1, name="ur5e") as server:
        peer: Bare = bare(server.endpoints[0])
        inputs = dict.fromkeys(("q", "v", "tau"), array(np.zeros(6)))
        peer.send(request("forward_dynamics", "ur5e", inputs=inputs, compile_wait_ms=6e4, deadline_ms=2.4e5))
        notice = peer.receive()
        assert unnamed(notice["notice"]["text"], "forward_dynamics", "'ur5e'") == []
        while "notice" in (reply := peer.receive()):
            pass
        assert reply["ok"]


def test_servers_leave_no_processes() -> None:
    server = serving()
    server.start()
    with Client(server.endpoints[0], timeout_s=WAIT_S) as client:
        client.robot("pendulum").mass_matrix(np.zeros((3000, 1)))
    fork_server, workers = fork_server_of(server), workers_of(server)
    assert fork_server is not None
    assert len(workers) == 2
    server.stop()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in (fork_server.pid, *workers)))


def test_a_stop_does_not_wait_for_running_work(bare: Any) -> None:
    server = serving(workers=1)
    server.start()
    peer: Bare = bare(server.endpoints[0])
    for number in (1, 2):
        peer.send(simulate(number))
    eventually(lambda: gauges(server)["waiting"] == 2)
    stopper = threading.Thread(target=server.stop)
    stopper.start()
    assert (reply := peer.receive())["id"] == 2
    assert reply["error"]["code"] == UnavailableError.code
    stopper.join(WAIT_S)
    assert not stopper.is_alive()


def test_a_server_that_listens_and_is_never_run_leaves_no_processes() -> None:
    server = serving()
    server.bind()
    fork_server = fork_server_of(server)
    assert fork_server is not None
    server.stop()
    assert fork_server.poll() is not None


def test_workers_that_cannot_start_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dyn_service.service.server.workers.pool.sys.executable", "/bin/false")
    with pytest.raises(UnavailableError, match=naming("worker processes")):
        serving().start()


def test_health_reports_readiness(single: Server, bare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    peer: Bare = bare(single.endpoints[0])
    health = {"v": 1, "id": 9, "query": "health"}
    assert peer.ask(health)["outputs"]["ready"]
    pool = pool_of(single)

    def no_more() -> Any:
        raise OSError("too many")

    with monkeypatch.context() as patch:
        patch.setattr(pool, "_start_worker", no_more)
        kill(single, handles_of(single)[0].number)
        eventually(lambda: not peer.ask(health)["outputs"]["ready"])
    eventually(lambda: peer.ask(health)["outputs"]["ready"])  # the next worker starts a second later


def test_robots_are_loaded_and_unloaded_without_other_requests(pooled: Server) -> None:
    """A worker keeps the robots that it loads; they must be removed, or the next load of that name conflicts."""
    text = (URDF / "scara.urdf").read_text()
    heavier = text.replace('mass value="', 'mass value="1')
    with Client(pooled.endpoints[0], timeout_s=WAIT_S) as client:
        for description in (text, text, heavier, text):
            loaded = client.load_robot(description)
            assert client.list_robots() == ["cart_pendulum", "pendulum", "scara"]
            assert loaded.gravity_forces(np.zeros(loaded.nq)).shape == (loaded.nv,)
            client.unload_robot("scara")
            client.load_robot(description)
            client.unload_robot("scara")


def test_as_many_robots_as_there_may_be_come_and_go_again_and_again() -> None:
    text = (URDF / "pendulum.urdf").read_text()
    with serving(RequestLimits(max_robots=2)) as server, Client(server.endpoints[0], timeout_s=WAIT_S) as client:
        for number in range(6):
            client.load_robot(text.replace('<robot name="pendulum"', f'<robot name="another{number}"'))
            client.unload_robot(f"another{number}")


def test_a_worker_removes_robots_before_it_adds_others(pendulum: Robot, panda: Robot) -> None:
    """With a limit of two, a worker that has two gets a third, which replaced the second."""
    registry = Registry([pendulum, panda], 2, Metrics())
    server_end, worker_end = pair()
    worker = WorkerHandle(server_end, 0)
    worker.known = {name: served.robot.fingerprint for name, served in registry.served.items()}
    registry.remove("panda")
    registry.add(pendulum.overlaid(Overlay(), name="third"))
    worker.send_task(Task((None, False), b"", 0, RequestHead(robot="third")), registry.served)
    pipe: Pipe[ToWorker] = Pipe(worker_end, ToWorker, waits=True)  # type: ignore[arg-type]  # a union
    message_types = [type(words) for words, _ in islice(pipe.read(), 3)]
    assert message_types == [RemoveRobot, AddRobot, Work]
    worker.pipe.close()
    pipe.close()


def test_the_next_request_does_not_inherit_an_error(single: Server, bare: Any) -> None:
    """Deadlines at about the end of the work: the following requests have none, and are answered."""
    peer: Bare = bare(single.endpoints[0])
    batch = array(np.zeros((60_000, 1)))
    assert peer.ask(request("mass_matrix", inputs={"q": batch}))["ok"]
    for number in range(40):
        peer.send(request("mass_matrix", id=2 * number, inputs={"q": batch}, deadline_ms=1.0 + 0.3 * number))
        peer.send(request("mass_matrix", id=2 * number + 1, inputs={"q": batch}))
    seen = {(reply := peer.receive())["id"]: reply for _ in range(80)}
    assert all(seen[2 * number + 1]["ok"] for number in range(40))


def test_single_states_with_wrenches_are_answered_by_the_server() -> None:
    with serving() as server, Client(server.endpoints[0], timeout_s=WAIT_S) as client:
        robot = client.robot("pendulum")
        served = server.service.registry.served["pendulum"].robot
        push = Wrench(robot.link_names[-1], force=(0.0, 0.0, 1.0))
        robot.inverse_dynamics([0.5], [0.0], [0.0], wrenches=push)
        eventually(lambda: served.evaluator.has_kernel(QUERIES["inverse_dynamics"], "", WITH_WRENCHES))


def test_the_first_request_for_a_loaded_robot_is_answered_at_once(single: Server, bare: Any) -> None:
    text = (URDF / "scara.urdf").read_text()
    with Client(single.endpoints[0], timeout_s=WAIT_S) as client:
        robot = client.load_robot(text)
        bare(single.endpoints[0]).send(simulate(1))
        eventually(lambda: gauges(single)["waiting"])
        zeros = np.zeros(robot.nv)
        robot.inverse_dynamics(zeros, zeros, zeros)
        assert gauges(single)["waiting"]  # the simulation is still on
        client.unload_robot(robot.name)


def test_a_waiting_request_is_refused_at_its_deadline(single: Server, bare: Any) -> None:
    busy, late = bare(single.endpoints[0]), bare(single.endpoints[0])
    busy.send(simulate(1))
    eventually(lambda: gauges(single)["waiting"])
    late.send(simulate(2, deadline_ms=50.0))
    assert late.receive()["error"]["code"] == "DEADLINE_EXCEEDED"
    assert gauges(single)["waiting"]


def test_slow_work_of_peers_is_done_in_turn(single: Server, bare: Any) -> None:
    greedy, modest = bare(single.endpoints[0]), bare(single.endpoints[0])
    batch = {"q": array(np.zeros((30_000, 1)))}
    assert modest.ask(request("mass_matrix", inputs=batch))["ok"]
    greedy.send(simulate(0, steps=10))
    for number in range(1, 50):
        greedy.send(request("mass_matrix", id=number, inputs=batch))
    eventually(lambda: gauges(single)["waiting"] == 50)
    assert modest.ask(request("mass_matrix", inputs=batch))["ok"]
    assert gauges(single)["waiting"] > 25


def batch_of(number: int, states: int = 20_000, **fields: Any) -> dict[str, Any]:
    """Returns a request that a worker divides into blocks, and whose size alone takes the server a millisecond."""
    state = array(np.full((states, 2), 0.5))
    inputs = dict.fromkeys(("q", "v", "tau"), state)
    return request("forward_dynamics", "cart_pendulum", id=number, inputs=inputs, **fields)


@pytest.mark.parametrize("how", ["deadline", "cancel", "leave"])
def test_work_that_is_stopped_costs_no_worker(
    pooled: Server, bare: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A killed worker takes those of all other clients with it. Each stopped batch killed one."""
    monkeypatch.setattr("dyn_service.service.server.workers.pool._GIVE_UP_NS", 1 << 60)
    peer, quick = bare(pooled.endpoints[0]), bare(pooled.endpoints[0])
    assert peer.ask(batch_of(0))["ok"]
    workers, process_count = [*handles_of(pooled)], forks_of(pooled)
    for number in range(1, 21):
        peer.send(batch_of(number, **({"deadline_ms": 0.5} if how == "deadline" else {})))
        if how == "cancel":
            peer.send({"v": 1, "id": number, "query": "cancel"})
        elif how == "leave":
            peer.close()
            peer = bare(pooled.endpoints[0])
            continue
        reply = peer.receive()
        assert reply["ok"] if "outputs" in reply else reply["error"]["code"] == "DEADLINE_EXCEEDED"
        assert quick.ask(batch_of(number, states=500))["ok"]
    eventually(lambda: all(worker.is_idle for worker in workers))
    assert handles_of(pooled) == workers
    assert forks_of(pooled) == process_count


def test_a_worker_that_does_not_give_up_is_killed(single: Server, bare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dyn_service.service.server.workers.pool._GIVE_UP_NS", 0)
    leaver, waiting = bare(single.endpoints[0]), bare(single.endpoints[0])
    pool = pool_of(single)
    eventually(lambda: handles_of(single) and handles_of(single)[0].is_idle)
    turns = pool._waiting._turn
    leaver.send(simulate(1))
    eventually(lambda: handles_of(single)[0].task is not None and not unread(handles_of(single)[0]))
    process_count = forks_of(single)
    leaver.close()
    assert waiting.ask(request("mass_matrix", inputs={"q": array(np.zeros((3000, 1)))}))["ok"]
    assert forks_of(single) == process_count + 1
    assert pool._waiting._turn == turns + 3  # two tasks, and the worker that the first one cost


def test_work_that_cannot_end_by_its_deadline_is_not_started(
    pooled: Server, bare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, peer = pool_of(pooled), bare(pooled.endpoints[0])
    tasks: list[Task] = []
    offer = pool.offer
    monkeypatch.setattr(pool, "offer", lambda task: (tasks.append(task), offer(task)))
    assert peer.ask(batch_of(1, deadline_ms=6e4))["ok"]
    # As if one had been stopped after 30 years: the estimate halves every second, also on a machine that is busy.
    pool._paces.note(tasks[0], 10**18, perf_counter_ns(), finished=False)
    begin_times = [worker.begun_ns for worker in handles_of(pooled)]
    error = peer.ask(batch_of(2, deadline_ms=6e4))["error"]
    assert (error["code"], error["path"]) == ("DEADLINE_EXCEEDED", "deadline_ms")
    assert unnamed(error["message"], "forward_dynamics", "60000 ms", "at least") == []
    assert [worker.begun_ns for worker in handles_of(pooled)] == begin_times
    assert peer.ask(batch_of(3))["ok"]  # without a deadline
    other: Bare = bare(pooled.endpoints[0])
    assert other.ask(batch_of(4, deadline_ms=6e4))["ok"]  # of another client


def test_a_short_simulation_is_started_after_a_long_one_was_stopped(
    pooled: Server, bare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their requests have as many bytes, and say nothing of their work."""
    pool, peer = pool_of(pooled), bare(pooled.endpoints[0])
    tasks: list[Task] = []
    offer = pool.offer
    monkeypatch.setattr(pool, "offer", lambda task: (tasks.append(task), offer(task)))
    short = {"inputs": {"q": array([0.5]), "v": array([0.0])}, "options": {"dt": 1e-3, "steps": 3}, "deadline_ms": 6e4}
    assert peer.ask(request("simulate", id=1, **short))["ok"]
    pool._paces.note(tasks[0], 10**18, perf_counter_ns(), finished=False)
    assert peer.ask(request("simulate", id=2, **short))["ok"]


def test_a_kernel_made_after_the_deadline_is_there_for_the_next_request(
    bare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a store the kernel exists only in the worker that made it, which was killed each time."""
    monkeypatch.setenv("DYN_SERVICE_CACHE", "")
    with serving() as server:
        pool, peer = pool_of(server), bare(server.endpoints[0])
        eventually(lambda: are_idle(server, 2))
        process_count = forks_of(server)
        inputs = {"q": array([0.5])}
        error = peer.ask(request("mass_matrix_steps", id=1, inputs=inputs, deadline_ms=0.01))["error"]
        assert error["code"] == "DEADLINE_EXCEEDED"
        eventually(lambda: all(worker.is_idle for worker in handles_of(server)))
        (having,) = (worker for worker in handles_of(server) if worker.kernels)
        chosen_workers: list[WorkerHandle] = []
        begin = pool._begin
        monkeypatch.setattr(pool, "_begin", lambda worker, task: (chosen_workers.append(worker), begin(worker, task)))
        for number in range(2, 6):
            assert peer.ask(request("mass_matrix_steps", id=number, inputs=inputs))["ok"]
        assert chosen_workers == [having] * 4
        assert forks_of(server) == process_count
        assert sum(bool(worker.kernels) for worker in handles_of(server)) == 1


def test_time_until_a_kernel_is_made_does_not_count_against_the_deadline(
    bare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only the compiler's: the worker is stopped until the deadline has passed."""
    monkeypatch.setattr("dyn_service.service.server.workers.pool._STOPPED_CHECKS", math.inf)
    with serving(workers=1) as server:
        peer = bare(server.endpoints[0])
        eventually(lambda: len(workers_of(server)) == 1 and handles_of(server)[0].is_idle)
        (process,) = workers_of(server)
        os.kill(process, signal.SIGSTOP)
        eventually(lambda: state_of(process) == "T")
        inputs = {"q": array([0.5])}
        peer.send(request("mass_matrix_steps", inputs=inputs, deadline_ms=1e3, compile_wait_ms=WAIT_MS))
        while (notice := peer.receive()["notice"])["elapsed_ms"] < 1e3:
            assert unnamed(notice["text"], "mass_matrix_steps", "'pendulum'", "waits for a worker") == []
        os.kill(process, signal.SIGCONT)
        while "notice" in (reply := peer.receive()):
            pass
        assert reply["ok"], reply


def test_workers_inherit_what_kernels_share() -> None:
    """Only the code of the kernel itself is left to load, and no module's digest is left to compute."""
    code = (
        "import numpy as np\n"
        "from dyn_service import Robot\n"
        "from dyn_service.kernels import jit, library, loop, store\n"
        "from dyn_service.service.server.workers.process import make_shared_code\n"
        f"robot = Robot.from_urdf({str(URDF / 'cart_pendulum.urdf')!r})\n"
        "make_shared_code()\n"
        "loaded, load = [], jit.LoadedCode.__init__\n"
        "jit.LoadedCode.__init__ = lambda self, code: (loaded.append(len(code)), load(self, code))[1]\n"
        "digests = store._module.cache_info().misses\n"
        "robot.forward_dynamics(*np.zeros((3, 2)))\n"
        "print(len(loaded), store._module.cache_info().misses - digests)\n"
    )
    Robot.from_urdf(URDF / "cart_pendulum.urdf").prepare(["forward_dynamics"])  # in the store from here on
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout.split() == ["1", "0"], done.stdout

"""The fork server killed, stopped, or suspended with the machine: waiting requests are answered."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import pytest

from dyn_service import Client, Server
from dyn_service.errors import UnavailableError
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.server.answering.service import Service
from dyn_service.service.server.process import is_stopped, starved_ns
from dyn_service.service.server.workers.pipes import ORDER, pair
from dyn_service.service.server.workers.pool import ForkServer, Pool
from tests.conftest import ROOT
from tests.service.conftest import WAIT_MS, Bare, array, eventually, request
from tests.service.server.pools import fork_server_of, handles_of, serving, simulate, unread, workers_of

S = 1_000_000_000
BATCH = request("mass_matrix", inputs={"q": array(np.zeros((3000, 1)))})
HEALTH = {"v": 1, "id": 9, "query": "health"}


def process_of(server: Server) -> subprocess.Popen[bytes]:
    process = fork_server_of(server)
    assert process is not None
    return process


def is_gone(pid: int) -> bool:
    """Returns whether the process has exited, waited for or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def at_work(server: Server) -> int:
    """Returns how many workers have read a request and not answered it."""
    return sum(worker.task is not None and not unread(worker) for worker in handles_of(server))


# killed


@pytest.mark.slow
def test_a_killed_fork_server_loses_no_answer(bare: Any) -> None:
    """With zero, one or two busy workers: all exit with it, and their requests are tried again."""
    with serving(workers=3) as server:
        peer: Bare = bare(server.endpoints[0])
        assert peer.ask(BATCH)["ok"]
        for count in range(3):
            workers_lost = server.service.metrics.traffic.workers_lost
            eventually(lambda: len(workers_of(server)) == 3)
            old, process = workers_of(server), process_of(server)
            for number in range(count):
                peer.send(simulate(number, steps=40, states=50_000))
            eventually(lambda count=count: at_work(server) == count)
            process.kill()
            replies = [peer.receive() for _ in range(count)]
            assert sorted((reply["id"], reply["ok"]) for reply in replies) == [
                (number, True) for number in range(count)
            ]
            assert peer.ask(BATCH | {"id": 100 + count})["ok"]
            eventually(lambda old=old: all(map(is_gone, old)))
            # The batch may have lost one too.
            assert 0 <= server.service.metrics.traffic.workers_lost - workers_lost - count <= 1


@pytest.mark.slow
def test_a_request_that_two_fork_servers_exit_during_is_refused(bare: Any) -> None:
    with serving() as server:
        peer: Bare = bare(server.endpoints[0])
        peer.send(simulate(1))
        for _ in range(2):
            process = process_of(server)
            eventually(lambda: at_work(server) == 1)
            process.kill()
            eventually(lambda process=process: fork_server_of(server) not in (process, None))
        error = peer.receive()["error"]
        assert error["code"] == "RESOURCE_EXHAUSTED"
        assert error["message"].startswith("2 workers were lost during simulate: ")
        assert peer.ask(BATCH)["ok"]


def test_a_fork_server_killed_before_its_first_worker_is_ready_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = ForkServer.start

    def start_and_kill_the_first(self: ForkServer) -> None:
        start(self)
        assert self._process is not None
        started.append(self._process)
        if len(started) == 1:
            self._process.kill()

    monkeypatch.setattr(ForkServer, "start", start_and_kill_the_first)
    with serving() as server, Client(server.endpoints[0], timeout_s=WAIT_MS / 1e3) as client:
        assert client.health()["ready"]
    assert [process.returncode for process in started] == [-signal.SIGKILL, 0]


def test_signals_to_the_process_group_lose_no_answer(bare: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Service managers send SIGTERM to all processes: the server stops, and answers what the workers compute."""
    with serving() as server:
        peer: Bare = bare(server.endpoints[0])
        eventually(lambda: len(workers_of(server)) == 2)
        peer.send(simulate(1, steps=40, states=5000))
        eventually(lambda: at_work(server) == 1)
        for number in (signal.SIGINT, signal.SIGTERM):
            for pid in (*workers_of(server), process_of(server).pid):
                os.kill(pid, number)
        assert peer.receive()["ok"]
        assert server.service.metrics.traffic.workers_lost == 0
        assert peer.ask(BATCH)["ok"]
    assert not caplog.records


def test_a_worker_exits_if_its_fork_server_exited_first() -> None:
    """Otherwise no process could stop it, because the next fork server does not know it."""
    code = """
import os, sys
from dyn_service.service.server.workers.process import _exit_with_parent
parent = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == parent:
    pass
_exit_with_parent(parent)
print("is there still")
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=WAIT_MS / 1e3)
    assert (run.stdout, run.stderr) == ("", "")


# stopped


@pytest.mark.slow
def test_a_stopped_fork_server_is_replaced(bare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines are kept meanwhile; other requests are answered by the workers of the next one."""
    with serving(RequestLimits(max_worker_s=6000.0, max_work_s=6000.0)) as server:
        peer: Bare = bare(server.endpoints[0])
        eventually(lambda: len(workers_of(server)) == 2)
        assert peer.ask(BATCH)["ok"]
        stopped, workers = process_of(server), workers_of(server)
        stopped.send_signal(signal.SIGSTOP)
        states = dict.fromkeys(("q", "v", "a"), array(np.zeros((50_000, 1))))
        for number, fate in (
            (1, "and was stopped after"),
            (2, "must start within"),
        ):  # one worker is kept for batches
            peer.send(request("verify", id=number, inputs=states, deadline_ms=200.0))
            reply = peer.receive()
            assert (reply["id"], reply["error"]["code"]) == (number, "DEADLINE_EXCEEDED")
            assert fate in reply["error"]["message"]
        # The deadline may have passed during the compilation of a kernel: the worker is then stopped after it.
        eventually(lambda: sum(worker.is_ready for worker in handles_of(server)) == 1)
        (left,) = (worker for worker in handles_of(server) if worker.is_ready)
        os.kill(left.pid, signal.SIGKILL)
        eventually(lambda: not peer.ask(HEALTH)["outputs"]["ready"])
        peer.send(BATCH | {"id": 3})
        assert process_of(server) is stopped
        clock = iter(range(perf_counter_ns(), 1 << 62, 9 * S // 10))
        with monkeypatch.context() as patch:  # each iteration of the loop takes 0.9 s
            patch.setattr("dyn_service.service.server.app.perf_counter_ns", lambda: next(clock))
            eventually(lambda: fork_server_of(server) not in (stopped, None))
        reply = peer.receive()
        assert (reply["id"], reply["ok"]) == (3, True)
        assert peer.ask(HEALTH)["outputs"]["ready"]
        eventually(lambda: all(map(is_gone, workers)))
        assert stopped.returncode == -signal.SIGKILL  # it was waited for
        assert server.service.metrics.traffic.workers_lost == 0


def test_a_fork_server_stopped_before_its_first_worker_is_ready_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the 10 s of an order, since a stopped process is not one that imports slowly, which may take 60 s."""
    started: list[subprocess.Popen[bytes]] = []
    start = ForkServer.start
    turns = 0

    def start_and_stop_the_first(self: ForkServer) -> None:
        start(self)
        assert self._process is not None
        started.append(self._process)
        if len(started) == 1:
            self._process.send_signal(signal.SIGSTOP)
            eventually(lambda: is_stopped(started[0].pid))

    def each_turn_takes_a_second() -> int:
        nonlocal turns
        turns += len(started) == 1
        return perf_counter_ns() + turns * S

    monkeypatch.setattr(ForkServer, "start", start_and_stop_the_first)
    monkeypatch.setattr("dyn_service.service.server.app.perf_counter_ns", each_turn_takes_a_second)
    with serving() as server, Client(server.endpoints[0], timeout_s=WAIT_MS / 1e3) as client:
        assert client.health()["ready"]
        assert turns < 60
    assert [process.returncode for process in started] == [-signal.SIGKILL, 0]


def test_a_server_stops_although_its_fork_server_is_stopped() -> None:
    server = serving()
    server.start()
    eventually(lambda: len(workers_of(server)) == 2)
    stopped, workers = process_of(server), workers_of(server)
    stopped.send_signal(signal.SIGSTOP)
    server.stop()
    assert stopped.returncode == -signal.SIGKILL
    eventually(lambda: all(map(is_gone, workers)))


@pytest.fixture
def fork_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    """A fork server that never lacks a CPU."""
    monkeypatch.setattr("dyn_service.service.server.workers.pool.starved_ns", lambda process: 0)
    fork_server = ForkServer()
    fork_server.start()
    yield fork_server
    fork_server.close()


def looks(fork_server: ForkServer, begin_s: float, end_s: float, every_s: float = 0.05) -> float | None:
    """Returns the time at which it is found to hang, with a simulated clock and this interval of checks."""
    return next((time_s for time_s in np.arange(begin_s, end_s, every_s) if fork_server.hangs(int(time_s * S))), None)


def test_orders_have_a_time_limit(fork_server: ForkServer) -> None:
    assert looks(fork_server, 0.0, 1000.0) is None  # it has no orders
    end, number = fork_server.make()
    began = looks(fork_server, 1000.0, 1100.0)
    assert began == pytest.approx(1060.0, abs=1.1)  # it imports the engine first
    fork_server.done(number)
    assert looks(fork_server, 1100.0, 1200.0) is None
    fork_server.kill(number)
    seen = looks(fork_server, 1200.0, 1300.0)
    assert seen == pytest.approx(1210.0, abs=1.1)
    fork_server.done(number)
    fork_server.kill(number)
    assert looks(fork_server, 1300.0, 1308.0) is None
    fork_server.kill(number + 1)  # another order does not extend the time of the first
    assert looks(fork_server, 1308.0, 1400.0) == pytest.approx(1310.0, abs=1.1)
    fork_server.drop()
    assert looks(fork_server, 1400.0, 1500.0) is None
    worker_end, _ = fork_server.make()
    assert looks(fork_server, 1500.0, 1600.0) == pytest.approx(1560.0, abs=1.1)  # the next one imports the engine again
    end.close()
    worker_end.close()


def test_a_suspended_machine_kills_no_fork_server(fork_server: ForkServer) -> None:
    """Hours pass between two checks, for the machine or this process: the fork server had no time either."""
    end, number = fork_server.make()
    fork_server.done(number)
    fork_server.kill(number)
    assert looks(fork_server, 0.0, 5.0) is None
    assert looks(fork_server, 7200.0, 7202.0) is None
    assert looks(fork_server, 72000.0, 72010.0) is not None
    end.close()


def test_time_without_a_processor_does_not_count(fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had a CPU for a tenth of the time, so that it gets ten times as long; so does the first worker."""
    starved = [0]
    monkeypatch.setattr("dyn_service.service.server.workers.pool.starved_ns", lambda process: starved[0])

    def look(at_s: float) -> bool:
        starved[0] = int(0.9 * at_s * S)
        return fork_server.hangs(int(at_s * S))

    end, _ = fork_server.make()
    seen = next(time_s for time_s in np.arange(0.0, 1000.0, 0.05) if look(time_s))
    assert seen == pytest.approx(600.0, abs=1.1)
    fork_server.drop()
    fork_server.start()  # a new process, which has not waited for a CPU
    assert fork_server.starved_ns == starved[0]
    assert not fork_server.hangs(int(seen * S))
    end.close()
    pool = Pool(Service(), 1, selector=selectors.DefaultSelector(), wake=lambda: None)
    pool._fork_server = fork_server
    pool._start_until_s = time.monotonic() - 60.0
    starved[0] = 1000 * S
    pool.check_starting()
    starved[0] = 10 * S
    with pytest.raises(UnavailableError, match="within 60 s"):
        pool.check_starting()


def test_starved_time_of_two_processes_on_one_cpu() -> None:
    """Two processes on one CPU: each has waited for the other."""
    script = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    place = str(min(os.sched_getaffinity(0)))
    processes = [subprocess.Popen([sys.executable, "-c", script, place]) for _ in range(2)]
    try:
        eventually(lambda: all(starved_ns(process.pid) > 10_000_000 for process in processes))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert starved_ns(processes[0].pid) == 0  # it has exited


def test_a_hung_fork_server_does_not_block(fork_server: ForkServer) -> None:
    """Even if more orders are sent than the socket buffers."""
    assert fork_server._process is not None
    fork_server._process.send_signal(signal.SIGSTOP)
    for number in range(100_000):
        fork_server.kill(number)
    end, _ = fork_server.make()
    assert not end.recv(1)  # it cannot be started
    end.close()


# its end


@pytest.mark.slow
def test_a_fork_server_exits_silently_while_its_children_exit() -> None:
    for close_first in (True, False):
        parent_end, child_end = socket.socketpair()
        with child_end:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dyn_service.service.server.workers.process", str(child_end.fileno())],
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
            )
        ends = []
        for number in range(1, 25):
            end, other = pair()
            with other:
                socket.send_fds(parent_end, [ORDER.pack(number)], [other.fileno()])
            ends.append(end)

        def forked(pid: int = process.pid) -> bool:
            return len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()) == 24

        eventually(forked)
        for end in ends if close_first else ():
            end.close()
        parent_end.close()
        _, output = process.communicate(timeout=WAIT_MS / 1e3)
        assert (process.returncode, output) == (0, b"")
        for end in ends:
            end.close()

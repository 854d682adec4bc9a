"""The process that makes workers: killed, stopped, asleep with the machine. Whoever waits is answered."""

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

from dyn_service import Server
from dyn_service.errors import UnavailableError
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.server.answering.service import Service
from dyn_service.service.server.process import starved_ns
from dyn_service.service.server.workers.fork_server import ForkServer
from dyn_service.service.server.workers.pipes import ORDER, pair
from dyn_service.service.server.workers.pool import Pool
from tests.conftest import ROOT
from tests.service.conftest import WAIT_MS, Bare, array, request
from tests.service.server.test_pool import eventually, serving, simulate, unread, workers_of
from tests.service.server.test_pool_faults import pool_of

S = 1_000_000_000
BATCH = request("mass_matrix", inputs={"q": array(np.zeros((3000, 1)))})
HEALTH = {"v": 1, "id": 9, "query": "health"}


def process_of(server: Server) -> subprocess.Popen[bytes]:
    process = pool_of(server)._fork_server._process
    assert process is not None
    return process


def is_gone(pid: int) -> bool:
    """Whether the process has ended, be it that nobody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def at_work(server: Server) -> int:
    """How many workers have read a request that they have not answered."""
    return sum(worker.task is not None and not unread(worker) for worker in pool_of(server)._workers)


# killed


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_nursery_that_is_killed_costs_nobody_an_answer(count: int, bare: Any) -> None:
    """Be no worker, one or two at work: all end with it, and what they were at is tried again by the next ones."""
    with serving(workers=3) as server:
        peer: Bare = bare(server.endpoints[0])
        assert peer.ask(BATCH)["ok"]
        for turn in range(2):
            eventually(lambda: len(workers_of(server)) == 3)
            old, process = workers_of(server), process_of(server)
            for number in range(count):
                peer.send(simulate(number, steps=100, states=50_000))
            eventually(lambda: at_work(server) == count)
            process.kill()
            replies = [peer.receive() for _ in range(count)]
            assert sorted((reply["id"], reply["ok"]) for reply in replies) == [(each, True) for each in range(count)]
            assert peer.ask(BATCH | {"id": 100 + turn})["ok"]
            eventually(lambda old=old: all(map(is_gone, old)))
        assert 0 <= server.service.metrics.traffic.workers_lost - 2 * count <= 2  # the batches may have met one too


def test_a_request_that_two_nurseries_end_at_is_not_tried_again(bare: Any) -> None:
    with serving() as server:
        peer: Bare = bare(server.endpoints[0])
        peer.send(simulate(1))
        for _ in range(2):
            process = process_of(server)
            eventually(lambda: at_work(server) == 1)
            process.kill()
            eventually(lambda process=process: pool_of(server)._fork_server._process not in (process, None))
        error = peer.receive()["error"]
        assert error["code"] == "RESOURCE_EXHAUSTED"
        assert error["message"].startswith("2 workers were lost during simulate: ")
        assert peer.ask(BATCH)["ok"]


def test_a_worker_whose_nursery_ended_before_it_was_there_ends() -> None:
    """Else nobody could stop it: the next fork_server knows nothing of it."""
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


def test_a_nursery_that_is_stopped_is_replaced(bare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sooner or later for it: deadlines hold; what may wait is answered by the next one's workers."""
    with serving(RequestLimits(max_worker_s=6000.0, max_work_s=6000.0)) as server:
        peer: Bare = bare(server.endpoints[0])
        eventually(lambda: len(workers_of(server)) == 2)
        assert peer.ask(BATCH)["ok"]
        stopped, workers = process_of(server), workers_of(server)
        stopped.send_signal(signal.SIGSTOP)
        states = dict.fromkeys(("q", "v", "a"), array(np.zeros((50_000, 1))))
        for number, fate in ((1, "and was stopped after"), (2, "was to begin within")):  # one is left for batches
            peer.send(request("verify", id=number, inputs=states, deadline_ms=200.0))
            reply = peer.receive()
            assert (reply["id"], reply["error"]["code"]) == (number, "DEADLINE_EXCEEDED")
            assert fate in reply["error"]["message"]
        (left,) = (worker for worker in pool_of(server)._workers if worker.is_ready)
        os.kill(left.pid, signal.SIGKILL)
        eventually(lambda: not peer.ask(HEALTH)["outputs"]["ready"])
        peer.send(BATCH | {"id": 3})
        assert process_of(server) is stopped
        clock = iter(range(perf_counter_ns(), 1 << 62, 9 * S // 10))
        with monkeypatch.context() as patch:  # of the loop, for which 0.9 s pass in each turn
            patch.setattr("dyn_service.service.server.app.perf_counter_ns", lambda: next(clock))
            eventually(lambda: pool_of(server)._fork_server._process not in (stopped, None))
        reply = peer.receive()
        assert (reply["id"], reply["ok"]) == (3, True)
        assert peer.ask(HEALTH)["outputs"]["ready"]
        eventually(lambda: all(map(is_gone, workers)))
        assert stopped.returncode == -signal.SIGKILL  # and nothing is left of it
        assert server.service.metrics.traffic.workers_lost == 0


def test_a_server_stops_though_its_nursery_is_stopped() -> None:
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
    """One that never waits for a processor: on a busy machine it does."""
    monkeypatch.setattr("dyn_service.service.server.workers.fork_server.starved_ns", lambda process: 0)
    fork_server = ForkServer()
    fork_server.start()
    yield fork_server
    fork_server.close()


def looks(fork_server: ForkServer, begin_s: float, end_s: float, every_s: float = 0.05) -> float | None:
    """When it is seen to hang, in a time of our own, be it looked at so often."""
    return next((at for at in np.arange(begin_s, end_s, every_s) if fork_server.hangs(int(at * S))), None)


def test_what_it_is_told_has_so_much_time(fork_server: ForkServer) -> None:
    assert looks(fork_server, 0.0, 1000.0) is None  # nothing was asked of it
    end, number = fork_server.make()
    began = looks(fork_server, 1000.0, 1100.0)
    assert began == pytest.approx(1060.0, abs=1.1)  # it imports the engine
    fork_server.done(number)
    assert looks(fork_server, 1100.0, 1200.0) is None
    fork_server.kill(number)
    seen = looks(fork_server, 1200.0, 1300.0)
    assert seen == pytest.approx(1210.0, abs=1.1)
    fork_server.done(number)
    fork_server.kill(number)
    assert looks(fork_server, 1300.0, 1308.0) is None
    fork_server.kill(number + 1)  # the next order gives the first no more time
    assert looks(fork_server, 1308.0, 1400.0) == pytest.approx(1310.0, abs=1.1)
    fork_server.drop()
    assert looks(fork_server, 1400.0, 1500.0) is None
    again, _ = fork_server.make()
    assert looks(fork_server, 1500.0, 1600.0) == pytest.approx(1560.0, abs=1.1)  # the next one imports it again
    end.close()
    again.close()


def test_a_machine_that_slept_kills_nothing(fork_server: ForkServer) -> None:
    """Between two looks hours go by, be it for the machine or for this process: the fork_server had no time either."""
    end, number = fork_server.make()
    fork_server.done(number)
    fork_server.kill(number)
    assert looks(fork_server, 0.0, 5.0) is None
    assert looks(fork_server, 7200.0, 7202.0) is None
    assert looks(fork_server, 72000.0, 72010.0) is not None
    end.close()


def test_time_without_a_processor_does_not_count(fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had one for a tenth of the time: it gets ten times as much of it. And so for the first worker to come."""
    starved = [0]
    monkeypatch.setattr("dyn_service.service.server.workers.fork_server.starved_ns", lambda process: starved[0])

    def look(at_s: float) -> bool:
        starved[0] = int(0.9 * at_s * S)
        return fork_server.hangs(int(at_s * S))

    end, _ = fork_server.make()
    seen = next(at for at in np.arange(0.0, 1000.0, 0.05) if look(at))
    assert seen == pytest.approx(600.0, abs=1.1)
    fork_server.drop()
    fork_server.start()  # the next one has waited for none yet
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


def test_what_the_system_says_of_a_process_that_waits() -> None:
    """Two that want the one processor: each has waited for the other."""
    script = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    place = str(min(os.sched_getaffinity(0)))
    both = [subprocess.Popen([sys.executable, "-c", script, place]) for _ in range(2)]
    try:
        eventually(lambda: all(starved_ns(each.pid) > 10_000_000 for each in both))
    finally:
        for each in both:
            each.kill()
            each.wait()
    assert starved_ns(both[0].pid) == 0  # it has gone


def test_a_nursery_that_hangs_keeps_nobody(fork_server: ForkServer) -> None:
    """However much it is told: more than the system keeps for it."""
    assert fork_server._process is not None
    fork_server._process.send_signal(signal.SIGSTOP)
    for number in range(100_000):
        fork_server.kill(number)
    end, _ = fork_server.make()
    assert not end.recv(1)  # it cannot come to be
    end.close()


# its end


def test_a_nursery_ends_without_a_word_while_its_children_end() -> None:
    for close_first in (True, False):
        mine, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dyn_service.service.server.workers.process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
            )
        ends = []
        for number in range(1, 25):
            end, other = pair()
            with other:
                socket.send_fds(mine, [ORDER.pack(number)], [other.fileno()])
            ends.append(end)

        def forked(pid: int = process.pid) -> bool:
            return len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()) == 24

        eventually(forked)
        for end in ends if close_first else ():
            end.close()
        mine.close()
        _, said = process.communicate(timeout=WAIT_MS / 1e3)
        assert (process.returncode, said) == (0, b"")
        for end in ends:
            end.close()

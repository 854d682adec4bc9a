"""A proxy of whole messages between clients and a server that drops, doubles, reorders and delays them.

Right answers or errors of ours, each within its time limit and 10 ms. The long run: `python -m qa.faults proxy`.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import itertools
import json
import multiprocessing
import threading
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

import numpy as np
import zmq

from dyn_service import AsyncClient, Client, DynError, Robot, Server
from dyn_service.errors import UnavailableError
from tests.conftest import URDF


@dataclass(frozen=True)
class Mischief:
    """How often what happens to a message, each way, and how long it takes at most, in seconds."""

    drop: float = 0.01
    double: float = 0.01
    reorder: float = 0.01
    delay_s: float = 0.02


class Proxy:
    """Listens with a ROUTER, and speaks to the server with one DEALER for each client. In a thread of its own.

    Args:
        server: The server's endpoint.
        mischief: What goes wrong.
        seed: Of all chance.
    """

    def __init__(self, server: str, mischief: Mischief, seed: int = 0) -> None:
        self._server = server
        self._mischief = mischief
        self._random = Random(seed)
        self._context = zmq.Context()
        self._front = self._context.socket(zmq.ROUTER)
        self._front.linger = 0
        self._front.bind("tcp://127.0.0.1:0")
        self.endpoint = self._front.getsockopt_string(zmq.LAST_ENDPOINT)
        self._backs: dict[bytes, zmq.Socket[bytes]] = {}
        self._poller = zmq.Poller()
        self._poller.register(self._front, zmq.POLLIN)
        self._schedule: list[tuple[float, int, bytes, bytes, bool]] = []
        self._overtaken: list[tuple[bytes, bytes, bool]] = []
        self._order = itertools.count()
        self._is_ended = False
        self.counts: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._is_ended = True
        self._thread.join()
        for socket in (self._front, *self._backs.values()):
            socket.close(linger=0)
        self._context.term()

    def _run(self) -> None:
        while not self._is_ended:
            wait_s = self._schedule[0][0] - time.monotonic() if self._schedule else 0.05
            ready = dict(self._poller.poll(max(0.0, min(wait_s, 0.05)) * 1e3))
            if self._front in ready:
                sender, payload = self._front.recv_multipart()
                self._meddle(sender, payload, is_request=True)
            for sender, back in list(self._backs.items()):
                if back in ready:
                    self._meddle(sender, back.recv(), is_request=False)
            while self._schedule and self._schedule[0][0] <= time.monotonic():
                _, _, sender, payload, is_request = heapq.heappop(self._schedule)
                self._pass(sender, payload, is_request)

    def _meddle(self, sender: bytes, payload: bytes, *, is_request: bool) -> None:
        mischief, chance = self._mischief, self._random.random
        self.counts["messages"] += 1
        if chance() < mischief.drop:
            self.counts["dropped"] += 1
            return
        copies = 1
        if chance() < mischief.double:
            self.counts["doubled"] += 1
            copies = 2
        if chance() < mischief.reorder:
            self.counts["reordered"] += 1
            self._overtaken.append((sender, payload, is_request))  # until another one has passed it
            return
        for _ in range(copies):
            due_s = time.monotonic() + self._random.uniform(0.0, mischief.delay_s)
            heapq.heappush(self._schedule, (due_s, next(self._order), sender, payload, is_request))
        # Due after the message that has just been scheduled: this is what makes it a swap of two.
        for message in self._overtaken:
            heapq.heappush(self._schedule, (due_s + 1e-3, next(self._order), *message))
        self._overtaken.clear()

    def _pass(self, sender: bytes, payload: bytes, is_request: bool) -> None:
        if not is_request:
            self._front.send_multipart([sender, payload])
            return
        # A DEALER for each client: the server counts its peers by connection, and one for all would share a quota.
        back = self._backs.get(sender)
        if back is None:
            back = self._backs[sender] = self._context.socket(zmq.DEALER)
            back.linger = 0
            back.connect(self._server)
            self._poller.register(back, zmq.POLLIN)
        back.send(payload)


QUERIES = ("gravity_forces", "mass_matrix", "inverse_dynamics")
TRIES = 20
"""To describe the robot: calls, each of which tries several times."""
UNDER_WAY = 16
"""Calls at a time of a client that does not wait."""

Result = tuple[str, list[Any], Any, float]
"""A query, its vectors, the answer or what was raised, and how long that took."""


def ask_all(endpoint: str, waits: bool, count: int, limit_s: float, seed: int) -> tuple[list[Result], dict[str, int]]:
    """One client's calls. In a process of its own, so that no other's work is in its times."""
    random = np.random.default_rng(seed)
    questions = []
    for _ in range(count):
        query = QUERIES[random.integers(len(QUERIES))]
        questions.append((query, list(random.uniform(-3, 3, (3 if query == "inverse_dynamics" else 1, 2)))))
    results: list[Result] = []

    def note(query: str, values: list[Any], answer: Any, start_s: float) -> None:
        took_s = time.perf_counter() - start_s
        results.append((query, values, f"{answer.code}: {answer}" if isinstance(answer, DynError) else answer, took_s))

    async def pipeline() -> dict[str, int]:
        async with AsyncClient(endpoint, timeout_s=30.0) as client:
            for _ in range(TRIES):
                with suppress(UnavailableError):  # the proxy may drop all that one call tries
                    remote: Any = (await client.robot("double_pendulum")).with_timeout(limit_s)
                    break
            left = iter(questions)

            async def one_after_another() -> None:
                for query, values in left:
                    start_s = time.perf_counter()
                    try:
                        answer = await getattr(remote, query)(*values)
                    except Exception as fault:
                        answer = fault
                    note(query, values, answer, start_s)

            await asyncio.gather(*(one_after_another() for _ in range(UNDER_WAY)))
            return asdict(client.counters)

    if not waits:
        return results, asyncio.run(pipeline())
    with Client(endpoint, timeout_s=30.0) as client:
        for _ in range(TRIES):
            with suppress(UnavailableError):  # the proxy may drop all that one call tries
                remote: Any = client.robot("double_pendulum").with_timeout(limit_s)
                break
        for query, values in questions:
            start_s = time.perf_counter()
            try:
                answer = getattr(remote, query)(*values)
            except Exception as fault:
                answer = fault
            note(query, values, answer, start_s)
        return results, asdict(client.counters)


def run(requests: int, clients: int, mischief: Mischief, limit_s: float, seed: int = 0) -> dict[str, Any]:
    """So many requests, by as many clients: every second one waits for each answer, the others have many under way.

    Args:
        requests: In all; a tenth of them by the clients that wait.
        clients: How many, an even number.
        mischief: What the proxy does.
        limit_s: The time limit of each call.
        seed: Of all chance.

    Returns:
        What came of it.
    """
    robot = Robot.from_urdf(URDF / "double_pendulum.urdf")
    robot.prepare(QUERIES)
    pairs = clients // 2
    shares = {True: requests // 10 // pairs, False: (requests - requests // 10) // pairs}
    began = time.monotonic()
    # Not forked: this process has the server's and the proxy's threads, whose locks a fork would copy in any state.
    spawn = multiprocessing.get_context("spawn")
    with (
        Server([robot], endpoints=["tcp://127.0.0.1:0"]) as server,
        Proxy(server.endpoints[0], mischief, seed) as proxy,
        ProcessPoolExecutor(clients, mp_context=spawn) as pool,
    ):
        tasks = [
            pool.submit(ask_all, proxy.endpoint, waits, shares[waits], limit_s, 1000 * seed + number)
            for number in range(pairs)
            for waits in (True, False)
        ]
        outcomes = [task.result() for task in tasks]
        meddled = dict(proxy.counts)
    results = [result for results, _ in outcomes for result in results]
    answers = [result for result in results if isinstance(result[2], np.ndarray)]
    error_texts = [answer for _, _, answer, _ in results if isinstance(answer, str)]
    # To the bit: a reply to another request of the same query would be close to right.
    wrong = sum(answer.tobytes() != getattr(robot, query)(*values).tobytes() for query, values, answer, _ in answers)
    latencies_ms = np.sort([took_s for *_, took_s in answers]) * 1e3
    return {
        "requests": len(results),
        "answered": len(answers),
        "wrong": wrong,
        "errors": dict(Counter(text.partition(":")[0] for text in error_texts)),
        "an_error": min(error_texts, default=None),
        "foreign": [repr(answer) for _, _, answer, _ in results if not isinstance(answer, str | np.ndarray)],
        "over_deadline_ms": round((max(took_s for *_, took_s in results) - limit_s) * 1e3, 2),
        "p50_ms": round(float(latencies_ms[len(answers) // 2]), 1),
        "p99_ms": round(float(latencies_ms[int(0.99 * len(answers))]), 1),
        "client": dict(sum((Counter(counters) for _, counters in outcomes), Counter())),
        "proxy": meddled,
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> int:
    """The long run. Its status is 0 where nothing was wrong and no call outlasted its limit by more than 10 ms."""
    parser = argparse.ArgumentParser(prog="python -m qa.faults proxy", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--limit", type=float, default=1.0, help="seconds")
    parser.add_argument("--drop", type=float, default=0.01)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    bad = 0
    for seed in range(options.rounds):
        report = run(options.requests, options.clients, Mischief(drop=options.drop), options.limit, seed)
        print(json.dumps(report), flush=True)
        bad += bool(report["wrong"] or report["foreign"] or report["over_deadline_ms"] > 10.0)
    return int(bad > 0)

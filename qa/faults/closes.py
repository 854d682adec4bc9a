"""Starts and closes of servers and clients, while their peers do what they should not.

    python -m qa.faults closes [--count 10000] [--minutes 60] [--jobs 8] [--seed 0]

Each round starts a server in this process, over tcp, ipc or CURVE, connects up to three peers (`PEERS`: they read, do
not read, are cut off in the handshake, send noise), closes the server, and closes the peers before or after it. It also
closes a client of ours whose server does the like to it (`BAD_SERVERS`). Several rounds run at once, in threads.

Exit status 1 if a close took longer than its bound, or a descriptor, a thread or a socket file was left. Ctrl-C ends
the run after the rounds in progress, and prints their times.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import zmq

from dyn_service import AsyncClient, Client, Robot, Server
from dyn_service.errors import DeadlineExceededError, DynError
from dyn_service.service.protocol.keys import Keys
from tests.conftest import URDF
from tests.service.conftest import TRANSPORTS, Bare, Transport, array, make_transport, request
from tests.service.protocol import rfc_peers
from tests.service.server.raw_peers import RawPeer, gauges, receive_exactly, receive_frame

ROBOT = "double_pendulum"
BATCH = 100
SETTLE_S = 20.0  # libzmq closes sockets in a thread of its own, and busy threads of servers end later
UNREAD_S = 5.0
SLEEP_S = 0.05
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST

BOUNDS_S = {"server": 10.0, "client": 0.1, "asyncio client": 0.1}
"""The longest closes that `Server.stop` and the clients state."""

SLACK_S = 0.5
"""What a machine may add. A busy one may add more: four times the longest delay of a thread that only sleeps."""


@dataclass
class Report:
    """What was closed.

    durations_s: by kind. faults: what must not happen. peers: how many of each kind. delay_s: longest delay of a thread
    that only sleeps.
    """

    rounds: int = 0
    durations_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    faults: list[str] = field(default_factory=list)
    peers: Counter[str] = field(default_factory=Counter)
    delay_s: float = 0.0

    @contextmanager
    def timed(self, kind: str) -> Iterator[None]:
        """Records how long a close takes."""
        begin_s = time.monotonic()
        yield
        self.durations_s[kind].append(time.monotonic() - begin_s)

    def late(self) -> list[str]:
        """Returns a line for each kind with a close that took longer than its bound."""
        worst = {kind: max(values) for kind, values in self.durations_s.items()}
        bounds_s = {kind: next(b for name, b in BOUNDS_S.items() if kind.startswith(name)) for kind in worst}
        return [
            f"{kind}: {worst[kind]:.3f} s, the bound is {bound_s} s"
            for kind, bound_s in bounds_s.items()
            # A close wakes several threads one after the other, and each may come as late as the thread that only
            # sleeps.
            if worst[kind] > bound_s + SLACK_S + 4.0 * self.delay_s
        ]

    def __str__(self) -> str:
        lines = [f"{'close of':28}{'number':>8}{'p50':>10}{'p99':>10}{'p99.9':>10}{'max':>10}   ms"]
        for kind, values in sorted(self.durations_s.items()):
            figures = 1e3 * np.percentile(values, [50, 99, 99.9, 100])
            lines.append(f"{kind:28}{len(values):8}" + "".join(f"{figure:10.2f}" for figure in figures))
        lines.append(f"a thread that sleeps {SLEEP_S} s: {1e3 * self.delay_s:.1f} ms late at most")
        lines.append("peers: " + ", ".join(f"{count} {kind}" for kind, count in sorted(self.peers.items())))
        return "\n".join(lines)


@dataclass
class Round:
    """One round, as its peers see it. keys: the client's, with the server's public key; None: no encryption."""

    server: Server
    keys: Keys | None
    choose: random.Random
    report: Report

    @property
    def endpoint(self) -> str:
        """The server's endpoint."""
        return self.server.endpoints[0]


# peers of a server: functions that connect one, and return what is to be closed


def reads(game: Round) -> Any:
    """A DEALER whose replies are read."""
    peer = Bare(game.endpoint, keys=game.keys)
    for _ in range(game.choose.randrange(3)):
        peer.ask(question(1))
    return peer


def reads_nothing(game: Round) -> Any:
    """A plain socket that sends requests until replies wait at the server, and reads none."""
    peer = RawPeer(game.endpoint, game.keys)
    # A small buffer at this end, so that replies wait in the server after a few requests.
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    limit_s = time.monotonic() + UNREAD_S
    with suppress(OSError):  # the server reads no more, or a busy machine needed more than 2 s for the handshake
        peer.shake_hands()
        while not gauges(game.server)["unread_bytes"] and time.monotonic() < limit_s:
            peer.socket.sendall(peer.part(question(200)))
    return peer.socket


def reads_nothing_by_libzmq(game: Round) -> Any:
    """A DEALER of libzmq that sends hundreds of requests and receives nothing."""
    peer = Bare(game.endpoint, keys=game.keys)
    peer.socket.setsockopt(zmq.SNDTIMEO, 100)
    with suppress(zmq.Again):
        for _ in range(game.choose.randrange(400)):
            peer.send(question(50))
    return peer


def is_cut_off(game: Round) -> Any:
    """A plain socket that stops at any byte of the handshake or of its first request, and is reset or stays open."""
    peer = RawPeer(game.endpoint, game.keys)
    stage = game.choose.randrange(3 if game.keys is None else 4)
    with suppress(ConnectionError):
        if peer.curve is None:
            pieces = [rfc_peers.greeting(), rfc_peers.null_ready(), peer.part(question(1))]
            peer.socket.sendall(b"".join(pieces[:stage]) + truncated(pieces[stage], game.choose))
        elif stage == 0:
            peer.socket.sendall(truncated(peer.curve.greeting(), game.choose))
        elif stage == 1:
            peer.socket.sendall(peer.curve.greeting() + truncated(peer.curve.hello(), game.choose))
        elif stage == 2:
            peer.socket.sendall(truncated(peer.curve.initiate(peer.welcome()), game.choose))
        else:
            peer.initiate(peer.welcome())
            peer.socket.sendall(truncated(peer.part(question(1)), game.choose))
    if game.choose.random() < 0.5:
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        peer.socket.close()
    return peer.socket


def sends_noise(game: Round) -> Any:
    """A plain socket that sends random bytes, before or after the handshake."""
    peer = RawPeer(game.endpoint, game.keys)
    with suppress(ConnectionError):
        if game.choose.random() < 0.5:
            peer.shake_hands()
        peer.socket.sendall(game.choose.randbytes(game.choose.choice((1, 60, 300, 100_000))))
    return peer.socket


def calls(game: Round) -> Any:
    """Our client, which a thread uses until it is closed."""
    return CallingClient(game.endpoint, game.keys, game.report)


PEERS: dict[str, Callable[[Round], Any]] = {
    "read": reads,
    "read nothing": reads_nothing,
    "read nothing, libzmq": reads_nothing_by_libzmq,
    "are cut off": is_cut_off,
    "send noise": sends_noise,
    "are our clients": calls,
}
WEIGHTS = (2, 1, 2, 4, 3, 2)  # a server waits 2 s for peers that do not read


def truncated(data: bytes, choose: random.Random) -> bytes:
    """Returns a part of the data from its begin on."""
    return data[: choose.randrange(len(data))]


def question(states: int) -> bytes:
    """Returns a request with so many states; its reply is twice as long."""
    message: bytes = msgpack.packb(request("mass_matrix", ROBOT, inputs={"q": array(np.zeros((states, 2)))}))
    return message


class CallingClient:
    """A client in use by a thread."""

    def __init__(self, endpoint: str, keys: Keys | None, report: Report) -> None:
        self._client = Client(endpoint, timeout_s=5.0, keys=keys)
        self._report = report
        self._is_closed = False
        self._thread = threading.Thread(target=self._call)
        self._thread.start()

    def _call(self) -> None:
        while not self._is_closed:
            with suppress(DynError):  # the server is gone, or the client is closed
                self._client.health()
                time.sleep(1e-3)

    def close(self) -> None:
        """Closes the client within a call of the thread, and waits for the thread."""
        self._is_closed = True
        with self._report.timed("client, within a call"):
            self._client.close()
        self._thread.join()


# servers of a client: functions that speak to it, after which they close the connection or keep it open


def is_silent(peer: socket.socket, pair: rfc_peers.KeyPair | None, choose: random.Random) -> None:
    """Sends nothing."""


def sends_random_bytes(peer: socket.socket, pair: rfc_peers.KeyPair | None, choose: random.Random) -> None:
    """Sends random bytes, some behind a greeting or a handshake."""
    greeting = rfc_peers.greeting() if pair is None else rfc_peers.CurveServer(pair).greeting()
    # Noise behind a valid beginning reaches the parser of frames; alone it ends at the greeting.
    heads = (b"", greeting, greeting + rfc_peers.null_ready(b"ROUTER"))
    peer.sendall(choose.choice(heads) + choose.randbytes(choose.choice((1, 64, 1000))))


def stops_in_handshake(peer: socket.socket, pair: rfc_peers.KeyPair | None, choose: random.Random) -> None:
    """Stops at any byte of the handshake."""
    if pair is None:
        peer.sendall(truncated(rfc_peers.greeting() + rfc_peers.null_ready(b"ROUTER"), choose))
        return
    server, stage = rfc_peers.CurveServer(pair), choose.randrange(3)
    if stage == 0:
        peer.sendall(truncated(server.greeting(), choose))
        return
    peer.sendall(server.greeting())
    receive_exactly(peer, rfc_peers.GREETING_SIZE)
    server.read_hello(receive_frame(peer).body)
    if stage == 1:
        peer.sendall(truncated(server.welcome(), choose))
        return
    peer.sendall(server.welcome())
    server.read_initiate(receive_frame(peer).body)
    peer.sendall(truncated(server.ready(), choose))


def answers_nothing(peer: socket.socket, pair: rfc_peers.KeyPair | None, choose: random.Random) -> None:
    """Completes the handshake only."""
    if pair is None:
        peer.sendall(rfc_peers.greeting() + rfc_peers.null_ready(b"ROUTER"))
        return
    server = rfc_peers.CurveServer(pair)
    peer.sendall(server.greeting())
    receive_exactly(peer, rfc_peers.GREETING_SIZE)
    server.read_hello(receive_frame(peer).body)
    peer.sendall(server.welcome())
    server.read_initiate(receive_frame(peer).body)
    peer.sendall(server.ready())


BAD_SERVERS = (is_silent, sends_random_bytes, stops_in_handshake, answers_nothing)


@contextmanager
def bad_server(pair: rfc_peers.KeyPair | None, choose: random.Random) -> Iterator[str]:
    """Yields the endpoint of a server that treats each client in another way."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:

        def serve() -> None:
            with suppress(OSError):  # the client closed, or the listener below
                while True:
                    peer = stack.enter_context(listener.accept()[0])
                    with suppress(ConnectionError):
                        choose.choice(BAD_SERVERS)(peer, pair, choose)
                    if choose.random() < 0.5:
                        peer.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
            thread.join()


def close_clients(report: Report, transport: Transport, choose: random.Random) -> None:
    """Closes a client whose server is bad, after a call or within one."""
    keys, pair = transport.keys, None
    if keys is not None:
        pair = rfc_peers.KeyPair(*(transport.server_options["key_folder"].server_keys().pair.__dict__.values()))
    with bad_server(pair, choose) as endpoint:
        kind = choose.randrange(3)
        if kind == 0:
            asyncio.run(close_async_client(report, endpoint, keys))
        elif kind == 1:
            calling = CallingClient(endpoint, keys, report)
            time.sleep(0.01)
            calling.close()
        else:
            client = Client(endpoint, timeout_s=0.02, keys=keys)
            with suppress(DynError):
                client.health()
            with report.timed("client, after a call"):
                client.close()


async def close_async_client(report: Report, endpoint: str, keys: Keys | None) -> None:
    """Closes an asyncio client with three calls in flight."""
    client = AsyncClient(endpoint, timeout_s=5.0, keys=keys)
    pending = [asyncio.ensure_future(client.health()) for _ in range(3)]
    await asyncio.sleep(0.01)
    with report.timed("asyncio client"):
        await client.close()
    for outcome in await asyncio.gather(*pending, return_exceptions=True):
        assert isinstance(outcome, DynError), outcome


def play(number: int, seed: int, robot: Robot, transports: dict[str, Transport], report: Report) -> None:
    """Plays one round; faults are added to the report."""
    choose = random.Random(f"{seed} {number}")
    name = choose.choice(TRANSPORTS)
    # At most three: a round with unread replies takes 2 s, and thousands of rounds are to be played.
    kinds = choose.choices([*PEERS], WEIGHTS, k=choose.randrange(4))
    transport = transports[name]
    # Rounds run side by side: a socket file of its own, while the system gives each TCP listener a free port.
    endpoint = f"{transport.endpoint}{number}" if name == "ipc" else transport.endpoint
    try:
        with ExitStack() as stack:
            server = Server([robot], endpoints=[endpoint], **transport.server_options)
            server.start()
            stack.callback(stop_server, server)
            game = Round(server, transport.keys, choose, report)
            for kind in kinds:
                peer = PEERS[kind](game)
                if choose.random() < 0.3:
                    peer.close()
                else:
                    stack.callback(peer.close)
            with report.timed(f"server, {name}{', unread replies' if 'read nothing' in kinds else ''}"):
                stop_server(server)
        assert name != "ipc" or not os.path.exists(endpoint.removeprefix("ipc://")), "the socket's file was left"
        close_clients(report, transport, choose)
    except Exception:  # reported
        report.faults.append(f"round {number} ({name}; {', '.join(kinds)}): {traceback.format_exc()}")
    report.peers.update(kinds)
    report.rounds += 1


def stop_server(server: Server) -> None:
    """Stops a server; one that takes too long counts by its time, because a busy machine may be the cause."""
    with suppress(DeadlineExceededError):
        server.stop()


def resources() -> tuple[int, int]:
    """Returns the numbers of descriptors and of threads of this process, once they stay the same for 0.5 s."""
    limit_s = time.monotonic() + SETTLE_S
    numbers, same = (0, 0), 0
    while same < 10 and time.monotonic() < limit_s:
        latest = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
        same = same + 1 if latest == numbers else 0
        numbers = latest
        time.sleep(0.05)
    return numbers


@contextmanager
def delays_measured(report: Report) -> Iterator[None]:
    """Measures meanwhile how late a thread is that only sleeps."""
    stop = threading.Event()

    def measure() -> None:
        while not stop.is_set():
            begin_s = time.monotonic()
            time.sleep(SLEEP_S)
            report.delay_s = max(report.delay_s, time.monotonic() - begin_s - SLEEP_S)

    thread = threading.Thread(target=measure)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def run(
    count: int, seed: int, jobs: int, minutes: float = 60.0, show: Callable[[str], None] = lambda line: None
) -> Report:
    """Plays rounds until there are `count`, the time has passed, or there is a fault.

    jobs: rounds at a time. show: called with a line of progress.
    """
    robot = Robot.from_urdf(URDF / f"{ROBOT}.urdf")
    robot.prepare(("mass_matrix",))
    report, begin_s = Report(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool, delays_measured(report):
        transports = {name: make_transport(name, Path(folder)) for name in TRANSPORTS}

        def play_batch(first: int, stop: int, batch_report: Report) -> None:
            futures = [
                pool.submit(play, number, seed, robot, transports, batch_report) for number in range(first, stop)
            ]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise

        try:
            play_batch(-2 * jobs, 0, Report())  # afterwards all modules are loaded, and all threads of the pool run
            base = resources()
            while report.rounds < count and time.monotonic() - begin_s < 60.0 * minutes and not report.faults:
                play_batch(report.rounds, min(count, report.rounds + BATCH), report)
                numbers = resources()
                # Compared with a base after two batches: the pool, lazily imported modules and libzmq's threads stay
                # for good.
                if any(number > limit for number, limit in zip(numbers, base, strict=True)):
                    report.faults.append(f"descriptors and threads: {numbers}, before the first round {base}")
                longest_s = max(max(values) for values in report.durations_s.values())
                duration_s = time.monotonic() - begin_s
                show(f"{report.rounds} of {count} rounds, {duration_s:.0f} s, longest close {longest_s:.2f} s")
        except KeyboardInterrupt:
            report.faults.append(f"interrupted after {report.rounds} rounds")
    return report


def main() -> int:
    """The long run; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m qa.faults closes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=60.0, help="no further rounds after this time")
    parser.add_argument("--jobs", type=int, default=8, help="rounds at a time")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    logging.getLogger("dyn_service").setLevel(logging.ERROR)  # each bad peer is a warning

    def show(line: str) -> None:
        start, end = ("\r\x1b[K", "") if sys.stderr.isatty() else ("", "\n")
        print(f"{start}{line}", end=end, file=sys.stderr, flush=True)

    report = run(options.count, options.seed, options.jobs, options.minutes, show)
    faults = report.faults + report.late()
    print(f"\n{report.rounds} rounds\n{report}")
    print(*(faults or ["all closes within their bounds, nothing left"]), sep="\n")
    return int(bool(faults))

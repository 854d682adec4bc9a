"""Random streams over ZMTP, most of them nearly right, while a good client sends requests.

    python -m qa.faults streams [--count 10000] [--seed 0]

Each connection begins as a DEALER does, up to some point, and goes on with frames that are cut, long, mutated or plain
noise. The server must neither end nor let the good client wait, and answer nothing with INTERNAL.
"""

from __future__ import annotations

import argparse
import random
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

import msgpack
import numpy as np

from dyn_service import Client, Robot
from qa.load.serving import served
from tests.conftest import URDF
from tests.service.conftest import array, request
from tests.service.server.test_zmtp import HELLO, command, frame, ready


@dataclass
class Good:
    """What a client saw that asked well. slow: answers that took over 0.2 s, with their times."""

    asked: int = 0
    wrong: int = 0
    slow: list[float] = field(default_factory=list)


def ask_well(endpoint: str, robot: str, stop: threading.Event, seen: Good) -> None:
    """Asks until told to stop; each answer is held against the robot in this process."""
    local = Robot.from_urdf(URDF / f"{robot}.urdf")
    q = np.random.default_rng(0).uniform(-1.0, 1.0, (64, local.nv))
    expected = [local.gravity_forces(each).tobytes() for each in q]
    with Client(endpoint, timeout_s=20.0) as client:
        remote = client.robot(robot)
        remote.gravity_forces(q[0])
        while not stop.is_set():
            k, begun = seen.asked % len(q), time.perf_counter()
            answer = remote.gravity_forces(q[k])
            took = time.perf_counter() - begun
            seen.asked += 1
            seen.wrong += answer.tobytes() != expected[k]
            if took > 0.2:
                seen.slow.append(took)
            time.sleep(0.002)


def payload(draw: random.Random) -> bytes:
    """A request, or nearly one, or none."""
    queries = ("gravity_forces", "mass_matrix", "inverse_dynamics", "health", "stats", "simulate", "verify", "nothing")
    shape = draw.choice(((2,), (1,), (3, 2), (0, 2), (50, 2)))
    inputs = {name: array(np.full(shape, draw.uniform(-9, 9))) for name in draw.sample(("q", "v", "a", "tau", "dt"), 3)}
    whole = request(draw.choice(queries), "double_pendulum", id=draw.randrange(1 << 40), inputs=inputs)
    whole |= draw.choice(
        ({}, {"deadline_ms": draw.uniform(0.1, 1e3)}, {"options": {"steps": 3}}, {"v": draw.randrange(9)})
    )
    data = bytearray(msgpack.packb(whole))
    for _ in range(draw.choice((0, 0, 1, 3, 20))):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data[: draw.choice((len(data), len(data), draw.randrange(len(data) + 1)))])


def piece(draw: random.Random) -> bytes:
    """Something that a peer may send."""
    kinds = (
        lambda: frame(payload(draw), more=draw.random() < 0.2),
        lambda: frame(payload(draw), more=draw.random() < 0.2),
        lambda: frame(b"", more=True) * draw.choice((1, 2, 15, 17, 3000)),
        lambda: command(draw.choice((b"PING", b"PONG", b"READY", b"ERROR", b"X")), draw.randbytes(9)),
        lambda: b"\2" + draw.randrange(1 << draw.choice((8, 20, 30, 63))).to_bytes(8, "big") + b"x" * 500,
        lambda: draw.randbytes(draw.randrange(200)),
    )
    return draw.choice(kinds)()


def stream(draw: random.Random) -> bytes:
    """What goes over one connection."""
    hello = HELLO + ready(draw.choice((b"DEALER", b"REQ", b"DEALER", b"SUB")))
    whole = bytearray(hello + b"".join(piece(draw) for _ in range(draw.randrange(12))))
    if draw.random() < 0.3:
        whole[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
    return bytes(whole[: len(whole) if draw.random() < 0.7 else draw.randrange(len(whole))])


def attack(endpoint: str, count: int, seed: int) -> None:
    """Sends so many streams, some of them at once, and reads what comes back, or does not."""
    host, port = endpoint.removeprefix("tcp://").split(":")
    draw, kept = random.Random(seed), []
    for _ in range(count):
        with suppress(OSError):
            peer = socket.create_connection((host, int(port)), timeout=2.0)
            kept.append(peer)
            peer.settimeout(0.05)
            data = stream(draw)
            for at in range(0, len(data), cut := draw.choice((1 << 20, 7, 100))):
                peer.sendall(data[at : at + cut])
                if at > 40 * cut:
                    peer.sendall(data[at + cut :])
                    break
            if draw.random() < 0.3:
                peer.recv(1 << 16)
        while len(kept) > draw.choice((0, 20, 60)):
            kept.pop(0).close()
    for peer in kept:
        peer.close()


def run(count: int, seed: int) -> tuple[Good, dict[str, int]]:
    """What the good client saw, and the server's errors by code."""
    with served(robot="double_pendulum") as (endpoint, _):
        stop, seen = threading.Event(), Good()
        good = threading.Thread(target=ask_well, args=(endpoint, "double_pendulum", stop, seen))
        good.start()
        try:
            attack(endpoint, count, seed)
        finally:
            stop.set()
            good.join()
        with Client(endpoint, timeout_s=20.0) as client:
            return seen, client.stats()["errors"]


def main() -> int:
    """The long run; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    seen, errors = run(given.count, given.seed)
    print(f"{given.count} streams; a good client asked {seen.asked} times, {seen.wrong} answers were wrong, ", end="")
    print(f"{len(seen.slow)} took over 0.2 s (longest {max(seen.slow, default=0.0):.2f}); errors: {errors}")
    return 1 if seen.wrong or "INTERNAL" in errors else 0

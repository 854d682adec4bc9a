"""Random streams over ZMTP, NULL and CURVE, most of them nearly right, while a good client sends requests.

    python -m qa.faults streams [--count 10000] [--seed 0]

Each connection begins as a DEALER does, up to some point, and goes on with frames that are cut, long, mutated or plain
noise; over CURVE most of them are encrypted with an allowed key, so that they reach the code behind the boxes. The
server must neither end nor let the good client wait, and answer nothing with INTERNAL.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgpack
import numpy as np

from dyn_service import Client, Robot
from dyn_service.service.protocol.keys import Keys
from qa.load.serving import make_keys, served
from tests.conftest import URDF
from tests.service.conftest import array, request
from tests.service.protocol.rfc_peers import command, greeting, null_ready
from tests.service.server.raw_peers import MECHANISMS, RawPeer


@dataclass
class Good:
    """What a client saw that asked well. slow: answers that took over 0.2 s, with their times."""

    calls: int = 0
    wrong: int = 0
    slow: list[float] = field(default_factory=list)


def ask_well(endpoint: str, keys: Keys | None, robot: str, stop: threading.Event, seen: Good) -> None:
    """Asks until told to stop; each answer is held against the robot in this process."""
    local = Robot.from_urdf(URDF / f"{robot}.urdf")
    q = np.random.default_rng(0).uniform(-1.0, 1.0, (64, local.nv))
    expected = [local.gravity_forces(position).tobytes() for position in q]
    with Client(endpoint, timeout_s=20.0, keys=keys) as client:
        remote = client.robot(robot)
        remote.gravity_forces(q[0])
        while not stop.is_set():
            k, start_s = seen.calls % len(q), time.perf_counter()
            answer = remote.gravity_forces(q[k])
            duration_s = time.perf_counter() - start_s
            seen.calls += 1
            seen.wrong += answer.tobytes() != expected[k]
            if duration_s > 0.2:
                seen.slow.append(duration_s)
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
    # Often none, so that valid requests arrive between damaged ones and their replies are owed.
    for _ in range(draw.choice((0, 0, 1, 3, 20))):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data[: draw.choice((len(data), len(data), draw.randrange(len(data) + 1)))])


def piece(peer: RawPeer, draw: random.Random) -> bytes:
    """Something that a peer may send."""
    kinds = (
        lambda: peer.part(payload(draw), continued=draw.random() < 0.2),
        lambda: peer.part(payload(draw), continued=draw.random() < 0.2),
        lambda: b"".join(peer.part(b"", continued=True) for _ in range(draw.choice((1, 2, 15, 17, 3000)))),
        lambda: peer.command(draw.choice((b"PING", b"PONG", b"READY", b"ERROR", b"X")), draw.randbytes(9)),
        # The length by its exponent: a uniform number below 2^63 would always be beyond the limit.
        lambda: b"\2" + draw.randrange(1 << draw.choice((8, 20, 30, 63))).to_bytes(8, "big") + b"x" * 500,
        lambda: draw.randbytes(draw.randrange(1, 200)),
    )
    return draw.choice(kinds)()


def stream(peer: RawPeer, draw: random.Random) -> bytes:
    """What goes over one connection, whose handshake is done if it is encrypted."""
    pieces = draw.randrange(1, 12)
    if peer.curve is None:
        begin = greeting(minor=0) + null_ready(draw.choice((b"DEALER", b"REQ", b"DEALER", b"SUB")))
    elif draw.random() < 0.4:
        begin = peer.curve.greeting() + peer.curve.hello()
        begin += command(b"INITIATE", draw.randbytes(draw.choice((10, 300, 3000)))) * draw.randrange(3)
        pieces = 0  # they have no key
    else:
        peer.shake_hands()
        begin = b""
    whole = bytearray(begin + b"".join(piece(peer, draw) for _ in range(pieces)))
    if draw.random() < 0.3:
        whole[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
    return bytes(whole[: len(whole) if draw.random() < 0.7 else draw.randrange(len(whole))])


def attack(endpoint: str, keys: Keys | None, count: int, seed: int) -> None:
    """Sends so many streams, some of them at once, and reads what comes back, or does not."""
    draw, connections = random.Random(seed), []
    for _ in range(count):
        with suppress(OSError):
            peer = RawPeer(endpoint, keys)
            connections.append(peer.socket)
            peer.socket.settimeout(2.0)
            data = stream(peer, draw)
            peer.socket.settimeout(0.05)
            for start in range(0, len(data), size := draw.choice((1 << 20, 7, 100))):
                peer.socket.sendall(data[start : start + size])
                # Forty small pieces are enough to split every header; a large stream byte by byte would take minutes.
                if start > 40 * size:
                    peer.socket.sendall(data[start + size :])
                    break
            if draw.random() < 0.3:
                peer.socket.recv(1 << 16)
        while len(connections) > draw.choice((0, 20, 60)):
            connections.pop(0).close()
    for connection in connections:
        connection.close()


def run(count: int, seed: int, mechanism: str) -> tuple[Good, dict[str, int]]:
    """What the good client saw, and the server's errors by code. mechanism: NULL or CURVE."""
    with tempfile.TemporaryDirectory() as folder:
        keys = make_keys(Path(folder)) if mechanism == "CURVE" else None
        keys_folder = None if keys is None else Path(folder)
        with served(robot="double_pendulum", quiet=True, keys_folder=keys_folder) as (endpoint, _):
            stop, seen = threading.Event(), Good()
            good = threading.Thread(target=ask_well, args=(endpoint, keys, "double_pendulum", stop, seen))
            good.start()
            try:
                attack(endpoint, keys, count, seed)
            finally:
                stop.set()
                good.join()
            with Client(endpoint, timeout_s=20.0, keys=keys) as client:
                return seen, client.stats()["errors"]


def main() -> int:
    """The long run; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="streams of each mechanism")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    failed = False
    for mechanism in MECHANISMS:
        seen, errors = run(options.count, options.seed, mechanism)
        print(f"{mechanism}: {options.count} streams; a good client asked {seen.calls} times, ", end="")
        print(f"{seen.wrong} answers were wrong, {len(seen.slow)} took over 0.2 s ", end="")
        print(f"(longest {max(seen.slow, default=0.0):.2f}); errors: {errors}", flush=True)
        failed |= bool(seen.wrong) or "INTERNAL" in errors
    return int(failed)

"""Floods of a server: what other clients and the server's memory notice.

    python -m qa.faults floods [--seconds 10]

Each flood (`FLOODS`) runs against an open and an encrypted server while new clients connect one after another, each of
them sends one request, and a client that was there before goes on. Exit status 1 if a new client gets no answer, an
answer is wrong, or the server's memory grows by more than its limits allow.
"""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np

from dyn_service import Client, Robot
from dyn_service.errors import DynError
from dyn_service.service.protocol.keys import Keys
from dyn_service.service.protocol.limits import RequestLimits
from qa.faults.closes import question
from qa.load.serving import make_keys, served
from tests.conftest import URDF
from tests.service.server.raw_peers import MECHANISMS, RawPeer, connected

ROBOT = "double_pendulum"
PART_BYTES = 1 << 20
MARGIN_BYTES = 96 << 20
"""What the server's memory may grow by besides the stated limits."""

Flood = Callable[[str, Keys | None, threading.Event], int]
"""Floods an endpoint until the event is set, and returns how much it sent."""


def silent_connections(endpoint: str, keys: Keys | None, stop: threading.Event) -> int:
    """Opens connections that send nothing, and keeps the last thousands open."""
    connections: list[socket.socket] = []
    count = 0
    while not stop.is_set():
        with suppress(OSError):
            connections.append(connected(endpoint))
            count += 1
        # The oldest go, so that the flood lasts: else this process ran out of descriptors before the server did.
        if len(connections) > 2000:
            connections.pop(0).close()
    for connection in connections:
        connection.close()
    return count


def endless_parts(endpoint: str, keys: Keys | None, stop: threading.Event) -> int:
    """Sends messages of empty parts without an end; connects again when it is disconnected."""
    count = 0
    while not stop.is_set():
        with suppress(OSError), RawPeer(endpoint, keys) as peer:
            peer.shake_hands()
            parts = b"".join(peer.part(b"", continued=True) for _ in range(1000))
            while not stop.is_set():
                peer.socket.sendall(parts)
                count += 1000
    return count


def unfinished_messages(endpoint: str, keys: Keys | None, stop: threading.Event) -> int:
    """Sends the first megabytes of messages of 60 MB, over many connections; returns megabytes."""
    count = 0
    # A long frame that states 60 MB and begins: the server must not reserve what was only stated.
    head = b"\2" + (60 << 20).to_bytes(8, "big") + bytes(PART_BYTES)
    while not stop.is_set():
        with ExitStack() as stack, suppress(OSError):
            for _ in range(50):
                peer = stack.enter_context(RawPeer(endpoint, keys)).shake_hands()
                peer.socket.sendall(head)
                for _ in range(10):
                    peer.socket.sendall(bytes(PART_BYTES))
                    count += 1
                if stop.is_set():
                    break
    return count


def unread_replies(endpoint: str, keys: Keys | None, stop: threading.Event) -> int:
    """Sends requests over many connections and reads no reply; returns the number of requests."""
    count = 0
    while not stop.is_set():
        with ExitStack() as stack, suppress(OSError):
            for _ in range(50):
                peer = stack.enter_context(RawPeer(endpoint, keys)).shake_hands()
                # The server stops reading from a peer that does not read; that is what ends the inner loop.
                peer.socket.settimeout(0.5)
                with suppress(OSError):
                    for _ in range(200):
                        peer.socket.sendall(peer.part(question(2000)))
                        count += 1
                if stop.is_set():
                    break
    return count


FLOODS: dict[str, Flood] = {
    "silent connections": silent_connections,
    "endless parts": endless_parts,
    "MB of unfinished messages": unfinished_messages,
    "requests with unread replies": unread_replies,
}


def resident_bytes(pid: int) -> int:
    """Returns the memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def run(flood: Flood, mechanism: str, duration_s: float) -> tuple[str, bool]:
    """Returns a line of figures, and whether all was as promised. mechanism: NULL or CURVE."""
    q = np.array([0.3, -0.4])
    expected = Robot.from_urdf(URDF / f"{ROBOT}.urdf").gravity_forces(q).tobytes()
    limits, stop = RequestLimits(), threading.Event()
    counts: list[int] = []
    answers = wrong = refusals = 0
    longest_s, peak_bytes = 0.0, 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        keys = make_keys(folder) if mechanism == "CURVE" else None
        server = served(robot=ROBOT, quiet=True, keys_folder=None if keys is None else folder)
        endpoint, pid = stack.enter_context(server)
        robot = stack.enter_context(Client(endpoint, timeout_s=20.0, keys=keys)).robot(ROBOT)
        initial_bytes = resident_bytes(pid)
        thread = threading.Thread(target=lambda: counts.append(flood(endpoint, keys, stop)))
        thread.start()
        end_s = time.monotonic() + duration_s
        while (begin_s := time.monotonic()) < end_s:
            try:
                # A new connection each time: an old one could be served while nobody else gets in.
                with Client(endpoint, timeout_s=20.0, keys=keys) as newcomer:
                    newcomer.health()
                wrong += robot.gravity_forces(q).tobytes() != expected
                answers += 1
            except DynError:
                refusals += 1
            longest_s = max(longest_s, time.monotonic() - begin_s)
            peak_bytes = max(peak_bytes, resident_bytes(pid))
        stop.set()
        thread.join()
    limit_bytes = limits.max_unfinished_bytes + limits.max_unread_bytes + MARGIN_BYTES
    line = (
        f"{counts[0]:9}; {answers} of {answers + refusals} new clients answered, {wrong} wrong, the slowest in "
        f"{longest_s:.2f} s; memory {initial_bytes >> 20} to {peak_bytes >> 20} MB"
    )
    return line, not wrong and not refusals and peak_bytes - initial_bytes < limit_bytes


def main() -> int:
    """The long run; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m qa.faults floods", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of each flood (default: 10)")
    duration_s = parser.parse_args().seconds
    failed = False
    for mechanism in MECHANISMS:
        for name, flood in FLOODS.items():
            line, is_good = run(flood, mechanism, duration_s)
            print(f"{mechanism:6}{name:30}{line}{'' if is_good else '; not as promised'}", flush=True)
            failed |= not is_good
    return int(failed)

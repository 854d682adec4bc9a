"""What topics cost at a control loop's rates: sockets of pyzmq compared with plain Unix sockets.

A plant process sleeps to the deadlines of 1 kHz; at each second one it publishes a state, and at each it takes the
newest command, without waiting. A controller process waits for states and answers each by a command. The messages are
of the sizes of the README's launch. The two transports alternate in rounds, each with new processes. Plain sockets have
frames of ZMTP and take the newest of those that have arrived, without handshake, discovery or bounds.

Printed per message that the plant sends or receives: the latency of a state from before its sending to after its
receiving, the CPU time of both processes with all of their threads, and their voluntary context switches.

    python -m benchmarks.topics [--seconds 5] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import zmq

STATE_BYTES, COMMAND_BYTES = 600, 370
"""Of the Panda's `PlantState` and `JointCommand`."""
PERIOD_S = 1e-3
HEADER = struct.Struct(">BQ")

Send, Take, Wait = Callable[[bytes], object], Callable[[], "bytes | None"], Callable[[], "bytes | None"]


def main() -> None:
    """Runs the benchmark, or with `--role` is one of its processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a round (default: 5)")
    parser.add_argument("--rounds", type=int, default=3, help="of each transport (default: 3)")
    parser.add_argument("--role", nargs=3, metavar=("ROLE", "TRANSPORT", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        role, transport, folder = arguments.role
        print(json.dumps({"plant": plant, "controller": controller}[role](transport, folder, arguments.seconds)))
        return
    rounds: dict[str, list[dict[str, float]]] = {"pyzmq": [], "plain": []}
    for _ in range(arguments.rounds):
        for transport, results in rounds.items():
            results.append(measure(transport, arguments.seconds))
    print(f"{'':34}{'pyzmq':>10}{'plain':>10}   medians of {arguments.rounds} rounds")
    for name in rounds["pyzmq"][0]:
        medians = (statistics.median(figures[name] for figures in results) for results in rounds.values())
        print(f"{name:34}" + "".join(f"{median:10.1f}" for median in medians))


def measure(transport: str, seconds: float) -> dict[str, float]:
    """Returns the figures of one round."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--seconds", str(seconds), "--role"]
        processes = [
            subprocess.Popen([*command, role, transport, folder], stdout=subprocess.PIPE, text=True)
            for role in ("plant", "controller")
        ]
        results = [json.loads(process.communicate(timeout=seconds + 30.0)[0]) for process in processes]
    roles = zip(("plant", "controller"), results, strict=True)
    return {f"{role}: {name}": figure for role, figures in roles for name, figure in figures.items()}


def plant(transport: str, folder: str, seconds: float) -> dict[str, float]:
    """The plant's process."""
    send, take, _ = open_topics(transport, folder, "state", "command")
    while take() is None:  # until the controller is connected
        send(bytes(STATE_BYTES))
        time.sleep(0.01)
    periods = round(seconds / PERIOD_S)
    received, start_s, usage = 0, time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    for k in range(periods):
        time.sleep(max(0.0, start_s + k * PERIOD_S - time.monotonic()))
        received += take() is not None
        # States at half of the rate, as in the README's launch: 500 Hz of a plant at 1 kHz.
        if k % 2:
            send(time.monotonic_ns().to_bytes(8, "big") + bytes(STATE_BYTES - 8))
    costs = spent(usage, periods // 2)
    send(b"end" + bytes(STATE_BYTES - 3))
    time.sleep(0.2)
    return {**costs, "commands received, %": 100.0 * received / (periods // 2)}


def controller(transport: str, folder: str, seconds: float) -> dict[str, float]:
    """The controller's process."""
    send, _, wait = open_topics(transport, folder, "command", "state")
    latencies: list[float] = []
    usage = None
    while True:
        state = wait()
        now_ns = time.monotonic_ns()
        if state is not None and state.startswith(b"end"):
            break
        send(bytes(COMMAND_BYTES))
        # States without a time are those that were sent until both ends had connected.
        if state is not None and any(state[:8]):
            usage = usage or resource.getrusage(resource.RUSAGE_SELF)
            latencies.append(1e-3 * (now_ns - int.from_bytes(state[:8], "big")))
    assert usage is not None
    quantiles = statistics.quantiles(latencies, n=100)
    return {**spent(usage, len(latencies)), "latency p50, us": quantiles[49], "latency p99, us": quantiles[98]}


def spent(usage: resource.struct_rusage, messages: int) -> dict[str, float]:
    """Returns what this process has used since `usage`, per message."""
    now = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = now.ru_utime + now.ru_stime - usage.ru_utime - usage.ru_stime
    return {"CPU time, us": 1e6 * cpu_s / messages, "context switches": (now.ru_nvcsw - usage.ru_nvcsw) / messages}


def open_topics(transport: str, folder: str, publishes: str, hears: str) -> tuple[Send, Take, Wait]:
    """Returns functions that send, take the newest message without waiting, and wait for one."""
    return {"pyzmq": of_pyzmq, "plain": of_sockets}[transport](Path(folder), publishes, hears)


def of_pyzmq(folder: Path, publishes: str, hears: str) -> tuple[Send, Take, Wait]:
    """Sockets as the package's topics have them."""
    context = zmq.Context.instance()
    out, inward = context.socket(zmq.XPUB), context.socket(zmq.SUB)
    # Before it connects: libzmq ignores the option afterwards.
    inward.setsockopt(zmq.CONFLATE, 1)
    inward.setsockopt(zmq.SUBSCRIBE, b"")
    out.bind(f"ipc://{folder}/{publishes}")
    inward.connect(f"ipc://{folder}/{hears}")

    def take() -> bytes | None:
        return inward.recv(zmq.NOBLOCK) if inward.getsockopt(zmq.EVENTS) & zmq.POLLIN else None

    def wait() -> bytes | None:
        return inward.recv(zmq.NOBLOCK) if zmq.zmq_poll([(inward, zmq.POLLIN)], 1000) else None

    return lambda message: out.send(message, zmq.NOBLOCK), take, wait


def of_sockets(folder: Path, publishes: str, hears: str) -> tuple[Send, Take, Wait]:
    """A stream socket for each topic."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / f"{publishes}.part"))
    listener.listen()
    # Renamed when it listens: the peer connects as soon as the name exists.
    os.rename(folder / f"{publishes}.part", folder / publishes)
    inward = socket.socket(socket.AF_UNIX)
    while True:
        try:
            inward.connect(str(folder / hears))
            break
        except FileNotFoundError:
            time.sleep(0.01)
    out, _ = listener.accept()
    stream = bytearray()

    def newest() -> bytes | None:
        message = None
        while len(stream) >= HEADER.size:
            size = HEADER.size + HEADER.unpack_from(stream)[1]
            if len(stream) < size:
                break
            message = bytes(stream[HEADER.size : size])
            del stream[:size]
        return message

    def take() -> bytes | None:
        try:
            stream.extend(inward.recv(1 << 16, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return None
        return newest()

    def wait() -> bytes | None:
        stream.extend(inward.recv(1 << 16))
        return newest()

    def send(message: bytes) -> None:
        out.send(HEADER.pack(2, len(message)) + message, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    return send, take, wait


if __name__ == "__main__":
    main()

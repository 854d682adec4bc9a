"""How much a request costs beyond the socket: a `dyn serve` process against a bare ZeroMQ echo process.

The echo is a Python loop over a ROUTER that answers each message with fixed bytes. It gets requests of the same size
as the service's and sends replies of the same size; its client is a DEALER socket with the same options, sends the
same bytes and waits in the same blocking call. Calls alternate between the two in blocks of 50, so that both see the
same machine. What the ratio shows: building the request, reading it, the dynamics, writing the reply, reading it, all
in Python. What it does not show: networks, several clients, batches.

    python benchmarks/round_trip.py [--calls 10000] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter_ns

import numpy as np
import zmq
from msgspec import UNSET

from dyn_service import Client, RemoteRobot
from dyn_service.client.core import pack_inputs, pack_request
from dyn_service.client.sockets import prepare

URDF = Path(__file__).parents[1] / "urdf" / "panda.urdf"
BLOCK = 50
WARM_UP = 1000


def main() -> None:
    """Runs the benchmark, or with `--echo` is the echo process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000, help="calls of each kind")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--echo", nargs=2, metavar=("ENDPOINT", "BYTES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.echo:
        echo(arguments.echo[0], int(arguments.echo[1]))
        return
    rows = measure(arguments.calls)
    if arguments.json:
        print(json.dumps({"machine": machine(), "calls": arguments.calls, "rows": rows}, indent=2))
        return
    print(machine())
    print(f"us, {arguments.calls} calls each, after {WARM_UP} to warm up, alternating in blocks of {BLOCK}\n")
    print(f"{'':34}{'p50':>8}{'p99':>8}{'p99.9':>8}   ratio of p50 (spread over 10 parts)")
    for row in rows:
        for kind in ("echo", "service"):
            figures = "".join(f"{row[kind][name]:8.1f}" for name in ("p50", "p99", "p99.9"))
            label = f"{row['transport']} {row['query']} {kind}"
            tail = f"   {row['ratio']:.3f} ({row['ratio_low']:.3f} to {row['ratio_high']:.3f})"
            print(f"{label:34}{figures}{tail if kind == 'service' else ''}")


def measure(calls: int) -> list[dict]:
    """The figures for each transport and query."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for transport, place in (("ipc", "ipc://{folder}/{name}"), ("tcp", "tcp://127.0.0.1:0")):
            serve = [sys.executable, "-m", "dyn_service", "serve", str(URDF), "--bind"]
            server, endpoint = start([*serve, place.format(folder=folder, name="serve")])
            try:
                with Client(endpoint, timeout_s=10.0) as client:
                    panda = client.robot("panda")
                    for query, inputs in questions(panda.nv).items():
                        request, reply = exchange(endpoint, panda, query, inputs)
                        script = [sys.executable, __file__, "--echo", place.format(folder=folder, name=query)]
                        echo_server, echo_endpoint = start([*script, str(len(reply))])
                        try:
                            ask = partial(getattr(panda, query), **inputs)
                            figures = alternate(bare(echo_endpoint, request), ask, calls)
                        finally:
                            stop(echo_server)
                        size = {"request_bytes": len(request), "reply_bytes": len(reply)}
                        rows.append({"transport": transport, "query": query, **size, **figures})
            finally:
                stop(server)
    return rows


def questions(nv: int) -> dict[str, dict]:
    """The inputs of one state, as a control loop sends them."""
    q, v, a, q_ref, v_ref = np.random.default_rng(0).uniform(-0.5, 0.5, (5, nv))
    gains = {"kp": 100.0, "kd": 20.0}
    return {
        "inverse_dynamics": {"q": q, "v": v, "a": a},
        "computed_torque": {"q": q, "v": v, "q_ref": q_ref, "v_ref": v_ref, "a_ref": a, **gains},
    }


def exchange(endpoint: str, panda: RemoteRobot, query: str, inputs: dict) -> tuple[bytes, bytes]:
    """A request and its reply, in bytes."""
    for _ in range(2):  # the first may bring times of unusual size
        request = pack_request(2**63, query, panda.name, pack_inputs(inputs), UNSET, panda.fingerprint, 1e4)
        reply = bare(endpoint, request)()
    return request, reply


def bare(endpoint: str, request: bytes) -> Callable[[], bytes]:
    """A round trip of a bare socket."""
    socket = prepare(zmq.Context.instance().socket(zmq.DEALER))
    socket.setsockopt(zmq.RCVTIMEO, 10_000)
    socket.connect(endpoint)

    def ask() -> bytes:
        socket.send(request)
        return socket.recv()

    return ask


def alternate(echo_ask: Callable[[], object], ask: Callable[[], object], calls: int) -> dict:
    """Percentiles of both, in microseconds, and the ratio of their medians."""
    times: dict[str, list[int]] = {"echo": [], "service": []}
    for call in (echo_ask, ask):
        for _ in range(WARM_UP):
            call()
    for _ in range(calls // BLOCK):
        for kind, call in (("echo", echo_ask), ("service", ask)):
            record = times[kind].append
            for _ in range(BLOCK):
                begun = perf_counter_ns()
                call()
                record(perf_counter_ns() - begun)
    parts = {kind: np.array_split(np.array(values) / 1e3, 10) for kind, values in times.items()}
    ratios = [float(np.median(s) / np.median(e)) for s, e in zip(parts["service"], parts["echo"], strict=True)]
    result: dict = {
        kind: dict(zip(("p50", "p99", "p99.9"), np.percentile(values, (50, 99, 99.9)) / 1e3, strict=True))
        for kind, values in times.items()
    }
    result["ratio"] = result["service"]["p50"] / result["echo"]["p50"]
    return {**result, "ratio_low": min(ratios), "ratio_high": max(ratios)}


def echo(endpoint: str, reply_bytes: int) -> None:
    """The bare server: whatever comes in, the same bytes go out."""
    router = zmq.Context.instance().socket(zmq.ROUTER)
    router.bind(endpoint)
    print("ready:", router.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0"), flush=True)
    reply = bytes(reply_bytes)
    while True:
        sender, _ = router.recv_multipart()
        router.send_multipart([sender, reply])


def start(command: list[str]) -> tuple[subprocess.Popen[str], str]:
    """The process, and the endpoint that it says it listens on."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("ready: "):
        raise SystemExit(f"no server: {' '.join(command)}")
    return process, line.split()[1]


def stop(process: subprocess.Popen[str]) -> None:
    """Ends the process."""
    process.terminate()
    process.wait(10)


def machine() -> str:
    """What this ran on."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].partition(":")[2].strip() if lines else model
    versions = f"Python {platform.python_version()}, pyzmq {zmq.pyzmq_version()}, ZeroMQ {zmq.zmq_version()}"
    return f"{model}, {os.cpu_count()} cores, {versions}"


if __name__ == "__main__":
    main()

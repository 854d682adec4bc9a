"""How much a request costs beyond the socket: a `dyn serve` process against a bare ZeroMQ echo process.

The echo is a Python loop over a ROUTER that answers each message with fixed bytes. It gets requests of the same size
as the service's and sends replies of the same size; its client is a DEALER socket with the same options, sends the
same bytes and waits in the same blocking call. Calls alternate between the two in blocks of 50, so that both see the
same machine. Where the processes come to run is chance, and some places are slower: so each figure is taken anew, with
new processes, `--rounds` times, and the table shows the round with the median ratio.

What the ratio shows: writing the request, reading it, the dynamics, writing the reply, reading it, all in Python. What
it does not show: networks, several clients, batches.

    python benchmarks/round_trip.py [--calls 4000] [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter_ns

import numpy as np
import zmq
from msgspec import UNSET

from dyn_service import QUERIES, Client, RemoteRobot
from dyn_service.service.client.flows import pack_inputs, pack_request

URDF = Path(__file__).parents[1] / "urdf" / "panda.urdf"
BLOCK = 50
WARM_UP = 1000


def main() -> None:
    """Runs the benchmark, or with `--echo` is the echo process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=4000, help="calls of each kind in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--echo", nargs=2, metavar=("ENDPOINT", "BYTES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.echo:
        echo(arguments.echo[0], int(arguments.echo[1]))
        return
    rows = [
        median_round(transport, query, arguments.calls, arguments.rounds)
        for transport in ("ipc", "tcp")
        for query in ("inverse_dynamics", "computed_torque")
    ]
    if arguments.json:
        print(json.dumps({"machine": machine(), "calls": arguments.calls, "rows": rows}, indent=2))
        return
    print(machine())
    print(f"us; median of {arguments.rounds} rounds of {arguments.calls} calls each, after {WARM_UP} to warm up\n")
    print(f"{'':34}{'p50':>8}{'p99':>8}{'p99.9':>8}   ratio of p50 (all rounds)")
    for row in rows:
        for kind in ("echo", "service"):
            figures = "".join(f"{row[kind][name]:8.1f}" for name in ("p50", "p99", "p99.9"))
            label = f"{row['transport']} {row['query']} {kind}"
            ratios = ", ".join(f"{ratio:.2f}" for ratio in row["ratios"])
            tail = f"   {row['ratio']:.2f} ({ratios})" if kind == "service" else ""
            print(f"{label:34}{figures}{tail}")


def median_round(transport: str, query: str, calls: int, rounds: int) -> dict:
    """The round whose ratio is the median one, with the ratios of all."""
    found = sorted((measure(transport, query, calls) for _ in range(rounds)), key=lambda row: row["ratio"])
    return {**found[len(found) // 2], "ratios": [row["ratio"] for row in found]}


def measure(transport: str, query: str, calls: int) -> dict:
    """The figures for one transport and query, with processes of their own."""
    with tempfile.TemporaryDirectory() as folder:
        place = {"ipc": f"ipc://{folder}/{{}}", "tcp": "tcp://127.0.0.1:0"}[transport]
        serve = [sys.executable, "-m", "dyn_service", "serve", str(URDF), "--bind", place.format("serve")]
        with serving(serve) as endpoint, Client(endpoint, timeout_s=10.0) as client:
            panda = client.robot("panda")
            inputs = questions(panda.nv)[query]
            request, reply = exchange(endpoint, panda, query, inputs)
            echo_command = [sys.executable, __file__, "--echo", place.format("echo"), str(len(reply))]
            with serving(echo_command) as echo_endpoint, bare(echo_endpoint, request) as echo_ask:
                figures = alternate(echo_ask, partial(getattr(panda, query), **inputs), calls)
    sizes = {"request_bytes": len(request), "reply_bytes": len(reply)}
    return {"transport": transport, "query": query, **sizes, **figures}


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
    request = pack_request(2**63, query, panda.name, pack_inputs(inputs, QUERIES[query]), UNSET, panda.fingerprint, 1e4)
    with bare(endpoint, request) as ask:
        ask()
        return request, ask()


@contextmanager
def bare(endpoint: str, request: bytes) -> Iterator[Callable[[], bytes]]:
    """Round trips of a bare socket."""
    with zmq.Context.instance().socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, 10_000)
        socket.setsockopt(zmq.SNDTIMEO, 10_000)
        socket.connect(endpoint)

        def ask() -> bytes:
            socket.send(request)
            return socket.recv()

        yield ask


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
    result: dict = {
        kind: dict(zip(("p50", "p99", "p99.9"), np.percentile(values, (50, 99, 99.9)) / 1e3, strict=True))
        for kind, values in times.items()
    }
    return {**result, "ratio": result["service"]["p50"] / result["echo"]["p50"]}


def echo(endpoint: str, reply_bytes: int) -> None:
    """The bare server: whatever comes in, the same bytes go out."""
    router = zmq.Context.instance().socket(zmq.ROUTER)
    router.linger = 0  # before it binds
    router.bind(endpoint)
    print("ready:", router.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0"), flush=True)
    reply = bytes(reply_bytes)
    while True:
        sender, _ = router.recv_multipart()
        router.send_multipart([sender, reply])


@contextmanager
def serving(command: list[str]) -> Iterator[str]:
    """Runs the process, and gives the endpoint that it says it listens on."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            if not line.startswith("ready: "):
                raise SystemExit(f"no server: {' '.join(command)}")
            yield line.split()[1]
        finally:
            process.terminate()


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

"""Round trip of a control loop: `Client` compared with a bare pyzmq echo of the same bytes at the same pace.

The service is a `dyn serve` process. The echo is a process with a ROUTER socket that answers each message with fixed
bytes; its client is a DEALER socket that sends the bytes of the service's request and blocks in `recv`. Requests and
replies have the same sizes as the service's. Over CURVE both encrypt, and the echo admits every key.

Calls alternate between the two in blocks of 50, so that both meet the same machine. With a pause, calls begin on a grid
of that period, as those of a control loop: cores sleep and caches cool between calls. On which cores the processes run
is chance and matters, so each round starts new processes. The tables show medians over the rounds, and the ratio of
each round.

    python benchmarks/round_trip.py                      ipc, tcp and CURVE, pauses of 0 and 2 ms: about eight minutes
    python benchmarks/round_trip.py --busy 2             the same while busy loops run on cores 0 and 1
    python benchmarks/round_trip.py --launch [--busy 1]  the launch of the README, three times
    python benchmarks/round_trip.py --quick              one short round: tests the benchmark, measures nothing
    chrt -f 1 python benchmarks/round_trip.py            all processes in scheduling class fifo: other programs, except
                                                         busy loops of `--busy`, which have it too, delay no call

What it shows: how long one client waits for one call, in units of the least that a user of ZeroMQ waits. The time
includes encoding, kernel and decoding, all from Python. `CPU` is the processor time of a call, client's and server's
process together with all their threads, which depends less on what else the machine does. What it does not show:
networks, several clients, batches; the times on another machine, to which only the ratios carry over. With pauses, the
p99.9 of a round is its third longest call. With `--launch` plant, controller and server share the cores, and each of
them counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import median
from time import perf_counter, process_time, sleep
from typing import Any

import numpy as np
import zmq
import zmq.asyncio
from msgspec import UNSET

from dyn_service import QUERIES, AsyncClient, Client, RemoteRobot
from dyn_service.service.client.flows import Ask, pack_inputs, pack_request
from dyn_service.service.protocol.keys import Keys, read_keys
from dyn_service.service.protocol.messages import Role
from dyn_service.service.server.administration.access import KeyFolder

ROOT = Path(__file__).parents[1]
URDF = ROOT / "urdf" / "panda.urdf"
LAUNCH = ROOT / "launch" / "panda_computed_torque.launch.yaml"
TRANSPORTS = ("ipc", "tcp", "curve")
QUANTILES = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9}
BLOCK = 50
CONCURRENT_BLOCK = 500
IN_FLIGHT = 64
WARM_UP = 500
BUSY_LIMIT_S = 7200
ECHO_SECRET = "ECHO_SECRET"  # environment variable with the key of an encrypted echo

Row = dict[str, Any]

Peers = dict[str, tuple[Callable[[], object], int]]
"""By kind: the function that makes a call, and the number of the server's process."""

AsyncCalls = Callable[[int], Awaitable[None]]
"""Makes this number of calls."""


def main() -> None:
    """Runs the benchmark, or with `--echo` is the echo process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transport", choices=TRANSPORTS, nargs="+", default=TRANSPORTS)
    parser.add_argument("--pause-ms", type=float, nargs="+", default=[0.0, 2.0], help="periods of the calls")
    parser.add_argument("--calls", type=int, default=4000, help="of a kind in a round; with pauses half as many")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="busy loops meanwhile, one on each of N cores")
    parser.add_argument("--launch", action="store_true", help="the launch of the README instead")
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--json", action="store_true", help="prints the rows of all rounds as JSON")
    parser.add_argument("--echo", nargs=2, metavar=("ENDPOINT", "BYTES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.echo:
        echo(options.echo[0], int(options.echo[1]))
        return
    if options.quick:
        options.rounds, options.calls = 1, 200
    machine = describe_machine(options.busy)
    with busy_loops(options.busy):
        rows = launches(options.quick) if options.launch else rounds(options)
    show_progress("")
    machine["load average after"] = round(os.getloadavg()[0], 1)
    if options.json:
        print(json.dumps({"machine": machine, "rows": rows}, indent=2))
        return
    print("; ".join(f"{name}: {value}" for name, value in machine.items()), end="\n\n")
    if options.launch:
        print_launches(rows)
    else:
        print_round_trips([row for row in rows if "pause_ms" in row])
        print_rates([row for row in rows if "pause_ms" not in row])


def print_round_trips(rows: list[Row]) -> None:
    """Prints the table of calls one after another."""
    names = (*QUANTILES, "CPU")
    columns = "".join(f"{name:>8}" for name in names)
    print("one call after another, us; ratio: p50 of Client / p50 of echo\n")
    print(f"{'':38}{'Client':>8}{'':24}{'echo':>8}{'':24}{'ratio':>8}")
    print(f"{'transport':11}{'query':18}{'pause, ms':>9}{columns}{columns}{'median':>8}   rounds")
    for (transport, query, pause_ms), repeated in grouped(rows, "transport", "query", "pause_ms"):
        figures = "".join(
            f"{median(row[kind][name] for row in repeated):8.1f}" for kind in ("client", "echo") for name in names
        )
        ratios = spread([row["client"]["p50"] / row["echo"]["p50"] for row in repeated])
        print(f"{transport:11}{query:18}{pause_ms:9g}{figures}{ratios}")


def print_rates(rows: list[Row]) -> None:
    """Prints the table of calls in flight together."""
    print(f"\n{IN_FLIGHT} calls in flight, asyncio, calls per second; ratio: AsyncClient / echo\n")
    print(f"{'transport':11}{'query':18}{'AsyncClient':>12}{'echo':>8}{'median':>8}   rounds")
    for (transport, query), repeated in grouped(rows, "transport", "query"):
        figures = (median(row[kind] for row in repeated) for kind in ("client", "echo"))
        ratios = spread([row["client"] / row["echo"] for row in repeated])
        print(f"{transport:11}{query:18}{next(figures):12.0f}{next(figures):8.0f}{ratios}")


def print_launches(rows: list[Row]) -> None:
    """Prints one line for each launch."""
    print(f"dyn launch {LAUNCH.name} --duration {rows[0]['duration_s']} --check")
    print("round trips in us; late: share of answers; other CPU: share of the CPU time taken by other programs\n")
    print("run" + "".join(f"{name:>8}" for name in QUANTILES) + f"{'late':>9}{'other CPU':>11}   outcome")
    for number, row in enumerate(rows, 1):
        figures = "".join(f"{row[name]:8.0f}" for name in QUANTILES)
        print(f"{number:3}{figures}{row['late_share']:9.2%}{row['others_share']:11.0%}   {row['outcome']}")


def grouped(rows: list[Row], *names: str) -> Iterator[tuple[tuple[Any, ...], list[Row]]]:
    """Yields the rows with equal values of these columns, by their values, in the order of their first rows."""
    first: dict[tuple[Any, ...], int] = {}

    def values(row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in names)

    for row in rows:
        first.setdefault(values(row), len(first))
    for key, group in groupby(sorted(rows, key=lambda row: first[values(row)]), values):
        yield key, list(group)


def spread(ratios: list[float]) -> str:
    """Returns the median and all values, ascending."""
    return f"{median(ratios):8.2f}   {' '.join(f'{ratio:.2f}' for ratio in sorted(ratios))}"


def rounds(options: argparse.Namespace) -> list[Row]:
    """Returns the rows of all rounds."""
    rows: list[Row] = []
    for number in range(options.rounds):
        for transport in options.transport:
            label = f"round {number + 1} of {options.rounds}, {transport}"
            with ExitStack() as stack:
                outcomes = measurements(stack, transport, options.pause_ms, options.calls, label)
                rows.extend({"round": number, "transport": transport, **row} for row in outcomes)
    return rows


def measurements(stack: ExitStack, transport: str, pauses_ms: list[float], calls: int, label: str) -> Iterator[Row]:
    """Yields the rows of one transport, measured with new processes. label: for the progress."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    keys = client_keys(folder / "keys") if transport == "curve" else None
    show_progress(f"{label}: the server starts")
    endpoint, pid = stack.enter_context(serving(serve_command(transport, folder)))
    client = stack.enter_context(Client(endpoint, timeout_s=10.0, keys=keys))
    panda = client.robot("panda")
    for query, inputs in questions(panda.nv).items():
        # The echo moves the very bytes of this request and reply, so that the ratio is what the package adds to a bare
        # socket.
        request, reply = exchange(endpoint, keys, panda, query, inputs)
        bare_endpoint, bare_pid, bare_keys = stack.enter_context(echoing(transport, folder / query, len(reply), keys))
        bare_call = stack.enter_context(bare(bare_endpoint, request, bare_keys))
        peers: Peers = {"echo": (bare_call, bare_pid), "client": (partial(getattr(panda, query), **inputs), pid)}
        for pause_ms in pauses_ms:
            show_progress(f"{label}: {query}, pause {pause_ms:g} ms")
            row = alternate(peers, calls // 2 if pause_ms else calls, pause_ms / 1e3)
            yield {"query": query, "pause_ms": pause_ms, **row}
        if query == "inverse_dynamics":
            show_progress(f"{label}: {query}, {IN_FLIGHT} in flight")
            concurrent = concurrent_client(endpoint, keys, query, inputs)
            bare_concurrent = concurrent_echo(bare_endpoint, bare_keys, request)
            yield {"query": query, **asyncio.run(rates(concurrent, bare_concurrent, 2 * calls))}


def serve_command(transport: str, folder: Path) -> list[str]:
    """Returns the command of the server."""
    command = [sys.executable, "-m", "dyn_service", "serve", str(URDF), "--prepare-for", "control"]
    command += ["--bind", address(transport, folder / "serve")]
    return [*command, "--keys", "required", "--keys-folder", str(folder / "keys")] if transport == "curve" else command


def address(transport: str, file: Path) -> str:
    """Returns an endpoint to listen on."""
    return f"ipc://{file}" if transport == "ipc" else "tcp://127.0.0.1:0"


def client_keys(folder: Path) -> Keys:
    """Returns the keys of a client that a server with this folder of keys admits."""
    file = KeyFolder(folder).make("benchmark", Role.QUERY)
    assert file is not None
    return read_keys(file)


def questions(nv: int) -> dict[str, dict[str, Any]]:
    """Returns the inputs of one state, as a control loop sends them, by query."""
    q, v, a, q_ref, v_ref = np.random.default_rng(0).uniform(-0.5, 0.5, (5, nv))
    gains = {"kp": 100.0, "kd": 20.0}
    return {
        "inverse_dynamics": {"q": q, "v": v, "a": a},
        "computed_torque": {"q": q, "v": v, "q_ref": q_ref, "v_ref": v_ref, "a_ref": a, **gains},
    }


def exchange(
    endpoint: str, keys: Keys | None, panda: RemoteRobot, query: str, inputs: dict[str, Any]
) -> tuple[bytes, bytes]:
    """Returns a request and its reply, in bytes."""
    request = pack_request(
        2**63, Ask(query, panda.name, pack_inputs(inputs, QUERIES[query]), UNSET, panda.fingerprint), 1e4
    )
    with bare(endpoint, request, keys) as call:
        return request, call()


def connect(socket: zmq.Socket[Any], endpoint: str, keys: Keys | None) -> None:
    """Connects a DEALER socket, with limits so that nothing waits for ever."""
    socket.linger = 0
    socket.rcvtimeo = socket.sndtimeo = 10_000
    if keys is not None:
        socket.curve_publickey, socket.curve_secretkey = keys.public.encode(), keys.secret.encode()
        socket.curve_serverkey = keys.server.encode()
    socket.connect(endpoint)


@contextmanager
def bare(endpoint: str, request: bytes, keys: Keys | None) -> Iterator[Callable[[], bytes]]:
    """Yields the round trip of a bare socket."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    with context.socket(zmq.DEALER) as socket:
        connect(socket, endpoint, keys)

        def call() -> bytes:
            socket.send(request)
            return socket.recv()

        yield call


def alternate(peers: Peers, calls: int, pause_s: float) -> Row:
    """Returns percentiles and processor time, us, of a call of each kind, measured in alternating blocks."""
    times_us: dict[str, list[float]] = {kind: [] for kind in peers}
    cpu_us = dict.fromkeys(peers, 0.0)
    for function, _ in peers.values():
        for _ in range(WARM_UP):
            function()
    for _ in range(max(1, calls // BLOCK)):
        # Blocks of both kinds alternate within milliseconds: a busy machine slows them alike, and the ratio stays.
        for kind, (function, pid) in peers.items():
            cpu_us[kind] -= processor_time_us(pid)
            due_s = perf_counter()
            for _ in range(BLOCK):
                due_s += pause_s
                wait_s = due_s - perf_counter()
                if wait_s > 0.0:
                    sleep(wait_s)
                else:
                    due_s -= wait_s  # a late call begins at once, and the grid restarts there
                begin_s = perf_counter()
                function()
                times_us[kind].append(1e6 * (perf_counter() - begin_s))
            cpu_us[kind] += processor_time_us(pid)
    percentiles = {kind: np.percentile(values, list(QUANTILES.values())).tolist() for kind, values in times_us.items()}
    return {
        kind: {**dict(zip(QUANTILES, percentiles[kind], strict=True)), "CPU": cpu_us[kind] / len(times_us[kind])}
        for kind in peers
    }


def processor_time_us(pid: int) -> float:
    """Returns the processor time of this process and of another one, with all their threads; of this one elsewhere."""
    tasks = Path(f"/proc/{pid}/task")
    if not tasks.exists():
        return 1e6 * process_time()
    return (
        1e6 * process_time() + sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e3
    )


async def rates(
    client: AbstractAsyncContextManager[AsyncCalls], bare_client: AbstractAsyncContextManager[AsyncCalls], calls: int
) -> dict[str, float]:
    """Returns calls per second of both, measured in alternating blocks."""
    seconds = {"echo": 0.0, "client": 0.0}
    blocks = max(1, calls // CONCURRENT_BLOCK)
    async with bare_client as bare_calls, client as client_calls:
        for number in range(blocks + 1):
            for kind, make_calls in (("echo", bare_calls), ("client", client_calls)):
                begin_s = perf_counter()
                await make_calls(CONCURRENT_BLOCK)
                seconds[kind] += perf_counter() - begin_s if number else 0.0  # the first block warms up
    return {kind: blocks * CONCURRENT_BLOCK / duration_s for kind, duration_s in seconds.items()}


@asynccontextmanager
async def concurrent_client(
    endpoint: str, keys: Keys | None, query: str, inputs: dict[str, Any]
) -> AsyncIterator[AsyncCalls]:
    """Yields a function that makes this number of calls, 64 at a time."""
    async with AsyncClient(endpoint, timeout_s=10.0, keys=keys) as client:
        panda = await client.robot("panda")

        async def calls(count: int) -> None:
            remaining = iter(range(count))

            async def one_after_another() -> None:
                for _ in remaining:
                    await getattr(panda, query)(**inputs)

            await asyncio.gather(*(one_after_another() for _ in range(IN_FLIGHT)))

        yield calls


@asynccontextmanager
async def concurrent_echo(endpoint: str, keys: Keys | None, request: bytes) -> AsyncIterator[AsyncCalls]:
    """As `concurrent_client`, with a bare socket: each reply lets the next request go."""
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
        connect(socket, endpoint, keys)

        async def calls(count: int) -> None:
            for _ in range(IN_FLIGHT):
                await socket.send(request)
            for number in range(count):
                await socket.recv()
                if number < count - IN_FLIGHT:
                    await socket.send(request)

        yield calls


@contextmanager
def echoing(transport: str, file: Path, reply_bytes: int, keys: Keys | None) -> Iterator[tuple[str, int, Keys | None]]:
    """Yields endpoint and number of an echo process, and the keys with which the client connects to it."""
    command = [sys.executable, __file__, "--echo", address(transport, file), str(reply_bytes)]
    public, secret = zmq.curve_keypair()
    environment = {} if keys is None else {ECHO_SECRET: secret.decode()}
    with serving(command, environment) as (endpoint, pid):
        yield endpoint, pid, keys and replace(keys, server=public.decode())


def echo(endpoint: str, reply_bytes: int) -> None:
    """Sends the same bytes for each message, whatever it is. Runs until it is killed."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    router = context.socket(zmq.ROUTER)
    router.linger = 0  # before it binds
    if ECHO_SECRET in os.environ:
        router.curve_server = True  # without a ZAP handler libzmq admits every key
        router.curve_secretkey = os.environ[ECHO_SECRET].encode()
    router.bind(endpoint)
    print("ready:", router.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0"), flush=True)
    reply = bytes(reply_bytes)
    while True:
        sender, _ = router.recv_multipart()
        router.send_multipart([sender, reply])


@contextmanager
def serving(command: list[str], environment: dict[str, str] | None = None) -> Iterator[tuple[str, int]]:
    """Runs a process, and yields the endpoint that it reports, and its number."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, **(environment or {})}
    ) as process:
        assert process.stdout is not None
        try:
            line = next((line for line in process.stdout if line.startswith("ready: ")), "")
            if not line:
                raise SystemExit(f"no server: {' '.join(command)}")
            yield line.split()[1], process.pid
        finally:
            process.terminate()


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Runs processes that only compute, each bound to a core. They end with this process, or after two hours."""
    cores = sorted(os.sched_getaffinity(0)) if count else []
    processes = [
        subprocess.Popen([sys.executable, "-c", _BUSY, str(cores[number % len(cores)]), str(BUSY_LIMIT_S)])
        for number in range(count)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


_BUSY = """
import os, sys, time
parent, end_s = os.getppid(), time.monotonic() + float(sys.argv[2])
os.sched_setaffinity(0, [int(sys.argv[1])])
while time.monotonic() < end_s and os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


def launches(quick: bool) -> list[Row]:
    """Returns the figures of the README's launch: three runs of 20 s, or one of 5 s."""
    duration_s, count = (5, 1) if quick else (20, 3)
    rows = []
    for number in range(count):
        show_progress(f"launch {number + 1} of {count}, {duration_s} s and the start")
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "dyn_service", "launch", str(LAUNCH), "--check"]
            command += ["--duration", str(duration_s), "--report", folder]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300.0, check=False)
            file = Path(folder) / "report.json"
            if not file.exists():
                raise SystemExit(f"no report, status {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
            report = json.loads(file.read_text())
        requests, outcome = report["requests"], report["outcome"]
        trips_us = {name: requests["update_us"][name.replace(".", "_")] for name in QUANTILES}
        late = requests["deadline_misses"] / requests["sent"]
        shares = {"late_share": late, "others_share": outcome["cpu"]["others"]}
        words = f"{outcome['verdict']}; {outcome['timing']}"
        rows.append({"duration_s": duration_s, **trips_us, **shares, "outcome": words})
    return rows


def describe_machine(busy: int) -> dict[str, Any]:
    """Returns what this runs on, by name."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].partition(":")[2].strip() if lines else model
    versions = f"Python {platform.python_version()}, pyzmq {zmq.pyzmq_version()}, ZeroMQ {zmq.zmq_version()}"
    load = round(os.getloadavg()[0], 1)
    return {"machine": f"{model}, {os.cpu_count()} cores, {versions}", "busy loops": busy, "load average before": load}


def show_progress(text: str) -> None:
    """Shows a line on stderr, in place of the previous one on a terminal; an empty text clears it."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

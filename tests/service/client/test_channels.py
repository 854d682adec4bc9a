"""Connections of clients: how they are made, found to be lost, and closed."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyn_service import (
    AsyncClient,
    Client,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    Robot,
    Server,
    UnavailableError,
    connect,
)
from dyn_service.service.client import channels, flows
from dyn_service.service.client.flows import Ask
from dyn_service.service.protocol import zmtp
from dyn_service.service.protocol.keys import read_keys
from dyn_service.service.protocol.messages import Role
from dyn_service.service.server.administration.access import KeyFolder
from tests.conftest import ROOT
from tests.counting import calls_of
from tests.phrases import naming
from tests.service.client.plain_server import PING, PlainServer, channel_of, reply_to
from tests.service.conftest import WAIT_S, eventually

KINDS = ("Client", "AsyncClient")
LONG = Ask("load_robot", inputs={"urdf": "x" * (30 << 20)})
"""Much longer than the buffers of a connection."""


def call(kind: str, endpoint: str, *asks: Callable[[Any], Any], **options: Any) -> list[Any]:
    """Returns the results of calls on one new client, or their errors."""
    options = {"timeout_s": WAIT_S} | options

    async def run() -> list[Any]:
        results: list[Any] = []
        async with AsyncClient(endpoint, **options) as client:
            for ask in asks:
                try:
                    results.append(await value if asyncio.iscoroutine(value := ask(client)) else value)
                except (DeadlineExceededError, UnavailableError) as fault:
                    results.append(fault)
        return results

    if kind == "AsyncClient":
        return asyncio.run(run())
    results: list[Any] = []
    with Client(endpoint, **options) as client:
        for ask in asks:
            try:
                results.append(ask(client))
            except (DeadlineExceededError, UnavailableError) as fault:
                results.append(fault)
    return results


def health(client: Any) -> Any:
    return client.health()


def unload(client: Any) -> Any:
    """A call that may not be sent twice."""
    return client.unload_robot("x")


@pytest.fixture(params=["tcp", "ipc"])
def path(request: pytest.FixtureRequest, socket_folder: Path) -> Path | None:
    """Where a `PlainServer` listens."""
    return None if request.param == "tcp" else socket_folder / "s"


@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_closed_between_calls_loses_no_request(kind: str, path: Path | None) -> None:
    """The client notices it before it sends, so a request that changes the server is sent once, and succeeds."""
    with PlainServer(path=path) as server:

        def drop(_: Any) -> None:
            server.drop()

        results = call(kind, server.endpoint, health, drop, unload, drop, unload, retries=0)
    assert results == [{}, None, None, None, None]
    assert server.queries() == ["health", "unload_robot", "unload_robot"]
    assert len(server.connections) == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ask", [health, unload])
def test_a_connection_closed_during_a_call(kind: str, path: Path | None, ask: Callable[[Any], Any]) -> None:
    """Queries are sent again over the next connection at once; requests that change the server are not."""
    with PlainServer(lambda request: reply_to(request) if len(server.requests) > 1 else None, path) as server:
        (result,) = call(kind, server.endpoint, ask, retry_after_s=WAIT_S)
        if ask is health:
            assert (result, server.queries()) == ({}, ["health"] * 2)
        else:
            assert re.search(naming("lost before the answer", "unknown"), str(result))
            assert server.queries() == ["unload_robot"]


@pytest.mark.parametrize("kind", KINDS)
def test_replies_in_any_pieces(kind: str) -> None:
    """Several in one segment, with a PING, which is answered; or one byte by byte."""

    def answer(request: bytes) -> bytes:
        reply = reply_to(request, number=len(server.requests))
        if len(server.requests) == 1:
            return reply_to(b"\x81\xa2id\x00") + PING + reply
        for index in range(len(reply) - 1):
            server.connections[0].sendall(reply[index : index + 1])
        return reply[-1:]

    with PlainServer(answer) as server:
        assert call(kind, server.endpoint, health, health) == [{"number": 1}, {"number": 2}]
    assert any(b"PONGcontext" in data for data in server.commands)


def test_a_request_that_the_server_does_not_read_ends_in_time() -> None:
    """The next call opens a new connection, on which nothing is incomplete."""
    with PlainServer(reads=False) as server, Client(server.endpoint) as client:
        for number in (1, 2):
            assert channel_of(client).is_connected(WAIT_S)
            with pytest.raises(DeadlineExceededError):
                client.ask(LONG, 0.3)
            assert channel_of(client).connections == number
            assert not channel_of(client).is_ready
    assert len(server.connections) == 2
    assert server.requests == []


def test_an_event_loop_sends_other_requests_behind_one_that_the_server_does_not_read() -> None:
    """Other calls use the connection, so it stays; after the last of them no unsent request is kept."""

    async def run() -> None:
        # 2 s, in which a loaded machine encodes the long request and begins to send it
        async with AsyncClient(server.endpoint, timeout_s=2.0) as client:
            channel = client._connect()
            assert await channel.is_connected(WAIT_S)
            other_call = asyncio.create_task(client.run(flows.query_server("health"), 4.0))
            while not client._pending:  # until the other call waits for its answer
                await asyncio.sleep(0)
            with pytest.raises(DeadlineExceededError):
                await client.ask(LONG)
            assert channel.is_sending
            with pytest.raises(DeadlineExceededError):
                await other_call
            assert not channel.is_sending

    with PlainServer(reads=False) as server:
        asyncio.run(run())
    assert len(server.connections) == 1


_SLOW_SERVER = """
import sys, time
from pathlib import Path
from tests.service.client.plain_server import PlainServer, reply_to

def answer(request):
    time.sleep(1e-3)  # until the client sleeps
    return reply_to(request)

with PlainServer(answer, Path(sys.argv[1])) as server:
    print(server.endpoint, flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count no switches of a thread")
def test_a_request_wakes_its_client_once(tmp_path: Path) -> None:
    """Not also when the server takes the request, as a blocking `recv` of a Unix socket would."""
    command = [sys.executable, "-c", _SLOW_SERVER, str(tmp_path / "s")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        with Client(process.stdout.readline().strip(), timeout_s=WAIT_S) as client:
            client.health()
            wakes_before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
            for _ in range(100):
                client.health()
            wakes = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - wakes_before
        process.communicate()
    assert wakes < 130


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_closes_each_connection_is_tried_at_growing_intervals(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although each handshake is complete; the first connection after one that lasted is made at once."""
    waits_s: list[float] = []
    step = channels.BaseChannel._step

    def note(channel: Any, *arguments: Any) -> None:
        is_new = channel._attempt is None
        step(channel, *arguments)
        if is_new:
            waits_s.append(channel._next_attempt_s - channels.monotonic())

    monkeypatch.setattr(channels.BaseChannel, "_step", note)
    with PlainServer(lambda request: None if 1 < len(server.requests) < 7 else reply_to(request)) as server:

        def let_it_last(client: Any) -> None:
            channel_of(client)._next_attempt_s -= 1.0

        results = call(kind, server.endpoint, health, let_it_last, health, retries=1, retry_after_s=1e-3)
    assert results == [{}, None, {}]
    assert waits_s[1] <= channels.MIN_PAUSE_S
    assert all(0.02 < wait_s <= channels.MAX_PAUSE_S for wait_s in waits_s[4:])
    assert len(server.requests) == 7


def test_pongs_that_the_server_does_not_read_are_not_kept(socket_folder: Path) -> None:
    """A server that floods a client with PINGs cannot fill its memory."""
    pings = PING * 20_000
    with (
        PlainServer(lambda request: pings + reply_to(request), socket_folder / "s") as server,
        Client(server.endpoint, timeout_s=WAIT_S) as client,
    ):
        channel = channel_of(client)
        most_bytes = 0
        read = channel._read

        def note() -> None:
            nonlocal most_bytes
            read()
            most_bytes = max(most_bytes, sum(map(len, channel._unsent)))

        channel._read = note  # type: ignore[method-assign]
        assert client.health() == {}
    assert most_bytes < 1000


def test_an_announced_reply_takes_no_memory() -> None:
    """Only what has arrived of it does."""
    header = zmtp.frame_header(0, 60 << 20)

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    with PlainServer(lambda request: header) as server, Client(server.endpoint, retries=0) as client:
        assert channel_of(client).is_connected(WAIT_S)
        initial_bytes = resident_bytes()
        buffers: list[int] = []
        drop = channel_of(client)._drop

        def note() -> None:
            if channel_of(client).is_ready and (buffer := channel_of(client)._peer.buffer) is not None:
                buffers.append(len(buffer))
            assert resident_bytes() - initial_bytes < 30 << 20
            drop()

        channel_of(client)._drop = note  # type: ignore[method-assign]
        with pytest.raises(DeadlineExceededError):
            client.run(flows.query_server("health"), 1.0)
        client.close()
    assert buffers == [60 << 20]


@pytest.mark.parametrize("kind", KINDS)
def test_an_attempt_for_which_no_thread_can_be_started_is_repeated(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start, starts = threading.Thread.start, 0

    def fail_once(thread: threading.Thread) -> None:
        nonlocal starts
        starts += threading.current_thread() is threading.main_thread()
        if starts == 1:
            raise RuntimeError("can't start new thread")
        start(thread)

    with PlainServer() as server:
        monkeypatch.setattr(threading.Thread, "start", fail_once)
        assert call(kind, server.endpoint.replace("127.0.0.1", "localhost"), health) == [{}]
        monkeypatch.undo()
    assert starts == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_after_an_attempt_without_memory(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failed attempt to connect is not continued."""

    async def ask(client: Any) -> None:
        with pytest.raises(MemoryError):
            await client.health()

    def fail(client: Any) -> Any:
        monkeypatch.setattr(zmtp, "Null", exhaust)
        if kind == "AsyncClient":
            return ask(client)
        with pytest.raises(MemoryError):
            client.health()
        return None

    make_null = zmtp.Null

    def exhaust() -> zmtp.Null:
        if threading.current_thread() is threading.main_thread():
            raise MemoryError
        return make_null()  # of the server

    with PlainServer() as server:
        assert call(kind, server.endpoint, fail, lambda client: monkeypatch.undo(), health) == [None, None, {}]


def test_close_ends_the_sending_of_another_thread() -> None:
    faults: list[Exception] = []

    def send() -> None:
        with pytest.raises(UnavailableError, match="the client was closed") as fault:
            client.ask(LONG)
        faults.append(fault.value)

    with PlainServer(reads=False) as server:
        client = Client(server.endpoint, timeout_s=WAIT_S)
        sending = threading.Thread(target=send)
        sending.start()
        assert server.has_handshake.wait(WAIT_S)
        client.close()
        sending.join(WAIT_S)
    assert len(faults) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_long_messages_in_both_directions(kind: str, pendulum: Robot, path: Path | None) -> None:
    q = np.linspace(-3.0, 3.0, 400_000)[:, None]
    endpoint = "tcp://127.0.0.1:0" if path is None else f"ipc://{path}"
    with Server([pendulum], endpoints=[endpoint]) as server:

        async def forces(client: AsyncClient) -> Any:
            return await (await client.robot("pendulum")).gravity_forces(q)

        def ask(client: Any) -> Any:
            return forces(client) if kind == "AsyncClient" else client.robot("pendulum").gravity_forces(q)

        (result,) = call(kind, server.endpoints[0], ask)
    assert result.tobytes() == pendulum.gravity_forces(q).tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_the_addresses_of_a_name_are_tried_in_order(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of `localhost`, where a server listens on 127.0.0.1 only."""
    resolve = socket.getaddrinfo
    names: list[str] = []

    def resolve_name(host: str, port: str, **options: Any) -> Any:
        if "flags" in options:  # numeric addresses only
            return resolve(host, port, **options)
        names.append(host)
        closed = [(socket.AF_INET6, 1, 6, "", ("::1", 9, 0, 0)), (socket.AF_INET, 1, 6, "", ("127.0.0.1", 9))]
        return closed + resolve("127.0.0.1", port, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_name)
    with PlainServer() as server:
        endpoint = server.endpoint.replace("127.0.0.1", "robot.example")
        assert call(kind, endpoint, health) == [{}]
    assert names == ["robot.example"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_that_is_not_resolved_in_time(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolving may block for longer than the call; one thread does it for all calls."""
    resolve, may_end, names = socket.getaddrinfo, threading.Event(), []

    def resolve_name(host: str, port: str, **options: Any) -> Any:
        if "flags" in options:
            return resolve(host, port, **options)
        names.append(host)
        may_end.wait(WAIT_S)
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", resolve_name)
    try:
        for fault in call(kind, "tcp://robot.example:5755", health, health, timeout_s=0.1):
            assert re.search(naming("no server answers", "robot.example"), str(fault))
        assert names == ["robot.example"]
    finally:
        may_end.set()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system does not list descriptors")
@pytest.mark.parametrize("kind", KINDS)
def test_no_descriptor_and_no_thread_is_left(kind: str, server: Server, transport: Any) -> None:
    """After calls that were answered, refused, not answered in time, and none; also when nothing listens."""
    (endpoint,) = server.endpoints
    options = transport.client_options

    def use() -> None:
        assert call(kind, endpoint, health, **options)[0]["status"] == "ok"
        call(kind, endpoint, lambda client: client.run(flows.query_server("health"), 1e-6), **options)
        call(kind, endpoint, **options)
        call(kind, "tcp://127.0.0.1:9", health, timeout_s=0.001)

    use()
    counts = descriptors(), threading.active_count()
    for _ in range(20):
        use()
    # The server lives in this process too and closes its end when it reads that the client's is closed.
    eventually(lambda: descriptors() <= counts[0] and threading.active_count() <= counts[1])


def test_a_forked_child_that_closes_leaves_the_connection_of_its_parent() -> None:
    with PlainServer() as server, Client(server.endpoint, timeout_s=WAIT_S) as client:
        client.health()
        child = os.fork()
        if child == 0:
            client.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        client.health()
    assert len(server.connections) == 1


def test_the_client_closed_by_a_signal_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler interrupts the call at each step of connecting, and while it waits for the reply."""
    for number in range(1, 6):
        with PlainServer() as server:
            client = Client(server.endpoint, timeout_s=WAIT_S)
            interrupt_steps(monkeypatch, [lambda: None] * number + [client.close])
            with pytest.raises(UnavailableError, match="the client was closed"):
                [client.health() for _ in range(5)]
            client.close()
            with pytest.raises(FailedPreconditionError, match="the client is closed"):
                client.health()
            assert channel_of(client)._socket is None or channel_of(client)._socket.fileno() == -1
            monkeypatch.undo()


def interrupt_steps(monkeypatch: pytest.MonkeyPatch, handlers: list[Callable[[], None]]) -> None:
    """Calls a handler at each step of channels in turn."""
    steps = iter(handlers)
    for name in ("_step", "_read"):
        method = getattr(channels.Channel, name)

        def step(channel: Any, *arguments: Any, method: Any = method) -> Any:
            next(steps, lambda: None)()
            return method(channel, *arguments)

        monkeypatch.setattr(channels.Channel, name, step)


def test_system_calls_of_a_call(panda: Robot, socket_folder: Path) -> None:
    """One `send` and one `recv`; before a request over tcp, a second `recv` looks whether the server has closed."""
    q = np.zeros(panda.nv)
    for endpoint, expected in ((f"ipc://{socket_folder}/s", ["send", "recv"]), ("tcp://127.0.0.1:0", None)):
        with Server([panda], endpoints=[endpoint]) as server, Client(server.endpoints[0], timeout_s=WAIT_S) as client:
            robot = client.robot("panda")
            robot.inverse_dynamics(q, q, q)
            calls = [socket_calls(partial(robot.inverse_dynamics, q, q, q)) for _ in range(20)]
            assert min(calls, key=len) == (expected or ["recv", "send", "recv"])  # a busy machine may need more


def socket_calls(call: Callable[[], Any]) -> list[str]:
    """Returns the methods of sockets that a call uses."""
    names: list[str] = []

    def note(_: Any, event: str, function: Any) -> None:
        if event == "c_call" and isinstance(function.__self__, socket.socket):
            names.append(function.__name__)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return names


def test_calls_of_a_call(panda: Robot, socket_folder: Path) -> None:
    """Functions of Python and of C in a round trip of one state; each costs a control loop time."""
    q = np.zeros(panda.nv)
    with (
        Server([panda], endpoints=[f"ipc://{socket_folder}/s"]) as server,
        Client(server.endpoints[0], timeout_s=WAIT_S) as client,
    ):
        robot = client.robot("panda")
        robot.inverse_dynamics(q, q, q)
        assert min(calls_of(lambda: robot.inverse_dynamics(q, q, q)) for _ in range(20)) <= 80


@pytest.mark.parametrize("kind", [Client, AsyncClient, connect])
def test_inproc_endpoints_are_refused(kind: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=naming("inproc://panda", "ipc://")):
        kind("inproc://panda")


@pytest.mark.parametrize(
    "endpoint", ["tcp://127.0.0.1", "tcp://:5755", "tcp://*:5755", "tcp://host:0", "ipc:///" + "x" * 107, "ipc:///a\0b"]
)
def test_endpoints_to_which_no_client_can_connect(endpoint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=naming("endpoint", "tcp://127.0.0.1:5755")):
        Client(endpoint)


def test_a_client_imports_no_zeromq() -> None:
    code = (
        "import sys, dyn_service; dyn_service.Client, dyn_service.AsyncClient, dyn_service.connect\n"
        "assert 'dyn_service.service.client.aio' in sys.modules\n"
        "print(sorted(name for name in sys.modules if name.partition('.')[0] == 'zmq'))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S)
    assert (run.stdout, run.stderr) == ("[]\n", "")


@pytest.mark.parametrize(
    ("endpoint", "cause"),
    [
        ("tcp://127.0.0.1:9", "connection refused"),
        ("tcp://no-such-host.invalid:5755", "its host is unknown"),
        ("ipc:///nowhere/socket", "no such file or directory"),
    ],
)
def test_the_error_of_an_absent_server_has_the_cause(endpoint: str, cause: str) -> None:
    with Client(endpoint, timeout_s=2.0) as client, pytest.raises(UnavailableError) as error:
        client.health()
    assert str(error.value) == f"no server answers at {endpoint} within 2 s: {cause}"


def test_the_error_of_a_client_with_and_without_keys_names_the_difference(pendulum: Robot, tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path)
    keys = folder.make("arm", Role.QUERY)
    cases: list[tuple[dict[str, Any], Path | None, str]] = [
        ({}, keys, "it has no keys: omit yours"),
        ({"keys": "required", "key_folder": folder}, None, "it needs keys: specify yours"),
    ]
    for options, client_keys, cause in cases:
        with (
            Server([pendulum], endpoints=["tcp://127.0.0.1:0"], **options) as server,
            Client(server.endpoints[0], timeout_s=2.0, keys=client_keys) as client,
            pytest.raises(UnavailableError, match=cause),
        ):
            client.health()


def test_the_text_of_a_key_file_is_refused_and_not_shown(tmp_path: Path) -> None:
    file = KeyFolder(tmp_path).make("arm", Role.QUERY)
    assert file is not None
    text = file.read_text()
    with pytest.raises(InvalidArgumentError, match="keys must be the path of a key file") as error:
        Client("tcp://127.0.0.1:9", keys=text)
    assert read_keys(file).secret not in str(error.value)

"""Both roles against libzmq, over real sockets: NULL and CURVE, all sizes, heartbeats, refusals, reconnects."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from zmq.utils import z85

from dyn_service.service.protocol.curve import CurveClient, CurveKeys, CurveServer
from dyn_service.service.protocol.zmtp import Mechanism, Null, PeerRefusedError, ProtocolError, refusal
from qa.interop.wire import EchoServer, Wire
from tests.service.conftest import eventually
from tests.service.protocol import rfc_peers as rfc

WAIT_S = 240.0
WAIT_MS = int(1000 * WAIT_S)
SIZES = (0, 1, 200, 254, 255, 256, 8191, 8192, 32767, 32768, 32769, 65535, 65536, 1_000_000)
LARGEST = 100_000_000
MECHANISMS = ("NULL", "CURVE")

Sockets = Callable[[int], "zmq.Socket[bytes]"]


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    """Makes sockets that wait at most `WAIT_S`; they close after the test."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    zmq_sockets: list[zmq.Socket[bytes]] = []

    def make(socket_type: int) -> zmq.Socket[bytes]:
        zmq_sockets.append(context.socket(socket_type))
        zmq_sockets[-1].linger = 0
        zmq_sockets[-1].rcvtimeo = zmq_sockets[-1].sndtimeo = WAIT_MS
        return zmq_sockets[-1]

    yield make
    for zmq_socket in zmq_sockets:
        zmq_socket.close()
    context.term()


class Curve:
    """Keys of a client and a server, for either library."""

    def __init__(self) -> None:
        self.client, self.server = CurveKeys(*rfc.new_keys()), CurveKeys(*rfc.new_keys())

    def of_client(self, zmq_socket: zmq.Socket[bytes]) -> None:
        zmq_socket.curve_publickey, zmq_socket.curve_secretkey = (
            z85.encode(self.client.public),
            z85.encode(self.client.secret),
        )
        zmq_socket.curve_serverkey = z85.encode(self.server.public)

    def of_server(self, zmq_socket: zmq.Socket[bytes]) -> None:
        zmq_socket.curve_publickey, zmq_socket.curve_secretkey = (
            z85.encode(self.server.public),
            z85.encode(self.server.secret),
        )
        zmq_socket.curve_server = True

    def server_mechanism(self, admit: Callable[[bytes], None] = lambda public: None) -> CurveServer:
        return CurveServer(self.server, admit)

    def client_mechanism(self) -> CurveClient:
        return CurveClient(self.client, self.server.public)


class Zap(threading.Thread):
    """libzmq's authenticator: admits these public keys to all CURVE servers of a context."""

    def __init__(self, handler: zmq.Socket[bytes], admitted: set[bytes]) -> None:
        super().__init__()
        self._handler = handler
        self.admitted = admitted
        handler.bind("inproc://zeromq.zap.01")
        self._stop_sender = handler.context.socket(zmq.PAIR)
        self._stop_receiver = handler.context.socket(zmq.PAIR)
        self._stop_sender.bind("inproc://stop-zap")
        self._stop_receiver.connect("inproc://stop-zap")

    def run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._handler, zmq.POLLIN)
        poller.register(self._stop_receiver, zmq.POLLIN)
        while self._stop_receiver not in dict(poller.poll()):
            version, request, *_, public = self._handler.recv_multipart()
            status = b"200" if public in self.admitted else b"400"
            self._handler.send_multipart([version, request, status, b"", b"", b""])

    def __enter__(self) -> Zap:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop_sender.send(b"")
        self.join()
        for zmq_socket in (self._stop_sender, self._stop_receiver, self._handler):
            zmq_socket.close(0)


class EchoRouter(threading.Thread):
    """A ROUTER of libzmq that returns each message to its sender."""

    def __init__(self, router: zmq.Socket[bytes], endpoint: str = "tcp://127.0.0.1:*") -> None:
        super().__init__()
        self._router = router
        router.bind(endpoint)
        self.endpoint = str(router.get_string(zmq.LAST_ENDPOINT))
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.is_set():
            if self._router.poll(50):
                self._router.send_multipart(self._router.recv_multipart(copy=False), copy=False)

    def __enter__(self) -> EchoRouter:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self.join()
        self._router.close(0)


def payload_of(size: int) -> bytes:
    return (bytes(range(251)) * (size // 251 + 1))[:size]


@pytest.fixture(params=["tcp", "ipc"])
def any_endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "tcp://127.0.0.1:0" if request.param == "tcp" else f"ipc://{tmp_path}/echo"


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("socket_type", [zmq.DEALER, zmq.REQ])
def test_clients_of_libzmq_at_our_server(sockets: Sockets, any_endpoint: str, mechanism: str, socket_type: int) -> None:
    keys = Curve()
    with EchoServer(Null if mechanism == "NULL" else keys.server_mechanism, any_endpoint) as server:
        client = sockets(socket_type)
        if mechanism == "CURVE":
            keys.of_client(client)
        client.connect(server.endpoint)
        for size in SIZES:
            client.send(payload_of(size))
            assert client.recv() == payload_of(size)
        assert len(server.wires) == 1
        assert server.wires[0].connection.peer_key == (keys.client.public if mechanism == "CURVE" else b"")
    assert server.errors == []


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("is_req", [False, True])
def test_our_client_at_a_router_of_libzmq(sockets: Sockets, any_endpoint: str, mechanism: str, is_req: bool) -> None:
    keys = Curve()
    router = sockets(zmq.ROUTER)
    if mechanism == "CURVE":
        keys.of_server(router)
    client_mechanism = Null() if mechanism == "NULL" else keys.client_mechanism()
    with (
        EchoRouter(router, any_endpoint.replace(":0", ":*")) as server,
        Wire.connect(server.endpoint, client_mechanism) as wire,
    ):
        for size in SIZES:
            wire.send(payload_of(size), is_req=is_req)
            payload, parts, came_as_req = wire.receive()
            assert (bytes(payload), parts, came_as_req) == (payload_of(size), 1 + is_req, is_req)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_100_mb_each_way_with_each_role(sockets: Sockets, mechanism: str) -> None:
    keys = Curve()
    content = payload_of(LARGEST)
    with EchoServer(Null if mechanism == "NULL" else keys.server_mechanism) as echo:
        client = sockets(zmq.DEALER)
        if mechanism == "CURVE":
            keys.of_client(client)
        client.connect(echo.endpoint)
        client.send(content, copy=False)
        assert client.recv() == content
    assert echo.errors == []
    router = sockets(zmq.ROUTER)
    if mechanism == "CURVE":
        keys.of_server(router)
    client_mechanism = Null() if mechanism == "NULL" else keys.client_mechanism()
    with EchoRouter(router) as server, Wire.connect(server.endpoint, client_mechanism) as wire:
        wire.send(content)
        assert wire.receive()[0] == content


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_many_messages_in_flight_stay_in_order(sockets: Sockets, mechanism: str) -> None:
    keys = Curve()
    with EchoServer(Null if mechanism == "NULL" else keys.server_mechanism) as server:
        client = sockets(zmq.DEALER)
        if mechanism == "CURVE":
            keys.of_client(client)
        client.connect(server.endpoint)
        for k in range(900):  # below libzmq's mark of 1000 messages
            client.send(b"%d" % k * (k % 90))
        assert [client.recv() for _ in range(900)] == [b"%d" % k * (k % 90) for k in range(900)]
    assert server.errors == []


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_heartbeats_of_libzmq_are_answered(sockets: Sockets, mechanism: str) -> None:
    """Without PONGs libzmq would close the connection and connect again."""
    keys = Curve()
    with EchoServer(Null if mechanism == "NULL" else keys.server_mechanism) as server:
        client = sockets(zmq.DEALER)
        client.heartbeat_ivl, client.heartbeat_timeout, client.heartbeat_ttl = 20, WAIT_MS, WAIT_MS // 10
        if mechanism == "CURVE":
            keys.of_client(client)
        client.connect(server.endpoint)
        client.send(b"1")
        assert client.recv() == b"1"
        (wire,) = server.wires
        eventually(lambda: wire.commands >= 10)
        client.send(b"2")  # between PINGs, so that nonces of PONGs and replies alternate
        assert client.recv() == b"2"
        eventually(lambda: wire.commands >= 20)
        client.send(b"3")
        assert client.recv() == b"3"
        assert server.wires == [wire]
    assert server.errors == []


def test_a_server_of_libzmq_with_heartbeats_keeps_our_client(sockets: Sockets) -> None:
    for keys in (None, Curve()):
        router = sockets(zmq.ROUTER)
        router.heartbeat_ivl, router.heartbeat_timeout = 20, WAIT_MS
        if keys is not None:
            keys.of_server(router)
        client_mechanism = Null() if keys is None else keys.client_mechanism()
        with EchoRouter(router) as server, Wire.connect(server.endpoint, client_mechanism) as wire:
            wire.send(b"1")
            assert wire.receive()[0] == b"1"
            while wire.commands < 5:  # PINGs
                wire.receive_command()
                wire.commands += 1
                wire.flush()
            wire.send(b"2")
            assert wire.receive()[0] == b"2"


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("socket_type", [zmq.DEALER, zmq.REQ])
def test_clients_of_libzmq_come_back(sockets: Sockets, mechanism: str, socket_type: int, tmp_path: Path) -> None:
    keys = Curve()
    endpoint = f"ipc://{tmp_path}/echo"
    client = sockets(socket_type)
    client.reconnect_ivl = 10
    if mechanism == "CURVE":
        keys.of_client(client)
    for k in range(3):
        with EchoServer(Null if mechanism == "NULL" else keys.server_mechanism, endpoint) as server:
            if not k:
                client.connect(endpoint)
            for times in range(1, 4):
                eventually(lambda times=times: sum(wire.connection.ready for wire in server.wires) >= times)  # type: ignore[misc]
                client.send(b"%d" % k)
                assert client.recv() == b"%d" % k
                server.close_connections()
        Path(endpoint[6:]).unlink()
        assert server.errors == []


# access


def test_a_key_that_libzmqs_server_does_not_admit_gets_the_reason(sockets: Sockets) -> None:
    keys = Curve()
    with Zap(sockets(zmq.REP), {keys.client.public}) as zap:
        router = sockets(zmq.ROUTER)
        keys.of_server(router)
        with EchoRouter(router) as server:
            with Wire.connect(server.endpoint, keys.client_mechanism()) as wire:
                wire.send(b"x")
                assert wire.receive()[0] == b"x"
            zap.admitted.clear()
            with pytest.raises(PeerRefusedError) as error:
                Wire.connect(server.endpoint, keys.client_mechanism())
            assert error.value.reason == b"400"


def handshake_event(monitor: zmq.Socket[bytes]) -> tuple[int, int]:
    """Returns the next event of a handshake that ended, and its value."""
    events = (zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
    while True:
        head, _ = monitor.recv_multipart()
        event, value = int.from_bytes(head[:2], "little"), int.from_bytes(head[2:6], "little")
        if event in (*events, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL):
            return event, value


def test_a_client_of_libzmq_whose_key_is_not_allowed_gets_the_reason_and_does_not_come_back(sockets: Sockets) -> None:
    keys = Curve()

    def admit(public: bytes) -> None:
        raise refusal("not allowed", "400")

    with EchoServer(lambda: keys.server_mechanism(admit)) as server:
        client = sockets(zmq.DEALER)
        keys.of_client(client)
        client.reconnect_ivl = 1
        monitor = client.get_monitor_socket()
        monitor.rcvtimeo = WAIT_MS
        client.connect(server.endpoint)
        assert handshake_event(monitor) == (zmq.EVENT_HANDSHAKE_FAILED_AUTH, 400)
        with sockets(zmq.DEALER) as other:  # whose refusal comes later than a second try of the first would
            keys.of_client(other)
            other.connect(server.endpoint)
            eventually(lambda: len(server.errors) == 2)
        assert len(server.wires) == 2
        assert [str(error) for error in server.errors] == 2 * ["not allowed"]
        client.disable_monitor()
        monitor.close(0)


def test_a_client_of_libzmq_that_gets_no_error_comes_back_and_is_admitted(sockets: Sockets) -> None:
    keys = Curve()
    tries: list[bytes] = []

    def admit(public: bytes) -> None:
        tries.append(public)
        if len(tries) < 3:
            raise ProtocolError("the list cannot be read now")

    with EchoServer(lambda: keys.server_mechanism(admit)) as server:
        client = sockets(zmq.DEALER)
        client.reconnect_ivl = 1
        keys.of_client(client)
        client.connect(server.endpoint)
        client.send(b"x")
        assert client.recv() == b"x"
    assert tries == 3 * [keys.client.public]


def test_with_another_servers_key_there_is_no_connection(sockets: Sockets) -> None:
    keys, other_keys = Curve(), Curve()
    router = sockets(zmq.ROUTER)
    keys.of_server(router)
    with EchoRouter(router) as server, pytest.raises(ConnectionError):
        Wire.connect(server.endpoint, CurveClient(keys.client, other_keys.server.public))
    with EchoServer(keys.server_mechanism) as echo:
        client = sockets(zmq.DEALER)
        other_keys.of_client(client)
        client.connect(echo.endpoint)
        eventually(lambda: echo.errors)
    assert str(echo.errors[0]).startswith("a HELLO that cannot be decrypted")
    assert not any(wire.connection.ready for wire in echo.wires)


def test_the_mechanisms_do_not_mix(sockets: Sockets) -> None:
    keys = Curve()
    cases: list[tuple[Callable[[], Mechanism], bool]] = [
        (Null, True),
        (keys.server_mechanism, False),
    ]
    for mechanism, encrypted in cases:
        with EchoServer(mechanism) as echo:
            client = sockets(zmq.DEALER)
            if encrypted:
                keys.of_client(client)
            client.connect(echo.endpoint)
            eventually(lambda echo=echo: echo.closed)  # type: ignore[misc]
            client.close(0)
            assert not any(wire.connection.ready for wire in echo.wires)
        assert all(str(error).startswith("the mechanism b'") for error in echo.errors)
        router = sockets(zmq.ROUTER)
        if encrypted:
            keys.of_server(router)
        with EchoRouter(router) as server, pytest.raises((ProtocolError, ConnectionError)):
            Wire.connect(server.endpoint, Null() if encrypted else keys.client_mechanism())


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_socket_of_another_type_is_refused(sockets: Sockets, mechanism: str) -> None:
    """Whichever end reads the other's type first ends the connection."""
    keys = Curve()
    with EchoServer(Null if mechanism == "NULL" else keys.server_mechanism) as echo:
        for socket_type in (zmq.SUB, zmq.PULL, zmq.REP):
            client = sockets(socket_type)
            if mechanism == "CURVE":
                keys.of_client(client)
            client.connect(echo.endpoint)
            count = echo.closed
            eventually(lambda count=count: echo.closed > count)  # type: ignore[misc]
            client.close(0)
        assert not any(wire.connection.ready for wire in echo.wires)
    assert all("expected DEALER or REQ" in str(error) for error in echo.errors)


# the independent peers of the other tests


def read_until(stream: socket.socket, data: bytes, count: int) -> bytes:
    """Returns `data` and what follows in the stream, at least this many bytes."""
    while len(data) < count:
        received = stream.recv(1 << 16)
        assert received, "closed"
        data += received
    return data


def next_frame(stream: socket.socket, data: bytes) -> tuple[rfc.Frame, bytes]:
    """Returns the first frame, and the rest of the data."""
    data = read_until(stream, data, 2)
    head = 9 if data[0] & rfc.LONG else 2
    data = read_until(stream, data, head)
    size = head + int.from_bytes(data[1:head], "big")
    data = read_until(stream, data, size)
    return rfc.read_frames(data[:size])[0], data[size:]


@pytest.mark.parametrize("minor", [0, 1])
def test_the_independent_client_is_one_for_libzmq(sockets: Sockets, minor: int) -> None:
    """So what the other tests compare with is no second reading of the specification that nobody else shares."""
    keys = Curve()
    router = sockets(zmq.ROUTER)
    keys.of_server(router)
    with (
        EchoRouter(router) as server,
        socket.create_connection(("127.0.0.1", int(server.endpoint.rpartition(":")[2])), WAIT_S) as stream,
    ):
        client = rfc.CurveClient(rfc.KeyPair(keys.client.public, keys.client.secret), server_public=keys.server.public)
        client.minor = minor
        stream.sendall(client.greeting())
        data = read_until(stream, b"", rfc.GREETING_SIZE)
        assert data[12:33] == b"CURVE".ljust(20, b"\0") + b"\0"  # libzmq's servers leave as-server 0
        stream.sendall(client.hello())
        welcome, data = next_frame(stream, data[rfc.GREETING_SIZE :])
        _, cookie = client.read_welcome(welcome.body)
        stream.sendall(client.initiate(cookie))
        ready, data = next_frame(stream, data)
        assert client.read_ready(ready.body)[b"socket-type"] == b"ROUTER"
        stream.sendall(client.message(b"", rfc.MORE) + client.message(b"hello"))
        first, data = next_frame(stream, data)
        second, data = next_frame(stream, data)
        assert [client.read_message(part.body) for part in (first, second)] == [(rfc.MORE, b""), (0, b"hello")]


def test_the_independent_server_is_one_for_libzmq(sockets: Sockets) -> None:
    keys = Curve()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = sockets(zmq.REQ)
        keys.of_client(client)
        client.connect(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        client.send(b"hello")
        listener.settimeout(WAIT_S)
        stream, _ = listener.accept()
        with stream:
            stream.settimeout(WAIT_S)
            server = rfc.CurveServer(rfc.KeyPair(keys.server.public, keys.server.secret))
            stream.sendall(server.greeting())
            data = read_until(stream, b"", rfc.GREETING_SIZE)
            assert data[12:33] == b"CURVE".ljust(20, b"\0") + b"\0"
            hello, data = next_frame(stream, data[rfc.GREETING_SIZE :])
            server.read_hello(hello.body)
            stream.sendall(server.welcome())
            initiate, data = next_frame(stream, data)
            assert server.read_initiate(initiate.body)[b"socket-type"] == b"REQ"
            assert server.client_public == keys.client.public
            stream.sendall(server.ready())
            first, data = next_frame(stream, data)
            second, data = next_frame(stream, data)
            assert [server.read_message(part.body) for part in (first, second)] == [(rfc.MORE, b""), (0, b"hello")]
            stream.sendall(server.message(b"", rfc.MORE) + server.message(b"ho"))
            assert client.recv() == b"ho"

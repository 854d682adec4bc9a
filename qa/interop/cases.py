"""What is checked with each library. Each case returns what it counted and raises `AssertionError` if it fails."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np

from dyn_service import Client, Robot
from dyn_service.errors import PermissionDeniedError, UnavailableError
from dyn_service.service.protocol.curve import CurveClient, CurveServer
from dyn_service.service.protocol.keys import Keys, make_keys, read_keys, z85_decode
from dyn_service.service.protocol.messages import Role
from dyn_service.service.protocol.zmtp import Mechanism, Null
from dyn_service.service.server.administration.access import KeyFolder
from dyn_service.support.shipped import find_robot
from qa.interop.libraries import Library
from qa.interop.programs import WAIT_S, Program, free_endpoint
from qa.interop.wire import EchoServer, Wire


@dataclass(frozen=True)
class Scale:
    """How much is checked.

    sizes: bytes of messages. states: of a batch; the last request has 64 MB, its reply too. kills: how often a peer is
    killed and started again. heartbeats: how many PINGs must be answered.
    """

    sizes: tuple[int, ...] = (0, 1, 254, 255, 256, 32767, 32768, 32769, 65535, 65536, 1_000_000, 100_000_000)
    states: tuple[int, ...] = (1, 2, 100, 1000, 100_000, 1_000_000)
    kills: int = 3
    heartbeats: int = 10


def payload_of(size: int) -> bytes:
    """A content in which a lost or moved byte shows."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


@dataclass
class Security:
    """The keys of a case; None: mechanism NULL. folder: of the keys that our server reads."""

    client: Keys | None = None
    server: Keys | None = None
    folder: str = ""

    @classmethod
    def new(cls, mechanism: str, folder: Path) -> Security:
        """Makes a folder of keys with one client."""
        if mechanism == "NULL":
            return cls()
        keys = KeyFolder(folder)
        keys.make_server()
        file = keys.make("peer", Role.QUERY)
        assert file is not None
        return cls(read_keys(file), read_keys(keys.server_file), str(folder))

    @property
    def words_of_client(self) -> list[str]:
        """Arguments of a peer that is a client."""
        if self.client is None or self.server is None:
            return []
        return [self.client.public, self.client.secret, self.server.public]

    @property
    def words_of_server(self) -> list[str]:
        """Arguments of a peer that is a server."""
        return [] if self.server is None else [self.server.public, self.server.secret]

    def client_mechanism(self) -> Mechanism:
        """Of a client of ours."""
        if self.client is None or self.server is None:
            return Null()
        return CurveClient(self.client.pair, z85_decode(self.server.public))

    def server_mechanism(self) -> Mechanism:
        """Of a server of ours."""
        return Null() if self.server is None else CurveServer(self.server.pair, lambda public: None)

    @property
    def client_keys(self) -> Keys | None:
        """For `Client`."""
        if self.client is None or self.server is None:
            return None
        return Keys(self.client.name, self.client.public, self.client.secret, self.server.public)


@contextmanager
def our_server(endpoint: str, security: Security) -> Iterator[Program]:
    """Our server in a process."""
    folder = [security.folder] if security.folder else []
    with Program([sys.executable, "-m", "qa.interop.service", endpoint, *folder]) as program:
        yield program


def client_of(library: Library, endpoint: str, socket_type: str, security: Security, heartbeat_ms: int = 0) -> Program:
    """A client of the library."""
    words = ["client", endpoint, socket_type, str(heartbeat_ms), *security.words_of_client]
    return Program([*library.command, *words])


# our end as the server


def echo_at_our_end(library: Library, security: Security, scale: Scale, socket_type: str) -> str:
    """A client of theirs gets each content back, to the byte, over one connection."""
    with (
        EchoServer(security.server_mechanism) as server,
        client_of(library, server.endpoint, socket_type, security) as client,
    ):
        for size in scale.sizes:
            assert client.request(payload_of(size)) == payload_of(size), f"{size} bytes"
        assert len(server.wires) == 1, "it connected again"
    assert server.errors == []
    return f"0 to {scale.sizes[-1]:,} bytes"


def heartbeats(library: Library, security: Security, scale: Scale) -> str:
    """PINGs of theirs are answered: no connection ends while PINGs come."""
    with (
        EchoServer(security.server_mechanism) as server,
        client_of(library, server.endpoint, "DEALER", security, heartbeat_ms=50) as client,
    ):
        assert client.request(b"1") == b"1"
        wire = server.wires[0]
        limit = time.monotonic() + WAIT_S
        while wire.commands < scale.heartbeats:
            assert time.monotonic() < limit, f"{wire.commands} PINGs"
            time.sleep(0.01)
        assert client.request(b"2") == b"2"
        assert len(server.wires) == 1, "it connected again"
    return f"{scale.heartbeats} PINGs answered"


_ids = itertools.count(1)


def gravity_request(q: np.ndarray[Any, Any], padding: int = 0) -> bytes:
    """A request as the protocol's page has it, with an unknown key of that many bytes."""
    array = {"dtype": "<f8", "shape": list(q.shape), "data": q.tobytes()}
    request = {"v": 1, "id": next(_ids), "query": "gravity_forces", "robot": "panda", "inputs": {"q": array}}
    return bytes(msgpack.packb({**request, "padding": bytes(padding)}))


def forces_of(reply: bytes) -> np.ndarray[Any, Any]:
    """The forces in a reply."""
    content = msgpack.unpackb(reply)
    assert content["ok"], content
    forces = content["outputs"]["forces"]
    return np.frombuffer(forces["data"]).reshape(forces["shape"])


def robot() -> Robot:
    """The robot of our server."""
    return Robot.from_urdf(find_robot("panda"))


def states(panda: Robot, count: int) -> np.ndarray[Any, Any]:
    """Positions of the robot."""
    return np.random.default_rng(count).uniform(-1.0, 1.0, (count, panda.nq))


def requests_at_our_server(library: Library, security: Security, scale: Scale, socket_type: str) -> str:
    """Clients of theirs get the right answers; server and client are killed and started again."""
    endpoint, panda = free_endpoint(), robot()
    q = states(panda, 5)
    expected = panda.gravity_forces(q)

    def is_answered(client: Program, padding: int = 0) -> None:
        assert np.array_equal(forces_of(client.request(gravity_request(q, padding))), expected)

    with our_server(endpoint, security) as server:
        client = client_of(library, endpoint, socket_type, security)
        try:
            for size in scale.sizes:
                is_answered(client, size)
            for _ in range(scale.kills):
                server.kill()
                with our_server(endpoint, security) as server:
                    if not library.reconnects:
                        client.kill()
                        client = client_of(library, endpoint, socket_type, security)
                    is_answered(client)
                    client.kill()
                    client = client_of(library, endpoint, socket_type, security)
                    is_answered(client)
        finally:
            client.kill()
    restarts = f"server and client killed {scale.kills} times"
    return restarts if library.reconnects else f"{restarts}; it does not reconnect itself"


# our end as the client


def echo_at_their_router(library: Library, security: Security, scale: Scale) -> str:
    """A client of `zmtp`, with and without the empty part of REQ, gets each content back, to the byte."""
    endpoint = free_endpoint()
    with Program([*library.command, "echo", endpoint, *security.words_of_server]):
        for is_req in (False, True):
            with Wire.connect(endpoint, security.client_mechanism(), WAIT_S) as wire:
                for size in scale.sizes:
                    wire.send(payload_of(size), is_req=is_req)
                    payload, parts, came_as_req = wire.receive()
                    assert (parts, came_as_req) == (1 + is_req, is_req)
                    assert bytes(payload) == payload_of(size), f"{size} bytes"
    return f"0 to {scale.sizes[-1]:,} bytes"


def our_client_at_their_router(library: Library, security: Security, scale: Scale) -> str:
    """Our `Client` gets the right answers through a router of theirs, which is killed and started again."""
    endpoint, backend, panda = free_endpoint(), free_endpoint(), robot()
    relay = [*library.command, "relay", endpoint, backend, *security.words_of_server]
    # The router passes nothing on while it encrypts a large message, and `Client` gives up what is silent for 10 s.
    counts = scale.states if security.client is None else scale.states[:-1]
    with our_server(backend, Security()), Client(endpoint, timeout_s=WAIT_S, keys=security.client_keys) as client:
        for k in range(1 + scale.kills):
            with Program(relay):
                for count in counts if k == 0 else counts[:2]:
                    q = states(panda, count)
                    assert np.array_equal(client.robot("panda").gravity_forces(q), panda.gravity_forces(q)), (
                        f"{count} states"
                    )
    return f"1 to {counts[-1]:,} states, router killed {scale.kills} times"


def wrong_keys(library: Library, security: Security, scale: Scale) -> str:
    """With a key of another server our client reaches nobody."""
    endpoint = free_endpoint()
    keys = security.client_keys
    assert keys is not None
    wrong = Keys(keys.name, keys.public, keys.secret, make_keys("other").public)
    with (
        Program([*library.command, "echo", endpoint, *security.words_of_server]),
        Client(endpoint, timeout_s=2.0, keys=wrong) as client,
    ):
        try:
            client.health()
        except (UnavailableError, PermissionDeniedError) as error:
            return type(error).__name__
    raise AssertionError("it reached a server with another key")


CASES: dict[str, Callable[[Library, Security, Scale], str]] = {
    "their DEALER, echo": partial(echo_at_our_end, socket_type="DEALER"),
    "their REQ, echo": partial(echo_at_our_end, socket_type="REQ"),
    "their DEALER, our server": partial(requests_at_our_server, socket_type="DEALER"),
    "their REQ, our server": partial(requests_at_our_server, socket_type="REQ"),
    "their heartbeats": heartbeats,
    "their ROUTER, echo": echo_at_their_router,
    "their ROUTER, our Client": our_client_at_their_router,
    "their ROUTER, wrong key": wrong_keys,
}


def applies(case: str, library: Library, mechanism: str) -> bool:
    """Whether the library has what a case checks."""
    if case == "their heartbeats":
        return library.heartbeats and mechanism in library.mechanisms
    return mechanism in library.mechanisms and (mechanism == "CURVE" or case != "their ROUTER, wrong key")

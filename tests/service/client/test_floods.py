"""A flooding server cannot exhaust a client's memory, and many calls at a time lose no reply."""

from __future__ import annotations

import asyncio
import select
import socket
from pathlib import Path

import numpy as np
import pytest

from dyn_service import AsyncClient, Client, Robot, Server, UnavailableError
from tests.service.client.plain_server import PlainServer, channel_of, reply_to
from tests.service.conftest import TRANSPORTS, WAIT_S, Transport
from tests.wide import wide

SIZE = 1 << 12
REPLIES = 10_000
BUFFER_BYTES = 1 << 23
"""More than the buffers of a connection in both systems, and much less than all replies."""
STALLED_S = 2.0
"""A connection that accepts nothing for this long counts as full. On a busy machine, the test then sends less."""


def accepted_bytes(peer: socket.socket) -> int:
    """Returns how many bytes of `REPLIES` replies are taken from this connection."""
    reply = b"\x02" + SIZE.to_bytes(8, "big") + bytes(SIZE)
    sent_bytes = 0
    while sent_bytes < REPLIES * SIZE and select.select([], [peer], [], STALLED_S)[1]:
        sent_bytes += peer.send(reply[sent_bytes % len(reply) :], socket.MSG_DONTWAIT)
    return sent_bytes


def test_an_idle_client_takes_no_replies(socket_folder: Path) -> None:
    """They stay in the system's buffer, and the next call drops them."""
    with PlainServer(path=socket_folder / "s") as server, Client(server.endpoint, timeout_s=WAIT_S) as client:
        client.health()
        assert accepted_bytes(server.connections[0]) < BUFFER_BYTES
        assert channel_of(client)._peer.held == 0


def test_a_client_survives_a_flood_and_the_loss_of_its_server(socket_folder: Path) -> None:
    with PlainServer(path=socket_folder / "s") as server, Client(server.endpoint, timeout_s=WAIT_S) as client:
        client.health()
        accepted_bytes(server.connections[0])
        server.drop()
        assert client.health() == {}
    with pytest.raises(UnavailableError), Client(server.endpoint, timeout_s=0.1) as client:
        client.health()


def test_an_event_loop_drops_replies_that_no_call_waits_for(socket_folder: Path) -> None:
    """While it is blocked, they stay in the system's buffer."""

    async def run() -> None:
        async with AsyncClient(server.endpoint, timeout_s=WAIT_S) as client:
            await client.health()
            assert accepted_bytes(server.connections[0]) < BUFFER_BYTES  # blocks the event loop
            while client.counters.dropped < 2:
                await asyncio.sleep(0.01)
            assert channel_of(client) is not None
            assert channel_of(client)._peer.held <= 1 << 16

    with PlainServer(path=socket_folder / "s") as server:
        asyncio.run(run())


def test_a_message_of_endless_parts_closes_the_connection() -> None:
    """Their number is bounded, so that they take no memory."""
    parts = b"\x01\x00" * 10_000
    with (
        PlainServer(lambda request: parts if len(server.requests) == 1 else reply_to(request)) as server,
        Client(server.endpoint, timeout_s=WAIT_S) as client,
    ):
        assert client.health() == {}
        assert len(server.connections) == 2


@pytest.mark.parametrize("transport", wide(TRANSPORTS, {"ipc", "curve"}.__contains__), indirect=True)
def test_five_thousand_calls_at_a_time_lose_no_reply(pendulum: Robot, transport: Transport) -> None:
    q = np.linspace(-3.0, 3.0, 5000)[:, None]

    async def run(endpoint: str) -> list[np.ndarray]:
        async with AsyncClient(endpoint, timeout_s=WAIT_S, retries=0, **transport.client_options) as client:
            robot = await client.robot("pendulum")
            await robot.gravity_forces(q[0])
            return await asyncio.gather(*(robot.gravity_forces(state) for state in q))

    with Server([pendulum], endpoints=[transport.endpoint], **transport.server_options) as server:
        forces = asyncio.run(run(server.endpoints[0]))
    assert np.array_equal(forces, [pendulum.gravity_forces(state) for state in q])

"""A client queues a bounded number of unread replies, so that a flooding server cannot exhaust its memory."""

from __future__ import annotations

import asyncio
import select
import socket
from typing import Any

import numpy as np
import pytest

from dyn_service import AsyncClient, Client, Robot, Server
from dyn_service.service.client.channels import AsyncChannel
from tests.service.client.test_owner import GREETING, READY, greet
from tests.service.conftest import WAIT_MS
from tests.wide import wide

WAIT_S = WAIT_MS / 1e3
SIZE = 1 << 16
STALLED_S = 2.0
"""A connection that accepts nothing for this long counts as full. On a busy machine, the test then sends less."""


def taken(listening: socket.socket, most: int) -> int:
    """Returns how many bytes of replies an idle client accepts; stops at `most`."""
    reply = b"\x02" + SIZE.to_bytes(8, "big") + bytes(SIZE)
    peer, _ = listening.accept()
    with peer:
        greet(peer, GREETING + b"\x03\x00NULL" + bytes(48) + b"\x04" + bytes([len(READY)]) + READY)
        peer.setblocking(False)
        sent = 0
        while sent < most and select.select([], [peer], [], STALLED_S)[1]:
            sent += peer.send(reply[sent % len(reply) :])
        return sent


def test_an_idle_client_takes_sixteen_replies(new_endpoint: Any) -> None:
    endpoint = new_endpoint("ipc")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(endpoint.removeprefix("ipc://"))
        listening.listen()
        with Client(endpoint):
            found = taken(listening, 1000 * SIZE)
    assert found < 40 * SIZE  # 16, one partly received, and the system's buffers


def test_an_idle_event_loop_takes_a_thousand_replies(new_endpoint: Any) -> None:
    endpoint = new_endpoint("ipc")

    async def run() -> int:
        channel = AsyncChannel(endpoint, None)
        try:
            return taken(listening, 2000 * SIZE)  # blocks the event loop
        finally:
            channel.close()

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(endpoint.removeprefix("ipc://"))
        listening.listen()
        assert asyncio.run(run()) < 1040 * SIZE


@pytest.mark.parametrize("transport", wide(["tcp", "ipc", "inproc"], {"tcp", "inproc"}.__contains__))
def test_five_thousand_calls_at_a_time_lose_no_reply(pendulum: Robot, new_endpoint: Any, transport: str) -> None:
    q = np.linspace(-3.0, 3.0, 5000)[:, None]

    async def run(endpoint: str) -> list[np.ndarray]:
        async with AsyncClient(endpoint, timeout_s=WAIT_S, retries=0) as client:
            robot = await client.robot("pendulum")
            await robot.gravity_forces(q[0])
            return await asyncio.gather(*(robot.gravity_forces(each) for each in q))

    with Server([pendulum], endpoints=[new_endpoint(transport)]) as server:
        found = asyncio.run(run(server.endpoints[0]))
    assert np.array_equal(found, [pendulum.gravity_forces(each) for each in q])

"""Each kind of client and subscriber, asked once. A process of another user imports this, and little else."""

from __future__ import annotations

import asyncio

import zmq

from dyn_service import AsyncClient, Client, DynError
from dyn_service.graph.middleware.pubsub import RawSubscription

WAIT_S = 240.0


def said(call: object) -> str:
    try:
        return str(call())  # type: ignore[operator]
    except DynError as error:
        return f"{type(error).__name__}: {error}"


async def awaited(endpoint: str) -> list[str]:
    async with AsyncClient(endpoint, timeout_s=WAIT_S) as client:
        return await client.list_robots()


def heard(topic: str) -> str:
    """Returns the first message of a topic, or the first error."""
    faults: list[str] = []
    with zmq.Context() as context:
        frames = RawSubscription(context, "/pose", explicit_endpoint=topic, queue=2, say=faults.append)
        try:
            while not faults:
                assert frames.socket.poll(1e3 * WAIT_S)
                if (frame := frames.take_frame()) is not None:
                    return bytes(frame).decode()
            assert frames.received == 0
            return f"PermissionDeniedError: {faults[0]}"
        finally:
            frames.close()


def all_of(requests: str, topic: str) -> list[str]:
    """Returns the result or error of each kind of client and subscriber."""
    with Client(requests, timeout_s=WAIT_S) as client:
        return [said(client.list_robots), said(lambda: asyncio.run(awaited(requests))), said(lambda: heard(topic))]

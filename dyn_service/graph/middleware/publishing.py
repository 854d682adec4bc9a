"""Publishing from outside of any node: `dyn topic pub`."""

from __future__ import annotations

import os
import time
from pathlib import Path

from dyn_service.errors import FailedPreconditionError
from dyn_service.graph.middleware.discovery import Discovery
from dyn_service.graph.middleware.graph import runtime_folders
from dyn_service.graph.middleware.node import Node
from dyn_service.graph.middleware.stop import Stop
from dyn_service.graph.middleware.topics import RUNTIME_DIR
from dyn_service.messages import Message
from dyn_service.service.protocol.sockets import own_context
from dyn_service.support.parameters import NoParameters

WAIT_S = 2.0
"""How long one who publishes a few messages waits for someone to listen."""
_STAY_S = 0.2
"""How long he stays after the last one."""


def publish(discovery: Discovery, topic: str, message: Message, rate_hz: float, times: int, stop: Stop) -> int:
    """Publishes a message as a node of its own, in the launch where the topic is.

    Args:
        discovery: The nodes there are.
        topic: Its full name.
        message: What is published.
        rate_hz: How often.
        times: How many; 0 is without end. With an end, someone who listens is waited for, for `WAIT_S`.
        stop: Ends it.

    Returns:
        How many subscribers there were at the end.

    Raises:
        FailedPreconditionError: The topic is in several launches.
    """
    with own_context() as context:
        node = Node.alone(f"/_dyn_topic_pub_{os.getpid()}", NoParameters(), folder_of(discovery, topic), context)
        try:
            out = node.create_publisher(type(message), topic, latched=True)
            node.telemetry.before_ready = node.begin
            node.telemetry.ready()
            until = time.monotonic() + WAIT_S
            while times and not out.subscribers and time.monotonic() < until and not stop.requested:
                node.spin_once(0.05)
            timer = node.create_timer(1.0 / rate_hz, lambda: out.publish(message))
            out.publish(message)
            while (not times or out.sent < times) and not stop.requested:
                node.spin_once(0.1)
            timer.cancel()
            until = time.monotonic() + _STAY_S
            while time.monotonic() < until and not stop.requested:
                node.spin_once(0.05)
            return out.subscribers
        finally:
            node.close()


def folder_of(discovery: Discovery, topic: str) -> Path:
    """The runtime folder of a topic: where it is listened to, or published, or else where there are nodes at all; else
    the user's own.

    Raises:
        FailedPreconditionError: There are several.
    """
    found = discovery.nodes()
    for candidates in (
        {one.folder for one in found if any(end.name == topic for end in one.entry.subscriptions)},
        {one.folder for one in found if any(end.name == topic for end in one.entry.publishers)},
        {one.folder for one in found},
    ):
        if len(candidates) > 1:
            folders = ", ".join(sorted(map(str, candidates)))
            raise FailedPreconditionError(f"choose a launch by {RUNTIME_DIR}=FOLDER, one of {folders}")
        if candidates:
            return candidates.pop()
    return runtime_folders()[0]

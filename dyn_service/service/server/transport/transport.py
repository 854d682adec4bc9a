"""What a transport is to the server: `connections`, `keyed` and `inproc` each have one of these."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol

import zmq

from dyn_service.service.server.administration.access import Caller
from dyn_service.service.server.transport.endpoints import Bound
from dyn_service.service.server.transport.zmtp import Message

UNREAD_REPLIES = 4000
"""So many replies may wait for a client at a socket of libzmq's; it loses those that come when it has not read them."""

NOBLOCK = int(zmq.NOBLOCK)
MORE = int(zmq.SNDMORE) | NOBLOCK


class Asker(Protocol):
    """Whoever a message came from."""

    @property
    def received_ns(self) -> int:
        """When its last message came, on the clock of `time.perf_counter_ns`."""

    @property
    def caller(self) -> Caller | None:
        """Who that is; None is a process of this machine that the endpoint knows no more of."""


class Front(Protocol):
    """Listens on endpoints of its kind. All calls come from one thread, and none of them waits, but `close`."""

    def listen(self, endpoint: str) -> Bound:
        """Listens on the endpoint.

        Raises:
            DynError: It cannot.
        """

    @property
    def pending(self) -> bool:
        """Whether there is something for `messages` to do of which the selector would not tell."""

    def messages(self, most: int, until_ns: float = math.inf) -> Iterator[tuple[Any, Message]]:
        """Up to so many of the messages that have come, each with its `Asker`. The iterator is to be used up.

        Args:
            most: So many.
            until_ns: On the clock of `time.perf_counter_ns`: what was not begun by then is left for the next call.
        """

    def send(self, peer: Any, is_req: bool, reply: bytes | memoryview) -> None:
        """Sends a reply to an asker, or counts that it could not be sent."""

    def end(self, peer: Any) -> None:
        """Ends an asker's connection, where it has one: a reply to it is lost, which it is to know."""

    def look(self) -> None:
        """Ends what is dead or not let in any more; ten times a second."""

    def close(self, linger_s: float) -> None:
        """Ends everything, after replies have had so long to leave."""

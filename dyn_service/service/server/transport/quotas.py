"""The account of all connections of a server, whichever transport they came through, and who goes where it is too much.

A bound over all is over all: connections, open files, bytes of messages that have not ended, bytes of replies that are
not read. Each transport notes here what its connections hold, and what is over is decided in one place:

    room is needed for another    the first that never asked anything, if it had its time or half of all are such; else,
                                  of those that have asked, the one quiet for longest
    messages do not end           of those that nobody knows the greatest, then of the others
    replies are not read          the one that has taken nothing for longest
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Protocol

from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.server.administration.metrics import Traffic
from dyn_service.service.server.process import files_allowed

_LOG = logging.getLogger(__name__)

_GRACE_S = 1.0
"""A newcomer has so long to ask something before it goes for others, unless newcomers hold half of the places."""

_STUCK_S = 30.0
"""A peer that has read nothing of what waits for it for so long goes."""

_FEWEST_FILES = 24
"""So many open files are for connections, however few the system allows."""

_TELL_EVERY_S = 1.0
"""How often the log says at most what happens as often as strangers like."""


class CountedConnection(Protocol):
    """A connection.

    last_received_s, last_sent_s: when it last sent, and last took something that waited for it,
    on the clock of `time.monotonic`.
    held: bytes of its messages that have not ended, unread: bytes of replies that wait for it, served: whether it has
    asked something; all three are the quota's to set. closed: it has ended.
    """

    last_received_s: float
    last_sent_s: float
    held: int
    unread: int
    served: bool
    closed: bool

    @property
    def files(self) -> int:
        """Open files that it may take."""

    @property
    def is_stranger(self) -> bool:
        """Whether it is yet to self_test who is at the other end."""

    def end(self) -> None:
        """Ends the connection at once; its transport then has it `leave`."""


class RateLimitedLog:
    """Says one line a second at most, and how many were left out: nobody fills a disk with them."""

    def __init__(self, log: logging.Logger, level: int) -> None:
        self._log, self._level = log, level
        self._next_s = 0.0
        self._left_out = 0

    def tell(self, text: str, *args: object) -> None:
        """Says this, or counts that it was not said."""
        if time.monotonic() < self._next_s:
            self._left_out += 1
            return
        more = f" ({self._left_out} more like this were not said)" if self._left_out else ""
        self._log.log(self._level, f"{text}%s", *args, more)
        self._said()

    def check(self) -> None:
        """Says how many were left out, where no other line came to say so; to be called often."""
        if self._left_out and time.monotonic() >= self._next_s:
            self._log.log(self._level, "%d more like the last were not said", self._left_out)
            self._said()

    def _said(self) -> None:
        self._left_out, self._next_s = 0, time.monotonic() + _TELL_EVERY_S


class ConnectionQuota:
    """The connections, and what they hold together. All calls come from one thread.

    Args:
        limits: What all may hold.
        traffic: Where connections that were cut off are counted.
        gone: Told of each connection that has ended.
    """

    def __init__(
        self, limits: RequestLimits, traffic: Traffic, gone: Callable[[CountedConnection], None] = lambda peer: None
    ) -> None:
        self.limits = limits
        self.traffic = traffic
        self.unread = 0
        """Bytes of replies that wait to be read."""
        self.unfinished = 0
        """Bytes of messages that have not ended."""
        self.refreshers: list[Callable[[], None]] = []
        """Calls that bring up to date what a transport does not note as it happens; asked before anyone is cut off."""
        self._gone = gone
        self._peers: dict[CountedConnection, None] = {}
        self._newcomers: dict[CountedConnection, float] = {}
        """Those that never asked anything, and when they came, in the order in which they did."""
        self._files = 0
        self._cuts = RateLimitedLog(_LOG, logging.WARNING)

    def __len__(self) -> int:
        return len(self._peers)

    def add(self, peer: CountedConnection) -> None:
        """Takes up a connection, once there is room for it."""
        allowed = files_allowed()
        files = math.inf if allowed is None else max(_FEWEST_FILES, allowed)
        while self._peers and (len(self._peers) >= self.limits.max_connections or self._files + peer.files > files):
            self.make_room()
        self._peers[peer] = None
        self._newcomers[peer] = time.monotonic()
        self._files += peer.files

    def remove(self, peer: CountedConnection) -> None:
        """Leaves a connection out of all counts: it has ended."""
        if peer in self._peers:
            del self._peers[peer]
            self._newcomers.pop(peer, None)
            self._files -= peer.files
            self.unread -= peer.unread
            self.unfinished -= peer.held
            self._gone(peer)

    def note_request(self, peer: CountedConnection) -> None:
        """Notes that a connection has asked something for the first time."""
        peer.served = True
        self._newcomers.pop(peer, None)

    def make_room(self) -> None:
        """Ends the connection that is missed least.

        Who connects without end and asks nothing takes half of the places at most, each for as long as half of the
        places last: a newcomer who does ask has that long for it.
        """
        if not self._peers:
            return
        newcomers = self._newcomers
        peer, came_s = next(iter(newcomers.items()), (None, math.inf))
        had_its_time = time.monotonic() - came_s > _GRACE_S
        if peer is None or not (had_its_time or 2 * len(newcomers) >= len(self._peers)):
            peer = min((peer for peer in self._peers if peer.served), key=lambda peer: peer.last_received_s)
        self.disconnect(peer, "room is needed for another")

    def set_unfinished(self, peer: CountedConnection, size: int) -> None:
        """Notes how many bytes a connection holds of messages that have not ended."""
        self.unfinished += size - peer.held
        peer.held = size

    def set_unread(self, peer: CountedConnection, size: int) -> None:
        """Notes how many bytes of replies wait for a connection."""
        self.unread += size - peer.unread
        peer.unread = size

    def enforce_unfinished(self) -> None:
        """Cuts off connections until what all hold of messages without an end is within the limit."""
        if self.unfinished <= self.limits.max_unfinished_bytes:
            return
        self._refresh()
        while self.unfinished > self.limits.max_unfinished_bytes:
            hoarder = max((peer for peer in self._peers if peer.held), key=lambda peer: (peer.is_stranger, peer.held))
            self.disconnect(hoarder, f"{hoarder.held} bytes came in without an end")

    def enforce_unread(self) -> None:
        """Cuts off connections until the replies that wait for all are within the limit."""
        if self.unread <= self.limits.max_unread_bytes:
            return
        self._refresh()
        while self.unread > self.limits.max_unread_bytes:
            stuck = min((peer for peer in self._peers if peer.unread), key=lambda peer: peer.last_sent_s)
            self._disconnect_unread(stuck)

    def check(self) -> None:
        """Holds all connections to the limits, and ends those that read nothing for long; to be called often."""
        self.enforce_unfinished()
        self.enforce_unread()
        now = time.monotonic()
        for peer in [*self._peers]:
            if peer.unread and now - peer.last_sent_s > _STUCK_S:
                self._disconnect_unread(peer)
        self._cuts.check()

    def disconnect(self, peer: CountedConnection, cause: str) -> None:
        """Ends a connection, counts it and says why."""
        if not peer.closed:
            self.note_disconnect(cause)
            peer.end()

    def note_disconnect(self, cause: str) -> None:
        """Counts a connection that is ended, and says why."""
        self.traffic.cut_off += 1
        self._cuts.tell("a connection was cut off: %s", cause)

    def _disconnect_unread(self, peer: CountedConnection) -> None:
        self.disconnect(peer, f"{peer.unread} bytes of replies were not read")

    def _refresh(self) -> None:
        for refresh in self.refreshers:
            refresh()

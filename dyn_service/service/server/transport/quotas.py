"""Limits over all connections of a server, and which connection is closed to keep them.

The limits hold for the sum over all connections: their number, open files, bytes of unfinished messages, bytes of
unread replies. The transport reports what each connection holds; `ConnectionQuota` decides:

    limit                    connection that is closed
    connections, files       the oldest that never sent a request, if it had 1 s or half of all are such; else the one
                             that sent its last message longest ago
    unfinished messages      the one that holds most, those without a complete handshake first
    unread replies           the one that has read nothing for longest
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.server.administration.access import Caller
from dyn_service.service.server.administration.metrics import Traffic
from dyn_service.service.server.process import files_allowed

_LOG = logging.getLogger(__name__)

# a new connection has this long for its first request before it may be closed for others
_GRACE_S = 1.0
_STUCK_S = 30.0  # a connection whose peer reads none of its replies for this long is closed
_FEWEST_CONNECTIONS = 8  # number of connections even if the system's limit of open files is lower
# of the open files; the rest is for long messages in shared memory, see `workers.pipes`
_SHARE_OF_FILES = 0.75
_LOG_EVERY_S = 1.0  # minimum time between log lines about events that clients can cause at will


class Connection:
    """A connection and its peer.

    received_ns: arrival of its last bytes, on the clock of `time.perf_counter_ns`. caller: the peer by its key; None is
    a process of this machine without a key. last_sent_s: when its peer last read part of a reply, on the clock of
    `time.monotonic`. closed: whether it has ended. is_stranger: whether its handshake is incomplete. Set by the quota:
    unfinished, bytes of messages that have not arrived in full; unread, bytes of replies that wait for it; served,
    whether it has sent a request.
    """

    caller: Caller | None = None

    def __init__(self) -> None:
        self.last_sent_s = time.monotonic()
        self.received_ns = time.perf_counter_ns()
        self.unfinished = self.unread = 0
        self.served = self.closed = False
        self.is_stranger = True

    def close(self) -> None:
        """Closes the connection at once, and calls `ConnectionQuota.remove`."""
        raise NotImplementedError


class RateLimitedLog:
    """Logs at most one line a second, with the number of lines skipped."""

    def __init__(self, log: logging.Logger, level: int) -> None:
        self._log, self._level = log, level
        self._next_s = 0.0
        self._left_out = 0

    def log(self, text: str, *args: object) -> None:
        """Logs the line, or counts it as skipped."""
        if time.monotonic() < self._next_s:
            self._left_out += 1
            return
        skipped = f" ({self._left_out} similar lines skipped)" if self._left_out else ""
        self._log.log(self._level, f"{text}%s", *args, skipped)
        self._logged()

    def check(self) -> None:
        """Logs the number of skipped lines if no further line did; to be called often."""
        if self._left_out and time.monotonic() >= self._next_s:
            self._log.log(self._level, "%d lines like the last one skipped", self._left_out)
            self._logged()

    def _logged(self) -> None:
        self._left_out, self._next_s = 0, time.monotonic() + _LOG_EVERY_S


class ConnectionQuota:
    """All connections and their sums; calls `on_removed` for each that has ended. All calls come from one thread."""

    def __init__(
        self, limits: RequestLimits, traffic: Traffic, on_removed: Callable[[Connection], None] = lambda peer: None
    ) -> None:
        self.limits = limits
        self.traffic = traffic
        self.unread = 0  # bytes of unread replies
        self.unfinished = 0  # bytes of unfinished messages
        self._on_removed = on_removed
        self._peers: dict[Connection, None] = {}
        # those without a request, by when they were accepted
        self._newcomers: dict[Connection, float] = {}
        self._closed = RateLimitedLog(_LOG, logging.WARNING)

    def __len__(self) -> int:
        return len(self._peers)

    def add(self, peer: Connection) -> None:
        """Adds a connection; closes others first if there is no room."""
        limit, files = self.limits.max_connections, files_allowed()
        if files is not None:
            limit = min(limit, max(_FEWEST_CONNECTIONS, int(_SHARE_OF_FILES * files)))
        while self._peers and len(self._peers) >= limit:
            self.make_room()
        self._peers[peer] = None
        self._newcomers[peer] = time.monotonic()

    def remove(self, peer: Connection) -> None:
        """Removes a connection that has ended."""
        if peer in self._peers:
            del self._peers[peer]
            self._newcomers.pop(peer, None)
            self.unread -= peer.unread
            self.unfinished -= peer.unfinished
            self._on_removed(peer)

    def note_request(self, peer: Connection) -> None:
        """Notes that a connection has sent its first request."""
        peer.served = True
        self._newcomers.pop(peer, None)

    def make_room(self) -> None:
        """Closes one connection.

        Clients that connect repeatedly and send nothing hold at most half of the places. If they do, a new connection
        has as long for its first request as it takes to fill half of the places.
        """
        if not self._peers:
            return
        newcomers = self._newcomers
        peer, came_s = next(iter(newcomers.items()), (None, math.inf))
        had_its_time = time.monotonic() - came_s > _GRACE_S
        if peer is None or not (had_its_time or 2 * len(newcomers) >= len(self._peers)):
            peer = min((peer for peer in self._peers if peer.served), key=lambda peer: peer.received_ns)
        self.disconnect(peer, "room was needed for another connection")

    def set_unfinished(self, peer: Connection, size: int) -> None:
        """Notes how many bytes of unfinished messages a connection holds."""
        self.unfinished += size - peer.unfinished
        peer.unfinished = size

    def set_unread(self, peer: Connection, size: int) -> None:
        """Notes how many bytes of replies wait for a connection."""
        self.unread += size - peer.unread
        peer.unread = size

    def enforce_unfinished(self) -> None:
        """Closes connections until unfinished messages are within the limit."""
        while self.unfinished > self.limits.max_unfinished_bytes:
            largest = max(self._peers, key=lambda peer: (bool(peer.unfinished), peer.is_stranger, peer.unfinished))
            self.disconnect(largest, f"it sent {largest.unfinished} bytes of an unfinished message")

    def enforce_unread(self) -> None:
        """Closes connections until unread replies are within the limit."""
        while self.unread > self.limits.max_unread_bytes:
            stuck = min((peer for peer in self._peers if peer.unread), key=lambda peer: peer.last_sent_s)
            self._disconnect_unread(stuck)

    def check(self) -> None:
        """Enforces all limits, and closes connections whose peer has stopped reading; to be called often."""
        self.enforce_unfinished()
        self.enforce_unread()
        now = time.monotonic()
        for peer in [*self._peers]:
            if peer.unread and now - peer.last_sent_s > _STUCK_S:
                self._disconnect_unread(peer)
        self._closed.check()

    def disconnect(self, peer: Connection, cause: str) -> None:
        """Closes a connection, counts and logs it."""
        if not peer.closed:
            self.note_disconnect(cause)
            peer.close()

    def note_disconnect(self, cause: str) -> None:
        """Counts and logs a closed connection."""
        self.traffic.cut_off += 1
        self._closed.log("a connection was closed: %s", cause)

    def _disconnect_unread(self, peer: Connection) -> None:
        self.disconnect(peer, f"{peer.unread} bytes of replies were not read")

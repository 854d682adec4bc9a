"""The part that both clients share: settings, the server's epoch, errors.

Replies carry the server's epoch, a random number that changes at each restart. Epochs have no order, so which of two is
newer follows from the order of requests:

- Replies of the current epoch are accepted.
- Another epoch is accepted if the request was first sent after the current epoch was known, because that server was
  alive later. This includes an earlier epoch, for example after a failover to a second server and back.

A reply in flight while its server was restarted is therefore dropped, and the request is sent again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from dyn_service.errors import DeadlineExceededError, InvalidArgumentError, UnavailableError
from dyn_service.service.client.channels import BaseChannel
from dyn_service.service.client.flows import Ask, is_repeatable, pack_request
from dyn_service.service.client.retries import (
    LONG_BYTES,
    PROBE_S,
    SILENT_S,
    Cause,
    OnWait,
    RetryPolicy,
    RetryState,
    TimeoutExtension,
    check_seconds,
)
from dyn_service.service.protocol import limits
from dyn_service.service.protocol.endpoints import check_connectable
from dyn_service.service.protocol.keys import KeySource, client_keys
from dyn_service.service.protocol.messages import Notice, ReplyHead, cancel
from dyn_service.service.protocol.zmtp import MechanismError

MIN_S = 1e-6
"""Minimum deadline that is sent."""

MAX_RETRIES = 1000

_MAX_PROBES = 16
"""Number of recent probes whose replies are recognised."""


@dataclass(slots=True)
class Counters:
    """Counts of unusual events.

    retries: requests sent again. probes: health requests to a silent server. late: answers dropped because the server
    marked them as late. dropped: messages that no call waited for, such as the second reply to a request sent twice.
    stale: replies of another epoch that were dropped. cancelled: calls that gave up and sent a cancel.
    """

    retries: int = 0
    probes: int = 0
    late: int = 0
    dropped: int = 0
    stale: int = 0
    cancelled: int = 0


@dataclass(eq=False, slots=True)
class Call:
    """A request that waits for its reply.

    timeout_s, begun_s, extension: of the call that contains it; the first notice makes an extension that is None. size:
    bytes of the request. epoch, connection: the server's epoch and the number of the connection when it was sent.
    is_notified: whether the server sent notices. retry_state: None before the first check, which most calls do not
    need.
    """

    request: Ask
    timeout_s: float
    begun_s: float
    size: int
    epoch: int | None
    connection: int
    extension: TimeoutExtension | None
    is_notified: bool = False
    retry_state: RetryState | None = None

    @property
    def query(self) -> str:
        """Its query."""
        return self.request.query

    @property
    def tries(self) -> int:
        """How often the request was sent."""
        return 1 if self.retry_state is None else self.retry_state.count


class Connection:
    """Settings and server state of a client. `Client` documents the arguments."""

    _channel: BaseChannel | None

    def __init__(
        self,
        endpoint: str,
        *,
        timeout_s: float = limits.DEFAULT_TIMEOUT_S,
        compile_wait_s: float = limits.DEFAULT_COMPILE_WAIT_S,
        on_wait: OnWait | None = None,
        retries: int = limits.DEFAULT_RETRIES,
        retry_after_s: float = limits.DEFAULT_RETRY_AFTER_S,
        keys: KeySource | None = None,
        server_key: str | None = None,
    ) -> None:
        self._endpoint = check_connectable(endpoint)
        self._timeout_s = check_seconds("timeout_s", timeout_s)
        self._compile_wait_s = check_seconds("compile_wait_s", compile_wait_s, zero=True)
        self._on_wait = on_wait
        if type(retries) is not int or not 0 <= retries <= MAX_RETRIES:
            message = f"retries must be an integer from 0 to {MAX_RETRIES}, found {retries!r}"
            raise InvalidArgumentError(message, path="retries")
        self._retrying = RetryPolicy(retries, check_seconds("retry_after_s", retry_after_s))
        if keys is None and server_key is not None:
            raise InvalidArgumentError("server_key needs keys, the client's own", path="keys")
        self._keys = None if keys is None else client_keys(keys, server_key)
        self._last_id = first_id()
        self._epoch: int | None = None
        self._restarts = 0
        # the epoch that was known when each was sent, by id
        self._probes: dict[int, int | None] = {}
        self._counters = Counters()
        self._heard_s = -1.0
        self._unanswered_since_s: float | None = None
        self._probed_s = 0.0
        self._restarted_s = 0.0
        self._renewed_s = -SILENT_S
        self._closed = False
        self._start()

    def _start(self) -> None:
        """Opens the connection; called once, at the end of `__init__`."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} '{self._endpoint}'{', closed' if self._closed else ''}>"

    @property
    def endpoint(self) -> str:
        """The server's endpoint."""
        return self._endpoint

    @property
    def timeout_s(self) -> float:
        """The time limit of each call, s. May be set."""
        return self._timeout_s

    @timeout_s.setter
    def timeout_s(self, value: float) -> None:
        self._timeout_s = check_seconds("timeout_s", value)

    @property
    def compile_wait_s(self) -> float:
        """Maximum extension of a call while the server compiles, s. May be set."""
        return self._compile_wait_s

    @compile_wait_s.setter
    def compile_wait_s(self, value: float) -> None:
        self._compile_wait_s = check_seconds("compile_wait_s", value, zero=True)

    @property
    def epoch(self) -> int | None:
        """The server's epoch, which changes when it restarts; None before the first answer, or without epochs."""
        return self._epoch

    @property
    def restarts(self) -> int:
        """Number of restarts of the server that were detected."""
        return self._restarts

    @property
    def counters(self) -> Counters:
        """A copy of the counters."""
        return replace(self._counters)

    def _accepts(self, epoch: object, request_epoch: int | None, now_s: float) -> bool:
        """Returns whether to accept a reply; if so, its epoch becomes the current one.

        request_epoch: the current epoch when the reply's request was first sent.
        """
        if epoch == self._epoch or not isinstance(epoch, int):  # old servers send no epoch
            return True
        # of two epochs none is newer by itself; the request was sent before this one was known
        if self._epoch is not None:
            if request_epoch != self._epoch:
                self._counters.stale += 1
                return False
            self._restarts += 1
            self._restarted_s = now_s
        self._epoch = epoch
        return True

    def _probe(self) -> bytes:
        """Returns a health request, whose reply shows that the server is alive, and its epoch."""
        self._counters.probes += 1
        self._last_id += 1
        if len(self._probes) >= _MAX_PROBES:
            self._probes.pop(next(iter(self._probes)))
        self._probes[self._last_id] = self._epoch
        return pack_request(self._last_id, Ask("health"), PROBE_S * 1e3)

    def _cancel_messages(self, request_id: int, now_s: float) -> list[bytes]:
        """Returns the messages of a call that gives up: its cancel, and a probe if the server is silent for long."""
        self._counters.cancelled += 1
        messages = [cancel(request_id)]
        silent = self._unanswered_since_s is not None and self._unanswered_since_s > self._heard_s
        if silent and now_s - max(self._unanswered_since_s or 0.0, self._probed_s) > PROBE_S:
            self._probed_s = now_s
            messages.append(self._probe())
        return messages

    def _handle_unexpected(self, reply: ReplyHead | Notice | None, now_s: float) -> None:
        """Handles a message that no call waits for: the reply to a probe or to an earlier call, or an unknown one."""
        if isinstance(reply, ReplyHead) and reply.id in self._probes:
            self._accepts(reply.epoch, self._probes.pop(reply.id), now_s)
        else:
            self._counters.dropped += 1

    def _retry_state(self, call: Call) -> RetryState:
        """Returns the retry state of a call, made by the first check."""
        if call.retry_state is None:
            repeatable, is_long = is_repeatable(call.query), call.size > LONG_BYTES
            begin = call.begun_s, call.epoch, call.connection
            call.retry_state = RetryState(self._retrying, *begin, repeatable=repeatable, is_long=is_long)
            call.retry_state.notified = call.is_notified
        return call.retry_state

    def _extend(self, call: Call, notice: Notice, now_s: float) -> float:
        """Returns until when a call waits after this notice, on the caller's clock."""
        call.is_notified = True
        if call.retry_state is not None:
            call.retry_state.notified = True
        call.extension = call.extension or self._extension(call.query, call.begun_s, call.timeout_s)
        return call.extension.until_s(notice, now_s)

    def _extension(self, query: str, begun_s: float, timeout_s: float) -> TimeoutExtension:
        return TimeoutExtension(query, begun_s, timeout_s, self._compile_wait_s, self._on_wait)

    def _packed(self, request_id: int, request: Ask, left_s: float, retry: int = 0) -> bytes:
        """Returns the encoded request, with the time left as its deadline."""
        return pack_request(request_id, request, left_s * 1e3, self._compile_wait_s * 1e3, retry)

    @staticmethod
    def _closed_error() -> UnavailableError:
        """Returns the error of a call during which the client was closed."""
        return UnavailableError("the client was closed")

    def _unreachable_error(self, timeout_s: float, failure: Exception | None) -> UnavailableError:
        """Returns the error of a call that found no server. failure: of the last attempt to connect."""
        cause = ""
        if isinstance(failure, MechanismError):
            advice = "it has no keys: omit yours" if self._keys else "it needs keys: specify yours by keys= or --key"
            cause = f"; {advice}"
        elif isinstance(failure, OSError) and failure.strerror and not isinstance(failure, ConnectionResetError):
            cause = f": {failure.strerror.lower()}"
        elif failure is not None:
            cause = "; what listens there does not complete the handshake"
            if self._keys is not None:  # a box that a server cannot open ends the handshake
                cause += f": its key may not be {self._keys.server}"
        return UnavailableError(f"no server answers at {self._endpoint} within {timeout_s:g} s{cause}")

    def _unanswered_error(
        self, call: Call, now_s: float, *, connected: bool
    ) -> DeadlineExceededError | UnavailableError:
        """Returns the error of a call without an answer in time."""
        if not connected:
            return self._lost_error(call, Cause.GONE, now_s)
        if self._unanswered_since_s is None or self._unanswered_since_s <= self._heard_s:
            self._unanswered_since_s = max(call.begun_s, self._heard_s)
        if now_s - self._unanswered_since_s > SILENT_S:  # over several calls
            return self._lost_error(call, Cause.SILENT, now_s)
        state = self._connection_state(now_s, call.tries)
        if call.is_notified and call.extension is not None:
            return call.extension.exceeded(self._endpoint, state)
        text = f"{call.query}: no answer from {self._endpoint} within {call.timeout_s:g} s ({state})"
        return DeadlineExceededError(text)

    def _lost_error(self, call: Call, cause: Cause, now_s: float) -> UnavailableError:
        """Returns the error of a call that cannot be answered; replaces the connection to a silent server."""
        # once for all waiting calls
        if cause is Cause.SILENT and now_s - self._renewed_s > SILENT_S / 2:
            self._renewed_s = now_s
            if self._channel is not None:
                self._channel.renew()
        event = {
            Cause.GONE: f"the connection to {self._endpoint} was lost before the answer",
            Cause.RESTARTED: f"the server at {self._endpoint} was restarted before the answer",
            Cause.SILENT: f"the server at {self._endpoint} does not respond",
        }[cause]
        unsure = "" if is_repeatable(call.query) else "; whether the server carried it out is unknown"
        return UnavailableError(f"{call.query}: {event} ({self._connection_state(now_s, call.tries)}){unsure}")

    def _late_error(self, call: Call) -> DeadlineExceededError:
        """Returns the error of a call whose answer is marked as late."""
        self._counters.late += 1
        text = f"the answer from {self._endpoint} was computed too late, after more than {call.timeout_s:g} s"
        return DeadlineExceededError(f"{call.query}: {text}")

    def _connection_state(self, now_s: float, tries: int) -> str:
        """Returns the state of the connection for an error: tries, when the server was last heard, its last restart."""
        silent_s = max(0.0, now_s - self._heard_s)
        last_heard = f"last heard {silent_s:.3g} s ago" if self._heard_s >= 0.0 else "never heard before"
        restarted = f", restarted {now_s - self._restarted_s:.3g} s ago" if self._restarts else ""
        return f"{tries} {'try' if tries == 1 else 'tries'}, {last_heard}{restarted}"


def first_id() -> int:
    """Returns a random first request id, so that replies to an earlier client at the same address do not match."""
    return int.from_bytes(os.urandom(4))

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

from msgspec import UNSET

from dyn_service.errors import DeadlineExceededError, InvalidArgumentError, UnavailableError
from dyn_service.service.client.channels import Context, check_endpoint, forks
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
from dyn_service.service.protocol.keys import KeySource, client_keys
from dyn_service.service.protocol.limits import (
    DEFAULT_COMPILE_WAIT_S,
    DEFAULT_RETRIES,
    DEFAULT_RETRY_AFTER_S,
    DEFAULT_TIMEOUT_S,
)
from dyn_service.service.protocol.messages import Notice, ReplyHead, cancel

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


class Connection:
    """Settings and server state of a client. `Client` documents the arguments."""

    def __init__(
        self,
        endpoint: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        compile_wait_s: float = DEFAULT_COMPILE_WAIT_S,
        on_wait: OnWait | None = None,
        retries: int = DEFAULT_RETRIES,
        retry_after_s: float = DEFAULT_RETRY_AFTER_S,
        context: Context | None = None,
        keys: KeySource | None = None,
        server_key: str | None = None,
    ) -> None:
        self._endpoint = check_endpoint(endpoint)
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
        self._probes: dict[int, int | None] = {}  # the epoch that was known when each was sent, by id
        self._counters = Counters()
        self._heard_s = -1.0
        self._unanswered_since_s: float | None = None
        self._probed_s = 0.0
        self._restarted_s = 0.0
        self._renewed_s = -SILENT_S
        self._closed = False
        self._context, self._context_forks = context, forks()
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
        """The server's epoch, which changes when it restarts; None before the first answer, or if the server sends
        none.
        """
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
        return pack_request(self._last_id, "health", UNSET, UNSET, UNSET, UNSET, PROBE_S * 1e3)

    def _cancel_messages(self, request_id: int, now_s: float) -> list[bytes]:
        """Returns the messages of a call that gives up: its cancel, and a probe if the server has been silent for
        long.
        """
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

    def _retry_state(self, query: str, size: int, sent_s: float, epoch: int | None) -> RetryState:
        """Returns the retry state of a call that was sent once."""
        return RetryState(self._retrying, sent_s, epoch, repeatable=is_repeatable(query), is_long=size > LONG_BYTES)

    def _extension(self, query: str, begun: float, timeout_s: float) -> TimeoutExtension:
        return TimeoutExtension(query, begun, timeout_s, self._compile_wait_s, self._on_wait)

    def _packed(self, request_id: int, request: Ask, left_s: float, retry: int = 0) -> bytes:
        """Returns the encoded request, with the time left as its deadline."""
        return pack_request(request_id, *request, left_s * 1e3, self._compile_wait_s * 1e3, retry)

    @staticmethod
    def _closed_error() -> UnavailableError:
        """Returns the error of a call during which the client was closed."""
        return UnavailableError("the client was closed")

    def _unreachable(self, timeout_s: float) -> UnavailableError:
        """Returns the error of a call that found no server."""
        cause = ""
        if self._keys is not None:
            cause = f", or its key is not {self._keys.server}"
        elif self._may_need_keys():
            cause = "; a server with keys does not answer clients without: specify yours by keys= or --key"
        return UnavailableError(f"no server answers at {self._endpoint} within {timeout_s:g} s{cause}")

    def _reconnect(self) -> None:
        """Replaces the connection."""
        raise NotImplementedError

    def _may_need_keys(self) -> bool:
        """Returns whether a server there may need keys; such a server does not answer clients without."""
        scheme, _, file = self._endpoint.partition("://")
        return scheme == "tcp" or (scheme == "ipc" and os.path.exists(file))

    def _unanswered(
        self,
        query: str,
        timeout_s: float,
        begun_s: float,
        now_s: float,
        extension: TimeoutExtension | None,
        tries: int,
        *,
        connected: bool,
    ) -> DeadlineExceededError | UnavailableError:
        """Returns the error of a call that was sent and not answered in time.

        extension: the call's timeout extension, if the server sent notices. tries: how often the request was sent.
        """
        if not connected:
            return self._lost(query, Cause.GONE, now_s, tries)
        if self._unanswered_since_s is None or self._unanswered_since_s <= self._heard_s:
            self._unanswered_since_s = max(begun_s, self._heard_s)
        if now_s - self._unanswered_since_s > SILENT_S:  # over several calls
            return self._lost(query, Cause.SILENT, now_s, tries)
        known = self._known(now_s, tries)
        if extension is not None:
            return extension.exceeded(self._endpoint, known)
        return DeadlineExceededError(f"{query}: no answer from {self._endpoint} within {timeout_s:g} s ({known})")

    def _lost(self, query: str, cause: Cause, now_s: float, tries: int) -> UnavailableError:
        """Returns the error of a call that cannot be answered; replaces the connection to a silent server."""
        if cause is Cause.SILENT and now_s - self._renewed_s > SILENT_S / 2:  # once for all waiting calls
            self._renewed_s = now_s
            self._reconnect()
        happened = {
            Cause.GONE: f"the connection to {self._endpoint} was lost before the answer",
            Cause.RESTARTED: f"the server at {self._endpoint} was restarted before the answer",
            Cause.SILENT: f"the server at {self._endpoint} does not respond",
        }[cause]
        unsure = "" if is_repeatable(query) else "; whether the server carried it out is unknown"
        return UnavailableError(f"{query}: {happened} ({self._known(now_s, tries)}){unsure}")

    def _late_answer(self, query: str, timeout_s: float) -> DeadlineExceededError:
        """Returns the error of a call whose answer is marked as late."""
        self._counters.late += 1
        return DeadlineExceededError(
            f"{query}: the answer from {self._endpoint} was computed too late, after more than {timeout_s:g} s"
        )

    def _known(self, now_s: float, tries: int) -> str:
        """Returns the state of the connection for an error: tries, when the server was last heard, its last restart."""
        heard = (
            f"last heard {max(0.0, now_s - self._heard_s):.3g} s ago" if self._heard_s >= 0.0 else "never heard before"
        )
        restarted = f", restarted {now_s - self._restarted_s:.3g} s ago" if self._restarts else ""
        return f"{tries} {'try' if tries == 1 else 'tries'}, {heard}{restarted}"


def first_id() -> int:
    """Returns a random first request id, so that replies to an earlier client at the same address do not match."""
    return int.from_bytes(os.urandom(4))

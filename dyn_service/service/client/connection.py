"""The part that both clients share: settings, the known server, errors.

An endpoint is one server. Its replies carry its epoch, a number that is another one after each restart; which of two
epochs is the newer one does not show, so it is taken from what was asked when:

- A reply is taken from the epoch that is known, never from one that was known before.
- A new one is believed where the request was first sent after the known one had been heard of: it was alive later.

So a reply that was under way while its server was restarted is dropped, and the request sent again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from msgspec import UNSET

from dyn_service.errors import DeadlineExceededError, InvalidArgumentError, UnavailableError
from dyn_service.service.client.channels import check_endpoint
from dyn_service.service.client.core import Ask, is_repeatable, pack_request
from dyn_service.service.client.retries import LONG_BYTES, PROBE_S, SILENT_S, Cause, RetryPolicy, RetryState
from dyn_service.service.client.timeouts import OnWait, TimeoutExtension
from dyn_service.service.protocol.keys import KeySource, client_keys
from dyn_service.service.protocol.messages import Notice, ReplyHead, cancel

MAX_WAIT_S = 1e6
"""Longest time limit, and longest wait for a compiler, some eleven days. Transports count a wait in milliseconds of 32
bits, and both together stay within.
"""

LEAST_S = 1e-6
"""The shortest deadline that is sent."""

MAX_RETRIES = 1000

_MOST_PROBES = 16
"""So many of the last probes are remembered."""


@dataclass(slots=True)
class Counters:
    """What a client has met.

    retries: requests that were sent again. probes: questions for a silent server's health. late: answers that the
    server marked so, not handed out. dropped: messages that no call waited for, such as the second reply to a request
    that was sent twice. stale: replies of an earlier life of the server, or of one not known to be the present.
    cancelled: calls that gave up, and said so.
    """

    retries: int = 0
    probes: int = 0
    late: int = 0
    dropped: int = 0
    stale: int = 0
    cancelled: int = 0


class Connection:
    """Settings of a client.

    Args:
        endpoint: Where the server listens: `tcp://host:port`, `ipc:///path`, `inproc://name`.
        timeout_s: The time limit of each call, unless the robot has its own.
        compile_wait_s: How much longer a call waits while the server says that it compiles; 0: not at all.
        on_wait: Told what the server compiles, about once a second; None: a call that waits logs one warning.
        retries: How often a request is sent again, within its time limit; 0: never. See `client/retries.py`.
        retry_after_s: The silence after which it is.
        keys: The key file, or what was read from one, for a server that asks for keys; None: it asks for none.
        server_key: The server's public key; None: it is in the key file.
    """

    def __init__(
        self,
        endpoint: str,
        timeout_s: float,
        compile_wait_s: float,
        on_wait: OnWait | None,
        retries: int,
        retry_after_s: float,
        keys: KeySource | None = None,
        server_key: str | None = None,
    ) -> None:
        self._endpoint = check_endpoint(endpoint)
        self._timeout_s = check_timeout(timeout_s)
        self._compile_wait_s = check_compile_wait(compile_wait_s)
        self._on_wait = on_wait
        self._retrying = check_retrying(retries, retry_after_s)
        if keys is None and server_key is not None:
            raise InvalidArgumentError("server_key needs keys: the client's own, to be let in", path="keys")
        self._keys = None if keys is None else client_keys(keys, server_key)
        self._last_id = first_id()
        self._epoch: int | None = None
        self._past: set[int] = set()
        self._probes: dict[int, int | None] = {}  # the epoch that was known when each was sent, by id
        self._counters = Counters()
        self._heard_s = -1.0
        self._vain_s: float | None = None
        self._probed_s = 0.0
        self._restarted_s = 0.0
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} '{self._endpoint}'{', closed' if self._closed else ''}>"

    @property
    def endpoint(self) -> str:
        """Where the server listens."""
        return self._endpoint

    @property
    def timeout_s(self) -> float:
        """The time limit of each call, in seconds. May be set."""
        return self._timeout_s

    @timeout_s.setter
    def timeout_s(self, value: float) -> None:
        self._timeout_s = check_timeout(value)

    @property
    def compile_wait_s(self) -> float:
        """How much longer a call waits while the server says that it compiles, in seconds. May be set."""
        return self._compile_wait_s

    @compile_wait_s.setter
    def compile_wait_s(self, value: float) -> None:
        self._compile_wait_s = check_compile_wait(value)

    @property
    def epoch(self) -> int | None:
        """Which life of the server the last answer came from; None before the first, or where the server says none."""
        return self._epoch

    @property
    def restarts(self) -> int:
        """How often the server was found to have been restarted."""
        return len(self._past)

    @property
    def counters(self) -> Counters:
        """What the client has met so far: a copy."""
        return replace(self._counters)

    def _meets(self, epoch: object, asked_in: int | None, now_s: float) -> bool:
        """Whether a reply of another epoch than the known one is to be taken; it is the known one from then on.

        Args:
            epoch: The reply's.
            asked_in: The one that was known when its request was first sent.
            now_s: The time.
        """
        if epoch == self._epoch or not isinstance(epoch, int):  # the latter of a server that knows none
            return True
        if self._epoch is not None:
            if epoch in self._past or asked_in != self._epoch:
                self._counters.stale += 1
                return False
            self._past.add(self._epoch)
            self._restarted_s = now_s
        self._epoch = epoch
        return True

    def _probe(self) -> bytes:
        """A request for the server's health, whose reply shows that it lives, and which life it is."""
        self._counters.probes += 1
        self._last_id += 1
        if len(self._probes) >= _MOST_PROBES:
            self._probes.pop(next(iter(self._probes)))
        self._probes[self._last_id] = self._epoch
        return pack_request(self._last_id, "health", UNSET, UNSET, UNSET, UNSET, PROBE_S * 1e3)

    def _last_words(self, request_id: int, now_s: float) -> list[bytes]:
        """What a call that gives up sends: its cancel; where calls were in vain for long, a probe for the next one."""
        self._counters.cancelled += 1
        words = [cancel(request_id)]
        silent = self._vain_s is not None and self._vain_s > self._heard_s
        if silent and now_s - max(self._vain_s or 0.0, self._probed_s) > PROBE_S:
            self._probed_s = now_s
            words.append(self._probe())
        return words

    def _put_aside(self, reply: ReplyHead | Notice | None, now_s: float) -> None:
        """What came, and no call waits for: a probe's reply, that to an earlier call or a second one, or noise."""
        if isinstance(reply, ReplyHead) and reply.id in self._probes:
            self._meets(reply.epoch, self._probes.pop(reply.id), now_s)
        else:
            self._counters.dropped += 1

    def _retry_state(self, query: str, size: int, sent_s: float, epoch: int | None) -> RetryState:
        """Returns the retry state of a call that was sent once."""
        return RetryState(self._retrying, sent_s, epoch, repeatable=is_repeatable(query), is_long=size > LONG_BYTES)

    def _extension(self, query: str, begun: float, timeout_s: float) -> TimeoutExtension:
        return TimeoutExtension(query, begun, timeout_s, self._compile_wait_s, self._on_wait)

    def _packed(self, request_id: int, request: Ask, left_s: float, retry: int = 0) -> bytes:
        """The request's bytes, with the time that is left as its deadline."""
        return pack_request(request_id, *request, left_s * 1e3, self._compile_wait_s * 1e3, retry)

    def _unreached(self, timeout_s: float) -> UnavailableError:
        """The error of a call that found no server."""
        cause = ""
        if self._keys is not None:
            cause = f", or none whose key is {self._keys.server}"
        elif self._may_ask_for_keys():
            cause = "; one that asks for keys is silent to a client without: give it one by keys= or --key"
        return UnavailableError(f"no server answers at {self._endpoint} within {timeout_s:g} s{cause}")

    def _renew(self) -> None:
        """Replaces the connection."""
        raise NotImplementedError

    def _may_ask_for_keys(self) -> bool:
        """Whether a server there may ask for keys: then it tells a client without one nothing, not even that it is."""
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
        reaches: bool,
    ) -> DeadlineExceededError | UnavailableError:
        """The error of a call that was sent and not answered in time.

        Args:
            query: Its query.
            timeout_s: Its time limit.
            begun_s: When it began.
            now_s: The time.
            extension: Its timeout extension, if the server sent notices.
            tries: How often the request was sent.
            reaches: Whether the server is there.
        """
        if not reaches:
            return self._lost(query, Cause.GONE, now_s, tries)
        if self._vain_s is None or self._vain_s <= self._heard_s:
            self._vain_s = max(begun_s, self._heard_s)
        if now_s - self._vain_s > SILENT_S:  # though it is not this call's fault alone
            return self._lost(query, Cause.SILENT, now_s, tries)
        known = self._known(now_s, tries)
        if extension is not None:
            return extension.exceeded(self._endpoint, known)
        return DeadlineExceededError(f"{query}: no answer from {self._endpoint} within {timeout_s:g} s ({known})")

    def _lost(self, query: str, cause: Cause, now_s: float, tries: int) -> UnavailableError:
        """Returns the error of a call that cannot be answered; replaces the connection to a silent server."""
        if cause is Cause.SILENT:
            self._renew()
        happened = {
            Cause.GONE: f"the server at {self._endpoint} went away before it answered",
            Cause.RESTARTED: f"the server at {self._endpoint} was lost and is back, but not with an answer",
            Cause.SILENT: f"the server at {self._endpoint} gives no sign of life",
        }[cause]
        unsure = "" if is_repeatable(query) else "; whether it did what was asked is not known"
        return UnavailableError(f"{query}: {happened} ({self._known(now_s, tries)}){unsure}")

    def _came_late(self, query: str, timeout_s: float) -> DeadlineExceededError:
        """The error of a call whose answer is marked as late."""
        self._counters.late += 1
        return DeadlineExceededError(
            f"{query}: the answer from {self._endpoint} was computed too late, after more than {timeout_s:g} s"
        )

    def _known(self, now_s: float, tries: int) -> str:
        """What an error says of the connection: tries, when the server was last heard, its last restart."""
        heard = (
            f"last heard {max(0.0, now_s - self._heard_s):.3g} s ago" if self._heard_s >= 0.0 else "never heard before"
        )
        restarted = f", restarted {now_s - self._restarted_s:.3g} s ago" if self._past else ""
        return f"{tries} {'try' if tries == 1 else 'tries'}, {heard}{restarted}"


def first_id() -> int:
    """Where a client's ids begin: at random, so that it takes no reply to one that had its address before."""
    return int.from_bytes(os.urandom(4))


def check_retrying(retries: int, retry_after_s: float) -> RetryPolicy:
    """How requests are sent again.

    Raises:
        InvalidArgumentError: The count is no integer from 0 to `MAX_RETRIES`, or the time not positive.
    """
    if type(retries) is not int or not 0 <= retries <= MAX_RETRIES:
        message = f"retries must be an integer from 0 to {MAX_RETRIES}, found {retries!r}"
        raise InvalidArgumentError(message, path="retries")
    if not isinstance(retry_after_s, int | float) or not 0 < retry_after_s <= MAX_WAIT_S:
        message = f"retry_after_s must be a positive number of seconds, at most {MAX_WAIT_S:g}, found {retry_after_s!r}"
        raise InvalidArgumentError(message, path="retry_after_s")
    return RetryPolicy(retries, float(retry_after_s))


def check_timeout(timeout_s: float) -> float:
    """The time limit in seconds, if it is one.

    Raises:
        InvalidArgumentError: It is not a positive number, or longer than `MAX_WAIT_S`.
    """
    if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= MAX_WAIT_S:
        message = f"timeout_s must be a positive number of seconds, at most {MAX_WAIT_S:g}, found {timeout_s!r}"
        raise InvalidArgumentError(message, path="timeout_s")
    return float(timeout_s)


def check_compile_wait(compile_wait_s: float) -> float:
    """How long to wait for a compiler, in seconds, if it is a time.

    Raises:
        InvalidArgumentError: It is negative, no number, or longer than `MAX_WAIT_S`.
    """
    if not isinstance(compile_wait_s, int | float) or not 0 <= compile_wait_s <= MAX_WAIT_S:
        message = f"compile_wait_s must be a number of seconds from 0 to {MAX_WAIT_S:g}, found {compile_wait_s!r}"
        raise InvalidArgumentError(message, path="compile_wait_s")
    return float(compile_wait_s)

"""The retry policy of a call: when to send a request again, when to probe the server, when to give up. No socket, no
clock.

A waiting call checks `RetryState.next_step` every `CHECK_S`:

- Without a reply, the request is sent again with the same id, at most `retries` times per connection, with increasing,
  jittered pauses. Requests that the server reports as in progress, and long ones, are not repeated.
- After a lost connection or a restart of the server, the reply cannot arrive: the request is sent again when a server
  is connected. If no server is connected for `SILENT_S`, the call fails.
- After `PROBE_S` without a message, the client asks for the server's health. A server that is silent for `SILENT_S`
  counts as gone, and the connection is replaced.

Requests that change the server are never repeated: if their reply cannot arrive, the call fails.

**Time limit.** How long a call waits for its reply: its time limit, extended while the server reports that it compiles.

The time limit covers all requests of a call. Each notice from the server restarts it, with at least ten times the
announced period of notices, because a compiling server may be late. In total, a call waits no longer than its time
limit plus `compile_wait_s`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from random import Random

from dyn_service.errors import DeadlineExceededError, InvalidArgumentError
from dyn_service.service.protocol.messages import Notice

MAX_WAIT_S = 1e6
"""Maximum time limit, and wait for a compiler; their sum in milliseconds fits into 32 bits for transports."""

CHECK_S = 0.05
"""Seconds between checks of a waiting call."""

PROBE_S = 2.0
"""Seconds of silence after which, and interval at which, the server is asked for its health."""

SILENT_S = 10.0
"""Seconds of silence, or without a connection, after which a server counts as gone."""

LONGEST_PAUSE_S = 2.0
"""Maximum random part of a pause between retries, s."""

LONG_BYTES = 16 << 10
"""Longer requests are repeated only if the first one was certainly lost."""

_STOPPED_S = 1.0
"""Seconds between two checks above which this process counts as suspended."""


class Step(Enum):
    """What to do now."""

    WAIT = auto()
    RETRY = auto()
    """Send the request again."""
    PROBE = auto()
    """Ask the server for its health."""


class Cause(Enum):
    """Why a call fails before its deadline."""

    GONE = auto()
    """The connection was lost and not restored."""
    RESTARTED = auto()
    """The server was restarted."""
    SILENT = auto()
    """The server was silent."""


@dataclass(frozen=True)
class RetryPolicy:
    """How often, and after which silence, requests are repeated."""

    retries: int
    after_s: float
    random: Random = field(default_factory=Random)

    def pause_s(self, number: int) -> float:
        """Returns the pause before a retry: `after_s` plus a random part of up to 2^(number - 1) times as much.

        number: index of the retry on this connection, from 1.
        """
        most_s = min(LONGEST_PAUSE_S, self.after_s * 2.0 ** min(number - 1, 30))
        return self.after_s + self.random.uniform(0.0, most_s)


class RetryState:
    """The state of the retries of one call.

    begun_s: when the request was sent, on the caller's clock. epoch: the server's epoch at that time, or None if
    unknown. connection: number of the connection over which it was sent. repeatable: whether it may be repeated.
    is_long: whether it is longer than `LONG_BYTES`.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        begun_s: float,
        epoch: int | None,
        connection: int,
        *,
        repeatable: bool,
        is_long: bool,
    ) -> None:
        self.count = 1
        """How often the request was sent."""
        self.notified = False
        """Whether the server reported that it is in progress."""
        self._policy = policy
        self._repeatable = repeatable and policy.retries > 0
        self._is_long = is_long
        self._repeats = 0
        self._next_repeat_s = begun_s + policy.pause_s(1)
        self._heard_s = self._probed_s = self.checked_s = begun_s
        self._disconnected_s: float | None = None
        self._epoch = epoch
        self._connection = connection

    def next_step(self, now_s: float, *, connection: int | None, epoch: int | None, has_message: bool) -> Step | Cause:
        """Returns the next step.

        now_s: the time, on the caller's clock. connection: number of the current connection; None: not connected.
        epoch: the server's current one. has_message: whether any message arrived since the last check.
        """
        if has_message or now_s - self.checked_s > _STOPPED_S:
            self._heard_s = now_s
        self.checked_s = now_s
        if connection is None:
            self._disconnected_s = now_s if self._disconnected_s is None else self._disconnected_s
            is_over = not self._repeatable or now_s - self._disconnected_s > SILENT_S
            return Cause.GONE if is_over else Step.WAIT
        restarted = self._epoch is not None and epoch != self._epoch
        is_reconnected = connection != self._connection
        self._epoch, self._connection, self._disconnected_s = epoch, connection, None
        if restarted or is_reconnected:
            if not self._repeatable:
                return Cause.RESTARTED if restarted else Cause.GONE
            self._repeats, self.notified, self._heard_s = 0, False, now_s
            return self._repeat(now_s)
        if now_s - self._heard_s > SILENT_S:
            return Cause.SILENT
        silent = not (self.notified or self._is_long) and now_s >= self._next_repeat_s
        if silent and self._repeatable and self._repeats < self._policy.retries:
            self._repeats += 1
            return self._repeat(now_s)
        if now_s - max(self._heard_s, self._probed_s) > PROBE_S:
            self._probed_s = now_s
            return Step.PROBE
        return Step.WAIT

    def _repeat(self, now_s: float) -> Step:
        self._next_repeat_s = now_s + self._policy.pause_s(self._repeats + 1)
        self.count += 1
        return Step.RETRY


_LOG = logging.getLogger(__name__)
_PERIODS = 10
"""Number of announced periods that may pass without a notice."""

OnWait = Callable[[str], None]
"""Called at each notice with its text, such as `step-rk4 of robot 'panda' is being loaded or compiled`."""


class TimeoutExtension:
    """The time limit of one call over all of its requests.

    begun_s: when the call began, on the caller's clock. timeout_s: its time limit. compile_wait_s: maximum extension.
    on_wait: called at each notice; None: the first one is logged.
    """

    def __init__(
        self, query: str, begun_s: float, timeout_s: float, compile_wait_s: float, on_wait: OnWait | None
    ) -> None:
        self._query = query
        self._timeout_s = timeout_s
        self._compile_wait_s = compile_wait_s
        # Notices extend `_limit_s` at most to here.
        self._last_limit_s = begun_s + timeout_s + compile_wait_s
        self._limit_s = begun_s + timeout_s
        self._on_wait = on_wait
        self._last_notice = ""

    def left_s(self, now_s: float) -> float:
        """Returns the time left for the next request, s."""
        return self._limit_s - now_s

    def until_s(self, notice: Notice, now_s: float) -> float:
        """Returns until when to wait after this notice, on the caller's clock."""
        text = notice.notice.text
        if self._on_wait is not None:
            self._on_wait(text)
        elif not self._last_notice:
            _LOG.warning("%s waits up to %g s for the server's compiler: %s", self._query, self._compile_wait_s, text)
        self._last_notice = text
        period_s = notice.notice.again_ms / 1e3
        # A full time limit after the next notice, as the kernel may need one more period.
        self._limit_s = min(self._last_limit_s, now_s + period_s + self._timeout_s)
        return min(self._last_limit_s, now_s + max(self._timeout_s, _PERIODS * period_s))

    def exceeded(self, endpoint: str, state: str) -> DeadlineExceededError:
        """Returns the error of a call without an answer. state: the state of the connection."""
        return DeadlineExceededError(
            f"{self._query}: no answer from {endpoint} within {self._timeout_s:g} s and {self._compile_wait_s:g} s for "
            f"its compiler ({state}); its last notice was: {self._last_notice}"
        )


def check_seconds(name: str, value: float, *, zero: bool = False) -> float:
    """Returns a time, s, positive or `zero`, at most `MAX_WAIT_S`; else raises `InvalidArgumentError`."""
    if not isinstance(value, int | float) or not (0 < value <= MAX_WAIT_S or (zero and value == 0)):
        maximum = f"{MAX_WAIT_S:g}"
        range_text = f"from 0 to {maximum}" if zero else f"above 0, at most {maximum}"
        expectation = f"a number of seconds {range_text}"
        raise InvalidArgumentError(f"{name} must be {expectation}, found {value!r}", path=name)
    return float(value)

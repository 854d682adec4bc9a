"""How long a call waits for its reply: its time limit, and longer while the server says that it compiles.

The time limit counts for the answer, over all requests of the call. Each notice of the server lets the call wait for
the limit anew, and at least for ten times the period in which the server says more, since a server that compiles may be
late with its news; but all in all no longer than the limit and what the caller allows for compilers. No sockets here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from dyn_service.errors import DeadlineExceededError
from dyn_service.service.protocol.messages import Notice

_LOG = logging.getLogger(__name__)
_PERIODS = 10
"""So many times the announced period may pass without news."""

OnWait = Callable[[str], None]
"""Told, at each notice, what the server is at: `step-rk4 of robot 'panda' is being compiled`."""


class TimeoutExtension:
    """The wait of one call, for the replies to all of its requests.

    Args:
        query: The query's name.
        begun_s: When the call began, on the caller's clock.
        timeout_s: Its time limit.
        compile_wait_s: What is allowed beyond it.
        on_wait: Told of each notice; None: the first is logged.
    """

    def __init__(
        self, query: str, begun_s: float, timeout_s: float, compile_wait_s: float, on_wait: OnWait | None
    ) -> None:
        self._query = query
        self._timeout_s = timeout_s
        self._compile_wait_s = compile_wait_s
        self._most_s = begun_s + timeout_s + compile_wait_s
        self._limit_s = begun_s + timeout_s
        self._on_wait = on_wait
        self._text = ""

    def left_s(self, now_s: float) -> float:
        """How much of the time limit is left to the call's next request, on the caller's clock."""
        return self._limit_s - now_s

    def until_s(self, notice: Notice, now_s: float) -> float:
        """Until when to wait after this notice, on the caller's clock."""
        text = notice.notice.text
        if self._on_wait is not None:
            self._on_wait(text)
        elif not self._text:
            _LOG.warning("%s waits up to %g s for the server's compiler: %s", self._query, self._compile_wait_s, text)
        self._text = text
        period_s = notice.notice.again_ms / 1e3
        self._limit_s = min(self._most_s, now_s + period_s + self._timeout_s)  # the kernel may take a period more
        return min(self._most_s, now_s + max(self._timeout_s, _PERIODS * period_s))

    def exceeded(self, endpoint: str, known: str) -> DeadlineExceededError:
        """The error of a call that waited in vain; known: what is known of the connection."""
        return DeadlineExceededError(
            f"{self._query}: no answer from {endpoint} within {self._timeout_s:g} s and {self._compile_wait_s:g} s for "
            f"its compiler ({known}); the last that it said was: {self._text}"
        )

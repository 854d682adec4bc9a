"""How long a call waits for its reply: its time limit, extended while the server reports that it compiles.

The time limit covers all requests of a call. Each notice from the server restarts it, with at least ten times the
announced period of notices, because a compiling server may be late. In total, a call waits no longer than its time
limit plus `compile_wait_s`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from dyn_service.errors import DeadlineExceededError
from dyn_service.service.protocol.messages import Notice

_LOG = logging.getLogger(__name__)
_PERIODS = 10
"""Number of announced periods that may pass without a notice."""

OnWait = Callable[[str], None]
"""Called at each notice with its text, such as `step-rk4 of robot 'panda' is being compiled`."""


class TimeoutExtension:
    """The time limit of one call over all of its requests.

    Args:
        query: The query's name.
        begun_s: When the call began, on the caller's clock.
        timeout_s: Its time limit.
        compile_wait_s: Maximum extension.
        on_wait: Called at each notice; None: the first one is logged.
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
        """Returns the time left for the next request, s."""
        return self._limit_s - now_s

    def until_s(self, notice: Notice, now_s: float) -> float:
        """Returns until when to wait after this notice, on the caller's clock."""
        text = notice.notice.text
        if self._on_wait is not None:
            self._on_wait(text)
        elif not self._text:
            _LOG.warning("%s waits up to %g s for the server's compiler: %s", self._query, self._compile_wait_s, text)
        self._text = text
        period_s = notice.notice.again_ms / 1e3
        self._limit_s = min(self._most_s, now_s + period_s + self._timeout_s)  # the kernel may need one more period
        return min(self._most_s, now_s + max(self._timeout_s, _PERIODS * period_s))

    def exceeded(self, endpoint: str, known: str) -> DeadlineExceededError:
        """Returns the error of a call without an answer. known: the state of the connection."""
        return DeadlineExceededError(
            f"{self._query}: no answer from {endpoint} within {self._timeout_s:g} s and {self._compile_wait_s:g} s for "
            f"its compiler ({known}); its last notice was: {self._text}"
        )

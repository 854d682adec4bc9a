"""The time at which messages came: that of the wall, in steps of a clock that does not jump."""

from __future__ import annotations

import time


class WallClock:
    """Nanoseconds since 1970 as they were when it was made, and from there on by a clock that nobody sets."""

    def __init__(self) -> None:
        self._wall_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        """Now."""
        return self._wall_ns + time.monotonic_ns()

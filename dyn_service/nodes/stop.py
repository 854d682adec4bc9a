"""Whether a node was asked to stop."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType


class Stop:
    """Whether the node was asked to stop."""

    def __init__(self) -> None:
        self.requested = False
        self._ends_at_once = False
        self._signum = int(signal.SIGTERM)

    def request(self, signum: int = 0, frame: FrameType | None = None) -> None:
        """Asks the node to stop; also a signal handler."""
        self.requested = True
        self._signum = signum or self._signum
        if self._ends_at_once:
            os._exit(128 + self._signum)

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Within it the process ends as soon as it is asked to: for what can be left as it is, such as compiling."""
        self._ends_at_once = True
        if self.requested:
            os._exit(128 + self._signum)
        yield
        self._ends_at_once = False

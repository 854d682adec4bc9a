"""Whether a node, or a command that goes on until Ctrl-C, was asked to stop."""

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
        try:
            yield
        finally:  # what failed within is still to be said
            self._ends_at_once = False


@contextlib.contextmanager
def stopping() -> Iterator[Stop]:
    """Within it, Ctrl-C and SIGTERM ask to stop in place of ending the process."""
    stop = Stop()
    before = {number: signal.signal(number, stop.request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""Listening to a topic from outside of any node: for `dyn topic echo`, recorders, and whoever looks on."""

from __future__ import annotations

import itertools
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dyn_service.graph.middleware.discovery import Discovery
from dyn_service.graph.middleware.executor import LOOK_S
from dyn_service.graph.middleware.subscription import Frames
from dyn_service.service.protocol.sockets import own_context

QUEUE = 10_000


@contextmanager
def listening(
    topic: str, kind: str, discovery: Discovery, say: Callable[[str], None], queue: int = QUEUE
) -> Iterator[Frames]:
    """Frames of a topic, or of an endpoint, of all publishers of one type there are; see `frames`."""
    with own_context() as context:
        heard = Frames(context, topic, kind, queue, written=topic if "://" in topic else "", say=say)
        try:
            heard.look(discovery.entries())
            yield heard
        finally:
            heard.close()


def frames(heard: Frames, discovery: Discovery, pause_s: float | None = None) -> Iterator[memoryview | None]:
    """Each message as it comes, without end, from publishers that come later too. None: nothing came for `pause_s`."""
    next_look = time.monotonic() + LOOK_S
    silent_since = time.monotonic()
    while True:
        frame = heard.take_frame()
        if frame is not None:
            silent_since = time.monotonic()
            yield frame
        else:
            heard.socket.poll(int(1e3 * LOOK_S))
        now = time.monotonic()
        if now >= next_look:
            heard.look(discovery.entries())
            next_look = time.monotonic() + LOOK_S
        if pause_s is not None and now - silent_since >= pause_s:
            silent_since = now
            yield None


class Rate:
    """How often something comes, from the times of the last `window` comings."""

    def __init__(self, window: int) -> None:
        self._times: deque[float] = deque(maxlen=window + 1)

    def came(self, at_s: float) -> None:
        """One more."""
        self._times.append(at_s)

    def lines(self, missed: int) -> list[str]:
        """The rate, as `ros2 topic hz` says it, and what was missed."""
        times = list(self._times)
        if len(times) < 2:
            return ["no new messages"]
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        mean = statistics.fmean(gaps)
        spread = f"min: {min(gaps):.6f}s max: {max(gaps):.6f}s std dev: {statistics.pstdev(gaps):.6f}s"
        return [
            f"average rate: {1.0 / mean if mean > 0.0 else float('inf'):.3f}",
            f"\t{spread} window: {len(gaps)}" + (f" missed: {missed}" if missed else ""),
        ]

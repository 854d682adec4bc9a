"""The process that a node runs in: its real-time settings, its heartbeat, its garbage collector, its restarts."""

from __future__ import annotations

import gc
import logging
import os

from dyn_service.graph.middleware import telemetry
from dyn_service.support.realtime import Realtime, apply

_LOG = logging.getLogger(__name__)


class HostProcess:
    """The process of a node, as `Node` offers it to the loops that run in it."""

    def __init__(self, sender: telemetry.Telemetry, realtime: Realtime) -> None:
        self.telemetry, self.realtime = sender, realtime
        self._polls = False

    @property
    def restarted(self) -> bool:
        """Whether a launcher has started it again, after a death, rather than a person."""
        return os.environ.get(telemetry.RESTARTS, "0") != "0"

    def beat(self, busy_s: float = 0.0) -> None:
        """Says that the main loop goes on; see `Telemetry.beat`."""
        self.telemetry.beat(busy_s)

    def busy_poll_s(self) -> float:
        """For how long the node's loop is to poll before it sleeps; a node that asks for it, does so."""
        self._polls = True
        return self.realtime.busy_poll_us * 1e-6

    def apply_realtime(self) -> None:
        """Applies the parameter `realtime`, and logs what was done.

        Raises:
            PermissionDeniedError: The system refuses a part that is required.
        """
        done = apply(self.realtime, _LOG.warning, polls=self._polls)
        if done:
            _LOG.info(done)
            self.telemetry.facts({"realtime": done})

    def freeze_garbage_collector(self) -> None:
        """Puts what exists so far out of the collector's sight, so that its runs stay short."""
        gc.collect()
        gc.freeze()

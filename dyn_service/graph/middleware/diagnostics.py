"""How a node does, as ROS 2 says it: `diagnostic_msgs/DiagnosticArray` on `/diagnostics`."""

from __future__ import annotations

import time
from collections.abc import Mapping

from dyn_service.graph.middleware.lifecycle import ACTIVE
from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.diagnostic_msgs import DiagnosticArray, DiagnosticStatus, KeyValue
from dyn_service.messages.std_msgs import Header

TOPIC = "/diagnostics"
PERIOD_S = 1.0
"""A node says it so often."""


def diagnostics(name: str, state: str, stats: Mapping[str, float | int | str]) -> DiagnosticArray:
    """What a node says of itself: its latest numbers, and a warning where it is not active."""
    level = DiagnosticStatus.OK if state == ACTIVE else DiagnosticStatus.WARN
    values = [KeyValue(key, f"{value:g}" if isinstance(value, float) else str(value)) for key, value in stats.items()]
    stamp = Time.from_nanoseconds(time.time_ns())
    return DiagnosticArray(Header(stamp), [DiagnosticStatus(level, name, state, "", values)])

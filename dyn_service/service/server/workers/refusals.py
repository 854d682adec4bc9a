"""What is not tried again: kernels that took too long to make, by robot and query, whatever the inputs."""

from __future__ import annotations

from typing import Any

from dyn_service.api.queries import QUERIES
from dyn_service.errors import DynError
from dyn_service.service.server.answering.registry import Registry
from dyn_service.service.server.answering.task import Task

_MOST = 1000
_HELD_NS = 600_000_000_000
"""A kernel that took too long is not tried again for so long: it may have been the machine."""


class Refusals:
    """Remembers what was refused.

    Args:
        registry: The robots.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._known: dict[tuple[Any, ...], tuple[DynError, int]] = {}

    def remember(self, task: Task, fate: DynError, now_ns: int) -> None:
        """Has the next request of its kind refused likewise."""
        kind = self._kind(task)
        if kind is None:
            return
        while len(self._known) >= _MOST:
            del self._known[next(iter(self._known))]
        self._known[kind] = (fate, now_ns + _HELD_NS)

    def known(self, task: Task, now_ns: int) -> DynError | None:
        """Why it need not be tried; None: it is."""
        kind = self._kind(task) if self._known else None
        fate, until_ns = self._known.get(kind, (None, 0)) if kind is not None else (None, 0)
        return fate if now_ns < until_ns else None

    def _kind(self, task: Task) -> tuple[Any, ...] | None:
        """What a refusal holds for: robot, query and kernel; None: for nothing else."""
        head = task.head
        served = self._registry.served.get(head.robot) if type(head.robot) is str else None
        if served is None or (task.kernel is None and head.query in QUERIES):
            return None
        return served.robot.fingerprint, head.query, task.kernel

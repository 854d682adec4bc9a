"""A request that waits: for the worker thread, or for a worker process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dyn_service.errors import DynError
from dyn_service.protocol.messages import Head
from dyn_service.server.access import Caller

Envelope = tuple[Any, bool]
"""Where a reply goes: the peer, and whether it is a REQ socket, which wants an empty frame first."""


@dataclass(slots=True, eq=False)
class Task:
    """A request that waits.

    envelope: where its reply goes. payload: its bytes. received_ns: when it came in. work: gives its reply, in this
    process. refuse: gives the reply that refuses it. head: reads who asks. long: it may take seconds: it computes at
    length, or needs a kernel that is not there. caller: as `Job.caller`. kernel: which one it needs, where that
    is known. next_notice_ns: no earlier is it told again that it waits. tries: how many workers were lost to it.
    waits_for_kernel: whether it may be a kernel in the making that it waits for.
    """

    envelope: Envelope
    payload: bytes | memoryview
    received_ns: int
    work: Callable[[], bytes]
    refuse: Callable[[DynError], bytes]
    head: Callable[[], Head]
    long: bool = False
    caller: Caller | None = None
    kernel: tuple[str, bool, bool] | None = None
    next_notice_ns: int = 0
    tries: int = 0
    waits_for_kernel: bool = True

    @property
    def size(self) -> int:
        """Bytes of the request."""
        return len(self.payload)

"""A request that waits: for the worker thread, or for a worker process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dyn_service.service.protocol.messages import Head

if TYPE_CHECKING:
    from dyn_service.api.spec import Variant
    from dyn_service.service.server.administration.access import Caller
    from dyn_service.service.server.answering.job import Job

Envelope = tuple[Any, bool]
"""Where a reply goes: the peer, and whether it is a REQ socket, which wants an empty frame first."""


@dataclass(slots=True, eq=False)
class Task:
    """A request that waits.

    envelope: where its reply goes. payload: its bytes. received_ns: when it came in. head: who asks what. job: the
    request, read and checked; None where reading it takes too long for the thread that serves. long: it may take
    seconds: it computes at length, or needs a kernel that is not there. caller: as `Job.caller`. kernel: which one it
    needs, where that is known. next_notice_ns: no earlier is it told again that it waits. tries: how many workers were
    lost to it. unread: and how many before they read it. waits_for_kernel: whether it may be a kernel in the making
    that it waits for. given_up: nobody waits for it any more. answered: it was refused at its
    deadline, while its worker still makes a kernel.
    """

    envelope: Envelope
    payload: bytes | memoryview
    received_ns: int
    head: Head
    job: Job | None = None
    long: bool = False
    caller: Caller | None = None
    kernel: tuple[str, Variant, bool] | None = None
    next_notice_ns: int = 0
    tries: int = 0
    unread: int = 0
    waits_for_kernel: bool = True
    given_up: bool = False
    answered: bool = False

    @property
    def peer(self) -> Any:
        """Who sent it."""
        return self.envelope[0]

    @property
    def size(self) -> int:
        """Bytes of the request."""
        return len(self.payload)

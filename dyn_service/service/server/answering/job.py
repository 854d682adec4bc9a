"""A request that was read and checked: what `service` makes of it, and whoever answers it is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dyn_service.model.order import Order
from dyn_service.service.protocol.messages import Request
from dyn_service.service.server.administration.access import Caller
from dyn_service.service.server.answering.finite import NotFinite
from dyn_service.service.server.answering.plan import Plan

_NOTHING: Mapping[str, Any] = {}


class Job(msgspec.Struct, gc=False):
    """A request that was read and checked.

    plan: None for a query about the server itself, and for what takes long by itself. excused_ns: what of the time
    since its receipt does not count against its deadline. slow: it is no work for the thread that serves. caller: who
    asks; None is a process of this machine that the endpoint knows no more of. order: that of the joints in its arrays;
    None is the robot's.
    """

    request: Request
    plan: Plan | None
    received_ns: int
    excused_ns: int = 0
    inputs: Mapping[str, Any] = _NOTHING
    options: Mapping[str, Any] = _NOTHING
    slow: bool = False
    verify: bool = False
    caller: Caller | None = None
    order: Order | None = None
    not_finite: NotFinite | None = None
    """A number of the answer, once there is one, that may not leave the server."""

"""What the serving process and a worker process say to each other; what goes with it in bytes stands in parentheses.

to a worker     begin, first; robot (the robot), drop, work (the request)
from a worker   ready; making and made, audit, loaded (the robot), meanwhile; answered (the reply) or returned (the
                request)
"""

from __future__ import annotations

import msgspec

from dyn_service.api.spec import Variant
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.server.administration.access import Caller
from dyn_service.service.server.administration.audit import Change


class Begin(msgspec.Struct, tag="begin"):
    """What its requests may take, whether they may load robots, and which life of the server its replies speak of."""

    limits: RequestLimits
    allow_load: bool
    epoch: int


class KnowRobot(msgspec.Struct, tag="robot"):
    """Here is a robot; it takes the place of one of its name."""


class DropRobot(msgspec.Struct, tag="drop"):
    """A robot is served no longer."""

    name: str


class Work(msgspec.Struct, tag="work"):
    """Answer a request. received_ns, excused_ns, caller: see `job.Job`."""

    received_ns: int
    excused_ns: int
    caller: Caller | None


class Ready(msgspec.Struct, tag="ready"):
    """It is there, as the process `pid`."""

    pid: int


class Making(msgspec.Struct, tag="making"):
    """It begins to make a kernel."""

    kernel: str


class Made(msgspec.Struct, tag="made"):
    """That is over."""


class Audit(msgspec.Struct, tag="audit"):
    """An entry of the log of changes, once the request is answered."""

    change: Change


class Loaded(msgspec.Struct, tag="loaded"):
    """The request had it load a robot."""

    name: str
    fingerprint: str


class Kernel(msgspec.Struct, frozen=True):
    """Which kernel answered: a row of the table for a robot, its method, what it takes beside, and whether what joints
    do by themselves acts in it.
    """

    robot: str
    query: str
    method: str
    variant: Variant
    passive: bool


class Answered(msgspec.Struct, tag="answered"):
    """The reply to its request. code: of an error. kernel: which one it took. last: the worker has grown: end it."""

    query: str
    code: str | None
    kernel: Kernel | None
    last: bool


class Returned(msgspec.Struct, tag="returned"):
    """Its request is allowed, and for the process that serves to answer: here it is without what is of no account."""


ToWorker = Begin | KnowRobot | DropRobot | Work
FromWorker = Ready | Making | Made | Audit | Loaded | Answered | Returned

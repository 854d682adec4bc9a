"""The specification of a controller's law: how it is made, its topics and its services."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from dyn_service.api.queries import RobotQueries
from dyn_service.control.controller import Arming, Commander, ReferenceTracker, TrajectoryMaker, hold_maker
from dyn_service.control.law import Law
from dyn_service.graph.nodes.controllers.parameters import LoopParameters
from dyn_service.messages import Message
from dyn_service.model.configuration import Configuration, Limits
from dyn_service.support.parameters import in_range


@dataclass(frozen=True)
class Input:
    """A topic that a law subscribes to, in the node's namespace. take: called with the law and each message; a
    `DynError` that it raises is logged, and the law goes on.
    """

    topic: str
    type: type[Message]
    take: Callable[[Any, Any], object]


@dataclass(frozen=True)
class Output:
    """A topic that a law publishes, in the node's namespace, or below the node's name with `~/`. take: called with the
    law after each update; returns the messages to publish.
    """

    topic: str
    type: type[Message]
    take: Callable[[Any], Sequence[Message]]


@dataclass(frozen=True)
class Service:
    """A service of a law. request: the struct of its requests. answer: called with the law and each request."""

    name: str
    request: type[msgspec.Struct]
    answer: Callable[[Any, Any], msgspec.Struct | None]


L = TypeVar("L", bound=LoopParameters)
MakeLaw = Callable[[L, RobotQueries], Law]
"""(parameters, model) -> the law."""
MakeMotion = Callable[[L, Configuration, Limits], TrajectoryMaker]
"""(parameters, joints, limits) -> function that begins the reference motion at a state."""


@dataclass(frozen=True)
class LawSpec(Generic[L]):
    """Specification of a law. name: of its kind. make_motion: None if the law follows no reference."""

    name: str
    make_law: MakeLaw[L]
    make_motion: MakeMotion[L] | None
    inputs: tuple[Input, ...] = ()
    outputs: tuple[Output, ...] = ()
    services: tuple[Service, ...] = ()


def commander(spec: LawSpec[L], p: L, model: RobotQueries, *, number: int, restarted: bool) -> Commander:
    """Makes the controller of a law, without its process.

    Args:
        spec: Of the law: `ControllerKind.spec`.
        p: Its parameters.
        model: The robot whose queries the law uses.
        number: Unique to this run of the controller.
        restarted: Whether a launcher has restarted it.

    Raises:
        InvalidArgumentError: A parameter is out of range, or does not fit the robot.
    """
    p = in_range(p)
    at, fingerprint = model.configuration, model.description.fingerprint
    make = hold_maker(at) if spec.make_motion is None else spec.make_motion(p, at, model.limits)
    following = ReferenceTracker(at, fingerprint, make, p.rate_hz, p.delay_compensation)
    law = spec.make_law(p, model)
    names = at.velocity_names
    arming = Arming(names, fingerprint, number, rearm=p.rearm, restarted=restarted, interface=law.interface)
    return Commander(following, law, arming)

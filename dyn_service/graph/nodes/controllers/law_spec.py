"""Topics and services of a law: what it listens to, what it speaks on, what it can be asked.

What makes a controller the one of its law: how the law is made, what it listens to, publishes, and can be asked.
"""

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
    """A topic that a law listens to, in the node's namespace. take: is given the law and each message; what it refuses
    by an error of this package is logged, and the law goes on.
    """

    topic: str
    type: type[Message]
    take: Callable[[Any, Any], object]


@dataclass(frozen=True)
class Output:
    """A topic that a law speaks on, in the node's namespace, or with `~/` below its own name. take: what it has to say,
    given the law; asked after each update.
    """

    topic: str
    type: type[Message]
    take: Callable[[Any], Sequence[Message]]


@dataclass(frozen=True)
class Service:
    """A service of a law. request: the struct of its requests. answer: is given the law and each request."""

    name: str
    request: type[msgspec.Struct]
    answer: Callable[[Any, Any], msgspec.Struct | None]


L = TypeVar("L", bound=LoopParameters)
MakeLaw = Callable[[L, RobotQueries], Law]
"""(parameters, model) -> the law."""
MakeMotion = Callable[[L, Configuration, Limits], TrajectoryMaker]
"""(parameters, joints, limits) -> what begins the reference motion at a state."""


@dataclass(frozen=True)
class LawSpec(Generic[L]):
    """A law, to be made. name: of its kind. make_motion: None where the law follows no reference."""

    name: str
    make_law: MakeLaw[L]
    make_motion: MakeMotion[L] | None
    inputs: tuple[Input, ...] = ()
    outputs: tuple[Output, ...] = ()
    services: tuple[Service, ...] = ()


def commander(spec: LawSpec[L], p: L, model: RobotQueries, *, number: int, restarted: bool) -> Commander:
    """The controller of this law, without a process.

    Args:
        spec: What its kind says: `ControllerKind.spec`.
        p: Its parameters.
        model: The robot that its law asks.
        number: No other run of a controller has it.
        restarted: Whether a launcher has started it again.

    Raises:
        InvalidArgumentError: A parameter is out of its range, or does not fit the robot.
    """
    p = in_range(p)
    at, fingerprint = model.configuration, model.description.fingerprint
    make = hold_maker(at) if spec.make_motion is None else spec.make_motion(p, at, model.limits)
    following = ReferenceTracker(at, fingerprint, make, p.rate_hz, p.delay_compensation)
    law = spec.make_law(p, model)
    names = at.velocity_names
    arming = Arming(names, fingerprint, number, rearm=p.rearm, restarted=restarted, interface=law.interface)
    return Commander(following, law, arming)

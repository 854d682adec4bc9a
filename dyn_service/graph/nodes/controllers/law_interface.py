"""Topics and services of a law: what it listens to, what it speaks on, what it can be asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dyn_service.messages import Message


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

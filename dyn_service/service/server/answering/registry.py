"""The robots that a server serves, by name."""

from __future__ import annotations

import math
import pickle
import threading
from collections.abc import Callable, Iterable
from functools import cached_property
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import msgspec

from dyn_service.api.queries import QUERIES
from dyn_service.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
)
from dyn_service.model.order import Orders
from dyn_service.service.protocol.messages import encode
from dyn_service.service.server.administration.metrics import Metrics
from dyn_service.service.server.answering.plan import Plan
from dyn_service.support.suggestions import did_you_mean

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot


_REMEMBERED = 1000
"""Robots that have expired, to tell who asks for them."""


class Served:
    """A robot, and its plans by query. expires_s: unused for so long it goes; None: it stays. used_ns: when it was last
    used, but for the short ways.
    """

    def __init__(self, robot: Robot, metrics: Metrics, expires_s: float | None = None, used_ns: int = 0) -> None:
        self.robot = robot
        self.expires_s, self.used_ns = expires_s, used_ns
        self.orders = Orders(robot.configuration, robot.tree.ways)
        self.plans = {
            name: Plan(row, robot, robot.sizes, metrics.short(name), self.orders) for name, row in QUERIES.items()
        }

    @cached_property
    def pickled(self) -> bytes:
        """The robot, for a worker process."""
        return pickle.dumps(self.robot)

    @property
    def described(self) -> dict[str, Any]:
        """The answer to `describe_robot`."""
        return {**self._about, "certificates": {name: of.to_dict() for name, of in self.robot.certificates.items()}}

    @cached_property
    def _about(self) -> dict[str, Any]:
        """What of it stays, what is long as bytes: of hundreds of links it takes milliseconds to make."""
        found = self.robot.description.to_dict()
        del found["certificates"]
        return {key: each if isinstance(each, str | int) else msgspec.Raw(encode(each)) for key, each in found.items()}

    @property
    def over_ns(self) -> float:
        """When it will have been unused for too long, if it is used no more."""
        if self.expires_s is None:
            return math.inf
        return max(self.used_ns, *(plan.used_ns for plan in self.plans.values())) + self.expires_s * 1e9

    def refresh(self) -> None:
        """Opens the short way for the kernels that were made meanwhile."""
        for plan in self.plans.values():
            plan.refresh()


def other_model(robot: Any, fingerprint: str, asked: Any) -> FailedPreconditionError:
    """What to raise where a request was made for another model than the one that is served."""
    return FailedPreconditionError(
        f"robot '{robot}' has fingerprint {fingerprint}, the request was made for {asked}", path="model"
    )


class Registry:
    """Robots may come and go while others read: a change replaces the maps as a whole.

    served: by name. plans: by name and query. added: told of each that is added, served already or not.

    Args:
        robots: The first robots.
        limit: How many there may be.
        metrics: Where their answers are counted.
        clock: ns, of when they are used.
    """

    def __init__(
        self, robots: Iterable[Robot], limit: int, metrics: Metrics, clock: Callable[[], int] = perf_counter_ns
    ) -> None:
        self._clock = clock
        self._gone: dict[str, float] = {}
        self._expiring: list[Served] = []
        self._looked_at: list[Served] = []
        self._next_look_ns = 0.0
        self.added: Callable[[Served], None] = lambda served: None
        self.served: dict[str, Served] = {}
        self.plans: dict[tuple[str, str], Plan] = {}
        self._limit = limit
        self._metrics = metrics
        self._change = threading.Lock()
        for robot in robots:
            self.add(robot)

    def get(self, name: Any) -> Served:
        """The robot of that name, as requests know it.

        Raises:
            InvalidArgumentError: It is no name.
            NotFoundError: No robot has it.
        """
        if not isinstance(name, str):
            raise InvalidArgumentError("robot must be the name of a robot, found nothing", path="robot")
        served = self.served.get(name)
        if served is None:
            if name in self._gone:
                raise NotFoundError(
                    f"robot '{name}' has expired: it was unused for {self._gone[name]:g} s; overlay the robot anew",
                    path="robot",
                )
            known = ", ".join(sorted(self.served)) or "none"
            near = did_you_mean(name, self.served)
            raise NotFoundError(f"there is no robot '{name}'; the robots are {known}{near}", path="robot")
        if served.expires_s is not None:
            served.used_ns = self._clock()
        return served

    def expire(self, now_ns: int, at_work: Iterable[Any] = ()) -> list[Served]:
        """Stops serving the robots that were unused for too long; says which. Costs nothing before one may be.

        Args:
            now_ns: The time.
            at_work: Names of robots that requests wait for, or are worked on.
        """
        expiring = self._expiring
        if not expiring or (expiring is self._looked_at and now_ns <= self._next_look_ns):
            return []
        for name in at_work:
            self.use(name)
        over = []
        if any(now_ns > served.over_ns for served in expiring):
            with self._change:
                over = [served for served in self._expiring if now_ns > served.over_ns]
                self._gone |= {served.robot.name: served.expires_s or 0.0 for served in over}
                while len(self._gone) > _REMEMBERED:
                    del self._gone[next(iter(self._gone))]
                self._replace({name: served for name, served in self.served.items() if served not in over})
                expiring = self._expiring
        self._next_look_ns = min((served.over_ns for served in expiring), default=math.inf)
        self._looked_at = expiring
        return over

    def use(self, name: Any) -> None:
        """Notes that a robot is used, if there is one of that name."""
        served = self.served.get(name) if type(name) is str else None
        if served is not None:
            served.used_ns = self._clock()

    def add(self, robot: Robot, expires_s: float | None = None) -> None:
        """Serves one more robot; the one that is served already changes nothing, but when it expires.

        Raises:
            FailedPreconditionError: Another robot has its name.
            ResourceExhaustedError: There are too many.
        """
        with self._change:
            known = self.served.get(robot.name)
            if known is not None:
                if known.robot.fingerprint == robot.fingerprint:
                    known.expires_s, known.used_ns = expires_s, self._clock()
                    self._replace(self.served)
                    self.added(known)
                    return
                raise FailedPreconditionError(
                    f"robot '{robot.name}' is served with fingerprint {known.robot.fingerprint}, this one has "
                    f"{robot.fingerprint}: unload the other first"
                )
            if len(self.served) >= self._limit:
                raise ResourceExhaustedError(f"{len(self.served)} robots are served, which is the limit")
            robot.share(served.robot for served in self.served.values())
            self._gone.pop(robot.name, None)
            served = Served(robot, self._metrics, expires_s, self._clock())
            self._replace({**self.served, robot.name: served})
            self.added(served)

    def remove(self, name: Any) -> Served:
        """Stops serving a robot; answers on their way still arrive. Says which one it was.

        Raises:
            NotFoundError: There is none of that name.
        """
        with self._change:
            removed = self.get(name)
            self._replace({key: served for key, served in self.served.items() if key != name})
        return removed

    def _replace(self, served: dict[str, Served]) -> None:
        self.served = served
        self._expiring = [each for each in served.values() if each.expires_s is not None]
        self.plans = {(name, query): plan for name, robot in served.items() for query, plan in robot.plans.items()}

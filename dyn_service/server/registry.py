"""The robots that a server serves, by name."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterable
from functools import cached_property
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
from dyn_service.protocol.messages import encode
from dyn_service.server.metrics import Metrics
from dyn_service.server.plan import Plan
from dyn_service.suggestions import did_you_mean

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot


class Served:
    """A robot, and its plans by query."""

    def __init__(self, robot: Robot, metrics: Metrics) -> None:
        self.robot = robot
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

    served: by name. plans: by name and query.

    Args:
        robots: The first robots.
        limit: How many there may be.
        metrics: Where their answers are counted.
    """

    def __init__(self, robots: Iterable[Robot], limit: int, metrics: Metrics) -> None:
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
            known = ", ".join(sorted(self.served)) or "none"
            near = did_you_mean(name, self.served)
            raise NotFoundError(f"there is no robot '{name}'; the robots are {known}{near}", path="robot")
        return served

    def add(self, robot: Robot) -> None:
        """Serves one more robot; the one that is served already changes nothing.

        Raises:
            FailedPreconditionError: Another robot has its name.
            ResourceExhaustedError: There are too many.
        """
        with self._change:
            known = self.served.get(robot.name)
            if known is not None:
                if known.robot.fingerprint == robot.fingerprint:
                    return
                raise FailedPreconditionError(
                    f"robot '{robot.name}' is served with fingerprint {known.robot.fingerprint}, this one has "
                    f"{robot.fingerprint}: unload the other first"
                )
            if len(self.served) >= self._limit:
                raise ResourceExhaustedError(f"{len(self.served)} robots are served, which is the limit")
            self._replace({**self.served, robot.name: Served(robot, self._metrics)})

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
        self.plans = {(name, query): plan for name, robot in served.items() for query, plan in robot.plans.items()}

"""Answers to the queries about the server itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from dyn_service import __version__
from dyn_service.api.queries import QUERIES
from dyn_service.errors import DynError, InvalidArgumentError, PermissionDeniedError, ResourceExhaustedError, UrdfError
from dyn_service.protocol.arrays import describe_value
from dyn_service.protocol.limits import RequestLimits
from dyn_service.protocol.messages import VERSION, Request
from dyn_service.server.bounds import read_limits
from dyn_service.server.metrics import Metrics
from dyn_service.server.registry import Registry, Served

_CERTIFIED = ("inverse_dynamics", "forward_dynamics")
"""The queries whose kernels are made when a robot is loaded, so that the reply says how exact they are."""


class Administrator:
    """Answers the queries of `protocol.administration`."""

    def __init__(
        self, registry: Registry, metrics: Metrics, *, allow_load: bool, limits: RequestLimits | None = None
    ) -> None:
        self._registry = registry
        self._limits = limits or RequestLimits()
        self._metrics = metrics
        self._allow_load = allow_load
        self._answers: Mapping[str, Callable[[Request], dict[str, Any]]] = {
            "list_robots": self._list_robots,
            "describe_robot": self._describe_robot,
            "load_robot": self._load_robot,
            "unload_robot": self._unload_robot,
            "health": self._health,
            "stats": self._stats,
        }

    def answer(self, request: Request) -> dict[str, Any]:
        """The outputs of a query in `protocol.administration`.

        Raises:
            DynError: The query is refused.
        """
        return self._answers[request.query](request)

    def _list_robots(self, request: Request) -> dict[str, Any]:
        return {"robots": sorted(self._registry.served)}

    def _describe_robot(self, request: Request) -> dict[str, Any]:
        return self._describe(self._registry.get(request.robot))

    def _describe(self, served: Served) -> dict[str, Any]:
        return served.robot.description.to_dict()

    def _load_robot(self, request: Request) -> dict[str, Any]:
        self._check_change()
        path = "inputs.urdf"
        text = (request.inputs or {}).get("urdf")
        if type(text) is not str:
            raise InvalidArgumentError(f"urdf must be the text of a URDF, found {describe_value(text)}", path=path)
        if not text.lstrip("\ufeff \t\r\n").startswith("<"):  # nor the path of a file on this side
            raise InvalidArgumentError("urdf must be the text of a URDF, found no XML", path=path)
        from dyn_service.engine.robot import Robot  # not at the top: it brings the compiler

        limits = read_limits(self._limits)
        try:
            robot = Robot.from_urdf(text, root=(request.options or {}).get("root", "fixed"), limits=limits)
        except DynError as error:
            # A fault in the text says its line and element, the same here as where the robot is read in process.
            if not isinstance(error, UrdfError):
                error.path = {None: path, "root": "options.root"}.get(error.path, error.path)
            raise
        self._registry.add(robot)
        served = self._registry.get(robot.name)  # that one, should it be served already
        for row in _CERTIFIED:
            if served.robot.massless_joint is None or not QUERIES[row].inverts:
                with suppress(ResourceExhaustedError):  # too large for this query is not too large for others
                    served.robot.prepare([row])
        return self._describe(served)

    def _unload_robot(self, request: Request) -> dict[str, Any]:
        self._check_change()
        self._registry.remove(request.robot)
        return {"robot": request.robot}

    def _health(self, request: Request) -> dict[str, Any]:
        return {
            "status": "ok",
            "version": __version__,
            "protocol": [VERSION],
            "robots": len(self._registry.served),
            "uptime_s": self._metrics.uptime_s,
        }

    def _stats(self, request: Request) -> dict[str, Any]:
        return self._metrics.to_dict()

    def _check_change(self) -> None:
        if not self._allow_load:
            raise PermissionDeniedError("this server does not let its clients load or unload robots", path="query")

"""Answers to the queries about the server itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from dyn_service import __version__
from dyn_service.api.cost import overlay_lead
from dyn_service.api.inputs import unknown
from dyn_service.errors import DynError, InvalidArgumentError, ResourceExhaustedError, UrdfError
from dyn_service.parsing.quantities import LONGEST_NAME
from dyn_service.service.protocol.administration import ADMINISTRATION, Role
from dyn_service.service.protocol.arrays import describe_value, show_value
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.protocol.messages import VERSION, Request
from dyn_service.service.protocol.overlays import unpack_overlay
from dyn_service.service.server.administration.access import AccessList, Caller, local_caller
from dyn_service.service.server.administration.audit import tell_done, tell_refused
from dyn_service.service.server.administration.metrics import Metrics
from dyn_service.service.server.answering.bounds import read_limits
from dyn_service.service.server.answering.registry import Registry, Served

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot

CERTIFIED = ("inverse_dynamics", "forward_dynamics")
"""The queries whose kernels are made when a robot is loaded, so that the reply says how exact they are."""


class Administrator:
    """Answers the queries of `protocol.administration`.

    Args:
        registry: The robots.
        metrics: What was counted.
        limits: What clients must keep.
        allow_load: Whether callers without keys may load and unload robots; others have their roles.
    """

    def __init__(self, registry: Registry, metrics: Metrics, limits: RequestLimits, *, allow_load: bool) -> None:
        self._limits = limits
        self._registry = registry
        self._metrics = metrics
        self.allowed: AccessList | None = None
        """The list of keys that the server goes by, if it has one."""
        self.is_ready: Callable[[], bool] = lambda: True
        """Whether what is asked now would be answered: workers are there, and the server does not stop."""
        self._anyone = local_caller("a local process", allow_load=allow_load)
        self._answers: Mapping[str, Callable[[Request], dict[str, Any]]] = {
            "list_robots": self._list_robots,
            "describe_robot": self._describe_robot,
            "health": self._health,
            "stats": self._stats,
        }
        self._changes: Mapping[str, Callable[[Request], tuple[Served, dict[str, Any]]]] = {
            "load_robot": self._load_robot,
            "overlay_robot": self._overlay_robot,
            "unload_robot": self._unload_robot,
        }
        """With the outputs comes the robot that was loaded or unloaded."""

    def answer(self, request: Request, caller: Caller | None = None) -> dict[str, Any]:
        """The outputs of a query in `protocol.administration`.

        Args:
            request: The query.
            caller: Who asks; None is a process of this machine that the endpoint knows no more of.

        Raises:
            DynError: The query is refused.
        """
        caller = caller or self._anyone
        self.check(request, caller)
        if request.query in self._answers:
            return self._answers[request.query](request)
        try:
            changed, outputs = self._changes[request.query](request)
        except Exception as fault:
            tell_refused(caller, request.query, request.robot, fault)
            raise
        tell_done(caller, request.query, changed.robot.name, changed.robot.fingerprint)
        return outputs

    def check(self, request: Request, caller: Caller | None) -> None:
        """Refuses a query that the caller may not ask, or that has unknown inputs or options; logs refused changes.

        Raises:
            PermissionDeniedError: The caller may not ask it.
            InvalidArgumentError: An input or option is unknown; `path` names it.
        """
        caller, row = caller or self._anyone, ADMINISTRATION[request.query]
        try:
            caller.check(request.query)
            for what, given, known in (
                ("input", request.inputs, row.inputs),
                ("option", request.options, row.options),
            ):
                for name in given or ():
                    if name not in known:
                        raise unknown(row.name, what, name, known)
        except DynError as refusal:
            if row.role is Role.LOAD:
                tell_refused(caller, request.query, request.robot, refusal)
            raise

    def _list_robots(self, request: Request) -> dict[str, Any]:
        return {"robots": sorted(self._registry.served)}

    def _describe_robot(self, request: Request) -> dict[str, Any]:
        return self._registry.get(request.robot).described

    def _load_robot(self, request: Request) -> tuple[Served, dict[str, Any]]:
        path = "inputs.urdf"
        text = (request.inputs or {}).get("urdf")
        if type(text) is not str:
            raise InvalidArgumentError(f"urdf must be the text of a robot, found {describe_value(text)}", path=path)
        if not text.lstrip("\ufeff \t\r\n").startswith("<"):  # nor the path of a file on this side
            raise InvalidArgumentError("urdf must be the text of a robot, found no XML", path=path)
        from dyn_service.engine.robot import Robot  # not at the top: it brings the compiler

        limits = read_limits(self._limits)
        options = request.options or {}
        mimic = options.get("mimic", True)
        if not isinstance(mimic, bool):
            raise InvalidArgumentError(
                f"mimic must be true or false, found {describe_value(mimic)}", path="options.mimic"
            )
        try:
            robot = Robot.from_text(text, root=options.get("root", "fixed"), limits=limits, mimic=mimic)
        except DynError as error:
            # A fault in the text says its line and element, the same here as where the robot is read in process.
            if not isinstance(error, UrdfError):
                error.path = {None: path, "root": "options.root"}.get(error.path, error.path)
            raise
        self._registry.add(robot)
        served = self._registry.get(robot.name)  # that one, should it be served already
        self._certify(served.robot)
        return served, served.described

    def _overlay_robot(self, request: Request) -> tuple[Served, dict[str, Any]]:
        inputs, below = request.inputs or {}, self._registry.get(request.robot).robot
        name, expires_s = inputs.get("name"), (request.options or {}).get("expires_s")
        if type(name) is not str or not name:
            found = describe_value(name) if name != "" else "none"
            raise InvalidArgumentError(f"name must be what the robot is called, found {found}", path="inputs.name")
        if len(name) > LONGEST_NAME:
            raise InvalidArgumentError(
                f"name has {len(name)} characters, expected at most {LONGEST_NAME}", path="inputs.name"
            )
        if expires_s is not None and (type(expires_s) not in (int, float) or not 0 < expires_s < math.inf):
            raise InvalidArgumentError(
                f"expires_s must be seconds, more than 0, found {show_value(expires_s)}", path="options.expires_s"
            )
        overlay = unpack_overlay(inputs.get("overlay"), "inputs.overlay")
        if overlay_lead(overlay):
            raise InvalidArgumentError(
                f"overlay must be of one robot, found numbers with leading axes {overlay_lead(overlay)}",
                path="inputs.overlay",
            )
        try:
            robot = below.overlaid(overlay, name=name)
        except DynError as error:
            error.path = f"inputs.{error.path}"
            raise
        self._certify(robot)  # first: it may take longer than an unused one stays
        self._registry.add(robot, expires_s)
        served = self._registry.get(name)
        return served, served.described

    @staticmethod
    def _certify(robot: Robot) -> None:
        """Makes the kernels that show how exact they are."""
        for row in CERTIFIED:
            with suppress(ResourceExhaustedError):  # too large for this query is not too large for others
                robot.prepare([row])

    def _unload_robot(self, request: Request) -> tuple[Served, dict[str, Any]]:
        return self._registry.remove(request.robot), {"robot": request.robot}

    def _health(self, request: Request) -> dict[str, Any]:
        return {
            "status": "ok",
            "ready": self.is_ready(),
            "version": __version__,
            "protocol": [VERSION],
            "robots": len(self._registry.served),
            "uptime_s": self._metrics.uptime_s,
            "access": "no keys" if self.allowed is None else self.allowed.state,
        }

    def _stats(self, request: Request) -> dict[str, Any]:
        return {**self._metrics.to_dict(), "limits": msgspec.structs.asdict(self._limits)}

"""The served robots, and answers to queries about the server: list, describe, load, overlay, unload, health, stats."""

from __future__ import annotations

import math
import pickle
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from dyn_service import __version__
from dyn_service.api.cost import overlay_lead
from dyn_service.api.inputs import unknown_name
from dyn_service.api.lists import row_of
from dyn_service.api.queries import QUERIES, Query
from dyn_service.errors import (
    DynError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UrdfError,
)
from dyn_service.model.order import Orders
from dyn_service.parsing.quantities import LONGEST_NAME
from dyn_service.service.protocol.arrays import describe_value, show_value
from dyn_service.service.protocol.inputs import unpack_overlay
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.protocol.messages import ADMINISTRATION, VERSION, Request, Role, encode
from dyn_service.service.server.administration.access import AccessList, Caller, local_caller
from dyn_service.service.server.administration.audit import record_done, record_refused
from dyn_service.service.server.administration.metrics import Metrics
from dyn_service.service.server.answering.bounds import read_limits
from dyn_service.service.server.answering.plan import Plan
from dyn_service.support.documents import MAX_FILE_BYTES, ConfigurationError, Document, parse_document
from dyn_service.support.suggestions import known_instead

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot


# number of expired robots remembered, for the error message of requests for them
_REMEMBERED = 1000


MAX_LIST_PLANS = 64
"""Plans of lists of queries kept for each robot."""


class Plans(dict[str, Plan]):
    """The plans of a robot by query. Those of lists of queries are made when they are needed; the last ones are kept.

    Args:
        make: Makes the plan of a row.
    """

    def __init__(self, make: Callable[[Query], Plan]) -> None:
        super().__init__({name: make(row) for name, row in QUERIES.items()})
        self._make = make
        self._lists: dict[str, Plan] = {}

    def __missing__(self, query: str) -> Plan:
        row = row_of(query)
        plan = self._lists.get(row.name)
        if plan is None:
            if len(self._lists) >= MAX_LIST_PLANS:
                self._lists.pop(next(iter(self._lists.copy())), None)
            plan = self._lists[row.name] = self._make(row)
        return plan

    @property
    def used_ns(self) -> int:
        """When the fast path of any of them last answered."""
        return max(plan.used_ns for plan in (*self.values(), *self._lists.copy().values()))


class Served:
    """A robot and its plans by query. expires_s: unused for this long, it is unloaded; None: never. used_ns: when it
    was last used, except by fast paths.
    """

    def __init__(self, robot: Robot, metrics: Metrics, expires_s: float | None = None, used_ns: int = 0) -> None:
        self.robot = robot
        self.expires_s, self.used_ns = expires_s, used_ns
        self.orders = Orders(robot.configuration, robot.tree.rate_joints)
        self.plans = Plans(lambda row: Plan(row, robot, robot.sizes, metrics.fast_path(row.name), self.orders))

    @cached_property
    def pickled(self) -> bytes:
        """The pickled robot, for worker processes."""
        return pickle.dumps(self.robot)

    @property
    def described(self) -> dict[str, Any]:
        """The answer to `describe_robot`."""
        certificates = {kernel: certificate.to_dict() for kernel, certificate in self.robot.certificates.items()}
        return {**self._constant_description, "certificates": certificates}

    @cached_property
    def _constant_description(self) -> dict[str, Any]:
        """The constant part of it, long values encoded: for hundreds of links this takes milliseconds."""
        description = self.robot.description.to_dict()
        del description["certificates"]
        return {
            name: value if isinstance(value, str | int) else msgspec.Raw(encode(value))
            for name, value in description.items()
        }

    @property
    def expires_ns(self) -> float:
        """When it expires if it is not used again."""
        if self.expires_s is None:
            return math.inf
        return max(self.used_ns, self.plans.used_ns) + self.expires_s * 1e9

    def refresh(self) -> None:
        """Enables fast paths for kernels compiled meanwhile."""
        for plan in self.plans.values():
            plan.refresh()


class Registry:
    """The served robots. Threads may read while it changes: each change replaces the dictionary.

    served: robots by name, at most `limit`. added: called with each robot added, new or not.
    clock: ns, for the times of use.
    """

    def __init__(
        self, robots: Iterable[Robot], limit: int, metrics: Metrics, clock: Callable[[], int] = perf_counter_ns
    ) -> None:
        self._clock = clock
        self._expired: dict[str, float] = {}
        self._expiring: list[Served] = []
        self._looked_at: list[Served] = []
        self._next_look_ns = 0.0
        self.added: Callable[[Served], None] = lambda served: None
        self.served: dict[str, Served] = {}
        self._limit = limit
        self._metrics = metrics
        self._change = threading.Lock()
        for robot in robots:
            self.add(robot)

    def get(self, name: Any, model: Any = UNSET) -> Served:
        """Returns the robot of that name and, unless `model` is UNSET or None, of that fingerprint.

        Raises:
            InvalidArgumentError: The name is not a string.
            NotFoundError: No robot has that name.
            FailedPreconditionError: It has another fingerprint.
        """
        if not isinstance(name, str):
            raise InvalidArgumentError("robot must be the name of a robot, found nothing", path="robot")
        served = self.served.get(name)
        if served is None:
            if name in self._expired:
                raise NotFoundError(
                    f"robot '{name}' has expired: it was unused for {self._expired[name]:g} s; make the overlay again",
                    path="robot",
                )
            hint = known_instead(name, sorted(self.served), "the robots are")
            raise NotFoundError(f"there is no robot '{name}'{hint}", path="robot")
        if model not in (UNSET, None, served.robot.fingerprint):
            raise FailedPreconditionError(
                f"robot '{name}' has fingerprint {served.robot.fingerprint}, the request was made for {model}",
                path="model",
            )
        if served.expires_s is not None:
            served.used_ns = self._clock()
        return served

    def expire(self, now_ns: int, in_use: Iterable[Any] = ()) -> list[Served]:
        """Unloads and returns the robots unused for too long and not in use. Takes no time before one may be."""
        expiring = self._expiring
        if not expiring or (expiring is self._looked_at and now_ns <= self._next_look_ns):
            return []
        for name in in_use:
            self.touch(name)
        expired = []
        if any(now_ns > served.expires_ns for served in expiring):
            with self._change:
                expired = [served for served in self._expiring if now_ns > served.expires_ns]
                self._expired |= {served.robot.name: served.expires_s or 0.0 for served in expired}
                while len(self._expired) > _REMEMBERED:
                    del self._expired[next(iter(self._expired))]
                self._replace({name: served for name, served in self.served.items() if served not in expired})
                expiring = self._expiring
        self._next_look_ns = min((served.expires_ns for served in expiring), default=math.inf)
        self._looked_at = expiring
        return expired

    def touch(self, name: Any) -> None:
        """Notes that a robot of that name, if any, is used."""
        served = self.served.get(name) if type(name) is str else None
        if served is not None:
            served.used_ns = self._clock()

    def add(self, robot: Robot, expires_s: float | None = None) -> None:
        """Serves a robot. One already served only gets a new expiry time.

        Raises:
            FailedPreconditionError: Another robot has its name.
            ResourceExhaustedError: The limit of robots is reached.
        """
        if robot.name not in self.served:
            robot.evaluator.prepare_loops()  # here, so that no request waits for it, nor does each worker
        with self._change:
            namesake = self.served.get(robot.name)
            if namesake is not None:
                if namesake.robot.fingerprint == robot.fingerprint:
                    namesake.expires_s, namesake.used_ns = expires_s, self._clock()
                    self._replace(self.served)
                    self.added(namesake)
                    return
                raise FailedPreconditionError(
                    f"robot '{robot.name}' is served with fingerprint {namesake.robot.fingerprint}, this one has "
                    f"{robot.fingerprint}: unload the other first"
                )
            if len(self.served) >= self._limit:
                raise ResourceExhaustedError(f"{len(self.served)} robots are served, which is the limit")
            robot.share(served.robot for served in self.served.values())
            self._expired.pop(robot.name, None)
            served = Served(robot, self._metrics, expires_s, self._clock())
            self._replace({**self.served, robot.name: served})
            self.added(served)

    def remove(self, name: Any) -> Served:
        """Stops serving a robot and returns it, or raises `NotFoundError`; running answers still arrive."""
        with self._change:
            removed = self.get(name)
            self._replace({key: served for key, served in self.served.items() if key != name})
        return removed

    def _replace(self, served: dict[str, Served]) -> None:
        self.served = served
        self._expiring = [served_robot for served_robot in served.values() if served_robot.expires_s is not None]


def _joint_file(text: Any) -> Document | None:
    """Returns the content of a joint file in a request; None if there is none."""
    if text is None:
        return None
    if type(text) is not str:
        message = f"joints must be the content of a joint file, found {describe_value(text)}"
        raise InvalidArgumentError(message, path="joints")
    if len(text) > MAX_FILE_BYTES:
        raise ResourceExhaustedError(f"joints has {len(text)} characters, at most {MAX_FILE_BYTES} are read")
    return parse_document(text, "joints")


CERTIFIED = ("inverse_dynamics", "forward_dynamics")
"""Queries whose kernels are compiled when a robot is loaded, so that the reply contains their certificates."""


class Administrator:
    """Answers the queries of `protocol.messages`.

    allow_load: whether callers without keys may load and unload robots; others have roles.
    """

    def __init__(self, registry: Registry, metrics: Metrics, limits: RequestLimits, *, allow_load: bool) -> None:
        self._limits = limits
        self._registry = registry
        self._metrics = metrics
        self.allowed: AccessList | None = None  # the list of allowed keys, if the server has one
        self.is_ready: Callable[[], bool] = lambda: True
        """Returns whether requests would be answered: workers are ready, and the server is not stopping."""
        self._local_caller = local_caller("a local process", allow_load=allow_load)
        self._answers: Mapping[str, Callable[[Request], dict[str, Any]]] = {
            "list_robots": lambda request: {"robots": sorted(registry.served)},
            "describe_robot": lambda request: registry.get(request.robot).described,
            "health": self._health,
            "stats": self._stats,
        }
        self._changes: Mapping[str, Callable[[Request], tuple[Served, dict[str, Any]]]] = {
            "load_robot": self._load_robot,
            "overlay_robot": self._overlay_robot,
            "unload_robot": lambda request: (registry.remove(request.robot), {"robot": request.robot}),
        }
        """These return the robot loaded or unloaded as well."""

    def answer(self, request: Request, caller: Caller | None = None) -> dict[str, Any]:
        """Returns the outputs of a query in `protocol.messages`, or raises the `DynError` that refuses it."""
        caller = caller or self._local_caller
        self.check(request, caller)
        if request.query in self._answers:
            return self._answers[request.query](request)
        try:
            served, outputs = self._changes[request.query](request)
        except Exception as fault:
            record_refused(caller, request.query, request.robot, fault)
            raise
        record_done(caller, request.query, served.robot.name, served.robot.fingerprint)
        return outputs

    def check(self, request: Request, caller: Caller | None) -> None:
        """Raises a `DynError` if the caller may not send the query or a name is unknown; logs refused changes."""
        caller, row = caller or self._local_caller, ADMINISTRATION[request.query]
        try:
            caller.check(request.query)
            for kind, names, allowed_names in (
                ("input", request.inputs, row.inputs),
                ("option", request.options, row.options),
            ):
                for name in names or ():
                    if name not in allowed_names:
                        raise unknown_name(row.name, kind, name, allowed_names)
        except DynError as refusal:
            if row.role is Role.LOAD:
                record_refused(caller, request.query, request.robot, refusal)
            raise

    def _load_robot(self, request: Request) -> tuple[Served, dict[str, Any]]:
        path = "inputs.urdf"
        text = (request.inputs or {}).get("urdf")
        if type(text) is not str:
            raise InvalidArgumentError(
                f"urdf must be the content of a robot's file, found {describe_value(text)}", path=path
            )
        # a path would be read from the server's files
        if not text.lstrip("\ufeff \t\r\n").startswith("<"):
            raise InvalidArgumentError("urdf must be the content of a robot's file, found no XML", path=path)
        from dyn_service.engine.robot import Robot  # here, because it imports the compiler

        limits = read_limits(self._limits)
        options = request.options or {}
        mimic = options.get("mimic", True)
        if not isinstance(mimic, bool):
            raise InvalidArgumentError(
                f"mimic must be true or false, found {describe_value(mimic)}", path="options.mimic"
            )
        try:
            handling = {name: options[name] for name in ("root", "loops") if name in options}
            joints = _joint_file((request.inputs or {}).get("joints"))
            robot = Robot.from_text(text, limits=limits, joints=joints, mimic=mimic, **handling)
        except ConfigurationError as error:
            raise InvalidArgumentError(str(error), path="inputs.joints") from None  # with its line and key
        except DynError as error:
            # Errors in the text have its line and element, as when the robot is read in process.
            if not isinstance(error, UrdfError):
                error.path = path if error.path is None else f"options.{error.path}"
            raise
        self._registry.add(robot)
        served = self._registry.get(robot.name)  # may be one served before
        self._certify(served.robot)
        return served, served.described

    def _overlay_robot(self, request: Request) -> tuple[Served, dict[str, Any]]:
        inputs, base_robot = request.inputs or {}, self._registry.get(request.robot).robot
        name, expires_s = inputs.get("name"), (request.options or {}).get("expires_s")
        if type(name) is not str or not name:
            kind = describe_value(name) if name != "" else "none"
            raise InvalidArgumentError(f"name must be a non-empty string, found {kind}", path="inputs.name")
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
                f"overlay must be for one robot, found numbers with leading axes {overlay_lead(overlay)}",
                path="inputs.overlay",
            )
        try:
            robot = base_robot.overlaid(overlay, name=name)
        except DynError as error:
            error.path = f"inputs.{error.path}"
            raise
        self._certify(robot)  # before it is added, because it may take longer than expires_s
        # expires, because sockets that reconnect have no session whose end could unload it
        self._registry.add(robot, expires_s)
        served = self._registry.get(name)
        return served, served.described

    @staticmethod
    def _certify(robot: Robot) -> None:
        """Compiles the kernels that have certificates."""
        for row in CERTIFIED:
            with suppress(ResourceExhaustedError):  # other queries may still be small enough
                robot.prepare([row])

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

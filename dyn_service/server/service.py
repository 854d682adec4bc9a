"""From the bytes of a request to the bytes of its reply, without a socket, without ever raising.

`accept` reads and checks a request; `answer` computes. Between the two the caller may look at `Job.slow` and move the
job to another thread. `handle` is both in one call.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import msgspec

from dyn_service import __version__
from dyn_service.errors import (
    DeadlineExceededError,
    DynError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnimplementedError,
)
from dyn_service.protocol.administration import ADMINISTRATION
from dyn_service.protocol.arrays import describe_value
from dyn_service.protocol.limits import Limits
from dyn_service.protocol.messages import (
    VERSION,
    Head,
    RefusedRequest,
    Reply,
    Request,
    Timing,
    encode,
    error_reply,
    peek,
    read_request,
)
from dyn_service.queries import QUERIES
from dyn_service.server.metrics import Metrics
from dyn_service.server.plan import Plan, Served

if TYPE_CHECKING:
    from dyn_service.robot import Robot

SLOW_BYTES = 64 << 10
"""A request or answer longer than this is work for another thread than the one that serves control loops."""

_LOG = logging.getLogger(__name__)


class Job(msgspec.Struct, gc=False):
    """A request that was read and checked. plan: None for a query about the server itself."""

    request: Request
    plan: Plan | None
    inputs: Mapping[str, Any]
    options: Mapping[str, Any]
    received_ns: int
    slow: bool


class Service:
    """Answers requests on a set of robots.

    Args:
        robots: What is served, by each robot's name.
        limits: What a request and a reply may be.
        allow_load: Whether requests may load and unload robots.
        metrics: Where to count; the transport's counters may live in the same place.
    """

    def __init__(
        self,
        robots: Iterable[Robot] = (),
        *,
        limits: Limits | None = None,
        allow_load: bool = False,
        metrics: Metrics | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.metrics = metrics or Metrics()
        self.allow_load = allow_load
        self._change = threading.Lock()
        self._robots: dict[str, Served] = {}
        for robot in robots:
            self.add(robot)

    @property
    def robots(self) -> dict[str, Robot]:
        """What is served now, by name."""
        return {name: served.robot for name, served in self._robots.items()}

    def add(self, robot: Robot) -> None:
        """Serves one more robot.

        Raises:
            FailedPreconditionError: Another robot of that name is served.
            ResourceExhaustedError: Too many robots are served.
        """
        with self._change:
            served = self._robots.get(robot.name)
            if served is not None:
                if served.robot.fingerprint == robot.fingerprint:
                    return
                raise FailedPreconditionError(
                    f"a different robot '{robot.name}' is served already ({served.robot.fingerprint}), unload it first"
                )
            if len(self._robots) >= self.limits.max_robots:
                raise ResourceExhaustedError(f"{len(self._robots)} robots are served, which is the limit")
            self._robots = {**self._robots, robot.name: Served(robot)}

    def remove(self, name: str) -> None:
        """Stops serving a robot; answers on their way still arrive.

        Raises:
            NotFoundError: No robot of that name is served.
        """
        with self._change:
            self._served(name)
            self._robots = {key: served for key, served in self._robots.items() if key != name}

    def handle(self, payload: bytes | memoryview, received_ns: int) -> bytes:
        """The reply to a request.

        Args:
            payload: The request's bytes.
            received_ns: When it came in, on the clock of `time.perf_counter_ns`.
        """
        job = self.accept(payload, received_ns)
        return job if isinstance(job, bytes) else self.answer(job)

    def accept(self, payload: bytes | memoryview, received_ns: int) -> Job | bytes:
        """The request, read and checked, or the reply that refuses it."""
        request = None
        try:
            request = read_request(payload)
            return self._check(request, len(payload), received_ns)
        except Exception as error:
            return self._fail(request, error)

    def answer(self, job: Job) -> bytes:
        """The reply to an accepted request: its answer, or why there is none."""
        request = job.request
        started = perf_counter_ns()
        try:
            if request.deadline_ms and started - job.received_ns > request.deadline_ms * 1e6:
                late = (started - job.received_ns) / 1e6
                raise DeadlineExceededError(
                    f"{request.query} was not begun within {request.deadline_ms:g} ms of its receipt, "
                    f"but after {late:.1f} ms",
                    path="deadline_ms",
                )
            plan = job.plan
            if plan is None:
                outputs = _ADMINISTERS[request.query](self, request)
            else:
                outputs = plan.answer(job.inputs, job.options)
                if job.slow:
                    plan.mark_warm(job.inputs, job.options)
            finished = perf_counter_ns()
            timing = Timing((started - job.received_ns) / 1e3, (finished - started) / 1e3)
            reply = encode(Reply(VERSION, request.id, True, outputs, timing))
            if len(reply) > self.limits.max_reply_bytes:
                raise self._too_long(len(reply))
            self.metrics.answered(request.query, perf_counter_ns() - job.received_ns)
            return reply
        except Exception as error:
            return self._fail(request, error)

    def refuse(self, request: Request | Head | None, error: DynError) -> bytes:
        """The reply that refuses a request, counted."""
        known = request is not None and (request.query in QUERIES or request.query in ADMINISTRATION)
        self.metrics.refused(request.query if request is not None and known else None, error.code)
        return error_reply(request.id if request is not None else None, error)

    def refuse_unread(self, payload: bytes | memoryview, error: DynError) -> bytes:
        """The reply that refuses a request of which no more was read than whose it is."""
        return self.refuse(peek(payload), error)

    def _check(self, request: Request, length: int, received_ns: int) -> Job:
        served = self._robots.get(request.robot)  # type: ignore[arg-type]
        plan = served.plans.get(request.query) if served is not None else None
        if plan is None:
            if request.query in ADMINISTRATION:
                return Job(request, None, {}, {}, received_ns, request.query == "load_robot")
            if request.query not in QUERIES:
                known = ", ".join((*QUERIES, *ADMINISTRATION))
                raise UnimplementedError(f"there is no query '{request.query}'; the queries are {known}", path="query")
            plan = self._served(request.robot).plans[request.query]
        if request.model and request.model != plan.fingerprint:
            raise FailedPreconditionError(
                f"the request is meant for the robot '{request.robot}' with fingerprint {request.model}, "
                f"here it has {plan.fingerprint}",
                path="model",
            )
        inputs = plan.read_inputs(request.inputs or {})
        options = plan.read_options(request.options) if request.options else {}
        size = plan.result_bytes(inputs, options)
        if size > self.limits.max_reply_bytes:
            raise self._too_long(size)
        slow = length > SLOW_BYTES or size > SLOW_BYTES or not plan.is_warm(inputs, options)
        return Job(request, plan, inputs, options, received_ns, slow)

    def _served(self, name: Any) -> Served:
        """The robot of that name, as requests know it."""
        if not isinstance(name, str):
            raise InvalidArgumentError("robot must be the name of a robot, found nothing", path="robot")
        try:
            return self._robots[name]
        except KeyError:
            known = ", ".join(sorted(self._robots)) or "none"
            raise NotFoundError(f"there is no robot '{name}'; the robots are {known}", path="robot") from None

    def _too_long(self, size: int) -> DynError:
        limit = self.limits.max_reply_bytes
        return ResourceExhaustedError(f"the answer takes {size} bytes, the limit is {limit}: ask for fewer states")

    def _fail(self, request: Request | Head | None, error: Exception) -> bytes:
        """The reply that says what went wrong; a defect goes to the log, not to the client."""
        if isinstance(error, RefusedRequest):
            request, error = Head(error.request_id), error.error
        if isinstance(error, MemoryError):
            error = ResourceExhaustedError("the server has not enough memory for this request")
        if not isinstance(error, DynError):
            query = request.query if request is not None else "a request"
            _LOG.error("%s failed", query, exc_info=error)
            error = InternalError(f"the server failed to answer {query}; its log says why")
        return self.refuse(request, error)

    def _list_robots(self, request: Request) -> dict[str, Any]:
        return {"robots": sorted(self._robots)}

    def _describe_robot(self, request: Request) -> dict[str, Any]:
        return self._served(request.robot).description

    def _load_robot(self, request: Request) -> dict[str, Any]:
        self._check_change()
        text = (request.inputs or {}).get("urdf")
        if type(text) is not str:
            raise InvalidArgumentError(
                f"urdf must be the text of a URDF, found {describe_value(text)}", path="inputs.urdf"
            )
        if not text.lstrip("\ufeff \t\r\n").startswith("<"):  # a path is not for clients to name
            raise InvalidArgumentError("urdf must be the text of a URDF, found no XML", path="inputs.urdf")
        from dyn_service.robot import Robot  # brings the compiler, which a server without robots can start without

        robot = Robot.from_urdf(text)
        self.add(robot)
        return self._served(robot.name).description

    def _unload_robot(self, request: Request) -> dict[str, Any]:
        self._check_change()
        name = self._served(request.robot).robot.name
        self.remove(name)
        return {"robot": name}

    def _health(self, request: Request) -> dict[str, Any]:
        return {
            "status": "ok",
            "version": __version__,
            "protocol": [VERSION],
            "robots": len(self._robots),
            "uptime_s": self.metrics.uptime_s,
        }

    def _stats(self, request: Request) -> dict[str, Any]:
        return self.metrics.to_dict()

    def _check_change(self) -> None:
        if not self.allow_load:
            raise PermissionDeniedError("this server does not let its clients load or unload robots", path="query")


_ADMINISTERS: Mapping[str, Callable[[Service, Request], dict[str, Any]]] = {
    "list_robots": Service._list_robots,
    "describe_robot": Service._describe_robot,
    "load_robot": Service._load_robot,
    "unload_robot": Service._unload_robot,
    "health": Service._health,
    "stats": Service._stats,
}

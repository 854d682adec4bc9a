"""From the bytes of a request to the bytes of its reply, without a socket, without ever raising.

`accept` reads and checks a request; `answer` computes; `count` notes what it took, which can wait until the reply is on
its way. After `accept` the caller may look at `Job.slow` and move the job to another thread. `handle` is all of it in
one call.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import msgspec

from dyn_service.errors import (
    DeadlineExceededError,
    DynError,
    FailedPreconditionError,
    InternalError,
    ResourceExhaustedError,
    UnimplementedError,
)
from dyn_service.protocol.administration import ADMINISTRATION
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
from dyn_service.server.administration import Administrator
from dyn_service.server.metrics import Metrics
from dyn_service.server.plan import SLOW_BYTES, Plan
from dyn_service.server.registry import Registry
from dyn_service.server.state import StateRequest, read_state_request

if TYPE_CHECKING:
    from dyn_service.robot import Robot

_LOG = logging.getLogger(__name__)
_NOTHING: Mapping[str, Any] = {}


class Job(msgspec.Struct, gc=False):
    """A request that was read and checked.

    plan: None for a query about the server itself. state: what the plan read of a request for one state; for all
    others inputs and options. finished_ns: when the answer was there, 0 while there is none.
    """

    request: Request | StateRequest
    plan: Plan | None
    received_ns: int
    state: list[Any] | None
    inputs: Mapping[str, Any] = _NOTHING
    options: Mapping[str, Any] = _NOTHING
    slow: bool = False
    finished_ns: int = 0


class Service:
    """Answers requests on a set of robots.

    Args:
        robots: What is served, by each robot's name.
        limits: What a request and a reply may be.
        allow_load: Whether requests may load and unload robots.
    """

    def __init__(
        self, robots: Iterable[Robot] = (), *, limits: Limits | None = None, allow_load: bool = False
    ) -> None:
        self.limits = limits or Limits()
        self.metrics = Metrics()
        self.allow_load = allow_load
        self.registry = Registry(robots, self.limits.max_robots)
        self._administrator = Administrator(self.registry, self.metrics, allow_load=allow_load)

    @property
    def robots(self) -> dict[str, Robot]:
        """What is served now, by name."""
        return {name: served.robot for name, served in self.registry.served.items()}

    def handle(self, payload: bytes | memoryview, received_ns: int) -> bytes:
        """The reply to a request.

        Args:
            payload: The request's bytes.
            received_ns: When it came in, on the clock of `time.perf_counter_ns`.
        """
        job = self.accept(payload, received_ns)
        if isinstance(job, bytes):
            return job
        reply = self.answer(job)
        self.count(job)
        return reply

    def accept(self, payload: bytes | memoryview, received_ns: int) -> Job | bytes:
        """The request, read and checked, or the reply that refuses it."""
        request: Request | None = None
        try:
            if len(payload) <= SLOW_BYTES:
                job = self._accept_state(payload, received_ns)
                if job is not None:
                    return job
            request = read_request(payload)
            return self._check(request, len(payload), received_ns)
        except RefusedRequest as refusal:
            return self.refuse(Head(refusal.request_id), refusal.error)
        except Exception as error:  # noqa: BLE001  # whatever a request brings about, the server lives on
            return self._fail(request, error)

    def answer(self, job: Job) -> bytes:
        """The reply to an accepted request: its answer, or why there is none."""
        request, plan = job.request, job.plan
        started = perf_counter_ns()
        waited = started - job.received_ns
        try:
            if request.deadline_ms and waited > request.deadline_ms * 1e6:
                raise DeadlineExceededError(
                    f"{request.query} was to begin within {request.deadline_ms:g} ms of its receipt, found "
                    f"{waited / 1e6:.1f} ms gone by",
                    path="deadline_ms",
                )
            if job.state is not None:
                outputs = plan.answer_state(job.state)  # type: ignore[union-attr]  # it read the state
            elif plan is not None:
                outputs = plan.answer(job.inputs, job.options)
                if job.slow:
                    plan.mark_warm(job.inputs, job.options)
            else:
                outputs = self._administrator.answer(request)  # type: ignore[arg-type]  # came the general way
            finished = perf_counter_ns()
            reply = encode(Reply(VERSION, request.id, True, outputs, Timing(waited / 1e3, (finished - started) / 1e3)))
            if len(reply) > self.limits.max_reply_bytes:
                raise self._too_long(len(reply))
            job.finished_ns = finished
            return reply
        except Exception as error:  # noqa: BLE001  # whatever a request brings about, the server lives on
            return self._fail(request, error)

    def count(self, job: Job) -> None:
        """Notes an answer and the time it took; a refusal was counted when it was written."""
        if job.finished_ns:
            self.metrics.answered(job.request.query, job.finished_ns - job.received_ns)

    def refuse(self, request: Request | StateRequest | Head, error: DynError) -> bytes:
        """The reply that refuses a request, counted."""
        known = request.query in QUERIES or request.query in ADMINISTRATION
        self.metrics.refused(request.query if known else None, error.code)
        return error_reply(request.id, error)

    def refuse_unread(self, payload: bytes | memoryview, error: DynError) -> bytes:
        """The reply that refuses a request of which no more was read than whose it is."""
        return self.refuse(peek(payload), error)

    def _accept_state(self, payload: bytes | memoryview, received_ns: int) -> Job | None:
        """A request that can go the short way, see `state`; None for all others, right or wrong."""
        request = read_state_request(payload)
        if request is None:
            return None
        served = self.registry.served.get(request.robot)
        plan = None if served is None else served.plans.get(request.query)
        if plan is None or (request.model and request.model != plan.fingerprint):
            return None
        state = plan.read_state(request.inputs)
        return None if state is None else Job(request, plan, received_ns, state)

    def _check(self, request: Request, length: int, received_ns: int) -> Job:
        """The job that a request asks for.

        Raises:
            DynError: It asks for what is not there, or for too much.
        """
        query = request.query
        if query in ADMINISTRATION:
            return Job(request, None, received_ns, None, slow=query == "load_robot")
        if query not in QUERIES:
            known = ", ".join((*QUERIES, *ADMINISTRATION))
            raise UnimplementedError(f"there is no query '{query}'; the queries are {known}", path="query")
        plan = self.registry.get(request.robot).plans[query]
        if request.model and request.model != plan.fingerprint:
            raise FailedPreconditionError(
                f"robot '{request.robot}' has fingerprint {plan.fingerprint}, the request was made for {request.model}",
                path="model",
            )
        inputs = plan.read_inputs(request.inputs or {})
        options = plan.read_options(request.options or {})
        size = plan.result_bytes(inputs, options)
        if size > self.limits.max_reply_bytes:
            raise self._too_long(size)
        slow = length > SLOW_BYTES or size > SLOW_BYTES or not plan.is_warm(inputs, options)
        return Job(request, plan, received_ns, None, inputs, options, slow)

    def _too_long(self, size: int) -> DynError:
        limit = self.limits.max_reply_bytes
        return ResourceExhaustedError(f"the answer takes {size} bytes, the limit is {limit}: ask for fewer states")

    def _fail(self, request: Request | StateRequest | None, error: Exception) -> bytes:
        """The reply that says what went wrong; a defect goes to the log, not to the client."""
        if isinstance(error, MemoryError):
            error = ResourceExhaustedError("the server has not enough memory for this request")
        if not isinstance(error, DynError):
            query = request.query if request is not None else "a request"
            _LOG.error("%s failed", query, exc_info=error)
            error = InternalError(f"the server failed to answer {query}; its log says why")
        return self.refuse(request or Head(), error)

"""Rows of the table that take long, answered from a request: simulation, verification, segments of gait.

----
From the bytes of a request to the bytes of its reply, without a socket, without ever raising.

A request for one state goes the short way, `answer_single_state`. For all others `accept` reads and checks the request
and `answer` computes; between the two the caller may look at `Job.slow` and have another thread or process do it.
`handle` is both in one call.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import UNSET

from dyn_service.api.arrays import spread
from dyn_service.api.inputs import check_names, checked_options
from dyn_service.api.queries import COMPUTATIONS, QUERIES, Computation
from dyn_service.errors import (
    DynError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnimplementedError,
)
from dyn_service.kernels.making import KernelMissingError
from dyn_service.model.order import NAMES, Order
from dyn_service.service.protocol.administration import ADMINISTRATION, Role
from dyn_service.service.protocol.arrays import describe_value, pack_output
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.protocol.messages import (
    VERSION,
    Head,
    Reply,
    Request,
    RequestRefusedError,
    Timing,
    encode,
    error_reply,
    new_epoch,
    peek,
    read_request,
)
from dyn_service.service.protocol.values import unpack
from dyn_service.service.server.administration.access import AccessList, Caller
from dyn_service.service.server.administration.audit import record_done
from dyn_service.service.server.administration.metrics import Metrics
from dyn_service.service.server.answering.bounds import check_cost, meter, predict_cost
from dyn_service.service.server.answering.finite import (
    NotFinite,
    defect,
    explain_computation,
    first_not_finite,
)
from dyn_service.service.server.answering.jobs import (
    CompileClock,
    Job,
    Task,
    cancelled_error,
    due_ns,
    not_started_error,
)
from dyn_service.service.server.answering.plan import SLOW_BYTES, SLOW_WORK_S, decode_fast_request
from dyn_service.service.server.answering.registry import Administrator, Registry, Served, other_model
from dyn_service.support.suggestions import did_you_mean

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot


_LOG = logging.getLogger(__name__)


_NONE: Mapping[str, int] = {}
"""The sizes of no robot."""


def compute(
    registry: Registry, row: Computation, request: Request, limits: RequestLimits, until_ns: float = math.inf
) -> dict[str, Any]:
    """The outputs of one request, packed, by name.

    Args:
        registry: The robots.
        row: What is asked.
        request: By whom, and with what.
        limits: What it may cost.
        until_ns: When the asker gives up, on the clock of `time.perf_counter_ns`.

    Raises:
        DynError: The request is refused, or its computation fails.
    """
    served = _served(registry, request) if row.robot else None
    robot = None if served is None else served.robot
    inputs, order = read_inputs(row, request.inputs or {}, request.options or {}, served)
    options = _options(row, request.options or {})
    check_cost(row, predict_cost(row, _NONE if robot is None else robot.sizes, inputs, options), limits)
    for name in row.of_kind("position"):
        if robot is not None and name in inputs and inputs[name].shape[-1:] == (robot.nq,):
            robot.configuration.check_unit(inputs[name], name, f"inputs.{name}")
    look = meter(row, limits, until_ns)
    try:
        outputs = _part(row, robot, inputs, options, look) if row.part else _whole(row, robot, inputs, options)
    except DynError as error:
        error.path = _path_on_wire(row, error.path)
        raise
    except np.linalg.LinAlgError:
        raise FailedPreconditionError(
            f"{row.name} has no answer: a matrix of its equations is singular at a state of the request"
        ) from None
    arrays = {name: np.asarray(value) for name, value in outputs.items()}
    if order is not None:
        arrays = order.outward(row, arrays)
    return {name: pack_output(value) for name, value in arrays.items()}


def read_inputs(
    row: Computation, raw: Mapping[str, Any], options: Mapping[str, Any], served: Served | None
) -> tuple[dict[str, Any], Order | None]:
    """The inputs as arrays, wrenches and payloads, in the robot's order, and that of the request, where it says one.
    What they must be beyond that is for the computation to say.

    Raises:
        InvalidArgumentError: One is missing, unknown, or not what an input can be.
        NotFoundError: It names a joint that is none.
    """
    order = free = None
    if NAMES in raw and served is not None:
        raw, order = served.orders.split(row, raw)
    check_names(row, raw)
    inputs = {
        name: unpack(row.inputs[name].kind, value, f"inputs.{name}") for name, value in raw.items() if value is not None
    }
    if order is not None:
        prescribed = options.get("joints")
        if row.of_kind("motions") and isinstance(prescribed, list):
            free = order.without(prescribed)
        inputs = {name: order.inward(row.inputs[name], value, free) for name, value in inputs.items()}
    return inputs, order


def _served(registry: Registry, request: Request) -> Served:
    served = registry.get(request.robot)
    if request.model not in (UNSET, None, served.robot.fingerprint):
        raise other_model(served.robot.name, served.robot.fingerprint, request.model)
    return served


def _options(row: Computation, raw: Mapping[str, Any]) -> dict[str, Any]:
    """All options; what was sent as nil was left out."""
    return checked_options(row, {name: value for name, value in raw.items() if value is not None})


def _path_on_wire(row: Computation, path: str | None) -> str | None:
    """Where an argument stands in the request, from where the method has it: `q0` is `inputs.q`."""
    head = re.match(r"\w*", path or "")[0]  # type: ignore[index]  # of nothing, it is nothing
    name = row.parameters.get(head)
    if path is None or name is None:
        return path
    if name in row.options:
        return f"options.{name}{path[len(head) :]}"
    return f"inputs.{name}" + ("" if row.inputs[name].kind == "motions" else path[len(head) :])


def _part(
    row: Computation, robot: Any, inputs: dict[str, Any], options: Mapping[str, Any], look: Callable[[float], None]
) -> Mapping[str, Any]:
    """One request of a motion in parts."""
    robot, inputs, options = _asked(row, robot, inputs, options)
    outputs: Mapping[str, Any] = row.function("part")(robot, inputs, options, look)
    return outputs


def _asked(
    row: Computation, robot: Any, inputs: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Who answers, what is left of inputs and options for the computation, and a state for each robot that it is."""
    left = {**inputs, **options}
    robot = robot.asked(row, left)
    for name in row.of_kind("position"):
        left[name] = spread(left[name], robot.lead)
    return robot, *({name: left[name] for name in of if name in left} for of in (inputs, options))


def _whole(row: Computation, robot: Any, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
    """A computation whose answer is one reply."""
    if robot is not None:
        robot, inputs, options = _asked(row, robot, inputs, options)
    given = {**inputs, **options}
    arguments = {parameter: given[name] for parameter, name in row.parameters.items() if name in given}
    result = row.function("run")(*([] if robot is None else [robot]), **arguments)
    return result if isinstance(result, dict) else {name: getattr(result, name) for name in row.outputs}


_ITSELF = Caller("the server, for it was unused", Role.LOAD)
"""Who unloads robots that expire."""


def is_query(name: str) -> bool:
    """Whether there is a query of that name."""
    return name in QUERIES or name in COMPUTATIONS or name in ADMINISTRATION


def names_robot(query: str) -> bool:
    """Whether a query is about the robot that its request names."""
    if query in ADMINISTRATION:
        return ADMINISTRATION[query].names_robot
    return query in QUERIES or (query in COMPUTATIONS and COMPUTATIONS[query].robot)


class Service:
    """Answers requests on a set of robots.

    Args:
        robots: What is served, by each robot's name.
        limits: What a request and a reply may be.
        allow_load: Whether requests may load and unload robots.
        epoch: Which life of the server its replies speak of; None: a new one.
    """

    def __init__(
        self,
        robots: Iterable[Robot] = (),
        *,
        limits: RequestLimits | None = None,
        allow_load: bool = False,
        epoch: int | None = None,
    ) -> None:
        self.epoch = new_epoch() if epoch is None else epoch
        self.limits = limits or RequestLimits()
        self.metrics = Metrics()
        self.clock = CompileClock()
        self.allow_load = allow_load
        self.registry = Registry(robots, self.limits.max_robots, self.metrics)
        self._administrator = Administrator(self.registry, self.metrics, self.limits, allow_load=allow_load)

    def set_readiness(self, ready: Callable[[], bool]) -> None:
        """Has `health` ask this for whether work is taken."""
        self._administrator.is_ready = ready

    def set_access_list(self, allowed: AccessList) -> None:
        """Has `health` say how the list of keys is."""
        self._administrator.allowed = allowed

    def expire(self, now_ns: int, at_work: Iterable[Any] = ()) -> None:
        """Unloads the robots that were unused for too long, as `Registry.expire` says."""
        for served in self.registry.expire(now_ns, at_work):
            record_done(_ITSELF, "unload_robot", served.robot.name, served.robot.fingerprint)

    @property
    def robots(self) -> dict[str, Robot]:
        """What is served now, by name."""
        return {name: served.robot for name, served in self.registry.served.items()}

    def work(self, task: Task) -> bytes:
        """The reply to a request that waited, from this thread. May take long."""
        if task.cancelled:
            return self.refuse_task(task, cancelled_error())
        return self.handle(task.payload, task.received_ns, task.caller) if task.job is None else self.answer(task.job)

    def refuse_task(self, task: Task, error: DynError) -> bytes:
        """The reply that refuses a request that waited, counted."""
        return self.refuse(task.head if task.head.id is not None else peek(task.payload), error)

    def handle(self, payload: bytes | memoryview, received_ns: int, caller: Caller | None = None) -> bytes:
        """The reply to a request.

        Args:
            payload: The request's bytes.
            received_ns: When it came in, on the clock of `time.perf_counter_ns`.
            caller: Who asks.
        """
        job = self.accept(payload, received_ns, caller=caller)
        return job if isinstance(job, bytes) else self.answer(job)

    def answer_single_state(self, payload: bytes | memoryview, received_ns: int) -> bytes | None:
        """The reply to a request that can go the short way, see `state`; None for all others, right or wrong.

        Only for the thread that owns the socket: it counts without a lock.
        """
        try:
            request = decode_fast_request(payload)
            plan = self.registry.plans[request.robot, request.query]
            short = plan.state
            if short is None or request.model not in plan.models:
                return None
            values = short.read(request.inputs, self.limits.max_wrenches)
            started = perf_counter_ns()
            waited = started - received_ns
            if values is None or (request.deadline_ms and waited > request.deadline_ms * 1e6):
                return None
            outputs = short.answer(values)
            if outputs is None:
                return None
            finished = perf_counter_ns()
            took = finished - received_ns
            late = True if request.deadline_ms and took > request.deadline_ms * 1e6 else UNSET
            timing = Timing(waited / 1e3, (finished - started) / 1e3)
            reply = encode(Reply(VERSION, request.id, True, outputs, timing, UNSET, self.epoch, late))
        except (msgspec.MsgspecError, ValueError, KeyError, DynError):  # of another form, or wrong: see the general way
            return None
        except Exception:  # noqa: BLE001  # a defect, which costs nobody an answer
            _LOG.exception("the short way failed")
            return None
        short.durations.add(took)
        short.used_ns = finished
        return reply if len(reply) <= self.limits.max_reply_bytes else None

    def accept(
        self, payload: bytes | memoryview, received_ns: int, excused_ns: int = 0, caller: Caller | None = None
    ) -> Job | bytes:
        """The request, read and checked, or the reply that refuses it."""
        request: Request | None = None
        try:
            request = read_request(payload, self.limits)
            return self._check(request, len(payload), received_ns, excused_ns, caller)
        except RequestRefusedError as refusal:
            return self.refuse(refusal.head, refusal.error)
        except Exception as error:  # noqa: BLE001  # whatever a request brings about, the server lives on
            return self._fail(request, error)

    def answer(self, job: Job) -> bytes:
        """The reply to an accepted request: its answer, or why there is none."""
        reply = None if job.not_finite is not None else self.answer_at_once(job)
        if reply is not None:
            return reply
        try:
            cause: Exception = self._why_not_finite(job)
        except Exception as error:  # noqa: BLE001  # whatever a request brings about, the server lives on
            cause = error
        return self._fail(job.request, cause)

    def answer_at_once(self, job: Job) -> bytes | None:
        """As `answer`, but None where that takes time: a number of the answer is not finite, or a kernel is missing.

        Which kernels may be made meanwhile is for `kernels.making` to say.
        """
        request = job.request
        started = perf_counter_ns()
        try:
            reply = self._compute(job, started)
            if reply is None:
                return None
        except KernelMissingError:
            return None
        except Exception as error:  # noqa: BLE001  # whatever a request brings about, the server lives on
            return self._fail(request, error)
        self.metrics.answered(request.query, perf_counter_ns() - job.received_ns)
        return reply

    def has_kernel(self, job: Job) -> bool:
        """Whether the kernel that the answer needs is in this process."""
        plan = job.plan
        return plan is None or plan.has_kernel(job.inputs, job.options)

    def refuse(self, request: Request | Head, error: DynError) -> bytes:
        """The reply that refuses a request, counted."""
        self.metrics.refused(request.query if is_query(request.query) else None, error.code)
        return error_reply(request.id, error, self.epoch)

    def refuse_unread(self, payload: bytes | memoryview, error: DynError) -> bytes:
        """The reply that refuses a request of which no more was read than whose it is."""
        return self.refuse(peek(payload), error)

    def _check(self, request: Request, length: int, received_ns: int, excused_ns: int, caller: Caller | None) -> Job:
        """The job that a request asks for.

        Raises:
            DynError: It asks for what is not there, or for too much.
        """
        query = request.query
        if query in ADMINISTRATION or query in COMPUTATIONS:
            slow = query in COMPUTATIONS or ADMINISTRATION[query].slow
            if query in ADMINISTRATION:
                self._administrator.check(request, caller)
            return Job(request, None, received_ns, excused_ns, slow=slow, caller=caller)
        if query not in QUERIES:
            known = ", ".join((*QUERIES, *COMPUTATIONS, *ADMINISTRATION))
            near = did_you_mean(query, (*QUERIES, *COMPUTATIONS, *ADMINISTRATION))
            raise UnimplementedError(f"there is no query '{query}'; the queries are {known}{near}", path="query")
        plan = self.registry.get(request.robot).plans[query]
        if request.model not in (*plan.models, None):
            raise other_model(request.robot, plan.fingerprint, request.model)
        inputs, order = plan.read_inputs(request.inputs or {})
        given = dict(request.options or {})
        verify = given.pop("verify", None) or False
        if type(verify) is not bool:
            raise InvalidArgumentError(
                f"verify must be true or false, found {describe_value(verify)}", path="options.verify"
            )
        options = plan.read_options(given)
        cost = plan.afford(inputs, options, self.limits, verify=verify)
        slow = max(length, cost.reply_bytes) > SLOW_BYTES or cost.work_s > SLOW_WORK_S
        return Job(request, plan, received_ns, excused_ns, inputs, options, slow or verify, verify, order=order)

    def _compute(self, job: Job, started: int) -> bytes | None:
        """The reply with the answer; None where a number of it is not finite.

        Raises:
            Exception: There is none.
        """
        request, plan = job.request, job.plan
        waited = started - job.received_ns
        if self._is_late(job, started):
            raise not_started_error(request, waited)
        if plan is None:
            outputs = self._answer_planless(job)
        else:
            outputs = plan.answer(job.inputs, job.options, job.order)
            plan.refresh(job.inputs)
        job.not_finite = first_not_finite(outputs)
        if job.not_finite is not None:
            return None
        residuals = plan.verification(job.inputs, job.options) if plan is not None and job.verify else UNSET
        finished = perf_counter_ns()
        timing = Timing(waited / 1e3, (finished - started) / 1e3)
        late = True if self._is_late(job, finished) else UNSET
        reply = encode(Reply(VERSION, request.id, True, outputs, timing, residuals, self.epoch, late))
        if len(reply) > self.limits.max_reply_bytes:
            raise self._too_long(len(reply))
        return reply

    def _is_late(self, job: Job, now: int) -> bool:
        """Whether the request's deadline has passed."""
        if not job.request.deadline_ms:
            return False
        excused_ns = job.excused_ns + self.clock.within_ns(job.received_ns, now)
        due = due_ns(job.request, job.received_ns, excused_ns)
        return due is not None and now > due

    def _why_not_finite(self, job: Job) -> DynError:
        """Why a number of the answer is not finite. Looks at that one state, whatever the batch was.

        Raises:
            Exception: It cannot be said.
        """
        plan, found = job.plan, job.not_finite
        assert found is not None
        if plan is None:
            return self._explain(job.request, found)
        return plan.why(found, job.inputs, job.options, job.order)

    def _explain(self, request: Request, found: NotFinite) -> DynError:
        """Why a number in the answer of a computation, or about the server itself, is not finite."""
        row = COMPUTATIONS.get(request.query)
        if row is None:
            return defect(request.query, found)
        served = self.registry.get(request.robot) if row.robot else None
        inputs, order = read_inputs(row, request.inputs or {}, request.options or {}, served)
        if order is not None:
            found = replace(found, index=order.place(row, found.output, found.index))
        robot = None if served is None else served.robot
        return explain_computation(row, found, inputs, request.options or {}, robot)

    def _answer_planless(self, job: Job) -> dict[str, Any]:
        """The outputs of what takes long, or is about the server itself.

        Raises:
            Exception: There are none.
        """
        request = job.request
        row = COMPUTATIONS.get(request.query)
        if row is None:
            return self._administrator.answer(request, job.caller)
        waits_ms = (request.deadline_ms or math.inf) + (request.compile_wait_ms or 0.0)
        return compute(self.registry, row, request, self.limits, job.received_ns + waits_ms * 1e6)

    def _too_long(self, size: int) -> DynError:
        limit = self.limits.max_reply_bytes
        return ResourceExhaustedError(f"the answer takes {size} bytes, the limit is {limit}: ask for fewer states")

    def _fail(self, request: Request | None, error: Exception) -> bytes:
        """The reply that says what went wrong; a defect goes to the log, not to the client."""
        if isinstance(error, MemoryError):
            error = ResourceExhaustedError("the server has not enough memory for this request")
        if not isinstance(error, DynError):
            query = request.query if request is not None else "a request"
            _LOG.error("%s failed", query, exc_info=error, extra={"request": request and request.id})
            error = InternalError(f"the server failed to answer {query}; its log says why")
        return self.refuse(request or Head(), error)

"""From the bytes of a request to the bytes of its reply, without a socket and without raising.

A request for one state takes the fast path, `answer_single_state`. For others `accept` reads and checks the request and
`answer` computes; in between, the caller may pass a job with `Job.slow` to another thread or process. `handle` does
both.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import UNSET

from dyn_service.api.lists import names_queries, row_of
from dyn_service.api.queries import COMPUTATIONS, QUERIES, Computation
from dyn_service.engine.computations import functions_of
from dyn_service.errors import (
    DynError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnimplementedError,
)
from dyn_service.kernels.compile_events import KernelMissingError
from dyn_service.model.order import Order
from dyn_service.service.protocol.arrays import describe_value, pack_output
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.protocol.messages import (
    ADMINISTRATION,
    VERSION,
    Reply,
    Request,
    RequestHead,
    RequestRefusedError,
    Role,
    Timing,
    encode,
    error_reply,
    new_epoch,
    peek,
    read_request,
)
from dyn_service.service.server.administration.access import Caller
from dyn_service.service.server.administration.audit import record_done
from dyn_service.service.server.administration.metrics import Metrics
from dyn_service.service.server.answering.bounds import check_cost, meter, predict_cost
from dyn_service.service.server.answering.finite import NotFinite, defect, explain_computation, first_not_finite
from dyn_service.service.server.answering.jobs import CompileClock, Job, Task, cancelled_error, due_ns, late_error
from dyn_service.service.server.answering.plan import (
    SLOW_BYTES,
    SLOW_WORK_S,
    check_quaternions,
    decode_fast_request,
    read_inputs,
    read_options,
)
from dyn_service.service.server.answering.registry import Administrator, Registry, Served
from dyn_service.support.suggestions import known_instead

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot


_LOG = logging.getLogger(__name__)


_NO_SIZES: Mapping[str, int] = {}  # the sizes for computations without a robot


def compute(
    registry: Registry, row: Computation, request: Request, limits: RequestLimits, check: Callable[[], None]
) -> dict[str, Any]:
    """Returns the packed outputs of a computation, by name, or raises a `DynError`.

    `check` raises one if the client no longer waits.
    """
    served = registry.get(request.robot, request.model) if row.robot else None
    robot = None if served is None else served.robot
    inputs, order = _read_inputs(row, request, served)
    options = read_options(row, request.options or {})
    # from sizes, before any work or memory is spent on the request
    cost = predict_cost(row, _NO_SIZES if robot is None else robot.sizes, inputs, options)
    check_cost(row, cost, limits)
    if robot is not None:
        check_quaternions(row, inputs, robot)
    progress = meter(row, limits, check)
    try:
        outputs = _outputs(row, robot, inputs, options, progress)
    except DynError as error:
        error.path = _path_on_wire(row, error.path)
        raise
    except np.linalg.LinAlgError:
        raise FailedPreconditionError(
            f"{row.name} has no answer: a matrix of its equations is singular at a state of the request"
        ) from None
    arrays = {name: value if name in row.labels else np.asarray(value) for name, value in outputs.items()}
    if order is not None:
        arrays = order.outward(row, arrays)
    return {name: pack_output(value) for name, value in arrays.items()}


def _read_inputs(row: Computation, request: Request, served: Served | None) -> tuple[dict[str, Any], Order | None]:
    prescribed = (request.options or {}).get("joints")
    return read_inputs(row, request.inputs or {}, None if served is None else served.orders, prescribed)


def _path_on_wire(row: Computation, path: str | None) -> str | None:
    """Translates the path of an argument of the method to that in the request: `q0` is `inputs.q`."""
    head = re.match(r"\w*", path or "")[0]  # type: ignore[index]  # always matches
    name = row.parameters.get(head)
    if path is None or name is None:
        return path
    if name in row.options:
        return f"options.{name}{path[len(head) :]}"
    return f"inputs.{name}" + ("" if row.inputs[name].kind == "motions" else path[len(head) :])


def _outputs(
    row: Computation, robot: Any, inputs: dict[str, Any], options: dict[str, Any], progress: Callable[[float], None]
) -> Mapping[str, Any]:
    """Computes an answer, or the part of one that a request asks for."""
    by_wire_name = {**inputs, **options}
    if robot is not None:
        robot = robot.for_computation(row, by_wire_name)
    functions = functions_of(row)
    if functions.part is not None:
        inputs, options = ({name: by_wire_name[name] for name in x if name in by_wire_name} for x in (inputs, options))
        return functions.part(robot, inputs, options, progress)
    arguments = {parameter: by_wire_name[name] for parameter, name in row.parameters.items() if name in by_wire_name}
    result = functions.run(*([] if robot is None else [robot]), **arguments)
    if row.output is not None and not isinstance(result, dict):
        return {row.output: result}
    return result if isinstance(result, dict) else {name: getattr(result, name) for name in row.result_names}


_SERVER_ITSELF = Caller("the server, because it was unused", Role.LOAD)  # unloads expired robots


def is_query(name: str) -> bool:
    """Returns whether a query of that name exists."""
    return names_queries(name) or name in COMPUTATIONS or name in ADMINISTRATION


def names_robot(query: str) -> bool:
    """Returns whether a query is about the robot named in its request."""
    if query in ADMINISTRATION:
        return ADMINISTRATION[query].names_robot
    return names_queries(query) or (query in COMPUTATIONS and COMPUTATIONS[query].robot)


class Service:
    """Answers requests on a set of robots.

    allow_load: whether requests may load and unload robots. epoch: number of this run of the server in its replies.
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
        self.is_stopped: Callable[[], bool] = lambda: False
        """Returns whether the client of the request that is computed no longer waits."""
        self.administrator = Administrator(self.registry, self.metrics, self.limits, allow_load=allow_load)

    def expire(self, now_ns: int, in_use: Iterable[Any] = ()) -> None:
        """Unloads the robots unused for too long; see `Registry.expire`."""
        for served in self.registry.expire(now_ns, in_use):
            record_done(_SERVER_ITSELF, "unload_robot", served.robot.name, served.robot.fingerprint)

    @property
    def robots(self) -> dict[str, Robot]:
        """The served robots by name."""
        return {name: served.robot for name, served in self.registry.served.items()}

    def work(self, task: Task) -> bytes:
        """Returns the reply to a task. May take long."""
        if task.cancelled:
            return self.refuse_task(task, cancelled_error())
        if task.job is None:
            return self.handle(task.payload, task.received_ns, task.caller)
        if task.needs_kernel:
            task.needs_kernel = False
            self._excuse(task.job)  # `answer` makes it
        return self.answer(task.job)

    def refuse_task(self, task: Task, error: DynError) -> bytes:
        """Returns the refusal of a task, and counts it."""
        return self.refuse(task.head if task.head.id is not None else peek(task.payload), error)

    def handle(self, payload: bytes | memoryview, received_ns: int, caller: Caller | None = None) -> bytes:
        """Returns the reply to a request that arrived at `received_ns`, on the clock of `time.perf_counter_ns`."""
        job = self.accept(payload, received_ns, caller=caller)
        return job if isinstance(job, bytes) else self.answer(job)

    def answer_single_state(self, payload: bytes | memoryview, received_ns: int) -> bytes | None:
        """Returns the reply to a request on the fast path, see `plan.FastPath`; None for all others, valid or not.

        Only for the thread that owns the socket, because it counts without a lock.
        """
        try:
            # a second reader of the same bytes: with the slow path a round trip takes 1.3 to 1.7 times a bare echo
            request = decode_fast_request(payload)
            plan = self.registry.served[request.robot].plans[request.query]
            fast = plan.fast_path
            if fast is None or request.model not in plan.models:
                return None
            values = fast.read(request.inputs, request.options, self.limits.max_wrenches)
            started_ns = perf_counter_ns()
            waited_ns = started_ns - received_ns
            if values is None or (request.deadline_ms and waited_ns > request.deadline_ms * 1e6):
                return None
            outputs = fast.answer(values)
            if outputs is None:
                return None
            finished_ns = perf_counter_ns()
            duration_ns = finished_ns - received_ns
            late = True if request.deadline_ms and duration_ns > request.deadline_ms * 1e6 else UNSET
            timing = Timing(waited_ns / 1e3, (finished_ns - started_ns) / 1e3)
            reply = encode(Reply(VERSION, request.id, True, outputs, timing, UNSET, self.epoch, late))
        except (msgspec.MsgspecError, ValueError, KeyError, DynError, KernelMissingError):  # another form, or invalid
            return None
        except Exception:  # noqa: BLE001  # a defect: the slow path answers
            _LOG.exception("the fast path failed")
            return None
        fast.durations.add(duration_ns)
        fast.used_ns = finished_ns
        return reply if len(reply) <= self.limits.max_reply_bytes else None

    def accept(
        self, payload: bytes | memoryview, received_ns: int, excused_ns: int = 0, caller: Caller | None = None
    ) -> Job | bytes:
        """Returns the request, read and checked, or the reply that refuses it."""
        request: Request | None = None
        try:
            request = read_request(payload, self.limits)
            return self._check(request, len(payload), received_ns, excused_ns, caller)
        except RequestRefusedError as refusal:
            return self.refuse(refusal.head, refusal.error)
        except Exception as error:  # noqa: BLE001  # any failure becomes an error reply
            return self._fail(request, error)

    def answer(self, job: Job) -> bytes:
        """Returns the reply to an accepted request: its answer or an error."""
        reply = None if job.not_finite is not None else self.answer_at_once(job)
        if reply is not None:
            return reply
        try:
            cause: Exception = self._why_not_finite(job)
        except Exception as error:  # noqa: BLE001  # any failure becomes an error reply
            cause = error
        return self._fail(job.request, cause)

    def answer_at_once(self, job: Job) -> bytes | None:
        """As `answer`, but returns None if that takes time: the answer is not finite, or a kernel is missing.

        `kernels.compile_events` decides which kernels may be compiled meanwhile.
        """
        request = job.request
        started = perf_counter_ns()
        try:
            reply = self._compute(job, started)
            if reply is None:
                return None
        except KernelMissingError:
            return None
        except Exception as error:  # noqa: BLE001  # any failure becomes an error reply
            return self._fail(request, error)
        self.metrics.answered(request.query, perf_counter_ns() - job.received_ns)
        return reply

    def has_kernel(self, job: Job) -> bool:
        """Returns whether the kernel for the answer is loaded in this process."""
        plan = job.plan
        return plan is None or plan.has_kernel(job.inputs, job.options)

    def make_kernel(self, job: Job) -> None:
        """Makes the kernel for the answer; the time until then does not count against the deadline."""
        if job.plan is not None:
            with suppress(Exception):  # `answer` reports the same error
                job.plan.make_kernel(job.inputs, job.options)
            self._excuse(job)

    def _excuse(self, job: Job) -> None:
        """Excuses the time since the receipt of a job; that of compilations is counted by the clock."""
        now = perf_counter_ns()
        job.excused_ns = now - job.received_ns - self.clock.within_ns(job.received_ns, now)

    def refuse(self, request: Request | RequestHead, error: DynError) -> bytes:
        """Returns the refusal of a request, and counts it."""
        self.metrics.refused(request.query if is_query(request.query) else None, error.code)
        return error_reply(request.id, error, self.epoch)

    def _check(self, request: Request, length: int, received_ns: int, excused_ns: int, caller: Caller | None) -> Job:
        """Returns the job for a request, or raises a `DynError` if it is invalid or exceeds a limit."""
        query = request.query
        if query in ADMINISTRATION or query in COMPUTATIONS:
            slow = query in COMPUTATIONS or ADMINISTRATION[query].slow
            if query in ADMINISTRATION:
                self.administrator.check(request, caller)
            return Job(request, None, received_ns, excused_ns, slow=slow, caller=caller)
        try:
            row = QUERIES.get(query) or row_of(query)
        except UnimplementedError:
            hint = known_instead(query, (*QUERIES, *COMPUTATIONS, *ADMINISTRATION), "the queries are")
            raise UnimplementedError(f"there is no query '{query}'{hint}", path="query") from None
        served = self.registry.get(request.robot, request.model)
        plan = served.plans[row.name]
        inputs, order = read_inputs(row, request.inputs or {}, served.orders)
        check_quaternions(row, inputs, served.robot)
        option_values = dict(request.options or {})
        verify = (option_values.pop("verify") or False) if "verify" in option_values else False
        if type(verify) is not bool:
            raise InvalidArgumentError(
                f"verify must be true or false, found {describe_value(verify)}", path="options.verify"
            )
        options = read_options(row, option_values)
        cost = plan.cost(inputs, options, self.limits, verify=verify)
        slow = max(length, cost.reply_bytes) > SLOW_BYTES or cost.work_s > SLOW_WORK_S
        return Job(request, plan, received_ns, excused_ns, inputs, options, slow or verify, verify, order=order)

    def _compute(self, job: Job, started: int) -> bytes | None:
        """Returns the reply with the answer; None if the answer is not finite."""
        request, plan = job.request, job.plan
        waited = started - job.received_ns
        if self._is_late(job, started):
            raise late_error(request, waited, started=False)
        if plan is None:
            outputs = self._answer_planless(job)
        else:
            outputs = plan.answer(
                job.inputs, job.options, job.order, partial(self._check_awaited, job) if job.slow else None
            )
            plan.refresh(has_answered=True)
        job.not_finite = first_not_finite(outputs)
        if job.not_finite is not None:
            return None
        residuals = plan.verification(job.inputs, job.options) if plan is not None and job.verify else UNSET
        finished = perf_counter_ns()
        timing = Timing(waited / 1e3, (finished - started) / 1e3)
        late = True if self._is_late(job, finished) else UNSET
        reply = encode(Reply(VERSION, request.id, True, outputs, timing, residuals, self.epoch, late))
        if len(reply) > (limit := self.limits.max_reply_bytes):
            text = f"the answer takes {len(reply)} bytes, the limit is {limit}: ask for fewer states"
            raise ResourceExhaustedError(text)
        return reply

    def _check_awaited(self, job: Job) -> None:
        """Raises `DeadlineExceededError` if the client no longer waits; called between the parts of a computation."""
        now = perf_counter_ns()
        if self.is_stopped():
            raise cancelled_error()
        if self._is_late(job, now):
            raise late_error(job.request, now - job.received_ns, started=True)

    def _is_late(self, job: Job, now: int) -> bool:
        """Returns whether the request's deadline has passed."""
        if not job.request.deadline_ms:
            return False
        excused_ns = job.excused_ns + self.clock.within_ns(job.received_ns, now)
        due_time_ns = due_ns(job.request, job.received_ns, excused_ns)
        return due_time_ns is not None and now > due_time_ns

    def _why_not_finite(self, job: Job) -> DynError:
        """Returns why the answer is not finite. Computes only that one state of a batch."""
        plan, number = job.plan, job.not_finite
        assert number is not None
        if plan is None:
            return self._explain(job.request, number)
        return plan.explain(number, job.inputs, job.options, job.order)

    def _explain(self, request: Request, number: NotFinite) -> DynError:
        """Returns why an answer of a computation, or about the server, is not finite."""
        row = COMPUTATIONS.get(request.query)
        if row is None:
            return defect(request.query, number)
        served = self.registry.get(request.robot) if row.robot else None
        inputs, order = _read_inputs(row, request, served)
        if order is not None:
            number = replace(number, index=order.place(row, number.output, number.index))
        robot = None if served is None else served.robot
        return explain_computation(row, number, inputs, request.options or {}, robot)

    def _answer_planless(self, job: Job) -> dict[str, Any]:
        """Returns the outputs of a computation, or of a query about the server."""
        request = job.request
        row = COMPUTATIONS.get(request.query)
        if row is None:
            return self.administrator.answer(request, job.caller)
        return compute(self.registry, row, request, self.limits, partial(self._check_awaited, job))

    def _fail(self, request: Request | None, error: Exception) -> bytes:
        """Returns the error reply. Defects are logged, not sent to the client."""
        if isinstance(error, MemoryError):
            error = ResourceExhaustedError("the server has not enough memory for this request")
        if not isinstance(error, DynError):
            query = request.query if request is not None else "a request"
            _LOG.error("%s failed", query, exc_info=error, extra={"request": request and request.id})
            error = InternalError(f"the server failed to answer {query}; see its log")
        return self.refuse(request or RequestHead(), error)

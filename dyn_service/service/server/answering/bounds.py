"""Cost of a request, predicted from its query, sizes and shapes, and checked against the limits before computing.

Computations whose cost cannot be predicted, such as adaptive steps, are metered while they run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from time import thread_time_ns
from typing import Any

from dyn_service.api.cost import Cost, of_query
from dyn_service.api.queries import Query, Row
from dyn_service.api.spec import Computation, Dimensions
from dyn_service.engine.computations import functions_of
from dyn_service.errors import DeadlineExceededError, ResourceExhaustedError
from dyn_service.parsing.xml_elements import ReadLimits
from dyn_service.service.protocol.limits import RequestLimits


def predict_cost(row: Row, sizes: Dimensions, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Cost:
    """Returns the cost of a request with these decoded inputs and all options of the row; no robot has no sizes."""
    if isinstance(row, Query):
        return of_query(row, sizes, inputs, options)
    assert isinstance(row, Computation)
    cost: Cost = functions_of(row).cost(sizes, inputs, options)
    return cost


def check_cost(row: Row, cost: Cost, limits: RequestLimits) -> None:
    """Raises `ResourceExhaustedError` for a limit exceeded; names the request's size and cost, and what would fit."""
    counts = (
        (cost.segments, limits.max_segments, "segments", "inputs.mass"),
        (cost.wrenches, limits.max_wrenches, "wrenches", "inputs.wrenches"),
        (cost.contacts, limits.max_contacts, "contacts", "inputs.contacts"),
        (cost.steps, limits.max_steps, "steps", "options.steps"),
        (cost.states, limits.max_states, "states", "inputs"),
    )
    for count, max_count, name, path in counts:
        if count > max_count:
            text = f"{_size_text(row, cost)}; the limit is {max_count} {name} in one request{_hint(name)}"
            raise ResourceExhaustedError(text, path=path)
    amounts = (
        (cost.reply_bytes, limits.max_reply_bytes, "the answer takes {} bytes, the limit is {}"),
        (cost.bytes, limits.max_memory_bytes, "that takes {} bytes of memory, the limit is {}"),
        (cost.work_s, limits.max_work_s, "that takes about {:.3g} s of one core, the limit is {} s"),
    )
    for amount, limit, text in amounts:
        if amount > limit:
            message = f"{_size_text(row, cost)}: {text.format(amount, limit)}{_suggestion(cost, limit / amount)}"
            raise ResourceExhaustedError(message, path="options.steps" if cost.steps > 1 else "inputs")


def meter(
    row: Row,
    limits: RequestLimits,
    check_awaited: Callable[[], None] = lambda: None,
    clock: Callable[[], int] = thread_time_ns,
) -> Callable[[float], None]:
    """Returns a function that a computation calls with the fraction done; it raises when a limit is exceeded.

    The limits are the CPU time of this thread, `max_work_s` by `clock`, and that of `check_awaited`, which raises if
    the client no longer waits.
    """
    began: int | None = None

    def check(share: float) -> None:
        """Raises a `DynError` once the computation has used its CPU time or the deadline has passed."""
        nonlocal began
        # from the first call on, so that compilation does not count
        began = clock() if began is None else began
        if clock() - began > limits.max_work_s * 1e9:
            raise ResourceExhaustedError(
                f"{row.name} has worked for {limits.max_work_s:g} s, the limit, and is {share:.0%} done: ask for fewer "
                "steps or states in one request",
                path="options.steps",
            )
        try:
            check_awaited()
        except DeadlineExceededError as error:
            raise DeadlineExceededError(f"{error}, {share:.0%} done", path=error.path) from None

    return check


def read_limits(limits: RequestLimits) -> ReadLimits:
    """Returns the limits on a robot description sent by a client."""
    return ReadLimits(
        size=limits.max_urdf_bytes,
        elements=limits.max_xml_elements,
        depth=limits.max_xml_nesting,
        links=limits.max_links,
        joints=limits.max_joints,
    )


def _size_text(row: Row, cost: Cost) -> str:
    sizes = [f"{' x '.join(map(str, cost.lead))} states" if cost.lead else "one state"]
    sizes += [f"{cost.steps} steps"] if cost.steps else []
    if cost.segments:
        sizes = [f"{cost.segments} segments", f"{' x '.join(map(str, cost.lead)) or 'one'} frames"]
    sizes += [f"{cost.wrenches} wrenches"] if cost.wrenches else []
    sizes += [f"{cost.contacts} contacts"] if cost.contacts else []
    return f"{row.name} asks for {' and '.join(sizes) if len(sizes) < 3 else ', '.join(sizes)}"


def _suggestion(cost: Cost, share: float) -> str:
    """Returns how many steps or states would fit, if the cost grows with their number."""
    if cost.steps > 1 and (steps := math.floor(cost.steps * share)) >= 1:
        return f": at most {steps} steps fit into one request{_hint('steps')}"
    if cost.states > 1 and (states := math.floor(cost.states * share)) >= 1:
        return f": at most {states} {'frames' if cost.segments else 'states'} fit into one request"
    return ": ask for less"


def _hint(name: str) -> str:
    return ", continue from the last state in the next" if name == "steps" else ""

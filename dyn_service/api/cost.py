"""Predicts the cost of an answer from its row of the table, the robot's sizes and the shapes of the inputs.

Rows specify how their cost grows (`Query.cost_exponent`, `Computation.cost`); here are the unit and the parts that all
have. Work is in seconds of one core as it was when the figures below were measured: a prediction that is right within
a factor of some, which is what a limit needs. Nothing is computed from the numbers in the inputs, and nothing as large
as they are is made. A server compares the predicted cost with its limits before it computes anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from dyn_service.api.arguments import Overlay, Wrench, mapped
from dyn_service.api.named import lead_of
from dyn_service.api.spec import BY_NAME, Dimensions, Query, Spec

BODY_S = 5e-9
"""Cost of a step of a compiled sweep at one body for one state."""

CUBE_S = 1e-10
"""Cost of one of the n^3 steps of factoring or multiplying matrices with n rows."""

NUMBER_S = 3e-9
"""Cost of writing one number of an answer."""

CALL_S = 3e-5
"""Cost of a call of a kernel from Python, independent of its size."""

WRENCH_S, WRENCH_STATE_S = 5e-5, 2e-7
"""Cost of an external wrench, and of rotating it for each state."""

OVERLAY_S, OVERLAY_BODY_S, OVERLAY_WORK, OVERLAY_BYTES = 5e-4, 1e-6, 1.0, 1024
"""Reading an overlay; of each robot that it speaks of a link's inertia, and the memory that takes; and how much more a
kernel does that takes numbers as inputs, as a share of one that has them.
"""

TURN_S, TURN_NUMBER_S = 2e-4, 3e-8
"""Cost of rotating an answer into world axes, and of each of its numbers."""

COPIES = 3
"""Number of copies of an answer in memory: arrays, bytes, and the reply."""

Lead = tuple[int, ...]
"""Leading axes of a batch."""


class Cost(NamedTuple):
    """The predicted cost of an answer.

    work_s: s of one core. bytes: of memory, the reply's among them. reply_bytes: of the answer's arrays. lead: the
    batch. steps: of a motion, the first record's among them. segments: of a gait chain. wrenches: external ones.
    contacts: points that meet planes.
    """

    work_s: float
    bytes: int
    reply_bytes: int
    lead: Lead = ()
    steps: int = 0
    segments: int = 0
    wrenches: int = 0
    contacts: int = 0

    @property
    def states(self) -> int:
        """The number of states of the batch; an axis of length 0 counts as 1, so that it does not hide other
        factors.
        """
        return count(self.lead)

    def plus(self, other: Cost) -> Cost:
        """Returns this cost with the work and memory of another part of the same request added."""
        return self._replace(work_s=self.work_s + other.work_s, bytes=self.bytes + other.bytes)


def count(lead: Lead) -> int:
    """Returns the number of states of a batch; an axis of length 0 counts as 1."""
    # A zero would hide the product of the other axes, which NumPy still broadcasts.
    return math.prod([size or 1 for size in lead])


def leading(shapes: Iterable[Lead]) -> Lead:
    """Returns the broadcast leading axes; if they do not broadcast, which the answer reports, those of the largest."""
    with_axes = [shape for shape in shapes if shape]
    if not with_axes:
        return ()
    try:
        return np.broadcast_shapes(*with_axes)
    except ValueError:
        return max(with_axes, key=count)


def of_query(row: Query, sizes: Dimensions, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Cost:
    """Predicts the cost of a row of `QUERIES`.

    Args:
        row: What is asked.
        sizes: The robot's.
        inputs: As they were read: arrays and wrenches.
        options: All of the row's.
    """
    wrenches_name, numbers = row.wrenches, answer_numbers(row, sizes, options)
    leads = leads_of(row, inputs)
    wrenches = inputs.get(wrenches_name, ()) if wrenches_name is not None else ()
    per_state = numbers
    if wrenches:
        per_state = max(per_state, 6 * sizes["nl"])  # the wrenches on all links are another array
    has_overlay = row.overlay is not None and row.overlay in inputs
    # Each robot of an overlay is read into trees of its own, also where all have the same state.
    robots = count(leads[row.overlay or ""]) if has_overlay else 1
    lead = leading(leads.values())
    states, n = count(lead), sizes["nl"]
    method = row.method(options)
    work = states * numbers * NUMBER_S
    for part, choice in row.choices(method) if row.parts else ((row, method),):
        # With mimic joints, queries with the inverse of M factor it.
        factored = choice in part.inverts_mass_matrix and sizes["nr"] > sizes["nv"]
        exponent = 3 if factored else part.cost_exponent[choice]
        work += states * (n * BODY_S + (n**3 * CUBE_S if exponent > 1 else 0.0))
    # A wrench has a cost of its own, because its object is read and checked once for all states.
    work += CALL_S + len(wrenches) * (WRENCH_S + states * WRENCH_STATE_S)
    rotated = row.in_world_axes(options)
    if rotated:
        work += TURN_S + states * numbers * TURN_NUMBER_S
    if has_overlay:
        work += OVERLAY_S + OVERLAY_WORK * states * n * BODY_S + robots * n * OVERLAY_BODY_S
    reply = 8 * states * per_state
    memory = COPIES * reply + _given_bytes(inputs.values()) + (8 * states * 24 * n if rotated or wrenches else 0)
    memory += robots * n * OVERLAY_BYTES if has_overlay else 0
    return Cost(work, memory, reply, lead, wrenches=len(wrenches))


def leads_of(row: Query, inputs: Mapping[str, Any]) -> dict[str, Lead]:
    """Returns the leading axes of each input; names as in `names_of`."""
    leads: dict[str, Lead] = {}
    for name, value in inputs.items():
        spec = row.inputs[name]
        if value.__class__ is np.ndarray:
            leads[name] = value.shape[:-1]
        elif spec.kind in BY_NAME:
            leads[name] = lead_of(spec.kind, value)
        elif spec.kind == "wrenches":
            leads[name] = leading(wrench_shapes([value] if isinstance(value, Wrench) else value or (), 1))
        elif value is not None:
            leads[name] = overlay_lead(value) if spec.kind == "overlay" else given_shape(value, len(spec.shape))
    return leads


def overlay_lead(overlay: Overlay | None) -> Lead:
    """Returns the leading axes of an overlay: one entry for each robot."""
    if overlay is None:
        return ()
    shapes: list[Lead] = []

    # `mapped` visits every array of an overlay; the copy that it makes is dropped.
    def note(value: Any, axes: int, _: str) -> Any:
        shapes.append(given_shape(value, axes))
        return value

    mapped(overlay, note)
    return leading(shapes)


def answer_numbers(row: Query, sizes: Dimensions, options: Mapping[str, Any] | None = None) -> int:
    """Returns the number of entries in the answer for one state; of all rows if no option selects some."""
    selected_rows = None if row.rows_option is None or options is None else options[row.rows_option]
    per_state = sum(math.prod(spec.dims(sizes)) for spec in row.outputs.values())
    if selected_rows is None:
        return per_state
    # All rows are computed, and the named ones are copied from them, each as often as it is named.
    return max(
        per_state, sum(_rows(spec, sizes, row.row_dimension, len(selected_rows)) for spec in row.outputs.values())
    )


def wrench_shapes(wrenches: Iterable[Wrench], axes: int) -> list[Lead]:
    """Returns the leading axes of external wrenches, whose vectors have `axes` trailing axes."""
    vectors = [np.shape(part) for w in wrenches for part in (w.torque, w.force, w.point)]
    return [shape[: len(shape) - axes] for shape in vectors if len(shape) > axes]


def given_shape(value: Any, axes: int) -> Lead:
    """Returns the leading axes of an input with `axes` trailing axes; none if it is None."""
    return () if value is None else tuple(np.shape(value)[: max(np.ndim(value) - axes, 0)])


def _rows(spec: Spec, sizes: Dimensions, selected: str | None, rows: int) -> int:
    dims = spec.dims(sizes)
    return math.prod(rows if symbol == selected else size for symbol, size in zip(spec.shape, dims, strict=True))


def _given_bytes(values: Iterable[Any]) -> int:
    return sum(value.nbytes for value in values if isinstance(value, np.ndarray | np.generic))

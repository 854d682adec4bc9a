"""Calls of rows, resolved once for each combination of options.

The first call of a combination is evaluated and checked step by step (`Robot._evaluate`). Later ones run the kernel
directly: by its direct call, and by its gufunc for several leading axes. They return None for arguments that need the
evaluation, such as invalid ones, which only the evaluation reports.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

import numpy as np

from dyn_service.api.arrays import kernel_input
from dyn_service.api.queries import Array, Overlay, Query
from dyn_service.kernels.jit import host
from dyn_service.kernels.signature import Signature

Call = Callable[[tuple[Any, ...], tuple[Any, ...]], Any]
"""The required and the optional arguments of a row -> its result, or None."""

Finish = Callable[[Any, tuple[Any, ...]], Any]
"""The outputs of a kernel and the required arguments of a row -> its result."""

MOST_COMBINATIONS = 64
"""Combinations of options kept for each row; if there are more, such as ever new selections, all are resolved anew."""

MOST_VIEWS, MOST_ROBOTS = 64, 64
"""Robots with overlays kept for each robot, and the number of robots that one of them may contain: some megabytes."""


PART_BYTES = 1 << 23
"""Bytes of machine code that a thread runs at least, once for each vector of states: some 0.1 ms."""


@lru_cache(maxsize=4)
def _threads(process: int, workers: int) -> ThreadPoolExecutor:
    """Returns the threads of this process; a forked one has its own."""
    return ThreadPoolExecutor(workers, thread_name_prefix="dyn_service")


@dataclass(frozen=True, eq=False)
class BoundCall:
    """A row with chosen options: its kernels, and the conversion of arguments to their inputs.

    kernel: the gufunc without external wrenches; None if it is not loaded. direct, with_wrenches: its direct calls
    without and with external wrenches (`kernels.direct`). operands: the inputs of `kernel` after the required ones:
    index among the optional arguments, -1 if no argument sets it, and the array that replaces None. vectors: by index
    of a required argument that may be one number, the shape of its vector. still: indices of the required arguments
    that must be 0 for the entries `locked`. finish: outputs of a kernel and required arguments -> result; None if the
    output is the result. loaded: the kernels that were loaded when the row was bound. signature: that of `kernel`.
    size: bytes of its machine code.
    """

    kernel: np.ufunc | None
    direct: Call | None
    with_wrenches: Call | None
    operands: Sequence[tuple[int, Array]]
    vectors: Mapping[int, tuple[int, ...]]
    still: Sequence[int]
    locked: Sequence[int]
    finish: Finish | None
    loaded: object
    signature: Signature
    size: int

    def moves(self, given: tuple[Any, ...]) -> bool:
        """Returns whether a locked joint moves."""
        for k in self.still:
            x = kernel_input(given[k])
            if x.ndim == 1:
                if any(map(x.item, self.locked)):
                    return True
            elif x.take(self.locked, -1).any():
                return True
        return False

    def convert(self, given: tuple[Any, ...], others: tuple[Any, ...], *, has_wrenches: bool) -> Any:
        """Returns the outputs of the kernel for arguments that the direct call does not accept; None if it cannot.

        Args:
            given: The required arguments.
            others: The optional arguments.
            has_wrenches: Whether these contain external wrenches.
        """
        inputs, added = self._converted(given, others)
        direct = self.with_wrenches if has_wrenches else self.direct
        answer = None if direct is None else direct(inputs, added)
        if answer is not None or has_wrenches or self.kernel is None:
            return answer
        rest = [default if k < 0 or added[k] is None else added[k] for k, default in self.operands]
        return self.kernel(*inputs, *rest)

    def _converted(self, given: tuple[Any, ...], others: tuple[Any, ...]) -> tuple[tuple[Array, ...], tuple[Any, ...]]:
        inputs, added = [*map(kernel_input, given)], list(others)
        for k, shape in self.vectors.items():
            if not inputs[k].ndim:
                inputs[k] = np.full(shape, inputs[k][()])
        for k, _ in self.operands:
            if k >= 0 and others[k] is not None:
                added[k] = kernel_input(others[k])
        return tuple(inputs), tuple(added)

    def in_threads(self, given: tuple[Any, ...], others: tuple[Any, ...], workers: int) -> Any:
        """Returns the outputs of the kernel, computed in several threads; None if it cannot.

        Args:
            given: The required arguments.
            others: The optional arguments, without wrenches and overlays.
            workers: The largest number of threads.
        """
        inputs, added = self._converted(given, others)
        rest = [default if k < 0 or added[k] is None else added[k] for k, default in self.operands]
        arrays, operands, lanes = (*inputs, *rest), self.signature.inputs, host().lanes
        many = [array.ndim > len(operand.shape) for array, operand in zip(arrays, operands, strict=True)]
        leads = {
            array.shape[: array.ndim - len(operand.shape)] for array, operand in zip(arrays, operands, strict=True)
        }
        if self.kernel is None or len(leads - {()}) != 1 or len(lead := max(leads)) != 1:
            return None
        states = lead[0]
        parts = max(1, min(workers, states // lanes * self.size // PART_BYTES))
        found = tuple(np.empty((states, *operand.shape)) for operand in self.signature.outputs)
        step = -(-states // (parts * lanes)) * lanes

        def compute(first: int) -> None:
            part = slice(first, first + step)
            chosen = (array[part] if each else array for array, each in zip(arrays, many, strict=True))
            self.kernel(*chosen, out=tuple(array[part] for array in found))  # type: ignore[misc]

        # Each with the caller's `numpy.errstate`.
        running = [
            _threads(os.getpid(), workers).submit(copy_context().run, compute, k) for k in range(0, states, step)
        ]
        for each in running:
            each.result()
        return found if len(found) > 1 else found[0]


class RowCalls:
    """The bound calls of one row of a robot.

    call: the call of the row, with any options; it returns None if these are not bound.

    Args:
        row: The row.
        names: By index of a required argument, the input for each name.
        views: The robots with overlays.
    """

    call: Call

    def __init__(self, row: Query, names: Mapping[int, Mapping[str, Array]], views: Views) -> None:
        self._row, self._names, self._views = row, names, views
        self._key = _key_of(row)
        self._bound: dict[Hashable, BoundCall] = {}
        self._defaults = self._key(row.defaults)
        self._prefer(None, None, None)

    def bound(self, others: tuple[Any, ...]) -> BoundCall | None:
        """Returns the call that is bound for the options among these optional arguments."""
        return self._bound.get(self._key(others))

    def bind(
        self, others: tuple[Any, ...], bound: BoundCall, direct: Call | None = None, with_wrenches: Call | None = None
    ) -> None:
        """Binds the options among these optional arguments.

        Args:
            others: The optional arguments.
            bound: The call with these options.
            direct: Its direct call, which returns None for other options. With default options it is tried first,
                because it is faster than finding the combination.
            with_wrenches: The same with external wrenches.
        """
        if len(self._bound) >= MOST_COMBINATIONS:
            self._bound.clear()
        key = self._key(others)
        self._bound[key] = bound
        if key == self._defaults:
            self._prefer(direct, with_wrenches, bound.finish)

    def with_threads(self, workers: int) -> Call:
        """Returns `call`, or a call that computes large batches in several threads."""
        if workers == 1:
            return self.call

        def call(given: tuple[Any, ...], others: tuple[Any, ...]) -> Any:
            answer = self._in_threads(given, others, workers)
            return self.call(given, others) if answer is None else answer

        return call

    def _in_threads(self, given: tuple[Any, ...], others: tuple[Any, ...], workers: int) -> Any:
        """Returns the result of a large batch; None for all other arguments."""
        if given[0].__class__ is not np.ndarray or given[0].ndim != 2:
            return None
        try:
            bound = self._bound.get(self._key(others))
            if bound is None or len(given[0]) // host().lanes * bound.size < 2 * PART_BYTES:
                return None
            apart = (
                others[k] for k, name in enumerate(self._row.others) if name in (self._row.wrenches, self._row.overlay)
            )
            given = tuple(self._names[k][x] if k in self._names else x for k, x in enumerate(given))
            if any(value is not None for value in apart) or (bound.still and bound.moves(given)):
                return None
            answer = bound.in_threads(given, others, workers)
        except (LookupError, TypeError, ValueError):
            return None
        return answer if answer is None or bound.finish is None else bound.finish(answer, given)

    def _prefer(self, direct: Call | None, with_wrenches: Call | None, finish: Finish | None) -> None:
        """Sets `call`, which tries these direct calls with default options first."""
        names, bound, key, view_with = self._names, self._bound, self._key, self._views.known
        row, place = self._row.name, {name: k for k, name in enumerate(self._row.others)}
        special = (self._row.overlay, self._row.wrenches, self._row.first("gravity"), self._row.leaves_out)
        overlay, wrenches, gravity, passive = (place.get(name or "", -1) for name in special)

        def call(given: tuple[Any, ...], others: tuple[Any, ...]) -> Any:
            try:
                if names:
                    given = tuple(names[k][x] if k in names else x for k, x in enumerate(given))
                has_wrenches = wrenches >= 0 and others[wrenches] is not None
                first = with_wrenches if has_wrenches else direct
                if first is not None:
                    answer = first(given, others)
                    if answer is not None:
                        return answer if finish is None else finish(answer, given)
                if overlay >= 0 and others[overlay] is not None:
                    changed = others[overlay]
                    view = view_with(changed)
                    if (
                        view is None
                        or row not in view.bound_calls
                        or (gravity >= 0 and others[gravity] is not None and changed.gravity is not None)
                        or (passive >= 0 and others[passive] is not True and changed.joints)
                    ):
                        return None
                    return view.bound_calls[row](given, (*others[:overlay], None, *others[overlay + 1 :]))
                chosen = bound.get(key(others))
                if chosen is None or (chosen.still and chosen.moves(given)):
                    return None
                first = chosen.with_wrenches if has_wrenches else chosen.direct
                answer = None if first is None else first(given, others)
                if answer is None:
                    answer = chosen.convert(given, others, has_wrenches=has_wrenches)
                    if answer is None:
                        return None
            except (LookupError, TypeError, ValueError):
                return None
            return answer if chosen.finish is None else chosen.finish(answer, given)

        self.call = call


def _key_of(row: Query) -> Callable[[tuple[Any, ...]], Hashable]:
    """Returns the function from the optional arguments of a row to a key that is equal for equal options and names.

    It contains the types, since True equals 1. It raises TypeError for values that no option has.
    """
    by_name = {*row.by_name, *(name for name, option in row.options.items() if option.type == "names")}
    places = [k for k, name in enumerate(row.others) if name in row.options or name in by_name]
    lists = [k for k in places if row.others[k] in by_name]
    if not places:
        return lambda others: None
    if len(places) == 1 and not lists:
        only = places[0]
        return lambda others: (others[only], others[only].__class__)
    pick = itemgetter(*places) if len(places) > 1 else lambda others: (others[places[0]],)

    def key(others: tuple[Any, ...]) -> Hashable:
        for k in lists:
            names = others[k]
            if names is not None:
                if names.__class__ is not list and names.__class__ is not tuple:
                    raise TypeError
                others = (*others[:k], tuple(names), *others[k + 1 :])
        values = pick(others)
        return values, tuple(map(type, values))

    return key


class Views:
    """The robots with an overlay that were used last, by the overlay itself and by its content."""

    def __init__(self) -> None:
        self._by_content: dict[Hashable, Any] = {}
        self._by_id: dict[int, tuple[Overlay, Any]] = {}  # with the overlay, so that no other one has its number

    def find(self, overlay: Overlay) -> Any:
        """Returns the robot with an overlay of this content; None if there is none."""
        if (known := self.known(overlay)) is not None:
            return known
        try:
            view = self._by_content.get(overlay.content)
        except TypeError:
            return None
        if view is not None:
            self._keep(overlay, view)
        return view

    def get(self, overlay: Overlay, make: Callable[[], Any]) -> Any:
        """Returns the robot with an overlay; `make` makes it."""
        view = self.find(overlay)
        if view is None:
            view = make()
            self._keep(overlay, view)
        return view

    def _keep(self, overlay: Overlay, view: Any) -> None:
        if math.prod(view.lead) <= MOST_ROBOTS:
            for kept in (self._by_content, self._by_id):
                if len(kept) >= MOST_VIEWS:
                    kept.clear()
            with suppress(TypeError):  # it may change
                self._by_content[overlay.content] = view
                self._by_id[id(overlay)] = overlay, view

    def known(self, overlay: Overlay) -> Any:
        """Returns the robot with this overlay; None if it is not kept."""
        known = self._by_id.get(id(overlay))
        return None if known is None else known[1]

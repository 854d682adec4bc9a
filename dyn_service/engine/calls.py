"""Calls of rows, resolved once for each combination of options.

`Robot._evaluate` checks and evaluates the first call of a combination step by step, and the combination is then bound:
later calls run the kernel by its direct call, or by its gufunc for arguments that the direct call refuses. A bound call
returns None for arguments that need `Robot._evaluate`, such as invalid ones, which only it reports.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import Any

import numpy as np

from dyn_service.api.arguments import with_vectors
from dyn_service.api.arrays import kernel_input
from dyn_service.api.outputs import MAX_WORKERS
from dyn_service.api.queries import Array, Overlay, Query, Wrench
from dyn_service.kernels.direct import DirectCall
from dyn_service.kernels.jit import host
from dyn_service.kernels.signature import Signature
from dyn_service.support import buffers
from dyn_service.support.buffers import LARGE_BYTES

Call = Callable[[tuple[Any, ...], tuple[Any, ...]], Any]
"""The required and the optional arguments of a row -> its result; None for arguments that need `Robot._evaluate`."""

Out = tuple[Array | None, ...]
"""The array of each output, or None for a new one."""

Finish = Callable[[Any, tuple[Any, ...]], Any]
"""The outputs of a kernel and the required arguments of a row -> its result."""

MAX_COMBINATIONS = 64
"""Combinations of options bound for each row; one more clears them all."""

MAX_CACHED, MAX_ROBOTS = 64, 64
"""Overlaid robots cached for each robot, and the number of robots that one of them may contain: some megabytes."""

PART_BYTES = 1 << 23
"""Least work of a thread, in bytes of machine code run for its vectors of states (`Loop.work` for each): some 0.4 ms,
see `kernels.direct.HELD_BYTES`.
"""

_THREADS_FROM = 1 << 12
"""Number of states from which threads are considered; fewer if the code of a bound kernel is long."""


@lru_cache(maxsize=1)
def _threads(process: int) -> ThreadPoolExecutor:
    """Returns the thread pool of this process; a forked one has its own. Threads start when they are needed."""
    return ThreadPoolExecutor(MAX_WORKERS, thread_name_prefix="dyn_service")


@dataclass(frozen=True, eq=False)
class BoundCall:
    """A row with chosen options: its kernels, and the conversion of arguments to their inputs.

    kernel: the gufunc without external wrenches; None if it is not loaded. direct, with_wrenches: its direct calls
    without and with external wrenches (`kernels.direct`). operands: for each input of `kernel` after the required ones,
    its index among the optional arguments, -1 if no argument sets it, and the array that replaces None. vectors: by
    index of a required argument that may be one number, the shape of its vector. still: indices of the required
    arguments whose entries `locked` must be 0. finish: outputs of a kernel and required arguments -> result; None if
    the output is the result. in_place: whether the result consists of the output arrays as they are. loaded: the
    variants whose kernels were loaded when the row was bound. signature: that of `kernel`. work: see `Loop.work`.
    """

    kernel: np.ufunc | None
    direct: DirectCall | None
    with_wrenches: DirectCall | None
    operands: Sequence[tuple[int, Array]]
    vectors: Mapping[int, tuple[int, ...]]
    still: Sequence[int]
    locked: Sequence[int]
    finish: Finish | None
    in_place: bool
    loaded: object
    signature: Signature
    work: int

    @property
    def threads_from(self) -> int:
        """The number of states from which two threads compute a batch."""
        return -(-2 * PART_BYTES // max(self.work, 1)) * host().lanes

    def _moves(self, given: tuple[Any, ...]) -> bool:
        """Whether a locked joint moves."""
        for k in self.still:
            x = kernel_input(given[k])
            if x.ndim == 1:
                if any(map(x.item, self.locked)):
                    return True
            elif x.take(self.locked, -1).any():
                return True
        return False

    def answer(
        self, given: tuple[Any, ...], others: tuple[Any, ...], wrenches: int, out: Out = (), workers: int = 1
    ) -> Any:
        """Returns the outputs of the kernel; None for arguments that need `Robot._evaluate`.

        Args:
            given: The required arguments.
            others: The optional arguments; an overlay among them is not read.
            wrenches: The index of the external wrenches among the optional arguments; -1: without wrenches.
            out: The array of each output, or None for a new one; () if all are new.
            workers: The largest number of threads.
        """
        if self.still and self._moves(given):
            return None
        kernel, direct = (self.kernel, self.direct) if wrenches < 0 else (None, self.with_wrenches)
        is_new = workers == 1 and not out
        if direct is not None and is_new and self._is_large(given[0]):
            shapes = [(len(given[0]), *operand.shape) for operand in self.signature.outputs]
            answer = direct(given, others, tuple(map(buffers.empty, shapes)))
            if answer is not None:
                return answer
            if kernel is not None:
                direct = None  # it may have computed the result, and dropped it because of a status flag
        inputs, optional = self._converted(given, others)
        if wrenches >= 0:
            optional = (*optional[:wrenches], _in_doubles(optional[wrenches]), *optional[wrenches + 1 :])
        if direct is not None and is_new:
            answer = direct(inputs, optional)
            if answer is not None:
                return answer
        further = [default if k < 0 or optional[k] is None else optional[k] for k, default in self.operands]
        arrays, operands = (*inputs, *further), self.signature.inputs
        leads = [x.shape[: x.ndim - len(operand.shape)] for x, operand in zip(arrays, operands, strict=True)]
        lead = max(leads, key=len)
        states = lead[0] if len(lead) == 1 else 0
        if any(own not in (lead, ()) for own in leads):
            lead, states = np.broadcast_shapes(*leads), 0
        shapes = [(*lead, *operand.shape) for operand in self.signature.outputs]
        parts = min(workers, states // host().lanes * self.work // PART_BYTES) if workers > 1 else 1
        of_wrenches = [*_arrays_of(optional[wrenches])] if wrenches >= 0 and (out or parts > 1) else []
        if parts > 1 and any(x.ndim > 1 and len(x) != states for x in of_wrenches):
            return None
        if out:
            results = tuple(buffers.empty(s) if x is None else x for s, x in zip(shapes, out, strict=True))
            read = (*arrays, *of_wrenches)
            disjoint = not any(np.may_share_memory(x, y) for k, x in enumerate(results) for y in (*read, *results[:k]))
            if any(array.shape != shape for array, shape in zip(results, shapes, strict=True)):
                return None
        elif parts < 2 and 8 * sum(map(math.prod, shapes)) < LARGE_BYTES:
            return None if kernel is None else kernel(*arrays)
        else:
            results, disjoint = tuple(map(buffers.empty, shapes)), True

        def run(part: slice) -> bool:
            own = [x[part] if axes else x for x, axes in zip(arrays, leads, strict=True)]
            out = tuple(x[part] for x in results)
            if kernel is not None:
                kernel(*own, out=out)
                return True
            rest = _part(optional, wrenches, part)
            for x, (k, _) in zip(own[len(inputs) :], self.operands, strict=True):
                if k >= 0 and rest[k] is not None:
                    rest[k] = x
            return direct is not None and direct(tuple(own[: len(inputs)]), tuple(rest), out) is not None

        if parts > 1 and disjoint:
            if not in_threads(run, states, parts):
                return None
        elif direct is None or not disjoint or direct(inputs, optional, results) is None:
            if kernel is None:
                return None
            kernel(*arrays, out=results)
        return results if len(results) > 1 else results[0]

    @cached_property
    def _result_bytes(self) -> int:
        """Bytes of the result for one state."""
        return 8 * sum(operand.size for operand in self.signature.outputs)

    def _is_large(self, first: Any) -> bool:
        """Whether the result is large. first: the first required argument."""
        return first.__class__ is np.ndarray and first.ndim == 2 and len(first) * self._result_bytes >= LARGE_BYTES

    def _converted(self, given: tuple[Any, ...], others: tuple[Any, ...]) -> tuple[tuple[Array, ...], tuple[Any, ...]]:
        inputs, optional = [*map(kernel_input, given)], list(others)
        for k, shape in self.vectors.items():
            if not inputs[k].ndim:
                inputs[k] = np.full(shape, inputs[k][()])
        for k, _ in self.operands:
            if k >= 0 and others[k] is not None:
                optional[k] = kernel_input(others[k])
        return tuple(inputs), tuple(optional)


def in_threads(compute: Callable[[slice], bool], states: int, parts: int) -> bool:
    """Computes a batch in parts, each in a thread with the caller's `numpy.errstate`; returns whether all succeeded.

    Args:
        compute: Computes the states of a slice; returns whether it succeeded.
        states: The number of states.
        parts: The number of parts. The calling thread computes the last one.
    """
    lanes = host().lanes
    step = -(-states // (parts * lanes)) * lanes
    *others, own = (slice(first, min(first + step, states)) for first in range(0, states, step))
    futures: list[Future[bool]] = []
    try:
        futures.extend(_threads(os.getpid()).submit(copy_context().run, compute, part) for part in others)
        succeeded = compute(own)
    finally:
        wait(futures)  # no thread writes into an array of the caller after its call
    results = [future.result() for future in futures]
    return succeeded and all(results)


def _arrays_of(wrenches: Any) -> Iterator[Array]:
    """Yields the arrays in external wrenches. Raises TypeError for an object that is no `Wrench`."""
    for wrench in [wrenches] if isinstance(wrenches, Wrench) else wrenches:
        if not isinstance(wrench, Wrench):
            raise TypeError
        yield from (x for x in (wrench.torque, wrench.force, wrench.point) if isinstance(x, np.ndarray))


def _in_doubles(wrenches: Any) -> Any:
    """Returns external wrenches whose arrays are doubles."""
    if all(x.dtype == np.float64 for x in _arrays_of(wrenches)):
        return wrenches
    return with_vectors(wrenches, kernel_input)


def _are_apart(out: Out, wrenches: Any) -> bool:
    """Returns whether no array of the result shares memory with external wrenches."""
    arrays = [array for array in out if array is not None]
    return not (arrays and any(np.may_share_memory(x, y) for y in _arrays_of(wrenches) for x in arrays))


def _part(others: tuple[Any, ...], wrenches: int, part: slice) -> list[Any]:
    """Returns the optional arguments with the wrenches on some states."""

    def of_part(x: Any) -> Any:
        return x[part] if isinstance(x, np.ndarray) and x.ndim > 1 else x

    return [*others[:wrenches], with_vectors(others[wrenches], of_part), *others[wrenches + 1 :]]


class RowCalls:
    """The bound calls of one row of a robot.

    call: the call of the row with any options; it returns None if they are not bound.

    Args:
        row: The row.
        names: By index of a required argument that is a name, the kernel's input for each name.
        cache: The overlaid robots.
    """

    call: Call

    def __init__(self, row: Query, names: Mapping[int, Mapping[str, Array]], cache: OverlayCache) -> None:
        self._names = names
        self._key = _key_of(row)
        self._bound: dict[Hashable, BoundCall] = {}
        self._defaults = self._key(row.argument_defaults)
        self._threads_from = _THREADS_FROM
        place = {name: k for k, name in enumerate(row.optional_arguments)}
        special = (row.overlay, row.wrenches, row.first("gravity"), row.passive_option)
        self._overlay, self._wrenches, gravity, passive = (place.get(name or "", -1) for name in special)
        self._view = _view_with(cache, row.name, self._overlay, gravity, passive)
        self._prefer(None, None, None)

    def bound(self, others: tuple[Any, ...]) -> BoundCall | None:
        """Returns the call that is bound for the options among these optional arguments."""
        return self._bound.get(self._key(others))

    def bind(
        self,
        others: tuple[Any, ...],
        bound: BoundCall,
        checking: Call | None = None,
        checking_with_wrenches: Call | None = None,
    ) -> None:
        """Binds the options among these optional arguments.

        Args:
            others: The optional arguments.
            bound: The call with these options.
            checking: A direct call that compares the options itself and returns None for others. That of the default
                options is tried first, because this is faster than finding the combination.
            checking_with_wrenches: The same with external wrenches.
        """
        if len(self._bound) >= MAX_COMBINATIONS:
            self._bound.clear()
        key = self._key(others)
        self._bound[key] = bound
        self._threads_from = min(self._threads_from, bound.threads_from)
        if key == self._defaults:
            self._prefer(checking, checking_with_wrenches, bound.finish)

    def with_threads(self, workers: int) -> Call:
        """Returns `call`, or a call that computes large batches in several threads."""
        if workers == 1:
            return self.call

        def call(given: tuple[Any, ...], others: tuple[Any, ...]) -> Any:
            x = given[0]
            if x.__class__ is np.ndarray and x.ndim == 2 and len(x) >= self._threads_from:
                answer = self.into(given, others, (), workers)
                if answer is not None:
                    return answer
            return self.call(given, others)

        return call

    def into(self, given: tuple[Any, ...], others: tuple[Any, ...], out: Out, workers: int) -> Any:
        """Returns the result, written into arrays and computed in several threads; None if it is not bound.

        Args:
            given: The required arguments.
            others: The optional arguments.
            out: The array of each output, or None for a new one; () if all are new.
            workers: The largest number of threads.
        """
        try:
            if self._overlay >= 0 and others[self._overlay] is not None:
                calls = self._view(others)
                others = (*others[: self._overlay], None, *others[self._overlay + 1 :])
                return None if calls is None else calls.into(given, others, out, workers)
            if self._names:
                given = tuple(self._names[k][x] if k in self._names else x for k, x in enumerate(given))
            chosen = self._bound[self._key(others)]
            wrenches = self._wrenches if self._wrenches >= 0 and others[self._wrenches] is not None else -1
            if chosen.finish is not None and not chosen.in_place and any(array is not None for array in out):
                return None
            answer = None
            if workers > 1 and all(x.__class__ is np.ndarray and x.shape[:1] < (chosen.threads_from,) for x in given):
                workers = 1  # the direct call takes less time
            direct = chosen.direct if wrenches < 0 else chosen.with_wrenches
            if workers == 1 and direct is not None and (wrenches < 0 or _are_apart(out, others[wrenches])):
                answer = direct(given, others, out) if out else direct(given, others)
            if answer is None:
                answer = chosen.answer(given, others, wrenches, out, workers)
            if answer is None:
                return None
        except (LookupError, TypeError, ValueError):
            return None
        return answer if chosen.finish is None else chosen.finish(answer, given)

    def _prefer(self, checking: Call | None, checking_with_wrenches: Call | None, finish: Finish | None) -> None:
        """Sets `call`, which tries the direct calls with default options first; see `bind`."""
        # Without a reference to `self`, so that the collector of cycles is not needed to free the kernels.
        names, bound_here, key, view_of = self._names, self._bound, self._key, self._view
        overlay, wrenches = self._overlay, self._wrenches

        def call(given: tuple[Any, ...], others: tuple[Any, ...]) -> Any:
            try:
                if names:
                    given = tuple(names[k][x] if k in names else x for k, x in enumerate(given))
                has_wrenches = wrenches >= 0 and others[wrenches] is not None
                bound = bound_here
                if overlay >= 0 and others[overlay] is not None:
                    view = view_of(others)
                    if view is None:
                        return None
                    bound = view._bound
                else:
                    first = checking_with_wrenches if has_wrenches else checking
                    if first is not None:
                        answer = first(given, others)
                        if answer is not None:
                            return answer if finish is None else finish(answer, given)
                chosen = bound[key(others)]
                first = chosen.with_wrenches if has_wrenches else chosen.direct
                answer = None if first is None else first(given, others)
                if answer is None:
                    answer = chosen.answer(given, others, wrenches if has_wrenches else -1)
                if answer is None:
                    return None
            except (LookupError, TypeError, ValueError):
                return None
            return answer if chosen.finish is None else chosen.finish(answer, given)

        self.call = call


def _view_with(
    cache: OverlayCache, row: str, overlay: int, gravity: int, passive: int
) -> Callable[[tuple[Any, ...]], Any]:
    """Returns a function from the optional arguments of a row, one an overlay, to the calls of the overlaid robot.

    It raises LookupError if that robot is not in the cache or has no calls of the row. It returns None if the overlay
    contradicts an argument.

    Args:
        cache: The overlaid robots.
        row: The name of the row.
        overlay: The index of the overlay among the optional arguments.
        gravity: The index of gravity, or -1.
        passive: The index of the option for passive forces, or -1.
    """
    known = cache.by_id

    def view_of(others: tuple[Any, ...]) -> Any:
        changed = others[overlay]
        _, view = known[id(changed)]
        if (gravity >= 0 and others[gravity] is not None and changed.gravity is not None) or (
            passive >= 0 and others[passive] is not True and changed.joints
        ):
            return None
        return view.row_calls[row]

    return view_of


def _key_of(row: Query) -> Callable[[tuple[Any, ...]], Hashable]:
    """Returns the function from the optional arguments of a row to a key: their options and names, and the types.

    Types are part of the key because True equals 1. The function raises TypeError for names that are no list or tuple.
    """
    by_name = {*row.by_name, *(name for name, option in row.options.items() if option.type == "names")}
    places = [k for k, name in enumerate(row.optional_arguments) if name in row.options or name in by_name]
    lists = [k for k in places if row.optional_arguments[k] in by_name]
    if not places:
        return lambda others: None
    if len(places) <= 2 and not lists:
        first, last = places[0], places[-1]
        return lambda others: (others[first], others[last], others[first].__class__, others[last].__class__)
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


class OverlayCache:
    """Overlaid robots, by identity and by content of the overlay; cleared when it holds `MAX_CACHED`."""

    def __init__(self) -> None:
        self._by_content: dict[Hashable, Any] = {}
        self.by_id: dict[int, tuple[Overlay, Any]] = {}  # keeps the overlay, so that its id is not reused

    def find(self, overlay: Overlay) -> Any:
        """Returns the robot with an overlay of this content; None if it is not in the cache."""
        known = self.by_id.get(id(overlay))
        if known is not None:
            return known[1]
        try:
            view = self._by_content.get(overlay.content)
        except TypeError:
            return None
        if view is not None:
            self._keep(overlay, view)
        return view

    def get(self, overlay: Overlay, make: Callable[[], Any]) -> Any:
        """Returns the robot with an overlay, made by `make` if it is not in the cache."""
        view = self.find(overlay)
        if view is None:
            view = make()
            self._keep(overlay, view)
        return view

    def _keep(self, overlay: Overlay, view: Any) -> None:
        if math.prod(view.lead) <= MAX_ROBOTS:
            for kept in (self._by_content, self.by_id):
                if len(kept) >= MAX_CACHED:
                    kept.clear()
            with suppress(TypeError):  # an overlay with a value of a type that may change
                self._by_content[overlay.content] = view
                self.by_id[id(overlay)] = overlay, view

"""The direct form of calls: for each query, bound calls by their options, and the robots of overlays by content.

`engine.evaluator` binds the first call of a combination of options; compiled code reads the arguments of later calls. A
direct call returns None for arguments that it refuses; `BoundCall.compute` has the other forms. Arguments keep their
places: an overlay is not removed from them, because compiled code does not read it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from operator import itemgetter
from typing import Any

import numpy as np

from dyn_service.api.queries import Array, Overlay, Query
from dyn_service.api.spec import WITH_WRENCHES, WITHOUT_WRENCHES
from dyn_service.engine.bound_calls import BoundCall, Finish, Out, are_apart
from dyn_service.kernels.direct import DirectCall

Call = Callable[[tuple[Any, ...], tuple[Any, ...]], Any]
"""The required and the optional arguments of a row -> its result; None for arguments that need `BoundCall.compute`."""

MAX_COMBINATIONS = 64
"""Combinations of options bound for each row; one more clears them all."""

MAX_CACHED, MAX_ROBOTS = 64, 64
"""Overlaid robots cached for each robot, and the number of robots that one of them may contain: some megabytes."""

_THREADS_FROM = 1 << 12
"""Number of states from which threads are considered; fewer if the code of a bound kernel is long."""


class RowCalls:
    """The bound calls of one query of a robot.

    direct: answers a call with any bound options by compiled code; it returns None if this is not possible.

    Args:
        row: The row of the query.
        named_inputs: By index of a required argument that is a name, the kernel's input for each name.
        cache: The robots of overlays.
    """

    direct: Call

    def __init__(self, row: Query, named_inputs: Mapping[int, Mapping[str, Array]], cache: OverlayCache) -> None:
        self._named_inputs = named_inputs
        self._key = _key_of(row)
        self._bound: dict[Hashable, BoundCall] = {}
        self._defaults = self._key(row.argument_defaults)
        self._threads_from = _THREADS_FROM
        place_of = {name: k for k, name in enumerate(row.optional_arguments)}
        special = (row.overlay, row.wrenches, row.first("gravity"), row.passive_option)
        self._overlay, self._wrenches, gravity, passive = (place_of.get(name or "", -1) for name in special)
        self._calls_with = _calls_with(cache, row.name, self._overlay, gravity, passive)
        self._prefer(None, None, None)

    def bound(self, optional: tuple[Any, ...]) -> BoundCall | None:
        """Returns the call that is bound for the options among these optional arguments."""
        try:
            return self._bound.get(self._key(optional))
        except TypeError:  # options of wrong types, which have no key
            return None

    def bind(
        self,
        optional: tuple[Any, ...],
        call: BoundCall,
        checking: DirectCall | None = None,
        checking_with_wrenches: DirectCall | None = None,
    ) -> None:
        """Binds the options among these optional arguments.

        Args:
            optional: The optional arguments.
            call: The call with these options.
            checking: A direct call that compares the options itself and returns None for others. That of the default
                options is tried first, because this is faster than finding the combination.
            checking_with_wrenches: The same with external wrenches.
        """
        if len(self._bound) >= MAX_COMBINATIONS:
            self._bound.clear()
        try:
            key = self._key(optional)
            self._bound[key] = call
        except TypeError:  # options of a type that has no key, such as an array of names
            return
        self._threads_from = min(self._threads_from, *(kernel.threads_from for kernel in call.kernels.values()))
        if key == self._defaults:
            self._prefer(checking, checking_with_wrenches, call.finish)

    def into(self, required: tuple[Any, ...], optional: tuple[Any, ...], out: Out, workers: int) -> Any:
        """Returns the result of the direct form, written into arrays; None if this is not possible.

        Args:
            required: The required arguments.
            optional: The optional arguments.
            out: The array of each output, or None for a new one.
            workers: The largest number of threads; large batches are left to `BoundCall.compute` if there are several.
        """
        candidates = self._bound
        try:
            if self._overlay >= 0 and optional[self._overlay] is not None:
                calls = self._calls_with(optional)
                if calls is None:
                    return None
                candidates = calls._bound
            if self._named_inputs:
                one_hots = self._named_inputs
                required = tuple(one_hots[k][x] if k in one_hots else x for k, x in enumerate(required))
            call = candidates[self._key(optional)]
            wrenches = None if self._wrenches < 0 else optional[self._wrenches]
            kernel = call.direct if wrenches is None else call.direct_with_wrenches
            if kernel is None or not call.in_place or (wrenches is not None and not are_apart(out, wrenches)):
                return None
            if workers > 1:
                variant = WITHOUT_WRENCHES if wrenches is None else WITH_WRENCHES
                if _is_batch(required[0], call.kernels[variant].threads_from):
                    return None
            outputs = kernel(required, optional, out)
        except (LookupError, TypeError):  # objects of other types, which the conversion to arrays reports
            return None
        return outputs if outputs is None or call.finish is None else call.finish(outputs, required)

    def with_threads(self, workers: int) -> Call:
        """Returns `direct`, or with several workers a call that leaves large batches to `BoundCall.compute`."""
        if workers == 1:
            return self.direct

        def call(required: tuple[Any, ...], optional: tuple[Any, ...]) -> Any:
            return None if _is_batch(required[0], self._threads_from) else self.direct(required, optional)

        return call

    def _prefer(
        self, checking: DirectCall | None, checking_with_wrenches: DirectCall | None, finish: Finish | None
    ) -> None:
        """Sets `direct`, which tries the direct calls with default options first; see `bind`."""
        # Without a reference to `self`, so that the collector of cycles is not needed to free the kernels.
        named_inputs, bound_calls, key, calls_with = self._named_inputs, self._bound, self._key, self._calls_with
        overlay, wrenches = self._overlay, self._wrenches

        def direct(required: tuple[Any, ...], optional: tuple[Any, ...]) -> Any:
            try:
                if named_inputs:
                    required = tuple(named_inputs[k][x] if k in named_inputs else x for k, x in enumerate(required))
                has_wrenches = wrenches >= 0 and optional[wrenches] is not None
                candidates = bound_calls
                if overlay >= 0 and optional[overlay] is not None:
                    calls = calls_with(optional)
                    if calls is None:
                        return None
                    candidates = calls._bound
                else:
                    default = checking_with_wrenches if has_wrenches else checking
                    if default is not None:
                        outputs = default(required, optional)
                        if outputs is not None:
                            return outputs if finish is None else finish(outputs, required)
                call = candidates[key(optional)]
                kernel = call.direct_with_wrenches if has_wrenches else call.direct
                outputs = None if kernel is None else kernel(required, optional)
                if outputs is None:
                    outputs = call.large(required, optional, WITH_WRENCHES if has_wrenches else WITHOUT_WRENCHES)
            except (LookupError, TypeError):
                return None
            return outputs if outputs is None or call.finish is None else call.finish(outputs, required)

        self.direct = direct


def _is_batch(x: Any, states: int) -> bool:
    """Returns whether an argument is an array of at least so many states."""
    return x.__class__ is np.ndarray and x.ndim == 2 and len(x) >= states


def _calls_with(
    cache: OverlayCache, query: str, overlay: int, gravity: int, passive: int
) -> Callable[[tuple[Any, ...]], RowCalls | None]:
    """Returns a function from the optional arguments of a row, one an overlay, to the calls of the overlaid robot.

    It raises LookupError if that robot is not in the cache or has no calls of the row. It returns None if the overlay
    contradicts an argument.

    Args:
        cache: The robots of overlays.
        query: The name of the row.
        overlay: The index of the overlay among the optional arguments.
        gravity: The index of gravity, or -1.
        passive: The index of the option for passive forces, or -1.
    """
    by_id = cache.by_id

    def calls_with(optional: tuple[Any, ...]) -> RowCalls | None:
        changes = optional[overlay]
        _, evaluator = by_id[id(changes)]
        if (gravity >= 0 and optional[gravity] is not None and changes.gravity is not None) or (
            passive >= 0 and optional[passive] is not True and changes.joints
        ):
            return None
        calls: RowCalls = evaluator.row_calls[query]
        return calls

    return calls_with


def _key_of(row: Query) -> Callable[[tuple[Any, ...]], Hashable]:
    """Returns the function from the optional arguments of a row to a key: their options and names, and the types.

    Types are part of the key because True equals 1. The function raises TypeError for names that are no list or tuple.
    """
    by_name = {*row.by_name, *(name for name, option in row.options.items() if option.type == "names")}
    places = [k for k, name in enumerate(row.optional_arguments) if name in row.options or name in by_name]
    lists = [k for k in places if row.optional_arguments[k] in by_name]
    if not places:
        return lambda optional: None
    # Written out, without `itemgetter` and `map`: each call with options computes its key.
    if len(places) <= 2 and not lists:
        first, last = places[0], places[-1]
        return lambda optional: (optional[first], optional[last], optional[first].__class__, optional[last].__class__)
    pick = itemgetter(*places) if len(places) > 1 else lambda optional: (optional[places[0]],)

    def key(optional: tuple[Any, ...]) -> Hashable:
        for k in lists:
            names = optional[k]
            if names is not None:
                if names.__class__ is not list and names.__class__ is not tuple:
                    raise TypeError
                optional = (*optional[:k], tuple(names), *optional[k + 1 :])
        values = pick(optional)
        return values, tuple(map(type, values))

    return key


class OverlayCache:
    """Evaluators of overlaid robots, by identity and by content of the overlay; cleared when it holds `MAX_CACHED`."""

    def __init__(self) -> None:
        self._by_content: dict[Hashable, Any] = {}
        self.by_id: dict[int, tuple[Overlay, Any]] = {}  # keeps the overlay, so that its id is not reused

    def find(self, overlay: Overlay) -> Any:
        """Returns the evaluator with an overlay of this content; None if it is not in the cache."""
        entry = self.by_id.get(id(overlay))
        if entry is not None:
            return entry[1]
        try:
            evaluator = self._by_content.get(overlay.content)
        except TypeError:
            return None
        if evaluator is not None:
            self._keep(overlay, evaluator)
        return evaluator

    def get(self, overlay: Overlay, make: Callable[[], Any]) -> Any:
        """Returns the evaluator with an overlay, made by `make` if it is not in the cache."""
        evaluator = self.find(overlay)
        if evaluator is None:
            evaluator = make()
            self._keep(overlay, evaluator)
        return evaluator

    def _keep(self, overlay: Overlay, evaluator: Any) -> None:
        if math.prod(evaluator.model.lead) <= MAX_ROBOTS:
            for cache in (self._by_content, self.by_id):
                if len(cache) >= MAX_CACHED:
                    cache.clear()
            with suppress(TypeError):  # an overlay with a value of a type that may change
                self._by_content[overlay.content] = evaluator
                self.by_id[id(overlay)] = overlay, evaluator

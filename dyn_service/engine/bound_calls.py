"""Calls of a query with chosen options: arguments to the inputs of a kernel, and its outputs to a result.

A call takes the first form of this table that accepts its arguments:

    form                 arguments
    direct               what compiled code reads itself (`kernels.direct`): arrays of doubles with at most one leading
                         axis, short lists, numbers, `Wrench` objects; one thread; see `engine.calls`
    compiled wrenches    wrenches whose other arguments became arrays of doubles, also in threads
    gufunc               all others, as arrays of doubles: more leading axes, long lists, threads, status flags for
                         `numpy.errstate`, results that overlap inputs; wrenches converted by NumPy; the first call

All forms have the same bits. `BoundCall.compute` converts arguments to arrays and has the last two; the conversion is
the only place that reports invalid arguments.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from dyn_service.api.arguments import with_vectors
from dyn_service.api.arrays import kernel_input
from dyn_service.api.inputs import missing_input
from dyn_service.api.named import names_of, one_hot
from dyn_service.api.outputs import MAX_WORKERS, check_shapes
from dyn_service.api.queries import Array, Query, Wrench
from dyn_service.api.spec import BY_NAME, WITH_WRENCHES, WITHOUT_WRENCHES, Variant
from dyn_service.engine.robot_model import RobotModel
from dyn_service.engine.rows import KernelInputs, kernel_inputs, operand
from dyn_service.engine.wrenches import link_wrenches, on_bodies, on_links
from dyn_service.kernels.direct import DirectCall
from dyn_service.kernels.jit import host
from dyn_service.kernels.library import KernelLibrary
from dyn_service.kernels.signature import Signature
from dyn_service.support import buffers
from dyn_service.support.buffers import LARGE_BYTES

Out = tuple[Array | None, ...]
"""The array of each output, or None for a new one; () if all are new."""

Finish = Callable[[Any, tuple[Any, ...]], Any]
"""The outputs of a kernel and the required arguments of a row -> its result."""

Rotations = Callable[[Array], Array]
"""Positions (..., nq) -> R_WL of every link, (..., nl, 3, 3)."""

_DOUBLE = np.dtype(np.float64)

PART_BYTES = 1 << 23
"""Least work of a thread, in bytes of machine code run for its vectors of states (`Loop.work` for each): some 0.4 ms,
see `kernels.direct.HELD_BYTES`.
"""


@dataclass(frozen=True, eq=False)
class BoundKernel:
    """A kernel of a bound call, for one variant.

    signature: with the selected rows only, if it computes only these. ufunc, direct: its gufunc and its direct call, or
    None. work: see `Loop.work`.
    """

    signature: Signature
    ufunc: np.ufunc
    direct: DirectCall | None
    work: int

    @cached_property
    def result_bytes(self) -> int:
        """Bytes of the result for one state."""
        return 8 * sum(output.size for output in self.signature.outputs)

    @property
    def threads_from(self) -> int:
        """The number of states from which two threads compute a batch."""
        return -(-2 * PART_BYTES // max(self.work, 1)) * host().lanes


@dataclass(frozen=True, eq=False)
class BoundCall:
    """A query with chosen options.

    model: the numbers that answer. library: its kernels. signatures: those of the kernels without and with external
    wrenches. defaults: the inputs that are not given, by name. finish: see `Finish`; None if the output is the result.
    in_place: whether the result consists of the output arrays as they are. kernels: those that were loaded when the
    call was bound, by variant. direct, direct_with_wrenches: their direct calls.
    """

    row: Query
    model: RobotModel
    library: KernelLibrary
    signatures: Mapping[Variant, Signature]
    defaults: Mapping[str, Array]
    checks_states: bool
    finish: Finish | None
    in_place: bool
    kernels: Mapping[Variant, BoundKernel]
    direct: DirectCall | None = None
    direct_with_wrenches: DirectCall | None = None

    def compute(
        self, required: tuple[Any, ...], optional: tuple[Any, ...], out: Out, workers: int, rotations: Rotations
    ) -> Any:
        """Returns the outputs of the kernel: an array, or a tuple of them.

        Args:
            required: The required arguments.
            optional: The optional arguments, without an overlay.
            out: See `Out`; only for calls that are `in_place`.
            workers: The largest number of threads.
            rotations: For wrenches in other frames than their link's.

        Raises:
            DynError: An argument is invalid.
        """
        wrenches = optional[self.place_of_wrenches] if self.place_of_wrenches >= 0 else None
        kernel = self.kernels.get(WITHOUT_WRENCHES if wrenches is None else WITH_WRENCHES)
        inputs = self.convert(required, optional)
        if wrenches is None:
            return self._by_ufunc(kernel, self.signatures[WITHOUT_WRENCHES], inputs, out, workers)
        if kernel is not None and kernel.direct is not None:
            outputs = self._with_compiled_wrenches(kernel, kernel.direct, inputs, optional, out, workers)
            if outputs is not None:
                return outputs
        pose = inputs[self.row.pose] if self.row.pose else self.model.configuration.neutral
        on_each_link = link_wrenches(wrenches, self.model.index_of, lambda: rotations(pose))
        tree, bodies = self.model.tree, self.model.bodies
        inputs[self.row.wrenches or ""] = (
            on_links(on_each_link, tree) if self.row.links else on_bodies(on_each_link, bodies)
        )
        return self._by_ufunc(kernel, self.signatures[WITH_WRENCHES], inputs, out, workers)

    @cached_property
    def place_of_wrenches(self) -> int:
        """The index of the external wrenches among the optional arguments; -1: the query has none."""
        names = self.row.optional_arguments
        return names.index(self.row.wrenches) if self.row.wrenches is not None else -1

    @cached_property
    def operands(self) -> list[Array]:
        """The inputs of the kernel without wrenches that no required argument sets."""
        names = [x.name for x in self.signatures[WITHOUT_WRENCHES].inputs if x.name not in self.row.required]
        return [self.defaults[name] for name in names]

    def large(self, required: tuple[Any, ...], optional: tuple[Any, ...], variant: Variant) -> Any:
        """Returns the outputs of the direct call for a large batch; None if the batch is small, or it is refused.

        The direct call makes no large results itself, because `buffers` takes their memory from earlier ones.
        """
        kernel, first = self.kernels[variant], required[0]
        states = len(first) if first.__class__ is np.ndarray and first.ndim == 2 else 0
        if kernel.direct is None or states * kernel.result_bytes < LARGE_BYTES:
            return None
        shapes = ((states, *output.shape) for output in kernel.signature.outputs)
        return kernel.direct(required, optional, tuple(map(buffers.empty, shapes)))

    def convert(self, required: tuple[Any, ...], optional: tuple[Any, ...]) -> dict[str, Array]:
        """Returns the inputs of the kernel other than wrenches as arrays of doubles.

        Raises:
            InvalidArgumentError: An argument has the wrong type or shape, or moves a locked joint; `path` names it.
            NotFoundError: The robot has no link of a name.
            FailedPreconditionError: The mass matrix is not positive definite at a position.
        """
        row, model = self.row, self.model
        inputs: dict[str, Array] = {}
        for name, core, is_required, place in self._places:
            value = required[place] if is_required else optional[place]
            # Such arrays are used as they are: `operand` takes longer than many kernels.
            if (
                value.__class__ is np.ndarray
                and value.dtype is _DOUBLE
                and value.shape[value.ndim - len(core) :] == core
            ):
                inputs[name] = value
            elif value is None or name in row.by_name:  # the one-hot vectors of optional names are among the defaults
                if name not in self.defaults:
                    raise missing_input(row, name)
                inputs[name] = self.defaults[name]
            elif row.inputs[name].kind in BY_NAME:
                inputs[name] = named_input(row, name, value, model)
            else:
                joint_count = len(model.client_description.joint_names)
                inputs[name] = operand(name, row.inputs[name], value, core, joint_count)
        if model.tree.free is not None:
            for k in model.locked_inputs(row)[0]:
                name = row.required[k]
                model.check_locked(name, inputs[name], f"inputs.{name}")
        if self.checks_states:
            model.check_inertia(row.name, inputs[row.pose] if row.pose else model.configuration.neutral)
        inputs.update(model.parameters(row))
        return inputs

    @cached_property
    def _places(self) -> list[tuple[str, tuple[int, ...], bool, int]]:
        """For each input: its name, its shape without leading axes, whether it is required, its index in the tuple."""
        required, optional = self.row.required, self.row.optional_arguments
        return [
            (name, core, name in required, (required if name in required else optional).index(name))
            for name, core in self._cores.items()
        ]

    @cached_property
    def _cores(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs without leading axes, other than wrenches and overlay."""
        sizes = self.model.sizes(self.row)
        objects = (self.row.wrenches, self.row.overlay)
        return {name: spec.dims(sizes) for name, spec in self.row.inputs.items() if name not in objects}

    def _with_compiled_wrenches(
        self,
        kernel: BoundKernel,
        direct: DirectCall,
        inputs: Mapping[str, Array],
        optional: tuple[Any, ...],
        out: Out,
        workers: int,
    ) -> Any:
        """Returns the outputs of the direct call with wrenches, for converted inputs; None if it refuses them."""
        row, place = self.row, self.place_of_wrenches
        required = tuple(inputs[name] for name in row.required)
        optional_arrays: list[Any] = [
            inputs[name] if name in inputs and value is not None and name not in row.by_name else value
            for name, value in zip(row.optional_arguments, optional, strict=True)
        ]
        try:
            if any(x.dtype != np.float64 for x in _arrays_of(optional_arrays[place])):
                optional_arrays[place] = with_vectors(optional_arrays[place], kernel_input)
        except (TypeError, ValueError):  # objects of other types, which the conversion by NumPy reports
            return None
        if not out and workers == 1:
            outputs = direct(required, tuple(optional_arrays))
            if outputs is not None:
                return outputs
        signature, vectors = self.signatures[WITHOUT_WRENCHES], [*_arrays_of(optional_arrays[place])]
        converted = kernel_inputs(signature, inputs)
        # Wrenches with other states than the inputs broadcast, which compiled code does not do.
        if any(x.ndim > 1 and x.shape[:-1] != converted.lead for x in vectors):
            return None
        parts, results = self._results(kernel, converted, out, workers)
        if not results:
            return direct(required, tuple(optional_arrays))
        # The gufunc copies inputs that overlap its results; compiled code writes at once.
        if out and not _are_disjoint(results, (*converted.arrays, *vectors)):
            return None

        def compute(states: slice) -> bool:
            def part(x: Any) -> Any:
                return x[states] if isinstance(x, np.ndarray) and x.ndim > 1 else x

            of_part = [with_vectors(x, part) if k == place else x for k, x in enumerate(optional_arrays)]
            for k, name in enumerate(row.optional_arguments):
                if name in inputs and optional_arrays[k] is not None:
                    of_part[k] = self._part(name, inputs, states)
            return (
                direct(
                    tuple(self._part(name, inputs, states) for name in row.required),
                    tuple(of_part),
                    tuple(x[states] for x in results),
                )
                is not None
            )

        if parts > 1:
            return _one_or_all(results) if in_threads(compute, converted.lead[0], parts) else None
        return direct(required, tuple(optional_arrays), results)

    def _part(self, name: str, inputs: Mapping[str, Array], states: slice) -> Array:
        """Returns an input at some states of a batch."""
        return inputs[name][states] if inputs[name].ndim > len(self._cores[name]) else inputs[name]

    def _by_ufunc(
        self, kernel: BoundKernel | None, signature: Signature, inputs: Mapping[str, Array], out: Out, workers: int
    ) -> Any:
        """Returns the outputs of the gufunc."""
        signature = signature if kernel is None else kernel.signature
        converted = kernel_inputs(signature, inputs)
        arrays, lead = converted.arrays, converted.lead
        if signature.empty:
            return self._with_empty_outputs(signature, (), lead)
        if kernel is None:  # compiled only now, so that invalid arguments do not wait for a compiler
            kernel = BoundKernel(signature, self.library.kernel(signature), None, self.library.work(signature))
        parts, results = self._results(kernel, converted, out, workers)
        if not results:
            outputs = kernel.ufunc(*arrays)
        elif parts > 1 and (not out or _are_disjoint(results, arrays)):

            def compute(states: slice) -> bool:
                of_part = (x[states] if axes else x for x, axes in zip(arrays, converted.leads, strict=True))
                kernel.ufunc(*of_part, out=tuple(x[states] for x in results))
                return True

            in_threads(compute, lead[0], parts)
            outputs = _one_or_all(results)
        else:
            kernel.ufunc(*arrays, out=results)
            outputs = _one_or_all(results)
        return self._with_empty_outputs(signature, outputs, lead)

    def _results(
        self, kernel: BoundKernel, inputs: KernelInputs, out: Out, workers: int
    ) -> tuple[int, tuple[Array, ...]]:
        """Returns the number of threads, and the arrays of the outputs; () if the kernel shall create them.

        Raises:
            InvalidArgumentError: An array of `out` has another shape than its output.
        """
        lead = inputs.lead
        shapes = [(*lead, *output.shape) for output in kernel.signature.outputs]
        if out:
            check_shapes(self.row, out, shapes)
        parts = 1
        if workers > 1 and len(lead) == 1 and all(axes in (lead, ()) for axes in inputs.leads):
            parts = min(workers, lead[0] // host().lanes * kernel.work // PART_BYTES)
        if not out and parts < 2 and 8 * sum(map(math.prod, shapes)) < LARGE_BYTES:
            return 1, ()
        arrays = out or (None,) * len(shapes)
        return parts, tuple(buffers.empty(shape) if x is None else x for shape, x in zip(shapes, arrays, strict=True))

    def _with_empty_outputs(self, signature: Signature, outputs: Any, lead: tuple[int, ...]) -> Any:
        """Returns the outputs with those that have no entries, which no kernel computes."""
        row = self.row
        if len(signature.outputs) == len(row.outputs):
            return outputs
        arrays = outputs if isinstance(outputs, tuple) else (outputs,)
        array_of = dict(zip((output.name for output in signature.outputs), arrays, strict=True))
        sizes = self.model.sizes(row)
        return _one_or_all(
            tuple(
                array_of[name] if name in array_of else np.zeros(lead + spec.dims(sizes))
                for name, spec in row.outputs.items()
            )
        )


def named_input(row: Query, name: str, value: Any, model: RobotModel) -> Array:
    """Returns the kernel's input for an argument that is a name, or consists of names."""
    kind, path = row.inputs[name].kind, f"inputs.{name}"
    return one_hot(kind, names_of(kind, value, path), model.client_description.link_names, model.name, path)


def named_inputs(row: Query, model: RobotModel) -> Mapping[int, Mapping[str, Array]]:
    """Returns, by index of a required argument that is a link's name, the kernel's input for each name."""
    places = [k for k, name in enumerate(row.required) if row.inputs[name].kind == "link"]
    if not places:
        return {}
    links = model.client_description.link_names
    vectors = {name: one_hot("link", name, links, model.name, "") for name in links}
    return dict.fromkeys(places, vectors)


def _one_or_all(results: tuple[Array, ...]) -> Any:
    return results if len(results) > 1 else results[0]


@lru_cache(maxsize=1)
def _threads(process: int) -> ThreadPoolExecutor:
    """Returns the thread pool of this process; a forked one has its own. Threads start when they are needed."""
    return ThreadPoolExecutor(MAX_WORKERS, thread_name_prefix="dyn_service")


def in_threads(compute: Callable[[slice], bool], states: int, parts: int) -> bool:
    """Computes a batch in parts, each in a thread with the caller's `numpy.errstate`; returns whether all succeeded.

    Args:
        compute: Computes the states of a slice; returns whether it succeeded.
        states: The number of states.
        parts: The number of parts. The calling thread computes the last one.
    """
    lanes = host().lanes
    step = -(-states // (parts * lanes)) * lanes  # whole vectors of states, so that the bits are those of one thread
    *first_parts, last_part = (slice(first, min(first + step, states)) for first in range(0, states, step))
    futures: list[Future[bool]] = []
    try:
        futures.extend(_threads(os.getpid()).submit(copy_context().run, compute, part) for part in first_parts)
        # In this thread, which would only wait otherwise.
        succeeded = compute(last_part)
    finally:
        wait(futures)  # no thread writes into an array of the caller after its call
    results = [future.result() for future in futures]
    return succeeded and all(results)


def _arrays_of(wrenches: Any) -> Iterator[Array]:
    """Yields the arrays in external wrenches. Raises TypeError for an object that is no `Wrench`."""
    for wrench in () if wrenches is None else [wrenches] if isinstance(wrenches, Wrench) else wrenches:
        if not isinstance(wrench, Wrench):
            raise TypeError
        yield from (x for x in (wrench.torque, wrench.force, wrench.point) if isinstance(x, np.ndarray))


def are_apart(out: Out, wrenches: Any) -> bool:
    """Returns whether no array of the result shares memory with external wrenches."""
    arrays = [array for array in out if array is not None]
    return not (arrays and any(np.may_share_memory(x, y) for y in _arrays_of(wrenches) for x in arrays))


def _are_disjoint(results: Sequence[Array], read: Sequence[Array]) -> bool:
    """Returns whether no result shares memory with an array that is read, or with another result."""
    return not any(np.may_share_memory(x, y) for k, x in enumerate(results) for y in (*read, *results[:k]))

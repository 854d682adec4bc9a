"""Studies: queries at many states, reduced where they are computed, in a store that a second run completes.

The states are divided into chunks of up to 65,536 states, and those into tiles of 4,096, each a box in the study's
dimensions that does not depend on how the study is run. Sums are added in order within a chunk, and over chunks
exactly (`math.fsum`), so that results have the same bits for any number of threads, processes or interruptions. A task
is some chunks. One process writes the store; a task's stored states come first, then its reductions in one file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import pickle
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np

from dyn_service.api.arrays import Array
from dyn_service.api.lists import row_of
from dyn_service.api.queries import Overlay
from dyn_service.api.spec import WITHOUT_WRENCHES
from dyn_service.engine.robot import Robot
from dyn_service.errors import DynError, FailedPreconditionError, NotFoundError
from dyn_service.kernels import tiles
from dyn_service.kernels.jit import Loop, host
from dyn_service.kernels.loop import loop_of
from dyn_service.kernels.signature import Signature
from dyn_service.kernels.tiles import TILE
from dyn_service.studies import stores
from dyn_service.studies.closed_loop import ClosedLoop
from dyn_service.studies.joint_loads import Loads
from dyn_service.studies.keys import check_names, part_of, within, wrenches_of, wrong
from dyn_service.studies.plan import CHUNK, NAME, Plan, Samples, Vary, blocks, extent
from dyn_service.studies.stores import ANOTHER, unusable
from dyn_service.support.optional import load
from dyn_service.support.suggestions import listing

FORMAT = 4
"""Version of the store, part of its fingerprint."""

TASK_S, MAX_CHUNKS = 0.5, 256
"""Seconds of a task, about, and the most chunks of one."""

PILOT_S = 0.05
"""Least time in seconds of the states from which a run is predicted, unless a whole chunk takes less."""

Reduction = Literal["min", "max", "absmax", "mean", "rms", "cubic_mean", "histogram"]

_ROOTS: Mapping[str, Any] = {"mean": (1, np.positive), "rms": (2, np.sqrt), "cubic_mean": (3, np.cbrt)}
_EXTREMES = ("min", "max", "absmax")
_LOG = logging.getLogger(__name__)

NOT_FINITE, BEYOND = 1, {"position": 2, "velocity": 4, "effort": 8}
"""Codes of states: the answer is not finite (singular, or too large); a limit of the robot is exceeded."""

NOT_COMPUTED = 255
"""The code of a state that is not in the store."""

FUNCTIONS: Mapping[str, type[Loads] | type[ClosedLoop]] = {"design_loads": Loads, "closed_loop": ClosedLoop}
"""Names in addition to those of queries, and the classes that answer them."""


def _plain(x: Any) -> str:
    if isinstance(x, Overlay):
        return repr(x.content)
    array = np.asarray(x, dtype=np.float64)
    return f"{array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"


def _encoded(content: Any) -> bytes:
    """Returns bytes that are equal for equal content."""
    return msgspec.json.encode(msgspec.to_builtins(content, enc_hook=_plain), order="sorted")


class Output(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One output of a study.

    query: a row of the table, `design_loads` or `closed_loop`. output: of its result; None: the only one. select: names
    by dimension. options: of the query. reduce: over all dimensions but those kept; None: every state is stored. bins,
    range: of the histogram, the range for all entries or one for each.
    """

    query: str
    output: str | None = None
    select: dict[str, list[str]] = {}
    options: dict[str, Any] = {}
    reduce: list[Reduction] | None = None
    bins: Annotated[int, msgspec.Meta(ge=1)] = 100
    range: list[Any] | None = None

    @property
    def key(self) -> str:
        """Identifies the query and its options."""
        return f"{self.query} {_encoded(self.options).decode()}"


class Specification(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A study as data, as in a file of `dyn study`. check: limits whose violations are counted."""

    vary: dict[str, Vary]
    outputs: dict[str, Output]
    samples: dict[str, Samples] = {}
    keep: list[str] = []
    check: list[Literal["position", "velocity", "effort"]] = []


class Estimate(NamedTuple):
    """What a run needs. bytes: of the store. memory: bytes at a time. states_left, chunks_left: not yet in the store.

    processor_seconds, seconds: processor time of what is left, and time if the machine stays as busy as it was while
    some states were measured. threads: those that compute.
    """

    states: int
    tasks: int
    seconds: float
    bytes: int
    memory: int
    chunks: int
    states_left: int
    chunks_left: int
    processor_seconds: float
    threads: int

    def __str__(self) -> str:
        """Returns a one-line summary."""
        is_begun = self.chunks_left < self.chunks

        def part(all: int, left: int) -> str:
            return f"{all:,} (done: {all - left:,}, left: {left:,})" if is_begun else f"{all:,}"

        free = f"{self.processor_seconds / self.threads:.3g} s on {self.threads} free core{'s' * (self.threads > 1)}"
        return (
            f"states: {part(self.states, self.states_left)}, chunks: {part(self.chunks, self.chunks_left)}, "
            f"tasks: {self.tasks:,}; about {self.processor_seconds:.3g} s of processor time"
            f"{' for the rest' * is_begun} ({free}, {self.seconds:.3g} s if the machine stays as busy as now), "
            f"{self.bytes / 1e6:.3g} MB in the store, {self.memory / 1e6:.3g} MB of memory"
        )


class Row:
    """The answers of a query of the table at blocks of states.

    required, accepted: names of inputs. template: the Dataset of one state, with dimensions, coordinates and units.
    """

    def __init__(self, robot: Robot, query: str, options: Mapping[str, Any]) -> None:
        with within("query"):
            self.robot, self.row = robot, row_of(query)
        self.required, self.accepted = self.row.required, frozenset(self.row.inputs)
        names = [name for name in (*self.row.inputs, *self.row.options) if name not in self.required]
        check_names("options", f"option of {query} called", options, names)
        self.options = dict(options) | ({"wrenches": wrenches_of(options)} if "wrenches" in options else {})

    def template(self, state: Mapping[str, Any]) -> Any:
        """Returns the labelled answer at one state."""
        xarray = load("a study", "xarray")
        configuration = self.robot.configuration
        q_names, v_names, arguments = configuration.position_names, configuration.velocity_names, dict[str, Any]()
        position = "joint" if q_names == v_names else "position"
        labels: dict[Any, Any] = {("nq",): (position, q_names), ("nv",): ("joint", v_names)}
        for name, x in state.items():
            if name in self.row.inputs:
                dim, names = labels.get(self.row.inputs[name].shape, (None, ()))
                arguments[name] = x if dim is None else xarray.DataArray(x, dims=dim, coords={dim: list(names)})
        return getattr(self.robot, self.row.name)(**arguments, **self.options)

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Returns the outputs at a block of states."""
        arguments = {name: x for name, x in inputs.items() if name in self.row.inputs}
        # States that fail are counted by their codes: warnings would say the same of no state in particular.
        with np.errstate(all="ignore"):
            return self.row.outputs_of(getattr(self.robot, self.row.name)(**arguments, **self.options))

    def kernel(self, state: Mapping[str, Any]) -> tuple[Loop, Signature, list[Any]] | None:
        """Returns the kernel's loop, its operands, and the inputs that are no arguments; None if it cannot be used."""
        row = self.row
        # Through Python a study takes twice as long as its kernel; only plain calls have a loop of their own.
        if {*state} != {*row.required}:
            return None
        # This call binds the kernel to the options, which the look-up below needs.
        self(state)
        optional = dict(zip(row.optional_arguments, row.argument_defaults, strict=True)) | self.options
        evaluator = self.robot.evaluator
        calls = evaluator.row_calls.get(row.name)
        bound = None if calls is None else calls.bound(tuple(optional.values()))
        if bound is None or bound.finish is not None or bound.model.tree.free is not None:
            return None
        signature = bound.signatures[WITHOUT_WRENCHES]
        block = evaluator.library.block(signature)
        if len(signature.outputs) != 1 or block is None:
            return None
        if (loop := loop_of(signature, block.body.code)) is None or loop.allocates:
            return None
        return loop, signature, bound.operands


class _Column(NamedTuple):
    """An output: its query, indices of its entries and labels."""

    name: str
    spec: Output
    key: str
    field: str
    entries: Any
    labels: Any


def _is_effort(column: _Column) -> bool:
    dims = (("joint",), (f"{column.name}_joint",))
    return bool(column.labels.attrs.get("units") == "N m | N" and column.labels.dims in dims)


class Study:
    """A study of a robot; `Robot.study` makes it."""

    def __init__(self, robot: Robot, specification: Specification) -> None:
        self.robot = robot
        lists: dict[str, Any] = {}
        for name, output in specification.outputs.items():
            lists |= {} if output.reduce is None else {f"outputs.{name}.reduce": output.reduce}
            lists |= {f"outputs.{name}.select.{dim}": names for dim, names in output.select.items()}
        for path, names in {"keep": specification.keep, "check": specification.check, **lists}.items():
            if path in lists and not names:
                raise wrong(path, "needs at least one name, or leave it out")
            if repeated := [name for k, name in enumerate(names) if name in names[:k]]:
                raise wrong(path, f"has '{repeated[0]}' twice: write it once")
        self.plan = Plan(robot, specification.vary, specification.samples, specification.keep)
        # Recordings are replaced by their numbers, so that other machines need no file.
        vary = {quantity.target: quantity.vary for quantity in self.plan.quantities}
        self.specification = msgspec.structs.replace(specification, vary=vary)
        n_kept = len(specification.keep)
        self._kept_shape, self._reduced = self.plan.shape[:n_kept], self.plan.shape[n_kept:]
        # From the dimensions alone: threads, tasks and interruptions must not change the order of a sum.
        self._chunk = extent(self._reduced, CHUNK)
        self._tile = (*(1 for _ in self._kept_shape), *extent(self._chunk, TILE))
        self._chunks = math.prod(-(-n // s) for n, s in zip(self._reduced, self._chunk, strict=True))
        self._outer = math.prod(self._kept_shape)
        if not specification.outputs:
            raise wrong("outputs", "needs at least one, such as tau: {query: inverse_dynamics, reduce: [max]}")
        for name in specification.outputs:
            if not re.fullmatch(NAME, name) or name in ("code", "partial", "result"):
                rule = "letters, digits and _, and is none of code, partial, result"
                raise wrong(f"outputs.{name}", f"a name has {rule}, found {name!r}")

    @cached_property
    def _answers(self) -> dict[str, Any]:
        """Objects that answer, by query and options."""
        answers: dict[str, Any] = {}
        for name, output in self.specification.outputs.items():
            if (key := output.key) in answers:
                continue
            with within(f"outputs.{name}"):
                answer_class = FUNCTIONS.get(output.query) or partial(Row, query=output.query)
                answers[key] = answer_class(self.robot, options=output.options)
            for required in answers[key].required:
                if required not in self.plan.inputs:
                    raise wrong(f"vary.{required}", f"is missing: outputs.{name} needs it, such as {{constant: 0}}")
        for quantity in self.plan.quantities:
            queries = ", ".join(sorted({key.partition(" ")[0] for key in answers}))
            inputs = sorted({name for answer in answers.values() for name in answer.accepted})
            role = f"query of the study ({queries}) has the input"
            check_names(f"vary.{quantity.target}", role, [quantity.input or "overlay"], inputs)
        return answers

    @cached_property
    def _columns(self) -> list[_Column]:
        """The outputs; this computes one state."""
        state = self.plan.block([slice(0, 1) for _ in self.plan.dims], draw=False)
        answers, templates, entries_by_dim = self._answers, dict[str, Any](), dict[str, list[Any]]()
        columns = []
        for name, output in self.specification.outputs.items():
            if output.key not in templates:
                with within(f"outputs.{name}"):
                    templates[output.key] = answers[output.key].template(state)
            columns.append(self._column(name, output, templates[output.key], entries_by_dim))
        names = {*self.plan.dims, *(dim for column in columns for dim in (*column.labels.dims, f"{column.name}_bin"))}
        for name, output in self.specification.outputs.items():
            results = {f"{name}_{kind}{suffix}" for kind in output.reduce or () for suffix in ("", "_index")} or {name}
            if results & names:
                text = f"its result '{min(results & names)}' is also another result or a dimension"
                raise wrong(f"outputs.{name}", f"{text}: choose another name")
            names |= results
        requirements = {
            "position": ("the quantity 'q'", "q" in self.plan.inputs),
            "velocity": ("the quantity 'v'", "v" in self.plan.inputs),
            "effort": ("an output of efforts, such as inverse_dynamics", any(map(_is_effort, columns))),
        }
        for limit in self.specification.check:
            requirement, is_met = requirements[limit]
            if not is_met:
                raise wrong("check", f"{limit} needs {requirement}")
        return columns

    def _column(self, name: str, output: Output, template: Any, entries_by_dim: dict[str, list[Any]]) -> _Column:
        """Returns an output with the entries that it selects. entries_by_dim: those of the outputs before it."""
        path, variables = f"outputs.{name}", list(template.data_vars)
        field = output.output or (variables[0] if len(variables) == 1 else "")
        if not field:
            raise wrong(f"{path}.output", f"is missing: write one of {', '.join(variables)}")
        check_names(f"{path}.output", f"output of {output.query} called", [field], variables, NotFoundError)
        labels = template[field]
        entries = np.arange(labels.size).reshape(labels.shape)
        for dim, names in output.select.items():
            check_names(f"{path}.select.{dim}", f"dimension of {field} called", [dim], labels.dims, NotFoundError)
            known_names = list(labels.indexes.get(dim, ()))
            check_names(f"{path}.select.{dim}", f"entry of {field} called", names, known_names, NotFoundError)
            places = [known_names.index(entry) for entry in names]
            entries = entries.take(places, labels.dims.index(dim))
            labels = labels.isel({dim: places})
        for dim in labels.dims:  # two outputs may select different entries
            selected = list(labels.indexes.get(dim, range(labels.sizes[dim])))
            if entries_by_dim.setdefault(dim, selected) != selected:
                labels = labels.rename({dim: f"{name}_{dim}"})
        for quantity in self.plan.quantities:
            if quantity.dim in (*labels.dims, f"{name}_bin"):
                text = f"{path} itself has a dimension '{quantity.dim}': write another one"
                raise wrong(f"vary.{quantity.target}.dim", text)
        if "histogram" in (output.reduce or ()):
            first, last = _range(output, labels.size)
            if not (np.isfinite(last - first).all() and (first < last).all()):
                form = "[first, last] with first < last, the same for all entries or one for each"
                raise wrong(f"{path}.range", f"a histogram needs {form}, found {output.range}")
        return _Column(name, output, output.key, field, entries.ravel() if output.select else None, labels)

    @cached_property
    def fingerprint(self) -> str:
        """Identifies robot and study: a store has results of one."""

        def fields(struct: Any) -> dict[str, Any]:
            # All of them, because fields equal to their defaults are not omitted after a copy.
            fields_of = msgspec.structs.asdict(struct)
            return {name: _plain(x) if isinstance(x, Overlay) else x for name, x in fields_of.items()}

        study = self.specification
        structs = [{name: fields(x) for name, x in part.items()} for part in (study.vary, study.samples, study.outputs)]
        content = [self.robot.fingerprint, FORMAT, *structs, study.keep, study.check]
        return hashlib.sha256(_encoded(content)).hexdigest()[:32]

    @cached_property
    def made_with(self) -> str:
        """The versions and the processor that the last bits of the results depend on."""
        packages = ", ".join(f"{name} {version(name)}" for name in ("dyn_service", "numpy", "scipy", "llvmlite"))
        return f"{packages}, {host().triple} {host().cpu} with {host().lanes} lanes"

    def state(self, index: int) -> dict[str, Any]:
        """Returns the inputs of a state, such as that of an extreme, by its index."""
        return self.plan.state(int(index))

    def explain(self, *, workers: int | None = None, store: str | os.PathLike[str] | None = None) -> Estimate:
        """Returns states, time and memory of a run, from the time of a chunk or fewer states.

        Args:
            workers: See `run`.
            store: That of an earlier run, which is only read: what is done there takes no time. It may be new.

        Raises:
            FailedPreconditionError: As `run`, if the store has results of another robot or study.
        """
        exists = store is not None and Path(store, "zarr.json").is_file()
        group = stores.open_root(store, "r") if exists else None
        count, done = None, None
        if group is not None and self._belongs(group, store):
            count = int(group.attrs["chunks"])
            # Metadata that a run restores; until then its tasks count as not done.
            with suppress(LookupError, TypeError, ValueError):
                done = self._tasks_done(group, store)[0]
        count = count or self._default_chunks()
        tasks = self._ranges(count)
        missing = np.ones((self._outer, len(tasks)), bool) if done is None else ~done
        states_left = int((missing * [self._states(*task) for task in tasks]).sum())
        threads = workers or os.cpu_count() or 1
        elapsed, of_processor = self._state_seconds * states_left if states_left else (0.0, 0.0)
        at_once = max(1, min(threads, int(missing.sum())))
        per_state = sum(8 * w.labels.size for w in self._columns if w.spec.reduce is None) + bool(self._stored_names)
        chunks, small = self._outer * self._chunks, sum(x.nbytes for x in self._start(1).values())
        size = self.plan.states * per_state + chunks * small
        inputs = 8 * 4 * self.robot.nv * math.prod(self._tile)
        memory = threads * (inputs * 3 + 2 * count * math.prod(self._chunk) * per_state) + self.plan.kept_bytes
        left = states_left, int((missing * [last - first for first, last in tasks]).sum())
        return Estimate(
            self.plan.states, missing.size, elapsed / at_once, size, int(memory), chunks, *left, of_processor, at_once
        )

    @property
    def _stored_names(self) -> list[str]:
        """The arrays of every state."""
        names = [w.name for w in self._columns if w.spec.reduce is None]
        return [*names, "code"] if names else []

    @cached_property
    def _state_seconds(self) -> Array:
        """Seconds of elapsed and of processor time for one state, from a chunk, or fewer states if they take long."""
        _ = self._columns, tiles.code()  # compiles

        def clocks() -> Array:
            return np.array([time.perf_counter(), time.process_time()])

        for number, max_states in enumerate((tiles.LANES, tiles.LANES, 32 * tiles.LANES, TILE)):
            block = next(blocks(self._reduced, extent(self._chunk, max_states)))
            begin = clocks()
            self._tile_answers([*(slice(0, 1) for _ in self._kept_shape), *block])
            seconds = clocks() - begin
            # Not the first call, which may compile.
            if number and seconds[1] > PILOT_S:
                return seconds / math.prod(_shape(block))
        begin = clocks()
        self.task(0, 0, 1)
        return (clocks() - begin) / self._states(0, 1)

    def _states(self, first: int, last: int) -> int:
        """Returns the number of states of chunks."""
        return sum(math.prod(_shape(chunk)) for chunk in blocks(self._reduced, self._chunk, first, last))

    def _default_chunks(self) -> int:
        seconds = self._state_seconds[1] * math.prod(self._chunk)
        return max(1, min(int(TASK_S / max(seconds, 1e-6)), MAX_CHUNKS, self._chunks))

    def _ranges(self, chunks: int) -> list[tuple[int, int]]:
        """Returns for each task its first chunk, and the chunk after its last."""
        return [(first, min(first + chunks, self._chunks)) for first in range(0, self._chunks, chunks)]

    def _tile_answers(self, slices: Sequence[slice]) -> tuple[dict[str, Any], list[Array]]:
        """Returns the inputs at a tile, and of each output the entries (states, entries)."""
        inputs = self.plan.block(slices)
        lead = tuple(size for size in _shape(slices) if size > 1)
        try:
            answers = {key: answer(inputs) for key, answer in self._answers.items()}
        except DynError:
            # Raises for a number that no robot has: counted as a failed state, it would sample another distribution.
            self.plan.check(slices)
            raise
        entries = []
        for column in self._columns:
            x = np.asarray(answers[column.key][column.field], dtype=np.float64)
            core = x.shape[x.ndim - column.labels.ndim :]
            if x.shape != lead + core:
                x = np.broadcast_to(x, lead + core)
            x = x.reshape(math.prod(lead), math.prod(core))
            entries.append(x if column.entries is None else x.take(column.entries, axis=1))
        return inputs, entries

    def _start(self, chunks: int) -> dict[str, Any]:
        """Returns the results of a task without states: smallest x and -x, and sums of x, x^2, |x|^3 by chunk."""
        results: dict[str, Any] = {"codes": np.zeros(4, np.int64), "first": np.full(4, -1, np.int64)}
        results["count"] = np.zeros(chunks, np.int64)
        for column in self._columns:
            size, reduce = column.labels.size, set(column.spec.reduce or ())
            if reduce & {*_EXTREMES}:
                results[f"{column.name} extremes"] = np.full((2, size), np.inf)
                results[f"{column.name} places"] = np.full((2, size), -1, np.int64)
            if reduce & {*_ROOTS}:
                results[f"{column.name} sums"] = np.zeros((chunks, 3, size))
            if "histogram" in reduce:
                results[f"{column.name} histogram"] = np.zeros((size, column.spec.bins + 2), np.int64)
        return results

    def task(self, outer: int, first: int, last: int) -> dict[str, Any]:
        """Computes chunks `first` to `last` at one place of the kept dimensions; returns the results by array."""
        fixed = [slice(int(k), int(k) + 1) for k in np.unravel_index(outer, self._kept_shape)]
        results, sweep = self._start(last - first), self._sweep()
        states: list[tuple[Any, dict[str, Any]]] = []
        for number, reduced in enumerate(blocks(self._reduced, self._chunk, first, last)):
            chunk = (*fixed, *reduced)
            shape = _shape(chunk)
            arrays = {w.name: np.empty((*shape, w.labels.size)) for w in self._columns if w.spec.reduce is None}
            if self._stored_names:
                arrays["code"] = np.zeros(shape, np.uint8)
            # With a sweep, rows along the last dimension, one after the other.
            for row in blocks(shape, shape if sweep is None else (*(1 for _ in shape[1:]), shape[-1])):
                slices, swept = _shifted(row, chunk), 0
                if sweep is not None:
                    swept, reductions = sweep(slices)
                    self._add(results, number, self._first(slices), swept, reductions, (), None)
                rest = (*row[:-1], *(slice(part.start + swept, part.stop) for part in row[-1:]))
                for tile in blocks(_shape(rest), self._tile):
                    inner = _shifted(tile, rest)
                    slices = _shifted(inner, chunk)
                    inputs, answers = self._tile_answers(slices)
                    reductions = [tiles.reduced(x) for x in answers]
                    codes = self._codes(inputs, answers, reductions, _shape(slices))
                    count = math.prod(_shape(slices))
                    self._add(results, number, self._first(slices), count, reductions, answers, codes)
                    columns = {w.name: x for w, x in zip(self._columns, answers, strict=True)} | {"code": codes}
                    for name, array in arrays.items():
                        if (x := columns[name]) is not None:
                            array[tuple(inner)] = x.reshape(array[tuple(inner)].shape)
            if arrays:
                states.append((chunk, arrays))
        results["states"] = states
        return results

    @cached_property
    def _kernel(self) -> Any:
        """The kernel of the study, if its tiles can be drawn, computed and reduced by compiled code."""
        answer = next(iter(self._answers.values()))
        plain = len(self._answers) == 1 and isinstance(answer, Row) and not self.specification.check
        plain = plain and not any(w.spec.reduce is None or "histogram" in w.spec.reduce for w in self._columns)
        plain = plain and all(quantity.input and quantity.entry is None for quantity in self.plan.quantities)
        return answer.kernel(self.plan.state(0)) if plain and self._tile[-1:] == (TILE,) else None

    def _sweep(self) -> Callable[[Sequence[slice]], tuple[int, list[Array]]] | None:
        """Returns a function of a row: its number of states, 0 if one is not finite, and `tiles.reduced` by output."""
        if self._kernel is None:
            return None
        loop, signature, defaults = self._kernel
        quantities = {quantity.input: quantity for quantity in self.plan.quantities}
        inputs = [quantities.get(operand.name) for operand in signature.inputs]
        last = self.plan.dims[-1]
        along_last = [
            (k, x) for k, x in enumerate(inputs) if x is not None and x.dim == last and not self.plan.keeps(x)
        ]
        point_functions = {k: quantity.points() for k, quantity in along_last if quantity.points is not None}
        sweep = tiles.Sweep(loop, signature, point_functions)
        for k, x in enumerate(defaults, len(inputs) - len(defaults)):
            sweep.set(k, x, np.ndim(x))

        def row(slices: Sequence[slice]) -> tuple[int, list[Array]]:
            for k, quantity in enumerate(inputs):
                if quantity is not None and k not in point_functions:
                    part = slices[self.plan.dims.index(quantity.dim)] if quantity.dim else slice(0, 0)
                    x = self.plan.values(quantity, part)
                    sweep.set(k, x if quantity.dim in (None, last) else x[0], len(quantity.shape))
            count = (slices[-1].stop - slices[-1].start) // tiles.LANES * tiles.LANES
            numbers = sweep(count, slices[-1].start)
            # A row with a state that failed is computed again by tiles, which find and count that state.
            count *= bool(np.isfinite(numbers[2]).all())
            return count, [numbers if w.entries is None else numbers[:, w.entries] for w in self._columns]

        return row

    def _first(self, slices: Sequence[slice]) -> int:
        """Returns the index of the first state of a block.

        Chunks and tiles are ranges of the index: their blocks are whole in all dimensions after the divided one.
        """
        return sum(int(part.start) * math.prod(self.plan.shape[k + 1 :]) for k, part in enumerate(slices))

    def _add(self, results: Any, chunk: int, start: int, count: int, reductions: Any, answers: Any, codes: Any) -> None:
        """Adds `count` states from index `start` on.

        reductions: `tiles.reduced` of each output. codes: None if no state failed.
        """
        ok: Any = None
        if codes is not None:
            for k, code in enumerate((NOT_FINITE, *BEYOND.values())):
                bad = np.flatnonzero(codes & code)
                results["codes"][k] += len(bad)
                if len(bad) and results["first"][k] < 0:
                    results["first"][k] = start + bad[0]
            ok = np.flatnonzero(codes & NOT_FINITE == 0)
            if len(ok) < count:
                answers = [x[ok] for x in answers]
                count, reductions = len(ok), [tiles.reduced(x) for x in answers]
        results["count"][chunk] += count
        if not count:
            return
        for k, (column, numbers) in enumerate(zip(self._columns, reductions, strict=True)):
            if (extremes := results.get(f"{column.name} extremes")) is not None:
                best, places = np.stack([numbers[0], -numbers[1]]), numbers[5:].astype(np.int64)
                # Strictly, so that of equal values the first state counts.
                better = best < extremes
                extremes[better] = best[better]
                results[f"{column.name} places"][better] = start + (places if ok is None else ok[places])[better]
            if (sums := results.get(f"{column.name} sums")) is not None:
                sums[chunk] += numbers[2:5]
            if (counts := results.get(f"{column.name} histogram")) is not None:
                first, last = _range(column.spec, column.labels.size)
                tiles.count(answers[k], first, column.spec.bins / (last - first), counts)

    def _codes(
        self, inputs: Mapping[str, Any], answers: Sequence[Array], numbers: Sequence[Array], shape: tuple[int, ...]
    ) -> Any:
        """Returns the codes of the states of a tile; None if all are 0. numbers: `tiles.reduced` of each answer."""
        count = math.prod(shape)
        codes = None
        if not all(np.isfinite(reduced[2]).all() for reduced in numbers):
            good = [np.isfinite(x).all(axis=1) for x in answers]
            codes = np.where(np.logical_and.reduce(good), 0, NOT_FINITE).astype(np.uint8)
        lead = tuple(n for n in shape if n > 1)
        limits = self.robot.limits
        for limit in self.specification.check:
            if limit == "effort":
                pairs = []
                for column, x, reduced in zip(self._columns, answers, numbers, strict=True):
                    if _is_effort(column):
                        largest = limits.efforts if column.entries is None else limits.efforts[column.entries]
                        pairs.append((x.reshape(*lead, x.shape[-1]), -largest, largest, reduced))
            else:
                x = np.asarray(inputs["q" if limit == "position" else "v"], dtype=np.float64)
                bounds = (limits.lower, limits.upper) if limit == "position" else (-limits.speeds, limits.speeds)
                pairs = [(x, *bounds, tiles.reduced(x.reshape(-1, x.shape[-1])))]
            for x, low, high, reduced in pairs:
                if (reduced[0] >= low).all() and (reduced[1] <= high).all() and np.isfinite(reduced[2]).all():
                    continue
                bad = np.broadcast_to(((x < low) | (x > high)).any(axis=-1), lead).ravel()
                if bad.any():
                    codes = np.zeros(count, np.uint8) if codes is None else codes
                    codes[bad] |= BEYOND[limit]
        return codes

    def run(
        self,
        store: str | os.PathLike[str] | None = None,
        *,
        workers: int | None = None,
        chunks: int | None = None,
        scheduler: str | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> Any:
        """Computes what is missing in the store, and returns the results.

        Args:
            store: A folder for the results (Zarr); None: they are kept in memory.
            workers: Threads of this process; None: one for each core.
            chunks: Chunks of a task, for a new store; None: for some tenths of a second.
            scheduler: The address of a Dask scheduler whose workers compute.
            progress: Called with the completed fraction.

        Returns:
            A Dataset: of a reduction `OUTPUT_max` with `OUTPUT_max_index`, the index for `state`. In the store the
            reductions are the group `result`, stored states the arrays of the root.

        Raises:
            FailedPreconditionError: The store has results of another robot or study, another run writes it, or it was
                begun, and is not complete, with other versions or on another kind of processor.
        """
        for name, count_given in (("workers", workers), ("chunks", chunks)):
            if count_given is not None and count_given < 1:
                raise wrong(name, f"must be at least 1, found {count_given}")
        with stores.locked(store):
            with stores.writing(store):
                group, done = self._open(store, chunks)
            count = int(group.attrs["chunks"])
            ranges = self._ranges(count)
            missing = [(k, *ranges[t]) for k, t in np.argwhere(~done).tolist()]
            finished, report = done.size - len(missing), progress or (lambda share: None)
            with self._executor(workers, scheduler) as (submit, max_waiting):
                waiting, queue = dict[Future[Any], tuple[int, int, int]](), iter(missing)
                try:
                    while True:
                        while len(waiting) < max_waiting and (task := next(queue, None)) is not None:
                            waiting[submit(*task)] = task
                        if not waiting:
                            break
                        for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                            k, first, _ = waiting.pop(future)
                            results = future.result()
                            with stores.writing(store):
                                self._write(group, k, first, count, results)
                            finished += 1
                            report(finished / done.size)
                except BaseException:
                    # Also Ctrl-C: the executor would otherwise compute all that waits before it ends.
                    for future in waiting:
                        future.cancel()
                    raise
            result = self.results(group, store)
            if store is not None:
                self._keep(result, store)
            return result

    def _keep(self, result: Any, store: Any) -> None:
        """Writes the reductions to the group `result`, unless the same are in it."""
        small = result.drop_vars([w.name for w in self._columns if w.spec.reduce is None])
        names = {name: x.astype(object) for name, x in small.coords.items() if x.dtype.kind == "U"}
        small = small.assign_coords(names)
        try:
            with load("a study", "xarray").open_zarr(str(Path(store)), group="result", consolidated=False) as present:
                if present.load().identical(small):
                    return
        except Exception as error:  # noqa: BLE001  missing, damaged, or not written completely
            _LOG.debug("writes the group result of %s: %s", store, error)
        # A missing chunk reads as the fill value: -1 is not a count, and of an index it means none.
        encoding: dict[str, Any] = {str(name): {"compressors": stores.codecs()} for name in small.variables}
        for name in [name for name, x in small.variables.items() if x.dtype.kind == "i"]:
            encoding[name]["fill_value"] = -1
        with stores.writing(store):
            small.to_zarr(str(Path(store)), group="result", mode="w", consolidated=False, encoding=encoding)

    @contextmanager
    def _executor(self, workers: int | None, scheduler: str | None) -> Iterator[tuple[Callable[..., Future[Any]], int]]:
        """Yields the function that submits `task`, and how many tasks wait or run at a time."""
        # Not dask's threaded scheduler, which returns all results at the end: a killed run would lose them.
        if scheduler is None:
            count = workers or os.cpu_count() or 1
            # Before the threads start, each of which would compute them.
            _ = self._columns, self.plan.state(0)
            with ThreadPoolExecutor(count, thread_name_prefix="study") as threads:
                yield lambda *chunk_range: threads.submit(self.task, *chunk_range), 2 * count
            return
        distributed = load("--scheduler", "distributed")
        expected = (self.fingerprint, self.made_with)
        with distributed.Client(scheduler, set_as_default=False) as client:
            executor = client.get_executor(pure=False, retries=10)
            # The result of a task, so that each worker gets it once, and again if it was lost.
            content = client.submit(bytes, pickle.dumps((self.robot, self.specification)), pure=False, retries=10)
            count = sum(worker["nthreads"] for worker in client.scheduler_info(n_workers=-1)["workers"].values())
            yield partial(executor.submit, _remote, content, expected), 2 * max(count, 1)

    def _belongs(self, group: Any, store: Any) -> bool:
        """Returns whether a store has results; raises the error if they are of another study."""
        if (fingerprint := group.attrs.get("fingerprint")) not in (None, self.fingerprint):
            study = f"({group.attrs['robot']}, {fingerprint})"
            raise unusable(store, f"has results of another robot or study {study}: {ANOTHER}")
        return fingerprint is not None

    def _tasks_done(self, group: Any, store: Any) -> tuple[Any, list[Path]]:
        """Returns which tasks are done, (outer, tasks), and files that are missing or damaged: their tasks are not.

        The chunks of stored states are not read: their checksums are verified when they are.
        """
        ranges, results, faulty = self._ranges(int(group.attrs["chunks"])), group["partial/tasks"], list[Path]()
        states, sound = [group[name] for name in self._stored_names], stores.is_readable(results)
        done = np.zeros((self._outer, len(ranges)), bool)
        for k, t in np.ndindex(done.shape):
            if (file := stores.chunk_file(results, store, (k, t))).is_file():
                place = np.unravel_index(k, self._kept_shape)
                chunks = blocks(self._reduced, self._chunk, *ranges[t])
                firsts = [(*map(int, place), *(part.start for part in chunk)) for chunk in chunks]
                files = [stores.chunk_file(array, store, first) for array in states for first in firsts]
                bad = [] if sound or stores.is_readable(results, (k, t)) else [file]
                bad += [file for file in files if not file.is_file()]
                done[k, t] = not bad
                faulty += bad
        return done, faulty

    def _open(self, store: Any, chunks: int | None) -> tuple[Any, Any]:
        """Returns the group of a store, which is made if it is new, and which tasks are done."""
        content: dict[str, Any] = {}
        group = stores.memory_root(content) if store is None else stores.open_root(store, "a")
        if not self._belongs(group, store):
            attributes = {"robot": self.robot.name, "fingerprint": self.fingerprint, "made_with": self.made_with}
            stores.seal(group, {**attributes, "chunks": chunks or self._default_chunks()})
        count = int(group.attrs["chunks"])
        self._create(stores.memory_root(content), count)
        if store is None:
            return group, np.zeros((self._outer, len(self._ranges(count))), bool)
        stores.restore(store, content)
        done, faulty = self._tasks_done(group, store)
        if faulty:
            names = listing([*map(str, faulty)], 8)
            _LOG.warning("computes again what missing or damaged files had: %s", names)
        # The last bits of a kernel may depend on the processor, and a store has those of one.
        if group.attrs["made_with"] != self.made_with and not done.all():
            reason = f"{group.attrs['made_with']}; here, with {self.made_with}, results may have other last bits"
            raise unusable(store, f"was begun with {reason}: complete it there, or {ANOTHER}")
        return group, done

    def _create(self, group: Any, count: int) -> None:
        """Creates the arrays: a chunk for each task with its 64-bit numbers, and those of stored states."""
        size = sum(x.size for x in self._start(count).values())
        tasks = {"shape": (self._outer, len(self._ranges(count)), size), "chunks": (1, 1, size), "dtype": "i8"}
        group.require_group("partial").create_array("tasks", compressors=stores.codecs(), **tasks)
        shape, dims = (*(1 for _ in self._kept_shape), *self._chunk), list(self.plan.dims)
        for column in self._columns:
            if column.spec.reduce is None:
                core, labels = column.labels.shape, column.labels
                sizes = {"shape": (*self.plan.shape, *core), "chunks": (*shape, *core), "dtype": "f8"}
                metadata: dict[str, Any] = {"dimension_names": [*dims, *map(str, labels.dims)]}
                metadata |= {"attributes": {k: str(v) for k, v in labels.attrs.items()}}
                group.create_array(column.name, fill_value=np.nan, compressors=stores.codecs(), **sizes, **metadata)
        if self._stored_names:
            sizes = {"shape": self.plan.shape, "chunks": shape, "dtype": "u1", "dimension_names": dims}
            group.create_array("code", fill_value=NOT_COMPUTED, compressors=stores.codecs(), **sizes)

    def _write(self, group: Any, outer: int, first: int, count: int, results: dict[str, Any]) -> None:
        def write_chunk(array: Any, index: Any, x: Any) -> None:
            # Chunks of zeros are written too, so that a missing file is noticed.
            array.with_config({"write_empty_chunks": True})[index] = x

        for chunk, arrays in results.pop("states"):
            for name, x in arrays.items():
                write_chunk(group[name], chunk, x.reshape((*_shape(chunk), *group[name].shape[len(chunk) :])))
        # The last task may have fewer chunks than the array has rows for.
        padded = self._start(count)
        for name, x in results.items():
            padded[name][tuple(map(slice, x.shape))] = x
        numbers = np.concatenate([x.ravel().view("i8") for x in padded.values()])
        write_chunk(group["partial/tasks"], (outer, first // count), numbers)

    def _parts(self, group: Any) -> dict[str, Array]:
        """Returns the results of all tasks by name, (outer, tasks, ..)."""
        numbers, parts, first = group["partial/tasks"][:], dict[str, Array](), 0
        for name, x in self._start(int(group.attrs["chunks"])).items():
            part = np.ascontiguousarray(numbers[:, :, first : first + x.size]).view(x.dtype)
            parts[name], first = part.reshape(*part.shape[:2], *x.shape), first + x.size
        return parts

    def _reductions(self, column: _Column, parts: Mapping[str, Array]) -> Iterator[tuple[str, Array, dict[str, Any]]]:
        """Yields the reductions of an output, (outer, entries, ..), with their names and attributes."""
        name, labels, kinds = column.name, column.labels, column.spec.reduce or ()
        if f"{name} extremes" in parts:
            extremes, places = parts[f"{name} extremes"], parts[f"{name} places"]
            best, no_index = extremes.min(axis=1), np.iinfo(np.int64).max
            same = (extremes == best[:, None]) & (places >= 0)
            index = np.where(same, places, no_index).min(axis=1)
            # The minimum of x and of -x is the negative of the largest magnitude.
            largest = best.min(axis=1)
            index_largest = np.where(best == largest[:, None], index, no_index).min(axis=1)
            ends = ((best[:, 0], index[:, 0]), (-best[:, 1], index[:, 1]), (-largest, index_largest))
            for kind, (x, state_index) in zip(_EXTREMES, ends, strict=True):
                if kind in kinds:
                    yield kind, np.where(np.isfinite(x), x, np.nan), labels.attrs
                    attributes = {"units": "1", "long_name": f"index of the state with {name}_{kind}; -1: none"}
                    yield f"{kind}_index", np.where(np.isfinite(x), state_index, -1), attributes
        if "histogram" in kinds:
            attributes = {
                "units": "1",
                "long_name": "states by bin; the first and the last bin are outside the range",
                "range": json.dumps(column.spec.range, default=np.ndarray.tolist),
                "range_units": labels.attrs["units"],
            }
            yield "histogram", parts[f"{name} histogram"].sum(axis=1), attributes
        counts = parts["count"].sum(axis=(1, 2))
        for kind, (power, root) in _ROOTS.items():
            if kind in kinds:
                sums = parts[f"{name} sums"][..., power - 1, :].reshape(self._outer, -1, labels.size)
                # exact sums over chunks, so that their order has no effect on the last bit
                total = np.array([[math.fsum(terms) for terms in chunks.T] for chunks in sums]).reshape(len(sums), -1)
                yield kind, root(total / np.where(counts, counts, np.nan)[:, None]), labels.attrs

    def results(self, group: Any, store: Any = None) -> Any:
        """Returns the results in a complete store."""
        xarray = load("a study", "xarray")
        variables: dict[str, Any] = {}
        parts = self._parts(group)
        for column in self._columns:
            name, labels = column.name, column.labels
            if column.spec.reduce is None:
                array = group[name]
                states = stores.StoredStates(array, store)
                lazy = load("a study", "dask.array").from_array(states, chunks=array.chunks, name=False)
                variables[name] = ((*self.plan.dims, *labels.dims), lazy, labels.attrs)
                continue
            dims = (*self.plan.dims[: len(self._kept_shape)], *labels.dims)
            for suffix, x, attributes in self._reductions(column, parts):
                values = x.reshape((*self._kept_shape, *labels.shape, *x.shape[2:])) + 0  # -0 becomes 0
                bins = [f"{name}_bin"] if suffix == "histogram" else []
                variables[f"{name}_{suffix}"] = ((*dims, *bins), values, attributes)
        result = xarray.Dataset(variables)
        for labels in (self.plan.coordinates(), *(w.labels.indexes for w in self._columns)):
            result = result.assign_coords({n: (n, list(x)) for n, x in labels.items() if n in result.dims})
        codes, first = parts["codes"].sum(axis=(0, 1)), parts["first"]
        counts = dict(zip(("not finite", *BEYOND), codes.tolist(), strict=True))
        firsts = [int(x[x >= 0].min()) if (x >= 0).any() else -1 for x in np.moveaxis(first, -1, 0)]
        return result.assign_attrs(
            robot=self.robot.name,
            fingerprint=self.fingerprint,
            made_with=group.attrs["made_with"],
            states=self.plan.states,
            failures=json.dumps({n: k for n, k in counts.items() if k}),
            first_failures=json.dumps({n: w for (n, k), w in zip(counts.items(), firsts, strict=True) if k}),
        )


def _shape(slices: Sequence[slice]) -> tuple[int, ...]:
    return tuple(int(part.stop - part.start) for part in slices)


def _shifted(inner: Sequence[slice], outer: Sequence[slice]) -> list[slice]:
    """Returns the place of a block within another one."""
    return [slice(a.start + b.start, a.start + b.stop) for a, b in zip(outer, inner, strict=True)]


def _range(output: Output, entries: int) -> tuple[Array, Array]:
    """Returns the lower and upper ends of a histogram, (entries,) each."""
    try:
        ends = np.broadcast_to(np.array(output.range, dtype=np.float64), (entries, 2))
    except (TypeError, ValueError):
        ends = np.full((entries, 2), np.nan)
    return np.ascontiguousarray(ends[:, 0]), np.ascontiguousarray(ends[:, 1])


@lru_cache(maxsize=8)
def _received(content: bytes) -> Study:
    """Returns a study that was sent to this process."""
    study = Study(*pickle.loads(content))
    _ = study._columns
    return study


def _remote(content: bytes, expected: tuple[str, str], outer: int, first: int, last: int) -> dict[str, Any]:
    study = _received(content)
    if (study.fingerprint, study.made_with) != expected:
        raise FailedPreconditionError(
            f"a worker has {study.made_with} and study {study.fingerprint}, expected {expected[1]} and {expected[0]}: "
            "its results would have other bits",
            path="scheduler",
        )
    return study.task(outer, first, last)


def specification(values: Mapping[str, Any]) -> Specification:
    """Returns a study from plain values; errors name the path of a wrong one."""
    fields = dict(values)
    for part, kind in (("vary", Vary), ("samples", Samples), ("outputs", Output)):
        if isinstance(fields.get(part), Mapping):
            for key, values_of in fields[part].items():
                select = values_of.get("select") if isinstance(values_of, Mapping) else None
                for dim, names in select.items() if isinstance(select, Mapping) else ():
                    part_of(names, list[str], f"{part}.{key}.select.{dim}")
            fields[part] = {key: part_of(values_of, kind, f"{part}.{key}") for key, values_of in fields[part].items()}
    return part_of(fields, Specification)


def make_study(robot: Robot, **fields: Any) -> Study:
    """Returns the study of `Robot.study`; errors as `specification`."""
    return Study(robot, specification(fields))

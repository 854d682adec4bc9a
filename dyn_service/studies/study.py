"""Studies: queries at many states, reduced where they are computed, in a store that a second run completes.

    study = robot.study({"q": {"uniform": "limits"}, "v": {"constant": 0}, "a": {"constant": 0}},
                        {"tau": {"query": "inverse_dynamics", "reduce": ["min", "max", "rms"]}},
                        samples={"sample": {"count": 1_000_000}})
    print(study.explain())
    result = study.run("torques.zarr")

The states are divided into leaves of up to 65,536 states, and those into tiles of 4,096, each a box in the study's
dimensions that does not depend on how the study is run. Sums are added in order within a leaf, and over leaves
exactly (`math.fsum`), so that results have the same bits for any number of threads, processes or interruptions. A task
is some leaves. One process writes the store; a task's results come first, then its entry in `done`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from dyn_service.api.arrays import Array
from dyn_service.api.inputs import row_of
from dyn_service.api.queries import Overlay
from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.studies.plan import LEAF, NAME, TILE, Plan, Samples, Vary, blocks, extent
from dyn_service.support.optional import load
from dyn_service.support.suggestions import did_you_mean
from dyn_service.support.validation import MismatchError, convert, dotted

FORMAT = 2
"""Version of the store, part of its fingerprint."""

TASK_S, MAX_LEAVES = 0.5, 256
"""Seconds of a task, about, and the most leaves of one."""

Reduction = Literal["min", "max", "absmax", "mean", "rms", "cubic_mean", "histogram"]

_POWERS: Mapping[str, int] = {"mean": 1, "rms": 2, "cubic_mean": 3}
_EXTREMES = ("min", "max", "absmax")

NOT_FINITE, BEYOND = 1, {"position": 2, "velocity": 4, "effort": 8}
"""Codes of states: the answer is not finite (singular, or too large); a limit of the robot is exceeded."""

FUNCTIONS: Mapping[str, str] = {
    "design_loads": "dyn_service.studies.design_loads.Loads",
    "closed_loop": "dyn_service.studies.closed_loop.ClosedLoop",
}
"""Names in addition to those of queries, and the classes that answer them."""


class Output(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One output of a study.

    query: a row of the table, or one of `FUNCTIONS`. output: of its result; None: the only one. select: names by
    dimension. options: of the query. reduce: over all dimensions but those kept; None: every state is stored. bins,
    range: of the histogram, the range for all entries or one for each.
    """

    query: str
    output: str | None = None
    select: dict[str, list[str]] = {}
    options: dict[str, Any] = {}
    reduce: list[Reduction] | None = None
    bins: int = 100
    range: list[Any] | None = None


class Specification(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A study as data, as in a file of `dyn study`.

    check: limits whose violations are counted: position, velocity, effort.
    """

    vary: dict[str, Vary]
    outputs: dict[str, Output]
    samples: dict[str, Samples] = {}
    keep: list[str] = []
    check: list[Literal["position", "velocity", "effort"]] = []


class Estimate(NamedTuple):
    """What a run needs. seconds: predicted from one leaf. bytes: of the store. memory: bytes at a time."""

    states: int
    tasks: int
    seconds: float
    bytes: int
    memory: int

    def __str__(self) -> str:
        """Returns a one-line summary."""
        return (
            f"states: {self.states:,}, tasks: {self.tasks:,}; about {self.seconds:.3g} s, "
            f"{self.bytes / 1e6:.3g} MB in the store, {self.memory / 1e6:.3g} MB of memory"
        )


class Row:
    """The answers of a query of the table at blocks of states.

    required, accepted: names of inputs. template: the Dataset of one state, with dimensions, coordinates and units.
    """

    def __init__(self, robot: Robot, query: str, options: Mapping[str, Any]) -> None:
        self.robot, self.row, self.options = robot, row_of(query), dict(options)
        self.required, self.accepted = self.row.required, frozenset(self.row.inputs)

    def template(self, state: Mapping[str, Any]) -> Any:
        """Returns the labelled answer at one state."""
        xarray = load("a study", "xarray")
        at, spec = self.robot.configuration, self.row.inputs
        same = at.position_names == at.velocity_names
        given = {}
        for name, x in state.items():
            if name in spec and spec[name].shape in (("nq",), ("nv",)):
                of_q = spec[name].shape == ("nq",)
                dim, names = (
                    ("joint" if same or not of_q else "position"),
                    (at.position_names if of_q else at.velocity_names),
                )
                given[name] = xarray.DataArray(x, dims=dim, coords={dim: list(names)})
            elif name in spec:
                given[name] = x
        return getattr(self.robot, self.row.name)(**given, **self.options)

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Returns the outputs at a block of states."""
        given = {name: x for name, x in inputs.items() if name in self.row.inputs}
        return self.row.outputs_of(getattr(self.robot, self.row.name)(**given, **self.options))


class _Wanted(NamedTuple):
    """An output: its query, indices of its entries, labels, and reductions."""

    name: str
    of: Output
    key: str
    field: str
    entries: Any
    labels: Any
    sums: tuple[int, ...]


def folded(op: np.ufunc, x: Array) -> Array:
    """Returns op.reduce(x, axis=0) of (states, n), in an order that depends on the shape alone.

    64 states at a time are one long row: NumPy is slow at many short ones.
    """
    whole, n = len(x) // 64 * 64, x.shape[1]
    if not whole or not n:
        return np.asarray(op.reduce(x, axis=0))
    head = op.reduce(x[:whole].reshape(-1, 64 * n), axis=0).reshape(64, n)
    return np.asarray(op.reduce(head if whole == len(x) else np.concatenate([head, x[whole:]]), axis=0))


def _is_effort(of: _Wanted) -> bool:
    return bool(of.labels.attrs.get("units") == "N m | N" and of.labels.dims == ("joint",))


class Study:
    """A study of a robot; `Robot.study` makes it."""

    def __init__(self, robot: Robot, said: Specification) -> None:
        self.robot, self.said = robot, said
        self.plan = Plan(robot, said.vary, said.samples, said.keep)
        kept = len(said.keep)
        self._kept, self._reduced = self.plan.shape[:kept], self.plan.shape[kept:]
        self._leaf = extent(self._reduced, LEAF)
        self._tile = extent(self._leaf, TILE)
        self._leaves = math.prod(-(-n // s) for n, s in zip(self._reduced, self._leaf, strict=True))
        self._outer = math.prod(self._kept)
        self._local = threading.local()
        if not said.outputs:
            raise InvalidArgumentError("a study needs outputs", path="outputs")
        for name in said.outputs:
            if not re.fullmatch(NAME, name) or name in ("code", "partial", "result", *self.plan.dims):
                raise InvalidArgumentError(
                    f"an output cannot be called {name!r}: a name has letters, digits and _, and is none of code, "
                    "partial, result and the dimensions",
                    path=f"outputs.{name}",
                )

    @cached_property
    def _answers(self) -> dict[str, Any]:
        """Objects that answer, by query and options."""
        found: dict[str, Any] = {}
        for of in self.said.outputs.values():
            key = f"{of.query} {json.dumps(of.options, sort_keys=True)}"
            if key not in found:
                if of.query in FUNCTIONS:
                    module, _, name = FUNCTIONS[of.query].rpartition(".")
                    found[key] = getattr(import_module(module), name)(self.robot, of.options)
                else:
                    found[key] = Row(self.robot, of.query, of.options)
                for needed in found[key].required:
                    if needed not in self.plan.inputs:
                        raise InvalidArgumentError(
                            f"{of.query} needs '{needed}': vary it, or make it constant", path="vary"
                        )
        for quantity in self.plan.quantities:
            name = quantity.input or "overlay"
            if not any(name in each.accepted for each in found.values()):
                queries = ", ".join(sorted({key.partition(" ")[0] for key in found}))
                raise InvalidArgumentError(
                    f"no query of the study ({queries}) has the input '{name}', so {quantity.target} has no effect",
                    path=f"vary.{quantity.target}",
                )
        return found

    @cached_property
    def _wanted(self) -> list[_Wanted]:
        """The outputs; this computes one state."""
        state = self.plan.state(0)
        templates = {key: answer.template(state) for key, answer in self._answers.items()}
        found = []
        for name, of in self.said.outputs.items():
            key = f"{of.query} {json.dumps(of.options, sort_keys=True)}"
            variables = list(templates[key].data_vars)
            field = of.output or (variables[0] if len(variables) == 1 else "")
            if field not in variables:
                near = did_you_mean(field, variables)
                raise NotFoundError(
                    f"{of.query} has the outputs {', '.join(variables)}{near}", path=f"outputs.{name}.output"
                )
            labels, entries = templates[key][field], np.arange(templates[key][field].size)
            entries = entries.reshape(labels.shape)
            for dim, names in of.select.items():
                known = list(labels.indexes.get(dim, ()))
                for each in names:
                    if each not in known:
                        raise NotFoundError(
                            f"{field} has no entry '{each}' along '{dim}'{did_you_mean(each, map(str, known))}",
                            path=f"outputs.{name}.select.{dim}",
                        )
                places = [known.index(each) for each in names]
                entries = entries.take(places, labels.dims.index(dim))
                labels = labels.isel({dim: places})
            for dim in {*map(str, labels.dims), f"{name}_bin"} & {*self.plan.dims}:
                raise InvalidArgumentError(f"{of.query} itself has a dimension '{dim}': name another", path="vary")
            if of.reduce is not None and "histogram" in of.reduce and of.range is None:
                raise InvalidArgumentError("a histogram needs a range", path=f"outputs.{name}.range")
            sums = tuple(sorted({_POWERS[each] for each in of.reduce or () if each in _POWERS}))
            everything = entries.size == templates[key][field].size and not of.select
            found.append(_Wanted(name, of, key, field, None if everything else entries.ravel(), labels, sums))
        for each in self.said.check:
            if each == "effort":
                checked, what = any(map(_is_effort, found)), "an output of efforts, such as inverse_dynamics"
            else:
                name = "q" if each == "position" else "v"
                checked, what = name in self.plan.inputs, f"the quantity '{name}'"
            if not checked:
                raise InvalidArgumentError(f"the check of the {each} needs {what}", path="check")
        return found

    @cached_property
    def fingerprint(self) -> str:
        """Identifies robot and study: a store has results of one."""

        def plain(x: Any) -> Any:
            return repr(np.asarray(x).tolist()) if isinstance(x, np.ndarray | np.generic) else repr(x)

        def exact(of: Vary) -> Vary:
            given = {name: getattr(of, name) for name in ("constant", "values")}
            return msgspec.structs.replace(
                of, **{name: repr(x.content) for name, x in given.items() if isinstance(x, Overlay)}
            )

        tables = [of.table.tobytes() for of in self.plan.quantities if of.vary.recording]
        all_of = msgspec.structs.replace(self.said, vary={name: exact(of) for name, of in self.said.vary.items()})
        said = msgspec.json.encode(msgspec.to_builtins(all_of, enc_hook=plain), order="sorted")
        return hashlib.sha256(
            b" ".join([self.robot.fingerprint.encode(), str(FORMAT).encode(), said, *tables])
        ).hexdigest()[:32]

    def state(self, index: int) -> dict[str, Any]:
        """Returns the inputs of a state, such as that of an extreme, by its index."""
        return self.plan.state(int(index))

    def explain(self, *, workers: int | None = None) -> Estimate:
        """Returns states, time and memory of a run, from the time of one leaf."""
        took = self._leaf_seconds
        count = workers or os.cpu_count() or 1
        states = self.plan.states
        per_state = sum(8 * w.labels.size for w in self._wanted if w.of.reduce is None) + (1 if self._stored else 0)
        leaves = self._outer * self._leaves
        small = sum(8 * w.labels.size * (len(w.sums) + 2 * len(w.of.reduce or ())) for w in self._wanted)
        task = self._default_leaves() * math.prod(self._leaf)
        inputs = 8 * 4 * self.robot.nv * math.prod(self._tile)
        memory = count * (inputs * 3 + 2 * task * per_state) + sum(x.nbytes for x in self.plan._kept.values())
        full = states / math.prod(self._leaf)
        return Estimate(
            states,
            self._tasks(self._default_leaves()) * self._outer,
            took * full / count,
            states * per_state + leaves * small,
            int(memory),
        )

    @property
    def _stored(self) -> bool:
        return any(w.of.reduce is None for w in self._wanted)

    @cached_property
    def _leaf_seconds(self) -> float:
        """Returns the time of a full leaf."""
        self.task(0, 0, 1)  # compiles, and makes samples
        begun = time.perf_counter()
        self.task(0, 0, 1)
        return time.perf_counter() - begun

    def _default_leaves(self) -> int:
        return max(1, min(int(TASK_S / max(self._leaf_seconds, 1e-6)), MAX_LEAVES, self._leaves))

    def _tasks(self, leaves: int) -> int:
        return -(-self._leaves // leaves)

    def _tile_answers(self, at: Sequence[slice]) -> tuple[dict[str, Any], list[Array]]:
        """Returns the inputs at a tile, and of each output the entries (states, entries)."""
        inputs = self.plan.block(at)
        lead = tuple(part.stop - part.start for part in at if part.stop - part.start > 1)
        answers = {key: answer(inputs) for key, answer in self._answers.items()}
        found = []
        for wanted in self._wanted:
            x = np.asarray(answers[wanted.key][wanted.field], dtype=np.float64)
            core = x.shape[len(x.shape) - len(self._cores[wanted.name]) :]
            if x.shape != lead + core:
                x = np.broadcast_to(x, lead + core)
            x = x.reshape(math.prod(lead), math.prod(core))
            found.append(x if wanted.entries is None else x[:, wanted.entries])
        return inputs, found

    @cached_property
    def _cores(self) -> dict[str, tuple[int, ...]]:
        return {w.name: tuple(w.labels.shape) for w in self._wanted}

    def task(self, outer: int, first: int, last: int) -> dict[str, Any]:
        """Computes leaves `first` to `last` at one place of the kept dimensions; returns the results by array."""
        place = [int(k) for k in np.unravel_index(outer, self._kept)] if self._kept else []
        kept = [slice(k, k + 1) for k in place]
        base = outer * math.prod(self._reduced)
        made: dict[str, Any] = {"codes": np.zeros(5, np.int64), "first": np.full(5, -1, np.int64)}
        for wanted in self._wanted:
            size = wanted.labels.size
            for each in wanted.of.reduce or ():
                if each in _EXTREMES:
                    made[f"{wanted.name} {each}"] = np.full(size, np.inf if each == "min" else -np.inf)
                    made[f"{wanted.name} {each} index"] = np.full(size, -1, np.int64)
                elif each == "histogram":
                    made[f"{wanted.name} {each}"] = np.zeros((size, wanted.of.bins + 2), np.int64)
            for power in wanted.sums:
                made[f"{wanted.name} sum {power}"] = np.zeros((last - first, size))
        made["count"] = np.zeros(last - first, np.int64)
        states: list[tuple[Any, dict[str, Any]]] = []
        for number, leaf in enumerate(blocks(self._reduced, self._leaf, first, last)):
            shape = tuple(part.stop - part.start for part in leaf)
            stored = {w.name: np.empty((*shape, w.labels.size)) for w in self._wanted if w.of.reduce is None}
            if self._stored:
                stored["code"] = np.zeros(shape, np.uint8)
            for tile in blocks(shape, self._tile):
                at = [slice(a.start + b.start, a.start + b.stop) for a, b in zip(leaf, tile, strict=True)]
                self._tile_into(made, stored, kept, at, tile, base, number)
            if stored:
                states.append(((*kept, *leaf), stored))
        made["states"] = states
        return made

    def _tile_into(
        self,
        made: dict[str, Any],
        stored: Mapping[str, Any],
        kept: list[slice],
        at: list[slice],
        tile: Any,
        base: int,
        leaf: int,
    ) -> None:
        """Adds the states of one tile to the results of a task."""
        inputs, answers = self._tile_answers([*kept, *at])
        shape = tuple(part.stop - part.start for part in at)
        ends = [(folded(np.minimum, x), folded(np.maximum, x)) for x in answers]
        codes = self._codes(inputs, answers, ends, shape)
        # Leaves and tiles are ranges of the index: their blocks are whole along all dimensions after the divided one.
        start = base
        for k, part in enumerate(at):
            start += part.start * math.prod(self._reduced[k + 1 :])
        ok = None
        if codes is not None:
            for k, code in enumerate((NOT_FINITE, *BEYOND.values())):
                bad = np.flatnonzero(codes & code)
                made["codes"][k] += len(bad)
                if len(bad) and made["first"][k] < 0:
                    made["first"][k] = start + bad[0]
            ok = np.flatnonzero(codes & NOT_FINITE == 0) if (codes & NOT_FINITE).any() else None
        count = math.prod(shape) if ok is None else len(ok)
        made["count"][leaf] += count
        for wanted, x, end in zip(self._wanted, answers, ends, strict=True):
            if wanted.of.reduce is None:
                stored[wanted.name][tile] = x.reshape(*shape, -1)
            elif ok is None:
                self._reduce(made, wanted, x, end, leaf, range(start, start + count))
            elif count:
                some = x[ok]
                end = folded(np.minimum, some), folded(np.maximum, some)
                self._reduce(made, wanted, some, end, leaf, (start + ok).tolist())
        if stored and codes is not None:
            stored["code"][tile] = codes.reshape(shape)

    def _reduce(
        self,
        made: dict[str, Any],
        wanted: _Wanted,
        x: Array,
        end: tuple[Array, Array],
        leaf: int,
        indices: Sequence[int],
    ) -> None:
        """Adds finite rows (states, entries) with these smallest and largest numbers to the reductions of an output."""
        low, high = end
        for each in wanted.of.reduce or ():
            if each in _EXTREMES:
                values, places = made[f"{wanted.name} {each}"], made[f"{wanted.name} {each} index"]
                best = low if each == "min" else high if each == "max" else np.maximum(high, -low)
                better = best < values if each == "min" else best > values  # states of equal values came before
                for k in np.flatnonzero(better) if better.any() else ():
                    column = np.abs(x[:, k]) if each == "absmax" else x[:, k]
                    places[k], values[k] = indices[int((column == best[k]).argmax())], best[k]
            elif each == "histogram":
                bins = wanted.of.bins
                ranges = np.broadcast_to(np.array(wanted.of.range, dtype=np.float64), (x.shape[1], 2))
                first, last = ranges[:, 0], ranges[:, 1]
                found = np.floor((x - first) * (bins / (last - first))).clip(-1, bins).astype(np.int64)
                found += np.arange(x.shape[1]) * (bins + 2) + 1
                counted = made[f"{wanted.name} {each}"]
                counted += np.bincount(found.ravel(), minlength=counted.size).reshape(counted.shape)
        for power in wanted.sums:
            y = x
            if power > 1:
                y = np.multiply(x, x, out=self._scratch(x.shape))
            if power == 3:
                np.abs(np.multiply(y, x, out=y), out=y)
            made[f"{wanted.name} sum {power}"][leaf] += folded(np.add, y)

    def _scratch(self, shape: tuple[int, ...]) -> Array:
        """Returns memory of this thread for numbers of a tile."""
        kept: Any = self._local.__dict__
        if shape not in kept:
            kept.clear()
            kept[shape] = np.empty(shape)
        found: Array = kept[shape]
        return found

    def _codes(
        self,
        inputs: Mapping[str, Any],
        answers: Sequence[Array],
        ends: Sequence[tuple[Array, Array]],
        shape: tuple[int, ...],
    ) -> Any:
        """Returns the codes of the states of a tile; None if all are 0. ends: of each answer, smallest and largest."""
        count = math.prod(shape)
        codes = None
        if not all(math.isfinite(k) for pair in ends for end in pair for k in end.tolist()):
            good = [np.isfinite(x).all(axis=1) for x in answers]
            codes = np.where(np.logical_and.reduce(good), 0, NOT_FINITE).astype(np.uint8)
        lead = tuple(n for n in shape if n > 1)
        limits = self.robot.limits

        def of_input(name: str, low: Array, high: Array) -> list[Any]:
            x = np.asarray(inputs[name], dtype=np.float64)
            rows = x.reshape(-1, x.shape[-1])
            return [(x, low, high, (folded(np.minimum, rows), folded(np.maximum, rows)))]

        for each in self.said.check:
            if each == "position":
                pairs = of_input("q", limits.lower, limits.upper)
            elif each == "velocity":
                pairs = of_input("v", -limits.speeds, limits.speeds)
            else:
                pairs = []
                for wanted, x, end in zip(self._wanted, answers, ends, strict=True):
                    if _is_effort(wanted):
                        most = limits.efforts if wanted.entries is None else limits.efforts[wanted.entries]
                        pairs.append((x.reshape(*lead, x.shape[-1]), -most, most, end))
            for x, low, high, (smallest, largest) in pairs:
                if (smallest >= low).all() and (largest <= high).all():  # false for NaN
                    continue
                bad = np.broadcast_to(((x < low) | (x > high)).any(axis=-1), lead).ravel()
                if bad.any():
                    codes = np.zeros(count, np.uint8) if codes is None else codes
                    codes[bad] |= BEYOND[each]
        return codes

    def run(
        self,
        store: str | os.PathLike[str] | None = None,
        *,
        workers: int | None = None,
        leaves: int | None = None,
        scheduler: str | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> Any:
        """Computes what is missing in the store, and returns the results.

        Args:
            store: A folder for the results (Zarr); None: they are kept in memory.
            workers: Threads of this process; None: one for each core.
            leaves: Leaves of a task, for a new store; None: for some tenths of a second.
            scheduler: The address of a Dask scheduler whose workers compute.
            progress: Called with the completed fraction.

        Returns:
            A Dataset: of a reduction `OUTPUT_max` with `OUTPUT_max_index`, the index for `state`. In the store the
            reductions are the group `result`, stored states the arrays of the root.

        Raises:
            FailedPreconditionError: The store has results of another robot or study.
        """
        group = self._open(store, leaves)
        count = int(group.attrs["leaves"])
        parts = group["partial"]
        done = parts["done"][:]
        missing = [(int(k), int(t)) for k, t in np.argwhere(done == 0)]
        total = done.size
        with self._executor(workers, scheduler) as (executor, submit, most):
            waiting: dict[Future[Any], tuple[int, int]] = {}
            queue = iter(missing)
            finished = total - len(missing)
            try:
                while True:
                    while len(waiting) < most and (each := next(queue, None)) is not None:
                        k, t = each
                        waiting[submit(executor, k, t * count, min((t + 1) * count, self._leaves))] = each
                    if not waiting:
                        break
                    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                        k, t = waiting.pop(future)
                        self._write(group, k, t, count, future.result())
                        finished += 1
                        if progress is not None:
                            progress(finished / total)
            except BaseException:
                for future in waiting:
                    future.cancel()
                raise
        found = self.results(group)
        if store is not None:
            small = found.drop_vars([w.name for w in self._wanted if w.of.reduce is None])
            names = {name: x.astype(object) for name, x in small.coords.items() if x.dtype.kind == "U"}
            small.assign_coords(names).to_zarr(str(Path(store)), group="result", mode="w", consolidated=False)
        return found

    @contextmanager
    def _executor(self, workers: int | None, scheduler: str | None) -> Iterator[tuple[Any, Any, int]]:
        if scheduler is None:
            count = workers or os.cpu_count() or 1
            _ = self._wanted  # before threads need it

            def here(executor: Executor, *what: int) -> Future[Any]:
                return executor.submit(self.task, *what)

            with ThreadPoolExecutor(count, thread_name_prefix="study") as threads:
                yield threads, here, 2 * count
            return
        distributed = load("--scheduler", "distributed")
        content = pickle.dumps((self.robot, msgspec.to_builtins(self.said)))
        with distributed.Client(scheduler, set_as_default=False) as client:
            executor = client.get_executor(pure=False, retries=10)

            def there(executor: Any, *what: int) -> Any:
                return executor.submit(_remote, content, *what)

            threads_there = sum(each["nthreads"] for each in client.scheduler_info(n_workers=-1)["workers"].values())
            yield executor, there, 2 * max(threads_there, 1)

    def _open(self, store: Any, leaves: int | None) -> Any:
        """Returns the group of a store, which is made if it is new."""
        zarr = load("a study", "zarr")
        group = zarr.open_group(zarr.storage.MemoryStore() if store is None else str(Path(store)), mode="a")
        if "fingerprint" in group.attrs:
            if group.attrs["fingerprint"] != self.fingerprint:
                raise FailedPreconditionError(
                    f"the store '{store}' has results of another robot or study ({group.attrs['robot']}, "
                    f"{group.attrs['fingerprint']}): name a new one",
                    path="store",
                )
            if group.attrs["ready"]:
                return group
            for name in [name for name, _ in group.members()]:  # an earlier run ended while it made them
                del group[name]
        elif list(group.members()):
            raise FailedPreconditionError(f"'{store}' is no store of a study: name a new one", path="store")
        count = leaves or self._default_leaves()
        tasks = self._tasks(count)
        template = self.task(0, 0, 1)
        group.attrs.update({"robot": self.robot.name, "leaves": count, "fingerprint": self.fingerprint, "ready": False})
        parts = group.require_group("partial")
        for name, x in template.items():
            if name == "states":
                continue
            by_leaf = name == "count" or " sum " in name
            core = x.shape[1:] if by_leaf else x.shape
            size = self._leaves if by_leaf else tasks
            parts.create_array(
                name,
                shape=(self._outer, size, *core),
                chunks=(1, count if by_leaf else 1, *core),
                dtype=x.dtype,
                fill_value=0,
            )
        leaf = (*(1 for _ in self._kept), *self._leaf)
        for wanted in self._wanted:
            if wanted.of.reduce is None:
                core = self._cores[wanted.name]
                group.create_array(
                    wanted.name,
                    shape=(*self.plan.shape, *core),
                    chunks=(*leaf, *core),
                    dtype="f8",
                    fill_value=np.nan,
                    dimension_names=[*self.plan.dims, *map(str, wanted.labels.dims)],
                    attributes={k: str(v) for k, v in wanted.labels.attrs.items()},
                )
        if self._stored:
            group.create_array(
                "code",
                shape=self.plan.shape,
                chunks=leaf,
                dtype="u1",
                fill_value=0,
                dimension_names=list(self.plan.dims),
            )
        parts.create_array("done", shape=(self._outer, tasks), chunks=(1, 1), dtype="u1", fill_value=0)
        group.attrs["ready"] = True
        return group

    def _write(self, group: Any, outer: int, task: int, count: int, made: dict[str, Any]) -> None:
        parts = group["partial"]
        for at, stored in made.pop("states"):
            for name, x in stored.items():
                shape = tuple(part.stop - part.start for part in at)
                group[name][at] = x.reshape(*shape, *self._cores.get(name, ()))
        for name, x in made.items():
            if name == "count" or " sum " in name:
                parts[name][outer, task * count : task * count + len(x)] = x
            else:
                parts[name][outer, task] = x
        parts["done"][outer, task] = 1

    def results(self, group: Any) -> Any:
        """Returns the results in a complete store."""
        xarray = load("a study", "xarray")
        known = self.plan.coordinates()
        dims, shape = self.plan.dims[: len(self._kept)], self._kept
        variables: dict[str, Any] = {}
        parts = group["partial"]
        counts = parts["count"][:].sum(axis=1)
        for wanted in self._wanted:
            name, labels, core = wanted.name, wanted.labels, self._cores[wanted.name]
            if wanted.of.reduce is None:
                array = group[name]
                variables[name] = ((*self.plan.dims, *labels.dims), _lazy(array), labels.attrs)
                continue

            def put(what: str, x: Any, *more: str, core: Any = core, labels: Any = labels, name: str = name) -> None:
                extra = x.shape[2:]
                variables[f"{name}_{what}"] = (
                    (*dims, *labels.dims, *more),
                    x.reshape((*shape, *core, *extra)) + 0,  # -0 becomes 0
                    labels.attrs,
                )

            for each in wanted.of.reduce:
                if each in _EXTREMES:
                    values, places = parts[f"{name} {each}"][:], parts[f"{name} {each} index"][:]
                    sign = values if each == "min" else -values
                    best = np.nanmin(np.where(np.isnan(sign), np.inf, sign), axis=1)
                    same = np.where((sign == best[:, None]) & (places >= 0), places, np.iinfo(np.int64).max).min(axis=1)
                    put(each, np.where(np.isfinite(best), best if each == "min" else -best, np.nan))
                    put(f"{each}_index", np.where(np.isfinite(best), same, -1))
                elif each == "histogram":
                    put(each, parts[f"{name} {each}"][:].sum(axis=1), f"{name}_bin")
            for each in wanted.of.reduce:
                if each in _POWERS:
                    sums = parts[f"{name} sum {_POWERS[each]}"][:]
                    total = np.array([[math.fsum(column) for column in of.T] for of in sums]).reshape(len(sums), -1)
                    mean = total / np.where(counts, counts, np.nan)[:, None]
                    root: Any = {"mean": np.positive, "rms": np.sqrt, "cubic_mean": np.cbrt}[each]
                    put(each, root(mean))
        made = xarray.Dataset(variables)
        made = made.assign_coords({n: (n, x) for n, x in known.items() if n in made.dims})
        for wanted in self._wanted:
            made = made.assign_coords({n: (n, list(x)) for n, x in wanted.labels.indexes.items() if n in made.dims})
        codes, first = parts["codes"][:].sum(axis=(0, 1)), parts["first"][:]
        named = dict(zip(("not finite", "position", "velocity", "effort"), codes.tolist(), strict=False))
        where = [int(x[x >= 0].min()) if (x >= 0).any() else -1 for x in np.moveaxis(first, -1, 0)]
        return made.assign_attrs(
            robot=self.robot.name,
            fingerprint=self.fingerprint,
            states=self.plan.states,
            failures=json.dumps({n: k for n, k in named.items() if k}),
            first_failures=json.dumps({n: w for (n, k), w in zip(named.items(), where, strict=False) if k}),
        )


def _lazy(array: Any) -> Any:
    return load("a study", "dask.array").from_zarr(array)


@lru_cache(maxsize=8)
def _received(content: bytes) -> Study:
    """Returns a study that was sent to this process."""
    robot, said = pickle.loads(content)
    study = Study(robot, specification(said))
    _ = study._wanted
    return study


def _remote(content: bytes, outer: int, first: int, last: int) -> dict[str, Any]:
    return _received(content).task(outer, first, last)


def specification(said: Mapping[str, Any]) -> Specification:
    """Returns a study from plain values.

    Raises:
        InvalidArgumentError: A value has the wrong type or name; `path` names it.
    """
    try:
        return convert(said, Specification)
    except MismatchError as fault:
        raise InvalidArgumentError(str(fault), path=dotted(fault.place)) from None

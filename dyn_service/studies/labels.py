"""Labelled and lazy arrays: `xarray.DataArray` in, `xarray.Dataset` out; dask arrays in, dask graphs out.

    robot.inverse_dynamics(q, v, a)     # DataArrays with the dimension `joint` -> Dataset with tau (.., joint)

Leading dimensions broadcast by name. Entries of q and v are taken by their names in the coordinate `joint`, in any
order. `DIMENSIONS` names the dimensions of results. Units, meaning and equation are in `attrs`. If an input is lazy,
the result is: a graph with the chunks of the inputs, computed state by state when it is asked for, in this process or
on a cluster. dask arrays without labels give dask arrays in the result of the plain call; their axes broadcast by
position.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Any

import msgspec
import numpy as np

from dyn_service.api.arrays import Placeholder, found, holds_labelled, is_labelled, numbers
from dyn_service.api.cost import leads_of
from dyn_service.api.laws import SHAPES
from dyn_service.api.lists import row_of
from dyn_service.api.queries import COMPUTATIONS, Computation, Query, RobotQueries, Row
from dyn_service.api.spec import BY_NAME, DIRECTIONS, Spec
from dyn_service.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from dyn_service.studies.keys import check_names, wrong
from dyn_service.support.optional import load

DIMENSIONS: Mapping[str | int, str] = {
    "nq": "position",
    "nv": "joint",
    "nl": "link",
    "nj": "urdf_joint",
    "nm": "moving_joint",
    "nr": "rate",
    "na": "pair",
    "nt": "parameter",
    "nb": "body",
    "nc": "contact",
    "nf": "free_joint",
    "np": "prescribed_joint",
    "K": "time",
    3: "axis",
    6: "component",
}
"""The dimension of each symbol and size of the table. `position` is called `joint` too if q and v have the same names;
a second dimension of the same symbol ends with `_column`. `urdf_joint` includes fixed joints.
"""

_VECTORS = ("com", "gravity", "torque", "force", "point", "plane", "normal")
_PARTS: Mapping[str, tuple[str | int, ...]] = {**SHAPES, **dict.fromkeys(_VECTORS, (3,)), "inertia": (3, 3)}
"""Core shapes of the numbers in overlays, payloads, wrenches, contacts and laws."""

_UNNAMED = "leading axes without names, in a call with labelled or lazy arrays: make it a DataArray"

_OVER_TIME = {*SHAPES, "torque", "force", "point"}
"""Numbers of laws and wrenches that may be samples over time in simulations."""

_OBJECTS = BY_NAME | {"wrenches", "payload", "contacts", "overlay", "motions"}
"""Kinds of inputs that are no arrays."""

_NAMES: Mapping[str, tuple[str, ...]] = {"axis": ("x", "y", "z"), "component": DIRECTIONS}


@dataclass(frozen=True)
class _Slot(Placeholder):
    """The place of an array among the arguments of a call."""

    index: int


@dataclass(frozen=True)
class _CoreArray:
    """An array from the arguments. dims: of its leading axes, in order. data: (leading axes, core shape)."""

    array: Any
    dims: tuple[Hashable, ...]
    core: int


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or is_labelled(value)


def replace_within(value: Any, matches: Callable[[Any], bool], new: Callable[[Any, str], Any], name: str = "") -> Any:
    """Returns an argument with `new(value, name)` instead of each value within it for which `matches` holds."""
    if matches(value):
        return new(value, name)
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(replace_within(entry, matches, new, name) for entry in value)
    if isinstance(value, Mapping):
        return {key: replace_within(entry, matches, new, name) for key, entry in value.items()}
    names = value.__struct_fields__ if isinstance(value, msgspec.Struct) else ()
    if is_dataclass(value) and not isinstance(value, type):
        names = tuple(value.__dataclass_fields__)
    changes = {field: replace_within(getattr(value, field), matches, new, field) for field in names if field != "model"}
    changes = {field: x for field, x in changes.items() if x is not getattr(value, field)}
    if not changes:
        return value
    return msgspec.structs.replace(value, **changes) if isinstance(value, msgspec.Struct) else replace(value, **changes)


class _Call:
    """A call of a row with arrays instead of slots; it can be sent to other processes.

    Calls: the arrays -> the outputs in order, without those that are None.
    """

    def __init__(self, robot: RobotQueries, row: str, arguments: Mapping[str, Any], cores: Sequence[int]) -> None:
        self.robot, self.row, self.arguments, self.cores = robot, row, arguments, cores
        self.same: tuple[str, ...] = ()  # outputs that are the same for all states, such as times

    def result(self, arrays: Sequence[Any]) -> Any:
        """Returns the result of the row's method."""
        row = _row(self.row)
        # Of a list of queries each must have all leading axes, also one that does not need every input.
        if isinstance(row, Query) and row.parts:
            lead = np.broadcast_shapes(*(x.shape[: x.ndim - n] for x, n in zip(arrays, self.cores, strict=True)))
            arrays = [np.broadcast_to(x, lead + x.shape[x.ndim - n :]) for x, n in zip(arrays, self.cores, strict=True)]
        is_slot = lambda x: isinstance(x, _Slot)
        arguments = replace_within(self.arguments, is_slot, lambda slot, _: _plain(arrays[slot.index]))
        if isinstance(row, Query) and row.parts:
            return self.robot.evaluate([part.name for part in row.parts], **arguments)
        return getattr(self.robot, self.row)(**arguments)

    def outputs(self, result: Any) -> dict[str, Any]:
        """Returns the outputs in a result that are there, and its labels, by name."""
        row = _row(self.row)
        if isinstance(row, Query):
            outputs = row.outputs_of(result)
        elif row.output is not None:
            outputs = dict(result) if isinstance(result, Mapping) else {row.output: result}
        else:
            outputs = {name: getattr(result, name) for name in row.result_names}
        return {name: x for name, x in outputs.items() if x is not None}

    def __call__(self, *arrays: Any) -> Any:
        labels = {*_row(self.row).labels, *self.same}
        outputs_by_name = self.outputs(self.result(arrays))
        outputs = tuple(np.asarray(x, dtype=np.float64) for name, x in outputs_by_name.items() if name not in labels)
        return outputs if len(outputs) != 1 else outputs[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, (pickle.dumps((self.robot, self.row, self.arguments, self.cores)), self.same)

    def __dask_tokenize__(self) -> str:
        return hashlib.sha256(pickle.dumps((self.robot, self.row, self.arguments))).hexdigest()


@lru_cache(maxsize=32)
def _unpacked(content: bytes, same: tuple[str, ...]) -> _Call:
    """Returns a call that was sent to this process; its robot is made once."""
    call = _Call(*pickle.loads(content))
    call.same = same
    return call


def _row(name: str) -> Row:
    return COMPUTATIONS[name] if name in COMPUTATIONS else row_of(name)


def _plain(array: Any) -> Any:
    return array.tolist() if array.dtype.kind in "OUT" else array


def answer_labelled(robot: RobotQueries, row: Row, arguments: Mapping[str, Any]) -> Any:
    """Returns the answer to a call of the row's method with labelled or lazy arrays.

    Returns:
        A Dataset; of a list, one for each query by its name. For dask arrays without labels the method's result, with
        dask arrays.

    Raises:
        DynError: Dimensions or names of an array are not those of its input, or do not fit those of the others; lazy
            arrays were given to a remote robot; xarray or dask is not installed.
    """
    arguments = {name: x for name, x in arguments.items() if x is not None}
    if (out := arguments.get("out")) is not None:
        rule = "must be arrays of NumPy, not" if holds_labelled(out) else "cannot be given with"
        raise InvalidArgumentError(f"out {rule} labelled or lazy arrays", path="out")
    inputs = _Inputs(robot, row)
    options = {parameter: inputs.without_arrays(parameter, x) for parameter, x in arguments.items()}
    arrays, dims, coordinates = inputs.aligned()
    inputs.check_distinct(dims, coordinates)
    call = _Call(robot, row.name, options, [x.core for x in inputs.arrays])
    lazy = any(_is_dask(x) for x in arrays)
    if lazy:
        if not hasattr(robot, "share"):  # as `Robot` has
            text = "a remote robot does not take lazy arrays: load them with .compute(), or load the robot with Robot"
            raise UnimplementedError(text)
        # A call without states gives shapes and labels, so that the graph is made before anything is computed.
        cores = zip(arrays, call.cores, strict=True)
        answer = call.outputs(call.result([np.zeros((0, *x.shape[x.ndim - n :]), x.dtype) for x, n in cores]))
        outputs = _numbers(row, answer)
        call.same = tuple(name for name, x in outputs.items() if x.shape[:1] != (0,))
        outputs |= _graph(call, arrays, {name: x.shape[1:] for name, x in outputs.items() if name not in call.same})
    else:
        answer = call.outputs(call.result(arrays))
        outputs = _numbers(row, answer)
    if not inputs.labelled:
        return row.result({**answer, **outputs})
    labels = dims, coordinates, options
    if isinstance(row, Query) and row.parts:
        return {part.name: _dataset(robot, part, answer, outputs, *labels, f"{part.name}.") for part in row.parts}
    return _dataset(robot, row, answer, outputs, *labels, "")


def _is_dask(array: Any) -> bool:
    return type(array).__module__.startswith("dask")


def _numbers(row: Row, outputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(x) for name, x in outputs.items() if name not in row.labels}


def _graph(call: _Call, arrays: Sequence[Any], cores: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Returns the outputs as dask arrays, with the inputs' chunks along leading axes."""
    dask = load("lazy arrays", "dask.array")
    letters = (f"n{k}" for k in count())
    sizes: dict[str, int] = {}

    def symbols(shape: tuple[int, ...]) -> str:
        names = [next(letters) for _ in shape]
        sizes.update(zip(names, shape, strict=True))
        return f"({','.join(names)})"

    input_signature = ",".join(symbols(x.shape[x.ndim - n :]) for x, n in zip(arrays, call.cores, strict=True))
    inputs = set(sizes)
    signature = f"{input_signature}->{','.join(symbols(core) for core in cores.values())}"
    rechunked = [
        x.rechunk(dict.fromkeys(range(x.ndim - n, x.ndim), -1)) if _is_dask(x) else x
        for x, n in zip(arrays, call.cores, strict=True)
    ]
    results = dask.apply_gufunc(
        call,
        signature,
        *rechunked,
        allow_rechunk=True,  # of leading dimensions to common chunks
        output_dtypes=[np.float64] * len(cores) if len(cores) > 1 else np.float64,
        output_sizes={name: size for name, size in sizes.items() if name not in inputs},
    )
    return dict(zip(cores, results if isinstance(results, tuple) else (results,), strict=True))


class _Inputs:
    """The arrays among the arguments of a call."""

    def __init__(self, robot: RobotQueries, row: Row) -> None:
        self.robot, self.row = robot, row
        self.arrays: list[_CoreArray] = []
        self.labelled = False
        self._plain: list[str] = []  # arguments with leading axes without names
        configuration = robot.configuration
        self.same = configuration.position_names == configuration.velocity_names
        self.names = {"nq": configuration.position_names, "nv": configuration.velocity_names}

    def without_arrays(self, parameter: str, value: Any) -> Any:
        """Returns an argument with slots instead of the arrays that are taken from it."""
        spec_name = self.row.parameters.get(parameter) or ""
        spec = self.row.inputs.get(spec_name)
        if spec is None:
            if holds_labelled(value):
                raise InvalidArgumentError(f"{parameter} cannot be a labelled or lazy array", path=parameter)
            return value
        if holds_labelled(value):
            return replace_within(value, _is_array, lambda x, part: self._slot_for(parameter, spec, x, part))
        if spec.kind not in _OBJECTS and (array := numbers(value)) is not None and array.ndim > len(spec.shape):
            self._plain.append(parameter)
            self.arrays.append(_CoreArray(array, (), len(spec.shape)))
            return _Slot(len(self.arrays) - 1)
        if spec.kind in _OBJECTS and isinstance(self.row, Query) and leads_of(self.row, {spec_name: value})[spec_name]:
            raise wrong(parameter, _UNNAMED)
        return value

    def _slot_for(self, parameter: str, spec: Spec, value: Any, part: str) -> Any:
        """Takes an array; `part` is the name of its field in an object."""
        path = f"{parameter}.{part}" if part else parameter
        shape = _PARTS.get(part, ()) if part else () if spec.kind == "link" else spec.shape
        if isinstance(value, np.ndarray):
            if value.ndim > len(shape):
                self._plain.append(path)
            return value
        if _is_dask(value) and not part:
            if not hasattr(value, "dtype") or value.dtype.kind not in "fiu":
                raise InvalidArgumentError(f"{path} must be real numbers, found {found(value)}", path=path)
            self.arrays.append(_CoreArray(value, (), len(shape)))
        else:
            if not hasattr(value, "dims") or not hasattr(value, "coords") or not hasattr(value, "data"):
                raise wrong(path, f"must be an xarray.DataArray, or an array of numbers, found {type(value).__name__}")
            self.labelled = True
            over_time = self._is_over_time(spec, part)
            array = self._array(path, shape, value, scalar=spec.scalar and not part, over_time=over_time)
            self.arrays.append(array)
        return _Slot(len(self.arrays) - 1)

    def _is_over_time(self, spec: Spec, part: str) -> bool:
        """Whether the input may be samples over time."""
        over_time = isinstance(self.row, Computation) and any("K" in x.shape for x in self.row.outputs.values())
        return over_time and (part in _OVER_TIME if part else spec.kind == "effort")

    def _array(self, path: str, shape: tuple[str | int, ...], x: Any, *, scalar: bool, over_time: bool) -> _CoreArray:
        """Returns a DataArray with its core dimensions last, in the order of the robot."""
        names_text = " or ".join(dict.fromkeys(_dimension(symbol, same=self.same) for symbol in shape))
        if x.dtype.kind not in ("OUT" if not shape and x.dtype.kind not in "fiu" else "fiu"):
            raise InvalidArgumentError(f"{path} must be real numbers, found {found(x)}", path=path)
        core: list[Hashable] = ["time"] if over_time else []
        if over_time and "time" not in x.dims:
            # A single sample is held through the motion.
            x = x.expand_dims("time")
        for symbol in shape:
            names = [_dimension(symbol, same=self.same), *(["joint"] if symbol == "nq" else [])]
            candidates = (candidate for n in names for candidate in (n, f"{n}_column"))
            name = next((n for n in candidates if n in x.dims and n not in core), None)
            size = len(self.names[str(symbol)]) if symbol in self.names else symbol if isinstance(symbol, int) else None
            if name is None and scalar:
                name = f"{names[0]} of {path}"
                x = x.expand_dims({name: size}, axis=-1)
            elif name is None:
                present = ", ".join(map(repr, x.dims)) or "no dimensions"
                raise InvalidArgumentError(f"{path} must have the dimension '{names_text}', found {present}", path=path)
            elif symbol in self.names:
                x = self._in_order(path, name, self.names[str(symbol)], x)
            elif size is not None and x.sizes[name] != size:
                raise wrong(path, f"the dimension '{name}' has {x.sizes[name]} entries, expected {size}")
            elif name in x.indexes and (order := _NAMES.get(names[0])) and set(x.indexes[name]) == set(order):
                x = x.sel({name: list(order)})
            core.append(name)
        x = x.transpose(..., *core)
        dims = x.dims[: x.ndim - len(core)]
        x = x.drop_vars([name for name, coordinate in x.coords.items() if set(coordinate.dims) & set(core)])
        return _CoreArray(x.rename({name: f"{name} of {path}, {k}" for k, name in enumerate(core)}), dims, len(core))

    def _in_order(self, path: str, dimension: Hashable, names: tuple[str, ...], x: Any) -> Any:
        """Returns entries in the robot's order."""
        if dimension not in x.indexes:
            raise wrong(path, f"needs a coordinate '{dimension}' with the names {', '.join(names)}, in any order")
        entries = [str(name) for name in x.indexes[dimension]]
        if entries == list(names):
            return x
        check_names(path, f"entry of robot '{self.robot.name}' called", entries, names, NotFoundError)
        for k, name in enumerate(entries):
            if name in entries[:k]:
                raise InvalidArgumentError(f"{path} has two entries '{name}'", path=path)
        if missing := [name for name in names if name not in entries]:
            raise InvalidArgumentError(f"{path} has no entry {', '.join(map(repr, missing))}", path=path)
        return x.isel({dimension: [entries.index(name) for name in names]})

    def aligned(self) -> tuple[list[Any], tuple[Hashable, ...], Any]:
        """Returns the arrays, whose leading axes broadcast; the names of these axes; their coordinates."""
        if not self.labelled:
            return [x.array for x in self.arrays], (), None
        xarray = load("labelled arrays", "xarray")
        unnamed = [*self._plain, *(f"array {k}" for k, x in enumerate(self.arrays) if not hasattr(x.array, "dims"))]
        if unnamed:
            raise wrong(unnamed[0], _UNNAMED)
        try:
            aligned = xarray.align(*(x.array for x in self.arrays), join="exact", copy=False)
            coordinates = xarray.merge([x.coords.to_dataset() for x in aligned], join="exact", compat="override").coords
        except ValueError as fault:
            raise InvalidArgumentError(f"the labels of the arrays differ: {fault}", path="inputs") from None
        sizes: dict[Hashable, int] = {}
        for x, source in zip(aligned, self.arrays, strict=True):
            for name in source.dims:
                if sizes.setdefault(name, x.sizes[name]) != x.sizes[name]:
                    raise wrong("inputs", f"the dimension '{name}' has {sizes[name]} and {x.sizes[name]} entries")
        dims = tuple(sizes)
        arrays = []
        for x, source in zip(aligned, self.arrays, strict=True):
            x = x.transpose(*(name for name in dims if name in source.dims), *x.dims[len(source.dims) :])
            axes = [slice(None) if name in source.dims else None for name in dims]
            arrays.append(x.data[(*axes, ...)] if None in axes else x.data)
        return arrays, dims, coordinates

    def check_distinct(self, dims: Sequence[Hashable], coordinates: Any) -> None:
        """Refuses leading dimensions and coordinates with a name that the result needs."""
        outputs = {name.rpartition(".")[2] for name in self.row.outputs}
        axes = {name for spec in self.row.outputs.values() for name in _dimensions(spec.shape, same=self.same)}
        for label in (*dims, *(coordinates or ())):
            if label in outputs or (label in axes and (label in dims or coordinates[label].ndim)):
                kind = "dimension" if label in dims else "coordinate"
                role = "" if label in outputs else "a dimension of "
                text = f"the {kind} '{label}' has the name of {role}an output of {self.row.name}: rename it"
                raise wrong("inputs", text)


def _dimension(symbol: str | int, *, same: bool) -> str:
    return "joint" if same and symbol == "nq" else DIMENSIONS.get(symbol, f"entry_of_{symbol}")


def _dimensions(shape: Sequence[str | int], *, same: bool) -> list[str]:
    """Returns the names of the dimensions of an output, all different."""
    names: list[str] = []
    for symbol in shape:
        name = _dimension(symbol, same=same)
        while name in names:
            name += "_column"
        names.append(name)
    return names


def _dataset(
    robot: RobotQueries,
    row: Row,
    answer: Mapping[str, Any],
    outputs: Mapping[str, Any],
    dims: tuple[Hashable, ...],
    coordinates: Any,
    arguments: Mapping[str, Any],
    prefix: str,
) -> Any:
    """Returns the outputs of a row with their labels."""
    xarray = load("labelled arrays", "xarray")
    configuration = robot.configuration
    same = configuration.position_names == configuration.velocity_names
    variables: dict[str, Any] = {}
    used_dimensions: set[str] = set()
    for name, x in outputs.items():
        spec = row.outputs.get(name.removeprefix(prefix), None) if name.startswith(prefix) else None
        if spec is None and not prefix and row.output is not None:  # residuals by name
            spec = row.outputs[row.output]
        if spec is None:
            continue
        core_dims = _dimensions(spec.shape, same=same)
        lead = dims[len(dims) - (x.ndim - len(core_dims)) :]
        used_dimensions.update(core_dims)
        variables[name.removeprefix(prefix)] = ((*lead, *core_dims), x, {"units": spec.unit, "long_name": spec.text})
    labels: dict[str, Any] = {"link": robot.link_names, **_NAMES}
    labels |= {"joint": configuration.velocity_names, "position": configuration.position_names}
    extra: dict[str, Any] = {}
    for label, names in row.labels.items():
        dimension = _dimension(names.dimension, same=same)
        if names.of == "row" and dimension != "pair":
            labels[dimension] = answer[prefix + label]
        else:
            extra[label] = (dimension, list(answer[prefix + label]))
    for name in used_dimensions:
        if (entries := labels.get(name.replace("_column", ""))) is not None:
            extra[name] = (name, list(entries))
    options = {name: str(x) for name, x in arguments.items() if name in row.options and row.options[name].default != x}
    attributes = {
        "query": row.name,
        "equation": row.equation,
        "description": row.summary,
        "robot": robot.name,
        "fingerprint": robot.fingerprint,
        **options,
    }
    leading = {name: x for name, x in coordinates.items() if set(x.dims) <= set(dims)}
    dataset = xarray.Dataset(variables, attrs=attributes).assign_coords(leading | extra)
    times = dataset.get("t")
    if times is None or times.dims != ("time",):
        return dataset
    return dataset.drop_vars("t").assign_coords(time=("time", times.values, times.attrs))

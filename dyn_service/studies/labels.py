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
from dyn_service.api.queries import COMPUTATIONS, QUERIES, Computation, Query, RobotQueries, Row
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

_PARTS: Mapping[str, tuple[str | int, ...]] = {
    **SHAPES,
    **dict.fromkeys(("com", "gravity", "torque", "force", "point", "plane", "normal"), (3,)),
    "inertia": (3, 3),
}
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
class _Taken:
    """An array from the arguments. dims: of its leading axes, in order. data: (leading axes, core shape)."""

    array: Any
    dims: tuple[Hashable, ...]
    core: int


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or is_labelled(value)


def swapped(value: Any, where: Callable[[Any], bool], new: Callable[[Any, str], Any], name: str = "") -> Any:
    """Returns an argument with `new(value, name)` instead of each value within it for which `where` holds."""
    if where(value):
        return new(value, name)
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(swapped(each, where, new, name) for each in value)
    if isinstance(value, Mapping):
        return {key: swapped(each, where, new, name) for key, each in value.items()}
    names = value.__struct_fields__ if isinstance(value, msgspec.Struct) else ()
    if is_dataclass(value) and not isinstance(value, type):
        names = tuple(value.__dataclass_fields__)
    changed = {of: swapped(getattr(value, of), where, new, of) for of in names if of != "model"}
    changed = {of: x for of, x in changed.items() if x is not getattr(value, of)}
    if not changed:
        return value
    return msgspec.structs.replace(value, **changed) if isinstance(value, msgspec.Struct) else replace(value, **changed)


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
        if isinstance(row, Query) and row.parts:  # so that every query of the list has all leading axes
            lead = np.broadcast_shapes(*(x.shape[: x.ndim - n] for x, n in zip(arrays, self.cores, strict=True)))
            arrays = [np.broadcast_to(x, lead + x.shape[x.ndim - n :]) for x, n in zip(arrays, self.cores, strict=True)]
        given = swapped(self.arguments, lambda x: isinstance(x, _Slot), lambda slot, _: _plain(arrays[slot.index]))
        if isinstance(row, Query) and row.parts:
            return self.robot.evaluate([part.name for part in row.parts], **given)
        return getattr(self.robot, self.row)(**given)

    def outputs(self, result: Any) -> dict[str, Any]:
        """Returns the outputs in a result that are there, and its labels, by name."""
        row = _row(self.row)
        if isinstance(row, Query):
            named = row.outputs_of(result)
        elif row.output is not None:
            named = dict(result) if isinstance(result, Mapping) else {row.output: result}
        else:
            named = {name: getattr(result, name) for name in row.result_names}
        return {name: x for name, x in named.items() if x is not None}

    def __call__(self, *arrays: Any) -> Any:
        labels = {*_row(self.row).labels, *self.same}
        named = self.outputs(self.result(arrays))
        outputs = tuple(np.asarray(x, dtype=np.float64) for name, x in named.items() if name not in labels)
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
    return COMPUTATIONS[name] if name in COMPUTATIONS else QUERIES[name]


def _plain(array: Any) -> Any:
    return array.tolist() if array.dtype.kind in "OUT" else array


def ask(robot: RobotQueries, row: Row, arguments: Mapping[str, Any]) -> Any:
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
        what = "must be arrays of NumPy, not" if holds_labelled(out) else "cannot be given with"
        raise InvalidArgumentError(f"out {what} labelled or lazy arrays", path="out")
    inputs = _Inputs(robot, row)
    given = {parameter: inputs.without_arrays(parameter, x) for parameter, x in arguments.items()}
    arrays, dims, coordinates = inputs.together()
    inputs.check_distinct(dims, coordinates)
    call = _Call(robot, row.name, given, [x.core for x in inputs.taken])
    lazy = any(_is_dask(x) for x in arrays)
    if lazy:
        if not hasattr(robot, "share"):  # as `Robot` has
            raise UnimplementedError(
                "a remote robot does not take lazy arrays: load them with .compute(), or load the robot with Robot"
            )
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
    if isinstance(row, Query) and row.parts:
        return {
            part.name: _dataset(robot, part, answer, outputs, dims, coordinates, given, f"{part.name}.")
            for part in row.parts
        }
    return _dataset(robot, row, answer, outputs, dims, coordinates, given, "")


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

    wanted = ",".join(symbols(x.shape[x.ndim - n :]) for x, n in zip(arrays, call.cores, strict=True))
    inputs = set(sizes)
    signature = f"{wanted}->{','.join(symbols(core) for core in cores.values())}"
    given = [
        x.rechunk(dict.fromkeys(range(x.ndim - n, x.ndim), -1)) if _is_dask(x) else x
        for x, n in zip(arrays, call.cores, strict=True)
    ]
    made = dask.apply_gufunc(
        call,
        signature,
        *given,
        allow_rechunk=True,  # of leading dimensions to common chunks
        output_dtypes=[np.float64] * len(cores) if len(cores) > 1 else np.float64,
        output_sizes={name: size for name, size in sizes.items() if name not in inputs},
    )
    return dict(zip(cores, made if isinstance(made, tuple) else (made,), strict=True))


class _Inputs:
    """The arrays among the arguments of a call."""

    def __init__(self, robot: RobotQueries, row: Row) -> None:
        self.robot, self.row = robot, row
        self.taken: list[_Taken] = []
        self.labelled = False
        self._plain: list[str] = []  # arguments with leading axes without names
        at = robot.configuration
        self.same = at.position_names == at.velocity_names
        self.names = {"nq": at.position_names, "nv": at.velocity_names}

    def without_arrays(self, parameter: str, value: Any) -> Any:
        """Returns an argument with slots instead of the arrays that are taken from it."""
        spec_name = self.row.parameters.get(parameter) or ""
        spec = self.row.inputs.get(spec_name)
        if spec is None:
            if holds_labelled(value):
                raise InvalidArgumentError(f"{parameter} cannot be a labelled or lazy array", path=parameter)
            return value
        if holds_labelled(value):
            return swapped(value, _is_array, lambda x, part: self._take(parameter, spec, x, part))
        if spec.kind not in _OBJECTS and (array := numbers(value)) is not None and array.ndim > len(spec.shape):
            self._plain.append(parameter)
            self.taken.append(_Taken(array, (), len(spec.shape)))
            return _Slot(len(self.taken) - 1)
        if spec.kind in _OBJECTS and isinstance(self.row, Query) and leads_of(self.row, {spec_name: value})[spec_name]:
            raise wrong(parameter, _UNNAMED)
        return value

    def _take(self, parameter: str, spec: Spec, value: Any, part: str) -> Any:
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
            self.taken.append(_Taken(value, (), len(shape)))
        else:
            if not hasattr(value, "dims") or not hasattr(value, "coords") or not hasattr(value, "data"):
                raise wrong(path, f"must be an xarray.DataArray, or an array of numbers, found {type(value).__name__}")
            self.labelled = True
            self.taken.append(
                self._named(path, shape, value, scalar=spec.scalar and not part, timed=self._timed(spec, part))
            )
        return _Slot(len(self.taken) - 1)

    def _timed(self, spec: Spec, part: str) -> bool:
        """Whether the input may be samples over time."""
        over_time = isinstance(self.row, Computation) and any("K" in each.shape for each in self.row.outputs.values())
        return over_time and (part in _OVER_TIME if part else spec.kind == "effort")

    def _named(self, path: str, shape: tuple[str | int, ...], x: Any, *, scalar: bool, timed: bool) -> _Taken:
        """Returns a DataArray with its core dimensions last, in the order of the robot."""
        wanted = " or ".join(dict.fromkeys(_dimension(symbol, same=self.same) for symbol in shape))
        if x.dtype.kind not in ("OUT" if not shape and x.dtype.kind not in "fiu" else "fiu"):
            raise InvalidArgumentError(f"{path} must be real numbers, found {found(x)}", path=path)
        core: list[Hashable] = ["time"] if timed else []
        if timed and "time" not in x.dims:
            x = x.expand_dims("time")  # held through the motion
        for symbol in shape:
            names = [_dimension(symbol, same=self.same), *(["joint"] if symbol == "nq" else [])]
            name = next(
                (each for n in names for each in (n, f"{n}_column") if each in x.dims and each not in core), None
            )
            size = len(self.names[str(symbol)]) if symbol in self.names else symbol if isinstance(symbol, int) else None
            if name is None and scalar:
                name = f"{names[0]} of {path}"
                x = x.expand_dims({name: size}, axis=-1)
            elif name is None:
                there = ", ".join(map(repr, x.dims)) or "no dimensions"
                raise InvalidArgumentError(f"{path} must have the dimension '{wanted}', found {there}", path=path)
            elif symbol in self.names:
                x = self._in_order(path, name, self.names[str(symbol)], x)
            elif size is not None and x.sizes[name] != size:
                raise wrong(path, f"the dimension '{name}' has {x.sizes[name]} entries, expected {size}")
            elif name in x.indexes and (order := _NAMES.get(names[0])) and set(x.indexes[name]) == set(order):
                x = x.sel({name: list(order)})
            core.append(name)
        x = x.transpose(..., *core)
        dims = x.dims[: x.ndim - len(core)]
        x = x.drop_vars([name for name, of in x.coords.items() if set(of.dims) & set(core)])
        return _Taken(x.rename({name: f"{name} of {path}, {k}" for k, name in enumerate(core)}), dims, len(core))

    def _in_order(self, path: str, dimension: Hashable, names: tuple[str, ...], x: Any) -> Any:
        """Returns entries in the robot's order."""
        if dimension not in x.indexes:
            raise wrong(path, f"needs a coordinate '{dimension}' with the names {', '.join(names)}, in any order")
        given = [str(name) for name in x.indexes[dimension]]
        if given == list(names):
            return x
        check_names(path, f"entry of robot '{self.robot.name}' called", given, names, NotFoundError)
        for k, name in enumerate(given):
            if name in given[:k]:
                raise InvalidArgumentError(f"{path} has two entries '{name}'", path=path)
        if missing := [name for name in names if name not in given]:
            raise InvalidArgumentError(f"{path} has no entry {', '.join(map(repr, missing))}", path=path)
        return x.isel({dimension: [given.index(name) for name in names]})

    def together(self) -> tuple[list[Any], tuple[Hashable, ...], Any]:
        """Returns the arrays, whose leading axes broadcast; the names of these axes; their coordinates."""
        if not self.labelled:
            return [x.array for x in self.taken], (), None
        xarray = load("labelled arrays", "xarray")
        unnamed = [*self._plain, *(f"array {k}" for k, x in enumerate(self.taken) if not hasattr(x.array, "dims"))]
        if unnamed:
            raise wrong(unnamed[0], _UNNAMED)
        try:
            aligned = xarray.align(*(x.array for x in self.taken), join="exact", copy=False)
            coordinates = xarray.merge([x.coords.to_dataset() for x in aligned], join="exact", compat="override").coords
        except ValueError as fault:
            raise InvalidArgumentError(f"the labels of the arrays differ: {fault}", path="inputs") from None
        sizes: dict[Hashable, int] = {}
        for x, of in zip(aligned, self.taken, strict=True):
            for name in of.dims:
                if sizes.setdefault(name, x.sizes[name]) != x.sizes[name]:
                    raise wrong("inputs", f"the dimension '{name}' has {sizes[name]} and {x.sizes[name]} entries")
        dims = tuple(sizes)
        arrays = []
        for x, of in zip(aligned, self.taken, strict=True):
            x = x.transpose(*(name for name in dims if name in of.dims), *x.dims[len(of.dims) :])
            axes = [slice(None) if name in of.dims else None for name in dims]
            arrays.append(x.data[(*axes, ...)] if None in axes else x.data)
        return arrays, dims, coordinates

    def check_distinct(self, dims: Sequence[Hashable], coordinates: Any) -> None:
        """Refuses leading dimensions and coordinates with a name that the result needs."""
        outputs = {name.rpartition(".")[2] for name in self.row.outputs}
        axes = {name for spec in self.row.outputs.values() for name in _dimensions(spec.shape, same=self.same)}
        for label in (*dims, *(coordinates or ())):
            if label in outputs or (label in axes and (label in dims or coordinates[label].ndim)):
                kind, role = (
                    ("dimension" if label in dims else "coordinate"),
                    "" if label in outputs else "a dimension of ",
                )
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
    given: Mapping[str, Any],
    prefix: str,
) -> Any:
    """Returns the outputs of a row with their labels."""
    xarray = load("labelled arrays", "xarray")
    at = robot.configuration
    same = at.position_names == at.velocity_names
    variables: dict[str, Any] = {}
    used: set[str] = set()
    for name, x in outputs.items():
        spec = row.outputs.get(name.removeprefix(prefix), None) if name.startswith(prefix) else None
        if spec is None and not prefix and row.output is not None:  # residuals by name
            spec = row.outputs[row.output]
        if spec is None:
            continue
        own = _dimensions(spec.shape, same=same)
        lead = dims[len(dims) - (x.ndim - len(own)) :]
        used.update(own)
        variables[name.removeprefix(prefix)] = ((*lead, *own), x, {"units": spec.unit, "long_name": spec.text})
    labels: dict[str, Any] = {
        "joint": at.velocity_names,
        "position": at.position_names,
        "link": robot.link_names,
        **_NAMES,
    }
    extra: dict[str, Any] = {}
    for label, names in row.labels.items():
        dimension = _dimension(names.dimension, same=same)
        if names.of == "row" and dimension != "pair":
            labels[dimension] = answer[prefix + label]
        else:
            extra[label] = (dimension, list(answer[prefix + label]))
    for name in used:
        if (of := labels.get(name.replace("_column", ""))) is not None:
            extra[name] = (name, list(of))
    options = {name: str(x) for name, x in given.items() if name in row.options and row.options[name].default != x}
    attributes = {
        "query": row.name,
        "equation": row.equation,
        "description": row.summary,
        "robot": robot.name,
        "fingerprint": robot.fingerprint,
        **options,
    }
    made = xarray.Dataset(variables, attrs=attributes).assign_coords(
        {name: of for name, of in coordinates.items() if set(of.dims) <= set(dims)} | extra
    )
    times = made.get("t")
    if times is None or times.dims != ("time",):
        return made
    return made.drop_vars("t").assign_coords(time=("time", times.values, times.attrs))

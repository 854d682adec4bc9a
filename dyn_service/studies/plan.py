"""What a study varies: quantities along named dimensions, and the state of any index.

    {"q": {"uniform": "limits"}, "v": {"constant": 0}, "payload.hand.mass": {"linspace": [0.5, 3, 6], "dim": "mass"}}

Quantities on one dimension are zipped, dimensions are multiplied. A state's numbers depend on its index alone, not on
the states computed with it: points of Sobol's sequence are found by their number, pseudo-random ones by blocks with
their own keys. docs/studies.md has the targets.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from dyn_service.api.arguments import mapped
from dyn_service.api.arrays import Array, found
from dyn_service.api.cost import overlay_lead
from dyn_service.api.queries import Inertial, JointNumbers, Overlay, Payload
from dyn_service.engine.robot import Robot
from dyn_service.errors import DynError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.graph.bags.motions import recording
from dyn_service.kernels import tiles
from dyn_service.kernels.tiles import TILE
from dyn_service.studies.keys import check_names, within, wrong
from dyn_service.support import buffers
from dyn_service.support.optional import load

CHUNK = 1 << 16
"""States whose sum is rounded in a fixed order; sums of chunks are added exactly."""

KEPT_BYTES = 1 << 27
"""Bytes of a quantity's sampled values that are kept instead of computed for each tile."""

MAX_LATIN = 1 << 24
"""Numbers of a Latin hypercube, which is computed as a whole."""

NAME = r"[A-Za-z]\w*"
"""Names of outputs and dimensions in the store."""

_BITS = 32


class Vary(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The values of one quantity: one of the first six fields.

    constant: the same at every state. values: one along the dimension for each entry. linspace: first, last, count.
    uniform: lower and upper bound, or "limits": the robot's limits of position, velocity or effort. normal: mean and
    standard deviation. recording: a file of `numpy.savez` with an array named like the target, or a bag with joint
    states. dim: the dimension; default: the target, `sample` for `uniform` and `normal`, `time` for recordings.
    relative: values are factors of the robot's own number. topic: of the bag.
    """

    constant: Any = None
    values: Any = None
    linspace: tuple[Any, Any, Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]] | None = None
    uniform: tuple[Any, Any] | Literal["limits"] | None = None
    normal: tuple[Any, Any] | None = None
    recording: str | None = None
    dim: str | None = None
    relative: bool = False
    topic: str = "/joint_states"

    @property
    def kind(self) -> str:
        """The field that is given."""
        fields = [name for name in self.__struct_fields__[:6] if getattr(self, name) is not None]
        if len(fields) != 1:
            names = ", ".join(self.__struct_fields__[:6])
            raise InvalidArgumentError(f"needs exactly one of {names}, found {' and '.join(fields) or 'none'}")
        return fields[0]


class Samples(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The samples along a dimension: their number, how they are drawn (`sobol` is scrambled), and the seed."""

    count: Annotated[int, msgspec.Meta(ge=1)]
    sampler: Literal["sobol", "latin_hypercube", "random"] = "sobol"
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0


def extent(shape: Sequence[int], max_states: int) -> tuple[int, ...]:
    """Returns the shape of a block of at most `max_states` states: as many as possible along the last dimensions."""
    sizes: list[int] = []
    for size in reversed(shape):
        sizes.append(max(1, min(size, max_states)))
        max_states //= sizes[-1]
    return tuple(reversed(sizes))


def blocks(shape: Sequence[int], block: Sequence[int], first: int = 0, last: int | None = None) -> Any:
    """Yields the slices of blocks number `first` to `last` of an array, in C order."""
    grid = [-(-size // step) for size, step in zip(shape, block, strict=True)]
    for number in range(first, math.prod(grid) if last is None else last):
        place = zip(np.unravel_index(number, grid), shape, block, strict=True)
        yield tuple(slice(int(k) * step, min((int(k) + 1) * step, size)) for k, size, step in place)


class Sampler:
    """The points of one dimension, (count, width) in (0, 1)."""

    def __init__(self, samples: Samples, width: int) -> None:
        self.samples, self.width = samples, width
        if samples.sampler == "sobol" and samples.count > 1 << _BITS:
            raise wrong("count", f"sobol has at most 2^{_BITS} samples, found {samples.count}: use random for more")
        if samples.sampler == "latin_hypercube" and samples.count * width > MAX_LATIN:
            text = f"latin_hypercube has at most {MAX_LATIN // width} here, found {samples.count}: use sobol for more"
            raise wrong("count", text)

    @cached_property
    def _sobol(self) -> tuple[Any, Any, Any]:
        """Returns direction numbers (bits, width), the first point, and the points of the first tile, as integers."""
        qmc = load("samples", "scipy.stats").qmc
        engine = qmc.Sobol(self.width, scramble=True, bits=_BITS, seed=np.random.default_rng(self.samples.seed))
        # SciPy reaches a point by computing all before it; its direction numbers, not public, give any point at once.
        directions = np.array(getattr(engine, "_sv", np.zeros((self.width, _BITS))).T, np.uint32)
        first = np.array(getattr(engine, "_quasi", 0), np.uint32)
        table = np.zeros((TILE + tiles.LANES, self.width), np.uint32)
        gray = np.arange(TILE) ^ np.arange(TILE) >> 1
        for bit in range(TILE.bit_length() - 1):
            table[:TILE][(gray >> bit & 1).astype(bool)] ^= directions[bit]
        if not np.array_equal((table[:TILE] ^ first) * 2.0**-_BITS, engine.random(TILE)):
            version = load("samples", "scipy").__version__
            raise FailedPreconditionError(f"SciPy {version} has an unknown form of Sobol's sequence: install another")
        return directions, first, table

    @cached_property
    def _latin(self) -> Array:
        qmc = load("samples", "scipy.stats").qmc
        engine = qmc.LatinHypercube(self.width, seed=np.random.default_rng(self.samples.seed))
        points: Array = engine.random(self.samples.count)
        return points

    def entries(self, columns: slice, scale: Any = 1.0, low: Any = 0.0) -> Callable[[int, int], Array]:
        """Returns a function (first, last) -> these entries of the points of this range, times `scale` plus `low`."""
        kinds = {"sobol": self._tiles, "latin_hypercube": self._latin_tile, "random": self._random}
        tile = kinds[self.samples.sampler](columns, scale, low)

        def points(first: int, last: int) -> Array:
            numbers = range(first // TILE, -(-last // TILE))
            parts = [tile(k, slice(max(first - k * TILE, 0), min(last - k * TILE, TILE))) for k in numbers]
            return parts[0] if len(parts) == 1 else np.concatenate(parts)

        return points

    def _latin_tile(self, columns: slice, scale: Any, low: Any) -> Callable[[int, slice], Array]:
        return lambda number, part: self._latin[number * TILE :][part, columns] * scale + low

    def _random(self, columns: slice, scale: Any, low: Any) -> Callable[[int, slice], Array]:
        def tile(number: int, part: slice) -> Array:
            # A generator for each tile: the numbers of a state depend on its index, not on those drawn with it.
            key, place = [self.samples.seed, number], [0, 0, 0, columns.start]
            rng = np.random.Generator(np.random.Philox(key=key, counter=place))
            numbers: Array = rng.random((TILE, columns.stop - columns.start))[part]
            return np.asarray(numbers * scale + low)

        return tile

    def compiled(self, columns: slice, scale: Any, low: Any) -> Callable[[], tiles.Points]:
        """Returns a function that returns the compiled function for entries of Sobol's points, which needs SciPy."""

        @cache
        def points() -> tiles.Points:
            directions, start, table = (x[..., columns] for x in self._sobol)
            rows = np.tile(np.concatenate([directions, start[None]]), tiles.LANES)
            ends = (np.tile(np.broadcast_to(x, len(start)), tiles.LANES) for x in (scale, low))
            return tiles.Points(table, rows, *ends)

        return points

    def _tiles(self, columns: slice, scale: Any, low: Any) -> Callable[[int, slice], Array]:
        points = self.compiled(columns, scale, low)

        def tile(number: int, part: slice) -> Array:
            count = part.stop - part.start
            out = buffers.empty((-(-count // tiles.LANES) * tiles.LANES, points().entries))
            # The Gray code of tile + k is the exclusive or of theirs, as they have no bits in common.
            points()(part.start, number * TILE ^ number * TILE >> 1, out)
            return out[:count]

        return tile


class Quantity:
    """One quantity of a study. shape: of its value at one state. dim: None for constants."""

    def __init__(self, robot: Robot, target: str, vary: Vary) -> None:
        with within(path := f"vary.{target}"):
            self.kind = kind = vary.kind
        if kind == "recording":
            with within(f"{path}.recording"):
                motion = recording(robot, Path(vary.recording or ""), vary.topic)
            check_names(f"{path}.recording", f"array in {vary.recording!r} called", [target], sorted(motion))
            vary = msgspec.structs.replace(vary, recording=None, values=motion[target], dim=vary.dim or "time")
        self.robot, self.target, self.vary = robot, target, vary
        self.input, self.entry = _input_of(robot, target)
        self.nominal = _nominal(robot, target) if vary.relative else None
        defaults = {"uniform": "sample", "normal": "sample", "constant": None}
        self.dim = None if kind == "constant" else vary.dim or defaults.get(kind, target)
        if vary.dim is not None and not re.fullmatch(NAME, vary.dim):
            raise wrong(f"{path}.dim", f"a name has letters, digits and _, found {vary.dim!r}")
        self.table: Any = None
        self.draw: Callable[[int, int], Array] | None = None
        self.slow = False  # whether values take long to compute
        self.points: Callable[[], tiles.Points] | None = None
        self.bounds: tuple[Array, Array] | None = None
        self.quaternions: list[slice] = []
        self.shape: tuple[int, ...] = ()
        self.size: int | None = None
        if target == "overlay":
            self.table = vary.constant or vary.values
            if not isinstance(self.table, Overlay):
                raise wrong(path, f"must be an Overlay, which only Python has, found {found(self.table)}")
            with within(path):
                robot.overlaid(self.table)
            self.size = next(iter(overlay_lead(self.table)), None)
            self.dim = (vary.dim or "robot") if self.size is not None else None
            return
        self.shape = core = _core(robot, target)
        if kind in ("uniform", "normal"):
            self.bounds = self._bounds(f"{path}.{kind}")
        elif kind == "linspace":
            low, high, count = vary.linspace or (0, 0, 0)
            first, last = (_numbers(f"{path}.linspace", x, core) for x in (low, high))
            self.table = np.linspace(first, last, count)
        else:
            name = "constant" if kind == "constant" else "values"
            self.table = _numbers(f"{path}.{kind}", getattr(vary, name), core, is_list=name == "values")
        self.size = None if self.dim is None or self.table is None else len(self.table)
        if self.bounds:
            values = np.stack(self.bounds[: 1 if kind == "normal" else 2])
        else:
            values = self.table if self.dim else self.table[None]
        self.check(values if self.nominal is None else values * self.nominal)

    def _bounds(self, path: str) -> tuple[Array, Array]:
        """Returns lower and upper bounds, or means and deviations."""
        vary, configuration = self.vary, self.robot.configuration
        pair = _limits(self.robot, self.target) if vary.uniform == "limits" else vary.uniform or vary.normal or ()
        first, second = (np.array(_numbers(path, x, self.shape)) for x in pair)
        if vary.uniform is not None and self.target == "q":
            for joint, part in zip(configuration.joints, configuration.q_slices, strict=True):
                inner = joint.quaternion
                # Uniform now and normal later, on the sphere, so that all rotations are as likely.
                if inner.stop:
                    self.quaternions.append(slice(part.start + inner.start, part.start + inner.stop))
                    first[self.quaternions[-1]], second[self.quaternions[-1]] = 0.0, 1.0
        form, lowest = ("the first at most the second", first) if vary.uniform else ("the second at least 0", 0 * first)
        for k in np.flatnonzero(~(np.isfinite(first) & np.isfinite(second) & (lowest <= second))):
            names = configuration.position_names if self.input.startswith("q") else configuration.velocity_names
            entry_text = f" for '{names[k]}'" if self.input and self.shape else ""
            text = f"must be finite, {form}, found {first.ravel()[k]:g} and {second.ravel()[k]:g}{entry_text}"
            raise wrong(path, f"{text}: write two numbers, or two lists")
        return first, second

    def check(self, values: Any, first: int | None = None) -> None:
        """Raises the error for the first of values (n, *shape) that no robot has. first: index of the first value."""
        # Of states, those that fail are counted; a number that no robot has ends the study.
        if self.input:
            return

        def refusal(values: Any) -> DynError | None:
            try:
                self.robot.overlaid(_overlay([(self, values)]))
            except DynError as error:
                return error
            return None

        # The values that a robot may have are an interval: the smallest and the largest suffice.
        if refusal(values if self.shape else np.array([values.min(), values.max()])) is None:
            return
        # By bisection, since each refusal makes robots, and there may be millions of values.
        k = bisect_left(range(len(values)), True, key=lambda k: refusal(values[: k + 1]) is not None)
        if (error := refusal(values[k].tolist())) is not None:
            path, text = f"vary.{self.target}.{self.kind}", error.message.removeprefix(error.path or "").lstrip(": ")
            if first is not None or self.kind in ("linspace", "recording"):
                text = f"entry {k + (first or 0)} along '{self.dim}' {text}"
            elif self.kind != "constant":
                path += f"[{k}]"
            raise wrong(path, text, type(error))

    def drawn_from(self, sampler: Sampler, columns: slice) -> None:
        """Takes the values from these entries of the points of a dimension."""
        assert self.bounds is not None
        low, high = (x.ravel() for x in self.bounds)
        affine = (high - low, low) if self.vary.uniform else (1.0, 0.0)
        self.draw = sampler.entries(columns, *affine)
        self.slow = self.vary.normal is not None or sampler.samples.sampler != "sobol" or bool(self.quaternions)
        self.points = None if self.slow or self.nominal is not None else sampler.compiled(columns, *affine)

    def values_at(self, first: int, last: int) -> Any:
        """Returns the values number `first` to `last` along its dimension, (n, *shape); of a constant, (*shape)."""
        if self.draw is None:
            values = self.table if self.dim is None else self.table[first:last]
        else:
            values = self.draw(first, last).reshape(last - first, *self.shape)
            if self.vary.normal is not None and self.bounds is not None:
                values = load("samples", "scipy.special").ndtri(values) * self.bounds[1] + self.bounds[0]
            for part in self.quaternions:
                normal = load("samples", "scipy.special").ndtri(values[:, part])
                values[:, part] = normal / np.linalg.norm(normal, axis=1, keepdims=True)
        return values if self.nominal is None else values * self.nominal


class Plan:
    """The states of a study: dimensions, and the inputs of any block of states.

    dims, shape: names and sizes of the dimensions, those of `keep` first, then grids, then samples. vary: the
    quantities by target, in any order. samples: by dimension. keep: dimensions that reductions keep.
    """

    def __init__(
        self, robot: Robot, vary: Mapping[str, Vary], samples: Mapping[str, Samples], keep: Sequence[str]
    ) -> None:
        self.robot = robot
        self.quantities = [Quantity(robot, target, variation) for target, variation in sorted(vary.items())]
        sizes: dict[str, int] = {}
        for quantity in self.quantities:
            if quantity.dim is None or (quantity.bounds is None and quantity.size is None):
                continue
            if quantity.bounds is not None and quantity.dim not in samples:
                hint = f"vary.{quantity.target} is sampled along it, write samples: {{{quantity.dim}: {{count: 1000}}}}"
                raise wrong(f"samples.{quantity.dim}", f"is missing: {hint}")
            size = samples[quantity.dim].count if quantity.dim in samples else quantity.size or 0
            if quantity.size is not None and quantity.size != (size_of_dim := sizes.get(quantity.dim, size)):
                text = f"has {quantity.size} values along '{quantity.dim}', others have {size_of_dim}"
                raise wrong(f"vary.{quantity.target}", f"{text}: give as many, or another `dim`")
            sizes[quantity.dim] = size
        for path, names in (("keep", keep), ("samples", samples)):
            check_names(path, "quantity varies along", names, sizes, NotFoundError)
        self.dims = tuple(sorted(sizes, key=lambda name: (name not in keep, name in samples, sizes[name], name)))
        self.shape = tuple(sizes[name] for name in self.dims)
        sampled = [quantity for quantity in self.quantities if quantity.bounds is not None]
        for dim in dict.fromkeys(quantity.dim or "" for quantity in sampled):
            on_dim = [quantity for quantity in sampled if quantity.dim == dim]
            ends = np.cumsum([0, *(math.prod(quantity.shape) for quantity in on_dim)]).tolist()
            with within(f"samples.{dim}"):
                sampler = Sampler(samples[dim], ends[-1])
            for quantity, begin, end in zip(on_dim, ends, ends[1:], strict=False):
                quantity.drawn_from(sampler, slice(begin, end))
        self.inputs = frozenset(quantity.input for quantity in self.quantities if quantity.input)
        self._values_cache: dict[str, Any] = {}
        self._overlays: dict[Any, Overlay] = {}

    @property
    def states(self) -> int:
        """The number of states."""
        return math.prod(self.shape)

    def values(self, quantity: Quantity, part: slice) -> Any:
        """Returns the values of a quantity at a slice of its dimension."""
        if not self.keeps(quantity):
            return quantity.values_at(part.start, part.stop)
        if quantity.target not in self._values_cache:
            values = quantity.values_at(0, self.shape[self.dims.index(quantity.dim or "")])
            quantity.check(values, 0)
            self._values_cache[quantity.target] = values
        return self._values_cache[quantity.target][part]

    def keeps(self, quantity: Quantity) -> bool:
        """Returns whether the values of a quantity are computed once and kept."""
        size = self.shape[self.dims.index(quantity.dim)] if quantity.dim else 0
        # Values that are slow to draw may take more memory than those that compiled code draws again.
        max_bytes = KEPT_BYTES if quantity.slow else KEPT_BYTES >> 8
        return quantity.draw is not None and 8 * size * math.prod(quantity.shape) <= max_bytes

    @property
    def kept_bytes(self) -> int:
        """The bytes of values that are kept."""
        return sum(x.nbytes for x in self._values_cache.values())

    def block(self, slices: Sequence[slice], *, draw: bool = True) -> dict[str, Any]:
        """Returns the inputs at a block, by name, whose leading axes broadcast: those of the block longer than 1.

        Without `draw`, of one state, sampled quantities are at their mean or upper bound, which needs no sampler.
        """
        axes = [k for k, part in enumerate(slices) if part.stop - part.start > 1]
        place = {name: k for k, name in enumerate(self.dims)}

        def broadcast_values(quantity: Quantity) -> Any:
            if quantity.dim is None:
                return quantity.values_at(0, 0)
            k = place[quantity.dim]
            if draw or quantity.bounds is None:
                x = self.values(quantity, slices[k])
            else:
                x = quantity.bounds[0 if quantity.vary.normal else 1][None]
            if k not in axes:
                return x[0]
            axes_behind = len(axes) - axes.index(k) - 1
            return x.reshape(len(x), *(1,) * axes_behind, *quantity.shape)

        whole = [quantity for quantity in self.quantities if quantity.input and quantity.entry is None]
        inputs: dict[str, Any] = {quantity.input: broadcast_values(quantity) for quantity in whole}
        for quantity in self.quantities:
            if quantity.input and quantity.entry is not None:
                base, x = inputs.get(quantity.input), broadcast_values(quantity)
                if base is None:
                    base = self.robot.configuration.neutral if quantity.input[0] == "q" else np.zeros(self.robot.nv)
                lead = np.broadcast_shapes(np.shape(base)[:-1], np.shape(x))
                inputs[quantity.input] = np.array(np.broadcast_to(base, (*lead, np.shape(base)[-1])))
                inputs[quantity.input][..., quantity.entry] = x
        altered = [quantity for quantity in self.quantities if not quantity.input]
        if altered:
            varied = [slices[place[quantity.dim]] for quantity in altered if quantity.dim]
            key = (draw, *((part.start, part.stop) for part in varied))
            # One look-up, because another thread may clear the map after it.
            overlay = self._overlays.get(key)
            if overlay is None:
                parts = [
                    _part(quantity, slices, place) if quantity.target == "overlay" else broadcast_values(quantity)
                    for quantity in altered
                ]
                overlay = _overlay([*zip(altered, parts, strict=True)])
                if len(self._overlays) > 64:
                    self._overlays.clear()
                self._overlays[key] = overlay
            inputs["overlay"] = overlay
        return inputs

    def check(self, slices: Sequence[slice]) -> None:
        """Raises the error for a number at a block that the robot cannot have, by its key."""
        for quantity in self.quantities:
            if quantity.dim and not quantity.input and quantity.target != "overlay":
                part = slices[self.dims.index(quantity.dim)]
                quantity.check(self.values(quantity, part), part.start)

    def state(self, index: int) -> dict[str, Any]:
        """Returns the inputs of one state by its index in C order of the dimensions."""
        if not 0 <= index < self.states:
            raise InvalidArgumentError(f"the study has states 0 to {self.states - 1}, found {index}", path="index")
        return self.block([slice(int(k), int(k) + 1) for k in np.unravel_index(index, self.shape)])

    def coordinates(self) -> dict[str, Any]:
        """Returns the values along dimensions of grids with one number each, by dimension."""
        return {
            quantity.dim: np.asarray(quantity.values_at(0, quantity.size or 0))
            for quantity in self.quantities
            if quantity.dim and quantity.bounds is None and not quantity.shape and quantity.target != "overlay"
        }


_FIELDS: dict[str, tuple[str, ...]] = dict.fromkeys(("payload", "link"), ("mass", "com", "inertia"))
_FIELDS["joint"] = tuple(JointNumbers.__dataclass_fields__)


def _input_of(robot: Robot, target: str) -> tuple[str, int | None]:
    """Returns the input of a target and the index of its entry; "" for numbers of the robot."""
    first, dot, rest = target.partition(".")
    if target in ("gravity", "overlay"):
        return "", None
    if first in _FIELDS:
        name, _, field = rest.rpartition(".")
        names = robot.all_joint_names if first == "joint" else robot.link_names
        check_names(f"vary.{target}", f"number of {first}.NAME.NUMBER called", [field], _FIELDS[first], NotFoundError)
        check_names(f"vary.{target}", "joint" if first == "joint" else "link", [name], names, NotFoundError)
        return "", None
    if not dot:
        return target, None
    configuration = robot.configuration
    names = configuration.position_names if first.startswith("q") else configuration.velocity_names
    check_names(f"vary.{target}", f"entry of {first} called", [rest], names, NotFoundError)
    return first, names.index(rest)


def _core(robot: Robot, target: str) -> tuple[int, ...]:
    """Returns the shape of a target at one state."""
    name, entry = _input_of(robot, target)
    if name:
        return () if entry is not None or name == "dt" else (robot.nq if name.startswith("q") else robot.nv,)
    return {"com": (3,), "gravity": (3,), "inertia": (3, 3)}.get(target.rpartition(".")[2], ())


def _limits(robot: Robot, target: str) -> tuple[Any, Any]:
    name, entry = _input_of(robot, target)
    limits, entries = robot.limits, ... if entry is None else entry
    if name.startswith("q"):
        return limits.lower[entries], limits.upper[entries]
    limit = {"v": limits.speeds, "tau": limits.efforts}.get(name)
    if limit is None:
        raise wrong(f"vary.{target}.uniform", f"only q, v and tau have limits, not {target}: write [lower, upper]")
    return -limit[entries], limit[entries]


def _nominal(robot: Robot, target: str) -> Any:
    """Returns the robot's own number."""
    first, _, rest = target.partition(".")
    name, _, field = rest.rpartition(".")
    if first == "link":
        inertia = robot.tree.inertia[robot.link_names.index(name)]
        return np.asarray({"mass": inertia.mass, "com": inertia.com}.get(field, getattr(inertia, "inertia", None)))
    raise wrong(f"vary.{target}.relative", f"only numbers of links can be relative, link.LINK.mass, not {target}")


def _numbers(path: str, value: Any, core: tuple[int, ...], *, is_list: bool = False) -> Array:
    """Returns numbers of this shape, given as such or as one number; with `is_list` a list of them."""
    try:
        array = np.asarray(value, dtype=np.float64)
    # An overflow is that of an integer too large for a double.
    except (TypeError, ValueError, OverflowError):
        raise wrong(path, f"must be numbers, found {found(value)}") from None
    lead = array.shape[:1] if is_list else ()
    core_given = array.shape[len(lead) :]
    if core_given not in ((), core) or (is_list and not (lead and array.size)):
        form = f"one number or {' x '.join(map(str, core))} numbers" if core else "a number"
        form = f"a list, each entry {form}" if is_list else form
        raise wrong(path, f"must be {form}, found {found(value)}")
    return np.broadcast_to(array if core_given else array.reshape((*lead, *(1,) * len(core))), (*lead, *core))


def _part(quantity: Quantity, slices: Sequence[slice], place: Mapping[str, int]) -> Overlay:
    """Returns the robots of an overlay at a block."""
    if quantity.dim is None:
        return quantity.table  # type: ignore[no-any-return]
    k = place[quantity.dim]
    axes_behind = sum(part.stop - part.start > 1 for part in slices[k + 1 :])

    def rows_of(x: Any, axes: int, _: str) -> Any:
        x = np.asarray(x)
        if x.ndim == axes:
            return x
        x = x[slices[k]]
        return x[0] if len(x) == 1 else x.reshape(len(x), *(1,) * axes_behind, *x.shape[1:])

    return mapped(quantity.table, rows_of)


def _overlay(values: Sequence[tuple[Quantity, Any]]) -> Overlay:
    """Returns the overlay of these values."""
    fields: dict[tuple[str, str], dict[str, Any]] = {}
    gravity, base = None, Overlay()
    for quantity, x in values:
        first, _, rest = quantity.target.partition(".")
        if quantity.target == "overlay":
            base = x
        elif quantity.target == "gravity":
            gravity = x
        else:
            name, _, field = rest.rpartition(".")
            fields.setdefault((first, name), {})[field] = x
    payloads = [base.payloads] if isinstance(base.payloads, Payload) else [*base.payloads]
    payloads += [Payload(name, **{"mass": 1.0, **x}) for (kind, name), x in fields.items() if kind == "payload"]
    return Overlay(
        payloads,
        {**base.links, **{name: Inertial(**x) for (kind, name), x in fields.items() if kind == "link"}},
        {**base.joints, **{name: JointNumbers(**x) for (kind, name), x in fields.items() if kind == "joint"}},
        base.locked,
        base.gravity if gravity is None else gravity,
    )

"""The short way for the common request: one state, its arrays as clients write them, and few external wrenches.

A control loop sends the same few vectors a thousand times a second. For each row and robot a typed decoder is made that
takes these vectors, of these lengths, as `<f8`, and nothing else: it checks in one pass, in C, what the general way
checks in Python. A request that it does not take is no fault yet: the general way answers it, or says what is wrong.


----
What the server knows about a robot beforehand, so that little is left to do for each request.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from math import isfinite
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Raw, UnsetType
from numpy.typing import ArrayLike

from dyn_service.api.cost import Cost, answer_numbers
from dyn_service.api.description import Sizes
from dyn_service.api.inputs import check_names, checked_options
from dyn_service.api.queries import Array, Query, Wrench
from dyn_service.api.spec import BY_NAME, PUSHED, Kind, Variant
from dyn_service.errors import DynError, InvalidArgumentError
from dyn_service.formulations.cost import of_states
from dyn_service.model.configuration import Configuration
from dyn_service.model.order import NAMES, Order, Orders
from dyn_service.service.protocol.arrays import WireArray, may_be_infinite, pack_output
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.protocol.values import unpack
from dyn_service.service.server.administration.metrics import Durations
from dyn_service.service.server.answering.bounds import check_cost, predict_cost
from dyn_service.service.server.answering.finite import Diagnosis, NotFinite, first_not_finite

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot


_NO_KEYWORDS: Mapping[str, Any] = {}

_Given = tuple[list[Array], Mapping[str, Any], Order | None]
"""The required vectors in the row's order, the rest by name, and the request's order of the joints."""

FEW_WRENCHES = 4
"""So many go the short way."""


class FastRequest(msgspec.Struct, frozen=True, gc=False):
    """A request without options whose inputs are still bytes. Version 1 alone."""

    v: Literal[1]
    id: Annotated[int, Meta(ge=0)]
    query: str
    robot: str
    inputs: Raw
    options: UnsetType | None = UNSET
    model: str | UnsetType = UNSET
    deadline_ms: Annotated[float, Meta(gt=0, le=1e300)] | UnsetType = UNSET
    compile_wait_ms: Annotated[float, Meta(gt=0, le=1e300)] | UnsetType = UNSET


decode_fast_request = msgspec.msgpack.Decoder(FastRequest).decode
"""The request, if its form is the one above; else an exception."""


class FastPath:
    """One row of the table for one robot and one state.

    plain, pushed: whether the kernel without external wrenches is there, and what those with them take. used_ns: when
    it last answered.

    Args:
        row: The row of the table.
        ask: The robot's method.
        sizes: The robot's dimensions.
        durations: Where answers are counted.
        at: The robot's joints.
        orders: In which others have them.
    """

    def __init__(
        self,
        row: Query,
        ask: Callable[..., Any],
        sizes: Sizes,
        durations: Durations,
        at: Configuration,
        orders: Orders,
    ) -> None:
        self.durations = durations
        required = row.required
        links = [name for name in required if row.inputs[name].kind in BY_NAME]
        vectors = [name for name in required if not row.inputs[name].scalar and name not in links]
        numbers = [name for name in required if row.inputs[name].scalar]
        fields: list[Any] = [(name, _vector(row.inputs[name].dims(sizes)[0])) for name in vectors]
        fields += [(name, float) for name in numbers] + [(name, str) for name in links]
        self._wrenches = row.wrenches or "wrenches_"
        fields += [("wrenches_", _WRENCHES | UnsetType if row.wrenches else UnsetType, UNSET)]
        fields += [("names_", tuple[str, ...] | UnsetType if row.ordered else UnsetType, UNSET)]
        self.plain = self.pushed = False
        self.used_ns = 0
        self._orders, self._row = orders, row
        called = {"wrenches_": self._wrenches, "names_": NAMES}
        inputs = msgspec.defstruct("Inputs", fields, rename=called, forbid_unknown_fields=True, gc=False, frozen=True)
        self._decode = msgspec.msgpack.Decoder(inputs).decode
        self._specs = [row.inputs[name] for name in vectors]
        self._vectors = _getter([f"{name}.data" for name in vectors])
        self._numbers = _getter(numbers) if numbers else None
        self._links = links
        self._spread = _spreader({name: row.inputs[name].dims(sizes)[0] for name in numbers})
        self._ask = ask
        self._positions = (
            () if at.flat else tuple((vectors.index(n), n, f"inputs.{n}") for n in row.of_kind("position"))
        )
        self._at = at
        self._output, self._outputs = row.output, row.answers

    def read(self, inputs: Raw, most_wrenches: int) -> _Given | None:
        """The vectors, and by name the numbers as vectors and the wrenches, and in which order the request has the
        joints; None if a number may not be finite, or a kernel is missing.

        Args:
            inputs: Of the request.
            most_wrenches: How many it may have.

        Raises:
            Exception: The inputs are not of the form that this plan takes.
        """
        state: Any = self._decode(inputs)
        vectors = self._vectors(state)
        if may_be_infinite(b"".join(vectors)):
            return None
        given = state.wrenches_
        if given is UNSET:
            if not self.plain:
                return None
            acting = _NO_KEYWORDS
        else:
            if not self.pushed or len(given) > most_wrenches:
                return None
            wrenches = [*map(_wrench, given)]
            if None in wrenches:
                return None
            acting = {self._wrenches: wrenches}
        if self._links:
            acting = {**acting, **{name: getattr(state, name) for name in self._links}}
        arrays = [*map(np.frombuffer, vectors)]
        order = None
        if state.names_ is not UNSET:
            order = self._orders.of(state.names_)
            arrays = [*map(order.inward, self._specs, arrays)]
        for k, name, path in self._positions:
            self._at.check_unit(arrays[k], name, path)
        if self._numbers is None:
            return arrays, acting, order
        numbers = self._numbers(state)
        return (arrays, {**self._spread(*numbers), **acting}, order) if all(map(isfinite, numbers)) else None

    def answer(self, values: _Given) -> dict[str, Any] | None:
        """The outputs by name, as a message carries them; None if a number may not be finite.

        Args:
            values: What `read` gave.

        Raises:
            DynError: What the robot raises.
        """
        vectors, keywords, order = values
        result = self._ask(*vectors, **keywords)
        if order is not None:
            found = {self._output: result} if self._output else {n: getattr(result, n) for n in self._outputs}
            outputs = {name: pack_output(value) for name, value in order.outward(self._row, found).items()}
        elif self._output is not None:
            data = result.tobytes()
            return None if may_be_infinite(data) else {self._output: WireArray("<f8", result.shape, data)}
        else:
            outputs = {name: pack_output(getattr(result, name)) for name in self._outputs}
        for value in outputs.values():
            if value.__class__ is WireArray and may_be_infinite(bytes(value.data)):
                return None
        return outputs


def _vector(length: int) -> Any:
    """A decoder's type for an array `<f8` of that length."""
    data = Annotated[bytes, Meta(min_length=8 * length, max_length=8 * length)]
    fields = [("dtype", Literal["<f8"]), ("shape", tuple[Literal[length]]), ("data", data)]  # type: ignore[valid-type]
    return msgspec.defstruct(f"Vector{length}", fields, gc=False, frozen=True)


_PARTS = ("torque", "force", "point")
_MAYBE_THREE: Any = _vector(3) | UnsetType
_WRENCH: Any = msgspec.defstruct(
    "StateWrench",
    [("link", str), *((part, _MAYBE_THREE, UNSET) for part in _PARTS), ("frame", str, "world")],
    forbid_unknown_fields=True,
    gc=False,
    frozen=True,
)
_WRENCHES: Any = Annotated[list[_WRENCH], Meta(max_length=FEW_WRENCHES)]
_LEFT_OUT = (0.0, 0.0, 0.0)


def _wrench(given: Any) -> Wrench | None:
    """An external wrench; None if a number may not be finite."""
    vectors: list[ArrayLike] = []
    for part in (given.torque, given.force, given.point):
        if part is UNSET:
            vectors.append(_LEFT_OUT)
        elif may_be_infinite(part.data):
            return None
        else:
            vectors.append(np.frombuffer(part.data))
    torque, force, point = vectors
    return Wrench(given.link, torque, force, point, given.frame)


def _spreader(lengths: Mapping[str, int]) -> Callable[..., dict[str, Array]]:
    """Makes vectors of equal numbers, by name; gains seldom change, so the last ones are kept."""

    @lru_cache(maxsize=16)
    def spread(*numbers: float) -> dict[str, Array]:
        vectors = {name: np.full(lengths[name], number) for name, number in zip(lengths, numbers, strict=True)}
        for vector in vectors.values():
            vector.flags.writeable = False
        return vectors

    return spread


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """The attributes of those names as a tuple, however many there are."""
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda state: (get(state),)


SLOW_BYTES = 16 << 10
"""A request or answer longer than this is work for another thread than the one that serves control loops."""

SLOW_WORK_S = 2.5e-4
"""So is more foretold work than this: a batch, more than four wrenches, large answers in world axes."""


class Plan:
    """One row of the table for one robot: reads a request's inputs, foretells the answer's cost, asks the robot."""

    def __init__(self, row: Query, robot: Robot, sizes: Sizes, durations: Durations, orders: Orders) -> None:
        self._row = row
        self._robot = robot
        self._orders = orders
        self._ask = getattr(robot, row.name)  # the method, not `evaluate`: it has a short way for single states
        self._sizes = sizes
        self._numbers = {name: spec.dims(sizes)[0] for name, spec in row.inputs.items() if spec.scalar}
        small = sizes["nv"] > 0 and len(row.inputs) > 0 and 8 * answer_numbers(row, sizes) <= SLOW_BYTES
        self._state = FastPath(row, self._ask, sizes, durations, robot.configuration, orders) if small else None
        self.models = (UNSET, robot.fingerprint)
        """What a request may name as `model`."""
        self.state: FastPath | None = None
        """The short way for single states, once the kernel is there."""
        self.refresh()

    @property
    def used_ns(self) -> int:
        """When the short way was last gone."""
        return 0 if self._state is None else self._state.used_ns

    @property
    def fingerprint(self) -> str:
        """The robot's fingerprint."""
        return self._robot.fingerprint

    def read_inputs(self, raw: Mapping[str, Any]) -> tuple[dict[str, Any], Order | None]:
        """The inputs as arrays and wrenches, in the robot's order; and that of the request, where it says one. Which
        shapes they must have is for the robot to say.

        Raises:
            InvalidArgumentError: An input is missing, unknown, or not what an input can be.
            NotFoundError: It names a joint that is none.
        """
        row, order = self._row, None
        if NAMES in raw:
            raw, order = self._orders.split(row, raw)
        check_names(row, raw)
        inputs: dict[str, Any] = {}
        for name, value in raw.items():
            if value is not None:
                path, spec = f"inputs.{name}", row.inputs[name]
                given = unpack(spec.kind, value, path)
                inputs[name] = given if order is None else order.inward(spec, given)
                if spec.kind == "position" and given.shape[-1:] == (self._sizes["nq"],):
                    self._robot.configuration.check_unit(inputs[name], name, path)
        return inputs, order

    def read_options(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """All options, those that were not given at their defaults.

        Raises:
            InvalidArgumentError: One is unknown, or not what it can be.
        """
        return checked_options(self._row, {name: value for name, value in raw.items() if value is not None})

    def afford(
        self, inputs: Mapping[str, Any], options: Mapping[str, Any], limits: RequestLimits, *, verify: bool
    ) -> Cost:
        """What the answer costs.

        Raises:
            ResourceExhaustedError: That is more than it may.
        """
        cost = predict_cost(self._row, self._sizes, inputs, options)
        if verify:
            cost = cost.beside(of_states(self._sizes, cost.lead))
        check_cost(self._row, cost, limits)
        return cost

    def answer(
        self, inputs: Mapping[str, Any], options: Mapping[str, Any], order: Order | None = None
    ) -> dict[str, Any]:
        """The outputs by name, as a message carries them, in the order of who asks.

        Raises:
            DynError: What the robot raises.
        """
        vectors = {
            name: np.full(length, inputs[name]) for name, length in self._numbers.items() if inputs[name].ndim == 0
        }
        result = self._ask(**{**inputs, **vectors}, **options)
        row = self._row
        if order is not None:
            outputs = {row.output: result} if row.output else {name: getattr(result, name) for name in row.answers}
            return {name: pack_output(value) for name, value in order.outward(row, outputs).items()}
        if row.output is not None:
            return {row.output: pack_output(result)}
        return {name: pack_output(getattr(result, name)) for name in row.answers}

    def why(
        self, found: NotFinite, inputs: Mapping[str, Any], options: Mapping[str, Any], order: Order | None = None
    ) -> DynError:
        """Why an output is not finite."""
        if order is not None:
            found = replace(found, index=order.place(self._row, found.output, found.index))
        diagnosis = Diagnosis(self._acting, self._row, inputs, options)
        return diagnosis.of_output(found, lambda other: self.answer(other, options))

    def verification(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """The residuals at the request's state as plain values: numbers, or nested lists for a batch.

        Raises:
            DynError: What the robot raises; or a residual is not finite.
        """
        try:
            found = self.residuals(inputs, options)
            wrong = first_not_finite(found, "residuals")
        except np.linalg.LinAlgError:
            wrong = NotFinite("residuals", self._most_singular(inputs, options), math.nan)
        if wrong is not None:
            diagnosis = Diagnosis(self._acting, self._row, inputs, options)
            raise diagnosis.of_residual(wrong, lambda other: self.residuals(other, options))
        return {name: residual.tolist() for name, residual in found.items()}

    def _acting(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Robot:
        """Who answers these: the robot, otherwise where an overlay says so, or the bare one."""
        row, robot = self._row, self._robot
        overlay = inputs.get(row.overlay or "")
        robot = robot if overlay is None else robot.overlaid(overlay)
        return robot.acting(row, self._method(options), options.get(row.leaves_out or "", True))

    def _most_singular(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[int, ...]:
        """The state of a batch at which the mass matrix is nearest to having no inverse."""
        M = self._acting(inputs, options).mass_matrix(inputs[self._row.pose or ""])
        condition = np.asarray(np.linalg.cond(M))
        return tuple(int(k) for k in np.unravel_index(np.argmax(condition), condition.shape))

    def residuals(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Array]:
        """How far the formulations are apart at the request's state, (...,) each, for the robot that answers.

        Velocities and accelerations that the query does not take are zero; efforts are turned into the accelerations
        they produce. At that motion the formulations are compared without external wrenches.

        Raises:
            DynError: What the robot raises.
        """
        if self._row.constant:
            raise InvalidArgumentError(
                f"{self._row.name} takes no state, so there is nothing to verify", path="options.verify"
            )
        row, still = self._row, np.zeros(self._sizes["nv"])
        robot = self._acting(inputs, options)

        def given(kind: Kind) -> Any:
            name = row.first(kind)
            return None if name is None else inputs.get(name)

        q, v, a, gravity = (given(kind) for kind in ("position", "velocity", "acceleration", "gravity"))
        v = still if v is None else v
        if a is None:
            efforts, wrenches = given("effort"), given("wrenches")
            a = still
            if efforts is not None:
                a = robot.forward_dynamics(q, v, efforts, gravity=gravity, wrenches=wrenches)
        return robot.verify(q, v, a, gravity=gravity)

    def refresh(self, inputs: Mapping[str, Any] | None = None) -> None:
        """Opens the short way, if its kernels are there, without or with external wrenches.

        Args:
            inputs: Of a request that was just answered, as only such ways are looked for; None: of any.
        """
        state, row = self._state, self._row
        if state is None:
            return
        default = next(iter(row.kernels), "")
        if not state.plain:
            state.plain = self._robot.has_kernel(row, default)
        if not state.pushed and row.wrenches is not None and (inputs is None or row.wrenches in inputs):
            state.pushed = self._robot.has_kernel(row, default, PUSHED)
        if state.plain or state.pushed:
            self.state = state

    def has_kernel(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
        """Whether the kernel that a request needs is in this process."""
        method, variant, passive = self.kernel(inputs, options)
        return self._robot.has_kernel(self._row, method, variant, passive=passive)

    def kernel(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[str, Variant, bool]:
        """Which of the row's kernels a request needs: its method, what it takes beside, and whether what joints do by
        themselves acts in it.
        """
        row = self._row
        variant = Variant((row.wrenches or "") in inputs, (row.overlay or "") in inputs)
        return self._method(options), variant, options.get(row.leaves_out or "", True)

    def _method(self, options: Mapping[str, Any]) -> str:
        selector = self._row.selector
        return options.get(selector, "") if selector is not None else next(iter(self._row.kernels), "")

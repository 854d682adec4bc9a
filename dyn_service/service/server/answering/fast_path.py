"""The short way for the common request: one state, its arrays as clients write them, and few external wrenches.

A control loop sends the same few vectors a thousand times a second. For each row and robot a typed decoder is made that
takes these vectors, of these lengths, as `<f8`, and nothing else: it checks in one pass, in C, what the general way
checks in Python. A request that it does not take is no fault yet: the general way answers it, or says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import isfinite
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Raw, UnsetType
from numpy.typing import ArrayLike

from dyn_service.api.description import Sizes
from dyn_service.api.queries import Array, Query, Wrench
from dyn_service.api.spec import BY_NAME
from dyn_service.model.configuration import Configuration
from dyn_service.model.order import NAMES, Order, Orders
from dyn_service.service.protocol.arrays import WireArray, may_be_infinite, pack_output
from dyn_service.service.server.administration.metrics import Durations

_NO_KEYWORDS: Mapping[str, Any] = {}

_Given = tuple[list[Array], Mapping[str, Any], Order | None]
"""The required vectors in the row's order, the rest by name, and the request's order of the joints."""

FEW_WRENCHES = 4
"""So many go the short way."""


class StateRequest(msgspec.Struct, frozen=True, gc=False):
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


decode_state_request = msgspec.msgpack.Decoder(StateRequest).decode
"""The request, if its form is the one above; else an exception."""


class StatePlan:
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

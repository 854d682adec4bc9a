"""The short way for the common request: one state, its arrays as clients write them.

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

from dyn_service.api.description import Sizes
from dyn_service.api.queries import Array, Query
from dyn_service.model.configuration import Configuration
from dyn_service.protocol.arrays import WireArray, may_be_infinite, pack_output
from dyn_service.server.metrics import Durations

_NO_NUMBERS: Mapping[str, Array] = {}


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

    Args:
        row: The row of the table.
        ask: The robot's method.
        sizes: The robot's dimensions.
        durations: Where answers are counted.
        at: The robot's joints.
    """

    def __init__(
        self, row: Query, ask: Callable[..., Any], sizes: Sizes, durations: Durations, at: Configuration
    ) -> None:
        self.durations = durations
        required = row.required
        vectors = [name for name in required if not row.inputs[name].scalar]
        numbers = [name for name in required if row.inputs[name].scalar]
        fields: list[Any] = [(name, _vector(row.inputs[name].dims(sizes)[0])) for name in vectors]
        fields += [(name, float) for name in numbers]
        inputs = msgspec.defstruct("Inputs", fields, forbid_unknown_fields=True, gc=False, frozen=True)
        self._decode = msgspec.msgpack.Decoder(inputs).decode
        self._vectors = _getter([f"{name}.data" for name in vectors])
        self._numbers = _getter(numbers) if numbers else None
        self._spread = _spreader({name: row.inputs[name].dims(sizes)[0] for name in numbers})
        self._ask = ask
        self._positions = (
            () if at.flat else tuple((vectors.index(n), n, f"inputs.{n}") for n in row.of_kind("position"))
        )
        self._at = at
        self._output, self._outputs = row.output, row.answers

    def read(self, inputs: Raw) -> tuple[list[Array], Mapping[str, Array]] | None:
        """The vectors, in order, and the numbers as vectors, by name; None if one may not be finite.

        Raises:
            Exception: The inputs are not of the form that this plan takes.
        """
        state = self._decode(inputs)
        vectors = self._vectors(state)
        if may_be_infinite(b"".join(vectors)):
            return None
        arrays = [*map(np.frombuffer, vectors)]
        for k, name, path in self._positions:
            self._at.check_unit(arrays[k], name, path)
        if self._numbers is None:
            return arrays, _NO_NUMBERS
        numbers = self._numbers(state)
        return (arrays, self._spread(*numbers)) if all(map(isfinite, numbers)) else None

    def answer(self, values: tuple[list[Array], Mapping[str, Array]]) -> dict[str, Any] | None:
        """The outputs by name, as a message carries them; None if a number may not be finite.

        Args:
            values: What `read` gave.

        Raises:
            DynError: What the robot raises.
        """
        vectors, numbers = values
        result = self._ask(*vectors, **numbers)
        if self._output is not None:
            data = result.tobytes()
            return None if may_be_infinite(data) else {self._output: WireArray("<f8", result.shape, data)}
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

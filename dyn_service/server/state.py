"""The short way for the common request: one state, its arrays as clients write them.

A control loop sends the same few vectors a thousand times a second. For each row and robot a typed decoder is made that
takes these vectors, of these lengths, as `<f8`, and nothing else: it checks in one pass, in C, what the general way
checks in Python. A request that it does not take is no fault yet; the general way answers it or says what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Raw, UnsetType

from dyn_service.protocol.messages import VERSION
from dyn_service.queries import Query


class StateRequest(msgspec.Struct, frozen=True, gc=False):
    """A request whose inputs are still bytes, without options."""

    v: Literal[1]
    id: Annotated[int, Meta(ge=0)]
    query: str
    robot: str
    inputs: Raw
    options: None | UnsetType = UNSET
    model: str | UnsetType = UNSET
    deadline_ms: Annotated[float, Meta(gt=0, le=1e300)] | UnsetType = UNSET


assert VERSION == 1, "StateRequest speaks version 1"

_decode = msgspec.msgpack.Decoder(StateRequest).decode


def read_state_request(payload: bytes | memoryview) -> StateRequest | None:
    """The request, if it may go the short way."""
    try:
        return _decode(payload)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None


class StateReader:
    """Reads the inputs of one row for one robot, in the order of the row's required inputs.

    Args:
        row: The row of the table.
        sizes: The robot's dimensions.
    """

    def __init__(self, row: Query, sizes: Mapping[str, int]) -> None:
        required = [name for name in row.inputs if name not in row.optional]
        vectors = [name for name in required if not row.inputs[name].scalar]
        numbers = [name for name in required if row.inputs[name].scalar]
        fields = [(name, _vector(row.inputs[name].dims(sizes)[0])) for name in vectors]
        inputs = msgspec.defstruct("Inputs", [*fields, *((n, float) for n in numbers)], forbid_unknown_fields=True)
        self._decode = msgspec.msgpack.Decoder(inputs).decode
        self._vectors = _getter([f"{name}.data" for name in vectors])
        self._numbers = _getter(numbers)
        assert required == vectors + numbers, "numbers come last in the table"

    def read(self, inputs: Raw) -> list[Any] | None:
        """The vectors and numbers, or None if the inputs are not of this form, or not finite."""
        try:
            state = self._decode(inputs)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return None
        vectors = self._vectors(state)
        # NaN, infinity and numbers beyond 1e304 have this first byte, up to the sign; the general way tells them apart.
        high = b"".join(vectors)[7::8]
        if 0x7F in high or 0xFF in high:
            return None
        numbers = self._numbers(state)
        return [*map(np.frombuffer, vectors), *numbers] if all(map(isfinite, numbers)) else None


def _vector(length: int) -> Any:
    """A decoder's type for an array `<f8` of that length."""
    data = Annotated[bytes, Meta(min_length=8 * length, max_length=8 * length)]
    fields = [("dtype", Literal["<f8"]), ("shape", tuple[Literal[length]]), ("data", data)]  # type: ignore[valid-type]
    return msgspec.defstruct(f"Vector{length}", fields, gc=False, frozen=True)


def _getter(names: list[str]) -> Any:
    """The attributes of those names as a tuple, however many there are."""
    if not names:
        return lambda state: ()
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda state: (get(state),)

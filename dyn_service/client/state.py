"""The short way for the common call: one state, given as arrays of float64.

All requests of a control loop differ in nothing but their id and their numbers. So each row of a robot keeps one typed
request, fills these in, and has MessagePack write it; a typed decoder reads the reply in one pass. A call with anything
else goes the general way. Measured beside it, Panda's inverse dynamics, without the server: writing 1.6 instead of
6.1 us, reading 0.9 instead of 2.7 us, of a round trip of some 60 us.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from dyn_service.api.description import Sizes
from dyn_service.api.queries import Array, Query
from dyn_service.client.core import read_head
from dyn_service.errors import InternalError
from dyn_service.protocol.messages import VERSION

_F8 = np.dtype("<f8")


class _ArrayToWrite(msgspec.Struct, gc=False):
    """As `WireArray`, to be filled again and again."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class _RequestToWrite(msgspec.Struct, gc=False):
    """As `Request`, to be filled again and again. `inputs` hold numbers and `_ArrayToWrite`."""

    v: int
    id: int
    query: str
    robot: str
    inputs: dict[str, Any]
    model: str
    deadline_ms: float
    compile_wait_ms: float | UnsetType = UNSET


class _ArrayToRead(msgspec.Struct, gc=False):
    dtype: Literal["<f8"]
    shape: tuple[int, ...]
    data: bytearray

    def value(self) -> Array:
        try:
            array = np.frombuffer(self.data)
            return array if array.shape == self.shape else array.reshape(self.shape)
        except ValueError as fault:
            raise InternalError(f"the server's answer cannot be read: {fault}") from None


class StateCall:
    """One row of the table for one robot of one server. Not for several threads at once.

    Args:
        row: The row of the table; it must have one output.
        robot: The robot's name on the server.
        model: Its fingerprint.
        sizes: Its dimensions.
    """

    def __init__(self, row: Query, robot: str, model: str, sizes: Sizes) -> None:
        self._defaults = row.defaults
        self._shapes = [None if row.inputs[name].scalar else row.inputs[name].dims(sizes) for name in row.required]
        self._names = row.required
        self._arrays = [None if shape is None else _ArrayToWrite("<f8", shape, b"") for shape in self._shapes]
        inputs: dict[str, Any] = dict(zip(self._names, self._arrays, strict=True))
        self._request = _RequestToWrite(VERSION, 0, row.name, robot, inputs, model, 0.0)
        self._encode = msgspec.msgpack.Encoder().encode
        (output,) = row.outputs
        outputs = msgspec.defstruct("Outputs", [("array", _ArrayToRead)], rename={"array": output}, gc=False)
        reply = [("v", Literal[VERSION]), ("id", int), ("ok", Literal[True]), ("outputs", outputs)]
        self._decode = msgspec.msgpack.Decoder(msgspec.defstruct("StateReply", reply, gc=False)).decode

    def takes(self, given: Sequence[Any], others: Sequence[Any]) -> bool:
        """Whether the call with these arguments is of the form that goes the short way.

        Args:
            given: The row's required inputs, in order.
            others: The optional inputs and the options, in order.
        """
        for value, default in zip(others, self._defaults, strict=True):
            if value is not default:
                return False
        for value, shape in zip(given, self._shapes, strict=True):
            if shape is None:
                if value.__class__ is not float:
                    return False
            elif value.__class__ is not np.ndarray or value.dtype is not _F8 or value.shape != shape:
                return False
        return True

    def encode(self, given: Sequence[Any], request_id: int, timeout_s: float, compile_wait_s: float = 0.0) -> bytes:
        """The request with these inputs, which `takes` took."""
        request = self._request
        for name, array, value in zip(self._names, self._arrays, given, strict=True):
            if array is None:
                request.inputs[name] = value
            else:
                array.data = value.tobytes()
        request.id = request_id
        request.deadline_ms = timeout_s * 1e3
        request.compile_wait_ms = compile_wait_s * 1e3 or UNSET
        return self._encode(request)

    def decode(self, payload: bytes) -> Any:
        """A reply with `outputs.array.value()`; or as `core.read_head` reads it, such as one with an error."""
        try:
            return self._decode(payload)
        except msgspec.MsgspecError:
            return read_head(payload)

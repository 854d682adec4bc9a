"""The short way for the common call: one state, given as arrays of float64.

All requests of a control loop differ in nothing but their id and their numbers. So a request is written once, with
marks where these go, cut at the marks, and from then on joined from its pieces. A call with anything else goes the
general way.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET

from dyn_service.api.queries import Array, Query
from dyn_service.client.core import pack_request, read_head
from dyn_service.errors import InternalError
from dyn_service.protocol.arrays import WireArray
from dyn_service.protocol.messages import VERSION

_F8 = np.dtype("<f8")
_DOUBLE = struct.Struct(">d")
_ID = struct.Struct(">Q")


class _Array(msgspec.Struct, gc=False):
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
    """One row of the table for one robot of one server.

    Args:
        row: The row of the table; it must have one output.
        robot: The robot's name on the server.
        model: Its fingerprint.
        sizes: Its dimensions.
    """

    def __init__(self, row: Query, robot: str, model: str, sizes: Mapping[str, int]) -> None:
        self._row = row
        self._robot = robot
        self._model = model
        self.inputs = [name for name in row.inputs if name not in row.optional]
        self._shapes = [None if row.inputs[name].scalar else row.inputs[name].dims(sizes) for name in self.inputs]
        self._limits = (0.0, 0.0)
        self._pieces: list[bytes] = []
        (output,) = row.outputs
        outputs = msgspec.defstruct("Outputs", [("array", _Array)], rename={"array": output}, gc=False)
        reply = [("v", Literal[VERSION]), ("id", int), ("ok", Literal[True]), ("outputs", outputs)]
        self._decode = msgspec.msgpack.Decoder(msgspec.defstruct("StateReply", reply, gc=False)).decode

    def data(self, values: Sequence[Any]) -> list[bytes] | None:
        """The bytes of these values of `inputs`, or None if they are not of the form that this call takes."""
        data = []
        for value, shape in zip(values, self._shapes, strict=True):
            if value.__class__ is np.ndarray and value.dtype is _F8 and value.shape == shape:
                data.append(value.tobytes())
            elif value.__class__ is float and shape is None:
                data.append(_DOUBLE.pack(value))
            else:
                return None
        return data

    def write(self, data: list[bytes], request_id: int, timeout_s: float, compile_wait_s: float = 0.0) -> bytes:
        """The request with this data."""
        limits = (timeout_s, compile_wait_s)
        if limits != self._limits:
            self._pieces = self._cut(timeout_s, compile_wait_s)
            self._limits = limits
        pieces = self._pieces.copy()
        pieces[1] = _ID.pack(request_id)
        pieces[3::2] = data
        return b"".join(pieces)

    def read(self, payload: bytes) -> Any:
        """A reply with `outputs.array.value()`; or as `core.read_head` reads it, such as one with an error."""
        try:
            return self._decode(payload)
        except msgspec.MsgspecError:
            return read_head(payload)

    def _cut(self, timeout_s: float, compile_wait_s: float) -> list[bytes]:
        """A request in pieces: those at odd places are the id and the numbers."""
        marks = [_ID.pack(2**64 - 1)]
        inputs: dict[str, Any] = {}
        for k, (name, shape) in enumerate(zip(self.inputs, self._shapes, strict=True)):
            number = -1.5e300 * (1.0 + k / 64.0)  # no text or number of the rest holds these bytes
            if shape is None:
                inputs[name] = number
                marks.append(_DOUBLE.pack(number))
            else:
                data = np.full(shape, number).astype(_F8).tobytes()
                inputs[name] = WireArray("<f8", shape, data)
                marks.append(data)
        rest = pack_request(
            2**64 - 1, self._row.name, self._robot, inputs, UNSET, self._model, timeout_s * 1e3, compile_wait_s * 1e3
        )
        pieces = []
        for mark in marks:
            head, found, rest = rest.partition(mark)
            assert found, "every mark stands in the request, in this order"
            pieces += [head, mark]
        return [*pieces, rest]


def shortcut(row: Query, general: Callable[..., Any], state: Callable[..., Any]) -> Callable[..., Any]:
    """The row's method as a plain function: `state` for calls without optional inputs and options, else `general`.

    Args:
        row: The row of the table.
        general: The row's method.
        state: Takes the required inputs, and gives None where the general way must be taken.
    """
    plain = [f"{name} is None" for name in row.optional]
    plain += [f"{option.name} == {option.default!r}" for option in row.options.values()]
    required = ", ".join(name for name in row.inputs if name not in row.optional)
    source = f"def {row.name}({row.declared}):\n"
    source += f"    if {' and '.join(plain) or 'True'}:\n"
    source += f"        answer = state({required})\n        if answer is not None:\n            return answer\n"
    source += f"    return general({row.passed})\n"
    space: dict[str, Any] = {"general": general, "state": state}
    exec(compile(source, f"<{row.name}>", "exec"), space)
    made: Callable[..., Any] = space[row.name]
    made.__doc__ = general.__doc__
    return made

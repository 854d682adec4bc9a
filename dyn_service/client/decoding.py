"""The quick reading of the common reply: one array.

A typed decoder checks and reads such a reply in one pass, in C; all others, such as errors, are read the general way.
Measured on the Panda's inverse dynamics: 0.7 instead of 1.9 us, of a round trip of some 60 us. Writing requests by
typed structs of their own saved 0.3 of 2.9 us and is not done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from dyn_service.api.queries import Array, Query
from dyn_service.client.core import read_head
from dyn_service.errors import InternalError
from dyn_service.protocol.arrays import ReplyArray
from dyn_service.protocol.messages import VERSION


def array_reader(row: Query) -> Callable[[bytes], Any]:
    """Reads replies to a row with one output.

    Returns:
        What makes of a reply's bytes something with an `id` and the array as `outputs.array`, for `array_of`; or what
        `core.read_head` makes of it.
    """
    (output,) = row.outputs
    outputs = msgspec.defstruct("Outputs", [("array", ReplyArray)], rename={"array": output}, gc=False)
    fields: list[Any] = [("v", Literal[VERSION]), ("id", int), ("ok", Literal[True]), ("outputs", outputs)]
    fields += [("epoch", int | UnsetType, UNSET), ("late", UnsetType | None, UNSET)]  # late ones go the general way
    decode = msgspec.msgpack.Decoder(msgspec.defstruct("ArrayReply", fields, gc=False)).decode

    def read(payload: bytes) -> Any:
        try:
            return decode(payload)
        except msgspec.MsgspecError:
            return read_head(payload)

    return read


def array_of(reply: Any) -> Array:
    """The array of a reply that the typed decoder took.

    Raises:
        InternalError: Its bytes are not those of its shape.
    """
    try:
        array: Array = reply.outputs.array.value()
    except ValueError as fault:
        raise InternalError(f"the server's answer cannot be read: {fault}") from None
    return array

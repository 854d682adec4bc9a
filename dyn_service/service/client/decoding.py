"""The quick reading of the common reply: one array.

A typed decoder checks and decodes such a reply in one pass, in C; all others, such as errors, take the slow path.
Measured on the Panda's inverse dynamics: 0.7 instead of 1.9 us, of a round trip of some 60 us. Writing requests by
typed structs of their own saved 0.3 of 2.9 us and is not done.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from dyn_service.api.queries import QUERIES, Array, Query
from dyn_service.service.client.core import check_array, read_head, unreadable
from dyn_service.service.protocol.arrays import ReplyArray, may_be_infinite
from dyn_service.service.protocol.messages import VERSION


@cache
def array_reader(query: str) -> Callable[[bytes], Any]:
    """Reads replies to a query with one output.

    Returns:
        What makes of a reply's bytes something with an `id` and the array as `outputs.array`, for `array_of`; or what
        `core.read_head` makes of it.
    """
    (output,) = QUERIES[query].outputs
    outputs = msgspec.defstruct("Outputs", [("array", ReplyArray)], rename={"array": output}, gc=False)
    fields: list[Any] = [("v", Literal[VERSION]), ("id", int), ("ok", Literal[True]), ("outputs", outputs)]
    fields += [("epoch", int | UnsetType, UNSET), ("late", UnsetType | None, UNSET)]  # late replies take the slow path
    decode = msgspec.msgpack.Decoder(msgspec.defstruct("ArrayReply", fields, gc=False)).decode

    def read(payload: bytes) -> Any:
        try:
            return decode(payload)
        except msgspec.MsgspecError:
            return read_head(payload)

    return read


def array_of(reply: Any, row: Query, shape: tuple[int, ...]) -> Array:
    """The array of a reply that the typed decoder took.

    Args:
        reply: As `array_reader` gave it.
        row: The query's row of the table.
        shape: The array's, as it was asked for.

    Raises:
        InternalError: It has another shape, its bytes are not those of it, or a number is not finite.
    """
    packed: ReplyArray = reply.outputs.array
    try:
        array: Array = packed.value()
    except ValueError as fault:
        raise unreadable(fault) from None
    if packed.shape != shape or may_be_infinite(packed.data):
        check_array(row, str(row.output), array, shape)
    return array

"""What a message may hold: the limits of the wire, and the decoder that keeps them.

A few bytes of MessagePack can announce millions of entries (a mebibyte of empty maps is 76 MB of Python objects), so
every count is capped before it is allocated. Bulk numbers travel as binary data, which these caps do not touch; nested
lists are for small messages written by hand.
"""

from __future__ import annotations

import re
from typing import Any

import msgpack  # type: ignore[import-untyped]
import msgspec

from dyn_service.errors import InvalidArgumentError, ResourceExhaustedError

MAX_MESSAGE_BYTES = 64 << 20
"""Longest request or reply, unless the server is told otherwise."""

MAX_LIST = 4096
"""Entries of one list."""

MAX_MAP = 256
"""Entries of one map."""

MAX_TEXT = 8 << 20
"""Bytes of one text, which may be a robot description."""

MAX_ENTRIES = 65536
"""Entries of all lists and maps of a message together."""

MAX_DIMENSIONS = 16
"""Dimensions of one array."""

MAX_DEPTH = 1024
"""Lists and maps inside each other: the size of the decoder's stack."""

_OVER = re.compile(r"(\d+) exceeds max_(\w+)_len\((\d+)\)")
_KINDS = {
    "array": "a list of {} entries is over the limit of {}",
    "map": "a map of {} entries is over the limit of {}",
    "str": "a text of {} bytes is over the limit of {}",
    "bin": "binary data of {} bytes are over the limit of {}",
}


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits a server can set for itself.

    max_message_bytes: longest request; the transport closes a connection that announces more.
    max_reply_bytes: longest reply; a request whose answer would be longer is refused before it is computed.
    max_waiting: requests that may wait for the worker thread. max_waiting_bytes: their bytes, and those of replies
    that a slow reader has not yet taken.
    max_robots: robots served at a time.
    max_connections: peers at a time, fewer where the system allows fewer open files. max_unfinished_bytes: of messages
    that have not ended, max_unread_bytes: of replies that are not read, each over all connections together.
    """

    max_message_bytes: int = MAX_MESSAGE_BYTES
    max_reply_bytes: int = MAX_MESSAGE_BYTES
    max_waiting: int = 256
    max_waiting_bytes: int = 256 << 20
    max_robots: int = 64
    max_connections: int = 1024
    max_unfinished_bytes: int = 256 << 20
    max_unread_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) <= 0:
                raise InvalidArgumentError(f"the limit {name} is {getattr(self, name)}, must be positive")


def unpack(payload: bytes | memoryview) -> Any:
    """The one object that the payload holds.

    Raises:
        InvalidArgumentError: The payload is not one MessagePack object.
        ResourceExhaustedError: It is over one of the limits of this module.
    """
    # Each entry takes at least a byte, so that only longer payloads can hold too many: the others need no counting.
    counter = _Counter() if len(payload) > MAX_ENTRIES else None
    try:
        return msgpack.unpackb(
            payload,
            max_array_len=MAX_LIST,
            max_map_len=MAX_MAP,
            max_str_len=MAX_TEXT,
            max_ext_len=0,
            object_hook=counter and counter.count,
            list_hook=counter and counter.count,
        )
    except msgpack.StackError:
        raise ResourceExhaustedError(f"lists and maps are nested deeper than {MAX_DEPTH} levels") from None
    except (ValueError, msgpack.UnpackException) as fault:
        raise _explain(fault, payload) from None


class _Counter:
    """Adds up the entries of the lists and maps that are decoded."""

    def __init__(self) -> None:
        self._entries = 0

    def count(self, container: Any) -> Any:
        self._entries += len(container)
        if self._entries > MAX_ENTRIES:
            raise ResourceExhaustedError(f"the message's lists and maps hold more than {MAX_ENTRIES} entries together")
        return container


def _explain(fault: Exception, payload: bytes | memoryview) -> InvalidArgumentError | ResourceExhaustedError:
    if not len(payload):
        return InvalidArgumentError("the message is empty, expected a MessagePack map")
    if isinstance(fault, msgpack.ExtraData):
        return InvalidArgumentError(f"the message goes on for {len(fault.extra)} bytes after its MessagePack map")
    over = _OVER.match(str(fault))
    if over is None:
        cause = str(fault) or "a byte that starts no object"
        return InvalidArgumentError(f"the message is not MessagePack: {cause.removeprefix('Unpack failed: ')}")
    found, kind, limit = over.groups()
    if kind == "ext":
        return InvalidArgumentError("the message holds a MessagePack extension type, none is used here")
    return ResourceExhaustedError(_KINDS[kind].format(found, limit))

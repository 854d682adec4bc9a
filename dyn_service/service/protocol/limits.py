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

MAX_NESTING = 64
"""Lists and maps inside each other."""

_OVER = re.compile(r"(\d+) exceeds max_(\w+)_len\((\d+)\)")
_KINDS = {
    "array": "a list of {} entries is over the limit of {}",
    "map": "a map of {} entries is over the limit of {}",
    "str": "a text of {} bytes is over the limit of {}",
    "bin": "binary data of {} bytes are over the limit of {}",
}


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits a server can set for itself. In process nothing of this is limited.

    Of messages and those who send them:

    max_message_bytes: longest request; the transport closes a connection that announces more.
    max_reply_bytes: longest reply; a request whose answer would be longer is refused before it is computed.
    max_entries: of all lists and maps of a request together. max_nesting: lists and maps inside each other.
    max_waiting: requests that may wait for a worker, max_waiting_per_client: of one connection. max_waiting_bytes:
    their bytes together.

    Of one request, foretold before any of it is spent (see `api.cost`):

    max_work_s: seconds of one core; what cannot be foretold is stopped when it has taken so long.
    max_memory_bytes: for its inputs, its answer and what lives in between.
    max_states: of a batch. max_steps: of a motion. max_wrenches: external ones. max_contacts: points that
    meet planes. max_segments: of a gait chain.

    Of robots:

    max_robots: served at a time. max_links, max_joints: of one that is loaded. max_urdf_bytes: of its description.
    max_xml_elements (with comments), max_xml_nesting: of that.

    Of connections, over all together:

    max_connections: peers at a time, fewer where the system allows fewer open files. max_unfinished_bytes: of messages
    that have not ended. max_unread_bytes: of replies that are not read.

    Of worker processes:

    max_worker_s: how long one may be at a request, kernels that it has to make included. max_worker_bytes: its memory.
    """

    max_message_bytes: int = MAX_MESSAGE_BYTES
    max_reply_bytes: int = MAX_MESSAGE_BYTES
    max_entries: int = MAX_ENTRIES
    max_nesting: int = MAX_NESTING
    max_waiting: int = 256
    max_waiting_per_client: int = 128
    max_waiting_bytes: int = 256 << 20
    max_work_s: float = 10.0
    max_memory_bytes: int = 512 << 20
    max_states: int = 1 << 20
    max_steps: int = 20_000
    max_wrenches: int = 256
    max_contacts: int = 64
    max_segments: int = 256
    max_robots: int = 64
    max_links: int = 1000
    max_joints: int = 1000
    max_urdf_bytes: int = MAX_TEXT
    max_xml_elements: int = 20_000
    max_xml_nesting: int = 64
    max_connections: int = 1024
    max_unfinished_bytes: int = 256 << 20
    max_unread_bytes: int = 256 << 20
    max_worker_s: float = 120.0
    max_worker_bytes: int = 4 << 30

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise InvalidArgumentError(f"the limit {name} is {getattr(self, name)}, must be positive")
        for name, most in (("max_entries", MAX_ENTRIES), ("max_nesting", MAX_NESTING), ("max_urdf_bytes", MAX_TEXT)):
            if getattr(self, name) > most:
                raise InvalidArgumentError(f"the limit {name} is {getattr(self, name)}, the wire takes at most {most}")


def unpack(payload: bytes | memoryview, limits: RequestLimits) -> Any:
    """The one object that the payload holds.

    Raises:
        InvalidArgumentError: The payload is not one MessagePack object.
        ResourceExhaustedError: It is over one of the limits of this module, or of `limits`.
    """
    # Each entry takes at least a byte, so that only longer payloads can hold too many: the others need no counting.
    counter = _Counter(limits.max_entries) if len(payload) > limits.max_entries else None
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
        raise _too_deep(limits) from None
    except (ValueError, msgpack.UnpackException) as fault:
        raise _explain(fault, payload) from None


def check_nesting(value: Any, limits: RequestLimits) -> None:
    """Refuses lists and maps that stand too deep inside each other.

    Raises:
        ResourceExhaustedError: They do.
    """
    level = [value]
    for _ in range(limits.max_nesting):
        parts = (part.values() if type(part) is dict else part for part in level)
        level = [each for part in parts for each in part if type(each) is dict or type(each) is list]
        if not level:
            return
    raise _too_deep(limits)


def _too_deep(limits: RequestLimits) -> ResourceExhaustedError:
    return ResourceExhaustedError(f"lists and maps are nested deeper than {limits.max_nesting} levels")


class _Counter:
    """Adds up the entries of the lists and maps that are decoded."""

    def __init__(self, most: int) -> None:
        self._entries = 0
        self._most = most

    def count(self, container: Any) -> Any:
        self._entries += len(container)
        if self._entries > self._most:
            raise ResourceExhaustedError(f"the message's lists and maps hold more than {self._most} entries together")
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

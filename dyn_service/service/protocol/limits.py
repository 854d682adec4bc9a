"""Limits of messages and servers, and the decoder that enforces those of messages.

A few bytes of MessagePack can announce millions of entries (a mebibyte of empty maps becomes 76 MB of Python objects),
so each count is checked before memory is allocated. Large arrays are binary data, to which these limits do not apply;
nested lists are for small messages written by hand.

Also the defaults that clients, servers and commands share.
"""

from __future__ import annotations

import re
from typing import Any

import msgpack  # type: ignore[import-untyped]
import msgspec

from dyn_service.errors import InvalidArgumentError, ResourceExhaustedError

MAX_MESSAGE_BYTES = 64 << 20
"""Default length of the longest request and reply."""

MAX_LIST = 4096
"""Entries of one list."""

MAX_MAP = 256
"""Entries of one map."""

MAX_TEXT = 8 << 20
"""Bytes of one string, which may be a robot description."""

MAX_ENTRIES = 65536
"""Total entries of all lists and maps in a message."""

MAX_DIMENSIONS = 16
"""Dimensions of one array."""

MAX_NESTING = 64
"""Nesting depth of lists and maps."""

_OVER = re.compile(r"(\d+) exceeds max_(\w+)_len\((\d+)\)")
_KINDS = {
    "array": "a list of {} entries is over the limit of {}",
    "map": "a map of {} entries is over the limit of {}",
    "str": "a string of {} bytes is over the limit of {}",
    "bin": "binary data of {} bytes is over the limit of {}",
}


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configurable limits of a server. Calls in the same process have no limits.

    Messages and queues:

    max_message_bytes: longest request; the transport closes a connection that announces a longer one.
    max_reply_bytes: longest reply; a request with a longer answer is refused before it is computed.
    max_entries: total entries of all lists and maps in a request. max_nesting: nesting depth of lists and maps.
    max_waiting: queued requests in total, max_waiting_per_client: of one connection, max_waiting_bytes: their total
    size.

    One request, estimated before it is computed (see `api.cost`):

    max_work_s: seconds on one core; work that cannot be estimated is stopped after this time.
    max_memory_bytes: memory for inputs, answer and intermediate results.
    max_states: states in a batch. max_steps: steps of a simulation. max_wrenches: external wrenches.
    max_contacts: contact points. max_segments: segments of a gait chain.

    Robots:

    max_robots: loaded robots. max_links, max_joints: of one robot. max_urdf_bytes: length of its description.
    max_xml_elements (comments included), max_xml_nesting: of its XML.

    All connections together:

    max_connections: open connections; fewer if the system allows fewer open files. max_unfinished_bytes: bytes of
    incomplete messages. max_unread_bytes: bytes of replies that clients have not read.

    Worker processes:

    max_worker_s: time for one request, including compilation. max_worker_bytes: memory of a worker.
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
                raise InvalidArgumentError(f"the limit {name} must be positive, found {getattr(self, name)}")
        for name, maximum in (("max_entries", MAX_ENTRIES), ("max_nesting", MAX_NESTING), ("max_urdf_bytes", MAX_TEXT)):
            if getattr(self, name) > maximum:
                value = getattr(self, name)
                raise InvalidArgumentError(f"the limit {name} is {value}, the protocol allows at most {maximum}")


def decode_message(payload: bytes | memoryview, limits: RequestLimits) -> Any:
    """Decodes a payload of one MessagePack object.

    Raises:
        InvalidArgumentError: The payload is not one MessagePack object.
        ResourceExhaustedError: It exceeds a limit of this module or of `limits`.
    """
    # Each entry takes at least one byte, so a payload of at most max_entries bytes needs no counting.
    counter = _Counter(limits.max_entries) if len(payload) > limits.max_entries else None
    try:
        # not msgspec, which has no limits on lengths and would decode a bomb of nested lists
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
    """Raises `ResourceExhaustedError` if lists and maps are nested deeper than `limits.max_nesting`."""
    level = [value]
    for _ in range(limits.max_nesting):
        parts = (part.values() if type(part) is dict else part for part in level)
        level = [entry for part in parts for entry in part if type(entry) is dict or type(entry) is list]
        if not level:
            return
    raise _too_deep(limits)


def _too_deep(limits: RequestLimits) -> ResourceExhaustedError:
    return ResourceExhaustedError(f"lists and maps are nested deeper than {limits.max_nesting} levels")


class _Counter:
    """Counts the entries of the lists and maps while they are decoded."""

    def __init__(self, limit: int) -> None:
        self._entries = 0
        self._limit = limit

    def count(self, container: Any) -> Any:
        self._entries += len(container)
        if self._entries > self._limit:
            raise ResourceExhaustedError(f"the message's lists and maps have more than {self._limit} entries in total")
        return container


def _explain(fault: Exception, payload: bytes | memoryview) -> InvalidArgumentError | ResourceExhaustedError:
    if not len(payload):
        return InvalidArgumentError("the message is empty, expected a MessagePack map")
    if isinstance(fault, msgpack.ExtraData):
        return InvalidArgumentError(f"the message has {len(fault.extra)} extra bytes after its MessagePack object")
    excess = _OVER.match(str(fault))
    if excess is None:
        cause = str(fault) or "invalid first byte of an object"
        return InvalidArgumentError(f"the message is not MessagePack: {cause.removeprefix('Unpack failed: ')}")
    size, kind, limit = excess.groups()
    if kind == "ext":
        return InvalidArgumentError("the message contains a MessagePack extension type, which is not supported")
    return ResourceExhaustedError(_KINDS[kind].format(size, limit))


DEFAULT_ENDPOINT = "tcp://127.0.0.1:5755"
"""Loopback: by default, other machines cannot reach a server."""

NOTICE_PERIOD_MS = 1000.0
"""Interval between the notices to a request that waits for a compilation."""

DEFAULT_COMPILE_WAIT_S = 120.0
"""Additional time a client waits while the server compiles: several times the compilation of a large robot."""

DEFAULT_TIMEOUT_S = 1.0
"""Time limit of a call."""

DEFAULT_RETRIES = 3
"""Number of retries of a query that changes nothing, over an open connection."""

DEFAULT_RETRY_AFTER_S = 0.1
"""Time without a reply before a retry: far longer than the computation of one state, and longer than the time limits of
control loops, whose requests are therefore never retried.
"""

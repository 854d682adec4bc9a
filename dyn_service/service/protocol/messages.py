"""The messages of the protocol, version 1, as structs: requests, replies, notices and cancels. See docs/protocol.md.

Notices precede the reply and are sent only for requests with `compile_wait_ms`. A cancel has no reply.

A reader ignores unknown keys of a request, reply or array. It checks the version first, so that a request of a later
version gets an error that names the version.

An error reply needs the id of its request even if the request is damaged, truncated or over the limits. So `peek` scans
the keys of the outermost map and skips the other values without decoding them: it counts the objects still to skip, so
nesting needs no stack, and it jumps over strings and binary data. It stops at the first error and keeps the fields read
so far. Cost: linear in the number of skipped objects, which is bounded.

**Queries about the server** and its robots, with the role that each requires.
`api/queries.py` lists the other queries.

Inputs and outputs are plain MessagePack values.
"""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from dyn_service.errors import DynError, InvalidArgumentError, UnimplementedError
from dyn_service.service.protocol.arrays import describe_value, show_value
from dyn_service.service.protocol.limits import RequestLimits, check_nesting, decode_message

VERSION = 1
"""The protocol version of this package."""

EPOCH_BITS = 53

CANCEL: Final = "cancel"
"""The query name of a cancel."""

MAX_ERROR_TEXT = 8192
"""Characters of a message or path in an error reply."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """A request. `inputs` and `options` are not yet validated against the table of queries.

    compile_wait_ms: time beyond `deadline_ms` that the client waits for a compilation; it then receives notices.
    retry: number of earlier transmissions with the same id; absent in the first. The server does not queue a request
    again while it waits.
    """

    v: int
    id: Annotated[int, Meta(ge=0)]
    query: str
    robot: str | UnsetType | None = UNSET
    inputs: dict[str, Any] | UnsetType | None = UNSET
    options: dict[str, Any] | UnsetType | None = UNSET
    model: str | UnsetType | None = UNSET
    deadline_ms: Annotated[float, Meta(gt=0, le=sys.float_info.max)] | UnsetType | None = UNSET
    compile_wait_ms: Annotated[float, Meta(gt=0, le=sys.float_info.max)] | UnsetType | None = UNSET
    retry: Annotated[int, Meta(ge=1)] | UnsetType | None = UNSET


class Timing(msgspec.Struct, frozen=True, gc=False):
    """Times in the server: from receipt to the start of the computation, and of the computation."""

    queue_us: float
    compute_us: float


class Reply(msgspec.Struct, frozen=True, gc=False):
    """A successful reply.

    residuals: if requested, by formulation: a number, or nested lists for a batch. epoch: see `new_epoch`. late: true
    if the computation ended after the deadline, else absent.
    """

    v: int
    id: int
    ok: bool
    outputs: Mapping[str, Any]
    timing: Timing
    residuals: Mapping[str, Any] | UnsetType = UNSET
    epoch: int | UnsetType = UNSET
    late: bool | UnsetType = UNSET


class ErrorReply(msgspec.Struct, frozen=True, gc=False):
    """An error reply. `id` is None if the id of the request could not be read."""

    v: int
    id: int | None
    ok: bool
    error: Mapping[str, Any]
    epoch: int | UnsetType = UNSET


class Progress(msgspec.Struct, frozen=True, gc=False):
    """Progress of a request.

    state: `compiling`; later versions may add states. text: description for users. elapsed_ms: time since the
    compilation of the current kernel began. again_ms: interval between notices.
    """

    state: str
    text: str
    elapsed_ms: float
    again_ms: float


class Notice(msgspec.Struct, frozen=True, gc=False):
    """The progress of a request whose reply is not ready yet."""

    v: int
    id: int
    notice: Progress


class Cancel(msgspec.Struct, frozen=True, gc=False):
    """The client no longer waits for the request with this id on this connection; the server may stop its work."""

    v: Literal[1]
    id: Annotated[int, Meta(ge=0)]
    query: Literal["cancel"]


class RequestHead(msgspec.Struct, frozen=True, gc=False):
    """The fields of a request that the server needs for error replies, notices and deadlines."""

    id: int | None = None
    query: str = ""
    compile_wait_ms: float | UnsetType | None = UNSET
    deadline_ms: float | UnsetType | None = UNSET
    robot: str | UnsetType | None = UNSET
    retry: int | UnsetType | None = UNSET


class ReplyHead(msgspec.Struct, frozen=True, gc=False):
    """A reply of either kind, whose `outputs` are not decoded yet.

    epoch: UNSET from servers without epochs.
    """

    v: int
    id: int | None
    ok: bool
    outputs: Raw = Raw()
    error: dict[str, Any] | UnsetType = UNSET
    timing: Timing | UnsetType = UNSET
    residuals: dict[str, Any] | UnsetType = UNSET
    epoch: int | UnsetType | None = UNSET
    late: bool | UnsetType | None = UNSET


class RequestRefusedError(Exception):
    """A request that cannot be read. head: its readable fields. error: the error to reply with."""

    def __init__(self, head: RequestHead, error: DynError) -> None:
        super().__init__(head, error)
        self.head = head
        self.error = error


encode = msgspec.msgpack.Encoder().encode
"""Encodes any of the messages above."""

decode_reply_head = msgspec.msgpack.Decoder(ReplyHead).decode
"""Decodes a reply without its outputs; raises `msgspec.MsgspecError` if the bytes are not a reply."""


decode_notice = msgspec.msgpack.Decoder(Notice).decode
"""Decodes a notice; raises `msgspec.MsgspecError` if the bytes are not a notice."""


def new_epoch() -> int:
    """Returns a random number that identifies one run of a server; a different one in a reply shows a restart.

    It has 53 bits, so that a double represents it exactly, and is never 0.
    """
    return secrets.randbits(EPOCH_BITS) or 1


def error_reply(request_id: int | None, error: DynError, epoch: int | UnsetType = UNSET) -> bytes:
    """Encodes an error reply. Strings of more than `MAX_ERROR_TEXT` characters are shortened."""
    wire = {name: _shorten(value) if type(value) is str else value for name, value in error.to_wire().items()}
    return encode(ErrorReply(VERSION, request_id, False, wire, epoch))


def cancel(request_id: int) -> bytes:
    """Encodes the message that cancels this request."""
    return encode(Cancel(1, request_id, CANCEL))


def read_cancel(payload: bytes | memoryview) -> int | None:
    """Returns the id of the request that this message cancels; None if it is not a cancel."""
    try:
        return _decode_cancel(payload).id
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None


def _shorten(text: str) -> str:
    half = MAX_ERROR_TEXT // 2
    return text if len(text) <= MAX_ERROR_TEXT else f"{text[:half]} ... {text[-half:]}"


def read_request(payload: bytes | memoryview, limits: RequestLimits | None = None) -> Request:
    """Decodes a request; raises `RequestRefusedError` if it is invalid, of another version or over the limits."""
    limits = limits or _LIMITS
    # msgspec checks types in one pass but has no limits, so it decodes only payloads too short to exceed them.
    if len(payload) <= limits.max_entries:
        try:
            request = _decode_request(payload)
            if request.v == VERSION:
                _check_nesting(request, payload, limits)
                return request
        except (msgspec.MsgspecError, RecursionError, ValueError):
            pass  # `_read_carefully` raises the error with its cause
    request = _read_carefully(payload, limits)
    _check_nesting(request, payload, limits)
    return request


def _check_nesting(request: Request, payload: bytes | memoryview, limits: RequestLimits) -> None:
    try:
        check_nesting({"inputs": request.inputs or {}, "options": request.options or {}}, limits)
    except DynError as error:
        raise RequestRefusedError(peek(payload), error) from None


def _read_carefully(payload: bytes | memoryview, limits: RequestLimits) -> Request:
    try:
        message = decode_message(payload, limits)
        if type(message) is not dict:
            raise InvalidArgumentError(f"the message must be a map, found {describe_value(message)}")
        if "v" in message:
            version = message["v"]
            if type(version) is not int:
                type_name = describe_value(version)
                raise InvalidArgumentError(f"v must be the integer {VERSION}, found {type_name}", path="v")
            if version != VERSION:
                raise UnimplementedError(f"v must be {VERSION}, found version {version}", path="v")
        return msgspec.convert(message, Request)
    except DynError as error:
        raise RequestRefusedError(peek(payload), error) from None
    except msgspec.ValidationError as fault:
        raise RequestRefusedError(peek(payload), _explain(str(fault), message)) from None


_LIMITS = RequestLimits()
_decode_request = msgspec.msgpack.Decoder(Request).decode
_decode_cancel = msgspec.msgpack.Decoder(Cancel).decode
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_PLACE = re.compile(r" - at (`key` in )?`\$\.?(\w*)`$")
_EXPECTED = {
    "id": "an unsigned integer",
    "query": "the name of a query",
    "robot": "the name of a robot",
    "inputs": "a map of inputs by name",
    "options": "a map of options by name",
    "model": "the fingerprint of a robot",
    "deadline_ms": "a positive, finite number of milliseconds",
    "compile_wait_ms": "a positive, finite number of milliseconds",
    "retry": "an integer of at least 1",
}


def _explain(fault: str, message: dict[Any, Any]) -> DynError:
    """Returns the error for msgspec's message about a request."""
    missing = _MISSING.match(fault)
    if missing:
        return InvalidArgumentError(f"the request must have {missing[1]!r}", path=missing[1])
    place = _PLACE.search(fault)
    path = place[2] if place else ""
    if place and place[1]:
        return InvalidArgumentError(f"the keys of {path or 'the request'} must be strings", path=path or None)
    value = message.get(path)
    description = show_value(value) if type(value) in (int, float, str) else describe_value(value)
    return InvalidArgumentError(f"{path} must be {_EXPECTED.get(path, fault)}, found {description}", path=path or None)


MAX_SCANNED_OBJECTS = 1 << 17
"""Default limit of scanned objects, some tens of milliseconds; later fields are not read."""

_MAX_KEY_BYTES = 32
"""Length in bytes of the longest key that is decoded."""

# By first byte. _FIXED: bytes that follow. _SIZED: width of the length, extra bytes. _CONTAINERS: width of the length,
# contained objects per unit of length.
_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_FIXED |= {0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
_SIZED = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
_SIZED |= {0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
_CONTAINERS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}

_decode_scalar = msgspec.msgpack.Decoder().decode


def peek(payload: bytes | memoryview, max_objects: int = MAX_SCANNED_OBJECTS) -> RequestHead:
    """Reads the head of a request that may be damaged or over the limits. Unreadable fields have their defaults.

    max_objects: maximum number of objects to scan, about 0.2 us each.
    """
    values = scan_fields(payload, frozenset(RequestHead.__struct_fields__), max_objects)
    request_id, query, robot, retry = map(values.get, ("id", "query", "robot", "retry"))
    return RequestHead(
        request_id if type(request_id) is int and request_id >= 0 else None,
        query if type(query) is str else "",
        _milliseconds(values.get("compile_wait_ms")),
        _milliseconds(values.get("deadline_ms")),
        robot if type(robot) is str else UNSET,
        retry if type(retry) is int and retry > 0 else UNSET,
    )


def _milliseconds(value: Any) -> float | UnsetType:
    is_time = type(value) in (int, float) and 0 < value <= sys.float_info.max
    return float(value) if is_time else UNSET


def has_more_objects(payload: bytes | memoryview, count: int) -> bool:
    """Whether a message has more than `count` objects before its end or its first error."""
    try:
        _Scanner(payload, count).skip(1)
    except _TooManyObjectsError:
        return True
    except _ScanError:
        pass
    return False


def scan_fields(
    payload: bytes | memoryview, keys: frozenset[str], max_objects: int = MAX_SCANNED_OBJECTS
) -> dict[str, Any]:
    """Returns the scalar values (number, string, nil, boolean) of these keys in the message's map.

    payload: possibly damaged. keys: the last value of a repeated key counts, as in other readers. max_objects: maximum
    number of objects to scan.
    """
    values: dict[str, Any] = {}
    scanner = _Scanner(payload, max_objects)
    try:
        for _ in range(scanner.enter_map()):
            key = scanner.scalar(_MAX_KEY_BYTES)
            if type(key) is str and key in keys:
                values[key] = None
                values[key] = scanner.scalar(len(payload))
            else:
                scanner.skip(1)
    except _ScanError:
        pass
    return values


class _ScanError(Exception):
    """The message is truncated, is not MessagePack, or has too many objects."""


class _TooManyObjectsError(_ScanError):
    """The message has too many objects."""


class _Scanner:
    """A position in a message that moves forward."""

    def __init__(self, payload: bytes | memoryview, max_objects: int) -> None:
        self._bytes = payload
        self._position = 0
        self._remaining = max_objects

    def enter_map(self) -> int:
        """Enters the map at this position and returns its announced number of entries."""
        first = self._first_byte()
        if 0x80 <= first <= 0x8F:
            self._position += 1
            return first & 0x0F
        if first in (0xDE, 0xDF):
            width, _ = _CONTAINERS[first]
            count = self._length(width)
            self._position += 1 + width
            return count
        raise _ScanError

    def scalar(self, longest: int) -> Any:
        """Returns the scalar at this position and moves past it; None for a container or a value that is too long."""
        first, begin = self._first_byte(), self._position
        if 0x80 <= first <= 0x9F or first in _CONTAINERS:
            self.skip(1)
            return None
        self.skip(1)
        if self._position - begin > longest + 5:
            return None
        try:
            return _decode_scalar(self._bytes[begin : self._position])
        except (msgspec.MsgspecError, ValueError, OverflowError):
            return None

    def skip(self, objects: int) -> None:
        """Moves past this number of objects and their content."""
        data, position, remaining, end = self._bytes, self._position, self._remaining, len(self._bytes)
        while objects:
            if position >= end:
                raise _ScanError
            if not remaining:
                raise _TooManyObjectsError
            remaining -= 1
            first = data[position]
            if first <= 0x7F or first >= 0xE0:
                position += 1
                objects -= 1
            elif first <= 0x8F:
                position += 1
                objects += 2 * (first & 0x0F) - 1
            elif first <= 0x9F:
                position += 1
                objects += (first & 0x0F) - 1
            elif first <= 0xBF:
                position += 1 + (first & 0x1F)
                objects -= 1
            elif first in _FIXED:
                position += 1 + _FIXED[first]
                objects -= 1
            else:
                self._position = position
                position, entries = self._object_end(first)
                objects += entries - 1
        if position > end:
            raise _ScanError
        self._position, self._remaining = position, remaining

    def _object_end(self, first: int) -> tuple[int, int]:
        """Returns the position after an object with a length (of a container: after its header) and its entry count."""
        if first in _SIZED:
            width, extra_bytes = _SIZED[first]
            return self._position + 1 + width + extra_bytes + self._length(width), 0
        if first in _CONTAINERS:
            width, objects_per_entry = _CONTAINERS[first]
            return self._position + 1 + width, objects_per_entry * self._length(width)
        raise _ScanError

    def _first_byte(self) -> int:
        if self._position >= len(self._bytes):
            raise _ScanError
        return self._bytes[self._position]

    def _length(self, width: int) -> int:
        data = self._bytes[self._position + 1 : self._position + 1 + width]
        if len(data) < width:
            raise _ScanError
        return int.from_bytes(data, "big")


class Role(IntEnum):
    """Permissions of a key; each role includes the lower ones.

    QUERY: send queries on robots. LOAD: load and unload robots. ADMIN: read the statistics of all clients.
    """

    QUERY = 1
    LOAD = 2
    ADMIN = 3


@dataclass(frozen=True)
class Administration:
    """One query, with the meaning of its inputs, options and outputs by name.

    names_robot: the request must have `robot`. slow: a worker executes it. changes: it changes the robots that are
    served, so clients do not retry it automatically. role: lowest role that allows it. required: mandatory inputs and
    options.
    """

    name: str
    summary: str
    names_robot: bool = False
    role: Role = Role.QUERY
    slow: bool = False
    changes: bool = False
    inputs: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    required: tuple[str, ...] = ()


_DESCRIPTION = {
    "name": "the robot's name",
    "fingerprint": "changes with anything that an answer depends on: send it as `model`",
    "nq": "length of `q`",
    "nv": "length of `v`, `a`, `tau`",
    "sizes": "the value of each dimension symbol in the shapes of inputs and outputs",
    "joint_names": "joints with entries in `q`, in their order: movable joints that mimic no other joint",
    "joint_types": "joint types, in the order of `joint_names`",
    "all_joint_names": "every URDF joint, fixed ones too: the rows of `constraint_forces`",
    "link_names": "every link, parents before children",
    "joints": "every joint in the order of `all_joint_names`: `name`, `type`, `parent` and `child` link (nil: the "
    "world), `axis` in the joint frame and `pitch` in m per turn of types that have them; `mimic` of a joint that "
    "follows another: its position is `multiplier` times that of `joint`, which has an entry in `q`, plus `offset`; "
    "`driven`: whether a motor moves it, absent if the robot's files name no driven joint",
    "loop_joints": "joints that close loops, which have no entries in `q`: `name`, `type`, `parent` and `child` link; "
    "the joint frame in the parent link's frame, `parent_xyz` in m and `parent_rotation`, rows of the rotation matrix, "
    "and in the child link's frame, `child_xyz` and `child_rotation`; `axis` and `pitch` as in `joints`",
    "freedom": "of a robot with loop joints that close, else nil: `freedom`, its degrees of freedom; `rank` and "
    "`redundant`, the numbers of independent and of dependent directions that loop joints block; `independent`, the "
    "names of the independent velocities; `undetermined`, those of passive joints that move while motors stand still",
    "limits": "`lower`, `upper` in the order of `q`, `velocity`, `effort` in that of `v`, nil if absent",
    "gravity": "m/s^2, world axes: default of a request without `gravity`",
    "passive": "passive joint effects of the robot: any of `damping`, `friction`, `armature`, `springs`",
    "conventions": "conventions for quaternions, axes of velocities and the order of spatial vectors",
    "certificates": "by kernel compiled so far: `form`, `chosen frames` or `link frames`; `error`, its largest "
    "difference from its equations as a share of the rounding bound; `output`, the output with that error; `relative`, "
    "that difference divided by the output's largest entry; `states`, the number of states compared; `refused`, the "
    "error in chosen frames if that exceeded 1, or nil",
    "notes": "of the import: `kind`, `element`, `text`, `line` in the file and the number of its [rule](rules.md), "
    "`rule`, empty if it is no finding; those of kind `loop` name what closes loops, is no loop joint and leaves "
    "efforts without an answer, see `load_robot`",
}
"""The fields of `api.description.RobotDescription`."""

ADMINISTRATION: Mapping[str, Administration] = MappingProxyType(
    {
        row.name: row
        for row in (
            Administration("list_robots", "Lists the loaded robots.", outputs={"robots": "names, sorted"}),
            Administration(
                "describe_robot",
                "Returns a robot's names, dimensions, limits and conventions.",
                names_robot=True,
                outputs=_DESCRIPTION,
            ),
            Administration(
                "load_robot",
                "Loads a robot under the name in its description. By default, servers that other machines can reach "
                "refuse this query. Loading a robot that is already loaded changes nothing.",
                slow=True,
                changes=True,
                role=Role.LOAD,
                inputs={
                    "urdf": "content of a robot's file: URDF, MJCF or SDFormat, without includes",
                    "joints": "content of a joint file for it: passive parameters, motors and loop joints",
                },
                options={
                    "root": "motion of the root link in the world: `fixed`, the default, `planar` or `floating`",
                    "mimic": "whether mimic joints follow their source joints: true, the default, or false",
                    "loops": "`closed`, the default: loop joints close their loops; efforts are refused if another "
                    "element closes one; or `cut`: all answers are those of the tree that is left",
                },
                required=("urdf",),
                outputs=_DESCRIPTION,
            ),
            Administration(
                "overlay_robot",
                "Loads a copy of a robot with changed parameters, under a new name. All overlays of a robot share its "
                "kernels. It is refused under the same conditions as `load_robot`; repeating it changes nothing.",
                names_robot=True,
                slow=True,
                changes=True,
                role=Role.LOAD,
                inputs={
                    "overlay": "changed parameters of the robot, as in the inputs of its queries, without leading axes",
                    "name": "name of the copy, at most 256 characters",
                },
                options={"expires_s": "it is unloaded after so many seconds without use; nil, the default: never"},
                required=("overlay", "name"),
                outputs=_DESCRIPTION,
            ),
            Administration(
                "unload_robot",
                "Unloads a robot.",
                names_robot=True,
                changes=True,
                role=Role.LOAD,
                outputs={"robot": "its name"},
            ),
            Administration(
                "health",
                "Reports whether the server is ready.",
                outputs={
                    "status": "always `ok`",
                    "ready": "whether it accepts work: its workers have started, and it is not shutting down",
                    "version": "version of the server's software",
                    "protocol": "supported protocol versions, a list",
                    "robots": "number of loaded robots",
                    "uptime_s": "seconds since the start",
                    "access": "`ok`; `no keys` if the server requires none; or why the list of keys admits no client",
                },
            ),
            Administration(
                "stats",
                "Returns the server's counters since its start.",
                role=Role.ADMIN,
                outputs={
                    "uptime_s": "seconds since the start",
                    "requests": "by query: the numbers of `answered` and `refused`; of the time from receipt to reply "
                    "in microseconds the quantiles `p50_us`, `p99_us`, `max_us` (to a power of two) and the sum "
                    "`total_us`; `buckets`, the k-th of which counts times from 2^(k-1) to below 2^k microseconds",
                    "errors": "number of errors by code",
                    "counters": "of the transport: messages, bytes, undeliverable replies, ..; `workers_lost`, workers "
                    "that exited unexpectedly; `defects`, internal errors, which the server logs",
                    "gauges": "current numbers of connections, queued bytes, workers, and the memory in use",
                    "limits": "the limits of this server, by name",
                },
            ),
        )
    }
)


def required_role(query: str) -> Role:
    """Returns the lowest role that may send this query; `Role.QUERY` for queries that are not in the table."""
    row = ADMINISTRATION.get(query)
    return Role.QUERY if row is None else row.role

"""Requests and replies, version 1: each message declared once, written from here, read from here.

    request  {"v": 1, "id": uint, "query": text, "robot": text, "inputs": map, "options": map?, "model": text?,
              "deadline_ms": number?, "compile_wait_ms": number?, "retry": uint?}
    reply    {"v": 1, "id": same, "ok": true, "outputs": map, "timing": {"queue_us": number, "compute_us": number},
              "epoch": uint, "late": true?}
             {"v": 1, "id": same or nil, "ok": false, "error": {"code": text, "message": text, "path": text?, ..},
              "epoch": uint}
    notice   {"v": 1, "id": same, "notice": {"state": "compiling", "text": text, "elapsed_ms": number,
              "again_ms": number}}
    cancel   {"v": 1, "id": of a request, "query": "cancel"}

Notices come before the reply, and only to requests with `compile_wait_ms`. A cancel has no reply of its own.

A reader ignores keys of a request, reply or array that it does not know. The version is looked at before all else, so
that a request of a version to come gets a reply that says so.
"""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from dyn_service.errors import DynError, InvalidArgumentError, UnimplementedError
from dyn_service.service.protocol.arrays import describe_value, show_value
from dyn_service.service.protocol.limits import RequestLimits, check_nesting, unpack
from dyn_service.service.protocol.skim import MOST_OBJECTS, fields

VERSION = 1
"""The version of the wire that is spoken here."""

EPOCH_BITS = 53

CANCEL: Final = "cancel"
"""What stands in the place of a query."""

MAX_ERROR_TEXT = 8192
"""Characters of a message or path in a refusal."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """A question. `inputs` and `options` are as they came: the query's row says what they must be.

    compile_wait_ms: how long, beyond `deadline_ms`, the asker waits for kernels to be made, and wants to hear of it.
    retry: how often it was sent before, under the same id; left out at first. What waits still is not begun anew.
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
    """Where the server's time went: from receipt to the start of the computation, and the computation itself."""

    queue_us: float
    compute_us: float


class Reply(msgspec.Struct, frozen=True, gc=False):
    """An answer. `residuals`, where they were asked for: by formulation, a number, or nested lists for a batch.

    epoch: which life of the server gave it, see `new_epoch`. late: whether the computation ended after the deadline;
    left out where it did not.
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
    """A refusal. `id` is None where the request's could not be read."""

    v: int
    id: int | None
    ok: bool
    error: Mapping[str, Any]
    epoch: int | UnsetType = UNSET


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """Why a reply is not there yet. `state` is `compiling`; more may come. `text` is for people.

    elapsed_ms: since the kernel that is being made was begun. again_ms: how often there is more news while it goes on.
    """

    state: str
    text: str
    elapsed_ms: float
    again_ms: float


class Notice(msgspec.Struct, frozen=True, gc=False):
    """News of a request that waits: its reply is still to come."""

    v: int
    id: int
    notice: Waiting


class Cancel(msgspec.Struct, frozen=True, gc=False):
    """Whoever sent the request of this id, over this connection, waits no more: work for it may stop."""

    v: Literal[1]
    id: Annotated[int, Meta(ge=0)]
    query: Literal["cancel"]


class Head(msgspec.Struct, frozen=True, gc=False):
    """As much of a request as it takes to refuse it, to say that it waits, or to know how long it may take."""

    id: int | None = None
    query: str = ""
    compile_wait_ms: float | UnsetType | None = UNSET
    deadline_ms: float | UnsetType | None = UNSET
    robot: str | UnsetType | None = UNSET
    retry: int | UnsetType | None = UNSET


class ReplyHead(msgspec.Struct, frozen=True, gc=False):
    """A reply of either kind as a client first reads it: `outputs` stay bytes until they are wanted.

    epoch: UNSET from servers that know none.
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
    """A request that cannot be read: the fault, and as much of its head as could be read."""

    def __init__(self, head: Head, error: DynError) -> None:
        super().__init__(head, error)
        self.head = head
        self.error = error


encode = msgspec.msgpack.Encoder().encode
"""Any of the messages above as bytes."""

decode_reply_head = msgspec.msgpack.Decoder(ReplyHead).decode
"""The first step of reading a reply; raises `msgspec.MsgspecError` for what is none."""


decode_notice = msgspec.msgpack.Decoder(Notice).decode
"""A notice; raises `msgspec.MsgspecError` for what is none."""


def new_epoch() -> int:
    """A number for one life of a server, at random: another one in a reply shows that the server was restarted.

    It has 53 bits, so that languages whose numbers are doubles can hold it; never 0.
    """
    return secrets.randbits(EPOCH_BITS) or 1


def error_reply(request_id: int | None, error: DynError, epoch: int | UnsetType = UNSET) -> bytes:
    """The refusal that carries the error; texts of a request that it repeats do not make it long."""
    wire = {name: _cut(value) if type(value) is str else value for name, value in error.to_wire().items()}
    return encode(ErrorReply(VERSION, request_id, False, wire, epoch))


def cancel(request_id: int) -> bytes:
    """The message of a client that waits no more for the reply to this request."""
    return encode(Cancel(1, request_id, CANCEL))


def read_cancel(payload: bytes | memoryview) -> int | None:
    """The id of the request that this message cancels; None if it is something else."""
    try:
        return _decode_cancel(payload).id
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None


def _cut(text: str) -> str:
    half = MAX_ERROR_TEXT // 2
    return text if len(text) <= MAX_ERROR_TEXT else f"{text[:half]} ... {text[-half:]}"


def read_request(payload: bytes | memoryview, limits: RequestLimits | None = None) -> Request:
    """The request that the payload holds.

    Raises:
        RequestRefusedError: It holds none, one of another version, or one over the limits.
    """
    limits = limits or _LIMITS
    if len(payload) <= limits.max_entries:  # too short to hold too much
        try:
            request = _decode_request(payload)
            if request.v == VERSION:
                _check_nesting(request, payload, limits)
                return request
        except (msgspec.MsgspecError, RecursionError, ValueError):
            pass  # below, with the cause
    request = _read_carefully(payload, limits)
    _check_nesting(request, payload, limits)
    return request


def _check_nesting(request: Request, payload: bytes | memoryview, limits: RequestLimits) -> None:
    try:
        check_nesting({"inputs": request.inputs or {}, "options": request.options or {}}, limits)
    except DynError as error:
        raise RequestRefusedError(peek(payload), error) from None


def peek(payload: bytes | memoryview, most: int = MOST_OBJECTS) -> Head:
    """The head of a request, without reading the rest: as much of it as can be read, whatever is wrong elsewhere.

    Args:
        payload: The message.
        most: How many objects are stepped over at most, some 0.2 us each.
    """
    found = fields(payload, frozenset(Head.__struct_fields__), most)
    request_id, query, robot, retry = map(found.get, ("id", "query", "robot", "retry"))
    return Head(
        request_id if type(request_id) is int and request_id >= 0 else None,
        query if type(query) is str else "",
        _milliseconds(found.get("compile_wait_ms")),
        _milliseconds(found.get("deadline_ms")),
        robot if type(robot) is str else UNSET,
        retry if type(retry) is int and retry > 0 else UNSET,
    )


def _milliseconds(value: Any) -> float | UnsetType:
    is_time = type(value) in (int, float) and 0 < value <= sys.float_info.max
    return float(value) if is_time else UNSET


def _read_carefully(payload: bytes | memoryview, limits: RequestLimits) -> Request:
    try:
        message = unpack(payload, limits)
        if type(message) is not dict:
            raise InvalidArgumentError(f"the message must be a map, found {describe_value(message)}")
        if "v" in message:
            version = message["v"]
            if type(version) is not int:
                raise InvalidArgumentError(
                    f"v must be the integer {VERSION}, found {describe_value(version)}", path="v"
                )
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
    "retry": "a count from 1 on",
}


def _explain(fault: str, message: dict[Any, Any]) -> DynError:
    """What is wrong with a request, from where msgspec stumbled over it."""
    missing = _MISSING.match(fault)
    if missing:
        return InvalidArgumentError(f"the request must have {missing[1]!r}", path=missing[1])
    place = _PLACE.search(fault)
    path = place[2] if place else ""
    if place and place[1]:
        return InvalidArgumentError(f"the keys of {path or 'the request'} must be texts", path=path or None)
    found = message.get(path)
    shown = show_value(found) if type(found) in (int, float, str) else describe_value(found)
    return InvalidArgumentError(f"{path} must be {_EXPECTED.get(path, fault)}, found {shown}", path=path or None)

"""Services between nodes: requests that a node sends and another answers, in its own loop.

A request is a MessagePack map, `{v: 1, id, service, request}`, to the node's one ROUTER socket; the reply is
`{v: 1, id, ok: true, response}` or `{v: 1, id, ok: false, error}` with the error of `DynError.to_wire`. A service's
type is named after the struct of its requests: `SetPayloadRequest` in `arm_msgs.py` is `arm_msgs/srv/SetPayload`.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from dyn_service.errors import (
    DeadlineExceededError,
    DynError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    from_wire,
)
from dyn_service.graph.middleware import topics
from dyn_service.graph.middleware.graph import End
from dyn_service.graph.middleware.zmq_sockets import Context, is_readable
from dyn_service.support.suggestions import did_you_mean
from dyn_service.support.validation import dotted, explain

Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R")
SCHEMA = 1
MAX_BYTES = 1 << 20
"""Size limit of a request and of a reply."""
PER_TURN = 4
"""Requests answered in one turn of a node's loop, so that bursts do not block it."""
TURN_S = 1e-3
"""Time in one turn after which no further request is answered."""
_QUEUE = 100
_ENCODER = msgspec.msgpack.Encoder()
_LOG = logging.getLogger(__name__)


class Empty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An empty request or response."""


class _Request(msgspec.Struct):
    id: int
    service: str
    request: msgspec.Raw = msgspec.Raw(b"\x80")
    v: int = SCHEMA


class _Reply(msgspec.Struct):
    id: int | None = None
    ok: bool = False
    response: msgspec.Raw = msgspec.Raw(b"\x80")
    error: dict[str, Any] = {}
    v: int = SCHEMA


_REQUESTS = msgspec.msgpack.Decoder(_Request)
_REPLIES = msgspec.msgpack.Decoder(_Reply)


@dataclass(frozen=True)
class _Service:
    requests: msgspec.msgpack.Decoder[Any]
    kind: type[msgspec.Struct]
    handler: Callable[[Any], msgspec.Struct | None]

    @property
    def type(self) -> str:
        return f"{self.kind.__module__.rpartition('.')[2]}/srv/{self.kind.__name__.removesuffix('Request')}"


class Services:
    """All services of one node, behind one socket.

    answered: number of answered requests, including refused ones. malformed: number of malformed requests.
    """

    def __init__(self, context: Context, endpoint: str) -> None:
        self.endpoint = endpoint
        self.answered = self.malformed = 0
        self._services: dict[str, _Service] = {}
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_BYTES)
        self.socket.setsockopt(zmq.RCVHWM, _QUEUE)
        self.socket.setsockopt(zmq.SNDHWM, _QUEUE)
        try:
            topics.listen(self.socket, endpoint)
        except zmq.ZMQError as error:
            self.socket.close()
            raise InvalidArgumentError(f"services at {endpoint!r}: {error.strerror}") from None

    def ends(self) -> tuple[End, ...]:
        """Returns the names, types and endpoint of all services."""
        return tuple(End(name, service.type, self.endpoint) for name, service in self._services.items())

    def add(self, name: str, kind: type[Q], handler: Callable[[Q], msgspec.Struct | None]) -> None:
        """Adds a service."""
        if name in self._services:
            raise InvalidArgumentError(f"service {name!r} already exists")
        self._services[name] = _Service(msgspec.msgpack.Decoder(kind), kind, handler)

    def remove(self, name: str) -> None:
        """Removes a service."""
        self._services.pop(name, None)

    def turn(self) -> bool:
        """Answers waiting requests, at most `PER_TURN` in about `TURN_S`; returns whether there were any."""
        deadline_s = time.monotonic() + TURN_S
        for count in range(PER_TURN):
            # one request is answered in any case, or a slow loop would never answer
            if not is_readable(self.socket) or (count and time.monotonic() >= deadline_s):
                return count > 0
            *route, frame = self.socket.recv_multipart(zmq.NOBLOCK)
            if len(route) != 1:
                self.malformed += 1
                continue
            reply = self._answer(frame)
            try:
                self.socket.send_multipart([*route, reply], zmq.NOBLOCK)
            except zmq.ZMQError:
                continue  # the client has gone
        return True

    def close(self) -> None:
        """Closes the socket."""
        self.socket.close()
        topics.remove_file(self.endpoint)

    def _answer(self, frame: bytes) -> bytes:
        number = None
        try:
            request = _decoded(_REQUESTS, frame, _Request, "the request")
            number = request.id
            if request.v != SCHEMA:
                raise InvalidArgumentError(f"v is {request.v}, expected {SCHEMA}", path="v")  # noqa: TRY301
            reply = _Reply(number, True, self._response(request))
        except DynError as error:
            self.malformed += number is None
            reply = _Reply(number, error=error.to_wire())
        except Exception as error:  # noqa: BLE001  an error in a handler is the reply, it does not end the node
            _LOG.exception("a service failed")
            reply = _Reply(number, error=InternalError(f"{type(error).__name__}: {error}").to_wire())
        self.answered += 1
        return _ENCODER.encode(reply)

    def _response(self, request: _Request) -> msgspec.Raw:
        service = self._services.get(request.service)
        if service is None:
            hint = did_you_mean(request.service, self._services)
            raise NotFoundError(f"there is no service {request.service!r} here{hint}", path="service")
        request_body = _decoded(service.requests, request.request, service.kind, request.service)
        return msgspec.Raw(_ENCODER.encode(service.handler(request_body) or Empty()))


@dataclass
class Pending(Generic[R]):
    """A pending call. done: whether there is a `response` or an `error`."""

    until_s: float
    response: R | None = None
    error: DynError | None = None

    @property
    def done(self) -> bool:
        """Whether the call has ended."""
        return self.response is not None or self.error is not None

    def result(self) -> R:
        """Returns the response."""
        if self.error is not None:
            raise self.error
        assert self.response is not None, "result() before done"
        return self.response


class ServiceClient(Generic[R]):
    """A client of one service.

    response_type: The struct of responses, or `dict`. find: Returns the service's endpoint, or raises a
    `NotFoundError`.
    """

    def __init__(self, context: Context, service: str, response_type: type[R], find: Callable[[str], str]) -> None:
        self.service = service
        self._context, self._find = context, find
        self._kind = response_type
        self._responses = msgspec.msgpack.Decoder(response_type)
        self._pending: dict[int, Pending[R]] = {}
        self._numbers = itertools.count(secrets.randbits(32))
        self._endpoint = ""
        self.socket: zmq.Socket[bytes] | None = None

    def call(self, request: msgspec.Struct | Mapping[str, Any], timeout_s: float = 1.0) -> R:
        """Calls the service and returns its response. The call blocks, so it must not be a service of the same node.

        Raises:
            NotFoundError: The service does not exist.
            DeadlineExceededError: It did not answer in time.
            DynError: The service's error.
        """
        pending = self.begin(request, timeout_s)
        while not pending.done:
            assert self.socket is not None
            self.socket.poll(max(1, int(1e3 * (pending.until_s - time.monotonic()))))
            self.turn()
        return pending.result()

    def begin(self, request: msgspec.Struct | Mapping[str, Any], timeout_s: float = 1.0) -> Pending[R]:
        """Sends a request without waiting; the node's `spin_once` receives the response.

        Raises:
            NotFoundError: The service does not exist.
            UnavailableError: Its endpoint cannot be connected.
            InvalidArgumentError: The request is too large or cannot be encoded.
        """
        endpoint = self._find(self.service)
        number = next(self._numbers)
        try:
            frame = _ENCODER.encode(_Request(number, self.service, msgspec.Raw(_ENCODER.encode(request))))
        except (TypeError, OverflowError, UnicodeEncodeError, RecursionError) as error:
            raise InvalidArgumentError(f"{self.service}: the request cannot be encoded: {error}") from None
        if len(frame) > MAX_BYTES:
            raise InvalidArgumentError(f"{self.service}: a request of {len(frame)} bytes, expected at most {MAX_BYTES}")
        socket = self._connected(endpoint)
        pending: Pending[R] = Pending(time.monotonic() + timeout_s)
        self._pending[number] = pending
        try:
            socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            self._give_up(number, pending)
        return pending

    def turn(self) -> bool:
        """Receives responses and ends calls whose time is over; returns whether there were any."""
        done = 0
        while self.socket is not None and is_readable(self.socket):
            self._take(self.socket.recv_multipart(zmq.NOBLOCK)[-1])
            done += 1
        now = time.monotonic()
        for number, pending in list(self._pending.items()):
            if now >= pending.until_s:
                self._give_up(number, pending)
                done += 1
        return done > 0

    def close(self) -> None:
        """Closes the socket."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def _connected(self, endpoint: str) -> zmq.Socket[bytes]:
        if self.socket is None or endpoint != self._endpoint:
            self.close()
            self.socket, self._endpoint = self._context.socket(zmq.DEALER), endpoint
            self.socket.setsockopt(zmq.LINGER, 0)
            self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_BYTES)
            self.socket.setsockopt(zmq.SNDHWM, _QUEUE)
            try:
                self.socket.connect(endpoint)
            except zmq.ZMQError as error:
                self.close()
                raise UnavailableError(f"service {self.service!r} at {endpoint!r}: {error.strerror}") from None
        return self.socket

    def _take(self, frame: bytes) -> None:
        try:
            reply = _decoded(_REPLIES, frame, _Reply, "the reply")
            pending = self._pending.pop(reply.id, None) if reply.id is not None else None
        except InvalidArgumentError:
            return
        if pending is None:
            return  # too late, or of no call
        try:
            if reply.ok:
                pending.response = _decoded(self._responses, reply.response, self._kind, self.service)
            else:
                pending.error = from_wire(reply.error)
        except DynError as error:
            pending.error = error

    def _give_up(self, number: int, pending: Pending[R]) -> None:
        del self._pending[number]
        pending.error = DeadlineExceededError(f"service {self.service!r} did not answer in time: does its node spin?")


T = TypeVar("T")


def _decoded(decoder: msgspec.msgpack.Decoder[T], frame: Any, kind: Any, subject: str) -> T:
    try:
        return decoder.decode(frame)
    except msgspec.ValidationError as error:
        message, place = explain(error, kind)
        value_text = f"{subject}: {dotted(place)}" if place else subject
        raise InvalidArgumentError(f"{value_text}: {message}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidArgumentError(f"{subject} is not MessagePack") from None

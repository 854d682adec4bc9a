"""Records requests to a server: a proxy process between clients and server.

Clients connect to the proxy. Messages are forwarded first and recorded afterwards; if the disk is full they are
forwarded without recording, because a robot may depend on them.

`verify` sends recorded requests to this version (`replay`), a server, or any other function from request to reply, and
compares the replies.
"""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import numpy as np
import zmq
from mcap.records import Attachment
from numpy.typing import NDArray

from dyn_service.engine.robot import Robot
from dyn_service.errors import DynError, InvalidArgumentError
from dyn_service.graph.bags.reader import BagReader
from dyn_service.graph.bags.topic_recorder import WallClock
from dyn_service.graph.bags.writer import BagWriter
from dyn_service.graph.middleware.topics import listen
from dyn_service.graph.middleware.zmq_sockets import Context, close_context, receive_checked
from dyn_service.messages.dyn_service_msgs import ServerReply, ServerRequest
from dyn_service.model.description import LoopHandling
from dyn_service.parsing import xacro
from dyn_service.service.client.sync import Client
from dyn_service.service.protocol.arrays import unpack_array
from dyn_service.service.protocol.endpoints import check_port
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.protocol.messages import decode_reply_head, peek, read_cancel
from dyn_service.service.server.answering.service import Service

Array = NDArray[np.float64]
REQUESTS, REPLIES = "/server/requests", "/server/replies"
ABOUT = "dyn_service requests"
"""Name of the note with the fingerprints of the server's robots."""
MAX_CLIENTS = 256
"""Maximum number of connections; beyond it, the one idle longest is reused."""
MAX_PARTS = 16
QUEUE = 1000
"""Queue length per peer and direction; more messages are dropped and counted."""
_WAIT_MS = 100


class RequestRecorder:
    """Listens like the server, and has one connection to the server per client.

    listen_endpoint: `ipc://` or tcp on 127.0.0.1; port 0 chooses a free one. say: Called with each problem, once.

    Raises:
        InvalidArgumentError: An endpoint is invalid, in use, or reachable from other machines.
    """

    def __init__(self, server: str, listen_endpoint: str, writer: BagWriter, say: Callable[[str], None]) -> None:
        if not listen_endpoint.startswith(("ipc:///", "tcp://127.0.0.1:", "tcp://localhost:")):
            raise InvalidArgumentError(
                "--listen must be an endpoint of this machine, such as tcp://127.0.0.1:5756, found "
                f"{listen_endpoint!r}: requests to it reach the server with this recorder's permissions"
            )
        self._server, self._writer, self._say = check_port(server, "server"), writer, say
        self._clock = WallClock()
        self._context: Context = zmq.Context()
        self._poller = zmq.Poller()
        self._connections: OrderedDict[bytes, tuple[int, zmq.Socket[bytes]]] = OrderedDict()
        self._clients: dict[zmq.Socket[bytes], bytes] = {}
        self.whole = True
        """Whether everything was recorded."""
        self.requests = self.replies = self.dropped = self.clients = 0
        self._router = self._socket(zmq.ROUTER)
        try:
            self._connection().close()
            listen(self._router, check_port(listen_endpoint, "listen"))
        except zmq.ZMQError as error:
            self.close()
            raise InvalidArgumentError(f"endpoints {server!r} and {listen_endpoint!r}: {error.strerror}") from None
        self.endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._poller.register(self._router, zmq.POLLIN)

    def run(self, going_on: Callable[[], bool]) -> None:
        """Forwards messages while `going_on()` is true; it is called at least ten times per second."""
        while going_on():
            for socket, _ in self._poller.poll(_WAIT_MS):
                # what could be read came from a peer that has gone since
                with suppress(zmq.Again):
                    if socket is self._router:
                        self._forward()
                    else:
                        self._back(socket)
            if self.whole:
                self._record(self._writer.flush_when_due)

    def close(self) -> None:
        """Closes all connections; their sockets send nothing more."""
        close_context(self._context)

    def _forward(self) -> None:
        identity, *parts = self._router.recv_multipart(zmq.NOBLOCK)
        if not 1 <= len(parts) <= MAX_PARTS:
            self.dropped += 1
            return
        number, back = self._connection_of(identity)
        # sent before it is recorded: a robot may depend on it
        if not self._send(back, parts):
            return
        self.requests += 1
        self._record_message(REQUESTS, ServerRequest(number, parts[-1]))

    def _back(self, socket: zmq.Socket[bytes]) -> None:
        identity = self._clients.get(socket)
        if identity is None:  # it has just been closed
            return
        parts = [receive_checked(socket, self._server)]
        while socket.getsockopt(zmq.RCVMORE):
            parts.append(socket.recv(zmq.NOBLOCK))
        if self._send(self._router, [identity, *parts]):
            self.replies += 1
            self._record_message(REPLIES, ServerReply(self._connections[identity][0], parts[-1]))

    def _connection_of(self, identity: bytes) -> tuple[int, zmq.Socket[bytes]]:
        connection = self._connections.get(identity)
        if connection is None:
            # bounded: a client that connects again for each request would exhaust the descriptors
            if len(self._connections) >= MAX_CLIENTS:
                _, (_, oldest) = self._connections.popitem(last=False)
                self._poller.unregister(oldest)
                del self._clients[oldest]
                oldest.close()
            self.clients += 1
            connection = self._connections[identity] = (self.clients, self._connection())
            self._clients[connection[1]] = identity
            self._poller.register(connection[1], zmq.POLLIN)
        self._connections.move_to_end(identity)
        return connection

    def _connection(self) -> zmq.Socket[bytes]:
        socket = self._socket(zmq.DEALER)
        try:
            socket.connect(self._server)
        except zmq.ZMQError:
            socket.close()
            raise
        return socket

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, QUEUE)
        socket.setsockopt(zmq.RCVHWM, QUEUE)
        socket.setsockopt(zmq.MAXMSGSIZE, RequestLimits().max_message_bytes)
        return socket

    def _send(self, socket: zmq.Socket[bytes], parts: list[bytes]) -> bool:
        try:
            socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.ZMQError:  # the peer is gone
            self.dropped += 1
            return False
        return True

    def _record_message(self, topic: str, message: ServerRequest | ServerReply) -> None:
        if self.whole:
            self._record(lambda: self._writer.write(topic, message, self._clock.now_ns()))

    def _record(self, step: Callable[[], None]) -> None:
        try:
            step()
        except DynError as error:
            self.whole = False
            self._say(f"{error}; requests go on unrecorded")


def fingerprints(server: str, timeout_s: float = 5.0) -> dict[str, str]:
    """Returns the fingerprints of a server's robots by name."""
    with Client(server, timeout_s=timeout_s) as client:
        return {name: client.robot(name).fingerprint for name in client.list_robots()}


def describe(writer: BagWriter, fingerprints: Mapping[str, str], files: list[Path]) -> None:
    """Writes the fingerprints and files of the robots to the bag."""
    writer.note(ABOUT, dict(fingerprints))
    for file in files:
        try:
            text = xacro.expanded(file, {}) if file.suffix == ".xacro" else file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgumentError(f"robot {str(file)!r} cannot be read: {error}") from None
        writer.attach(file.name, "application/xml", text.encode(), time.time_ns())


Answer = Callable[[bytes], bytes | None]
"""Returns the reply to a request, or None if the engine does not support the query."""

NOT_COMPARED = frozenset({"health", "stats", "list_robots", "describe_robot"})
"""Queries about the server, whose answers depend on the time."""
CHANGES = frozenset({"load_robot", "overlay_robot", "unload_robot"})
ROOTS: tuple[Literal["fixed", "floating", "planar"], ...] = ("fixed", "floating", "planar")
MAX_PENDING = 100_000
"""Maximum number of requests without a reply in the recording."""
_TRANSIENT = ("deadline_ms", "compile_wait_ms", "retry", "model")


@dataclass(frozen=True)
class First:
    """The first request whose reply differs: its number in the bag, from 0, s since the bag's start, and where."""

    number: int
    time_s: float
    robot: str
    difference: Difference


@dataclass
class QueryResult:
    """The results of one query. worst: the largest difference."""

    query: str
    count: int = 0
    same: int = 0
    worst: First | None = None
    first: First | None = None

    def add(self, differences: Sequence[Difference], number: int, time_s: float, robot: str) -> None:
        """Counts a comparison."""
        self.count += 1
        self.same += not differences
        for difference in differences:
            example = First(number, time_s, robot, difference)
            self.first = self.first or example
            if self.worst is None or difference.relative > self.worst.difference.relative:
                self.worst = example


@dataclass
class Verification:
    """The result. uncompared: number of requests not compared, by cause. remarks: notes for the user."""

    results: dict[str, QueryResult] = field(default_factory=dict)
    uncompared: Counter[str] = field(default_factory=Counter)
    remarks: list[str] = field(default_factory=list)

    @property
    def compared(self) -> int:
        """Number of compared requests."""
        return sum(result.count for result in self.results.values())

    @property
    def largest(self) -> float:
        """The largest relative difference."""
        worst = [result.worst.difference.relative for result in self.results.values() if result.worst]
        return max(worst, default=0.0)

    @property
    def first(self) -> First | None:
        """The first request whose reply differs."""
        return min((r.first for r in self.results.values() if r.first), key=lambda f: f.number, default=None)


def verify(bag: BagReader, answer: Answer) -> Verification:
    """Replays the bag's requests in the order of their replies.

    bag: A recording with requests. answer: See `replay`.

    Raises:
        NotFoundError: The bag has no requests.
        InvalidArgumentError: It is damaged.
    """
    verification = Verification()
    for request, reply, number, time_s in pairs(bag, verification):
        head = peek(request)
        if head.query in NOT_COMPARED:
            verification.uncompared["about the server"] += 1
            continue
        if refused_for(reply) in _TRANSIENT:
            verification.uncompared["error for a time limit or another model"] += 1
            continue
        bare_request = timeless(request)
        repeated = answer(bare_request)
        if repeated is None:
            verification.uncompared["not supported by this engine"] += 1
            continue
        if head.query in CHANGES:
            verification.uncompared["loading and unloading, repeated"] += 1
            continue
        differences = compare(reply, repeated)
        if differences is None:
            verification.uncompared["error that does not depend on the request"] += 1
            continue
        result = verification.results.setdefault(head.query, QueryResult(head.query))
        # two answers to one request are a defect of this version, not a difference to the recorded one
        if differences and verification.first is None:
            twice = answer(bare_request)
            if twice is not None and compare(repeated, twice):
                verification.remarks.append(
                    f"request {number}: asked twice now, it has two answers; a question has one, so report this as a "
                    "defect"
                )
        result.add(differences, number, time_s, head.robot if isinstance(head.robot, str) else "")
    return verification


def pairs(bag: BagReader, verification: Verification) -> Iterator[tuple[bytes, bytes, int, float]]:
    """Yields (request, reply, the request's number, s since the bag's start), in the order of the replies."""
    waiting: dict[tuple[int, int], tuple[bytes, int, float]] = {}
    begin, _ = bag.span_ns
    number = 0
    for recorded in bag.messages([REQUESTS, REPLIES] if REPLIES in bag.names() else [REQUESTS]):
        message = recorded.message
        if isinstance(message, ServerRequest):
            request_id = peek(message.frame).id
            if read_cancel(message.frame) is None and request_id is not None and len(waiting) < MAX_PENDING:
                time_s = 1e-9 * (recorded.log_time_ns - begin)
                waiting.setdefault((message.client, request_id), (message.frame, number, time_s))
            number += 1
        elif isinstance(message, ServerReply):
            request_id = _reply_to(message.frame)
            pending = None if request_id is None else waiting.pop((message.client, request_id), None)
            if pending is not None:
                yield pending[0], message.frame, pending[1], pending[2]
    for _ in waiting:
        verification.uncompared["without a reply in the bag"] += 1


def timeless(request: bytes) -> bytes:
    """Returns the request without time limits, retries and fingerprint."""
    try:
        message = msgspec.msgpack.decode(request)
    except UNREADABLE:
        return request
    if not isinstance(message, dict):
        return request
    return msgspec.msgpack.encode({name: value for name, value in message.items() if name not in _TRANSIENT})


def replay(robots: list[Robot]) -> Answer:
    """Returns a function from the bytes of a request to those of its reply, computed in this process by this version.

    robots: those that it serves; requests may load and unload robots.
    """
    service = Service(robots, allow_load=True)
    return lambda request: service.handle(request, time.perf_counter_ns())


def robots_of(bag: BagReader, further_robots: list[Robot], joints: str | None = None) -> tuple[list[Robot], list[str]]:
    """Returns the robots of the descriptions in the bag and of further files, and remarks.

    A description does not contain the kind of root and the options `mimic` and `loops`: those that give the
    recorded fingerprint are used.
    """
    fingerprints_by_name = bag.notes.get(ABOUT, {})
    robots, remarks = list(further_robots), list[str]()
    names = {robot.name for robot in further_robots}
    for attached in bag.attached:
        robot = _robot_of(attached, fingerprints_by_name, joints)
        if robot.name not in names:
            robots.append(robot)
            names.add(robot.name)
    for robot in robots:
        fingerprint = fingerprints_by_name.get(robot.name, robot.fingerprint)
        if fingerprint != robot.fingerprint:
            present = robot.fingerprint
            remarks.append(f"robot {robot.name!r}: the recorded fingerprint is {fingerprint}, this one's {present}")
    missing = sorted(set(fingerprints_by_name) - names)
    if missing:
        remarks.append(f"robots without a description: {', '.join(missing)}; name their files with --robot")
    return robots, remarks


def _robot_of(attached: Attachment, fingerprints_by_name: Mapping[str, str], joints: str | None) -> Robot:
    """Returns the robot of a description, read with the options that give the recorded fingerprint."""
    first: Robot | None = None
    fault: DynError | None = None
    for root, mimic, loops in product(ROOTS, (True, False), get_args(LoopHandling)):
        try:
            robot = Robot.from_text(attached.data, root=root, mimic=mimic, joints=joints, loops=loops)
        except DynError as error:
            fault = fault or error
            continue
        if fingerprints_by_name.get(robot.name) == robot.fingerprint:
            return robot
        first = first or robot
    if first is None:
        raise InvalidArgumentError(f"file {attached.name!r} in the bag: {fault}")
    return first


def report(verification: Verification) -> list[str]:
    """Returns the result as lines of text: a table of queries, then the first difference, if any."""
    report_lines = [*verification.remarks, f"{'query':<28}{'requests':>9}{'same bits':>11}  largest difference"]
    for query, result in sorted(verification.results.items()):
        worst = "" if result.worst is None else _size(result.worst)
        report_lines.append(f"{query:<28}{result.count:>9}{result.same:>11}  {worst}".rstrip())
    report_lines += [f"not compared: {count} {cause}" for cause, count in sorted(verification.uncompared.items())]
    first = verification.first
    if first is None:
        report_lines.append(f"all {verification.compared} replies are the same to the bit")
    else:
        difference = first.difference
        report_lines.append(
            f"first difference: request {first.number}, at {first.time_s:.6f} s, robot {first.robot!r}: "
            f"{difference.place} was {difference.recorded}, is {difference.repeated}"
        )
    return report_lines


def _size(example: First) -> str:
    difference = example.difference
    if difference.relative == float("inf"):
        return f"{difference.place} was {difference.recorded}, is {difference.repeated} (request {example.number})"
    return f"{difference.relative:.1e} of {difference.place}, {difference.digits:.1f} digits (request {example.number})"


def _reply(reply: bytes) -> Any | None:
    """Returns a reply without its outputs decoded, or None if it cannot be read."""
    try:
        return decode_reply_head(reply)
    except UNREADABLE:
        return None


def refused_for(reply: bytes) -> str | None:
    """Returns the path in the request that an error reply names, or None."""
    error = getattr(_reply(reply), "error", None)
    path = error.get("path") if isinstance(error, dict) else None
    return path if isinstance(path, str) else None


def _reply_to(frame: bytes) -> int | None:
    """Returns the request id of a reply; None for notices and invalid messages."""
    try:
        head: Any = msgspec.msgpack.decode(frame, type=_Head)
    except UNREADABLE:
        return None
    return None if head.notice is not msgspec.UNSET else head.id


class _Head(msgspec.Struct):
    id: int | None = None
    notice: Any = msgspec.UNSET


UNRELATED_CODES = frozenset({"DEADLINE_EXCEEDED", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "PERMISSION_DENIED"})
"""Error codes that do not depend on the request: server busy, key not allowed."""

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""Exceptions for invalid MessagePack; invalid UTF-8 is a ValueError."""


@dataclass(frozen=True)
class Difference:
    """A difference of two replies. place: `torques[2]`, or `reply` if one is an error. recorded, repeated: its values.
    relative: the difference as a share of the output's largest number; infinite if they are not numbers.
    """

    place: str
    recorded: str
    repeated: str
    relative: float

    @property
    def digits(self) -> float:
        """Number of equal digits."""
        return math.inf if self.relative == 0.0 else max(0.0, -math.log10(self.relative))


def compare(recorded: bytes, repeated: bytes) -> Sequence[Difference] | None:
    """Returns the differences of two replies, none if they are equal to the bit; None if the recorded one does not
    depend on the request.

    Outputs and error codes are compared, not timing and error texts.
    """
    old, new = _reply(recorded), _reply(repeated)
    if old is None or new is None:
        return _whole_reply("bytes that are no reply" if old is None else "a reply", "")
    old_code, new_code = _code(old), _code(new)
    if old_code in UNRELATED_CODES:
        return None
    if old_code or new_code:
        same = old_code == new_code
        return () if same else _whole_reply(old_code or "an answer", new_code or "an answer")
    if bytes(old.outputs) == bytes(new.outputs):
        return ()
    try:
        return outputs_compared(msgspec.msgpack.decode(old.outputs), msgspec.msgpack.decode(new.outputs))
    except UNREADABLE:
        return _whole_reply("outputs that cannot be read", "")


def outputs_compared(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Returns where outputs differ, arrays as on the wire or plain values, in their order; new names are ignored."""
    return [difference for name, value in old.items() for difference in _differences(name, value, new.get(name))]


def _differences(name: str, old: Any, new: Any) -> Iterator[Difference]:
    """Returns where an output first differs, and where most."""
    old_array, new_array = _array(old), _array(new)
    if old_array is None or new_array is None:
        if old != new:
            yield Difference(name, _short(old), _short(new), math.inf)
        return
    if old_array.shape != new_array.shape:
        yield Difference(name, f"shape {old_array.shape}", f"shape {new_array.shape}", math.inf)
        return
    # by bits: 0 and -0 differ, and NaN is equal to itself
    differs = np.ascontiguousarray(old_array).view(np.uint64) != np.ascontiguousarray(new_array).view(np.uint64)
    if not differs.any():
        return
    scale = max(float(np.abs(old_array).max()), float(np.abs(new_array).max()))
    size = np.abs(old_array - new_array) / (scale or 1.0)
    places = {int(np.argmax(differs)), int(np.argmax(np.where(differs, size, -1.0)))}
    for flat in sorted(places):
        index = np.unravel_index(flat, old_array.shape)
        place = name + (f"[{', '.join(map(str, index))}]" if old_array.ndim else "")
        yield Difference(place, repr(float(old_array[index])), repr(float(new_array[index])), float(size[index]))


def _array(value: Any) -> Array | None:
    if isinstance(value, np.ndarray | float | int) and not isinstance(value, bool):
        return np.asarray(value, np.float64)
    if not (isinstance(value, dict) and value.keys() >= {"dtype", "shape", "data"}):
        return None
    try:
        return unpack_array(value, "outputs")
    except DynError:
        return None


def _code(reply: Any) -> str:
    """Returns the error code of a reply; empty if it is an answer."""
    return "" if reply.ok else str((reply.error or {}).get("code", "a refusal"))


def _whole_reply(old: str, new: str) -> list[Difference]:
    return [Difference("reply", old, new, math.inf)]


def _short(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

"""Records requests to a server: a proxy process between clients and server.

Clients connect to the proxy. Messages are forwarded first and recorded afterwards; if the disk is full they are
forwarded without recording, because a robot may depend on them.

`verify` sends recorded requests to this version (`replay`), a server, or another engine, and compares the replies.

`pinocchio` answers them with Pinocchio, an independent engine: its rigid-body dynamics of the robot's URDF, to which
passive joint forces are added, the difference of this package's answers with and without them. It answers for one fixed
root and joints that turn or shift, without wrenches, overlays and names; other requests are not compared.
"""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import numpy as np
import zmq
from mcap.records import Attachment
from numpy.typing import NDArray

from dyn_service.api.queries import QUERIES
from dyn_service.engine.robot import Robot
from dyn_service.errors import DynError, FailedPreconditionError, InvalidArgumentError
from dyn_service.graph.bags.reader import BagReader
from dyn_service.graph.bags.recording import WallClock
from dyn_service.graph.bags.writer import BagWriter
from dyn_service.graph.middleware.topics import listen
from dyn_service.messages.dyn_service_msgs import ServerReply, ServerRequest
from dyn_service.model.description import LoopHandling
from dyn_service.parsing import xacro
from dyn_service.service.client.sync import Client
from dyn_service.service.protocol.arrays import pack_output, unpack_array
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.protocol.messages import (
    VERSION,
    Reply,
    Request,
    RequestRefusedError,
    Timing,
    decode_reply_head,
    encode,
    peek,
    read_cancel,
    read_request,
)
from dyn_service.service.protocol.sockets import check_port, receive_checked
from dyn_service.service.server.answering.service import Service
from dyn_service.simulation.peer_tasks import to_pinocchio
from dyn_service.support.optional import load

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

    where: The endpoint to listen on: `ipc://` or tcp on 127.0.0.1; port 0 chooses a free one. say: Called with each
    problem, once.

    Raises:
        InvalidArgumentError: An endpoint is invalid, in use, or reachable from other machines.
    """

    def __init__(self, server: str, where: str, writer: BagWriter, say: Callable[[str], None]) -> None:
        if not where.startswith(("ipc:///", "tcp://127.0.0.1:", "tcp://localhost:")):
            raise InvalidArgumentError(
                f"--listen must be an endpoint of this machine, such as tcp://127.0.0.1:5756, found {where!r}: "
                "requests to it reach the server with this recorder's permissions"
            )
        self._server, self._writer, self._say = check_port(server, "server"), writer, say
        self._clock = WallClock()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._poller = zmq.Poller()
        self._backs: OrderedDict[bytes, tuple[int, zmq.Socket[bytes]]] = OrderedDict()
        self._whose: dict[zmq.Socket[bytes], bytes] = {}
        self.whole = True
        """Whether everything was recorded."""
        self.requests = self.replies = self.dropped = self.clients = 0
        self._front = self._socket(zmq.ROUTER)
        try:
            self._connection().close()
            listen(self._front, check_port(where, "listen"))
        except zmq.ZMQError as error:
            self.close()
            raise InvalidArgumentError(f"endpoints {server!r} and {where!r}: {error.strerror}") from None
        self.endpoint = self._front.getsockopt_string(zmq.LAST_ENDPOINT)
        self._poller.register(self._front, zmq.POLLIN)

    def run(self, going_on: Callable[[], bool]) -> None:
        """Forwards messages while `going_on()` is true; it is called at least ten times per second."""
        while going_on():
            for socket, _ in self._poller.poll(_WAIT_MS):
                if socket is self._front:
                    self._forward()
                else:
                    self._back(socket)
            if self.whole:
                self._record(self._writer.flush_when_due)

    def close(self) -> None:
        """Closes all connections."""
        for _, socket in self._backs.values():
            socket.close()
        self._front.close()
        self._context.term()

    def _forward(self) -> None:
        identity, *parts = self._front.recv_multipart()
        if not 1 <= len(parts) <= MAX_PARTS:
            self.dropped += 1
            return
        number, back = self._of(identity)
        if not self._send(back, parts):
            return
        self.requests += 1
        self._note(REQUESTS, ServerRequest(number, parts[-1]))

    def _back(self, socket: zmq.Socket[bytes]) -> None:
        identity = self._whose.get(socket)
        if identity is None:  # it has just been closed
            return
        parts = [receive_checked(socket, self._server)]
        while socket.getsockopt(zmq.RCVMORE):
            parts.append(socket.recv())
        if self._send(self._front, [identity, *parts]):
            self.replies += 1
            self._note(REPLIES, ServerReply(self._backs[identity][0], parts[-1]))

    def _of(self, identity: bytes) -> tuple[int, zmq.Socket[bytes]]:
        found = self._backs.get(identity)
        if found is None:
            if len(self._backs) >= MAX_CLIENTS:
                _, (_, oldest) = self._backs.popitem(last=False)
                self._poller.unregister(oldest)
                del self._whose[oldest]
                oldest.close()
            self.clients += 1
            found = self._backs[identity] = (self.clients, self._connection())
            self._whose[found[1]] = identity
            self._poller.register(found[1], zmq.POLLIN)
        self._backs.move_to_end(identity)
        return found

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

    def _note(self, topic: str, message: ServerRequest | ServerReply) -> None:
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
_ITS_OWN = ("deadline_ms", "compile_wait_ms", "retry", "model")


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
            found = First(number, time_s, robot, difference)
            self.first = self.first or found
            if self.worst is None or difference.relative > self.worst.difference.relative:
                self.worst = found


@dataclass
class Verification:
    """The result. left_out: number of requests not compared, by cause. remarks: notes for the user."""

    results: dict[str, QueryResult] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
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

    bag: A recording with requests. answer: See `replay` and `pinocchio`.

    Raises:
        NotFoundError: The bag has no requests.
        InvalidArgumentError: It is damaged.
    """
    found = Verification()
    for request, reply, number, time_s in pairs(bag, found):
        head = peek(request)
        if head.query in NOT_COMPARED:
            found.left_out["about the server"] += 1
            continue
        if refused_for(reply) in _ITS_OWN:
            found.left_out["error for a time limit or another model"] += 1
            continue
        asked = timeless(request)
        again = answer(asked)
        if again is None:
            found.left_out["not supported by this engine"] += 1
            continue
        if head.query in CHANGES:
            found.left_out["loading and unloading, repeated"] += 1
            continue
        differences = compare(reply, again)
        if differences is None:
            found.left_out["error that does not depend on the request"] += 1
            continue
        result = found.results.setdefault(head.query, QueryResult(head.query))
        if differences and found.first is None:
            twice = answer(asked)
            if twice is not None and compare(again, twice):
                found.remarks.append(
                    f"request {number}: asked twice now, it has two answers; a question has one, so report this as a "
                    "defect"
                )
        result.add(differences, number, time_s, head.robot if isinstance(head.robot, str) else "")
    return found


def pairs(bag: BagReader, into: Verification) -> Iterator[tuple[bytes, bytes, int, float]]:
    """Yields (request, reply, the request's number, s since the bag's start), in the order of the replies."""
    waiting: dict[tuple[int, int], tuple[bytes, int, float]] = {}
    begin, _ = bag.span_ns
    number = 0
    for recorded in bag.messages([REQUESTS, REPLIES] if REPLIES in bag.names() else [REQUESTS]):
        message = recorded.message
        if isinstance(message, ServerRequest):
            request_id = peek(message.frame).id
            if read_cancel(message.frame) is None and request_id is not None and len(waiting) < MAX_PENDING:
                waiting.setdefault(
                    (message.client, request_id), (message.frame, number, 1e-9 * (recorded.log_time_ns - begin))
                )
            number += 1
        elif isinstance(message, ServerReply):
            request_id = _reply_to(message.frame)
            asked = None if request_id is None else waiting.pop((message.client, request_id), None)
            if asked is not None:
                yield asked[0], message.frame, asked[1], asked[2]
    for _ in waiting:
        into.left_out["without a reply in the bag"] += 1


def timeless(request: bytes) -> bytes:
    """Returns the request without time limits, retries and fingerprint."""
    try:
        message = msgspec.msgpack.decode(request)
    except UNREADABLE:
        return request
    if not isinstance(message, dict):
        return request
    return msgspec.msgpack.encode({name: value for name, value in message.items() if name not in _ITS_OWN})


def replay(robots: list[Robot]) -> Answer:
    """Returns an `Answer` of this version, in this process; loading and unloading robots is allowed."""
    service = Service(robots, allow_load=True)
    return lambda request: service.handle(request, time.perf_counter_ns())


WITHIN = 1e-9
"""Relative difference of two engines that counts as equal: both round at 1e-16 and lose digits by cancellation."""
_STATES = ("q", "v", "a", "tau", "q_ref", "v_ref", "a_ref")
_GAINS = ("kp", "kd")
_OPTIONS = {"passive", "method"}
_NO_GRAVITY = np.zeros(3)
MAX_STATES = 10_000
"""Of one request: each is a call from Python."""


def pinocchio(robots: Sequence[Robot], texts: Sequence[str], say: Callable[[str], None]) -> Callable[[bytes], Any]:
    """Returns an `Answer` for `verify`.

    texts: Their URDF files, in any order. say: Called for robots that Pinocchio cannot represent.

    Raises:
        FailedPreconditionError: Pinocchio is not installed, or can represent none of the robots.
    """
    engine = load("--engine pinocchio", "pinocchio")
    known: dict[str, _Peer] = {}
    by_name = {robot.name: robot for robot in robots}
    for text in texts:
        model = _model(engine, text, mimic=False)
        robot = None if model is None else by_name.get(model.name)
        if robot is not None and model is not None and model.nv != robot.nv:
            model = _model(engine, text, mimic=True)
        if robot is None or model is None:
            say("a file in the bag is not the URDF file of a robot in it: it is left out")
            continue
        try:
            known[robot.name] = _Peer(engine, model, robot)
        except FailedPreconditionError as error:
            say(str(error))
    if not known:
        raise FailedPreconditionError("there is no robot that Pinocchio can take as it is")

    def answer(request: bytes) -> bytes | None:
        try:
            asked = read_request(request)
            peer = (
                known[str(asked.robot)]
                if isinstance(asked.robot, str) or len(known) > 1
                else next(iter(known.values()))
            )
            found = peer.answer(asked)
        except (RequestRefusedError, DynError, KeyError, ValueError):
            return None
        if found is None:
            return None
        name = next(iter(QUERIES[asked.query].outputs))
        return encode(Reply(VERSION, asked.id, True, {name: pack_output(found)}, Timing(0.0, 0.0)))

    return answer


class _Peer:
    """A robot in Pinocchio, with the joints in this package's order."""

    def __init__(self, engine: Any, model: Any, robot: Robot) -> None:
        self._engine, self._model, self._robot = engine, model, robot
        self._data = model.createData()
        names = list(model.names)
        joints = [model.joints[names.index(name)] if name in names else None for name in robot.joint_names]
        if robot.nq != robot.nv or model.nv != robot.nv or any(joint is None or joint.nv != 1 for joint in joints):
            raise FailedPreconditionError(
                f"robot {robot.name!r} is left out: it has {robot.nv} degrees of freedom here, {model.nv} in Pinocchio"
            )
        self._v = np.array([joint.idx_v for joint in joints if joint is not None])
        self._without_passive = robot.without_passive
        self._questions: Mapping[str, Callable[..., Array]] = {
            "inverse_dynamics": self._inverse,
            "forward_dynamics": self._forward,
            "mass_matrix": self._mass,
            "bias_forces": lambda passive, q, v: self._inverse(passive, q, v, np.zeros_like(v)),
            "gravity_forces": lambda passive, q: self._inverse(passive, q, np.zeros_like(q), np.zeros_like(q)),
            "computed_torque": self._computed_torque,
        }

    def answer(self, request: Request) -> Array | None:
        """Returns the answer, or None if the query is not supported."""
        inputs = {name: value for name, value in (request.inputs or {}).items() if value is not None}
        options = {name: value for name, value in (request.options or {}).items() if value is not None}
        question = self._questions.get(request.query)
        if question is None or not (inputs.keys() <= {*_STATES, *_GAINS, "gravity"} and options.keys() <= _OPTIONS):
            return None
        gravity = unpack_array(inputs.pop("gravity"), "gravity") if "gravity" in inputs else self._robot.gravity
        if gravity.shape != (3,):
            return None
        self._model.gravity.linear = gravity
        wanted = [name for name in QUERIES[request.query].inputs if name in (*_STATES, *_GAINS)]
        if inputs.keys() != set(wanted):
            return None
        arrays = [unpack_array(inputs[name], name) for name in wanted]
        shape = np.broadcast_shapes(*[array.shape[:-1] for array in arrays if array.ndim])
        if int(np.prod(shape)) > MAX_STATES:
            return None
        rows = [np.broadcast_to(array, (*shape, self._robot.nv)).reshape(-1, self._robot.nv) for array in arrays]
        passive = bool(options.get("passive", True))
        found = [question(passive, *state) for state in zip(*rows, strict=True)]
        return np.array(found).reshape(*shape, *np.shape(found[0]))

    def _inverse(self, passive: bool, q: Array, v: Array, a: Array) -> Array:
        theirs = self._engine.rnea(self._model, self._data, self._theirs(q), self._moved(v), self._moved(a))
        found: Array = theirs[self._v]
        if not passive:
            return found
        whole = self._robot.inverse_dynamics(q, v, a, gravity=_NO_GRAVITY)
        rigid = self._without_passive.inverse_dynamics(q, v, a, gravity=_NO_GRAVITY)
        return np.asarray(found + (whole - rigid), np.float64)

    def _mass(self, passive: bool, q: Array) -> Array:
        upper = np.triu(self._engine.crba(self._model, self._data, self._theirs(q)))
        whole = upper + np.triu(upper, 1).T
        found: Array = whole[np.ix_(self._v, self._v)]
        return found + (self._robot.mass_matrix(q) - self._without_passive.mass_matrix(q)) if passive else found

    def _forward(self, passive: bool, q: Array, v: Array, tau: Array) -> Array:
        bias = self._inverse(passive, q, v, np.zeros_like(v))
        return np.asarray(np.linalg.solve(self._mass(passive, q), tau - bias), np.float64)

    def _computed_torque(
        self, passive: bool, q: Array, v: Array, q_ref: Array, v_ref: Array, a_ref: Array, kp: Array, kd: Array
    ) -> Array:
        return self._inverse(passive, q, v, a_ref + kd * (v_ref - v) + kp * (q_ref - q))

    def _theirs(self, q: Array) -> Array:
        return to_pinocchio(self._robot.configuration, q, self._model)

    def _moved(self, values: Array) -> Array:
        found = np.zeros(self._model.nv)
        found[self._v] = values
        return found


def _model(engine: Any, text: str, *, mimic: bool) -> Any | None:
    try:
        return engine.buildModelFromXML(text, mimic=mimic)
    except (ValueError, RuntimeError, TypeError):
        return None


def robots_of(bag: BagReader, more: list[Robot], joints: str | None = None) -> tuple[list[Robot], list[str]]:
    """Returns the robots of the descriptions in the bag and of further files, and remarks.

    A description does not contain the kind of root and the options `mimic` and `loops`: those that give the
    recorded fingerprint are used.
    """
    known = bag.notes.get(ABOUT, {})
    robots, remarks = list(more), list[str]()
    names = {robot.name for robot in more}
    for attached in bag.attached:
        robot = _robot_of(attached, known, joints)
        if robot.name not in names:
            robots.append(robot)
            names.add(robot.name)
    remarks += [
        f"robot {robot.name!r}: the recorded fingerprint is {known[robot.name]}, this one's {robot.fingerprint}"
        for robot in robots
        if known.get(robot.name, robot.fingerprint) != robot.fingerprint
    ]
    missing = sorted(set(known) - names)
    if missing:
        remarks.append(f"robots without a description: {', '.join(missing)}; name their files with --robot")
    return robots, remarks


def _robot_of(attached: Attachment, known: Mapping[str, str], joints: str | None) -> Robot:
    """Returns the robot of a description, read with the options that give the recorded fingerprint."""
    first: Robot | None = None
    fault: DynError | None = None
    for root, mimic, loops in product(ROOTS, (True, False), get_args(LoopHandling)):
        try:
            robot = Robot.from_text(attached.data, root=root, mimic=mimic, joints=joints, loops=loops)
        except DynError as error:
            fault = fault or error
            continue
        if known.get(robot.name) == robot.fingerprint:
            return robot
        first = first or robot
    if first is None:
        raise InvalidArgumentError(f"file {attached.name!r} in the bag: {fault}")
    return first


def report(found: Verification) -> list[str]:
    """Returns the result as lines of text."""
    shown = [*found.remarks, f"{'query':<28}{'requests':>9}{'same bits':>11}  largest difference"]
    for query, result in sorted(found.results.items()):
        worst = "" if result.worst is None else _size(result.worst)
        shown.append(f"{query:<28}{result.count:>9}{result.same:>11}  {worst}".rstrip())
    shown += [f"not compared: {count} {cause}" for cause, count in sorted(found.left_out.items())]
    first = found.first
    if first is None:
        shown.append(f"all {found.compared} replies are the same to the bit")
    else:
        difference = first.difference
        shown.append(
            f"first difference: request {first.number}, at {first.time_s:.6f} s, robot {first.robot!r}: "
            f"{difference.place} was {difference.recorded}, is {difference.found}"
        )
    return shown


def _size(of: First) -> str:
    difference = of.difference
    if difference.relative == float("inf"):
        return f"{difference.place} was {difference.recorded}, is {difference.found} (request {of.number})"
    return f"{difference.relative:.1e} of {difference.place}, {difference.digits:.1f} digits (request {of.number})"


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
        found: Any = msgspec.msgpack.decode(frame, type=_Head)
    except UNREADABLE:
        return None
    return None if found.notice is not msgspec.UNSET else found.id


class _Head(msgspec.Struct):
    id: int | None = None
    notice: Any = msgspec.UNSET


UNRELATED_CODES = frozenset({"DEADLINE_EXCEEDED", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "PERMISSION_DENIED"})
"""Error codes that do not depend on the request: server busy, key not allowed."""

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""Exceptions for invalid MessagePack; invalid UTF-8 is a ValueError."""


@dataclass(frozen=True)
class Difference:
    """A difference of two replies. place: `torques[2]`, or `reply` if one is an error. recorded, found: its values.
    relative: the difference as a share of the output's largest number; infinite if they are not numbers.
    """

    place: str
    recorded: str
    found: str
    relative: float

    @property
    def digits(self) -> float:
        """Number of equal digits."""
        return math.inf if self.relative == 0.0 else max(0.0, -math.log10(self.relative))


def compare(recorded: bytes, found: bytes) -> Sequence[Difference] | None:
    """Returns the differences of two replies, none if they are equal to the bit; None if the recorded one does not
    depend on the request.

    Outputs and error codes are compared, not timing and error texts.
    """
    old, new = _reply(recorded), _reply(found)
    if old is None or new is None:
        return _other("bytes that are no reply" if old is None else "a reply", "")
    old_code, new_code = _code(old), _code(new)
    if old_code in UNRELATED_CODES:
        return None
    if old_code or new_code:
        same = old_code == new_code
        return () if same else _other(old_code or "an answer", new_code or "an answer")
    if bytes(old.outputs) == bytes(new.outputs):
        return ()
    try:
        return outputs_compared(msgspec.msgpack.decode(old.outputs), msgspec.msgpack.decode(new.outputs))
    except UNREADABLE:
        return _other("outputs that cannot be read", "")


def outputs_compared(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Returns where outputs differ, arrays as on the wire or plain values, in their order; new names are ignored."""
    return [difference for name, value in old.items() for difference in _differences(name, value, new.get(name))]


def _differences(name: str, old: Any, new: Any) -> Iterator[Difference]:
    """Returns where an output first differs, and where most."""
    one, other = _array(old), _array(new)
    if one is None or other is None:
        if old != new:
            yield Difference(name, _short(old), _short(new), math.inf)
        return
    if one.shape != other.shape:
        yield Difference(name, f"shape {one.shape}", f"shape {other.shape}", math.inf)
        return
    apart = np.ascontiguousarray(one).view(np.uint64) != np.ascontiguousarray(other).view(np.uint64)
    if not apart.any():
        return
    scale = max(float(np.abs(one).max()), float(np.abs(other).max()))
    size = np.abs(one - other) / (scale or 1.0)
    places = {int(np.argmax(apart)), int(np.argmax(np.where(apart, size, -1.0)))}
    for flat in sorted(places):
        index = np.unravel_index(flat, one.shape)
        where = name + (f"[{', '.join(map(str, index))}]" if one.ndim else "")
        yield Difference(where, repr(float(one[index])), repr(float(other[index])), float(size[index]))


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


def _other(old: str, new: str) -> list[Difference]:
    return [Difference("reply", old, new, math.inf)]


def _short(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

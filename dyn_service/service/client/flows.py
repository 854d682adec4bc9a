"""Requests and replies of all calls, as flows without sockets, shared by all clients.

A flow is a generator: it yields requests, is sent the heads of their replies, and returns the result of the call.
Clients only transport requests and replies, blocking or awaited.

**Replies with one array.** A typed decoder checks and decodes such a reply in one pass in C. All other replies, such as
errors, take the slow path. Measured for the Panda's inverse dynamics: 0.7 instead of 1.9 us of a round trip of about 60
us. Typed structs for requests would save 0.3 of 2.9 us and are not used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from copy import copy
from functools import cache
from operator import is_
from typing import Any, Literal, Self, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, Raw, UnsetType

from dyn_service.api.arrays import found_instead, vector
from dyn_service.api.description import RobotDescription
from dyn_service.api.inputs import checked_options
from dyn_service.api.lists import names_queries
from dyn_service.api.named import lead_of
from dyn_service.api.queries import COMPUTATIONS, QUERIES, Array, Computation, Overlay, Query, Row, Spec
from dyn_service.api.robot_properties import RobotProperties
from dyn_service.api.spec import BY_NAME, Kind
from dyn_service.errors import (
    DynError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnimplementedError,
    from_wire,
)
from dyn_service.model.configuration import Configuration, Limits
from dyn_service.model.description import LoopHandling, RootType
from dyn_service.model.order import NAMES, Order
from dyn_service.service.client.retries import check_seconds
from dyn_service.service.protocol.arrays import ReplyArray, WireArray, may_be_infinite
from dyn_service.service.protocol.inputs import pack, pack_overlay, pack_state
from dyn_service.service.protocol.limits import MAX_MESSAGE_BYTES
from dyn_service.service.protocol.messages import (
    ADMINISTRATION,
    VERSION,
    Notice,
    ReplyHead,
    Request,
    decode_notice,
    decode_reply_head,
    encode,
)

T = TypeVar("T")

_F8 = np.dtype("<f8")
_OBJECTS = ("wrenches", "overlay")  # kinds that `pack_state` encodes


_decode_outputs = msgspec.msgpack.Decoder(dict[str, ReplyArray | tuple[str, ...]]).decode
_decode_plain = msgspec.msgpack.Decoder(dict[str, Any]).decode


def is_text(source: object) -> bool:
    """Returns whether the source is the text of a robot file, not a path."""
    return isinstance(source, str) and source.lstrip("\ufeff \t\r\n").startswith("<")


def read_description(source: str | os.PathLike[str]) -> str:
    """Returns the text of a robot file. Xacro files are expanded in this process, because servers run no programs.

    Raises:
        NotFoundError: The file does not exist.
        UnimplementedError: A xacro file, and the package xacro is not installed.
        UrdfError: The xacro file is invalid.
    """
    if is_text(source):
        return str(source)
    if os.fspath(source).endswith(".xacro"):
        from dyn_service.parsing import xacro  # an optional dependency

        return xacro.expanded(source, {})
    return _file_text(source, "inputs.urdf")


def read_joint_file(source: str | os.PathLike[str]) -> str:
    """Returns the text of a joint file. A string with several lines is the text itself.

    Raises:
        NotFoundError: The file does not exist.
        InvalidArgumentError: It cannot be read.
    """
    if isinstance(source, str) and "\n" in source:
        return source
    return _file_text(source, "inputs.joints")


def _file_text(source: str | os.PathLike[str], path: str) -> str:
    """Returns the text of a file. path: the input, for errors."""
    try:
        with open(source, encoding="utf-8-sig") as file:
            return file.read()
    except FileNotFoundError:
        raise NotFoundError(f"there is no file '{os.fspath(source)}'", path=path) from None
    except (OSError, UnicodeDecodeError) as fault:
        message = f"the file '{os.fspath(source)}' cannot be read: {fault}"
        raise InvalidArgumentError(message, path=path) from None


def pack_inputs(inputs: Mapping[str, Any], row: Row) -> dict[str, Any]:
    """Returns the inputs of a query for a message, without those that are None.

    Raises:
        InvalidArgumentError: An input does not consist of real numbers; `path` names it.
    """
    packed: dict[str, Any] = {}
    for name, value in inputs.items():
        if value.__class__ is np.ndarray and value.dtype is _F8:
            packed[name] = WireArray("<f8", value.shape, value.tobytes())
        elif value.__class__ is float and row.inputs[name].scalar:
            packed[name] = value
        elif value is not None:
            kind, path = row.inputs[name].kind, f"inputs.{name}"
            encoding = pack_state(kind, value, path) if kind in _OBJECTS else None
            packed[name] = encoding or pack(kind, value, path)
    return packed


def pack_options(row: Row, options: Mapping[str, Any]) -> Any:
    """Returns the options for a message, without those at their defaults; UNSET if none are left.

    Raises:
        InvalidArgumentError: An option has an invalid value; `path` names it.
    """
    changed_options, is_checked = {}, True
    for name, value in options.items():
        option, kind = row.options[name], value.__class__
        is_checked = is_checked and not option.required
        if value is not option.default and not (kind is str and value == option.default):
            changed_options[name] = value
            is_choice = value in option.choices if kind is str else kind is bool and option.type == "flag"
            is_checked = is_checked and is_choice
    if not changed_options:
        return UNSET
    if is_checked:
        return changed_options
    valid_options = checked_options(row, changed_options)
    return {name: valid_options[name] for name in changed_options}


class Ask(msgspec.Struct, frozen=True, gc=False):  # made in a tenth of the time of a `NamedTuple`
    """One request; fields that are `msgspec.UNSET` are not sent.

    inputs, options: from `pack_inputs` and `pack_options`. model: the robot's fingerprint.
    """

    query: str
    robot: Any = UNSET
    inputs: Any = UNSET
    options: Any = UNSET
    model: Any = UNSET


def pack_request(
    request_id: int, request: Ask, deadline_ms: float, compile_wait_ms: float = 0.0, retry: int = 0
) -> bytes:
    """Returns an encoded request.

    deadline_ms: time after receipt until which the server may work on it, ms. compile_wait_ms: extension while the
    server compiles, ms; 0: the server sends no notices. retry: how often the request was sent before.

    Raises:
        InvalidArgumentError: A value cannot be encoded.
        ResourceExhaustedError: The request exceeds the maximum size of a message.
    """
    try:
        payload = encode(
            Request(
                VERSION,
                request_id,
                request.query,
                request.robot,
                request.inputs,
                request.options,
                request.model,
                deadline_ms,
                compile_wait_ms or UNSET,
                retry or UNSET,
            )
        )
    except (TypeError, ValueError, OverflowError) as fault:
        raise InvalidArgumentError(f"the request cannot be encoded: {fault}", path="options") from None
    if len(payload) > MAX_MESSAGE_BYTES:
        message = f"the request has {len(payload)} bytes, the limit is {MAX_MESSAGE_BYTES}: ask for fewer states"
        raise ResourceExhaustedError(message)
    return payload


def read_head(payload: bytes | memoryview) -> ReplyHead | Notice | None:
    """Decodes the head of a reply or a notice; None if the message is neither, or of another protocol version."""
    head: ReplyHead | Notice
    try:
        head = decode_reply_head(payload)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        try:
            head = decode_notice(payload)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return None
    return head if head.v == VERSION else None


class Outputs(dict[str, Any]):
    """The outputs of a reply by name; a missing one raises `InternalError`."""

    def __missing__(self, name: str) -> Any:
        raise unreadable(f"it has no '{name}'")


def read_outputs(head: ReplyHead, row: Row, request: Ask, robot: RemoteRobotProperties | None) -> Outputs:
    """Returns the outputs of a row; unknown outputs are ignored.

    robot: None if the row needs none.

    Raises:
        DynError: The reply is an error.
        InternalError: An output is not an array, has a shape that does not match the request, or is not finite.
    """
    outputs = read_arrays(head)
    if isinstance(row, Query) and row.parts:
        results = Outputs()
        for part in row.parts:
            prefix = f"{part.name}."
            part_outputs = {name: outputs[prefix + name] for name in part.result_names if prefix + name in outputs}
            for name, value in _checked_outputs(part_outputs, part, request, robot).items():
                results[prefix + name] = value
        return results
    return _checked_outputs(outputs, row, request, robot)


def _checked_outputs(
    outputs: Mapping[str, Any], row: Row, request: Ask, robot: RemoteRobotProperties | None
) -> Outputs:
    """Returns the outputs of a row, checked; see `read_outputs`."""
    inputs, options = ({} if part is UNSET else part for part in (request.inputs, request.options))
    sizes: dict[str, int] = {} if robot is None else dict(robot.dimensions)
    specs: dict[str, Spec] = dict(row.outputs)
    if row.rows_option is not None and options.get(row.rows_option) is not None:
        sizes[str(row.row_dimension)] = len(options[row.rows_option])
    if isinstance(row, Query):
        lead = leading(row, inputs)
    elif isinstance(row, Computation):
        states = {name: x for name, x in inputs.items() if name in row.inputs and row.inputs[name].kind in _STATE_KINDS}
        lead = leading(row, states)
        specs = {**specs, **row.intermediate_outputs}
        if "residuals" in specs:
            specs = dict.fromkeys(outputs, specs["residuals"])
    arrays = Outputs()
    # efforts, wrenches and contacts of a computation may add leading axes, which the first output shows
    is_wider = isinstance(row, Computation)
    for name, names in row.labels.items():
        count = len(outputs[name]) if type(outputs.get(name)) is tuple else -1
        if sizes.setdefault(names.dimension, count) != count or count < 0:
            raise unreadable(f"{row.name} returns {max(count, 0)} names as {name}, expected {sizes[names.dimension]}")
        arrays[name] = outputs[name]
    for name, spec in specs.items():
        if name not in outputs:
            continue
        array = arrays[name] = outputs[name]
        axes = np.ndim(array) - len(spec.shape)
        if is_wider and spec.shape != ("K",):
            lead, is_wider = _wider_lead(lead, np.shape(array)[: max(axes, 0)]), False
        for symbol, size in zip(spec.shape, np.shape(array)[max(axes, 0) :], strict=False):
            if isinstance(symbol, str):
                sizes.setdefault(symbol, size)
        core_lead = () if spec.shape == ("K",) else lead
        check_array(row, name, array, (*core_lead, *(sizes.get(str(symbol), symbol) for symbol in spec.shape)))
    return arrays


_STATE_KINDS: frozenset[Kind] = frozenset({"plain", "position", "velocity", "acceleration", "momentum"})
"""Kinds of inputs of a computation whose leading axes its outputs have."""


def _wider_lead(lead: tuple[int, ...], output_lead: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the leading axes of an output if those of the states broadcast to them, otherwise those of the states."""
    try:
        return output_lead if np.broadcast_shapes(lead, output_lead) == output_lead else lead
    except ValueError:
        return lead


def check_array(row: Row, name: str, array: Any, shape: tuple[str | int, ...]) -> None:
    """Raises `InternalError` if the shape of an output is wrong, or a number is not finite."""
    if isinstance(array, tuple) or np.shape(array) != shape:
        raise unreadable(f"{row.name} returns {name} with shape {np.shape(array)}, expected {shape}")
    if not np.isfinite(array).all():
        raise unreadable(f"{row.name} returns {name} with a number that is not finite")


def unreadable(fault: object) -> InternalError:
    """Returns the error of an invalid reply."""
    return InternalError(f"the server's reply is invalid: {fault}")


_CORE_AXES: Mapping[str, int] = {"com": 1, "inertia": 2, "gravity": 1, "torque": 1, "force": 1, "point": 1}
"""Numbers of trailing axes in the values of a wrench or an overlay."""


def leading(row: Row, inputs: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the broadcast leading axes of inputs from `pack_inputs`."""
    for value in inputs.values():
        if value.__class__ is WireArray:
            if len(value.shape) != 1:
                break
        elif value.__class__ is not float and value.__class__ is not Raw:
            break
    else:
        return ()
    overlay = inputs.get(row.overlay or "") if isinstance(row, Query) and row.first("gravity") is None else None
    if isinstance(overlay, dict):  # whose gravity does not act
        inputs = {**inputs, str(row.first("overlay")): {key: part for key, part in overlay.items() if key != "gravity"}}
    leads = [lead for name, spec in row.inputs.items() for lead in _leads(inputs.get(name), spec, len(spec.shape))]
    return np.broadcast_shapes(*leads)


def _leads(value: Any, spec: Spec | None, core: int) -> Iterator[tuple[int, ...]]:
    if isinstance(value, WireArray):
        yield value.shape[: max(0, len(value.shape) - core)]
    elif spec is not None and spec.kind in BY_NAME:
        yield lead_of(spec.kind, value)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _leads(part, None, _CORE_AXES.get(key, 0))
    elif isinstance(value, list):
        for part in value:
            yield from _leads(part, None, 0)


def read_answer(head: ReplyHead, row: Row, request: Ask, robot: RemoteRobotProperties | None) -> Any:
    """Returns the result of a row's method; errors as in `read_outputs`."""
    outputs = read_outputs(head, row, request, robot)
    return row.result(outputs if "residuals" in row.outputs else {name: outputs[name] for name in row.result_names})


def read_arrays(head: ReplyHead) -> dict[str, Any]:
    """Returns the outputs of a reply, arrays or lists of names; errors as in `_decoded`."""
    return _decoded(head, _arrays)


def _arrays(outputs: msgspec.Raw) -> dict[str, Any]:
    decoded = _decode_outputs(outputs)
    return {name: value.value() if type(value) is ReplyArray else value for name, value in decoded.items()}


def read_residuals(head: ReplyHead) -> dict[str, Any]:
    """Returns the residuals in a reply, (...,) each.

    Raises:
        DynError: The reply is an error.
        InternalError: There are no residuals.
    """
    if not head.ok:
        raise reply_error(head)
    if not isinstance(head.residuals, dict):
        raise InternalError("the server's reply contains no residuals, although they were requested")
    return {name: np.asarray(value, dtype=np.float64) for name, value in head.residuals.items()}


def read_plain(head: ReplyHead) -> dict[str, Any]:
    """Returns the outputs of a query about the server; errors as in `_decoded`."""
    return Outputs(_decoded(head, _decode_plain))


def _decoded(head: ReplyHead, decode: Callable[[msgspec.Raw], dict[str, Any]]) -> dict[str, Any]:
    """Returns the outputs of a reply; raises its error, or `InternalError` if the outputs are invalid."""
    if not head.ok:
        raise reply_error(head)
    try:
        return decode(head.outputs)
    except (msgspec.MsgspecError, ValueError, RecursionError) as fault:
        raise unreadable(fault) from None


def reply_error(head: ReplyHead) -> DynError:
    """Returns the error in a reply, of the class that the server raised."""
    if not isinstance(head.error, dict):
        return InternalError("the server refused the request without an error")
    return from_wire(head.error)


def is_repeatable(query: str) -> bool:
    """Returns whether a query changes nothing on the server, so that it may be sent twice; False if unknown."""
    if query in ADMINISTRATION:
        return not ADMINISTRATION[query].changes
    return names_queries(query) or query in COMPUTATIONS


Flow = Generator[Ask, ReplyHead, T]
"""A generator of the requests of one call; the caller sends each reply in. It returns the result of the call."""


class RemoteRobotProperties(RobotProperties):
    """The properties of a robot on a server.

    Args:
        description: The answer to `describe_robot`.
        names: All movable joints, in the order of the entries in arguments and results; None: the server's order.
        timeout_s: The time limit of its calls; None: the client's.

    Raises:
        NotFoundError: A name is not that of a movable joint.
        InvalidArgumentError: A joint is named twice or missing.
    """

    _overlay: Overlay | None = None
    """Sent with each request; see `overlaid`."""

    _owns_client = False

    def __init__(
        self, description: RobotDescription, names: Sequence[str] | None = None, timeout_s: float | None = None
    ) -> None:
        self._timeout_s = None if timeout_s is None else check_seconds("timeout_s", timeout_s)
        self.names: list[str] | None = None
        """The order of the joints in arrays, sent with each request; None: the server's order."""
        if names is not None:
            order = Order(Configuration.of_description(description), names)
            self.names, description = list(order.names), order.described(description)
        nullable = description.limits
        limits = Limits(
            lower=_with_absent(nullable.lower, -np.inf),
            upper=_with_absent(nullable.upper, np.inf),
            velocity=_with_absent(nullable.velocity, np.inf),
            effort=_with_absent(nullable.effort, np.inf),
            acceleration=_with_absent(nullable.acceleration or [None] * len(nullable.velocity), np.inf),
            jerk=_with_absent(nullable.jerk or [None] * len(nullable.velocity), np.inf),
        )
        try:
            super().__init__(description, Configuration.of_description(description), limits)
        except KeyError as fault:
            raise InternalError(f"the server's description of the robot is invalid: {fault!r}") from None
        # read by each call; properties are slower
        self._name, self._model = description.name, description.fingerprint
        sizes = description.sizes
        # `nb` depends on the query
        self.dimensions = {symbol: sizes[symbol] for symbol in sizes.__struct_fields__ if symbol != "nb"}
        nq, nv = self.configuration.nq, self.configuration.nv
        sizes_found = (description.nq, description.nv, sizes.nq, sizes.nv, sizes.nl, sizes.nj, len(nullable.lower))
        expected = (nq, nv, nq, nv, len(description.link_names), len(description.all_joint_names), nq)
        if sizes_found != expected:
            text = f"sizes {sizes_found}, expected {expected}"
            raise InternalError(f"the server's description of the robot is invalid: {text}")

    def overlaid(self, overlay: Overlay) -> Self:
        """Returns this robot with the numbers of an overlay, on the same connection; see `Robot.overlaid`.

        Each request carries the overlay, and the server checks it; `description` and `fingerprint` are those of the
        robot without it. For a robot that the server keeps, with a name, see `Client.overlay_robot`.

        Raises:
            InvalidArgumentError: It is no `Overlay`, or this robot has one already.
        """
        if not isinstance(overlay, Overlay):
            type_name = found_instead("Overlay", overlay)
            raise InvalidArgumentError(f"overlay must be an Overlay, found {type_name}", path="overlay")
        if self._overlay is not None:
            raise InvalidArgumentError("the robot has an overlay already: put all numbers into one", path="overlay")
        robot = self._copied()
        robot._overlay = overlay
        return robot

    def with_timeout(self, timeout_s: float) -> Self:
        """Returns the same robot on the same connection with another time limit for each call."""
        robot = self._copied()
        robot._timeout_s = check_seconds("timeout_s", timeout_s)
        return robot

    def _copied(self) -> Self:
        """Returns this robot on the same connection, which the copy does not own."""
        robot = copy(self)
        robot._owns_client = False
        return robot

    @property
    def gravity(self) -> Array:
        """(3,) m/s^2 in world axes, used by calls without a gravity; of an overlay it may have leading axes."""
        gravity = None if self._overlay is None else self._overlay.gravity
        return super().gravity if gravity is None else vector(gravity, "overlay.gravity").copy()

    @property
    def free(self) -> Array:
        """(nv,): 0 where a joint is locked by the overlay, else 1."""
        locked = () if self._overlay is None else self._overlay.locked
        return np.array([float(joint not in locked) for joint in self.configuration.velocity_joints])


def put_overlay(robot: RemoteRobotProperties, overlay: Overlay, row: Row, inputs: dict[str, Any]) -> None:
    """Adds the robot's overlay to the inputs of a request.

    Raises:
        InvalidArgumentError: They have another one.
        UnimplementedError: The query takes no overlay, but depends on its numbers.
    """
    if row.name == "dynamic_parameters":
        raise UnimplementedError(f"{row.name} takes no overlay: add the robot by Client.overlay_robot")
    name, gravity = row.first("overlay"), row.first("gravity")
    if name is not None and inputs.get(name) is not None:
        raise InvalidArgumentError("the robot has an overlay already: omit it", path=f"inputs.{name}")
    if name is not None:
        inputs[name] = overlay
    elif gravity is not None and inputs.get(gravity) is None and overlay.gravity is not None:
        inputs[gravity] = robot.gravity


def query_request(
    robot: RemoteRobotProperties, row: Query, required: tuple[Any, ...], optional: tuple[Any, ...]
) -> Ask:
    """Returns the request for a row of `QUERIES`; the arguments are those of `RobotQueries._answer`."""
    inputs: dict[str, Any]
    options: dict[str, Any]
    # the most frequent call: they need not be sorted and compared
    if all(map(is_, optional, row.argument_defaults)):
        inputs, options = dict(zip(row.required, required, strict=True)), {}
    else:
        inputs, options = row.arguments(required, optional)
    if robot._overlay is not None:
        put_overlay(robot, robot._overlay, row, inputs)
    packed = pack_inputs(inputs, row)
    # an input and no key of the request, which an older server would ignore
    if robot.names is not None and row.has_joint_order:
        packed[NAMES] = robot.names
    return Ask(row.name, robot._name, packed, pack_options(row, options) if options else UNSET, robot._model)


def computation(row: Computation, arguments: dict[str, Any], robot: RemoteRobotProperties | None = None) -> Flow[Any]:
    """Computes a row of `COMPUTATIONS`, in several requests if it has parts."""
    name, model = (UNSET, UNSET) if robot is None else (robot.name, robot.fingerprint)
    joint_order = {} if robot is None or robot.names is None else {NAMES: robot.names}
    if robot is not None and robot._overlay is not None:
        put_overlay(robot, robot._overlay, row, arguments)
    if robot is None or not row.divided:
        inputs, options = row.arguments(arguments)
        request = Ask(row.name, name, {**pack_inputs(inputs, row), **joint_order}, pack_options(row, options), model)
        return read_answer((yield request), row, request, robot)
    from dyn_service.simulation.parts import DIVISIONS  # here, because most clients never simulate

    if row.name == "simulate":
        arguments["closed_loops"] = bool(robot.description.loop_joints)
    parts = DIVISIONS[row.name](robot.configuration, **arguments)
    try:
        # in parts, so that no request of a long motion reaches the limits of a server
        inputs, options = next(parts)
        while True:
            request = Ask(row.name, name, {**pack_inputs(inputs, row), **joint_order}, options, model)
            inputs, options = parts.send(read_outputs((yield request), row, request, robot))
    except StopIteration as done:  # a generator may not raise StopIteration
        whole = done.value
    return whole


def describe_robot(name: str) -> Flow[RobotDescription]:
    """Describes a robot."""
    return _description((yield Ask("describe_robot", name)))


def load_robot(
    urdf: str | os.PathLike[str],
    root: RootType,
    mimic: bool,
    loops: LoopHandling,
    joints: str | os.PathLike[str] | None = None,
) -> Flow[RobotDescription]:
    """Loads a robot into the server; returns its description."""
    choices = (("root", root, "fixed"), ("mimic", mimic, True), ("loops", loops, "closed"))
    # old servers refuse unknown options
    options = {name: x for name, x, default in choices if x != default} or UNSET
    inputs = {"urdf": read_description(urdf)} | ({} if joints is None else {"joints": read_joint_file(joints)})
    return _description((yield Ask("load_robot", inputs=inputs, options=options)))


def overlay_robot(robot: str, overlay: Overlay, name: str, expires_s: float | None) -> Flow[RobotDescription]:
    """Adds a copy of a robot with an overlay to the server; returns its description."""
    inputs = {"overlay": pack_overlay(overlay, "inputs.overlay"), "name": name}
    options = UNSET if expires_s is None else {"expires_s": expires_s}
    return _description((yield Ask("overlay_robot", robot, inputs, options)))


def unload_robot(name: str) -> Flow[None]:
    """Removes a robot from the server."""
    read_plain((yield Ask("unload_robot", name)))


def list_robots() -> Flow[list[str]]:
    """Lists the names of the server's robots."""
    robots: list[str] = read_plain((yield Ask("list_robots")))["robots"]
    return robots


def query_server(query: str) -> Flow[dict[str, Any]]:
    """Sends a query about the server without inputs."""
    return read_plain((yield Ask(query)))


def _description(head: ReplyHead) -> RobotDescription:
    try:
        return msgspec.convert(read_plain(head), RobotDescription)
    except msgspec.ValidationError as fault:
        raise InternalError(f"the server's description of the robot is invalid: {fault}") from None


def _with_absent(values: list[float | None], absent: float) -> Any:
    return np.array([absent if value is None else value for value in values], dtype=np.float64)


@cache
def array_reader(query: str) -> Callable[[bytes | memoryview], Any]:
    """Returns a decoder of replies to a query with one output.

    It returns an object with `id` and `outputs.array`, for `array_of`, or for other replies the result of
    `flows.read_head`.
    """
    (output,) = QUERIES[query].outputs
    outputs = msgspec.defstruct("Outputs", [("array", ReplyArray)], rename={"array": output}, gc=False)
    fields: list[Any] = [("v", Literal[VERSION]), ("id", int), ("ok", Literal[True]), ("outputs", outputs)]
    # late replies take the slow path
    fields += [("epoch", int | UnsetType, UNSET), ("late", UnsetType | None, UNSET)]
    decode = msgspec.msgpack.Decoder(msgspec.defstruct("ArrayReply", fields, gc=False)).decode

    def read(payload: bytes | memoryview) -> Any:
        try:
            return decode(payload)
        except msgspec.MsgspecError:
            return read_head(payload)

    return read


def array_of(reply: Any, row: Query, shape: tuple[int, ...]) -> Array:
    """Returns the array of a reply.

    reply: a result of a decoder of `array_reader`. shape: the expected one.

    Raises:
        InternalError: The array has another shape or number of bytes, or contains a number that is not finite.
    """
    packed: ReplyArray = reply.outputs.array
    try:
        array: Array = packed.value()
    except ValueError as fault:
        raise unreadable(fault) from None
    if packed.shape != shape or may_be_infinite(packed.data):
        check_array(row, str(row.output), array, shape)
    return array

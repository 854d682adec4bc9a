"""What all clients share: a call's requests and what its replies mean, as flows that know no socket.

A flow is a generator: it yields a request, is sent the reply's head, and in the end returns the call's answer. A client
only carries requests and replies, waiting or awaiting.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET

from dyn_service.api.described import Described
from dyn_service.api.description import RobotDescription
from dyn_service.api.inputs import checked_options
from dyn_service.api.named import lead_of
from dyn_service.api.queries import COMPUTATIONS, QUERIES, Computation, Overlay, Query, Row, Spec
from dyn_service.api.spec import BY_NAME, Kind
from dyn_service.errors import (
    DynError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    from_wire,
)
from dyn_service.model.configuration import Configuration, Limits
from dyn_service.model.description import RootType
from dyn_service.model.order import NAMES, Order
from dyn_service.service.protocol.administration import ADMINISTRATION
from dyn_service.service.protocol.arrays import ReplyArray, WireArray
from dyn_service.service.protocol.inputs import pack, pack_overlay
from dyn_service.service.protocol.limits import MAX_MESSAGE_BYTES
from dyn_service.service.protocol.messages import (
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


_decode_outputs = msgspec.msgpack.Decoder(dict[str, ReplyArray | tuple[str, ...]]).decode
_decode_plain = msgspec.msgpack.Decoder(dict[str, Any]).decode


def is_text(source: object) -> bool:
    """Whether a robot is given as its text, and not as the path of a file."""
    return isinstance(source, str) and source.lstrip("\ufeff \t\r\n").startswith("<")


def read_description(source: str | os.PathLike[str]) -> str:
    """The text of a robot, from a path or as it is. A xacro file is expanded here: servers run none.

    Raises:
        NotFoundError: There is no such file.
        UnimplementedError: It is of xacro, and that package is not installed.
        UrdfError: It is of xacro, and not sound.
    """
    if is_text(source):
        return str(source)
    if os.fspath(source).endswith(".xacro"):
        from dyn_service.parsing import xacro  # only who needs it

        return xacro.expanded(source, {})
    try:
        with open(source, encoding="utf-8-sig") as file:
            return file.read()
    except FileNotFoundError:
        raise NotFoundError(f"there is no file '{os.fspath(source)}'", path="inputs.urdf") from None
    except (OSError, UnicodeDecodeError) as fault:
        message = f"the file '{os.fspath(source)}' cannot be read: {fault}"
        raise InvalidArgumentError(message, path="inputs.urdf") from None


def pack_inputs(inputs: Mapping[str, Any], row: Row) -> dict[str, Any]:
    """The inputs of a query as a message carries them; those that are None are left out.

    Args:
        inputs: By name.
        row: The query's row of the table, which says what kind they are.

    Raises:
        InvalidArgumentError: An input is not made of real numbers; `path` names it.
    """
    packed: dict[str, Any] = {}
    for name, value in inputs.items():
        if value.__class__ is np.ndarray and value.dtype is _F8:
            packed[name] = WireArray("<f8", value.shape, value.tobytes())
        elif value is not None:
            packed[name] = pack(row.inputs[name].kind, value, f"inputs.{name}")
    return packed


def pack_options(row: Row, options: Mapping[str, Any]) -> Any:
    """Returns the options for a message, without those at their defaults; UNSET if none are left.

    Raises:
        InvalidArgumentError: One is not what it can be; `path` names it.
    """
    if not options:
        return UNSET
    given = {}
    for name, value in options.items():
        default = row.options[name].default
        if value is not default and not (type(value) is str and value == default):
            given[name] = value
    if not given:
        return UNSET
    checked = checked_options(row, given)
    return {name: checked[name] for name in given}


def pack_request(
    request_id: int,
    query: str,
    robot: Any,
    inputs: Any,
    options: Any,
    model: Any,
    deadline_ms: float,
    compile_wait_ms: float = 0.0,
    retry: int = 0,
) -> bytes:
    """A request's bytes; `robot`, `inputs`, `options`, `model` are `msgspec.UNSET` where they are left out.

    Args:
        request_id: Its id.
        query: The query's name.
        robot: As in a request, like the next three.
        inputs: As `pack_inputs` gives them.
        options: As `pack_options` gives them.
        model: The robot's fingerprint.
        deadline_ms: By when, counted from the receipt, the computation must have begun.
        compile_wait_ms: How long, beyond it, the call waits for kernels; 0 asks for no notices.
        retry: How often it was sent before.

    Raises:
        InvalidArgumentError: It holds something that no message can carry.
        ResourceExhaustedError: It is longer than a message may be.
    """
    try:
        payload = encode(
            Request(
                VERSION,
                request_id,
                query,
                robot,
                inputs,
                options,
                model,
                deadline_ms,
                compile_wait_ms or UNSET,
                retry or UNSET,
            )
        )
    except (TypeError, ValueError, OverflowError) as fault:
        raise InvalidArgumentError(f"the request cannot be written: {fault}", path="options") from None
    if len(payload) > MAX_MESSAGE_BYTES:
        message = f"the request has {len(payload)} bytes, the limit is {MAX_MESSAGE_BYTES}: ask for fewer states"
        raise ResourceExhaustedError(message)
    return payload


def read_head(payload: bytes) -> ReplyHead | Notice | None:
    """A reply as far as it takes to see whose it is, or news of one, or None where it is neither of this version."""
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
    """The outputs of a reply, by name; one that it lacks is the server's fault."""

    def __missing__(self, name: str) -> Any:
        raise unreadable(f"it has no '{name}'")


def read_outputs(head: ReplyHead, row: Row, request: Ask, robot: RemoteDescribed | None) -> Outputs:
    """The outputs of a row, as the robot itself would have given them; others are left aside.

    Args:
        head: The reply.
        row: The row of the table.
        request: What was asked.
        robot: Of which robot; None: the row needs none.

    Raises:
        DynError: The error that the reply carries.
        InternalError: An output is no array, has another shape than the request asks for, or is not finite.
    """
    given = read_arrays(head)
    inputs, options = ({} if part is UNSET else part for part in (request.inputs, request.options))
    sizes: dict[str, int] = {} if robot is None else dict(robot.dimensions)
    declared: dict[str, Spec] = dict(row.outputs)
    if isinstance(row, Query):
        lead = leading(row, inputs)
        if row.rows is not None and options.get(row.rows) is not None:
            sizes[str(row.selected)] = len(options[row.rows])
    elif isinstance(row, Computation):
        states = {name: x for name, x in inputs.items() if name in row.inputs and row.inputs[name].kind in _OF_A_STATE}
        lead = leading(row, states)
        declared = {**declared, **row.between}
        if "residuals" in declared:
            declared = dict.fromkeys(given, declared["residuals"])
    found, wider = Outputs(), isinstance(row, Computation)  # by efforts, wrenches or contacts: as its first output is
    for name, names in row.labels.items():
        count = len(given[name]) if type(given.get(name)) is tuple else -1
        if sizes.setdefault(names.dimension, count) != count or count < 0:
            raise unreadable(f"{row.name} gives {max(count, 0)} names as {name}, expected {sizes[names.dimension]}")
        found[name] = given[name]
    for name, spec in declared.items():
        if name not in given:
            continue
        array = found[name] = given[name]
        axes = np.ndim(array) - len(spec.shape)
        if wider and spec.shape != ("K",):
            lead, wider = _wider(lead, np.shape(array)[: max(axes, 0)]), False
        for symbol, size in zip(spec.shape, np.shape(array)[max(axes, 0) :], strict=False):
            if isinstance(symbol, str):
                sizes.setdefault(symbol, size)
        own = () if spec.shape == ("K",) else lead
        check_array(row, name, array, (*own, *(sizes.get(str(each), each) for each in spec.shape)))
    return found


_OF_A_STATE: frozenset[Kind] = frozenset({"plain", "position", "velocity", "acceleration", "momentum"})
"""The kinds of input of a computation whose leading axes its outputs have, too."""


def _wider(lead: tuple[int, ...], found: tuple[int, ...]) -> tuple[int, ...]:
    """The leading axes that were found, if those of the states broadcast to them; else those of the states."""
    try:
        return found if np.broadcast_shapes(lead, found) == found else lead
    except ValueError:
        return lead


def check_array(row: Row, name: str, array: Any, shape: tuple[str | int, ...]) -> None:
    """Refuses an output of another shape, or with a number that is not finite: no server sends one.

    Raises:
        InternalError: It is one.
    """
    if isinstance(array, tuple) or np.shape(array) != shape:
        raise unreadable(f"{row.name} gives {name} of shape {np.shape(array)}, expected {shape}")
    if not np.isfinite(array).all():
        raise unreadable(f"{row.name} gives {name} with a number that is not finite")


def unreadable(fault: object) -> InternalError:
    """The error of a reply that no server of ours sends."""
    return InternalError(f"the server's answer cannot be read: {fault}")


_OWN_AXES: Mapping[str, int] = {"com": 1, "inertia": 2, "gravity": 1, "torque": 1, "force": 1, "point": 1}
"""How many axes of the numbers of a wrench or an overlay are no leading ones."""


def leading(row: Row, inputs: Mapping[str, Any]) -> tuple[int, ...]:
    """The leading axes that inputs have together, as `pack_inputs` gives them."""
    for value in inputs.values():
        if value.__class__ is not float and (value.__class__ is not WireArray or len(value.shape) != 1):
            break
    else:
        return ()
    leads = [lead for name, spec in row.inputs.items() for lead in _leads(inputs.get(name), spec, len(spec.shape))]
    return np.broadcast_shapes(*leads)


def _leads(value: Any, spec: Spec | None, core: int) -> Iterator[tuple[int, ...]]:
    if isinstance(value, WireArray):
        yield value.shape[: max(0, len(value.shape) - core)]
    elif spec is not None and spec.kind in BY_NAME:
        yield lead_of(spec.kind, value)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _leads(part, None, _OWN_AXES.get(key, 0))
    elif isinstance(value, list):
        for part in value:
            yield from _leads(part, None, 0)


def read_answer(head: ReplyHead, row: Row, request: Ask, robot: RemoteDescribed | None) -> Any:
    """The answer to a row, as its method returns it; as `read_outputs`."""
    found = read_outputs(head, row, request, robot)
    return row.result(found if "residuals" in row.outputs else {name: found[name] for name in row.answers})


def read_arrays(head: ReplyHead) -> dict[str, Any]:
    """The outputs of a reply whose outputs are arrays, or lists of names.

    Raises:
        DynError: The error that the reply carries.
        InternalError: The outputs are invalid.
    """
    if not head.ok:
        raise reply_error(head)
    try:
        outputs: dict[str, Any] = _decode_outputs(head.outputs)
        for name, value in outputs.items():
            if type(value) is ReplyArray:
                outputs[name] = value.value()
        return outputs
    except (msgspec.MsgspecError, ValueError, RecursionError) as fault:
        raise unreadable(fault) from None


def read_residuals(head: ReplyHead) -> dict[str, Any]:
    """The residuals that a reply carries, (...,) each.

    Raises:
        DynError: The error that the reply carries.
        InternalError: There are no outputs.
    """
    if not head.ok:
        raise reply_error(head)
    if not isinstance(head.residuals, dict):
        raise InternalError("the server's answer carries no residuals, though they were asked for")
    return {name: np.asarray(value, dtype=np.float64) for name, value in head.residuals.items()}


def read_plain(head: ReplyHead) -> dict[str, Any]:
    """The outputs of a query about the server, as plain values.

    Raises:
        DynError: The error that the reply carries.
        InternalError: The outputs are invalid.
    """
    if not head.ok:
        raise reply_error(head)
    try:
        return Outputs(_decode_plain(head.outputs))
    except (msgspec.MsgspecError, ValueError, RecursionError) as fault:
        raise unreadable(fault) from None


def reply_error(head: ReplyHead) -> DynError:
    """The error that a reply carries, of the class the server raised."""
    if not isinstance(head.error, dict):
        return InternalError("the server refused the request without saying why")
    return from_wire(head.error)


class Ask(NamedTuple):
    """One request: its query, and what goes with it; `msgspec.UNSET` is left out."""

    query: str
    robot: Any = UNSET
    inputs: Any = UNSET
    options: Any = UNSET
    model: Any = UNSET


def is_repeatable(query: str) -> bool:
    """Whether a query may be asked twice, since it changes nothing; one that is not known here may not."""
    if query in ADMINISTRATION:
        return not ADMINISTRATION[query].changes
    return query in QUERIES or query in COMPUTATIONS


Flow = Generator[Ask, ReplyHead, T]
"""The requests of one call, in turn: send each one's reply back in; the call's answer is what comes back."""


class RemoteDescribed(Described):
    """A robot's properties, from the answer to `describe_robot`.

    Args:
        description: That answer.
        names: The movable joints in another order than the server's, in which all arrays are to be, in and out.

    Raises:
        NotFoundError: A name is that of no movable joint.
        InvalidArgumentError: A joint is named twice or not at all.
    """

    def __init__(self, description: RobotDescription, names: Sequence[str] | None = None) -> None:
        self.names: list[str] | None = None
        """The joints in the order of this robot's arrays, where it is not the server's: said with each request."""
        if names is not None:
            order = Order(Configuration.of_description(description), names)
            self.names, description = list(order.names), order.described(description)
        given = description.limits
        limits = Limits(
            lower=_filled(given.lower, -np.inf),
            upper=_filled(given.upper, np.inf),
            velocity=_filled(given.velocity, np.inf),
            effort=_filled(given.effort, np.inf),
        )
        try:
            super().__init__(description, Configuration.of_description(description), limits)
        except KeyError as fault:
            raise InternalError(f"the server's description of the robot cannot be read: {fault!r}") from None
        sizes = description.sizes
        self.dimensions = {each: sizes[each] for each in sizes.__struct_fields__ if each != "nb"}  # that is a query's
        said = (description.nq, description.nv, sizes.nq, sizes.nv, sizes.nl, sizes.nj, len(given.lower))
        at = self.configuration
        known = (at.nq, at.nv, at.nq, at.nv, len(description.link_names), len(description.all_joint_names), at.nq)
        if said != known:
            raise InternalError(f"the server's description of the robot cannot be read: sizes {said}, expected {known}")


def question(robot: RemoteDescribed, row: Query, given: tuple[Any, ...], others: tuple[Any, ...]) -> Ask:
    """The request for a row of `QUERIES`; the arguments are those of `RobotQueries._ask`."""
    inputs, options = row.arguments(given, others)
    packed = pack_inputs(inputs, row)
    if robot.names is not None and row.ordered:
        packed[NAMES] = robot.names
    return Ask(row.name, robot.name, packed, pack_options(row, options), robot.fingerprint)


def computation(row: Computation, arguments: dict[str, Any], robot: RemoteDescribed | None = None) -> Flow[Any]:
    """A row of `COMPUTATIONS`, part by part where it has parts."""
    name, model = (UNSET, UNSET) if robot is None else (robot.name, robot.fingerprint)
    said = {} if robot is None or robot.names is None else {NAMES: robot.names}
    if row.parts is None or robot is None:
        inputs, options = row.arguments(arguments)
        request = Ask(row.name, name, {**pack_inputs(inputs, row), **said}, pack_options(row, options), model)
        return read_answer((yield request), row, request, robot)
    parts = row.function("parts")(robot.configuration, **arguments)
    try:
        inputs, options = next(parts)
        while True:
            request = Ask(row.name, name, {**pack_inputs(inputs, row), **said}, options, model)
            inputs, options = parts.send(read_outputs((yield request), row, request, robot))
    except StopIteration as done:  # may not leave a generator
        whole = done.value
    return whole


def describe_robot(name: str) -> Flow[RobotDescription]:
    """What the server says of one robot."""
    return _description((yield Ask("describe_robot", name)))


def load_robot(urdf: str | os.PathLike[str], root: RootType, mimic: bool) -> Flow[RobotDescription]:
    """Makes the server serve one more robot, and gives what it says of it."""
    said = ({"root": root} if root != "fixed" else {}) | ({"mimic": mimic} if mimic is not True else {})
    options = said or UNSET  # a server that does not know one yet refuses it: it goes only where it says something
    return _description((yield Ask("load_robot", inputs={"urdf": read_description(urdf)}, options=options)))


def overlay_robot(robot: str, overlay: Overlay, name: str, expires_s: float | None) -> Flow[RobotDescription]:
    """Makes the server serve one of its robots once more, otherwise, and gives what it says of it."""
    inputs = {"overlay": pack_overlay(overlay, "inputs.overlay"), "name": name}
    options = UNSET if expires_s is None else {"expires_s": expires_s}
    return _description((yield Ask("overlay_robot", robot, inputs, options)))


def unload_robot(name: str) -> Flow[None]:
    """Makes the server stop serving a robot."""
    read_plain((yield Ask("unload_robot", name)))


def list_robots() -> Flow[list[str]]:
    """The names of the server's robots."""
    robots: list[str] = read_plain((yield Ask("list_robots")))["robots"]
    return robots


def plain(query: str) -> Flow[dict[str, Any]]:
    """A query about the server that takes nothing and gives plain values."""
    return read_plain((yield Ask(query)))


def _description(head: ReplyHead) -> RobotDescription:
    try:
        return msgspec.convert(read_plain(head), RobotDescription)
    except msgspec.ValidationError as fault:
        raise InternalError(f"the server's description of the robot cannot be read: {fault}") from None


def _filled(values: list[float | None], absent: float) -> Any:
    return np.array([absent if value is None else value for value in values], dtype=np.float64)

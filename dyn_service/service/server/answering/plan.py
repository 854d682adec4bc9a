"""One query on one robot: decoding of requests, their cost and kernels, and the fast path of single states.

A control loop sends the same few vectors a thousand times a second. For each query and robot, `FastPath` has typed
decoders for vectors of these lengths in `<f8` and for the options, which check in C what the slow path checks in
Python. Requests of any other form, valid or not, go to the slow path, which answers them or reports the error.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import accumulate
from math import isfinite
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Raw, UnsetType

from dyn_service.api.arguments import NO_VECTOR, with_vectors
from dyn_service.api.cost import Cost, answer_numbers, leading, leads_of
from dyn_service.api.description import Sizes
from dyn_service.api.inputs import check_names, checked_options
from dyn_service.api.lists import row_of
from dyn_service.api.queries import Array, Overlay, Query, Row, Wrench
from dyn_service.api.spec import BY_NAME, Kind, Option, Spec, Variant
from dyn_service.errors import DynError, InvalidArgumentError
from dyn_service.formulations.cost import of_states
from dyn_service.model.order import NAMES, Order, Orders
from dyn_service.service.protocol.arrays import WireArray, may_be_infinite, pack_output
from dyn_service.service.protocol.inputs import unpack
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.server.administration.metrics import Durations
from dyn_service.service.server.answering.bounds import check_cost, predict_cost
from dyn_service.service.server.answering.finite import Diagnosis, NotFinite, first_not_finite

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot


_Given = tuple[Sequence[Array], Mapping[str, Any], Order | None]
"""The required vectors in the row's order, other values by name, and the request's order of joints."""

FEW_WRENCHES = 4  # maximum number of wrenches on the fast path
# encodings of options, wrenches and overlay kept, and the length of wrenches
MAX_KNOWN, MAX_WRENCH_BYTES = 64, 1024
# overlays kept per query and robot, and the length of one
MAX_OVERLAYS, MAX_OVERLAY_BYTES = 64, 2048
MAX_DECODERS = 1024  # decoders of inputs kept, one for each query and size of robots
# after so many requests with the same overlay the server's thread makes its robot, which takes 1 ms
FREQUENT = 8
# encodings of options kept per query and robot, and the length of one
MAX_CHOICES, MAX_OPTION_BYTES = 64, 256
_NONE = b"\xc0"
_NO_OPTIONS = Raw(_NONE)


class FastRequest(msgspec.Struct, frozen=True, gc=False):
    """A request whose inputs and options are not decoded yet. Version 1 only."""

    v: Literal[1]
    id: Annotated[int, Meta(ge=0)]
    query: str
    robot: str
    inputs: Raw
    options: Raw = _NO_OPTIONS
    model: str | UnsetType = UNSET
    deadline_ms: Annotated[float, Meta(gt=0, le=1e300)] | UnsetType = UNSET
    compile_wait_ms: Annotated[float, Meta(gt=0, le=1e300)] | UnsetType = UNSET


decode_fast_request = msgspec.msgpack.Decoder(FastRequest).decode
"""Decodes a request of this form, or raises."""


class FastPath:
    """The fast path of one query on one robot, for one state.

    durations: counts its answers. used_ns: when it last answered. orders: those of joints that clients use.
    """

    def __init__(self, row: Query, robot: Robot, sizes: Sizes, durations: Durations, orders: Orders) -> None:
        self.durations = durations
        self.used_ns = 0
        self._row, self._robot, self._sizes, self._orders = row, robot, sizes, orders
        required = row.required
        links = [name for name in required if row.inputs[name].kind in BY_NAME]
        vectors = [name for name in required if not row.inputs[name].scalar and name not in links]
        numbers = [name for name in required if row.inputs[name].scalar]
        optional = row.optional - {row.wrenches, row.overlay, *row.by_name}
        optional_vectors = [name for name in row.inputs if name in optional and len(row.inputs[name].shape) == 1]
        lengths = {name: row.inputs[name].dims(sizes)[0] for name in (*vectors, *optional_vectors)}
        self._decode = _inputs_decoder(
            row.name, tuple(lengths.items()), (*numbers,), (*links,), frozenset(optional_vectors)
        )
        self._decode_options = _options_decoder(row.name)
        self._specs = [row.inputs[name] for name in vectors]
        self._values = attrgetter(
            *(f"{name}.data" for name in vectors), *optional_vectors, "wrenches_", "overlay_", "names_"
        )
        # Requests are copied to these arrays: new ones by `np.frombuffer` take 0.3 us each, a tenth of the fast path.
        ends = [*accumulate(lengths[name] for name in vectors)]
        entries = np.empty(ends[-1] if ends else 0)
        self._vector_bytes = entries.view(np.uint8).data
        entries.flags.writeable = False
        self._count = len(vectors)
        self._vectors = (*np.split(entries, ends)[: self._count],)
        self._optional_vectors = tuple((self._count + k, name) for k, name in enumerate(optional_vectors))
        self._numbers = (*numbers,)
        self._links, self._options = (*links,), tuple(row.options)
        ask = getattr(robot, row.name, None)
        self._ask: Callable[..., Any] = ask or _asking(robot, row.name, vectors)
        self._configuration = robot.configuration
        positions = () if self._configuration.flat else row.of_kind("position")
        self._positions = tuple((vectors.index(name), name, f"inputs.{name}") for name in positions)
        self._output, self._outputs_of = row.output, row.outputs_of
        self._choices: dict[tuple[bytes, bool, bool], dict[str, Any]] = {}
        self._arguments: dict[tuple[bytes, bytes | None, bytes | None], dict[str, Any]] = {}
        self._overlays: dict[bytes, Overlay | int] = {}

    def read(self, inputs: Raw, options: Raw, most_wrenches: int) -> _Given | None:
        """Returns the vectors, other arguments by name, and the request's order of joints; None if a number may not be
        finite, a kernel is missing, or there are too many wrenches. Raises if inputs or options have another form.

        The vectors are valid until the next call.
        """
        state: Any = self._decode(inputs)
        *vectors, wrenches, overlay, names = self._values(state)
        data = b"".join(vectors[: self._count])
        if may_be_infinite(data):
            return None
        self._vector_bytes[:] = data
        keywords: dict[str, Any] = {name: getattr(state, name) for name in self._links} if self._links else {}
        for name in self._numbers:
            keywords[name] = number = getattr(state, name)
            if not isfinite(number):
                return None
        for index, name in self._optional_vectors:
            vector = vectors[index]
            if vector is not UNSET:
                if may_be_infinite(vector.data):
                    return None
                keywords[name] = np.frombuffer(vector.data)
        encodings = (
            _NONE if options is _NO_OPTIONS else bytes(options),
            None if wrenches is UNSET else bytes(wrenches),
            None if overlay is UNSET else bytes(overlay),
        )
        is_kept = encodings in self._arguments
        arguments = self._arguments[encodings] if is_kept else self._decode_arguments(*encodings, most_wrenches)
        if arguments is None:
            return None
        keywords |= arguments
        arrays: Sequence[Array] = self._vectors
        order = None
        if names is not UNSET:
            order = self._orders.of(names)
            arrays = [*map(order.inward, self._specs, arrays)]
        for index, name, path in self._positions:
            self._configuration.check_unit(arrays[index], name, path)
        return arrays, keywords, order

    def _decode_arguments(
        self, options: bytes, wrenches: bytes | None, overlay: bytes | None, most_wrenches: int
    ) -> dict[str, Any] | None:
        """Returns the options, wrenches and overlay with these encodings, which are kept; None and errors as `read`."""
        arguments: dict[str, Any] = {}
        if wrenches is not None:
            data: list[bytes] = []
            decoded_wrenches = _decode_wrenches(wrenches)
            arguments[self._row.wrenches or ""] = [_wrench(decoded, data) for decoded in decoded_wrenches]
            if len(decoded_wrenches) > most_wrenches or may_be_infinite(b"".join(data)):
                return None
        if overlay is not None:
            frequent_overlay = self._overlay(overlay)
            if frequent_overlay is None:
                return None
            arguments[self._row.overlay or ""] = frequent_overlay
        kind = options, wrenches is not None, overlay is not None
        option_values = self._choices[kind] if kind in self._choices else self._choose(*kind)
        if option_values is None:
            return None
        arguments |= option_values
        if len(wrenches or b"") <= MAX_WRENCH_BYTES and len(options) <= MAX_OPTION_BYTES:
            if len(self._arguments) >= MAX_KNOWN:
                self._arguments.clear()
            self._arguments[options, wrenches, overlay] = arguments
        return arguments

    def _overlay(self, packed: bytes) -> Overlay | None:
        """Returns the overlay with this encoding if it is frequent; it is kept, because robots know it by identity."""
        entry = self._overlays.get(packed, 0)
        if isinstance(entry, Overlay):
            return entry
        if len(packed) > MAX_OVERLAY_BYTES:
            return None
        if len(self._overlays) >= MAX_OVERLAYS:
            self._overlays.clear()
        self._overlays[packed] = entry + 1
        if entry < FREQUENT:
            return None
        self._overlays[packed] = 0
        overlay: Overlay = unpack("overlay", msgspec.msgpack.decode(packed), "inputs.overlay")
        if self._robot.evaluator.overlaid_by(overlay, "inputs.overlay").model.lead:
            return None
        self._overlays[packed] = overlay
        return overlay

    def _choose(self, packed: bytes, has_wrenches: bool, has_overlay: bool) -> dict[str, Any] | None:
        """Returns the options of this encoding without those left out; None if their kernel, with these inputs, is not
        loaded or too slow for the server's thread. Raises if they have another form.
        """
        row, values = self._row, {}
        if packed != _NONE:
            decoded = self._decode_options(packed)
            values = {name: x for name in self._options if (x := getattr(decoded, name)) is not UNSET and x is not None}
        inputs = [name for name, has in ((row.wrenches, has_wrenches), (row.overlay, has_overlay)) if has and name]
        method, variant, passive = kernel_of(row, inputs, values)
        if not self._robot.evaluator.has_kernel(row, method, variant, passive=passive):
            return None
        if predict_cost(row, self._sizes, {}, checked_options(row, values)).work_s > SLOW_WORK_S:
            return None
        if len(packed) <= MAX_OPTION_BYTES:
            if len(self._choices) >= MAX_CHOICES:
                self._choices.clear()
            self._choices[packed, has_wrenches, has_overlay] = values
        return values

    def answer(self, values: _Given) -> dict[str, Any] | None:
        """Returns the outputs for what `read` returned, by name and packed; None if a number may not be finite."""
        vectors, keywords, order = values
        result = self._ask(*vectors, **keywords)
        if order is None and self._output is not None:
            data = result.tobytes()
            return None if may_be_infinite(data) else {self._output: WireArray("<f8", result.shape, data)}
        outputs = self._outputs_of(result)
        if order is not None:
            outputs = order.outward(self._row, outputs)
        for name, value in outputs.items():
            outputs[name] = packed = pack_output(value)
            if packed.__class__ is WireArray and may_be_infinite(bytes(packed.data)):
                return None
        return outputs


def read_inputs(
    row: Row, raw: Mapping[str, Any], orders: Orders | None, prescribed: Any = None
) -> tuple[dict[str, Any], Order | None]:
    """Returns the inputs of a request as arrays and objects in the robot's order, and the request's order if any.

    `prescribed` names joints whose motion is an input.

    Raises:
        InvalidArgumentError: An input is missing, unknown or malformed. The robot or the computation checks the rest.
        NotFoundError: It names an unknown joint.
    """
    order = free = None
    # names are an input, because older servers refuse unknown inputs and would ignore an unknown key
    if NAMES in raw and orders is not None:
        raw, order = orders.split(row, raw)
    check_names(row, raw)
    if order is not None and isinstance(prescribed, list) and row.of_kind("motions"):
        free = order.without(prescribed)
    inputs: dict[str, Any] = {}
    for name, value in raw.items():
        if value is not None:
            spec = row.inputs[name]
            input_value = unpack(spec.kind, value, f"inputs.{name}")
            inputs[name] = input_value if order is None else order.inward(spec, input_value, free)
    return inputs, order


def check_quaternions(row: Row, inputs: Mapping[str, Any], robot: Robot) -> None:
    """Raises `InvalidArgumentError` for a quaternion among the decoded inputs whose length is not 1."""
    # Not a check of the robot itself, where it would take longer than a call: a client's mistake must not look right.
    for name in () if robot.configuration.flat else row.of_kind("position"):
        if name in inputs and inputs[name].shape[-1:] == (robot.nq,):
            robot.configuration.check_unit(inputs[name], name, f"inputs.{name}")


def read_options(row: Row, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all options, with defaults for those that are missing or nil; errors as `checked_options`."""
    return checked_options(row, {name: value for name, value in raw.items() if value is not None})


def kernel_of(row: Query, inputs: Container[str], options: Mapping[str, Any]) -> tuple[str, Variant, bool]:
    """Returns the kernel for a request: method, variant, and whether passive forces act."""
    variant = Variant((row.wrenches or "") in inputs, (row.overlay or "") in inputs)
    return row.method(options), variant, options.get(row.passive_option or "", True)


@lru_cache(maxsize=MAX_DECODERS)
def _inputs_decoder(
    query: str,
    lengths: tuple[tuple[str, int], ...],
    numbers: tuple[str, ...],
    links: tuple[str, ...],
    optional: frozenset[str],
) -> Callable[[bytes | Raw], Any]:
    """Returns the decoder of a query's inputs for one state, shared by robots of the same sizes.

    Args:
        query: The query's name.
        lengths: Name and length of each vector.
        numbers: Required numbers.
        links: Names of links.
        optional: Vectors that may be left out.
    """
    row = row_of(query)
    fields: list[Any] = [(name, _vector(length)) for name, length in lengths if name not in optional]
    fields += [(name, float) for name in numbers] + [(name, str) for name in links]
    fields += [(name, _vector(length) | UnsetType, UNSET) for name, length in lengths if name in optional]
    fields += [("wrenches_", Raw | UnsetType if row.wrenches else UnsetType, UNSET)]
    fields += [("overlay_", Raw | UnsetType if row.overlay else UnsetType, UNSET)]
    fields += [("names_", tuple[str, ...] | UnsetType if row.has_joint_order else UnsetType, UNSET)]
    wire_names = {"wrenches_": row.wrenches or "wrenches_", "overlay_": row.overlay or "overlay_", "names_": NAMES}
    return _decoder("Inputs", fields, wire_names)


@lru_cache(maxsize=MAX_DECODERS)
def _options_decoder(query: str) -> Callable[[bytes | Raw], Any]:
    """Returns the decoder of a query's options."""
    return _decoder("Options", [(x.name, _option(x), UNSET) for x in row_of(query).options.values()], {})


def _decoder(name: str, fields: list[Any], wire_names: Mapping[str, str]) -> Callable[[bytes | Raw], Any]:
    """Returns a decoder of maps with these fields and no others."""
    struct = msgspec.defstruct(name, fields, rename=wire_names, forbid_unknown_fields=True, gc=False, frozen=True)
    return msgspec.msgpack.Decoder(struct).decode


def _option(option: Option) -> Any:
    """Returns a msgspec type for the values of an option. Other axes than the default take longer."""
    choices = (option.default,) if option.role == "axes" else option.choices
    kinds: dict[str, Any] = {
        "choice": Literal[choices] if choices else None,
        "flag": bool,
        "whole": Annotated[int, Meta(ge=0)],
        "number": Annotated[float, Meta(ge=-1e300, le=1e300)],
        "names": list[str],
    }
    return kinds[option.type] | None | UnsetType


@lru_cache(maxsize=MAX_DECODERS)
def _vector(length: int) -> Any:
    """Returns a msgspec type for an `<f8` array of that length."""
    data = Annotated[bytes, Meta(min_length=8 * length, max_length=8 * length)]
    fields = [("dtype", Literal["<f8"]), ("shape", tuple[Literal[length]]), ("data", data)]  # type: ignore[valid-type]
    return msgspec.defstruct(f"Vector{length}", fields, gc=False, frozen=True)


_PARTS = ("torque", "force", "point")
_MAYBE_THREE: Any = _vector(3) | UnsetType
_WRENCH: Any = msgspec.defstruct(
    "StateWrench",
    [("link", str), *((part, _MAYBE_THREE, UNSET) for part in _PARTS), ("frame", str, "world")],
    forbid_unknown_fields=True,
    gc=False,
    frozen=True,
)
_decode_wrenches = msgspec.msgpack.Decoder(Annotated[list[_WRENCH], Meta(max_length=FEW_WRENCHES)]).decode
_three = struct.Struct("<3d").unpack


def _wrench(decoded: Any, data: list[bytes]) -> Wrench:
    """Returns an external wrench, and appends the bytes of its vectors to `data`."""
    torque, force, point = decoded.torque, decoded.force, decoded.point
    data += [part.data for part in (torque, force, point) if part is not UNSET]
    return Wrench(
        decoded.link,
        NO_VECTOR if torque is UNSET else _three(torque.data),
        NO_VECTOR if force is UNSET else _three(force.data),
        NO_VECTOR if point is UNSET else _three(point.data),
        decoded.frame,
    )


SLOW_BYTES = 16 << 10  # longer requests or answers are not handled by the server's thread
# nor those with more predicted CPU time: batches, many wrenches, large answers in world axes
SLOW_WORK_S = 2.5e-4


# predicted CPU time of a block of a batch: 0.2 to 1.7 ms, since predictions are cautious
BLOCK_WORK_S = 5e-3


def _block_of(spec: Spec, value: Any, lead: tuple[int, ...], block: slice) -> Any:
    """Returns an input for a block of the states of a batch; `lead`: the leading axes of the batch."""

    def cut(x: Any, axes: int) -> Any:
        return x[block] if isinstance(x, np.ndarray) and x.ndim - axes == len(lead) and len(x) == lead[0] else x

    if spec.kind != "wrenches" or value is None:
        return cut(value, len(spec.shape))
    return with_vectors(value, partial(cut, axes=1))


def _asking(robot: Robot, queries: str, names: list[str]) -> Callable[..., Any]:
    """Returns the method of a list of queries. names: its positional arguments."""

    def ask(*required: Array, **optional: Any) -> Any:
        return robot.evaluate(queries, **dict(zip(names, required, strict=True)), **optional)

    return ask


class Plan:
    """One query on one robot: reads inputs, predicts the cost, calls the robot."""

    def __init__(self, row: Query, robot: Robot, sizes: Sizes, durations: Durations, orders: Orders) -> None:
        self._row = row
        self._robot = robot
        self._ask: Callable[..., Any] = getattr(robot, row.name, None) or _asking(robot, row.name, [])
        self._sizes = sizes
        small = sizes["nv"] > 0 and len(row.inputs) > 0 and 8 * answer_numbers(row, sizes) <= SLOW_BYTES
        self._fast_path = FastPath(row, robot, sizes, durations, orders) if small else None
        self.models = (UNSET, robot.fingerprint)  # valid values of `model` in a request
        # the fast path for single states, once a kernel is loaded
        self.fast_path: FastPath | None = None
        self.refresh()

    @property
    def used_ns(self) -> int:
        """When the fast path last answered."""
        return 0 if self._fast_path is None else self._fast_path.used_ns

    def cost(
        self, inputs: Mapping[str, Any], options: Mapping[str, Any], limits: RequestLimits, *, verify: bool
    ) -> Cost:
        """Returns the cost of the answer, or raises `ResourceExhaustedError` if it exceeds a limit."""
        cost = predict_cost(self._row, self._sizes, inputs, options)
        if verify:
            cost = cost.plus(of_states(self._sizes, cost.lead))
        check_cost(self._row, cost, limits)
        return cost

    def answer(
        self,
        inputs: Mapping[str, Any],
        options: Mapping[str, Any],
        order: Order | None = None,
        check: Callable[[], None] | None = None,
    ) -> dict[str, Any]:
        """Returns the outputs by name, packed for a message, in the request's order of joints.

        `check` is called between the blocks of a large batch, and ends the computation if it raises.
        """
        row = self._row
        outputs = None if check is None else self._in_blocks(inputs, options, check)
        if outputs is None:
            outputs = row.outputs_of(self._ask(**inputs, **options))
        if order is not None:
            outputs = order.outward(row, outputs)
        for name, value in outputs.items():
            outputs[name] = pack_output(value)
        return outputs

    def _in_blocks(
        self, inputs: Mapping[str, Any], options: Mapping[str, Any], check: Callable[[], None]
    ) -> dict[str, Any] | None:
        """Returns the outputs of a large batch, computed in blocks along its first axis.

        None if it is small, if an input other than an array varies along that axis, if outputs of a list may lack the
        axis, or if there is an error, which then is reported for the whole batch.
        """
        row, leads = self._row, leads_of(self._row, inputs)
        lead = leading(leads.values())
        # a worker gives up between blocks; killing it would cost other clients 0.2 s of its time
        blocks = 1 + int(predict_cost(row, self._sizes, inputs, options).work_s / BLOCK_WORK_S)
        fixed = [name for name, axes in leads.items() if axes and row.inputs[name].kind in (*BY_NAME, "overlay")]
        whole = not row.parts or all(leads[name] == lead for part in row.parts for name in part.required or ("",))
        if not lead or lead[0] < 2 or blocks < 2 or fixed or not whole:
            return None
        outputs: dict[str, Any] = {}
        for first in range(0, lead[0], step := -(-lead[0] // blocks)):
            check()
            block = slice(first, min(first + step, lead[0]))
            try:
                arrays = {name: _block_of(row.inputs[name], x, lead, block) for name, x in inputs.items()}
                part = row.outputs_of(self._ask(**arrays, **options))
            except DynError:
                return None
            outputs = outputs or {
                name: np.empty((lead[0], *x.shape[1:])) if name in row.outputs else x for name, x in part.items()
            }
            for name in row.outputs:
                outputs[name][block] = part[name]
        return outputs

    def explain(
        self, number: NotFinite, inputs: Mapping[str, Any], options: Mapping[str, Any], order: Order | None = None
    ) -> DynError:
        """Returns the error for an output that is not finite."""
        if order is not None:
            number = replace(number, index=order.place(self._row, number.output, number.index))
        diagnosis = Diagnosis(self._answering_robot, self._row, inputs, options)
        return diagnosis.of_output(number, lambda other: self.answer(other, options))

    def verification(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the residuals at the request's state, all finite: numbers, or nested lists for a batch."""
        try:
            residuals = self.residuals(inputs, options)
            number = first_not_finite(residuals, "residuals")
        except np.linalg.LinAlgError:
            number = NotFinite("residuals", self._most_singular(inputs, options), math.nan)
        if number is not None:
            diagnosis = Diagnosis(self._answering_robot, self._row, inputs, options)
            raise diagnosis.of_residual(number, lambda other: self.residuals(other, options))
        return {name: residual.tolist() for name, residual in residuals.items()}

    def _answering_robot(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Robot:
        """Returns the robot that answers: with the overlay of the request, or without passive forces."""
        overlay = inputs.get(self._row.overlay or "")
        robot = self._robot if overlay is None else self._robot.overlaid(overlay)
        method, _, passive = self.kernel(inputs, options)
        return robot.acting(self._row, method, passive)

    def _most_singular(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[int, ...]:
        """Returns the state of a batch whose mass matrix has the largest condition number."""
        M = self._answering_robot(inputs, options).mass_matrix(inputs[self._row.pose or ""])
        condition = np.asarray(np.linalg.cond(M))
        return tuple(int(k) for k in np.unravel_index(np.argmax(condition), condition.shape))

    def residuals(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Array]:
        """Returns the differences between formulations at the request's state, each of shape (...,).

        Velocities and accelerations that the query does not take are zero; efforts are converted to accelerations.
        External wrenches are not applied in the comparison.
        """
        if self._row.constant:
            raise InvalidArgumentError(
                f"{self._row.name} takes no state, so there is nothing to verify", path="options.verify"
            )
        row, zeros = self._row, np.zeros(self._sizes["nv"])
        robot = self._answering_robot(inputs, options)

        def input_of(kind: Kind) -> Any:
            name = row.first(kind)
            return None if name is None else inputs.get(name)

        q, v, a, gravity = (input_of(kind) for kind in ("position", "velocity", "acceleration", "gravity"))
        v = zeros if v is None else v
        if a is None:
            efforts, wrenches = input_of("effort"), input_of("wrenches")
            a = zeros
            if efforts is not None:
                a = robot.forward_dynamics(q, v, efforts, gravity=gravity, wrenches=wrenches)
        return robot.verify(q, v, a, gravity=gravity)

    def refresh(self, *, has_answered: bool = False) -> None:
        """Enables the fast path once a kernel is loaded, as one is if a request was just answered."""
        if self.fast_path is not None or self._fast_path is None:
            return
        if has_answered or self._robot.evaluator.has_kernel(self._row, self._row.method({})):
            self.fast_path = self._fast_path

    def has_kernel(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
        """Returns whether the kernel for a request is loaded in this process."""
        method, variant, passive = self.kernel(inputs, options)
        return self._robot.evaluator.has_kernel(self._row, method, variant, passive=passive)

    def make_kernel(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Loads or compiles the kernel for a request; raises `ResourceExhaustedError` if it is too large."""
        method, variant, passive = self.kernel(inputs, options)
        self._robot.evaluator.load_kernel(self._row, method, variant, passive=passive, make=True)

    def kernel(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[str, Variant, bool]:
        """Returns the kernel for a request: method, variant, and whether passive forces act."""
        return kernel_of(self._row, inputs, options)

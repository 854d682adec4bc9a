"""Explains numbers in an answer that are not finite; no such answer leaves the server.

    angle beyond 2^45 rad                            INVALID_ARGUMENT      adjacent doubles are too far apart
    M(q) is singular, and the query inverts it       FAILED_PRECONDITION   no effort gives a finite acceleration
    NaN where the row allows it                      FAILED_PRECONDITION   the row explains it
    finite with inputs of ordinary size              INVALID_ARGUMENT      products of the inputs overflow
    finite with such inputs without the overlay      INVALID_ARGUMENT      products of the overlay's numbers overflow
    not finite with such inputs                      FAILED_PRECONDITION   products of the robot's numbers overflow

The first cause that applies is reported. The last three are distinguished by computing again with all numbers of the
inputs clipped to +-1, at the same angles. This takes milliseconds and may trace the equations, so workers do it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from dyn_service.api.arguments import mapped
from dyn_service.api.named import lead_of
from dyn_service.api.queries import Array, Computation, Query, Wrench
from dyn_service.api.spec import BY_NAME
from dyn_service.errors import DynError, FailedPreconditionError, InternalError, InvalidArgumentError
from dyn_service.service.protocol.arrays import WireArray, index_of_non_finite, is_finite

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot

_WRENCH_PARTS = ("torque", "force", "point")
# kinds of input that are not clipped, because they contain no numbers of a state
_AS_THEY_ARE = BY_NAME | {"overlay"}
# inputs of a computation beyond this are the cause of an overflow; no quantity in SI units is near
_HUGE = 1e50


@dataclass(frozen=True)
class NotFinite:
    """A number that is not finite: the output's name, its index, its value."""

    output: str
    index: tuple[int, ...]
    value: float


@dataclass(frozen=True)
class _Entry:
    """A number of an input."""

    name: str
    path: str
    value: float


def first_not_finite(outputs: Any, name: str = "") -> NotFinite | None:
    """Returns the first number of outputs, packed or not, that is not finite; None if all are. `name`: a prefix."""
    if isinstance(outputs, WireArray):
        array = np.frombuffer(outputs.data, dtype="<f8").reshape(outputs.shape)
    elif isinstance(outputs, np.ndarray | float):
        array = np.asarray(outputs)
    else:
        parts: list[tuple[str, Any]] = []
        if isinstance(outputs, Mapping):
            parts = [(f"{name}.{key}" if name else str(key), value) for key, value in outputs.items()]
        elif isinstance(outputs, list | tuple):
            parts = [(f"{name}[{k}]", value) for k, value in enumerate(outputs) if not isinstance(value, str)]
        for key, value in parts:
            if (entry := first_not_finite(value, key)) is not None:
                return entry
        return None
    if is_finite(array):
        return None
    index = index_of_non_finite(array)
    return NotFinite(name, index, float(array[index]))


class Diagnosis:
    """Why one state of a query has no finite answer, on the robot that `robot_for` returns for inputs and options."""

    def __init__(
        self,
        robot_for: Callable[[Mapping[str, Any], Mapping[str, Any]], Robot],
        row: Query,
        inputs: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        self._robot_for = robot_for
        self._robot = robot_for(inputs, options)
        self._row = row
        self._inputs = inputs
        self._options = options

    def of_output(self, number: NotFinite, ask: Callable[[Mapping[str, Any]], Any]) -> DynError:
        """Returns the error for an output of the row; `ask` returns the outputs, packed or not, for other inputs."""
        text, lead = _describe(self._row, number, self._names())
        spec, method = self._row.outputs[number.output], self._options.get(self._row.kernel_option or "", "")
        singular = spec.singular if np.isnan(number.value) and spec.singular_by in ("", method) else ""
        return self._explain(text, lead, ask, inverts=bool(self._row.inverts_mass_matrix), singular=singular)

    def of_residual(self, number: NotFinite, ask: Callable[[Mapping[str, Any]], Any]) -> DynError:
        """Returns the error for a residual of the verification, whose formulations invert the mass matrix."""
        text = f"verify of {self._row.name} gives {number.output} = {number.value}{_state_text(number.index)}"
        return self._explain(text, number.index, ask, inverts=self._robot.massless_joint is None)

    def _explain(
        self,
        text: str,
        lead: tuple[int, ...],
        ask: Callable[[Mapping[str, Any]], Any],
        *,
        inverts: bool,
        singular: str = "",
    ) -> DynError:
        inputs = {name: self._input_at(name, value, lead) for name, value in self._inputs.items()}
        pose = self._row.pose
        q = None if pose is None else inputs.get(pose)
        if q is not None and q.shape == (self._robot.nq,):
            joint = self._too_far(q)
            if joint is not None:
                value = float(q[self._robot.configuration.position_names.index(joint)])
                return InvalidArgumentError(
                    f"{text}: {pose} of joint '{joint}' is {value:g} rad, where a sine has no correct digits; the "
                    "limit is 2^45 rad, about 3.5e13",
                    path=f"inputs.{pose}",
                )
        ordinary = {name: self._clipped(name, value) for name, value in inputs.items()}
        if inverts and q is not None and q.shape == (self._robot.nq,):
            joint = self._robot_for(inputs, self._options).evaluator.model.singular_joint(ordinary[pose or ""])
            if joint is not None:
                return FailedPreconditionError(
                    f"{text}: the mass matrix is singular at this state: the links moved by joint '{joint}' have no "
                    "inertia along it, so no finite effort gives a finite acceleration"
                )
        if singular:
            return FailedPreconditionError(f"{text}: {singular.format_map(inputs)}")
        if _is_answered(ask, ordinary):
            return _overflow(text, _largest(_entries(self._row, inputs, self._names())))
        overlay = self._row.overlay
        if overlay is not None and overlay in ordinary and _is_answered(ask, {**ordinary, overlay: None}):
            return InvalidArgumentError(
                f"{text}, also with inputs of ordinary size, but not without the {overlay}: its numbers are too large "
                "or too small for a double",
                path=f"inputs.{overlay}",
            )
        return FailedPreconditionError(
            f"{text}, also with inputs of ordinary size: products of the masses, inertias and lengths of robot "
            f"'{self._robot.name}' are too large or too small for a double"
        )

    def _names(self) -> dict[str, Sequence[str]]:
        rows = None if self._row.rows_option is None else self._options[self._row.rows_option]
        return _dimension_names(self._robot) | ({} if rows is None else {str(self._row.row_dimension): rows})

    def _input_at(self, name: str, value: Any, lead: tuple[int, ...]) -> Any:
        """Returns the input at one state of the batch."""
        spec = self._row.inputs[name]
        if spec.kind == "wrenches":
            return _each_vector(value, lambda vector: _entry(vector, 1, lead))
        if spec.kind == "link":
            return _link_name_at(value, lead)
        if spec.kind == "directions":
            return value
        if spec.kind == "overlay":
            return mapped(value, lambda array, axes, _: _entry(np.asarray(array), axes, lead))
        return _entry(np.asarray(value), len(spec.shape), lead)

    def _too_far(self, q: Array) -> str | None:
        """Returns the first revolute joint whose angle is beyond the limit."""
        from dyn_service.kernels.trig import LIMIT

        configuration = self._robot.configuration
        for name, is_angle, angle in zip(configuration.position_names, configuration.angles, q, strict=True):
            if is_angle and abs(angle) > LIMIT:
                return name
        return None

    def _clipped(self, name: str, value: Any) -> Any:
        """Returns the input with its numbers clipped to +-1, except angles, because a mass matrix may be singular at
        them, and overlays.
        """
        kind = self._row.inputs[name].kind
        if kind == "wrenches":
            return _each_vector(value, lambda vector: np.clip(vector, -1.0, 1.0))
        if kind in _AS_THEY_ARE:
            return value
        clipped: Array = np.clip(value, -1.0, 1.0)
        if kind == "position" and value.shape == (self._robot.nq,):
            clipped = np.where(self._robot.configuration.shifts, clipped, value)
        return clipped


def explain_computation(
    row: Computation, number: NotFinite, inputs: Mapping[str, Any], options: Mapping[str, Any], robot: Robot | None
) -> DynError:
    """Returns the error for an output of a computation, from the decoded inputs and the options of the request."""
    names = {} if robot is None else _dimension_names(robot)
    text, _ = _describe(row, number, names)
    entries = [*_entries(row, inputs, names)]
    for name, value in options.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            entries.append(_Entry(name, f"options.{name}", float(value)))
    largest = _largest(entries)
    if abs(largest.value) > _HUGE:
        return _overflow(text, largest)
    return FailedPreconditionError(f"{text}: the computation diverges or reaches a singular state")


def defect(query: str, number: NotFinite) -> DynError:
    """Returns the error for an answer about the server itself."""
    text = f"{query} gives {number.output} = {number.value}"
    return InternalError(f"{text}: a defect of the server, not caused by the request")


def _is_answered(ask: Callable[[Mapping[str, Any]], Any], inputs: Mapping[str, Any]) -> bool:
    try:
        return first_not_finite(ask(inputs)) is None
    except (DynError, np.linalg.LinAlgError):
        return False


def _entry(array: Array, core: int, lead: tuple[int, ...]) -> Array:
    """Returns the entry of an array at one index of the leading axes that it broadcasts to."""
    axes = array.ndim - core
    if axes <= 0:
        return array
    return np.asarray(array[_place_in(array.shape[:axes], lead)])


def _place_in(shape: tuple[int, ...], lead: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the index into leading axes of this shape that broadcasts to `lead`."""
    return tuple(k if size > 1 else 0 for k, size in zip(lead[len(lead) - len(shape) :], shape, strict=True))


def _link_name_at(names: Any, lead: tuple[int, ...]) -> Any:
    """Returns the link's name at one state of the batch."""
    for k in _place_in(lead_of("link", names), lead):
        names = names[k]
    return names


def _each_vector(wrenches: Sequence[Wrench], change: Callable[[Array], Array]) -> list[Wrench]:
    """Returns the wrenches with each of their vectors changed."""
    return [
        msgspec.structs.replace(w, **{part: change(np.asarray(getattr(w, part), float)) for part in _WRENCH_PARTS})
        for w in wrenches
    ]


def _describe(
    row: Query | Computation, number: NotFinite, names: Mapping[str, Sequence[str]]
) -> tuple[str, tuple[int, ...]]:
    """Returns which number of an answer is not finite, as text, and its state of the batch."""
    intermediate_specs = row.intermediate_outputs if isinstance(row, Computation) else {}
    spec = {**row.outputs, **intermediate_specs}.get(number.output)
    dims = () if spec is None else spec.shape
    lead = number.index[: len(number.index) - len(dims)]
    place = _named_place(dims, number.index[len(lead) :], names)
    return f"{row.name} gives {number.output}{place} = {number.value}{_state_text(lead)}", lead


def _state_text(lead: tuple[int, ...]) -> str:
    return f" at state {list(lead)} of the batch" if lead else ""


def _entries(
    row: Query | Computation, inputs: Mapping[str, Any], names: Mapping[str, Sequence[str]]
) -> Iterator[_Entry]:
    """Yields the largest number of each input with numbers of a state, and of each wrench."""
    for name, value in inputs.items():
        if isinstance(value, np.ndarray) and value.size:
            index = tuple(int(k) for k in np.unravel_index(np.argmax(np.abs(value)), value.shape))
            place = _named_place(row.inputs[name].shape, index, names)
            yield _Entry(name + place, f"inputs.{name}", float(value[index]))
        elif row.inputs[name].kind == "wrenches":
            for number, wrench in enumerate(value):
                parts = {
                    part: np.abs(np.asarray(getattr(wrench, part), float)).max(initial=0.0) for part in _WRENCH_PARTS
                }
                part = max(parts, key=lambda name: parts[name])
                path = f"wrenches[{number}].{part}"
                yield _Entry(f"{path} on link '{wrench.link}'", f"inputs.{path}", float(parts[part]))


def _largest(entries: Iterable[_Entry]) -> _Entry:
    return max(entries, key=lambda entry: abs(entry.value))


def _overflow(text: str, largest: _Entry) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{text}: intermediate values overflow, and the largest input is {largest.name} = {largest.value:g}",
        path=largest.path,
    )


def _dimension_names(robot: Robot) -> dict[str, Sequence[str]]:
    """Returns the names along each dimension, by its symbol."""
    configuration = robot.configuration
    return {
        "nq": configuration.position_names,
        "nv": configuration.velocity_names,
        "nr": robot.tree.rate_joints,
        "nm": robot.tree.moving_joints,
        "nl": robot.link_names,
        "nj": robot.all_joint_names,
    }


def _named_place(dims: Sequence[str | int], index: tuple[int, ...], names: Mapping[str, Sequence[str]]) -> str:
    """Returns the place of an entry as text: ` of joint 'elbow'`, ` of link 'hand' [2]`."""
    owners, rest = [], []
    for symbol, k in zip(dims, index[len(index) - len(dims) :], strict=False):
        axis_names = names.get(str(symbol))
        if axis_names is None:
            rest.append(k)
        else:
            owners.append(f"{'link' if symbol == 'nl' else 'joint'} '{axis_names[k]}'")
    return (f" of {' and '.join(owners)}" if owners else "") + (f" {rest}" if rest else "")

"""The types of the table: rows with their inputs, options, outputs, and kernels or functions.

`Spec` is an input or output, `Option` an option; `Query` and `Computation` are the two kinds of rows. `declaring` makes
them from annotated methods.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, Protocol

Kind = Literal[
    "plain",
    "position",
    "velocity",
    "acceleration",
    "effort",
    "momentum",
    "gain",
    "gravity",
    "wrenches",
    "duration",
    "payload",
    "overlay",
    "contacts",
    "motions",
    "residuals",
    "link",
    "directions",
]
"""The meaning of an input or output, which determines its treatment; names have no meaning:

    position                   joint positions, (nq,); the first input of this kind is the robot's position
    velocity, acceleration     of the joints, (nv,)
    effort, momentum           of the joints, (nv,), and the mass matrix: they scale with each joint's inertia
    gain                       of a controller
    gravity                    (3,); default: the robot's own
    wrenches                   external wrenches on links: `Wrench`; kernels get one six-vector per body
    duration                   a length of time
    payload                    a body fixed to a link: `Payload`
    overlay                    changed numbers of the robot: `Overlay`; kernels get its numbers
    contacts                   points of links that touch the ground: `Contact`
    motions                    of prescribed joints, by name: `GivenMotion`
    residuals                  one output for each formulation, by its name
    link                       a link's name, or lists of names as leading axes; kernels get (nl,), one-hot
    directions                 some of `DIRECTIONS` by name; kernels get (6,), 1 at each of them
    plain                      any other
"""

BY_NAME: frozenset[Kind] = frozenset({"link", "directions"})
"""Kinds of inputs given by names, which kernels get as one-hot vectors."""

DIRECTIONS = ("rx", "ry", "rz", "x", "y", "z")
"""Rotations of a point's link about its axes and translations of the point along them, in the order of [omega; v]."""


Bodies = Literal["links", "moving", "chosen"]
"""Bodies of a kernel's tree: one per link, including those behind fixed joints; one per movable joint, in the axes of
that joint's child link; or one per movable joint in the frames of least cost, on which the answer must not depend.
"""


PassivePart = Literal["damping", "friction", "armature", "springs"]
"""Passive joint properties: see `dynamics/passive.py`."""

EVERY_PART: tuple[PassivePart, ...] = typing.get_args(PassivePart)
"""All passive joint properties."""


class Variant(NamedTuple):
    """The additional inputs of a row's kernel.

    wrenches: external wrenches on the bodies. overlay: numbers of bodies and joints, which otherwise are constants.
    """

    wrenches: bool = False
    overlay: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its additional inputs."""
        return tuple(name for name, there in zip(self._fields, self, strict=True) if there)


WITHOUT_WRENCHES, WITH_WRENCHES = Variant(), Variant(wrenches=True)
"""The kernels without and with external wrenches."""


class Dimensions(Protocol):
    """Sizes by dimension symbol."""

    def __getitem__(self, symbol: str, /) -> int:
        """The size of one dimension."""


_OBJECTS = BY_NAME | {"wrenches", "payload", "contacts", "overlay"}
"""Kinds of inputs for which methods take objects or names."""


@dataclass(frozen=True)
class Spec:
    """An input or output: its core shape in dimension symbols, unit, a line of text, and its kind.

    `default` is the value of an omitted input; kinds such as gravity have their own. `scalar` marks inputs for which a
    number means a vector of equal numbers. `turned` marks outputs of vectors in link axes, which the `axes` option
    rotates. True: the last axis contains vectors in the axes of the row's link. Otherwise it names, for each axis after
    the first, whose axes these are: `row`, `column`, `parent`, or "" for none. `singular` is the reason why an output
    has no value, and is NaN, at some states; names of inputs in braces are replaced by their values.
    """

    shape: tuple[str | int, ...]
    unit: str
    text: str
    name: str = ""
    scalar: bool = False
    turned: bool | tuple[str, ...] = False
    kind: Kind = "plain"
    default: tuple[float, ...] | None = None
    singular: str = ""

    def __str__(self) -> str:
        """Returns shape with leading axes, unit and text; no shape for objects."""
        shape = "" if self.kind in _OBJECTS else f"({', '.join(map(str, ('...', *self.shape)))})"
        return "; ".join(filter(None, (", ".join(filter(None, (shape, self.unit))), self.text)))

    def dims(self, sizes: Dimensions) -> tuple[int, ...]:
        """Returns the core shape as numbers."""
        return tuple(size if isinstance(size, int) else sizes[size] for size in self.shape)


@dataclass(frozen=True)
class Names:
    """An output that lists the names of the entries along `dimension`.

    of: whose names: those of the `row`, its `column`, its `parent` or its `link`.
    """

    dimension: str
    of: str = "row"
    text: str = "the names of the rows"


Role = Literal["kernel", "axes", "rows", "passive", "plain"]
"""The effect of an option, which determines its treatment; names have no meaning:

    kernel   selects among a row's kernels
    passive  whether passive joint properties act
    axes     the axes of the outputs: `world`, or unchanged
    rows     names the rows of the result
    plain    any other: an argument of the function that computes the answer
"""


@dataclass(frozen=True)
class Means:
    """The description and role of an option."""

    text: str
    role: Role = "plain"


@dataclass(frozen=True)
class Local:
    """Marks a parameter that is not sent to a server, such as a progress callback."""


@dataclass(frozen=True)
class Option:
    """A keyword argument that is not an array. type: one of `choices`, a non-negative integer, a number, a list of
    names, or a flag.

    required: it has no default. role: its effect.
    """

    name: str
    default: Any
    type: Literal["choice", "whole", "number", "names", "flag"]
    choices: tuple[str, ...] = ()
    text: str = ""
    required: bool = False
    role: Role = "plain"

    @property
    def takes(self) -> str:
        """Returns a description of its allowed values."""
        if self.type == "choice":
            return " or ".join(f"'{choice}'" for choice in self.choices)
        if self.type == "flag":
            return "true or false"
        return {"whole": "a whole number, at least 0", "number": "a number", "names": "a list of names"}[self.type]

    def is_one(self, value: Any) -> bool:
        """Returns whether the value is allowed."""
        if self.type == "choice":
            return value in self.choices
        if self.type == "flag":
            return isinstance(value, bool)
        if self.type in ("whole", "number"):
            number = isinstance(value, Real) and not isinstance(value, bool)
            return number and (self.type == "number" or (isinstance(value, Integral) and int(value) >= 0))
        listed = not isinstance(value, str) and isinstance(value, Sequence)
        return (value is None and not self.required) or (listed and all(isinstance(n, str) for n in value))


@dataclass(frozen=True)
class Row:
    """One row of the table.

    name: of the method. summary: first line of its docstring. equation: the source of the answer. inputs, outputs: by
    their names on the wire. optional: inputs that may be omitted. options: by name. labels: outputs that are lists of
    names. result_type: the class of the result; None if there is a single output. parameters: of the method, in order,
    with the name of their input or option; None for parameters that are not sent.
    """

    name: str
    summary: str
    equation: str
    inputs: Mapping[str, Spec]
    optional: frozenset[str]
    options: Mapping[str, Option]
    outputs: Mapping[str, Spec]
    labels: Mapping[str, Names]
    result_type: type[Any] | None
    parameters: Mapping[str, str | None]

    @cached_property
    def required(self) -> tuple[str, ...]:
        """The required inputs."""
        return tuple(name for name in self.inputs if name not in self.optional)

    @cached_property
    def output(self) -> str | None:
        """The single output; None if the result has several, or labels."""
        return next(iter(self.outputs)) if self.result_type is None else None

    @cached_property
    def answers(self) -> tuple[str, ...]:
        """Labels and outputs."""
        return (*self.labels, *self.outputs)

    @cached_property
    def ordered(self) -> bool:
        """Whether arrays have entries of q or v, so that a request may contain an order of joints."""
        specs = (*self.inputs.values(), *self.outputs.values())
        return any(symbol in ("nq", "nv") for spec in specs for symbol in spec.shape)

    def first(self, kind: Kind) -> str | None:
        """Returns the first input of a kind."""
        return next(iter(self.of_kind(kind)), None)

    def of_kind(self, kind: Kind) -> tuple[str, ...]:
        """Returns the names of the inputs of a kind."""
        return tuple(name for name, spec in self.inputs.items() if spec.kind == kind)

    def option(self, role: Role) -> str | None:
        """Returns the option with that role."""
        return next((option.name for option in self.options.values() if option.role == role), None)

    @cached_property
    def leaves_out(self) -> str | None:
        """The option that disables passive joint properties; None if the answer does not depend on them."""
        return self.option("passive")

    def result(self, outputs: Mapping[str, Any]) -> Any:
        """Returns the result of the method: the array if there is one output, otherwise the result class."""
        if self.result_type is None:
            ((name, spec),) = self.outputs.items()
            return dict(outputs) if spec.kind == "residuals" else outputs[name]
        return self.result_type(**outputs)


Growth = Literal[1, 3]
"""Exponent of the number of bodies in the cost: 1 for sweeps, 3 for factoring or multiplying matrices."""


@dataclass(frozen=True)
class Query(Row):
    """A row computed by kernels, for one state or a batch.

    kernels: functions under `dynamics/`, as `module.function`, by choice of `selector` (key "" without a selector).
    bodies: the bodies of the kernels' tree. control: used by control loops, so that `prepare` compiles its kernels.
    inverts: choices that need the inverse mass matrix. grows: by choice, the exponent of the number of bodies in the
    cost of a state, in addition to writing the outputs; see `api.cost`. alone: choices without an answer for robots
    with mimic joints. passive: by choice, the passive joint properties on which the answer depends.
    """

    kernels: Mapping[str, str]
    bodies: Bodies
    control: bool
    inverts: frozenset[str]
    alone: frozenset[str]
    grows: Mapping[str, Growth]
    passive: Mapping[str, frozenset[PassivePart]]

    @cached_property
    def selector(self) -> str | None:
        """The option that selects the kernel; None if there is a single kernel."""
        return self.option("kernel")

    @cached_property
    def axes(self) -> str | None:
        """The option for the axes of the outputs."""
        return self.option("axes")

    @cached_property
    def rows(self) -> str | None:
        """The option that selects rows."""
        return self.option("rows")

    @cached_property
    def selected(self) -> str | None:
        """The dimension of the rows that the option `rows` selects: the first of every output."""
        return None if self.rows is None else str(next(iter(self.outputs.values())).shape[0])

    @property
    def links(self) -> bool:
        """Whether the bodies of its kernels' tree are links."""
        return self.bodies == "links"

    @cached_property
    def pose(self) -> str | None:
        """The input with the robot's position: the first one of that kind."""
        return self.first("position")

    @cached_property
    def wrenches(self) -> str | None:
        """The input of external wrenches."""
        return self.first("wrenches")

    @cached_property
    def overlay(self) -> str | None:
        """The name of the overlay input."""
        return self.first("overlay")

    @property
    def constant(self) -> bool:
        """Whether the answer is the same at every state, so that nothing is compiled."""
        return not self.inputs

    @cached_property
    def defaults(self) -> tuple[Any, ...]:
        """The defaults of `others`; None for inputs."""
        return tuple(self.options[n].default if n in self.options else None for n in self.others)

    @cached_property
    def by_name(self) -> tuple[str, ...]:
        """The optional inputs that are given by name."""
        return tuple(name for name in self.others if name in self.optional and self.inputs[name].kind in BY_NAME)

    @cached_property
    def others(self) -> tuple[str, ...]:
        """The optional inputs and the options, in the order in which the method passes them on."""
        return tuple(name for name in self.parameters if name not in self.required)

    def arguments(self, given: Sequence[Any], others: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns inputs and options by name.

        Args:
            given: The required inputs, in order.
            others: The optional inputs and the options, in order.
        """
        inputs: dict[str, Any] = dict(zip(self.required, given, strict=True))
        options: dict[str, Any] = {}
        if not self.options and all(value is None for value in others):  # the most frequent call
            return inputs, options
        for name, value in zip(self.others, others, strict=True):
            (options if name in self.options else inputs)[name] = value
        return inputs, options


@dataclass(frozen=True)
class Computation(Row):
    """A row of a long computation.

    robot: whether it is about a robot, otherwise it needs none. run: the function that computes the whole answer from
    the robot, if any, and the method's arguments, as `module.function` of this package, like the next two. parts: a
    generator that divides a call into requests; it gets the outputs of each request and returns the whole result. The
    server keeps no state between the requests, so a caller that stops has cancelled the rest. None: one request. part:
    answers one of these requests from robot, inputs and options, with outputs by name; None: `run` does. between:
    outputs that only the parts have. asks: the rows of `QUERIES` that it uses, whose kernels `prepare` compiles.
    """

    robot: bool
    run: str
    parts: str | None
    part: str | None
    between: Mapping[str, Spec]
    asks: tuple[str, ...]
    cost: str

    def function(self, which: Literal["run", "parts", "part", "cost"]) -> Callable[..., Any]:
        """Returns the function that a field names, imported on first use."""
        module, _, name = (getattr(self, which) or "").rpartition(".")
        found: Callable[..., Any] = getattr(import_module(f"dyn_service.{module}"), name)
        return found

    def arguments(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns inputs and options by their names on the wire.

        Args:
            given: The method's arguments.
        """
        inputs: dict[str, Any] = {}
        options: dict[str, Any] = {}
        for parameter, value in given.items():
            name = self.parameters[parameter]
            if name is not None:
                (options if name in self.options else inputs)[name] = value
        return inputs, options

"""The types of the table: rows with their inputs, options, outputs, and kernels or functions.

`Spec` is an input or output, `Option` an option; `Query` and `Computation` are the two kinds of rows.

**Decorators** turn annotated methods into rows of the table.

A parameter with a `Spec` in its annotation is an input. A parameter without is an option: its type is a `Literal` of
choices, or an integer, number, flag or list of names; `OptionSpec` contains its text. Parameters marked `Local` are not
sent. The return annotation is the output, or a class with a field for each output; a field without a `Spec` labels the
rows of the others, see `Names`.

`query` declares rows computed by kernels, state by state; their methods have `out` and, unless the result is the same
at every state, `workers`, see `api.outputs`. `computation` declares long computations, whose answers come over a socket
in parts. The decorators return the method itself, with the lists of inputs and outputs in its docstring.
"""

from __future__ import annotations

import inspect
import reprlib
import typing
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from dyn_service.errors import InvalidArgumentError

Kind = Literal[
    "plain",
    "position",
    "velocity",
    "acceleration",
    "effort",
    "momentum",
    "load",
    "gain",
    "weight",
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
    load                       of an output: loads of joints, or their efforts by a matrix other than the mass matrix
    gain                       of a controller
    weight                     of the entries of joint efforts or accelerations, (nv,)
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

PASSIVE_PARTS: tuple[PassivePart, ...] = typing.get_args(PassivePart)
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
        return tuple(name for name, is_given in zip(self._fields, self, strict=True) if is_given)


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
    number means a vector of equal numbers. `rotated` marks outputs of vectors in link axes, which the `axes` option
    rotates. True: the last axis contains vectors in the axes of the row's link. Otherwise it names, for each axis after
    the first, whose axes these are: `row`, `column`, `parent`, or "" for none. `singular` is the reason why an output
    has no value, and is NaN, at some states; names of inputs in braces are replaced by their values. `singular_by` is
    the choice of kernel to which this applies; "": all.
    """

    shape: tuple[str | int, ...]
    unit: str
    text: str
    name: str = ""
    scalar: bool = False
    rotated: bool | tuple[str, ...] = False
    kind: Kind = "plain"
    default: tuple[float, ...] | None = None
    singular: str = ""
    singular_by: str = ""

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
class OptionSpec:
    """The description and role of an option."""

    text: str
    role: Role = "plain"


@dataclass(frozen=True)
class Local:
    """Marks a parameter that is not sent to a server, such as a progress callback or `out`."""


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
    def allowed(self) -> str:
        """Returns a description of its allowed values."""
        if self.type == "choice":
            return " or ".join(f"'{choice}'" for choice in self.choices)
        if self.type == "flag":
            return "true or false"
        return {"whole": "a whole number, at least 0", "number": "a number", "names": "a list of names"}[self.type]

    def accepts(self, value: Any) -> bool:
        """Returns whether the value is allowed."""
        if self.type == "choice":
            return value in self.choices
        if self.type == "flag":
            # Not `value in (True, False)`: 1 and numpy.True_ equal True, and are refused.
            return isinstance(value, bool)
        if self.type in ("whole", "number"):
            # A bool is a number in Python, and would be taken for 0 or 1.
            number = isinstance(value, Real) and not isinstance(value, bool)
            return number and (self.type == "number" or (isinstance(value, Integral) and int(value) >= 0))
        # A text is a sequence of texts, so a forgotten list would name each letter.
        is_list = not isinstance(value, str) and isinstance(value, Sequence)
        return (value is None and not self.required) or (is_list and all(isinstance(n, str) for n in value))


@dataclass(frozen=True)
class Row:
    """One row of the table.

    name: of the method. summary: first line of its docstring. equation: the source of the answer. inputs, outputs: by
    their names on the wire. optional: inputs that may be omitted. options: by name. labels: outputs that are lists of
    names. result_type: the class of the result; None if there is a single output. parameters: of the method, in order,
    with the name of their input or option; None for parameters that are not sent. theory: whether it is a form of the
    equations for study; such rows have a section of their own in the reference and in `help(Robot)`.
    """

    name: str
    summary: str
    equation: str
    theory: bool
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
    def result_names(self) -> tuple[str, ...]:
        """Names of all fields of the result: labels, then outputs."""
        return (*self.labels, *self.outputs)

    @cached_property
    def has_joint_order(self) -> bool:
        """Whether an array has entries of q or v, so that a request may specify the order of joints."""
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
    def rows_option(self) -> str | None:
        """The option that selects rows."""
        return self.option("rows")

    @cached_property
    def row_dimension(self) -> str | None:
        """The dimension whose entries `rows_option` selects: the first of every output."""
        return None if self.rows_option is None else str(next(iter(self.outputs.values())).shape[0])

    @cached_property
    def has_loads(self) -> bool:
        """Whether an input or output is an effort or load of joints, which closed loops change."""
        return any(spec.kind in ("effort", "load") for spec in (*self.inputs.values(), *self.outputs.values()))

    @cached_property
    def passive_option(self) -> str | None:
        """The option that disables passive joint properties; None if the answer does not depend on them."""
        return self.option("passive")

    def result(self, outputs: Mapping[str, Any]) -> Any:
        """Returns the result of the method: the array if there is one output, otherwise the result class."""
        if self.result_type is None:
            ((name, spec),) = self.outputs.items()
            return dict(outputs) if spec.kind == "residuals" else outputs[name]
        return self.result_type(**outputs)


CostExponent = Literal[1, 3]
"""Exponent of the number of bodies in the cost: 1 for sweeps, 3 for factoring or multiplying matrices."""


@dataclass(frozen=True)
class Query(Row):
    """A row computed by kernels, for one state or a batch.

    kernels: functions under `dynamics/`, as `module.function`, by choice of `kernel_option`; key "": no option.
    bodies: the bodies of the kernels' tree. control: whether control loops use it, so that `prepare` compiles it.
    inverts_mass_matrix: choices that need the inverse mass matrix. cost_exponent: by choice, the power of the number of
    bodies with which the cost of a state grows, in addition to writing the outputs; see `api.cost`. rejects_mimic:
    choices without an answer for robots with mimic joints. passive: by choice, the passive joint properties on which
    the answer depends. inertia: choices whose answer depends on the inertia of bodies. parts: the rows of a list, see
    `api.lists`; () for a row of the table.
    """

    kernels: Mapping[str, str]
    bodies: Bodies
    control: bool
    inverts_mass_matrix: frozenset[str]
    rejects_mimic: frozenset[str]
    cost_exponent: Mapping[str, CostExponent]
    passive: Mapping[str, frozenset[PassivePart]]
    inertia: frozenset[str]
    parts: tuple[Query, ...] = ()

    def result(self, outputs: Mapping[str, Any]) -> Any:
        """Returns the result of the method; of a list, the result of each row by its name."""
        if not self.parts:
            return super().result(outputs)
        return {p.name: p.result({name: outputs[f"{p.name}.{name}"] for name in p.result_names}) for p in self.parts}

    def outputs_of(self, result: Any) -> dict[str, Any]:
        """Returns labels and outputs by name, from a result of the method."""
        if not self.parts:
            return {self.output: result} if self.output else {name: getattr(result, name) for name in self.result_names}
        return {f"{p.name}.{name}": x for p in self.parts for name, x in p.outputs_of(result[p.name]).items()}

    def choices(self, method: str) -> list[tuple[Query, str]]:
        """Returns the rows of this list, each with its choice of kernel: the list's if it has that option."""
        return choices_of(self.parts, self.options, method)

    def method(self, options: Mapping[str, Any]) -> str:
        """Returns the choice of kernel among these options; the default if it is left out."""
        default = next(iter(self.kernels))
        method: str = default if self.kernel_option is None else options.get(self.kernel_option, default)
        return method

    def in_world_axes(self, options: Mapping[str, Any]) -> bool:
        """Returns whether all options of a call ask for vectors in world axes."""
        return self.axes_option is not None and options[self.axes_option] == "world"

    @cached_property
    def kernel_option(self) -> str | None:
        """The option that selects the kernel; None if there is a single kernel."""
        return self.option("kernel")

    @cached_property
    def axes_option(self) -> str | None:
        """The option for the axes of the outputs."""
        return self.option("axes")

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
    def argument_defaults(self) -> tuple[Any, ...]:
        """The defaults of `optional_arguments`; None for inputs."""
        return tuple(self.options[n].default if n in self.options else None for n in self.optional_arguments)

    @cached_property
    def by_name(self) -> tuple[str, ...]:
        """The optional inputs that are given by name."""
        return tuple(
            name for name in self.optional_arguments if name in self.optional and self.inputs[name].kind in BY_NAME
        )

    @cached_property
    def optional_arguments(self) -> tuple[str, ...]:
        """The optional inputs and the options, in the order of the method's parameters."""
        return tuple(name for name, wire_name in self.parameters.items() if wire_name and name not in self.required)

    def named(self, required: Sequence[Any], optional: Sequence[Any]) -> dict[str, Any]:
        """Returns the method's arguments by name; see `arguments`."""
        return dict(zip((*self.required, *self.optional_arguments), (*required, *optional), strict=True))

    def arguments(self, required: Sequence[Any], optional: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns inputs and options by name.

        Args:
            required: The required inputs, in order.
            optional: The optional inputs and the options, in order.
        """
        inputs: dict[str, Any] = dict(zip(self.required, required, strict=True))
        options: dict[str, Any] = {}
        if not self.options and all(value is None for value in optional):  # the most frequent call
            return inputs, options
        for name, value in zip(self.optional_arguments, optional, strict=True):
            (options if name in self.options else inputs)[name] = value
        return inputs, options


@dataclass(frozen=True)
class Computation(Row):
    """A row of a long computation.

    The functions that answer it are in `engine.computations`.

    robot: whether it needs a robot. divided: whether a client divides a call into several requests, see
    `simulation.parts`. intermediate_outputs: outputs of requests that are not in the result. queries: the rows of
    `QUERIES` that it uses, whose kernels `prepare` compiles.
    """

    robot: bool
    divided: bool
    intermediate_outputs: Mapping[str, Spec]
    queries: tuple[str, ...]

    def arguments(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns inputs and options by their names on the wire.

        Args:
            arguments: The method's arguments.
        """
        inputs: dict[str, Any] = {}
        options: dict[str, Any] = {}
        for parameter, value in arguments.items():
            name = self.parameters[parameter]
            if name is not None:
                (options if name in self.options else inputs)[name] = value
        return inputs, options


def choices_of(parts: Iterable[Query], options: Container[str], method: str) -> list[tuple[Query, str]]:
    """Returns rows, each with its choice of kernel: `method` if its option is one of the list's options."""
    return [(p, method if p.kernel_option in options else next(iter(p.kernels))) for p in parts]


LISTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"whole_body_terms": ("mass_matrix", "bias_forces", "point_motion")}
)
"""Lists of rows with a name of their own. "whole_body_terms": M, h and the J and J-dot v of contact points."""

_QUERIES: dict[str, Query] = {}
QUERIES: Mapping[str, Query] = MappingProxyType(_QUERIES)
"""The rows computed by kernels, by name, in the order of declaration."""

_COMPUTATIONS: dict[str, Computation] = {}
COMPUTATIONS: Mapping[str, Computation] = MappingProxyType(_COMPUTATIONS)
"""The rows of long computations, by name, in the order of declaration. The table consists of these and `QUERIES`."""

_F = TypeVar("_F", bound=Callable[..., Any])


def query(
    *,
    equation: str,
    kernel: str | Mapping[str, str],
    bodies: Bodies = "chosen",
    control: bool = True,
    inverts_mass_matrix: bool | tuple[str, ...] = False,
    rejects_mimic: bool | tuple[str, ...] = False,
    cost_exponent: CostExponent | Mapping[str, CostExponent] = 1,
    passive: tuple[PassivePart, ...] | Mapping[str, tuple[PassivePart, ...]] = (),
    inertia: bool | tuple[str, ...] = True,
    theory: bool = False,
) -> Callable[[_F], _F]:
    """Declares a method as a row computed by kernels.

    Args:
        equation: The source of the answer: document and equation numbers.
        kernel: `module.function` under `dynamics/`, or one per choice of an option, its default first.
        bodies: The bodies of the function's tree.
        control: Whether control loops use it, so that `prepare` compiles its kernels.
        inverts_mass_matrix: Whether it needs the inverse mass matrix, and has no answer for robots with massless
            moving branches; or the choices of kernel for which this holds.
        rejects_mimic: Whether it has no answer for robots with mimic joints; or the choices of kernel for which this
            holds.
        cost_exponent: The exponent of the number of bodies in its cost; or one by choice of kernel.
        passive: The passive joint properties on which its answer depends; or these by choice of kernel. If there are
            any, the method needs an option to disable them, see `arguments.Passive`.
        inertia: Of a method with an overlay: whether its answer depends on the inertia of bodies; or the choices of
            kernel for which this holds.
        theory: Whether it is a form of the equations for study.
    """

    def declare(method: _F) -> _F:
        kernels = {"": kernel} if isinstance(kernel, str) else dict(kernel)
        row = _row(method, equation, theory)
        overlaid = any(spec.kind == "overlay" for spec in row["inputs"].values())
        inverts, rejects, depends = (
            frozenset(kernels if choices is True else choices or ())
            for choices in (inverts_mass_matrix, rejects_mimic, overlaid and inertia)
        )
        row["options"] = MappingProxyType({n: _with_role(o, kernels) for n, o in row["options"].items()})
        exponents = cost_exponent if isinstance(cost_exponent, Mapping) else dict.fromkeys(kernels, cost_exponent)
        passive_parts = passive if isinstance(passive, Mapping) else dict.fromkeys(kernels, passive)
        query_row = Query(
            **row,
            kernels=MappingProxyType(kernels),
            bodies=bodies,
            control=control,
            inverts_mass_matrix=inverts,
            rejects_mimic=rejects,
            cost_exponent=MappingProxyType(dict(exponents)),
            passive=MappingProxyType({name: frozenset(parts) for name, parts in passive_parts.items()}),
            inertia=depends,
        )
        # While the table is imported, so that no call meets an inconsistent row.
        _check(query_row)
        _QUERIES[query_row.name] = query_row
        return method

    return declare


_KINDS_WITH_DEFAULTS: frozenset[Kind] = frozenset({"gravity", "wrenches", "overlay"})
"""Kinds of inputs with their own defaults."""


def _with_role(option: Option, kernels: Mapping[str, str]) -> Option:
    """Returns the option, with the role `kernel` if its choices are the kernels."""
    return replace(option, role="kernel") if option.choices and set(option.choices) == set(kernels) else option


def _check(row: Query) -> None:
    """Checks a declaration.

    Raises:
        TypeError: The declaration is inconsistent.
    """

    def require(holds: bool, rule: str) -> None:
        if not holds:
            raise TypeError(f"the row {row.name}: {rule}")

    default = None if row.kernel_option is None else row.options[row.kernel_option].default
    require((len(row.kernels) == 1) == (row.kernel_option is None), "several kernels need one option with their names")
    require(default is None or default == next(iter(row.kernels)), "the first kernel is the option's default")
    has_parameter_names = all(name in (p, None) for p, name in row.parameters.items())
    require(has_parameter_names, "inputs of kernels have the names of the parameters")
    required = [name for name in row.inputs if name not in row.optional]
    require(list(row.inputs)[: len(required)] == required, "required inputs precede optional ones")
    undefined = {row.inputs[name].kind for name in row.optional if row.inputs[name].default is None}
    require(
        undefined <= _KINDS_WITH_DEFAULTS, f"optional inputs need a default, except {', '.join(_KINDS_WITH_DEFAULTS)}"
    )
    plain = [option.name for option in row.options.values() if option.role == "plain"]
    require(row.cost_exponent.keys() == row.kernels.keys(), "`cost_exponent` must have the names of the kernels")
    require(row.passive.keys() == row.kernels.keys(), "`passive` must have the names of the kernels")
    depends = any(row.passive.values())
    require(
        depends == (row.option("passive") is not None),
        "rows that depend on passive properties, and only these, need an option with the role `passive`",
    )
    require(row.constant or not plain, f"no kernel reads the options {', '.join(plain)}: give them a role")


def computation(
    *,
    equation: str,
    robot: bool = True,
    divided: bool = False,
    queries: tuple[str, ...] = (),
    on_wire: tuple[Option, ...] = (),
    intermediate_outputs: Mapping[str, Spec] | None = None,
    theory: bool = False,
) -> Callable[[_F], _F]:
    """Declares a method as a row of a long computation; see the fields of `Computation`.

    Args:
        equation: The source of the answer.
        robot: Whether it needs a robot.
        divided: Whether a client divides a call into several requests.
        queries: The rows of `QUERIES` that it uses.
        on_wire: Options that only requests have.
        intermediate_outputs: Outputs of requests that are not in the result.
        theory: Whether it is a form of the equations for study.
    """

    def declare(method: _F) -> _F:
        row = _row(method, equation, theory)
        row["options"] = MappingProxyType({**row["options"], **{option.name: option for option in on_wire}})
        _COMPUTATIONS[method.__name__] = Computation(
            **row,
            robot=robot,
            divided=divided,
            intermediate_outputs=MappingProxyType(dict(intermediate_outputs or {})),
            queries=queries,
        )
        return method

    return declare


def _row(method: Callable[..., Any], equation: str, theory: bool) -> dict[str, Any]:
    """Returns the fields of any row, from the method."""
    hints = typing.get_type_hints(method, include_extras=True)
    inputs: dict[str, Spec] = {}
    optional: set[str] = set()
    options: dict[str, Option] = {}
    names: dict[str, str | None] = {}
    for name, parameter in list(inspect.signature(method).parameters.items())[1:]:
        spec = _metadata(hints[name], Spec)
        left_out = parameter.default is not inspect.Parameter.empty
        if spec is not None:
            names[name] = on_wire = spec.name or name
            inputs[on_wire] = spec
            optional |= {on_wire} if left_out else set()
        elif _metadata(hints[name], Local) is not None:
            names[name] = None
        else:
            names[name] = name
            options[name] = _option(name, hints[name], parameter)
    outputs, labels, result_type = _answer(method.__name__, hints["return"])
    if result_type is not None:
        # The repr of a dataclass prints all numbers: megabytes for a batch.
        result_type.__repr__ = _brief  # type: ignore[assignment]  # a method of any class
        # Without this, unpacking raises a TypeError that names neither fields nor order.
        if not hasattr(result_type, "__iter__"):
            result_type.__iter__ = _not_unpacked
    text = inspect.getdoc(method) or ""
    takes = [f"    {name}: {inputs[key]}" for name, key in names.items() if key in inputs]
    gives = [f"    {name}: {spec}" for name, spec in outputs.items()]
    gives[:0] = [f"    {name}: {label.text}" for name, label in labels.items()]
    lists = [f"{title}:\n" + "\n".join(lines) for title, lines in (("Inputs", takes), ("Outputs", gives)) if lines]
    # Written once, in the annotations: `help` and the reference show the same shapes and units.
    method.__doc__ = "\n\n".join([text, *lists])
    return {
        "name": method.__name__,
        "summary": text.partition("\n")[0],
        "equation": equation,
        "theory": theory,
        "inputs": MappingProxyType(inputs),
        "optional": frozenset(optional),
        "options": MappingProxyType(options),
        "outputs": MappingProxyType(outputs),
        "labels": MappingProxyType(labels),
        "result_type": result_type,
        "parameters": MappingProxyType(names),
    }


def _brief(self: Any) -> str:
    """Returns each output with its shape, unit and first entries, without outputs that are None."""
    hints = typing.get_type_hints(type(self), include_extras=True)
    lines = []
    for name, hint in hints.items():
        value, spec = getattr(self, name, None), _metadata(hint, Spec)
        if value is None:
            continue
        if isinstance(value, (str, int)):
            lines.append(f"{name}: {value}")
            continue
        if spec is None:
            lines.append(f"{name}: {len(value)} names, {reprlib.repr(value)}")
            continue
        array = np.asarray(value)
        first = ", ".join(f"{x:.4g}" for x in array.flat[:4]) + (", ..." if array.size > 4 else "")
        lines.append(f"{name}: {array.shape} {spec.unit}: {first}" if array.ndim else f"{name}: {first} {spec.unit}")
    return "\n    ".join([f"{type(self).__name__}(", *lines]) + ")"


def _not_unpacked(self: Any) -> Any:
    """Refuses to unpack a result of many arrays."""
    names = [field.name for field in fields(self)]
    raise InvalidArgumentError(f"{type(self).__name__} does not unpack: its attributes are {', '.join(names)}")


def _answer(method: str, answer: Any) -> tuple[dict[str, Spec], dict[str, Names], type[Any] | None]:
    """Returns outputs, labels and result class of a return annotation."""
    single = _metadata(answer, Spec)
    if single is not None:
        return {single.name: single}, {}, None
    hints = typing.get_type_hints(answer, include_extras=True)
    names = [f.name for f in fields(answer)] if is_dataclass(answer) else list(getattr(answer, "_fields", ()))
    outputs = {name: spec for name in names if (spec := _metadata(hints[name], Spec)) is not None}
    if not outputs:
        raise TypeError(f"{method}: the return annotation declares no outputs")
    first = next(iter(outputs.values()))
    # A text or whole number describes the whole result, not its rows.
    label_names = [name for name in names if name not in outputs and hints[name] not in (str, int)]
    labels = {name: _metadata(hints[name], Names) or Names(str(first.shape[0])) for name in label_names}
    return outputs, labels, answer


def _option(name: str, hint: Any, parameter: inspect.Parameter) -> Option:
    means = _metadata(hint, OptionSpec) or OptionSpec("")
    bare = typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    choices = typing.get_args(bare) if typing.get_origin(bare) is Literal else ()
    kinds: dict[Any, Literal["whole", "number", "flag"]] = {int: "whole", float: "number", bool: "flag"}
    # None may be a default, so only the parameter tells whether there is one.
    required = parameter.default is parameter.empty
    return Option(
        name,
        None if required else parameter.default,
        "choice" if choices else kinds.get(bare, "names"),
        choices,
        means.text,
        required,
        means.role,
    )


_M = TypeVar("_M")


def _metadata(hint: Any, kind: type[_M]) -> _M | None:
    """Returns the metadata of that class in an annotation."""
    return next((mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, kind)), None)

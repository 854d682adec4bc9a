"""What a row of the table says: its inputs, options and outputs, and which kernel or function answers it.

`Spec` is one input or output, `Option` one option; `Query` and `Computation` are the two kinds of row. They are made
from annotated methods, see `declaring`.
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
"""What an input or output means, and so how it is treated, whatever its name:

    position                   where the joints stand, (nq,); the first input of this kind is where the robot stands
    velocity, acceleration     of the joints, (nv,)
    effort, momentum           of the joints, (nv,), and the mass matrix: they scale with what each joint moves
    gain                       of a controller
    gravity                    (3,), the robot's own where it is left out
    wrenches                   external wrenches on links, `Wrench` in and one six-vector per body to the kernel
    duration                   a length of time
    payload                    a body that a link carries, `Payload`
    overlay                    changed numbers of the robot, an `Overlay` as input and its numbers for the kernel
    contacts                   points of links at which the ground pushes, `Contact`
    motions                    of joints that move as given, by name: `GivenMotion`
    residuals                  one output for each formulation, by its name
    link                       a link by its name, or lists of these as leading axes; to the kernel (nl,), 1 at it
    directions                 some of `DIRECTIONS` by their names; to the kernel (6,), 1 at each of them
    plain                      none of these
"""

BY_NAME: frozenset[Kind] = frozenset({"link", "directions"})
"""The kinds of input that are given by name, and reach kernels as numbers: 1 for what is named and 0 for the rest."""

DIRECTIONS = ("rx", "ry", "rz", "x", "y", "z")
"""In which a point's link can turn, about its axes, and the point can move, along them: the order of [omega; v]."""


Bodies = Literal["links", "moving", "chosen"]
"""What the bodies of a kernel's tree are: one per link, fixed joints included; one per movable joint, in the axes of
that joint's child link; or the same in whichever frames cost least, which an answer must not depend on.
"""


PassivePart = Literal["damping", "friction", "armature", "springs"]
"""What joints do by themselves: see `dynamics/passive.py`."""

EVERY_PART: tuple[PassivePart, ...] = typing.get_args(PassivePart)
"""All of it."""


class Variant(NamedTuple):
    """Of a row's kernel, what it takes beside what the row requires.

    wrenches: external wrenches on the bodies. overlay: the numbers of its bodies and joints, which else are constants.
    """

    wrenches: bool = False
    overlay: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """What of it there is."""
        return tuple(name for name, there in zip(self._fields, self, strict=True) if there)


PLAIN, PUSHED = Variant(), Variant(wrenches=True)
"""The kernel that takes nothing else, and that with external wrenches."""


class Dimensions(Protocol):
    """Sizes by dimension symbol."""

    def __getitem__(self, symbol: str, /) -> int:
        """The size of one dimension."""


_OBJECTS = BY_NAME | {"wrenches", "payload", "contacts", "overlay"}
"""Kinds of inputs for which methods take objects or names."""


@dataclass(frozen=True)
class Spec:
    """An input or output: its core shape in dimension symbols, unit, a line of text, and its kind.

    `default` is what an input that may be left out is then, but for kinds that say it themselves, such as gravity.
    `scalar` marks inputs for which one number stands for a vector of equal numbers; `turned` marks outputs made of
    vectors in link axes, which the `axes` option turns. True: its last axis holds vectors in the axes of the row's
    link. Else it says of each axis after the first whose axes these are: `row`, `column`, `parent`, "" for none.
    `singular` says, of an output that is NaN at states at which it has no value, why it has none; what stands there in
    braces is what was given for that input.
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
        """Shape with leading axes, unit, and text; of an object no shape."""
        shape = "" if self.kind in _OBJECTS else f"({', '.join(map(str, ('...', *self.shape)))})"
        return "; ".join(filter(None, (", ".join(filter(None, (shape, self.unit))), self.text)))

    def dims(self, sizes: Dimensions) -> tuple[int, ...]:
        """The core shape in numbers."""
        return tuple(size if isinstance(size, int) else sizes[size] for size in self.shape)


@dataclass(frozen=True)
class Names:
    """An output that is a list of names: what the entries along `dimension` are called.

    of: which of the names that they have: those of the `row`, of its `column`, of its `parent`, of its `link`.
    """

    dimension: str
    of: str = "row"
    text: str = "the names of the rows"


Role = Literal["kernel", "axes", "rows", "passive", "plain"]
"""What an option does, and so how it is treated, whatever its name:

    kernel   chooses among a row's kernels
    passive  says whether what joints do by themselves acts, or the bare tree answers
    axes     says in which axes outputs stand: `world`, or else as they are
    rows     names the rows of the answer that are wanted
    plain    none of these: for the function that answers to read
"""


@dataclass(frozen=True)
class Means:
    """What an option is for. role: what it does."""

    text: str
    role: Role = "plain"


@dataclass(frozen=True)
class Local:
    """Marks a parameter that is not sent to a server, such as a progress callback."""


@dataclass(frozen=True)
class Option:
    """A keyword that is no array. type: one of `choices`, a whole number that is not negative, a number, names, or a
    flag, which is true or false.

    required: it has no default. role: what it does.
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
        """A description of its allowed values."""
        if self.type == "choice":
            return " or ".join(f"'{choice}'" for choice in self.choices)
        if self.type == "flag":
            return "true or false"
        return {"whole": "a whole number, at least 0", "number": "a number", "names": "a list of names"}[self.type]

    def is_one(self, value: Any) -> bool:
        """Whether it may be this."""
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

    name: the method's. summary: the first line of its docstring. equation: where the answer comes from. inputs,
    outputs: by their names on the wire. optional: the inputs that may be left out. options: by name. labels: outputs
    that are lists of names. result_type: what holds the outputs; None where there is one. parameters: the method's, in
    order, each with the input or option that it is; None is one that stays on the caller's side.
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
        """The inputs that may not be left out."""
        return tuple(name for name in self.inputs if name not in self.optional)

    @cached_property
    def output(self) -> str | None:
        """The one output; None where a result holds several, or labels."""
        return next(iter(self.outputs)) if self.result_type is None else None

    @cached_property
    def answers(self) -> tuple[str, ...]:
        """Labels and outputs."""
        return (*self.labels, *self.outputs)

    @cached_property
    def ordered(self) -> bool:
        """Whether it has arrays with the entries of q or v: a request may then say in which order the joints are."""
        specs = (*self.inputs.values(), *self.outputs.values())
        return any(symbol in ("nq", "nv") for spec in specs for symbol in spec.shape)

    def first(self, kind: Kind) -> str | None:
        """The first input of a kind."""
        return next(iter(self.of_kind(kind)), None)

    def of_kind(self, kind: Kind) -> tuple[str, ...]:
        """The names of the inputs of a kind."""
        return tuple(name for name, spec in self.inputs.items() if spec.kind == kind)

    def option(self, role: Role) -> str | None:
        """The option with that role."""
        return next((option.name for option in self.options.values() if option.role == role), None)

    @cached_property
    def leaves_out(self) -> str | None:
        """The option that leaves out what joints do by themselves; None where the answer does not depend on it."""
        return self.option("passive")

    def result(self, outputs: Mapping[str, Any]) -> Any:
        """The outputs as the method returns them: the array where there is one, else the named result."""
        if self.result_type is None:
            ((name, spec),) = self.outputs.items()
            return dict(outputs) if spec.kind == "residuals" else outputs[name]
        return self.result_type(**outputs)


Growth = Literal[1, 3]
"""A sweep goes along the bodies once; a matrix of them is factored, or multiplied by another, in n^3 steps."""


@dataclass(frozen=True)
class Query(Row):
    """A row that kernels answer, one state or many at once.

    kernels: the function under `dynamics/`, as `module.function`, per choice of `selector` (key "": there is none).
    bodies: what the bodies of its kernels' tree are. control: control loops ask it, so its kernels are made before
    they do. inverts: the kernels' choices that need the mass matrix's inverse. grows: by choice, the power of the
    number of bodies with which the work for a state grows, beside what writing its outputs takes; see `api.cost`.
    alone: the kernels' choices that have each joint move by itself, and no answer where one follows another. passive:
    by choice, which parts of what joints do by themselves its answer depends on.
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
        """The option that chooses among the kernels; None where there is one kernel."""
        return self.option("kernel")

    @cached_property
    def axes(self) -> str | None:
        """The option that says in which axes outputs stand."""
        return self.option("axes")

    @cached_property
    def rows(self) -> str | None:
        """The option that names the rows that are wanted."""
        return self.option("rows")

    @cached_property
    def selected(self) -> str | None:
        """The dimension along which the rows stand that the option of `rows` names: the first of every output."""
        return None if self.rows is None else str(next(iter(self.outputs.values())).shape[0])

    @property
    def links(self) -> bool:
        """Whether the bodies of its kernels' tree are the links."""
        return self.bodies == "links"

    @cached_property
    def pose(self) -> str | None:
        """The input that says where the robot stands: the first of its positions."""
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
        """Whether the answer is the robot's alone, the same at every state: then there is nothing to compile."""
        return not self.inputs

    @cached_property
    def defaults(self) -> tuple[Any, ...]:
        """Of the optional inputs, None, and of the options, in the order in which the method hands them on."""
        return tuple(self.options[n].default if n in self.options else None for n in self.others)

    @cached_property
    def others(self) -> tuple[str, ...]:
        """The optional inputs and the options, in the order in which the method hands them on."""
        return tuple(name for name in self.parameters if name not in self.required)

    def arguments(self, given: Sequence[Any], others: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Inputs and options by name.

        Args:
            given: The required inputs, in order.
            others: The optional inputs and the options, in order.
        """
        inputs: dict[str, Any] = dict(zip(self.required, given, strict=True))
        options: dict[str, Any] = {}
        if not self.options and all(value is None for value in others):  # the common call: nothing else was given
            return inputs, options
        for name, value in zip(self.others, others, strict=True):
            (options if name in self.options else inputs)[name] = value
        return inputs, options


@dataclass(frozen=True)
class Computation(Row):
    """A row that takes long.

    robot: whether it is asked of a robot, else of the server itself. run: the function that gives the whole answer, of
    the robot, where there is one, and the method's arguments: `module.function` of this package, like the next two.
    parts: makes of one call the requests of its parts (a generator: what to ask next, from the outputs of the one
    before, and the whole in the end; nothing of it stays on the server in between, so a caller who stops has cancelled
    the rest); None: one request is all. part: answers one such request, of robot, inputs and options, with outputs by
    name; None: `run` does. between: outputs that only the parts have. asks: the rows of `QUERIES` that it asks, whose
    kernels `prepare` makes for it.
    """

    robot: bool
    run: str
    parts: str | None
    part: str | None
    between: Mapping[str, Spec]
    asks: tuple[str, ...]
    cost: str

    def function(self, which: Literal["run", "parts", "part", "cost"]) -> Callable[..., Any]:
        """The function that a field names; imported when it is first asked for."""
        module, _, name = (getattr(self, which) or "").rpartition(".")
        found: Callable[..., Any] = getattr(import_module(f"dyn_service.{module}"), name)
        return found

    def arguments(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Inputs and options by their names on the wire.

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

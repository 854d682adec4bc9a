"""How the table is declared: a method with annotations, and a decorator, become a row.

A parameter whose annotation carries a `Spec` is an input. One without is an option: its `Literal` names its choices,
or its type says what it is, with `Means` for its text; one marked `Local` stays on the caller's side. The return
annotation is the output, or a class whose fields are the outputs; a field without a `Spec` labels the rows of the
others, as its `Names` say. The docstring says what comes back.

`query` makes rows that a kernel answers, state by state; without inputs it asks for what is constant. `computation`
makes rows that take long: their answer is computed step by step, and comes over a socket in parts.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from importlib import import_module
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

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
    overlay                    what of the robot is otherwise than loaded, `Overlay` in and its numbers to the kernel
    contacts                   points of links at which the ground pushes, `Contact`
    motions                    of joints that move as given, by name: `GivenMotion`
    residuals                  one output for each formulation, by its name
    plain                      none of these
"""


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


@dataclass(frozen=True)
class Spec:
    """An input or output: its core shape in dimension symbols, unit, a line of text, and its kind.

    `default` is what an input that may be left out is then, but for kinds that say it themselves, such as gravity.
    `scalar` marks inputs for which one number stands for a vector of equal numbers; `turned` marks outputs made of
    vectors in link axes, which the `axes` option turns. True: its last axis holds vectors in the axes of the row's
    link. Else it says of each axis after the first whose axes these are: `row`, `column`, `parent`, "" for none.
    """

    shape: tuple[str | int, ...]
    unit: str
    text: str
    name: str = ""
    scalar: bool = False
    turned: bool | tuple[str, ...] = False
    kind: Kind = "plain"
    default: tuple[float, ...] | None = None

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
    """Marks a parameter that stays on the caller's side, such as who is told of progress."""


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
        """What it may be, in words."""
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
        """The input that says what of the robot is otherwise."""
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


_QUERIES: dict[str, Query] = {}
QUERIES: Mapping[str, Query] = MappingProxyType(_QUERIES)
"""The rows that kernels answer, by name, in the order of declaration."""

_COMPUTATIONS: dict[str, Computation] = {}
COMPUTATIONS: Mapping[str, Computation] = MappingProxyType(_COMPUTATIONS)
"""The rows that take long, by name, in the order of declaration. With `QUERIES` they are the whole table."""

_F = TypeVar("_F", bound=Callable[..., Any])


def query(
    *,
    equation: str,
    kernel: str | Mapping[str, str],
    bodies: Bodies = "chosen",
    control: bool = True,
    inverts: bool | tuple[str, ...] = False,
    alone: bool | tuple[str, ...] = False,
    grows: Growth | Mapping[str, Growth] = 1,
    passive: tuple[PassivePart, ...] | Mapping[str, tuple[PassivePart, ...]] = (),
) -> Callable[[_F], _F]:
    """Makes a declared method a row of the table that kernels answer.

    Args:
        equation: Where the answer comes from: document and equation numbers.
        kernel: `module.function` under `dynamics/`, or one per choice of an option, its default first.
        bodies: What the bodies of the tree are that the function takes.
        control: Control loops ask it: its kernels are made ahead of time by `prepare`.
        inverts: It needs the inverse of the mass matrix, and has no answer where a massless branch moves. Or the
            choices of kernel of which this is so.
        alone: It is about joints that move each by itself, and has no answer where one follows another; or which
            choices of kernel.
        grows: How its work grows with the bodies, or by choice of kernel where that is not the same.
        passive: Which parts of what joints do by themselves its answer depends on, or by choice of kernel. Where it
            does on any it has an option to leave them out, see `arguments.Passive`.
    """

    def declare(method: _F) -> _F:
        kernels = {"": kernel} if isinstance(kernel, str) else dict(kernel)
        inverting, apart = (frozenset(kernels if of is True else of or ()) for of in (inverts, alone))
        row = _row(method, equation)
        row["options"] = MappingProxyType({n: _with_role(o, kernels) for n, o in row["options"].items()})
        growth = MappingProxyType(dict(grows) if isinstance(grows, Mapping) else dict.fromkeys(kernels, grows))
        acting = passive if isinstance(passive, Mapping) else dict.fromkeys(kernels, passive)
        made = Query(
            **row,
            kernels=MappingProxyType(kernels),
            bodies=bodies,
            control=control,
            inverts=inverting,
            alone=apart,
            grows=growth,
            passive=MappingProxyType({name: frozenset(parts) for name, parts in acting.items()}),
        )
        _check(made)
        _QUERIES[made.name] = made
        return method

    return declare


_LEFT_TO_KINDS: frozenset[Kind] = frozenset({"gravity", "wrenches", "overlay"})
"""The kinds of input that say themselves what is meant where one is left out."""


def _with_role(option: Option, kernels: Mapping[str, str]) -> Option:
    """The option whose choices are the kernels chooses among them."""
    return replace(option, role="kernel") if option.choices and set(option.choices) == set(kernels) else option


def _check(row: Query) -> None:
    """Refuses a declaration that could not be answered as it reads.

    Raises:
        TypeError: Says why.
    """

    def require(holds: bool, rule: str) -> None:
        if not holds:
            raise TypeError(f"the row {row.name}: {rule}")

    chosen = None if row.selector is None else row.options[row.selector].default
    require((len(row.kernels) == 1) == (row.selector is None), "several kernels need one option with their names")
    require(chosen is None or chosen == next(iter(row.kernels)), "the first kernel is the option's default")
    require(all(p == name for p, name in row.parameters.items()), "what a kernel takes has the parameter's name")
    required = [name for name in row.inputs if name not in row.optional]
    require(list(row.inputs)[: len(required)] == required, "what may be left out stands after what may not")
    undefined = {row.inputs[name].kind for name in row.optional if row.inputs[name].default is None}
    require(undefined <= _LEFT_TO_KINDS, f"what may be left out has a default, but for {', '.join(_LEFT_TO_KINDS)}")
    plain = [option.name for option in row.options.values() if option.role == "plain"]
    require(row.grows.keys() == row.kernels.keys(), "every kernel's work grows in a way of its own")
    require(row.passive.keys() == row.kernels.keys(), "every kernel says what of joints' own parts it depends on")
    depends = any(row.passive.values())
    require(depends == (row.option("passive") is not None), "an option leaves out what joints do, where they do")
    require(row.constant or not plain, f"no kernel reads the options {', '.join(plain)}: give them a role")


def computation(
    *,
    equation: str,
    run: str,
    cost: str,
    parts: str | None = None,
    part: str | None = None,
    robot: bool = True,
    asks: tuple[str, ...] = (),
    on_wire: tuple[Option, ...] = (),
    between: Mapping[str, Spec] | None = None,
) -> Callable[[_F], _F]:
    """Makes a declared method a row of the table that takes long.

    Args:
        equation: Where the answer comes from.
        run: As the fields of `Computation` of these names, like all others.
        cost: Foretells what a request costs.
        parts: Makes the requests of the parts.
        part: Answers one of them.
        robot: Whether it is asked of a robot.
        asks: The rows of `QUERIES` that it asks.
        on_wire: Options that only its requests have: `parts` writes them, `part` reads them.
        between: Outputs that only its parts have.
    """

    def declare(method: _F) -> _F:
        row = _row(method, equation)
        row["options"] = MappingProxyType({**row["options"], **{option.name: option for option in on_wire}})
        _COMPUTATIONS[method.__name__] = Computation(
            **row,
            robot=robot,
            run=run,
            parts=parts,
            part=part,
            between=MappingProxyType(dict(between or {})),
            asks=asks,
            cost=cost,
        )
        return method

    return declare


def _row(method: Callable[..., Any], equation: str) -> dict[str, Any]:
    """What every row has, read off the method."""
    hints = typing.get_type_hints(method, include_extras=True)
    inputs: dict[str, Spec] = {}
    optional: set[str] = set()
    options: dict[str, Option] = {}
    names: dict[str, str | None] = {}
    for name, parameter in list(inspect.signature(method).parameters.items())[1:]:
        spec = _marked(hints[name], Spec)
        left_out = parameter.default is not inspect.Parameter.empty
        if spec is not None:
            names[name] = on_wire = spec.name or name
            inputs[on_wire] = spec
            optional |= {on_wire} if left_out else set()
        elif _marked(hints[name], Local) is not None:
            names[name] = None
        else:
            names[name] = name
            options[name] = _option(name, hints[name], parameter)
    outputs, labels, result_type = _answer(method.__name__, hints["return"])
    return {
        "name": method.__name__,
        "summary": (inspect.getdoc(method) or "").partition("\n")[0],
        "equation": equation,
        "inputs": MappingProxyType(inputs),
        "optional": frozenset(optional),
        "options": MappingProxyType(options),
        "outputs": MappingProxyType(outputs),
        "labels": MappingProxyType(labels),
        "result_type": result_type,
        "parameters": MappingProxyType(names),
    }


def _answer(method: str, answer: Any) -> tuple[dict[str, Spec], dict[str, Names], type[Any] | None]:
    """Outputs, labels and what holds them, from a return annotation."""
    single = _marked(answer, Spec)
    if single is not None:
        return {single.name: single}, {}, None
    declared = typing.get_type_hints(answer, include_extras=True)
    names = [f.name for f in fields(answer)] if is_dataclass(answer) else list(getattr(answer, "_fields", ()))
    outputs = {name: spec for name in names if (spec := _marked(declared[name], Spec)) is not None}
    if not outputs:
        raise TypeError(f"{method}: the return annotation declares no outputs")
    first = next(iter(outputs.values()))
    labels = {n: _marked(declared[n], Names) or Names(str(first.shape[0])) for n in names if n not in outputs}
    return outputs, labels, answer


def _option(name: str, hint: Any, parameter: inspect.Parameter) -> Option:
    means = _marked(hint, Means) or Means("")
    bare = typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    choices = typing.get_args(bare) if typing.get_origin(bare) is Literal else ()
    kinds: dict[Any, Literal["whole", "number", "flag"]] = {int: "whole", float: "number", bool: "flag"}
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


def _marked(hint: Any, kind: type[_M]) -> _M | None:
    """What of that kind an annotation carries."""
    return next((mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, kind)), None)

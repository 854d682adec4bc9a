"""How the table of queries is declared: a method with annotations becomes a row.

A parameter whose annotation carries a `Spec` is an input; one without is an option, whose `Literal` names its choices.
The return annotation is the output, or a dataclass whose fields are the outputs; a field without a `Spec` labels the
rows of the others, as its `Names` say. A method without inputs asks for what is
constant. The docstring says what comes back, and `query` adds source equation and kernel.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, TypeVar

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
]
"""What an input or output means, and so how it is treated, whatever its name:

    position                   where the joints stand, (nq,); the first input of this kind is where the robot stands
    velocity, acceleration     of the joints, (nv,)
    effort, momentum           of the joints, (nv,), and the mass matrix: they scale with what each joint moves
    gain                       of a controller
    gravity                    (3,), the robot's own where it is left out
    wrenches                   external wrenches on links, `Wrench` in and one six-vector per body to the kernel
    duration                   a length of time
    plain                      none of these
"""


Bodies = Literal["links", "moving", "chosen"]
"""What the bodies of a kernel's tree are: one per link, fixed joints included; one per movable joint, in the axes of
that joint's child link; or the same in whichever frames cost least, which an answer must not depend on.
"""


@dataclass(frozen=True)
class Spec:
    """An input or output: its core shape in dimension symbols, unit, a line of text, and its kind.

    `scalar` marks inputs for which one number stands for a vector of equal numbers; `turned` marks outputs made of
    vectors in link axes, which the option `frame="world"` turns. True: its last axis holds vectors in the axes of the
    row's link. Else it says of each axis after the first whose axes these are: `row`, `column`, `parent`, "" for none.
    """

    shape: tuple[str | int, ...]
    unit: str
    text: str
    name: str = ""
    scalar: bool = False
    turned: bool | tuple[str, ...] = False
    kind: Kind = "plain"

    def dims(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
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


@dataclass(frozen=True)
class Option:
    """A keyword that selects among answers: one of `choices`, where there are any; else a whole number, not negative,
    where `whole`; else a list of names or None.
    """

    name: str
    default: Any
    choices: tuple[str, ...] | None
    whole: bool = False

    @property
    def takes(self) -> str:
        """What it may be, in words."""
        if self.choices:
            return " or ".join(f"'{choice}'" for choice in self.choices)
        return "a whole number, at least 0" if self.whole else "a list of names"

    def is_one(self, value: Any) -> bool:
        """Whether it may be this."""
        if self.choices is not None:
            return value in self.choices
        if self.whole:
            return type(value) is int and value >= 0
        listed = not isinstance(value, str) and isinstance(value, Sequence)
        return value is None or (listed and all(isinstance(n, str) for n in value))


@dataclass(frozen=True)
class Query:
    """One row of the table.

    inputs, outputs: by name. optional: the inputs that may be left out. labels: outputs that are lists of names.
    kernels: the function under `dynamics/`, as `module.function`, per choice of `selector` (key "": there is none).
    bodies: what the bodies of its kernels' tree are.
    control: control loops ask it, so its kernels are made before they do. inverts: the kernels' choices that need the
    mass matrix's inverse.
    declared, passed: the method's parameters as they stand in a `def`, and in a call that hands them on.
    """

    name: str
    summary: str
    equation: str
    inputs: Mapping[str, Spec]
    optional: frozenset[str]
    options: Mapping[str, Option]
    outputs: Mapping[str, Spec]
    labels: Mapping[str, Names]
    kernels: Mapping[str, str]
    bodies: Bodies
    control: bool
    inverts: frozenset[str]
    result_type: type[Any] | None
    declared: str
    passed: str

    @property
    def selector(self) -> str | None:
        """The option that chooses among the kernels; None where there is one kernel."""
        return next((o.name for o in self.options.values() if o.choices == tuple(self.kernels)), None)

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

    def first(self, kind: Kind) -> str | None:
        """The first input of a kind."""
        return next(iter(self.of_kind(kind)), None)

    def of_kind(self, kind: Kind) -> tuple[str, ...]:
        """The names of the inputs of a kind."""
        return tuple(name for name, spec in self.inputs.items() if spec.kind == kind)

    @property
    def constant(self) -> bool:
        """Whether the answer is the robot's alone, the same at every state: then there is nothing to compile."""
        return not self.inputs

    def result(self, outputs: Mapping[str, Any]) -> Any:
        """The outputs as the method returns them: the array where there is one, else the named result."""
        if self.result_type is None:
            (name,) = self.outputs
            return outputs[name]
        return self.result_type(**outputs)


_ROWS: dict[str, Query] = {}
QUERIES: Mapping[str, Query] = MappingProxyType(_ROWS)
"""The table: every query on a robot, by name, in the order of declaration."""

_F = TypeVar("_F", bound=Callable[..., Any])


def query(
    *,
    equation: str,
    kernel: str | Mapping[str, str],
    bodies: Bodies = "chosen",
    control: bool = True,
    inverts: bool | tuple[str, ...] = False,
) -> Callable[[_F], _F]:
    """Makes a declared method a row of the table, and gives it the body that asks `_evaluate` for the answer.

    Args:
        equation: Where the answer comes from: document and equation numbers.
        kernel: `module.function` under `dynamics/`, or one per choice of an option, its default first.
        bodies: What the bodies of the tree are that the function takes.
        control: Control loops ask it: its kernels are made ahead of time by `prepare`.
        inverts: It needs the inverse of the mass matrix, and has no answer where a massless branch moves. Or the
            choices of kernel of which this is so.
    """

    def declare(method: _F) -> _F:
        kernels = {"": kernel} if isinstance(kernel, str) else dict(kernel)
        inverting = frozenset(kernels if inverts is True else inverts or ())
        row = _row(method, equation, kernels, bodies, control, inverting)
        _ROWS[row.name] = row
        inputs = ", ".join(f"{n!r}: {n}" for n in row.inputs)
        options = ", ".join(f"{n!r}: {n}" for n in row.options)
        # Written out, not *args/**kwargs: binding then costs what a plain call costs, on the path of every request.
        source = f"def {row.name}(self, {row.declared}):\n"
        source += f"    return row.result(self._evaluate(row, {{{inputs}}}, {{{options}}}))\n"
        space: dict[str, Any] = {"row": row}
        exec(compile(source, f"<query {row.name}>", "exec"), space)
        body = space[row.name]
        for attribute in ("__doc__", "__module__", "__qualname__", "__annotations__"):
            setattr(body, attribute, getattr(method, attribute))
        return typing.cast(_F, body)

    return declare


def _row(
    method: Callable[..., Any],
    equation: str,
    kernels: Mapping[str, str],
    bodies: Bodies,
    control: bool,
    inverts: frozenset[str],
) -> Query:
    hints = typing.get_type_hints(method, include_extras=True)
    parameters = inspect.signature(method).parameters
    inputs: dict[str, Spec] = {}
    optional: set[str] = set()
    options: dict[str, Option] = {}
    for name, parameter in parameters.items():
        if name == "self":
            continue
        spec = _spec(hints[name])
        if spec is not None:
            inputs[name] = spec
            if parameter.default is not inspect.Parameter.empty:
                optional.add(name)
        else:
            choices = typing.get_args(hints[name]) if typing.get_origin(hints[name]) is Literal else None
            options[name] = Option(name, parameter.default, choices, whole=hints[name] is int)
    answer = hints["return"]
    single = _spec(answer)
    labels: dict[str, Names] = {}
    if single is not None:
        outputs, result_type = {single.name: single}, None
    else:
        if not is_dataclass(answer):
            raise TypeError(f"{method.__name__}: the return annotation declares no outputs")
        result_type = typing.cast(type[Any], answer)
        declared = typing.get_type_hints(answer, include_extras=True)
        outputs = {f.name: spec for f in fields(answer) if (spec := _spec(declared[f.name])) is not None}
        first = next(iter(outputs.values()))
        labels = {
            f.name: _names(declared[f.name]) or Names(str(first.shape[0]))
            for f in fields(answer)
            if f.name not in outputs
        }
    declared_parameters, passed = _written(list(parameters.values())[1:])
    return Query(
        name=method.__name__,
        summary=(inspect.getdoc(method) or "").partition("\n")[0],
        equation=equation,
        inputs=MappingProxyType(inputs),
        optional=frozenset(optional),
        options=MappingProxyType(options),
        outputs=MappingProxyType(outputs),
        labels=MappingProxyType(labels),
        kernels=MappingProxyType(dict(kernels)),
        bodies=bodies,
        control=control,
        inverts=inverts,
        result_type=result_type,
        declared=declared_parameters,
        passed=passed,
    )


def _written(parameters: Sequence[inspect.Parameter]) -> tuple[str, str]:
    declared: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in declared:
            declared.append("*")
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        declared.append(parameter.name + default)
    return ", ".join(declared), ", ".join(f"{p.name}={p.name}" for p in parameters)


def _names(hint: Any) -> Names | None:
    return next((m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Names)), None)


def _spec(hint: Any) -> Spec | None:
    return next((m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Spec)), None)

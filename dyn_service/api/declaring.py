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
import reprlib
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import numpy as np

from dyn_service.api.spec import (
    Bodies,
    Computation,
    Growth,
    Kind,
    Local,
    Means,
    Names,
    Option,
    PassivePart,
    Query,
    Spec,
)

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
    if result_type is not None:
        result_type.__repr__ = _brief  # type: ignore[assignment]  # a method of any class
    text = inspect.getdoc(method) or ""
    takes = [f"    {name}: {inputs[key]}" for name, key in names.items() if key in inputs]
    gives = [f"    {name}: {spec}" for name, spec in outputs.items()]
    gives[:0] = [f"    {name}: {label.text}" for name, label in labels.items()]
    lists = [f"{title}:\n" + "\n".join(lines) for title, lines in (("Inputs", takes), ("Outputs", gives)) if lines]
    method.__doc__ = "\n\n".join([text, *lists])
    return {
        "name": method.__name__,
        "summary": text.partition("\n")[0],
        "equation": equation,
        "inputs": MappingProxyType(inputs),
        "optional": frozenset(optional),
        "options": MappingProxyType(options),
        "outputs": MappingProxyType(outputs),
        "labels": MappingProxyType(labels),
        "result_type": result_type,
        "parameters": MappingProxyType(names),
    }


def _brief(self: Any) -> str:
    """Each output with its shape, unit and first entries; outputs that are None are left out."""
    hints = typing.get_type_hints(type(self), include_extras=True)
    lines = []
    for name, hint in hints.items():
        value, spec = getattr(self, name, None), _marked(hint, Spec)
        if value is None:
            continue
        if spec is None:
            lines.append(f"{name}: {len(value)} names, {reprlib.repr(value)}")
            continue
        array = np.asarray(value)
        first = ", ".join(f"{x:.4g}" for x in array.flat[:4]) + (", ..." if array.size > 4 else "")
        lines.append(f"{name}: {array.shape} {spec.unit}: {first}" if array.ndim else f"{name}: {first} {spec.unit}")
    return "\n    ".join([f"{type(self).__name__}(", *lines]) + ")"


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

"""Decorators that turn annotated methods into rows of the table.

A parameter with a `Spec` in its annotation is an input. A parameter without is an option: its type is a `Literal` of
choices, or an integer, number, flag or list of names; `Means` contains its text. Parameters marked `Local` are not
sent. The return annotation is the output, or a class with a field for each output; a field without a `Spec` labels the
rows of the others, see `Names`.

`query` declares rows computed by kernels, state by state. `computation` declares long computations, whose answers come
over a socket in parts.
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
    inverts: bool | tuple[str, ...] = False,
    alone: bool | tuple[str, ...] = False,
    grows: Growth | Mapping[str, Growth] = 1,
    passive: tuple[PassivePart, ...] | Mapping[str, tuple[PassivePart, ...]] = (),
) -> Callable[[_F], _F]:
    """Declares a method as a row computed by kernels.

    Args:
        equation: The source of the answer: document and equation numbers.
        kernel: `module.function` under `dynamics/`, or one per choice of an option, its default first.
        bodies: The bodies of the function's tree.
        control: Control loops use it, so that `prepare` compiles its kernels.
        inverts: It needs the inverse mass matrix, and has no answer for robots with massless moving branches; or the
            choices of kernel for which this holds.
        alone: It has no answer for robots with mimic joints; or the choices of kernel for which this holds.
        grows: The exponent of the number of bodies in its cost; or one by choice of kernel.
        passive: The passive joint properties on which its answer depends; or these by choice of kernel. If there are
            any, the method needs an option to disable them, see `arguments.Passive`.
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

    chosen = None if row.selector is None else row.options[row.selector].default
    require((len(row.kernels) == 1) == (row.selector is None), "several kernels need one option with their names")
    require(chosen is None or chosen == next(iter(row.kernels)), "the first kernel is the option's default")
    require(all(p == name for p, name in row.parameters.items()), "inputs of kernels have the names of the parameters")
    required = [name for name in row.inputs if name not in row.optional]
    require(list(row.inputs)[: len(required)] == required, "required inputs precede optional ones")
    undefined = {row.inputs[name].kind for name in row.optional if row.inputs[name].default is None}
    require(undefined <= _LEFT_TO_KINDS, f"optional inputs need a default, except {', '.join(_LEFT_TO_KINDS)}")
    plain = [option.name for option in row.options.values() if option.role == "plain"]
    require(row.grows.keys() == row.kernels.keys(), "`grows` must have the names of the kernels")
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
    run: str,
    cost: str,
    parts: str | None = None,
    part: str | None = None,
    robot: bool = True,
    asks: tuple[str, ...] = (),
    on_wire: tuple[Option, ...] = (),
    between: Mapping[str, Spec] | None = None,
) -> Callable[[_F], _F]:
    """Declares a method as a row of a long computation; see the fields of `Computation`.

    Args:
        equation: The source of the answer.
        run: Computes the answer.
        cost: Predicts the cost of a request.
        parts: Divides a call into requests.
        part: Answers one of these requests.
        robot: Whether it is about a robot.
        asks: The rows of `QUERIES` that it uses.
        on_wire: Options that only requests have: `parts` writes them, `part` reads them.
        between: Outputs that only the parts have.
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
    """Returns the fields of any row, from the method."""
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
    """Returns each output with its shape, unit and first entries, without outputs that are None."""
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
    """Returns outputs, labels and result class of a return annotation."""
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
    """Returns the metadata of that class in an annotation."""
    return next((mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, kind)), None)

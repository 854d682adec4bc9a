"""Lists of queries: several rows of the table answered by one kernel, which shares their common work.

    robot.evaluate(["inverse_dynamics", "mass_matrix"], q=q, v=v, a=a)
    # {"inverse_dynamics": tau, "mass_matrix": M}

A list is a row, made when it is first used. Its name is that of its rows in the order of the table, joined by `+`, so
all orders of a list share one kernel; some lists have names of their own (`spec.LISTS`). Its inputs are those of its
rows, which must agree on inputs of the same name. Its options are `passive` and the option that selects the kernel, if
the rows agree on it; other options of the rows have their defaults. An output of a row is an output of the list under
`ROW.OUTPUT`.

Each row is traced in its own frames and is equal to the plain call within rounding; see `kernels.graph`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import numpy as np

from dyn_service.api.inputs import missing_input, row_of, unknown_name
from dyn_service.api.spec import (
    COMPUTATIONS,
    LISTS,
    QUERIES,
    Bodies,
    CostExponent,
    Dimensions,
    PassivePart,
    Query,
    Spec,
    choices_of,
)
from dyn_service.errors import InvalidArgumentError

_PER_BODY = ("nm", "na")
"""Dimensions with an entry for each moving body, of rows that cannot be computed with one body per link."""


def row_of_list(queries: str | Sequence[str]) -> Query:
    """Returns the row of a list of queries; of a single one its own row.

    Raises:
        UnimplementedError: There is no such query.
        InvalidArgumentError: The list is empty or no list of names, a query is named twice, is a computation, has no
            inputs, or needs an input of another meaning than another query.
    """
    if isinstance(queries, str):
        return row_of(queries)
    names = list(queries) if isinstance(queries, Sequence) else []
    if not names or not all(isinstance(name, str) for name in names):
        found = (
            reprlib.repr(queries) if isinstance(queries, Sequence) else f"an object of type {type(queries).__name__}"
        )
        raise InvalidArgumentError(f"queries must be a list of names of queries, found {found}", path="queries")
    return listed("+".join(names)) if len(names) > 1 else row_of(names[0])


def call_of(queries: str | Sequence[str], given: Mapping[str, Any]) -> tuple[Query, tuple[Any, ...], tuple[Any, ...]]:
    """Returns the row of a list of queries, its required inputs, and its optional inputs and options, in order.

    Args:
        queries: See `row_of_list`.
        given: Inputs and options by name.

    Raises:
        DynError: As `row_of_list`.
        InvalidArgumentError: An argument is missing or unknown; `path` names it.
    """
    try:
        key: Any = tuple(queries) if queries.__class__ is list else queries
        row, required, defaults, added = _call(key, tuple(given))
    except TypeError:  # not hashable
        row, required, defaults, added = _order(row_of_list(queries), tuple(given))
    if added:
        others = [*defaults]
        for k, name in added:
            others[k] = given[name]
        defaults = tuple(others)
    return row, required(given), defaults


_Order = tuple[Query, Callable[[Any], Any], tuple[Any, ...], tuple[tuple[int, str], ...]]
"""A row, the function from all arguments to its required inputs, the defaults of its other arguments, and index and
name of those that are given.
"""


@lru_cache(maxsize=256)
def _call(queries: str | tuple[str, ...], names: tuple[str, ...]) -> _Order:
    return _order(row_of_list(queries), names)


def _order(row: Query, names: tuple[str, ...]) -> _Order:
    for name in names:
        if row.parameters.get(name) is None:
            raise unknown_name(row.name, "input", name, {n: x for n, x in row.parameters.items() if x})
    for name in row.required:
        if name not in names:
            raise missing_input(row, name)
    pick: Callable[[Any], Any] = itemgetter(*row.required) if row.required else lambda given: ()
    added = tuple((k, name) for k, name in enumerate(row.optional_arguments) if name in names)
    return row, pick if len(row.required) != 1 else lambda given: (pick(given),), row.argument_defaults, added


@lru_cache(maxsize=256)
def listed(name: str) -> Query:
    """Returns the row of a list by its name, or by the names of its rows in any order; errors as `row_of_list`."""
    names = LISTS.get(name) or tuple(name.split("+"))
    for k, each in enumerate(names):
        _check(each, names[:k])
    parts = tuple(row for each, row in QUERIES.items() if each in names)
    own = "+".join(part.name for part in parts)
    if own != name:
        return listed(own)
    inputs, required = _inputs(parts), {each for part in parts for each in part.required}
    selectors = [part.options[part.kernel_option] for part in parts if part.kernel_option]
    options = {option.name: option for option in selectors if all(other == option for other in selectors)}
    methods = tuple(next(part.kernels for part in parts if part.kernel_option)) if options else ("",)
    passive = [part.options[part.passive_option] for part in parts if part.passive_option]
    options |= {option.name: option for option in passive[:1]}
    of = {m: choices_of(parts, options, m) for m in methods}
    exponents: dict[str, CostExponent] = {m: max(p.cost_exponent[k] for p, k in of[m]) for m in methods}
    acting = {m: frozenset[PassivePart]().union(*(p.passive[k] for p, k in of[m])) for m in methods}
    return Query(
        name=own,
        summary=f"The queries {', '.join(part.name for part in parts)} at once.",
        equation="those of its queries",
        theory=False,
        inputs=MappingProxyType({each: inputs[each] for each in sorted(inputs, key=lambda each: each not in required)}),
        optional=frozenset(inputs) - required,
        options=MappingProxyType(options),
        outputs=MappingProxyType({f"{p.name}.{each}": spec for p in parts for each, spec in p.outputs.items()}),
        labels=MappingProxyType({f"{p.name}.{each}": label for p in parts for each, label in p.labels.items()}),
        result_type=dict,
        parameters=MappingProxyType({each: each for each in (*inputs, *options)}),
        kernels=MappingProxyType({m: "+".join(p.kernels[k] for p, k in of[m]) for m in methods}),
        bodies=_bodies(parts),
        control=False,
        inverts_mass_matrix=frozenset(m for m in methods if any(k in p.inverts_mass_matrix for p, k in of[m])),
        rejects_mimic=frozenset(m for m in methods if any(k in p.rejects_mimic for p, k in of[m])),
        cost_exponent=MappingProxyType(exponents),
        passive=MappingProxyType(acting),
        inertia=frozenset(m for m in methods if any(k in p.inertia for p, k in of[m])),
        parts=parts,
    )


def _check(name: str, before: Sequence[str]) -> None:
    """Checks one name of a list."""
    if name in COMPUTATIONS:
        raise InvalidArgumentError(f"{name} is a computation, which no list of queries may contain", path="queries")
    if name in before:
        raise InvalidArgumentError(f"the list of queries contains {name} twice", path="queries")
    if row_of(name).parts:
        raise InvalidArgumentError(
            f"{name} is a list of queries itself: name its queries instead, {', '.join(LISTS.get(name, ()))}",
            path="queries",
        )
    if row_of(name).constant:
        raise InvalidArgumentError(
            f"{name} has no inputs, so its result is the same at every state: call it by itself", path="queries"
        )


def _inputs(parts: Sequence[Query]) -> dict[str, Spec]:
    """Returns the inputs of all rows."""
    inputs: dict[str, tuple[Query, Spec]] = {}
    for part in parts:
        for name, spec in part.inputs.items():
            other, known = inputs.setdefault(name, (part, spec))
            if _meaning(spec) != _meaning(known):
                raise InvalidArgumentError(
                    f"{other.name} and {part.name} need different inputs {name}: call them separately", path="queries"
                )
    return {name: spec for name, (_, spec) in inputs.items()}


def _meaning(spec: Spec) -> tuple[Any, ...]:
    return spec.kind, spec.shape, spec.scalar, spec.default


def _bodies(parts: Sequence[Query]) -> Bodies:
    """Returns the bodies of the inputs of all rows."""
    links = next((part for part in parts if part.links), None)
    if links is None:
        return "moving" if any(part.bodies == "moving" for part in parts) else "chosen"
    for part in parts:
        if part.bodies == "moving" and any(s in _PER_BODY for spec in part.outputs.values() for s in spec.shape):
            raise InvalidArgumentError(
                f"{part.name} has a row for each moving body, {links.name} is computed for each link: call them "
                "separately",
                path="queries",
            )
    return "links"


def with_own_axes(
    row: Query, result: Mapping[str, Any], leads: Mapping[str, tuple[int, ...]], sizes: Dimensions
) -> dict[str, Any] | None:
    """Returns the result of a list without the leading axes of inputs that a query does not have.

    None: an output has other axes than those of the inputs and its own, or the batch is empty, so that there is no
    state to take results from.

    Args:
        row: The row of the list.
        result: Of its kernel: all outputs have the leading axes of all inputs.
        leads: The leading axes of each input.
        sizes: The sizes of the outputs.
    """
    whole = np.broadcast_shapes(*leads.values())
    outputs = row.outputs_of(result)
    if 0 in whole or any(outputs[name].shape != (*whole, *spec.dims(sizes)) for name, spec in row.outputs.items()):
        return None
    for part in row.parts:
        own = np.broadcast_shapes(*(leads[name] for name in part.inputs if name in leads))
        if own != whole:
            index = (*(0,) * (len(whole) - len(own)), *map(slice, own), ...)
            # Copies: a view would keep the whole batch in memory.
            outputs |= {key: outputs[key][index].copy() for key in (f"{part.name}.{name}" for name in part.outputs)}
    answer: dict[str, Any] = row.result(outputs)
    return answer

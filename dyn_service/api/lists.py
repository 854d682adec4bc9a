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
from functools import cache, lru_cache
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import numpy as np

from dyn_service.api.inputs import missing_input, unknown_name
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
from dyn_service.errors import InvalidArgumentError, UnimplementedError
from dyn_service.support.suggestions import MAX_LENGTH, known_instead

_PER_BODY = ("nm", "na")
"""Dimensions with an entry for each moving body, of rows that cannot be computed with one body per link."""


def names_queries(name: str) -> bool:
    """Returns whether this is the name of a query, or of a list of queries, each once."""
    if name in QUERIES or name in LISTS:
        return True
    if "+" not in name or len(name) > _longest_name():  # names are untrusted, and splitting them takes time
        return False
    parts = name.split("+")
    return all(part in QUERIES for part in parts) and len(set(parts)) == len(parts)


@cache
def _longest_name() -> int:
    """Returns the length of the name of the list of all rows, with a final `+`; the table is complete after import."""
    return sum(len(name) + 1 for name in QUERIES)


def row_of(name: str) -> Query:
    """Returns the row of that name; of a list, errors as `row_of_list`."""
    row = QUERIES.get(name)
    if row is not None:
        return row
    parts = name.split("+", len(QUERIES))
    unknown = next((part for part in parts if part not in QUERIES and part not in LISTS), None)
    if unknown is None:
        return listed(name)
    text = unknown if len(unknown) <= MAX_LENGTH else f"{unknown[:MAX_LENGTH]}..."
    hint = known_instead(text, (*QUERIES, *LISTS), "the queries are")
    raise UnimplementedError(f"there is no query '{text}'{hint}", path="query")


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
        text = reprlib.repr(queries) if isinstance(queries, Sequence) else f"an object of type {type(queries).__name__}"
        raise InvalidArgumentError(f"queries must be a list of names of queries, found {text}", path="queries")
    return listed("+".join(names)) if len(names) > 1 else row_of(names[0])


def call_of(
    queries: str | Sequence[str], arguments: Mapping[str, Any]
) -> tuple[Query, tuple[Any, ...], tuple[Any, ...]]:
    """Returns the row of a list of queries, its required inputs, and its optional inputs and options, in order.

    Args:
        queries: See `row_of_list`.
        arguments: Inputs and options by name.

    Raises:
        DynError: As `row_of_list`.
        InvalidArgumentError: An argument is missing or unknown; `path` names it.
    """
    try:
        # A list is not hashable, and looking up the row takes 2 us: as long as the kernel.
        key: Any = tuple(queries) if queries.__class__ is list else queries
        row, required, defaults, given_places = _call(key, tuple(arguments))
    except TypeError:  # not hashable
        row, required, defaults, given_places = _order(row_of_list(queries), tuple(arguments))
    if given_places:
        optional = [*defaults]
        for k, name in given_places:
            optional[k] = arguments[name]
        defaults = tuple(optional)
    return row, required(arguments), defaults


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
    pick: Callable[[Any], Any] = itemgetter(*row.required) if row.required else lambda arguments: ()
    given_places = tuple((k, name) for k, name in enumerate(row.optional_arguments) if name in names)
    return (
        row,
        # `itemgetter` of one name returns the value itself, not a tuple.
        pick if len(row.required) != 1 else lambda arguments: (pick(arguments),),
        row.argument_defaults,
        given_places,
    )


@lru_cache(maxsize=256)
def listed(name: str) -> Query:
    """Returns the row of a list by its name, or by the names of its rows in any order; errors as `row_of_list`."""
    names = LISTS.get(name) or tuple(name.split("+"))
    for k, query in enumerate(names):
        _check(query, names[:k])
    # In the order of the table, so that all orders of a list share one kernel.
    parts = tuple(row for query, row in QUERIES.items() if query in names)
    ordered_name = "+".join(part.name for part in parts)
    if ordered_name != name:
        return listed(ordered_name)
    inputs, required = _inputs(parts), {name for part in parts for name in part.required}
    # Only if all rows agree: the same word may name other kernels in another row.
    selectors = [part.options[part.kernel_option] for part in parts if part.kernel_option]
    options = {option.name: option for option in selectors if all(other == option for other in selectors)}
    methods = tuple(next(part.kernels for part in parts if part.kernel_option)) if options else ("",)
    passive = [part.options[part.passive_option] for part in parts if part.passive_option]
    options |= {option.name: option for option in passive[:1]}
    choices = {m: choices_of(parts, options, m) for m in methods}
    exponents: dict[str, CostExponent] = {m: max(p.cost_exponent[k] for p, k in choices[m]) for m in methods}
    passive_parts = {m: frozenset[PassivePart]().union(*(p.passive[k] for p, k in choices[m])) for m in methods}
    return Query(
        name=ordered_name,
        summary=f"The queries {', '.join(part.name for part in parts)} at once.",
        equation="those of its queries",
        theory=False,
        inputs=MappingProxyType({name: inputs[name] for name in sorted(inputs, key=lambda name: name not in required)}),
        optional=frozenset(inputs) - required,
        options=MappingProxyType(options),
        outputs=MappingProxyType({f"{p.name}.{name}": spec for p in parts for name, spec in p.outputs.items()}),
        labels=MappingProxyType({f"{p.name}.{name}": label for p in parts for name, label in p.labels.items()}),
        result_type=dict,
        parameters=MappingProxyType({name: name for name in (*inputs, *options)}),
        kernels=MappingProxyType({m: "+".join(p.kernels[k] for p, k in choices[m]) for m in methods}),
        bodies=_bodies(parts),
        control=False,
        inverts_mass_matrix=frozenset(m for m in methods if any(k in p.inverts_mass_matrix for p, k in choices[m])),
        rejects_mimic=frozenset(m for m in methods if any(k in p.rejects_mimic for p, k in choices[m])),
        cost_exponent=MappingProxyType(exponents),
        passive=MappingProxyType(passive_parts),
        inertia=frozenset(m for m in methods if any(k in p.inertia for p, k in choices[m])),
        parts=parts,
    )


def _check(name: str, earlier_names: Sequence[str]) -> None:
    """Checks one name of a list."""
    if name in COMPUTATIONS:
        raise InvalidArgumentError(f"{name} is a computation, which no list of queries may contain", path="queries")
    if name in earlier_names:
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
            other, known_spec = inputs.setdefault(name, (part, spec))
            if _meaning(spec) != _meaning(known_spec):
                raise InvalidArgumentError(
                    f"{other.name} and {part.name} need different inputs {name}: call them separately", path="queries"
                )
    return {name: spec for name, (_, spec) in inputs.items()}


def _meaning(spec: Spec) -> tuple[Any, ...]:
    # Without text and unit: two queries may describe the same input in other words.
    return spec.kind, spec.shape, spec.scalar, spec.default


def _bodies(parts: Sequence[Query]) -> Bodies:
    """Returns the bodies of the inputs of all rows."""
    # One tree for all inputs: wrenches and overlays belong to the bodies of one tree.
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
        lead = np.broadcast_shapes(*(leads[name] for name in part.inputs if name in leads))
        if lead != whole:
            index = (*(0,) * (len(whole) - len(lead)), *map(slice, lead), ...)
            # Copies: a view would keep the whole batch in memory.
            outputs |= {key: outputs[key][index].copy() for key in (f"{part.name}.{name}" for name in part.outputs)}
    answer: dict[str, Any] = row.result(outputs)
    return answer

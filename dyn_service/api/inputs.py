"""Checks of arguments against the table: names, options, types and shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from dyn_service.api.arrays import found
from dyn_service.api.spec import LISTS, QUERIES, Option, Query, Row
from dyn_service.errors import InvalidArgumentError, UnimplementedError
from dyn_service.support.suggestions import LONGEST, did_you_mean, known_instead


def labelled(robot: Any, row: Row, arguments: Mapping[str, Any]) -> Any:
    """Returns the answer to a call with arrays of xarray or dask; see `dyn_service.studies.labels`."""
    return import_module("dyn_service.studies.labels").ask(robot, row, arguments)  # late: it is above this module


def row_of(name: str) -> Query:
    """Returns the row of that name; of a list, errors as `lists.row_of_list`."""
    row = QUERIES.get(name)
    if row is None:
        names = name.split("+", len(QUERIES))
        wrong = next((part for part in names if part not in QUERIES), None)
        if wrong is None:  # a query is named twice, or a list is named
            of_list: Query = import_module("dyn_service.api.lists").listed(name)  # late: it imports this module
            return of_list
        wrong = wrong if len(wrong) <= LONGEST else f"{wrong[:LONGEST]}..."
        known = known_instead(wrong, (*QUERIES, *LISTS), "the queries are")
        raise UnimplementedError(f"there is no query '{wrong}'{known}", path="query")
    return row


def unknown_name(query: str, what: str, name: str, known: Mapping[str, object]) -> InvalidArgumentError:
    """Returns the error for an input or option (`what`) that a query does not have; `path` names it."""
    message = f"{query} has no {what} '{name}'{known_instead(name, known, f'its {what}s are')}"
    return InvalidArgumentError(message, path=f"{what}s.{name}")


def check_names(row: Row, given: Mapping[str, Any]) -> None:
    """Checks that inputs are known and complete; None counts as missing.

    Raises:
        InvalidArgumentError: `path` names the input.
    """
    for name in given:
        if name not in row.inputs:
            raise unknown_name(row.name, "input", name, row.inputs)
    for name in row.required:
        if given.get(name) is None:
            raise missing_input(row, name)


def missing_input(row: Row, name: str) -> InvalidArgumentError:
    """Returns the error for a missing input."""
    return InvalidArgumentError(f"{row.name} needs the input '{name}'", path=f"inputs.{name}")


def checked_options(row: Row, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the value of each option of the row, or its default; numbers as floats.

    Raises:
        InvalidArgumentError: An option is unknown, missing or invalid; `path` names it.
    """
    chosen = {name: option.default for name, option in row.options.items() if not option.required}
    for name, value in options.items():
        if name not in row.options:
            raise unknown_name(row.name, "option", name, row.options)
        chosen[name] = checked_option(row.options[name], value, f"options.{name}")
    for name in row.options:
        if name not in chosen:
            raise InvalidArgumentError(f"{row.name} needs the option '{name}'", path=f"options.{name}")
    return chosen


def checked_option(option: Option, value: Any, path: str | None = None) -> Any:
    """Returns the value of an option.

    Raises:
        InvalidArgumentError: The value is invalid; `path` names the option, by its name unless another is given.
    """
    if not option.accepts(value):
        said = repr(value) + did_you_mean(value, option.choices) if option.choices else found(value)
        raise InvalidArgumentError(f"{option.name} must be {option.allowed}, found {said}", path=path or option.name)
    return _PLAIN.get(option.type, _same)(value)


_PLAIN: Mapping[str, Callable[[Any], Any]] = {"number": float, "whole": int}
"""The type of all arrays."""


def _same(value: Any) -> Any:
    return value

"""Checks of arguments against the table: names, options, types and shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dyn_service.api.arrays import found
from dyn_service.api.spec import Option, Row
from dyn_service.errors import InvalidArgumentError
from dyn_service.support.suggestions import did_you_mean, known_instead
from dyn_service.support.upward import upward


def labelled(robot: Any, row: Row, arguments: Mapping[str, Any]) -> Any:
    """Returns the answer to a call with arrays of xarray or dask; see `dyn_service.studies.labels`."""
    return upward("answer_labelled")(robot, row, arguments)


def unknown_name(query: str, kind: str, name: str, names: Mapping[str, object]) -> InvalidArgumentError:
    """Returns the error for an input or option (`kind`) that a query does not have; `path` names it."""
    message = f"{query} has no {kind} '{name}'{known_instead(name, names, f'its {kind}s are')}"
    return InvalidArgumentError(message, path=f"{kind}s.{name}")


def check_names(row: Row, inputs: Mapping[str, Any]) -> None:
    """Checks that inputs are known and complete; None counts as missing.

    Raises:
        InvalidArgumentError: `path` names the input.
    """
    for name in inputs:
        if name not in row.inputs:
            raise unknown_name(row.name, "input", name, row.inputs)
    for name in row.required:
        # nil from a client counts as missing, see docs/protocol.md.
        if inputs.get(name) is None:
            raise missing_input(row, name)


def missing_input(row: Row, name: str) -> InvalidArgumentError:
    """Returns the error for a missing input."""
    return InvalidArgumentError(f"{row.name} needs the input '{name}'", path=f"inputs.{name}")


def checked_options(row: Row, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the value of each option of the row, or its default; numbers as floats.

    Raises:
        InvalidArgumentError: An option is unknown, missing or invalid; `path` names it.
    """
    values = {name: option.default for name, option in row.options.items() if not option.required}
    # Unknown names are reported before missing ones: a misspelt option is both.
    for name, value in options.items():
        if name not in row.options:
            raise unknown_name(row.name, "option", name, row.options)
        values[name] = checked_option(row.options[name], value, f"options.{name}")
    for name in row.options:
        if name not in values:
            raise InvalidArgumentError(f"{row.name} needs the option '{name}'", path=f"options.{name}")
    return values


def checked_option(option: Option, value: Any, path: str | None = None) -> Any:
    """Returns the value of an option.

    Raises:
        InvalidArgumentError: The value is invalid; `path` names the option, by its name unless another is given.
    """
    if not option.accepts(value):
        text = repr(value) + did_you_mean(value, option.choices) if option.choices else found(value)
        raise InvalidArgumentError(f"{option.name} must be {option.allowed}, found {text}", path=path or option.name)
    return _PLAIN.get(option.type, _same)(value)


_PLAIN: Mapping[str, Callable[[Any], Any]] = {"number": float, "whole": int}
"""The type of all arrays."""


def _same(value: Any) -> Any:
    return value

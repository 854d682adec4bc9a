"""Parameters that are set while a node runs: how a set is checked before it counts.

Which may be set is said by the mark `settable`, see `config.described`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import msgspec

from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.support.parameter_descriptions import described
from dyn_service.support.parameters import converted, not_finite
from dyn_service.support.suggestions import did_you_mean

P = TypeVar("P", bound=msgspec.Struct)


def flat(parameters: msgspec.Struct) -> dict[str, Any]:
    """Values by the names that `described` gives, as YAML has them."""
    values = msgspec.to_builtins(parameters)
    return {found.name: _at(values, found.name) for found in described(type(parameters))}


def with_values(parameters: P, given: Mapping[str, Any], node: str) -> P:
    """The parameters with other values in place of some, all of which are checked.

    Raises:
        InvalidArgumentError: There is no parameter of a name, or a value has another type or is out of its range.
        FailedPreconditionError: One of them is read-only while the node runs.
    """
    kind = type(parameters)
    known = {found.name: found for found in described(kind)}
    values = msgspec.to_builtins(parameters)
    for name, value in given.items():
        found = known.get(name)
        if found is None:
            raise unknown(name, known, node)
        if not found.settable:
            raise FailedPreconditionError(
                f"parameter {name!r} of node {node!r} is read-only while it runs: set it at the start", path=name
            )
        if any(not_finite(value)):
            raise InvalidArgumentError(f"parameter {name!r} is not finite", path=name)
        *above, last = name.split(".")
        table = values
        for step in above:
            table = table[step]
        table[last] = value
    return converted(values, kind)


def unknown(name: str, known: Collection[str], node: str) -> InvalidArgumentError:
    """The error of a name that is none of this node's parameters."""
    near = did_you_mean(name, known) or (f"; it has {', '.join(known)}" if known else "; it has none")
    return InvalidArgumentError(f"node {node!r} has no parameter {name!r}{near}", path=name)


def _at(values: Any, name: str) -> Any:
    for step in name.split("."):
        values = values[step]
    return values

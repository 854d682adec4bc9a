"""Kernels to compile ahead of time, by purpose, so that no call waits for a compiler.

`control` consists of the queries of control loops. Each computation on a robot, such as `verify` and `simulate`, is
also a purpose: the queries that it uses, with every method. `tests/api/test_preparation.py` checks that a first call
compiles these kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from dyn_service.api.queries import COMPUTATIONS, QUERIES, Query
from dyn_service.errors import InvalidArgumentError
from dyn_service.support.suggestions import known_instead

PURPOSES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"control": tuple(name for name, row in QUERIES.items() if row.control)}
    | {name: row.queries for name, row in COMPUTATIONS.items() if row.queries}
)
"""Rows of the table by purpose."""


def chosen(names: Iterable[str]) -> list[tuple[Query, str]]:
    """Returns the kernels for these purposes and queries: rows and methods, each once, without wrenches.

    Raises:
        InvalidArgumentError: A name is neither.
    """
    kernels: dict[tuple[str, str], tuple[Query, str]] = {}
    for name in names:
        if name not in PURPOSES and name not in QUERIES:
            hint = known_instead(name, (*PURPOSES, *QUERIES))
            raise InvalidArgumentError(
                f"prepare takes purposes and names of queries, found {name!r}{hint}", path="prepare"
            )
        for query in PURPOSES.get(name, (name,)):
            # Every method: the second one of a query must not be compiled in a control loop either.
            row = QUERIES[query]
            kernels |= {} if row.constant else {(query, method): (row, method) for method in row.kernels}
    return list(kernels.values())

"""What is made ahead of time, so that no call waits for a compiler: for each purpose the rows of the table it asks.

| purpose | what it is for |
|---|---|
| `control` | all that control loops ask |
| `verify` | what `Robot.verify` holds against each other |
| `simulate` | what `Robot.simulate` asks, with every integrator and method |

`tests/unit/test_preparation.py` holds the lists against what a first call compiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from types import MappingProxyType

from dyn_service.api.queries import QUERIES, Query
from dyn_service.errors import InvalidArgumentError
from dyn_service.suggestions import did_you_mean

PURPOSES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "control": tuple(name for name, row in QUERIES.items() if row.control),
        "verify": (
            "inverse_dynamics",
            "forward_dynamics",
            "mass_matrix",
            "bias_forces",
            "gravity_forces",
            "constraint_forces",
            "momentum",
            "velocity_from_momentum",
            "momentum_rate",
            "energy",
            "equation_terms",
            "body_recursion",
            "momentum_derivative",
        ),
        "simulate": ("forward_dynamics", "momentum", "velocity_from_momentum", "hamiltonian_flow", "step"),
    }
)
"""Rows of the table, by purpose."""

_MODULES = {"verify": ("dyn_service.reference.verification",), "simulate": ("dyn_service.sim.simulate",)}
"""What a first call would import."""


def chosen(names: Iterable[str]) -> list[tuple[Query, str]]:
    """The kernels that purposes and queries of these names need: rows and methods, each once, none with wrenches.

    Raises:
        InvalidArgumentError: A name is neither.
    """
    found: dict[tuple[str, str], tuple[Query, str]] = {}
    for name in names:
        if name not in PURPOSES and name not in QUERIES:
            known = ", ".join((*PURPOSES, *QUERIES))
            raise InvalidArgumentError(
                f"prepare takes purposes and names of queries, found {name!r}; they are {known}"
                f"{did_you_mean(name, (*PURPOSES, *QUERIES))}",
                path="prepare",
            )
        for query in PURPOSES.get(name, (name,)):
            row = QUERIES[query]
            found |= {} if row.constant else {(query, method): (row, method) for method in row.kernels}
    return list(found.values())


def load_modules(names: Iterable[str]) -> None:
    """Imports what the purposes of these names use, so that no first call does."""
    for name in names:
        for module in _MODULES.get(name, ()):
            import_module(module)

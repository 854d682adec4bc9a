"""Functions of higher folders that lower folders call: the only imports by name besides public names of packages.

Imports point down (`pyproject.toml`). A public method or argument of a lower folder that a higher one answers is
listed here, and the function is loaded when it is first called. `tests/api/test_imports.py` checks that there are no
other imports of this package by name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

FUNCTIONS: Mapping[str, str] = {
    "answer_labelled": "dyn_service.studies.labels",  # arguments of any query that are arrays of xarray or dask
    "export": "dyn_service.engine.export.functions",  # `Robot.export`
    "export_fmu": "dyn_service.engine.export.fmu",  # `Robot.export_fmu`
    "make_study": "dyn_service.studies.study",  # `Robot.study`
    "recording": "dyn_service.graph.bags.motions",  # recordings in bags and reports of launches
    "law_function": "dyn_service.simulation.laws",  # `SimulationLaw.function`
}
"""The module of each function."""


def upward(name: str) -> Callable[..., Any]:
    """Returns a function of a higher folder."""
    function: Callable[..., Any] = getattr(importlib.import_module(FUNCTIONS[name]), name)
    return function

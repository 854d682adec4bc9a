"""The optional libraries, the extra that installs each, and the error for a missing one.

    the MuJoCo engine needs 'mujoco', which is not installed: pip install 'dyn_service[mujoco]'

`LIBRARIES` repeats pyproject.toml, which an installed package does not have; `tests/support/test_optional.py`
compares the two.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

from dyn_service.errors import FailedPreconditionError


class MissingLibraryError(FailedPreconditionError):
    """An optional library is not installed. The message contains the command that installs it."""


class Library(NamedTuple):
    """The distribution of a module. extra: of this package; None: install the distribution itself."""

    distribution: str
    extra: str | None


_MODULES: Mapping[str | None, tuple[str, ...]] = {
    "server": ("llvmlite", "scipy", "defusedxml", "yaml", "typer", "rich", "matplotlib", "prometheus_client"),
    "urdfpy": ("urchin",),
    "xacro": ("xacro",),
    "mujoco": ("mujoco",),
    "fmu": ("fmpy",),
    "trajectories": ("ruckig",),
    "contacts": ("clarabel",),
    "bags": ("lz4", "mcap", "mcap_ros2", "rosbags"),
    "view": ("viser", "trimesh", "collada"),
    "foxglove": ("foxglove",),
    "symbolic": ("casadi", "sympy"),
    "ros2": ("cyclonedds",),
    "tasks": ("pink", "mink"),
    "studies": ("xarray", "dask", "distributed", "zarr"),
    None: ("pinocchio",),
}
"""The modules of each extra; None: of no extra."""
_DISTRIBUTIONS = {
    "yaml": "pyyaml",
    "prometheus_client": "prometheus-client",
    "mcap_ros2": "mcap-ros2-support",
    "collada": "pycollada",
    "foxglove": "foxglove-sdk",
    "pink": "pin-pink",
    "pinocchio": "pin",
}
"""Distributions whose name is not that of their module."""
LIBRARIES: Mapping[str, Library] = {
    module: Library(_DISTRIBUTIONS.get(module, module), extra)
    for extra, modules in _MODULES.items()
    for module in modules
}
"""Keys are import names."""


def missing(feature: str, module: str) -> str:
    """Returns the error message for a library that is not installed.

    feature: what needs it: `dyn view`. module: the name that is imported; for one outside `LIBRARIES` the message has
    no install command.
    """
    top = module.partition(".")[0]
    library = LIBRARIES.get(top)
    if library is None:
        return f"{feature} needs {top!r}, which is not installed"
    target = library.distribution if library.extra is None else f"'dyn_service[{library.extra}]'"
    return f"{feature} needs {library.distribution!r}, which is not installed: pip install {target}"


def require(feature: str, *modules: str) -> None:
    """Raises `MissingLibraryError` unless these libraries are installed; imports none of them."""
    for module in modules:
        if find_spec(module) is None:
            raise MissingLibraryError(missing(feature, module))


def load(feature: str, module: str) -> Any:
    """Imports and returns the module of an optional library; raises `MissingLibraryError` without it."""
    require(feature, module)
    return importlib.import_module(module)

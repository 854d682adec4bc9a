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


LIBRARIES: Mapping[str, Library] = {
    "llvmlite": Library("llvmlite", "server"),
    "scipy": Library("scipy", "server"),
    "defusedxml": Library("defusedxml", "server"),
    "yaml": Library("pyyaml", "server"),
    "typer": Library("typer", "server"),
    "rich": Library("rich", "server"),
    "matplotlib": Library("matplotlib", "server"),
    "prometheus_client": Library("prometheus-client", "server"),
    "urchin": Library("urchin", "urdfpy"),
    "xacro": Library("xacro", "xacro"),
    "mujoco": Library("mujoco", "mujoco"),
    "fmpy": Library("fmpy", "fmu"),
    "ruckig": Library("ruckig", "trajectories"),
    "clarabel": Library("clarabel", "contacts"),
    "lz4": Library("lz4", "bags"),
    "mcap": Library("mcap", "bags"),
    "mcap_ros2": Library("mcap-ros2-support", "bags"),
    "rosbags": Library("rosbags", "bags"),
    "viser": Library("viser", "view"),
    "trimesh": Library("trimesh", "view"),
    "collada": Library("pycollada", "view"),
    "foxglove": Library("foxglove-sdk", "foxglove"),
    "casadi": Library("casadi", "symbolic"),
    "sympy": Library("sympy", "symbolic"),
    "cyclonedds": Library("cyclonedds", "ros2"),
    "pink": Library("pin-pink", "tasks"),
    "mink": Library("mink", "tasks"),
    "xarray": Library("xarray", "studies"),
    "dask": Library("dask", "studies"),
    "distributed": Library("distributed", "studies"),
    "zarr": Library("zarr", "studies"),
    "pinocchio": Library("pin", None),
}
"""Keys are import names."""


def missing(who: str, module: str) -> str:
    """Returns the error message for a library that is not installed.

    who: what needs it: `dyn view`. module: the name that is imported; for one outside `LIBRARIES` the message has no
    install command.
    """
    top = module.partition(".")[0]
    library = LIBRARIES.get(top)
    if library is None:
        return f"{who} needs {top!r}, which is not installed"
    target = library.distribution if library.extra is None else f"'dyn_service[{library.extra}]'"
    return f"{who} needs {library.distribution!r}, which is not installed: pip install {target}"


def require(who: str, *modules: str) -> None:
    """Checks that libraries are installed, without importing them.

    Raises:
        MissingLibraryError: One is not.
    """
    for module in modules:
        if find_spec(module) is None:
            raise MissingLibraryError(missing(who, module))


def load(who: str, module: str) -> Any:
    """Imports and returns the module of an optional library.

    Raises:
        MissingLibraryError: It is not installed.
    """
    require(who, module)
    return importlib.import_module(module)

"""Public names of a package that are imported when they are first used.

For packages whose modules need different extras, and for those that the nodes import, which would start later. Other
packages import their public names at the top.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from dyn_service.support.optional import missing


def lazy_names(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a package.

    package: its full name. names: its public names, separated by spaces, by the module that defines them. No module of
    the package may have such a name: once imported, the module would be the attribute.

    The function raises `AttributeError` for other names, and `ModuleNotFoundError` with the extra to install if a
    library is missing.
    """
    homes = {name: module for module, listed in names.items() for name in listed.split()}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(homes[name]), name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] == "dyn_service":
                raise
            raise ModuleNotFoundError(missing(f"{package}.{name}", error.name), name=error.name) from None

    return load

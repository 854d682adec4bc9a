"""Imports of this package by name, which a linter does not see: public names of packages, and `support/upward.py`."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator

from dyn_service.support.upward import FUNCTIONS, upward
from tests.conftest import ROOT

LAZY_NAMES = {"__init__.py", "hil/__init__.py", "support/lazy_names.py"}
"""Modules that import the public names of packages when they are first used."""

OTHERS = {
    "support/upward.py",  # the registry
    "support/optional.py",  # libraries of other projects
    "messages/codec.py",  # each module of messages, by the name of its package
    "dynamics/__init__.py",  # downwards: the equations that a row of the table names, without those of the other rows
}


def imports_by_name() -> Iterator[tuple[str, int]]:
    """Yields file and line of each call of `import_module` with an argument that may be a module of this package."""
    for file in (ROOT / "dyn_service").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if name in ("import_module", "__import__"):
                argument = node.args[0]
                is_foreign = isinstance(argument, ast.Constant) and not str(argument.value).startswith("dyn_service")
                is_foreign |= isinstance(argument, ast.JoinedStr) and "xacro" in ast.unparse(argument)
                if not is_foreign:
                    yield str(file.relative_to(ROOT / "dyn_service")), node.lineno


def test_no_other_module_imports_this_package_by_name() -> None:
    found = [f"{file}:{line}" for file, line in imports_by_name() if file not in LAZY_NAMES | OTHERS]
    assert not found, f"{', '.join(found)}: import the module, or add a line to support/upward.py"


def test_the_registry_names_functions_of_higher_folders() -> None:
    for name, module in FUNCTIONS.items():
        assert upward(name) is getattr(importlib.import_module(module), name)

"""Modules of the equations with one expression replaced, in a package of their own.

An edit is made in the syntax tree, so that neither line breaks nor spaces nor redundant brackets matter; and it must
find its expression, so that it cannot silently become none when the source changes.
"""

from __future__ import annotations

import ast
import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import dyn_service
from dyn_service.dynamics import expressions

PACKAGE = Path(dyn_service.__file__).parent
MODULES = (
    "dynamics.spatial",
    "dynamics.sweeps",
    "dynamics.kinematics",
    "dynamics.passive",
    "dynamics.newton_euler",
    "dynamics.sensors",
    "dynamics.mass_matrix",
    "dynamics.articulated",
    "dynamics.task_space",
    "dynamics.derivatives",
    "dynamics.hessians",
    "dynamics.coriolis",
    "dynamics.regressors",
    "dynamics.constraint",
    "dynamics.hamilton",
    "dynamics.motion_derivatives",
    "dynamics.midpoint",
    "dynamics.projected",
    "dynamics.body_frame",
    "dynamics.integration",
    "dynamics.operators",
    "simulation.integrators.implicit_midpoint",
)
"""Each after those it imports."""


class EditError(Exception):
    """An edit does not fit the source."""


@dataclass(frozen=True)
class Edit:
    """`old`, an expression in a function, becomes `new`.

    module: one of MODULES. function: its name, dotted if it is in a class; functions inside it count as part of
    it. old, new: code. times: how often `old` occurs there.
    """

    module: str
    function: str
    old: str
    new: str
    times: int = 1

    def made_in(self, tree: ast.Module) -> ast.Module:
        """A copy of the module's syntax tree with the edit in it.

        Raises:
            EditError: There is no such function, `old` occurs there another number of times, or `new` is the same.
        """
        replacing = _Replacing(_expression(self.old), _expression(self.new))
        if replacing.old == ast.dump(replacing.new):
            # An edit that changes nothing would pass for a term that no case sees.
            raise EditError(f"{self.module}.{self.function}: '{self.new}' is what stands there")
        edited, function = self._copied(tree)
        replacing.generic_visit(function)
        if replacing.count != self.times:
            raise EditError(
                f"{self.module}.{self.function}: '{self.old}' occurs {replacing.count} times, expected {self.times}"
            )
        return ast.fix_missing_locations(edited)

    def _copied(self, tree: ast.Module) -> tuple[ast.Module, ast.AST]:
        """The module with a copy of the function, and that; the rest of it is shared."""
        module_copy = copy.copy(tree)
        scope: Any = module_copy
        *classes, function = self.function.split(".")
        for name in (*classes, function):
            places = [
                k
                for k, node in enumerate(scope.body)
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
            ]
            if len(places) != 1:
                raise EditError(f"{self.module} has {len(places)} functions {self.function}, expected 1")
            (k,) = places
            child = copy.deepcopy(scope.body[k]) if name == function else copy.copy(scope.body[k])
            scope.body = [*scope.body[:k], child, *scope.body[k + 1 :]]
            scope = child
        return module_copy, scope


class _Replacing(ast.NodeTransformer):
    """Replaces expressions. count: how many it has."""

    def __init__(self, old: ast.expr, new: ast.expr) -> None:
        self.old, self.new, self.count = ast.dump(old), new, 0

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.expr) and ast.dump(node) == self.old:
            self.count += 1
            return copy.deepcopy(self.new)
        return self.generic_visit(node)


def _expression(code: str) -> ast.expr:
    return ast.parse(code, mode="eval").body


@contextmanager
def edited(edit: Edit | None = None) -> Iterator[dict[str, ModuleType]]:
    """The modules by the last part of their names, importing one another and not the package's, with an edit or none.

    Raises:
        EditError: The edit does not fit the source.
    """
    modules: dict[str, ModuleType] = {}
    try:
        sys.modules["edited"] = ModuleType("edited")
        sys.modules["edited"].expressions = expressions  # type: ignore[attr-defined]
        for module in MODULES:
            name = _last(module)
            same = edit is None or MODULES.index(module) < MODULES.index(edit.module)  # imports nothing edited
            if same and module in _UNEDITED_MODULES:
                modules[name] = sys.modules[f"edited.{name}"] = _UNEDITED_MODULES[module]
                continue
            modules[name] = sys.modules[f"edited.{name}"] = ModuleType(f"edited.{name}")
            code = _code(module)
            if edit is not None and edit.module == module:
                code = compile(edit.made_in(_tree(module)), f"{module} edited", "exec")
            # The package's own modules are imported already and stay as they are: a mutant of them would be every
            # test's.
            exec(code, modules[name].__dict__)
            if same:
                _UNEDITED_MODULES[module] = modules[name]
        yield modules
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "edited"]:
            del sys.modules[name]


_UNEDITED_MODULES: dict[str, ModuleType] = {}
"""Modules as they are written, made once."""


@cache
def _code(module: str) -> CodeType:
    return compile(_tree(module), module, "exec")


@cache
def _tree(module: str) -> ast.Module:
    """The module's syntax tree, importing from `edited`."""
    tree = ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text())
    edited_names = {f"dyn_service.{module_name}": f"edited.{_last(module_name)}" for module_name in MODULES} | {
        "dyn_service.dynamics": "edited"
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in edited_names:
            node.module = edited_names[node.module]
    return tree


def _last(module: str) -> str:
    return module.rpartition(".")[2]

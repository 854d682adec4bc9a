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
        made = copy.copy(tree)
        found: Any = made
        *classes, function = self.function.split(".")
        for name in (*classes, function):
            inside = [
                k
                for k, node in enumerate(found.body)
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
            ]
            if len(inside) != 1:
                raise EditError(f"{self.module} has {len(inside)} functions {self.function}, expected 1")
            (k,) = inside
            child = copy.deepcopy(found.body[k]) if name == function else copy.copy(found.body[k])
            found.body = [*found.body[:k], child, *found.body[k + 1 :]]
            found = child
        return made, found


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
    made: dict[str, ModuleType] = {}
    try:
        sys.modules["edited"] = ModuleType("edited")
        sys.modules["edited"].expressions = expressions  # type: ignore[attr-defined]
        for module in MODULES:
            name = _last(module)
            same = edit is None or MODULES.index(module) < MODULES.index(edit.module)  # imports nothing edited
            if same and module in _WRITTEN:
                made[name] = sys.modules[f"edited.{name}"] = _WRITTEN[module]
                continue
            made[name] = sys.modules[f"edited.{name}"] = ModuleType(f"edited.{name}")
            code = _code(module)
            if edit is not None and edit.module == module:
                code = compile(edit.made_in(_tree(module)), f"{module} edited", "exec")
            exec(code, made[name].__dict__)
            if same:
                _WRITTEN[module] = made[name]
        yield made
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "edited"]:
            del sys.modules[name]


_WRITTEN: dict[str, ModuleType] = {}
"""Modules as they are written, made once."""


@cache
def _code(module: str) -> CodeType:
    return compile(_tree(module), module, "exec")


@cache
def _tree(module: str) -> ast.Module:
    """The module's syntax tree, importing from `edited`."""
    tree = ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text())
    theirs = {f"dyn_service.{one}": f"edited.{_last(one)}" for one in MODULES} | {"dyn_service.dynamics": "edited"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in theirs:
            node.module = theirs[node.module]
    return tree


def _last(module: str) -> str:
    return module.rpartition(".")[2]

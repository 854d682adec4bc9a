"""Writes `client/async_queries.py`: the methods of `api/queries.py`, each to be awaited.

    python -m dyn_service.api.awaited && ruff format dyn_service/client/async_queries.py          # brings it up to date

Python has no way to say "the same signatures, awaited" that editors and mypy understand, so they are written out; a
test holds the file against the table.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from dyn_service.api import queries

PATH = Path(__file__).parent.parent / "client" / "async_queries.py"

_HEAD = '''"""The questions of `api/queries.py`, each to be awaited: written from there by `dyn_service.api.awaited`."""

from __future__ import annotations

from abc import ABC, abstractmethod
'''
_ASKS = ("_ask", "_compute")


def render() -> str:
    """The file's text."""
    source = inspect.getsource(queries)
    module = ast.parse(source)
    classes = [c for c in module.body if isinstance(c, ast.ClassDef) and c.name in ("RobotQueries", "GaitQueries")]
    bodies = [_class(source, found) for found in classes]
    return _HEAD + _imports(source, module, "".join(bodies)) + "".join(bodies)


def _class(source: str, found: ast.ClassDef) -> str:
    text = f'\n\nclass Async{found.name}(ABC):\n    """As `{found.name}`, each method to be awaited."""\n'
    for method in found.body:
        if isinstance(method, ast.FunctionDef) and (_is_answered(method) or method.name in _ASKS):
            text += "\n" + _method(source, method)
    return text


def _is_answered(method: ast.FunctionDef) -> bool:
    """Whether its body asks."""
    return any(_asks(node) for node in ast.walk(method))


def _asks(node: ast.AST) -> bool:
    """Whether it is a call of another method of the same robot."""
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "self"


def _method(source: str, method: ast.FunctionDef) -> str:
    """The method's own lines, `async` before `def` and `await` before what is asked."""
    lines = source.splitlines(keepends=True)[method.lineno - 1 : method.end_lineno]
    for call in sorted((n for n in ast.walk(method) if _asks(n)), key=lambda n: -n.lineno):  # type: ignore[attr-defined]
        assert isinstance(call, ast.Call)
        first, last = call.lineno - method.lineno, (call.end_lineno or 0) - method.lineno
        whole = lines[first][: call.col_offset].strip() == "return" and lines[last][call.end_col_offset :].strip() == ""
        if not whole:
            lines[last] = lines[last][: call.end_col_offset] + ")" + lines[last][call.end_col_offset :]
        lines[first] = (
            lines[first][: call.col_offset] + ("" if whole else "(") + "await " + lines[first][call.col_offset :]
        )
    abstract = "    @abstractmethod\n" if method.name in _ASKS else ""
    return abstract + "    async " + "".join(lines).lstrip()


def _imports(source: str, module: ast.Module, used: str) -> str:
    """Those imports of the table that the methods use."""
    names = {node.id for node in ast.walk(ast.parse(used)) if isinstance(node, ast.Name)}
    text = ""
    for node in module.body:
        if isinstance(node, ast.ImportFrom) and node.module not in ("__future__", "abc"):
            kept = [alias.name for alias in node.names if alias.name in names]
            if kept:
                text += "\n" * (node.module or "").startswith("dyn_service.api.arguments")
                listed = ", ".join(kept)
                line = f"from {node.module} import {listed}\n"
                if len(line) > 121:
                    line = f"from {node.module} import (\n" + "".join(f"    {name},\n" for name in kept) + ")\n"
                text += line
    return text


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")

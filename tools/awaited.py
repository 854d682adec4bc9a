"""Writes `service/client/async_queries.pyi`: the signatures of the methods of `api/queries.py`, each to be awaited.

    python -m tools.awaited && ruff format dyn_service/service/client/async_queries.pyi

Python has no way to say "the same signatures, awaited" that editors and mypy understand, so they are written out;
tests/api/test_table.py compares the file with the table.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from dyn_service.api import queries

PATH = Path(__file__).parent.parent / "dyn_service" / "service" / "client" / "async_queries.pyi"

_HEAD = "# Written by `python -m tools.awaited` from api/queries.py.\n\nfrom abc import ABC\n"
_CLASSES = ("RobotQueries", "GaitQueries")
_ASKING = ("_ask", "_compute")


def render() -> str:
    """Returns the file's text."""
    module = ast.parse(inspect.getsource(queries))
    classes = [node for node in module.body if isinstance(node, ast.ClassDef) and node.name in _CLASSES]
    bodies = "".join(_class(node) for node in classes)
    return _HEAD + _imports(module, bodies) + bodies


def _class(found: ast.ClassDef) -> str:
    """Returns the signatures of the rows' methods, and of the two that they call."""
    bases = ", ".join(base.id for base in found.bases if isinstance(base, ast.Name))
    text = f"\nclass Async{found.name}({bases}):\n"
    for method in (node for node in found.body if isinstance(node, ast.FunctionDef)):
        if method.name in (*queries.QUERIES, *queries.COMPUTATIONS, *_ASKING):
            returns = ast.unparse(method.returns) if method.returns else "None"
            text += f"    async def {method.name}({ast.unparse(method.args)}) -> {returns}: ...\n"
    return text


def _imports(module: ast.Module, used: str) -> str:
    """Those imports of the table that the methods use."""
    names = {node.id for node in ast.walk(ast.parse(used)) if isinstance(node, ast.Name)}
    text = ""
    for node in module.body:
        if isinstance(node, ast.ImportFrom) and node.module not in ("__future__", "abc"):
            kept = [alias.name for alias in node.names if alias.name in names]
            if kept and node.module is not None and node.module.startswith("dyn_service") and "dyn_service" not in text:
                text += "\n"
            text += f"from {node.module} import (\n    {', '.join(kept)},\n)\n" if kept else ""
    return text


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")

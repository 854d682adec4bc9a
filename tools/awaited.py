"""Writes `client/async_queries.py`: the methods of `api/queries.py`, each to be awaited.

    python -m tools.awaited && ruff format dyn_service/client/async_queries.py          # brings the file up to date

Python has no way to say "the same signatures, awaited" that editors and mypy understand, so they are written out;
tests/unit/test_table.py holds the file against the table.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from dyn_service.api import queries

PATH = Path(__file__).parent.parent / "dyn_service" / "client" / "async_queries.py"

_HEAD = '''"""The questions of `api/queries.py`, each to be awaited: written from there by `python -m tools.awaited`."""

from __future__ import annotations

from abc import ABC, abstractmethod
'''
_ASKING = ("self._ask(", "self._compute(")
_CLASSES = ("RobotQueries", "GaitQueries")


def render() -> str:
    """The file's text."""
    source = inspect.getsource(queries)
    module = ast.parse(source)
    classes = [node for node in module.body if isinstance(node, ast.ClassDef) and node.name in _CLASSES]
    bodies = "".join(_class(source, node) for node in classes)
    return _HEAD + _imports(module, bodies) + bodies


def _class(source: str, found: ast.ClassDef) -> str:
    """Those methods that ask, and what they ask by."""
    bases = ", ".join(base.id for base in found.bases if isinstance(base, ast.Name))
    text = f'\n\nclass Async{found.name}({bases}):\n    """As `{found.name}`, each method to be awaited."""\n'
    for method in (node for node in found.body if isinstance(node, ast.FunctionDef)):
        lines = source.splitlines(keepends=True)[method.lineno - 1 : method.end_lineno]
        own = "".join(lines).replace("    def ", "    async def ", 1)
        if f"self.{method.name}(" in "".join(_ASKING):
            text += "\n    @abstractmethod\n" + own
        elif any(asking in own for asking in _ASKING):
            for asking in _ASKING:
                own = own.replace(f"return {asking}", f"return await {asking}")
            text += "\n" + own
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

"""Docstrings, folder maps and the reference page name files and names that exist, and all of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dyn_service
from docs.pages import ROOT
from dyn_service import errors

PACKAGE = ROOT / "dyn_service"
TEMPLATES = PACKAGE / "cli" / "templates"
MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if TEMPLATES not in path.parents]
FOLDERS = [path.parent for path in MODULES if path.name == "__init__.py"]
EXAMPLES = {"my_law.py", "arm_msgs.py"}
"""Files of a reader's own package."""


def _strings(path: Path) -> Iterator[str]:
    """Every docstring of a module: of itself, its classes and functions, and of the names that it assigns."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text


def test_files_named_in_docstrings_exist() -> None:
    folders = ("dyn_service", "tests", "qa", "docs", "examples", "benchmarks", "tools")
    paths = [f"/{path.relative_to(ROOT).as_posix()}" for folder in folders for path in (ROOT / folder).rglob("*.py")]
    texts = [(path.name, text) for path in MODULES for text in _strings(path)]
    references = {(file, name) for file, text in texts for name in re.findall(r"[\w/]+\.py\b", text)}
    assert len(references) > 50
    absent = {(file, name) for file, name in references if not any(path.endswith(f"/{name}") for path in paths)}
    assert {name for _, name in absent} == EXAMPLES, absent


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_the_map_of_a_folder_has_a_line_for_each_file(folder: Path) -> None:
    """`name   text`, in the docstring of its `__init__.py`; folders with a slash."""
    parts = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
    parts |= {f"{path.name}/" for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__"}
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert sorted(re.findall(r"^(\w+/?) {2,}\S", text, re.MULTILINE)) == sorted(parts)


def test_every_public_name_is_on_the_reference_page() -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    documented = re.findall(r"^::: dyn_service\.([\w.]+)$", page, re.MULTILINE)
    assert "errors" in documented  # the page shows the whole module
    names = {path.rpartition(".")[2] for path in documented} | {name for name in vars(errors) if name.endswith("Error")}
    assert set(dyn_service.__all__) - names == {"__version__"}
    assert "`__version__`" in page

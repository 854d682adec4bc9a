"""docs/modules.md lists the public names; README, pages, examples and the templates of `dyn new` import no others."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dyn_service
from docs.pages import PAGES, ROOT
from dyn_service.messages import Message

PAGE = (ROOT / "docs" / "modules.md").read_text(encoding="utf-8")
_SECTION = re.compile(r"^## `(dyn_service[\w.]*)`\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| \S.* \|$", re.MULTILINE)
LISTED = {module: re.findall(r"`(\w+)`", " ".join(_ROW.findall(text))) for module, text in _SECTION.findall(PAGE)}
"""Names by module, of the modules that the page lists."""
MESSAGES = re.findall(r"^\| `(dyn_service\.messages\.\w+)` \| \S.* \|$", PAGE, re.MULTILINE)
"""Modules whose messages are public."""
_IMPORT = re.compile(r"\bfrom (dyn_service[\w.]*) import (\([^)]*\)|[\w*]+(?: as \w+)?(?:, *\w+(?: as \w+)?)*)")
_PLAIN_IMPORT = re.compile(r"^[ >]*import (dyn_service[\w.]*)", re.MULTILINE)


def public_names() -> dict[str, set[str]]:
    """Returns the public names by module."""
    names = {module: set(listed) for module, listed in LISTED.items()}
    names["dyn_service"] = set(dyn_service.__all__)
    for path in MESSAGES:
        members = vars(importlib.import_module(path))
        names[path] = {
            name
            for name, member in members.items()
            if isinstance(member, type) and issubclass(member, Message) and member.__module__ == path
        }
    return names


def sources() -> list[Path]:
    """Returns the files that users read and copy."""
    python = [*(ROOT / "examples").rglob("*.py"), *(ROOT / "dyn_service" / "cli" / "templates").rglob("*.py")]
    notes = [*(ROOT / "examples").rglob("*.md"), *(ROOT / "dyn_service" / "cli" / "templates").rglob("*.md")]
    return sorted([*(page for page in PAGES if page.parent.name != "adr"), *python, *notes])  # decisions keep old names


def imports(text: str) -> Iterator[tuple[int, str, str]]:
    """Yields line, module and name of each import of the package; the name is empty for `import MODULE`."""
    for match in _IMPORT.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        for part in match[2].strip("()").split(","):
            if words := part.split():  # empty after the last comma
                yield line, match[1], words[0]
    for match in _PLAIN_IMPORT.finditer(text):
        yield text.count("\n", 0, match.start(1)) + 1, match[1], ""


def fault(module: str, name: str, public: dict[str, set[str]]) -> str | None:
    """Returns what to import instead of a name that is not public; None if it is public."""
    if (module in public and name in {"", *public[module]}) or f"{module}.{name}" in public:
        return None
    homes = [home for home, names in public.items() if name in names]
    statement = f"from {module} import {name}" if name else f"import {module}"
    instead = " or ".join(f"from {home} import {name}" for home in homes) or "export it, and list it in docs/modules.md"
    return f"{statement}: not public; instead: {instead}"


def test_users_see_imports_of_public_names_only() -> None:
    public, faults, checked = public_names(), [], 0
    for path in sources():
        for line, module, name in imports(path.read_text(encoding="utf-8")):
            checked += 1
            if (text := fault(module, name, public)) is not None:
                faults.append(f"{path.relative_to(ROOT)}:{line}: {text}")
    assert not faults, "\n".join(faults)
    assert checked > 200, checked


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from dyn_service import Robot, Wrench as Push", [(1, "dyn_service", "Robot"), (1, "dyn_service", "Wrench")]),
        ("\n    from dyn_service.control import (\n    Law,\n)", [(2, "dyn_service.control", "Law")]),
        ("with `from dyn_service import find_robot`.", [(1, "dyn_service", "find_robot")]),
        ("import dyn_service.kernels.jit as jit", [(1, "dyn_service.kernels.jit", "")]),
        ("from dyn_service.engine import *", [(1, "dyn_service.engine", "*")]),
        ("names that `from dyn_service import ..` provides", []),
    ],
)  # fmt: skip
def test_imports_are_collected(text: str, expected: list[tuple[int, str, str]]) -> None:
    assert list(imports(text)) == expected


def test_faults_name_the_public_import() -> None:
    public = public_names()
    assert "instead: from dyn_service.control import Law" in (fault("dyn_service.control.law", "Law", public) or "")
    assert "export it" in (fault("dyn_service.kernels.jit", "", public) or "")
    assert fault("dyn_service.messages.sensor_msgs", "JointState", public) is None
    assert fault("dyn_service.formulations", "segments", public) is None


@pytest.mark.parametrize("module", LISTED)
def test_the_page_lists_what_a_module_exports(module: str) -> None:
    exported = importlib.import_module(module).__all__
    assert sorted(LISTED[module]) == sorted(exported)
    assert len(set(exported)) == len(exported)


@pytest.mark.parametrize("module", LISTED)
def test_public_names_exist_and_have_docstrings(module: str) -> None:
    package = importlib.import_module(module)
    for name in package.__all__:
        value = getattr(package, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            assert value.__doc__, f"{module}.{name} has no docstring"


@pytest.mark.parametrize("module", LISTED)
def test_type_checkers_see_lazily_imported_names(module: str) -> None:
    """Only imports at the top, or under `if TYPE_CHECKING`, are seen; a module of such a name would hide it."""
    file = Path(inspect.getfile(importlib.import_module(module)))
    if file.name != "__init__.py":
        return
    imported = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for alias in node.names
    }
    exported = set(importlib.import_module(module).__all__)
    assert exported <= imported
    if hasattr(importlib.import_module(module), "__getattr__"):
        assert not exported & {path.stem for path in file.parent.iterdir()}


def test_the_page_lists_all_modules_of_messages() -> None:
    helpers = {"__init__", "cdr", "codec", "fields"}
    modules = {path.stem for path in (ROOT / "dyn_service" / "messages").glob("*.py")} - helpers
    assert {path.rpartition(".")[2] for path in MESSAGES} == modules

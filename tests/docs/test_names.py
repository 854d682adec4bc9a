"""Names in the code format of the pages exist: dotted names, and names listed after a file of the package."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from docs.pages import PAGES, ROOT
from dyn_service import Client, Robot

_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_FILES = re.compile(r"\.(py|npz|json|yaml|md|c|h|mcap|svg|html|mp4|xml|dae|zarr|csv|toml)$")
_LISTED = re.compile(r"`(?:dyn_service/)?([\w/]+)\.py`: ((?:`[^`]+`(?:, | and )?)+)")
_PLACE = "dyn_service"
_MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / _PLACE).rglob("*.py")
    if not path.name.startswith("__") and "templates" not in path.parts
)
OTHERS = {
    "base", "bounds", "Function", "gains", "inputs", "loads", "loaded", "node", "outputs", "plant", "requests",
    "server", "supervisor", "xarray",
}  # fmt: skip
"""Variables, and fields of messages and files, that are called like a module; a package that may not be installed."""
VARIABLES = {"robot": Robot, "client": Client}
"""What these pages call by a variable."""
_PAGES = [page for page in PAGES if page.parent.name != "adr"]
"""Decisions keep the names of their time."""


def _prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@cache
def _source(path: str) -> ast.Module:
    return ast.parse(Path(path).read_text(encoding="utf-8"))


@cache
def _classes() -> dict[str, list[str]]:
    """Modules by the name of a class in them."""
    classes: dict[str, list[str]] = {}
    for module in _MODULES:
        for node in _source(str(ROOT / (module.replace(".", "/") + ".py"))).body:
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(module)
    return classes


def _holders(first: str) -> list[Any]:
    """Modules, classes and objects of the package that a page may mean by a name or path."""
    if first in VARIABLES:
        return [VARIABLES[first]]
    modules = [module for module in _MODULES if f".{module}".endswith(f".{first.replace('/', '.')}")]
    holders: list[Any] = [importlib.import_module(module) for module in modules]
    return holders + [getattr(importlib.import_module(module), first) for module in _classes().get(first, [])]


def _has(holder: Any, path: list[str]) -> bool:
    """Returns whether an object has a member; of an object that a class assigns to `self` no more is known."""
    if not path:
        return True
    if hasattr(holder, path[0]):
        member = getattr(holder, path[0])
        return not isinstance(member, ModuleType | type) or _has(member, path[1:])
    if not isinstance(holder, type):
        return False
    if any(path[0] in getattr(kind, "__annotations__", {}) for kind in holder.__mro__):
        return True
    file = importlib.import_module(holder.__module__).__file__ or ""
    return any(
        isinstance(node, ast.Attribute) and node.attr == path[0] and isinstance(node.ctx, ast.Store)
        for node in ast.walk(_source(file))
    )


def _exists(name: str) -> bool | None:
    """Returns whether a dotted name of the package exists; None for a name that is not of the package."""
    parts = name.removeprefix(f"{_PLACE}.").split(".")
    holders = [(holder, parts[k:]) for k in range(1, len(parts) + 1) for holder in _holders("/".join(parts[:k]))]
    if any(_has(holder, rest) for holder, rest in holders):
        return True
    if name.startswith(f"{_PLACE}."):
        return (ROOT / name.replace(".", "/")).is_dir()
    return False if holders else None


def test_dotted_names_exist() -> None:
    absent, checked = [], 0
    for page in _PAGES:
        theory = page.parent.name == "theory" or page.name == "notation.md"
        for code in _INLINE.findall(_prose(page)):
            match = _DOTTED.match(code)
            if match is None or code[match.end() : match.end() + 1] not in ("", "(") or _FILES.search(match[0]):
                continue
            first = match[0].partition(".")[0]
            if (
                first in OTHERS
                or match[0] == "dyn_service.nodes"
                or any(map(str.isupper, match[0].split(".")))
                or (first != _PLACE and find_spec(first))
            ):
                continue
            exists = _exists(match[0])
            checked += exists is not None
            # On pages of theory each name is of the package; elsewhere a class after a dot is.
            if exists is False or (exists is None and (theory or re.fullmatch(r"[a-z_]+\.[A-Z]\w+[a-z]", match[0]))):
                absent.append(f"{page.name}: {code}")
    assert not absent, "\n".join(absent)
    assert checked > 60, checked


def test_names_listed_after_a_file_exist() -> None:
    absent, checked = [], 0
    for page in _PAGES:
        for path, names in _LISTED.findall(_prose(page)):
            holders, previous = _holders(path), ""
            assert holders, f"{page.name}: {path}.py"
            for name in re.findall(r"`(\.?[A-Za-z_]\w*(?:\.\w+)*)", names):
                full = f"{previous}{name}" if name.startswith(".") else name
                previous = full.rpartition(".")[0]
                checked += 1
                if not any(_has(holder, full.split(".")) for holder in holders):
                    absent.append(f"{page.name}: {path}.py: {full}")
    assert not absent
    assert checked > 40, checked

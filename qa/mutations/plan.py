"""What is mutated, and which tests see a mutant of each module, the quickest and likeliest first: `plan.toml`.

The order decides only how long a mutant lives: each is tried against all its stages until a test turns red.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "dyn_service"

_TABLES = tomllib.loads(Path(__file__).with_name("plan.toml").read_text(encoding="utf-8"))
PACKAGES_OF_PART: dict[str, tuple[str, ...]] = {part: tuple(places) for part, places in _TABLES["parts"].items()}
"""The parts of the command line: folders and files of the package."""

SHAPING = tuple(_TABLES["shaping"])
"""Mutants of these make other kernels, of the same robots: each starts from an empty kernel cache of its own."""


def _test_files(names: Sequence[str]) -> tuple[str, ...]:
    """The test files of a row; the name of a group means all its files."""
    groups = _TABLES["groups"]
    return tuple(
        file for name in names for file in (_test_files(groups[name]) if name in groups else [f"tests/{name}"])
    )


STAGES = {module: _test_files(names) for module, names in _TABLES["stages"].items()}
"""Test files by module; of a module that is not named, those of the nearest folder above it."""


@dataclass(frozen=True)
class Plan:
    """module: relative to the package. stages: test files, in order. shaping: its mutants make other kernels."""

    module: str
    stages: tuple[str, ...]
    shaping: bool

    @property
    def path(self) -> Path:
        """The source."""
        return PACKAGE / self.module

    @property
    def name(self) -> str:
        """As it is imported."""
        return "dyn_service." + self.module.removesuffix(".py").replace("/", ".")


def plans(parts: list[str]) -> list[Plan]:
    """One per module with anything in it, of the named parts or modules; all parts where none is named.

    Raises:
        ValueError: There is no such part or module; names it.
    """
    selected: list[Plan] = []
    for part in parts or list(PACKAGES_OF_PART):
        for place in PACKAGES_OF_PART.get(part, (part,)):
            path = PACKAGE / place
            if not path.exists():
                raise ValueError(f"there is no part or module '{part}'; the parts are {', '.join(PACKAGES_OF_PART)}")
            files = sorted(path.glob("*.py")) if path.is_dir() else [path]
            selected += [_plan(str(file.relative_to(PACKAGE))) for file in files if file.name != "__init__.py"]
    return selected


def _plan(module: str) -> Plan:
    names = (module, *(f"{folder}/" for folder in Path(module).parents))
    stages = next((STAGES[name] for name in names if name in STAGES), None)
    if stages is None:
        raise ValueError(f"no tests are named for {module}: add them to `stages` in qa/mutations/plan.toml")
    return Plan(module, stages, module.startswith(SHAPING))

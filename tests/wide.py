"""Some cases are part of the default suite; the others run by `python -m pytest -n auto -m wide`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def wide(cases: Iterable[Any], is_kept: Callable[[Any], bool]) -> list[Any]:
    """The cases as `parametrize` takes them; those that are not kept have the mark `wide`."""

    def marked(case: Any) -> Any:
        return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.wide)

    return [case if is_kept(case) else marked(case) for case in cases]


def one_in(share: int) -> Callable[[int], bool]:
    """Keeps every `share`-th case."""
    return lambda number: number % share == 0

"""The map of the documentation's site leads to every page, and to none that is not there."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

from docs.pages import ROOT


def _paths(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        for where in entry.values():
            yield from _paths(where) if isinstance(where, list) else [where]


def test_every_page_is_on_the_map_once() -> None:
    site = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    docs = ROOT / site["docs_dir"]
    there = {str(page.relative_to(docs)) for page in docs.rglob("*.md") if page.parent.name != "adr"}
    mapped = list(_paths(site["nav"]))
    assert len(mapped) == len(set(mapped))
    assert set(mapped) == there  # decisions, docs/adr, are found by the search


def test_code_blocks_say_nothing_that_the_builder_does_not_know() -> None:
    """A word more behind the language, and the site shows the block as text."""
    for page in (ROOT / "docs").rglob("*.md"):
        for line in page.read_text(encoding="utf-8").splitlines():
            assert not line.startswith("```") or re.fullmatch(r'```(\w+( title="[^"]+")?)?', line), f"{page}: {line}"

"""The map of the documentation's site leads to every page, and to none that is not there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.pages import ROOT


def _paths(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        for page in entry.values():
            yield from _paths(page) if isinstance(page, list) else [page]


def test_every_page_is_on_the_map_once() -> None:
    site = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    docs = ROOT / site["docs_dir"]
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md") if page.parent.name != "adr"} | {
        "adr/README.md"
    }
    mapped = list(_paths(site["nav"]))
    assert len(mapped) == len(set(mapped))
    assert set(mapped) == pages


def test_every_decision_is_on_the_list() -> None:
    folder = ROOT / "docs" / "adr"
    links = re.findall(
        r"^\| \[(\d+)\]\((\d{4}-[\w-]+\.md)\) \|", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert [name for _, name in links] == sorted(path.name for path in folder.glob("0*.md"))
    assert all(int(number) == int(name[:4]) for number, name in links)


def test_code_blocks_say_nothing_that_the_builder_does_not_know() -> None:
    """A word more behind the language, and the site shows the block as text."""
    for page in (ROOT / "docs").rglob("*.md"):
        for line in page.read_text(encoding="utf-8").splitlines():
            assert not line.startswith("```") or re.fullmatch(r'```(\w+( title="[^"]+")?)?', line), f"{page}: {line}"


@pytest.mark.slow
def test_the_built_site_has_pages_and_no_programs(tmp_path: Path) -> None:
    pytest.importorskip("zensical")
    for name in ("docs", "dyn_service"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    subprocess.run([Path(sys.executable).parent / "zensical", "build"], cwd=tmp_path, check=True, capture_output=True)
    suffixes = {path.suffix for path in (tmp_path / "build" / "site").rglob("*") if path.is_file()}
    assert ".html" in suffixes
    assert ".py" not in suffixes


def test_each_command_is_on_its_own_line() -> None:
    """A page that was wrapped by a program may join the commands of an indented block."""
    for page in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        for line in page.read_text(encoding="utf-8").splitlines():
            command = line.partition("#")[0]
            if re.match(r" {4}(?:dyn|pip|pytest|python) ", command):
                assert " dyn " not in command[5:], (page.name, line)


def test_formulas_of_the_theory_are_converted() -> None:
    """All of them: a command that the converter does not know stays in the text with its backslash."""
    convert = pytest.importorskip("latex2mathml.converter").convert
    count = 0
    for page in (ROOT / "docs" / "theory").glob("*.md"):
        text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        assert text.count("$") % 2 == 0, page.name
        for formula in re.findall(r"\$\$\n(.*?)\n\$\$|\$([^$]+)\$", text, re.DOTALL):
            plain_text = re.sub("<[^>]*>", "", convert(formula[0] or formula[1]))
            assert "\\" not in plain_text, (page.name, formula)
            assert "&" not in re.sub(r"&#?\w+;", "", plain_text), (page.name, formula)
            count += 1
    assert count > 400


def test_the_font_of_formulas_is_part_of_the_site() -> None:
    """With the table for brackets that grow, and its licence; nothing is fetched from elsewhere."""
    docs = ROOT / "docs"
    style = (docs / "math.css").read_text(encoding="utf-8")
    (file,) = re.findall(r'url\("([^"]+)"\)', style)
    font = (docs / file).read_bytes()
    assert font[:4] == b"wOF2"
    assert "SIL Open Font License, Version 1.1" in (docs / file).with_name("OFL.txt").read_text(encoding="utf-8")
    assert "//" not in re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL)
    pytest.importorskip("brotli")
    tables = pytest.importorskip("fontTools.ttLib").TTFont(docs / file)
    assert {"MATH", "cmap"} <= set(tables.keys())
    variants = tables["MATH"].table.MathVariants.VertGlyphCoverage.glyphs
    assert {tables.getBestCmap()[ord(bracket)] for bracket in "[](){}"} <= set(variants)

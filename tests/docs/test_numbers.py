"""The numbers in the pages are those that the programs behind them find: the quick ones, and not the times."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from docs.pages import PAGES, ROOT, difference, section, sections, with_section
from docs.theory.drawings import DRAWINGS
from docs.theory.numbers import QUICK
from dyn_service import Robot
from tests.conftest import ROBOTS

THEORY = ROOT / "docs" / "theory"


@pytest.mark.parametrize("name", QUICK)
def test_quick_parts_are_current(name: str) -> None:
    page, compute = QUICK[name]
    shown_section = section((THEORY / page).read_text(encoding="utf-8"), name)
    command = "run python -m docs.theory.make_plots numbers"
    if name in ("counts", "robots"):  # counts of operations are exact, on every machine
        assert shown_section == compute().strip(), command
    else:
        assert difference(shown_section, compute()) is None, command


def test_every_part_has_its_program() -> None:
    """No part is left over, none is missing, each on the page that its program writes to."""
    from docs.theory import make_plots

    source = inspect.getsource(make_plots)
    slow = {(page, name) for page, name in re.findall(r'write\("([\w.]+)", "(\w+)"', source)}
    documented = slow | {(page, name) for name, (page, _) in QUICK.items()}
    sections_found = {(path.name, name) for path in PAGES for name in sections(path.read_text(encoding="utf-8"))}
    assert sections_found == documented
    for page, name in sections_found:
        assert section((THEORY / page).read_text(encoding="utf-8"), name)


def test_figures_are_there_and_are_drawn() -> None:
    from docs.theory import make_plots

    source = inspect.getsource(make_plots)
    for path in THEORY.glob("*.md"):
        for image in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / image).is_file(), image
            is_drawn = Path(image).suffix == ".svg" and Path(image).stem in DRAWINGS
            assert is_drawn or f'"{Path(image).stem}' in source or f"{Path(image).name}" in source, (
                f"nothing draws {image}"
            )


@pytest.mark.parametrize("name", DRAWINGS)
def test_drawings_are_current(name: str) -> None:
    svg = (THEORY / "img" / f"{name}.svg").read_text(encoding="utf-8")
    assert svg == DRAWINGS[name](), "run python -m docs.theory.make_plots drawings"
    ElementTree.fromstring(svg)
    assert any(f"img/{name}.svg" in page.read_text(encoding="utf-8") for page in THEORY.glob("*.md"))


def test_parts_are_written_between_their_marks() -> None:
    page = "a\n<!-- made: x -->\nold\n<!-- end -->\nb\n<!-- made: y -->\nkept\n<!-- end -->\n"
    assert with_section(page, "x", " new\n") == page.replace("old", "\nnew\n")
    assert section(with_section(page, "x", "new"), "x") == "new"
    with pytest.raises(KeyError, match="no part"):
        section(page, "z")


WORDS = {7: "seven", 8: "eight", 9: "nine", 10: "ten", 11: "eleven", 12: "twelve", 13: "thirteen", 14: "fourteen"}
WORDS |= {15: "fifteen", 16: "sixteen", 17: "seventeen", 18: "eighteen", 19: "nineteen", 20: "twenty"}


def test_counts_in_the_prose() -> None:
    """Formulations that `verify` compares, and robots under urdf/."""
    pages = ("README.md", "docs/usage.md", "docs/oracle.md", "docs/theory/README.md")
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in pages)
    robot = Robot.from_urdf(ROOT / "urdf" / "double_pendulum.urdf")
    formulations = len(robot.verify(*np.zeros((3, 2))))
    for number in re.findall(r"(\w+) formulations", text):
        assert number == str(formulations) or number == WORDS[formulations]
    (ours,) = re.findall(r"our (\w+); 100 states", text)
    assert ours == WORDS[len(ROBOTS)]


def test_every_term_counts_as_the_page_says() -> None:
    from tests.terms import test_every_term_counts as terms

    page = (ROOT / "docs" / "oracle.md").read_text(encoding="utf-8")
    (number,) = re.findall(r"each of (\d+) terms removed in turn", page)
    assert int(number) == len(terms.EDITS)

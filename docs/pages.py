"""The pages' examples and generated parts: run, compared, brought up to date.

    python -m docs.pages                   # runs every example, writes what it prints into the text block below it

A page's ```python blocks run in order in one namespace, in a folder that has `urdf/`; a ```text block right after one
is what it prints. Between `<!-- made: NAME -->` and `<!-- end -->` stands what `docs.theory.make_plots` wrote.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])

ROUNDING = 1e-10
"""Below it a printed number is a rounding error, whose digits are those of the machine it was made on."""

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$\n?", re.MULTILINE | re.DOTALL)
_EXAMPLE = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:```text\n(?P<text>.*?)^```$)?", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?")


class Example(NamedTuple):
    """A block of Python: its code, the output below it (None: no output), and the place of that output in the page."""

    code: str
    text: str | None
    place: tuple[int, int]


def fenced(page: str, language: str) -> list[str]:
    """The page's fenced blocks in a language, in order."""
    return [code for found, code in _FENCED.findall(page) if found == language]


def examples(page: str) -> list[Example]:
    """The page's Python blocks, in order."""
    return [Example(m["code"], m["text"], m.span("text")) for m in _EXAMPLE.finditer(page)]


def run(page: str, name: str, replaced: Mapping[str, str] | None = None) -> tuple[list[str], dict[str, Any]]:
    """What each Python block prints, and the names that they leave.

    Args:
        page: The page's text.
        name: What a traceback calls it.
        replaced: Texts in the code to put others in place of: the endpoint of a server that is not there.
    """
    space: dict[str, Any] = {"__name__": "__page__"}
    printed = []
    for k, example in enumerate(examples(page)):
        code = example.code
        for old, new in (replaced or {}).items():
            code = code.replace(old, new)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, f"{name}, block {k + 1}", "exec", dont_inherit=True), space)
        printed.append(out.getvalue())
    return printed, space


def difference(expected: str, found: str) -> str | None:
    """Why two printed texts are not the same, or None.

    Words must be equal, white space aside. Numbers may differ by one in the last digit that is written down: the
    machine may round another way. Two below `ROUNDING` are the same.
    """
    wanted, got = (" ".join(_NUMBER.sub("#", text).split()) for text in (expected, found))
    if wanted != got:
        return f"expected {wanted!r}, found {got!r}"
    for one, other in zip(_NUMBER.findall(expected), _NUMBER.findall(found), strict=True):
        x, y = float(one), float(other)
        unit = min(_unit(one), _unit(other))  # NumPy writes 0. for a zero of any number of digits
        if abs(x - y) > 1.001 * unit and max(abs(x), abs(y)) > ROUNDING:
            return f"expected {one}, found {other}"
    return None


def _unit(number: str) -> float:
    """One in the last digit that is written down."""
    mantissa, _, exponent = number.partition("e")
    return float(10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2])))


def updated(page: str, printed: list[str]) -> str:
    """The page with the text blocks below its examples replaced, where they differ by more than rounding."""
    for example, text in reversed(list(zip(examples(page), printed, strict=True))):
        if example.text is not None and difference(example.text, text) is not None:
            begin, end = example.place
            page = page[:begin] + text + page[end:]
    return page


def section(page: str, name: str) -> str:
    """What a program wrote under that name.

    Raises:
        KeyError: The page has no such part.
    """
    return _section(page, name)[1]


def with_section(page: str, name: str, text: str) -> str:
    """Returns the page with that part replaced."""
    head, _, tail = _section(page, name)
    return f"{head}\n{text.strip()}\n{tail}"


def sections(page: str) -> list[str]:
    """The names of the page's written parts."""
    return re.findall(r"^<!-- made: (\w+) -->$", page, re.MULTILINE)


def _section(page: str, name: str) -> tuple[str, str, str]:
    begin, end = f"<!-- made: {name} -->\n", "\n<!-- end -->"
    head, found, rest = page.partition(begin)
    text, closed, tail = rest.partition(end)
    if not found or not closed:
        raise KeyError(f"the page has no part {begin.strip()!r} that ends with {end.strip()!r}")
    return head + begin, text.strip(), end + tail


if __name__ == "__main__":
    os.chdir(ROOT)
    for path in sorted((ROOT / "docs").rglob("*.md")):
        before = path.read_text(encoding="utf-8")
        if any(example.text is not None for example in examples(before)):
            after = updated(before, run(before, path.name)[0])
            if after != before:
                path.write_text(after, encoding="utf-8")
                print(f"-> {path.relative_to(ROOT)}")

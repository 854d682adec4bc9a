"""docs/mutations.md: the share caught by module, and every survivor with its line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from qa.mutations.operators import Mutant
from qa.mutations.run import CAUGHT, SURVIVED, TIMED_OUT, Outcome

HEAD = """# Mutations

Which small faults the tests catch. `python -m qa.mutations` puts one fault at a time into a module (a flipped sign,
a dropped term, swapped arguments, a transpose left out; `qa/mutations/operators.py` lists them), and runs the tests
of that module until one turns red. The command writes this page: each row is the last run over that module.

*caught*: a test turned red. *timed out*: a test did not end, which is red too. *explained*: no test can or should
catch it, `qa/mutations/explained.toml` says why. *survived*: none of these. *share*: caught and timed out of all
that are not explained. *tried* is a random sample where it says so.

| module | tried | caught | timed out | explained | survived | share |
|---|---|---|---|---|---|---|
"""

Rows = dict[str, tuple[str, str]]
"""By module: its row of the table, and its survivors' section, "" where there is none."""


def counted(outcomes: Iterable[Outcome], explained: set[int]) -> Counter[str]:
    """How many of each kind; a survivor whose mutant is explained counts as that."""
    return Counter(
        "explained" if outcome.kind == SURVIVED and id(outcome.mutant) in explained else outcome.kind
        for outcome in outcomes
    )


def row(label: str, tried: int, of: int, counts: Counter[str]) -> str:
    """One row of the table."""
    red = counts[CAUGHT] + counts[TIMED_OUT]
    held = tried - counts["explained"]
    share = f"{100.0 * red / held:.1f} %" if held else "-"
    number = f"{tried}" if tried == of else f"{tried} of {of}"
    cells = [label, number, counts[CAUGHT], counts[TIMED_OUT], counts["explained"], counts[SURVIVED], share]
    return "| " + " | ".join(map(str, cells)) + " |"


def section(module: str, survivors: Iterable[Mutant]) -> str:
    """The survivors of one module, each as the line without and with its fault."""
    lines = [f"### {module}", ""]
    for mutant in survivors:
        where = mutant.function or "the top"
        lines += [f"- in `{where}`", "", "  ```diff", f"  - {mutant.before}", f"  + {mutant.after}", "  ```"]
    return "\n".join(lines) + "\n" if len(lines) > 2 else ""


def read(path: Path) -> Rows:
    """The rows and sections of a page written before."""
    if not path.exists():
        return {}
    text = path.read_text()
    rows = {found[1]: (found[0], "") for found in re.finditer(r"^\| `([^`]+)` \|.*$", text, re.MULTILINE)}
    for found in re.finditer(r"^### (\S+)\n.*?(?=^### |\Z)", text, re.MULTILINE | re.DOTALL):
        if found[1] in rows:
            rows[found[1]] = (rows[found[1]][0], found[0])
    return rows


def write(path: Path, rows: Rows) -> None:
    """The page, of these rows and their sum."""
    total: Counter[str] = Counter()
    tried = of = 0
    for line, _ in rows.values():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        numbers = [int(number) for number in cells[1].split(" of ")]
        tried, of = tried + numbers[0], of + numbers[-1]
        total.update(dict(zip((CAUGHT, TIMED_OUT, "explained", SURVIVED), map(int, cells[2:6]), strict=True)))
    ordered = [rows[module] for module in sorted(rows)]
    text = HEAD + "\n".join(line for line, _ in ordered) + "\n" + row("all", tried, of, total) + "\n"
    if any(survivors for _, survivors in ordered):
        text += "\n## Survivors\n\n" + "\n".join(survivors.rstrip("\n") + "\n" for _, survivors in ordered if survivors)
    path.write_text(text)

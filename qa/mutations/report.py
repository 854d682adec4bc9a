"""docs/mutations.md: the share caught by module, and every survivor with its line."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path

from qa.mutations.operators import Mutant
from qa.mutations.run import CAUGHT, SURVIVED, TIMED_OUT, Outcome

HEAD = """# Mutations

Which small faults the tests catch. `python -m qa.mutations` puts one fault at a time into a module (a flipped sign,
a dropped term, swapped arguments, a transpose left out; `qa/mutations/operators.py` lists them), and runs the tests
of that module until one turns red. The command writes this page: each row is the last run over that module.

*caught*: a test turned red. *timed out*: a test did not end, which is red too. *explained*: no test can or should
catch it, `qa/mutations/explained.toml` says why. *survived*: none of these. *share*: caught and timed out of all
that are not explained.

SHARE

| module | tried | caught | timed out | explained | survived | share |
|---|---|---|---|---|---|---|
"""

Rows = dict[str, tuple[str, str]]
"""By module: its row of the table, and its survivors' section, "" without survivors."""


def outcome_counts(outcomes: Iterable[Outcome], explained: set[int]) -> Counter[str]:
    """How many of each kind; a survivor whose mutant is explained counts as that."""
    return Counter(
        "explained" if outcome.kind == SURVIVED and id(outcome.mutant) in explained else outcome.kind
        for outcome in outcomes
    )


def row(label: str, tried_count: int, total: int, counts: Counter[str]) -> str:
    """One row of the table."""
    red = counts[CAUGHT] + counts[TIMED_OUT]
    judged = tried_count - counts["explained"]
    share = f"{100.0 * red / judged:.1f} %" if judged else "-"
    number = f"{tried_count}" if tried_count == total else f"{tried_count} of {total}"
    cells = [label, number, counts[CAUGHT], counts[TIMED_OUT], counts["explained"], counts[SURVIVED], share]
    return "| " + " | ".join(map(str, cells)) + " |"


def section(module: str, survivors: Iterable[Mutant]) -> str:
    """The survivors of one module, each as the line without and with its fault."""
    lines = [f"### {module}", ""]
    for mutant in survivors:
        scope = mutant.function or "the top"
        lines += [f"- in `{scope}`", "", "  ```diff", f"  - {mutant.original}", f"  + {mutant.mutated}", "  ```"]
    return "\n".join(lines) + "\n" if len(lines) > 2 else ""


def read(path: Path) -> Rows:
    """The rows and sections of a page written before."""
    if not path.exists():
        return {}
    text = path.read_text()
    rows = {line[1]: (line[0], "") for line in re.finditer(r"^\| `([^`]+)` \|.*$", text, re.MULTILINE)}
    for block in re.finditer(r"^### (\S+)\n.*?(?=^### |\Z)", text, re.MULTILINE | re.DOTALL):
        if block[1] in rows:
            rows[block[1]] = (rows[block[1]][0], block[0])
    return rows


def _share(tried_count: int, mutant_count: int, untried_count: int) -> str:
    """The paragraph that says how much of the package the table is about."""
    share = (
        f"{tried_count} of {mutant_count} faults in these modules were tried, {tried_count / mutant_count:.1%}, a "
        "random "
        "sample of each module. Where all n of a module were caught, at most 3/n of its faults survive, at 95 % "
        f"confidence. {untried_count} further modules of `qa/mutations/plan.toml` have no row: none of their faults "
        "was tried."
    )
    return textwrap.fill(share, 118)


def write(path: Path, rows: Rows, untried: Collection[str] = ()) -> None:
    """The page, of these rows and their sum. untried: modules that have no row yet."""
    total: Counter[str] = Counter()
    tried_count = mutant_count = 0
    for line, _ in rows.values():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        numbers = [int(number) for number in cells[1].split(" of ")]
        tried_count, mutant_count = tried_count + numbers[0], mutant_count + numbers[-1]
        total.update(dict(zip((CAUGHT, TIMED_OUT, "explained", SURVIVED), map(int, cells[2:6]), strict=True)))
    ordered_rows = [rows[module] for module in sorted(rows)]
    head = HEAD.replace("SHARE", _share(tried_count, mutant_count, len(untried)))
    text = "\n".join(
        [head.rstrip("\n"), *(line for line, _ in ordered_rows), row("all", tried_count, mutant_count, total), ""]
    )
    if any(survivors for _, survivors in ordered_rows):
        text += "\n## Survivors\n\n" + "\n".join(
            survivors.rstrip("\n") + "\n" for _, survivors in ordered_rows if survivors
        )
    path.write_text(text)

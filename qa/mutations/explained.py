"""`explained.toml`: mutants that no test can catch, or that none should, each with its reason."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from qa.mutations.operators import Mutant

PATH = Path(__file__).with_name("explained.toml")


@dataclass(frozen=True)
class Explanation:
    """Why some mutants survive. They are found by what they change, not by their line.

    module, function: as in `Mutant`. original, mutated: its expressions; an empty one matches any.
    reason: one sentence.
    """

    module: str
    function: str
    reason: str
    original: str = ""
    mutated: str = ""

    def matches(self, mutant: Mutant) -> bool:
        """Whether this is one of them."""
        same = (self.module, self.function) == (mutant.module, mutant.function)
        return same and self.original in ("", mutant.original) and self.mutated in ("", mutant.mutated)


def explanations(path: Path = PATH) -> list[Explanation]:
    """All that are kept.

    Raises:
        TypeError: An entry lacks a key, or has one that is unknown.
        ValueError: An entry names no fault, or gives no reason.
    """
    entries = [Explanation(**entry) for entry in tomllib.loads(path.read_text()).get("explained", [])]
    for entry in entries:
        if not (entry.original or entry.mutated) or len(entry.reason.split()) < 4:
            raise ValueError(f"explained.toml: {entry} names no fault or gives no reason")
    return entries

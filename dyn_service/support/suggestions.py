"""'Did you mean': the known name that is nearest to one that does not exist, for every error message.

A message that says 'there is no X' ends with the nearest name, or with the known names if none is near. The likeness of
two names is difflib's ratio 2 M / T (M characters in matching blocks of T in both), without regard to case.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LIKENESS = 0.6
"""difflib's own measure of close: `xzy` is to `xyz`, `elbo` to `elbow`, `damp` to `damping`."""
SHORTEST = 3
"""Characters below which a likeness is chance: one of the two letters of `qd` is in `q`."""
LONGEST = 64
"""Characters of a name that is compared; real ones have up to 60, and comparing costs the product of two lengths."""
LISTED = 16
"""Most known names in a message."""
MOST = 256
"""Known names that are compared. Names are untrusted: a wrong one must not block a server (at most 0.1 s)."""


def closest(name: object, known: Iterable[str], likeness: float = LIKENESS) -> str | None:
    """The known name nearest to `name`; None if no name is close, or `name` is not text."""
    if not isinstance(name, str) or not SHORTEST <= len(name) <= LONGEST:
        return None
    names: dict[str, str] = {}
    for one in known:
        if len(one) <= LONGEST and len(names) < MOST:
            names.setdefault(one.casefold(), one)
    found = difflib.get_close_matches(name.casefold(), names, n=1, cutoff=likeness)
    return names[found[0]] if found else None


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` to end a message with; empty where no known name is near."""
    near = closest(name, known)
    return "" if near is None else f"; did you mean {near!r}?"


def known_instead(name: object, known: Iterable[str], are: str = "they are") -> str:
    """`; did you mean 'x'?`, or if no known name is near, `; {are} a, b and 44 more`."""
    names = list(known)
    listed = ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
    return did_you_mean(name, names) or (f"; {are} {listed}" if names else "; there are none")

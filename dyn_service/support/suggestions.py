"""'Did you mean': the known name that is nearest to one that does not exist, for every error message.

A message that says 'there is no X' ends with the nearest name, or with the known names if none is near. The likeness of
two names is difflib's ratio 2 M / T (M characters in matching blocks of T in both), without regard to case.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

LIKENESS = 0.6
"""difflib's own measure of close: `xzy` is to `xyz`, `elbo` to `elbow`, `damp` to `damping`."""
# Of shorter names a likeness is chance: one of the two letters of `qd` is in `q`.
MIN_LENGTH = 3
"""Least characters of a name that is compared."""
# Real names have up to 60 characters, and comparing takes the product of two lengths.
MAX_LENGTH = 64
"""Most characters of a name that is compared."""
MAX_LISTED = 16
"""Most known names in a message."""
# Names are untrusted: a wrong one must not block a server, at most 0.1 s.
MAX_COMPARED = 256
"""Most known names that are compared."""


def closest(name: object, known_names: Iterable[str], likeness: float = LIKENESS) -> str | None:
    """The known name nearest to `name`; None if no name is close, or `name` is not text."""
    if not isinstance(name, str) or not MIN_LENGTH <= len(name) <= MAX_LENGTH:
        return None
    names: dict[str, str] = {}
    for known_name in known_names:
        if len(known_name) <= MAX_LENGTH and len(names) < MAX_COMPARED:
            names.setdefault(known_name.casefold(), known_name)
    matches = difflib.get_close_matches(name.casefold(), names, n=1, cutoff=likeness)
    return names[matches[0]] if matches else None


def did_you_mean(name: object, known_names: Iterable[str]) -> str:
    """`; did you mean 'x'?` to end a message with; empty where no known name is near."""
    nearest = closest(name, known_names)
    return "" if nearest is None else f"; did you mean {nearest!r}?"


def known_instead(name: object, known_names: Iterable[str], are: str = "they are") -> str:
    """`; did you mean 'x'?`, or if no known name is near, `; {are} a, b and 44 more`."""
    names = list(known_names)
    return did_you_mean(name, names) or (f"; {are} {listing(names)}" if names else "; there are none")


def listing(names: Sequence[str], most: int = MAX_LISTED) -> str:
    """The first names, and the number of the others: `a, b and 44 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")

"""Inputs given by names (links, directions), and their one-hot vectors for kernels.

link          "tool0", or lists of names whose lengths are leading axes       one row of zeros and a 1 for each
directions    ["x", "y"]                                                      one row with a 1 for each
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dyn_service.api.arrays import found
from dyn_service.api.spec import BY_NAME, DIRECTIONS, Kind
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.support.suggestions import known_instead

Array = np.ndarray[Any, np.dtype[np.float64]]

_TAKES: Mapping[str, str] = {
    "link": "a link's name, or lists of names of one length",
    "directions": f"a list of {', '.join(DIRECTIONS)}",
}


def names_of(kind: Kind, value: Any, path: str) -> Any:
    """Returns the names as plain strings and lists; the robot checks that they exist.

    Raises:
        InvalidArgumentError: It is neither a name nor lists of names that are equally long.
    """
    name = path.removeprefix("inputs.")
    plain = _plain(value)
    if (kind == "directions" and isinstance(plain, str)) or _lead(plain) is None:
        raise InvalidArgumentError(f"{name} must be {_TAKES[kind]}, found {found(value)}", path=path)
    if kind == "directions":
        wrong = next((each for each in plain if each not in DIRECTIONS), None)
        if wrong is not None or not plain:
            raise InvalidArgumentError(
                f"{name} must be {_TAKES[kind]}, found {'none' if wrong is None else repr(wrong)}", path=path
            )
    return plain


def lead_of(kind: Kind, names: Any) -> tuple[int, ...]:
    """Returns the leading axes of a result of `names_of`."""
    return (_lead(names) or ()) if kind == "link" else ()


def one_hot(kind: Kind, names: Any, links: Sequence[str], robot: str, path: str) -> Array:
    """Returns the one-hot vectors, (..., nl) or (6,), for a result of `names_of`.

    Args:
        kind: One of `BY_NAME`.
        names: Of links or directions.
        links: Those of the robot.
        robot: Its name, for the error.
        path: Their path in the request.

    Raises:
        NotFoundError: The robot has no link of a name.
    """
    assert kind in BY_NAME
    if kind == "directions":
        return np.array([float(each in names) for each in DIRECTIONS])
    lead = lead_of(kind, names)
    made = np.zeros((*lead, len(links)))
    for index in np.ndindex(lead):
        each: Any = names
        for k in index:
            each = each[k]
        if each not in links:
            raise NotFoundError(
                f"robot '{robot}' has no link '{each}'{known_instead(each, links, 'its links are')}",
                path=path + "".join(f"[{k}]" for k in index),
            )
        made[(*index, links.index(each))] = 1.0
    return made


def _plain(value: Any) -> Any:
    """Converts arrays and tuples to lists, and NumPy's strings to Python's."""
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _lead(names: Any) -> tuple[int, ...] | None:
    """Returns the lengths of nested lists of strings, outermost first; None if they are irregular."""
    if isinstance(names, str):
        return ()
    if not isinstance(names, list):
        return None
    inner = {_lead(each) for each in names}
    if not inner:
        return (0,)
    (first, *others) = inner
    return None if others or first is None else (len(names), *first)

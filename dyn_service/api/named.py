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
    # A text is a sequence of texts: "xyz" would be taken for three directions.
    if (kind == "directions" and isinstance(plain, str)) or _lead(plain) is None:
        raise InvalidArgumentError(f"{name} must be {_TAKES[kind]}, found {found(value)}", path=path)
    if kind == "directions":
        wrong = next((direction for direction in plain if direction not in DIRECTIONS), None)
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
        return np.array([float(direction in names) for direction in DIRECTIONS])
    lead = lead_of(kind, names)
    vectors = np.zeros((*lead, len(links)))
    for index in np.ndindex(lead):
        link: Any = names
        for k in index:
            link = link[k]
        if link not in links:
            raise NotFoundError(
                f"robot '{robot}' has no link '{link}'{known_instead(link, links, 'its links are')}",
                path=path + "".join(f"[{k}]" for k in index),
            )
        vectors[(*index, links.index(link))] = 1.0
    return vectors


def _plain(value: Any) -> Any:
    """Converts arrays and tuples to lists, and NumPy's strings to Python's."""
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def _lead(names: Any) -> tuple[int, ...] | None:
    """Returns the lengths of nested lists of strings, outermost first; None if they are irregular."""
    if isinstance(names, str):
        return ()
    if not isinstance(names, list):
        return None
    inner_leads = {_lead(entry) for entry in names}
    # An empty list is a batch without states, as an empty array is.
    if not inner_leads:
        return (0,)
    lead = inner_leads.pop()
    return None if inner_leads or lead is None else (len(names), *lead)

"""Maps in a message that encode a `Wrench`, `Contact`, `Payload` or `Overlay`.

Unknown keys are an error: ignoring a misspelled `torque` would change the answer silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from dyn_service.errors import InvalidArgumentError
from dyn_service.service.protocol.arrays import describe_value, show_value
from dyn_service.support.suggestions import did_you_mean

_T = TypeVar("_T")


def fault(path: str, what: str) -> InvalidArgumentError:
    """Returns the error for the value at a path of the request."""
    return InvalidArgumentError(f"{path.removeprefix('inputs.')} {what}", path=path)


def each_of(value: Any, kind: type[_T], path: str) -> Iterator[tuple[_T, str]]:
    """Yields each struct of a value, one struct or a sequence of them, with its path.

    Raises:
        InvalidArgumentError: An entry is not a `kind`.
    """
    entries = [value] if isinstance(value, kind) else value
    if isinstance(entries, str) or not isinstance(entries, Sequence):
        raise fault(path, f"must be a {kind.__name__} or a list of them, found {type(value).__name__}")
    for index, entry in enumerate(entries):
        place = f"{path}[{index}]"
        if not isinstance(entry, kind):
            raise fault(place, f"must be a {kind.__name__}, found {type(entry).__name__}")
        yield entry, place


def entries(value: Any, path: str) -> Iterator[tuple[Any, str]]:
    """Yields each entry of a decoded value, one map or a list of them, with its path."""
    if type(value) is list:
        for index, entry in enumerate(value):
            yield entry, f"{path}[{index}]"
    else:
        yield value, path


def read_map(value: Any, path: str, known: Sequence[str], what: str = "a map") -> dict[str, Any]:
    """Returns a map's entries except those that are nil.

    Raises:
        InvalidArgumentError: The value is not a map, or has an unknown key.
    """
    if type(value) is not dict:
        raise fault(path, f"must be {what}, found {describe_value(value)}")
    for key in value:
        if key not in known:
            near = did_you_mean(key, known)
            raise fault(path, f"has no {show_value(key)}; its keys are {', '.join(known)}{near}")
    return {key: each for key, each in value.items() if each is not None}


def check_name(given: dict[str, Any], key: str, path: str) -> None:
    """Checks that an entry is a string.

    Raises:
        InvalidArgumentError: The entry is missing or not a string.
    """
    if type(given.get(key)) is not str:
        raise fault(f"{path}.{key}", f"must be a name, found {describe_value(given.get(key))}")

"""Errors that begin with the path of their key in a study, `outputs.tau.select.joint: ..`, and values by key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from dyn_service.api.arrays import found
from dyn_service.api.queries import Wrench
from dyn_service.errors import DynError, InvalidArgumentError
from dyn_service.support.suggestions import did_you_mean, listing
from dyn_service.support.validation import MismatchError, convert, dotted

T = TypeVar("T")

_NAMES = 40
"""The most names in an error."""

_FORMS = {"uniform": "[lower, upper] or limits", "normal": "[mean, deviation]", "linspace": "[first, last, count]"}


def wrong(path: str, text: str, kind: type[DynError] = InvalidArgumentError) -> DynError:
    """Returns an error whose message begins with the path of a key."""
    return kind(f"{path}: {text}" if path else text, path=path)


def check_names(
    path: str, role: str, names: Iterable[str], known_names: Iterable[Any], kind: type[DynError] = InvalidArgumentError
) -> None:
    """Raises the error for the first name that does not exist, with those that do."""
    choices = [str(entry) for entry in known_names]
    for name in names:
        if name not in choices:
            names_text = listing(choices, _NAMES) or "none"
            raise wrong(path, f"no {role} '{name}', only {names_text}{did_you_mean(name, choices)}", kind)


@contextmanager
def within(path: str) -> Iterator[None]:
    """Puts the path of a key before the paths of errors that are raised inside."""
    try:
        yield
    except DynError as error:
        has_path = error.path is not None and error.message.startswith(f"{error.path}: ")
        error.message = f"{path}.{error.message}" if has_path else f"{path}: {error.message}"
        error.path = f"{path}.{error.path}" if has_path else path
        raise


def part_of(values: Any, kind: type[T], path: str = "") -> T:
    """Returns plain values as a struct; errors begin with the path of their key."""
    try:
        return convert(values, kind)
    except MismatchError as error:
        text, value, form = str(error), values, _FORMS.get(str(error.place[-1] if error.place else ""))
        # A key may be missing on the way to the value.
        with suppress(TypeError, LookupError):
            for step in error.place:
                value = value[step]
        if isinstance(value, str):
            text = text.replace("found text", f"found {value!r}")
            form = form or (f"[{value}]" if text.startswith("expected a list") else None)
        place = dotted([*([path] if path else []), *error.place])
        raise wrong(place, text + (f"; write {form}" if form else "")) from None


def wrenches_of(options: Mapping[str, Any]) -> list[Wrench] | None:
    """Returns the external wrenches in the options of a query, where they may be maps of their fields."""
    wrenches = []
    for k, wrench in enumerate(options.get("wrenches") or ()):
        try:
            wrenches.append(wrench if isinstance(wrench, Wrench) else Wrench(**wrench))
        except TypeError:
            form = "a map of link, force, torque, point and frame"
            raise wrong(f"options.wrenches[{k}]", f"must be {form}, found {found(wrench)}") from None
    return wrenches or None

"""The values of one launch file: substitutions made, conditions and numbers read, every fault with its place."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dyn_service.errors import DynError
from dyn_service.graph.launch.schema import LaunchFile, Text
from dyn_service.graph.launch.substitutions import Scope, substitute, truth
from dyn_service.support.documents import ConfigurationError, Document, parse_document
from dyn_service.support.validation import Place


class FileValues:
    """Reads values of a launch file, with the variables and the namespace at the point where its reader stands.

    environment: what `$(env ..)` sees. folder: the launch's own, for `$(endpoint ..)`; None where there is none.
    """

    def __init__(self, launch: LaunchFile, environment: Mapping[str, str], folder: Path | None) -> None:
        self.launch = launch
        self.document: Document = launch.document
        self.environment = environment
        self.folder = folder
        self.variables: dict[str, str] = {}
        self.namespace = "/"

    def scope(self, file: Path | None = None, namespace: str | None = None) -> Scope:
        """What substitutions see here, or in another file, or in a node's own namespace."""
        return Scope(
            self.launch.path if file is None else file,
            self.variables,
            self.environment,
            self.folder,
            self.namespace if namespace is None else namespace,
        )

    def text(self, value: Text, place: Place) -> str:
        """The value as text with its substitutions made."""
        with self.located(place):
            return substitute(as_written(value), self.scope())

    @contextmanager
    def located(self, place: Place) -> Iterator[None]:
        """Gives faults that know no place this one."""
        try:
            yield
        except DynError as error:
            if isinstance(error, ConfigurationError) and error.file is not None:
                raise  # it knows its place
            raise self.document.fault(error.message, place) from None

    def condition(self, action: Any, place: Place) -> bool:
        """Whether the action's `if` and `unless` let it be."""
        for key, value, wanted in (("if", action.if_, True), ("unless", action.unless, False)):
            if value is not None:
                text = self.text(value, (*place, key))
                with self.located((*place, key)):
                    if truth(text) is not wanted:
                        return False
        return True

    def number(self, value: Text, place: Place, *, least: float = 0.0) -> float:
        """The value as a number of at least `least`."""
        text = self.text(value, place)
        try:
            number = float(text)
        except ValueError:
            raise self.document.fault(f"expected a number, got {text!r}", place) from None
        if not least <= number < float("inf"):
            raise self.document.fault(f"expected a number of at least {least:g}, got {text}", place)
        return number

    def words(self, value: Text, place: Place) -> list[str]:
        """The value as the words of a command line."""
        text = self.text(value, place)
        try:
            return shlex.split(text)
        except ValueError as error:
            raise self.document.fault(f"cannot be split into words: {error}", place) from None

    def evaluate(self, value: Any, place: Place, scope: Scope | None = None) -> Any:
        """A parameter's value: text with substitutions is read as YAML, as ROS 2 does."""
        if isinstance(value, list):
            return [self.evaluate(item, (*place, k), scope) for k, item in enumerate(value)]
        if isinstance(value, dict):
            return {key: self.evaluate(item, (*place, key), scope) for key, item in value.items()}
        if isinstance(value, str) and "$(" in value:
            with self.located(place):
                text = substitute(value, self.scope() if scope is None else scope)
            return parse_document(text, self.document.file).value
        return value


def as_written(value: Text) -> str:
    """A scalar of YAML as it is written there."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)

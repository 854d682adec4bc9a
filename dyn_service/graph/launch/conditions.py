"""The nodes that an `if` or an `unless` leaves out of a launch: parameter files may have sections for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dyn_service.errors import DynError
from dyn_service.graph.launch import schema
from dyn_service.graph.launch.schema import LaunchFile
from dyn_service.graph.launch.substitutions import truth
from dyn_service.graph.launch.values import FileValues
from dyn_service.support.arguments import full_name
from dyn_service.support.validation import Place

_MAX_FILES = 64


class LeftOut(FileValues):
    """The names of nodes in an action that is left out, whatever the conditions within it.

    What cannot be read there names nobody and is no fault, for nothing of it is started: such as a file to be included
    that is not there, or a variable that only a branch has which was not taken.
    """

    def __init__(
        self, launch: LaunchFile, environment: Mapping[str, str], folder: Path | None, seen: set[tuple[Path, str]]
    ) -> None:
        super().__init__(launch, environment, folder)
        self._seen = seen
        self._found: list[str] = []

    def names(self, action: Any, place: Place, variables: Mapping[str, str], namespace: str) -> list[str]:
        """Full names of the nodes of an action that stands at `place`, with these variables in this namespace."""
        self.variables, self.namespace = dict(variables), namespace
        self._take(action, place)
        return self._found

    def _take(self, action: Any, place: Place) -> None:
        try:
            self._one(action, place)
        except DynError:
            return

    def _one(self, action: Any, place: Place) -> None:
        if isinstance(action, schema.Arg):
            if action.default is not None:
                self.variables.setdefault(action.name, self.text(action.default, place))
        elif isinstance(action, schema.Let):
            self.variables[action.name] = self.text(action.value, place)
        elif isinstance(action, schema.PushRosNamespace):
            self.namespace = full_name(self.namespace, self.text(action.namespace, place))
        elif isinstance(action, schema.NodeAction):
            executable = self.text(action.exec, place).removesuffix(".py")
            name = Path(executable).name if action.name is None else self.text(action.name, place)
            self._found.append(full_name(full_name(self.namespace, self.text(action.namespace, place)), name))
        elif isinstance(action, schema.Group):
            before = (dict(self.variables), self.namespace)
            for placed in schema.inner_actions(self.document, action, place):
                self._take(placed.action, placed.place)
            if truth(self.text(action.scoped, place)):
                self.variables, self.namespace = before
        elif isinstance(action, schema.Include):
            self._include(action, place)

    def _include(self, action: schema.Include, place: Place) -> None:
        path = (self.launch.path.parent / self.text(action.file, place)).resolve()
        if (path, self.namespace) in self._seen or len(self._seen) >= _MAX_FILES:
            return  # files may include each other where a condition ends it
        self._seen.add((path, self.namespace))
        inner = LeftOut(schema.read_launch_file(path), self.environment, self.folder, self._seen)
        given = {self.text(pair.name, place): self.text(pair.value, place) for _, pair in action.given()}
        inner.variables, inner.namespace = given, "/"
        for placed in inner.launch.actions:
            inner._take(placed.action, placed.place)
        self._found += inner._found

r"""Substitutions in launch files, `$(name argument ...)`, also nested; conditions; declared arguments.

    $(var x)               the value of the launch argument or `let` x
    $(env NAME [default])  an environment variable
    $(dirname)             the folder of the launch file; $(filename) its name
    $(endpoint NAME)       a socket in the launch's folder, in the current namespace: ipc:///run/user/1000/dyn-x1/NAME
    $(find-pkg-share pkg)  the folder with the package's launch, config and urdf folders
    $(not a) $(and a b) $(or a b) $(equals a b)     "true" or "false"
    $(string-join DELIMITER a ..) $(path-join a ..) the joined texts, the joined path

Arguments are separated by spaces; single or double quotes enclose an argument with spaces. `\$` is a dollar sign. ROS
2's substitutions that run code, `$(eval ..)` and `$(command ..)`, are refused.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dyn_service.errors import DynError, InvalidArgumentError
from dyn_service.graph.launch.schema import Arg, Group, Include, LaunchFile, Text, inner_actions, read_launch_file
from dyn_service.graph.middleware import topics
from dyn_service.support.documents import ConfigurationError, Document, parse_document
from dyn_service.support.shipped import package_share
from dyn_service.support.validation import Place, suggestion

_BLANKS = " \t\n"
_MAX_DEPTH = 32
_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})


@dataclass(frozen=True)
class Scope:
    """The context of substitutions: their file, variables, environment, the launch's folder, the namespace."""

    file: Path
    variables: Mapping[str, str]
    environment: Mapping[str, str]
    folder: Path | None = None
    namespace: str = "/"


def substitute(text: str, scope: Scope) -> str:
    """Returns the text with all substitutions replaced; raises `InvalidArgumentError` for an invalid one."""
    result, end = _scan(text, 0, scope, depth=0, closing=False)
    assert end == len(text)
    return result


def truth(text: str) -> bool:
    """Parses a condition: true, 1, yes, on; false, 0, no, off; in any case."""
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise InvalidArgumentError(f"{text!r} is not a condition: expected true or false")


def _scan(text: str, index: int, scope: Scope, *, depth: int, closing: bool) -> tuple[str, int]:
    """Reads plain text from `index`; with `closing`, up to the space or bracket that ends an argument."""
    parts: list[str] = []
    quote = ""
    while index < len(text):
        char = text[index]
        if char == "\\" and text[index + 1 : index + 2] in ("$", "\\", '"', "'"):
            parts.append(text[index + 1])
            index += 2
        elif text.startswith("$(", index):
            value, index = _call(text, index, scope, depth + 1)
            parts.append(value)
        elif closing and quote and char == quote:
            quote = ""
            index += 1
        elif closing and not quote and char in "\"'":
            quote = char
            index += 1
        elif closing and not quote and (char == ")" or char in _BLANKS):
            break
        else:
            parts.append(char)
            index += 1
    if quote:
        raise InvalidArgumentError(f"{text!r}: a quote {quote} is not closed")
    return "".join(parts), index


def _call(text: str, index: int, scope: Scope, depth: int) -> tuple[str, int]:
    """Evaluates the substitution at `index`; returns its value and the index after it."""
    if depth > _MAX_DEPTH:
        raise InvalidArgumentError(f"substitutions are nested more than {_MAX_DEPTH} deep")
    start = index
    index += 2
    words: list[str] = []
    while True:
        while index < len(text) and text[index] in _BLANKS:
            index += 1
        if index >= len(text):
            raise InvalidArgumentError(f"{text[start:]!r}: the bracket of the substitution is not closed")
        if text[index] == ")":
            break
        word, index = _scan(text, index, scope, depth=depth, closing=True)
        words.append(word)
    if not words:
        raise InvalidArgumentError("'$()' is empty: expected the name of a substitution")
    name, *arguments = words
    if name not in _FUNCTIONS:
        if name in ("eval", "command"):
            raise InvalidArgumentError(f"substitution '$({name} ..)' is refused: launch files run no code")
        raise InvalidArgumentError(f"unknown substitution '$({name} ..)'{suggestion(name, _FUNCTIONS)}")
    function, min_count, max_count = _FUNCTIONS[name]
    if not min_count <= len(arguments) <= max_count:
        count = str(min_count)
        if max_count > min_count:
            count = f"at least {min_count}" if max_count > _MANY else f"{min_count} to {max_count}"
        raise InvalidArgumentError(f"substitution '$({name} ..)' takes {count} arguments, got {len(arguments)}")
    return function(scope, arguments), index + 1


def _var(scope: Scope, arguments: list[str]) -> str:
    name = arguments[0]
    if name in scope.variables:
        return scope.variables[name]
    if len(arguments) == 2:
        return arguments[1]
    raise InvalidArgumentError(f"variable {name!r} is not set at this point{suggestion(name, scope.variables)}")


def _env(scope: Scope, arguments: list[str]) -> str:
    if arguments[0] in scope.environment:
        return scope.environment[arguments[0]]
    if len(arguments) == 2:
        return arguments[1]
    raise InvalidArgumentError(f"environment variable {arguments[0]!r} is not set and no default is given")


def _endpoint(scope: Scope, arguments: list[str]) -> str:
    if scope.folder is None:
        raise InvalidArgumentError("'$(endpoint ..)' names a socket in the launch's folder: it needs a launch")
    return topics.endpoint(arguments[0], scope.namespace, {}, scope.folder)


_MANY = 10
_FUNCTIONS: dict[str, tuple[Callable[[Scope, list[str]], str], int, float]] = {
    "var": (_var, 1, 2),
    "env": (_env, 1, 2),
    "dirname": (lambda scope, _: str(scope.file.parent), 0, 0),
    "filename": (lambda scope, _: scope.file.name, 0, 0),
    "endpoint": (_endpoint, 1, 1),
    "find-pkg-share": (lambda _, arguments: str(package_share(arguments[0])), 1, 1),
    "not": (lambda _, arguments: as_written(not truth(arguments[0])), 1, 1),
    "and": (lambda _, arguments: as_written(truth(arguments[0]) and truth(arguments[1])), 2, 2),
    "or": (lambda _, arguments: as_written(truth(arguments[0]) or truth(arguments[1])), 2, 2),
    "equals": (lambda _, arguments: as_written(arguments[0] == arguments[1]), 2, 2),
    "string-join": (lambda _, arguments: arguments[0].join(arguments[1:]), 2, math.inf),
    "path-join": (lambda _, arguments: str(Path(*arguments)), 1, math.inf),
}


class FileValues:
    """Reads values of a launch file with the variables and the namespace at the current action.

    environment: variables for `$(env ..)`. folder: the launch's folder, for `$(endpoint ..)`, or None.
    """

    def __init__(self, launch: LaunchFile, environment: Mapping[str, str], folder: Path | None) -> None:
        self.launch = launch
        self.document: Document = launch.document
        self.environment = environment
        self.folder = folder
        self.variables: dict[str, str] = {}
        self.namespace = "/"

    def scope(self, file: Path | None = None, namespace: str | None = None) -> Scope:
        """Returns the context of substitutions, optionally for another file or namespace."""
        return Scope(
            self.launch.path if file is None else file,
            self.variables,
            self.environment,
            self.folder,
            self.namespace if namespace is None else namespace,
        )

    def text(self, value: Text, place: Place) -> str:
        """Returns the value as text with substitutions replaced."""
        with self.located(place):
            return substitute(as_written(value), self.scope())

    @contextmanager
    def located(self, place: Place) -> Iterator[None]:
        """Adds the place to errors without one."""
        try:
            yield
        except DynError as error:
            if isinstance(error, ConfigurationError) and error.file is not None:
                raise  # it has a place
            raise self.document.fault(error.message, place) from None

    def condition(self, action: Any, place: Place) -> bool:
        """Returns whether the action's `if` and `unless` hold."""
        for key, value, expected_truth in (("if", action.if_, True), ("unless", action.unless, False)):
            if value is not None and self.truth(value, (*place, key)) is not expected_truth:
                return False
        return True

    def truth(self, value: Text, place: Place) -> bool:
        """Returns the value as true or false."""
        text = self.text(value, place)
        with self.located(place):
            return truth(text)

    def number(self, value: Text, place: Place, *, minimum: float = 0.0) -> float:
        """Returns the value as a number of at least `minimum`."""
        text = self.text(value, place)
        try:
            number = float(text)
        except ValueError:
            raise self.document.fault(f"expected a number, got {text!r}", place) from None
        if not minimum <= number < float("inf"):
            raise self.document.fault(f"expected a number of at least {minimum:g}, got {text}", place)
        return number

    def words(self, value: Text, place: Place) -> list[str]:
        """Returns the value split into words, as a shell does."""
        text = self.text(value, place)
        try:
            return shlex.split(text)
        except ValueError as error:
            raise self.document.fault(f"cannot be split into words: {error}", place) from None

    def evaluate(self, value: Any, place: Place, scope: Scope | None = None) -> Any:
        """Returns a parameter's value: text with substitutions is parsed as YAML, as in ROS 2."""
        if isinstance(value, list):
            return [self.evaluate(item, (*place, k), scope) for k, item in enumerate(value)]
        if isinstance(value, dict):
            return {key: self.evaluate(item, (*place, key), scope) for key, item in value.items()}
        if isinstance(value, str) and "$(" in value:
            with self.located(place):
                text = substitute(value, self.scope() if scope is None else scope)
            # "1" from a substitution is a number for a parameter, as in ROS 2
            return parse_document(text, self.document.file).value
        return value


def as_written(value: Text) -> str:
    """Returns a YAML scalar as it was written."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


PARAMS = Arg(name="params", default="", description="a parameter file with priority over the launch file")
"""Argument of each launch file that declares none of this name."""


def show_arguments(path: Path | str) -> list[str]:
    """Returns the arguments of a launch file and its includes as lines: description, default, choices."""
    arguments, includes = declared_arguments(path)
    lines = []
    for name, arg in arguments.items():
        lines.append(f"{name}: {as_written(arg.description)}" if arg.description else name)
        lines.append("    must be given" if arg.default is None else f"    default: {as_written(arg.default)}")
        if arg.choice:
            lines.append(f"    one of: {', '.join(as_written(choice.value) for choice in arg.choice)}")
    lines += [f"and the arguments of {file}: its path depends on arguments" for file in includes]
    return lines


def declared_arguments(path: Path | str) -> tuple[dict[str, Arg], list[str]]:
    """Returns the arguments of a launch file and its includes by name, with `PARAMS`, and includes whose path depends
    on arguments.
    """
    arguments: dict[str, Arg] = {}
    unread_files = _collect_arguments(read_launch_file(Path(path)), arguments, [])
    arguments.setdefault(PARAMS.name, PARAMS)
    return arguments, unread_files


def _collect_arguments(launch: LaunchFile, arguments: dict[str, Arg], including_files: list[Path]) -> list[str]:
    """Adds the declared arguments; returns included files whose path depends on variables."""
    unread_files: list[str] = []
    actions = list(launch.actions)
    while actions:
        placed_action = actions.pop(0)
        action = placed_action.action
        if isinstance(action, Arg):
            arguments.setdefault(action.name, action)
        elif isinstance(action, Group):
            actions[:0] = inner_actions(launch.document, action, placed_action.place)
        elif isinstance(action, Include):
            try:
                file = launch.path.parent / substitute(as_written(action.file), Scope(launch.path, {}, os.environ))
            except InvalidArgumentError:
                unread_files.append(as_written(action.file))
                continue
            # a file that includes itself under a condition declares nothing new
            if file not in including_files:
                inner: dict[str, Arg] = {}
                unread_files += _collect_arguments(read_launch_file(file), inner, [*including_files, file])
                given_names = {as_written(pair.name) for _, pair in action.arguments()}
                arguments |= {name: arg for name, arg in inner.items() if name not in given_names | arguments.keys()}
    return unread_files

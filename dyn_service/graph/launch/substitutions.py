r"""Substitutions in launch files: `$(name argument ...)`, nested at will.

    $(var x)               the value of the launch argument or `let` x
    $(env NAME [default])  an environment variable
    $(dirname)             the folder of the launch file; $(filename) its name
    $(endpoint NAME)       a socket in the launch's own folder, in the present namespace: ipc:///run/user/1000/dyn-x1/NAME
    $(find-pkg-share pkg)  the folder that holds the package's launch, config and urdf folders
    $(not a) $(and a b) $(or a b) $(equals a b)     "true" or "false"

Arguments are divided by blanks; one that holds blanks stands in single or double quotes. `\$` is a dollar sign. What
ROS 2 offers to run code from a launch file, `$(eval ..)` and `$(command ..)`, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.middleware import topics
from dyn_service.support.shipped import package_share
from dyn_service.support.validation import suggestion

_BLANKS = " \t\n"
_MAX_DEPTH = 32
_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})


@dataclass(frozen=True)
class Scope:
    """What substitutions can see: the file they stand in, the variables set so far, the environment, the launch's own
    folder, the namespace.
    """

    file: Path
    variables: Mapping[str, str]
    environment: Mapping[str, str]
    folder: Path | None = None
    namespace: str = "/"


def substitute(text: str, scope: Scope) -> str:
    """The text with every substitution replaced.

    Raises:
        InvalidArgumentError: It names the substitution and what is wrong with it.
    """
    result, end = _scan(text, 0, scope, depth=0, closing=False)
    assert end == len(text)
    return result


def truth(text: str) -> bool:
    """The text as a condition: true, 1, yes, on; false, 0, no, off; in any case.

    Raises:
        InvalidArgumentError: It is none of these.
    """
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise InvalidArgumentError(f"{text!r} is not a condition: expected true or false")


def _scan(text: str, at: int, scope: Scope, *, depth: int, closing: bool) -> tuple[str, int]:
    """Reads plain text from `at`; with `closing`, up to the blank or bracket that ends an argument."""
    parts: list[str] = []
    quote = ""
    while at < len(text):
        char = text[at]
        if char == "\\" and text[at + 1 : at + 2] in ("$", "\\", '"', "'"):
            parts.append(text[at + 1])
            at += 2
        elif text.startswith("$(", at):
            value, at = _call(text, at, scope, depth + 1)
            parts.append(value)
        elif closing and quote and char == quote:
            quote = ""
            at += 1
        elif closing and not quote and char in "\"'":
            quote = char
            at += 1
        elif closing and not quote and (char == ")" or char in _BLANKS):
            break
        else:
            parts.append(char)
            at += 1
    if quote:
        raise InvalidArgumentError(f"{text!r}: a quote {quote} is not closed")
    return "".join(parts), at


def _call(text: str, at: int, scope: Scope, depth: int) -> tuple[str, int]:
    """Evaluates the substitution that begins at `at`; its value and where the text goes on."""
    if depth > _MAX_DEPTH:
        raise InvalidArgumentError(f"substitutions are nested more than {_MAX_DEPTH} deep")
    start = at
    at += 2
    words: list[str] = []
    while True:
        while at < len(text) and text[at] in _BLANKS:
            at += 1
        if at >= len(text):
            raise InvalidArgumentError(f"{text[start:]!r}: the bracket of the substitution is not closed")
        if text[at] == ")":
            break
        word, at = _scan(text, at, scope, depth=depth, closing=True)
        words.append(word)
    if not words:
        raise InvalidArgumentError("'$()' names no substitution")
    name, *arguments = words
    if name not in _FUNCTIONS:
        if name in ("eval", "command"):
            raise InvalidArgumentError(f"substitution '$({name} ..)' is refused: launch files run no code")
        raise InvalidArgumentError(f"unknown substitution '$({name} ..)'{suggestion(name, _FUNCTIONS)}")
    function, least, most = _FUNCTIONS[name]
    if not least <= len(arguments) <= most:
        count = str(least) if least == most else f"{least} to {most}"
        raise InvalidArgumentError(f"substitution '$({name} ..)' takes {count} arguments, got {len(arguments)}")
    return function(scope, arguments), at + 1


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
        raise InvalidArgumentError("'$(endpoint ..)' needs the folder of a launch: there is no launch here")
    return topics.endpoint(arguments[0], scope.namespace, {}, scope.folder)


def _text(value: bool) -> str:
    return "true" if value else "false"


_FUNCTIONS: dict[str, tuple[Callable[[Scope, list[str]], str], int, int]] = {
    "var": (_var, 1, 2),
    "env": (_env, 1, 2),
    "dirname": (lambda scope, _: str(scope.file.parent), 0, 0),
    "filename": (lambda scope, _: scope.file.name, 0, 0),
    "endpoint": (_endpoint, 1, 1),
    "find-pkg-share": (lambda _, arguments: str(package_share(arguments[0])), 1, 1),
    "not": (lambda _, arguments: _text(not truth(arguments[0])), 1, 1),
    "and": (lambda _, arguments: _text(truth(arguments[0]) and truth(arguments[1])), 2, 2),
    "or": (lambda _, arguments: _text(truth(arguments[0]) or truth(arguments[1])), 2, 2),
    "equals": (lambda _, arguments: _text(arguments[0] == arguments[1]), 2, 2),
}

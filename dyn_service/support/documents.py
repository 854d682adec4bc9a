"""Launch and parameter files: YAML with the line of every value, converted to typed structs.

An error names the file, the line, the path from the document's root and what was expected:

    config/panda_plant.yaml:7: plant.ros__parameters.rate_hz: expected a number, found text

Beyond YAML 1.1 as PyYAML reads it, `1e-3` and `-.5` are numbers, and duplicate keys are errors. A
mapping's own keys override those that `<<` merges into it, and the first of several merged mappings those after it.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.support.suggestions import did_you_mean

MAX_FILE_BYTES = 1 << 20
MAX_NODES = 100_000
"""Values of a document; an alias counts with all values that it refers to."""
MAX_NUMBER = 256
"""Characters of a number: PyYAML's time for the sexagesimal ones of YAML 1.1 is quadratic in them."""
_MERGE = "tag:yaml.org,2002:merge"
_Pairs = dict[str, tuple[yaml.ScalarNode, yaml.Node]]


class ConfigurationError(InvalidArgumentError):
    """An error in a launch or parameter file. `str()` is `file:line: path: cause`."""

    details = ("file", "line")

    def __init__(
        self, message: str, *, path: str | None = None, file: str | None = None, line: int | None = None
    ) -> None:
        super().__init__(message, path=path)
        self.file = file
        self.line = line

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        return ": ".join(part for part in (place, self.path, self.message) if part)


class _Loader(yaml.SafeLoader):
    """YAML 1.1 with the floats of YAML 1.2. Nodes are counted as they are read, keys as they are merged."""

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text)
        self.file, self.count = file, 0
        self.pairs: dict[int, _Pairs | None] = {}
        """Those of each mapping by its node's id; None while they are collected."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """The next node."""
        self._spend(1, self.line + 1)
        return super().compose_node(parent, index)

    def _spend(self, count: int, line: int) -> None:
        self.count += count
        if self.count > 2 * MAX_NODES:
            raise self._fault(f"more than {MAX_NODES} values", line)

    def _fault(self, message: str, line: int, place: Place = ()) -> ConfigurationError:
        return ConfigurationError(message, path=dotted(place) or None, file=self.file, line=line)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?([0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+|\.[0-9]+([eE][-+]?[0-9]+)?)$"),
    list("-+.0123456789"),
)


@dataclass(frozen=True)
class Document:
    """A YAML file as values, with the line of each."""

    file: str
    value: Any
    lines: Mapping[Place, int]

    def fault(self, message: str, place: Place = ()) -> ConfigurationError:
        """Returns the error `message` about the value at `place`."""
        known = place
        while known and known not in self.lines:
            known = known[:-1]
        return ConfigurationError(message, path=dotted(place) or None, file=self.file, line=self.lines.get(known))

    def convert(self, value: Any, kind: type[T], place: Place = ()) -> T:
        """The value as the struct `kind`.

        Raises:
            ConfigurationError: Names the key, the value found and what was expected.
        """
        try:
            return convert(value, kind)
        except MismatchError as error:
            raise self.fault(error.message, place + error.place) from None


def read_document(path: Path) -> Document:
    """Reads the YAML file at `path`.

    Raises:
        NotFoundError: There is no such file.
        ConfigurationError: It is not YAML, or it states a key twice.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise NotFoundError(f"file {str(path)!r} cannot be read: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigurationError(f"the file is larger than {MAX_FILE_BYTES} bytes", file=str(path))
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"not UTF-8 text: {error.reason} at byte {error.start}", file=str(path)) from None
    return parse_document(text, str(path))


def parse_document(text: str, file: str) -> Document:
    """The YAML text as values; `file` is the name in errors."""
    try:
        loader = _Loader(text, file)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        cause = f"not YAML: character U+{ord(text[error.position]):04X} is not allowed"
        raise ConfigurationError(cause, file=file, line=line) from None
    try:
        root = loader.get_single_node()
        lines: dict[Place, int] = {}
        value = _construct(loader, root, (), lines) if root is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or "malformed YAML"
        if "'\\t'" in problem:
            problem = "a tab begins the line or a value: expected spaces"
        raise ConfigurationError(f"not YAML: {problem}", file=file, line=mark.line + 1 if mark else None) from None
    except RecursionError:  # deep nesting, or an alias to what contains it
        raise ConfigurationError("the values are nested too deep", file=file) from None
    except yaml.YAMLError as error:
        raise ConfigurationError(f"not YAML: {error}".partition("\n")[0], file=file) from None
    finally:
        loader.dispose()
    return Document(file, value, lines)


def _construct(loader: _Loader, node: yaml.Node, place: Place, lines: dict[Place, int]) -> Any:
    line = _line(node)
    lines[place] = line
    if len(lines) > MAX_NODES:
        raise loader._fault(f"more than {MAX_NODES} values", line)
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for key, (key_node, value_node) in _pairs(loader, node, place).items():
            result[key] = _construct(loader, value_node, (*place, key), lines)
            lines[(*place, key)] = _line(key_node)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_construct(loader, item, (*place, i), lines) for i, item in enumerate(node.value)]
    return _scalar(loader, node)


def _pairs(loader: _Loader, node: yaml.MappingNode, place: Place) -> _Pairs:
    """The keys of a mapping in order, merged ones first, each once: nested merges of the same keys do not multiply."""
    if id(node) in loader.pairs:
        known = loader.pairs[id(node)]
        if known is None:
            raise loader._fault("a mapping is merged into itself", _line(node), place)
        return known
    loader.pairs[id(node)] = None
    own: _Pairs = {}
    merged: _Pairs = {}
    for key_node, value_node in node.value:
        if key_node.tag == _MERGE:
            several = isinstance(value_node, yaml.SequenceNode)
            for one in value_node.value if several else [value_node]:
                if not isinstance(one, yaml.MappingNode):
                    raise loader._fault("not YAML: << merges a mapping or a list of mappings", _line(key_node), place)
                found = _pairs(loader, one, place)
                loader._spend(1 + len(found), _line(key_node))
                merged = found | merged
            continue
        if not isinstance(key_node, yaml.ScalarNode):
            raise loader._fault("a key is a list or a map: expected text", _line(key_node), place)
        key = str(_scalar(loader, key_node))
        if key in own:
            raise loader._fault(f"key {key!r} appears twice", _line(key_node), place)
        own[key] = key_node, value_node
    loader.pairs[id(node)] = merged | own
    return merged | own


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _scalar(loader: _Loader, node: yaml.Node) -> Any:
    kind = node.tag.rpartition(":")[2]
    if kind in ("int", "float") and len(node.value) > MAX_NUMBER:
        raise loader._fault(f"a number has {len(node.value)} characters: expected at most {MAX_NUMBER}", _line(node))
    try:
        return loader.construct_object(node)
    except (ArithmeticError, AttributeError, LookupError, ValueError) as error:  # a 31st of June, `!!bool maybe`, ..
        raise loader._fault(f"not YAML: no {kind} can be made of it: {error}", _line(node)) from None


Place = tuple[str | int, ...]
"""A path from the root of a document: keys and list indices."""

_PATH_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_AT = re.compile(r" - at (`key` in )?`\$(.*)`$")
_MISSING_FIELD = re.compile(r"Object missing required field `(.*)`")
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.+)`")
_NO_CHOICE = re.compile(r"Invalid enum value (.+)")
_MISSING = re.compile(r"missing key '(.*)'")
_TYPES = re.compile(r"`([^`]*)`")
_WORDS = {
    "object": "a map",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "bytes": "binary data",
    "null": "nothing",
    "None": "nothing",
}
_PHRASES = [
    (re.compile(pattern), words)
    for pattern, words in (
        (r"a list of length >= (\d+)", r"a list of \1 entries or more"),
        (r"a list of length <= (\d+)", r"a list of \1 entries or fewer"),
        (r"a list of length (\d+)", r"a list of \1 entries"),
        (r"a map of length >= (\d+)", r"a map of \1 keys or more"),
        (r"a map of length <= (\d+)", r"a map of \1 keys or fewer"),
        (r"text of length >= (\d+)", r"text of \1 characters or more"),
        (r"text of length <= (\d+)", r"text of \1 characters or fewer"),
        (r" >= (\S+)", r" of at least \1"),
        (r" <= (\S+)", r" of at most \1"),
        (r" > (\S+)", r" above \1"),
        (r" < (\S+)", r" below \1"),
        (r"that's a multiple of", "divisible by"),
        (r"text matching regex", "text of the form"),
        (r"[Ii]nvalid base64 encoded string", "expected binary data in base64"),
        (r"a whole number, found a number$", "a whole number, found a fraction"),
        (r"(\d)\.0(?=$|,)", r"\1"),
    )
]
_ABSENT = object()

T = TypeVar("T")


class MismatchError(Exception):
    """A value is not of its type. message: what is wrong; place: where in the value. The caller adds the file."""

    def __init__(self, message: str, place: Place) -> None:
        super().__init__(message)
        self.message, self.place = message, place


def convert(value: Any, kind: type[T]) -> T:
    """The plain value as the type `kind`, such as a struct.

    Raises:
        MismatchError: The value is not of this type.
    """
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        raise MismatchError(*explain(error, kind, value)) from None


_LONGEST_FOUND = 64


def dotted(place: Iterable[str | int]) -> str:
    """The place as text: `launch[2].node.param[0].from`."""
    text = ""
    for step in place:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` where a known name is close, else the list of the known names."""
    names = sorted(known)
    return did_you_mean(name, names) or (f"; known here: {', '.join(names)}" if names else "; none are known here")


def explain(error: msgspec.ValidationError, kind: Any, value: Any = _ABSENT) -> tuple[str, Place]:
    """Returns msgspec's error about a value of type `kind` as a plain message, and the place in the value.

    With `value`, messages about ranges and lengths include the number found.
    """
    place = _AT.search(str(error))
    message = str(error)[: place.start()] if place else str(error)
    steps: list[str | int] = []
    for key, index in _PATH_STEP.findall(place.group(2)) if place else ():
        steps.append(key or (int(index) if index != "..." else "*"))
    unknown, chosen = _UNKNOWN_FIELD.fullmatch(message), _NO_CHOICE.fullmatch(message)
    if unknown:
        name = unknown.group(1)
        struct = _struct_at(kind, steps)
        known = [field.encode_name for field in msgspec.structs.fields(struct)] if struct else []
        return f"unknown key {name!r}{suggestion(name, known)}", (*steps, name)
    if chosen:
        literals = (hint for hint in _types_at(kind, steps) if typing.get_origin(hint) is typing.Literal)
        choices = [str(choice) for hint in literals for choice in typing.get_args(hint)]
        near = did_you_mean(chosen.group(1).strip("'"), choices)
        return f"expected one of {', '.join(choices)}, found {chosen.group(1)}{near}", tuple(steps)
    text = _plain(message)
    if ", found " not in text and text.startswith("expected"):
        text += _found(value, steps)
    return (f"a key of it: {text}" if place and place.group(1) else text), tuple(steps)


def missing_key(message: str) -> str | None:
    """The name of the key that a message of `explain` says is missing; None for other messages."""
    found = _MISSING.fullmatch(message)
    return found.group(1) if found else None


def _plain(message: str) -> str:
    """A message of msgspec's with YAML's names of types instead of Python's."""
    missing = _MISSING_FIELD.fullmatch(message)
    if missing:
        return f"missing key {missing.group(1)!r}"
    named = _TYPES.sub(lambda types: " or ".join(_WORDS.get(t, t) for t in types.group(1).split(" | ")), message)
    named = named.replace(", got ", ", found ")
    for pattern, words in _PHRASES:
        named = pattern.sub(words, named)
    return named[:1].lower() + named[1:]


def _found(value: Any, steps: list[str | int]) -> str:
    """`, found X` for the value at `steps`, to end a message with; empty if it has no short form."""
    for step in steps:
        try:
            value = value[step]
        except (TypeError, LookupError):
            return ""
    if isinstance(value, list | dict):
        return f", found {len(value)}"
    if isinstance(value, float):
        return f", found {value:g}"
    return f", found {value!r}" if isinstance(value, int | str) and len(str(value)) <= _LONGEST_FOUND else ""


def _struct_at(kind: Any, steps: list[str | int]) -> type[msgspec.Struct] | None:
    """The struct type at `steps` below the type `kind`, or None."""
    found = (hint for hint in _types_at(kind, steps) if isinstance(hint, type) and issubclass(hint, msgspec.Struct))
    return next(found, None)


def _types_at(kind: Any, steps: list[str | int]) -> list[Any]:
    """The types that a value at `steps` below the type `kind` may have, without unions and annotations."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _types_at(arguments[0], steps)
    if origin in (typing.Union, types.UnionType):
        return [hint for one in arguments for hint in _types_at(one, steps)]
    if not steps:
        return [kind]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind, include_extras=True)
        fields = [field.name for field in msgspec.structs.fields(kind) if field.encode_name == steps[0]]
        return [hint for name in fields for hint in _types_at(hints[name], steps[1:])]
    if origin in (list, tuple) and arguments:
        return _types_at(arguments[0], steps[1:])
    return _types_at(arguments[1], steps[1:]) if origin is dict else []

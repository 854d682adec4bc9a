"""Launch and parameter files: YAML whose every value knows its line, held against typed structs.

A fault names the file, the line, the path from the document's root and what was expected:

    config/panda_plant.yaml:7: plant.ros__parameters.rate_hz: expected a number, found text

Beyond YAML 1.1 as PyYAML reads it, numbers such as `1e-3` are numbers, and a key that stands twice is a fault.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from dyn_service.config.wording import MismatchError, Place, convert, dotted
from dyn_service.errors import InvalidArgumentError, NotFoundError

T = TypeVar("T")

MAX_FILE_BYTES = 1 << 20
MAX_NODES = 100_000


class ConfigurationError(InvalidArgumentError):
    """A fault in a launch or parameter file. `str()` is `file:line: path: cause`."""

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
    """YAML 1.1 with the floats of YAML 1.2."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


@dataclass(frozen=True)
class Document:
    """A YAML file as values, with the line of each."""

    file: str
    value: Any
    lines: Mapping[Place, int]

    def fault(self, message: str, place: Place = ()) -> ConfigurationError:
        """The error that says `message` about the value at `place`."""
        known = place
        while known and known not in self.lines:
            known = known[:-1]
        return ConfigurationError(message, path=dotted(place) or None, file=self.file, line=self.lines.get(known))

    def convert(self, value: Any, kind: type[T], place: Place = ()) -> T:
        """The value as the struct `kind`.

        Raises:
            ConfigurationError: It names the key, what was found and what was expected.
        """
        try:
            return convert(value, kind)
        except MismatchError as error:
            raise self.fault(error.message, place + error.place) from None


def read_document(path: Path) -> Document:
    """The YAML file at `path`.

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
    """The YAML text as values; `file` is the name that faults carry."""
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        cause = f"not YAML: character U+{ord(text[error.position]):04X} is none of it"
        raise ConfigurationError(cause, file=file, line=line) from None
    try:
        root = loader.get_single_node()
        lines: dict[Place, int] = {}
        value = _construct(loader, root, (), lines, file) if root is not None else None
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


def _construct(loader: _Loader, node: yaml.Node, place: Place, lines: dict[Place, int], file: str) -> Any:
    line = node.start_mark.line + 1
    lines[place] = line
    if len(lines) > MAX_NODES:
        raise ConfigurationError(f"more than {MAX_NODES} values", file=file, line=line)
    if isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(_scalar(loader, key_node, file))
            if key in result:
                raise ConfigurationError(
                    f"key {key!r} stands twice", path=dotted(place), file=file, line=key_node.start_mark.line + 1
                )
            result[key] = _construct(loader, value_node, (*place, key), lines, file)
            lines[(*place, key)] = key_node.start_mark.line + 1
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_construct(loader, item, (*place, i), lines, file) for i, item in enumerate(node.value)]
    return _scalar(loader, node, file)


def _scalar(loader: _Loader, node: yaml.Node, file: str) -> Any:
    try:
        return loader.construct_object(node)
    except (ArithmeticError, AttributeError, LookupError, ValueError) as error:  # a 31st of June, `!!bool maybe`, ..
        kind, line = node.tag.rpartition(":")[2], node.start_mark.line + 1
        raise ConfigurationError(f"not YAML: no {kind} can be made of it: {error}", file=file, line=line) from None

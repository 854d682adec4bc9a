"""Launch and parameter files: YAML with the line of every value, converted to typed structs.

An error names the file, the line, the path from the document's root and what was expected:

    config/panda_plant.yaml:7: plant.ros__parameters.rate_hz: expected a number, found text

Beyond YAML 1.1 as PyYAML reads it, `1e-3` and `-.5` are numbers, and duplicate keys are errors. Tags are those of
ROS 2's parameter files, `!!str`, `!!int`, `!!float` and `!!bool`; others are refused, because no parameter has them. A
mapping's own keys override those that `<<` merges into it, and the first of several merged mappings those after it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.support.validation import MismatchError, Place, convert, dotted

MAX_FILE_BYTES = 1 << 20

MAX_NODES = 100_000
"""Values of a document; an alias counts with all values that it refers to."""

# PyYAML's time for the sexagesimal numbers of YAML 1.1 is quadratic in their length.
MAX_NUMBER = 256
"""Characters of a number."""

_MERGE = "tag:yaml.org,2002:merge"

_SCALARS = ("!!str", "!!int", "!!float", "!!bool", "!!null", "!!timestamp", "!!merge", "!!value")

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
        located = place
        while located and located not in self.lines:
            located = located[:-1]
        return ConfigurationError(message, path=dotted(place) or None, file=self.file, line=self.lines.get(located))

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
    tag = node.tag.replace("tag:yaml.org,2002:", "!!")
    collection = "!!seq" if isinstance(node, yaml.SequenceNode) else "!!map"
    tags = _SCALARS if isinstance(node, yaml.ScalarNode) else (collection,)
    if tag not in tags or (tag == "!!null" and node.value not in ("", "~", "null", "Null", "NULL")):
        raise loader._fault(f"tag {tag} is not supported: expected !!str, !!int, !!float or !!bool", line, place)
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
    # Kept by node: otherwise nested aliases that merge the same mapping would take exponential time.
    if id(node) in loader.pairs:
        pairs = loader.pairs[id(node)]
        if pairs is None:
            raise loader._fault("a mapping is merged into itself", _line(node), place)
        return pairs
    loader.pairs[id(node)] = None
    direct: _Pairs = {}
    merged: _Pairs = {}
    for key_node, value_node in node.value:
        if key_node.tag == _MERGE:
            is_list = isinstance(value_node, yaml.SequenceNode)
            for merged_node in value_node.value if is_list else [value_node]:
                if not isinstance(merged_node, yaml.MappingNode):
                    raise loader._fault("not YAML: << merges a mapping or a list of mappings", _line(key_node), place)
                merged_pairs = _pairs(loader, merged_node, place)
                loader._spend(1 + len(merged_pairs), _line(key_node))
                merged = merged_pairs | merged
            continue
        if not isinstance(key_node, yaml.ScalarNode):
            raise loader._fault("a key is a list or a map: expected text", _line(key_node), place)
        key = str(_scalar(loader, key_node))
        if key in direct:
            raise loader._fault(f"key {key!r} appears twice", _line(key_node), place)
        direct[key] = key_node, value_node
    loader.pairs[id(node)] = merged | direct
    return merged | direct


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


T = TypeVar("T")

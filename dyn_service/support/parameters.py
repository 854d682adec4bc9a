"""Parameters of a node: ROS 2's parameter files, later files override earlier ones; converted to a typed struct.

    /**:                      # every node; also /*, /arm/*, /**/plant, plant, /arm/plant, nested namespaces
      ros__parameters:
        rate_hz: 1000.0
        gains: {kp: 900.0}    # the same parameter as gains.kp

In the name of a node `*` matches one part and `**` any number of parts. A parameter whose type is `FilePath`, or
a list of them, names files: in a parameter file they are taken from that file's own folder, elsewhere from the working
directory. Those of `InputFile` and `RobotFile` are read and must exist; the latter may be the name of a
shipped robot (`shipped.py`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec

from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.support.documents import ConfigurationError, Document, parse_document
from dyn_service.support.optional import MissingLibraryError, require
from dyn_service.support.shipped import find_robot, robots
from dyn_service.support.suggestions import did_you_mean
from dyn_service.support.validation import MismatchError, Place, convert, dotted, missing_key

T = TypeVar("T", bound=msgspec.Struct)
_MARK = "ros__parameters"
_FILE = "names_a_file"

FilePath = Annotated[str, msgspec.Meta(extra={_FILE: "any"})]
"""The type of a parameter that names a file."""
Positive = Annotated[float, msgspec.Meta(gt=0)]
Rate = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
"""Hz of a loop; no period is shorter than a microsecond."""
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
InputFile = Annotated[str, msgspec.Meta(extra={_FILE: "read"})]
"""The type of a parameter that names an input file; empty for no file."""
RobotFile = Annotated[str, msgspec.Meta(extra={_FILE: "robot"})]
"""The type of a parameter that names a robot file or a shipped robot."""


class NoParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Parameters of a node without its own."""


@dataclass
class Parameters:
    """Nested parameters of one node, each with the file and place it came from."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[Place, tuple[Document, Place]] = field(default_factory=dict)
    files: list[Document] = field(default_factory=list)
    node: str = ""

    def set(self, name: str, value: Any, document: Document, place: Place) -> None:
        """Sets one parameter; a map sets those below it, dots in names divide levels."""
        self._merge((), {name: value}, document, place, bare=False)

    def merge_file(self, document: Document, node: str) -> bool:
        """Merges the sections for the node with the full name `node`; returns whether there is one.

        Raises:
            ConfigurationError: The file is not a parameter file.
        """
        self.files.append(document)
        self.node = node
        matched = False
        for pattern, place, values in _sections(document, document.value, (), ()):
            if _matches(pattern, _parts(node)):
                self._merge((), values, document, place, bare=True)
                matched = True
        return matched

    def divide(self, names: Collection[str]) -> tuple[Parameters, Parameters]:
        """The parameters of these names, with those below them, and all others."""
        parts = []
        for is_named in (True, False):
            values = {name: value for name, value in self.values.items() if (name in names) is is_named}
            origins = {place: origin for place, origin in self.origins.items() if (place[0] in names) is is_named}
            parts.append(Parameters(values, origins, self.files, self.node))
        return parts[0], parts[1]

    def below_their_files(self, kind: type) -> dict[str, Any]:
        """Those parameters of the struct `kind` that name files and come from a parameter file, below its folder."""
        paths = {}
        for name, hint in get_type_hints(kind, include_extras=True).items():
            origin = self.origins.get((name,))
            if origin is not None and file_sort(hint) and any(origin[0] is file for file in self.files):
                shipped = robots() if file_sort(hint) == "robot" else {}
                paths[name] = _in_folder(Path(origin[0].file).parent, self.values[name], shipped)
        return paths

    def check_files(self, kind: type, folder: Path | None = None) -> None:
        """Checks that the input files named by parameters of the struct `kind` exist.

        folder: where relative paths begin that do not come from a parameter file; None is the working directory.

        Raises:
            ConfigurationError: Names the file, the line, the parameter and the path.
        """
        paths = self.below_their_files(kind)
        for name, hint in get_type_hints(kind, include_extras=True).items():
            sort = file_sort(hint)
            if sort in ("read", "robot") and name in self.values:
                path_or_paths = paths.get(name, self.values[name])
                for text in filter(None, path_or_paths if isinstance(path_or_paths, list) else [path_or_paths]):
                    path = Path(text) if folder is None else folder / text
                    fault = _unreadable(path, text if sort == "robot" else None)
                    if fault is not None:
                        raise self._fault(fault, (name,))

    def to(self, kind: type[T]) -> T:
        """Returns the parameters as the struct `kind`. All numbers must be finite; a range alone would allow infinity.

        Raises:
            ConfigurationError: Names the file, the line, the parameter, what was found and what was expected.
        """
        # msgspec's ranges accept infinity, and a YAML file can say .inf.
        bad = next(not_finite(self.values), None)
        if bad is not None:
            place, number = bad
            raise self._fault(f"expected a finite number, found {number:g}", place)
        try:
            return convert(self.values | self.below_their_files(kind), kind)
        except MismatchError as error:
            missing = missing_key(error.message)
            if missing is not None:
                raise ConfigurationError(f"parameter {dotted((*error.place, missing))!r} must be given") from None
            raise self._fault(error.message, error.place) from None

    def _fault(self, message: str, parameter: Place) -> ConfigurationError:
        """Returns the error `message` about a parameter, with the file and line of its value, if any."""
        located = parameter
        while located and located not in self.origins:
            located = located[:-1]
        if not located:
            return ConfigurationError(f"parameter {dotted(parameter)!r}: {message}")
        document, place = self.origins[located]
        # A section of a file may be for several nodes, so the error names the node that refuses the value.
        node = f" of {self.node}" if any(document is file for file in self.files) else ""
        return document.fault(f"parameter {dotted(parameter)!r}{node}: {message}", place)

    def _merge(self, prefix: Place, values: dict[str, Any], document: Document, place: Place, *, bare: bool) -> None:
        for name, value in values.items():
            inner = (*place, name) if bare else place
            steps = tuple(name.split("."))
            if not all(steps):
                raise document.fault(f"parameter name {name!r} has an empty part", inner)
            target = (*prefix, *steps)
            if isinstance(value, dict):
                self._assign(target, {}, document, inner, keep=True)
                self._merge(target, value, document, inner, bare=bare or prefix != ())
            else:
                self._assign(target, value, document, inner, keep=False)

    def _assign(self, target: Place, value: Any, document: Document, place: Place, *, keep: bool) -> None:
        table = self.values
        for step in target[:-1]:
            subtable = table.get(str(step))
            if not isinstance(subtable, dict):
                subtable = table[str(step)] = {}
            table = subtable
        last = str(target[-1])
        if not (keep and isinstance(table.get(last), dict)):
            table[last] = value
        self.origins[target] = (document, place)


def converted(values: Mapping[str, Any], kind: type[T]) -> T:
    """Plain values as the struct `kind`, for values that come from no file.

    Raises:
        InvalidArgumentError: It names the parameter, what was found and what was expected.
    """
    try:
        return convert(values, kind)
    except MismatchError as error:
        path = dotted(error.place)
        raise InvalidArgumentError(f"parameter {path!r}: {error.message}", path=path) from None


def in_range(parameters: T) -> T:
    """Returns the parameters after checking types and ranges, which msgspec does not check for structs made in
    Python. Infinity may mean no limit; NaN is rejected.

    Raises:
        InvalidArgumentError: As `converted`.
    """
    values = msgspec.to_builtins(parameters)
    for place, number in not_finite(values):
        if math.isnan(number):
            raise InvalidArgumentError(f"parameter {dotted(place)!r}: expected a number, found nan", path=dotted(place))
    return converted(values, type(parameters))


def assignment(text: str, *, origin: str) -> tuple[str, Any, Document]:
    """Returns the name and YAML value of `name:=value`; raises `ConfigurationError` for other texts."""
    name, separator, value = text.partition(":=")
    if not separator or not name:
        raise ConfigurationError(f"{text!r} is not of the form name:=value", file=origin)
    document = parse_document(value, origin)
    return name, document.value, Document(origin, document.value, {})  # a command line has no line numbers


def file_sort(hint: Any) -> str:
    """`any`, `read` or `robot` for a type that names files, or has such types in it; empty for others."""
    for meta in getattr(hint, "__metadata__", ()):
        if isinstance(meta, msgspec.Meta) and meta.extra and _FILE in meta.extra:
            return str(meta.extra[_FILE])
    return next(filter(None, map(file_sort, get_args(hint))), "")


def strangers(document: Document, nodes: Collection[str]) -> list[tuple[str, Place]]:
    """Returns the sections of a parameter file that match none of these full names, and their places."""
    return [
        ("/".join(pattern), place)
        for pattern, place, _ in _sections(document, document.value, (), ())
        if not any(_matches(pattern, _parts(node)) for node in nodes)
    ]


def section_names(document: Document) -> str:
    """The node names of a parameter file's sections, as text."""
    return ", ".join("/".join(pattern) for pattern, _, _ in _sections(document, document.value, (), ())) or "nobody"


def _parts(node: str) -> tuple[str, ...]:
    return tuple(part for part in node.split("/") if part)


def _unreadable(path: Path, robot: str | None) -> str | None:
    """Why neither the file nor the robot of that name can be read; None if one can."""
    if path.is_file():
        try:
            require("a xacro file", *(["xacro"] if robot is not None and path.suffix == ".xacro" else []))
        except MissingLibraryError as error:
            return error.message
        return None
    if path.exists():
        return f"{str(path)!r} is not a file"
    try:
        is_robot = robot is not None and find_robot(robot).is_file()
    except NotFoundError as error:
        return error.message
    return None if is_robot else f"there is no file {str(path)!r}"


def _in_folder(folder: Path, value: Any, names: Collection[str] = ()) -> Any:
    """Returns paths relative to the folder; known names without such a file and other values stay unchanged."""
    if isinstance(value, list):
        return [_in_folder(folder, item, names) for item in value]
    is_unchanged = not value or (value in names and not (folder / value).exists()) if isinstance(value, str) else True
    return value if is_unchanged else str(folder / value)


def _sections(
    document: Document, value: Any, pattern: tuple[str, ...], place: Place
) -> Iterator[tuple[tuple[str, ...], Place, dict[str, Any]]]:
    if not isinstance(value, dict):
        type_name = "nothing" if value is None else type(value).__name__
        hint = "".join(did_you_mean(str(part), [_MARK]) for part in place)
        raise document.fault(f"expected a map that leads to {_MARK!r}, got {type_name}{hint}", place)
    for key, subtree in value.items():
        inner = (*place, key)
        if key != _MARK:
            yield from _sections(document, subtree, (*pattern, *(part for part in key.split("/") if part)), inner)
        elif not pattern:
            raise document.fault(f"{_MARK!r} is outside of any node name", inner)
        elif subtree is not None:
            if not isinstance(subtree, dict):
                raise document.fault(f"expected a map of parameters, got {type(subtree).__name__}", inner)
            yield pattern, inner, subtree


def _matches(pattern: Sequence[str], node: Sequence[str]) -> bool:
    """Whether a node's full name, in parts, matches: `*` matches one part, `**` any number."""
    if not pattern:
        return not node
    if pattern[0] == "**":
        return any(_matches(pattern[1:], node[k:]) for k in range(len(node) + 1))
    return bool(node) and pattern[0] in ("*", node[0]) and _matches(pattern[1:], node[1:])


def not_finite(value: Any, place: Place = ()) -> Iterator[tuple[Place, float]]:
    """Yields the NaN and infinite numbers in the value, and their places."""
    if isinstance(value, float) and not math.isfinite(value):
        yield place, value
    elif isinstance(value, dict | list):
        for step, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from not_finite(inner, (*place, step))

"""Expands xacro files with ROS's package `xacro`.

xacro evaluates Python and reads files and the environment. Therefore only a file that the user names, with a name
ending in `.xacro`, is run; never text, and never a request to a server. `$(find PACKAGE)` searches where ROS does, then
folders with a `package.xml` above the file or next to those.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError

from dyn_service.errors import InvalidArgumentError, NotFoundError, UrdfError
from dyn_service.support.optional import load
from dyn_service.support.suggestions import did_you_mean

SUFFIX = ".xacro"

_LOCK = threading.Lock()  # the package has global state


def expanded(path: str | os.PathLike[str], arguments: Mapping[str, str]) -> str:
    """Returns the expanded XML of a file, as the command `xacro` prints it.

    arguments: values of its `<xacro:arg>`, by name.

    Raises:
        MissingLibraryError: The package is not installed; names the extra that installs it.
        NotFoundError: The file does not exist.
        UrdfError: The file is invalid; names it.
        InvalidArgumentError: It has no argument of that name, or a value is not text.

    Checked by:
        tests/parsing/test_xacro.py
    """
    name = os.fspath(path)
    xacro = load(f"the xacro file {name}", "xacro")
    if not Path(path).is_file():
        raise NotFoundError(f"the file {name} does not exist")
    for argument, value in arguments.items():
        if not isinstance(value, str):
            raise InvalidArgumentError(
                f"argument '{argument}' must be text, found {type(value).__name__}", path=f"arguments.{argument}"
            )
    # xacro ignores arguments that the file does not have: a typing error would go unnoticed.
    mappings = _RecordedArguments(arguments)
    with _LOCK, _finding(xacro, Path(path)):
        try:
            text: str = xacro.process_file(name, mappings=mappings, verbosity=0).toprettyxml(indent="  ")
        except ExpatError as fault:
            raise UrdfError(f"malformed XML: {fault}", file=_at(xacro, name), line=fault.lineno) from None
        except Exception as fault:  # noqa: BLE001  # its expressions may raise anything
            message = " ".join(str(fault).split()) or type(fault).__name__
            macros = [frame.body.getAttribute("name") for frame in getattr(xacro, "macrostack", None) or ()]
            element = f"macro '{macros[-1]}'" if macros else None
            raise UrdfError(f"xacro: {message}", file=_at(xacro, name), element=element) from None
    idle = sorted(set(arguments) - mappings.requested)
    if idle:
        suggestion = did_you_mean(idle[0], mappings.requested)
        raise InvalidArgumentError(f"{name} takes no argument '{idle[0]}'{suggestion}", path="arguments")
    return text


class _RecordedArguments(dict[str, str]):
    """Arguments that record which of them were used."""

    def __init__(self, arguments: Mapping[str, str]) -> None:
        super().__init__(arguments)
        self.requested: set[str] = set()

    def __contains__(self, name: object) -> bool:
        self.requested.add(str(name))
        return super().__contains__(name)

    def __getitem__(self, name: str) -> str:
        self.requested.add(name)
        return super().__getitem__(name)


def _at(xacro: Any, name: str) -> str:
    """Returns the file that was being processed."""
    stack = getattr(xacro, "filestack", None) or [name]
    return str(stack[-1] or name)


@contextmanager
def _finding(xacro: Any, path: Path) -> Iterator[None]:
    """Resolves `$(find PACKAGE)` without ROS."""
    arguments: Any = import_module(f"{xacro.__name__}.substitution_args")
    by_ros: Callable[[str], str] | None = getattr(arguments, "_eval_find", None)

    def find(package: str) -> str:
        if by_ros is not None:
            try:
                return by_ros(package)
            except Exception:  # noqa: BLE001  # ROS is not installed, or has no such package
                pass
        for folder in path.resolve().parents:
            for candidate in (folder, folder / package):
                if candidate.name == package and (candidate / "package.xml").is_file():
                    return str(candidate)
        raise LookupError(
            f"package '{package}' not found: neither by ROS nor as a folder of that name with a package.xml above"
        )

    if by_ros is None:
        yield
        return
    # Replaced for this call only: xacro has no parameter for it, and resolves packages by ROS alone.
    arguments._eval_find = find
    try:
        yield
    finally:
        arguments._eval_find = by_ros

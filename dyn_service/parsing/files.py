"""A robot from a file of any sort that is read here, known by what stands in it; and from text, which opens no file.

    <robot>                URDF                 parsing/urdf/reader.py
    <mujoco>               MuJoCo's MJCF        formats/mjcf
    <sdf>, <world>         SDFormat             formats/sdf
    a file named *.xacro   xacro                expanded first, then one of the above

A xacro file is a program: it evaluates Python and reads what files it likes. It is run only for who names a file whose
name says that it is one; text, and so all that clients send a server, is never run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from dyn_service.errors import InvalidArgumentError
from dyn_service.model.description import Description, RootType, rooted
from dyn_service.model.mimic import unled
from dyn_service.parsing import xacro
from dyn_service.parsing.joint_files import with_joint_file
from dyn_service.parsing.mjcf import reader as mjcf
from dyn_service.parsing.places import shown_path
from dyn_service.parsing.sdf import reader as sdf
from dyn_service.parsing.urdf import reader as urdf
from dyn_service.parsing.xml_elements import BEFORE_XML, ReadLimits, decode, load

Reader = Callable[[str, str, Path | None, ReadLimits], Description]
"""Of text, what faults call it, the file that it stands in, and limits."""

_READERS: Mapping[str, Reader] = {
    **dict.fromkeys(mjcf.ROOTS, mjcf.read),
    **dict.fromkeys(sdf.ROOTS, sdf.read),
}
"""By the root element; any other is URDF's, or its reader says what is wrong with it."""

URDF_ROOT = "robot"

# The first tag that is neither a comment, a declaration nor a processing instruction.
_ROOT = re.compile(r"<([A-Za-z_][\w.:-]*)")
_BEFORE = re.compile(r"\s*(?:<!--.*?-->|<\?.*?\?>)", re.DOTALL)


def read_file(
    path: str | os.PathLike[str],
    *,
    limits: ReadLimits | None = None,
    arguments: Mapping[str, str] | None = None,
) -> Description:
    """A robot from a file, and the files that it includes.

    Args:
        path: The file.
        limits: The largest robot to read.
        arguments: Of a xacro file, by their names.

    Raises:
        UrdfError: It is malformed, or has what cannot be carried; names file, line and element.
        NotFoundError: There is no such file.
        InvalidArgumentError: It is no file, or has arguments and is not of xacro.
        UnimplementedError: It is of xacro, and that package is not installed.
        ResourceExhaustedError: It is larger than `limits`.

    Checked by:
        tests/unit/test_formats.py
    """
    limits = limits or ReadLimits()
    name = shown_path(path)
    text = source_text(path, limits=limits, arguments=arguments)
    return _read(text, f"{name} (expanded)" if name.endswith(xacro.SUFFIX) else name, Path(path), limits)


def source_text(
    path: str | os.PathLike[str],
    *,
    limits: ReadLimits | None = None,
    arguments: Mapping[str, str] | None = None,
) -> str:
    """What stands in a robot's file, or what its xacro makes; arguments and faults as of `read_file`."""
    name = shown_path(path)
    if name.endswith(xacro.SUFFIX):
        return xacro.expanded(path, arguments or {})
    if arguments:
        raise InvalidArgumentError(f"{name} takes no arguments: only files named *{xacro.SUFFIX} do", path="arguments")
    return load(path, limits or ReadLimits())


def read_text(text: str | bytes, *, source: str = urdf.TEXT, limits: ReadLimits | None = None) -> Description:
    """A robot from a text that stands alone. Opens no file; `source` is what faults call it; the rest as of
    `read_file`.
    """
    limits = limits or ReadLimits()
    if isinstance(text, bytes):
        text = decode(text, source, limits)
    return _read(text, source, None, limits)


def root_of(text: str) -> str:
    """The root element's tag, as far as one can see without reading the text; "" where there is none."""
    text, at = text.lstrip(BEFORE_XML), 0
    while (before := _BEFORE.match(text, at)) is not None:
        at = before.end()
    found = _ROOT.search(text, at)
    return found[1] if found else ""


def _read(text: str, source: str, file: Path | None, limits: ReadLimits) -> Description:
    reader = _READERS.get(root_of(text))
    if reader is not None:
        return reader(text, source, file, limits)
    return urdf.read_text(text, source=source, limits=limits)


def completed(
    description: Description, root: RootType, joints: str | os.PathLike[str] | None, mimic: bool
) -> Description:
    """The robot with what a joint file says, each joint by itself unless `mimic`, its root moving as `root` says."""
    description = description if joints is None else with_joint_file(description, joints)
    return rooted(description if mimic else unled(description), root)

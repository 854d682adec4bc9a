"""Reads a robot from a file of any supported format, or from text. The root element determines the format.

    <robot>                URDF                 parsing/urdf
    <mujoco>               MJCF                 parsing/mjcf
    <sdf>, <world>         SDFormat             parsing/sdf
    a file named *.xacro   xacro                expanded first, then one of the above

A xacro file is a program: it evaluates Python and reads files. Only a file that the user names and whose name ends in
.xacro is run; text, and so everything that clients send to a server, is never run and opens no file.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from dyn_service.errors import InvalidArgumentError
from dyn_service.model.description import Description, LoopHandling, Note, RootType, rooted, with_loops
from dyn_service.model.mimic import without_mimics
from dyn_service.parsing import xacro
from dyn_service.parsing.joint_files import LOOPS_SUFFIX, with_joint_file
from dyn_service.parsing.mjcf import reader as mjcf
from dyn_service.parsing.quantities import counted, shown_path
from dyn_service.parsing.sdf import reader as sdf
from dyn_service.parsing.urdf import reader as urdf
from dyn_service.parsing.xml_elements import BEFORE_XML, ReadLimits, decode, load
from dyn_service.support.documents import Document

Reader = Callable[[str, str, Path | None, ReadLimits], Description]
"""A reader: (text, its name in errors, its file or None, limits) -> description."""

_READERS: Mapping[str, Reader] = {
    **dict.fromkeys(mjcf.ROOTS, mjcf.read),
    **dict.fromkeys(sdf.ROOTS, sdf.read),
}
"""Readers by root element; the URDF reader handles all others and reports errors."""

_LOG = logging.getLogger(__name__)
_LOGGED = 4
"""Maximum number of notes of a robot in a log line."""

URDF_ROOT = "robot"

# The first tag, after comments, declarations and processing instructions.
_ROOT = re.compile(r"<([A-Za-z_][\w.:-]*)")
_BEFORE = re.compile(r"\s*(?:<!--.*?-->|<\?.*?\?>)", re.DOTALL)


def read_file(
    path: str | os.PathLike[str],
    *,
    limits: ReadLimits | None = None,
    arguments: Mapping[str, str] | None = None,
) -> Description:
    """Reads a robot from a file and the files that it includes.

    arguments: of a xacro file, by name.

    Raises:
        UrdfError: The file is malformed or has unsupported content; names file, line and element.
        NotFoundError: The file does not exist.
        InvalidArgumentError: The path is not a file, or arguments are given and it is not a xacro file.
        UnimplementedError: It is a xacro file, and the package xacro is not installed.
        ResourceExhaustedError: The robot is larger than `limits`.

    Checked by:
        tests/service/answers/test_files.py
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
    """Returns the text of a robot file, expanded if it is xacro; arguments and errors as for `read_file`."""
    name = shown_path(path)
    if name.endswith(xacro.SUFFIX):
        return xacro.expanded(path, arguments or {})
    if arguments:
        raise InvalidArgumentError(f"{name} takes no arguments: only files named *{xacro.SUFFIX} do", path="arguments")
    return load(path, limits or ReadLimits())


def read_text(
    text: str | bytes, *, source: str = urdf.TEXT, limits: ReadLimits | None = None, file: Path | None = None
) -> Description:
    """Reads a robot from text; `source` is its name in errors; the rest as for `read_file`.

    file: that of the text, relative to which other files are opened; None: opens no file.
    """
    limits = limits or ReadLimits()
    if isinstance(text, bytes):
        text = decode(text, source, limits)
    return _read(text, source, file, limits)


def root_of(text: str) -> str:
    """Returns the tag of the root element without parsing the text, or ""."""
    text, position = text.lstrip(BEFORE_XML), 0
    while (prologue := _BEFORE.match(text, position)) is not None:
        position = prologue.end()
    match = _ROOT.search(text, position)
    return match[1] if match else ""


def _read(text: str, source: str, file: Path | None, limits: ReadLimits) -> Description:
    reader = _READERS.get(root_of(text))
    if reader is not None:
        return reader(text, source, file, limits)
    return urdf.read_text(text, source=source, limits=limits)


def completed(
    description: Description,
    root: RootType,
    joints: str | os.PathLike[str] | Document | None,
    mimic: bool,
    loops: LoopHandling = "closed",
    file: str | os.PathLike[str] | None = None,
) -> Description:
    """Applies a joint file, the options `mimic` and `loops`, and the kind of root; logs what the reader changed.

    file: the robot's file, to warn of a joint file with loops next to it if `joints` is None.
    """
    changes = [f"{note.element}: {note.text}" for note in description.notes if note.kind == "changed"]
    if changes:
        first_changes = "; ".join(changes[:_LOGGED])
        count = counted(len(changes), "value")
        _LOG.warning("%s: %s changed, all are in robot.receipt.notes: %s", description.source, count, first_changes)
    if joints is not None:
        description = with_joint_file(description, joints)
    elif file is not None and loops == "closed" and (loops_file := Path(file).with_suffix(LOOPS_SUFFIX)).is_file():
        text = f"{loops_file.name} next to its file describes loops and is not read: add --joints {loops_file.name}"
        note = Note("warning", f"robot '{description.name}'", text, rule="unread-loop-file")
        description = replace(description, notes=(*description.notes, note))
    description = with_loops(description, loops)
    return rooted(description if mimic else without_mimics(description), root)

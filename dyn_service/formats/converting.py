"""From one sort of file to another: `dyn convert`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from dyn_service.errors import InvalidArgumentError
from dyn_service.formats.reading import URDF_ROOT, completed, read_file, root_of, source_text
from dyn_service.formats.writing import mjcf, sdf, urdf
from dyn_service.model.description import Description, Note

Writer = Callable[[Description], tuple[str, list[Note]]]

WRITERS: Mapping[str, Writer] = {"urdf": urdf.write, "mjcf": mjcf.write, "sdf": sdf.write}
"""By the name of the format."""

SUFFIXES = {".urdf": "urdf", ".mjcf": "mjcf", ".xml": "mjcf", ".sdf": "sdf"}


_MISSING = ("reported", "dropped")
"""Kinds of notes on what is in a file and not in the robot that was made of it."""


def format_of(path: str | os.PathLike[str], format: str | None = None) -> str:
    """The format that a file is to have: the one that is asked for, or else what its name ends in.

    Raises:
        InvalidArgumentError: There is none of that name.
    """
    chosen = SUFFIXES.get(Path(path).suffix.lower()) if format is None else format
    if chosen not in WRITERS:
        raise InvalidArgumentError(
            f"{os.fspath(path)}: expected a name that ends in {', '.join(SUFFIXES)}, or one of the formats "
            f"{', '.join(WRITERS)}"
        )
    return str(chosen)


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    format: str | None = None,
    root: str = "fixed",
    joints: str | os.PathLike[str] | None = None,
    mimic: bool = True,
    arguments: Mapping[str, str] | None = None,
    force: bool = False,
) -> list[Note]:
    """Writes a robot's file as another one.

    Args:
        source: A file of URDF, MJCF, SDFormat or xacro.
        target: The file to write.
        format: One of `WRITERS`; None: as `target` is named.
        root: How its root link moves.
        joints: A joint file.
        mimic: Whether joints that mimic others follow them in what is written.
        arguments: Of a xacro file.
        force: Whether a file that is there gives way.

    Returns:
        What the robot's file says and the new one does not, first that which already is not read.

    Raises:
        DynError: The source is not sound, or cannot be carried over.
        InvalidArgumentError: There is no such format, or the target is there, or cannot be written.
    """
    chosen = format_of(target, format)
    if not force and Path(target).exists():
        raise InvalidArgumentError(f"{os.fspath(target)} already exists: --force overwrites it", path="target")
    described = read_file(source, arguments=arguments)
    description = completed(described, root, joints, mimic)  # type: ignore[arg-type]  # what root may be is said there
    text, missing = written(description, chosen)
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidArgumentError(f"{os.fspath(target)} cannot be written: {error.strerror}", path="target") from None
    return [*(note for note in description.notes if note.kind in _MISSING), *missing]


def urdf_of(path: str | os.PathLike[str]) -> str:
    """A robot's file as URDF, for those who read no other: a URDF file as it stands, looks and all, what a xacro file
    makes, and what is written of MJCF and SDFormat. Raises what `read_file` does.
    """
    text = source_text(path)
    return text if root_of(text) == URDF_ROOT else written(read_file(path), "urdf")[0]


def written(description: Description, format: str) -> tuple[str, list[Note]]:
    """A robot as text of a format, and a note on each thing that the format cannot say.

    Raises:
        UnimplementedError: A joint is of a type that the format has not.

    Checked by:
        tests/oracle/test_converting.py
    """
    return WRITERS[format](description)

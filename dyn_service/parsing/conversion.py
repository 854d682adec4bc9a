"""Conversion between robot file formats: `dyn convert`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from dyn_service.model.description import UNUSED_SHAPES, Description, LoopHandling, Note, Shape, with_loops
from dyn_service.parsing.files import URDF_ROOT, completed, read_file, root_of, source_text
from dyn_service.parsing.mjcf.joints import ASSETS
from dyn_service.parsing.shapes import FORMATS, mesh_file, without_capsules
from dyn_service.parsing.writing import mjcf, sdf, urdf

_LOG = logging.getLogger(__name__)

Writer = Callable[[Description], tuple[str, list[Note]]]

WRITERS: Mapping[str, Writer] = {"urdf": urdf.write, "mjcf": mjcf.write, "sdf": sdf.write}
"""Writers by format."""

SUFFIXES = {".urdf": "urdf", ".mjcf": "mjcf", ".xml": "mjcf", ".sdf": "sdf"}


_MISSING = ("reported", "dropped")
"""Kinds of notes on content of a file that the description does not contain."""


def format_of(path: str | os.PathLike[str], format: str | None = None) -> str:
    """Returns the requested format, or the format of the file name's suffix.

    Raises:
        InvalidArgumentError: Unknown format or suffix.
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
    loops: LoopHandling = "closed",
) -> list[Note]:
    """Converts a robot file.

    format: one of `WRITERS`; None: by the suffix of `target`. joints: a joint file. mimic: whether to keep mimic
    joints. arguments: of a xacro file. force: whether to overwrite an existing file. loops: `cut` writes the tree that
    is left of closed loops, which are refused otherwise.

    Returns:
        Notes on what was lost, first when reading, then when writing.

    Raises:
        DynError: The source is invalid, or cannot be expressed in the format.
        InvalidArgumentError: Unknown format, or the target exists or cannot be written.
    """
    chosen = format_of(target, format)
    if not force and Path(target).exists():
        raise InvalidArgumentError(f"{os.fspath(target)} already exists: --force overwrites it", path="target")
    described = read_file(source, arguments=arguments)
    description = completed(described, root, joints, mimic, loops)  # type: ignore[arg-type]  # `rooted` checks the value
    folders = (Path(os.path.abspath(each)).parent for each in (source, target))
    text, missing = written(description, chosen, *folders)
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidArgumentError(f"{os.fspath(target)} cannot be written: {error.strerror}", path="target") from None
    unread = (note for note in description.notes if note.kind in _MISSING)
    return [*(note for note in unread if not any(words in note.text for words in (UNUSED_SHAPES, ASSETS))), *missing]


def urdf_of(path: str | os.PathLike[str]) -> str:
    """Returns a robot file as URDF text: URDF unchanged, xacro expanded, MJCF and SDFormat converted, with closed loops
    cut and a warning. Raises as `read_file`.
    """
    text = source_text(path)
    if root_of(text) == URDF_ROOT:
        return text
    described = read_file(path)
    if described.loops:
        _LOG.warning("%s: its URDF lacks what closes a loop: %s", path, described.loops[0].element)
    return written(with_loops(described, "cut"), "urdf", Path(os.path.abspath(path)).parent)[0]


def written(
    description: Description, format: str, source: Path | None = None, target: Path | None = None
) -> tuple[str, list[Note]]:
    """Returns a robot as text of a format, and a note on each thing that the format cannot express.

    format: one of `WRITERS`. source: the folder of the robot's file, to find its meshes; None: no shapes are written.
    target: the folder of the new file, to which paths of meshes are relative; None: they are `file://` URIs.

    Raises:
        UnimplementedError: The format lacks a joint type of the robot.
        FailedPreconditionError: The robot has closed loops, which a file written here would lack.

    Checked by:
        tests/parsing/test_converting.py
    """
    if description.loops:
        raise FailedPreconditionError(f"robot '{description.name}' is not written: {description.loop_refusal}")
    notes: list[Note] = []
    links = []
    for link in description.links:
        shapes: list[Shape] = []
        for shape in link.shapes if source is not None else ():
            try:
                shapes += _carried(shape, format, source, target)  # type: ignore[arg-type]  # source is not None here
            except UnimplementedError as error:
                notes.append(Note("dropped", f"link '{link.name}'", f"a shape: {error}"))
        links.append(replace(link, shapes=tuple(shapes)))
    text, missing = WRITERS[format](replace(description, links=tuple(links)))
    return text, [*missing, *notes]


def _carried(shape: Shape, format: str, source: Path, target: Path | None) -> list[Shape]:
    """Returns the shapes that represent a shape in a format, with mesh paths relative to the new file."""
    if shape.unread or (format == "urdf" and shape.kind in ("ellipsoid", "plane")):
        raise UnimplementedError(shape.unread or f"URDF has no {shape.kind}")
    if shape.kind != "mesh":
        return without_capsules(shape) if format == "urdf" else [shape]
    file = Path(os.path.abspath(source / shape.mesh)) if "://" not in shape.mesh else None
    if format == "mjcf":  # MJCF has no package:// URIs
        file = mesh_file(shape.mesh, source)
        if file is None or file.suffix.lower() not in FORMATS:
            found = f"MuJoCo reads no {Path(shape.mesh).suffix}" if file else "there is no such file"
            raise UnimplementedError(f"the mesh {shape.mesh}: {found}, expected {' or '.join(FORMATS)}")
    if file is not None:
        shape = replace(shape, mesh=file.as_uri() if target is None else os.path.relpath(file, target))
    return [shape]

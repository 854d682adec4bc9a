"""Conversion between robot file formats: `dyn convert`."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from dyn_service.model.description import UNUSED_SHAPES, Description, LoopHandling, Note, Shape, with_loops
from dyn_service.parsing import joint_files
from dyn_service.parsing.files import URDF_ROOT, completed, read_file, root_of, source_text
from dyn_service.parsing.mjcf.joints import ASSETS
from dyn_service.parsing.shapes import FORMATS, mesh_file, without_capsules
from dyn_service.parsing.writing import mjcf, sdf, urdf
from dyn_service.support.files import replacement

_LOG = logging.getLogger(__name__)

Writer = Callable[[Description], tuple[str, list[Note]]]

WRITERS: Mapping[str, Writer] = {"urdf": urdf.write, "mjcf": mjcf.write, "sdf": sdf.write}
"""Writers by format."""

SUFFIXES = {".urdf": "urdf", ".mjcf": "mjcf", ".xml": "mjcf", ".sdf": "sdf"}

_LOOPS_APART = "has the loops, which URDF lacks: read the URDF with this joint file (joints, --joints)"

_MISSING = ("reported", "dropped")
"""Kinds of notes on content of a file that the description does not contain."""


def format_of(path: str | os.PathLike[str], format: str | None = None) -> str:
    """Returns the requested format, or the format of the file name's suffix.

    Raises:
        InvalidArgumentError: Unknown format or suffix.
    """
    format_name = SUFFIXES.get(Path(path).suffix.lower()) if format is None else format
    if format_name not in WRITERS:
        raise InvalidArgumentError(
            f"{os.fspath(path)}: expected a name that ends in {', '.join(SUFFIXES)}, or one of the formats "
            f"{', '.join(WRITERS)}"
        )
    return str(format_name)


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

    URDF has no loops: the loop joints and motors of a robot with loops are written to a joint file next to the target,
    with the suffix `.loops.yaml`.

    format: one of `WRITERS`; None: by the suffix of `target`. joints: a joint file. mimic: whether to keep mimic
    joints. arguments: of a xacro file. force: whether to overwrite existing files. loops: `cut` writes the tree that
    is left of closed loops.

    Returns:
        Notes on what was lost, first when reading, then when writing.

    Raises:
        DynError: The source is invalid, or cannot be expressed in the format.
        InvalidArgumentError: Unknown format, or the target exists or cannot be written.
    """
    # before the source is read, because that takes seconds
    format_of(target, format)
    if not force:
        _check_absent(Path(target))
    described = read_file(source, arguments=arguments)
    description = completed(described, root, joints, mimic, loops, source)  # type: ignore[arg-type]  # `rooted` checks the value
    return write_files(description, target, source=source, format=format, force=force)


def write_files(
    description: Description,
    target: str | os.PathLike[str],
    *,
    source: str | os.PathLike[str] | None,
    format: str | None = None,
    force: bool = False,
    comment: str = "",
    joint_file: bool = False,
) -> list[Note]:
    """Writes a robot to a file, and to a joint file what its format lacks: the loops and motors of a robot with loops.

    source: the robot's file, to find its meshes; None: no shapes are written. comment: the first lines of the files.
    joint_file: also write a joint file with the passive parameters of joints, with the suffix `.joints.yaml`.

    Returns:
        Notes on what was lost, first when the robot was read, then when it was written.

    Raises:
        UnimplementedError: The format lacks a joint type of the robot.
        FailedPreconditionError: The robot has closed loops that are no loop joints.
        InvalidArgumentError: Unknown format, or a file exists or cannot be written.
    """
    format_name = format_of(target, format)
    folders = None if source is None else Path(os.path.abspath(source)).parent, Path(os.path.abspath(target)).parent
    loops_apart = format_name == "urdf" and bool(description.loop_joints) and not description.unread_loops
    joints_target = Path(target).with_suffix(joint_files.JOINTS_SUFFIX if joint_file else joint_files.LOOPS_SUFFIX)
    texts: dict[Path, str] = {}
    joint_description = description if loops_apart else replace(description, loop_joints=())
    if joint_file or loops_apart:
        text = joint_files.written(joint_description, passive=joint_file)
        texts[joints_target] = "".join(f"# {line}\n" for line in comment.splitlines()) + text
    if loops_apart:
        description = replace(description, loop_joints=())
    if joint_file and format_name == "urdf":
        # As transmissions, armatures would make motors of some joints, and so none of the others.
        joints = tuple(replace(joint, armature=0.0) for joint in description.joints)
        description = replace(description, joints=joints)
    text, missing = written(description, format_name, *folders)
    texts[Path(target)] = _with_comment(text, comment)
    if joint_file:
        missing = [note for note in missing if not note.text.endswith(urdf.USE_JOINT_FILE)]
    if joints_target not in texts:
        text = f"its motor is not written{urdf.USE_JOINT_FILE}"
        motors = (joint for joint in description.joints if joint.motor is not None)
        missing += [Note("dropped", f"joint '{joint.name}'", text) for joint in motors]
    if loops_apart:
        missing.append(Note("changed", f"joint file '{joints_target}'", _LOOPS_APART))
    for path in texts if not force else ():
        _check_absent(path)
    try:
        with ExitStack() as files:
            for path, content in texts.items():
                if path.exists() and not path.is_file():  # such as /dev/stdout, which cannot be replaced
                    path.write_text(content, encoding="utf-8")
                else:
                    files.enter_context(replacement(path)).write(content.encode())
    except OSError as error:
        raise InvalidArgumentError(f"{path} cannot be written: {error.strerror}", path="target") from None
    reading_notes = (note for note in description.notes if note.kind in _MISSING)
    return [
        *(note for note in reading_notes if not any(phrase in note.text for phrase in (UNUSED_SHAPES, ASSETS))),
        *missing,
    ]


def _check_absent(path: Path) -> None:
    if path.exists():
        raise InvalidArgumentError(f"{path} already exists: --force overwrites it", path="target")


def _with_comment(text: str, comment: str) -> str:
    """Returns XML with a comment after its declaration."""
    if not comment:
        return text
    declaration, _, rest = text.partition("\n")
    # XML allows no `--` in comments
    return f"{declaration}\n<!--\n{re.sub('-(?=-)', '- ', comment)}\n-->\n{rest}"


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
        FailedPreconditionError: The robot has closed loops that are no loop joints, or loop joints, for URDF.

    Checked by:
        tests/parsing/test_converting.py
    """
    refusal = description.loop_refusal
    if not refusal and description.loop_joints and format == "urdf":
        refusal = (
            f"joint '{description.loop_joints[0].name}' closes a loop, which URDF lacks: dyn convert writes its loops"
        )
        refusal += ' to a joint file; loops="cut" (--loops cut) takes the tree that is left'
    if refusal:
        raise FailedPreconditionError(f"robot '{description.name}' is not written: {refusal}")
    notes: list[Note] = []
    links = []
    for link in description.links:
        shapes: list[Shape] = []
        for shape in link.shapes if source is not None else ():
            try:
                shapes += _shapes_in_format(shape, format, source, target)  # type: ignore[arg-type]  # source is not None here
            except UnimplementedError as error:
                notes.append(Note("dropped", f"link '{link.name}'", f"a shape: {error}"))
        links.append(replace(link, shapes=tuple(shapes)))
    text, missing = WRITERS[format](replace(description, links=tuple(links)))
    return text, [*missing, *notes]


def _shapes_in_format(shape: Shape, format: str, source: Path, target: Path | None) -> list[Shape]:
    """Returns the shapes that represent a shape in a format, with mesh paths relative to the new file."""
    if shape.unread or (format == "urdf" and shape.kind in ("ellipsoid", "plane")):
        raise UnimplementedError(shape.unread or f"URDF has no {shape.kind}")
    if shape.kind != "mesh":
        return without_capsules(shape) if format == "urdf" else [shape]
    file = Path(os.path.abspath(source / shape.mesh)) if "://" not in shape.mesh else None
    if format == "mjcf":  # MJCF has no package:// URIs
        file = mesh_file(shape.mesh, source)
        if file is None or file.suffix.lower() not in FORMATS:
            fault = f"MuJoCo reads no {Path(shape.mesh).suffix}" if file else "there is no such file"
            raise UnimplementedError(f"the mesh {shape.mesh}: {fault}, expected {' or '.join(FORMATS)}")
    if file is not None:
        shape = replace(shape, mesh=file.as_uri() if target is None else os.path.relpath(file, target))
    return [shape]

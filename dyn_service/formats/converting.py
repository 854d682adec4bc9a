"""From one sort of file to another: `dyn convert`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from dyn_service.errors import InvalidArgumentError
from dyn_service.formats.writing import mjcf, sdf, urdf
from dyn_service.model.description import Description, Note

Writer = Callable[[Description], tuple[str, list[Note]]]

WRITERS: Mapping[str, Writer] = {"urdf": urdf.write, "mjcf": mjcf.write, "sdf": sdf.write}
"""By the name of the format."""

SUFFIXES = {".urdf": "urdf", ".mjcf": "mjcf", ".xml": "mjcf", ".sdf": "sdf"}


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


def written(description: Description, format: str) -> tuple[str, list[Note]]:
    """A robot as text of a format, and a note on each thing that the format cannot say.

    Raises:
        UnimplementedError: A joint is of a type that the format has not.

    Checked by:
        tests/oracle/test_converting.py
    """
    return WRITERS[format](description)

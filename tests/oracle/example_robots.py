"""The robots in the wheel of example-robot-data: URDF files of real machines, written by many hands."""

from __future__ import annotations

from importlib.metadata import files
from pathlib import Path

from tests.wide import wide

_ROBOTS = "share/example-robot-data/robots/"

REFUSED = {"ur_description/urdf/ur3.urdf": "there are no <link> elements"}
"""What we do not read, with words of the reason given."""


def _installed() -> dict[str, Path]:
    package_files = files("example-robot-data") or []
    return {
        str(entry).partition(_ROBOTS)[2]: Path(str(entry.locate()))
        for entry in package_files
        if _ROBOTS in str(entry) and entry.suffix == ".urdf"
    }


_PATHS = _installed()
SUPPORTED = sorted(set(_PATHS) - set(REFUSED))
ONE_PER_FAMILY = tuple({name.split("/")[0]: name for name in reversed(SUPPORTED)}.values())
"""Of robots that come in several variants, the first."""

SOME = ONE_PER_FAMILY[::7]
ALL_CASES = wide(SUPPORTED, SOME.__contains__)
"""All of them, as cases of a test: the suite has every seventh first."""


def path_of(name: str) -> Path:
    """The file of a robot of that name."""
    return _PATHS[name]

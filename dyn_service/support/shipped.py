"""The shipped robots, parameter files and launch files: found in a checkout and in an installed package alike.

In a checkout they are in `urdf/`, `config/` and `launch/`, at the top; an installed package has the same folders in
`share/`, so that relative paths between them are valid in both. A name is resolved if no such file exists:
`panda` for `urdf/panda.urdf`, `panda_computed_torque` for `launch/panda_computed_torque.launch.yaml`.

Other packages have a folder of the same kind: `share/` in the package, the package itself, the checkout around it, or
`share/PACKAGE` of what it was installed to, which is where ROS 2 packages have theirs.
"""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.support.suggestions import did_you_mean

FOLDERS = ("launch", "config", "urdf")
"""Folders of shipped files; a package has at least one."""
PACKAGE = "dyn_service"
LAUNCH_SUFFIXES = (".launch.yaml", ".launch.yml", ".yaml", ".yml")


def package_share(package: str = PACKAGE) -> Path:
    """The folder that holds a package's launch, config and urdf folders.

    Raises:
        InvalidArgumentError: There is no such package, or it has no such folder.
    """
    for folder in _candidates(package):
        if any(_holds_files(folder / name) for name in FOLDERS):
            return folder
    if _home(package) is None:
        raise InvalidArgumentError(f"package {package!r} is not installed")
    raise InvalidArgumentError(
        f"package {package!r} ships no files: neither it, nor its folder share, nor share/{package} of where it is "
        f"installed has one of the folders {', '.join(FOLDERS)}"
    )


def robots() -> Mapping[str, Path]:
    """The shipped robots, by their names."""
    return {path.stem: path for path in sorted((package_share() / "urdf").glob("*.urdf"))}


def launch_files(package: str = PACKAGE) -> Mapping[str, Path]:
    """A package's launch files by their names: those of the files, less `.launch.yaml`.

    Raises:
        InvalidArgumentError: There is no such package, or it ships no files.
    """
    files = sorted((package_share(package) / "launch").rglob("*.y*ml"))
    return {_without_suffix(path.name): path for path in files if path.suffix in (".yaml", ".yml")}


def find_robot(name_or_path: str | Path) -> Path:
    """Returns the file itself, or if it does not exist the shipped robot of that name.

    Raises:
        NotFoundError: It is neither a file nor looks like one; the message names the shipped robots.
    """
    path, shipped = Path(name_or_path), robots()
    if path.exists() or path.suffix or len(path.parts) != 1:
        return path
    if path.name in shipped:
        return shipped[path.name]
    raise NotFoundError(
        f"there is no robot {path.name!r}, neither a file nor a shipped one: {', '.join(shipped)}"
        f"{did_you_mean(path.name, shipped)}"
    )


def how_to_find(path_text: str) -> str:
    """Returns the end of an error about a file that does not exist, if a shipped robot has its name; else ""."""
    path = Path(path_text)
    with suppress(InvalidArgumentError):  # nothing is shipped
        if path.parent in (Path(), Path("urdf")) and path.suffix in ("", ".urdf") and path.stem in robots():
            return (
                f"; {path.stem!r} is the name of a shipped robot: Robot.from_file(find_robot({path.stem!r})) reads it, "
                "after `from dyn_service import find_robot`"
            )
    return ""


def find_parameter_file(name_or_path: str | Path) -> Path:
    """Returns the file itself, or if it does not exist the shipped one of `config/`: `config/server.yaml`, `server`."""
    path = Path(name_or_path)
    if not path.exists() and path.parent in (Path(), Path("config")):
        for name in (path.name, f"{path.name}.yaml"):
            candidate = package_share() / "config" / name
            if candidate.is_file():
                return candidate
    return path


def find_launch_file(name_or_path: str | Path, package: str | None = None) -> Path:
    """The file itself, or the launch file of that name, with its suffix or without, that is shipped.

    With a package it is that package's, wherever the working directory is.

    Raises:
        NotFoundError: Neither exists; names the shipped launch files.
        InvalidArgumentError: There is no such package, or it ships no files.
    """
    if package is None and Path(name_or_path).exists():
        return Path(name_or_path)
    shipped = launch_files(PACKAGE if package is None else package)
    path = shipped.get(_without_suffix(str(name_or_path)))
    if path is not None:
        return path
    owner = f"{PACKAGE} ships" if package is None else f"package {package!r} has"
    raise NotFoundError(
        f"there is no launch file {str(name_or_path)!r}; {owner} {', '.join(shipped) or 'none'}"
        f"{did_you_mean(_without_suffix(str(name_or_path)), shipped)}"
    )


def _holds_files(folder: Path) -> bool:
    """Whether it holds anything but Python: packages have modules of such names."""
    return folder.is_dir() and any(path.is_file() and path.suffix != ".py" for path in folder.iterdir())


def _without_suffix(name: str) -> str:
    for suffix in LAUNCH_SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def _candidates(package: str) -> Iterator[Path]:
    home = _home(package)
    if home is not None:
        yield home / "share"
        yield home
        if any((home.parent / name).is_file() for name in ("pyproject.toml", "setup.py")):
            yield home.parent  # a checkout; next to an installed package are other packages
    yield Path(sysconfig.get_path("data")) / "share" / package
    for prefix in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep):
        if prefix:
            yield Path(prefix) / "share" / package


def _home(package: str) -> Path | None:
    """The folder of the Python package of that name, which is not imported for this."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    locations = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(locations))) if locations else None

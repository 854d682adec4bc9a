"""From settings to a server that has only to listen: robots loaded, kernels made; for `dyn serve` and the node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from dyn_service.api.preparation import chosen
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError
from dyn_service.parsing.joint_files import robot_of
from dyn_service.service.server.administration.key_folder import KeyFolder
from dyn_service.service.server.app import Server
from dyn_service.service.server.settings import ServerSettings
from dyn_service.service.server.transport.encrypted import read_folder
from dyn_service.service.server.transport.endpoints import needs_keys
from dyn_service.support.realtime import check
from dyn_service.support.shipped import find_robot

Watch = Callable[[str, int], AbstractContextManager[Callable[[], None]]]
"""Shows how far the work is: given its name and how many parts it has, within it a call for each part that is done."""


@contextmanager
def unwatched(name: str, parts: int) -> Iterator[Callable[[], None]]:
    """Shows nothing."""
    yield lambda: None


def open_server(settings: ServerSettings, tell: Callable[[str], None], watch: Watch = unwatched) -> Server:
    """The server that the settings ask for, with its kernels made. It does not listen yet.

    Args:
        settings: What it serves, where, and to whom.
        tell: Takes a line on each robot that needs one: what its file leaves in doubt, which kernels were made.
        watch: Shows how far the kernels are.

    Raises:
        DynError: A robot's file is not sound.
        InvalidArgumentError: There is no robot, and clients may not load one.
        FailedPreconditionError: An endpoint asks for keys, and there are none.
        PermissionDeniedError: The system refuses a part of `realtime` that is required.
    """
    by_key = any(needs_keys(endpoint, settings.keys) for endpoint in settings.endpoints)
    if by_key:  # what takes long is not begun where its end would be refused
        read_folder(KeyFolder(settings.keys_folder))
    check(settings.realtime, polls=False)
    files = [find_robot(path) for path in settings.robots]
    for path, file in zip(settings.robots, files, strict=True):
        if path != str(file):
            tell(f"{path}: {file}")
    robots = _robots(settings, files)
    for path, robot in zip(settings.robots, robots, strict=True):
        doubted = len(robot.receipt.of_kind("doubted"))
        if doubted:
            tell(f"{robot.name}: {doubted} doubted in its file, see dyn check {path}")
    server = Server(
        robots,
        endpoints=settings.endpoints,
        limits=settings.limits,
        workers=settings.workers,
        allow_load=settings.allow_load,
        keys=settings.keys,
        key_folder=KeyFolder(settings.keys_folder),
        audit=Path(settings.audit) if settings.audit else None,
    )
    if not robots and not server.service.allow_load and not by_key:
        raise InvalidArgumentError("there is nothing to serve: name a robot's file", path="robots")
    for robot in robots if settings.purposes else ():
        tell(prepare(robot, settings.purposes, watch))
    return server


def open_robots(settings: ServerSettings) -> list[Robot]:
    """The robots of a server with these settings, in their order; nothing is compiled yet.

    Raises:
        DynError: A robot's file is not sound.
        InvalidArgumentError: A joint file is for none of them, or two are for one.
    """
    return _robots(settings, [find_robot(path) for path in settings.robots])


def _robots(settings: ServerSettings, robot_files: Sequence[Path]) -> list[Robot]:
    """The robots, each with the joint file that is for it.

    Raises:
        InvalidArgumentError: A joint file is for none of them, or two are for one.
    """
    files: dict[str, str] = {}
    for file in settings.joints:
        name = robot_of(file)
        if name in files:
            raise InvalidArgumentError(f"{file} and {files[name]} are both for robot '{name}'", path="joints")
        files[name] = file
    robots = []
    for path in robot_files:
        read = partial(Robot.from_file, path, root=settings.root, mimic=settings.mimic)
        robot = read()
        file_of = files.pop(robot.name, None)
        robots.append(robot if file_of is None else read(joints=file_of))
    for name, file in files.items():
        raise InvalidArgumentError(f"{file} is for robot '{name}', which is not served", path="joints")
    return robots


def prepare(robot: Robot, purposes: Sequence[str], watch: Watch = unwatched) -> str:
    """Makes the robot's kernels for purposes and queries of these names; a line that says so, and how long it took."""
    begun = time.monotonic()
    kernels = len(chosen(purposes))
    with watch(robot.name, kernels) as advance:
        robot.prepare(purposes, progress=lambda name, seconds: advance())
    return f"{robot.name}: {kernels} kernels for {', '.join(purposes)} in {time.monotonic() - begun:.1f} s"

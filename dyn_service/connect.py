"""`connect`: a robot from a file, or of a server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

from dyn_service.api.queries import RobotQueries
from dyn_service.errors import DynError, InvalidArgumentError
from dyn_service.model.description import LoopHandling, RootType
from dyn_service.model.joints import FIXED
from dyn_service.service.client.flows import is_text
from dyn_service.service.client.sync import Client, RemoteRobot
from dyn_service.service.protocol.endpoints import SCHEMES
from dyn_service.service.protocol.keys import KeySource
from dyn_service.service.protocol.limits import DEFAULT_TIMEOUT_S


def connect(
    target: str | os.PathLike[str],
    *,
    root: RootType | None = None,
    mimic: bool | None = None,
    loops: LoopHandling | None = None,
    joints: str | os.PathLike[str] | None = None,
    names: Sequence[str] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    keys: KeySource | None = None,
    server_key: str | None = None,
) -> RobotQueries:
    """Returns a robot in this process (`Robot`), or of a server (`RemoteRobot`).

    Args:
        target: A robot file (URDF, MJCF, SDFormat, xacro) or its text, for a robot in this process. For a server's
            robot `tcp://host:port/robot` or `ipc:///path/robot`.
        root: How the root link moves in the world; default: "fixed". A server's robot must have the root given here.
        mimic: Whether mimic joints follow others; default: they do. With False, a server's robot must have none.
        loops: Whether loops are "closed", the default of a file, or "cut", so that the tree is left. With "cut", a
            server's robot must have no closed loops.
        joints: A YAML file of passive joint properties, for a robot in this process only.
        names: All movable joints in the order of arrays, as in `Client.robot`, for a server's robot only.
        timeout_s: The time limit of each call to a server.
        keys: The key file, for a server with keys.
        server_key: The server's public key; None: it is in the key file.

    Returns:
        The robot. The `close()` of a `RemoteRobot` closes its connection.

    Raises:
        InvalidArgumentError: The target names no robot, an argument does not apply to it or contradicts the server's
            robot, or `names` has a joint twice or lacks one.
        ConfigurationError: `joints` is not such a file, or does not fit the robot; names file, line and key.
        NotFoundError: The file, the server's robot or a joint of `names` does not exist.
        PermissionDeniedError: The server refuses the key, or other users can read the key file.
        UnavailableError: No server answers at the endpoint.
    """
    text = os.fspath(target)
    if not text.startswith(SCHEMES):
        if "://" in text.partition("<")[0]:
            schemes = ", ".join(SCHEMES)
            raise InvalidArgumentError(f"target must be a URDF or start with {schemes}, found '{text}'", path="target")
        if names is not None:
            raise InvalidArgumentError("names go with the robot of a server, found a robot's file", path="names")
        from dyn_service import Robot  # by way of the package, which names the extra that a base install lacks

        read = partial(Robot.from_text, text) if is_text(target) else partial(Robot.from_file, target)
        return read(root=root or "fixed", joints=joints, mimic=mimic is not False, loops=loops or "closed")
    if joints is not None:
        raise InvalidArgumentError(f"joints go with a file, found the robot of a server, '{text}'", path="joints")
    endpoint, name = _split(text)
    if not name:
        raise _unnamed(endpoint, timeout_s, keys, server_key)
    client = Client(endpoint, timeout_s=timeout_s, keys=keys, server_key=server_key)
    try:
        robot = RemoteRobot(client, client.robot(name).description, owns_client=True, names=names)
        _check_root(robot, root)
        _check_mimic(robot, mimic)
        _check_loops(robot, loops)
        return robot
    except BaseException:
        client.close()
        raise


def _check_root(robot: RobotQueries, root: RootType | None) -> None:
    server_root = next((joint.type for joint in robot.description.joints if joint.parent is None), FIXED.type)
    if root not in (None, server_root):
        raise InvalidArgumentError(
            f"root must be that of the server's robot, '{server_root}', found '{root}'", path="root"
        )


def _check_mimic(robot: RobotQueries, mimic: bool | None) -> None:
    follower = next((joint for joint in robot.description.joints if joint.mimic is not None), None)
    if mimic is False and follower is not None and follower.mimic is not None:
        raise InvalidArgumentError(
            f"mimic must be that of the server's robot, whose joint '{follower.name}' follows "
            f"'{follower.mimic.joint}', found False",
            path="mimic",
        )


def _check_loops(robot: RobotQueries, loops: LoopHandling | None) -> None:
    closing = (f"joint '{joint.name}'" for joint in robot.description.loop_joints)
    if loops == "cut" and (elements := (*robot.description.loops, *closing)):
        raise InvalidArgumentError(
            f"loops must be those of the server's robot, which are closed ({elements[0]}), found 'cut'", path="loops"
        )


def _split(target: str) -> tuple[str, str]:
    """Returns the endpoint and the robot's name, empty if the target has none."""
    scheme, _, rest = target.partition("://")
    if scheme == "ipc" and os.path.exists(rest.rstrip("/")):  # the socket's own path
        return target.rstrip("/"), ""
    place, _, name = rest.rpartition("/")
    return (f"{scheme}://{place}", name) if place.strip("/") else (f"{scheme}://{rest.rstrip('/')}", "")


def _unnamed(endpoint: str, timeout_s: float, keys: KeySource | None, server_key: str | None) -> InvalidArgumentError:
    """Returns the error for a target without a robot's name, with the names of the server's robots."""
    hint = f"write {endpoint}/ROBOT"
    try:
        with Client(endpoint, timeout_s=timeout_s, keys=keys, server_key=server_key) as client:
            robots = client.list_robots()
        hint = f"its robots are {', '.join(robots)}: {hint}" if robots else "it serves no robot"
    except DynError as fault:
        hint = f"{hint} ({fault})"
    return InvalidArgumentError(f"target must name a robot of {endpoint}; {hint}", path="target")

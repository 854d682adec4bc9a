"""`dyn view`: a robot or a recording in the browser; `dyn foxglove`: live topics for Foxglove."""

from __future__ import annotations

import logging
import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dyn_service.cli.bag import require_libraries
from dyn_service.cli.console import (
    ROBOT,
    Joints,
    Loops,
    XacroArguments,
    assigned,
    robot_file,
    say,
    shipped_robots,
    tell,
)
from dyn_service.errors import InvalidArgumentError
from dyn_service.support import shipped
from dyn_service.support.optional import require

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot
    from dyn_service.graph.bags.motions import Motion
    from dyn_service.view.scene import Ground, Looks

LIVE = "/joint_states"


_Shown = tuple["Robot", "Looks", "Motion | None", "Ground | None"]
"""A robot, its shapes, and of a recording the motion and the planes that it can touch."""

_What = Annotated[
    Path,
    typer.Argument(
        metavar="WHAT",
        help="A robot's file or name, the folder of a launch's report, or a bag.",
        autocompletion=shipped_robots,
    ),
]
_BagRobot = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help=f"For a bag: the robot, if the bag does not contain it or to show another. {ROBOT}"
    ),
]
_Plant = Annotated[str | None, typer.Option(metavar="NAME", help="For a report: which plant. (default: the first)")]
_Topic = Annotated[
    str | None,
    typer.Option(
        help="For a bag: topic of the joint states. (default: the only one) With --live: their topic, or an "
        "endpoint, tcp://HOST:PORT. (default: /joint_states)"
    ),
]
_Host = Annotated[
    str, typer.Option(help="The address to serve the page on; all clients that can connect can move the sliders.")
]
_Origin = Annotated[
    list[str] | None,
    typer.Option(metavar="URL", help="A page of another server that may connect; may be repeated."),
]


def view(
    target: _What,
    arguments: XacroArguments = None,
    robot: _BagRobot = None,
    node: _Plant = None,
    live: Annotated[bool, typer.Option("--live", help="Show the running plant, by its joint states.")] = False,
    topic: _Topic = None,
    root: Annotated[str | None, typer.Option(help="How the root link can move: fixed, planar or floating.")] = None,
    loops: Loops = "closed",
    joints: Joints = None,
    host: _Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port of the page; 0 takes a free one.")] = 8080,
    origin: _Origin = None,
) -> int:
    """Show a robot in the browser with sliders, play a report or a bag, or watch a running plant."""
    require("dyn view", "viser", "trimesh")
    stop = threading.Event()
    # before the slow imports, so that Ctrl-C ends the command in order at any time
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    from dyn_service.view.playing import Player, Watcher
    from dyn_service.view.playing import live as live_states
    from dyn_service.view.scene import Scene
    from dyn_service.view.viewer import Viewer, run

    model, looks, motion, ground = _shown(target, arguments, robot, node, topic, root, loops, joints)
    if live and motion is not None:
        raise InvalidArgumentError("--live needs a robot file, found a recording")
    for note in looks.notes:
        tell(note)
    tell(f"preparing {model.name}")
    scene = Scene(model, ground)
    if motion is None:
        first, floor = scene.still(scene.first), scene.floor
    else:
        # the floor is a plane of the contacts, which a recording has
        first = scene.moving(motion.q[0], motion.v[0], motion.tau[0])
        floor = 0.0 if ground is None else ground.height
    with ExitStack() as stack:
        states = stack.enter_context(live_states(topic or LIVE, scene.configuration, tell)) if live else None
        viewer = Viewer(scene, looks, first, floor, host, port, origin or (), tell)
        stack.callback(viewer.close)
        mover: Player | Watcher | None = None
        if states is not None:
            mover = Watcher(viewer, states)
        elif motion is not None:
            mover = Player(viewer, motion)
        else:
            viewer.sliders()
        viewer.options()
        say(f"open {viewer.url} in a browser; Ctrl-C ends it")
        run(None if mover is None else mover.tick, stop)
    return 0


def _shown(
    target: Path,
    arguments: list[str] | None,
    robot: Path | None,
    node: str | None,
    topic: str | None,
    root: str | None,
    loops: str,
    joints: Path | None,
) -> _Shown:
    """Reads a report, a bag or a robot file, by what the target looks like; the arguments are those of `view`."""
    if (target / "report.json").is_file() or target.name == "recording.npz":
        return _report(target if target.is_dir() else target.parent, node, robot, root, joints)
    if target.suffix == ".mcap" or (target.is_dir() and (target / "metadata.yaml").is_file()):
        return *_bag(target, robot, topic, root, loops, joints), None
    if target.is_dir():
        raise InvalidArgumentError(f"folder {str(target)!r} contains neither a launch's report (report.json) nor a bag")
    options = {"root": root or "fixed", "loops": loops, "joints": joints}
    return *_robot(robot_file(target), options, assigned(arguments)), None, None


def foxglove(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="Full names, or patterns: '/arm/*'. (default: all)")
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; all clients that can connect see all messages.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8765,
    origin: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="A web page that may connect; may be repeated.")
    ] = None,
    frames: Annotated[bool, typer.Option(help="Publish tf for plants without a tf publisher.")] = True,
) -> int:
    """Serve the topics of running nodes to Foxglove, until Ctrl-C."""
    require("dyn foxglove", "foxglove", "rosbags", "mcap")
    from dyn_service.cli.fallback_frames import FallbackFrames
    from dyn_service.graph.middleware.graph import runtime_folders
    from dyn_service.graph.middleware.stop import stopping
    from dyn_service.view.foxglove import FoxgloveServer

    # the library logs errors of clients, which anyone on the network could cause
    logging.getLogger("foxglove").setLevel(logging.CRITICAL)
    with stopping() as stop:
        patterns = topics or ["*"]
        show = lambda topic, kind: say(f"{topic}  {kind}")
        server = FoxgloveServer(patterns, runtime_folders, tell, show, host, port, origin or ())
        fallback = FallbackFrames(patterns, tell) if frames else None
        try:
            say(f"serving {server.url}: in Foxglove, Open connection, Foxglove WebSocket; Ctrl-C ends it")
            server.run(lambda: not stop.requested)
        finally:
            if fallback is not None:
                fallback.close()
            server.close()
    if server.missed:
        tell(f"missed: {server.missed} published messages were not received in time")
    if server.malformed:
        tell(f"malformed: {server.malformed} messages did not match their type")
    return 0


def _robot(file: Path, settings: dict[str, Any], arguments: dict[str, str]) -> tuple[Robot, Looks]:
    from dyn_service.engine.robot import Robot
    from dyn_service.parsing import files as reading
    from dyn_service.view.scene import looks_of

    description = reading.read_file(file, arguments=arguments or None)
    options = (settings.get("joints") or None, settings.get("mimic", True), settings.get("loops", "closed"))
    whole = reading.completed(description, settings.get("root", "fixed"), *options, file)
    return Robot(whole), looks_of(description, file.parent)


def _report(
    folder: Path, node: str | None, other: Path | None, root: str | None, joints: Path | None = None
) -> tuple[Robot, Looks, Motion, Ground | None]:
    from dyn_service.graph.bags.motions import of_report
    from dyn_service.view.scene import Ground

    recorded = of_report(folder, node)
    parameters = recorded.parameters
    options = {name: parameters[name] for name in ("root", "joints", "mimic", "loops") if name in parameters}
    file = shipped.find_robot(other if other is not None else parameters["robot"])
    options |= {name: value for name, value in (("root", root), ("joints", joints)) if value is not None}
    model, looks = _robot(file, options, {})
    tell(f"{recorded.node}: {model.name}, {file}")
    ground = Ground(model, parameters) if parameters.get("contacts") else None
    return model, looks, recorded.motion(model.configuration), ground


def _bag(
    file: Path,
    robot: Path | None,
    topic: str | None,
    root: str | None,
    loops: str = "closed",
    joints: Path | None = None,
) -> tuple[Robot, Looks, Motion]:
    """Returns the robot of a bag (or the named one), its meshes and its motion."""
    options: dict[str, Any] = {"root": root or "fixed", "loops": loops, "joints": joints}
    require_libraries()
    from dyn_service.engine.robot import Robot
    from dyn_service.graph.bags.reader import BagReader
    from dyn_service.parsing import files as reading
    from dyn_service.view.playing import companion, description_in, has_multi_dof, of_joint_states, states_topic
    from dyn_service.view.scene import looks_of

    with BagReader(file) as bag:
        states_name = states_topic(bag, topic)
        if not bag.whole:
            tell(f"bag {str(file)!r} is incomplete: it is shown up to its last message")
        if robot is not None:
            model, looks = _robot(robot_file(robot), options, {})
        else:
            described = description_in(bag, states_name)
            if described is None:
                raise InvalidArgumentError(
                    f"bag {str(file)!r} has no topic robot_description for {states_name!r}: "
                    "name the robot's file with --robot"
                )
            source = f"{described[0]} of {file}"
            description = reading.read_text(described[1], source=source)
            model = Robot(reading.completed(description, **options, mimic=True))
            looks = looks_of(description, file.absolute().parent)
            tell(f"{states_name}: {model.name}, {source}")
        other = companion(states_name) if has_multi_dof(model.configuration) else None
        companions = [bag_topic.name for bag_topic in bag.topics if bag_topic.name == other]
        states = [recorded.message for recorded in bag.messages([states_name, *companions])]
    return model, looks, of_joint_states(states, model.configuration, f"topic {states_name!r} of {str(file)!r}")

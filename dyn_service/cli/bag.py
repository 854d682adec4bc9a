"""`dyn bag`: records, plays, describes, plots, verifies and repairs recordings."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from dyn_service.cli.console import Json, UsageError, say, say_json
from dyn_service.support.optional import require

app = typer.Typer(
    help="Record topics and requests as ROS 2's MCAP files; play, plot and verify them.", no_args_is_help=True
)

_Bag = Annotated[Path, typer.Argument(metavar="FILE", help="A bag, or a folder of `ros2 bag record`.")]


@app.command()
def record(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="Full names, or patterns: '/arm/*'.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Every topic.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The bag. (default: bag_DATE_TIME.mcap)")
    ] = None,
    duration: Annotated[
        float | None, typer.Option("--duration", "-d", metavar="SECONDS", help="How long. (default: until Ctrl-C)")
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="ENDPOINT", help="Record the requests to this server, not topics.")
    ] = None,
    listen: Annotated[
        str,
        typer.Option(metavar="ENDPOINT", help="With --server: where clients connect instead; port 0 takes a free one."),
    ] = "tcp://127.0.0.1:0",
    robot: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="With --server: a robot's file, which is stored in the bag for `verify`."),
    ] = None,
) -> int:
    """Record topics, or with --server the requests to a server, until Ctrl-C."""
    require_libraries()
    from dyn_service.cli.bag_recording import record_requests, record_topics

    if (server is None) == (not topics and not all_):
        raise UsageError("name topics to record, or give --all or --server ENDPOINT")
    file = output or Path(f"bag_{datetime.now():%Y%m%d_%H%M%S}.mcap")
    if server is not None:
        return record_requests(file, server, listen, robot or [], duration)
    return record_topics(file, ["*"] if all_ else topics or [], duration)


@app.command()
def play(
    bag: _Bag,
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help="Which topics. (default: all)")] = None,
    rate: Annotated[float, typer.Option("--rate", "-r", metavar="X", help="Speed, relative to the recording.")] = 1.0,
    start: Annotated[float, typer.Option(metavar="SECONDS", help="Where to begin, from the start of the bag.")] = 0.0,
    loop: Annotated[bool, typer.Option("--loop", "-l", help="Repeat until Ctrl-C.")] = False,
    delay: Annotated[
        float, typer.Option(metavar="SECONDS", help="Wait before the first message, so that subscribers can connect.")
    ] = 0.5,
) -> None:
    """Publish a bag's messages again, with their original timing."""
    require_libraries()
    from dyn_service.cli.bag_recording import play_bag

    play_bag(bag, topics or [], rate, start, delay, loop=loop)


@app.command()
def verify(
    bag: _Bag,
    robot: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A robot's file; replaces the one in the bag.")
    ] = None,
    joints: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A joint file: damping, friction, springs and rotors of the robots' joints."),
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="ENDPOINT", help="Ask this server. (default: this version, in this process)")
    ] = None,
    within: Annotated[float, typer.Option(metavar="X", help="Relative difference to accept.")] = 0.0,
) -> int:
    """Repeat recorded requests and report the first bit that differs."""
    require_libraries()
    from dyn_service.cli.bag_recording import verify_bag

    return verify_bag(bag, robot or [], joints, server, within)


@app.command()
def info(bag: _Bag, json_output: Json = False) -> None:
    """Print the topics of a bag, with types, counts, rates and gaps."""
    require_libraries()
    from dyn_service.graph.bags.reader import BagReader, lines, summary

    with BagReader(bag) as reader:
        bag_summary = summary(reader)
    if json_output:
        say_json(json.loads(msgspec.json.encode(bag_summary)))  # NaN becomes null
    else:
        say("\n".join(lines(bag_summary)))


@app.command()
def plot(
    bag: _Bag,
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC", help="Which topics. (default: all, or joint states if there are too many)"),
    ] = None,
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--field",
            metavar="FIELD",
            help="A field, position, or one joint of it, 'position\\[elbow]'; a vector, 'wrench.force'. "
            "May be repeated.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The picture. (default: next to the bag, .png)"),
    ] = None,
    by: Annotated[
        Literal["stamp", "log"],
        typer.Option(help="The time axis: the messages' own stamps, or when they were recorded."),
    ] = "stamp",
) -> None:
    """Plot signals over time: positions, velocities and efforts of joints, or any numbers of any message."""
    require_libraries()
    from dyn_service.graph.bags.plotting import plot as draw
    from dyn_service.graph.bags.reader import BagReader

    with BagReader(bag) as reader:
        picture = output or reader.path.with_suffix(".png")
        panels = draw(reader, topics or [], fields or [], picture, by)
        drawn_topics = {panel.partition("  ")[0] for panel in panels}
        undrawn = [] if topics or fields else [topic.name for topic in reader.topics if topic.name not in drawn_topics]
    say("\n".join(panels))
    say(f"drawn: {picture}")
    if undrawn:
        say(f"not drawn: {', '.join(undrawn)}; name a topic to see it")


@app.command()
def repair(bag: _Bag) -> None:
    """Repair, in place, a bag whose recorder was killed or whose summary or index is damaged."""
    require_libraries()
    from dyn_service.graph.bags.mcap_records import repair as repaired

    done = repaired(bag)
    removed = f"{done.lost_bytes} bytes of an unfinished chunk are removed"
    result = "its summary is rebuilt from its messages" if done.had_end else removed
    indices = f", and the index of {done.indices} of its chunks" if done.indices else ""
    say(f"repaired: {bag}; {result}{indices}")


def require_libraries() -> None:
    """Raises an error if a library for bags is not installed."""
    require("a bag", "mcap", "mcap_ros2", "rosbags")

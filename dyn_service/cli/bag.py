"""`dyn bag`: records, plays, describes, plots, verifies and repairs recordings."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import zmq

from dyn_service import Robot
from dyn_service.cli.progress import UsageError, say, tell
from dyn_service.errors import DeadlineExceededError, InvalidArgumentError
from dyn_service.graph.bags import requests
from dyn_service.graph.bags.pinocchio_engine import WITHIN, pinocchio
from dyn_service.graph.bags.playing import Player
from dyn_service.graph.bags.reader import BagReader, size_text
from dyn_service.graph.bags.recording import TopicRecorder
from dyn_service.graph.bags.requests import Answer, replay, report, robots_of
from dyn_service.graph.bags.requests import verify as compare_all
from dyn_service.graph.bags.writer import BagWriter
from dyn_service.graph.middleware.graph import runtime_folders
from dyn_service.graph.middleware.stop import Stop, stopping
from dyn_service.graph.middleware.topics import runtime_dir
from dyn_service.service.protocol.sockets import receive_checked
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
    needed()

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
        float,
        typer.Option(metavar="SECONDS", help="Wait before the first message, so that subscribers can connect."),
    ] = 0.5,
) -> None:
    """Publish a bag's messages again, with their original timing."""
    needed()

    play_bag(bag, topics or [], rate, start, delay, loop=loop)


@app.command()
def verify(
    bag: _Bag,
    robot: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A robot's file; replaces the one in the bag."),
    ] = None,
    joints: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A joint file: damping, friction, springs and rotors of the robots' joints."),
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="ENDPOINT", help="Ask this server. (default: this version, in this process)")
    ] = None,
    engine: Annotated[
        Literal["dyn_service", "pinocchio"], typer.Option(help="The dynamics library that computes the answers.")
    ] = "dyn_service",
    within: Annotated[
        float | None,
        typer.Option(metavar="X", help="Relative difference to accept. (default: 0; with Pinocchio 1e-9)"),
    ] = None,
) -> int:
    """Repeat recorded requests and report the first bit that differs."""
    needed()

    if server is not None and engine != "dyn_service":
        raise UsageError("--server and --engine exclude each other")
    return verify_bag(bag, robot or [], joints, server, engine, within)


@app.command()
def info(bag: _Bag, json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the topics of a bag, with types, counts, rates and gaps."""
    needed()
    from dyn_service.graph.bags.reader import BagReader, lines, summary

    with BagReader(bag) as reader:
        found = summary(reader)
    if not json_output:
        say("\n".join(lines(found)))
        return
    topics: list[dict[str, Any]] = []
    for topic in found.topics:
        numbers = {"rate_hz": topic.rate_hz, "longest_gap_s": topic.longest_gap_s, "gap_at_s": topic.gap_at_s}
        known: dict[str, Any] = {name: None if math.isnan(value) else value for name, value in numbers.items()}
        topics.append({"name": topic.name, "type": topic.type, "count": topic.count, "gaps": topic.gaps} | known)
    say(
        json.dumps(
            {
                "file": str(found.path),
                "bytes": found.size,
                "whole": found.whole,
                "begin_ns": found.begin_ns,
                "duration_s": found.duration_s,
                "topics": topics,
                "attached": list(found.attached),
            },
            indent=2,
        )
    )


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
    needed()
    from dyn_service.graph.bags.plotting import plot as draw
    from dyn_service.graph.bags.reader import BagReader

    with BagReader(bag) as reader:
        picture = output or reader.path.with_suffix(".png")
        panels = draw(reader, topics or [], fields or [], picture, by)
        drawn = {panel.partition("  ")[0] for panel in panels}
        left_out = [] if topics or fields else [topic.name for topic in reader.topics if topic.name not in drawn]
    say("\n".join(panels))
    say(f"drawn: {picture}")
    if left_out:
        say(f"not drawn: {', '.join(left_out)}; name a topic to see it")


@app.command()
def mend(bag: _Bag) -> None:
    """Repair, in place, a bag whose recorder was killed or whose summary or index is damaged."""
    needed()
    from dyn_service.graph.bags.repair import mend as mended

    done = mended(bag)
    what = (
        "its summary is rebuilt from its messages"
        if done.ended
        else f"{done.lost} bytes of an unfinished chunk are removed"
    )
    indices = f", and the index of {done.indices} of its chunks" if done.indices else ""
    say(f"mended: {bag}; {what}{indices}")


def needed() -> None:
    """Raises an error if a library for bags is not installed."""
    require("a bag", "mcap", "mcap_ros2", "rosbags")


_ANSWER_TIMEOUT_MS = 60_000


def record_topics(file: Path, topics: list[str], duration_s: float | None) -> int:
    """Records topics until stopped; returns 0."""
    with stopping() as stop, BagWriter(file) as writer:
        recorder = TopicRecorder(writer, topics, runtime_folders, tell)
        tell(f"recording {', '.join(topics)} to {file}; Ctrl-C ends it")
        try:
            recorder.run(_until(stop, duration_s))
            missed, malformed = recorder.missed, recorder.malformed
        finally:
            recorder.close()
    _done(writer)
    if missed:
        tell(f"missed: {missed} published messages were not received in time")
    if malformed:
        tell(f"malformed: {malformed} messages did not match their type")
    return 0


def record_requests(file: Path, server: str, listen: str, robots: list[Path], duration_s: float | None) -> int:
    """Records the requests to a server until stopped; returns 1 if some could not be recorded."""
    known = requests.fingerprints(server)
    with stopping() as stop, BagWriter(file) as writer:
        requests.describe(writer, known, robots)
        recorder = requests.RequestRecorder(server, listen, writer, tell)
        # the only line on standard output: scripts read it
        say(f"ready: {recorder.endpoint} for {server}, robots: {', '.join(known) or 'none'}")
        try:
            recorder.run(_until(stop, duration_s))
        finally:
            recorder.close()
    _done(writer)
    if recorder.dropped:
        tell(f"dropped: {recorder.dropped} messages, because the receiver did not read them in time")
    return 0 if recorder.whole else 1


def play_bag(file: Path, topics: list[str], rate: float, start_s: float, delay_s: float, *, loop: bool) -> None:
    """Plays a bag once, or until stopped."""
    with stopping() as stop, BagReader(file) as bag:
        player = Player(bag, topics, runtime_dir(), rate=rate, start_s=start_s, say=tell)
        going_on = _until(stop, None)
        try:
            player.run(going_on, delay_s)
            while loop and going_on():
                player.run(going_on, 0.0)
        finally:
            player.close()
    say(f"played {player.played} messages, at most {1e3 * player.latest_s:.1f} ms late")


def verify_bag(
    file: Path, robots: list[Path], joints: str | None, server: str | None, engine: str, within: float | None
) -> int:
    """Repeats recorded requests and prints differing replies; returns 1 if one differs by more than `within`."""
    with BagReader(file) as bag:
        if server is not None:
            with _asked(server) as answer:
                found = compare_all(bag, answer)
        else:
            given = [Robot.from_file(each, joints=joints) for each in robots]
            known, remarks = robots_of(bag, given, joints)
            if engine == "pinocchio":
                texts = [each.data.decode("utf-8", "replace") for each in bag.attached]
                texts += [each.read_text("utf-8") for each in robots]
                found = compare_all(bag, pinocchio(known, texts, remarks.append))
                within = WITHIN if within is None else within
            else:
                found = compare_all(bag, replay(known))
            found.remarks += remarks
    say("\n".join(report(found)))
    differs = found.first is not None and (not within or found.largest > within)
    return 1 if differs or not found.compared else 0


@contextlib.contextmanager
def _asked(server: str) -> Iterator[Answer]:
    """Yields a function that sends a request to the server and returns its answer."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        try:
            socket.connect(server)
        except zmq.ZMQError as error:
            raise InvalidArgumentError(f"endpoint {server!r}: {error.strerror}") from None

        def answer(request: bytes) -> bytes:
            socket.send(request)
            if not socket.poll(_ANSWER_TIMEOUT_MS):
                raise DeadlineExceededError(f"server {server!r} did not answer within {_ANSWER_TIMEOUT_MS // 1000} s")
            return receive_checked(socket, server)

        yield answer


def _until(stop: Stop, duration_s: float | None) -> Callable[[], bool]:
    ends = None if duration_s is None else time.monotonic() + duration_s
    return lambda: not stop.requested and (ends is None or time.monotonic() < ends)


def _done(writer: BagWriter) -> None:
    counts = ", ".join(f"{count} of {topic}" for topic, count in sorted(writer.counts.items()))
    tell(f"recorded {counts or 'nothing'}: {writer.path}, {size_text(writer.path.stat().st_size)}")

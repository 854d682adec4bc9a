"""`dyn bag`: recordings of topics, what is in them, as pictures."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dyn_service.errors import FailedPreconditionError

app = typer.Typer(help="Record topics into MCAP files of ROS 2, and use them.", no_args_is_help=True)

_Bag = Annotated[Path, typer.Argument(metavar="FILE", help="A bag, or a folder of `ros2 bag record`.")]


@app.command()
def info(bag: _Bag, json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the topics of a bag: types, counts, rates, gaps."""
    _needed()
    from dyn_service.bags.reader import BagReader
    from dyn_service.bags.summary import lines, summary

    with BagReader(bag) as reader:
        found = summary(reader)
    if not json_output:
        typer.echo("\n".join(lines(found)))
        return
    topics: list[dict[str, Any]] = []
    for topic in found.topics:
        numbers = {"rate_hz": topic.rate_hz, "longest_gap_s": topic.longest_gap_s, "gap_at_s": topic.gap_at_s}
        known: dict[str, Any] = {name: None if math.isnan(value) else value for name, value in numbers.items()}
        topics.append({"name": topic.name, "type": topic.type, "count": topic.count, "gaps": topic.gaps} | known)
    typer.echo(
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
        list[str] | None, typer.Argument(metavar="TOPIC", help="Which; all that have numbers where none is named.")
    ] = None,
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--field", metavar="FIELD", help="position, or one joint's: 'position[elbow]'; may be given often."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to. (default: beside the bag, .png)")
    ] = None,
    by: Annotated[Literal["stamp", "log"], typer.Option(help="Time: the messages' own, or when they came.")] = "stamp",
) -> None:
    """Draw signals over time: positions, velocities, efforts by joint, or any numbers of any message."""
    _needed()
    from dyn_service.bags.plotting import plot as draw
    from dyn_service.bags.reader import BagReader

    with BagReader(bag) as reader:
        picture = output or reader.path.with_suffix(".png")
        for panel in draw(reader, topics or [], fields or [], picture, by):
            typer.echo(panel)
    typer.echo(f"drawn: {picture}")


@app.command()
def mend(bag: _Bag) -> None:
    """End a bag whose recorder was killed, so that others' readers take it too; in place."""
    _needed()
    from dyn_service.bags.mending import mend as end

    lost = end(bag)
    typer.echo(f"mended: {bag}; {lost} bytes of a chunk that was not finished were taken away")


def _needed() -> None:
    """Says which extra brings the libraries of bags, where they are missing."""
    for name in ("mcap", "mcap_ros2", "rosbags"):
        if find_spec(name) is None:
            raise FailedPreconditionError(f"bags need {name!r}: pip install 'dyn_service[bags]'")

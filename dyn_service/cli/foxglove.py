"""`dyn foxglove`: topics as they come, for Foxglove."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from dyn_service.cli.progress import say, tell
from dyn_service.support.optional import require


def foxglove(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="Full names, or patterns: '/arm/*'. (default: all)")
    ] = None,
    host: Annotated[str, typer.Option(help="Where to listen; whoever can connect sees all messages.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8765,
    origin: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="A web page that may connect; may be repeated.")
    ] = None,
    frames: Annotated[bool, typer.Option(help="Publish tf for plants without a tf publisher.")] = True,
) -> int:
    """Serve the topics of running nodes to Foxglove, until Ctrl-C."""
    require("dyn foxglove", "foxglove", "rosbags")
    from dyn_service.graph.middleware.graph import runtime_folders
    from dyn_service.graph.middleware.stop import stopping
    from dyn_service.view.foxglove import FoxgloveServer
    from dyn_service.view.frames_along import FramesAlong

    logging.getLogger("foxglove").setLevel(logging.CRITICAL)  # of clients' faults, in the words of a library
    with stopping() as stop:
        server = FoxgloveServer(topics or ["*"], runtime_folders, tell, _found, host, port, origin or ())
        along = FramesAlong(topics or ["*"], tell) if frames else None
        try:
            say(f"serving {server.url}: in Foxglove, Open connection, Foxglove WebSocket; Ctrl-C ends it")
            server.run(lambda: not stop.requested)
        finally:
            if along is not None:
                along.close()
            server.close()
    if server.missed:
        tell(f"missed: {server.missed} messages were published and did not come in time")
    if server.malformed:
        tell(f"malformed: {server.malformed} messages did not match their type")
    return 0


def _found(topic: str, kind: str) -> None:
    say(f"{topic}  {kind}")

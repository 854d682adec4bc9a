"""`dyn topic`: lists topics, shows their messages and rates, and publishes messages."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dyn_service.cli.console import UsageError, say, tell
from dyn_service.cli.finding import discovery, full_name, topics, types
from dyn_service.cli.nodes import ShowTypes
from dyn_service.errors import InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dyn_service.graph.middleware.discovery import Discovery

app = typer.Typer(help="List topics, show their messages, publish messages.", no_args_is_help=True)

_Topic = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC",
        help="Its full name, or an endpoint tcp://HOST:PORT.",
        autocompletion=topics,
        callback=full_name,
    ),
]
_Type = Annotated[
    str | None,
    typer.Argument(
        metavar="TYPE", help="Such as sensor_msgs/msg/JointState. (default: as published)", autocompletion=types
    ),
]


@app.command("list")
def list_(show_types: ShowTypes = False) -> None:
    """Print the topics' names."""
    for name, kinds in discovery().topics().items():
        say(f"{name} [{', '.join(sorted(kinds))}]" if show_types else name)


@app.command()
def info(
    topic: _Topic, verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print the nodes too.")] = False
) -> None:
    """Print a topic's type and the numbers of its publishers and subscriptions."""
    network = discovery()
    kind, entries = network.topic_type(topic), network.entries()
    say(f"Type: {kind}")
    for title, field in (("Publisher", "publishers"), ("Subscription", "subscriptions")):
        ends = [(entry, end) for entry in entries for end in getattr(entry, field) if end.name == topic]
        say(f"{title} count: {len(ends)}")
        for entry, end in ends if verbose else []:
            say(
                f"  {entry.name} ({entry.state}, process {entry.pid})" + (f" at {end.endpoint}" if end.endpoint else "")
            )


@app.command()
def echo(
    topic: _Topic,
    kind: _Type = None,
    once: Annotated[bool, typer.Option("--once", help="Print the first message and exit.")] = False,
    field: Annotated[str, typer.Option(metavar="NAME", help="Print one field only, such as header.stamp.")] = "",
    no_arr: Annotated[bool, typer.Option("--no-arr", help="Print the lengths of arrays, not their contents.")] = False,
) -> None:
    """Print messages as YAML as they arrive, with --- between them."""
    from dyn_service.cli.yaml_text import block
    from dyn_service.graph.middleware.topic_tools import frames, listening

    network = discovery()
    called, decoded = _decoder(network, topic, kind)
    with listening(topic, called, network, _warn) as heard:
        for frame in frames(heard, network):
            if frame is None:
                continue
            try:
                value = decoded(frame)
            except InvalidArgumentError as error:
                _warn(str(error))
                continue
            value = _part(value, field, called)
            say(block(_shortened(value) if no_arr else value) + "---\n", nl=False)
            if once:
                break


@app.command()
def hz(
    topic: _Topic,
    window: Annotated[
        int, typer.Option("--window", "-w", min=1, metavar="N", help="Average over this many messages.")
    ] = 10_000,
) -> None:
    """Print the rate of a topic's messages, each second."""
    from dyn_service.graph.middleware.topic_tools import Rate, frames, listening

    network = discovery()
    called = "" if "://" in topic else network.topic_type(topic)
    rate, next_line = Rate(window), time.monotonic() + 1.0
    with listening(topic, called, network, _warn) as heard:
        for frame in frames(heard, network, 1.0):
            now = time.monotonic()
            if frame is None:
                say("no new messages")
                continue
            rate.came(now)
            if now >= next_line:
                next_line = now + 1.0
                for line in rate.lines(heard.missed):
                    say(line)


@app.command()
def pub(
    topic: _Topic,
    kind: Annotated[str, typer.Argument(metavar="TYPE", help="Such as std_msgs/msg/String.", autocompletion=types)],
    values: Annotated[
        str, typer.Argument(metavar="VALUES", help="As YAML: '{data: hello}', or the value of `data`.")
    ] = "{}",
    rate: Annotated[float, typer.Option("--rate", "-r", metavar="HZ", help="Messages per second.")] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", "-1", help="Publish it once, when there is a subscriber, and exit.")
    ] = False,
    times: Annotated[
        int,
        typer.Option(
            "--times", "-t", min=0, metavar="N", show_default=False, help="Publish it N times. (default: until Ctrl-C)"
        ),
    ] = 0,
) -> None:
    """Publish a message at a fixed rate."""
    from dyn_service.cli.yaml_text import parsed
    from dyn_service.graph.middleware.stop import stopping
    from dyn_service.graph.middleware.topic_tools import publish
    from dyn_service.messages import by_type, from_builtins

    if not rate > 0.0:
        raise UsageError(f"--rate is {rate:g}: expected a positive number")
    try:
        given = parsed(values, "VALUES")
        message = from_builtins(by_type(kind), {"data": given} if not isinstance(given, dict | None) else given or {})
    except (InvalidArgumentError, NotFoundError) as error:
        raise UsageError(str(error)) from None
    with stopping() as stop:  # Ctrl-C while the node is created or closed would leave sockets open
        subscribers = publish(discovery(), topic, message, rate, 1 if once else times, stop)
    if stop.requested:
        raise KeyboardInterrupt
    if not subscribers:
        _warn(f"{topic} has no subscriber")


def _decoder(network: Discovery, topic: str, kind: str | None) -> tuple[str, Callable[[memoryview], Any]]:
    """Returns the topic's type and a function that decodes a frame; unknown types are decoded without their fields."""
    import msgspec

    from dyn_service.messages import by_type, decode, ros_type

    if kind is None and "://" in topic:
        raise UsageError(f"{topic}: name the type of its messages")
    called = kind or network.topic_type(topic)
    try:
        known = by_type(called)
    except NotFoundError:
        if kind is not None:
            raise
        _warn(f"message type {called} is unknown: its messages are shown without field checks")
        return called, _undeclared
    return ros_type(known), lambda frame: msgspec.to_builtins(decode(known, frame))


def _undeclared(frame: memoryview) -> Any:
    import msgspec

    try:
        return msgspec.msgpack.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidArgumentError("a message is not valid MessagePack") from None


def _part(value: Any, field: str, kind: str) -> Any:
    for name in field.split(".") if field else ():
        if not isinstance(value, dict) or name not in value:
            from dyn_service.support.suggestions import did_you_mean

            near = did_you_mean(name, value) if isinstance(value, dict) else ""
            raise UsageError(f"{kind} has no {field!r}{near}")
        value = value[name]
    return value


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shortened(inner) for name, inner in value.items()}
    return f"<sequence of {len(value)}>" if isinstance(value, list) else value


def _warn(sentence: str) -> None:
    tell(f"warning: {sentence}")

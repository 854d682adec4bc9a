"""`dyn node` and `dyn lifecycle`: running nodes and their states."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from dyn_service.cli.finding import nodes, transitions
from dyn_service.cli.progress import say

if TYPE_CHECKING:
    import msgspec

R = TypeVar("R")
app = typer.Typer(help="Show running nodes.", no_args_is_help=True)
lifecycle_app = typer.Typer(help="Show and change the lifecycle states of nodes.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NODE", help="Its full name, such as /arm/plant.", autocompletion=nodes)]
Timeout = Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for the node's answer.")]


def ask(name: str, service: str, request: msgspec.Struct, kind: type[R], timeout: float) -> R:
    """Calls one of the services that every node has, and returns the response."""
    from dyn_service.graph.middleware.discovery import Discovery, full

    discovery = Discovery()
    return discovery.call(f"{discovery.node(full(name)).entry.name}/{service}", request, kind, timeout)


@app.command("list")
def list_() -> None:
    """Print the nodes' names, with the launch's folder if several launches have a node of the same name."""
    from dyn_service.graph.middleware.discovery import Discovery

    found = Discovery().nodes()
    times = Counter(node.entry.name for node in found)
    for folder, entry in found:
        say(entry.name if times[entry.name] == 1 else f"{entry.name}  {folder}")


@app.command()
def info(name: Name) -> None:
    """Print a node's publishers, subscriptions and services."""
    from dyn_service.graph.middleware.discovery import Discovery, full

    folder, entry = Discovery().node(full(name))
    say(entry.name)
    say(f"  State: {entry.state}\n  Process: {entry.pid}\n  Folder: {folder}")
    for title, ends in (
        ("Subscribers", entry.subscriptions),
        ("Publishers", entry.publishers),
        ("Service Servers", entry.services),
    ):
        say(f"  {title}:")
        for end in ends:
            say(f"    {end.name}: {end.type}")


@lifecycle_app.command()
def get(name: Name, timeout: Timeout = 2.0) -> None:
    """Print a node's state."""
    from dyn_service.graph.middleware.dyn_service_srvs import GetStateRequest, GetStateResponse

    say(ask(name, "get_state", GetStateRequest(), GetStateResponse, timeout).state)


@lifecycle_app.command("list")
def list_transitions(name: Name, timeout: Timeout = 2.0) -> None:
    """Print the transitions that a node's state allows."""
    from dyn_service.graph.middleware.dyn_service_srvs import GetStateRequest, GetStateResponse

    for transition in ask(name, "get_state", GetStateRequest(), GetStateResponse, timeout).transitions:
        say(transition)


@lifecycle_app.command("set")
def set_(
    name: Name,
    transition: Annotated[
        str, typer.Argument(help="configure, activate, deactivate, cleanup, shutdown.", autocompletion=transitions)
    ],
    timeout: Timeout = 10.0,
) -> None:
    """Change a node's state."""
    from dyn_service.graph.middleware.discovery import full
    from dyn_service.graph.middleware.dyn_service_srvs import ChangeStateRequest, GetStateResponse

    found = ask(name, "change_state", ChangeStateRequest(transition), GetStateResponse, timeout)
    say(f"{full(name)} is {found.state}")

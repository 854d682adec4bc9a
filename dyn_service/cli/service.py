"""`dyn service`: services of running nodes."""

from __future__ import annotations

from typing import Annotated

import typer

from dyn_service.cli.finding import services
from dyn_service.cli.node import Timeout
from dyn_service.cli.progress import UsageError, say

app = typer.Typer(help="List and call services of running nodes.", no_args_is_help=True)


@app.command("list")
def list_(
    show_types: Annotated[bool, typer.Option("--show-types", "-t", help="Print their types too.")] = False,
) -> None:
    """Print the services' names."""
    from dyn_service.graph.middleware.discovery import Discovery

    ends = {(end.name, end.type) for entry in Discovery().entries() for end in entry.services}
    for name, kind in sorted(ends):
        say(f"{name} [{kind}]" if show_types else name)


@app.command()
def call(
    name: Annotated[
        str,
        typer.Argument(
            metavar="SERVICE", help="Its full name, such as /arm/plant/get_parameters.", autocompletion=services
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[TYPE] [VALUES]", help="VALUES are YAML: '{names: \\[rate_hz]}'.")
    ] = None,
    timeout: Timeout = 5.0,
) -> None:
    """Call a service and print its answer as YAML."""
    from dyn_service.cli.yaml_text import block, parsed
    from dyn_service.graph.middleware.discovery import Discovery, full

    words = list(arguments or [])
    discovery = Discovery()
    _, end = discovery.service(full(name))
    if words and "/srv/" in words[0]:
        kind = words.pop(0)
        if kind != end.type:
            raise UsageError(f"service {end.name!r} has the type {end.type}, found {kind}")
    values = parsed(words.pop(0), "VALUES") if words else {}
    if words or not isinstance(values, dict | None):
        raise UsageError("VALUES must be one map, such as '{names: [rate_hz]}'")
    say(block(discovery.call(end.name, values or {}, dict, timeout)), nl=False)

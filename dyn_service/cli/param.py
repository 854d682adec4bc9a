"""`dyn param`: the parameters of nodes that run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dyn_service.cli.completing import parameters
from dyn_service.cli.node import Name, Timeout, ask
from dyn_service.cli.progress import say

app = typer.Typer(help="Show and set parameters of running nodes.", no_args_is_help=True)

Parameter = Annotated[str, typer.Argument(metavar="NAME", help="Such as gains.kp.", autocompletion=parameters)]


@app.command("list")
def list_(name: Name, timeout: Timeout = 2.0) -> None:
    """Print the names of a node's parameters."""
    from dyn_service.nodes.dyn_service_srvs import ListParametersRequest, ListParametersResponse

    for found in ask(name, "list_parameters", ListParametersRequest(), ListParametersResponse, timeout).names:
        say(found)


@app.command()
def get(name: Name, parameter: Parameter, timeout: Timeout = 2.0) -> None:
    """Print a parameter's value, as YAML."""
    from dyn_service.cli.yaml_text import flow
    from dyn_service.nodes.dyn_service_srvs import GetParametersRequest, GetParametersResponse

    found = ask(name, "get_parameters", GetParametersRequest([parameter]), GetParametersResponse, timeout)
    say(flow(found.values[parameter]))


@app.command("set", context_settings={"ignore_unknown_options": True})  # -0.5 is a value
def set_(
    name: Name,
    parameter: Parameter,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="As YAML: 0.5, true, [1, 2], fast.")],
    timeout: Timeout = 2.0,
) -> None:
    """Set a parameter of a running node, if the node allows it."""
    from dyn_service.cli.yaml_text import flow, parsed
    from dyn_service.nodes.dyn_service_srvs import SetParametersRequest
    from dyn_service.nodes.services import Empty

    given = parsed(value, "VALUE")
    ask(name, "set_parameters", SetParametersRequest({parameter: given}), Empty, timeout)
    say(f"{parameter} = {flow(given)}")


@app.command()
def describe(
    name: Name,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="(default: all)", autocompletion=parameters)
    ] = None,
    timeout: Timeout = 2.0,
) -> None:
    """Describe parameters, as the node's `--help` does: type, range, default, and whether they can be set."""
    from dyn_service.config.described import table, terminal_width
    from dyn_service.nodes.dyn_service_srvs import DescribeParametersRequest, DescribeParametersResponse

    asked = DescribeParametersRequest(names or [])
    rows = ask(name, "describe_parameters", asked, DescribeParametersResponse, timeout).descriptors
    for line in table(rows, terminal_width()):
        say(line)


@app.command()
def dump(name: Name, timeout: Timeout = 2.0) -> None:
    """Print all of a node's parameters as a parameter file."""
    from dyn_service.cli.yaml_text import block
    from dyn_service.nodes.discovery import full
    from dyn_service.nodes.dyn_service_srvs import GetParametersRequest, GetParametersResponse

    values = ask(name, "get_parameters", GetParametersRequest(), GetParametersResponse, timeout).values
    nested: dict[str, Any] = {}
    for dotted, value in values.items():
        *above, last = dotted.split(".")
        table = nested
        for step in above:
            table = table.setdefault(step, {})
        table[last] = value
    say(block({full(name): {"ros__parameters": nested}}), nl=False)

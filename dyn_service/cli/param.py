"""`dyn param`: parameters of running nodes."""

from __future__ import annotations

import json
import shutil
from difflib import unified_diff
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Annotated, Any

import typer

from dyn_service.cli.finding import parameters
from dyn_service.cli.node import Name, Timeout, ask
from dyn_service.cli.progress import say, tell

app = typer.Typer(help="Show and set parameters of running nodes.", no_args_is_help=True)

Parameter = Annotated[str, typer.Argument(metavar="NAME", help="Such as gains.kp.", autocompletion=parameters)]


@app.command("list")
def list_(name: Name, timeout: Timeout = 2.0) -> None:
    """Print the names of a node's parameters."""
    from dyn_service.graph.middleware.dyn_service_srvs import ListParametersRequest, ListParametersResponse

    for found in ask(name, "list_parameters", ListParametersRequest(), ListParametersResponse, timeout).names:
        say(found)


@app.command()
def get(name: Name, parameter: Parameter, timeout: Timeout = 2.0) -> None:
    """Print a parameter's value, as YAML."""
    from dyn_service.cli.yaml_text import flow
    from dyn_service.graph.middleware.dyn_service_srvs import GetParametersRequest, GetParametersResponse

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
    from dyn_service.graph.middleware.dyn_service_srvs import SetParametersRequest
    from dyn_service.graph.middleware.services import Empty

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
    from dyn_service.graph.middleware.dyn_service_srvs import DescribeParametersRequest, DescribeParametersResponse
    from dyn_service.support.parameter_descriptions import table, terminal_width

    asked = DescribeParametersRequest(names or [])
    rows = ask(name, "describe_parameters", asked, DescribeParametersResponse, timeout).descriptors
    for line in table(rows, terminal_width()):
        say(line)


@app.command()
def dump(name: Name, timeout: Timeout = 2.0) -> None:
    """Print all of a node's parameters as a parameter file, for `dyn launch FILE params:=THAT_FILE`."""
    from dyn_service.cli.yaml_text import block, flow
    from dyn_service.graph.middleware.discovery import Discovery, full

    folder = str(Discovery().node(full(name)).folder)
    nested: dict[str, Any] = {}
    for dotted, value in _values(name, timeout).items():
        if folder in flow(value):  # a socket of this launch; the next launch has another one
            say(f"# omitted, set by each launch: {dotted}: {flow(value)}")
            continue
        *above, last = dotted.split(".")
        table = nested
        for step in above:
            table = table.setdefault(step, {})
        table[last] = value
    say(block({full(name): {"ros__parameters": nested}}), nl=False)


@app.command()
def save(
    name: Name,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The parameter file that the node was started with.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")] = False,
    timeout: Timeout = 2.0,
) -> None:
    """Write values that were set while the node ran to its parameter file; comments and other values stay."""
    from dyn_service.cli.yaml_text import edited, flow
    from dyn_service.graph.middleware.discovery import full
    from dyn_service.graph.middleware.dyn_service_srvs import DescribeParametersRequest, DescribeParametersResponse
    from dyn_service.support.documents import read_document
    from dyn_service.support.parameters import Parameters, section_names

    document, given, changes = read_document(file), Parameters(), dict[Any, Any]()
    if not given.merge_file(document, full(name)):
        raise document.fault(f"no section is for {full(name)}; others are for {section_names(document)}")
    values, asked = _values(name, timeout), DescribeParametersRequest()
    for one in ask(name, "describe_parameters", asked, DescribeParametersResponse, timeout).descriptors:
        value, at = values[one.name], tuple(one.name.split("."))
        if one.settable and at not in given.origins and one.default not in (json.dumps(value), value or "none"):
            tell(f"not in {file}: {one.name} = {flow(value)}")
        elif one.settable and at in given.origins and reduce(getitem, at, given.values) != value:
            changes[given.origins[at][1]] = value
    text = file.read_bytes().decode("utf-8")
    made = edited(text, str(file), changes)
    for line in unified_diff(text.splitlines(), made.splitlines(), str(file), str(file), lineterm="", n=1):
        say(line)
    if changes and (yes or typer.confirm(f"Write {file}?")):
        place = file.resolve()
        temporary = place.with_name(f"{place.name}.part")  # the file is complete at any time
        temporary.write_bytes(made.encode("utf-8"))
        shutil.copymode(place, temporary)
        temporary.replace(place)


def _values(name: str, timeout: float) -> dict[str, Any]:
    """Returns all parameters of a node, by dotted name."""
    from dyn_service.graph.middleware.dyn_service_srvs import GetParametersRequest, GetParametersResponse

    return ask(name, "get_parameters", GetParametersRequest(), GetParametersResponse, timeout).values

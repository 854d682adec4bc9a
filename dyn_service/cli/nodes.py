"""`dyn topic`, `node`, `lifecycle`, `param` and `service`: running nodes, their topics, states, parameters, services.

Also the default server (that of the running launch, else the default endpoint), and completion of names.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from difflib import unified_diff
from functools import reduce
from operator import getitem
from pathlib import Path
from stat import S_IMODE
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import typer

from dyn_service.cli.console import UsageError, say, tell
from dyn_service.errors import DynError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.service.protocol.limits import DEFAULT_ENDPOINT
from dyn_service.support.suggestions import did_you_mean

if TYPE_CHECKING:
    from dyn_service.graph.middleware.discovery import Discovery

R = TypeVar("R")
_LISTENS_S = 0.2
"""Timeout, s, for a connection to a process on this machine."""


def discovery() -> Discovery:
    """Returns the running nodes of all launches; imports them only now, so that `dyn` starts quickly."""
    from dyn_service.graph.middleware.discovery import Discovery

    return Discovery()


def full_name(name: str) -> str:
    """Returns the name of a node, topic or service with its leading slash."""
    from dyn_service.graph.middleware.discovery import full

    return full(name)


def find_server(server: str | None) -> str:
    """Returns `server`, else that of the only running server, else the default.

    Raises:
        FailedPreconditionError: Several servers are running.
        PermissionDeniedError: A folder of running nodes belongs to another user, or others can write to it.
    """
    if server is not None:
        return server
    servers = {endpoint: f"{running.entry.name} in {running.folder}" for running, endpoint in discovery().servers()}
    # a server by itself is not registered: a choice by chance could ask the wrong one
    if servers and DEFAULT_ENDPOINT not in servers and _listens(DEFAULT_ENDPOINT):
        servers[DEFAULT_ENDPOINT] = "by itself"
    if len(servers) > 1:
        choices = "; ".join(f"--server {endpoint} ({owner})" for endpoint, owner in servers.items())
        raise FailedPreconditionError(f"{len(servers)} servers are running, name one: {choices}")
    return next(iter(servers), DEFAULT_ENDPOINT)


def _listens(endpoint: str) -> bool:
    """Returns whether a process listens at this endpoint."""
    place = urlsplit(endpoint)
    try:
        socket.create_connection((place.hostname, place.port), _LISTENS_S).close()
    except OSError:
        return False
    return True


def _matching(incomplete: str, names: Callable[[Discovery], Iterable[str]]) -> list[str]:
    """Returns the completions; none after an error, because shells cannot show it."""
    completions: list[str] = []
    with suppress(DynError, OSError):
        matches = {name for name in names(discovery()) if name.startswith(incomplete)}
        completions = sorted(filter(str.isprintable, matches))
    return completions


def nodes(incomplete: str) -> list[str]:
    """Names of nodes."""
    return _matching(incomplete, lambda network: [entry.name for entry in network.entries()])


def topics(incomplete: str) -> list[str]:
    """Names of topics."""
    return _matching(incomplete, lambda network: network.topics())


def services(incomplete: str) -> list[str]:
    """Names of services."""
    return _matching(incomplete, lambda network: [end.name for entry in network.entries() for end in entry.services])


def types(incomplete: str) -> list[str]:
    """Types of messages."""
    from dyn_service.messages import all_types, ros_type

    return [name for name in map(ros_type, all_types()) if name.startswith(incomplete)]


def transitions(incomplete: str) -> list[str]:
    """Transitions of a lifecycle."""
    from dyn_service.graph.middleware.node import TRANSITIONS

    return [name for name in TRANSITIONS if name.startswith(incomplete)]


def parameters(context: typer.Context, incomplete: str) -> list[str]:
    """Returns the parameter names of the node that the command line names."""
    from dyn_service.graph.middleware.dyn_service_srvs import ListParametersRequest, ListParametersResponse

    def parameter_names(network: Discovery) -> list[str]:
        service = f"{full_name(context.params.get('name') or '')}/list_parameters"
        return network.call(service, ListParametersRequest(), ListParametersResponse, 0.5).names

    return _matching(incomplete, parameter_names)


topic_app = typer.Typer(help="List topics, show their messages, publish messages.", no_args_is_help=True)
node_app = typer.Typer(help="Show running nodes.", no_args_is_help=True)
lifecycle_app = typer.Typer(help="Show and change the lifecycle states of nodes.", no_args_is_help=True)
param_app = typer.Typer(help="Show and set parameters of running nodes.", no_args_is_help=True)
service_app = typer.Typer(help="List and call services of running nodes.", no_args_is_help=True)
GROUPS = {"topic": topic_app, "node": node_app, "service": service_app, "param": param_app, "lifecycle": lifecycle_app}

Name = Annotated[
    str,
    typer.Argument(metavar="NODE", help="Its full name, such as /arm/plant.", autocompletion=nodes, callback=full_name),
]
Parameter = Annotated[str, typer.Argument(metavar="NAME", help="Such as gains.kp.", autocompletion=parameters)]
Timeout = Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for the node's answer.")]
ShowTypes = Annotated[bool, typer.Option("--show-types", "-t", help="Print their types too.")]


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


def ask(name: str, service: str, request: msgspec.Struct, kind: type[R], timeout: float) -> R:
    """Calls one of the services that every node has, and returns the response."""
    network = discovery()
    return network.call(f"{network.node(name).entry.name}/{service}", request, kind, timeout)


@node_app.command("list")
def list_nodes() -> None:
    """Print the nodes' names, with the launches' folders if there are several."""
    network = discovery()
    for line in network.placed((entry.name, folder) for folder, entry in network.nodes()):
        say(line)


@node_app.command("info")
def node_info(name: Name) -> None:
    """Print a node's publishers, subscriptions and services."""
    folder, entry = discovery().node(name)
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


@lifecycle_app.command("get")
def lifecycle_get(name: Name, timeout: Timeout = 2.0) -> None:
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
def lifecycle_set(
    name: Name,
    transition: Annotated[
        str, typer.Argument(help="configure, activate, deactivate, cleanup, shutdown.", autocompletion=transitions)
    ],
    timeout: Timeout = 10.0,
) -> None:
    """Change a node's state."""
    from dyn_service.graph.middleware.dyn_service_srvs import ChangeStateRequest, GetStateResponse

    response = ask(name, "change_state", ChangeStateRequest(transition), GetStateResponse, timeout)
    say(f"{name} is {response.state}")


@param_app.command("list")
def list_parameters(name: Name, timeout: Timeout = 2.0) -> None:
    """Print the names of a node's parameters."""
    from dyn_service.graph.middleware.dyn_service_srvs import ListParametersRequest, ListParametersResponse

    for parameter in ask(name, "list_parameters", ListParametersRequest(), ListParametersResponse, timeout).names:
        say(parameter)


@param_app.command("get")
def param_get(name: Name, parameter: Parameter, timeout: Timeout = 2.0) -> None:
    """Print a parameter's value, as YAML."""
    from dyn_service.cli.yaml_text import flow
    from dyn_service.graph.middleware.dyn_service_srvs import GetParametersRequest, GetParametersResponse

    response = ask(name, "get_parameters", GetParametersRequest([parameter]), GetParametersResponse, timeout)
    say(flow(response.values[parameter]))


# unknown options are values, such as -0.5
@param_app.command("set", context_settings={"ignore_unknown_options": True})
def param_set(
    name: Name,
    parameter: Parameter,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="As YAML: 0.5, true, [1, 2], fast.")],
    timeout: Timeout = 2.0,
) -> None:
    """Set a parameter of a running node, if the node allows it."""
    from dyn_service.cli.yaml_text import flow, parsed
    from dyn_service.graph.middleware.dyn_service_srvs import SetParametersRequest
    from dyn_service.graph.middleware.services import Empty

    parameter_value = parsed(value, "VALUE")
    ask(name, "set_parameters", SetParametersRequest({parameter: parameter_value}), Empty, timeout)
    say(f"{parameter} = {flow(parameter_value)}")


@param_app.command("describe")
def describe_parameters(
    name: Name,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="(default: all)", autocompletion=parameters)
    ] = None,
    timeout: Timeout = 2.0,
) -> None:
    """Describe parameters, as the node's `--help` does: type, range, default, and whether they can be set."""
    from dyn_service.graph.middleware.dyn_service_srvs import DescribeParametersRequest, DescribeParametersResponse
    from dyn_service.support.parameter_descriptions import table, terminal_width

    request = DescribeParametersRequest(names or [])
    rows = ask(name, "describe_parameters", request, DescribeParametersResponse, timeout).descriptors
    for line in table(rows, terminal_width()):
        say(line)


@param_app.command("dump")
def dump_parameters(name: Name, timeout: Timeout = 2.0) -> None:
    """Print all of a node's parameters as a parameter file, for `dyn launch FILE params:=THAT_FILE`."""
    from dyn_service.cli.yaml_text import block, flow

    folder = str(discovery().node(name).folder)
    nested: dict[str, Any] = {}
    for dotted, value in _values(name, timeout).items():
        # a socket of this launch; the next launch has another one
        if folder in flow(value):
            say(f"# omitted, set by each launch: {dotted}: {flow(value)}")
            continue
        *parents, last = dotted.split(".")
        table = nested
        for step in parents:
            table = table.setdefault(step, {})
        table[last] = value
    say(block({name: {"ros__parameters": nested}}), nl=False)


@param_app.command("save")
def save_parameters(
    name: Name,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The parameter file that the node was started with.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")] = False,
    timeout: Timeout = 2.0,
) -> None:
    """Write values that were set while the node ran to its parameter file; comments and other values stay."""
    from dyn_service.cli.yaml_text import edited, flow
    from dyn_service.graph.middleware.dyn_service_srvs import DescribeParametersRequest, DescribeParametersResponse
    from dyn_service.support.documents import read_document
    from dyn_service.support.files import replacement
    from dyn_service.support.parameters import Parameters, section_names

    document, file_parameters, changes = read_document(file), Parameters(), dict[Any, Any]()
    if not file_parameters.merge_file(document, name):
        raise document.fault(f"no section is for {name}; others are for {section_names(document)}")
    values, request = _values(name, timeout), DescribeParametersRequest()
    for descriptor in ask(name, "describe_parameters", request, DescribeParametersResponse, timeout).descriptors:
        value, path = values[descriptor.name], tuple(descriptor.name.split("."))
        if not descriptor.settable:
            continue
        if path in file_parameters.origins:
            if reduce(getitem, path, file_parameters.values) != value:
                changes[file_parameters.origins[path][1]] = value
        elif descriptor.default not in (json.dumps(value), value or "none"):
            tell(f"not in {file}: {descriptor.name} = {flow(value)}")
    text = file.read_bytes().decode("utf-8")
    new_text = edited(text, str(file), changes)
    for line in unified_diff(text.splitlines(), new_text.splitlines(), str(file), str(file), lineterm="", n=1):
        say(line)
    if changes and (yes or typer.confirm(f"Write {file}?")):
        place = file.resolve()
        with replacement(place, S_IMODE(place.stat().st_mode)) as new_file:
            new_file.write(new_text.encode("utf-8"))


def _values(name: str, timeout: float) -> dict[str, Any]:
    from dyn_service.graph.middleware.dyn_service_srvs import GetParametersRequest, GetParametersResponse

    return ask(name, "get_parameters", GetParametersRequest(), GetParametersResponse, timeout).values


@service_app.command("list")
def list_services(show_types: ShowTypes = False) -> None:
    """Print the services' names, with the launches' folders if there are several."""
    network = discovery()
    ends = {(folder, end.name, end.type) for folder, entry in network.nodes() for end in entry.services}
    for line in network.placed((f"{name} [{kind}]" if show_types else name, folder) for folder, name, kind in ends):
        say(line)


@service_app.command("call")
def call_service(
    name: Annotated[
        str,
        typer.Argument(
            metavar="SERVICE",
            help="Its full name, such as /arm/plant/get_parameters.",
            autocompletion=services,
            callback=full_name,
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[TYPE] [VALUES]", help="VALUES are YAML: '{names: \\[rate_hz]}'.")
    ] = None,
    timeout: Timeout = 5.0,
) -> None:
    """Call a service and print its answer as YAML."""
    from dyn_service.cli.yaml_text import block, parsed

    words = list(arguments or [])
    network = discovery()
    _, end = network.service(name)
    if words and "/srv/" in words[0]:
        kind = words.pop(0)
        if kind != end.type:
            raise UsageError(f"service {end.name!r} has the type {end.type}, found {kind}")
    values = parsed(words.pop(0), "VALUES") if words else {}
    if words or not isinstance(values, dict | None):
        raise UsageError("VALUES must be one map, such as '{names: [rate_hz]}'")
    say(block(network.call(end.name, values or {}, dict, timeout)), nl=False)


@topic_app.command("list")
def list_topics(show_types: ShowTypes = False) -> None:
    """Print the topics' names."""
    for name, kinds in discovery().topics().items():
        say(f"{name} [{', '.join(sorted(kinds))}]" if show_types else name)


@topic_app.command("info")
def topic_info(
    topic: _Topic, verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print the nodes too.")] = False
) -> None:
    """Print a topic's type and the numbers of its publishers and subscriptions."""
    network = discovery()
    kind, entries = network.topic_type(topic), network.entries()
    say(f"Type: {kind}")
    publishers = [(entry, end) for entry in entries for end in entry.publishers if end.name == topic]
    subscriptions = [(entry, end) for entry in entries for end in entry.subscriptions if end.name == topic]
    for title, endpoints in (("Publisher", publishers), ("Subscription", subscriptions)):
        say(f"{title} count: {len(endpoints)}")
        for entry, end in endpoints if verbose else []:
            place = f" at {end.endpoint}" if end.endpoint else ""
            say(f"  {entry.name} ({entry.state}, process {entry.pid}){place}")


@topic_app.command()
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
    type_name, decoded = _decoder(network, topic, kind)
    with listening(topic, type_name, network, _warn) as subscription:
        for frame in frames(subscription, network):
            if frame is None:
                continue
            try:
                value = decoded(frame)
            except InvalidArgumentError as error:
                _warn(str(error))
                continue
            value = _part(value, field, type_name)
            say(block(_shortened(value) if no_arr else value) + "---\n", nl=False)
            if once:
                break


@topic_app.command()
def hz(
    topic: _Topic,
    window: Annotated[
        int, typer.Option("--window", "-w", min=1, metavar="N", help="Average over this many messages.")
    ] = 10_000,
) -> None:
    """Print the rate of a topic's messages, each second."""
    from dyn_service.graph.middleware.topic_tools import Rate, frames, listening

    network = discovery()
    type_name = "" if "://" in topic else network.topic_type(topic)
    rate, next_line = Rate(window), time.monotonic() + 1.0
    with listening(topic, type_name, network, _warn) as subscription:
        for frame in frames(subscription, network, 1.0):
            now = time.monotonic()
            if frame is None:
                say("no new messages")
                continue
            rate.add(now)
            if now >= next_line:
                next_line = now + 1.0
                for line in rate.lines(subscription.missed):
                    say(line)


@topic_app.command()
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
        content = parsed(values, "VALUES")
        fields = content or {} if isinstance(content, dict | None) else {"data": content}
        message = from_builtins(by_type(kind), fields)
    except (InvalidArgumentError, NotFoundError) as error:
        raise UsageError(str(error)) from None
    # Ctrl-C while the node is created or closed would leave sockets open
    with stopping() as stop:
        subscribers = publish(discovery(), topic, message, rate, 1 if once else times, stop)
    # the status of an interrupted command, as without the handler of `stopping`
    if stop.requested:
        raise KeyboardInterrupt
    if not subscribers:
        _warn(f"{topic} has no subscriber")


def _decoder(network: Discovery, topic: str, kind: str | None) -> tuple[str, Callable[[memoryview], Any]]:
    """Returns the topic's type and a function that decodes a frame; unknown types are decoded without their fields."""
    from dyn_service.messages import by_type, decode, ros_type

    if kind is None and "://" in topic:
        raise UsageError(f"{topic}: name the type of its messages")
    type_name = kind or network.topic_type(topic)
    try:
        message_type = by_type(type_name)
    except NotFoundError:
        if kind is not None:
            raise
        _warn(f"message type {type_name} is unknown: its messages are shown without field checks")
        return type_name, _undeclared
    return ros_type(message_type), lambda frame: msgspec.to_builtins(decode(message_type, frame))


def _undeclared(frame: memoryview) -> Any:
    try:
        return msgspec.msgpack.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidArgumentError("a message is not valid MessagePack") from None


def _part(value: Any, field: str, kind: str) -> Any:
    for name in field.split(".") if field else ():
        if not isinstance(value, dict) or name not in value:
            hint = did_you_mean(name, value) if isinstance(value, dict) else ""
            raise UsageError(f"{kind} has no {field!r}{hint}")
        value = value[name]
    return value


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shortened(inner) for name, inner in value.items()}
    return f"<sequence of {len(value)}>" if isinstance(value, list) else value


def _warn(sentence: str) -> None:
    tell(f"warning: {sentence}")

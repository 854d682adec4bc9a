"""`dyn run PACKAGE NODE`, and `dyn plant`, `dyn controller`, ..: a node by itself, in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from dyn_service.cli.progress import say
from dyn_service.cli.usage import UsageError
from dyn_service.support.suggestions import did_you_mean

OWN_WORDS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""All that follows is the node's, `--help` too."""


def run(
    context: typer.Context,
    package: Annotated[str, typer.Argument(metavar="PACKAGE", help="The node's package, such as dyn_service.")] = "",
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node's name in its package.")] = "",
) -> int:
    """Run one node of any package: `dyn run PACKAGE NODE --help` lists its parameters."""
    from dyn_service.graph.nodes.registry import Registry

    registry = Registry()
    if package in ("-h", "--help"):
        say(context.get_help(), nl=False)
        return 0
    if not package:
        raise UsageError(f"name a package and its node; there are {', '.join(map('/'.join, registry.all_names()))}")
    known = registry.names(package)
    if not known:
        packages = {home for home, _ in registry.all_names()}
        raise UsageError(f"no nodes of a package {package!r} are registered{did_you_mean(package, packages)}")
    kind = registry.find(package, node)
    if kind is None:
        near = did_you_mean(node, known)
        raise UsageError(f"package {package!r} has no node {node!r}; it has {', '.join(known)}{near}")
    return kind.run(context.args)


def own_nodes() -> dict[str, Callable[[typer.Context], int]]:
    """Commands for those nodes of this package that every launch has, by their names."""
    return {name: _command(name) for name in ("server", "plant", "controller")}


def _command(name: str) -> Callable[[typer.Context], int]:
    def command(context: typer.Context) -> int:
        from dyn_service.graph.nodes.registry import PACKAGE

        return run(context, PACKAGE, name)

    command.__doc__ = f"Run the node `{name}` by itself: `dyn {name} --help` lists its parameters."
    return command

"""Completion in the shell of queries, launch files and their arguments; that of nodes and topics is in `cli.nodes`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import typer

from dyn_service.errors import DynError
from dyn_service.support import shipped


def _starting(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def queries(incomplete: str) -> list[str]:
    """Names of queries."""
    from dyn_service.cli.calling import QUERY_NAMES

    return _starting(incomplete, QUERY_NAMES)


def values(context: typer.Context, incomplete: str) -> list[str]:
    """Inputs and options of the query that the command line names, `NAME=`."""
    from dyn_service.cli.calling import arguments_of

    return _starting(incomplete, [f"{name}=" for name in arguments_of(context.params.get("query") or "")])


def launch_words(context: typer.Context, incomplete: str) -> list[str]:
    """Names of shipped launch files; after one its arguments, `NAME:=`."""
    from dyn_service.graph.launch import declared_arguments

    words = context.params.get("words") or []
    with suppress(DynError, OSError):  # a shell cannot show an error
        if words:
            file = shipped.find_launch_file(words[0])
            return _starting(incomplete, [f"{name}:=" for name in declared_arguments(file)[0]])
        return _starting(incomplete, shipped.launch_files())
    return []

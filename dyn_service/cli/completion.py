"""Completion in the shell of queries, launch files and their arguments; that of nodes and topics is in `cli.nodes`."""

from __future__ import annotations

from contextlib import suppress

import typer

from dyn_service.errors import DynError
from dyn_service.support import shipped


def queries(incomplete: str) -> list[str]:
    """Names of queries."""
    from dyn_service.cli.calling import QUERY_NAMES

    return [name for name in QUERY_NAMES if name.startswith(incomplete)]


def values(context: typer.Context, incomplete: str) -> list[str]:
    """Inputs and options of the query that the command line names, `NAME=`."""
    from dyn_service.cli.calling import arguments_of

    names = arguments_of(context.params.get("query") or "")
    return [f"{name}=" for name in names if name.startswith(incomplete)]


def launch_words(context: typer.Context, incomplete: str) -> list[str]:
    """Names of shipped launch files; after one its arguments, `NAME:=`."""
    from dyn_service.graph.launch import declared_arguments

    words = context.params.get("words") or []
    completions: list[str] = []
    with suppress(DynError, OSError):  # a shell cannot show an error
        names = declared_arguments(shipped.find_launch_file(words[0]))[0] if words else shipped.launch_files()
        completions = [f"{name}:=" if words else name for name in names if name.startswith(incomplete)]
    return completions

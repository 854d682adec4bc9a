"""The default server of `dyn call` and `dyn metrics` while launches run, and the list of their nodes."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dyn_service.cli import nodes as commands
from dyn_service.cli.main import app
from dyn_service.cli.nodes import node_app
from dyn_service.errors import FailedPreconditionError, UnavailableError
from dyn_service.graph.middleware.graph import NodeEntry, Registration, announce_launch, new_token
from dyn_service.graph.middleware.topics import RUNTIME_DIR
from tests.phrases import naming, unnamed

Launched = Callable[..., Path]
ELSEWHERE = "tcp://127.0.0.1:9"
"""An endpoint without a server."""


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launched]:
    """Makes launches with one node each; nothing listens at the default endpoint."""
    monkeypatch.delenv(RUNTIME_DIR, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(commands, "DEFAULT_ENDPOINT", ELSEWHERE)
    with ExitStack() as stack:

        def make(folder: str, name: str, *answers_at: str) -> Path:
            runtime_folder = tmp_path / folder
            runtime_folder.mkdir(mode=0o700, exist_ok=True)
            announce_launch(runtime_folder)
            entry = NodeEntry(name, os.getpid(), new_token(), answers_at=answers_at)
            stack.enter_context(closing(Registration(runtime_folder, entry)))
            return runtime_folder

        yield make


def test_the_one_server_of_the_running_launch_is_meant(launched: Launched) -> None:
    assert commands.find_server(None) == ELSEWHERE
    launched("one", "/plant")
    assert commands.find_server(None) == ELSEWHERE
    launched("one", "/server", "ipc:///one/dynamics", "tcp://127.0.0.1:7001")
    assert commands.find_server(None) == "ipc:///one/dynamics"
    assert commands.find_server("tcp://127.0.0.1:8") == "tcp://127.0.0.1:8"


def test_several_are_told_apart(launched: Launched) -> None:
    first = launched("one", "/server", "ipc:///one/dynamics")
    two = launched("two", "/arms/server", "ipc:///two/dynamics")
    with pytest.raises(FailedPreconditionError) as excinfo:
        commands.find_server(None)
    assert (
        unnamed(
            excinfo.value,
            "2 servers",
            f"--server ipc:///two/dynamics (/arms/server in {two})",
            f"--server ipc:///one/dynamics (/server in {first})",
        )
        == []
    )


def test_one_beside_a_launch_counts_too(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dyn serve` is not a node; it is found by its default endpoint."""
    with socket.create_server(("127.0.0.1", 0)) as usual:
        endpoint = f"tcp://127.0.0.1:{usual.getsockname()[1]}"
        monkeypatch.setattr(commands, "DEFAULT_ENDPOINT", endpoint)
        launched("one", "/server", endpoint)
        assert commands.find_server(None) == endpoint  # the launch's own listens there
        launched("two", "/server", "ipc:///two/dynamics")
    with socket.create_server(("127.0.0.1", 0)) as usual:
        endpoint = f"tcp://127.0.0.1:{usual.getsockname()[1]}"
        monkeypatch.setattr(commands, "DEFAULT_ENDPOINT", endpoint)
        with pytest.raises(FailedPreconditionError, match=naming("3 servers", f"--server {endpoint}")):
            commands.find_server(None)


def test_a_call_asks_it(launched: Launched) -> None:
    launched("one", "/server", "tcp://127.0.0.1:10")
    with pytest.raises(UnavailableError, match=naming("tcp://127.0.0.1:10", "0.05 s")):
        CliRunner().invoke(app, ["call", "health", "--timeout", "0.05"], catch_exceptions=False)


def test_nodes_of_one_name_are_listed_with_their_folders(launched: Launched) -> None:
    first, _, second = launched("one", "/plant"), launched("one", "/controller"), launched("two", "/plant")
    done = CliRunner().invoke(node_app, ["list"], catch_exceptions=False)
    assert done.output.splitlines() == [f"/controller  {first}", f"/plant  {first}", f"/plant  {second}"]

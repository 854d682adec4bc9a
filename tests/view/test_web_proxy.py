"""Which origins a browser may have to connect to the viewer and to Foxglove's server."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import viser
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from dyn_service import Robot
from dyn_service.errors import DeadlineExceededError
from dyn_service.view import web_proxy
from dyn_service.view.foxglove import FoxgloveServer
from dyn_service.view.scene import Looks, Scene
from dyn_service.view.viewer import Viewer
from dyn_service.view.web_proxy import refused_origin
from tests.conftest import URDF
from tests.phrases import unnamed

NAMED = "http://lichtblick.example:8080"
Served = tuple[str, str, list[str]]


@pytest.fixture(params=["viewer", "foxglove"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    """Where it listens, the subprotocol of its clients, and what it says."""
    messages: list[str] = []
    close: Callable[[], None]
    if request.param == "viewer":
        scene = Scene(Robot.from_file(URDF / "pendulum.urdf"), None)
        looks = Looks({}, ())
        viewer = Viewer(scene, looks, scene.still(np.zeros(1)), 0.0, port=0, origins=[NAMED], say=messages.append)
        url, protocol, close = viewer.url.replace("http", "ws"), f"viser-v{viser.__version__}", viewer.close
    else:
        tmp_path.chmod(0o700)
        server = FoxgloveServer(["*"], lambda: [tmp_path], messages.append, lambda *_: None, port=0, origins=[NAMED])
        url, protocol, close = server.url, "foxglove.sdk.v1", server.close
    try:
        yield url, protocol, messages
    finally:
        close()


def test_a_proxy_that_does_not_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_proxy, "_CLOSE_S", 0.1)
    proxy = web_proxy.WebProxy("a server", "127.0.0.1", 0, (), print)
    release = threading.Event()
    proxy._loop.call_soon_threadsafe(release.wait)
    with pytest.raises(DeadlineExceededError, match=r"a server's proxy still runs 0\.1 s after"):
        proxy.close()
    release.set()
    proxy._thread.join(50.0)
    assert not proxy._thread.is_alive()


def test_handshakes(served: Served) -> None:
    url, protocol, messages = served
    address = url.removeprefix("ws://")
    for origin in (None, NAMED, f"http://{address}", "http://localhost:1234", f"http://{address}"):
        with connect(url, origin=origin, subprotocols=[protocol]) as client:  # type: ignore[arg-type, list-item]
            assert len(client.recv(timeout=30)) > 16
    for origin in ("https://evil.example", "null", "http://127.0.0.1.evil.example", "https://evil.example"):
        with pytest.raises(InvalidStatus) as error:
            connect(url, origin=origin, subprotocols=[protocol])  # type: ignore[arg-type, list-item]
        assert error.value.response.status_code == 403
        body = error.value.response.body
        assert body is not None
        assert unnamed(body.decode(), f"{origin!r}", "--origin") == []
    assert len(messages) == 3  # each once


def test_the_page_comes_through_the_proxy(served: Served) -> None:
    url, protocol, _ = served
    if protocol.startswith("viser"):
        with urllib.request.urlopen(url.replace("ws", "http"), timeout=30) as page:
            assert b"<html" in page.read()


def test_what_says_nothing_holds_nobody_up(served: Served) -> None:
    url, protocol, _ = served
    host, _, port = url.removeprefix("ws://").partition(":")
    with socket.create_connection((host, int(port))) as silent, socket.create_connection((host, int(port))) as long:
        silent.sendall(b"GET / HTTP/1.1\r\n")
        long.sendall(b"x" * 40_000)
        assert long.recv(1) == b""  # cut off
        with connect(url, subprotocols=[protocol]) as client:  # type: ignore[list-item]
            assert len(client.recv(timeout=30)) > 16


@pytest.mark.parametrize(
    ("origin", "host", "may"),
    [
        ("", "evil.example", True),  # no browser
        ("http://192.168.1.5:8080", "192.168.1.5:8080", True),
        (f"http://{socket.gethostname().lower()}:8080", f"{socket.gethostname().lower()}:8080", True),
        ("http://[::1]:8080", "[::1]:8080", True),
        ("http://192.168.1.6:8080", "192.168.1.5:8080", False),
        ("http://evil.example:8080", "evil.example:8080", False),  # its name server says 127.0.0.1
        ("http://[", "[", False),
        ("file://", "127.0.0.1:8765", False),
    ],
)
def test_origins(origin: str, host: str, may: bool) -> None:
    field = f"oRiGin:  {origin} \r\n" if origin else ""
    head = f"GET / HTTP/1.1\r\nHost: {host}\r\n{field}Upgrade: websocket\r\n\r\n"
    assert refused_origin(head, ()) == (None if may else origin)
    assert refused_origin(head, (origin,)) is None


def test_two_origins_are_none() -> None:
    head = "GET / HTTP/1.1\r\nHost: a\r\nOrigin: http://localhost\r\nOrigin: http://evil.example\r\n\r\n"
    assert refused_origin(head, ("http://evil.example",)) == "http://localhost,http://evil.example"

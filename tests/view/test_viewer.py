"""`dyn view` in a browser: something is drawn, sliders and recordings move it, Ctrl-C leaves nothing."""

import io
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from tests.browser import browser, needs_browser
from tests.conftest import ROOT

pytestmark = [pytest.mark.slow, needs_browser]
WINDOW = {"width": 620, "height": 320}
"""Small, for the processor draws it."""
SHOWN = {"x": 0, "y": 0, "width": 300, "height": 320}
"""The left of the page, where the robot is; the controls are to its right."""


@contextmanager
def viewing(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A viewer and the address of its page."""
    command = [sys.executable, "-u", "-m", "dyn_service", "view", *arguments, "--port", "0"]
    viewer = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert viewer.stdout is not None
        line = viewer.stdout.readline()
        assert line.startswith("open http://127.0.0.1:"), line + str(viewer.stderr and viewer.stderr.read())
        yield viewer, line.split()[1]
    finally:
        viewer.kill()
        viewer.communicate()


def seen(page: Any) -> np.ndarray:
    return imread(io.BytesIO(page.screenshot(clip=SHOWN)))[..., :3]


def settled(page: Any) -> np.ndarray:
    """The picture once it stands still, which it does not while it fades in."""
    last = seen(page)
    for _ in range(60):
        page.wait_for_timeout(250)
        now = seen(page)
        if np.abs(now - last).max() < 0.02:  # of full brightness
            return now
        last = now
    raise AssertionError("the picture never stands still")


def changed(page: Any, previous: np.ndarray) -> bool:
    """Whether the picture becomes another one: more of it than a few edges."""
    for _ in range(60):
        page.wait_for_timeout(250)
        if (np.abs(seen(page) - previous).max(axis=-1) > 0.1).mean() > 0.003:
            return True
    return False


def ended(viewer: subprocess.Popen[str], url: str) -> None:
    viewer.send_signal(signal.SIGINT)
    assert viewer.wait(240) == 0
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", int(url.rpartition(":")[2])))


def test_a_robot_is_drawn_and_its_sliders_move_it() -> None:
    with viewing("pendulum") as (viewer, url):
        with browser(viewport=WINDOW) as page:
            page.goto(url)
            page.get_by_text("Joints").wait_for()
            page.wait_for_selector("canvas")
            picture = settled(page)
            assert (
                len(np.unique((255 * picture).astype(int).reshape(-1, 3), axis=0)) > 100
            )  # a blank one has one colour
            number = page.locator("input[inputmode]").first
            number.fill("1.2")
            number.press("Enter")
            assert changed(page, picture)
            assert "%" in page.get_by_text("N m,").first.inner_text()
            assert page.errors == []
        ended(viewer, url)


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """A pendulum that swings by itself for 2 s, as a launch would record it."""
    import json

    t = np.arange(2000) / 1000.0
    q = np.sin(3.0 * t)
    columns = ["t", "session", "mode", "q.hinge", "v.hinge", "tau.hinge"]
    table = np.column_stack([t, 0 * t, 0 * t + 1, q, 3.0 * np.cos(3.0 * t), 0.1 * q])
    tables = {"plant.plant": table, "plant.plant.columns": np.array(columns)}
    tables |= {"plant.reference": np.column_stack([t, q + 0.5]), "plant.reference.columns": np.array(["t", "q.hinge"])}
    np.savez(tmp_path / "recording.npz", **tables)
    process = {"name": "plant", "parameters": {"robot": "pendulum"}}
    (tmp_path / "report.json").write_text(json.dumps({"processes": [process]}))
    return tmp_path


def test_a_recording_plays(report: Path) -> None:
    with viewing(str(report)) as (viewer, url):
        with browser(viewport=WINDOW) as page:
            page.goto(url)
            page.get_by_text("Motion").wait_for()
            picture = settled(page)
            page.get_by_role("button", name="play").click()
            assert changed(page, picture)
            page.wait_for_function(
                "document.querySelector('input[inputmode]').value === '1.999'"
            )  # it comes to its end
            page.get_by_role("button", name="play").wait_for()
            end = settled(page)
            page.get_by_label("reference").uncheck()  # the translucent one goes
            assert changed(page, end)
            assert page.errors == []
        ended(viewer, url)


def test_a_port_that_is_taken_is_said() -> None:
    with socket.socket() as busy_socket:
        busy_socket.bind(("127.0.0.1", 0))
        busy_socket.listen()
        port = str(busy_socket.getsockname()[1])
        command = [sys.executable, "-m", "dyn_service", "view", "pendulum", "--port", port]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1
    message = f"error: the viewer cannot listen on 127.0.0.1:{port}: Address already in use; try --port"
    assert done.stderr.splitlines()[-1] == message

"""Log lines: unchanged text, or one JSON object per line for any content."""

import io
import json
import logging
import re
from pathlib import Path

import pytest

from dyn_service.support import logs
from tests.graph.launch.test_hung import moody
from tests.graph.launches import Launched, pendulum

pytestmark = pytest.mark.slow
"""In wall time, with processes that are killed or wait: `python -m pytest -m slow`."""

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch):
    """Sets logging up as a process does; what was set up before comes back."""
    root = logging.getLogger()
    monkeypatch.setattr(logging, "raiseExceptions", logging.raiseExceptions)
    handlers, level = root.handlers[:], root.level

    def set_up(form: logs.Format | None) -> io.StringIO:
        stream = io.StringIO()
        logs.set_up("/arm/plant", form, stream)
        return stream

    yield set_up
    root.handlers[:] = handlers
    root.setLevel(level)


def write_some() -> None:
    logger = logging.getLogger("dyn_service.test")
    logger.debug("not shown")
    logger.info("plain %s", "news")
    logger.warning('a "quoted"\nline \u00e9', extra={"request": 17})
    try:
        1 / 0
    except ZeroDivisionError:
        logger.exception("it ended")


def test_json(log) -> None:
    stream = log("json")
    write_some()
    entries = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert all(TIME.fullmatch(line.pop("time")) for line in entries)
    assert entries[0] == {"level": "info", "node": "/arm/plant", "message": "plain news"}
    assert entries[1] == {"level": "warning", "node": "/arm/plant", "message": 'a "quoted"\nline \u00e9', "request": 17}
    assert (entries[2]["level"], entries[2]["message"]) == ("error", "it ended")
    assert entries[2]["exception"].endswith("ZeroDivisionError: division by zero")
    assert len(entries) == 3


def test_text(log) -> None:
    stream = log("text")
    write_some()
    lines = stream.getvalue().splitlines()
    assert lines[:4] == ["plain news", 'WARNING a "quoted"', "line \u00e9", "ERROR it ended"]
    assert lines[-1] == "ZeroDivisionError: division by zero"


def test_what_the_launcher_was_told_is_the_nodes_default(log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(logs.FORMAT, "json")
    for form, is_json in ((None, True), ("text", False), ("json", True)):
        stream = log(form)
        logging.getLogger("x").info("hello")
        assert stream.getvalue().startswith("{") is is_json


class Full(io.StringIO):
    """A stream on a disk that is full."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_log_that_cannot_be_written_ends_nothing(log, capsys: pytest.CaptureFixture[str]) -> None:
    log("text")
    logs.set_up("n", "text", Full())
    logging.getLogger("x").error("lost")
    assert capsys.readouterr().err == ""


def test_a_launch_is_one_object_a_line(tmp_path: Path) -> None:
    """Lines of our nodes, of the launcher, and of what knows nothing of JSON."""
    file = tmp_path / "a.launch.yaml"
    talker = "  - executable: {name: talker, cmd: \"sh -c 'echo hello; echo [1]; sleep 60'\"}\n"
    file.write_text(pendulum() + talker, "utf-8")
    with Launched(file, "--log-format", "json") as launch:
        launch.wait_line("ready: 4 processes")
        launch.wait_line('"[1]"')
        assert launch.stop() == 0, launch.text
    entries = [json.loads(line) for line in launch.lines]
    assert all(TIME.fullmatch(line["time"]) and line["level"] == "info" for line in entries)
    messages = [(line["node"], line["message"]) for line in entries]
    assert ("/server", "pendulum: 9 kernels for control in ") in [(n, re.sub(r"in .*", "in ", m)) for n, m in messages]
    assert {("talker", "hello"), ("talker", "[1]"), ("launch", "ready: 4 processes")} <= set(messages)
    assert ("launch", "stopped: received SIGINT") in messages
    assert messages[-1][0] == "launch"
    assert re.match(r"(clean|not clean|nothing judged)\b", messages[-1][1])


def test_a_node_may_have_its_own_format(tmp_path: Path) -> None:
    with Launched(moody(tmp_path, mood="crash", log_format="json", realtime={"affinity": [9999]})) as launch:
        assert launch.wait() == 1
    line = launch.wait_line("[moody] ").removeprefix("[moody] ")
    entry = json.loads(line)
    assert (entry["level"], entry["node"]) == ("error", "/moody")
    assert entry["message"].startswith("/moody: realtime.affinity is refused: processor 9999 ")

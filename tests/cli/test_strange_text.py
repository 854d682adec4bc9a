"""Names and texts of other processes and files are printed and logged without control characters."""

import io
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from dyn_service.cli.nodes import _matching
from dyn_service.graph.launch import launch_file
from dyn_service.support.logs import JsonFormatter, TextFormatter, printable
from tests.conftest import ROOT

STRANGE = "a\x1b]0;owned\x07\x9b2J\x7f\u202eb"
SHOWN = r"a\u001b]0;owned\u0007\u009b2J\u007f\u202eb"


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        (STRANGE, SHOWN),
        ("one\ttwo\nthree\u3000\u00e9 \N{DEGREE SIGN}", "one\ttwo\nthree\u3000\u00e9 \N{DEGREE SIGN}"),
        ("50 %\r100 %", r"50 %\r100 %"),
        ("\ud800", r"\ud800"),
    ],
)
def test_printable(text: str, escaped: str) -> None:
    assert printable(text) == escaped
    assert json.loads(printable(json.dumps({"x": text}, ensure_ascii=False))) == {"x": text}


def test_log_lines() -> None:
    record = logging.LogRecord("n", logging.WARNING, "f", 1, "topic %s", (STRANGE,), None)
    assert TextFormatter().format(record) == f"WARNING topic {SHOWN}"
    line = JsonFormatter("/n").format(record)
    assert SHOWN in line
    assert json.loads(line)["message"] == f"topic {STRANGE}"


def test_what_a_launched_process_writes(tmp_path: Path) -> None:
    log_file = tmp_path / "said"
    log_file.write_text(STRANGE + "\n", "utf-8")
    file = tmp_path / "strange.launch.yaml"
    file.write_text(f'launch:\n  - executable: {{cmd: cat {log_file}, name: "x\\e[2J"}}\n', "utf-8")
    out = io.StringIO()
    assert launch_file(file, report_dir=tmp_path / "report", console=Console(file=out, width=200)) == 0
    assert SHOWN in out.getvalue()
    assert r"x\u001b[2J" in out.getvalue()
    logs = "".join(path.read_text("utf-8") for path in (tmp_path / "report" / "logs").iterdir())
    assert SHOWN in logs
    for text in (out.getvalue(), logs):
        assert not set(text) & set("\x1b\x07\x9b\x7f\u202e")


def test_the_names_in_a_bag(tmp_path: Path) -> None:
    pytest.importorskip("mcap")
    from mcap.writer import Writer

    bag = tmp_path / "strange.mcap"
    with bag.open("wb") as stream:
        writer = Writer(stream)
        writer.start(profile="ros2")
        schema = writer.register_schema("std_msgs/msg/Bool", "ros2msg", b"bool data")
        writer.register_channel(f"/{STRANGE}", "cdr", schema)
        writer.finish()
    for options in ([], ["--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "dyn_service", "bag", "info", str(bag), *options],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert f"/{SHOWN}" in done.stdout
        assert not set(done.stdout) & set("\x1b\x07\x9b\x7f\u202e")


def test_no_command_writes_past_the_border() -> None:
    """Commands write only through `say` and `tell`."""
    for path in (ROOT / "dyn_service" / "cli").glob("*.py"):
        text = path.read_text("utf-8")
        if path.name != "console.py":
            for way in ("typer.echo(", "print(", "sys.stdout.write(", "sys.stderr.write("):
                assert way not in text, f"{path.name}: {way}"


def test_no_shell_completes_to_a_control_character(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    assert _matching("/a", lambda _: ["/a", "/b", f"/a{STRANGE}"]) == ["/a"]

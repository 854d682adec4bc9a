"""On a full disk or a closed terminal, processes continue and lost output is reported."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dyn_service.graph.launch import display
from dyn_service.graph.launch.display import Logs, Screen
from dyn_service.graph.launch.planner import LaunchPlan
from dyn_service.graph.launch.report import clear_report, write_report
from dyn_service.graph.launch.supervisor import Outcome
from dyn_service.graph.middleware.telemetry import Rows, TelemetryStore
from tests.conftest import ROOT
from tests.graph.launch import test_hung
from tests.graph.launches import Launched, pendulum
from tests.phrases import unnamed

pytestmark = pytest.mark.slow
"""In wall time, with processes that are killed or wait: `python -m pytest -m slow`."""

DISK_KIB = 256


def can_mount() -> bool:
    """Returns whether this user may mount a private tmpfs."""
    try:
        done = subprocess.run(
            ["unshare", "--mount", "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt"], capture_output=True
        )
    except FileNotFoundError:
        return False
    return done.returncode == 0


needs_disk = pytest.mark.skipif(not can_mount(), reason="this user may not mount a disk of his own")
MOUNT = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size="$1"k tmpfs "$2" && shift 2 && exec "$@"', "sh")
"""Prefix of a command that runs it with a small private tmpfs."""


@needs_disk
@pytest.mark.parametrize("free_kib", [0, 100])
def test_a_full_disk_under_the_report_stops_nothing(tmp_path: Path, free_kib: int) -> None:
    """Our nodes, with the disk full from the start, under their kernels too, or after a few log lines and with no room
    for the recording.
    """
    disk, file, left = tmp_path / "disk", tmp_path / "a.launch.yaml", tmp_path / "left"
    disk.mkdir()
    chatter = f"sh -c 'i=0; while [ $i -lt 20000 ]; do echo line $i of many; i=$((i+1)); done; touch {left}; sleep 60'"
    talks = "  - executable: {name: talker, cmd: " + json.dumps(chatter.replace("$", "\\$")) + ", output: log}\n"
    file.write_text(pendulum() + talks, "utf-8")
    script = tmp_path / "run.sh"
    # the launch in the private mount namespace, and then what it left, for that goes with the namespace
    script.write_text(
        f"head -c {(DISK_KIB - free_kib) * 1024} /dev/zero > {disk}/filler 2>/dev/null\n"
        f'"$@"; status=$?; rm {disk}/filler; cp -r {disk} {tmp_path}/kept; exit $status\n',
        "utf-8",
    )
    with Launched(
        file, "--duration", "4", "--report", f"{disk}/report",
        prefix=(*MOUNT, str(DISK_KIB), str(disk), "sh", str(script)),
        env={} if free_kib else {"DYN_SERVICE_CACHE": f"{disk}/kernels"},
    ) as launch:  # fmt: skip
        assert launch.wait() == 1, launch.text
    assert left.exists()  # the process that wrote the lines did not end for it
    full = "No space left on device"
    complaints = [line for line in launch.lines if "logs cannot be written" in line]
    assert len(complaints) == 1
    assert f"'{disk}/report/logs': {full}" in complaints[0]
    assert any(line.startswith("[launch] stopped: ") and "4 s" in line for line in launch.lines)
    assert re.match(r"\[launch\] status 1: not clean, [^;]*4 s", launch.lines[-1])
    assert any(line.startswith("[launch] not clean: the log of talker ") for line in launch.lines)
    assert f"[launch] not clean: recording.npz could not be written: {full}" in launch.lines
    assert not any("restart" in line or "was killed" in line for line in launch.lines)
    assert any(line.startswith("[launch] requests: ") and ", 0 lost" in line for line in launch.lines)
    files = {path.name for path in (tmp_path / "kept" / "report").iterdir()}
    assert not {name for name in files if name.endswith(".part")}
    assert "recording.npz" not in files
    if "report.json" in files:  # whole, and it says what is lacking
        report = json.loads((tmp_path / "kept" / "report" / "report.json").read_text("utf-8"))
        assert any("the log of talker" in fault for fault in report["outcome"]["faults"])
    assert ("report.json" in files) is (
        f"[launch] not clean: report.json could not be written: {full}" not in launch.text
    )


ROOM_AGAIN = """
import subprocess, sys
from pathlib import Path
from dyn_service.graph.launch import display
folder = Path(sys.argv[1])
said = []
filler = folder / "filler"
filler.write_bytes(bytes(60 * 1024))
kept = display.Logs(folder / "logs", said.append)
for k in range(2000):
    kept.write("a/talker", f"line {k}")
lines = (folder / "logs" / "a.talker.log").read_text("utf-8").splitlines()
assert 0 < len(lines) < 1000, len(lines)
assert len(said) == 1, said
filler.unlink()
assert kept.close() == []
lines = (folder / "logs" / "a.talker.log").read_text("utf-8").splitlines()
assert lines == [f"line {k}" for k in range(2000)]  # no line was lost, none is torn
print("well")
"""


@needs_disk
def test_waiting_lines_are_written_when_there_is_room_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [*MOUNT, "64", str(tmp_path), sys.executable, "-c", ROOM_AGAIN, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.stdout == "well\n", done.stderr


def test_lines_beyond_the_memory_limit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "KEPT_BYTES", 100)
    monkeypatch.setattr(display, "RETRY_S", 0.0)
    place = tmp_path / "logs"
    place.touch()  # a file where the folder should be
    messages: list[str] = []
    logs = Logs(place, messages.append)
    for k in range(50):
        logs.write("talker", f"line {k}")
    assert len(messages) == 1
    assert f"{str(place)!r}: File exists" in messages[0]
    place.unlink()
    logs.write("talker", "at last")
    logs.write("talker", "and on")
    (fault,) = logs.close()
    assert re.search(r"talker .*\b36 lines: File exists", fault)
    lines = (place / "talker.log").read_text("utf-8").splitlines()
    assert lines == [
        *(f"line {k}" for k in range(14)),
        "... 36 lines are missing here: File exists",
        "at last",
        "and on",
    ]


def test_logs_that_are_never_written_are_a_fault(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    logs = Logs(tmp_path / "logs", lambda line: None)
    logs.write("talker", "one")
    logs.write("talker", "two")
    (fault,) = logs.close()
    assert re.search(r"talker .*\b2 lines: File exists", fault)
    nowhere = Logs(None, lambda line: None)
    nowhere.write("talker", "one")
    assert nowhere.close() == []


@pytest.mark.parametrize("way", ["full", "closed"])
def test_an_output_that_takes_nothing_stops_nothing(tmp_path: Path, way: str) -> None:
    report, left = tmp_path / "report", tmp_path / "left"
    file = tmp_path / "a.launch.yaml"
    file.write_text(f"launch:\n  - executable: {{name: talker, cmd: sh -c 'echo a; sleep 1; echo b; touch {left}'}}\n")
    if way == "full":
        sink, cause = os.open("/dev/full", os.O_WRONLY), "No space left on device"
    else:
        source, sink = os.pipe()
        os.close(source)
        cause = "Broken pipe"
    try:
        launch = Launched(file, "--report", str(report), stdout=sink)
    finally:
        os.close(sink)
    with launch:
        assert launch.wait() == 1, launch.text
    assert left.exists()
    assert len(launch.lines) == 1
    assert launch.lines[0].startswith("error: ")
    assert cause in launch.lines[0]
    assert (report / "logs" / "talker.log").read_text("utf-8") == "a\nb\n"
    notices = (report / "logs" / "launch.log").read_text("utf-8").splitlines()
    assert notices[0] == "ready: 1 processes"
    assert notices[-1] == "stopped: every process has exited"
    outcome = json.loads((report / "report.json").read_text("utf-8"))["outcome"]
    assert (outcome["exit_code"], outcome["faults"]) == (1, [f"the output could not be written: {cause}"])


def test_an_output_that_fails_at_the_very_end_is_in_the_status(tmp_path: Path) -> None:
    file = tmp_path / "a.launch.yaml"
    file.write_text("launch:\n  - executable: {cmd: 'true', output: log}\n")
    with open("/dev/full", "w") as full, Launched(file, stdout=full.fileno()) as launch:
        assert launch.wait() == 1


def test_signs_that_a_terminal_does_not_have_are_no_fault() -> None:
    raw = io.BytesIO()
    screen = Screen(io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    assert screen.write("2 µs\n") == 5
    screen.drain()
    assert (screen.fault, raw.getvalue()) == (None, b"2 ?s\n")


def test_an_output_that_stands_still_holds_nothing_up(tmp_path: Path) -> None:
    """With a pipe without a reader, a hanging node is still detected and the launch ends."""
    moody = tmp_path / "moody.launch.yaml"
    words = "many words of no interest to anybody"
    chatter = f"  - executable: {{name: talker, cmd: sh -c 'yes {words} | head -n 20000; sleep 60'}}\n"
    text = test_hung.moody(tmp_path, ", heartbeat_timeout: 1.0", mood="hang").read_text("utf-8")
    nodes = text.index("  - node: {exec: moody.py, name: moody")
    moody.write_text(text[:nodes] + chatter + text[nodes:], "utf-8")
    source, sink = os.pipe()
    with Launched(moody, "--report", str(tmp_path / "report"), stdout=sink) as launch:
        os.close(sink)
        try:
            assert launch.wait() == 1, launch.text
            assert launch.text == ""
            assert os.read(source, 1 << 20).startswith(f"[talker] {words}\n".encode())
        finally:
            os.close(source)
    outcome = json.loads((tmp_path / "report" / "report.json").read_text("utf-8"))["outcome"]
    assert unnamed(outcome["reason"], "moody", "heartbeat", "1.0 s", "killed") == []
    assert re.search(r"\b\d+ lines .* output", outcome["faults"][-1])


def test_a_report_is_whole_or_not_there(tmp_path: Path) -> None:
    """With files limited to 4 KiB, the larger files are missing, and the others report it."""
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from tests.graph.launch.test_full_disk import small_report\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); small_report(Path(sys.argv[1]))"
    )
    folder = tmp_path / "report"
    folder.mkdir()
    for name in ("report.json", "recording.npz", "index.html"):
        (folder / name).write_text("of an earlier launch")
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT, check=True, timeout=240)
    assert [path.name for path in folder.iterdir()] == ["report.json"]
    outcome = json.loads((folder / "report.json").read_text("utf-8"))["outcome"]
    files = ("recording.npz", "index.html")
    assert outcome["faults"] == [f"{name} could not be written: File too large" for name in files]
    assert outcome["exit_code"] == 1


def small_report(folder: Path) -> None:
    """Writes the report of a run with 80 kB of recording."""
    store = TelemetryStore()
    store.take(Rows("n", 1, "c", ["t"], np.arange(10_000, dtype="<f8").tobytes()))
    clear_report(folder)
    write_report(folder, LaunchPlan(folder / "x.launch.yaml", {}, ()), store, Outcome("done"))


def test_a_process_without_output_has_a_log(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "logs", lambda line: None)
    logs.begin(["launch", "arm/plant"])
    assert {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()} == {
        "launch.log": "",
        "arm.plant.log": "",
    }
    logs.write("arm/plant", "a word")
    assert logs.close() == []
    assert (tmp_path / "logs" / "arm.plant.log").read_text() == "a word\n"

"""Supervision with real processes: order, readiness, restarts, exits, stopping, and cleanup."""

import asyncio
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.launch import launch_file, orphan_cleanup
from dyn_service.graph.launch import supervisor as supervision
from dyn_service.graph.launch.planner import LaunchPlan, ProcessPlan
from dyn_service.graph.launch.runtime import Runtime
from tests.conftest import ROOT
from tests.graph.launches import PATIENCE_S, wait_for
from tests.phrases import naming, unnamed


def python(body: str) -> str:
    """A command line that runs Python code."""
    return f'{sys.executable} -I -S -c "{body}"'


SLEEPS = python("import time; time.sleep(60)")


def polite(up: Path) -> str:
    """Returns a program that prints `bye` on SIGINT; it creates the file `up` when its handler is installed."""
    return python(
        "import signal, sys, time; signal.signal(2, lambda *_: (print('bye', flush=True), sys.exit(0)));"
        f"open('{up}', 'w'); time.sleep(60)"
    )


def deaf(up: Path) -> str:
    """Returns a program that ignores SIGINT and SIGTERM; it creates the file `up` when it does."""
    return python(
        f"import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)]; open('{up}', 'w'); time.sleep(60)"
    )


def when(*files: Path) -> str:
    """Returns an action that ends the launch when the files exist."""
    test = " && ".join(f"[ -e {file} ]" for file in files)
    return action("trigger", f"sh -c 'until {test}; do sleep 0.02; done'", on_exit="shutdown")


class Launch:
    """Runs a launch file in this process and keeps what it printed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.screen = io.StringIO()

    def __call__(self, text: str, **options) -> int:
        path = self.folder / "test.launch.yaml"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        console = Console(file=self.screen, force_terminal=False, width=200)
        return launch_file(path, console=console, **options)

    @property
    def lines(self) -> list[str]:
        return self.screen.getvalue().splitlines()


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return Launch(tmp_path)


def action(name: str, command: str, **keys) -> str:
    """An `executable` action."""
    options = "".join(f", {key}: {value}" for key, value in keys.items())
    return f"  - executable: {{name: {name}, cmd: {quoted(command)}{options}}}\n"


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


ARMED_LATER = """
import sys, time
from pathlib import Path
import msgspec
from dyn_service.graph.middleware.node_kind import NodeKind

class Parameters(msgspec.Struct):
    armed: str

def main(node):
    telemetry = node.telemetry
    telemetry.facts({"clock": "real_time", "law": "a plant and its controller in one node"})
    telemetry.stats({"armed": 0})
    telemetry.ready()
    time.sleep(0.5)
    Path(node.parameters.armed).touch()
    telemetry.stats({"armed": 1})
    while not node.stop.requested:
        time.sleep(0.02)

NODE = NodeKind("later", Parameters, main)
if __name__ == "__main__":
    raise SystemExit(NODE.run())
"""


def test_a_launch_is_ready_and_its_time_begins_when_its_plant_is_armed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "ARMED_TIMEOUT_S", PATIENCE_S)
    armed = tmp_path / "armed"
    (tmp_path / "later.py").write_text(ARMED_LATER, "utf-8")
    (tmp_path / "a.launch.yaml").write_text(
        f"launch: [{{node: {{exec: later.py, param: [{{name: armed, value: {armed}}}]}}}}]", "utf-8"
    )
    was_armed: list[bool] = []

    class Screen(io.StringIO):
        def write(self, text: str, /) -> int:
            was_armed.extend([armed.exists()] if "ready: 1 processes" in text else [])
            return super().write(text)

    assert launch_file(tmp_path / "a.launch.yaml", duration_s=0.1, console=Console(file=Screen(), width=200)) == 0
    assert was_armed == [True]


def test_runs_until_its_time_is_over(launch: Launch) -> None:
    assert launch("launch:\n" + action("sleeper", SLEEPS), duration_s=0.3) == 0
    assert launch.lines[0] == "[launch] ready: 1 processes"
    assert re.match(r"\[launch\] stopped: .*\b0\.3 s", launch.lines[-1])


def test_stops_in_reverse_order(launch: Launch, tmp_path: Path) -> None:
    up = [tmp_path / "first-up", tmp_path / "second-up"]
    text = "launch:\n" + action("first", polite(up[0])) + action("second", polite(up[1])) + when(*up)
    assert launch(text, duration_s=PATIENCE_S) == 0
    assert [line for line in launch.lines if "bye" in line] == ["[second] bye", "[first] bye"]


def test_a_launch_whose_processes_are_done_is_done(launch: Launch) -> None:
    assert launch("launch:\n" + action("a", "true") + action("b", "sh -c 'sleep 0.2; echo done'")) == 0
    assert "[b] done" in launch.lines
    assert launch.lines[-1] == "[launch] stopped: every process has exited"


def test_a_death_ends_the_launch(launch: Launch) -> None:
    text = "launch:\n" + action("other", SLEEPS) + action("mortal", "sh -c 'sleep 0.2; exit 3'")
    assert launch(text, duration_s=PATIENCE_S) == 1
    assert unnamed(launch.lines[-1], "status 1", "mortal", "status 3") == []
    assert sum("mortal exited with status 3" in line for line in launch.lines) == 1
    assert any("test.launch.yaml:3: launch[1].executable" in line for line in launch.lines)


def test_an_exit_can_end_the_launch(launch: Launch) -> None:
    text = "launch:\n" + action("other", SLEEPS) + action("task", "sh -c 'sleep 0.2'", on_exit="shutdown")
    assert launch(text, duration_s=PATIENCE_S) == 0
    assert launch.lines[-1].startswith("[launch] stopped: task ")


def test_respawn(launch: Launch, tmp_path: Path) -> None:
    up = tmp_path / "up"
    counting = (
        rf"sh -c 'echo x >> {tmp_path}/count; [ \$(wc -l < {tmp_path}/count) -lt 3 ] && exit 7; touch {up}; sleep 60'"
    )
    text = "launch:\n" + action("phoenix", counting, respawn="true", respawn_delay=0.05) + when(up)
    assert launch(text, duration_s=PATIENCE_S) == 1
    assert (tmp_path / "count").read_text() == "x\nx\nx\n"
    assert (
        "[launch] not clean: phoenix was restarted 2 times: it exited with status 7, exited with status 7"
        in launch.lines
    )
    assert "[launch] phoenix: exited with status 7; restart 1 in 0.1 s" in launch.lines


def test_respawn_has_a_limit(launch: Launch) -> None:
    text = "launch:\n" + action("hopeless", "sh -c 'exit 7'", respawn="true", respawn_max_retries=2)
    assert launch(text, duration_s=PATIENCE_S) == 1
    assert "[launch] status 1: hopeless exited with status 7 after 2 restarts, the maximum" in launch.lines


def test_what_cannot_be_started(launch: Launch) -> None:
    assert launch("launch:\n" + action("missing", "/nowhere/program")) == 1
    assert "[launch] status 1: missing cannot start '/nowhere/program': No such file or directory" in launch.lines


@pytest.mark.slow
def test_a_node_that_never_gets_ready_is_given_up(launch: Launch) -> None:
    text = """
    launch:
      - node:
          pkg: dyn_service
          exec: controller
          respawn: true
          param: [{name: endpoint, value: "tcp://127.0.0.1:9"}, {name: connect_timeout_s, value: 0.1}]
    """
    assert launch(text, duration_s=PATIENCE_S) == 1
    assert unnamed(launch.lines[-1], "3 times", "ready") == []


def test_invalid_parameters_of_a_node_are_reported_once(launch: Launch, tmp_path: Path) -> None:
    robot = tmp_path / "robot.urdf"
    robot.write_text("<robot name='r'>")
    text = f"""
    launch:
      - node: {{pkg: dyn_service, exec: plant, respawn: true, param: [{{name: robot, value: {robot}}}]}}
    """
    assert launch(text, duration_s=PATIENCE_S) == 1
    assert sum(str(robot) in line for line in launch.lines) == 2  # the node's, and the last
    assert unnamed(launch.lines[-1], "status 1", "plant", "status 2", "ready") == []
    lines = [line for line in launch.lines if not re.match(r"\[launch\] \d+ s \|", line)]  # a slow start has a status
    assert len(lines) == 3, lines  # the node's error, its place in the launch file, and the last line


def test_processes_that_ignore_signals_are_killed(launch: Launch, tmp_path: Path) -> None:
    up = tmp_path / "up"
    text = "launch:\n" + action("deaf", deaf(up), sigterm_timeout=0.2, sigkill_timeout=0.2) + when(up)
    assert launch(text, duration_s=PATIENCE_S) == 1
    assert "[launch] deaf: still running 0.2 s after SIGINT" in launch.lines
    assert "[launch] not clean: deaf did not stop and was killed" in launch.lines


def test_a_process_that_a_stop_meets_while_it_starts_is_stopped_too(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop had no process to signal, and waited for one that nothing ended."""
    create, stops = asyncio.create_subprocess_exec, []

    async def stop_and_create(*command, **options):
        stops[0]("stopped while it starts")
        await asyncio.sleep(0.1)  # the stop comes first
        return await create(*command, **options)

    request_stop = supervision.Supervisor.request_stop
    monkeypatch.setattr(asyncio, "create_subprocess_exec", stop_and_create)
    start = supervision.Supervisor._start

    async def noted_start(supervisor, runs):
        stops.append(lambda reason: request_stop(supervisor, reason))
        await start(supervisor, runs)

    monkeypatch.setattr(supervision.Supervisor, "_start", noted_start)
    assert launch("launch:\n" + action("a", SLEEPS)) == 0
    assert "still running" not in launch.screen.getvalue()


def test_a_process_that_cannot_be_killed_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one in a stuck system call, on which SIGKILL has no effect until the call returns."""
    signal_process = supervision.ManagedProcess._signal

    def all_but_kill(process: supervision.ManagedProcess, number: signal.Signals) -> None:
        if number != signal.SIGKILL:
            signal_process(process, number)

    monkeypatch.setattr(supervision.ManagedProcess, "_signal", all_but_kill)
    monkeypatch.setattr(supervision, "KILL_S", 0.2)
    up, notices = tmp_path / "up", []
    command = tuple(shlex.split(deaf(up)))
    plan = ProcessPlan("a", command, "a test", sigterm_timeout_s=0.1, sigkill_timeout_s=0.1)
    listener = supervision.Listener(lambda process, line: None, notices.append, lambda supervisor: None)

    async def run(runtime: Runtime) -> supervision.Outcome:
        supervisor = supervision.Supervisor(LaunchPlan(tmp_path, {}, (plan,)), runtime, listener)
        running = asyncio.create_task(supervisor.run(None))
        while not up.exists():
            await asyncio.sleep(0.02)
        supervisor.request_stop("enough")
        outcome = await running
        (process,) = supervisor.processes
        assert not process.exited.is_set()
        signal_process(process, signal.SIGKILL)  # the call has returned
        await process.exited.wait()
        return outcome

    with closing(Runtime()) as runtime:
        outcome = asyncio.run(run(runtime))
    assert outcome.faults == ["a still runs 0.2 s after SIGKILL", "a did not stop and was killed"]
    assert "a: still runs 0.2 s after SIGKILL" in notices


def test_children_of_processes_end_too(launch: Launch, tmp_path: Path) -> None:
    text = "launch:\n" + action("parent", f"sh -c 'sleep 60 & echo $! > {tmp_path}/child; sleep 0.2'")
    assert launch(text) == 0
    wait_for(lambda: not alive(int((tmp_path / "child").read_text())), "the child is still there")


def test_output_goes_to_the_log_of_the_report(launch: Launch, tmp_path: Path) -> None:
    text = "launch:\n" + action("talker", "echo hello", output="log")
    assert launch(text, report_dir=tmp_path / "report") == 0
    assert not any("hello" in line for line in launch.lines)
    assert (tmp_path / "report" / "logs" / "talker.log").read_text(encoding="utf-8") == "hello\n"


def test_faults_show_before_anything_starts(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    started = "launch:\n" + action("a", f"touch {tmp_path}/started")
    with pytest.raises(InvalidArgumentError, match=naming("duration", "-1")):
        launch(started, duration_s=-1)
    with pytest.raises(InvalidArgumentError, match=naming("report folder", "File exists")):
        launch(started, report_dir=tmp_path / "taken")
    with pytest.raises(InvalidArgumentError, match=naming("'x'", "none")):
        launch(started, arguments={"x": "1"})
    assert not (tmp_path / "started").exists()


@pytest.fixture
def launcher(tmp_path: Path):
    """A launcher in a process of its own, with two processes whose ids are in files."""
    path = tmp_path / "launcher.launch.yaml"
    body = "launch:\n"
    for name in ("one", "two"):
        command = f"echo $DYN_RUNTIME_DIR > {tmp_path}/{name}.dir; echo $$ > {tmp_path}/{name}"  # the id last
        body += action(name, f"sh -c '{command}; sleep 60'")
    path.write_text(body, encoding="utf-8")
    code = f"from dyn_service.graph.launch import launch_file; raise SystemExit(launch_file({str(path)!r}))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        ids = [tmp_path / "one", tmp_path / "two"]
        wait_for(lambda: all(p.exists() and p.read_text().endswith("\n") for p in ids), "the processes did not start")
        yield process, [int(p.read_text()) for p in ids], Path((tmp_path / "one.dir").read_text().strip())
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_signals_stop_everything(launcher, number: signal.Signals) -> None:
    process, pids, folder = launcher
    assert folder.is_dir()
    process.send_signal(number)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    assert f"[launch] stopped: received {number.name}" in output
    assert not any(alive(pid) for pid in pids)
    assert not folder.exists()


def test_nothing_is_left_when_the_launcher_is_killed(launcher) -> None:
    process, pids, folder = launcher
    process.kill()
    wait_for(lambda: not any(alive(pid) for pid in pids), "processes were left behind")
    wait_for(lambda: not folder.exists(), "the private folder was left behind")


def test_a_cleanup_process_that_stands_still_is_killed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dyn_service.graph.launch.runtime._CLEANUP_S", 0.2)
    runtime = Runtime()
    os.kill(runtime._cleanup.pid, signal.SIGSTOP)
    runtime.close()
    assert f"the cleanup of {runtime.folder} took over 0.2 s and was killed" in caplog.text
    assert runtime._cleanup.wait(PATIENCE_S) == -signal.SIGKILL
    assert not runtime.folder.exists()


def test_the_private_folder_is_private() -> None:
    with closing(Runtime()) as runtime:
        assert runtime.folder.stat().st_mode & 0o777 == 0o700
        assert runtime.folder.stat().st_uid == os.getuid()
    assert not runtime.folder.exists()


def test_a_process_the_launcher_could_not_tell_of_ends_too(tmp_path: Path) -> None:
    """The launcher was killed after starting the process and before reporting it."""
    environment = {**os.environ, "DYN_RUNTIME_DIR": str(tmp_path / "private")}
    other = {**os.environ, "DYN_RUNTIME_DIR": str(tmp_path / "private of another")}
    cleanup = subprocess.Popen([sys.executable, "-I", "-S", orphan_cleanup.__file__], stdin=subprocess.PIPE, text=True)
    untold, stranger = (
        subprocess.Popen(["sleep", "60"], env=env, start_new_session=True) for env in (environment, other)
    )
    try:
        cleanup.communicate(f"dir {tmp_path / 'private'}\n", timeout=PATIENCE_S)
        assert untold.wait(PATIENCE_S) == -signal.SIGTERM
        assert stranger.poll() is None
    finally:
        for process in (untold, stranger):
            process.kill()
            process.wait()

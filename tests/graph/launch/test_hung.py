"""Nodes that hang or die, once or repeatedly, are detected, restarted, and given up after the maximum."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq

from dyn_service.graph.launch import supervisor as supervision
from dyn_service.graph.launch.planner import ProcessPlan
from dyn_service.graph.launch.supervisor import Hooks, ManagedProcess, ProcessState
from dyn_service.graph.middleware.telemetry import Beat, Ready, Stats, Telemetry, decode
from dyn_service.graph.nodes.server import _watch
from dyn_service.service.server.app import Server
from dyn_service.service.server.settings import ServerSettings
from tests.graph.launches import Launched, pendulum, wait_for
from tests.phrases import unnamed

pytestmark = pytest.mark.slow
"""In wall time, with processes that are killed or wait: `python -m pytest -m slow`."""

NODE = """
import sys, time
from pathlib import Path
import msgspec
from dyn_service.graph.middleware.node_kind import NodeKind
from dyn_service.graph.middleware.node import Node


class Parameters(msgspec.Struct, forbid_unknown_fields=True):
    mood: str = "well"
    count: str = ""
    beats: bool = True
    busy_s: float = 0.0


def main(node: Node[Parameters]) -> None:
    p = node.parameters
    if p.count:
        with open(p.count, "a") as file:
            file.write("x")
    if p.mood == "slow":
        time.sleep(60)
    node.telemetry.ready()
    node.beat() if p.beats else None
    if p.mood == "crash":
        sys.exit(3)
    while not node.stop.requested:
        if p.beats:
            node.beat(p.busy_s)
        if p.mood == "hang":
            time.sleep(60)
        time.sleep(0.02)


NODE = NodeKind("moody", Parameters, main)

if __name__ == "__main__":
    raise SystemExit(NODE.run())
"""


def moody(folder: Path, keys: str = "", **parameters: object) -> Path:
    """Returns a launch file with a healthy node and, after it, a node that fails as `mood` says."""
    (folder / "moody.py").write_text(NODE, "utf-8")
    param = ", ".join(f"{{name: {name}, value: {json.dumps(value)}}}" for name, value in parameters.items())
    file = folder / "moody.launch.yaml"
    text = f"""
    launch:
      - node: {{exec: moody.py, name: well}}
      - node: {{exec: moody.py, name: moody{keys}, param: [{param}]}}
    """
    file.write_text(textwrap.dedent(text), "utf-8")
    return file


def test_a_node_that_hangs_is_killed_and_brought_back_and_then_given_up(tmp_path: Path) -> None:
    count, report = tmp_path / "count", tmp_path / "report"
    keys = ", respawn: true, respawn_max_retries: 2, heartbeat_timeout: 0.5"
    with Launched(moody(tmp_path, keys, mood="hang", count=str(count)), "--report", str(report)) as launch:
        assert launch.wait() == 1
    assert count.read_text() == "xxx"
    hung = "hung, without a heartbeat for 0.5 s, and was killed"
    given_up = f"moody {hung} after 2 restarts, the maximum"
    assert sum(f"[launch] moody: {hung}; restart " in line for line in launch.lines) == 2
    assert f"[launch] status 1: {given_up}" in launch.lines
    assert launch.lines[-1] == f"[launch] status 1: {given_up}"
    content = json.loads((report / "report.json").read_text("utf-8"))
    assert content["outcome"]["reason"] == given_up
    assert {process["name"]: process["state"] for process in content["processes"]} == {
        "well": "stopped",
        "moody": "failed",
    }


def test_a_crash_loop_is_given_up(tmp_path: Path) -> None:
    count = tmp_path / "count"
    with Launched(moody(tmp_path, ", respawn: true, respawn_max_retries: 3", mood="crash", count=str(count))) as launch:
        assert launch.wait() == 1
    assert count.read_text() == "xxxx"
    reason = "moody exited with status 3 after 3 restarts, the maximum"
    assert launch.lines[-1] == f"[launch] status 1: {reason}"


def test_a_node_that_does_not_get_ready_is_given_up(tmp_path: Path) -> None:
    with Launched(moody(tmp_path, ", respawn: true, ready_timeout: 1.0", mood="slow")) as launch:
        assert launch.wait() == 1
    reason = "moody was not ready after 1 s, and was killed; started 1 times, it was never ready"
    assert launch.lines[-1] == f"[launch] status 1: {reason}"


@pytest.mark.parametrize(
    ("keys", "parameters"),
    [
        ("", {"beats": False}),  # a node that never sent one is not watched
        (", heartbeat_timeout: 0", {}),  # nor one that shall not be
        (", heartbeat_timeout: 0.5", {"busy_s": 60.0}),  # one that says it will be busy has its time
    ],
)
def test_processes_that_are_not_hung(tmp_path: Path, keys: str, parameters: dict[str, object]) -> None:
    file = moody(tmp_path, keys, mood="hang", **parameters)
    text = file.read_text("utf-8") + "  - executable: {cmd: sleep 3, on_exit: shutdown}\n"
    file.write_text(text.replace("name: moody,", "name: moody, sigterm_timeout: 0.1, sigkill_timeout: 0.1,"), "utf-8")
    with Launched(file) as launch:
        launch.wait()
    assert any(line.startswith("[launch] stopped: sleep ") for line in launch.lines)
    assert "hung" not in launch.text


def test_our_nodes_come_back_stopped_or_killed_and_without_the_plant_all_ends(tmp_path: Path) -> None:
    """SIGSTOP and SIGKILL of server and controller, then SIGSTOP of the plant, which is not restarted."""
    file, report = tmp_path / "a.launch.yaml", tmp_path / "report"
    file.write_text(pendulum(), "utf-8")
    with Launched(file, "--report", str(report)) as launch:
        launch.wait_line("[launch] ready: 3 processes")
        for number, cause in ((signal.SIGSTOP, "hung, without a heartbeat for "), (signal.SIGKILL, "was killed by ")):
            for name in ("server", "controller"):
                first = launch.nodes()[name]
                os.kill(first, number)
                launch.wait_line(f"[launch] {name}: {cause}")
                wait_for(lambda: launch.nodes().get(name, first) != first, f"{name} did not come back")  # noqa: B023
                launch.wait_line(f"[launch] {name} is ready again", count=1 + (number == signal.SIGKILL))
        os.kill(launch.nodes()["plant"], signal.SIGSTOP)
        assert launch.wait() == 1
    reason = "plant hung, without a heartbeat for 2.0 s, and was killed"
    assert launch.lines[-1].startswith(f"[launch] status 1: {reason}; plant: ")
    content = json.loads((report / "report.json").read_text("utf-8"))
    assert content["outcome"]["reason"] == reason
    restarts = {process["name"]: process["restarts"] for process in content["processes"]}
    assert restarts == {"server": 2, "plant": 0, "controller": 2}
    faults = [fault.partition(":")[0] for fault in content["outcome"]["faults"]]
    assert {"server was restarted 2 times", "controller was restarted 2 times"} <= set(faults), faults
    assert {process["name"]: process["state"] for process in content["processes"]} == {
        "server": "stopped", "plant": "failed", "controller": "stopped",
    }  # fmt: skip


def test_without_the_plant_all_ends(tmp_path: Path) -> None:
    file = tmp_path / "a.launch.yaml"
    file.write_text(pendulum(), "utf-8")
    with Launched(file) as launch:
        launch.wait_line("[launch] ready: 3 processes")
        os.kill(launch.nodes()["plant"], signal.SIGKILL)
        assert launch.wait() == 1
    assert unnamed(launch.lines[-1], "status 1", "plant", "SIGKILL") == []


class WatchedProcess:
    """A process whose clock is simulated by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **plan: object) -> None:
        self.killed = 0
        self.now = 0.0
        hooks = Hooks(lambda *_: None, lambda *_: None, lambda *_: None, lambda: None)
        self.process = ManagedProcess(ProcessPlan("n", (), "", reports=True, respawn=True, **plan), {}, hooks)
        self.process.pid = os.getpid()
        monkeypatch.setattr(self.process, "_signal", self._kill)
        monkeypatch.setattr(supervision.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(self.process, "_is_ours", lambda pid: pid == 7)

    def _kill(self, number: signal.Signals) -> None:
        assert number == signal.SIGKILL
        self.killed += 1


def test_the_watch_counts_silence_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    supervised = WatchedProcess(monkeypatch, heartbeat_timeout_s=2.0)
    process = supervised.process
    process.state = ProcessState.STARTING
    process.mark_ready(7)
    process.watch(1e6)  # no heartbeat yet: not watched
    assert (process.state, supervised.killed) == (ProcessState.READY, 0)
    for _ in range(50):
        process.beat(7, 0.0)
        process.watch(1.9)
    process.beat(8, 0.0)  # another process's word does not count
    process.watch(0.2)
    assert supervised.killed == 1
    process.watch(5.0)
    assert supervised.killed == 1  # once is enough


def test_a_node_that_hangs_again_and_again_waits_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the start nor the time without heartbeats counts as work, so every run counts as a short one."""
    supervised = WatchedProcess(monkeypatch, heartbeat_timeout_s=10.0, respawn_delay_s=0.2)
    process, delays = supervised.process, []
    while process.fault is None:
        process._ready_s = process._kill_cause = None
        process.state = ProcessState.STARTING
        process._wait_for(120.0)
        supervised.now += 60.0
        process.mark_ready(7)
        process.beat(7, 0.0)
        supervised.now += 12.0
        process.watch(12.0)
        process.exits.append(-9)
        process.causes.append("hung")
        if process._after_death(-9):
            delays.append(process._delay_s())
    assert len(delays) == supervision.MAX_QUICK_DEATHS
    assert delays[:4] == pytest.approx([0.2, 0.4, 0.8, 1.6])
    assert max(delays) == supervision.MAX_DELAY_S
    assert process.fault == "hung; 11 times in a row within 5 s"


def test_time_in_which_the_launcher_was_stopped_is_not_counted(tmp_path: Path) -> None:
    with Launched(moody(tmp_path, ", heartbeat_timeout: 1.0")) as launch:
        launch.wait_line("[launch] ready: 2 processes")
        launch.process.send_signal(signal.SIGSTOP)
        time.sleep(2.5)
        launch.process.send_signal(signal.SIGCONT)
        time.sleep(0.5)
        assert launch.stop() == 0, launch.text
    assert "hung" not in launch.text


class HangingProxy(threading.Thread):
    """A proxy between a client and a server that can be made to hang."""

    def __init__(self, context: zmq.Context, back: str) -> None:
        super().__init__(daemon=True)
        context.linger = 0  # before it binds
        self.front, self.back = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        self.hangs, self.ended = threading.Event(), threading.Event()
        self.endpoint = f"tcp://127.0.0.1:{self.front.bind_to_random_port('tcp://127.0.0.1')}"
        self.back.connect(back)

    def run(self) -> None:
        poller = zmq.Poller()
        for socket in (self.front, self.back):
            poller.register(socket, zmq.POLLIN)
        while not self.ended.is_set():
            for source, _ in poller.poll(20) if not self.hangs.is_set() else ():
                frames = source.recv_multipart()
                if source is self.front:
                    client, *frames = frames
                    self.back.send_multipart(frames)
                else:
                    self.front.send_multipart([client, *frames])
            self.ended.wait(0.02 if self.hangs.is_set() else 0.0)
        self.front.close(0)
        self.back.close(0)


def test_a_servers_heartbeat_is_an_answer_of_its_loop() -> None:
    """The thread that sends heartbeats continues."""
    context: zmq.Context = zmq.Context()
    pull = context.socket(zmq.PULL)
    pull.rcvtimeo = 30_000
    pull.bind("inproc://launcher")
    sender = Telemetry("server", context, "inproc://launcher")
    node = SimpleNamespace(telemetry=sender, parameters=ServerSettings(), spin_once=lambda: None, say_answers_at=list)
    ending, faults = threading.Event(), []
    server = Server([], endpoints=["tcp://127.0.0.1:0"])
    server.start()
    proxy = HangingProxy(context, server.endpoints[0])
    server_stub = SimpleNamespace(endpoints=[proxy.endpoint], service=server.service, stop=lambda: None)
    watcher = threading.Thread(target=_watch, args=(node, server_stub, ending, faults), daemon=True)
    try:
        proxy.start()
        watcher.start()
        assert isinstance(decode(pull.recv()), Ready)
        beats = 0
        while beats < 3:
            beats += isinstance(decode(pull.recv()), Beat)
        proxy.hangs.set()
        messages = []
        while sum(isinstance(message, Stats) for message in messages) < 3:  # the thread does go on to say other things
            messages.append(decode(pull.recv()))
        assert sum(isinstance(message, Beat) for message in messages) <= 1  # one may have been on its way
    finally:
        ending.set()
        watcher.join()
        proxy.ended.set()
        proxy.join()
        server.stop()
        node.telemetry.close()
        pull.close()
        context.destroy(linger=0)
    assert faults == []


def test_heartbeats_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats are rate-limited, so that a call in each cycle costs nothing; changes are reported at once."""
    now = [0.0]
    monkeypatch.setattr("dyn_service.graph.middleware.telemetry.time.monotonic", lambda: now[0])
    context: zmq.Context = zmq.Context()
    pull = context.socket(zmq.PULL)
    pull.bind("inproc://launcher")
    node = Telemetry("n", context, "inproc://launcher")
    try:
        for _ in range(10_000):
            node.beat()
            now[0] += 1e-4
        node.beat(3.0)
        node.beat(3.0)
        time_out = 1000
        messages = []
        while pull.poll(time_out):
            messages.append(decode(pull.recv()))
            time_out = 0
        assert all(isinstance(beat, Beat) for beat in messages)
        assert [beat.busy_s for beat in messages] == [0.0] * 5 + [3.0]
    finally:
        node.close()
        pull.close()
        context.destroy(linger=0)


def test_nothing_is_left_when_the_launcher_and_its_guard_are_killed_together(tmp_path: Path) -> None:
    """Nodes detect the launcher's exit and start a cleanup process, which ends hanging nodes and other executables
    of ours, which has time for its last word.
    """
    file, last = moody(tmp_path, ", heartbeat_timeout: 0", mood="hang"), tmp_path / "last"
    other = f"""
import pathlib, signal, sys
last = pathlib.Path({str(last)!r})
signal.signal(signal.SIGTERM, lambda *_: sys.exit(last.write_text("over")))
last.write_text("begun")
signal.pause()
"""
    (tmp_path / "other.py").write_text(other, "utf-8")
    cmd = f"{sys.executable} {tmp_path / 'other.py'}"
    file.write_text(f"{file.read_text('utf-8')}  - executable: {{cmd: {cmd}, name: other}}\n", "utf-8")
    with Launched(file) as launch:
        launch.wait_line("ready: 3 processes")
        wait_for(lambda: last.exists() and last.read_text("utf-8"), "the executable did not begin")
        task = Path(f"/proc/{launch.process.pid}/task/{launch.process.pid}/children")
        proc_folders = {int(pid): Path(f"/proc/{pid}") for pid in task.read_text().split()}
        assert len(proc_folders) == 4
        (guard,) = [
            pid for pid, path in proc_folders.items() if b"orphan_cleanup.py" in (path / "cmdline").read_bytes()
        ]
        (folder,) = [
            Path(variable.removeprefix(b"DYN_RUNTIME_DIR=").decode())
            for variable in (proc_folders[launch.nodes()["moody"]] / "environ").read_bytes().split(b"\0")
            if variable.startswith(b"DYN_RUNTIME_DIR=")
        ]
        assert folder.is_dir()
        os.kill(guard, signal.SIGKILL)
        os.kill(launch.process.pid, signal.SIGKILL)
        try:
            wait_for(lambda: not any(path.exists() for path in proc_folders.values()), "processes were left behind")
        finally:
            for pid in proc_folders:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not folder.exists(), "the private folder was left behind")
    assert last.read_text("utf-8") == "over"

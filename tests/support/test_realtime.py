"""The `realtime:` block: what it does to a process is read back from the system, and what is refused is said."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.middleware.node_kind import CommonParameters, typed
from dyn_service.graph.middleware.pacing import Pacer
from dyn_service.service.server.settings import ServerSettings
from dyn_service.support.documents import Document
from dyn_service.support.parameters import Parameters
from dyn_service.support.realtime import Realtime
from tests.conftest import ROOT, URDF
from tests.graph.launch.test_hung import NODE
from tests.graph.launches import Launched, pendulum

CPU = min(os.sched_getaffinity(0))
STATE = """
import gc, json, os, sys, threading
from dyn_service.support.realtime import Realtime, apply
import msgspec
PREPARE
told, done, error = [], None, None
begin, end = threading.Event(), threading.Event()
other = threading.Thread(target=end.wait, daemon=True)
other.start()  # represents the threads of the transport
try:
    done = apply(msgspec.convert(json.loads(sys.argv[1]), Realtime), told.append, polls=True)
except PermissionError as fault:
    error = str(fault)
later = []
another = threading.Thread(target=lambda: later.append(os.sched_getscheduler(0)))
another.start()
another.join()
locked = next(line for line in open("/proc/self/status") if line.startswith("VmLck")).split()[1]
print(json.dumps({
    "done": done, "told": told, "error": error, "locked_kib": int(locked), "collecting": gc.isenabled(),
    "policies": [os.sched_getscheduler(n) & ~os.SCHED_RESET_ON_FORK for n in (0, other.native_id)],
    "priority": os.sched_getparam(0).sched_priority,
    "cpus": [sorted(os.sched_getaffinity(n)) for n in (0, other.native_id)],
    "later": [policy & ~os.SCHED_RESET_ON_FORK for policy in later], "frozen": gc.get_freeze_count() > 0,
}))
"""
AS_NOBODY = "os.setgroups([]); os.setgid(65534); os.setuid(65534)"
may = pytest.mark.skipif(os.geteuid() != 0, reason="only root may ask for all of it")


def state(settings: dict[str, object], prepare: str = "") -> dict[str, object]:
    """What a process says of itself once the settings were applied to it."""
    code = STATE.replace("PREPARE", prepare)
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(settings)], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    process_state: dict[str, object] = json.loads(done.stdout)
    return process_state


def test_all_of_it_is_off_by_default() -> None:
    process_state = state({})
    assert (process_state["done"], process_state["error"], process_state["told"]) == ("", None, [])
    assert process_state["policies"] == [os.SCHED_OTHER] * 2
    assert (process_state["locked_kib"], process_state["collecting"], process_state["frozen"]) == (0, True, False)
    assert process_state["cpus"] == [sorted(os.sched_getaffinity(0))] * 2


@may
@pytest.mark.parametrize(("policy", "number"), [("fifo", os.SCHED_FIFO), ("rr", os.SCHED_RR)])
def test_all_of_it(policy: str, number: int) -> None:
    settings = {"policy": policy, "priority": 7, "affinity": [CPU], "lock_memory": True, "freeze_collector": True}
    process_state = state({**settings, "busy_poll_us": 50})
    line = f"on cpu {CPU}, collector frozen, memory locked, busy polling 50 us, {policy} 7"
    assert (process_state["done"], process_state["error"], process_state["told"]) == (f"realtime: {line}", None, [])
    assert process_state["policies"] == [number] * 2  # the threads that were there, too
    assert process_state["later"] == [os.SCHED_OTHER]  # those that come later are ordinary ones
    assert (process_state["priority"], process_state["cpus"]) == (7, [[CPU]] * 2)
    assert process_state["locked_kib"] > 10_000
    assert (process_state["collecting"], process_state["frozen"]) == (False, True)


@may
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": "fifo", "priority": 5}, "realtime.policy is refused: Operation not permitted"),
        (
            {"lock_memory": True},
            "realtime.lock_memory is refused: the limit of locked memory is 65536 bytes and growing beyond it would",
        ),
        (
            {"affinity": [CPU, 9999]},
            "realtime.affinity is refused: processor 9999 is not among those this process may use",
        ),
    ],
)
def test_what_the_system_refuses_is_said(settings: dict[str, object], message: str) -> None:
    limits = "import resource; resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))"
    preparation = f"{limits}; resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0)); {AS_NOBODY}"
    process_state = state(settings, preparation)
    assert process_state["done"] is None
    assert str(process_state["error"]).startswith(message)
    assert str(process_state["error"]).endswith("; allow it, or go on without it by realtime.required: false")
    process_state = state({**settings, "freeze_collector": True, "required": False}, preparation)
    assert (process_state["done"], process_state["error"]) == ("realtime: collector frozen", None)
    (warning,) = process_state["told"]
    assert warning.startswith(message)
    assert warning.endswith("; it goes on without it")
    assert process_state["policies"] == [os.SCHED_OTHER] * 2
    assert process_state["locked_kib"] == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": "fifo"}, "realtime.priority is 0: policy fifo takes 1 to 99"),
        ({"policy": "rr", "priority": 100}, "realtime.priority is 100: policy rr takes 1 to 99"),
        ({"priority": 3}, "realtime.priority is 3: only the policies fifo and rr have one"),
        ({"policy": "deadline"}, "parameter 'realtime.policy': "),
        ({"affinity": [-1]}, "processors count from 0"),
        ({"busy_poll_us": 1e9}, "expected 0 to 100000"),
        ({"polcy": "fifo"}, "did you mean 'policy'?"),
    ],
)
def test_nonsense_is_refused_when_it_is_read(settings: dict[str, object], message: str) -> None:
    parameters = Parameters()
    parameters.set("realtime", settings, Document("a.yaml", None, {}), ())
    for kind in (ServerSettings, OwnParameters):  # one that has it, and one of a node that knows nothing of it
        with pytest.raises(InvalidArgumentError, match=re.escape(message)):
            typed(parameters, kind)


class OwnParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Of a node that knows nothing of `realtime`."""

    rate_hz: float = 1.0


class OwnFormat(msgspec.Struct, forbid_unknown_fields=True):
    """Of a node that means something of its own by `log_format`."""

    log_format: int = 0


def test_every_node_takes_it_and_a_nodes_own_names_are_its_own() -> None:
    parameters, document = Parameters(), Document("a.yaml", None, {})
    parameters.set("realtime.affinity", [CPU], document, ())
    parameters.set("rate_hz", 5.0, document, ())
    assert typed(parameters, OwnParameters) == (CommonParameters(realtime=Realtime(affinity=[CPU])), OwnParameters(5.0))
    parameters = Parameters()
    parameters.set("log_format", 3, document, ())
    assert typed(parameters, OwnFormat) == (CommonParameters(), OwnFormat(3))
    with pytest.raises(InvalidArgumentError, match="log_format"):
        typed(parameters, OwnParameters)


@pytest.mark.slow
@may
def test_a_launch_sets_its_nodes_apart(tmp_path: Path) -> None:
    """All of our nodes and one of a file, as the launch file says; each says so in its log."""
    file = tmp_path / "a.launch.yaml"
    (tmp_path / "moody.py").write_text(NODE, "utf-8")
    parts = {"policy": "rr", "priority": 1, "affinity": [CPU]}
    block = "{name: realtime, param: ["
    block += ", ".join(f"{{name: {name}, value: {value}}}" for name, value in parts.items())
    text = re.sub(r"param: \[", f"param: [{block}]}}, ", pendulum())
    text = re.sub(
        r"(exec: (plant|controller).*\n.*affinity, value: \[\d+\]\})", r"\1, {name: busy_poll_us, value: 20}", text
    )
    file.write_text(text + f"  - node: {{exec: moody.py, param: [{block}]}}]}}\n", "utf-8")
    with Launched(file) as launch:
        launch.wait_line("[launch] ready: 4 processes")
        for name, pid in launch.nodes().items():
            assert os.sched_getscheduler(pid) & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR, name
            assert os.sched_getaffinity(pid) == {CPU}
        assert launch.stop() == 0, launch.text
    for name, polling in (
        ("server", ""),
        ("plant", "busy polling 20 us, "),
        ("controller", "busy polling 20 us, "),
        ("moody", ""),
    ):
        assert f"[{name}] realtime: on cpu {CPU}, {polling}rr 1" in launch.lines, launch.text


def test_a_node_that_cannot_poll_busily_says_so(tmp_path: Path) -> None:
    (tmp_path / "moody.py").write_text(NODE, "utf-8")
    file = tmp_path / "a.launch.yaml"
    file.write_text("launch: [{node: {exec: moody.py, param: [{name: realtime.busy_poll_us, value: 5}]}}]", "utf-8")
    with Launched(file) as launch:
        assert launch.wait() == 1
    assert "realtime.busy_poll_us is refused" in launch.text


def test_the_pacer_polls_before_its_deadline_and_sleeps_no_further() -> None:
    now, sleeps, looks = [0], [], [0]

    def clock() -> int:
        looks[0] += 1
        now[0] += 1_000  # each look takes 1 us
        return now[0]

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        now[0] += round(seconds * 1e9)

    pacer = Pacer(0.001, clock, sleep, busy_poll_s=100e-6)
    for _ in range(5):
        previous_looks = looks[0]
        assert pacer.wait() == 1
        assert 90 <= looks[0] - previous_looks <= 110
        assert pacer.late_s <= 2e-6
    assert len(sleeps) == 5
    assert max(sleeps) < 0.9e-3


def test_a_parameter_file_says_it_to_dyn_serve_too(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    settings = {"robots": [str(URDF / "pendulum.urdf")], "endpoints": [f"ipc://{tmp_path}/s"], "prepare": False}
    file.write_text(json.dumps({"server": {"ros__parameters": {**settings, "realtime": {"affinity": [CPU]}}}}))
    process = subprocess.Popen(
        [sys.executable, "-P", "-u", "-m", "dyn_service", "serve", "--config", str(file), "--log-format", "json"],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["message"].startswith("ready: ")
        assert os.sched_getaffinity(process.pid) == {CPU}
        process.terminate()
        _, log = process.communicate(timeout=240)
        (line,) = (json.loads(line) for line in log.splitlines())
        assert (line["level"], line["node"], line["message"]) == ("info", "/server", f"realtime: on cpu {CPU}")
    finally:
        process.kill()
        process.communicate()

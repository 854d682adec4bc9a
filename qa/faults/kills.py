"""A server that is killed or stopped, and its workers: what its clients see.

    python -m qa.faults kills [--times 50]

- `kill -9` of the server, which is started again at the same endpoint: each call ends by its time limit, with a right
  answer or a typed error, and right answers are back.
- SIGSTOP of the server: the same, and right answers after SIGCONT.
- `kill -9` of its workers in the middle of batches: every batch is answered.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dyn_service import Client, Robot
from dyn_service.errors import DynError
from dyn_service.service.protocol.keys import Keys
from qa.load.serving import make_keys, served
from tests.conftest import URDF

ROBOT, TIMEOUT_S = "double_pendulum", 0.2

TYPED = {"DEADLINE_EXCEEDED", "UNAVAILABLE"}
"""What a call may end in whose server is dead or stands still; a worker's death costs no answer."""

MAX_OVER_MS = 10.0
"""So much later than its limit a call may end."""


@dataclass
class Seen:
    """What a client saw. over_ms: by how much calls went over their time limit, at most. back_s: from the end of the
    fault to the next right answer.
    """

    answers: int = 0
    wrong: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    over_ms: float = 0.0
    back_s: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        back = np.percentile(self.back_s, [50, 100]) if self.back_s else (0.0, 0.0)
        return (
            f"{self.answers} answers, {self.wrong} wrong, errors {self.errors}, at most {self.over_ms:.1f} ms over "
            f"the limit, right answers after {back[0]:.2f} s, at most {back[1]:.2f} s"
        )


class Probe:
    """A client that requests one state within a time limit and compares the answer with the robot in this process."""

    def __init__(self, endpoint: str, keys: Keys | None = None) -> None:
        self.seen = Seen()
        self.client = Client(endpoint, timeout_s=20.0, keys=keys)
        self.local = Robot.from_urdf(URDF / f"{ROBOT}.urdf")
        self.remote = self.client.robot(ROBOT)
        # Only after the robot is described: the first call may wait for the server's start.
        self.client.timeout_s = TIMEOUT_S
        self.random = np.random.default_rng(0)

    def ask(self) -> bool:
        """Requests an answer; returns whether it came and was right."""
        q = self.random.uniform(-1.0, 1.0, self.local.nv)
        start_s, answer = time.perf_counter(), None
        try:
            answer = self.remote.gravity_forces(q)
        except DynError as error:
            self.seen.errors[error.code] = self.seen.errors.get(error.code, 0) + 1
        over_ms = (time.perf_counter() - start_s - TIMEOUT_S) * 1e3
        self.seen.over_ms = max(self.seen.over_ms, over_ms)
        if answer is None:
            return False
        self.seen.answers += 1
        self.seen.wrong += answer.tobytes() != self.local.gravity_forces(q).tobytes()
        return True

    def wait_until_back(self, limit_s: float = 30.0) -> None:
        """Repeats requests until a right answer comes."""
        start_s = time.monotonic()
        while not self.ask():
            assert time.monotonic() - start_s < limit_s, "no answer came back"
        self.seen.back_s.append(time.monotonic() - start_s)


def server_killed(times: int, folder: Path, *, encrypted: bool = False) -> Seen:
    """Kills the server and starts it again, at the same endpoint."""
    keys_folder = folder / "keys" if encrypted else None
    keys = None if keys_folder is None else make_keys(keys_folder)
    endpoint, probe = f"ipc://{folder}/{'encrypted' if encrypted else 'server'}", None
    for _ in range(times + 1):
        with served("--prepare-for", "gravity_forces", robot=ROBOT, endpoint=endpoint, keys_folder=keys_folder) as (
            _,
            pid,
        ):
            if probe is None:
                probe = Probe(endpoint, keys)
            probe.wait_until_back()
            for _ in range(20):
                probe.ask()
            os.kill(pid, signal.SIGKILL)
            # While no server runs: the calls meet a dead socket, then no socket.
            for _ in range(3):
                probe.ask()
    assert probe is not None
    probe.client.close()
    return probe.seen


def server_stopped(times: int, stopped_s: float) -> Seen:
    """Stops the server for a while."""
    with served("--prepare-for", "gravity_forces", robot=ROBOT) as (endpoint, pid):
        probe = Probe(endpoint)
        for _ in range(times):
            os.kill(pid, signal.SIGSTOP)
            try:
                deadline = time.monotonic() + stopped_s
                while time.monotonic() < deadline:
                    probe.ask()
            finally:
                os.kill(pid, signal.SIGCONT)
            probe.wait_until_back()
        probe.client.close()
        return probe.seen


def children(pid: int) -> list[int]:
    """The processes whose parent this is."""
    pids = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            # Behind the last bracket, since the name of a process may contain spaces and brackets.
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                pids.append(int(entry.name))
    return pids


def workers_killed(times: int) -> Seen:
    """Kills a worker in the middle of a batch."""
    seen = Seen()
    local = Robot.from_urdf(URDF / f"{ROBOT}.urdf")
    with served("--prepare-for", "control", robot=ROBOT) as (endpoint, pid), Client(endpoint, timeout_s=20.0) as client:
        (fork_server,) = children(pid)
        remote = client.robot(ROBOT)
        for k in range(times):
            q = np.random.default_rng(k).uniform(-1.0, 1.0, (200_000, local.nv))
            # A fork and not a thread: the kill must not wait for this process's interpreter, which is packing the
            # batch.
            flow = os.fork()
            if not flow:
                time.sleep(0.003 * (k % 8))
                for worker in children(fork_server)[:1]:
                    with suppress(OSError):
                        os.kill(worker, signal.SIGKILL)
                os._exit(0)
            try:
                answer = remote.gravity_forces(q)
            except DynError as error:
                seen.errors[error.code] = seen.errors.get(error.code, 0) + 1
            else:
                seen.answers += 1
                seen.wrong += answer.tobytes() != local.gravity_forces(q).tobytes()
            os.waitpid(flow, 0)
    return seen


def main() -> int:
    """The long run; the exit status."""
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            "server killed": lambda: server_killed(options.times, Path(folder)),
            "encrypted server killed": lambda: server_killed(options.times, Path(folder), encrypted=True),
            "server stopped for 5 s": lambda: server_stopped(max(1, options.times // 10), 5.0),
            "worker killed": lambda: workers_killed(options.times),
        }
        faults: list[str] = []
        for name, run in runs.items():
            seen = run()
            print(f"{name}: {seen}", flush=True)
            # The server repeats the work of a dead worker, so that no client learns of it.
            promised_codes = set() if name == "worker killed" else TYPED
            if seen.wrong or not set(seen.errors) <= promised_codes or seen.over_ms > MAX_OVER_MS:
                faults.append(name)
    print(f"not as promised: {', '.join(faults)}" if faults else "all as promised")
    return int(bool(faults))

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
from qa.load.serving import served
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

    answered: int = 0
    wrong: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    over_ms: float = 0.0
    back_s: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        back = np.percentile(self.back_s, [50, 100]) if self.back_s else (0.0, 0.0)
        return (
            f"{self.answered} answers, {self.wrong} wrong, errors {self.errors}, at most {self.over_ms:.1f} ms over "
            f"the limit, right answers after {back[0]:.2f} s, at most {back[1]:.2f} s"
        )


class Asker:
    """Asks for one state, within a time limit, and holds the answer against the robot in this process."""

    def __init__(self, endpoint: str) -> None:
        self.seen = Seen()
        self.client = Client(endpoint, timeout_s=20.0)
        self.local = Robot.from_urdf(URDF / f"{ROBOT}.urdf")
        self.remote = self.client.robot(ROBOT)
        self.client.timeout_s = TIMEOUT_S
        self.random = np.random.default_rng(0)

    def ask(self) -> bool:
        """Whether a right answer came."""
        q = self.random.uniform(-1.0, 1.0, self.local.nv)
        begun, answer = time.perf_counter(), None
        try:
            answer = self.remote.gravity_forces(q)
        except DynError as error:
            self.seen.errors[error.code] = self.seen.errors.get(error.code, 0) + 1
        over = (time.perf_counter() - begun - TIMEOUT_S) * 1e3
        self.seen.over_ms = max(self.seen.over_ms, over)
        if answer is None:
            return False
        self.seen.answered += 1
        self.seen.wrong += answer.tobytes() != self.local.gravity_forces(q).tobytes()
        return True

    def until_back(self, most_s: float = 30.0) -> None:
        """Asks until a right answer comes."""
        begun = time.monotonic()
        while not self.ask():
            assert time.monotonic() - begun < most_s, "no answer came back"
        self.seen.back_s.append(time.monotonic() - begun)


def server_killed(times: int, folder: Path) -> Seen:
    """Kills the server and starts it again."""
    endpoint, asker = f"ipc://{folder}/server", None
    for _ in range(times + 1):
        with served("--prepare-for", "gravity_forces", robot=ROBOT, endpoint=endpoint) as (_, pid):
            if asker is None:
                asker = Asker(endpoint)
            asker.until_back()
            for _ in range(20):
                asker.ask()
            os.kill(pid, signal.SIGKILL)
            for _ in range(3):
                asker.ask()
    assert asker is not None
    asker.client.close()
    return asker.seen


def server_stopped(times: int, stopped_s: float) -> Seen:
    """Stops the server for a while."""
    with served("--prepare-for", "gravity_forces", robot=ROBOT) as (endpoint, pid):
        asker = Asker(endpoint)
        for _ in range(times):
            os.kill(pid, signal.SIGSTOP)
            try:
                until = time.monotonic() + stopped_s
                while time.monotonic() < until:
                    asker.ask()
            finally:
                os.kill(pid, signal.SIGCONT)
            asker.until_back()
        asker.client.close()
        return asker.seen


def children(pid: int) -> list[int]:
    """The processes whose parent this is."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.name))
    return found


def workers_killed(times: int) -> Seen:
    """Kills a worker in the middle of a batch."""
    seen = Seen()
    local = Robot.from_urdf(URDF / f"{ROBOT}.urdf")
    with served("--prepare-for", "control", robot=ROBOT) as (endpoint, pid), Client(endpoint, timeout_s=20.0) as client:
        (fork_server,) = children(pid)
        remote = client.robot(ROBOT)
        for k in range(times):
            q = np.random.default_rng(k).uniform(-1.0, 1.0, (200_000, local.nv))
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
                seen.answered += 1
                seen.wrong += answer.tobytes() != local.gravity_forces(q).tobytes()
            os.waitpid(flow, 0)
    return seen


def main() -> int:
    """The long run; the exit status."""
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=50)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            "server killed": lambda: server_killed(given.times, Path(folder)),
            "server stopped for 5 s": lambda: server_stopped(max(1, given.times // 10), 5.0),
            "worker killed": lambda: workers_killed(given.times),
        }
        faults: list[str] = []
        for name, run in runs.items():
            seen = run()
            print(f"{name}: {seen}", flush=True)
            allowed = set() if name == "worker killed" else TYPED
            if seen.wrong or not set(seen.errors) <= allowed or seen.over_ms > MAX_OVER_MS:
                faults.append(name)
    print(f"not as promised: {', '.join(faults)}" if faults else "all as promised")
    return int(bool(faults))

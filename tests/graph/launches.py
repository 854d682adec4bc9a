"""Launches in processes of their own, for tests that do to them what a launcher cannot be asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Self

from tests.conftest import ROOT, URDF

PATIENCE_S = 240.0
"""Far longer than anything here takes; only a hang runs into it."""

PENDULUM = f"""launch:
  - node: {{pkg: dyn_service, exec: server, respawn: true, respawn_delay: 0.1, SERVER
      param: [{{name: robots, value: [{URDF / "pendulum.urdf"}]}}, {{name: prepare, value: [control]}}]}}
  - node: {{pkg: dyn_service, exec: plant, PLANT
      param: [{{name: robot, value: {URDF / "pendulum.urdf"}}}, {{name: control_rate_hz, value: 100.0}}]}}
  - node: {{pkg: dyn_service, exec: controller, respawn: true, respawn_delay: 0.1, CONTROLLER
      param: [{{name: rate_hz, value: 100.0}}, {{name: deadline_s, value: 1.0}}, {{name: rearm, value: true}}]}}
"""
"""Our three nodes with all their defaults but a modest rate, and a controller that a busy machine does not end; the
words in capitals take more keys.
"""


def pendulum(**extra_keys: str) -> str:
    """The launch file, with more keys for the nodes of these names."""
    text = PENDULUM
    for name in ("server", "plant", "controller"):
        text = text.replace(f"{name.upper()}\n", f"{extra_keys.get(name, '')}\n")
    return text


def wait_for(condition, message: str):
    """What the condition says once it is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, message
        time.sleep(0.02)
    return value


class Launched:
    """`dyn launch` of a file; `with Launched(path, ...) as launch`. What it prints is in `lines`."""

    def __init__(
        self,
        file: Path,
        *options: str,
        cwd: Path = ROOT,
        env: dict[str, str] | None = None,
        stdout: int = subprocess.PIPE,
        prefix: tuple[str, ...] = (),
    ) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-P", "-m", "dyn_service", "launch", str(file), *options],
            cwd=cwd,
            # output waits in buffers, as a user's does, whatever the tests are run with
            env={**os.environ, "PYTHONUNBUFFERED": "", "PYTHONPATH": str(ROOT), **(env or {})},
            stdout=stdout,
            stderr=subprocess.STDOUT if stdout == subprocess.PIPE else subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()

    @property
    def text(self) -> str:
        """All it has printed."""
        return "\n".join(self.lines)

    def wait_line(self, part: str, *, count: int = 1) -> str:
        """The line with that part, once it has been printed so often."""

        def found() -> str | None:
            assert self.process.poll() is None or self._done(), self.text
            lines = [line for line in self.lines if part in line]
            assert len(lines) >= count or self.process.poll() is None, f"{part!r} is not in\n{self.text}"
            return lines[count - 1] if len(lines) >= count else None

        return wait_for(found, f"no line with {part!r}:\n{self.text}")

    def nodes(self) -> dict[str, int]:
        """Process ids of its nodes, by their names."""
        pids = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                stat = (path / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                command = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            name = next((word[8:] for word in command if word.startswith("__node:=")), None)
            if int(stat[1]) == self.process.pid and stat[0] != "Z" and name is not None:
                pids[name] = int(path.name)
        return pids

    def stop(self) -> int:
        """Ends it by SIGINT; its exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self) -> int:
        """Its exit status, once it has ended."""
        status = self.process.wait(PATIENCE_S)
        self._reader.join()
        return status

    def _done(self) -> bool:
        self._reader.join()
        return True

    def _read(self) -> None:
        stream = self.process.stdout or self.process.stderr
        assert stream is not None
        with stream:
            for line in stream:
                self.lines.append(line.rstrip("\n"))

"""`dyn serve` as a process, for tests that load it, stop it or kill it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import URDF

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def served(
    *arguments: str, robot: str = "panda", endpoint: str = "tcp://127.0.0.1:0", quiet: bool = False
) -> Iterator[tuple[str, int]]:
    """The endpoint of a server process, and its process number; ended at the end."""
    command = [sys.executable, "-m", "dyn_service", "serve", str(URDF / f"{robot}.urdf"), "--bind", endpoint]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    errors = subprocess.DEVNULL if quiet else None
    process = subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
    )
    assert process.stdout is not None
    try:
        line = next(line for line in process.stdout if line.startswith("ready: "))
        yield line.split()[1], process.pid
    finally:
        process.terminate()
        try:
            process.wait(20.0)
        finally:
            process.kill()
            process.stdout.close()

"""`dyn serve` as a process, for tests that load it, stop it or kill it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dyn_service.service.protocol.keys import Keys, read_keys
from dyn_service.service.protocol.messages import Role
from dyn_service.service.server.administration.access import KeyFolder
from tests.conftest import URDF

ROOT = Path(__file__).parent.parent.parent


def make_keys(folder: Path) -> Keys:
    """Returns the keys of a client that may do everything at a server with this folder of keys."""
    file = KeyFolder(folder).make("client", Role.ADMIN)
    assert file is not None
    return read_keys(file)


@contextmanager
def served(
    *arguments: str,
    robot: str = "panda",
    endpoint: str = "tcp://127.0.0.1:0",
    quiet: bool = False,
    keys_folder: Path | None = None,
) -> Iterator[tuple[str, int]]:
    """The endpoint of a server process, and its process number; ended at the end. keys_folder: for an encrypted one."""
    command = [sys.executable, "-m", "dyn_service", "serve", str(URDF / f"{robot}.urdf"), "--bind", endpoint]
    if keys_folder is not None:
        command += ["--keys", "required", "--keys-folder", str(keys_folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    errors = subprocess.DEVNULL if quiet else None
    process = subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
    )
    assert process.stdout is not None
    try:
        # The system chooses the port, and only this line reports it.
        line = next(line for line in process.stdout if line.startswith("ready: "))
        yield line.split()[1], process.pid
    finally:
        process.terminate()
        try:
            process.wait(20.0)
        finally:
            process.kill()
            process.stdout.close()

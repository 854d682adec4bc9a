"""Servers with worker processes, and those of their parts that no client can ask for."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import numpy as np

from dyn_service import Robot, Server
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.server.workers.pool import Pool, WorkerHandle
from tests.conftest import URDF
from tests.service.conftest import array, request


def serving(limits: RequestLimits | None = None, workers: int = 2, name: str = "pendulum", **options: Any) -> Server:
    robot = Robot.from_urdf(URDF / f"{name}.urdf")
    return Server([robot], endpoints=["tcp://127.0.0.1:0"], workers=workers, limits=limits, **options)


def children_of(parent: int) -> list[int]:
    """Returns the descendants of this process."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                    pids += [int(entry.name), *children_of(int(entry.name))]
            except (FileNotFoundError, ProcessLookupError):
                continue
    return pids


def pool_of(server: Server) -> Pool:
    """Returns the workers' pool of a server that has one."""
    pool = server._worker
    assert isinstance(pool, Pool)
    return pool


def handles_of(server: Server) -> list[WorkerHandle]:
    """Returns the pool's list of its workers, the oldest first."""
    return pool_of(server)._workers


def are_idle(server: Server, count: int) -> bool:
    """Whether so many workers are there, none of them at work."""
    handles = handles_of(server)
    return len(handles) == count and all(worker.is_idle for worker in handles)


def forks_of(server: Server) -> int:
    """Returns how many workers have been started."""
    return pool_of(server)._fork_server._count


def fork_server_of(server: Server) -> subprocess.Popen[bytes] | None:
    """Returns the process whose children are the workers; None between two of them."""
    return pool_of(server)._fork_server._process


def workers_of(server: Server) -> list[int]:
    """Returns the process numbers of the workers, the fork server's children."""
    fork_server = fork_server_of(server)
    assert fork_server is not None
    return children_of(fork_server.pid)


def kill(server: Server, worker: int) -> None:
    """Kills the worker of this number, from outside the pool."""
    pool_of(server)._fork_server.kill(worker)


def unread(worker: WorkerHandle) -> int:
    """Returns how many bytes sent to a worker it has not read (unix(7), SIOCOUTQ)."""
    return int.from_bytes(fcntl.ioctl(worker.end, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def simulate(number: int, steps: int = 250, states: int = 200_000, **fields: Any) -> dict[str, Any]:
    """Returns a request for part of a motion with so many states that it takes a while."""
    state = array(np.full((states, 1), 0.5))
    options = {"dt": 1e-6, "steps": steps, "every": steps, "integrator": "implicit_midpoint"}
    return request("simulate", id=number, inputs={"q": state, "v": state}, options=options, **fields)

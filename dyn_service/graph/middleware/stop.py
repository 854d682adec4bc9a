"""Requests to stop a node or a command: by Ctrl-C, SIGTERM, or the end of the launcher."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from dyn_service.graph.middleware.topics import RUNTIME_DIR

LAUNCHER = "DYN_LAUNCHER"
"""`FD:INODE:GUARD`: a pipe whose other end only the launcher holds, and the file of `launch/orphan_cleanup.py`."""


class Stop:
    """Whether the node was asked to stop."""

    def __init__(self) -> None:
        self.requested = False
        self._ends_at_once = False
        self._signum = int(signal.SIGTERM)

    def request(self, signum: int = 0, frame: FrameType | None = None) -> None:
        """Asks the node to stop; also a signal handler."""
        self.requested = True
        self._signum = signum or self._signum
        if self._ends_at_once:
            os._exit(128 + self._signum)

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Context in which a request to stop ends the process at once; for abandonable work such as compiling."""
        self._ends_at_once = True
        if self.requested:
            os._exit(128 + self._signum)
        try:
            yield
        finally:  # an error within is still reported
            self._ends_at_once = False


@contextlib.contextmanager
def stopping() -> Iterator[Stop]:
    """Context in which Ctrl-C and SIGTERM request a stop instead of ending the process."""
    stop = Stop()
    handlers = {number: signal.signal(number, stop.request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def end_with_launcher() -> None:
    """Ends this process and the others of its launch when the launcher dies. The launcher's cleanup process may have
    been killed with it: each node then starts another one, and stops itself.
    """
    number, _, rest = os.environ.pop(LAUNCHER, "").partition(":")
    inode, _, guard = rest.partition(":")
    try:
        pipe = int(number)
        os.set_inheritable(pipe, False)
        # the number may by now be a descriptor of something else
        if os.fstat(pipe).st_ino != int(inode):
            return
    except (OSError, ValueError):  # no launcher, or a launch-prefix that closed the pipe
        return
    environment = dict(os.environ)
    orders = f"dir {environment.pop(RUNTIME_DIR, '')}\n+{os.getpgid(0)}\n"

    def watch() -> None:
        while os.read(pipe, 1):
            pass
        command, quiet = [sys.executable, "-I", "-S", guard], subprocess.DEVNULL
        with contextlib.suppress(OSError):
            started = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, env=environment, start_new_session=True
            )
            assert started.stdin is not None
            started.stdin.write(orders.encode())
            started.stdin.close()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="dyn-launcher", daemon=True).start()

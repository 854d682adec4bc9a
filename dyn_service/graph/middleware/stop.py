"""Whether a node, or a command that goes on until Ctrl-C, was asked to stop."""

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
"""`FD:INODE:GUARD`: a pipe whose other end only the launcher holds, and the file of `launching.reaper`."""


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
        """Within it the process ends as soon as it is asked to: for what can be left as it is, such as compiling."""
        self._ends_at_once = True
        if self.requested:
            os._exit(128 + self._signum)
        try:
            yield
        finally:  # what failed within is still to be said
            self._ends_at_once = False


@contextlib.contextmanager
def stopping() -> Iterator[Stop]:
    """Within it, Ctrl-C and SIGTERM ask to stop in place of ending the process."""
    stop = Stop()
    before = {number: signal.signal(number, stop.request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_with_launcher() -> None:
    """Has this process, and all others of its launch, end once the launcher is gone. The launcher's own guard may have
    been killed with it: each node starts another, and asks itself to stop.
    """
    number, _, rest = os.environ.pop(LAUNCHER, "").partition(":")
    inode, _, guard = rest.partition(":")
    try:
        pipe = int(number)
        os.set_inheritable(pipe, False)
        if os.fstat(pipe).st_ino != int(inode):
            return
    except (OSError, ValueError):  # no launcher, or a launch-prefix that closed the pipe
        return
    environment = dict(os.environ)
    told = f"dir {environment.pop(RUNTIME_DIR, '')}\n+{os.getpgid(0)}\n"

    def watch() -> None:
        while os.read(pipe, 1):
            pass
        command, quiet = [sys.executable, "-I", "-S", guard], subprocess.DEVNULL
        with contextlib.suppress(OSError):
            started = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, env=environment, start_new_session=True
            )
            assert started.stdin is not None
            started.stdin.write(told.encode())
            started.stdin.close()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="dyn-launcher", daemon=True).start()

"""Our server as a process: `python -m qa.interop.service ENDPOINT [KEY_FOLDER]`. Ends with its standard input."""

from __future__ import annotations

import sys

from dyn_service import Robot, Server
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.server.administration.access import KeyFolder
from dyn_service.support.shipped import find_robot
from qa.interop.wire import MAX_BYTES


def main() -> None:
    """Serves the Panda, with requests of up to `MAX_BYTES`; with a folder only encrypted ones."""
    endpoint, *folder = sys.argv[1:]
    limits = RequestLimits(max_message_bytes=MAX_BYTES, max_unfinished_bytes=2 * MAX_BYTES)
    with Server(
        [Robot.from_urdf(find_robot("panda"))],
        endpoints=[endpoint],
        limits=limits,
        keys="required" if folder else "remote",
        key_folder=KeyFolder(folder[0]) if folder else None,
    ):
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()

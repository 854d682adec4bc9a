"""Where pages and streams are served: checked before a library is asked, in our words."""

from __future__ import annotations

import socket

from dyn_service.errors import UnavailableError


def free_port(what: str, host: str, port: int) -> int:
    """The port, found free on that host; one that is for 0.

    Raises:
        UnavailableError: It is taken, or this machine has no such address.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UnavailableError(f"{what} cannot listen on {host}:{port}: {error.strerror}; try --port") from None
        return int(probe.getsockname()[1])

"""Default values that clients, servers and commands share. It imports nothing, to keep `--help` fast."""

from __future__ import annotations

DEFAULT_ENDPOINT = "tcp://127.0.0.1:5755"
"""Loopback: by default, other machines cannot reach a server."""

NOTICE_PERIOD_MS = 1000.0
"""Interval between the notices to a request that waits for a compilation."""

DEFAULT_COMPILE_WAIT_S = 120.0
"""Additional time a client waits while the server compiles: several times the compilation of a large robot."""

DEFAULT_TIMEOUT_S = 1.0
"""Time limit of a call."""

DEFAULT_RETRIES = 3
"""Number of retries of a query that changes nothing, over an open connection."""

DEFAULT_RETRY_AFTER_S = 0.1
"""Time without a reply before a retry: far longer than the computation of one state, and longer than the time limits of
control loops, whose requests are therefore never retried.
"""

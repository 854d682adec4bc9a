"""What both sides of the wire state, each figure once. Imports nothing, so that a command's help is quick."""

from __future__ import annotations

DEFAULT_ENDPOINT = "tcp://127.0.0.1:5755"
"""Loopback: nothing outside this machine reaches a server that was not told otherwise."""

NOTICE_PERIOD_MS = 1000.0
"""How often a request that waits for a compiler is told so."""

DEFAULT_COMPILE_WAIT_S = 120.0
"""How long a client waits, beyond its time limit, while the server compiles: several times what a large robot takes."""

DEFAULT_TIMEOUT_S = 1.0
"""How long a call waits for its answer."""

DEFAULT_RETRIES = 3
"""So often a query that changes nothing is sent again over a connection that stands."""

DEFAULT_RETRY_AFTER_S = 0.1
"""Silence before a request is sent again: far more than a single state takes, and more than the time limits of control
loops, which are therefore never sent twice.
"""

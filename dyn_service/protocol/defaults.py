"""What both sides of the wire state, each figure once. Imports nothing, so that a command's help is quick."""

from __future__ import annotations

DEFAULT_ENDPOINT = "tcp://127.0.0.1:5755"
"""Loopback: nothing outside this machine reaches a server that was not told otherwise."""

NOTICE_PERIOD_MS = 1000.0
"""How often a request that waits for a compiler is told so."""

DEFAULT_COMPILE_WAIT_S = 120.0
"""How long a client waits, beyond its time limit, while the server compiles: several times what a large robot takes."""

"""What both sides of the wire state, each figure once. Imports nothing, so that a command's help is quick."""

from __future__ import annotations

DEFAULT_ENDPOINT = "tcp://127.0.0.1:5755"
"""Loopback: nothing outside this machine reaches a server that was not told otherwise."""

MAX_STEPS = 20_000
"""Steps of one `simulate` request: some tens of milliseconds."""

MAX_RHEONOMIC_STEPS = 2_000
"""Steps of one `simulate_rheonomic` request: each solves for the free joints four times, some hundred microseconds."""

"""Waiting for the end of a thread, within a bound."""

from __future__ import annotations

import threading

from dyn_service.errors import DeadlineExceededError


def join_within(thread: threading.Thread, timeout_s: float, name: str) -> None:
    """Waits for a thread; raises `DeadlineExceededError` after `timeout_s`. name: of its work, for the error."""
    thread.join(timeout_s)
    if thread.is_alive():
        raise DeadlineExceededError(f"{name} still runs {timeout_s:g} s after it was asked to end")

"""Waiting for the end of a thread, within a bound."""

from __future__ import annotations

import threading

import pytest

from dyn_service.errors import DeadlineExceededError
from dyn_service.support.threads import join_within


def test_a_thread_that_does_not_end_is_an_error_that_names_it() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, daemon=True)
    thread.start()
    with pytest.raises(DeadlineExceededError, match=r"the reader still runs 0\.05 s after it was asked to end"):
        join_within(thread, 0.05, "the reader")
    release.set()
    join_within(thread, 50.0, "the reader")

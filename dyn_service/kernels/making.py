"""Notifications of compilations: a listener in a thread is called for each kernel made in that thread.

Making is reading from disk or compiling, including the wait for another thread that makes a kernel of the same robot.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Listener(Protocol):
    """Receives notifications, of one kernel at a time."""

    def begun(self, kernel: str) -> None:
        """Called before a kernel is made."""

    def ended(self) -> None:
        """Called after the kernel was made or has failed."""


class KernelMissingError(Exception):
    """Raised in `making_none` for a kernel that is missing; the message is its name."""


_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
_none_is_made: ContextVar[bool] = ContextVar("none_is_made", default=False)


@contextmanager
def making_none() -> Iterator[None]:
    """Within this block, this thread makes no kernel: a missing one raises `KernelMissingError`."""
    token = _none_is_made.set(True)
    try:
        yield
    finally:
        _none_is_made.reset(token)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Within this block, the listener is notified of the kernels that this thread makes."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def making(kernel: str) -> Iterator[None]:
    """Notifies the listener of this thread, if there is one, of a kernel made within the block."""
    if _none_is_made.get():
        raise KernelMissingError(kernel)
    listener = _listener.get()
    if listener is None:
        yield
        return
    listener.begun(kernel)
    try:
        yield
    finally:
        listener.ended()

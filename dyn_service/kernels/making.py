"""Notifications of compilations: a listener in a thread is called for each kernel compiled in that thread.

Made means read from disk or compiled, and the wait for another thread that makes one of the same robot counts too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Listener(Protocol):
    """Hears of kernels, one at a time."""

    def begun(self, kernel: str) -> None:
        """The making of this kernel begins."""

    def ended(self) -> None:
        """It is over, well or not."""


class KernelMissingError(Exception):
    """A kernel would have to be made where none may be; the message names it."""


_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
_none_is_made: ContextVar[bool] = ContextVar("none_is_made", default=False)


@contextmanager
def making_none() -> Iterator[None]:
    """Within this block this thread makes no kernels: where one is missing it gets `KernelMissingError`."""
    token = _none_is_made.set(True)
    try:
        yield
    finally:
        _none_is_made.reset(token)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Within this block, in this thread, the listener hears of kernels."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def making(kernel: str) -> Iterator[None]:
    """Tells the listener, if there is one, that this kernel is made within the block."""
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

"""Notifications of compilations: a thread's listener is called before and after each compilation in that thread.

An event covers loading a kernel from disk or compiling it, and waiting for a thread that does so for the same kernel.
Kernels that are made for another one, such as those of a list of queries, belong to its event.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Listener(Protocol):
    """Receives the notifications of a thread, for one kernel at a time."""

    def begun(self, kernel: str) -> None:
        """Called before a compilation."""

    def ended(self) -> None:
        """Called after a compilation, also after one that failed."""


class KernelMissingError(Exception):
    """Raised in `forbid_compilation` for a missing kernel; the message is its name."""


_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
_forbidden: ContextVar[bool] = ContextVar("forbidden", default=False)


@contextmanager
def forbid_compilation() -> Iterator[None]:
    """Within this block, this thread compiles no kernel: a missing one raises `KernelMissingError`."""
    token = _forbidden.set(True)
    try:
        yield
    finally:
        _forbidden.reset(token)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Within this block, the listener is notified of the compilations in this thread."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def compilation(kernel: str) -> Iterator[None]:
    """Notifies the listener of this thread, if there is one, of a compilation within the block."""
    if _forbidden.get():
        raise KernelMissingError(kernel)
    listener = _listener.get()
    if listener is None:
        yield
        return
    listener.begun(kernel)
    token = _listener.set(None)
    try:
        yield
    finally:
        _listener.reset(token)
        listener.ended()

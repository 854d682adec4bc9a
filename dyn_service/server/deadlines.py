"""What is said to those whose time is up: their work was not begun, was stopped, or its asker has given up."""

from __future__ import annotations

from dyn_service.errors import DeadlineExceededError
from dyn_service.protocol.messages import Head, Request


def not_begun(request: Request | Head, waited_ns: float) -> DeadlineExceededError:
    """The deadline passed before the computation began, so many nanoseconds after the request's receipt."""
    return DeadlineExceededError(
        f"{request.query} was to begin within {request.deadline_ms:g} ms of its receipt, found "
        f"{waited_ns / 1e6:.1f} ms gone by",
        path="deadline_ms",
    )


def stopped(request: Request | Head, ran_ns: float) -> DeadlineExceededError:
    """The deadline passed while the computation ran; it was stopped so many nanoseconds after the request's receipt."""
    return DeadlineExceededError(
        f"{request.query} was to end within {request.deadline_ms:g} ms of its receipt, and was stopped after "
        f"{ran_ns / 1e6:.1f} ms",
        path="deadline_ms",
    )


def given_up() -> DeadlineExceededError:
    """The asker sent a `cancel`: it waits no more, and drops whatever is said to it."""
    return DeadlineExceededError("the request was cancelled by its client")

"""Simulated time."""

from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.fields import Message


class Clock(Message, frozen=True):
    """The simulated time, on the topic `/clock`."""

    clock: Time = Time()

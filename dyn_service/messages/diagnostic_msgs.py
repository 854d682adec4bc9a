"""Diagnostics of the parts of a machine."""

from typing import ClassVar

from dyn_service.messages.fields import Byte, Message
from dyn_service.messages.std_msgs import Header


class KeyValue(Message, frozen=True):
    """A key and its value, both text."""

    key: str = ""
    value: str = ""


class DiagnosticStatus(Message, frozen=True):
    """Status of one part: `level` is one of the constants, `message` one line, `values` what was measured."""

    OK: ClassVar[Byte] = 0
    WARN: ClassVar[Byte] = 1
    ERROR: ClassVar[Byte] = 2
    STALE: ClassVar[Byte] = 3

    level: Byte = 0
    name: str = ""
    message: str = ""
    hardware_id: str = ""
    values: list[KeyValue] = []


class DiagnosticArray(Message, frozen=True):
    """Status of several parts at the header's time."""

    header: Header = Header()
    status: list[DiagnosticStatus] = []

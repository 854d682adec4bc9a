"""Log lines of nodes."""

from typing import ClassVar

from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.fields import Message, UInt8, UInt32


class Log(Message, frozen=True):
    """A line of a node's log, as on the topic `/rosout`."""

    DEBUG: ClassVar[UInt8] = 10
    INFO: ClassVar[UInt8] = 20
    WARN: ClassVar[UInt8] = 30
    ERROR: ClassVar[UInt8] = 40
    FATAL: ClassVar[UInt8] = 50

    stamp: Time = Time()
    level: UInt8 = 0
    name: str = ""
    msg: str = ""
    file: str = ""
    function: str = ""
    line: UInt32 = 0

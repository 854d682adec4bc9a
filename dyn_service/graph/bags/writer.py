"""Writes bags: MCAP with ROS 2's profile, in compressed chunks.

A chunk is written when it is full or one second old. The file of a killed process can be read up to its last chunk. If
the disk is full, the file is ended there and an error raised.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from mcap.writer import Writer

from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError
from dyn_service.graph.bags.mcap_records import MAX_TIME_NS, repair
from dyn_service.messages import Message, ros_type, schema
from dyn_service.messages.cdr import rihs01, to_cdr

R = TypeVar("R")
SUFFIX = ".mcap"
CHUNK_BYTES = 1 << 20
"""Size of a chunk before compression."""
CHUNK_S = 1.0
"""Age at which a chunk is written: what a killed process can lose."""


class BagWriter:
    """A new bag. Every method raises `FailedPreconditionError` once it is closed.

    path: The file; its name ends in `.mcap`.

    Raises:
        InvalidArgumentError: It has another suffix.
        FailedPreconditionError: The file exists or cannot be created.
    """

    def __init__(self, path: Path, *, chunk_bytes: int = CHUNK_BYTES, chunk_s: float = CHUNK_S) -> None:
        if path.suffix != SUFFIX:
            raise InvalidArgumentError(f"a bag's name must end in {SUFFIX}, found {str(path)!r}")
        try:
            self._file = _File(path)
        except FileExistsError:
            raise FailedPreconditionError(f"bag {str(path)!r} already exists: choose another name") from None
        except OSError as error:
            raise FailedPreconditionError(f"bag {str(path)!r} cannot be made: {error.strerror}") from None
        self.path = path
        self.counts: dict[str, int] = {}
        self._chunk_s = chunk_s
        self._written_s = time.monotonic()
        self._channels: dict[tuple[str, type[Message]], int] = {}
        self._schemas: dict[type[Message], int] = {}
        self._open = True
        self._mcap = Writer(self._file, chunk_size=chunk_bytes)  # type: ignore[arg-type]  # what it uses of a stream
        self._perform(lambda: self._mcap.start(profile="ros2", library="dyn_service"))

    def write(self, topic: str, message: Message, log_time_ns: int, publish_time_ns: int | None = None) -> None:
        """Adds a message of a topic.

        Args:
            topic: Its full name, `/arm/joint_states`.
            message: Any message of `dyn_service.messages`, or of a package that declares some.
            log_time_ns: When it was received, ns since 1970 or of the simulation's clock.
            publish_time_ns: When it was sent; by default, when it was received.

        Raises:
            InvalidArgumentError: A value does not fit its field, or the time is invalid.
            ResourceExhaustedError: The disk is full, as in every method. The bag has been closed with what came before.
        """
        data = to_cdr(message)
        published = log_time_ns if publish_time_ns is None else publish_time_ns
        if not (0 <= log_time_ns <= MAX_TIME_NS and 0 <= published <= MAX_TIME_NS):
            raise InvalidArgumentError(f"times of a bag are 0 to {MAX_TIME_NS} ns, found {log_time_ns}, {published}")
        channel = self._channels.get((topic, type(message)))
        if channel is None:
            channel = self._channel(topic, type(message))
        count = self.counts.get(topic, 0)
        self._perform(lambda: self._mcap.add_message(channel, log_time_ns, data, published, count))
        self.counts[topic] = count + 1
        self.flush_when_due()

    def attach(self, name: str, media_type: str, data: bytes, time_ns: int = 0) -> None:
        """Attaches a file to the bag, such as a robot's description."""
        self._perform(lambda: self._mcap.add_attachment(time_ns, time_ns, name, media_type, data))

    def note(self, name: str, values: dict[str, str]) -> None:
        """Writes named texts to the bag."""
        self._perform(lambda: self._mcap.add_metadata(name, values))

    def flush_when_due(self) -> None:
        """Writes the current chunk if it is old enough; for callers that wait for messages."""
        now_s = time.monotonic()
        if self._open and now_s - self._written_s >= self._chunk_s:
            self._perform(self._mcap.flush)

    def close(self) -> None:
        """Ends the bag with its index; closing again does nothing."""
        if self._open:
            self._perform(self._mcap.finish)
            self._open = False
            self._file.close()

    def __enter__(self) -> BagWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _channel(self, topic: str, kind: type[Message]) -> int:
        if kind not in self._schemas:
            text = schema(kind).encode()
            self._schemas[kind] = self._perform(lambda: self._mcap.register_schema(ros_type(kind), "ros2msg", text))
        metadata = {"topic_type_hash": rihs01(kind)}
        channel = self._perform(lambda: self._mcap.register_channel(topic, "cdr", self._schemas[kind], metadata))
        self._channels[topic, kind] = channel
        return channel

    def _perform(self, step: Callable[[], R]) -> R:
        """Performs a write; if the disk is full, the file ends with its last complete chunk."""
        if not self._open:
            raise FailedPreconditionError(f"bag {str(self.path)!r} is closed")
        length = self._file.tell()
        try:
            done = step()
        except OSError as error:
            self._open = False
            # back to the last complete chunk: half a record would make the rest unreadable
            self._file.end_at(length)
            # no room for an index; the file is readable without
            with contextlib.suppress(FailedPreconditionError):
                repair(self.path)
            raise ResourceExhaustedError(
                f"bag {str(self.path)!r} cannot be written: {error.strerror}; it ends with what came before"
            ) from None
        if self._file.tell() != length:
            self._written_s = time.monotonic()
        return done


class _File:
    """An unbuffered file, so that written data survives the process."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._length = 0

    def write(self, data: bytes) -> int:
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left) :]
        self._length += len(data)
        return len(data)

    def tell(self) -> int:
        return self._length

    def flush(self) -> None:
        """Does nothing: there is no buffer."""

    def end_at(self, length: int) -> None:
        os.ftruncate(self._descriptor, length)
        self.close()

    def close(self) -> None:
        os.close(self._descriptor)

"""Reading a bag: ours, those of `ros2 bag record` in MCAP, whole or cut off."""

from __future__ import annotations

import contextlib
import heapq
import io
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from mcap.opcode import Opcode
from mcap.records import Attachment, Channel, Header, McapRecord, Message, Metadata, Schema
from mcap_ros2.decoder import DecoderFactory
from numpy.typing import NDArray

from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.graph.bags import mcap_records
from dyn_service.messages import by_type
from dyn_service.messages.cdr import from_cdr, same_definition
from dyn_service.support.suggestions import did_you_mean


class Recorded(NamedTuple):
    """A message as it was recorded.

    message: one of `dyn_service.messages` where that has the type, else an object with the fields of its schema.
    log_time_ns, publish_time_ns: when it came and when it was sent.
    """

    topic: str
    message: Any
    log_time_ns: int
    publish_time_ns: int


@dataclass
class Topic:
    """One topic of a bag. type: `sensor_msgs/msg/JointState`. times: when its messages came (ns), in order."""

    name: str
    type: str
    times: NDArray[np.int64]


@dataclass
class Attached:
    """A file within a bag."""

    name: str
    media_type: str
    data: bytes = field(repr=False)


class BagReader:
    """A bag, opened for reading.

    Args:
        path: An MCAP file, or a folder of `ros2 bag record` with one in it.

    Raises:
        NotFoundError: There is no such file.
        InvalidArgumentError: It is no MCAP file, or none of ROS 2.
    """

    def __init__(self, path: Path) -> None:
        self.path = _file_of(path)
        try:
            self._stream: BinaryIO = self.path.open("rb")
        except OSError as error:
            raise NotFoundError(f"bag {str(path)!r} cannot be read: {error.strerror}") from None
        try:
            self._places = list(mcap_records.places(self._stream, self.path))
            self.whole = bool(self._places) and self._places[-1].opcode == Opcode.FOOTER
            """Whether it was ended as it should be; a recorder that was killed leaves one that was not."""
            if self.whole:
                mcap_records.check_summary(self._stream, self._places[-1], self.path)
            self._schemas: dict[int, Schema] = {}
            self._channels: dict[int, Channel] = {}
            self.attached: list[Attached] = []
            self.notes: dict[str, dict[str, str]] = {}
            self._spans: dict[int, dict[int, tuple[int, int]]] = {}
            """Of chunks with an index, by where they begin: when each channel's first and last message came (ns)."""
            self._read_names()
            self.topics = self._topics()
        except BaseException:
            self.close()
            raise
        self._decoders: dict[int, Decoder] = {}

    @property
    def span_ns(self) -> tuple[int, int]:
        """When its first and its last message came; zeros where it has none."""
        ends = [(int(topic.times[0]), int(topic.times[-1])) for topic in self.topics if len(topic.times)]
        return min((first for first, _ in ends), default=0), max((last for _, last in ends), default=0)

    def names(self) -> set[str]:
        """The names of its topics."""
        return {topic.name for topic in self.topics}

    def check(self, topics: Collection[str]) -> None:
        """Refuses names of topics that it does not have.

        Raises:
            NotFoundError: It has no such topic.
        """
        known = self.names()
        for name in topics:
            if name not in known:
                near = did_you_mean(name, known) or f"; it has {', '.join(sorted(known)) or 'none'}"
                raise NotFoundError(f"bag {str(self.path)!r} has no topic {name!r}{near}")

    def messages(
        self, topics: Collection[str] | None = None, begin_ns: int = 0, end_ns: int = 2**63 - 1
    ) -> Iterator[Recorded]:
        """The messages of these topics, or of all, in the order in which they came, begin_ns <= time < end_ns.

        Raises:
            NotFoundError: The bag has no such topic.
            InvalidArgumentError: A chunk of it is damaged, or a message is none of its type.
        """
        self.check(topics or ())
        wanted = {number for number, each in self._channels.items() if topics is None or each.topic in topics}
        for message in self._raw(wanted, begin_ns, end_ns):
            channel = self._channels[message.channel_id]
            decoder = self._decoders.get(channel.schema_id)
            if decoder is None:
                decoder = decoder_for(channel, self._schemas.get(channel.schema_id))
                self._decoders[channel.schema_id] = decoder
            yield Recorded(channel.topic, decoder(message.data), message.log_time, message.publish_time)

    def close(self) -> None:
        """Closes the file."""
        self._stream.close()

    def __enter__(self) -> BagReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _raw(self, channels: set[int], begin_ns: int, end_ns: int) -> Iterator[Message]:
        def wanted(message: Message) -> bool:
            return message.channel_id in channels and begin_ns <= message.log_time < end_ns

        if not self.whole:  # chunks follow each other; within one, messages stand as they came
            for place in self._places:
                found = [record for record in self._records(place) if isinstance(record, Message) and wanted(record)]
                yield from sorted(found, key=lambda message: message.log_time)
            return
        waiting: list[tuple[int, int, int, Message]] = []  # chunks may overlap in time
        for first_ns, place in self._indexed(channels, begin_ns, end_ns):
            while waiting and waiting[0][:2] < (first_ns, place.start):
                yield heapq.heappop(waiting)[-1]
            for k, record in enumerate(self._records(place)):
                if isinstance(record, Message) and wanted(record):
                    heapq.heappush(waiting, (record.log_time, place.start, k, record))
        while waiting:
            yield heapq.heappop(waiting)[-1]

    def _indexed(self, channels: set[int], begin_ns: int, end_ns: int) -> list[tuple[int, mcap_records.Place]]:
        """The chunks, and messages outside of any, that may have some of these, by the time of the first (ns); what
        has no index stands at the beginning.
        """
        found = []
        for place in self._places:
            if place.opcode not in (Opcode.CHUNK, Opcode.MESSAGE):
                continue
            index = self._spans.get(place.start)
            spans = [(0, end_ns)] if index is None else [span for number, span in index.items() if number in channels]
            first_ns, last_ns = min((a for a, _ in spans), default=end_ns), max((b for _, b in spans), default=-1)
            if first_ns < end_ns and last_ns >= begin_ns:
                found.append((first_ns, place))
        return sorted(found, key=lambda each: (each[0], each[1].start))

    def _records(self, place: mcap_records.Place) -> list[McapRecord]:
        """The record, or those of the chunk."""
        if place.opcode == Opcode.CHUNK:
            return mcap_records.chunk(self._stream, place, self.path)
        found = mcap_records.record(self._stream, place)
        return [] if found is None else [found]

    def _read_names(self) -> None:
        """Schemas, channels, attachments and notes, from wherever they stand."""
        in_chunks = not self.whole or all(place.opcode != Opcode.CHANNEL for place in self._places)
        for place in self._places:
            if place.opcode == Opcode.MESSAGE or (place.opcode == Opcode.CHUNK and not in_chunks):
                continue
            for record in self._records(place):
                match record:
                    case Header() if record.profile != "ros2":
                        raise InvalidArgumentError(
                            f"bag {str(self.path)!r}: its profile is {record.profile!r}, expected 'ros2'"
                        )
                    case Schema():
                        self._schemas[record.id] = record
                    case Channel():
                        self._channels[record.id] = record
                    case Attachment():
                        self.attached.append(Attached(record.name, record.media_type, record.data))
                    case Metadata():
                        self.notes[record.name] = record.metadata

    def _topics(self) -> list[Topic]:
        """Topics with the times of their messages: from the chunks' indices, if the file is whole and has them."""
        times: dict[int, list[NDArray[np.int64]]] = {number: [] for number in self._channels}
        indexed = self.whole and any(place.opcode == Opcode.MESSAGE_INDEX for place in self._places)
        chunk = -1
        for place in self._places:
            if place.opcode == Opcode.CHUNK:
                chunk = place.start
            if indexed and place.opcode == Opcode.MESSAGE_INDEX:
                number, found = mcap_records.log_times(self._stream, place)
                times.setdefault(number, []).append(found)
                if len(found):
                    self._spans.setdefault(chunk, {})[number] = int(found.min()), int(found.max())
            elif place.opcode == Opcode.MESSAGE or (place.opcode == Opcode.CHUNK and not indexed):
                for record in self._records(place):
                    if isinstance(record, Message):
                        found = mcap_records.checked_times(np.array([record.log_time], np.uint64), place)
                        times.setdefault(record.channel_id, []).append(found)
        return [
            Topic(
                channel.topic,
                self._schemas[channel.schema_id].name if channel.schema_id in self._schemas else "",
                np.sort(np.concatenate([np.zeros(0, np.int64), *times[number]])),
            )
            for number, channel in sorted(self._channels.items())
        ]


def _file_of(path: Path) -> Path:
    """The MCAP file itself: a folder of `ros2 bag record` has one."""
    if not path.is_dir():
        return path
    found = sorted(path.glob("*.mcap"))
    if len(found) != 1:
        raise NotFoundError(f"folder {str(path)!r} has {len(found)} files *.mcap: name one")
    return found[0]


Decoder = Callable[[bytes], Any]


def decoder_for(channel: Channel, schema: Schema | None) -> Decoder:
    """The decoder of a channel of a bag.

    Raises:
        InvalidArgumentError: The channel is none of ROS 2's, or its definition cannot be read.
    """
    if schema is None or channel.message_encoding != "cdr" or schema.encoding != "ros2msg":
        found = "no schema" if schema is None else f"a schema of {schema.encoding!r}"
        raise InvalidArgumentError(
            f"topic {channel.topic!r} has {found} and encoding {channel.message_encoding!r}, expected 'ros2msg', 'cdr'"
        )
    try:
        ours = by_type(schema.name)
    except NotFoundError:
        return _theirs(channel, schema)
    if not same_definition(ours, schema.data.decode("utf-8", "replace")):
        return _theirs(channel, schema)  # of another version, or another ROS
    return lambda data: from_cdr(ours, data)


def _theirs(channel: Channel, schema: Schema) -> Decoder:
    def decode(data: bytes) -> Any:
        try:
            return by_schema(data)
        except Exception:  # noqa: BLE001 - what a decoder of a stranger's definition raises has no common base
            raise InvalidArgumentError(
                f"topic {channel.topic!r}: {len(data)} bytes are no message of {schema.name}"
            ) from None

    try:
        with contextlib.redirect_stderr(io.StringIO()):  # where the parser prints what it stumbles over
            made = DecoderFactory().decoder_for("cdr", schema)
    except Exception as error:  # noqa: BLE001 - the same holds for the parser
        raise InvalidArgumentError(
            f"topic {channel.topic!r}: the definition of {schema.name!r} cannot be read: {error}"
        ) from None
    assert made is not None  # its two encodings have been looked at
    by_schema = made
    return decode

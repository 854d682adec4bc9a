"""Reads bags of this package and of `ros2 bag record` (MCAP), complete or truncated; summaries of bags.

A summary (topics, types, counts, rates and gaps) reads no message.
"""

from __future__ import annotations

import contextlib
import heapq
import io
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
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
from dyn_service.messages.cdr import reader_of
from dyn_service.support.suggestions import did_you_mean


class Recorded(NamedTuple):
    """A recorded message.

    message: an instance of `dyn_service.messages` if the type exists, else an object with the fields of its schema.
    log_time_ns, publish_time_ns: when it was received and sent.
    """

    topic: str
    message: Any
    log_time_ns: int
    publish_time_ns: int


@dataclass
class Topic:
    """A topic of a bag. type: `sensor_msgs/msg/JointState`. times: arrival times of its messages (ns), in order."""

    name: str
    type: str
    times: NDArray[np.int64]


class BagReader:
    """A bag, opened for reading.

    path: An MCAP file, or a folder of `ros2 bag record` with one in it.

    Raises:
        NotFoundError: The file does not exist.
        InvalidArgumentError: Not an MCAP file, or not in ROS 2's profile.
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
            self.attached: list[Attachment] = []
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
        """Arrival times of the first and last message; zeros without messages."""
        ends = [(int(topic.times[0]), int(topic.times[-1])) for topic in self.topics if len(topic.times)]
        return min((first for first, _ in ends), default=0), max((last for _, last in ends), default=0)

    def names(self) -> set[str]:
        """Names of its topics."""
        return {topic.name for topic in self.topics}

    def check(self, topics: Collection[str]) -> None:
        """Checks that topics exist."""
        names = self.names()
        for name in topics:
            if name not in names:
                hint = did_you_mean(name, names) or f"; it has {', '.join(sorted(names)) or 'none'}"
                raise NotFoundError(f"bag {str(self.path)!r} has no topic {name!r}{hint}")

    def messages(
        self, topics: Collection[str] | None = None, begin_ns: int = 0, end_ns: int = 2**63 - 1
    ) -> Iterator[Recorded]:
        """Yields messages of the given topics, or of all, in the order of arrival, begin_ns <= time < end_ns.

        Raises:
            NotFoundError: A topic does not exist.
            InvalidArgumentError: A chunk or a message is damaged.
        """
        self.check(topics or ())
        channel_ids = {k for k, channel in self._channels.items() if topics is None or channel.topic in topics}
        for message in self._raw_messages(channel_ids, begin_ns, end_ns):
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

    def _raw_messages(self, channels: set[int], begin_ns: int, end_ns: int) -> Iterator[Message]:
        def is_requested(message: Message) -> bool:
            return message.channel_id in channels and begin_ns <= message.log_time < end_ns

        if not self.whole:  # chunks do not overlap in time; messages in a chunk are in order
            for place in self._places:
                messages = [m for m in self._records(place) if isinstance(m, Message) and is_requested(m)]
                yield from sorted(messages, key=lambda message: message.log_time)
            return
        waiting: list[tuple[int, int, int, Message]] = []  # chunks may overlap in time
        for first_ns, place in self._overlapping_chunks(channels, begin_ns, end_ns):
            while waiting and waiting[0][:2] < (first_ns, place.start):
                yield heapq.heappop(waiting)[-1]
            for k, record in enumerate(self._records(place)):
                if isinstance(record, Message) and is_requested(record):
                    heapq.heappush(waiting, (record.log_time, place.start, k, record))
        while waiting:
            yield heapq.heappop(waiting)[-1]

    def _overlapping_chunks(
        self, channels: set[int], begin_ns: int, end_ns: int
    ) -> list[tuple[int, mcap_records.Place]]:
        """Returns the chunks, and messages outside chunks, that may contain the requested ones, by time of the first
        (ns); those without an index come first.
        """
        chunks = []
        for place in self._places:
            if place.opcode not in (Opcode.CHUNK, Opcode.MESSAGE):
                continue
            index = self._spans.get(place.start)
            spans = [(0, end_ns)] if index is None else [span for number, span in index.items() if number in channels]
            first_ns, last_ns = min((a for a, _ in spans), default=end_ns), max((b for _, b in spans), default=-1)
            if first_ns < end_ns and last_ns >= begin_ns:
                chunks.append((first_ns, place))
        return sorted(chunks, key=lambda chunk: (chunk[0], chunk[1].start))

    def _records(self, place: mcap_records.Place) -> list[McapRecord]:
        if place.opcode == Opcode.CHUNK:
            return mcap_records.chunk(self._stream, place, self.path)
        single_record = mcap_records.record(self._stream, place)
        return [] if single_record is None else [single_record]

    def _read_names(self) -> None:
        """Reads schemas, channels, attachments and notes from data or summary."""
        in_chunks = not self.whole or all(place.opcode != Opcode.CHANNEL for place in self._places)
        for place in self._places:
            if place.opcode == Opcode.MESSAGE or (place.opcode == Opcode.CHUNK and not in_chunks):
                continue
            for record in self._records(place):
                match record:
                    case Header() if record.profile != "ros2":
                        text = f"its profile is {record.profile!r}, expected 'ros2'"
                        raise InvalidArgumentError(f"bag {str(self.path)!r}: {text}")
                    case Schema():
                        self._schemas[record.id] = record
                    case Channel():
                        self._channels[record.id] = record
                    case Attachment():
                        self.attached.append(record)
                    case Metadata():
                        self.notes[record.name] = record.metadata

    def _topics(self) -> list[Topic]:
        """Returns topics with arrival times, from the chunk indices if the file is complete and has them."""
        times: dict[int, list[NDArray[np.int64]]] = {number: [] for number in self._channels}
        # the indices have all times, so that a summary of a large bag decompresses nothing
        indexed = self.whole and any(place.opcode == Opcode.MESSAGE_INDEX for place in self._places)
        chunk = -1
        for place in self._places:
            if place.opcode == Opcode.CHUNK:
                chunk = place.start
            if indexed and place.opcode == Opcode.MESSAGE_INDEX:
                number, log_times = mcap_records.log_times(self._stream, place)
                times.setdefault(number, []).append(log_times)
                if len(log_times):
                    self._spans.setdefault(chunk, {})[number] = int(log_times.min()), int(log_times.max())
            elif place.opcode == Opcode.MESSAGE or (place.opcode == Opcode.CHUNK and not indexed):
                for record in self._records(place):
                    if isinstance(record, Message):
                        log_times = mcap_records.checked_times(np.array([record.log_time], np.uint64), place)
                        times.setdefault(record.channel_id, []).append(log_times)
        return [
            Topic(
                channel.topic,
                self._schemas[channel.schema_id].name if channel.schema_id in self._schemas else "",
                np.sort(np.concatenate([np.zeros(0, np.int64), *times[number]])),
            )
            for number, channel in sorted(self._channels.items())
        ]


def _file_of(path: Path) -> Path:
    """Returns the MCAP file of a path; a folder of `ros2 bag record` contains one."""
    if not path.is_dir():
        return path
    files = sorted(path.glob("*.mcap"))
    if len(files) != 1:
        raise NotFoundError(f"folder {str(path)!r} has {len(files)} files *.mcap: name one")
    return files[0]


Decoder = Callable[[bytes], Any]


def decoder_for(channel: Channel, schema: Schema | None) -> Decoder:
    """Returns the decoder of a channel: this package's types if the definition is the same or an earlier one, else the
    bag's schema.

    Raises:
        InvalidArgumentError: The channel is not in ROS 2's encoding, or its definition cannot be read.
    """
    if schema is None or channel.message_encoding != "cdr" or schema.encoding != "ros2msg":
        schema_kind = "no schema" if schema is None else f"a schema of {schema.encoding!r}"
        raise InvalidArgumentError(
            f"topic {channel.topic!r} has {schema_kind} and encoding {channel.message_encoding!r}, "
            "expected 'ros2msg', 'cdr'"
        )
    try:
        ours = by_type(schema.name)
    except NotFoundError:
        return _schema_decoder(channel, schema)
    # a message type may have the same name and other fields in another distribution of ROS
    return reader_of(ours, schema.data.decode("utf-8", "replace")) or _schema_decoder(channel, schema)


def _schema_decoder(channel: Channel, schema: Schema) -> Decoder:
    try:
        # the parser prints errors, which the caller reports
        with contextlib.redirect_stderr(io.StringIO()):
            schema_decoder = DecoderFactory().decoder_for("cdr", schema)
    except Exception as error:  # noqa: BLE001 - the same holds for the parser
        text = f"the definition of {schema.name!r} cannot be read: {error}"
        raise InvalidArgumentError(f"topic {channel.topic!r}: {text}") from None
    assert schema_decoder is not None  # both encodings were checked
    by_schema: Decoder = schema_decoder

    def decode(data: bytes) -> Any:
        try:
            return by_schema(data)
        except Exception:  # noqa: BLE001 - decoders of foreign definitions may raise anything
            text = f"{len(data)} bytes are no message of {schema.name}"
            raise InvalidArgumentError(f"topic {channel.topic!r}: {text}") from None

    return decode


GAP = 3.0
"""A pause of this many median periods is a gap; one lost message makes two, jitter less."""


@dataclass(frozen=True)
class TopicSummary:
    """A topic. rate_hz: messages per second between the first and the last, NaN for fewer than two. gaps: pauses longer
    than `GAP` usual periods; longest_gap_s and gap_at_s: the longest of all pauses and when it began, s into the bag.
    """

    name: str
    type: str
    count: int
    rate_hz: float
    gaps: int
    longest_gap_s: float
    gap_at_s: float


@dataclass(frozen=True)
class Summary:
    """A bag. begin_ns, duration_s: of all its messages. whole: whether its recorder ended it."""

    file: str
    bytes: int
    whole: bool
    begin_ns: int
    duration_s: float
    topics: tuple[TopicSummary, ...]
    attached: tuple[str, ...]

    @property
    def messages(self) -> int:
        """Number of messages."""
        return sum(topic.count for topic in self.topics)


def summary(bag: BagReader) -> Summary:
    """Returns topics, types, counts, rates and gaps of a bag, and its begin and duration."""
    begin, end = bag.span_ns
    return Summary(
        str(bag.path),
        bag.path.stat().st_size,
        bag.whole,
        begin,
        1e-9 * (end - begin),
        tuple(_topic_summary(topic, begin) for topic in bag.topics),
        tuple(attachment.name for attachment in bag.attached),
    )


def lines(bag_summary: Summary) -> list[str]:
    """Returns the summary as lines of text: the file, its begin, a table of topics."""
    begin = datetime.fromtimestamp(bag_summary.begin_ns * 1e-9, UTC)
    summary_lines = [
        f"{bag_summary.file}: {size_text(bag_summary.bytes)}, {bag_summary.messages} messages "
        f"in {bag_summary.duration_s:.3f} s",
        f"begins at {bag_summary.begin_ns * 1e-9:.9f} s ({begin:%Y-%m-%d %H:%M:%S} UTC)",
    ]
    if not bag_summary.whole:
        summary_lines.append("not ended: its recorder was killed; what it wrote until then is read")
    if bag_summary.attached:
        summary_lines.append(f"files within: {', '.join(bag_summary.attached)}")
    rows = [("topic", "type", "messages", "Hz", "gaps", "longest pause")]
    for topic in bag_summary.topics:
        rate = "" if np.isnan(topic.rate_hz) else f"{topic.rate_hz:.1f}"
        pause = "" if np.isnan(topic.longest_gap_s) else f"{topic.longest_gap_s:.4f} s at {topic.gap_at_s:.3f} s"
        rows.append((topic.name, topic.type, str(topic.count), rate, str(topic.gaps), pause))
    widths = [max(len(row[k]) for row in rows) for k in range(6)]
    for row in rows:
        cells = [
            cell.rjust(width) if k in (2, 3, 4) else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        summary_lines.append("  ".join(cells).rstrip())
    return summary_lines


def size_text(size: int) -> str:
    """Returns a number of bytes as text."""
    for unit, limit in (("B", 1e3), ("kB", 1e6), ("MB", 1e9)):
        if size < limit:
            return f"{size / (limit / 1e3):.3g} {unit}"
    return f"{size / 1e9:.3g} GB"


def _topic_summary(topic: Topic, begin_ns: int) -> TopicSummary:
    pauses = np.diff(topic.times)
    if not len(pauses) or topic.times[-1] == topic.times[0]:
        return TopicSummary(topic.name, topic.type, len(topic.times), np.nan, 0, np.nan, np.nan)
    usual, longest = float(np.median(pauses)), int(np.argmax(pauses))
    return TopicSummary(
        topic.name,
        topic.type,
        len(topic.times),
        len(pauses) / (1e-9 * float(topic.times[-1] - topic.times[0])),
        int(np.count_nonzero(pauses > GAP * usual)) if usual else 0,
        1e-9 * float(pauses[longest]),
        1e-9 * float(topic.times[longest] - begin_ns),
    )

"""Records of an MCAP file: reading, up to the last complete one if the recorder was killed, and repair.

`repair` completes a truncated file, and rebuilds damaged indices and summaries, so that other readers accept it. Chunks
have checksums; damaged ones are not used.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import lz4.frame
import numpy as np
import zstandard
from mcap import records
from mcap.data_stream import ReadDataStream, RecordBuilder
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.records import Chunk, McapRecord, MessageIndex
from mcap.stream_reader import breakup_chunk
from numpy.typing import NDArray

from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError

MAGIC = b"\x89MCAP0\r\n"
_RECORD_HEAD = struct.Struct("<BQ")
_FOOTER = struct.Struct("<QQI")
CRC_BYTES = 4
_INDEX = struct.Struct("<HI")
_MESSAGE = struct.Struct("<HIQ")
DAMAGE = (
    McapError, zstandard.ZstdError, ValueError, LookupError, OverflowError, OSError, struct.error, RuntimeError,
    MemoryError,
)  # fmt: skip
"""Exceptions of the libraries for damaged files; lz4 raises RuntimeError."""
MAX_TIME_NS = 2**63 - 1
"""ROS 2's times have 63 bits."""
MAX_CHUNK_BYTES = 1 << 28
"""Maximum size of a chunk, compressed or not; those of rosbag2 have some 4 MB."""
MAX_RECORDS, RECORDS_PER_BYTE = 1024, 8
"""A chunk of n bytes has at most MAX_RECORDS + n RECORDS_PER_BYTE records, since reading costs by the record. Messages
of one flag at regular times compress to 0.7 bytes each or more, equal records to a thousandth of that.
"""
IN_DATA: Mapping[int, Any] = {
    Opcode.HEADER: records.Header,
    Opcode.SCHEMA: records.Schema,
    Opcode.CHANNEL: records.Channel,
    Opcode.MESSAGE: records.Message,
    Opcode.ATTACHMENT: records.Attachment,
    Opcode.METADATA: records.Metadata,
}
IN_SUMMARY: Mapping[int, Any] = {
    Opcode.SCHEMA: records.Schema,
    Opcode.CHANNEL: records.Channel,
    Opcode.CHUNK_INDEX: records.ChunkIndex,
    Opcode.ATTACHMENT_INDEX: records.AttachmentIndex,
    Opcode.METADATA_INDEX: records.MetadataIndex,
}


class Place(NamedTuple):
    """A record: its kind, start, start of the content, and length of the content."""

    opcode: int
    start: int
    content: int
    length: int

    @property
    def end(self) -> int:
        """The start of the next record."""
        return self.content + self.length


def places(stream: BinaryIO, path: Path) -> Iterator[Place]:
    """Yields the places of the records, up to the first incomplete one."""
    size = stream.seek(0, 2)
    stream.seek(0)
    if stream.read(len(MAGIC)) != MAGIC:
        raise InvalidArgumentError(f"bag {str(path)!r}: not an MCAP file")
    offset = len(MAGIC)
    while offset + _RECORD_HEAD.size <= size:
        stream.seek(offset)
        opcode, length = _RECORD_HEAD.unpack(stream.read(_RECORD_HEAD.size))
        place = Place(opcode, offset, offset + _RECORD_HEAD.size, length)
        if place.end > size:
            return
        yield place
        if opcode == Opcode.FOOTER:
            return
        offset = place.end


def check_summary(stream: BinaryIO, footer: Place, path: Path) -> None:
    """Checks the summary against the CRC-32 in the footer (0: no CRC)."""
    stream.seek(footer.content)
    begin, _, expected = _FOOTER.unpack(stream.read(_FOOTER.size)) if footer.length >= _FOOTER.size else (0, 0, 0)
    if not expected:
        return
    summary_end = footer.content + _FOOTER.size - CRC_BYTES
    sound = begin < summary_end
    if sound:
        stream.seek(begin)
        sound = zlib.crc32(stream.read(summary_end - begin)) == expected
    if not sound:
        raise InvalidArgumentError(f"bag {str(path)!r} is damaged: its summary has changed; run dyn bag repair")


def content(stream: BinaryIO, place: Place) -> bytes:
    """Returns the record's bytes."""
    stream.seek(place.content)
    return stream.read(place.length)


@contextmanager
def _damage_is_reported(place: Place) -> Iterator[None]:
    try:
        yield
    except DAMAGE:
        raise InvalidArgumentError(f"the record at byte {place.start} is damaged") from None


def record(stream: BinaryIO, place: Place, kinds: Mapping[int, Any] = IN_DATA) -> McapRecord | None:
    """Returns the record, or None if it is of another kind; those of chunks are of none of these."""
    kind, data = kinds.get(place.opcode), ReadDataStream(BytesIO(content(stream, place)))
    with _damage_is_reported(place):
        if kind is None:
            return None
        mcap_record: McapRecord = kind.read(data, place.length) if kind is records.Message else kind.read(data)
        return mcap_record


def chunk(stream: BinaryIO, place: Place, path: Path) -> list[McapRecord]:
    """Returns the records of a chunk.

    Raises:
        InvalidArgumentError: The chunk is damaged, or exceeds the limits of size or number of records.
    """
    if place.length > MAX_CHUNK_BYTES:
        raise InvalidArgumentError(f"bag {str(path)!r}: the chunk at byte {place.start} has {place.length} bytes")
    try:
        packed = Chunk.read(ReadDataStream(BytesIO(content(stream, place))))
        data, max_records = _decompressed(packed), MAX_RECORDS + RECORDS_PER_BYTE * len(packed.data)
        if _has_more(data, max_records):
            cause = (
                f"has more than {max_records} records in {len(packed.data)} bytes: "
                "`mcap decompress` makes a bag that is read"
            )
        else:
            return breakup_chunk(replace(packed, compression="", data=data), validate_crc=True)
    except DAMAGE:
        cause = "is damaged"
    raise InvalidArgumentError(f"bag {str(path)!r}: the chunk at byte {place.start} {cause}")


def _has_more(data: bytes, max_records: int) -> bool:
    offset = 0
    for _ in range(max_records):
        if offset >= len(data):
            return False
        offset += _RECORD_HEAD.size + _RECORD_HEAD.unpack_from(data, offset)[1]
    return offset < len(data)


def _decompressed(packed: Chunk) -> bytes:
    """Decompresses a chunk; raises one of `DAMAGE` if its size exceeds the limit or is not the stated one."""
    size = packed.uncompressed_size
    # before decompression: a few bytes can expand to gigabytes
    if size > MAX_CHUNK_BYTES:
        raise ValueError
    if packed.compression == "zstd":
        data = zstandard.ZstdDecompressor().stream_reader(packed.data, read_across_frames=True).read(size + 1)
    elif packed.compression == "lz4":
        data = lz4.frame.LZ4FrameDecompressor().decompress(packed.data, max_length=size + 1)
    elif packed.compression:
        raise ValueError
    else:
        data = packed.data
    if len(data) != size:
        raise ValueError
    return data


def entries(stream: BinaryIO, place: Place) -> dict[int, list[tuple[int, int]]]:
    """Returns a chunk's index by channel: arrival times and offsets of messages."""
    data = _decompressed(Chunk.read(ReadDataStream(BytesIO(content(stream, place)))))
    unpacked, size = ReadDataStream(BytesIO(data)), len(data)
    entries_by_channel: dict[int, list[tuple[int, int]]] = {}
    while unpacked.count < size:
        offset = unpacked.count
        opcode, length = unpacked.read1(), unpacked.read8()
        data = unpacked.read(length)
        if opcode == Opcode.MESSAGE:
            number, _, log_time = _MESSAGE.unpack_from(data)
            entries_by_channel.setdefault(number, []).append((log_time, offset))
    return entries_by_channel


def log_times(stream: BinaryIO, place: Place) -> tuple[int, NDArray[np.int64]]:
    """Returns a chunk's index of one channel: its number, and arrival times (ns)."""
    data = content(stream, place)
    with _damage_is_reported(place):
        number, length = _INDEX.unpack_from(data)
        times = np.frombuffer(data, "<u8", count=length // 8, offset=_INDEX.size)[::2]
    return number, checked_times(times, place)


def index(stream: BinaryIO, place: Place) -> tuple[int, list[tuple[int, int]]]:
    """Returns a chunk's stored index of one channel: number, times (ns) and offsets; -1 if it is damaged."""
    try:
        message_index = MessageIndex.read(ReadDataStream(BytesIO(content(stream, place))))
    except DAMAGE:
        return -1, []
    return message_index.channel_id, message_index.records


def checked_times(times: NDArray[np.uint64], place: Place) -> NDArray[np.int64]:
    """Checks that times (ns) have 63 bits, as in ROS 2."""
    if (times > np.uint64(MAX_TIME_NS)).any():
        raise InvalidArgumentError(f"the record at byte {place.start} has times beyond 2^63 ns")
    return times.astype(np.int64)


_DATA_OPCODES = (
    Opcode.HEADER, Opcode.SCHEMA, Opcode.CHANNEL, Opcode.MESSAGE, Opcode.CHUNK, Opcode.MESSAGE_INDEX,
    Opcode.ATTACHMENT, Opcode.METADATA,
)  # fmt: skip


class Repaired(NamedTuple):
    """The result of a repair. lost_bytes: after the last complete record, which were removed. had_end: whether the
    file had an end, which was rebuilt. indices: number of chunks with rebuilt indices.
    """

    lost_bytes: int
    had_end: bool
    indices: int


def repair(path: Path) -> Repaired:
    """Rebuilds, in place, chunk indices, summary and footer. A truncated file gets an end after its last complete
    record.

    Raises:
        NotFoundError: The file does not exist.
        InvalidArgumentError: Not an MCAP file, or a chunk is damaged.
        FailedPreconditionError: The file is intact, or the disk is full; then it ends with its last complete record.
    """
    try:
        stream = path.open("r+b", buffering=0)
    except OSError as error:
        raise NotFoundError(f"bag {str(path)!r} cannot be opened: {error.strerror}") from None
    with stream:
        all_places = list(places(stream, path))
        has_end = bool(all_places) and all_places[-1].opcode == Opcode.FOOTER
        data = list(takewhile(lambda place: place.opcode in _DATA_OPCODES, all_places))
        changed_indices = _changed_indices(stream, data, path)
        for start, index_bytes in changed_indices:  # not longer than the existing data
            stream.seek(start)
            stream.write(index_bytes)
        if not has_end:
            # the last chunk's index may be incomplete: it is rebuilt
            while data and data[-1].opcode == Opcode.MESSAGE_INDEX:
                data.pop()
        summary = _Summary(stream, data, path)
        if has_end and not changed_indices and summary.is_consistent(stream, all_places[len(data) :], path):
            raise FailedPreconditionError(f"bag {str(path)!r} is whole: there is nothing to repair")
        tail = summary.tail()
        stream.seek(summary.end)
        lost_bytes = stream.read()
        try:
            stream.truncate(summary.end)
            stream.seek(summary.end)
            left = memoryview(tail)
            while left:
                left = left[stream.write(left) :]
        except OSError as error:
            stream.truncate(summary.end)
            raise FailedPreconditionError(f"bag {str(path)!r} cannot be repaired: {error.strerror}") from None
    return Repaired(0 if has_end else len(lost_bytes), has_end, len(changed_indices))


def _changed_indices(stream: BinaryIO, data: list[Place], path: Path) -> list[tuple[int, bytes]]:
    """Yields places of chunk indices that do not match their messages, with the correct bytes of the same length;
    incomplete indices of the last chunk are skipped.
    """
    changed_indices = []
    for k, place in enumerate(data):
        if place.opcode != Opcode.CHUNK:
            continue
        following = list(takewhile(lambda other: other.opcode == Opcode.MESSAGE_INDEX, data[k + 1 :]))
        if not following:
            continue
        chunk(stream, place, path)  # verifies its checksum
        expected = entries(stream, place)
        size = following[-1].end - place.end
        existing = dict(index(stream, index_place) for index_place in following)
        if _in_order(existing) == _in_order(expected):
            continue
        # in the stored order if it can be read, so that correct bytes do not change
        ranks = {number: rank for rank, number in enumerate(existing)}
        order = sorted(expected, key=lambda number: (ranks.get(number, len(ranks)), number))
        index_bytes = _index_records(expected, order)
        # only in place: an index of another length would move everything behind it
        if len(index_bytes) == size:
            changed_indices.append((place.end, index_bytes))
        elif data[-1] is not following[-1]:
            raise InvalidArgumentError(f"bag {str(path)!r}: the index of the chunk at byte {place.start} is damaged")
    return changed_indices


def _in_order(entries_by_channel: dict[int, list[tuple[int, int]]]) -> dict[int, list[tuple[int, int]]]:
    """Returns an index with sorted entries, without channels that have none."""
    return {number: sorted(pairs) for number, pairs in entries_by_channel.items() if pairs}


def _index_records(entries_by_channel: dict[int, list[tuple[int, int]]], order: Iterable[int]) -> bytes:
    return _encoded(records.MessageIndex(channel_id=number, records=entries_by_channel[number]) for number in order)


def _encoded(content: Iterable[McapRecord]) -> bytes:
    builder = RecordBuilder()
    for mcap_record in content:
        mcap_record.write(builder)
    text: bytes = builder.end()  # type: ignore[no-untyped-call]
    return text


class _Summary:
    """The end of a complete file (summary and footer), computed from the data. end: the end of the data."""

    def __init__(self, stream: BinaryIO, data: list[Place], path: Path) -> None:
        self.end = data[-1].end if data else len(MAGIC)
        self._schemas: dict[int, records.Schema] = {}
        self._channels: dict[int, records.Channel] = {}
        self._chunks: list[records.ChunkIndex] = []
        self._files: list[records.AttachmentIndex] = []
        self._notes: list[records.MetadataIndex] = []
        self._counts: dict[int, int] = {}
        self._times: list[int] = []
        self._index = b""
        for place in data:
            self._take(stream, place, path)
        if data and data[-1].opcode == Opcode.CHUNK:
            last_entries = entries(stream, data[-1])
            offset = self.end
            for number in last_entries:
                self._chunks[-1].message_index_offsets[number] = offset
                index_bytes = _index_records(last_entries, [number])
                self._index += index_bytes
                offset += len(index_bytes)
            self._chunks[-1].message_index_length = len(self._index)

    def tail(self) -> bytes:
        """Returns the bytes after the data: the last chunk's index if missing, summary, footer."""
        head, text = self._index + _encoded([records.DataEnd(0)]), _encoded(self._records())
        footer = records.Footer(summary_start=self.end + len(head), summary_offset_start=0, summary_crc=0)
        footer_bytes = _encoded([footer])[:-CRC_BYTES]
        return head + text + footer_bytes + struct.pack("<I", zlib.crc32(text + footer_bytes)) + MAGIC

    def is_consistent(self, stream: BinaryIO, end: list[Place], path: Path) -> bool:
        """Returns whether the existing end is consistent; missing entries are not faults."""
        try:
            check_summary(stream, end[-1], path)
            existing = [record(stream, place, IN_SUMMARY) for place in end]
        except InvalidArgumentError:
            return False
        expected = self._records()
        kinds = tuple(IN_SUMMARY.values())
        return all(mcap_record in expected for mcap_record in existing if isinstance(mcap_record, kinds))

    def _records(self) -> list[McapRecord]:
        statistics = records.Statistics(
            attachment_count=len(self._files),
            channel_count=len(self._channels),
            channel_message_counts=self._counts,
            chunk_count=len(self._chunks),
            message_count=len(self._times),
            message_end_time=max(self._times, default=0),
            message_start_time=min(self._times, default=0),
            metadata_count=len(self._notes),
            schema_count=len(self._schemas),
        )
        parts = (self._schemas.values(), self._channels.values(), [statistics], self._chunks, self._files, self._notes)
        return list(chain.from_iterable(parts))

    def _take(self, stream: BinaryIO, place: Place, path: Path) -> None:
        if place.opcode == Opcode.MESSAGE_INDEX:
            if self._chunks:
                last = self._chunks[-1]
                last.message_index_offsets[index(stream, place)[0]] = place.start
                last.message_index_length = place.end - last.chunk_start_offset - last.chunk_length
            return
        if place.opcode == Opcode.CHUNK:
            data_records = chunk(stream, place, path)
            self._chunks.append(_chunk_index(stream, place, data_records))
        else:
            single = record(stream, place)
            data_records = [] if single is None else [single]
        for mcap_record in data_records:
            match mcap_record:
                case records.Schema():
                    self._schemas[mcap_record.id] = mcap_record
                case records.Channel():
                    self._channels[mcap_record.id] = mcap_record
                case records.Message():
                    self._counts[mcap_record.channel_id] = self._counts.get(mcap_record.channel_id, 0) + 1
                    time = np.array([mcap_record.log_time], np.uint64)
                    self._times.append(int(checked_times(time, place)[0]))
                case records.Attachment():
                    position = (place.start, place.end - place.start, mcap_record.create_time, mcap_record.log_time)
                    description = (len(mcap_record.data), mcap_record.name, mcap_record.media_type)
                    self._files.append(records.AttachmentIndex(*position, *description))
                case records.Metadata():
                    self._notes.append(records.MetadataIndex(place.start, place.end - place.start, mcap_record.name))


def _chunk_index(stream: BinaryIO, place: Place, chunk_records: list[McapRecord]) -> records.ChunkIndex:
    times = [message.log_time for message in chunk_records if isinstance(message, records.Message)]
    head = Chunk.read(ReadDataStream(BytesIO(content(stream, place))))
    return records.ChunkIndex(
        message_start_time=min(times, default=0),
        message_end_time=max(times, default=0),
        chunk_start_offset=place.start,
        chunk_length=place.end - place.start,
        message_index_offsets={},
        message_index_length=0,
        compression=head.compression,
        compressed_size=len(head.data),
        uncompressed_size=head.uncompressed_size,
    )

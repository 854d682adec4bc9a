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
from itertools import takewhile
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
_HEAD = struct.Struct("<BQ")
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
    at = len(MAGIC)
    while at + _HEAD.size <= size:
        stream.seek(at)
        opcode, length = _HEAD.unpack(stream.read(_HEAD.size))
        found = Place(opcode, at, at + _HEAD.size, length)
        if found.end > size:
            return
        yield found
        if opcode == Opcode.FOOTER:
            return
        at = found.end


def check_summary(stream: BinaryIO, footer: Place, path: Path) -> None:
    """Checks the summary against the CRC-32 in the footer (0: no CRC)."""
    stream.seek(footer.content)
    begin, _, expected = _FOOTER.unpack(stream.read(_FOOTER.size)) if footer.length >= _FOOTER.size else (0, 0, 0)
    if not expected:
        return
    until = footer.content + _FOOTER.size - CRC_BYTES
    sound = begin < until
    if sound:
        stream.seek(begin)
        sound = zlib.crc32(stream.read(until - begin)) == expected
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
        found: McapRecord | None = None
        if kind is not None:
            found = kind.read(data, place.length) if kind is records.Message else kind.read(data)
        return found


def chunk(stream: BinaryIO, place: Place, path: Path) -> list[McapRecord]:
    """Returns the records of a chunk.

    Raises:
        InvalidArgumentError: The chunk is damaged, or exceeds the limits of size or number of records.
    """
    if place.length > MAX_CHUNK_BYTES:
        raise InvalidArgumentError(f"bag {str(path)!r}: the chunk at byte {place.start} has {place.length} bytes")
    try:
        found = Chunk.read(ReadDataStream(BytesIO(content(stream, place))))
        data, most = _unpacked(found), MAX_RECORDS + RECORDS_PER_BYTE * len(found.data)
        if _has_more(data, most):
            cause = (
                f"has more than {most} records in {len(found.data)} bytes: `mcap decompress` makes a bag that is read"
            )
        else:
            return breakup_chunk(replace(found, compression="", data=data), validate_crc=True)
    except DAMAGE:
        cause = "is damaged"
    raise InvalidArgumentError(f"bag {str(path)!r}: the chunk at byte {place.start} {cause}")


def _has_more(data: bytes, most: int) -> bool:
    at = 0
    for _ in range(most):
        if at >= len(data):
            return False
        at += _HEAD.size + _HEAD.unpack_from(data, at)[1]
    return at < len(data)


def _unpacked(found: Chunk) -> bytes:
    """Decompresses a chunk to at most its stated size.

    Raises:
        ValueError: The size exceeds the limit or differs from the stated one; or another of `DAMAGE`.
    """
    size = found.uncompressed_size
    if size > MAX_CHUNK_BYTES:
        raise ValueError
    if found.compression == "zstd":
        data = zstandard.ZstdDecompressor().stream_reader(found.data, read_across_frames=True).read(size + 1)
    elif found.compression == "lz4":
        data = lz4.frame.LZ4FrameDecompressor().decompress(found.data, max_length=size + 1)
    elif found.compression:
        raise ValueError
    else:
        data = found.data
    if len(data) != size:
        raise ValueError
    return data


def entries(stream: BinaryIO, place: Place) -> dict[int, list[tuple[int, int]]]:
    """Returns a chunk's index by channel: arrival times and offsets of messages."""
    data = _unpacked(Chunk.read(ReadDataStream(BytesIO(content(stream, place)))))
    unpacked, size = ReadDataStream(BytesIO(data)), len(data)
    found: dict[int, list[tuple[int, int]]] = {}
    while unpacked.count < size:
        at = unpacked.count
        opcode, length = unpacked.read1(), unpacked.read8()
        data = unpacked.read(length)
        if opcode == Opcode.MESSAGE:
            number, _, log_time = _MESSAGE.unpack_from(data)
            found.setdefault(number, []).append((log_time, at))
    return found


def log_times(stream: BinaryIO, place: Place) -> tuple[int, NDArray[np.int64]]:
    """Returns a chunk's index of one channel: its number, and arrival times (ns)."""
    data = content(stream, place)
    with _damage_is_reported(place):
        number, length = _INDEX.unpack_from(data)
        found = np.frombuffer(data, "<u8", count=length // 8, offset=_INDEX.size)[::2]
    return number, checked_times(found, place)


def index(stream: BinaryIO, place: Place) -> tuple[int, list[tuple[int, int]]]:
    """Returns a chunk's index of one channel as stored: its number, and per message arrival time (ns) and offset; -1
    and no messages if it is damaged.
    """
    try:
        found = MessageIndex.read(ReadDataStream(BytesIO(content(stream, place))))
    except DAMAGE:
        return -1, []
    return found.channel_id, found.records


def checked_times(times: NDArray[np.uint64], place: Place) -> NDArray[np.int64]:
    """Checks that times (ns) have 63 bits, as in ROS 2."""
    if (times > np.uint64(MAX_TIME_NS)).any():
        raise InvalidArgumentError(f"the record at byte {place.start} has times beyond 2^63 ns")
    return times.astype(np.int64)


_DATA = (
    Opcode.HEADER, Opcode.SCHEMA, Opcode.CHANNEL, Opcode.MESSAGE, Opcode.CHUNK, Opcode.MESSAGE_INDEX,
    Opcode.ATTACHMENT, Opcode.METADATA,
)  # fmt: skip


class Repaired(NamedTuple):
    """The result of a repair. lost: bytes after the last complete record, which were removed. ended: whether the file
    had an end that was rebuilt. indices: number of chunks with rebuilt indices.
    """

    lost: int
    ended: bool
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
        found = list(places(stream, path))
        ended = bool(found) and found[-1].opcode == Opcode.FOOTER
        data = list(takewhile(lambda place: place.opcode in _DATA, found))
        changed = _changed_indices(stream, data, path)
        for start, built in changed:  # not longer than the existing data
            stream.seek(start)
            stream.write(built)
        if not ended:
            while data and data[-1].opcode == Opcode.MESSAGE_INDEX:  # possibly incomplete: rebuilt
                data.pop()
        summary = _Summary(stream, data, path)
        if ended and not changed and summary.is_consistent(stream, found[len(data) :], path):
            raise FailedPreconditionError(f"bag {str(path)!r} is whole: there is nothing to repair")
        tail = summary.tail()
        stream.seek(summary.end)
        lost = stream.read()
        try:
            stream.truncate(summary.end)
            stream.seek(summary.end)
            left = memoryview(tail)
            while left:
                left = left[stream.write(left) :]
        except OSError as error:
            stream.truncate(summary.end)
            raise FailedPreconditionError(f"bag {str(path)!r} cannot be repaired: {error.strerror}") from None
    return Repaired(0 if ended else len(lost), ended, len(changed))


def _changed_indices(stream: BinaryIO, data: list[Place], path: Path) -> list[tuple[int, bytes]]:
    """Yields places of chunk indices that do not match their messages, with the correct bytes of the same length;
    incomplete indices of the last chunk are skipped.
    """
    found = []
    for k, place in enumerate(data):
        if place.opcode != Opcode.CHUNK:
            continue
        following = list(takewhile(lambda other: other.opcode == Opcode.MESSAGE_INDEX, data[k + 1 :]))
        if not following:
            continue
        chunk(stream, place, path)  # verifies its checksum
        expected = entries(stream, place)
        size = following[-1].end - place.end
        said = dict(index(stream, one) for one in following)
        if {n: sorted(one) for n, one in said.items() if one} == {n: sorted(one) for n, one in expected.items()}:
            continue
        # in the stored order if it can be read, so that correct bytes do not change
        order = sorted(expected, key=lambda number: (list(said).index(number) if number in said else len(said), number))
        built = _index_records(expected, order)
        if len(built) == size:
            found.append((place.end, built))
        elif data[-1] is not following[-1]:
            raise InvalidArgumentError(
                f"bag {str(path)!r}: the index behind the chunk at byte {place.start} is damaged"
            )
    return found


def _index_records(of: dict[int, list[tuple[int, int]]], order: Iterable[int]) -> bytes:
    return _written(records.MessageIndex(channel_id=number, records=of[number]) for number in order)


def _written(content: Iterable[McapRecord]) -> bytes:
    built = RecordBuilder()
    for each in content:
        each.write(built)
    text: bytes = built.end()  # type: ignore[no-untyped-call]
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
            found = entries(stream, data[-1])
            offset = self.end
            for number in found:
                self._chunks[-1].message_index_offsets[number] = offset
                one = _index_records(found, [number])
                self._index += one
                offset += len(one)
            self._chunks[-1].message_index_length = len(self._index)

    def tail(self) -> bytes:
        """Returns the bytes after the data: the last chunk's index if missing, summary, footer."""
        head, text = self._index + _written([records.DataEnd(0)]), _written(self._records())
        footer = records.Footer(summary_start=self.end + len(head), summary_offset_start=0, summary_crc=0)
        kept = _written([footer])[:-CRC_BYTES]
        return head + text + kept + struct.pack("<I", zlib.crc32(text + kept)) + MAGIC

    def is_consistent(self, stream: BinaryIO, end: list[Place], path: Path) -> bool:
        """Returns whether the existing end is consistent; missing entries are not faults."""
        try:
            check_summary(stream, end[-1], path)
            said = [record(stream, place, IN_SUMMARY) for place in end]
        except InvalidArgumentError:
            return False
        own = self._records()
        kinds = tuple(IN_SUMMARY.values())
        return all(one in own for one in said if isinstance(one, kinds))

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
        return [one for part in parts for one in part]

    def _take(self, stream: BinaryIO, place: Place, path: Path) -> None:
        if place.opcode == Opcode.MESSAGE_INDEX:
            if self._chunks:
                last = self._chunks[-1]
                last.message_index_offsets[index(stream, place)[0]] = place.start
                last.message_index_length = place.end - last.chunk_start_offset - last.chunk_length
            return
        if place.opcode == Opcode.CHUNK:
            found = chunk(stream, place, path)
            self._chunks.append(_chunk_index(stream, place, found))
        else:
            single = record(stream, place)
            found = [] if single is None else [single]
        for one in found:
            match one:
                case records.Schema():
                    self._schemas[one.id] = one
                case records.Channel():
                    self._channels[one.id] = one
                case records.Message():
                    self._counts[one.channel_id] = self._counts.get(one.channel_id, 0) + 1
                    time = np.array([one.log_time], np.uint64)
                    self._times.append(int(checked_times(time, place)[0]))
                case records.Attachment():
                    where = (place.start, place.end - place.start, one.create_time, one.log_time)
                    about = (len(one.data), one.name, one.media_type)
                    self._files.append(records.AttachmentIndex(*where, *about))
                case records.Metadata():
                    self._notes.append(records.MetadataIndex(place.start, place.end - place.start, one.name))


def _chunk_index(stream: BinaryIO, place: Place, found: list[McapRecord]) -> records.ChunkIndex:
    times = [one.log_time for one in found if isinstance(one, records.Message)]
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

"""Iterates over the records of an MCAP file up to the last complete one, also if the recorder was killed."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import lz4.frame
import numpy as np
import zstandard
from mcap import records
from mcap.data_stream import ReadDataStream
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.records import Chunk, McapRecord, MessageIndex
from mcap.stream_reader import breakup_chunk
from numpy.typing import NDArray

from dyn_service.errors import InvalidArgumentError

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


def chunk_sizes(stream: BinaryIO, place: Place) -> tuple[str, int, int]:
    """Returns the compression of a chunk, and its compressed and uncompressed sizes."""
    found = Chunk.read(ReadDataStream(BytesIO(content(stream, place))))
    return found.compression, len(found.data), found.uncompressed_size


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
    """Returns a chunk's index of one channel as stored: its number, and per message arrival time (ns) and offset; None
    if it is damaged.
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

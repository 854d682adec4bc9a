"""Ends a bag whose recorder could not: an index behind the last whole chunk, so that others' readers take it."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np
from mcap.data_stream import RecordBuilder
from mcap.opcode import Opcode
from mcap.records import (
    Attachment,
    AttachmentIndex,
    Channel,
    ChunkIndex,
    DataEnd,
    Footer,
    McapRecord,
    Message,
    MessageIndex,
    Metadata,
    MetadataIndex,
    Schema,
    Statistics,
)

from dyn_service.bags import records
from dyn_service.errors import FailedPreconditionError, NotFoundError

_DATA = (
    Opcode.HEADER, Opcode.SCHEMA, Opcode.CHANNEL, Opcode.MESSAGE, Opcode.CHUNK, Opcode.MESSAGE_INDEX,
    Opcode.ATTACHMENT, Opcode.METADATA,
)  # fmt: skip


def mend(path: Path) -> int:
    """Ends the bag after its last whole record, in place; how many bytes behind it were taken away.

    Raises:
        NotFoundError: There is no such file.
        InvalidArgumentError: It is no MCAP file, or one of its chunks is damaged.
        FailedPreconditionError: It is whole, or there is no room for the index; it ends with its last whole
            record then.
    """
    try:
        stream = path.open("r+b", buffering=0)
    except OSError as error:
        raise NotFoundError(f"bag {str(path)!r} cannot be opened: {error.strerror}") from None
    with stream:
        places = list(records.places(stream, path))
        if places and places[-1].opcode == Opcode.FOOTER:
            raise FailedPreconditionError(f"bag {str(path)!r} is whole: there is nothing to mend")
        data = []
        for place in places:
            if place.opcode not in _DATA:  # the end was begun
                break
            data.append(place)
        while data and data[-1].opcode == Opcode.MESSAGE_INDEX:  # there in part, perhaps: made anew
            data.pop()
        end = data[-1].end if data else len(records.MAGIC)
        tail = _tail(stream, data, path, end)
        stream.seek(end)
        lost = stream.read()
        try:
            stream.truncate(end)
            stream.seek(end)
            left = memoryview(tail)
            while left:
                left = left[stream.write(left) :]
        except OSError as error:
            stream.truncate(end)
            raise FailedPreconditionError(f"bag {str(path)!r} cannot be mended: {error.strerror}") from None
    return len(lost)


def _tail(stream: BinaryIO, places: list[records.Place], path: Path, end: int) -> bytes:
    """What stands behind the data of a whole file: its end, the summary, the footer."""
    schemas: dict[int, Schema] = {}
    channels: dict[int, Channel] = {}
    chunks: list[ChunkIndex] = []
    files: list[AttachmentIndex] = []
    notes: list[MetadataIndex] = []
    counts: dict[int, int] = {}
    times: list[int] = []
    for place in places:
        if place.opcode == Opcode.MESSAGE_INDEX and chunks:
            number, _ = records.log_times(stream, place)
            chunks[-1].message_index_offsets[number] = place.start
            chunks[-1].message_index_length = place.end - chunks[-1].chunk_start_offset - chunks[-1].chunk_length
            continue
        if place.opcode == Opcode.CHUNK:
            found = records.chunk(stream, place, path)
            chunks.append(_chunk_index(stream, place, found))
        else:
            one = records.record(stream, place)
            found = [] if one is None else [one]
        for record in found:
            match record:
                case Schema():
                    schemas[record.id] = record
                case Channel():
                    channels[record.id] = record
                case Message():
                    counts[record.channel_id] = counts.get(record.channel_id, 0) + 1
                    times.append(int(records.checked_times(np.array([record.log_time], np.uint64), place)[0]))
                case Attachment():
                    size = place.end - place.start
                    where = (place.start, size, record.create_time, record.log_time, len(record.data))
                    files.append(AttachmentIndex(*where, record.name, record.media_type))
                case Metadata():
                    notes.append(MetadataIndex(place.start, place.end - place.start, record.name))
    built = RecordBuilder()
    if places and places[-1].opcode == Opcode.CHUNK:
        for number, entries in records.entries(stream, places[-1]).items():
            chunks[-1].message_index_offsets[number] = end + built.count
            MessageIndex(channel_id=number, records=entries).write(built)
        chunks[-1].message_index_length = built.count
    statistics = Statistics(
        attachment_count=len(files),
        channel_count=len(channels),
        channel_message_counts=counts,
        chunk_count=len(chunks),
        message_count=len(times),
        message_end_time=max(times, default=0),
        message_start_time=min(times, default=0),
        metadata_count=len(notes),
        schema_count=len(schemas),
    )
    DataEnd(0).write(built)
    begin = end + built.count
    for each in (*schemas.values(), *channels.values(), statistics, *chunks, *files, *notes):
        each.write(built)
    Footer(summary_start=begin, summary_offset_start=0, summary_crc=0).write(built)
    tail: bytes = built.end()  # type: ignore[no-untyped-call]
    return tail + records.MAGIC


def _chunk_index(stream: BinaryIO, place: records.Place, found: list[McapRecord]) -> ChunkIndex:
    times = [record.log_time for record in found if isinstance(record, Message)]
    compression, packed, unpacked = records.chunk_sizes(stream, place)
    return ChunkIndex(
        message_start_time=min(times, default=0),
        message_end_time=max(times, default=0),
        chunk_start_offset=place.start,
        chunk_length=place.end - place.start,
        message_index_offsets={},
        message_index_length=0,
        compression=compression,
        compressed_size=packed,
        uncompressed_size=unpacked,
    )

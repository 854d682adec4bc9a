"""Repairs a bag: completes a truncated file, and rebuilds damaged indices and summaries, so that other readers accept
it.

Chunks have checksums; damaged ones are not used.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from mcap import records
from mcap.data_stream import RecordBuilder
from mcap.opcode import Opcode
from mcap.records import McapRecord

from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.graph.bags import mcap_records

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
        places = list(mcap_records.places(stream, path))
        ended = bool(places) and places[-1].opcode == Opcode.FOOTER
        data = list(takewhile(lambda place: place.opcode in _DATA, places))
        changed = _changed_indices(stream, data, path)
        for start, index in changed:  # not longer than the existing data
            stream.seek(start)
            stream.write(index)
        if not ended:
            while data and data[-1].opcode == Opcode.MESSAGE_INDEX:  # possibly incomplete: rebuilt
                data.pop()
        summary = _Summary(stream, data, path)
        if ended and not changed and summary.is_said(stream, places[len(data) :], path):
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


def _changed_indices(stream: BinaryIO, data: list[mcap_records.Place], path: Path) -> list[tuple[int, bytes]]:
    """Yields places of chunk indices that do not match their messages, with the correct bytes of the same length;
    incomplete indices of the last chunk are skipped.
    """
    found = []
    for chunk, following in _indices(data):
        if not following:
            continue
        mcap_records.chunk(stream, chunk, path)  # verifies its checksum
        expected = mcap_records.entries(stream, chunk)
        size = following[-1].end - chunk.end
        said = dict(mcap_records.index(stream, place) for place in following)
        if {n: sorted(one) for n, one in said.items() if one} == {n: sorted(one) for n, one in expected.items()}:
            continue
        # in the stored order if it can be read, so that correct bytes do not change
        order = sorted(expected, key=lambda number: (list(said).index(number) if number in said else len(said), number))
        built = _index_records(expected, order)
        if len(built) == size:
            found.append((chunk.end, built))
        elif data[-1] is not following[-1]:
            raise InvalidArgumentError(
                f"bag {str(path)!r}: the index behind the chunk at byte {chunk.start} is damaged"
            )
    return found


def _indices(data: list[mcap_records.Place]) -> Iterator[tuple[mcap_records.Place, list[mcap_records.Place]]]:
    for k, place in enumerate(data):
        if place.opcode == Opcode.CHUNK:
            yield place, list(takewhile(lambda other: other.opcode == Opcode.MESSAGE_INDEX, data[k + 1 :]))


def _index_records(entries: dict[int, list[tuple[int, int]]], order: Iterable[int]) -> bytes:
    return _written(records.MessageIndex(channel_id=number, records=entries[number]) for number in order)


def _written(records: Iterable[McapRecord]) -> bytes:
    built = RecordBuilder()
    for each in records:
        each.write(built)
    text: bytes = built.end()  # type: ignore[no-untyped-call]
    return text


class _Summary:
    """The end of a complete file (summary and footer), computed from the data. end: the end of the data."""

    def __init__(self, stream: BinaryIO, places: list[mcap_records.Place], path: Path) -> None:
        self.end = places[-1].end if places else len(mcap_records.MAGIC)
        self._schemas: dict[int, records.Schema] = {}
        self._channels: dict[int, records.Channel] = {}
        self._chunks: list[records.ChunkIndex] = []
        self._files: list[records.AttachmentIndex] = []
        self._notes: list[records.MetadataIndex] = []
        self._counts: dict[int, int] = {}
        self._times: list[int] = []
        self._index = b""
        for place in places:
            self._take(stream, place, path)
        if places and places[-1].opcode == Opcode.CHUNK:
            entries = mcap_records.entries(stream, places[-1])
            offset = self.end
            for number in entries:
                self._chunks[-1].message_index_offsets[number] = offset
                one = _index_records(entries, [number])
                self._index += one
                offset += len(one)
            self._chunks[-1].message_index_length = len(self._index)

    def tail(self) -> bytes:
        """Returns the bytes after the data: the last chunk's index if missing, summary, footer."""
        head, text = self._index + _written([records.DataEnd(0)]), _written(self._records())
        footer = records.Footer(summary_start=self.end + len(head), summary_offset_start=0, summary_crc=0)
        kept = _written([footer])[: -mcap_records.CRC_BYTES]
        return head + text + kept + struct.pack("<I", zlib.crc32(text + kept)) + mcap_records.MAGIC

    def is_said(self, stream: BinaryIO, places: list[mcap_records.Place], path: Path) -> bool:
        """Returns whether the existing end is consistent; missing entries are not faults."""
        try:
            mcap_records.check_summary(stream, places[-1], path)
            said = [mcap_records.record(stream, place, mcap_records.IN_SUMMARY) for place in places]
        except InvalidArgumentError:
            return False
        own = self._records()
        kinds = tuple(mcap_records.IN_SUMMARY.values())
        return all(record in own for record in said if isinstance(record, kinds))

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
        return [record for part in parts for record in part]

    def _take(self, stream: BinaryIO, place: mcap_records.Place, path: Path) -> None:
        if place.opcode == Opcode.MESSAGE_INDEX:
            if self._chunks:
                last = self._chunks[-1]
                last.message_index_offsets[mcap_records.index(stream, place)[0]] = place.start
                last.message_index_length = place.end - last.chunk_start_offset - last.chunk_length
            return
        if place.opcode == Opcode.CHUNK:
            found = mcap_records.chunk(stream, place, path)
            self._chunks.append(_chunk_index(stream, place, found))
        else:
            one = mcap_records.record(stream, place)
            found = [] if one is None else [one]
        for record in found:
            match record:
                case records.Schema():
                    self._schemas[record.id] = record
                case records.Channel():
                    self._channels[record.id] = record
                case records.Message():
                    self._counts[record.channel_id] = self._counts.get(record.channel_id, 0) + 1
                    time = np.array([record.log_time], np.uint64)
                    self._times.append(int(mcap_records.checked_times(time, place)[0]))
                case records.Attachment():
                    where = (place.start, place.end - place.start, record.create_time, record.log_time)
                    about = (len(record.data), record.name, record.media_type)
                    self._files.append(records.AttachmentIndex(*where, *about))
                case records.Metadata():
                    self._notes.append(records.MetadataIndex(place.start, place.end - place.start, record.name))


def _chunk_index(stream: BinaryIO, place: mcap_records.Place, found: list[McapRecord]) -> records.ChunkIndex:
    times = [record.log_time for record in found if isinstance(record, records.Message)]
    compression, packed, unpacked = mcap_records.chunk_sizes(stream, place)
    return records.ChunkIndex(
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

"""Repair of damaged indices, summaries and ends of bags from their messages; checked with other readers."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from mcap.opcode import Opcode
from mcap.reader import make_reader
from mcap.writer import Writer as McapWriter
from rosbags.rosbag2 import Reader as Rosbag2Reader

from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.graph.bags.mcap_records import Place, Repaired, places, repair
from dyn_service.graph.bags.reader import BagReader
from dyn_service.graph.bags.writer import BagWriter
from dyn_service.messages.std_msgs import String
from tests.graph.bags.test_bags import T0, write
from tests.phrases import naming

SUMMARY = (Opcode.SCHEMA, Opcode.CHANNEL, Opcode.CHUNK_INDEX, Opcode.ATTACHMENT_INDEX, Opcode.METADATA_INDEX)
NO_CHECKSUM = struct.pack("<I", 0)


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("bag") / "leg.mcap", 60, chunk_bytes=2048)


def records(path: Path) -> tuple[list[Place], list[Place], Place]:
    """Returns the places of the data, of the summary, and of the footer."""
    with path.open("rb") as stream:
        *data_places, footer = places(stream, path)
    end = next(k for k, place in enumerate(data_places) if place.opcode == Opcode.DATA_END)
    return data_places[:end], data_places[end + 1 :], footer


def read(path: Path) -> list[object]:
    """Returns all messages with topics and times, after checking that rosbags and mcap read the same."""
    with BagReader(path) as reader:
        assert reader.whole
        ours = [(message.topic, message.log_time_ns) for message in reader.messages()]
    with Rosbag2Reader(path) as rosbag:
        rosbags = [(connection.topic, time) for connection, time, _ in rosbag.messages()]
        counts = {connection.topic: connection.msgcount for connection in rosbag.connections}
    with path.open("rb") as stream:
        reader = make_reader(stream, validate_crcs=True)
        summary = reader.get_summary()
        assert summary is not None
        assert summary.statistics is not None
        assert summary.statistics.message_count == len(ours)
        mcap = [(channel.topic, message.log_time, message.data) for _, channel, message in reader.iter_messages()]
        files = [attachment.name for attachment in reader.iter_attachments()]
    assert ours == rosbags == [(topic, time) for topic, time, _ in mcap]
    assert counts == {topic: sum(topic_of == topic for topic_of, _ in ours) for topic in counts}
    return [*mcap, *files]


@pytest.mark.parametrize("checksum", [True, False])
def test_a_summary_that_has_changed_is_made_anew(bag: Path, tmp_path: Path, checksum: bool) -> None:
    """A changed name, offset or time is repaired, also without checksums; an intact summary is unchanged."""
    data, damaged = bytearray(bag.read_bytes()), tmp_path / "changed.mcap"
    _, summary, footer = records(bag)
    if not checksum:
        data[footer.end - 4 : footer.end] = NO_CHECKSUM
    damaged.write_bytes(data)
    with pytest.raises(FailedPreconditionError, match="nothing to repair"):
        repair(damaged)
    assert damaged.read_bytes() == data
    contents = read(bag)
    first = {place.opcode: place for place in summary if place.opcode in SUMMARY}
    assert len(first) == len(SUMMARY)
    for place in (*first.values(), footer) if checksum else first.values():
        for offset in (place.content, place.end - 1):
            data[offset] ^= 0x04
            damaged.write_bytes(data)
            data[offset] ^= 0x04
            assert repair(damaged) == Repaired(0, True, 0)
            assert read(damaged) == contents
            with pytest.raises(FailedPreconditionError, match="nothing to repair"):
                repair(damaged)


def test_a_length_that_has_changed_loses_no_message(bag: Path, tmp_path: Path) -> None:
    """The rest of the summary is then not found, and the file has no end."""
    data, damaged = bytearray(bag.read_bytes()), tmp_path / "changed.mcap"
    _, summary, _ = records(bag)
    data[summary[0].start + 3] ^= 0x40
    damaged.write_bytes(data)
    assert not repair(damaged).had_end
    assert read(damaged) == read(bag)


def test_an_index_behind_a_chunk_is_made_anew(bag: Path, tmp_path: Path) -> None:
    data, damaged = bytearray(bag.read_bytes()), tmp_path / "changed.mcap"
    inner, _, _ = records(bag)
    indices = [place for place in inner if place.opcode == Opcode.MESSAGE_INDEX]
    for place in (indices[0], indices[len(indices) // 2], indices[-1]):
        for offset in (place.content, place.content + 2, place.end - 1):
            data[offset] ^= 0x04
            damaged.write_bytes(data)
            data[offset] ^= 0x04
            assert repair(damaged) == Repaired(0, True, 1)
            assert read(damaged) == read(bag)


def test_a_chunk_that_has_changed_is_not_mended(bag: Path, tmp_path: Path) -> None:
    """The messages of a damaged chunk are not trusted, and the file is unchanged."""
    data, damaged = bytearray(bag.read_bytes()), tmp_path / "changed.mcap"
    inner, summary, _ = records(bag)
    chunk = next(place for place in inner if place.opcode == Opcode.CHUNK)
    data[chunk.content + chunk.length // 2] ^= 0x10
    data[summary[0].content] ^= 0x04
    damaged.write_bytes(data)
    with pytest.raises(InvalidArgumentError, match=naming(f"byte {chunk.start}")):
        repair(damaged)
    assert damaged.read_bytes() == data


def test_the_files_of_others_are_whole_to_it(tmp_path: Path) -> None:
    """mcap's writer with and without its optional records; a bag without messages."""
    for k, options in enumerate(({}, {"use_chunking": False}, {"use_statistics": False, "use_summary_offsets": False},
                                 {"enable_crcs": False, "repeat_channels": False})):  # fmt: skip
        path = tmp_path / f"{k}.mcap"
        with path.open("wb") as stream:
            writer = McapWriter(stream, **options)
            writer.start(profile="ros2")
            schema = writer.register_schema("std_msgs/msg/String", "ros2msg", b"string data\n")
            for topic in ("/a", "/b"):
                channel = writer.register_channel(topic, "cdr", schema)
                for time in (5, 3, 4):
                    writer.add_message(channel, time, b"\0\1\0\0\1\0\0\0\0", time)
            writer.finish()
        with pytest.raises(FailedPreconditionError, match="nothing to repair"):
            repair(path)
    with BagWriter(tmp_path / "empty.mcap"):
        pass
    with pytest.raises(FailedPreconditionError, match="nothing to repair"):
        repair(tmp_path / "empty.mcap")


def test_a_rebuilt_summary_has_a_checksum(bag: Path, tmp_path: Path) -> None:
    """In a truncated and repaired bag, a name that changes later is detected."""
    truncated = tmp_path / "cut.mcap"
    truncated.write_bytes(bag.read_bytes()[:-60])
    repair(truncated)
    data = bytearray(truncated.read_bytes())
    _, summary, _ = records(truncated)
    data[summary[0].content + 4] ^= 0x04
    truncated.write_bytes(data)
    with pytest.raises(InvalidArgumentError, match=naming("summary", "dyn bag repair")):
        BagReader(truncated)


def test_one_that_is_cut_off_within_the_last_index_is_ended(tmp_path: Path) -> None:
    path, truncated = tmp_path / "a.mcap", tmp_path / "b.mcap"
    with BagWriter(path) as bag:
        for topic in "ab":
            bag.write(f"/{topic}", String(topic), T0)
    inner, _, _ = records(path)
    assert [place.opcode for place in inner[-2:]] == [Opcode.MESSAGE_INDEX] * 2
    truncated.write_bytes(path.read_bytes()[: inner[-1].content + 3])
    lost_bytes = inner[-1].content + 3 - inner[-2].start
    assert repair(truncated) == Repaired(lost_bytes, False, 0)
    assert read(truncated) == read(path)

"""Writing and reading bags, with other readers too; truncated files, damaged files, a full disk."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from random import Random
from typing import Any

import lz4.frame
import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from mcap.data_stream import RecordBuilder
from mcap.opcode import Opcode
from mcap.reader import make_reader
from mcap.records import Channel as McapChannel
from mcap.records import Chunk, DataEnd, Footer, McapRecord, Schema
from mcap.records import Header as McapHeader
from mcap.records import Message as McapMessage
from mcap.writer import CompressionType, IndexType
from mcap.writer import Writer as McapWriter
from mcap_ros2.decoder import DecoderFactory
from mcap_ros2.writer import Writer as Ros2Writer
from rosbags.rosbag2 import Reader as Rosbag2Reader
from rosbags.typesys import Stores, get_typestore

from dyn_service.errors import (
    DynError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
)
from dyn_service.graph.bags.mcap_records import MAGIC, Place, check_summary, places, repair
from dyn_service.graph.bags.playing import Player
from dyn_service.graph.bags.plotting import plot, signals
from dyn_service.graph.bags.reader import BagReader, lines, size_text, summary
from dyn_service.graph.bags.writer import BagWriter
from dyn_service.messages import Message, all_types, ros_type
from dyn_service.messages.builtin_interfaces import Duration, Time
from dyn_service.messages.cdr import from_cdr, rihs01, to_cdr
from dyn_service.messages.dyn_service_msgs import PlantState
from dyn_service.messages.fields import fields_of, schema
from dyn_service.messages.geometry_msgs import Transform, TransformStamped, Twist, Vector3, Wrench, WrenchStamped
from dyn_service.messages.nav_msgs import Odometry
from dyn_service.messages.sensor_msgs import Imu, JointState, MultiDOFJointState
from dyn_service.messages.std_msgs import Float64MultiArray, Header, String
from dyn_service.messages.tf2_msgs import TFMessage
from dyn_service.messages.trajectory_msgs import JointTrajectory, JointTrajectoryPoint
from tests.phrases import naming

T0 = 1_790_000_000_000_000_000
MS = 1_000_000
NAMES = ["hip", "knee"]


def state(k: int) -> JointState:
    """Returns the state of the k-th millisecond."""
    return JointState(Header(Time.from_seconds(0.001 * k)), NAMES, [0.01 * k, -0.01 * k], [1.0, -1.0], [0.5 * k, 2.0])


def write(path: Path, count: int = 300, **settings: Any) -> Path:
    """Writes a bag with the given number of states, and wrenches at a tenth of their rate."""
    with BagWriter(path, **settings) as bag:
        for k in range(count):
            bag.write("/leg/joint_states", state(k), T0 + k * MS)
            if k % 10 == 0:
                bag.write(
                    "/foot/wrench", WrenchStamped(wrench=Wrench(Vector3(z=float(k)))), T0 + k * MS + 7, T0 + k * MS
                )
        bag.attach("leg.urdf", "application/xml", b"<robot/>")
        bag.note("dyn_service", {"robot": "leg"})
    return path


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("bag") / "leg.mcap", chunk_bytes=4096)


def values(kind: type[Message]) -> st.SearchStrategy[Any]:
    """Returns a strategy for messages of a type with any values."""
    whole = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
    parts = {}
    for field in fields_of(kind):
        if not isinstance(field.kind, str):
            strategy = values(field.kind)
        elif field.kind == "string":
            strategy = st.text(max_size=4, alphabet=st.characters(exclude_characters="\0", codec="utf-8"))
        elif field.kind.startswith("float"):
            strategy = st.floats(width=int(field.kind[5:]), allow_nan=False)
        elif field.kind == "bool":
            strategy = st.booleans()
        elif field.kind in whole:
            strategy = st.integers(-(2 ** whole[field.kind]), 2 ** whole[field.kind] - 1)
        else:
            strategy = st.integers(0, 2 ** int(field.kind.removeprefix("uint").replace("byte", "8")) - 1)
        if field.length is not None:
            strategy = st.lists(strategy, min_size=field.length, max_size=field.length or 3)
        if kind.__annotations__.get(field.name) in (tuple[str, ...], "tuple[str, ...]"):
            strategy = strategy.map(tuple)
        if kind.__annotations__.get(field.name) in (bytes, "bytes"):
            strategy = st.binary(max_size=4)
        parts[field.name] = strategy
    return st.builds(kind, **parts)


@pytest.mark.parametrize("kind", list(all_types()), ids=ros_type)
@settings(max_examples=10)
@given(data=st.data())
def test_cdr_there_and_back(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(values(kind))
    assert from_cdr(kind, to_cdr(message)) == message


def test_cdr_is_ros_2s() -> None:
    """The bytes are equal to those of rosbags, which implements ROS 2's definitions."""
    store = get_typestore(Stores.ROS2_JAZZY)
    stamp, duration = store.types["builtin_interfaces/msg/Time"], store.types["builtin_interfaces/msg/Duration"]
    header = store.types["std_msgs/msg/Header"](stamp=stamp(sec=-3, nanosec=4), frame_id="worlds")
    point = store.types["trajectory_msgs/msg/JointTrajectoryPoint"](
        positions=np.array([1.0]), velocities=np.zeros(0), accelerations=np.zeros(0), effort=np.array([2.0, 3.0]),
        time_from_start=duration(sec=1, nanosec=2),
    )  # fmt: skip
    rosbags_message = store.types["trajectory_msgs/msg/JointTrajectory"](
        header=header, joint_names=["a"], points=[point] * 2
    )
    our_point = JointTrajectoryPoint([1.0], [], [], [2.0, 3.0], Duration(1, 2))
    ours = JointTrajectory(Header(Time(-3, 4), "worlds"), ["a"], [our_point] * 2)
    name = "trajectory_msgs/msg/JointTrajectory"
    assert to_cdr(ours) == bytes(store.serialize_cdr(rosbags_message, name))
    assert rihs01(JointTrajectory) == store.hash_rihs01(name)


@pytest.mark.parametrize(
    "message",
    [
        JointState(position=["a"]),  # type: ignore[list-item]
        JointState(position=np.zeros((2, 2))),  # type: ignore[arg-type]
        Imu(orientation_covariance=[0.0]),
        Header(Time(2**31)),
        String(3),  # type: ignore[arg-type]
        Float64MultiArray(layout=None),  # type: ignore[arg-type]
    ],
)
def test_values_that_cdr_cannot_represent_are_errors(message: Message) -> None:
    with pytest.raises(InvalidArgumentError, match=naming(f"a {ros_type(message)}", "value")):
        to_cdr(message)


def test_written_messages_are_read(bag: Path) -> None:
    with BagReader(bag) as reader:
        assert reader.whole
        recorded = list(reader.messages())
        assert [message.message for message in recorded if message.topic == "/leg/joint_states"] == [
            state(k) for k in range(300)
        ]
        assert [message.log_time_ns for message in recorded] == sorted(message.log_time_ns for message in recorded)
        third = [message for message in recorded if message.topic == "/foot/wrench"][2]
        assert (third.log_time_ns, third.publish_time_ns) == (T0 + 20 * MS + 7, T0 + 20 * MS)
        assert third.message.wrench.force.z == 20.0
        part = list(reader.messages(["/leg/joint_states"], T0 + 5 * MS, T0 + 8 * MS))
        assert [message.message for message in part] == [state(k) for k in (5, 6, 7)]
        assert [(file.name, file.media_type, file.data) for file in reader.attached] == [
            ("leg.urdf", "application/xml", b"<robot/>")
        ]
        assert reader.notes == {"dyn_service": {"robot": "leg"}}


def test_rosbags_reads_it(bag: Path) -> None:
    """rosbags reads the file without ROS."""
    store = get_typestore(Stores.ROS2_JAZZY)
    with Rosbag2Reader(bag) as reader:
        assert reader.message_count == 330
        assert reader.duration == 299 * MS + 1
        kinds = {connection.topic: (connection.msgtype, connection.msgcount) for connection in reader.connections}
        assert kinds == {
            "/leg/joint_states": ("sensor_msgs/msg/JointState", 300),
            "/foot/wrench": ("geometry_msgs/msg/WrenchStamped", 30),
        }
        joints = [connection for connection in reader.connections if connection.topic == "/leg/joint_states"]
        for k, (_, time, data) in enumerate(reader.messages(joints)):
            message: Any = store.deserialize_cdr(data, "sensor_msgs/msg/JointState")
            assert (time, message.position.tolist(), message.name) == (T0 + k * MS, state(k).position, NAMES)


def test_foxgloves_decoder_reads_it(bag: Path) -> None:
    """mcap decodes the messages with the schemas in the file."""
    with bag.open("rb") as stream:
        reader = make_reader(stream, decoder_factories=[DecoderFactory()])
        assert reader.get_header().profile == "ros2"
        decoded = [message.decoded_message for message in reader.iter_decoded_messages(topics=["/leg/joint_states"])]
        summary = reader.get_summary()
    assert [message.effort for message in decoded] == [state(k).effort for k in range(300)]
    assert summary is not None
    assert {index.compression for index in summary.chunk_indexes} == {"zstd"}
    assert len(summary.chunk_indexes) > 10


def test_bags_of_others_are_read(tmp_path: Path) -> None:
    """An unknown type, a known type with comments, and a known type of another version."""
    path = tmp_path / "theirs.mcap"
    with path.open("wb") as stream:
        writer = Ros2Writer(stream)
        odd = writer.register_msgdef("odd_msgs/msg/Odd", "float64 x\nint32[] count\n")
        string = writer.register_msgdef("std_msgs/msg/String", "# a text\n\nstring data # what it says\n")
        other = writer.register_msgdef("std_msgs/msg/Header", "uint32 seq\nstring frame_id\n")
        writer.write_message("/odd", odd, {"x": 1.5, "count": [1, 2]}, 1, 1)
        writer.write_message("/text", string, {"data": "hello"}, 2, 2)
        writer.write_message("/old", other, {"seq": 7, "frame_id": "w"}, 3, 3)
        writer.finish()
    with BagReader(path) as reader:
        odd_one, text, old = (recorded.message for recorded in reader.messages())
        assert (odd_one.x, odd_one.count) == (1.5, [1, 2])
        assert text == String("hello")
        assert (old.seq, old.frame_id) == (7, "w")
        assert {(signal.name, signal.value[0]) for signal in signals(reader, "/odd")} == {
            ("x", 1.5), ("count[0]", 1.0), ("count[1]", 2.0),
        }  # fmt: skip


def test_states_of_an_earlier_plant_are_read_and_played(tmp_path: Path, socket_folder: Path) -> None:
    """Without the last fields: they have their defaults. `dyn bag play` publishes only messages of the own type."""
    path, fields = tmp_path / "earlier.mcap", schema(PlantState).splitlines()
    assert fields[-2:] == ["string reason", "float64 answer_timeout"]
    state = PlantState(1, 4, 0.1, ("a",), [0.5], [0.1], [2.0], "active", "", 0.0, 1, True, 2, 1e-3, "f" * 32)
    values = msgspec.structs.asdict(state)
    del values["answer_timeout"]
    with path.open("wb") as stream:
        writer = Ros2Writer(stream)
        earlier = writer.register_msgdef("dyn_service_msgs/msg/PlantState", "\n".join(fields[:-1]))
        writer.write_message("/plant_state", earlier, values, 1, 1)
        writer.finish()
    with BagReader(path) as reader:
        assert [recorded.message for recorded in reader.messages()] == [state]
        player = Player(reader, [], socket_folder, say=print)
        try:
            player.run(lambda: True, delay_s=0.0)
            assert player.played == 1
        finally:
            player.close()


def test_other_files_are_refused(tmp_path: Path) -> None:
    text, other = tmp_path / "a.mcap", tmp_path / "b.mcap"
    text.write_text("no bag")
    with other.open("wb") as stream:
        writer = McapWriter(stream)
        writer.start(profile="x")
        writer.finish()
    for path, kind, cause in (
        (tmp_path / "none.mcap", NotFoundError, "No such file"),
        (tmp_path, NotFoundError, r"has 2 files \*.mcap: name one"),
        (text, InvalidArgumentError, "not an MCAP file"),
        (other, InvalidArgumentError, "its profile is 'x', expected 'ros2'"),
    ):
        with pytest.raises(kind, match=cause):
            BagReader(path)


def test_topics_that_are_not_there(bag: Path) -> None:
    with (
        BagReader(bag) as reader,
        pytest.raises(NotFoundError, match=naming("'/leg/joint_state'", "'/leg/joint_states'")),
    ):
        next(reader.messages(["/leg/joint_state"]))


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.95])
def test_cut_off_anywhere_it_is_read_up_to_its_last_chunk(bag: Path, tmp_path: Path, keep: float) -> None:
    truncated = tmp_path / "cut.mcap"
    data = bag.read_bytes()
    truncated.write_bytes(data[: int(keep * len(data))])
    with BagReader(truncated) as reader:
        assert not reader.whole
        intact = [recorded.message for recorded in reader.messages(["/leg/joint_states"])]
        counts = {topic.name: len(topic.times) for topic in reader.topics}
    assert intact == [state(k) for k in range(len(intact))]
    assert counts["/leg/joint_states"] == len(intact) >= int(300 * (keep - 0.25))
    with pytest.raises(Exception, match="magic"):
        Rosbag2Reader(truncated).open()
    repair(truncated)
    with Rosbag2Reader(truncated) as rosbag:
        assert {connection.topic: connection.msgcount for connection in rosbag.connections} == counts
        assert sum(1 for _ in rosbag.messages(rosbag.connections)) == sum(counts.values())
    with BagReader(truncated) as reader:
        assert reader.whole
        assert [recorded.message for recorded in reader.messages(["/leg/joint_states"])] == intact
    with pytest.raises(FailedPreconditionError, match="nothing to repair"):
        repair(truncated)


def test_the_index_that_is_made_anew_is_the_one_that_was_lost(bag: Path, tmp_path: Path) -> None:
    truncated = tmp_path / "cut.mcap"
    truncated.write_bytes(bag.read_bytes()[:-100])  # the end of the summary
    repair(truncated)

    def index(path: Path) -> Any:
        with path.open("rb") as stream:
            mcap_summary = make_reader(stream).get_summary()
        assert mcap_summary is not None
        assert mcap_summary.attachment_indexes
        assert mcap_summary.metadata_indexes
        return mcap_summary.attachment_indexes, mcap_summary.metadata_indexes, mcap_summary.chunk_indexes

    assert index(truncated) == index(bag)


def test_a_footer_without_room_for_a_checksum_is_held_against_none(bag: Path) -> None:
    with bag.open("rb") as stream:
        check_summary(stream, Place(Opcode.FOOTER, 0, len(MAGIC), 4), bag)


def test_every_cut_is_read_or_refused(bag: Path, tmp_path: Path) -> None:
    """A file cut at any length gives the first messages, or a `DynError`."""
    data, truncated = bag.read_bytes(), tmp_path / "cut.mcap"
    for length in range(0, len(data), 701):
        truncated.write_bytes(data[:length])
        try:
            with BagReader(truncated) as reader:
                intact = [recorded.message for recorded in reader.messages() if recorded.topic == "/leg/joint_states"]
        except DynError:
            assert length < 8  # not even the magic
        else:
            assert intact == [state(k) for k in range(len(intact))]


def test_changed_bytes_are_found(bag: Path, tmp_path: Path) -> None:
    """A chunk has a checksum: no message with a changed bit is read."""
    data, damaged = bytearray(bag.read_bytes()), tmp_path / "changed.mcap"
    with bag.open("rb") as stream:
        chunks = [place for place in places(stream, bag) if place.opcode == Opcode.CHUNK]
    for chunk in chunks[:8]:
        offset = chunk.content + chunk.length // 2
        data[offset] ^= 0x10
        damaged.write_bytes(data)
        data[offset] ^= 0x10
        with pytest.raises(InvalidArgumentError, match="damaged"), BagReader(damaged) as reader:
            list(reader.messages())


def test_a_changed_name_in_the_summary_is_found(bag: Path, tmp_path: Path) -> None:
    """The summary has its own checksum, so that a changed topic name or field type is detected."""
    data, damaged = bytearray(bag.read_bytes()), tmp_path / "changed.mcap"
    with bag.open("rb") as stream:
        *inner, footer = list(places(stream, bag))
    begins = struct.unpack_from("<Q", data, footer.content)[0]
    summary = [place for place in inner if place.start >= begins]
    definitions = [place for place in summary if place.opcode in (Opcode.CHANNEL, Opcode.SCHEMA)]
    assert definitions
    for place in (*definitions, footer):
        offset = place.content + min(place.length - 1, 12)
        data[offset] ^= 0x04
        damaged.write_bytes(data)
        data[offset] ^= 0x04
        with pytest.raises(InvalidArgumentError, match=naming("changed.mcap'", "summary")):
            BagReader(damaged)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_chunk_that_would_unpack_to_more_than_it_says_is_not_unpacked(tmp_path: Path, compression: str) -> None:
    """64 MB of zeros in some 100 kB: decompression is limited to the stated size."""
    zeros, bomb = bytes(1 << 26), tmp_path / "bomb.mcap"
    packed = lz4.frame.compress(zeros) if compression == "lz4" else zstandard.compress(zeros)
    builder = RecordBuilder()
    parts: list[McapRecord] = [McapHeader("ros2", ""), Chunk(compression, packed, 0, 0, 0, 1000), DataEnd(0)]
    for record in (*parts, Footer(0, 0, 0)):
        record.write(builder)
    bomb.write_bytes(MAGIC + builder.end() + MAGIC)
    del zeros
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgumentError, match="the chunk at byte 29 is damaged"):
            BagReader(bomb)
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [1_500, 4_000_000])
def test_a_chunk_has_no_more_records_than_its_bytes_can_say(tmp_path: Path, count: int) -> None:
    """Messages that are all the same: four million of them, 120 MB, in 11 kB took half a minute to read."""
    builder = RecordBuilder()
    Schema(data=b"bool data", encoding="ros2msg", id=1, name="std_msgs/msg/Bool").write(builder)
    McapChannel(id=1, topic="/a", message_encoding="cdr", metadata={}, schema_id=1).write(builder)
    names = builder.end()
    McapMessage(channel_id=1, log_time=1, data=b"", publish_time=1, sequence=0).write(builder)
    data = names + count * builder.end()
    packed = zstandard.compress(data)
    for record in (McapHeader("ros2", ""), Chunk("zstd", packed, 1, 1, 0, len(data)), DataEnd(0), Footer(0, 0, 0)):
        record.write(builder)
    bag = tmp_path / "many.mcap"
    bag.write_bytes(MAGIC + builder.end() + MAGIC)
    max_records = 1024 + 8 * len(packed)
    assert 1_500 < max_records < 4_000_000
    if count < max_records:
        with BagReader(bag) as reader:
            assert [len(topic.times) for topic in reader.topics] == [count]
        return
    cause = f"chunk at byte 29 has more than {max_records} records in {len(packed)} bytes: `mcap decompress`"
    for read in (BagReader, repair):
        with pytest.raises(InvalidArgumentError, match=cause):
            read(bag)


@pytest.mark.parametrize("indices", ["all", "none"])
@pytest.mark.parametrize("compression", list(CompressionType))
def test_chunks_that_overlap_are_read_in_the_order_of_time(
    tmp_path: Path, compression: CompressionType, indices: str
) -> None:
    """Bags of other writers, with two topics late in turn; also from the middle of a chunk."""
    file, chance = tmp_path / "a.mcap", Random(3)
    kinds = IndexType.ALL if indices == "all" else IndexType.NONE
    with file.open("wb") as stream:
        writer = McapWriter(stream, chunk_size=400, compression=compression, index_types=kinds)
        writer.start("ros2", "others")
        numbers = [
            writer.register_channel(
                name, "cdr", writer.register_schema("std_msgs/msg/String", "ros2msg", b"string data")
            )
            for name in ("/a", "/b")
        ]
        times = [max(0, 10 * k - chance.choice([0, 0, 700])) for k in range(300)]
        for k, time in enumerate(times):
            channel = numbers[k // 40 % 2]
            writer.add_message(channel, time, to_cdr(String(f"{k}")), time)
        writer.finish()
    written_messages = [(time, f"{k}", "/ab"[k // 40 % 2 + 1]) for k, time in enumerate(times)]
    with BagReader(file) as reader:
        for topic, begin, end in ((None, 0, 2**63 - 1), ("/b", 0, 2**63 - 1), (None, 500, 1500), ("/a", 1000, 1001)):
            read_back = [
                (recorded.log_time_ns, recorded.message.data)
                for recorded in reader.messages(topic and [topic], begin, end)
            ]
            # messages of one time in the order of writing
            expected = [
                (time, text)
                for time, text, topic_of in sorted(written_messages, key=lambda entry: entry[0])
                if topic in (None, f"/{topic_of}") and begin <= time < end
            ]
            assert read_back == expected


def test_no_bytes_bring_another_error(tmp_path: Path) -> None:
    """With random bytes changed and ends cut off, reading and repair give messages or a `DynError`."""
    chance, file = Random(4), tmp_path / "changed.mcap"
    data = write(tmp_path / "small.mcap", 40, chunk_bytes=2048).read_bytes()
    refusal_count = 0
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(data))] = chance.choice([0, 255, chance.randrange(256)])
        file.write_bytes(damaged[: chance.choice([len(data), chance.randrange(len(data))])])
        try:
            with BagReader(file) as reader:
                lines(summary(reader))
                for topic in reader.topics:
                    signals(reader, topic.name)
        except DynError:
            refusal_count += 1
        with contextlib.suppress(DynError):
            repair(file)
    assert 30 < refusal_count < 150


def test_a_bag_is_not_written_over(bag: Path, tmp_path: Path) -> None:
    with pytest.raises(FailedPreconditionError, match="already exists: choose another name"):
        BagWriter(bag)
    with pytest.raises(InvalidArgumentError, match=r"must end in \.mcap"):
        BagWriter(tmp_path / "bag.db3")
    with pytest.raises(FailedPreconditionError, match="No such file"):
        BagWriter(tmp_path / "none" / "a.mcap")
    closed = BagWriter(tmp_path / "closed.mcap")
    closed.close()
    closed.close()
    with pytest.raises(FailedPreconditionError, match="is closed"):
        closed.write("/a", String("x"), 1)


@pytest.mark.parametrize("time", [-1, 2**63])
def test_times_that_ros_lacks(tmp_path: Path, time: int) -> None:
    with BagWriter(tmp_path / "a.mcap") as bag, pytest.raises(InvalidArgumentError, match="times of a bag"):
        bag.write("/a", String("x"), time)


KILLED = """
import os, signal, sys
from pathlib import Path
from dyn_service.graph.bags.writer import BagWriter
from tests.graph.bags.test_bags import MS, T0, state
bag = BagWriter(Path(sys.argv[1]), chunk_bytes=4096)
for k in range(300):
    bag.write("/leg/joint_states", state(k), T0 + k * MS)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_messages_before_a_recorder_was_killed_are_read(tmp_path: Path) -> None:
    path = tmp_path / "killed.mcap"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], timeout=240)
    assert done.returncode == -signal.SIGKILL
    with BagReader(path) as reader:
        messages = [recorded.message for recorded in reader.messages()]
        summary_lines = lines(summary(reader))
    assert messages == [state(k) for k in range(len(messages))]
    assert len(messages) > 270  # a chunk of 4096 bytes has some 26
    assert "not ended: its recorder was killed" in summary_lines[2]


def fill(bag: BagWriter) -> None:
    for k in range(3000):
        bag.write("/leg/joint_states", state(k), T0 + k * MS)


def test_a_full_disk_ends_the_bag(tmp_path: Path) -> None:
    """A limit on the file's size acts like a full disk: a write is short, and the next one fails."""
    path = tmp_path / "full.mcap"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        bag = BagWriter(path, chunk_bytes=4096)
        with pytest.raises(ResourceExhaustedError, match=naming("File too large")):
            fill(bag)
        with pytest.raises(FailedPreconditionError, match="is closed"):
            bag.write("/leg/joint_states", state(0), T0)
        bag.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert os.path.getsize(path) <= 20_000
    with BagReader(path) as reader:
        messages = [recorded.message for recorded in reader.messages()]
    assert messages == [state(k) for k in range(len(messages))]
    assert len(messages) > 100


def test_a_chunk_is_written_when_it_is_old(tmp_path: Path) -> None:
    path = tmp_path / "slow.mcap"
    bag = BagWriter(path, chunk_s=0.0)
    bag.write("/a", String("first"), 1)
    with BagReader(path) as reader:
        assert [recorded.message for recorded in reader.messages()] == [String("first")]
    bag.close()


class TestSummary:
    def test_rates_and_gaps(self, tmp_path: Path) -> None:
        path = tmp_path / "gaps.mcap"
        times = [*range(100), *range(150, 200), *range(203, 250)]  # two gaps, of 51 and of 4 periods
        with BagWriter(path) as bag:
            for k in times:
                bag.write("/joint_states", state(k), T0 + k * MS)
            bag.write("/once", String("x"), T0 + 10 * MS)
        with BagReader(path) as reader:
            bag_summary = summary(reader)
        joints, single = bag_summary.topics
        assert (joints.count, joints.gaps, joints.type) == (197, 2, "sensor_msgs/msg/JointState")
        assert joints.rate_hz == pytest.approx(196 / 0.249)
        assert (joints.longest_gap_s, joints.gap_at_s) == pytest.approx((0.051, 0.099))
        assert (single.count, single.gaps) == (1, 0)
        assert (bag_summary.messages, bag_summary.duration_s, bag_summary.begin_ns) == (198, pytest.approx(0.249), T0)
        summary_lines = lines(bag_summary)
        assert summary_lines[0].endswith("198 messages in 0.249 s")
        assert summary_lines[4].split() == ["/once", "std_msgs/msg/String", "1", "0"]  # it has no rate
        assert summary_lines[3].split() == [
            "/joint_states",
            joints.type,
            "197",
            "787.1",
            "2",
            "0.0510",
            "s",
            "at",
            "0.099",
            "s",
        ]

    def test_of_an_empty_bag(self, tmp_path: Path) -> None:
        path = tmp_path / "empty.mcap"
        BagWriter(path).close()
        with BagReader(path) as reader:
            assert lines(summary(reader))[0].endswith("0 messages in 0.000 s")

    @pytest.mark.parametrize(
        ("size", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (2_377_375, "2.38 MB"), (5e10, "50 GB")]
    )
    def test_sizes(self, size: int, text: str) -> None:
        assert size_text(size) == text


class TestSignals:
    def test_joints_by_name(self, bag: Path) -> None:
        with BagReader(bag) as reader:
            by_stamp = {signal.name: signal for signal in signals(reader, "/leg/joint_states")}
            by_log = {signal.name: signal for signal in signals(reader, "/leg/joint_states", "log")}
            foot = {signal.name: signal for signal in signals(reader, "/foot/wrench")}
        assert list(by_stamp) == [f"{field}[{name}]" for field in ("position", "velocity", "effort") for name in NAMES]
        assert by_stamp["position[knee]"].value.tolist() == [-0.01 * k for k in range(300)]
        assert by_stamp["effort[hip]"].time.tolist() == [state(k).header.stamp.seconds() for k in range(300)]
        assert by_log["effort[hip]"].time == pytest.approx(0.001 * np.arange(300), abs=1e-12)
        assert foot["wrench.force.z"].value.tolist() == [float(k) for k in range(0, 300, 10)]
        assert foot["wrench.force.z"].time[1] == pytest.approx(0.01 + 7e-9, abs=1e-12)  # no stamp: when it came

    def test_frames_by_name_and_what_is_missing(self, tmp_path: Path) -> None:
        path = tmp_path / "tf.mcap"
        with BagWriter(path) as bag:
            for k, frame in enumerate(("hand", "foot")):
                bag.write(
                    "/tf", TFMessage([TransformStamped(child_frame_id=frame, transform=Transform(Vector3(1.0 + k)))]), k
                )
        with BagReader(path) as reader:
            values_by_name = {signal.name: signal.value for signal in signals(reader, "/tf")}
        assert np.array_equal(values_by_name["transforms.transform.translation.x[hand]"], [1.0, np.nan], equal_nan=True)
        assert np.array_equal(values_by_name["transforms.transform.translation.x[foot]"], [np.nan, 2.0], equal_nan=True)


class TestPictures:
    def test_panels(self, bag: Path, tmp_path: Path) -> None:
        with BagReader(bag) as reader:
            assert plot(reader, ["/leg/joint_states"], [], tmp_path / "a.png") == [
                f"/leg/joint_states  {field}" for field in ("position", "velocity", "effort")
            ]
            assert plot(reader, [], ["effort[knee]"], tmp_path / "b.svg") == ["/leg/joint_states  effort"]
            plot(reader, [], ["effort"], tmp_path / "both.svg")
            with pytest.raises(NotFoundError, match=naming("'efort'", "'effort'")):
                plot(reader, [], ["efort"], tmp_path / "c.png")
            with pytest.raises(InvalidArgumentError, match=naming(".png, .svg or .pdf", "'.doc'")):
                plot(reader, [], ["effort"], tmp_path / "c.doc")
            with pytest.raises(FailedPreconditionError, match="cannot be written: No such file"):
                plot(reader, [], ["effort"], tmp_path / "none" / "c.png")
        width, height = struct.unpack(">II", (tmp_path / "a.png").read_bytes()[16:24])
        assert width == 1400
        assert height > 700
        svg = (tmp_path / "b.svg").read_text()
        assert "<path" in svg
        svg_of_both = (tmp_path / "both.svg").read_text()
        assert all(f"<!-- {name} -->" in svg_of_both for name in NAMES)  # the legend: each text is before its outlines

    def test_of_a_robot_that_floats_what_says_its_motion(self, tmp_path: Path) -> None:
        """With too many panels, those of joints and base are drawn, with one panel per vector."""
        path, picture = tmp_path / "flying.mcap", tmp_path / "a.svg"
        base = MultiDOFJointState(joint_names=["root_joint"], transforms=[Transform()], twist=[Twist()])
        with BagWriter(path) as bag:
            for k in range(3):
                bag.write("/many", Float64MultiArray(data=[1.0] * 3), T0 + k)
                for letter in "abcdefg":
                    bag.write(f"/{letter}/vector", Transform(Vector3(1.0)), T0 + k)
                bag.write("/multi_dof_joint_states", base, T0 + k)
                bag.write("/odom", Odometry(), T0 + k)
                bag.write("/joint_states", state(k), T0 + k)
        with BagReader(path) as reader:
            assert plot(reader, [], [], picture) == [
                "/joint_states  position", "/joint_states  velocity", "/joint_states  effort",
                "/odom  pose.pose.position", "/odom  pose.pose.orientation",
                "/odom  twist.twist.linear", "/odom  twist.twist.angular",
                "/multi_dof_joint_states  transforms.translation", "/multi_dof_joint_states  transforms.rotation",
                "/multi_dof_joint_states  twist.linear", "/multi_dof_joint_states  twist.angular",
            ]  # fmt: skip
            assert plot(reader, ["/odom"], ["pose.pose.position.z"], picture) == ["/odom  pose.pose.position"]
            with pytest.raises(InvalidArgumentError, match=naming("19", "12")):
                plot(reader, ["/joint_states", "/many", *(f"/{letter}/vector" for letter in "abcdefg")], [], picture)

    @pytest.mark.parametrize(
        ("other", "label"),
        [
            (JointState(Header(Time(2000, 0), ""), ["a"], [1.0]), "time since the bag's start [s]"),  # another clock
            (Float64MultiArray(data=[1.0]), "time since the bag's start [s]"),  # no stamps
            (JointState(Header(Time(3, 0), ""), ["a"], [1.0]), "time [s]"),
        ],
    )
    def test_all_panels_have_one_time_base(
        self, other: Any, label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two topics that arrive at once, 3 s after the bag's start, have one position on the axis with any stamps."""
        path, pictures = tmp_path / "two.mcap", []
        with BagWriter(path) as bag:
            bag.write("/a", JointState(Header(Time(0, 1), ""), ["a"], [0.0]), T0)
            bag.write("/a", JointState(Header(Time(3, 0), ""), ["a"], [1.0]), T0 + 3_000_000_000)
            bag.write("/b", other, T0 + 3_000_000_000)
        save = Figure.savefig
        monkeypatch.setattr(Figure, "savefig", lambda figure, file: (pictures.append(figure), save(figure, file)))
        with BagReader(path) as reader:
            plot(reader, [], [], tmp_path / "a.svg")
        upper, lower = pictures[0].axes[0], pictures[0].axes[-1]
        assert upper.lines[0].get_xdata()[-1] == lower.lines[0].get_xdata()[-1] == pytest.approx(3.0)
        assert upper.get_xlim() == lower.get_xlim()
        assert lower.get_xlabel() == label


def test_messages_survive_as_builtins(bag: Path) -> None:
    """`dyn bag play` sends the recorded messages."""
    with BagReader(bag) as reader:
        first = next(reader.messages(["/leg/joint_states"])).message
    assert msgspec.to_builtins(first) == msgspec.to_builtins(state(0))

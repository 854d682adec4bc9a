"""Messages: ROS 2's definitions, frames in MessagePack, times, and error messages."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from fractions import Fraction
from typing import Annotated

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from dyn_service.errors import InvalidArgumentError, NotFoundError, ResourceExhaustedError
from dyn_service.messages import (
    MAX_BYTES,
    Message,
    all_types,
    by_type,
    decode,
    definition,
    encode,
    fields,
    fields_of,
    from_builtins,
    ros_type,
    schema,
)
from dyn_service.messages.builtin_interfaces import Duration, Time
from dyn_service.messages.codec import OURS
from dyn_service.messages.diagnostic_msgs import DiagnosticArray, DiagnosticStatus
from dyn_service.messages.dyn_service_msgs import GoalStatus, JointCommand, PlantState
from dyn_service.messages.geometry_msgs import Wrench, WrenchStamped
from dyn_service.messages.rosgraph_msgs import Clock
from dyn_service.messages.sensor_msgs import Imu, JointState
from dyn_service.messages.std_msgs import Header, String
from dyn_service.messages.trajectory_msgs import JointTrajectory, JointTrajectoryPoint
from tests.phrases import naming

TYPES = {ros_type(kind): kind for kind in all_types()}
THEIRS = sorted(name for name in TYPES if not name.startswith(("dyn_service_msgs/", "control_msgs/")))
"""Types that ROS defines; rosbags has its definitions of each distribution."""
STORES = {store: get_typestore(store) for store in (Stores.ROS2_HUMBLE, Stores.ROS2_JAZZY)}
ELSEWHERE = {
    "control_msgs/msg/JointTrajectoryControllerState": (
        "6cb9ac0858fc11b54bd6c0a46f032ea243c16856182276d8eb0875f6ce6a8335"
    ),
    "control_msgs/msg/DynamicJointState": "18024c98a62697680f581108eeed40b28fb4542fa0ac5a8e36f56c62b6813d26",
}
"""Types of ROS that rosbags does not have, with their RIHS01 in sources that rosidl has generated of them."""


def test_there_are_types_to_compare() -> None:
    """Renaming a module must not empty the tests below."""
    assert len(THEIRS) >= 28
    assert {name.partition("/")[0] for name in TYPES} == set(OURS)
    parts = {"control_msgs/msg/InterfaceValue"}  # of DynamicJointState, whose hash is of it too
    assert {*THEIRS, *ELSEWHERE, *parts} == {name for name in TYPES if not name.startswith("dyn_service_msgs/")}


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.name)
@pytest.mark.parametrize("name", THEIRS)
def test_definitions_are_ros_2s(name: str, store: Stores) -> None:
    """Every field's name, type and order, the constants, and RIHS01, the hash by which nodes of ROS 2 match types."""
    ros_store, own_store = STORES[store], get_typestore(Stores.EMPTY)
    own_store.register(get_types_from_msg(schema(TYPES[name]), name))
    assert own_store.fielddefs[name][1] == ros_store.fielddefs[name][1]
    if store is Stores.ROS2_JAZZY:  # Humble has the levels of `Log` as bytes
        assert own_store.fielddefs[name][0] == ros_store.fielddefs[name][0]
    assert own_store.hash_rihs01(name) == ros_store.hash_rihs01(name)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_types_that_rosbags_does_not_have_are_ros_2s(name: str) -> None:
    """By the hash alone, which is of all names, types and their order, within its parts too."""
    ours = get_typestore(Stores.EMPTY)
    ours.register(get_types_from_msg(schema(TYPES[name]), name))
    assert ours.hash_rihs01(name) == f"RIHS01_{ELSEWHERE[name]}"


def test_definition_and_schema_as_texts() -> None:
    assert definition(DiagnosticStatus) == (
        "byte OK=0\nbyte WARN=1\nbyte ERROR=2\nbyte STALE=3\n"
        "byte level\nstring name\nstring message\nstring hardware_id\ndiagnostic_msgs/KeyValue[] values\n"
    )
    assert "float64[9] orientation_covariance\n" in definition(Imu)
    for name in THEIRS:
        ros_text, _ = STORES[Stores.ROS2_JAZZY].generate_msgdef(name, ros_version=2)
        assert schema(TYPES[name]) == ros_text


def test_our_own_types_are_ones_that_ros_can_have() -> None:
    store = get_typestore(Stores.EMPTY)
    for kind in (PlantState, JointCommand, GoalStatus):
        store.register(get_types_from_msg(schema(kind), ros_type(kind)))
        assert [name for name, _ in store.fielddefs[ros_type(kind)][1]] == list(kind.__struct_fields__)


def test_by_type() -> None:
    assert by_type("sensor_msgs/msg/JointState") is by_type("sensor_msgs/JointState") is JointState
    with pytest.raises(NotFoundError, match=naming("'sensor_msgs/JointStates'", "'sensor_msgs/msg/JointState'")):
        by_type("sensor_msgs/JointStates")
    for name in ("", "/", "os/path", "builtin_interfaces/msg/Message", "sensor_msgs/msg/Header", "fields/msg/Message"):
        with pytest.raises(NotFoundError):
            by_type(name)


texts = st.text(max_size=5)
numbers = st.floats(allow_nan=False)
headers = st.builds(Header, st.builds(Time, st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**32 - 1)), texts)


@given(st.builds(JointState, headers, st.lists(texts, max_size=3), *[st.lists(numbers, max_size=3)] * 3))
def test_there_and_back(message: JointState) -> None:
    assert decode(JointState, encode(message)) == message
    assert msgspec.msgpack.decode(encode(message)) == msgspec.to_builtins(message)
    assert from_builtins(JointState, msgspec.to_builtins(message)) == message


def test_numpy_is_welcome() -> None:
    message = JointState(name=["a", "b"], position=np.array([1.0, math.inf]), velocity=[np.float64(2.0), 3])  # type: ignore[arg-type]
    assert decode(JointState, encode(message)) == JointState(
        name=["a", "b"], position=[1.0, math.inf], velocity=[2.0, 3.0]
    )


def test_what_is_not_named_is_zero_or_empty() -> None:
    assert from_builtins(JointTrajectory, {"joint_names": ["a"], "points": [{"positions": [1]}]}) == JointTrajectory(
        joint_names=["a"], points=[JointTrajectoryPoint(positions=[1.0])]
    )
    assert decode(Wrench, b"\x80") == Wrench()
    first_message, second_message = JointState(), JointState()
    assert first_message.name is not second_message.name


pack = msgspec.msgpack.encode
FAULTS = [
    (JointState, b"", ["its end is missing"]),
    (JointState, b"\xc1", ["MessagePack", "0"]),
    (JointState, b"\x80\x80", ["MessagePack", "1"]),
    (JointState, b"\x81\xa1\xff\x01", ["a text in it is not UTF-8"]),
    (JointState, b"x" * (MAX_BYTES + 1), ["1048577", "1048576", "bytes", "most"]),
    (JointState, pack([1]), ["expected a map, found a list"]),
    (JointState, pack({"position": [0.0, "x"]}), ["position[1]", "text", "number"]),
    (JointState, pack({"efort": []}), ["efort", "'efort'", "'effort'"]),
    (JointState, encode(WrenchStamped()), ["wrench: unknown key 'wrench'"]),
    (JointState, pack({1: 2}), ["whole", "number"]),
    (Header, pack({"stamp": {"sec": 2**31}}), ["stamp.sec", "2147483647", "whole", "number"]),
    (DiagnosticStatus, pack({"level": 256}), ["level", "255", "whole", "number"]),
    (Imu, pack({"orientation_covariance": [0.0]}), ["orientation_covariance", "9", "list", "entries"]),
    (JointCommand, pack({"session": 1}), ["missing key 'state_seq'"]),
]


@pytest.mark.parametrize(("kind", "frame", "values"), FAULTS)
def test_what_is_no_message_is_said(kind: type[Message], frame: bytes, values: list[str]) -> None:
    with pytest.raises(InvalidArgumentError, match=naming(f"not a {ros_type(kind)}", *values)) as error:
        decode(kind, frame)
    assert "`" not in str(error.value)


def test_another_version_is_none_and_later_keys_are_ignored() -> None:
    command = JointCommand(1, 2, 3, "f00", 4, ("a",), [1.0])
    later_message = msgspec.to_builtins(command) | {"gripper": 1.0}
    assert decode(JointCommand, pack(later_message)) == command
    with pytest.raises(InvalidArgumentError, match="its version is 3, expected 2"):
        decode(JointCommand, pack(later_message | {"v": 3}))


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (JointState(header=Header(frame_id=object())), "header: std_msgs/msg/Header: frame_id is no value"),  # type: ignore[arg-type]
        (JointState(position=[1j]), "position is no value"),  # type: ignore[list-item]
        (Clock(Time(2**70, 0)), "clock: builtin_interfaces/msg/Time: sec is no value"),
        (String("\ud800"), "data is no value"),
    ],
)
def test_what_cannot_be_sent_is_said(message: Message, field: str) -> None:
    with pytest.raises(InvalidArgumentError, match=field):
        encode(message)


def test_too_large_to_send() -> None:
    with pytest.raises(ResourceExhaustedError, match=naming("String", "1048587 bytes", "1048576")):
        encode(String("x" * MAX_BYTES))


class TestTimes:
    @given(st.integers(-(2**31) * 10**9, 2**31 * 10**9 - 1))
    def test_nanoseconds_are_exact(self, nanoseconds: int) -> None:
        time = Time.from_nanoseconds(nanoseconds)
        assert 0 <= time.nanosec < 10**9
        assert time.nanoseconds() == nanoseconds

    @given(st.floats(-(2.0**31), 2.0**31 - 1.0))
    def test_from_seconds_takes_the_nearest(self, seconds: float) -> None:
        error_s = Fraction(Time.from_seconds(seconds).nanoseconds(), 10**9) - Fraction(seconds)
        assert abs(error_s) <= Fraction(1, 2 * 10**9)

    @given(st.integers(-(2**52), 2**52))
    def test_seconds_keep_the_nanosecond(self, nanoseconds: int) -> None:
        """Numbers up to 2^52 ns are at most 2^-31 s apart, less than half a nanosecond."""
        duration = Duration.from_nanoseconds(nanoseconds)
        assert Duration.from_seconds(duration.seconds()) == duration

    def test_before_zero_nanoseconds_still_add(self) -> None:
        assert Time.from_seconds(-0.25) == Time(-1, 750_000_000)

    @pytest.mark.parametrize("seconds", [math.nan, math.inf, 2.0**31, -(2.0**31) - 1.0])
    def test_what_is_no_time(self, seconds: float) -> None:
        with pytest.raises(InvalidArgumentError, match=r"Time must be a finite|have 32 bits"):
            Time.from_seconds(seconds)


class TestOwn:
    """Types that others declare."""

    def test_fields_that_ros_lacks_are_refused(self) -> None:
        class Odd(Message, frozen=True):
            counts: dict[str, int] = msgspec.field(default_factory=dict)

        class Named(Message, frozen=True):
            tcpPose: float = 0.0

        class Ranged(Message, frozen=True):
            numbers: Annotated[list[float], Meta(max_length=3)] = msgspec.field(default_factory=list)

        class Either(Message, frozen=True):
            number_or_text: int | str = 0

        for kind, cause in (
            (Odd, "ROS has no type for dict"),
            (Either, r"ROS has no type for int \| str"),
            (Named, "small letters"),
            (Ranged, "any length, or one"),
        ):
            with pytest.raises(TypeError, match=cause):
                fields_of(kind)

    def test_entry_points_are_found(self, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As an installed package declares them: its metadata lies on the path."""
        (tmp_path / "gripper_pack").mkdir()
        (tmp_path / "gripper_pack" / "gripper_msgs.py").write_text(
            "from dyn_service.messages.fields import Message\n"
            "class Grip(Message, frozen=True):\n    width: float = 0.0\n"
        )
        info = tmp_path / "gripper_pack-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gripper_pack\nVersion: 1\n")
        (info / "entry_points.txt").write_text("[dyn_service.messages]\ngripper_msgs = gripper_pack.gripper_msgs\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        by_type.cache_clear()
        kind = by_type("gripper_msgs/Grip")
        assert (ros_type(kind), definition(kind)) == ("gripper_msgs/msg/Grip", "float64 width\n")
        assert kind in list(all_types())
        with pytest.raises(NotFoundError, match=naming("'grip_msgs/Grip'", re.compile("'gripper_msgs/m"))):
            by_type("grip_msgs/Grip")  # a type of that name in another package is not known
        text = "[dyn_service.messages]\nwrong_msgs = gripper_pack.gripper_msgs:__doc__\n"
        (info / "entry_points.txt").write_text(text)
        with pytest.raises(NotFoundError, match=naming("'wrong_msgs'", "dyn_service.messages")):
            by_type("wrong_msgs/Grip")


@pytest.mark.parametrize(
    ("name", "minimum", "maximum"),
    [
        ("Int8", -128, 127), ("UInt8", 0, 255), ("Byte", 0, 255), ("Int16", -32768, 32767), ("UInt16", 0, 65535),
        ("Int32", -2147483648, 2147483647), ("UInt32", 0, 4294967295),
        ("Int64", -9223372036854775808, 9223372036854775807),
    ],
)  # fmt: skip
def test_whole_numbers_have_the_range_of_their_type(name: str, minimum: int, maximum: int) -> None:
    kind = getattr(fields, name)
    for value, fits in ((minimum, True), (maximum, True), (minimum - 1, False), (maximum + 1, False)):
        if fits:
            assert msgspec.convert(value, kind) == value
        else:
            with pytest.raises(msgspec.ValidationError):
                msgspec.convert(value, kind)


def test_messages_need_no_more_than_the_base_install() -> None:
    script = (
        "import sys\nfrom dyn_service.messages import by_type, schema\nprint(len(schema(by_type('sensor_msgs/Imu'))))\n"
        "print(sorted({'yaml', 'zmq', 'casadi', 'scipy', 'rosbags'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.splitlines()[1] in ("[]", "['zmq']")


def test_a_diagnostic_has_its_levels() -> None:
    array = DiagnosticArray(status=[DiagnosticStatus(DiagnosticStatus.STALE, "arm")])
    assert msgspec.msgpack.decode(encode(array))["status"][0]["level"] == 3

"""What goes over DDS is CDR as ROS 2 has it: byte for byte what rosbags makes of the same message; and a node that is
set up as ROS 2 sets its own up, in another process and with types by hand, hears and is heard."""

from __future__ import annotations

import select
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cyclonedds", reason="extra ros2")

from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from dyn_service.graph.dds import Participant, dds_topic, dds_type
from dyn_service.messages import Message, all_types, fields_of, ros_type, schema
from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.sensor_msgs import JointState
from dyn_service.messages.std_msgs import Header, String
from tests.ros_samples import drawn

TYPES = {ros_type(kind): kind for kind in all_types()}
STORE = get_typestore(Stores.ROS2_JAZZY)
for _kind in TYPES.values():
    _missing = get_types_from_msg(schema(_kind).split("=" * 80)[0], ros_type(_kind))
    STORE.register({name: entry for name, entry in _missing.items() if name not in STORE.types})


def _rosbags_message(message: Message) -> Any:
    """The message as rosbags has it."""
    values = {}
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        if not isinstance(field.kind, str):
            value = _rosbags_message(value) if field.length is None else [_rosbags_message(item) for item in value]
        elif field.length is not None and field.kind != "string":
            value = np.array(value, dtype=field.kind.replace("byte", "uint8"))
        values[field.name] = value
    return STORE.types[ros_type(message)](**values)


@pytest.mark.parametrize("name", TYPES)
def test_bytes_are_rosbags_own(name: str) -> None:
    kind = dds_type(TYPES[name])
    assert kind.idl.__idl_typename__ == name.replace("/msg/", ".msg.dds_.") + "_"
    for seed in range(3):
        message = drawn(TYPES[name], np.random.default_rng(seed))
        rosbags_bytes = bytes(STORE.serialize_cdr(_rosbags_message(message), name))
        ours = kind.to_dds(message).serialize(use_version_2=False)
        size = len(rosbags_bytes)  # after it stands padding to four bytes, which both may write or not
        assert ours[4:size] == rosbags_bytes[4:]
        assert not any(ours[size:])
        assert kind.from_dds(kind.idl.deserialize(rosbags_bytes)) == message


def test_topics_have_their_prefix() -> None:
    assert dds_topic("/arm/joint_states") == "rt/arm/joint_states"


THEIRS = """
import os, sys, time
from dataclasses import dataclass

os.environ["CYCLONEDDS_URI"] = (
    '<CycloneDDS><Domain><General><AllowMulticast>false</AllowMulticast></General><Discovery>'
    '<ParticipantIndex>auto</ParticipantIndex><MaxAutoParticipantIndex>32</MaxAutoParticipantIndex>'
    '<Peers><Peer address="localhost"/></Peers></Discovery></Domain></CycloneDDS>'
)
from cyclonedds.core import Policy, Qos
from cyclonedds.domain import DomainParticipant
from cyclonedds.idl import IdlStruct
from cyclonedds.idl.types import float64, int32, sequence, uint32
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from cyclonedds.util import duration

@dataclass
class Time(IdlStruct, typename="builtin_interfaces::msg::dds_::Time_"):
    sec: int32
    nanosec: uint32

@dataclass
class Header(IdlStruct, typename="std_msgs::msg::dds_::Header_"):
    stamp: Time
    frame_id: str

@dataclass
class JointState(IdlStruct, typename="sensor_msgs::msg::dds_::JointState_"):
    header: Header
    name: sequence[str]
    position: sequence[float64]
    velocity: sequence[float64]
    effort: sequence[float64]

@dataclass
class String(IdlStruct, typename="std_msgs::msg::dds_::String_"):
    data: str

reliable, last = Policy.Reliability.Reliable(duration(seconds=1)), Policy.History.KeepLast(10)
plain, latched = Qos(reliable, last), Qos(reliable, last, Policy.Durability.TransientLocal)
node = DomainParticipant(int(sys.argv[1]))
reader = lambda name, kind, qos: DataReader(node, Topic(node, name, kind), qos=qos)
readers = reader("rt/joint_states", JointState, plain), reader("rt/robot_description", String, latched)
found = [None, None]
while None in found:
    for k, each in enumerate(readers):
        for sample in each.take(10):
            found[k] = sample
    time.sleep(0.005)
state, text = found
print(state.header.stamp.nanosec, state.header.frame_id, state.name, state.position, text.data, flush=True)
writer = DataWriter(node, Topic(node, "rt/goal", JointState), qos=plain)
while True:  # until it is heard, and ended
    writer.write(JointState(Header(Time(3, 0), "theirs"), ["elbow"], [-0.25], [], []))
    time.sleep(0.01)
"""
"""A node of ROS 2's as far as DDS goes, except its type hashes: types by hand, and the very configuration that
rmw_cyclonedds makes of ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST (`check_create_domain` of its rmw_node.cpp)."""


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_who_keeps_to_ros_2s_local_range_hears_and_is_heard() -> None:
    domain = 188
    node = Participant(domain)
    text = node.writer("/robot_description", String, latched=True)
    text.write(String("<robot/>"))
    states, goals = node.writer("/joint_states", JointState), node.reader("/goal", JointState)
    peer = subprocess.Popen([sys.executable, "-c", THEIRS, str(domain)], stdout=subprocess.PIPE, text=True)
    try:
        assert peer.stdout is not None
        while not select.select([peer.stdout], [], [], 0.01)[0]:
            states.write(JointState(Header(Time(2, 7), "base"), ["elbow"], position=[0.5]))
        assert peer.stdout.readline() == "7 base ['elbow'] [0.5] <robot/>\n"
        received: list[JointState] = []
        while not received and peer.poll() is None:
            received.extend(goals.take())
        assert received[0] == JointState(Header(Time(3), "theirs"), ["elbow"], position=[-0.25])
    finally:
        peer.kill()
        peer.communicate()
        node.close()

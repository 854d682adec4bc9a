"""What goes over DDS is CDR as ROS 2 has it: byte for byte what rosbags makes of the same message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cyclonedds", reason="extra ros2")

from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from dyn_service.dds.types import dds_topic, dds_type
from dyn_service.messages import Message, all_types, fields_of, ros_type, schema
from tests.ros_samples import drawn

TYPES = {ros_type(kind): kind for kind in all_types()}
STORE = get_typestore(Stores.ROS2_JAZZY)
for _kind in TYPES.values():
    _missing = get_types_from_msg(schema(_kind).split("=" * 80)[0], ros_type(_kind))
    STORE.register({name: entry for name, entry in _missing.items() if name not in STORE.types})


def _theirs(message: Message) -> Any:
    """The message as rosbags has it."""
    values = {}
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        if not isinstance(field.kind, str):
            value = _theirs(value) if field.length is None else [_theirs(item) for item in value]
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
        theirs = bytes(STORE.serialize_cdr(_theirs(message), name))
        ours = kind.to_dds(message).serialize(use_version_2=False)
        size = len(theirs)  # after it stands padding to four bytes, which both may write or not
        assert ours[4:size] == theirs[4:]
        assert not any(ours[size:])
        assert kind.from_dds(kind.idl.deserialize(theirs)) == message


def test_topics_have_their_prefix() -> None:
    assert dds_topic("/arm/joint_states") == "rt/arm/joint_states"

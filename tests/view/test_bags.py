"""A bag in the viewer: whose joint states they are and what the robot is, by the bag itself or by a clear sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dyn_service.cli.view import _bag
from dyn_service.errors import DynError
from dyn_service.graph.bags.reader import BagReader
from dyn_service.graph.bags.writer import BagWriter
from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.sensor_msgs import JointState
from dyn_service.messages.std_msgs import Header, String
from dyn_service.support.shipped import find_robot
from dyn_service.view.playing import description_in
from tests.phrases import unnamed

TEXT = find_robot("pendulum").read_text("utf-8")
OTHER = TEXT.replace('robot name="pendulum"', 'robot name="other"')


def bag(path: Path, *topics: str, joint: str = "hinge", texts: dict[str, str] | None = None) -> Path:
    file = path / "a.mcap"
    with BagWriter(file) as writer:
        for topic, text in (texts or {}).items():
            writer.write(topic, String(text), 1)
        for k in range(4):
            for topic in topics:
                state = JointState(Header(Time.from_seconds(5.0 + 0.5 * k)), [joint], [0.1 * k], [0.2], [3.0])
                writer.write(topic, state, 1 + k)
    return file


def test_the_robot_is_the_bags_own(tmp_path: Path) -> None:
    file = bag(tmp_path, "/joint_states", texts={"/robot_description": TEXT})
    model, looks, motion = _bag(file, None, None, None)
    assert model.name == "pendulum"
    assert looks.with_shapes == {"base", "pendulum"}  # as its <visual> has them, not stand-ins
    assert (motion.t.tolist(), motion.tau[:, 0].tolist()) == ([0.0, 0.5, 1.0, 1.5], [3.0] * 4)
    np.testing.assert_array_equal(motion.q[:, 0], 0.1 * np.arange(4))
    moving, _, _ = _bag(file, None, None, "floating")
    assert moving.configuration.nv == 7
    shipped_model, _, _ = _bag(file, find_robot("pendulum"), "/joint_states", None)
    assert shipped_model.fingerprint == model.fingerprint


def test_of_several_the_neighbour_is_taken(tmp_path: Path) -> None:
    texts = {"/left/robot_description": TEXT, "/right/robot_description": OTHER}
    with BagReader(bag(tmp_path, "/right/joint_states", "/left/joint_states", "/joint_states", texts=texts)) as reader:
        assert description_in(reader, "/right/joint_states") == ("/right/robot_description", OTHER)
        assert description_in(reader, "/left/joint_states") == ("/left/robot_description", TEXT)
        assert description_in(reader, "/joint_states") is None  # either could be


@pytest.mark.parametrize(
    ("topics", "texts", "topic", "values"),
    [
        ([], {}, None, ["'{}'", "sensor_msgs/msg/JointState", "empty"]),
        ([], {"/a": ""}, None, ["'{}'", "sensor_msgs/msg/JointState", "/a", "states"]),
        (
            ["/r/joint_states", "/l/joint_states"],
            {},
            None,
            ["'{}'", "/l/joint_states", "/r/joint_states", "--topic"],
        ),
        (["/joint_states"], {}, "/joint_state", ["'{}'", "'/joint_state'", "'/joint_states'"]),
        (
            ["/joint_states"],
            {"/a": ""},
            "/a",
            ["'/a'", "'{}'", "std_msgs/msg/String", "sensor_msgs/msg/JointState"],
        ),
        (
            ["/joint_states"],
            {"/robot_description": ""},
            None,
            ["'{}'", "robot_description", "'/joint_states'", "--robot"],
        ),
        (
            ["/joint_states"],
            {"/robot_description": "<robot>"},
            None,
            ["/robot_description", "{}", "1", "XML", "8", "<robot>"],
        ),
        (
            ["/joint_states"],
            {"/robot_description": TEXT.replace('"hinge"', '"pivot"')},
            None,
            ["'/joint_states'", "'{}'", "names"],
        ),
    ],
)
def test_what_cannot_be_shown_is_said(
    tmp_path: Path, topics: list[str], texts: dict[str, str], topic: str | None, values: list[str]
) -> None:
    file = bag(tmp_path, *topics, texts=texts)
    with pytest.raises(DynError) as error:
        _bag(file, None, topic, None)
    assert unnamed(error.value, *(value.format(file) for value in values)) == []


def test_a_bag_that_was_not_ended_is_shown_as_far_as_it_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = bag(tmp_path, "/joint_states", texts={"/robot_description": TEXT})
    shortened = tmp_path / "cut.mcap"
    shortened.write_bytes(file.read_bytes()[:-30])  # within its last record
    _, _, motion = _bag(shortened, None, None, None)
    assert len(motion.t) == 4
    assert capsys.readouterr().err.startswith(f"bag '{shortened}' is incomplete")


def test_a_topic_that_was_never_spoken_on(tmp_path: Path) -> None:
    """As recorders of others leave it, which write down what they listen to when they begin."""
    file = tmp_path / "a.mcap"
    with BagWriter(file) as writer:
        writer._channel("/joint_states", JointState)
    with pytest.raises(DynError) as error:
        _bag(file, None, None, None)
    assert unnamed(error.value, "'/joint_states'", f"'{file}'") == []

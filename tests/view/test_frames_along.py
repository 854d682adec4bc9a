"""`dyn foxglove` publishes tf for plants without a tf publisher."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dyn_service.cli import fallback_frames
from dyn_service.cli.fallback_frames import NAME, FallbackFrames
from dyn_service.errors import DeadlineExceededError
from dyn_service.graph.middleware.topics import RUNTIME_DIR
from dyn_service.graph.nodes.plant.factory import PlantParameters
from dyn_service.messages.dyn_service_msgs import PlantState
from dyn_service.messages.sensor_msgs import JointState
from dyn_service.messages.std_msgs import String
from dyn_service.messages.tf2_msgs import TFMessage
from tests.conftest import URDF
from tests.graph.in_process import Nodes, nodes_in


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    folder = tmp_path / "r"
    folder.mkdir()
    monkeypatch.setenv(RUNTIME_DIR, str(folder))
    with nodes_in(folder) as nodes_in_folder:
        yield nodes_in_folder


def there(nodes: Nodes) -> set[str]:
    return {entry.name for entry in nodes.all[0].graph.read()}


def test_a_publisher_that_does_not_end_is_an_error(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback_frames, "_CLOSE_S", 0.1)
    release = threading.Event()
    monkeypatch.setattr(FallbackFrames, "_look", lambda self: release.wait())
    fallback = FallbackFrames(["*"], print)
    with pytest.raises(DeadlineExceededError, match=r"the publisher of frames still runs 0\.1 s after"):
        fallback.close()
    release.set()
    fallback._thread.join(50.0)
    assert not fallback._thread.is_alive()


def test_a_plant_without_frames_gets_them_until_somebody_else_gives_them(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The robot file is read relative to the plant's working directory: here, this process's."""
    monkeypatch.chdir(URDF)
    looker, plant = nodes.make("/looker"), nodes.make("/arm/plant", PlantParameters(robot="pendulum.urdf"))
    plant.create_publisher(PlantState, "plant_state")
    states = plant.create_publisher(JointState, "joint_states")
    tf, text = (
        looker.create_subscription(TFMessage, "/arm/tf"),
        looker.create_subscription(String, "/arm/robot_description"),
    )
    messages: list[str] = []
    fallback = FallbackFrames(["/arm/*"], messages.append, grace_s=0.0)
    try:
        came: list[TFMessage] = []

        def moves() -> bool:
            states.publish(JointState(name=["hinge"], position=[0.5]))
            came.extend(filter(None, [tf.take()]))
            return bool(came)

        nodes.until(moves)
        assert [transform.child_frame_id for transform in came[0].transforms] == ["pendulum"]
        assert "pendulum" in nodes.until(text.take).data
        assert messages == ["nobody publishes /arm/tf: the frames of /arm/plant are published along"]
        assert f"/arm/{NAME}" in there(nodes)
        other = nodes.make("/arm/robot_state_publisher")
        other.create_publisher(TFMessage, "tf")
        nodes.until(lambda: f"/arm/{NAME}" not in there(nodes))
        nodes.end(other)
        nodes.until(lambda: f"/arm/{NAME}" in there(nodes))
        nodes.end(plant)
        nodes.until(lambda: f"/arm/{NAME}" not in there(nodes))
    finally:
        fallback.close()


def test_what_cannot_be_is_said_once(nodes: Nodes) -> None:
    plant = nodes.make("/plant", PlantParameters(robot="nowhere.urdf"))
    plant.create_publisher(PlantState, "plant_state")
    messages: list[str] = []
    fallback = FallbackFrames(["*"], messages.append, grace_s=0.0)
    try:
        nodes.until(lambda: messages)
        assert messages[0].startswith("no frames of /plant: ")
        assert "nowhere.urdf" in messages[0]
    finally:
        fallback.close()
    assert len(messages) == 1


def test_frames_that_nobody_asks_for_are_not_published(nodes: Nodes) -> None:
    fallback = FallbackFrames(["/joint_states"], pytest.fail, grace_s=0.0)
    fallback.close()
    plant = nodes.make("/plant", PlantParameters(robot=str(URDF / "pendulum.urdf")))
    plant.create_publisher(PlantState, "plant_state")
    fallback._look()  # as its thread does
    assert fallback._publishers == {}

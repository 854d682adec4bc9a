"""The panel of `dyn view`: its sliders' numbers, and its banner. A real viewer, looked at from this process."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from dyn_service import Robot, find_robot
from dyn_service.messages import encode
from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.sensor_msgs import JointState
from dyn_service.messages.std_msgs import Header
from dyn_service.view import playing
from dyn_service.view.playing import live
from dyn_service.view.scene import Looks, Scene
from dyn_service.view.viewer import Viewer
from tests.view.test_scene import ARM

PANDA_LIMITS = ARM.replace('lower="-1" upper="2"', 'lower="-2.8973" upper="2.8973"')


@pytest.fixture
def viewer() -> Iterator[Viewer]:
    scene = Scene(Robot.from_text(PANDA_LIMITS))
    viewer_of_arm = Viewer(scene, Looks({}, ()), scene.still(np.zeros(2)), 0.0, port=0)
    yield viewer_of_arm
    viewer_of_arm.close()


def test_values_of_sliders_fit_their_fields(viewer: Viewer) -> None:
    """Six characters at most: a field shows no more. Limits are rounded inwards, so that none is passed."""
    viewer.sliders()
    sliders = [handle for handle in viewer.server.gui._gui_input_handle_from_uuid.values() if hasattr(handle, "step")]
    assert [(slider.min, slider.max, slider.step, slider.value) for slider in sliders] == [
        (-2.897, 2.897, 0.001, 0.0),
        (-3.141, 3.141, 0.001, 0.0),
    ]


def test_sliders_of_a_robot_with_loops() -> None:
    """A slider for the crank alone; the coupler and the rocker follow it."""
    robot = Robot.from_file(find_robot("four_bar"))
    scene = Scene(robot)
    viewer = Viewer(scene, Looks({}, ()), scene.still(scene.first), scene.floor, port=0)
    try:
        viewer.sliders()
        (slider,) = (x for x in viewer.server.gui._gui_input_handle_from_uuid.values() if hasattr(x, "step"))
        slider.value = 0.7
        q = robot.assemble([0.7, 0.0, 0.0], fixed=["crank_joint"])
        assert viewer._last is not None
        np.testing.assert_allclose(viewer._last.position, robot.link_poses(q).position, atol=1e-9)
    finally:
        viewer.close()


def test_a_banner_says_when_messages_stop(viewer: Viewer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(playing, "time", type("Clock", (), {"monotonic": staticmethod(lambda: clock[0])}))
    endpoint = f"ipc://{tmp_path}/states"
    with zmq.Context() as context, context.socket(zmq.XPUB) as publisher:
        publisher.linger = 0  # before it binds
        publisher.bind(endpoint)
        with live(endpoint, viewer.scene.configuration, pytest.fail) as states:
            assert publisher.recv() == b"\x01"
            watcher = playing.Watcher(viewer, states)
            clock[0] += 2.0
            watcher.tick(0.0)
            assert f"No message on {endpoint} for 2 s.<" in watcher._status.content
            publisher.send(encode(JointState(Header(Time(7, 0), ""), ["shoulder", "elbow"], [0.1, 0.2])))
            assert states._subscriptions[JointState].socket.poll(240_000)
            watcher.tick(0.0)
            assert f"{endpoint}, 7.0 s" in watcher._status.content
            clock[0] += 0.5
            watcher.tick(0.0)
            assert "No message" not in watcher._status.content
            clock[0] += 5.0
            watcher.tick(0.0)
            assert "for 6 s. The robot is shown as it was at 7.0 s." in watcher._status.content  # 5.5 s
            assert "background:#b3261e" in watcher._status.content

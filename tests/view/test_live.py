"""A plant at work: its joint states as they come, from a publisher that is found."""

from pathlib import Path

import numpy as np
import pytest

from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.sensor_msgs import JointState
from dyn_service.messages.std_msgs import Header
from dyn_service.view.live import live
from dyn_service.view.motions import of_joint_state
from tests.trees import configuration

AT = configuration(["lift", "turn"], ["prismatic", "revolute"])


def test_the_newest_of_a_topic_is_taken(tmp_path: Path) -> None:
    import zmq

    from dyn_service.messages import encode

    endpoint, said = f"ipc://{tmp_path}/states", []
    with zmq.Context() as context, context.socket(zmq.XPUB) as publisher:
        publisher.bind(endpoint)
        with live(endpoint, AT, said.append) as heard:
            assert publisher.recv() == b"\x01"  # it listens
            assert heard.take() is None
            for k in range(5):
                at = Header(Time(3, 100_000_000 * k), "")
                publisher.send(encode(JointState(at, ["turn", "lift"], [0.1 * k, 0.2], [1.0, 2.0], [3.0, 4.0])))
            taken = waited_for(heard)
            assert (taken.t, taken.q.tolist()) == (pytest.approx(3.4), [0.2, pytest.approx(0.4)])
            assert (taken.v.tolist(), taken.tau.tolist()) == ([2.0, 1.0], [4.0, 3.0])
            assert heard.recent().q[-1].tolist() == taken.q.tolist()
            publisher.send(encode(JointState(Header(Time(1, 0), ""), ["turn"], [7.0])))
            assert waited_for(heard).q.tolist() == [0.0, 7.0]
            assert heard.recent().t.tolist() == [1.0]  # the run before is forgotten
            for _ in range(2):
                publisher.send(encode(JointState(Header(Time(2, 0), ""), ["stranger"], [7.0])))
                assert heard._heard.socket.poll(5000)
                assert heard.take() is None
            assert said == [f"topic {endpoint!r}: its states name no joint of the robot"]


def waited_for(heard):
    """All that was sent at once: the last of it, once the first is there."""
    assert heard._heard.socket.poll(5000)
    newest = None
    while heard._heard.socket.poll(50):
        newest = heard.take() or newest
    return newest


def test_positions_of_joints_with_several_ways_to_move() -> None:
    at = configuration(["hull", "lift"], ["floating", "prismatic"])
    q = [1.0, 2.0, 3.0, 0.0, 0.0, 0.6, 0.8, 0.5]
    message = JointState(Header(Time(0, 0), ""), list(at.velocity_names), q, [0.0] * 7, np.arange(7.0).tolist())
    state = of_joint_state(message, at)
    assert state is not None
    assert state.q.tolist() == q
    assert state.tau.tolist() == list(range(7))

"""A plant at work: its joint states as they come, from a publisher that is found."""

from pathlib import Path

import pytest

from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.geometry_msgs import Quaternion, Transform, Vector3
from dyn_service.messages.sensor_msgs import JointState, MultiDOFJointState
from dyn_service.messages.std_msgs import Header
from dyn_service.view.playing import live
from tests.graph.in_process import nodes_in
from tests.trees import configuration

AT = configuration(["lift", "turn"], ["prismatic", "revolute"])
PATIENCE_MS = 240_000
"""Far longer than anything here takes."""


def test_the_newest_of_a_topic_is_taken(tmp_path: Path) -> None:
    import zmq

    from dyn_service.messages import encode

    endpoint, messages = f"ipc://{tmp_path}/states", []
    with zmq.Context() as context, context.socket(zmq.XPUB) as publisher:
        publisher.linger = 0  # before it binds
        publisher.bind(endpoint)
        with live(endpoint, AT, messages.append) as updates:
            assert publisher.recv() == b"\x01"  # it listens
            assert updates.take() is None
            for k in range(5):
                header = Header(Time(3, 100_000_000 * k), "")
                publisher.send(encode(JointState(header, ["turn", "lift"], [0.1 * k, 0.2], [1.0, 2.0], [3.0, 4.0])))
            newest = waited_for(updates, 3.4)
            assert (newest.t, newest.q.tolist()) == (pytest.approx(3.4), [0.2, pytest.approx(0.4)])
            assert (newest.v.tolist(), newest.tau.tolist()) == ([2.0, 1.0], [4.0, 3.0])
            assert updates.recent().q[-1].tolist() == newest.q.tolist()
            publisher.send(encode(JointState(Header(Time(1, 0), ""), ["turn"], [7.0])))
            assert waited_for(updates, 1.0).q.tolist() == [0.0, 7.0]
            assert updates.recent().t.tolist() == [1.0]  # the run before is forgotten
            for _ in range(2):
                publisher.send(encode(JointState(Header(Time(2, 0), ""), ["stranger"], [7.0])))
                assert updates._subscriptions[JointState].socket.poll(PATIENCE_MS)
                assert updates.take() is None
            assert messages == [f"topic {endpoint!r}: its states name no joint of the robot"]


def waited_for(updates, t: float):
    """The state of this time; of those that were sent before it some may come by themselves."""
    while True:
        assert updates._subscriptions[JointState].socket.poll(PATIENCE_MS)
        newest = updates.take()
        if newest is not None and newest.t == pytest.approx(t):
            return newest


def test_a_floating_base_is_heard_beside_the_joints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by its topic's place in the namespace, from a launch's folder."""
    robot_configuration = configuration(["hull", "lift"], ["floating", "prismatic"])
    monkeypatch.setenv("DYN_RUNTIME_DIR", str(tmp_path))
    transform = Transform(Vector3(1.0, 2.0, 3.0), Quaternion(0.0, 0.0, 0.6, 0.8))
    header = Header(Time(2), "")
    with nodes_in(tmp_path) as nodes:
        plant = nodes.make("/dog/plant")
        multi_dof = plant.create_publisher(MultiDOFJointState, "multi_dof_joint_states")
        joints = plant.create_publisher(JointState, "joint_states")
        notes: list[str] = []
        with live("/dog/joint_states", robot_configuration, notes.append) as updates:

            def both():
                multi_dof.publish(MultiDOFJointState(header, ["hull"], [transform]))
                joints.publish(JointState(header, ["lift"], [0.5]))
                state = updates.take()
                return state if state is not None and state.q[0] and state.q[7] else None

            state = nodes.until(both)
    assert (state.t, state.q.tolist()) == (2.0, [1.0, 2.0, 3.0, 0.0, 0.0, 0.6, 0.8, 0.5])
    assert notes == [f"topic /dog/joint_states of {tmp_path}"]  # once

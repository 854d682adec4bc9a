"""Recordings: what they refuse, the order of joints, and the files they are read from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from dyn_service.identification import Recording, read_recording
from tests.conftest import URDF

PENDULUM = Robot.from_file(URDF / "double_pendulum.urdf")
JOINTS = PENDULUM.joint_names
T = np.arange(5) * 0.01
Q, TAU = np.arange(10.0).reshape(5, 2), np.arange(10.0, 20.0).reshape(5, 2)


def recording(**changes: Any) -> Recording:
    return Recording(**{"t": T, "q": Q, "effort": TAU, "joints": JOINTS, **changes})


@pytest.mark.parametrize(
    ("changes", "path", "values"),
    [
        ({"t": T[::-1]}, "t", ["row 1", "0.03 s", "0.04 s"]),
        ({"q": Q[:, :1]}, "q", ["(5, 2)", "(5, 1)"]),
        ({"q": np.where(Q == 7.0, np.nan, Q)}, "q", ["row 3", JOINTS[1], "nan"]),
        ({"effort": np.where(TAU == 12.0, np.nan, TAU)}, "effort", ["row 1", JOINTS[0], "nan"]),
        ({"effort": np.where(TAU == 12.0, np.inf, TAU)}, "effort", ["row 1", JOINTS[0], "inf"]),
        ({"joints": (JOINTS[0], JOINTS[0])}, "joints", [JOINTS[0]]),
    ],
)
def test_bad_numbers_are_refused_with_their_place(changes: dict[str, Any], path: str, values: list[str]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        recording(**changes)
    assert caught.value.path == path
    assert all(value in str(caught.value) for value in values)


def test_columns_are_put_in_the_order_of_the_robot_and_other_joints_dropped() -> None:
    names = ("gripper", JOINTS[1], JOINTS[0])
    wide = Recording(T, np.column_stack([T, Q[:, ::-1]]), np.column_stack([T, TAU[:, ::-1]]), names)
    ordered = wide.for_robot(PENDULUM)
    assert ordered.joints == JOINTS
    np.testing.assert_array_equal(ordered.q, Q)
    np.testing.assert_array_equal(ordered.effort, TAU)


def test_a_missing_joint_is_named_and_may_have_stood_still() -> None:
    part = Recording(T, Q[:, :1], TAU[:, :1], JOINTS[:1])
    with pytest.raises(NotFoundError, match=f"rest_positions={{'{JOINTS[1]}': 0.0}}"):
        part.for_robot(PENDULUM)
    completed = part.for_robot(PENDULUM, rest_positions={JOINTS[1]: 0.5})
    np.testing.assert_array_equal(completed.q[:, 1], 0.5)
    assert np.isnan(completed.effort[:, 1]).all()


def test_a_floating_robot_is_refused() -> None:
    floating = Robot.from_file(URDF / "double_pendulum.urdf", root="floating")
    with pytest.raises(UnimplementedError, match="several degrees of freedom"):
        recording().for_robot(floating)


def test_gaps_separate_segments() -> None:
    t = np.array([0.0, 0.01, 0.02, 0.03, 1.0, 1.01, 1.02])
    gapped = Recording(t, np.zeros((7, 2)), np.zeros((7, 2)), JOINTS)
    assert gapped.segments() == [slice(0, 4), slice(4, 7)]
    with pytest.raises(InvalidArgumentError, match=r"0\.1 s to 0\.2 s"):
        gapped.between(0.1, 0.2)


@pytest.mark.parametrize(
    "header", ["t,q.{1},q.{0},tau.{1},tau.{0}", "time,position[{1}],position[{0}],effort[{1}],effort[{0}]"]
)
def test_csv(tmp_path: Path, header: str) -> None:
    file = tmp_path / "swing.csv"
    table = np.column_stack([T, Q[:, ::-1], TAU[:, ::-1]])
    np.savetxt(file, table, delimiter=",", header=header.format(*JOINTS), comments="")
    result = read_recording(file, PENDULUM)
    np.testing.assert_array_equal(result.q, Q)
    np.testing.assert_array_equal(result.effort, TAU)
    file.write_text(file.read_text() + "1,2,3,4,x\n")
    with pytest.raises(InvalidArgumentError, match=r"line 7.*'x'"):
        read_recording(file, PENDULUM)
    file.write_text("t,a\n1,2\n")
    with pytest.raises(InvalidArgumentError, match=r"q\.JOINT.*found t, a"):
        read_recording(file, PENDULUM)


def test_npz(tmp_path: Path) -> None:
    file = tmp_path / "swing.npz"
    np.savez(file, t=T, q=Q.astype(np.float32), v=Q, tau=TAU)
    np.testing.assert_array_equal(read_recording(file, PENDULUM).v, Q)
    np.savez(file, t=T, q=Q[:, ::-1], tau=TAU[:, ::-1], joints=np.array(JOINTS[::-1]))
    np.testing.assert_array_equal(read_recording(file, PENDULUM).effort, TAU)
    np.savez(file, t=T, q=np.zeros((5, 3)), tau=TAU)
    with pytest.raises(InvalidArgumentError, match="3 columns for 2 joints"):
        read_recording(file, PENDULUM)
    np.savez(file, t=T, q=Q)
    with pytest.raises(InvalidArgumentError, match="no 'tau'"):
        read_recording(file, PENDULUM)
    with pytest.raises(NotFoundError):
        read_recording(tmp_path / "absent.npz", PENDULUM)


def test_bag(tmp_path: Path) -> None:
    from dyn_service.graph.bags import BagWriter
    from dyn_service.messages.builtin_interfaces import Time
    from dyn_service.messages.sensor_msgs import JointState
    from dyn_service.messages.std_msgs import Header

    file = tmp_path / "swing.mcap"
    with BagWriter(file) as bag:
        for k, t in enumerate(T):
            header = Header(Time.from_seconds(1.0 + t))
            state = JointState(header, list(JOINTS[::-1]), list(Q[k, ::-1]), [0.0, 0.0], list(TAU[k, ::-1]))
            bag.write("/arm/joint_states", state, 1_000_000 * (k + 1))
    result = read_recording(file, PENDULUM, topic="/arm/joint_states")
    np.testing.assert_allclose(result.t, T, atol=1e-9)  # stamps are whole nanoseconds
    np.testing.assert_array_equal(result.q, Q)
    np.testing.assert_array_equal(result.effort, TAU)


def test_bag_of_ros_1(tmp_path: Path) -> None:
    from rosbags.rosbag1 import Writer
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS1_NOETIC)
    state, header, stamp = (store.types[f"{name}"] for name in (
        "sensor_msgs/msg/JointState", "std_msgs/msg/Header", "builtin_interfaces/msg/Time"))  # fmt: skip
    file = tmp_path / "swing.bag"
    with Writer(file) as bag:
        connection = bag.add_connection("/joint_states", state.__msgtype__, typestore=store)
        for k in range(5):
            time = header(seq=k, stamp=stamp(sec=7, nanosec=k * 10_000_000), frame_id="")
            message = state(time, list(JOINTS[::-1]), Q[k, ::-1].copy(), np.zeros(0), TAU[k, ::-1].copy())
            bag.write(connection, k, store.serialize_ros1(message, state.__msgtype__))
    result = read_recording(file, PENDULUM)
    np.testing.assert_allclose(result.t, T, atol=1e-9)
    np.testing.assert_array_equal(result.q, Q)
    np.testing.assert_array_equal(result.effort, TAU)
    with pytest.raises(NotFoundError, match="/joint_states"):
        read_recording(file, PENDULUM, topic="/joint_stats")

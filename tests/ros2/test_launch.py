"""A launch with a node of ROS 2 that reads the robot, sends a goal, and sees the arm reach it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="dependency group test-ros2")
pytest.importorskip("cyclonedds", reason="extra ros2")
pytest.importorskip("ruckig", reason="extra trajectories")

from builtin_interfaces.msg import Duration
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from tests.conftest import ROOT, URDF
from tests.graph.launches import Launched
from tests.ros2.conftest import Ros

LAUNCH = """launch:
  - include:
      file: {shipped}
      let:
        - {{name: robot, value: {robot}}}
        - {{name: controller, value: trajectory_following}}
        - {{name: clock, value: lockstep}}
  - node: {{pkg: dyn_service, exec: robot_state_publisher, param: [{{name: robot, value: {robot}}}]}}
  - node:
      pkg: dyn_service
      exec: ros2_bridge
      param:
        - {{name: domain, value: {domain}}}
        - {{name: from_ros, value: [{{topic: joint_trajectory, type: trajectory_msgs/msg/JointTrajectory}}]}}
"""
GOAL = {"joint_1": 0.4, "joint_2": -0.3}


@pytest.mark.slow
def test_a_goal_from_ros_2_is_reached(ros: Ros, domain: int, tmp_path: Path) -> None:
    robot = URDF / "double_pendulum.urdf"
    file = tmp_path / "beside_ros2.launch.yaml"
    file.write_text(LAUNCH.format(shipped=ROOT / "launch" / "robot.launch.yaml", robot=robot, domain=domain))
    states: list[Any] = []
    texts: list[Any] = []
    diagnostics: list[Any] = []
    latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    ros.node.create_subscription(JointState, "/joint_states", states.append, 1)
    ros.node.create_subscription(String, "/robot_description", texts.append, latched)
    ros.node.create_subscription(DiagnosticArray, "/diagnostics", diagnostics.append, 10)
    goals = ros.node.create_publisher(JointTrajectory, "/joint_trajectory", 10)

    def where() -> dict[str, float]:
        return dict(zip(states[-1].name, states[-1].position, strict=True))

    with Launched(file, "--duration", "600", env={"ROS_DOMAIN_ID": "7"}) as launch:  # the parameter comes first
        launch.wait_line("ready: 5 processes")
        ros.until(lambda: states and texts, "no state, or no description")
        assert texts[0].data == robot.read_text()
        assert set(where()) == set(GOAL)
        point = JointTrajectoryPoint(positions=[*GOAL.values()], time_from_start=Duration(sec=2))
        goal = JointTrajectory(joint_names=[*GOAL], points=[point])
        start_position, sent_s = where(), 0.0

        def there() -> bool:
            nonlocal sent_s
            now = where()
            moves = any(abs(now[name] - start_position[name]) > 1e-3 for name in GOAL)
            if not moves and time.monotonic() > sent_s + 1.0:  # again, for what was sent before the two had met is gone
                goals.publish(goal)
                sent_s = time.monotonic()
            return all(abs(now[name] - GOAL[name]) < 1e-4 for name in GOAL)  # it is followed to 1e-5

        ros.until(there, "it did not get there")
        ros.until(lambda: diagnostics, "no diagnostics")
        assert launch.stop() == 0, launch.text

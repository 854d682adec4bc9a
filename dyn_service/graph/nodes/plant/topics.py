"""What a plant sends and takes: its states, the time where it is not that of the wall, commands."""

from __future__ import annotations

from typing import Any

from dyn_service.control.joint_states import MULTI_DOF, JointStates
from dyn_service.control.plant.plant import Plant
from dyn_service.control.plant.simulated import SimulatedRobot
from dyn_service.graph.middleware.node import Node
from dyn_service.graph.middleware.pubsub import Publisher
from dyn_service.graph.nodes.plant.parameters import PlantParameters
from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.messages.geometry_msgs import Vector3, Wrench, WrenchStamped
from dyn_service.messages.nav_msgs import Odometry
from dyn_service.messages.rosgraph_msgs import Clock
from dyn_service.messages.sensor_msgs import Imu, JointState, MultiDOFJointState
from dyn_service.messages.std_msgs import Header

CLOCK = "/clock"
"""Everybody's topic, whatever the namespace, as in ROS."""
NO_ORIENTATION = [-1.0, *[0.0] * 8]
"""A covariance by which ROS's `Imu` says that it has no orientation: it would be taken for one without an error."""


class PlantTopics:
    """The topics of one plant. published: states sent out.

    `plant_state` is what a controller needs, `joint_states` the same as ROS says it, for all others; what has no place
    there is beside it, where the robot has such joints: `multi_dof_joint_states` and `odom`. The plant takes the newest
    of `joint_commands`, whoever publishes them, and where endpoints are written down it listens at them.
    """

    def __init__(self, node: Node[Any], p: PlantParameters, messages: JointStates, plant: Plant | None = None) -> None:
        self._states = node.create_publisher(PlantState, p.plant_state, name="plant_state")
        self._joints = node.create_publisher(JointState, p.joint_states, name="joint_states")
        self._commands = node.create_subscription(JointCommand, p.joint_commands, name="joint_commands", binds=True)
        self._clock = node.create_publisher(Clock, CLOCK) if p.clock != "real_time" else None
        self._messages = messages
        self._several = self._odometry = None
        if messages.has_several:
            self._several = node.create_publisher(MultiDOFJointState, p.multi_dof_joint_states, name=MULTI_DOF)
        if messages.has_odometry:
            self._odometry = node.create_publisher(Odometry, p.odom, name="odom")
        self._sensors = SensorTopics(node, plant) if plant is not None else None
        self.published = 0

    @property
    def malformed(self) -> int:
        """Commands that were none."""
        return self._commands.malformed

    def send(self, state: PlantState) -> None:
        """Sends a state out, and the time."""
        stamp = Time.from_seconds(state.stamp)
        if self._clock is not None:
            self._clock.publish(Clock(stamp))
        self._states.publish(state)
        said = self._messages.of_state(state)
        # what is beside joint_states comes first: who waits for these has all then
        if self._odometry is not None and said.odometry is not None:
            self._odometry.publish(said.odometry)
        if self._several is not None and said.several is not None:
            self._several.publish(said.several)
        self._joints.publish(said.joints)
        if self._sensors is not None:
            self._sensors.send()
        self.published += 1

    def take(self, wait_ms: int = 0) -> JointCommand | None:
        """The newest command, or None where there is none within that time; one that is none is counted."""
        if wait_ms:
            self._commands.socket.poll(wait_ms)
        return self._commands.take()


class SensorTopics:
    """The readings of a simulated robot's sensors but for its encoders, each on a topic of its own: `NAME/wrench` of
    force/torque sensors, `NAME/imu`; in the axes of the sensor, with the time at which it was sampled.
    """

    def __init__(self, node: Node[Any], plant: Plant) -> None:
        self._measuring = plant.robot.measuring if isinstance(plant.robot, SimulatedRobot) else None
        self._wrenches: dict[str, Publisher[WrenchStamped]] = {}
        self._imus: dict[str, Publisher[Imu]] = {}
        self._last: dict[str, int] = {}
        if self._measuring is not None:
            said = self._measuring.sensors.settings
            self._wrenches = {
                name: node.create_publisher(WrenchStamped, f"{name}/wrench") for name in said.force_torque
            }
            self._imus = {name: node.create_publisher(Imu, f"{name}/imu") for name in said.imus}

    def send(self) -> None:
        """Sends what was read since the last time, of each sensor the newest."""
        for name, reading in self._measuring.readings.items() if self._measuring is not None else ():
            if reading.seq == self._last.get(name):
                continue
            self._last[name] = reading.seq
            header = Header(Time.from_seconds(reading.stamp), name)
            first, second = (Vector3(*reading.value[k : k + 3].tolist()) for k in (0, 3))
            if name in self._wrenches:
                self._wrenches[name].publish(WrenchStamped(header, Wrench(first, second)))
            elif name in self._imus:
                turning = Imu(
                    header,
                    orientation_covariance=NO_ORIENTATION,
                    angular_velocity=second,
                    linear_acceleration=first,
                )
                self._imus[name].publish(turning)

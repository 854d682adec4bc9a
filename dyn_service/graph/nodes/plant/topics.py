"""A plant's topics: states, the clock, commands, sensor readings."""

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
"""A global topic, as in ROS."""
NO_ORIENTATION = [-1.0, *[0.0] * 8]
"""Covariance by which ROS's `Imu` marks a missing orientation; zeros would mean an exact one."""


class PlantTopics:
    """The topics of one plant. published: number of published states.

    `plant_state` is for controllers; `joint_states` is the same as a ROS message, with `multi_dof_joint_states` and
    `odom` for robots with such joints. The plant uses the newest message of `joint_commands` from any publisher, and
    binds if an endpoint is specified.
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
        """Number of malformed commands."""
        return self._commands.malformed

    def send(self, state: PlantState) -> None:
        """Publishes a state and the time."""
        stamp = Time.from_seconds(state.stamp)
        if self._clock is not None:
            self._clock.publish(Clock(stamp))
        self._states.publish(state)
        said = self._messages.of_state(state)
        # joint_states is last, so that a subscriber that receives it can have the others
        if self._odometry is not None and said.odometry is not None:
            self._odometry.publish(said.odometry)
        if self._several is not None and said.several is not None:
            self._several.publish(said.several)
        self._joints.publish(said.joints)
        if self._sensors is not None:
            self._sensors.send()
        self.published += 1

    def take(self, wait_ms: int = 0) -> JointCommand | None:
        """Returns the newest command, or None if no valid one arrives in time; malformed ones are counted."""
        if wait_ms:
            self._commands.socket.poll(wait_ms)
        return self._commands.take()


class SensorTopics:
    """Topics of a simulated robot's sensors other than encoders: `NAME/wrench` of force/torque sensors, `NAME/imu`, in
    the sensor's axes, stamped with the sampling time.
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
        """Publishes the newest reading of each sensor that has one since the last call."""
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

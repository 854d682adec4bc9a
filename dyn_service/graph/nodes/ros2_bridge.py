"""Bridges topics to ROS 2 over DDS: `to_ros` publishes ours there, `from_ros` publishes ROS 2's here. Extra `ros2`.

ROS 2's nodes see ROS names and types: `ros2 topic echo /joint_states`. An outgoing topic is found, with its type, when
a node here publishes it. Nothing is queued: a slow side gets the newest message.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from dyn_service.errors import DynError, InvalidArgumentError
from dyn_service.graph.middleware.node import Node
from dyn_service.graph.middleware.node_kind import Column, NodeKind
from dyn_service.graph.middleware.topics import is_latched
from dyn_service.messages import Message, by_type, ros_type
from dyn_service.support.optional import require

if TYPE_CHECKING:
    from dyn_service.graph.dds import Reader, Writer
    from dyn_service.graph.middleware.pubsub import Publisher

TO_ROS = (
    "joint_states", "multi_dof_joint_states", "odom", "tf", "tf_static", "robot_description", "/clock", "/diagnostics",
)  # fmt: skip
LOOK_S = 0.5
STATS_S = 0.5
MAX_WARNINGS = 100
"""Number of different warnings that are logged."""
_LOG = logging.getLogger(__name__)


class Incoming(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A topic from ROS. type: for example `trajectory_msgs/msg/JointTrajectory`."""

    topic: str
    type: str


class Ros2BridgeParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Parameters of the bridge.

    to_ros: topics of this launch for ROS 2. from_ros: topics of ROS 2 for this launch, with their types. domain: ROS
    domain; by default `$ROS_DOMAIN_ID`, or 0. reach: `localhost` communicates on this machine only, and requires the
    same of ROS 2's nodes (`ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST`); `subnet` is ROS 2's default; `system` uses
    `$CYCLONEDDS_URI`. rate_hz: rate at which messages from ROS are polled.
    """

    to_ros: list[str] = msgspec.field(default_factory=lambda: list(TO_ROS))
    from_ros: list[Incoming] = []
    domain: int | None = None
    reach: Literal["localhost", "subnet", "system"] = "localhost"
    rate_hz: Annotated[float, msgspec.Meta(gt=0.0, le=5000.0)] = 500.0


class Ros2Bridge(Node[Ros2BridgeParameters]):
    """The node; see the module."""

    def on_configure(self) -> None:
        """Joins the DDS domain."""
        from dyn_service.graph.dds import Participant, dds_topic, domain_number

        p = self.parameters
        incoming_names = [topic.topic for topic in p.from_ros]
        for name in p.to_ros:
            if self._full(name) in map(self._full, incoming_names):
                raise InvalidArgumentError(f"topic {name!r} is in to_ros and in from_ros: its messages would circulate")
        self.participant = Participant(domain_number(p.domain), p.reach)
        for name in p.to_ros:
            dds_topic(self._full(name))  # checks the name
        self.sent: dict[str, int] = {}
        self.received: dict[str, int] = {}
        self._reported: set[str] = set()
        self._writers: dict[str, Writer] = {}
        self._readers: list[tuple[Reader, Publisher[Any], str]] = []
        for incoming_topic in p.from_ros:
            kind, full_name = by_type(incoming_topic.type), self._full(incoming_topic.topic)
            reader = self.participant.reader(full_name, kind, latched=is_latched(full_name))
            publisher = self.create_publisher(kind, incoming_topic.topic, latched=is_latched(full_name))
            self._readers.append((reader, publisher, full_name))
        self.create_timer(LOOK_S, self._look)
        self.create_timer(1.0 / p.rate_hz, self._read)
        self.create_timer(STATS_S, self._stats)
        self._look()

    def on_cleanup(self) -> None:
        """Leaves the domain."""
        self.participant.close()

    def _look(self) -> None:
        ends = [end for node in self.graph.nodes() for end in node.publishers]
        for full_name in map(self._full, self.parameters.to_ros):
            for end in ends:
                if end.name != full_name or full_name in self._writers:
                    continue
                try:
                    kind = by_type(end.type)
                except DynError as error:  # the type of a package that is not installed here
                    self._warn_once(f"{full_name} does not go to ROS 2: {error}")
                    continue
                self._writers[full_name] = self.participant.writer(full_name, kind, latched=is_latched(full_name))
                # only when a node here publishes the topic: before, its type is unknown
                self.create_subscription(kind, full_name, partial(self._write, full_name))
                _LOG.info("%s: %s goes to ROS 2 as %s", self.name, full_name, ros_type(kind))

    def _write(self, topic: str, message: Message) -> None:
        self._writers[topic].write(message)
        self.sent[topic] = self.sent.get(topic, 0) + 1

    def _read(self) -> None:
        for reader, publisher, topic in self._readers:
            for message in reader.take():
                try:
                    publisher.publish(message)
                except DynError as error:  # such as one that is too large
                    self._warn_once(f"a message of {topic} does not come in: {error}")
                    continue
                self.received[topic] = self.received.get(topic, 0) + 1

    def _stats(self) -> None:
        self.telemetry.stats({"sent": sum(self.sent.values()), "received": sum(self.received.values())})

    def _warn_once(self, sentence: str) -> None:
        """Logs a warning once, and goes on: a fault of one topic must not stop the others."""
        if sentence not in self._reported and len(self._reported) < MAX_WARNINGS:
            self._reported.add(sentence)
            _LOG.warning("%s: %s", self.name, sentence)

    def _full(self, topic: str) -> str:
        """Returns the topic's full name after remapping."""
        return self._place(topic, "")[0]


def check(p: Ros2BridgeParameters) -> None:
    """Checks that DDS is installed."""
    require("the ROS 2 bridge", "cyclonedds")


NODE = NodeKind(
    "ros2_bridge",
    Ros2BridgeParameters,
    Ros2Bridge,
    columns=(Column("bridged", lambda stats: f"{stats.get('sent', 0)} out, {stats.get('received', 0)} in"),),
    check=check,
)

if __name__ == "__main__":
    raise SystemExit(NODE.run())

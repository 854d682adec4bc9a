"""The node law_name: joint states with smoothed velocities."""

from typing import Annotated

import msgspec
from msgspec import Meta

from dyn_service.graph import Node, NodeKind, settable
from dyn_service.messages.sensor_msgs import JointState


class LawNameParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """share: of a new velocity in the smoothed one; 1 does not smooth. It may be set while the node runs."""

    share: Annotated[float, Meta(gt=0, le=1), settable] = 0.1


class LawName(Node[LawNameParameters]):
    """Publishes each joint state that arrives again, with smoothed velocities."""

    def on_configure(self) -> None:
        """Makes topics, timers and services."""
        self.smoothed: dict[str, float] = {}
        self.out = self.create_publisher(JointState, "~/joint_states")
        self.create_subscription(JointState, "joint_states", self.smooth, queue=100)

    def smooth(self, state: JointState) -> None:
        """Takes one message."""
        for name, velocity in zip(state.name, state.velocity, strict=True):
            previous = self.smoothed.get(name, velocity)
            self.smoothed[name] = previous + self.parameters.share * (velocity - previous)
        velocities = [self.smoothed[name] for name in state.name]
        self.out.publish(JointState(state.header, state.name, state.position, velocities, state.effort))


NODE = NodeKind("law_name", LawNameParameters, LawName)

if __name__ == "__main__":
    raise SystemExit(NODE.run())

"""Estimates the payload of a link from the states of a plant, and publishes it: see `identification/payloads.py`.

It takes every `plant_state` under command, and publishes `payload` (`dyn_service_msgs/LinkPayload`) in its namespace
`rate_hz` times a second. A controller with `payload_error` uses it. After a missed state, or a time without command, a
new window begins. The service `~/reset` begins the estimate again, after a grasp or a release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np

from dyn_service.control.plant.safety import ACTIVE
from dyn_service.errors import FailedPreconditionError
from dyn_service.graph.middleware.node import Node
from dyn_service.graph.middleware.node_kind import NodeKind
from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.dyn_service_msgs import LinkPayload, PlantState
from dyn_service.messages.std_msgs import Header
from dyn_service.model.description import RootType
from dyn_service.model.parameters import COLUMNS, ROWS
from dyn_service.support.parameters import InputFile, Positive, RobotFile
from dyn_service.support.shipped import find_robot

if TYPE_CHECKING:
    from dyn_service.identification import PayloadEstimate


class PayloadEstimatorParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Parameters of the payload estimator.

    robot: path of the robot file of plant and controller, without the payload. joints: its joint file. root: how its
    root link moves in the world. mimic: whether mimic joints follow their leaders. link: the link with the payload.
    forgetting_s: time constant of forgetting, s of plant time. window_s: length of a window, s. friction: whether
    friction that the model lacks is estimated, too. extent_m: size of the payload before any data, m. rate_hz:
    estimates published per second. plant_state: the topic it subscribes to.
    """

    robot: RobotFile
    link: str
    joints: InputFile = ""
    root: RootType = "fixed"
    mimic: bool = True
    forgetting_s: Positive = 20.0
    window_s: Positive = 0.2
    friction: bool = True
    extent_m: Positive = 0.3
    rate_hz: Annotated[float, msgspec.Meta(gt=0.0, le=100.0)] = 5.0
    plant_state: str = "plant_state"


class ResetRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Begins the estimate without knowledge."""


class PayloadEstimatorNode(Node[PayloadEstimatorParameters]):
    """The node; see the module."""

    def on_configure(self) -> None:
        """Loads the robot, and creates topics and the service."""
        from dyn_service.engine.robot import Robot
        from dyn_service.identification import PayloadEstimator

        p = self.parameters
        with self.stop.at_once():
            self.robot = Robot.from_file(find_robot(p.robot), joints=p.joints or None, root=p.root, mimic=p.mimic)
            self.estimator = PayloadEstimator(
                self.robot,
                p.link,
                forgetting_s=p.forgetting_s,
                friction=p.friction,
                window_s=p.window_s,
                extent_m=p.extent_m,
            )
        self.payload = self.create_publisher(LinkPayload, "payload", latched=True)
        self.states = self.create_subscription(PlantState, p.plant_state, self._take, queue=5000)
        self.create_service("~/reset", ResetRequest, lambda request: self.estimator.reset())
        # By wall time: an estimate takes ms, whatever the plant's speed.
        self.create_timer(1.0 / p.rate_hz, self._publish)
        self._last: PlantState | None = None
        self._stamp: float | None = None
        self._missed = 0

    def _take(self, state: PlantState) -> None:
        if state.fingerprint != self.robot.fingerprint:
            raise FailedPreconditionError(
                f"the plant's model has fingerprint {state.fingerprint}, this node's {self.robot.fingerprint}: give "
                "both the same robot, joints, root and mimic"
            )
        last, missed_count = self._last, self.states.missed
        self._last = state
        if last is None or state.stamp < last.stamp or (state.session, state.epoch, ACTIVE, missed_count) != (
            last.session, last.epoch, state.mode, self._missed
        ):  # fmt: skip
            self.estimator.interrupt()
            self._missed = missed_count
        elif state.stamp > last.stamp:  # a plant that is released repeats its state
            q, v, tau = (np.array(x) for x in (state.position, state.velocity, state.effort))
            if self.estimator.update(q, v, tau, state.stamp - last.stamp):
                self._stamp = state.stamp

    def _publish(self) -> None:
        if self._stamp is None:  # nothing new
            return
        estimate, stamp, self._stamp = self.estimator.estimate, self._stamp, None
        self.payload.publish(self._message(stamp, estimate))

    def _message(self, stamp: float, estimate: PayloadEstimate) -> LinkPayload:
        return LinkPayload(
            Header(Time.from_seconds(stamp), estimate.link),
            estimate.mass,
            estimate.com.tolist(),
            estimate.inertia[ROWS, COLUMNS].tolist(),
            estimate.standard_errors.tolist(),
            list(estimate.unknown),
            self.robot.fingerprint,
        )


NODE = NodeKind(
    "payload_estimator",
    PayloadEstimatorParameters,
    PayloadEstimatorNode,
    about="Estimates what a link carries beyond the robot's model, from the states of a plant.",
)

if __name__ == "__main__":
    raise SystemExit(NODE.run())

"""The computed-torque controller: requests every torque from a dynamics server, by default at 500 Hz.

The law is in `control/laws/computed_torque.py`, the loop in `controller_kind.py`.
"""

from __future__ import annotations

from typing import Annotated

from dyn_service.control.laws.computed_torque import ComputedTorque
from dyn_service.graph.nodes.controllers.controller_kind import Input, controller_kind
from dyn_service.graph.nodes.controllers.parameters import MotionParameters
from dyn_service.messages.dyn_service_msgs import LinkPayload
from dyn_service.support.parameter_descriptions import settable
from dyn_service.support.parameters import NotNegative


class ControllerParameters(MotionParameters, forbid_unknown_fields=True, kw_only=True):
    """Parameters of the computed-torque controller, in addition to those of the loop and the motion.

    natural_frequency: rad/s of the tracking error; one number or one per velocity, in closed loops of independent
    joints. damping_ratio: of that error; 1 is critical. payload_error: kg; estimates of topic `payload` with a standard
    error of the mass of at most this are part of the model from then on; 0: none.
    """

    natural_frequency: Annotated[float | list[float], settable] = 30.0
    damping_ratio: Annotated[float, settable] = 1.0
    payload_error: NotNegative = 0.0


NODE = controller_kind(
    "controller",
    ControllerParameters,
    lambda p, model: ComputedTorque.of_frequency(model, p.natural_frequency, p.damping_ratio, p.payload_error),
    inputs=(Input("payload", LinkPayload, ComputedTorque.take_payload),),
    about="Computed torque: requests every torque from a dynamics server, by default 500 times a second.",
)

if __name__ == "__main__":
    raise SystemExit(NODE.run())

"""The joint impedance controller: see `control/laws/joint_impedance.py`."""

from __future__ import annotations

from typing import Annotated

from dyn_service.control.laws.joint_impedance import JointImpedance
from dyn_service.graph.nodes.controllers.controller_kind import controller_kind
from dyn_service.graph.nodes.controllers.parameters import Motion, MotionParameters
from dyn_service.support.parameter_descriptions import settable


class JointImpedanceParameters(MotionParameters, forbid_unknown_fields=True, kw_only=True):
    """Parameters of the joint impedance controller, in addition to those of the loop and the motion.

    stiffness: N m/rad | N/m, one number or one per velocity. damping_ratio: of each mode of the arm.
    """

    trajectory: Motion = "hold"
    stiffness: Annotated[float | list[float], settable] = 100.0
    damping_ratio: Annotated[float, settable] = 1.0


NODE = controller_kind(
    "joint_impedance",
    JointImpedanceParameters,
    lambda p, model: JointImpedance(model, p.stiffness, p.damping_ratio),
)

if __name__ == "__main__":
    raise SystemExit(NODE.run())

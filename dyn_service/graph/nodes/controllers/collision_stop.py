"""Computed torque with collision detection: see `control/laws/collision_stop.py`."""

from __future__ import annotations

import msgspec
import numpy as np

from dyn_service.api.queries import RobotQueries
from dyn_service.control.independent_joints import IndependentJoints, of_all_joints
from dyn_service.control.law import EffortLaw
from dyn_service.control.laws.collision_stop import Action, CollisionStop, thresholds
from dyn_service.control.laws.computed_torque import ComputedTorque, GravityCompensation
from dyn_service.control.laws.joint_impedance import JointImpedance
from dyn_service.control.laws.momentum_observer import MomentumObserver
from dyn_service.graph.nodes.controllers.controller_kind import controller_kind
from dyn_service.graph.nodes.controllers.parameters import MotionParameters


class CollisionStopParameters(MotionParameters, forbid_unknown_fields=True, kw_only=True):
    """Parameters of the collision controller, in addition to those of the loop and the motion.

    natural_frequency, damping_ratio: of the computed torque. observer_gain: K, 1/s. threshold: N m | N, one per
    velocity; empty is a share of the effort limits. threshold_share: that share. action: reaction to a collision.
    hold_stiffness: N m/rad | N/m, of the action `hold`; one number or one per velocity. float_damping: 1/s, of the
    action `float`.
    """

    natural_frequency: float | list[float] = 30.0
    damping_ratio: float = 1.0
    observer_gain: float = 50.0
    threshold: list[float] = msgspec.field(default_factory=list)
    threshold_share: float = 0.1
    action: Action = "stop"
    hold_stiffness: float | list[float] = 100.0
    float_damping: float = 5.0


def make_law(p: CollisionStopParameters, model: RobotQueries) -> CollisionStop:
    """Makes the law from the parameters."""
    joints = IndependentJoints.of(model)
    limits, configuration = model.limits, model.configuration
    if joints is not None:
        limits, configuration = joints.limits(limits), joints.configuration
    following = ComputedTorque.of_frequency(model, p.natural_frequency, p.damping_ratio)
    threshold = thresholds(p.threshold, p.threshold_share, limits.efforts, configuration.velocity_names)
    reaction: EffortLaw | None = None
    if p.action == "hold":
        reaction = JointImpedance(model, p.hold_stiffness, 1.0)
    elif p.action == "float":
        reaction = GravityCompensation(model, p.float_damping)
    threshold = of_all_joints(model, threshold, np.inf)
    return CollisionStop(following, MomentumObserver(model, p.observer_gain), threshold, reaction)


NODE = controller_kind("collision_stop", CollisionStopParameters, make_law)

if __name__ == "__main__":
    raise SystemExit(NODE.run())

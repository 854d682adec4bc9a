"""The admittance controller, without a force sensor: see `control/laws/admittance.py`."""

from __future__ import annotations

from dyn_service.api.queries import RobotQueries
from dyn_service.control.independent_joints import commanded_count, of_all_joints
from dyn_service.control.law import per_joint
from dyn_service.control.laws.admittance import Admittance
from dyn_service.control.laws.computed_torque import ComputedTorque
from dyn_service.control.laws.momentum_observer import MomentumObserver
from dyn_service.graph.nodes.controllers.controller_kind import controller_kind
from dyn_service.graph.nodes.controllers.parameters import Motion, MotionParameters


class AdmittanceParameters(MotionParameters, forbid_unknown_fields=True, kw_only=True):
    """Parameters of the admittance controller, in addition to those of the loop and the motion.

    inertia: kg m^2 | kg, of the admittance; one number or one per velocity. damping: N m s/rad | N s/m, as inertia.
    stiffness: N m/rad | N/m, as inertia. observer_gain: K, 1/s. natural_frequency, damping_ratio: of the inner computed
    torque.
    """

    trajectory: Motion = "hold"
    inertia: float | list[float] = 2.0
    damping: float | list[float] = 20.0
    stiffness: float | list[float] = 50.0
    observer_gain: float = 50.0
    natural_frequency: float | list[float] = 60.0
    damping_ratio: float = 1.0


def make_law(p: AdmittanceParameters, model: RobotQueries) -> Admittance:
    """Makes the law from the parameters."""
    n = commanded_count(model)
    return Admittance(
        ComputedTorque.of_frequency(model, p.natural_frequency, p.damping_ratio),
        MomentumObserver(model, p.observer_gain),
        # No external torques act on the joints that loops move, so their numbers have no effect.
        of_all_joints(model, per_joint("inertia", p.inertia, n, positive=True), 1.0),
        of_all_joints(model, per_joint("damping", p.damping, n), 0.0),
        of_all_joints(model, per_joint("stiffness", p.stiffness, n), 0.0),
    )


NODE = controller_kind("admittance", AdmittanceParameters, make_law)

if __name__ == "__main__":
    raise SystemExit(NODE.run())

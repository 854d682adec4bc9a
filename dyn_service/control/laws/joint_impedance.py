"""Joint impedance: each joint yields as a spring of the given stiffness.

    tau = M(q) a_ref + C(q, v_ref) v_ref + g(q) + K e + D (v_ref - v),    e = q_ref - q,    D = A (2 d S^1/2) A^T

with M = A A^T and K = A S A^T, so that every mode has the damping ratio d in any posture. About a reference at rest,
v^T M v / 2 + e^T K e / 2 decreases by v^T D v and grows only by external power: the arm is passive, and therefore
stable in contact with any passive environment. The inertia is not shaped. A torque tau_ext at rest moves the arm by
K^-1 tau_ext. A moving reference is tracked without error if the model matches the plant.

In closed loops the independent joints have springs, M is G^T M G, and their reference moves all, v_ref = G u_ref.

Source: Hogan, Impedance Control, J. Dyn. Sys. Meas. Control 107 (1985); D as in Albu-Schaeffer and others (2003).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dyn_service.api.queries import Array, RobotQueries
from dyn_service.control.independent_joints import IndependentJoints, commanded_count
from dyn_service.control.law import EffortLaw, RobotState, modal_damping, per_joint
from dyn_service.control.trajectory import Reference


class JointImpedance(EffortLaw):
    """Springs at the joints. stiffness: one number or nv, N m/rad | N/m; in closed loops one per velocity of
    independent joints. damping_ratio: of each mode.

    Raises:
        InvalidArgumentError: A number is negative or not finite, or there are neither one nor nv.
        FailedPreconditionError: An independent joint of closed loops has no motor.
    """

    name = "joint_impedance"
    closed_loops = True

    def __init__(self, model: RobotQueries, stiffness: float | Sequence[float], damping_ratio: float) -> None:
        self.model = model
        self._independent = IndependentJoints.driven_ones(model, self.name)
        self.stiffness = per_joint("stiffness", stiffness, commanded_count(model))
        self.damping_ratio = float(per_joint("damping_ratio", damping_ratio, 1)[0])
        self._spring = np.zeros(model.configuration.nv)
        self._in_v = slice(None) if self._independent is None else self._independent.in_v

    def update(self, state: RobotState, reference: Reference, dt: float) -> Array:
        """The efforts. Queries: `inverse_dynamics` along the reference, `mass_matrix`; in closed loops those of
        `IndependentJoints.along`.
        """
        # With v_ref and not v: C(q, v_ref) v_ref keeps the arm passive about a reference at rest.
        if self._independent is None:
            effort = np.array(self.model.inverse_dynamics(state.q, reference.v, reference.a))
            mass = self.model.mass_matrix(state.q)
        else:
            _, mass, effort = self._independent.along(self.model, state.q, reference)
        # At each state, because the modes of M and K change with the posture.
        damping = modal_damping(mass, np.diag(self.stiffness), self.damping_ratio)
        entries, error = self._in_v, self.model.configuration.error(state.q, reference.q)
        self._spring = np.zeros_like(error)
        self._spring[entries] = self.stiffness * error[entries]
        effort[entries] = effort[entries] + self._spring[entries] + damping @ (reference.v - state.v)[entries]
        return effort

    def signals(self) -> Mapping[str, Array]:
        """spring: K e, N m | N."""
        return {"spring": self._spring}

"""The law law_name: springs and dampers about a reference, the robot's weight carried by the model.

    tau = g(q) + M(q) (w^2 (q_ref - q) + 2 d w (v_ref - v))

The mass matrix M makes one frequency w fit all joints, those that carry the arm and those of the wrist.
"""

from __future__ import annotations

from typing import Annotated

from dyn_service import Array, InvalidArgumentError, RobotQueries
from dyn_service.control import Law, Reference, RobotState
from dyn_service.graph import MotionParameters, controller_kind, settable


class LawNameParameters(MotionParameters, forbid_unknown_fields=True, kw_only=True):
    """Parameters of the law, in addition to those of every controller and of its reference motion.

    natural_frequency: w, rad/s. damping_ratio: d; 1 is critical. Both may be set while the controller runs
    (`settable`): the law is then created again.
    """

    natural_frequency: Annotated[float, settable] = 15.0
    damping_ratio: Annotated[float, settable] = 1.0


class LawName(Law):
    """Springs and dampers about a reference."""

    name = "law_name"

    def __init__(self, parameters: LawNameParameters, model: RobotQueries) -> None:
        if not (parameters.natural_frequency > 0.0 and parameters.damping_ratio >= 0.0):
            raise InvalidArgumentError("natural_frequency must be positive, damping_ratio not negative")
        self.parameters, self.model = parameters, model
        self.stretch: Array | None = None

    def reset(self, state: RobotState) -> None:
        """Forgets what was before: what the law remembers from update to update begins here."""
        self.stretch = None

    def update(self, state: RobotState, reference: Reference, dt: float) -> Array:
        """The efforts (nv,) N m | N at this state; `dt` s after the last ones."""
        w, d = self.parameters.natural_frequency, self.parameters.damping_ratio
        self.stretch = self.model.configuration.error(state.q, reference.q)
        pull = w * w * self.stretch + 2.0 * d * w * (reference.v - state.v)
        return self.model.gravity_forces(state.q) + self.model.mass_matrix(state.q) @ pull

    def signals(self) -> dict[str, Array]:
        """What is recorded with every update, and shown in the report."""
        return {} if self.stretch is None else {"stretch": self.stretch}


NODE = controller_kind("law_name", LawNameParameters, LawName)

if __name__ == "__main__":
    raise SystemExit(NODE.run())
